//! Documents that list the versions of a service's API.

use serde::Deserialize;

use super::readable;

/// A version document in one of the forms that services use.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(untagged)]
pub enum VersionDocument {
    /// One version: `GET /v2.1` of Nova.
    One {
        /// The version.
        version: Version,
    },
    /// Several versions: the root of Nova, Neutron and Octavia.
    Listed {
        /// The versions, as the service orders them: Octavia's rise, newest last.
        #[serde(deserialize_with = "readable")]
        versions: Vec<Version>,
    },
    /// Several versions, one level deeper: the root of Keystone.
    Nested {
        /// The level.
        versions: VersionValues,
    },
}

/// Versions of the identity service.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct VersionValues {
    /// The versions.
    #[serde(deserialize_with = "readable")]
    pub values: Vec<Version>,
}

impl VersionDocument {
    /// Returns the versions.
    pub fn into_versions(self) -> Vec<Version> {
        match self {
            Self::One { version } => vec![version],
            Self::Listed { versions } => versions,
            Self::Nested { versions } => versions.values,
        }
    }
}

/// A version of an API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub struct Version {
    /// Name, such as `v2.1`.
    pub id: String,
    /// `CURRENT`, `SUPPORTED`, `DEPRECATED`, or Keystone's `stable`; case differs between services.
    pub status: String,
    /// Highest microversion; empty or absent where there is none.
    pub version: Option<String>,
    /// Lowest microversion; empty or absent where there is none.
    pub min_version: Option<String>,
    /// Addresses; `self` leads to the version.
    pub links: Vec<Link>,
}

/// A link of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub struct Link {
    /// Relation of the target, such as `self`.
    pub rel: String,
    /// Absolute address.
    pub href: String,
}

impl Version {
    /// Returns major and minor number of the ID, such as (2, 30) for `v2.30`; (2, 0) for `v2`.
    pub fn number(&self) -> Option<(u16, u16)> {
        number(self.id.strip_prefix('v')?)
    }

    /// Returns the address of the version.
    pub fn self_link(&self) -> Option<&str> {
        self.links
            .iter()
            .find(|link| link.rel == "self")
            .map(|link| link.href.as_str())
    }
}

/// Parses `2.30` or `2`.
pub fn number(text: &str) -> Option<(u16, u16)> {
    match text.split_once('.') {
        None => Some((text.parse().ok()?, 0)),
        Some((major, minor)) => Some((major.parse().ok()?, minor.parse().ok()?)),
    }
}
