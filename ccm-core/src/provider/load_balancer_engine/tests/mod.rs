//! The engine on a cloud whose load balancers have several parts.

mod shelf;

use std::{sync::Arc, time::Duration};

use futures::FutureExt as _;
use parking_lot::Mutex;

use self::shelf::{Cloud, INVALID_PORT, Objects, Shelf, UNREADY_PORT, reference, spec, status};
use super::LoadBalancerEngine;
use crate::{
    provider::{ErrorKind, LbOutcome, LbSpec, LoadBalancers as _, Op, Progress, ReadMode},
    write_gate::WriteGate,
};

/// An engine with its cloud.
struct Fixture {
    cloud: Arc<Mutex<Cloud>>,
    engine: LoadBalancerEngine<Shelf>,
    op: Op,
}

impl Fixture {
    fn new() -> Self {
        let shelf = Shelf::default();
        Self {
            cloud: shelf.0.clone(),
            engine: LoadBalancerEngine::new(shelf),
            op: op(WriteGate::always_open()),
        }
    }

    /// Returns a fixture whose load balancer has port 80 and member `a`.
    async fn in_sync() -> Self {
        let fixture = Self::new();
        let outcome = fixture.ensure(&spec(&[80], &["a"]), ReadMode::Cached).await;
        assert!(is_done(&outcome));
        fixture.requests();
        fixture
    }

    async fn ensure(&self, spec: &LbSpec, read_mode: ReadMode) -> LbOutcome {
        self.engine.ensure(&self.op, spec, read_mode).await
    }

    async fn update(&self, spec: &LbSpec) -> LbOutcome {
        self.engine.update_backends(&self.op, spec).await
    }

    async fn delete(&self) -> Progress {
        self.engine.delete(&self.op, &reference()).await.unwrap()
    }

    fn objects(&self) -> Objects {
        self.cloud.lock().objects.clone()
    }

    /// Returns the requests since the last call.
    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.cloud.lock().requests)
    }

    fn set(&self, change: impl FnOnce(&mut Cloud)) {
        change(&mut self.cloud.lock());
    }
}

fn op(gate: WriteGate) -> Op {
    Op::new("kubernetes", tokio_util::sync::CancellationToken::new(), gate)
}

fn is_done(outcome: &LbOutcome) -> bool {
    matches!(outcome.result, Ok(Progress::Done)) && outcome.status == Some(status())
}

fn objects(listeners: &[u16], members: &[&str]) -> Objects {
    Objects {
        has_frontend: true,
        listeners: listeners.iter().copied().collect(),
        members: members.iter().map(|name| (*name).to_owned()).collect(),
    }
}

