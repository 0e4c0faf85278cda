//! Brings one Service's balancer in line: look, plan, carry out.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use ccm_core::{
    k8s::ServiceView,
    provider::{BackendSet, CloudError, Depth, Digest, ErrorKind, EventKind, LbOutcome, Op, Progress},
};
use openstack_api::octavia::ProvisioningStatus;
use tokio::time::Instant;

use super::{
    annotations,
    api::Api,
    apply::{self, Ended},
    body,
    features::Features,
    floating::{self, Matter, Networks},
    memory::{Attached, Known, Memory},
    model::{Group, Wanted},
    nodes::{self, Backend, WantedMember},
    observe::{self, Question},
    ownership::{Standing, standing},
    plan::{self, Change, Side, Step},
    polls::Polls,
    security::{Groups, Task, listed::Listed},
    seen::Seen,
    settings::Settings,
    status,
    sweep::Sweeps,
};
use crate::client::{Call, Client, Meaning, OsError};

/// How long something that was broken off, with a picture that holds, is taken up without reading everything again.
const TAKEN_UP: Duration = Duration::from_secs(600);
/// How long a look that was broken off goes on with the balancer as it was: what is read later is newer.
const GOES_ON: Duration = Duration::from_secs(120);
/// Most steps of one call; what is left is taken up by the next.
const MOST_STEPS: usize = 500;

/// Everything that works on load balancers.
pub(super) struct Core {
    pub(super) client: Client,
    pub(super) settings: Settings,
    pub(super) features: Features,
    pub(super) cluster: Arc<str>,
    pub(super) memory: Memory,
    pub(super) networks: Networks,
    pub(super) groups: Groups,
    pub(super) sweeps: Sweeps,
    pub(super) polls: Polls,
}

/// What is asked for.
pub(super) struct Order<'a> {
    pub(super) wanted: &'a Wanted,
    pub(super) service: &'a ServiceView,
    pub(super) backends: Vec<Backend>,
    /// Whether the Service is invalid, so that only addresses of members can be believed.
    pub(super) invalid: bool,
}

impl<'a> Order<'a> {
    pub(super) fn new(wanted: &'a Wanted, service: &'a ServiceView, backends: &BackendSet) -> Self {
        // Endpoints are never asked for by `interpret`.
        Self { wanted, service, backends: nodes::backends(backends.nodes(), wanted.family), invalid: false }
    }

    fn members(&self) -> Vec<Vec<WantedMember>> {
        self.wanted.listeners.iter().map(|listener| nodes::members(&listener.pool, &self.backends)).collect()
    }
}

/// Why bringing in line ended before its end.
pub(super) enum Halt {
    /// Later again.
    Wait(Progress),
    /// It failed.
    Failed(CloudError),
}

impl From<CloudError> for Halt {
    fn from(error: CloudError) -> Self {
        Self::Failed(error)
    }
}

impl From<OsError> for Halt {
    fn from(error: OsError) -> Self {
        match error.turn_after() {
            // That our own budget is used up is nothing that the cloud said.
            Some(after) => Self::Wait(Progress::Pending { after, why: error.to_string().into() }),
            None => Self::Failed(error.into()),
        }
    }
}

impl Core {
    pub(super) fn api<'a>(&'a self, op: &'a Op) -> Api<'a> {
        Api { client: &self.client, op }
    }

    /// Makes everything as wanted, as far as it goes at once: Octavia takes one change at a time.
    pub(super) async fn ensure(&self, op: &Op, order: &Order<'_>, depth: Depth) -> LbOutcome {
        let uid = &order.wanted.owner.uid;
        let mut known = self.memory.take(uid);
        (known.deleting, known.given_up) = (None, false);
        let mut shown = None;
        let result = match self.bring(op, order, depth, &mut known, &mut shown).await {
            Ok(()) => Ok(Progress::Done),
            Err(Halt::Wait(progress)) => Ok(progress),
            Err(Halt::Failed(error)) => Err(unsettled(error)),
        };
        let outcome = publish(order, &known, shown, result);
        self.settle_memory(&mut known, &outcome.result);
        self.memory.put(uid, known);
        outcome
    }

