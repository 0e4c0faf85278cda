//! Queries about the instances of Nodes.

use std::{collections::BTreeMap, num::NonZeroUsize, sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{CloudError, Op};
use crate::k8s::{NodeAddress, NodeView};

impl NodeView {
    /// Returns the instance's ID from the provider ID `<scheme>://<id>`, or `None` if the node has
    /// no provider ID yet.
    ///
    /// `is_valid` must accept only the cloud's own spelling of an ID. A parser often accepts more,
    /// such as `07` for the number 7. No instance has such an ID, so it would seem to be deleted.
    /// For IDs that are numbers, use [`is_canonical_number`].
    ///
    /// # Errors
    /// Returns [`ErrorKind::InvalidInput`](super::ErrorKind::InvalidInput) with the provider ID if
    /// it has another scheme, or if `is_valid` rejects the ID.
    pub fn id_in(
        &self,
        scheme: &str,
        is_valid: impl FnOnce(&str) -> bool,
    ) -> Result<Option<&str>, CloudError> {
        let Some(provider_id) = self.provider_id.as_deref() else {
            return Ok(None);
        };
        let id = provider_id
            .strip_prefix(scheme)
            .and_then(|rest| rest.strip_prefix("://"));
        match id {
            Some(id) if is_valid(id) => Ok(Some(id)),
            _ => Err(CloudError::invalid_input(format!(
                "provider ID {provider_id:?} is not {scheme}:// and the ID of an instance"
            ))),
        }
    }
}

/// Returns true if `text` is an unsigned number of at most 64 bits as clouds write it: digits without
/// a sign and without leading zeros. For [`NodeView::id_in`].
pub fn is_canonical_number(text: &str) -> bool {
    text.parse::<u64>()
        .is_ok_and(|number| number.to_string() == text)
}

/// Returns the existence, the power state and the metadata of instances. The cloud-node and the
/// cloud-node-lifecycle controllers need it.
///
/// Replaces upstream's `InstanceExists`, `InstanceShutdown` and `InstanceMetadata` by one call for
/// many nodes, instead of three calls for each node.
///
/// For a cloud that lists all instances and returns each by its ID, implement
/// [`SimpleInstances`](super::simple_instances::SimpleInstances) instead.
#[async_trait]
pub trait Instances: Send + Sync {
    /// Returns the maximum number of nodes in one [`describe`](Self::describe) and of calls in
    /// flight. The result must not change.
    fn limits(&self) -> BatchLimits {
        BatchLimits::default()
    }

    /// Describes instances. Returns one answer per query, in the order of the queries.
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
    /// Must not change anything. Answers may come from the provider's own cache if they are not
    /// older than the query's [`max_age`](InstanceQuery::max_age).
    ///
    /// # Errors
    /// An inner `Err` concerns one node. An outer `Err` concerns the whole batch, for example
    /// because of invalid credentials, throttling or an outage. Neither ever leads to a deletion.
    async fn describe(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError>;
}

/// The limits for queries about many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// The maximum number of nodes in one `describe` call. Default 100.
    pub max_batch: NonZeroUsize,
    /// The maximum number of `describe` calls in flight. Default 4.
    pub max_in_flight: NonZeroUsize,
    /// The time that a query waits for the next one to join its batch. The first query of a batch
    /// waits for at most ten times as long. Default 10 ms.
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
    /// The maximum age of the answer. Zero means that the cloud must be queried now.
    pub max_age: Duration,
}

/// The part of the metadata that a query needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MetadataScope {
    /// Existence and power state only.
    PowerState,
    /// Existence, power state and addresses.
    Addresses,
    /// All metadata.
    All,
}

/// The status of a node's instance in the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceStatus {
    /// The instance is proven to be absent. If absence is uncertain, return an `Err` instead.
    NotFound,
    /// The instance exists.
    Found {
        /// The power state.
        power_state: PowerState,
        /// The metadata, as far as [`InstanceQuery::scope`] requests it.
        meta: InstanceMetadata,
    },
}

/// The power state of an instance, for the node-lifecycle controller. Initialization and address
/// updates proceed in any state but [`Terminated`](Self::Terminated).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PowerState {
    /// The instance runs.
    Running,
    /// The instance is shut down, suspended or hibernated, and can be started again. The framework
    /// adds the shutdown taint.
    Stopped,
    /// The instance is permanently deleted but still listed. Counts as not found.
    Terminated,
    /// The instance is between two states, or in one that is neither, such as paused or in error. The
    /// framework does nothing.
    Transitional,
    /// The state is unknown. The framework does nothing.
    Unknown,
}

/// The metadata that the framework writes to a Node (upstream's `InstanceMetadata`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceMetadata {
    /// The value for `spec.providerID`, conventionally `<provider>://<id>`. The framework writes it
    /// only if the node has none. May be `None` if the node already has one.
    pub provider_id: Option<Box<str>>,
    /// The instance type, for the two instance-type labels. No label is written if it is `None`.
    pub instance_type: Option<Box<str>>,
    /// The zone, for the two zone labels. No label is written if it is `None`.
    pub zone: Option<Box<str>>,
    /// The region, for the two region labels. No label is written if it is `None`.
    pub region: Option<Box<str>>,
    /// The addresses, with the most preferred first. If there are none, the node's addresses stay
    /// unchanged.
    pub addresses: Vec<NodeAddress>,
    /// Additional labels, which are added at initialization and never overwrite existing labels.
    /// Keys with the prefixes `kubernetes.io` and `k8s.io` are ignored.
    pub additional_labels: BTreeMap<Box<str>, Box<str>>,
}
