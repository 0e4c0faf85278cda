//! The mock provider with one bug each in its routes, of the sorts that real providers have had.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, CloudProvider, ErrorKind, Op, Progress, Route, RouteChange, Routes},
    write_gate::WriteGate,
};
use ccm_mock::{MockCloud, MockProvider, cloud::CloudApi};
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{adapter::BY_HAND, instance_mutants::Dropped, scripted::SECRET};

type Answers = Vec<Result<Progress, CloudError>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    ListsWithoutNodes,
    ListsHostAddresses,
    ListsItsOwnWork,
    IgnoresIpv6,
    CreateAgainConflicts,
    CreateAgainMakesASecond,
    DeletesAllOfTheNode,
    DeleteMissingFails,
    DeleteNeedsTheInstance,
    HidesBlackholes,
    ListsFromMemory,
    ListTidiesUp,
    ListNeedsLeadership,
    ListHalfOnError,
    ListEmptyOnError,
    AnswersBackwards,
    AnswersOnce,
    StopsAtFirstError,
    AllFailTogether,
    AnswersBeforeDoing,
    RemembersIntent,
    FirstHundred,
    DeniedIsTransient,
    ForgetsRetryAfter,
    SleepsWhenThrottled,
    NeverAsksTheGate,
    AsksTheGateOncePerBatch,
    GoesOnWhenCancelled,
    CancelledIsTransient,
    BrokenByDrop,
    ListsAllClusters,
    DeletesInAnyCluster,
    ListsForeignTables,
    SharedScratch,
    Hangs,
    Panics,
    TellsSecrets,
    AppliesUnrecorded,
    NamesNoOperations,
}

impl Bug {
    /// Every bug with the rules that it breaks, in their order.
    pub(crate) const ALL: [(Self, &[&str]); 39] = [
        (Self::ListsWithoutNodes, &["listed-as-made", "both-families"]),
        (Self::ListsHostAddresses, &["listed-as-made"]),
        (Self::ListsItsOwnWork, &["listed-as-made", "both-families", "list-is-fresh"]),
        (Self::IgnoresIpv6, &["both-families"]),
        (Self::CreateAgainConflicts, &["create-existing", "apply-resumable", "cancellation"]),
        (Self::CreateAgainMakesASecond, &["create-existing", "apply-resumable", "cancellation"]),
        (
            Self::DeletesAllOfTheNode,
            &[
                "delete-exactly-listed",
                "failure-spoils-nothing",
                "apply-resumable",
                "cancellation",
                "clusters-apart",
                "foreign-untouched",
                "concurrent-use",
            ],
        ),
        (Self::DeleteMissingFails, &["delete-missing", "apply-resumable", "cancellation"]),
        (Self::DeleteNeedsTheInstance, &["delete-without-instance"]),
        (Self::HidesBlackholes, &["blackhole-is-told"]),
        (Self::ListsFromMemory, &["blackhole-is-told", "list-is-fresh"]),
        (Self::ListTidiesUp, &["list-is-read-only"]),
        (Self::ListNeedsLeadership, &["list-is-read-only"]),
        (Self::ListHalfOnError, &["list-whole-or-error"]),
        (Self::ListEmptyOnError, &["list-whole-or-error"]),
        (Self::AnswersBackwards, &["answers-in-order", "apply-resumable"]),
        (Self::AnswersOnce, &["answers-in-order"]),
        (Self::StopsAtFirstError, &["failure-spoils-nothing"]),
        (Self::AllFailTogether, &["failure-spoils-nothing"]),
        (Self::AnswersBeforeDoing, &["apply-resumable"]),
        (Self::RemembersIntent, &["apply-resumable", "cancellation"]),
        (Self::FirstHundred, &["large-batch"]),
        (Self::DeniedIsTransient, &["error-kinds"]),
        (Self::ForgetsRetryAfter, &["retry-after"]),
        (Self::SleepsWhenThrottled, &["sleeps-briefly"]),
        (Self::NeverAsksTheGate, &["changes-recorded", "no-write-without-leadership"]),
        (Self::AsksTheGateOncePerBatch, &["changes-recorded", "no-write-without-leadership"]),
        (Self::GoesOnWhenCancelled, &["cancellation"]),
        (Self::CancelledIsTransient, &["cancellation"]),
        (Self::BrokenByDrop, &["cancellation"]),
        (Self::ListsAllClusters, &["clusters-apart", "foreign-untouched"]),
        (Self::DeletesInAnyCluster, &["clusters-apart", "foreign-untouched"]),
        (Self::ListsForeignTables, &["foreign-untouched"]),
        (Self::SharedScratch, &["concurrent-use"]),
        (Self::Hangs, &["failure-spoils-nothing", "large-batch"]),
        (Self::Panics, &["large-batch"]),
        (Self::TellsSecrets, &["texts-presentable"]),
        (Self::AppliesUnrecorded, &["changes-recorded"]),
        (Self::NamesNoOperations, &["changes-recorded"]),
    ];
}

