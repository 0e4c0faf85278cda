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
    instance::{Instance, Interface},
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
    /// Returns whether this entry answers a lookup that arrived at this time.
    fn satisfies(&self, max_age: Duration, arrival: QueryTime) -> bool {
        let limit = match &self.result {
            Ok(Some(_)) => max_age,
            Ok(None) => max_age.min(MAX_ABSENCE_AGE),
            Err(error) if error.has_code(INSTANCE_ID_MALFORMED) => INVALID_ID_TTL,
            Err(_) => Duration::ZERO,
        };
        if self.round > arrival.round {
            return true;
        }
        !limit.is_zero() && arrival.at.saturating_duration_since(self.fetched_at) <= limit
    }
}

/// When a lookup arrived or a request was sent: the time and the round.
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
        let lookups = self
            .get_each(op, ids.iter().map(|id| (id.clone(), max_age)))
            .await;
        let mut instances = HashMap::with_capacity(lookups.len());
        for (id, lookup) in lookups {
            match lookup {
                Ok(instance) => drop(instances.insert(id, instance)),
                Err(error) if error.has_code(INSTANCE_ID_MALFORMED) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(instances)
    }

    /// Like [`get_many`](Self::get_many), but with a maximum age and a result for each instance.
    pub async fn get_each(
        &self,
        op: &Op,
        queries: impl IntoIterator<Item = (InstanceId, Duration)>,
    ) -> HashMap<InstanceId, InstanceLookup> {
        // First, answer from the cache what is fresh enough.
        let mut unanswered: HashMap<InstanceId, Duration> = HashMap::new();
        for (id, max_age) in queries {
            unanswered
                .entry(id)
                .and_modify(|strictest| *strictest = max_age.min(*strictest))
                .or_insert(max_age);
        }
        let mut lookups = HashMap::with_capacity(unanswered.len());
        let arrival = self.query_time();
        self.answer(&mut unanswered, &mut lookups, arrival);
        if unanswered.is_empty() {
            return lookups;
        }
        // Then wait for the request lock. Another lookup may meanwhile have fetched what this one
        // needs.
        self.state
            .lock()
            .requested
            .extend(unanswered.keys().cloned());
        let request_lock = match self.acquire_request_lock(op).await {
            Ok(request_lock) => request_lock,
            Err(error) => {
                lookups.extend(unanswered.into_keys().map(|id| (id, Err(error.clone()))));
                return lookups;
            }
        };
        self.answer(&mut unanswered, &mut lookups, arrival);
        self.state
            .lock()
            .requested
            .retain(|id| !lookups.contains_key(id));
        if unanswered.is_empty() {
            return lookups;
        }
        // Finally, fetch the rest.
        let fetched = self
            .fetch_missing(op, unanswered.keys().cloned().collect())
            .await;
        self.answer(&mut unanswered, &mut lookups, arrival);
        drop(request_lock);
        if unanswered.is_empty() {
            return lookups;
        }
        let error = fetched.err().unwrap_or_else(|| {
            AwsError::no_response(
                Action::DescribeInstances,
                "the answer lacks an instance that was requested",
            )
        });
        lookups.extend(unanswered.into_keys().map(|id| (id, Err(error.clone()))));
        lookups
    }

    /// Lists the instances of the cluster and caches them for later lookups. Calls that arrive
    /// during a listing share it.
    ///
    /// # Errors
    /// AWS' answer; the cache keeps its entries.
    pub async fn list_all(&self, op: &Op) -> Result<(), AwsError> {
        let ended = self.state.lock().listing.ended;
        let _request_lock = self.acquire_request_lock(op).await?;
        if let Some(result) = self.listing_since(ended) {
            return result;
        }
        self.list(op).await
    }

    /// Returns the result of the last listing if more than this number of listings ended.
    fn listing_since(&self, ended: u64) -> Option<Result<(), AwsError>> {
        let listing = &self.state.lock().listing;
        if listing.ended == ended {
            return None;
        }
        match &listing.failure {
            Some(error) => Some(Err(error.clone())),
            None => Some(Ok(())),
        }
    }

    /// Returns the instances of the cluster that are no older than `max_age`, from the cache alone.
    pub(super) fn cached_since(&self, max_age: Duration, arrival: QueryTime) -> Vec<Arc<Instance>> {
        let state = self.state.lock();
        let fresh = state
            .entries
            .values()
            .filter(|entry| entry.satisfies(max_age, arrival));
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
        let mut fetched_at: BTreeMap<IpAddr, Instant> = BTreeMap::new();
        for entry in state.entries.values() {
            let Ok(Some(instance)) = &entry.result else {
                continue;
            };
            if entry.fetched_at.elapsed() >= max_age || instance.is_terminated() {
                continue;
            }
            for interface in &instance.interfaces {
                found.prefixes |= !interface.prefixes.is_empty();
                for address in addresses_of_interface(interface, addresses) {
                    let is_newer = fetched_at
                        .get(&address)
                        .is_none_or(|known| *known < entry.fetched_at);
                    if is_newer {
                        fetched_at.insert(address, entry.fetched_at);
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
        additional_filter: Option<Filter>,
    ) -> Result<Vec<Arc<Instance>>, AwsError> {
        let mut found = Vec::new();
        for values in values.chunks(plan::MAX_FILTER_VALUES) {
            let request = self.begin_round();
            let mut filters = vec![Filter::new(filter, values.iter().cloned())];
            filters.extend(additional_filter.clone());
            let instances: Vec<_> = self
                .fetch(op)
                .by_values(filters)
                .await?
                .into_iter()
                .map(Arc::new)
                .collect();
            let lookups = instances
                .iter()
                .map(|instance| (instance.id.clone(), Ok(Some(instance.clone()))));
            self.state.lock().record(request, lookups)?;
            found.extend(instances);
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

    async fn acquire_request_lock(&self, op: &Op) -> Result<MutexGuard<'_, ()>, AwsError> {
        op.run(async { Ok(op.wait_shared(self.request_lock.lock()).await) })
            .await
            .map_err(|error| AwsError {
                action: Some(Action::DescribeInstances),
                cause: AwsErrorCause::NotSent(error),
            })
    }

    /// Begins a round. Whatever its request returns is as old as the returned time.
    fn begin_round(&self) -> QueryTime {
        let mut state = self.state.lock();
        state.round += 1;
        QueryTime { at: Instant::now(), round: state.round }
    }

    /// Moves to `lookups` what the cache can answer, and what failed after the lookup arrived.
    fn answer(
        &self,
        unanswered: &mut HashMap<InstanceId, Duration>,
        lookups: &mut HashMap<InstanceId, InstanceLookup>,
        arrival: QueryTime,
    ) {
        let mut state = self.state.lock();
        unanswered.retain(|id, max_age| match state.lookup(id, *max_age, arrival) {
            Some(lookup) => {
                lookups.insert(id.clone(), lookup);
                false
            }
            None => true,
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
            let round_before = self.query_time().round;
            if let Err(error) = self.list(op).await {
                let listing = QueryTime { at: Instant::now(), round: round_before + 1 };
                let failed = ids.into_iter().map(|id| (id, Err(error.clone())));
                return self.state.lock().record(listing, failed);
            }
            let state = self.state.lock();
            ids.retain(|id| {
                state
                    .entries
                    .get(id)
                    .is_none_or(|entry| entry.round <= round_before)
            });
        }
        if ids.is_empty() {
            return Ok(());
        }
        let request = self.begin_round();
        let results = self.fetch(op).by_ids(ids).await;
        let lookups = results
            .into_iter()
            .map(|(id, result)| (id, result.map(|instance| instance.map(Arc::new))));
        self.state.lock().record(request, lookups)
    }

    /// Lists the instances of the cluster. The request lock must be held.
    async fn list(&self, op: &Op) -> Result<(), AwsError> {
        let request = self.begin_round();
        let result = self.fetch(op).list().await;
        let mut state = self.state.lock();
        let failure = result.as_ref().err().cloned();
        if !failure.as_ref().is_some_and(was_canceled) {
            state.listing.ended += 1;
            state.listing.failure = failure;
        }
        let instances = result?;
        state.listing.size = Some(instances.len());
        let lookups = instances
            .into_iter()
            .map(|instance| (instance.id.clone(), Ok(Some(Arc::new(instance)))));
        state.record(request, lookups)
    }
}

impl CacheState {
    /// Stores the results of a request and evicts idle entries.
    ///
    /// # Errors
    /// The operation was canceled; canceled results are not stored.
    fn record(
        &mut self,
        request: QueryTime,
        lookups: impl IntoIterator<Item = (InstanceId, InstanceLookup)>,
    ) -> Result<(), AwsError> {
        let now = Instant::now();
        self.entries
            .retain(|_, entry| now.saturating_duration_since(entry.last_used) < IDLE_TTL);
        self.failures
            .retain(|_, (failed_round, _)| *failed_round + FAILURE_ROUNDS > request.round);
        let mut canceled = Ok(());
        for (id, lookup) in lookups {
            match lookup {
                Err(error) if was_canceled(&error) => canceled = Err(error),
                Err(error) if !error.has_code(INSTANCE_ID_MALFORMED) => {
                    drop(self.failures.insert(id, (request.round, error)));
                }
                lookup => self.record_instance(id, lookup, request, now),
            }
        }
        canceled
    }

    /// Stores a result, unless a later round has returned one: lookups by name do not hold the
    /// request lock, so an older result may arrive later.
    fn record_instance(
        &mut self,
        id: InstanceId,
        result: InstanceLookup,
        request: QueryTime,
        now: Instant,
    ) {
        let mut last_used = now;
        if let Some(entry) = self.entries.get(&id) {
            if entry.round > request.round {
                return;
            }
            last_used = entry.last_used;
        }
        self.failures.remove(&id);
        let entry = CachedInstance {
            result,
            fetched_at: request.at,
            round: request.round,
            last_used,
        };
        self.entries.insert(id, entry);
    }

    /// Answers a lookup from the entries, or with the error of a request that failed after the
    /// lookup arrived.
    fn lookup(
        &mut self,
        id: &InstanceId,
        max_age: Duration,
        arrival: QueryTime,
    ) -> Option<InstanceLookup> {
        if let Some(entry) = self.entries.get_mut(id)
            && entry.satisfies(max_age, arrival)
        {
            entry.last_used = Instant::now();
            return Some(entry.result.clone());
        }
        match self.failures.get(id) {
            Some((round, error)) if *round > arrival.round => Some(Err(error.clone())),
            _ => None,
        }
    }
}

/// Returns which of these addresses an interface has, itself or in a delegated prefix.
fn addresses_of_interface(interface: &Interface, addresses: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for text in interface
        .private_ips
        .iter()
        .chain(&interface.ipv6_addresses)
    {
        if let Ok(address) = text.parse::<IpAddr>()
            && addresses.contains(&address)
        {
            found.push(address);
        }
    }
    // Only interfaces with a prefix are compared with every address.
    for prefix in &interface.prefixes {
        found.extend(
            addresses
                .iter()
                .filter(|address| prefix.contains(*address))
                .copied(),
        );
    }
    found
}

/// Returns whether nothing was sent because the operation was canceled, which says nothing about
/// the instance.
fn was_canceled(error: &AwsError) -> bool {
    matches!(error.cause, AwsErrorCause::NotSent(_))
}
