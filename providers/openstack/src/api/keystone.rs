//! Answers of the identity service.

use serde::Deserialize;

use super::{IdRef, readable};

/// Content of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub struct Token {
    /// Time of issue.
    pub issued_at: String,
    /// Expiry.
    pub expires_at: String,
    /// The user that it was issued to.
    pub user: TokenUser,
    /// The project that it is scoped to.
    pub project: Option<TokenProject>,
    /// The domain that it is scoped to.
    pub domain: Option<IdRef>,
    /// Roles in its scope.
    pub roles: Vec<Role>,
    /// The application credential that it was made with.
    pub application_credential: Option<IdRef>,
    /// Services with their endpoints; empty for a token without a scope.
    #[serde(deserialize_with = "readable")]
    pub catalog: Vec<CatalogService>,
}

/// The user of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub struct TokenUser {
    /// ID of the user.
    pub id: String,
    /// Name of the user, unique in its domain.
    pub name: String,
    /// Expiry of the password in UTC, often without a zone; absent if it never expires.
    pub password_expires_at: Option<String>,
}

/// The project of a token. Its ID is required: in another project the servers and load balancers of
/// this cluster do not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct TokenProject {
    /// ID of the project.
    pub id: String,
    /// Name of the project, unique in its domain.
    #[serde(default)]
    pub name: String,
}

/// A role of the user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub struct Role {
    /// Name of the role, such as `admin`.
    pub name: String,
}

/// A service of the catalog.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub struct CatalogService {
    /// Type of the service, such as `compute`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Endpoints of the service.
    #[serde(deserialize_with = "readable")]
    pub endpoints: Vec<CatalogEndpoint>,
}

/// An endpoint of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub struct CatalogEndpoint {
    /// For whom: `public`, `internal` or `admin`.
    pub interface: String,
    /// ID of the region, if it has one.
    pub region_id: Option<String>,
    /// The region under its old name.
    pub region: Option<String>,
    /// The URL.
    pub url: String,
}

/// An application credential.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub struct ApplicationCredential {
    /// Name of the credential, unique for its user.
    pub name: String,
    /// Expiry in UTC, often without a zone; absent if it never expires.
    pub expires_at: Option<String>,
}
