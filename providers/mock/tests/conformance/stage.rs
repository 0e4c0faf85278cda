//! The mock cloud as the kit's suites for load balancers and routes drive it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::k8s::{NodeView, Protocol, ServiceView, well_known as wk};
use ccm_mock::{
    CloudConfig, MockCloud, MockProvider,
    cloud::{CallHook, CloudApi, InstanceSpec, LoadBalancer, LoadBalancerSpec, Operation},
};
use ccm_testkit::conformance::{
    Clients, CloudBalancer, CloudRoute, LoadBalancerCloud, RouteCloud, ScriptedCloud, Tally, Trouble, TroubleKind,
};
use ipnet::IpNet;
use parking_lot::Mutex;

/// A mock cloud that is replaced at each reset; clones share it.
#[derive(Clone)]
pub(crate) struct Stage {
    cloud: Arc<Mutex<MockCloud>>,
    script: Arc<Script>,
}

/// Counts and spoils calls.
#[derive(Default)]
struct Script(Mutex<Page>);

#[derive(Clone, Copy, Default)]
struct Page {
    trouble: Option<Trouble>,
    tally: Tally,
    latency: Duration,
    /// Whether the call that has its effect now loses its answer.
    lost: bool,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let cloud = MockCloud::new(&CloudConfig::default()).unwrap();
        let stage = Self { cloud: Arc::new(Mutex::new(cloud)), script: Arc::default() };
        stage.set(&CloudConfig::default());
        stage
    }

    pub(crate) fn cloud(&self) -> MockCloud {
        self.cloud.lock().clone()
    }

    pub(crate) fn provider(&self) -> MockProvider {
        MockProvider::over(self.cloud())
    }

    fn set(&self, config: &CloudConfig) {
        let cloud = MockCloud::new(config).unwrap();
        cloud.set_hook(Some(Arc::new(Hook { cloud: cloud.clone(), script: self.script.clone() })));
        std::mem::replace(&mut *self.cloud.lock(), cloud).set_hook(None);
        *self.script.0.lock() = Page::default();
    }
}

struct Hook {
    cloud: MockCloud,
    script: Arc<Script>,
}

fn writes(operation: Operation) -> bool {
    use Operation::{DescribeInstances, GetLoadBalancer, ListLoadBalancers, ListRoutes};
    !matches!(operation, DescribeInstances | GetLoadBalancer | ListLoadBalancers | ListRoutes)
}

#[async_trait]
impl CallHook for Hook {
    async fn before(&self, _: u64, operation: Operation) {
        let (trouble, latency) = {
            let mut page = self.script.0.lock();
            *(if writes(operation) { &mut page.tally.writes } else { &mut page.tally.reads }) += 1;
            let call = page.tally.calls();
            let hit = |t: &Trouble| t.call == call || t.lasts && t.call < call;
            (page.trouble.filter(hit), page.latency)
        };
        tokio::time::sleep(latency).await;
        // The effect follows at once, so that no other call meets the fault.
        let fault = trouble.and_then(|trouble| match trouble.kind {
            TroubleKind::Fails(fault) => Some(super::fault(operation, fault)),
            TroubleKind::AnswerLost => None,
        });
        self.cloud.set_faults(fault.into_iter().collect());
        self.script.0.lock().lost = trouble.is_some_and(|trouble| trouble.kind == TroubleKind::AnswerLost);
    }

    async fn after(&self, _: u64, _: Operation) {
        self.cloud.set_faults(Vec::new());
        let (lost, latency) = {
            let page = self.script.0.lock();
            (page.lost, page.latency)
        };
        if lost {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(latency).await;
    }
}

#[async_trait]
impl ScriptedCloud for Stage {
    async fn add_node(&self, name: &str) -> anyhow::Result<NodeView> {
        let instance = self.cloud().put_instance(name, InstanceSpec::default())?;
        let addresses = instance.addresses.into_iter().map(Into::into).collect();
        Ok(NodeView { provider_id: Some(instance.provider_id.into()), addresses, ..NodeView::named(name) })
    }

    async fn remove_node(&self, name: &str) -> anyhow::Result<()> {
        self.cloud().delete_instance(name);
        Ok(())
    }

    async fn script(&self, trouble: Option<Trouble>) -> anyhow::Result<()> {
        let mut page = self.script.0.lock();
        *page = Page { trouble, tally: Tally::default(), lost: false, ..*page };
        Ok(())
    }

    async fn tally(&self) -> anyhow::Result<Tally> {
        Ok(self.script.0.lock().tally)
    }

    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool> {
        self.script.0.lock().latency = latency;
        Ok(true)
    }

    async fn reset(&self) -> anyhow::Result<()> {
        self.set(&CloudConfig::default());
        Ok(())
    }
}

#[async_trait]
impl LoadBalancerCloud for Stage {
    async fn balancers(&self) -> anyhow::Result<Vec<CloudBalancer>> {
        Ok(self.cloud().load_balancers().into_iter().map(shown).collect())
    }

    async fn objects(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let one = |b: LoadBalancer| (b.name.clone(), format!("{:?}", LoadBalancer { nodes: Vec::new(), ..b }));
        Ok(self.cloud().load_balancers().into_iter().map(one).collect())
    }

    fn bad_annotations(&self) -> Vec<(String, String)> {
        vec![(wk::ANNOTATION_SOURCE_RANGES.to_owned(), "anywhere".to_owned())]
    }

    async fn add_foreign(&self, service: &ServiceView) -> anyhow::Result<bool> {
        let name = format!("a{}", service.uid.replace('-', "")).chars().take(32).collect();
        let spec = LoadBalancerSpec {
            cluster: "by-hand".to_owned(),
            uid: "none".to_owned(),
            name,
            service: "none/none".to_owned(),
            ports: vec![1],
            nodes: Vec::new(),
            source_ranges: Vec::new(),
        };
        self.cloud().ensure_load_balancer(&spec).await?;
        Ok(true)
    }
}

#[async_trait]
impl RouteCloud for Stage {
    async fn routes(&self) -> anyhow::Result<Vec<CloudRoute>> {
        let cloud = self.cloud();
        let alive = |node: &str| cloud.instance(node).map(|_| node.to_owned());
        let one =
            |route: Route| CloudRoute { id: route.name, destination: route.destination, node: alive(&route.node) };
        Ok(cloud.routes().into_iter().map(one).collect())
    }

    async fn add_foreign(&self, node: &NodeView, destination: IpNet) -> anyhow::Result<bool> {
        let edits = vec![RouteEdit::Create { node: node.name.to_string(), destination }];
        let batch = RouteBatch { cluster: "by-hand".to_owned(), edits };
        for answer in self.cloud().apply_routes(&batch).await? {
            answer?;
        }
        Ok(true)
    }
}

fn shown(balancer: LoadBalancer) -> CloudBalancer {
    let ranges = balancer.source_ranges.iter().map(|range| range.parse().unwrap());
    CloudBalancer {
        id: balancer.name,
        ports: balancer.ports.into_iter().map(|port| (Protocol::Tcp, port)).collect(),
        members: balancer.nodes.into_iter().collect(),
        clients: match balancer.source_ranges.is_empty() {
            true => Clients::Everybody,
            false => Clients::Only(ranges.collect()),
        },
        addresses: [balancer.address.to_string()].into(),
    }
}
