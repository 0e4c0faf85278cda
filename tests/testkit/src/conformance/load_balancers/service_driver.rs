use std::{collections::BTreeSet, future::Future, sync::Arc, time::Duration};

use ccm_core::{
    k8s::{
        AddressType, EndpointSliceView, EndpointView, LbStatus, NodeView, ServiceView, SlicePort,
    },
    provider::{
        BackendKind, Backends, CloudError, CloudProvider, ErrorKind, EventSink, EventType,
        LbOutcome, LbRef, LbSpec, Op, PlannedChange, Progress, ReadMode, ServiceInterpretation,
        SourceRanges, call_metrics::MutationMetrics,
    },
    write_gate::WriteGate,
};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        LoadBalancerCloud,
        context::RuleContext,
        report::{Problem, Verdict},
    },
    context::balancers,
    ids,
};

/// How often something is asked for until it must be done.
const MAX_ROUNDS: usize = 200;
/// How many errors a step may have after its trouble, as a cloud in doubt is busy for a while.
const MAX_ERRORS_AFTER_FAULT: usize = 5;
/// Longest wait that is obeyed.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// One Service and the provider that serves it, driven as the framework does.
pub(super) struct ServiceDriver<'a> {
    pub(super) bench: &'a RuleContext<'a, dyn LoadBalancerCloud>,
    pub(super) provider: Arc<dyn CloudProvider>,
    pub(super) cluster: &'static str,
    /// Status and annotations are kept as the provider asks for it.
    pub(super) service: ServiceView,
    pub(super) nodes: Vec<Arc<NodeView>>,
    /// Where changes are counted, if they are.
    pub(super) mutations: Option<MutationMetrics>,
    /// What the user was told.
    pub(super) events: Arc<RecordedEvents>,
}

