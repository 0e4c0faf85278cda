//! Scripted faults, like those of a network, a busy server or a lagging replica.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::watch as signal;

use super::request::RequestInfo;

/// Selects requests for a fault; unset parts match all.
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
    /// Matches every request, including those to paths that are no resource.
    pub fn any() -> Self {
        Self::default()
    }

    /// Requests to this resource (plural), with every subresource.
    pub fn resource(resource: &str) -> Self {
        Self { resource: Some(resource.into()), ..Self::default() }
    }

    /// Matches only this verb; more calls add verbs.
    #[must_use]
    pub fn verb(mut self, verb: &str) -> Self {
        self.verbs.push(verb.into());
        self
    }

    /// Matches only `create`, `update`, `patch`, `delete` and `deletecollection`.
    #[must_use]
    pub fn writes(mut self) -> Self {
        self.verbs
            .extend(["create", "update", "patch", "delete", "deletecollection"].map(String::from));
        self
    }

    /// Matches only this subresource; empty for the object itself.
    #[must_use]
    pub fn subresource(mut self, subresource: &str) -> Self {
        self.subresource = Some(subresource.into());
        self
    }

    /// Matches only this object. Creations have no name in their path and never match.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Matches only this namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Matches only clients whose `User-Agent` contains this text.
    #[must_use]
    pub fn user_agent(mut self, part: &str) -> Self {
        self.user_agent = Some(part.into());
        self
    }

    /// Returns true if a request is met.
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

/// Effect of a fault on a matching request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The request is delayed for this long, then served (or handled by the next fault).
    Delay(Duration),
    /// The request is answered with a `Status` of this code and has no effect.
    Error {
        /// HTTP status.
        code: StatusCode,
        /// Seconds in `Retry-After` and in the details.
        retry_after: Option<u32>,
    },
    /// The request is answered with 429 in the plain-text form of priority and fairness, with
    /// `Retry-After`, and has no effect.
    TooManyRequests {
        /// Seconds in `Retry-After`.
        retry_after: u32,
    },
    /// The connection breaks before the request has an effect.
    Drop,
    /// The request takes effect; the connection breaks before the response.
    DropReply,
    /// Lists are answered as of this version, as by a replica that lags.
    StaleRead(u64),
    /// A deletion looks for finalizers at once and is carried out this much later: an object that
    /// had none goes then, whichever it has been given in between. Everything else is judged then.
    /// The real server, too, reads an object first and deletes it in a second step that depends on
    /// its UID and version at most, if those are given.
    LateDelete(Duration),
}

/// Identifies a fault or a freeze, to remove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FaultId(u64);

/// Scripted faults. Clones share the script.
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
    /// Number of matching requests that are not affected at first.
    skip: u64,
    left: Option<u64>,
    met: u64,
}

impl Faults {
    /// Applies `action` to every matching request until it is removed.
    pub fn add(&self, matching: Match, action: Action) -> FaultId {
        self.push(matching, action, 0, None)
    }

    /// Applies `action` to every matching request after the next `skip` ones, until it is removed.
    pub fn add_after(&self, skip: u64, matching: Match, action: Action) -> FaultId {
        self.push(matching, action, skip, None)
    }

    /// Applies `action` to the next `times` matching requests.
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

    /// Removes a fault. Returns false if it is unknown.
    pub fn remove(&self, id: FaultId) -> bool {
        let mut script = self.shared.script.lock();
        let before = script.faults.len();
        script.faults.retain(|f| f.id != id);
        script.faults.len() < before
    }

    /// Returns how many requests a fault has affected. Faults that are used up keep their count.
    pub fn met(&self, id: FaultId) -> u64 {
        self.shared
            .script
            .lock()
            .faults
            .iter()
            .find(|f| f.id == id)
            .map_or(0, |f| f.met)
    }

    /// Removes all faults and freezes.
    pub fn clear(&self) {
        self.shared.script.lock().faults.clear();
        self.shared.watches.thaw_all();
    }

    /// Ends matching open watches like a server that shuts down: the stream ends without an error.
    /// Returns their number.
    pub fn close_watches(&self, matching: &Match) -> usize {
        self.shared.watches.tell(matching, |s| s.closed = true)
    }

    /// Breaks matching open watches like a lost connection: the stream fails. Returns their number.
    pub fn cut_watches(&self, matching: &Match) -> usize {
        self.shared.watches.tell(matching, |s| s.aborted = true)
    }

    /// Freezes matching watches, open and future ones: they deliver nothing, not even bookmarks,
    /// until they are thawed.
    pub fn freeze_watches(&self, matching: Match) -> FaultId {
        let mut script = self.shared.script.lock();
        let id = FaultId(script.next);
        script.next += 1;
        drop(script);
        self.shared.watches.freeze(id, matching);
        id
    }

    /// Ends a freeze. Delayed events follow at once.
    pub fn thaw(&self, id: FaultId) {
        self.shared.watches.thaw(id);
    }

    /// Makes matching open watches send everything after `version` again, old states first, like a
    /// server that went back in time. Returns their number.
    pub fn rewind_watches(&self, matching: &Match, version: u64) -> usize {
        self.shared
            .watches
            .tell(matching, |s| s.rewind = Some((s.rewind.map_or(0, |(n, _)| n + 1), version)))
    }

    /// Returns how many events all watches have sent again because of
    /// [`rewind_watches`](Self::rewind_watches).
    pub fn retold(&self) -> u64 {
        self.shared.watches.retold.load(Ordering::Relaxed)
    }

    /// Returns how many matching watches are open.
    pub fn open_watches(&self, matching: &Match) -> usize {
        self.shared.watches.tell(matching, |_| {})
    }

    /// Returns the effects on this request, in the order of the script.
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

/// Open watches, for faults that affect them while they run.
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

/// Faults of one open watch.
#[derive(Debug)]
pub(crate) struct WatchFault {
    state: signal::Receiver<WatchState>,
    rewound: Option<(u64, u64)>,
    /// Counts events that are sent again.
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

    /// Returns the version to go back to, and clears it.
    pub(crate) fn take_rewind(&mut self) -> Option<u64> {
        let rewind = self.state.borrow().rewind;
        if rewind == self.rewound {
            return None;
        }
        self.rewound = rewind;
        rewind.map(|(_, version)| version)
    }

    /// Counts events that were sent before.
    pub(crate) fn retell(&self, events: u64) {
        self.retold.fetch_add(events, Ordering::Relaxed);
    }

    /// Resolves when the script changes this watch.
    pub(crate) async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
