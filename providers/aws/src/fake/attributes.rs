//! Elastic Load Balancing: attributes, their defaults and valid values.

use super::{
    error::{ApiRejection, ApiResult, invalid, refuse},
    state::AccountState,
};
use crate::api::elb::{self, Attributes, ElbProtocol, TargetType};

/// Attributes of a new network load balancer.
const BALANCER: &[(&str, &str)] = &[
    ("access_logs.s3.bucket", ""),
    ("access_logs.s3.enabled", "false"),
    ("access_logs.s3.prefix", ""),
    ("deletion_protection.enabled", "false"),
    ("dns_record.client_routing_policy", "any_availability_zone"),
    ("ipv6.deny_all_igw_traffic", "false"),
    ("load_balancing.cross_zone.enabled", "false"),
    ("secondary_ips.auto_assigned.per_subnet", "0"),
    ("zonal_shift.config.enabled", "false"),
];

/// Attributes of a new target group, without those that depend on its protocol.
const TARGET_GROUP: &[(&str, &str)] = &[
    ("deregistration_delay.timeout_seconds", "300"),
    ("load_balancing.cross_zone.enabled", "use_load_balancer_configuration"),
    ("proxy_protocol_v2.enabled", "false"),
    ("stickiness.enabled", "false"),
    ("stickiness.type", "source_ip"),
    ("target_group_health.dns_failover.minimum_healthy_targets.count", "1"),
    ("target_group_health.dns_failover.minimum_healthy_targets.percentage", "off"),
    ("target_group_health.unhealthy_state_routing.minimum_healthy_targets.count", "1"),
    ("target_group_health.unhealthy_state_routing.minimum_healthy_targets.percentage", "off"),
    ("target_health_state.unhealthy.connection_termination.enabled", "true"),
    ("target_health_state.unhealthy.draining_interval_seconds", "0"),
];

fn table(entries: &[(&str, &str)]) -> Attributes {
    entries
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect()
}

pub(super) fn of_balancer() -> Attributes {
    table(BALANCER)
}

pub(super) fn of_target_group(protocol: ElbProtocol, target_type: TargetType) -> Attributes {
    let udp = matches!(protocol, ElbProtocol::Udp | ElbProtocol::TcpUdp);
    let keeps_ip = udp || target_type == TargetType::Instance;
    let mut attributes = table(TARGET_GROUP);
    attributes.insert("preserve_client_ip.enabled".into(), keeps_ip.to_string().into());
    attributes.insert(
        "deregistration_delay.connection_termination.enabled".into(),
        udp.to_string().into(),
    );
    attributes
}

pub(super) fn of_listener(protocol: ElbProtocol) -> Attributes {
    match protocol {
        ElbProtocol::Tcp | ElbProtocol::TcpUdp => table(&[("tcp.idle_timeout.seconds", "350")]),
        ElbProtocol::Udp | ElbProtocol::Tls => Attributes::new(),
    }
}

/// Checks new values: each key has to exist already.
fn check(have: &Attributes, new: &Attributes) -> ApiResult<()> {
    if new.is_empty() {
        return invalid("At least one attribute has to be given");
    }
    for (key, value) in new {
        let key = &**key;
        let number = |low: u32, high: u32| {
            value
                .parse()
                .is_ok_and(|value: u32| (low..=high).contains(&value))
        };
        let boolean = || matches!(&**value, "true" | "false");
        let good = match key {
            _ if !have.contains_key(key) => {
                return invalid(format!(
                    "The attribute key '{key}' is not recognized or not supported here"
                ));
            }
            "load_balancing.cross_zone.enabled" if have.contains_key("stickiness.enabled") => {
                boolean() || **value == *"use_load_balancer_configuration"
            }
            "deregistration_delay.timeout_seconds" => number(0, 3600),
            "target_health_state.unhealthy.draining_interval_seconds" => number(0, 360_000),
            "tcp.idle_timeout.seconds" => number(60, 6000),
            "secondary_ips.auto_assigned.per_subnet" => number(0, 7),
            "stickiness.type" => **value == *"source_ip",
            "dns_record.client_routing_policy" => matches!(
                &**value,
                "any_availability_zone"
                    | "partial_availability_zone_affinity"
                    | "availability_zone_affinity"
            ),
            _ if key.ends_with(".enabled") => boolean(),
            _ if key.contains("minimum_healthy_targets.count") => {
                number(1, 1000) || **value == *"off"
            }
            _ if key.contains("minimum_healthy_targets.percentage") => {
                number(1, 100) || **value == *"off"
            }
            _ => true,
        };
        if !good {
            return invalid(format!("'{value}' is not a valid value for the attribute '{key}'"));
        }
    }
    Ok(())
}

impl AccountState {
    pub(super) fn balancer_attributes(
        &self,
        arn: &elb::DescribeLoadBalancerAttributes,
    ) -> ApiResult<Attributes> {
        Ok(self.shown_balancer(&arn.arn)?.attributes.clone())
    }

    pub(super) fn modify_balancer_attributes(
        &mut self,
        c: &elb::ModifyLoadBalancerAttributes,
    ) -> ApiResult<()> {
        let balancer = self.balancer_mut(&c.arn)?;
        check(&balancer.attributes, &c.attributes)?;
        let mut merged = balancer.attributes.clone();
        merged.extend(c.attributes.clone());
        let value = |key: &str| merged.get(key).map_or("", |value| &**value);
        if value("access_logs.s3.enabled") == "true" && value("access_logs.s3.bucket").is_empty() {
            return refuse("InvalidConfigurationRequest", "Access logs need a bucket");
        }
        balancer.attributes = merged;
        Ok(())
    }

    pub(super) fn target_group_attributes(
        &self,
        c: &elb::DescribeTargetGroupAttributes,
    ) -> ApiResult<Attributes> {
        Ok(self.shown_target_group(&c.arn)?.attributes.clone())
    }

    pub(super) fn modify_target_group_attributes(
        &mut self,
        c: &elb::ModifyTargetGroupAttributes,
    ) -> ApiResult<()> {
        let group = self.target_group_mut(&c.arn)?;
        check(&group.attributes, &c.attributes)?;
        let new = |key: &str| c.attributes.get(key).map_or("", |value| &**value);
        let udp = matches!(group.protocol, ElbProtocol::Udp | ElbProtocol::TcpUdp);
        if udp && new("preserve_client_ip.enabled") == "false" {
            let message = format!(
                "Client IP preservation cannot be disabled for {} target groups",
                group.protocol
            );
            return Err(ApiRejection::new("InvalidConfigurationRequest", message));
        }
        if group.protocol == ElbProtocol::Tls && new("stickiness.enabled") == "true" {
            return refuse(
                "InvalidConfigurationRequest",
                "Stickiness is not supported for TLS target groups",
            );
        }
        group.attributes.extend(c.attributes.clone());
        Ok(())
    }

    pub(super) fn listener_attributes(
        &self,
        c: &elb::DescribeListenerAttributes,
    ) -> ApiResult<Attributes> {
        Ok(self.shown_listener(&c.arn)?.attributes.clone())
    }

    pub(super) fn modify_listener_attributes(
        &mut self,
        c: &elb::ModifyListenerAttributes,
    ) -> ApiResult<()> {
        let listener = self.listener_mut(&c.arn)?;
        check(&listener.attributes, &c.attributes)?;
        listener.attributes.extend(c.attributes.clone());
        Ok(())
    }
}
