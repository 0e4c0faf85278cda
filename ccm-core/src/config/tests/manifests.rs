//! Argument lists of well-known deployments, with the cluster's own values made up: they must be taken as they are.

use super::*;

#[test]
fn manifests_of_other_controller_managers_are_accepted_unchanged() {
    for (manifest, args) in [
        (
            "kubernetes/cloud-provider-aws, example and chart",
            "--v=2 --cloud-provider=aws --use-service-account-credentials=true --configure-cloud-routes=false",
        ),
        (
            "aws with migration, from a Terraform module",
            "--v=2 --cloud-provider=aws --enable-leader-migration --cluster-name=c1 --configure-cloud-routes=false",
        ),
        (
            "aws, on a bootstrap control plane",
            "--cloud-provider=aws --leader-elect=true --allocate-node-cidrs=false --configure-cloud-routes=false \
             --controllers=*,-service -v=2",
        ),
        (
            "kubernetes/cloud-provider-openstack, chart",
            "--v=2 --cloud-config=/etc/config/cloud.conf --cluster-name=kubernetes --cloud-provider=openstack \
             --use-service-account-credentials=false --controllers=cloud-node,cloud-node-lifecycle,route,service \
             --bind-address=127.0.0.1",
        ),
        (
            "openstack, outside the cluster it serves",
            "--v=2 --cloud-config=/etc/config/cloud.conf --cluster-name=c1 --cloud-provider=openstack \
             --kubeconfig=/etc/kubernetes/kubeconfig --use-service-account-credentials=false --leader-elect=false \
             --controllers=cloud-node,cloud-node-lifecycle,route,service --bind-address=127.0.0.1",
        ),
        (
            "hcloud, with networks",
            "--allow-untagged-cloud --cloud-provider=hcloud --route-reconciliation-period=30s --webhook-secure-port=0 \
             --allocate-node-cidrs=true --cluster-cidr=10.244.0.0/16 --leader-elect=false",
        ),
        ("kubernetes/cloud-provider-vsphere", "--cloud-provider=vsphere --v=2 --cloud-config=/etc/cloud/vsphere.conf"),
        (
            "a hosted control plane",
            "--cloud-provider=mock --cloud-config=/etc/cloud/cloud-config --kubeconfig=/etc/kubernetes/kubeconfig/value \
             --cluster-name= --authentication-skip-lookup=true",
        ),
    ] {
        let Ok(Invocation::Run(config)) = parse(&product(), args.split_whitespace()) else { panic!("{manifest}") };
        assert!(config.generic.controllers.is_enabled(controllers::CLOUD_NODE), "{manifest}");
    }
}

#[test]
fn selections_in_manifests_mean_what_they_mean_upstream() {
    let enabled = |args: &str| run(args).generic.controllers.enabled().to_vec();
    assert_eq!(
        enabled("--controllers=*,-service"),
        [controllers::CLOUD_NODE, controllers::CLOUD_NODE_LIFECYCLE, controllers::NODE_ROUTE]
    );
    assert_eq!(
        enabled("--controllers=cloud-node,cloud-node-lifecycle"),
        [controllers::CLOUD_NODE, controllers::CLOUD_NODE_LIFECYCLE]
    );
}
