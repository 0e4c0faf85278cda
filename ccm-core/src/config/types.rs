//! The checked configuration of a cloud-controller-manager, in groups.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::client_feature_gates::ClientFeatureGates;
use super::feature_gates::FeatureGates;
use super::{NodeIpamOptions, ReportFormat, ShadowConfig, logging::LoggingConfig};
use crate::config::controller_names::ControllerSelection;

/// The checked values of the whole command line. No file was opened, no name resolved, and no
/// connection made.
///
/// Made by [`parse`](super::parse); the defaults are those of the flags
/// (`docs/reference/flags.md`).
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The cloud, the cluster, and which controllers run.
    pub generic: GenericConfig,
    /// The API client.
    pub kube_client: KubeClientConfig,
    /// Leader election.
    pub leader_election: LeaderElectionConfig,
    /// Leader migration between two controller managers.
    pub leader_migration: LeaderMigrationConfig,
    /// Profiling and traces.
    pub debugging: DebuggingConfig,
    /// The cloud-node controller.
    pub node: NodeConfig,
    /// The cloud-node-lifecycle controller.
    pub node_lifecycle: NodeLifecycleConfig,
    /// The route controller.
    pub route: RouteConfig,
    /// The service controller.
    pub service: ServiceConfig,
    /// The node-IPAM controller.
    pub node_ipam: NodeIpamConfig,
    /// The search for orphans.
    pub orphans: OrphansConfig,
    /// Shadow mode.
    pub shadow: ShadowConfig,
    /// The HTTPS server for health, metrics and configuration.
    pub serving: ServingConfig,
    /// Authentication of users of that server.
    pub authentication: AuthenticationConfig,
    /// Authorization of users of that server.
    pub authorization: AuthorizationConfig,
    /// Admission webhooks and their server.
    pub webhook: WebhookConfig,
    /// Logs.
    pub logging: LoggingConfig,
    /// Feature gates.
    pub feature_gates: FeatureGates,
    /// Feature gates of the API client.
    pub client_gates: ClientFeatureGates,
    /// The version to report where Kubernetes versions are reported, from `--version=vX.Y.Z`; the
    /// product's own if unset.
    pub reported_version: Option<String>,
    /// False if a provider that cannot reach its cloud must return the error at once, as the
    /// subcommand `check` wants it. True otherwise: the provider waits until the cloud answers.
    pub wait_for_cloud: bool,
    /// The values of the provider's own flags
    /// ([`Product::extra_flags`](super::Product::extra_flags)), by name.
    pub extra: BTreeMap<&'static str, String>,
    /// The values of the provider's own flags that may be repeated, by name, in order; without
    /// flags that are not set.
    pub extra_lists: BTreeMap<&'static str, Vec<String>>,
    pub(super) warnings: Vec<String>,
    pub(super) flags: Vec<FlagValue>,
    pub(super) raw: RawFlags,
}

/// Values as parsed from the command line, before they are checked against each other.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct RawFlags {
    pub(super) controllers: Vec<String>,
    pub(super) feature_gates: BTreeMap<String, bool>,
    pub(super) resource_lock: String,
    pub(super) concurrent_node_syncs: i32,
    pub(super) concurrent_node_status_updates: i32,
    pub(super) concurrent_node_lifecycle_syncs: i32,
    pub(super) concurrent_service_syncs: i32,
    pub(super) service_cluster_ip_range: String,
    pub(super) node_cidr_mask_size: i32,
    pub(super) node_cidr_mask_size_ipv4: i32,
    pub(super) node_cidr_mask_size_ipv6: i32,
    pub(super) kube_api_burst: i32,
    pub(super) secure_port: i32,
    pub(super) webhook_secure_port: i32,
    pub(super) http2_max_streams: i32,
    pub(super) vmodule: String,
    pub(super) verbosity: i32,
    pub(super) version: VersionRequest,
    pub(super) help: bool,
}

