use std::time::Duration;

use prometheus::Registry;
use serde_json::json;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::*,
    store::{Fault, Store},
};
use crate::{
    runtime::events::{EventMetrics, EventWriter},
    telemetry::{log_capture::LogCapture, logging},
};

const SECOND: Duration = Duration::from_secs(1);

/// A process with one elector: acquires, leads, and ends with an outcome.
struct Process {
    gate: WriteGate,
    health: LeaseHealth,
    stop: CancellationToken,
    registry: Registry,
    /// Keeps the queue of events.
    _events: EventWriter,
    task: JoinHandle<Option<LeadershipOutcome>>,
}

/// Returns the value of a family with one member, labelled with the name of the Lease.
#[allow(clippy::cast_possible_truncation)]
fn value(registry: &Registry, name: &str) -> i64 {
    let families = registry.gather();
    let metric = &families
        .iter()
        .find(|f| f.name() == name)
        .expect(name)
        .get_metric()[0];
    assert_eq!((metric.get_label()[0].name(), metric.get_label()[0].value()), ("name", "ccm"));
    (metric.get_gauge().get_value() + metric.get_counter().get_value()) as i64
}

fn config(identity: &str) -> ElectionConfig {
    ElectionConfig {
        namespace: "kube-system".into(),
        name: "ccm".into(),
        identity: identity.into(),
        lease_duration: 15 * SECOND,
        renew_deadline: 10 * SECOND,
        retry_period: 2 * SECOND,
    }
}

fn elector(store: &Store, identity: &str, registry: &Registry) -> (LeaderElector, EventWriter) {
    let wall = WallClock::tokio_from("2026-01-01T00:00:00Z".parse().unwrap());
    let (events, driver) = EventRecorder::new(
        store.client(),
        "cloud-controller-manager",
        WriteGate::always_open(),
        EventMetrics::register(registry).unwrap(),
        wall.clone(),
    );
    let metrics = LeaderElectionMetrics::register(registry).unwrap();
    (
        LeaderElector::new(store.client(), config(identity), metrics, events, wall).unwrap(),
        driver,
    )
}

fn process(store: &Store, identity: &str) -> Process {
    let registry = Registry::new();
    let (elector, driver) = elector(store, identity, &registry);
    let (gate, health, stop) = (elector.gate(), elector.health(), CancellationToken::new());
    let token = stop.clone();
    let task = tokio::spawn(async move {
        let leading = elector.acquire(&token).await?;
        Some(leading.run(&token, async {}, SECOND).await)
    });
    Process { gate, health, stop, registry, _events: driver, task }
}

impl Process {
    fn leads(&self) -> bool {
        self.gate.may_write().is_ok()
    }

    /// Waits until the gate opens; returns how long that took.
    async fn until_leading(&self) -> Duration {
        let start = Instant::now();
        while !self.leads() {
            sleep(Duration::from_millis(10)).await;
            assert!(start.elapsed() < 100 * SECOND, "never led");
        }
        start.elapsed()
    }

    fn metric(&self, name: &str) -> i64 {
        value(&self.registry, name)
    }

