//! A provider around the mock's that notes what is asked about load balancers, and answers as a
//! test wants.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use ccm_core::{
    k8s::{NodeFields, NodeView, ServiceView},
    provider::{
        BackendKind, Backends, CloudError, CloudProvider, LbOutcome, LbRef, LbSpec, LbSupport,
        LoadBalancers, NodeOwnership, NodeTarget, Op, PlannedChange, Progress, ProviderContext,
        ReadMode, RetainOutcome, ServiceInterpretation, ServiceNotice,
    },
};
use ccm_mock::MockProvider;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::cluster::TestCluster;

/// One call about a load balancer.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) at: Instant,
    /// `ensure`, `update`, `delete`, `retain` or `plan`.
    pub(crate) verb: &'static str,
    /// Name of the Service.
    pub(crate) service: String,
    pub(crate) uid: String,
    /// Nodes that it should have.
    pub(crate) nodes: Vec<String>,
    pub(crate) pending_for: Duration,
}

/// What becomes of a call.
pub(crate) enum ScriptedResult {
    Fail(CloudError),
    Pending(Duration),
    /// As the mock does, after a time.
    Slow(Duration),
    Hang,
    /// Changes what the mock answers.
    Edit(fn(LbOutcome) -> LbOutcome),
}

type Script = Box<dyn Fn(&Call) -> Option<ScriptedResult> + Send + Sync>;
type Interpret =
    Box<dyn Fn(&ServiceView, ServiceInterpretation) -> ServiceInterpretation + Send + Sync>;

/// The provider. Without a script it answers as the mock does.
pub(crate) struct ScriptedLoadBalancers {
    inner: MockProvider,
    calls: Mutex<Vec<Call>>,
    script: Mutex<Option<Script>>,
    interpret: Mutex<Option<Interpret>>,
    remarks: Mutex<Vec<ServiceNotice>>,
    node_target: Mutex<NodeTarget>,
    in_flight: Mutex<BTreeSet<String>>,
    most: AtomicUsize,
}

impl ScriptedLoadBalancers {
    pub(crate) fn over(world: &TestCluster) -> Arc<Self> {
        Arc::new(Self {
            inner: world.provider(),
            calls: Mutex::default(),
            script: Mutex::default(),
            interpret: Mutex::default(),
            remarks: Mutex::default(),
            node_target: Mutex::new(NodeTarget::Address),
            in_flight: Mutex::default(),
            most: AtomicUsize::new(0),
        })
    }

    /// Answers calls from now on by `script`; those for which it returns `None` as the mock does.
    pub(crate) fn answer(
        &self,
        script: impl Fn(&Call) -> Option<ScriptedResult> + Send + Sync + 'static,
    ) {
        *self.script.lock() = Some(Box::new(script));
    }

    /// Answers as the mock does again.
    pub(crate) fn answer_well(&self) {
        *self.script.lock() = None;
    }

    /// Lets `interpret` change what the mock makes of a Service.
    pub(crate) fn interpret_by(
        &self,
        interpret: impl Fn(&ServiceView, ServiceInterpretation) -> ServiceInterpretation
        + Send
        + Sync
        + 'static,
    ) {
        *self.interpret.lock() = Some(Box::new(interpret));
    }

    /// Says this of every Service.
    pub(crate) fn remark(&self, remarks: Vec<ServiceNotice>) {
        *self.remarks.lock() = remarks;
    }

    /// Addresses nodes by this.
    pub(crate) fn address_by(&self, target: NodeTarget) {
        *self.node_target.lock() = target;
    }

    /// Takes the calls since the last time.
    pub(crate) fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock())
    }

    /// Takes the calls since the last time: `verb service`.
    pub(crate) fn take_lines(&self) -> Vec<String> {
        self.take_calls()
            .iter()
            .map(|call| format!("{} {}", call.verb, call.service))
            .collect()
    }

    /// Number of calls since they were last taken.
    pub(crate) fn count(&self) -> usize {
        self.calls.lock().len()
    }

    /// Most calls that were in flight at once.
    pub(crate) fn most_at_once(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Notes a call and does what the script says of it; the call is in flight until the first of
    /// the two is dropped.
    async fn call(
        &self,
        op: &Op,
        verb: &'static str,
        service: (&str, &str, &str),
        nodes: Vec<String>,
    ) -> (Flight<'_>, Option<Edit>) {
        let (namespace, name, uid) = service;
        let key = format!("{namespace}/{name}");
        let call = Call {
            at: Instant::now(),
            verb,
            service: name.to_owned(),
            uid: uid.to_owned(),
            nodes,
            pending_for: op.pending_for(),
        };
        self.calls.lock().push(call.clone());
        let flight = self.take_off(key);
        let answer = self.script.lock().as_ref().and_then(|script| script(&call));
        let edit = match answer {
            None => None,
            Some(ScriptedResult::Fail(error)) => Some(Edit::Result(Err(error))),
            Some(ScriptedResult::Pending(after)) => {
                Some(Edit::Result(Ok(Progress::Pending { after, reason: "test".into() })))
            }
            Some(ScriptedResult::Edit(edit)) => Some(Edit::Outcome(edit)),
            Some(ScriptedResult::Hang) => std::future::pending().await,
            Some(ScriptedResult::Slow(time)) => {
                tokio::time::sleep(time).await;
                None
            }
        };
        (flight, edit)
    }

    fn take_off(&self, key: String) -> Flight<'_> {
        let mut in_flight = self.in_flight.lock();
        assert!(in_flight.insert(key.clone()), "two calls about {key} at once");
        self.most.fetch_max(in_flight.len(), Ordering::Relaxed);
        Flight { of: self, key }
    }
}

