//! Metric families, registered in a registry that is passed in.
//!
//! Names, labels and buckets are upstream's where upstream has the metric; ours begin with `ccm_`.
//! Labels have a fixed set of values: never names of objects, IDs or error texts. Where the set is
//! known, every series exists from the start, so that alerts work before the first occurrence.
//! `docs/reference/metrics.md` lists all families.

use prometheus::{IntCounterVec, Opts, Registry, core::Collector};

/// Registers a collector and returns it.
///
/// # Errors
/// Returns an error if another collector has the same name.
pub fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// Registers counters whose labels have only these values, and creates all series.
///
/// # Errors
/// Returns an error if another collector has the same name.
pub fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[(&str, &[&str])],
) -> prometheus::Result<IntCounterVec> {
    let names: Vec<&str> = labels.iter().map(|(name, _)| *name).collect();
    let family = register(registry, IntCounterVec::new(Opts::new(name, help), &names)?)?;
    let mut sets: Vec<Vec<&str>> = vec![Vec::new()];
    for (_, values) in labels {
        sets = sets
            .iter()
            .flat_map(|set| values.iter().map(|value| [&**set, &[*value]].concat()))
            .collect();
    }
    for set in sets {
        family.with_label_values(&set);
    }
    Ok(family)
}
