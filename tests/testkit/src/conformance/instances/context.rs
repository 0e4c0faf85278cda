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

/// Longest wait for one answer: what the framework gives a call.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) type DescribeResult = Result<InstanceStatus, CloudError>;

impl RuleContext<'_, dyn InstanceCloud> {
    /// Creates a running instance and returns the name of its node.
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

    /// Undoes what the rule did to the cloud.
    pub(in super::super) async fn clean(&self) -> Verdict {
        self.cloud.restore().await?;
        let created = std::mem::take(&mut *self.created.lock());
        for name in created {
            self.cloud.delete(&name).await?;
        }
        Ok(())
    }

    /// Makes a provider that remembers nothing and has instances.
    pub(super) async fn provider(&self) -> Verdict<Arc<dyn CloudProvider>> {
        let provider = self.make().await?;
        match provider.instances() {
            Some(_) => Ok(provider),
            None => Err(Problem::Unsupported("the provider has no instances".to_owned())),
        }
    }

    /// Makes a query about a node without provider ID.
    pub(super) fn query(&self, name: &str) -> InstanceQuery {
        InstanceQuery {
            node: Arc::new(self.cloud.node(name)),
            scope: MetadataScope::All,
            max_age: Duration::ZERO,
        }
    }

    /// Makes a query about a node with a provider ID.
    pub(super) fn query_by_id(&self, name: &str, id: &str) -> InstanceQuery {
        let node = NodeView { provider_id: Some(Arc::from(id)), ..self.cloud.node(name) };
        InstanceQuery {
            node: Arc::new(node),
            scope: MetadataScope::All,
            max_age: Duration::ZERO,
        }
    }

    /// Asks and gives every query its answer; an error of the batch is an error of each. A wrong
    /// number of answers is judged elsewhere.
    pub(super) async fn ask(
        &self,
        provider: &Arc<dyn CloudProvider>,
        queries: &[InstanceQuery],
    ) -> Verdict<Vec<DescribeResult>> {
        let answers = match self.ask_raw(provider, &open_op(), queries).await? {
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

    pub(super) async fn ask_raw(
        &self,
        provider: &Arc<dyn CloudProvider>,
        op: &Op,
        queries: &[InstanceQuery],
    ) -> Verdict<Result<Vec<DescribeResult>, CloudError>> {
        let Some(instances) = provider.instances() else {
            return Err(Problem::Failed("the provider lost its instances".to_owned()));
        };
        let asked = tokio::time::timeout(PATIENCE, instances.describe(op, queries)).await;
        asked.map_err(|_| Problem::Failed(format!("no answer within {PATIENCE:?}")))
    }

    /// Asks a fresh provider about one node.
    pub(super) async fn ask_one(&self, query: InstanceQuery) -> Verdict<DescribeResult> {
        let provider = self.provider().await?;
        let mut answers = self.ask(&provider, &[query]).await?;
        // `ask` has counted the answers.
        Ok(answers.remove(0))
    }

    /// Compares a provider's answer with that of one which remembers nothing; the inner error says
    /// how they differ.
    pub(super) async fn is_fresh(
        &self,
        provider: &Arc<dyn CloudProvider>,
        query: &InstanceQuery,
    ) -> Verdict<Result<(), String>> {
        let mut seen = self.ask(provider, std::slice::from_ref(query)).await?;
        let (seen, truth) = (seen.remove(0), self.ask_one(query.clone()).await?);
        let state = |answer: &DescribeResult| match answer {
            Ok(InstanceStatus::NotFound) => Some(None),
            Ok(InstanceStatus::Found { power_state: power, .. }) => Some(Some(*power)),
            Err(_) => None,
        };
        Ok(match state(&seen) == state(&truth) {
            true => Ok(()),
            false => Err(format!("{}, where a new provider sees: {}", show(&seen), show(&truth))),
        })
    }

    /// Returns what a fresh provider says of an instance that exists; another rule judges whether
    /// it is found.
    pub(super) async fn meta(&self, name: &str) -> Verdict<InstanceMetadata> {
        match self.ask_one(self.query(name)).await? {
            Ok(InstanceStatus::Found { power_state: PowerState::Running, meta }) => Ok(meta),
            other => Err(Problem::Blocked(ids::FOUND_BY_NAME, show(&other))),
        }
    }

    /// Returns the provider ID of an instance that exists, found again by it; another rule judges
    /// whether it is.
    pub(super) async fn provider_id(&self, name: &str) -> Verdict<Box<str>> {
        let blocked = |seen: &str| Problem::Blocked(ids::PROVIDER_ID_ROUND_TRIP, seen.to_owned());
        let id = self
            .meta(name)
            .await?
            .provider_id
            .ok_or_else(|| blocked("no provider ID"))?;
        match self.ask_one(self.query_by_id(name, &id)).await? {
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
