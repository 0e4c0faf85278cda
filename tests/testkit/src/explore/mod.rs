//! Explorer of faults: runs a scenario again and again, each time with another fault at one of its
//! calls, and compares the end with that of the run without faults.
//!
//! Every kind of fault is tried at every call ([`Effort::Full`]), or some at each and all in turn
//! ([`Effort::Bounded`]), or at some calls only ([`Effort::Smoke`]), then pairs of faults by
//! chance. A scenario is whatever a provider does until it is done; how a kind of fault looks on
//! its cloud's wire is the scenario's own. What both need in between, the count of calls and the
//! death of a process, is a [`ScenarioRun`].
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

/// A kind of fault, at one call. Its name is that of the exploration of the framework where both
/// mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// The process dies before the call is sent.
    DiesBefore,
    /// The process dies after the call had its effect, before it hears of that.
    DiesAfter,
    /// The call has its effect, and the connection breaks before the answer comes.
    AnswerLost,
    /// The call has no effect, and nothing is heard until the caller's patience ends.
    TimesOut,
    /// The call has its effect, and its answer ends amid the body.
    CutShort,
    /// The call is answered as a success by something that is not the cloud, such as a proxy's
    /// page, and has no effect.
    Garbage,
    /// The answer takes long, but comes.
    Delayed,
    /// The credentials are not accepted, this once (401).
    Unauthorized,
    /// Something says that there is no such thing, but not the service that would know (404).
    StrangeAbsence,
    /// What is to be changed is busy (409).
    Busy,
    /// Called too often (429): come again after some seconds.
    Throttled,
    /// The same as some services say it (413).
    OverLimit,
    /// Refused because of an error of the cloud (500).
    Broken,
    /// Refused because the cloud is down (503).
    Unavailable,
    /// A read shows what was there before the last change.
    Stale,
    /// So do this read and all others for some seconds.
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

    /// Its name, as on the command line.
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

    /// Tells whether a read shows the past, which happens on clouds alone that are consistent in
    /// the end only.
    pub fn is_past(self) -> bool {
        matches!(self, Self::Stale | Self::Lagging)
    }
}

/// Faults by the number of the call that they hit, from 1.
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

/// What is explored.
#[async_trait]
pub trait Scenario: Send + Sync {
    /// Name, without slash, unique among those of a program.
    fn name(&self) -> String;

    /// Tells whether a fault of this kind can happen to a call, by default each to any, but for
    /// those of a cloud whose reads [show the past](FaultKind::is_past).
    fn applies(&self, kind: FaultKind, call: &Call) -> bool {
        let _ = call;
        !kind.is_past()
    }

    /// Runs it once in a world of its own, to the end whatever the journey holds. Answers a
    /// description of the end that is the same for every run that is right: without IDs, times and
    /// the order of things.
    ///
    /// # Errors
    /// What went wrong: it never ended, or something happened on the way that must not.
    async fn run(&self, journey: &Arc<ScenarioRun>) -> Result<String, String>;
}

/// Which faults are tried.
#[derive(Clone, Debug)]
pub struct Explorer {
    /// At how many calls how many kinds of faults are tried.
    pub effort: Effort,
    /// Seed of the pairs.
    pub seed: u64,
    /// How many pairs of faults are tried.
    pub pairs: usize,
    /// Only this: name of a scenario, and faults.
    pub replay: Option<(String, Faults)>,
    /// What does a run again, after the variable that says which: the rest of a line for a shell.
    /// By default all explorations of the package.
    pub command: String,
}

/// How many of the kinds of faults are tried at each call when the exploration is bounded, beside
/// those of [`ALWAYS`].
const IN_TURN: usize = 2;
/// What is tried at each call in any case: the effect is there, and nobody knows of it.
const ALWAYS: FaultKind = FaultKind::DiesAfter;
/// A smoke meets the first of so many calls.
const APART: usize = 3;

impl Explorer {
    /// Reads the [`Environment`]. By default 10 pairs are tried, 50 when everything is explored,
    /// and one in a smoke.
    ///
    /// # Errors
    /// One of the variables cannot be read.
    pub fn of_environment() -> anyhow::Result<Self> {
        Self::of(&Environment::read()?)
    }

