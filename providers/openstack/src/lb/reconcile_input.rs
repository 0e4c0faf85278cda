//! Input of one reconcile.

use ccm_core::{k8s::ServiceView, provider::Backends};

use super::{
    desired_members::{self, DesiredMember, NodeBackend},
    model::DesiredLoadBalancer,
    observed::ObservedLoadBalancer,
    retention_tags,
};
use crate::api::octavia::LoadBalancer;

/// A Service, its desired state and its backends.
pub(super) struct ReconcileInput<'a> {
    pub(super) desired: &'a DesiredLoadBalancer,
    pub(super) service: &'a ServiceView,
    pub(super) backends: Vec<NodeBackend>,
    /// True when the Service is invalid. Then only the addresses of members are reliable.
    pub(super) invalid: bool,
}

impl<'a> ReconcileInput<'a> {
    pub(super) fn new(
        desired: &'a DesiredLoadBalancer,
        service: &'a ServiceView,
        backends: &Backends,
    ) -> Self {
        // `interpret` requests nodes, never endpoints.
        Self {
            desired,
            service,
            backends: desired_members::choose_backends(backends.nodes(), desired.family),
            invalid: false,
        }
    }

    /// Returns true if the Service adopts a load balancer and has not done so completely. No other
    /// Service has begun to.
    pub(super) fn is_adopting(&self, load_balancer: &LoadBalancer) -> bool {
        retention_tags::is_retained(load_balancer)
            && self.desired.adopted.as_deref() == Some(&*load_balancer.id)
            && !retention_tags::is_adopted_by_other(load_balancer, &self.desired.owner.uid)
    }

    /// Builds the desired members of each listener.
    pub(super) fn members(&self) -> Vec<Vec<DesiredMember>> {
        self.desired
            .listeners
            .iter()
            .map(|listener| desired_members::build_members(&listener.pool, &self.backends))
            .collect()
    }

    /// Returns the subnet of new members: the one that is set for members, or else that of the VIP.
    pub(super) fn subnet_of_new_members<'b>(
        &'b self,
        observed: &'b ObservedLoadBalancer,
    ) -> Option<&'b str> {
        let desired = self.desired;
        desired
            .member_subnet
            .as_deref()
            .or(desired.vip_subnet.as_deref())
            .or(observed.load_balancer.vip_subnet_id.as_deref())
    }
}
