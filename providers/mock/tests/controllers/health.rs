//! Health while the cloud is down: shown, and a reason for nothing.

use ccm_core::{
    config::{Invocation, LoggingConfig, parse},
    runtime::serving::{AuthFilter, Handlers},
    telemetry::logging,
};
use ccm_mock::{
    cloud::{Fault, FaultError, FaultSpec, Operation},
    manager::product,
};
use ccm_testkit::apiserver::{Action, Match};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use crate::{
    cluster::{Ccm, TestCluster, secs},
    routes::MINUTE,
};

const FLAGS: [&str; 3] = [
    "--controllers=cloud-node,cloud-node-lifecycle,node-route-controller,service",
    "--cluster-cidr=10.244.0.0/16",
    "--leader-elect=true",
];
const CONTROLLERS: [&str; 4] = [
    "cloud-node-controller",
    "cloud-node-lifecycle-controller",
    "node-route-controller",
    "service-lb-controller",
];

/// A page of the process under test, as its HTTPS server would show it.
async fn page(ccm: &Ccm, path: &str) -> (u16, String) {
    let Ok(Invocation::Run(config)) = parse(&product(), ["--cloud-provider=mock"]) else {
        panic!("flags of the test")
    };
    let (_, verbosity) = logging::dispatch(&LoggingConfig::default(), std::io::sink);
    let pages =
        Handlers::new(product(), *config, ccm.registry.clone(), ccm.health.clone(), verbosity);
    let door = AuthFilter::new(&["/*".to_owned()]).unwrap();
    let router = pages.router(door, axum::Router::new()).unwrap();
    let response = router
        .oneshot(Request::get(path).body(axum::body::Body::empty()).unwrap())
        .await
        .unwrap();
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

fn degraded(ccm: &Ccm) -> Vec<&'static str> {
    CONTROLLERS
        .into_iter()
        .filter(|name| ccm.metric("ccm_degraded", &[("name", name)]) > 0.0)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_cloud_is_shown_and_fails_no_check() {
    let world = TestCluster::provisioned();
    let ccm = world.start(&FLAGS);
    world.have_nodes(["a", "b"]).await;
    world.until_initialized(&["a", "b"], secs(30)).await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    let verbose = page(&ccm, "/readyz?verbose").await;
    let mut lines: Vec<_> = verbose.1.lines().collect();
    assert_eq!((verbose.0, lines.pop()), (200, Some("readyz check passed")));
    lines.sort_unstable();
    let mut good = ["caches", "leaderElection", "service-cache"]
        .iter()
        .chain(&CONTROLLERS)
        .map(|name| format!("[+]{name} ok"));
    assert!(good.all(|line| lines.contains(&line.as_str())) && lines.len() == 7, "{lines:?}");

    let spec = FaultSpec {
        operation: Some(Operation::Any),
        error: Some(FaultError::Transient),
        ..FaultSpec::default()
    };
    world.cloud.set_faults(vec![Fault::new(spec).unwrap()]);
    // Everybody has something to do: a node without an address, one that is not ready, a service,
    // and the routes.
    world.join(["c"]).await;
    world.kubelets.set_ready("b", false).await.unwrap();
    world.serve("more").await;
    for _ in 0..20 {
        tokio::time::sleep(MINUTE / 2).await;
        for path in ["/livez", "/healthz", "/readyz"] {
            assert_eq!(page(&ccm, path).await, (200, "ok".to_owned()), "{path}");
        }
        assert!(ccm.is_running());
    }
    assert_eq!(degraded(&ccm), CONTROLLERS);
    let (status, text) = page(&ccm, "/readyz?verbose").await;
    assert_eq!(status, 200, "{text}");
    for name in degraded(&ccm) {
        let line = text.lines().find(|line| {
            line.starts_with(&format!("[!]{name} degraded: nothing has succeeded for "))
        });
        assert!(line.is_some(), "{name} in\n{text}");
    }
    assert!(
        text.contains("[+]leaderElection ok\n") && text.ends_with("readyz check passed\n"),
        "{text}"
    );
    assert!(
        !page(&ccm, "/livez?verbose").await.1.contains("controller"),
        "no controller decides about life"
    );

    world.cloud.set_faults(Vec::new());
    world.until_served(&["more"], secs(400)).await;
    world
        .until("nobody is degraded", secs(400), || degraded(&ccm).is_empty())
        .await;
    assert!(!page(&ccm, "/readyz?verbose").await.1.contains("[!]"));
    ccm.stop().await;
}

/// Two processes, of which the second has waited for a minute.
async fn leader_and_standby() -> (TestCluster, Ccm, Ccm) {
    let world = TestCluster::provisioned();
    let leader = world.start(&FLAGS);
    world.have_nodes(["a"]).await;
    world.until_initialized(&["a"], secs(30)).await;
    let standby = world.start(&FLAGS);
    tokio::time::sleep(MINUTE).await;
    (world, leader, standby)
}

#[tokio::test(start_paused = true)]
async fn a_standby_is_alive_and_ready_and_says_nothing_about_controllers() {
    let (_world, leader, standby) = leader_and_standby().await;
    assert!(
        page(&leader, "/healthz?verbose")
            .await
            .1
            .contains("[+]service-lb-controller ok\n")
    );
    let text = "[+]caches ok\n[+]leaderElection ok\n[+]lease-access ok\nreadyz check passed\n";
    assert_eq!(page(&standby, "/readyz?verbose").await, (200, text.to_owned()));
    assert_eq!(
        page(&standby, "/healthz?verbose").await.1,
        "[+]leaderElection ok\nhealthz check passed\n"
    );
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_is_not_let_in_for_long_is_alive_and_not_ready_until_it_is() {
    let (world, leader, standby) = leader_and_standby().await;
    // The leader writes its lease without a look.
    let refused = Action::Error { code: StatusCode::UNAUTHORIZED, retry_after: None };
    let fault = world
        .server
        .faults()
        .add(Match::resource("leases").verb("get"), refused);
    tokio::time::sleep(secs(295)).await;
    assert_eq!(page(&standby, "/readyz").await.0, 200);
    tokio::time::sleep(secs(10)).await;
    let (status, text) = page(&standby, "/readyz").await;
    assert!(status == 500 && text.contains("[-]lease-access failed: reason withheld\n"), "{text}");
    for path in ["/livez", "/healthz"] {
        assert_eq!(page(&standby, path).await, (200, "ok".to_owned()), "{path}");
    }
    assert_eq!(page(&leader, "/readyz").await.0, 200);
    assert!(standby.is_running());

    world.server.faults().remove(fault);
    tokio::time::sleep(secs(5)).await;
    assert_eq!(page(&standby, "/readyz").await, (200, "ok".to_owned()));
    // A leader has no such check.
    leader.stop().await;
    world
        .until("the standby leads", secs(30), || {
            standby.metric("leader_election_master_status", &[]) > 0.0
        })
        .await;
    assert!(
        !page(&standby, "/readyz?verbose")
            .await
            .1
            .contains("lease-access")
    );
}
