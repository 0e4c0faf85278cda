//! Quarry as the kit drives it: the adapters.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use ccm_core::provider::prelude::*;
use ccm_quarry::{Config, Quarry};
use ccm_testkit::conformance::{
    AllowedSources, CallScript, CloudLoadBalancer, CloudRoute, FaultyCloud, InstanceCloud,
    LoadBalancerCloud, MutantTransport, RouteCloud, ScriptedRest, TransportMutant,
};
use ipnet::IpNet;
use serde_json::json;

use crate::cloud::{Cloud, LoadBalancer, QuarryState, Route, TOKEN};

const TYPE: &str = "quarry.example/load-balancer-type";
/// The networks of the two clusters.
const NETWORK: u64 = 1_000_001;
const OTHER_NETWORK: u64 = 1_000_002;
const COMPLETION: Duration = Duration::from_millis(400);

/// A cloud and the way to it.
#[derive(Clone)]
pub(crate) struct QuarryAdapter {
    cloud: Cloud,
    script: CallScript,
    transport: Arc<dyn Transport>,
    /// The time that actions take, unless a rule asks for another.
    completion: Duration,
}

impl QuarryAdapter {
    /// Sets up a cloud with pages of this many.
    pub(crate) fn new(page: usize) -> Self {
        let cloud = Cloud::new(page);
        let rest = ScriptedRest::new(cloud.clone());
        let adapter = Self {
            cloud,
            script: rest.script().clone(),
            transport: Arc::new(rest),
            completion: COMPLETION,
        };
        adapter.empty();
        adapter
    }

    /// Has actions end at once, unless a rule asks for another time.
    pub(crate) fn completing_at_once(mut self) -> Self {
        self.completion = Duration::ZERO;
        self.empty();
        self
    }

    /// Makes a mistake on the way to the cloud.
    pub(crate) fn with_mutant(mut self, mutant: impl TransportMutant) -> Self {
        self.transport = Arc::new(MutantTransport::new(self.transport, mutant));
        self
    }

    fn empty(&self) {
        self.cloud.with(|world| {
            *world = QuarryState::default();
            world.completion = self.completion;
            world.networks = [NETWORK, OTHER_NETWORK]
                .map(|id| (id, BTreeSet::new()))
                .into();
        });
    }

    /// Makes a provider that remembers nothing.
    pub(crate) fn provider(&self) -> anyhow::Result<Arc<dyn CloudProvider>> {
        self.provider_of(NETWORK)
    }

    fn provider_of(&self, network: u64) -> anyhow::Result<Arc<dyn CloudProvider>> {
        let config = Config {
            url: "https://api.quarry.example".to_owned(),
            token: TOKEN.to_owned(),
            network,
        };
        Ok(Arc::new(Quarry::new(&config, self.transport.clone())?))
    }

    fn set_status(&self, node: &str, status: &'static str) -> anyhow::Result<()> {
        self.cloud.with(|world| {
            world
                .server(node)
                .with_context(|| format!("there is no server {node}"))?
                .status = status;
            Ok(())
        })
    }

    fn remove(&self, node: &str) {
        self.cloud
            .with(|world| world.servers.retain(|_, server| server.name != node));
    }
}

#[async_trait]
impl InstanceCloud for QuarryAdapter {
    async fn create(&self, node: &str) -> anyhow::Result<()> {
        self.cloud.with(|world| world.add_server(node));
        Ok(())
    }

    async fn stop(&self, node: &str) -> anyhow::Result<()> {
        self.set_status(node, "off")
    }

    async fn start(&self, node: &str) -> anyhow::Result<()> {
        self.set_status(node, "running")
    }

    /// A deleted server is not listed any more.
    async fn terminate(&self, node: &str) -> anyhow::Result<()> {
        self.remove(node);
        Ok(())
    }

    async fn delete(&self, node: &str) -> anyhow::Result<()> {
        self.remove(node);
        Ok(())
    }

    fn call_script(&self) -> Option<&CallScript> {
        Some(&self.script)
    }

    async fn fingerprint(&self) -> anyhow::Result<String> {
        Ok(self.cloud.with(|world| format!("{world:?}")))
    }

    fn secrets(&self) -> Vec<String> {
        vec![TOKEN.to_owned()]
    }

    fn malformed_provider_ids(&self) -> Vec<String> {
        ["quarry://", "quarry://seven", "quarry:///7", "quarry://07", "quarry://7/x"]
            .map(str::to_owned)
            .to_vec()
    }
}

#[async_trait]
impl FaultyCloud for QuarryAdapter {
    async fn add_node(&self, name: &str) -> anyhow::Result<NodeView> {
        let (id, address) = self.cloud.with(|world| {
            let id = world.add_server(name);
            (id, world.servers[&id].private_ip)
        });
        let address = NodeAddress::new(AddressType::InternalIp, address.to_string());
        Ok(NodeView {
            provider_id: Some(format!("quarry://{id}").into()),
            addresses: [address].into(),
            ..NodeView::named(name)
        })
    }

