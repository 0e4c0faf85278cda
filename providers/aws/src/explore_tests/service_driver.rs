//! Whoever looks after Services, as the framework does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use ccm_core::{
    k8s::{LbStatus, ServiceView},
    provider::{
        Backends, CloudError, CloudProvider as _, ErrorKind, LbOutcome, LbSpec, Op, Owner,
        Progress, ReadMode, RetainOutcome, SourceRanges,
    },
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::account::{Account, op, targets};
use crate::{
    fake::{CLUSTER, FakeAws},
    lb::{
        spec::annotations::PREFIX,
        tests::fixture::{fresh, reference, service as template, slice},
    },
    ownership_tags::SERVICE_TAG,
    provider::AwsProvider,
};

/// Addresses of pods, on the first node.
pub(super) const PODS: [&str; 3] = ["10.0.128.200", "10.0.128.201", "10.0.128.202"];
/// How often something is asked for until it must be done.
const MOST_ROUNDS: usize = 60;
/// Pause of the framework after an error that says nothing else.
const BACKOFF: Duration = Duration::from_secs(5);

/// A Service and its backends, by number.
#[derive(Clone)]
pub(super) struct ServiceInput {
    pub(super) service: ServiceView,
    pub(super) backends: &'static [usize],
}

/// What is asked for.
#[derive(Clone)]
pub(super) enum DriverCall {
    /// A state of a Service.
    Ensure(ServiceInput),
    /// Other backends and nothing else.
    Update(ServiceInput),
    /// A state that cannot be had: which words tell.
    Refused(ServiceInput, &'static str),
    /// A state that nobody wants any more after the first attempt, whatever came of it.
    GivenUp(ServiceInput),
    Delete(ServiceInput),
    /// Nothing that is left of a Service that does not exist any more.
    Orphans(ServiceInput),
    /// The deletion of a Service that asks to keep its load balancer.
    Retain(ServiceInput),
}

impl DriverCall {
    /// Whether nothing of the Service is to be left.
    pub(super) fn deletes(&self) -> bool {
        matches!(self, Self::Delete(_) | Self::Orphans(_))
    }

    /// Whether the Service does not exist afterwards.
    pub(super) fn ends_service(&self) -> bool {
        self.deletes() || matches!(self, Self::Retain(_))
    }

    pub(super) fn wish(&self) -> &ServiceInput {
        match self {
            Self::Ensure(wish)
            | Self::Update(wish)
            | Self::Refused(wish, _)
            | Self::GivenUp(wish)
            | Self::Delete(wish)
            | Self::Orphans(wish)
            | Self::Retain(wish) => wish,
        }
    }
}

pub(super) fn uid(name: &str) -> Box<str> {
    template(name, &[]).uid
}

/// What the process knows of having done for a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DriverState {
    #[default]
    Unknown,
    Attempted,
    Applied,
}

/// How a turn ended.
struct CallResult {
    status: Option<LbStatus>,
    annotations: Annotations,
    result: Result<Progress, CloudError>,
}

/// Host names, each with the time since when it is shown.
type Published = Vec<(Box<str>, Instant)>;

/// Annotations that a Service is to have, or not to have.
type Annotations = BTreeMap<Box<str>, Option<Box<str>>>;

impl From<Result<Progress, CloudError>> for CallResult {
    fn from(result: Result<Progress, CloudError>) -> Self {
        Self { status: None, annotations: Annotations::new(), result }
    }
}

impl From<LbOutcome> for CallResult {
    fn from(outcome: LbOutcome) -> Self {
        Self {
            status: outcome.status,
            annotations: outcome.annotations,
            result: outcome.result,
        }
    }
}

/// Whoever looks after the Services of a case.
pub(super) struct ServiceDriver<'a> {
    pub(super) world: &'a Account,
    process: Option<Arc<AwsProvider>>,
    standing: BTreeMap<Box<str>, DriverState>,
    /// What Services show.
    shown: BTreeMap<Box<str>, LbStatus>,
    /// Annotations that processes wrote on Services.
    annotations: BTreeMap<Box<str>, Annotations>,
    /// The host names that Services have shown, in order.
    pub(super) published: Arc<Mutex<Published>>,
}

