//! Decodes Nodes.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;

use crate::{
    k8s::{
        AddressType, ConditionStatus, Interner, LabelMap, MachineId, NodeAddress, NodeCondition,
        NodeFields, NodeView, Taint, TaintEffect, well_known,
    },
    runtime::encoding::{
        decode::{CachedObject, DecodeError, Decoder},
        proto::{EntryProto, NodeProto, ObjectMetaProto, TaintProto},
    },
};

impl CachedObject for NodeView {
    const PATH: &'static str = "/api/v1/nodes";
    const RESOURCE: &'static str = "nodes";
    type Fields = NodeFields;
    type Json = NodeJson;
    type Proto = NodeProto;

    fn from_json(json: NodeJson, decoder: &Decoder<Self>) -> Result<Self, DecodeError> {
        let NodeJson { metadata, spec, status } = json;
        let metadata = metadata.unwrap_or_default();
        let spec = spec.unwrap_or_default();
        let status = status.unwrap_or_default();
        let parts = NodeParts {
            created: time(metadata.creation_timestamp.as_deref(), &metadata.name)?,
            deleting: metadata.deletion_timestamp.is_some(),
            name: metadata.name,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            provider_id: spec.provider_id.unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            pod_cidr: spec.pod_cidr.unwrap_or_default(),
            pod_cidrs: spec.pod_cidrs.unwrap_or_default(),
            taints: spec
                .taints
                .unwrap_or_default()
                .into_iter()
                .map(TaintJson::fields)
                .collect(),
            conditions: status
                .conditions
                .unwrap_or_default()
                .into_iter()
                .map(ConditionJson::fields)
                .collect(),
            addresses: status
                .addresses
                .unwrap_or_default()
                .into_iter()
                .map(AddressJson::fields)
                .collect(),
            system_uuid: status
                .node_info
                .unwrap_or_default()
                .system_uuid
                .unwrap_or_default(),
        };
        let labels = metadata.labels.unwrap_or_default();
        let annotations = metadata.annotations.unwrap_or_default();
        parts.view(json_entries(&labels), json_entries(&annotations), decoder)
    }

    fn from_proto(proto: NodeProto, decoder: &Decoder<Self>) -> Result<Self, DecodeError> {
        let NodeProto { metadata, spec, status } = proto;
        let metadata = metadata.unwrap_or_default();
        let spec = spec.unwrap_or_default();
        let status = status.unwrap_or_default();
        let created = metadata.created();
        let deleting = metadata.deleting();
        let ObjectMetaProto { name, uid, resource_version, labels, annotations, .. } = metadata;
        let parts = NodeParts {
            created: created.map_err(|()| invalid(&name, "creationTimestamp"))?,
            deleting,
            name,
            uid,
            resource_version,
            provider_id: spec.provider_id,
            unschedulable: spec.unschedulable,
            pod_cidr: spec.pod_cidr,
            pod_cidrs: spec.pod_cidrs,
            taints: spec
                .taints
                .into_iter()
                .map(|TaintProto { key, value, effect }| (key, value, effect))
                .collect(),
            conditions: status
                .conditions
                .into_iter()
                .map(|c| (c.kind, c.status, c.reason))
                .collect(),
            addresses: status
                .addresses
                .into_iter()
                .map(|a| (a.kind, a.address))
                .collect(),
            system_uuid: status.node_info.unwrap_or_default().system_uuid,
        };
        parts.view(proto_entries(labels), proto_entries(annotations), decoder)
    }

    fn key(&self) -> Arc<str> {
        self.name.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }
}

/// The fields of both encodings, before strings are interned and unwanted fields are dropped.
struct NodeParts {
    name: String,
    uid: String,
    resource_version: String,
    created: Timestamp,
    deleting: bool,
    provider_id: String,
    unschedulable: bool,
    pod_cidr: String,
    pod_cidrs: Vec<String>,
    /// Key, value, effect.
    taints: Vec<(String, String, String)>,
    /// Type, status, reason.
    conditions: Vec<(String, String, String)>,
    /// Type, address.
    addresses: Vec<(String, String)>,
    system_uuid: String,
}

/// The entries of a map that may not be UTF-8.
type Entries = Vec<(Bytes, Bytes)>;

