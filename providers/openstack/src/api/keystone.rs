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
    /// The project that it is scoped to.
    pub project: Option<IdRef>,
    /// The domain that it is scoped to.
    pub domain: Option<IdRef>,
    /// Roles in its scope.
    pub roles: Vec<Role>,
    /// Services with their endpoints; empty for a token without a scope.
    #[serde(deserialize_with = "readable")]
    pub catalog: Vec<CatalogService>,
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
