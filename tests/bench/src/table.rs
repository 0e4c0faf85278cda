//! Medians and ratios as Markdown.

use std::fmt::Write as _;

use crate::{
    measure::Measure,
    metrics::{Measurement, Measurements},
    scenario::{Outage, Scenario},
    subject::{BenchmarkedManager, CloudLocation},
};

/// The runs of one contender.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) contender: BenchmarkedManager,
    pub(crate) runs: Vec<Measurements>,
}

impl Series {
    /// The figure of every run; one that a run does not have is nothing of that kind.
    fn values(&self, name: &str) -> Vec<f64> {
        self.runs
            .iter()
            .map(|run| run.get(name).map_or(0.0, |figure| figure.value))
            .collect()
    }
}

/// Prints the median of each figure for each contender with the smallest and largest value, and
/// with several contenders the ratio of the first to each other one, run by run, in the same way.
pub(crate) fn markdown(
    measure: Measure,
    scenario: &Scenario,
    outage: Option<Outage>,
    all: &[Series],
) -> String {
    let mut text = heading(measure, scenario, outage, all);
    text.push_str("| figure |");
    for series in all {
        // Writing to a string cannot fail.
        let _ = write!(text, " {} |", series.contender.name());
    }
    let [first, others @ ..] = all else {
        return text;
    };
    for other in others {
        let _ = write!(text, " {} : {} |", first.contender.name(), other.contender.name());
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(all.len() + others.len()));
    text.push('\n');
    for Measurement { name, digits, .. } in rows(all) {
        let _ = write!(text, "| {name} |");
        for series in all {
            let _ = write!(text, " {} |", spread(series.values(&name), digits));
        }
        for other in others {
            let pairs = first.values(&name).into_iter().zip(other.values(&name));
            let ratios: Vec<f64> = pairs
                .map(|(ours, theirs)| ours / theirs)
                .filter(|ratio| ratio.is_finite())
                .collect();
            // More digits than anybody needs, where tens of calls stand beside thousands.
            let _ = write!(text, " {} |", spread(ratios, 3));
        }
        text.push('\n');
    }
    text
}

/// Says what was measured.
fn heading(
    measure: Measure,
    scenario: &Scenario,
    outage: Option<Outage>,
    all: &[Series],
) -> String {
    let runs = all
        .iter()
        .map(|series| series.runs.len())
        .max()
        .unwrap_or(0);
    let plural = if runs == 1 { "" } else { "s" };
    let mut text = format!(
        "### {measure:?}, {}, {:?} cloud, {runs} run{plural} each\n\n",
        scenario.size, scenario.setting
    );
    if let Some(Outage { after, length }) = outage {
        let _ = writeln!(
            text,
            "All cloud calls fail for {length:?}, from {after:?} after the start.\n"
        );
    }
    let _ = write!(text, "Flags: `{}`", scenario.flags().join(" "));
    for Series { contender, .. } in all {
        if !contender.flags.is_empty() {
            let _ = write!(text, "; {} also `{}`", contender.name(), contender.flags.join(" "));
        }
        if contender.place == CloudLocation::Outside {
            let _ = write!(text, "; the cloud of {} in a process of its own", contender.name());
        }
    }
    text.push_str(".\n\n");
    text
}

/// All figures that anybody has: those that only a later contender has come after what precedes
/// them there.
fn rows(all: &[Series]) -> Vec<Measurement> {
    let mut rows: Vec<Measurement> = Vec::new();
    for run in all.iter().flat_map(|series| &series.runs) {
        let mut next = 0;
        for figure in &run.0 {
            match rows.iter().position(|row| row.name == figure.name) {
                Some(at) => next = at + 1,
                None => {
                    rows.insert(next, figure.clone());
                    next += 1;
                }
            }
        }
    }
    rows
}

