//! The adoption report: each planted defect of the active manager is in it, a healthy cluster has
//! none, and nothing is written.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use ccm_core::{manager::ManagerExit, runtime::shadow::Verdict};
use ccm_mock::cloud::{CallHook, LoadBalancerEdit, Operation, RouteBody};
use ccm_testkit::{
    apiserver::{Access, Match, Rule, User},
    kubelet::{NodeSpec, Ready},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    check::rows::{put_lease, put_service},
    cluster::{AGENT, TestCluster, secs},
    service_world::FINALIZER,
    shadow::{CLUSTER, CONTROLLERS, converged},
};

/// Longer than a Node or a Service may wait.
const LONG: u64 = 700;
/// No other cluster has the default name, so what nobody needs is an orphan.
const CONFIRM: &str = "--collect-orphans-confirm=kubernetes";

/// Compares once as this user, and returns the verdict and the only thing that was printed.
async fn report_as(world: &TestCluster, user: User, flags: &[&str]) -> (Verdict, String) {
    let printed: Arc<Mutex<Vec<String>>> = Arc::default();
    let texts = printed.clone();
    let flags = [&["--shadow-once"], flags].concat();
    let manager = world
        .manager_as(user, Arc::new(world.provider()), &flags)
        .with_output(Arc::new(move |text: &str| {
            texts.lock().push(text.to_owned());
            Ok(())
        }));
    let ended = tokio::time::timeout(secs(1200), manager.run(CancellationToken::new()));
    let ManagerExit::Compared(verdict) = ended.await.unwrap().unwrap() else {
        panic!("it compares once")
    };
    let texts = printed.lock().clone();
    assert_eq!(texts.len(), 1, "{texts:?}");
    (verdict, texts[0].clone())
}

async fn json_report(world: &TestCluster) -> (Verdict, Value) {
    let flags = [CONTROLLERS, CLUSTER, CONFIRM, "--report=json"];
    let (verdict, text) = report_as(world, User::admin(), &flags).await;
    (verdict, serde_json::from_str(&text).unwrap())
}

