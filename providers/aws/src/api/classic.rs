//! Requests and answers of the first version of Elastic Load Balancing: classic load balancers, with
//! only the fields that the provider uses.

use jiff::Timestamp;

use super::{InstanceId, SecurityGroupId, SubnetId, Tags, elb::Scheme};

/// Describes classic load balancers: by name (`LoadBalancerNotFound`), or all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescribeClassic {
    /// Names of the load balancers.
    pub names: Vec<Box<str>>,
    /// Token of the page to read; `None` for the first page.
    pub token: Option<String>,
}

/// A classic load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassicLoadBalancer {
    /// Name of the load balancer, unique among the classic ones of account and region.
    pub name: Box<str>,
    /// DNS name.
    pub dns_name: Box<str>,
    /// `internet-facing` or `internal`; `None` for a value that this version does not know.
    pub scheme: Option<Scheme>,
    /// Its subnets.
    pub subnets: Vec<SubnetId>,
    /// IDs of the security groups of the load balancer.
    pub security_groups: Vec<SecurityGroupId>,
    /// Registered instances.
    pub instances: Vec<InstanceId>,
    /// Listeners with their policies.
    pub listeners: Vec<ObservedClassicListener>,
    /// Policies of the connections to instances, by instance port.
    pub backends: Vec<ClassicBackend>,
    /// Names of all policies that are not about stickiness, whether or not a listener or backend has
    /// them.
    pub policies: Vec<Box<str>>,
    /// The only health check.
    pub health_check: Option<ClassicHealthCheck>,
    /// Time of creation.
    pub created: Option<Timestamp>,
}

/// A listener of a classic load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClassicListener {
    /// The port on the load balancer, which identifies the listener.
    pub port: u16,
    /// Protocol towards clients: `TCP`, `SSL`, `HTTP` or `HTTPS`. AWS ignores case.
    pub protocol: Box<str>,
    /// The port of the instances.
    pub instance_port: u16,
    /// Protocol towards instances.
    pub instance_protocol: Box<str>,
    /// ARN of the certificate, for `SSL` and `HTTPS`.
    pub certificate: Option<Box<str>>,
}

/// A listener as AWS describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedClassicListener {
    /// The listener.
    pub listener: ClassicListener,
    /// Names of its policies.
    pub policies: Vec<Box<str>>,
}

/// The policies of the connections to one instance port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassicBackend {
    /// The port of the instances.
    pub instance_port: u16,
    /// Names of the policies.
    pub policies: Vec<Box<str>>,
}

/// The health check of a classic load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClassicHealthCheck {
    /// Protocol, port and for `HTTP` and `HTTPS` the path, such as `HTTP:32001/healthz`.
    pub target: Box<str>,
    /// Seconds between two checks.
    pub interval: u32,
    /// Seconds after which a check without answer has failed.
    pub timeout: u32,
    /// Successful checks until an instance is healthy.
    pub healthy: u32,
    /// Failed checks until an instance is unhealthy.
    pub unhealthy: u32,
}

/// Attributes of a classic load balancer. In a request, those that are `None` stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClassicAttributes {
    /// Access log.
    pub access_log: Option<ClassicAccessLog>,
    /// Connection draining.
    pub draining: Option<ClassicDraining>,
    /// Seconds after which an idle connection is closed.
    pub idle_timeout: Option<u32>,
    /// True if each node of the load balancer sends to the instances of all zones.
    pub cross_zone: Option<bool>,
}

/// The access log of a classic load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClassicAccessLog {
    /// True if there is one.
    pub enabled: bool,
    /// Minutes between two files: 5 or 60.
    pub interval: Option<u32>,
    /// Bucket of the files.
    pub bucket: Option<Box<str>>,
    /// Prefix of the files.
    pub prefix: Option<Box<str>>,
}

/// Connection draining of a classic load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClassicDraining {
    /// True if connections to instances that leave may end by themselves.
    pub enabled: bool,
    /// Seconds for which they may.
    pub timeout: Option<u32>,
}

/// Maximum number of load balancers in a request for tags.
pub const MAX_CLASSIC_TAGGED: usize = 20;

