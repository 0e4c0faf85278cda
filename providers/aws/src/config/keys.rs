//! The table of configuration keys, from which the parser, the reference page and the log of
//! effective settings are made.
//!
//! After a change, update the reference page with `CCM_UPDATE_REFERENCE=1 cargo test -p ccm-aws
//! reference_page`.

use std::time::Duration;

use ccm_core::config_keys;

config_keys! {
    /// Section `[Global]` as written.
    Global {
        upstream zone: String = "Zone" "" "Zone such as `eu-west-1a`, from which the region is derived. Wins over `Region`."
        upstream region: String = "Region" "" "Region. Without it and `Zone` the instance metadata service is asked."
        upstream vpc: String = "VPC" "" "ID of the cluster's VPC. Without it the instance metadata service is asked."
        upstream subnet: String = "SubnetID" "" "Subnet for load balancers where discovery finds none. Default: that of the own instance, where that is known."
        upstream route_tables: Vec<String> = "RouteTableID" "" "Use exactly this route table. Repeat it for several: routes are written to all (upstream uses the last)."
        upstream role: String = "RoleARN" "" "IAM role that is assumed for every call."
        upstream source: String = "SourceARN" "" "With `RoleARN`: sent along when the role is assumed, as `aws:SourceArn` together with the role's account as `aws:SourceAccount`, against confused deputies."
        upstream cluster_tag: String = "KubernetesClusterTag" "" "Cluster ID in the legacy tag `KubernetesCluster`, which is then read and written as well."
        upstream cluster_id: String = "KubernetesClusterID" "" "Cluster ID, as in the tag `kubernetes.io/cluster/<ID>`. Without it the tags of the own instance are read."
        upstream disable_ingress: bool = "DisableSecurityGroupIngress" "false" "Rules of nodes' security groups are left alone."
        upstream elb_group: String = "ElbSecurityGroup" "" "A security group that is never changed or deleted. (Upstream also gives it to classic load balancers.)"
        upstream families: Vec<String> = "NodeIPFamilies" "ipv4" "Address families of nodes, in this order: `ipv4`, `ipv6`. Repeat it for both."
        upstream probe_mode: String = "ClusterServiceLoadBalancerHealthProbeMode" "ServiceNodePort" "`Shared`: health checks of Services with `externalTrafficPolicy: Cluster` go to kube-proxy's health port. `ServiceNodePort`: to the node port."
        upstream probe_port: i32 = "ClusterServiceSharedLoadBalancerHealthProbePort" "10256" "Port for `Shared`."
        upstream probe_path: String = "ClusterServiceSharedLoadBalancerHealthProbePath" "/healthz" "Path for `Shared`."
        upstream topology: String = "SupportedTopologyInstanceTypePattern" "^(hpc|trn|p)[0-9]+[a-z]*(-[a-z0-9]+)?(\\.[0-9a-z]*)$" "Regular expression for instance types that are not initialised before their network topology is known."
        upstream nlb_groups: String = "NLBSecurityGroupMode" "" "`Managed`: a load balancer gets a security group of its own when it is created."
        ours default_type: String = "DefaultLoadBalancerType" "" "What a Service without the annotation `aws-load-balancer-type` gets: `nlb`, or `none` (it is left to another controller). Unset, it is refused with an event, because upstream would make a classic load balancer."
        ours claim_external: bool = "ClaimExternalLoadBalancers" "false" "Types `external` and `nlb-ip` are served, which otherwise belong to the AWS load balancer controller."
        ours classes: Vec<String> = "LoadBalancerClass" "" "A `spec.loadBalancerClass` that is served. Repeat it for several."
        ours target_type: String = "DefaultTargetType" "instance" "Targets where the annotation `aws-load-balancer-nlb-target-type` says nothing: `instance` or `ip`."
        ours shared_group: bool = "EnableSharedBackendSecurityGroup" "false" "Every load balancer that has security groups gets one further, common one, which nodes' groups admit with one rule."
        ours backend_group: String = "BackendSecurityGroup" "" "ID of that group. Without it one is made."
        ours drift_interval: Option<Duration> = "DriftCheckInterval" "1h" "How long it may be trusted that nobody else changed what was last read or written."
        ours ec2_read_qps: Option<f64> = "EC2ReadQPS" "20" "Reads of EC2, per second."
        ours ec2_read_burst: Option<u32> = "EC2ReadBurst" "100" "Reads of EC2 at once after a pause."
        ours ec2_write_qps: Option<f64> = "EC2WriteQPS" "5" "Changes of EC2, per second."
        ours ec2_write_burst: Option<u32> = "EC2WriteBurst" "50" "Changes of EC2 at once."
        ours topology_qps: Option<f64> = "EC2TopologyQPS" "1" "`DescribeInstanceTopology`, per second."
        ours topology_burst: Option<u32> = "EC2TopologyBurst" "1" "`DescribeInstanceTopology` at once."
        ours elb_read_qps: Option<f64> = "ELBReadQPS" "10" "Reads of Elastic Load Balancing, per second."
        ours elb_read_burst: Option<u32> = "ELBReadBurst" "40" "Reads of Elastic Load Balancing at once."
        ours elb_register_qps: Option<f64> = "ELBRegisterQPS" "4" "Registrations and deregistrations of targets, per second."
        ours elb_register_burst: Option<u32> = "ELBRegisterBurst" "20" "Registrations and deregistrations at once."
        ours elb_write_qps: Option<f64> = "ELBWriteQPS" "3" "Other changes of Elastic Load Balancing, per second."
        ours elb_write_burst: Option<u32> = "ELBWriteBurst" "20" "Other changes of Elastic Load Balancing at once."
    }
}

config_keys! {
    /// A section `[ServiceOverride "N"]` as written.
    Override {
        upstream service: String = "Service" "" "Service ID: `EC2`, `Elastic Load Balancing v2`, `Elastic Load Balancing`, `STS`, `ec2imds`. Required."
        upstream region: String = "Region" "" "Region in which it counts; does not matter for `ec2imds`. Required."
        upstream url: String = "URL" "" "Endpoint. Required."
        upstream signing_region: String = "SigningRegion" "" "Region that requests are signed for. Required."
        upstream signing_method: String = "SigningMethod" "" "Accepted, without effect."
        upstream signing_name: String = "SigningName" "" "Service name that requests are signed for. Default: the service's own."
    }
}
