//! Decodes Services.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU16, sync::Arc, time::Duration};

use prost::Message;
use serde::Deserialize;

use crate::{
    k8s::{
        ConditionStatus, IpFamily, LbIngress, LbPortStatus, LbStatus, OwnCondition, Protocol,
        ServiceFields, ServicePort, ServiceView, SessionAffinity, TrafficPolicy, well_known,
    },
    runtime::encoding::{
        decode::{CachedObject, DecodeError, Decoder},
        proto::{IntOrStringProto, ObjectMetaProto, nullable, text_of},
    },
};

/// An annotation of kubectl, which holds a second copy of the whole object. It is not read here.
const ANNOTATION_LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The API's default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
const AFFINITY_TIMEOUT: Duration = Duration::from_secs(10_800);

impl CachedObject for ServiceView {
    const PATH: &'static str = "/api/v1/services";
    const RESOURCE: &'static str = "services";
    type Fields = ServiceFields;
    type Json = ServiceWire;
    type Proto = ServiceWire;

    fn from_json(json: ServiceWire, decoder: &Decoder<Self>) -> Result<Self, DecodeError> {
        json.view(decoder)
    }

    fn from_proto(proto: ServiceWire, decoder: &Decoder<Self>) -> Result<Self, DecodeError> {
        proto.view(decoder)
    }

    fn key(&self) -> Arc<str> {
        self.key().into()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }

    fn is_relevant(&self) -> bool {
        // One that is neither may still have our condition, which is then to be removed.
        self.is_load_balancer || self.has_finalizer() || self.own_condition.is_some()
    }
}

