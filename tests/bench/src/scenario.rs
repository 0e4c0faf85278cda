//! What is measured: how many objects there are, and what the cloud is like.

use std::{fmt, net::Ipv4Addr, str::FromStr, time::Duration};

use clap::ValueEnum;
use serde_json::{Value, json};

/// Networks of all pods: room for 131,072 nodes, and away from the addresses that the cloud makes
/// up.
pub(crate) const CLUSTER_CIDR: &str = "100.64.0.0/10";

/// Number of objects, written `nodes/services` or `nodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) nodes: usize,
    pub(crate) services: usize,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (nodes, services) = text.split_once('/').unwrap_or((text, "0"));
        let number = |text: &str| text.parse().map_err(|error| format!("{text:?}: {error}"));
        let size = Self { nodes: number(nodes)?, services: number(services)? };
        // A node has 32 pod addresses of 2²².
        if size.nodes > 1 << 17 {
            Err("there is room for 131,072 nodes".to_owned())
        } else {
            Ok(size)
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} nodes / {} services", self.nodes, self.services)
    }
}

/// Returns the name of a node.
pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number:05}")
}

/// Returns the network of a node's pods.
pub(crate) fn pod_cidr(number: usize) -> String {
    let first = u32::from_be_bytes([100, 64, 0, 0]);
    // Sizes are checked when they are read.
    let offset = u32::try_from(number).unwrap_or(u32::MAX).saturating_mul(32);
    format!("{}/27", Ipv4Addr::from_bits(first.saturating_add(offset)))
}

/// What the cloud is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CloudProfile {
    /// Calls about instances and routes take 20 ms, about load balancers 100 ms, and all succeed.
    Steady,
    /// As `steady`, with token buckets of 20 calls a second for instances, routes and load
    /// balancers each, and with load balancers that take 30 s to become active.
    Reality,
}

impl CloudProfile {
    /// Returns the configuration of a cloud of this kind, as JSON, which both managers read.
    pub(crate) fn cloud(self) -> Value {
        let mut cloud = json!({
            "region": "region-a",
            "zones": ["zone-a", "zone-b", "zone-c"],
            "autoProvision": true,
            "latency": {"instances": "20ms", "routes": "20ms", "loadBalancers": "100ms"},
        });
        if self == Self::Reality {
            let limit = json!({"perSecond": 20, "burst": 20});
            cloud["rateLimits"] =
                json!({"instances": limit, "routes": limit, "loadBalancers": limit});
            cloud["loadBalancerActivation"] = json!("30s");
        }
        cloud
    }
}

/// A time in which every call to the cloud fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outage {
    /// From the start of the manager.
    pub(crate) after: Duration,
    pub(crate) length: Duration,
}

/// One thing to be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) size: Size,
    pub(crate) setting: CloudProfile,
    /// Value of `--controllers`, for all managers.
    pub(crate) controllers: String,
}

impl Scenario {
    /// Whether the managers make load balancers.
    pub(crate) fn has_services(&self) -> bool {
        self.runs("service-lb-controller")
    }

    /// Whether the managers make routes.
    pub(crate) fn has_routes(&self) -> bool {
        self.runs("node-route-controller")
    }

    fn runs(&self, controller: &str) -> bool {
        let list: Vec<&str> = self.controllers.split(',').collect();
        let without = list
            .iter()
            .any(|entry| entry.strip_prefix('-') == Some(controller));
        list.contains(&controller) || (list.contains(&"*") && !without)
    }

    /// Returns the flags that say what the managers do, the same for all.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut flags = vec![
            "--cloud-provider=mock".to_owned(),
            format!("--controllers={}", self.controllers),
            "--allocate-node-cidrs=false".to_owned(),
            "-v=0".to_owned(),
        ];
        if self.has_routes() {
            flags.push(format!("--cluster-cidr={CLUSTER_CIDR}"));
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(controllers: &str) -> Scenario {
        Scenario {
            size: Size { nodes: 1, services: 0 },
            setting: CloudProfile::Steady,
            controllers: controllers.to_owned(),
        }
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!("1000/300".parse(), Ok(Size { nodes: 1000, services: 300 }));
        assert_eq!("7".parse(), Ok(Size { nodes: 7, services: 0 }));
        for wrong in ["", "x", "1/", "140000", "1/2/3"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn pod_networks_do_not_overlap() {
        assert_eq!(
            (&*pod_cidr(0), &*pod_cidr(5), &*pod_cidr(131_071)),
            ("100.64.0.0/27", "100.64.0.160/27", "100.127.255.224/27")
        );
    }

    #[test]
    fn the_list_of_controllers_says_what_is_waited_for() {
        let facts = |list: &str| (scenario(list).has_services(), scenario(list).has_routes());
        assert_eq!(facts("*"), (true, true));
        assert_eq!(facts("*,-node-route-controller"), (true, false));
        assert_eq!(facts("cloud-node-controller"), (false, false));
        assert_eq!(facts("cloud-node-controller,service-lb-controller"), (true, false));
    }
}