    async fn bring(
        &self,
        op: &Op,
        order: &Order<'_>,
        depth: Depth,
        known: &mut Known,
        shown: &mut Option<IpAddr>,
    ) -> Result<(), Halt> {
        let in_line =
            |(wanted, backends): &(Arc<Wanted>, Vec<Backend>)| **wanted == *order.wanted && *backends == order.backends;
        if depth == Depth::Trust && !known.unfinished && known.applied.as_ref().is_some_and(in_line) {
            *shown = address_known(order, known);
            return Ok(());
        }
        let first = known.applied.take().is_none();
        self.look(op, order, depth, known).await?;
        if known.seen.is_none() {
            self.create(op, order, known).await?;
        }
        self.ready(op, order, known).await?;
        self.steps(op, order, known, Self::everything).await?;
        *shown = Some(self.front(op, order, known, first).await?);
        self.group(op, order, known).await?;
        known.applied = Some((Arc::new(order.wanted.clone()), order.backends.clone()));
        Ok(())
    }

    /// Looks at what there is, as deep as it has to be.
    pub(super) async fn look(&self, op: &Op, order: &Order<'_>, depth: Depth, known: &mut Known) -> Result<(), Halt> {
        let fresh = known.read_at.is_some_and(|at| at.elapsed() < TAKEN_UP);
        if known.seen.is_some() && (depth == Depth::Trust || known.unfinished && fresh) {
            return Ok(());
        }
        // The look was broken off for want of turns: the children are still to be read.
        let lately = known.read_at.is_some_and(|at| at.elapsed() < GOES_ON);
        if known.seen.is_some() && !known.complete && lately {
            return Ok(());
        }
        let api = self.api(op);
        known.group = None;
        known.floating = Attached::Unread;
        if known.seen.is_some() && known.complete && observe::refresh(api, known).await?.is_some() {
            return Ok(());
        }
        known.doubt();
        let question = Question::of(&self.cluster, &order.wanted.owner, order.service);
        // What was never served is in no list.
        if question.served
            && let Some(swept) = self.sweeps.find(api, &self.memory.rounds, &question, known.touched).await?
        {
            (known.seen, known.floating) = (Some(swept.seen), swept.floating);
            (known.read_at, known.shared, known.listed) = (Some(swept.read_at), true, swept.listed);
            return Ok(());
        }
        known.seen = observe::locate(api, &question).await?.map(Seen::bare);
        known.read_at = Some(Instant::now());
        known.as_of = self.memory.rounds.now();
        Ok(())
    }

    /// Reads the children of the balancer where they are not known.
    pub(super) async fn children(&self, op: &Op, order: &Order<'_>, known: &mut Known) -> Result<(), Halt> {
        let Some(seen) = known.seen.as_mut().filter(|_| !known.complete) else { return Ok(()) };
        let standing = self.standing(order, seen);
        if known.shared {
            observe::members(self.api(op), seen, &standing).await?;
        } else {
            observe::children(self.api(op), seen, &standing).await?;
        }
        known.complete = true;
        Ok(())
    }

    /// Looks again at a balancer of which a reading in common told, because it is to be changed. Tells whether it did.
    async fn look_again(&self, op: &Op, known: &mut Known, step: &Step) -> Result<bool, Halt> {
        let Some(seen) = &mut known.seen else { return Err(gone().into()) };
        if !known.shared || matches!(step.change, Change::SetMembers(..)) {
            return Ok(false);
        }
        let Some(balancer) = self.api(op).balancer(&seen.balancer.id).await? else { return Err(gone().into()) };
        seen.balancer = balancer;
        (known.shared, known.complete, known.floating) = (false, false, Attached::Unread);
        (known.read_at, known.as_of) = (Some(Instant::now()), self.memory.rounds.now());
        Ok(true)
    }

