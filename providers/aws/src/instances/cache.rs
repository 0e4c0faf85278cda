//! Cache of EC2 instances, shared by the instances, load balancer and routes capabilities.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use ccm_core::{k8s::Interner, provider::Op};
use parking_lot::Mutex;
use tokio::{sync::MutexGuard, time::Instant};

use super::{
    fetch::{Fetch, INSTANCE_ID_MALFORMED},
    instance::Instance,
    plan,
    zones::Zones,
};
use crate::{
    api::{Action, AwsError, AwsErrorCause, Filter, InstanceId, SecurityGroupId},
    scope::Scope,
};

/// How long a lookup waits for other lookups to join its request.
const BATCH_WINDOW: Duration = Duration::from_millis(10);
/// How long an unused entry is kept.
const IDLE_TTL: Duration = Duration::from_secs(3600);
/// Greatest age of a "not found" result, whatever `max_age` allows: a new instance becomes visible
/// within seconds.
const MAX_ABSENCE_AGE: Duration = Duration::from_secs(10);
/// For how many rounds a failure is kept, so that every lookup that waited for the failed request
/// can still read it.
const FAILURE_ROUNDS: u64 = 16;
/// Age limit of AWS' answer that an ID is malformed.
const INVALID_ID_TTL: Duration = Duration::from_secs(24 * 3600);

/// Result for one instance. `Ok(None)`: AWS confirmed that the instance does not exist, either by
/// rejecting a request for this ID alone with a typed error or with a successful answer that lacks
/// it.
pub type InstanceLookup = Result<Option<Arc<Instance>>, AwsError>;

/// Cache of the cluster's instances, which also sends the requests that refresh it.
///
/// Lookups are answered from the cache where it is fresh enough. The rest is batched: lookups that
/// arrive while a request is in flight share the next request. A lookup that waits is also answered
/// by a request that another lookup sent. So at most one request for instances by ID, or listing of
/// them, is in flight at a time.
pub struct InstanceCache {
    scope: Scope,
    strings: Interner,
    zones: Arc<Zones>,
    state: Mutex<CacheState>,
    /// Held while AWS is queried. The holder queries for every waiting lookup; if it is dropped
    /// midway, the next one queries.
    request_lock: tokio::sync::Mutex<()>,
}

/// Network interfaces of instances, keyed by one of their addresses.
#[derive(Default)]
pub(crate) struct InterfacesByAddress {
    /// The instance and the security groups of the interface.
    pub(crate) of: BTreeMap<IpAddr, (Arc<Instance>, Box<[SecurityGroupId]>)>,
    /// True if any cached interface has a delegated prefix. A new address of a prefix is in no
    /// listing of addresses.
    pub(crate) prefixes: bool,
}

#[derive(Default)]
struct CacheState {
    /// Number of the current round of requests. The result of a later round is fresh for every
    /// lookup that arrived before it.
    round: u64,
    entries: HashMap<InstanceId, CachedInstance>,
    /// IDs of the waiting lookups. Only a hint for whoever sends the next request: each lookup
    /// requests what it still lacks.
    requested: HashSet<InstanceId>,
    /// Failures with their round, for the lookups that waited for the failed request.
    failures: HashMap<InstanceId, (u64, AwsError)>,
    listing: ListingState,
}

#[derive(Default)]
struct ListingState {
    /// Number of instances in the last successful listing.
    size: Option<usize>,
    /// Number of completed listings, and the error of the last one if it failed.
    ended: u64,
    failure: Option<AwsError>,
}

struct CachedInstance {
    result: InstanceLookup,
    /// When the request that returned this result was sent, and in which round.
    fetched_at: Instant,
    round: u64,
    /// When a lookup last used the entry.
    last_used: Instant,
}

impl CachedInstance {
    /// Returns whether this entry answers a lookup that arrived at `now`, after `round`.
    fn satisfies(&self, max_age: Duration, now: Instant, round: u64) -> bool {
        let limit = match &self.result {
            Ok(Some(_)) => max_age,
            Ok(None) => max_age.min(MAX_ABSENCE_AGE),
            Err(error) if error.has_code(INSTANCE_ID_MALFORMED) => INVALID_ID_TTL,
            Err(_) => Duration::ZERO,
        };
        self.round > round
            || (!limit.is_zero() && now.saturating_duration_since(self.fetched_at) <= limit)
    }
}

