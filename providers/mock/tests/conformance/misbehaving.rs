//! A provider that hangs, panics or lies in one of its methods.

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{
    k8s::{LbIngress, LbStatus, NodeView, ServiceView},
    provider::{
        BatchLimits, CloudError, CloudProvider, InstanceQuery, InstanceStatus, Instances,
        Inventory, LbOutcome, LbRef, LbSpec, LbSupport, LoadBalancers, NodeOwnership, Op,
        OwnedObject, PlannedChange, Progress, ProviderContext, ReadMode, Route, RouteChange,
        Routes, ServiceInterpretation,
    },
};
use ccm_mock::MockProvider;
use std::time::Duration;

/// Where it does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MisbehavingMethod {
    Constructor,
    Name,
    ClaimsNode,
    Limits,
    Describe,
    Supports,
    Interpret,
    Ensure,
    Update,
    Delete,
    Plan,
    ListOwned,
    DeleteOwned,
    List,
    Apply,
    Start,
}

impl MisbehavingMethod {
    /// Methods that can wait.
    pub(crate) const ASYNC: [Self; 11] = [
        Self::Constructor,
        Self::Describe,
        Self::Ensure,
        Self::Update,
        Self::Delete,
        Self::Plan,
        Self::ListOwned,
        Self::DeleteOwned,
        Self::List,
        Self::Apply,
        Self::Start,
    ];

    /// Returns a rule that this place breaks, with its suite; those of all suites for the
    /// constructor.
    pub(crate) fn rules(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Constructor => &[
                ("instances", "one-answer-per-query"),
                ("load balancers", "claims-its-services"),
                ("routes", "listed-as-made"),
            ],
            Self::Name => &[("instances", "provider-id-scheme")],
            Self::ClaimsNode => &[("instances", "foreign-nodes-left-alone")],
            Self::Limits | Self::Describe => &[("instances", "one-answer-per-query")],
            Self::Supports | Self::Interpret => &[("load balancers", "claims-its-services")],
            Self::Ensure => &[("load balancers", "ensure-makes-one")],
            Self::Update => &[("load balancers", "update-members-only")],
            Self::Delete => &[("load balancers", "delete-removes-everything")],
            Self::Plan => &[("load balancers", "plan-names-changes")],
            Self::ListOwned => &[("load balancers", "owned-is-listed")],
            Self::DeleteOwned => &[("load balancers", "only-owned-is-deleted")],
            Self::List | Self::Apply => &[("routes", "listed-as-made")],
            Self::Start => &[("instances", "start-ends")],
        }
    }
}

/// What it does there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misbehaviour {
    /// Nothing, for ever.
    Hangs,
    /// One page after the other, for ever.
    Pages,
    Panics,
    /// It spawns a task that panics, and goes on.
    SpawnsPanic,
    /// It keeps its thread.
    Blocks,
    /// It says that there is nothing, or that all is done, and does nothing.
    Lies,
    /// It answers too little.
    TooFew,
    /// It answers with what belongs to others.
    Others,
    /// It waits for the cloud, for ever.
    Waits,
}

/// The mock provider, wicked in one place.
pub(crate) struct MisbehavingProvider {
    inner: MockProvider,
    place: MisbehavingMethod,
    manner: Misbehaviour,
}

impl MisbehavingProvider {
    pub(crate) async fn new(
        inner: MockProvider,
        place: MisbehavingMethod,
        manner: Misbehaviour,
    ) -> Self {
        let wicked = Self { inner, place, manner };
        wicked.misbehave(MisbehavingMethod::Constructor).await;
        wicked
    }

    fn is(&self, place: MisbehavingMethod, manner: Misbehaviour) -> bool {
        (self.place, self.manner) == (place, manner)
    }

    /// What can happen where nothing can be waited for.
    fn passes(&self, place: MisbehavingMethod) {
        assert!(!self.is(place, Misbehaviour::Panics), "planted");
        while self.is(place, Misbehaviour::Blocks) {
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    async fn misbehave(&self, place: MisbehavingMethod) {
        self.passes(place);
        if self.place != place {
            return;
        }
        match self.manner {
            Misbehaviour::Hangs => std::future::pending().await,
            Misbehaviour::Pages => loop {
                tokio::task::yield_now().await;
            },
            _ if self.is(place, Misbehaviour::SpawnsPanic) => {
                // Nobody awaits it, which is the bug.
                drop(tokio::spawn(async { panic!("planted in a task") }));
                tokio::task::yield_now().await;
            }
            _ => {}
        }
    }

    fn pending() -> Progress {
        Progress::Pending {
            after: Duration::from_secs(5),
            reason: "the cloud is at it".into(),
        }
    }

    fn balancers(&self) -> &dyn LoadBalancers {
        self.inner.load_balancers().unwrap()
    }
}

#[async_trait]
impl CloudProvider for MisbehavingProvider {
    fn name(&self) -> &str {
        self.passes(MisbehavingMethod::Name);
        self.inner.name()
    }

    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        self.passes(MisbehavingMethod::ClaimsNode);
        self.inner.node_ownership(node)
    }

    fn mutation_operations(&self) -> &'static [&'static str] {
        self.inner.mutation_operations()
    }

