//! Elastic Load Balancing: reserved capacity of load balancers.

use super::{
    error::{ApiResult, invalid, refuse},
    state::AccountState,
};
use crate::api::elb::{self, ElbProtocol, LoadBalancerState};

/// Fewest capacity units that can be reserved for a network load balancer.
const MIN_UNITS: u32 = 2750;

impl AccountState {
    pub(super) fn capacity_reservation(
        &self,
        c: &elb::DescribeCapacityReservation,
    ) -> ApiResult<u32> {
        Ok(self.shown_balancer(&c.arn)?.capacity_units)
    }

    pub(super) fn modify_capacity_reservation(
        &mut self,
        c: &elb::ModifyCapacityReservation,
    ) -> ApiResult<()> {
        let balancer = self.balancer(&c.arn)?;
        let state = self.show_balancer(&c.arn, balancer).state;
        if state == Some(LoadBalancerState::Provisioning) {
            return refuse(
                "InvalidConfigurationRequest",
                "Capacity cannot be reserved for a load balancer that is being provisioned",
            );
        }
        if c.capacity_units > 0 {
            let mut listeners = self.listeners.values();
            let has_tls =
                listeners.any(|it| it.load_balancer == c.arn && it.protocol == ElbProtocol::Tls);
            if has_tls {
                return refuse(
                    "InvalidConfigurationRequest",
                    "Capacity cannot be reserved for load balancers with TLS listeners",
                );
            }
            if c.capacity_units < MIN_UNITS {
                return invalid(format!("At least {MIN_UNITS} capacity units can be reserved"));
            }
        }
        self.balancer_mut(&c.arn)?.capacity_units = c.capacity_units;
        Ok(())
    }
}
