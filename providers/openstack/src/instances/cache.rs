//! Cache of the project's servers, shared by all controllers that look up instances.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    k8s::Interner,
    provider::{CloudError, Op},
};
use parking_lot::Mutex;
use tokio::time::Instant;

mod ports;

pub use self::ports::{PortLookup, ServerPorts};
use super::{
    fetch::{Fetch, Listing, ServerListing, ServerRow},
    lookup_strategy::{ListHistory, LookupStrategy, MAX_CONFIRMATIONS, choose_strategy},
    node_match::{NodeMatcher, cell_down_error, single_match, unreadable_error},
    server::{NovaServer, ServerLookup},
};
use crate::client::{Client, OpenStackError};

/// Time after which an answer is removed from the cache.
const IDLE_TTL: Duration = Duration::from_secs(3600);
/// Maximum age of "not found", even if the caller allows more, because a new server may appear
/// within seconds.
const MAX_ABSENCE_AGE: Duration = Duration::from_secs(5);
/// Time for which a kind of list is avoided after it was not answered in time.
const SLOW_LIST_BACKOFF: Duration = Duration::from_secs(600);
/// Number of failed requests in a row after which no more single servers are requested.
const MAX_FAILURES: usize = 3;

/// A server to look up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServerTarget {
    /// The server with this ID.
    Id(Arc<str>),
    /// The server of a Node without provider ID.
    Node {
        /// Name of the Node: the server's name or host name.
        name: Arc<str>,
        /// System UUID of the Node in lower case, if it has the form of a server ID. It counts only if
        /// no server has the name, because a kubelet reports it, and machines may have others.
        system_uuid: Option<Arc<str>>,
    },
}

/// Cache of the project's servers, and the requests that refresh it.
///
/// Only one request is in flight. Callers that arrive during it wait, and use its answer if that is
/// recent enough.
pub struct ServerCache {
    client: Client,
    strings: Interner,
    state: Mutex<CacheState>,
    request_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct CacheState {
    servers: HashMap<ServerTarget, Cached<Option<Arc<NovaServer>>>>,
    ports: HashMap<Arc<str>, Cached<Arc<ServerPorts>>>,
    /// Servers whose single request failed, with the time. They are requested after the others, and
    /// the one that failed last after those that failed before, so that a few that always fail do not
    /// keep others from being requested.
    failed: HashMap<ServerTarget, Instant>,
    /// Names of flavors by ID, or `None` if the flavor does not exist or is hidden.
    flavors: HashMap<Arc<str>, Option<Arc<str>>>,
    /// What lists of servers showed.
    server_lists: ListRecord,
    /// What lists of all ports showed.
    port_lists: ListRecord,
    /// Number of requests that have begun.
    round: u64,
}

/// What lists of one kind showed.
#[derive(Default)]
struct ListRecord {
    rows: Option<usize>,
    slow_until: Option<Instant>,
}

impl ListRecord {
    fn record_rows(&mut self, rows: usize) {
        self.rows = Some(rows);
    }

    fn record_too_slow(&mut self) {
        self.slow_until = Some(Instant::now() + SLOW_LIST_BACKOFF);
    }

    fn history(&self) -> ListHistory {
        let is_slow = self.slow_until.is_some_and(|until| Instant::now() < until);
        ListHistory { rows: self.rows, is_slow }
    }
}

/// A point in time, with its position among the requests. Clocks alone could not order two events
/// within the same tick.
#[derive(Clone, Copy)]
struct RequestMoment {
    at: Instant,
    /// Number of requests that had begun.
    round: u64,
}

/// An answer, with the time when its request began.
struct Cached<T> {
    answer: T,
    fetched_at: RequestMoment,
}

impl<T> Cached<T> {
    /// Returns true if the answer is not older than `max_age`, or if its request began after the
    /// query arrived.
    fn satisfies(&self, arrived_at: RequestMoment, max_age: Duration) -> bool {
        let age = arrived_at.at.saturating_duration_since(self.fetched_at.at);
        self.fetched_at.round > arrived_at.round || (!max_age.is_zero() && age <= max_age)
    }

