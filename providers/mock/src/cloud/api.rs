use std::time::Duration;

use async_trait::async_trait;
use ccm_core::provider::{CloudError, ErrorKind};

use super::{
    Calls, Capability, CloudInstanceQuery, CloudState, DeleteResult, FaultError, Instance,
    LoadBalancer, LoadBalancerKey, LoadBalancerSettings, LoadBalancerSpec, Members, MockCloud,
    Operation, OwnedRoute, RouteBatch, RouteEdit, routes::NewRoute,
};

/// The cloud's API for the provider, with the same semantics in the same process ([`MockCloud`])
/// and over the network ([`RemoteCloud`](crate::client::RemoteCloud)).
///
/// A call over the rate limit fails at once with [`ErrorKind::Throttled`] and the delay after which
/// to retry.
#[async_trait]
pub trait CloudApi: Send + Sync {
    /// Describes instances: one answer per query, in order. `None` is proof that the instance does
    /// not exist.
    async fn describe_instances(
        &self,
        queries: &[CloudInstanceQuery],
    ) -> Result<Vec<Result<Option<Instance>, CloudError>>, CloudError>;

    /// Lists a cluster's routes.
    async fn list_routes(&self, cluster: &str) -> Result<Vec<OwnedRoute>, CloudError>;

    /// Changes routes: one answer per edit, in order. For latency and rate limit, a batch is one
    /// call.
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

    /// Lists a cluster's load balancers.
    async fn list_load_balancers(&self, cluster: &str) -> Result<Vec<LoadBalancer>, CloudError>;
}

#[async_trait]
impl CloudApi for MockCloud {
    async fn describe_instances(
        &self,
        queries: &[CloudInstanceQuery],
    ) -> Result<Vec<Result<Option<Instance>, CloudError>>, CloudError> {
        let operation = Operation::DescribeInstances;
        let count = |calls: &mut Calls| {
            calls.describe_instances += 1;
            calls.describe_instances_nodes += queries.len() as u64;
        };
        let one = |state: &mut CloudState, query: &CloudInstanceQuery| match state
            .faults
            .fire(operation, &[&query.node])
        {
            Some(fired) if fired.error == FaultError::NotFound => Ok(None),
            Some(fired) => Err(fired.into_error(operation, &[&query.node])),
            None => state.instances.find(query),
        };
        let all = |state: &mut CloudState| queries.iter().map(|query| one(state, query)).collect();
        self.call(operation, count, all).await
    }

    async fn list_routes(&self, cluster: &str) -> Result<Vec<OwnedRoute>, CloudError> {
        let operation = Operation::ListRoutes;
        let list = |state: &mut CloudState| {
            state.with_faults(operation, &[], |state| {
                Ok(state.routes.list_for(cluster, &state.instances))
            })
        };
        self.call(operation, |calls| calls.add(operation, 1), list)
            .await?
    }

    async fn apply_routes(
        &self,
        batch: &RouteBatch,
    ) -> Result<Vec<Result<(), CloudError>>, CloudError> {
        let operation = |edit: &RouteEdit| match edit {
            RouteEdit::Create { .. } => Operation::CreateRoute,
            RouteEdit::Delete(_) => Operation::DeleteRoute,
        };
        let Some(first) = batch.edits.first() else {
            return Ok(Vec::new());
        };
        let count = |calls: &mut Calls| {
            batch
                .edits
                .iter()
                .for_each(|edit| calls.add(operation(edit), 1));
        };
        let one = |state: &mut CloudState, edit: &RouteEdit| match edit {
            RouteEdit::Create { node, destination, node_addresses } => {
                state.with_faults(operation(edit), &[node], |state| {
                    let target = state.instances.target(node)?;
                    let cluster = &*batch.cluster;
                    let destination = *destination;
                    let node_addresses = node_addresses.clone();
                    state.routes.create(NewRoute {
                        cluster,
                        node,
                        target,
                        destination,
                        node_addresses,
                    })
                })
            }
            RouteEdit::Delete(route) => {
                state.with_faults(operation(edit), &[&route.name, &route.node], |state| {
                    state.routes.delete(&batch.cluster, route);
                    Ok(())
                })
            }
        };
        let all =
            |state: &mut CloudState| batch.edits.iter().map(|edit| one(state, edit)).collect();
        self.call(operation(first), count, all).await
    }

