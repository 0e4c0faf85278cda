//! Elastic Load Balancing: target groups and their targets.

use std::{net::IpAddr, time::Duration};

use tokio::time::Instant;

use super::{
    attributes,
    balancers::check_name,
    error::{ApiRejection, ApiResult, invalid, refuse},
    instances::state_name,
    lists::page,
    state::{AccountState, Target, TargetGroup},
    tags::MOST_NAMED,
    tags::check_elb_tags,
};
use crate::api::{
    InstanceId, LoadBalancerArn, Page, TargetGroupArn,
    ec2::InstanceState,
    elb::{self, HealthCheck, HealthProtocol, IpAddressType, TargetType},
};

const UNKNOWN: &str = "TargetGroupNotFound";
/// Maximum number of targets in one request. AWS documents none; the provider must not send more
/// than other clients do.
const MOST_TARGETS: usize = 200;

impl AccountState {
    pub(super) fn describe_target_groups(
        &self,
        c: &elb::DescribeTargetGroups,
    ) -> ApiResult<Page<elb::TargetGroup>> {
        let ways = [c.load_balancer.is_some(), !c.arns.is_empty(), !c.names.is_empty()];
        if ways.into_iter().filter(|way| *way).count() > 1 {
            return invalid("Only one of load balancer, target group ARNs and names can be given");
        }
        if c.arns.len().max(c.names.len()) > MOST_NAMED {
            return invalid(format!(
                "At most {MOST_NAMED} target groups can be described by name or ARN"
            ));
        }
        if let Some(arn) = &c.load_balancer {
            self.shown_balancer(arn)?;
        }
        let shown = || {
            self.target_groups
                .iter()
                .filter(|(_, group)| group.created.shown())
        };
        let no_name = c
            .names
            .iter()
            .any(|name| !shown().any(|(_, group)| group.name == *name));
        if no_name
            || c.arns
                .iter()
                .any(|wanted| !shown().any(|(arn, _)| arn == wanted))
        {
            return refuse(UNKNOWN, "One or more target groups not found");
        }
        let asked = |arn: &TargetGroupArn, group: &TargetGroup| match &c.load_balancer {
            Some(balancer) => self.users(arn).contains(balancer),
            None if c.arns.is_empty() && c.names.is_empty() => true,
            None => c.arns.contains(arn) || c.names.contains(&group.name),
        };
        let found = shown().filter(|(arn, group)| asked(arn, group));
        let found = found.map(|(arn, group)| (arn.to_string(), self.show_target_group(arn, group)));
        page(
            found.collect(),
            c.token.as_deref(),
            self.options.page_size.min(400),
            "ValidationError",
        )
    }

    /// Returns the load balancers whose listeners use a target group.
    pub(super) fn users(&self, arn: &TargetGroupArn) -> Vec<LoadBalancerArn> {
        let listeners = self
            .listeners
            .values()
            .filter(|listener| listener.target_group == *arn);
        let mut users: Vec<_> = listeners
            .map(|listener| listener.load_balancer.clone())
            .collect();
        users.sort();
        users.dedup();
        users
    }

    pub(super) fn show_target_group(
        &self,
        arn: &TargetGroupArn,
        group: &TargetGroup,
    ) -> elb::TargetGroup {
        elb::TargetGroup {
            arn: arn.clone(),
            name: group.name.clone(),
            protocol: Some(group.protocol),
            port: group.port,
            vpc: Some(group.vpc.clone()),
            target_type: Some(group.target_type),
            ip_address_type: Some(group.ip_address_type),
            health_check: Some(group.health_check.clone()),
            load_balancers: self.users(arn),
        }
    }

