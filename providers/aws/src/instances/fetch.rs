use std::collections::{HashMap, HashSet};

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
        let ours = scope
            .cluster
            .filter()
            .unwrap_or_else(|| Filter::new("vpc-id", [scope.vpc.as_str()]));
        self.filtered(vec![ours, existing()]).await
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
        let mut answers = Vec::new();
        let mut batches = plan::batches(ids);
        batches.reverse();
        let mut refusals = 0;
        while let Some(batch) = batches.pop() {
            let error = match self.batch(&batch).await {
                Ok(found) => {
                    answers.extend(found);
                    continue;
                }
                Err(error) => error,
            };
            // A rejection proves that a single ID does not exist; a batch is split.
            refusals += 1;
            let about_ids =
                error.has_code(INSTANCE_NOT_FOUND) || error.has_code(INSTANCE_ID_MALFORMED);
            match batch {
                Batch::Ids(ids) if ids.len() == 1 && error.has_code(INSTANCE_NOT_FOUND) => {
                    answers.extend(ids.into_iter().map(|id| (id, Ok(None))));
                }
                Batch::Ids(ids) if ids.len() > 1 && about_ids => {
                    let split = if refusals < MAX_SPLITS {
                        plan::split(&ids, &error.to_string())
                    } else {
                        plan::split_safely(&ids)
                    };
                    batches.extend(split.into_iter().rev());
                }
                batch => answers.extend(
                    batch
                        .ids()
                        .iter()
                        .map(|id| (id.clone(), Err(error.clone()))),
                ),
            }
            if !about_ids || refusals >= MAX_REJECTIONS {
                // Any other error would repeat for the rest; in particular, no more requests are
                // sent while AWS throttles.
                let error = || {
                    if about_ids {
                        AwsError::no_response(
                            Action::DescribeInstances,
                            "not asked for: too many others are refused",
                        )
                    } else {
                        error.clone()
                    }
                };
                let rest = batches.drain(..).flat_map(|batch| batch.ids().to_vec());
                answers.extend(rest.map(|id| (id, Err(error()))));
            }
        }
        answers
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
        let mut one = |id: &InstanceId| {
            let mut rows = found.remove(id).unwrap_or_default();
            match rows.len() {
                0 | 1 => Ok(rows.pop()),
                _ => {
                    let message = format!("multiple instances found for instance: {id}");
                    Err(AwsError::no_response(Action::DescribeInstances, message))
                }
            }
        };
        Ok(batch.ids().iter().map(|id| (id.clone(), one(id))).collect())
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
        let turn = |request: &mut DescribeInstances, token| request.token = Some(token);
        let rows: Vec<ec2::Instance> = self.scope.client.read_all(self.op, request, turn).await?;
        Ok(rows
            .into_iter()
            .map(|row| Instance::of(row, &self.scope.cluster, self.strings))
            .collect())
    }
}

fn existing() -> Filter {
    Filter::new("instance-state-name", EXISTING_STATES)
}
