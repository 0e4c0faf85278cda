//! The cached form of an EC2 instance.

use std::sync::Arc;

use ccm_core::{k8s::Interner, provider::PowerState};
use ipnet::IpNet;

use crate::{
    api::{
        EniId, InstanceId, SecurityGroupId, SubnetId, VpcId,
        ec2::{self, InstanceState},
    },
    ownership_tags::Cluster,
};

/// A cached instance, with only the fields that the provider uses. Equal strings are shared among
/// instances to save memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Instance ID (`i-…`).
    pub id: InstanceId,
    /// State; `None` if AWS returned none.
    pub state: Option<InstanceState>,
    /// Instance type, such as `m6g.large`; empty if AWS returned none.
    pub instance_type: Arc<str>,
    /// Availability zone, such as `us-west-2a`.
    pub zone: Arc<str>,
    /// VPC in which the instance runs.
    pub vpc: Option<VpcId>,
    /// Subnet of the primary interface.
    pub subnet: Option<SubnetId>,
    /// Private DNS name; empty if there is none, like the other strings.
    pub private_dns_name: Box<str>,
    /// Public DNS name.
    pub public_dns_name: Box<str>,
    /// Private IPv4 address.
    pub private_ip: Box<str>,
    /// Public IPv4 address.
    pub public_ip: Box<str>,
    /// Network interfaces by device index; unattached ones last.
    pub interfaces: Box<[Interface]>,
    /// Security groups of the primary interface.
    pub security_groups: Box<[SecurityGroupId]>,
    /// True if the source/destination check of the primary interface is on.
    pub source_dest_check: Option<bool>,
    /// True if the instance has the cluster's tag, or if the cluster has no ID.
    pub in_cluster: bool,
}

/// A network interface of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Network interface ID (`eni-…`).
    pub id: EniId,
    /// `attachment.deviceIndex`; `None` without attachment.
    pub device_index: Option<i32>,
    /// True if the status is `in-use`.
    pub in_use: bool,
    /// Private IPv4 addresses, primary first.
    pub private_ips: Box<[Box<str>]>,
    /// IPv6 addresses.
    pub ipv6_addresses: Box<[Box<str>]>,
    /// Delegated prefixes of the interface.
    pub prefixes: Box<[IpNet]>,
    /// True if the source/destination check is on.
    pub source_dest_check: Option<bool>,
    /// Security groups of the interface.
    pub security_groups: Box<[SecurityGroupId]>,
}

impl Instance {
    /// Creates the cached form of an instance.
    pub fn new(instance: ec2::Instance, cluster: &Cluster, strings: &Interner) -> Self {
        let mut interfaces: Vec<Interface> = instance
            .interfaces
            .into_iter()
            .map(|interface| Interface::new(interface, strings))
            .collect();
        interfaces.sort_by_key(|interface| interface.device_index.unwrap_or(i32::MAX));
        Self {
            in_cluster: cluster.has(&instance.tags),
            id: instance.id,
            state: instance.state,
            instance_type: strings.intern(&instance.instance_type),
            zone: strings.intern(&instance.zone),
            vpc: instance.vpc.map(|id| strings.intern(&id).into()),
            subnet: instance.subnet.map(|id| strings.intern(&id).into()),
            private_dns_name: instance.private_dns_name,
            public_dns_name: instance.public_dns_name,
            private_ip: instance.private_ip,
            public_ip: instance.public_ip,
            interfaces: interfaces.into(),
            security_groups: instance
                .security_groups
                .iter()
                .map(|(id, _)| strings.intern(id).into())
                .collect(),
            source_dest_check: instance.source_dest_check,
        }
    }

    /// Returns the primary interface; `None` if AWS returned none.
    pub fn primary_interface(&self) -> Option<&Interface> {
        self.interfaces
            .iter()
            .find(|interface| interface.device_index == Some(0))
    }

    /// Returns true if the instance is terminated.
    pub fn is_terminated(&self) -> bool {
        self.state == Some(InstanceState::Terminated)
    }

    /// Returns the power state. Only `stopped` leads to the shutdown taint, and only `terminated`
    /// leads to the deletion of a Node. An unknown state leads to neither.
    pub fn power_state(&self) -> PowerState {
        match self.state {
            Some(InstanceState::Running) => PowerState::Running,
            Some(InstanceState::Stopped) => PowerState::Stopped,
            Some(InstanceState::Terminated) => PowerState::Terminated,
            Some(
                InstanceState::Pending | InstanceState::Stopping | InstanceState::ShuttingDown,
            ) => PowerState::Transitional,
            Some(InstanceState::Unknown) | None => PowerState::Unknown,
        }
    }
}

impl Interface {
    fn new(interface: ec2::InstanceInterface, strings: &Interner) -> Self {
        Self {
            id: interface.id,
            device_index: interface.device_index,
            in_use: interface.in_use,
            private_ips: interface.private_ips.into(),
            ipv6_addresses: interface.ipv6_addresses.into(),
            prefixes: interface.prefixes.into(),
            source_dest_check: interface.source_dest_check,
            security_groups: interface
                .security_groups
                .iter()
                .map(|id| strings.intern(id).into())
                .collect(),
        }
    }
}
