//! What is known about instances, shared by all who ask.

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

/// How long a question waits for others to join it.
const BATCH_WINDOW: Duration = Duration::from_millis(10);
/// How long an instance is kept that nobody asks about.
const IDLE_TTL: Duration = Duration::from_secs(3600);
/// How long an absence is believed at most, whatever age is allowed: an instance just created shows up within seconds.
const MAX_ABSENCE_AGE: Duration = Duration::from_secs(10);
/// For how many rounds a failure is kept. Whoever waited for it has its turn after those who waited before.
const FAILURE_ROUNDS: u64 = 16;
/// How long AWS' word that an ID can never exist is believed.
const INVALID_ID_TTL: Duration = Duration::from_secs(24 * 3600);

/// What is said about one instance. `Ok(None)`: AWS said that there is none, either in a typed refusal of a request for this
/// ID alone or in a successful answer to a request for it.
pub type InstanceLookup = Result<Option<Arc<Instance>>, AwsError>;

/// The instances of the cluster as they were last seen, and the way to see them again.
///
/// Answers come from the snapshot where it is fresh enough. What has to be asked is joined: questions that come while
/// another is on its way share the next request, and one that brings what a waiting question wants answers it too. So
/// there is at most one request for instances at a time.
pub struct InstanceCache {
    scope: Scope,
    strings: Interner,
    zones: Arc<Zones>,
    state: Mutex<CacheState>,
    /// Held while AWS is asked. Whoever holds it asks for all who wait; when it is dropped half-way the next one asks.
    request_lock: tokio::sync::Mutex<()>,
}

/// Interfaces of instances, by an address of theirs.
#[derive(Default)]
pub(crate) struct InterfacesByAddress {
    /// The instance and the security groups of the interface.
    pub(crate) of: BTreeMap<IpAddr, (Arc<Instance>, Box<[SecurityGroupId]>)>,
    /// Whether interfaces have whole networks, as far as is known: one that is new is in no listing of addresses.
    pub(crate) prefixes: bool,
}

#[derive(Default)]
struct CacheState {
    /// Counts the rounds of requests: what a later round saw is fresh for whoever came before it.
    round: u64,
    entries: HashMap<InstanceId, CachedInstance>,
    /// What waiting questions are about. No more than a hint for whoever asks next: each asks for what it still lacks.
    requested: HashSet<InstanceId>,
    /// Failures, for those who waited for the request that failed; with its round.
    failures: HashMap<InstanceId, (u64, AwsError)>,
    listing: ListingState,
}

#[derive(Default)]
struct ListingState {
    /// How many instances the last one had.
    size: Option<usize>,
    /// How many came to an end, and how the last of them failed if it did.
    ended: u64,
    failure: Option<AwsError>,
}

struct CachedInstance {
    result: InstanceLookup,
    /// When the request was sent that saw it, and its round.
    fetched_at: Instant,
    round: u64,
    /// When somebody last asked.
    last_used: Instant,
}

impl CachedInstance {
    /// Tells whether it answers a question that came at `now` after `round`.
    fn satisfies(&self, max_age: Duration, now: Instant, round: u64) -> bool {
        let limit = match &self.result {
            Ok(Some(_)) => max_age,
            Ok(None) => max_age.min(MAX_ABSENCE_AGE),
            Err(error) if error.has_code(INSTANCE_ID_MALFORMED) => INVALID_ID_TTL,
            Err(_) => Duration::ZERO,
        };
        self.round > round || (!limit.is_zero() && now.saturating_duration_since(self.fetched_at) <= limit)
    }
}

/// A question on its way: when it came.
#[derive(Clone, Copy)]
pub(super) struct QueryTime {
    at: Instant,
    round: u64,
}

impl InstanceCache {
    /// Makes an empty store.
    pub fn new(scope: Scope) -> Arc<Self> {
        Arc::new(Self {
            scope,
            strings: Interner::default(),
            zones: Arc::default(),
            state: Mutex::default(),
            request_lock: tokio::sync::Mutex::default(),
        })
    }

    /// Returns the zones of the region, which all who ask about instances share.
    pub fn zones(&self) -> &Arc<Zones> {
        &self.zones
    }

