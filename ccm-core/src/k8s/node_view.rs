//! The fields of a Node that the controllers and providers read.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    num::NonZeroU64,
    str::FromStr,
    sync::Arc,
};

use jiff::Timestamp;

use super::well_known;

/// The part of a Node that controllers and providers read.
///
/// A new field needs four edits: here, in the protobuf message (`runtime/encoding/proto.rs`), in
/// the JSON form, and in the conversion of both (`runtime/encoding/node.rs`).
///
/// The cache creates it from a watched object. [`NodeFields`] determines which labels, annotations
/// and additional fields it contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`. A Node that was deleted and registered again under the same name has a
    /// different UID.
    pub uid: Box<str>,
    /// `metadata.resourceVersion` of the observed object. Opaque; compare for equality only.
    pub resource_version: Box<str>,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// True if `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// The labels. While the node has the uninitialized taint these are all labels, afterwards only
    /// the selected ones.
    pub labels: LabelMap,
    /// True if the object has any label at all. A JSON Patch cannot add to a missing map.
    pub has_labels: bool,
    /// The selected annotations.
    pub annotations: LabelMap,
    /// `spec.providerID`, or `None` if it is empty. It is not validated, and can have any value
    /// that a client has set.
    pub provider_id: Option<Arc<str>>,
    /// `spec.taints` in the order of the object, because JSON Patch addresses them by position.
    pub taints: Box<[Taint]>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// `spec.podCIDRs`, primary first.
    pub pod_cidrs: Box<[Arc<str>]>,
    /// `status.addresses` in the order of the object.
    pub addresses: Box<[NodeAddress]>,
    /// The condition `Ready`, if the node has it.
    pub ready: Option<NodeCondition>,
    /// The condition `NetworkUnavailable`, if the node has it.
    pub network_unavailable: Option<NodeCondition>,
    /// `status.nodeInfo.systemUUID`, if [`NodeFields::system_uuid`] is true.
    pub system_uuid: Option<Box<str>>,
    /// The machine that the kubelet runs on, if the kubelet reports it. Does not depend on
    /// [`NodeFields`].
    pub machine: Option<MachineId>,
}

/// The identity of the machine that a kubelet runs on. Different values mean different machines.
///
/// It is a hash of `status.nodeInfo.systemUUID`, so that a cache of many nodes stays small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MachineId(NonZeroU64);

impl MachineId {
    /// Creates the ID from `status.nodeInfo.systemUUID`. Returns `None` if that is empty.
    pub fn of(system_uuid: &str) -> Option<Self> {
        if system_uuid.is_empty() {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        system_uuid.hash(&mut hasher);
        // A hash of zero becomes one. This collision is as unlikely as any other.
        Some(Self(NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN)))
    }
}

impl NodeView {
    /// Creates a node that has only a name, as a starting point for tests and examples.
    pub fn named(name: &str) -> Self {
        Self {
            name: Arc::from(name),
            uid: Box::default(),
            resource_version: Box::default(),
            created: Timestamp::UNIX_EPOCH,
            deleting: false,
            labels: LabelMap::default(),
            has_labels: false,
            annotations: LabelMap::default(),
            provider_id: None,
            taints: Box::default(),
            unschedulable: false,
            pod_cidrs: Box::default(),
            addresses: Box::default(),
            ready: None,
            network_unavailable: None,
            system_uuid: None,
            machine: None,
        }
    }

    /// Returns the node's first address of this type.
    pub fn address(&self, kind: AddressType) -> Option<&str> {
        let mut addresses = self.addresses.iter();
        let found = addresses.find(|address| address.kind == kind);
        found.map(|found| &*found.address)
    }

    /// Returns true if the node has the uninitialized taint, which the cloud-node controller
    /// removes. Value and effect of the taint do not matter.
    pub fn is_uninitialized(&self) -> bool {
        self.taints
            .iter()
            .any(|t| &*t.key == well_known::TAINT_UNINITIALIZED)
    }

