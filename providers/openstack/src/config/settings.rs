//! The settings of the provider, complete and checked.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use ipnet::IpNet;
use openstack_api::Secret;
use url::Url;

use super::{ConfigIssue, Rate};

/// The configuration of the provider, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Credentials and endpoints of the cloud: `[Global]`.
    pub cloud: Cloud,
    /// `[Networking]`.
    pub networking: Networking,
    /// `[Route]`: the router; `None` means no routes.
    pub router: Option<Box<str>>,
    /// `[LoadBalancer]`; `None` when `enabled=false`.
    pub load_balancer: Option<LoadBalancer>,
    /// `[Requests]`: rate limits.
    pub limits: Limits,
    /// True when provider IDs name the region (`OS_CCM_REGIONAL=true`).
    pub regional_ids: bool,
    /// Files that were read: when one of them changes, the credentials may have changed.
    pub sources: Vec<PathBuf>,
    /// Settings without effect and other oddities, which are logged once.
    pub warnings: Vec<ConfigIssue>,
}

impl Settings {
    /// Creates settings for a cloud, with every default.
    pub fn new(cloud: Cloud) -> Self {
        Self {
            cloud,
            networking: Networking::default(),
            router: None,
            load_balancer: Some(LoadBalancer::default()),
            limits: Limits::default(),
            regional_ids: false,
            sources: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

/// Settings as they are shared.
pub type SharedSettings = Arc<Settings>;

/// Credentials and endpoints of the cloud.
#[derive(Clone, Debug, PartialEq)]
pub struct Cloud {
    /// Credentials.
    pub auth: Auth,
    /// Region of the endpoints, of labels and of provider IDs; empty when none is set.
    pub region: Box<str>,
    /// Type of the endpoints in the catalog. Default public.
    pub interface: Interface,
    /// TLS.
    pub tls: Tls,
    /// Timeout of one request including its answer. Default 60 s.
    pub request_timeout: Duration,
}

impl Cloud {
    /// Creates a cloud with every default.
    pub fn new(auth: Auth) -> Self {
        Self {
            auth,
            region: "".into(),
            interface: Interface::Public,
            tls: Tls::default(),
            request_timeout: Duration::from_secs(60),
        }
    }
}

/// Input of a token request to Keystone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// Keystone's URL as configured, with or without a version.
    pub url: Url,
    /// Credentials.
    pub identity: Identity,
    /// Scope of the token.
    pub scope: Scope,
}

/// Credentials of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// User and password.
    Password {
        /// The user.
        user: User,
        /// The password.
        password: Secret,
    },
    /// An application credential by its ID.
    Credential {
        /// Its ID.
        id: Box<str>,
        /// Its secret.
        secret: Secret,
    },
    /// An application credential by its name.
    NamedCredential {
        /// Its name.
        name: Box<str>,
        /// Its user.
        user: User,
        /// Its secret.
        secret: Secret,
    },
    /// A token, exchanged for another one.
    Token(Secret),
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// By ID.
    Id(Box<str>),
    /// By name in a domain.
    Name {
        /// The name.
        name: Box<str>,
        /// Its domain.
        domain: Domain,
    },
}

/// A domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Domain {
    /// By ID.
    Id(Box<str>),
    /// By name.
    Name(Box<str>),
}

/// Scope of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Chosen by Keystone: the user's default project, or that of the application credential.
    Default,
    /// A project by ID.
    Project(Box<str>),
    /// A project by name.
    ProjectName {
        /// The name.
        name: Box<str>,
        /// Its domain.
        domain: Domain,
    },
    /// A domain.
    Domain(Domain),
    /// What a trust grants.
    Trust(Box<str>),
}

/// Type of endpoints in the catalog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interface {
    /// `public`.
    #[default]
    Public,
    /// `internal`.
    Internal,
    /// `admin`.
    Admin,
}

impl Interface {
    /// Returns the spelling in the catalog.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Internal => "internal",
            Self::Admin => "admin",
        }
    }
}

/// TLS: files are read again when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// `ca-file`: CA bundle that replaces the system's.
    pub ca_file: Option<PathBuf>,
    /// `cert-file` and `key-file`.
    pub client: Option<ClientPair>,
    /// `tls-insecure`: certificates of servers are not verified.
    pub insecure: bool,
}

/// Files of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPair {
    /// The chain.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Addresses of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networking {
    /// `ipv6-support-disabled`: no IPv6 addresses.
    pub ipv6_disabled: bool,
    /// `public-network-name`: networks whose addresses are external.
    pub public_networks: Vec<Box<str>>,
    /// `internal-network-name`: if any are set, only these networks provide internal addresses.
    pub internal_networks: Vec<Box<str>>,
    /// `address-sort-order`: networks, the preferred ones first.
    pub sort_order: Vec<IpNet>,
}

