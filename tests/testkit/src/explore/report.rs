use std::{collections::BTreeMap, fmt};

use super::Faults;

/// Maximum number of failures that are shown in full.
const SHOWN: usize = 3;

/// Result of an exploration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Name of the scenario.
    pub scenario: String,
    /// Number of calls without faults.
    pub points: usize,
    /// Number of runs with one fault.
    pub singles: usize,
    /// Number of runs with more than one fault.
    pub more: usize,
    /// Number of runs in which a fault did not happen, because there were fewer calls.
    pub missed: usize,
    /// Seed of the runs with more than one fault.
    pub seed: u64,
    /// Runs that went wrong.
    pub failures: Vec<Failure>,
    /// Command that repeats a run.
    pub command: String,
    /// True if nothing was run, because another scenario's run was requested.
    pub left_out: bool,
}

/// A run that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Faults of the run.
    pub faults: Faults,
    /// Difference from a run without faults, or the error.
    pub seen: String,
}

impl Report {
    pub(super) fn new(scenario: &str, seed: u64, command: &str) -> Self {
        let (scenario, command) = (scenario.to_owned(), command.to_owned());
        Self {
            scenario,
            points: 0,
            singles: 0,
            more: 0,
            missed: 0,
            seed,
            failures: Vec::new(),
            command,
            left_out: false,
        }
    }

    pub(super) fn fail(&mut self, faults: Faults, seen: &str) {
        self.failures
            .push(Failure { faults, seen: seen.to_owned() });
    }

    /// Returns true if no run failed and the runs prove something.
    pub fn passed(&self) -> bool {
        self.failures.is_empty() && self.proves_nothing().is_none()
    }

    /// Returns the reason why successful runs prove nothing, if there is one.
    fn proves_nothing(&self) -> Option<&'static str> {
        let runs = self.singles + self.more;
        match self {
            Self { left_out: true, .. } => None,
            Self { points: 0, .. } => Some("there is no call at which a fault can happen"),
            _ if runs == 0 => Some("no fault was tried"),
            Self { missed, .. } if *missed == runs => Some("in no run did all its faults happen"),
            _ => None,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scenario,
            points,
            singles,
            more,
            missed,
            seed,
            failures,
            command,
            left_out,
        } = self;
        if *left_out {
            return write!(f, "{scenario}: not asked for");
        }
        write!(
            f,
            "{scenario}: {points} calls, {singles} single faults, {more} pairs (CCM_EXPLORE_SEED={seed})"
        )?;
        if *missed > 0 {
            write!(f, ", in {missed} runs a fault did not happen")?;
        }
        match self.proves_nothing() {
            Some(reason) if failures.is_empty() => {
                return write!(f, ", which proves nothing: {reason}");
            }
            None if failures.is_empty() => return write!(f, ", all end alike"),
            _ => {}
        }
        write!(f, ", {} end otherwise", failures.len())?;
        for failure in failures.iter().take(SHOWN) {
            write!(
                f,
                "\n  again: CCM_EXPLORE_REPLAY='{scenario}/{}' {command}\n    {}",
                failure.faults,
                failure.seen.replace('\n', "\n    ")
            )?;
        }
        let rest: Vec<_> = failures
            .iter()
            .skip(SHOWN)
            .map(|failure| failure.faults.to_string())
            .collect();
        if rest.is_empty() {
            Ok(())
        } else {
            write!(f, "\n  and with {}", rest.join(" "))
        }
    }
}

/// Returns the lines that only one of two descriptions has.
pub(super) fn difference(wanted: &str, seen: &str) -> String {
    let mut count: BTreeMap<&str, i64> = BTreeMap::new();
    wanted
        .lines()
        .for_each(|line| *count.entry(line).or_default() -= 1);
    seen.lines()
        .for_each(|line| *count.entry(line).or_default() += 1);
    let lines = count.into_iter().filter(|(_, times)| *times != 0);
    let lines: Vec<_> = lines
        .map(|(line, times)| format!("{times:+} {line}"))
        .collect();
    format!("the end is another one:\n{}", lines.join("\n"))
}