    /// Returns instances by ID, none of them older than `max_age`; zero asks AWS. `None` is proof that there is none. An ID
    /// that AWS calls malformed has no entry: that is neither an instance nor proof.
    ///
    /// # Errors
    /// The first other failure: then nothing is answered.
    pub async fn get_many(
        &self,
        op: &Op,
        ids: &[InstanceId],
        max_age: Duration,
    ) -> Result<HashMap<InstanceId, Option<Arc<Instance>>>, AwsError> {
        let answers = self.get_each(op, ids.iter().map(|id| (id.clone(), max_age))).await;
        let malformed =
            |answer: &InstanceLookup| answer.as_ref().is_err_and(|error| error.has_code(INSTANCE_ID_MALFORMED));
        let told = answers.into_iter().filter(|(_, answer)| !malformed(answer));
        told.map(|(id, answer)| Ok((id, answer?))).collect()
    }

    /// As [`look_up`](Self::look_up), with an age and an answer for each.
    pub async fn get_each(
        &self,
        op: &Op,
        questions: impl IntoIterator<Item = (InstanceId, Duration)>,
    ) -> HashMap<InstanceId, InstanceLookup> {
        let mut open: HashMap<InstanceId, Duration> = HashMap::new();
        for (id, age) in questions {
            open.entry(id).and_modify(|known| *known = age.min(*known)).or_insert(age);
        }
        let mut answers = HashMap::with_capacity(open.len());
        let arrival = self.query_time();
        self.answer(&mut open, &mut answers, arrival);
        if open.is_empty() {
            return answers;
        }
        self.state.lock().requested.extend(open.keys().cloned());
        let turn = match self.acquire(op).await {
            Ok(turn) => turn,
            Err(error) => {
                answers.extend(open.into_keys().map(|id| (id, Err(error.clone()))));
                return answers;
            }
        };
        self.answer(&mut open, &mut answers, arrival);
        self.state.lock().requested.retain(|id| !answers.contains_key(id));
        if open.is_empty() {
            return answers;
        }
        let refused = self.fetch_missing(op, open.keys().cloned().collect()).await.err();
        self.answer(&mut open, &mut answers, arrival);
        drop(turn);
        let gone = || AwsError::no_response(Action::DescribeInstances, "the answer does not hold what was asked for");
        answers.extend(open.into_keys().map(|id| (id, Err(refused.clone().unwrap_or_else(gone)))));
        answers
    }

    /// Lists the instances of the cluster once, for all who ask next. Whoever comes while a listing is on its way has that.
    ///
    /// # Errors
    /// AWS' answer; what is known stays.
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

    /// Returns the instances of the cluster that are no older than `max_age`, from the snapshot alone.
    pub(super) fn cached_since(&self, max_age: Duration, arrival: QueryTime) -> Vec<Arc<Instance>> {
        let state = self.state.lock();
        let fresh = state.entries.values().filter(|entry| entry.satisfies(max_age, arrival.at, arrival.round));
        fresh.filter_map(|entry| entry.result.clone().ok().flatten()).collect()
    }

    /// Returns the interfaces of instances that have these addresses, from the snapshot alone, as far as it was seen
    /// within `max_age`. Of two that have one address the one that was seen later has it now.
    pub(crate) fn interfaces(&self, addresses: &BTreeSet<IpAddr>, max_age: Duration) -> InterfacesByAddress {
        let state = self.state.lock();
        let mut found = InterfacesByAddress::default();
        let mut seen: BTreeMap<IpAddr, Instant> = BTreeMap::new();
        for entry in state.entries.values().filter(|entry| entry.fetched_at.elapsed() < max_age) {
            let Ok(Some(instance)) = &entry.result else { continue };
            for interface in instance.interfaces.iter().filter(|_| !instance.is_terminated()) {
                found.prefixes |= !interface.prefixes.is_empty();
                let own = interface.private_ips.iter().chain(&interface.ipv6_addresses);
                let own = own.filter_map(|text| text.parse().ok()).filter(|address| addresses.contains(address));
                let within = |address: &&IpAddr| interface.prefixes.iter().any(|prefix| prefix.contains(*address));
                for address in own.chain(addresses.iter().filter(within).copied()) {
                    if seen.get(&address).is_none_or(|before| *before < entry.fetched_at) {
                        seen.insert(address, entry.fetched_at);
                        found.of.insert(address, (instance.clone(), interface.security_groups.clone()));
                    }
                }
            }
        }
        found
    }

