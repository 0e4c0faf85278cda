//! Explains a Service from the caches and the sync state. Sends no request.

mod backends;
mod causes;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use self::{
    backends::{SelectedBackends, explain_endpoints, explain_nodes},
    causes::{ServiceFacts, causes},
};
use super::{
    EndpointSliceIndex, NodeChanges, ServiceController,
    backend_node_cache::{StoredNodeSets, is_candidate, target},
    backend_nodes::BackendNodes,
    plan::{DesiredState, PlanInput, ServeAction, ServiceAction, ServiceSyncState, plan},
};
use crate::{
    config::controller_names::SERVICE_LB,
    explain::{
        ExistingLoadBalancer, ExplainTime, ExplainedAnnotation, ExplainedPlan, Explainer,
        RequestedLoadBalancer, ServiceExplanation,
    },
    k8s::{LbIngress, NodeView, Protocol, ServiceFields, ServiceView, TrafficPolicy},
    provider::{
        BackendKind, CloudProvider, Digest, FieldError, RemovalPlan, ServiceInterpretation,
    },
    runtime::cache::Cache,
};

/// Explains Services from the state of the controller.
struct ServiceExplainer {
    provider: Arc<dyn CloudProvider>,
    services: Cache<ServiceView>,
    nodes: Cache<NodeView>,
    stored_nodes: StoredNodeSets,
    fields: ServiceFields,
    slices: Option<EndpointSliceIndex>,
    states: Arc<Mutex<HashMap<Arc<str>, ServiceSyncState>>>,
    node_changes: Arc<NodeChanges>,
    started_at: Instant,
}

/// A Service as the provider parses it.
#[derive(Default)]
struct ParsedService {
    desired: Option<DesiredState>,
    errors: Vec<FieldError>,
    backends: Option<SelectedBackends>,
    notices: Vec<String>,
}

impl ServiceController {
    /// Returns what explains Services while the controller runs.
    pub(crate) fn explainer(&self) -> Arc<dyn Explainer> {
        Arc::new(ServiceExplainer {
            provider: self.ctx.provider.clone(),
            services: self.services.clone(),
            nodes: self.ctx.nodes.clone(),
            stored_nodes: self.backend_nodes.stored(),
            fields: self.fields.clone(),
            slices: self.slices.clone(),
            states: self.states.clone(),
            node_changes: self.node_changes.clone(),
            started_at: self.started_at,
        })
    }
}

impl Explainer for ServiceExplainer {
    fn explain_service(&self, key: &str, time: ExplainTime) -> Option<ServiceExplanation> {
        let mut state = self.states.lock().get(key).cloned().unwrap_or_default();
        let cached = self.services.get(key);
        state.observe_retention(cached.as_deref());
        // A Service that is gone is explained as long as its load balancer exists.
        let service = cached.clone().or_else(|| {
            state
                .last_observed
                .clone()
                .filter(|_| state.may_exist_in_cloud)
        })?;
        // Parse the Service and plan it, as a sync does.
        let now = time.now.duration_since(self.started_at);
        let parsed = match &cached {
            Some(service) if self.is_to_be_served(service, &state) => self.parse(service, key),
            _ => ParsedService::default(),
        };
        let node_sync_due = self.node_changes.batcher.lock().due();
        let is_served_by_nodes = matches!(state.backend_kind, Some(BackendKind::Nodes(_)));
        let action = plan(PlanInput {
            service: cached.as_deref(),
            state: &state,
            fields: &self.fields,
            desired: parsed.desired.as_ref(),
            node_sync_scheduled: is_served_by_nodes && node_sync_due.is_some(),
            now,
        });
        let facts = ServiceFacts {
            service: &service,
            exists: cached.is_some(),
            is_our_class: self.fields.claims_class(service.class.as_deref()),
            state: &state,
            desired: parsed.desired.as_ref(),
            errors: &parsed.errors,
            backends: parsed.backends.as_ref(),
            action: &action,
            removal: self.removal_plan(cached.as_deref(), &state),
            now,
        };
        let causes = causes(&facts, time);
        let existing = self.explain_existing(&facts, time);
        let applied = facts.backends_are_applied();
        let summary = summary(key, &existing, causes.is_empty());
        Some(ServiceExplanation {
            service: key.to_owned(),
            at: time.wall(),
            summary,
            causes,
            requested: explain_request(&service, &state, &parsed),
            existing,
            plan: self.explain_plan(&facts, time),
            last_attempt: state
                .last_attempt
                .as_ref()
                .map(|attempt| attempt.explain(SERVICE_LB, time)),
            backends: parsed.backends.map(|backends| backends.explain(applied)),
        })
    }

