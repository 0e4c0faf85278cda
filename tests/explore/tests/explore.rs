//! Faults at every point of every scenario. `CCM_EXPLORE=full` explores everything, `CCM_EXPLORE_SEED` chooses the pairs.

#![allow(clippy::print_stdout)]

#[path = "support/effects.rs"]
mod effects;

use std::{process::ExitCode, sync::Arc};

use ccm_explore::{
    Explorer,
    explorer::Effort,
    fault::{Class, parse_shots},
    planted,
    scenario::{self, Scenario},
};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Runtime};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let full = std::env::var("CCM_EXPLORE").is_ok_and(|value| value == "full");
    let effort = if full { Effort::Full } else { Effort::Bounded };
    let explorer = Arc::new(Explorer::new(virtual_time, effort, |finding| println!("{finding}")));
    let trials = match arguments.filter.as_deref().map(replayed) {
        Some(Ok((name, scenario, shots))) => {
            let explorer = explorer.clone();
            vec![Trial::test(name, move || explorer.replay(scenario, &shots).map_err(Failed::from))]
        }
        _ => trials(&explorer, full),
    };
    let conclusion = libtest_mimic::run(&arguments, trials);
    println!("{}", explorer.report());
    conclusion.exit_code()
}

/// A runtime of one thread whose time passes when nobody has anything to do.
fn virtual_time() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime needs no resources")
}

fn trials(explorer: &Arc<Explorer>, full: bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    let given = std::env::var("CCM_EXPLORE_SEED").ok().and_then(|seed| seed.parse().ok());
    // The same pairs in each run of the bounded exploration, which others wait for, and others each time in the full one.
    let seed = given.unwrap_or_else(|| if full { rand::random() } else { 1 });
    let pairs = if full { 200 } else { 10 };
    println!("pairs of faults: CCM_EXPLORE_SEED={seed}");
    for scenario in scenario::all() {
        let (of_pairs, pair) = (explorer.clone(), format!("{}/pairs", scenario.name));
        trials.push(Trial::test(pair, move || of_pairs.pairs(scenario, seed, pairs).map_err(Failed::from)));
        for class in Class::ALL {
            let explorer = explorer.clone();
            let run = move || explorer.explore(scenario, class).map_err(Failed::from);
            trials.push(Trial::test(format!("{}/{}", scenario.name, class.as_str()), run));
        }
    }
    trials.extend(effects::trials(explorer));
    for plant in planted::ALL {
        let explorer = explorer.clone();
        let hunt =
            move || explorer.hunt(&plant).map(|finding| println!("{}: {finding}", plant.name)).map_err(Failed::from);
        trials.push(Trial::test(format!("planted/{}", plant.name), hunt));
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
