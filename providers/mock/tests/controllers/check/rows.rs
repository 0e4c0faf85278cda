//! Misconfigurations of nodes, Services, flags and the mock cloud, each with its line.

use ccm_core::check::Severity;
use ccm_mock::cloud::{Fault, FaultError, FaultSpec, Operation};
use ccm_testkit::{
    apiserver::{User, resources},
    kubelet::NodeSpec,
};
use serde_json::{Value, json};

use super::{
    CIDR, CONTROLLERS, ELECTED, Expected, FLAGS, LEASE, assert_problems, check_as, compare, healthy,
};
use crate::{
    cluster::{TestCluster, initialized},
    service_world::FINALIZER,
};

/// Puts an object in place here and now.
fn put(world: &TestCluster, group: &str, plural: &str, object: Value) {
    let def = resources::find(group, "v1", plural).expect("the resource is served");
    world.server.store().write(|tx| tx.put(def, object));
}

pub(crate) fn put_service(world: &TestCluster, name: &str, metadata: Value, spec: Value) {
    let mut object = json!({"metadata": {"name": name, "namespace": "default", "uid": name}});
    object["spec"] = json!({"type": "LoadBalancer", "ports": [{"port": 53, "protocol": "TCP"}]});
    for (target, values) in [("metadata", metadata), ("spec", spec)] {
        for (key, value) in values.as_object().into_iter().flatten() {
            object[target][key] = value.clone();
        }
    }
    put(world, "", "services", object);
}

pub(crate) fn put_lease(world: &TestCluster, name: &str, holder: &str) {
    let now = world.server.clock().now().to_string();
    let spec = json!({
        "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": now, "acquireTime": now,
    });
    let metadata = json!({"name": name, "namespace": "kube-system"});
    put(world, "coordination.k8s.io", "leases", json!({"metadata": metadata, "spec": spec}));
}

pub(super) fn put_pod(world: &TestCluster, name: &str, image: &str) {
    let metadata = json!({"name": name, "namespace": "kube-system", "uid": name});
    let containers = json!([{"name": "manager", "image": image}]);
    put(world, "", "pods", json!({"metadata": metadata, "spec": {"containers": containers}}));
}

/// Misconfigurations of one cluster, which do not affect each other. [`plant`] makes them.
const PLANTED: [Expected<'static>; 14] = [
    // A machine that the cloud does not know, and one that it cannot say anything about.
    Expected(
        "InstanceNotFound",
        Severity::Warning,
        "unknown",
        "compare name and provider ID of unknown",
    ),
    Expected("InstanceQueryFailed", Severity::Error, "malformed", "the provider ID of malformed"),
    // A kubelet without --cloud-provider=external, and one with a foreign ID or region.
    Expected(
        "KubeletNotExternal",
        Severity::Warning,
        "plain",
        "start the kubelet of plain with --cloud-provider=external",
    ),
    Expected(
        "ForeignNode",
        Severity::Warning,
        "elsewhere",
        "if elsewhere belongs to another cloud",
    ),
    Expected(
        "SharedProviderId",
        Severity::Error,
        "twin-a, twin-b",
        "of the Nodes twin-a, twin-b, delete",
    ),
    Expected("AddressesNotInCloud", Severity::Warning, "moved", "writes the addresses of moved"),
    Expected("PodCidrOutside", Severity::Error, "outside", "assign the pod CIDRs of outside"),
    // Services that are rejected, have an annotation without effect, or a finalizer that stays.
    Expected(
        "ServiceRejected",
        Severity::Error,
        "default/rejected",
        "fields of Service default/rejected",
    ),
    Expected(
        "ServiceNotice",
        Severity::Warning,
        "default/dormant",
        "remove it on Service default/dormant",
    ),
    Expected(
        "FinalizerOfOtherClass",
        Severity::Warning,
        "default/other-class",
        "finalizer of Service default/other-class",
    ),
    Expected(
        "FinalizerLeft",
        Severity::Warning,
        "default/converted",
        "explain service default/converted",
    ),
    // A second manager: its pod, the Lease that it holds, and one more Lease.
    Expected("OtherManager", Severity::Warning, "go-ccm-x1", "workload of pod go-ccm-x1"),
    Expected(
        "LeaseHeldByAnother",
        Severity::Warning,
        "pod go-ccm-x1",
        "stop the workload of pod go-ccm-x1",
    ),
    Expected(
        "OtherLease",
        Severity::Warning,
        "Lease openstack-cloud-controller-manager",
        "stop the manager that holds Lease openstack-cloud-controller-manager",
    ),
];

async fn plant(world: &TestCluster) {
    let nodes = [
        NodeSpec::new("unknown"),
        NodeSpec::new("malformed")
            .initialized()
            .provider_id("mock://nonsense"),
        NodeSpec::new("plain").initialized(),
        NodeSpec::new("elsewhere")
            .initialized()
            .provider_id("aws:///us-west-2a/i-1"),
        NodeSpec::new("twin-a")
            .initialized()
            .provider_id("mock://r1/twin"),
        NodeSpec::new("twin-b")
            .initialized()
            .provider_id("mock://r1/twin"),
        initialized("moved").provided_ip("192.0.2.9".parse().unwrap()),
        initialized("outside").pod_cidr("172.16.0.0/24"),
    ];
    world.kubelets.register_all(nodes).await.unwrap();
    let not_found = FaultSpec {
        operation: Some(Operation::DescribeInstances),
        error: Some(FaultError::NotFound),
        object: Some("unknown".to_owned()),
        ..FaultSpec::default()
    };
    world.cloud.set_faults(vec![Fault::new(not_found).unwrap()]);
    let rejected = json!({"annotations": {"mock.cloud-provider.example/scheme": "elsewhere"}});
    put_service(world, "rejected", rejected, json!({}));
    let dormant = json!({"annotations": {"mock.cloud-provider.example/no-such": "1"}});
    put_service(world, "dormant", dormant, json!({}));
    let now = world.server.clock().now().to_string();
    let deleted = json!({"finalizers": [FINALIZER], "deletionTimestamp": now});
    put_service(world, "other-class", deleted, json!({"loadBalancerClass": "example.org/other"}));
    let kept = json!({"finalizers": [FINALIZER]});
    put_service(world, "converted", kept, json!({"type": "ClusterIP"}));
    put_pod(world, "go-ccm-x1", "registry.example.org/openstack-cloud-controller-manager:v1.33");
    put_pod(world, "ccm-0", "registry.example.org/ccm-mock");
    put_lease(world, LEASE, "go-ccm-x1_6f2a");
    put_lease(world, "openstack-cloud-controller-manager", "elsewhere_1");
}

