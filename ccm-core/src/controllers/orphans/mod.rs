//! Finds orphans: cloud objects of this cluster without a Service or Node, left behind by a crash,
//! a lost write or a cluster that was dismantled.
//!
//! Upstream has no such controller. Each new orphan is reported by a log line and an event, and
//! their number by a metric. Nothing is deleted unless the operator requests it
//! (`--collect-orphans`). Even then, an orphan must be old enough and confirmed by the API server,
//! and nothing is deleted while a large part of the cluster seems to be missing. The subcommand
//! `orphans` runs the same scan once.

pub(crate) mod metrics;
mod plan;
pub(crate) mod report;
pub(crate) mod scanner;

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{
    metrics::{CollectResult, OrphanMetrics},
    scanner::{OrphanScanner, object_ref},
};
pub use self::{
    plan::{LiveOwners, Orphan, OrphanReason, find_orphans, refuse_collection},
    report::{OrphanAction, OrphanReport},
    scanner::{CollectOutcome, OrphanScan, OrphanScanError},
};
use crate::{
    config::OrphansConfig,
    error::chain,
    provider::{EventType, OwnedObject},
    runtime::events::WallClock,
};

/// Delay before the first scan, unless the period is shorter: all calls of the last leader have
/// ended by then.
const FIRST_SCAN_DELAY: Duration = Duration::from_secs(600);
/// Delay after a failed scan, unless the period is shorter.
const RETRY_INTERVAL: Duration = Duration::from_secs(600);
/// Timeout of the deletion of one object. One that takes longer is checked again at the next scan.
const DELETE_TIMEOUT: Duration = Duration::from_secs(600);

/// An object by kind and ID.
type Key = (Arc<str>, Box<str>);

/// Scans for orphans once per period.
pub(crate) struct OrphanController {
    scanner: OrphanScanner,
    config: OrphansConfig,
    metrics: OrphanMetrics,
    clock: WallClock,
}

/// What is remembered between two scans.
#[derive(Default)]
struct OrphanHistory {
    /// When each orphan was first seen.
    first_seen: HashMap<Key, Instant>,
}

impl OrphanController {
    /// Creates the controller and registers its metrics.
    ///
    /// # Errors
    /// When its metrics are registered already.
    pub(crate) fn new(
        scanner: OrphanScanner,
        config: OrphansConfig,
        registry: &prometheus::Registry,
        clock: WallClock,
    ) -> prometheus::Result<Self> {
        Ok(Self {
            scanner,
            config,
            metrics: OrphanMetrics::register(registry)?,
            clock,
        })
    }

    /// Runs until `cancel`. Then returns when the changes that were requested have been answered.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let synced = async {
            self.scanner.services.synced().await;
            self.scanner.nodes.synced().await;
        };
        cancel.run_until_cancelled(synced).await;
        let mut history = OrphanHistory::default();
        let mut delay = self.config.report_period.min(FIRST_SCAN_DELAY);
        while cancel
            .run_until_cancelled(tokio::time::sleep(delay))
            .await
            .is_some()
        {
            let period = self.config.report_period;
            delay = if self.scan_and_collect(&mut history).await {
                period
            } else {
                period.min(RETRY_INTERVAL)
            };
        }
    }

    /// Scans once, and deletes orphans if that is enabled. Returns whether the scan succeeded.
    async fn scan_and_collect(&self, history: &mut OrphanHistory) -> bool {
        let scan = match self.scanner.scan().await {
            Ok(scan) => scan,
            Err(error) => {
                self.metrics.failed();
                tracing::warn!(error = chain(&error), "scan for orphans failed");
                return false;
            }
        };
        self.report_new(history, &scan);
        if self.config.collect {
            self.collect(history, &scan).await;
        }
        true
    }

    /// Reports orphans that are new.
    fn report_new(&self, history: &mut OrphanHistory, scan: &OrphanScan) {
        self.metrics.set_orphans(scan.orphans.len());
        let now = Instant::now();
        let current: HashSet<Key> = scan
            .orphans
            .iter()
            .map(|orphan| key(&orphan.object))
            .collect();
        history.first_seen.retain(|key, _| current.contains(key));
        for orphan in &scan.orphans {
            if let Entry::Vacant(entry) = history.first_seen.entry(key(&orphan.object)) {
                entry.insert(now);
                self.report_orphan(orphan);
            }
        }
        tracing::debug!(owned = scan.owned, orphans = scan.orphans.len(), "scanned for orphans");
    }

    fn report_orphan(&self, orphan: &Orphan) {
        let Orphan { object, reason } = orphan;
        let owner = report::owner(&object.owner);
        tracing::warn!(kind = %object.kind, id = %object.id, owner, cause = %reason, "cloud object is an orphan");
        if let Some(owner_ref) = object_ref(&object.owner) {
            let note =
                format!("{} {} was made for this object, but {reason}", object.kind, object.id);
            self.scanner
                .events
                .event(&owner_ref, EventType::Warning, "OrphanedCloudObject", &note);
        }
    }

    /// Deletes the orphans that are old enough, one after the other.
    async fn collect(&self, history: &OrphanHistory, scan: &OrphanScan) {
        let due: Vec<&Orphan> = scan
            .orphans
            .iter()
            .filter(|orphan| self.is_old_enough(history, orphan))
            .collect();
        if due.is_empty() {
            return;
        }
        if let Some(why) = refuse_collection(scan.orphans.len(), scan.in_use, &scan.live_owners) {
            for _ in &due {
                self.metrics.collected(CollectResult::Refused);
            }
            tracing::error!(
                orphans = scan.orphans.len(),
                why,
                "orphans are not deleted; if they should be, use the subcommand orphans"
            );
            return;
        }
        for orphan in due {
            if self.scanner.op.is_cancelled() {
                return;
            }
            self.collect_one(orphan).await;
        }
    }

    fn is_old_enough(&self, history: &OrphanHistory, orphan: &Orphan) -> bool {
        let seen_for = history
            .first_seen
            .get(&key(&orphan.object))
            .map(Instant::elapsed)
            .unwrap_or_default();
        orphan.age(self.clock.now(), seen_for) >= self.config.minimum_age
    }

    async fn collect_one(&self, orphan: &Orphan) {
        let OwnedObject { kind, id, owner, .. } = &orphan.object;
        let owner = report::owner(owner);
        let outcome = match self
            .scanner
            .collect(orphan, Instant::now() + DELETE_TIMEOUT)
            .await
        {
            Ok(CollectOutcome::Deleted) => {
                tracing::warn!(%kind, %id, owner, "orphan was deleted");
                CollectResult::Deleted
            }
            Ok(CollectOutcome::Pending(why)) => {
                tracing::info!(%kind, %id, owner, %why, "orphan is not deleted yet");
                CollectResult::Pending
            }
            Ok(CollectOutcome::StillInUse) => {
                tracing::info!(%kind, %id, owner, "object is no longer an orphan");
                CollectResult::StillInUse
            }
            Err(error) => {
                tracing::warn!(%kind, %id, owner, error = chain(&error), "orphan could not be deleted");
                CollectResult::Failed
            }
        };
        self.metrics.collected(outcome);
    }
}

fn key(object: &OwnedObject) -> Key {
    (object.kind.clone(), object.id.clone())
}
