//! Reads what an observed state lacks, with the reserved capacity where a Service needs it.

use ccm_core::provider::{CloudError, Op};

use crate::{
    api::{Action, elb::DescribeCapacityReservation},
    lb::{
        model::DesiredLoadBalancer,
        observe::{Observer, observed::ObservedState},
    },
};

impl Observer {
    /// Reads the parts that an observed state lacks and a plan for this desired state needs.
    pub(in crate::lb) async fn read_details(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        observed: &mut ObservedState,
    ) -> Result<(), CloudError> {
        if !observed.is_complete() {
            self.read_missing(op, &desired.owner, observed).await?;
        }
        self.read_capacity(op, desired, observed).await
    }

    /// Adds the reserved capacity to what was read.
    pub(in crate::lb) async fn with_capacity(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        read: Result<ObservedState, CloudError>,
    ) -> Result<ObservedState, CloudError> {
        let mut observed = read?;
        self.read_capacity(op, desired, &mut observed).await?;
        Ok(observed)
    }

    /// Reads the reserved capacity, if the Service says anything about it and it is not known. For all
    /// other Services it costs no request.
    async fn read_capacity(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        observed: &mut ObservedState,
    ) -> Result<(), CloudError> {
        let Some(load_balancer) = &mut observed.load_balancer else {
            return Ok(());
        };
        if desired.capacity_units.is_none() || load_balancer.capacity_units.is_some() {
            return Ok(());
        }
        let request = DescribeCapacityReservation { arn: load_balancer.resource.arn.clone() };
        let action = Action::DescribeCapacityReservation;
        load_balancer.capacity_units = self
            .denials
            .read(op, &desired.owner, action, self.scope.client.read(op, request))
            .await?;
        Ok(())
    }
}
