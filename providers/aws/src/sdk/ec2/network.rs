//! Interfaces, zones, subnets, VPCs and routes.

use aws_sdk_ec2::{Client, types};
use ipnet::IpNet;

use super::{filters, tags};
use crate::{
    api::{
        Action, AwsError, Page,
        ec2::{
            AvailabilityZone, CreateRoute, DeleteRoute, DescribeAvailabilityZones,
            DescribeNetworkInterfaces, DescribeRouteTables, DescribeSubnets, DescribeVpcs,
            ModifyNetworkInterfaceAttribute, NetworkInterface, ReplaceRoute, Route, RouteTable,
            RouteTarget, Subnet, Vpc,
        },
    },
    sdk::{
        convert::{count_or_zero, non_empty, non_empty_list, parsed, required, text_or_empty},
        error,
    },
};

/// Maximum number of objects per page, where AWS allows that many.
const MAX_PAGE_SIZE: i32 = 1000;

pub(in crate::sdk) async fn describe_interfaces(
    ec2: &Client,
    call: DescribeNetworkInterfaces,
) -> Result<Page<NetworkInterface>, AwsError> {
    let request = ec2
        .describe_network_interfaces()
        .set_filters(filters(call.filters))
        .max_results(MAX_PAGE_SIZE)
        .set_next_token(call.token);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(Action::DescribeNetworkInterfaces, error))?;
    let items = answer
        .network_interfaces
        .unwrap_or_default()
        .into_iter()
        .map(network_interface)
        .collect::<Result<_, _>>()?;
    Ok(Page { items, next: non_empty(answer.next_token) })
}

fn network_interface(from: types::NetworkInterface) -> Result<NetworkInterface, AwsError> {
    const ACTION: Action = Action::DescribeNetworkInterfaces;
    let private_ips = from.private_ip_addresses.unwrap_or_default().into_iter();
    let ipv6_addresses = from.ipv6_addresses.unwrap_or_default().into_iter();
    let groups = from.groups.unwrap_or_default().into_iter();
    Ok(NetworkInterface {
        id: required(ACTION, from.network_interface_id, "a network interface's ID")?,
        zone: text_or_empty(from.availability_zone),
        private_dns_name: text_or_empty(from.private_dns_name),
        private_ip: text_or_empty(from.private_ip_address),
        private_ips: private_ips
            .filter_map(|ip| non_empty(ip.private_ip_address))
            .collect(),
        ipv6_addresses: ipv6_addresses
            .filter_map(|ip| non_empty(ip.ipv6_address))
            .collect(),
        security_groups: groups
            .filter_map(|group| non_empty(group.group_id))
            .collect(),
        instance: from
            .attachment
            .and_then(|attachment| non_empty(attachment.instance_id)),
    })
}

pub(in crate::sdk) async fn modify_interface(
    ec2: &Client,
    call: ModifyNetworkInterfaceAttribute,
) -> Result<(), AwsError> {
    let check = types::AttributeBooleanValue::builder()
        .value(call.source_dest_check)
        .build();
    let request = ec2
        .modify_network_interface_attribute()
        .network_interface_id(&*call.id)
        .source_dest_check(check);
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::ModifyNetworkInterfaceAttribute, error))
}

pub(in crate::sdk) async fn describe_zones(
    ec2: &Client,
    _: DescribeAvailabilityZones,
) -> Result<Vec<AvailabilityZone>, AwsError> {
    let answer = ec2.describe_availability_zones().send().await;
    let answer = answer.map_err(|error| error::of(Action::DescribeAvailabilityZones, error))?;
    let zones = answer.availability_zones.unwrap_or_default().into_iter();
    Ok(zones
        .map(|from| AvailabilityZone {
            name: text_or_empty(from.zone_name),
            id: text_or_empty(from.zone_id),
            zone_type: text_or_empty(from.zone_type),
        })
        .collect())
}

