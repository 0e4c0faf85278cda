//! The checked configuration of a cloud-controller-manager, in groups.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::client_feature_gates::ClientFeatureGates;
use super::controllers::ControllerSelection;
use super::feature_gates::FeatureGates;
use super::{NodeIpamOptions, logging::LoggingConfig};

/// Everything the command line says, checked. Nothing in it was opened, resolved or connected to.
///
/// Made by [`parse`](super::parse); the defaults are those of the flags (`docs/reference/flags.md`).
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The cloud and the cluster, and what runs.
    pub generic: GenericConfig,
    /// How to reach the API server.
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
    /// The search for cloud objects that nobody asks for.
    pub orphans: OrphansConfig,
    /// Comparing instead of working.
    pub shadow: ShadowConfig,
    /// The HTTPS server for health, metrics and configuration.
    pub serving: ServingConfig,
    /// How callers of that server are recognised.
    pub authentication: AuthenticationConfig,
    /// What callers of that server may do.
    pub authorization: AuthorizationConfig,
    /// Admission webhooks and their server.
    pub webhook: WebhookConfig,
    /// Logs.
    pub logging: LoggingConfig,
    /// Feature gates.
    pub feature_gates: FeatureGates,
    /// Feature gates of the API client.
    pub client_gates: ClientFeatureGates,
    /// The version to report where Kubernetes versions are reported, from `--version=vX.Y.Z`; the product's own if unset.
    pub reported_version: Option<String>,
    /// Values of the provider's own flags ([`Product::extra_flags`](super::Product::extra_flags)), by name.
    pub extra: BTreeMap<&'static str, String>,
    /// Values of the provider's own flags that may be given several times, by name, in order; without those not given.
    pub extra_lists: BTreeMap<&'static str, Vec<String>>,
    pub(super) warnings: Vec<String>,
    pub(super) flags: Vec<FlagValue>,
    pub(super) raw: RawFlags,
}

/// Values as typed on the command line, before they are checked against each other.
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
    /// The value in force, in the form the flag takes.
    pub value: String,
    /// Whether that differs from the default.
    pub changed: bool,
}

impl Config {
    /// What the operator should be told once at start: flags that are set but have no effect, or soon will have none.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Every flag with the value in force, by name. Values are file names and numbers, never secrets.
    pub fn flags(&self) -> &[FlagValue] {
        &self.flags
    }

    /// A configuration in which nothing is set yet, not even a default; only the parser may see one.
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
            service: ServiceConfig { concurrent_syncs: NonZeroUsize::MIN, verify_period: Duration::ZERO },
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
            extra: BTreeMap::new(),
            extra_lists: BTreeMap::new(),
            warnings: Vec::new(),
            flags: Vec::new(),
            raw: RawFlags::default(),
        }
    }
}

/// The search for cloud objects that nobody asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OrphansConfig {
    /// `--orphan-report-period`: time between two looks. Zero: none is made.
    pub report_period: Duration,
    /// `--collect-orphans`: whether orphans are deleted.
    pub collect: bool,
    /// `--orphan-minimum-age`: how old they have to be for that, by the cloud's time of creation, or else by how long this
    /// process has seen them.
    pub minimum_age: Duration,
}

/// Comparing instead of working.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShadowConfig {
    /// `--shadow`; whether nothing is changed is [`is_on`](Self::is_on).
    pub enabled: bool,
    /// Whether nothing is changed, and the process ends when everything was compared.
    pub once: bool,
    /// How long a difference must stand before it is shown.
    pub settle: Duration,
}

impl ShadowConfig {
    /// Tells whether nothing is changed.
    pub fn is_on(&self) -> bool {
        self.enabled || self.once
    }
}

/// The cloud, the cluster, and what runs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenericConfig {
    /// Name of the cloud provider, one of the product's.
    pub cloud_provider: String,
    /// The provider's configuration file.
    pub cloud_config: Option<PathBuf>,
    /// Name of the cluster, passed to load-balancer and route calls and written to cloud objects.
    pub cluster_name: String,
    /// Networks of the cluster's pods: at most two, and then one of each family.
    pub cluster_cidrs: Vec<IpNet>,
    /// Whether a cloud without a cluster tag is tolerated.
    pub allow_untagged_cloud: bool,
    /// Kept because manifests set it; a cloud-controller-manager runs no volume controller.
    pub external_cloud_volume_plugin: String,
    /// Kept because manifests set it; has had no effect for long.
    pub node_sync_period: Duration,
    /// Which controllers run.
    pub controllers: ControllerSelection,
    /// Pause between the starts of two controllers.
    pub controller_start_interval: Duration,
    /// Lower bound of the period after which every object is looked at again.
    pub min_resync_period: Duration,
    /// Whether each controller uses a ServiceAccount of its own.
    pub use_service_account_credentials: bool,
}

