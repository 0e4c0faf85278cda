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

/// What an answer says about an instance: `Ok(None)` is proof that there is none.
pub(super) type FetchResult = Result<Option<Instance>, AwsError>;

/// AWS' answer to an ID that it does not know.
pub(super) const INSTANCE_NOT_FOUND: &str = "InvalidInstanceID.NotFound";
/// AWS' answer to an ID that can never exist.
pub(super) const INSTANCE_ID_MALFORMED: &str = "InvalidInstanceID.Malformed";

/// After so many refusals in one round the message is no help: the rest is asked for so that no ID can fail another.
const MAX_SPLITS: usize = 8;
/// Most refusals of one round. Bad IDs in large numbers (simulated nodes) would otherwise use up the budget of everybody;
/// what is not asked for any more stays in doubt and is asked for the next time.
const MAX_REJECTIONS: usize = 40;

/// States in which an instance is there; `terminated` ones are shown for an hour and keep nothing that a Node needs.
const EXISTING_STATES: [&str; 5] = ["pending", "running", "shutting-down", "stopping", "stopped"];

/// Asks AWS about instances, without a cache.
pub(super) struct Fetch<'a> {
    pub(super) scope: &'a Scope,
    pub(super) strings: &'a Interner,
    pub(super) op: &'a Op,
}

impl Fetch<'_> {
    /// Lists the instances of the cluster: ⌈instances/1000⌉ calls. Without a cluster ID those of the VPC.
    pub(super) async fn list(&self) -> Result<Vec<Instance>, AwsError> {
        let scope = self.scope;
        let ours = scope.cluster.filter().unwrap_or_else(|| Filter::new("vpc-id", [scope.vpc.as_str()]));
        self.filtered(vec![ours, existing()]).await
    }

    /// Finds what has one of at most [`plan::MOST_VALUES`] values, in any state but terminated.
    pub(super) async fn by_values(&self, mut filters: Vec<Filter>) -> Result<Vec<Instance>, AwsError> {
        filters.push(existing());
        self.filtered(filters).await
    }

    /// Asks for instances by ID: one answer for each. What a bad ID or a failed request does to the others: nothing, they
    /// are asked for again without it.
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
            refusals += 1;
            let about_ids = error.has_code(INSTANCE_NOT_FOUND) || error.has_code(INSTANCE_ID_MALFORMED);
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
                batch => answers.extend(batch.ids().iter().map(|id| (id.clone(), Err(error.clone())))),
            }
            if !about_ids || refusals >= MAX_REJECTIONS {
                // What else went wrong would meet the others as well: whoever is throttled is not asked on.
                let error = || match about_ids {
                    true => {
                        AwsError::no_response(Action::DescribeInstances, "not asked for: too many others are refused")
                    }
                    false => error.clone(),
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
                self.pages(DescribeInstances { ids: ids.clone(), ..DescribeInstances::default() }).await?
            }
            Batch::Filter(ids) => {
                self.filtered(vec![Filter::new("instance-id", ids.iter().map(InstanceId::as_str))]).await?
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
        self.pages(DescribeInstances { filters, max_results: Some(PAGE), ..DescribeInstances::default() }).await
    }

    async fn pages(&self, request: DescribeInstances) -> Result<Vec<Instance>, AwsError> {
        let turn = |request: &mut DescribeInstances, token| request.token = Some(token);
        let rows: Vec<ec2::Instance> = self.scope.client.read_all(self.op, request, turn).await?;
        Ok(rows.into_iter().map(|row| Instance::of(row, &self.scope.cluster, self.strings)).collect())
    }
}

fn existing() -> Filter {
    Filter::new("instance-state-name", EXISTING_STATES)
}
