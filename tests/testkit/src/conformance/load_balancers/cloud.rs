use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use ccm_core::{
    k8s::{Protocol, ServiceView},
    provider::CloudProvider,
};
use ipnet::IpNet;

use super::super::FaultyCloud;

/// Inspects and changes the load balancers in the cloud behind the provider under test.
///
/// Read everything from the cloud itself, never from the provider.
#[async_trait]
pub trait LoadBalancerCloud: FaultyCloud {
    /// Lists the load balancers of all clusters, including incomplete ones.
    async fn load_balancers(&self) -> anyhow::Result<Vec<CloudLoadBalancer>>;

    /// Lists all objects that load balancers of all clusters consist of: load balancers, listeners,
    /// pools, addresses, security groups. Each has an id and a text that changes when the object
    /// changes, except its members and times.
    async fn objects(&self) -> anyhow::Result<BTreeMap<String, String>>;

    /// Adds annotations that the provider requires to a Service. `plain` has a name, a UID and one
    /// TCP port with a node port, for IPv4.
    fn service(&self, plain: ServiceView) -> ServiceView {
        plain
    }

    /// Adds annotations to a Service that uses a feature which the provider
    /// [supports](ccm_core::provider::LbSupport), if the provider requires them for that feature.
    fn wish(&self, service: ServiceView) -> ServiceView {
        service
    }

    /// Returns true if clients of both address families can reach a load balancer. By default that
    /// is so if it has several addresses; override it if the cloud returns one DNS name for both.
    async fn serves_both_families(
        &self,
        load_balancer: &CloudLoadBalancer,
    ) -> anyhow::Result<bool> {
        Ok(load_balancer.addresses.len() > 1)
    }

    /// Returns valid annotations, each of which changes the load balancer in the cloud.
    fn settings(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Turns a Service into one that has endpoints as backends. Returns `None`, the default, if the
    /// provider does not support that.
    fn endpoint_service(&self, plain: ServiceView) -> Option<ServiceView> {
        let _ = plain;
        None
    }

    /// Returns annotations with values that are invalid for their keys. They make a Service invalid.
    fn bad_annotations(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Returns a provider of another cluster in the same account. Returns `None`, the default, if
    /// only [`Op::cluster_name`](ccm_core::provider::Op::cluster_name) distinguishes clusters.
    async fn other_cluster(&self) -> anyhow::Result<Option<Arc<dyn CloudProvider>>> {
        Ok(None)
    }

    /// Creates a load balancer without ownership tags under the name that the provider would choose
    /// for `service`. Returns `false`, the default, if names are not unique in the cloud, so that
    /// they cannot conflict.
    async fn add_foreign(&self, service: &ServiceView) -> anyhow::Result<bool> {
        let _ = service;
        Ok(false)
    }

    /// Damages a load balancer, for example removes a listener or a member. Returns `false`, the
    /// default, if the adapter cannot.
    async fn damage(&self, id: &str) -> anyhow::Result<bool> {
        let _ = id;
        Ok(false)
    }

    /// Makes each load balancer serve only `time` after its creation, until the next reset. Returns
    /// `false`, the default, if the adapter cannot. Called before anything is created.
    async fn activate_after(&self, time: Duration) -> anyhow::Result<bool> {
        let _ = time;
        Ok(false)
    }

    /// Returns the number of load balancers for the rule `many-are-listed`: more than fit on one
    /// page of the cloud's listings, if the account's quota allows it. 24 by default.
    fn many(&self) -> usize {
        24
    }

    /// Returns an address that a Service can request with `spec.loadBalancerIP`, if the provider
    /// supports that. `None` by default.
    fn free_address(&self) -> Option<String> {
        None
    }
}

/// Observed state of a load balancer in the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudLoadBalancer {
    /// Id in the cloud, also a key of [`LoadBalancerCloud::objects`].
    pub id: String,
    /// Protocols and ports of the listeners.
    pub ports: BTreeSet<(Protocol, u16)>,
    /// Names of the nodes that receive the traffic.
    pub members: BTreeSet<String>,
    /// Clients that can connect.
    pub clients: AllowedSources,
    /// Addresses or host names for clients; empty until the cloud assigns them.
    pub addresses: BTreeSet<String>,
}

/// Clients that can connect to a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedSources {
    /// All clients.
    Everybody,
    /// Clients in these networks; none if the set is empty.
    Only(BTreeSet<IpNet>),
}

impl AllowedSources {
    /// Returns true if every client that can connect is in one of `networks`.
    pub fn within(&self, networks: &[IpNet]) -> bool {
        match self {
            Self::Everybody => networks.iter().any(|net| net.prefix_len() == 0),
            Self::Only(clients) => clients
                .iter()
                .all(|client| networks.iter().any(|net| net.contains(client))),
        }
    }
}
