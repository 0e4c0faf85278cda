//! Reserves capacity for a load balancer.

use ccm_core::provider::CloudError;

use crate::{
    api::elb::{DescribeLoadBalancers, LoadBalancerState, ModifyCapacityReservation},
    client::with_message,
    lb::{
        apply::{Applier, ApplyStop},
        plan::ActionKind,
        retry_delay::{self, Deferred},
        spec::annotations::CAPACITY,
    },
};

impl Applier<'_> {
    /// Reserves capacity, or ends a reservation. While AWS is still working on the load balancer or on
    /// its previous reservation, that is deferred.
    ///
    /// # Errors
    /// AWS' errors, but for rejections, which become [`rejected_capacity`](Self::rejected_capacity).
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
        match self.scope.client.write(self.op, request, reason).await {
            Ok(()) => {
                self.working_state.action_applied(action);
                Ok(())
            }
            Err(error) if error.has_code("CapacityReservationPending") => {
                self.deferred.push(Deferred {
                    after: retry_delay::capacity_reservation(self.op),
                    reason: "AWS is still carrying out the previous reservation of capacity".into(),
                });
                Ok(())
            }
            Err(error) => {
                let rejection = CloudError::from(error.clone());
                if !rejection.kind().is_rejection() {
                    return Err(error.into());
                }
                // The load balancer serves without it.
                let text = format!("{}: {rejection}", CAPACITY.definition.key());
                self.rejected_capacity = Some(with_message(&rejection, text));
                Ok(())
            }
        }
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
