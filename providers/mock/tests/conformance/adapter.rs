//! The mock cloud as the kit's suites for load balancers and routes drive it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::k8s::{NodeView, Protocol, ServiceView};
use ccm_mock::{
    CloudConfig, MockCloud, MockProvider,
    cloud::{
        CallHook, CloudApi, InstanceSpec, Listener, LoadBalancer, LoadBalancerEdit,
        LoadBalancerKey, LoadBalancerSettings, LoadBalancerSpec, Members, Operation, Route,
        RouteBatch, RouteEdit, Transport,
    },
    config::Features,
    provider::annotations,
};
use ccm_testkit::conformance::{
    AllowedSources, CallCount, CallFaultKind, CloudLoadBalancer, CloudRoute, FaultyCloud,
    InjectedCallFault, InjectedFault, LoadBalancerCloud, RouteCloud,
};
use ipnet::IpNet;
use parking_lot::Mutex;

use crate::scripted::{SECRET, fault};

/// Owner of what the kit wants to be made by hand.
pub(crate) const BY_HAND: &str = "by-hand";

/// A mock cloud that is replaced at each reset; clones share it.
#[derive(Clone)]
pub(crate) struct MockAdapter {
    config: CloudConfig,
    cloud: Arc<Mutex<MockCloud>>,
    script: Arc<Script>,
}

/// Counts and spoils calls.
#[derive(Default)]
struct Script(Mutex<FaultScript>);

#[derive(Clone, Copy, Default)]
struct FaultScript {
    trouble: Option<InjectedCallFault>,
    tally: CallCount,
    latency: Duration,
}

impl MockAdapter {
    pub(crate) fn new(config: CloudConfig) -> Self {
        let cloud = Arc::new(Mutex::new(MockCloud::new(&config).unwrap()));
        let stage = Self { config, cloud, script: Arc::default() };
        stage.set(&stage.config);
        stage
    }

    pub(crate) fn cloud(&self) -> MockCloud {
        self.cloud.lock().clone()
    }

    pub(crate) fn provider(&self) -> MockProvider {
        let config = CloudConfig {
            features: Features { endpoints: true, ..Features::default() },
            load_balancer_classes: vec!["conformance.example/class".to_owned()],
            ..CloudConfig::default()
        };
        MockProvider::new_in_process(self.cloud()).with_config(&config)
    }

    fn set(&self, config: &CloudConfig) {
        let cloud = MockCloud::new(config).unwrap();
        cloud.set_hook(Some(Arc::new(Hook { cloud: cloud.clone(), script: self.script.clone() })));
        std::mem::replace(&mut *self.cloud.lock(), cloud).set_hook(None);
        *self.script.0.lock() = FaultScript::default();
    }
}

struct Hook {
    cloud: MockCloud,
    script: Arc<Script>,
}

#[async_trait]
impl CallHook for Hook {
    async fn before(&self, _: u64, operation: Operation) {
        let (trouble, latency) = {
            let mut page = self.script.0.lock();
            *(if operation.is_write() {
                &mut page.tally.writes
            } else {
                &mut page.tally.reads
            }) += 1;
            let call = page.tally.calls();
            let hit = |t: &InjectedCallFault| t.call == call || t.lasts && t.call < call;
            (page.trouble.filter(hit), page.latency)
        };
        tokio::time::sleep(latency).await;
        // The effect follows at once, so that no other call meets the fault.
        let fault = trouble.map(|trouble| match trouble.kind {
            CallFaultKind::Fails(kind) => fault(operation, kind, false),
            CallFaultKind::AnswerLost => fault(operation, InjectedFault::Transient, true),
        });
        self.cloud.set_faults(fault.into_iter().collect());
    }

    async fn after(&self, _: u64, _: Operation) {
        self.cloud.set_faults(Vec::new());
        let latency = self.script.0.lock().latency;
        tokio::time::sleep(latency).await;
    }
}

#[async_trait]
impl FaultyCloud for MockAdapter {
    async fn add_node(&self, name: &str) -> anyhow::Result<NodeView> {
        let instance = self.cloud().put_instance(name, InstanceSpec::default())?;
        let addresses = instance.addresses.into_iter().map(Into::into).collect();
        Ok(NodeView {
            provider_id: Some(instance.provider_id.into()),
            addresses,
            ..NodeView::named(name)
        })
    }

    async fn remove_node(&self, name: &str) -> anyhow::Result<()> {
        self.cloud().delete_instance(name);
        Ok(())
    }

    async fn script(&self, trouble: Option<InjectedCallFault>) -> anyhow::Result<()> {
        let mut page = self.script.0.lock();
        *page = FaultScript { trouble, tally: CallCount::default(), ..*page };
        Ok(())
    }

    async fn call_count(&self) -> anyhow::Result<CallCount> {
        Ok(self.script.0.lock().tally)
    }

    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool> {
        self.script.0.lock().latency = latency;
        Ok(true)
    }

    fn secrets(&self) -> Vec<String> {
        vec![SECRET.to_owned()]
    }

    async fn reset(&self) -> anyhow::Result<()> {
        self.set(&self.config);
        Ok(())
    }
}

#[async_trait]
impl LoadBalancerCloud for MockAdapter {
    async fn load_balancers(&self) -> anyhow::Result<Vec<CloudLoadBalancer>> {
        let cloud = self.cloud();
        Ok(cloud
            .load_balancers()
            .into_iter()
            .map(|balancer| shown(&cloud, balancer))
            .collect())
    }

