//! Flags of the controllers.

use super::Flag;
use super::Group::{CloudNode, CloudNodeLifecycle, Generic, Misc, NodeIpam, Orphans, ServiceLb};
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
    Flag::new(
        "allocate-node-cidrs",
        Generic,
        Bool(|c| &mut c.node_ipam.allocate_node_cidrs),
        "false",
        "Give each node networks for its pods. Only together with `node-ipam-controller` named in --controllers: `*` does not start it, because kube-controller-manager usually does this.",
    ),
    Flag::new(
        "cidr-allocator-type",
        Generic,
        Text(|c| &mut c.node_ipam.allocator_type),
        "RangeAllocator",
        "How those networks are chosen. Only RangeAllocator; not looked at unless they are.",
    ),
    Flag::new(
        "configure-cloud-routes",
        Generic,
        Bool(|c| &mut c.route.configure_cloud_routes),
        "true",
        "Make routes to the pods' networks in the cloud.",
    ),
    Flag::new(
        "route-reconciliation-period",
        Generic,
        Duration(|c| &mut c.route.reconciliation_period),
        "10s",
        "Period of the comparison of routes with the cloud.",
    ),
    Flag::new(
        "concurrent-node-syncs",
        CloudNode,
        Int(|c| &mut c.raw.concurrent_node_syncs),
        "1",
        "Nodes initialised at the same time.",
    ),
    Flag::new(
        "concurrent-node-status-updates",
        CloudNode,
        Int(|c| &mut c.raw.concurrent_node_status_updates),
        "0",
        "Node statuses updated at the same time; 0 stands for the value of --concurrent-node-syncs.",
    ),
    Flag::new(
        "node-monitor-period",
        CloudNodeLifecycle,
        Duration(|c| &mut c.node_lifecycle.monitor_period),
        "5s",
        "Period of the check of nodes that are not ready.",
    ),
    Flag::new(
        "concurrent-node-lifecycle-syncs",
        CloudNodeLifecycle,
        Int(|c| &mut c.raw.concurrent_node_lifecycle_syncs),
        "1",
        "Nodes checked at the same time.",
    ),
    Flag::new(
        "node-deletion-safety",
        CloudNodeLifecycle,
        Choice(|c| &mut c.node_lifecycle.deletion_safety),
        "strict",
        "Proof needed before a Node is deleted: `strict` asks twice and checks the question on nodes that live; `upstream` deletes on the cloud's first \"not found\", as the Go framework does.",
    ),
    Flag::new(
        "concurrent-service-syncs",
        ServiceLb,
        Int(|c| &mut c.raw.concurrent_service_syncs),
        "1",
        "Services handled at the same time; 1 stands for no wish, which is 8.",
    ),
    Flag::new(
        "load-balancer-verify-period",
        ServiceLb,
        Duration(|c| &mut c.service.verify_period),
        "1h0m0s",
        "Period of the comparison of each load balancer with the cloud, give or take a quarter; what differs is repaired.",
    ),
    node_ipam(
        "service-cluster-ip-range",
        Text(|c| &mut c.raw.service_cluster_ip_range),
        "",
        "Networks of the cluster's services, which no node gets: one, or two of different families with a comma.",
    ),
    node_ipam(
        "node-cidr-mask-size",
        Int(|c| &mut c.raw.node_cidr_mask_size),
        "0",
        "Prefix length of a node's network in a cluster of one family; 0 stands for 24 in IPv4 and 64 in IPv6.",
    ),
    node_ipam(
        "node-cidr-mask-size-ipv4",
        Int(|c| &mut c.raw.node_cidr_mask_size_ipv4),
        "0",
        "Prefix length of a node's IPv4 network; 0 stands for 24.",
    ),
    node_ipam(
        "node-cidr-mask-size-ipv6",
        Int(|c| &mut c.raw.node_cidr_mask_size_ipv6),
        "0",
        "Prefix length of a node's IPv6 network; 0 stands for 64. At most 16 more than that of the cluster's.",
    ),
    Flag::new(
        "node-status-update-frequency",
        Misc,
        Duration(|c| &mut c.node.status_update_frequency),
        "5m0s",
        "Period of the update of node addresses.",
    ),
];

/// The search for orphans.
pub(super) static ORPHANS: &[Flag] = &[
    Flag::new(
        "orphan-report-period",
        Orphans,
        Duration(|c| &mut c.orphans.report_period),
        "24h0m0s",
        "Period of the search for cloud objects of this cluster that no Service or Node asks for, the first time after ten minutes; 0 stands for none. Part of the service controller.",
    ),
    Flag::new(
        "collect-orphans",
        Orphans,
        Bool(|c| &mut c.orphans.collect),
        "false",
        "Delete what the search finds. Nothing is deleted while the cluster has no load balancer at all, or while most of what it owns would go.",
    ),
    Flag::new(
        "orphan-minimum-age",
        Orphans,
        Duration(|c| &mut c.orphans.minimum_age),
        "1h0m0s",
        "How old an orphan has to be to be deleted: since the cloud created it, or else since this process first saw it.",
    ),
];
