//! The mock cloud: a state machine of instances, load balancers and routes that knows nothing of Kubernetes.
//!
//! Provider calls are counted, take the configured time, and fail as the faults say. What is put or deleted by hand
//! (the admin API) does neither.

mod calls;
mod faults;
mod instances;
mod load_balancers;
mod pool;
pub mod provider_id;
mod routes;
mod types;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::provider::{CloudError, ErrorKind};
use parking_lot::Mutex;

pub use calls::{Calls, Operation};
pub use faults::{Fault, FaultError, FaultSpec};
pub use provider_id::{MalformedProviderId, ProviderId};
pub use types::{
    Address, AddressKind, Instance, InstanceQuery, InstanceSpec, LoadBalancer, LoadBalancerKey, LoadBalancerSpec,
    OwnedLoadBalancer, OwnedRoute, PowerState, Route, RouteBatch, RouteBody, RouteEdit,
};

use self::{
    faults::Faults,
    instances::{Defaults, InstanceTable},
    load_balancers::LoadBalancerTable,
    pool::AddressPool,
    routes::RouteTable,
};
use crate::config::{CloudConfig, Latency};

/// A value that cannot be stored, and the key that it stands at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Key, with its path below the document (`addresses[0].address`).
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

impl FieldError {
    /// Makes an error.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// What runs around every provider call, in the process that holds the cloud. For tests that act at an exact point,
/// such as a crash between a cloud call and the write that follows it.
#[async_trait]
pub trait CallHook: Send + Sync {
    /// Runs before the call's effect; `number` counts all provider calls from 1.
    async fn before(&self, number: u64, operation: Operation);

    /// Runs after the call's effect and before its answer.
    async fn after(&self, number: u64, operation: Operation);
}

/// An in-memory cloud. Clones share one state.
///
/// # Cancellation
/// Every call has its effect after its last wait (latency, [`CallHook::before`]): a future that is dropped before
/// changed nothing.
#[derive(Clone)]
pub struct MockCloud(Arc<Inner>);

struct Inner {
    latency: Latency,
    state: Mutex<State>,
}

struct State {
    instances: InstanceTable,
    load_balancers: LoadBalancerTable,
    routes: RouteTable,
    calls: Calls,
    faults: Faults,
    hook: Option<Arc<dyn CallHook>>,
    number: u64,
}

impl MockCloud {
    /// Makes a cloud.
    ///
    /// # Errors
    /// An instance of the configuration that cannot be; the field begins with `instances[<index>]`.
    pub fn new(config: &CloudConfig) -> Result<Self, FieldError> {
        let defaults = Defaults {
            region: config.region().to_owned(),
            zones: config.zones(),
            instance_type: config.instance_type().to_owned(),
        };
        let mut instances = InstanceTable::new(defaults, config.auto_provision);
        for (index, entry) in config.instances.iter().enumerate() {
            let fail = |e: FieldError| FieldError::new(format!("instances[{index}].{}", e.field), e.message);
            if config.instances[..index].iter().any(|earlier| earlier.name == entry.name) {
                return Err(fail(FieldError::new("name", format!("{} is given twice", entry.name))));
            }
            instances.put(&entry.name, entry.spec()).map_err(fail)?;
        }
        let state = State {
            instances,
            load_balancers: LoadBalancerTable::new(AddressPool::new(config.load_balancer_address_pool())),
            routes: RouteTable::default(),
            calls: Calls::default(),
            faults: Faults::default(),
            hook: None,
            number: 0,
        };
        Ok(Self(Arc::new(Inner { latency: config.latency.clone(), state: Mutex::new(state) })))
    }

    /// Returns the region.
    pub fn region(&self) -> String {
        self.0.state.lock().instances.region().to_owned()
    }

    /// Lists the instances that were put or asked about.
    pub fn instances(&self) -> Vec<Instance> {
        self.0.state.lock().instances.list()
    }

    /// Returns the instance of a node.
    pub fn instance(&self, node: &str) -> Option<Instance> {
        self.0.state.lock().instances.get(node)
    }

    /// Creates or replaces the instance of a node; what is left out gets its default again.
    ///
    /// # Errors
    /// Names the key whose value cannot be.
    pub fn put_instance(&self, node: &str, spec: InstanceSpec) -> Result<Instance, FieldError> {
        self.0.state.lock().instances.put(node, spec)
    }