    async fn objects(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let bare = |balancer| LoadBalancer {
            nodes: [].into(),
            members: Members::default(),
            generation: 0,
            ..balancer
        };
        let one = |balancer: LoadBalancer| (balancer.id.clone(), format!("{:?}", bare(balancer)));
        Ok(self.cloud().load_balancers().into_iter().map(one).collect())
    }

    fn settings(&self) -> Vec<(String, String)> {
        vec![(annotations::SCHEME.to_owned(), "internal".to_owned())]
    }

    fn endpoint_service(&self, mut plain: ServiceView) -> Option<ServiceView> {
        plain
            .annotations
            .insert(annotations::BACKENDS.into(), "endpoints".into());
        Some(plain)
    }

    fn bad_annotations(&self) -> Vec<(String, String)> {
        [
            (annotations::BACKENDS, "pods"),
            (annotations::SCHEME, "secret"),
            (annotations::ACTIVATION_DELAY, "soon"),
            (annotations::NODE_SELECTOR, "a label"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .to_vec()
    }

    async fn add_foreign(&self, service: &ServiceView) -> anyhow::Result<bool> {
        let key = LoadBalancerKey {
            cluster: BY_HAND.to_owned(),
            uid: "none".to_owned(),
            name: format!("a{}", service.uid.replace('-', ""))
                .chars()
                .take(32)
                .collect(),
            service: "none/none".to_owned(),
        };
        let listeners = vec![Listener { protocol: Transport::Tcp, port: 1, node_port: Some(1) }];
        let settings = LoadBalancerSettings { listeners, ..LoadBalancerSettings::default() };
        let spec = LoadBalancerSpec {
            key,
            settings,
            members: Members::nodes(["n1"]),
            activation: None,
        };
        self.cloud().create_load_balancer(&spec).await?;
        Ok(true)
    }

    async fn damage(&self, id: &str) -> anyhow::Result<bool> {
        let cloud = self.cloud();
        let found = cloud
            .load_balancers()
            .into_iter()
            .find(|balancer| balancer.id == id);
        let name = found
            .ok_or_else(|| anyhow::anyhow!("there is no load balancer {id}"))?
            .name;
        let edit = LoadBalancerEdit {
            listeners: Some(Vec::new()),
            nodes: Some(Vec::new()),
            ..LoadBalancerEdit::default()
        };
        cloud.edit_load_balancer(&name, edit)?;
        Ok(true)
    }

    async fn activate_after(&self, time: Duration) -> anyhow::Result<bool> {
        let (load_balancer_activation, load_balancer_deletion) = (time, time / 2);
        self.set(&CloudConfig {
            load_balancer_activation,
            load_balancer_deletion,
            ..self.config.clone()
        });
        Ok(true)
    }

    fn free_address(&self) -> Option<String> {
        Some("198.18.77.77".to_owned())
    }
}

#[async_trait]
impl RouteCloud for MockAdapter {
    async fn routes(&self) -> anyhow::Result<Vec<CloudRoute>> {
        let cloud = self.cloud();
        let alive = |node: &str| cloud.instance(node).map(|_| node.to_owned());
        let one = |route: Route| CloudRoute {
            id: route.name,
            destination: route.destination,
            node: alive(&route.node),
        };
        Ok(cloud.routes().into_iter().map(one).collect())
    }

    async fn add_foreign(&self, node: &NodeView, destination: IpNet) -> anyhow::Result<bool> {
        let edits = vec![RouteEdit::Create {
            node: node.name.to_string(),
            destination,
            node_addresses: None,
        }];
        let batch = RouteBatch { cluster: BY_HAND.to_owned(), edits };
        for answer in self.cloud().apply_routes(&batch).await? {
            answer?;
        }
        Ok(true)
    }
}

fn shown(cloud: &MockCloud, balancer: LoadBalancer) -> CloudLoadBalancer {
    let port = |listener: &Listener| {
        let protocol = match listener.protocol {
            Transport::Tcp => Protocol::Tcp,
            Transport::Udp => Protocol::Udp,
            Transport::Sctp => Protocol::Sctp,
        };
        (protocol, listener.port)
    };
    let members = match &balancer.members {
        Members::Nodes(nodes) => nodes.iter().map(|node| node.name.to_string()).collect(),
        Members::Endpoints(pods) => pods
            .iter()
            .map(|pod| node_at(cloud, &pod.address.ip().to_string()))
            .collect(),
    };
    CloudLoadBalancer {
        id: balancer.id,
        ports: balancer.settings.listeners.iter().map(port).collect(),
        members,
        clients: match balancer.settings.source_ranges.is_empty() {
            true => AllowedSources::Everybody,
            false => AllowedSources::Only(balancer.settings.source_ranges.into_iter().collect()),
        },
        addresses: balancer.addresses.iter().map(ToString::to_string).collect(),
    }
}

/// Returns the name of the node at an address, which pods in the host network share.
fn node_at(cloud: &MockCloud, address: &str) -> String {
    let named = |node: &String| {
        let instance = cloud.instance(node);
        instance.is_some_and(|instance| {
            instance
                .addresses
                .iter()
                .any(|entry| entry.address == address)
        })
    };
    let nodes = cloud
        .instances()
        .into_iter()
        .filter_map(|instance| instance.provider_id.rsplit('/').next().map(str::to_owned));
    nodes
        .into_iter()
        .find(named)
        .unwrap_or_else(|| address.to_owned())
}
