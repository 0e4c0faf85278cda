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
        convert::{non_empty, non_empty_list, required, text_or_empty, texts_or_empty},
        error,
    },
};

/// Maximum number of instances per page.
const MAX_PAGE_SIZE: u16 = 1000;

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
        .then(|| call.max_results.unwrap_or(MAX_PAGE_SIZE).into());
    let request = ec2
        .describe_instances()
        .set_instance_ids(non_empty_list(&call.ids))
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
        .flat_map(|reservation| reservation.instances.unwrap_or_default());
    Ok(Page {
        items: instances.map(instance).collect::<Result<_, _>>()?,
        next: non_empty(answer.next_token),
    })
}

fn instance(from: types::Instance) -> Result<Instance, AwsError> {
    let interfaces = from.network_interfaces.unwrap_or_default().into_iter();
    Ok(Instance {
        id: required(Action::DescribeInstances, from.instance_id, "an instance's ID")?,
        state: from
            .state
            .and_then(|state| state.name)
            .map(|name| state(&name)),
        instance_type: from
            .instance_type
            .map(|instance_type| instance_type.as_str().into())
            .unwrap_or_default(),
        zone: text_or_empty(
            from.placement
                .and_then(|placement| placement.availability_zone),
        ),
        vpc: non_empty(from.vpc_id),
        subnet: non_empty(from.subnet_id),
        private_dns_name: text_or_empty(from.private_dns_name),
        public_dns_name: text_or_empty(from.public_dns_name),
        private_ip: text_or_empty(from.private_ip_address),
        public_ip: text_or_empty(from.public_ip_address),
        interfaces: interfaces.map(interface).collect::<Result<_, _>>()?,
        security_groups: from
            .security_groups
            .unwrap_or_default()
            .into_iter()
            .filter_map(|group| {
                Some((SecurityGroupId::from(group.group_id?), text_or_empty(group.group_name)))
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
    let ipv4_prefixes = from
        .ipv4_prefixes
        .unwrap_or_default()
        .into_iter()
        .filter_map(|prefix| prefix.ipv4_prefix);
    let ipv6_prefixes = from
        .ipv6_prefixes
        .unwrap_or_default()
        .into_iter()
        .filter_map(|prefix| prefix.ipv6_prefix);
    Ok(InstanceInterface {
        id: required(
            Action::DescribeInstances,
            from.network_interface_id,
            "a network interface's ID",
        )?,
        device_index: from
            .attachment
            .and_then(|attachment| attachment.device_index),
        in_use: from.status == Some(types::NetworkInterfaceStatus::InUse),
        private_ips: private_ips
            .filter_map(|ip| non_empty(ip.private_ip_address))
            .collect(),
        ipv6_addresses: ipv6_addresses
            .filter_map(|ip| non_empty(ip.ipv6_address))
            .collect(),
        // Only security group rules for pods use prefixes.
        prefixes: ipv4_prefixes
            .chain(ipv6_prefixes)
            .filter_map(|prefix| prefix.parse().ok())
            .collect(),
        source_dest_check: from.source_dest_check,
        security_groups: from
            .groups
            .unwrap_or_default()
            .into_iter()
            .filter_map(|group| non_empty(group.group_id))
            .collect(),
    })
}

pub(in crate::sdk) async fn describe_topology(
    ec2: &Client,
    call: DescribeInstanceTopology,
) -> Result<Page<InstanceTopology>, AwsError> {
    let request = ec2
        .describe_instance_topology()
        .set_instance_ids(non_empty_list(&call.ids))
        .set_next_token(call.token);
    let answer = request
        .send()
        .await
        .map_err(|error| error::of(Action::DescribeInstanceTopology, error))?;
    let items = answer
        .instances
        .unwrap_or_default()
        .into_iter()
        .map(instance_topology)
        .collect::<Result<_, _>>()?;
    Ok(Page { items, next: non_empty(answer.next_token) })
}

fn instance_topology(from: types::InstanceTopology) -> Result<InstanceTopology, AwsError> {
    Ok(InstanceTopology {
        id: required(Action::DescribeInstanceTopology, from.instance_id, "an instance's ID")?,
        network_nodes: texts_or_empty(from.network_nodes),
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
