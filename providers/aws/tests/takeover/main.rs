//! Swap of the image: upstream's AWS cloud-controller-manager, then ours, and back again, in one cluster (a real
//! kube-apiserver) with one AWS (moto's server behind the overlay that records every request).

mod calls;
mod services;
mod stage;
mod story;
mod table;

use std::process::ExitCode;

use ccm_testkit::{control_plane::Binaries, moto};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::{services::Round, stage::Programs};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each case times its managers; two at once would disturb each other.
    arguments.test_threads = Some(1);
    let page = Trial::test("the_page_shows_what_is_compared", || {
        table::page().map_err(|error| Failed::from(format!("{error:#}")))
    });
    let trials = [("plain", Round::Plain), ("managed_security_groups", Round::Managed)].map(|(name, round)| {
        Trial::test(name, move || {
            let Some(programs) = programs() else { return Ok(()) };
            let runtime = tokio::runtime::Runtime::new()?;
            runtime.block_on(story::tell(programs, round)).map_err(|error| Failed::from(format!("{error:#}")))
        })
    });
    libtest_mimic::run(&arguments, trials.into_iter().chain([page]).collect()).exit_code()
}

/// What the story needs; whatever is not there says what is skipped.
fn programs() -> Option<Programs> {
    let what = "takeover from upstream's AWS manager";
    Some(Programs {
        upstream: Binaries::aws_ccm(what)?,
        control_plane: Binaries::find_or_say_skipped(what)?,
        moto: moto::find_or_say_skipped(what)?,
    })
}
