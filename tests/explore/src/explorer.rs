//! Runs scenarios with and without faults, and keeps count.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

pub use ccm_testkit::explore::Effort;
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::runtime::Runtime;

use crate::{
    cluster::SimulatedCluster,
    fault::{Class, Fault, FaultPosition, PlannedFault},
    final_state,
    interceptor::{Point, Step},
    mutants::{Bug, MutantCase},
    scenario::{self, Scenario},
};

/// How long a world may take to become what it is asked for: some errors are tried again after
/// minutes only.
const PATIENCE: Duration = Duration::from_secs(3600);
/// From then on until the recording ends, for what follows.
const EPILOGUE: Duration = Duration::from_secs(5);
/// Between what has happened before and the story.
const REST: Duration = Duration::from_secs(30);
/// How long nothing is written in a world that is quiet: twice the period at which nodes are looked
/// at again.
const QUIET: Duration = Duration::from_secs(600);
/// The same where processes keep a lease, which costs a request each second.
const ELECTED_QUIET: Duration = Duration::from_secs(150);
/// Renewals of a lease are alike; so many of them are points.
const RENEWALS: u32 = 3;
/// How soon it must be quiet: some calls are given up after minutes, some errors tried again after
/// more.
const NOISE: Duration = Duration::from_secs(3600);
/// In the bounded exploration most faults meet one of so many points.
const IN_TURN: usize = 4;
/// In a smoke the first of so many points is met.
const APART: usize = 5;
/// Fewer faults than this prove nothing if none of them had an effect.
const SOME: usize = 5;
/// The second fault of a pair comes among so many operations after the first.
const NEAR: u32 = 8;

/// What should not be: [`Explorer::base`] has just run it.
const NO_BASE: &str = "the scenario was not run without faults";

/// What pairs of faults are counted as, beside the classes.
const PAIRS: &str = "pairs";
/// What the single faults of a smoke are counted as, of whatever class.
const SMOKE: &str = "smoke";

/// What one run came to.
#[derive(Debug)]
pub struct RunResult {
    /// What was wrong, in order; empty when nothing was.
    pub findings: Vec<String>,
    /// The faults that happened, and whether each had an effect.
    pub happened: Vec<(Fault, bool)>,
    /// What was done.
    pub steps: Vec<Step>,
    /// State at the end.
    pub state: String,
}

impl RunResult {
    /// Whether a fault had no effect.
    fn is_idle(&self) -> bool {
        self.happened.iter().any(|(_, effect)| !effect)
    }
}

/// A scenario without faults.
#[derive(Debug)]
pub struct Baseline {
    /// Where faults can happen.
    pub points: Vec<Point>,
    /// How many single faults can happen, one at a time.
    pub singles: usize,
    /// How it ends.
    pub state: String,
}

/// The scenario without faults, once somebody asked.
pub type Slot = Arc<OnceLock<Result<Baseline, String>>>;

/// Counts of one scenario and class.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Runs with faults.
    pub runs: usize,
    /// Those in which a fault did not happen, since its point was not reached.
    pub missed: usize,
    /// Those of them in which none happened.
    pub unmet: usize,
    /// Those in which a fault happened and had no effect: nothing was late, past or unseen by then.
    pub idle: usize,
    /// Those that found something.
    pub failed: usize,
    /// What they took, on one thread.
    pub took: Duration,
}

/// Explores scenarios, each run in a runtime of its own.
pub struct Explorer {
    /// Makes a runtime of this thread alone whose time is virtual.
    runtime: fn() -> Runtime,
    effort: Effort,
    /// Hears of each finding at once.
    tell: fn(&str),
    bases: Mutex<BTreeMap<&'static str, Slot>>,
    counts: Mutex<BTreeMap<(&'static str, String), Count>>,
    /// How often each fault happened, and how often it had an effect.
    effects: Mutex<BTreeMap<String, (usize, usize)>>,
}

impl Explorer {
    /// An explorer whose runs happen in runtimes of this kind.
    pub fn new(runtime: fn() -> Runtime, effort: Effort, tell: fn(&str)) -> Self {
        Self {
            runtime,
            effort,
            tell,
            bases: Mutex::default(),
            counts: Mutex::default(),
            effects: Mutex::default(),
        }
    }

