//! Target groups and their targets.

use std::num::NonZeroU16;

use aws_sdk_elasticloadbalancingv2::{Client, types};

use super::{MAX_PAGE_SIZE, attributes_and_tags};
use crate::{
    api::{
        Action, AwsError, Page,
        elb::{
            CreateTargetGroup, DeleteTargetGroup, DeregisterTargets, DescribeTargetGroups,
            DescribeTargetHealth, ElbProtocol, HealthCheck, HealthPort, HealthProtocol,
            IpAddressType, ModifyTargetGroup, RegisterTargets, Target, TargetGroup, TargetHealth,
            TargetType,
        },
    },
    sdk::{
        convert::{
            count_or_zero, non_empty, non_empty_list, non_empty_structures, required,
            text_or_empty, texts_or_empty,
        },
        error,
    },
};

pub(in crate::sdk) async fn describe(
    elb: &Client,
    call: DescribeTargetGroups,
) -> Result<Page<TargetGroup>, AwsError> {
    const ACTION: Action = Action::DescribeTargetGroups;
    let all = call.load_balancer.is_none() && call.arns.is_empty() && call.names.is_empty();
    let request = elb
        .describe_target_groups()
        .set_page_size(all.then_some(MAX_PAGE_SIZE))
        .set_load_balancer_arn(call.load_balancer.map(|arn| arn.to_string()))
        .set_target_group_arns(non_empty_list(&call.arns))
        .set_names(non_empty_list(&call.names))
        .set_marker(call.token);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    let items = answer
        .target_groups
        .unwrap_or_default()
        .into_iter()
        .map(|from| target_group(ACTION, from));
    Ok(Page {
        items: items.collect::<Result<_, _>>()?,
        next: non_empty(answer.next_marker),
    })
}

fn target_group(action: Action, mut from: types::TargetGroup) -> Result<TargetGroup, AwsError> {
    Ok(TargetGroup {
        arn: required(action, from.target_group_arn.take(), "a target group's ARN")?,
        name: text_or_empty(from.target_group_name.take()),
        protocol: from
            .protocol
            .take()
            .and_then(|protocol| ElbProtocol::parse(protocol.as_str())),
        port: count_or_zero(from.port),
        vpc: non_empty(from.vpc_id.take()),
        target_type: from
            .target_type
            .take()
            .and_then(|kind| TargetType::parse(kind.as_str())),
        ip_address_type: from
            .ip_address_type
            .take()
            .and_then(|family| IpAddressType::parse(family.as_str())),
        load_balancers: texts_or_empty(from.load_balancer_arns.take()),
        health_check: health_check(from),
    })
}

fn health_check(from: types::TargetGroup) -> Option<HealthCheck> {
    let port = match from.health_check_port.as_deref() {
        Some("traffic-port") | None => HealthPort::Traffic,
        Some(number) => HealthPort::Number(number.parse::<NonZeroU16>().ok()?),
    };
    Some(HealthCheck {
        protocol: HealthProtocol::parse(from.health_check_protocol?.as_str())?,
        port,
        path: non_empty(from.health_check_path),
        interval: count_or_zero(from.health_check_interval_seconds),
        timeout: count_or_zero(from.health_check_timeout_seconds),
        healthy: count_or_zero(from.healthy_threshold_count),
        unhealthy: count_or_zero(from.unhealthy_threshold_count),
        matcher: from
            .matcher
            .and_then(|matcher| non_empty(matcher.http_code)),
    })
}

/// Sets the health check of a request to create or change a target group.
macro_rules! with_health_check {
    ($request:expr, $check:expr) => {{
        let HealthCheck {
            protocol,
            port,
            path,
            interval,
            timeout,
            healthy,
            unhealthy,
            matcher,
        } = $check;
        $request
            .health_check_protocol(protocol.as_str().into())
            .health_check_port(port.to_string())
            .set_health_check_path(path.map(String::from))
            .health_check_interval_seconds(number(interval))
            .health_check_timeout_seconds(number(timeout))
            .healthy_threshold_count(number(healthy))
            .unhealthy_threshold_count(number(unhealthy))
            .set_matcher(matcher.map(|codes| types::Matcher::builder().http_code(codes).build()))
    }};
}

