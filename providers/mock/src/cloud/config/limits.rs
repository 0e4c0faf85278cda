//! Rate limits and features in the cloud config.

use serde::Deserialize;

use crate::cloud::FieldError;

/// Rate limits of provider calls, one for each part of the cloud; a part without a value has no
/// limit.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RateLimits {
    /// Calls about instances.
    pub instances: Option<RateLimit>,
    /// Calls about routes; a batch counts as one call.
    pub routes: Option<RateLimit>,
    /// Calls about load balancers.
    pub load_balancers: Option<RateLimit>,
}

/// A token bucket. A call over the limit fails at once as throttled, with the delay after which a
/// call is allowed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimit {
    /// Sustained calls per second. Required, more than 0.
    pub per_second: f64,
    /// Burst size, at least 1. Default: the calls of one second (rounded up).
    pub burst: Option<u32>,
}

impl RateLimits {
    pub(super) fn check(&self) -> Result<(), FieldError> {
        let all = [
            ("instances", &self.instances),
            ("routes", &self.routes),
            ("loadBalancers", &self.load_balancers),
        ];
        for (key, limit) in all
            .into_iter()
            .filter_map(|(key, limit)| limit.as_ref().map(|limit| (key, limit)))
        {
            if !(limit.per_second.is_finite() && limit.per_second > 0.0) {
                return Err(FieldError::new(
                    format!("rateLimits.{key}.perSecond"),
                    "must be more than 0",
                ));
            }
            if limit.burst == Some(0) {
                return Err(FieldError::new(
                    format!("rateLimits.{key}.burst"),
                    "must be at least 1",
                ));
            }
        }
        Ok(())
    }
}

impl RateLimit {
    /// Returns the burst size, or its default.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped; the cast saturates"
    )]
    pub fn burst(&self) -> u32 {
        self.burst.unwrap_or(self.per_second.ceil().max(1.0) as u32)
    }
}

/// The features that the provider declares. The cloud itself has all of them; if a feature is off,
/// Services that request it are rejected.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches, each named where it is used"
)]
pub struct Features {
    /// Source ranges of clients. Default: on.
    pub source_ranges: bool,
    /// UDP ports. Default: on.
    pub udp: bool,
    /// SCTP ports. Default: on.
    pub sctp: bool,
    /// Ports with different protocols in one Service. Default: on.
    pub mixed_protocols: bool,
    /// Services whose only address family is IPv6. Default: on.
    pub ipv6: bool,
    /// Dual-stack Services. Default: on.
    pub dual_stack: bool,
    /// Services without node ports. Default: on.
    pub no_node_ports: bool,
    /// Requested address, `spec.loadBalancerIP`. Default: on.
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: bool,
    /// Session affinity by client IP. Default: on.
    #[serde(rename = "clientIPAffinity")]
    pub client_ip_affinity: bool,
    /// Keeping load balancers for others, and adopting them.
    pub retain: bool,
    /// Endpoints as backends. Default: off. If on, the framework watches EndpointSlices.
    pub endpoints: bool,
    /// Routes that record the node's addresses and are created again when these change. Default:
    /// off.
    pub route_node_addresses: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            source_ranges: true,
            udp: true,
            sctp: true,
            mixed_protocols: true,
            ipv6: true,
            dual_stack: true,
            no_node_ports: true,
            load_balancer_ip: true,
            client_ip_affinity: true,
            retain: true,
            endpoints: false,
            route_node_addresses: false,
        }
    }
}