pub(crate) struct MutantProvider {
    inner: MockProvider,
    bug: Bug,
    broken: AtomicBool,
    remembered: Mutex<Vec<RouteChange>>,
    listed: Mutex<Option<Vec<Route>>>,
    scratch: Mutex<Vec<RouteChange>>,
}

fn destination(change: &RouteChange) -> IpNet {
    match change {
        RouteChange::Create { destination, .. } => *destination,
        RouteChange::Delete(route) => route.destination,
    }
}

impl MutantProvider {
    pub(crate) fn new(inner: MockProvider, bug: Bug) -> Self {
        Self {
            inner,
            bug,
            broken: AtomicBool::new(false),
            remembered: Mutex::default(),
            listed: Mutex::default(),
            scratch: Mutex::default(),
        }
    }

    fn real(&self) -> &dyn Routes {
        self.inner.routes().unwrap()
    }

    fn cloud(&self) -> &MockCloud {
        self.inner.cloud().unwrap()
    }

    /// Shows everything that the cloud has, whosever it is.
    fn everything(&self) -> Vec<Route> {
        let mut routes = Vec::new();
        for route in self.cloud().routes() {
            routes.push(Route {
                name: route.name.into(),
                node: Some(route.node.into()),
                node_addresses: None,
                destination: route.destination,
                blackhole: route.blackhole,
            });
        }
        routes
    }

    /// Sends changes one by one.
    async fn singly(&self, op: &Op, changes: &[RouteChange]) -> Answers {
        let mut answers = Vec::new();
        for change in changes {
            answers.extend(self.real().apply(op, std::slice::from_ref(change)).await);
        }
        answers
    }

    fn spoil(&self, error: CloudError) -> CloudError {
        match (self.bug, error.kind()) {
            (Bug::DeniedIsTransient, ErrorKind::Denied) => CloudError::transient("failed"),
            (Bug::CancelledIsTransient, ErrorKind::Canceled) => CloudError::transient("broke off"),
            (Bug::ForgetsRetryAfter, kind) => CloudError::new(kind, error.chain()),
            (Bug::TellsSecrets, kind) => {
                CloudError::new(kind, format!("login with {SECRET} failed"))
                    .with_retry_after(error.retry_after().unwrap_or_default())
            }
            _ => error,
        }
    }

    fn spoil_listed(&self, mut routes: Vec<Route>) -> Vec<Route> {
        match self.bug {
            Bug::ListsWithoutNodes => {
                for route in &mut routes {
                    route.node = None;
                }
            }
            Bug::ListsItsOwnWork => {
                let made = self.remembered.lock();
                routes.retain(|route| {
                    made.iter()
                        .any(|change| destination(change).trunc() == route.destination)
                });
            }
            Bug::ListsHostAddresses => {
                for route in &mut routes {
                    let made = self.remembered.lock();
                    let same = made
                        .iter()
                        .map(destination)
                        .find(|given| given.trunc() == route.destination);
                    route.destination = same.unwrap_or(route.destination);
                }
            }
            Bug::HidesBlackholes => {
                for route in &mut routes {
                    route.blackhole = false;
                }
            }
            Bug::ListsAllClusters => routes = self.everything(),
            Bug::FirstHundred => routes.truncate(100),
            _ => {}
        }
        routes
    }

    async fn list_at(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        match self.bug {
            Bug::ListNeedsLeadership => op.may_write()?,
            Bug::ListsFromMemory => {
                let known = self.listed.lock().clone();
                if let Some(known) = known {
                    return Ok(known);
                }
                let routes = self.real().list(op, nodes).await?;
                *self.listed.lock() = Some(routes.clone());
                return Ok(routes);
            }
            Bug::ListTidiesUp => {
                let routes = self.real().list(op, nodes).await?;
                for route in routes.iter().filter(|route| route.blackhole) {
                    self.cloud().delete_route(&route.name);
                }
                return Ok(routes);
            }
            Bug::ListHalfOnError | Bug::ListEmptyOnError => {
                let all = self.everything();
                let kept = if self.bug == Bug::ListHalfOnError {
                    all.len() / 2
                } else {
                    0
                };
                return Ok(self
                    .real()
                    .list(op, nodes)
                    .await
                    .unwrap_or_else(|_| all.into_iter().take(kept).collect()));
            }
            Bug::ListsForeignTables => {
                let mut routes = self.real().list(op, nodes).await?;
                let names: Vec<_> = self
                    .cloud()
                    .list_routes(BY_HAND)
                    .await?
                    .into_iter()
                    .map(|owned| owned.route.name)
                    .collect();
                routes.extend(
                    self.everything()
                        .into_iter()
                        .filter(|route| names.contains(&route.name.to_string())),
                );
                return Ok(routes);
            }
            Bug::SleepsWhenThrottled => match self.real().list(op, nodes).await {
                Err(error) if error.kind() == ErrorKind::Throttled => {
                    tokio::time::sleep(error.retry_after().unwrap_or_default()).await;
                }
                result => return result,
            },
            _ => {}
        }
        self.real().list(op, nodes).await
    }

