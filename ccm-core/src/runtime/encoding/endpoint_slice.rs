//! Decodes EndpointSlices.

use std::sync::Arc;

use prost::Message;
use serde::Deserialize;

use crate::{
    k8s::{EndpointSliceView, EndpointView, Interner, SlicePort},
    runtime::encoding::{
        decode::{CachedObject, DecodeError, Decoder},
        proto::{ObjectMetaProto, nullable, text_of},
        service::{port, protocol},
    },
};

/// The label with the name of the Service that a slice belongs to.
const LABEL_SERVICE_NAME: &str = "kubernetes.io/service-name";

impl CachedObject for EndpointSliceView {
    const PATH: &'static str = "/apis/discovery.k8s.io/v1/endpointslices";
    const RESOURCE: &'static str = "endpointslices";
    type Fields = ();
    type Json = EndpointSliceWire;
    type Proto = EndpointSliceWire;

    fn from_json(json: EndpointSliceWire, decoder: &Decoder<Self>) -> Result<Self, DecodeError> {
        json.view(decoder)
    }

    fn from_proto(proto: EndpointSliceWire, decoder: &Decoder<Self>) -> Result<Self, DecodeError> {
        proto.view(decoder)
    }

    fn key(&self) -> Arc<str> {
        format!("{}/{}", self.namespace, self.name).into()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }

    /// A slice without the label of a Service holds no backends of any Service.
    fn is_relevant(&self) -> bool {
        !self.service.is_empty()
    }
}

/// `discovery/v1` EndpointSlice with only the fields that are read. The same type serves both
/// encodings.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSliceWire {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMetaProto>,
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    endpoints: Vec<EndpointWire>,
    #[prost(message, repeated, tag = "3")]
    #[serde(deserialize_with = "nullable")]
    ports: Vec<PortWire>,
    #[prost(string, tag = "4")]
    #[serde(deserialize_with = "nullable")]
    address_type: String,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EndpointWire {
    #[prost(string, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    addresses: Vec<String>,
    #[prost(message, optional, tag = "2")]
    conditions: Option<ConditionsWire>,
    #[prost(string, tag = "6")]
    #[serde(deserialize_with = "nullable")]
    node_name: String,
    #[prost(string, tag = "7")]
    #[serde(deserialize_with = "nullable")]
    zone: String,
}

#[derive(Clone, Copy, PartialEq, Message, Deserialize)]
#[serde(default)]
struct ConditionsWire {
    #[prost(bool, optional, tag = "1")]
    ready: Option<bool>,
    #[prost(bool, optional, tag = "2")]
    serving: Option<bool>,
    #[prost(bool, optional, tag = "3")]
    terminating: Option<bool>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default)]
struct PortWire {
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    name: String,
    #[prost(string, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    protocol: String,
    #[prost(int32, optional, tag = "3")]
    port: Option<i32>,
}

impl EndpointSliceWire {
    fn view(self, decoder: &Decoder<EndpointSliceView>) -> Result<EndpointSliceView, DecodeError> {
        let metadata = self.metadata.unwrap_or_default();
        let object = metadata.key::<EndpointSliceView>()?;
        let mut service = "";
        for entry in &metadata.labels {
            match text_of(entry) {
                Some((LABEL_SERVICE_NAME, value)) => service = value,
                Some(_) => {}
                None => {
                    let what =
                        crate::runtime::encoding::decode::named::<EndpointSliceView>(&object);
                    return Err(DecodeError::Field { what, field: "metadata.labels" });
                }
            }
        }
        let view = EndpointSliceView {
            uid: metadata.uid.as_str().into(),
            resource_version: metadata.resource_version.as_str().into(),
            ..EndpointSliceView::named(&metadata.namespace, &metadata.name, service)
        };
        if !view.is_relevant() {
            return Ok(view);
        }
        // FQDN slices have names instead of addresses, which no load balancer can use as backends.
        // The type is deprecated, so it is ignored without a log line.
        let is_names = self.address_type == "FQDN";
        let endpoints = if is_names { Vec::new() } else { self.endpoints };
        Ok(EndpointSliceView {
            namespace: decoder.interner.intern(&metadata.namespace),
            service: decoder.interner.intern(service),
            ports: self
                .ports
                .into_iter()
                .filter_map(|port| port.view(&object, decoder))
                .collect(),
            endpoints: endpoints
                .into_iter()
                .map(|endpoint| endpoint.view(&object, decoder))
                .collect(),
            ..view
        })
    }
}

impl PortWire {
    /// Converts a port. Ignores an invalid one: it must not become a port without a number, which
    /// stands for all ports.
    fn view(self, object: &str, decoder: &Decoder<EndpointSliceView>) -> Option<SlicePort> {
        let number = self.port.map(port);
        match (number, protocol(&self.protocol)) {
            (None | Some(Some(_)), Some(protocol)) => Some(SlicePort {
                name: decoder.interner.intern(&self.name),
                protocol,
                port: number.flatten(),
            }),
            _ => {
                decoder.log_unknown_field(
                    object,
                    "ports",
                    &format!("{}/{}", self.port.unwrap_or_default(), self.protocol),
                );
                None
            }
        }
    }
}

impl EndpointWire {
    fn view(self, object: &str, decoder: &Decoder<EndpointSliceView>) -> EndpointView {
        let conditions = self.conditions.unwrap_or_default();
        let ready = conditions.ready.unwrap_or(true);
        let mut addresses = Vec::with_capacity(self.addresses.len());
        for text in &self.addresses {
            match text.parse() {
                Ok(address) => addresses.push(address),
                Err(_) => decoder.log_unknown_field(object, "endpoints.addresses", text),
            }
        }
        EndpointView {
            addresses: addresses.into(),
            node: intern_non_empty(&decoder.interner, &self.node_name),
            zone: intern_non_empty(&decoder.interner, &self.zone),
            ready,
            serving: conditions.serving.unwrap_or(ready),
            terminating: conditions.terminating.unwrap_or_default(),
        }
    }
}

fn intern_non_empty(interner: &Interner, text: &str) -> Option<Arc<str>> {
    if text.is_empty() {
        None
    } else {
        Some(interner.intern(text))
    }
}
