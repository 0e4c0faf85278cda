//! Routes of the cluster's network. A route leads to the private address of a server, and has no
//! ID.

use std::{collections::HashSet, num::NonZeroUsize};

use ccm_core::provider::prelude::*;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Quarry, instances::instance_id};

#[derive(Deserialize)]
struct Found {
    network: Network,
}

#[derive(Deserialize)]
struct Network {
    routes: Vec<NetworkRoute>,
}

#[derive(Serialize, Deserialize)]
struct NetworkRoute {
    destination: IpNet,
    gateway: Box<str>,
}

impl Quarry {
    fn network_path(&self, segments: &[&str]) -> String {
        let network = path("v1/networks", &[&self.network.to_string()], &[]);
        path(&network, segments, &[])
    }

    async fn private_addresses(&self, op: &Op) -> Result<HashSet<String>, CloudError> {
        let servers = self.servers(op, None).await?;
        let networks = servers.iter().flat_map(|server| &server.private_net);
        Ok(networks.map(|address| address.ip.to_string()).collect())
    }
}

#[async_trait]
impl SimpleRoutes for Quarry {
    /// A network is locked while it is changed.
    fn concurrent_changes(&self) -> NonZeroUsize {
        NonZeroUsize::MIN
    }

    /// The private address, once the node is known to be a server.
    fn target<'n>(&self, node: &'n NodeView) -> Result<Option<&'n str>, CloudError> {
        let private = node
            .addresses
            .iter()
            .find(|address| address.kind == AddressType::InternalIp);
        Ok(instance_id(node)?.and(private.map(|private| &*private.address)))
    }

    async fn list_routes(&self, op: &Op) -> Result<Vec<SimpleRoute>, CloudError> {
        let Found { network } = self.api.get(op, &self.network_path(&[])).await?;
        // A server that is deleted meanwhile can hide another one from a numbered page. So a route
        // is broken only if two listings lack its server.
        let mut known = self.private_addresses(op).await?;
        if network
            .routes
            .iter()
            .any(|route| !known.contains(&*route.gateway))
        {
            known.extend(self.private_addresses(op).await?);
        }
        let listed = |NetworkRoute { destination, gateway }| SimpleRoute {
            id: format!("{destination} via {gateway}").into(),
            broken: !known.contains(&*gateway),
            destination,
            target: gateway,
        };
        Ok(network.routes.into_iter().map(listed).collect())
    }

    async fn create_route(
        &self,
        op: &Op,
        mutation: Mutation,
        destination: IpNet,
        gateway: &str,
    ) -> Result<Progress, CloudError> {
        let route = NetworkRoute { destination, gateway: gateway.into() };
        self.act(op, mutation, &self.network_path(&["actions", "add_route"]), &route)
            .await
    }

    async fn delete_route(
        &self,
        op: &Op,
        mutation: Mutation,
        route: &SimpleRoute,
    ) -> Result<Progress, CloudError> {
        let route = NetworkRoute {
            destination: route.destination,
            gateway: route.target.clone(),
        };
        self.act(op, mutation, &self.network_path(&["actions", "delete_route"]), &route)
            .await
    }
}
