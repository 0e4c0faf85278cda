//! Flag lists of well-known deployments, whole and in their order: they must be taken as they are.
//! The values of templates are made up. Sources are named by repository, file, and the version that
//! was read.

use super::*;

/// Where a list is from, the list, and how many warnings it may get.
const MANIFESTS: &[(&str, &str, usize)] = &[
    (
        "kubernetes/cloud-provider-aws v1.36.1: examples/existing-cluster/base/aws-cloud-controller-manager-daemonset.yaml",
        "--v=2 --cloud-provider=aws --use-service-account-credentials=true --configure-cloud-routes=false",
        0,
    ),
    (
        "kubernetes/cloud-provider-aws v1.36.1: examples/existing-cluster/overlays/superset-role",
        "--v=2 --cloud-provider=aws --use-service-account-credentials=false --configure-cloud-routes=false",
        0,
    ),
    (
        "kubernetes/cloud-provider-aws v1.36.1: charts/aws-cloud-controller-manager",
        "--v=2 --cloud-provider=aws",
        0,
    ),
    (
        "kubernetes/cloud-provider-aws v1.36.1: its own flags, pkg/controllers/options/tagging_controller.go",
        "--v=2 --cloud-provider=aws --controllers=*,tagging --tags=a=b,c=d --resources=instance --resources=volume \
         --tagging-controller-burst-limit=10 --tagging-controller-concurrent-node-syncs=2 \
         --tagging-controller-enable-batching",
        0,
    ),
    (
        "kubernetes/kops: tests/integration/update_cluster/minimal-1.33, addon aws-cloud-controller (image v1.33.2)",
        "--allocate-node-cidrs=true --cluster-cidr=100.96.0.0/11 --cluster-name=minimal.example.com \
         --configure-cloud-routes=false --leader-elect=true --v=2 --cloud-provider=aws \
         --use-service-account-credentials=true --cloud-config=/etc/kubernetes/cloud.config",
        // kube-controller-manager allocates.
        1,
    ),
    (
        "aws with migration, from a Terraform module",
        "--v=2 --cloud-provider=aws --enable-leader-migration --cluster-name=c1 --configure-cloud-routes=false",
        0,
    ),
    (
        "aws, on a bootstrap control plane",
        "--cloud-provider=aws --leader-elect=true --allocate-node-cidrs=false --configure-cloud-routes=false \
         --controllers=*,-service -v=2",
        0,
    ),
    (
        "kubernetes/cloud-provider-openstack chart 2.36.0: manifests/controller-manager/openstack-cloud-controller-manager-ds.yaml",
        "/bin/openstack-cloud-controller-manager --v=1 --cluster-name=kubernetes --cloud-config=/etc/config/cloud.conf --cloud-provider=openstack \
         --use-service-account-credentials=false --bind-address=127.0.0.1",
        // The path in front.
        1,
    ),
    (
        "kubernetes/cloud-provider-openstack chart 2.36.0: manifests/controller-manager/openstack-cloud-controller-manager-pod.yaml",
        "/bin/openstack-cloud-controller-manager --v=1 --cluster-name=kubernetes --cloud-config=/etc/config/cloud.conf --cloud-provider=openstack \
         --use-service-account-credentials=true --bind-address=127.0.0.1",
        // The path in front.
        1,
    ),
    (
        "kubernetes/cloud-provider-openstack chart 2.36.0: charts/openstack-cloud-controller-manager/templates/daemonset.yaml",
        "/bin/openstack-cloud-controller-manager --v=2 --cloud-config=/etc/config/cloud.conf --cluster-name=kubernetes --cloud-provider=openstack \
         --use-service-account-credentials=false --controllers=cloud-node,cloud-node-lifecycle,route,service \
         --bind-address=127.0.0.1",
        1,
    ),
    (
        "kubernetes/cloud-provider-openstack chart 2.36.0: its own flag, pkg/openstack/openstack.go",
        "--cloud-provider=openstack --cloud-config=/etc/config/cloud.conf --user-agent=a --user-agent=b",
        0,
    ),
    (
        "openstack, outside the cluster it serves",
        "--v=2 --cloud-config=/etc/config/cloud.conf --cluster-name=c1 --cloud-provider=openstack \
         --kubeconfig=/etc/kubernetes/kubeconfig --use-service-account-credentials=false --leader-elect=false \
         --controllers=cloud-node,cloud-node-lifecycle,route,service --bind-address=127.0.0.1",
        0,
    ),
    (
        "hetznercloud/hcloud-cloud-controller-manager v1.35.0: deploy/ccm.yaml",
        "--allow-untagged-cloud --cloud-provider=hcloud \
         --feature-gates=CloudControllerManagerWatchBasedRoutesReconciliation=true --route-reconciliation-period=30s \
         --webhook-secure-port=0 --leader-elect=false",
        // The first flag is deprecated, and no webhooks are served on whatever port.
        2,
    ),
    (
        "hetznercloud/hcloud-cloud-controller-manager v1.35.0: deploy/ccm-networks.yaml",
        "--allow-untagged-cloud --cloud-provider=hcloud \
         --feature-gates=CloudControllerManagerWatchBasedRoutesReconciliation=true --route-reconciliation-period=30s \
         --webhook-secure-port=0 --allocate-node-cidrs=true --cluster-cidr=10.244.0.0/16 --leader-elect=false",
        3,
    ),
    (
        "kubernetes/cloud-provider-vsphere v1.36.0: releases/v1.36/vsphere-cloud-controller-manager.yaml",
        "--cloud-provider=vsphere --v=2 --cloud-config=/etc/cloud/vsphere.conf",
        0,
    ),
    (
        "kubernetes/cloud-provider-vsphere v1.36.0: charts/vsphere-cpi with additionalParams, and its own flag",
        "--cloud-provider=vsphere --v=2 --cloud-config=/etc/cloud/vsphere.conf --leader-elect --node-labels=a=b",
        0,
    ),
    (
        "k3s-io/k3s: pkg/daemons/control/server.go",
        "--allocate-node-cidrs=true --authentication-kubeconfig=/k --authorization-kubeconfig=/k --bind-address=127.0.0.1 \
         --cloud-config=/c --cloud-provider=k3s --cluster-cidr=10.42.0.0/16 --configure-cloud-routes=false \
         --controllers=*,-route --kubeconfig=/k --leader-elect-resource-name=k3s-cloud-controller-manager \
         --node-status-update-frequency=1m0s --profiling=false",
        1,
    ),
    (
        "a hosted control plane",
        "--cloud-provider=mock --cloud-config=/etc/cloud/cloud-config --kubeconfig=/etc/kubernetes/kubeconfig/value \
         --cluster-name= --authentication-skip-lookup=true",
        0,
    ),
];

