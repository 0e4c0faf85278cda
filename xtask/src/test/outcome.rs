//! What a test program printed, and the table of them all.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// What became of one suite.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
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

impl Outcome {
    /// Reads what the program printed.
    pub(super) fn new(name: String, purpose: &'static str, took: Duration, output: &str, succeeded: bool) -> Self {
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
        Self { name, purpose, passed: true, took: Duration::ZERO, tests: 0, ignored }
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
    let reason = after.strip_prefix(", ").or_else(|| after.trim().strip_prefix('(')?.strip_suffix(')'));
    Some(reason.unwrap_or("no reason given").trim())
}

/// The table of suites, as it is in `CONTRIBUTING.md`.
pub(super) fn table(outcomes: &[Outcome]) -> String {
    let mut table = "| Suite | Seconds | Tests | What it shows |\n|---|---|---|---|\n".to_owned();
    for Outcome { name, purpose, took, tests, .. } in outcomes {
        // Writing to a string does not fail.
        let _ = writeln!(table, "| {name} | {:.0} | {tests} | {purpose} |", took.as_secs_f64());
    }
    table
}

/// What did not run, and why, one line for each reason; without what a later tier, named by its command, then ran.
pub(super) fn left_out(outcomes: &[Outcome], ran_since: &[&str]) -> String {
    let mut reasons: BTreeMap<&str, (usize, Vec<&str>)> = BTreeMap::new();
    for outcome in outcomes {
        for (reason, count) in &outcome.ignored {
            if ran_since.contains(&reason.as_str()) {
                continue;
            }
            let (sum, suites) = reasons.entry(reason).or_default();
            *sum += count;
            suites.push(&outcome.name);
        }
    }
    let line = |(reason, (count, suites)): (&str, (usize, Vec<&str>))| {
        format!("- {count} not run: {reason} ({})\n", suites.join(", "))
    };
    reasons.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "running 4 tests\ntest a ... ok\ntest b ... ignored, needs the network\n\
        test c  ... ignored (cargo xtask test --full)\ntest d ... ignored\n\n\
        test result: ok. 1 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";

    fn outcome(output: &str, succeeded: bool) -> Outcome {
        Outcome::new("a lib".to_owned(), "shows it", Duration::from_millis(1600), output, succeeded)
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
        let list = left_out(&all, &["cargo xtask test --full"]);
        assert_eq!(list, "- 1 not run: needs the network (a lib)\n- 1 not run: no reason given (a lib)\n");
    }
}
