use serde::{Deserialize, Serialize};

/// An operation of the cloud's API, as faults name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Describes instances, many at a time.
    DescribeInstances,
    /// Lists the route table.
    ListRoutes,
    /// Creates a route.
    CreateRoute,
    /// Deletes a route.
    DeleteRoute,
    /// Reads one load balancer.
    GetLoadBalancer,
    /// Creates a load balancer or brings it in line.
    EnsureLoadBalancer,
    /// Replaces the nodes behind a load balancer.
    UpdateLoadBalancer,
    /// Deletes a load balancer.
    DeleteLoadBalancer,
    /// Lists a cluster's load balancers.
    ListLoadBalancers,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 9] = [
        Self::DescribeInstances,
        Self::ListRoutes,
        Self::CreateRoute,
        Self::DeleteRoute,
        Self::GetLoadBalancer,
        Self::EnsureLoadBalancer,
        Self::UpdateLoadBalancer,
        Self::DeleteLoadBalancer,
        Self::ListLoadBalancers,
    ];

    /// Returns the spelling of the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DescribeInstances => "describe_instances",
            Self::ListRoutes => "list_routes",
            Self::CreateRoute => "create_route",
            Self::DeleteRoute => "delete_route",
            Self::GetLoadBalancer => "get_load_balancer",
            Self::EnsureLoadBalancer => "ensure_load_balancer",
            Self::UpdateLoadBalancer => "update_load_balancer",
            Self::DeleteLoadBalancer => "delete_load_balancer",
            Self::ListLoadBalancers => "list_load_balancers",
        }
    }

    /// Tells whether the operation is about named objects, which a fault's `match` can single out.
    pub fn names_objects(self) -> bool {
        !matches!(self, Self::ListRoutes | Self::ListLoadBalancers)
    }
}

/// How often the provider called the cloud since it started; body of `GET /v1/calls`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Calls of `describe_instances`.
    pub describe_instances: u64,
    /// Nodes that these calls asked about.
    pub describe_instances_nodes: u64,
    /// Calls of `list_routes`.
    pub list_routes: u64,
    /// Routes to create, one count per route in a batch.
    pub create_route: u64,
    /// Routes to delete, one count per route in a batch.
    pub delete_route: u64,
    /// Calls of `get_load_balancer`.
    pub get_load_balancer: u64,
    /// Calls of `ensure_load_balancer`.
    pub ensure_load_balancer: u64,
    /// Calls of `update_load_balancer`.
    pub update_load_balancer: u64,
    /// Calls of `delete_load_balancer`.
    pub delete_load_balancer: u64,
    /// Calls of `list_load_balancers`.
    pub list_load_balancers: u64,
}

impl Calls {
    /// Returns the count of one operation.
    pub fn of(&self, operation: Operation) -> u64 {
        let mut copy = *self;
        *copy.slot(operation)
    }

    pub(super) fn add(&mut self, operation: Operation, count: u64) {
        *self.slot(operation) += count;
    }

    fn slot(&mut self, operation: Operation) -> &mut u64 {
        match operation {
            Operation::DescribeInstances => &mut self.describe_instances,
            Operation::ListRoutes => &mut self.list_routes,
            Operation::CreateRoute => &mut self.create_route,
            Operation::DeleteRoute => &mut self.delete_route,
            Operation::GetLoadBalancer => &mut self.get_load_balancer,
            Operation::EnsureLoadBalancer => &mut self.ensure_load_balancer,
            Operation::UpdateLoadBalancer => &mut self.update_load_balancer,
            Operation::DeleteLoadBalancer => &mut self.delete_load_balancer,
            Operation::ListLoadBalancers => &mut self.list_load_balancers,
        }
    }
}
