use std::{collections::BTreeSet, future::Future, net::Ipv4Addr, sync::Arc, time::Duration};

use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, CloudProvider, ErrorKind, Op, Progress, Route, RouteChange},
    write_gate::WriteGate,
};
use ipnet::{IpNet, Ipv4Net};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        RouteCloud,
        context::{CLUSTER, RuleContext},
        report::{Problem, Verdict},
    },
    cloud::CloudRoute,
    ids,
};

/// Maximum number of calls of one operation into which a rule injects a fault.
pub(super) const MAX_CALLS: u64 = 100;

/// Maximum number of calls until a pending change must be done.
const MAX_ROUNDS: usize = 200;

/// The answers of one call.
pub(super) type RawAnswers = Vec<Result<Progress, CloudError>>;
/// The answers once no change is pending any more.
pub(super) type Answers = Vec<Result<(), CloudError>>;

impl RuleContext<'_, dyn RouteCloud> {
    /// Returns a new provider with empty caches, after checking that it has routes.
    pub(super) async fn provider(&self) -> Verdict<Arc<dyn CloudProvider>> {
        let provider = self.make().await?;
        match provider.routes() {
            Some(_) => Ok(provider),
            None => Err(Problem::Unsupported("the provider has no routes".to_owned())),
        }
    }

    /// Returns a new provider of the second cluster.
    pub(super) async fn other_provider(&self) -> Verdict<Arc<dyn CloudProvider>> {
        match self.cloud.other_cluster().await? {
            Some(provider) => Ok(provider),
            None => self.provider().await,
        }
    }

    /// Creates an instance and returns its Node.
    pub(super) async fn node(&self) -> Verdict<Arc<NodeView>> {
        let uid = uuid::Uuid::new_v4().to_string().into();
        Ok(Arc::new(NodeView { uid, ..self.cloud.add_node(&self.name()).await? }))
    }

    /// Returns the Node of a deleted instance.
    pub(super) async fn node_without_instance(&self) -> Verdict<Arc<NodeView>> {
        let node = self.node().await?;
        self.cloud.remove_node(&node.name).await?;
        Ok(node)
    }

    /// Returns a network that no earlier call on this context returned.
    pub(super) fn network(&self) -> IpNet {
        // Rules use some hundred networks.
        let number = u32::try_from(self.number() % 65536).unwrap_or_default();
        let address = Ipv4Addr::from_bits((10 << 24) | (number << 8));
        Ipv4Net::new_assert(address, 24).into()
    }

    pub(super) fn op(&self) -> Op {
        self.op_with(CLUSTER, CancellationToken::new(), WriteGate::always_open())
    }

    pub(super) fn op_with(&self, cluster: &str, cancel: CancellationToken, gate: WriteGate) -> Op {
        Op::new(cluster, cancel, gate).with_deadline(Instant::now() + self.cloud.call_timeout())
    }

    pub(super) async fn list_with(
        &self,
        provider: &Arc<dyn CloudProvider>,
        op: &Op,
        nodes: &[Arc<NodeView>],
    ) -> Verdict<Result<Vec<Route>, CloudError>> {
        let routes = provider.routes().ok_or_else(missing_routes)?;
        Ok(self
            .in_time(routes.list(op, nodes))
            .await
            .and_then(|result| result))
    }

    /// Lists the routes. Another rule judges whether that succeeds.
    pub(super) async fn list(
        &self,
        provider: &Arc<dyn CloudProvider>,
        nodes: &[Arc<NodeView>],
    ) -> Verdict<Vec<Route>> {
        let listed = self.list_with(provider, &self.op(), nodes).await?;
        listed.map_err(|error| Problem::Blocked(ids::LISTED, show_error(&error)))
    }

    /// Applies changes and returns the answers as they are. If the call exceeds its deadline, every
    /// answer is an error.
    pub(super) async fn apply_raw(
        &self,
        provider: &Arc<dyn CloudProvider>,
        op: &Op,
        changes: &[RouteChange],
    ) -> Verdict<RawAnswers> {
        let routes = provider.routes().ok_or_else(missing_routes)?;
        let dropped = |error: CloudError| changes.iter().map(|_| Err(error.clone())).collect();
        Ok(self
            .in_time(routes.apply(op, changes))
            .await
            .unwrap_or_else(dropped))
    }

    /// Applies changes and returns one answer per change. Another rule judges the number of answers.
    pub(super) async fn apply_once(
        &self,
        provider: &Arc<dyn CloudProvider>,
        op: &Op,
        changes: &[RouteChange],
    ) -> Verdict<RawAnswers> {
        let answers = self.apply_raw(provider, op, changes).await?;
        match answers.len() == changes.len() {
            true => Ok(answers),
            false => Err(Problem::Blocked(
                ids::ANSWERS_IN_ORDER,
                format!("{} answers to {} changes", answers.len(), changes.len()),
            )),
        }
    }

    /// Applies changes until none is pending, in batches as large as the provider allows, with the
    /// delays that it asks for.
    pub(super) async fn apply_with(
        &self,
        provider: &Arc<dyn CloudProvider>,
        op: &Op,
        changes: &[RouteChange],
    ) -> Verdict<Answers> {
        let limits = provider.routes().ok_or_else(missing_routes)?.limits();
        let mut answers = Vec::with_capacity(changes.len());
        for batch in changes.chunks(limits.max_batch.get()) {
            let first = self.apply_once(provider, op, batch).await?;
            answers.extend(self.finish(provider, op, batch, first).await?);
        }
        Ok(answers)
    }

    /// Repeats the pending changes of a call until there are none.
    pub(super) async fn finish(
        &self,
        provider: &Arc<dyn CloudProvider>,
        op: &Op,
        changes: &[RouteChange],
        first: RawAnswers,
    ) -> Verdict<Answers> {
        let mut answers = first;
        for _ in 0..MAX_ROUNDS {
            // First find out what is pending, and for how long to wait.
            let mut pending = Vec::new();
            let mut delay = None;
            for (index, answer) in answers.iter().enumerate() {
                if let Ok(Progress::Pending { after, reason }) = answer {
                    if after.is_zero() {
                        let change = show(&changes[index]);
                        let observed = format!("pending without a delay: {change}: {reason}");
                        return Err(Problem::Failed(observed));
                    }
                    pending.push(index);
                    delay = Some(delay.map_or(*after, |delay: Duration| delay.min(*after)));
                }
            }
            let Some(delay) = delay else {
                return Ok(answers.into_iter().map(|answer| answer.map(drop)).collect());
            };
            // Then repeat it, as the framework does.
            tokio::time::sleep(delay).await;
            let repeated: Vec<_> = pending
                .iter()
                .map(|index| changes[*index].clone())
                .collect();
            let deadline = Instant::now() + self.cloud.call_timeout();
            let op = op.clone().with_deadline(deadline).with_fresh_sleep_budget();
            let again = self.apply_once(provider, &op, &repeated).await?;
            for (index, answer) in pending.into_iter().zip(again) {
                answers[index] = answer;
            }
        }
        let pending = answers
            .iter()
            .zip(changes)
            .find(|(answer, _)| matches!(answer, Ok(Progress::Pending { .. })));
        let change = pending.map(|(_, change)| show(change)).unwrap_or_default();
        Err(Problem::Failed(format!("still pending after {MAX_ROUNDS} calls: {change}")))
    }

    pub(super) async fn apply(
        &self,
        provider: &Arc<dyn CloudProvider>,
        changes: &[RouteChange],
    ) -> Verdict<Answers> {
        self.apply_with(provider, &self.op(), changes).await
    }

    /// Creates routes with one call each. Another rule judges whether that succeeds.
    pub(super) async fn create_all(
        &self,
        provider: &Arc<dyn CloudProvider>,
        changes: &[RouteChange],
    ) -> Verdict {
        for change in changes {
            let answers = self.apply(provider, std::slice::from_ref(change)).await?;
            check_all_succeeded(&answers)
                .map_err(|observed| Problem::Blocked(ids::LISTED, observed))?;
        }
        Ok(())
    }

    /// Creates a route and returns it as the provider lists it.
    pub(super) async fn create_and_list(
        &self,
        provider: &Arc<dyn CloudProvider>,
        node: &Arc<NodeView>,
    ) -> Verdict<Route> {
        let destination = self.network();
        self.create_all(provider, &[create(node, destination)])
            .await?;
        let routes = self.list(provider, &[node.clone()]).await?;
        let found = routes
            .iter()
            .find(|route| route.destination == destination)
            .cloned();
        found.ok_or_else(|| {
            Problem::Blocked(ids::LISTED, format!("{destination} is not among {routes:?}"))
        })
    }

    /// Returns the routes in the cloud.
    pub(super) async fn snapshot(&self) -> Verdict<BTreeSet<CloudRoute>> {
        Ok(self.cloud.routes().await?.into_iter().collect())
    }

    /// Checks that the cloud has exactly the routes of `before` and `desired`.
    pub(super) async fn check_routes_in_cloud(
        &self,
        before: &BTreeSet<CloudRoute>,
        desired: &[(IpNet, &Arc<NodeView>)],
    ) -> Verdict<Result<(), String>> {
        let snapshot = self.snapshot().await?;
        let lost: Vec<_> = before.difference(&snapshot).collect();
        let mut made: Vec<_> = snapshot
            .difference(before)
            .map(|route| (route.destination, route.node.clone()))
            .collect();
        let mut desired: Vec<_> = desired
            .iter()
            .map(|(net, node)| (*net, Some(node.name.to_string())))
            .collect();
        made.sort();
        desired.sort();
        Ok(match lost.is_empty() && made == desired {
            true => Ok(()),
            false => Err(format!(
                "existing routes {lost:?} are missing; new routes are {made:?} instead of {desired:?}"
            )),
        })
    }

    /// Drops a call that exceeds its deadline, as the framework does.
    async fn in_time<T>(&self, call: impl Future<Output = T>) -> Result<T, CloudError> {
        let limit = self.cloud.call_timeout() + Duration::from_secs(5);
        tokio::time::timeout(limit, call).await.map_err(|_| {
            CloudError::new(ErrorKind::Canceled, format!("no answer within {limit:?}"))
        })
    }
}

