//! Requests that change the cloud: checked, timed, counted and recorded in one place.

use tokio::time::Instant;
use tracing::Instrument;

use super::{CloudError, ErrorKind, Op, operation::InFlightMutation};

/// A change that a provider requests of its cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    operation: &'static str,
    object: Box<str>,
    detail: Option<Box<str>>,
}

impl Mutation {
    /// Names the request, such as `create_load_balancer`, and the object as the cloud knows it. Operations are a small
    /// fixed set, because they are metric labels: [`CloudProvider::mutations`](super::CloudProvider::mutations).
    pub fn new(operation: &'static str, object: impl Into<Box<str>>) -> Self {
        Self { operation, object: object.into(), detail: None }
    }

    /// Adds what only the provider knows about the reason, such as `listener 443 is missing`. The reason of the controller
    /// ([`Op::reason`]) is recorded anyway.
    #[must_use]
    pub fn with_detail(mut self, why: impl Into<Box<str>>) -> Self {
        self.detail = Some(why.into());
        self
    }
}

/// What a cloud answered to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MutationResponse<T> {
    value: T,
    request_id: Option<Box<str>>,
}

impl<T> MutationResponse<T> {
    /// Makes an answer.
    pub fn new(value: T) -> Self {
        Self { value, request_id: None }
    }

    /// Adds the ID by which the cloud's own logs know the request. That of a failed request goes to
    /// [`CloudError::with_request_id`].
    #[must_use]
    pub fn with_request_id(mut self, id: impl Into<Box<str>>) -> Self {
        self.request_id = Some(id.into());
        self
    }
}

impl Op {
    /// Requests one change: asks [`may_write`](Self::may_write) immediately before, runs `call` as [`run`](Self::run) does,
    /// and leaves exactly one log record, `cloud mutation`, with operation, object, why, request ID, duration and outcome,
    /// and one count in `ccm_cloud_mutations_total`. A request that may not be made leaves no record, only a count in
    /// `ccm_cloud_mutations_refused_total`.
    ///
    /// `call` is one request, with the quick retries of the provider's client if it has any. It must not begin before it is
    /// polled, as no `async` block does.
    ///
    /// # Errors
    /// What `call` returns, and what `may_write` and `run` do.
    ///
    /// # Cancellation
    /// A request that has begun is not given up when the operation is cancelled: what it makes may show only after a while,
    /// and whoever leads next would make it again. It has as long as the process takes to stop. A request that is dropped is
    /// recorded with outcome `canceled`: the cloud may have carried it out, so that the Lease is not released but runs out.
    pub async fn mutate<T>(
        &self,
        mutation: Mutation,
        call: impl Future<Output = Result<MutationResponse<T>, CloudError>>,
    ) -> Result<T, CloudError> {
        let mutations = [mutation];
        let begun = self.start(&mutations)?;
        let result = self.run(call).instrument(span(&mutations)).await;
        let id = match &result {
            Ok(reply) => reply.request_id.as_deref(),
            Err(error) => error.request_id(),
        };
        begun.finish(id, std::iter::once(result.as_ref().err()));
        result.map(|reply| reply.value)
    }

    /// Requests several changes of a kind in one request, which answers each by itself; otherwise like
    /// [`mutate`](Self::mutate), with a record and a count for each change.
    ///
    /// # Errors
    /// When the request as such fails, or does not answer every change, every change has that error.
    pub async fn mutate_batch<T>(
        &self,
        mutations: Vec<Mutation>,
        call: impl Future<Output = Result<MutationResponse<Vec<Result<T, CloudError>>>, CloudError>>,
    ) -> Vec<Result<T, CloudError>> {
        let count = mutations.len();
        let begun = match self.start(&mutations) {
            Ok(begun) => begun,
            Err(error) => return std::iter::repeat_with(|| Err(error.clone())).take(count).collect(),
        };
        let reply = self.run(call).instrument(span(&mutations)).await.and_then(|reply| match reply.value.len() {
            got if got == count => Ok(reply),
            // Which answer belongs to which change is in doubt, so none of them counts.
            got => Err(CloudError::transient(format!("the cloud answered {got} of {count} changes"))),
        });
        match reply {
            Ok(MutationResponse { value, request_id }) => {
                begun.finish(request_id.as_deref(), value.iter().map(|result| result.as_ref().err()));
                value
            }
            Err(error) => {
                begun.finish(error.request_id(), std::iter::repeat_n(Some(&error), count));
                std::iter::repeat_with(|| Err(error.clone())).take(count).collect()
            }
        }
    }

    fn start<'a>(&'a self, mutations: &'a [Mutation]) -> Result<StartedMutation<'a>, CloudError> {
        match self.begin_mutation() {
            Ok(writing) => Ok(StartedMutation { op: self, mutations, started: Instant::now(), writing: Some(writing) }),
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

fn span(mutations: &[Mutation]) -> tracing::Span {
    let operation = mutations.first().map_or("", |mutation| mutation.operation);
    let object = match mutations {
        [mutation] => Some(&*mutation.object),
        _ => None,
    };
    tracing::info_span!("cloud_mutation", operation, object, changes = mutations.len())
}

/// A request that was begun: recorded when it ends, however that is.
struct StartedMutation<'a> {
    op: &'a Op,
    mutations: &'a [Mutation],
    started: Instant,
    /// Until it ends.
    writing: Option<InFlightMutation>,
}

impl StartedMutation<'_> {
    fn finish<'e>(mut self, request_id: Option<&str>, errors: impl Iterator<Item = Option<&'e CloudError>>) {
        let mut answered = true;
        for (mutation, error) in self.mutations.iter().zip(errors) {
            answered &= error.is_none_or(|error| error.kind() != ErrorKind::Canceled);
            self.record(mutation, request_id, super::metrics::outcome(error));
        }
        match self.writing.take() {
            Some(writing) if answered => writing.complete(),
            given_up => drop(given_up),
        }
    }

    /// The one place where record and count are made, so that they cannot differ.
    fn record(&self, mutation: &Mutation, request_id: Option<&str>, outcome: &'static str) {
        let duration = self.started.elapsed();
        if let Some(metrics) = self.op.mutations() {
            metrics.count_mutation(mutation.operation, outcome, duration);
        }
        let Mutation { operation, object, detail: why } = mutation;
        let why = match (self.op.reason(), why) {
            ("", why) => why.as_deref().unwrap_or_default().to_owned(),
            (reason, None) => reason.to_owned(),
            (reason, Some(why)) => format!("{reason}: {why}"),
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
