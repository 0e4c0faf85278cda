//! Exported metrics: upstream's names and labels, because dashboards and alerts exist for them.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::provider::CloudProvider as _;
use ccm_testkit::{kubelet::NodeSpec, metrics};
use prometheus::{Encoder, TextEncoder, proto::MetricType};

use crate::cluster::{Ccm, TestCluster, secs};

/// Families of upstream (1.37) that these controllers, clients and the election have: type, labels.
const UPSTREAM: [(&str, MetricType, &[&str]); 10] = [
    ("node_controller_cloud_provider_taint_removal_delay_seconds", MetricType::HISTOGRAM, &[]),
    ("node_controller_initial_node_sync_delay_seconds", MetricType::HISTOGRAM, &[]),
    (
        "cloud_node_lifecycle_controller_monitor_nodes_duration_seconds",
        MetricType::HISTOGRAM,
        &[],
    ),
    (
        "cloud_node_lifecycle_controller_cloud_provider_calls_total",
        MetricType::COUNTER,
        &["operation", "result"],
    ),
    ("rest_client_requests_total", MetricType::COUNTER, &["code", "host", "method"]),
    ("rest_client_request_duration_seconds", MetricType::HISTOGRAM, &["host", "verb"]),
    ("rest_client_rate_limiter_duration_seconds", MetricType::HISTOGRAM, &["host", "verb"]),
    ("rest_client_request_size_bytes", MetricType::HISTOGRAM, &["host", "verb"]),
    ("rest_client_response_size_bytes", MetricType::HISTOGRAM, &["host", "verb"]),
    ("leader_election_master_status", MetricType::GAUGE, &["name"]),
];

fn bounds(ccm: &Ccm, name: &str) -> Vec<f64> {
    let families = ccm.registry.gather();
    let family = families
        .iter()
        .find(|family| family.name() == name)
        .expect("the family is there");
    family.get_metric()[0]
        .get_histogram()
        .get_bucket()
        .iter()
        .map(prometheus::proto::Bucket::upper_bound)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn families_of_upstream_are_exported_under_their_names_and_labels() {
    let world = TestCluster::provisioned();
    let ccm = world.start(&["--leader-elect=true"]);
    world.join(["a", "b"]).await;
    world.until_initialized(&["a", "b"], secs(60)).await;
    world.kubelets.set_ready("a", false).await.unwrap();
    tokio::time::sleep(secs(30)).await;
    let families = ccm.registry.gather();
    for (name, kind, labels) in UPSTREAM {
        let family = families
            .iter()
            .find(|family| family.name() == name)
            .unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(family.get_field_type(), kind, "{name}");
        for metric in family.get_metric() {
            let have: Vec<_> = metric
                .get_label()
                .iter()
                .map(prometheus::proto::LabelPair::name)
                .collect();
            assert_eq!(have, labels, "{name}");
        }
    }
    assert_eq!(ccm.metric("node_controller_cloud_provider_taint_removal_delay_seconds", &[]), 2.0);
    assert_eq!(ccm.metric("node_controller_initial_node_sync_delay_seconds", &[]), 2.0);
    assert_eq!(
        ccm.metric("leader_election_master_status", &[("name", "cloud-controller-manager")]),
        1.0
    );
    let host = [("code", "200"), ("method", "PATCH"), ("host", "api.test")];
    assert_eq!(ccm.metric("rest_client_requests_total", &host), 4.0);
    let delays = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0];
    assert_eq!(bounds(&ccm, "node_controller_initial_node_sync_delay_seconds"), delays);
    let passes = bounds(&ccm, "cloud_node_lifecycle_controller_monitor_nodes_duration_seconds");
    assert_eq!((passes.len(), passes[0], passes[14]), (15, 0.001, 16.384));
}

#[tokio::test(start_paused = true)]
async fn labels_are_closed_sets_and_the_page_can_be_scraped() {
    let world = TestCluster::provisioned();
    let ccm = world.start(&["--leader-elect=true"]);
    let names: Vec<String> = (0..30).map(|i| format!("some-node-{i}")).collect();
    world.join(names.clone()).await;
    world.until_initialized(&names, secs(60)).await;
    let mut page = Vec::new();
    TextEncoder::new()
        .encode(&ccm.registry.gather(), &mut page)
        .unwrap();
    let page = String::from_utf8(page).unwrap();
    assert!(!page.contains("some-node") && !page.contains("mock://"), "{page}");
    let mut series: BTreeMap<&str, usize> = BTreeMap::new();
    for line in page
        .lines()
        .filter(|line| !line.starts_with('#') && !line.contains("_bucket{"))
    {
        *series
            .entry(line.split(['{', ' ']).next().unwrap())
            .or_default() += 1;
    }
    assert!(series.values().all(|count| *count <= 120), "{series:?}");
    let families: BTreeSet<_> = ccm
        .registry
        .gather()
        .iter()
        .map(|family| family.name().to_owned())
        .collect();
    let upstream = [
        "node_controller_",
        "cloud_node_lifecycle_controller_",
        "rest_client_",
        "leader_election_",
    ];
    let process =
        ["workqueue_", "process_", "kubernetes_build_info", "running_managed_controllers", "ccm_"];
    let known: Vec<_> = upstream.into_iter().chain(process).collect();
    assert!(
        families
            .iter()
            .all(|name| known.iter().any(|prefix| name.starts_with(prefix))),
        "{families:?}"
    );
}

