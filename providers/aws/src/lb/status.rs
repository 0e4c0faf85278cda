//! What a Service's status says of its load balancer.

use ccm_core::{
    k8s::{LbIngress, LbStatus},
    provider::CloudError,
};

use crate::api::elb::{LoadBalancer, LoadBalancerState};

/// Returns the status to publish; `None` leaves it as it is. The name is there from the start: it resolves as soon as the
/// balancer is active, which takes minutes and nobody waits for.
///
/// # Errors
/// The balancer could not be made.
pub(super) fn of(balancer: &LoadBalancer) -> Result<Option<LbStatus>, CloudError> {
    if balancer.state == Some(LoadBalancerState::Failed) {
        let reason = if balancer.state_reason.is_empty() { "AWS gives no reason" } else { &balancer.state_reason };
        return Err(CloudError::transient(format!("load balancer {} failed: {reason}", balancer.name))
            .with_reason("LoadBalancerFailed"));
    }
    if balancer.dns_name.is_empty() || balancer.state.is_none() {
        return Ok(None);
    }
    let ingress = LbIngress { hostname: Some(balancer.dns_name.clone()), ..LbIngress::default() };
    Ok(Some(LbStatus { ingress: vec![ingress] }))
}

/// Returns the first host name of a status.
pub(super) fn hostname(status: &LbStatus) -> Option<&str> {
    status.ingress.iter().find_map(|ingress| ingress.hostname.as_deref())
}
