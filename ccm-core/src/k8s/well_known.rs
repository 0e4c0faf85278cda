//! Labels, taints, annotations, finalizers, conditions and event components, with their upstream
//! spelling.
//!
//! Source: `k8s.io/cloud-provider/api/well_known_*.go` and `k8s.io/api/core/v1` at v1.37.

/// Taint key that the kubelet sets with `--cloud-provider=external` and the cloud-node controller
/// removes.
pub const TAINT_UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// Taint key set, with effect `NoSchedule`, on nodes whose instance is shut down.
pub const TAINT_SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
/// Taint key of a node that does not come back soon (KEP-2268). With effect `NoExecute`, Kubernetes
/// deletes the node's pods without waiting for the kubelet, and detaches their volumes.
pub const TAINT_OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The value of the out-of-service taint that this manager sets, by which it knows its own.
pub const OUT_OF_SERVICE_VALUE: &str = "cloud-controller-manager";
/// Taint key that the cluster autoscaler sets on nodes that it is about to remove. Only read, never
/// written.
pub const TAINT_TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Stable zone label.
pub const LABEL_ZONE: &str = "topology.kubernetes.io/zone";
/// Stable region label.
pub const LABEL_REGION: &str = "topology.kubernetes.io/region";
/// Stable instance-type label.
pub const LABEL_INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// Beta zone label. When upstream reconciles labels, it copies this one to the stable label.
pub const LABEL_ZONE_BETA: &str = "failure-domain.beta.kubernetes.io/zone";
/// Beta region label. When upstream reconciles labels, it copies this one to the stable label.
pub const LABEL_REGION_BETA: &str = "failure-domain.beta.kubernetes.io/region";
/// Beta instance-type label. When upstream reconciles labels, it copies this one to the stable
/// label.
pub const LABEL_INSTANCE_TYPE_BETA: &str = "beta.kubernetes.io/instance-type";
/// Host name label that the kubelet sets.
pub const LABEL_HOSTNAME: &str = "kubernetes.io/hostname";
/// The label that excludes a node from all load balancers. Only its presence counts, not its value.
pub const LABEL_EXCLUDE_FROM_LOAD_BALANCERS: &str =
    "node.kubernetes.io/exclude-from-external-load-balancers";

/// The labels that the framework itself reads from an initialised node. A provider selects more
/// with [`NodeFields`](super::NodeFields).
pub const FRAMEWORK_LABELS: [&str; 8] = [
    LABEL_ZONE,
    LABEL_REGION,
    LABEL_INSTANCE_TYPE,
    LABEL_ZONE_BETA,
    LABEL_REGION_BETA,
    LABEL_INSTANCE_TYPE_BETA,
    LABEL_HOSTNAME,
    LABEL_EXCLUDE_FROM_LOAD_BALANCERS,
];

/// Node annotation with the addresses of the kubelet's `--node-ip`: one, or two of different
/// families, comma-separated.
pub const ANNOTATION_PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// Service annotation with source ranges, used when `spec.loadBalancerSourceRanges` is empty.
pub const ANNOTATION_SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
/// Service annotation that keeps the load balancer where it would be deleted: `true` or `false`. It
/// is this project's own, beside the prefix of the source ranges.
pub const ANNOTATION_RETAIN: &str = "service.beta.kubernetes.io/load-balancer-retain";
/// Service annotation with the ID of a load balancer that was kept, and that the Service adopts. It
/// is this project's own.
pub const ANNOTATION_ADOPT: &str = "service.beta.kubernetes.io/load-balancer-adopt";
/// Finalizer on Services that own a load balancer.
pub const FINALIZER_LOAD_BALANCER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// Condition type `Ready`.
pub const CONDITION_READY: &str = "Ready";
/// Condition type `NetworkUnavailable`, written by the route controller.
pub const CONDITION_NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";

/// Condition type of our own on Services of type LoadBalancer (`--service-conditions`).
pub const CONDITION_LOAD_BALANCER_READY: &str =
    "service.cloud-controller-manager/LoadBalancerReady";

/// `source.component` of the cloud-node controller's events.
pub const COMPONENT_NODE: &str = "cloud-node-controller";
/// `source.component` of the cloud-node-lifecycle controller's events.
pub const COMPONENT_NODE_LIFECYCLE: &str = "cloud-node-lifecycle-controller";
/// `source.component` of the route controller's events.
pub const COMPONENT_ROUTE: &str = "route_controller";
/// `source.component` of the node-IPAM controller's events.
pub const COMPONENT_NODE_IPAM: &str = "cidrAllocator";
/// `source.component` of the service controller's events.
pub const COMPONENT_SERVICE: &str = "service-controller";
/// `source.component` of the manager's own events (leader election).
pub const COMPONENT_MANAGER: &str = "cloud-controller-manager";
