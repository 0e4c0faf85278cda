//! A cluster on the local cloud, with Services by one line each.

use std::{collections::BTreeMap, num::NonZeroU16, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use ccm_core::{
    k8s::{AddressType, IpFamily, NodeAddress, NodeView, Protocol, ServicePort, ServiceView},
    provider::{
        Backends, CloudError, EventSink, EventType, LbOutcome, LbRef, LbSpec, LoadBalancers as _,
        Op, PlannedChange, Progress, ReadMode, RetainOutcome, SourceRanges,
    },
    write_gate::WriteGate,
};
use http::{Request, Response, StatusCode};
use openstack_local::api::neutron::{
    FixedIpRequest, FloatingIp, GatewayRequest, NetworkCreate, Port, PortCreate, RouterCreate,
    SecurityGroupRule, SubnetCreate,
};
use openstack_local::api::octavia::{Listener, LoadBalancer, Member};
use openstack_local::{
    neutron, octavia,
    server::{LocalCloud, Settings as CloudSettings},
    state::{CloudState, RequestContext},
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    client::{
        Client, Transport, TransportError,
        in_process::{self, InProcess},
    },
    config::Limits,
    lb::{LoadBalancers, annotations::PREFIX, settings::LoadBalancerSettings},
};

pub(super) const CLUSTER: &str = "c1";

/// Changes a row of an answer to the request with this path and query.
type Spoil = Box<dyn Fn(&str, &mut Value) + Send>;

/// The way to the local cloud, which notes requests, and may change rows of what is answered.
pub(super) struct Wire {
    cloud: Arc<InProcess>,
    pub(super) log: Mutex<Vec<String>>,
    spoil: Mutex<Option<Spoil>>,
    stop: Mutex<Option<Stop>>,
    failure: Mutex<Option<Stop>>,
    resumed: tokio::sync::Notify,
}

/// The request at which the process dies or waits until it is resumed, or which fails.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    /// Number of requests before it.
    pub(super) after: usize,
    /// True if the cloud gets it before.
    pub(super) sent: bool,
}

impl Wire {
    fn new(local: &LocalCloud) -> Arc<Self> {
        let cloud = InProcess::new(local);
        Arc::new(Self {
            cloud,
            log: Mutex::default(),
            spoil: Mutex::default(),
            stop: Mutex::default(),
            failure: Mutex::default(),
            resumed: tokio::sync::Notify::new(),
        })
    }

    /// Changes the rows of all lists, and objects that are answered alone, from here on.
    pub(super) fn spoil(&self, spoil: impl Fn(&str, &mut Value) + Send + 'static) {
        *self.spoil.lock() = Some(Box::new(spoil));
    }

    /// Stops the process at a request, which never ends unless it is resumed.
    pub(super) fn stop_at(&self, stop: Stop) {
        *self.stop.lock() = Some(stop);
    }

    /// Lets a stopped process continue.
    pub(super) fn resume(&self) {
        self.resumed.notify_one();
    }

    /// Lets the cloud answer a request with an error.
    pub(super) fn fail_at(&self, stop: Stop) {
        *self.failure.lock() = Some(stop);
    }

    /// Returns true if the request came that was to fail.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.lock().is_none()
    }

    fn spoilt(&self, target: &str, body: &Bytes) -> Option<Bytes> {
        let spoil = self.spoil.lock();
        let spoil = spoil.as_ref()?;
        let mut body: Value = serde_json::from_slice(body).ok()?;
        for content in body.as_object_mut()?.values_mut() {
            match content {
                Value::Array(rows) => rows.iter_mut().for_each(|row| spoil(target, row)),
                object => spoil(target, object),
            }
        }
        Some(body.to_string().into())
    }
}

/// Counts a request down, and returns what is due at it.
fn due(stop: &Mutex<Option<Stop>>) -> Option<Stop> {
    let mut stop = stop.lock();
    let due = stop.take_if(|stop| stop.after == 0);
    if let Some(stop) = &mut *stop {
        stop.after -= 1;
    }
    due
}

