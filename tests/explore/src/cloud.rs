//! The way of a process to the mock cloud, through the seam.

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::provider::{CloudError, ErrorKind};
use ccm_mock::cloud::{
    CloudApi, CloudInstanceQuery, DeleteResult, Instance, LoadBalancer, LoadBalancerKey,
    LoadBalancerSettings, LoadBalancerSpec, Members, MockCloud, OwnedRoute, RouteBatch, RouteEdit,
};

use crate::{
    fault::{Fault, SLOW},
    interceptor::{FaultResponse, Interceptor, Operation, OperationKind, Side},
    invariants::InvariantChecker,
    mutants::Bug,
    process::Process,
};

/// The cloud as one process reaches it.
#[derive(Clone)]
pub(crate) struct InterceptedCloud {
    pub(crate) cloud: MockCloud,
    pub(crate) process: Arc<Process>,
    pub(crate) seam: Interceptor,
    pub(crate) witness: InvariantChecker,
    pub(crate) bug: Option<Bug>,
}

impl InterceptedCloud {
    async fn call<T, F>(
        &self,
        kind: OperationKind,
        action: &str,
        object: &str,
        call: impl FnOnce(MockCloud) -> F,
    ) -> Result<T, CloudError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CloudError>> + Send + 'static,
    {
        let words = ["cloud", action, &object.replace('/', ".")].map(str::to_owned);
        let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let operation = Operation { side: Side::Cloud, kind, name: words.join(".") };
        let (process, witness, name) =
            (self.process.clone(), self.witness.clone(), operation.name.clone());
        let call = call(self.cloud.clone());
        let call = async move {
            let answer = call.await;
            if kind == OperationKind::Write {
                witness.check_changes(Some((&process, &name)));
            }
            answer
        };
        self.seam.intercept(&self.process, operation, call).await
    }
}

impl<T: Send + 'static> FaultResponse for Result<T, CloudError> {
    fn refused(fault: Fault, operation: &Operation) -> Self {
        let Fault::Cloud(kind) = fault else {
            return Self::broken(operation);
        };
        let error = CloudError::new(kind, format!("refused at {}", operation.name));
        Err(if kind == ErrorKind::Throttled {
            error.with_retry_after(SLOW)
        } else {
            error
        })
    }

    fn broken(operation: &Operation) -> Self {
        Err(CloudError::transient(format!("connection broken at {}", operation.name)))
    }
}

#[async_trait]
impl CloudApi for InterceptedCloud {
    async fn describe_instances(
        &self,
        queries: &[CloudInstanceQuery],
    ) -> Result<Vec<Result<Option<Instance>, CloudError>>, CloudError> {
        let queries = queries.to_vec();
        let mut names: Vec<_> = queries.iter().map(|query| query.node.clone()).collect();
        names.sort();
        let call = |cloud: MockCloud| async move { cloud.describe_instances(&queries).await };
        self.call(OperationKind::Read, "describe_instances", &names.join("+"), call)
            .await
    }

    async fn list_routes(&self, cluster: &str) -> Result<Vec<OwnedRoute>, CloudError> {
        let cluster = cluster.to_owned();
        self.call(OperationKind::Read, "list_routes", "", |cloud| async move {
            cloud.list_routes(&cluster).await
        })
        .await
    }

    async fn apply_routes(
        &self,
        batch: &RouteBatch,
    ) -> Result<Vec<Result<(), CloudError>>, CloudError> {
        let batch = batch.clone();
        let word = |edit: &RouteEdit| match edit {
            RouteEdit::Create { node, .. } => format!("create-{node}"),
            RouteEdit::Delete(route) => format!("delete-{}", route.node),
        };
        let mut words: Vec<_> = batch.edits.iter().map(word).collect();
        words.sort();
        let call = |cloud: MockCloud| async move { cloud.apply_routes(&batch).await };
        self.call(OperationKind::Write, "apply_routes", &words.join("+"), call)
            .await
    }

    async fn get_load_balancer(
        &self,
        key: &LoadBalancerKey,
    ) -> Result<Option<LoadBalancer>, CloudError> {
        let key = key.clone();
        let object = key.service.clone();
        self.call(OperationKind::Read, "get_load_balancer", &object, |cloud| async move {
            cloud.get_load_balancer(&key).await
        })
        .await
    }

    async fn create_load_balancer(
        &self,
        spec: &LoadBalancerSpec,
    ) -> Result<LoadBalancer, CloudError> {
        let create = |spec: LoadBalancerSpec| async move {
            let object = spec.key.service.clone();
            let call = |cloud: MockCloud| async move { cloud.create_load_balancer(&spec).await };
            self.call(OperationKind::Write, "create_load_balancer", &object, call)
                .await
        };
        match create(spec.clone()).await {
            Err(error)
                if self.bug == Some(Bug::CreatedAgain) && error.kind() == ErrorKind::Transient =>
            {
                let mut again = spec.clone();
                again.key.name.push_str("-again");
                create(again).await
            }
            answer => answer,
        }
    }

    async fn modify_load_balancer(
        &self,
        key: &LoadBalancerKey,
        settings: &LoadBalancerSettings,
    ) -> Result<LoadBalancer, CloudError> {
        let (key, settings) = (key.clone(), settings.clone());
        let object = key.service.clone();
        let call =
            |cloud: MockCloud| async move { cloud.modify_load_balancer(&key, &settings).await };
        self.call(OperationKind::Write, "modify_load_balancer", &object, call)
            .await
    }

    async fn update_load_balancer(
        &self,
        key: &LoadBalancerKey,
        members: &Members,
    ) -> Result<LoadBalancer, CloudError> {
        let (key, members) = (key.clone(), members.clone());
        let object = key.service.clone();
        let call =
            |cloud: MockCloud| async move { cloud.update_load_balancer(&key, &members).await };
        self.call(OperationKind::Write, "update_load_balancer", &object, call)
            .await
    }

    async fn delete_load_balancer(
        &self,
        key: &LoadBalancerKey,
    ) -> Result<DeleteResult, CloudError> {
        let key = key.clone();
        let object = key.service.clone();
        let call = |cloud: MockCloud| async move { cloud.delete_load_balancer(&key).await };
        self.call(OperationKind::Write, "delete_load_balancer", &object, call)
            .await
    }

    async fn retain_load_balancer(
        &self,
        key: &LoadBalancerKey,
    ) -> Result<Option<LoadBalancer>, CloudError> {
        let key = key.clone();
        let object = key.service.clone();
        let call = |cloud: MockCloud| async move { cloud.retain_load_balancer(&key).await };
        self.call(OperationKind::Write, "retain_load_balancer", &object, call)
            .await
    }

    async fn adopt_load_balancer(
        &self,
        id: &str,
        key: &LoadBalancerKey,
    ) -> Result<LoadBalancer, CloudError> {
        let (id, key) = (id.to_owned(), key.clone());
        let object = key.service.clone();
        let call = |cloud: MockCloud| async move { cloud.adopt_load_balancer(&id, &key).await };
        self.call(OperationKind::Write, "adopt_load_balancer", &object, call)
            .await
    }

    async fn list_load_balancers(&self, cluster: &str) -> Result<Vec<LoadBalancer>, CloudError> {
        let cluster = cluster.to_owned();
        self.call(OperationKind::Read, "list_load_balancers", "", |cloud| async move {
            cloud.list_load_balancers(&cluster).await
        })
        .await
    }
}
