//! What a test program printed, and the table of them all.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

/// What became of one suite.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SuiteResult {
    /// Suite, as `package target`.
    pub(super) name: String,
    /// What it is for.
    pub(super) purpose: &'static str,
    /// Whether all its tests passed.
    pub(super) passed: bool,
    /// How long it took.
    pub(super) took: Duration,
    /// How many tests passed.
    pub(super) tests: usize,
    /// How many tests did not run, by the reason.
    pub(super) ignored: BTreeMap<String, usize>,
}

impl SuiteResult {
    /// Reads what the program printed.
    pub(super) fn new(
        name: String,
        purpose: &'static str,
        took: Duration,
        output: &str,
        succeeded: bool,
    ) -> Self {
        let tests: usize = output.lines().filter_map(passed).sum();
        let mut counts = BTreeMap::new();
        for reason in output.lines().filter_map(ignored) {
            *counts.entry(reason.to_owned()).or_default() += 1;
        }
        // A program that has no tests, or ends without a summary of them, shows nothing.
        let passed = succeeded && tests + counts.values().sum::<usize>() > 0;
        Self { name, purpose, passed, took, tests, ignored: counts }
    }

    /// A suite that cannot run here.
    pub(super) fn not_run(name: String, purpose: &'static str, reason: &str) -> Self {
        let ignored = BTreeMap::from([(reason.to_owned(), 1)]);
        Self {
            name,
            purpose,
            passed: true,
            took: Duration::ZERO,
            tests: 0,
            ignored,
        }
    }

    /// One line for the terminal.
    pub(super) fn line(&self) -> String {
        let ignored: usize = self.ignored.values().sum();
        format!(
            "{} {}: {} passed, {ignored} ignored, {:.1} s",
            if self.passed { "ok    " } else { "FAILED" },
            self.name,
            self.tests,
            self.took.as_secs_f64()
        )
    }
}

/// The number of a summary such as `test result: ok. 12 passed; 0 failed; …`.
fn passed(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    rest.split_once(" passed")?.0.trim().parse().ok()
}

/// The reason in `test name ... ignored, reason`, and in the same with the reason in parentheses.
fn ignored(line: &str) -> Option<&str> {
    let (_, after) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    let reason = after
        .strip_prefix(", ")
        .or_else(|| after.trim().strip_prefix('(')?.strip_suffix(')'));
    Some(reason.unwrap_or("no reason given").trim())
}

/// The table of suites, as it is in `CONTRIBUTING.md`.
pub(super) fn table(outcomes: &[SuiteResult]) -> String {
    let mut table = "| Suite | Seconds | Tests | What it shows |\n|---|---|---|---|\n".to_owned();
    for SuiteResult { name, purpose, took, tests, .. } in outcomes {
        // Writing to a string does not fail.
        let _ = writeln!(table, "| {name} | {:.0} | {tests} | {purpose} |", took.as_secs_f64());
    }
    table
}

/// Reasons of cases that run all the same, as a part of another one.
const PART_OF_OTHERS: [&str; 2] = ["runs in a child process", "run by another test"];
/// The explorer's reason for what it is no omission to leave out.
const NOTHING_TO_TRY: &str = "no fault of this class can happen in it, or is tried";

/// Cases that did not run for one reason.
#[derive(Debug, PartialEq)]
pub(super) struct LeftOut<'a> {
    pub(super) why: &'a str,
    pub(super) count: usize,
    suites: Vec<&'a str>,
}

impl fmt::Display for LeftOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "- {} not run: {} ({})", self.count, self.why, self.suites.join(", "))
    }
}

/// What did not run, and why; without what a later tier, named by its command, then ran.
pub(super) fn skipped<'a>(outcomes: &'a [SuiteResult], ran_since: &[&str]) -> Vec<LeftOut<'a>> {
    let mut reasons: BTreeMap<&str, LeftOut<'_>> = BTreeMap::new();
    for outcome in outcomes {
        for (why, count) in &outcome.ignored {
            let ran = ran_since.contains(&why.as_str()) || PART_OF_OTHERS.contains(&why.as_str());
            if ran || why == NOTHING_TO_TRY {
                continue;
            }
            let reason =
                reasons
                    .entry(why)
                    .or_insert(LeftOut { why, count: 0, suites: Vec::new() });
            reason.count += count;
            reason.suites.push(&outcome.name);
        }
    }
    reasons.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "running 4 tests\ntest a ... ok\ntest b ... ignored, needs the network\n\
        test c  ... ignored (cargo xtask test --full)\ntest d ... ignored\n\n\
        test result: ok. 1 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";

    fn outcome(output: &str, succeeded: bool) -> SuiteResult {
        SuiteResult::new(
            "a lib".to_owned(),
            "shows it",
            Duration::from_millis(1600),
            output,
            succeeded,
        )
    }

    #[test]
    fn the_outcome_is_what_the_program_printed() {
        let read = outcome(PRINTED, true);
        assert!(read.passed);
        assert_eq!(read.tests, 1);
        let reasons: Vec<_> = read.ignored.keys().map(String::as_str).collect();
        assert_eq!(reasons, ["cargo xtask test --full", "needs the network", "no reason given"]);
        assert_eq!(read.line(), "ok     a lib: 1 passed, 3 ignored, 1.6 s");
        assert!(!outcome(PRINTED, false).passed);
        assert!(!outcome("", true).passed, "no tests were run");
    }

    #[test]
    fn the_table_and_the_list_name_suites() {
        let all = [outcome(PRINTED, true)];
        assert!(table(&all).ends_with("| a lib | 2 | 1 | shows it |\n"));
        let list = skipped(&all, &["cargo xtask test --full"]);
        let list: Vec<_> = list.iter().map(ToString::to_string).collect();
        assert_eq!(
            list,
            ["- 1 not run: needs the network (a lib)", "- 1 not run: no reason given (a lib)"]
        );
    }

    #[test]
    fn what_runs_as_a_part_of_another_case_is_not_left_out() {
        let all = [outcome("test a ... ignored, runs in a child process\n", true)];
        assert_eq!(skipped(&all, &[]), []);
    }
}
