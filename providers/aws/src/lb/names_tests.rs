use super::*;

fn owner(namespace: &str, name: &str, uid: &str) -> ServiceKey {
    ServiceKey {
        namespace: namespace.into(),
        name: name.into(),
        uid: uid.into(),
    }
}

// NA1
#[test]
fn load_balancers_are_named_after_the_uid() {
    assert_eq!(&*load_balancer("id"), "aid");
    assert_eq!(
        &*load_balancer("12345678-1234-1234-1234-123456789abc"),
        "a12345678123412341234123456789ab"
    );
    assert_eq!(load_balancer("12345678-1234-1234-1234-123456789abc").len(), MAX_NAME_LENGTH);
    assert_eq!(&*load_balancer(""), "a");
}

// NA2
#[test]
fn target_groups_are_named_as_upstream_names_them() {
    use {ElbProtocol::*, TargetType::*};
    let base = TargetGroupName {
        port: 80,
        target_port: 8080,
        protocol: Tcp,
        target_type: Instance,
        health: None,
    };
    let ip = TargetGroupName { target_type: Ip, ..base };
    let cases = [
        ("cluster-a", "default", "service-a", base, "k8s-default-servicea-7fa2e07508"),
        ("cluster-b", "default", "service-a", base, "k8s-default-servicea-719ee635da"),
        ("cluster-a", "another", "service-a", base, "k8s-another-servicea-f66e09847d"),
        ("cluster-a", "default", "service-b", base, "k8s-default-serviceb-196c19c881"),
        (
            "cluster-a",
            "default",
            "service-a",
            TargetGroupName { port: 9090, ..base },
            "k8s-default-servicea-06876706cb",
        ),
        (
            "cluster-a",
            "default",
            "service-a",
            TargetGroupName { target_port: 9090, ..base },
            "k8s-default-servicea-119f844ec0",
        ),
        (
            "cluster-a",
            "default",
            "service-a",
            TargetGroupName { protocol: Udp, ..base },
            "k8s-default-servicea-3868761686",
        ),
        ("cluster-a", "default", "service-a", ip, "k8s-default-servicea-0fa31f4b0f"),
        (
            "cluster-a",
            "default",
            "service-a",
            TargetGroupName { health: Some((HealthProtocol::Http, 10)), ..ip },
            "k8s-default-servicea-4028e49618",
        ),
    ];
    for (cluster, namespace, name, of, wanted) in cases {
        let found =
            target_group(&Cluster::new(cluster, false), &owner(namespace, name, "uid"), &of);
        assert_eq!(&*found, wanted, "{cluster} {namespace}/{name} {of:?}");
    }
}

// NA3 NA4
#[test]
fn managed_security_groups_are_named_as_upstream_names_them() {
    let cases = [
        (
            "test-cluster",
            "default",
            "my-service",
            "12345678-1234-1234-1234-123456789abc",
            "k8s-default-myservic-b7cb8b02f0",
        ),
        (
            "test-cluster",
            "kube-system",
            "my-service-123",
            "87654321-4321-4321-4321-cba987654321",
            "k8s-kubesyst-myservic-5aa269aeaf",
        ),
        ("c", "b", "a", "x", "k8s-b-a-7a83d4e37a"),
        ("test", "___@@@___", "---***---", "special-uid", "k8s---a9ace1b206"),
        ("", "default", "test-service", "test-uid-123", "k8s-default-testserv-4ff26f905f"),
        (
            "prod-cluster-01",
            "prod-ns_01",
            "api-v2.service",
            "special-chars-uid-456",
            "k8s-prodns01-apiv2ser-9d72cd8df0",
        ),
        (
            "test-cluster-123",
            "team-alpha_beta",
            "app1-web@2023",
            "mixed-uid-789",
            "k8s-teamalph-app1web2-8cf12707a7",
        ),
        (
            "consistent-cluster",
            "hash-ns",
            "hash-test",
            "deterministic-uid",
            "k8s-hashns-hashtest-4f98483bd9",
        ),
        (
            "consistent-cluster",
            "hash-ns",
            "hash-test",
            "different-uid",
            "k8s-hashns-hashtest-7e5f9fc305",
        ),
    ];
    for (cluster, namespace, name, uid, wanted) in cases {
        let found = security_group(cluster, &owner(namespace, name, uid));
        assert_eq!(&*found, wanted, "{cluster} {namespace}/{name} {uid}");
    }
}

#[test]
fn names_fit_whatever_the_service_is_called() {
    let owner = owner(&"n".repeat(63), &"s".repeat(63), &"u".repeat(200));
    let cluster = Cluster::new("c".repeat(100), false);
    assert_eq!(security_group(cluster.id(), &owner).len(), MAX_NAME_LENGTH);
    assert_eq!(lbc_load_balancer(&cluster, &owner, Scheme::Internal).len(), MAX_NAME_LENGTH);
    assert_eq!(load_balancer(&owner.uid).len(), MAX_NAME_LENGTH);
}

#[test]
fn the_shared_group_is_named_by_the_cluster() {
    let name = shared_security_group("my-cluster_1");
    assert!(name.starts_with("k8s-traffic-mycluster1-"), "{name}");
    assert_ne!(name, shared_security_group("my-cluster1"));
    assert!(shared_security_group(&"c".repeat(300)).len() <= 255);
}

// LB6
#[test]
fn a_claimed_load_balancer_has_one_name_per_scheme() {
    let (owner, cluster) = (owner("ns", "name", "uid"), Cluster::new("c", false));
    let name = |scheme| lbc_load_balancer(&cluster, &owner, scheme);
    assert_ne!(name(Scheme::Internal), name(Scheme::InternetFacing));
    assert!(name(Scheme::Internal).starts_with("k8s-ns-name-"));
}
