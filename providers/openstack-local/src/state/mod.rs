//! The state of the cloud in memory: rows by kind, changed by plain functions, all or nothing.
//!
//! A request handler is a function of [`CloudState`] and [`RequestContext`]. The store runs it, writes what it
//! touched to disk, and only then returns the answer; after an error it undoes everything. So no
//! handler has to deal with disks or locks.

mod error;
mod table;

use jiff::Timestamp;

pub use self::{
    error::ApiError,
    table::{Row, Table},
};

/// Writes one row: table, key, and its bytes (`None`: removed).
pub type WriteRow<'a> = &'a mut dyn FnMut(&'static str, &str, Option<Vec<u8>>);

/// A set of tables that can be stored: raw rows by table.
pub trait Tables {
    /// Gives each touched row to `write`.
    fn each_touched(&self, write: WriteRow<'_>);

    /// Puts a row as it was written down. Returns `false` when there is no such table here.
    ///
    /// # Errors
    /// Bytes that are no such row.
    fn load(&mut self, table: &str, bytes: &[u8]) -> Result<bool, serde_json::Error>;

    /// Keeps what was touched.
    fn commit(&mut self);

    /// Puts back what was touched.
    fn undo(&mut self);
}

/// Defines a struct of [`Table`]s and implements [`Tables`] for it.
macro_rules! tables {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $row:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[$field_doc])* pub $field: $crate::state::Table<$row>,)* }

        #[allow(unused_variables, reason = "a service may have no rows")]
        impl $crate::state::Tables for $name {
            fn each_touched(&self, write: $crate::state::WriteRow<'_>) {
                $(for (key, row) in self.$field.touched() {
                    let table = <$row as $crate::state::Row>::TABLE;
                    write(table, key, row.map(|row| $crate::state::encode(&**row)));
                })*
            }

            fn load(&mut self, table: &str, bytes: &[u8]) -> Result<bool, serde_json::Error> {
                $(if table == <$row as $crate::state::Row>::TABLE {
                    self.$field.put(serde_json::from_slice(bytes)?);
                    return Ok(true);
                })*
                Ok(false)
            }

            fn commit(&mut self) {
                $(self.$field.commit();)*
            }

            fn undo(&mut self) {
                $(self.$field.undo();)*
            }
        }
    };
}
pub(crate) use tables;

/// Encodes a row for the database.
pub fn encode<R: Row>(row: &R) -> Vec<u8> {
    // Rows are plain structs with string keys, which JSON can always represent.
    serde_json::to_vec(row).expect("a row is JSON")
}

/// The whole state.
#[derive(Debug, Default)]
pub struct CloudState {
    /// Identity: projects, users, credentials, tokens.
    pub keystone: crate::keystone::Tables,
    /// Compute: servers, flavors.
    pub nova: crate::nova::Tables,
    /// Networks, ports, routers, floating IPs, security groups.
    pub neutron: crate::neutron::Tables,
    /// Load balancers.
    pub octavia: crate::octavia::Tables,
    /// Images.
    pub glance: crate::glance::Tables,
}

impl CloudState {
    /// Returns the parts, for operations on all tables.
    pub fn parts(&self) -> [&dyn Tables; 5] {
        [&self.keystone, &self.nova, &self.neutron, &self.octavia, &self.glance]
    }

    /// Like [`parts`](Self::parts), to change them.
    pub fn parts_mut(&mut self) -> [&mut dyn Tables; 5] {
        [
            &mut self.keystone,
            &mut self.nova,
            &mut self.neutron,
            &mut self.octavia,
            &mut self.glance,
        ]
    }
}

/// The user of a request, and its time.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Now, by the cloud's clock.
    pub now: Timestamp,
    /// Project that the token is scoped to; objects belong to it, and only its own are seen.
    pub project: Box<str>,
    /// User of the token.
    pub user: Box<str>,
    /// True for an administrator, who sees and changes every project's objects.
    pub admin: bool,
}

impl RequestContext {
    /// Returns whether the user may see an object of `project`.
    pub fn sees(&self, project: &str) -> bool {
        self.admin || &*self.project == project
    }
}

/// Returns a new ID like OpenStack's: a random UUID.
pub fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}