/// A product with the flags that these managers have of their own, as their providers' binaries
/// declare them here.
fn manager() -> Product {
    let text = |name| Flag::provider(name, "", "A flag of the provider's own.");
    let tagging = ControllerInfo {
        name: "tagging-controller",
        aliases: &["tagging"],
        client_name: "tagging-controller",
        enabled_by_default: false,
    };
    let names = [
        "tags",
        "resources",
        "tagging-controller-burst-limit",
        "tagging-controller-concurrent-node-syncs",
    ];
    let mut product = Product {
        providers: &["mock", "aws", "openstack", "hcloud", "vsphere", "k3s"],
        extra_flags: names.map(text).to_vec(),
        ..product()
    };
    product
        .extra_flags
        .extend([text("user-agent"), text("node-labels")]);
    product.extra_flags.push(Flag::provider_switch(
        "tagging-controller-enable-batching",
        "A switch of the provider's own.",
    ));
    product.controllers.push(tagging);
    product
}

#[test]
fn manifests_of_other_controller_managers_are_accepted_unchanged() {
    for (manifest, args, warnings) in MANIFESTS {
        let config = match parse(&manager(), args.split_whitespace()) {
            Ok(Invocation::Run(config)) => config,
            other => panic!("{manifest}: {other:?}"),
        };
        assert!(
            config
                .generic
                .controllers
                .is_enabled(controller_names::CLOUD_NODE),
            "{manifest}"
        );
        assert_eq!(config.warnings().len(), *warnings, "{manifest}: {:?}", config.warnings());
    }
}

#[test]
fn selections_in_manifests_mean_what_they_mean_upstream() {
    let enabled = |args: &str| run(args).generic.controllers.enabled().to_vec();
    assert_eq!(
        enabled("--controllers=*,-service"),
        [
            controller_names::CLOUD_NODE,
            controller_names::CLOUD_NODE_LIFECYCLE,
            controller_names::NODE_ROUTE
        ]
    );
    assert_eq!(
        enabled("--controllers=cloud-node,cloud-node-lifecycle"),
        [controller_names::CLOUD_NODE, controller_names::CLOUD_NODE_LIFECYCLE]
    );
}

#[test]
fn the_path_of_a_manager_in_front_is_ignored_and_nothing_else_is() {
    for path in [
        "/bin/openstack-cloud-controller-manager",
        "/bin/cloud-controller-manager",
        "/cloud-controller-manager",
    ] {
        let Invocation::Run(config) = parse(&product(), [path, "--cloud-provider=mock"]).unwrap()
        else {
            panic!("{path}")
        };
        assert_eq!(config.warnings().len(), 1, "{:?}", config.warnings());
        assert!(config.warnings()[0].contains(path), "{:?}", config.warnings());
    }
    for arguments in [
        ["cloud-controller-manager", "--cloud-provider=mock"],
        ["/bin/sh", "--cloud-provider=mock"],
        ["/bin/cloud-controller-manager/", "--cloud-provider=mock"],
        ["--cloud-provider=mock", "/bin/cloud-controller-manager"],
        ["/bin/cloud-controller-manager", "/bin/cloud-controller-manager"],
    ] {
        let refused = parse(&product(), arguments).unwrap_err().to_string();
        assert!(
            refused.contains("/bin") || refused.contains("cloud-controller-manager"),
            "{refused}"
        );
    }
}
