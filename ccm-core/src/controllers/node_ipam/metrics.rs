//! The metrics of the node-IPAM controller: upstream's five, including the misspelt
//! `cirdset_max_cidrs`.

use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry,
};

use super::{cidr_pool::PoolChanges, cidr_set::CidrSet};
use crate::telemetry::metrics::register;

/// Metrics of the node-IPAM controller, by cluster CIDR.
#[derive(Clone, Debug)]
pub(crate) struct NodeIpamMetrics {
    allocations: IntCounterVec,
    releases: IntCounterVec,
    max: IntGaugeVec,
    usage: GaugeVec,
    tries: HistogramVec,
}

impl NodeIpamMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let labels = &["clusterCIDR"];
        let allocations = IntCounterVec::new(
            Opts::new(
                "node_ipam_controller_cidrset_cidrs_allocations_total",
                "Blocks of the cluster CIDR that were taken.",
            ),
            labels,
        )?;
        let releases = IntCounterVec::new(
            Opts::new(
                "node_ipam_controller_cidrset_cidrs_releases_total",
                "Blocks of the cluster CIDR that were released.",
            ),
            labels,
        )?;
        let max = IntGaugeVec::new(
            Opts::new(
                "node_ipam_controller_cirdset_max_cidrs",
                "Blocks that the cluster CIDR has.",
            ),
            labels,
        )?;
        let usage = GaugeVec::new(
            Opts::new(
                "node_ipam_controller_cidrset_usage_cidrs",
                "Share of the cluster CIDR's blocks that are taken.",
            ),
            labels,
        )?;
        let tries = HistogramVec::new(
            HistogramOpts::new(
                "node_ipam_controller_cidrset_allocation_tries_per_request",
                "Taken blocks that were passed to find a free one.",
            )
            .buckets(vec![1.0, 5.0, 25.0, 125.0, 625.0]),
            labels,
        )?;
        Ok(Self {
            allocations: register(registry, allocations)?,
            releases: register(registry, releases)?,
            max: register(registry, max)?,
            usage: register(registry, usage)?,
            tries: register(registry, tries)?,
        })
    }

    /// Exports the metrics of a cluster CIDR.
    #[cfg(test)]
    pub(crate) fn init(&self, cluster: &str) {
        for family in [&self.allocations, &self.releases] {
            family.with_label_values(&[cluster]);
        }
        self.max.with_label_values(&[cluster]);
        self.usage.with_label_values(&[cluster]);
        self.tries.with_label_values(&[cluster]);
    }

    /// Counts the changes of a cluster CIDR and exports its current state.
    pub(crate) fn record(&self, set: &CidrSet, changes: &PoolChanges) {
        let cluster = set.cluster().to_string();
        let label = &[cluster.as_str()];
        self.allocations
            .with_label_values(label)
            .inc_by(changes.taken);
        self.releases.with_label_values(label).inc_by(changes.freed);
        self.max
            .with_label_values(label)
            .set(i64::try_from(set.len()).unwrap_or(i64::MAX));
        self.usage
            .with_label_values(label)
            .set(set.taken() as f64 / set.len() as f64);
        let tries = self.tries.with_label_values(label);
        for skipped in &changes.skipped {
            tries.observe(*skipped as f64);
        }
    }
}