impl NodeParts {
    fn view(
        self,
        labels: Entries,
        annotations: Entries,
        decoder: &Decoder<NodeView>,
    ) -> Result<NodeView, DecodeError> {
        if self.name.is_empty() {
            return Err(DecodeError::Field { what: "nodes".to_owned(), field: "name" });
        }
        let Decoder { fields, interner, .. } = decoder;
        let uninitialized = self
            .taints
            .iter()
            .any(|(key, ..)| key == well_known::TAINT_UNINITIALIZED);
        let has_labels = !labels.is_empty();
        // An uninitialized node keeps all labels: label reconciliation or the provider may need any
        // of them.
        let labels = select_entries(&self.name, "labels", labels, |key, value| {
            (uninitialized || fields.keeps_label(key))
                .then(|| (interner.intern(key), interner.intern(value)))
        })?;
        // Values of annotations differ from node to node, so they are not interned.
        let annotations = select_entries(&self.name, "annotations", annotations, |key, value| {
            fields
                .keeps_annotation(key)
                .then(|| (interner.intern(key), Arc::from(value)))
        })?;
        // `podCIDR` is used only if there are no `podCIDRs`.
        let mut pod_cidrs = self.pod_cidrs;
        if pod_cidrs.is_empty() && !self.pod_cidr.is_empty() {
            pod_cidrs.push(self.pod_cidr);
        }
        let mut taints = Vec::with_capacity(self.taints.len());
        for (key, value, effect) in &self.taints {
            taints.push(Taint {
                key: interner.intern(key),
                value: interner.intern(value),
                effect: TaintEffect::from(effect.as_str()),
            });
        }
        Ok(NodeView {
            name: interner.intern(&self.name),
            uid: self.uid.into(),
            resource_version: self.resource_version.into(),
            created: self.created,
            deleting: self.deleting,
            labels,
            has_labels,
            annotations,
            provider_id: Some(self.provider_id)
                .filter(|id| !id.is_empty())
                .map(Arc::from),
            taints: taints.into(),
            unschedulable: self.unschedulable,
            pod_cidrs: pod_cidrs.into_iter().map(Arc::from).collect(),
            ready: condition(&self.conditions, well_known::CONDITION_READY, interner),
            network_unavailable: condition(
                &self.conditions,
                well_known::CONDITION_NETWORK_UNAVAILABLE,
                interner,
            ),
            machine: MachineId::of(&self.system_uuid),
            system_uuid: Some(self.system_uuid)
                .filter(|id| fields.system_uuid && !id.is_empty())
                .map(Into::into),
            addresses: addresses(&self.name, self.addresses, decoder),
        })
    }
}

fn json_entries(map: &HashMap<String, String>) -> Entries {
    map.iter()
        .map(|(key, value)| {
            (Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value.as_bytes()))
        })
        .collect()
}

fn proto_entries(map: Vec<EntryProto>) -> Entries {
    map.into_iter()
        .map(|entry| (entry.key, entry.value))
        .collect()
}

/// Returns the condition of a type, from conditions with type, status and reason.
fn condition(
    conditions: &[(String, String, String)],
    kind: &str,
    interner: &Interner,
) -> Option<NodeCondition> {
    let (_, status, reason) = conditions.iter().find(|(k, ..)| k == kind)?;
    Some(NodeCondition {
        status: ConditionStatus::from(status.as_str()),
        reason: interner.intern(reason),
    })
}

/// Checks that entries of a map are UTF-8, and selects those that are kept.
fn select_entries(
    node: &str,
    field: &'static str,
    entries: Entries,
    select: impl Fn(&str, &str) -> Option<(Arc<str>, Arc<str>)>,
) -> Result<LabelMap, DecodeError> {
    let mut kept = Vec::new();
    for (key, value) in entries {
        let key = std::str::from_utf8(&key).map_err(|_| invalid(node, field))?;
        let value = std::str::from_utf8(&value).map_err(|_| invalid(node, field))?;
        kept.extend(select(key, value));
    }
    Ok(kept.into_iter().collect())
}

fn addresses(
    node: &str,
    all: Vec<(String, String)>,
    decoder: &Decoder<NodeView>,
) -> Box<[NodeAddress]> {
    let mut addresses = Vec::with_capacity(all.len());
    for (kind, address) in all {
        match kind.parse::<AddressType>() {
            Ok(kind) => addresses.push(NodeAddress::new(kind, address)),
            Err(_) => decoder.log_unknown_field(node, "status.addresses.type", &kind),
        }
    }
    addresses.into()
}

fn time(text: Option<&str>, node: &str) -> Result<Timestamp, DecodeError> {
    match text {
        None | Some("") => Ok(Timestamp::UNIX_EPOCH),
        Some(text) => text.parse().map_err(|_| invalid(node, "creationTimestamp")),
    }
}

fn invalid(node: &str, field: &'static str) -> DecodeError {
    DecodeError::Field { what: format!("nodes {node:?}"), field }
}

/// `core/v1` Node in JSON. Fields may be absent or null.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeJson {
    metadata: Option<MetadataJson>,
    spec: Option<SpecJson>,
    status: Option<StatusJson>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MetadataJson {
    name: String,
    uid: String,
    resource_version: String,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
    labels: Option<HashMap<String, String>>,
    annotations: Option<HashMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SpecJson {
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    unschedulable: Option<bool>,
    taints: Option<Vec<TaintJson>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TaintJson {
    key: Option<String>,
    value: Option<String>,
    effect: Option<String>,
}

impl TaintJson {
    fn fields(self) -> (String, String, String) {
        (
            self.key.unwrap_or_default(),
            self.value.unwrap_or_default(),
            self.effect.unwrap_or_default(),
        )
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StatusJson {
    conditions: Option<Vec<ConditionJson>>,
    addresses: Option<Vec<AddressJson>>,
    node_info: Option<NodeInfoJson>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConditionJson {
    r#type: Option<String>,
    status: Option<String>,
    reason: Option<String>,
}

impl ConditionJson {
    fn fields(self) -> (String, String, String) {
        (
            self.r#type.unwrap_or_default(),
            self.status.unwrap_or_default(),
            self.reason.unwrap_or_default(),
        )
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AddressJson {
    r#type: Option<String>,
    address: Option<String>,
}

impl AddressJson {
    fn fields(self) -> (String, String) {
        (self.r#type.unwrap_or_default(), self.address.unwrap_or_default())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeInfoJson {
    #[serde(rename = "systemUUID")]
    system_uuid: Option<String>,
}
