//! Each single write of an initialisation and of a deletion fails in every way, and the end is the
//! same.

use std::time::Duration;

use ccm_core::manager::ManagerExit;
use ccm_testkit::{
    apiserver::{Action, Change, Match},
    hooks::Point,
    kubelet::Ready,
};
use http::StatusCode;
use serde_json::{Value, json};

use crate::cluster::{AGENT, TestCluster, initialized, internal, is_initialized, secs};

/// How a request fails: its effect may be there or not.
pub(crate) const FAULTS: [(&str, Action); 9] = [
    ("lost before", Action::Drop),
    ("lost after", Action::DropReply),
    ("409", Action::Error { code: StatusCode::CONFLICT, retry_after: None }),
    ("422", Action::Error { code: StatusCode::UNPROCESSABLE_ENTITY, retry_after: None }),
    (
        "429 with details",
        Action::Error { code: StatusCode::TOO_MANY_REQUESTS, retry_after: Some(7) },
    ),
    ("429", Action::TooManyRequests { retry_after: 7 }),
    ("500", Action::Error { code: StatusCode::INTERNAL_SERVER_ERROR, retry_after: None }),
    ("503", Action::Error { code: StatusCode::SERVICE_UNAVAILABLE, retry_after: Some(7) }),
    ("no answer", Action::Delay(secs(45))),
];

/// The node without what differs between two runs.
fn essence(world: &TestCluster, name: &str) -> Value {
    let mut node = world.node(name);
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        node["metadata"].as_object_mut().unwrap().remove(field);
    }
    node["status"].as_object_mut().unwrap().remove("conditions");
    node
}

fn initial_world() -> TestCluster {
    let world = TestCluster::provisioned();
    world.put_instance(
        "a",
        json!({"addresses": [internal("10.0.0.1"), internal("fd00::1")], "additionalLabels": {"rack": "7"}}),
    );
    world
}

async fn fault_free() -> Value {
    let world = initial_world();
    let _ccm = world.start(&[]);
    world.join(["a"]).await;
    world.until_initialized(&["a"], secs(60)).await;
    essence(&world, "a")
}

