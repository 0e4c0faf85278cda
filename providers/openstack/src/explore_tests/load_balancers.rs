//! Load balancers, from one state to another.

use std::{collections::BTreeSet, num::NonZeroU16, sync::Arc, time::Duration};

use anyhow::Context as _;
use async_trait::async_trait;
use ccm_core::{
    k8s::{IpFamily, Protocol, ServicePort, ServiceView},
    provider::{
        Backends, CloudProvider as _, ErrorKind, LbOutcome, LbRef, LbSpec, LoadBalancers, Progress,
        ReadMode, SourceRanges,
    },
};
use ccm_testkit::explore::{Call, FaultKind, Scenario, ScenarioRun};
use openstack_local::state::CloudState;

use super::{
    cloud::{CLUSTER, ExploredCloud, Kept, applies, op},
    explore,
    mutants::Bug,
};
use crate::{
    config::{LoadBalancer, Settings},
    conformance_tests::stage::balancers::members,
    lb::annotations::PREFIX,
    provider::OpenStackProvider,
};

/// How often something is asked for until it must be done.
const MOST_ROUNDS: usize = 120;

/// A Service and its nodes.
#[derive(Clone)]
struct ServiceInput {
    service: ServiceView,
    nodes: &'static [usize],
}

/// What is there, and what is to be then.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a circumstance of its own, and most cases have none"
)]
struct Case {
    name: &'static str,
    config: fn(&mut LoadBalancer),
    before: Option<ServiceInput>,
    then: Option<ServiceInput>,
    /// Only nodes change.
    update: bool,
    /// On a balancer of another Service.
    shared: bool,
    kept: Kept,
    bug: Option<Bug>,
    /// The Service is deleted once something goes wrong, and nothing was ever written down of it.
    given_up: bool,
    /// Another process goes on than the one that made what is there.
    restarts: bool,
    /// Connections have to break, since a listener or a pool cannot become what it is to be.
    breaks: bool,
}

impl Case {
    fn new(name: &'static str, before: Option<ServiceView>, then: Option<ServiceView>) -> Self {
        let wish = |service| ServiceInput { service, nodes: &[0, 1] };
        let (before, then) = (before.map(wish), then.map(wish));
        Self {
            name,
            config: |_| {},
            before,
            then,
            update: false,
            shared: false,
            kept: Kept::default(),
            bug: None,
            given_up: false,
            restarts: false,
            breaks: false,
        }
    }

    fn config(self, config: fn(&mut LoadBalancer)) -> Self {
        Self { config, ..self }
    }

    fn breaks(self) -> Self {
        Self { breaks: true, ..self }
    }

    fn given_up(self) -> Self {
        Self { given_up: true, ..self }
    }

    fn restarts(self) -> Self {
        Self { restarts: true, ..self }
    }

    fn shared(self) -> Self {
        Self { shared: true, ..self }
    }

    /// Has only nodes change.
    fn nodes(mut self, before: &'static [usize], then: &'static [usize]) -> Self {
        for (wish, nodes) in [(&mut self.before, before), (&mut self.then, then)] {
            if let Some(wish) = wish {
                wish.nodes = nodes;
            }
        }
        Self { update: true, ..self }
    }
}

/// A Service with TCP ports, each with node port 30000 more.
fn web(ports: &[u16]) -> ServiceView {
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
        uid: "uid-web".into(),
        ..ServiceView::named("ns", "web")
    }
}

fn with(mut service: ServiceView, key: &str, value: &str) -> ServiceView {
    let key = if key.contains('/') {
        key.to_owned()
    } else {
        format!("{PREFIX}{key}")
    };
    service.annotations.insert(key.into(), value.into());
    service
}

fn internal(service: ServiceView) -> ServiceView {
    with(service, "service.beta.kubernetes.io/openstack-internal-load-balancer", "true")
}

fn groups(settings: &mut LoadBalancer) {
    settings.manage_security_groups = true;
}

fn one_by_one(settings: &mut LoadBalancer) {
    (settings.serial_calls, settings.cascade_delete, settings.create_monitor) = (true, false, true);
}

fn limited(service: ServiceView) -> ServiceView {
    ServiceView { source_ranges: ["198.51.100.0/24".into()].into(), ..service }
}