    /// One run, which is compared with `state` at its end.
    pub fn run(
        &self,
        scenario: &'static Scenario,
        shots: &[PlannedFault],
        bug: Option<Bug>,
        state: Option<&str>,
    ) -> RunResult {
        let runtime = (self.runtime)();
        let outcome = runtime.block_on(run_scenario(scenario, shots, bug, state));
        // What is still running is of no interest.
        runtime.shutdown_background();
        outcome
    }

    /// The scenario without faults, run once.
    ///
    /// # Errors
    /// What is wrong even so.
    pub fn base(&self, scenario: &'static Scenario) -> Result<Slot, String> {
        let slot = self.bases.lock().entry(scenario.name).or_default().clone();
        let base = slot.get_or_init(|| {
            let outcome = self.run(scenario, &[], None, None);
            let points: Vec<Point> = outcome
                .steps
                .iter()
                .map(|step| step.point.clone())
                .filter(counts)
                .collect();
            let singles = singles(scenario, &points, &Fault::all(), unconditionally).len();
            match &*outcome.findings {
                [] if points.is_empty() => Err(format!(
                    "{} without faults: there is no point at which one can happen",
                    scenario.name
                )),
                [] => Ok(Baseline { points, singles, state: outcome.state }),
                findings => Err(format!(
                    "{} without faults: {}\n{}",
                    scenario.name,
                    findings.join("\n"),
                    trace(&outcome)
                )),
            }
        });
        match base {
            Ok(_) => Ok(slot.clone()),
            Err(wrong) => Err(wrong.clone()),
        }
    }

    /// Every fault of a class at every point, or what was found, with a line to run each again.
    /// Answers how many runs that were: faults of some classes can happen in some scenarios only.
    ///
    /// # Errors
    /// What was found.
    pub fn explore(&self, scenario: &'static Scenario, class: Class) -> Result<usize, String> {
        let slot = self.base(scenario)?;
        let Some(Ok(base)) = slot.get() else {
            return Err(NO_BASE.to_owned());
        };
        let faults: Vec<Fault> = Fault::all()
            .into_iter()
            .filter(|fault| fault.class() == class)
            .collect();
        let tries = |number: usize, point: &Point, fault: Fault| self.tries(number, point, fault);
        let plans = singles(scenario, &base.points, &faults, tries);
        match plans.len() {
            0 => Ok(0),
            runs => self
                .all(scenario, class.as_str(), base, plans.into_iter())
                .map(|()| runs),
        }
    }

    /// Two faults at some points: a crash after the operation, and one of all others in turn.
    ///
    /// # Errors
    /// What was found, or that no fault happened.
    pub fn smoke(&self, scenario: &'static Scenario) -> Result<(), String> {
        let slot = self.base(scenario)?;
        let Some(Ok(base)) = slot.get() else {
            return Err(NO_BASE.to_owned());
        };
        // Scenarios begin alike: each begins with a fault of its own.
        let first: usize = scenario.name.bytes().map(usize::from).sum();
        let at = |(turn, point): (usize, &Point)| {
            let fits = |fault: &Fault| fault.fits(point, scenario.is_elected());
            let (always, others): (Vec<_>, Vec<_>) = Fault::all()
                .into_iter()
                .filter(fits)
                .partition(|fault| *fault == Fault::CrashAfter);
            let other = others.get((first + turn) % others.len().max(1)).copied();
            let label = point.label.clone();
            let shot =
                move |fault| vec![PlannedFault { at: FaultPosition::Point(label.clone()), fault }];
            always
                .into_iter()
                .chain(other)
                .map(shot)
                .collect::<Vec<_>>()
        };
        let plans: Vec<_> = base
            .points
            .iter()
            .step_by(APART)
            .enumerate()
            .flat_map(at)
            .collect();
        self.all(scenario, SMOKE, base, plans.into_iter())
    }