    /// Makes the balancer. It has its name and its tag from the first, so that it is found again whatever happens.
    async fn create(&self, op: &Op, order: &Order<'_>, known: &mut Known) -> Result<(), Halt> {
        let api = self.api(op);
        let wanted = order.wanted;
        if order.backends.is_empty() && wanted.front.port.is_none() && !is_placed(wanted) {
            let message = "no node has an address, and neither subnet nor network of the load balancer is configured";
            return Err(CloudError::invalid_input(message).into());
        }
        self.check_certificates(api, wanted).await?;
        let subnet = if is_placed(wanted) { None } else { Some(self.subnet_of_nodes(api, order).await?) };
        let body =
            body::load_balancer(wanted, &order.members(), subnet.as_deref(), self.features, self.settings.serial);
        known.unfinished = true;
        let tree = api.create_balancer(&body, "there is none").await?;
        let populated = !body.listeners.is_empty() && tree.listeners.len() == body.listeners.len();
        known.seen = Some(Seen::of_tree(tree));
        // A driver that makes children by and by is asked for them.
        known.complete = populated || body.listeners.is_empty();
        known.waiting = None;
        known.touch(self.memory.rounds.now());
        // A port that was made with it has no floating IP.
        if wanted.front.port.is_none() {
            known.floating = Attached::Nothing;
        }
        Ok(())
    }

    /// Checks certificates before a listener refers to them.
    async fn check_certificates(&self, api: Api<'_>, wanted: &Wanted) -> Result<(), Halt> {
        let Some(reference) = wanted.listeners.iter().find_map(|listener| listener.tls_container.as_deref()) else {
            return Ok(());
        };
        if !self.settings.barbican || api.has_certificate(reference).await? {
            return Ok(());
        }
        Err(CloudError::invalid_input(format!("certificate {reference} is not there")).into())
    }

    /// Finds the subnet of the first node's port that has the address which the balancer sends to.
    async fn subnet_of_nodes(&self, api: Api<'_>, order: &Order<'_>) -> Result<String, Halt> {
        let first = order.backends.iter().find_map(|backend| Some((backend.server.as_deref()?, backend.address)));
        let Some((server, address)) = first else {
            let message = "no node says which server it is, and neither subnet nor network is configured";
            return Err(CloudError::transient(message).into());
        };
        let ports = api.ports_of(&[server]).await?;
        let mut fixed = ports.iter().flat_map(|port| &port.fixed_ips);
        let found = fixed.find(|fixed| fixed.ip_address == address).map(|fixed| fixed.subnet_id.clone());
        found.ok_or_else(|| {
            CloudError::transient(format!("no port of server {server} has the address {address}")).into()
        })
    }

    /// Says how a Service stands to the balancer that is known.
    pub(super) fn standing(&self, order: &Order<'_>, seen: &Seen) -> Standing {
        standing(&self.cluster, &order.wanted.owner, observe::is_shown(order.service), &seen.balancer)
    }

