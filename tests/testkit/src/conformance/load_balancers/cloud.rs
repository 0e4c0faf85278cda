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

/// Shows and changes the load balancers of the cloud behind the provider under test.
///
/// What is shown is read from the cloud itself, never from the provider.
#[async_trait]
pub trait LoadBalancerCloud: FaultyCloud {
    /// Lists the load balancers that clients can connect to or that stand half-built, of all
    /// clusters.
    async fn balancers(&self) -> anyhow::Result<Vec<CloudLoadBalancer>>;

    /// Lists everything that load balancers are made of (balancers, listeners, pools, addresses,
    /// security groups), of all clusters: id, and a text that changes when anything of it does,
    /// other than the members behind it and the time.
    async fn objects(&self) -> anyhow::Result<BTreeMap<String, String>>;

    /// Completes a Service: annotations that the provider cannot do without. It has a name, a UID
    /// and one TCP port with a node port, for IPv4.
    fn service(&self, plain: ServiceView) -> ServiceView {
        plain
    }

    /// Completes a Service that asks for something of what the provider
    /// [supports](ccm_core::provider::LbSupport) beyond one TCP port: annotations without which the
    /// provider cannot do just that.
    fn wish(&self, service: ServiceView) -> ServiceView {
        service
    }

    /// Tells whether clients of both address families find a load balancer; by default when it has
    /// several addresses. A cloud that gives one name for both looks elsewhere.
    async fn serves_both_families(&self, balancer: &CloudLoadBalancer) -> anyhow::Result<bool> {
        Ok(balancer.addresses.len() > 1)
    }

    /// Returns valid annotations that each change the cloud's load balancer.
    fn settings(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Makes of a Service one that takes endpoints as backends; `None`, the default, when the
    /// provider has no such.
    fn endpoint_service(&self, plain: ServiceView) -> Option<ServiceView> {
        let _ = plain;
        None
    }

    /// Returns annotations whose value is no value for their key, so that the Service cannot be
    /// served.
    fn bad_annotations(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Makes a provider of another cluster in the same account; `None`, the default, when all that
    /// tells clusters apart is [`Op::cluster_name`](ccm_core::provider::Op::cluster_name).
    async fn other_cluster(&self) -> anyhow::Result<Option<Arc<dyn CloudProvider>>> {
        Ok(None)
    }

    /// Makes by hand, without ownership mark, a load balancer that has the name which the provider
    /// would give to that of `service`; `false`, the default, when names are not unique in the
    /// cloud, so that no name can be in the way.
    async fn add_foreign(&self, service: &ServiceView) -> anyhow::Result<bool> {
        let _ = service;
        Ok(false)
    }

    /// Changes by hand what clients can connect to on a load balancer (closes a port, takes a
    /// member off); `false`, the default, when the adapter cannot.
    async fn damage(&self, id: &str) -> anyhow::Result<bool> {
        let _ = id;
        Ok(false)
    }

    /// Makes load balancers take this long from creation to service, until the next reset; `false`,
    /// the default, when the adapter cannot. Called before anything was made.
    async fn activate_after(&self, time: Duration) -> anyhow::Result<bool> {
        let _ = time;
        Ok(false)
    }

    /// Returns how many load balancers are made to show that none is overlooked: more than a page
    /// of the cloud's listings has, as far as the account holds so many. 24 by default.
    fn many(&self) -> usize {
        24
    }

    /// Returns an address that a Service may ask for with `spec.loadBalancerIP`, where the provider
    /// supports that.
    fn free_address(&self) -> Option<String> {
        None
    }
}

/// A load balancer as the cloud has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudLoadBalancer {
    /// Id, one of those in [`LoadBalancerCloud::objects`].
    pub id: String,
    /// Ports that it listens on.
    pub ports: BTreeSet<(Protocol, u16)>,
    /// Names of the nodes that get its traffic.
    pub members: BTreeSet<String>,
    /// Who may connect.
    pub clients: AllowedSources,
    /// Addresses or names at which clients find it; empty while it has none.
    pub addresses: BTreeSet<String>,
}

/// Who may connect to a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedSources {
    /// Everybody.
    Everybody,
    /// Clients in these networks; nobody when there is none.
    Only(BTreeSet<IpNet>),
}

impl AllowedSources {
    /// Tells whether nobody may connect who is not in one of `networks`.
    pub fn within(&self, networks: &[IpNet]) -> bool {
        match self {
            Self::Everybody => networks.iter().any(|net| net.prefix_len() == 0),
            Self::Only(clients) => clients
                .iter()
                .all(|client| networks.iter().any(|net| net.contains(client))),
        }
    }
}
