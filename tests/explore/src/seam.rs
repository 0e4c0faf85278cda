//! The one place that every operation of the processes under test goes through: it has a number and a label there, and
//! what the plan says happens to it.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use ccm_testkit::apiserver::{ApiServer, Match};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};

use crate::{
    fault::{At, Fault, LAG, LATE, SLOW, Shot},
    process::{AGENT, Process},
    witness::Witness,
};

/// When the process after one that ended has its caches.
const RESTARTED: Duration = Duration::from_millis(1500);

/// Where an operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The API server.
    Api,
    /// The cloud.
    Cloud,
}

/// What an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Reads one object, or the cloud.
    Read,
    /// Lists objects of the API.
    List,
    /// Opens a watch.
    Watch,
    /// Changes an object.
    Write,
    /// Records an event.
    Event,
    /// Takes or renews a lease.
    Lease,
}

/// An operation that a process is about to do.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Where it goes.
    pub side: Side,
    /// What it is.
    pub kind: Kind,
    /// What it does to what, in words that are the same in each run, separated by dots.
    pub name: String,
}

/// A place in a scenario where a fault can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Name of the operation and which one of that name it is: `api.patch.services.status.default.web#1`.
    pub label: String,
    /// Where it goes.
    pub side: Side,
    /// What it is.
    pub kind: Kind,
}

impl Point {
    /// Whether the operation changes something.
    pub fn changes(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::Event | Kind::Lease)
    }
}

/// An operation that was begun.
#[derive(Clone, Debug)]
pub struct Step {
    /// When, since the world began.
    pub at: Duration,
    /// By which process.
    pub process: usize,
    /// What.
    pub point: Point,
    /// What happened to it.
    pub fault: Option<Fault>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8.3} s  process {}  {}", self.at.as_secs_f64(), self.process, self.point.label)?;
        self.fault.map_or(Ok(()), |fault| write!(f, "  <- {fault}"))
    }
}

/// An answer that can be made up.
pub(crate) trait Answer: Send + 'static {
    /// The other side refuses.
    fn refused(fault: Fault, operation: &Operation) -> Self;
    /// The connection breaks.
    fn broken(operation: &Operation) -> Self;
}

/// The seam of one world; cheap to clone, all clones are one.
#[derive(Clone)]
pub struct Seam {
    shared: Arc<Shared>,
}

struct Shared {
    server: ApiServer,
    witness: Witness,
    begin: Instant,
    state: Mutex<State>,
    /// What is on its way without anybody who waits for it.
    late: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct State {
    recording: bool,
    /// Version of the store when the recording began.
    version: u64,
    seen: HashMap<String, u32>,
    steps: Vec<Step>,
    shots: Vec<Shot>,
    /// Operations since the last fault.
    since: u32,
    fired: usize,
}

impl Seam {
    /// A seam in front of this server.
    pub fn new(server: ApiServer, witness: Witness) -> Self {
        let (state, late) = (Mutex::default(), Mutex::new(JoinSet::new()));
        Self { shared: Arc::new(Shared { server, witness, begin: Instant::now(), state, late }) }
    }

    /// Begins to record, with faults to come in this order.
    pub fn begin(&self, shots: &[Shot]) {
        let version = self.shared.server.store().version();
        let mut state = self.shared.state.lock();
        *state = State { recording: true, version, shots: shots.to_vec(), ..State::default() };
    }

    /// Ends the recording; what comes is no point any more and meets no faults.
    pub fn end(&self) {
        self.shared.state.lock().recording = false;
    }

    /// What was recorded, and after the recording what changes something.
    pub fn steps(&self) -> Vec<Step> {
        self.shared.state.lock().steps.clone()
    }

    /// When something was last changed, leases aside, or the recording began.
    pub(crate) fn last_change(&self) -> Duration {
        let state = self.shared.state.lock();
        let changes = |step: &&Step| matches!(step.point.kind, Kind::Write | Kind::Event);
        state.steps.iter().rfind(changes).map_or(Duration::ZERO, |step| step.at)
    }

    /// How many faults have happened.
    pub fn fired(&self) -> usize {
        self.shared.state.lock().fired
    }

    /// Time since the world began.
    pub fn now(&self) -> Duration {
        self.shared.begin.elapsed()
    }

