//! Medians as Markdown.

use std::{collections::BTreeSet, fmt::Write as _};

use crate::run::Sample;

/// Prints the medians of the samples, with the smallest and largest value of each figure.
pub(crate) fn markdown(nodes: usize, latency_ms: u64, samples: &[Sample]) -> String {
    let mut text = format!("### {nodes} nodes, {latency_ms} ms cloud latency, {} runs\n\n", samples.len());
    text.push_str("| figure | median | min | max |\n|---|---|---|---|\n");
    let mut row = |name: &str, digits: usize, value: &dyn Fn(&Sample) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        if let (Some(min), Some(max)) = (values.first(), values.last()) {
            let median = values[values.len() / 2];
            // Writing to a string cannot fail.
            let _ = writeln!(text, "| {name} | {median:.digits$} | {min:.digits$} | {max:.digits$} |");
        }
    };
    row("seconds until all are initialised", 2, &|s| s.seconds);
    row("CPU seconds of the manager", 2, &|s| s.cpu);
    row("peak RSS of the manager, MiB", 1, &|s| s.peak_rss_mib);
    row("CPU seconds of kube-apiserver", 2, &|s| s.apiserver_cpu);
    row("CPU seconds of etcd", 2, &|s| s.etcd_cpu);
    row("provider calls", 0, &|s| s.cloud_calls as f64);
    row("nodes asked about", 0, &|s| s.cloud_nodes as f64);
    let names: BTreeSet<&String> = samples.iter().flat_map(|s| s.requests.keys()).collect();
    for name in names {
        row(&format!("API requests: {name}"), 0, &|s| s.requests.get(name).copied().unwrap_or(0) as f64);
    }
    text
}
