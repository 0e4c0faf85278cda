//! Swap of the image: upstream's OpenStack cloud-controller-manager, then ours, and back again, in one cluster (a real
//! kube-apiserver) on one local cloud behind a recorder of every request; and what each of them makes of the same objects.

mod calls;
mod compare;
mod measures;
mod recorder;
mod services;
mod stage;
mod story;
mod table;
mod world;

use std::{future::Future, process::ExitCode};

use ccm_testkit::control_plane::Binaries;
use libtest_mimic::{Arguments, Failed, Trial};

use crate::{services::Round, stage::Programs};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each has a cluster of its own, and mostly waits.
    arguments.test_threads.get_or_insert(3);
    let page = Trial::test("the_page_shows_what_is_compared", || {
        table::page().map_err(|error| Failed::from(format!("{error:#}")))
    });
    let swap = |name, round| Trial::test(name, move || on_stage(|programs| story::tell(programs, round)));
    let trials = vec![
        page,
        swap("managers_swap_with_floating_ips_and_every_annotation", Round::Plain),
        swap("managers_swap_with_managed_security_groups", Round::Managed),
        swap("managers_swap_with_ovn", Round::Ovn),
        Trial::test("both_managers_make_the_same", || on_stage(compare::tell)),
        Trial::test("requests_of_both_managers_are_as_listed", || on_stage(measures::tell)),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs a case, or says what is missing for it.
fn on_stage<F: Future<Output = anyhow::Result<()>>>(tell: impl FnOnce(Programs) -> F) -> Result<(), Failed> {
    let what = "takeover from upstream's OpenStack manager";
    let Some(upstream) = Binaries::openstack_ccm(what) else { return Ok(()) };
    let Some(control_plane) = Binaries::find_or_say_skipped(what) else { return Ok(()) };
    let runtime = tokio::runtime::Runtime::new()?;
    let told = runtime.block_on(tell(Programs { upstream, control_plane }));
    told.map_err(|error| Failed::from(format!("{error:#}")))
}
