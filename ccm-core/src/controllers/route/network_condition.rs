//! Decides who writes the condition `NetworkUnavailable` of a node, and writes it.
//!
//! The route controller decides the desired condition, and usually also writes it. If the node
//! controller is about to write the addresses of a new node, the condition becomes part of that
//! patch, which saves a write per node.

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

/// The maximum number of condition writes in flight. k8s.io/cloud-provider has no limit.
const MAX_WRITES: usize = 16;
/// The back-off after a condition could not be written.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    cap: Duration::from_secs(30),
};
/// The time for which the condition of a new node waits for the patch of its addresses. Unless the
/// cloud has a problem, the node controller gets the addresses within this time.
const ADDRESS_PATCH_WAIT: Duration = Duration::from_secs(3);
/// The time within which a write must arrive through the watch. After that it counts as lost.
const WATCH_CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// The delay before a node whose condition is being written is checked again.
const WRITE_IN_PROGRESS_DELAY: Duration = Duration::from_secs(1);

/// The desired condition `NetworkUnavailable` of each node. The route controller fills the table,
/// and the node controller reads it whenever it writes addresses. Clones share one table.
#[derive(Clone, Debug)]
pub struct NetworkConditions {
    table: Arc<Mutex<HashMap<Arc<str>, ConditionEntry>>>,
    clock: WallClock,
    combines_with_addresses: bool,
}

#[derive(Debug)]
struct ConditionEntry {
    /// The UID of the node. The entry does not apply to another node of the same name.
    uid: Box<str>,
    network: NetworkStatus,
    decided_at: Instant,
    /// True while the condition is being written.
    write_in_progress: bool,
    unconfirmed: Option<UnconfirmedWrite>,
}

/// A write that the watch may not show yet.
#[derive(Debug)]
struct UnconfirmedWrite {
    /// The condition that was replaced.
    replaced: Option<NodeCondition>,
    at: Instant,
}

/// The action for the condition of a node.
#[derive(Debug)]
pub(crate) enum ConditionAction {
    /// Do nothing, because the condition is as desired or not decided yet.
    UpToDate,
    /// Check the condition again after this time.
    RetryAfter(Duration),
    /// Write the condition.
    Write(ConditionWritePermit),
}

/// The exclusive permission to write the condition of one node. If it is dropped before
/// [`mark_written`](Self::mark_written), the write counts as not done.
#[derive(Debug)]
pub(crate) struct ConditionWritePermit {
    table: Arc<Mutex<HashMap<Arc<str>, ConditionEntry>>>,
    node: Arc<str>,
    uid: Box<str>,
    /// The condition that is replaced.
    replaced: Option<NodeCondition>,
    network: NetworkStatus,
    now: Timestamp,
}

impl NetworkConditions {
    /// Creates an empty table. `combines_with_addresses` must be true if a node controller in this
    /// process reads the table. Conditions of new nodes then wait for the patch of the addresses.
    pub fn new(clock: WallClock, combines_with_addresses: bool) -> Self {
        Self { table: Arc::default(), clock, combines_with_addresses }
    }

    /// Records the desired condition of a node. Returns true if it has to be written.
    pub(crate) fn record_desired(&self, node: &NodeView, network: NetworkStatus) -> bool {
        let mut table = self.table.lock();
        let is_recorded = table
            .get(&node.name)
            .is_some_and(|entry| entry.uid == node.uid && entry.network == network);
        if !is_recorded {
            let entry = ConditionEntry {
                uid: node.uid.clone(),
                network,
                decided_at: Instant::now(),
                write_in_progress: false,
                unconfirmed: None,
            };
            table.insert(node.name.clone(), entry);
        }
        !network.matches_condition(node.network_unavailable.as_ref())
    }

    /// Removes the nodes for which `keep` returns false.
    pub(crate) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.table.lock().retain(|name, _| keep(name));
    }

    /// Returns the decided status of a node's network; `None` if it is not decided yet.
    pub(crate) fn status(&self, node: &NodeView) -> Option<NetworkStatus> {
        let table = self.table.lock();
        let entry = table.get(&node.name)?;
        (entry.uid == node.uid).then_some(entry.network)
    }

    /// Returns true if the node has the desired condition, or if the condition is not decided yet.
    pub(crate) fn is_up_to_date(&self, node: &NodeView) -> bool {
        let table = self.table.lock();
        match table.get(&node.name) {
            Some(entry) if entry.uid == node.uid => entry
                .network
                .matches_condition(node.network_unavailable.as_ref()),
            _ => true,
        }
    }

    /// Returns the action of the route controller for the condition of a node.
    pub(crate) fn next_action(&self, node: &NodeView) -> ConditionAction {
        let mut table = self.table.lock();
        let Some(entry) = pending_entry(&mut table, node) else {
            return ConditionAction::UpToDate;
        };
        let wait = entry.watch_confirm_wait(node);
        if !wait.is_zero() {
            return ConditionAction::RetryAfter(wait);
        }
        if entry.write_in_progress {
            return ConditionAction::RetryAfter(WRITE_IN_PROGRESS_DELAY);
        }
        let wait = self.address_patch_wait(entry, node);
        if !wait.is_zero() {
            return ConditionAction::RetryAfter(wait);
        }
        ConditionAction::Write(self.begin_write(entry, node))
    }

    /// Returns the permission to write the condition of a node together with its addresses, if it
    /// has to be written.
    ///
    /// Only `Ready` is written this way. That routes are missing may only be true until the next
    /// reconcile.
    pub(crate) fn combine_with_address_patch(
        &self,
        node: &NodeView,
    ) -> Option<ConditionWritePermit> {
        let mut table = self.table.lock();
        let entry = pending_entry(&mut table, node)?;
        if entry.write_in_progress
            || entry.network != NetworkStatus::Ready
            || !entry.watch_confirm_wait(node).is_zero()
        {
            return None;
        }
        Some(self.begin_write(entry, node))
    }

    fn begin_write(&self, entry: &mut ConditionEntry, node: &NodeView) -> ConditionWritePermit {
        entry.write_in_progress = true;
        ConditionWritePermit {
            table: self.table.clone(),
            node: node.name.clone(),
            uid: node.uid.clone(),
            replaced: node.network_unavailable.clone(),
            network: entry.network,
            now: self.clock.now(),
        }
    }

    /// Returns the remaining time for which the condition waits for the patch of the addresses.
    fn address_patch_wait(&self, entry: &ConditionEntry, node: &NodeView) -> Duration {
        let addresses_are_due = self.combines_with_addresses
            && entry.network == NetworkStatus::Ready
            && node.is_uninitialized()
            && node.addresses.is_empty();
        if addresses_are_due {
            ADDRESS_PATCH_WAIT.saturating_sub(entry.decided_at.elapsed())
        } else {
            Duration::ZERO
        }
    }
}

