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
    batching,
    fetch::{Fetch, INSTANCE_ID_MALFORMED},
    instance::{Instance, Interface},
    zones::Zones,
};
use crate::{
    api::{Action, AwsError, AwsErrorCause, Filter, InstanceId, SecurityGroupId},
    scope::Scope,
};

/// Time that a lookup waits for other lookups to join its request.
const BATCH_WINDOW: Duration = Duration::from_millis(10);
/// Time after which an unused entry is evicted.
const IDLE_TTL: Duration = Duration::from_secs(3600);
/// Maximum age of a "not found" result, even if `max_age` allows more, because a new instance
/// becomes visible within seconds.
const MAX_ABSENCE_AGE: Duration = Duration::from_secs(10);
/// Number of rounds for which an error is kept, so that every lookup that waited for the failed
/// request can still read it.
const ERROR_ROUNDS: u64 = 16;
/// Maximum age of AWS' answer that an ID is malformed.
const INVALID_ID_TTL: Duration = Duration::from_secs(24 * 3600);

/// Result for one instance. `Ok(None)` means that AWS confirmed that the instance does not exist,
/// either with a typed error for a request for this ID alone or with a successful answer that lacks
/// it.
pub type InstanceLookup = Result<Option<Arc<Instance>>, AwsError>;

/// Cache of the cluster's instances, which also sends the requests that refresh it.
///
/// A lookup is answered from the cache if the entry is fresh enough. Otherwise it is batched: all
/// lookups that arrive while a request is in flight share the next request. At most one request by
/// ID or listing is in flight at a time.
pub struct InstanceCache {
    scope: Scope,
    strings: Interner,
    zones: Arc<Zones>,
    state: Mutex<CacheState>,
    /// Held while AWS is queried. The holder sends the request for all waiting lookups. If its
    /// future is dropped, the next lookup sends the request.
    request_lock: tokio::sync::Mutex<()>,
}

/// Network interfaces of instances, by address.
#[derive(Default)]
pub(crate) struct InterfacesByAddress {
    /// Instance and security groups of the interface that has the address.
    pub(crate) by_address: BTreeMap<IpAddr, (Arc<Instance>, Box<[SecurityGroupId]>)>,
    /// True if any cached interface has a delegated prefix. Its addresses are not listed one by
    /// one.
    pub(crate) has_prefixes: bool,
}

#[derive(Default)]
struct CacheState {
    /// Number of the current round of requests. The result of a round is fresh for every lookup
    /// that arrived before it began.
    round: u64,
    entries: HashMap<InstanceId, CachedInstance>,
    /// IDs that waiting lookups need, so that the next request includes them. Only a hint: a lookup
    /// that remains unanswered sends its own request.
    requested: HashSet<InstanceId>,
    /// Errors with their round, for the lookups that waited for the failed request.
    errors: HashMap<InstanceId, (u64, AwsError)>,
    listing: ListingState,
}

#[derive(Default)]
struct ListingState {
    /// Number of instances in the last successful listing.
    size: Option<usize>,
    /// Number of listings that succeeded or failed.
    completed: u64,
    /// Error of the last listing if it failed.
    last_error: Option<AwsError>,
}

struct CachedInstance {
    result: InstanceLookup,
    /// Time at which the request for this result was sent.
    fetched_at: Instant,
    /// Round of that request.
    round: u64,
    /// Time at which a lookup last used the entry.
    last_used: Instant,
}

impl CachedInstance {
    /// Returns true if this entry is fresh enough for a lookup that arrived at this time.
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

/// Time and round in which a lookup arrived or a request was sent.
#[derive(Clone, Copy)]
pub(super) struct QueryTime {
    at: Instant,
    round: u64,
}

/// The lookups of one call, with the results so far.
struct LookupBatch {
    arrival: QueryTime,
    /// IDs without a result yet, with their maximum age.
    unanswered: HashMap<InstanceId, Duration>,
    results: HashMap<InstanceId, InstanceLookup>,
}

impl LookupBatch {
    /// Creates a batch without results. If an ID is queried twice, the smaller maximum age applies.
    fn new(queries: impl IntoIterator<Item = (InstanceId, Duration)>, arrival: QueryTime) -> Self {
        let mut unanswered: HashMap<InstanceId, Duration> = HashMap::new();
        for (id, max_age) in queries {
            unanswered
                .entry(id)
                .and_modify(|strictest| *strictest = max_age.min(*strictest))
                .or_insert(max_age);
        }
        let results = HashMap::with_capacity(unanswered.len());
        Self { arrival, unanswered, results }
    }

