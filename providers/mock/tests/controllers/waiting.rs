//! Instances that are not there yet, clouds that ask for patience, and how often anybody is told.

use std::time::Duration;

use ccm_mock::cloud::{Fault, FaultError, FaultSpec, Operation};
use ccm_testkit::kubelet::{NodeSpec, PROVIDED_NODE_IP, Ready};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    cluster::{TestCluster, instance_fault, is_initialized, secs},
    provider::Scripted,
};

fn retry_after(seconds: f64, times: u64, node: Option<&str>) -> Fault {
    let spec = FaultSpec {
        operation: Some(Operation::DescribeInstances),
        error: Some(FaultError::RetryAfter),
        retry_after_seconds: Some(seconds),
        times: Some(times),
        object: node.map(str::to_owned),
        ..FaultSpec::default()
    };
    Fault::new(spec).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_shows_up_late_is_initialised_within_33_seconds() {
    for late in [5, 47, 120, 3600] {
        let world = TestCluster::new("region: r1\n");
        let _ccm = world.start(&["--controllers=cloud-node"]);
        world.join(["a"]).await;
        tokio::time::sleep(secs(late)).await;
        world.put_instance("a", json!({}));
        let took = world.until_initialized(&["a"], secs(60)).await;
        assert!(took <= secs(33), "visible after {late} s, initialised {took:?} later");
    }
}

/// A kubelet that reports every second must not make the controller ask every second.
#[tokio::test(start_paused = true)]
async fn heartbeats_of_a_waiting_node_cost_no_cloud_calls() {
    let calls = |heartbeats: bool| async move {
        let world = TestCluster::new("region: r1\n");
        let _ccm = world.start(&["--controllers=cloud-node"]);
        world.join(["a"]).await;
        for second in 0..600 {
            tokio::time::sleep(secs(1)).await;
            if heartbeats {
                let ready = if second % 2 == 0 {
                    Ready::True
                } else {
                    Ready::False
                };
                world.kubelets.set_ready("a", ready).await.unwrap();
            }
        }
        assert_eq!(world.events(), [("InstanceNotFound".to_owned(), 1)]);
        world.cloud.calls().describe_instances
    };
    let (quiet, noisy) = (calls(false).await, calls(true).await);
    assert!(
        (20..=26).contains(&quiet),
        "half a second, doubled up to half a minute, for ten minutes: {quiet}"
    );
    assert!(noisy.abs_diff(quiet) <= 1, "{noisy} calls with heartbeats, {quiet} without");
}

/// They joined one after the other, so that each would come back at a time of its own.
#[tokio::test(start_paused = true)]
async fn nodes_that_wait_together_are_asked_about_together() {
    let world = TestCluster::new("region: r1\n");
    let provider = Scripted::over(&world.cloud);
    let _ccm = world.start_with(provider.clone(), &["--controllers=cloud-node"]);
    for index in 0..200 {
        world.join([format!("n{index}")]).await;
        tokio::time::sleep(Duration::from_millis(130)).await;
    }
    tokio::time::sleep(secs(300)).await;
    provider.take_asked();
    tokio::time::sleep(secs(300)).await;
    let asked = provider.take_asked();
    let nodes: usize = asked.iter().map(|asked| asked.nodes.len()).sum();
    assert!(nodes >= 1800, "each is asked about every half minute: {nodes}");
    assert!(asked.len() <= 120, "{} calls for {nodes} questions", asked.len());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_waits_holds_up_nobody() {
    let world = TestCluster::provisioned();
    world.fail_instances(FaultError::NotFound, Some("late"));
    let _ccm = world.start(&["--controllers=cloud-node"]);
    world.join(["late"]).await;
    // By now it waits for half a minute each time.
    tokio::time::sleep(secs(300)).await;
    world.join(["a", "b"]).await;
    let took = world.until_initialized(&["a", "b"], secs(60)).await;
    assert!(took < secs(1), "{took:?}");
    assert!(!is_initialized(&world.node("late")));
}

#[tokio::test(start_paused = true)]
async fn a_lasting_failure_is_one_event_and_another_reason_another() {
    let world = TestCluster::provisioned();
    world.fail_instances(FaultError::PermissionDenied, None);
    let _ccm = world.start(&["--controllers=cloud-node"]);
    world.join(["a"]).await;
    tokio::time::sleep(secs(600)).await;
    assert_eq!(world.events(), [("CloudAccessDenied".to_owned(), 1)]);
    world.fail_instances(FaultError::NotFound, None);
    tokio::time::sleep(secs(600)).await;
    let both = [("CloudAccessDenied".to_owned(), 1), ("InstanceNotFound".to_owned(), 1)];
    assert_eq!(world.events(), both);
    world.cloud.set_faults(vec![]);
    world.until_initialized(&["a"], secs(60)).await;
    tokio::time::sleep(secs(600)).await;
    assert_eq!(world.events()[2..], [("Synced".to_owned(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_time_that_the_cloud_names_is_kept_and_concerns_its_node_alone() {
    let world = TestCluster::provisioned();
    let provider = Scripted::over(&world.cloud);
    world
        .cloud
        .set_faults(vec![retry_after(90.0, 1, Some("a"))]);
    let _ccm = world.start_with(provider.clone(), &["--controllers=cloud-node"]);
    world.join(["a", "b"]).await;
    world.until_initialized(&["b"], secs(1)).await;
    let start = provider.take_asked()[0].at;
    world.until_initialized(&["a"], secs(100)).await;
    let second: Vec<_> = provider
        .take_asked()
        .iter()
        .map(|asked| asked.at - start)
        .collect();
    assert!(matches!(second[..], [at] if (secs(90)..secs(91)).contains(&at)), "{second:?}");
}

#[tokio::test(start_paused = true)]
async fn a_throttled_cloud_slows_everything_down_and_loses_nothing() {
    let world = TestCluster::provisioned();
    let provider = Scripted::over(&world.cloud);
    let names: Vec<String> = (0..300).map(|i| format!("n{i}")).collect();
    // The first four calls, and what is tried after the pause.
    world
        .cloud
        .set_faults(vec![instance_fault(FaultError::Throttled, None, Some(900))]);
    let _ccm = world.start_with(
        provider.clone(),
        &["--controllers=cloud-node", "--node-status-update-frequency=24h"],
    );
    world.join(names.clone()).await;
    let took = world.until_initialized(&names, secs(300)).await;
    let asked = provider.take_asked();
    assert!(took >= secs(1), "there was a pause: {took:?}");
    assert!(
        asked.len() <= 30,
        "{} calls for 300 nodes, of which each was throttled three times",
        asked.len()
    );
    // Nothing is asked in the second after a throttled answer, save what was in flight with it.
    let begin = asked[0].at;
    let early = asked
        .iter()
        .filter(|a| (secs(0)..secs(1)).contains(&(a.at - begin)))
        .count();
    assert!(early <= 4, "{early} calls before the pause");
    tokio::time::sleep(secs(60)).await;
    assert_eq!(world.event_count("Synced"), 300);
}

#[tokio::test(start_paused = true)]
async fn what_only_a_person_can_mend_is_asked_again_after_minutes_or_when_the_node_changes() {
    let world = TestCluster::provisioned();
    world.fail_instances(FaultError::Invalid, None);
    let _ccm = world.start(&["--controllers=cloud-node"]);
    world
        .kubelets
        .register(NodeSpec::new("a").provided_ip([10, 0, 0, 7].into()))
        .await
        .unwrap();
    tokio::time::sleep(secs(299)).await;
    assert_eq!(world.cloud.calls().describe_instances, 1);
    tokio::time::sleep(secs(5)).await;
    assert_eq!(world.cloud.calls().describe_instances, 2);
    // The cloud is mended, the annotation of the node is wrong: a person's mistake again, seen at
    // once.
    world.cloud.set_faults(vec![]);
    world.edit("a", |node| node["metadata"]["annotations"][PROVIDED_NODE_IP] = json!("nonsense"));
    tokio::time::sleep(secs(2)).await;
    assert_eq!(world.event_count("InvalidNodeIP"), 1);
    assert!(!is_initialized(&world.node("a")));
    let ip = world.cloud.instance("a").unwrap().addresses[0]
        .address
        .clone();
    let changed = Instant::now();
    world.edit("a", |node| node["metadata"]["annotations"][PROVIDED_NODE_IP] = json!(ip));
    world.until_initialized(&["a"], secs(60)).await;
    assert!(changed.elapsed() < Duration::from_millis(500), "the change goes around the back-off");
}

#[tokio::test(start_paused = true)]
async fn without_any_provider_id_the_taint_stays_and_the_reason_is_told() {
    let world = TestCluster::provisioned();
    let provider = Scripted::over(&world.cloud);
    provider.answer(|queries| {
        use ccm_core::provider::{InstanceMetadata, InstanceStatus, PowerState};
        let found = InstanceStatus::Found {
            power_state: PowerState::Running,
            meta: InstanceMetadata::default(),
        };
        Some(Ok(queries.iter().map(|_| Ok(found.clone())).collect()))
    });
    let _ccm = world.start_with(provider, &["--controllers=cloud-node"]);
    world.join(["a"]).await;
    let before = world.node("a");
    tokio::time::sleep(secs(300)).await;
    assert_eq!(world.node("a"), before);
    assert_eq!(world.events(), [("MissingProviderID".to_owned(), 1)]);
}
