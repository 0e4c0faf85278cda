//! The one place that every operation of the processes under test goes through: it has a number and
//! a label there, and what the plan says happens to it.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ccm_testkit::apiserver::{ApiServer, Match};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};

use crate::{
    fault::{Fault, FaultPosition, LAG, LATE, PlannedFault, SLOW},
    invariants::InvariantChecker,
    process::{AGENT, Process},
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
pub enum OperationKind {
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
    pub kind: OperationKind,
    /// What it does to what, in words that are the same in each run, separated by dots.
    pub name: String,
}

/// A place in a scenario where a fault can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Name of the operation and which one of that name it is:
    /// `api.patch.services.status.default.web#1`.
    pub label: String,
    /// Where it goes.
    pub side: Side,
    /// What it is.
    pub kind: OperationKind,
}

impl Point {
    /// Whether the operation changes something.
    pub fn changes(&self) -> bool {
        matches!(self.kind, OperationKind::Write | OperationKind::Event | OperationKind::Lease)
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
        write!(
            f,
            "{:8.3} s  process {}  {}",
            self.at.as_secs_f64(),
            self.process,
            self.point.label
        )?;
        self.fault.map_or(Ok(()), |fault| write!(f, "  <- {fault}"))
    }
}

/// An answer that can be made up.
pub(crate) trait FaultResponse: Send + 'static {
    /// The other side refuses.
    fn refused(fault: Fault, operation: &Operation) -> Self;
    /// The connection breaks.
    fn broken(operation: &Operation) -> Self;
}

/// The seam of one world; cheap to clone, all clones are one.
#[derive(Clone)]
pub struct Interceptor {
    shared: Arc<InterceptorInner>,
}

struct InterceptorInner {
    server: ApiServer,
    witness: InvariantChecker,
    begin: Instant,
    state: Mutex<InterceptorState>,
    /// What is on its way without anybody who waits for it.
    late: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct InterceptorState {
    recording: bool,
    /// Version of the store when the recording began.
    version: u64,
    seen: HashMap<String, u32>,
    steps: Vec<Step>,
    shots: Vec<PlannedFault>,
    /// Operations since the last fault.
    since: u32,
    happened: Vec<InjectedFault>,
    /// Where the watches stand still, by version of the store.
    stale_watches: Option<u64>,
}

/// A fault that happened.
#[derive(Debug)]
struct InjectedFault {
    fault: Fault,
    effect: Effect,
}

/// What a fault comes to.
#[derive(Clone, Debug)]
enum Effect {
    /// It is there at once.
    Sure,
    /// It comes later, or never; set when it is there.
    Awaited(Arc<AtomicBool>),
    /// Watches tell the past again, which they have done so often by then.
    Retold(u64),
}

/// What watches are opened for, as far as anything happens there.
const WATCHED: [(&str, &str); 2] = [("", "nodes"), ("", "services")];

impl Interceptor {
    /// A seam in front of this server.
    pub fn new(server: ApiServer, witness: InvariantChecker) -> Self {
        let (state, late) = (Mutex::default(), Mutex::new(JoinSet::new()));
        Self {
            shared: Arc::new(InterceptorInner {
                server,
                witness,
                begin: Instant::now(),
                state,
                late,
            }),
        }
    }

    /// Begins to record, with faults to come in this order.
    pub fn begin(&self, shots: &[PlannedFault]) {
        let version = self.shared.server.store().version();
        let mut state = self.shared.state.lock();
        *state = InterceptorState {
            recording: true,
            version,
            shots: shots.to_vec(),
            ..InterceptorState::default()
        };
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
        let changes =
            |step: &&Step| matches!(step.point.kind, OperationKind::Write | OperationKind::Event);
        state
            .steps
            .iter()
            .rfind(changes)
            .map_or(Duration::ZERO, |step| step.at)
    }

    /// The faults that have happened, and whether each had an effect by now: what was late arrived,
    /// what happened was not seen, what was past was told again.
    pub fn happened(&self) -> Vec<(Fault, bool)> {
        let retold = self.shared.server.faults().retold();
        let had = |effect: &Effect| match effect {
            Effect::Sure => true,
            Effect::Awaited(flag) => flag.load(Ordering::Relaxed),
            Effect::Retold(before) => retold > *before,
        };
        self.shared
            .state
            .lock()
            .happened
            .iter()
            .map(|one| (one.fault, had(&one.effect)))
            .collect()
    }

    /// Where the watches stand still, by version of the store, while they do.
    pub(crate) fn stands(&self) -> Option<u64> {
        self.shared.state.lock().stale_watches
    }

    /// How many operations of this name have been begun since the recording began.
    pub(crate) fn count(&self, name: &str) -> u32 {
        self.shared
            .state
            .lock()
            .seen
            .get(name)
            .copied()
            .unwrap_or_default()
    }

    /// Time since the world began.
    pub fn now(&self) -> Duration {
        self.shared.begin.elapsed()
    }

    /// Lets an operation happen as the plan says.
    pub(crate) async fn intercept<T: FaultResponse>(
        &self,
        process: &Arc<Process>,
        operation: Operation,
        call: impl Future<Output = T> + Send + 'static,
    ) -> T {
        process.lives().await;
        self.shared.witness.starts(process, &operation);
        let fault = self.number_operation(process, &operation);
        if operation.side == Side::Api {
            process.reaches().await;
        }
        let answer = match fault {
            None => call.await,
            Some((fault, at)) => self.inject(process, &operation, (fault, at), call).await,
        };
        process.lives().await;
        answer
    }