    fn is_complete(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Records the results that the cache has, including errors of requests that failed after the
    /// lookups arrived.
    fn answer_from(&mut self, state: &mut CacheState) {
        self.unanswered
            .retain(|id, max_age| match state.lookup(id, *max_age, self.arrival) {
                Some(result) => {
                    self.results.insert(id.clone(), result);
                    false
                }
                None => true,
            });
    }

    /// Returns the results, with this error for every ID that has none.
    fn finish_with(mut self, error: &AwsError) -> HashMap<InstanceId, InstanceLookup> {
        for id in self.unanswered.into_keys() {
            self.results.insert(id, Err(error.clone()));
        }
        self.results
    }
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

    /// Returns instances by ID, none of them older than `max_age`. With a `max_age` of zero, AWS is
    /// always queried.
    ///
    /// `None` means that the instance is proven not to exist. An ID that AWS calls malformed has no
    /// entry, because that is neither an instance nor proof of absence.
    ///
    /// # Errors
    /// Returns the error of any other ID whose lookup failed.
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
        let mut lookups = LookupBatch::new(queries, self.query_time());
        lookups.answer_from(&mut self.state.lock());
        if lookups.is_complete() {
            return lookups.results;
        }
        // Then wait for the request lock. Another caller may meanwhile have fetched what this one
        // needs.
        self.state
            .lock()
            .requested
            .extend(lookups.unanswered.keys().cloned());
        let request_lock = match self.acquire_request_lock(op).await {
            Ok(request_lock) => request_lock,
            Err(error) => return lookups.finish_with(&error),
        };
        lookups.answer_from(&mut self.state.lock());
        self.state
            .lock()
            .requested
            .retain(|id| !lookups.results.contains_key(id));
        if lookups.is_complete() {
            return lookups.results;
        }
        // Finally, fetch the missing instances.
        let missing_ids = lookups.unanswered.keys().cloned().collect();
        let fetched = self.fetch_missing(op, missing_ids).await;
        lookups.answer_from(&mut self.state.lock());
        drop(request_lock);
        let error = fetched.err().unwrap_or_else(|| {
            AwsError::no_response(
                Action::DescribeInstances,
                "the answer lacks an instance that was requested",
            )
        });
        lookups.finish_with(&error)
    }

    /// Lists the instances of the cluster and caches them for later lookups. Calls that arrive
    /// during a listing share it.
    ///
    /// # Errors
    /// Returns AWS' error if the listing fails. The cache then keeps its entries.
    pub async fn list_all(&self, op: &Op) -> Result<(), AwsError> {
        let completed_before = self.state.lock().listing.completed;
        let _request_lock = self.acquire_request_lock(op).await?;
        // Another call may have completed a listing while this one waited for the lock.
        if let Some(result) = self.listing_since(completed_before) {
            return result;
        }
        self.list_and_record(op).await
    }

    /// Returns the result of the last listing if more than this number of listings completed.
    fn listing_since(&self, completed_before: u64) -> Option<Result<(), AwsError>> {
        let listing = &self.state.lock().listing;
        if listing.completed == completed_before {
            return None;
        }
        match &listing.last_error {
            Some(error) => Some(Err(error.clone())),
            None => Some(Ok(())),
        }
    }

    /// Returns all cached instances that are no older than `max_age`, without a request.
    pub(super) fn fresh_instances(
        &self,
        max_age: Duration,
        arrival: QueryTime,
    ) -> Vec<Arc<Instance>> {
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
    pub(crate) fn interfaces_with(
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
                found.has_prefixes |= !interface.prefixes.is_empty();
                for address in addresses_of_interface(interface, addresses) {
                    let is_newer = fetched_at
                        .get(&address)
                        .is_none_or(|other| *other < entry.fetched_at);
                    if is_newer {
                        fetched_at.insert(address, entry.fetched_at);
                        found
                            .by_address
                            .insert(address, (instance.clone(), interface.security_groups.clone()));
                    }
                }
            }
        }
        found
    }

    /// Returns true if the cache has this instance and it has the cluster's tag.
    pub(crate) fn is_in_cluster(&self, id: &InstanceId) -> bool {
        let state = self.state.lock();
        match state.entries.get(id).map(|entry| &entry.result) {
            Some(Ok(Some(instance))) => instance.in_cluster,
            _ => false,
        }
    }

