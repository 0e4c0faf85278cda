//! The metrics of the orphan controller.

use prometheus::{IntCounterVec, IntGauge, Registry};

use crate::telemetry::metrics::{counters, register};

/// The metrics of the orphan controller.
#[derive(Clone, Debug)]
pub(crate) struct OrphanMetrics {
    orphans: IntGauge,
    scans: IntCounterVec,
    collected: IntCounterVec,
}

/// The result for an orphan that was old enough to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectResult {
    Deleted,
    Pending,
    StillInUse,
    Refused,
    Failed,
}

impl OrphanMetrics {
    /// Registers `ccm_orphaned_objects`, `ccm_orphan_looks_total{outcome}` and
    /// `ccm_orphans_collected_total{outcome}`.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let orphans = IntGauge::new(
            "ccm_orphaned_objects",
            "Cloud objects of this cluster that no Service or Node asks for, at the last look.",
        )?;
        let collected = ["deleted", "doubted", "failed", "pending", "wanted"];
        Ok(Self {
            orphans: register(registry, orphans)?,
            scans: counters(
                registry,
                "ccm_orphan_looks_total",
                "Looks for orphaned cloud objects by outcome.",
                &[("outcome", &["failed", "success"])],
            )?,
            collected: counters(
                registry,
                "ccm_orphans_collected_total",
                "Orphans that were old enough to be deleted, by what became of them.",
                &[("outcome", &collected)],
            )?,
        })
    }

    /// Counts a scan that failed.
    pub(crate) fn count_failed_scan(&self) {
        self.scans.with_label_values(&["failed"]).inc();
    }

    /// Counts a successful scan, and exports the number of orphans that it found.
    pub(crate) fn record_scan(&self, orphans: usize) {
        self.scans.with_label_values(&["success"]).inc();
        self.orphans.set(i64::try_from(orphans).unwrap_or(i64::MAX));
    }

    /// Counts an orphan that was old enough to be deleted.
    pub(crate) fn count_collected(&self, result: CollectResult) {
        let label = match result {
            CollectResult::Deleted => "deleted",
            CollectResult::Pending => "pending",
            CollectResult::StillInUse => "wanted",
            CollectResult::Refused => "doubted",
            CollectResult::Failed => "failed",
        };
        self.collected.with_label_values(&[label]).inc();
    }
}
