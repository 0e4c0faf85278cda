//! EC2: instances and network interfaces.

use tokio::time::Instant;

use super::{
    error::{ApiResult, refuse},
    lists::{Filters, page},
    state::{AccountState, CreationTime, Instance, InterfaceOwner, NetworkInterface},
};
use crate::api::{
    EniId, InstanceId, Page,
    ec2::{self, InstanceState},
};

const INSTANCE_FILTERS: &[&str] = &[
    "availability-zone",
    "instance-id",
    "instance-state-name",
    "instance-type",
    "instance.group-id",
    "network-interface.addresses.private-ip-address",
    "network-interface.private-dns-name",
    "private-dns-name",
    "private-ip-address",
    "subnet-id",
    "vpc-id",
];
const INTERFACE_FILTERS: &[&str] = &[
    "addresses.private-ip-address",
    "attachment.instance-id",
    "attachment.status",
    "availability-zone",
    "description",
    "group-id",
    "ipv6-addresses.ipv6-address",
    "network-interface-id",
    "private-dns-name",
    "private-ip-address",
    "status",
    "subnet-id",
    "vpc-id",
];
/// Maximum number of IDs in one request for instances.
const MOST_IDS: usize = 1000;
/// Maximum number of IDs in one request for topology.
const MOST_TOPOLOGY_IDS: usize = 100;

impl AccountState {
    pub(super) fn describe_instances(
        &self,
        c: &ec2::DescribeInstances,
    ) -> ApiResult<Page<ec2::Instance>> {
        if !c.ids.is_empty() && (c.max_results.is_some() || c.token.is_some()) {
            let message = "The parameter instancesSet cannot be used with the parameter maxResults";
            return refuse("InvalidParameterCombination", message);
        }
        if c.max_results.is_some_and(|max| !(5..=1000).contains(&max)) {
            return refuse(
                "InvalidParameterValue",
                "Value for parameter maxResults must be from 5 to 1000",
            );
        }
        if c.ids.len() > MOST_IDS {
            return refuse("InvalidParameterValue", format!("At most {MOST_IDS} instance IDs"));
        }
        let filters = Filters::new(&c.filters, INSTANCE_FILTERS)?;
        self.known_instances(&c.ids, CreationTime::shown)?;
        let found = self.instances.iter().filter(|(id, instance)| {
            (c.ids.is_empty() || c.ids.contains(id))
                && instance.created.shown()
                && filters.accept(&instance.tags, |name| self.instance_field(id, instance, name))
        });
        let found = found
            .map(|(id, instance)| (id.to_string(), self.show_instance(id, instance)))
            .collect();
        let size = c
            .max_results
            .map_or(self.options.page_size, |max| self.options.page_size.min(max.into()));
        page(
            found,
            c.token.as_deref(),
            if c.ids.is_empty() { size } else { usize::MAX },
            "InvalidNextToken",
        )
    }

    /// Checks that all instances exist; the error names each missing one.
    pub(super) fn known_instances(
        &self,
        ids: &[InstanceId],
        visible: impl Fn(CreationTime) -> bool,
    ) -> ApiResult<()> {
        if let Some(id) = ids.iter().find(|id| !well_formed("i-", id)) {
            return refuse("InvalidInstanceID.Malformed", format!("Invalid id: \"{id}\""));
        }
        let known = |id: &InstanceId| {
            self.instances
                .get(id)
                .is_some_and(|instance| visible(instance.created))
        };
        let missing: Vec<&str> = ids
            .iter()
            .filter(|id| !known(id))
            .map(InstanceId::as_str)
            .collect();
        match missing.as_slice() {
            [] => Ok(()),
            [one] => refuse(
                "InvalidInstanceID.NotFound",
                format!("The instance ID '{one}' does not exist"),
            ),
            all => refuse(
                "InvalidInstanceID.NotFound",
                format!("The instance IDs '{}' do not exist", all.join(", ")),
            ),
        }
    }

    fn instance_field(&self, id: &InstanceId, instance: &Instance, name: &str) -> Vec<String> {
        let enis = || instance.enis.iter().filter_map(|id| self.enis.get(id));
        match name {
            "availability-zone" => vec![instance.zone.to_string()],
            "instance-id" => vec![id.to_string()],
            "instance-state-name" => vec![state_name(instance.state).to_owned()],
            "instance-type" => vec![instance.kind.to_string()],
            "instance.group-id" => enis()
                .flat_map(|eni| &eni.groups)
                .map(ToString::to_string)
                .collect(),
            "network-interface.addresses.private-ip-address" => enis()
                .flat_map(|eni| &eni.private_ips)
                .map(ToString::to_string)
                .collect(),
            "network-interface.private-dns-name" => {
                enis().map(|eni| eni.private_dns_name.to_string()).collect()
            }
            "private-dns-name" => vec![instance.private_dns_name.to_string()],
            "private-ip-address" => enis()
                .take(1)
                .filter_map(|eni| eni.private_ips.first())
                .map(ToString::to_string)
                .collect(),
            "subnet-id" if instance.terminated.is_none() => vec![instance.subnet.to_string()],
            "vpc-id" if instance.terminated.is_none() => vec![instance.vpc.to_string()],
            _ => Vec::new(),
        }
    }

