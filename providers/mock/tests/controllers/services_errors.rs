//! Clouds that fail, throttle, hang and refuse, and Services that cannot be served.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    explain::Cause,
    provider::{CloudError, ErrorKind, EventType, ServiceNotice},
};
use ccm_mock::{
    cloud::{FaultError, Operation},
    provider::annotations,
};
use serde_json::json;

use crate::{
    cluster::{Ccm, TestCluster, secs},
    scripted_load_balancers::{Call, ScriptedLoadBalancers, ScriptedResult},
    service_world::SERVICE,
};

fn fails(
    verb: &'static str,
    error: CloudError,
) -> impl Fn(&Call) -> Option<ScriptedResult> + Send + Sync {
    move |call| (call.verb == verb).then(|| ScriptedResult::Fail(error.clone()))
}

/// A world whose provider answers as told from the start.
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

/// Seconds between calls.
fn gaps(calls: &[Call]) -> Vec<u64> {
    calls
        .windows(2)
        .map(|pair| (pair[1].at - pair[0].at).as_secs())
        .collect()
}

fn warnings(world: &TestCluster) -> Vec<String> {
    world
        .reasons()
        .into_iter()
        .filter(|reason| reason.ends_with("Failed"))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_error_of_an_ensure_has_its_pace_and_is_told_once() {
    for kind in ErrorKind::ALL {
        let (world, provider, _ccm) =
            world_of(fails("ensure", CloudError::new(kind, "it says no"))).await;
        world.serve("web").await;
        tokio::time::sleep(secs(1800)).await;
        let calls = provider.take_calls();
        let expected = match kind {
            ErrorKind::ImplementedElsewhere => 1..=1,
            ErrorKind::InvalidInput | ErrorKind::QuotaExceeded => 6..=7,
            // Nobody's failure: not counted, not told. The process is about to end.
            ErrorKind::NotLeader => 300..=400,
            _ => 10..=12,
        };
        let verbs = calls.iter().filter(|call| call.verb == "ensure").count();
        assert!(expected.contains(&verbs), "{kind}: {verbs} calls");
        let told = match kind {
            ErrorKind::ImplementedElsewhere | ErrorKind::NotLeader => 0,
            // A call that is given up although nobody cancelled it is a slow cloud.
            _ => 1,
        };
        assert_eq!(warnings(&world).len(), told, "{kind}");
        assert_eq!(world.service("web")["status"], json!({"loadBalancer": {}}), "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_ensure_that_fails_is_tried_again_after_five_seconds_doubled_up_to_five_minutes() {
    let (world, provider, _ccm) = world_of(fails("ensure", CloudError::transient("busy"))).await;
    world.serve("web").await;
    tokio::time::sleep(secs(1800)).await;
    let gaps = gaps(&provider.take_calls());
    for (gap, base) in gaps.iter().zip([5, 10, 20, 40, 80, 160, 300, 300, 300]) {
        assert!((base..=base * 11 / 10 + 1).contains(gap), "{gaps:?}");
    }
    let notes = world.notes("SyncLoadBalancerFailed");
    let note = "Error syncing load balancer: failed to ensure load balancer: busy";
    assert_eq!(notes, [Cause::CloudUnavailable.with_next_step(note)]);
    provider.answer_well();
    world.until_served(&["web"], secs(340)).await;
    world.settle().await;
    let reasons = ["EnsuringLoadBalancer", "SyncLoadBalancerFailed", "EnsuredLoadBalancer"];
    assert_eq!(world.reasons(), reasons);
}

/// W29: upstream listens to it for `ensure` alone.
#[tokio::test(start_paused = true)]
async fn when_to_come_again_is_said_by_the_cloud_for_every_operation() {
    for verb in ["ensure", "update", "delete", "plan"] {
        let (world, provider, ccm) = world_of(|_| None).await;
        world.serve("web").await;
        world.until_served(&["web"], secs(60)).await;
        world.settle().await;
        provider.answer(fails(verb, CloudError::transient("later").with_retry_after(secs(42))));
        provider.take_calls();
        let mut ccm = Some(ccm);
        match verb {
            "ensure" => {
                world
                    .patch_service("web", json!({"spec": {"ports": [{"port": 443}]}}))
                    .await;
            }
            "update" => world.have_nodes(["c"]).await,
            "delete" => world.delete_service("web").await,
            _ => {
                drop(ccm.take());
                ccm = Some(world.start_with(provider.clone(), &SERVICE));
            }
        }
        tokio::time::sleep(secs(200)).await;
        let gaps = gaps(&provider.take_calls());
        assert_eq!(gaps, [42; 4], "{verb}");
        assert!(ccm.is_some_and(|ccm| ccm.is_running()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_asks_for_less_is_left_alone_by_every_service() {
    let (world, provider, _ccm) = world_of(|call| {
        let error =
            || CloudError::new(ErrorKind::Throttled, "slow down").with_retry_after(secs(60));
        (call.service == "web").then(|| ScriptedResult::Fail(error()))
    })
    .await;
    world.serve("web").await;
    tokio::time::sleep(secs(1)).await;
    for i in 0..20 {
        world.serve(&format!("w{i}")).await;
    }
    tokio::time::sleep(secs(58)).await;
    assert_eq!(provider.take_lines(), ["ensure web"]);
    provider.answer_well();
    let names: Vec<_> = (0..20).map(|i| format!("w{i}")).collect();
    world.until_served(&names, secs(10)).await;
    assert_eq!(warnings(&world).len(), 1, "only whose call it was");
}

#[tokio::test(start_paused = true)]
async fn a_rate_limited_cloud_is_served_at_its_pace() {
    let world = TestCluster::with("rateLimits: {loadBalancers: {perSecond: 5, burst: 5}}\n");
    let _ccm = world.start(&SERVICE);
    world.have_nodes(["a"]).await;
    let names: Vec<_> = (0..40).map(|i| format!("w{i}")).collect();
    for name in &names {
        world.serve(name).await;
    }
    // Two calls each, five a second: sixteen seconds at best.
    let took = world.until_served(&names, secs(120)).await;
    let calls = world.cloud.calls();
    assert!(took < secs(60), "{took:?}");
    assert!(
        calls.throttled * 2 <= calls.reads() + calls.writes(),
        "{} of {calls}",
        calls.throttled
    );
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_service_does_not_wait_for_the_next_attempt() {
    let quota = CloudError::new(ErrorKind::QuotaExceeded, "no more of them");
    let (world, provider, _ccm) = world_of(fails("ensure", quota)).await;
    world.serve("web").await;
    tokio::time::sleep(secs(60)).await;
    assert_eq!(provider.take_lines(), ["ensure web"]);
    world
        .patch_service("web", json!({"metadata": {"labels": {"no": "matter"}}}))
        .await;
    tokio::time::sleep(secs(10)).await;
    assert_eq!(provider.take_lines(), [""; 0], "what does not matter does not go around the wait");
    provider.answer_well();
    world
        .patch_service("web", json!({"spec": {"ports": [{"port": 81}]}}))
        .await;
    world.until_served(&["web"], secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_does_not_wait_for_a_failed_ensure() {
    let (world, provider, _ccm) =
        world_of(fails("ensure", CloudError::invalid_input("never"))).await;
    world.serve("web").await;
    tokio::time::sleep(secs(60)).await;
    world.delete_service("web").await;
    world
        .until("it is gone", secs(1), || world.service("web").is_null())
        .await;
    assert_eq!(provider.take_lines(), ["ensure web", "delete web"]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_always_fails_does_not_slow_others() {
    let (world, provider, _ccm) = world_of(|call| match &*call.service {
        "bad" => Some(ScriptedResult::Fail(CloudError::transient("never"))),
        "hang" => Some(ScriptedResult::Hang),
        _ => None,
    })
    .await;
    world.serve("bad").await;
    world.serve("hang").await;
    for i in 0..50 {
        let name = format!("w{i}");
        world.serve(&name).await;
        let took = world.until_served(&[&name], secs(5)).await;
        assert!(took < secs(1), "{name}: {took:?}");
        tokio::time::sleep(secs(10)).await;
    }
    let calls = provider.take_calls();
    let about = |name: &str| calls.iter().filter(|call| call.service == name).count();
    assert!(about("bad") <= 9 && about("hang") <= 6, "{} {}", about("bad"), about("hang"));
}

/// W33: upstream gives node updates no deadline, and no call one of its own.
#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_by_its_deadline_and_is_tried_again() {
    for verb in ["ensure", "update", "delete"] {
        let (world, provider, ccm) = world_of(|_| None).await;
        world.serve("web").await;
        world.until_served(&["web"], secs(60)).await;
        world.settle().await;
        provider.take_calls();
        provider.answer(move |call| (call.verb == verb).then_some(ScriptedResult::Hang));
        match verb {
            "ensure" => {
                world
                    .patch_service("web", json!({"spec": {"ports": [{"port": 443}]}}))
                    .await;
            }
            "update" => world.have_nodes(["c"]).await,
            _ => world.delete_service("web").await,
        }
        tokio::time::sleep(secs(240)).await;
        let calls = provider.take_calls();
        assert_eq!((calls.len(), gaps(&calls)[0] / 10), (2, 12), "{verb}");
        assert_eq!(warnings(&world).len(), 1, "{verb}");
        provider.answer_well();
        tokio::time::sleep(secs(200)).await;
        match verb {
            "ensure" => assert_eq!(world.balancers("web")[0].ports, [443]),
            "update" => assert_eq!(world.nodes_behind("web"), ["a", "b", "c"]),
            _ => assert_eq!(
                (world.service("web").is_null(), world.balancers("web").len()),
                (true, 0)
            ),
        }
        drop(ccm);
    }
}

#[tokio::test(start_paused = true)]
async fn a_balancer_whose_deletion_fails_is_deleted_later_also_when_its_service_is_gone() {
    for vanish in [false, true] {
        let (world, provider, _ccm) =
            world_of(fails("delete", CloudError::transient("busy"))).await;
        world.serve("web").await;
        world.until_served(&["web"], secs(60)).await;
        world.settle().await;
        if vanish {
            world.remove_service("web");
        } else {
            world.delete_service("web").await;
        }
        tokio::time::sleep(secs(60)).await;
        let (reason, note) = match vanish {
            true => ("DeleteLoadBalancerFailed", "Error deleting load balancer: busy"),
            false => (
                "SyncLoadBalancerFailed",
                "Error syncing load balancer: failed to delete load balancer: busy",
            ),
        };
        let note = Cause::CloudUnavailable.with_next_step(note);
        assert_eq!((world.notes(reason), world.service("web").is_null()), (vec![note], vanish));
        assert!(provider.count() >= 5 && world.balancers("web").len() == 1);
        provider.answer_well();
        world
            .until("the balancer is gone", secs(100), || world.balancers("web").is_empty())
            .await;
        world.settle().await;
        assert!(world.service("web").is_null());
        let reasons = world.reasons();
        assert_eq!(reasons[2..], ["DeletingLoadBalancer", reason, "DeletedLoadBalancer"]);
    }
}

/// W24: upstream makes every balancer anew, at once, and again and again.
#[tokio::test(start_paused = true)]
async fn an_outage_of_half_an_hour_costs_few_calls_and_is_made_up_for() {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    let ccm = world.start_with(provider.clone(), &SERVICE);
    world.have_nodes((0..10).map(|i| format!("n{i}"))).await;
    let names: Vec<_> = (0..20).map(|i| format!("w{i}")).collect();
    for name in &names {
        world.serve(name).await;
    }
    world.until_served(&names, secs(60)).await;
    world.settle().await;
    provider.take_calls();
    provider.answer(|_| Some(ScriptedResult::Fail(CloudError::transient("out"))));
    for round in 0..30 {
        // Nodes come and go all the time.
        world.have_nodes([format!("x{round}")]).await;
        tokio::time::sleep(secs(30)).await;
        world.delete_node(&format!("x{round}")).await;
        tokio::time::sleep(secs(30)).await;
    }
    world.delete_node("n0").await;
    let calls = provider.take_calls();
    assert!(calls.len() <= 20 * 13, "the back-off, whatever the nodes do: {}", calls.len());
    assert!(calls.iter().all(|call| call.verb != "ensure"), "nothing is made anew");
    assert!(ccm.is_running());
    assert_eq!(warnings(&world).len(), 20);
    provider.answer_well();
    world
        .until("every balancer has today's nodes", secs(340), || world.all_have(9))
        .await;
    assert!(provider.take_calls().len() <= 40);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_supported_is_refused_by_name_and_nothing_is_opened() {
    let off = "features: {udp: false, sctp: false, mixedProtocols: false, ipv6: false, dualStack: false, noNodePorts: false, \
               loadBalancerIP: false, clientIPAffinity: false, sourceRanges: false}\n";
    let world = TestCluster::with(off);
    let _ccm = world.start(&[SERVICE[0], "--orphan-report-period=0"]);
    world.have_nodes(["a"]).await;
    let port =
        |protocol: &str| json!({"name": protocol.to_lowercase(), "port": 53, "protocol": protocol});
    let tcp = || json!([port("TCP")]);
    for (name, field, spec) in [
        ("udp", "spec.ports", json!({"ports": [port("UDP")]})),
        ("mixed", "spec.ports", json!({"ports": [port("TCP"), port("UDP")]})),
        ("sctp", "spec.ports", json!({"ports": [port("SCTP")]})),
        (
            "ranges",
            "spec.loadBalancerSourceRanges",
            json!({"ports": tcp(), "loadBalancerSourceRanges": ["10.0.0.0/8"]}),
        ),
        ("ip", "spec.loadBalancerIP", json!({"ports": tcp(), "loadBalancerIP": "192.0.2.7"})),
        (
            "affinity",
            "spec.sessionAffinity",
            json!({"ports": tcp(), "sessionAffinity": "ClientIP"}),
        ),
        (
            "ports",
            "spec.allocateLoadBalancerNodePorts",
            json!({"ports": tcp(), "allocateLoadBalancerNodePorts": false}),
        ),
    ] {
        world.put_service(name, spec).await;
        world.settle().await;
        let notes = world.notes("SyncLoadBalancerFailed");
        let note = notes.last().unwrap();
        assert!(note.contains(field), "{name}: {note}");
    }
    tokio::time::sleep(secs(7200)).await;
    assert_eq!(
        world.reasons(),
        ["SyncLoadBalancerFailed"; 7],
        "once each, and never that something begins"
    );
    assert_eq!(
        (world.cloud.calls(), world.service_writes()),
        (ccm_mock::cloud::Calls::default(), vec![])
    );
}

#[tokio::test(start_paused = true)]
async fn a_service_without_node_ports_is_served_where_the_cloud_can() {
    let world = TestCluster::provisioned();
    let _ccm = world.start(&SERVICE);
    world
        .put_service(
            "web",
            json!({"ports": [{"port": 80}], "allocateLoadBalancerNodePorts": false}),
        )
        .await;
    world.until_served(&["web"], secs(60)).await;
    assert_eq!(world.balancers("web")[0].settings.listeners[0].node_port, None);
}

#[tokio::test(start_paused = true)]
async fn an_annotation_that_cannot_be_read_is_told_once_with_key_and_value_and_mended_at_once() {
    let (world, provider, _ccm) = world_of(|_| None).await;
    let ports = json!({"ports": [{"port": 80}]});
    world
        .put_annotated("web", json!({annotations::SCHEME: "sideways"}), ports)
        .await;
    tokio::time::sleep(secs(7200)).await;
    world
        .patch_service("web", json!({"metadata": {"labels": {"x": "y"}}}))
        .await;
    world.have_nodes(["c"]).await;
    tokio::time::sleep(secs(7200)).await;
    let notes = world.notes("SyncLoadBalancerFailed");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains(annotations::SCHEME) && notes[0].contains("sideways"), "{notes:?}");
    assert_eq!((world.reasons().len(), provider.count(), world.service_writes()), (1, 0, vec![]));
    let range = "service.beta.kubernetes.io/load-balancer-source-ranges";
    // From before the server checked it.
    world.edit_service("web", |service| {
        service["metadata"]["annotations"] = json!({range: "10.0.0.1/33"});
    });
    world.settle().await;
    let notes = world.notes("SyncLoadBalancerFailed");
    assert!(
        notes.len() == 2 && notes[1].contains(range) && notes[1].contains("10.0.0.1/33"),
        "{notes:?}"
    );
    assert_eq!(provider.count(), 0);
    world
        .patch_service("web", json!({"metadata": {"annotations": {range: null}}}))
        .await;
    world.until_served(&["web"], secs(1)).await;
}

/// A mistake in a Service that is served leaves its balancer as it is; the same mistake, made
/// again, is told again.
#[tokio::test(start_paused = true)]
async fn a_mistake_that_comes_back_is_told_again() {
    let (world, provider, _ccm) = world_of(|_| None).await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    provider.take_calls();
    for round in 1..=2 {
        world
            .patch_service(
                "web",
                json!({"metadata": {"annotations": {annotations::SCHEME: "sideways"}}}),
            )
            .await;
        world.settle().await;
        assert_eq!(world.notes("SyncLoadBalancerFailed").len(), 1);
        assert_eq!(warnings(&world).len(), round);
        world
            .patch_service("web", json!({"metadata": {"annotations": {annotations::SCHEME: null}}}))
            .await;
        world.settle().await;
    }
    assert_eq!((provider.count(), world.ingress("web").len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn remarks_of_the_provider_are_told_when_they_first_appear() {
    let (world, provider, _ccm) = world_of(|_| None).await;
    let remark = |note: &str| ServiceNotice {
        kind: EventType::Warning,
        reason: "Unknown",
        note: note.into(),
    };
    provider.remark(vec![remark("x has no effect")]);
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    for port in [81, 82] {
        world
            .patch_service("web", json!({"spec": {"ports": [{"port": port}]}}))
            .await;
        world.settle().await;
    }
    assert_eq!(world.notes("Unknown"), ["x has no effect"]);
    provider.remark(vec![remark("x has no effect"), remark("y has no effect")]);
    world
        .patch_service("web", json!({"spec": {"ports": [{"port": 83}]}}))
        .await;
    world.settle().await;
    assert_eq!(world.notes("Unknown"), ["x has no effect", "y has no effect"]);
    assert_eq!(
        world
            .reasons()
            .iter()
            .filter(|reason| *reason == "Unknown")
            .count(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_is_used_up_is_told_and_another_service_gets_the_place_that_becomes_free() {
    let world = TestCluster::with("loadBalancerQuota: 2\n");
    let _ccm = world.start(&SERVICE);
    for name in ["a", "b", "c"] {
        world.serve(name).await;
        world.settle().await;
    }
    assert_eq!(world.ingress("c"), [""; 0]);
    let notes = world.notes("SyncLoadBalancerFailed");
    assert!(notes.len() == 1 && notes[0].contains("quota"), "{notes:?}");
    world.delete_service("a").await;
    world.until_served(&["c"], secs(340)).await;
}

#[tokio::test(start_paused = true)]
async fn differences_in_the_cloud_are_repaired_by_the_hourly_comparison_and_counted() {
    let (world, provider, ccm) = world_of(|_| None).await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    let edit =
        ccm_mock::cloud::LoadBalancerEdit { nodes: Some(vec!["a".into()]), ..Default::default() };
    world
        .cloud
        .edit_load_balancer(&world.balancers("web")[0].name, edit)
        .unwrap();
    provider.take_calls();
    tokio::time::sleep(secs(75 * 60)).await;
    assert_eq!(
        (world.nodes_behind("web"), ccm.metric("ccm_service_drift_total", &[])),
        (vec!["a".into(), "b".into()], 1.0)
    );
    assert_eq!(provider.take_lines(), ["plan web", "ensure web"]);
    // Gone as a whole.
    world
        .cloud
        .remove_load_balancer(&world.balancers("web")[0].name);
    tokio::time::sleep(secs(75 * 60)).await;
    assert_eq!(
        (world.balancers("web").len(), ccm.metric("ccm_service_drift_total", &[])),
        (1, 2.0)
    );
    assert_eq!(warnings(&world), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_comparison_that_fails_changes_nothing_and_does_not_hold_up_the_rest() {
    let (world, provider, _ccm) = world_of(fails("plan", CloudError::transient("busy"))).await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    let writes = world.cloud.calls().writes();
    tokio::time::sleep(secs(3 * 3600)).await;
    assert!(world.cloud.calls().writes() == writes && provider.count() < 40);
    world.fail_balancers(Operation::GetLoadBalancer, FaultError::Transient, None);
    world
        .patch_service("web", json!({"metadata": {"labels": {"x": "y"}}}))
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.nodes_behind("web"), ["a", "b"]);
}

/// The provider's code has a bug that one Service brings out before any call, and another one in a
/// call.
#[tokio::test(start_paused = true)]
async fn a_service_that_the_providers_code_panics_about_spoils_no_other() {
    let (world, provider, ccm) = world_of(|call| {
        assert_ne!(call.service, "in-a-call", "a bug");
        None
    })
    .await;
    provider.interpret_by(|service, claim| {
        assert_ne!(&*service.name, "at-once", "a bug");
        claim
    });
    for name in ["at-once", "in-a-call", "web"] {
        world.serve(name).await;
    }
    world.until_served(&["web"], secs(60)).await;
    tokio::time::sleep(secs(600)).await;
    assert!(ccm.is_running());
    let notes = world.notes("SyncLoadBalancerFailed");
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(
        notes
            .iter()
            .all(|note| note.contains("panicked") && note.contains("a bug")),
        "{notes:?}"
    );
    assert!(
        ccm.metric(
            "ccm_reconciles_total",
            &[("controller", "service-lb-controller"), ("outcome", "failed")]
        ) > 5.0
    );
    provider.answer_well();
    provider.interpret_by(|_, claim| claim);
    world
        .until_served(&["at-once", "in-a-call"], secs(340))
        .await;
}
