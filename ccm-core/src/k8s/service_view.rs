//! What the controllers and providers read of a Service.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU16, sync::Arc, time::Duration};

use ipnet::IpNet;
use jiff::Timestamp;

use super::well_known;

/// The part of a Service that controllers and providers read.
///
/// The cache makes it from a watched object. The cache holds Services of type LoadBalancer, and
/// Services that have the load-balancer finalizer. For a Service of type LoadBalancer whose class
/// is [not claimed](ServiceFields::claims_class), only its identity, class, finalizers, type, and
/// times of creation and deletion are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.resourceVersion` of the observed object. Opaque.
    pub resource_version: Box<str>,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// All labels.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Annotations, as written: all except `kubectl.kubernetes.io/last-applied-configuration`, a
    /// copy of the object.
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
    /// `metadata.finalizers`.
    pub finalizers: Box<[Arc<str>]>,
    /// `spec.loadBalancerClass`.
    pub class: Option<Arc<str>>,
    /// Whether `spec.type` is `LoadBalancer`.
    pub is_load_balancer: bool,
    /// `spec.ports`.
    pub ports: Box<[ServicePort]>,
    /// `spec.loadBalancerIP` (deprecated upstream, still in use).
    pub load_balancer_ip: Option<Box<str>>,
    /// `spec.externalIPs`.
    pub external_ips: Box<[Box<str>]>,
    /// `spec.sessionAffinity` with its timeout.
    pub session_affinity: SessionAffinity,
    /// `spec.externalTrafficPolicy`.
    pub external_traffic_policy: TrafficPolicy,
    /// `spec.internalTrafficPolicy`.
    pub internal_traffic_policy: TrafficPolicy,
    /// `spec.healthCheckNodePort`; `None` when 0.
    pub health_check_node_port: Option<NonZeroU16>,
    /// `spec.allocateLoadBalancerNodePorts`; `true` when unset.
    pub allocate_node_ports: bool,
    /// `spec.ipFamilies`, primary first.
    pub ip_families: Box<[IpFamily]>,
    /// `spec.ipFamilyPolicy`, as written.
    pub ip_family_policy: Option<Arc<str>>,
    /// `spec.loadBalancerSourceRanges`, as written; the annotation is among `annotations`.
    pub source_ranges: Box<[Box<str>]>,
    /// `status.loadBalancer`.
    pub status: LbStatus,
}

impl ServiceView {
    /// Makes a Service of type LoadBalancer that has a name, the API's defaults and no ports; a
    /// starting point for tests and examples.
    pub fn named(namespace: &str, name: &str) -> Self {
        Self {
            namespace: Arc::from(namespace),
            name: Arc::from(name),
            uid: Box::default(),
            resource_version: Box::default(),
            created: Timestamp::UNIX_EPOCH,
            deleting: false,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            finalizers: Box::default(),
            class: None,
            is_load_balancer: true,
            ports: Box::default(),
            load_balancer_ip: None,
            external_ips: Box::default(),
            session_affinity: SessionAffinity::None,
            external_traffic_policy: TrafficPolicy::Cluster,
            internal_traffic_policy: TrafficPolicy::Cluster,
            health_check_node_port: None,
            allocate_node_ports: true,
            ip_families: Box::default(),
            ip_family_policy: None,
            source_ranges: Box::default(),
            status: LbStatus::default(),
        }
    }

    /// Returns `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Tells whether the Service has the load-balancer finalizer.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers
            .iter()
            .any(|f| &**f == well_known::FINALIZER_LOAD_BALANCER)
    }
}

/// Decides which Services are cached with all fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFields {
    /// The load-balancer classes that the configuration claims.
    pub classes: Vec<Box<str>>,
}

impl ServiceFields {
    /// Tells whether this manager claims Services of type LoadBalancer with this class: those
    /// without a class, and those with a class that the configuration claims. An empty string
    /// counts as a class.
    pub fn claims_class(&self, class: Option<&str>) -> bool {
        class.is_none_or(|class| self.classes.iter().any(|c| **c == *class))
    }

