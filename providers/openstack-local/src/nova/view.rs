//! How servers are shown.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::api::{
    neutron::Port,
    nova::{
        Address, AddressType, Addresses, Fault, GroupName, Image, Link, STATUS_UNKNOWN, Server,
        ServerFlavor,
    },
};
use jiff::Timestamp;
use sha2::{Digest, Sha224};

use super::{FlavorRow, Microversion, ServerRow, zones};
use crate::{
    neutron::floating_ips,
    server::Origin,
    state::{CloudState, RequestContext},
};

/// What is looked up once for all servers of a list.
pub(super) struct View<'s> {
    state: &'s CloudState,
    version: Microversion,
    origin: &'s Origin,
    admin: bool,
    /// Floating addresses by port and fixed address.
    floating: BTreeMap<(&'s str, IpAddr), Vec<IpAddr>>,
}

impl<'s> View<'s> {
    pub(super) fn new(
        state: &'s CloudState,
        ctx: &RequestContext,
        version: Microversion,
        origin: &'s Origin,
    ) -> Self {
        let mut floating = BTreeMap::<_, Vec<_>>::new();
        for (port, fixed, outside) in floating_ips::of_ports(state) {
            floating.entry((port, fixed)).or_default().push(outside);
        }
        Self { state, version, origin, admin: ctx.admin, floating }
    }

    fn from(&self, minor: u16) -> bool {
        self.version >= Microversion(minor)
    }

    /// Shows ID, name and links.
    pub(super) fn short(&self, row: &ServerRow) -> Server {
        Server {
            id: row.id.clone(),
            name: Some(row.name.clone()),
            links: self.links(&row.id),
            ..Server::default()
        }
    }

    /// Shows one whose cell does not answer, in a list.
    pub(super) fn partial(&self, row: &ServerRow, details: bool) -> Server {
        Server {
            id: row.id.clone(),
            status: STATUS_UNKNOWN.to_owned(),
            tenant_id: details.then(|| row.project.clone()),
            created: details.then(|| stamp(row.created)),
            links: self.links(&row.id),
            ..Server::default()
        }
    }

    /// Shows one whose cell does not answer, on its own.
    pub(super) fn partial_alone(&self, row: &ServerRow) -> Server {
        Server {
            user_id: Some(row.user.clone()),
            image: Some(self.image(row)),
            flavor: Some(self.flavor(&row.flavor)),
            availability_zone: Some(
                row.pinned_zone
                    .clone()
                    .unwrap_or_else(|| STATUS_UNKNOWN.to_owned()),
            ),
            power_state: Some(0),
            server_groups: self.from(71).then(Vec::new),
            ..self.partial(row, true)
        }
    }