#[tokio::test(start_paused = true)]
async fn an_initialisation_ends_the_same_whichever_write_fails_and_however() {
    let expected = fault_free().await;
    let nodes = || Match::resource("nodes").verb("patch").user_agent(AGENT);
    let writes = [
        ("status", nodes().subresource("status")),
        ("object", nodes().subresource("")),
        ("event", Match::resource("events").verb("create").user_agent(AGENT)),
    ];
    for (write, matching) in writes {
        for (fault, action) in FAULTS {
            let case = format!("{write}: {fault}");
            let world = initial_world();
            let id = world
                .server
                .faults()
                .add_times(matching.clone(), action.clone(), 1);
            let _ccm = world.start(&[]);
            world.join(["a"]).await;
            world.until_initialized(&["a"], secs(120)).await;
            tokio::time::sleep(secs(120)).await;
            assert_eq!(world.server.faults().met(id), 1, "{case}");
            assert_eq!(essence(&world, "a"), expected, "{case}");
            world.assert_never_untainted_without_addresses();
            // Events are told best-effort: one that the server refuses is not told again.
            let refused = write == "event" && ["409", "422"].contains(&fault);
            // The answer that says so was lost, and whoever looks again finds that nothing is left
            // to do.
            let unknown = write == "object" && fault == "lost after";
            let synced = world.event_count("Synced");
            assert!(
                synced == 1 || (synced == 0 && (refused || unknown)),
                "{case}: {synced} events"
            );
            if fault.starts_with("429") && write != "event" {
                let tries = world.server.log().matching(&matching);
                let pause = tries[1].time.duration_since(tries[0].time).as_secs_f64();
                assert!((7.0..8.0).contains(&pause), "{case}: again after {pause} s");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_initialisation_that_a_crash_interrupts_anywhere_is_completed_by_the_next_process() {
    let expected = fault_free().await;
    for number in 1..=3 {
        for point in [Point::Before, Point::After] {
            let world = initial_world();
            world.hooks.crash_at(number, point);
            let crashed = world.start(&[]);
            world.join(["a"]).await;
            tokio::time::timeout(secs(60), world.hooks.crashed())
                .await
                .expect("the write is reached");
            drop(crashed);
            world.hooks.reset();
            let _ccm = world.start(&[]);
            world.until_initialized(&["a"], secs(60)).await;
            tokio::time::sleep(secs(60)).await;
            assert_eq!(essence(&world, "a"), expected, "{number} {point:?}");
            world.assert_never_untainted_without_addresses();
            assert!(world.event_count("Synced") <= 1, "{number} {point:?}");
        }
    }
}

async fn deletion_world() -> TestCluster {
    let world = TestCluster::provisioned();
    let specs = ["dead", "a", "b", "c"].map(initialized);
    world.kubelets.register_all(specs).await.unwrap();
    world.cloud.delete_instance("dead");
    world
        .kubelets
        .set_ready("dead", Ready::Unknown)
        .await
        .unwrap();
    // One that lives and is not Ready either: the one to lose.
    world.kubelets.set_ready("c", Ready::Unknown).await.unwrap();
    world
}

fn assert_only_the_dead_one_was_deleted(world: &TestCluster, case: &str) {
    let history = world.history();
    let deleted: Vec<_> = history
        .iter()
        .filter(|(change, _)| *change == Change::Deleted)
        .collect();
    assert_eq!(deleted.len(), 1, "{case}");
    assert_eq!(deleted[0].1["metadata"]["name"], "dead", "{case}");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_ends_the_same_whichever_request_fails_and_however() {
    let nodes = || Match::resource("nodes").user_agent(AGENT).name("dead");
    let requests = [
        ("look", nodes().verb("get")),
        ("delete", nodes().verb("delete")),
        ("event", Match::resource("events").verb("create").user_agent(AGENT)),
    ];
    for (request, matching) in requests {
        for (fault, action) in FAULTS {
            let case = format!("{request}: {fault}");
            let world = deletion_world().await;
            let id = world.server.faults().add_times(matching.clone(), action, 1);
            let ccm = world.start(&["--controllers=cloud-node-lifecycle"]);
            world
                .until(&case, secs(180), || world.node("dead").is_null())
                .await;
            tokio::time::sleep(secs(300)).await;
            assert_eq!(world.server.faults().met(id), 1, "{case}");
            assert_only_the_dead_one_was_deleted(&world, &case);
            let told = world.event_count("DeletingNode");
            assert!(told == 1 || (request == "event" && told == 0), "{case}: told {told} times");
            assert_eq!(ccm.stop().await, ManagerExit::Stopped, "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_a_crash_interrupts_is_proved_again_by_the_next_process() {
    for (number, point) in
        [(1, Point::Before), (1, Point::After), (2, Point::Before), (2, Point::After)]
    {
        let case = format!("{number} {point:?}");
        let world = deletion_world().await;
        world.hooks.crash_at(number, point);
        let crashed = world.start(&[]);
        tokio::time::timeout(secs(60), world.hooks.crashed())
            .await
            .expect("the write is reached");
        drop(crashed);
        world.hooks.reset();
        let asked = world.cloud.calls().describe_instances;
        let _ccm = world.start(&[]);
        world
            .until(&case, secs(60), || world.node("dead").is_null())
            .await;
        tokio::time::sleep(secs(300)).await;
        assert_only_the_dead_one_was_deleted(&world, &case);
        assert!(
            world.cloud.calls().describe_instances >= asked + 2,
            "{case}: the proof is not handed on"
        );
    }
}

/// The server is away for a while: whoever joins then is initialised soon after it is back.
#[tokio::test(start_paused = true)]
async fn an_outage_of_the_server_delays_and_loses_nothing() {
    let world = TestCluster::provisioned();
    let ccm = world.start(&[]);
    world.join(["before"]).await;
    world.until_initialized(&["before"], secs(60)).await;
    let everything = Match::any().user_agent(AGENT);
    let fault = world.server.faults().add(everything.clone(), Action::Drop);
    world.server.faults().cut_watches(&everything);
    world.join((0..50).map(|i| format!("n{i}"))).await;
    tokio::time::sleep(secs(600)).await;
    assert!(ccm.is_running());
    assert!(!is_initialized(&world.node("n0")));
    world.server.faults().remove(fault);
    let names: Vec<String> = (0..50).map(|i| format!("n{i}")).collect();
    let took = world.until_initialized(&names, secs(120)).await;
    assert!(took < Duration::from_secs(60), "{took:?}");
    world.assert_never_untainted_without_addresses();
    assert_eq!(
        world
            .history()
            .iter()
            .filter(|(change, _)| *change == Change::Deleted)
            .count(),
        0
    );
}