    /// Random pairs of faults from a seed, so many.
    ///
    /// # Errors
    /// What was found.
    pub fn pairs(
        &self,
        scenario: &'static Scenario,
        seed: u64,
        count: usize,
    ) -> Result<(), String> {
        let slot = self.base(scenario)?;
        let Some(Ok(base)) = slot.get() else {
            return Err(NO_BASE.to_owned());
        };
        let mut random = StdRng::seed_from_u64(seed);
        let faults = Fault::all();
        let mut plans = Vec::new();
        while plans.len() < count {
            let point = &base.points[random.random_range(0..base.points.len())];
            let [first, second] = [(); 2].map(|()| faults[random.random_range(0..faults.len())]);
            // What the second one meets is not known, so it must be one that any operation may
            // meet.
            let anywhere = second.class() != Class::Refused
                && second.class() != Class::Split
                && second != Fault::CrashLate;
            if first.fits(point, scenario.is_elected()) && anywhere {
                let first =
                    PlannedFault { at: FaultPosition::Point(point.label.clone()), fault: first };
                plans.push(vec![
                    first,
                    PlannedFault {
                        at: FaultPosition::Next(random.random_range(1..=NEAR)),
                        fault: second,
                    },
                ]);
            }
        }
        self.all(scenario, PAIRS, base, plans.into_iter())
    }

    /// Looks for a planted bug, and returns the first finding that names it.
    ///
    /// # Errors
    /// What was found instead, or that nothing was.
    pub fn find_mutant(&self, plant: &MutantCase) -> Result<String, String> {
        let scenario = scenario::all()
            .into_iter()
            .find(|scenario| scenario.name == plant.scenario);
        let scenario =
            scenario.ok_or_else(|| format!("there is no scenario {}", plant.scenario))?;
        let slot = self.base(scenario)?;
        let Some(Ok(base)) = slot.get() else {
            return Err(NO_BASE.to_owned());
        };
        let faults = Fault::all()
            .into_iter()
            .filter(|fault| plant.class == Some(fault.class()));
        let faults: Vec<Fault> = faults.collect();
        let mut plans = vec![Vec::new()];
        plans.extend(singles(scenario, &base.points, &faults, unconditionally));
        let mut others = Vec::new();
        for shots in plans {
            let outcome = self.run(scenario, &shots, Some(plant.bug), Some(&base.state));
            match outcome
                .findings
                .iter()
                .find(|finding| finding.contains(plant.says))
            {
                Some(finding) if plant.class.is_none() == shots.is_empty() => {
                    return Ok(finding.clone());
                }
                Some(_) => return Err(format!("it shows without a fault: {:?}", outcome.findings)),
                None => others.extend(outcome.findings),
            }
        }
        Err(format!("{} was not found; these were: {others:?}", plant.name))
    }

    /// One run by its name.
    ///
    /// # Errors
    /// What was found, or that the fault did not happen.
    pub fn replay(
        &self,
        scenario: &'static Scenario,
        shots: &[PlannedFault],
    ) -> Result<(), String> {
        let slot = self.base(scenario)?;
        let Some(Ok(base)) = slot.get() else {
            return Err(NO_BASE.to_owned());
        };
        let outcome = self.run(scenario, shots, None, Some(&base.state));
        match &*outcome.findings {
            [] if outcome.happened.len() < shots.len() => {
                Err(format!("a fault did not happen:\n{}", trace(&outcome)))
            }
            [] if outcome.is_idle() => Err(format!("a fault had no effect:\n{}", trace(&outcome))),
            [] => Ok(()),
            findings => Err(format!("{}\n{}", findings.join("\n"), trace(&outcome))),
        }
    }

    /// Whether a fault is tried at the point of this number: in the bounded exploration those that
    /// lose most, and the others in turn, so that each of them meets every few points.
    fn tries(&self, number: usize, point: &Point, fault: Fault) -> bool {
        let always = match fault {
            Fault::CrashAfter | Fault::Lost => true,
            // Where something is changed, it is as a crash after the point before.
            Fault::CrashBefore => !point.changes(),
            _ => false,
        };
        let place = Fault::all()
            .iter()
            .position(|other| *other == fault)
            .unwrap_or_default();
        self.effort == Effort::Full || always || (number + place).is_multiple_of(IN_TURN)
    }

