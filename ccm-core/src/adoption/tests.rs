//! The whole report in both forms, compared with files. After a change of a form, write them with
//! `CCM_UPDATE_REFERENCE=1 cargo test -p ccm-core --lib adoption`, and look at what changed.

use std::{collections::BTreeMap, num::NonZeroU16, path::Path};

use super::{
    estimate::{EstimateInputs, MeasuredCalls, estimate},
    *,
};
use crate::{
    check::{Area, ClusterFinding},
    k8s::{
        AddressType, ConditionStatus, LbStatus, NodeAddress, NodeCondition, Protocol, ServicePort,
    },
    runtime::shadow::{ManagerDefect, PossibleDefect},
};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// Compares a form with its file.
fn assert_form(file: &str, text: &str) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/adoption/tests");
    let path = Path::new(folder).join(file);
    if std::env::var_os("CCM_UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(text == expected, "{file} differs:\n{text}");
}

fn change(kind: ObjectKind, object: &str, part: &str, defect: Option<ManagerDefect>) -> Difference {
    Difference {
        kind,
        object: object.to_owned(),
        part: part.to_owned(),
        controller: "service-lb-controller",
        current: None,
        desired: "needed".to_owned(),
        why: "1 nodes become 2 nodes | <b>".to_owned(),
        defect: defect.map(|defect| PossibleDefect { defect, since: None }),
    }
}

fn node() -> NodeView {
    let mut node = NodeView::named("n1");
    node.provider_id = Some("mock://r1/n1".into());
    node.addresses = [
        NodeAddress::new(AddressType::InternalIp, "10.0.0.1"),
        NodeAddress::new(AddressType::Hostname, "n1"),
    ]
    .into();
    node.pod_cidrs = ["10.244.1.0/24".into()].into();
    node.ready = Some(NodeCondition { status: ConditionStatus::True, reason: "Ready".into() });
    node
}

fn service() -> ServiceView {
    let mut service = ServiceView::named("shop", "web");
    service.is_load_balancer = true;
    service.status = LbStatus::of_addresses(["192.0.2.1".parse().unwrap()]);
    service.ports = [ServicePort {
        name: "".into(),
        protocol: Protocol::Tcp,
        port: NonZeroU16::new(80).unwrap(),
        node_port: None,
        target_port: "80".into(),
        app_protocol: None,
    }]
    .into();
    service
}

fn full_estimate() -> Estimate {
    let inputs = EstimateInputs {
        nodes: 1,
        services: 1,
        instances_per_call: 100,
        node_status_update_seconds: Some(300.0),
        leases: 1,
        lease_retry_seconds: Some(2.0),
        ..EstimateInputs::default()
    };
    let measured = vec![MeasuredCalls {
        operation: "describe_instances".to_owned(),
        calls: 1.0,
        objects: Some(1.0),
    }];
    estimate(inputs, measured)
}

/// What a check found that did not end.
fn cut_cloud() -> CloudFindings {
    CloudFindings {
        findings: problems(&[
            ClusterFinding::InventoryUnreadable.about("the list", "access denied")
        ]),
        not_examined: Some("no answer within 180 s".to_owned()),
    }
}

/// A report in which every part has something.
fn full() -> AdoptionReport {
    let missing = Some(ManagerDefect::ServiceWithoutAddress);
    let changes = vec![
        change(ObjectKind::Node, "n1", "metadata.labels[a_]", None),
        change(ObjectKind::Service, "shop/web", "status.loadBalancer", missing),
    ];
    let permission =
        ClusterFinding::PermissionMissing.about("leader election", "may not: update leases");
    AdoptionReport {
        manager: ReportingManager {
            name: "ccm-mock",
            version: "v0.1.0",
            provider: "mock".to_owned(),
        },
        active_manager: ActiveManager {
            lease: Some("kube-system/cloud-controller-manager".to_owned()),
            holder: Some("cp-1_6f2a".to_owned()),
            unreadable: None,
        },
        verdict: verdict_name(Verdict::Different),
        summary: Summary {
            compared: BTreeMap::from([("nodes", 1), ("services", 1)]),
            differences: 2,
            not_compared: 1,
            settling: 0,
        },
        served: Served {
            controllers: vec!["cloud-node-controller", "service-lb-controller"],
            services: Some(vec![served_service(&service(), &changes)]),
            nodes: vec![served_node(&node(), &changes)],
            routes: Some(1),
        },
        not_compared: vec![NotCompared {
            kind: ObjectKind::Service,
            object: "shop/api".to_owned(),
            controller: "service-lb-controller",
            why: "the cloud did not answer".to_owned(),
        }],
        notices: vec![Notice {
            kind: ObjectKind::Service,
            object: "shop/web".to_owned(),
            reason: "DormantAnnotations",
            note: "upstream's manager ignores these annotations: *x*".to_owned(),
        }],
        permissions: Permissions {
            user: Some("system:serviceaccount:kube-system:ccm".to_owned()),
            has_service_accounts: true,
            findings: problems(&[Finding::ok(Area::Permissions, "fine"), permission]),
            not_examined: None,
        },
        cloud: cut_cloud(),
        findings: problems(&[ClusterFinding::ServiceRejected.about("shop/bad", "no ports")]),
        defects: defects::of_differences(&changes, NOW),
        not_examined: vec!["the changes of x, a controller of the cloud provider".to_owned()],
        way_back: way_back(Some("kube-system/cloud-controller-manager"), true),
        changes,
        estimate: full_estimate(),
        ..empty()
    }
}

/// The report of a cluster that has nothing.
fn empty() -> AdoptionReport {
    AdoptionReport {
        format_version: FORMAT_VERSION,
        at: NOW,
        manager: ReportingManager { name: "ccm", version: "v1", provider: "none".to_owned() },
        cluster: ReportedCluster {
            name: "blue_*".to_owned(),
            api_server: "api.test:6443".to_owned(),
        },
        active_manager: ActiveManager::default(),
        verdict: verdict_name(Verdict::Same),
        summary: Summary {
            compared: BTreeMap::new(),
            differences: 0,
            not_compared: 0,
            settling: 0,
        },
        served: Served {
            controllers: Vec::new(),
            services: None,
            nodes: Vec::new(),
            routes: None,
        },
        changes: Vec::new(),
        not_compared: Vec::new(),
        notices: Vec::new(),
        permissions: Permissions::default(),
        cloud: CloudFindings::default(),
        findings: Vec::new(),
        defects: Vec::new(),
        not_examined: Vec::new(),
        estimate: estimate(EstimateInputs::default(), Vec::new()),
        way_back: way_back(None, false),
    }
}

#[test]
fn the_markdown_form_is_that_of_the_file() {
    assert_form("full.md", &full().markdown());
    assert_form("empty.md", &empty().markdown());
}

#[test]
fn the_json_form_is_that_of_the_file() {
    let json = full().json().unwrap();
    assert_form("full.json", &format!("{json}\n"));
    // Every key stays, whatever the cluster has: programs rely on it.
    let keys = |report: &AdoptionReport| -> Vec<String> {
        let value: serde_json::Value = serde_json::to_value(report).unwrap();
        value.as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(keys(&full()), keys(&empty()));
}

#[test]
fn a_service_shows_its_changes_and_not_those_of_others() {
    let changes = full().changes;
    assert_eq!(served_service(&service(), &changes).changes, 1);
    assert_eq!(served_service(&ServiceView::named("shop", "n1"), &changes).changes, 0);
    assert_eq!(served_node(&node(), &changes).changes, 1);
}