/// One flag's name and value, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagValue {
    /// Name without dashes in front.
    pub name: &'static str,
    /// The effective value, in the flag's own format.
    pub value: String,
    /// True if that differs from the default.
    pub changed: bool,
}

impl Config {
    /// Returns warnings to log once at start: flags that are set but have no effect, or are
    /// deprecated.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns every flag with its effective value, by name. Values are file names and numbers,
    /// never secrets.
    pub fn flags(&self) -> &[FlagValue] {
        &self.flags
    }

    /// Creates a configuration without any values, not even defaults. Only the parser needs it.
    pub(super) fn unset() -> Self {
        Self {
            generic: GenericConfig::default(),
            kube_client: KubeClientConfig::default(),
            leader_election: LeaderElectionConfig::default(),
            leader_migration: LeaderMigrationConfig::default(),
            debugging: DebuggingConfig::default(),
            node: NodeConfig::blank(),
            node_lifecycle: NodeLifecycleConfig::blank(),
            route: RouteConfig::default(),
            service: ServiceConfig {
                concurrent_syncs: NonZeroUsize::MIN,
                workers: DEFAULT_SERVICE_WORKERS,
                verify_period: Duration::ZERO,
                conditions: false,
            },
            node_ipam: NodeIpamConfig::default(),
            orphans: OrphansConfig::default(),
            shadow: ShadowConfig::default(),
            serving: ServingConfig::blank(),
            authentication: AuthenticationConfig::default(),
            authorization: AuthorizationConfig::default(),
            webhook: WebhookConfig { enabled: Vec::new(), serving: ServingConfig::blank() },
            logging: LoggingConfig::default(),
            feature_gates: FeatureGates::default(),
            client_gates: ClientFeatureGates::default(),
            reported_version: None,
            wait_for_cloud: true,
            extra: BTreeMap::new(),
            extra_lists: BTreeMap::new(),
            warnings: Vec::new(),
            flags: Vec::new(),
            raw: RawFlags::default(),
        }
    }
}

/// The search for orphans: cloud objects whose Service or Node does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OrphansConfig {
    /// `--orphan-report-period`: interval between two searches. Zero: none are made.
    pub report_period: Duration,
    /// `--collect-orphans`: whether orphans are deleted.
    pub collect: bool,
    /// `--collect-orphans-confirm`: the ID of the cluster whose orphans may be deleted. Empty: any
    /// but the default name.
    pub collect_confirm: String,
    /// `--orphan-minimum-age`: minimum age of an orphan to be deleted, by its creation time in the
    /// cloud, or otherwise by how long this process has observed it.
    pub minimum_age: Duration,
}

/// The cloud, the cluster, and which controllers run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenericConfig {
    /// The name of the cloud provider, one of the product's.
    pub cloud_provider: String,
    /// The provider's configuration file.
    pub cloud_config: Option<PathBuf>,
    /// The name of the cluster, passed to load-balancer and route calls and written to cloud
    /// objects.
    pub cluster_name: String,
    /// The networks of the cluster's pods: at most two, and then one of each family.
    pub cluster_cidrs: Vec<IpNet>,
    /// True if a cloud without a cluster tag is tolerated.
    pub allow_untagged_cloud: bool,
    /// Accepted because manifests set it; a cloud-controller-manager runs no volume controller.
    pub external_cloud_volume_plugin: String,
    /// Accepted because manifests set it; it has had no effect for a long time.
    pub node_sync_period: Duration,
    /// The controllers that run.
    pub controllers: ControllerSelection,
    /// The delay between the starts of two controllers.
    pub controller_start_interval: Duration,
    /// Accepted because manifests set it; each controller has its own resync period.
    pub min_resync_period: Duration,
    /// True if each controller uses its own ServiceAccount.
    pub use_service_account_credentials: bool,
}

