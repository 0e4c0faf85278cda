//! Runs test programs, a few at a time: many of them wait most of the time.

use std::collections::VecDeque;
use std::fs::File;
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::programs::Program;
use super::result::SuiteResult;

/// One program to run.
pub(super) struct TestJob {
    /// Program.
    pub(super) program: Program,
    /// Its name in reports.
    pub(super) name: String,
    /// What it is for.
    pub(super) purpose: &'static str,
    /// Its arguments.
    pub(super) arguments: Vec<String>,
}

/// A suite that takes longer hangs; full explorations beside other work take the better part of an
/// hour.
const LIMIT: Duration = Duration::from_mins(90);

/// How often it is asked whether a program has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Runs the programs in this order with these variables, and prints what each came to as soon as it
/// has ended: one line, and all its output when it failed. What it printed stays in `logs`.
pub(super) fn run(
    jobs: Vec<TestJob>,
    variables: &[(String, String)],
    logs: &Path,
) -> anyhow::Result<Vec<SuiteResult>> {
    std::fs::create_dir_all(logs).with_context(|| format!("make {}", logs.display()))?;
    // One more than there are processors, since many wait.
    let at_once = thread::available_parallelism().map_or(2, NonZero::get) + 1;
    let waiting = Mutex::new(jobs.into_iter().enumerate().collect::<VecDeque<_>>());
    let next = || {
        waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    };
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some((place, job)) = next() {
                    let outcome = one(&job, variables, logs);
                    done.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push((place, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

fn one(job: &TestJob, variables: &[(String, String)], logs: &Path) -> anyhow::Result<SuiteResult> {
    let Program { package, executable, folder, .. } = &job.program;
    let log = logs.join(format!("{}.log", job.name.replace([' ', ':', '/'], "-")));
    let file = File::create(&log).with_context(|| format!("make {}", log.display()))?;
    let mut command = Command::new(executable);
    command
        .args(&job.arguments)
        .current_dir(folder)
        .stdin(Stdio::null());
    // As cargo does.
    command
        .env("CARGO_MANIFEST_DIR", folder)
        .env("CARGO_PKG_NAME", package);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command
        .stdout(file.try_clone().context("share the log")?)
        .stderr(file);
    let started = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("run {}", executable.display()))?;
    let status = wait(&mut child, started)?;
    let output = std::fs::read(&log).with_context(|| format!("read {}", log.display()))?;
    let output = String::from_utf8_lossy(&output);
    let succeeded = status.is_some_and(|status| status.success());
    let outcome =
        SuiteResult::new(job.name.clone(), job.purpose, started.elapsed(), &output, succeeded);
    if outcome.passed {
        println!("{}", outcome.line());
    } else {
        let end = status.map_or_else(
            || format!("killed after {} s", LIMIT.as_secs()),
            |status| status.to_string(),
        );
        println!("=== {}\n{output}\n{} ({end})", job.name, outcome.line());
    }
    Ok(outcome)
}

/// The end of a program; nothing when it had to be killed.
fn wait(child: &mut Child, started: Instant) -> anyhow::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait().context("wait for a test program")? {
            return Ok(Some(status));
        }
        if started.elapsed() > LIMIT {
            child.kill().context("kill a test program that hangs")?;
            child
                .wait()
                .context("wait for a test program that was killed")?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}
