//! Load balancers of Services in the mock cloud.

pub mod annotations;
mod desired;
mod plan;

use std::time::Duration;

use async_trait::async_trait;
use ccm_core::{
    k8s::{LbIngress, LbStatus, ServiceView},
    provider::{
        BackendKind, CloudError, Digest, ErrorKind, LbOutcome, LbRef, LbSpec, LbSupport,
        LoadBalancers, Mutation, MutationResponse, Op, PlannedChange, Progress, ReadMode,
        RetainOutcome, ServiceInterpretation, ServiceNotice, SourceRanges, adopted_id,
    },
};

use self::{annotations::ServiceOptions, plan::Action};
use super::MockProvider;
use crate::cloud::{
    DeleteResult, LoadBalancer, LoadBalancerKey, LoadBalancerSpec, LoadBalancerState,
};

/// Names of the mutations of load balancers.
pub(super) const CREATE: &str = "create_load_balancer";
pub(super) const MODIFY: &str = "modify_load_balancer";
pub(super) const UPDATE: &str = "update_load_balancer";
pub(super) const DELETE: &str = "delete_load_balancer";
pub(super) const RETAIN: &str = "retain_load_balancer";
pub(super) const ADOPT: &str = "adopt_load_balancer";

/// Minimum delay before a load balancer that is being created or deleted is checked again.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum delay before such a load balancer is checked again.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(15);

#[async_trait]
impl LoadBalancers for MockProvider {
    /// Returns all features of the cloud, except those that the configuration disables.
    fn supports(&self) -> LbSupport {
        let features = &self.settings.features;
        LbSupport {
            source_ranges: features.source_ranges,
            udp: features.udp,
            sctp: features.sctp,
            mixed_protocols: features.mixed_protocols,
            ipv6: features.ipv6,
            dual_stack: features.dual_stack,
            no_node_ports: features.no_node_ports,
            load_balancer_ip: features.load_balancer_ip,
            client_ip_affinity: features.client_ip_affinity,
            retain: features.retain,
        }
    }

    fn classes(&self) -> Vec<Box<str>> {
        self.settings.classes.clone()
    }

    fn supports_endpoint_backends(&self) -> bool {
        self.settings.features.endpoints
    }

    /// Parses the Service. The digest covers the settings that are sent to the cloud and the
    /// `ipMode` of the status, and changes only if one of these changes.
    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation {
        let (options, mut errors) = ServiceOptions::parse(service, &self.settings);
        let sources = match SourceRanges::of(service) {
            Ok(sources) => sources,
            Err(source_errors) => {
                errors.extend(source_errors);
                SourceRanges::Unset
            }
        };
        let settings = match desired::settings(service, &options, &sources) {
            Ok(settings) => settings,
            Err(settings_errors) => {
                errors.extend(settings_errors);
                return ServiceInterpretation::Invalid(errors);
            }
        };
        if !errors.is_empty() {
            return ServiceInterpretation::Invalid(errors);
        }
        let digest = Digest::of(&(
            &service.uid,
            &service.namespace,
            &service.name,
            settings,
            options.ip_mode,
            adopted_id(service),
        ));
        ServiceInterpretation::Valid { backends: options.backends, digest }
    }

    /// Returns the backends from the annotations, unless these annotations themselves are invalid.
    fn backends_of_invalid(&self, service: &ServiceView) -> Option<BackendKind> {
        let (options, errors) = ServiceOptions::parse(service, &self.settings);
        for error in errors {
            if [annotations::BACKENDS, annotations::NODE_SELECTOR].contains(&&*error.field) {
                return None;
            }
        }
        Some(options.backends)
    }

    fn notices(&self, service: &ServiceView) -> Vec<ServiceNotice> {
        annotations::unknown_annotation_notices(service)
    }