/// How to reach the API server.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KubeClientConfig {
    /// kubeconfig file; without it and without `master`, the pod's own service account is used.
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server; wins over the kubeconfig's. Empty if unset.
    pub master: String,
    /// Requests a second, sustained. Zero or less stands for no limit.
    pub qps: f32,
    /// Requests that may follow each other at once.
    pub burst: u32,
    /// Content type of requests.
    pub content_type: String,
}

/// Leader election.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaderElectionConfig {
    /// Whether to elect a leader; if not, the controllers start at once.
    pub enabled: bool,
    /// How long a lease lasts that is not renewed. Longer than `renew_deadline` when elections are on.
    pub lease_duration: Duration,
    /// How long a leader tries to renew before it gives up. Longer than 1.2 times `retry_period`.
    pub renew_deadline: Duration,
    /// Pause between two tries.
    pub retry_period: Duration,
    /// The kind of object that holds the lock.
    pub resource_lock: ResourceLock,
    /// Name of that object.
    pub resource_name: String,
    /// Namespace of that object.
    pub resource_namespace: String,
}

/// The kind of object that holds the leader's lock. Older kinds are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResourceLock {
    /// `coordination.k8s.io/v1` Lease.
    #[default]
    Leases,
}

/// Leader migration (KEP-2436).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaderMigrationConfig {
    /// Whether controllers may move to another controller manager while both run.
    pub enabled: bool,
    /// The file that says which; without it the built-in list holds.
    pub config_file: Option<PathBuf>,
}

/// Profiling.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DebuggingConfig {
    /// Whether profiles are served.
    pub profiling: bool,
    /// Whether those of lock contention are, too.
    pub contention_profiling: bool,
    /// `--tracing-config-file`: where traces go; read at the start ([`TracesConfig`](crate::telemetry::traces::TracesConfig)).
    pub tracing_config_file: Option<PathBuf>,
}

/// The cloud-node controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// Nodes initialised at the same time. `1` is upstream's default; the controller reads it as no wish of the operator.
    pub concurrent_syncs: NonZeroUsize,
    /// Node statuses updated at the same time; `--concurrent-node-syncs` where the flag is 0.
    pub concurrent_status_updates: NonZeroUsize,
    /// Period of the address update.
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
    /// Period of the check of nodes that are not ready.
    pub monitor_period: Duration,
    /// Nodes handled at the same time.
    pub concurrent_syncs: NonZeroUsize,
    /// How much proof the deletion of a Node needs.
    pub deletion_safety: DeletionSafety,
}

impl NodeLifecycleConfig {
    fn blank() -> Self {
        Self {
            monitor_period: Duration::ZERO,
            concurrent_syncs: NonZeroUsize::MIN,
            deletion_safety: DeletionSafety::Strict,
        }
    }
}

/// How much proof the deletion of a Node needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeletionSafety {
    /// Asked twice, with nodes that live as controls, and read again before the deletion.
    #[default]
    Strict,
    /// The Go framework's behaviour: one "not found" of the cloud deletes the Node.
    Upstream,
}

/// The route controller.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RouteConfig {
    /// Whether routes of pod networks are made in the cloud.
    pub configure_cloud_routes: bool,
    /// Period of the comparison with the cloud.
    pub reconciliation_period: Duration,
}

/// The service controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Services handled at the same time. `1` is upstream's default; the controller reads it as no wish of the operator.
    pub concurrent_syncs: NonZeroUsize,
    /// Period of the comparison of each load balancer with the cloud.
    pub verify_period: Duration,
}

/// The node-IPAM controller.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeIpamConfig {
    /// Whether pod networks are given to nodes.
    pub allocate_node_cidrs: bool,
    /// The way they are chosen.
    pub allocator_type: String,
    /// What is given out, and how; `None` when the controller is not started: unless it is named in `--controllers` and
    /// `allocate_node_cidrs` is set. Only then are its flags checked.
    pub pools: Option<NodeIpamOptions>,
}

