//! The subcommand `check`: finds out whether a manager could work, and changes nothing.

use std::sync::Arc;

use ccm_core::check::{Area, CheckReport, Severity};
use ccm_mock::cloud::FaultError;
use ccm_testkit::{
    apiserver::{Access, Match, Rule, User},
    kubelet::NodeSpec,
};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{TestCluster, secs},
    service_world::SERVICE,
};

const FLAGS: [&str; 3] = [
    "--controllers=cloud-node,cloud-node-lifecycle,service,route",
    "--cluster-cidr=10.0.0.0/8",
    "--secure-port=0",
];

async fn check_as(world: &TestCluster, user: User, flags: &[&str]) -> CheckReport {
    let manager = world.manager_as(user, Arc::new(world.provider()), flags);
    manager
        .check(Instant::now() + secs(100), CancellationToken::new())
        .await
        .unwrap()
}

async fn check(world: &TestCluster) -> CheckReport {
    check_as(world, User::admin(), &FLAGS).await
}

/// Area, severity and message of everything that is not well.
fn problems(report: &CheckReport) -> Vec<(Area, Severity, &str)> {
    report
        .findings
        .iter()
        .filter(|finding| finding.severity > Severity::Ok)
        .map(|finding| (finding.area, finding.severity, &*finding.message))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_healthy_cluster_passes_and_nothing_is_changed() {
    let world = TestCluster::with("");
    let ccm = world.start(&SERVICE);
    world.have_nodes(["n1", "n2"]).await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    ccm.stop().await;
    let (calls, objects) = (world.cloud.calls(), world.server.store().version());

    let report = check(&world).await;
    assert_eq!(problems(&report), [], "{}", report.table());
    let table = report.table();
    for line in [
        "Kubernetes v1.",
        "permissions that the enabled controllers need",
        "2 nodes, 2 of them found in the cloud",
        "Services of type LoadBalancer: 1 for this provider",
        "errors: 0, warnings: 0",
    ] {
        assert!(table.contains(line), "{line}: {table}");
    }
    assert_eq!(world.cloud.calls().since(&calls).writes(), 0);
    assert_eq!(world.server.store().version(), objects);
}

#[tokio::test(start_paused = true)]
async fn missing_permissions_are_named() {
    let world = TestCluster::with("");
    world.have_nodes(["n1"]).await;
    let user = User::new("ccm", &["system:authenticated"]);
    let role = |resources: &[&str]| {
        let rules = json!({"rules": [
            {"apiGroups": ["*"], "resources": resources, "verbs": ["*"]},
            {"nonResourceURLs": ["*"], "verbs": ["get"]},
        ]});
        Access::Rules(Rule::of_role(&rules).unwrap())
    };
    let all = ["nodes", "services", "services/status", "events", "selfsubjectaccessreviews"];
    world.server.users().set_access("ccm", role(&all));
    let report = check_as(&world, user.clone(), &FLAGS).await;
    let expected = |controller: &str| format!("{controller} may not: patch nodes/status");
    let (node, route) = (expected("cloud-node-controller"), expected("node-route-controller"));
    assert_eq!(
        problems(&report),
        [
            (Area::Permissions, Severity::Error, &*node),
            (Area::Permissions, Severity::Error, &*route),
        ]
    );
    // Without the permission for the caches there is nothing to check, and nothing is waited for.
    world
        .server
        .users()
        .set_access("ccm", role(&["selfsubjectaccessreviews"]));
    let report = check_as(&world, user, &FLAGS).await;
    let last = report.findings.last().unwrap();
    assert_eq!((last.area, last.severity), (Area::Nodes, Severity::Error));
    assert!(last.message.contains("not checked"), "{}", report.table());
}

#[tokio::test(start_paused = true)]
async fn problems_of_nodes_and_services_are_found() {
    let world = TestCluster::new("region: r1\nzones: [r1a]\n");
    world.put_instance("known", json!({}));
    world.join(["known", "unknown"]).await;
    let plain = NodeSpec { uninitialized: false, ..NodeSpec::new("known-too") };
    world.put_instance("known-too", json!({}));
    world.kubelets.register_all([plain]).await.unwrap();
    let annotations = json!({"mock.cloud-provider.example/scheme": "elsewhere"});
    world
        .put_annotated("dns", annotations, json!({"ports": [{"port": 53}]}))
        .await;
    let report = check(&world).await;
    let found = problems(&report);
    let expected = [
        (Area::Nodes, Severity::Warning, "does not find the instances of: unknown"),
        (Area::Nodes, Severity::Warning, "without the uninitialized taint: known-too"),
        (Area::Services, Severity::Error, "default/dns: mock.cloud-provider.example/scheme"),
    ];
    assert_eq!(found.len(), expected.len(), "{}", report.table());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!((found.0, found.1), (expected.0, expected.1), "{}", report.table());
        assert!(found.2.contains(expected.2), "{}: {}", expected.2, found.2);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_api_server_and_a_cloud_that_denies_are_found() {
    let world = TestCluster::with("");
    world.have_nodes(["n1"]).await;
    world.fail_instances(FaultError::PermissionDenied, None);
    let report = check(&world).await;
    let found = problems(&report);
    assert_eq!((found.len(), found[0].0, found[0].1), (1, Area::Nodes, Severity::Error));
    assert!(found[0].2.contains("whether these exist: n1"), "{}", found[0].2);

    let unavailable = ccm_testkit::apiserver::Action::Drop;
    world.server.faults().add(Match::any(), unavailable);
    let report = check(&world).await;
    let found = problems(&report);
    assert_eq!((found.len(), found[0].0, found[0].1), (1, Area::ApiServer, Severity::Error));
    assert!(found[0].2.contains("api.test"), "{}", found[0].2);
}
