//! Networks (Neutron v2.0).
//!
//! Each resource has three types: as answered, as asked for (`…Create`), and as changed (`…Update`;
//! what is absent stays, and where null means something a field is `Option<Option<_>>` with the
//! inner `None` for null). Envelopes are generic: `PortEnvelope<PortUpdate>` is `{"port": {…}}`.

mod extension;
mod floating_ip;
mod network;
mod port;
mod quota;
mod router;
mod security_group;
mod subnet;
#[cfg(test)]
mod tests;
mod trunk;

use serde::{Deserialize, Serialize};

pub use self::{
    extension::{Extension, ExtensionEnvelope, Extensions},
    floating_ip::{
        FloatingIp, FloatingIpCreate, FloatingIpEnvelope, FloatingIpUpdate, FloatingIps,
        PortDetails,
    },
    network::{Network, NetworkCreate, NetworkEnvelope, NetworkUpdate, Networks},
    port::{
        AddressPair, FixedIp, FixedIpRequest, Port, PortCreate, PortEnvelope, PortUpdate, Ports,
        SubPortDetails, TrunkDetails,
    },
    quota::{Quota, QuotaDetail, QuotaDetailEnvelope, QuotaDetails, QuotaEnvelope, QuotaUpdate},
    router::{
        ExternalFixedIp, ExtraRoutes, GatewayInfo, GatewayRequest, InterfaceRequest, Route, Router,
        RouterCreate, RouterEnvelope, RouterInterface, RouterUpdate, Routers,
    },
    security_group::{
        Direction, EtherType, SecurityGroup, SecurityGroupCreate, SecurityGroupEnvelope,
        SecurityGroupRule, SecurityGroupRuleCreate, SecurityGroupRuleEnvelope, SecurityGroupRules,
        SecurityGroupRulesCreate, SecurityGroupUpdate, SecurityGroups,
    },
    subnet::{
        AllocationPool, HostRoute, Subnet, SubnetCreate, SubnetEnvelope, SubnetUpdate, Subnets,
    },
    trunk::{SubPort, SubPorts, Trunk, TrunkCreate, TrunkEnvelope, TrunkUpdate, Trunks},
};

/// A link to another page.
pub use crate::api::nova::Link;

/// Makes an envelope and a page.
macro_rules! envelopes {
    ($one:ident, $name:ident: $row:ident, $page:ident, $names:ident, $links:ident) => {
        #[doc = concat!("`{\"", stringify!($name), "\": …}`.")]
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub struct $one<T = $row> {
            /// The resource, or what is asked about it.
            pub $name: T,
        }

        #[doc = concat!("A page of `", stringify!($names), "`.")]
        #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub struct $page {
            /// Rows.
            pub $names: Vec<$row>,
            /// Pages beside this one; only where pages were asked for or are enforced.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub $links: Vec<$crate::api::neutron::Link>,
        }

        impl $page {
            /// Returns where the next page is.
            pub fn next(&self) -> Option<&str> {
                self.$links
                    .iter()
                    .find(|link| link.rel == "next")
                    .map(|link| &*link.href)
            }
        }
    };
}
use envelopes;

/// Attributes that all resources have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standard {
    /// Project it belongs to; empty for what belongs to none.
    #[serde(default, deserialize_with = "crate::api::lenient::or_default")]
    pub project_id: String,
    /// The same, by its old name.
    #[serde(default, deserialize_with = "crate::api::lenient::or_default")]
    pub tenant_id: String,
    /// Free text.
    #[serde(default, deserialize_with = "crate::api::lenient::or_default")]
    pub description: String,
    /// RFC 3339, with `Z`.
    #[serde(default, deserialize_with = "crate::api::lenient::or_default")]
    pub created_at: String,
    /// RFC 3339, with `Z`.
    #[serde(default, deserialize_with = "crate::api::lenient::or_default")]
    pub updated_at: String,
    /// One more after each change; 0 where the extension is missing.
    #[serde(default, deserialize_with = "crate::api::lenient::or_default")]
    pub revision_number: u64,
    /// Words set by users, ordered.
    #[serde(default, deserialize_with = "crate::api::lenient::or_default")]
    pub tags: Vec<String>,
}

/// `{"tags": […]}`: all tags of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tags {
    /// The tags.
    pub tags: Vec<String>,
}

/// Returns the value of `If-Match` that lets a change through only at this revision.
pub fn if_match(revision_number: u64) -> String {
    format!("revision_number={revision_number}")
}