    /// Bugs about single changes; `None` sends the change on.
    fn answer(&self, op: &Op, change: &RouteChange) -> Option<Result<Progress, CloudError>> {
        let all = self.cloud().routes();
        let there = all
            .iter()
            .any(|route| route.destination == destination(change).trunc());
        let conflict = || Some(Err(CloudError::new(ErrorKind::Conflict, "it exists")));
        match (self.bug, change) {
            (Bug::IgnoresIpv6, RouteChange::Create { destination: IpNet::V6(_), .. }) => {
                Some(Ok(Progress::Done))
            }
            (Bug::CreateAgainConflicts, RouteChange::Create { .. }) if there => conflict(),
            (Bug::DeleteMissingFails, RouteChange::Delete(route)) => {
                let gone = !all.iter().any(|listed| listed.name == *route.name);
                gone.then(|| Err(CloudError::new(ErrorKind::NotFound, "there is none")))
            }
            (Bug::DeleteNeedsTheInstance, RouteChange::Delete(Route { node: Some(node), .. })) => {
                let gone = self.cloud().instance(node).is_none();
                gone.then(|| Err(CloudError::transient(format!("where is {node}"))))
            }
            (Bug::CreateAgainMakesASecond, RouteChange::Create { node, destination }) if there => {
                let body = ccm_mock::cloud::RouteBody {
                    node: Some(node.name.to_string()),
                    destination: Some(*destination),
                    ..ccm_mock::cloud::RouteBody::default()
                };
                op.may_write().ok()?;
                self.cloud()
                    .put_route(&format!("{}-again", node.name), body)
                    .unwrap();
                Some(Ok(Progress::Done))
            }
            _ => None,
        }
    }

    /// Bugs in what else is deleted.
    fn delete_more(&self, op: &Op, changes: &[RouteChange]) {
        if op.may_write().is_err() {
            return;
        }
        for change in changes {
            let RouteChange::Delete(route) = change else {
                continue;
            };
            let hit = |listed: &ccm_mock::cloud::Route| match self.bug {
                Bug::DeletesAllOfTheNode => Some(&*listed.node) == route.node.as_deref(),
                Bug::DeletesInAnyCluster => listed.destination == route.destination,
                _ => false,
            };
            for listed in self.cloud().routes().into_iter().filter(hit) {
                self.cloud().delete_route(&listed.name);
            }
        }
    }

