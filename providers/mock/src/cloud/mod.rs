//! The mock cloud, a state machine of instances, load balancers and routes. It is independent of
//! Kubernetes.
//!
//! Calls of the provider are counted, take the configured latency, and fail according to the
//! configured faults. This does not apply to changes through the admin API.

mod api;
mod calls;
pub mod config;
mod faults;
mod instances;
mod load_balancer_types;
mod load_balancers;
mod pool;
pub mod provider_id;
mod rate_limits;
mod routes;
mod types;

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

pub use api::CloudApi;
pub use calls::{Calls, Capability, Operation};
pub use faults::{Fault, FaultError, FaultSpec};
pub use load_balancer_types::{
    DeleteResult, EndpointMember, Family, Listener, LoadBalancer, LoadBalancerEdit,
    LoadBalancerKey, LoadBalancerSettings, LoadBalancerSpec, LoadBalancerState, Members,
    NodeMember, Transport,
};
pub use provider_id::{MalformedProviderId, ProviderId};
pub use types::{
    Address, AddressKind, CloudInstanceQuery, Instance, InstanceSpec, OwnedRoute, PowerState,
    Route, RouteBatch, RouteBody, RouteEdit,
};

use self::{
    faults::Faults,
    instances::{Defaults, InstanceTable},
    load_balancers::{LoadBalancerRules, LoadBalancerTable},
    pool::AddressPools,
    rate_limits::Limits,
    routes::RouteTable,
};
use crate::cloud::config::{CloudConfig, Latency};

/// Error for an invalid value, with its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Path of the key in the document, such as `addresses[0].address`.
    pub field: String,
    /// Reason why the value is invalid.
    pub message: String,
}

impl FieldError {
    /// Creates an error.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }

    /// Returns the same error with its path in a larger document, in which the object that contains
    /// the value is at `path`.
    pub(crate) fn nested_in(self, path: &str) -> Self {
        if self.field.is_empty() {
            Self::new(path, self.message)
        } else {
            Self::new(format!("{path}.{}", self.field), self.message)
        }
    }
}

/// Hook that runs before and after every provider call, in the process of the cloud. It is for
/// tests that act at an exact point, such as a crash between a cloud call and the write that
/// follows it.
#[async_trait]
pub trait CallHook: Send + Sync {
    /// Runs before the call's effect. `number` counts all provider calls from 1.
    async fn before(&self, number: u64, operation: Operation);

    /// Runs after the call's effect and before the call returns.
    async fn after(&self, number: u64, operation: Operation);
}

/// An in-memory cloud. Clones share the same state.
///
/// # Cancellation
/// A call has its effect after [`CallHook::before`] and the latency. If its future is dropped
/// before that, nothing has changed.
#[derive(Clone)]
pub struct MockCloud(Arc<MockCloudInner>);

struct MockCloudInner {
    latency: Latency,
    state: Mutex<CloudState>,
}

struct CloudState {
    instances: InstanceTable,
    load_balancers: LoadBalancerTable,
    routes: RouteTable,
    calls: Calls,
    limits: Limits,
    faults: Faults,
    hook: Option<Arc<dyn CallHook>>,
    /// Number of provider calls so far.
    call_count: u64,
}

impl MockCloud {
    /// Creates a cloud.
    ///
    /// # Errors
    /// Returns an error if an instance in the configuration is invalid; the field starts with
    /// `instances[<index>]`.
    pub fn new(config: &CloudConfig) -> Result<Self, FieldError> {
        let defaults = Defaults {
            region: config.region().to_owned(),
            zones: config.zones(),
            instance_type: config.instance_type().to_owned(),
        };
        let mut instances = InstanceTable::new(defaults, config.auto_provision);
        for (index, entry) in config.instances.iter().enumerate() {
            let is_duplicate = config.instances[..index]
                .iter()
                .any(|earlier| earlier.name == entry.name);
            if is_duplicate {
                return Err(FieldError::new(
                    format!("instances[{index}].name"),
                    format!("{} is used twice", entry.name),
                ));
            }
            instances
                .put(&entry.name, entry.spec())
                .map_err(|error| error.nested_in(&format!("instances[{index}]")))?;
        }
        let rules = LoadBalancerRules {
            activation: config.load_balancer_activation,
            deletion: config.load_balancer_deletion,
            quota: config.load_balancer_quota,
        };
        let pools = AddressPools::new(config.address_networks());
        let state = CloudState {
            instances,
            load_balancers: LoadBalancerTable::new(rules, pools),
            routes: RouteTable::default(),
            calls: Calls::default(),
            limits: Limits::new(&config.rate_limits),
            faults: Faults::default(),
            hook: None,
            call_count: 0,
        };
        Ok(Self(Arc::new(MockCloudInner {
            latency: config.latency.clone(),
            state: Mutex::new(state),
        })))
    }