    fn all(
        &self,
        scenario: &'static Scenario,
        class: &str,
        base: &Baseline,
        plans: impl Iterator<Item = Vec<PlannedFault>>,
    ) -> Result<(), String> {
        let (mut count, mut found) = (Count::default(), String::new());
        let mut effects: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        let started = Instant::now();
        for shots in plans {
            let outcome = self.run(scenario, &shots, None, Some(&base.state));
            count.runs += 1;
            count.missed += usize::from(outcome.happened.len() < shots.len());
            count.unmet += usize::from(outcome.happened.is_empty());
            count.idle += usize::from(outcome.is_idle());
            for (fault, effect) in &outcome.happened {
                let (happened, had) = effects.entry(fault.to_string()).or_default();
                (*happened, *had) = (*happened + 1, *had + usize::from(*effect));
            }
            if !outcome.findings.is_empty() {
                count.failed += 1;
                let text = format!(
                    "{}\n  again: {}",
                    outcome.findings.join("\n"),
                    again(scenario, &shots)
                );
                (self.tell)(&text);
                // A string takes everything.
                let _ = writeln!(found, "{text}");
            }
        }
        count.took = started.elapsed();
        let (happened, had) = effects
            .values()
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        if count.unmet == count.runs {
            // A string takes everything.
            let _ = writeln!(
                found,
                "no fault happened in any of the {class} runs, which shows nothing"
            );
            count.failed += 1;
        }
        if class != PAIRS && happened >= SOME && had == 0 {
            // A string takes everything.
            let _ = writeln!(found, "no fault of class {class} ever had an effect: {effects:?}");
            count.failed += 1;
        }
        self.counts
            .lock()
            .insert((scenario.name, class.to_owned()), count);
        let mut all = self.effects.lock();
        for (fault, (happened, had)) in effects {
            let sum = all.entry(fault).or_default();
            *sum = (sum.0 + happened, sum.1 + had);
        }
        if found.is_empty() {
            Ok(())
        } else {
            Err(format!("{} of {} runs failed\n{found}", count.failed, count.runs))
        }
    }

    /// A table of what was explored.
    pub fn report(&self) -> String {
        let (bases, counts) = (self.bases.lock(), self.counts.lock());
        let mut text = String::new();
        let (mut points, mut singles, mut sum) = (0, 0, Count::default());
        for (name, slot) in bases.iter() {
            let Some(Ok(base)) = slot.get() else { continue };
            let of: Vec<_> = counts
                .iter()
                .filter(|((scenario, _), _)| scenario == name)
                .collect();
            let line: Vec<String> = of
                .iter()
                .map(|((_, class), count)| format!("{class} {}", count.runs))
                .collect();
            points += base.points.len();
            singles += base.singles;
            for (_, count) in &of {
                (sum.runs, sum.missed) = (sum.runs + count.runs, sum.missed + count.missed);
                (sum.idle, sum.took) = (sum.idle + count.idle, sum.took + count.took);
            }
            let took: f64 = of.iter().map(|(_, count)| count.took.as_secs_f64()).sum();
            let _ = writeln!(
                text,
                "{name}: {} points, {:.1} s: {}",
                base.points.len(),
                took,
                line.join(", ")
            );
        }
        let _ = writeln!(
            text,
            "{points} single-fault points, at which {singles} single faults can happen; {} runs in {:.0} s of threads, in {} \
             of them a fault did not happen, in {} it had no effect",
            sum.runs,
            sum.took.as_secs_f64(),
            sum.missed,
            sum.idle,
        );
        let effects: Vec<String> = self
            .effects
            .lock()
            .iter()
            .map(|(fault, (happened, had))| format!("{fault} {had} of {happened}"))
            .collect();
        let _ = writeln!(text, "effects: {}", effects.join(", "));
        text
    }

