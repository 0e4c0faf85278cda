//! Flags of the cluster, of the Kubernetes client, of shadow mode and of debugging.

use super::Group::{Debugging, Misc, Shadow};
use super::{Flag, generic};
use crate::config::value::FlagTarget::{
    Bool, Choice, Duration, Float, Int, List, Networks, Path, Switches, Text,
};

/// The cluster, the client, debugging.
pub(super) static GENERIC: &[Flag] = &[
    generic(
        "cloud-provider",
        Text(|c| &mut c.generic.cloud_provider),
        "",
        "The provider for cloud services. Required.",
    ),
    generic(
        "cloud-config",
        Path(|c| &mut c.generic.cloud_config),
        "",
        "The path to the cloud provider configuration file.",
    ),
    generic(
        "cluster-name",
        Text(|c| &mut c.generic.cluster_name),
        "kubernetes",
        "The name of the cluster, passed to the load balancer and route calls of the cloud provider.",
    ),
    generic(
        "cluster-cidr",
        Networks(|c| &mut c.generic.cluster_cidrs),
        "",
        "CIDR range for pods in the cluster; for dual-stack, two ranges of different families, separated by a comma. Used by the route and node IPAM controllers.",
    ),
    generic(
        "use-service-account-credentials",
        Bool(|c| &mut c.generic.use_service_account_credentials),
        "false",
        "If true, use individual service account credentials for each controller.",
    ),
    generic(
        "allow-untagged-cloud",
        Bool(|c| &mut c.generic.allow_untagged_cloud),
        "false",
        "Allow the cluster to run without the cluster ID on cloud instances.",
    )
    .deprecated("a cluster ID will be required on cloud instances"),
    generic(
        "external-cloud-volume-plugin",
        Text(|c| &mut c.generic.external_cloud_volume_plugin),
        "",
        "The volume plugin of the cloud provider.",
    )
    .without_effect("a cloud-controller-manager runs no volume controllers"),
    generic(
        "node-sync-period",
        Duration(|c| &mut c.generic.node_sync_period),
        "0s",
        "The period for syncing nodes from the cloud provider.",
    )
    .without_effect("node changes are watched")
    .deprecated("it does nothing and will be removed"),
    generic(
        "controllers",
        List(|c| &mut c.raw.controllers),
        "*",
        "A list of controllers to enable. `*` enables all on-by-default controllers, `foo` enables the controller named foo, `-foo` disables it. The first entry for a name wins.",
    ),
    generic(
        "controller-start-interval",
        Duration(|c| &mut c.generic.controller_start_interval),
        "0s",
        "Interval between starting controllers. A random delay of up to the same duration is added.",
    ),
    generic(
        "min-resync-period",
        Duration(|c| &mut c.generic.min_resync_period),
        "12h0m0s",
        "The minimum period between two resyncs of all objects.",
    )
    .without_effect("each controller has its own resync period"),
    generic(
        "kube-api-qps",
        Float(|c| &mut c.kube_client.qps),
        "20",
        "QPS to use while talking with the API server. 0 or less means no limit.",
    ),
    generic(
        "kube-api-burst",
        Int(|c| &mut c.raw.kube_api_burst),
        "30",
        "Burst to use while talking with the API server.",
    ),
    generic(
        "kube-api-content-type",
        Text(|c| &mut c.kube_client.content_type),
        "application/vnd.kubernetes.protobuf",
        "Content type of requests sent to the API server.",
    )
    .without_effect("each kind of request uses the encoding that costs least"),
    generic(
        "feature-gates",
        Switches(|c| &mut c.raw.feature_gates),
        "",
        "A set of key=value pairs that describe feature gates, separated by commas.",
    ),
    Flag::new(
        "profiling",
        Debugging,
        Bool(|c| &mut c.debugging.profiling),
        "true",
        "Serve /debug/flags/v, which changes the log verbosity at runtime. Profiles are not supported: /debug/pprof/ responds with 404.",
    ),
    Flag::new(
        "contention-profiling",
        Debugging,
        Bool(|c| &mut c.debugging.contention_profiling),
        "false",
        "Enable profiling of lock contention, if profiling is enabled.",
    )
    .without_effect("profiles are a feature of Go's runtime"),
    Flag::new(
        "tracing-config-file",
        Debugging,
        Path(|c| &mut c.debugging.tracing_config_file),
        "",
        "File with the tracing configuration (OTLP over gRPC, sampling rate), in the format of kube-apiserver. Without it, tracing is disabled.",
    ),
];

/// Shadow mode.
pub(super) static SHADOW: &[Flag] = &[
    Flag::new(
        "shadow",
        Shadow,
        Bool(|c| &mut c.shadow.enabled),
        "false",
        "Run beside an active cloud-controller-manager without writing anything or acquiring a lease: print what would be changed, and serve it at /shadow.",
    ),
    Flag::new(
        "shadow-once",
        Shadow,
        Bool(|c| &mut c.shadow.once),
        "false",
        "Like --shadow, but compare once and exit: with 0 if there are no differences, 2 if there are some, 1 if the comparison is incomplete.",
    ),
    Flag::new(
        "shadow-settle",
        Shadow,
        Duration(|c| &mut c.shadow.settle),
        "30s",
        "How long a difference must persist before it is reported, so that changes that the leader is about to make are not.",
    ),
    Flag::new(
        "report",
        Shadow,
        Choice(|c| &mut c.shadow.report),
        "none",
        "With --shadow-once, print an adoption report instead of lines: `markdown` to attach it to a change request, `json` for programs. `none` prints the lines.",
    ),
];

/// Where the API server is.
pub(super) static API_SERVER: &[Flag] = &[
    Flag::new(
        "kubeconfig",
        Misc,
        Path(|c| &mut c.kube_client.kubeconfig),
        "",
        "Path to a kubeconfig file with the address of the API server and the credentials. Without it and --master, the pod's service account is used.",
    ),
    Flag::new(
        "master",
        Misc,
        Text(|c| &mut c.kube_client.master),
        "",
        "The address of the Kubernetes API server (overrides any value in kubeconfig).",
    ),
];