impl<'a> ServiceDriver<'a> {
    pub(super) fn new(world: &'a Account) -> Self {
        Self {
            world,
            process: None,
            standing: BTreeMap::new(),
            shown: BTreeMap::new(),
            annotations: BTreeMap::new(),
            published: Arc::default(),
        }
    }

    /// Ends the process.
    pub(super) fn restart(&mut self) {
        self.process = None;
        self.standing.clear();
    }

    fn provider(&mut self) -> Arc<AwsProvider> {
        self.process
            .get_or_insert_with(|| self.world.process())
            .clone()
    }

    /// The Service is as the framework sees it: at first without finalizer, and later with what it
    /// shows.
    fn spec(&self, wish: &ServiceInput, has_finalizer: bool) -> anyhow::Result<LbSpec> {
        let mut service = match self.shown.get(&wish.service.uid) {
            Some(status) => ServiceView { status: status.clone(), ..wish.service.clone() },
            None if has_finalizer => wish.service.clone(),
            None => fresh(&wish.service),
        };
        if let Some(annotations) = self.annotations.get(&service.uid) {
            service.write_annotations(annotations);
        }
        let sources =
            SourceRanges::of(&service).map_err(|mistakes| anyhow::anyhow!("{mistakes:?}"))?;
        let backends = if of_pods(&service) {
            let pods: Vec<_> = wish
                .backends
                .iter()
                .map(|n| (PODS[*n], true, false))
                .collect();
            Backends::Endpoints(vec![slice(&pods)])
        } else {
            Backends::Nodes(
                wish.backends
                    .iter()
                    .map(|n| self.world.nodes[*n].clone())
                    .collect(),
            )
        };
        Ok(LbSpec {
            cluster: CLUSTER.into(),
            service: Arc::new(service),
            sources,
            backends,
        })
    }

    /// Returns the value of an annotation that a process wrote on a Service.
    pub(super) fn written(&self, uid: &str, key: &str) -> Option<&str> {
        self.annotations.get(uid)?.get(key)?.as_deref()
    }

    /// Asks until it is done, as the framework does.
    pub(super) async fn settle(&mut self, act: &DriverCall) -> anyhow::Result<()> {
        self.settle_until(act, |_| false).await
    }

    /// Asks until it is done, or there is enough of it.
    pub(super) async fn settle_until(
        &mut self,
        act: &DriverCall,
        is_enough: impl Fn(&Self) -> bool,
    ) -> anyhow::Result<()> {
        let uid = act.wish().service.uid.clone();
        let (mut waited, mut last) = (Duration::ZERO, String::new());
        // The finalizer outlives the process, and comes before anything that is to be deleted.
        let mut has_finalizer = act.ends_service() || self.shown.contains_key(&uid);
        for _ in 0..MOST_ROUNDS {
            let provider = self.provider();
            let journey = self.world.journey.clone();
            let turn = journey
                .alive(self.turn(&provider, act, waited, has_finalizer))
                .await;
            has_finalizer = true;
            let Some(turn) = turn else {
                self.restart();
                waited = Duration::ZERO;
                tokio::time::sleep(Duration::from_secs(1)).await;
                if let DriverCall::GivenUp(_) = act {
                    return Ok(());
                }
                continue;
            };
            let CallResult { status, annotations, result } = turn?;
            last = format!("{result:?}");
            self.annotations
                .entry(uid.clone())
                .or_default()
                .extend(annotations);
            self.conclude(act, &uid, status, &result);
            if is_enough(self) {
                return Ok(());
            }
            let after = match (act, result) {
                (DriverCall::Refused(_, why), Err(error)) if error.chain().contains(why) => {
                    return Ok(());
                }
                (DriverCall::Refused(..), Ok(Progress::Done)) => {
                    anyhow::bail!("done, although it cannot be")
                }
                (DriverCall::GivenUp(_), _) | (_, Ok(Progress::Done)) => return Ok(()),
                (_, Ok(Progress::Pending { after, .. })) => {
                    waited += after;
                    after
                }
                (DriverCall::Delete(_), Err(error)) if error.kind() == ErrorKind::NotFound => {
                    anyhow::bail!("nothing to delete is an error: {error}")
                }
                (_, Err(error)) => {
                    waited = Duration::ZERO;
                    error.retry_after().unwrap_or(BACKOFF)
                }
            };
            tokio::time::sleep(after).await;
        }
        anyhow::bail!("not done after {MOST_ROUNDS} rounds, the last one: {last}")
    }

