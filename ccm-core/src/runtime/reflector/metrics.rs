//! Metrics of the caches.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use prometheus::{
    GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::time::Instant;

use crate::telemetry::metrics::register;

/// The metrics of the caches, by `resource`.
#[derive(Clone, Debug)]
pub struct CacheMetrics {
    objects: IntGaugeVec,
    relists: IntCounterVec,
    restarts: IntCounterVec,
    unreadable: IntCounterVec,
    age: LastEventAge,
}

/// Registers a counter by resource.
fn counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounterVec> {
    register(registry, IntCounterVec::new(Opts::new(name, help), &["resource"])?)
}

impl CacheMetrics {
    /// Registers these metrics, all with label `resource`:
    /// - `ccm_cache_objects`: objects in the cache;
    /// - `ccm_cache_relists_total`: complete lists that were stored, including the first;
    /// - `ccm_cache_watch_restarts_total`: watches opened after the first;
    /// - `ccm_cache_unreadable_objects_total`: objects in lists and events that could not be
    ///   decoded;
    /// - `ccm_cache_last_event_age_seconds`: time since the last list, event or bookmark from the
    ///   server.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let objects = IntGaugeVec::new(
            Opts::new("ccm_cache_objects", "Objects in the cache."),
            &["resource"],
        )?;
        let age = Opts::new(
            "ccm_cache_last_event_age_seconds",
            "Seconds since a list, event or bookmark last arrived from the API server.",
        );
        Ok(Self {
            objects: register(registry, objects)?,
            relists: counter(
                registry,
                "ccm_cache_relists_total",
                "Complete lists taken, the first included.",
            )?,
            restarts: counter(registry, "ccm_cache_watch_restarts_total", "Watches opened again.")?,
            unreadable: counter(
                registry,
                "ccm_cache_unreadable_objects_total",
                "Objects that could not be read.",
            )?,
            age: register(
                registry,
                LastEventAge {
                    gauge: GaugeVec::new(age, &["resource"])?,
                    last: Arc::default(),
                },
            )?,
        })
    }

    /// Exposes the metrics of a resource from the start.
    pub(crate) fn init(&self, resource: &'static str) {
        self.objects.with_label_values(&[resource]);
        for family in [&self.relists, &self.restarts, &self.unreadable] {
            family.with_label_values(&[resource]);
        }
        self.age.last.lock().insert(resource, Instant::now());
    }

    pub(crate) fn relisted(&self, resource: &'static str) {
        self.relists.with_label_values(&[resource]).inc();
    }

    pub(crate) fn restarted(&self, resource: &'static str) {
        self.restarts.with_label_values(&[resource]).inc();
    }

    pub(crate) fn unreadable(&self, resource: &'static str) {
        self.unreadable.with_label_values(&[resource]).inc();
    }

    /// Records that something arrived from the server, and the number of objects in the cache.
    pub(crate) fn record_event(&self, resource: &'static str, objects: usize) {
        self.objects
            .with_label_values(&[resource])
            .set(i64::try_from(objects).unwrap_or(i64::MAX));
        self.age.last.lock().insert(resource, Instant::now());
    }
}

/// A gauge whose value is computed when it is read.
#[derive(Clone, Debug)]
struct LastEventAge {
    gauge: GaugeVec,
    last: Arc<Mutex<BTreeMap<&'static str, Instant>>>,
}

impl Collector for LastEventAge {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (resource, last) in &*self.last.lock() {
            self.gauge
                .with_label_values(&[resource])
                .set(last.elapsed().as_secs_f64());
        }
        self.gauge.collect()
    }
}
