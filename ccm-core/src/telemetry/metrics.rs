//! Metric families, registered in a registry that is passed in.
//!
//! Names, labels and buckets of upstream are kept where upstream has the metric; ours begin with `ccm_`. Labels are
//! closed sets: never names of objects, IDs or error texts. Where the set is known, every member is there from the start,
//! so that alerts can be written before anything happened. `docs/reference/metrics.md` lists all families.

use prometheus::{IntCounterVec, Opts, Registry, core::Collector};

/// Registers a collector and gives it back.
///
/// # Errors
/// When another collector has the name already.
pub fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// Registers counters whose labels each have these values and no others, and shows all of them.
///
/// # Errors
/// When another collector has the name already.
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
        sets = sets.iter().flat_map(|set| values.iter().map(|value| [&**set, &[*value]].concat())).collect();
    }
    for set in sets {
        family.with_label_values(&set);
    }
    Ok(family)
}
