//! The desired state of a Service with a classic load balancer, as plain data: the result of parsing
//! its spec and annotations, before the VPC or existing objects are known.

use ccm_core::provider::{BackendKind, LabelRequirement};
use ipnet::IpNet;

use crate::{
    api::{
        SecurityGroupId, Tags,
        classic::{ClassicAttributes, ClassicHealthCheck, ClassicListener},
        elb::Scheme,
    },
    lb::model::{ServiceKey, SubnetChoice},
};

/// Seconds after which AWS closes an idle connection, unless the Service says otherwise.
pub(in crate::lb) const DEFAULT_IDLE_TIMEOUT: u32 = 60;

/// A desired classic load balancer. Two equal values need no request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DesiredClassic {
    /// The Service that owns it.
    pub owner: ServiceKey,
    /// Its name, which is computed from the UID of the Service.
    pub name: Box<str>,
    /// `internet-facing` or `internal`; counts only at creation.
    pub scheme: Scheme,
    /// Its subnets. Unlike those of a Network Load Balancer, they follow the VPC's tags as long as the
    /// load balancer exists, as upstream does it.
    pub subnets: SubnetChoice,
    /// Its listeners, in the order of the Service's ports; at least one.
    pub listeners: Vec<ClassicListener>,
    /// Its security groups.
    pub groups: ClassicGroups,
    /// Client networks that its own security group admits.
    pub sources: Vec<IpNet>,
    /// All ports of the Service, which its own security group admits.
    pub ports: Vec<u16>,
    /// True if all instances get the clients' addresses by proxy protocol.
    pub proxy_protocol: bool,
    /// Predefined TLS policy of AWS for all TLS listeners; `None` leaves their policies as they are.
    pub tls_policy: Option<Box<str>>,
    /// The health check.
    pub health_check: ClassicHealthCheck,
    /// Attributes. Parts that are `None` inside of an attribute are neither compared nor sent.
    pub attributes: ClassicAttributes,
    /// Tags besides those of cluster and Service.
    pub extra_tags: Tags,
    /// Labels that a node needs to be an instance of the load balancer; empty selects all nodes.
    pub node_labels: Vec<LabelRequirement>,
}

impl DesiredClassic {
    /// Returns the kind of backends that the framework must pass.
    pub fn backends(&self) -> BackendKind {
        BackendKind::Nodes(self.node_labels.clone())
    }
}

/// The security groups that a Service requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClassicGroups {
    /// Groups in place of the load balancer's own one (annotation `security-groups`).
    pub given: Vec<SecurityGroupId>,
    /// Groups besides these (annotation `extra-security-groups`).
    pub extra: Vec<SecurityGroupId>,
}

/// How a Service is read if it has or gets a classic load balancer. This does not depend on its type
/// annotation.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassicReading {
    /// The desired state, or every validation error.
    pub desired: Result<Box<DesiredClassic>, Vec<ccm_core::provider::FieldError>>,
    /// The requested security groups, which also decide which rules nodes need. Known even if the
    /// Service is invalid.
    pub groups: ClassicGroups,
}
