//! Every request of the provider against moto's server, through the SDK.
//!
//! All tests share one server, which is emptied before each, so they run one after the other.

mod balancers;
mod classic;
mod groups;
mod instances;
mod listeners;
mod network;
mod overlay;
mod rig;
mod targets;

use std::{process::ExitCode, sync::Arc};

use ccm_testkit::moto::{self, Moto};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::rig::Rig;

/// A list of tests, by their functions' names.
macro_rules! tests {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        vec![$($((concat!(stringify!($module), "::", stringify!($name)), boxed(async |rig| $module::$name(rig).await))),*),*]
    };
}

type Test = Box<dyn Fn(&tokio::runtime::Runtime, &Moto) -> Result<(), Failed> + Send + Sync>;

fn boxed<F>(test: F) -> Test
where
    F: AsyncFn(Rig<'_>) -> anyhow::Result<()> + Send + Sync + 'static,
{
    Box::new(move |runtime, moto| {
        runtime.block_on(async {
            moto.reset().await.map_err(failed)?;
            let rig = Rig::new(moto).await.map_err(failed)?;
            test(rig).await.map_err(failed)
        })
    })
}

fn failed(error: impl Into<anyhow::Error>) -> Failed {
    Failed::from(format!("{:#}", error.into()))
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let tests: Vec<(&str, Test)> = tests! {
        instances { look_ups, pages, states, source_checks }
        network { zones, subnets_and_vpcs, interfaces, route_tables, routes, object_tags }
        groups { life, rules }
        balancers { life, settings, addresses, attributes, resource_tags }
        targets { life, health_checks, members, attributes }
        listeners { life, tls, attributes }
        classic { life }
        overlay {
            each_attempt_is_one_request, errors_of_balancers, lost_answers, topology, names_are_taken_once,
        }
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let program = if arguments.list { None } else { moto::find_or_say_skipped("requests to moto") };
    let moto = program.map(|program| runtime.block_on(Moto::start(program)).expect("moto's server starts"));
    let runtime = Arc::new((runtime, moto));
    let trials = tests.into_iter().map(|(name, test)| {
        let shared = Arc::clone(&runtime);
        Trial::test(name, move || match &shared.1 {
            Some(moto) => test(&shared.0, moto),
            None => Ok(()),
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
