//! Medians as Markdown.

use std::{collections::BTreeSet, fmt::Write as _};

use crate::{
    contender::Contender,
    run::{COMMON_FLAGS, Sample, Setting},
};

/// The samples of one contender.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) contender: Contender,
    pub(crate) samples: Vec<Sample>,
}

/// Prints the medians of each contender with the smallest and largest value of each figure, and with two contenders
/// the first one's median divided by the second one's.
pub(crate) fn markdown(setting: &Setting, all: &[Series]) -> String {
    let runs = all.iter().map(|series| series.samples.len()).max().unwrap_or(0);
    let mut text = format!("### {} nodes, {} ms cloud latency, {runs} runs\n\n", setting.nodes, setting.latency_ms);
    text.push_str(&settings(all));
    text.push_str("| figure |");
    for series in all {
        // Writing to a string cannot fail.
        let _ = write!(text, " {}: median | min – max |", series.contender.name);
    }
    text.push_str(if all.len() == 2 { " ratio |\n|---|" } else { "\n|---|" });
    text.push_str(&"---|---|".repeat(all.len()));
    text.push_str(if all.len() == 2 { "---|\n" } else { "\n" });
    let mut row = |name: &str, digits: usize, value: &dyn Fn(&Sample) -> f64| {
        let spreads: Option<Vec<Spread>> =
            all.iter().map(|series| Spread::of(series.samples.iter().map(value).collect())).collect();
        text.push_str(&line(name, digits, &spreads.unwrap_or_default()));
    };
    row("seconds until all are initialised", 2, &|s| s.seconds);
    row("CPU seconds of the manager", 2, &|s| s.cpu);
    row("peak RSS of the manager, MiB", 1, &|s| s.peak_rss_mib);
    row("CPU seconds of kube-apiserver", 2, &|s| s.apiserver_cpu);
    row("CPU seconds of etcd", 2, &|s| s.etcd_cpu);
    row("provider calls", 0, &|s| s.cloud_calls as f64);
    row("nodes asked about", 0, &|s| s.cloud_nodes as f64);
    row("API requests", 0, &|s| s.requests.values().sum::<usize>() as f64);
    let names: BTreeSet<&String> = all.iter().flat_map(|a| &a.samples).flat_map(|s| s.requests.keys()).collect();
    for name in names {
        row(&format!("API requests: {name}"), 0, &|s| s.requests.get(name).copied().unwrap_or(0) as f64);
    }
    text
}

/// Says with which flags was measured.
fn settings(all: &[Series]) -> String {
    let mut text = format!("Flags: `{}`", COMMON_FLAGS.join(" "));
    for Series { contender, .. } in all.iter().filter(|series| !series.contender.flags.is_empty()) {
        // Writing to a string cannot fail.
        let _ = write!(text, "; {} also `{}`", contender.name, contender.flags.join(" "));
    }
    text.push_str(".\n\n");
    text
}

/// One row; empty without values.
fn line(name: &str, digits: usize, spreads: &[Spread]) -> String {
    if spreads.is_empty() {
        return String::new();
    }
    let mut text = format!("| {name} |");
    for Spread { median, min, max } in spreads {
        // Writing to a string cannot fail.
        let _ = write!(text, " {median:.digits$} | {min:.digits$} – {max:.digits$} |");
    }
    if let [ours, theirs] = spreads {
        let ratio = ours.median / theirs.median;
        let _ = if ratio.is_finite() { write!(text, " {ratio:.2} |") } else { write!(text, " – |") };
    }
    text.push('\n');
    text
}

/// Where the values of a figure lie.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// `None` without values.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn sample(seconds: f64, requests: &[(&str, usize)]) -> Sample {
        let requests = requests.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Sample { seconds, requests, ..Sample::default() }
    }

    fn series(contender: anyhow::Result<Contender>, samples: Vec<Sample>) -> Series {
        Series { contender: contender.unwrap(), samples }
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(Spread::of(vec![9.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of(vec![9.0, 1.0, 2.0, 4.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn two_contenders_are_compared_and_the_tuning_is_said() {
        let ours = series(
            Contender::manager(Path::new("ccm-mock"), Vec::new()),
            vec![sample(1.0, &[("patch nodes", 2)]), sample(3.0, &[("patch nodes", 2)]), sample(2.0, &[])],
        );
        let theirs = series(
            Contender::baseline(Path::new("ccm-go-baseline")),
            vec![sample(4.0, &[("update nodes", 4)]), sample(4.0, &[("update nodes", 4)]), sample(5.0, &[])],
        );
        let text = markdown(&Setting { nodes: 2, latency_ms: 20 }, &[ours, theirs]);
        for part in [
            "### 2 nodes, 20 ms cloud latency, 3 runs\n",
            "; ccm-go-baseline also `--concurrent-node-syncs=64`.\n",
            "| figure | ccm-mock: median | min – max | ccm-go-baseline: median | min – max | ratio |\n|---|---|---|---|---|---|\n",
            "| seconds until all are initialised | 2.00 | 1.00 – 3.00 | 4.00 | 4.00 – 5.00 | 0.50 |\n",
            "| API requests: patch nodes | 2 | 0 – 2 | 0 | 0 – 0 | – |\n",
            "| API requests: update nodes | 0 | 0 – 0 | 4 | 0 – 4 | 0.00 |\n",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }

    #[test]
    fn one_contender_has_no_ratio() {
        let alone = series(Contender::manager(Path::new("ccm-mock"), vec!["--v=4".to_owned()]), vec![sample(1.0, &[])]);
        let text = markdown(&Setting { nodes: 1, latency_ms: 0 }, &[alone]);
        assert!(text.contains("; ccm-mock also `--v=4`.\n"), "{text}");
        assert!(text.contains("| figure | ccm-mock: median | min – max |\n|---|---|---|\n| seconds"), "{text}");
        assert!(text.contains("| seconds until all are initialised | 1.00 | 1.00 – 1.00 |\n"), "{text}");
    }
}
