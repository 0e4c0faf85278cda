//! Never two leaders: processes that are paused, stopped, restarted and cut off at random.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use prometheus::Registry;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, Sleep, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::*,
    store::{Fault, Store},
};
use crate::runtime::events::{EventMetrics, EventWriter};

const SECOND: Duration = Duration::from_secs(1);

/// Stops a future from running until a moment, as SIGSTOP stops a process: time goes on, and the
/// gate is still asked.
#[derive(Clone, Default)]
struct Freezer(Arc<Mutex<Option<Instant>>>);

impl Freezer {
    fn freeze(&self, time: Duration) {
        *self.0.lock() = Some(Instant::now() + time);
    }

    async fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let mut thaw: Option<Pin<Box<Sleep>>> = None;
        poll_fn(move |ctx| {
            if let Some(until) = *self.0.lock()
                && Instant::now() < until
            {
                let thaw = thaw.insert(Box::pin(sleep_until(until)));
                if thaw.as_mut().poll(ctx).is_pending() {
                    return Poll::Pending;
                }
            }
            future.as_mut().poll(ctx)
        })
        .await
    }
}

/// One replica: a process that is started again, under a new identity, whenever it ends.
#[derive(Clone, Default)]
struct Replica {
    freezer: Freezer,
    life: Arc<Mutex<Option<(WriteGate, CancellationToken)>>>,
    outcomes: Arc<Mutex<Vec<LeadershipOutcome>>>,
}

impl Replica {
    fn leads(&self) -> bool {
        self.life
            .lock()
            .as_ref()
            .is_some_and(|(gate, _)| gate.may_write().is_ok())
    }

    fn terminate(&self) {
        if let Some((_, stop)) = &*self.life.lock() {
            stop.cancel();
        }
    }

    async fn live(self, store: Store, name: usize, skew: SignedDuration, restart: Duration) {
        for life in 0.. {
            let (elector, _driver) = elector(&store, &format!("{name}_{life}"), skew);
            let stop = CancellationToken::new();
            *self.life.lock() = Some((elector.gate(), stop.clone()));
            let run = async {
                let leading = elector.acquire(&stop).await?;
                Some(leading.run(&stop, sleep(SECOND / 5), SECOND).await)
            };
            let outcome = self.freezer.run(run).await;
            self.outcomes.lock().extend(outcome);
            sleep(restart).await;
        }
    }
}

fn elector(store: &Store, identity: &str, skew: SignedDuration) -> (LeaderElector, EventWriter) {
    let registry = Registry::new();
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let wall = WallClock::tokio_from(start + skew);
    let metrics = EventMetrics::register(&registry).unwrap();
    let (events, driver) =
        EventRecorder::new(store.client(), "c", WriteGate::always_open(), metrics, wall.clone());
    let config = ElectionConfig {
        namespace: "kube-system".into(),
        name: "ccm".into(),
        identity: identity.into(),
        lease_duration: 15 * SECOND,
        renew_deadline: 10 * SECOND,
        retry_period: 2 * SECOND,
    };
    let metrics = LeaderElectionMetrics::register(&registry).unwrap();
    (LeaderElector::new(store.client(), config, metrics, events, wall).unwrap(), driver)
}

/// How bad a world is.
#[derive(Clone, Copy, Debug)]
struct FaultyWorld {
    seed: u64,
    /// The part of the requests to which something happens.
    faults: f64,
    /// The longest delay of a request, each way.
    delay: Duration,
    /// Mean time between two pauses or terminations.
    unrest: Duration,
}

fn worlds() -> impl Strategy<Value = FaultyWorld> {
    (any::<u64>(), 0.0..0.7, 0u64..20_000, 5u32..60).prop_map(|(seed, faults, delay, unrest)| {
        FaultyWorld {
            seed,
            faults,
            delay: Duration::from_millis(delay),
            unrest: unrest * SECOND,
        }
    })
}

fn inject(store: &Store, world: FaultyWorld) {
    let mut random = StdRng::seed_from_u64(world.seed);
    store.choose(move |_| {
        let mut fault = Fault {
            before: SECOND / 200,
            after: SECOND / 200,
            ..Fault::default()
        };
        if random.random_bool(world.faults) {
            match random.random_range(0..5) {
                0 => fault.refuse = Some([403, 409, 429, 500, 503][random.random_range(0..5)]),
                1 => fault.lose_answer = true,
                2 => fault.before = world.delay.mul_f64(random.random()),
                3 => fault.after = world.delay.mul_f64(random.random()),
                _ => {
                    fault.before = world.delay.mul_f64(random.random());
                    fault.lose_answer = true;
                }
            }
        }
        fault
    });
}

/// What a world showed, for the test that these tests can fail.
#[derive(Debug, Default)]
struct ObservedLeaders {
    overlaps: Vec<Duration>,
    leaders: usize,
    outcomes: Vec<LeadershipOutcome>,
    recovered: bool,
}