    async fn outcome(self) -> Option<LeadershipOutcome> {
        self.task.await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_creates_the_lease_as_client_go_does() {
    let store = Store::default();
    let a = process(&store, "host_1");
    assert!(!a.leads());
    assert!(a.until_leading().await < SECOND);
    assert_eq!(
        store.spec(),
        json!({
            "holderIdentity": "host_1",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.000000Z",
            "leaseTransitions": 0,
        })
    );
    assert_eq!(store.take_requests(), ["GET", "POST"]);
    sleep(Duration::from_millis(2500)).await;
    assert_eq!(store.take_requests(), ["PUT"], "renewed without a look");
    let spec = store.spec();
    assert_eq!(spec["acquireTime"], "2026-01-01T00:00:00.000000Z");
    assert_eq!(spec["leaseTransitions"], 0);
    assert!(
        spec["renewTime"]
            .as_str()
            .unwrap()
            .starts_with("2026-01-01T00:00:02.")
    );
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_within_three_seconds() {
    // Whatever the phase of the standby's looks is.
    for phase in 0..22 {
        let store = Store::default();
        let a = process(&store, "a");
        a.until_leading().await;
        let b = process(&store, "b");
        sleep(7 * SECOND + phase * SECOND / 10).await;
        assert!(a.leads() && !b.leads());
        a.stop.cancel();
        let took = b.until_leading().await;
        assert!(took <= 3 * SECOND, "{took:?}");
        assert!(!a.leads());
        assert_eq!(a.outcome().await, Some(LeadershipOutcome::Released));
        assert_eq!(store.spec()["leaseTransitions"], 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_does_not_stretch_the_deadline() {
    let store = Store::default();
    let a = process(&store, "a");
    a.until_leading().await;
    let start = Instant::now();
    store.choose(|_| Fault::refuse(500));
    sleep(9 * SECOND).await;
    store.choose(|_| Fault { lose_answer: true, ..Fault::default() });
    assert!(matches!(a.outcome().await, Some(LeadershipOutcome::Lost { .. })));
    assert!(start.elapsed() <= Duration::from_millis(12_100), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_silent_holder_is_replaced_after_the_duration_it_wrote_counted_here() {
    for skew in [
        "2020-01-01T00:00:00Z",
        "2026-01-01T00:00:00.5Z",
        "2031-01-01T01:00:00+01:00",
        "nonsense",
    ] {
        let store = Store::default();
        store.put_spec(
            json!({"holderIdentity": "go_1", "leaseDurationSeconds": 20, "renewTime": skew,
            "acquireTime": skew, "leaseTransitions": 4}),
        );
        let b = process(&store, "b");
        let took = b.until_leading().await;
        assert!(took >= 20 * SECOND && took < 21 * SECOND, "{skew}: {took:?}");
        assert_eq!(store.spec()["leaseTransitions"], 5);
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_renews_keeps_the_lease_whatever_its_clock_says() {
    let store = Store::default();
    let renewals =
        ["2031-01-01T00:00:00Z", "2020-01-01T00:00:00.123456Z", "2020-01-01T00:00:00.1Z", "0"];
    store.put_spec(json!({"holderIdentity": "go_1", "leaseDurationSeconds": 15}));
    let b = process(&store, "b");
    for renewal in renewals.iter().cycle().take(20) {
        sleep(14 * SECOND).await;
        assert!(!b.leads());
        store.put_spec(
            json!({"holderIdentity": "go_1", "leaseDurationSeconds": 15, "renewTime": renewal}),
        );
    }
    assert!(store.take_requests().iter().all(|verb| verb == "GET"));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_go_released_is_taken_at_once() {
    let store = Store::default();
    store.put_spec(json!({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 7,
        "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z"}));
    let b = process(&store, "b");
    assert!(b.until_leading().await < SECOND);
    assert_eq!(store.spec()["leaseTransitions"], 8);
}

#[tokio::test(start_paused = true)]
async fn a_malformed_lease_is_waited_for_with_our_own_duration() {
    for spec in [
        json!({"holderIdentity": "x"}),
        json!({"holderIdentity": "x", "leaseDurationSeconds": "soon", "renewTime": [1]}),
        json!({"holderIdentity": "x", "leaseDurationSeconds": 0, "leaseTransitions": "many"}),
    ] {
        let store = Store::default();
        store.put_spec(spec.clone());
        let took = process(&store, "b").until_leading().await;
        assert!(took >= 15 * SECOND && took < 16 * SECOND, "{spec}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_costs_a_look_and_foreign_metadata_survives() {
    let store = Store::default();
    let a = process(&store, "a");
    a.until_leading().await;
    store.take_requests();
    store.annotate("team", "blue");
    sleep(Duration::from_millis(2500)).await;
    assert_eq!(store.take_requests(), ["PUT", "GET", "PUT"]);
    assert!(a.leads());
    assert_eq!(store.lease().unwrap()["metadata"]["annotations"]["team"], "blue");
    assert_eq!(a.metric("leader_election_slowpath_total"), 1);
    assert_eq!(a.metric("leader_election_master_status"), 1);
}

#[tokio::test(start_paused = true)]
async fn errors_for_less_than_the_deadline_are_survived() {
    let lost = Fault { lose_answer: true, ..Fault::default() };
    // A request without answer takes 5 s, so that there is time for one of them only.
    for (fault, seconds) in
        [(Fault::refuse(500), 9), (Fault::refuse(503), 9), (Fault::refuse(403), 9), (lost, 6)]
    {
        let store = Store::default();
        let a = process(&store, "a");
        a.until_leading().await;
        store.choose(move |_| fault);
        sleep(seconds * SECOND).await;
        store.heal();
        sleep(10 * SECOND).await;
        assert!(a.leads(), "{fault:?}");
        assert_eq!(store.spec()["leaseTransitions"], 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_gives_up_before_others_may_lead() {
    let store = Store::default();
    let a = process(&store, "a");
    a.until_leading().await;
    store.choose(|_| Fault::refuse(500));
    let start = Instant::now();
    sleep(Duration::from_millis(11_900)).await;
    assert!(a.leads(), "deadline counts from when the renewal was due, as upstream");
    let gate = a.gate.clone();
    assert!(a.health.last_renewal_age().is_some());
    let registry = a.registry.clone();
    let outcome = a.outcome().await.unwrap();
    assert!(start.elapsed() < 15 * SECOND);
    assert!(
        matches!(outcome, LeadershipOutcome::Lost { reason: LostReason::NotRenewed(Some(_)) }),
        "{outcome:?}"
    );
    assert!(gate.may_write().is_err());
    assert_eq!(value(&registry, "leader_election_master_status"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_sees_another_holder_stops_at_once() {
    let store = Store::default();
    let a = process(&store, "a");
    a.until_leading().await;
    store.put_spec(json!({"holderIdentity": "go_1", "leaseDurationSeconds": 15}));
    sleep(Duration::from_millis(2100)).await;
    assert!(!a.leads());
    assert_eq!(
        a.outcome().await,
        Some(LeadershipOutcome::Lost { reason: LostReason::TakenBy("go_1".into()) })
    );
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_created_again_by_its_holder() {
    let store = Store::default();
    let a = process(&store, "a");
    a.until_leading().await;
    let b = process(&store, "b");
    sleep(5 * SECOND).await;
    let acquired = store.spec()["acquireTime"].clone();
    store.delete();
    for _ in 0..300 {
        sleep(Duration::from_millis(100)).await;
        assert!(a.leads() && !b.leads());
    }
    assert_eq!(store.spec()["holderIdentity"], "a");
    assert_eq!(store.spec()["acquireTime"], acquired);
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_tried_on_until_it_is_there() {
    let store = Store::default();
    store.choose(|_| Fault::refuse(403));
    let a = process(&store, "a");
    sleep(100 * SECOND).await;
    assert!(!a.leads());
    let tries = store.take_requests().len();
    assert!((20..=51).contains(&tries), "{tries} in 100 s");
    store.heal();
    assert!(a.until_leading().await <= Duration::from_millis(4410));
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_stops_leaves_the_lease_alone() {
    let store = Store::default();
    let a = process(&store, "a");
    a.until_leading().await;
    let b = process(&store, "b");
    sleep(5 * SECOND).await;
    b.stop.cancel();
    assert_eq!(b.outcome().await, None);
    assert_eq!(store.spec()["holderIdentity"], "a");
}

#[tokio::test(start_paused = true)]
async fn a_claim_on_its_way_when_stopped_is_taken_back() {
    let store = Store::default();
    store.next([Fault::default(), Fault { after: 3 * SECOND, ..Fault::default() }]);
    let a = process(&store, "a");
    sleep(SECOND).await;
    assert_eq!(store.spec()["holderIdentity"], "a", "the claim arrived");
    a.stop.cancel();
    assert_eq!(a.outcome().await, None);
    assert_eq!(store.spec()["holderIdentity"], "");
}

#[tokio::test(start_paused = true)]
async fn release_follows_a_renewal_that_is_on_its_way() {
    let store = Store::default();
    let a = process(&store, "a");
    a.until_leading().await;
    // The renewal arrives after the look that precedes the release, and makes the release conflict.
    store.next([
        Fault { before: SECOND / 2, ..Fault::default() },
        Fault::default(),
        Fault { before: SECOND, ..Fault::default() },
    ]);
    sleep(Duration::from_millis(2100)).await;
    a.stop.cancel();
    assert_eq!(a.outcome().await, Some(LeadershipOutcome::Released));
    assert_eq!(store.spec()["holderIdentity"], "");
    assert_eq!(store.spec()["leaseDurationSeconds"], 1);
    sleep(10 * SECOND).await;
    assert_eq!(store.spec()["holderIdentity"], "", "nothing arrives late");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_told_apart() {
    let store = Store::default();
    let a = process(&store, "a");
    a.until_leading().await;
    store.choose(|_| Fault::refuse(500));
    a.stop.cancel();
    assert!(matches!(a.outcome().await, Some(LeadershipOutcome::NotReleased { .. })));
}

#[tokio::test(start_paused = true)]
async fn the_gate_closes_before_draining_and_the_lease_is_freed_after() {
    let store = Store::default();
    let registry = Registry::new();
    let elector = elector(&store, "a", &registry).0;
    let (gate, stop) = (elector.gate(), CancellationToken::new());
    let leading = elector.acquire(&stop).await.unwrap();
    assert!(gate.may_write().is_ok());
    stop.cancel();
    let drained = async {
        assert!(gate.may_write().is_err());
        sleep(SECOND / 2).await;
        assert_eq!(store.spec()["holderIdentity"], "a");
    };
    assert_eq!(leading.run(&stop, drained, SECOND).await, LeadershipOutcome::Released);
    assert_eq!(store.spec()["holderIdentity"], "");
}

#[tokio::test(start_paused = true)]
async fn draining_is_bounded() {
    let store = Store::default();
    let registry = Registry::new();
    let elector = elector(&store, "a", &registry).0;
    let stop = CancellationToken::new();
    let leading = elector.acquire(&stop).await.unwrap();
    stop.cancel();
    let start = Instant::now();
    assert_eq!(
        leading.run(&stop, std::future::pending(), SECOND).await,
        LeadershipOutcome::Released
    );
    assert!(start.elapsed() < Duration::from_millis(1100));
}

#[tokio::test(start_paused = true)]
async fn health_is_about_leaders_only() {
    let store = Store::default();
    let registry = Registry::new();
    let elector = elector(&store, "a", &registry).0;
    let health = elector.health();
    assert!(health.is_healthy() && health.last_renewal_age().is_none());
    let _leading = elector.acquire(&CancellationToken::new()).await.unwrap();
    sleep(35 * SECOND).await;
    assert!(health.is_healthy(), "a hanging leader: lease and 20 s");
    sleep(SECOND).await;
    assert!(!health.is_healthy());
}

#[tokio::test(start_paused = true)]
async fn a_standby_without_access_for_five_minutes_says_so_and_recovers() {
    let log = LogCapture::default();
    let writer = log.clone();
    let (dispatch, _) =
        logging::dispatch(&crate::config::LoggingConfig::default(), move || writer.clone());
    let _guard = tracing::dispatcher::set_default(&dispatch);
    let store = Store::default();
    store.put_spec(json!({"holderIdentity": "", "leaseDurationSeconds": 1}));
    let leader = process(&store, "a");
    leader.until_leading().await;
    let standby = process(&store, "b");
    sleep(10 * SECOND).await;
    // 401 to reads: the leader only writes.
    let refuse = |code| {
        store.choose(move |verb| {
            if verb == "GET" {
                Fault::refuse(code)
            } else {
                Fault::default()
            }
        });
    };
    let lines = |part: &str| {
        log.text()
            .lines()
            .filter(|line| line.contains(part))
            .count()
    };
    // Not long enough, twice.
    for _ in 0..2 {
        refuse(401);
        sleep(298 * SECOND).await;
        assert!(standby.health.can_lead());
        store.heal();
        sleep(5 * SECOND).await;
    }
    assert!(standby.health.standby_age().unwrap() <= 2 * SECOND);
    for (round, code) in [401, 403, 500].into_iter().enumerate() {
        refuse(code);
        sleep(302 * SECOND).await;
        assert!(!standby.health.can_lead(), "{code}");
        sleep(600 * SECOND).await;
        assert!(!standby.health.can_lead() && standby.health.is_healthy(), "{code}");
        assert_eq!(lines("this standby is not ready"), round + 1, "{}", log.text());
        store.heal();
        // At most the pause after a failure.
        sleep(5 * SECOND).await;
        assert!(standby.health.can_lead(), "{code}");
        assert_eq!(lines("this standby is ready"), round + 1, "{}", log.text());
    }
    assert!(leader.leads() && leader.health.can_lead() && leader.health.standby_age().is_none());
    // It still takes over.
    leader.stop.cancel();
    standby.until_leading().await;
    assert_eq!(standby.health.standby_age(), None);
}

#[tokio::test]
async fn contradicting_settings_are_refused() {
    let base = config("a");
    let cases = [
        (ElectionConfig { identity: String::new(), ..base.clone() }, InvalidElectionConfig::Empty),
        (
            ElectionConfig { retry_period: Duration::ZERO, ..base.clone() },
            InvalidElectionConfig::RetryPeriod,
        ),
        (
            ElectionConfig { lease_duration: 10 * SECOND, ..base.clone() },
            InvalidElectionConfig::LeaseDuration {
                lease_duration: 10 * SECOND,
                renew_deadline: 10 * SECOND,
            },
        ),
        (
            ElectionConfig { renew_deadline: Duration::from_millis(2400), ..base.clone() },
            InvalidElectionConfig::RenewDeadline {
                renew_deadline: Duration::from_millis(2400),
                retry_period: 2 * SECOND,
            },
        ),
    ];
    for (config, want) in cases {
        assert_eq!(config.validate().unwrap_err(), want);
    }
    assert!(base.validate().is_ok());
}

#[test]
fn identities_are_host_and_uuid() {
    let (a, b) = (identity("host"), identity("host"));
    assert!(a.starts_with("host_") && a.len() == "host_".len() + 36);
    assert_ne!(a, b);
}