/// Events of a Service: reason and note.
#[derive(Default)]
pub(super) struct RecordedEvents(Mutex<Vec<(&'static str, String)>>);

impl RecordedEvents {
    pub(super) fn take(&self) -> Vec<(&'static str, String)> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl EventSink for RecordedEvents {
    fn record(&self, _: EventType, reason: &'static str, note: &str) {
        self.0.lock().push((reason, note.to_owned()));
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriverCall {
    Ensure(ReadMode),
    Update,
    Delete,
}

/// What happens after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorReaction {
    /// Errors are not expected.
    Fail,
    /// The same process tries again.
    Retry,
    /// The process ends, and another one that remembers nothing goes on.
    Restart,
}

impl ServiceDriver<'_> {
    pub(super) fn node_names(&self) -> BTreeSet<String> {
        self.nodes
            .iter()
            .map(|node| node.name.to_string())
            .collect()
    }

    pub(super) fn op(&self) -> Op {
        self.op_with(CancellationToken::new(), WriteGate::always_open())
    }

    pub(super) fn op_with(&self, cancel: CancellationToken, gate: WriteGate) -> Op {
        let op = Op::new(self.cluster, cancel, gate)
            .with_deadline(Instant::now() + self.bench.cloud.patience());
        let op = op.with_events(self.events.clone());
        match &self.mutations {
            Some(mutations) => op.with_mutations(mutations.clone()),
            None => op,
        }
    }

    /// Describes the wanted balancer; a Service that is not claimed is another rule's matter.
    pub(super) fn spec(&self) -> Verdict<LbSpec> {
        let provider = balancers(&self.provider)?;
        let blocked = |seen: String| Problem::Blocked(ids::CLAIMED, seen);
        let backends = match provider.interpret(&self.service) {
            ServiceInterpretation::Valid { backends, .. } => backends,
            other => return Err(blocked(format!("{other:?}"))),
        };
        let refused = provider.supports().validate(&self.service);
        if !refused.is_empty() {
            return Err(blocked(format!("not supported: {refused:?}")));
        }
        let backends = match backends {
            BackendKind::Nodes(needs) => {
                let fits = |node: &&Arc<NodeView>| needs.iter().all(|need| need.matches(node));
                Backends::Nodes(self.nodes.iter().filter(fits).cloned().collect())
            }
            BackendKind::Endpoints => Backends::Endpoints(vec![Arc::new(self.slice())]),
        };
        let sources =
            SourceRanges::of(&self.service).map_err(|invalid| blocked(format!("{invalid:?}")))?;
        Ok(LbSpec {
            cluster: self.cluster.into(),
            service: Arc::new(self.service.clone()),
            sources,
            backends,
        })
    }

    /// Makes the slice of a Service with one pod in the host network of each node.
    fn slice(&self) -> EndpointSliceView {
        let ports = self.service.ports.iter().map(|port| SlicePort {
            name: port.name.clone(),
            protocol: port.protocol,
            port: port.target_port.parse().ok(),
        });
        let endpoints = self.nodes.iter().map(|node| {
            let internal = node
                .addresses
                .iter()
                .filter(|address| address.kind == AddressType::InternalIp);
            EndpointView {
                addresses: internal
                    .filter_map(|address| address.address.parse().ok())
                    .take(1)
                    .collect(),
                node: Some(node.name.clone()),
                zone: None,
                ready: true,
                serving: true,
                terminating: false,
            }
        });
        EndpointSliceView {
            namespace: self.service.namespace.clone(),
            name: format!("{}-1", self.service.name).into(),
            uid: format!("{}-1", self.service.uid).into(),
            resource_version: "1".into(),
            service: self.service.name.clone(),
            ports: ports.collect(),
            endpoints: endpoints.collect(),
        }
    }

    /// Names the balancer, with all that the framework may know.
    pub(super) fn reference(&self) -> LbRef {
        LbRef {
            uid: self.service.uid.clone(),
            namespace: self.service.namespace.clone(),
            name: self.service.name.clone(),
            class: self.service.class.clone(),
            annotations: self.service.annotations.clone(),
            status: self.service.status.clone(),
            last_observed: Some(Arc::new(self.service.clone())),
        }
    }

    /// Asks once and keeps nothing of the answer.
    pub(super) async fn once(&self, op: &Op, step: DriverCall) -> Verdict<LbOutcome> {
        let provider = balancers(&self.provider)?;
        match step {
            DriverCall::Ensure(depth) => {
                let want = self.spec()?;
                Ok(self
                    .in_time(provider.ensure(op, &want, depth))
                    .await
                    .unwrap_or_else(LbOutcome::from))
            }
            DriverCall::Update => {
                let want = self.spec()?;
                Ok(self
                    .in_time(provider.update_backends(op, &want))
                    .await
                    .unwrap_or_else(LbOutcome::from))
            }
            DriverCall::Delete => self.delete(op, &self.reference()).await,
        }
    }

    pub(super) async fn delete(&self, op: &Op, reference: &LbRef) -> Verdict<LbOutcome> {
        let deleted = self
            .in_time(balancers(&self.provider)?.delete(op, reference))
            .await;
        let result = deleted.and_then(|result| result);
        Ok(LbOutcome {
            status: None,
            annotations: std::collections::BTreeMap::new(),
            result,
        })
    }

    pub(super) async fn plan(&self) -> Verdict<Result<Vec<PlannedChange>, CloudError>> {
        let (want, op) = (self.spec()?, self.op());
        let planned = self
            .in_time(balancers(&self.provider)?.plan(&op, &want))
            .await;
        Ok(planned.and_then(|result| result))
    }

    /// Drops a call that does not end at its deadline, as the framework does.
    async fn in_time<T>(&self, call: impl Future<Output = T>) -> Result<T, CloudError> {
        let limit = self.bench.cloud.patience() + Duration::from_secs(5);
        tokio::time::timeout(limit, call).await.map_err(|_| {
            CloudError::new(ErrorKind::Canceled, format!("no answer within {limit:?}"))
        })
    }

    /// Keeps status and annotations, as the framework writes them to the Service.
    pub(super) fn keep(&mut self, outcome: &LbOutcome) {
        if let Some(status) = &outcome.status {
            self.service.status.clone_from(status);
        }
        for (key, value) in &outcome.annotations {
            match value {
                Some(value) => drop(
                    self.service
                        .annotations
                        .insert((&**key).into(), (&**value).into()),
                ),
                None => drop(self.service.annotations.remove(&**key)),
            }
        }
    }

    /// Asks until it is done, waiting as told; the inner error says what went wrong.
    pub(super) async fn settle(
        &mut self,
        step: DriverCall,
        after: ErrorReaction,
    ) -> Verdict<Result<(), String>> {
        let started = Instant::now();
        let mut errors = 0;
        for _ in 0..MAX_ROUNDS {
            let op = self.op().with_pending_for(started.elapsed());
            let outcome = self.once(&op, step).await?;
            let wait = match &outcome.result {
                Ok(Progress::Done) => {
                    self.keep(&outcome);
                    return Ok(Ok(()));
                }
                Ok(Progress::Pending { after, why }) if after.is_zero() => {
                    return Ok(Err(format!("{step:?}: waits for {why:?} without a pause")));
                }
                Ok(Progress::Pending { after, .. }) => *after,
                Err(error) if step == DriverCall::Delete && error.kind() == ErrorKind::NotFound => {
                    return Ok(Ok(()));
                }
                Err(error) if after == ErrorReaction::Fail || errors == MAX_ERRORS_AFTER_FAULT => {
                    return Ok(Err(format!("{step:?}: {}", show_error(error))));
                }
                Err(error) => {
                    errors += 1;
                    error.retry_after().unwrap_or(Duration::from_secs(1))
                }
            };
            match (&outcome.result, after) {
                (Err(_), ErrorReaction::Restart) => self.provider = self.bench.provider().await?,
                _ => self.keep(&outcome),
            }
            tokio::time::sleep(wait.min(MAX_WAIT)).await;
        }
        Ok(Err(format!("{step:?}: not done after {MAX_ROUNDS} rounds")))
    }

    /// Brings the balancer about; that it can be is another rule's matter.
    pub(super) async fn ensure(&mut self) -> Verdict<LbStatus> {
        let done = self
            .settle(DriverCall::Ensure(ReadMode::Fresh), ErrorReaction::Fail)
            .await?;
        done.map_err(|seen| Problem::Blocked(ids::ENSURED, seen))?;
        Ok(self.service.status.clone())
    }

    /// Takes the balancer away; that it can be is another rule's matter.
    pub(super) async fn remove(&mut self) -> Verdict {
        let done = self.settle(DriverCall::Delete, ErrorReaction::Fail).await?;
        done.map_err(|seen| Problem::Blocked(ids::DELETED, seen))
    }
}

/// Shows an error in one line.
pub(super) fn show_error(error: &CloudError) -> String {
    format!("error {}: {}", error.kind(), error.chain())
}

/// Shows how a call went in one line.
pub(super) fn show(result: &Result<Progress, CloudError>) -> String {
    match result {
        Ok(Progress::Done) => "done".to_owned(),
        Ok(Progress::Pending { after, why }) => format!("pending for {after:?}: {why}"),
        Err(error) => show_error(error),
    }
}
