//! Which changes of a Service matter, and who its owner is.

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    k8s::{LbStatus, ServiceView},
    provider::{BackendKind, CloudError, Digest, ServiceInterpretation},
};
use ccm_mock::{cloud::Calls, provider::annotations};
use ccm_testkit::apiserver::{Action, Match};
use serde_json::{Value, json};

use crate::{
    cluster::{AGENT, Ccm, TestCluster, secs},
    scripted_load_balancers::{ScriptedLoadBalancers, ScriptedResult},
    service_world::{FINALIZER, SERVICE},
};

/// A provider to which everything matters that it is shown, as upstream takes it.
fn everything(service: &ServiceView, _: ServiceInterpretation) -> ServiceInterpretation {
    let shown = ServiceView {
        resource_version: "".into(),
        status: LbStatus::default(),
        finalizers: Box::default(),
        labels: BTreeMap::new(),
        annotations: service
            .annotations
            .iter()
            .filter(|(key, _)| ***key != *annotations::LOAD_BALANCER_ID)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        ..service.clone()
    };
    ServiceInterpretation::Valid {
        backends: BackendKind::Nodes(vec![]),
        digest: Digest::of(&format!("{shown:?}")),
    }
}

async fn served_by(provider: &Arc<ScriptedLoadBalancers>, world: &TestCluster, spec: Value) -> Ccm {
    let ccm = world.start_with(provider.clone(), &SERVICE);
    world.have_nodes(["a"]).await;
    world.put_service("web", spec).await;
    world.until_served(&["web"], secs(60)).await;
    world.settle().await;
    provider.take_calls();
    ccm
}

fn http(port: u16, more: &Value) -> Value {
    let mut entry = json!({"name": "http", "port": port, "protocol": "TCP", "targetPort": 8080});
    for (key, value) in more.as_object().into_iter().flatten() {
        entry[key] = value.clone();
    }
    json!({"spec": {"ports": [entry]}})
}