#[async_trait]
impl Transport for Wire {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let is_token = request.uri().path().contains("/auth/tokens");
        if !is_token {
            let query = request
                .uri()
                .query()
                .map(|query| format!("?{query}"))
                .unwrap_or_default();
            self.log
                .lock()
                .push(format!("{} {}{query}", request.method(), request.uri().path()));
        }
        if !is_token && let Some(failure) = due(&self.failure) {
            if failure.sent {
                self.cloud.send(request).await?;
            }
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            return Ok(response);
        }
        if !is_token && let Some(stop) = due(&self.stop) {
            if stop.sent {
                let response = self.cloud.send(request).await;
                self.resumed.notified().await;
                return response;
            }
            self.resumed.notified().await;
        }
        let target = request.uri().path_and_query().map(ToString::to_string);
        let mut response = self.cloud.send(request).await?;
        if let Some(body) = self.spoilt(&target.unwrap_or_default(), response.body()) {
            *response.body_mut() = body;
        }
        Ok(response)
    }
}

/// Events of a Service: type, reason, note.
#[derive(Default)]
pub(super) struct Events(pub(super) Mutex<Vec<(EventType, &'static str, String)>>);

impl EventSink for Events {
    fn record(&self, kind: EventType, reason: &'static str, note: &str) {
        self.0.lock().push((kind, reason, note.to_owned()));
    }
}

/// Networks of the cluster.
#[derive(Clone, Debug)]
pub(super) struct Net {
    pub(super) network: String,
    pub(super) subnet: String,
    pub(super) external: String,
    pub(super) project: Box<str>,
}

/// A process that looks after load balancers of a cluster.
pub(super) struct Fixture {
    pub(super) local: LocalCloud,
    pub(super) wire: Arc<Wire>,
    pub(super) balancers: LoadBalancers,
    pub(super) nodes: Vec<Arc<NodeView>>,
    pub(super) events: Arc<Events>,
    pub(super) net: Net,
    settings: LoadBalancerSettings,
}

impl Fixture {
    pub(super) async fn new(nodes: usize) -> Self {
        Self::with(nodes, |_, _| {}).await
    }

    /// Makes a cloud and a process with settings of ours.
    pub(super) async fn with(
        nodes: usize,
        change: impl FnOnce(&mut LoadBalancerSettings, &Net),
    ) -> Self {
        let local = LocalCloud::in_memory(CloudSettings::default());
        let net = build(&local, nodes).await;
        let mut settings = LoadBalancerSettings::default();
        settings.networks.subnet = net.subnet.as_str().into();
        settings.networks.floating_network = net.external.as_str().into();
        settings.failover_on_error = true;
        change(&mut settings, &net);
        let nodes = (0..nodes).map(node).collect();
        Self::start(local, nodes, net, settings).await
    }

    async fn start(
        local: LocalCloud,
        nodes: Vec<Arc<NodeView>>,
        net: Net,
        settings: LoadBalancerSettings,
    ) -> Self {
        Self::start_within(None, local, nodes, net, settings).await
    }

    async fn start_within(
        limits: Option<&Limits>,
        local: LocalCloud,
        nodes: Vec<Arc<NodeView>>,
        net: Net,
        settings: LoadBalancerSettings,
    ) -> Self {
        let wire = Wire::new(&local);
        let client = Client::connect(&in_process::settings(&local), wire.clone())
            .await
            .unwrap()
            .with_limits(limits);
        let balancers = LoadBalancers::new(client, settings.clone(), CLUSTER.into())
            .await
            .unwrap();
        wire.log.lock().clear();
        Self {
            local,
            wire,
            balancers,
            nodes,
            events: Arc::default(),
            net,
            settings,
        }
    }

    /// Ends this process and starts another, which knows nothing.
    pub(super) async fn restart(self) -> Self {
        Self::start(self.local, self.nodes, self.net, self.settings).await
    }

    /// As [`restart`](Self::restart), with the credentials of another user, in that user's project.
    pub(super) async fn restart_as(self, user: &str) -> Self {
        let mut config = in_process::settings(&self.local);
        config.cloud.auth = in_process::auth(&self.local, user);
        let wire = Wire::new(&self.local);
        let client = Client::connect(&config, wire.clone())
            .await
            .unwrap()
            .with_limits(None);
        let balancers = LoadBalancers::new(client, self.settings.clone(), CLUSTER.into())
            .await
            .unwrap();
        Self { wire, balancers, events: Arc::default(), ..self }
    }

    /// As [`restart`](Self::restart), as the process of another cluster in the same project.
    pub(super) async fn restart_in(self, cluster: &str) -> Self {
        let (wire, balancers) = self.process_of(cluster).await;
        Self { wire, balancers, events: Arc::default(), ..self }
    }

    /// Starts a process of a cluster in the same project.
    pub(super) async fn process_of(&self, cluster: &str) -> (Arc<Wire>, LoadBalancers) {
        let wire = Wire::new(&self.local);
        let client = Client::connect(&in_process::settings(&self.local), wire.clone())
            .await
            .unwrap()
            .with_limits(None);
        let balancers = LoadBalancers::new(client, self.settings.clone(), cluster.into())
            .await
            .unwrap();
        wire.log.lock().clear();
        (wire, balancers)
    }

    /// As [`restart`](Self::restart), with budgets.
    pub(super) async fn restart_within(self, limits: &Limits) -> Self {
        Self::start_within(Some(limits), self.local, self.nodes, self.net, self.settings).await
    }

    /// As [`restart`](Self::restart), with other settings.
    pub(super) async fn restart_with(
        mut self,
        change: impl FnOnce(&mut LoadBalancerSettings),
    ) -> Self {
        change(&mut self.settings);
        self.restart().await
    }

    /// Takes the requests since the last time.
    pub(super) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.wire.log.lock())
    }

    pub(super) async fn change<T>(
        &self,
        change: impl FnOnce(&mut CloudState, &RequestContext) -> T,
    ) -> T {
        let ctx = ctx(&self.local, &self.net.project);
        self.local
            .cloud()
            .store
            .change(|state| Ok(change(state, &ctx)))
            .await
            .unwrap()
    }

    pub(super) async fn octavia(&self, change: impl FnOnce(&mut octavia::settings::Settings)) {
        self.change(|state, _| octavia::settings::Settings::change(state, change))
            .await;
    }

    pub(super) async fn add_node(&mut self) {
        let n = self.nodes.len();
        let net = self.net.clone();
        self.change(|state, ctx| node_port(state, ctx, &net, n))
            .await;
        self.nodes.push(node(n));
    }

    pub(super) fn op(&self) -> Op {
        Op::new(CLUSTER, CancellationToken::new(), WriteGate::always_open())
            .with_events(self.events.clone())
    }

    pub(super) fn spec(&self, service: &ServiceView) -> LbSpec {
        LbSpec {
            cluster: CLUSTER.into(),
            service: Arc::new(service.clone()),
            sources: SourceRanges::of(service).unwrap_or(SourceRanges::Only(Vec::new())),
            backends: Backends::Nodes(self.nodes.clone()),
        }
    }

    pub(super) async fn ensure(&self, service: &ServiceView, depth: ReadMode) -> LbOutcome {
        self.balancers
            .ensure(&self.op(), &self.spec(service), depth)
            .await
    }

    /// Ensures as the framework does: again, when it is asked to wait or has failed. Returns the
    /// Service as it is then.
    pub(super) async fn settle(&self, service: &ServiceView) -> ServiceView {
        match self.try_settle(service, 120).await {
            Ok(service) => service,
            Err(last) => panic!("{} does not settle: {last}", service.key()),
        }
    }

    pub(super) async fn try_settle(
        &self,
        service: &ServiceView,
        times: usize,
    ) -> Result<ServiceView, String> {
        self.try_settle_by(&self.balancers, service, times).await
    }

    /// As [`try_settle`](Self::try_settle), by another process.
    pub(super) async fn try_settle_by(
        &self,
        balancers: &LoadBalancers,
        service: &ServiceView,
        times: usize,
    ) -> Result<ServiceView, String> {
        let (mut waited, mut service, mut last) = (Duration::ZERO, service.clone(), String::new());
        for _ in 0..times {
            let op = self.op().with_pending_for(waited);
            let outcome = balancers
                .ensure(&op, &self.spec(&service), ReadMode::Fresh)
                .await;
            last = format!("{outcome:?}");
            service = published(&service, &outcome);
            let after = match outcome.result {
                Ok(Progress::Done) => return Ok(service),
                Ok(Progress::Pending { after, .. }) => after,
                Err(_) => Duration::from_secs(5),
            };
            tokio::time::sleep(after).await;
            waited += after;
        }
        Err(last)
    }

    /// Brings members in line as the framework does.
    pub(super) async fn update(&self, service: &ServiceView) -> Result<(), CloudError> {
        for _ in 0..30 {
            match self
                .balancers
                .update_backends(&self.op(), &self.spec(service))
                .await
                .result?
            {
                Progress::Done => return Ok(()),
                Progress::Pending { after, .. } => tokio::time::sleep(after).await,
            }
        }
        panic!("{} is not updated", service.key());
    }

    pub(super) async fn plan(
        &self,
        service: &ServiceView,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        self.balancers.plan(&self.op(), &self.spec(service)).await
    }

    pub(super) async fn delete(&self, service: &ServiceView) -> Result<Progress, CloudError> {
        self.balancers.delete(&self.op(), &reference(service)).await
    }

    /// Deletes as the framework does.
    pub(super) async fn remove(&self, service: &ServiceView) {
        let (mut waited, mut last) = (Duration::ZERO, String::new());
        for _ in 0..60 {
            let op = self.op().with_pending_for(waited);
            let result = self.balancers.delete(&op, &reference(service)).await;
            last = format!("{result:?}");
            let after = match result {
                Ok(Progress::Done) => return,
                Ok(Progress::Pending { after, .. }) => after,
                Err(_) => Duration::from_secs(5),
            };
            tokio::time::sleep(after).await;
            waited += after;
        }
        panic!("{} is not deleted: {last}", service.key());
    }

    /// Lets go of the load balancer as the framework does.
    pub(super) async fn retain(&self, service: &ServiceView) -> Result<RetainOutcome, CloudError> {
        for _ in 0..60 {
            match self
                .balancers
                .retain(&self.op(), &reference(service))
                .await?
            {
                RetainOutcome::Pending { after, .. } => tokio::time::sleep(after).await,
                outcome => return Ok(outcome),
            }
        }
        panic!("{} is not let go", service.key());
    }

    pub(super) fn reasons(&self) -> Vec<&'static str> {
        self.events
            .0
            .lock()
            .iter()
            .map(|(_, reason, _)| *reason)
            .collect()
    }

    pub(super) fn peek<T>(&self, read: impl FnOnce(&CloudState) -> T) -> T {
        self.local.cloud().store.peek(read)
    }

    pub(super) fn lbs(&self) -> Vec<LoadBalancer> {
        self.peek(|state| {
            state
                .octavia
                .load_balancers
                .iter()
                .map(|row| row.body.clone())
                .collect()
        })
    }

    pub(super) fn the_lb(&self) -> LoadBalancer {
        let mut all = self.lbs();
        assert_eq!(all.len(), 1, "{all:#?}");
        all.remove(0)
    }

    /// Returns listeners in the order of their ports.
    pub(super) fn listeners(&self) -> Vec<Listener> {
        let mut found: Vec<Listener> = self.peek(|state| {
            state
                .octavia
                .listeners
                .iter()
                .map(|row| row.body.clone())
                .collect()
        });
        found.sort_by_key(|listener| listener.protocol_port);
        found
    }

    /// Returns the members of the listener of a port.
    pub(super) fn members(&self, port: u16) -> Vec<Member> {
        let listener = self
            .listeners()
            .into_iter()
            .find(|listener| listener.protocol_port == port)
            .unwrap();
        let pool = listener.default_pool_id.unwrap();
        let mut found: Vec<Member> = self.peek(|state| {
            state
                .octavia
                .members
                .iter()
                .filter(|row| row.pool == pool)
                .map(|row| row.body.clone())
                .collect()
        });
        found.sort_by(|a, b| a.address.cmp(&b.address));
        found
    }

    pub(super) fn floating_ips(&self) -> Vec<FloatingIp> {
        self.peek(|state| {
            state
                .neutron
                .floating_ips
                .iter()
                .map(|row| FloatingIp::clone(row))
                .collect()
        })
    }

    pub(super) fn rules(&self) -> Vec<SecurityGroupRule> {
        self.peek(|state| {
            let group = state
                .neutron
                .security_groups
                .iter()
                .find(|group| group.name.starts_with("lb-sg-"));
            let Some(group) = group else {
                return Vec::new();
            };
            let rules = state.neutron.security_group_rules.iter();
            rules
                .filter(|rule| rule.security_group_id == group.id)
                .map(|rule| SecurityGroupRule::clone(rule))
                .collect()
        })
    }

    /// Returns the addresses of the ports that have a Service's security group.
    pub(super) fn admitted(&self) -> Vec<String> {
        self.peek(|state| {
            let group = state
                .neutron
                .security_groups
                .iter()
                .find(|group| group.name.starts_with("lb-sg-"));
            let Some(group) = group else {
                return Vec::new();
            };
            let ports = state
                .neutron
                .ports
                .iter()
                .filter(|port| port.security_groups.contains(&group.id));
            let mut found: Vec<_> = ports
                .map(|port| port.fixed_ips[0].ip_address.to_string())
                .collect();
            found.sort();
            found
        })
    }

    /// Describes everything that a cluster may leave behind, without IDs.
    pub(super) fn everything(&self) -> Vec<String> {
        let mut lines = Vec::new();
        self.peek(|state| {
            for row in state.octavia.load_balancers.iter() {
                let lb = &row.body;
                lines.push(format!("lb {} {:?} {}", lb.name, lb.tags, lb.provisioning_status));
            }
            for row in state.octavia.listeners.iter() {
                let (l, pool) = (&row.body, row.body.default_pool_id.is_some());
                let (limit, ranges) = (l.connection_limit, &l.allowed_cidrs);
                lines.push(format!(
                    "listener {} {} {} {:?} {limit} {ranges:?} {:?} pool {pool}",
                    l.name, l.protocol, l.protocol_port, l.tags, l.insert_headers
                ));
            }
            for row in state.octavia.pools.iter() {
                let (pool, listeners) = (&row.body, row.body.listeners.len());
                let monitor = pool.monitor.healthmonitor_id.is_some();
                lines.push(format!(
                    "pool {} {} {} {listeners} {monitor}",
                    pool.name, pool.protocol, pool.lb_algorithm
                ));
            }
            for row in state.octavia.members.iter() {
                let m = &row.body;
                let inside = m.subnet_id.as_deref() == Some(&*self.net.subnet);
                lines.push(format!(
                    "member {}:{} {inside} {:?}",
                    m.address, m.protocol_port, m.monitor_port
                ));
            }
            for row in state.octavia.monitors.iter() {
                lines.push(format!(
                    "monitor {} {} {}",
                    row.body.name, row.body.kind, row.body.delay
                ));
            }
            for floating in state.neutron.floating_ips.iter() {
                lines.push(format!(
                    "floating {:?} {}",
                    floating.standard.description,
                    floating.port_id.is_some()
                ));
            }
            for group in state.neutron.security_groups.iter() {
                lines.push(format!("group {}", group.name));
            }
            for rule in state.neutron.security_group_rules.iter() {
                lines.push(format!(
                    "rule {:?} {:?} {:?}",
                    rule.protocol, rule.port_range_min, rule.remote_ip_prefix
                ));
            }
            for port in state
                .neutron
                .ports
                .iter()
                .filter(|port| port.device_owner.starts_with("compute"))
            {
                lines.push(format!("port {} {}", port.device_id, port.security_groups.len()));
            }
        });
        lines.sort();
        lines
    }
}

