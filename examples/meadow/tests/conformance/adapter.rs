//! Meadow as the kit drives it: the adapters.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use ccm_core::provider::prelude::*;
use ccm_meadow::{Config, Meadow};
use ccm_testkit::conformance::{
    AllowedSources, CallScript, CloudLoadBalancer, CloudRoute, FaultyCloud, InstanceCloud,
    LoadBalancerCloud, MutantTransport, RouteCloud, ScriptedRest, TransportMutant,
};
use ipnet::IpNet;
use serde_json::json;

use crate::cloud::{Cloud, MeadowState, StoredLoadBalancer, TOKEN};

const SIZE: &str = "meadow.example/size";

/// A cloud, the way to it, and how much of it the kit tries.
#[derive(Clone)]
pub(crate) struct MeadowAdapter {
    cloud: Cloud,
    script: CallScript,
    transport: Arc<dyn Transport>,
    url: String,
    /// Whether the cloud shares the kit's clock; otherwise it is asked at fewer points and cannot
    /// be slowed down.
    in_process: bool,
    /// How long balancers take, after each reset.
    activation: Duration,
}

impl MeadowAdapter {
    /// Sets up a cloud with pages of this many.
    pub(crate) fn new(page: usize) -> Self {
        let cloud = Cloud::new(page);
        let rest = ScriptedRest::new(cloud.clone());
        Self {
            cloud,
            script: rest.script().clone(),
            transport: Arc::new(rest),
            url: "https://api.meadow.example".to_owned(),
            in_process: true,
            activation: Duration::ZERO,
        }
    }

    /// Has balancers take this long to be ready and, half of it, to be gone.
    pub(crate) fn taking(mut self, activation: Duration) -> Self {
        self.activation = activation;
        self.cloud.world.lock().activation = activation;
        self
    }

    /// Uses a cloud that listens elsewhere, and follows this script.
    pub(crate) fn over(
        cloud: Cloud,
        script: CallScript,
        url: String,
        transport: Arc<dyn Transport>,
    ) -> Self {
        Self {
            cloud,
            script,
            transport,
            url,
            in_process: false,
            activation: Duration::ZERO,
        }
    }

    /// Makes a mistake on the way to the cloud.
    pub(crate) fn with_mutant(mut self, mutant: impl TransportMutant) -> Self {
        self.transport = Arc::new(MutantTransport::new(self.transport, mutant));
        self
    }

    /// Makes a provider that remembers nothing.
    pub(crate) fn provider(&self) -> anyhow::Result<Arc<dyn CloudProvider>> {
        let config = Config { url: self.url.clone(), token: TOKEN.to_owned() };
        Ok(Arc::new(Meadow::new(&config, self.transport.clone())?))
    }

    fn set_state(&self, node: &str, state: &'static str) -> anyhow::Result<()> {
        self.cloud
            .world
            .lock()
            .instance(node)
            .with_context(|| format!("there is no instance {node}"))?
            .state = state;
        Ok(())
    }

    fn remove(&self, node: &str) {
        self.cloud
            .world
            .lock()
            .instances
            .retain(|_, instance| instance.name != node);
    }
}

#[async_trait]
impl InstanceCloud for MeadowAdapter {
    async fn create(&self, node: &str) -> anyhow::Result<()> {
        self.cloud.world.lock().add_instance(node);
        Ok(())
    }

    async fn stop(&self, node: &str) -> anyhow::Result<()> {
        self.set_state(node, "stopped")
    }

    async fn start(&self, node: &str) -> anyhow::Result<()> {
        self.set_state(node, "running")
    }

    async fn terminate(&self, node: &str) -> anyhow::Result<()> {
        self.set_state(node, "deleted")
    }

    async fn delete(&self, node: &str) -> anyhow::Result<()> {
        self.remove(node);
        Ok(())
    }

    fn call_script(&self) -> Option<&CallScript> {
        Some(&self.script)
    }

    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool> {
        FaultyCloud::slow_down(self, latency).await
    }

    async fn fingerprint(&self) -> anyhow::Result<String> {
        Ok(format!("{:?}", self.cloud.world.lock()))
    }

    fn secrets(&self) -> Vec<String> {
        vec![TOKEN.to_owned()]
    }

    fn malformed_provider_ids(&self) -> Vec<String> {
        [
            "meadow://",
            "meadow://7",
            "meadow:///ins-7",
            "meadow://ins-",
            "meadow://ins-07",
            "meadow://ins-7/x",
        ]
        .map(str::to_owned)
        .to_vec()
    }
}

