//! A cloud with things of others in it, and a way there on which faults happen.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use ccm_core::{k8s::NodeView, provider::Op, write_gate::WriteGate};
use ccm_testkit::explore::{Call, FaultKind, ScenarioRun};
use http::{Request, Response};
use openstack_local::api::{
    neutron::{AddressPair, FloatingIpCreate, PortUpdate, Route, SecurityGroupCreate},
    octavia::LoadBalancerCreate,
};
use openstack_local::{
    neutron, octavia,
    server::{Fault, FaultKind as CloudFaultKind, Settings as CloudSettings},
    state::{ApiError, CloudState, RequestContext},
};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::mutants::{Bug, MutantTransport};
use crate::{
    client::{Client, Transport, TransportError},
    config::Settings,
    conformance_tests::{
        Memory,
        stage::cloud::{CloudBackend as _, SharedNetwork, Site, is_write},
    },
    provider::OpenStackProvider,
};

/// Name of the cluster.
pub(super) const CLUSTER: &str = "ours";
/// How long nothing is heard of a request whose answer never comes.
const SILENCE: Duration = Duration::from_secs(60);
/// How long an answer takes that comes late.
const LATE: Duration = Duration::from_secs(40);
/// A security group of others.
const FOREIGN_GROUP: &str = "lb-sg-uid-web2-ns-web";
/// A network to which others have a route.
const FOREIGN_NETWORK: &str = "10.99.0.0/24";
/// What a proxy says.
const PAGE: &str = "<html><body>Please sign in</body></html>";
/// What a busy load balancer says.
const BUSY: &str = "Load Balancer 7a3c is immutable and cannot be updated.";

/// Tells what must hold at every moment and does not; nothing where all is well.
pub(super) type Watch = Box<dyn Fn(&CloudState) -> Option<String> + Send + Sync>;

/// The way to the cloud.
struct FaultyTransport {
    site: Site,
    journey: Mutex<Arc<ScenarioRun>>,
    watch: Mutex<Option<Watch>>,
    /// What was seen first that must not be.
    seen: Mutex<Option<String>>,
    /// Who comes while a request is late.
    others: Mutex<Option<OtherTenant>>,
}

/// Somebody else, who uses the cluster's router and the ports of its nodes too.
#[derive(Clone)]
struct OtherTenant {
    router: String,
    route: Route,
    servers: Vec<String>,
    group: String,
}

impl OtherTenant {
    /// Has a route added, and a group on all ports.
    fn come(&self, state: &mut CloudState, ctx: &RequestContext) -> Result<(), ApiError> {
        neutron::extra_routes::add(state, ctx, &self.router, vec![self.route.clone()])?;
        self.groups(state, ctx, |groups| groups.push(self.group.clone()))
    }

    /// Takes it away again.
    fn go(&self, state: &mut CloudState, ctx: &RequestContext) -> Result<(), ApiError> {
        neutron::extra_routes::remove(state, ctx, &self.router, &[self.route.clone()])?;
        self.groups(state, ctx, |groups| groups.retain(|id| *id != self.group))
    }

    fn groups(
        &self,
        state: &mut CloudState,
        ctx: &RequestContext,
        change: impl Fn(&mut Vec<String>),
    ) -> Result<(), ApiError> {
        let ports = self
            .servers
            .iter()
            .flat_map(|server| neutron::ports::of_device(state, server));
        let ports: Vec<_> = ports
            .map(|port| (port.id.clone(), port.security_groups.clone()))
            .collect();
        for (port, mut groups) in ports {
            change(&mut groups);
            let update = PortUpdate { security_groups: Some(groups), ..PortUpdate::default() };
            neutron::ports::update(state, ctx, &port, update)?;
        }
        Ok(())
    }
}

fn lost(message: &str) -> TransportError {
    TransportError {
        message: format!("{message} (ordered by the test)"),
        maybe_sent: true,
        source: None,
    }
}

impl FaultyTransport {
    /// Has others come who were expected.
    async fn come(&self) -> anyhow::Result<()> {
        let others = self.others.lock().take();
        match others {
            Some(others) => self.site.change(|state, ctx| others.come(state, ctx)).await,
            None => Ok(()),
        }
    }

