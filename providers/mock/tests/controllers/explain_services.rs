//! Why a Service is pending: the explanation and the event name the true cause and the next step.

use std::sync::Arc;

use ccm_core::{
    explain::{Cause, ServiceExplanation},
    manager::ExplainError,
    provider::{CloudError, ErrorKind, ServiceInterpretation},
};
use ccm_mock::provider::annotations;
use ccm_testkit::apiserver::{Action, Match};
use http::StatusCode;
use serde_json::json;

use crate::{
    cluster::{AGENT, Ccm, TestCluster, initialized, secs},
    explain::causes,
    scripted_load_balancers::{Call, ScriptedLoadBalancers, ScriptedResult},
    service_world::SERVICE,
};

/// A world with two nodes whose provider answers by a script.
async fn world_of(
    script: impl Fn(&Call) -> Option<ScriptedResult> + Send + Sync + 'static,
) -> (TestCluster, Arc<ScriptedLoadBalancers>, Ccm) {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    provider.answer(script);
    let ccm = world.start_with(provider.clone(), &SERVICE);
    world.have_nodes(["a", "b"]).await;
    (world, provider, ccm)
}

fn explain(ccm: &Ccm) -> ServiceExplanation {
    ccm.explanations
        .service("default", "web")
        .expect("the Service is explained")
}

