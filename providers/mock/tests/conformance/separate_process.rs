//! Tests that need a process of their own, because they end it or hear of everything that happens
//! in it.

use std::{env, process::Output, time::Duration};

use tokio::process::Command;

/// Says that this is a process which was started for one test.
const ALONE: &str = "CCM_CONFORMANCE_ALONE";
/// More than any of them takes.
const DEADLINE: Duration = Duration::from_secs(120);

/// Where such a test runs.
pub(crate) enum SeparateProcess {
    /// In this process: now it may do what it is about.
    Here,
    /// In another, which ended so.
    Ended(Output),
}

/// Runs the test of this name, which calls this, in a process of its own.
pub(crate) async fn run(test: &str) -> SeparateProcess {
    if env::var_os(ALONE).is_some() {
        return SeparateProcess::Here;
    }
    let mut process = Command::new(env::current_exe().unwrap());
    process
        .args(["--exact", "--nocapture", test])
        .env(ALONE, "yes")
        .kill_on_drop(true);
    let ended = tokio::time::timeout(DEADLINE, process.output()).await;
    SeparateProcess::Ended(
        ended
            .unwrap_or_else(|_| panic!("{test} does not end"))
            .unwrap(),
    )
}