/// What a test wants instead of, or made of, the mock's answer.
enum Edit {
    Result(Result<Progress, CloudError>),
    Outcome(fn(LbOutcome) -> LbOutcome),
}

/// A call in flight, until it is dropped.
struct Flight<'a> {
    of: &'a ScriptedLoadBalancers,
    key: String,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.of.in_flight.lock().remove(&self.key);
    }
}

fn nodes(want: &LbSpec) -> Vec<String> {
    match &want.backends {
        Backends::Nodes(nodes) => nodes.iter().map(|node| node.name.to_string()).collect(),
        Backends::Endpoints(_) => Vec::new(),
    }
}

fn service(want: &LbSpec) -> (&str, &str, &str) {
    (&want.service.namespace, &want.service.name, &want.service.uid)
}

#[async_trait]
impl CloudProvider for ScriptedLoadBalancers {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        self.inner.node_ownership(node)
    }

    fn node_fields(&self) -> NodeFields {
        self.inner.node_fields()
    }

    async fn start(&self, ctx: ProviderContext) -> Result<(), CloudError> {
        self.inner.start(ctx).await
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(self)
    }
}

#[async_trait]
impl LoadBalancers for ScriptedLoadBalancers {
    fn supports(&self) -> LbSupport {
        self.inner.supports()
    }

    fn classes(&self) -> Vec<Box<str>> {
        self.inner.classes()
    }

    fn supports_endpoint_backends(&self) -> bool {
        self.inner.supports_endpoint_backends()
    }

    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation {
        let claim = self.inner.interpret(service);
        match &*self.interpret.lock() {
            Some(interpret) => interpret(service, claim),
            None => claim,
        }
    }

    fn node_target(&self) -> NodeTarget {
        *self.node_target.lock()
    }

    fn backends_of_invalid(&self, service: &ServiceView) -> Option<BackendKind> {
        self.inner.backends_of_invalid(service)
    }

    fn notices(&self, _: &ServiceView) -> Vec<ServiceNotice> {
        self.remarks.lock().clone()
    }

    async fn ensure(&self, op: &Op, want: &LbSpec, depth: ReadMode) -> LbOutcome {
        let (_flight, edit) = self.call(op, "ensure", service(want), nodes(want)).await;
        match edit {
            Some(Edit::Result(Err(error))) => error.into(),
            Some(Edit::Result(Ok(Progress::Pending { after, reason }))) => {
                LbOutcome::pending(after, reason)
            }
            Some(Edit::Outcome(edit)) => edit(self.inner.ensure(op, want, depth).await),
            _ => self.inner.ensure(op, want, depth).await,
        }
    }

    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        let (_flight, edit) = self.call(op, "update", service(want), nodes(want)).await;
        match edit {
            Some(Edit::Result(Err(error))) => error.into(),
            Some(Edit::Result(Ok(Progress::Pending { after, reason }))) => {
                LbOutcome::pending(after, reason)
            }
            _ => self.inner.update_backends(op, want).await,
        }
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let (_flight, edit) = self
            .call(op, "delete", (&lb.namespace, &lb.name, &lb.uid), Vec::new())
            .await;
        match edit {
            Some(Edit::Result(result)) => result,
            _ => self.inner.delete(op, lb).await,
        }
    }

    async fn retain(&self, op: &Op, lb: &LbRef) -> Result<RetainOutcome, CloudError> {
        let (_flight, edit) = self
            .call(op, "retain", (&lb.namespace, &lb.name, &lb.uid), Vec::new())
            .await;
        match edit {
            Some(Edit::Result(Err(error))) => Err(error),
            Some(Edit::Result(Ok(Progress::Pending { after, reason }))) => {
                Ok(RetainOutcome::Pending { after, reason })
            }
            _ => self.inner.retain(op, lb).await,
        }
    }

    fn stale_annotations(&self, lb: &LbRef) -> Vec<Box<str>> {
        self.inner.stale_annotations(lb)
    }

    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let (_flight, edit) = self.call(op, "plan", service(want), nodes(want)).await;
        match edit {
            Some(Edit::Result(Err(error))) => Err(error),
            _ => self.inner.plan(op, want).await,
        }
    }
}