    pub(super) fn side<'a>(&'a self, order: &'a Order<'_>, seen: &'a Seen, standing: &'a Standing) -> Side<'a> {
        let wanted = order.wanted;
        let exact = wanted.member_subnet.as_deref();
        let named = exact.or(wanted.vip_subnet.as_deref());
        Side {
            seen,
            standing,
            features: self.features,
            serial: self.settings.serial,
            name: &wanted.name,
            subnet: named.or(seen.balancer.vip_subnet_id.as_deref()),
            exact_subnet: exact,
        }
    }

    pub(super) fn everything(&self, order: &Order<'_>, side: &Side<'_>) -> Result<Vec<Step>, CloudError> {
        plan::plan(side, order.wanted, &order.members(), self.settings.max_shared)
    }

    /// Carries out a plan step by step, and makes it anew after each.
    async fn steps(
        &self,
        op: &Op,
        order: &Order<'_>,
        known: &mut Known,
        plan: impl Fn(&Self, &Order<'_>, &Side<'_>) -> Result<Vec<Step>, CloudError> + Send + Sync,
    ) -> Result<(), Halt> {
        for _ in 0..MOST_STEPS {
            self.children(op, order, known).await?;
            let Some(seen) = &known.seen else { return Err(gone().into()) };
            let standing = self.standing(order, seen);
            let mut steps = plan(self, order, &self.side(order, seen, &standing))?;
            steps.retain(|step| !is_refused(known, step));
            let Some(step) = steps.first() else { return Ok(()) };
            if self.look_again(op, known, step).await? {
                self.ready(op, order, known).await?;
                continue;
            }
            if matches!(step.change.call(), Call::ListenerCreate | Call::ListenerUpdate) {
                self.check_certificates(self.api(op), order.wanted).await?;
            }
            self.step(op, known, step).await?;
            self.ready(op, order, known).await?;
        }
        Err(CloudError::transient(format!("load balancer {} changes while it is brought in line", order.wanted.name))
            .into())
    }

    /// Carries out one step. A balancer that is busy is waited for.
    pub(super) async fn step(&self, op: &Op, known: &mut Known, step: &Step) -> Result<(), Halt> {
        let Some(mut seen) = known.seen.take() else { return Err(gone().into()) };
        known.unfinished = true;
        match apply::apply(self.api(op), &mut seen, step).await {
            Ok(Ended::Done) => {
                known.seen = Some(seen);
                known.waiting = None;
                known.touch(self.memory.rounds.now());
                Ok(())
            }
            Ok(Ended::Replan) => Err(gone().into()),
            Err(error) if error.is_immutable() => {
                seen.balancer.provisioning_status = ProvisioningStatus::PendingUpdate;
                // Somebody else is at it: what he changes is not known.
                known.complete = false;
                let why = format!("load balancer {} is busy", seen.balancer.id);
                known.seen = Some(seen);
                Err(self.pending(op, known, &why))
            }
            Err(error) if error.turn_after().is_some() => {
                known.seen = Some(seen);
                Err(error.into())
            }
            Err(error) => {
                let refused = matches!(error.meaning(), Meaning::Invalid | Meaning::Unsupported);
                if let (Some((pool, method)), true) = (apply::only_method(step), refused) {
                    let note = format!("pool {pool} keeps its algorithm: {error}");
                    op.event(EventKind::Warning, "LoadBalancerLbMethodUnknown", &note);
                    known.refused_method = Some((pool.into(), method.into()));
                    known.seen = Some(seen);
                    return Ok(());
                }
                Err(error.into())
            }
        }
    }

    /// Brings the floating IP in line and returns the address of the Service.
    async fn front(&self, op: &Op, order: &Order<'_>, known: &mut Known, first: bool) -> Result<IpAddr, Halt> {
        let Some(seen) = known.seen.take() else { return Err(gone().into()) };
        let standing = self.standing(order, &seen);
        let address = self.matter(op, order, &standing).settle(known, &seen).await;
        let vip = floating::vip_of(&seen);
        known.seen = Some(seen);
        if first && !order.wanted.internal && vip.is_ok_and(|vip| vip.is_ipv6()) {
            let note = "the load balancer has an IPv6 address: there is no floating IP for it";
            op.event(EventKind::Warning, "LoadBalancerFloatingIPSkipped", note);
        }
        Ok(address?)
    }

    pub(super) fn matter<'a>(&'a self, op: &'a Op, order: &'a Order<'_>, standing: &'a Standing) -> Matter<'a> {
        Matter { api: self.api(op), cluster: &self.cluster, networks: &self.networks, wanted: order.wanted, standing }
    }

    pub(super) fn task<'a>(group: &'a Group, order: &'a Order<'_>, seen: &'a Seen) -> Result<Task<'a>, CloudError> {
        let named = order.wanted.member_subnet.as_deref().or(order.wanted.vip_subnet.as_deref());
        let subnet = named.or(seen.balancer.vip_subnet_id.as_deref());
        let missing = || CloudError::invalid_input("the subnet of members is not known: name it by member-subnet-id");
        Ok(Task { group, subnet: subnet.ok_or_else(missing)?, backends: &order.backends })
    }

    /// Brings the security group in line, or takes one away that is left from when there was to be one.
    async fn group(&self, op: &Op, order: &Order<'_>, known: &mut Known) -> Result<(), Halt> {
        let (api, owner) = (self.api(op), &order.wanted.owner);
        let Some(seen) = &known.seen else { return Err(gone().into()) };
        match &order.wanted.group {
            Some(group) => {
                let task = Self::task(group, order, seen)?;
                let surplus = self.admit(op, task, &mut known.group, &mut known.listed).await?;
                Groups::revoke(api, &surplus).await?;
                known.group = Some(task.digest());
                Ok(())
            }
            None => {
                let name = super::names::security_group(&owner.uid, &owner.namespace, &owner.name);
                match self.groups.remove(api, &name, |_| true).await? {
                    Progress::Done => Ok(()),
                    pending @ Progress::Pending { .. } => Err(Halt::Wait(pending)),
                }
            }
        }
    }

    /// Lets the balancer reach its nodes at the ports that it serves as yet. What else the group admits stays: a change that
    /// was refused may still need it.
    async fn admit_to_served(&self, op: &Op, order: &Order<'_>, known: &mut Known) -> Result<(), Halt> {
        let Some(seen) = &known.seen else { return Err(gone().into()) };
        let standing = self.standing(order, seen);
        let Some(group) = self.side(order, seen, &standing).group_of_served(order.wanted) else { return Ok(()) };
        let task = Self::task(&group, order, seen)?;
        self.admit(op, task, &mut known.group, &mut known.listed).await?;
        Ok(())
    }

    /// Makes the group admit what the task says, unless it is known to. Returns the rules that it has besides; `in_line`: to
    /// what it was completely brought.
    async fn admit(
        &self,
        op: &Op,
        task: Task<'_>,
        in_line: &mut Option<Digest>,
        listed: &mut Option<Listed>,
    ) -> Result<Vec<String>, CloudError> {
        let digest = task.digest();
        if *in_line == Some(digest) {
            return Ok(Vec::new());
        }
        *in_line = None;
        let surplus = match self.is_listed_in_line(op, task, listed).await? {
            true => Vec::new(),
            false => self.groups.admit(self.api(op), task).await?,
        };
        *in_line = surplus.is_empty().then_some(digest);
        Ok(surplus)
    }

    /// Tells whether the reading that was shared shows the security group as wanted. It is used once.
    pub(super) async fn is_listed_in_line(
        &self,
        op: &Op,
        task: Task<'_>,
        listed: &mut Option<Listed>,
    ) -> Result<bool, CloudError> {
        match listed.take().filter(|listed| listed.begun.elapsed() < GOES_ON) {
            Some(listed) => self.groups.are_in_line(self.api(op), task, &listed).await,
            None => Ok(false),
        }
    }

    /// Brings the members in line and nothing else: of what is known, without asking.
    pub(super) async fn update_backends(&self, op: &Op, order: &Order<'_>) -> LbOutcome {
        let uid = &order.wanted.owner.uid;
        let mut known = self.memory.take(uid);
        let before = known.applied.take();
        let result = match self.bring_backends(op, order, &mut known).await {
            Ok(()) => {
                let same = |(wanted, _): &(Arc<Wanted>, Vec<Backend>)| **wanted == *order.wanted;
                known.applied = before.filter(same).map(|(wanted, _)| (wanted, order.backends.clone()));
                Ok(Progress::Done)
            }
            Err(Halt::Wait(progress)) => {
                known.applied = before;
                Ok(progress)
            }
            Err(Halt::Failed(error)) => Err(error),
        };
        self.settle_memory(&mut known, &result);
        self.memory.put(uid, known);
        LbOutcome { status: None, annotations: BTreeMap::new(), result }
    }

    /// Keeps of what is known what still holds.
    fn settle_memory(&self, known: &mut Known, result: &Result<Progress, CloudError>) {
        match result {
            Ok(Progress::Done) => (known.unfinished, known.waiting) = (false, None),
            Ok(Progress::Pending { .. }) => {}
            // What was refused before it was sent has changed nothing.
            Err(error) if error.kind() == ErrorKind::NotLeader => {}
            Err(_) => {
                known.doubt();
                known.touch(self.memory.rounds.now());
            }
        }
    }

    async fn bring_backends(&self, op: &Op, order: &Order<'_>, known: &mut Known) -> Result<(), Halt> {
        if known.seen.is_none() {
            self.look(op, order, Depth::Verify, known).await?;
        }
        if known.seen.is_none() {
            let message = format!("load balancer {} is not there", order.wanted.name);
            return Err(CloudError::new(ErrorKind::NotFound, message).into());
        }
        self.ready(op, order, known).await?;
        let members = |_: &Self, order: &Order<'_>, side: &Side<'_>| {
            let plan = if order.invalid { plan::following } else { plan::membership };
            Ok(plan(side, order.wanted, &order.members()))
        };
        self.steps(op, order, known, members).await?;
        self.admit_to_served(op, order, known).await
    }
}

