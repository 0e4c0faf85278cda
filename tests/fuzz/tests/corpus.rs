//! Every target over its corpus, and over inputs made from it by chance: `FUZZ_SEED`, `FUZZ_RUNS`
//! and `FUZZ_SECONDS` say which and how many. At night there are others, and more of them.

#![allow(clippy::print_stdout)]

use std::{path::Path, process::ExitCode, sync::Arc};

use ccm_fuzz::{
    TARGETS,
    run::{Effort, explore, replay},
};
use ccm_testkit::suite::Tier;
use libtest_mimic::{Arguments, Failed, Trial};
use parking_lot::Mutex;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let asked = Tier::chosen().map_err(|error| error.to_string());
    let asked = asked.and_then(|tier| Ok((tier, Effort::of_environment(tier)?)));
    let (tier, effort) = match asked {
        Ok(asked) => asked,
        Err(why) => {
            println!("{why}");
            return ExitCode::FAILURE;
        }
    };
    println!("mutated inputs: FUZZ_SEED={}", effort.seed);
    let counts = Arc::new(Mutex::new(Vec::new()));
    // The other tiers have the same inputs as the first.
    let of_mutated = if tier == Tier::Nightly {
        Tier::Nightly
    } else {
        Tier::Quick
    };
    let quick = |name: &str, check| Tier::Quick.case(tier, name, None::<&str>, check);
    let mut trials: Vec<Trial> =
        quick("each_target_has_its_file_for_cargo_fuzz", files_for_cargo_fuzz)
            .into_iter()
            .collect();
    for target in TARGETS {
        let corpus = || replay(target).map_err(Failed::from);
        trials.extend(Tier::Quick.case(
            tier,
            format!("corpus/{}", target.name),
            None::<&str>,
            corpus,
        ));
        let counts = counts.clone();
        let mutated = move || {
            let runs = explore(target, effort).map_err(Failed::from)?;
            counts.lock().push(format!("{} {runs}", target.name));
            Ok(())
        };
        trials.extend(of_mutated.case(
            tier,
            format!("mutated/{}", target.name),
            None::<&str>,
            mutated,
        ));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    println!("mutated inputs: {}", counts.lock().join(", "));
    conclusion.exit_code()
}

fn files_for_cargo_fuzz() -> Result<(), Failed> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("libfuzzer");
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml"))?;
    for target in TARGETS {
        let name = target.name;
        let file = std::fs::read_to_string(folder.join(format!("fuzz_targets/{name}.rs")))
            .map_err(|error| format!("fuzz_targets/{name}.rs: {error}"))?;
        if !file.contains(&format!("ccm_fuzz::targets::{name}::run(data)")) {
            return Err(format!("fuzz_targets/{name}.rs calls another target").into());
        }
        if !manifest.contains(&format!("name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"\n")) {
            return Err(format!("libfuzzer/Cargo.toml has no [[bin]] {name}").into());
        }
    }
    let files = std::fs::read_dir(folder.join("fuzz_targets"))?.count();
    if files == TARGETS.len() {
        Ok(())
    } else {
        Err(format!("{files} files for {} targets", TARGETS.len()).into())
    }
}
