//! Queries about the instances of Nodes.

use std::{collections::BTreeMap, num::NonZeroUsize, sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{CloudError, Op};
use crate::k8s::{NodeAddress, NodeView};

/// Queries whether instances exist, whether they run, and their metadata. Needed for the cloud-node
/// and the cloud-node-lifecycle controller.
///
/// Replaces upstream's `InstanceExists`, `InstanceShutdown` and `InstanceMetadata`: one query for
/// many nodes instead of three for each.
#[async_trait]
pub trait Instances: Send + Sync {
    /// Returns how many nodes one `describe` may name and how many calls may be in flight. Constant
    /// over the process.
    fn limits(&self) -> BatchLimits {
        BatchLimits::default()
    }

    /// Describes instances: one answer per query, in the order of the queries.
    ///
    /// Called with at most [`BatchLimits::max_batch`] queries. The cloud-node controller calls it
    /// for nodes to initialise and for periodic address updates. The node-lifecycle controller
    /// calls it for nodes that are not Ready and, as a control sample beside them, for a few that
    /// are. Look an instance up by [`NodeView::provider_id`] if there is one, otherwise by name or
    /// by other data that [`CloudProvider::node_fields`](super::CloudProvider::node_fields)
    /// requests.
    ///
    /// **[`InstanceStatus::NotFound`] deletes the Node object.** Answer it only when the cloud
    /// itself said, with a typed error code, that there is no such instance, or when a complete
    /// listing does not contain it. An empty page, an instance in another region, a 403, an
    /// incompletely read listing, a cell that does not answer: all of these are an `Err` for that
    /// entry. A stopped instance exists. A terminated instance that the cloud still lists is
    /// `Found` with [`PowerState::Terminated`], which the framework treats as deleted.
    ///
    /// Read-only and repeatable. Answers may come from the provider's own cache if they are not
    /// older than the query's `max_age`.
    ///
    /// # Errors
    /// An inner `Err` concerns one node, an outer one the whole batch (credentials, throttling,
    /// outage). Neither ever leads to a deletion.
    async fn describe(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError>;
}

/// Limits for queries about many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Maximum number of nodes in one `describe`. Default 100.
    pub max_batch: NonZeroUsize,
    /// Maximum number of `describe` calls in flight. Default 4.
    pub max_in_flight: NonZeroUsize,
    /// How long a query waits for the next one to join its batch. The first one waits at most ten
    /// times as long. Default 10 ms.
    pub batch_window: Duration,
}

impl Default for BatchLimits {
    fn default() -> Self {
        // EC2 recommends 100 per DescribeInstances by ID. Four in flight keep a start with 5,000
        // nodes under ten round trips and do not look like a burst to a cloud's rate limiter.
        const BATCH: NonZeroUsize = NonZeroUsize::new(100).expect("not zero");
        const IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(4).expect("not zero");
        Self {
            max_batch: BATCH,
            max_in_flight: IN_FLIGHT,
            batch_window: Duration::from_millis(10),
        }
    }
}

/// A query about one node.
#[derive(Clone, Debug)]
pub struct InstanceQuery {
    /// The node as last observed.
    pub node: Arc<NodeView>,
    /// The part of the metadata that is needed. A provider may leave out the rest.
    pub scope: MetadataScope,
    /// Maximum age of the answer. Zero means that the cloud must be queried now.
    pub max_age: Duration,
}

/// Which part of the metadata a query needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MetadataScope {
    /// Existence and power state only.
    PowerState,
    /// Addresses (and existence and power state).
    Addresses,
    /// All metadata.
    All,
}

/// State of a node's instance in the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceStatus {
    /// Proven absent. If absence is uncertain, answer an `Err` instead.
    NotFound,
    /// Present.
    Found {
        /// Power state.
        power_state: PowerState,
        /// Metadata, as far as [`InstanceQuery::scope`] requests it.
        meta: InstanceMetadata,
    },
}

/// Power state of an instance, for the node-lifecycle controller. Initialisation and address
/// updates proceed in any state but `Terminated`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PowerState {
    /// Runs.
    Running,
    /// Shut down, suspended or hibernated; can be started again. Leads to the shutdown taint.
    Stopped,
    /// Permanently deleted but still listed. Counts as not found.
    Terminated,
    /// Between two states. The framework does nothing.
    Transitional,
    /// Unknown. The framework does nothing.
    Unknown,
}

/// What the framework writes to a Node (upstream's `InstanceMetadata`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceMetadata {
    /// Value for `spec.providerID`, conventionally `<provider>://<id>`. Written only where the node
    /// has none; may be `None` if the node already has one.
    pub provider_id: Option<Box<str>>,
    /// Instance type for the two instance-type labels; no label when `None`.
    pub instance_type: Option<Box<str>>,
    /// Zone for the two zone labels; no label when `None`.
    pub zone: Option<Box<str>>,
    /// Region for the two region labels; no label when `None`.
    pub region: Option<Box<str>>,
    /// Addresses, most preferred first. If empty, the node's addresses stay unchanged.
    pub addresses: Vec<NodeAddress>,
    /// Further labels, added at initialisation. They never overwrite existing labels. Keys with the
    /// prefixes `kubernetes.io` and `k8s.io` are dropped.
    pub additional_labels: BTreeMap<Box<str>, Box<str>>,
}