/// The API client.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KubeClientConfig {
    /// kubeconfig file; without it and without `master`, the pod's own ServiceAccount is used.
    pub kubeconfig: Option<PathBuf>,
    /// The address of the API server; overrides the kubeconfig's. Empty if unset.
    pub master: String,
    /// Sustained requests per second. Zero or less means no limit.
    pub qps: f32,
    /// The maximum burst of requests.
    pub burst: u32,
    /// Content type of requests.
    pub content_type: String,
}

/// Leader election.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaderElectionConfig {
    /// True if a leader is elected. Otherwise the controllers start immediately.
    pub enabled: bool,
    /// The time for which a lease is valid without renewal. Longer than `renew_deadline` if leader
    /// election is on.
    pub lease_duration: Duration,
    /// The time for which a leader tries to renew the lease before it gives up. Longer than 1.2
    /// times `retry_period`.
    pub renew_deadline: Duration,
    /// The delay between two attempts.
    pub retry_period: Duration,
    /// The kind of object that holds the lock.
    pub resource_lock: ResourceLock,
    /// The name of that object.
    pub resource_name: String,
    /// The namespace of that object.
    pub resource_namespace: String,
}

/// The kind of object that holds the leader's lock. Older kinds are rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResourceLock {
    /// `coordination.k8s.io/v1` Lease.
    #[default]
    Leases,
}

/// Leader migration (KEP-2436).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaderMigrationConfig {
    /// True if controllers may move to another controller manager while both run.
    pub enabled: bool,
    /// The file that lists the controllers; without it the built-in list applies.
    pub config_file: Option<PathBuf>,
}

/// Profiling and traces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DebuggingConfig {
    /// True if profiles are served.
    pub profiling: bool,
    /// True if profiles of lock contention are served.
    pub contention_profiling: bool,
    /// `--tracing-config-file`: configuration of traces; read at start
    /// ([`TracesConfig`](crate::telemetry::traces::TracesConfig)).
    pub tracing_config_file: Option<PathBuf>,
}

/// The cloud-node controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// The maximum number of nodes initialised concurrently. `1` is upstream's default; the
    /// controller treats it as not set by the operator.
    pub concurrent_syncs: NonZeroUsize,
    /// The maximum number of node statuses updated concurrently; `--concurrent-node-syncs` if the
    /// flag is 0.
    pub concurrent_status_updates: NonZeroUsize,
    /// The period of the address updates.
    pub status_update_frequency: Duration,
}

impl NodeConfig {
    fn blank() -> Self {
        Self {
            concurrent_syncs: NonZeroUsize::MIN,
            concurrent_status_updates: NonZeroUsize::MIN,
            status_update_frequency: Duration::ZERO,
        }
    }
}

/// The cloud-node-lifecycle controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLifecycleConfig {
    /// The period of the check of nodes that are not Ready.
    pub monitor_period: Duration,
    /// The maximum number of nodes handled concurrently.
    pub concurrent_syncs: NonZeroUsize,
    /// The proof that is required to delete a Node.
    pub deletion_safety: DeletionSafety,
    /// The time for which an instance must be shut down or gone before its node is marked out of
    /// service; zero for never.
    pub out_of_service_after: Duration,
}

impl NodeLifecycleConfig {
    fn blank() -> Self {
        Self {
            monitor_period: Duration::ZERO,
            concurrent_syncs: NonZeroUsize::MIN,
            deletion_safety: DeletionSafety::Strict,
            out_of_service_after: Duration::ZERO,
        }
    }
}

/// The proof that is required to delete a Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeletionSafety {
    /// The cloud is queried twice, together with running nodes as controls, and the Node is read
    /// again before the deletion.
    #[default]
    Strict,
    /// The Go framework's behaviour: one "not found" from the cloud deletes the Node.
    Upstream,
}

/// The route controller.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RouteConfig {
    /// True if routes to pod networks are created in the cloud.
    pub configure_cloud_routes: bool,
    /// The period of the drift check.
    pub reconciliation_period: Duration,
}