    pub(super) fn create_target_group(
        &mut self,
        c: &elb::CreateTargetGroup,
    ) -> ApiResult<elb::TargetGroup> {
        // First, check the settings; the same name with the same settings returns the existing
        // target group.
        check_name("target group", &c.name)?;
        let health_check = checked(&c.health_check)?;
        let ip_address_type = c.ip_address_type.unwrap_or(IpAddressType::Ipv4);
        if ip_address_type == IpAddressType::Dualstack {
            return invalid("The IP address type of a target group is 'ipv4' or 'ipv6'");
        }
        if let Some((arn, have)) = self
            .target_groups
            .iter()
            .find(|(_, group)| group.name == c.name)
        {
            let same = have.protocol == c.protocol
                && have.port == c.port.get()
                && have.vpc == c.vpc
                && have.target_type == c.target_type
                && have.ip_address_type == ip_address_type
                && have.health_check == health_check
                && self.same_tags(&have.tags, &c.tags);
            return if same {
                Ok(self.show_target_group(arn, have))
            } else {
                let message = format!(
                    "A target group with the same name '{}' exists, but with different settings",
                    c.name
                );
                refuse("DuplicateTargetGroupName", message)
            };
        }
        // Then check tags, VPC and quota.
        check_elb_tags(&c.tags, c.tags.len(), self.options.quotas.tags)?;
        if !self.vpcs.contains_key(&c.vpc) {
            return invalid(format!("The VPC ID '{}' is not found", c.vpc));
        }
        if self.target_groups.len() >= self.options.quotas.target_groups {
            return refuse("TooManyTargetGroups", "You have reached the limit of target groups");
        }
        // Finally, create the target group.
        let arn = TargetGroupArn::from(self.arn("targetgroup", &c.name));
        let group = TargetGroup {
            name: c.name.clone(),
            protocol: c.protocol,
            port: c.port.get(),
            vpc: c.vpc.clone(),
            target_type: c.target_type,
            ip_address_type,
            health_check,
            attributes: attributes::of_target_group(c.protocol, c.target_type),
            tags: c.tags.clone(),
            targets: std::collections::BTreeMap::new(),
            created: self.creation_time(),
        };
        let shown = self.show_target_group(&arn, &group);
        self.target_groups.insert(arn, group);
        Ok(shown)
    }

    pub(super) fn modify_target_group(&mut self, c: &elb::ModifyTargetGroup) -> ApiResult<()> {
        let health_check = checked(&c.health_check)?;
        self.target_group_mut(&c.arn)?.health_check = health_check;
        Ok(())
    }

    pub(super) fn delete_target_group(&mut self, c: &elb::DeleteTargetGroup) -> ApiResult<()> {
        if !self.users(&c.arn).is_empty() {
            let message =
                format!("Target group '{}' is currently in use by a listener or a rule", c.arn);
            return refuse("ResourceInUse", message);
        }
        self.target_groups.remove(&c.arn);
        Ok(())
    }

    pub(super) fn register(&mut self, c: &elb::RegisterTargets) -> ApiResult<()> {
        let group = self.target_group(&c.arn)?;
        check_count(&c.targets)?;
        match group.target_type {
            TargetType::Instance => self.check_instances(group, &c.targets)?,
            TargetType::Ip => self.check_ips(group, &c.targets)?,
        }
        let new = c.targets.iter().filter(|target| {
            group
                .targets
                .get(&(target.id.clone(), target.port))
                .is_none_or(|have| have.draining.is_some())
        });
        let mut keys: Vec<_> = new.map(|target| (target.id.clone(), target.port)).collect();
        keys.sort();
        keys.dedup();
        let registered = group
            .targets
            .values()
            .filter(|target| target.draining.is_none())
            .count();
        if registered + keys.len() > self.options.quotas.targets_per_target_group {
            return refuse(
                "TooManyTargets",
                format!("Target group '{}' has reached the limit of targets", c.arn),
            );
        }
        let most = self.options.quotas.registrations_per_target;
        let count = |id: &str| {
            let all = self.target_groups.values().flat_map(|group| &group.targets);
            all.filter(|((have, _), target)| **have == *id && target.draining.is_none())
                .count()
        };
        if let Some((id, _)) = keys.iter().find(|(id, _)| count(id) >= most) {
            return refuse(
                "TooManyRegistrationsForTargetId",
                format!("Target '{id}' is registered too often"),
            );
        }
        let zones: Vec<_> = c
            .targets
            .iter()
            .map(|target| (target.id.clone(), target.port, target.zone.clone()))
            .collect();
        let group = self.target_group_mut(&c.arn)?;
        for (id, port, zone) in zones {
            if keys.contains(&(id.clone(), port)) {
                let target = Target { zone, since: Instant::now(), draining: None, health: None };
                group.targets.insert((id, port), target);
            }
        }
        Ok(())
    }

