//! Faults at every point of every scenario, or at some in a smoke. What is explored, the
//! environment says ([`Environment`](ccm_testkit::explore::Environment)): every tier explores
//! everything, each more of it than the one before. That faults do what they say, and that planted
//! bugs are found, the first tier shows.

#![allow(clippy::print_stdout)]

#[path = "support/effects.rs"]
mod effects;

use std::{process::ExitCode, sync::Arc};

use ccm_explore::{
    Explorer,
    fault::{Class, PlannedFault, parse_shots},
    mutants,
    scenario::{self, Scenario},
};
use ccm_testkit::{
    explore::{Effort, Environment},
    suite::Tier,
};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::runtime::{Builder, Runtime};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let asked = Environment::read().and_then(|environment| Ok((environment, Tier::chosen()?)));
    let (environment, tier) = match asked {
        Ok(asked) => asked,
        Err(error) => {
            println!("error: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let explorer =
        Arc::new(Explorer::new(virtual_time, environment.effort, |finding| println!("{finding}")));
    let trials = match &environment.replay {
        Some(run) => replay(&explorer, run),
        None => trials(&explorer, &environment, tier),
    };
    let conclusion = libtest_mimic::run(&arguments, trials);
    println!("{}", explorer.report());
    let without = explorer.without_effect();
    // A part of all runs may well lack those that show it, and so may a smoke.
    let all = arguments.filter.is_none()
        && arguments.skip.is_empty()
        && environment.effort != Effort::Smoke;
    if !without.is_empty() && all && !conclusion.has_failed() {
        println!(
            "error: these faults never had an effect, so that nothing was shown: {}",
            without.join(", ")
        );
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

/// One run alone. Like those of all trials its name begins with what chooses explorations in every
/// package.
fn replay(explorer: &Arc<Explorer>, run: &str) -> Vec<Trial> {
    let (explorer, run) = (explorer.clone(), run.to_owned());
    let again = move || {
        let (scenario, shots) = replayed(&run)?;
        explorer.replay(scenario, &shots).map_err(Failed::from)
    };
    vec![Trial::test("explore/replay", again)]
}

/// A runtime of one thread whose time passes when nobody has anything to do.
fn virtual_time() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime needs no resources")
}

fn trials(explorer: &Arc<Explorer>, environment: &Environment, tier: Tier) -> Vec<Trial> {
    let mut trials = Vec::new();
    let seed = environment.seed;
    let pairs = environment.pairs.unwrap_or(match environment.effort {
        Effort::Smoke => 1,
        Effort::Bounded => 10,
        Effort::Full => 200,
    });
    println!("pairs of faults: CCM_EXPLORE_SEED={seed}");
    for scenario in scenario::all() {
        if pairs > 0 {
            let (of_pairs, pair) = (explorer.clone(), format!("explore/{}/pairs", scenario.name));
            trials.push(Trial::test(pair, move || {
                of_pairs.pairs(scenario, seed, pairs).map_err(Failed::from)
            }));
        }
        if environment.effort == Effort::Smoke {
            let explorer = explorer.clone();
            let run = move || explorer.smoke(scenario).map_err(Failed::from);
            trials.push(Trial::test(format!("explore/{}/smoke", scenario.name), run));
        } else {
            trials.extend(Class::ALL.map(|class| of_class(explorer, scenario, class)));
        }
    }
    trials.extend(effects::trials(explorer, tier));
    for plant in mutants::ALL {
        let explorer = explorer.clone();
        let hunt = move || {
            explorer
                .find_mutant(&plant)
                .map(|finding| println!("{}: {finding}", plant.name))
                .map_err(Failed::from)
        };
        trials.extend(Tier::Quick.case(
            tier,
            format!("explore/planted/{}", plant.name),
            None::<&str>,
            hunt,
        ));
    }
    trials
}

fn of_class(explorer: &Arc<Explorer>, scenario: &'static Scenario, class: Class) -> Trial {
    let explorer = explorer.clone();
    let run = move || match explorer.explore(scenario, class)? {
        0 => Ok(Completion::ignored_with("no fault of this class can happen in it, or is tried")),
        _ => Ok(Completion::Completed),
    };
    Trial::ignorable_test(format!("explore/{}/{}", scenario.name, class.as_str()), run)
}

/// Reads `<scenario>/<point>/<fault>`.
fn replayed(name: &str) -> Result<(&'static Scenario, Vec<PlannedFault>), String> {
    let (scenario, shots) = name
        .split_once('/')
        .ok_or(format!("{name:?} is not <scenario>/<point>/<fault>"))?;
    let known = scenario::all().into_iter().find(|s| s.name == scenario);
    Ok((known.ok_or(format!("there is no scenario {scenario:?}"))?, parse_shots(shots)?))
}
