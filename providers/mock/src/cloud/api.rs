//! The cloud's API for the provider, and its implementation for a cloud in this process.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::provider::{CloudError, ErrorKind};

use super::{
    CallHook, Calls, Capability, CloudInstanceQuery, CloudState, DeleteResult, FaultError,
    Instance, LoadBalancer, LoadBalancerKey, LoadBalancerSettings, LoadBalancerSpec, Members,
    MockCloud, Operation, OwnedRoute, RouteBatch, RouteEdit, routes::NewRoute,
};

/// The cloud's API for the provider, with the same semantics in the same process ([`MockCloud`])
/// and over the network ([`RemoteCloud`](crate::client::RemoteCloud)).
///
/// A call over the rate limit fails at once with [`ErrorKind::Throttled`] and the delay after which
/// to retry.
#[async_trait]
pub trait CloudApi: Send + Sync {
    /// Describes instances. Returns one answer per query, in order. `None` is proof that the
    /// instance does not exist.
    async fn describe_instances(
        &self,
        queries: &[CloudInstanceQuery],
    ) -> Result<Vec<Result<Option<Instance>, CloudError>>, CloudError>;

    /// Lists a cluster's routes.
    async fn list_routes(&self, cluster: &str) -> Result<Vec<OwnedRoute>, CloudError>;

    /// Changes routes. Returns one answer per edit, in order. For latency and rate limit, a batch
    /// counts as one call.
    async fn apply_routes(
        &self,
        batch: &RouteBatch,
    ) -> Result<Vec<Result<(), CloudError>>, CloudError>;

    /// Reads one load balancer.
    async fn get_load_balancer(
        &self,
        key: &LoadBalancerKey,
    ) -> Result<Option<LoadBalancer>, CloudError>;

    /// Creates a load balancer. Does not wait for it: until it is active, its state is
    /// [`LoadBalancerState::Provisioning`](super::LoadBalancerState). An existing one of this owner
    /// is returned unchanged. Fails with [`ErrorKind::QuotaExceeded`] if the quota is used up or no
    /// address is free, and with [`ErrorKind::Conflict`] if another owner has the name, or the load
    /// balancer of this name is being deleted.
    async fn create_load_balancer(
        &self,
        spec: &LoadBalancerSpec,
    ) -> Result<LoadBalancer, CloudError>;

    /// Changes the settings of a load balancer. Fails with [`ErrorKind::NotFound`] if it does not
    /// exist, and with [`ErrorKind::Conflict`] while it is being deleted.
    async fn modify_load_balancer(
        &self,
        key: &LoadBalancerKey,
        settings: &LoadBalancerSettings,
    ) -> Result<LoadBalancer, CloudError>;

    /// Replaces the members of a load balancer. Fails as
    /// [`modify_load_balancer`](Self::modify_load_balancer) does.
    async fn update_load_balancer(
        &self,
        key: &LoadBalancerKey,
        members: &Members,
    ) -> Result<LoadBalancer, CloudError>;

    /// Deletes a load balancer. Succeeds if it does not exist; the deletion may continue after the
    /// call.
    async fn delete_load_balancer(&self, key: &LoadBalancerKey)
    -> Result<DeleteResult, CloudError>;

    /// Marks a load balancer, so that it belongs to nobody and no call but
    /// [`adopt_load_balancer`](Self::adopt_load_balancer) finds it. Returns `None` if this owner has
    /// none, and one that it let go before unchanged. Fails with [`ErrorKind::Conflict`] while it is
    /// being deleted.
    async fn retain_load_balancer(
        &self,
        key: &LoadBalancerKey,
    ) -> Result<Option<LoadBalancer>, CloudError>;

    /// Gives the load balancer with this ID, which its owner must have let go, to the owner and name
    /// in `key`. One that this owner already has is returned unchanged. Fails with
    /// [`ErrorKind::InvalidInput`] if it does not exist, was not let go, or the name is taken.
    async fn adopt_load_balancer(
        &self,
        id: &str,
        key: &LoadBalancerKey,
    ) -> Result<LoadBalancer, CloudError>;

    /// Lists a cluster's load balancers. Those that were let go are not among them.
    async fn list_load_balancers(&self, cluster: &str) -> Result<Vec<LoadBalancer>, CloudError>;
}