/// Converts a number for a request. All valid values are small; AWS rejects the maximum as it would
/// a larger value.
fn number(of: u32) -> i32 {
    i32::try_from(of).unwrap_or(i32::MAX)
}

pub(in crate::sdk) async fn create(
    elb: &Client,
    call: CreateTargetGroup,
) -> Result<TargetGroup, AwsError> {
    const ACTION: Action = Action::CreateTargetGroup;
    let request = elb
        .create_target_group()
        .name(call.name)
        .protocol(call.protocol.as_str().into())
        .port(call.port.get().into())
        .vpc_id(&*call.vpc)
        .target_type(call.target_type.as_str().into())
        .set_ip_address_type(call.ip_address_type.map(|family| family.as_str().into()))
        .set_tags(attributes_and_tags::write(call.tags));
    let request = with_health_check!(request, call.health_check);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    let made = answer.target_groups.unwrap_or_default().into_iter().next();
    target_group(
        ACTION,
        made.ok_or_else(|| error::unreadable(ACTION, "the target group is missing"))?,
    )
}

pub(in crate::sdk) async fn modify(elb: &Client, call: ModifyTargetGroup) -> Result<(), AwsError> {
    let request = with_health_check!(
        elb.modify_target_group().target_group_arn(&*call.arn),
        call.health_check
    );
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::ModifyTargetGroup, error))
}

pub(in crate::sdk) async fn delete(elb: &Client, call: DeleteTargetGroup) -> Result<(), AwsError> {
    let request = elb.delete_target_group().target_group_arn(&*call.arn);
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::DeleteTargetGroup, error))
}

pub(in crate::sdk) async fn health(
    elb: &Client,
    call: DescribeTargetHealth,
) -> Result<Vec<TargetHealth>, AwsError> {
    let answer = elb
        .describe_target_health()
        .target_group_arn(&*call.arn)
        .send()
        .await;
    let answer = answer.map_err(|error| error::of(Action::DescribeTargetHealth, error))?;
    let targets = answer
        .target_health_descriptions
        .unwrap_or_default()
        .into_iter();
    targets.map(target_health).collect()
}

fn target_health(from: types::TargetHealthDescription) -> Result<TargetHealth, AwsError> {
    const ACTION: Action = Action::DescribeTargetHealth;
    let target = from
        .target
        .ok_or_else(|| error::unreadable(ACTION, "a target is missing"))?;
    let (state, reason) = from
        .target_health
        .map(|health| (health.state, health.reason))
        .unwrap_or_default();
    Ok(TargetHealth {
        target: Target {
            id: required(ACTION, target.id, "a target's ID")?,
            port: count_or_zero(target.port),
            zone: non_empty(target.availability_zone),
        },
        state: state.map(|state| state.as_str().into()).unwrap_or_default(),
        reason: reason
            .map(|reason| reason.as_str().into())
            .unwrap_or_default(),
    })
}

fn target(target: Target) -> types::TargetDescription {
    types::TargetDescription::builder()
        .id(target.id)
        .port(target.port.into())
        .set_availability_zone(target.zone.map(String::from))
        .build()
}

pub(in crate::sdk) async fn register(elb: &Client, call: RegisterTargets) -> Result<(), AwsError> {
    let request = elb
        .register_targets()
        .target_group_arn(&*call.arn)
        .set_targets(non_empty_structures(call.targets, target));
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::RegisterTargets, error))
}

pub(in crate::sdk) async fn deregister(
    elb: &Client,
    call: DeregisterTargets,
) -> Result<(), AwsError> {
    let request = elb
        .deregister_targets()
        .target_group_arn(&*call.arn)
        .set_targets(non_empty_structures(call.targets, target));
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::DeregisterTargets, error))
}
