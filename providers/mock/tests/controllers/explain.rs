//! Why a node is not ready: the explanation and the event name the true cause and the next step.

use std::sync::Arc;

use async_trait::async_trait;
use axum::{Router, body::Body};
use ccm_core::{
    config::{self, Invocation},
    explain::{Cause, ExplainedCause, NodeExplanation, ObjectName},
    manager::{ExplainError, Observability},
    runtime::serving::{AuthFilter, Handlers, RequestAuth, auth::AuthRefusal},
    telemetry::logging,
};
use ccm_mock::{cloud::FaultError, manager};
use ccm_testkit::{
    apiserver::{Action, Match},
    kubelet::{NodeSpec, Ready},
};
use http::{Request, StatusCode, request::Parts};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::cluster::{AGENT, Ccm, TestCluster, initialized, internal, secs};

/// The causes without the taint that every new node keeps in these tests.
pub(crate) fn causes(all: &[ExplainedCause]) -> Vec<Cause> {
    all.iter()
        .map(|cause| cause.cause)
        .filter(|cause| *cause != Cause::TaintedByOthers)
        .collect()
}

/// Asserts that the explanation of a node has this cause alone, and that an event with this reason
/// names the same next step.
pub(crate) fn assert_node(
    world: &TestCluster,
    ccm: &Ccm,
    node: &str,
    cause: Cause,
    event: Option<&str>,
) -> NodeExplanation {
    let explanation = ccm.explanations.node(node).expect("the node is explained");
    assert_eq!(causes(&explanation.causes), [cause], "{explanation:#?}");
    let explained = explanation
        .causes
        .iter()
        .find(|explained| explained.cause == cause)
        .expect("it has the cause");
    assert!(explained.message.contains(node), "{}", explained.message);
    assert_eq!(explained.next_step, cause.next_step());
    if let Some(event) = event {
        let notes = world.notes(event);
        assert!(
            notes
                .last()
                .is_some_and(|note| note.ends_with(cause.next_step())),
            "{event}: {notes:?}"
        );
    }
    explanation
}

/// A world in which no node has an instance.
fn empty_cloud() -> TestCluster {
    TestCluster::new("region: r1\nzones: [r1a]\n")
}

#[tokio::test(start_paused = true)]
async fn a_new_node_without_an_instance_waits_for_it() {
    let world = empty_cloud();
    let ccm = world.start(&[]);
    world.join(["a"]).await;
    tokio::time::sleep(secs(60)).await;
    let explanation =
        assert_node(&world, &ccm, "a", Cause::InstanceNotFound, Some("InstanceNotFound"));
    assert_eq!(explanation.summary, "Node a is not initialised");
    let attempt = &explanation.attempts[0];
    assert_eq!((attempt.controller, attempt.operation), ("cloud-node-controller", "initialize"));
    assert!(attempt.failures > 1 && attempt.retry_at > Some(attempt.at), "{attempt:?}");
    assert_eq!(explanation.instance.expect("the cloud answered").answer, "not found");
    // Once it is initialised, nothing is wrong.
    world.put_instance("a", json!({}));
    world.until_initialized(&["a"], secs(60)).await;
    tokio::time::sleep(secs(10)).await;
    let explanation = ccm.explanations.node("a").unwrap();
    assert_eq!(causes(&explanation.causes), []);
    assert_eq!((explanation.attempts.len(), explanation.instance.unwrap().answer), (0, "running"));
}

