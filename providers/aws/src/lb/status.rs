//! The status of a Service, as far as it depends on its load balancer.

use ccm_core::{
    k8s::{LbIngress, LbStatus},
    provider::CloudError,
};

use crate::api::elb::{LoadBalancer, LoadBalancerState};

/// Returns the status to publish; `None` keeps the current one. The host name is published from the
/// start: it resolves once the load balancer is active, which takes minutes and is not waited for.
///
/// # Errors
/// The load balancer could not be provisioned.
pub(super) fn of(load_balancer: &LoadBalancer) -> Result<Option<LbStatus>, CloudError> {
    if load_balancer.state == Some(LoadBalancerState::Failed) {
        let reason = if load_balancer.state_reason.is_empty() {
            "AWS gives no reason"
        } else {
            &load_balancer.state_reason
        };
        return Err(CloudError::transient(format!(
            "load balancer {} failed: {reason}",
            load_balancer.name
        ))
        .with_reason("LoadBalancerFailed"));
    }
    if load_balancer.dns_name.is_empty() || load_balancer.state.is_none() {
        return Ok(None);
    }
    let ingress = LbIngress {
        hostname: Some(load_balancer.dns_name.clone()),
        ..LbIngress::default()
    };
    Ok(Some(LbStatus { ingress: vec![ingress] }))
}

/// Returns the first host name of a status.
pub(super) fn hostname(status: &LbStatus) -> Option<&str> {
    status
        .ingress
        .iter()
        .find_map(|ingress| ingress.hostname.as_deref())
}
