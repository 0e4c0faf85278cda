//! Flags of the cluster, of the Kubernetes client, of shadow mode and of debugging.

use super::Flag;
use super::Group::{Debugging, Generic, Misc, Shadow};
use crate::config::value::FlagTarget::{
    self, Bool, Duration, Float, Int, List, Networks, Path, Switches, Text,
};

const fn generic(
    name: &'static str,
    target: FlagTarget,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag::new(name, Generic, target, default, help)
}

/// The cluster, the client, debugging.
pub(super) static GENERIC: &[Flag] = &[
    generic(
        "cloud-provider",
        Text(|c| &mut c.generic.cloud_provider),
        "",
        "Cloud provider. Must be set.",
    ),
    generic(
        "cloud-config",
        Path(|c| &mut c.generic.cloud_config),
        "",
        "Configuration file of the cloud provider.",
    ),
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
    generic(
        "node-sync-period",
        Duration(|c| &mut c.generic.node_sync_period),
        "0s",
        "Period of a sync of nodes.",
    )
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
    generic(
        "kube-api-qps",
        Float(|c| &mut c.kube_client.qps),
        "20",
        "Requests to the API server a second.",
    ),
    generic(
        "kube-api-burst",
        Int(|c| &mut c.raw.kube_api_burst),
        "30",
        "Requests to the API server at once.",
    ),
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

/// Where the API server is.
pub(super) static API_SERVER: &[Flag] = &[
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