/// Median, and smallest and largest value where there are several; a dash without values.
fn spread(mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    let (Some(min), Some(max)) = (values.first(), values.last()) else {
        return "–".to_owned();
    };
    let middle = values.len() / 2;
    let median = if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    };
    match values.len() {
        1 => format!("{median:.digits$}"),
        _ => format!("{median:.digits$} ({min:.digits$} – {max:.digits$})"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        scenario::{CloudProfile, Size},
        subject::ManagerKind,
    };

    fn run(amounts: &[(&str, f64)], counts: &[(&str, u64)]) -> Measurements {
        let mut figures = Measurements::default();
        for (name, value) in amounts {
            figures.amount(*name, *value);
        }
        for (name, value) in counts {
            figures.count(*name, *value);
        }
        figures
    }

    fn scenario() -> Scenario {
        let size = Size { nodes: 2, services: 1 };
        Scenario {
            size,
            setting: CloudProfile::Steady,
            controllers: "cloud-node-controller".to_owned(),
        }
    }

    fn ours(runs: Vec<Measurements>) -> Series {
        Series {
            contender: BenchmarkedManager::ours(
                ManagerKind::OursDefault,
                Path::new("m"),
                CloudLocation::Outside,
                &[],
            ),
            runs,
        }
    }

    #[test]
    fn a_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(spread(vec![9.0, 1.0, 2.0], 0), "2 (1 – 9)");
        assert_eq!(spread(vec![9.0, 1.0, 2.0, 4.0], 1), "3.0 (1.0 – 9.0)");
        assert_eq!(spread(vec![1.25], 2), "1.25");
        assert_eq!(spread(Vec::new(), 2), "–");
    }

    #[test]
    fn ratios_are_of_pairs() {
        let first = ours(vec![run(&[("seconds", 1.0)], &[]), run(&[("seconds", 6.0)], &[])]);
        let contender = BenchmarkedManager::go(ManagerKind::GoTuned, Path::new("go")).unwrap();
        let second = Series {
            contender,
            runs: vec![run(&[("seconds", 4.0)], &[]), run(&[("seconds", 8.0)], &[])],
        };
        let text = markdown(Measure::Converge, &scenario(), None, &[first, second]);
        for part in [
            "### Converge, 2 nodes / 1 services, Steady cloud, 2 runs each\n",
            "; the cloud of ours, defaults in a process of its own; Go tuned also `--kube-api-qps=1000 ",
            "| figure | ours, defaults | Go tuned | ours, defaults : Go tuned |\n|---|---|---|---|\n",
            // Of medians it would be 3.5 / 6.
            "| seconds | 3.50 (1.00 – 6.00) | 6.00 (4.00 – 8.00) | 0.500 (0.250 – 0.750) |\n",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }

    #[test]
    fn what_only_one_has_is_nothing_for_the_other() {
        let first = ours(vec![run(&[("a", 1.0), ("z", 1.0)], &[("requests", 5)])]);
        let second = ours(vec![run(&[("a", 1.0)], &[("b", 3), ("requests", 0)])]);
        let text = markdown(Measure::Idle, &scenario(), None, &[first, second]);
        let table = "| a | 1.00 | 1.00 | 1.000 |\n| b | 0 | 3 | 0.000 |\n| z | 1.00 | 0.00 | – |\n| requests | 5 | 0 | – |\n";
        assert!(text.ends_with(table), "{text}");
    }

    #[test]
    fn one_contender_has_no_ratio() {
        let outage = Outage {
            after: std::time::Duration::from_secs(10),
            length: std::time::Duration::from_secs(300),
        };
        let text = markdown(
            Measure::Converge,
            &scenario(),
            Some(outage),
            &[ours(vec![run(&[("a", 1.0)], &[])])],
        );
        assert!(
            text.contains("All cloud calls fail for 300s, from 10s after the start.\n"),
            "{text}"
        );
        assert!(text.ends_with("| figure | ours, defaults |\n|---|---|\n| a | 1.00 |\n"), "{text}");
    }
}
