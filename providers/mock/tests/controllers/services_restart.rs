//! Processes that end, and requests that fail in ways that the explorer does not have: the end is
//! one balancer for each Service that wants one.

use std::sync::Arc;

use ccm_mock::cloud::{Fault, FaultError, FaultSpec, LoadBalancer, Operation};
use ccm_testkit::apiserver::{Action, Match};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    cluster::{AGENT, Ccm, TestCluster, secs},
    faults::FAULTS,
    service_world::SERVICE,
};

/// What happens to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RestartScenario {
    Created,
    Changed,
    Deleted,
    Unexposed,
}

const STORIES: [RestartScenario; 4] = [
    RestartScenario::Created,
    RestartScenario::Changed,
    RestartScenario::Deleted,
    RestartScenario::Unexposed,
];

impl RestartScenario {
    /// A world just before it.
    async fn world(self) -> TestCluster {
        let world = TestCluster::provisioned();
        world.have_nodes(["a", "b"]).await;
        if self != Self::Created {
            let ccm = world.start(&SERVICE);
            world.serve("web").await;
            world.until_served(&["web"], secs(60)).await;
            world.settle().await;
            drop(ccm);
            world.hooks.reset();
        }
        world
    }

    async fn happen(self, world: &TestCluster) {
        match self {
            Self::Created => world.serve("web").await,
            Self::Changed => {
                world
                    .patch_service("web", json!({"spec": {"ports": [{"port": 443}]}}))
                    .await;
            }
            Self::Deleted => world.delete_service("web").await,
            Self::Unexposed => {
                world
                    .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
                    .await;
            }
        }
    }

    fn has_ended(self, world: &TestCluster) -> bool {
        let (balancers, service) = (world.balancers("web"), world.service("web"));
        let served = |ports: &[u16]| {
            let one =
                |balancer: &LoadBalancer| balancer.ports == ports && *balancer.nodes == ["a", "b"];
            let shown = [balancers
                .first()
                .map_or(String::new(), |balancer| balancer.address.to_string())];
            let id =
                service["metadata"]["annotations"]["mock.cloud-provider.example/load-balancer-id"]
                    .as_str();
            balancers.len() == 1
                && one(&balancers[0])
                && world.is_guarded("web")
                && world.ingress("web") == shown
                && id == Some(&*balancers[0].id)
        };
        match self {
            Self::Created => served(&[80]),
            Self::Changed => served(&[443]),
            Self::Deleted => balancers.is_empty() && service.is_null(),
            Self::Unexposed => {
                balancers.is_empty()
                    && !world.is_guarded("web")
                    && service["status"]["loadBalancer"] == json!({})
            }
        }
    }
}

/// With statuses that the explorer (`tests/explore`) does not know, and a conflict, of which nobody
/// is told. The explorer ends processes, loses answers and refuses with others at every request of
/// these stories.
#[tokio::test(start_paused = true)]
async fn every_story_ends_the_same_whichever_write_is_refused() {
    let services = || Match::resource("services").verb("patch").user_agent(AGENT);
    // A change of ports has nothing to write.
    let writes = [
        (RestartScenario::Created, 0),
        (RestartScenario::Created, 1),
        (RestartScenario::Deleted, 0),
        (RestartScenario::Unexposed, 0),
    ];
    for (story, number) in writes {
        for (fault, action) in FAULTS
            .into_iter()
            .filter(|(fault, _)| ["409", "422", "503"].contains(fault))
        {
            let case = format!("{story:?} {number} {fault}");
            let world = story.world().await;
            let ids = Arc::new(Mutex::new(None));
            let (server, noted) = (world.server.clone(), ids.clone());
            let add = move || {
                *noted.lock() = Some(server.faults().add_times(services(), action.clone(), 1));
            };
            // The second write follows the first call to the cloud.
            if number == 0 {
                add();
            } else {
                world.after_cloud_call(1, add);
            }
            let _ccm = world.start(&SERVICE);
            story.happen(&world).await;
            world
                .until(&case, secs(120), || story.has_ended(&world))
                .await;
            world.settle().await;
            assert!(story.has_ended(&world), "{case}");
            let id = ids.lock().unwrap();
            assert_eq!(world.server.faults().met(id), 1, "{case}");
            let told = world
                .reasons()
                .iter()
                .any(|reason| reason.ends_with("Failed"));
            assert!(fault != "409" || !told, "{case}: {:?}", world.reasons());
        }
    }
}

