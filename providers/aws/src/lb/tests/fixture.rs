//! A cluster on the in-memory AWS, with Services by one line each.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    k8s::{
        EndpointSliceView, EndpointView, IpFamily, LbIngress, LbStatus, NodeView, Protocol,
        ServicePort, ServiceView, SlicePort, well_known,
    },
    provider::{
        BackendKind, Backends, CloudError, ErrorKind, EventSink, EventType, LbOutcome, LbRef,
        LbSpec, LoadBalancers, Op, PlannedChange, Progress, ReadMode, ServiceInterpretation,
        SourceRanges,
    },
    runtime::events::WallClock,
    write_gate::WriteGate,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    api::InstanceId,
    client::{Client, reason::REFUSED},
    config::{AnnotationDialect, DefaultType, Limits, Settings},
    fake::{CLUSTER, FakeAws, FakeCluster},
    instances::InstanceCache,
    lb::{NetworkLoadBalancers, spec::annotations::PREFIX},
    ownership_tags::Cluster,
    scope::Scope,
};

/// Events of a Service: type, reason, note.
#[derive(Default)]
pub(super) struct Events(pub(super) Mutex<Vec<(EventType, &'static str, String)>>);

impl EventSink for Events {
    fn record(&self, kind: EventType, reason: &'static str, note: &str) {
        self.0.lock().push((kind, reason, note.to_owned()));
    }
}

/// Address of a pod on the first node.
pub(crate) const POD: &str = "10.0.128.200";

/// A process that looks after load balancers of a cluster.
pub(super) struct Fixture {
    pub(super) world: FakeCluster,
    pub(super) aws: FakeAws,
    pub(super) balancers: NetworkLoadBalancers,
    pub(super) nodes: Vec<Arc<NodeView>>,
    /// Targets of Services with the annotation that asks for pods.
    pub(super) pods: Vec<Arc<EndpointSliceView>>,
    pub(super) events: Arc<Events>,
    pub(super) store: Arc<InstanceCache>,
    settings: Settings,
    /// The same for all processes.
    clock: WallClock,
}

impl Fixture {
    pub(super) fn new(nodes: usize) -> Self {
        Self::with(nodes, Settings::default())
    }

    /// A process that makes a network load balancer where a Service does not say what it wants, and
    /// reads all annotations.
    pub(crate) fn with(nodes: usize, settings: Settings) -> Self {
        let settings = Settings {
            default_type: DefaultType::Nlb,
            annotation_dialect: AnnotationDialect::Extended,
            ..settings
        };
        Self::configured(nodes, settings)
    }

    /// A process with exactly these settings.
    pub(super) fn configured(nodes: usize, settings: Settings) -> Self {
        let world = FakeCluster::small(nodes);
        for id in world.nodes.iter().take(1) {
            world.aws.assign_ip(id, POD);
        }
        let nodes = world.nodes.iter().map(node).collect();
        let clock = WallClock::tokio_from("2026-01-01T00:00:00Z".parse().unwrap());
        Self::start(world, nodes, settings, clock)
    }

    /// A process with budgets for its requests.
    pub(super) fn limited(nodes: usize, limits: &Limits) -> Self {
        Self::new(nodes).limit(limits)
    }

    /// Ends this process and starts another with budgets.
    pub(super) fn restart_limited(self, limits: &Limits) -> Self {
        self.restart().limit(limits)
    }

    fn limit(mut self, limits: &Limits) -> Self {
        let client = self
            .balancers
            .reconciler
            .scope
            .client
            .clone()
            .with_limits(limits);
        let scope = Scope { client, ..self.balancers.reconciler.scope.clone() };
        self.store = InstanceCache::new(scope.clone());
        self.balancers = NetworkLoadBalancers::new(scope, self.store.clone());
        self.balancers.clock = self.clock.clone();
        self
    }

    fn start(
        world: FakeCluster,
        nodes: Vec<Arc<NodeView>>,
        settings: Settings,
        clock: WallClock,
    ) -> Self {
        let scope = Scope {
            client: Client::new(world.aws.transport()),
            cluster: Cluster::new(CLUSTER, false),
            region: "us-west-2".into(),
            vpc: world.vpc.clone(),
            settings: Arc::new(settings.clone()),
        };
        let store = InstanceCache::new(scope.clone());
        let mut balancers = NetworkLoadBalancers::new(scope, store.clone());
        balancers.clock = clock.clone();
        let pods = vec![slice(&[(POD, true, false)])];
        Self {
            aws: world.aws.clone(),
            world,
            balancers,
            nodes,
            pods,
            events: Arc::default(),
            store,
            settings,
            clock,
        }
    }

    /// A process of another cluster in the same VPC, with nodes of its own and the same
    /// `--cluster-name`.
    pub(super) fn beside(&self, cluster: &str, nodes: usize) -> Self {
        let key = format!("kubernetes.io/cluster/{cluster}");
        let group = self
            .aws
            .security_group(&self.world.vpc, cluster, &[(&key, "owned")]);
        let mut world = self.world.clone();
        world.node_group = group.clone();
        world.nodes = (0..nodes)
            .map(|n| {
                let subnet = &self.world.private[n % self.world.private.len()];
                let instance = self.aws.instance(subnet).group(&group);
                instance.tag(&key, "owned").launch()
            })
            .collect();
        let nodes = world.nodes.iter().map(node).collect();
        Self::start(world, nodes, self.settings.clone(), self.clock.clone()).of_cluster(cluster)
    }

    /// The same process with another ID of its cluster.
    pub(super) fn of_cluster(mut self, cluster: &str) -> Self {
        let scope = Scope {
            cluster: Cluster::new(cluster, false),
            ..self.balancers.reconciler.scope.clone()
        };
        self.store = InstanceCache::new(scope.clone());
        self.balancers = NetworkLoadBalancers::new(scope, self.store.clone());
        self
    }

    /// Ends this process and starts another, which knows nothing.
    pub(super) fn restart(self) -> Self {
        self.aws.restart_process();
        Self {
            pods: self.pods,
            ..Self::start(self.world, self.nodes, self.settings, self.clock)
        }
    }

    /// Ends this process and starts another with other settings.
    pub(super) fn restart_with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self.restart()
    }

    pub(super) fn add_node(&mut self) -> InstanceId {
        let id = self.world.add_node();
        self.nodes.push(node(&id));
        id
    }

    pub(super) fn op(&self) -> Op {
        Op::new(CLUSTER, CancellationToken::new(), WriteGate::always_open())
            .with_events(self.events.clone())
    }

    /// Reads instances and the VPC, as the node controller and earlier Services have done.
    pub(super) async fn warm(&self) {
        let ids = self.world.nodes.clone();
        self.store
            .get_many(&self.op(), &ids, Duration::MAX)
            .await
            .unwrap();
        self.balancers
            .reconciler
            .deps
            .vpc
            .view(&self.op(), Duration::MAX)
            .await
            .unwrap();
    }

    pub(super) fn spec(&self, service: &ServiceView) -> LbSpec {
        LbSpec {
            cluster: CLUSTER.into(),
            service: Arc::new(service.clone()),
            sources: SourceRanges::of(service).unwrap_or(SourceRanges::Only(Vec::new())),
            backends: match self.backend_kind(service) {
                Some(BackendKind::Endpoints) => Backends::Endpoints(self.pods.clone()),
                _ => Backends::Nodes(self.nodes.clone()),
            },
        }
    }

    /// The kind of backends that the framework would pass.
    fn backend_kind(&self, service: &ServiceView) -> Option<BackendKind> {
        match self.balancers.interpret(service) {
            ServiceInterpretation::Valid { backends, .. } => Some(backends),
            _ => self.balancers.backends_of_invalid(service),
        }
    }

    pub(super) async fn ensure(&self, service: &ServiceView, depth: ReadMode) -> LbOutcome {
        self.balancers
            .ensure(&self.op(), &self.spec(service), depth)
            .await
    }

    /// Ensures several times, which fails: AWS refuses the Service. Returns the delays in seconds.
    pub(super) async fn delays_of_refusals<const N: usize>(
        &self,
        service: &ServiceView,
    ) -> [u64; N] {
        let mut delays = [0; N];
        for delay in &mut delays {
            let outcome = self.ensure(service, ReadMode::Fresh).await;
            let error = outcome.result.unwrap_err();
            let refused = (ErrorKind::InvalidInput, Some(REFUSED));
            assert_eq!((error.kind(), error.reason()), refused, "{error}");
            *delay = error.retry_after().unwrap().as_secs();
        }
        delays
    }

    /// Ensures as the framework does: again, when it is asked to wait or has failed.
    pub(super) async fn settle(&self, service: &ServiceView) -> LbStatus {
        let (mut waited, mut last) = (Duration::ZERO, String::new());
        for _ in 0..20 {
            let op = self.op().with_pending_for(waited);
            let outcome = self
                .balancers
                .ensure(&op, &self.spec(service), ReadMode::Fresh)
                .await;
            last = format!("{outcome:?}");
            let after = match outcome.result {
                Ok(Progress::Done) => return outcome.status.unwrap(),
                Ok(Progress::Pending { after, .. }) => after,
                Err(_) => Duration::from_secs(5),
            };
            tokio::time::sleep(after).await;
            waited += after;
        }
        panic!("{} does not settle: {last}", service.key());
    }

    pub(super) async fn update(&self, service: &ServiceView) -> LbOutcome {
        self.balancers
            .update_backends(&self.op(), &self.spec(service))
            .await
    }

    pub(super) async fn plan(
        &self,
        service: &ServiceView,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        self.balancers.plan(&self.op(), &self.spec(service)).await
    }

    /// The comparison of shadow mode, in which nothing may be written.
    pub(super) async fn plan_in_shadow(&self, service: &ServiceView) -> Vec<PlannedChange> {
        let op = Op::new(CLUSTER, CancellationToken::new(), WriteGate::always_closed())
            .with_events(self.events.clone());
        self.balancers.plan(&op, &self.spec(service)).await.unwrap()
    }

    pub(super) async fn delete(&self, service: &ServiceView) -> Result<Progress, CloudError> {
        self.balancers.delete(&self.op(), &reference(service)).await
    }

    /// Deletes as the framework does.
    pub(super) async fn remove(&self, service: &ServiceView) {
        let mut waited = Duration::ZERO;
        for _ in 0..30 {
            let op = self.op().with_pending_for(waited);
            let after = match self.balancers.delete(&op, &reference(service)).await {
                Ok(Progress::Done) => return,
                Ok(Progress::Pending { after, .. }) => after,
                Err(_) => Duration::from_secs(5),
            };
            tokio::time::sleep(after).await;
            waited += after;
        }
        panic!("{} is not deleted", service.key());
    }

    pub(super) fn reasons(&self) -> Vec<&'static str> {
        self.events
            .0
            .lock()
            .iter()
            .map(|(_, reason, _)| *reason)
            .collect()
    }
}