    /// Explores as is asked for.
    ///
    /// # Errors
    /// The run that is to be done again is not `<scenario>/<call>/<fault>`.
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
        // Cargo tells a program that it runs which package it is of.
        let package = std::env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "<package>".to_owned());
        let command = format!("cargo test -p {package} explore");
        Ok(Self { effort, seed, pairs, replay: replay.transpose()?, command })
    }

    /// Reads the same, with a seed and a number of pairs where nothing is said. But for a smoke
    /// every kind is tried that a scenario lets happen: it is for scenarios that choose a few
    /// themselves.
    ///
    /// # Errors
    /// As [`of_environment`](Self::of_environment).
    pub fn bounded(seed: u64, pairs: usize) -> anyhow::Result<Self> {
        let given = |name: &str| std::env::var_os(name).is_some();
        let said = Self::of_environment()?;
        let (effort, pairs) = match said.effort {
            Effort::Smoke => (Effort::Smoke, said.pairs.min(pairs)),
            Effort::Bounded | Effort::Full => (Effort::Full, pairs),
        };
        let seed = if given("CCM_EXPLORE_SEED") {
            said.seed
        } else {
            seed
        };
        let pairs = if given("CCM_EXPLORE_PAIRS") {
            said.pairs
        } else {
            pairs
        };
        Ok(Self { effort, seed, pairs, ..said })
    }

    /// Explores scenarios one after another, and says of each how many faults there were.
    ///
    /// # Panics
    /// A run went wrong, what was run proves nothing, or there is no scenario.
    pub async fn check<S: Scenario>(&self, scenarios: impl IntoIterator<Item = S>) {
        let (mut wrong, mut explored) = (Vec::new(), 0);
        for scenario in scenarios {
            explored += 1;
            let report = self.explore(&scenario).await;
            // Past the capture of tests, so that it is seen of those that pass as well.
            drop(writeln!(std::io::stderr(), "{report}"));
            if !report.passed() {
                wrong.push(report.to_string());
            }
        }
        assert!(explored > 0, "there is no scenario to explore");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Explores a scenario. A panic in a run ends it, with the faults that led there.
    pub async fn explore(&self, scenario: &dyn Scenario) -> Report {
        let name = scenario.name();
        let mut report = Report::new(&name, self.seed, &self.command);
        if self.replay.as_ref().is_some_and(|(only, _)| *only != name) {
            report.left_out = true;
            return report;
        }
        let (peace, calls) = once(scenario, Faults::default()).await;
        let peace = match peace {
            Ok(peace) => peace,
            Err(seen) => {
                report.fail(Faults::default(), &seen);
                return report;
            }
        };
        report.points = calls.len();
        let chosen = match &self.replay {
            Some((_, faults)) => vec![faults.clone()],
            None => [self.singles(scenario, &calls), self.pairs(scenario, &calls)].concat(),
        };
        for faults in chosen {
            match faults.0.len() {
                1 => report.singles += 1,
                _ => report.more += 1,
            }
            let (end, calls) = once(scenario, faults.clone()).await;
            report.missed += usize::from(faults.0.keys().any(|call| *call > calls.len()));
            match end {
                Ok(end) if end == peace => {}
                Ok(end) => report.fail(faults, &report::difference(&peace, &end)),
                Err(seen) => report.fail(faults, &seen),
            }
        }
        report
    }

    /// Every kind of fault at every call, or at each some of them, all in turn, or that at some
    /// calls.
    fn singles(&self, scenario: &dyn Scenario, calls: &[Call]) -> Vec<Faults> {
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
                .map(|(at, kinds)| (at, in_turn(&kinds, at * IN_TURN)))
                .collect(),
            Effort::Smoke => {
                // Scenarios begin alike, and few have many calls: each begins with a kind of its
                // own.
                let first: usize = scenario.name().bytes().map(usize::from).sum();
                let points = points.step_by(APART).zip(first..);
                points
                    .map(|((at, kinds), turn)| (at, one_in_turn(kinds, turn)))
                    .collect()
            }
        };
        let one = |at, kind| Faults([(at, kind)].into());
        chosen
            .into_iter()
            .flat_map(|(at, kinds)| kinds.into_iter().map(move |kind| one(at, kind)))
            .collect()
    }

    fn pairs(&self, scenario: &dyn Scenario, calls: &[Call]) -> Vec<Faults> {
        let possible = |kind: &FaultKind| calls.iter().any(|call| scenario.applies(*kind, call));
        let kinds: Vec<FaultKind> = FaultKind::ALL.into_iter().filter(possible).collect();
        if kinds.is_empty() {
            return Vec::new();
        }
        let calls = calls.len();
        let mut chance = StdRng::seed_from_u64(self.seed);
        // The first fault makes the way longer: the second may hit what is done about it.
        let mut pair = || {
            let first = chance.random_range(1..=calls.max(1));
            let second = first + chance.random_range(1..=calls.max(1));
            let mut kind = || kinds[chance.random_range(0..kinds.len())];
            Faults([(first, kind()), (second, kind())].into())
        };
        (0..self.pairs).map(|_| pair()).collect()
    }
}

/// What is tried in a bounded exploration of the kinds that can happen at a call: [`ALWAYS`], and
/// those from a place on, which goes round.
fn in_turn(possible: &[FaultKind], first: usize) -> Vec<FaultKind> {
    let all = possible.len();
    let turn = |place: usize| (place + all - first % all) % all < IN_TURN;
    let chosen = possible
        .iter()
        .enumerate()
        .filter(|(place, kind)| **kind == ALWAYS || turn(*place));
    chosen.map(|(_, kind)| *kind).collect()
}

/// The same in a smoke: [`ALWAYS`], and one other.
fn one_in_turn(possible: Vec<FaultKind>, turn: usize) -> Vec<FaultKind> {
    let (always, others): (Vec<_>, Vec<_>) = possible.into_iter().partition(|kind| *kind == ALWAYS);
    let other = others.get(turn % others.len().max(1));
    always.into_iter().chain(other.copied()).collect()
}

/// Runs a scenario, and tells which calls it made.
async fn once(scenario: &dyn Scenario, faults: Faults) -> (Result<String, String>, Vec<Call>) {
    let journey = Arc::new(ScenarioRun::new(faults));
    let end = scenario.run(&journey).await;
    (end, journey.calls())
}
