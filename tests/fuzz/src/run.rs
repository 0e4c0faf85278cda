//! Runs targets: over the corpus, and over inputs made from it by chance.

use std::{
    cell::RefCell,
    fmt::Write as _,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    sync::Once,
    time::{Duration, Instant},
};

use ccm_core::error::panic_text;
use ccm_testkit::suite::Tier;
use rand::{SeedableRng as _, rngs::StdRng};

use crate::{
    Target,
    mutate::{mutate, shrink},
};

/// Longest that one input may take. Those that are known take less than a hundredth of it.
const SLOW: Duration = Duration::from_secs(5);

/// Seconds for each target at night.
const NIGHTLY: u64 = 20;

/// How long mutated inputs are tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Seed of all chance.
    pub seed: u64,
    /// Inputs for each target at most.
    pub runs: u64,
    /// Time for each target at most.
    pub time: Duration,
}

impl Effort {
    /// Reads the environment: `FUZZ_SEED`, `FUZZ_RUNS` and `FUZZ_SECONDS`. By default 4,000 inputs
    /// and at most three seconds for a target, always from the same seed, since the tests of a
    /// change should fail because of that change; with `FUZZ_SECONDS` as many inputs as it gives
    /// time for, from a seed by chance. In the tier `nightly` it is as with `FUZZ_SECONDS=20`.
    ///
    /// # Errors
    /// One of them is no number.
    pub fn of_environment(tier: Tier) -> Result<Self, String> {
        Self::of(tier, |name| std::env::var(name).ok())
    }

    fn of(tier: Tier, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let read = |name: &str| match variable(name) {
            Some(text) => text
                .parse::<u64>()
                .map(Some)
                .map_err(|_| format!("{name}={text} is no number")),
            None => Ok(None),
        };
        let (seed, runs, seconds) = (read("FUZZ_SEED")?, read("FUZZ_RUNS")?, read("FUZZ_SECONDS")?);
        let seconds = seconds.or_else(|| (tier == Tier::Nightly).then_some(NIGHTLY));
        let bounded = if seconds.is_some() { u64::MAX } else { 4000 };
        let time = if runs.is_some() {
            u64::from(u32::MAX)
        } else {
            3
        };
        Ok(Self {
            seed: seed.unwrap_or_else(|| if seconds.is_some() { rand::random() } else { 1 }),
            runs: runs.unwrap_or(bounded),
            time: Duration::from_secs(seconds.unwrap_or(time)),
        })
    }
}

/// Returns the folder of a target's inputs.
pub fn corpus_folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name)
}

/// Reads a target's inputs, with their names, in order.
///
/// # Errors
/// There is none, or one cannot be read.
pub fn corpus(target: &Target) -> Result<Vec<(String, Vec<u8>)>, String> {
    let folder = corpus_folder(target);
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut inputs = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(told)? {
        let path = entry.map_err(told)?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        inputs.push((name, std::fs::read(&path).map_err(told)?));
    }
    inputs.sort();
    if inputs.is_empty() {
        Err(format!("{}: there are no inputs", folder.display()))
    } else {
        Ok(inputs)
    }
}

/// Runs a target over its corpus.
///
/// # Errors
/// Something does not hold of an input.
pub fn replay(target: &Target) -> Result<(), String> {
    for (name, data) in corpus(target)? {
        once(target, &data).map_err(|why| format!("corpus/{}/{name}: {why}", target.name))?;
    }
    Ok(())
}

/// Runs a target over inputs made by chance from its corpus. Returns how many there were.
///
/// # Errors
/// Something does not hold of one: what, the input, cut down, and where it was put.
pub fn explore(target: &Target, effort: Effort) -> Result<u64, String> {
    let seeds: Vec<Vec<u8>> = corpus(target)?.into_iter().map(|(_, data)| data).collect();
    let (mut rng, started) = (StdRng::seed_from_u64(effort.seed), Instant::now());
    let mut runs = 0;
    while runs < effort.runs && started.elapsed() < effort.time {
        let data = mutate(&mut rng, &seeds, target.words);
        runs += 1;
        if let Err(why) = once(target, &data) {
            let small = shrink(&data, |data| once(target, data).is_err());
            let why = once(target, &small).err().unwrap_or(why);
            return Err(failure_message(target, effort.seed, runs, &small, &why));
        }
    }
    Ok(runs)
}

