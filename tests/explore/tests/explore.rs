//! Faults at every point of every scenario. `CCM_EXPLORE=full` explores everything, `CCM_EXPLORE_SEED` chooses the pairs.

#![allow(clippy::print_stdout)]

use std::{process::ExitCode, sync::Arc};

use ccm_explore::{
    Explorer,
    explorer::Effort,
    fault::{Class, parse_shots},
    scenario::{self, Scenario},
};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Runtime};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let effort = if std::env::var("CCM_EXPLORE").is_ok_and(|v| v == "full") { Effort::Full } else { Effort::Bounded };
    let explorer = Arc::new(Explorer::new(virtual_time, effort));
    let trials = match arguments.filter.as_deref().map(replayed) {
        Some(Ok((name, scenario, shots))) => {
            let explorer = explorer.clone();
            vec![Trial::test(name, move || explorer.replay(scenario, &shots).map_err(Failed::from))]
        }
        _ => trials(&explorer),
    };
    let conclusion = libtest_mimic::run(&arguments, trials);
    println!("{}", explorer.report());
    conclusion.exit_code()
}

/// A runtime of one thread whose time passes when nobody has anything to do.
fn virtual_time() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime needs no resources")
}

fn trials(explorer: &Arc<Explorer>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for scenario in scenario::all() {
        for class in Class::ALL {
            let explorer = explorer.clone();
            let run = move || explorer.explore(scenario, class).map_err(Failed::from);
            trials.push(Trial::test(format!("{}/{}", scenario.name, class.as_str()), run));
        }
    }
    trials
}

type Replayed = (String, &'static Scenario, Vec<ccm_explore::fault::Shot>);

/// Reads `<scenario>/<point>/<fault>`.
fn replayed(name: &str) -> Result<Replayed, String> {
    let (scenario, shots) = name.split_once('/').ok_or("no run")?;
    let scenario = scenario::all().into_iter().find(|s| s.name == scenario).ok_or("no scenario")?;
    Ok((name.to_owned(), scenario, parse_shots(shots)?))
}