/// Looks at all replicas whenever one of them has done something. A gate opens, and opens again, by
/// what its own replica does, and closes by itself: two that are open are seen in the moment in
/// which the second one opens.
struct Watcher {
    replicas: Vec<Replica>,
    leader: Option<usize>,
    seen: ObservedLeaders,
    start: Instant,
}

impl Watcher {
    fn check_leaders(&mut self) {
        let leaders: Vec<_> = (0..self.replicas.len())
            .filter(|i| self.replicas[*i].leads())
            .collect();
        if leaders.len() > 1 {
            self.seen.overlaps.push(self.start.elapsed());
        }
        if let [one] = leaders[..]
            && self.leader != Some(one)
        {
            self.seen.leaders += 1;
            self.leader = Some(one);
        }
    }
}

/// Runs three replicas through 600 s of unrest, then 60 s of peace.
async fn run(world: FaultyWorld) -> ObservedLeaders {
    let store = Store::default();
    inject(&store, world);
    let replicas: Vec<Replica> = (0..3).map(|_| Replica::default()).collect();
    let start = Instant::now();
    let watcher = Watcher {
        replicas: replicas.clone(),
        leader: None,
        seen: ObservedLeaders::default(),
        start,
    };
    let watcher = Arc::new(Mutex::new(watcher));
    let mut tasks = JoinSet::new();
    for (name, replica) in replicas.iter().enumerate() {
        let skew = SignedDuration::from_hours([-1, 0, 1][name]);
        let mut life = Box::pin(replica.clone().live(store.clone(), name, skew, SECOND));
        let watcher = watcher.clone();
        tasks.spawn(poll_fn(move |ctx| {
            let polled = life.as_mut().poll(ctx);
            watcher.lock().check_leaders();
            polled
        }));
    }
    let mut random = StdRng::seed_from_u64(world.seed ^ 1);
    sleep(world.unrest).await;
    while start.elapsed() < 600 * SECOND {
        let victim = &replicas[random.random_range(0..3)];
        match random.random_bool(0.6) {
            true => victim
                .freezer
                .freeze((40 * SECOND).mul_f64(random.random())),
            false => victim.terminate(),
        }
        sleep(world.unrest.mul_f64(2.0 * random.random::<f64>())).await;
    }
    store.heal();
    sleep(60 * SECOND).await;
    let mut seen = std::mem::take(&mut watcher.lock().seen);
    seen.recovered = replicas.iter().filter(|r| r.leads()).count() == 1;
    seen.outcomes = replicas
        .iter()
        .flat_map(|r| r.outcomes.lock().clone())
        .collect();
    seen
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_two_open_gates_and_always_one_in_the_end(world in worlds()) {
        let seen = block_on(run(world));
        prop_assert!(seen.overlaps.is_empty(), "two leaders: {:?}", seen.overlaps);
        prop_assert!(seen.recovered, "nobody leads after a minute of peace");
    }
}

/// The property above would hold for electors that never lead: these worlds see many of every
/// ending. The jitter of elections has no seed, so three worlds are counted together.
#[test]
fn worlds_with_unrest_see_leaders_come_and_go() {
    let mut leaders = 0;
    let mut released = 0;
    let mut lost = 0;
    for seed in 7..10 {
        let seen =
            block_on(run(FaultyWorld { seed, faults: 0.2, delay: 8 * SECOND, unrest: 8 * SECOND }));
        leaders += seen.leaders;
        released += seen
            .outcomes
            .iter()
            .filter(|o| matches!(o, LeadershipOutcome::Released))
            .count();
        lost += seen
            .outcomes
            .iter()
            .filter(|o| matches!(o, LeadershipOutcome::Lost { .. }))
            .count();
    }
    assert!(
        leaders >= 12 && released >= 1 && lost >= 3,
        "{leaders} leaders, {released} released, {lost} lost"
    );
}

#[test]
fn a_leader_paused_past_its_lease_finds_its_gate_closed() {
    block_on(async {
        let store = Store::default();
        let (a, b) = (Replica::default(), Replica::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(
            a.clone()
                .live(store.clone(), 0, SignedDuration::ZERO, SECOND),
        );
        sleep(SECOND).await;
        tasks.spawn(
            b.clone()
                .live(store.clone(), 1, SignedDuration::ZERO, SECOND),
        );
        sleep(10 * SECOND).await;
        assert!(a.leads() && !b.leads());
        let gate = a.life.lock().as_ref().unwrap().0.clone();
        a.freezer.freeze(30 * SECOND);
        sleep(14 * SECOND).await;
        assert!(gate.may_write().is_err() && !b.leads(), "closed before anybody else may lead");
        sleep(5 * SECOND).await;
        assert!(b.leads());
        assert_eq!(store.spec()["leaseTransitions"], json!(1));
        sleep(15 * SECOND).await;
        assert!(gate.may_write().is_err(), "and still when it runs again");
        assert!(matches!(a.outcomes.lock()[0], LeadershipOutcome::Lost { .. }));
    });
}