#[async_trait]
impl FaultyCloud for MeadowAdapter {
    async fn add_node(&self, name: &str) -> anyhow::Result<NodeView> {
        let instance = self.cloud.world.lock().add_instance(name);
        let address =
            NodeAddress::new(AddressType::InternalIp, instance.private_address.to_string());
        let provider_id = Some(format!("meadow://{}", instance.id).into());
        Ok(NodeView {
            provider_id,
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

    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool> {
        if self.in_process {
            self.script.slow_down(latency);
        }
        Ok(self.in_process)
    }

    fn secrets(&self) -> Vec<String> {
        vec![TOKEN.to_owned()]
    }

    fn stride(&self) -> usize {
        if self.in_process { 1 } else { 5 }
    }

    async fn reset(&self) -> anyhow::Result<()> {
        *self.cloud.world.lock() =
            MeadowState { activation: self.activation, ..MeadowState::default() };
        self.script.reset();
        Ok(())
    }
}

#[async_trait]
impl LoadBalancerCloud for MeadowAdapter {
    async fn load_balancers(&self) -> anyhow::Result<Vec<CloudLoadBalancer>> {
        let world = self.cloud.world.lock();
        world
            .balancers
            .iter()
            .map(|(id, built)| shown(&world, id, built))
            .collect()
    }

    async fn objects(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let bare = |built: &StoredLoadBalancer| {
            let mut is = built.is.clone();
            is.members.clear();
            format!("{is:?} at {}", built.address)
        };
        Ok(self
            .cloud
            .world
            .lock()
            .balancers
            .iter()
            .map(|(id, built)| (id.clone(), bare(built)))
            .collect())
    }

    fn settings(&self) -> Vec<(String, String)> {
        vec![(SIZE.to_owned(), "large".to_owned())]
    }

    fn bad_annotations(&self) -> Vec<(String, String)> {
        ["huge", "", "Small"]
            .map(|size| (SIZE.to_owned(), size.to_owned()))
            .to_vec()
    }

    async fn add_foreign(&self, service: &ServiceView) -> anyhow::Result<bool> {
        let balancer = json!({
            "name": format!("k8s-{}", service.uid), "labels": {}, "size": "small", "listeners": ["1:1/tcp"],
            "sources": [], "health_port": null, "members": [],
        });
        let made = self
            .cloud
            .world
            .lock()
            .add_balancer(serde_json::from_value(balancer)?);
        made.map(|_| true).map_err(|refusal| anyhow!("{refusal:?}"))
    }

    async fn damage(&self, id: &str) -> anyhow::Result<bool> {
        let mut world = self.cloud.world.lock();
        let built = world
            .balancers
            .get_mut(id)
            .with_context(|| format!("there is no balancer {id}"))?;
        built.is.listeners.clear();
        built.is.members.clear();
        Ok(true)
    }

    async fn activate_after(&self, time: Duration) -> anyhow::Result<bool> {
        if self.in_process {
            self.cloud.world.lock().activation = time;
        }
        Ok(self.in_process)
    }
}

fn shown(
    world: &MeadowState,
    id: &str,
    built: &StoredLoadBalancer,
) -> anyhow::Result<CloudLoadBalancer> {
    let port = |listener: &String| {
        let (ports, protocol) = listener.split_once('/')?;
        let protocol = if protocol == "udp" {
            Protocol::Udp
        } else {
            Protocol::Tcp
        };
        Some((protocol, ports.split_once(':')?.0.parse().ok()?))
    };
    let ports = built
        .is
        .listeners
        .iter()
        .map(|text| port(text).with_context(|| text.clone()));
    Ok(CloudLoadBalancer {
        id: id.to_owned(),
        ports: ports.collect::<anyhow::Result<_>>()?,
        members: built
            .is
            .members
            .iter()
            .filter_map(|id| world.name_of(id))
            .collect(),
        clients: AllowedSources::Only(built.is.sources.clone()),
        addresses: [built.address.to_string()].into(),
    })
}

#[async_trait]
impl RouteCloud for MeadowAdapter {
    async fn routes(&self) -> anyhow::Result<Vec<CloudRoute>> {
        let world = self.cloud.world.lock();
        let shown = |route: &crate::cloud::Route| CloudRoute {
            id: route.id.clone(),
            destination: route.destination,
            node: world.name_of(&route.instance),
        };
        Ok(world.routes.values().map(shown).collect())
    }

    async fn add_foreign(&self, node: &NodeView, destination: IpNet) -> anyhow::Result<bool> {
        let mut world = self.cloud.world.lock();
        let instance = world
            .instance(&node.name)
            .context("the node has an instance")?
            .id
            .clone();
        let route = json!({"cluster": null, "destination": destination, "instance": instance});
        let made = world.add_route(serde_json::from_value(route)?);
        made.map(|_| true).map_err(|refusal| anyhow!("{refusal:?}"))
    }
}