    /// Returns true if the node has the shutdown taint (key and effect).
    pub fn has_shutdown_taint(&self) -> bool {
        self.taints.iter().any(Taint::is_shutdown)
    }

    /// Returns true if the node has an out-of-service taint, of whomever.
    pub fn has_out_of_service_taint(&self) -> bool {
        self.taints
            .iter()
            .any(|taint| &*taint.key == well_known::TAINT_OUT_OF_SERVICE)
    }

    /// Returns true if the node has the out-of-service taint of this manager.
    pub fn has_own_out_of_service_taint(&self) -> bool {
        self.taints.iter().any(Taint::is_own_out_of_service)
    }

    /// Returns true if condition `Ready` is `Unknown`, as it is when the kubelet has stopped
    /// reporting.
    pub fn is_silent(&self) -> bool {
        self.ready
            .as_ref()
            .is_some_and(|c| c.status == ConditionStatus::Unknown)
    }

    /// Returns true if condition `Ready` is `True`. A missing condition counts as unknown, hence as
    /// not ready.
    pub fn is_ready(&self) -> bool {
        self.ready
            .as_ref()
            .is_some_and(|c| c.status == ConditionStatus::True)
    }
}

/// Sorted, immutable string map of an object's selected labels or annotations.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct LabelMap(Box<[(Arc<str>, Arc<str>)]>);

impl LabelMap {
    /// Returns the value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .binary_search_by(|(k, _)| (**k).cmp(key))
            .ok()
            .map(|i| &*self.0[i].1)
    }

    /// Returns true if `key` is present.
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Iterates in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (&**k, &**v))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(Arc<str>, Arc<str>)> for LabelMap {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Arc<str>)>>(iter: I) -> Self {
        let mut entries: Vec<_> = iter.into_iter().collect();
        // Of a key that occurs twice, the last value is kept, as in a map.
        entries.reverse();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries.dedup_by(|a, b| a.0 == b.0);
        Self(entries.into_boxed_slice())
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for LabelMap {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(iter: I) -> Self {
        iter.into_iter()
            .map(|(k, v)| (Arc::<str>::from(k), Arc::<str>::from(v)))
            .collect()
    }
}

impl fmt::Debug for LabelMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// One entry of `spec.taints`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// Taint key.
    pub key: Arc<str>,
    /// Taint value; empty when absent.
    pub value: Arc<str>,
    /// Taint effect.
    pub effect: TaintEffect,
}

impl Taint {
    /// Returns true if this is the shutdown taint (key and effect; the value does not matter).
    pub fn is_shutdown(&self) -> bool {
        &*self.key == well_known::TAINT_SHUTDOWN && self.effect == TaintEffect::NoSchedule
    }

    /// Returns true if this is the out-of-service taint that this manager sets (key, value and
    /// effect). Those of administrators have other values.
    pub fn is_own_out_of_service(&self) -> bool {
        &*self.key == well_known::TAINT_OUT_OF_SERVICE
            && &*self.value == well_known::OUT_OF_SERVICE_VALUE
            && self.effect == TaintEffect::NoExecute
    }
}

/// Effect of a taint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaintEffect {
    /// `NoSchedule`.
    NoSchedule,
    /// `PreferNoSchedule`.
    PreferNoSchedule,
    /// `NoExecute`.
    NoExecute,
    /// Any other value.
    Other(Arc<str>),
}

impl From<&str> for TaintEffect {
    fn from(text: &str) -> Self {
        match text {
            "NoSchedule" => Self::NoSchedule,
            "PreferNoSchedule" => Self::PreferNoSchedule,
            "NoExecute" => Self::NoExecute,
            other => Self::Other(Arc::from(other)),
        }
    }
}

impl TaintEffect {
    /// Returns the spelling of the API.
    pub fn as_str(&self) -> &str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
            Self::Other(text) => text,
        }
    }
}

