//! Load balancers.

use aws_sdk_elasticloadbalancingv2::{Client, types};

use super::{MAX_PAGE_SIZE, attributes_and_tags, is_on, on_off};
use crate::{
    api::{
        Action, AwsError, Page,
        elb::{
            CreateLoadBalancer, DeleteLoadBalancer, DescribeLoadBalancers, IpAddressType,
            LoadBalancer, LoadBalancerState, LoadBalancerZone, Scheme, SetIpAddressType,
            SetSecurityGroups, SetSubnets, SubnetMapping,
        },
    },
    sdk::{
        convert::{
            non_empty, non_empty_list, non_empty_structures, required, text_or_empty,
            texts_or_empty, time,
        },
        error,
    },
};

pub(in crate::sdk) async fn describe(
    elb: &Client,
    call: DescribeLoadBalancers,
) -> Result<Page<LoadBalancer>, AwsError> {
    const ACTION: Action = Action::DescribeLoadBalancers;
    let request = elb
        .describe_load_balancers()
        .set_page_size((call.names.is_empty() && call.arns.is_empty()).then_some(MAX_PAGE_SIZE))
        .set_names(non_empty_list(&call.names))
        .set_load_balancer_arns(non_empty_list(&call.arns))
        .set_marker(call.token);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    let items = answer
        .load_balancers
        .unwrap_or_default()
        .into_iter()
        .map(|from| load_balancer(ACTION, from));
    Ok(Page {
        items: items.collect::<Result<_, _>>()?,
        next: non_empty(answer.next_marker),
    })
}

fn load_balancer(action: Action, from: types::LoadBalancer) -> Result<LoadBalancer, AwsError> {
    let (code, reason) = from
        .state
        .map(|state| (state.code, state.reason))
        .unwrap_or_default();
    let private_link_rules = from.enforce_security_group_inbound_rules_on_private_link_traffic;
    Ok(LoadBalancer {
        arn: required(action, from.load_balancer_arn, "a load balancer's ARN")?,
        name: text_or_empty(from.load_balancer_name),
        dns_name: text_or_empty(from.dns_name),
        kind: from
            .r#type
            .map(|kind| kind.as_str().into())
            .unwrap_or_default(),
        scheme: from
            .scheme
            .and_then(|scheme| Scheme::parse(scheme.as_str())),
        state: code.and_then(|code| LoadBalancerState::parse(code.as_str())),
        state_reason: text_or_empty(reason),
        vpc: non_empty(from.vpc_id),
        ip_address_type: from
            .ip_address_type
            .and_then(|families| IpAddressType::parse(families.as_str())),
        zones: from
            .availability_zones
            .unwrap_or_default()
            .into_iter()
            .map(zone)
            .collect(),
        security_groups: texts_or_empty(from.security_groups),
        private_link_rules: private_link_rules.and_then(|rules| is_on(&rules)),
        ipv6_source_nat: from
            .enable_prefix_for_ipv6_source_nat
            .and_then(|nat| is_on(nat.as_str())),
        created: time(from.created_time),
    })
}

fn zone(from: types::AvailabilityZone) -> LoadBalancerZone {
    let addresses = from.load_balancer_addresses.unwrap_or_default();
    LoadBalancerZone {
        source_nat_prefixes: texts_or_empty(from.source_nat_ipv6_prefixes),
        zone: text_or_empty(from.zone_name),
        subnet: non_empty(from.subnet_id),
        allocations: addresses
            .iter()
            .filter_map(|address| non_empty(address.allocation_id.clone()))
            .collect(),
        private_ipv4: addresses
            .iter()
            .filter_map(|address| non_empty(address.private_ipv4_address.clone()))
            .collect(),
        ipv6: addresses
            .into_iter()
            .filter_map(|address| non_empty(address.ipv6_address))
            .collect(),
    }
}

fn mapping(mapping: SubnetMapping) -> types::SubnetMapping {
    types::SubnetMapping::builder()
        .subnet_id(&*mapping.subnet)
        .set_allocation_id(mapping.allocation.map(|id| id.to_string()))
        .set_private_ipv4_address(mapping.private_ipv4.map(|address| address.to_string()))
        .set_ipv6_address(mapping.ipv6.map(|address| address.to_string()))
        .set_source_nat_ipv6_prefix(mapping.source_nat_prefix.map(|prefix| prefix.to_string()))
        .build()
}

fn source_nat(on: Option<bool>) -> Option<types::EnablePrefixForIpv6SourceNatEnum> {
    on.map(|on| on_off(on).into())
}

pub(in crate::sdk) async fn create(
    elb: &Client,
    call: CreateLoadBalancer,
) -> Result<LoadBalancer, AwsError> {
    const ACTION: Action = Action::CreateLoadBalancer;
    let request = elb
        .create_load_balancer()
        .name(call.name)
        .r#type(types::LoadBalancerTypeEnum::Network)
        .scheme(call.scheme.as_str().into())
        .ip_address_type(call.ip_address_type.as_str().into())
        .set_subnet_mappings(non_empty_structures(call.subnets, mapping))
        .set_security_groups(non_empty_list(&call.security_groups))
        .set_enable_prefix_for_ipv6_source_nat(source_nat(call.ipv6_source_nat))
        .set_tags(attributes_and_tags::write(call.tags));
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    let made = answer.load_balancers.unwrap_or_default().into_iter().next();
    load_balancer(
        ACTION,
        made.ok_or_else(|| error::unreadable(ACTION, "the load balancer is missing"))?,
    )
}

pub(in crate::sdk) async fn delete(elb: &Client, call: DeleteLoadBalancer) -> Result<(), AwsError> {
    let request = elb.delete_load_balancer().load_balancer_arn(&*call.arn);
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::DeleteLoadBalancer, error))
}

pub(in crate::sdk) async fn set_subnets(elb: &Client, call: SetSubnets) -> Result<(), AwsError> {
    let request = elb
        .set_subnets()
        .load_balancer_arn(&*call.arn)
        .set_subnet_mappings(non_empty_structures(call.subnets, mapping))
        .set_ip_address_type(
            call.ip_address_type
                .map(|families| families.as_str().into()),
        )
        .set_enable_prefix_for_ipv6_source_nat(source_nat(call.ipv6_source_nat));
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::SetSubnets, error))
}

pub(in crate::sdk) async fn set_ip_address_type(
    elb: &Client,
    call: SetIpAddressType,
) -> Result<(), AwsError> {
    let families = call.ip_address_type.as_str().into();
    let request = elb
        .set_ip_address_type()
        .load_balancer_arn(&*call.arn)
        .ip_address_type(families);
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::SetIpAddressType, error))
}

pub(in crate::sdk) async fn set_security_groups(
    elb: &Client,
    call: SetSecurityGroups,
) -> Result<(), AwsError> {
    let request = elb
        .set_security_groups()
        .load_balancer_arn(&*call.arn)
        .set_security_groups(non_empty_list(&call.groups))
        .set_enforce_security_group_inbound_rules_on_private_link_traffic(
            call.private_link_rules.map(|on| on_off(on).into()),
        );
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::SetSecurityGroups, error))
}