#[async_trait]
impl CloudApi for MockCloud {
    async fn describe_instances(
        &self,
        queries: &[CloudInstanceQuery],
    ) -> Result<Vec<Result<Option<Instance>, CloudError>>, CloudError> {
        self.call(
            Operation::DescribeInstances,
            |calls| {
                calls.describe_instances += 1;
                calls.describe_instances_nodes += queries.len() as u64;
            },
            |state| {
                queries
                    .iter()
                    .map(|query| state.describe_instance(query))
                    .collect()
            },
        )
        .await
    }

    async fn list_routes(&self, cluster: &str) -> Result<Vec<OwnedRoute>, CloudError> {
        let operation = Operation::ListRoutes;
        self.call(
            operation,
            |calls| calls.add(operation, 1),
            |state| {
                state.with_faults(operation, &[], |state| {
                    Ok(state.routes.list_for(cluster, &state.instances))
                })
            },
        )
        .await?
    }

    async fn apply_routes(
        &self,
        batch: &RouteBatch,
    ) -> Result<Vec<Result<(), CloudError>>, CloudError> {
        let Some(first) = batch.edits.first() else {
            return Ok(Vec::new());
        };
        self.call(
            operation_of(first),
            |calls| {
                for edit in &batch.edits {
                    calls.add(operation_of(edit), 1);
                }
            },
            |state| {
                batch
                    .edits
                    .iter()
                    .map(|edit| state.apply_route(&batch.cluster, edit))
                    .collect()
            },
        )
        .await
    }

    async fn get_load_balancer(
        &self,
        key: &LoadBalancerKey,
    ) -> Result<Option<LoadBalancer>, CloudError> {
        self.load_balancer_call(Operation::GetLoadBalancer, Some(key), |state| {
            Ok(state.load_balancers.get(key))
        })
        .await
    }

    async fn create_load_balancer(
        &self,
        spec: &LoadBalancerSpec,
    ) -> Result<LoadBalancer, CloudError> {
        self.load_balancer_call(Operation::CreateLoadBalancer, Some(&spec.key), |state| {
            state.load_balancers.create(spec)
        })
        .await
    }

    async fn modify_load_balancer(
        &self,
        key: &LoadBalancerKey,
        settings: &LoadBalancerSettings,
    ) -> Result<LoadBalancer, CloudError> {
        self.load_balancer_call(Operation::ModifyLoadBalancer, Some(key), |state| {
            state.load_balancers.modify(key, settings)
        })
        .await
    }

    async fn update_load_balancer(
        &self,
        key: &LoadBalancerKey,
        members: &Members,
    ) -> Result<LoadBalancer, CloudError> {
        self.load_balancer_call(Operation::UpdateLoadBalancer, Some(key), |state| {
            state.load_balancers.update(key, members)
        })
        .await
    }

    async fn delete_load_balancer(
        &self,
        key: &LoadBalancerKey,
    ) -> Result<DeleteResult, CloudError> {
        self.load_balancer_call(Operation::DeleteLoadBalancer, Some(key), |state| {
            Ok(state.load_balancers.delete(key))
        })
        .await
    }

    async fn retain_load_balancer(
        &self,
        key: &LoadBalancerKey,
    ) -> Result<Option<LoadBalancer>, CloudError> {
        self.load_balancer_call(Operation::RetainLoadBalancer, Some(key), |state| {
            state.load_balancers.retain(key)
        })
        .await
    }

    async fn adopt_load_balancer(
        &self,
        id: &str,
        key: &LoadBalancerKey,
    ) -> Result<LoadBalancer, CloudError> {
        self.load_balancer_call(Operation::AdoptLoadBalancer, Some(key), |state| {
            state.load_balancers.adopt(id, key)
        })
        .await
    }

    async fn list_load_balancers(&self, cluster: &str) -> Result<Vec<LoadBalancer>, CloudError> {
        self.load_balancer_call(Operation::ListLoadBalancers, None, |state| {
            Ok(state.load_balancers.list_for(cluster))
        })
        .await
    }
}

fn operation_of(edit: &RouteEdit) -> Operation {
    match edit {
        RouteEdit::Create { .. } => Operation::CreateRoute,
        RouteEdit::Delete(_) => Operation::DeleteRoute,
    }
}

