use std::{sync::Arc, time::Duration};

use ccm_core::{
    k8s::NodeView,
    provider::{
        CloudError, CloudProvider, InstanceMetadata, InstanceQuery, InstanceStatus, MetadataScope,
        Op, PowerState,
    },
};

use super::{
    super::{
        InstanceCloud,
        context::{RuleContext, open_op},
        report::{Problem, Verdict},
    },
    ids,
};

/// Timeout of a provider call, as in the framework.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) type DescribeResult = Result<InstanceStatus, CloudError>;

impl RuleContext<'_, dyn InstanceCloud> {
    /// Creates a running instance and returns the name of its Node.
    pub(super) async fn create(&self) -> Verdict<String> {
        let name = self.reserve();
        self.cloud.create(&name).await?;
        Ok(name)
    }

    pub(super) async fn create_many(&self, count: usize) -> Verdict<Vec<String>> {
        let mut names = Vec::with_capacity(count);
        for _ in 0..count {
            names.push(self.create().await?);
        }
        Ok(names)
    }

    /// Removes injected faults and deletes the instances of the rule.
    pub(in super::super) async fn clean(&self) -> Verdict {
        self.cloud.restore().await?;
        let created = std::mem::take(&mut *self.created.lock());
        for name in created {
            self.cloud.delete(&name).await?;
        }
        Ok(())
    }

    /// Returns a new provider with empty caches, after checking that it has instances.
    pub(super) async fn provider(&self) -> Verdict<Arc<dyn CloudProvider>> {
        let provider = self.make().await?;
        match provider.instances() {
            Some(_) => Ok(provider),
            None => Err(Problem::Unsupported("the provider has no instances".to_owned())),
        }
    }

    /// Returns a query for a Node without provider ID.
    pub(super) fn query(&self, name: &str) -> InstanceQuery {
        InstanceQuery {
            node: Arc::new(self.cloud.node(name)),
            scope: MetadataScope::All,
            max_age: Duration::ZERO,
        }
    }

    /// Returns a query for a Node with a provider ID.
    pub(super) fn query_by_id(&self, name: &str, id: &str) -> InstanceQuery {
        let node = NodeView { provider_id: Some(Arc::from(id)), ..self.cloud.node(name) };
        InstanceQuery {
            node: Arc::new(node),
            scope: MetadataScope::All,
            max_age: Duration::ZERO,
        }
    }

    /// Describes instances and returns one answer per query. An error of the batch becomes the answer
    /// to each query. Another rule judges the number of answers.
    pub(super) async fn describe(
        &self,
        provider: &Arc<dyn CloudProvider>,
        queries: &[InstanceQuery],
    ) -> Verdict<Vec<DescribeResult>> {
        let answers = match self.describe_raw(provider, &open_op(), queries).await? {
            Ok(answers) => answers,
            Err(error) => vec![Err(error); queries.len()],
        };
        match answers.len() == queries.len() {
            true => Ok(answers),
            false => Err(Problem::Blocked(
                ids::ONE_ANSWER_PER_QUERY,
                format!("{} answers to {} queries", answers.len(), queries.len()),
            )),
        }
    }

    pub(super) async fn describe_raw(
        &self,
        provider: &Arc<dyn CloudProvider>,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Verdict<Result<Vec<DescribeResult>, CloudError>> {
        let Some(instances) = provider.instances() else {
            return Err(Problem::Failed(
                "instances() returned None, but returned a capability before".to_owned(),
            ));
        };
        let asked = tokio::time::timeout(CALL_TIMEOUT, instances.describe(op, queries)).await;
        asked.map_err(|_| Problem::Failed(format!("no answer within {CALL_TIMEOUT:?}")))
    }

    /// Describes one instance with a new provider.
    pub(super) async fn describe_one(&self, query: InstanceQuery) -> Verdict<DescribeResult> {
        let provider = self.provider().await?;
        let mut answers = self.describe(&provider, &[query]).await?;
        // `describe` checked the number of answers.
        Ok(answers.remove(0))
    }

    /// Compares a provider's answer with that of a new provider. The inner error describes the
    /// difference.
    pub(super) async fn check_fresh(
        &self,
        provider: &Arc<dyn CloudProvider>,
        query: &InstanceQuery,
    ) -> Verdict<Result<(), String>> {
        let mut observed = self.describe(provider, std::slice::from_ref(query)).await?;
        let (observed, expected) = (observed.remove(0), self.describe_one(query.clone()).await?);
        let power_state_of = |answer: &DescribeResult| match answer {
            Ok(InstanceStatus::NotFound) => Some(None),
            Ok(InstanceStatus::Found { power_state: power, .. }) => Some(Some(*power)),
            Err(_) => None,
        };
        Ok(match power_state_of(&observed) == power_state_of(&expected) {
            true => Ok(()),
            false => {
                Err(format!("{}; a new provider answers: {}", show(&observed), show(&expected)))
            }
        })
    }

    /// Returns the metadata of a running instance from a new provider. Another rule judges whether
    /// the instance is found.
    pub(super) async fn metadata(&self, name: &str) -> Verdict<InstanceMetadata> {
        match self.describe_one(self.query(name)).await? {
            Ok(InstanceStatus::Found { power_state: PowerState::Running, meta }) => Ok(meta),
            other => Err(Problem::Blocked(ids::FOUND_BY_NAME, show(&other))),
        }
    }

    /// Returns the provider ID of a running instance. Another rule judges whether the instance is
    /// found by it.
    pub(super) async fn provider_id(&self, name: &str) -> Verdict<Box<str>> {
        let blocked =
            |observed: &str| Problem::Blocked(ids::PROVIDER_ID_ROUND_TRIP, observed.to_owned());
        let id = self
            .metadata(name)
            .await?
            .provider_id
            .ok_or_else(|| blocked("no provider ID"))?;
        match self.describe_one(self.query_by_id(name, &id)).await? {
            Ok(InstanceStatus::Found { .. }) => Ok(id),
            other => Err(blocked(&show(&other))),
        }
    }
}

/// Shows an answer in one line.
pub(super) fn show(answer: &DescribeResult) -> String {
    match answer {
        Ok(InstanceStatus::NotFound) => "not found".to_owned(),
        Ok(InstanceStatus::Found { power_state: power, meta }) => {
            format!(
                "found, {power:?}, provider ID {}",
                meta.provider_id.as_deref().unwrap_or("missing")
            )
        }
        Err(error) => format!("error {}: {}", error.kind(), error.chain()),
    }
}