    /// Returns the number of instances in the last successful listing, if there was one.
    pub(super) fn last_listing_size(&self) -> Option<usize> {
        self.state.lock().listing.size
    }

    /// Finds existing instances by values of one filter, and caches them. Sends one request per
    /// [`batching::MAX_FILTER_VALUES`] values. The result includes instances of other clusters.
    pub(super) async fn find_by_filter(
        &self,
        op: &Op,
        filter: &str,
        values: &[Box<str>],
        additional_filter: Option<Filter>,
    ) -> Result<Vec<Arc<Instance>>, AwsError> {
        let mut found = Vec::new();
        for values in values.chunks(batching::MAX_FILTER_VALUES) {
            let request = self.begin_round();
            let mut filters = vec![Filter::new(filter, values.iter().cloned())];
            filters.extend(additional_filter.clone());
            let instances: Vec<_> = self
                .fetch(op)
                .find_existing(filters)
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

    /// Begins a round of requests. The results of its requests are as old as the returned time.
    fn begin_round(&self) -> QueryTime {
        let mut state = self.state.lock();
        state.round += 1;
        QueryTime { at: Instant::now(), round: state.round }
    }

    /// Fetches these instances and those that waiting lookups need. The request lock must be held.
    ///
    /// # Errors
    /// Returns an error only if the operation was canceled. Other errors are recorded for each
    /// instance.
    async fn fetch_missing(&self, op: &Op, mut ids: HashSet<InstanceId>) -> Result<(), AwsError> {
        op.sleep(BATCH_WINDOW).await;
        ids.extend(std::mem::take(&mut self.state.lock().requested));
        // First, list the whole cluster if that takes no more calls.
        if batching::should_list_for_ids(ids.len(), self.last_listing_size()) {
            let round_before = self.query_time().round;
            if let Err(error) = self.list_and_record(op).await {
                let listing = QueryTime { at: Instant::now(), round: round_before + 1 };
                let failed = ids.into_iter().map(|id| (id, Err(error.clone())));
                return self.state.lock().record(listing, failed);
            }
            // Keep the IDs that the listing did not contain.
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
        // Then query the remaining IDs.
        let request = self.begin_round();
        let results = self.fetch(op).describe_by_ids(ids).await;
        let lookups = results
            .into_iter()
            .map(|(id, result)| (id, result.map(|instance| instance.map(Arc::new))));
        self.state.lock().record(request, lookups)
    }

    /// Lists the instances of the cluster and caches them. The request lock must be held.
    async fn list_and_record(&self, op: &Op) -> Result<(), AwsError> {
        let request = self.begin_round();
        let result = self.fetch(op).list_cluster().await;
        let mut state = self.state.lock();
        // Calls that wait for a listing do not share the result of a canceled one.
        let error = result.as_ref().err().cloned();
        if !error.as_ref().is_some_and(was_canceled) {
            state.listing.completed += 1;
            state.listing.last_error = error;
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
    /// Returns an error if the operation was canceled. Canceled results are not stored.
    fn record(
        &mut self,
        request: QueryTime,
        lookups: impl IntoIterator<Item = (InstanceId, InstanceLookup)>,
    ) -> Result<(), AwsError> {
        let now = Instant::now();
        self.entries
            .retain(|_, entry| now.saturating_duration_since(entry.last_used) < IDLE_TTL);
        self.errors
            .retain(|_, (error_round, _)| *error_round + ERROR_ROUNDS > request.round);
        let mut canceled = Ok(());
        for (id, lookup) in lookups {
            match lookup {
                Err(error) if was_canceled(&error) => canceled = Err(error),
                Err(error) if !error.has_code(INSTANCE_ID_MALFORMED) => {
                    drop(self.errors.insert(id, (request.round, error)));
                }
                lookup => self.record_instance(id, lookup, request, now),
            }
        }
        canceled
    }

    /// Stores a result, unless a later round has returned one. An older result may arrive later,
    /// because lookups by name do not hold the request lock.
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
        self.errors.remove(&id);
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
        match self.errors.get(id) {
            Some((round, error)) if *round > arrival.round => Some(Err(error.clone())),
            _ => None,
        }
    }
}

/// Returns those of the given addresses that an interface has, including those in its delegated
/// prefixes.
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

/// Returns true if no request was sent because the operation was canceled. Such an error says
/// nothing about the instance.
fn was_canceled(error: &AwsError) -> bool {
    matches!(error.cause, AwsErrorCause::NotSent(_))
}
