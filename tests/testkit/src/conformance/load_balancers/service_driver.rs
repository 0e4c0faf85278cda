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
    context::load_balancers,
    ids,
};

/// Maximum number of calls until an operation must be done.
const MAX_ROUNDS: usize = 200;
/// Maximum number of errors after an injected fault. A cloud may be busy for a while after one.
const MAX_ERRORS_AFTER_FAULT: usize = 5;
/// Maximum delay between two calls, whatever the provider asks for.
const MAX_DELAY: Duration = Duration::from_secs(600);

/// Syncs one Service with a provider, in the way in which the framework does.
pub(super) struct ServiceDriver<'a> {
    pub(super) ctx: &'a RuleContext<'a, dyn LoadBalancerCloud>,
    pub(super) provider: Arc<dyn CloudProvider>,
    pub(super) cluster: &'static str,
    /// The Service, with status and annotations as the provider asked to write them.
    pub(super) service: ServiceView,
    pub(super) nodes: Vec<Arc<NodeView>>,
    /// Counts mutations, if set.
    pub(super) mutations: Option<MutationMetrics>,
    /// Events that the provider emitted.
    pub(super) events: Arc<RecordedEvents>,
}

/// Events of a Service, each with reason and note.
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

/// A provider call for one Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Ensure(ReadMode),
    Update,
    Delete,
}

/// Reaction to an error of the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorReaction {
    /// The operation fails.
    Fail,
    /// The same process retries.
    Retry,
    /// A new process with empty caches retries.
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
            .with_deadline(Instant::now() + self.ctx.cloud.call_timeout());
        let op = op.with_events(self.events.clone());
        match &self.mutations {
            Some(mutations) => op.with_mutations(mutations.clone()),
            None => op,
        }
    }

    /// Returns the desired load balancer. Another rule judges whether the Service is valid.
    pub(super) fn spec(&self) -> Verdict<LbSpec> {
        let provider = load_balancers(&self.provider)?;
        let blocked = |observed: String| Problem::Blocked(ids::CLAIMED, observed);
        let backends = match provider.interpret(&self.service) {
            ServiceInterpretation::Valid { backends, .. } => backends,
            other => return Err(blocked(format!("{other:?}"))),
        };
        let unsupported = provider.supports().validate(&self.service);
        if !unsupported.is_empty() {
            return Err(blocked(format!("not supported: {unsupported:?}")));
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

    /// Returns an EndpointSlice with one pod in the host network of each node.
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

    /// Returns a reference to the load balancer with everything that the framework can know.
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

    /// Calls the provider once and ignores the status and annotations in its outcome.
    pub(super) async fn call_once(&self, op: &Op, operation: Operation) -> Verdict<LbOutcome> {
        let provider = load_balancers(&self.provider)?;
        match operation {
            Operation::Ensure(mode) => {
                let spec = self.spec()?;
                Ok(self
                    .in_time(provider.ensure(op, &spec, mode))
                    .await
                    .unwrap_or_else(LbOutcome::from))
            }
            Operation::Update => {
                let spec = self.spec()?;
                Ok(self
                    .in_time(provider.update_backends(op, &spec))
                    .await
                    .unwrap_or_else(LbOutcome::from))
            }
            Operation::Delete => self.delete(op, &self.reference()).await,
        }
    }

    pub(super) async fn delete(&self, op: &Op, reference: &LbRef) -> Verdict<LbOutcome> {
        let deleted = self
            .in_time(load_balancers(&self.provider)?.delete(op, reference))
            .await;
        let result = deleted.and_then(|result| result);
        Ok(LbOutcome {
            status: None,
            annotations: std::collections::BTreeMap::new(),
            result,
        })
    }

    pub(super) async fn plan(&self) -> Verdict<Result<Vec<PlannedChange>, CloudError>> {
        let (spec, op) = (self.spec()?, self.op());
        let planned = self
            .in_time(load_balancers(&self.provider)?.plan(&op, &spec))
            .await;
        Ok(planned.and_then(|result| result))
    }

    /// Drops a call that exceeds its deadline, as the framework does.
    async fn in_time<T>(&self, call: impl Future<Output = T>) -> Result<T, CloudError> {
        let limit = self.ctx.cloud.call_timeout() + Duration::from_secs(5);
        tokio::time::timeout(limit, call).await.map_err(|_| {
            CloudError::new(ErrorKind::Canceled, format!("no answer within {limit:?}"))
        })
    }

    /// Writes status and annotations to the Service, as the framework does.
    pub(super) fn apply_outcome(&mut self, outcome: &LbOutcome) {
        if let Some(status) = &outcome.status {
            self.service.status.clone_from(status);
        }
        self.service.write_annotations(&outcome.annotations);
    }

    /// Repeats an operation until it is done, with the delays that the provider asks for. The inner
    /// error describes a failure.
    pub(super) async fn call_until_done(
        &mut self,
        operation: Operation,
        after: ErrorReaction,
    ) -> Verdict<Result<(), String>> {
        let started = Instant::now();
        let mut errors = 0;
        for _ in 0..MAX_ROUNDS {
            let op = self.op().with_pending_for(started.elapsed());
            let outcome = self.call_once(&op, operation).await?;
            let delay = match &outcome.result {
                Ok(Progress::Done) => {
                    self.apply_outcome(&outcome);
                    return Ok(Ok(()));
                }
                Ok(Progress::Pending { after, reason }) if after.is_zero() => {
                    return Ok(Err(format!(
                        "{operation:?} is pending without a delay: {reason:?}"
                    )));
                }
                Ok(Progress::Pending { after, .. }) => *after,
                Err(error)
                    if operation == Operation::Delete && error.kind() == ErrorKind::NotFound =>
                {
                    return Ok(Ok(()));
                }
                Err(error) if after == ErrorReaction::Fail || errors == MAX_ERRORS_AFTER_FAULT => {
                    return Ok(Err(format!("{operation:?}: {}", show_error(error))));
                }
                Err(error) => {
                    errors += 1;
                    error.retry_after().unwrap_or(Duration::from_secs(1))
                }
            };
            match (&outcome.result, after) {
                (Err(_), ErrorReaction::Restart) => self.provider = self.ctx.provider().await?,
                _ => self.apply_outcome(&outcome),
            }
            tokio::time::sleep(delay.min(MAX_DELAY)).await;
        }
        Ok(Err(format!("{operation:?} is not done after {MAX_ROUNDS} calls")))
    }

    /// Ensures the load balancer. Another rule judges whether that succeeds.
    pub(super) async fn ensure(&mut self) -> Verdict<LbStatus> {
        let done = self
            .call_until_done(Operation::Ensure(ReadMode::Fresh), ErrorReaction::Fail)
            .await?;
        done.map_err(|observed| Problem::Blocked(ids::ENSURED, observed))?;
        Ok(self.service.status.clone())
    }

    /// Deletes the load balancer. Another rule judges whether that succeeds.
    pub(super) async fn remove(&mut self) -> Verdict {
        let done = self
            .call_until_done(Operation::Delete, ErrorReaction::Fail)
            .await?;
        done.map_err(|observed| Problem::Blocked(ids::DELETED, observed))
    }
}

/// Shows an error in one line.
pub(super) fn show_error(error: &CloudError) -> String {
    format!("error {}: {}", error.kind(), error.chain())
}

/// Shows the result of a call in one line.
pub(super) fn show(result: &Result<Progress, CloudError>) -> String {
    match result {
        Ok(Progress::Done) => "done".to_owned(),
        Ok(Progress::Pending { after, reason }) => format!("pending for {after:?}: {reason}"),
        Err(error) => show_error(error),
    }
}