/// Returns the entry of a node, if the node does not have the desired condition.
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
    /// Returns the remaining time for the watch to show our own write. If another client restores
    /// exactly the previous condition, that is only noticed after this time.
    fn watch_confirm_wait(&self, node: &NodeView) -> Duration {
        match &self.unconfirmed {
            Some(write) if write.replaced == node.network_unavailable => {
                WATCH_CONFIRM_TIMEOUT.saturating_sub(write.at.elapsed())
            }
            _ => Duration::ZERO,
        }
    }
}

impl ConditionWritePermit {
    /// Builds the condition for the patch.
    ///
    /// It has no `lastTransitionTime` if only the reason changes, so that the API server keeps the
    /// old time. k8s.io/cloud-provider resets the time.
    pub(crate) fn condition(&self) -> Value {
        // Round to seconds, because `metav1.Time` has no fractions.
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

    /// Records that the condition was written.
    pub(crate) fn mark_written(self) {
        let write = UnconfirmedWrite { replaced: self.replaced.clone(), at: Instant::now() };
        // This statement releases the lock at its end, before `self` is dropped and takes it again.
        if let Some(entry) = self.entry(&mut self.table.lock()) {
            entry.unconfirmed = Some(write);
        }
    }

    /// Returns the entry that this permit is for, unless another condition was decided since.
    fn entry<'a>(
        &self,
        table: &'a mut HashMap<Arc<str>, ConditionEntry>,
    ) -> Option<&'a mut ConditionEntry> {
        table
            .get_mut(&self.node)
            .filter(|entry| entry.uid == self.uid && entry.network == self.network)
    }
}

impl Drop for ConditionWritePermit {
    fn drop(&mut self) {
        if let Some(entry) = self.entry(&mut self.table.lock()) {
            entry.write_in_progress = false;
        }
    }
}

impl RouteController {
    /// Writes conditions, several at a time, until `cancel`. It then completes the writes in
    /// flight.
    pub(super) async fn write_conditions(&self, cancel: &CancellationToken) {
        let mut writing = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                Some(()) = writing.next(), if !writing.is_empty() => {}
                name = self.condition_queue.get(), if writing.len() < MAX_WRITES => writing.push(self.sync_condition(name)),
            }
        }
        while writing.next().await.is_some() {}
    }

    async fn sync_condition(&self, name: Arc<str>) {
        match self.sync_condition_once(&name).await {
            None => self.condition_queue.forget(&name),
            Some(delay) => self.condition_queue.add_after(name.clone(), delay),
        }
        self.condition_queue.done(&name);
    }

    /// Writes the condition of a node if needed. Returns the delay before the next check; `None` if
    /// no check is needed.
    async fn sync_condition_once(&self, name: &Arc<str>) -> Option<Duration> {
        let node = self.ctx.nodes.get(name)?;
        let permit = match self.network.next_action(&node) {
            ConditionAction::UpToDate => return None,
            ConditionAction::RetryAfter(delay) => return Some(delay),
            ConditionAction::Write(permit) => permit,
        };
        // The UID makes the API server reject the patch if another node has registered under this
        // name.
        let body = json!({ "metadata": { "uid": &*node.uid }, "status": { "conditions": [permit.condition()] } });
        let result = self
            .ctx
            .api
            .patch_node(name, Subresource::Status, &Patch::Strategic(body))
            .await;
        let error = match result {
            Ok(_) => {
                self.metrics.condition(ConditionWrite::Written);
                tracing::debug!(node = %name, network = ?permit.network, "network condition written");
                permit.mark_written();
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
        let failures = self.condition_queue.failed(name);
        match error.retry_after() {
            Some(retry_after) => Some(retry_after),
            None => Some(BACKOFF.delay(failures)),
        }
    }
}

#[cfg(test)]
mod tests;