    fn show_instance(&self, id: &InstanceId, instance: &Instance) -> ec2::Instance {
        let interfaces = instance
            .enis
            .iter()
            .filter_map(|id| Some((id, self.enis.get(id)?)));
        let primary = interfaces.clone().next().map(|(_, eni)| eni);
        let named = |group| {
            (
                Clone::clone(group),
                self.groups
                    .get(group)
                    .map(|g| g.name.clone())
                    .unwrap_or_default(),
            )
        };
        let there = instance.terminated.is_none();
        ec2::Instance {
            id: id.clone(),
            state: Some(instance.state),
            instance_type: instance.kind.clone(),
            zone: instance.zone.clone(),
            vpc: there.then(|| instance.vpc.clone()),
            subnet: there.then(|| instance.subnet.clone()),
            private_dns_name: instance.private_dns_name.clone(),
            public_dns_name: instance.public_dns_name.clone(),
            private_ip: primary
                .and_then(|eni| eni.private_ips.first().cloned())
                .unwrap_or_default(),
            public_ip: instance.public_ip.clone(),
            interfaces: interfaces
                .map(|(id, eni)| show_interface(id, eni))
                .collect(),
            security_groups: primary
                .map(|eni| eni.groups.iter().map(named).collect())
                .unwrap_or_default(),
            source_dest_check: primary.map(|eni| eni.source_dest_check),
            tags: instance.tags.clone(),
        }
    }

    pub(super) fn describe_interfaces(
        &self,
        c: &ec2::DescribeNetworkInterfaces,
    ) -> ApiResult<Page<ec2::NetworkInterface>> {
        let filters = Filters::new(&c.filters, INTERFACE_FILTERS)?;
        let none = crate::api::Tags::new();
        let found = self
            .enis
            .iter()
            .filter(|(id, eni)| filters.accept(&none, |name| interface_field(id, eni, name)));
        let show = |(id, eni): (&EniId, &NetworkInterface)| {
            let shown = ec2::NetworkInterface {
                id: id.clone(),
                zone: eni.zone.clone(),
                private_dns_name: eni.private_dns_name.clone(),
                private_ip: eni.private_ips.first().cloned().unwrap_or_default(),
                private_ips: eni.private_ips.clone(),
                ipv6_addresses: eni.ipv6.clone(),
                security_groups: eni.groups.clone(),
                instance: match &eni.holder {
                    InterfaceOwner::Instance(id, _) => Some(id.clone()),
                    _ => None,
                },
            };
            (id.to_string(), shown)
        };
        page(
            found.map(show).collect(),
            c.token.as_deref(),
            self.options.page_size,
            "InvalidNextToken",
        )
    }

    pub(super) fn describe_topology(
        &self,
        c: &ec2::DescribeInstanceTopology,
    ) -> ApiResult<Page<ec2::InstanceTopology>> {
        if c.ids.len() > MOST_TOPOLOGY_IDS {
            return refuse(
                "InvalidParameterValue",
                format!("At most {MOST_TOPOLOGY_IDS} instance IDs"),
            );
        }
        self.known_instances(&c.ids, CreationTime::shown)?;
        // Instances of types without topology are left out of the answer.
        let asked = |id: &InstanceId| c.ids.is_empty() || c.ids.contains(id);
        let found = self.instances.iter().filter(|(id, instance)| {
            asked(id)
                && !instance.network_nodes.is_empty()
                && instance.state == InstanceState::Running
        });
        let show = |(id, instance): (&InstanceId, &Instance)| {
            let shown = ec2::InstanceTopology {
                id: id.clone(),
                network_nodes: instance.network_nodes.clone(),
            };
            (id.to_string(), shown)
        };
        page(
            found.map(show).collect(),
            c.token.as_deref(),
            self.options.page_size,
            "InvalidNextToken",
        )
    }

