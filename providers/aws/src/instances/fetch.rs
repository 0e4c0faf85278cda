//! Requests for instances: all instances of the cluster, those that match a filter, or single ones
//! by ID.

use std::collections::{HashMap, HashSet, VecDeque};

use ccm_core::{k8s::Interner, provider::Op};

use super::{
    batching::{self, Batch, PAGE_SIZE},
    instance::Instance,
};
use crate::{
    api::{
        Action, AwsError, Filter, InstanceId,
        ec2::{self, DescribeInstances},
    },
    scope::Scope,
};

/// Result of a query for one instance. `Ok(None)` proves that the instance does not exist.
pub(super) type FetchResult = Result<Option<Instance>, AwsError>;

/// AWS' error code for an unknown ID.
pub(super) const INSTANCE_NOT_FOUND: &str = "InvalidInstanceID.NotFound";
/// AWS' error code for an ID that can never exist.
pub(super) const INSTANCE_ID_MALFORMED: &str = "InvalidInstanceID.Malformed";

/// Number of rejections in one round after which AWS' error messages are no longer used to split a
/// batch. From then on, batches are split so that no ID can fail another one.
const MAX_SPLITS_BY_MESSAGE: usize = 8;
/// Maximum number of rejections in one round. Without a limit, many bad IDs (such as those of
/// simulated nodes) would use up the rate limit that all controllers share. The remaining IDs get
/// an error and are queried in the next round.
const MAX_REJECTIONS: usize = 40;

/// States of an existing instance. AWS returns `terminated` instances for another hour, but without
/// the fields that a Node needs.
const EXISTING_STATES: [&str; 5] = ["pending", "running", "shutting-down", "stopping", "stopped"];

/// Queries AWS for instances, without a cache.
pub(super) struct Fetch<'a> {
    pub(super) scope: &'a Scope,
    pub(super) strings: &'a Interner,
    pub(super) op: &'a Op,
}

impl Fetch<'_> {
    /// Lists the instances of the cluster, or of the VPC if there is no cluster ID. Costs one call
    /// per 1,000 instances.
    pub(super) async fn list_cluster(&self) -> Result<Vec<Instance>, AwsError> {
        let scope = self.scope;
        let cluster_or_vpc = match scope.cluster.filter() {
            Some(cluster) => cluster,
            None => Filter::new("vpc-id", [scope.vpc.as_str()]),
        };
        self.describe_by_filters(vec![cluster_or_vpc, existing_filter()])
            .await
    }

    /// Finds the existing instances that match all filters. A filter may have at most
    /// [`batching::MAX_FILTER_VALUES`] values.
    pub(super) async fn find_existing(
        &self,
        mut filters: Vec<Filter>,
    ) -> Result<Vec<Instance>, AwsError> {
        filters.push(existing_filter());
        self.describe_by_filters(filters).await
    }

    /// Queries instances by ID and returns one result for each.
    ///
    /// AWS rejects a whole request because of a single bad ID. Such a batch is split and queried
    /// again until each bad ID has a request of its own, so that it does not affect the others.
    pub(super) async fn describe_by_ids(
        &self,
        ids: HashSet<InstanceId>,
    ) -> Vec<(InstanceId, FetchResult)> {
        let mut results = Vec::new();
        let mut pending_batches = VecDeque::from(batching::batches_of(ids));
        let mut rejections = 0;
        while let Some(batch) = pending_batches.pop_front() {
            let error = match self.describe_batch(&batch).await {
                Ok(batch_results) => {
                    results.extend(batch_results);
                    continue;
                }
                Err(error) => error,
            };
            // An error that is not about IDs would repeat for the remaining batches. In particular,
            // no more requests are sent while AWS throttles.
            if !is_about_ids(&error) {
                results.extend(fail_all(batch.into_ids(), &error));
                for batch in pending_batches {
                    results.extend(fail_all(batch.into_ids(), &error));
                }
                return results;
            }
            rejections += 1;
            // Split a batch with several IDs. If a request for a single ID is rejected, the
            // rejection is the result for this ID.
            match batch {
                Batch::Ids(ids) if ids.len() > 1 => {
                    let smaller_batches = if rejections < MAX_SPLITS_BY_MESSAGE {
                        batching::split_by_message(&ids, &error.to_string())
                    } else {
                        batching::split_safely(&ids)
                    };
                    for smaller_batch in smaller_batches.into_iter().rev() {
                        pending_batches.push_front(smaller_batch);
                    }
                }
                Batch::Ids(ids) if error.has_code(INSTANCE_NOT_FOUND) => {
                    results.extend(ids.into_iter().map(|id| (id, Ok(None))));
                }
                batch => results.extend(fail_all(batch.into_ids(), &error)),
            }
            if rejections >= MAX_REJECTIONS {
                let error = AwsError::no_response(
                    Action::DescribeInstances,
                    "not requested, because AWS rejected too many other IDs",
                );
                for batch in pending_batches {
                    results.extend(fail_all(batch.into_ids(), &error));
                }
                return results;
            }
        }
        results
    }

    /// Sends the request for one batch and returns one result for each of its IDs.
    async fn describe_batch(
        &self,
        batch: &Batch,
    ) -> Result<Vec<(InstanceId, FetchResult)>, AwsError> {
        let instances = match batch {
            Batch::Ids(ids) => {
                let request =
                    DescribeInstances { ids: ids.clone(), ..DescribeInstances::default() };
                self.read_all_pages(request).await?
            }
            Batch::Filter(ids) => {
                let filter = Filter::new("instance-id", ids.iter().map(InstanceId::as_str));
                self.describe_by_filters(vec![filter]).await?
            }
        };
        let mut instances_by_id: HashMap<InstanceId, Vec<Instance>> = HashMap::new();
        for instance in instances {
            instances_by_id
                .entry(instance.id.clone())
                .or_default()
                .push(instance);
        }
        let mut results = Vec::with_capacity(batch.ids().len());
        for id in batch.ids() {
            let mut matches = instances_by_id.remove(id).unwrap_or_default();
            let result = if matches.len() > 1 {
                let message = format!("multiple instances found for instance: {id}");
                Err(AwsError::no_response(Action::DescribeInstances, message))
            } else {
                Ok(matches.pop())
            };
            results.push((id.clone(), result));
        }
        Ok(results)
    }

    async fn describe_by_filters(&self, filters: Vec<Filter>) -> Result<Vec<Instance>, AwsError> {
        self.read_all_pages(DescribeInstances {
            filters,
            max_results: Some(PAGE_SIZE),
            ..DescribeInstances::default()
        })
        .await
    }

    async fn read_all_pages(&self, request: DescribeInstances) -> Result<Vec<Instance>, AwsError> {
        let instances: Vec<ec2::Instance> = self
            .scope
            .client
            .read_all(self.op, request, |request, token| request.token = Some(token))
            .await?;
        Ok(instances
            .into_iter()
            .map(|instance| Instance::new(instance, &self.scope.cluster, self.strings))
            .collect())
    }
}

/// Returns true if AWS rejected a request because of the IDs in it.
fn is_about_ids(error: &AwsError) -> bool {
    error.has_code(INSTANCE_NOT_FOUND) || error.has_code(INSTANCE_ID_MALFORMED)
}

/// Returns the same error as the result of every ID.
fn fail_all(
    ids: Vec<InstanceId>,
    error: &AwsError,
) -> impl Iterator<Item = (InstanceId, FetchResult)> {
    ids.into_iter().map(|id| (id, Err(error.clone())))
}

fn existing_filter() -> Filter {
    Filter::new("instance-state-name", EXISTING_STATES)
}
