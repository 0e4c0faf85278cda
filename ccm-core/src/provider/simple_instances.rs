//! Instances of clouds that list all instances and return each by its ID.
//!
//! A provider for such a cloud implements [`SimpleInstances`], which consists of two requests and
//! one pure function, and gets [`Instances`] from it. How many nodes are answered by a listing or
//! singly, the limit of concurrent requests, and what proves that an instance does not exist are
//! implemented here.
//!
//! A listing is trusted only for the instances that it contains. If its pages are numbered, an
//! instance that is deleted during the listing moves another one to a page that was already read,
//! and that one is then missing from the listing although it runs. Therefore each instance that the
//! listing does not contain is read by its ID, or by its name if the node has no provider ID.
//!
//! No state is kept between calls, so every answer is as fresh as
//! [`InstanceQuery::max_age`] may require.

use std::collections::HashMap;

use async_trait::async_trait;
use futures::{StreamExt, stream};

use super::{
    BatchLimits, CloudError, ErrorKind, InstanceMetadata, InstanceQuery, InstanceStatus, Instances,
    Op, PowerState,
};
use crate::k8s::NodeView;

/// The maximum number of queries that are answered without a listing. A few single requests cost
/// no more than the pages of a listing.
const MAX_SINGLE: usize = 4;
/// The maximum number of single requests in flight for one batch.
const MAX_IN_FLIGHT: usize = 8;

/// The requests to a cloud that lists instances and returns each by its ID.
#[async_trait]
pub trait SimpleInstances: Send + Sync {
    /// Returns the limits of [`Instances::limits`].
    fn batch_limits(&self) -> BatchLimits {
        BatchLimits::default()
    }

    /// Returns the ID of a node's instance from its provider ID ([`NodeView::id_in`]), or `None` if
    /// it has no provider ID. Must be pure.
    ///
    /// # Errors
    /// Must return [`ErrorKind::InvalidInput`] for a provider ID that no instance can have.
    fn id_of<'n>(&self, node: &'n NodeView) -> Result<Option<&'n str>, CloudError>;

    /// Lists all instances, or those with this name, which is that of a node. May list more,
    /// because the caller compares the names again.
    ///
    /// With a name, the listing must be complete, which a request with the name as its filter
    /// ensures. Without a name it should be, but instances that are missing are only read again.
    ///
    /// # Errors
    /// Must return an error if a page could not be read.
    async fn list_instances(
        &self,
        op: &Op,
        name: Option<&str>,
    ) -> Result<Vec<SimpleInstance>, CloudError>;

    /// Reads one instance. Returns `None` only if the cloud says that it does not exist
    /// ([`RestClient::get_if_exists`](super::rest::RestClient::get_if_exists)).
    ///
    /// **`None` deletes the Node object**; see [`Instances::describe`].
    ///
    /// # Errors
    /// No error is taken for a proof of absence, not even [`ErrorKind::NotFound`].
    async fn get_instance(&self, op: &Op, id: &str) -> Result<Option<SimpleInstance>, CloudError>;
}

/// An instance as the cloud describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimpleInstance {
    /// Its identifier in the cloud, as [`SimpleInstances::id_of`] returns it.
    pub id: Box<str>,
    /// The name of its node. A node is found by it until it has a provider ID.
    pub name: Box<str>,
    /// Its power state.
    pub power_state: PowerState,
    /// Its metadata, with the provider ID.
    pub meta: InstanceMetadata,
}

impl From<SimpleInstance> for InstanceStatus {
    fn from(instance: SimpleInstance) -> Self {
        Self::Found { power_state: instance.power_state, meta: instance.meta }
    }
}

#[async_trait]
impl<T: SimpleInstances> Instances for T {
    fn limits(&self) -> BatchLimits {
        self.batch_limits()
    }