impl MockCloud {
    /// Runs one provider call. Counts it, rejects it if it exceeds the rate limit, waits for the
    /// latency, and then applies its effect. The hook runs before the latency and after the effect.
    async fn call<T>(
        &self,
        operation: Operation,
        count: impl FnOnce(&mut Calls),
        effect: impl FnOnce(&mut CloudState) -> T,
    ) -> Result<T, CloudError> {
        let AdmittedCall { number, hook } = self.0.state.lock().admit(operation, count)?;
        if let Some(hook) = &hook {
            hook.before(number, operation).await;
        }
        let latency = self.latency(operation);
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let answer = effect(&mut self.0.state.lock());
        if let Some(hook) = &hook {
            hook.after(number, operation).await;
        }
        Ok(answer)
    }

    fn latency(&self, operation: Operation) -> Duration {
        match operation.capability() {
            Capability::Instances => self.0.latency.instances,
            Capability::Routes => self.0.latency.routes,
            Capability::LoadBalancers => self.0.latency.load_balancers,
        }
    }

    /// Runs one provider call about load balancers. A fault fails the call as a whole.
    async fn load_balancer_call<T>(
        &self,
        operation: Operation,
        key: Option<&LoadBalancerKey>,
        effect: impl FnOnce(&mut CloudState) -> Result<T, CloudError>,
    ) -> Result<T, CloudError> {
        let names = match key {
            Some(key) => vec![object_name(&key.service), &*key.service],
            None => Vec::new(),
        };
        self.call(
            operation,
            |calls| calls.add(operation, 1),
            |state| state.with_faults(operation, &names, effect),
        )
        .await?
    }
}

/// A provider call within the rate limit.
struct AdmittedCall {
    number: u64,
    hook: Option<Arc<dyn CallHook>>,
}

impl CloudState {
    /// Counts a call. Fails if the call exceeds the rate limit.
    fn admit(
        &mut self,
        operation: Operation,
        count: impl FnOnce(&mut Calls),
    ) -> Result<AdmittedCall, CloudError> {
        count(&mut self.calls);
        self.call_count += 1;
        if let Err(after) = self.limits.take(operation.capability()) {
            self.calls.throttled += 1;
            let message = format!("{}: rate limit exceeded", operation.as_str().replace('_', " "));
            return Err(CloudError::new(ErrorKind::Throttled, message).with_retry_after(after));
        }
        Ok(AdmittedCall { number: self.call_count, hook: self.hook.clone() })
    }

    /// Answers one query, unless a fault matches it. The fault `not_found` is an answer: proof that
    /// the instance does not exist.
    fn describe_instance(
        &mut self,
        query: &CloudInstanceQuery,
    ) -> Result<Option<Instance>, CloudError> {
        let operation = Operation::DescribeInstances;
        let names = [&*query.node];
        match self.faults.fire(operation, &names) {
            Some(fault) if fault.error == FaultError::NotFound => Ok(None),
            Some(fault) => Err(fault.into_error(operation, &names)),
            None => self.instances.find(query),
        }
    }

    fn apply_route(&mut self, cluster: &str, edit: &RouteEdit) -> Result<(), CloudError> {
        let operation = operation_of(edit);
        match edit {
            RouteEdit::Create { node, destination, node_addresses } => {
                self.with_faults(operation, &[node], |state| {
                    let target = state.instances.route_target(node)?;
                    state.routes.create(NewRoute {
                        cluster,
                        node,
                        target,
                        destination: *destination,
                        node_addresses: node_addresses.clone(),
                    })
                })
            }
            RouteEdit::Delete(route) => {
                self.with_faults(operation, &[&route.name, &route.node], |state| {
                    state.routes.delete(cluster, route);
                    Ok(())
                })
            }
        }
    }

    /// Applies an effect unless a fault matches the call. If the fault only loses the answer, the
    /// call fails after its effect.
    fn with_faults<T>(
        &mut self,
        operation: Operation,
        names: &[&str],
        effect: impl FnOnce(&mut Self) -> Result<T, CloudError>,
    ) -> Result<T, CloudError> {
        match self.faults.fire(operation, names) {
            None => effect(self),
            Some(fault) => {
                if fault.is_answer_lost() {
                    // The caller only gets the error, not the result.
                    drop(effect(self));
                }
                Err(fault.into_error(operation, names))
            }
        }
    }
}

/// Returns `name` of `namespace/name`.
fn object_name(key: &str) -> &str {
    match key.rsplit_once('/') {
        Some((_, name)) => name,
        None => key,
    }
}
