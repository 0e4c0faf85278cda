//! Sends the tagging requests and handles their results.

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
    plan::{self, Item, ItemDecision, LABEL, RejectionKind, RetryDecision, TagOperation},
};
use crate::api::{
    AwsError, InstanceId,
    ec2::{CreateTags, DeleteTags},
};

/// Back-off between attempts. Nine retries take four minutes, about as long as a new instance may
/// be unknown to AWS.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    cap: Duration::from_secs(1000),
};
/// Number of labels written at the same time.
const CONCURRENT_LABELS: usize = 10;

/// An item that is being processed.
struct TagJob {
    item: Item,
    node: Option<Arc<NodeView>>,
    id: InstanceId,
}

/// Why an item failed.
#[derive(Debug, thiserror::Error)]
enum JobError {
    #[error("instance not tagged")]
    Aws(#[source] AwsError),
    #[error("node not labelled")]
    Label(#[source] Box<kube::Error>),
}

impl TaggingController {
    /// Processes items of one kind.
    pub(super) async fn process(&self, queue: &TagQueue, items: Vec<Item>) {
        // First, drop the items that need no request any more.
        let nodes = self.nodes.list();
        let mut jobs = Vec::new();
        for item in items {
            let node = self.nodes.get(&item.node);
            match plan::decide(&item, node.as_deref(), &nodes, &self.checksum) {
                ItemDecision::Do(id) => jobs.push(TagJob { item, node, id }),
                ItemDecision::Skip(why) => {
                    tracing::debug!(node = %item.node, verb = ?item.verb, why, "nothing to do for a node");
                    if item.verb == TagOperation::Tag
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
        // Then send one request for the rest.
        match self.send(queue.verb, &jobs).await {
            Ok(()) => self.finish_tagged(queue, jobs).await,
            // Only the message says which instance was rejected, so each is sent alone.
            Err(error) if jobs.len() > 1 && RejectionKind::of(error.code()).is_some() => {
                for job in jobs {
                    match self.send(queue.verb, std::slice::from_ref(&job)).await {
                        Ok(()) => self.finish_tagged(queue, vec![job]).await,
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

    async fn send(&self, verb: TagOperation, jobs: &[TagJob]) -> Result<(), AwsError> {
        let mut resources: Vec<Box<str>> = jobs.iter().map(|job| job.id.as_str().into()).collect();
        resources.sort();
        resources.dedup();
        let tags = self.options.tags.clone();
        let op = &self.op.clone().with_fresh_sleep_budget();
        match verb {
            TagOperation::Tag => {
                let request = CreateTags { resources, tags };
                let why = "nodes lack the label of tagged instances";
                self.scope.client.write(op, request, why).await
            }
            TagOperation::Untag => {
                let request = DeleteTags { resources, tags };
                let why = "nodes were deleted";
                self.scope.client.write(op, request, why).await
            }
        }
    }

    /// Completes jobs whose request succeeded; a tagged node gets its label first.
    async fn finish_tagged(&self, queue: &TagQueue, jobs: Vec<TagJob>) {
        if queue.verb == TagOperation::Untag {
            for job in &jobs {
                self.metrics.remove_instance(&job.id);
                queue.finish(&job.item);
            }
            return;
        }
        let labelled: Vec<_> = jobs.into_iter().map(|job| self.label(queue, job)).collect();
        stream::iter(labelled)
            .buffer_unordered(CONCURRENT_LABELS)
            .collect::<()>()
            .await;
    }

    async fn label(&self, queue: &TagQueue, job: TagJob) {
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
                if plan::is_first(node) {
                    self.metrics.first_tagged(age(node));
                }
                tracing::info!(node = %node.name, instance = %job.id, "instance tagged");
                queue.finish(&job.item);
            }
            Err(kube::Error::Api(status)) if status.code == 404 => queue.finish(&job.item),
            Err(error) => self.fail(queue, &job, &JobError::Label(Box::new(error))),
        }
    }

    fn fail(&self, queue: &TagQueue, job: &TagJob, error: &JobError) {
        // First, check whether the process is stopping.
        let failure = JobFailure::of(error);
        if self.op.may_write().is_err() || failure.is_shutdown {
            // The next leader finds the node without its label.
            return queue.finish(&job.item);
        }
        // Then decide whether to retry.
        let failures = queue.queue.failed(&job.item);
        let text = failure.text;
        let node = &job.item.node;
        let instance = &job.id;
        let age = match &job.node {
            Some(node) => age(node),
            None => Duration::MAX,
        };
        match plan::after_failure(queue.verb, failure.rejection, age, failures) {
            RetryDecision::Skip(why) => {
                tracing::info!(%node, %instance, verb = ?queue.verb, why, error = text, "tags not changed, not retried");
                if queue.verb == TagOperation::Untag {
                    self.metrics.remove_instance(instance);
                }
                queue.finish(&job.item);
            }
            RetryDecision::Retry => {
                let delay = BACKOFF
                    .delay(failures)
                    .max(failure.retry_after)
                    .max(self.next_slot());
                tracing::warn!(%node, %instance, verb = ?queue.verb, failures, ?delay, error = text, "tags not changed");
                self.metrics.failed(ErrorType::Total, instance);
                queue.queue.done(&job.item);
                queue.queue.add_after(job.item.clone(), delay);
            }
            RetryDecision::GiveUp => {
                tracing::error!(%node, %instance, verb = ?queue.verb, failures, error = text, "tags not changed, given up");
                match queue.verb {
                    TagOperation::Tag => self.metrics.failed(ErrorType::Exhausted, instance),
                    TagOperation::Untag => self.metrics.given_up(instance),
                }
                queue.finish(&job.item);
            }
        }
    }
}

/// What an error means for its item.
struct JobFailure {
    text: String,
    rejection: Option<RejectionKind>,
    /// The request was not sent, because the process stops or does not lead any more.
    is_shutdown: bool,
    /// Retry delay that AWS or a rate limiter asks for.
    retry_after: Duration,
}

impl JobFailure {
    fn of(error: &JobError) -> Self {
        match error {
            JobError::Aws(error) => {
                let cloud = CloudError::from(error.clone());
                Self {
                    text: cloud.chain(),
                    rejection: RejectionKind::of(error.code()),
                    is_shutdown: matches!(cloud.kind(), ErrorKind::NotLeader | ErrorKind::Canceled),
                    retry_after: cloud.retry_after().unwrap_or_default(),
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
