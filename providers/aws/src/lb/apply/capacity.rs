//! Reserves capacity for a load balancer, and waits with what cannot be changed meanwhile.

use std::time::Duration;

use ccm_core::provider::{CloudError, EventType};
use tokio::time::Instant;

use crate::{
    api::{
        AwsError,
        elb::{DescribeLoadBalancers, LoadBalancerState, ModifyCapacityReservation, SetSubnets},
    },
    client::reason,
    lb::{
        apply::{Applier, ApplyStop},
        plan::{ActionKind, SubnetChange},
        retry_delay::{self, Deferred},
        spec::annotations::CAPACITY,
        sync_state::RejectedCapacity,
    },
};

/// Delay before a rejected reservation is requested again, if the error says nothing else.
const REJECTION_DELAY: Duration = Duration::from_secs(600);

impl Applier<'_> {
    /// Reserves capacity, or ends a reservation. While AWS is still working on the load balancer or on
    /// its previous reservation, that is deferred. A rejection is reported in an event and becomes
    /// [`rejected_capacity`](Self::rejected_capacity): the load balancer serves without it.
    ///
    /// # Errors
    /// AWS' other errors.
    pub(super) async fn reserve_capacity(
        &mut self,
        units: u32,
        action: &ActionKind,
        reason: &str,
    ) -> Result<(), ApplyStop> {
        if self.is_provisioning().await? {
            self.deferred.push(Deferred {
                after: retry_delay::provisioning(self.op),
                reason: "capacity is reserved once the load balancer is active".into(),
            });
            return Ok(());
        }
        let request =
            ModifyCapacityReservation { arn: self.load_balancer_arn()?, capacity_units: units };
        let Err(error) = self.scope.client.write(self.op, request, reason).await else {
            self.working_state.action_applied(action);
            return Ok(());
        };
        if self.defer_while_reserving(&error) {
            return Ok(());
        }
        let rejection = CloudError::from(error.clone());
        if !rejection.kind().is_rejection() {
            return Err(error.into());
        }
        let note = format!("{}: {rejection}", CAPACITY.definition.key());
        let event = rejection.reason().unwrap_or(reason::REFUSED);
        self.op.event(EventType::Warning, event, &note);
        let after = rejection.retry_after().unwrap_or(REJECTION_DELAY);
        self.rejected_capacity = Some(RejectedCapacity { units, until: Instant::now() + after });
        Ok(())
    }

    /// Sets the subnets, and the settings that AWS changes together with them. While AWS is carrying
    /// out a reservation of capacity, that is deferred, and everything else goes on.
    ///
    /// # Errors
    /// AWS' other errors.
    pub(super) async fn set_subnets(
        &mut self,
        change: &SubnetChange,
        action: &ActionKind,
        reason: &str,
    ) -> Result<(), ApplyStop> {
        let request = SetSubnets {
            arn: self.load_balancer_arn()?,
            subnets: change.subnets.clone(),
            ipv6_source_nat: change.ipv6_source_nat,
            ip_address_type: change.ip_address_type,
        };
        if let Err(error) = self.scope.client.write(self.op, request, reason).await {
            if self.defer_while_reserving(&error) {
                return Ok(());
            }
            self.forget_unknown_subnets(&error);
            return Err(error.into());
        }
        if change.removes {
            self.op
                .event(EventType::Warning, "LoadBalancerSubnetsRemoved", reason);
        }
        self.working_state.action_applied(action);
        Ok(())
    }

    /// Returns true, and defers the change, if AWS answered that it is still working on an earlier
    /// reservation.
    fn defer_while_reserving(&mut self, error: &AwsError) -> bool {
        let is_busy = error.has_code("CapacityReservationPending")
            || error.has_code("PriorRequestNotComplete");
        if is_busy {
            self.deferred.push(Deferred {
                after: retry_delay::capacity_reservation(self.op),
                reason: "AWS is still carrying out the previous reservation of capacity".into(),
            });
        }
        is_busy
    }

    /// Returns true if the load balancer was created so recently that it is not active yet. It is read
    /// again only if it was not active before.
    async fn is_provisioning(&mut self) -> Result<bool, ApplyStop> {
        let arn = self.load_balancer_arn()?;
        let Some(observed) = &mut self.working_state.observed.load_balancer else {
            return Ok(false);
        };
        let state = &mut observed.resource.state;
        if *state != Some(LoadBalancerState::Provisioning) {
            return Ok(false);
        }
        let request =
            DescribeLoadBalancers { arns: vec![arn.clone()], ..DescribeLoadBalancers::default() };
        let found = match self.scope.client.read(self.op, request).await {
            Ok(page) => page.items.into_iter().find(|found| found.arn == arn),
            // It may be so new that AWS does not show it yet.
            Err(error) if error.has_code("LoadBalancerNotFound") => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(found) = found {
            *state = found.state;
        }
        Ok(*state == Some(LoadBalancerState::Provisioning))
    }
}
