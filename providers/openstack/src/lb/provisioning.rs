//! Waits for a busy load balancer, and recovers one in ERROR.

use std::time::Duration;

use ccm_core::provider::{CloudError, EventType, Op, Progress};
use openstack_api::octavia::{LoadBalancer, ProvisioningStatus};
use tokio::time::Instant;

use super::{
    floating_ip, observe,
    ownership::service_ownership,
    reconcile::{LoadBalancerReconciler, ReconcileInput, ReconcileStop, object_gone},
    sync_state::LoadBalancerSyncState,
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
        let Some(seen) = &state.observed else {
            return Err(object_gone().into());
        };
        let load_balancer = seen.load_balancer.clone();
        match &load_balancer.provisioning_status {
            ProvisioningStatus::Active => {
                state.waiting_since = None;
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
        let busy = state
            .observed
            .as_ref()
            .filter(|observed| observed.load_balancer.provisioning_status.is_pending());
        let Some(id) = busy.map(|seen| seen.load_balancer.id.clone()) else {
            return Ok(());
        };
        match (
            self.refresh_status(op, state, &id, &input.desired.name)
                .await?,
            &mut state.observed,
        ) {
            (Some(balancer), Some(seen)) => seen.load_balancer = balancer,
            _ => {
                state.invalidate();
                return Err(object_gone().into());
            }
        }
        Ok(())
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
        if state.waiting_since.is_none() && self.status_poller.should_list_together() {
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
        let (found, round) = self
            .status_poller
            .get_status(self.api(op), &self.sync_states.rounds, poll)
            .await?;
        state.as_of = round;
        Ok(found)
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
        let ownership = service_ownership(
            &self.cluster,
            &input.desired.owner,
            observe::shows_address(input.service),
            load_balancer,
        );
        if !ownership.owner && !ownership.is_orphaned_by_owner(load_balancer) {
            return error_status(&load_balancer.id, ", and another Service's");
        }
        let api = self.api(op);
        if ownership.owner
            && !served
            && ownership.other_service_tags(load_balancer).next().is_none()
        {
            match self
                .has_other_services(op, &ownership, &load_balancer.id)
                .await
            {
                Ok(false) => {}
                Ok(true) => return self.fail_over(op, state, &load_balancer.id).await,
                Err(error) => return error.into(),
            }
            let why = "it could not be made";
            op.event(
                EventType::Warning,
                "LoadBalancerCreateFailed",
                &format!("load balancer {} {why}", load_balancer.id),
            );
            state.invalidate();
            if let (Some(port), false) =
                (load_balancer.vip_port_id.as_deref(), input.desired.floating_ip.keep)
                && let Err(error) = floating_ip::release(api, port).await
            {
                return error.into();
            }
            return match api.delete_load_balancer(&load_balancer.id, true, why).await {
                Ok(()) => {
                    state.replaced_failed = true;
                    error_status(&load_balancer.id, ": it is deleted and made anew")
                }
                Err(error) => error.into(),
            };
        }
        self.fail_over(op, state, &load_balancer.id).await
    }

    /// Fails over a load balancer in ERROR: besides deletion, this is the only change that Octavia
    /// takes then.
    pub(super) async fn fail_over(
        &self,
        op: &Op,
        state: &mut LoadBalancerSyncState,
        id: &str,
    ) -> ReconcileStop {
        let lately = state
            .failed_over
            .is_some_and(|at| at.elapsed() < MIN_FAILOVER_INTERVAL);
        if !self.features.failover || lately {
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
                state.waiting_since = None;
                state.mark_changed(self.sync_states.rounds.now());
                self.pending(op, state, &format!("load balancer {id} is failed over"))
            }
            Err(error) => error.into(),
        }
    }
}

fn error_status(id: &str, more: &str) -> ReconcileStop {
    ReconcileStop::Failed(CloudError::transient(format!("load balancer {id} is in error{more}")))
}
