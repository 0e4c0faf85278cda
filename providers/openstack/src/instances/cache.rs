//! Cache of servers, shared by all who query them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    k8s::Interner,
    provider::{CloudError, ErrorKind, Op},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    fetch::{Fetch, Listing, ServerRow},
    plan::{self, LookupStrategy},
    server::{NetworkAddress, NovaServer, ServerPort},
};
use crate::client::{Client, OpenStackError};

/// How long an answer is kept since it was fetched.
const IDLE_TTL: Duration = Duration::from_secs(3600);
/// How long a "not found" is valid at most, whatever age is allowed: a new server may appear within
/// seconds.
const MAX_ABSENCE_AGE: Duration = Duration::from_secs(5);

/// How a server is looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServerTarget {
    /// By its ID.
    Id(Arc<str>),
    /// By its name.
    Name(Arc<str>),
}

/// Result for one server. `Ok(None)`: Nova said that there is none.
pub type ServerLookup = Result<Option<Arc<NovaServer>>, CloudError>;

/// Cache of the project's servers, and the requests that refresh it.
///
/// One request at a time is in flight; callers that arrive meanwhile use its answer if that is new
/// enough.
pub struct ServerCache {
    client: Client,
    strings: Interner,
    state: Mutex<CacheState>,
    request_lock: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct CacheState {
    servers: HashMap<ServerTarget, Cached<Option<Arc<NovaServer>>>>,
    nics: HashMap<Arc<str>, Cached<Arc<ServerPorts>>>,
    /// Names of flavors by ID; `None` where the flavor does not exist or is hidden.
    flavors: HashMap<Arc<str>, Option<Arc<str>>>,
    /// How many servers the last complete listing had.
    listed: Option<usize>,
    /// How many requests have begun.
    round: u64,
}

/// The ports of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerPorts {
    /// The ports.
    pub nics: Vec<ServerPort>,
    /// Addresses of trunks' sub-ports.
    pub sub_ports: Vec<NetworkAddress>,
}

/// Position among the requests: clocks alone cannot order two events within a tick.
#[derive(Clone, Copy)]
struct RequestMoment {
    at: Instant,
    /// How many requests had begun.
    round: u64,
}

/// An answer, and when its request began.
struct Cached<T> {
    answer: T,
    fetched_at: RequestMoment,
}

