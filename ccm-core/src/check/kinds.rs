//! The table of all findings of the framework. This table is the only place of their texts;
//! `docs/reference/check.md` contains the whole table.

crate::finding_kinds! {
    /// What `check` finds out about the cluster, whatever the cloud.
    pub enum ClusterFinding {
        // The API server.
        KubeconfigUnusable: Error ApiServer
            "the manager ends at its start, and nothing else was checked"
            "correct --kubeconfig, or run in a pod with a ServiceAccount";
        ApiServerUnreachable: Error ApiServer
            "the manager ends after a minute, and nothing else was checked"
            "check --kubeconfig or --master, and the network to OBJECT";
        ApiServerTooSlow: Error ApiServer
            "the checks that are missing above did not end"
            "raise --timeout if OBJECT is slow";
        ApiServerTooOld: Warning ApiServer
            "the manager is not tested with this version"
            "upgrade the control plane to 1.30 or newer";
        ApiServerTooNew: Warning ApiServer
            "the manager is not tested with this version, which came after it"
            "look in docs/compatibility.md for a release of the manager that is tested with it; until then, watch events and logs";
        ApiServerVersionUnknown: Warning ApiServer
            "it is not known whether the manager works with this version"
            "check the credentials of the kubeconfig";

        // Controllers that are enabled and cannot run.
        CloudHasNoInstances: Error Controllers
            "OBJECT does not run: nodes stay uninitialised, and Nodes of deleted machines stay"
            "check the region and the catalog of the credentials, or exclude OBJECT with --controllers";
        CloudHasNoLoadBalancers: Error Controllers
            "OBJECT does not run: Services of type LoadBalancer stay pending"
            "exclude OBJECT with --controllers if Services need no load balancers, or correct the cloud config";
        CloudHasNoRoutes: Error Controllers
            "OBJECT does not run: no routes for pods are created"
            "set --configure-cloud-routes=false if pods need no routes, or name the router or route table in the cloud config";
        ClusterCidrMissing: Error Controllers
            "OBJECT does not run: no routes for pods are created"
            "set --cluster-cidr to the networks that pods get addresses from, or --configure-cloud-routes=false";
        PodCidrAllocationOff: Error Controllers
            "OBJECT does not run: nodes get no pod CIDRs from this manager"
            "set --allocate-node-cidrs, or take OBJECT out of --controllers";

        // Permissions.
        PermissionMissing: Error Permissions
            "each of these requests will be rejected"
            "apply the files of rbac/ or the chart's RBAC; if the ClusterRole cloud-controller-manager has no rules, kube-controller-manager does not aggregate";
        AccountPermissionMissing: Error Permissions
            "each of these requests of the ServiceAccount OBJECT will be rejected"
            "restore the bootstrap ClusterRole and ClusterRoleBinding of OBJECT (system:controller:...), or set --use-service-account-credentials=false";
        AccountPermissionsUnknown: Warning Permissions
            "it is not known whether the controllers' own ServiceAccounts may do what they need"
            "run check with a user that may create subjectaccessreviews, or apply rbac/25-serving.yaml";
        PermissionsUnknown: Error Permissions
            "nothing else was checked"
            "check the credentials of the kubeconfig";

        // Leader election and other managers.
        LeaderMigrationInvalid: Error Leader
            "the manager ends at its start"
            "correct OBJECT";
        LeaseUnreadable: Warning Leader
            "it is not known whether a manager runs"
            "allow get on leases for OBJECT (rbac/40-leader-election.yaml)";
        LeaseHeldByAnother: Warning Leader
            "this manager only stands by for as long as that one holds the Lease"
            "for a migration see docs/migration.md; otherwise stop the workload of OBJECT";
        OtherLease: Warning Leader
            "two managers that hold different Leases work at the same time and undo each other's changes"
            "give both the same --leader-elect-resource-name, or stop the manager that holds OBJECT";
        OtherManager: Warning Leader
            "if it does not share the Lease with this manager, both change the same nodes and load balancers"
            "take the workload of pod OBJECT away, or let both use the same Lease while you migrate (docs/migration.md)";

        // The cloud.
        CloudConfigRejected: Error Cloud
            "the manager ends at its start, and nothing else was checked"
            "correct the cloud config or the credentials";
        CheckPanicked: Error Cloud
            "what OBJECT would have said is missing; whether the manager meets the same bug is not known"
            "report it as a bug, with the message and what the process printed before it";
        CloudTooSlow: Error Cloud
            "the checks that are missing above did not end"
            "check the endpoint in the cloud config and the network to it; raise --timeout if the cloud is slow";
        ClusterIdMissing: Error Cloud
            "this cluster's objects cannot be distinguished from another cluster's, and the manager does not start without --allow-untagged-cloud"
            "set the cluster ID in the cloud config or on the machine of the manager";
        InventoryUnreadable: Warning Cloud
            "the search for orphans fails, too"
            "see what the error of OBJECT says, and check again";
        ProviderStartFailed: Error Cloud
            "the manager waits, or ends, until this is corrected"
            "correct what the error names, in the cloud or in the cloud config";

        // Nodes.
        ClusterNotChecked: Error Nodes
            "Nodes and Services were not checked"
            "grant the permissions above, and check again";
        CachesNotFilled: Error Nodes
            "the checks that are missing above were not made"
            "see whether the API server answers lists of nodes and services";
        NoInstanceFound: Error Nodes
            "no node is initialised, and of no machine is it known whether it still exists"
            "check region, project and account of the cloud config, and whether the names of the Nodes are those of the machines: OBJECT";
        InstanceNotFound: Warning Nodes
            "a Node without provider ID stays uninitialised until its machine is found; any other is deleted if it is not Ready"
            "compare name and provider ID of OBJECT with the cloud console; delete the Node if its machine is gone";
        InstanceQueryFailed: Error Nodes
            "the node controllers cannot do anything for these nodes"
            "check credentials and endpoint in the cloud config, and the provider ID of OBJECT";
        KubeletNotExternal: Warning Nodes
            "no cloud-controller-manager initialises these nodes: they get no provider ID, zone or addresses from the cloud"
            "start the kubelet of OBJECT with --cloud-provider=external, delete the Node, and let it register again";
        AddressesNotInCloud: Warning Nodes
            "something else wrote them; the manager replaces them by the addresses of the cloud"
            "see who writes the addresses of OBJECT; correct --node-ip of its kubelet";
        ForeignNode: Warning Nodes
            "the manager leaves them alone"
            "nothing, if OBJECT belongs to another cloud; otherwise delete the Node and let its kubelet register again without --provider-id";
        SharedProviderId: Error Nodes
            "one machine is several Nodes, and routes and load balancers may point to the wrong one"
            "of the Nodes OBJECT, delete those that no kubelet updates any more";
        PodCidrOutside: Error Nodes
            "no routes are created for them, so their pods cannot be reached from other nodes"
            "set --cluster-cidr to the networks that assign the pod CIDRs of OBJECT";

        // Services.
        ServiceRejected: Error Services
            "the Service is not served, or keeps the load balancer that it has"
            "correct the fields of Service OBJECT that are named";
        ServiceNotice: Warning Services
            "the Service is served without it"
            "correct or remove it on Service OBJECT";
        FinalizerOfOtherClass: Warning Services
            "the Service cannot be deleted until the manager of its class removes the finalizer"
            "start the manager of that class; if it no longer exists, delete the load balancer and then the finalizer of Service OBJECT";
        FinalizerLeft: Warning Services
            "the load balancer and the finalizer stay until a manager with the service controller leads"
            "start the manager; if one leads already, ask it: explain service OBJECT";
        FinalizerWithoutController: Warning Services
            "this manager does not delete its load balancer; the deletion waits for a manager that does"
            "enable service-lb-controller, unless another manager serves Service OBJECT";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::reference;

    const BEGIN: &str = "<!-- The table of findings is made by a test: CCM_UPDATE_REFERENCE=1 cargo test -p ccm-core reference_page -->\n";
    const END: &str = "<!-- end of the table of findings -->\n";

    #[test]
    fn reference_page_of_findings_matches_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/check.md");
        let update = std::env::var_os("CCM_UPDATE_REFERENCE").is_some();
        let table = reference::table(ClusterFinding::TABLE).unwrap();
        reference::compare(std::path::Path::new(path), (BEGIN, END), &table, update).unwrap();
    }
}
