//! The table of all findings about AWS.

ccm_core::finding_kinds! {
    /// What the subcommand `check` finds in an AWS account.
    pub enum AwsFinding {
        // The provider cannot be created.
        ConfigInvalid: Error Cloud
            "the manager ends at its start, and nothing else was checked"
            "correct the keys of OBJECT that the message names; if the file is missing, its name has to be a key of the Secret";
        ConnectionFailed: Error Cloud
            "the manager ends at its start, and nothing else was checked"
            "give the process credentials (instance profile, IRSA or environment) and check OBJECT";
        MetadataMissing: Error Cloud
            "the manager ends at its start, and nothing else was checked"
            "outside EC2, or without access to the instance metadata service, set OBJECT in the cloud config";
        OwnInstanceUnknown: Error Cloud
            "the manager ends at its start, and nothing else was checked"
            "set KubernetesClusterID in the cloud config, or check region, account and ec2:DescribeInstances for OBJECT";
        ClusterTagsContradict: Error Cloud
            "the manager ends at its start, and nothing else was checked"
            "leave one tag kubernetes.io/cluster/CLUSTER_ID on OBJECT, or set KubernetesClusterID in the cloud config";

        // Credentials and reads.
        CredentialsInvalid: Error Cloud
            "AWS rejects every request"
            "renew the credentials that the process uses (OBJECT), and check the clock of its machine";
        CredentialsNotRenewed: Warning Cloud
            "when they end, AWS rejects every request until the process is restarted with others"
            "use an instance profile, IRSA, EKS Pod Identity or a mounted credentials file in place of OBJECT";
        CredentialsEnd: Warning Cloud
            "after that, AWS rejects every request unless their source gives new ones in time"
            "see whether their source renews them (OBJECT), and check the clock of the machine";
        ReadDenied: Error Cloud
            "whatever needs OBJECT does not work"
            "allow OBJECT in the IAM policy of the manager (docs/providers/aws.md)";
        ReadFailed: Warning Cloud
            "what needs OBJECT was not checked"
            "see what the error of OBJECT says, and check again";
        ChangeDenied: Error Cloud
            "whatever needs OBJECT does not work"
            "allow OBJECT in the IAM policy of the manager (docs/providers/aws.md)";
        DryRunIgnored: Error Cloud
            "the endpoint does not know DryRun: it carried out OBJECT, which was only to be asked about"
            "undo OBJECT (its object is named ccm-check, or is in the log of the endpoint); this happens with emulators, not with AWS";

        // Cloud config, account and region.
        ConfigIgnored: Warning Cloud
            "this part of the cloud config has no effect"
            "correct or remove OBJECT in the cloud config";
        VpcUnknown: Error Cloud
            "no load balancer can be created, and no route"
            "check VPC and Region in the cloud config, and that the credentials are of the account of OBJECT";
        NodeInOtherRegion: Error Nodes
            "the machines are not found in this region, so the Nodes may be deleted when they are not Ready"
            "set Region in the cloud config to the region of OBJECT";

        // Tags.
        SubnetsOfOtherClusters: Error Cloud
            "no load balancer can be created"
            "tag subnets of OBJECT with kubernetes.io/cluster/CLUSTER_ID=shared, or set SubnetID in the cloud config";
        SubnetsUntagged: Warning Cloud
            "load balancers use subnets that carry no cluster's tag, perhaps not those that you mean"
            "tag the subnets of load balancers in OBJECT with kubernetes.io/cluster/CLUSTER_ID=shared";
        SubnetRolesMissing: Warning Cloud
            "of each zone, load balancers use the subnet with the smallest ID"
            "tag subnets of OBJECT with kubernetes.io/role/elb=1 (public) and kubernetes.io/role/internal-elb=1 (private)";
        SubnetFull: Warning Cloud
            "load balancers cannot be created there: AWS wants eight free addresses"
            "free addresses in OBJECT, or tag a larger subnet in the same zone";
        OwnedByTwoClusters: Error Cloud
            "each of the clusters may change or delete it"
            "on OBJECT, leave the value owned to one cluster, and set shared for the others";
        InstanceOfOtherCluster: Error Nodes
            "another cluster considers the machine its own"
            "correct the tag kubernetes.io/cluster/CLUSTER_ID of OBJECT";
        InstanceUntagged: Warning Nodes
            "nothing in AWS says that the machine belongs to this cluster, and it is read in a request of its own"
            "tag OBJECT with kubernetes.io/cluster/CLUSTER_ID=owned, for example with the tagging controller";
        NodeGroupsUntagged: Error Nodes
            "no rules for load balancers are added, so their traffic does not reach the nodes"
            "tag one security group of OBJECT with kubernetes.io/cluster/CLUSTER_ID";
        NodeGroupsAmbiguous: Error Nodes
            "no rules for load balancers are added, so their traffic does not reach the nodes"
            "leave the tag kubernetes.io/cluster/CLUSTER_ID on one security group of OBJECT";
        BalancerGroupUntagged: Warning Cloud
            "with the IAM documents of this project the manager may neither change nor delete it: source ranges and ports of its Service stay as they are"
            "run the command of the message, which tags OBJECT with kubernetes.io/cluster/CLUSTER_ID=owned";
        RouteTablesUnusable: Error Cloud
            "no routes for pods are created"
            "tag one route table of OBJECT with kubernetes.io/cluster/CLUSTER_ID, or name tables in the cloud config";
    }
}

#[cfg(test)]
mod tests {
    use ccm_core::check::reference;

    use super::*;

    const BEGIN: &str = "<!-- AWS' findings are made by a test: CCM_UPDATE_REFERENCE=1 cargo test -p ccm-aws reference_page -->\n";
    const END: &str = "<!-- end of AWS' findings -->\n";

    #[test]
    fn reference_page_of_findings_matches_the_table() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/check.md");
        let update = std::env::var_os("CCM_UPDATE_REFERENCE").is_some();
        let table = reference::table(AwsFinding::TABLE).unwrap();
        reference::compare(std::path::Path::new(page), (BEGIN, END), &table, update).unwrap();
    }
}
