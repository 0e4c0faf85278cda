use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{SOON, Scenario, each};
use crate::watcher::pod_cidrs;

impl Scenario {
    /// Gives a node its pod networks, as an allocator does.
    pub async fn give_pod_cidrs(&self, name: &str, cidrs: &[String]) -> kube::Result<Node> {
        let patch = Patch::Merge(json!({"spec": {"podCIDR": cidrs.first(), "podCIDRs": cidrs}}));
        self.nodes_api()
            .patch(name, &PatchParams::default(), &patch)
            .await
    }

    /// Gives a node its first pod networks, and waits until the observer has seen them.
    pub async fn add_pod_cidrs(&self, name: &str, cidrs: &[String]) -> anyhow::Result<()> {
        self.give_pod_cidrs(name, cidrs).await?;
        self.eventually("the networks are seen", SOON, |nodes| {
            each(nodes, &[name.to_owned()], |node| match pod_cidrs(node) == cidrs {
                true => Ok(()),
                false => Err("an older state".to_owned()),
            })
        })
        .await
    }

    /// Says what differs between the cloud's routes, those to `foreign` destinations left out, and
    /// the nodes' pod networks.
    pub fn in_routes(&self, foreign: &[&str]) -> Result<(), String> {
        let nodes = self.nodes();
        let wanted: BTreeSet<(String, String)> = nodes
            .values()
            .flat_map(|node| {
                pod_cidrs(node)
                    .into_iter()
                    .map(|cidr| (node.name_any(), cidr))
            })
            .collect();
        let routes = self.cloud.routes();
        let mut have: BTreeSet<_> = routes
            .into_iter()
            .map(|route| (route.node, route.destination.to_string()))
            .collect();
        have.retain(|(_, destination)| !foreign.contains(&destination.as_str()));
        if have != wanted {
            let surplus: Vec<_> = have.difference(&wanted).collect();
            let missing: Vec<_> = wanted.difference(&have).collect();
            return Err(format!("routes: {surplus:?} too many, {missing:?} missing"));
        }
        let wrong = nodes
            .values()
            .filter(|node| !pod_cidrs(node).is_empty())
            .find_map(|node| {
                let state = network_state(node);
                (state != "False/RouteCreated")
                    .then(|| format!("{}: network is {state:?}", node.name_any()))
            });
        wrong.map_or(Ok(()), Err)
    }

    /// Waits until the cloud's routes are exactly those of the nodes' pod networks, and the nodes
    /// say so.
    pub async fn routed(&self, foreign: &[&str], limit: Duration) -> anyhow::Result<()> {
        self.becomes("routes are there", limit, || self.in_routes(foreign))
            .await
    }
}

/// A condition of the node.
pub fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == kind)
}

/// Status and reason of the node's condition NetworkUnavailable; empty without one.
fn network_state(node: &Node) -> String {
    condition(node, "NetworkUnavailable").map_or_else(String::new, |condition| {
        format!("{}/{}", condition.status, condition.reason.as_deref().unwrap_or_default())
    })
}
