//! Routes: extra routes of one router, added and removed in batches.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use async_trait::async_trait;
use ccm_core::{
    k8s::{AddressType, NodeView},
    provider::{CloudError, Op, Route, RouteChange, Routes},
};
use ipnet::IpNet;

use super::{OpenStack, api::RouterRoute};

#[async_trait]
impl Routes for OpenStack {
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        let by_address: BTreeMap<IpAddr, _> =
            nodes.iter().flat_map(|n| internal_ips(n).map(move |ip| (ip, n.name.clone()))).collect();
        let routes = op.run(async { Ok(self.api.router_routes().await?) }).await?;
        let route = |RouterRoute { destination, nexthop }| Route {
            // Comes back in `Delete`, and holds all that the router needs to find the route again.
            name: format!("{destination} via {nexthop}").into(),
            node: by_address.get(&nexthop).cloned(),
            node_addresses: None,
            destination,
            blackhole: !by_address.contains_key(&nexthop),
        };
        Ok(routes.into_iter().map(route).collect())
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        let targets: Vec<_> = changes.iter().map(target).collect();
        let pick = |creates: bool| -> Vec<_> {
            let both = changes.iter().zip(&targets);
            let wanted = both.filter(|(change, _)| matches!(change, RouteChange::Create { .. }) == creates);
            wanted.filter_map(|(_, target)| target.as_ref().ok().copied()).collect()
        };
        // Removal first: a destination may move from one node to another in one batch.
        let removed = self.send(op, false, &pick(false)).await;
        let added = match &removed {
            Ok(()) => self.send(op, true, &pick(true)).await,
            Err(error) => Err(error.clone()),
        };
        let answer = |(change, target): (&RouteChange, Result<_, CloudError>)| match change {
            _ if target.is_err() => target.map(|_| ()),
            RouteChange::Create { .. } => added.clone(),
            RouteChange::Delete(_) => removed.clone(),
        };
        changes.iter().zip(targets).map(answer).collect()
    }
}

impl OpenStack {
    async fn send(&self, op: &Op, add: bool, routes: &[RouterRoute]) -> Result<(), CloudError> {
        if routes.is_empty() {
            return Ok(());
        }
        let api = self.writer(op)?;
        let sent =
            op.run(async { Ok(if add { api.add_routes(routes).await } else { api.remove_routes(routes).await }?) });
        sent.await
    }
}

fn internal_ips(node: &NodeView) -> impl Iterator<Item = IpAddr> {
    node.addresses.iter().filter(|a| a.kind == AddressType::InternalIp).filter_map(|a| a.address.parse().ok())
}

fn target(change: &RouteChange) -> Result<RouterRoute, CloudError> {
    match change {
        RouteChange::Create { node, destination } => {
            let same_family = |ip: &IpAddr| ip.is_ipv4() == matches!(destination, IpNet::V4(_));
            let nexthop = internal_ips(node).find(same_family).ok_or_else(|| {
                CloudError::invalid_input(format!("node {} has no address to route {destination} to", node.name))
            })?;
            Ok(RouterRoute { destination: *destination, nexthop })
        }
        RouteChange::Delete(route) => {
            let nexthop =
                route.name.rsplit(' ').next().and_then(|ip| ip.parse().ok()).ok_or_else(|| {
                    CloudError::invalid_input(format!("route name {:?} holds no next hop", route.name))
                })?;
            Ok(RouterRoute { destination: route.destination, nexthop })
        }
    }
}