    /// Reads the load balancer and applies the differences. A load balancer that is up to date
    /// costs one read and no write. No state is kept between calls, so both read modes are the
    /// same, and a new call continues where an interrupted call stopped. The status is returned
    /// once the load balancer is active.
    async fn ensure(&self, op: &Op, desired: &LbSpec, _: ReadMode) -> LbOutcome {
        match self.ensure_load_balancer(op, desired).await {
            Ok(load_balancer) => {
                let (options, _) = ServiceOptions::parse(&desired.service, &self.settings);
                outcome(op, &load_balancer, options.ip_mode)
            }
            Err(error) => error.into(),
        }
    }

    /// Replaces the members, with one write and no read. The status stays unchanged.
    async fn update_backends(&self, op: &Op, desired: &LbSpec) -> LbOutcome {
        match self.set_members(op, desired).await {
            Ok(load_balancer) => LbOutcome { status: None, ..outcome(op, &load_balancer, None) },
            Err(error) => error.into(),
        }
    }

    /// Deletes the load balancer, with one read, and one write if it exists and is not being
    /// deleted yet.
    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let key = desired::key(op.cluster_name(), &lb.uid, &lb.namespace, &lb.name);
        self.delete_load_balancer(op, &key).await
    }

    /// Marks the load balancer, with one write. One that was marked before is found again.
    async fn retain(&self, op: &Op, lb: &LbRef) -> Result<RetainOutcome, CloudError> {
        let key = desired::key(op.cluster_name(), &lb.uid, &lb.namespace, &lb.name);
        let mutation = Mutation::new(RETAIN, &*key.name);
        let retained = op
            .mutate(mutation, async {
                Ok(MutationResponse::new(self.api.retain_load_balancer(&key).await?))
            })
            .await?;
        Ok(match retained {
            None => RetainOutcome::NothingToRetain {
                reason: format!("the cloud has no {} of this Service", key.name).into(),
            },
            Some(retained) => RetainOutcome::Retained {
                id: retained.id.into(),
                kept: format!(
                    "load balancer {} with its address {}",
                    retained.name, retained.address
                )
                .into(),
            },
        })
    }

    fn stale_annotations(&self, _: &LbRef) -> Vec<Box<str>> {
        vec![annotations::LOAD_BALANCER_ID.into()]
    }

    async fn plan(&self, op: &Op, desired: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let service = &desired.service;
        let adopted = adopted_id(service);
        let desired = desired::spec(desired, &self.settings)?;
        let observed = op.run(self.api.get_load_balancer(&desired.key)).await?;
        match plan::plan_adoption(observed.as_ref(), adopted)? {
            Some(id) => Ok(vec![plan::describe_adoption(&desired, id)]),
            None => Ok(plan::describe(observed.as_ref(), &desired, service)),
        }
    }
}

impl MockProvider {
    /// Reads the load balancer, plans the differences and applies them.
    async fn ensure_load_balancer(
        &self,
        op: &Op,
        desired: &LbSpec,
    ) -> Result<LoadBalancer, CloudError> {
        let adopted = adopted_id(&desired.service);
        let desired = desired::spec(desired, &self.settings)?;
        let mut load_balancer = op.run(self.api.get_load_balancer(&desired.key)).await?;
        // An adoption comes first. Then only what differs is changed.
        if let Some(id) = plan::plan_adoption(load_balancer.as_ref(), adopted)? {
            load_balancer = Some(self.adopt(op, id, &desired.key).await?);
        }
        for action in plan::plan(load_balancer.as_ref(), &desired) {
            load_balancer = Some(self.apply_action(op, &desired, &action).await?);
        }
        // Never `None`, because the plan creates a load balancer that does not exist, and every
        // action returns the load balancer.
        load_balancer.ok_or_else(|| {
            CloudError::transient(format!(
                "the cloud did not return load balancer {}",
                desired.key.name
            ))
        })
    }

    async fn adopt(
        &self,
        op: &Op,
        id: &str,
        key: &LoadBalancerKey,
    ) -> Result<LoadBalancer, CloudError> {
        let mutation = Mutation::new(ADOPT, id).with_detail("the service adopts it");
        op.mutate(mutation, async {
            Ok(MutationResponse::new(self.api.adopt_load_balancer(id, key).await?))
        })
        .await
    }

