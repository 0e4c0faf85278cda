//! The periodic comparison of addresses: what it asks, when, and what it makes of odd answers.

use ccm_core::provider::{
    CloudError, ErrorKind, InstanceMetadata, InstanceStatus, MetadataScope, PowerState,
};
use ccm_testkit::{apiserver::Match, kubelet::NodeSpec};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    cluster::{TestCluster, addresses, internal, is_initialized, label, secs, taints},
    provider::{Answers, Scripted},
};

fn initialized(count: usize) -> impl Iterator<Item = NodeSpec> {
    (0..count).map(|i| NodeSpec::new(format!("n{i:04}")).initialized())
}

#[tokio::test(start_paused = true)]
#[ignore = "cargo xtask test --full"]
async fn a_pass_over_a_thousand_nodes_is_tens_of_calls_for_addresses_spread_over_half_the_period() {
    let world = TestCluster::provisioned();
    let provider = Scripted::over(&world.cloud);
    world
        .kubelets
        .register_all(initialized(1000))
        .await
        .unwrap();
    let start = Instant::now();
    let _ccm = world.start_with(provider.clone(), &["--controllers=cloud-node"]);
    tokio::time::sleep(secs(299)).await;
    let asked = provider.take_asked();
    assert_eq!(asked.iter().map(|a| a.nodes.len()).sum::<usize>(), 1000);
    assert!((10..=20).contains(&asked.len()), "{} calls", asked.len());
    assert!(asked.iter().all(|a| a.needs == [MetadataScope::Addresses]));
    assert!(asked.iter().all(|a| a.max_age <= secs(30)), "the answer is about now");
    let late = asked.iter().map(|a| a.at - start).max().unwrap();
    assert!((secs(100)..=secs(150)).contains(&late), "the last is asked after {late:?}");
    let most = (0..30)
        .map(|ten| {
            asked
                .iter()
                .filter(|a| (a.at - start).as_secs() / 10 == ten)
                .count()
        })
        .max();
    assert!(most <= Some(2), "no burst: {most:?} calls in ten seconds");
}

#[tokio::test(start_paused = true)]
async fn a_changed_address_is_written_within_a_period_by_one_patch() {
    let world = TestCluster::provisioned();
    world.put_instance("a", json!({"addresses": [internal("10.0.0.1"), internal("fd00::1")]}));
    let _ccm = world.start(&["--node-status-update-frequency=1m", "--controllers=cloud-node"]);
    world.join(["a"]).await;
    world.until_initialized(&["a"], secs(60)).await;
    world.server.log().clear();
    // The other family becomes primary: Go's comparison by type does not see it.
    world.put_instance("a", json!({"addresses": [internal("fd00::1"), internal("10.0.0.1")]}));
    let swapped = || addresses(&world.node("a"))[0] == "InternalIP=fd00::1";
    world
        .until("the addresses are swapped", secs(61), swapped)
        .await;
    tokio::time::sleep(secs(600)).await;
    assert_eq!(world.writes(), ["patch nodes/status a"]);
}

