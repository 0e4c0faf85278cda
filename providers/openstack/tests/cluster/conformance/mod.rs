//! The conformance kit on the local cloud, over sockets and by the client that the provider has.
//!
//! Each suite begins with clouds of its own, one after the other. Troubles are tried at every
//! seventh call; at every one in process (`conformance_tests`).

pub(crate) mod adapter;
mod server;
mod skipped;

use std::{io, sync::Arc};

use ccm_testkit::conformance::{Report, SuiteProgress, runner::Suite};
use tokio::runtime::{Builder, Handle, Runtime};

use self::{
    adapter::{OURS, OpenStackAdapter},
    server::Remote,
};

/// All suites, the longest first.
pub(crate) const SUITES: [&str; 3] = ["load balancers", "routes", "instances"];

/// Time is paused, and one thread waits for the server, whose time is real.
fn paused() -> io::Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .max_blocking_threads(1)
        .build()
}

/// Runs a suite on a server of its own.
async fn check(suite: &str, real: Handle, watch: SuiteProgress) -> anyhow::Result<Report> {
    let remote = Arc::new(Remote::new(real));
    let stage = OpenStackAdapter::new(remote.clone(), |_| {}).await?;
    let provider = {
        let stage = stage.clone();
        move || {
            let stage = stage.clone();
            async move { stage.provider(OURS).await }
        }
    };
    let report = match suite {
        "instances" => watch.instances(provider, &stage).await,
        "routes" => watch.routes(provider, &stage).await,
        _ => watch.load_balancers(provider, &stage).await,
    };
    remote.stop().await?;
    Ok(report)
}

/// A suite of [`SUITES`], whose server is in a runtime with real time.
pub(crate) fn suite(name: &'static str, real: Handle) -> Suite {
    Suite::new(name, paused, move |watch| check(name, real, watch)).excused(skipped::excuses(name))
}
