//! The conformance kit on moto, over the network and by the SDK.
//!
//! Suites begin with an empty account each and run one after the other. Troubles are tried at every
//! seventh call; at every one on the in-memory AWS (`conformance_tests`).

mod adapter;
pub(crate) mod server;

use std::{io, sync::Arc};

use ccm_testkit::conformance::{Report, SuiteProgress, runner::Suite};
use tokio::runtime::{Builder, Runtime};

use self::{
    adapter::{AwsAdapter, account::OURS},
    server::Remote,
};

/// All suites.
pub(crate) const SUITES: [&str; 3] = ["instances", "routes", "load balancers"];

/// Rules of a suite that cannot be kept or not be checked, and why. Those about what moto does
/// otherwise are kept on the in-memory AWS: `rules_about_instances_are_kept`,
/// `rules_about_routes_are_kept`.
fn excuses(suite: &str) -> &'static [(&'static str, &'static str)] {
    match suite {
        "instances" => &[
            (
                "not-found-if-deleted",
                "moto describes terminated instances for ever, AWS for an hour",
            ),
            ("retry-after", AWS_NAMES_NO_PAUSE),
        ],
        "routes" => &[
            ("blackhole-is-told", "moto shows a route to a terminated instance as active"),
            ("answers-in-order", "moto makes a route to a terminated instance, which AWS refuses"),
            (
                "failure-spoils-nothing",
                "moto makes a route to a terminated instance, which AWS refuses",
            ),
            ("retry-after", AWS_NAMES_NO_PAUSE),
            ("slow-change", DONE_WHEN_ANSWERED),
            ("late-failure", DONE_WHEN_ANSWERED),
        ],
        _ => &[
            ("retry-after", AWS_NAMES_NO_PAUSE),
            ("slow-change", DONE_WHEN_ANSWERED),
            ("late-failure", DONE_WHEN_ANSWERED),
        ],
    }
}

/// Only new load balancers are pending, which another rule covers.
const DONE_WHEN_ANSWERED: &str = "AWS answers a change when it is accepted for good";

/// The provider's own pauses are covered by
/// `what_is_throttled_is_sent_again_and_slows_its_kind_down`.
const AWS_NAMES_NO_PAUSE: &str =
    "AWS does not say when to come again, so there is nothing to hand on";

/// Time is paused, and one thread waits for the server, whose time is real.
fn paused() -> io::Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .max_blocking_threads(1)
        .build()
}

/// A suite of [`SUITES`].
pub(crate) fn suite(name: &'static str, remote: Remote) -> Suite {
    Suite::new(name, paused, move |watch| check(name, remote, watch)).excused(excuses(name))
}

async fn check(suite: &str, remote: Remote, watch: SuiteProgress) -> anyhow::Result<Report> {
    let stage = AwsAdapter::new(Arc::new(remote), "").await?;
    let provider = {
        let stage = stage.clone();
        move || {
            let stage = stage.clone();
            async move { stage.provider(OURS).await }
        }
    };
    Ok(match suite {
        "instances" => watch.instances(provider, &stage).await,
        "routes" => watch.routes(provider, &stage).await,
        _ => watch.load_balancers(provider, &stage).await,
    })
}
