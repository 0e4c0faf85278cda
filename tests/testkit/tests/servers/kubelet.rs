//! Simulated kubelets against a real API server.

use std::time::{Duration, Instant};

use ccm_testkit::control_plane::{ControlPlane, Options};
use ccm_testkit::kubelet::{
    KubeletOptions, Kubelets, NodeShape, NodeSpec, Ready, UNINITIALIZED_TAINT,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::{Case, binaries, cases};

pub(crate) fn cases() -> Vec<Case> {
    cases![a_real_server_takes_what_kubelets_write]
}

fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == kind)
        .map(|condition| condition.status.as_str())
}

async fn a_real_server_takes_what_kubelets_write() {
    let control_plane = ControlPlane::start(&binaries(), Options::default())
        .await
        .unwrap();
    let client = control_plane.client().await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let options = KubeletOptions {
        shape: NodeShape::Full,
        lease_period: Some(Duration::from_secs(10)),
        ..KubeletOptions::default()
    };
    let kubelets = Kubelets::new(client, options);
    kubelets
        .register_all((0..40).map(|n| NodeSpec::new(format!("node-{n:02}"))))
        .await
        .unwrap();

    let list = nodes.list(&ListParams::default()).await.unwrap();
    assert_eq!(list.items.len(), 40);
    for node in &list.items {
        let taints = node.spec.as_ref().unwrap().taints.as_ref().unwrap();
        assert!(taints.iter().any(|taint| taint.key == UNINITIALIZED_TAINT));
        assert_eq!(
            condition(node, "Ready"),
            Some("True"),
            "the status of the registration is kept"
        );
        let size = serde_json::to_vec(node).unwrap().len();
        assert!((14_000..17_000).contains(&size), "{size} bytes");
    }

    // What a cloud-controller-manager writes stays when the kubelet reports.
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "10.1.2.3"}],
        "conditions": [{"type": "NetworkUnavailable", "status": "False"}],
    }});
    nodes
        .patch_status("node-07", &PatchParams::default(), &Patch::Strategic(status))
        .await
        .unwrap();
    kubelets.set_ready("node-07", false).await.unwrap();
    let node = nodes.get("node-07").await.unwrap();
    assert_eq!(condition(&node, "Ready"), Some("False"));
    assert_eq!(condition(&node, "NetworkUnavailable"), Some("False"));
    assert_eq!(node.status.unwrap().addresses.unwrap()[0].address, "10.1.2.3");

    nodes
        .delete("node-08", &DeleteParams::default())
        .await
        .unwrap();
    assert!(kubelets.set_ready("node-08", Ready::True).await.is_err());
    assert!(nodes.get_opt("node-08").await.unwrap().is_none());
    kubelets.restart("node-08").await.unwrap();
    assert!(nodes.get_opt("node-08").await.unwrap().is_some());

    let deadline = Instant::now() + Duration::from_secs(20);
    while leases.get_opt("node-39").await.unwrap().is_none() {
        assert!(Instant::now() < deadline, "no lease");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(kubelets.failed_reports(), 0);

    kubelets.stop().await;
    control_plane.stop().await.unwrap();
}