    fn is_expired(&self, now: RequestMoment) -> bool {
        now.at.saturating_duration_since(self.fetched_at.at) >= IDLE_TTL
    }
}

impl ServerCache {
    /// Creates an empty cache.
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(Self {
            client,
            strings: Interner::default(),
            state: Mutex::default(),
            request_lock: tokio::sync::Mutex::default(),
        })
    }

    /// Finds servers, and returns an answer for each. `max_ages` has the maximum age of each answer.
    /// With an age of zero, Nova is always queried.
    ///
    /// # Errors
    /// Returns an error if the operation was cancelled. Every other error is the answer for the
    /// servers that it concerns.
    pub async fn find_servers(
        &self,
        op: &Op,
        max_ages: &BTreeMap<ServerTarget, Duration>,
    ) -> Result<HashMap<ServerTarget, ServerLookup>, CloudError> {
        let arrived_at = self.now();
        let mut answers = HashMap::with_capacity(max_ages.len());
        if self
            .add_cached_servers(max_ages, arrived_at, &mut answers)
            .is_empty()
        {
            return Ok(answers);
        }
        let _guard = op.run(async { Ok(self.request_lock.lock().await) }).await?;
        // Another request may have answered while this one waited for the lock.
        let missing = self.add_cached_servers(max_ages, arrived_at, &mut answers);
        if missing.is_empty() {
            return Ok(answers);
        }
        let began = self.begin();
        for (target, answer) in self.request_servers(op, missing, began).await {
            if let Ok(answer) = &answer {
                self.state
                    .lock()
                    .servers
                    .insert(target.clone(), Cached { answer: answer.clone(), fetched_at: began });
            }
            answers.insert(target, answer);
        }
        Ok(answers)
    }

    /// Returns the name of a flavor, or `None` if it does not exist or is hidden. Requests each
    /// flavor only once.
    ///
    /// # Errors
    /// Returns Nova's error.
    pub async fn flavor_name(
        &self,
        op: &Op,
        id: &Arc<str>,
    ) -> Result<Option<Arc<str>>, OpenStackError> {
        if let Some(cached) = self.state.lock().flavors.get(id) {
            return Ok(cached.clone());
        }
        let name = self.fetch(op).get_flavor_name(id).await?;
        self.state.lock().flavors.insert(id.clone(), name.clone());
        Ok(name)
    }

    fn now(&self) -> RequestMoment {
        RequestMoment { at: Instant::now(), round: self.state.lock().round }
    }

    /// Begins a request. The returned moment is the age of its answer.
    fn begin(&self) -> RequestMoment {
        let mut state = self.state.lock();
        state.round += 1;
        RequestMoment { at: Instant::now(), round: state.round }
    }

    fn fetch<'a>(&'a self, op: &'a Op) -> Fetch<'a> {
        Fetch { client: &self.client, strings: &self.strings, op }
    }

    /// Adds cached answers if they are recent enough, and returns the servers that are still
    /// missing.
    fn add_cached_servers(
        &self,
        max_ages: &BTreeMap<ServerTarget, Duration>,
        arrived_at: RequestMoment,
        answers: &mut HashMap<ServerTarget, ServerLookup>,
    ) -> BTreeSet<ServerTarget> {
        let state = self.state.lock();
        let mut missing = BTreeSet::new();
        for (target, age) in max_ages {
            if answers.contains_key(target) {
                continue;
            }
            let Some(cached) = state.servers.get(target) else {
                missing.insert(target.clone());
                continue;
            };
            let max_age = if cached.answer.is_some() {
                *age
            } else {
                (*age).min(MAX_ABSENCE_AGE)
            };
            if cached.satisfies(arrived_at, max_age) {
                answers.insert(target.clone(), Ok(cached.answer.clone()));
            } else {
                missing.insert(target.clone());
            }
        }
        missing
    }

