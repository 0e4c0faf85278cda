//! Our condition of Services (`--service-conditions`): what it says, and how few writes it costs.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use ccm_core::{
    explain::Cause,
    k8s::ServiceView,
    manager::ManagerExit,
    provider::{CloudError, ErrorKind, FieldError, ServiceInterpretation},
};
use ccm_testkit::apiserver::{Action, Match};
use serde_json::{Value, json};

use crate::{
    cluster::{Ccm, TestCluster, secs},
    scripted_load_balancers::{Call, ScriptedLoadBalancers, ScriptedResult},
    service_world::SERVICE,
};

const TYPE: &str = "service.cloud-controller-manager/LoadBalancerReady";
const FLAGS: [&str; 2] = [SERVICE[0], "--service-conditions"];
const SERVED: (&str, &str) = ("True", "LoadBalancerServed");

async fn world_with_nodes() -> (TestCluster, Arc<ScriptedLoadBalancers>) {
    let world = TestCluster::provisioned();
    world.have_nodes(["a", "b"]).await;
    let provider = ScriptedLoadBalancers::over(&world);
    (world, provider)
}

/// A Service that is served and has been quiet for a while.
async fn served() -> (TestCluster, Arc<ScriptedLoadBalancers>, Ccm) {
    let (world, provider) = world_with_nodes().await;
    let ccm = world.start_with(provider.clone(), &FLAGS);
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    (world, provider, ccm)
}