    /// Shows everything.
    pub(super) fn full(&self, row: &ServerRow) -> Server {
        let (vm_state, power_state) = states(&row.status);
        let host = zones::host(&row.zone);
        let launched = row.created.strftime("%Y-%m-%dT%H:%M:%S.000000").to_string();
        let groups = self.groups(row);
        let from = |minor| self.from(minor);
        Server {
            id: row.id.clone(),
            name: Some(row.name.clone()),
            status: row.status.clone(),
            tenant_id: Some(row.project.clone()),
            user_id: Some(row.user.clone()),
            metadata: Some(row.metadata.clone()),
            host_id: Some(host_id(&row.project, &host)),
            image: Some(self.image(row)),
            flavor: Some(self.flavor(&row.flavor)),
            created: Some(stamp(row.created)),
            updated: Some(stamp(row.updated)),
            addresses: Some(self.addresses(row)),
            access_ipv4: Some(row.access_ipv4.clone()),
            access_ipv6: Some(row.access_ipv6.clone()),
            links: self.links(&row.id),
            disk_config: Some("MANUAL".to_owned()),
            fault: row
                .fault
                .as_ref()
                .filter(|_| row.status == "ERROR")
                .map(|message| Fault {
                    code: 500,
                    created: stamp(row.updated),
                    message: message.clone(),
                }),
            progress: ["ACTIVE", "BUILD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "MIGRATING"]
                .contains(&&*row.status)
                .then_some(0),
            availability_zone: Some(row.zone.clone()),
            config_drive: Some(String::new()),
            key_name: Some(row.key_name.clone()),
            launched_at: Some(Some(launched)),
            terminated_at: Some(None),
            security_groups: (!groups.is_empty()).then_some(groups),
            task_state: Some(None),
            vm_state: Some(vm_state.to_owned()),
            power_state: Some(power_state),
            volumes_attached: Some(Vec::new()),
            locked: from(9).then_some(row.lock.is_some()),
            description: from(19).then(|| row.description.clone()),
            tags: from(26).then(|| row.tags.clone()),
            trusted_image_certificates: from(63).then_some(None),
            locked_reason: from(73).then(|| row.lock.as_ref().and_then(|lock| lock.reason.clone())),
            hostname: (from(90) || (self.admin && from(3))).then(|| row.hostname.clone()),
            host: self.admin.then(|| Some(host.clone())),
            hypervisor_hostname: self.admin.then_some(Some(host)),
            instance_name: self
                .admin
                .then(|| format!("instance-{}", row.id.get(..8).unwrap_or_default())),
            host_status: (self.admin && from(16)).then(|| "UP".to_owned()),
            pinned_availability_zone: from(96).then(|| row.pinned_zone.clone()),
            server_groups: None,
        }
    }

    /// Shows everything of one that is requested on its own.
    pub(super) fn full_alone(&self, row: &ServerRow) -> Server {
        Server {
            server_groups: self.from(71).then(|| row.group.iter().cloned().collect()),
            ..self.full(row)
        }
    }

    pub(super) fn links(&self, id: &str) -> Vec<Link> {
        let origin = self.origin;
        vec![
            Link {
                rel: "self".into(),
                href: format!("{origin}/compute/v2.1/servers/{id}"),
            },
            Link {
                rel: "bookmark".into(),
                href: format!("{origin}/compute/servers/{id}"),
            },
        ]
    }

    fn image(&self, row: &ServerRow) -> Image {
        row.image.as_ref().map_or(Image::Volume, |id| {
            let href = format!("{}/compute/images/{id}", self.origin);
            Image::Id {
                id: id.clone(),
                links: vec![Link { rel: "bookmark".into(), href }],
            }
        })
    }

    fn flavor(&self, row: &FlavorRow) -> ServerFlavor {
        if self.from(47) {
            return ServerFlavor::Embedded {
                original_name: row.name.clone(),
                vcpus: row.vcpus,
                ram: row.ram,
                disk: row.disk,
                ephemeral: row.ephemeral,
                swap: row.swap,
                extra_specs: Some(row.extra_specs.clone()),
            };
        }
        let href = format!("{}/compute/flavors/{}", self.origin, row.id);
        ServerFlavor::Reference {
            id: row.id.clone(),
            links: vec![Link { rel: "bookmark".into(), href }],
        }
    }

    fn ports<'r>(&'r self, row: &'r ServerRow) -> impl Iterator<Item = &'r Port> {
        row.ports
            .iter()
            .filter_map(|attachment| self.state.neutron.ports.get(&attachment.port))
            .map(|port| &**port)
    }

    /// Returns the addresses by network: each fixed one, followed by its floating IPs.
    pub(super) fn addresses(&self, row: &ServerRow) -> Addresses {
        let mut addresses = Addresses::new();
        for port in self.ports(row) {
            let Some(network) = self.state.neutron.networks.get(&port.network_id) else {
                continue;
            };
            let entries = addresses.entry(network.name.clone()).or_default();
            let address = |addr: IpAddr, kind| Address {
                addr,
                version: if addr.is_ipv4() { 4 } else { 6 },
                kind: Some(kind),
                mac: Some(port.mac_address.clone()),
            };
            for fixed in port.fixed_ips.iter().map(|ip| ip.ip_address) {
                entries.push(address(fixed, AddressType::Fixed));
                let outside = self.floating.get(&(&*port.id, fixed)).into_iter().flatten();
                entries.extend(outside.map(|outside| address(*outside, AddressType::Floating)));
            }
        }
        addresses
    }

    fn groups(&self, row: &ServerRow) -> Vec<GroupName> {
        let ids: BTreeSet<&String> = self
            .ports(row)
            .flat_map(|port| &port.security_groups)
            .collect();
        let groups = ids
            .into_iter()
            .filter_map(|id| self.state.neutron.security_groups.get(id));
        let names: BTreeSet<String> = groups.map(|group| group.name.clone()).collect();
        names.into_iter().map(|name| GroupName { name }).collect()
    }
}

/// Returns a time in the service's format.
pub(super) fn stamp(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns the opaque name of a host, different in each project.
fn host_id(project: &str, host: &str) -> String {
    let digest = Sha224::digest(format!("{project}{host}"));
    digest
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Returns `vm_state` and power state of a status.
fn states(status: &str) -> (&'static str, u8) {
    match status {
        "BUILD" => ("building", 0),
        "SHUTOFF" => ("stopped", 4),
        "PAUSED" => ("paused", 3),
        "SUSPENDED" => ("suspended", 4),
        "RESCUE" => ("rescued", 1),
        "VERIFY_RESIZE" => ("resized", 1),
        "ERROR" => ("error", 0),
        "DELETED" => ("deleted", 0),
        "SOFT_DELETED" => ("soft-delete", 4),
        "SHELVED" => ("shelved", 4),
        "SHELVED_OFFLOADED" => ("shelved_offloaded", 4),
        _ => ("active", 1),
    }
}
