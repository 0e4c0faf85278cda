//! Kubernetes strings, and the reduced object types that the framework caches.
//!
//! Watched objects are converted to the types of this module as they arrive, and all other fields
//! are dropped: a typical kubelet's Node has about 15 KB on the wire and at most 1 KiB here.

mod intern;
mod label;
mod node_view;
mod service_view;
pub mod well_known;

pub use intern::Interner;
pub use label::is_label_value;
pub(crate) use label::{is_dns_subdomain, is_label_name};
pub use node_view::{
    AddressType, ConditionStatus, LabelMap, MachineId, NodeAddress, NodeCondition, NodeFields,
    NodeView, Taint, TaintEffect, UnknownAddressType,
};
pub use service_view::{
    EndpointSliceView, EndpointView, IpFamily, LbIngress, LbPortStatus, LbStatus, OwnCondition,
    Protocol, ServiceFields, ServicePort, ServiceView, SessionAffinity, SlicePort, TrafficPolicy,
};
