//! The fields of a Service that the controllers and providers read.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU16, sync::Arc, time::Duration};

use ipnet::IpNet;
use jiff::Timestamp;

use super::{ConditionStatus, well_known};

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
    /// True if `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `metadata.deletionTimestamp`: the time at which the deletion was requested.
    pub deletion_requested: Option<Timestamp>,
    /// All labels.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Annotations, as written: all except `kubectl.kubernetes.io/last-applied-configuration`, a
    /// copy of the object.
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
    /// `metadata.finalizers`.
    pub finalizers: Box<[Arc<str>]>,
    /// `spec.loadBalancerClass`.
    pub class: Option<Arc<str>>,
    /// True if `spec.type` is `LoadBalancer`.
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
    /// `metadata.generation`. The API server counts none for Services up to Kubernetes 1.37, so it
    /// is 0.
    pub generation: i64,
    /// The condition [`well_known::CONDITION_LOAD_BALANCER_READY`], if
    /// [`ServiceFields::own_condition`] is true and the Service has it.
    pub own_condition: Option<Box<OwnCondition>>,
}

/// Our own condition of a Service, as observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnCondition {
    /// Its position in `status.conditions`, by which a JSON Patch addresses it.
    pub index: usize,
    /// The status.
    pub status: ConditionStatus,
    /// The reason: the name of a cause, or that of the condition that is True.
    pub reason: Box<str>,
    /// `observedGeneration`.
    pub observed_generation: i64,
}

impl ServiceView {
    /// Creates a Service of type LoadBalancer that has a name, the API's defaults and no ports; a
    /// starting point for tests and examples.
    pub fn named(namespace: &str, name: &str) -> Self {
        Self {
            namespace: Arc::from(namespace),
            name: Arc::from(name),
            uid: Box::default(),
            resource_version: Box::default(),
            created: Timestamp::UNIX_EPOCH,
            deleting: false,
            deletion_requested: None,
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
            generation: 0,
            own_condition: None,
        }
    }

    /// Returns `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Returns the value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(|value| &**value)
    }

    /// Sets each annotation to its value, or removes it if it has none, as in
    /// [`LbOutcome::annotations`](crate::provider::LbOutcome::annotations).
    pub fn write_annotations(&mut self, values: &BTreeMap<Box<str>, Option<Box<str>>>) {
        for (key, value) in values {
            match value {
                Some(value) => self
                    .annotations
                    .insert(Arc::from(&**key), Arc::from(&**value)),
                None => self.annotations.remove(&**key),
            };
        }
    }

    /// Returns true if the Service has the load balancer finalizer.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers
            .iter()
            .any(|f| &**f == well_known::FINALIZER_LOAD_BALANCER)
    }
}

/// The configuration that determines which Services are cached with all fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceFields {
    /// The load balancer classes that the provider serves.
    pub classes: Vec<Box<str>>,
    /// Keep our own condition (`--service-conditions`).
    pub own_condition: bool,
}

impl ServiceFields {
    /// Returns true if this manager serves Services of type LoadBalancer with this class. It serves
    /// Services without a class and those with one of [`classes`](Self::classes). An empty string
    /// counts as a class.
    pub fn claims_class(&self, class: Option<&str>) -> bool {
        class.is_none_or(|class| self.classes.iter().any(|c| **c == *class))
    }

    /// Returns true if a Service should have a load balancer of ours. Such a Service has type
    /// LoadBalancer, no class or one that we serve, and is not being deleted.
    pub(crate) fn is_managed(&self, service: &ServiceView) -> bool {
        service.is_load_balancer && !service.deleting && self.claims_class(service.class.as_deref())
    }
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// The name, which is empty if the Service has one unnamed port.
    pub name: Arc<str>,
    /// The transport protocol. The API's default is TCP.
    pub protocol: Protocol,
    /// The port of the load balancer, to which clients connect.
    pub port: NonZeroU16,
    /// The node port, or `None` if the Service has none, as with
    /// `allocateLoadBalancerNodePorts: false`.
    pub node_port: Option<NonZeroU16>,
    /// `targetPort`, which is a number or a name, unchanged.
    pub target_port: Arc<str>,
    /// `appProtocol`.
    pub app_protocol: Option<Arc<str>>,
}

/// The transport protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Returns the name as in the API: `TCP`, `UDP` or `SCTP`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// The session affinity of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAffinity {
    /// Connections of a client may go to different backends.
    None,
    /// Connections from one client address go to the same backend. Contains the timeout, whose
    /// default in Kubernetes is three hours.
    ClientIp(Duration),
}

/// The external or internal traffic policy of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// Traffic goes to any endpoint of the cluster.
    Cluster,
    /// Traffic only goes to endpoints on the node that receives it.
    Local,
}

/// An IP address family.
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
    /// The entry points, in the provider's order.
    pub ingress: Vec<LbIngress>,
}

impl LbStatus {
    /// Creates the status of a load balancer with these addresses (`ipMode: VIP`).
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

/// An entry point of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LbIngress {
    /// The address, if the load balancer has fixed addresses.
    pub ip: Option<IpAddr>,
    /// The DNS name, if the load balancer has one.
    pub hostname: Option<Box<str>>,
    /// `ipMode`: `VIP` or `Proxy` (KEP-1860). The API server defaults it to `VIP` when `ip` is set.
    pub ip_mode: Option<Box<str>>,
    /// The statuses of single ports.
    pub ports: Vec<LbPortStatus>,
}

/// The status of one port of an entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LbPortStatus {
    /// The port of the Service.
    pub port: NonZeroU16,
    /// The transport protocol of the port.
    pub protocol: Protocol,
    /// The error of this port, as a word in CamelCase or as `domain/name`.
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
    /// The name of the slice's Service, from the label `kubernetes.io/service-name`. Slices without
    /// it are not cached.
    pub service: Arc<str>,
    /// The ports, in the order of the object.
    pub ports: Box<[SlicePort]>,
    /// The endpoints, in the order of the object. Empty if the slice contains DNS names
    /// (`addressType: FQDN`).
    pub endpoints: Box<[EndpointView]>,
}

impl EndpointSliceView {
    /// Creates an empty slice of a Service, as a starting point for tests.
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

/// A port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// The name, which is that of the Service's port.
    pub name: Arc<str>,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The port of the pods. `None` means all ports.
    pub port: Option<NonZeroU16>,
}

/// An endpoint of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointView {
    /// The addresses of the pod.
    pub addresses: Box<[IpAddr]>,
    /// The name of the node on which the pod runs.
    pub node: Option<Arc<str>>,
    /// The zone of that node.
    pub zone: Option<Arc<str>>,
    /// The condition `ready`, which is true if it is unset.
    pub ready: bool,
    /// The condition `serving`, which has the value of `ready` if it is unset.
    pub serving: bool,
    /// The condition `terminating`, which is false if it is unset.
    pub terminating: bool,
}
