use std::{collections::BTreeMap, num::NonZeroUsize, sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{CloudError, Op};
use crate::k8s::{NodeAddress, NodeView};

/// Answers whether instances exist, whether they run, and what they are. Needed for the cloud-node and the
/// cloud-node-lifecycle controller.
///
/// Takes the place of upstream's `InstanceExists`, `InstanceShutdown` and `InstanceMetadata`: one question about many
/// nodes instead of three about each.
#[async_trait]
pub trait Instances: Send + Sync {
    /// Returns how many nodes one `describe` may name and how many may be in flight. Constant over the process.
    fn limits(&self) -> BatchLimits {
        BatchLimits::default()
    }

    /// Describes instances: one answer per query, in the order of the queries.
    ///
    /// Called with at most [`BatchLimits::max_batch`] queries: by the cloud-node controller for nodes to initialise and
    /// for periodic address updates, by the node-lifecycle controller for nodes that are not Ready and, as controls beside
    /// them, for a few that are. Look an instance
    /// up by [`NodeView::provider_id`] if there is one, otherwise by name or whatever
    /// [`CloudProvider::node_fields`](super::CloudProvider::node_fields) asked for.
    ///
    /// **[`InstanceStatus::NotFound`] deletes the Node object.** Answer it only when the cloud itself said, in a typed way,
    /// that there is no such instance, or when a complete listing does not hold it. An empty page, an instance in
    /// another region, a 403, a half-read listing, a cell that does not answer: all of these are an `Err` for that
    /// entry. A stopped instance exists. A terminated one that the cloud still shows is
    /// `Found` with [`PowerState::Terminated`], which the framework treats as gone.
    ///
    /// Read-only and repeatable. Answers may come from the provider's own snapshot if it is not older than the
    /// query's `max_age`.
    ///
    /// # Errors
    /// An inner `Err` concerns one node; an outer one the whole batch (credentials, throttling, outage). Neither ever
    /// leads to a deletion.
    async fn describe(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError>;
}

/// How a provider wants to be asked about many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Most nodes in one `describe`. Default 100.
    pub max_batch: NonZeroUsize,
    /// Most `describe` calls in flight. Default 4.
    pub max_in_flight: NonZeroUsize,
    /// How long a question waits for the next one to join its batch; the first one waits ten times as long at most.
    /// Default 10 ms.
    pub batch_window: Duration,
}

impl Default for BatchLimits {
    fn default() -> Self {
        // 100 is what EC2 recommends per DescribeInstances by ID; four in flight keep a 5,000-node start under ten
        // round trips without looking like a burst to a cloud's rate limiter.
        const BATCH: NonZeroUsize = NonZeroUsize::new(100).expect("not zero");
        const IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(4).expect("not zero");
        Self { max_batch: BATCH, max_in_flight: IN_FLIGHT, batch_window: Duration::from_millis(10) }
    }
}

/// A question about one node.
#[derive(Clone, Debug)]
pub struct InstanceQuery {
    /// The node as last observed.
    pub node: Arc<NodeView>,
    /// What the answer is for; a provider may leave out the rest of the metadata.
    pub scope: MetadataScope,
    /// How old the answer may be. Zero means: ask the cloud now.
    pub max_age: Duration,
}

/// What an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MetadataScope {
    /// Existence and power state only.
    PowerState,
    /// Addresses (and existence and power state).
    Addresses,
    /// All metadata.
    All,
}

/// What is known about a node's instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceStatus {
    /// Proved absent. Doubt is an `Err`, never this.
    NotFound,
    /// Present.
    Found {
        /// Power state.
        power_state: PowerState,
        /// Metadata, as far as [`InstanceQuery::scope`] asked for it.
        meta: InstanceMetadata,
    },
}

/// Power state of an instance, for the node-lifecycle controller. Initialisation and address updates go on in any
/// state but `Terminated`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PowerState {
    /// Runs.
    Running,
    /// Shut down, suspended or asleep; may be started again. Leads to the shutdown taint.
    Stopped,
    /// Gone for good but still listed. Counts as not found.
    Terminated,
    /// Between states. Nothing is done.
    Transitional,
    /// Not known. Nothing is done.
    Unknown,
}

/// What the framework writes on a node (upstream's `InstanceMetadata`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceMetadata {
    /// Value for `spec.providerID`, conventionally `<provider>://<id>`. Written only where the node has none; may be
    /// `None` if the node already has one.
    pub provider_id: Option<Box<str>>,
    /// Instance type for the two instance-type labels; no label when `None`.
    pub instance_type: Option<Box<str>>,
    /// Zone for the two zone labels; no label when `None`.
    pub zone: Option<Box<str>>,
    /// Region for the two region labels; no label when `None`.
    pub region: Option<Box<str>>,
    /// Addresses, most preferred first. Empty leaves the node's addresses alone.
    pub addresses: Vec<NodeAddress>,
    /// More labels, added at initialisation and never overwriting. Keys in the `kubernetes.io` and `k8s.io` name
    /// spaces are dropped.
    pub additional_labels: BTreeMap<Box<str>, Box<str>>,
}
