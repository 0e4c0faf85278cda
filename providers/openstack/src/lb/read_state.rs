//! Reads the observed state of a Service into its sync state, from the cloud or a shared listing.

use ccm_core::provider::{Op, ReadMode};

use super::{
    observe::{self, LoadBalancerQuery},
    plan::{ActionKind, PlannedAction},
    reconcile::{LoadBalancerReconciler, PlanScope, ReconcileStop},
    reconcile_input::ReconcileInput,
    sync_state::{AttachedFloatingIp, LoadBalancerSyncState, changed_meanwhile},
};

impl LoadBalancerReconciler {
    /// Reads the observed state, unless it is recent enough for `read_mode`: from the cloud, or
    /// from a listing that many Services share, which shows all children but members. A load balancer
    /// that the Service adopts is looked for only if all of it is in `scope`: members follow the
    /// nodes on the one that the Service has.
    pub(super) async fn observe(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        read_mode: ReadMode,
        scope: PlanScope,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        if state.is_observed_for(read_mode) {
            return Ok(());
        }
        let api = self.api(op);
        state.security_group.last_applied = None;
        state.floating_ip = AttachedFloatingIp::Unknown;
        if state.children_known && observe::refresh(api, state).await? {
            return Ok(());
        }
        state.invalidate();
        let mut query =
            LoadBalancerQuery::for_service(&self.cluster, &input.desired.owner, input.service);
        if scope == PlanScope::Members {
            query.adopted = None;
        }
        // A Service that was never served usually has no load balancer, so a listing would not help.
        // Nor does a listing show the one that a Service is about to adopt.
        if query.served
            && (query.adopted.is_none() || query.id.is_some())
            && let Some(listed) = self
                .listings
                .find(api, &self.sync_states.rounds, &query, state.listings_stale_until)
                .await?
        {
            state.set_listed(listed);
            return Ok(());
        }
        let found = observe::find_load_balancer(api, &query).await?;
        state.set_found(found, self.sync_states.rounds.now());
        Ok(())
    }

    /// Reads the children of the load balancer, unless they are known.
    pub(super) async fn read_children(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        if state.children_known {
            return Ok(());
        }
        let Some(observed) = &mut state.observed else {
            return Ok(());
        };
        let ownership = self.service_ownership(input, &observed.load_balancer);
        if state.from_listing {
            observe::read_members(self.api(op), observed, &ownership).await?;
        } else {
            observe::read_children(self.api(op), observed, &ownership).await?;
        }
        state.children_known = true;
        Ok(())
    }

    /// Reads a load balancer again if it is known only from a listing and `action` would change it.
    /// Returns true if it was read, which makes the plan out of date.
    pub(super) async fn refresh_before_change(
        &self,
        op: &Op,
        state: &mut LoadBalancerSyncState,
        action: &PlannedAction,
    ) -> Result<bool, ReconcileStop> {
        let observed = state.require_observed()?;
        if !state.from_listing || matches!(action.kind, ActionKind::SetMembers(..)) {
            return Ok(false);
        }
        let id = &observed.load_balancer.id;
        let Some(load_balancer) = self.api(op).load_balancer(id).await? else {
            return Err(changed_meanwhile().into());
        };
        state.replace_listed(load_balancer, self.sync_states.rounds.now());
        Ok(true)
    }
}
