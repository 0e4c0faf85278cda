//! Waits for a busy load balancer, and recovers one in ERROR.

use std::time::Duration;

use ccm_core::provider::{CloudError, EventType, Op, Progress};
use openstack_api::octavia::{LoadBalancer, ProvisioningStatus};
use tokio::time::Instant;

use super::{
    floating_ip_sync, observe,
    reconcile::{LoadBalancerReconciler, ReconcileStop},
    reconcile_input::ReconcileInput,
    sync_state::{LoadBalancerSyncState, object_gone},
};
use crate::lb::status_poller::StatusQuery;

/// Minimum interval between two failovers of a load balancer: what one does not repair, another
/// seldom does.
const MIN_FAILOVER_INTERVAL: Duration = Duration::from_secs(1800);

impl LoadBalancerReconciler {
    /// Stops as pending until the load balancer takes changes, and recovers one in ERROR.
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
            pending => Err(self.pending(
                op,
                state,
                &format!("load balancer {} is {pending}", load_balancer.id),
            )),
        }
    }

    /// Polls a busy load balancer.
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
        Err(object_gone().into())
    }

    /// Reads a busy load balancer; `None` if it does not exist. `name`: of the Service's load
    /// balancer, which is its tag. When many are pending, a change just made is not polled alone:
    /// the next listing of all of them shows it.
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
            return Err(self.pending(
                op,
                state,
                &format!("load balancer {id} is busy, like others"),
            ));
        }
        let poll = StatusQuery {
            id,
            tag,
            after: state.as_of,
            age: state.max_observation_age(),
        };
        let status = self
            .status_poller
            .get_status(self.api(op), &self.sync_states.rounds, poll)
            .await?;
        state.as_of = status.round;
        Ok(status.load_balancer)
    }

    pub(super) fn pending(
        &self,
        op: &Op,
        state: &mut LoadBalancerSyncState,
        why: &str,
    ) -> ReconcileStop {
        let after = state.poll_interval();
        if state.crossed_warning_threshold(self.settings.active_wait_warning) {
            let note =
                format!("{why} for more than {} s", self.settings.active_wait_warning.as_secs());
            op.event(EventType::Warning, "LoadBalancerPendingLong", &note);
        }
        state.unfinished = true;
        ReconcileStop::Pending(Progress::Pending { after, why: why.into() })
    }

    /// Recovers a load balancer in ERROR. One that never served is deleted, to be created again;
    /// one that did is failed over. Another Service's is left to its owner, or failed over if the
    /// owner is deleted.
    async fn recover_from_error(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        load_balancer: &LoadBalancer,
        state: &mut LoadBalancerSyncState,
    ) -> ReconcileStop {
        let served = observe::was_served(input.service);
        let ownership = self.service_ownership(input, load_balancer);
        if !ownership.owner && !ownership.is_orphaned_by_owner(load_balancer) {
            return error_status(&load_balancer.id, ", and another Service's");
        }
        if served
            || !ownership.owner
            || ownership.other_service_tags(load_balancer).next().is_some()
        {
            return self.fail_over(op, state, &load_balancer.id).await;
        }
        match self
            .has_other_services(op, &ownership, &load_balancer.id)
            .await
        {
            Ok(false) => self.delete_failed(op, input, load_balancer, state).await,
            Ok(true) => self.fail_over(op, state, &load_balancer.id).await,
            Err(error) => error.into(),
        }
    }

    /// Deletes a load balancer whose creation failed, to be created again.
    async fn delete_failed(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        load_balancer: &LoadBalancer,
        state: &mut LoadBalancerSyncState,
    ) -> ReconcileStop {
        let api = self.api(op);
        let why = "it could not be created";
        op.event(
            EventType::Warning,
            "LoadBalancerCreateFailed",
            &format!("load balancer {} {why}", load_balancer.id),
        );
        state.invalidate();
        if !input.desired.floating_ip.keep
            && let Some(port) = &load_balancer.vip_port_id
            && let Err(error) = floating_ip_sync::release(api, port).await
        {
            return error.into();
        }
        match api.delete_load_balancer(&load_balancer.id, true, why).await {
            Ok(()) => {
                state.replaced_failed = true;
                error_status(&load_balancer.id, ": it is deleted and created again")
            }
            Err(error) => error.into(),
        }
    }

    /// Fails over a load balancer in ERROR: besides deletion, this is the only change that Octavia
    /// takes then.
    pub(super) async fn fail_over(
        &self,
        op: &Op,
        state: &mut LoadBalancerSyncState,
        id: &str,
    ) -> ReconcileStop {
        let is_too_early = state
            .failed_over
            .is_some_and(|at| at.elapsed() < MIN_FAILOVER_INTERVAL);
        if !self.features.failover || is_too_early {
            return error_status(id, "");
        }
        match self.api(op).failover(id, "it is in error").await {
            Ok(()) => {
                // Recorded only here: a failover that was never sent, or was rejected, is tried
                // again.
                state.failed_over = Some(Instant::now());
                op.event(
                    EventType::Warning,
                    "LoadBalancerFailover",
                    &format!("load balancer {id} was in error"),
                );
                if let Some(observed) = &mut state.observed {
                    observed.load_balancer.provisioning_status = ProvisioningStatus::PendingUpdate;
                }
                state.stop_waiting();
                state.mark_changed(self.sync_states.rounds.now());
                self.pending(op, state, &format!("load balancer {id} is failed over"))
            }
            Err(error) => error.into(),
        }
    }
}

/// Builds the error of a load balancer in ERROR. `details`: continues the message.
fn error_status(id: &str, details: &str) -> ReconcileStop {
    ReconcileStop::Failed(CloudError::transient(format!("load balancer {id} is in error{details}")))
}