    /// Tells whether an instance carries the cluster's tag, as far as the snapshot knows.
    pub(crate) fn in_cluster(&self, id: &InstanceId) -> bool {
        let state = self.state.lock();
        let answer = state.entries.get(id).map(|entry| &entry.result);
        matches!(answer, Some(Ok(Some(instance))) if instance.in_cluster)
    }

    /// Returns the size of the last listing.
    pub(super) fn listed(&self) -> Option<usize> {
        self.state.lock().listing.size
    }

    /// Finds existing instances by one value of a filter each: one call for [`plan::MOST_VALUES`] of them. Those of other
    /// clusters are among them.
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
            let filters = [Filter::new(filter, values.iter().cloned())].into_iter().chain(and.clone()).collect();
            let rows: Vec<_> = self.fetch(op).by_values(filters).await?.into_iter().map(Arc::new).collect();
            let answers = rows.iter().map(|row| (row.id.clone(), Ok(Some(row.clone()))));
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
        let turn = op.run(async { Ok(op.wait_shared(self.request_lock.lock()).await) }).await;
        turn.map_err(|error| AwsError { action: Some(Action::DescribeInstances), cause: AwsErrorCause::NotSent(error) })
    }

    /// Begins a round: what it will see is as old as this moment.
    fn begin_round(&self) -> (u64, Instant) {
        let mut state = self.state.lock();
        state.round += 1;
        (state.round, Instant::now())
    }

    /// Moves what the snapshot can answer, and what failed since the question came.
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
            let answer = match known.get_mut(id).filter(|entry| entry.satisfies(*max_age, came.at, came.round)) {
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

    /// Asks for these and for whatever else is wanted; the turn has to be held.
    ///
    /// # Errors
    /// The operation itself was given up, which concerns nobody else.
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
            ids.retain(|id| state.entries.get(id).is_none_or(|entry| entry.round <= before));
        }
        if ids.is_empty() {
            return Ok(());
        }
        let (round, seen) = self.begin_round();
        let answers = self.fetch(op).by_ids(ids).await;
        let answers = answers.into_iter().map(|(id, answer)| (id, answer.map(|found| found.map(Arc::new))));
        self.state.lock().record(round, seen, answers)
    }

    /// Lists the instances of the cluster; the turn has to be held.
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
        state.record(round, seen, rows.into_iter().map(|row| (row.id.clone(), Ok(Some(Arc::new(row))))))
    }
}

impl CacheState {
    /// Keeps what a round saw, and forgets what nobody asks about.
    ///
    /// # Errors
    /// The operation was given up: what it did not learn is left out.
    fn record(
        &mut self,
        round: u64,
        seen: Instant,
        answers: impl IntoIterator<Item = (InstanceId, InstanceLookup)>,
    ) -> Result<(), AwsError> {
        let now = Instant::now();
        self.entries.retain(|_, entry| now.saturating_duration_since(entry.last_used) < IDLE_TTL);
        self.failures.retain(|_, (failed, _)| *failed + FAILURE_ROUNDS > round);
        let mut result = Ok(());
        for (id, answer) in answers {
            match answer {
                Err(error) if was_canceled(&error) => result = Err(error),
                Err(error) if !error.has_code(INSTANCE_ID_MALFORMED) => drop(self.failures.insert(id, (round, error))),
                // Names are looked up beside a round, so that an older answer may come later.
                _ if self.entries.get(&id).is_some_and(|known| known.round > round) => {}
                answer => {
                    let asked = self.entries.get(&id).map_or(now, |known| known.last_used);
                    self.failures.remove(&id);
                    self.entries
                        .insert(id, CachedInstance { result: answer, fetched_at: seen, round, last_used: asked });
                }
            }
        }
        result
    }
}

/// Tells whether nothing was sent because the operation was given up, which says nothing to others.
fn was_canceled(error: &AwsError) -> bool {
    matches!(error.cause, AwsErrorCause::NotSent(_))
}
