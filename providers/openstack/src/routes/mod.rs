//! Routes of a Neutron router.
//!
//! A router's routes carry no owner. A route is taken for the cluster's when it leads to an address of one of its nodes, or
//! to one that was a node's earlier in this process, or to one that no port of the router's networks has: what a node left
//! behind. Every other route is somebody else's and is neither listed nor touched, unless it stands where a node's own pod
//! network has to go.
//!
//! A node's port takes packets from its pods only if the pods' network is among the port's allowed address pairs. They are
//! changed before the route is, so that a change that was cut short is found again by its route.

mod apply;
pub mod plan;
mod ports;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, Op, Route, RouteChange, Routes},
};
use openstack_api::neutron::{self, Extension};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::plan::UnownedAddress;
use crate::client::{Call, Client, OpenStackError, Request};

/// How long somebody else's address is taken for that.
const FOREIGN_TTL: Duration = Duration::from_secs(300);
/// Most addresses of former nodes that are remembered.
const MAX_FORMER: usize = 20_000;

/// What the network service can do with routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// Routes are added and removed one by one (`extraroute-atomic`).
    pub atomic: bool,
    /// Ports have allowed address pairs.
    pub address_pairs: bool,
    /// Changes can be refused when the object was changed meanwhile (`revision-if-match`).
    pub if_match: bool,
}

impl Extensions {
    /// Asks the network service; `None` when its routers have no routes at all.
    ///
    /// # Errors
    /// Neutron's answer.
    pub async fn detect(client: &Client, op: &Op) -> Result<Option<Self>, OpenStackError> {
        let request = Request::new(Call::ExtensionList, &["extensions"]);
        let known: Vec<Extension> = client.get_all(op, &request).await?;
        let has = |alias: &str| known.iter().any(|extension| extension.alias == alias);
        let found = Self {
            atomic: has("extraroute-atomic"),
            address_pairs: has("allowed-address-pairs"),
            if_match: has("revision-if-match"),
        };
        Ok((found.atomic || has("extraroute")).then_some(found))
    }
}

/// Routes of one router.
pub struct NeutronRoutes {
    client: Client,
    router: Box<str>,
    extensions: Extensions,
    address_history: Mutex<AddressHistory>,
    /// Held while the list of routes is changed as a whole.
    router_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct AddressHistory {
    /// Addresses that nodes had while this process runs.
    former_node_addresses: BTreeSet<IpAddr>,
    /// Addresses that ports of others have, and since when that is known.
    foreign_addresses: BTreeMap<IpAddr, Instant>,
}

impl NeutronRoutes {
    /// Makes the capability.
    pub fn new(client: Client, router: Box<str>, extensions: Extensions) -> Self {
        Self {
            client,
            router,
            extensions,
            address_history: Mutex::default(),
            router_lock: tokio::sync::Mutex::default(),
        }
    }

    async fn router(&self, op: &Op) -> Result<neutron::Router, OpenStackError> {
        let path = ["routers", &*self.router];
        self.client.get(op, &Request::new(Call::RouterGet, &path)).await
    }

    /// Finds out whose the addresses are that no node has.
    async fn classify_unowned(
        &self,
        op: &Op,
        unowned: BTreeSet<IpAddr>,
    ) -> Result<BTreeMap<IpAddr, UnownedAddress>, OpenStackError> {
        let now = Instant::now();
        let mut strays = BTreeMap::new();
        let mut open = BTreeSet::new();
        {
            let mut memory = self.address_history.lock();
            memory.foreign_addresses.retain(|_, since| now.saturating_duration_since(*since) < FOREIGN_TTL);
            for ip in unowned {
                if memory.former_node_addresses.contains(&ip) {
                    strays.insert(ip, UnownedAddress::Leftover);
                } else if memory.foreign_addresses.contains_key(&ip) {
                    strays.insert(ip, UnownedAddress::Foreign);
                } else {
                    open.insert(ip);
                }
            }
        }
        if open.is_empty() {
            return Ok(strays);
        }
        let ports = self.ports(op, &open).await?;
        let mut memory = self.address_history.lock();
        for ip in open {
            let stray = if ports.contains_key(&ip) { UnownedAddress::Foreign } else { UnownedAddress::Leftover };
            if stray == UnownedAddress::Foreign {
                tracing::info!(router = %self.router, next_hop = %ip, "a route leads to a port that is no node's, and is left alone");
                memory.foreign_addresses.insert(ip, now);
            }
            strays.insert(ip, stray);
        }
        Ok(strays)
    }

    /// Says more about a router that is not there: nothing works until the configuration is mended.
    fn with_router_hint(&self, error: OpenStackError) -> CloudError {
        if error.is_not_found() {
            let words = format!(
                "router {}, which router-id in section [Route] of cloud.conf names, does not exist",
                self.router
            );
            return CloudError::invalid_input(words).with_source(error);
        }
        error.into()
    }
}

#[async_trait]
impl Routes for NeutronRoutes {
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        let owners = plan::owners(nodes);
        {
            let mut memory = self.address_history.lock();
            if memory.former_node_addresses.len() > MAX_FORMER {
                memory.former_node_addresses.clear();
            }
            memory.former_node_addresses.extend(owners.keys());
        }
        let router = self.router(op).await.map_err(|error| self.with_router_hint(error))?;
        let strays = self.classify_unowned(op, plan::unowned_addresses(&router.routes, &owners)).await?;
        Ok(plan::listed(&router.routes, &owners, &strays))
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        apply::apply(self, op, changes).await
    }
}
