//! Load balancers: Octavia.
//!
//! A sync [parses](spec::parse) the Service, observes its load balancer, [plans](plan) an action
//! for every difference, and applies the actions one by one, because Octavia takes one change of a
//! load balancer at a time. A sync may be interrupted at any point. The next one finds the objects
//! again, because names do not change and tags are set from the start.

mod adopt;
pub mod annotations;
mod api;
mod apply;
mod body;
mod create;
mod delete;
pub mod desired_members;
mod dry_run;
pub mod features;
mod floating_ip_sync;
mod inventory;
pub(in crate::lb) mod listing;
mod min_monitor_delay;
pub mod model;
pub mod names;
mod observe;
pub mod observed;
mod outcome;
pub mod ownership;
pub mod plan;
mod provisioning;
pub(in crate::lb) mod query_strategy;
mod read_state;
mod reconcile;
mod reconcile_input;
mod retain;
mod retention_tags;
mod security_group_sync;
pub mod security_groups;
pub mod settings;
pub mod spec;
mod status;
pub(in crate::lb) mod status_poller;
pub mod subnets;
mod sync_state;

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{
    k8s::ServiceView,
    provider::{
        BackendKind, CloudError, Digest, LbOutcome, LbRef, LbSpec, LbSupport, Op, PlannedChange,
        Progress, ReadMode, RetainOutcome, ServiceInterpretation, ServiceNotice,
    },
};

use self::{
    annotations::AnnotationReader,
    delete::DeleteInput,
    features::Features,
    floating_ip_sync::ExternalNetwork,
    min_monitor_delay::MinMonitorDelay,
    model::{DesiredLoadBalancer, ServiceKey},
    reconcile::LoadBalancerReconciler,
    reconcile_input::ReconcileInput,
    security_groups::SecurityGroupManager,
    settings::LoadBalancerSettings,
    spec::ParsedService,
    sync_state::SyncStateStore,
};
use crate::{
    client::{Call, Client},
    lb::{listing::ListingCache, status_poller::StatusPoller},
};

/// Requests that change load balancers.
pub const MUTATIONS: &[Call] = &[
    Call::LoadBalancerCreate,
    Call::LoadBalancerUpdate,
    Call::LoadBalancerDelete,
    Call::LoadBalancerFailover,
    Call::ListenerCreate,
    Call::ListenerUpdate,
    Call::ListenerDelete,
    Call::PoolCreate,
    Call::PoolUpdate,
    Call::PoolDelete,
    Call::MemberCreate,
    Call::MemberUpdate,
    Call::MemberDelete,
    Call::MembersUpdate,
    Call::MonitorCreate,
    Call::MonitorUpdate,
    Call::MonitorDelete,
    Call::FloatingIpCreate,
    Call::FloatingIpUpdate,
    Call::FloatingIpDelete,
    Call::PortUpdate,
    Call::PortTagDelete,
    Call::SecurityGroupCreate,
    Call::SecurityGroupDelete,
    Call::SecurityGroupRulesCreate,
    Call::SecurityGroupRuleDelete,
];

/// Load balancers of Octavia.
pub struct LoadBalancers {
    reconciler: LoadBalancerReconciler,
}

impl LoadBalancers {
    /// Detects Octavia's features and creates the controller, with no sync state.
    ///
    /// # Errors
    /// Returns an error if Octavia does not report its versions.
    pub async fn new(
        client: Client,
        settings: LoadBalancerSettings,
        cluster: Arc<str>,
    ) -> Result<Self, CloudError> {
        let version = client.session().octavia().await?;
        let features = Features::new((version.0, version.1), &settings.driver);
        let listings = ListingCache::new(settings.manage_security_groups);
        Ok(Self {
            reconciler: LoadBalancerReconciler {
                client,
                settings,
                features,
                min_monitor_delay: MinMonitorDelay::default(),
                cluster,
                sync_states: SyncStateStore::default(),
                external_network: ExternalNetwork::default(),
                security_groups: SecurityGroupManager::default(),
                listings,
                status_poller: StatusPoller::default(),
            },
        })
    }

    fn parse(&self, service: &ServiceView) -> ParsedService {
        let features = Features {
            min_udp_monitor_delay: self.reconciler.min_monitor_delay.get(),
            ..self.reconciler.features
        };
        spec::parse(service, &self.reconciler.settings, features, &self.reconciler.cluster)
    }