fn missing_routes() -> Problem {
    Problem::Failed("routes() returned None, but returned a capability before".to_owned())
}

pub(super) fn create(node: &Arc<NodeView>, destination: IpNet) -> RouteChange {
    RouteChange::Create { node: node.clone(), destination }
}

pub(super) fn show_error(error: &CloudError) -> String {
    format!("error {}: {}", error.kind(), error.chain())
}

/// Shows a change in one line.
pub(super) fn show(change: &RouteChange) -> String {
    match change {
        RouteChange::Create { node, destination } => {
            format!("create {destination} to node {}", node.name)
        }
        RouteChange::Delete(route) => {
            format!("delete route {} to {}", route.name, route.destination)
        }
    }
}

/// Returns an error with the index of the first change that failed.
pub(super) fn check_all_succeeded(answers: &Answers) -> Result<(), String> {
    match answers
        .iter()
        .enumerate()
        .find_map(|(index, answer)| Some((index, answer.as_ref().err()?)))
    {
        Some((index, error)) => Err(format!("change {index}: {}", show_error(error))),
        None => Ok(()),
    }
}

/// Converts an error into a failure of the rule.
pub(super) fn fail_on_error(result: Result<(), String>, what: &str) -> Verdict {
    result.map_err(|observed| Problem::Failed(format!("{what}: {observed}")))
}