fn created() -> Vec<Case> {
    let two = || Some(web(&[80, 443]));
    vec![
        Case::new("create", None, two()),
        Case::new("create one by one", None, Some(web(&[80]))).config(one_by_one),
        Case::new("create with groups", None, two()).config(groups),
        Case::new("create shared", None, Some(web(&[443]))).shared(),
    ]
}

fn changed() -> Vec<Case> {
    let two = || Some(web(&[80, 443]));
    let checked = |service| with(service, "enable-health-monitor", "true");
    let forwarded = |service| with(service, "x-forwarded-for", "true");
    vec![
        Case::new("change ports", two(), Some(web(&[443, 8443]))),
        Case::new(
            "change settings",
            two(),
            Some(limited(with(checked(web(&[80, 443])), "connection-limit", "99"))),
        ),
        Case::new("change with groups", two(), Some(web(&[80]))).config(groups),
        Case::new("change protocol", Some(checked(web(&[80]))), Some(forwarded(web(&[80]))))
            .breaks(),
        Case::new("change to external", Some(internal(web(&[80]))), Some(web(&[80]))),
        Case::new("change to internal", two(), Some(internal(web(&[80, 443])))),
        Case::new("change shared", Some(web(&[443])), Some(web(&[8443]))).shared(),
        Case::new(
            "change one by one",
            Some(web(&[80])),
            Some(with(web(&[80]), "proxy-protocol", "v1")),
        )
        .config(one_by_one)
        .breaks(),
        Case::new("change by another process", two(), Some(web(&[80])))
            .config(groups)
            .restarts(),
    ]
}

fn updated() -> Vec<Case> {
    let two = || Some(web(&[80, 443]));
    vec![
        Case::new("nodes with groups", two(), two())
            .nodes(&[0, 1], &[1, 2])
            .config(groups),
        Case::new("nodes", two(), two()).nodes(&[0, 1], &[1, 2]),
        Case::new("nodes one by one", Some(web(&[80])), Some(web(&[80])))
            .nodes(&[0, 1], &[1, 2])
            .config(one_by_one),
    ]
}

fn deleted() -> Vec<Case> {
    let two = || Some(web(&[80, 443]));
    vec![
        Case::new("delete", two(), None),
        Case::new("delete one by one", two(), None).config(one_by_one),
        Case::new("delete shared", Some(web(&[443])), None).shared(),
        Case::new("delete with groups", two(), None).config(groups),
        Case::new("delete by another process", two(), None)
            .config(groups)
            .restarts(),
    ]
}

fn given_up() -> Vec<Case> {
    vec![
        Case::new("give up", None, Some(web(&[80, 443]))).given_up(),
        Case::new("give up one by one", None, Some(web(&[80])))
            .config(one_by_one)
            .given_up(),
        Case::new("give up with groups", None, Some(web(&[80])))
            .config(groups)
            .given_up(),
    ]
}

/// A case with a bug.
pub(super) fn planted(name: &str, bug: Bug) -> Box<dyn Scenario> {
    let all = created()
        .into_iter()
        .chain(changed())
        .chain(updated())
        .chain(deleted());
    let case = all.into_iter().find(|case| case.name == name).unwrap();
    Box::new(Case { bug: Some(bug), ..case })
}

#[tokio::test(start_paused = true)]
async fn balancers_are_created_whatever_happens() {
    explore(created()).await;
}