    /// Queries Nova for servers, with the strategy that reads the fewest rows.
    async fn request_servers(
        &self,
        op: &Op,
        targets: BTreeSet<ServerTarget>,
        began: RequestMoment,
    ) -> Vec<(ServerTarget, ServerLookup)> {
        let fetch = self.fetch(op);
        let history = self.state.lock().server_lists.history();
        let LookupStrategy::List(max_rows) = choose_strategy(targets.len(), history) else {
            return self
                .look_up_each(&fetch, targets, began, MAX_FAILURES)
                .await;
        };
        match fetch.list_up_to(max_rows).await {
            Ok(ServerListing::Complete(listing)) => {
                let found = self.store_listing(&listing, began);
                answer_from_listing(&fetch, targets, &listing, &found).await
            }
            Ok(ServerListing::TooLong(rows)) => {
                // There is at least one more.
                self.state.lock().server_lists.record_rows(rows + 1);
                self.look_up_each(&fetch, targets, began, MAX_FAILURES)
                    .await
            }
            Err(error) if error.is_too_slow() => {
                tracing::warn!(%error, "the list of servers is too slow, requesting them one by one");
                let answers = self.look_up_each(&fetch, targets, began, 1).await;
                // If single requests are not answered either, the list is not to blame.
                if answers.iter().any(|(_, answer)| answer.is_ok()) {
                    self.state.lock().server_lists.record_too_slow();
                }
                answers
            }
            Err(error) => fail_all(targets, &error.into()),
        }
    }

    /// Requests servers one by one, those last whose last request failed. After `max_failures` failed
    /// requests in a row, the rest fails with the same error, so that an outage is not answered with
    /// more requests.
    async fn look_up_each(
        &self,
        fetch: &Fetch<'_>,
        targets: BTreeSet<ServerTarget>,
        began: RequestMoment,
        max_failures: usize,
    ) -> Vec<(ServerTarget, ServerLookup)> {
        let mut answers = Vec::with_capacity(targets.len());
        let mut unmatched = BTreeSet::new();
        let mut failures = Vec::new();
        for target in self.failed_last(targets) {
            if failures.len() >= max_failures
                && let Some(error) = failures.last()
            {
                answers.push((target, Err(CloudError::clone(error))));
                continue;
            }
            match fetch_one(fetch, &target).await {
                Ok(SingleLookup::Answer(answer)) => {
                    failures.clear();
                    self.state.lock().failed.remove(&target);
                    answers.push((target, answer));
                }
                Ok(SingleLookup::Unmatched) => {
                    failures.clear();
                    self.state.lock().failed.remove(&target);
                    unmatched.insert(target);
                }
                Err(error) => {
                    let error = CloudError::from(error);
                    failures.push(error.clone());
                    self.state
                        .lock()
                        .failed
                        .insert(target.clone(), Instant::now());
                    answers.push((target, Err(error)));
                }
            }
        }
        if !unmatched.is_empty() {
            answers.extend(self.look_up_in_all(fetch, unmatched, began).await);
        }
        answers
    }

    /// Sorts servers, those last whose last request failed. Of these, the one comes first whose failure
    /// is longest ago, so that each has its turn.
    fn failed_last(&self, targets: BTreeSet<ServerTarget>) -> Vec<ServerTarget> {
        let mut state = self.state.lock();
        state.failed.retain(|_, at| at.elapsed() < IDLE_TTL);
        let mut sorted: Vec<_> = targets.into_iter().collect();
        // Servers that did not fail have no time, which sorts before any.
        sorted.sort_by_key(|target| state.failed.get(target).copied());
        sorted
    }

    /// Looks for servers in a complete listing, because nothing else proves that they do not exist:
    /// Nova leaves cells that do not answer out of a filtered list, but shows them in an unfiltered
    /// one.
    async fn look_up_in_all(
        &self,
        fetch: &Fetch<'_>,
        targets: BTreeSet<ServerTarget>,
        began: RequestMoment,
    ) -> Vec<(ServerTarget, ServerLookup)> {
        match fetch.list_servers().await {
            Ok(listing) => {
                let found = self.store_listing(&listing, began);
                answer_from_listing(fetch, targets, &listing, &found).await
            }
            Err(error) => fail_all(targets, &error.into()),
        }
    }