pub(in crate::sdk) async fn describe_subnets(
    ec2: &Client,
    call: DescribeSubnets,
) -> Result<Page<Subnet>, AwsError> {
    let request = ec2
        .describe_subnets()
        .set_max_results(call.ids.is_empty().then_some(MAX_PAGE_SIZE))
        .set_subnet_ids(non_empty_list(&call.ids))
        .set_filters(filters(call.filters))
        .set_next_token(call.token);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(Action::DescribeSubnets, error))?;
    let items = answer
        .subnets
        .unwrap_or_default()
        .into_iter()
        .map(subnet)
        .collect::<Result<_, _>>()?;
    Ok(Page { items, next: non_empty(answer.next_token) })
}

fn subnet(from: types::Subnet) -> Result<Subnet, AwsError> {
    const ACTION: Action = Action::DescribeSubnets;
    let ipv6_cidrs = from
        .ipv6_cidr_block_association_set
        .unwrap_or_default()
        .into_iter()
        .filter(is_associated_with_subnet)
        .filter_map(|association| non_empty::<String>(association.ipv6_cidr_block));
    Ok(Subnet {
        id: required(ACTION, from.subnet_id, "a subnet's ID")?,
        vpc: required(ACTION, from.vpc_id, "a subnet's VPC")?,
        zone: text_or_empty(from.availability_zone),
        cidr: non_empty::<String>(from.cidr_block)
            .map(|cidr| parsed(ACTION, &cidr))
            .transpose()?,
        ipv6_cidrs: ipv6_cidrs
            .map(|cidr| parsed(ACTION, &cidr))
            .collect::<Result<_, _>>()?,
        free_ips: count_or_zero(from.available_ip_address_count),
        tags: tags::read(from.tags),
    })
}

/// Returns true if a subnet has an IPv6 CIDR. CIDRs that are being associated or disassociated are
/// not reliable; one without a state counts as associated.
///
/// A state that this version of the SDK does not know counts as associated here, but not in
/// [`is_associated_with_vpc`].
fn is_associated_with_subnet(association: &types::SubnetIpv6CidrBlockAssociation) -> bool {
    let state = association
        .ipv6_cidr_block_state
        .as_ref()
        .and_then(|state| state.state.as_ref());
    !matches!(
        state,
        Some(
            types::SubnetCidrBlockStateCode::Associating
                | types::SubnetCidrBlockStateCode::Disassociating
                | types::SubnetCidrBlockStateCode::Disassociated
                | types::SubnetCidrBlockStateCode::Failing
                | types::SubnetCidrBlockStateCode::Failed
        )
    )
}

pub(in crate::sdk) async fn describe_vpcs(
    ec2: &Client,
    call: DescribeVpcs,
) -> Result<Page<Vpc>, AwsError> {
    let request = ec2
        .describe_vpcs()
        .set_max_results(call.ids.is_empty().then_some(MAX_PAGE_SIZE))
        .set_vpc_ids(non_empty_list(&call.ids))
        .set_next_token(call.token);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(Action::DescribeVpcs, error))?;
    let items = answer
        .vpcs
        .unwrap_or_default()
        .into_iter()
        .map(vpc)
        .collect::<Result<_, _>>()?;
    Ok(Page { items, next: non_empty(answer.next_token) })
}

fn vpc(from: types::Vpc) -> Result<Vpc, AwsError> {
    const ACTION: Action = Action::DescribeVpcs;
    let ipv4_cidrs = from
        .cidr_block_association_set
        .unwrap_or_default()
        .into_iter()
        .filter_map(|association| {
            association
                .cidr_block
                .filter(|_| is_associated_with_vpc(association.cidr_block_state))
        });
    let ipv6_cidrs = from
        .ipv6_cidr_block_association_set
        .unwrap_or_default()
        .into_iter()
        .filter_map(|association| {
            association
                .ipv6_cidr_block
                .filter(|_| is_associated_with_vpc(association.ipv6_cidr_block_state))
        });
    // The primary CIDR is also among the associations.
    let mut cidrs: Vec<IpNet> = Vec::new();
    for cidr in from
        .cidr_block
        .into_iter()
        .chain(ipv4_cidrs)
        .chain(ipv6_cidrs)
        .filter(|cidr| !cidr.is_empty())
    {
        let cidr = parsed(ACTION, &cidr)?;
        if !cidrs.contains(&cidr) {
            cidrs.push(cidr);
        }
    }
    Ok(Vpc { id: required(ACTION, from.vpc_id, "a VPC's ID")?, cidrs })
}