fn failure_message(target: &Target, seed: u64, runs: u64, data: &[u8], why: &str) -> String {
    let name = target.name;
    let mut message = format!("{name}: {why}\ninput: b\"{}\"\n", data.escape_ascii());
    let file = std::env::temp_dir().join(format!("fuzz-{name}-{seed}-{runs}"));
    let _ = match std::fs::write(&file, data) {
        Ok(()) => writeln!(
            message,
            "It is in {}: mend the code, and keep it in corpus/{name}/.",
            file.display()
        ),
        Err(error) => writeln!(message, "It could not be written to {}: {error}", file.display()),
    };
    let _ = write!(
        message,
        "again: FUZZ_SEED={seed} FUZZ_RUNS={runs} cargo test -p ccm-fuzz --test corpus -- mutated/{name}"
    );
    message
}

thread_local! {
    /// Where this thread last panicked, and why.
    static PANICKED: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a target over one input.
fn once(target: &Target, data: &[u8]) -> Result<(), String> {
    // Thousands of panics of a search for a smaller input are nobody's news.
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        panic::set_hook(Box::new(|info| {
            let at = info.location().map(ToString::to_string).unwrap_or_default();
            PANICKED
                .with_borrow_mut(|text| *text = format!("{at}: {}", panic_text(info.payload())));
        }));
    });
    let started = Instant::now();
    panic::catch_unwind(AssertUnwindSafe(|| (target.run)(data)))
        .map_err(|_| PANICKED.with_borrow(String::clone))?;
    match started.elapsed() {
        taken if taken > SLOW => Err(format!("took {taken:?}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails where the magic word is.
    fn magic(data: &[u8]) {
        assert!(!data.windows(4).any(|part| part == b"Zone"), "the word is there");
    }

    #[test]
    fn at_night_there_are_other_inputs_and_more_of_them() {
        let of = |tier, seconds: Option<&str>| {
            let variable = |name: &str| {
                seconds
                    .filter(|_| name == "FUZZ_SECONDS")
                    .map(str::to_owned)
            };
            let effort = Effort::of(tier, variable).unwrap();
            (effort.seed == 1, effort.runs, effort.time.as_secs())
        };
        assert_eq!(of(Tier::Quick, None), (true, 4000, 3));
        assert_eq!(of(Tier::Full, None), (true, 4000, 3));
        assert_eq!(of(Tier::Nightly, None), (false, u64::MAX, NIGHTLY));
        assert_eq!(of(Tier::Nightly, Some("7")), (false, u64::MAX, 7));
        assert_eq!(of(Tier::Quick, Some("7")), (false, u64::MAX, 7));
        let wrong =
            Effort::of(Tier::Quick, |name| (name == "FUZZ_RUNS").then(|| "many".to_owned()));
        assert_eq!(wrong.unwrap_err(), "FUZZ_RUNS=many is no number");
    }

    // The loop has to find a planted mistake, cut it down, and say how to see it again.
    #[test]
    fn a_planted_mistake_is_found_and_told() {
        let target = Target { name: "aws_cloud_conf", run: magic, words: &["Zone"] };
        let effort = Effort { seed: 1, runs: 5000, time: Duration::from_secs(60) };
        let told = explore(&target, effort).unwrap_err();
        assert!(told.contains("input: b\"Zone\"") && told.contains("the word is there"), "{told}");
        assert!(told.contains("FUZZ_SEED=1 FUZZ_RUNS="), "{told}");
        assert!(
            replay(&target)
                .unwrap_err()
                .contains("corpus/aws_cloud_conf/")
        );
    }
}
