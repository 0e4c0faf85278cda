//! Finds the desired state of a Service, which consists of its spec as the provider parses it and
//! the backends that it selects.

use std::sync::Arc;

use super::{
    super::{
        ServiceController,
        backend_nodes::endpoints_fingerprint,
        plan::{
            DesiredState, ServedBackends, ServedSpec, SyncGoal, invalid_digest, is_finished,
            last_served_spec,
        },
        sync_error::{ServiceOperation, ServiceSyncError},
    },
    ServiceSync,
};
use crate::{
    explain::Cause,
    k8s::{EndpointSliceView, ServiceView},
    provider::{
        BackendKind, Backends, Digest, FieldError, LbSpec, ServiceInterpretation, SourceRanges,
    },
};

/// A Service as the provider and the framework parsed it.
pub(super) struct InterpretedService {
    /// The input of the plan.
    pub(super) desired_state: DesiredState,
    /// The load balancer that an action of the plan would apply, if there is one.
    pub(super) load_balancer: Option<DesiredLoadBalancer>,
}

impl InterpretedService {
    fn without_load_balancer(desired_state: DesiredState) -> Self {
        Self { desired_state, load_balancer: None }
    }
}

/// The desired load balancer of a Service.
pub(super) struct DesiredLoadBalancer {
    pub(super) service: Arc<ServiceView>,
    pub(super) digest: Digest,
    pub(super) backend_fingerprint: u64,
    pub(super) spec: LbSpec,
}

impl DesiredLoadBalancer {
    pub(super) fn served_backends(&self) -> ServedBackends {
        ServedBackends { digest: self.digest, fingerprint: self.backend_fingerprint }
    }

    pub(super) fn goal(&self) -> SyncGoal {
        SyncGoal::Serve(self.digest)
    }
}

/// The backends that a Service selects, and their fingerprint.
struct SelectedBackends {
    backends: Backends,
    fingerprint: u64,
}

impl ServiceController {
    /// Returns the Service if it should have a load balancer of ours.
    pub(super) fn service_to_serve(&self, sync: &ServiceSync) -> Option<Arc<ServiceView>> {
        let service = sync.service.as_ref()?;
        if sync.state.uid != service.uid || !self.fields.is_managed(service) {
            return None;
        }
        Some(service.clone())
    }

    /// Parses the Service and finds its backends.
    pub(super) async fn interpret(
        &self,
        sync: &mut ServiceSync,
        service: Arc<ServiceView>,
    ) -> Result<InterpretedService, ServiceSyncError> {
        sync.state.last_observed = Some(service.clone());
        let load_balancers = self
            .cloud
            .load_balancers()
            .map_err(|error| ServiceSyncError::cloud(ServiceOperation::Ensure, error))?;
        let interpretation = load_balancers.interpret(&service);
        // Every process adds the finalizer before its first cloud call.
        if interpretation != ServiceInterpretation::ImplementedElsewhere && service.has_finalizer()
        {
            sync.state.may_exist_in_cloud = true;
        }
        let (backend_kind, digest) = match interpretation {
            ServiceInterpretation::ImplementedElsewhere => {
                sync.implemented_elsewhere = true;
                return Ok(InterpretedService::without_load_balancer(
                    DesiredState::ImplementedElsewhere,
                ));
            }
            ServiceInterpretation::Invalid(errors) => {
                let backend_kind = load_balancers.backends_of_invalid(&service);
                return self
                    .interpret_invalid(sync, service, errors, backend_kind)
                    .await;
            }
            ServiceInterpretation::Valid { backends, digest } => (backends, digest),
        };
        let errors = load_balancers.supports().validate(&service);
        if !errors.is_empty() {
            return self
                .interpret_invalid(sync, service, errors, Some(backend_kind))
                .await;
        }
        sync.state.reported_invalid_digest = None;
        let desired = self
            .build_desired_load_balancer(sync, service, backend_kind, digest)
            .await?;
        let desired_state = DesiredState::Serve { digest, backends: desired.backend_fingerprint };
        Ok(InterpretedService { desired_state, load_balancer: Some(desired) })
    }