/// The number of Services that are synced at a time unless the flag says otherwise. With
/// upstream's default of one, each new load balancer waits for all others
/// (kubernetes-sigs/cloud-provider-azure#5909).
pub const DEFAULT_SERVICE_WORKERS: usize = 8;

/// The service controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceConfig {
    /// `--concurrent-service-syncs`, as it is served at `/configz`.
    pub concurrent_syncs: NonZeroUsize,
    /// The number of Services that are synced at a time: that of the flag if it was given, and
    /// otherwise [`DEFAULT_SERVICE_WORKERS`].
    pub workers: usize,
    /// The period of the drift check of each load balancer.
    pub verify_period: Duration,
    /// True if the Services get a condition that says whether their load balancer is ready.
    pub conditions: bool,
}

/// The node-IPAM controller.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeIpamConfig {
    /// True if pod networks are allocated to nodes.
    pub allocate_node_cidrs: bool,
    /// Method of the allocation.
    pub allocator_type: String,
    /// What is allocated, and how; `None` when the controller does not run. It runs only if it is
    /// named in `--controllers` and `allocate_node_cidrs` is set, and only then are its flags
    /// checked.
    pub pools: Option<NodeIpamOptions>,
}

/// A TLS server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingConfig {
    /// The address to listen on.
    pub bind_address: IpAddr,
    /// The port to listen on; `None` (port 0) means no server.
    pub port: Option<std::num::NonZeroU16>,
    /// The directory of a certificate that is created if it does not exist; without a directory the
    /// certificate stays in memory.
    pub cert_dir: Option<PathBuf>,
    /// Certificate file, reloaded on change.
    pub tls_cert_file: Option<PathBuf>,
    /// Key file, reloaded on change.
    pub tls_private_key_file: Option<PathBuf>,
    /// Cipher suites by name; empty means the library's defaults.
    pub tls_cipher_suites: Vec<String>,
    /// Minimum TLS version.
    pub tls_min_version: TlsVersion,
    /// Key-exchange groups by their IANA numbers; empty means the library's defaults.
    pub tls_curve_preferences: Vec<i32>,
    /// The certificates for further server names.
    pub tls_sni_certificates: Vec<CertificatePair>,
    /// True if HTTP/2 is off.
    pub disable_http2: bool,
    /// The maximum number of HTTP/2 streams per connection; 0 means the server's default.
    pub http2_max_streams_per_connection: u32,
    /// True if the port may be shared with other processes (`SO_REUSEPORT`).
    pub permit_port_sharing: bool,
    /// `SO_REUSEADDR`, accepted because manifests set it; it is always set.
    pub permit_address_sharing: bool,
}

impl ServingConfig {
    fn blank() -> Self {
        Self {
            bind_address: Ipv4Addr::UNSPECIFIED.into(),
            port: None,
            cert_dir: None,
            tls_cert_file: None,
            tls_private_key_file: None,
            tls_cipher_suites: Vec::new(),
            tls_min_version: TlsVersion::Default,
            tls_curve_preferences: Vec::new(),
            tls_sni_certificates: Vec::new(),
            disable_http2: false,
            http2_max_streams_per_connection: 0,
            permit_port_sharing: false,
            permit_address_sharing: false,
        }
    }
}

/// Minimum TLS version that a server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum TlsVersion {
    /// Not set: TLS 1.2.
    #[default]
    Default,
    /// `VersionTLS10`. The TLS library supports nothing below 1.2, so this is the same as
    /// [`TlsVersion::Tls12`].
    Tls10,
    /// `VersionTLS11`; the same as [`TlsVersion::Tls12`].
    Tls11,
    /// `VersionTLS12`.
    Tls12,
    /// `VersionTLS13`.
    Tls13,
}

/// A certificate with its key, and the server names for which it is used (none: those in the
/// certificate).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificatePair {
    /// Certificate file.
    pub certificate: PathBuf,
    /// Key file.
    pub key: PathBuf,
    /// Server names.
    pub names: Vec<String>,
}

