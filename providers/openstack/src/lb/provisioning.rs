//! Waits for a busy load balancer, and recovers one in ERROR.

use std::time::Duration;

use ccm_core::provider::{CloudError, EventType, Op, Progress};
use http::StatusCode;
use openstack_api::octavia::ProvisioningStatus;
use tokio::time::Instant;

use super::{
    floating_ip_sync, observe,
    plan::recovery::{
        FailoverInput, KeepReason, Recovery, RecoveryInput, plan_failover, plan_recovery,
    },
    reconcile::{LoadBalancerReconciler, ReconcileStop},
    reconcile_input::ReconcileInput,
    retention_tags,
    sync_state::{LoadBalancerSyncState, changed_meanwhile},
};
use crate::{
    api::octavia::LoadBalancer,
    client::{ErrorClass, OpenStackError},
    lb::status_poller::StatusQuery,
};

/// Minimum interval between two failovers of a load balancer. If one did not repair it, another
/// seldom does. It is also the interval between two attempts while Octavia does not allow it.
const MIN_FAILOVER_INTERVAL: Duration = Duration::from_secs(1800);

impl LoadBalancerReconciler {
    /// Continues only if the load balancer is ACTIVE. Stops as pending while it is busy, and starts
    /// the recovery of one in ERROR.
    pub(super) async fn wait_until_active(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        self.poll_status(op, input, state).await?;
        let load_balancer = state.require_observed()?.load_balancer.clone();
        match &load_balancer.provisioning_status {
            ProvisioningStatus::Active => {
                state.stop_waiting();
                Ok(())
            }
            ProvisioningStatus::Error => Err(self
                .recover_from_error(op, input, &load_balancer, state)
                .await),
            pending => Err(self.stop_as_pending(
                op,
                state,
                &format!("load balancer {} is {pending}", load_balancer.id),
            )),
        }
    }

    /// Polls a busy load balancer, and updates its observed state.
    async fn poll_status(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let Some(observed) = &state.observed else {
            return Ok(());
        };
        if !observed.load_balancer.provisioning_status.is_pending() {
            return Ok(());
        }
        let id = observed.load_balancer.id.clone();
        let found = self
            .refresh_status(op, state, &id, &input.desired.name)
            .await?;
        if let Some(load_balancer) = found
            && let Some(observed) = &mut state.observed
        {
            observed.load_balancer = load_balancer;
            return Ok(());
        }
        state.invalidate();
        Err(changed_meanwhile().into())
    }

    /// Reads a busy load balancer, or returns `None` if it does not exist. `name` is the name of
    /// the Service's load balancer, which is also its tag.
    ///
    /// When many load balancers are pending, one that was just changed is not read at once: the
    /// next listing of all pending ones will show it.
    pub(super) async fn refresh_status(
        &self,
        op: &Op,
        state: &mut LoadBalancerSyncState,
        id: &str,
        name: &str,
    ) -> Result<Option<LoadBalancer>, ReconcileStop> {
        let tag = self.features.tags.then_some(name);
        self.status_poller.register(id, tag.unwrap_or_default());
        if !state.is_waiting() && self.status_poller.should_list_together() {
            return Err(self.stop_as_pending(
                op,
                state,
                &format!("load balancer {id} is busy, like others"),
            ));
        }
        let poll = StatusQuery {
            id,
            tag,
            after: state.as_of,
            max_age: state.max_observation_age(),
        };
        let status = self
            .status_poller
            .get_status(self.api(op), &self.sync_states.rounds, poll)
            .await?;
        state.as_of = status.round;
        Ok(status.load_balancer)
    }

    /// Builds the result of a sync that has to wait for the load balancer. Emits a warning when the
    /// wait has become too long.
    pub(super) fn stop_as_pending(
        &self,
        op: &Op,
        state: &mut LoadBalancerSyncState,
        reason: &str,
    ) -> ReconcileStop {
        let after = state.poll_interval();
        if state.crossed_warning_threshold(self.settings.active_wait_warning) {
            let note =
                format!("{reason} for more than {} s", self.settings.active_wait_warning.as_secs());
            op.event(EventType::Warning, "LoadBalancerPendingLong", &note);
        }
        state.unfinished = true;
        ReconcileStop::Pending(Progress::Pending { after, reason: reason.into() })
    }

    /// Starts the recovery of a load balancer in ERROR.
    async fn recover_from_error(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        load_balancer: &LoadBalancer,
        state: &mut LoadBalancerSyncState,
    ) -> ReconcileStop {
        let recovery = match self.plan_recovery(op, input, load_balancer, state).await {
            Ok(recovery) => recovery,
            Err(error) => return error.into(),
        };
        match recovery {
            Recovery::Replace => match self.replace(op, input, load_balancer, state).await {
                Ok(()) => stop_in_error(&load_balancer.id, ": it is deleted and created again"),
                Err(stop) => stop,
            },
            Recovery::FailOver => self.fail_over(op, state, load_balancer).await,
            Recovery::LeaveToOwner => stop_in_error(&load_balancer.id, ", and another Service's"),
            Recovery::Keep(reason) => stop_to_keep(&load_balancer.id, reason),
        }
    }

