//! Load balancers that are kept when their Service goes, and adopted by another.

use ccm_core::{
    explain::Cause,
    k8s::well_known::{ANNOTATION_ADOPT, ANNOTATION_RETAIN},
    provider::CloudError,
};
use ccm_mock::cloud::{Fault, FaultError, FaultSpec, LoadBalancer, Operation};
use ccm_testkit::apiserver::{Action, Match};
use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    cluster::{AGENT, Ccm, TestCluster, secs},
    scripted_load_balancers::{ScriptedLoadBalancers, ScriptedResult},
    service_world::{FINALIZER, SERVICE},
};

const OTHER: [&str; 2] = ["--controllers=service", "--cluster-name=other"];

fn retain(value: &str) -> Value {
    json!({ANNOTATION_RETAIN: value})
}

fn adopt(id: &str) -> Value {
    json!({ANNOTATION_ADOPT: id})
}

fn one_port() -> Value {
    json!({"ports": [{"port": 80}]})
}

/// A cluster with a Service that is served and has these annotations.
async fn serving(annotations: Value) -> (TestCluster, Ccm) {
    let world = TestCluster::provisioned();
    let ccm = world.start(&SERVICE);
    world.have_nodes(["a", "b"]).await;
    world.put_annotated("web", annotations, one_port()).await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    (world, ccm)
}

/// As [`serving`], with a Service that has let go of its load balancer, and is gone.
async fn let_go() -> (TestCluster, Ccm, LoadBalancer) {
    let (world, ccm) = serving(retain("true")).await;
    world.delete_service("web").await;
    world.settle().await;
    assert!(world.service("web").is_null());
    let kept = the_only_one(&world);
    (world, ccm, kept)
}

