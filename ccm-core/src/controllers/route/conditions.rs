//! Condition `NetworkUnavailable`: what it shall be, who writes it, and the writing.
//!
//! The route controller decides. It writes, too, unless the node controller is about to write the addresses of a new node:
//! then the condition rides in that patch, which saves a write per node.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use jiff::{Timestamp, Unit};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{RouteController, metrics::ConditionWrite, plan::Network};
use crate::{
    error::chain,
    k8s::{NodeCondition, NodeView, well_known as wk},
    runtime::{
        api::{ApiErrorKind, Patch, Subresource},
        events::WallClock,
        queue::Backoff,
    },
};

/// Writes in flight. Upstream has no limit (W17c).
const MAX_WRITES: usize = 16;
/// Back-off of a condition that could not be written.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), cap: Duration::from_secs(30) };
/// How long the condition of a new node waits for its addresses to be written. The look-up in the cloud and its batch take
/// less than this unless the cloud is in trouble.
const RIDE_PATIENCE: Duration = Duration::from_secs(3);
/// How long a write may take to come back through the watch before it is taken for lost.
const ECHO_PATIENCE: Duration = Duration::from_secs(10);
/// Pause before a second look at a node that somebody else is writing to.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// What condition `NetworkUnavailable` of each node shall be: filled by the route controller, and consulted by the node
/// controller whenever it writes addresses. Clones share one table.
#[derive(Clone, Debug)]
pub struct NetworkReady {
    table: Arc<Mutex<HashMap<Arc<str>, Entry>>>,
    clock: WallClock,
    rides: bool,
}

#[derive(Debug)]
struct Entry {
    /// The entry says nothing about a namesake.
    uid: Box<str>,
    network: Network,
    /// When that was decided.
    since: Instant,
    /// Whether somebody writes it just now.
    busy: bool,
    written: Option<Written>,
}

/// A write that may not have come back through the watch.
#[derive(Debug)]
struct Written {
    /// The condition that it replaced.
    over: Option<NodeCondition>,
    at: Instant,
}

/// What to do about a node's condition.
#[derive(Debug)]
pub(crate) enum Look {
    /// It is as it shall be, or nothing is known.
    Nothing,
    /// Look again after this time.
    Later(Duration),
    /// Write it.
    Write(Writing),
}

/// The right to write the condition of one node. Dropped before [`done`](Self::done), the write did not happen.
#[derive(Debug)]
pub(crate) struct Writing {
    table: Arc<Mutex<HashMap<Arc<str>, Entry>>>,
    node: Arc<str>,
    uid: Box<str>,
    over: Option<NodeCondition>,
    network: Network,
    now: Timestamp,
}

impl NetworkReady {
    /// Makes an empty table. `rides`: whether a node controller in this process consults it, so that waiting for that
    /// makes sense.
    pub fn new(clock: WallClock, rides: bool) -> Self {
        Self { table: Arc::default(), clock, rides }
    }

    /// Decides what the condition of a node shall be. Returns whether it has to be written.
    pub(crate) fn decide(&self, node: &NodeView, network: Network) -> bool {
        let mut table = self.table.lock();
        let known = table.get_mut(&node.name).filter(|entry| entry.uid == node.uid && entry.network == network);
        if known.is_none() {
            let entry = Entry { uid: node.uid.clone(), network, since: Instant::now(), busy: false, written: None };
            table.insert(node.name.clone(), entry);
        }
        !network.is_shown_by(node.network_unavailable.as_ref())
    }

    /// Forgets the nodes that are not to be kept.
    pub(crate) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.table.lock().retain(|name, _| keep(name));
    }

    /// Tells whether the node shows what was decided, or nothing was.
    pub(crate) fn is_settled(&self, node: &NodeView) -> bool {
        let table = self.table.lock();
        let entry = table.get(&node.name).filter(|entry| entry.uid == node.uid);
        entry.is_none_or(|entry| entry.network.is_shown_by(node.network_unavailable.as_ref()))
    }

    /// Looks at a node on behalf of the route controller.
    pub(crate) fn look(&self, node: &NodeView) -> Look {
        let mut table = self.table.lock();
        let Some(entry) = unsettled(&mut table, node) else { return Look::Nothing };
        let wait = entry.echo_patience(node);
        if !wait.is_zero() {
            return Look::Later(wait);
        }
        if entry.busy {
            return Look::Later(BUSY_PAUSE);
        }
        let wait = self.ride_patience(entry, node);
        if !wait.is_zero() {
            return Look::Later(wait);
        }
        Look::Write(self.begin(entry, node))
    }

    /// Returns the right to write the condition of a node along with its addresses, if there is anything to write. Only
    /// good news ride: whether routes are missing is decided anew at each pass.
    pub(crate) fn ride(&self, node: &NodeView) -> Option<Writing> {
        let mut table = self.table.lock();
        let is_free =
            |entry: &&mut Entry| !entry.busy && entry.network == Network::Ready && entry.echo_patience(node).is_zero();
        let entry = unsettled(&mut table, node).filter(is_free)?;
        Some(self.begin(entry, node))
    }

    fn begin(&self, entry: &mut Entry, node: &NodeView) -> Writing {
        entry.busy = true;
        Writing {
            table: self.table.clone(),
            node: node.name.clone(),
            uid: node.uid.clone(),
            over: node.network_unavailable.clone(),
            network: entry.network,
            now: self.clock.now(),
        }
    }

    /// Returns how long the condition should wait for the node's addresses to be written.
    fn ride_patience(&self, entry: &Entry, node: &NodeView) -> Duration {
        let is_awaited =
            self.rides && entry.network == Network::Ready && node.is_uninitialized() && node.addresses.is_empty();
        if is_awaited { RIDE_PATIENCE.saturating_sub(entry.since.elapsed()) } else { Duration::ZERO }
    }
}

