//! Defines all configuration keys in one table, from which the parser and the reference page are
//! generated.
//!
//! After a change, update the reference page with `CCM_UPDATE_REFERENCE=1 cargo test -p ccm-aws
//! reference_page`.

use std::time::Duration;

use ccm_core::config_keys;

config_keys! {
    /// Section `[Global]` as written.
    Global {
        upstream zone: String = "Zone" "" "Zone such as `eu-west-1a`, from which the region is derived. Takes precedence over `Region`."
        upstream region: String = "Region" "" "Region. Without it and `Zone`, it is read from the instance metadata service."
        upstream vpc: String = "VPC" "" "ID of the cluster's VPC. Without it, the ID is read from the instance metadata service."
        upstream subnet: String = "SubnetID" "" "Subnet for load balancers if discovery finds none. Default: the subnet of the manager's own instance, if it is known."
        upstream route_tables: Vec<String> = "RouteTableID" "" "Route table to use. Repeat the key for several tables: routes are written to all of them (upstream uses the last one)."
        upstream role: String = "RoleARN" "" "IAM role that is assumed for every call."
        upstream source: String = "SourceARN" "" "With `RoleARN`: sent as `aws:SourceArn` when the role is assumed, together with the role's account as `aws:SourceAccount`, as protection against confused deputies."
        upstream cluster_tag: String = "KubernetesClusterTag" "" "Cluster ID in the legacy tag `KubernetesCluster`, which is then read and written as well."
        upstream cluster_id: String = "KubernetesClusterID" "" "Cluster ID, as in the tag `kubernetes.io/cluster/<ID>`. Without it, the tags of the manager's own instance are read."
        upstream disable_ingress: bool = "DisableSecurityGroupIngress" "false" "If `true`, rules of nodes' security groups are not changed."
        upstream elb_group: String = "ElbSecurityGroup" "" "A security group that is never changed or deleted. Classic load balancers get it in place of one of their own."
        upstream families: Vec<String> = "NodeIPFamilies" "ipv4" "IP families of nodes, in order of preference: `ipv4`, `ipv6`. Repeat the key for both."
        upstream probe_mode: String = "ClusterServiceLoadBalancerHealthProbeMode" "ServiceNodePort" "`Shared`: health checks of Services with `externalTrafficPolicy: Cluster` go to kube-proxy's health port. `ServiceNodePort`: to the node port."
        upstream probe_port: i32 = "ClusterServiceSharedLoadBalancerHealthProbePort" "10256" "Port for `Shared`."
        upstream probe_path: String = "ClusterServiceSharedLoadBalancerHealthProbePath" "/healthz" "Path for `Shared`."
        upstream topology: String = "SupportedTopologyInstanceTypePattern" "^(hpc|trn|p)[0-9]+[a-z]*(-[a-z0-9]+)?(\\.[0-9a-z]*)$" "Regular expression for instance types whose nodes are not initialised until their network topology is known."
        upstream nlb_groups: String = "NLBSecurityGroupMode" "" "`Managed`: each new load balancer gets its own security group."
        ours default_type: String = "DefaultLoadBalancerType" "" "Type for Services without the annotation `aws-load-balancer-type`: `nlb`, or `none` (another controller serves them). If unset, such Services get a classic load balancer, as with upstream. The chart sets `nlb`. Services with a classic load balancer keep it."
        ours claim_external: bool = "ClaimExternalLoadBalancers" "false" "If `true`, the types `external` and `nlb-ip` are served, which otherwise belong to the AWS load balancer controller."
        ours classes: Vec<String> = "LoadBalancerClass" "" "A `spec.loadBalancerClass` to serve. Repeat the key for several classes."
        ours target_type: String = "DefaultTargetType" "instance" "Target type for Services without the annotation `aws-load-balancer-nlb-target-type`: `instance` or `ip`."
        ours dialect: String = "AnnotationDialect" "upstream" "How annotations of Services of type `nlb` are read, unless the annotation `aws-load-balancer-annotation-dialect` says otherwise: `upstream` (exactly what upstream's manager reads) or `extended` (everything in the annotation reference)."
        ours shared_group: bool = "EnableSharedBackendSecurityGroup" "false" "If `true`, every load balancer that has security groups gets an additional, shared one, which nodes' security groups admit with one rule."
        ours backend_group: String = "BackendSecurityGroup" "" "ID of the shared security group. Without it, one is created."
        ours remove_protection: bool = "RemoveDeletionProtection" "false" "If `true`, deletion protection that was enabled by hand is turned off when the Service is deleted. Otherwise the deletion fails and is retried until somebody turns it off. Protection by an annotation always prevents the deletion."
        ours drift_interval: Option<Duration> = "DriftCheckInterval" "1h" "Maximum age of cached state. Until then, the provider assumes that nobody else has changed it."
        ours ec2_read_qps: Option<f64> = "EC2ReadQPS" "10" "Reads of EC2 per second."
        ours ec2_read_burst: Option<u32> = "EC2ReadBurst" "50" "Burst of reads of EC2."
        ours ec2_write_qps: Option<f64> = "EC2WriteQPS" "2.5" "Writes of EC2 per second."
        ours ec2_write_burst: Option<u32> = "EC2WriteBurst" "25" "Burst of writes of EC2."
        ours topology_qps: Option<f64> = "EC2TopologyQPS" "1" "Requests `DescribeInstanceTopology` per second."
        ours topology_burst: Option<u32> = "EC2TopologyBurst" "1" "Burst of requests `DescribeInstanceTopology`."
        ours elb_read_qps: Option<f64> = "ELBReadQPS" "5" "Reads of Elastic Load Balancing per second."
        ours elb_read_burst: Option<u32> = "ELBReadBurst" "20" "Burst of reads of Elastic Load Balancing."
        ours elb_register_qps: Option<f64> = "ELBRegisterQPS" "4" "Registrations and deregistrations of targets per second."
        ours elb_register_burst: Option<u32> = "ELBRegisterBurst" "20" "Burst of registrations and deregistrations of targets."
        ours elb_write_qps: Option<f64> = "ELBWriteQPS" "3" "Other writes of Elastic Load Balancing per second."
        ours elb_write_burst: Option<u32> = "ELBWriteBurst" "20" "Burst of other writes of Elastic Load Balancing."
    }
}

config_keys! {
    /// A section `[ServiceOverride "N"]` as written.
    Override {
        upstream service: String = "Service" "" "Service ID: `EC2`, `Elastic Load Balancing v2`, `Elastic Load Balancing`, `STS`, `ec2imds`. Required."
        upstream region: String = "Region" "" "Region for which the section applies; ignored for `ec2imds`. Required."
        upstream url: String = "URL" "" "Endpoint. Required."
        upstream signing_region: String = "SigningRegion" "" "Region for which requests are signed. Required."
        upstream signing_method: String = "SigningMethod" "" "Accepted, but has no effect."
        upstream signing_name: String = "SigningName" "" "Service name for which requests are signed. Default: the service's own name."
    }
}
