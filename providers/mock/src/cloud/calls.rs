//! Operations of the cloud's API, and the counts of their calls.

use serde::{Deserialize, Serialize};

/// An operation of the cloud's API, as named in faults and call counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Describes instances, many per call.
    DescribeInstances,
    /// Lists the route table.
    ListRoutes,
    /// Creates a route.
    CreateRoute,
    /// Deletes a route.
    DeleteRoute,
    /// Reads one load balancer.
    GetLoadBalancer,
    /// Creates a load balancer, settings and members in one request.
    CreateLoadBalancer,
    /// Changes the settings of a load balancer.
    ModifyLoadBalancer,
    /// Replaces the members of a load balancer.
    UpdateLoadBalancer,
    /// Deletes a load balancer.
    DeleteLoadBalancer,
    /// Marks a load balancer, so that it belongs to nobody.
    RetainLoadBalancer,
    /// Gives a marked load balancer to another owner.
    AdoptLoadBalancer,
    /// Lists a cluster's load balancers.
    ListLoadBalancers,
    /// Stands for both creating and modifying a load balancer; only for faults and counts.
    EnsureLoadBalancer,
    /// Stands for every operation; only for faults and counts.
    Any,
}

/// Part of the cloud with its own latency and rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Instances.
    Instances,
    /// Routes.
    Routes,
    /// Load balancers.
    LoadBalancers,
}

impl Operation {
    /// Every operation that can be called.
    pub const ALL: [Self; 12] = [
        Self::DescribeInstances,
        Self::ListRoutes,
        Self::CreateRoute,
        Self::DeleteRoute,
        Self::GetLoadBalancer,
        Self::CreateLoadBalancer,
        Self::ModifyLoadBalancer,
        Self::UpdateLoadBalancer,
        Self::DeleteLoadBalancer,
        Self::RetainLoadBalancer,
        Self::AdoptLoadBalancer,
        Self::ListLoadBalancers,
    ];

    /// Returns the name of the operation in the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DescribeInstances => "describe_instances",
            Self::ListRoutes => "list_routes",
            Self::CreateRoute => "create_route",
            Self::DeleteRoute => "delete_route",
            Self::GetLoadBalancer => "get_load_balancer",
            Self::CreateLoadBalancer => "create_load_balancer",
            Self::ModifyLoadBalancer => "modify_load_balancer",
            Self::UpdateLoadBalancer => "update_load_balancer",
            Self::DeleteLoadBalancer => "delete_load_balancer",
            Self::RetainLoadBalancer => "retain_load_balancer",
            Self::AdoptLoadBalancer => "adopt_load_balancer",
            Self::ListLoadBalancers => "list_load_balancers",
            Self::EnsureLoadBalancer => "ensure_load_balancer",
            Self::Any => "any",
        }
    }

    /// Returns true if `self` is, or includes, the operation of a call.
    pub fn includes(self, call: Self) -> bool {
        match self {
            Self::Any => true,
            Self::EnsureLoadBalancer => {
                matches!(call, Self::CreateLoadBalancer | Self::ModifyLoadBalancer)
            }
            operation => operation == call,
        }
    }

    /// Returns true if the operation, or one of the operations that it stands for, changes the
    /// cloud.
    pub fn is_write(self) -> bool {
        !matches!(
            self,
            Self::DescribeInstances
                | Self::ListRoutes
                | Self::GetLoadBalancer
                | Self::ListLoadBalancers
        )
    }

    /// Returns true if the operation is about named objects, which the `match` of a fault can
    /// select.
    pub fn has_named_objects(self) -> bool {
        !matches!(self, Self::ListRoutes | Self::ListLoadBalancers)
    }

    /// Returns the part of the cloud to which the operation belongs. Returns load balancers for
    /// [`Any`](Self::Any).
    pub fn capability(self) -> Capability {
        match self {
            Self::DescribeInstances => Capability::Instances,
            Self::ListRoutes | Self::CreateRoute | Self::DeleteRoute => Capability::Routes,
            _ => Capability::LoadBalancers,
        }
    }
}

