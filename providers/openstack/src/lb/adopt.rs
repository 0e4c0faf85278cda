//! Adopts a load balancer that another Service let go.

use ccm_core::provider::{CloudError, ErrorKind, Op, Progress};

use super::{
    observe,
    plan::retention::{self, UseInput},
    reconcile::{LoadBalancerReconciler, PlanScope, ReconcileStop},
    reconcile_input::ReconcileInput,
    security_groups::SecurityGroupTask,
    sync_state::{LoadBalancerSyncState, changed_meanwhile},
};
use crate::api::octavia::LoadBalancer;

/// Returns the reason to wait before an adoption begins or continues; `None` if there is none.
/// Without nodes, the backends of the former Service are better than none.
pub(super) fn reason_to_wait(
    input: &ReconcileInput<'_>,
    load_balancer: &LoadBalancer,
) -> Option<String> {
    let waits = input.is_adopting(load_balancer) && input.backends.is_empty();
    waits.then(|| {
        let id = &load_balancer.id;
        format!("no node can be a backend yet, so load balancer {id} is not adopted before")
    })
}

impl LoadBalancerReconciler {
    /// Checks that the Service may use the load balancer that was found for it, if one was. Whether it
    /// is the one that the Service adopts does not matter for its members, which follow the nodes.
    ///
    /// # Errors
    /// Returns "not found" if the members are those of a load balancer that the Service has not adopted
    /// completely, so that the whole of it is reconciled.
    pub(super) fn check_use(
        &self,
        input: &ReconcileInput<'_>,
        state: &LoadBalancerSyncState,
        scope: PlanScope,
    ) -> Result<(), CloudError> {
        let Some(observed) = &state.observed else {
            return Ok(());
        };
        let load_balancer = &observed.load_balancer;
        let mut adopted = input.desired.adopted.as_deref();
        if scope == PlanScope::Members {
            if input.is_adopting(load_balancer) {
                let message = format!("load balancer {} is not adopted yet", load_balancer.id);
                return Err(CloudError::new(ErrorKind::NotFound, message));
            }
            adopted = None;
        }
        if let Some(adopted) = adopted
            && *adopted != *load_balancer.id
        {
            return Err(retention::has_another(adopted, &load_balancer.id));
        }
        retention::check_use(&UseInput {
            load_balancer,
            ownership: &self.service_ownership(input, load_balancer),
            service: &input.desired.owner,
            adopted,
            shows_address: observe::shows_address(input.service),
            tags: self.features.tags,
        })
    }

    /// Claims the load balancer that the Service adopts, and admits it to the nodes before they become
    /// its members. Does nothing if the Service adopts none, or has done so.
    ///
    /// # Errors
    /// What can be known to fail later is an error before the claim.
    pub(super) async fn begin_adoption(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let load_balancer = &state.require_observed()?.load_balancer;
        if !input.is_adopting(load_balancer) {
            return Ok(());
        }
        // First, wait for nodes, and check everything.
        if let Some(reason) = reason_to_wait(input, load_balancer) {
            return Err(ReconcileStop::Pending(Progress::pending(op, reason)));
        }
        self.read_children(op, input, state).await?;
        self.plan_actions(input, state, PlanScope::All)?;
        self.check_certificates(self.api(op), input.desired).await?;
        let observed = state.require_observed()?;
        if let Some(group) = &input.desired.security_group {
            SecurityGroupTask::new(group, input, observed)?;
        }
        // Next, claim it. From then on no other Service adopts it.
        let ownership = self.service_ownership(input, &observed.load_balancer);
        let plan_input = self.plan_input(input, observed, &ownership);
        if let Some(action) = retention::plan_claim(&plan_input, input.desired) {
            self.apply_action(op, state, &action).await?;
            self.wait_until_active(op, input, state).await?;
            self.check_use(input, state, PlanScope::All)?;
        }
        // Then admit it to the nodes.
        if let Some(group) = &input.desired.security_group {
            let observed = state.observed.as_ref().ok_or_else(changed_meanwhile)?;
            let task = SecurityGroupTask::new(group, input, observed)?;
            self.ensure_rules(op, task, &mut state.security_group)
                .await?;
        }
        Ok(())
    }

    /// Removes the mark of a load balancer that the Service adopts, as the last of all changes.
    pub(super) async fn complete_adoption(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let Some(action) = retention::plan_completion(&state.require_observed()?.load_balancer)
        else {
            return Ok(());
        };
        self.check_use(input, state, PlanScope::All)?;
        self.apply_action(op, state, &action).await?;
        self.wait_until_active(op, input, state).await
    }
}