/// Arrival time and round of a lookup.
#[derive(Clone, Copy)]
pub(super) struct QueryTime {
    at: Instant,
    round: u64,
}

impl InstanceCache {
    /// Creates an empty cache.
    pub fn new(scope: Scope) -> Arc<Self> {
        Arc::new(Self {
            scope,
            strings: Interner::default(),
            zones: Arc::default(),
            state: Mutex::default(),
            request_lock: tokio::sync::Mutex::default(),
        })
    }

    /// Returns the zones of the region, which every user of this cache shares.
    pub fn zones(&self) -> &Arc<Zones> {
        &self.zones
    }

    /// Returns instances by ID, none of them older than `max_age`; zero always queries AWS. `None`
    /// means that the instance is proven not to exist. An ID that AWS calls malformed has no entry:
    /// it is neither an instance nor proof of absence.
    ///
    /// # Errors
    /// The first other failure; then no result is returned.
    pub async fn get_many(
        &self,
        op: &Op,
        ids: &[InstanceId],
        max_age: Duration,
    ) -> Result<HashMap<InstanceId, Option<Arc<Instance>>>, AwsError> {
        let answers = self
            .get_each(op, ids.iter().map(|id| (id.clone(), max_age)))
            .await;
        let malformed = |answer: &InstanceLookup| {
            answer
                .as_ref()
                .is_err_and(|error| error.has_code(INSTANCE_ID_MALFORMED))
        };
        let told = answers.into_iter().filter(|(_, answer)| !malformed(answer));
        told.map(|(id, answer)| Ok((id, answer?))).collect()
    }

    /// Like [`get_many`](Self::get_many), but with a maximum age and a result for each instance.
    pub async fn get_each(
        &self,
        op: &Op,
        questions: impl IntoIterator<Item = (InstanceId, Duration)>,
    ) -> HashMap<InstanceId, InstanceLookup> {
        // First, answer from the cache what is fresh enough.
        let mut open: HashMap<InstanceId, Duration> = HashMap::new();
        for (id, age) in questions {
            open.entry(id)
                .and_modify(|known| *known = age.min(*known))
                .or_insert(age);
        }
        let mut answers = HashMap::with_capacity(open.len());
        let arrival = self.query_time();
        self.answer(&mut open, &mut answers, arrival);
        if open.is_empty() {
            return answers;
        }
        // Then wait for the request lock. Another lookup may meanwhile have fetched what this one
        // needs.
        self.state.lock().requested.extend(open.keys().cloned());
        let turn = match self.acquire(op).await {
            Ok(turn) => turn,
            Err(error) => {
                answers.extend(open.into_keys().map(|id| (id, Err(error.clone()))));
                return answers;
            }
        };
        self.answer(&mut open, &mut answers, arrival);
        self.state
            .lock()
            .requested
            .retain(|id| !answers.contains_key(id));
        if open.is_empty() {
            return answers;
        }
        // Finally, fetch the rest.
        let refused = self
            .fetch_missing(op, open.keys().cloned().collect())
            .await
            .err();
        self.answer(&mut open, &mut answers, arrival);
        drop(turn);
        let gone = || {
            AwsError::no_response(
                Action::DescribeInstances,
                "the answer does not hold what was asked for",
            )
        };
        answers.extend(
            open.into_keys()
                .map(|id| (id, Err(refused.clone().unwrap_or_else(gone)))),
        );
        answers
    }

    /// Lists the instances of the cluster and caches them for later lookups. Calls that arrive
    /// during a listing share it.
    ///
    /// # Errors
    /// AWS' answer; the cache keeps its entries.
    pub async fn list_all(&self, op: &Op) -> Result<(), AwsError> {
        let ended = self.state.lock().listing.ended;
        let _turn = self.acquire(op).await?;
        let shared = {
            let listing = &self.state.lock().listing;
            (listing.ended != ended).then(|| listing.failure.clone())
        };
        match shared {
            Some(failure) => failure.map_or(Ok(()), Err),
            None => self.list(op).await,
        }
    }

    /// Returns the instances of the cluster that are no older than `max_age`, from the cache alone.
    pub(super) fn cached_since(&self, max_age: Duration, arrival: QueryTime) -> Vec<Arc<Instance>> {
        let state = self.state.lock();
        let fresh = state
            .entries
            .values()
            .filter(|entry| entry.satisfies(max_age, arrival.at, arrival.round));
        fresh
            .filter_map(|entry| entry.result.clone().ok().flatten())
            .collect()
    }

