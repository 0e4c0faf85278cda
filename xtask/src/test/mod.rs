//! Runs tests, in three tiers.
//!
//! The first needs Rust alone. The second runs the first, and then the suites that have more to
//! show with what was prepared: programs in Go, Python's packages, a cloud's SDK. The third does so
//! again with what takes long.

mod nightly;
mod programs;
mod result;
mod runner;
mod suites;
mod tools;

use std::process::Stdio;
use std::thread;
use std::time::Instant;

use anyhow::Context as _;

use crate::assets::Release;
use crate::tier::Tier;
use crate::{control_plane, machine, process};

use self::programs::Program;
use self::result::SuiteResult;
use self::runner::TestJob;
use self::suites::Suite;
use self::tools::Tools;

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Adds what needs Go, Python or a cloud's SDK: real API servers, moto, OpenStack's clients,
    /// more faults
    #[arg(long)]
    full: bool,
    /// Adds what takes long: take-overs from upstream's managers, every fault, the older
    /// Kubernetes, release builds
    #[arg(long)]
    nightly: bool,
    /// Fails when something is missing that the tier needs, before anything runs, and when a case
    /// could not run; so does the variable CI=true
    #[arg(long)]
    require_all: bool,
    /// Arguments for `cargo test`, which then runs alone in the environment of the tier, for
    /// instance `-p ccm-core some_test`; suites with cases of several tiers then run those of this
    /// tier alone
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    cargo: Vec<String>,
}

/// What is built for the first tier, and used by all: whatever is tested by default, of all members
/// with their default features; no benchmarks.
const WORKSPACE: [&str; 1] = ["--workspace"];
/// The AWS provider once more, with its SDK.
const AWS: [&str; 4] = ["--package", "ccm-aws", "--features", "sdk"];

/// Runs all tests of a tier. The output ends in a table of what ran, a list of what did not, and
/// one line that counts.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let tier = match (arguments.nightly, arguments.full) {
        (true, _) => Tier::Nightly,
        (false, true) => Tier::Full,
        (false, false) => Tier::Quick,
    };
    let required =
        arguments.require_all || std::env::var_os("CI").is_some_and(|value| value == "true");
    tools::check(tier, required)?;
    if !arguments.cargo.is_empty() {
        return by_hand(tier, &arguments.cargo);
    }
    let mut all = Run { started: Instant::now(), outcomes: Vec::new() };
    let done = all.tiers(tier);
    let left_out = all.print(tier);
    done?;
    all.verdict()?;
    // The first tier needs Rust alone; what else is there only adds to it.
    let required = required && tier > Tier::Quick;
    anyhow::ensure!(
        left_out == 0 || !required,
        "{left_out} cases could not run, and everything is required"
    );
    all.summary();
    Ok(())
}

/// Lets cargo run what was asked for, with what the tier prepares.
fn by_hand(tier: Tier, arguments: &[String]) -> anyhow::Result<()> {
    let tools = Tools::prepare(tier)?;
    let mut variables = tools.variables(tier);
    if tier == Tier::Nightly {
        variables.extend(nightly::release_by_hand(arguments)?);
    }
    let mut cargo = process::cargo()?;
    process::run(cargo.arg("test").args(arguments).envs(variables))
}

/// A run of all suites.
struct Run {
    started: Instant,
    outcomes: Vec<SuiteResult>,
}

impl Run {
    fn tiers(&mut self, tier: Tier) -> anyhow::Result<()> {
        self.head("building tests");
        let quick = programs::build(&WORKSPACE)?;
        // Before the first tier: its cases that need helm run where that is there, and no later
        // tier has them again.
        if tier > Tier::Quick {
            self.head("programs in Go and Python");
        }
        let tools = Tools::prepare(tier)?;
        self.head("tests that need Rust alone");
        suites::check(&quick, &suites::ALL)?;
        let jobs = suites::ALL
            .iter()
            .filter_map(|suite| suite.jobs(&quick, "", Some(&[])));
        self.pool(jobs.collect(), &Tools::default().variables(Tier::Quick))?;
        self.documentation()?;
        if tier == Tier::Quick || !self.passed() {
            return Ok(());
        }
        let aws = self.full(&quick, &tools)?;
        if tier == Tier::Nightly && self.passed() {
            nightly::run(self, &quick, &aws, &tools)?;
        }
        Ok(())
    }

