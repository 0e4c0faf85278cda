//! Routes when the cloud or the API server fails.

use std::time::Duration;

use ccm_core::manager::ManagerExit;
use ccm_mock::cloud::{Fault, FaultError, FaultSpec, Operation};
use ccm_testkit::{
    apiserver::{Action, Match},
    hooks::Point,
};
use serde_json::Value;

use crate::{
    cluster::{AGENT, TestCluster, initialized, secs},
    routes::{
        MINUTE, NOT_READY, READY, fault, join, network, put_route, remove, routes, start,
        start_watching, syncs, until_ready,
    },
};

use FaultError::{Invalid, PermissionDenied, Throttled, Transient};
use Operation::{CreateRoute, DeleteRoute, ListRoutes};

/// Notes of the events with this reason.
fn notes(world: &TestCluster, reason: &str) -> Vec<String> {
    let (objects, _) = world.server.store().list(("", "events"), None);
    let events = objects.iter().map(|object| object.value());
    let events = events.filter(|event| event["reason"] == *reason);
    events
        .map(|event| {
            assert_eq!(event["source"]["component"], "route_controller");
            assert_eq!(event["involvedObject"]["apiVersion"], "v1");
            text(&event["message"])
        })
        .collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Upstream tries a failed route again when a node changes, or after 12 hours (W15).
#[tokio::test(start_paused = true)]
async fn a_failed_route_is_tried_again_by_itself_and_holds_back_no_other() {
    let world = TestCluster::provisioned();
    world
        .cloud
        .set_faults(vec![fault(CreateRoute, Transient, Some("a"), None)]);
    let ccm = start_watching(&world);
    join(&world, initialized("a"), &["10.244.1.0/24", "fd00:10:0:1::/64"]).await;
    join(&world, initialized("b"), &["10.244.2.0/24"]).await;
    let took = until_ready(&world, &["b"], secs(5)).await;
    assert!(took < secs(2), "{took:?}");
    assert_eq!(network(&world, "a"), NOT_READY);
    join(&world, initialized("c"), &["10.244.3.0/24"]).await;
    until_ready(&world, &["c"], secs(2)).await;
    tokio::time::sleep(10 * MINUTE).await;
    let tries = world.cloud.calls().create_route;
    assert!((30..=44).contains(&tries), "2 + 2 × (8 + 10 of a minute), not {tries}");
    assert_eq!(ccm.metric("ccm_route_changes_failing", &[]), 2.0);
    assert_eq!(world.event_count("FailedToCreateRoute"), 1, "one for both routes");
    world.cloud.set_faults(Vec::new());
    let took = until_ready(&world, &["a"], secs(70)).await;
    assert!(took > secs(1), "it was in its back-off");
    assert_eq!(routes(&world).len(), 4);
    assert_eq!(ccm.metric("ccm_route_changes_failing", &[]), 0.0);
    assert_eq!(world.node_writes().len(), 4, "one condition each, and that of a twice");
}

#[tokio::test(start_paused = true)]
async fn what_only_a_person_can_mend_is_told_at_once_as_upstream_words_it_and_tried_after_minutes()
{
    let world = TestCluster::provisioned();
    world
        .cloud
        .set_faults(vec![fault(CreateRoute, Invalid, Some("a"), None)]);
    let _ccm = start(&world, &[]);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    world
        .until("it is told", secs(5), || world.event_count("FailedToCreateRoute") == 1)
        .await;
    let uid = text(&world.node("a")["metadata"]["uid"]);
    let note = &notes(&world, "FailedToCreateRoute")[0];
    assert!(
        note.starts_with(&format!(
            "Could not create route {uid} 10.244.1.0/24 for node a after 0s: "
        )),
        "{note}"
    );
    let tries = world.cloud.calls().create_route;
    tokio::time::sleep(11 * MINUTE).await;
    assert_eq!(world.cloud.calls().create_route - tries, 2, "every five minutes");
    assert_eq!(world.event_count("FailedToCreateRoute"), 1);
    // A change of the node may be the mending.
    world.edit("a", |node| node["spec"]["providerID"] = "mock://r1/other".into());
    tokio::time::sleep(secs(2)).await;
    assert_eq!(world.cloud.calls().create_route - tries, 3);
}

#[tokio::test(start_paused = true)]
async fn an_error_that_names_a_time_is_tried_again_then() {
    let world = TestCluster::provisioned();
    let spec = FaultSpec {
        operation: Some(CreateRoute),
        error: Some(FaultError::RetryAfter),
        retry_after_seconds: Some(42.0),
        times: Some(1),
        ..FaultSpec::default()
    };
    world.cloud.set_faults(vec![Fault::new(spec).unwrap()]);
    let _ccm = start_watching(&world);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    let took = until_ready(&world, &["a"], MINUTE).await;
    assert!((secs(42)..secs(44)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_throttled_answer_slows_everything_down() {
    let world = TestCluster::provisioned();
    let ccm = start_watching(&world);
    let names: Vec<String> = (0..250).map(|i| format!("n{i}")).collect();
    world
        .kubelets
        .register_all(names.iter().map(|name| initialized(name)))
        .await
        .unwrap();
    tokio::time::sleep(MINUTE).await;
    world.cloud.set_faults(vec![
        fault(CreateRoute, Throttled, None, None),
        fault(ListRoutes, Throttled, None, None),
    ]);
    let before = world.cloud.calls();
    for (i, name) in names.iter().enumerate() {
        crate::routes::give(&world, name, &[&format!("10.244.{i}.0/24")]);
    }
    tokio::time::sleep(5 * MINUTE).await;
    let lists = world.cloud.calls().list_routes - before.list_routes;
    assert!((8..=20).contains(&lists), "after 1, 2, 4, 8, 16, 30, 30, … s, not {lists} in all");
    assert_eq!(
        world.cloud.calls().create_route,
        before.create_route,
        "not even the list came through"
    );
    world.cloud.set_faults(Vec::new());
    until_ready(&world, &names, secs(90)).await;
    assert!(syncs(&ccm, "error", "node_change") >= 1.0);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_cloud_delays_and_loses_nothing() {
    for operations in
        [&[ListRoutes][..], &[CreateRoute, DeleteRoute], &[ListRoutes, CreateRoute, DeleteRoute]]
    {
        let world = TestCluster::provisioned();
        let ccm = start(&world, &[]);
        for i in 0..10 {
            join(&world, initialized(&format!("n{i}")), &[&format!("10.244.{i}.0/24")]).await;
        }
        let names: Vec<String> = (0..10).map(|i| format!("n{i}")).collect();
        until_ready(&world, &names, secs(5)).await;
        world.cloud.set_faults(
            operations
                .iter()
                .map(|op| fault(*op, Transient, None, None))
                .collect(),
        );
        remove(&world, "n0");
        join(&world, initialized("new"), &["10.244.100.0/24"]).await;
        let before = world.cloud.calls().list_routes;
        tokio::time::sleep(5 * MINUTE).await;
        let asked = world.cloud.calls().list_routes - before;
        assert!(asked <= 40, "{operations:?}: {asked} calls");
        assert!(ccm.is_running());
        assert_eq!(routes(&world).len(), 10, "{operations:?}");
        assert!(
            names[1..].iter().all(|name| network(&world, name) == READY),
            "{operations:?}: what works is not doubted"
        );
        world.cloud.set_faults(Vec::new());
        let took = until_ready(&world, &["new"], secs(70)).await;
        world
            .until("the old one goes", secs(70), || {
                !routes(&world).contains(&"n0 10.244.0.0/24".to_owned())
            })
            .await;
        assert!(took <= secs(70), "{took:?}");
        assert_eq!(routes(&world).len(), 10, "{operations:?}");
        assert!(world.event_count("FailedToCreateRoute") <= 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_is_told_once_to_nodes_that_wait_for_a_route_and_to_no_other() {
    let world = TestCluster::provisioned();
    let ccm = start(&world, &[]);
    let served: Vec<String> = (0..50).map(|i| format!("n{i}")).collect();
    for (i, name) in served.iter().enumerate() {
        join(&world, initialized(name), &[&format!("10.244.{i}.0/24")]).await;
    }
    until_ready(&world, &served, secs(10)).await;
    // Whoever gets no route anyway has an event about that.
    join(&world, initialized("outside"), &["192.168.1.0/24"]).await;
    world
        .until("it is told", secs(20), || world.event_count("PodCIDROutOfRange") == 1)
        .await;
    world
        .cloud
        .set_faults(vec![fault(ListRoutes, Transient, None, None)]);
    join(&world, initialized("late"), &["10.244.100.0/24"]).await;
    tokio::time::sleep(10 * MINUTE).await;
    let told = notes(&world, "FailedToCreateRoute");
    let [note] = &told[..] else {
        panic!("{told:#?}")
    };
    let start_of_note =
        "Could not create routes for node late, because the routes cannot be listed: ";
    assert!(note.starts_with(start_of_note), "{note}");

    assert_eq!(world.event_count("FailedToCreateRoute"), 1);

    // The next process knows from the conditions who has routes, but not yet who gets none.
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    let _ccm = start(&world, &[]);
    tokio::time::sleep(10 * MINUTE).await;
    let told = notes(&world, "FailedToCreateRoute");
    let waits = |note: &String| note.contains(" node late,") || note.contains(" node outside,");
    assert!(told.iter().all(waits), "{told:#?}");
    assert_eq!(world.event_count("FailedToCreateRoute"), 3);

    // What does not pass by itself is told at once, to the node that has come since.
    let events = || world.event_count("FailedToCreateRoute");
    world.cloud.set_faults(Vec::new());
    until_ready(&world, &["late"], MINUTE).await;
    let before = events();
    world
        .cloud
        .set_faults(vec![fault(ListRoutes, PermissionDenied, None, None)]);
    join(&world, initialized("later"), &["10.244.101.0/24"]).await;
    tokio::time::sleep(secs(5)).await;
    assert_eq!(events() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn a_route_that_cannot_be_deleted_is_told_once_to_the_node_that_it_concerns() {
    let world = TestCluster::provisioned();
    let ccm = start(&world, &[]);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    until_ready(&world, &["a"], secs(10)).await;
    world
        .cloud
        .set_faults(vec![fault(DeleteRoute, PermissionDenied, None, None)]);
    // One route leads to a node that exists, one to a node that does not. Nobody waits for them.
    put_route(&world, "obsolete", "a", "10.244.7.0/24", false);
    put_route(&world, "of-nobody", "gone", "10.244.8.0/24", false);
    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!(ccm.metric("ccm_route_changes_failing", &[]), 2.0);
    let told = notes(&world, "FailedToDeleteRoute");
    let [note] = &told[..] else {
        panic!("{told:#?}")
    };
    assert!(
        note.starts_with("Could not delete the obsolete route obsolete 10.244.7.0/24 to node a: "),
        "{note}"
    );
    // A node that waits for the other one is told.
    join(&world, initialized("b"), &["10.244.8.0/24"]).await;
    tokio::time::sleep(10 * MINUTE).await;
    let told = notes(&world, "FailedToCreateRoute");
    let [note] = &told[..] else {
        panic!("{told:#?}")
    };
    assert!(
        note.contains(" for node b: the other route of-nobody must be deleted first: "),
        "{note}"
    );
    for reason in ["FailedToDeleteRoute", "FailedToCreateRoute"] {
        assert_eq!(world.event_count(reason), 1, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_could_not_be_written_is_written_later() {
    let refusals = [
        Action::Drop,
        Action::DropReply,
        Action::Error { code: http::StatusCode::CONFLICT, retry_after: None },
        Action::Error {
            code: http::StatusCode::INTERNAL_SERVER_ERROR,
            retry_after: None,
        },
        Action::TooManyRequests { retry_after: 3 },
    ];
    for action in refusals {
        let world = TestCluster::provisioned();
        let patches = Match::resource("nodes").verb("patch").user_agent(AGENT);
        let id = world.server.faults().add_times(patches, action.clone(), 3);
        let _ccm = start_watching(&world);
        join(&world, initialized("a"), &["10.244.1.0/24"]).await;
        until_ready(&world, &["a"], secs(30)).await;
        tokio::time::sleep(10 * MINUTE).await;
        let met = world.server.faults().met(id);
        // The first of them had its effect, and the watch told of it.
        assert_eq!(met, if action == Action::DropReply { 1 } else { 3 }, "{action:?}");
        assert_eq!(world.event_count("FailedToCreateRoute"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_or_another_by_now_gets_no_condition_and_no_complaint() {
    let world = TestCluster::new("region: r1\nautoProvision: true\nlatency: {routes: 2s}\n");
    let ccm = start_watching(&world);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    join(&world, initialized("b"), &["10.244.2.0/24"]).await;
    tokio::time::sleep(secs(3)).await;
    // Its creation is under way.
    remove(&world, "a");
    remove(&world, "b");
    world.kubelets.register(initialized("b")).await.unwrap();
    tokio::time::sleep(10 * MINUTE).await;
    assert!(ccm.is_running());
    // As upstream: it has no pod network, but there was a route to a node of its name.
    assert_eq!([network(&world, "a"), network(&world, "b")], ["", NOT_READY]);
    assert_eq!(routes(&world), [""; 0]);
    crate::routes::give(&world, "b", &["10.244.3.0/24"]);
    until_ready(&world, &["b"], secs(10)).await;
    assert_eq!(world.events(), []);
    assert_eq!(ccm.metric("ccm_route_condition_writes_total", &[("outcome", "failed")]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_condition_is_never_written_to_a_namesake() {
    let world = TestCluster::new("region: r1\nautoProvision: true\nlatency: {routes: 1s}\n");
    let ccm = start_watching(&world);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    // While the route is made the node is replaced, and the watch does not tell.
    let frozen = world
        .server
        .faults()
        .freeze_watches(Match::resource("nodes").user_agent(AGENT));
    remove(&world, "a");
    world.kubelets.register(initialized("a")).await.unwrap();
    tokio::time::sleep(secs(2)).await;
    let refused = Match::resource("nodes")
        .verb("patch")
        .user_agent("route-controller");
    assert!(world.server.log().count(&refused) >= 1, "it was sent");
    assert_eq!((network(&world, "a"), world.node_writes().len()), (String::new(), 0));
    assert_eq!(ccm.metric("ccm_route_condition_writes_total", &[("outcome", "failed")]), 0.0);
    world.server.faults().thaw(frozen);
    crate::routes::give(&world, "a", &["10.244.2.0/24"]);
    until_ready(&world, &["a"], secs(20)).await;
    assert_eq!(routes(&world), ["a 10.244.2.0/24"]);
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_write_is_made_good_by_the_next_process() {
    for number in 1..=2 {
        for point in [Point::Before, Point::After] {
            let world = TestCluster::provisioned();
            for (i, name) in ["a", "b"].iter().enumerate() {
                join(&world, initialized(name), &[&format!("10.244.{i}.0/24")]).await;
            }
            world.hooks.crash_at(number, point);
            let crashed = start(&world, &[]);
            tokio::time::timeout(MINUTE, world.hooks.crashed())
                .await
                .expect("the write is reached");
            drop(crashed);
            world.hooks.reset();
            let ccm = start(&world, &[]);
            until_ready(&world, &["a", "b"], secs(10)).await;
            assert_eq!(routes(&world), ["a 10.244.0.0/24", "b 10.244.1.0/24"]);
            assert_eq!(ccm.stop().await, ManagerExit::Stopped);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_changed_after_a_stop() {
    let world = TestCluster::new("region: r1\nautoProvision: true\nlatency: {routes: 1s}\n");
    let ccm = start(&world, &[]);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    tokio::time::sleep(MINUTE).await;
    assert_eq!((routes(&world), network(&world, "a")), (vec![], String::new()));
    assert_eq!(world.events(), []);
}