    /// Returns the network interfaces that have these addresses, from cache entries younger than
    /// `max_age`. If two interfaces have the same address, the more recently fetched one is
    /// returned.
    pub(crate) fn interfaces(
        &self,
        addresses: &BTreeSet<IpAddr>,
        max_age: Duration,
    ) -> InterfacesByAddress {
        let state = self.state.lock();
        let mut found = InterfacesByAddress::default();
        let mut seen: BTreeMap<IpAddr, Instant> = BTreeMap::new();
        for entry in state
            .entries
            .values()
            .filter(|entry| entry.fetched_at.elapsed() < max_age)
        {
            let Ok(Some(instance)) = &entry.result else {
                continue;
            };
            for interface in instance
                .interfaces
                .iter()
                .filter(|_| !instance.is_terminated())
            {
                found.prefixes |= !interface.prefixes.is_empty();
                let own = interface
                    .private_ips
                    .iter()
                    .chain(&interface.ipv6_addresses);
                let own = own
                    .filter_map(|text| text.parse().ok())
                    .filter(|address| addresses.contains(address));
                let within = |address: &&IpAddr| {
                    interface
                        .prefixes
                        .iter()
                        .any(|prefix| prefix.contains(*address))
                };
                for address in own.chain(addresses.iter().filter(within).copied()) {
                    if seen
                        .get(&address)
                        .is_none_or(|before| *before < entry.fetched_at)
                    {
                        seen.insert(address, entry.fetched_at);
                        found
                            .of
                            .insert(address, (instance.clone(), interface.security_groups.clone()));
                    }
                }
            }
        }
        found
    }

    /// Returns whether the cached instance has the cluster's tag; `false` if it is not cached.
    pub(crate) fn in_cluster(&self, id: &InstanceId) -> bool {
        let state = self.state.lock();
        let answer = state.entries.get(id).map(|entry| &entry.result);
        matches!(answer, Some(Ok(Some(instance))) if instance.in_cluster)
    }

    /// Returns the number of instances in the last listing.
    pub(super) fn listed(&self) -> Option<usize> {
        self.state.lock().listing.size
    }

    /// Finds existing instances by values of one filter, with one call per
    /// [`plan::MAX_FILTER_VALUES`] values. The result includes instances of other clusters.
    pub(super) async fn find(
        &self,
        op: &Op,
        filter: &str,
        values: &[Box<str>],
        and: Option<Filter>,
    ) -> Result<Vec<Arc<Instance>>, AwsError> {
        let mut found = Vec::new();
        for values in values.chunks(plan::MAX_FILTER_VALUES) {
            let (round, seen) = self.begin_round();
            let filters = [Filter::new(filter, values.iter().cloned())]
                .into_iter()
                .chain(and.clone())
                .collect();
            let rows: Vec<_> = self
                .fetch(op)
                .by_values(filters)
                .await?
                .into_iter()
                .map(Arc::new)
                .collect();
            let answers = rows
                .iter()
                .map(|row| (row.id.clone(), Ok(Some(row.clone()))));
            self.state.lock().record(round, seen, answers)?;
            found.extend(rows);
        }
        Ok(found)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.state.lock().entries.len()
    }

    pub(super) fn scope(&self) -> &Scope {
        &self.scope
    }

    pub(super) fn query_time(&self) -> QueryTime {
        QueryTime { at: Instant::now(), round: self.state.lock().round }
    }

    fn fetch<'a>(&'a self, op: &'a Op) -> Fetch<'a> {
        Fetch { scope: &self.scope, strings: &self.strings, op }
    }