    /// Lets an operation happen as the plan says.
    pub(crate) async fn pass<T: Answer>(
        &self,
        process: &Arc<Process>,
        operation: Operation,
        call: impl Future<Output = T> + Send + 'static,
    ) -> T {
        process.lives().await;
        self.shared.witness.starts(process, &operation);
        let fault = self.enter(process, &operation);
        if operation.side == Side::Api {
            process.reaches().await;
        }
        let answer = match fault {
            None => call.await,
            Some(fault) => self.meet(process, &operation, fault, call).await,
        };
        process.lives().await;
        answer
    }

    async fn meet<T: Answer>(
        &self,
        process: &Arc<Process>,
        operation: &Operation,
        fault: Fault,
        call: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match fault {
            Fault::CrashBefore => return end(process).await,
            Fault::CrashAfter => {
                call.await;
                return end(process).await;
            }
            Fault::CrashLate => {
                self.later(LATE, call);
                return end(process).await;
            }
            Fault::Lost => {
                call.await;
                return T::broken(operation);
            }
            Fault::Broken => return T::broken(operation),
            Fault::Hang => return std::future::pending().await,
            Fault::HangAfter => {
                call.await;
                return std::future::pending().await;
            }
            Fault::Late => {
                self.later(LATE, call);
                return std::future::pending().await;
            }
            Fault::Delay => tokio::time::sleep(SLOW).await,
            Fault::DelayAnswer => {
                let answer = call.await;
                tokio::time::sleep(SLOW).await;
                return answer;
            }
            Fault::Status(_) | Fault::Cloud(_) => return T::refused(fault, operation),
            Fault::CutOff => {
                process.cut_off(LATE);
                self.later(LATE, call);
                return std::future::pending().await;
            }
            Fault::StaleStart => {
                call.await;
                self.go_back();
                return end(process).await;
            }
            Fault::Lag | Fault::Rewind | Fault::Expire | Fault::Missed => self.blind(fault),
        }
        call.await
    }

    /// Counts an operation, and says what happens to it.
    fn enter(&self, process: &Process, operation: &Operation) -> Option<Fault> {
        let mut state = self.shared.state.lock();
        let count = state.seen.entry(operation.name.clone()).or_default();
        *count += 1;
        let label = format!("{}#{count}", operation.name);
        let point = Point { label, side: operation.side, kind: operation.kind };
        if !state.recording && !point.changes() {
            return None;
        }
        state.since += 1;
        let meets = |shot: &Shot| match &shot.at {
            At::Point(label) => *label == point.label,
            At::Next(count) => *count == state.since,
        };
        let fault = state.shots.get(state.fired).filter(|shot| state.recording && meets(shot)).map(|shot| shot.fault);
        if fault.is_some() {
            (state.fired, state.since) = (state.fired + 1, 0);
        }
        let at = self.shared.begin.elapsed();
        state.steps.push(Step { at, process: process.number, point, fault });
        fault
    }

    /// Lets something happen after a while, whoever is alive then.
    fn later<T: Send + 'static>(&self, after: Duration, call: impl Future<Output = T> + Send + 'static) {
        self.shared.late.lock().spawn(async move {
            tokio::time::sleep(after).await;
            call.await;
        });
    }

    /// Lets the watches of every process that starts from now on stand still, and then tell the past.
    fn go_back(&self) {
        let version = self.shared.state.lock().version;
        let faults = self.shared.server.faults().clone();
        let all = Match::any().user_agent(AGENT);
        self.later(RESTARTED, async move {
            let frozen = faults.freeze_watches(all.clone());
            tokio::time::sleep(LAG).await;
            faults.rewind_watches(&all, version);
            faults.thaw(frozen);
        });
    }

    /// Lets watches not tell what is.
    fn blind(&self, fault: Fault) {
        let (server, version) = (self.shared.server.clone(), self.shared.state.lock().version);
        let all = Match::any().user_agent(AGENT);
        match fault {
            Fault::Lag => {
                let frozen = server.faults().freeze_watches(all);
                self.later(LAG, async move { server.faults().thaw(frozen) });
            }
            Fault::Rewind => {
                server.faults().rewind_watches(&all, version);
            }
            Fault::Expire => {
                self.shared.witness.look(None);
                server.store().compact();
                server.faults().cut_watches(&all);
            }
            _ => {
                let frozen = server.faults().freeze_watches(all.clone());
                let witness = self.shared.witness.clone();
                self.later(LAG, async move {
                    witness.look(None);
                    server.store().compact();
                    server.faults().cut_watches(&all);
                    server.faults().thaw(frozen);
                });
            }
        }
    }
}

async fn end<T>(process: &Process) -> T {
    process.crash();
    std::future::pending().await
}
