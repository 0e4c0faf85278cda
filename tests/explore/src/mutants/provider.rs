//! A provider with a bug.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use ccm_core::{
    k8s::{LbIngress, LbStatus, NodeFields, NodeView, ServiceView},
    provider::{
        BackendKind, Backends, BatchLimits, CloudError, CloudProvider, InstanceQuery,
        InstanceStatus, Instances, Inventory, LbOutcome, LbRef, LbSpec, LbSupport, LoadBalancers,
        NodeOwnership, NodeTarget, Op, OwnedObject, Owner, PlannedChange, Progress, ReadMode,
        Route, RouteChange, Routes, ServiceInterpretation,
    },
    write_gate::WriteGate,
};
use ccm_mock::{
    MockCloud, MockProvider,
    cloud::{LoadBalancer, LoadBalancerState},
};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Bug;

/// How long a late update takes.
const BEHIND: Duration = Duration::from_secs(3);

/// The mock provider with a bug.
pub(super) struct MutantProvider {
    bug: Bug,
    inner: Arc<MockProvider>,
    state: Mutex<MutantState>,
    count: AtomicU64,
    late: Mutex<JoinSet<()>>,
    /// Held by the one call that is under way.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct MutantState {
    /// Nodes that are taken for gone.
    gone: BTreeSet<Arc<str>>,
    /// Routes as last listed.
    routes: Vec<Route>,
    /// UIDs of Services whose balancers this process began to delete.
    begun: BTreeSet<Box<str>>,
}

impl MutantProvider {
    pub(super) fn new(bug: Bug, inner: Arc<MockProvider>) -> Self {
        let (state, count, late) =
            (Mutex::default(), AtomicU64::new(0), Mutex::new(JoinSet::new()));
        Self { bug, inner, state, count, late, turn: Arc::default() }
    }

    fn balancers(&self) -> &dyn LoadBalancers {
        self.inner
            .load_balancers()
            .expect("the mock has load balancers")
    }

    fn in_cloud(&self) -> Vec<LoadBalancer> {
        self.inner
            .cloud()
            .map(MockCloud::load_balancers)
            .unwrap_or_default()
    }

    /// Makes something else of whether an instance is there.
    fn misread(&self, answer: &mut Result<InstanceStatus, CloudError>, node: &NodeView) {
        let is_gone = matches!(answer, Ok(InstanceStatus::NotFound));
        match self.bug {
            // By now it is on the second page.
            Bug::FirstPage if &*node.name == "b" && !node.is_uninitialized() => {
                *answer = Ok(InstanceStatus::NotFound);
            }
            Bug::DoubtedForEver if is_gone => {
                *answer = Err(CloudError::transient("it may be somewhere else"));
            }
            Bug::GoneByName if is_gone => drop(self.state.lock().gone.insert(node.name.clone())),
            // One that joins is asked about anew.
            Bug::GoneByName
                if !node.is_uninitialized() && self.state.lock().gone.contains(&node.name) =>
            {
                *answer = Ok(InstanceStatus::NotFound);
            }
            _ => {}
        }
    }

    /// Makes a call in a task of its own, after the one before, however long either takes.
    async fn in_turn(&self, op: &Op, want: &LbSpec, depth: ReadMode) -> LbOutcome {
        let (inner, turn, want) = (self.inner.clone(), self.turn.clone(), want.clone());
        let op = Op::new(op.cluster_name(), CancellationToken::new(), WriteGate::always_open());
        let (tell, told) = tokio::sync::oneshot::channel();
        self.late.lock().spawn(async move {
            let _turn = turn.lock().await;
            if let Some(balancers) = inner.load_balancers() {
                // Nobody may be left to hear it.
                drop(tell.send(balancers.ensure(&op, &want, depth).await));
            }
        });
        told.await
            .unwrap_or_else(|_| LbOutcome::pending(BEHIND, "its turn"))
    }
}

impl CloudProvider for MutantProvider {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        match self.bug {
            Bug::StrangersClaimed if !node.is_ready() => NodeOwnership::Ours,
            _ => self.inner.node_ownership(node),
        }
    }

    fn mutation_operations(&self) -> &'static [&'static str] {
        self.inner.mutation_operations()
    }

    fn node_fields(&self) -> NodeFields {
        self.inner.node_fields()
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self)
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(self)
    }
}

#[async_trait]
impl Instances for MutantProvider {
    fn limits(&self) -> BatchLimits {
        self.inner
            .instances()
            .map(Instances::limits)
            .unwrap_or_default()
    }

    async fn describe(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError> {
        let inner = self.inner.instances().expect("the mock has instances");
        if self.bug == Bug::StrangersClaimed {
            let is_ours = |query: &&InstanceQuery| {
                self.inner.node_ownership(&query.node) == NodeOwnership::Ours
            };
            let ours: Vec<InstanceQuery> = queries.iter().filter(is_ours).cloned().collect();
            let mut answers = inner.describe(op, &ours).await?.into_iter();
            let each = queries.iter().map(|query| match is_ours(&query) {
                true => answers.next().unwrap_or(Ok(InstanceStatus::NotFound)),
                false => Ok(InstanceStatus::NotFound),
            });
            return Ok(each.collect());
        }
        let answers = inner.describe(op, queries).await;
        if matches!(self.bug, Bug::FirstPage | Bug::DoubtedForEver | Bug::GoneByName) {
            let mut answers = answers?;
            for (answer, query) in answers.iter_mut().zip(queries) {
                self.misread(answer, &query.node);
            }
            return Ok(answers);
        }
        if self.bug != Bug::GoneOnError {
            return answers;
        }
        let mut answers = match answers {
            Ok(answers) => answers,
            Err(_) => {
                let silent = queries
                    .iter()
                    .filter(|query| !query.node.is_ready())
                    .map(|query| query.node.name.clone());
                self.state.lock().gone.extend(silent);
                inner.describe(op, queries).await?
            }
        };
        let state = self.state.lock();
        for (answer, _) in answers
            .iter_mut()
            .zip(queries)
            .filter(|(_, query)| state.gone.contains(&query.node.name))
        {
            *answer = Ok(InstanceStatus::NotFound);
        }
        Ok(answers)
    }
}

#[async_trait]
impl LoadBalancers for MutantProvider {
    fn supports(&self) -> LbSupport {
        self.balancers().supports()
    }