    async fn done(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let what = format!("{} {}", request.method(), request.uri().path());
        let answer = self.site.transport.send(request).await;
        let wrong = self
            .site
            .local
            .cloud()
            .store
            .peek(|state| self.watch.lock().as_ref().and_then(|watch| watch(state)));
        if let Some(wrong) = wrong {
            self.seen
                .lock()
                .get_or_insert(format!("after {what}: {wrong}"));
        }
        answer
    }

    async fn spoilt(
        &self,
        request: Request<Bytes>,
        kind: CloudFaultKind,
    ) -> Result<Response<Bytes>, TransportError> {
        let path = request.uri().path().trim_end_matches('/').to_owned();
        let fault = Fault::new(path, kind)
            .method(request.method().as_str())
            .times(1);
        self.site.local.cloud().faults.add(fault);
        self.done(request).await
    }
}

#[async_trait]
impl Transport for FaultyTransport {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let what = format!("{} {}", request.method(), request.uri().path());
        let journey = self.journey.lock().clone();
        let Some(kind) = journey.begin(Call { writes: is_write(&request), what }) else {
            return self.done(request).await;
        };
        let throttled =
            |code, after| CloudFaultKind::Status { code, retry_after: Some(after), message: None };
        match kind {
            FaultKind::DiesBefore => match journey.die().await {},
            FaultKind::DiesAfter => {
                drop(self.done(request).await);
                match journey.die().await {}
            }
            FaultKind::AnswerLost => {
                self.done(request).await?;
                Err(lost("the connection broke"))
            }
            FaultKind::TimesOut => {
                tokio::time::sleep(SILENCE).await;
                Err(lost("nothing was heard"))
            }
            FaultKind::Delayed => {
                tokio::time::sleep(LATE).await;
                self.come()
                    .await
                    .map_err(|error| lost(&format!("{error:#}")))?;
                self.done(request).await
            }
            FaultKind::CutShort => self.spoilt(request, CloudFaultKind::Cut { after: 7 }).await,
            FaultKind::Garbage => {
                self.spoilt(request, CloudFaultKind::Body { code: 200, text: PAGE.to_owned() })
                    .await
            }
            FaultKind::StrangeAbsence => {
                self.spoilt(request, CloudFaultKind::Body { code: 404, text: PAGE.to_owned() })
                    .await
            }
            FaultKind::Unauthorized => self.spoilt(request, CloudFaultKind::status(401)).await,
            FaultKind::Busy => {
                let message = request
                    .uri()
                    .path()
                    .starts_with("/load-balancer")
                    .then(|| BUSY.to_owned());
                self.spoilt(
                    request,
                    CloudFaultKind::Status { code: 409, retry_after: None, message },
                )
                .await
            }
            FaultKind::Throttled => self.spoilt(request, throttled(429, 7)).await,
            FaultKind::OverLimit => self.spoilt(request, throttled(413, 3)).await,
            FaultKind::Broken => self.spoilt(request, CloudFaultKind::status(500)).await,
            FaultKind::Unavailable => self.spoilt(request, CloudFaultKind::status(503)).await,
            // Reads of this cloud are of the present.
            FaultKind::Stale | FaultKind::Lagging => self.done(request).await,
        }
    }
}

/// Tells whether a kind of fault can happen to a request.
pub(super) fn applies(kind: FaultKind, call: &Call) -> bool {
    !kind.is_past() && (kind != FaultKind::Busy || call.writes)
}

/// A cloud with a project in it.
pub(super) struct ExploredCloud {
    pub(super) site: Site,
    pub(super) place: SharedNetwork,
    pub(super) nodes: Vec<Arc<NodeView>>,
    lane: Arc<FaultyTransport>,
    config: Box<dyn Fn(&mut Settings) + Send + Sync>,
    /// Things of others as they are to stay.
    foreign: BTreeMap<String, Value>,
    /// How it is before anything was asked for.
    pub(super) empty: String,
    /// What the provider does wrong.
    bug: Option<Bug>,
    /// Who may come.
    others: Option<OtherTenant>,
}

