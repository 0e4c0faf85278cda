//! The names that a provider needs, for `use ccm_core::provider::prelude::*`: the traits of the
//! parent module with their types, the types of nodes and Services, the REST client, and
//! [`async_trait`](macro@async_trait), which implementations of the traits need.

pub use async_trait::async_trait;
pub use http::Method;

pub use super::{
    BackendKind, Backends, BatchLimits, CheckedCluster, CloudError, CloudProvider, Digest,
    ErrorKind, EventType, FieldError, Finding, InstanceMetadata, InstanceQuery, InstanceStatus,
    Instances, Inventory, LabelRequirement, LbOutcome, LbRef, LbSpec, LbSupport, LoadBalancers,
    MetadataScope, Mutation, MutationResponse, NodeOwnership, NodeTarget, Op, OwnedObject, Owner,
    PlannedChange, PowerState, Progress, ProviderContext, Rate, RateLimiter, ReadMode,
    RetainOutcome, Route, RouteChange, RouteLimits, Routes, SIMPLE_OPERATIONS,
    ServiceInterpretation, ServiceNotice, SharedRead, SourceRanges, adopted_id,
    is_canonical_number,
    rest::{
        ErrorFormat, ErrorResponse, OperationFormat, OperationStatus, PageFormat, RestClient,
        Transport, path,
    },
    simple_instances::{SimpleInstance, SimpleInstances},
    simple_load_balancers::{
        OwnershipTags, ProvisioningStatus, SimpleLoadBalancer, SimpleLoadBalancerSpec,
        SimpleLoadBalancers,
        steps::{
            ListenerKey, LoadBalancerStep, LoadBalancerSteps, SteppedSettings, update_in_steps,
        },
    },
    simple_routes::{SimpleRoute, SimpleRoutes},
};
pub use crate::k8s::{
    AddressType, IpFamily, LbIngress, LbStatus, NodeAddress, NodeFields, NodeView, Protocol,
    ServicePort, ServiceView, SessionAffinity, TrafficPolicy,
};
