//! The condition `NetworkUnavailable`: its desired value, who writes it, and the writes.
//!
//! The route controller decides it. The route controller also writes it, unless the node controller
//! is about to write the addresses of a new node: then the condition is part of that patch, which
//! saves a write per node.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use jiff::{Timestamp, Unit};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{RouteController, metrics::ConditionWrite, plan::NetworkStatus};
use crate::{
    error::chain,
    k8s::{NodeCondition, NodeView, well_known},
    runtime::{
        api::{ApiErrorKind, Patch, Subresource},
        events::WallClock,
        work_queue::Backoff,
    },
};

/// Maximum of condition writes in flight. Upstream has no limit (W17c).
const MAX_WRITES: usize = 16;
/// Back-off of a condition that could not be written.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    cap: Duration::from_secs(30),
};
/// How long the condition of a new node waits for its addresses to be written. The batched lookup
/// in the cloud takes less than this, unless the cloud has a problem.
const ADDRESS_PATCH_WAIT: Duration = Duration::from_secs(3);
/// How long a write may take to arrive through the watch before it counts as lost.
const WATCH_CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before a node that is being written elsewhere is checked again.
const WRITE_CONFLICT_DELAY: Duration = Duration::from_secs(1);

/// Desired condition `NetworkUnavailable` of each node. The route controller fills the table, and
/// the node controller reads it whenever it writes addresses. Clones share one table.
#[derive(Clone, Debug)]
pub struct NetworkConditions {
    table: Arc<Mutex<HashMap<Arc<str>, ConditionEntry>>>,
    clock: WallClock,
    combines_with_addresses: bool,
}

#[derive(Debug)]
struct ConditionEntry {
    /// UID of the node: the entry does not apply to another node of the same name.
    uid: Box<str>,
    network: NetworkStatus,
    /// When `network` was decided.
    since: Instant,
    /// True while the condition is being written.
    write_in_progress: bool,
    unconfirmed: Option<UnconfirmedWrite>,
}

/// A write that the watch may not show yet.
#[derive(Debug)]
struct UnconfirmedWrite {
    /// The condition that it replaced.
    replaced: Option<NodeCondition>,
    at: Instant,
}

/// What to do about a node's condition.
#[derive(Debug)]
pub(crate) enum ConditionAction {
    /// Nothing: it is as desired, or no desired state is known.
    None,
    /// Check it again after this time.
    RetryAfter(Duration),
    /// Write it.
    Write(ConditionPatch),
}

/// Exclusive permission to write the condition of one node. If it is dropped before
/// [`mark_written`](Self::mark_written), the write counts as not done.
#[derive(Debug)]
pub(crate) struct ConditionPatch {
    table: Arc<Mutex<HashMap<Arc<str>, ConditionEntry>>>,
    node: Arc<str>,
    uid: Box<str>,
    /// The condition that it replaces.
    replaced: Option<NodeCondition>,
    network: NetworkStatus,
    now: Timestamp,
}

impl NetworkConditions {
    /// Creates an empty table. `combines_with_addresses`: whether a node controller in this process
    /// reads it, so that it makes sense to wait for the addresses.
    pub fn new(clock: WallClock, combines_with_addresses: bool) -> Self {
        Self { table: Arc::default(), clock, combines_with_addresses }
    }

    /// Records the desired condition of a node. Returns whether it has to be written.
    pub(crate) fn decide(&self, node: &NodeView, network: NetworkStatus) -> bool {
        let mut table = self.table.lock();
        let is_recorded = table
            .get(&node.name)
            .is_some_and(|entry| entry.uid == node.uid && entry.network == network);
        if !is_recorded {
            let entry = ConditionEntry {
                uid: node.uid.clone(),
                network,
                since: Instant::now(),
                write_in_progress: false,
                unconfirmed: None,
            };
            table.insert(node.name.clone(), entry);
        }
        !network.matches_condition(node.network_unavailable.as_ref())
    }

    /// Removes the nodes that are not to be kept.
    pub(crate) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.table.lock().retain(|name, _| keep(name));
    }

    /// Tells whether the node shows the desired condition, or none is known.
    pub(crate) fn is_up_to_date(&self, node: &NodeView) -> bool {
        let table = self.table.lock();
        match table.get(&node.name) {
            Some(entry) if entry.uid == node.uid => entry
                .network
                .matches_condition(node.network_unavailable.as_ref()),
            _ => true,
        }
    }

    /// Returns what the route controller should do about the condition of a node.
    pub(crate) fn next_action(&self, node: &NodeView) -> ConditionAction {
        let mut table = self.table.lock();
        let Some(entry) = pending_entry(&mut table, node) else {
            return ConditionAction::None;
        };
        let wait = entry.watch_confirm_wait(node);
        if !wait.is_zero() {
            return ConditionAction::RetryAfter(wait);
        }
        if entry.write_in_progress {
            return ConditionAction::RetryAfter(WRITE_CONFLICT_DELAY);
        }
        let wait = self.address_patch_wait(entry, node);
        if !wait.is_zero() {
            return ConditionAction::RetryAfter(wait);
        }
        ConditionAction::Write(self.start_patch(entry, node))
    }

    /// Returns the permission to write the condition of a node along with its addresses, if there
    /// is anything to write. Only `Ready` is written this way: whether routes are missing is
    /// decided again at each reconcile.
    pub(crate) fn combine_with_address_patch(&self, node: &NodeView) -> Option<ConditionPatch> {
        let mut table = self.table.lock();
        let entry = pending_entry(&mut table, node)?;
        if entry.write_in_progress
            || entry.network != NetworkStatus::Ready
            || !entry.watch_confirm_wait(node).is_zero()
        {
            return None;
        }
        Some(self.start_patch(entry, node))
    }

    fn start_patch(&self, entry: &mut ConditionEntry, node: &NodeView) -> ConditionPatch {
        entry.write_in_progress = true;
        ConditionPatch {
            table: self.table.clone(),
            node: node.name.clone(),
            uid: node.uid.clone(),
            replaced: node.network_unavailable.clone(),
            network: entry.network,
            now: self.clock.now(),
        }
    }

    /// Returns how long the condition should wait for the node's addresses to be written.
    fn address_patch_wait(&self, entry: &ConditionEntry, node: &NodeView) -> Duration {
        let addresses_are_due = self.combines_with_addresses
            && entry.network == NetworkStatus::Ready
            && node.is_uninitialized()
            && node.addresses.is_empty();
        if addresses_are_due {
            ADDRESS_PATCH_WAIT.saturating_sub(entry.since.elapsed())
        } else {
            Duration::ZERO
        }
    }
}