/// Returns true if the CIDR with this state belongs to its VPC. One without a state counts as
/// associated; one with a state that this version of the SDK does not know does not.
fn is_associated_with_vpc(state: Option<types::VpcCidrBlockState>) -> bool {
    let code = state.and_then(|state| state.state);
    code.is_none_or(|code| code == types::VpcCidrBlockStateCode::Associated)
}

pub(in crate::sdk) async fn describe_route_tables(
    ec2: &Client,
    call: DescribeRouteTables,
) -> Result<Page<RouteTable>, AwsError> {
    let request = ec2
        .describe_route_tables()
        .set_route_table_ids(non_empty_list(&call.ids))
        .set_filters(filters(call.filters))
        .set_next_token(call.token);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(Action::DescribeRouteTables, error))?;
    let items = answer
        .route_tables
        .unwrap_or_default()
        .into_iter()
        .map(route_table)
        .collect::<Result<_, _>>()?;
    Ok(Page { items, next: non_empty(answer.next_token) })
}

fn route_table(from: types::RouteTable) -> Result<RouteTable, AwsError> {
    const ACTION: Action = Action::DescribeRouteTables;
    let associations = from.associations.unwrap_or_default();
    let routes = from.routes.unwrap_or_default().into_iter();
    Ok(RouteTable {
        id: required(ACTION, from.route_table_id, "a route table's ID")?,
        vpc: required(ACTION, from.vpc_id, "a route table's VPC")?,
        main: associations
            .iter()
            .any(|association| association.main == Some(true)),
        subnets: associations
            .into_iter()
            .filter_map(|association| non_empty(association.subnet_id))
            .collect(),
        routes: routes.map(route).collect::<Result<_, _>>()?,
        tags: tags::read(from.tags),
    })
}

fn route(from: types::Route) -> Result<Route, AwsError> {
    let destination: Option<String> =
        non_empty(from.destination_cidr_block).or(non_empty(from.destination_ipv6_cidr_block));
    Ok(Route {
        destination: destination
            .map(|cidr| parsed(Action::DescribeRouteTables, &cidr))
            .transpose()?,
        blackhole: from.state == Some(types::RouteState::Blackhole),
        instance: non_empty(from.instance_id),
        interface: non_empty(from.network_interface_id),
        gateway: non_empty(from.gateway_id),
    })
}

/// Sets table, destination and target of a request to create or replace a route.
macro_rules! route_request {
    ($request:expr, $call:expr) => {{
        let request = $request.route_table_id(&*$call.table);
        let request = match $call.destination {
            IpNet::V4(cidr) => request.destination_cidr_block(cidr.to_string()),
            IpNet::V6(cidr) => request.destination_ipv6_cidr_block(cidr.to_string()),
        };
        match $call.target {
            RouteTarget::Instance(id) => request.instance_id(&*id),
            RouteTarget::Interface(id) => request.network_interface_id(&*id),
        }
    }};
}

pub(in crate::sdk) async fn create_route(ec2: &Client, call: CreateRoute) -> Result<(), AwsError> {
    let request = route_request!(ec2.create_route(), call);
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::CreateRoute, error))
}

pub(in crate::sdk) async fn replace_route(
    ec2: &Client,
    call: ReplaceRoute,
) -> Result<(), AwsError> {
    let request = route_request!(ec2.replace_route(), call);
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::ReplaceRoute, error))
}

pub(in crate::sdk) async fn delete_route(ec2: &Client, call: DeleteRoute) -> Result<(), AwsError> {
    let request = ec2.delete_route().route_table_id(&*call.table);
    let request = match call.destination {
        IpNet::V4(cidr) => request.destination_cidr_block(cidr.to_string()),
        IpNet::V6(cidr) => request.destination_ipv6_cidr_block(cidr.to_string()),
    };
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::DeleteRoute, error))
}
