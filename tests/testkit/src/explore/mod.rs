//! Fault explorer: runs a scenario repeatedly, each time with another fault at one of its calls, and
//! compares the final state with that of a run without faults.
//!
//! It injects every kind of fault at every call ([`Effort::Full`]), some kinds at each call and all
//! in turn ([`Effort::Bounded`]), or a few at some calls ([`Effort::Smoke`]), and then random pairs
//! of faults. A scenario runs a provider until its work is done, and implements each kind of fault
//! for its cloud's protocol. A [`ScenarioRun`] counts the calls and simulates the death of a
//! process.
//!
//! ```no_run
//! # use ccm_testkit::explore::{Explorer, Scenario, ScenarioRun};
//! # struct Mine;
//! # #[async_trait::async_trait]
//! # impl Scenario for Mine {
//! #     fn name(&self) -> String { "mine".to_owned() }
//! #     async fn run(&self, _: &std::sync::Arc<ScenarioRun>) -> Result<String, String> { Ok(String::new()) }
//! # }
//! # async fn example(scenario: Mine) -> anyhow::Result<()> {
//! let report = Explorer::of_environment()?.explore(&scenario).await;
//! assert!(report.passed(), "{report}");
//! # Ok(())
//! # }
//! ```

mod environment;
mod hunt;
mod report;
mod scenario_run;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, io::Write as _, str::FromStr, sync::Arc};

use async_trait::async_trait;
use rand::{RngExt, SeedableRng, rngs::StdRng};

pub use self::{
    environment::{Effort, Environment},
    hunt::hunt,
    report::{Failure, Report},
    scenario_run::{Call, ScenarioRun},
};

/// Kind of a fault at one call. Kinds that the framework's explorer also has share its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// The process dies before the call is sent.
    DiesBefore,
    /// The process dies after the call took effect, before it receives the answer.
    DiesAfter,
    /// The call takes effect, and the connection breaks before the answer arrives.
    AnswerLost,
    /// The call has no effect, and no answer arrives until the caller's timeout.
    TimesOut,
    /// The call takes effect, and its answer is truncated in the body.
    CutShort,
    /// Something other than the cloud answers with success, such as a proxy's page. The call has no
    /// effect.
    Garbage,
    /// The answer is delayed.
    Delayed,
    /// The credentials are rejected once (401).
    Unauthorized,
    /// Something other than the responsible service answers "not found" (404).
    StrangeAbsence,
    /// The object is busy (409).
    Busy,
    /// The call is throttled with a retry delay of some seconds (429).
    Throttled,
    /// The call is throttled, in the form that some services use (413).
    OverLimit,
    /// The call is rejected because of an error of the cloud (500).
    Broken,
    /// The call is rejected because the cloud is down (503).
    Unavailable,
    /// A read shows the state before the last change.
    Stale,
    /// This read and all others show that state for some seconds.
    Lagging,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [Self; 16] = [
        Self::DiesBefore,
        Self::DiesAfter,
        Self::AnswerLost,
        Self::TimesOut,
        Self::CutShort,
        Self::Garbage,
        Self::Delayed,
        Self::Unauthorized,
        Self::StrangeAbsence,
        Self::Busy,
        Self::Throttled,
        Self::OverLimit,
        Self::Broken,
        Self::Unavailable,
        Self::Stale,
        Self::Lagging,
    ];

    /// Returns the name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DiesBefore => "crash-before",
            Self::DiesAfter => "crash-after",
            Self::AnswerLost => "lost",
            Self::TimesOut => "hang",
            Self::CutShort => "cut-short",
            Self::Garbage => "garbage",
            Self::Delayed => "delay",
            Self::Unauthorized => "status-401",
            Self::StrangeAbsence => "status-404",
            Self::Busy => "status-409",
            Self::Throttled => "status-429",
            Self::OverLimit => "status-413",
            Self::Broken => "status-500",
            Self::Unavailable => "status-503",
            Self::Stale => "stale",
            Self::Lagging => "lag",
        }
    }

    /// Returns true for stale reads, which occur only in clouds with eventual consistency.
    pub fn is_past(self) -> bool {
        matches!(self, Self::Stale | Self::Lagging)
    }
}

/// Faults by the number of the affected call, from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Faults(pub BTreeMap<usize, FaultKind>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self
            .0
            .iter()
            .map(|(call, kind)| format!("{call}/{}", kind.as_str()))
            .collect();
        f.write_str(&all.join("/"))
    }
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
        let each = parts.chunks(2).map(|pair| {
            let [call, name] = pair else {
                return Err(format!("{text:?} is not <call>/<fault>"));
            };
            let kind = FaultKind::ALL
                .into_iter()
                .find(|kind| kind.as_str() == *name);
            let kind = kind.ok_or_else(|| format!("{name:?} is no kind of fault"))?;
            Ok((call.parse().map_err(|error| format!("{call:?}: {error}"))?, kind))
        });
        each.collect::<Result<_, String>>().map(Self)
    }
}

