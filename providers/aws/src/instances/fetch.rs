//! Requests for instances: all of the cluster, by the values of a filter, or by ID.

use std::collections::{HashMap, HashSet, VecDeque};

use ccm_core::{k8s::Interner, provider::Op};

use super::{
    instance::Instance,
    plan::{self, Batch, PAGE},
};
use crate::{
    api::{
        Action, AwsError, Filter, InstanceId,
        ec2::{self, DescribeInstances},
    },
    scope::Scope,
};

/// Result for one instance in an answer: `Ok(None)` proves that it does not exist.
pub(super) type FetchResult = Result<Option<Instance>, AwsError>;

/// AWS' error code for an unknown ID.
pub(super) const INSTANCE_NOT_FOUND: &str = "InvalidInstanceID.NotFound";
/// AWS' error code for an ID that can never exist.
pub(super) const INSTANCE_ID_MALFORMED: &str = "InvalidInstanceID.Malformed";

/// After this many rejections in one round the error messages do not help: the rest is queried so
/// that no ID can fail another.
const MAX_SPLITS: usize = 8;
/// Maximum number of rejections in one round. Otherwise many bad IDs (simulated nodes) would use up
/// the rate limit that all share. IDs that are not queried any more get an error and are queried
/// the next time.
const MAX_REJECTIONS: usize = 40;

/// States of an existing instance. AWS shows `terminated` instances for an hour, but without
/// anything that a Node needs.
const EXISTING_STATES: [&str; 5] = ["pending", "running", "shutting-down", "stopping", "stopped"];

/// Queries AWS for instances, without a cache.
pub(super) struct Fetch<'a> {
    pub(super) scope: &'a Scope,
    pub(super) strings: &'a Interner,
    pub(super) op: &'a Op,
}

impl Fetch<'_> {
    /// Lists the instances of the cluster, or of the VPC if there is no cluster ID:
    /// ⌈instances/1000⌉ calls.
    pub(super) async fn list(&self) -> Result<Vec<Instance>, AwsError> {
        let scope = self.scope;
        let cluster_or_vpc = match scope.cluster.filter() {
            Some(cluster) => cluster,
            None => Filter::new("vpc-id", [scope.vpc.as_str()]),
        };
        self.filtered(vec![cluster_or_vpc, existing()]).await
    }

    /// Finds instances by at most [`plan::MAX_FILTER_VALUES`] values of a filter, in any state but
    /// terminated.
    pub(super) async fn by_values(
        &self,
        mut filters: Vec<Filter>,
    ) -> Result<Vec<Instance>, AwsError> {
        filters.push(existing());
        self.filtered(filters).await
    }

    /// Queries instances by ID and returns one result for each. An ID that AWS rejects does not
    /// affect the others: they are queried again without it.
    pub(super) async fn by_ids(&self, ids: HashSet<InstanceId>) -> Vec<(InstanceId, FetchResult)> {
        let mut results = Vec::new();
        let mut batches = VecDeque::from(plan::batches(ids));
        let mut rejections = 0;
        while let Some(batch) = batches.pop_front() {
            let error = match self.batch(&batch).await {
                Ok(batch_results) => {
                    results.extend(batch_results);
                    continue;
                }
                Err(error) => error,
            };
            // A rejection proves that a single ID does not exist; a batch is split.
            rejections += 1;
            let is_about_ids =
                error.has_code(INSTANCE_NOT_FOUND) || error.has_code(INSTANCE_ID_MALFORMED);
            match batch {
                Batch::Ids(ids) if ids.len() == 1 && error.has_code(INSTANCE_NOT_FOUND) => {
                    results.extend(ids.into_iter().map(|id| (id, Ok(None))));
                }
                Batch::Ids(ids) if ids.len() > 1 && is_about_ids => {
                    let smaller_batches = if rejections < MAX_SPLITS {
                        plan::split(&ids, &error.to_string())
                    } else {
                        plan::split_safely(&ids)
                    };
                    for smaller_batch in smaller_batches.into_iter().rev() {
                        batches.push_front(smaller_batch);
                    }
                }
                batch => results.extend(failed(batch, &error)),
            }
            // Any other error would repeat for the rest; in particular, no more requests are sent
            // while AWS throttles.
            if !is_about_ids || rejections >= MAX_REJECTIONS {
                let error = if is_about_ids {
                    AwsError::no_response(
                        Action::DescribeInstances,
                        "not requested, because AWS rejected too many other IDs",
                    )
                } else {
                    error
                };
                for batch in batches.drain(..) {
                    results.extend(failed(batch, &error));
                }
            }
        }
        results
    }

    async fn batch(&self, batch: &Batch) -> Result<Vec<(InstanceId, FetchResult)>, AwsError> {
        let rows = match batch {
            Batch::Ids(ids) => {
                self.pages(DescribeInstances { ids: ids.clone(), ..DescribeInstances::default() })
                    .await?
            }
            Batch::Filter(ids) => {
                self.filtered(vec![Filter::new("instance-id", ids.iter().map(InstanceId::as_str))])
                    .await?
            }
        };
        let mut found: HashMap<InstanceId, Vec<Instance>> = HashMap::new();
        for row in rows {
            found.entry(row.id.clone()).or_default().push(row);
        }
        let mut results = Vec::with_capacity(batch.ids().len());
        for id in batch.ids() {
            let mut rows = found.remove(id).unwrap_or_default();
            let result = if rows.len() > 1 {
                let message = format!("multiple instances found for instance: {id}");
                Err(AwsError::no_response(Action::DescribeInstances, message))
            } else {
                Ok(rows.pop())
            };
            results.push((id.clone(), result));
        }
        Ok(results)
    }

    async fn filtered(&self, filters: Vec<Filter>) -> Result<Vec<Instance>, AwsError> {
        self.pages(DescribeInstances {
            filters,
            max_results: Some(PAGE),
            ..DescribeInstances::default()
        })
        .await
    }

    async fn pages(&self, request: DescribeInstances) -> Result<Vec<Instance>, AwsError> {
        let rows: Vec<ec2::Instance> = self
            .scope
            .client
            .read_all(self.op, request, |request, token| request.token = Some(token))
            .await?;
        Ok(rows
            .into_iter()
            .map(|row| Instance::of(row, &self.scope.cluster, self.strings))
            .collect())
    }
}

/// Returns this error for every ID of a batch.
fn failed(batch: Batch, error: &AwsError) -> impl Iterator<Item = (InstanceId, FetchResult)> {
    batch
        .into_ids()
        .into_iter()
        .map(|id| (id, Err(error.clone())))
}

fn existing() -> Filter {
    Filter::new("instance-state-name", EXISTING_STATES)
}