    /// Faults that happened in some run, and had an effect in none: they prove nothing.
    pub fn without_effect(&self) -> Vec<String> {
        let effects = self.effects.lock();
        effects
            .iter()
            .filter(|(_, (happened, had))| *happened > 0 && *had == 0)
            .map(|(fault, _)| fault.clone())
            .collect()
    }
}

/// Whether faults happen here.
fn counts(point: &Point) -> bool {
    let count = point
        .label
        .rsplit_once('#')
        .and_then(|(_, count)| count.parse().ok());
    !point.label.contains(".leases.") || count.is_none_or(|count: u32| count <= RENEWALS)
}

/// Each of these faults at every point where it can happen and is tried.
fn singles(
    scenario: &Scenario,
    points: &[Point],
    faults: &[Fault],
    tries: impl Fn(usize, &Point, Fault) -> bool,
) -> Vec<Vec<PlannedFault>> {
    let at = |(number, point): (usize, &Point)| {
        let fits = faults
            .iter()
            .filter(|fault| fault.fits(point, scenario.is_elected()));
        let tried = fits.filter(|fault| tries(number, point, **fault));
        tried
            .map(|fault| {
                vec![PlannedFault { at: FaultPosition::Point(point.label.clone()), fault: *fault }]
            })
            .collect::<Vec<_>>()
    };
    points.iter().enumerate().flat_map(at).collect()
}

fn unconditionally(_: usize, _: &Point, _: Fault) -> bool {
    true
}

/// The command that does a run again.
fn again(scenario: &Scenario, shots: &[PlannedFault]) -> String {
    let shots: Vec<String> = shots.iter().map(ToString::to_string).collect();
    format!(
        "CCM_EXPLORE_REPLAY='{}/{}' cargo test -p ccm-explore explore",
        scenario.name,
        shots.join("/")
    )
}

fn trace(outcome: &RunResult) -> String {
    let lines: Vec<String> = outcome.steps.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// One run, from an empty cluster to its end.
async fn run_scenario(
    scenario: &'static Scenario,
    shots: &[PlannedFault],
    bug: Option<Bug>,
    wanted: Option<&str>,
) -> RunResult {
    let mut findings = Vec::new();
    let world = match SimulatedCluster::new(scenario, bug) {
        Ok(world) => Arc::new(world),
        Err(error) => {
            return RunResult {
                findings: vec![error],
                happened: Vec::new(),
                steps: Vec::new(),
                state: String::new(),
            };
        }
    };
    let mut recorded = Vec::new();
    if let Err(error) = run_script(&world, shots, &mut recorded, &mut findings).await {
        findings.push(error);
    }
    let state = final_state::state(&world);
    findings.extend(final_state::not_converged(&world).map(|wrong| format!("in the end: {wrong}")));
    if let Some(wanted) = wanted
        && findings.is_empty()
    {
        findings.extend(final_state::difference(wanted, &state));
    }
    world.witness.check_changes(None);
    let mut all = world.witness.found();
    all.extend(findings);
    if all.is_empty() && shots.is_empty() {
        all.extend(world.ends());
        all.extend(world.witness.check_finalizers());
    }
    let steps = if all.is_empty() {
        recorded
    } else {
        world.seam.steps()
    };
    RunResult { findings: all, happened: world.seam.happened(), steps, state }
}

async fn run_script(
    world: &Arc<SimulatedCluster>,
    shots: &[PlannedFault],
    recorded: &mut Vec<Step>,
    findings: &mut Vec<String>,
) -> Result<(), String> {
    if let Some(before) = world.scenario.before {
        let processes = world.run_processes();
        before(world).await?;
        world.until(PATIENCE, final_state::not_converged).await?;
        tokio::time::sleep(REST).await;
        processes.stop().await;
    }
    if let Some(between) = world.scenario.between {
        between(world).await?;
    }
    world.seam.begin(shots);
    let processes = world.run_processes();
    (world.scenario.story)(world).await?;
    world.until(PATIENCE, final_state::not_converged).await?;
    tokio::time::sleep(EPILOGUE).await;
    world.seam.end();
    *recorded = world.seam.steps();
    let end = world.seam.now() + NOISE;
    loop {
        let last = world.seam.last_change();
        let quiet = if world.scenario.is_elected() {
            ELECTED_QUIET
        } else {
            QUIET
        };
        let rest = (last + quiet).saturating_sub(world.seam.now());
        if rest.is_zero() {
            break;
        }
        if world.seam.now() > end {
            let last = world
                .seam
                .steps()
                .last()
                .map(ToString::to_string)
                .unwrap_or_default();
            findings.push(format!("the processes never became quiet, last: {last}"));
            break;
        }
        tokio::time::sleep(rest).await;
    }
    processes.stop().await;
    Ok(())
}