/// A TLS server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingConfig {
    /// Address to listen on.
    pub bind_address: IpAddr,
    /// Port to listen on; `None` (port 0) stands for no server.
    pub port: Option<std::num::NonZeroU16>,
    /// Directory of a certificate that is made if it is not there; without it the certificate stays in memory.
    pub cert_dir: Option<PathBuf>,
    /// Certificate file, read again on change.
    pub tls_cert_file: Option<PathBuf>,
    /// Key file, read again on change.
    pub tls_private_key_file: Option<PathBuf>,
    /// Cipher suites by name; empty stands for the library's own.
    pub tls_cipher_suites: Vec<String>,
    /// Lowest TLS version.
    pub tls_min_version: TlsVersion,
    /// Key-exchange groups by their IANA numbers; empty stands for the library's own.
    pub tls_curve_preferences: Vec<i32>,
    /// Certificates for further server names.
    pub tls_sni_certificates: Vec<CertificatePair>,
    /// Whether HTTP/2 is off.
    pub disable_http2: bool,
    /// HTTP/2 streams of one connection; 0 stands for the library's own.
    pub http2_max_streams_per_connection: u32,
    /// Whether the port may be shared with other processes (`SO_REUSEPORT`).
    pub permit_port_sharing: bool,
    /// Whether an address in TIME_WAIT may be used (`SO_REUSEADDR`).
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

/// Lowest TLS version that a server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum TlsVersion {
    /// None given: TLS 1.2.
    #[default]
    Default,
    /// `VersionTLS10`. The TLS library has nothing below 1.2, so this accepts no more than [`TlsVersion::Tls12`].
    Tls10,
    /// `VersionTLS11`; as above.
    Tls11,
    /// `VersionTLS12`.
    Tls12,
    /// `VersionTLS13`.
    Tls13,
}

/// A certificate and its key, and the server names they are for (none: those in the certificate).
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
        if self.names.is_empty() { Ok(()) } else { write!(f, ":{}", self.names.join(",")) }
    }
}

/// How callers of the HTTPS server are recognised.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthenticationConfig {
    /// kubeconfig for TokenReviews; without it the pod's own service account, if there is one.
    pub kubeconfig: Option<PathBuf>,
    /// Whether the cluster's own client CAs are left alone.
    pub skip_lookup: bool,
    /// Whether a failure to read them is tolerated.
    pub tolerate_lookup_failure: bool,
    /// How long the answer of a TokenReview is kept.
    pub token_webhook_cache_ttl: Duration,
    /// CAs of client certificates.
    pub client_ca_file: Option<PathBuf>,
    /// CAs of proxies that name the user in headers.
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Common names such proxies may have; empty stands for any.
    pub requestheader_allowed_names: Vec<String>,
    /// Headers with the user's name.
    pub requestheader_username_headers: Vec<String>,
    /// Headers with the user's groups.
    pub requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with further facts about the user.
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// Headers with the user's UID.
    pub requestheader_uid_headers: Vec<String>,
}

/// What callers of the HTTPS server may do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthorizationConfig {
    /// kubeconfig for SubjectAccessReviews; without it the pod's own service account, if there is one.
    pub kubeconfig: Option<PathBuf>,
    /// Paths that anybody may read; exact, or a prefix with `*` at its end.
    pub always_allow_paths: Vec<String>,
    /// How long a yes is kept.
    pub webhook_cache_authorized_ttl: Duration,
    /// How long a no is kept.
    pub webhook_cache_unauthorized_ttl: Duration,
}

/// Admission webhooks and their server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookConfig {
    /// Names, `*` and `-name`; no server is started when it is empty.
    pub enabled: Vec<String>,
    /// Their server.
    pub serving: ServingConfig,
}

/// What `--version` asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum VersionRequest {
    /// Nothing.
    #[default]
    Off,
    /// Name and version, for people.
    Print,
    /// Every detail.
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

/// A type with a handful of values that a flag chooses from.
pub(crate) trait FlagEnum {
    /// Takes the value that `text` names, or says which there are.
    fn assign(&mut self, text: &str) -> Result<(), String>;
    /// The name of the present value.
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