    fn classes(&self) -> Vec<Box<str>> {
        let mut classes = self.balancers().classes();
        classes.extend((self.bug == Bug::ClassIgnored).then(|| "other.example/lb".into()));
        classes
    }

    fn node_target(&self) -> NodeTarget {
        match self.bug {
            Bug::StrangersLeftOut => NodeTarget::Instance,
            _ => self.balancers().node_target(),
        }
    }

    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation {
        self.balancers().interpret(service)
    }

    fn backends_of_invalid(&self, service: &ServiceView) -> Option<BackendKind> {
        self.balancers()
            .backends_of_invalid(service)
            .filter(|_| self.bug != Bug::InvalidLeftAlone)
    }

    async fn ensure(&self, op: &Op, want: &LbSpec, depth: ReadMode) -> LbOutcome {
        if self.bug == Bug::NoDeadline {
            return self.in_turn(op, want, depth).await;
        }
        let outcome = self.balancers().ensure(op, want, depth).await;
        match (self.bug, &outcome.result) {
            (Bug::StatusEarly, Err(_)) => LbOutcome::pending(BEHIND, "soon").with_status(guessed()),
            (Bug::NeverEqual, Ok(Progress::Done)) => {
                let count = self.count.fetch_add(1, Ordering::Relaxed);
                let result = Ok(Progress::Pending { after: BEHIND, reason: "not equal".into() });
                LbOutcome { result, ..outcome }
                    .with_annotation("mock.example/count", count.to_string())
            }
            _ => outcome,
        }
    }

    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        match self.bug {
            Bug::BackendsCleared => {
                let none = LbSpec { backends: Backends::Nodes(Vec::new()), ..want.clone() };
                let outcome = self.balancers().update_backends(op, &none).await;
                if outcome.result.is_err() {
                    return outcome;
                }
            }
            Bug::UpdateRacesDelete => {
                let (inner, op, want) = (self.inner.clone(), op.clone(), want.clone());
                self.late.lock().spawn(async move {
                    tokio::time::sleep(BEHIND).await;
                    if let Some(balancers) = inner.load_balancers() {
                        balancers.ensure(&op, &want, ReadMode::Fresh).await;
                    }
                });
            }
            _ => {}
        }
        self.balancers().update_backends(op, want).await
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        match self.bug {
            Bug::DeletionForgotten if self.state.lock().begun.insert(lb.uid.clone()) => {
                let mut rest = self
                    .in_cloud()
                    .into_iter()
                    .filter(|balancer| *balancer.uid == *lb.uid);
                if rest.any(|balancer| balancer.state == LoadBalancerState::Deleting) {
                    return Ok(Progress::Done);
                }
            }
            _ => {}
        }
        match (self.bug, self.balancers().delete(op, lb).await) {
            (Bug::FinalizerEarly, Ok(_)) | (Bug::DeletedOnError, Err(_)) => Ok(Progress::Done),
            (_, answer) => answer,
        }
    }

    fn stale_annotations(&self, lb: &LbRef) -> Vec<Box<str>> {
        self.balancers().stale_annotations(lb)
    }

    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        self.balancers().plan(op, want).await
    }
}

/// The address that a balancer will have, as somebody thinks.
fn guessed() -> LbStatus {
    let mut status = LbStatus::default();
    status.ingress.push(LbIngress {
        ip: Some(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1))),
        ..LbIngress::default()
    });
    status
}

#[async_trait]
impl Routes for MutantProvider {
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        let answer = self
            .inner
            .routes()
            .expect("the mock has routes")
            .list(op, nodes)
            .await;
        match answer {
            Err(_) if self.bug == Bug::RoutesPartial => {
                let known = self.state.lock().routes.clone();
                Ok(known
                    .into_iter()
                    .map(|route| Route { node: None, ..route })
                    .collect())
            }
            Ok(routes) => {
                self.state.lock().routes.clone_from(&routes);
                Ok(routes)
            }
            Err(error) => Err(error),
        }
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<Progress, CloudError>> {
        self.inner
            .routes()
            .expect("the mock has routes")
            .apply(op, changes)
            .await
    }
}

#[async_trait]
impl Inventory for MutantProvider {
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        self.inner
            .inventory()
            .expect("the mock keeps an inventory")
            .list_owned(op)
            .await
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        let inventory = self.inner.inventory().expect("the mock keeps an inventory");
        if let (Bug::DeletedByName, Owner::Service { namespace, name, .. }) =
            (self.bug, &object.owner)
        {
            let is_namesake = |other: &OwnedObject| match &other.owner {
                Owner::Service { namespace: place, name: other, .. } => {
                    (place, other) == (namespace, name)
                }
                _ => false,
            };
            for namesake in inventory
                .list_owned(op)
                .await?
                .into_iter()
                .filter(is_namesake)
            {
                inventory.delete_owned(op, &namesake).await?;
            }
        }
        inventory.delete_owned(op, object).await
    }
}