type Odd = (&'static str, fn(usize) -> Answers);

/// Answers to so many questions that no provider should give, or that say nothing.
const ODD: [Odd; 8] = [
    ("none at all", |_| Ok(vec![])),
    ("one too few", |n| Ok(vec![Ok(InstanceStatus::NotFound); n - 1])),
    ("one too many", |n| Ok(vec![Ok(InstanceStatus::NotFound); n + 1])),
    ("not found", |n| Ok(vec![Ok(InstanceStatus::NotFound); n])),
    ("an error each", |n| Ok(vec![Err(CloudError::transient("no")); n])),
    ("an error of kind not found", |n| {
        Ok(vec![Err(CloudError::new(ErrorKind::NotFound, "no")); n])
    }),
    ("an error for all", |_| Err(CloudError::new(ErrorKind::NotImplemented, "no"))),
    ("found, and nothing known", |n| {
        Ok(vec![
            Ok(InstanceStatus::Found {
                power_state: PowerState::Unknown,
                meta: InstanceMetadata::default()
            });
            n
        ])
    }),
];

#[tokio::test(start_paused = true)]
async fn odd_answers_of_a_provider_change_nothing_and_end_nothing() {
    for (name, answers) in ODD {
        let world = TestCluster::provisioned();
        let provider = Scripted::over(&world.cloud);
        let ccm = world.start_with(provider.clone(), &["--node-status-update-frequency=10s"]);
        world.join(["a", "b"]).await;
        world.until_initialized(&["a", "b"], secs(60)).await;
        tokio::time::sleep(secs(5)).await;
        world.server.log().clear();
        provider.answer(move |queries| Some(answers(queries.len())));
        tokio::time::sleep(secs(60)).await;
        assert!(provider.take_asked().len() >= 6, "{name}");
        assert!(ccm.is_running(), "{name}");
        assert_eq!(world.writes(), [""; 0], "{name}");
        // And it goes on afterwards.
        provider.answer(|_| None);
        world.put_instance("a", json!({"addresses": [internal("10.9.9.9")]}));
        let renewed = || addresses(&world.node("a"))[0] == "InternalIP=10.9.9.9";
        world
            .until("the next answer counts again", secs(30), renewed)
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_periodic_update_leaves_nodes_alone_that_wait_for_initialisation() {
    let world = TestCluster::provisioned();
    // Initialisation is refused for a reason that the periodic update would not see.
    let provider = Scripted::over(&world.cloud);
    provider.answer(|queries| {
        let refuse = queries
            .iter()
            .any(|query| query.scope == MetadataScope::All);
        refuse.then(|| Err(CloudError::new(ErrorKind::Denied, "no")))
    });
    let _ccm = world.start_with(
        provider.clone(),
        &["--node-status-update-frequency=10s", "--controllers=cloud-node"],
    );
    world.join(["a"]).await;
    world.kubelets.register_all(initialized(1)).await.unwrap();
    tokio::time::sleep(secs(120)).await;
    assert!(!addresses(&world.node("n0000")).is_empty(), "the other one was updated");
    assert!(addresses(&world.node("a")).is_empty() && !is_initialized(&world.node("a")));
    let asked = provider.take_asked();
    let periodic = asked
        .iter()
        .filter(|a| a.needs == [MetadataScope::Addresses]);
    assert!(periodic.flat_map(|a| &a.nodes).all(|name| name == "n0000"));
}

#[tokio::test(start_paused = true)]
async fn an_address_that_the_cloud_does_not_know_is_told_once_and_the_old_ones_stay() {
    let world = TestCluster::provisioned();
    let ip = world.cloud.instance("a").unwrap().addresses[0]
        .address
        .clone();
    let _ccm = world.start(&["--node-status-update-frequency=10s", "--controllers=cloud-node"]);
    let spec = NodeSpec::new("a").provided_ip(ip.parse().unwrap());
    world.kubelets.register(spec).await.unwrap();
    world.until_initialized(&["a"], secs(60)).await;
    let before = addresses(&world.node("a"));
    world.put_instance("a", json!({"addresses": [internal("10.255.0.1")]}));
    tokio::time::sleep(secs(600)).await;
    assert_eq!(addresses(&world.node("a")), before);
    assert_eq!(world.event_count("InvalidNodeIP"), 1);
}

const LABELS_GATE: &str = "--feature-gates=CloudNodeAdditionalLabelsReconciliation=true";

#[tokio::test(start_paused = true)]
async fn additional_labels_are_refreshed_only_behind_the_gate_and_zone_and_region_never() {
    for gate in [false, true] {
        let world = TestCluster::provisioned();
        world.put_instance(
            "a",
            json!({"zone": "z1", "additionalLabels": {"host": "h1", "gone": "x"}}),
        );
        let mut flags = vec!["--node-status-update-frequency=1m", "--controllers=cloud-node"];
        flags.extend(gate.then_some(LABELS_GATE));
        let _ccm = world.start(&flags);
        world.join(["a"]).await;
        world.until_initialized(&["a"], secs(60)).await;
        world.put_instance(
            "a",
            json!({"zone": "z2", "region": "r2", "providerID": "mock://r1/a",
                "additionalLabels": {"host": "h2", "new": "n", "topology.kubernetes.io/zone": "z2"}}),
        );
        world.server.log().clear();
        tokio::time::sleep(secs(600)).await;
        let node = world.node("a");
        let labels = ["host", "new", "gone"].map(|key| label(&node, key));
        let writes = world.writes();
        if gate {
            assert_eq!(labels, [Some("h2"), Some("n"), Some("x")]);
            assert_eq!(writes, ["patch nodes a"]);
        } else {
            assert_eq!(labels, [Some("h1"), None, Some("x")]);
            assert_eq!(writes, [""; 0]);
        }
        for key in ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"] {
            assert_eq!(label(&node, key), Some("z1"));
        }
        assert_eq!(label(&node, "topology.kubernetes.io/region"), Some("r1"));
    }
}

#[tokio::test(start_paused = true)]
async fn labels_that_the_server_would_refuse_do_not_stop_an_initialisation() {
    let world = TestCluster::provisioned();
    world.put_instance(
        "a",
        json!({"zone": "no such zone!", "additionalLabels": {"bad value": "x", "good": "y"}}),
    );
    let _ccm = world.start(&["--controllers=cloud-node"]);
    world.join(["a"]).await;
    world.until_initialized(&["a"], secs(10)).await;
    let node = world.node("a");
    assert_eq!(
        (label(&node, "good"), label(&node, "topology.kubernetes.io/zone")),
        (Some("y"), None)
    );
    assert_eq!(label(&node, "topology.kubernetes.io/region"), Some("r1"));
    let refused = world
        .server
        .log()
        .matching(&Match::resource("nodes").writes());
    assert!(
        refused
            .iter()
            .all(|entry| entry.status.is_some_and(|status| status < 300))
    );
}

#[tokio::test(start_paused = true)]
async fn nodes_of_another_cloud_cause_no_request_at_all() {
    let world = TestCluster::provisioned();
    let provider = Scripted::over(&world.cloud);
    let theirs = [
        NodeSpec::new("tainted").provider_id("aws:///eu-1a/i-1"),
        NodeSpec::new("other-region").provider_id("mock://r2/other-region"),
        NodeSpec::new("labelled").label("topology.kubernetes.io/region", "r2"),
        NodeSpec::new("beta")
            .provider_id("aws:///x")
            .initialized()
            .label("failure-domain.beta.kubernetes.io/zone", "z"),
        NodeSpec::new("dead").provider_id("aws:///y").initialized(),
    ];
    let names: Vec<String> = theirs.iter().map(|spec| spec.name.clone()).collect();
    world.kubelets.register_all(theirs).await.unwrap();
    world.kubelets.set_ready("dead", false).await.unwrap();
    world.edit("dead", |node| {
        node["spec"]["taints"] = json!([{"key": "node.cloudprovider.kubernetes.io/shutdown", "effect": "NoSchedule"}]);
    });
    let flags =
        ["--node-status-update-frequency=30s", LABELS_GATE, "--node-deletion-safety=upstream"];
    let _ccm = world.start_with(provider.clone(), &flags);
    world.join(["ours"]).await;
    world.until_initialized(&["ours"], secs(60)).await;
    tokio::time::sleep(secs(300)).await;
    world.kubelets.set_ready("dead", true).await.unwrap();
    tokio::time::sleep(secs(300)).await;
    for entry in world
        .server
        .log()
        .matching(&Match::any().user_agent(crate::cluster::AGENT))
    {
        let about = [
            entry.request.name.as_str(),
            entry.body["involvedObject"]["name"]
                .as_str()
                .unwrap_or_default(),
        ];
        assert!(!names.iter().any(|name| about.contains(&name.as_str())), "{entry:?}");
    }
    let asked: Vec<String> = provider
        .take_asked()
        .into_iter()
        .flat_map(|asked| asked.nodes)
        .collect();
    assert!(!asked.is_empty() && asked.iter().all(|name| name == "ours"), "{asked:?}");
    assert_eq!(taints(&world.node("dead")), ["node.cloudprovider.kubernetes.io/shutdown"]);
    // What made one of them foreign goes away: from now on it is ours.
    world.edit("labelled", |node| {
        node["metadata"]["labels"]
            .as_object_mut()
            .unwrap()
            .remove("topology.kubernetes.io/region");
    });
    world.until_initialized(&["labelled"], secs(10)).await;
}