/// What the page says, and that all of it is there before anything happened.
#[tokio::test(start_paused = true)]
async fn a_process_without_work_shows_every_documented_family() {
    let page = include_str!("../../../../docs/reference/metrics.md");
    let world = TestCluster::provisioned();
    let ccm = world.start(&[
        "--leader-elect=true",
        "--controllers=*,nodeipam",
        "--allocate-node-cidrs=true",
        "--configure-cloud-routes=true",
        "--cluster-cidr=10.0.0.0/16",
    ]);
    world
        .until("it leads", secs(30), || ccm.metric("ccm_leading", &[]) > 0.0)
        .await;
    // The first pass over nothing.
    tokio::time::sleep(secs(1)).await;
    let scrape = TextEncoder::new()
        .encode_to_string(&ccm.registry.gather())
        .unwrap();
    // The HTTPS server does not run here.
    let absent = ["authentication_", "authorization_", "apiserver_delegated_"];
    let differences =
        metrics::differences(&metrics::documented(page), &metrics::scraped(&scrape), &absent);
    assert!(differences.is_empty(), "{differences:#?}");
}

/// Every change of the cloud is counted once, and nothing else is.
#[tokio::test(start_paused = true)]
async fn changes_of_the_cloud_are_counted_as_the_cloud_counts_them() {
    let world = TestCluster::provisioned();
    let ccm =
        world.start(&["--leader-elect=true", "--controllers=*", "--cluster-cidr=10.0.0.0/16"]);
    world
        .until("it leads", secs(30), || ccm.metric("ccm_leading", &[]) > 0.0)
        .await;
    let made = |operation| {
        ccm.metric("ccm_cloud_mutations_total", &[("operation", operation), ("outcome", "success")])
    };
    world.have_nodes(["a"]).await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.have_nodes(["b"]).await;
    world
        .until("its nodes are updated", secs(60), || made("update_load_balancer") > 0.0)
        .await;
    world.delete_service("web").await;
    world
        .until("it is deleted", secs(60), || made("delete_load_balancer") > 0.0)
        .await;
    let calls = world.cloud.calls();
    for (operation, count) in [
        ("create_load_balancer", calls.create_load_balancer),
        ("modify_load_balancer", calls.modify_load_balancer),
        ("update_load_balancer", calls.update_load_balancer),
        ("delete_load_balancer", calls.delete_load_balancer),
        ("create_route", calls.create_route),
        ("delete_route", calls.delete_route),
    ] {
        assert_eq!(made(operation), count as f64, "{operation}: {calls:?}");
    }
    assert_eq!((calls.create_load_balancer, calls.delete_load_balancer), (1, 1));
    let all = ccm.metric("ccm_cloud_mutations_total", &[]);
    let operations =
        ccm_mock::MockProvider::new_in_process(world.cloud.clone()).mutation_operations();
    assert_eq!(
        all,
        operations
            .iter()
            .map(|operation| made(operation))
            .sum::<f64>(),
        "no other operation, no failure"
    );
    assert!(
        ccm.metric(
            "ccm_reconciles_total",
            &[("controller", "service-lb-controller"), ("outcome", "done")]
        ) > 0.0
    );
    assert!(ccm.metric("workqueue_adds_total", &[("name", "service")]) > 0.0);
}

/// The case of upstream's own test of 1.37.
#[tokio::test(start_paused = true)]
async fn two_ready_nodes_and_one_that_exists_are_one_call_of_each_kind() {
    let world = TestCluster::provisioned();
    world
        .kubelets
        .register_all(["a", "b", "c"].map(|name| NodeSpec::new(name).initialized()))
        .await
        .unwrap();
    world.kubelets.set_ready("c", false).await.unwrap();
    let ccm = world.start(&["--controllers=cloud-node-lifecycle"]);
    tokio::time::sleep(secs(4)).await;
    let calls = "cloud_node_lifecycle_controller_cloud_provider_calls_total";
    assert_eq!(ccm.metric(calls, &[("operation", "instance_exists"), ("result", "success")]), 1.0);
    assert_eq!(
        ccm.metric(calls, &[("operation", "instance_shutdown"), ("result", "success")]),
        1.0
    );
    assert_eq!(ccm.metric(calls, &[]), 2.0, "and no others");
    assert_eq!(
        ccm.metric("cloud_node_lifecycle_controller_monitor_nodes_duration_seconds", &[]),
        1.0
    );
}