fn the_only_one(world: &TestCluster) -> LoadBalancer {
    let mut all = world.cloud.load_balancers();
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

/// What clients see of it, and to whom they are sent.
fn service_of(balancer: &LoadBalancer) -> (&str, Vec<String>, &[String], &[u16]) {
    let addresses = balancer.addresses.iter().map(ToString::to_string).collect();
    (&balancer.id, addresses, &balancer.nodes, &balancer.ports)
}

fn lost_answer(operation: Operation) -> Vec<Fault> {
    let spec = FaultSpec {
        operation: Some(operation),
        error: Some(FaultError::Transient),
        times: Some(1),
        answer_lost: true,
        ..FaultSpec::default()
    };
    vec![Fault::new(spec).unwrap()]
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_is_kept_and_a_service_of_another_cluster_adopts_it() {
    let (world, _ccm) = serving(retain("true")).await;
    let before = the_only_one(&world);
    world.delete_service("web").await;
    world.settle().await;
    // The Service is gone, and everything serves as before.
    assert!(world.service("web").is_null());
    let kept = the_only_one(&world);
    assert!(kept.retained && !before.retained);
    assert_eq!(service_of(&kept), service_of(&before));
    assert_eq!(world.reasons()[2..], ["RetainingLoadBalancer", "RetainedLoadBalancer"]);
    let note = world.notes("RetainedLoadBalancer").remove(0);
    assert!(note.contains(&format!("{ANNOTATION_ADOPT}: {}", kept.id)), "{note}");
    assert!(note.contains(&kept.address.to_string()) && note.len() < 1000, "{note}");

    // Another cluster takes it, with one request for the adoption and one for its own nodes.
    let other = world.beside();
    let calls = world.cloud.calls();
    let _other_ccm = other.start(&OTHER);
    other.have_nodes(["x"]).await;
    other
        .put_annotated("shop", adopt(&kept.id), one_port())
        .await;
    other.until_served(&["shop"], secs(60)).await;
    other.settle().await;
    let adopted = the_only_one(&other);
    assert_eq!((&adopted.id, &adopted.addresses), (&kept.id, &kept.addresses));
    assert_eq!(
        (&*adopted.cluster, &*adopted.service, adopted.retained),
        ("other", "default/shop", false)
    );
    assert_eq!(other.nodes_behind("shop"), ["x"]);
    let calls = world.cloud.calls().since(&calls);
    assert_eq!(
        (calls.adopt_load_balancer, calls.update_load_balancer, calls.writes()),
        (1, 1, 2),
        "{calls}"
    );
    // From then on it is the Service's like any other: unchanged for hours, and deleted with it.
    let calls = world.cloud.calls();
    tokio::time::sleep(secs(3 * 3600)).await;
    assert_eq!(world.cloud.calls().since(&calls).writes(), 0);
    other.delete_service("shop").await;
    other.settle().await;
    assert_eq!(other.cloud.load_balancers(), []);
}

#[tokio::test(start_paused = true)]
async fn the_old_cluster_never_touches_it_again() {
    let (world, ccm, kept) = let_go().await;
    // A Service of the same name gets a load balancer of its own, and loses that one alone.
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.have_nodes(["c"]).await;
    world.settle().await;
    assert_eq!(world.balancers("web").len(), 2);
    world.delete_service("web").await;
    world.settle().await;
    assert_eq!(the_only_one(&world), kept);
    // So it is for one with the same UID, as after etcd was restored.
    ccm.stop().await;
    let uid = kept.uid.clone();
    world
        .put_service("web", json!({"type": "ClusterIP", "ports": [{"port": 80}]}))
        .await;
    world.edit_service("web", |service| {
        service["metadata"]["uid"] = json!(uid);
        service["metadata"]["finalizers"] = json!([FINALIZER]);
        service["spec"]["type"] = json!("LoadBalancer");
        service["status"]["loadBalancer"] = json!({"ingress": [{"ip": kept.address}]});
    });
    let _ccm = world.start(&SERVICE);
    tokio::time::sleep(secs(3600)).await;
    assert_eq!(the_only_one(&world), kept);
    world.delete_service("web").await;
    tokio::time::sleep(secs(3600)).await;
    assert_eq!(the_only_one(&world), kept);
}

#[tokio::test(start_paused = true)]
async fn orphans_are_not_looked_for_among_those_that_were_let_go() {
    let (world, ccm, kept) = let_go().await;
    world.serve("another").await;
    world.until_served(&["another"], secs(60)).await;
    ccm.stop().await;
    let flags = [
        SERVICE[0],
        "--collect-orphans=true",
        "--collect-orphans-confirm=kubernetes",
        "--orphan-report-period=10m",
    ];
    let _ccm = world.start(&flags);
    tokio::time::sleep(secs(24 * 3600)).await;
    assert_eq!(world.event_count("OrphanedCloudObject"), 0);
    assert!(world.cloud.load_balancers().contains(&kept));
}

/// A cloud that keeps load balancers, and one that cannot.
const ABLE: &str = "autoProvision: true";
const UNABLE: &str = "{autoProvision: true, features: {retain: false}}";

/// A cluster with a Service `web` that asks for something that cannot be done, and whose finalizer
/// was removed by hand.
async fn lost(config: &str, value: &str, flags: &[&str]) -> (TestCluster, Ccm) {
    let world = TestCluster::new(config);
    let ccm = world.start(flags);
    world.have_nodes(["a"]).await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world
        .patch_service("web", json!({"metadata": {"annotations": retain(value)}}))
        .await;
    world.settle().await;
    world.remove_service("web");
    world.settle().await;
    assert!(!the_only_one(&world).retained);
    (world, ccm)
}

/// As long as the process lives, it remembers the wish, and after that nobody does.
#[tokio::test(start_paused = true)]
async fn what_may_be_kept_is_no_orphan_as_long_as_the_wish_is_remembered() {
    let flags = [
        SERVICE[0],
        "--collect-orphans=true",
        "--collect-orphans-confirm=kubernetes",
        "--orphan-report-period=10m",
    ];
    for (config, value) in [(ABLE, "yes"), (UNABLE, "true")] {
        let (world, ccm) = lost(config, value, &flags).await;
        world.serve("another").await;
        world.until_served(&["another"], secs(60)).await;
        tokio::time::sleep(secs(4 * 3600)).await;
        assert_eq!(world.event_count("OrphanedCloudObject"), 0);
        assert_eq!(
            (world.balancers("web").len(), world.cloud.calls().delete_load_balancer),
            (1, 0)
        );
        ccm.stop().await;
        let _ccm = world.start(&flags);
        tokio::time::sleep(secs(4 * 3600)).await;
        assert_eq!(world.balancers("web"), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_service_of_the_name_decides_what_nobody_else_can_correct() {
    for (config, value, decision, left) in [
        (ABLE, "yes", "false", vec![false]),
        (ABLE, "yes", "true", vec![false, true]),
        (UNABLE, "true", "false", vec![false]),
    ] {
        let (world, ccm) = lost(config, value, &SERVICE).await;
        let old = the_only_one(&world);
        world.serve("web").await;
        tokio::time::sleep(secs(3 * 3600)).await;
        assert_eq!((the_only_one(&world), world.ingress("web")), (old.clone(), vec![]));
        let note = world.notes("RetainLoadBalancerFailed").pop().unwrap();
        assert!(note.contains("an earlier Service of this name"), "{note}");
        let explained = ccm.explanations.service("default", "web").unwrap().causes;
        assert!(explained[0].message.contains("on this Service decides"), "{explained:?}");
        world
            .patch_service("web", json!({"metadata": {"annotations": retain(decision)}}))
            .await;
        world.until_served(&["web"], secs(60)).await;
        world.settle().await;
        let mut found: Vec<_> = world
            .balancers("web")
            .iter()
            .map(|balancer| balancer.retained)
            .collect();
        found.sort_unstable();
        assert_eq!(found, left, "{value}, {decision}");
        assert_ne!(
            world
                .balancers("web")
                .iter()
                .find(|lb| !lb.retained)
                .unwrap()
                .id,
            old.id
        );
    }
}

/// What can be kept is kept, whatever a new Service of the name says.
#[tokio::test(start_paused = true)]
async fn a_new_service_of_the_name_takes_no_wish_back() {
    let (world, _ccm) = serving(retain("true")).await;
    let old = the_only_one(&world);
    world.fail_balancers(Operation::RetainLoadBalancer, FaultError::Transient, None);
    world.remove_service("web");
    world.settle().await;
    world
        .put_annotated("web", retain("false"), one_port())
        .await;
    world.settle().await;
    world.cloud.set_faults(Vec::new());
    world.until_served(&["web"], secs(600)).await;
    assert_eq!(world.cloud.calls().delete_load_balancer, 0);
    assert!(
        world
            .balancers("web")
            .iter()
            .any(|lb| lb.id == old.id && lb.retained)
    );
}

/// The annotation changes while the watch is silent, between two attempts.
#[tokio::test(start_paused = true)]
async fn an_annotation_that_the_watch_does_not_show_still_saves_the_load_balancer() {
    for (before, after, lines) in [
        ("false", "true", ["delete web", "retain web"].as_slice()),
        ("false", "yes", &["delete web"]),
        ("true", "false", &["retain web", "retain web"]),
    ] {
        let world = TestCluster::provisioned();
        let provider = ScriptedLoadBalancers::over(&world);
        let _ccm = world.start_with(provider.clone(), &SERVICE);
        world.have_nodes(["a"]).await;
        world.put_annotated("web", retain(before), one_port()).await;
        world.until_served(&["web"], secs(60)).await;
        world.settle().await;
        provider.take_calls();
        provider.answer(|_| Some(ScriptedResult::Fail(CloudError::transient("not now"))));
        world
            .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
            .await;
        world
            .until("the removal was tried", secs(5), || provider.count() > 0)
            .await;
        let frozen = world
            .server
            .faults()
            .freeze_watches(Match::resource("services").verb("watch"));
        world
            .patch_service("web", json!({"metadata": {"annotations": retain(after)}}))
            .await;
        provider.answer_well();
        tokio::time::sleep(secs(30)).await;
        let mut asked = provider.take_lines();
        asked.truncate(2);
        assert_eq!(asked, lines, "{before}, then {after}");
        world.server.faults().thaw(frozen);
        world.settle().await;
        assert_eq!(the_only_one(&world).retained, after != "yes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_without_a_load_balancer_says_so() {
    let world = TestCluster::provisioned();
    world.fail_balancers(Operation::CreateLoadBalancer, FaultError::Transient, None);
    let _ccm = world.start(&SERVICE);
    world.have_nodes(["a"]).await;
    world.put_annotated("web", retain("true"), one_port()).await;
    world.settle().await;
    world.delete_service("web").await;
    world.settle().await;
    assert!(world.service("web").is_null());
    let note = world.notes("RetainedLoadBalancer").remove(0);
    assert!(note.starts_with("There is no load balancer to keep: the cloud has no "), "{note}");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_becomes_clusterip_keeps_it_even_if_both_change_at_once() {
    let (world, _ccm) = serving(json!({})).await;
    let patch = json!({"metadata": {"annotations": retain("true")}, "spec": {"type": "ClusterIP"}});
    world.patch_service("web", patch).await;
    world.settle().await;
    assert!(the_only_one(&world).retained && !world.is_guarded("web"));
    assert!(world.ingress("web").is_empty());
    assert_eq!(world.cloud.calls().delete_load_balancer, 0);
}

/// In either case the cloud is not asked to delete anything, for hours. The owner corrects the
/// annotation, and gets what it says.
#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_while_the_wish_is_unclear_or_cannot_be_fulfilled() {
    for (config, value, text) in [
        (ABLE, "yes", "is \"yes\", which is neither true nor false"),
        (UNABLE, "true", "the provider cannot keep load balancers"),
    ] {
        for corrected in ["false", "true"] {
            let world = TestCluster::new(config);
            let ccm = world.start(&SERVICE);
            world.serve("web").await;
            world.until_served(&["web"], secs(60)).await;
            world
                .patch_service("web", json!({"metadata": {"annotations": retain(value)}}))
                .await;
            world.settle().await;
            assert_eq!(world.notes("SyncLoadBalancerFailed").len(), 1, "refused from the start");
            world.delete_service("web").await;
            tokio::time::sleep(secs(3 * 3600)).await;
            let note = world.notes("RetainLoadBalancerFailed");
            assert!(note.len() == 1 && note[0].contains(text), "{note:?}");
            assert!(note[0].ends_with(Cause::CloudRejectedInput.next_step()), "{note:?}");
            assert!(world.is_guarded("web") && !the_only_one(&world).retained);
            assert_eq!(world.cloud.calls().delete_load_balancer, 0);
            // Nothing is announced, and the explanation says that nothing is done.
            for reason in ["RetainingLoadBalancer", "DeletingLoadBalancer"] {
                assert_eq!(world.event_count(reason), 0, "{reason}");
            }
            let explained = ccm.explanations.service("default", "web").unwrap().causes;
            assert!(explained[0].message.contains("nothing is deleted"), "{explained:?}");
            world
                .patch_service("web", json!({"metadata": {"annotations": retain(corrected)}}))
                .await;
            world.settle().await;
            let is_kept = corrected == "true" && value == "yes";
            assert_eq!(world.service("web").is_null(), is_kept || corrected == "false");
            let left: Vec<_> = world
                .cloud
                .load_balancers()
                .iter()
                .map(|lb| lb.retained)
                .collect();
            let expected = match corrected {
                "false" => vec![],
                _ => vec![is_kept],
            };
            assert_eq!(left, expected, "{value}, {corrected}");
        }
    }
}

/// Whatever the cloud answers to the request, and also if its answer is lost, the load balancer is
/// kept in the end, and nothing else was asked for.
#[tokio::test(start_paused = true)]
async fn a_failure_to_keep_it_is_retried_and_never_becomes_a_deletion() {
    let mut faults = vec![lost_answer(Operation::RetainLoadBalancer)];
    for error in FaultError::ALL {
        let spec = FaultSpec {
            operation: Some(Operation::RetainLoadBalancer),
            error: Some(error),
            times: Some(3),
            ..FaultSpec::default()
        };
        faults.push(vec![Fault::new(spec).unwrap()]);
    }
    for fault in faults {
        for restarts in [false, true] {
            let (world, ccm) = serving(retain("true")).await;
            let before = the_only_one(&world);
            world.cloud.set_faults(fault.clone());
            world.delete_service("web").await;
            tokio::time::sleep(secs(2)).await;
            assert!(world.is_guarded("web"), "{fault:?}");
            let _ccm = if restarts {
                ccm.stop().await;
                world.start(&SERVICE)
            } else {
                ccm
            };
            tokio::time::sleep(secs(3600)).await;
            let kept = the_only_one(&world);
            assert!(kept.retained && world.service("web").is_null(), "{fault:?}");
            assert_eq!(service_of(&kept), service_of(&before));
            assert_eq!(world.cloud.calls().delete_load_balancer, 0, "{fault:?}");
        }
    }
}

/// The process dies between the cloud and the API server; the wish is withdrawn meanwhile or not.
#[tokio::test(start_paused = true)]
async fn what_was_let_go_stays_so_although_the_finalizer_could_not_be_removed() {
    for withdrawn in [false, true] {
        let (world, ccm) = serving(retain("true")).await;
        let releases = Match::resource("services").verb("patch").user_agent(AGENT);
        let down = Action::Error { code: StatusCode::INTERNAL_SERVER_ERROR, retry_after: None };
        let fault = world.server.faults().add(releases, down);
        world.delete_service("web").await;
        world.settle().await;
        let kept = the_only_one(&world);
        assert!(kept.retained && world.is_guarded("web"));
        ccm.stop().await;
        world.server.faults().remove(fault);
        if withdrawn {
            world
                .patch_service("web", json!({"metadata": {"annotations": retain("false")}}))
                .await;
        }
        let _ccm = world.start(&SERVICE);
        tokio::time::sleep(secs(600)).await;
        assert_eq!((the_only_one(&world), world.service("web")), (kept, Value::Null));
    }
}

/// Its finalizer is removed by hand, after the cloud could not be asked to keep the load balancer by
/// a process that never served it.
#[tokio::test(start_paused = true)]
async fn a_service_that_vanishes_keeps_what_it_asked_to_keep() {
    for restarts in [false, true] {
        let (world, ccm) = serving(retain("true")).await;
        let _ccm = if restarts {
            ccm.stop().await;
            world.fail_balancers(Operation::RetainLoadBalancer, FaultError::Transient, None);
            world.delete_service("web").await;
            let ccm = world.start(&SERVICE);
            world.settle().await;
            assert!(world.is_guarded("web") && !the_only_one(&world).retained);
            ccm
        } else {
            ccm
        };
        world.remove_service("web");
        world.cloud.set_faults(Vec::new());
        tokio::time::sleep(secs(900)).await;
        assert!(the_only_one(&world).retained, "{restarts}");
        assert_eq!(world.cloud.calls().delete_load_balancer, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_cloud_may_take_its_time_to_keep_it() {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    let _ccm = world.start_with(provider.clone(), &SERVICE);
    world.have_nodes(["a"]).await;
    world.put_annotated("web", retain("true"), one_port()).await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    provider.take_calls();
    provider.answer(|_| Some(ScriptedResult::Pending(secs(10))));
    world.delete_service("web").await;
    tokio::time::sleep(secs(35)).await;
    assert_eq!(provider.take_lines(), ["retain web"; 4]);
    assert!(world.is_guarded("web"));
    provider.answer_well();
    world.settle().await;
    assert!(world.service("web").is_null() && the_only_one(&world).retained);
    assert_eq!(world.reasons()[2..], ["RetainingLoadBalancer", "RetainedLoadBalancer"]);
}

#[tokio::test(start_paused = true)]
async fn only_what_was_let_go_is_adopted() {
    let (world, _ccm) = serving(json!({})).await;
    let served = the_only_one(&world);
    let other = world.beside();
    let _other_ccm = other.start(&OTHER);
    other.have_nodes(["x"]).await;
    // Another's, one that does not exist, and no name at all.
    for (name, id, text) in [
        ("theirs", &*served.id, "has not let go of it"),
        ("missing", "lb-99999999", "does not exist"),
        ("empty", "", "names no load balancer"),
    ] {
        other.put_annotated(name, adopt(id), one_port()).await;
        other.settle().await;
        let notes = other.notes("SyncLoadBalancerFailed").join("\n");
        assert!(notes.contains(text), "{name}: {notes}");
        other.have_nodes([name]).await;
        other.settle().await;
        other.delete_service(name).await;
        other.settle().await;
        assert!(other.service(name).is_null(), "{name}");
        assert_eq!(the_only_one(&world), served, "{name}");
    }
    // Its owner lets go while the other waits for it.
    other
        .put_annotated("shop", adopt(&served.id), one_port())
        .await;
    other.settle().await;
    assert!(other.ingress("shop").is_empty());
    world
        .patch_service("web", json!({"metadata": {"annotations": retain("true")}}))
        .await;
    world.delete_service("web").await;
    other.until_served(&["shop"], secs(400)).await;
    assert_eq!(the_only_one(&world).cluster, "other");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_has_a_load_balancer_adopts_no_other_one() {
    let (world, _ccm, kept) = let_go().await;
    world.serve("shop").await;
    world.until_served(&["shop"], secs(60)).await;
    let own = world.balancers("shop").remove(0);
    world
        .patch_service("shop", json!({"metadata": {"annotations": adopt(&kept.id)}}))
        .await;
    world.settle().await;
    let note = world.notes("SyncLoadBalancerFailed").remove(0);
    assert!(note.contains(&format!("because it has load balancer {}", own.id)), "{note}");
    assert_eq!(world.cloud.load_balancers().len(), 2);
    assert!(world.cloud.load_balancers().contains(&kept));
    assert_eq!(world.balancers("shop")[0], own);
}

/// Also in the cluster that let go of it: this is the way back.
#[tokio::test(start_paused = true)]
async fn an_adoption_that_fails_or_is_interrupted_anywhere_is_completed() {
    for operation in
        [Operation::GetLoadBalancer, Operation::AdoptLoadBalancer, Operation::UpdateLoadBalancer]
    {
        for answer_lost in [false, true] {
            let (world, ccm, kept) = let_go().await;
            let spec = FaultSpec {
                operation: Some(operation),
                error: Some(FaultError::Transient),
                times: Some(1),
                answer_lost,
                ..FaultSpec::default()
            };
            world.cloud.set_faults(vec![Fault::new(spec).unwrap()]);
            world.have_nodes(["c"]).await;
            world
                .put_annotated("web", adopt(&kept.id), one_port())
                .await;
            tokio::time::sleep(secs(2)).await;
            ccm.stop().await;
            let _ccm = world.start(&SERVICE);
            world.until_served(&["web"], secs(400)).await;
            let adopted = the_only_one(&world);
            assert_eq!((&adopted.id, &adopted.addresses), (&kept.id, &kept.addresses));
            assert_eq!(
                (adopted.retained, world.nodes_behind("web")),
                (false, vec!["a".into(), "b".into(), "c".into()])
            );
            assert_eq!(world.cloud.calls().create_load_balancer, 1, "{operation:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn shadow_mode_says_that_it_would_be_kept() {
    let (world, ccm) = serving(retain("true")).await;
    ccm.stop().await;
    world.delete_service("web").await;
    let calls = world.cloud.calls();
    let shadow = world.start(&["--controllers=service", "--shadow-once"]);
    let printed = shadow.printed.clone();
    shadow.ended().await.ok();
    let printed = printed.lock().join("\n");
    assert!(printed.contains("kept, and let go of"), "{printed}");
    assert_eq!(world.cloud.calls().since(&calls).writes(), 0);
}