fn ctx(local: &LocalCloud, project: &str) -> RequestContext {
    RequestContext {
        now: local.cloud().clock.now(),
        project: project.into(),
        user: "operator".into(),
        admin: true,
    }
}

/// Makes networks, a router and ports of nodes.
async fn build(local: &LocalCloud, nodes: usize) -> Net {
    let project: Box<str> = local.cloud().store.peek(|state| {
        let mut projects = state.keystone.projects.iter();
        projects
            .find(|project| project.name == "demo")
            .map(|project| project.id.as_str().into())
            .unwrap()
    });
    let ctx = ctx(local, &project);
    let built = local.cloud().store.change(|state| {
        let network = |name: &str, external: bool| NetworkCreate {
            name: Some(name.into()),
            external: external.then_some(true),
            ..NetworkCreate::default()
        };
        let subnet = |network: &str, cidr: &str| SubnetCreate {
            network_id: network.into(),
            ip_version: 4,
            cidr: Some(cidr.into()),
            ..SubnetCreate::default()
        };
        octavia::settings::Settings::change(state, |octavia| octavia.failover_needs_admin = false);
        let inner = neutron::networks::create(state, &ctx, network("nodes", false))?;
        let inner_subnet = neutron::subnets::create(state, &ctx, subnet(&inner.id, "10.0.0.0/16"))?;
        let outer = neutron::networks::create(state, &ctx, network("public", true))?;
        neutron::subnets::create(state, &ctx, subnet(&outer.id, "203.0.113.0/24"))?;
        let gateway = GatewayRequest {
            network_id: Some(outer.id.clone()),
            ..GatewayRequest::default()
        };
        let router = RouterCreate {
            external_gateway_info: Some(gateway),
            ..RouterCreate::default()
        };
        let router = neutron::routers::create(state, &ctx, router)?;
        neutron::router_interfaces::add(
            state,
            &ctx,
            &router.id,
            &openstack_local::api::neutron::InterfaceRequest {
                subnet_id: Some(inner_subnet.id.clone()),
                port_id: None,
            },
        )?;
        let net = Net {
            network: inner.id,
            subnet: inner_subnet.id,
            external: outer.id,
            project: ctx.project.clone(),
        };
        for n in 0..nodes {
            node_port(state, &ctx, &net, n);
        }
        Ok(net)
    });
    built.await.unwrap()
}