/// `core/v1` Service with only the fields that are read. The same type serves both encodings, so
/// that they cannot differ.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
pub struct ServiceWire {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMetaProto>,
    #[prost(message, optional, tag = "2")]
    spec: Option<SpecWire>,
    #[prost(message, optional, tag = "3")]
    status: Option<StatusWire>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SpecWire {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    ports: Vec<PortWire>,
    #[prost(string, tag = "4")]
    #[serde(deserialize_with = "nullable")]
    r#type: String,
    #[prost(string, repeated, tag = "5")]
    #[serde(rename = "externalIPs", deserialize_with = "nullable")]
    external_ips: Vec<String>,
    #[prost(string, tag = "7")]
    #[serde(deserialize_with = "nullable")]
    session_affinity: String,
    #[prost(string, tag = "8")]
    #[serde(rename = "loadBalancerIP", deserialize_with = "nullable")]
    load_balancer_ip: String,
    #[prost(string, repeated, tag = "9")]
    #[serde(deserialize_with = "nullable")]
    load_balancer_source_ranges: Vec<String>,
    #[prost(string, tag = "11")]
    #[serde(deserialize_with = "nullable")]
    external_traffic_policy: String,
    #[prost(int32, tag = "12")]
    #[serde(deserialize_with = "nullable")]
    health_check_node_port: i32,
    #[prost(message, optional, tag = "14")]
    session_affinity_config: Option<SessionAffinityConfigWire>,
    #[prost(string, tag = "17")]
    #[serde(deserialize_with = "nullable")]
    ip_family_policy: String,
    #[prost(string, repeated, tag = "19")]
    #[serde(deserialize_with = "nullable")]
    ip_families: Vec<String>,
    #[prost(bool, optional, tag = "20")]
    allocate_load_balancer_node_ports: Option<bool>,
    #[prost(string, optional, tag = "21")]
    load_balancer_class: Option<String>,
    #[prost(string, tag = "22")]
    #[serde(deserialize_with = "nullable")]
    internal_traffic_policy: String,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PortWire {
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    name: String,
    #[prost(string, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    protocol: String,
    #[prost(int32, tag = "3")]
    #[serde(deserialize_with = "nullable")]
    port: i32,
    #[prost(message, optional, tag = "4")]
    target_port: Option<IntOrStringProto>,
    #[prost(int32, tag = "5")]
    #[serde(deserialize_with = "nullable")]
    node_port: i32,
    #[prost(string, tag = "6")]
    #[serde(deserialize_with = "nullable")]
    app_protocol: String,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
struct SessionAffinityConfigWire {
    #[prost(message, optional, tag = "1")]
    #[serde(rename = "clientIP")]
    client_ip: Option<ClientIpWire>,
}

#[derive(Clone, Copy, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClientIpWire {
    #[prost(int32, optional, tag = "1")]
    timeout_seconds: Option<i32>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StatusWire {
    #[prost(message, optional, tag = "1")]
    load_balancer: Option<LoadBalancerStatusWire>,
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<ConditionWire>,
}

/// `meta/v1` Condition.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ConditionWire {
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    r#type: String,
    #[prost(string, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    status: String,
    #[prost(int64, tag = "3")]
    #[serde(deserialize_with = "nullable")]
    observed_generation: i64,
    #[prost(string, tag = "5")]
    #[serde(deserialize_with = "nullable")]
    reason: String,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
struct LoadBalancerStatusWire {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    ingress: Vec<IngressWire>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct IngressWire {
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    ip: String,
    #[prost(string, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    hostname: String,
    #[prost(string, tag = "3")]
    #[serde(deserialize_with = "nullable")]
    ip_mode: String,
    #[prost(message, repeated, tag = "4")]
    #[serde(deserialize_with = "nullable")]
    ports: Vec<PortStatusWire>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
struct PortStatusWire {
    #[prost(int32, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    port: i32,
    #[prost(string, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    protocol: String,
    #[prost(string, tag = "3")]
    #[serde(deserialize_with = "nullable")]
    error: String,
}

impl ServiceWire {
    fn view(self, decoder: &Decoder<ServiceView>) -> Result<ServiceView, DecodeError> {
        let metadata = self.metadata.unwrap_or_default();
        let spec = self.spec.unwrap_or_default();
        let reader = ServiceReader { object: metadata.key::<ServiceView>()?, decoder };
        let status = self.status.unwrap_or_default();
        let identity = reader.identity(&metadata, &spec)?;
        let own_condition = decoder
            .fields
            .own_condition
            .then(|| own_condition(&status.conditions))
            .flatten();
        let view = ServiceView { own_condition, ..identity };
        if !view.is_relevant()
            || view.is_load_balancer && !decoder.fields.claims_class(view.class.as_deref())
        {
            return Ok(view);
        }
        let (labels, annotations) = reader.maps(&metadata)?;
        let view = ServiceView { labels, annotations, generation: metadata.generation, ..view };
        reader.complete(view, spec, status.load_balancer.unwrap_or_default())
    }
}

/// Converts the parts of one Service.
struct ServiceReader<'a> {
    /// `namespace/name`.
    object: String,
    decoder: &'a Decoder<ServiceView>,
}

type Map = BTreeMap<Arc<str>, Arc<str>>;

impl ServiceReader<'_> {
    /// Converts the fields that every Service keeps. Strings of a Service that is not relevant are
    /// not interned, because the table would keep them.
    fn identity(
        &self,
        metadata: &ObjectMetaProto,
        spec: &SpecWire,
    ) -> Result<ServiceView, DecodeError> {
        let is_load_balancer = spec.r#type == "LoadBalancer";
        let kept = is_load_balancer
            || metadata
                .finalizers
                .iter()
                .any(|f| f == well_known::FINALIZER_LOAD_BALANCER);
        let share = |text: &str| {
            if kept {
                self.decoder.interner.intern(text)
            } else {
                Arc::from(text)
            }
        };
        Ok(ServiceView {
            namespace: share(&metadata.namespace),
            uid: metadata.uid.as_str().into(),
            resource_version: metadata.resource_version.as_str().into(),
            created: metadata
                .created()
                .map_err(|()| self.invalid("creationTimestamp"))?,
            deleting: metadata.deleting(),
            deletion_requested: metadata.deletion_requested(),
            finalizers: metadata.finalizers.iter().map(|f| share(f)).collect(),
            class: spec.load_balancer_class.as_deref().map(share),
            is_load_balancer,
            ..ServiceView::named("", &metadata.name)
        })
    }

    /// Converts labels and annotations. Values of annotations are not interned, because they differ
    /// from Service to Service.
    fn maps(&self, metadata: &ObjectMetaProto) -> Result<(Map, Map), DecodeError> {
        let interner = &self.decoder.interner;
        let mut labels = Map::new();
        let mut annotations = Map::new();
        for entry in &metadata.labels {
            let (key, value) = text_of(entry).ok_or_else(|| self.invalid("metadata.labels"))?;
            labels.insert(interner.intern(key), interner.intern(value));
        }
        for entry in &metadata.annotations {
            let (key, value) =
                text_of(entry).ok_or_else(|| self.invalid("metadata.annotations"))?;
            if key != ANNOTATION_LAST_APPLIED {
                annotations.insert(interner.intern(key), Arc::from(value));
            }
        }
        Ok((labels, annotations))
    }

    /// Converts all other fields.
    fn complete(
        &self,
        view: ServiceView,
        spec: SpecWire,
        status: LoadBalancerStatusWire,
    ) -> Result<ServiceView, DecodeError> {
        let interner = &self.decoder.interner;
        let mut view = ServiceView {
            load_balancer_ip: non_empty(spec.load_balancer_ip),
            external_ips: boxed_texts(spec.external_ips),
            session_affinity: self
                .session_affinity(&spec.session_affinity, spec.session_affinity_config),
            internal_traffic_policy: self.internal_traffic_policy(&spec.internal_traffic_policy),
            allocate_node_ports: spec.allocate_load_balancer_node_ports.unwrap_or(true),
            ip_families: spec
                .ip_families
                .iter()
                .filter_map(|f| self.ip_family(f))
                .collect(),
            ip_family_policy: Some(spec.ip_family_policy)
                .filter(|p| !p.is_empty())
                .map(|p| interner.intern(&p)),
            source_ranges: boxed_texts(spec.load_balancer_source_ranges),
            status: LbStatus {
                ingress: status
                    .ingress
                    .into_iter()
                    .map(|i| self.ingress(i))
                    .collect(),
            },
            ..view
        };
        // A Service that is served must be understood completely. One that is being cleaned up must
        // never be blocked by a value that this version does not know.
        let is_served = view.is_load_balancer && !view.deleting;
        let reject_if_served = |error: DecodeError| if is_served { Err(error) } else { Ok(()) };
        let mut ports = Vec::with_capacity(spec.ports.len());
        for port in spec.ports {
            match self.port(port) {
                Ok(port) => ports.push(port),
                Err(error) => reject_if_served(error)?,
            }
        }
        view.ports = ports.into();
        match self.optional_port("spec.healthCheckNodePort", spec.health_check_node_port) {
            Ok(port) => view.health_check_node_port = port,
            Err(error) => reject_if_served(error)?,
        }
        match spec.external_traffic_policy.as_str() {
            "" | "Cluster" => {}
            "Local" => view.external_traffic_policy = TrafficPolicy::Local,
            other => reject_if_served(self.unusable("spec.externalTrafficPolicy", other))?,
        }
        Ok(view)
    }

    fn port(&self, wire: PortWire) -> Result<ServicePort, DecodeError> {
        let interner = &self.decoder.interner;
        let port = port(wire.port)
            .ok_or_else(|| self.unusable("spec.ports.port", wire.port.to_string()))?;
        let target_port = wire
            .target_port
            .and_then(IntOrStringProto::into_text)
            .unwrap_or_else(|| port.to_string());
        Ok(ServicePort {
            name: interner.intern(&wire.name),
            protocol: protocol(&wire.protocol)
                .ok_or_else(|| self.unusable("spec.ports.protocol", wire.protocol.as_str()))?,
            port,
            node_port: self.optional_port("spec.ports.nodePort", wire.node_port)?,
            target_port: interner.intern(&target_port),
            app_protocol: Some(wire.app_protocol)
                .filter(|p| !p.is_empty())
                .map(|p| interner.intern(&p)),
        })
    }

    fn optional_port(
        &self,
        field: &'static str,
        number: i32,
    ) -> Result<Option<NonZeroU16>, DecodeError> {
        match (number, port(number)) {
            (0, _) => Ok(None),
            (_, Some(port)) => Ok(Some(port)),
            _ => Err(self.unusable(field, number.to_string())),
        }
    }

    fn session_affinity(
        &self,
        kind: &str,
        config: Option<SessionAffinityConfigWire>,
    ) -> SessionAffinity {
        match kind {
            "" | "None" => return SessionAffinity::None,
            "ClientIP" => {}
            other => {
                self.report("spec.sessionAffinity", other);
                return SessionAffinity::None;
            }
        }
        let seconds = config
            .and_then(|c| c.client_ip)
            .and_then(|c| c.timeout_seconds);
        let timeout = match seconds.map(u64::try_from) {
            Some(Ok(seconds @ 1..)) => Duration::from_secs(seconds),
            _ => AFFINITY_TIMEOUT,
        };
        SessionAffinity::ClientIp(timeout)
    }

    fn internal_traffic_policy(&self, text: &str) -> TrafficPolicy {
        match text {
            "Local" => return TrafficPolicy::Local,
            "" | "Cluster" => {}
            other => self.report("spec.internalTrafficPolicy", other),
        }
        TrafficPolicy::Cluster
    }

    fn ip_family(&self, text: &str) -> Option<IpFamily> {
        match text {
            "IPv4" => Some(IpFamily::V4),
            "IPv6" => Some(IpFamily::V6),
            other => {
                self.report("spec.ipFamilies", other);
                None
            }
        }
    }

    /// Converts one ingress entry. An entry with an invalid address is kept without it, because the
    /// entry must be cleared later.
    fn ingress(&self, wire: IngressWire) -> LbIngress {
        let ip = wire.ip.parse::<IpAddr>().ok();
        if ip.is_none() && !wire.ip.is_empty() {
            self.report("status.loadBalancer.ingress.ip", &wire.ip);
        }
        let ports = wire.ports.into_iter().filter_map(|status| {
            let Some((port, protocol)) = port(status.port).zip(protocol(&status.protocol)) else {
                let value = format!("{}/{}", status.port, status.protocol);
                self.report("status.loadBalancer.ingress.ports", &value);
                return None;
            };
            Some(LbPortStatus { port, protocol, error: non_empty(status.error) })
        });
        let ports = ports.collect();
        LbIngress {
            ip,
            hostname: non_empty(wire.hostname),
            ip_mode: non_empty(wire.ip_mode),
            ports,
        }
    }

    fn report(&self, field: &'static str, value: &str) {
        self.decoder.log_unknown_field(&self.object, field, value);
    }

    fn invalid(&self, field: &'static str) -> DecodeError {
        DecodeError::Field {
            what: crate::runtime::encoding::decode::named::<ServiceView>(&self.object),
            field,
        }
    }

    fn unusable(&self, field: &'static str, value: impl Into<String>) -> DecodeError {
        DecodeError::Value {
            what: crate::runtime::encoding::decode::named::<ServiceView>(&self.object),
            field,
            value: value.into(),
        }
    }
}

fn own_condition(conditions: &[ConditionWire]) -> Option<Box<OwnCondition>> {
    let index = conditions
        .iter()
        .position(|condition| condition.r#type == well_known::CONDITION_LOAD_BALANCER_READY)?;
    let condition = conditions.get(index)?;
    Some(Box::new(OwnCondition {
        index,
        status: ConditionStatus::from(condition.status.as_str()),
        reason: condition.reason.as_str().into(),
        observed_generation: condition.observed_generation,
    }))
}

fn boxed_texts(texts: Vec<String>) -> Box<[Box<str>]> {
    texts.into_iter().map(String::into_boxed_str).collect()
}

fn non_empty(text: String) -> Option<Box<str>> {
    (!text.is_empty()).then(|| text.into_boxed_str())
}

/// Converts a port number. `None` if it is not from 1 to 65535.
pub(crate) fn port(number: i32) -> Option<NonZeroU16> {
    u16::try_from(number).ok().and_then(NonZeroU16::new)
}

/// Converts a protocol. TCP if it is empty, as in the API.
pub(crate) fn protocol(text: &str) -> Option<Protocol> {
    match text {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}