    fn service_keys(&self) -> Vec<String> {
        let mut keys: BTreeSet<String> = self
            .services
            .list()
            .iter()
            .map(|service| service.key())
            .collect();
        // Services that are gone, and whose load balancers may still exist.
        for (key, state) in self.states.lock().iter() {
            if state.may_exist_in_cloud && state.last_observed.is_some() {
                keys.insert(key.to_string());
            }
        }
        keys.into_iter().collect()
    }
}

impl ServiceExplainer {
    /// Returns true if the Service should have a load balancer of ours, and no other Service of its
    /// name still has one.
    fn is_to_be_served(&self, service: &ServiceView, state: &ServiceSyncState) -> bool {
        let is_replaced = state.may_exist_in_cloud && state.uid != service.uid;
        self.fields.is_managed(service) && !is_replaced
    }

    /// Returns what is done with the load balancer if it is not needed.
    fn removal_plan(&self, service: Option<&ServiceView>, state: &ServiceSyncState) -> RemovalPlan {
        let can_retain = self
            .provider
            .load_balancers()
            .is_some_and(|load_balancers| load_balancers.supports().retain);
        state
            .retention_beside(service, can_retain)
            .removal(can_retain)
    }

    /// Parses a Service and selects its backends from the caches.
    fn parse(&self, service: &ServiceView, key: &str) -> ParsedService {
        let Some(load_balancers) = self.provider.load_balancers() else {
            return ParsedService::default();
        };
        let mut parsed = ParsedService::default();
        for notice in load_balancers.notices(service) {
            parsed
                .notices
                .push(format!("{}: {}", notice.reason, notice.note));
        }
        let (kind, digest) = match load_balancers.interpret(service) {
            ServiceInterpretation::ImplementedElsewhere => {
                parsed.desired = Some(DesiredState::ImplementedElsewhere);
                return parsed;
            }
            ServiceInterpretation::Invalid(errors) => {
                parsed.errors = errors;
                (load_balancers.backends_of_invalid(service), None)
            }
            ServiceInterpretation::Valid { backends, digest } => {
                parsed.errors = load_balancers.supports().validate(service);
                (Some(backends), Some(digest))
            }
        };
        parsed.backends = kind.map(|kind| self.select(&kind, key));
        parsed.desired = Some(match digest {
            Some(digest) if parsed.errors.is_empty() => DesiredState::Serve {
                digest,
                backends: parsed
                    .backends
                    .as_ref()
                    .and_then(|backends| backends.fingerprint)
                    .unwrap_or_default(),
            },
            _ => DesiredState::Invalid { errors: parsed.errors.clone(), served: None },
        });
        parsed
    }

    fn select(&self, kind: &BackendKind, key: &str) -> SelectedBackends {
        match kind {
            BackendKind::Nodes(requirements) => {
                let is_candidate = |node: &NodeView| is_candidate(&*self.provider, node);
                let target = target(&*self.provider);
                let mut nodes = self.nodes.list();
                let selected = explain_nodes(nodes.clone(), requirements, target, is_candidate);
                nodes.retain(|node| is_candidate(node));
                let set = BackendNodes::new(&nodes, requirements, target);
                let is_unconfirmed = self.stored_nodes.is_unconfirmed(requirements, &set);
                SelectedBackends { is_unconfirmed, ..selected }
            }
            BackendKind::Endpoints => {
                let slices = self.slices.as_ref();
                explain_endpoints(slices.and_then(|slices| slices.for_service(key)).as_deref())
            }
        }
    }

    fn explain_existing(
        &self,
        facts: &ServiceFacts<'_>,
        time: ExplainTime,
    ) -> ExistingLoadBalancer {
        let ServiceFacts { service, state, .. } = facts;
        ExistingLoadBalancer {
            finalizer: facts.exists && service.has_finalizer(),
            ingress: service.status.ingress.iter().map(entry_point).collect(),
            may_exist_in_cloud: state.may_exist_in_cloud,
            up_to_date: facts.spec_is_applied() && facts.backends_are_applied(),
            next_drift_check: state
                .last_applied
                .map(|applied| time.at(self.started_at + applied.verify_at)),
            pending_since: state
                .pending_since
                .map(|since| time.at(self.started_at + since)),
        }
    }

