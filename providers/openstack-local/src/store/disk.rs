//! Rows in a redb database: one redb table for each table of the state, row by key, as JSON.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    panic,
    path::{Path, PathBuf},
};

use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition,
    TableHandle, backends::FileBackend,
};

use super::StoreError;
use crate::state::{CloudState, Tables};

/// Version of the format on disk. It is increased when an older program must not read it.
const FORMAT: u64 = 1;
const FORMAT_TABLE: TableDefinition<'_, &str, u64> = TableDefinition::new("format");
const FORMAT_KEY: &str = "version";

/// A row to write, or to remove.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) table: &'static str,
    pub(super) key: String,
    pub(super) bytes: Option<Vec<u8>>,
}

/// Opens the database, at the start and again after a failure.
pub(super) trait Open: std::fmt::Debug + Send {
    fn open(&self) -> Result<Database, DatabaseError>;

    /// Directory, for error messages.
    fn dir(&self) -> &Path;
}

/// Mode of a state directory that is created here. One that exists keeps its mode, because it may
/// be somebody else's.
const DIRECTORY_MODE: u32 = 0o700;
/// Mode of the database, which contains private keys.
const FILE_MODE: u32 = 0o600;

/// The database is a file in a directory.
#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
}

impl Files {
    pub(super) fn new(dir: &Path) -> Result<Self, StoreError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(dir)
            .map_err(|source| StoreError::Directory { dir: dir.to_owned(), source })?;
        Ok(Self { dir: dir.to_owned() })
    }
}

impl Open for Files {
    fn open(&self) -> Result<Database, DatabaseError> {
        let file = open_private(&self.dir.join("state.redb")).map_err(StorageError::Io)?;
        // Without the check, a file that another program has changed would be trusted.
        Database::builder()
            .set_check_integrity_on_open(true)
            .create_with_backend(FileBackend::new(file)?)
    }

    fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Opens or creates a file that only its owner may read. A file of an earlier release loses the
/// other permissions.
fn open_private(path: &Path) -> io::Result<fs::File> {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

/// An open database.
#[derive(Debug)]
pub(super) struct Disk {
    database: Database,
    dir: PathBuf,
}

impl Disk {
    pub(super) fn open(files: &dyn Open) -> Result<Self, StoreError> {
        let dir = files.dir().to_owned();
        // A debug build of redb panics where a release build reports corruption.
        let opened = panic::catch_unwind(panic::AssertUnwindSafe(|| files.open()));
        let database = match opened {
            Ok(Ok(database)) => database,
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => return Err(StoreError::Locked { dir }),
            Ok(Err(DatabaseError::UpgradeRequired(version))) => {
                return Err(StoreError::Corrupt {
                    dir,
                    reason: format!("the file has the old format {version}"),
                });
            }
            Ok(Err(DatabaseError::Storage(StorageError::Io(error))))
                if error.kind() != io::ErrorKind::InvalidData
                    && error.kind() != io::ErrorKind::UnexpectedEof =>
            {
                return Err(StoreError::Directory { dir, source: error });
            }
            Ok(Err(error)) => return Err(StoreError::Corrupt { dir, reason: error.to_string() }),
            Err(_) => {
                return Err(StoreError::Corrupt {
                    dir,
                    reason: "the file is no database".to_owned(),
                });
            }
        };
        let disk = Self { database, dir };
        disk.check_format()?;
        Ok(disk)
    }

    fn check_format(&self) -> Result<(), StoreError> {
        let transaction = self
            .database
            .begin_write()
            .map_err(|error| self.failed(&error))?;
        {
            let mut table = transaction
                .open_table(FORMAT_TABLE)
                .map_err(|error| self.failed(&error))?;
            let found = table
                .get(FORMAT_KEY)
                .map_err(|error| self.failed(&error))?
                .map(|found| found.value());
            match found {
                Some(FORMAT) => return Ok(()),
                Some(newer) => {
                    return Err(StoreError::Newer {
                        dir: self.dir.clone(),
                        what: format!("format {newer}"),
                    });
                }
                None => {
                    table
                        .insert(FORMAT_KEY, FORMAT)
                        .map_err(|error| self.failed(&error))?;
                }
            }
        }
        transaction.commit().map_err(|error| self.failed(&error))
    }

    /// Reads everything.
    pub(super) fn load(&self) -> Result<CloudState, StoreError> {
        let transaction = self
            .database
            .begin_read()
            .map_err(|error| self.failed(&error))?;
        let mut state = CloudState::default();
        for handle in transaction
            .list_tables()
            .map_err(|error| self.failed(&error))?
        {
            let name = handle.name().to_owned();
            if name == FORMAT_TABLE.name() {
                continue;
            }
            let definition: TableDefinition<'_, &str, &[u8]> = TableDefinition::new(&name);
            let table = transaction
                .open_table(definition)
                .map_err(|error| self.corrupt(&name, &error))?;
            for row in table.iter().map_err(|error| self.failed(&error))? {
                let (key, value) = row.map_err(|error| self.failed(&error))?;
                self.load_row(&mut state, &name, key.value(), value.value())?;
            }
        }
        state.parts_mut().into_iter().for_each(Tables::commit);
        Ok(state)
    }

    fn load_row(
        &self,
        state: &mut CloudState,
        table: &str,
        key: &str,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        for part in state.parts_mut() {
            if part
                .load(table, bytes)
                .map_err(|error| self.corrupt(&format!("{table} {key}"), &error))?
            {
                return Ok(());
            }
        }
        Err(StoreError::Newer { dir: self.dir.clone(), what: format!("table {table}") })
    }

    /// Writes changes, in their order, in one transaction. They are on disk when it returns.
    pub(super) fn write(&self, changes: Vec<Vec<Write>>) -> Result<(), StoreError> {
        let mut tables: BTreeMap<&'static str, BTreeMap<String, Option<Vec<u8>>>> = BTreeMap::new();
        for write in changes.into_iter().flatten() {
            tables
                .entry(write.table)
                .or_default()
                .insert(write.key, write.bytes);
        }
        let transaction = self
            .database
            .begin_write()
            .map_err(|error| self.failed(&error))?;
        for (name, rows) in tables {
            let definition: TableDefinition<'_, &str, &[u8]> = TableDefinition::new(name);
            let mut table = transaction
                .open_table(definition)
                .map_err(|error| self.failed(&error))?;
            for (key, bytes) in rows {
                match bytes {
                    Some(bytes) => drop(
                        table
                            .insert(&*key, &*bytes)
                            .map_err(|error| self.failed(&error))?,
                    ),
                    None => drop(table.remove(&*key).map_err(|error| self.failed(&error))?),
                }
            }
        }
        transaction.commit().map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &dyn std::error::Error) -> StoreError {
        StoreError::Disk { dir: self.dir.clone(), reason: error.to_string() }
    }

    fn corrupt(&self, what: &str, error: &dyn std::error::Error) -> StoreError {
        StoreError::Corrupt { dir: self.dir.clone(), reason: format!("{what}: {error}") }
    }
}