fn pending(result: &LbOutcome) -> (Duration, &str) {
    match &result.result {
        Ok(Progress::Pending { after, reason }) => (*after, reason),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_load_balancer_is_made_and_then_costs_nothing() {
    let fixture = Fixture::new();
    let desired = spec(&[80, 443], &["a", "b"]);
    assert!(is_done(&fixture.ensure(&desired, ReadMode::Cached).await));
    assert_eq!(
        fixture.requests(),
        [
            "GET",
            "CreateFrontend",
            "CreateListener(80)",
            "CreateListener(443)",
            r#"SetMembers({"a", "b"})"#
        ]
    );
    assert!(is_done(&fixture.ensure(&desired, ReadMode::Cached).await));
    assert_eq!(fixture.requests(), [""; 0], "in sync");
    assert!(is_done(&fixture.ensure(&desired, ReadMode::Fresh).await));
    assert_eq!(fixture.requests(), ["GET"], "read again, and still in sync");
}

#[tokio::test]
async fn only_what_differs_is_changed() {
    let fixture = Fixture::in_sync().await;
    let changed = spec(&[443], &["a"]);
    assert!(is_done(&fixture.ensure(&changed, ReadMode::Cached).await));
    assert_eq!(fixture.requests(), ["CreateListener(443)", "DeleteListener(80)"]);
}

#[tokio::test]
async fn a_fresh_read_repairs_drift_that_a_cached_one_does_not_see() {
    let fixture = Fixture::in_sync().await;
    let desired = spec(&[80], &["a"]);
    fixture.set(|cloud| cloud.objects.listeners.clear());
    assert!(is_done(&fixture.ensure(&desired, ReadMode::Cached).await));
    assert_eq!(fixture.requests(), [""; 0]);
    assert!(is_done(&fixture.ensure(&desired, ReadMode::Fresh).await));
    assert_eq!(fixture.requests(), ["GET", "CreateListener(80)"]);
}

#[tokio::test]
async fn members_are_updated_without_a_read_and_nothing_else_is() {
    let fixture = Fixture::in_sync().await;
    let outcome = fixture.update(&spec(&[80, 443], &["b"])).await;
    assert_eq!(outcome.result.unwrap(), Progress::Done);
    assert_eq!(fixture.requests(), [r#"SetMembers({"b"})"#]);
    assert_eq!(fixture.objects(), objects(&[80], &["b"]), "no listener for the new port");
    // The new port was not applied, so `ensure` has to do it, although the members are right.
    assert!(is_done(
        &fixture
            .ensure(&spec(&[80, 443], &["b"]), ReadMode::Cached)
            .await
    ));
    assert_eq!(fixture.requests(), ["CreateListener(443)"]);
}

#[tokio::test]
async fn a_service_that_changes_back_is_not_taken_for_what_was_applied_before() {
    let applied = spec(&[80], &["a"]);
    let fixture = Fixture::in_sync().await;
    fixture
        .update(&spec(&[80, 443], &["b"]))
        .await
        .result
        .unwrap();
    assert!(is_done(&fixture.ensure(&applied, ReadMode::Cached).await));
    assert_eq!(fixture.objects(), objects(&[80], &["a"]), "after an update of members");

    let fixture = Fixture::in_sync().await;
    pending(
        &fixture
            .ensure(&spec(&[80, UNREADY_PORT], &["b"]), ReadMode::Cached)
            .await,
    );
    assert!(is_done(&fixture.ensure(&applied, ReadMode::Cached).await));
    assert_eq!(fixture.objects(), objects(&[80], &["a"]), "after a change that was not finished");
}

#[tokio::test]
async fn members_of_an_invalid_service_are_updated_and_its_change_is_rejected() {
    let fixture = Fixture::in_sync().await;
    let invalid = spec(&[80, INVALID_PORT], &["a", "b"]);
    let error = fixture
        .ensure(&invalid, ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(fixture.requests(), [""; 0]);
    assert_eq!(fixture.update(&invalid).await.result.unwrap(), Progress::Done);
    assert_eq!(fixture.requests(), [r#"SetMembers({"a", "b"})"#]);
}

#[tokio::test]
async fn an_update_without_a_load_balancer_is_not_found_and_makes_nothing() {
    let fixture = Fixture::new();
    let error = fixture
        .update(&spec(&[80], &["a"]))
        .await
        .result
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(fixture.requests(), ["GET"]);
}

#[tokio::test]
async fn a_deferred_request_holds_up_no_other_and_its_retry_reads_nothing() {
    let fixture = Fixture::new();
    let desired = spec(&[UNREADY_PORT, 80], &["a"]);
    for read_mode in [ReadMode::Cached, ReadMode::Fresh] {
        let outcome = fixture.ensure(&desired, read_mode).await;
        assert_eq!(pending(&outcome), (Duration::from_secs(7), "the port is not ready"));
        assert_eq!(outcome.status, Some(status()), "it serves already");
        assert_eq!(fixture.objects(), objects(&[80], &["a"]));
        let reads = fixture
            .requests()
            .iter()
            .filter(|name| *name == "GET")
            .count();
        assert_eq!(reads, usize::from(read_mode == ReadMode::Cached));
    }
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_call_is_continued_only_for_ten_minutes() {
    let fixture = Fixture::new();
    let desired = spec(&[UNREADY_PORT], &[]);
    fixture.ensure(&desired, ReadMode::Cached).await;
    fixture.requests();
    tokio::time::advance(Duration::from_secs(599)).await;
    fixture.ensure(&desired, ReadMode::Fresh).await;
    assert_eq!(fixture.requests(), [""; 0]);
    tokio::time::advance(Duration::from_secs(2)).await;
    fixture.ensure(&desired, ReadMode::Fresh).await;
    assert_eq!(fixture.requests(), ["GET"]);
}

#[tokio::test]
async fn a_busy_load_balancer_is_pending_and_gets_no_request() {
    let fixture = Fixture::in_sync().await;
    fixture.set(|cloud| cloud.is_busy = true);
    let changed = spec(&[81], &["a"]);
    let outcome = fixture.ensure(&changed, ReadMode::Cached).await;
    assert_eq!(pending(&outcome).1, "it is busy");
    assert_eq!(fixture.requests(), [""; 0]);
    fixture.set(|cloud| cloud.is_busy = false);
    assert!(is_done(&fixture.ensure(&changed, ReadMode::Fresh).await));
    assert_eq!(
        fixture.requests(),
        ["CreateListener(81)", "DeleteListener(80)"],
        "continued without a read"
    );
}

#[tokio::test]
async fn a_load_balancer_without_address_is_pending_and_read_again() {
    let fixture = Fixture::new();
    fixture.set(|cloud| cloud.lacks_address = true);
    let desired = spec(&[80], &["a"]);
    let outcome = fixture.ensure(&desired, ReadMode::Fresh).await;
    // The answer to the creation does not say whether there is an address.
    assert_eq!(pending(&outcome).1, "the load balancer has no address yet");
    assert_eq!(outcome.status, None);
    fixture.set(|cloud| cloud.lacks_address = false);
    fixture.requests();
    assert!(is_done(&fixture.ensure(&desired, ReadMode::Fresh).await));
    assert_eq!(fixture.requests(), ["GET"]);
}

#[tokio::test]
async fn the_own_rate_limit_is_pending_and_forgets_nothing() {
    let fixture = Fixture::in_sync().await;
    fixture.set(|cloud| cloud.is_rate_limited = true);
    let changed = spec(&[80], &["b"]);
    let outcome = fixture.ensure(&changed, ReadMode::Cached).await;
    assert_eq!(pending(&outcome).0, Duration::from_secs(3));
    assert_eq!(outcome.status, Some(status()));
    fixture.set(|cloud| cloud.is_rate_limited = false);
    assert!(is_done(&fixture.ensure(&changed, ReadMode::Fresh).await));
    assert_eq!(fixture.requests(), [r#"SetMembers({"b"})"#], "continued without a read");
}

#[tokio::test]
async fn a_lost_lease_sends_nothing_and_forgets_nothing() {
    let mut fixture = Fixture::in_sync().await;
    fixture.op = op(WriteGate::always_closed());
    let changed = spec(&[80], &["b"]);
    let error = fixture
        .ensure(&changed, ReadMode::Cached)
        .await
        .result
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotLeader);
    fixture.op = op(WriteGate::always_open());
    assert!(is_done(&fixture.ensure(&changed, ReadMode::Cached).await));
    assert_eq!(fixture.requests(), [r#"SetMembers({"b"})"#]);
}

#[tokio::test]
async fn a_deletion_removes_everything_and_needs_nothing_to_exist() {
    let fixture = Fixture::in_sync().await;
    assert_eq!(fixture.delete().await, Progress::Done);
    assert_eq!(fixture.requests(), ["GET", "DeleteListener(80)", "DeleteFrontend"]);
    assert_eq!(fixture.objects(), Objects::default());
    assert_eq!(fixture.delete().await, Progress::Done);
    assert_eq!(fixture.requests(), ["GET"]);
    // A Service of the same UID is served anew.
    assert!(is_done(&fixture.ensure(&spec(&[80], &["a"]), ReadMode::Cached).await));
    assert_eq!(fixture.objects(), objects(&[80], &["a"]));
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_one_without_differences_is_remembered() {
    let fixture = Fixture::in_sync().await;
    let changed = spec(&[81], &["a"]);
    let changes = fixture.engine.plan(&fixture.op, &changed).await.unwrap();
    let operations: Vec<_> = changes.iter().map(|change| &*change.operation).collect();
    assert_eq!(operations, ["CreateListener(81)", "DeleteListener(80)", "publish_status"]);
    assert_eq!(fixture.requests(), ["GET"]);

    let mut published = spec(&[80], &["a"]);
    Arc::make_mut(&mut published.service).status = status();
    assert_eq!(fixture.engine.plan(&fixture.op, &published).await.unwrap(), []);
    fixture.requests();
    assert!(is_done(&fixture.ensure(&published, ReadMode::Cached).await));
    assert_eq!(fixture.requests(), [""; 0]);
}

/// What is done to a load balancer with port 80 and member `a`.
#[derive(Clone, Copy, Debug)]
enum Call {
    Ensure,
    Update,
    Delete,
}

impl Call {
    const ALL: [Self; 3] = [Self::Ensure, Self::Update, Self::Delete];

    async fn run(self, fixture: &Fixture, read_mode: ReadMode) -> Result<Progress, ErrorKind> {
        let result = match self {
            Self::Ensure => {
                fixture
                    .ensure(&spec(&[81, 82], &["b"]), read_mode)
                    .await
                    .result
            }
            Self::Update => fixture.update(&spec(&[80], &["b"])).await.result,
            Self::Delete => fixture.engine.delete(&fixture.op, &reference()).await,
        };
        result.map_err(|error| error.kind())
    }

    fn end(self) -> Objects {
        match self {
            Self::Ensure => objects(&[81, 82], &["b"]),
            Self::Update => objects(&[80], &["b"]),
            Self::Delete => Objects::default(),
        }
    }
}

#[tokio::test]
async fn after_an_error_of_any_request_the_next_call_reaches_the_goal() {
    let kinds = [ErrorKind::Transient, ErrorKind::Conflict, ErrorKind::NotFound];
    let mut faults = 0;
    for call in Call::ALL {
        for (kind, is_carried_out) in kinds
            .into_iter()
            .flat_map(|kind| [(kind, false), (kind, true)])
        {
            for at in 0.. {
                let fixture = Fixture::in_sync().await;
                fixture.set(|cloud| cloud.fault = Some((at, kind, is_carried_out)));
                let result = call.run(&fixture, ReadMode::Fresh).await;
                if result == Ok(Progress::Done) {
                    assert!(
                        fixture.requests().len() <= at,
                        "{call:?}: the fault at {at} is an error"
                    );
                    break;
                }
                faults += 1;
                let expected = if kind == ErrorKind::NotFound {
                    ErrorKind::Transient
                } else {
                    kind
                };
                assert_eq!(result, Err(expected), "{call:?}, fault at {at}");
                fixture.set(|cloud| cloud.fault = None);
                assert_eq!(call.run(&fixture, ReadMode::Cached).await, Ok(Progress::Done));
                assert_eq!(fixture.objects(), call.end(), "{call:?}, {kind:?} at {at}");
            }
        }
    }
    assert!(faults > 30, "{faults} faults are too few to have hit each request");
}

#[tokio::test]
async fn after_a_call_was_dropped_anywhere_the_next_one_reaches_the_goal() {
    let mut drops = 0;
    for call in Call::ALL {
        for polls in 1.. {
            let fixture = Fixture::in_sync().await;
            {
                let mut run = Box::pin(call.run(&fixture, ReadMode::Fresh));
                let mut is_finished = false;
                for _ in 0..polls {
                    is_finished |= run.as_mut().now_or_never().is_some();
                    if is_finished {
                        break;
                    }
                }
                if is_finished {
                    break;
                }
            }
            drops += 1;
            assert_eq!(call.run(&fixture, ReadMode::Cached).await, Ok(Progress::Done));
            assert_eq!(fixture.objects(), call.end(), "{call:?}, dropped after {polls} polls");
        }
    }
    assert!(drops > 12, "{drops} drops are too few to have hit each request");
}

#[tokio::test]
async fn what_the_cloud_cannot_tell_survives_errors_and_dropped_calls() {
    let fixture = Fixture::in_sync().await;
    let memory = || fixture.engine.memory("u1");
    assert_eq!(memory(), 1);
    fixture.set(|cloud| cloud.fault = Some((0, ErrorKind::Transient, false)));
    fixture
        .ensure(&spec(&[80], &["b"]), ReadMode::Cached)
        .await
        .result
        .unwrap_err();
    assert_eq!(memory(), 2);
    let desired = spec(&[80], &["c"]);
    assert!(
        fixture
            .ensure(&desired, ReadMode::Fresh)
            .now_or_never()
            .is_none()
    );
    assert_eq!(memory(), 2);
}