    /// Draws the consequences of a turn.
    fn conclude(
        &mut self,
        act: &DriverCall,
        uid: &str,
        status: Option<LbStatus>,
        result: &Result<Progress, CloudError>,
    ) {
        let done = matches!(result, Ok(Progress::Done));
        if act.ends_service() && done {
            self.shown.remove(uid);
            self.annotations.remove(uid);
            self.standing.remove(uid);
            return;
        }
        if let Some(status) = status {
            let ingress = status.ingress.first();
            let host = ingress.and_then(|ingress| ingress.hostname.as_deref());
            let host = host.unwrap_or_default();
            let mut published = self.published.lock();
            if published.last().is_none_or(|(last, _)| **last != *host) {
                published.push((host.into(), Instant::now()));
            }
            drop(published);
            self.shown.insert(uid.into(), status);
        }
        let standing = self.standing.entry(uid.into()).or_default();
        let stays = matches!(act, DriverCall::Update(_)) && *standing == DriverState::Applied;
        let gone = result
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::NotFound);
        *standing = if done || (stays && !gone) {
            DriverState::Applied
        } else {
            DriverState::Attempted
        };
    }

    async fn turn(
        &self,
        provider: &AwsProvider,
        act: &DriverCall,
        waited: Duration,
        has_finalizer: bool,
    ) -> anyhow::Result<CallResult> {
        let balancers = provider
            .load_balancers()
            .context("there are load balancers")?;
        let (op, wish) = (op(self.world, waited), act.wish());
        let spec = self.spec(wish, has_finalizer)?;
        let standing = self
            .standing
            .get(&wish.service.uid)
            .copied()
            .unwrap_or_default();
        Ok(match (act, standing) {
            (DriverCall::Delete(_), _) => balancers
                .delete(&op, &reference(&spec.service))
                .await
                .into(),
            (DriverCall::Orphans(_), _) => {
                delete_orphans(provider, &op, &wish.service).await.into()
            }
            (DriverCall::Retain(_), _) => {
                let retained = balancers.retain(&op, &reference(&spec.service)).await;
                let result = retained.map(|outcome| match outcome {
                    RetainOutcome::Pending { after, reason } => Progress::Pending { after, reason },
                    RetainOutcome::Retained { .. } | RetainOutcome::NothingToRetain { .. } => {
                        Progress::Done
                    }
                });
                result.into()
            }
            (DriverCall::Update(_), DriverState::Applied) => {
                balancers.update_backends(&op, &spec).await.into()
            }
            (_, DriverState::Applied) => {
                balancers.ensure(&op, &spec, ReadMode::Cached).await.into()
            }
            (_, DriverState::Attempted) => {
                balancers.ensure(&op, &spec, ReadMode::Fresh).await.into()
            }
            (_, DriverState::Unknown) if spec.service.status.ingress.is_empty() => {
                balancers.ensure(&op, &spec, ReadMode::Fresh).await.into()
            }
            // Finished by an earlier process, as it seems.
            (_, DriverState::Unknown) => match balancers.plan(&op, &spec).await {
                Ok(changes) if changes.is_empty() => Ok(Progress::Done).into(),
                Ok(_) => balancers.ensure(&op, &spec, ReadMode::Fresh).await.into(),
                Err(error) => Err(error).into(),
            },
        })
    }

    /// Checks that there is nothing left to do: for the process that did it, and for one that knows
    /// nothing.
    pub(super) async fn is_quiet(&mut self, wish: &ServiceInput) -> anyhow::Result<()> {
        // Once reads show what was done.
        tokio::time::sleep(Duration::from_secs(30)).await;
        for fresh in [false, true] {
            if fresh {
                self.restart();
            }
            let provider = self.provider();
            let balancers = provider
                .load_balancers()
                .context("there are load balancers")?;
            let spec = self.spec(wish, true)?;
            self.world.place.aws.reset_calls();
            if fresh {
                let planned = balancers
                    .plan(&op(self.world, Duration::ZERO), &spec)
                    .await?;
                anyhow::ensure!(planned.is_empty(), "done, but there is left to do: {planned:?}");
            }
            let outcome = balancers
                .ensure(&op(self.world, Duration::ZERO), &spec, ReadMode::Fresh)
                .await;
            anyhow::ensure!(
                matches!(outcome.result, Ok(Progress::Done)),
                "done, and then {outcome:?}"
            );
            let calls = self.world.place.aws.log();
            let writes: Vec<_> = calls
                .iter()
                .filter(|call| call.action().class() == crate::api::RequestClass::Write)
                .collect();
            anyhow::ensure!(
                writes.is_empty(),
                "done, and then, by a new process {fresh}, {writes:?}"
            );
        }
        Ok(())
    }

    /// Returns what serves a Service as it wishes: name, port, and target.
    pub(super) fn serving(&self, wish: &ServiceInput) -> BTreeSet<(Arc<str>, u16, String)> {
        let ids: Vec<String> = match of_pods(&wish.service) {
            true => wish.backends.iter().map(|n| PODS[*n].to_owned()).collect(),
            false => wish
                .backends
                .iter()
                .map(|n| self.world.place.nodes[*n].to_string())
                .collect(),
        };
        let ports = wish.service.ports.iter().map(|port| port.port.get());
        let name = wish.service.name.clone();
        ports
            .flat_map(|port| ids.iter().map(move |id| (port, id.clone())))
            .map(|(port, id)| (name.clone(), port, id))
            .collect()
    }
}