    fn explain_plan(&self, facts: &ServiceFacts<'_>, time: ExplainTime) -> ExplainedPlan {
        let ServiceFacts { action, state, .. } = *facts;
        let mut until = None;
        let name = match action {
            ServiceAction::Forget => "nothing",
            ServiceAction::Ignore => "leave it to another controller",
            ServiceAction::Wait { until: time } => {
                until = *time;
                "wait"
            }
            ServiceAction::ReportInvalid { .. } => "report the validation errors",
            ServiceAction::Serve(ServeAction::Ensure { .. }) => "ensure the load balancer",
            ServiceAction::Serve(ServeAction::UpdateBackends) => "update the backends",
            ServiceAction::Serve(ServeAction::CheckDrift(_)) => "compare with the cloud",
            ServiceAction::Serve(ServeAction::RestoreStatus) => "write finalizer and status again",
            ServiceAction::RemoveCondition => "remove the condition",
            ServiceAction::Delete { .. } => match facts.removal {
                RemovalPlan::Delete => "delete the load balancer",
                RemovalPlan::LetGo => "keep the load balancer and let go of it",
                RemovalPlan::Nothing => "delete nothing until the annotation is corrected",
            },
        };
        ExplainedPlan {
            action: name,
            reason: action.reason(state),
            until: until.map(|until| time.at(self.started_at + until)),
        }
    }
}

fn summary(key: &str, existing: &ExistingLoadBalancer, is_well: bool) -> String {
    let state = match (existing.ingress.is_empty(), is_well) {
        (true, true) => "has no address",
        (true, false) => "has no address; the causes say why",
        (false, true) => "is served",
        (false, false) => "is served, with the causes below",
    };
    let ingress = existing.ingress.join(", ");
    if ingress.is_empty() {
        format!("Service {key} {state}")
    } else {
        format!("Service {key} {state}: {ingress}")
    }
}

fn entry_point(ingress: &LbIngress) -> String {
    match (&ingress.ip, &ingress.hostname) {
        (Some(ip), _) => ip.to_string(),
        (None, Some(name)) => name.to_string(),
        (None, None) => String::new(),
    }
}

fn explain_request(
    service: &ServiceView,
    state: &ServiceSyncState,
    parsed: &ParsedService,
) -> RequestedLoadBalancer {
    let ports = service.ports.iter().map(|port| {
        let protocol = match port.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        };
        match port.node_port {
            Some(node_port) => format!("{}/{protocol} -> node port {node_port}", port.port),
            None => format!("{}/{protocol}", port.port),
        }
    });
    let annotations = service.annotations.iter().map(|(key, value)| {
        let is_ours = state.desired_annotations.contains_key(&**key);
        ExplainedAnnotation {
            key: key.to_string(),
            value: value.to_string(),
            origin: if is_ours {
                "this manager"
            } else {
                "the owner of the Service"
            },
        }
    });
    RequestedLoadBalancer {
        is_load_balancer: service.is_load_balancer,
        class: service.class.as_deref().map(str::to_owned),
        ports: ports.collect(),
        external_traffic_policy: match service.external_traffic_policy {
            TrafficPolicy::Cluster => "Cluster",
            TrafficPolicy::Local => "Local",
        },
        source_ranges: service
            .source_ranges
            .iter()
            .map(ToString::to_string)
            .collect(),
        annotations: annotations.collect(),
        validation_errors: parsed.errors.iter().map(ToString::to_string).collect(),
        notices: parsed.notices.clone(),
    }
}

impl ServiceFacts<'_> {
    /// Returns true if the desired spec was last applied to the cloud.
    fn spec_is_applied(&self) -> bool {
        self.desired_digest().is_some_and(|digest| {
            self.state
                .last_applied
                .is_some_and(|last| last.digest == digest)
        })
    }

    /// Returns true if the desired backends were last applied to the cloud.
    fn backends_are_applied(&self) -> bool {
        let applied = self
            .state
            .last_applied
            .and_then(|applied| applied.backend_fingerprint);
        let desired = self.backends.and_then(|backends| backends.fingerprint);
        applied.is_some() && applied == desired
    }

    fn desired_digest(&self) -> Option<Digest> {
        match self.desired {
            Some(DesiredState::Serve { digest, .. }) => Some(*digest),
            _ => None,
        }
    }
}