/// Returns kinds and objects of the defects.
fn defects(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let defects = report["defects"].as_array().unwrap();
    defects
        .iter()
        .map(|defect| (text(&defect["defect"]), text(&defect["object"])))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_healthy_cluster_has_no_defects_and_nothing_is_written() {
    let world = converged().await;
    put_lease(&world, "cloud-controller-manager", "go-ccm_1");
    let (calls, objects) = (world.cloud.calls(), world.server.store().version());
    world.server.log().clear();
    let flags = [CONTROLLERS, CLUSTER, "--leader-elect=true", "--report=json"];
    let (verdict, text) = report_as(&world, User::admin(), &flags).await;
    let report: Value = serde_json::from_str(&text).unwrap();

    // Nothing would change, and nothing is missing.
    assert_eq!((verdict, &report["verdict"]), (Verdict::Same, &json!("same")));
    for part in ["changes", "notCompared", "notices", "findings", "defects", "notExamined"] {
        assert_eq!(report[part], json!([]), "{part}: {text}");
    }
    assert_eq!(report["cloud"], json!({"findings": [], "notExamined": null}));
    let permissions = report["permissions"]["findings"].as_array().unwrap();
    assert!(
        permissions
            .iter()
            .all(|finding| finding["severity"] == "ok"),
        "{text}"
    );

    // What is served is there.
    let served = &report["served"];
    let web = &served["services"][0];
    let address = world.balancers("web")[0].address;
    assert_eq!((&web["name"], &web["changes"]), (&json!("default/web"), &json!(0)));
    assert_eq!(web["addresses"], json!([address.to_string()]));
    assert_eq!(served["nodes"].as_array().map(Vec::len), Some(3));
    assert_eq!(served["nodes"][1]["podCidrs"], json!(["10.244.2.0/24"]));
    assert_eq!(served["routes"], 3);
    assert_eq!(report["activeManager"]["holder"], "go-ccm_1");

    // The estimate is made from this cluster, and the calls were counted.
    let inputs = &report["estimate"]["inputs"];
    assert_eq!((&inputs["nodes"], &inputs["services"]), (&json!(3), &json!(1)));
    assert_eq!(report["estimate"]["totals"][0]["goManager"], 3.0 * 12.0 + 360.0);
    let measured = report["estimate"]["measured"].as_array().unwrap();
    let of = |name: &str| {
        measured
            .iter()
            .find(|row| row["operation"] == name)
            .cloned()
    };
    assert_eq!(of("describe_instances").unwrap()["objects"], 3.0, "{text}");
    assert_eq!(of("plan_load_balancer").unwrap()["calls"], 1.0, "{text}");
    assert_eq!(of("list_owned"), None, "made for the report alone: {text}");

    // Only reads were sent, and reviews, which change nothing.
    assert_eq!(world.cloud.calls().since(&calls).writes(), 0);
    assert_eq!(world.server.store().version(), objects);
    let entries = world.server.log().matching(&Match::any().user_agent(AGENT));
    let sent: BTreeSet<String> = entries
        .iter()
        .filter(|entry| !matches!(&*entry.request.verb, "get" | "list" | "watch"))
        .map(|entry| format!("{} {}", entry.request.verb, entry.request.resource))
        .collect();
    let reviews = ["create selfsubjectaccessreviews", "create selfsubjectreviews"];
    assert!(sent.iter().all(|request| reviews.contains(&&**request)), "{sent:?}");
    assert!(sent.contains(reviews[0]), "{sent:?}");
}

/// A defect, what plants it, and the objects that have it.
type Planted = (&'static str, fn(&TestCluster), &'static [&'static str]);

/// Defects that need no more than one change of the cluster or the cloud.
const PLANTED: [Planted; 5] = [
    ("OrphanedObject", orphan, &[""]),
    ("NodeWithoutRoute", without_route, &["Route 10.244.1.0/24"]),
    ("StaleRoute", stale_route, &["Route 10.244.9.0/24"]),
    ("DeletionUnfinished", deletion_unfinished, &["Service default/web"]),
    ("OutdatedAddresses", outdated_addresses, &["Node n2"]),
];

/// The load balancer of a Service that is gone. A cluster without any Service is doubted.
fn orphan(world: &TestCluster) {
    let class = json!({"loadBalancerClass": "example.org/other"});
    put_service(world, "of-another-manager", json!({}), class);
    world.remove_service("web");
}

fn without_route(world: &TestCluster) {
    let routes = world.cloud.routes();
    let route = routes.iter().find(|route| route.node == "n1").unwrap();
    assert!(world.cloud.delete_route(&route.name));
}

fn stale_route(world: &TestCluster) {
    let body = json!({"destinationCIDR": "10.244.9.0/24", "node": "n2"});
    let body: RouteBody = serde_json::from_value(body).unwrap();
    world.cloud.put_route("left-over", body).unwrap();
}

fn deletion_unfinished(world: &TestCluster) {
    let now = world.server.clock().now().to_string();
    world.edit_service("web", |service| {
        service["metadata"]["deletionTimestamp"] = json!(now);
    });
}

fn outdated_addresses(world: &TestCluster) {
    let addresses = json!([{"type": "InternalIP", "address": "10.9.9.9"}]);
    world.put_instance("n2", json!({"addresses": addresses}));
}

#[tokio::test(start_paused = true)]
async fn each_planted_defect_is_in_the_report_and_no_other() {
    let mut wrong = Vec::new();
    for (kind, plant, objects) in PLANTED {
        let world = converged().await;
        plant(&world);
        // Longer than any work in progress.
        tokio::time::sleep(secs(LONG)).await;
        let (_, report) = json_report(&world).await;
        let found = defects(&report);
        let is_expected = found.len() == objects.len()
            && found
                .iter()
                .zip(objects)
                .all(|((found, object), expected)| {
                    found == kind && (object == expected || expected.is_empty())
                });
        if !is_expected {
            wrong.push(format!("{kind}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn an_orphan_is_named_with_its_service() {
    let world = converged().await;
    let name = world.balancers("web").remove(0).name;
    orphan(&world);
    let (verdict, report) = json_report(&world).await;
    // It is no difference: this manager would leave it alone, too.
    assert_eq!(verdict, Verdict::Same);
    let defect = &report["defects"][0];
    assert_eq!(defect["object"], format!("load balancer {name}"));
    let evidence = defect["evidence"].as_str().unwrap();
    assert!(evidence.starts_with("was created for Service default/web"), "{evidence}");
}

#[tokio::test(start_paused = true)]
async fn what_may_be_of_another_cluster_is_not_called_an_orphan() {
    const OTHERS: [&str; 4] = ["api", "chat", "db", "mail"];
    let world = converged().await;
    for name in OTHERS {
        world.serve(name).await;
    }
    let ccm = world.start(&[CONTROLLERS, CLUSTER]);
    world.until_served(&OTHERS, secs(60)).await;
    ccm.stop().await;
    orphan(&world);
    // The default name may be that of another cluster, too.
    let flags = [CONTROLLERS, CLUSTER, "--report=json"];
    let (_, text) = report_as(&world, User::admin(), &flags).await;
    assert_doubted(&text, "set --collect-orphans-confirm=kubernetes if none does");
    // So many are more likely those of another cluster.
    for name in OTHERS {
        world.remove_service(name);
    }
    let flags = [CONTROLLERS, CLUSTER, CONFIRM, "--report=json"];
    let (_, text) = report_as(&world, User::admin(), &flags).await;
    assert_doubted(&text, "more than half of the cluster's objects");
}

/// Orphans are no defects, but not examined for this reason.
fn assert_doubted(text: &str, reason: &str) {
    let report: Value = serde_json::from_str(text).unwrap();
    assert_eq!(defects(&report), [], "{text}");
    let not_examined = report["notExamined"].as_array().unwrap();
    assert_eq!(not_examined.len(), 1, "{text}");
    let doubt = not_examined[0].as_str().unwrap();
    assert!(
        doubt.starts_with("objects in the cloud without a Service or Node: ")
            && doubt.contains(reason),
        "{doubt}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_of_another_class_is_a_finding_and_no_defect() {
    let world = converged().await;
    let now = world.server.clock().now().to_string();
    let deleted = json!({"finalizers": [FINALIZER], "deletionTimestamp": now});
    put_service(&world, "other-class", deleted, json!({"loadBalancerClass": "example.org/other"}));
    let (_, report) = json_report(&world).await;
    assert_eq!(defects(&report), []);
    let finding = &report["findings"][0];
    let (kind, severity) = (&finding["finding"], &finding["severity"]);
    assert_eq!((kind, severity), (&json!("FinalizerOfOtherClass"), &json!("warning")));
}

#[tokio::test(start_paused = true)]
async fn other_backends_are_a_change_and_no_defect() {
    let world = converged().await;
    let edit: LoadBalancerEdit = serde_json::from_value(json!({"nodes": ["n1"]})).unwrap();
    let name = world.balancers("web").remove(0).name;
    world.cloud.edit_load_balancer(&name, edit).unwrap();
    let (verdict, report) = json_report(&world).await;
    assert_eq!((verdict, defects(&report)), (Verdict::Different, Vec::new()));
    assert_eq!(report["changes"][0]["object"], "default/web");
}

/// Stops the process when its report lists what the cluster owns, which then hangs.
struct StopAtList(CancellationToken);

#[async_trait]
impl CallHook for StopAtList {
    async fn before(&self, _: u64, operation: Operation) {
        if operation == Operation::ListLoadBalancers {
            self.0.cancel();
            std::future::pending::<()>().await;
        }
    }

    async fn after(&self, _: u64, _: Operation) {}
}

#[tokio::test(start_paused = true)]
async fn a_report_that_is_stopped_is_no_comparison() {
    let world = converged().await;
    let printed: Arc<Mutex<Vec<String>>> = Arc::default();
    let texts = printed.clone();
    let stop = CancellationToken::new();
    world
        .cloud
        .set_hook(Some(Arc::new(StopAtList(stop.clone()))));
    let flags = [CONTROLLERS, CLUSTER, "--shadow-once", "--report=json"];
    let manager = world
        .manager(Arc::new(world.provider()), &flags)
        .with_output(Arc::new(move |text: &str| {
            texts.lock().push(text.to_owned());
            Ok(())
        }));
    let ended = tokio::time::timeout(secs(1200), manager.run(stop.clone()));
    assert_eq!(ended.await.unwrap().unwrap(), ManagerExit::Compared(Verdict::Incomplete));
    assert!(stop.is_cancelled() && printed.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_hangs_is_named_and_not_called_fine() {
    let world = converged().await;
    let unused = CancellationToken::new();
    world.cloud.set_hook(Some(Arc::new(StopAtList(unused))));
    let (_, report) = json_report(&world).await;
    let texts: Vec<&str> = report["notExamined"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(
        texts
            .iter()
            .any(|text| text.starts_with("objects in the cloud without")),
        "{texts:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn only_what_waits_for_long_is_a_defect() {
    let world = converged().await;
    world.kubelets.register(NodeSpec::new("n4")).await.unwrap();
    world
        .patch_service_status("web", json!({"status": {"loadBalancer": null}}))
        .await;
    // The Service is as young as the Node.
    let now = world.server.clock().now().to_string();
    world.edit_service("web", |service| service["metadata"]["creationTimestamp"] = json!(now));
    let (verdict, report) = json_report(&world).await;
    assert_eq!((verdict, defects(&report)), (Verdict::Different, Vec::new()));
    tokio::time::sleep(secs(LONG)).await;
    let (_, report) = json_report(&world).await;
    let expected =
        [("ServiceWithoutAddress", "Service default/web"), ("NodeUninitialized", "Node n4")]
            .map(|(kind, object)| (kind.to_owned(), object.to_owned()));
    assert_eq!(defects(&report), expected);
}

#[tokio::test(start_paused = true)]
async fn a_node_of_a_deleted_instance_is_a_defect_after_it_was_proved() {
    let world = converged().await;
    world.cloud.delete_instance("n3");
    world
        .kubelets
        .set_ready("n3", Ready::Unknown)
        .await
        .unwrap();
    let (_, report) = json_report(&world).await;
    // No route can lead to it, so the missing one is none.
    let expected = [("NodeOfDeletedInstance".to_owned(), "Node n3".to_owned())];
    assert_eq!(defects(&report), expected);
    assert_eq!(report["estimate"]["inputs"]["notReadyNodes"], 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_and_what_is_dormant_is_in_the_markdown() {
    let world = converged().await;
    let dormant = json!({"mock.cloud-provider.example/no-such": "1"});
    world
        .patch_service("web", json!({"metadata": {"annotations": dormant}}))
        .await;
    // A user that may only read, as the Job of the chart.
    let rules = json!({"rules": [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["*"], "resources": ["selfsubjectaccessreviews"], "verbs": ["create"]},
        {"nonResourceURLs": ["*"], "verbs": ["get"]},
    ]});
    let access = Access::Rules(Rule::of_role(&rules).unwrap());
    world.server.users().set_access("reader", access);
    let user = User::new("reader", &["system:authenticated"]);
    let flags = [CONTROLLERS, CLUSTER, "--report=markdown"];
    let (verdict, text) = report_as(&world, user, &flags).await;
    assert_eq!(verdict, Verdict::Same);
    for part in [
        "# Adoption report: kubernetes",
        "Nothing would change.",
        "mock.cloud-provider.example/no-such is unknown and has no effect",
        "cloud-node-lifecycle-controller may not: create events, delete nodes, patch events, patch nodes",
        "## Defects of the active manager\n\nNone was seen.",
        "## Calls and writes per hour, estimated",
        "## How to go back",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_cannot_list_what_it_owns_is_said() {
    let world = converged().await;
    let fault = ccm_mock::cloud::FaultSpec {
        operation: Some(Operation::ListLoadBalancers),
        error: Some(ccm_mock::cloud::FaultError::Transient),
        ..ccm_mock::cloud::FaultSpec::default()
    };
    world
        .cloud
        .set_faults(vec![ccm_mock::cloud::Fault::new(fault).unwrap()]);
    let (verdict, report) = json_report(&world).await;
    assert_eq!(verdict, Verdict::Same);
    let not_examined = report["notExamined"].as_array().unwrap();
    assert_eq!(not_examined.len(), 1, "{report}");
    let text = not_examined[0].as_str().unwrap();
    assert!(text.starts_with("objects in the cloud without a Service or Node: "), "{text}");
    // The provider's own check names the fault.
    assert_eq!(report["cloud"]["findings"][0]["finding"], "FaultSet");
}
