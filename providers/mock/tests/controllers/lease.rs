//! What the process does while it does not lead, when it stops leading, and that nothing is written
//! after that.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::manager::ManagerExit;
use ccm_mock::cloud::{CallHook, Operation};
use ccm_testkit::apiserver::{Action, Match};
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::{AGENT, TestCluster, addresses, is_initialized, secs};

/// Few requests a second, so that writes wait for their turn when the gate closes.
const FLAGS: [&str; 3] = ["--leader-elect=true", "--kube-api-qps=2", "--kube-api-burst=1"];

fn lease(world: &TestCluster) -> Value {
    let key = ("coordination.k8s.io", "leases");
    let object = world
        .server
        .store()
        .get(key, "kube-system", "cloud-controller-manager");
    object.map_or(Value::Null, |object| object.value())
}

/// Starts of writes about nodes after the last renewal of the lease, in seconds; `slow` is what
/// each of them takes.
fn ages_of_writes(world: &TestCluster, slow: Duration) -> Vec<f64> {
    let renewals = world.write_log(Match::resource("leases"));
    let last_renewal = renewals
        .iter()
        .rfind(|entry| entry.status.is_some())
        .unwrap()
        .time;
    let log = world.write_log(Match::any());
    let ours = log.iter().filter(|e| {
        let election = e.body["source"]["component"] == "cloud-controller-manager";
        ["nodes", "events"].contains(&e.request.resource.as_str()) && !election
    });
    ours.map(|entry| entry.time.duration_since(last_renewal).as_secs_f64() - slow.as_secs_f64())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_once_leadership_cannot_be_proved() {
    let refused = Action::Error { code: StatusCode::INTERNAL_SERVER_ERROR, retry_after: None };
    let ways =
        [("refused", refused), ("lost", Action::Drop), ("hanging", Action::Delay(secs(3600)))];
    // Writes that wait for their turn when the gate closes, and writes that follow one which is on
    // its way then.
    let paces = [(&FLAGS[..], Duration::ZERO), (&FLAGS[..1], Duration::from_millis(700))];
    for ((how, action), (flags, slow)) in ways
        .iter()
        .flat_map(|way| paces.iter().map(move |pace| (way, pace)))
    {
        let case = format!("{how}, {slow:?}");
        let world = TestCluster::provisioned();
        let ccm = world.start(flags);
        world
            .server
            .faults()
            .add(Match::any().writes().user_agent("node-controller"), Action::Delay(*slow));
        let join = async {
            for index in 0.. {
                world.join([format!("n{index}")]).await;
                tokio::time::sleep(Duration::from_millis(90)).await;
            }
        };
        let lose = async {
            world
                .until("it works", secs(60), || world.node_writes().len() > 20)
                .await;
            world
                .server
                .faults()
                .add(Match::resource("leases").user_agent(AGENT), action.clone());
            ccm.ended().await.unwrap()
        };
        let exit = tokio::select! {
            exit = lose => exit,
            () = join => unreachable!("nodes join without end"),
        };
        assert!(matches!(exit, ManagerExit::LeadershipLost(_)), "{case}: {exit:?}");
        tokio::time::sleep(secs(120)).await;
        let ages = ages_of_writes(&world, *slow);
        assert!(ages.iter().any(|age| *age > 10.0), "{case}: it goes on while it is sure");
        // The next renewal is due after 2 s and is tried for 10 s, as upstream; others may lead
        // after 15 s.
        assert!(ages.iter().all(|age| *age <= 12.0), "{case}: a write after {:?} s", ages.last());
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_asks_for_the_lease_and_for_nothing_else() {
    let world = TestCluster::provisioned();
    let leader = world.start(&["--leader-elect=true"]);
    world.join(["a"]).await;
    world.until_initialized(&["a"], secs(60)).await;
    drop(leader);
    // The lease of the one that crashed runs for 15 s more.
    world.server.log().clear();
    let calls = world.cloud.calls();
    let _standby = world.start(&["--leader-elect=true"]);
    tokio::time::sleep(secs(10)).await;
    let log = world.server.log().matching(&Match::any().user_agent(AGENT));
    let others: Vec<_> = log
        .iter()
        .map(|e| &e.request)
        .filter(|r| r.resource != "leases")
        .map(|r| &r.path)
        .collect();
    assert!(others.iter().all(|path| *path == "/healthz"), "{others:?}");
    assert!(log.len() > others.len());
    assert_eq!(world.cloud.calls(), calls);
}

#[tokio::test(start_paused = true)]
async fn a_stop_releases_the_lease_and_the_other_works_within_three_seconds() {
    let world = TestCluster::provisioned();
    let first = world.start(&["--leader-elect=true"]);
    world.join(["a"]).await;
    world.until_initialized(&["a"], secs(60)).await;
    let _second = world.start(&["--leader-elect=true"]);
    tokio::time::sleep(secs(30)).await;
    let holder = lease(&world)["spec"]["holderIdentity"].clone();
    assert_eq!(first.stop().await, ManagerExit::Stopped);
    assert_ne!(lease(&world)["spec"]["holderIdentity"], holder);
    world.join(["b"]).await;
    let took = world.until_initialized(&["b"], secs(60)).await;
    assert!(took <= secs(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_begun_is_ended_and_told_before_the_lease_is_released() {
    let world = TestCluster::provisioned();
    let ccm = world.start(&["--leader-elect=true"]);
    world.join(["a"]).await;
    world.until_initialized(&["a"], secs(60)).await;
    let slow = Action::Delay(Duration::from_millis(300));
    world
        .server
        .faults()
        .add(Match::resource("nodes").verb("patch").user_agent(AGENT), slow);
    world.join(["b"]).await;
    world
        .until("its first write is on its way", secs(10), || {
            world.cloud.calls().describe_instances >= 2
        })
        .await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(addresses(&world.node("b")).is_empty());
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    assert!(is_initialized(&world.node("b")));
    assert_eq!(world.event_count("Synced"), 2);
    let log = world.write_log(Match::any());
    let last = |resource: &str| {
        log.iter()
            .rfind(|e| e.request.resource == resource)
            .map(|e| e.number)
    };
    assert!(last("leases") > last("nodes"));
    assert_eq!(
        log.last().map(|e| e.request.resource.as_str()),
        Some("events"),
        "that it stopped leading"
    );
}

/// Makes calls of one operation slow, before their effect.
struct Slow {
    operation: Operation,
    time: Duration,
    /// When each began.
    begun: Arc<Mutex<Vec<Instant>>>,
}

#[async_trait]
impl CallHook for Slow {
    async fn before(&self, _: u64, operation: Operation) {
        if operation == self.operation {
            self.begun.lock().push(Instant::now());
            tokio::time::sleep(self.time).await;
        }
    }

    async fn after(&self, _: u64, _: Operation) {}
}

/// A leader with a Service, at the moment at which a call to the cloud about its balancer is on its
/// way, and another process that waits.
async fn stopped_during(
    operation: Operation,
    time: Duration,
) -> (TestCluster, Duration, Vec<Instant>) {
    let world = TestCluster::provisioned();
    let flags = ["--leader-elect=true", "--controllers=service"];
    let ccm = world.start(&flags);
    world.have_nodes(["a"]).await;
    tokio::time::sleep(secs(5)).await;
    let begun = Arc::<Mutex<Vec<_>>>::default();
    world
        .cloud
        .set_hook(Some(Arc::new(Slow { operation, time, begun: begun.clone() })));
    let _second = world.start(&flags);
    world.serve("web").await;
    world
        .until("the call is on its way", secs(10), || !begun.lock().is_empty())
        .await;
    let begin = Instant::now();
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    let took = begin.elapsed();
    // For the second one.
    world.until_served(&["web"], secs(90)).await;
    let begun = begun.lock().clone();
    (world, took, begun)
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_cloud_that_ends_in_time_is_finished_and_the_lease_released() {
    let (world, took, begun) =
        stopped_during(Operation::CreateLoadBalancer, Duration::from_millis(900)).await;
    assert!(took < secs(1), "{took:?}");
    assert_eq!(begun.len(), 1, "whoever came next had nothing to make");
    assert_eq!(world.cloud.load_balancers().len(), 1);
    assert_eq!(released(&world), 1);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_cloud_that_is_given_up_keeps_the_lease_until_it_runs_out() {
    let (world, took, begun) = stopped_during(Operation::CreateLoadBalancer, secs(10)).await;
    assert!((secs(1)..secs(2)).contains(&took), "{took:?}");
    assert_eq!(released(&world), 0);
    // The last renewal was two seconds before at most.
    let [first, second] = begun[..] else {
        panic!("{begun:?}")
    };
    assert!(second - first >= secs(12), "{:?}", second - first);
}

#[tokio::test(start_paused = true)]
async fn a_question_is_given_up_at_once_and_the_lease_released() {
    let (world, took, _) = stopped_during(Operation::GetLoadBalancer, secs(10)).await;
    assert!(took < Duration::from_millis(500), "{took:?}");
    assert_eq!(released(&world), 1);
}

#[tokio::test(start_paused = true)]
async fn a_write_to_the_api_server_that_is_given_up_keeps_the_lease() {
    for (resource, verb, releases) in [("nodes", "patch", 0), ("events", "create", 1)] {
        let world = TestCluster::provisioned();
        let ccm = world.start(&["--leader-elect=true"]);
        tokio::time::sleep(secs(5)).await;
        let slow = Match::resource(resource).verb(verb).user_agent(AGENT);
        world.server.faults().add(slow, Action::Delay(secs(10)));
        world.join(["a"]).await;
        world
            .until("the node is looked at", secs(10), || world.cloud.calls().describe_instances > 0)
            .await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(ccm.stop().await, ManagerExit::Stopped);
        assert_eq!(released(&world), releases, "{resource}");
    }
}

/// How often a holder gave the lease back.
fn released(world: &TestCluster) -> usize {
    let log = world.write_log(Match::resource("leases"));
    log.iter()
        .filter(|entry| entry.body["spec"]["holderIdentity"] == "")
        .count()
}

#[tokio::test(start_paused = true)]
async fn controllers_that_wait_for_their_start_do_not_hold_up_the_end() {
    let world = TestCluster::provisioned();
    let ccm = world.start(&["--leader-elect=true", "--controller-start-interval=1h"]);
    world.join(["a"]).await;
    world.until_initialized(&["a"], secs(60)).await;
    tokio::time::sleep(secs(5)).await;
    let begin = Instant::now();
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
}