    /// Returns the region of the cloud.
    pub fn region(&self) -> String {
        self.0.state.lock().instances.region().to_owned()
    }

    /// Lists the instances that were put or queried.
    pub fn instances(&self) -> Vec<Instance> {
        self.0.state.lock().instances.list()
    }

    /// Returns the instance of a node, or `None` if it does not exist.
    pub fn instance(&self, node: &str) -> Option<Instance> {
        self.0.state.lock().instances.get(node)
    }

    /// Creates or replaces the instance of a node. Keys that are not given get their defaults.
    ///
    /// # Errors
    /// Returns an error if a value is invalid; the error names the key.
    pub fn put_instance(&self, node: &str, spec: InstanceSpec) -> Result<Instance, FieldError> {
        self.0.state.lock().instances.put(node, spec)
    }

    /// Deletes the instance of a node, permanently even with `autoProvision`. Returns `false` if it
    /// does not exist.
    pub fn delete_instance(&self, node: &str) -> bool {
        self.0.state.lock().instances.delete(node)
    }

    /// Lists the load balancers of all clusters.
    pub fn load_balancers(&self) -> Vec<LoadBalancer> {
        self.0.state.lock().load_balancers.list()
    }

    /// Changes a load balancer without the provider. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// Returns an error if a value is invalid; the error names the key.
    pub fn edit_load_balancer(
        &self,
        name: &str,
        edit: LoadBalancerEdit,
    ) -> Result<Option<LoadBalancer>, FieldError> {
        self.0.state.lock().load_balancers.edit(name, edit)
    }

    /// Removes a load balancer without the provider, at once and regardless of its owner. Returns
    /// `false` if it does not exist.
    pub fn remove_load_balancer(&self, name: &str) -> bool {
        self.0.state.lock().load_balancers.remove(name)
    }

    /// Lists the routes of all clusters.
    pub fn routes(&self) -> Vec<Route> {
        let state = self.0.state.lock();
        state.routes.list(&state.instances)
    }

    /// Creates or replaces a route. A route that a cluster created keeps that cluster as its owner.
    ///
    /// # Errors
    /// Returns an error if a value is missing or invalid; the error names the key.
    pub fn put_route(&self, name: &str, body: RouteBody) -> Result<Route, FieldError> {
        self.0.state.lock().routes.put(name, body)
    }

    /// Deletes a route. Returns `false` if it does not exist.
    pub fn delete_route(&self, name: &str) -> bool {
        self.0.state.lock().routes.remove(name)
    }

    /// Returns the counts of provider calls.
    pub fn calls(&self) -> Calls {
        self.0.state.lock().calls
    }

    /// Replaces all faults.
    pub fn set_faults(&self, faults: Vec<Fault>) {
        self.0.state.lock().faults.replace(faults);
    }

    /// Returns the faults that can fire now.
    pub fn active_faults(&self) -> Vec<Fault> {
        self.0.state.lock().faults.active()
    }

    /// Sets or removes the hook that runs around every provider call.
    pub fn set_hook(&self, hook: Option<Arc<dyn CallHook>>) {
        self.0.state.lock().hook = hook;
    }
}

impl std::fmt::Debug for MockCloud {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MockCloud")
            .field("region", &self.region())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod balancer_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trouble_tests;