/// Returns the entry of a node that does not show the desired condition.
fn pending_entry<'a>(
    table: &'a mut HashMap<Arc<str>, ConditionEntry>,
    node: &NodeView,
) -> Option<&'a mut ConditionEntry> {
    let current = node.network_unavailable.as_ref();
    table
        .get_mut(&node.name)
        .filter(|entry| entry.uid == node.uid && !entry.network.matches_condition(current))
}

impl ConditionEntry {
    /// Returns how long the watch may still take to show our own write. If another client restores
    /// exactly the previous condition, that is noticed only afterwards.
    fn watch_confirm_wait(&self, node: &NodeView) -> Duration {
        match &self.unconfirmed {
            Some(write) if write.replaced == node.network_unavailable => {
                WATCH_CONFIRM_TIMEOUT.saturating_sub(write.at.elapsed())
            }
            _ => Duration::ZERO,
        }
    }
}

impl ConditionPatch {
    /// Returns the condition for the patch. Without `lastTransitionTime` the API server keeps the
    /// old one, which is right if only the reason changes; upstream resets it (W17e).
    pub(crate) fn condition(&self) -> Value {
        // In whole seconds, like every time in the API's own objects.
        let now = self.now.round(Unit::Second).unwrap_or(self.now).to_string();
        let mut condition = json!({
            "type": well_known::CONDITION_NETWORK_UNAVAILABLE,
            "status": self.network.status().as_str(),
            "reason": self.network.reason(),
            "message": self.network.message(),
            "lastHeartbeatTime": now,
        });
        let keeps_status = match &self.replaced {
            Some(replaced) => replaced.status == self.network.status(),
            None => false,
        };
        if !keeps_status {
            condition["lastTransitionTime"] = Value::from(now);
        }
        condition
    }

    /// Records that the condition is written.
    pub(crate) fn mark_written(self) {
        let write = UnconfirmedWrite { replaced: self.replaced.clone(), at: Instant::now() };
        if let Some(entry) = self.entry(&mut self.table.lock()) {
            entry.unconfirmed = Some(write);
        }
    }

    fn entry<'a>(
        &self,
        table: &'a mut HashMap<Arc<str>, ConditionEntry>,
    ) -> Option<&'a mut ConditionEntry> {
        table
            .get_mut(&self.node)
            .filter(|entry| entry.uid == self.uid && entry.network == self.network)
    }
}

impl Drop for ConditionPatch {
    fn drop(&mut self) {
        if let Some(entry) = self.entry(&mut self.table.lock()) {
            entry.write_in_progress = false;
        }
    }
}

impl RouteController {
    /// Writes conditions, several at a time, until `cancel`; then completes the writes in flight.
    pub(super) async fn write_conditions(&self, cancel: &CancellationToken) {
        let mut writing = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                Some(()) = writing.next(), if !writing.is_empty() => {}
                name = self.conditions.get(), if writing.len() < MAX_WRITES => writing.push(self.sync_condition(name)),
            }
        }
        while writing.next().await.is_some() {}
    }

    async fn sync_condition(&self, name: Arc<str>) {
        match self.sync_condition_once(&name).await {
            None => self.conditions.forget(&name),
            Some(delay) => self.conditions.add_after(name.clone(), delay),
        }
        self.conditions.done(&name);
    }

    /// Writes the condition of a node if needed. Returns the delay before the next check, if there
    /// is to be one.
    async fn sync_condition_once(&self, name: &Arc<str>) -> Option<Duration> {
        let node = self.ctx.nodes.get(name)?;
        let patch = match self.network.next_action(&node) {
            ConditionAction::None => return None,
            ConditionAction::RetryAfter(delay) => return Some(delay),
            ConditionAction::Write(patch) => patch,
        };
        // The UID makes the API server reject the patch for another node of the same name that was
        // registered meanwhile.
        let body = json!({ "metadata": { "uid": &*node.uid }, "status": { "conditions": [patch.condition()] } });
        let result = self
            .ctx
            .api
            .patch_node(name, Subresource::Status, &Patch::Strategic(body))
            .await;
        let error = match result {
            Ok(_) => {
                self.metrics.condition(ConditionWrite::Written);
                tracing::debug!(node = %name, network = ?patch.network, "network condition written");
                patch.mark_written();
                return None;
            }
            Err(error) if error.is_not_found() => return None,
            Err(error) => error,
        };
        let is_expected = error.is_conflict()
            || matches!(error.kind(), ApiErrorKind::NotLeader | ApiErrorKind::Canceled);
        if !is_expected {
            self.metrics.condition(ConditionWrite::Failed);
            tracing::warn!(node = %name, error = chain(&error), "network condition not written");
        }
        let failures = self.conditions.failed(name);
        match error.retry_after() {
            Some(retry_after) => Some(retry_after),
            None => Some(BACKOFF.delay(failures)),
        }
    }
}

#[cfg(test)]
mod tests;