#[tokio::test(start_paused = true)]
async fn balancers_are_changed_whatever_happens() {
    explore(changed()).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_come_and_go_whatever_happens() {
    explore(updated()).await;
}

#[tokio::test(start_paused = true)]
async fn balancers_are_deleted_whatever_happens() {
    explore(deleted()).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_never_finished_is_deleted_whole() {
    explore(given_up()).await;
}

#[async_trait]
impl Scenario for Case {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn applies(&self, kind: FaultKind, call: &Call) -> bool {
        applies(kind, call)
    }

    async fn run(&self, journey: &Arc<ScenarioRun>) -> Result<String, String> {
        self.go(journey).await.map_err(|error| format!("{error:#}"))
    }
}

/// What is asked for.
#[derive(Clone, Copy)]
enum DriverCall {
    Ensure,
    Update,
    Delete,
}

impl Case {
    // length: one scenario from the first process to the last, each step of which begins where the one before ended
    async fn go(&self, journey: &Arc<ScenarioRun>) -> anyhow::Result<String> {
        let config = self.config;
        let configure = move |settings: &mut Settings| {
            if let Some(balancers) = &mut settings.load_balancer {
                config(balancers);
            }
        };
        let world = self
            .kept
            .take(journey, ExploredCloud::new(journey, |_| {}, configure, 3))
            .await?
            .planted(self.bug);
        let mut tenant = ServiceDriver { world: &world, case: self, process: None };
        let (owner, alone) = match self.shared {
            true => {
                (Some(tenant.settle(DriverCall::Ensure, &owner()).await?), world.describe().await?)
            }
            false => (None, world.empty.clone()),
        };
        let on = owner.as_ref().and_then(|owner| {
            owner
                .service
                .annotations
                .get(&*format!("{PREFIX}load-balancer-id"))
        });
        let on = on.cloned();
        let place = |wish: &ServiceInput| match &on {
            Some(id) => ServiceInput {
                service: with(wish.service.clone(), "load-balancer-id", id),
                ..wish.clone()
            },
            None => wish.clone(),
        };
        let before = match self.before.as_ref().map(&place) {
            Some(wish) => Some(tenant.settle(DriverCall::Ensure, &wish).await?),
            None => None,
        };
        let last = before.clone();
        let then = self
            .then
            .as_ref()
            .map(|wish| next(last.as_ref(), &place(wish)));
        tenant.guard(owner.iter().chain(before.as_ref()), owner.iter().chain(then.as_ref()));
        // The process that goes on is one that made what is there, unless it dies; a process that
        // begins knows nothing.
        if self.restarts {
            tenant.process = None;
        }
        tenant.ready().await?;
        world.expect_others();
        journey.count(true);
        let done = match (&then, &before) {
            (Some(wish), _) if self.given_up => {
                tenant.try_once(wish).await?;
                tenant
                    .settle(DriverCall::Delete, wish)
                    .await
                    .map(|_| None)?
            }
            (Some(wish), _) => Some(
                tenant
                    .settle(
                        if self.update {
                            DriverCall::Update
                        } else {
                            DriverCall::Ensure
                        },
                        wish,
                    )
                    .await?,
            ),
            (None, Some(wish)) => tenant
                .settle(DriverCall::Delete, wish)
                .await
                .map(|_| None)?,
            (None, None) => None,
        };
        journey.count(false);
        if let Some(wish) = &done {
            tenant.is_ready(wish).await?;
        }
        world.others_come().await?;
        let end = world.describe().await?;
        world.others_go().await?;
        if let Some(wish) = &done {
            // Once is enough: every other run has the same end.
            if journey.faults().0.is_empty() {
                tenant.nothing_is_left_to_do(wish).await?;
            }
            tenant.settle(DriverCall::Delete, wish).await?;
        }
        same(&alone, &world.describe().await?).context("left behind after deletion")?;
        if let Some(wish) = &owner {
            tenant.settle(DriverCall::Delete, wish).await?;
            same(&world.empty, &world.describe().await?).context("left behind of the owner")?;
        }
        self.kept.put(world).await;
        let shown = done.map(|wish| !wish.service.status.ingress.is_empty());
        Ok(format!("{end}\nshown: {shown:?}"))
    }
}

/// The Service that a shared balancer was made for.
fn owner() -> ServiceInput {
    let service = ServiceView { uid: "uid-owner".into(), name: "owner".into(), ..web(&[80]) };
    ServiceInput { service, nodes: &[0, 1] }
}

/// A wish with what was published of the one before.
fn next(last: Option<&ServiceInput>, wish: &ServiceInput) -> ServiceInput {
    let Some(last) = last else {
        return wish.clone();
    };
    let mut service = ServiceView { status: last.service.status.clone(), ..wish.service.clone() };
    let written = last
        .service
        .annotations
        .iter()
        .filter(|(key, _)| key.contains("/load-balancer-"));
    service
        .annotations
        .extend(written.map(|(key, value)| (key.clone(), value.clone())));
    ServiceInput { service, ..wish.clone() }
}

fn same(wanted: &str, seen: &str) -> anyhow::Result<()> {
    let more: Vec<_> = seen
        .lines()
        .filter(|line| !wanted.lines().any(|known| known == *line))
        .collect();
    let less: Vec<_> = wanted
        .lines()
        .filter(|line| !seen.lines().any(|known| known == *line))
        .collect();
    anyhow::ensure!(wanted == seen, "more: {more:#?}, less: {less:#?}");
    Ok(())
}

/// Whoever looks after the Services of a case.
struct ServiceDriver<'a> {
    world: &'a ExploredCloud,
    case: &'a Case,
    process: Option<Arc<OpenStackProvider>>,
}

impl ServiceDriver<'_> {
    /// Makes a process, unless there is one.
    async fn ready(&mut self) -> anyhow::Result<Arc<OpenStackProvider>> {
        if let Some(process) = &self.process {
            return Ok(process.clone());
        }
        let process = self.world.process().await?;
        self.process = Some(process.clone());
        Ok(process)
    }

    fn spec(&self, wish: &ServiceInput) -> anyhow::Result<LbSpec> {
        let sources =
            SourceRanges::of(&wish.service).map_err(|mistakes| anyhow::anyhow!("{mistakes:?}"))?;
        let nodes = wish
            .nodes
            .iter()
            .map(|n| self.world.nodes[*n].clone())
            .collect();
        let service = Arc::new(wish.service.clone());
        Ok(LbSpec {
            cluster: CLUSTER.into(),
            service,
            sources,
            backends: Backends::Nodes(nodes),
        })
    }

    /// Asks until it is done, as the framework does. Returns the Service as it is then.
    async fn settle(
        &mut self,
        step: DriverCall,
        wish: &ServiceInput,
    ) -> anyhow::Result<ServiceInput> {
        let (mut wish, mut step, mut waited, mut last) =
            (wish.clone(), step, Duration::ZERO, String::new());
        for _ in 0..MOST_ROUNDS {
            let process = self.ready().await?;
            let balancers = process
                .load_balancers()
                .context("there are load balancers")?;
            let outcome = self
                .world
                .journey()
                .alive(self.once(balancers, step, &wish, waited))
                .await;
            let Some(outcome) = outcome else {
                // It died, and what it would have written down is not.
                self.process = None;
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            };
            let outcome = outcome?;
            last = format!("{:?}", outcome.result);
            publish(&mut wish.service, &outcome);
            let after = match outcome.result {
                Ok(Progress::Done) => return Ok(wish),
                Ok(Progress::Pending { after, .. }) => {
                    waited += after;
                    after
                }
                Err(error) => {
                    waited = Duration::ZERO;
                    match (step, error.kind()) {
                        (DriverCall::Update, ErrorKind::NotFound) => step = DriverCall::Ensure,
                        (DriverCall::Delete, ErrorKind::NotFound) => return Ok(wish),
                        _ => {}
                    }
                    error.retry_after().unwrap_or(Duration::from_secs(5))
                }
            };
            tokio::time::sleep(after).await;
        }
        anyhow::bail!("not done after {MOST_ROUNDS} rounds, the last one: {last}")
    }

    async fn once(
        &self,
        balancers: &dyn LoadBalancers,
        step: DriverCall,
        wish: &ServiceInput,
        waited: Duration,
    ) -> anyhow::Result<LbOutcome> {
        let op = op(waited);
        Ok(match step {
            DriverCall::Ensure => {
                balancers
                    .ensure(&op, &self.spec(wish)?, ReadMode::Cached)
                    .await
            }
            DriverCall::Update => balancers.update_backends(&op, &self.spec(wish)?).await,
            DriverCall::Delete => {
                let result = balancers.delete(&op, &reference(&wish.service)).await;
                LbOutcome {
                    status: None,
                    annotations: std::collections::BTreeMap::new(),
                    result,
                }
            }
        })
    }

    /// Asks until it is done or something goes wrong, and writes nothing down.
    async fn try_once(&mut self, wish: &ServiceInput) -> anyhow::Result<()> {
        let mut waited = Duration::ZERO;
        for _ in 0..MOST_ROUNDS {
            let process = self.ready().await?;
            let balancers = process
                .load_balancers()
                .context("there are load balancers")?;
            let outcome = self
                .world
                .journey()
                .alive(self.once(balancers, DriverCall::Ensure, wish, waited))
                .await;
            match outcome.transpose()?.map(|outcome| outcome.result) {
                Some(Ok(Progress::Pending { after, .. })) => {
                    waited += after;
                    tokio::time::sleep(after).await;
                }
                Some(_) => return Ok(()),
                None => {
                    self.process = None;
                    return Ok(());
                }
            }
        }
        anyhow::bail!("neither done nor failed after {MOST_ROUNDS} rounds")
    }

    /// Checks that what is said to be done is.
    async fn is_ready(&self, wish: &ServiceInput) -> anyhow::Result<()> {
        let wanted = self.serving(wish);
        let open = self.world.site.read_state(|state| {
            let busy = state
                .octavia
                .load_balancers
                .iter()
                .find(|row| row.body.provisioning_status.as_str() != "ACTIVE");
            let busy =
                busy.map(|row| format!("{} is {}", row.body.name, row.body.provisioning_status));
            let closed = wanted
                .iter()
                .find(|(service, port, node)| !is_served(state, service, *port, node));
            busy.or_else(|| {
                closed
                    .map(|(service, port, node)| format!("port {port} of {service} has no {node}"))
            })
        });
        let open = open.await?;
        anyhow::ensure!(open.is_none(), "the Service is done but not ready: {open:?}");
        Ok(())
    }

    /// What is served of a wish: Service, port, and address of the node.
    fn serving(&self, wish: &ServiceInput) -> Vec<(String, u16, String)> {
        let nodes = wish
            .nodes
            .iter()
            .map(|n| self.world.nodes[*n].addresses[0].address.to_string());
        let ports: Vec<_> = wish
            .service
            .ports
            .iter()
            .map(|port| port.port.get())
            .collect();
        let name = wish.service.name.to_string();
        let each = move |node: String| {
            let name = name.clone();
            ports
                .clone()
                .into_iter()
                .map(move |port| (name.clone(), port, node.clone()))
        };
        nodes.flat_map(each).collect()
    }

    /// Asks a process that knows nothing.
    async fn nothing_is_left_to_do(&mut self, wish: &ServiceInput) -> anyhow::Result<()> {
        self.process = None;
        let process = self.ready().await?;
        let balancers = process
            .load_balancers()
            .context("there are load balancers")?;
        let planned = balancers
            .plan(&op(Duration::ZERO), &self.spec(wish)?)
            .await?;
        anyhow::ensure!(planned.is_empty(), "done, but there is left to do: {planned:?}");
        Ok(())
    }

    /// Has what is served and is to be served stay so at every moment.
    fn guard<'w>(
        &self,
        before: impl Iterator<Item = &'w ServiceInput>,
        then: impl Iterator<Item = &'w ServiceInput>,
    ) {
        if self.case.breaks {
            return;
        }
        let before: BTreeSet<_> = before.flat_map(|wish| self.serving(wish)).collect();
        let then: BTreeSet<_> = then.flat_map(|wish| self.serving(wish)).collect();
        let stays: Vec<_> = before.intersection(&then).cloned().collect();
        self.world.watch(Box::new(move |state| {
            let lost = stays
                .iter()
                .find(|(service, port, node)| !is_served(state, service, *port, node));
            lost.map(|(service, port, node)| {
                format!("port {port} of {service} does not lead to {node} any more")
            })
        }));
    }
}

/// Tells whether a port of a Service leads to a node.
fn is_served(state: &CloudState, service: &str, port: u16, node: &str) -> bool {
    let tag = format!("kube_service_{CLUSTER}_ns_{service}");
    let mine = state
        .octavia
        .listeners
        .iter()
        .map(|row| &row.body)
        .filter(|listener| listener.tags.contains(&tag));
    let stays = |status: &openstack_local::api::octavia::ProvisioningStatus| {
        status.as_str() != "PENDING_DELETE"
    };
    let mut open = mine
        .filter(|listener| listener.protocol_port == port && stays(&listener.provisioning_status));
    open.any(|listener| {
        members(state, listener)
            .any(|member| member.address == *node && stays(&member.provisioning_status))
    })
}

fn publish(service: &mut ServiceView, outcome: &LbOutcome) {
    service.status = outcome
        .status
        .clone()
        .unwrap_or_else(|| service.status.clone());
    service.write_annotations(&outcome.annotations);
}

fn reference(service: &ServiceView) -> LbRef {
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
