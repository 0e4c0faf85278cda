//! Instances.

use aws_sdk_ec2::{Client, types};

use super::{filters, tags};
use crate::{
    api::{
        Action, AwsError, Page, SecurityGroupId,
        ec2::{
            DescribeInstanceTopology, DescribeInstances, Instance, InstanceInterface,
            InstanceState, InstanceTopology, ModifyInstanceAttribute,
        },
    },
    sdk::{
        convert::{id, list, maybe, text, texts, token},
        error,
    },
};

/// Maximum number of instances per page.
const PAGE: u16 = 1000;

pub(in crate::sdk) async fn describe(
    ec2: &Client,
    call: DescribeInstances,
) -> Result<Page<Instance>, AwsError> {
    const ACTION: Action = Action::DescribeInstances;
    // AWS has a lower rate limit for listings without a page size; a request by ID must not have
    // one.
    let size = call
        .ids
        .is_empty()
        .then(|| call.max_results.unwrap_or(PAGE).into());
    let request = ec2
        .describe_instances()
        .set_instance_ids(list(&call.ids))
        .set_filters(filters(call.filters))
        .set_max_results(size)
        .set_next_token(call.token);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    let instances = answer
        .reservations
        .unwrap_or_default()
        .into_iter()
        .flat_map(|r| r.instances.unwrap_or_default());
    Ok(Page {
        items: instances.map(instance).collect::<Result<_, _>>()?,
        next: token(answer.next_token),
    })
}

fn instance(from: types::Instance) -> Result<Instance, AwsError> {
    let interfaces = from.network_interfaces.unwrap_or_default().into_iter();
    Ok(Instance {
        id: id(Action::DescribeInstances, from.instance_id, "an instance's ID")?,
        state: from
            .state
            .and_then(|state| state.name)
            .map(|name| state(&name)),
        instance_type: from
            .instance_type
            .map(|t| t.as_str().into())
            .unwrap_or_default(),
        zone: text(
            from.placement
                .and_then(|placement| placement.availability_zone),
        ),
        vpc: maybe(from.vpc_id),
        subnet: maybe(from.subnet_id),
        private_dns_name: text(from.private_dns_name),
        public_dns_name: text(from.public_dns_name),
        private_ip: text(from.private_ip_address),
        public_ip: text(from.public_ip_address),
        interfaces: interfaces.map(interface).collect::<Result<_, _>>()?,
        security_groups: from
            .security_groups
            .unwrap_or_default()
            .into_iter()
            .filter_map(|group| {
                Some((SecurityGroupId::from(group.group_id?), text(group.group_name)))
            })
            .collect(),
        source_dest_check: from.source_dest_check,
        tags: tags::read(from.tags),
    })
}

fn state(name: &types::InstanceStateName) -> InstanceState {
    match name {
        types::InstanceStateName::Pending => InstanceState::Pending,
        types::InstanceStateName::Running => InstanceState::Running,
        types::InstanceStateName::ShuttingDown => InstanceState::ShuttingDown,
        types::InstanceStateName::Stopping => InstanceState::Stopping,
        types::InstanceStateName::Stopped => InstanceState::Stopped,
        types::InstanceStateName::Terminated => InstanceState::Terminated,
        _ => InstanceState::Unknown,
    }
}

fn interface(from: types::InstanceNetworkInterface) -> Result<InstanceInterface, AwsError> {
    let private_ips = from.private_ip_addresses.unwrap_or_default().into_iter();
    let ipv6_addresses = from.ipv6_addresses.unwrap_or_default().into_iter();
    let v4 = from
        .ipv4_prefixes
        .unwrap_or_default()
        .into_iter()
        .filter_map(|prefix| prefix.ipv4_prefix);
    let v6 = from
        .ipv6_prefixes
        .unwrap_or_default()
        .into_iter()
        .filter_map(|prefix| prefix.ipv6_prefix);
    Ok(InstanceInterface {
        id: id(Action::DescribeInstances, from.network_interface_id, "a network interface's ID")?,
        device_index: from
            .attachment
            .and_then(|attachment| attachment.device_index),
        in_use: from.status == Some(types::NetworkInterfaceStatus::InUse),
        private_ips: private_ips
            .filter_map(|ip| maybe(ip.private_ip_address))
            .collect(),
        ipv6_addresses: ipv6_addresses
            .filter_map(|ip| maybe(ip.ipv6_address))
            .collect(),
        // Only security group rules for pods use prefixes.
        prefixes: v4
            .chain(v6)
            .filter_map(|prefix| prefix.parse().ok())
            .collect(),
        source_dest_check: from.source_dest_check,
        security_groups: from
            .groups
            .unwrap_or_default()
            .into_iter()
            .filter_map(|group| maybe(group.group_id))
            .collect(),
    })
}

pub(in crate::sdk) async fn describe_topology(
    ec2: &Client,
    call: DescribeInstanceTopology,
) -> Result<Page<InstanceTopology>, AwsError> {
    const ACTION: Action = Action::DescribeInstanceTopology;
    let request = ec2
        .describe_instance_topology()
        .set_instance_ids(list(&call.ids))
        .set_next_token(call.token);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(ACTION, error))?;
    let items = answer
        .instances
        .unwrap_or_default()
        .into_iter()
        .map(|from| {
            Ok(InstanceTopology {
                id: id(ACTION, from.instance_id, "an instance's ID")?,
                network_nodes: texts(from.network_nodes),
            })
        });
    Ok(Page {
        items: items.collect::<Result<_, _>>()?,
        next: token(answer.next_token),
    })
}

pub(in crate::sdk) async fn modify(
    ec2: &Client,
    call: ModifyInstanceAttribute,
) -> Result<(), AwsError> {
    let check = types::AttributeBooleanValue::builder()
        .value(call.source_dest_check)
        .build();
    let request = ec2
        .modify_instance_attribute()
        .instance_id(&*call.id)
        .source_dest_check(check);
    request
        .send()
        .await
        .map(drop)
        .map_err(|error| error::of(Action::ModifyInstanceAttribute, error))
}