/// A scenario to explore.
#[async_trait]
pub trait Scenario: Send + Sync {
    /// Returns the name, without slash, unique in the program.
    fn name(&self) -> String;

    /// Returns true if a fault of this kind can happen to a call. By default each kind can happen
    /// to any call, except [stale reads](FaultKind::is_past).
    fn applies(&self, kind: FaultKind, call: &Call) -> bool {
        let _ = call;
        !kind.is_past()
    }

    /// Runs the scenario once in a new environment, to its end, whatever faults `run` has.
    /// Returns a description of the final state that is the same for every correct run: without
    /// IDs, times and order.
    ///
    /// # Errors
    /// Describes the problem: the scenario did not end, or an intermediate state was not allowed.
    async fn run(&self, run: &Arc<ScenarioRun>) -> Result<String, String>;
}

/// Explores the faults of scenarios.
#[derive(Clone, Debug)]
pub struct Explorer {
    /// Extent of the exploration.
    pub effort: Effort,
    /// Seed of the pairs.
    pub seed: u64,
    /// Number of pairs of faults.
    pub pairs: usize,
    /// If set, only this run: the name of a scenario, and faults.
    pub replay: Option<(String, Faults)>,
    /// Command that repeats a run, after the variable that selects it: the rest of a shell line. By
    /// default it runs all explorations of the package.
    pub command: String,
}

/// Number of kinds of faults at each call of a bounded exploration, besides [`ALWAYS`].
const IN_TURN: usize = 2;
/// Fault that is tried at each call in any case: the call took effect, and no process knows.
const ALWAYS: FaultKind = FaultKind::DiesAfter;
/// Step between the calls of a smoke test.
const APART: usize = 3;

impl Explorer {
    /// Reads the [`Environment`]. By default 10 pairs are tried, 50 when everything is explored,
    /// and one in a smoke.
    ///
    /// # Errors
    /// One of the variables cannot be parsed.
    pub fn of_environment() -> anyhow::Result<Self> {
        Self::of(&Environment::read()?)
    }