/// Counts of the provider's calls since the cloud started; body of `GET /v1/calls`. Failed calls
/// count too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Calls of `describe_instances`.
    pub describe_instances: u64,
    /// Number of nodes in these calls.
    pub describe_instances_nodes: u64,
    /// Calls of `list_routes`.
    pub list_routes: u64,
    /// Routes to create; each route of a batch counts.
    pub create_route: u64,
    /// Routes to delete; each route of a batch counts.
    pub delete_route: u64,
    /// Calls of `get_load_balancer`.
    pub get_load_balancer: u64,
    /// Sum of the calls of `create_load_balancer` and `modify_load_balancer`.
    pub ensure_load_balancer: u64,
    /// Calls of `create_load_balancer`.
    pub create_load_balancer: u64,
    /// Calls of `modify_load_balancer`: settings.
    pub modify_load_balancer: u64,
    /// Calls of `update_load_balancer`: members.
    pub update_load_balancer: u64,
    /// Calls of `delete_load_balancer`.
    pub delete_load_balancer: u64,
    /// Calls of `retain_load_balancer`.
    pub retain_load_balancer: u64,
    /// Calls of `adopt_load_balancer`.
    pub adopt_load_balancer: u64,
    /// Calls of `list_load_balancers`.
    pub list_load_balancers: u64,
    /// Calls of any operation that were over the rate limit; they are also counted above.
    pub throttled: u64,
}

impl Calls {
    /// Returns the count of one operation, or the sum of the operations that it includes.
    pub fn of(&self, operation: Operation) -> u64 {
        self.sum(|call| operation.includes(call))
    }

    /// Returns the number of calls that do not change the cloud.
    pub fn reads(&self) -> u64 {
        self.sum(|call| !call.is_write())
    }

    /// Returns the number of calls that change the cloud.
    pub fn writes(&self) -> u64 {
        self.sum(Operation::is_write)
    }

    /// Returns the counts since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut later = *self;
        for operation in Operation::ALL {
            *later.slot(operation) -= earlier.of(operation);
        }
        later.ensure_load_balancer -= earlier.ensure_load_balancer;
        later.describe_instances_nodes -= earlier.describe_instances_nodes;
        later.throttled -= earlier.throttled;
        later
    }

    pub(super) fn add(&mut self, operation: Operation, count: u64) {
        *self.slot(operation) += count;
        if Operation::EnsureLoadBalancer.includes(operation) {
            self.ensure_load_balancer += count;
        }
    }

    fn sum(&self, selects: impl Fn(Operation) -> bool) -> u64 {
        let mut copy = *self;
        let mut sum = 0;
        for operation in Operation::ALL {
            if selects(operation) {
                sum += *copy.slot(operation);
            }
        }
        sum
    }

    fn slot(&mut self, operation: Operation) -> &mut u64 {
        match operation {
            Operation::DescribeInstances => &mut self.describe_instances,
            Operation::ListRoutes => &mut self.list_routes,
            Operation::CreateRoute => &mut self.create_route,
            Operation::DeleteRoute => &mut self.delete_route,
            Operation::GetLoadBalancer => &mut self.get_load_balancer,
            Operation::CreateLoadBalancer => &mut self.create_load_balancer,
            Operation::ModifyLoadBalancer => &mut self.modify_load_balancer,
            Operation::UpdateLoadBalancer => &mut self.update_load_balancer,
            Operation::DeleteLoadBalancer => &mut self.delete_load_balancer,
            Operation::RetainLoadBalancer => &mut self.retain_load_balancer,
            Operation::AdoptLoadBalancer => &mut self.adopt_load_balancer,
            Operation::ListLoadBalancers => &mut self.list_load_balancers,
            // Not reached: `add` updates the sum for the first, and the second has no count.
            Operation::EnsureLoadBalancer | Operation::Any => &mut self.ensure_load_balancer,
        }
    }
}

impl Calls {
    /// Formats the counts of one part of the cloud: `2 get_load_balancer, 1 update_load_balancer`.
    pub fn format_capability(&self, capability: Capability) -> String {
        self.format_counts(|operation| operation.capability() == capability)
    }

    /// Formats the counts of the selected operations that were called.
    fn format_counts(&self, selects: impl Fn(Operation) -> bool) -> String {
        let mut parts = Vec::new();
        for operation in Operation::ALL {
            let count = self.of(operation);
            if count > 0 && selects(operation) {
                parts.push(format!("{count} {}", operation.as_str()));
            }
        }
        if parts.is_empty() {
            "none".to_owned()
        } else {
            parts.join(", ")
        }
    }
}

impl std::fmt::Display for Calls {
    /// Formats the counts of all operations that were called.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.format_counts(|_| true))
    }
}