    /// What the first tier lacks. The SDK is built while suites run that do not need it; the
    /// programs with it come back.
    fn full(&mut self, quick: &[Program], tools: &Tools) -> anyhow::Result<Vec<Program>> {
        self.head("tests that need more, while AWS' SDK is built");
        let variables = tools.variables(Tier::Full);
        let here = control_plane::all_there(Release::chosen());
        let (suites, missing): (Vec<_>, Vec<_>) = suites::ALL
            .iter()
            .partition(|suite| here || !suite.needs_kube_apiserver);
        let jobs: Vec<TestJob> = suites
            .iter()
            .filter_map(|suite| suite.jobs(quick, " (full)", suite.full))
            .collect();
        let not_run = missing
            .iter()
            .filter_map(|suite| suite.jobs(quick, " (full)", suite.full));
        self.outcomes.extend(
            not_run
                .map(|job| SuiteResult::not_run(job.name, job.purpose, "no real kube-apiserver")),
        );
        let aws = thread::scope(|scope| {
            let aws = scope.spawn(|| programs::build(&AWS));
            self.pool(jobs, &variables)?;
            aws.join()
                .map_err(|_| anyhow::anyhow!("building the SDK panicked"))?
        })?;
        suites::check(&aws, &suites::SDK)?;
        self.head("tests with AWS' SDK");
        let jobs = suites::SDK
            .iter()
            .filter_map(|suite| suite.jobs(&aws, " (full, SDK)", suite.full));
        self.pool(jobs.collect(), &variables)?;
        Ok(aws)
    }

    /// Tests in documentation, which cargo alone can build.
    fn documentation(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut cargo = process::cargo()?;
        cargo
            .args(["test", "--workspace", "--doc"])
            .stderr(Stdio::inherit());
        let output = cargo.output().context("run the tests in documentation")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let (name, purpose) =
            ("documentation".to_owned(), "examples in documentation compile and run");
        let outcome =
            SuiteResult::new(name, purpose, started.elapsed(), &text, output.status.success());
        if !outcome.passed {
            print!("{text}");
        }
        println!("{}", outcome.line());
        self.outcomes.push(outcome);
        Ok(())
    }

    fn pool(&mut self, jobs: Vec<TestJob>, variables: &[(String, String)]) -> anyhow::Result<()> {
        let logs = control_plane::target()?.join("suites");
        self.outcomes.extend(runner::run(jobs, variables, &logs)?);
        Ok(())
    }

    fn head(&self, what: &str) {
        println!("\n=== {what} (after {:.0} s)", self.started.elapsed().as_secs_f64());
    }

    fn passed(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.passed)
    }

    /// Prints what ran and what did not; returns how many cases could not run that this tier has.
    fn print(&self, tier: Tier) -> usize {
        self.head("suites");
        print!("{}", result::table(&self.outcomes));
        let ran = Tier::ALL.into_iter().filter(|ran| *ran <= tier);
        let left_out = result::skipped(&self.outcomes, &ran.map(Tier::command).collect::<Vec<_>>());
        if left_out.is_empty() {
            println!("\nNothing was left out.");
        } else {
            println!("\nLeft out:");
            for reason in &left_out {
                println!("{reason}");
            }
        }
        let later = [Tier::Full, Tier::Nightly].map(Tier::command);
        let may_be_missing = |why: &str| {
            later.contains(&why)
                || nightly::OPTIONAL.contains(&why)
                || machine::REASONS.contains(&why)
        };
        left_out
            .iter()
            .filter(|reason| !may_be_missing(reason.why))
            .map(|reason| reason.count)
            .sum()
    }

    /// A line that says how many tests there were, for whoever looks for one at the end.
    fn summary(&self) {
        let tests: usize = self.outcomes.iter().map(|outcome| outcome.tests).sum();
        println!("\n{tests} passed, 0 failed");
    }

    fn verdict(&self) -> anyhow::Result<()> {
        let failed: Vec<_> = self
            .outcomes
            .iter()
            .filter(|outcome| !outcome.passed)
            .map(|outcome| &*outcome.name)
            .collect();
        anyhow::ensure!(failed.is_empty(), "{} suites failed: {}", failed.len(), failed.join(", "));
        Ok(())
    }
}

impl Suite {
    /// How it is run with these arguments, if it is at all and was built.
    fn jobs(
        &self,
        programs: &[Program],
        tier: &str,
        arguments: Option<&[&str]>,
    ) -> Option<TestJob> {
        let program = programs.iter().find(|program| self.is(program))?.clone();
        Some(TestJob {
            name: format!("{} {}{tier}", self.package, self.target),
            purpose: self.purpose,
            arguments: arguments?.iter().map(ToString::to_string).collect(),
            program,
        })
    }
}