    // length: one arm for each bug
    async fn apply_at(&self, op: &Op, changes: &[RouteChange]) -> Answers {
        let deaf =
            || Op::new(op.cluster_name(), CancellationToken::new(), WriteGate::always_open());
        let dropped = |error: CloudError| changes.iter().map(|_| Err(error.clone())).collect();
        match self.bug {
            Bug::NeverAsksTheGate => {
                let deaf = deaf();
                op.run(async { Ok(self.real().apply(&deaf, changes).await) })
                    .await
                    .unwrap_or_else(dropped)
            }
            Bug::AppliesUnrecorded => {
                if let Err(error) = op.may_write() {
                    return dropped(error);
                }
                let deaf = deaf();
                op.run(async { Ok(self.real().apply(&deaf, changes).await) })
                    .await
                    .unwrap_or_else(dropped)
            }
            Bug::AsksTheGateOncePerBatch => {
                if let Err(error) = op.may_write() {
                    return dropped(error);
                }
                let deaf = deaf();
                op.run(async { Ok(self.singly(&deaf, changes).await) })
                    .await
                    .unwrap_or_else(dropped)
            }
            // A request that has begun is answered; those after it are not made any more.
            Bug::CancelledIsTransient => self.singly(op, changes).await,
            Bug::Hangs if changes.len() > 4 => std::future::pending().await,
            Bug::Panics if changes.len() > 10 => panic!("planted"),
            Bug::StopsAtFirstError => self.until_error(op, changes).await,
            Bug::AllFailTogether => {
                let answers = self.real().apply(op, changes).await;
                match answers.iter().find_map(|answer| answer.as_ref().err()) {
                    Some(error) => dropped(error.clone()),
                    None => answers,
                }
            }
            Bug::SleepsWhenThrottled => {
                let answers = self.real().apply(op, changes).await;
                let throttled = |error: &&CloudError| error.kind() == ErrorKind::Throttled;
                match answers
                    .iter()
                    .filter_map(|answer| answer.as_ref().err())
                    .find(throttled)
                {
                    Some(error) => {
                        tokio::time::sleep(error.retry_after().unwrap_or_default()).await;
                        self.real().apply(op, changes).await
                    }
                    None => answers,
                }
            }
            Bug::BrokenByDrop if self.broken.load(Ordering::Relaxed) => {
                dropped(CloudError::transient("broken"))
            }
            Bug::BrokenByDrop => {
                let mut guard = Dropped(&self.broken, false);
                let answers = self.real().apply(op, changes).await;
                guard.1 = true;
                answers
            }
            Bug::RemembersIntent => {
                let known = self.remembered.lock().clone();
                self.remembered.lock().extend_from_slice(changes);
                let new: Vec<_> = changes
                    .iter()
                    .filter(|change| !known.contains(change))
                    .cloned()
                    .collect();
                let mut answers = self.real().apply(op, &new).await.into_iter();
                changes
                    .iter()
                    .map(|change| {
                        if known.contains(change) {
                            Ok(Progress::Done)
                        } else {
                            answers.next().unwrap()
                        }
                    })
                    .collect()
            }
            _ => self.one_by_one(op, changes).await,
        }
    }

    /// Sends changes one by one until one fails, which answers the rest.
    async fn until_error(&self, op: &Op, changes: &[RouteChange]) -> Answers {
        let mut answers = Answers::new();
        for change in changes {
            answers.extend(match answers.last() {
                Some(Err(error)) => vec![Err(error.clone())],
                _ => self.real().apply(op, std::slice::from_ref(change)).await,
            });
        }
        answers
    }

    /// Answers some changes itself and sends the rest in one batch.
    async fn one_by_one(&self, op: &Op, changes: &[RouteChange]) -> Answers {
        let mut answers: Vec<_> = changes
            .iter()
            .map(|change| self.answer(op, change))
            .collect();
        let rest: Vec<_> = changes
            .iter()
            .zip(&answers)
            .filter(|(_, a)| a.is_none())
            .map(|(c, _)| c.clone())
            .collect();
        let mut sent = self.real().apply(op, &rest).await.into_iter();
        for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
            *answer = sent.next();
        }
        self.delete_more(op, changes);
        answers.into_iter().flatten().collect()
    }
}

#[async_trait]
impl Routes for MutantProvider {
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        match self.list_at(op, nodes).await {
            Ok(routes) => Ok(self.spoil_listed(routes)),
            Err(error) => Err(self.spoil(error)),
        }
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Answers {
        let mut changes = changes.to_vec();
        if self.bug == Bug::SharedScratch {
            self.scratch.lock().clone_from(&changes);
            tokio::time::sleep(Duration::from_millis(1)).await;
            changes.clone_from(&self.scratch.lock());
        }
        let mut answers: Answers = self.apply_at(op, &changes).await;
        answers = answers
            .into_iter()
            .map(|answer| answer.map_err(|error| self.spoil(error)))
            .collect();
        match self.bug {
            Bug::AnswersBackwards => answers.reverse(),
            Bug::AnswersOnce => answers.truncate(1),
            Bug::AnswersBeforeDoing => {
                let hasty = |answer: &Result<Progress, CloudError>| matches!(answer, Err(error) if error.kind() == ErrorKind::Transient);
                answers
                    .iter_mut()
                    .filter(|answer| hasty(answer))
                    .for_each(|answer| *answer = Ok(Progress::Done));
            }
            Bug::ListsFromMemory => *self.listed.lock() = None,
            Bug::ListsItsOwnWork | Bug::ListsHostAddresses => {
                self.remembered.lock().extend(changes);
            }
            Bug::GoesOnWhenCancelled if op.is_cancelled() => {
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
            _ => {}
        }
        answers
    }
}

#[async_trait]
impl CloudProvider for MutantProvider {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn mutation_operations(&self) -> &'static [&'static str] {
        if self.bug == Bug::NamesNoOperations {
            &[]
        } else {
            self.inner.mutation_operations()
        }
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self)
    }
}
