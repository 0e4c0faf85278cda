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
        ServiceInterpretation, ServiceNotice, SourceRanges,
    },
};

use self::{annotations::Options, plan::Action};
use super::MockProvider;
use crate::cloud::{
    DeleteResult, LoadBalancer, LoadBalancerKey, LoadBalancerSpec, LoadBalancerState,
};

/// Names of the mutations of load balancers.
pub(super) const CREATE: &str = "create_load_balancer";
pub(super) const MODIFY: &str = "modify_load_balancer";
pub(super) const UPDATE: &str = "update_load_balancer";
pub(super) const DELETE: &str = "delete_load_balancer";

/// Minimum and maximum delay before a load balancer that is being created or deleted is checked
/// again.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));

#[async_trait]
impl LoadBalancers for MockProvider {
    /// All features of the cloud, except those that the configuration turns off.
    fn supports(&self) -> LbSupport {
        let features = &self.settings.features;
        LbSupport {
            source_ranges: features.source_ranges,
            udp: features.udp,
            sctp: features.sctp,
            mixed_protocols: features.mixed_protocols,
            dual_stack: features.dual_stack,
            no_node_ports: features.no_node_ports,
            load_balancer_ip: features.load_balancer_ip,
            client_ip_affinity: features.client_ip_affinity,
        }
    }

    fn classes(&self) -> Vec<Box<str>> {
        self.settings.classes.clone()
    }

    fn supports_endpoint_backends(&self) -> bool {
        self.settings.features.endpoints
    }

    /// The digest covers the settings that are sent to the cloud, and the `ipMode` of the status;
    /// it changes only when one of these changes.
    fn interpret(&self, service: &ServiceView) -> ServiceInterpretation {
        let (options, mut mistakes) = Options::parse(service, &self.settings);
        let sources = SourceRanges::of(service).unwrap_or_else(|add_error| {
            mistakes.extend(add_error);
            SourceRanges::Unset
        });
        match desired::settings(service, &options, &sources) {
            Ok(settings) if mistakes.is_empty() => {
                let digest = Digest::of(&(
                    &service.uid,
                    &service.namespace,
                    &service.name,
                    settings,
                    options.ip_mode,
                ));
                ServiceInterpretation::Valid { backends: options.backends, digest }
            }
            settings => {
                mistakes.extend(settings.err().into_iter().flatten());
                ServiceInterpretation::Invalid(mistakes)
            }
        }
    }

    /// Returns the backends that the annotations choose, unless these annotations themselves are
    /// invalid.
    fn backends_of_invalid(&self, service: &ServiceView) -> Option<BackendKind> {
        let (options, mistakes) = Options::parse(service, &self.settings);
        let chooses = [annotations::BACKENDS, annotations::NODE_SELECTOR];
        let unclear = mistakes
            .iter()
            .any(|mistake| chooses.contains(&&*mistake.field));
        (!unclear).then_some(options.backends)
    }

    fn notices(&self, service: &ServiceView) -> Vec<ServiceNotice> {
        annotations::unknown(service)
    }

    /// Reads the load balancer and sends the missing changes; one that is up to date costs one read
    /// and no write. No state is kept between calls, so both read modes are the same, and the next
    /// call continues where an interrupted call stopped. The status is returned once the load
    /// balancer is active.
    async fn ensure(&self, op: &Op, want: &LbSpec, _: ReadMode) -> LbOutcome {
        match self.ensure_balancer(op, want).await {
            Ok(load_balancer) => {
                outcome(op, &load_balancer, Options::parse(&want.service, &self.settings).0.ip_mode)
            }
            Err(error) => error.into(),
        }
    }

    /// Costs one write and no read; the status stays unchanged.
    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        match self.set_members(op, want).await {
            Ok(load_balancer) => LbOutcome { status: None, ..outcome(op, &load_balancer, None) },
            Err(error) => error.into(),
        }
    }

    /// Costs one read, and one write if the load balancer exists and is not being deleted yet.
    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let key = desired::key(op.cluster_name(), &lb.uid, &lb.namespace, &lb.name);
        self.delete_balancer(op, &key).await
    }

    fn stale_annotations(&self, _: &LbRef) -> Vec<Box<str>> {
        vec![annotations::LOAD_BALANCER_ID.into()]
    }

    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let service = &want.service;
        let want = desired::spec(want, &self.settings)?;
        let seen = op.run(self.api.get_load_balancer(&want.key)).await?;
        Ok(plan::describe(seen.as_ref(), &want, service))
    }
}