/// Deletes what is owned by a Service, as the subcommand does. Not done until nothing is listed.
async fn delete_orphans(
    provider: &AwsProvider,
    op: &Op,
    service: &ServiceView,
) -> Result<Progress, CloudError> {
    let Some(inventory) = provider.inventory() else {
        return Err(CloudError::invalid_input("there is no inventory"));
    };
    let is_its = |owner: &Owner| {
        matches!(owner, Owner::Service { namespace, name, .. }
            if **namespace == *service.namespace && **name == *service.name)
    };
    let mut owned = inventory.list_owned(op).await?;
    owned.retain(|object| is_its(&object.owner));
    for object in &owned {
        inventory.delete_owned(op, object).await?;
    }
    if owned.is_empty() {
        return Ok(Progress::Done);
    }
    let reason = format!("{} objects were there", owned.len()).into();
    Ok(Progress::Pending { after: Duration::from_secs(60), reason })
}

fn of_pods(service: &ServiceView) -> bool {
    service
        .annotations
        .get(&*format!("{PREFIX}nlb-target-type"))
        .is_some_and(|kind| &**kind == "ip")
}

/// Tells whether a port of a Service leads to a target.
pub(super) fn is_served(aws: &FakeAws, (service, port, id): &(Arc<str>, u16, String)) -> bool {
    let mine = balancers_of(aws, service);
    let listeners = mine
        .iter()
        .flat_map(|arn| aws.listeners(arn))
        .filter(|listener| listener.port == *port);
    listeners
        .filter_map(|listener| listener.target_group)
        .any(|group| targets(aws, &group).contains(id))
}

/// Returns the balancers of a Service of the cluster.
pub(super) fn balancers_of(aws: &FakeAws, service: &str) -> Vec<crate::api::LoadBalancerArn> {
    let key = format!("default/{service}");
    let cluster = format!("kubernetes.io/cluster/{CLUSTER}");
    let is_its = |arn: &crate::api::LoadBalancerArn| {
        let tags = aws.tags(arn);
        tags.contains_key(&*cluster) && tags.get(SERVICE_TAG).is_some_and(|value| **value == *key)
    };
    aws.load_balancers()
        .into_iter()
        .map(|balancer| balancer.arn)
        .filter(is_its)
        .collect()
}