fn ours(world: &TestCluster) -> Option<Value> {
    let service = world.service("web");
    let conditions = service["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == TYPE)
        .cloned()
}

/// Status and reason of our condition.
fn meaning(world: &TestCluster) -> Option<(String, String)> {
    let condition = ours(world)?;
    let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason")))
}

fn is(world: &TestCluster, (status, reason): (&str, &str)) -> bool {
    meaning(world) == Some((status.to_owned(), reason.to_owned()))
}

/// Errors of one kind that differ in text and request ID.
fn numbered_errors(kind: ErrorKind) -> impl Fn(&Call) -> Option<ScriptedResult> + Send + Sync {
    let number = AtomicU64::new(0);
    move |_| {
        let id = number.fetch_add(1, Ordering::Relaxed);
        let error = CloudError::new(kind, format!("attempt {id} failed"));
        Some(ScriptedResult::Fail(error.with_request_id(format!("r-{id}"))))
    }
}

fn invalid(_: &ServiceView, _: ServiceInterpretation) -> ServiceInterpretation {
    ServiceInterpretation::Invalid(vec![FieldError::new("spec.ports", "no such port")])
}

#[tokio::test(start_paused = true)]
async fn without_the_flag_there_is_no_condition() {
    let (world, provider) = world_with_nodes().await;
    let _ccm = world.start_with(provider, &SERVICE);
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    assert_eq!(ours(&world), None);
    assert_eq!(world.service_writes().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_new_service_gets_it_with_its_status_at_no_further_write() {
    let (world, _, _ccm) = served().await;
    assert!(is(&world, SERVED), "{:?}", ours(&world));
    let condition = ours(&world).unwrap();
    assert_eq!(condition["message"], "The load balancer is as the Service requests");
    assert!(condition["lastTransitionTime"].is_string());
    tokio::time::sleep(secs(3 * 3600)).await;
    assert_eq!(world.service_writes().len(), 2, "finalizer, and status with condition");
}

#[tokio::test(start_paused = true)]
async fn an_error_that_lasts_costs_one_write_whatever_its_text() {
    let (world, provider) = world_with_nodes().await;
    provider.answer(numbered_errors(ErrorKind::QuotaExceeded));
    let _ccm = world.start_with(provider.clone(), &FLAGS);
    world.serve("web").await;
    tokio::time::sleep(secs(3600)).await;
    assert!(provider.count() > 5, "it was tried again and again");
    assert!(is(&world, ("False", "QuotaExceeded")), "{:?}", ours(&world));
    let note = "Error syncing load balancer: failed to ensure load balancer: attempt 0 failed";
    let first = Cause::QuotaExceeded.with_next_step(note);
    assert_eq!(ours(&world).unwrap()["message"], first, "as the event says");
    assert_eq!(world.notes("SyncLoadBalancerFailed"), [first]);
    assert_eq!(world.service_writes().len(), 2, "finalizer and condition");
    provider.answer_well();
    world.until_served(&["web"], secs(340)).await;
    world.settle().await;
    assert!(is(&world, SERVED));
    assert_eq!(world.service_writes().len(), 3, "with the status");
}

#[tokio::test(start_paused = true)]
async fn while_the_cloud_is_silent_it_is_unknown_and_while_it_works_it_is_false() {
    let (world, provider, _ccm) = served().await;
    let times = |world: &TestCluster| ours(world).unwrap()["lastTransitionTime"].clone();
    let begin = times(&world);
    provider.answer(numbered_errors(ErrorKind::Transient));
    world
        .patch_service("web", json!({"spec": {"ports": [{"port": 81}]}}))
        .await;
    tokio::time::sleep(secs(600)).await;
    assert!(is(&world, ("Unknown", "CloudUnavailable")), "{:?}", ours(&world));
    provider.answer(|_| Some(ScriptedResult::Pending(secs(30))));
    tokio::time::sleep(secs(600)).await;
    assert!(is(&world, ("False", "LoadBalancerPending")), "{:?}", ours(&world));
    assert_ne!(times(&world), begin);
    provider.answer_well();
    tokio::time::sleep(secs(60)).await;
    assert!(is(&world, SERVED));
    assert_eq!(world.service_writes().len(), 2 + 3, "one for each meaning");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_becomes_invalid_says_so_until_it_is_mended() {
    let (world, provider, _ccm) = served().await;
    provider.interpret_by(invalid);
    world
        .patch_service("web", json!({"metadata": {"annotations": {"a": "b"}}}))
        .await;
    world.settle().await;
    // The nodes of its load balancer are still kept up to date, which is no reason for True.
    world.have_nodes(["c"]).await;
    world.settle().await;
    assert!(is(&world, ("False", "ServiceInvalid")), "{:?}", ours(&world));
    provider.interpret_by(|_, valid| valid);
    world
        .patch_service("web", json!({"metadata": {"annotations": {"a": "c"}}}))
        .await;
    world.settle().await;
    assert!(is(&world, SERVED));
    assert_eq!(world.service_writes().len(), 2 + 2);
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_without_nodes_is_not_ready() {
    let world = TestCluster::provisioned();
    let _ccm = world.start(&FLAGS);
    world.serve("web").await;
    world.settle().await;
    assert!(is(&world, ("False", "NoBackendNodes")), "{:?}", ours(&world));
    world.have_nodes(["a"]).await;
    world.settle().await;
    assert!(is(&world, SERVED));
}

#[tokio::test(start_paused = true)]
async fn it_goes_with_the_type_and_those_of_others_stay() {
    let (world, _, _ccm) = served().await;
    let other = json!({"type": "example.com/Other", "status": "True", "reason": "R",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    world.edit_service("web", |service| {
        let conditions = service["status"]["conditions"].as_array_mut().unwrap();
        conditions.insert(0, other.clone());
    });
    world
        .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
        .await;
    world.settle().await;
    assert!(!world.is_guarded("web") && world.ingress("web").is_empty());
    assert_eq!(world.service("web")["status"]["conditions"], json!([other]));
    assert_eq!(world.service_writes().len(), 2 + 1, "with the finalizer");
}

/// An invalid Service has a condition and no finalizer.
#[tokio::test(start_paused = true)]
async fn it_goes_with_the_type_of_a_service_that_was_never_served() {
    let (world, provider) = world_with_nodes().await;
    provider.interpret_by(invalid);
    let _ccm = world.start_with(provider.clone(), &FLAGS);
    world.serve("web").await;
    world.settle().await;
    assert!(is(&world, ("False", "ServiceInvalid")), "{:?}", ours(&world));
    world
        .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
        .await;
    world.settle().await;
    assert_eq!(ours(&world), None);
    tokio::time::sleep(secs(3600)).await;
    assert_eq!(world.service_writes().len(), 2);
}

/// The provider says it of one sync and not of the next.
#[tokio::test(start_paused = true)]
async fn a_service_that_comes_back_from_another_controller_gets_one_condition() {
    let (world, provider, _ccm) = served().await;
    provider.answer(|_| {
        let error = CloudError::new(ErrorKind::ImplementedElsewhere, "another controller's");
        Some(ScriptedResult::Fail(error))
    });
    world
        .patch_service("web", json!({"spec": {"ports": [{"port": 81}]}}))
        .await;
    world.settle().await;
    assert_eq!(ours(&world), None);
    let before = world.service_writes().len();
    provider.answer(|_| Some(ScriptedResult::Pending(secs(30))));
    world
        .patch_service("web", json!({"spec": {"ports": [{"port": 82}]}}))
        .await;
    tokio::time::sleep(secs(600)).await;
    assert!(is(&world, ("False", "LoadBalancerPending")), "{:?}", ours(&world));
    assert_eq!(world.service_writes().len(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_passes_is_not_written() {
    let (world, provider, _ccm) = served().await;
    provider.answer(numbered_errors(ErrorKind::Transient));
    world
        .patch_service("web", json!({"spec": {"ports": [{"port": 81}]}}))
        .await;
    tokio::time::sleep(secs(4)).await;
    assert!(provider.count() > 1, "it failed");
    provider.answer_well();
    tokio::time::sleep(secs(600)).await;
    assert!(is(&world, SERVED));
    assert_eq!(world.service_writes().len(), 2);
}

/// The role of an older manifest does not allow it.
#[tokio::test(start_paused = true)]
async fn a_condition_that_is_rejected_is_not_written_again_and_again() {
    let (world, _, ccm) = served().await;
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    world.edit_service("web", |service| service["status"]["conditions"] = json!([]));
    let status = Match::resource("services").verb("patch");
    let forbidden = Action::Error { code: http::StatusCode::FORBIDDEN, retry_after: None };
    world.server.faults().add(status, forbidden);
    let patches = Match::resource("services").verb("patch");
    let before = world.server.log().count(&patches);
    let provider = ScriptedLoadBalancers::over(&world);
    let _ccm = world.start_with(provider, &FLAGS);
    tokio::time::sleep(secs(600)).await;
    assert_eq!(ours(&world), None);
    assert_eq!(world.server.log().count(&patches), before + 1);
}

/// A policy of the cluster may forbid what the role allows.
#[tokio::test(start_paused = true)]
async fn an_address_does_not_wait_for_a_condition_that_is_rejected() {
    let (world, _, ccm) = served().await;
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    // The next manager writes both again.
    world.edit_service("web", |service| service["status"] = json!({}));
    let status = Match::resource("services").verb("patch");
    let forbidden = Action::Error { code: http::StatusCode::FORBIDDEN, retry_after: None };
    let fault = world.server.faults().add_times(status, forbidden, 1);
    let _ccm = world.start_with(ScriptedLoadBalancers::over(&world), &FLAGS);
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    assert_eq!(world.server.faults().met(fault), 1, "status and condition together");
    assert_eq!(world.notes("SyncLoadBalancerFailed"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn it_goes_when_another_controller_serves_the_service() {
    let (world, provider, _ccm) = served().await;
    provider.interpret_by(|_, _| ServiceInterpretation::ImplementedElsewhere);
    world
        .patch_service("web", json!({"metadata": {"annotations": {"a": "b"}}}))
        .await;
    world.settle().await;
    assert_eq!(ours(&world), None);
    assert_eq!(world.service_writes().len(), 2 + 1);
}

/// Two managers that both consider the Service theirs must not overwrite each other for ever.
#[tokio::test(start_paused = true)]
async fn a_condition_that_another_client_changes_is_not_fought_over() {
    let (world, _, _ccm) = served().await;
    world.edit_service("web", |service| {
        service["status"]["conditions"][0]["status"] = json!("False");
    });
    tokio::time::sleep(secs(600)).await;
    assert_eq!(world.service_writes().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_next_process_writes_only_what_differs() {
    let (world, provider, ccm) = served().await;
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    let ccm = world.start_with(provider.clone(), &FLAGS);
    world.settle().await;
    assert_eq!(world.service_writes().len(), 2, "it is there");
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    world.edit_service("web", |service| service["status"]["conditions"] = json!([]));
    let _ccm = world.start_with(provider, &FLAGS);
    world.settle().await;
    assert!(is(&world, SERVED));
    assert_eq!(world.service_writes().len(), 3, "with the flag for the first time");
}

#[tokio::test(start_paused = true)]
async fn a_shadow_writes_no_condition() {
    let (world, provider) = world_with_nodes().await;
    let ccm = world.start_with(provider.clone(), &SERVICE);
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    let shadow = world.start_with(provider, &[FLAGS[0], FLAGS[1], "--shadow-once"]);
    shadow.ended().await.unwrap();
    assert_eq!(ours(&world), None);
    assert_eq!(world.service_writes().len(), 2);
}