    pub(super) fn modify_instance(&mut self, c: &ec2::ModifyInstanceAttribute) -> ApiResult<()> {
        self.known_instances(std::slice::from_ref(&c.id), CreationTime::found)?;
        let enis = self
            .instances
            .get(&c.id)
            .map(|instance| instance.enis.clone())
            .unwrap_or_default();
        match enis.as_slice() {
            [one] => {
                if let Some(eni) = self.enis.get_mut(one) {
                    eni.source_dest_check = c.source_dest_check;
                }
                Ok(())
            }
            [] => {
                refuse("IncorrectInstanceState", format!("The instance '{}' is terminated", c.id))
            }
            _ => {
                let message = format!(
                    "There are multiple interfaces attached to instance '{}'. Please specify an interface ID for the \
                     operation instead.",
                    c.id
                );
                refuse("InvalidInstanceID", message)
            }
        }
    }

    pub(super) fn modify_interface(
        &mut self,
        c: &ec2::ModifyNetworkInterfaceAttribute,
    ) -> ApiResult<()> {
        match self.enis.get_mut(&c.id) {
            Some(eni)
                if matches!(
                    eni.holder,
                    InterfaceOwner::Balancer(_)
                        | InterfaceOwner::Classic(_)
                        | InterfaceOwner::Leaving(_)
                        | InterfaceOwner::Service
                ) =>
            {
                refuse(
                    "OperationNotPermitted",
                    "The network interface is managed by another service",
                )
            }
            Some(eni) => {
                eni.source_dest_check = c.source_dest_check;
                Ok(())
            }
            None => refuse(
                "InvalidNetworkInterfaceID.NotFound",
                format!("The networkInterface ID '{}' does not exist", c.id),
            ),
        }
    }

    /// Terminates an instance: for an hour it keeps its ID, type, zone and tags, and loses
    /// everything else.
    pub(super) fn terminate(&mut self, id: &InstanceId) {
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        instance.state = InstanceState::Terminated;
        instance.terminated = Some(Instant::now());
        for text in
            [&mut instance.private_dns_name, &mut instance.public_dns_name, &mut instance.public_ip]
        {
            *text = Box::default();
        }
        for eni in std::mem::take(&mut instance.enis) {
            self.enis.remove(&eni);
        }
    }
}

/// Returns true if an ID has EC2's format.
pub(super) fn well_formed(prefix: &str, id: &str) -> bool {
    id.strip_prefix(prefix).is_some_and(|rest| {
        matches!(rest.len(), 8 | 17)
            && rest
                .chars()
                .all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase())
    })
}

fn show_interface(id: &EniId, eni: &NetworkInterface) -> ec2::InstanceInterface {
    let device_index = match eni.holder {
        InterfaceOwner::Instance(_, index) => index,
        _ => None,
    };
    ec2::InstanceInterface {
        id: id.clone(),
        device_index,
        in_use: eni.in_use,
        private_ips: eni.private_ips.clone(),
        ipv6_addresses: eni.ipv6.clone(),
        prefixes: eni.prefixes.clone(),
        source_dest_check: Some(eni.source_dest_check),
        security_groups: eni.groups.clone(),
    }
}

fn interface_field(id: &EniId, eni: &NetworkInterface, name: &str) -> Vec<String> {
    let attached = !matches!(eni.holder, InterfaceOwner::Leaving(_)) && eni.in_use;
    match (name, &eni.holder) {
        ("addresses.private-ip-address" | "private-ip-address", _) => {
            eni.private_ips.iter().map(ToString::to_string).collect()
        }
        ("attachment.instance-id", InterfaceOwner::Instance(id, _)) => vec![id.to_string()],
        ("attachment.status", _) => vec![if attached { "attached" } else { "detached" }.to_owned()],
        ("availability-zone", _) => vec![eni.zone.to_string()],
        ("description", InterfaceOwner::Classic(name)) => vec![format!("ELB {name}")],
        ("description", InterfaceOwner::Balancer(arn)) => {
            vec![format!("ELB {}", arn.split_once("loadbalancer/").map_or("", |(_, path)| path))]
        }
        ("ipv6-addresses.ipv6-address", _) => eni.ipv6.iter().map(ToString::to_string).collect(),
        ("group-id", _) => eni.groups.iter().map(ToString::to_string).collect(),
        ("network-interface-id", _) => vec![id.to_string()],
        ("private-dns-name", _) => vec![eni.private_dns_name.to_string()],
        ("status", _) => vec![if eni.in_use { "in-use" } else { "available" }.to_owned()],
        ("subnet-id", _) => vec![eni.subnet.to_string()],
        ("vpc-id", _) => vec![eni.vpc.to_string()],
        _ => Vec::new(),
    }
}

pub(super) fn state_name(state: InstanceState) -> &'static str {
    match state {
        InstanceState::Pending => "pending",
        InstanceState::Running => "running",
        InstanceState::ShuttingDown => "shutting-down",
        InstanceState::Stopping => "stopping",
        InstanceState::Stopped => "stopped",
        InstanceState::Terminated => "terminated",
        InstanceState::Unknown => "unknown",
    }
}