    /// Deletes the instance of a node, for good even with `autoProvision`; `false` when there is none.
    pub fn delete_instance(&self, node: &str) -> bool {
        self.0.state.lock().instances.delete(node)
    }

    /// Lists the load balancers of all clusters.
    pub fn load_balancers(&self) -> Vec<LoadBalancer> {
        self.0.state.lock().load_balancers.list()
    }

    /// Lists the routes of all clusters.
    pub fn routes(&self) -> Vec<Route> {
        self.0.state.lock().routes.list()
    }

    /// Creates or replaces a route; one that a cluster created stays that cluster's.
    ///
    /// # Errors
    /// Names the key that is missing or wrong.
    pub fn put_route(&self, name: &str, body: RouteBody) -> Result<Route, FieldError> {
        self.0.state.lock().routes.put(name, body)
    }

    /// Deletes a route; `false` when there is none.
    pub fn delete_route(&self, name: &str) -> bool {
        self.0.state.lock().routes.remove(name)
    }

    /// Returns the call counts.
    pub fn calls(&self) -> Calls {
        self.0.state.lock().calls
    }

    /// Replaces all faults.
    pub fn set_faults(&self, faults: Vec<Fault>) {
        self.0.state.lock().faults.replace(faults);
    }

    /// Sets or removes what runs around every provider call.
    pub fn set_hook(&self, hook: Option<Arc<dyn CallHook>>) {
        self.0.state.lock().hook = hook;
    }

    /// Runs one provider call: counts it, lets its time pass, then applies its effect at once.
    async fn call<T>(
        &self,
        operation: Operation,
        count: impl FnOnce(&mut Calls),
        latency: Duration,
        effect: impl FnOnce(&mut State) -> T,
    ) -> T {
        let (number, hook) = {
            let mut state = self.0.state.lock();
            count(&mut state.calls);
            state.number += 1;
            (state.number, state.hook.clone())
        };
        if let Some(hook) = &hook {
            hook.before(number, operation).await;
        }
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let answer = effect(&mut self.0.state.lock());
        if let Some(hook) = &hook {
            hook.after(number, operation).await;
        }
        answer
    }

    /// Runs one call about load balancers that the faults may fail as a whole.
    async fn balancer_call<T>(
        &self,
        operation: Operation,
        name: Option<&str>,
        effect: impl FnOnce(&mut State) -> Result<T, CloudError>,
    ) -> Result<T, CloudError> {
        let latency = self.0.latency.load_balancers;
        self.call(
            operation,
            |calls| calls.add(operation, 1),
            latency,
            |state| {
                state.faults.check(operation, name.as_slice())?;
                effect(state)
            },
        )
        .await
    }
}

impl std::fmt::Debug for MockCloud {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MockCloud").field("region", &self.region()).finish_non_exhaustive()
    }
}

/// The cloud's API as the provider sees it: in the same process ([`MockCloud`]) or behind an address
/// ([`RemoteCloud`](crate::client::RemoteCloud)), with the same meaning.
#[async_trait]
pub trait CloudApi: Send + Sync {
    /// Describes instances: one answer per query, in order; `None` is proof of absence.
    async fn describe_instances(
        &self,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<Option<Instance>, CloudError>>, CloudError>;

    /// Lists a cluster's routes.
    async fn list_routes(&self, cluster: &str) -> Result<Vec<OwnedRoute>, CloudError>;

    /// Changes routes: one answer per edit, in order.
    async fn apply_routes(&self, batch: &RouteBatch) -> Result<Vec<Result<(), CloudError>>, CloudError>;

    /// Reads one load balancer.
    async fn get_load_balancer(&self, key: &LoadBalancerKey) -> Result<Option<LoadBalancer>, CloudError>;

    /// Creates a load balancer or brings it in line.
    async fn ensure_load_balancer(&self, want: &LoadBalancerSpec) -> Result<LoadBalancer, CloudError>;

    /// Replaces the nodes behind a load balancer.
    async fn update_load_balancer(&self, key: &LoadBalancerKey, nodes: &[String]) -> Result<LoadBalancer, CloudError>;

    /// Deletes a load balancer; succeeds on nothing.
    async fn delete_load_balancer(&self, key: &LoadBalancerKey) -> Result<(), CloudError>;

    /// Lists a cluster's load balancers.
    async fn list_load_balancers(&self, cluster: &str) -> Result<Vec<OwnedLoadBalancer>, CloudError>;
}

#[async_trait]
impl CloudApi for MockCloud {
    async fn describe_instances(
        &self,
        queries: &[InstanceQuery],
    ) -> Result<Vec<Result<Option<Instance>, CloudError>>, CloudError> {
        let operation = Operation::DescribeInstances;
        let count = |calls: &mut Calls| {
            calls.describe_instances += 1;
            calls.describe_instances_nodes += queries.len() as u64;
        };
        let one = |state: &mut State, query: &InstanceQuery| match state.faults.fire(operation, &[&query.node]) {
            Some(fired) if fired.error == FaultError::NotFound => Ok(None),
            Some(fired) => Err(fired.into_error(operation, &[&query.node])),
            None => state.instances.find(query),
        };
        let all = |state: &mut State| queries.iter().map(|query| one(state, query)).collect();
        Ok(self.call(operation, count, self.0.latency.instances, all).await)
    }

