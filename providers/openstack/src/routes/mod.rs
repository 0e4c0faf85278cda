//! Routes of a Neutron router.
//!
//! Neutron records no owner for a route. A route belongs to the cluster if its next hop is an
//! address of one of its nodes, or was one earlier in this process. If no port of the router's
//! networks has the address, a deleted node left the route behind. Every other route is unmanaged,
//! and is neither listed nor changed unless it conflicts with a node's own pod network.
//!
//! A node's port accepts packets from its pods only if the pods' network is among the port's
//! allowed address pairs. These are changed before the route, so that the next sync finds an
//! interrupted change by its route.

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
    provider::{CloudError, Op, Progress, Route, RouteChange, Routes},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::plan::UnownedAddress;
use crate::{
    api::neutron::{Extension, Router},
    client::{Call, Client, OpenStackError, Request, Rows},
};

/// Time for which an address counts as foreign before it is checked again.
const FOREIGN_TTL: Duration = Duration::from_secs(300);
/// Maximum number of addresses of former nodes that are recorded.
const MAX_FORMER: usize = 20_000;

/// Names of the extensions that routes can use.
const EXTENSIONS: [&str; 4] =
    ["extraroute", "extraroute-atomic", "allowed-address-pairs", "revision-if-match"];

/// Extensions of the network service that routes can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// Routes are added and removed one by one (`extraroute-atomic`).
    pub atomic: bool,
    /// Ports have allowed address pairs.
    pub address_pairs: bool,
    /// Changes can be made conditional on the object's revision (`revision-if-match`).
    pub if_match: bool,
}

impl Extensions {
    /// Requests the list of extensions. Returns `None` if routers do not support routes at all.
    ///
    /// # Errors
    /// Returns Neutron's error, or an error if an extension is missing while a row of the list cannot
    /// be read, which may be this extension. Whole lists of routes would be replaced without it.
    pub async fn detect(client: &Client, op: &Op) -> Result<Option<Self>, OpenStackError> {
        let request = Request::new(Call::ExtensionList, &["extensions"]);
        let extensions: Rows<Extension> = client.get_rows(op, &request).await?;
        let aliases: BTreeSet<&str> = extensions
            .rows
            .iter()
            .map(|extension| extension.alias.as_str())
            .collect();
        let atomic = aliases.contains("extraroute-atomic");
        let found = Self {
            atomic,
            address_pairs: aliases.contains("allowed-address-pairs"),
            if_match: aliases.contains("revision-if-match"),
        };
        let has_routes = atomic || aliases.contains("extraroute");
        let missing: Vec<&str> = EXTENSIONS
            .into_iter()
            .filter(|alias| !aliases.contains(alias))
            .collect();
        extensions.complete_for(|row| missing.iter().any(|alias| row.may_have("alias", alias)))?;
        Ok(has_routes.then_some(found))
    }
}

/// Routes of one router.
pub struct NeutronRoutes {
    client: Client,
    router: Box<str>,
    extensions: Extensions,
    address_history: Mutex<AddressHistory>,
    /// Held while the list of routes is replaced as a whole.
    router_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct AddressHistory {
    /// Addresses that nodes have had since this process started.
    former_node_addresses: BTreeSet<IpAddr>,
    /// Addresses of ports that are no node's, with the time when they were checked.
    foreign_addresses: BTreeMap<IpAddr, Instant>,
}

impl NeutronRoutes {
    /// Creates the routes of a router.
    pub fn new(client: Client, router: Box<str>, extensions: Extensions) -> Self {
        Self {
            client,
            router,
            extensions,
            address_history: Mutex::default(),
            router_lock: tokio::sync::Mutex::default(),
        }
    }

    async fn router(&self, op: &Op) -> Result<Router, OpenStackError> {
        let path = ["routers", &*self.router];
        self.client
            .get(op, &Request::new(Call::RouterGet, &path))
            .await
    }

    /// Classifies next hops that no node has, by the ports that have them.
    async fn classify_unowned(
        &self,
        op: &Op,
        unowned: BTreeSet<IpAddr>,
    ) -> Result<BTreeMap<IpAddr, UnownedAddress>, OpenStackError> {
        let now = Instant::now();
        let mut classified = BTreeMap::new();
        let mut unclassified = BTreeSet::new();
        {
            let mut history = self.address_history.lock();
            history
                .foreign_addresses
                .retain(|_, since| now.saturating_duration_since(*since) < FOREIGN_TTL);
            for ip in unowned {
                if history.former_node_addresses.contains(&ip) {
                    classified.insert(ip, UnownedAddress::Leftover);
                } else if history.foreign_addresses.contains_key(&ip) {
                    classified.insert(ip, UnownedAddress::Foreign);
                } else {
                    unclassified.insert(ip);
                }
            }
        }
        if unclassified.is_empty() {
            return Ok(classified);
        }
        let ports = self.ports(op, &unclassified).await?;
        let mut history = self.address_history.lock();
        for ip in unclassified {
            let kind = if ports.contains_key(&ip) {
                UnownedAddress::Foreign
            } else {
                UnownedAddress::Leftover
            };
            if kind == UnownedAddress::Foreign {
                tracing::info!(router = %self.router, next_hop = %ip, "a route leads to a port of no node, it is not managed");
                history.foreign_addresses.insert(ip, now);
            }
            classified.insert(ip, kind);
        }
        Ok(classified)
    }

    /// Explains the error if the router does not exist, because then the configuration is wrong.
    fn with_router_hint(&self, error: OpenStackError) -> CloudError {
        if error.is_not_found() {
            let message = format!(
                "router {}, which router-id in section [Route] of cloud.conf names, does not exist",
                self.router
            );
            return CloudError::invalid_input(message).with_source(error);
        }
        error.into()
    }
}

#[async_trait]
impl Routes for NeutronRoutes {
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        let owners = plan::map_owners(nodes);
        {
            let mut history = self.address_history.lock();
            if history.former_node_addresses.len() > MAX_FORMER {
                history.former_node_addresses.clear();
            }
            history.former_node_addresses.extend(owners.keys());
        }
        let router = self
            .router(op)
            .await
            .map_err(|error| self.with_router_hint(error))?;
        let unowned = self
            .classify_unowned(op, plan::find_unowned_addresses(&router.routes, &owners))
            .await?;
        Ok(plan::list_cluster_routes(&router.routes, &owners, &unowned))
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<Progress, CloudError>> {
        apply::apply(self, op, changes).await
    }
}
