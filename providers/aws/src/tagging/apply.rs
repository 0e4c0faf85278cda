//! Sends the requests that tag and untag instances, and handles their results.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    error::chain,
    k8s::NodeView,
    provider::{CloudError, ErrorKind},
    runtime::work_queue::Backoff,
};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::{
    TagQueue, TaggingController,
    metrics::ErrorType,
    plan::{self, Item, ItemAction, LABEL, RejectionKind, RetryAction, TagOperation},
};
use crate::api::{
    AwsError, InstanceId,
    ec2::{CreateTags, DeleteTags},
};

/// Back-off between attempts. Nine retries take four minutes, because AWS may not know a new
/// instance for about that long.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    cap: Duration::from_secs(1000),
};
/// Maximum number of concurrent writes of labels.
const MAX_CONCURRENT_LABELS: usize = 10;

/// An item for which a request is sent.
struct TagJob {
    item: Item,
    node: Option<Arc<NodeView>>,
    id: InstanceId,
}

/// Error of processing an item.
#[derive(Debug, thiserror::Error)]
enum JobError {
    #[error("failed to change the tags of the instance")]
    Aws(#[source] AwsError),
    #[error("failed to label the node")]
    Label(#[source] Box<kube::Error>),
}

impl TaggingController {
    /// Processes a batch of items from one queue.
    pub(super) async fn process(&self, queue: &TagQueue, items: Vec<Item>) {
        // First, drop the items that no longer need a request.
        let nodes = self.nodes.list();
        let mut jobs = Vec::new();
        for item in items {
            let node = self.nodes.get(&item.node);
            match plan::plan_item(&item, node.as_deref(), &nodes, &self.checksum) {
                ItemAction::Process(id) => jobs.push(TagJob { item, node, id }),
                ItemAction::Skip(reason) => {
                    tracing::debug!(node = %item.node, operation = ?item.operation, reason, "skipping the node");
                    if item.operation == TagOperation::Tag
                        && node.is_none()
                        && let Some(id) = item.instance()
                    {
                        self.metrics.remove_instance(&id);
                    }
                    queue.finish(&item);
                }
            }
        }
        if jobs.is_empty() {
            return;
        }
        // Then send one request for all remaining items.
        match self.send_request(queue.operation, &jobs).await {
            Ok(()) => self.complete(queue, jobs).await,
            // The error code does not say which instance was rejected, so send one request for
            // each.
            Err(error) if jobs.len() > 1 && RejectionKind::from_code(error.code()).is_some() => {
                for job in jobs {
                    match self
                        .send_request(queue.operation, std::slice::from_ref(&job))
                        .await
                    {
                        Ok(()) => self.complete(queue, vec![job]).await,
                        Err(error) => self.fail(queue, &job, &JobError::Aws(error)),
                    }
                }
            }
            Err(error) => {
                for job in jobs {
                    self.fail(queue, &job, &JobError::Aws(error.clone()));
                }
            }
        }
    }

    /// Sends one request for several instances.
    async fn send_request(&self, operation: TagOperation, jobs: &[TagJob]) -> Result<(), AwsError> {
        let mut resources: Vec<Box<str>> = jobs.iter().map(|job| job.id.as_str().into()).collect();
        resources.sort();
        resources.dedup();
        let tags = self.options.tags.clone();
        let op = &self.op.clone().with_fresh_sleep_budget();
        match operation {
            TagOperation::Tag => {
                let request = CreateTags { resources, tags };
                let reason = "nodes lack the label of tagged instances";
                self.scope.client.write(op, request, reason).await
            }
            TagOperation::Untag => {
                let request = DeleteTags { resources, tags };
                let reason = "nodes were deleted";
                self.scope.client.write(op, request, reason).await
            }
        }
    }

    /// Completes jobs whose request succeeded. Nodes whose instance was tagged get the label first.
    async fn complete(&self, queue: &TagQueue, jobs: Vec<TagJob>) {
        if queue.operation == TagOperation::Untag {
            for job in &jobs {
                self.metrics.remove_instance(&job.id);
                queue.finish(&job.item);
            }
            return;
        }
        let label_writes: Vec<_> = jobs
            .into_iter()
            .map(|job| self.label_node(queue, job))
            .collect();
        stream::iter(label_writes)
            .buffer_unordered(MAX_CONCURRENT_LABELS)
            .collect::<()>()
            .await;
    }

    /// Labels the node of a tagged instance, and completes the job.
    async fn label_node(&self, queue: &TagQueue, job: TagJob) {
        let Some(node) = &job.node else {
            return queue.finish(&job.item);
        };
        // With the UID, the API server rejects the change if another node has the same name now.
        let patch =
            json!({"metadata": {"uid": node.uid, "labels": {LABEL: self.checksum.to_string()}}});
        let api: Api<Node> = Api::all(self.client.clone());
        match api
            .patch_metadata(&node.name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Ok(_) => {
                if plan::was_never_tagged(node) {
                    self.metrics.observe_first_tagging(age(node));
                }
                tracing::info!(node = %node.name, instance = %job.id, "instance tagged");
                queue.finish(&job.item);
            }
            Err(kube::Error::Api(status)) if status.code == 404 => queue.finish(&job.item),
            Err(error) => self.fail(queue, &job, &JobError::Label(Box::new(error))),
        }
    }

    /// Handles the error of a job: retries it later, or drops it.
    fn fail(&self, queue: &TagQueue, job: &TagJob, error: &JobError) {
        // First, check whether the process stops or is not the leader any more. If so, drop the
        // job: the next leader finds the node without its label.
        let failure = JobFailure::new(error);
        if self.op.may_write().is_err() || failure.is_shutdown {
            return queue.finish(&job.item);
        }
        // Then decide whether to retry the job.
        let failures = queue.queue.failed(&job.item);
        let text = failure.text;
        let node = &job.item.node;
        let instance = &job.id;
        let age = match &job.node {
            Some(node) => age(node),
            None => Duration::MAX,
        };
        match plan::plan_retry(queue.operation, failure.rejection, age, failures) {
            RetryAction::Drop(reason) => {
                tracing::info!(%node, %instance, operation = ?queue.operation, reason, error = text, "failed to change tags; not retrying");
                if queue.operation == TagOperation::Untag {
                    self.metrics.remove_instance(instance);
                }
                queue.finish(&job.item);
            }
            RetryAction::Retry => {
                let delay = BACKOFF
                    .delay(failures)
                    .max(failure.retry_after)
                    .max(self.reserve_slot());
                tracing::warn!(%node, %instance, operation = ?queue.operation, failures, ?delay, error = text, "failed to change tags; retrying");
                self.metrics.count_error(ErrorType::Total, instance);
                queue.queue.done(&job.item);
                queue.queue.add_after(job.item.clone(), delay);
            }
            RetryAction::GiveUp => {
                tracing::error!(%node, %instance, operation = ?queue.operation, failures, error = text, "failed to change tags; giving up");
                match queue.operation {
                    TagOperation::Tag => self.metrics.count_error(ErrorType::Exhausted, instance),
                    TagOperation::Untag => self.metrics.count_given_up(instance),
                }
                queue.finish(&job.item);
            }
        }
    }
}

/// Properties of an error that determine whether its job is retried.
struct JobFailure {
    text: String,
    rejection: Option<RejectionKind>,
    /// True if the request was not sent, because the process stops or is not the leader any more.
    is_shutdown: bool,
    /// Minimum retry delay, as AWS or a rate limiter asks for.
    retry_after: Duration,
}

impl JobFailure {
    fn new(error: &JobError) -> Self {
        match error {
            JobError::Aws(error) => {
                let cloud_error = CloudError::from(error.clone());
                Self {
                    text: cloud_error.chain(),
                    rejection: RejectionKind::from_code(error.code()),
                    is_shutdown: matches!(
                        cloud_error.kind(),
                        ErrorKind::NotLeader | ErrorKind::Canceled
                    ),
                    retry_after: cloud_error.retry_after().unwrap_or_default(),
                }
            }
            JobError::Label(_) => Self {
                text: chain(error),
                rejection: None,
                is_shutdown: false,
                retry_after: Duration::ZERO,
            },
        }
    }
}

fn age(node: &NodeView) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(node.created)).unwrap_or_default()
}