    fn parse_valid(&self, spec: &LbSpec) -> Result<Box<DesiredLoadBalancer>, CloudError> {
        self.parse(&spec.service).desired.map_err(CloudError::from)
    }
}

#[async_trait]
impl ccm_core::provider::LoadBalancers for LoadBalancers {
    /// Supports everything, with these exceptions. Where source ranges cannot be enforced,
    /// [`spec::parse`] rejects new Services that have any. Members are reached only by node ports.
    fn supports(&self) -> LbSupport {
        LbSupport {
            source_ranges: true,
            udp: true,
            sctp: true,
            mixed_protocols: true,
            ipv6: true,
            dual_stack: true,
            no_node_ports: false,
            load_balancer_ip: true,
            client_ip_affinity: true,
            retain: true,
        }
    }

    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation {
        match self.parse(service).desired {
            Ok(desired) => {
                let backends = BackendKind::Nodes(desired.node_labels.clone());
                ServiceInterpretation::Valid { backends, digest: Digest::of(&desired) }
            }
            Err(errors) => ServiceInterpretation::Invalid(errors),
        }
    }

    fn backends_of_invalid(&self, service: &ServiceView) -> Option<BackendKind> {
        self.parse(service)
            .tolerant
            .map(|desired| BackendKind::Nodes(desired.node_labels))
    }

    fn notices(&self, service: &ServiceView) -> Vec<ServiceNotice> {
        self.parse(service).notices
    }

    /// Sends no request for a Service that is known to be in sync. While Octavia is busy with a
    /// change, the result is pending, and the next call continues.
    async fn ensure(&self, op: &Op, spec: &LbSpec, read_mode: ReadMode) -> LbOutcome {
        match self.parse_valid(spec) {
            Ok(desired) => {
                self.reconciler
                    .ensure(
                        op,
                        &ReconcileInput::new(&desired, &spec.service, &spec.backends),
                        read_mode,
                    )
                    .await
            }
            Err(error) => error.into(),
        }
    }

    /// Sends one request for each pool that changes, because the sync state has the members.
    async fn update_backends(&self, op: &Op, spec: &LbSpec) -> LbOutcome {
        let ParsedService { desired, tolerant, .. } = self.parse(&spec.service);
        let invalid = desired.is_err();
        // The members of an invalid Service still follow its nodes.
        match desired.or_else(|errors| tolerant.ok_or(errors)) {
            Ok(desired) => {
                let input = ReconcileInput {
                    invalid,
                    ..ReconcileInput::new(&desired, &spec.service, &spec.backends)
                };
                self.reconciler.update_backends(op, &input).await
            }
            Err(errors) => CloudError::from(errors).into(),
        }
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let owner = ServiceKey {
            namespace: lb.namespace.clone(),
            name: lb.name.clone(),
            uid: lb.uid.clone(),
        };
        let service = lb.last_observed_service();
        let keep_floating_ip =
            AnnotationReader::new(&service).boolean(&annotations::KEEP_FLOATING_IP, false);
        self.reconciler
            .delete(op, &DeleteInput { owner: &owner, service: &service, keep_floating_ip })
            .await
    }

    /// Marks the load balancer with one update.
    async fn retain(&self, op: &Op, lb: &LbRef) -> Result<RetainOutcome, CloudError> {
        let owner = ServiceKey {
            namespace: lb.namespace.clone(),
            name: lb.name.clone(),
            uid: lb.uid.clone(),
        };
        let service = lb.last_observed_service();
        self.reconciler
            .retain(op, &DeleteInput { owner: &owner, service: &service, keep_floating_ip: true })
            .await
    }

    fn stale_annotations(&self, _: &LbRef) -> Vec<Box<str>> {
        vec![annotations::LOAD_BALANCER_ID.key(), annotations::LOAD_BALANCER_ADDRESS.key()]
    }

    async fn plan(&self, op: &Op, spec: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let desired = self.parse_valid(spec)?;
        self.reconciler
            .dry_run(op, &ReconcileInput::new(&desired, &spec.service, &spec.backends))
            .await
    }
}

#[cfg(test)]
mod tests;
