use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};

use super::{GroupName, Link};
use crate::api::lenient::nullable;

/// Asks for a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerCreate {
    /// Name.
    pub name: String,
    /// Flavor, by identifier.
    #[serde(rename = "flavorRef")]
    pub flavor_ref: String,
    /// Image, by identifier; empty or absent when it starts from a volume.
    #[serde(default, rename = "imageRef", skip_serializing_if = "Option::is_none")]
    pub image_ref: Option<String>,
    /// Networks to attach the server to. If absent, it is `Auto` before microversion 2.37, and an
    /// error from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Networks>,
    /// Pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Groups for the ports that are made for it; `default` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<GroupName>>,
    /// Zone; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub availability_zone: Option<String>,
    /// Key pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_name: Option<String>,
    /// At most that many (default 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_count: Option<u32>,
    /// At least that many (default 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_count: Option<u32>,
    /// Access address.
    #[serde(
        default,
        rename = "accessIPv4",
        skip_serializing_if = "Option::is_none"
    )]
    pub access_ipv4: Option<String>,
    /// Access address.
    #[serde(
        default,
        rename = "accessIPv6",
        skip_serializing_if = "Option::is_none"
    )]
    pub access_ipv6: Option<String>,
    /// From 2.19.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// From 2.52.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// From 2.90.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Hints for the scheduler. In a request they are beside the server.
    #[serde(skip)]
    pub hints: SchedulerHints,
}

/// Hints for the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulerHints {
    /// ID of a server group that the server joins.
    #[serde(default)]
    pub group: Option<String>,
}

/// Body of a request for a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerCreateBody {
    /// The server.
    pub server: ServerCreate,
    /// Hints for the scheduler.
    #[serde(
        default,
        rename = "os:scheduler_hints",
        alias = "OS-SCH-HNT:scheduler_hints"
    )]
    pub hints: SchedulerHints,
}

/// Networks to attach a new server to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Networks {
    /// To the only network of the project (`auto`).
    Auto,
    /// Nowhere (`none`).
    None,
    /// To these, in this order.
    These(Vec<NetworkRequest>),
}

impl Serialize for Networks {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::None => serializer.serialize_str("none"),
            Self::These(networks) => networks.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Networks {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Word(String),
            These(Vec<NetworkRequest>),
        }
        match Either::deserialize(deserializer)? {
            Either::Word(word) if word == "auto" => Ok(Self::Auto),
            Either::Word(word) if word == "none" => Ok(Self::None),
            Either::Word(word) => Err(serde::de::Error::unknown_variant(
                &word,
                &["auto", "none", "a list of networks"],
            )),
            Either::These(networks) => Ok(Self::These(networks)),
        }
    }
}

/// One network of a new server: `uuid`, or `port`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRequest {
    /// Network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// A port that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Address on the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_ip: Option<IpAddr>,
    /// From 2.32: name of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Answer to a request for a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerCreated {
    /// Identifier of the (first) server.
    pub id: String,
    /// Links to the object.
    #[serde(default)]
    pub links: Vec<Link>,
    /// `MANUAL` or `AUTO`.
    #[serde(default, rename = "OS-DCF:diskConfig")]
    pub disk_config: String,
    /// Groups asked for.
    #[serde(default)]
    pub security_groups: Vec<GroupName>,
    /// Password of the administrator.
    #[serde(default, rename = "adminPass", skip_serializing_if = "Option::is_none")]
    pub admin_pass: Option<crate::api::Secret>,
}

/// Changes a server; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerUpdate {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Access address; empty for none.
    #[serde(
        default,
        rename = "accessIPv4",
        skip_serializing_if = "Option::is_none"
    )]
    pub access_ipv4: Option<String>,
    /// Access address; empty for none.
    #[serde(
        default,
        rename = "accessIPv6",
        skip_serializing_if = "Option::is_none"
    )]
    pub access_ipv6: Option<String>,
    /// From 2.19.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub description: Option<Option<String>>,
    /// From 2.90.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
}
