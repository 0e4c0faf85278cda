//! The conformance kit on the local cloud, over sockets and by the client that the provider has.
//!
//! Each suite begins with clouds of its own, one after the other. Troubles are tried at every seventh call; at every one in
//! process (`conformance_tests`).

#![expect(clippy::expect_used, reason = "a test whose surroundings cannot be made fails")]

mod server;
mod skipped;
mod stage;

use std::{process::ExitCode, sync::Arc};

use ccm_testkit::conformance::{check_instances, check_load_balancers, check_routes};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Handle, Runtime};

use self::{
    server::Remote,
    stage::{OURS, Stage},
};

/// Runs a suite in paused time.
fn run(suite: &str, real: &Handle) -> Result<(), Failed> {
    let paused = Builder::new_current_thread().enable_all().start_paused(true).max_blocking_threads(1).build();
    let paused = paused.map_err(|error| Failed::from(error.to_string()))?;
    paused.block_on(async {
        let remote = Arc::new(Remote::new(real.clone()));
        let stage = Stage::new(remote.clone(), |_| {}).await.map_err(|error| format!("{error:#}"))?;
        let provider = {
            let stage = stage.clone();
            move || {
                let stage = stage.clone();
                async move { stage.provider(OURS).await }
            }
        };
        let report = match suite {
            "instances" => check_instances(provider, &stage).await,
            "routes" => check_routes(provider, &stage).await,
            _ => check_load_balancers(provider, &stage).await,
        };
        remote.stop().await.map_err(|error| format!("{error:#}"))?;
        skipped::judge(suite, &report).map_err(Failed::from)
    })
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let runtime = Runtime::new().expect("a runtime starts");
    let trials = ["instances", "routes", "load balancers"].map(|suite| {
        let real = runtime.handle().clone();
        Trial::test(suite, move || run(suite, &real))
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}