impl ExploredCloud {
    pub(super) async fn new(
        journey: &Arc<ScenarioRun>,
        cloud: fn(&mut CloudSettings),
        config: impl Fn(&mut Settings) + Send + Sync + 'static,
        nodes: usize,
    ) -> anyhow::Result<Self> {
        let site = Memory(cloud).start().await?;
        let place = site.furnish().await?;
        let mut world = Self {
            lane: Arc::new(FaultyTransport {
                site: site.clone(),
                journey: Mutex::new(journey.clone()),
                watch: Mutex::default(),
                seen: Mutex::default(),
                others: Mutex::default(),
            }),
            site,
            place,
            nodes: Vec::new(),
            config: Box::new(config),
            foreign: BTreeMap::new(),
            empty: String::new(),
            bug: None,
            others: None,
        };
        world.foreign = world.make_foreign().await?;
        for n in 0..nodes {
            let name = format!("node-{n}");
            let (server, _) = world.site.launch(&world.place, &name).await?;
            world
                .nodes
                .push(Arc::new(world.site.node(&name, &server).await?));
        }
        world.others = Some(world.make_others().await?);
        world.empty = world.describe().await?;
        Ok(world)
    }

    /// Makes things that are not the cluster's, as close to its own as they come, and returns them.
    async fn make_foreign(&self) -> anyhow::Result<BTreeMap<String, Value>> {
        let (server, ip) = self.site.launch(&self.place, "appliance").await?;
        let place = self.place.clone();
        let balancers = ["kube_service_theirs_ns_web", "kube_service_ours_ns_web2", "by-hand"];
        let ids = self.site.change(move |state, ctx| {
            for name in balancers {
                let more = json!({"name": name, "vip_subnet_id": place.subnet, "listeners": [{
                    "name": "listener_0", "protocol": "TCP", "protocol_port": 80,
                    "default_pool": {"name": "pool_0", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "members": [
                        {"address": ip.to_string(), "protocol_port": 30080}]}}]});
                let body: LoadBalancerCreate = serde_json::from_value(more).expect("a body");
                octavia::load_balancers::create(state, ctx, body)?;
            }
            let description = Some("Floating IP for Kubernetes external service ns/web from cluster theirs".into());
            let request = FloatingIpCreate {
                floating_network_id: place.external.clone(),
                description,
                ..FloatingIpCreate::default()
            };
            neutron::floating_ips::create(state, ctx, request)?;
            let description = Some("Security Group for ns/web Service LoadBalancer in cluster theirs".into());
            let request =
                SecurityGroupCreate { name: Some(FOREIGN_GROUP.into()), description, ..SecurityGroupCreate::default() };
            let group = neutron::security_groups::create(state, ctx, request)?.id;
            let port = neutron::ports::of_device(state, &server)[0].clone();
            let groups = port.security_groups.iter().cloned().chain([group]).collect();
            let pairs = Some(vec![AddressPair { ip_address: FOREIGN_NETWORK.into(), mac_address: None }]);
            let update =
                PortUpdate { security_groups: Some(groups), allowed_address_pairs: pairs, ..PortUpdate::default() };
            neutron::ports::update(state, ctx, &port.id, update)?;
            let route = Route { destination: FOREIGN_NETWORK.into(), nexthop: ip.to_string() };
            neutron::extra_routes::add(state, ctx, &place.routers[0], vec![route])?;
            Ok(())
        });
        ids.await?;
        // Until they serve.
        self.site
            .local
            .cloud()
            .clock
            .advance(Duration::from_secs(60));
        self.site.read_state(rows).await
    }