    async fn describe(
        &self,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<InstanceStatus, CloudError>>, CloudError> {
        let listed = if queries.len() > MAX_SINGLE {
            self.list_instances(op, None).await?
        } else {
            Vec::new()
        };
        let listing = Listing::new(&listed);
        let requests: Vec<_> = queries
            .iter()
            .map(|query| answer(self, op, &listing, &query.node))
            .collect();
        let mut requests = stream::iter(requests).buffered(MAX_IN_FLIGHT);
        let mut answers = Vec::with_capacity(queries.len());
        while let Some(answer) = requests.next().await {
            let throttled = match &answer {
                Err(error) if error.kind() == ErrorKind::Throttled => Some(error.clone()),
                _ => None,
            };
            answers.push(answer);
            if let Some(error) = throttled {
                // Send no further requests to a cloud that throttles.
                for query in &queries[answers.len()..] {
                    let listed = find_listed(self, &listing, &query.node);
                    answers.push(match listed {
                        Ok(Some(instance)) => Ok(instance.clone().into()),
                        Ok(None) => Err(error.clone()),
                        Err(error) => Err(error),
                    });
                }
                break;
            }
        }
        Ok(answers)
    }
}

/// The instances of a listing.
struct Listing<'a> {
    by_id: HashMap<&'a str, &'a SimpleInstance>,
    by_name: HashMap<&'a str, Vec<&'a SimpleInstance>>,
}

impl<'a> Listing<'a> {
    fn new(instances: &'a [SimpleInstance]) -> Self {
        // Pages may overlap. The last copy of an instance is the freshest.
        let by_id: HashMap<_, _> = instances.iter().map(|one| (&*one.id, one)).collect();
        let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
        for instance in instances {
            let is_freshest = by_id
                .get(&*instance.id)
                .is_some_and(|freshest| std::ptr::eq(*freshest, instance));
            if is_freshest {
                by_name.entry(&*instance.name).or_default().push(instance);
            }
        }
        Self { by_id, by_name }
    }

    /// Returns the only instance with this name. A terminated instance counts only if there is no
    /// other, because its name may be used again.
    fn with_name(&self, name: &str) -> Result<Option<&'a SimpleInstance>, CloudError> {
        let all = self.by_name.get(name).map_or(&[][..], Vec::as_slice);
        let mut existing = all
            .iter()
            .filter(|instance| instance.power_state != PowerState::Terminated);
        match (existing.next(), existing.count()) {
            (None, _) => Ok(all.first().copied()),
            (Some(instance), 0) => Ok(Some(instance)),
            (Some(_), others) => {
                let message = format!("{} instances have the name {name}", others + 1);
                Err(CloudError::new(ErrorKind::Conflict, message))
            }
        }
    }
}

/// Finds a node's instance in the listing. A terminated instance is not found by its name, because
/// the listing may lack the one that has its name now.
fn find_listed<'a, T: SimpleInstances>(
    cloud: &T,
    listing: &Listing<'a>,
    node: &NodeView,
) -> Result<Option<&'a SimpleInstance>, CloudError> {
    Ok(match cloud.id_of(node)? {
        Some(id) => listing.by_id.get(id).copied(),
        None => listing
            .with_name(&node.name)?
            .filter(|instance| instance.power_state != PowerState::Terminated),
    })
}

/// Answers about one node from the listing, or with a request if it does not contain the instance.
async fn answer<T: SimpleInstances>(
    cloud: &T,
    op: &Op,
    listing: &Listing<'_>,
    node: &NodeView,
) -> Result<InstanceStatus, CloudError> {
    if let Some(instance) = find_listed(cloud, listing, node)? {
        return Ok(instance.clone().into());
    }
    let found = match cloud.id_of(node)? {
        Some(id) => get(cloud, op, id).await?,
        None => find(cloud, op, &node.name).await?,
    };
    Ok(found.map_or(InstanceStatus::NotFound, InstanceStatus::from))
}

/// Reads an instance by its ID.
async fn get<T: SimpleInstances>(
    cloud: &T,
    op: &Op,
    id: &str,
) -> Result<Option<SimpleInstance>, CloudError> {
    let found = cloud.get_instance(op, id).await?;
    match &found {
        Some(other) if *other.id != *id => Err(CloudError::transient(format!(
            "the cloud returned instance {} instead of {id}",
            other.id
        ))),
        _ => Ok(found),
    }
}

/// Reads an instance by its name.
async fn find<T: SimpleInstances>(
    cloud: &T,
    op: &Op,
    name: &str,
) -> Result<Option<SimpleInstance>, CloudError> {
    let listed = cloud.list_instances(op, Some(name)).await?;
    Ok(Listing::new(&listed).with_name(name)?.cloned())
}

#[cfg(test)]
#[path = "simple_instances_tests.rs"]
mod tests;