/// Tells whether a step does no more than choose an algorithm that the cloud refused.
pub(super) fn is_refused(known: &Known, step: &Step) -> bool {
    let refused = known.refused_method.as_ref().map(|(pool, method)| (&**pool, &**method));
    refused.is_some() && apply::only_method(step) == refused
}

fn address_known(order: &Order<'_>, known: &Known) -> Option<IpAddr> {
    let floating = known.floating.get().filter(|_| !order.wanted.internal);
    let floating = floating.and_then(|floating| floating.floating_ip_address);
    floating.or_else(|| floating::vip_of(known.seen.as_ref()?).ok())
}

/// Tells whether somebody says where the VIP is to be.
fn is_placed(wanted: &Wanted) -> bool {
    let front = &wanted.front;
    front.port.is_some() || front.subnet.is_some() || front.network.is_some()
}

/// What was to be changed is not there: looked at again shortly.
pub(super) fn gone() -> CloudError {
    CloudError::transient("the load balancer changed meanwhile").with_retry_after(Duration::from_secs(1))
}

/// An answer that something is not there says nothing about the balancer as a whole.
pub(super) fn unsettled(error: CloudError) -> CloudError {
    match error.kind() {
        ErrorKind::NotFound => CloudError::transient(error.to_string()).with_source(error),
        _ => error,
    }
}

