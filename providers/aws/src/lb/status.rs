//! Builds the status of a Service from its load balancer.

use ccm_core::{
    k8s::{LbIngress, LbStatus},
    provider::CloudError,
};

use crate::api::elb::{LoadBalancer, LoadBalancerState};

/// Returns the status to publish; `None` keeps the current one. The host name is published before
/// the load balancer is active. It resolves a few minutes later.
///
/// # Errors
/// AWS failed to provision the load balancer.
pub(super) fn from_load_balancer(
    load_balancer: &LoadBalancer,
) -> Result<Option<LbStatus>, CloudError> {
    if load_balancer.state == Some(LoadBalancerState::Failed) {
        let reason = if load_balancer.state_reason.is_empty() {
            "AWS returned no reason"
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
