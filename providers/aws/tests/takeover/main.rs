//! Swap of the image: upstream's AWS cloud-controller-manager, then ours, and back again, in one
//! cluster (a real kube-apiserver) with one AWS (moto's server behind the overlay that records
//! every request).

mod calls;
mod environment;
mod scenario;
mod services;
mod table;

use std::process::ExitCode;

use ccm_testkit::{
    control_plane::{Binaries, GoProgram},
    moto,
    suite::{Tier, failed},
};
use libtest_mimic::Arguments;
use tokio::runtime::Runtime;

use crate::{environment::Programs, table::Round};

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // Each case times its managers; two at once would disturb each other.
    arguments.test_threads = Some(1);
    let (tier, programs) = (Tier::chosen()?, programs());
    let trial = |(name, round): (&str, Round)| {
        let own = programs.clone();
        Tier::Nightly.case(tier, format!("takeover::{name}"), programs.as_ref().err(), move || {
            Runtime::new()?
                .block_on(scenario::tell(own?, round))
                .map_err(failed)
        })
    };
    let rounds = [
        ("plain", Round::Plain),
        ("managed_security_groups", Round::Managed),
        ("classic", Round::Classic),
    ];
    Ok(libtest_mimic::run(&arguments, rounds.into_iter().filter_map(trial).collect()).exit_code())
}

/// What the story needs, or how to get what is not there.
fn programs() -> Result<Programs, String> {
    Ok(Programs {
        upstream: GoProgram::AwsCcm.find()?,
        control_plane: Binaries::find().map_err(|missing| missing.to_string())?,
        moto: moto::find()?,
    })
}
