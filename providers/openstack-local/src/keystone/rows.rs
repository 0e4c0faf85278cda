use std::collections::BTreeMap;

use jiff::Timestamp;
use openstack_api::Secret;
use serde::{Deserialize, Serialize};

use super::secret::Hashed;
use crate::state::Row;

macro_rules! rows {
    ($($row:ty: $table:literal by $key:ident,)*) => {
        $(impl Row for $row {
            const TABLE: &'static str = $table;

            fn key(&self) -> &str {
                &self.$key
            }
        })*
    };
}

rows! {
    Domain: "keystone.domains" by id,
    Project: "keystone.projects" by id,
    User: "keystone.users" by id,
    Role: "keystone.roles" by id,
    Assignment: "keystone.assignments" by key,
    Service: "keystone.services" by id,
    Endpoint: "keystone.endpoints" by id,
    Region: "keystone.regions" by id,
    ApplicationCredential: "keystone.application_credentials" by id,
    Trust: "keystone.trusts" by id,
    Token: "keystone.tokens" by digest,
    KeyContainer: "barbican.containers" by id,
    KeySecret: "barbican.secrets" by id,
}

/// A domain: names of its projects and users are unique in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// ID.
    pub id: String,
    /// Name, unique.
    pub name: String,
    /// For people.
    pub description: String,
    /// Whether its users may have tokens.
    pub enabled: bool,
}

/// A project, which owns what the other services make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// ID.
    pub id: String,
    /// Name, unique in the domain.
    pub name: String,
    /// Domain.
    pub domain_id: String,
    /// For people.
    pub description: String,
    /// Whether tokens may be scoped to it.
    pub enabled: bool,
    /// Tags.
    pub tags: Vec<String>,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// ID.
    pub id: String,
    /// Name, unique in the domain.
    pub name: String,
    /// Domain.
    pub domain_id: String,
    /// For people.
    pub description: String,
    /// Whether the user may have tokens.
    pub enabled: bool,
    /// Project of tokens that ask for no scope.
    pub default_project_id: Option<String>,
    /// The password; none: no way in by password.
    pub password: Option<Hashed>,
}

/// A role. The one named `admin` sees and changes everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// ID.
    pub id: String,
    /// Name, unique.
    pub name: String,
}

/// What roles are for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A project, by ID.
    Project(String),
    /// A domain, by ID.
    Domain(String),
    /// The whole cloud.
    System,
}

/// A role of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// All parts together.
    key: String,
    /// ID of the user.
    pub user_id: String,
    /// ID of the role.
    pub role_id: String,
    /// Where.
    pub target: Target,
}

impl Assignment {
    /// Makes one.
    pub fn new(user_id: &str, role_id: &str, target: Target) -> Self {
        Self {
            key: Self::key_of(user_id, role_id, &target),
            user_id: user_id.to_owned(),
            role_id: role_id.to_owned(),
            target,
        }
    }

    /// Makes the key.
    pub fn key_of(user_id: &str, role_id: &str, target: &Target) -> String {
        match target {
            Target::Project(id) => format!("{user_id} {role_id} project {id}"),
            Target::Domain(id) => format!("{user_id} {role_id} domain {id}"),
            Target::System => format!("{user_id} {role_id} system"),
        }
    }
}

/// A service of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// ID.
    pub id: String,
    /// Its kind, such as `compute`.
    pub kind: String,
    /// Name, such as `nova`.
    pub name: String,
    /// For people.
    pub description: String,
    /// Whether the catalog has it.
    pub enabled: bool,
}

/// Where a service is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// ID.
    pub id: String,
    /// Service.
    pub service_id: String,
    /// `public`, `internal` or `admin`.
    pub interface: String,
    /// Region.
    pub region_id: String,
    /// Where, without a version, such as `/compute`: below the address by which the client reaches the cloud.
    pub path: String,
}

/// A region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// ID, which is its name, too.
    pub id: String,
    /// For people.
    pub description: String,
}

/// An application credential: a way in for a program, with some of its user's roles in one project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationCredential {
    /// ID.
    pub id: String,
    /// Name, unique for the user.
    pub name: String,
    /// For people.
    pub description: Option<String>,
    /// User.
    pub user_id: String,
    /// Project of its tokens.
    pub project_id: String,
    /// Roles of its tokens, as far as the user still has them.
    pub role_ids: Vec<String>,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// Whether its tokens may make credentials and trusts.
    pub unrestricted: bool,
    /// The secret.
    pub secret: Hashed,
}

/// A trust: a user passes some of their roles in one project on to another user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// ID.
    pub id: String,
    /// Who trusts.
    pub trustor_user_id: String,
    /// Who is trusted.
    pub trustee_user_id: String,
    /// Project of its tokens.
    pub project_id: String,
    /// Roles passed on, as far as the trustor still has them.
    pub role_ids: Vec<String>,
    /// Whether its tokens are the trustor's in all but name.
    pub impersonation: bool,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// How many more tokens may be made; without end when absent.
    pub remaining_uses: Option<u32>,
}

/// What a token is good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenScope {
    /// Nothing but to learn what it could be scoped to.
    Unscoped,
    /// A project, a domain or the whole cloud.
    Target(Target),
}

/// A token. Roles and catalog are looked up when it is used: they may change while it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Digest of the text: what is written down is of no use to who reads it.
    pub digest: String,
    /// Whose it is; the trustor for a trust with impersonation.
    pub user_id: String,
    /// What it is good for.
    pub scope: TokenScope,
    /// How it was proved who asked.
    pub methods: Vec<String>,
    /// When it was made.
    pub issued_at: Timestamp,
    /// When it ends.
    pub expires_at: Timestamp,
    /// Its own ID for audit, then that of the first token it came from.
    pub audit_ids: Vec<String>,
    /// The application credential that it was made with.
    pub application_credential_id: Option<String>,
    /// The trust that it was made with.
    pub trust_id: Option<String>,
}

/// A container of the key manager: a certificate with its key and chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyContainer {
    /// ID.
    pub id: String,
    /// Name.
    pub name: String,
    /// Project.
    pub project_id: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// IDs of secrets by what they are: `certificate`, `private_key`, `intermediates`.
    pub secrets: BTreeMap<String, String>,
}

/// A secret of the key manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySecret {
    /// ID.
    pub id: String,
    /// Name.
    pub name: String,
    /// Project.
    pub project_id: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// `certificate`, `private` or `opaque`.
    pub kind: String,
    /// The content, such as a PEM file.
    pub payload: Secret,
}
