//! Answers of the identity service.

use serde::Deserialize;

/// Content of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Token {
    /// Time of issue.
    pub issued_at: String,
    /// Expiry.
    pub expires_at: String,
    /// Services with their endpoints; empty for a token without a scope.
    pub catalog: Vec<CatalogService>,
}

/// A service of the catalog.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CatalogService {
    /// Type of the service, such as `compute`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Endpoints of the service.
    pub endpoints: Vec<CatalogEndpoint>,
}

/// An endpoint of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
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