    async fn start(&self, ctx: ProviderContext) -> Result<(), CloudError> {
        self.misbehave(MisbehavingMethod::Start).await;
        self.inner.start(ctx).await
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
impl Instances for MisbehavingProvider {
    fn limits(&self) -> BatchLimits {
        self.passes(MisbehavingMethod::Limits);
        self.inner.instances().unwrap().limits()
    }

    async fn describe(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError> {
        self.misbehave(MisbehavingMethod::Describe).await;
        let mut answers = self
            .inner
            .instances()
            .unwrap()
            .describe(op, queries)
            .await?;
        match self.manner {
            _ if self.place != MisbehavingMethod::Describe || answers.is_empty() => {}
            Misbehaviour::Lies => answers.fill(Ok(InstanceStatus::NotFound)),
            Misbehaviour::TooFew => answers.truncate(answers.len() - 1),
            Misbehaviour::Others => answers.rotate_left(1),
            _ => {}
        }
        Ok(answers)
    }
}

#[async_trait]
impl LoadBalancers for MisbehavingProvider {
    fn supports(&self) -> LbSupport {
        self.passes(MisbehavingMethod::Supports);
        self.balancers().supports()
    }

    fn classes(&self) -> Vec<Box<str>> {
        self.balancers().classes()
    }

    fn supports_endpoint_backends(&self) -> bool {
        self.balancers().supports_endpoint_backends()
    }

    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation {
        self.passes(MisbehavingMethod::Interpret);
        self.balancers().interpret(service)
    }

    async fn ensure(&self, op: &Op, want: &LbSpec, depth: ReadMode) -> LbOutcome {
        self.misbehave(MisbehavingMethod::Ensure).await;
        let entry = LbIngress { ip: "192.0.2.1".parse().ok(), ..LbIngress::default() };
        match self.manner {
            Misbehaviour::Lies if self.place == MisbehavingMethod::Ensure => {
                LbOutcome::done(LbStatus { ingress: vec![entry] })
            }
            Misbehaviour::Waits if self.place == MisbehavingMethod::Ensure => {
                LbOutcome::pending(Duration::from_secs(5), "at it")
            }
            _ => self.balancers().ensure(op, want, depth).await,
        }
    }

    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        self.misbehave(MisbehavingMethod::Update).await;
        match self.manner {
            Misbehaviour::Lies if self.place == MisbehavingMethod::Update => {
                LbOutcome { status: None, ..LbOutcome::done(LbStatus::default()) }
            }
            Misbehaviour::Waits if self.place == MisbehavingMethod::Update => {
                LbOutcome::pending(Duration::from_secs(5), "at it")
            }
            _ => self.balancers().update_backends(op, want).await,
        }
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        self.misbehave(MisbehavingMethod::Delete).await;
        match self.manner {
            Misbehaviour::Lies if self.place == MisbehavingMethod::Delete => Ok(Progress::Done),
            Misbehaviour::Waits if self.place == MisbehavingMethod::Delete => Ok(Self::pending()),
            _ => self.balancers().delete(op, lb).await,
        }
    }

    fn stale_annotations(&self, lb: &LbRef) -> Vec<Box<str>> {
        self.balancers().stale_annotations(lb)
    }

    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        self.misbehave(MisbehavingMethod::Plan).await;
        match self.is(MisbehavingMethod::Plan, Misbehaviour::Lies) {
            true => Ok(Vec::new()),
            false => self.balancers().plan(op, want).await,
        }
    }
}

#[async_trait]
impl Inventory for MisbehavingProvider {
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        self.misbehave(MisbehavingMethod::ListOwned).await;
        let mut listed = self.inner.inventory().unwrap().list_owned(op).await?;
        match self.manner {
            Misbehaviour::Lies if self.place == MisbehavingMethod::ListOwned => listed.clear(),
            Misbehaviour::TooFew if self.place == MisbehavingMethod::ListOwned => {
                drop(listed.pop());
            }
            _ => {}
        }
        Ok(listed)
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        self.misbehave(MisbehavingMethod::DeleteOwned).await;
        match self.manner {
            Misbehaviour::Lies if self.place == MisbehavingMethod::DeleteOwned => {
                op.may_write().map(|()| Progress::Done)
            }
            Misbehaviour::Waits if self.place == MisbehavingMethod::DeleteOwned => {
                op.may_write().map(|()| Self::pending())
            }
            _ => {
                self.inner
                    .inventory()
                    .unwrap()
                    .delete_owned(op, object)
                    .await
            }
        }
    }
}

#[async_trait]
impl Routes for MisbehavingProvider {
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        self.misbehave(MisbehavingMethod::List).await;
        let mut routes = self.inner.routes().unwrap().list(op, nodes).await?;
        match self.manner {
            Misbehaviour::Lies if self.place == MisbehavingMethod::List => routes.clear(),
            Misbehaviour::TooFew if self.place == MisbehavingMethod::List => drop(routes.pop()),
            _ => {}
        }
        Ok(routes)
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<Progress, CloudError>> {
        self.misbehave(MisbehavingMethod::Apply).await;
        if self.is(MisbehavingMethod::Apply, Misbehaviour::Lies) {
            return vec![Ok(Progress::Done); changes.len()];
        }
        let mut answers = self.inner.routes().unwrap().apply(op, changes).await;
        match self.manner {
            Misbehaviour::TooFew if self.place == MisbehavingMethod::Apply => drop(answers.pop()),
            Misbehaviour::Others
                if self.place == MisbehavingMethod::Apply && !answers.is_empty() =>
            {
                answers.rotate_left(1);
            }
            _ => {}
        }
        answers
    }
}
