//! Leader migration: two locks, one provider, and starts one after the other.

use ccm_core::manager::ManagerExit;
use ccm_testkit::apiserver::{Action, Match};
use http::StatusCode;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::{
    cluster::{TestCluster, secs},
    provider::Scripted,
};

const MAIN: &str = "cloud-controller-manager";
const MIGRATION: &str = "cloud-provider-extraction-migration";
const FLAGS: [&str; 2] = ["--leader-elect=true", "--enable-leader-migration"];

/// Who holds a lock; nobody if it is free or was never taken.
fn holder(world: &TestCluster, name: &str) -> String {
    let object = world
        .server
        .store()
        .get(("coordination.k8s.io", "leases"), "kube-system", name);
    let holder = object.map(|object| {
        object.value()["spec"]["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    });
    holder.unwrap_or_default()
}

/// Another manager holds the migration lock, for fifteen seconds more.
async fn held_by_another(world: &TestCluster) {
    let leases: Api<Lease> = Api::namespaced(world.server.client(), "kube-system");
    let spec = json!({"holderIdentity": "kcm", "leaseDurationSeconds": 15, "leaseTransitions": 4});
    let lease =
        serde_json::from_value(json!({"metadata": {"name": MIGRATION}, "spec": spec})).unwrap();
    leases.create(&PostParams::default(), &lease).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_provider_is_started_once_whatever_locks_there_are() {
    let world = TestCluster::provisioned();
    let provider = Scripted::over(&world.cloud);
    held_by_another(&world).await;
    let ccm = world.start_with(provider.clone(), &FLAGS);
    world.join(["a"]).await;
    world.until_initialized(&["a"], secs(60)).await;
    assert_eq!(
        (provider.starts(), holder(&world, MIGRATION).as_str()),
        (1, "kcm"),
        "one lock is enough for it"
    );
    let taken = world
        .until("the migration lock is taken", secs(60), || holder(&world, MIGRATION) != "kcm")
        .await;
    assert!(taken >= secs(10), "after {taken:?}");
    assert_eq!(holder(&world, MIGRATION), holder(&world, MAIN));
    tokio::time::sleep(secs(10)).await;
    assert_eq!(provider.starts(), 1);
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
    assert_eq!(
        (holder(&world, MAIN).as_str(), holder(&world, MIGRATION).as_str()),
        ("", ""),
        "both are given back"
    );
}

#[tokio::test(start_paused = true)]
async fn what_migrates_does_nothing_before_its_lock_is_held() {
    let world = TestCluster::provisioned();
    held_by_another(&world).await;
    let _ccm = world.start(&FLAGS);
    world.join(["a"]).await;
    world.until_initialized(&["a"], secs(60)).await;
    world.put_instance("a", json!({"powerState": "stopped"}));
    world.kubelets.set_ready("a", false).await.unwrap();
    let tainted = |world: &TestCluster| {
        world.node("a")["spec"]["taints"]
            .to_string()
            .contains("cloudprovider.kubernetes.io/shutdown")
    };
    world
        .until("the node is tainted", secs(120), || tainted(&world))
        .await;
    assert_ne!(holder(&world, MIGRATION), "kcm");
}

#[tokio::test(start_paused = true)]
async fn to_lose_either_lock_ends_the_process_and_frees_the_other() {
    for (lost, other) in [(MAIN, MIGRATION), (MIGRATION, MAIN)] {
        let world = TestCluster::provisioned();
        let ccm = world.start(&FLAGS);
        world
            .until("both are held", secs(60), || !holder(&world, MIGRATION).is_empty())
            .await;
        let refused = Action::Error { code: StatusCode::INTERNAL_SERVER_ERROR, retry_after: None };
        world.server.faults().add(
            Match::resource("leases")
                .name(lost)
                .user_agent(crate::cluster::AGENT),
            refused,
        );
        let exit = ccm.ended().await.unwrap();
        let ManagerExit::LeadershipLost(why) = exit else {
            panic!("{lost}: {exit:?}")
        };
        assert_eq!(why.starts_with("migration lock: "), lost == MIGRATION, "{why}");
        assert_eq!(holder(&world, other), "", "{lost} was lost");
    }
}

#[tokio::test(start_paused = true)]
async fn controllers_start_one_after_the_other() {
    let world = TestCluster::provisioned();
    let ccm = world.start(&["--controller-start-interval=10s"]);
    let running = || ccm.metric("running_managed_controllers", &[]);
    world
        .until("the first runs", secs(5), || running() == 1.0)
        .await;
    let second = world
        .until("the second runs", secs(30), || running() == 2.0)
        .await;
    assert!(second >= secs(9) && second <= secs(20), "after {second:?}");
}