/// Makes the outcome: with the ID and the address as soon as the balancer serves. Until then its name finds it: an ID would
/// be taken for one that a person wrote down, whose balancer has to be there.
fn publish(order: &Order<'_>, known: &Known, shown: Option<IpAddr>, result: Result<Progress, CloudError>) -> LbOutcome {
    let mut outcome = LbOutcome { status: None, annotations: BTreeMap::new(), result };
    let mut annotate = |row: &annotations::Annotation, value: String| {
        let key = row.key();
        if order.service.annotations.get(&*key).is_none_or(|text| **text != *value) {
            outcome.annotations.insert(key, Some(value.into()));
        }
    };
    let serves = shown.is_some() || observe::is_served(order.service);
    let made = |seen: &&Seen| seen.balancer.provisioning_status != ProvisioningStatus::PendingCreate;
    if let Some(seen) = known.seen.as_ref().filter(|seen| serves && made(seen)) {
        annotate(&annotations::LOAD_BALANCER_ID, seen.balancer.id.clone());
    }
    if let Some(address) = shown {
        annotate(&annotations::LOAD_BALANCER_ADDRESS, address.to_string());
        outcome.status = Some(status::of(address, &order.wanted.shown));
    }
    let id = annotations::LOAD_BALANCER_ID.key();
    if known.given_up && order.service.annotations.contains_key(&*id) {
        outcome.annotations.insert(id, None);
    }
    outcome
}
