//! Attributes that new objects have by default, which creating them need not set.

use crate::api::elb::{Attributes, ElbProtocol, TargetType};

/// Returns the desired attributes that are not defaults.
pub(super) fn without_defaults(desired: &Attributes, defaults: &[(&str, &str)]) -> Attributes {
    let mut attributes = desired.clone();
    attributes.retain(|key, value| !defaults.contains(&(&**key, &**value)));
    attributes
}

/// Defaults of a Network Load Balancer.
pub fn load_balancer() -> [(&'static str, &'static str); 7] {
    [
        ("load_balancing.cross_zone.enabled", "false"),
        ("access_logs.s3.enabled", "false"),
        ("access_logs.s3.prefix", ""),
        ("deletion_protection.enabled", "false"),
        ("ipv6.deny_all_igw_traffic", "false"),
        ("dns_record.client_routing_policy", "any_availability_zone"),
        ("zonal_shift.config.enabled", "false"),
    ]
}

/// Defaults of a target group of a Network Load Balancer.
pub fn target_group(
    target_type: TargetType,
    protocol: ElbProtocol,
) -> [(&'static str, &'static str); 7] {
    let by_address =
        target_type == TargetType::Ip && matches!(protocol, ElbProtocol::Tcp | ElbProtocol::Tls);
    [
        ("deregistration_delay.timeout_seconds", "300"),
        ("deregistration_delay.connection_termination.enabled", "false"),
        ("proxy_protocol_v2.enabled", "false"),
        ("stickiness.enabled", "false"),
        ("stickiness.type", "source_ip"),
        ("load_balancing.cross_zone.enabled", "use_load_balancer_configuration"),
        ("preserve_client_ip.enabled", if by_address { "false" } else { "true" }),
    ]
}

/// Defaults of a listener of a Network Load Balancer.
pub fn listener() -> [(&'static str, &'static str); 1] {
    [("tcp.idle_timeout.seconds", "350")]
}