/// Returns the entry of a node that does not show what was decided.
fn unsettled<'a>(table: &'a mut HashMap<Arc<str>, Entry>, node: &NodeView) -> Option<&'a mut Entry> {
    let have = node.network_unavailable.as_ref();
    table.get_mut(&node.name).filter(|entry| entry.uid == node.uid && !entry.network.is_shown_by(have))
}

impl Entry {
    /// Returns how long the watch may still take to bring our own write. Somebody who puts back just what was there before
    /// is noticed after that.
    fn echo_patience(&self, node: &NodeView) -> Duration {
        let is_before = |written: &&Written| written.over.as_ref() == node.network_unavailable.as_ref();
        let written = self.written.as_ref().filter(is_before);
        written.map_or(Duration::ZERO, |written| ECHO_PATIENCE.saturating_sub(written.at.elapsed()))
    }
}

impl Writing {
    /// Returns the condition as it is patched. Without `lastTransitionTime` the server keeps the old one, which is right
    /// where only the reason changes; upstream resets it (W17e).
    pub(crate) fn condition(&self) -> Value {
        // Like every time of the API's own objects, in whole seconds.
        let now = self.now.round(Unit::Second).unwrap_or(self.now).to_string();
        let mut condition = json!({
            "type": wk::CONDITION_NETWORK_UNAVAILABLE,
            "status": self.network.status().as_str(),
            "reason": self.network.reason(),
            "message": self.network.message(),
            "lastHeartbeatTime": now,
        });
        if self.over.as_ref().is_none_or(|over| over.status != self.network.status()) {
            condition["lastTransitionTime"] = Value::from(now);
        }
        condition
    }

    /// Notes that it is written.
    pub(crate) fn done(self) {
        let written = Written { over: self.over.clone(), at: Instant::now() };
        if let Some(entry) = self.entry(&mut self.table.lock()) {
            entry.written = Some(written);
        }
    }

    fn entry<'a>(&self, table: &'a mut HashMap<Arc<str>, Entry>) -> Option<&'a mut Entry> {
        table.get_mut(&self.node).filter(|entry| entry.uid == self.uid && entry.network == self.network)
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(entry) = self.entry(&mut self.table.lock()) {
            entry.busy = false;
        }
    }
}

impl RouteController {
    /// Writes conditions, some at a time, until `cancel`; then finishes what was begun.
    pub(super) async fn write_conditions(&self, cancel: &CancellationToken) {
        let mut writing = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                Some(()) = writing.next(), if !writing.is_empty() => {}
                name = self.conditions.get(), if writing.len() < MAX_WRITES => writing.push(self.settle(name)),
            }
        }
        while writing.next().await.is_some() {}
    }

    async fn settle(&self, name: Arc<str>) {
        match self.try_settle(&name).await {
            None => self.conditions.forget(&name),
            Some(delay) => self.conditions.add_after(name.clone(), delay),
        }
        self.conditions.done(&name);
    }

    /// Writes the condition of a node if that is to be done. Returns when to look again.
    async fn try_settle(&self, name: &Arc<str>) -> Option<Duration> {
        let node = self.cx.nodes.get(name)?;
        let writing = match self.network.look(&node) {
            Look::Nothing => return None,
            Look::Later(delay) => return Some(delay),
            Look::Write(writing) => writing,
        };
        // The UID makes the server refuse the patch for a namesake that was registered meanwhile.
        let body = json!({ "metadata": { "uid": &*node.uid }, "status": { "conditions": [writing.condition()] } });
        let result = self.cx.api.patch_node(name, Subresource::Status, &Patch::Strategic(body)).await;
        let error = match result {
            Ok(_) => {
                self.metrics.condition(ConditionWrite::Written);
                tracing::debug!(node = %name, network = ?writing.network, "network condition written");
                writing.done();
                return None;
            }
            Err(error) if error.is_not_found() => return None,
            Err(error) => error,
        };
        let is_quiet = error.is_race() || matches!(error.kind(), ApiErrorKind::NotLeader | ApiErrorKind::Canceled);
        if !is_quiet {
            self.metrics.condition(ConditionWrite::Failed);
            tracing::warn!(node = %name, error = chain(&error), "network condition not written");
        }
        let failures = self.conditions.failed(name);
        Some(error.retry_after().unwrap_or_else(|| BACKOFF.delay(failures)))
    }
}

#[cfg(test)]
mod tests;