/// Asserts that the explanation of the Service `web` has this cause alone, and that an event with
/// this reason names the same next step.
fn assert_service(
    world: &TestCluster,
    ccm: &Ccm,
    cause: Cause,
    event: Option<&str>,
) -> ServiceExplanation {
    let explanation = explain(ccm);
    assert_eq!(causes(&explanation.causes), [cause], "{explanation:#?}");
    let explained = &explanation.causes[0];
    assert!(explained.message.starts_with("service default/web: "), "{}", explained.message);
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

#[tokio::test(start_paused = true)]
async fn a_served_service_shows_its_address_and_members_and_no_cause() {
    let (world, _, ccm) = world_of(|_| None).await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    let excluded = "node.kubernetes.io/exclude-from-external-load-balancers";
    let spec = initialized("c").label(excluded, "");
    world.kubelets.register(spec).await.unwrap();
    world.settle().await;
    let calls = world.cloud.calls();
    let explanation = explain(&ccm);
    assert_eq!(world.cloud.calls(), calls, "an explanation asks nobody");
    assert_eq!(explanation.causes, []);
    let address = world.ingress("web").remove(0);
    assert_eq!(explanation.summary, format!("Service default/web is served: {address}"));
    assert_eq!(explanation.existing.ingress, [address]);
    let existing = &explanation.existing;
    assert!(existing.finalizer && existing.up_to_date && existing.next_drift_check.is_some());
    assert_eq!((explanation.plan.action, explanation.last_attempt.is_none()), ("wait", true));
    let backends = explanation.backends.expect("it has backends");
    assert!(backends.applied, "{backends:?}");
    let members: Vec<_> = backends
        .candidates
        .iter()
        .map(|candidate| (&*candidate.name, candidate.member))
        .collect();
    assert_eq!(members, [("a", true), ("b", true), ("c", false)]);
    assert!(
        backends.candidates[2]
            .reason
            .contains("exclude-from-external-load-balancers")
    );
    assert_eq!(ccm.explanations.service("default", "other"), Err(ExplainError::NoService));
}

#[tokio::test(start_paused = true)]
async fn each_error_of_the_cloud_has_its_cause_with_the_request_id() {
    for (kind, cause) in [
        (ErrorKind::Denied, Cause::CloudAccessDenied),
        (ErrorKind::Throttled, Cause::CloudThrottled),
        (ErrorKind::QuotaExceeded, Cause::QuotaExceeded),
        (ErrorKind::InvalidInput, Cause::CloudRejectedInput),
        (ErrorKind::Conflict, Cause::CloudConflict),
        (ErrorKind::NotFound, Cause::CloudObjectNotFound),
        (ErrorKind::NotImplemented, Cause::CloudNotImplemented),
        (ErrorKind::Transient, Cause::CloudUnavailable),
    ] {
        let error = CloudError::new(kind, "it says no").with_request_id("r-17");
        let (world, _, ccm) = world_of(move |call| {
            (call.verb == "ensure").then(|| ScriptedResult::Fail(error.clone()))
        })
        .await;
        world.serve("web").await;
        tokio::time::sleep(secs(30)).await;
        let event = Some("SyncLoadBalancerFailed");
        let explanation = assert_service(&world, &ccm, cause, event);
        let attempt = explanation.last_attempt.expect("it failed");
        assert_eq!(attempt.operation, "ensure the load balancer", "{kind}");
        assert!(attempt.error.contains("it says no"), "{kind}: {}", attempt.error);
        assert_eq!(attempt.request_id.as_deref(), Some("r-17"), "{kind}");
        assert!(attempt.failures > 0 && attempt.retry_at >= Some(attempt.at), "{kind}");
        assert_eq!(explanation.plan.action, "wait", "{kind}");
        assert_eq!(explanation.plan.until, attempt.retry_at, "{kind}");
        assert_eq!(explanation.causes[0].until, attempt.retry_at, "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_is_still_working_is_no_failure_and_says_on_what() {
    let (world, provider, ccm) = world_of(|_| Some(ScriptedResult::Pending(secs(60)))).await;
    world.serve("web").await;
    tokio::time::sleep(secs(30)).await;
    let explanation = assert_service(&world, &ccm, Cause::LoadBalancerPending, None);
    assert_eq!(explanation.causes[0].message, "service default/web: test");
    assert_eq!(explanation.last_attempt.unwrap().failures, 0);
    assert!(explanation.existing.pending_since.is_some());
    assert!(explanation.plan.until > Some(explanation.at));
    provider.answer_well();
    world.until_served(&["web"], secs(120)).await;
    world.settle().await;
    assert_eq!(explain(&ccm).causes, []);
}

#[tokio::test(start_paused = true)]
async fn a_service_whose_first_sync_runs_says_so() {
    let (world, _, ccm) = world_of(|_| Some(ScriptedResult::Hang)).await;
    world.serve("web").await;
    tokio::time::sleep(secs(10)).await;
    let explanation = assert_service(&world, &ccm, Cause::ServiceNotSyncedYet, None);
    assert_eq!(explanation.plan.action, "ensure the load balancer");
}

#[tokio::test(start_paused = true)]
async fn services_of_others_say_whose_they_are() {
    let (world, provider, ccm) = world_of(|_| None).await;
    let spec = json!({"ports": [{"port": 80}], "loadBalancerClass": "example.com/internal"});
    world.put_service("web", spec).await;
    world.settle().await;
    let explanation = assert_service(&world, &ccm, Cause::OtherLoadBalancerClass, None);
    assert!(
        explanation.causes[0]
            .message
            .contains("example.com/internal")
    );
    assert_eq!(explanation.backends, None);
    world.delete_service("web").await;

    provider.interpret_by(|_, _| ServiceInterpretation::ImplementedElsewhere);
    world.serve("web").await;
    world.settle().await;
    assert_service(&world, &ccm, Cause::ImplementedElsewhere, None);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_service_names_the_annotation() {
    let world = TestCluster::provisioned();
    let ccm = world.start(&SERVICE);
    world.have_nodes(["a"]).await;
    let wrong = json!({annotations::SCHEME: "sideways"});
    world
        .put_annotated("web", wrong, json!({"ports": [{"port": 80}]}))
        .await;
    world.settle().await;
    let event = Some("SyncLoadBalancerFailed");
    let explanation = assert_service(&world, &ccm, Cause::ServiceInvalid, event);
    assert!(explanation.causes[0].message.contains(annotations::SCHEME));
    let annotation = &explanation.requested.annotations[0];
    assert_eq!(
        (&*annotation.key, annotation.origin),
        (annotations::SCHEME, "the owner of the Service")
    );
    assert_eq!(explanation.requested.validation_errors.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_without_nodes_says_so() {
    let world = TestCluster::provisioned();
    let ccm = world.start(&SERVICE);
    world.serve("web").await;
    world.settle().await;
    let event = Some("UnAvailableLoadBalancer");
    assert_service(&world, &ccm, Cause::NoBackendNodes, event);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_fails_is_explained_while_the_service_exists_and_after() {
    for is_gone in [false, true] {
        let (world, _, ccm) = world_of(|call| {
            let error = CloudError::new(ErrorKind::Denied, "not yours");
            (call.verb == "delete").then(|| ScriptedResult::Fail(error))
        })
        .await;
        world.serve("web").await;
        world.until_served(&["web"], secs(60)).await;
        world.settle().await;
        let event = if is_gone {
            world.remove_service("web");
            "DeleteLoadBalancerFailed"
        } else {
            world.delete_service("web").await;
            "SyncLoadBalancerFailed"
        };
        tokio::time::sleep(secs(30)).await;
        let explanation = explain(&ccm);
        let expected = [Cause::ServiceBeingDeleted, Cause::CloudAccessDenied];
        assert_eq!(causes(&explanation.causes), expected, "{explanation:#?}");
        let notes = world.notes(event);
        let step = Cause::CloudAccessDenied.next_step();
        assert!(notes.last().is_some_and(|note| note.ends_with(step)), "{event}: {notes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_changes_its_type_says_why_its_load_balancer_goes() {
    let (world, _, ccm) =
        world_of(|call| (call.verb == "delete").then_some(ScriptedResult::Pending(secs(600))))
            .await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    world
        .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
        .await;
    tokio::time::sleep(secs(30)).await;
    let explanation = explain(&ccm);
    let expected = [Cause::LoadBalancerNotNeeded, Cause::LoadBalancerPending];
    assert_eq!(causes(&explanation.causes), expected, "{explanation:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_that_the_api_server_forbids_is_named() {
    let (world, _, ccm) = world_of(|_| None).await;
    let forbidden = Action::Error { code: StatusCode::FORBIDDEN, retry_after: None };
    let patches = Match::resource("services").verb("patch").user_agent(AGENT);
    world.server.faults().add(patches, forbidden);
    world.serve("web").await;
    tokio::time::sleep(secs(30)).await;
    let event = Some("SyncLoadBalancerFailed");
    let explanation = assert_service(&world, &ccm, Cause::ApiForbidden, event);
    assert_eq!(explanation.last_attempt.unwrap().operation, "add the finalizer");
}

#[tokio::test(start_paused = true)]
async fn a_failed_update_of_backends_is_explained_and_the_address_stays() {
    let (world, _, ccm) = world_of(|call| {
        let error = CloudError::new(ErrorKind::Transient, "busy");
        (call.verb == "update").then(|| ScriptedResult::Fail(error))
    })
    .await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    world.have_nodes(["c"]).await;
    tokio::time::sleep(secs(15)).await;
    let event = Some("UpdateLoadBalancerFailed");
    let explanation = assert_service(&world, &ccm, Cause::CloudUnavailable, event);
    let attempt = explanation.last_attempt.unwrap();
    assert_eq!(attempt.operation, "update the backends");
    let backends = explanation.backends.unwrap();
    assert!(!backends.applied && backends.members == 3, "{backends:?}");
    assert!(
        explanation
            .summary
            .starts_with("Service default/web is served, with the causes")
    );
}