impl MockProvider {
    async fn ensure_balancer(&self, op: &Op, want: &LbSpec) -> Result<LoadBalancer, CloudError> {
        let want = desired::spec(want, &self.settings)?;
        let mut seen = op.run(self.api.get_load_balancer(&want.key)).await?;
        for action in plan::plan(seen.as_ref(), &want) {
            seen = Some(self.apply_action(op, &want, &action).await?);
        }
        // Cannot be `None`: without a load balancer the plan creates one, and every action returns
        // it.
        seen.ok_or_else(|| {
            CloudError::transient(format!("load balancer {} was not answered", want.key.name))
        })
    }

    async fn apply_action(
        &self,
        op: &Op,
        want: &LoadBalancerSpec,
        action: &Action,
    ) -> Result<LoadBalancer, CloudError> {
        let (operation, why) = match action {
            Action::Create => (CREATE, "there is none"),
            Action::Modify(_, why) => (MODIFY, &**why),
            Action::SetMembers(_, why) => (UPDATE, &**why),
        };
        let mutation = Mutation::new(operation, &*want.key.name).with_detail(why);
        let request = async {
            match action {
                Action::Create => self.api.create_load_balancer(want).await,
                Action::Modify(settings, _) => {
                    self.api.modify_load_balancer(&want.key, settings).await
                }
                Action::SetMembers(members, _) => {
                    self.api.update_load_balancer(&want.key, members).await
                }
            }
        };
        op.mutate(mutation, async { request.await.map(MutationResponse::new) })
            .await
    }

    async fn set_members(&self, op: &Op, want: &LbSpec) -> Result<LoadBalancer, CloudError> {
        let key = desired::key_of(want);
        let mutation = Mutation::new(UPDATE, &*key.name);
        let members = desired::members(want);
        op.mutate(mutation, async {
            self.api
                .update_load_balancer(&key, &members)
                .await
                .map(MutationResponse::new)
        })
        .await
    }

    /// Deletes the load balancer of this owner; a load balancer that does not exist counts as
    /// deleted.
    pub(super) async fn delete_balancer(
        &self,
        op: &Op,
        key: &LoadBalancerKey,
    ) -> Result<Progress, CloudError> {
        let underway = Progress::Pending {
            after: poll_interval(op),
            why: "load balancer is being deleted".into(),
        };
        match op.run(self.api.get_load_balancer(key)).await? {
            None => return Ok(Progress::Done),
            Some(load_balancer) if load_balancer.state == LoadBalancerState::Deleting => {
                return Ok(underway);
            }
            Some(_) => {}
        }
        let mutation = Mutation::new(DELETE, &*key.name);
        match op
            .mutate(mutation, async {
                self.api
                    .delete_load_balancer(key)
                    .await
                    .map(MutationResponse::new)
            })
            .await
        {
            Ok(DeleteResult::Gone) => Ok(Progress::Done),
            Ok(DeleteResult::InProgress) => Ok(underway),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Progress::Done),
            Err(error) => Err(error),
        }
    }
}

fn outcome(op: &Op, load_balancer: &LoadBalancer, ip_mode: Option<&str>) -> LbOutcome {
    match load_balancer.state {
        LoadBalancerState::Provisioning => {
            LbOutcome::pending(poll_interval(op), "load balancer is being provisioned")
        }
        LoadBalancerState::Deleting => {
            LbOutcome::pending(poll_interval(op), "the previous load balancer is being deleted")
        }
        LoadBalancerState::Active => {
            let ingress = |ip| LbIngress {
                ip: Some(ip),
                ip_mode: ip_mode.map(Into::into),
                ..LbIngress::default()
            };
            let status = LbStatus {
                ingress: load_balancer
                    .addresses
                    .iter()
                    .copied()
                    .map(ingress)
                    .collect(),
            };
            LbOutcome::done(status)
                .with_annotation(annotations::LOAD_BALANCER_ID, &*load_balancer.id)
        }
    }
}

/// Returns the delay before the next check: the time waited so far, within bounds, so that the
/// delay doubles each time.
fn poll_interval(op: &Op) -> Duration {
    op.pending_for().clamp(LOOK_AGAIN.0, LOOK_AGAIN.1)
}

#[cfg(test)]
mod cloud_tests;
#[cfg(test)]
mod tests;