impl<T> Cached<T> {
    /// Returns true if it answers a query that arrived at `asked_at`: it is not older than
    /// `max_age`, or its request began after the query arrived.
    fn satisfies(&self, asked_at: RequestMoment, max_age: Duration) -> bool {
        let age = asked_at.at.saturating_duration_since(self.fetched_at.at);
        self.fetched_at.round > asked_at.round || (!max_age.is_zero() && age <= max_age)
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

    /// Finds servers. No answer is older than the age given for it; zero always queries Nova. One
    /// answer per query.
    ///
    /// # Errors
    /// The operation was cancelled. Every other error is the answer for the servers that it
    /// concerns.
    pub async fn find(
        &self,
        op: &Op,
        questions: &BTreeMap<ServerTarget, Duration>,
    ) -> Result<HashMap<ServerTarget, ServerLookup>, CloudError> {
        let asked_at = self.moment();
        let mut answers = HashMap::with_capacity(questions.len());
        let mut open: BTreeSet<ServerTarget> = questions.keys().cloned().collect();
        self.take_cached(questions, asked_at, &mut open, &mut answers);
        if open.is_empty() {
            return Ok(answers);
        }
        let _guard = op.run(async { Ok(self.request_lock.lock().await) }).await?;
        self.take_cached(questions, asked_at, &mut open, &mut answers);
        if open.is_empty() {
            return Ok(answers);
        }
        let began = self.begin();
        for (target, answer) in self.request_missing(op, open, began).await {
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

    /// Returns the ports of servers, by ID of the server.
    ///
    /// # Errors
    /// Neutron's error; then there is no answer at all.
    pub async fn interfaces(
        &self,
        op: &Op,
        servers: &BTreeMap<Arc<str>, Duration>,
    ) -> Result<HashMap<Arc<str>, Arc<ServerPorts>>, OpenStackError> {
        let asked_at = self.moment();
        let mut found = HashMap::with_capacity(servers.len());
        if self
            .take_cached_ports(servers, asked_at, &mut found)
            .is_empty()
        {
            return Ok(found);
        }
        let _guard = self.request_lock.lock().await;
        // Another request may have answered while this one waited for the lock.
        let missing = self.take_cached_ports(servers, asked_at, &mut found);
        if missing.is_empty() {
            return Ok(found);
        }
        let began = self.begin();
        let fetch = self.fetch(op);
        let mut ports = fetch.nics(&missing).await?;
        let sub_port_ids: BTreeSet<&str> = missing
            .iter()
            .filter_map(|id| ports.get(&**id))
            .flatten()
            .flat_map(|port| &port.sub_ports)
            .map(|id| &**id)
            .collect();
        let sub_ports = if sub_port_ids.is_empty() {
            BTreeMap::new()
        } else {
            fetch.sub_ports(&sub_port_ids).await?
        };
        let mut state = self.state.lock();
        state.nics.retain(|_, cached| !cached.is_expired(began));
        for id in missing {
            let nics = ports.remove(&*id).unwrap_or_default();
            let sub_ports = nics
                .iter()
                .flat_map(|port| &port.sub_ports)
                .filter_map(|id| sub_ports.get(&**id))
                .flatten()
                .cloned()
                .collect();
            let answer = Arc::new(ServerPorts { nics, sub_ports });
            state
                .nics
                .insert(id.clone(), Cached { answer: answer.clone(), fetched_at: began });
            found.insert(id, answer);
        }
        Ok(found)
    }

    /// Adds what is cached and fresh enough to `found`. Returns the servers that are missing in it.
    fn take_cached_ports(
        &self,
        servers: &BTreeMap<Arc<str>, Duration>,
        asked_at: RequestMoment,
        found: &mut HashMap<Arc<str>, Arc<ServerPorts>>,
    ) -> Vec<Arc<str>> {
        let state = self.state.lock();
        for (id, age) in servers {
            if let Some(cached) = state.nics.get(id)
                && cached.satisfies(asked_at, *age)
            {
                found.insert(id.clone(), cached.answer.clone());
            }
        }
        servers
            .keys()
            .filter(|id| !found.contains_key(*id))
            .cloned()
            .collect()
    }

    /// Returns the name of a flavor, requested once; `None` when it does not exist or is hidden.
    ///
    /// # Errors
    /// Nova's error.
    pub async fn flavor(&self, op: &Op, id: &Arc<str>) -> Result<Option<Arc<str>>, OpenStackError> {
        if let Some(cached) = self.state.lock().flavors.get(id) {
            return Ok(cached.clone());
        }
        let name = self.fetch(op).flavor(id).await?;
        self.state.lock().flavors.insert(id.clone(), name.clone());
        Ok(name)
    }

    fn moment(&self) -> RequestMoment {
        RequestMoment { at: Instant::now(), round: self.state.lock().round }
    }

    /// Begins a request: its answer is as old as this moment.
    fn begin(&self) -> RequestMoment {
        let mut state = self.state.lock();
        state.round += 1;
        RequestMoment { at: Instant::now(), round: state.round }
    }

    fn fetch<'a>(&'a self, op: &'a Op) -> Fetch<'a> {
        Fetch { client: &self.client, strings: &self.strings, op }
    }

    /// Moves what is cached and fresh enough to the answers.
    fn take_cached(
        &self,
        questions: &BTreeMap<ServerTarget, Duration>,
        asked_at: RequestMoment,
        open: &mut BTreeSet<ServerTarget>,
        answers: &mut HashMap<ServerTarget, ServerLookup>,
    ) {
        let state = self.state.lock();
        for (target, age) in questions {
            let Some(cached) = state.servers.get(target) else {
                continue;
            };
            let max_age = if cached.answer.is_some() {
                *age
            } else {
                (*age).min(MAX_ABSENCE_AGE)
            };
            if cached.satisfies(asked_at, max_age) && open.remove(target) {
                answers.insert(target.clone(), Ok(cached.answer.clone()));
            }
        }
    }

    /// Queries Nova for each of these, with the strategy that takes the fewest requests.
    async fn request_missing(
        &self,
        op: &Op,
        open: BTreeSet<ServerTarget>,
        began: RequestMoment,
    ) -> Vec<(ServerTarget, ServerLookup)> {
        let fetch = self.fetch(op);
        let listed = self.state.lock().listed;
        match plan::choose_strategy(open.len(), listed) {
            LookupStrategy::Each => {
                let mut answers = Vec::with_capacity(open.len());
                for target in open {
                    let answer = fetch_one(&fetch, &target).await;
                    answers.push((target, answer));
                }
                answers
            }
            LookupStrategy::List => match fetch.list().await {
                Ok(listing) => {
                    let found = self.store_listing(&listing, began);
                    confirm(&fetch, open, &listing, &found).await
                }
                Err(error) => {
                    let error = CloudError::from(error);
                    open.into_iter()
                        .map(|target| (target, Err(error.clone())))
                        .collect()
                }
            },
        }
    }

    /// Stores a complete listing: servers that were not queried may be soon.
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
        state.listed = Some(servers.len() + listing.unknown_cell_ids.len());
        state.servers.retain(|_, cached| !cached.is_expired(began));
        for (id, server) in &servers {
            let cached = Cached { answer: Some(server.clone()), fetched_at: began };
            state.servers.insert(ServerTarget::Id(id.clone()), cached);
        }
        servers
    }
}

/// Answers from a complete listing. A server that is not in it is requested by ID before it counts
/// as deleted.
async fn confirm(
    fetch: &Fetch<'_>,
    open: BTreeSet<ServerTarget>,
    listing: &Listing,
    servers: &HashMap<Arc<str>, Arc<NovaServer>>,
) -> Vec<(ServerTarget, ServerLookup)> {
    let mut by_name: HashMap<&str, Vec<&Arc<NovaServer>>> = HashMap::new();
    for server in servers.values() {
        by_name.entry(&server.name).or_default().push(server);
    }
    let mut answers = Vec::with_capacity(open.len());
    let mut confirmed = 0;
    for target in open {
        let answer = match &target {
            ServerTarget::Name(name) => {
                let found = by_name.get(&**name).map(Vec::as_slice).unwrap_or_default();
                single_match(name, found, !listing.unknown_cell_ids.is_empty())
            }
            ServerTarget::Id(id) if listing.unknown_cell_ids.contains(&**id) => {
                Err(cell_down_error(id))
            }
            ServerTarget::Id(id) => match servers.get(id) {
                Some(server) => Ok(Some(server.clone())),
                None if confirmed < plan::MAX_CONFIRMATIONS => {
                    confirmed += 1;
                    fetch_one(fetch, &target).await
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

/// Queries one server alone.
async fn fetch_one(fetch: &Fetch<'_>, target: &ServerTarget) -> ServerLookup {
    match target {
        ServerTarget::Id(id) => match fetch.by_id(id).await? {
            ServerRow::Found(server) => Ok(Some(Arc::new(server))),
            ServerRow::CellDown => Err(cell_down_error(id)),
            ServerRow::NotFound => Ok(None),
        },
        ServerTarget::Name(name) => {
            let mut listing = fetch.named(name).await?;
            if listing.servers.is_empty() {
                // Nova silently leaves cells that do not answer out of a filtered list.
                listing = fetch.list().await?;
                listing.servers.retain(|server| server.name == *name);
            }
            let found: Vec<_> = listing.servers.into_iter().map(Arc::new).collect();
            single_match(
                name,
                &found.iter().collect::<Vec<_>>(),
                !listing.unknown_cell_ids.is_empty(),
            )
        }
    }
}

/// Returns the only server with a name.
fn single_match(name: &str, found: &[&Arc<NovaServer>], others_hidden: bool) -> ServerLookup {
    match found {
        [server] => Ok(Some((*server).clone())),
        [] if others_hidden => Err(CloudError::transient(format!(
            "no server is called {name:?}, but a cell of Nova does not answer and may hold one"
        ))),
        [] => Ok(None),
        many => {
            let ids: Vec<&str> = many.iter().map(|server| &*server.id).collect();
            let message = format!("{} servers are called {name:?}: {}", many.len(), ids.join(", "));
            Err(CloudError::new(ErrorKind::Conflict, message))
        }
    }
}

fn cell_down_error(id: &str) -> CloudError {
    CloudError::transient(format!("server {id} is in a cell of Nova that does not answer"))
}