    async fn list_routes(&self, cluster: &str) -> Result<Vec<OwnedRoute>, CloudError> {
        let operation = Operation::ListRoutes;
        self.call(
            operation,
            |calls| calls.add(operation, 1),
            self.0.latency.routes,
            |state| {
                state.faults.check(operation, &[])?;
                Ok(state.routes.list_for(cluster))
            },
        )
        .await
    }

    async fn apply_routes(&self, batch: &RouteBatch) -> Result<Vec<Result<(), CloudError>>, CloudError> {
        let operation = |edit: &RouteEdit| match edit {
            RouteEdit::Create { .. } => Operation::CreateRoute,
            RouteEdit::Delete(_) => Operation::DeleteRoute,
        };
        let Some(first) = batch.edits.first() else { return Ok(Vec::new()) };
        let count = |calls: &mut Calls| batch.edits.iter().for_each(|edit| calls.add(operation(edit), 1));
        let one = |state: &mut State, edit: &RouteEdit| match edit {
            RouteEdit::Create { node, destination } => {
                state.faults.check(operation(edit), &[node])?;
                state.instances.check_target(node)?;
                state.routes.create(&batch.cluster, node, *destination)
            }
            RouteEdit::Delete(route) => {
                state.faults.check(operation(edit), &[&route.name, &route.node])?;
                state.routes.delete(&batch.cluster, route);
                Ok(())
            }
        };
        let all = |state: &mut State| batch.edits.iter().map(|edit| one(state, edit)).collect();
        Ok(self.call(operation(first), count, self.0.latency.routes, all).await)
    }

    async fn get_load_balancer(&self, key: &LoadBalancerKey) -> Result<Option<LoadBalancer>, CloudError> {
        let name = Some(object_name(&key.service));
        self.balancer_call(Operation::GetLoadBalancer, name, |state| Ok(state.load_balancers.get(key))).await
    }

    async fn ensure_load_balancer(&self, want: &LoadBalancerSpec) -> Result<LoadBalancer, CloudError> {
        if want.uid.is_empty() {
            return Err(CloudError::new(ErrorKind::InvalidInput, format!("service {} has no UID", want.service)));
        }
        let name = Some(object_name(&want.service));
        self.balancer_call(Operation::EnsureLoadBalancer, name, |state| state.load_balancers.ensure(want)).await
    }

    async fn update_load_balancer(&self, key: &LoadBalancerKey, nodes: &[String]) -> Result<LoadBalancer, CloudError> {
        let name = Some(object_name(&key.service));
        self.balancer_call(Operation::UpdateLoadBalancer, name, |state| state.load_balancers.update(key, nodes)).await
    }

    async fn delete_load_balancer(&self, key: &LoadBalancerKey) -> Result<(), CloudError> {
        let name = Some(object_name(&key.service));
        self.balancer_call(Operation::DeleteLoadBalancer, name, |state| {
            state.load_balancers.delete(key);
            Ok(())
        })
        .await
    }

    async fn list_load_balancers(&self, cluster: &str) -> Result<Vec<OwnedLoadBalancer>, CloudError> {
        let list = |state: &mut State| Ok(state.load_balancers.list_owned(cluster));
        self.balancer_call(Operation::ListLoadBalancers, None, list).await
    }
}

/// Returns `name` of `namespace/name`.
fn object_name(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(_, name)| name)
}

#[cfg(test)]
mod tests;
