//! Flags of the cluster, of leader election and of the controllers.

use super::Flag;
use super::Group::{
    CloudNode, CloudNodeLifecycle, Debugging, Generic, LeaderMigration, Misc, NodeIpam, Orphans, ServiceLb, Shadow,
};
use crate::config::value::FlagTarget::{Bool, Choice, Duration, Float, Int, List, Networks, Path, Switches, Text};

const fn generic(name: &'static str, slot: super::FlagTarget, default: &'static str, help: &'static str) -> Flag {
    Flag::new(name, Generic, slot, default, help)
}

const fn node_ipam(name: &'static str, slot: super::FlagTarget, default: &'static str, help: &'static str) -> Flag {
    Flag::new(name, NodeIpam, slot, default, help)
}

/// The cluster, the client, leader election, leader migration, debugging.
pub(super) static GENERIC: &[Flag] = &[
    generic("cloud-provider", Text(|c| &mut c.generic.cloud_provider), "", "Cloud provider. Must be set."),
    generic("cloud-config", Path(|c| &mut c.generic.cloud_config), "", "Configuration file of the cloud provider."),
    generic(
        "cluster-name",
        Text(|c| &mut c.generic.cluster_name),
        "kubernetes",
        "Name of the cluster, passed to load-balancer and route calls.",
    ),
    generic(
        "cluster-cidr",
        Networks(|c| &mut c.generic.cluster_cidrs),
        "",
        "Networks of the cluster's pods: one, or two of different families with a comma. Used by the route and node-IPAM controllers.",
    ),
    generic(
        "allocate-node-cidrs",
        Bool(|c| &mut c.node_ipam.allocate_node_cidrs),
        "false",
        "Give each node networks for its pods. Only together with `node-ipam-controller` named in --controllers: `*` does not start it, because kube-controller-manager usually does this.",
    ),
    generic(
        "cidr-allocator-type",
        Text(|c| &mut c.node_ipam.allocator_type),
        "RangeAllocator",
        "How those networks are chosen. Only RangeAllocator; not looked at unless they are.",
    ),
    generic(
        "configure-cloud-routes",
        Bool(|c| &mut c.route.configure_cloud_routes),
        "true",
        "Make routes to the pods' networks in the cloud.",
    ),
    generic(
        "route-reconciliation-period",
        Duration(|c| &mut c.route.reconciliation_period),
        "10s",
        "Period of the comparison of routes with the cloud.",
    ),
    generic(
        "use-service-account-credentials",
        Bool(|c| &mut c.generic.use_service_account_credentials),
        "false",
        "Let each controller use a ServiceAccount of its own.",
    ),
    generic(
        "allow-untagged-cloud",
        Bool(|c| &mut c.generic.allow_untagged_cloud),
        "false",
        "Run without a cluster ID in the cloud's tags.",
    )
    .deprecated("a cluster ID will be required on cloud instances"),
    generic(
        "external-cloud-volume-plugin",
        Text(|c| &mut c.generic.external_cloud_volume_plugin),
        "",
        "Volume plugin of the cloud.",
    )
    .without_effect("a cloud-controller-manager runs no volume controllers"),
    generic("node-sync-period", Duration(|c| &mut c.generic.node_sync_period), "0s", "Period of a sync of nodes.")
        .without_effect("node changes are watched")
        .deprecated("it does nothing and will be removed"),
    generic(
        "controllers",
        List(|c| &mut c.raw.controllers),
        "*",
        "Controllers to run: `*` for all that are on by default, `name` to add one, `-name` to leave one out. The first entry for a name decides.",
    ),
    generic(
        "controller-start-interval",
        Duration(|c| &mut c.generic.controller_start_interval),
        "0s",
        "Pause between the starts of two controllers, random up to twice this.",
    ),
    generic(
        "min-resync-period",
        Duration(|c| &mut c.generic.min_resync_period),
        "12h0m0s",
        "Lower bound of the period after which every object is looked at again.",
    )
    .without_effect("each controller looks at its objects again at a period of its own"),
    generic("kube-api-qps", Float(|c| &mut c.kube_client.qps), "20", "Requests to the API server a second."),
    generic("kube-api-burst", Int(|c| &mut c.raw.kube_api_burst), "30", "Requests to the API server at once."),
    generic(
        "kube-api-content-type",
        Text(|c| &mut c.kube_client.content_type),
        "application/vnd.kubernetes.protobuf",
        "Content type of requests to the API server.",
    )
    .without_effect("each kind of request uses the encoding that costs least"),
    generic(
        "feature-gates",
        Switches(|c| &mut c.raw.feature_gates),
        "",
        "Feature gates as `name=true` or `name=false`, with commas.",
    ),
    generic(
        "leader-elect",
        Bool(|c| &mut c.leader_election.enabled),
        "true",
        "Elect a leader before the controllers start. Needed when there is more than one replica.",
    ),
    generic(
        "leader-elect-lease-duration",
        Duration(|c| &mut c.leader_election.lease_duration),
        "15s",
        "Time after which others may take over a lease that is not renewed.",
    ),
    generic(
        "leader-elect-renew-deadline",
        Duration(|c| &mut c.leader_election.renew_deadline),
        "10s",
        "Time after which a leader that cannot renew gives up. Less than the lease duration.",
    ),
    generic(
        "leader-elect-retry-period",
        Duration(|c| &mut c.leader_election.retry_period),
        "2s",
        "Pause between two tries to get or renew the lease.",
    ),
    generic(
        "leader-elect-resource-lock",
        Text(|c| &mut c.raw.resource_lock),
        "leases",
        "Kind of object that holds the lock; only `leases`.",
    ),
    generic(
        "leader-elect-resource-name",
        Text(|c| &mut c.leader_election.resource_name),
        "cloud-controller-manager",
        "Name of that object.",
    ),
    generic(
        "leader-elect-resource-namespace",
        Text(|c| &mut c.leader_election.resource_namespace),
        "kube-system",
        "Namespace of that object.",
    ),
    Flag::new(
        "enable-leader-migration",
        LeaderMigration,
        Bool(|c| &mut c.leader_migration.enabled),
        "false",
        "Let controllers move from one controller manager to another while both run.",
    ),
    Flag::new(
        "leader-migration-config",
        LeaderMigration,
        Path(|c| &mut c.leader_migration.config_file),
        "",
        "File that says which; without it the built-in list holds.",
    ),
    Flag::new(
        "profiling",
        Debugging,
        Bool(|c| &mut c.debugging.profiling),
        "true",
        "Serve /debug/flags/v, which changes the verbosity of logs. There are no profiles: /debug/pprof/ says so.",
    ),
    Flag::new(
        "contention-profiling",
        Debugging,
        Bool(|c| &mut c.debugging.contention_profiling),
        "false",
        "Serve profiles of lock contention, too.",
    )
    .without_effect("profiles are Go's"),
    Flag::new(
        "tracing-config-file",
        Debugging,
        Path(|c| &mut c.debugging.tracing_config_file),
        "",
        "File that says where traces go (OTLP over gRPC) and how many, in the format of kube-apiserver; without it there are none.",
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

/// Shadow mode.
pub(super) static SHADOW: &[Flag] = &[
    Flag::new(
        "shadow",
        Shadow,
        Bool(|c| &mut c.shadow.enabled),
        "false",
        "Change nothing and take no lease: print what would be changed, beside a cloud-controller-manager that runs, and serve it at /shadow.",
    ),
    Flag::new(
        "shadow-once",
        Shadow,
        Bool(|c| &mut c.shadow.once),
        "false",
        "The same, once: exit with 0 when nothing differs, 2 when something does, 1 when that cannot be said.",
    ),
    Flag::new(
        "shadow-settle",
        Shadow,
        Duration(|c| &mut c.shadow.settle),
        "30s",
        "How long a difference must stand before it is shown: what the leader changes by itself meanwhile is none.",
    ),
];

/// The controllers' own flags, and the client's files.
pub(super) static CONTROLLERS: &[Flag] = &[
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
    Flag::new(
        "kubeconfig",
        Misc,
        Path(|c| &mut c.kube_client.kubeconfig),
        "",
        "kubeconfig with the API server and the credentials. Without it and --master, the pod's service account is used.",
    ),
    Flag::new(
        "master",
        Misc,
        Text(|c| &mut c.kube_client.master),
        "",
        "Address of the API server; wins over the kubeconfig's.",
    ),
];
