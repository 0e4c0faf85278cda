use std::collections::BTreeMap;

use crate::api::Secret;
use jiff::Timestamp;
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
    /// Description.
    pub description: String,
    /// True when its users may have tokens.
    pub enabled: bool,
}

/// A project, which owns the objects of the other services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// ID.
    pub id: String,
    /// Name, unique in the domain.
    pub name: String,
    /// Domain.
    pub domain_id: String,
    /// Description.
    pub description: String,
    /// True when tokens may be scoped to it.
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
    /// Description.
    pub description: String,
    /// True when the user may have tokens.
    pub enabled: bool,
    /// Project of tokens without a requested scope.
    pub default_project_id: Option<String>,
    /// The password; `None` when the user cannot log in with one.
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

/// What a role applies to.
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
    /// The combination of all parts.
    key: String,
    /// ID of the user.
    pub user_id: String,
    /// ID of the role.
    pub role_id: String,
    /// What the role applies to.
    pub target: Target,
}

impl Assignment {
    /// Creates one.
    pub fn new(user_id: &str, role_id: &str, target: Target) -> Self {
        Self {
            key: Self::key_of(user_id, role_id, &target),
            user_id: user_id.to_owned(),
            role_id: role_id.to_owned(),
            target,
        }
    }

    /// Returns the key.
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
    /// Description.
    pub description: String,
    /// True when it is in the catalog.
    pub enabled: bool,
}

/// URL of a service.
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
    /// Path without a version, such as `/compute`, below the URL by which the client reaches the
    /// cloud.
    pub path: String,
}

/// A region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// ID, which is also its name.
    pub id: String,
    /// Description.
    pub description: String,
}

/// An application credential: authenticates a program, with some of its user's roles in one
/// project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationCredential {
    /// ID.
    pub id: String,
    /// Name, unique for the user.
    pub name: String,
    /// Description.
    pub description: Option<String>,
    /// User.
    pub user_id: String,
    /// Project of its tokens.
    pub project_id: String,
    /// Roles of its tokens, if the user still has them.
    pub role_ids: Vec<String>,
    /// When it expires.
    pub expires_at: Option<Timestamp>,
    /// True when its tokens may create application credentials and trusts.
    pub unrestricted: bool,
    /// The secret.
    pub secret: Hashed,
}

/// A trust: a user delegates some of their roles in one project to another user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// ID.
    pub id: String,
    /// The user who delegates.
    pub trustor_user_id: String,
    /// The user to whom the roles are delegated.
    pub trustee_user_id: String,
    /// Project of its tokens.
    pub project_id: String,
    /// Delegated roles, if the trustor still has them.
    pub role_ids: Vec<String>,
    /// True when its tokens are issued as the trustor's.
    pub impersonation: bool,
    /// When it expires.
    pub expires_at: Option<Timestamp>,
    /// How many more tokens may be created; unlimited when absent.
    pub remaining_uses: Option<u32>,
}

/// Scope of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenScope {
    /// No scope: such a token can only be used to find out possible scopes.
    Unscoped,
    /// A project, a domain or the whole cloud.
    Target(Target),
}

/// A token. Roles and catalog are looked up when it is used, because they may change during its
/// lifetime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Digest of the text, so that a stored token cannot be used by somebody who reads the disk.
    pub digest: String,
    /// Its user; the trustor for a trust with impersonation.
    pub user_id: String,
    /// Its scope.
    pub scope: TokenScope,
    /// How the user was authenticated.
    pub methods: Vec<String>,
    /// When it was issued.
    pub issued_at: Timestamp,
    /// When it expires.
    pub expires_at: Timestamp,
    /// Its own audit ID, then that of the first token it was derived from.
    pub audit_ids: Vec<String>,
    /// The application credential that it was issued for.
    pub application_credential_id: Option<String>,
    /// The trust that it was issued for.
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
    /// When it was created.
    pub created_at: Timestamp,
    /// `certificate`, `rsa` or `generic`.
    #[serde(default = "certificate")]
    pub kind: String,
    /// IDs of secrets by role: `certificate`, `private_key`, `intermediates`.
    pub secrets: BTreeMap<String, String>,
}

fn certificate() -> String {
    "certificate".to_owned()
}

fn text_plain() -> String {
    "text/plain".to_owned()
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
    /// When it was created.
    pub created_at: Timestamp,
    /// `certificate`, `private`, `public`, `passphrase`, `symmetric` or `opaque`.
    pub kind: String,
    /// The content, such as a PEM file.
    pub payload: Secret,
    /// Media type of the content; empty while there is none.
    #[serde(default = "text_plain")]
    pub content_type: String,
    /// True when `payload` is the base64 form of the content, which is not text.
    #[serde(default)]
    pub is_base64: bool,
    /// For people, such as `aes`.
    #[serde(default)]
    pub algorithm: Option<String>,
    /// For people: bits of the key.
    #[serde(default)]
    pub bit_length: Option<u32>,
    /// For people, such as `cbc`.
    #[serde(default)]
    pub mode: Option<String>,
    /// Expiry, which has no effect here.
    #[serde(default)]
    pub expiration: Option<String>,
    /// User that created it.
    #[serde(default)]
    pub creator_id: String,
    /// Pairs set by users.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}