#[tokio::test(start_paused = true)]
async fn each_answer_of_the_cloud_about_a_new_node_has_its_cause() {
    for (error, cause, event) in [
        (FaultError::PermissionDenied, Cause::CloudAccessDenied, "CloudAccessDenied"),
        (FaultError::Throttled, Cause::CloudThrottled, "CloudThrottled"),
        (FaultError::Transient, Cause::CloudUnavailable, "CloudError"),
        (FaultError::QuotaExceeded, Cause::QuotaExceeded, "CloudError"),
        (FaultError::Conflict, Cause::CloudConflict, "CloudError"),
        (FaultError::Invalid, Cause::InvalidProviderId, "InvalidInstanceReference"),
    ] {
        let world = TestCluster::provisioned();
        world.fail_instances(error, None);
        let ccm = world.start(&[]);
        world.join(["a"]).await;
        tokio::time::sleep(secs(600)).await;
        let explanation = assert_node(&world, &ccm, "a", cause, Some(event));
        let answer = explanation.instance.expect("the cloud answered");
        assert_eq!(answer.answer, "the query failed", "{error:?}");
        assert!(answer.error.is_some(), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_that_the_cloud_does_not_know_and_one_that_is_malformed_are_named() {
    let world = TestCluster::provisioned();
    world.put_instance("a", json!({"addresses": [internal("10.0.0.1")]}));
    world.put_instance("b", json!({"addresses": [internal("10.0.0.2")]}));
    let ccm = world.start(&[]);
    let spec = NodeSpec::new("a").provided_ip([10, 9, 9, 9].into());
    world.kubelets.register(spec).await.unwrap();
    tokio::time::sleep(secs(30)).await;
    let event = Some("InvalidNodeIP");
    let explanation = assert_node(&world, &ccm, "a", Cause::NodeIpNotInCloud, event);
    let message = &explanation.attempts[0].error;
    assert!(message.contains("10.9.9.9"), "{message}");
    let spec = NodeSpec::new("b").provided_ip([10, 0, 0, 3].into());
    world.kubelets.register(spec).await.unwrap();
    world.edit("b", |node| {
        node["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"] = "ten.zero".into();
    });
    tokio::time::sleep(secs(60)).await;
    assert_node(&world, &ccm, "b", Cause::InvalidProvidedNodeIp, None);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_the_api_server_forbids_is_named() {
    let world = TestCluster::provisioned();
    let forbidden = Action::Error { code: StatusCode::FORBIDDEN, retry_after: None };
    let patches = Match::resource("nodes").verb("patch").user_agent(AGENT);
    world.server.faults().add(patches, forbidden);
    let ccm = world.start(&[]);
    world.join(["a"]).await;
    tokio::time::sleep(secs(60)).await;
    let event = Some("NodeUpdateFailed");
    assert_node(&world, &ccm, "a", Cause::ApiForbidden, event);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_this_manager_leaves_alone_say_so() {
    let world = TestCluster::provisioned();
    let ccm = world.start(&["--controllers=cloud-node-lifecycle"]);
    world.join(["tainted"]).await;
    let spec = NodeSpec::new("foreign").provider_id("other://1");
    world.kubelets.register(spec).await.unwrap();
    tokio::time::sleep(secs(30)).await;
    assert_node(&world, &ccm, "tainted", Cause::CloudNodeControllerNotRunning, None);
    let explanation = assert_node(&world, &ccm, "foreign", Cause::NodeOfAnotherProvider, None);
    assert!(!explanation.ours);
    assert_eq!(ccm.explanations.node("nobody"), Err(ExplainError::NotFound));
    assert_eq!(ccm.explanations.routes(), Err(ExplainError::NoRoutes));
    let unknown = ccm.explanations.service("default", "web");
    assert_eq!(unknown, Err(ExplainError::NoService));
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_first_query_is_in_flight_waits_for_it() {
    let world = TestCluster::new("region: r1\nautoProvision: true\nlatency: {instances: 60s}\n");
    let ccm = world.start(&[]);
    world.join(["a"]).await;
    tokio::time::sleep(secs(10)).await;
    assert_node(&world, &ccm, "a", Cause::NodeNotSyncedYet, None);
    let calls = world.cloud.calls();
    let requests = world.server.log().count(&Match::any().user_agent(AGENT));
    for _ in 0..100 {
        ccm.explanations.node("a").unwrap();
    }
    assert_eq!(world.cloud.calls(), calls, "an explanation asks nobody");
    assert_eq!(world.server.log().count(&Match::any().user_agent(AGENT)), requests);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_ready_says_whether_its_machine_runs() {
    let world = TestCluster::provisioned();
    world.put_instance("stopped", json!({"powerState": "stopped"}));
    let specs = ["runs", "stopped"].map(initialized);
    world.kubelets.register_all(specs).await.unwrap();
    let ccm = world.start(&[]);
    for name in ["runs", "stopped"] {
        world
            .kubelets
            .set_ready(name, Ready::Unknown)
            .await
            .unwrap();
    }
    tokio::time::sleep(secs(60)).await;
    assert_node(&world, &ccm, "runs", Cause::KubeletNotReady, None);
    let explanation = assert_node(&world, &ccm, "stopped", Cause::InstanceStopped, None);
    assert_eq!(explanation.instance.unwrap().answer, "shut down");
    let shutdown = "node.cloudprovider.kubernetes.io/shutdown:NoSchedule";
    let taint = explanation
        .taints
        .iter()
        .find(|taint| taint.taint == shutdown)
        .expect("it is tainted");
    assert!(taint.origin.contains("this manager"), "{taint:?}");
}

#[tokio::test(start_paused = true)]
async fn the_proof_that_an_instance_is_gone_is_shown_while_it_is_made() {
    let world = TestCluster::provisioned();
    let specs = ["a", "b", "c", "d"].map(initialized);
    world.kubelets.register_all(specs).await.unwrap();
    let ccm = world.start(&["--node-monitor-period=60s"]);
    tokio::time::sleep(secs(30)).await;
    world.cloud.delete_instance("a");
    world.kubelets.set_ready("a", Ready::Unknown).await.unwrap();
    tokio::time::sleep(secs(45)).await;
    let explanation = assert_node(&world, &ccm, "a", Cause::AbsenceNotConfirmed, None);
    let absence = explanation.absence.expect("the proof has begun");
    assert_eq!((absence.not_found_for_seconds, absence.required_seconds), (0, 60));
    assert!(absence.next_query > explanation.at && absence.refusal.is_none(), "{absence:?}");
    tokio::time::sleep(secs(60)).await;
    assert_eq!(ccm.explanations.node("a"), Err(ExplainError::NotFound), "the Node is deleted");
}

#[tokio::test(start_paused = true)]
async fn a_refused_deletion_says_why_as_its_event_does() {
    // Nothing shows that the answers are right.
    let world = empty_cloud();
    world.kubelets.register(initialized("a")).await.unwrap();
    let ccm = world.start(&["--controllers=cloud-node-lifecycle"]);
    world.kubelets.set_ready("a", Ready::Unknown).await.unwrap();
    tokio::time::sleep(secs(60)).await;
    let event = Some("NodeDeletionRefused");
    let explanation = assert_node(&world, &ccm, "a", Cause::DeletionWithoutEvidence, event);
    assert!(explanation.absence.unwrap().refusal.is_some());
    // Most of the cluster looks gone.
    let world = TestCluster::provisioned();
    let names = ["a", "b", "c", "d"];
    world
        .kubelets
        .register_all(names.map(initialized))
        .await
        .unwrap();
    let ccm = world.start(&[]);
    tokio::time::sleep(secs(60)).await;
    world.fail_instances(FaultError::NotFound, None);
    for name in names {
        world
            .kubelets
            .set_ready(name, Ready::Unknown)
            .await
            .unwrap();
    }
    tokio::time::sleep(secs(120)).await;
    assert_node(&world, &ccm, "b", Cause::MostInstancesGone, event);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_no_manager_ever_initialised_says_so() {
    let world = empty_cloud();
    world
        .kubelets
        .register(NodeSpec::new("a").initialized())
        .await
        .unwrap();
    let ccm = world.start(&["--controllers=cloud-node-lifecycle"]);
    world.kubelets.set_ready("a", Ready::Unknown).await.unwrap();
    tokio::time::sleep(secs(60)).await;
    assert_node(&world, &ccm, "a", Cause::NeverInitialised, None);
}

/// Lets in requests with the token `reader`.
struct Reader;

#[async_trait]
impl RequestAuth for Reader {
    async fn check(
        &self,
        _: &[rustls::pki_types::CertificateDer<'static>],
        parts: &Parts,
    ) -> Result<(), AuthRefusal> {
        match parts.headers.get("authorization") {
            Some(value) if value == "Bearer reader" => Ok(()),
            _ => Err(AuthRefusal {
                status: StatusCode::FORBIDDEN,
                reason: "not allowed".to_owned(),
            }),
        }
    }
}

/// Sends a request as somebody with a token; returns the status and the body.
async fn get(router: &Router, path: &str, token: &str, accept: &str) -> (StatusCode, String) {
    let request = Request::get(path)
        .header("authorization", format!("Bearer {token}"))
        .header("accept", accept)
        .body(Body::empty())
        .unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn explanations_are_served_over_http_to_those_who_may_see_them() {
    let world = empty_cloud();
    let args = ["--cloud-provider=mock", "--leader-elect=true"];
    let Ok(Invocation::Run(config)) = config::parse(&manager::product(), args) else {
        panic!("the flags of the test are wrong")
    };
    let observability = Observability::new(&config);
    let filter = AuthFilter::new(&["/healthz".to_owned()]).unwrap();
    filter.install(Arc::new(Reader));
    let (_, verbosity) = logging::dispatch(&config.logging, std::io::sink);
    let handlers = Handlers::new(
        manager::product(),
        (*config).clone(),
        observability.registry.clone(),
        observability.health.clone(),
        verbosity,
    );
    let router = handlers
        .router(filter, observability.routes(&config))
        .unwrap();

    // A standby explains nothing, but says who does.
    let (status, body) = get(&router, "/explain/nodes/a", "reader", "*/*").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(body.contains("kube-system/cloud-controller-manager"), "{body}");
    let (status, page) = get(&router, "/explain/", "reader", "*/*").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(page.contains("<h1>") && page.contains("kube-system/cloud-controller-manager"));

    let provider = Arc::new(world.provider());
    let manager = world
        .manager(provider, &[])
        .with_observability(observability);
    let stop = CancellationToken::new();
    let running = tokio::spawn(manager.run(stop.clone()));
    world.join(["a"]).await;
    tokio::time::sleep(secs(30)).await;

    for path in
        ["/explain/", "/explain/nodes/a", "/explain/services/default/web", "/explain/routes"]
    {
        let (status, body) = get(&router, path, "stranger", "*/*").await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
        assert!(!body.contains("InstanceNotFound"), "{body}");
    }
    let (status, body) = get(&router, "/explain/nodes/a", "reader", "*/*").await;
    assert_eq!(status, StatusCode::OK);
    let page: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(page["causes"][0]["cause"], "InstanceNotFound", "{body}");
    assert_eq!(page["causes"][0]["nextStep"], Cause::InstanceNotFound.next_step());
    assert!(body.contains("node.cloudprovider.kubernetes.io/uninitialized:NoSchedule"), "{body}");
    for (path, accept) in
        [("/explain/nodes/a", "text/plain"), ("/explain/nodes/a?format=text", "*/*")]
    {
        let (status, text) = get(&router, path, "reader", accept).await;
        assert_eq!(status, StatusCode::OK);
        assert!(
            text.starts_with("Node a is not initialised\n\nInstanceNotFound: node a: "),
            "{text}"
        );
        let step = format!("\n  next step: {}\n", Cause::InstanceNotFound.next_step());
        assert!(text.contains(&step) && text.contains("\nproviderId:"), "{text}");
    }
    for (path, expected) in [
        ("/explain/nodes/nobody", StatusCode::NOT_FOUND),
        ("/explain/services/default/web", StatusCode::NOT_FOUND),
        ("/explain/routes", StatusCode::NOT_FOUND),
        ("/explain/nodes/a?format=xml", StatusCode::BAD_REQUEST),
    ] {
        let (status, body) = get(&router, path, "reader", "*/*").await;
        assert_eq!(status, expected, "{path}: {body}");
    }
    assert_page(&router).await;
    stop.cancel();
    running.await.unwrap().unwrap();
}

/// The page of a leader whose node `a` has no instance.
async fn assert_page(router: &Router) {
    let request = Request::get("/explain/?filter=A&refresh=off")
        .header("authorization", "Bearer reader")
        .body(Body::empty())
        .unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("content-type"), "text/html; charset=utf-8");
    let policy = header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; style-src 'self'; "), "{policy}");
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let page = String::from_utf8(body.to_vec()).unwrap();
    for part in [
        "<title>Explanations: mock</title>",
        "<a href=\"nodes/a?format=text\">a</a>",
        "<strong>InstanceNotFound</strong>",
        "Next step: compare the node's name",
        "<th scope=\"row\">describe_instances</th>",
        "<th scope=\"row\">cloud-node-controller</th>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let (status, style) = get(router, "/explain/style.css", "reader", "*/*").await;
    assert!(status == StatusCode::OK && style.contains("@media print"), "{status}: {style}");
    let (status, _) = get(router, "/explain", "reader", "*/*").await;
    assert_eq!(status, StatusCode::TEMPORARY_REDIRECT);
}

/// Without a reader nothing is added to the work of the manager; a reader costs no request either.
#[tokio::test(start_paused = true)]
async fn the_page_asks_nobody_and_shows_hundreds_of_nodes() {
    let world = TestCluster::provisioned();
    let args = ["--cloud-provider=mock", "--leader-elect=false"];
    let Ok(Invocation::Run(config)) = config::parse(&manager::product(), args) else {
        panic!("the flags of the test are wrong")
    };
    let observability = Observability::new(&config);
    let router = observability.routes(&config);
    let manager = world
        .manager(Arc::new(world.provider()), &[])
        .with_observability(observability);
    let running = tokio::spawn(manager.run(CancellationToken::new()));
    let names: Vec<String> = (0..500).map(|n| format!("n{n:03}")).collect();
    let specs = names.iter().map(|name| initialized(name));
    world.kubelets.register_all(specs).await.unwrap();
    world.serve("web").await;
    tokio::time::sleep(secs(60)).await;
    let calls = world.cloud.calls();
    let requests = world.server.log().count(&Match::any().user_agent(AGENT));
    for _ in 0..3 {
        let (status, page) = get(&router, "/explain/", "", "*/*").await;
        assert_eq!(status, StatusCode::OK);
        assert!(page.contains("… and 400 more. The filter finds them."), "{page}");
        assert_eq!(page.matches("<a href=\"nodes/n").count(), 100, "{page}");
    }
    let (_, page) = get(&router, "/explain/?filter=n49", "", "*/*").await;
    assert!(page.contains("10 of 500 pass the filter."), "{page}");
    assert_eq!(world.cloud.calls(), calls);
    assert_eq!(world.server.log().count(&Match::any().user_agent(AGENT)), requests);
    // For some seconds readers share what was explained.
    world
        .kubelets
        .register_all([initialized("n500")])
        .await
        .unwrap();
    for (wait, expected) in [(1, "… and 400 more."), (3, "… and 401 more.")] {
        tokio::time::sleep(secs(wait)).await;
        let (_, page) = get(&router, "/explain/", "", "*/*").await;
        assert!(page.contains(expected), "{expected}: {page}");
    }
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn without_a_leader_one_comparison_explains_and_changes_nothing() {
    let world = TestCluster::provisioned();
    world.join(["a", "b"]).await;
    world.serve("web").await;
    let flags = ["--shadow-once", "--controllers=cloud-node,cloud-node-lifecycle,service"];
    let explain = async |object: ObjectName| {
        let manager = world.manager(Arc::new(world.provider()), &flags);
        let limit = Instant::now() + secs(1000);
        manager
            .explain_alone(object, limit, CancellationToken::new())
            .await
    };
    let node = explain(ObjectName::Node("a".to_owned())).await.unwrap();
    assert_eq!(causes(node.explanation.causes()), [], "nothing about this process: {node:?}");
    let text = node.text().unwrap();
    assert!(text.starts_with("Node a is not initialised (explained without a leader)\n"), "{text}");
    assert!(
        node.would_change
            .iter()
            .all(|line| line.starts_with("Node a: ")),
        "{node:?}"
    );
    assert!(!node.would_change.is_empty(), "{node:?}");
    let service = ObjectName::Service { namespace: "default".to_owned(), name: "web".to_owned() };
    let service = explain(service).await.unwrap();
    assert!(
        service
            .would_change
            .iter()
            .any(|line| line.starts_with("Service default/web: "))
    );
    let missing = explain(ObjectName::Node("nobody".to_owned()))
        .await
        .unwrap_err();
    assert!(missing.to_string().contains("no such object"), "{missing}");
    assert_eq!(world.cloud.calls().writes(), 0);
    assert_eq!(world.writes(), [""; 0]);
}