/// What the explorer does not know either: a cloud that does what it says it refuses, and looks
/// that it calls wrong.
#[tokio::test(start_paused = true)]
async fn every_story_ends_the_same_where_the_cloud_does_what_it_refuses() {
    for story in STORIES {
        let change = match story {
            RestartScenario::Created => Operation::CreateLoadBalancer,
            RestartScenario::Changed => Operation::ModifyLoadBalancer,
            RestartScenario::Deleted | RestartScenario::Unexposed => Operation::DeleteLoadBalancer,
        };
        // A cloud that says of what is there that it is not cannot be helped.
        let errors = FaultError::ALL
            .into_iter()
            .filter(|error| *error != FaultError::NotFound);
        let mut cases: Vec<_> = errors.map(|error| (change, error, true)).collect();
        let looks = [FaultError::Invalid, FaultError::QuotaExceeded, FaultError::RetryAfter];
        cases.extend(looks.map(|error| (Operation::GetLoadBalancer, error, false)));
        for (operation, error, answer_lost) in cases {
            let case = format!("{story:?} {operation:?} {error:?}");
            let world = story.world().await;
            let calls = world.cloud.calls();
            let spec = FaultSpec {
                operation: Some(operation),
                error: Some(error),
                answer_lost,
                times: Some(1),
                ..FaultSpec::default()
            };
            world.cloud.set_faults(vec![Fault::new(spec).unwrap()]);
            let _ccm = world.start(&SERVICE);
            story.happen(&world).await;
            world
                .until(&case, secs(340), || story.has_ended(&world))
                .await;
            world.settle().await;
            assert!(story.has_ended(&world), "{case}");
            // The first call of the kind met it.
            assert!(world.cloud.calls().since(&calls).of(operation) >= 1, "{case}");
        }
    }
}

/// 200 Services on 20 nodes.
async fn two_hundred() -> (TestCluster, Vec<String>) {
    let world = TestCluster::provisioned();
    world.have_nodes((0..20).map(|i| format!("n{i}"))).await;
    let names: Vec<String> = (0..200).map(|i| format!("w{i}")).collect();
    for name in &names {
        world.serve(name).await;
    }
    (world, names)
}