    async fn remove_node(&self, name: &str) -> anyhow::Result<()> {
        self.remove(name);
        Ok(())
    }

    fn call_script(&self) -> Option<&CallScript> {
        Some(&self.script)
    }

    async fn complete_after(&self, time: Duration) -> anyhow::Result<bool> {
        let time = if time.is_zero() {
            self.completion
        } else {
            time
        };
        self.cloud.with(|world| world.completion = time);
        Ok(true)
    }

    async fn fail_next_accepted(&self) -> anyhow::Result<bool> {
        self.cloud.with(|world| world.next_fails = true);
        Ok(true)
    }

    fn secrets(&self) -> Vec<String> {
        vec![TOKEN.to_owned()]
    }

    async fn reset(&self) -> anyhow::Result<()> {
        self.empty();
        self.script.reset();
        Ok(())
    }
}

#[async_trait]
impl LoadBalancerCloud for QuarryAdapter {
    async fn load_balancers(&self) -> anyhow::Result<Vec<CloudLoadBalancer>> {
        Ok(self.cloud.with(|world| {
            let load_balancers = world.load_balancers.iter();
            load_balancers
                .map(|(id, balancer)| shown(world, *id, balancer))
                .collect()
        }))
    }

    async fn objects(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let bare = |(id, balancer): (&u64, &LoadBalancer)| {
            let mut balancer = balancer.clone();
            balancer.targets.clear();
            (id.to_string(), format!("{balancer:?}"))
        };
        Ok(self
            .cloud
            .with(|world| world.load_balancers.iter().map(bare).collect()))
    }

    fn settings(&self) -> Vec<(String, String)> {
        vec![(TYPE.to_owned(), "large".to_owned())]
    }

    fn bad_annotations(&self) -> Vec<(String, String)> {
        ["huge", "", "Small"]
            .map(|kind| (TYPE.to_owned(), kind.to_owned()))
            .to_vec()
    }

    async fn add_foreign(&self, service: &ServiceView) -> anyhow::Result<bool> {
        let new = json!({
            "name": format!("k8s-{}", service.uid), "labels": {}, "load_balancer_type": "small",
        });
        let new = serde_json::from_value(new)?;
        let made = self.cloud.with(|world| world.add_load_balancer(new));
        made.map(|_| true)
            .map_err(|rejection| anyhow!("{rejection:?}"))
    }

    async fn damage(&self, id: &str) -> anyhow::Result<bool> {
        let id = id.parse()?;
        self.cloud.with(|world| {
            let balancer = world
                .load_balancers
                .get_mut(&id)
                .with_context(|| format!("there is no load balancer {id}"))?;
            balancer.services.clear();
            balancer.targets.clear();
            Ok(true)
        })
    }
}

fn shown(world: &QuarryState, id: u64, balancer: &LoadBalancer) -> CloudLoadBalancer {
    CloudLoadBalancer {
        id: id.to_string(),
        ports: balancer
            .services
            .keys()
            .map(|port| (Protocol::Tcp, port.get()))
            .collect(),
        members: balancer
            .targets
            .iter()
            .filter_map(|id| Some(world.servers.get(id)?.name.clone()))
            .collect(),
        clients: AllowedSources::Everybody,
        addresses: [balancer.address.to_string()].into(),
    }
}

#[async_trait]
impl RouteCloud for QuarryAdapter {
    async fn routes(&self) -> anyhow::Result<Vec<CloudRoute>> {
        Ok(self.cloud.with(|world| {
            let mut shown = Vec::new();
            for (network, routes) in &world.networks {
                for Route { destination, gateway } in routes {
                    let server = world
                        .servers
                        .values()
                        .find(|server| server.private_ip == *gateway);
                    shown.push(CloudRoute {
                        id: format!("{network}: {destination} via {gateway}"),
                        destination: (*destination).into(),
                        node: server.map(|server| server.name.clone()),
                    });
                }
            }
            shown
        }))
    }

    async fn add_foreign(&self, node: &NodeView, destination: IpNet) -> anyhow::Result<bool> {
        let IpNet::V4(destination) = destination else {
            return Ok(false);
        };
        self.cloud.with(|world| {
            let gateway = world
                .server(&node.name)
                .context("the node has a server")?
                .private_ip;
            let routes = world.networks.get_mut(&OTHER_NETWORK);
            routes
                .context("there is another network")?
                .insert(Route { destination, gateway });
            Ok(true)
        })
    }

    async fn other_cluster(&self) -> anyhow::Result<Option<Arc<dyn CloudProvider>>> {
        self.provider_of(OTHER_NETWORK).map(Some)
    }

    fn ipv6(&self) -> bool {
        false
    }

    /// One change takes 400 ms, and the network has one lock.
    fn many(&self) -> usize {
        60
    }
}
