use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Link;
use crate::api::lenient::nullable;

/// A size of servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flavor {
    /// Identifier: any text.
    pub id: String,
    /// Name, unique.
    pub name: String,
    /// MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram: Option<u64>,
    /// Processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u64>,
    /// GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<u64>,
    /// MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap: Option<Swap>,
    /// Share of bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rxtx_factor: Option<f64>,
    /// True if every project may use it.
    #[serde(
        default,
        rename = "os-flavor-access:is_public",
        skip_serializing_if = "Option::is_none"
    )]
    pub is_public: Option<bool>,
    /// True if it must not be used any more.
    #[serde(
        default,
        rename = "OS-FLV-DISABLED:disabled",
        skip_serializing_if = "Option::is_none"
    )]
    pub disabled: Option<bool>,
    /// GiB.
    #[serde(
        default,
        rename = "OS-FLV-EXT-DATA:ephemeral",
        skip_serializing_if = "Option::is_none"
    )]
    pub ephemeral: Option<u64>,
    /// From 2.55.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub description: Option<Option<String>>,
    /// From 2.61.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_specs: Option<BTreeMap<String, String>>,
    /// Links to the object.
    #[serde(default)]
    pub links: Vec<Link>,
}

/// MiB of swap space: before 2.75 none is empty text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// None, told as `""`.
    Empty,
    /// That many MiB.
    Mib(u64),
}

impl Serialize for Swap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Empty => serializer.serialize_str(""),
            Self::Mib(mib) => serializer.serialize_u64(*mib),
        }
    }
}

impl<'de> Deserialize<'de> for Swap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Mib(u64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Mib(mib) => Ok(Self::Mib(mib)),
            Either::Text(text) if text.is_empty() => Ok(Self::Empty),
            Either::Text(text) => text
                .parse()
                .map(Self::Mib)
                .map_err(serde::de::Error::custom),
        }
    }
}

/// Asks for a flavor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlavorCreate {
    /// Name.
    pub name: String,
    /// Identifier; made up when absent or `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// MiB.
    pub ram: u64,
    /// Processors.
    pub vcpus: u64,
    /// GiB.
    pub disk: u64,
    /// MiB; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap: Option<Swap>,
    /// GiB; 0 when absent.
    #[serde(
        default,
        rename = "OS-FLV-EXT-DATA:ephemeral",
        skip_serializing_if = "Option::is_none"
    )]
    pub ephemeral: Option<u64>,
    /// 1 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rxtx_factor: Option<f64>,
    /// True when absent.
    #[serde(
        default,
        rename = "os-flavor-access:is_public",
        skip_serializing_if = "Option::is_none"
    )]
    pub is_public: Option<bool>,
    /// From 2.55.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// `{"flavor": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlavorEnvelope<T = Flavor> {
    /// The flavor.
    pub flavor: T,
}

/// A page of flavors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flavors {
    /// Rows.
    pub flavors: Vec<Flavor>,
    /// The next page, when this one is full.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flavors_links: Vec<Link>,
}
