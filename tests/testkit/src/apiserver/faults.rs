//! Scripted faults: what the network, a busy server or a lagging replica would do.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::watch as signal;

use super::request::RequestInfo;

/// Which requests a fault meets; unset parts match all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Match {
    verbs: Vec<String>,
    resource: Option<String>,
    subresource: Option<String>,
    name: Option<String>,
    namespace: Option<String>,
    user_agent: Option<String>,
}

impl Match {
    /// Every request, those to paths that are no resource included.
    pub fn any() -> Self {
        Self::default()
    }

    /// Requests to this resource (plural), with every subresource.
    pub fn resource(resource: &str) -> Self {
        Self { resource: Some(resource.into()), ..Self::default() }
    }

    /// Only this verb; more calls add verbs.
    #[must_use]
    pub fn verb(mut self, verb: &str) -> Self {
        self.verbs.push(verb.into());
        self
    }

    /// Only `create`, `update`, `patch`, `delete` and `deletecollection`.
    #[must_use]
    pub fn writes(mut self) -> Self {
        self.verbs
            .extend(["create", "update", "patch", "delete", "deletecollection"].map(String::from));
        self
    }

    /// Only this subresource; empty for the object itself.
    #[must_use]
    pub fn subresource(mut self, subresource: &str) -> Self {
        self.subresource = Some(subresource.into());
        self
    }

    /// Only this object. Creations carry no name in their path and never match.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only this namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Only clients whose `User-Agent` contains this.
    #[must_use]
    pub fn user_agent(mut self, part: &str) -> Self {
        self.user_agent = Some(part.into());
        self
    }

    /// Whether a request is met.
    pub fn matches(&self, info: &RequestInfo) -> bool {
        let is =
            |wanted: &Option<String>, actual: &str| wanted.as_ref().is_none_or(|w| w == actual);
        (self.verbs.is_empty() || self.verbs.contains(&info.verb))
            && is(&self.resource, &info.resource)
            && is(&self.subresource, &info.subresource)
            && is(&self.name, &info.name)
            && is(&self.namespace, &info.namespace)
            && self
                .user_agent
                .as_ref()
                .is_none_or(|part| info.user_agent.contains(part.as_str()))
    }
}

/// What happens to a request a fault meets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It is held for this long, then served (or met by the next fault).
    Delay(Duration),
    /// It is answered with a `Status` of this code and has no effect.
    Error {
        /// HTTP status.
        code: StatusCode,
        /// Seconds in `Retry-After` and in the details.
        retry_after: Option<u32>,
    },
    /// It is answered 429 in the plain-text form of priority and fairness, with `Retry-After`, and
    /// has no effect.
    TooManyRequests {
        /// Seconds in `Retry-After`.
        retry_after: u32,
    },
    /// The connection breaks before the request has an effect.
    Drop,
    /// The request has its effect; the connection breaks before the answer.
    DropReply,
    /// Lists are answered as of this version, as by a replica that lags.
    StaleRead(u64),
    /// A deletion looks for finalizers at once and is carried out this much later: an object that
    /// had none goes then, whichever it has been given in between. Everything else is judged then.
    /// The real server, too, reads an object first and deletes it in a second step that depends on
    /// its UID and version at most, if those are given.
    LateDelete(Duration),
}

/// Names a fault or a freeze, to take it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FaultId(u64);

/// The script; cheap to clone, all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    shared: Arc<FaultsInner>,
}

#[derive(Debug, Default)]
struct FaultsInner {
    script: Mutex<Script>,
    watches: Watches,
}

#[derive(Debug, Default)]
struct Script {
    next: u64,
    faults: Vec<Fault>,
}

#[derive(Debug)]
struct Fault {
    id: FaultId,
    matching: Match,
    action: Action,
    /// Matching requests that are let through first.
    skip: u64,
    left: Option<u64>,
    met: u64,
}

impl Faults {
    /// Lets `action` happen to every matching request until it is removed.
    pub fn add(&self, matching: Match, action: Action) -> FaultId {
        self.push(matching, action, 0, None)
    }

    /// Lets `action` happen to every matching request after the next `skip` ones, until it is
    /// removed.
    pub fn add_after(&self, skip: u64, matching: Match, action: Action) -> FaultId {
        self.push(matching, action, skip, None)
    }

    /// Lets `action` happen to the next `times` matching requests.
    pub fn add_times(&self, matching: Match, action: Action, times: u64) -> FaultId {
        self.push(matching, action, 0, Some(times))
    }

    fn push(&self, matching: Match, action: Action, skip: u64, left: Option<u64>) -> FaultId {
        let mut script = self.shared.script.lock();
        let id = FaultId(script.next);
        script.next += 1;
        script
            .faults
            .push(Fault { id, matching, action, skip, left, met: 0 });
        id
    }

    /// Takes a fault back; false when it is unknown.
    pub fn remove(&self, id: FaultId) -> bool {
        let mut script = self.shared.script.lock();
        let before = script.faults.len();
        script.faults.retain(|f| f.id != id);
        script.faults.len() < before
    }

    /// How many requests a fault has met. Used-up faults keep their count.
    pub fn met(&self, id: FaultId) -> u64 {
        self.shared
            .script
            .lock()
            .faults
            .iter()
            .find(|f| f.id == id)
            .map_or(0, |f| f.met)
    }

    /// Takes all faults and freezes back.
    pub fn clear(&self) {
        self.shared.script.lock().faults.clear();
        self.shared.watches.thaw_all();
    }