/// The fields of upstream's needs-update, and those that it forgets: each reaches the provider and
/// causes one ensure.
#[tokio::test(start_paused = true)]
async fn every_field_that_may_matter_causes_one_ensure() {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    provider.interpret_by(everything);
    let _ccm = served_by(&provider, &world, http(80, &json!({}))["spec"].clone()).await;
    let affinity = json!({"spec": {"sessionAffinity": "ClientIP"}});
    let timeout = json!({"spec": {"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}}});
    let without = json!({"spec": {"sessionAffinity": "None", "sessionAffinityConfig": null}});
    for (name, patch) in [
        ("port", http(81, &json!({}))),
        ("port name", http(81, &json!({"name": "web"}))),
        ("protocol", http(81, &json!({"protocol": "UDP"}))),
        ("node port", http(81, &json!({"nodePort": 31234}))),
        ("target port", http(81, &json!({"nodePort": 31234, "targetPort": 9090}))),
        ("target port by name", http(81, &json!({"nodePort": 31234, "targetPort": "main"}))),
        ("appProtocol set", http(81, &json!({"nodePort": 31234, "appProtocol": "http"}))),
        ("appProtocol changed", http(81, &json!({"nodePort": 31234, "appProtocol": "https"}))),
        (
            "one more port",
            json!({"spec": {"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]}}),
        ),
        ("source ranges", json!({"spec": {"loadBalancerSourceRanges": ["10.0.0.0/8"]}})),
        ("other source ranges", json!({"spec": {"loadBalancerSourceRanges": ["10.0.0.0/9"]}})),
        ("affinity", affinity),
        ("its timeout", timeout),
        ("no affinity", without),
        ("loadBalancerIP", json!({"spec": {"loadBalancerIP": "192.0.2.9"}})),
        ("externalIPs", json!({"spec": {"externalIPs": ["192.0.2.1"]}})),
        ("other externalIPs", json!({"spec": {"externalIPs": ["192.0.2.2"]}})),
        ("annotation", json!({"metadata": {"annotations": {"example.com/x": "y"}}})),
        ("externalTrafficPolicy", json!({"spec": {"externalTrafficPolicy": "Local"}})),
        ("healthCheckNodePort", json!({"spec": {"externalTrafficPolicy": "Cluster"}})),
        ("internalTrafficPolicy", json!({"spec": {"internalTrafficPolicy": "Local"}})),
        (
            "allocateLoadBalancerNodePorts",
            json!({"spec": {"allocateLoadBalancerNodePorts": false}}),
        ),
    ] {
        world.patch_service("web", patch).await;
        world.settle().await;
        // The mock refuses another address for a balancer that is there: it serves on, with its
        // backends looked after.
        let lines = provider
            .take_lines()
            .into_iter()
            .filter(|line| line != "update web");
        assert_eq!(lines.collect::<Vec<_>>(), ["ensure web"], "{name}");
    }
    // The server of this test has one family.
    for families in [json!(["IPv4", "IPv6"]), json!(["IPv4"])] {
        world.edit_service("web", |service| service["spec"]["ipFamilies"] = families.clone());
        world.settle().await;
        assert_eq!(provider.take_lines(), ["ensure web", "update web"], "{families}");
    }
}

/// W31: upstream asks the cloud after any annotation, and tells two events each time.
#[tokio::test(start_paused = true)]
async fn what_does_not_matter_to_the_provider_costs_nothing() {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    let _ccm = served_by(&provider, &world, http(80, &json!({}))["spec"].clone()).await;
    let (writes, events) = (world.service_writes(), world.reasons());
    for patch in [
        json!({"metadata": {"labels": {"x": "y"}}}),
        json!({"metadata": {"annotations": {"example.com/x": "y"}}}),
        json!({"metadata": {"finalizers": [FINALIZER, "example.com/x"]}}),
        json!({"spec": {"selector": {"app": "web"}}}),
        json!({"spec": {"publishNotReadyAddresses": true}}),
        json!({"spec": {"externalIPs": ["192.0.2.1"]}}),
        http(80, &json!({"appProtocol": "http", "targetPort": 9090})),
    ] {
        world.patch_service("web", patch.clone()).await;
        world.settle().await;
        assert_eq!(provider.take_lines(), [""; 0], "{patch}");
    }
    assert_eq!((world.service_writes(), world.reasons()), (writes, events));
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_balancer_is_told_and_leaves_an_unchanged_status_alone() {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    let _ccm = served_by(&provider, &world, http(80, &json!({}))["spec"].clone()).await;
    world.patch_service("web", http(443, &json!({}))).await;
    world.settle().await;
    assert_eq!(world.balancers("web")[0].ports, [443]);
    assert_eq!(world.service_writes().len(), 2);
    let twice = ["EnsuringLoadBalancer", "EnsuredLoadBalancer"].repeat(2);
    assert_eq!(sorted(world.reasons()), sorted(twice.iter().map(ToString::to_string).collect()));
}

fn sorted(mut list: Vec<String>) -> Vec<String> {
    list.sort();
    list
}

#[tokio::test(start_paused = true)]
async fn a_service_that_becomes_clusterip_loses_balancer_finalizer_and_status_and_gets_them_back() {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    let _ccm = served_by(&provider, &world, http(80, &json!({}))["spec"].clone()).await;
    world
        .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
        .await;
    world.settle().await;
    let service = world.service("web");
    assert_eq!(service["status"]["loadBalancer"], json!({}));
    assert!(!world.is_guarded("web") && world.balancers("web").is_empty());
    assert_eq!(service["metadata"]["annotations"][annotations::LOAD_BALANCER_ID], Value::Null);
    assert_eq!(world.service_writes().len(), 3, "finalizer and status go in one");
    assert_eq!(world.reasons()[2..], ["DeletingLoadBalancer", "DeletedLoadBalancer"]);
    world
        .patch_service("web", json!({"spec": {"type": "LoadBalancer"}}))
        .await;
    world.until_served(&["web"], secs(60)).await;
    assert!(world.is_guarded("web"));
    assert_eq!(provider.take_lines(), ["delete web", "ensure web"]);
    assert_eq!(world.balancers("web").len(), 1);
}

/// While a call is in flight the type changes, once or back and forth.
#[tokio::test(start_paused = true)]
async fn a_type_that_changes_while_a_call_is_in_flight_ends_as_the_last_one_says() {
    for (first, changes) in [
        ("ensure", &["ClusterIP"][..]),
        ("ensure", &["ClusterIP", "LoadBalancer"]),
        ("ensure", &["ClusterIP", "LoadBalancer", "NodePort"]),
        ("delete", &["LoadBalancer"]),
        ("delete", &["LoadBalancer", "ClusterIP"]),
    ] {
        let case = format!("{first} {changes:?}");
        let world = TestCluster::provisioned();
        let provider = ScriptedLoadBalancers::over(&world);
        let _ccm = if first == "ensure" {
            provider
                .answer(|call| (call.verb == "ensure").then_some(ScriptedResult::Slow(secs(5))));
            let ccm = world.start_with(provider.clone(), &SERVICE);
            world.serve("web").await;
            ccm
        } else {
            let ccm = served_by(&provider, &world, http(80, &json!({}))["spec"].clone()).await;
            provider
                .answer(|call| (call.verb == "delete").then_some(ScriptedResult::Slow(secs(5))));
            world
                .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
                .await;
            ccm
        };
        for change in changes {
            tokio::time::sleep(secs(1)).await;
            world
                .patch_service("web", json!({"spec": {"type": change}}))
                .await;
        }
        world.settle().await;
        let wanted = *changes.last().unwrap() == "LoadBalancer";
        assert_eq!(world.balancers("web").len(), usize::from(wanted), "{case}");
        assert_eq!(
            (world.is_guarded("web"), world.ingress("web").len()),
            (wanted, usize::from(wanted)),
            "{case}"
        );
        assert!(
            !world
                .reasons()
                .iter()
                .any(|reason| reason.ends_with("Failed")),
            "{case}: {:?}",
            world.reasons()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_arrives_late_takes_nothing_off_a_service_that_is_wanted_again() {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    let _ccm = served_by(&provider, &world, http(80, &json!({}))["spec"].clone()).await;
    let release = Match::resource("services")
        .verb("patch")
        .subresource("status")
        .user_agent(AGENT);
    let late = world
        .server
        .faults()
        .add_times(release, Action::Delay(secs(5)), 1);
    world
        .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
        .await;
    world
        .until("the balancer is gone", secs(5), || world.balancers("web").is_empty())
        .await;
    world
        .patch_service("web", json!({"spec": {"type": "LoadBalancer"}}))
        .await;
    world
        .until("there is one again", secs(60), || !world.balancers("web").is_empty())
        .await;
    world.settle().await;
    assert_eq!(world.server.faults().met(late), 1);
    let versions = world.history_of(("", "services"));
    let guarded = versions
        .iter()
        .map(|(_, service)| service["metadata"]["finalizers"] == json!([FINALIZER]));
    let guarded: Vec<bool> = guarded.skip_while(|is| !is).collect();
    assert!(guarded.len() > 3 && guarded.iter().all(|is| *is), "{versions:?}");
    assert_eq!((world.balancers("web").len(), world.ingress("web").len()), (1, 1));
    assert_eq!(provider.take_lines(), ["delete web", "ensure web"]);
}

/// The first attempt at the deletion fails; before the next one the type changes back, and the
/// watch does not show it.
#[tokio::test(start_paused = true)]
async fn a_type_that_changed_back_unseen_costs_no_balancer() {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    let _ccm = served_by(&provider, &world, http(80, &json!({}))["spec"].clone()).await;
    let before = world.balancers("web")[0].id.clone();
    provider.answer(|call| {
        (call.verb == "delete").then(|| ScriptedResult::Fail(CloudError::transient("not now")))
    });
    world
        .patch_service("web", json!({"spec": {"type": "ClusterIP"}}))
        .await;
    world
        .until("the deletion was tried", secs(5), || provider.count() > 0)
        .await;
    let frozen = world
        .server
        .faults()
        .freeze_watches(Match::resource("services").verb("watch"));
    world
        .patch_service("web", json!({"spec": {"type": "LoadBalancer"}}))
        .await;
    provider.answer_well();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(
        provider.take_lines(),
        ["delete web"],
        "nothing is deleted on the word of a cache that lags"
    );
    world.server.faults().thaw(frozen);
    world.settle().await;
    assert!(!provider.take_lines().contains(&"delete web".to_owned()));
    assert_eq!((world.balancers("web")[0].id.clone(), world.ingress("web").len()), (before, 1));
}

#[tokio::test(start_paused = true)]
async fn a_class_is_served_only_if_it_is_claimed() {
    let world = TestCluster::with("loadBalancerClasses: [example.com/ours]\n");
    let provider = ScriptedLoadBalancers::over(&world);
    let _ccm = world.start_with(provider.clone(), &SERVICE);
    world.have_nodes(["a"]).await;
    for (name, class) in [("ours", "example.com/ours"), ("other", "example.com/other")] {
        world
            .put_service(name, json!({"ports": [{"port": 80}], "loadBalancerClass": class}))
            .await;
    }
    world.until_served(&["ours"], secs(60)).await;
    world.settle().await;
    world
        .patch_service("other", json!({"spec": {"ports": [{"port": 443}]}}))
        .await;
    world.have_nodes(["b"]).await;
    world.settle().await;
    world
        .patch_service("other", json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null}}))
        .await;
    world.settle().await;
    world.delete_service("other").await;
    world.settle().await;
    assert_eq!(provider.take_lines(), ["ensure ours", "update ours"]);
    assert_eq!(
        world.service_writes(),
        ["patch services/status ours", "patch services/status ours"]
    );
    assert_eq!(world.reasons(), ["EnsuringLoadBalancer", "EnsuredLoadBalancer"]);
}

#[tokio::test(start_paused = true)]
async fn a_class_can_change_with_the_type_alone_and_then_the_balancer_changes_hands() {
    let world = TestCluster::with("loadBalancerClasses: [example.com/ours]\n");
    let provider = ScriptedLoadBalancers::over(&world);
    let _ccm = served_by(&provider, &world, http(80, &json!({}))["spec"].clone()).await;
    let path = "/api/v1/namespaces/default/services/web";
    let class = json!({"spec": {"loadBalancerClass": "example.com/other"}})
        .to_string()
        .into_bytes();
    let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
    let request = request.body(kube::client::Body::from(class)).unwrap();
    assert_eq!(world.server.client().send(request).await.unwrap().status(), 422);
    // In one go, so that the type in between, with which the server clears the status, is never
    // seen.
    let hand_over = |class: &'static str| {
        move |service: &mut Value| {
            service["spec"]["loadBalancerClass"] = json!(class);
            service["status"]["loadBalancer"] = json!({});
        }
    };
    world.edit_service("web", hand_over("example.com/other"));
    world.settle().await;
    assert_eq!((world.balancers("web").len(), world.is_guarded("web")), (0, false));
    assert_eq!(provider.take_lines(), ["delete web"]);
    world.edit_service("web", hand_over("example.com/ours"));
    world.until_served(&["web"], secs(60)).await;
    assert_eq!(world.balancers("web").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_the_provider_leaves_to_another_is_not_touched() {
    let world = TestCluster::provisioned();
    let provider = ScriptedLoadBalancers::over(&world);
    provider.interpret_by(|service, claim| {
        if &*service.name == "else" {
            ServiceInterpretation::ImplementedElsewhere
        } else {
            claim
        }
    });
    let _ccm = world.start_with(provider.clone(), &SERVICE);
    world.have_nodes(["a"]).await;
    world.serve("else").await;
    world.settle().await;
    world.have_nodes(["b"]).await;
    world.settle().await;
    world.delete_service("else").await;
    world.settle().await;
    let calls = Calls::default();
    assert_eq!(
        (world.cloud.calls(), world.service_writes(), world.reasons()),
        (calls, vec![], vec![])
    );
}

#[tokio::test(start_paused = true)]
async fn a_leftover_of_an_earlier_process_is_cleaned_up() {
    let world = TestCluster::provisioned();
    world
        .put_annotated("web", json!({}), json!({"type": "ClusterIP", "ports": [{"port": 80}]}))
        .await;
    world
        .patch_service("web", json!({"metadata": {"finalizers": [FINALIZER]}}))
        .await;
    let provider = ScriptedLoadBalancers::over(&world);
    let _ccm = world.start_with(provider.clone(), &SERVICE);
    world.settle().await;
    assert_eq!(provider.take_lines(), ["delete web"]);
    assert!(!world.is_guarded("web"));
    assert_eq!(world.reasons(), ["DeletingLoadBalancer", "DeletedLoadBalancer"]);
}