    /// Interprets an invalid Service. If its load balancer still serves an earlier spec, the
    /// backends of that spec are desired.
    ///
    /// `backend_kind` is the kind of backends that the invalid Service has, if that is known.
    async fn interpret_invalid(
        &self,
        sync: &mut ServiceSync,
        service: Arc<ServiceView>,
        errors: Vec<FieldError>,
        backend_kind: Option<BackendKind>,
    ) -> Result<InterpretedService, ServiceSyncError> {
        if self.config.conditions {
            sync.validation_errors = Some(join_errors(&errors));
        }
        let state = &sync.state;
        let digest = invalid_digest(&errors);
        // Let the plan report the validation errors before the backends are updated.
        if state.reported_invalid_digest != Some(digest) {
            return Ok(InterpretedService::without_load_balancer(DesiredState::Invalid {
                errors,
                served: None,
            }));
        }
        // Find the spec that the load balancer serves. If an earlier process finished the load
        // balancer, that spec is unknown, and the backends are those of the invalid Service.
        let mut served_spec = last_served_spec(state, &service);
        if served_spec.is_none()
            && is_finished(&service, state, self.now())
            && let Some(backend_kind) = backend_kind
        {
            served_spec = Some(ServedSpec { digest, service: service.clone(), backend_kind });
        }
        let Some(served) = served_spec else {
            return Ok(InterpretedService::without_load_balancer(DesiredState::Invalid {
                errors,
                served: None,
            }));
        };
        let desired = self
            .build_desired_load_balancer(sync, served.service, served.backend_kind, served.digest)
            .await?;
        let desired_state =
            DesiredState::Invalid { errors, served: Some(desired.served_backends()) };
        Ok(InterpretedService { desired_state, load_balancer: Some(desired) })
    }

    /// Selects the backends of a Service and builds its desired load balancer.
    async fn build_desired_load_balancer(
        &self,
        sync: &mut ServiceSync,
        service: Arc<ServiceView>,
        backend_kind: BackendKind,
        digest: Digest,
    ) -> Result<DesiredLoadBalancer, ServiceSyncError> {
        sync.goal = Some(SyncGoal::Serve(digest));
        // Invalid source ranges make the Service invalid, so only its backends will be updated.
        // Should they be applied nevertheless, no source is allowed.
        let sources = SourceRanges::of(&service).unwrap_or(SourceRanges::Only(Vec::new()));
        let SelectedBackends { backends, fingerprint } =
            self.select_backends(&sync.key, &backend_kind).await?;
        sync.state.backend_kind = Some(backend_kind);
        sync.backend_fingerprint = Some(fingerprint);
        sync.backends_cause = backends_cause(&backends);
        let cluster = Arc::from(self.op.cluster_name());
        let spec = LbSpec { cluster, service: service.clone(), sources, backends };
        Ok(DesiredLoadBalancer { service, digest, backend_fingerprint: fingerprint, spec })
    }

    async fn select_backends(
        &self,
        key: &str,
        backend_kind: &BackendKind,
    ) -> Result<SelectedBackends, ServiceSyncError> {
        match backend_kind {
            BackendKind::Nodes(requirements) => {
                let set = self
                    .backend_nodes
                    .get(requirements)
                    .await
                    .map_err(ServiceSyncError::StaleCache)?;
                Ok(SelectedBackends {
                    backends: Backends::Nodes(set.nodes.clone()),
                    fingerprint: set.fingerprint,
                })
            }
            BackendKind::Endpoints => {
                let slices = self.endpoint_slices(key)?;
                let fingerprint = endpoints_fingerprint(&slices);
                Ok(SelectedBackends { backends: Backends::Endpoints(slices), fingerprint })
            }
        }
    }

    fn endpoint_slices(&self, key: &str) -> Result<Vec<Arc<EndpointSliceView>>, ServiceSyncError> {
        let Some(index) = &self.slices else {
            return Ok(Vec::new());
        };
        index
            .for_service(key)
            .ok_or(ServiceSyncError::EndpointSlicesNotListed)
    }
}

/// Returns the errors in one line.
pub(super) fn join_errors(errors: &[FieldError]) -> String {
    let list: Vec<String> = errors.iter().map(ToString::to_string).collect();
    list.join("; ")
}

/// Returns the cause for which no backend serves; `None` if there is one.
fn backends_cause(backends: &Backends) -> Option<Cause> {
    match backends {
        Backends::Nodes(nodes) => nodes.is_empty().then_some(Cause::NoBackendNodes),
        Backends::Endpoints(slices) => {
            let mut endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
            let serves = endpoints.any(|endpoint| endpoint.serving && !endpoint.terminating);
            (!serves).then_some(Cause::NoEndpoints)
        }
    }
}