    /// Applies one action and returns the load balancer after it.
    async fn apply_action(
        &self,
        op: &Op,
        desired: &LoadBalancerSpec,
        action: &Action,
    ) -> Result<LoadBalancer, CloudError> {
        let key = &desired.key;
        let (operation, reason) = match action {
            Action::Create => (CREATE, "the load balancer does not exist"),
            Action::Modify(_, reason) => (MODIFY, &**reason),
            Action::SetMembers(_, reason) => (UPDATE, &**reason),
        };
        let mutation = Mutation::new(operation, &*key.name).with_detail(reason);
        op.mutate(mutation, async {
            let load_balancer = match action {
                Action::Create => self.api.create_load_balancer(desired).await?,
                Action::Modify(settings, _) => self.api.modify_load_balancer(key, settings).await?,
                Action::SetMembers(members, _) => {
                    self.api.update_load_balancer(key, members).await?
                }
            };
            Ok(MutationResponse::new(load_balancer))
        })
        .await
    }

    async fn set_members(&self, op: &Op, desired: &LbSpec) -> Result<LoadBalancer, CloudError> {
        let key = desired::key_of(desired);
        let mutation = Mutation::new(UPDATE, &*key.name);
        let members = desired::members(desired);
        op.mutate(mutation, async {
            let load_balancer = self.api.update_load_balancer(&key, &members).await?;
            Ok(MutationResponse::new(load_balancer))
        })
        .await
    }

    /// Deletes the load balancer of this owner. A load balancer that does not exist counts as
    /// deleted.
    pub(super) async fn delete_load_balancer(
        &self,
        op: &Op,
        key: &LoadBalancerKey,
    ) -> Result<Progress, CloudError> {
        let pending = Progress::Pending {
            after: poll_interval(op),
            reason: "load balancer is being deleted".into(),
        };
        let Some(load_balancer) = op.run(self.api.get_load_balancer(key)).await? else {
            return Ok(Progress::Done);
        };
        if load_balancer.state == LoadBalancerState::Deleting {
            return Ok(pending);
        }
        let mutation = Mutation::new(DELETE, &*key.name);
        let deleted = op
            .mutate(mutation, async {
                let result = self.api.delete_load_balancer(key).await?;
                Ok(MutationResponse::new(result))
            })
            .await;
        match deleted {
            Ok(DeleteResult::Gone) => Ok(Progress::Done),
            Ok(DeleteResult::InProgress) => Ok(pending),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Progress::Done),
            Err(error) => Err(error),
        }
    }
}

/// Converts the state of the load balancer to the outcome of a sync.
fn outcome(op: &Op, load_balancer: &LoadBalancer, ip_mode: Option<&str>) -> LbOutcome {
    match load_balancer.state {
        LoadBalancerState::Provisioning => {
            LbOutcome::pending(poll_interval(op), "load balancer is being provisioned")
        }
        LoadBalancerState::Deleting => {
            LbOutcome::pending(poll_interval(op), "the previous load balancer is being deleted")
        }
        LoadBalancerState::Active => {
            let mut ingress = Vec::new();
            for address in &load_balancer.addresses {
                ingress.push(LbIngress {
                    ip: Some(*address),
                    ip_mode: ip_mode.map(Into::into),
                    ..LbIngress::default()
                });
            }
            LbOutcome::done(LbStatus { ingress })
                .with_annotation(annotations::LOAD_BALANCER_ID, &*load_balancer.id)
        }
    }
}

/// Returns the delay before the next check. It is the time waited so far, within bounds, so the
/// delay doubles each time.
fn poll_interval(op: &Op) -> Duration {
    op.pending_for().clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL)
}

#[cfg(test)]
mod cloud_tests;
#[cfg(test)]
mod tests;