/// Load balancers.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a set of independent switches, each a key of the file"
)]
pub struct LoadBalancer {
    /// `lb-provider`. Default `amphora`.
    pub provider: Box<str>,
    /// `lb-method`. Default `ROUND_ROBIN`.
    pub method: Box<str>,
    /// Networks and subnets: `floating-network-id`, `network-id`, `subnet-id` and the like.
    pub network: LbNetwork,
    /// `create-monitor`. Default false.
    pub create_monitor: bool,
    /// `monitor-delay`, whole seconds. Default 5 s.
    pub monitor_delay: Duration,
    /// `monitor-timeout`, whole seconds. Default 3 s.
    pub monitor_timeout: Duration,
    /// `monitor-max-retries`. Default 1.
    pub monitor_max_retries: u32,
    /// `monitor-max-retries-down`. Default 3.
    pub monitor_max_retries_down: u32,
    /// `manage-security-groups`. Default false.
    pub manage_security_groups: bool,
    /// `internal-lb`. Default false.
    pub internal: bool,
    /// `node-selector`: labels that nodes of every Service must have; an empty value matches any.
    pub node_selector: BTreeMap<Box<str>, Box<str>>,
    /// `cascade-delete`. Default true.
    pub cascade_delete: bool,
    /// `flavor-id`.
    pub flavor: Option<Box<str>>,
    /// `availability-zone`.
    pub availability_zone: Option<Box<str>>,
    /// `enable-ingress-hostname`. Default false.
    pub ingress_hostname: bool,
    /// `ingress-hostname-suffix`. Default `nip.io`.
    pub ingress_hostname_suffix: Box<str>,
    /// `max-shared-lb`. Default 2.
    pub max_shared: u32,
    /// `default-tls-container-ref`.
    pub tls_container: Option<Box<str>>,
    /// `container-store`. Default Barbican.
    pub container_store: ContainerStore,
    /// `provider-requires-serial-api-calls`. Default false.
    pub serial_calls: bool,
    /// `allow-unenforced-source-ranges`. Default false.
    pub allow_unenforced_source_ranges: bool,
    /// `failover-on-error`. Default false.
    pub failover_on_error: bool,
    /// How often a load balancer that is not ready is polled before a warning is emitted:
    /// `OCCM_WAIT_LB_ACTIVE_STEPS`. Default 23; the delays grow from 1 s by a fifth each.
    pub wait_steps: u32,
    /// `[LoadBalancerClass "name"]`, with the values of `default-LoadBalancerClass` where it has
    /// none of its own.
    pub classes: BTreeMap<Box<str>, LbNetwork>,
}

impl Default for LoadBalancer {
    fn default() -> Self {
        Self {
            provider: "amphora".into(),
            method: "ROUND_ROBIN".into(),
            network: LbNetwork::default(),
            create_monitor: false,
            monitor_delay: Duration::from_secs(5),
            monitor_timeout: Duration::from_secs(3),
            monitor_max_retries: 1,
            monitor_max_retries_down: 3,
            manage_security_groups: false,
            internal: false,
            node_selector: BTreeMap::new(),
            cascade_delete: true,
            flavor: None,
            availability_zone: None,
            ingress_hostname: false,
            ingress_hostname_suffix: "nip.io".into(),
            max_shared: 2,
            tls_container: None,
            container_store: ContainerStore::Barbican,
            serial_calls: false,
            allow_unenforced_source_ranges: false,
            failover_on_error: false,
            wait_steps: 23,
            classes: BTreeMap::new(),
        }
    }
}

/// Networks and subnets of load balancers. `None` means that the key is absent or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LbNetwork {
    /// `floating-network-id`: external network; without it, one is searched for.
    pub floating_network: Option<Box<str>>,
    /// `floating-subnet-id`.
    pub floating_subnet_id: Option<Box<str>>,
    /// `floating-subnet`: pattern for names.
    pub floating_subnet: Option<Box<str>>,
    /// `floating-subnet-tags`.
    pub floating_subnet_tags: Option<Box<str>>,
    /// `network-id`.
    pub network: Option<Box<str>>,
    /// `subnet-id`.
    pub subnet: Option<Box<str>>,
    /// `member-subnet-id`.
    pub member_subnet: Option<Box<str>>,
}

/// Store of the listeners' certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerStore {
    /// `barbican`: references are checked there.
    Barbican,
    /// `external`: references are passed on as they are.
    External,
    /// Anything else, passed on as it is, with a warning.
    Other(Box<str>),
}

/// Rate limits of requests, shared by the whole process.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Reads of each service. Default 50/s, burst 200.
    pub read: Rate,
    /// Changes of each service. Default 20/s, burst 400.
    pub write: Rate,
    /// Maximum number of requests in flight. Default 32.
    pub in_flight: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            read: Rate { per_second: 50.0, burst: 200 },
            write: Rate { per_second: 20.0, burst: 400 },
            in_flight: 32,
        }
    }
}
