use std::{collections::BTreeSet, future::Future, net::Ipv4Addr, sync::Arc, time::Duration};

use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, CloudProvider, ErrorKind, Op, Route, RouteChange},
    write_gate::WriteGate,
};
use ipnet::{IpNet, Ipv4Net};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        RouteCloud,
        context::{CLUSTER, RuleContext},
        report::{Problem, Verdict, expect},
    },
    cloud::CloudRoute,
    ids,
};

/// Calls of one operation that are spoilt at most.
pub(super) const MAX_CALLS: u64 = 100;

pub(super) type Answers = Vec<Result<(), CloudError>>;

impl RuleContext<'_, dyn RouteCloud> {
    /// Makes a provider that remembers nothing and has routes.
    pub(super) async fn provider(&self) -> Verdict<Arc<dyn CloudProvider>> {
        let provider = self.make().await?;
        match provider.routes() {
            Some(_) => Ok(provider),
            None => Err(Problem::Unsupported("the provider has no routes".to_owned())),
        }
    }

    /// Makes a provider of the other cluster.
    pub(super) async fn other_provider(&self) -> Verdict<Arc<dyn CloudProvider>> {
        match self.cloud.other_cluster().await? {
            Some(provider) => Ok(provider),
            None => self.provider().await,
        }
    }

    /// Creates an instance and returns its node.
    pub(super) async fn node(&self) -> Verdict<Arc<NodeView>> {
        let uid = uuid::Uuid::new_v4().to_string().into();
        Ok(Arc::new(NodeView { uid, ..self.cloud.add_node(&self.name()).await? }))
    }

    /// Returns the node of an instance that is gone.
    pub(super) async fn lost_node(&self) -> Verdict<Arc<NodeView>> {
        let node = self.node().await?;
        self.cloud.remove_node(&node.name).await?;
        Ok(node)
    }

    /// Returns a network that no other call on this bench returns.
    pub(super) fn network(&self) -> IpNet {
        // Rules take some hundred networks.
        let number = u32::try_from(self.number() % 65536).unwrap_or_default();
        let address = Ipv4Addr::from_bits((10 << 24) | (number << 8));
        Ipv4Net::new_assert(address, 24).into()
    }

    pub(super) fn op(&self) -> Op {
        self.op_with(CLUSTER, CancellationToken::new(), WriteGate::always_open())
    }

    pub(super) fn op_with(&self, cluster: &str, cancel: CancellationToken, gate: WriteGate) -> Op {
        Op::new(cluster, cancel, gate).with_deadline(Instant::now() + self.cloud.patience())
    }

    pub(super) async fn list_with(
        &self,
        provider: &Arc<dyn CloudProvider>,
        op: &Op,
        nodes: &[Arc<NodeView>],
    ) -> Verdict<Result<Vec<Route>, CloudError>> {
        let routes = provider.routes().ok_or_else(lost_routes)?;
        Ok(self
            .in_time(routes.list(op, nodes))
            .await
            .and_then(|result| result))
    }

    /// Lists; that it can be done is another rule's matter.
    pub(super) async fn list(
        &self,
        provider: &Arc<dyn CloudProvider>,
        nodes: &[Arc<NodeView>],
    ) -> Verdict<Vec<Route>> {
        let listed = self.list_with(provider, &self.op(), nodes).await?;
        listed.map_err(|error| Problem::Blocked(ids::LISTED, show_error(&error)))
    }

    /// Applies; a call that was dropped answers every change with an error.
    pub(super) async fn apply_raw(
        &self,
        provider: &Arc<dyn CloudProvider>,
        op: &Op,
        changes: &[RouteChange],
    ) -> Verdict<Answers> {
        let routes = provider.routes().ok_or_else(lost_routes)?;
        let dropped = |error: CloudError| changes.iter().map(|_| Err(error.clone())).collect();
        Ok(self
            .in_time(routes.apply(op, changes))
            .await
            .unwrap_or_else(dropped))
    }

    /// Applies and gives every change its answer. A wrong number of answers is judged elsewhere.
    pub(super) async fn apply_with(
        &self,
        provider: &Arc<dyn CloudProvider>,
        op: &Op,
        changes: &[RouteChange],
    ) -> Verdict<Answers> {
        let answers = self.apply_raw(provider, op, changes).await?;
        match answers.len() == changes.len() {
            true => Ok(answers),
            false => Err(Problem::Blocked(
                ids::ANSWERS_IN_ORDER,
                format!("{} answers to {} changes", answers.len(), changes.len()),
            )),
        }
    }

    pub(super) async fn apply(
        &self,
        provider: &Arc<dyn CloudProvider>,
        changes: &[RouteChange],
    ) -> Verdict<Answers> {
        self.apply_with(provider, &self.op(), changes).await
    }

    /// Creates routes in one call each; that this can be done is another rule's matter.
    pub(super) async fn created(
        &self,
        provider: &Arc<dyn CloudProvider>,
        changes: &[RouteChange],
    ) -> Verdict {
        for change in changes {
            let answers = self.apply(provider, std::slice::from_ref(change)).await?;
            all_done(&answers).map_err(|seen| Problem::Blocked(ids::LISTED, seen))?;
        }
        Ok(())
    }

    /// Creates a route and returns it as listed.
    pub(super) async fn listed(
        &self,
        provider: &Arc<dyn CloudProvider>,
        node: &Arc<NodeView>,
    ) -> Verdict<Route> {
        let destination = self.network();
        self.created(provider, &[create(node, destination)]).await?;
        let routes = self.list(provider, &[node.clone()]).await?;
        let found = routes
            .iter()
            .find(|route| route.destination == destination)
            .cloned();
        found.ok_or_else(|| {
            Problem::Blocked(ids::LISTED, format!("{destination} is not among {routes:?}"))
        })
    }

    /// Returns what the cloud holds, sorted.
    pub(super) async fn world(&self) -> Verdict<BTreeSet<CloudRoute>> {
        Ok(self.cloud.routes().await?.into_iter().collect())
    }

    /// Checks that the cloud has, beside `before`, exactly these routes.
    pub(super) async fn holds(
        &self,
        before: &BTreeSet<CloudRoute>,
        wanted: &[(IpNet, &Arc<NodeView>)],
    ) -> Verdict<Result<(), String>> {
        let world = self.world().await?;
        let lost: Vec<_> = before.difference(&world).collect();
        let mut made: Vec<_> = world
            .difference(before)
            .map(|route| (route.destination, route.node.clone()))
            .collect();
        let mut wanted: Vec<_> = wanted
            .iter()
            .map(|(net, node)| (*net, Some(node.name.to_string())))
            .collect();
        made.sort();
        wanted.sort();
        Ok(match lost.is_empty() && made == wanted {
            true => Ok(()),
            false => Err(format!(
                "of what was there {lost:?} is missing; new is {made:?} instead of {wanted:?}"
            )),
        })
    }

    /// Drops a call that does not end at its deadline, as the framework does.
    async fn in_time<T>(&self, call: impl Future<Output = T>) -> Result<T, CloudError> {
        let limit = self.cloud.patience() + Duration::from_secs(5);
        tokio::time::timeout(limit, call).await.map_err(|_| {
            CloudError::new(ErrorKind::Canceled, format!("no answer within {limit:?}"))
        })
    }
}

fn lost_routes() -> Problem {
    Problem::Failed("the provider lost its routes".to_owned())
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

/// Returns the first error with its index.
pub(super) fn all_done(answers: &Answers) -> Result<(), String> {
    match answers
        .iter()
        .enumerate()
        .find_map(|(index, answer)| Some((index, answer.as_ref().err()?)))
    {
        Some((index, error)) => Err(format!("change {index}: {}", show_error(error))),
        None => Ok(()),
    }
}

/// Turns what was seen into a failure, unless all is well.
pub(super) fn check(result: Result<(), String>, what: &str) -> Verdict {
    let seen = result.err();
    expect(seen.is_none(), || format!("{what}: {}", seen.unwrap_or_default()))
}
