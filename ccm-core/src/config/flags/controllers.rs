//! Flags of the controllers.

use super::Group::{CloudNode, CloudNodeLifecycle, Misc, NodeIpam, Orphans, ServiceLb};
use super::{Flag, generic};
use crate::config::value::FlagTarget::{self, Bool, Choice, Duration, Int, Text};

const fn node_ipam(
    name: &'static str,
    target: FlagTarget,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag::new(name, NodeIpam, target, default, help)
}

/// The controllers.
pub(super) static CONTROLLERS: &[Flag] = &[
    generic(
        "allocate-node-cidrs",
        Bool(|c| &mut c.node_ipam.allocate_node_cidrs),
        "false",
        "Allocate CIDRs for pods to the nodes. Requires that --controllers names `node-ipam-controller`: `*` does not enable it, because kube-controller-manager usually runs it.",
    ),
    generic(
        "cidr-allocator-type",
        Text(|c| &mut c.node_ipam.allocator_type),
        "RangeAllocator",
        "Type of the CIDR allocator. Only RangeAllocator is supported; checked only if --allocate-node-cidrs is true.",
    ),
    generic(
        "configure-cloud-routes",
        Bool(|c| &mut c.route.configure_cloud_routes),
        "true",
        "Configure routes to the nodes' pod networks on the cloud provider.",
    ),
    generic(
        "route-reconciliation-period",
        Duration(|c| &mut c.route.reconciliation_period),
        "10s",
        "The period for reconciling routes created for nodes by the cloud provider.",
    ),
    Flag::new(
        "concurrent-node-syncs",
        CloudNode,
        Int(|c| &mut c.raw.concurrent_node_syncs),
        "1",
        "Number of nodes that are initialized concurrently.",
    ),
    Flag::new(
        "concurrent-node-status-updates",
        CloudNode,
        Int(|c| &mut c.raw.concurrent_node_status_updates),
        "0",
        "Number of node statuses that are updated concurrently. 0 means the value of --concurrent-node-syncs.",
    ),
    Flag::new(
        "node-monitor-period",
        CloudNodeLifecycle,
        Duration(|c| &mut c.node_lifecycle.monitor_period),
        "5s",
        "The period between checks of nodes that are not ready.",
    ),
    Flag::new(
        "concurrent-node-lifecycle-syncs",
        CloudNodeLifecycle,
        Int(|c| &mut c.raw.concurrent_node_lifecycle_syncs),
        "1",
        "Number of nodes whose lifecycle is checked concurrently.",
    ),
    Flag::new(
        "node-deletion-safety",
        CloudNodeLifecycle,
        Choice(|c| &mut c.node_lifecycle.deletion_safety),
        "strict",
        "Proof required before a Node is deleted. `strict` asks the cloud twice, and verifies the query with nodes that exist; `upstream` deletes on the first \"not found\", like the Go framework.",
    ),
    Flag::new(
        "out-of-service-after",
        CloudNodeLifecycle,
        Duration(|c| &mut c.node_lifecycle.out_of_service_after),
        "0s",
        "The time for which the cloud must say that the instance of a node that is not ready is shut down or gone, before the node gets the taint `node.kubernetes.io/out-of-service`, so that its pods are deleted and their volumes move to other nodes. Only nodes that this process has seen Ready while their instances ran get it. It goes when the instance runs or the node is Ready. 0 disables it.",
    ),
    Flag::new(
        "concurrent-service-syncs",
        ServiceLb,
        Int(|c| &mut c.raw.concurrent_service_syncs),
        "1",
        "Number of services that are synced concurrently. 8 if the flag is not given.",
    ),
    Flag::new(
        "load-balancer-verify-period",
        ServiceLb,
        Duration(|c| &mut c.service.verify_period),
        "1h0m0s",
        "The period between drift checks of each load balancer, with a jitter of 25%. Drift is repaired.",
    ),
    Flag::new(
        "service-conditions",
        ServiceLb,
        Bool(|c| &mut c.service.conditions),
        "false",
        "Write the condition `service.cloud-controller-manager/LoadBalancerReady` to each Service of type LoadBalancer, with the cause if its load balancer is not as requested. Costs a write when the condition changes.",
    ),
    node_ipam(
        "service-cluster-ip-range",
        Text(|c| &mut c.raw.service_cluster_ip_range),
        "",
        "CIDR range for services in the cluster, which is never allocated to nodes; for dual-stack, two ranges of different families, separated by a comma.",
    ),
    node_ipam(
        "node-cidr-mask-size",
        Int(|c| &mut c.raw.node_cidr_mask_size),
        "0",
        "Mask size for the node CIDR in a single-stack cluster. 0 means 24 for IPv4 and 64 for IPv6.",
    ),
    node_ipam(
        "node-cidr-mask-size-ipv4",
        Int(|c| &mut c.raw.node_cidr_mask_size_ipv4),
        "0",
        "Mask size for the IPv4 node CIDR. 0 means 24.",
    ),
    node_ipam(
        "node-cidr-mask-size-ipv6",
        Int(|c| &mut c.raw.node_cidr_mask_size_ipv6),
        "0",
        "Mask size for the IPv6 node CIDR. 0 means 64. At most 16 more than the mask size of the cluster's IPv6 CIDR.",
    ),
    Flag::new(
        "node-status-update-frequency",
        Misc,
        Duration(|c| &mut c.node.status_update_frequency),
        "5m0s",
        "The period between updates of node addresses.",
    ),
];

/// The search for orphans.
pub(super) static ORPHANS: &[Flag] = &[
    Flag::new(
        "orphan-report-period",
        Orphans,
        Duration(|c| &mut c.orphans.report_period),
        "24h0m0s",
        "The period between searches for orphans: cloud objects of this cluster that belong to no Service or Node. The first search is ten minutes after the start; 0 disables them. Runs in the service controller.",
    ),
    Flag::new(
        "collect-orphans",
        Orphans,
        Bool(|c| &mut c.orphans.collect),
        "false",
        "Delete the orphans that the search finds. Nothing is deleted while the cluster has no load balancers, or if most of the cluster's cloud objects would be deleted.",
    ),
    Flag::new(
        "collect-orphans-confirm",
        Orphans,
        Text(|c| &mut c.orphans.collect_confirm),
        "",
        "The ID of the cluster whose orphans may be deleted, as the subcommand orphans shows it. Without it, --collect-orphans deletes nothing of a cluster with the default name, kubernetes, because other clusters may have that name, too. With any other ID than the cluster's it deletes nothing.",
    ),
    Flag::new(
        "orphan-minimum-age",
        Orphans,
        Duration(|c| &mut c.orphans.minimum_age),
        "1h0m0s",
        "Minimum age of an orphan before it is deleted, counted from its creation, or if that is unknown, from when this process first found it.",
    ),
];