    async fn get_load_balancer(
        &self,
        key: &LoadBalancerKey,
    ) -> Result<Option<LoadBalancer>, CloudError> {
        let get = |state: &mut CloudState| Ok(state.load_balancers.get(key));
        self.balancer_call(Operation::GetLoadBalancer, Some(key), get)
            .await
    }

    async fn create_load_balancer(
        &self,
        spec: &LoadBalancerSpec,
    ) -> Result<LoadBalancer, CloudError> {
        let create = |state: &mut CloudState| state.load_balancers.create(spec);
        self.balancer_call(Operation::CreateLoadBalancer, Some(&spec.key), create)
            .await
    }

    async fn modify_load_balancer(
        &self,
        key: &LoadBalancerKey,
        settings: &LoadBalancerSettings,
    ) -> Result<LoadBalancer, CloudError> {
        let modify = |state: &mut CloudState| state.load_balancers.modify(key, settings);
        self.balancer_call(Operation::ModifyLoadBalancer, Some(key), modify)
            .await
    }

    async fn update_load_balancer(
        &self,
        key: &LoadBalancerKey,
        members: &Members,
    ) -> Result<LoadBalancer, CloudError> {
        let update = |state: &mut CloudState| state.load_balancers.update(key, members);
        self.balancer_call(Operation::UpdateLoadBalancer, Some(key), update)
            .await
    }

    async fn delete_load_balancer(
        &self,
        key: &LoadBalancerKey,
    ) -> Result<DeleteResult, CloudError> {
        let delete = |state: &mut CloudState| Ok(state.load_balancers.delete(key));
        self.balancer_call(Operation::DeleteLoadBalancer, Some(key), delete)
            .await
    }

    async fn list_load_balancers(&self, cluster: &str) -> Result<Vec<LoadBalancer>, CloudError> {
        let list = |state: &mut CloudState| Ok(state.load_balancers.list_for(cluster));
        self.balancer_call(Operation::ListLoadBalancers, None, list)
            .await
    }
}

impl MockCloud {
    /// Runs one provider call: counts it, rejects it if it is over the rate limit, waits for the
    /// latency, then applies its effect. The hook runs before the latency and after the effect.
    async fn call<T>(
        &self,
        operation: Operation,
        count: impl FnOnce(&mut Calls),
        effect: impl FnOnce(&mut CloudState) -> T,
    ) -> Result<T, CloudError> {
        let (number, hook) = {
            let mut state = self.0.state.lock();
            count(&mut state.calls);
            state.number += 1;
            if let Err(after) = state.limits.take(operation.capability()) {
                state.calls.throttled += 1;
                let message =
                    format!("{}: rate limit exceeded", operation.as_str().replace('_', " "));
                return Err(CloudError::new(ErrorKind::Throttled, message).with_retry_after(after));
            }
            (state.number, state.hook.clone())
        };
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

    /// Runs one call about load balancers; a fault fails the call as a whole.
    async fn balancer_call<T>(
        &self,
        operation: Operation,
        key: Option<&LoadBalancerKey>,
        effect: impl FnOnce(&mut CloudState) -> Result<T, CloudError>,
    ) -> Result<T, CloudError> {
        let names = key.map_or_else(Vec::new, |key| vec![object_name(&key.service), &*key.service]);
        let all = |state: &mut CloudState| state.with_faults(operation, &names, effect);
        self.call(operation, |calls| calls.add(operation, 1), all)
            .await?
    }
}

impl CloudState {
    /// Applies an effect unless a fault matches the call. A fault that only loses the answer fails
    /// the call after the effect.
    fn with_faults<T>(
        &mut self,
        operation: Operation,
        names: &[&str],
        effect: impl FnOnce(&mut Self) -> Result<T, CloudError>,
    ) -> Result<T, CloudError> {
        match self.faults.fire(operation, names) {
            None => effect(self),
            Some(fired) => {
                if fired.answer_lost() {
                    // The caller does not learn the result.
                    drop(effect(self));
                }
                Err(fired.into_error(operation, names))
            }
        }
    }
}

/// Returns `name` of `namespace/name`.
fn object_name(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(_, name)| name)
}
