//! Load balancers of Services: from the first to the last write.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    k8s::{LbIngress, LbStatus},
    provider::LbOutcome,
};
use ccm_mock::{cloud::Calls, provider::annotations};
use ccm_testkit::apiserver::{Action, Change, Match};
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    cluster::{AGENT, TestCluster, secs},
    scripted_load_balancers::{ScriptedLoadBalancers, ScriptedResult},
    service_world::{FINALIZER, SERVICE},
};

/// A world with a Service that is served, all calls and events of its creation forgotten.
async fn serving(name: &str) -> (TestCluster, Arc<ScriptedLoadBalancers>, crate::cluster::Ccm) {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    let ccm = world.start_with(provider.clone(), &SERVICE);
    world.have_nodes(["a", "b"]).await;
    world.serve(name).await;
    world.until_served(&[name], secs(60)).await;
    world.settle().await;
    provider.take_calls();
    (world, provider, ccm)
}

#[tokio::test(start_paused = true)]
async fn a_new_balancer_costs_two_writes_and_two_events() {
    let world = TestCluster::provisioned();
    let _ccm = world.start(&SERVICE);
    world.have_nodes(["a", "b"]).await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    assert_eq!(world.service_writes(), ["patch services/status web", "patch services/status web"]);
    assert_eq!(
        world.service_events(),
        [("EnsuringLoadBalancer".to_owned(), 1), ("EnsuredLoadBalancer".to_owned(), 1)]
    );
    let calls = world.cloud.calls();
    assert_eq!((calls.create_load_balancer, calls.writes()), (1, 1), "{calls}");
    assert_eq!(world.nodes_behind("web"), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn over_six_hours_nothing_happens_but_comparisons_that_only_read() {
    let (world, provider, ccm) = serving("web").await;
    let (calls, writes, events) =
        (world.cloud.calls(), world.service_writes(), world.service_events());
    tokio::time::sleep(secs(6 * 3600)).await;
    let since = world.cloud.calls().since(&calls);
    assert_eq!(since.writes(), 0, "{since}");
    assert!(
        (4..=8).contains(&since.get_load_balancer),
        "once per hour, give or take a quarter: {since}"
    );
    assert!(provider.take_calls().iter().all(|call| call.verb == "plan"));
    assert_eq!((world.service_writes(), world.service_events()), (writes, events));
    assert_eq!(ccm.metric("ccm_service_drift_total", &[]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn annotations_that_the_provider_asks_for_are_kept_on_the_service() {
    let (world, _, _ccm) = serving("web").await;
    let id = &world.balancers("web")[0].id;
    assert_eq!(world.service("web")["metadata"]["annotations"][annotations::LOAD_BALANCER_ID], *id);
}

/// They ride in the patch of the status, so that they are lost with it.
#[tokio::test(start_paused = true)]
async fn annotations_are_kept_also_when_the_write_has_to_be_repeated() {
    let world = TestCluster::provisioned();
    let _ccm = world.start(&SERVICE);
    world.have_nodes(["a"]).await;
    let down = Action::Error { code: StatusCode::INTERNAL_SERVER_ERROR, retry_after: None };
    // The second write is that of the status.
    let patches = Match::resource("services").verb("patch").user_agent(AGENT);
    let fault = Arc::new(Mutex::new(None));
    let (server, noted) = (world.server.clone(), fault.clone());
    world.after_cloud_call(1, move || {
        *noted.lock() = Some(server.faults().add_times(patches.clone(), down.clone(), 1));
    });
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    let fault = fault.lock().unwrap();
    assert_eq!(world.server.faults().met(fault), 1);
    let id = &world.balancers("web")[0].id;
    assert_eq!(world.service("web")["metadata"]["annotations"][annotations::LOAD_BALANCER_ID], *id);
    let reasons = ["EnsuringLoadBalancer", "SyncLoadBalancerFailed", "EnsuredLoadBalancer"];
    assert_eq!(world.reasons(), reasons);
}

#[tokio::test(start_paused = true)]
async fn a_status_or_finalizer_or_annotation_that_somebody_changes_is_repaired_without_a_cloud_call()
 {
    let (world, provider, _ccm) = serving("web").await;
    let good = world.service("web");
    let calls = world.cloud.calls();
    let id = json!({"metadata": {"annotations": {annotations::LOAD_BALANCER_ID: null}}});
    for (name, status, patch) in [
        ("cleared status", true, json!({"status": {"loadBalancer": {"ingress": []}}})),
        (
            "another address",
            true,
            json!({"status": {"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}]}}}),
        ),
        ("no finalizer", false, json!({"metadata": {"finalizers": []}})),
        ("other finalizers", false, json!({"metadata": {"finalizers": ["example.com/x"]}})),
        ("no annotation", false, id),
    ] {
        match status {
            true => world.patch_service_status("web", patch).await,
            false => world.patch_service("web", patch).await,
        }
        world.settle().await;
        let now = world.service("web");
        assert_eq!(now["status"], good["status"], "{name}");
        assert!(world.is_guarded("web"), "{name}");
        assert_eq!(now["metadata"]["annotations"], good["metadata"]["annotations"], "{name}");
    }
    assert_eq!(world.cloud.calls(), calls);
    assert_eq!(provider.take_lines(), [""; 0]);
    assert_eq!(world.reasons(), ["EnsuringLoadBalancer", "EnsuredLoadBalancer"]);
}

type Mode = fn(LbOutcome) -> LbOutcome;

async fn ip_mode(mode: Mode) -> Value {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    provider.answer(move |call| (call.verb == "ensure").then_some(ScriptedResult::Edit(mode)));
    let _ccm = world.start_with(provider.clone(), &SERVICE);
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    world
        .patch_service("web", json!({"spec": {"ports": [{"port": 443}]}}))
        .await;
    world.settle().await;
    let lines = provider.take_lines();
    assert_eq!(lines, ["ensure web", "ensure web"]);
    assert_eq!(
        world.service_writes().len(),
        2,
        "one status for both, and the server's default is no difference"
    );
    world.service("web")["status"]["loadBalancer"]["ingress"][0].clone()
}

fn with_mode(mode: Option<&str>) -> LbStatus {
    let ip_mode = mode.map(Box::from);
    LbStatus {
        ingress: vec![LbIngress {
            ip: Some([192, 0, 2, 1].into()),
            ip_mode,
            ..LbIngress::default()
        }],
    }
}

#[tokio::test(start_paused = true)]
async fn the_mode_of_an_address_is_the_providers_or_the_servers_default_and_stays() {
    let modes: [(Mode, _); 3] = [
        (|outcome| outcome.with_status(with_mode(None)), "VIP"),
        (|outcome| outcome.with_status(with_mode(Some("VIP"))), "VIP"),
        (|outcome| outcome.with_status(with_mode(Some("Proxy"))), "Proxy"),
    ];
    for (edit, expected) in modes {
        let entry = ip_mode(edit).await;
        assert_eq!((&entry["ip"], &entry["ipMode"]), (&json!("192.0.2.1"), &json!(expected)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_service_loses_its_balancer_and_then_the_finalizer() {
    let (world, provider, _ccm) = serving("web").await;
    world
        .patch_service("web", json!({"metadata": {"finalizers": [FINALIZER, "example.com/x"]}}))
        .await;
    world.settle().await;
    world.delete_service("web").await;
    world.settle().await;
    let left = world.service("web");
    assert_eq!(left["metadata"]["finalizers"], json!(["example.com/x"]), "those of others stay");
    assert_eq!(
        (world.balancers("web").len(), provider.take_lines()),
        (0, vec!["delete web".to_owned()])
    );
    let reasons = [
        "EnsuringLoadBalancer",
        "EnsuredLoadBalancer",
        "DeletingLoadBalancer",
        "DeletedLoadBalancer",
    ];
    assert_eq!(world.reasons(), reasons);
    // As long as it stays, whatever happens to it, nothing happens to the cloud.
    world
        .patch_service("web", json!({"metadata": {"labels": {"x": "y"}}}))
        .await;
    world.have_nodes(["c"]).await;
    world.settle().await;
    assert_eq!(provider.take_lines(), [""; 0]);
    world
        .patch_service("web", json!({"metadata": {"finalizers": []}}))
        .await;
    world.settle().await;
    assert!(world.service("web").is_null());
    assert_eq!((provider.take_lines(), world.reasons().len()), (vec![], 4));
}

/// W9: upstream writes an empty list where the cache shows ours alone.
#[tokio::test(start_paused = true)]
async fn a_finalizer_that_is_added_while_ours_is_removed_stays() {
    let (world, _, _ccm) = serving("web").await;
    let server = world.server.clone();
    let edit = move |service: &mut Value| {
        service["metadata"]["finalizers"] = json!(["example.com/new", FINALIZER]);
    };
    let next = world.hooks.count() + 1;
    world.hooks.on(move |number, point, _| {
        if (number, point) == (next, ccm_testkit::hooks::Point::Before) {
            crate::service_world::edit_service(&server, "web", edit);
        }
        ccm_testkit::hooks::HookDecision::Continue
    });
    world.delete_service("web").await;
    world.settle().await;
    assert_eq!(world.service("web")["metadata"]["finalizers"], json!(["example.com/new"]));
    assert_eq!(world.balancers("web").len(), 0);
}

/// W25: upstream has nothing that notices.
#[tokio::test(start_paused = true)]
async fn the_balancer_of_a_service_that_vanishes_without_our_finalizer_is_deleted() {
    let (world, _, _ccm) = serving("web").await;
    let writes = world.service_writes().len();
    world.remove_service("web");
    world.settle().await;
    assert!(world.service("web").is_null());
    assert_eq!((world.balancers("web").len(), world.service_writes().len()), (0, writes));
    assert_eq!(world.reasons()[2..], ["DeletingLoadBalancer", "DeletedLoadBalancer"]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_deleted_while_its_balancer_is_made_leaves_nothing() {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    provider.answer(|call| (call.verb == "ensure").then_some(ScriptedResult::Slow(secs(20))));
    let _ccm = world.start_with(provider.clone(), &SERVICE);
    world.serve("web").await;
    world
        .until("the call is under way", secs(10), || provider.count() == 1)
        .await;
    world.delete_service("web").await;
    world
        .until("the service is gone", secs(60), || world.service("web").is_null())
        .await;
    world.settle().await;
    assert_eq!(
        (world.balancers("web").len(), provider.take_lines()),
        (0, vec!["ensure web".into(), "delete web".into()])
    );
    assert_eq!(world.cloud.calls().delete_load_balancer, 1);
}

/// The API server looks for finalizers first and deletes in a second step.
#[tokio::test(start_paused = true)]
async fn a_service_that_gets_the_finalizer_when_its_deletion_has_begun_leaves_nothing() {
    for (late, served) in [(Duration::from_millis(150), false), (secs(3), true)] {
        let world = TestCluster::with("latency: {loadBalancers: 300ms}\n");
        let _ccm = world.start(&SERVICE);
        world.have_nodes(["a"]).await;
        world.settle().await;
        world
            .put_service("web", json!({"type": "ClusterIP", "ports": [{"port": 80}]}))
            .await;
        let deletion = Match::resource("services").verb("delete").name("web");
        world
            .server
            .faults()
            .add_times(deletion, Action::LateDelete(late), 1);
        let expose = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            world
                .patch_service("web", json!({"spec": {"type": "LoadBalancer"}}))
                .await;
        };
        tokio::join!(world.delete_service("web"), expose);
        let (last, web) = world
            .history_of(("", "services"))
            .pop()
            .expect("there was a Service");
        assert_eq!((last, &web["metadata"]["finalizers"]), (Change::Deleted, &json!([FINALIZER])));
        assert_eq!(web["status"]["loadBalancer"]["ingress"].is_array(), served);
        world.settle().await;
        let Calls {
            create_load_balancer: created, delete_load_balancer: deleted, ..
        } = world.cloud.calls();
        assert_eq!((created, deleted, world.cloud.load_balancers().len()), (1, 1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_namesake_gets_its_own_balancer_after_the_old_one_is_gone() {
    let (world, provider, _ccm) = serving("web").await;
    let old = world.service("web")["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    let frozen = world
        .server
        .faults()
        .freeze_watches(Match::resource("services"));
    world.remove_service("web");
    world.serve("web").await;
    let new = world.service("web")["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    world.server.faults().thaw(frozen);
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    let calls: Vec<_> = provider
        .take_calls()
        .iter()
        .map(|call| (call.verb, call.uid.clone()))
        .collect();
    assert_eq!(calls, [("delete", old), ("ensure", new.clone())]);
    let balancers = world.balancers("web");
    assert_eq!((balancers.len(), &balancers[0].uid), (1, &new));
}

#[tokio::test(start_paused = true)]
async fn services_of_other_types_are_not_looked_at() {
    let world = TestCluster::provisioned();
    let _ccm = world.start(&SERVICE);
    world.have_nodes(["a"]).await;
    for (name, kind) in [("c", "ClusterIP"), ("n", "NodePort"), ("e", "ExternalName")] {
        let external = if kind == "ExternalName" {
            json!("example.com")
        } else {
            Value::Null
        };
        let spec = json!({"type": kind, "ports": [{"port": 80}], "externalName": external});
        world.put_annotated(name, json!({}), spec).await;
    }
    world.settle().await;
    for name in ["c", "n", "e"] {
        world.delete_service(name).await;
    }
    world.settle().await;
    let calls = Calls::default();
    assert_eq!(
        (world.cloud.calls(), world.service_writes(), world.service_events()),
        (calls, vec![], vec![])
    );
}

#[tokio::test(start_paused = true)]
async fn tcp_udp_sctp_and_mixed_ports_are_served() {
    let world = TestCluster::provisioned();
    let _ccm = world.start(&SERVICE);
    world.have_nodes(["a"]).await;
    let port =
        |protocol: &str| json!({"name": protocol.to_lowercase(), "port": 53, "protocol": protocol});
    for protocol in ["TCP", "UDP", "SCTP"] {
        world
            .put_service(&protocol.to_lowercase(), json!({"ports": [port(protocol)]}))
            .await;
    }
    world
        .put_service("mixed", json!({"ports": [port("TCP"), port("UDP")]}))
        .await;
    world
        .until_served(&["tcp", "udp", "sctp", "mixed"], secs(60))
        .await;
    assert_eq!(world.balancers("mixed")[0].ports, [53, 53]);
    world.settle().await;
    assert_eq!((world.service_writes().len(), world.reasons().len()), (8, 8));
}