pub(crate) fn node(id: &InstanceId) -> Arc<NodeView> {
    let provider_id = Some(format!("aws:///us-west-2a/{id}").into());
    Arc::new(NodeView { provider_id, ..NodeView::named(&format!("node-{id}")) })
}

pub(crate) fn reference(service: &ServiceView) -> LbRef {
    LbRef {
        uid: service.uid.clone(),
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        class: service.class.clone(),
        annotations: service.annotations.clone(),
        status: service.status.clone(),
        last_observed: Some(Arc::new(service.clone())),
    }
}

/// A Service of type LoadBalancer with TCP ports, each with node port 30000 more, and the number in
/// its name.
pub(crate) fn service(name: &str, ports: &[u16]) -> ServiceView {
    let number: u16 = name
        .trim_start_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .unwrap_or(0);
    let port = |port: &u16| ServicePort {
        name: format!("p{port}").into(),
        protocol: Protocol::Tcp,
        port: (*port).try_into().unwrap(),
        node_port: (30000 + number + port).try_into().ok(),
        target_port: "8080".into(),
        app_protocol: None,
    };
    ServiceView {
        uid: format!("{name:x<12}-0000-0000-0000-000000000000").into(),
        ports: ports.iter().map(port).collect(),
        ip_families: [IpFamily::V4].into(),
        finalizers: [Arc::from(well_known::FINALIZER_LOAD_BALANCER)].into(),
        ..ServiceView::named("default", name)
    }
}