/// Upstream: an ensure, two events and often a patch for each.
#[tokio::test(start_paused = true)]
async fn a_new_process_reads_the_cloud_and_writes_nothing_for_unchanged_services() {
    let (world, names) = two_hundred().await;
    let ccm = world.start(&SERVICE);
    world.until_served(&names, secs(60)).await;
    world.settle().await;
    ccm.stop().await;
    let (calls, writes, events) =
        (world.cloud.calls(), world.writes().len(), world.service_events());
    let ccm = world.start(&SERVICE);
    tokio::time::sleep(secs(600)).await;
    let since = world.cloud.calls().since(&calls);
    assert_eq!((since.reads(), since.writes()), (200, 0), "{since}");
    assert_eq!((world.writes().len(), world.service_events()), (writes, events));
    // What changed while nobody looked is seen.
    ccm.stop().await;
    world
        .patch_service("w7", json!({"spec": {"ports": [{"port": 443}]}}))
        .await;
    world.delete_service("w8").await;
    let calls = world.cloud.calls();
    let _ccm = world.start(&SERVICE);
    world
        .until("both are seen", secs(60), || {
            world.balancers("w7")[0].ports == [443]
                && world.balancers("w8").is_empty()
                && world.service("w8").is_null()
        })
        .await;
    world.settle().await;
    assert_eq!(world.cloud.calls().since(&calls).writes(), 2);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_changed_while_nobody_looked_cost_one_write_for_each_balancer() {
    let (world, names) = two_hundred().await;
    let ccm = world.start(&SERVICE);
    world.until_served(&names, secs(60)).await;
    world.settle().await;
    ccm.stop().await;
    world.delete_node("n0").await;
    let calls = world.cloud.calls();
    let _ccm = world.start(&SERVICE);
    world
        .until("every balancer has today's nodes", secs(60), || world.all_have(19))
        .await;
    world.settle().await;
    let since = world.cloud.calls().since(&calls);
    assert_eq!((since.update_load_balancer, since.writes()), (200, 200), "{since}");
}

/// Two processes in turn, with whatever the first left behind: there is never more than one
/// balancer for a Service.
#[tokio::test(start_paused = true)]
async fn processes_that_die_again_and_again_leave_what_the_services_ask_for() {
    let world = TestCluster::with("latency: {loadBalancers: 300ms}\n");
    world.have_nodes(["a", "b", "c"]).await;
    let names: Vec<String> = (0..30).map(|i| format!("w{i}")).collect();
    for (round, name) in names.iter().enumerate() {
        let ccm = world.start(&SERVICE);
        world.serve(name).await;
        if round >= 10 {
            world.delete_service(&names[round - 10]).await;
        }
        if round >= 5 && round % 3 == 0 {
            world
                .patch_service(&names[round - 5], json!({"spec": {"ports": [{"port": 443}]}}))
                .await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(137 * (round as u64 % 7))).await;
        drop(ccm);
    }
    let _ccm = world.start(&SERVICE);
    let left: Vec<_> = names[20..].to_vec();
    world.until_served(&left, secs(120)).await;
    world.settle().await;
    let mut owners: Vec<_> = world
        .cloud
        .load_balancers()
        .into_iter()
        .map(|balancer| balancer.service)
        .collect();
    owners.sort();
    let mut expected: Vec<_> = left.iter().map(|name| format!("default/{name}")).collect();
    expected.sort();
    assert_eq!(owners, expected);
    assert!(
        names[..20]
            .iter()
            .all(|name| world.service(name) == Value::Null)
    );
    assert!(
        left.iter()
            .all(|name| world.nodes_behind(name) == ["a", "b", "c"])
    );
}

const FIVE: [&str; 5] = ["w0", "w1", "w2", "w3", "w4"];

/// A world in which five Services are served.
async fn serving_five() -> (TestCluster, Ccm) {
    let world = TestCluster::provisioned();
    world.have_nodes(["a"]).await;
    let ccm = world.start(&SERVICE);
    for name in FIVE {
        world.serve(name).await;
    }
    world.until_served(&FIVE, secs(60)).await;
    world.settle().await;
    (world, ccm)
}

/// As after a restored etcd: what nobody deleted is gone.
#[tokio::test(start_paused = true)]
async fn most_services_that_vanish_at_once_keep_their_balancers() {
    let (world, _ccm) = serving_five().await;
    for name in &FIVE[..4] {
        world.remove_service(name);
    }
    tokio::time::sleep(secs(3600)).await;
    assert_eq!(world.cloud.load_balancers().len(), 5);
    assert_eq!(world.cloud.calls().delete_load_balancer, 0);
    // Those that are deleted in order go in order.
    world.delete_service("w4").await;
    world
        .until("its balancer is gone", secs(60), || world.balancers("w4").is_empty())
        .await;
    assert_eq!(world.cloud.load_balancers().len(), 4);
}

/// Only what somebody else took away counts as vanished, not what went because we let it go and
/// never heard so.
#[tokio::test(start_paused = true)]
async fn services_whose_release_is_not_answered_do_not_count_as_vanished() {
    let (world, _ccm) = serving_five().await;
    let releases = Match::resource("services").verb("patch").user_agent(AGENT);
    let unanswered = world.server.faults().add(releases, Action::DropReply);
    for name in &FIVE[..4] {
        world.delete_service(name).await;
    }
    let all_gone = || FIVE[..4].iter().all(|name| world.service(name).is_null());
    world
        .until("the services are gone", secs(10), all_gone)
        .await;
    assert!(world.server.faults().met(unanswered) >= 4);
    world.server.faults().remove(unanswered);
    // The one that really vanishes is alone.
    world.remove_service("w4");
    world
        .until("its balancer is gone", secs(60), || world.cloud.load_balancers().is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_process_made_is_not_forgotten_while_the_cloud_is_down() {
    let world = TestCluster::provisioned();
    world.have_nodes(["a"]).await;
    let ccm = world.start(&SERVICE);
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    ccm.stop().await;
    world.fail_balancers(Operation::Any, FaultError::Transient, None);
    let _ccm = world.start(&SERVICE);
    tokio::time::sleep(secs(20)).await;
    // Its owner loses patience, and the finalizer.
    world.remove_service("web");
    tokio::time::sleep(secs(20)).await;
    assert_eq!(world.balancers("web").len(), 1);
    world.cloud.set_faults(Vec::new());
    world
        .until("the balancer is gone", secs(400), || world.balancers("web").is_empty())
        .await;
}
