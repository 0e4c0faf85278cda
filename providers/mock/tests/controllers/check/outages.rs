//! An API server or a cloud that does not answer, is too old, or lacks what controllers need.

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{
    check::{CheckReport, Finding, Severity},
    config::{self, Invocation},
    manager::{ClientFactory, Manager},
    provider::{CheckedCluster, CloudError, CloudProvider, Op, ProviderContext},
    runtime::events::WallClock,
};
use ccm_mock::manager;
use ccm_testkit::apiserver::{Action, Match, User};

use super::{Expected, FLAGS, assert_problems, check_as, healthy, run, run_within};
use crate::cluster::{TestCluster, secs};

#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_answer_is_found() {
    let world = healthy().await;
    let code = http::StatusCode::FORBIDDEN;
    let reviews = Match::resource("selfsubjectaccessreviews");
    let fault = world
        .server
        .faults()
        .add(reviews, Action::Error { code, retry_after: None });
    let report = check_as(&world, User::admin(), &FLAGS).await;
    let unknown = Expected(
        "PermissionsUnknown",
        Severity::Error,
        "permissions",
        "credentials of the kubeconfig",
    );
    assert_problems("reviews", &report, &[unknown]);
    world.server.faults().remove(fault);

    let fault = world.server.faults().add(Match::any(), Action::Drop);
    let report = check_as(&world, User::admin(), &FLAGS).await;
    let unreachable =
        Expected("ApiServerUnreachable", Severity::Error, "api.test", "the network to api.test");
    assert_problems("unreachable", &report, &[unreachable]);
    // There is time for the reason even if there is little of it.
    let report = run_within(manager(&world), 4).await;
    assert_problems("unreachable, in a hurry", &report, &[unreachable]);
    world.server.faults().remove(fault);
    world
        .server
        .faults()
        .add(Match::any(), Action::Delay(secs(25)));
    let report = run_within(manager(&world), 4).await;
    assert_problems("silent, in a hurry", &report, &[unreachable]);
}

fn manager(world: &TestCluster) -> Manager {
    world.manager_as(User::admin(), Arc::new(world.provider()), &FLAGS)
}

#[tokio::test(start_paused = true)]
async fn a_slow_api_server_is_not_mistaken_for_a_slow_cloud() {
    let world = healthy().await;
    let too_slow =
        Expected("ApiServerTooSlow", Severity::Error, "api.test", "raise --timeout if api.test");
    // One of many reviews, and a list that fills a cache. Both come after the version.
    let slow = [Match::resource("selfsubjectaccessreviews"), Match::resource("nodes")];
    for matching in slow {
        let fault = world.server.faults().add(matching, Action::Delay(secs(25)));
        let report = run_within(manager(&world), 20).await;
        assert_problems("slow", &report, &[too_slow]);
        let version = report
            .findings
            .iter()
            .any(|finding| finding.message.contains("Kubernetes v1"));
        assert!(version, "{}", report.table());
        world.server.faults().remove(fault);
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_time_is_enough_for_a_healthy_cluster() {
    let world = healthy().await;
    let report = run_within(manager(&world), 4).await;
    assert_problems("in a hurry", &report, &[]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_not_tested_or_hides_its_version_is_found() {
    let world = healthy().await;
    let old =
        Expected("ApiServerTooOld", Severity::Warning, "API server", "upgrade the control plane");
    let version = r#"{"major": "1", "minor": "29+", "gitVersion": "v1.29.4"}"#;
    assert_problems("old", &check_with_version(&world, version).await, &[old]);
    let new = Expected("ApiServerTooNew", Severity::Warning, "API server", "docs/compatibility.md");
    let version = r#"{"major": "1", "minor": "37", "gitVersion": "v1.37.0"}"#;
    assert_problems("new", &check_with_version(&world, version).await, &[new]);
    let version = r#"{"major": "1", "minor": "36+", "gitVersion": "v1.36.9-cloud.1"}"#;
    assert_problems("newest", &check_with_version(&world, version).await, &[]);
    let unknown = Expected(
        "ApiServerVersionUnknown",
        Severity::Warning,
        "API server",
        "credentials of the kubeconfig",
    );
    assert_problems("unknown", &check_with_version(&world, "<html>").await, &[unknown]);
}

/// Checks with an API server that answers so when it is asked for its version.
async fn check_with_version(world: &TestCluster, version: &'static str) -> CheckReport {
    let server = world.server.client();
    let clients: ClientFactory = Arc::new(move |_| {
        let server = server.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let server = server.clone();
            async move {
                if request.uri().path() != "/version" {
                    return server.send(request).await;
                }
                let body = kube::client::Body::from(version.as_bytes().to_vec());
                Ok(http::Response::new(body))
            }
        });
        kube::Client::new(service, "default")
    });
    let args = ["--cloud-provider=mock", "--leader-elect=false"];
    let args = args
        .iter()
        .chain(&FLAGS)
        .map(|flag| std::ffi::OsString::from(*flag));
    let Ok(Invocation::Run(config)) = config::parse(&manager::product(), args) else {
        panic!("the flags are valid")
    };
    let clock = world.server.clock().clone();
    let provider = Arc::new(world.provider());
    let manager = Manager::with_clients(manager::product(), *config, provider, clients, "api.test")
        .with_clock(WallClock::new(move || clock.now()));
    run(manager).await
}

/// A provider that can do nothing, and does not start.
struct Incapable {
    checks: OwnChecks,
}

/// What the provider's own checks do.
#[derive(Clone, Copy)]
enum OwnChecks {
    End,
    NeverEnd,
    Panic,
}

#[async_trait]
impl CloudProvider for Incapable {
    fn name(&self) -> &'static str {
        "mock"
    }

    fn has_cluster_id(&self) -> bool {
        false
    }

    async fn start(&self, _: ProviderContext) -> Result<(), CloudError> {
        Err(CloudError::invalid_input("no such region"))
    }

    async fn check(&self, _: &Op, _: CheckedCluster<'_>) -> Vec<Finding> {
        match self.checks {
            OwnChecks::End => Vec::new(),
            OwnChecks::NeverEnd => std::future::pending().await,
            OwnChecks::Panic => panic!("index out of bounds"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_lacks_services_and_one_that_does_not_answer_are_found() {
    let world = healthy().await;
    let error = |name, object, advice| Expected(name, Severity::Error, object, advice);
    let (node, lifecycle) = ("cloud-node-controller", "cloud-node-lifecycle-controller");
    let expected = [
        error("CloudHasNoInstances", node, "exclude cloud-node-controller"),
        error("CloudHasNoInstances", lifecycle, "exclude cloud-node-lifecycle-controller"),
        error("CloudHasNoLoadBalancers", "service-lb-controller", "exclude service-lb-controller"),
        error("CloudHasNoRoutes", "node-route-controller", "--configure-cloud-routes=false"),
        error("ClusterIdMissing", "cluster ID", "set the cluster ID"),
        error("ProviderStartFailed", "provider", "correct what the error names"),
    ];
    let cases = [
        (OwnChecks::End, None),
        (OwnChecks::NeverEnd, Some(error("CloudTooSlow", "cloud", "raise --timeout"))),
        (
            OwnChecks::Panic,
            Some(error("CheckPanicked", "the mock provider's own checks", "report it as a bug")),
        ),
    ];
    for (checks, more) in cases {
        let provider = Arc::new(Incapable { checks });
        let report = run(world.manager_as(User::admin(), provider, &FLAGS)).await;
        let expected: Vec<_> = expected.iter().copied().chain(more).collect();
        assert_problems("incapable", &report, &expected);
    }
}
