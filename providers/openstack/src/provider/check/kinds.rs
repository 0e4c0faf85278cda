//! The table of all findings about OpenStack.

ccm_core::finding_kinds! {
    /// What the subcommand `check` finds in an OpenStack cloud.
    pub enum OpenStackFinding {
        // The provider cannot be created.
        ConfigInvalid: Error Cloud
            "the manager ends at its start, and nothing else was checked"
            "correct the lines of OBJECT that the message names; if the file is missing, its name has to be a key of the Secret";
        ConnectionInvalid: Error Cloud
            "the manager ends at its start, and nothing else was checked"
            "correct the keys of OBJECT in [Global] of cloud.conf";
        KeystoneUnreachable: Error Cloud
            "the manager waits for Keystone, and nothing else was checked"
            "check auth-url, the network to OBJECT, and after an error of TLS that ca-file has the CA of its certificate";
        PasswordRejected: Error Cloud
            "the manager ends at its start, and nothing else was checked"
            "check username, password, the project (tenant-name or tenant-id) and both domains for OBJECT; the user needs a role in that project";
        ApplicationCredentialRejected: Error Cloud
            "the manager ends at its start, and nothing else was checked"
            "see whether OBJECT exists, has not expired, and has this secret: openstack application credential list; create another if in doubt";
        TokenRejected: Error Cloud
            "the manager ends at its start, and nothing else was checked"
            "replace OBJECT, which is invalid or expired, by an application credential";
        ServiceMissing: Error Cloud
            "the manager ends at its start, and nothing else was checked"
            "set region and os-endpoint-type to those that the message lists for OBJECT, or set [LoadBalancer] enabled=false to run without load balancers";

        // Credentials.
        NoProject: Error Cloud
            "servers, networks and load balancers of the cluster are not found"
            "set tenant-name or tenant-id in cloud.conf for OBJECT";
        ReadOnlyRole: Error Cloud
            "the cloud will reject every change: no load balancers, floating IPs and routes"
            "give OBJECT the role member in the project";
        ApplicationCredentialExpires: Warning Cloud
            "after that the cloud rejects every request, and nothing of the cluster is updated"
            "create another application credential in place of OBJECT and write it to cloud.conf, which is read again without a restart";
        PasswordExpires: Warning Cloud
            "after that the cloud rejects every request, and nothing of the cluster is updated"
            "change the password of OBJECT in time, or use an application credential";
        TokenNotRenewable: Warning Cloud
            "when the token ends, the cloud rejects every request"
            "use an application credential or a password in place of OBJECT";

        // Services.
        ServiceUnreachable: Error Cloud
            "whatever needs the OBJECT service does not work"
            "check the endpoint of OBJECT in the catalog, and the network to it";
        ReadRejected: Error Cloud
            "controllers that read OBJECT cannot work"
            "give the user of cloud.conf a role that may list OBJECT (see the service's policy)";
        ReadFailed: Warning Cloud
            "what needs OBJECT was not checked"
            "see what the error says about OBJECT, and check again";

        // Octavia.
        DriverUnknown: Error Cloud
            "no load balancer can be created"
            "set lb-provider, now OBJECT, to one of the drivers that the message lists";
        FlavorUnknown: Error Cloud
            "no load balancer can be created"
            "correct flavor-id OBJECT: openstack loadbalancer flavor list";
        AvailabilityZoneUnknown: Error Cloud
            "no load balancer can be created"
            "correct availability-zone OBJECT: openstack loadbalancer availabilityzone list";

        // Networks of cloud.conf.
        NetworkUnknown: Error Cloud
            "load balancers that need it cannot be created"
            "correct OBJECT in cloud.conf: openstack network list";
        SubnetUnknown: Error Cloud
            "load balancers that need it cannot be created"
            "correct OBJECT in cloud.conf: openstack subnet list";
        NetworkNotExternal: Error Cloud
            "no floating IP can be created, so external Services stay pending"
            "set OBJECT to an external network: openstack network list --external";
        RouterUnknown: Error Cloud
            "no routes for pods are created"
            "correct OBJECT in cloud.conf: openstack router list";
        NetworkNameUnknown: Warning Cloud
            "no address of a node is taken from it"
            "correct OBJECT in [Networking] of cloud.conf: openstack network list";

        // Quotas.
        QuotaUsedUp: Error Cloud
            "the next Service that needs one stays pending"
            "raise the quota of OBJECT in this project, or delete what is not needed";
        QuotaNearlyUsedUp: Warning Cloud
            "soon a Service stays pending"
            "raise the quota of OBJECT in this project";

        // Other clusters.
        ClusterNameAmbiguous: Warning Cloud
            "names of load balancers of both clusters begin alike, so listings of one may contain those of the other"
            "choose a --cluster-name of which OBJECT is no continuation";
        ClusterNameInOtherProject: Warning Cloud
            "this process also sees the load balancers of OBJECT, because its user is an administrator"
            "use a user without the role admin, or another --cluster-name than that of OBJECT";
    }
}

#[cfg(test)]
mod tests {
    use ccm_core::check::reference;

    use super::*;

    const BEGIN: &str = "<!-- OpenStack's findings are made by a test: CCM_UPDATE_REFERENCE=1 cargo test -p ccm-openstack reference_page -->\n";
    const END: &str = "<!-- end of OpenStack's findings -->\n";

    #[test]
    fn reference_page_of_findings_matches_the_table() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/check.md");
        let update = std::env::var_os("CCM_UPDATE_REFERENCE").is_some();
        let table = reference::table(OpenStackFinding::TABLE).unwrap();
        reference::compare(std::path::Path::new(page), (BEGIN, END), &table, update).unwrap();
    }
}