    /// Makes a process, as often as it takes: one that cannot start is started again.
    pub(super) async fn process(&self) -> anyhow::Result<Arc<OpenStackProvider>> {
        let mut settings = self.site.settings()?;
        self.place.configure(&mut settings, true);
        (self.config)(&mut settings);
        let mut last = None;
        for _ in 0..20 {
            let made = self
                .journey()
                .alive(Box::pin(self.connect(settings.clone())))
                .await;
            match made {
                Some(Ok(provider)) => return Ok(Arc::new(provider)),
                Some(Err(error)) => last = Some(error),
                None => {}
            }
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("it dies again and again")))
            .context("the process does not start")
    }

    async fn connect(&self, settings: Settings) -> anyhow::Result<OpenStackProvider> {
        let way: Arc<dyn Transport> = match self.bug {
            Some(bug) => Arc::new(MutantTransport::new(bug, self.lane.clone())),
            None => self.lane.clone(),
        };
        let client = Client::connect(&settings, way).await?.with_limits(None);
        Ok(OpenStackProvider::connect(settings, client, CLUSTER.into()).await?)
    }

    /// Returns the journey that is under way.
    pub(super) fn journey(&self) -> Arc<ScenarioRun> {
        self.lane.journey.lock().clone()
    }

    /// Has the provider do something wrong, or nothing.
    pub(super) fn planted(self, bug: Option<Bug>) -> Self {
        Self { bug, ..self }
    }

    /// Has somebody else change the router and the nodes' ports while a request is late.
    pub(super) fn expect_others(&self) {
        *self.lane.others.lock() = self.others.clone();
    }

    /// Has those come who were expected and did not come yet, so that the end is the same.
    pub(super) async fn others_come(&self) -> anyhow::Result<()> {
        self.lane.come().await
    }

    /// Undoes what others did.
    pub(super) async fn others_go(&self) -> anyhow::Result<()> {
        match &self.others {
            Some(others) => self.site.change(|state, ctx| others.go(state, ctx)).await,
            None => Ok(()),
        }
    }

    async fn make_others(&self) -> anyhow::Result<OtherTenant> {
        let router = self.place.routers[0].clone();
        let (routes, group) = self
            .site
            .read_state(|state| {
                let routes = state
                    .neutron
                    .routers
                    .get(&router)
                    .map(|router| router.routes.clone());
                let group = state
                    .neutron
                    .security_groups
                    .iter()
                    .find(|group| group.name == FOREIGN_GROUP);
                (routes, group.map(|group| group.id.clone()))
            })
            .await?;
        let theirs = routes
            .unwrap_or_default()
            .into_iter()
            .find(|route| route.destination == FOREIGN_NETWORK);
        let nexthop = theirs.context("others have a route")?.nexthop;
        let id = |node: &Arc<NodeView>| {
            node.provider_id
                .as_deref()
                .and_then(|id| id.rsplit('/').next())
                .map(str::to_owned)
        };
        Ok(OtherTenant {
            router,
            route: Route { destination: "10.98.0.0/24".into(), nexthop },
            servers: self.nodes.iter().filter_map(id).collect(),
            group: group.context("others have a group")?,
        })
    }

    /// Has something hold at every moment from now on.
    pub(super) fn watch(&self, watch: Watch) {
        *self.lane.watch.lock() = Some(watch);
    }

    /// Ends the watch, and describes all that is not of others: what there is and how, without IDs,
    /// times and chance.
    ///
    /// # Errors
    /// What happened meanwhile that must not.
    pub(super) async fn describe(&self) -> anyhow::Result<String> {
        self.lane.watch.lock().take();
        if let Some(seen) = self.lane.seen.lock().take() {
            anyhow::bail!("{seen}");
        }
        let (mut now, routes) = self
            .site
            .read_state(|state| (rows(state), routes(state).collect::<Vec<_>>()))
            .await?;
        for (id, was) in &self.foreign {
            let is = now.remove(id);
            anyhow::ensure!(
                is.as_ref() == Some(was),
                "somebody else's {id} was {was} and became {is:?}"
            );
        }
        let mut lines: Vec<String> = now
            .into_values()
            .map(|row| plain(row).to_string())
            .chain(routes)
            .collect();
        lines.sort();
        Ok(lines.join("\n"))
    }
}

/// The cloud of a scenario: from run to run the same, unless a run left it otherwise than it found
/// it.
#[derive(Default)]
pub(super) struct Kept(tokio::sync::Mutex<Option<ExploredCloud>>);

impl Kept {
    /// Takes it, or makes one.
    pub(super) async fn take(
        &self,
        journey: &Arc<ScenarioRun>,
        make: impl Future<Output = anyhow::Result<ExploredCloud>>,
    ) -> anyhow::Result<ExploredCloud> {
        let Some(world) = self.0.lock().await.take() else {
            return make.await;
        };
        *world.lane.journey.lock() = journey.clone();
        Ok(world)
    }