/// Describes the tags of classic load balancers, at most 20.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribeClassicTags {
    /// Names of the load balancers.
    pub names: Vec<Box<str>>,
}

/// Describes the attributes of a classic load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribeClassicAttributes {
    /// Name of the load balancer.
    pub name: Box<str>,
}

/// Creates a classic load balancer (`DuplicateLoadBalancerName`) and returns its DNS name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateClassic {
    /// Name, at most 32 characters.
    pub name: Box<str>,
    /// Scheme; cannot be changed.
    pub scheme: Scheme,
    /// Subnets, at most one per zone.
    pub subnets: Vec<SubnetId>,
    /// Security groups.
    pub security_groups: Vec<SecurityGroupId>,
    /// Listeners, at least one.
    pub listeners: Vec<ClassicListener>,
    /// Tags.
    pub tags: Tags,
}

/// Changes attributes of a classic load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModifyClassicAttributes {
    /// Load balancer to change.
    pub name: Box<str>,
    /// Attributes to change.
    pub attributes: ClassicAttributes,
}

/// Creates listeners. One that exists with the same settings is no error, one with others is
/// (`DuplicateListener`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateClassicListeners {
    /// Load balancer to change.
    pub name: Box<str>,
    /// Listeners to create.
    pub listeners: Vec<ClassicListener>,
}

/// Deletes listeners. Ports without listener are no error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteClassicListeners {
    /// Load balancer to change.
    pub name: Box<str>,
    /// Ports of the listeners.
    pub ports: Vec<u16>,
}

/// Replaces the health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigureClassicHealthCheck {
    /// Load balancer to change.
    pub name: Box<str>,
    /// The new health check.
    pub check: ClassicHealthCheck,
}

/// Replaces the security groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetClassicSecurityGroups {
    /// Load balancer to change.
    pub name: Box<str>,
    /// All its groups.
    pub groups: Vec<SecurityGroupId>,
}

macro_rules! classic_changes {
    ($($(#[$doc:meta])* $name:ident { $(#[$fdoc:meta])* $field:ident: $of:ty }),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            /// Load balancer to change.
            pub name: Box<str>,
            $(#[$fdoc])*
            pub $field: $of,
        }
    )*};
}

classic_changes! {
    /// Adds subnets, at most one per zone.
    AttachClassicSubnets {
        /// Subnets to add.
        subnets: Vec<SubnetId>
    },
    /// Removes subnets. At least one has to stay.
    DetachClassicSubnets {
        /// Subnets to remove.
        subnets: Vec<SubnetId>
    },
    /// Adds instances to a classic load balancer.
    RegisterClassic {
        /// IDs of the instances.
        instances: Vec<InstanceId>
    },
    /// Removes instances from a classic load balancer.
    DeregisterClassic {
        /// IDs of the instances.
        instances: Vec<InstanceId>
    },
    /// Adds tags, or changes their values.
    AddClassicTags {
        /// Tags to add.
        tags: Tags
    },
}

/// Creates a policy (`DuplicatePolicyName`), which has no effect until a listener or backend gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateClassicPolicy {
    /// Load balancer to change.
    pub name: Box<str>,
    /// Name of the policy.
    pub policy: Box<str>,
    /// Type of the policy, such as `ProxyProtocolPolicyType`.
    pub kind: Box<str>,
    /// Its only attribute: name and value.
    pub attribute: (Box<str>, Box<str>),
}

/// Replaces the policies of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetClassicListenerPolicies {
    /// Load balancer to change.
    pub name: Box<str>,
    /// Port of the listener.
    pub port: u16,
    /// Names of all its policies.
    pub policies: Vec<Box<str>>,
}

/// Replaces the policies of the connections to an instance port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetClassicBackendPolicies {
    /// Load balancer to change.
    pub name: Box<str>,
    /// Port of the instances.
    pub instance_port: u16,
    /// Names of all policies; none removes them.
    pub policies: Vec<Box<str>>,
}

/// Deletes a classic load balancer. Succeeds if it does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteClassic {
    /// Name of the load balancer.
    pub name: Box<str>,
}