    /// Tells whether a Service should have a load balancer of ours: it has type LoadBalancer and a
    /// claimed class (or none), and is not being deleted.
    pub(crate) fn is_managed(&self, service: &ServiceView) -> bool {
        service.is_load_balancer && !service.deleting && self.claims_class(service.class.as_deref())
    }
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Name; empty when the Service has one unnamed port.
    pub name: Arc<str>,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port of the load balancer.
    pub port: NonZeroU16,
    /// Node port; `None` when 0, as with `allocateLoadBalancerNodePorts: false`.
    pub node_port: Option<NonZeroU16>,
    /// `targetPort`, a number or a name, as written.
    pub target_port: Arc<str>,
    /// `appProtocol`.
    pub app_protocol: Option<Arc<str>>,
}

/// Transport protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// Session affinity of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAffinity {
    /// No affinity.
    None,
    /// By client address, with this timeout (Kubernetes' default is three hours).
    ClientIp(Duration),
}

/// External or internal traffic policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// To any endpoint of the cluster.
    Cluster,
    /// Only to endpoints on the node that receives the traffic.
    Local,
}

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Returns the family of a network.
    pub fn of(net: &IpNet) -> Self {
        match net {
            IpNet::V4(_) => Self::V4,
            IpNet::V6(_) => Self::V6,
        }
    }
}

/// `status.loadBalancer` of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LbStatus {
    /// Entry points, in the provider's order.
    pub ingress: Vec<LbIngress>,
}

impl LbStatus {
    /// Makes the status of a load balancer with these addresses (`ipMode: VIP`).
    pub fn of_addresses(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let ingress = addresses
            .into_iter()
            .map(|ip| LbIngress {
                ip: Some(ip),
                ip_mode: Some("VIP".into()),
                ..LbIngress::default()
            })
            .collect();
        Self { ingress }
    }
}

/// One entry point of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LbIngress {
    /// Address, for load balancers that have fixed ones.
    pub ip: Option<IpAddr>,
    /// DNS name, for load balancers that have one.
    pub hostname: Option<Box<str>>,
    /// `ipMode`: `VIP` or `Proxy` (KEP-1860). The API server defaults it to `VIP` when `ip` is set.
    pub ip_mode: Option<Box<str>>,
    /// Status of single ports.
    pub ports: Vec<LbPortStatus>,
}

/// Status of one port of an entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LbPortStatus {
    /// Port.
    pub port: NonZeroU16,
    /// Protocol.
    pub protocol: Protocol,
    /// Error of this port: a word in CamelCase, or `domain/name`.
    pub error: Option<Box<str>>,
}

/// The part of an EndpointSlice that a provider with endpoint backends reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSliceView {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.resourceVersion` of the observed object. Opaque.
    pub resource_version: Box<str>,
    /// Name of the Service that the slice belongs to: label `kubernetes.io/service-name`. Slices
    /// without it are not cached.
    pub service: Arc<str>,
    /// Ports, in order.
    pub ports: Box<[SlicePort]>,
    /// Endpoints, in order. Empty when the slice holds DNS names (`addressType: FQDN`).
    pub endpoints: Box<[EndpointView]>,
}

impl EndpointSliceView {
    /// Makes an empty slice of a Service; a starting point for tests.
    pub fn named(namespace: &str, name: &str, service: &str) -> Self {
        Self {
            namespace: Arc::from(namespace),
            name: Arc::from(name),
            uid: Box::default(),
            resource_version: Box::default(),
            service: Arc::from(service),
            ports: Box::default(),
            endpoints: Box::default(),
        }
    }
}

/// One port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Name; equals the Service port's name.
    pub name: Arc<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// Port of the pods; `None` means all ports.
    pub port: Option<NonZeroU16>,
}

/// One endpoint of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointView {
    /// Addresses of the pod.
    pub addresses: Box<[IpAddr]>,
    /// Node that the pod runs on.
    pub node: Option<Arc<str>>,
    /// Zone of that node.
    pub zone: Option<Arc<str>>,
    /// Condition `ready`; true when unset.
    pub ready: bool,
    /// Condition `serving`; the value of `ready` when unset.
    pub serving: bool,
    /// Condition `terminating`.
    pub terminating: bool,
}
