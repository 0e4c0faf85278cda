//! Swap of the image: upstream's OpenStack cloud-controller-manager, then ours, and back again, in
//! one cluster (a real kube-apiserver) on one local cloud behind a recorder of every request; and
//! what each of them makes of the same objects.

mod calls;
mod cloud;
mod compare;
mod environment;
mod measures;
mod recorder;
mod scenario;
mod services;
mod table;

use std::{future::Future, process::ExitCode};

use ccm_testkit::{
    control_plane::{Binaries, GoProgram},
    suite::{Tier, failed},
};
use libtest_mimic::{Arguments, Failed};

use crate::{environment::Programs, services::Round};

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // Each has a cluster of its own, and mostly waits.
    arguments.test_threads.get_or_insert(3);
    let tier = Tier::chosen()?;
    let page = Tier::Quick.case(tier, "the_page_shows_what_is_compared", None::<String>, || {
        table::page().map_err(failed)
    });
    let programs = programs();
    let nightly = |name: &str, tell: fn(Programs) -> Result<(), Failed>| {
        let programs = programs.clone();
        let missing = programs.as_ref().err().cloned();
        Tier::Nightly.case(tier, name, missing, move || tell(programs.map_err(Failed::from)?))
    };
    let trials = [
        page,
        nightly("managers_swap_with_floating_ips_and_every_annotation", |programs| {
            on_stage(scenario::tell(programs, Round::Plain))
        }),
        nightly("managers_swap_with_managed_security_groups", |programs| {
            on_stage(scenario::tell(programs, Round::Managed))
        }),
        nightly("managers_swap_with_ovn", |programs| {
            on_stage(scenario::tell(programs, Round::Ovn))
        }),
        nightly("both_managers_make_the_same", |programs| on_stage(compare::tell(programs))),
        nightly("requests_of_both_managers_are_as_listed", |programs| {
            on_stage(measures::tell(programs))
        }),
    ];
    Ok(libtest_mimic::run(&arguments, trials.into_iter().flatten().collect()).exit_code())
}

/// Finds what all cases but one need, or says what is missing.
fn programs() -> Result<Programs, String> {
    let control_plane = Binaries::find().map_err(|missing| missing.to_string())?;
    Ok(Programs { upstream: GoProgram::OpenstackCcm.find()?, control_plane })
}

fn on_stage(tell: impl Future<Output = anyhow::Result<()>>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(tell).map_err(failed)
}