/// One entry of `status.addresses`; also the form in which a provider reports addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeAddress {
    /// The type of the address.
    pub kind: AddressType,
    /// The address or name, as the cloud spells it.
    pub address: Box<str>,
}

impl NodeAddress {
    /// Creates an address.
    pub fn new(kind: AddressType, address: impl Into<Box<str>>) -> Self {
        Self { kind, address: address.into() }
    }
}

/// The type of a node address (`core/v1` NodeAddressType).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressType {
    /// `Hostname`.
    Hostname,
    /// `InternalIP`.
    InternalIp,
    /// `ExternalIP`.
    ExternalIp,
    /// `InternalDNS`.
    InternalDns,
    /// `ExternalDNS`.
    ExternalDns,
}

impl AddressType {
    /// Returns the spelling of the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hostname => "Hostname",
            Self::InternalIp => "InternalIP",
            Self::ExternalIp => "ExternalIP",
            Self::InternalDns => "InternalDNS",
            Self::ExternalDns => "ExternalDNS",
        }
    }
}

/// A node address type that Kubernetes does not define.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown node address type {0:?}")]
pub struct UnknownAddressType(pub String);

impl FromStr for AddressType {
    type Err = UnknownAddressType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "Hostname" => Ok(Self::Hostname),
            "InternalIP" => Ok(Self::InternalIp),
            "ExternalIP" => Ok(Self::ExternalIp),
            "InternalDNS" => Ok(Self::InternalDns),
            "ExternalDNS" => Ok(Self::ExternalDns),
            other => Err(UnknownAddressType(other.to_owned())),
        }
    }
}

/// Status and reason of one node condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// The status of the condition.
    pub status: ConditionStatus,
    /// Reason; empty when absent.
    pub reason: Arc<str>,
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// `True`.
    True,
    /// `False`.
    False,
    /// `Unknown`, or any other spelling.
    Unknown,
}

impl From<&str> for ConditionStatus {
    fn from(text: &str) -> Self {
        match text {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

impl ConditionStatus {
    /// Returns the spelling of the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// The fields of Nodes that a provider needs in addition to those that the framework always keeps.
///
/// The default adds nothing: name, UID, provider ID, the framework's own labels, taints, addresses
/// and conditions are always kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFields {
    /// Keep all labels (for example for node selectors that only annotations name). Costs memory.
    pub all_labels: bool,
    /// Label keys to keep in addition to [`well_known::FRAMEWORK_LABELS`].
    pub labels: BTreeSet<Cow<'static, str>>,
    /// Annotation keys to keep in addition to [`well_known::ANNOTATION_PROVIDED_NODE_IP`].
    pub annotations: BTreeSet<Cow<'static, str>>,
    /// Keep `status.nodeInfo.systemUUID`.
    pub system_uuid: bool,
}

impl NodeFields {
    /// Returns true if the label is kept on an initialized node.
    pub fn keeps_label(&self, key: &str) -> bool {
        self.all_labels || well_known::FRAMEWORK_LABELS.contains(&key) || self.labels.contains(key)
    }

    /// Returns true if the annotation is kept.
    pub fn keeps_annotation(&self, key: &str) -> bool {
        key == well_known::ANNOTATION_PROVIDED_NODE_IP || self.annotations.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_map_is_sorted_and_last_value_wins() {
        let map: LabelMap = [("b", "1"), ("a", "2"), ("b", "3")].into_iter().collect();
        assert_eq!(map.iter().collect::<Vec<_>>(), [("a", "2"), ("b", "3")]);
        assert_eq!(map.get("b"), Some("3"));
        assert_eq!(map.get("c"), None);
    }

    #[test]
    fn address_types_round_trip() {
        for text in ["Hostname", "InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS"] {
            assert_eq!(text.parse::<AddressType>().map(AddressType::as_str), Ok(text));
        }
        assert!("internalIP".parse::<AddressType>().is_err());
    }

    #[test]
    fn a_missing_ready_condition_is_not_ready() {
        assert!(!NodeView::named("n").is_ready());
    }
}