    async fn acquire(&self, op: &Op) -> Result<MutexGuard<'_, ()>, AwsError> {
        let turn = op
            .run(async { Ok(op.wait_shared(self.request_lock.lock()).await) })
            .await;
        turn.map_err(|error| AwsError {
            action: Some(Action::DescribeInstances),
            cause: AwsErrorCause::NotSent(error),
        })
    }

    /// Begins a round and returns its number and start time, which is the age of whatever the round
    /// returns.
    fn begin_round(&self) -> (u64, Instant) {
        let mut state = self.state.lock();
        state.round += 1;
        (state.round, Instant::now())
    }

    /// Moves to `answers` what the cache can answer, and what failed after the lookup arrived.
    fn answer(
        &self,
        open: &mut HashMap<InstanceId, Duration>,
        answers: &mut HashMap<InstanceId, InstanceLookup>,
        came: QueryTime,
    ) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let CacheState { entries: known, failures: failed, .. } = &mut *state;
        open.retain(|id, max_age| {
            let answer = match known
                .get_mut(id)
                .filter(|entry| entry.satisfies(*max_age, came.at, came.round))
            {
                Some(entry) => {
                    entry.last_used = now;
                    entry.result.clone()
                }
                None => match failed.get(id) {
                    Some((round, error)) if *round > came.round => Err(error.clone()),
                    _ => return true,
                },
            };
            answers.insert(id.clone(), answer);
            false
        });
    }

    /// Fetches these IDs and those of all waiting lookups. The request lock must be held.
    ///
    /// # Errors
    /// The operation was canceled, which does not affect other lookups.
    async fn fetch_missing(&self, op: &Op, mut ids: HashSet<InstanceId>) -> Result<(), AwsError> {
        op.sleep(BATCH_WINDOW).await;
        ids.extend(std::mem::take(&mut self.state.lock().requested));
        if plan::prefers_listing(ids.len(), self.listed()) {
            let before = self.query_time().round;
            if let Err(error) = self.list(op).await {
                let failed = ids.into_iter().map(|id| (id, Err(error.clone())));
                return self.state.lock().record(before + 1, Instant::now(), failed);
            }
            let state = self.state.lock();
            ids.retain(|id| {
                state
                    .entries
                    .get(id)
                    .is_none_or(|entry| entry.round <= before)
            });
        }
        if ids.is_empty() {
            return Ok(());
        }
        let (round, seen) = self.begin_round();
        let answers = self.fetch(op).by_ids(ids).await;
        let answers = answers
            .into_iter()
            .map(|(id, answer)| (id, answer.map(|found| found.map(Arc::new))));
        self.state.lock().record(round, seen, answers)
    }

    /// Lists the instances of the cluster. The request lock must be held.
    async fn list(&self, op: &Op) -> Result<(), AwsError> {
        let (round, seen) = self.begin_round();
        let result = self.fetch(op).list().await;
        let mut state = self.state.lock();
        let failure = result.as_ref().err().cloned();
        if !failure.as_ref().is_some_and(was_canceled) {
            state.listing.ended += 1;
            state.listing.failure = failure;
        }
        let rows = result?;
        state.listing.size = Some(rows.len());
        state.record(
            round,
            seen,
            rows.into_iter()
                .map(|row| (row.id.clone(), Ok(Some(Arc::new(row))))),
        )
    }
}

impl CacheState {
    /// Stores the results of a round and evicts idle entries.
    ///
    /// # Errors
    /// The operation was canceled; canceled results are not stored.
    fn record(
        &mut self,
        round: u64,
        seen: Instant,
        answers: impl IntoIterator<Item = (InstanceId, InstanceLookup)>,
    ) -> Result<(), AwsError> {
        let now = Instant::now();
        self.entries
            .retain(|_, entry| now.saturating_duration_since(entry.last_used) < IDLE_TTL);
        self.failures
            .retain(|_, (failed, _)| *failed + FAILURE_ROUNDS > round);
        let mut result = Ok(());
        for (id, answer) in answers {
            match answer {
                Err(error) if was_canceled(&error) => result = Err(error),
                Err(error) if !error.has_code(INSTANCE_ID_MALFORMED) => {
                    drop(self.failures.insert(id, (round, error)));
                }
                // Lookups by name do not hold the request lock, so an older result may arrive
                // later.
                _ if self
                    .entries
                    .get(&id)
                    .is_some_and(|known| known.round > round) => {}
                answer => {
                    let asked = self.entries.get(&id).map_or(now, |known| known.last_used);
                    self.failures.remove(&id);
                    self.entries.insert(
                        id,
                        CachedInstance {
                            result: answer,
                            fetched_at: seen,
                            round,
                            last_used: asked,
                        },
                    );
                }
            }
        }
        result
    }
}

/// Returns whether nothing was sent because the operation was canceled, which says nothing about
/// the instance.
fn was_canceled(error: &AwsError) -> bool {
    matches!(error.cause, AwsErrorCause::NotSent(_))
}
