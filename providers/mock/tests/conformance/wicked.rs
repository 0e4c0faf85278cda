//! A provider that hangs, panics or lies in one of its methods.

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{
    k8s::{LbIngress, LbStatus, NodeView, ServiceView},
    provider::{
        BatchLimits, Claim, CloudError, CloudProvider, Depth, Instances, Inventory, LbOutcome, LbRef, LbSpec,
        LbSupport, LoadBalancers, NodeClaim, NodeQuery, Op, OwnedObject, PlannedChange, Presence, Progress,
        ProviderContext, Route, RouteChange, Routes,
    },
};
use ccm_mock::MockProvider;
use std::time::Duration;

/// Where it does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
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

impl Place {
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

    /// Returns a rule that this place breaks, with its suite; those of all suites for the constructor.
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
pub(crate) enum Manner {
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
pub(crate) struct Wicked {
    inner: MockProvider,
    place: Place,
    manner: Manner,
}

impl Wicked {
    pub(crate) async fn new(inner: MockProvider, place: Place, manner: Manner) -> Self {
        let wicked = Self { inner, place, manner };
        wicked.meets(Place::Constructor).await;
        wicked
    }

    fn is(&self, place: Place, manner: Manner) -> bool {
        (self.place, self.manner) == (place, manner)
    }

    /// What can happen where nothing can be waited for.
    fn passes(&self, place: Place) {
        assert!(!self.is(place, Manner::Panics), "planted");
        while self.is(place, Manner::Blocks) {
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    async fn meets(&self, place: Place) {
        self.passes(place);
        if self.place != place {
            return;
        }
        match self.manner {
            Manner::Hangs => std::future::pending().await,
            Manner::Pages => loop {
                tokio::task::yield_now().await;
            },
            _ if self.is(place, Manner::SpawnsPanic) => {
                // Nobody awaits it, which is the bug.
                drop(tokio::spawn(async { panic!("planted in a task") }));
                tokio::task::yield_now().await;
            }
            _ => {}
        }
    }

    fn pending() -> Progress {
        Progress::Pending { after: Duration::from_secs(5), why: "the cloud is at it".into() }
    }

    fn balancers(&self) -> &dyn LoadBalancers {
        self.inner.load_balancers().unwrap()
    }
}

#[async_trait]
impl CloudProvider for Wicked {
    fn name(&self) -> &str {
        self.passes(Place::Name);
        self.inner.name()
    }

    fn claims_node(&self, node: &NodeView) -> NodeClaim {
        self.passes(Place::ClaimsNode);
        self.inner.claims_node(node)
    }

    fn mutations(&self) -> &'static [&'static str] {
        self.inner.mutations()
    }

    async fn start(&self, cx: ProviderContext) -> Result<(), CloudError> {
        self.meets(Place::Start).await;
        self.inner.start(cx).await
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
impl Instances for Wicked {
    fn limits(&self) -> BatchLimits {
        self.passes(Place::Limits);
        self.inner.instances().unwrap().limits()
    }

    async fn describe(&self, op: &Op, queries: &[NodeQuery]) -> Result<Vec<Result<Presence, CloudError>>, CloudError> {
        self.meets(Place::Describe).await;
        let mut answers = self.inner.instances().unwrap().describe(op, queries).await?;
        match self.manner {
            _ if self.place != Place::Describe || answers.is_empty() => {}
            Manner::Lies => answers.fill(Ok(Presence::NotFound)),
            Manner::TooFew => answers.truncate(answers.len() - 1),
            Manner::Others => answers.rotate_left(1),
            _ => {}
        }
        Ok(answers)
    }
}

#[async_trait]
impl LoadBalancers for Wicked {
    fn supports(&self) -> LbSupport {
        self.passes(Place::Supports);
        self.balancers().supports()
    }

    fn classes(&self) -> Vec<Box<str>> {
        self.balancers().classes()
    }

    fn takes_endpoints(&self) -> bool {
        self.balancers().takes_endpoints()
    }

    fn interpret(&self, service: &ServiceView) -> Claim {
        self.passes(Place::Interpret);
        self.balancers().interpret(service)
    }

    async fn ensure(&self, op: &Op, want: &LbSpec, depth: Depth) -> LbOutcome {
        self.meets(Place::Ensure).await;
        let entry = LbIngress { ip: "192.0.2.1".parse().ok(), ..LbIngress::default() };
        match self.manner {
            Manner::Lies if self.place == Place::Ensure => LbOutcome::done(LbStatus { ingress: vec![entry] }),
            Manner::Waits if self.place == Place::Ensure => LbOutcome::pending(Duration::from_secs(5), "at it"),
            _ => self.balancers().ensure(op, want, depth).await,
        }
    }

    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        self.meets(Place::Update).await;
        match self.manner {
            Manner::Lies if self.place == Place::Update => {
                LbOutcome { status: None, ..LbOutcome::done(LbStatus::default()) }
            }
            Manner::Waits if self.place == Place::Update => LbOutcome::pending(Duration::from_secs(5), "at it"),
            _ => self.balancers().update_backends(op, want).await,
        }
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        self.meets(Place::Delete).await;
        match self.manner {
            Manner::Lies if self.place == Place::Delete => Ok(Progress::Done),
            Manner::Waits if self.place == Place::Delete => Ok(Self::pending()),
            _ => self.balancers().delete(op, lb).await,
        }
    }

    fn stale_annotations(&self, lb: &LbRef) -> Vec<Box<str>> {
        self.balancers().stale_annotations(lb)
    }

    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        self.meets(Place::Plan).await;
        match self.is(Place::Plan, Manner::Lies) {
            true => Ok(Vec::new()),
            false => self.balancers().plan(op, want).await,
        }
    }
}

#[async_trait]
impl Inventory for Wicked {
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        self.meets(Place::ListOwned).await;
        let mut listed = self.inner.inventory().unwrap().list_owned(op).await?;
        match self.manner {
            Manner::Lies if self.place == Place::ListOwned => listed.clear(),
            Manner::TooFew if self.place == Place::ListOwned => drop(listed.pop()),
            _ => {}
        }
        Ok(listed)
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        self.meets(Place::DeleteOwned).await;
        match self.manner {
            Manner::Lies if self.place == Place::DeleteOwned => op.may_write().map(|()| Progress::Done),
            Manner::Waits if self.place == Place::DeleteOwned => op.may_write().map(|()| Self::pending()),
            _ => self.inner.inventory().unwrap().delete_owned(op, object).await,
        }
    }
}

#[async_trait]
impl Routes for Wicked {
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        self.meets(Place::List).await;
        let mut routes = self.inner.routes().unwrap().list(op, nodes).await?;
        match self.manner {
            Manner::Lies if self.place == Place::List => routes.clear(),
            Manner::TooFew if self.place == Place::List => drop(routes.pop()),
            _ => {}
        }
        Ok(routes)
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        self.meets(Place::Apply).await;
        if self.is(Place::Apply, Manner::Lies) {
            return vec![Ok(()); changes.len()];
        }
        let mut answers = self.inner.routes().unwrap().apply(op, changes).await;
        match self.manner {
            Manner::TooFew if self.place == Place::Apply => drop(answers.pop()),
            Manner::Others if self.place == Place::Apply && !answers.is_empty() => answers.rotate_left(1),
            _ => {}
        }
        answers
    }
}