    /// Plans what is done with a load balancer in ERROR. Whether it has a floating IP is read only
    /// if that matters.
    pub(super) async fn plan_recovery(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        load_balancer: &LoadBalancer,
        state: &LoadBalancerSyncState,
    ) -> Result<Recovery, OpenStackError> {
        let created_id = state.created_id.as_deref();
        let mut recovery_input = RecoveryInput {
            load_balancer,
            ownership: &self.service_ownership(input, load_balancer),
            // One that is adopted, or was, served before, and is never replaced.
            was_served: observe::was_served(input.service)
                || input.desired.adopted.is_some()
                || retention_tags::adopter_uid(load_balancer).is_some(),
            description: &input.desired.description,
            tags: self.features.tags,
            service_created: input.service.created,
            is_own_creation: created_id == Some(&*load_balancer.id),
            floating_ips: &[],
            failover: self.failover_input(state),
        };
        let recovery = plan_recovery(&recovery_input);
        if recovery != Recovery::Replace || recovery_input.is_own_creation {
            return Ok(recovery);
        }
        if let Some(port) = &load_balancer.vip_port_id {
            let floating_ips = self.api(op).floating_ips(&[("port_id", port)]).await?;
            recovery_input.floating_ips = &floating_ips;
            return Ok(plan_recovery(&recovery_input));
        }
        Ok(recovery)
    }

    /// Deletes a load balancer whose creation failed. The next sync creates it again.
    async fn replace(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        load_balancer: &LoadBalancer,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let api = self.api(op);
        let id = &load_balancer.id;
        // The tags may be incomplete, so the listeners decide whether it may be deleted.
        let ownership = self.service_ownership(input, load_balancer);
        if self.has_other_services(op, &ownership, id).await? {
            return Err(self.fail_over(op, state, load_balancer).await);
        }
        // It may have been repaired since it was read.
        let current = api.load_balancer(id).await?;
        let may_delete = match current {
            Some(current) if current.provisioning_status == ProvisioningStatus::Error => {
                let recovery = self.plan_recovery(op, input, &current, state).await?;
                recovery == Recovery::Replace
            }
            _ => false,
        };
        state.invalidate();
        if !may_delete {
            return Err(changed_meanwhile().into());
        }
        let reason = "it could not be created";
        op.event(
            EventType::Warning,
            "LoadBalancerCreateFailed",
            &format!("load balancer {id} {reason}"),
        );
        if !input.desired.floating_ip.keep
            && let Some(port) = &load_balancer.vip_port_id
        {
            floating_ip_sync::release(api, port, None).await?;
        }
        api.delete_load_balancer(id, true, reason).await?;
        state.replaced_failed = true;
        Ok(())
    }

    /// Returns what this process knows about failovers of a load balancer.
    fn failover_input(&self, state: &LoadBalancerSyncState) -> FailoverInput {
        let is_recent =
            |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < MIN_FAILOVER_INTERVAL);
        FailoverInput {
            is_enabled: self.settings.failover_on_error,
            was_denied: is_recent(state.failover_denied),
            is_recent: is_recent(state.failed_over),
        }
    }

    /// Fails over a load balancer in ERROR if that is planned, and otherwise reports the reason.
    /// Octavia accepts no other change of it except its deletion.
    pub(super) async fn fail_over(
        &self,
        op: &Op,
        state: &mut LoadBalancerSyncState,
        load_balancer: &LoadBalancer,
    ) -> ReconcileStop {
        let id = &*load_balancer.id;
        if let Recovery::Keep(reason) = plan_failover(load_balancer, self.failover_input(state)) {
            return stop_to_keep(id, reason);
        }
        match self.api(op).failover(id, "it is in error").await {
            Ok(()) => {
                // Recorded only after success: one that was never sent, or was rejected, does not
                // have to wait for the minimum interval.
                state.failed_over = Some(Instant::now());
                op.event(
                    EventType::Warning,
                    "LoadBalancerFailover",
                    &format!("load balancer {id} was in error"),
                );
                if let Some(observed) = &mut state.observed {
                    observed.load_balancer.provisioning_status = ProvisioningStatus::PendingUpdate;
                }
                state.record_own_change(self.sync_states.rounds.now());
                self.stop_as_pending(op, state, &format!("load balancer {id} is failed over"))
            }
            Err(error) if is_denied(&error) => {
                state.failover_denied = Some(Instant::now());
                stop_to_keep(id, KeepReason::FailoverDenied)
            }
            Err(error) => error.into(),
        }
    }
}

/// Returns true if Octavia itself says that this user may not fail over load balancers.
fn is_denied(error: &OpenStackError) -> bool {
    error.class() == ErrorClass::Denied
        && error
            .response()
            .is_some_and(|response| response.status == StatusCode::FORBIDDEN)
}

/// Builds the error for a load balancer in ERROR that is neither deleted nor failed over.
fn stop_to_keep(id: &str, reason: KeepReason) -> ReconcileStop {
    stop_in_error(id, &format!(": {}", reason.describe(id)))
}

/// Builds the error for a load balancer in ERROR. The message ends with `details`.
fn stop_in_error(id: &str, details: &str) -> ReconcileStop {
    ReconcileStop::Failed(CloudError::transient(format!("load balancer {id} is in error{details}")))
}
