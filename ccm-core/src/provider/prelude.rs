//! What a provider names, for `use ccm_core::provider::prelude::*`: the traits of the parent module with their types, what
//! they say about nodes and Services, requests to a REST API, and [`async_trait`](macro@async_trait), which their
//! implementations need.

pub use async_trait::async_trait;
pub use http::Method;

pub use super::{
    BackendSet, Backends, BatchLimits, Claim, CloudError, CloudProvider, Depth, Digest, ErrorKind, EventKind,
    InstanceMetadata, Instances, InvalidInput, Inventory, LabelRequirement, LbOutcome, LbRef, LbSpec, LbSupport,
    LoadBalancers, Mutation, Need, NodeClaim, NodeQuery, NodeTarget, Op, OwnedObject, Owner, PlannedChange, Power,
    Presence, Progress, ProviderContext, Remark, Reply, Route, RouteChange, Routes, SourceRanges,
    rest::{Fault, Rest, Transport, path},
    simple::{BalancerState, Mark, SimpleBalancer, SimpleBalancers, Wanted},
};
pub use crate::k8s::{
    AddressType, IpFamily, LbIngress, LbStatus, NodeAddress, NodeFields, NodeView, Protocol, ServicePort, ServiceView,
    SessionAffinity, TrafficPolicy,
};
