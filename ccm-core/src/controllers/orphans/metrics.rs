//! Metrics of orphans.

use std::collections::HashMap;

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use super::plan::Orphan;
use crate::telemetry::metrics::{counters, register};

/// Metrics of orphans.
#[derive(Clone, Debug)]
pub(crate) struct OrphanMetrics {
    orphans: IntGaugeVec,
    looks: IntCounterVec,
    collected: IntCounterVec,
}

/// What became of an orphan that was old enough to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collected {
    Deleted,
    Pending,
    Wanted,
    Doubted,
    Failed,
}

impl OrphanMetrics {
    /// Registers `ccm_orphaned_objects{kind}`, `ccm_orphan_looks_total{outcome}` and
    /// `ccm_orphans_collected_total{outcome}`.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let orphans = Opts::new(
            "ccm_orphaned_objects",
            "Cloud objects of this cluster that no Service or Node asks for, at the last look.",
        );
        let collected = ["deleted", "doubted", "failed", "pending", "wanted"];
        Ok(Self {
            orphans: register(registry, IntGaugeVec::new(orphans, &["kind"])?)?,
            looks: counters(
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

    pub(crate) fn failed(&self) {
        self.looks.with_label_values(&["failed"]).inc();
    }

    /// Shows what a look found. Kinds that were there once stay, at zero.
    pub(crate) fn found<'a>(&self, kinds: &mut HashMap<Box<str>, i64>, orphans: impl Iterator<Item = &'a Orphan>) {
        self.looks.with_label_values(&["success"]).inc();
        for count in kinds.values_mut() {
            *count = 0;
        }
        for orphan in orphans {
            *kinds.entry((*orphan.object.kind).into()).or_default() += 1;
        }
        for (kind, count) in kinds {
            self.orphans.with_label_values(&[&**kind]).set(*count);
        }
    }

    pub(crate) fn collected(&self, outcome: Collected) {
        let label = match outcome {
            Collected::Deleted => "deleted",
            Collected::Pending => "pending",
            Collected::Wanted => "wanted",
            Collected::Doubted => "doubted",
            Collected::Failed => "failed",
        };
        self.collected.with_label_values(&[label]).inc();
    }
}
