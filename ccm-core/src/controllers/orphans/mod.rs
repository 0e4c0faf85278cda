//! Finds orphans: cloud objects of this cluster without a Service or Node. A crash, a lost write or
//! the removal of a cluster may leave them behind.
//!
//! Upstream has no such controller. Each new orphan is reported by a log line and an event, and
//! their number by a metric. Orphans are only deleted if the operator requests it
//! (`--collect-orphans`). Even then, an orphan must be old enough, the API server must confirm it,
//! and nothing is deleted while most of the cluster seems to be missing. The subcommand `orphans`
//! runs the same scan once.

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
    plan::{LiveOwners, Orphan, OrphanReason, find_orphans, refuse_cluster, refuse_collection},
    report::{OrphanAction, OrphanReport},
    scanner::{CollectOutcome, OrphanScan, OrphanScanError},
};
use crate::{
    config::OrphansConfig,
    error::chain,
    provider::{EventType, OwnedObject},
    runtime::events::WallClock,
};

/// The delay before the first scan, unless the period is shorter. It gives the calls of the last
/// leader time to end.
const FIRST_SCAN_DELAY: Duration = Duration::from_secs(600);
/// The delay after a failed scan, unless the period is shorter.
const RETRY_INTERVAL: Duration = Duration::from_secs(600);
/// The timeout of the deletion of one object. If it takes longer, the next scan continues it.
const DELETE_TIMEOUT: Duration = Duration::from_secs(600);

/// The kind and the ID of a cloud object.
type ObjectKey = (Arc<str>, Box<str>);

/// Scans for orphans once per period.
pub(crate) struct OrphanController {
    scanner: OrphanScanner,
    config: OrphansConfig,
    metrics: OrphanMetrics,
    clock: WallClock,
}

/// The state that is kept between two scans.
#[derive(Default)]
struct OrphanHistory {
    /// The time of the first scan that found each orphan.
    first_seen: HashMap<ObjectKey, Instant>,
}

impl OrphanController {
    /// Creates the controller and registers its metrics.
    ///
    /// # Errors
    /// Returns an error if the metrics are already registered.
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

    /// Runs the controller until it is cancelled. It then waits for the responses to requests that
    /// change something.
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
            match self.scanner.scan().await {
                Ok(scan) => {
                    self.report_new_orphans(&mut history, &scan);
                    if self.config.collect {
                        self.collect(&history, &scan).await;
                    }
                    delay = self.config.report_period;
                }
                Err(error) => {
                    self.metrics.count_failed_scan();
                    tracing::warn!(error = chain(&error), "scan for orphans failed");
                    delay = self.config.report_period.min(RETRY_INTERVAL);
                }
            }
        }
    }

    /// Reports the orphans that the previous successful scan did not find.
    fn report_new_orphans(&self, history: &mut OrphanHistory, scan: &OrphanScan) {
        self.metrics.record_scan(scan.orphans.len());
        // Forget objects that are no longer orphans.
        let now = Instant::now();
        let current: HashSet<ObjectKey> = scan
            .orphans
            .iter()
            .map(|orphan| object_key(&orphan.object))
            .collect();
        history.first_seen.retain(|key, _| current.contains(key));
        // Report those that are new.
        for orphan in &scan.orphans {
            if let Entry::Vacant(entry) = history.first_seen.entry(object_key(&orphan.object)) {
                entry.insert(now);
                self.report_orphan(orphan);
            }
        }
        tracing::debug!(owned = scan.owned, orphans = scan.orphans.len(), "scanned for orphans");
    }

    /// Logs an orphan, and emits an event about it.
    fn report_orphan(&self, orphan: &Orphan) {
        let Orphan { object, reason } = orphan;
        let owner = report::format_owner(&object.owner);
        tracing::warn!(kind = %object.kind, id = %object.id, owner, %reason, "cloud object is an orphan");
        if let Some(owner_ref) = object_ref(&object.owner) {
            let note =
                format!("{} {} was made for this object, but {reason}", object.kind, object.id);
            self.scanner
                .events
                .event(&owner_ref, EventType::Warning, "OrphanedCloudObject", &note);
        }
    }

    /// Deletes the orphans that are old enough, one after the other. Deletes none if other clusters
    /// may have this one's ID, or if so many are orphans that something else must be wrong.
    async fn collect(&self, history: &OrphanHistory, scan: &OrphanScan) {
        let due: Vec<&Orphan> = scan
            .orphans
            .iter()
            .filter(|orphan| self.is_old_enough(history, orphan))
            .collect();
        if due.is_empty() {
            return;
        }
        let refusal = refuse_cluster(&self.scanner.cluster_id(), &self.config.collect_confirm)
            .or_else(|| refuse_collection(scan.orphans.len(), scan.with_owner, &scan.live_owners));
        if let Some(reason) = refusal {
            for _ in &due {
                self.metrics.count_collected(CollectResult::Refused);
            }
            tracing::error!(
                orphans = scan.orphans.len(),
                reason,
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
            .get(&object_key(&orphan.object))
            .map(Instant::elapsed)
            .unwrap_or_default();
        orphan.age(self.clock.now(), seen_for) >= self.config.minimum_age
    }

    async fn collect_one(&self, orphan: &Orphan) {
        let OwnedObject { kind, id, owner, .. } = &orphan.object;
        let owner = report::format_owner(owner);
        let result = match self
            .scanner
            .collect(orphan, Instant::now() + DELETE_TIMEOUT)
            .await
        {
            Ok(CollectOutcome::Deleted) => {
                tracing::warn!(%kind, %id, owner, "orphan was deleted");
                CollectResult::Deleted
            }
            Ok(CollectOutcome::Pending(reason)) => {
                tracing::info!(%kind, %id, owner, %reason, "orphan is not deleted yet");
                CollectResult::Pending
            }
            Ok(CollectOutcome::StillInUse) => {
                tracing::info!(%kind, %id, owner, "object is no longer an orphan");
                CollectResult::StillInUse
            }
            Err(error) => {
                tracing::warn!(%kind, %id, owner, error = chain(&error), "failed to delete orphan");
                CollectResult::Failed
            }
        };
        self.metrics.count_collected(result);
    }
}

fn object_key(object: &OwnedObject) -> ObjectKey {
    (object.kind.clone(), object.id.clone())
}