    /// Creates an explorer from the environment.
    ///
    /// # Errors
    /// The run to repeat is not in the form `<scenario>/<call>/<fault>`.
    pub fn of(environment: &Environment) -> anyhow::Result<Self> {
        let Environment { effort, seed, pairs, ref replay } = *environment;
        let replay = replay.as_deref().map(|text| match text.split_once('/') {
            Some((name, faults)) => {
                Ok((name.to_owned(), faults.parse().map_err(anyhow::Error::msg)?))
            }
            None => {
                Err(anyhow::anyhow!("CCM_EXPLORE_REPLAY={text:?} is not <scenario>/<call>/<fault>"))
            }
        });
        let pairs = pairs.unwrap_or(match effort {
            Effort::Smoke => 1,
            Effort::Bounded => 10,
            Effort::Full => 50,
        });
        // Cargo sets this variable for the programs that it runs.
        let package = std::env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "<package>".to_owned());
        let command = format!("cargo test -p {package} explore");
        Ok(Self { effort, seed, pairs, replay: replay.transpose()?, command })
    }

    /// Reads the [`Environment`], with defaults for the seed and the number of pairs. Except in a
    /// smoke test, it tries every kind that a scenario allows. Use it for scenarios that allow only
    /// a few.
    ///
    /// # Errors
    /// Same as [`of_environment`](Self::of_environment).
    pub fn bounded(seed: u64, pairs: usize) -> anyhow::Result<Self> {
        let given = |name: &str| std::env::var_os(name).is_some();
        let configured = Self::of_environment()?;
        let (effort, pairs) = match configured.effort {
            Effort::Smoke => (Effort::Smoke, configured.pairs.min(pairs)),
            Effort::Bounded | Effort::Full => (Effort::Full, pairs),
        };
        let seed = if given("CCM_EXPLORE_SEED") {
            configured.seed
        } else {
            seed
        };
        let pairs = if given("CCM_EXPLORE_PAIRS") {
            configured.pairs
        } else {
            pairs
        };
        Ok(Self { effort, seed, pairs, ..configured })
    }

    /// Explores scenarios one after another, and prints for each the number of faults.
    ///
    /// # Panics
    /// Panics if a run went wrong, if the runs prove nothing, or if there is no scenario.
    pub async fn check<S: Scenario>(&self, scenarios: impl IntoIterator<Item = S>) {
        let (mut wrong, mut explored) = (Vec::new(), 0);
        for scenario in scenarios {
            explored += 1;
            let report = self.explore(&scenario).await;
            // Not with `eprintln!`, whose output the harness shows only for failed tests.
            drop(writeln!(std::io::stderr(), "{report}"));
            if !report.passed() {
                wrong.push(report.to_string());
            }
        }
        assert!(explored > 0, "there is no scenario to explore");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Explores a scenario. A panic in a run ends the exploration and shows the faults that led to
    /// it.
    pub async fn explore(&self, scenario: &dyn Scenario) -> Report {
        let name = scenario.name();
        let mut report = Report::new(&name, self.seed, &self.command);
        if self.replay.as_ref().is_some_and(|(only, _)| *only != name) {
            report.left_out = true;
            return report;
        }
        let (expected, calls) = run_once(scenario, Faults::default()).await;
        let expected = match expected {
            Ok(expected) => expected,
            Err(seen) => {
                report.fail(Faults::default(), &seen);
                return report;
            }
        };
        report.points = calls.len();
        let chosen = match &self.replay {
            Some((_, faults)) => vec![faults.clone()],
            None => {
                [self.single_faults(scenario, &calls), self.random_pairs(scenario, &calls)].concat()
            }
        };
        for faults in chosen {
            match faults.0.len() {
                1 => report.singles += 1,
                _ => report.more += 1,
            }
            let (end, calls) = run_once(scenario, faults.clone()).await;
            report.missed += usize::from(faults.0.keys().any(|call| *call > calls.len()));
            match end {
                Ok(end) if end == expected => {}
                Ok(end) => report.fail(faults, &report::difference(&expected, &end)),
                Err(seen) => report.fail(faults, &seen),
            }
        }
        report
    }

    /// Returns the single faults by effort: every kind at every call, some kinds at every call, or
    /// some at every [`APART`]-th call.
    fn single_faults(&self, scenario: &dyn Scenario, calls: &[Call]) -> Vec<Faults> {
        let possible = |call| {
            FaultKind::ALL
                .into_iter()
                .filter(|kind| scenario.applies(*kind, call))
                .collect::<Vec<_>>()
        };
        let points = (1..)
            .zip(calls.iter().map(possible))
            .filter(|(_, kinds)| !kinds.is_empty());
        let chosen: Vec<(usize, Vec<FaultKind>)> = match self.effort {
            Effort::Full => points.collect(),
            Effort::Bounded => points
                .map(|(at, kinds)| (at, kinds_in_turn(&kinds, at * IN_TURN)))
                .collect(),
            Effort::Smoke => {
                // Scenarios begin alike, and few have many calls, so each begins with another kind.
                let first: usize = scenario.name().bytes().map(usize::from).sum();
                let points = points.step_by(APART).zip(first..);
                points
                    .map(|((at, kinds), turn)| (at, one_kind_in_turn(kinds, turn)))
                    .collect()
            }
        };
        let one = |at, kind| Faults([(at, kind)].into());
        chosen
            .into_iter()
            .flat_map(|(at, kinds)| kinds.into_iter().map(move |kind| one(at, kind)))
            .collect()
    }

    fn random_pairs(&self, scenario: &dyn Scenario, calls: &[Call]) -> Vec<Faults> {
        let possible = |kind: &FaultKind| calls.iter().any(|call| scenario.applies(*kind, call));
        let kinds: Vec<FaultKind> = FaultKind::ALL.into_iter().filter(possible).collect();
        if kinds.is_empty() {
            return Vec::new();
        }
        let calls = calls.len();
        let mut chance = StdRng::seed_from_u64(self.seed);
        // The first fault adds calls to the run, and the second one may hit these.
        let mut pair = || {
            let first = chance.random_range(1..=calls.max(1));
            let second = first + chance.random_range(1..=calls.max(1));
            let mut kind = || kinds[chance.random_range(0..kinds.len())];
            Faults([(first, kind()), (second, kind())].into())
        };
        (0..self.pairs).map(|_| pair()).collect()
    }
}

/// Returns the kinds for a call of a bounded exploration: [`ALWAYS`], and [`IN_TURN`] others from
/// `first` on, in a cycle.
fn kinds_in_turn(possible: &[FaultKind], first: usize) -> Vec<FaultKind> {
    let all = possible.len();
    let turn = |place: usize| (place + all - first % all) % all < IN_TURN;
    let chosen = possible
        .iter()
        .enumerate()
        .filter(|(place, kind)| **kind == ALWAYS || turn(*place));
    chosen.map(|(_, kind)| *kind).collect()
}

/// Returns the kinds for a call of a smoke test: [`ALWAYS`], and one other.
fn one_kind_in_turn(possible: Vec<FaultKind>, turn: usize) -> Vec<FaultKind> {
    let (always, others): (Vec<_>, Vec<_>) = possible.into_iter().partition(|kind| *kind == ALWAYS);
    let other = others.get(turn % others.len().max(1));
    always.into_iter().chain(other.copied()).collect()
}

/// Runs a scenario and returns its end and its calls.
async fn run_once(scenario: &dyn Scenario, faults: Faults) -> (Result<String, String>, Vec<Call>) {
    let run = Arc::new(ScenarioRun::new(faults));
    let end = scenario.run(&run).await;
    (end, run.calls())
}
