//! Routes of the cluster's network. A route leads to the private address of a server, and has no
//! ID.

use std::{collections::HashSet, num::NonZeroUsize};

use ccm_core::provider::prelude::*;
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::json;

use crate::{ACTIONS, Quarry, Wrapped, instances::instance_id};

#[derive(Deserialize)]
struct Network {
    routes: Vec<NetworkRoute>,
}

#[derive(Deserialize)]
struct NetworkRoute {
    destination: IpNet,
    gateway: Box<str>,
}

impl Quarry {
    async fn private_addresses(&self, op: &Op) -> Result<HashSet<Box<str>>, CloudError> {
        let servers = self.list_instances(op, None).await?;
        let addresses = servers.into_iter().flat_map(|server| server.meta.addresses);
        let is_private = |address: &NodeAddress| address.kind == AddressType::InternalIp;
        let private = addresses.filter(is_private);
        Ok(private.map(|address| address.address).collect())
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
        Ok(instance_id(node)?.and(node.address(AddressType::InternalIp)))
    }

    async fn list_routes(&self, op: &Op) -> Result<Vec<SimpleRoute>, CloudError> {
        let network: Wrapped<Network> = self.api.get(op, &self.network).await?;
        let routes = network.object.routes;
        // A server that is deleted meanwhile can hide another one from a numbered page. So a route
        // is broken only if two listings lack its server.
        let mut known = self.private_addresses(op).await?;
        if routes.iter().any(|route| !known.contains(&route.gateway)) {
            known.extend(self.private_addresses(op).await?);
        }
        let listed = |NetworkRoute { destination, gateway }| SimpleRoute {
            id: format!("{destination} via {gateway}").into(),
            broken: !known.contains(&gateway),
            destination,
            target: gateway,
        };
        Ok(routes.into_iter().map(listed).collect())
    }

    async fn create_route(
        &self,
        op: &Op,
        mutation: Mutation,
        destination: IpNet,
        gateway: &str,
    ) -> Result<Progress, CloudError> {
        let route = json!({"destination": destination, "gateway": gateway});
        let path = path(&self.network, &["actions", "add_route"], &[]);
        self.api
            .mutate_and_poll(op, mutation, Method::POST, &path, &route, &ACTIONS)
            .await
    }

    async fn delete_route(
        &self,
        op: &Op,
        mutation: Mutation,
        route: &SimpleRoute,
    ) -> Result<Progress, CloudError> {
        let route = json!({"destination": route.destination, "gateway": route.target});
        let path = path(&self.network, &["actions", "delete_route"], &[]);
        self.api
            .mutate_and_poll(op, mutation, Method::POST, &path, &route, &ACTIONS)
            .await
    }
}
