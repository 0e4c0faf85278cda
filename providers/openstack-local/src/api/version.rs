//! Version discovery documents.
//!
//! They are public: no token is needed. Keystone's list is in
//! [`keystone::Versions`](crate::api::keystone::Versions).

use serde::{Deserialize, Serialize};

/// A link of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Relation of the target, such as `self` or `next`.
    #[serde(default)]
    pub rel: String,
    /// Absolute address.
    pub href: String,
}

/// Answer of the root of Nova, Neutron, Octavia: all versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The versions, as the service orders them: Octavia's rise, newest last.
    pub versions: Vec<Version>,
}

/// Answer of the root of one version, such as `GET /v2.1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionDocument {
    /// The version.
    pub version: Version,
}

/// A version of an API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Name, such as `v2.1`.
    pub id: String,
    /// `CURRENT`, `SUPPORTED`, `DEPRECATED`, or Keystone's `stable`; case differs between services.
    pub status: String,
    /// Highest microversion, empty where there is none. Absent in services without microversions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Lowest microversion, empty where there is none. Absent in services without microversions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_version: Option<String>,
    /// Time of the last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated: Option<String>,
    /// Addresses; `self` leads to the version.
    #[serde(default)]
    pub links: Vec<Link>,
    /// Forms of its answers.
    #[serde(rename = "media-types", default, skip_serializing_if = "Vec::is_empty")]
    pub media_types: Vec<MediaType>,
}

/// Form of a version's answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaType {
    /// General type.
    pub base: String,
    /// The version's own type.
    #[serde(rename = "type")]
    pub kind: String,
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

/// Reads `2.30` or `2`.
pub fn number(text: &str) -> Option<(u16, u16)> {
    match text.split_once('.') {
        None => Some((text.parse().ok()?, 0)),
        Some((major, minor)) => Some((major.parse().ok()?, minor.parse().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_numbers() {
        for (id, expected) in [
            ("v2.30", Some((2, 30))),
            ("v2", Some((2, 0))),
            ("v3.14", Some((3, 14))),
            ("2.30", None),
            ("v2.x", None),
            ("v2.1.3", None),
        ] {
            let version = Version { id: id.to_owned(), ..Version::default() };
            assert_eq!(version.number(), expected, "{id}");
        }
    }

    #[test]
    fn documents_keep_what_services_send() {
        let nova = serde_json::json!({"versions": [
            {"id": "v2.0", "status": "SUPPORTED", "version": "", "min_version": "", "updated": "2011-01-21T11:33:21Z",
             "links": [{"rel": "self", "href": "http://c/compute/v2/"}]},
            {"id": "v2.1", "status": "CURRENT", "version": "2.96", "min_version": "2.1",
             "updated": "2013-07-23T11:33:21Z", "links": [{"rel": "self", "href": "http://c/compute/v2.1/"}]}]});
        let read: Versions = serde_json::from_value(nova.clone()).unwrap();
        assert_eq!(read.versions[1].self_link(), Some("http://c/compute/v2.1/"));
        assert_eq!(serde_json::to_value(read).unwrap(), nova);
    }
}