impl fmt::Display for CertificatePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.certificate.display(), self.key.display())?;
        if self.names.is_empty() {
            Ok(())
        } else {
            write!(f, ":{}", self.names.join(","))
        }
    }
}

/// Authentication of users of the HTTPS server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthenticationConfig {
    /// kubeconfig for TokenReviews; without it the pod's own ServiceAccount, if there is one.
    pub kubeconfig: Option<PathBuf>,
    /// True if the lookup of the cluster's own client CAs is skipped.
    pub skip_lookup: bool,
    /// True if a failure of that lookup is tolerated.
    pub tolerate_lookup_failure: bool,
    /// The time for which the result of a TokenReview is cached.
    pub token_webhook_cache_ttl: Duration,
    /// CAs of client certificates.
    pub client_ca_file: Option<PathBuf>,
    /// CAs of proxies that name the user in headers.
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Allowed common names of such proxies; empty means any.
    pub requestheader_allowed_names: Vec<String>,
    /// Headers with the user's name.
    pub requestheader_username_headers: Vec<String>,
    /// Headers with the user's groups.
    pub requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with extra values of the user.
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// Headers with the user's UID.
    pub requestheader_uid_headers: Vec<String>,
}

/// Authorization of users of the HTTPS server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthorizationConfig {
    /// kubeconfig for SubjectAccessReviews; without it the pod's own ServiceAccount, if there is
    /// one.
    pub kubeconfig: Option<PathBuf>,
    /// The paths that anybody may read; exact, or a prefix that ends with `*`.
    pub always_allow_paths: Vec<String>,
    /// The time for which the decision to allow a request is cached.
    pub webhook_cache_authorized_ttl: Duration,
    /// The time for which the decision to deny a request is cached.
    pub webhook_cache_unauthorized_ttl: Duration,
}

/// Admission webhooks and their server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookConfig {
    /// Names, `*` and `-name`; no server is started if it is empty.
    pub enabled: Vec<String>,
    /// Their server.
    pub serving: ServingConfig,
}

/// The form of the version that `--version` requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum VersionRequest {
    /// Run normally.
    #[default]
    Off,
    /// Print name and version.
    Print,
    /// Print all details.
    Raw,
    /// Run, and report this version.
    Report(String),
}

impl fmt::Display for VersionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "false",
            Self::Print => "true",
            Self::Raw => "raw",
            Self::Report(version) => version,
        })
    }
}

/// A type with a few values from which a flag chooses.
pub(crate) trait FlagEnum {
    /// Sets the value that `text` names, or returns an error that lists the possible values.
    fn assign(&mut self, text: &str) -> Result<(), String>;
    /// Returns the name of the current value.
    fn text(&self) -> String;
}

macro_rules! setting {
    ($type:ty, $($name:literal => $value:path),+ $(,)?) => {
        impl FlagEnum for $type {
            fn assign(&mut self, text: &str) -> Result<(), String> {
                *self = match text {
                    $($name => $value,)+
                    _ => return Err(concat!("must be one of:" $(, " \"", $name, "\"")+).to_owned()),
                };
                Ok(())
            }

            fn text(&self) -> String {
                match self { $($value => $name,)+ }.to_owned()
            }
        }
    };
}

setting!(DeletionSafety, "strict" => DeletionSafety::Strict, "upstream" => DeletionSafety::Upstream);
setting!(
    ReportFormat,
    "none" => ReportFormat::None,
    "markdown" => ReportFormat::Markdown,
    "json" => ReportFormat::Json,
);
setting!(
    TlsVersion,
    "" => TlsVersion::Default,
    "VersionTLS10" => TlsVersion::Tls10,
    "VersionTLS11" => TlsVersion::Tls11,
    "VersionTLS12" => TlsVersion::Tls12,
    "VersionTLS13" => TlsVersion::Tls13,
);
setting!(
    crate::config::Format,
    "text" => crate::config::Format::Text,
    "json" => crate::config::Format::Json,
);
