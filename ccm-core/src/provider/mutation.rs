//! Requests that change the cloud, which are checked, timed, counted and logged in one place.

use tokio::time::Instant;
use tracing::Instrument;

use super::{CloudError, ErrorKind, Op, operation::InFlightMutation};

/// The description of a change that a provider requests of its cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    operation: &'static str,
    object: Box<str>,
    detail: Option<Box<str>>,
}

impl Mutation {
    /// Creates a description from the operation, such as `create_load_balancer`, and the object's
    /// identifier in the cloud.
    ///
    /// Operations are metric labels. They must come from a small fixed set, which
    /// [`CloudProvider::mutation_operations`](super::CloudProvider::mutation_operations) returns.
    pub fn new(operation: &'static str, object: impl Into<Box<str>>) -> Self {
        Self { operation, object: object.into(), detail: None }
    }

    /// Adds the provider's own reason for the change, such as `listener 443 is missing`. It is
    /// logged in addition to the controller's reason ([`Op::reason`]).
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Box<str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}

/// The successful response of the cloud to a mutation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MutationResponse<T> {
    value: T,
    request_id: Option<Box<str>>,
}

impl<T> MutationResponse<T> {
    /// Creates a response without request ID.
    pub fn new(value: T) -> Self {
        Self { value, request_id: None }
    }

    /// Adds the ID that identifies the request in the cloud's own logs. For a failed request use
    /// [`CloudError::with_request_id`].
    #[must_use]
    pub fn with_request_id(mut self, id: impl Into<Box<str>>) -> Self {
        self.request_id = Some(id.into());
        self
    }
}

impl Op {
    /// Requests one change. Checks [`may_write`](Self::may_write) immediately before the request,
    /// and runs `call` as [`run`](Self::run) does.
    ///
    /// Writes exactly one log record, `cloud mutation`, with operation, object, reason, request ID,
    /// duration and outcome, and counts the change once in `ccm_cloud_mutations_total`. If the
    /// check fails, nothing is logged, and the change is only counted in
    /// `ccm_cloud_mutations_refused_total`.
    ///
    /// `call` is one request, including the quick retries of the provider's client if it has any.
    /// It must not send anything before it is polled. An `async` block satisfies this.
    ///
    /// # Errors
    /// Returns the error of `call`, and the errors of `may_write` and `run`.
    ///
    /// # Cancellation
    /// If the operation is cancelled, a request in flight is not dropped at once, because its
    /// effect could become visible late and the next leader would repeat it. It may run for as long
    /// as the process takes to stop. If it is dropped then, it is logged with outcome `canceled`.
    /// It may have taken effect, so the Lease is not released but left to expire.
    pub async fn mutate<T>(
        &self,
        mutation: Mutation,
        call: impl Future<Output = Result<MutationResponse<T>, CloudError>>,
    ) -> Result<T, CloudError> {
        let mutations = [mutation];
        let started = self.start(&mutations)?;
        let result = self.run(call).instrument(span(&mutations)).await;
        let id = match &result {
            Ok(reply) => reply.request_id.as_deref(),
            Err(error) => error.request_id(),
        };
        started.finish(id, std::iter::once(result.as_ref().err()));
        result.map(|reply| reply.value)
    }

    /// Requests several changes of the same kind in one request that answers each of them
    /// separately. Otherwise works as [`mutate`](Self::mutate) does, with a log record and a count
    /// for each change.
    ///
    /// # Errors
    /// Returns an error if the request as a whole fails, or does not answer every change, every
    /// change gets that error.
    pub async fn mutate_batch<T>(
        &self,
        mutations: Vec<Mutation>,
        call: impl Future<Output = Result<MutationResponse<Vec<Result<T, CloudError>>>, CloudError>>,
    ) -> Vec<Result<T, CloudError>> {
        let count = mutations.len();
        let started = match self.start(&mutations) {
            Ok(begun) => begun,
            Err(error) => {
                return std::iter::repeat_with(|| Err(error.clone()))
                    .take(count)
                    .collect();
            }
        };
        let reply = self
            .run(call)
            .instrument(span(&mutations))
            .await
            .and_then(|reply| match reply.value.len() {
                got if got == count => Ok(reply),
                // The answers cannot be assigned to the changes, so ignore all of them.
                got => Err(CloudError::transient(format!(
                    "the cloud answered {got} of {count} changes"
                ))),
            });
        match reply {
            Ok(MutationResponse { value, request_id }) => {
                started.finish(
                    request_id.as_deref(),
                    value.iter().map(|result| result.as_ref().err()),
                );
                value
            }
            Err(error) => {
                started.finish(error.request_id(), std::iter::repeat_n(Some(&error), count));
                std::iter::repeat_with(|| Err(error.clone()))
                    .take(count)
                    .collect()
            }
        }
    }

    /// Checks that the mutations may be sent, and registers them as in flight.
    fn start<'a>(&'a self, mutations: &'a [Mutation]) -> Result<StartedMutation<'a>, CloudError> {
        match self.begin_mutation() {
            Ok(writing) => Ok(StartedMutation {
                op: self,
                mutations,
                started: Instant::now(),
                writing: Some(writing),
            }),
            Err(error) => {
                for mutation in mutations {
                    if let Some(metrics) = self.mutations() {
                        metrics.count_refused(mutation.operation);
                    }
                }
                Err(error)
            }
        }
    }
}

/// Returns the tracing span of a request.
fn span(mutations: &[Mutation]) -> tracing::Span {
    let operation = mutations.first().map_or("", |mutation| mutation.operation);
    let object = match mutations {
        [mutation] => Some(&*mutation.object),
        _ => None,
    };
    tracing::info_span!("cloud_mutation", operation, object, changes = mutations.len())
}

/// A request in flight, which is logged and counted when it ends or is dropped.
struct StartedMutation<'a> {
    op: &'a Op,
    mutations: &'a [Mutation],
    started: Instant,
    /// `None` once the request has ended.
    writing: Option<InFlightMutation>,
}

impl StartedMutation<'_> {
    fn finish<'e>(
        mut self,
        request_id: Option<&str>,
        errors: impl Iterator<Item = Option<&'e CloudError>>,
    ) {
        let mut answered = true;
        for (mutation, error) in self.mutations.iter().zip(errors) {
            answered &= error.is_none_or(|error| error.kind() != ErrorKind::Canceled);
            self.record(mutation, request_id, super::call_metrics::outcome(error));
        }
        match self.writing.take() {
            Some(writing) if answered => writing.complete(),
            given_up => drop(given_up),
        }
    }

    /// Logs and counts a mutation. Both happen here, so that they always agree.
    fn record(&self, mutation: &Mutation, request_id: Option<&str>, outcome: &'static str) {
        let duration = self.started.elapsed();
        if let Some(metrics) = self.op.mutations() {
            metrics.count_mutation(mutation.operation, outcome, duration);
        }
        let Mutation { operation, object, detail } = mutation;
        // The name of the log field is documented, and operators search for it.
        let why = match (self.op.reason(), detail) {
            ("", detail) => detail.as_deref().unwrap_or_default().to_owned(),
            (reason, None) => reason.to_owned(),
            (reason, Some(detail)) => format!("{reason}: {detail}"),
        };
        tracing::info!(operation, %object, why, request_id, ?duration, outcome, "cloud mutation");
    }
}

impl Drop for StartedMutation<'_> {
    fn drop(&mut self) {
        if self.writing.is_some() {
            for mutation in self.mutations {
                self.record(mutation, None, ErrorKind::Canceled.as_str());
            }
        }
    }
}

#[cfg(test)]
#[path = "mutation_tests.rs"]
mod tests;
