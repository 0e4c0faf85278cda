use serde::Deserialize;

use crate::cloud::FieldError;

/// How often the provider may call each part of the cloud; what is left out has no limit.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RateLimits {
    /// Calls about instances.
    pub instances: Option<RateLimit>,
    /// Calls about routes; a batch is one.
    pub routes: Option<RateLimit>,
    /// Calls about load balancers.
    pub load_balancers: Option<RateLimit>,
}

/// A token bucket: a call over it is answered as throttled, at once, with the time after which there is room.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimit {
    /// Calls per second in the long run. Required, more than 0.
    pub per_second: f64,
    /// Calls at once after a pause, at least 1. Default: those of one second.
    pub burst: Option<u32>,
}

impl RateLimits {
    pub(super) fn check(&self) -> Result<(), FieldError> {
        let all = [("instances", &self.instances), ("routes", &self.routes), ("loadBalancers", &self.load_balancers)];
        for (key, limit) in all.into_iter().filter_map(|(key, limit)| limit.as_ref().map(|limit| (key, limit))) {
            if !(limit.per_second.is_finite() && limit.per_second > 0.0) {
                return Err(FieldError::new(format!("rateLimits.{key}.perSecond"), "must be more than 0"));
            }
            if limit.burst == Some(0) {
                return Err(FieldError::new(format!("rateLimits.{key}.burst"), "must be at least 1"));
            }
        }
        Ok(())
    }
}

impl RateLimit {
    /// Returns the calls that may come at once.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped; the cast saturates")]
    pub fn burst(&self) -> u32 {
        self.burst.unwrap_or(self.per_second.ceil().max(1.0) as u32)
    }
}

/// What the provider says that it can do. The cloud itself can do all of it; a switch that is off has Services that ask
/// for it refused.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, each named where it is used")]
pub struct Features {
    /// Restricting clients by source range. Default on.
    pub source_ranges: bool,
    /// UDP ports. Default on.
    pub udp: bool,
    /// SCTP ports. Default on.
    pub sctp: bool,
    /// Ports of different protocols. Default on.
    pub mixed_protocols: bool,
    /// Two address families. Default on.
    pub dual_stack: bool,
    /// Services without node ports. Default on.
    pub no_node_ports: bool,
    /// A requested address, `spec.loadBalancerIP`. Default on.
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: bool,
    /// Session affinity. Default on.
    #[serde(rename = "clientIPAffinity")]
    pub client_ip_affinity: bool,
    /// Endpoints as backends. Default off: on, the framework watches EndpointSlices.
    pub endpoints: bool,
    /// Routes made for the node's addresses, made anew when these change. Default off.
    pub route_node_addresses: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            source_ranges: true,
            udp: true,
            sctp: true,
            mixed_protocols: true,
            dual_stack: true,
            no_node_ports: true,
            load_balancer_ip: true,
            client_ip_affinity: true,
            endpoints: false,
            route_node_addresses: false,
        }
    }
}