    async fn inject<T: FaultResponse>(
        &self,
        process: &Arc<Process>,
        operation: &Operation,
        (fault, at): (Fault, usize),
        call: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match fault {
            Fault::CrashBefore => return end(process).await,
            Fault::CrashAfter => {
                call.await;
                return end(process).await;
            }
            Fault::CrashLate => {
                self.arrives_late(at, call);
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
                self.arrives_late(at, call);
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
                self.arrives_late(at, call);
                return std::future::pending().await;
            }
            Fault::StaleStart => {
                call.await;
                self.start_from_stale_list(at);
                return end(process).await;
            }
            Fault::Lag | Fault::Rewind | Fault::Expire | Fault::Missed => {
                self.suppress_events(fault, at);
            }
        }
        call.await
    }

    /// Counts an operation, and says what happens to it, and as which fault by number.
    fn number_operation(&self, process: &Process, operation: &Operation) -> Option<(Fault, usize)> {
        let mut state = self.shared.state.lock();
        let count = state.seen.entry(operation.name.clone()).or_default();
        *count += 1;
        let label = format!("{}#{count}", operation.name);
        let point = Point { label, side: operation.side, kind: operation.kind };
        if !state.recording && !point.changes() {
            return None;
        }
        state.since += 1;
        let meets = |shot: &PlannedFault| match &shot.at {
            FaultPosition::Point(label) => *label == point.label,
            FaultPosition::Next(count) => *count == state.since,
        };
        let number = state.happened.len();
        let fault = state
            .shots
            .get(number)
            .filter(|shot| state.recording && meets(shot))
            .map(|shot| shot.fault);
        if let Some(fault) = fault {
            state
                .happened
                .push(InjectedFault { fault, effect: Effect::Sure });
            state.since = 0;
        }
        let at = self.shared.begin.elapsed();
        state
            .steps
            .push(Step { at, process: process.number, point, fault });
        fault.map(|fault| (fault, number))
    }

    fn expect(&self, fault: usize, effect: Effect) {
        if let Some(happened) = self.shared.state.lock().happened.get_mut(fault) {
            happened.effect = effect;
        }
    }

    /// Says that a fault has an effect only once the answer is set.
    fn await_effect(&self, fault: usize) -> Arc<AtomicBool> {
        let effect: Arc<AtomicBool> = Arc::default();
        self.expect(fault, Effect::Awaited(effect.clone()));
        effect
    }

    /// Lets an operation arrive when nobody waits for it any more.
    fn arrives_late<T: Send + 'static>(
        &self,
        fault: usize,
        call: impl Future<Output = T> + Send + 'static,
    ) {
        let effect = self.await_effect(fault);
        self.later(LATE, async move {
            call.await;
            effect.store(true, Ordering::Relaxed);
        });
    }

    /// Lets something happen after a while, whoever is alive then.
    fn later<T: Send + 'static>(
        &self,
        after: Duration,
        call: impl Future<Output = T> + Send + 'static,
    ) {
        self.shared.late.lock().spawn(async move {
            tokio::time::sleep(after).await;
            call.await;
        });
    }

    /// Lets the watches of every process that starts from now on stand still, and then tell the
    /// past.
    fn start_from_stale_list(&self, fault: usize) {
        let version = self.shared.state.lock().version;
        let faults = self.shared.server.faults().clone();
        self.expect(fault, Effect::Retold(faults.retold()));
        let all = Match::any().user_agent(AGENT);
        let seam = self.clone();
        self.later(RESTARTED, async move {
            let frozen = faults.freeze_watches(all.clone());
            seam.set_watches_stale(true);
            tokio::time::sleep(LAG).await;
            seam.set_watches_stale(false);
            faults.rewind_watches(&all, version);
            faults.thaw(frozen);
        });
    }

    /// Lets watches not tell what is.
    fn suppress_events(&self, fault: Fault, number: usize) {
        let (server, version) = (self.shared.server.clone(), self.shared.state.lock().version);
        let all = Match::any().user_agent(AGENT);
        match fault {
            Fault::Rewind => {
                self.expect(number, Effect::Retold(server.faults().retold()));
                server.faults().rewind_watches(&all, version);
            }
            Fault::Expire => {
                let effect = self.await_effect(number);
                effect.store(self.forget(&all), Ordering::Relaxed);
            }
            _ => {
                let frozen = server.faults().freeze_watches(all.clone());
                let (seam, effect, since) =
                    (self.clone(), self.await_effect(number), server.store().version());
                self.set_watches_stale(true);
                self.later(LAG, async move {
                    let unseen = WATCHED.iter().any(|key| {
                        server
                            .store()
                            .backlog(*key, since, 1)
                            .is_ok_and(|backlog| !backlog.events.is_empty())
                    });
                    effect.store(unseen, Ordering::Relaxed);
                    seam.set_watches_stale(false);
                    if fault == Fault::Missed {
                        seam.forget(&all);
                    }
                    server.faults().thaw(frozen);
                });
            }
        }
    }

    /// Breaks watches and forgets what they would go on with. Returns whether there were any.
    fn forget(&self, watches: &Match) -> bool {
        // Before the history is gone.
        self.shared.witness.check_changes(None);
        self.shared.server.store().compact();
        self.shared.server.faults().cut_watches(watches) > 0
    }

    fn set_watches_stale(&self, still: bool) {
        let version = self.shared.server.store().version();
        self.shared.state.lock().stale_watches = still.then_some(version);
    }
}

async fn end<T>(process: &Process) -> T {
    process.crash();
    std::future::pending().await
}