    /// Ends matching open watches as a server does that shuts down: the stream ends without an
    /// error. Returns how many.
    pub fn close_watches(&self, matching: &Match) -> usize {
        self.shared.watches.tell(matching, |s| s.closed = true)
    }

    /// Breaks matching open watches as a lost connection does: the stream fails. Returns how many.
    pub fn cut_watches(&self, matching: &Match) -> usize {
        self.shared.watches.tell(matching, |s| s.aborted = true)
    }

    /// Matching watches, open and future ones, deliver nothing, not even bookmarks, until thawed.
    pub fn freeze_watches(&self, matching: Match) -> FaultId {
        let mut script = self.shared.script.lock();
        let id = FaultId(script.next);
        script.next += 1;
        drop(script);
        self.shared.watches.freeze(id, matching);
        id
    }

    /// Ends a freeze; held-back events follow at once.
    pub fn thaw(&self, id: FaultId) {
        self.shared.watches.thaw(id);
    }

    /// Makes matching open watches tell everything after `version` again, old states first, as a
    /// server does that went back in time. Returns how many.
    pub fn rewind_watches(&self, matching: &Match, version: u64) -> usize {
        self.shared
            .watches
            .tell(matching, |s| s.rewind = Some((s.rewind.map_or(0, |(n, _)| n + 1), version)))
    }

    /// How many events have been told again because of [`rewind_watches`](Self::rewind_watches), by
    /// all watches together.
    pub fn retold(&self) -> u64 {
        self.shared.watches.retold.load(Ordering::Relaxed)
    }

    /// How many matching watches are open.
    pub fn open_watches(&self, matching: &Match) -> usize {
        self.shared.watches.tell(matching, |_| {})
    }

    /// What happens to this request, in the order of the script.
    pub(crate) fn meet(&self, info: &RequestInfo) -> Vec<Action> {
        let mut script = self.shared.script.lock();
        let mut actions = Vec::new();
        for fault in script
            .faults
            .iter_mut()
            .filter(|f| f.left != Some(0) && f.matching.matches(info))
        {
            if fault.skip > 0 {
                fault.skip -= 1;
                continue;
            }
            fault.met += 1;
            if let Some(left) = &mut fault.left {
                *left -= 1;
            }
            actions.push(fault.action.clone());
            if !matches!(fault.action, Action::Delay(_)) {
                break;
            }
        }
        actions
    }

    pub(crate) fn watches(&self) -> &Watches {
        &self.shared.watches
    }
}

/// The open watches, for faults that meet them while they run.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    inner: Mutex<OpenWatches>,
    retold: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct OpenWatches {
    next: u64,
    open: HashMap<u64, (RequestInfo, signal::Sender<WatchState>)>,
    freezes: Vec<(FaultId, Match)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct WatchState {
    closed: bool,
    aborted: bool,
    frozen: bool,
    /// Number of the rewind and the version to go back to.
    rewind: Option<(u64, u64)>,
}

/// What the script does to one open watch.
#[derive(Debug)]
pub(crate) struct WatchFault {
    state: signal::Receiver<WatchState>,
    rewound: Option<(u64, u64)>,
    /// Counts events that are told again.
    retold: Arc<AtomicU64>,
}

impl Watches {
    pub(crate) fn register(&self, info: &RequestInfo) -> WatchFault {
        let mut inner = self.inner.lock();
        // A watch is forgotten when its body is dropped, seen here by its receiver.
        inner.open.retain(|_, (_, sender)| !sender.is_closed());
        let frozen = inner.freezes.iter().any(|(_, m)| m.matches(info));
        let (sender, state) = signal::channel(WatchState { frozen, ..WatchState::default() });
        let id = inner.next;
        inner.next += 1;
        inner.open.insert(id, (info.clone(), sender));
        WatchFault { state, rewound: None, retold: self.retold.clone() }
    }

    fn tell(&self, matching: &Match, change: impl Fn(&mut WatchState)) -> usize {
        let inner = self.inner.lock();
        let met = inner
            .open
            .values()
            .filter(|(info, sender)| !sender.is_closed() && matching.matches(info));
        met.map(|(_, sender)| sender.send_modify(&change)).count()
    }

    fn freeze(&self, id: FaultId, matching: Match) {
        self.inner.lock().freezes.push((id, matching));
        self.refresh_freezes();
    }

    fn thaw(&self, id: FaultId) {
        self.inner.lock().freezes.retain(|(other, _)| *other != id);
        self.refresh_freezes();
    }

    fn thaw_all(&self) {
        self.inner.lock().freezes.clear();
        self.refresh_freezes();
    }

    fn refresh_freezes(&self) {
        let inner = self.inner.lock();
        for (info, sender) in inner.open.values() {
            let frozen = inner.freezes.iter().any(|(_, m)| m.matches(info));
            sender.send_if_modified(|s| std::mem::replace(&mut s.frozen, frozen) != frozen);
        }
    }
}

impl WatchFault {
    pub(crate) fn is_closed(&self) -> bool {
        self.state.borrow().closed
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.state.borrow().aborted
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.state.borrow().frozen
    }

    /// The version to go back to, once.
    pub(crate) fn take_rewind(&mut self) -> Option<u64> {
        let rewind = self.state.borrow().rewind;
        if rewind == self.rewound {
            return None;
        }
        self.rewound = rewind;
        rewind.map(|(_, version)| version)
    }

    /// Notes events that were told before.
    pub(crate) fn retell(&self, events: u64) {
        self.retold.fetch_add(events, Ordering::Relaxed);
    }

    /// Resolves when the script did something to this watch.
    pub(crate) async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