#[tokio::test(start_paused = true)]
async fn each_planted_misconfiguration_has_its_line() {
    let world = healthy().await;
    plant(&world).await;
    let report = check_as(&world, User::admin(), &ELECTED).await;
    // The fault by which the machine is unknown is a finding of its own.
    let fault = Expected(
        "FaultSet",
        Severity::Warning,
        "describe_instances",
        "if describe_instances should work",
    );
    let expected = [&PLANTED[..], &[fault]].concat();
    assert_problems("planted", &report, &expected);
}

/// Flags with which a healthy cluster has a problem.
const WITH_FLAGS: [(&[&str], Expected<'static>); 3] = [
    (
        &[CONTROLLERS, "--secure-port=0"],
        Expected(
            "ClusterCidrMissing",
            Severity::Error,
            "node-route-controller",
            "set --cluster-cidr",
        ),
    ),
    (
        &["--controllers=service,node-ipam-controller", "--secure-port=0"],
        Expected(
            "PodCidrAllocationOff",
            Severity::Error,
            "node-ipam-controller",
            "--allocate-node-cidrs",
        ),
    ),
    (
        &[
            CONTROLLERS,
            CIDR,
            "--secure-port=0",
            "--leader-elect=true",
            "--enable-leader-migration",
            "--leader-migration-config=/nonexistent",
        ],
        Expected(
            "LeaderMigrationInvalid",
            Severity::Error,
            "--leader-migration-config",
            "correct --leader-migration-config",
        ),
    ),
];

/// Faults of the mock cloud with which a healthy cluster has problems.
const WITH_FAULTS: [(Operation, FaultError, &[Expected<'static>]); 5] = [
    (
        Operation::ListLoadBalancers,
        FaultError::PermissionDenied,
        &[
            Expected(
                "InventoryUnreadable",
                Severity::Warning,
                "the list of owned objects",
                "error of the list of owned objects",
            ),
            Expected("FaultSet", Severity::Warning, "list_load_balancers", "replace the faults"),
        ],
    ),
    (
        Operation::DescribeInstances,
        FaultError::PermissionDenied,
        &[
            // It is one line, although each error names its instance.
            Expected(
                "InstanceQueryFailed",
                Severity::Error,
                "n1, n2",
                "check credentials and endpoint",
            ),
            Expected("FaultSet", Severity::Warning, "describe_instances", "replace the faults"),
        ],
    ),
    (
        Operation::DescribeInstances,
        FaultError::NotFound,
        &[
            Expected("NoInstanceFound", Severity::Error, "n1, n2", "region, project and account"),
            Expected("FaultSet", Severity::Warning, "describe_instances", "replace the faults"),
        ],
    ),
    (
        Operation::ListRoutes,
        FaultError::PermissionDenied,
        &[
            Expected("RoutesUnreadable", Severity::Error, "list_routes", "error of list_routes"),
            Expected(
                "InventoryUnreadable",
                Severity::Warning,
                "the list of owned objects",
                "check again",
            ),
            Expected("FaultSet", Severity::Warning, "list_routes", "replace the faults"),
        ],
    ),
    (
        Operation::CreateLoadBalancer,
        FaultError::QuotaExceeded,
        &[Expected("FaultSet", Severity::Warning, "create_load_balancer", "replace the faults")],
    ),
];

#[tokio::test(start_paused = true)]
async fn each_wrong_flag_and_each_fault_of_the_cloud_has_its_line() {
    let world = healthy().await;
    let mut wrong = Vec::new();
    for (flags, expected) in WITH_FLAGS {
        let report = check_as(&world, User::admin(), flags).await;
        wrong.extend(compare(&flags.join(" "), &report, &[expected]));
    }
    for (operation, error, expected) in WITH_FAULTS {
        let spec = FaultSpec {
            operation: Some(operation),
            error: Some(error),
            ..FaultSpec::default()
        };
        world.cloud.set_faults(vec![Fault::new(spec).unwrap()]);
        let report = check_as(&world, User::admin(), &FLAGS).await;
        wrong.extend(compare(&format!("{operation:?} {error:?}"), &report, expected));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn without_a_service_controller_only_a_deletion_waits_in_vain() {
    let world = healthy().await;
    let flags = ["--controllers=cloud-node", "--secure-port=0"];
    let report = check_as(&world, User::admin(), &flags).await;
    assert_problems("default/web is served", &report, &[]);
    let now = world.server.clock().now().to_string();
    let deleted = json!({"finalizers": [FINALIZER], "deletionTimestamp": now});
    put_service(&world, "stuck", deleted, json!({}));
    let report = check_as(&world, User::admin(), &flags).await;
    let stuck = Expected(
        "FinalizerWithoutController",
        Severity::Warning,
        "default/stuck",
        "another manager serves Service default/stuck",
    );
    assert_problems("default/stuck is being deleted", &report, &[stuck]);
}