fn node_port(state: &mut CloudState, ctx: &RequestContext, net: &Net, n: usize) -> Port {
    let fixed = FixedIpRequest {
        subnet_id: Some(net.subnet.clone()),
        ip_address: address(n).parse().ok(),
    };
    let request = PortCreate {
        network_id: net.network.clone(),
        device_id: Some(format!("server-{n}")),
        device_owner: Some("compute:nova".into()),
        fixed_ips: Some(vec![fixed]),
        ..PortCreate::default()
    };
    neutron::ports::create(state, ctx, request).unwrap()
}

pub(super) fn address(n: usize) -> String {
    format!("10.0.10.{}", n + 10)
}

pub(super) fn node(n: usize) -> Arc<NodeView> {
    let addresses = [NodeAddress::new(AddressType::InternalIp, address(n))].into();
    let provider_id = Some(format!("openstack:///server-{n}").into());
    Arc::new(NodeView {
        addresses,
        provider_id,
        ..NodeView::named(&format!("node-{n}"))
    })
}

pub(super) fn reference(service: &ServiceView) -> LbRef {
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

/// Returns a Service as it is after an outcome was written down.
pub(super) fn published(service: &ServiceView, outcome: &LbOutcome) -> ServiceView {
    let mut service = service.clone();
    service.status = outcome.status.clone().unwrap_or(service.status);
    service.write_annotations(&outcome.annotations);
    service
}

/// A Service with TCP ports, each with node port 30000 more.
pub(super) fn service(name: &str, ports: &[u16]) -> ServiceView {
    let port = |number: &u16| ServicePort {
        name: format!("p{number}").into(),
        protocol: Protocol::Tcp,
        port: NonZeroU16::new(*number).unwrap(),
        node_port: NonZeroU16::new(30000 + number),
        target_port: "80".into(),
        app_protocol: None,
    };
    ServiceView {
        ports: ports.iter().map(port).collect(),
        ip_families: [IpFamily::V4].into(),
        uid: format!("uid-{name}").into(),
        annotations: BTreeMap::new(),
        ..ServiceView::named("ns", name)
    }
}

/// The same with an annotation.
pub(super) fn with(mut service: ServiceView, key: &str, value: &str) -> ServiceView {
    let key = if key.contains('/') {
        key.to_owned()
    } else {
        format!("{PREFIX}{key}")
    };
    service.annotations.insert(key.into(), value.into());
    service
}

pub(super) fn annotation<'a>(service: &'a ServiceView, key: &str) -> Option<&'a str> {
    service
        .annotations
        .get(&*format!("{PREFIX}{key}"))
        .map(|text| &**text)
}

pub(super) fn internal(service: ServiceView) -> ServiceView {
    with(service, "service.beta.kubernetes.io/openstack-internal-load-balancer", "true")
}

pub(super) fn shown(service: &ServiceView) -> String {
    let ingress = service.status.ingress.first();
    ingress
        .and_then(|ingress| ingress.ip)
        .map(|ip| ip.to_string())
        .unwrap_or_default()
}