    /// Stores a complete listing, including servers that nobody has queried yet.
    fn store_listing(
        &self,
        listing: &Listing,
        began: RequestMoment,
    ) -> HashMap<Arc<str>, Arc<NovaServer>> {
        let servers: HashMap<_, _> = listing
            .servers
            .iter()
            .map(|server| (server.id.clone(), Arc::new(server.clone())))
            .collect();
        let mut state = self.state.lock();
        let rows = servers.len() + listing.unknown_cell_ids.len() + listing.unreadable.len();
        state.server_lists.record_rows(rows);
        state.servers.retain(|_, cached| !cached.is_expired(began));
        for (id, server) in &servers {
            let cached = Cached { answer: Some(server.clone()), fetched_at: began };
            state.servers.insert(ServerTarget::Id(id.clone()), cached);
        }
        servers
    }
}

fn fail_all(
    targets: BTreeSet<ServerTarget>,
    error: &CloudError,
) -> Vec<(ServerTarget, ServerLookup)> {
    targets
        .into_iter()
        .map(|target| (target, Err(error.clone())))
        .collect()
}

/// Answers queries from a complete listing. A server that the listing lacks is requested by its ID,
/// because only Nova's 404 proves that it is deleted.
async fn answer_from_listing(
    fetch: &Fetch<'_>,
    targets: BTreeSet<ServerTarget>,
    listing: &Listing,
    servers: &HashMap<Arc<str>, Arc<NovaServer>>,
) -> Vec<(ServerTarget, ServerLookup)> {
    let matcher = NodeMatcher::new(listing, servers);
    let mut answers = Vec::with_capacity(targets.len());
    let mut confirmations = 0;
    for target in targets {
        let answer = match &target {
            ServerTarget::Node { name, system_uuid } => matcher.find(name, system_uuid.as_deref()),
            ServerTarget::Id(id) if listing.unknown_cell_ids.contains(&**id) => {
                Err(cell_down_error(id))
            }
            ServerTarget::Id(id) => match servers.get(id) {
                Some(server) => Ok(Some(server.clone())),
                None if confirmations < MAX_CONFIRMATIONS => {
                    confirmations += 1;
                    fetch_by_id(fetch, id)
                        .await
                        .unwrap_or_else(|error| Err(error.into()))
                }
                None => Err(CloudError::transient(format!(
                    "server {id} is not listed, and so many are missing at once that its absence is to be confirmed later"
                ))),
            },
        };
        answers.push((target, answer));
    }
    answers
}

/// Result of the requests for a single server.
enum SingleLookup {
    /// The answer.
    Answer(ServerLookup),
    /// No server has the Node's name, or its system UUID as ID. It may have another name, or be in a
    /// cell that does not answer.
    Unmatched,
}

/// Requests one server alone.
async fn fetch_one(
    fetch: &Fetch<'_>,
    target: &ServerTarget,
) -> Result<SingleLookup, OpenStackError> {
    let (name, system_uuid) = match target {
        ServerTarget::Id(id) => return Ok(SingleLookup::Answer(fetch_by_id(fetch, id).await?)),
        ServerTarget::Node { name, system_uuid } => (name, system_uuid),
    };
    let listing = fetch.list_by_name(name).await?;
    if listing.may_hide(name) {
        return Ok(SingleLookup::Answer(Err(unreadable_error(name))));
    }
    let found: Vec<_> = listing.servers.into_iter().map(Arc::new).collect();
    if !found.is_empty() {
        let answer = single_match("called", name, &found.iter().collect::<Vec<_>>());
        return Ok(SingleLookup::Answer(answer));
    }
    if let Some(id) = system_uuid {
        let answer = fetch_by_id(fetch, id).await?;
        if !matches!(answer, Ok(None)) {
            return Ok(SingleLookup::Answer(answer));
        }
    }
    Ok(SingleLookup::Unmatched)
}

async fn fetch_by_id(fetch: &Fetch<'_>, id: &str) -> Result<ServerLookup, OpenStackError> {
    Ok(match fetch.get_server(id).await? {
        ServerRow::Found(server) => Ok(Some(Arc::new(server))),
        ServerRow::CellDown => Err(cell_down_error(id)),
        ServerRow::NotFound => Ok(None),
    })
}