    fn check_instances(&self, group: &TargetGroup, targets: &[elb::Target]) -> ApiResult<()> {
        let state = |id: &str| {
            let instance = self.instances.get(&InstanceId::from(id))?;
            (instance.terminated.is_some() || instance.vpc == group.vpc).then_some(instance.state)
        };
        let list = |bad: Vec<&str>| {
            bad.into_iter()
                .map(|id| format!("'{id}'"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let ids = || targets.iter().map(|target| &*target.id);
        let unknown: Vec<_> = ids().filter(|id| state(id).is_none()).collect();
        if !unknown.is_empty() {
            return refuse(
                "InvalidTarget",
                format!("The instance IDs {} are not valid", list(unknown)),
            );
        }
        let stopped: Vec<_> = ids()
            .filter(|id| state(id) != Some(InstanceState::Running))
            .collect();
        if !stopped.is_empty() {
            let message = format!(
                "The following targets are not in a running state and cannot be registered: {}",
                list(stopped)
            );
            return refuse("InvalidTarget", message);
        }
        Ok(())
    }

    fn check_ips(&self, group: &TargetGroup, targets: &[elb::Target]) -> ApiResult<()> {
        for target in targets {
            let Ok(ip) = target.id.parse::<IpAddr>() else {
                return invalid(format!("The IP address '{}' is not valid", target.id));
            };
            if ip.is_ipv6() != (group.ip_address_type == IpAddressType::Ipv6) {
                return invalid(format!(
                    "The IP address '{ip}' is not of type '{}'",
                    group.ip_address_type
                ));
            }
            // The CIDRs of the VPC's subnets count, not those associated with the VPC.
            let mut subnets = self
                .subnets
                .values()
                .filter(|subnet| subnet.vpc == group.vpc);
            let within = subnets.any(|subnet| match ip {
                IpAddr::V4(ip) => subnet.cidr.is_some_and(|cidr| cidr.contains(&ip)),
                IpAddr::V6(ip) => subnet.ipv6.iter().any(|cidr| cidr.contains(&ip)),
            });
            match (within, target.zone.as_deref()) {
                (true, Some("all")) => {
                    let message = format!(
                        "The IP address '{ip}' is within the VPC and cannot have its Availability Zone set to 'all'"
                    );
                    return invalid(message);
                }
                (false, None) => {
                    let message = format!(
                        "The Availability Zone is required for IP address '{ip}' because it is not in the VPC"
                    );
                    return invalid(message);
                }
                (false, Some(_)) if !private(ip) => {
                    return refuse(
                        "InvalidTarget",
                        format!("The IP address '{ip}' is not in a private range"),
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn deregister(&mut self, c: &elb::DeregisterTargets) -> ApiResult<()> {
        check_count(&c.targets)?;
        let used = !self.users(&c.arn).is_empty();
        let now = Instant::now();
        let group = self.target_group_mut(&c.arn)?;
        let delay = group
            .attributes
            .get("deregistration_delay.timeout_seconds")
            .and_then(|text| text.parse().ok());
        let delay = if used {
            Duration::from_secs(delay.unwrap_or(300))
        } else {
            Duration::ZERO
        };
        for target in &c.targets {
            if let Some(target) = group.targets.get_mut(&(target.id.clone(), target.port)) {
                target.draining = target.draining.or(Some(now + delay));
            }
        }
        self.advance();
        Ok(())
    }

    pub(super) fn describe_health(
        &self,
        c: &elb::DescribeTargetHealth,
    ) -> ApiResult<Vec<elb::TargetHealth>> {
        let group = self.shown_target_group(&c.arn)?;
        let used = !self.users(&c.arn).is_empty();
        let show = |((id, port), target): (&(Box<str>, u16), &Target)| {
            let (state, reason) = self.health(id, target, used);
            let target = elb::Target { id: id.clone(), port: *port, zone: target.zone.clone() };
            elb::TargetHealth { target, state, reason }
        };
        Ok(group.targets.iter().map(show).collect())
    }

    fn health(&self, id: &str, target: &Target, used: bool) -> (Box<str>, Box<str>) {
        let instance = self.instances.get(&InstanceId::from(id));
        let down = id.starts_with("i-")
            && instance.is_none_or(|instance| instance.state != InstanceState::Running);
        match &target.health {
            _ if target.draining.is_some() => {
                ("draining".into(), "Target.DeregistrationInProgress".into())
            }
            _ if down => {
                let state = instance.map_or("gone", |instance| state_name(instance.state));
                let reason = if state == "pending" {
                    "Target.NotRegistered"
                } else {
                    "Target.InvalidState"
                };
                ("unused".into(), reason.into())
            }
            _ if !used => ("unused".into(), "Target.NotInUse".into()),
            Some((state, reason)) => (state.clone(), reason.clone()),
            None if target.since + self.options.initial > Instant::now() => {
                ("initial".into(), "Elb.RegistrationInProgress".into())
            }
            None => ("healthy".into(), Box::default()),
        }
    }

    pub(super) fn target_group(&self, arn: &TargetGroupArn) -> ApiResult<&TargetGroup> {
        match self
            .target_groups
            .get(arn)
            .filter(|group| group.created.found())
        {
            Some(group) => Ok(group),
            None => refuse(UNKNOWN, format!("Target group '{arn}' not found")),
        }
    }

    pub(super) fn target_group_mut(&mut self, arn: &TargetGroupArn) -> ApiResult<&mut TargetGroup> {
        self.target_group(arn)?;
        self.target_groups
            .get_mut(arn)
            .ok_or_else(|| ApiRejection::new(UNKNOWN, "Target group not found"))
    }

    pub(super) fn shown_target_group(&self, arn: &TargetGroupArn) -> ApiResult<&TargetGroup> {
        match self
            .target_groups
            .get(arn)
            .filter(|group| group.created.shown())
        {
            Some(group) => Ok(group),
            None => refuse(UNKNOWN, format!("Target group '{arn}' not found")),
        }
    }
}

fn check_count(targets: &[elb::Target]) -> ApiResult<()> {
    match targets.len() {
        0 => invalid("At least one target has to be given"),
        1..=MOST_TARGETS => Ok(()),
        _ => invalid(format!("At most {MOST_TARGETS} targets can be given")),
    }
}

/// Returns true if an address outside the VPC may be a target: it has to be in a private or shared
/// range.
fn private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            ip.is_private() || (ip.octets()[0] == 100 && (64..128).contains(&ip.octets()[1]))
        }
        IpAddr::V6(_) => false,
    }
}

/// Checks a health check and fills in AWS' defaults.
fn checked(check: &HealthCheck) -> ApiResult<HealthCheck> {
    // First, check the numbers.
    let bounds = [
        ("interval", check.interval, 5, 300),
        ("timeout", check.timeout, 2, 120),
        ("healthy threshold count", check.healthy, 2, 10),
        ("unhealthy threshold count", check.unhealthy, 2, 10),
    ];
    for (what, value, low, high) in bounds {
        if !(low..=high).contains(&value) {
            return invalid(format!("Health check {what} '{value}' must be from {low} to {high}"));
        }
    }
    if check.timeout > check.interval {
        let message = format!(
            "Health check interval '{}' must not be smaller than the timeout '{}'",
            check.interval, check.timeout
        );
        return invalid(message);
    }
    // Then check path and status codes.
    let tcp = check.protocol == HealthProtocol::Tcp;
    if tcp && (check.path.is_some() || check.matcher.is_some()) {
        return invalid(
            "Health check path and matcher are not supported for health checks with protocol TCP",
        );
    }
    if check
        .path
        .as_ref()
        .is_some_and(|path| !path.starts_with('/') || path.len() > 1024)
    {
        return invalid("The health check path has to begin with '/'");
    }
    let code = |text: &str| {
        text.parse()
            .is_ok_and(|code: u16| (200..600).contains(&code))
    };
    let range = |text: &str| {
        text.split_once('-')
            .map_or_else(|| code(text), |(low, high)| code(low) && code(high))
    };
    if check
        .matcher
        .as_ref()
        .is_some_and(|matcher| !matcher.split(',').all(range))
    {
        return invalid("The matcher of a health check has codes from 200 to 599");
    }
    // Finally, fill in the defaults.
    let mut check = check.clone();
    if !tcp {
        check.path.get_or_insert_with(|| "/".into());
        check.matcher.get_or_insert_with(|| "200-399".into());
    }
    Ok(check)
}