/// Endpoints of `web`: address, whether it is ready, whether it is about to end.
pub(crate) fn slice(endpoints: &[(&str, bool, bool)]) -> Arc<EndpointSliceView> {
    slice_at(8080, endpoints)
}

/// The same with a port.
pub(super) fn slice_at(number: u16, endpoints: &[(&str, bool, bool)]) -> Arc<EndpointSliceView> {
    let endpoint = |(ip, ready, terminating): &(&str, bool, bool)| EndpointView {
        addresses: [ip.parse().unwrap()].into(),
        node: None,
        zone: None,
        ready: *ready,
        serving: *ready,
        terminating: *terminating,
    };
    let port = |name: &str, number: u16| SlicePort {
        name: name.into(),
        protocol: Protocol::Tcp,
        port: number.try_into().ok(),
    };
    Arc::new(EndpointSliceView {
        ports: [port("p80", number), port("other", 9090)].into(),
        endpoints: endpoints.iter().map(endpoint).collect(),
        ..EndpointSliceView::named("default", "web-1", "web")
    })
}

/// Adds an annotation of ours by its suffix.
pub(crate) fn with(mut service: ServiceView, suffix: &str, value: &str) -> ServiceView {
    service
        .annotations
        .insert(format!("{PREFIX}{suffix}").into(), value.into());
    service
}

/// As the framework sees a Service the first time: without its finalizer.
pub(crate) fn fresh(service: &ServiceView) -> ServiceView {
    ServiceView { finalizers: Box::default(), ..service.clone() }
}

pub(super) fn published(service: &ServiceView, status: &LbStatus) -> ServiceView {
    ServiceView { status: status.clone(), ..service.clone() }
}

pub(super) fn showing(service: &ServiceView, hostname: &str) -> ServiceView {
    let ingress = LbIngress { hostname: Some(hostname.into()), ..LbIngress::default() };
    published(service, &LbStatus { ingress: vec![ingress] })
}