    /// Puts it back as it was found.
    pub(super) async fn put(&self, world: ExploredCloud) {
        *self.0.lock().await = Some(world);
    }
}

/// Makes the operation of one call, as the framework does.
pub(super) fn op(pending_for: Duration) -> Op {
    let op = Op::new(CLUSTER, CancellationToken::new(), WriteGate::always_open());
    op.with_deadline(tokio::time::Instant::now() + Duration::from_secs(120))
        .with_pending_for(pending_for)
}

/// Everything that a provider may change, by ID.
fn rows(state: &CloudState) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let mut add = |kind: &str, id: &str, row: Value| drop(all.insert(format!("{kind} {id}"), row));
    let (octavia, neutron) = (&state.octavia, &state.neutron);
    octavia
        .load_balancers
        .iter()
        .for_each(|row| add("load balancer", &row.body.id, value("load balancer", &row.body)));
    octavia
        .listeners
        .iter()
        .for_each(|row| add("listener", &row.body.id, value("listener", &row.body)));
    octavia
        .pools
        .iter()
        .for_each(|row| add("pool", &row.body.id, value("pool", &row.body)));
    octavia
        .members
        .iter()
        .for_each(|row| add("member", &row.body.id, value("member", &row.body)));
    octavia
        .monitors
        .iter()
        .for_each(|row| add("monitor", &row.body.id, value("monitor", &row.body)));
    neutron
        .floating_ips
        .iter()
        .for_each(|row| add("floating IP", &row.id, value("floating IP", &**row)));
    neutron
        .security_groups
        .iter()
        .for_each(|row| add("group", &row.id, value("group", &**row)));
    neutron
        .security_group_rules
        .iter()
        .for_each(|row| add("rule", &row.id, value("rule", &**row)));
    neutron
        .ports
        .iter()
        .for_each(|row| add("port", &row.id, value("port", &**row)));
    all
}

/// Routes of all routers.
fn routes(state: &CloudState) -> impl Iterator<Item = String> {
    let of = |router: &Arc<openstack_local::api::neutron::Router>| router.routes.clone();
    state
        .neutron
        .routers
        .iter()
        .flat_map(of)
        .map(|route| format!("route {} via {}", route.destination, route.nexthop))
}

fn value(kind: &str, row: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(row).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("kind".to_owned(), kind.into());
    }
    value
}

/// What differs between two things that are the same.
const CHANCE: [&str; 9] = [
    "id",
    "created_at",
    "updated_at",
    "revision_number",
    "mac_address",
    "vip_address",
    "floating_ip_address",
    "fixed_ip_address",
    "port_details",
];

/// Puts in place of IDs whether there are any, and how many.
fn plain(mut row: Value) -> Value {
    if let Some(fields) = row.as_object_mut() {
        // Addresses of servers are those that were asked for; all others are given by chance.
        let given = fields
            .get("device_owner")
            .and_then(Value::as_str)
            .is_some_and(|who| !who.starts_with("compute:"));
        fields.retain(|name, _| !(CHANCE.contains(&name.as_str()) || given && name == "fixed_ips"));
        for (name, value) in fields.iter_mut() {
            let ids = |list: &Vec<Value>| {
                !list.is_empty() && list.iter().all(|one| one.get("id").is_some())
            };
            match value {
                Value::Array(list) if ids(list) || name == "security_groups" => {
                    *value = list.len().into();
                }
                Value::Array(list) => {
                    for one in list.iter_mut() {
                        *one = plain(one.take());
                    }
                    // Sets, all of them, in the order in which somebody added to them.
                    list.sort_by_cached_key(Value::to_string);
                }
                Value::Object(_) => *value = plain(value.take()),
                Value::String(text) if name.ends_with("_id") || text.starts_with(BY_ID) => {
                    *value = "some".into();
                }
                _ => {}
            }
        }
    }
    row
}

/// Begins the names of ports that are called by an ID.
const BY_ID: &str = "octavia-lb-";
