//! From the configuration to what each capability needs of it.

use crate::{
    config::{self, ContainerStore, LbNetwork, Settings},
    instances::{InstanceSettings, addresses::AddressRules},
    lb::{
        features::Driver,
        settings::{Checks, Placement, Settings as LbSettings},
        subnets::FloatingSubnet,
    },
};

/// What instances need.
pub(super) fn instances(settings: &Settings) -> InstanceSettings {
    let networking = &settings.networking;
    let names = |names: &[Box<str>]| names.iter().map(ToString::to_string).collect();
    InstanceSettings {
        region: settings.cloud.region.clone(),
        regional_ids: settings.regional_ids,
        addresses: AddressRules {
            no_ipv6: networking.ipv6_disabled,
            public: names(&networking.public_networks),
            internal: names(&networking.internal_networks),
            order: networking.sort_order.clone(),
        },
    }
}

impl From<&config::LoadBalancer> for LbSettings {
    fn from(from: &config::LoadBalancer) -> Self {
        let text = |value: &Option<Box<str>>| value.clone().unwrap_or_default();
        let selector: Vec<String> = from
            .node_selector
            .iter()
            .map(|(key, value)| if value.is_empty() { key.to_string() } else { format!("{key}={value}") })
            .collect();
        Self {
            driver: Driver::parse(&from.provider),
            method: from.method.clone(),
            placement: placement(&from.network),
            monitor: from.create_monitor,
            checks: Checks {
                delay: from.monitor_delay,
                timeout: from.monitor_timeout,
                max_retries: from.monitor_max_retries,
                max_retries_down: from.monitor_max_retries_down,
            },
            manage_security_groups: from.manage_security_groups,
            internal: from.internal,
            node_selector: selector.join(",").into(),
            cascade_delete: from.cascade_delete,
            flavor: text(&from.flavor),
            availability_zone: text(&from.availability_zone),
            ingress_hostname: from.ingress_hostname,
            ingress_hostname_suffix: from.ingress_hostname_suffix.clone(),
            max_shared: usize::try_from(from.max_shared).unwrap_or(usize::MAX),
            tls_container_ref: text(&from.tls_container),
            barbican: from.container_store == ContainerStore::Barbican,
            serial: from.serial_calls,
            classes: from.classes.iter().map(|(name, class)| (name.clone(), placement(class))).collect(),
        }
    }
}

fn placement(from: &LbNetwork) -> Placement {
    let text = |value: &Option<Box<str>>| value.clone().unwrap_or_default();
    let floating_subnet = match (&from.floating_subnet_id, &from.floating_subnet, &from.floating_subnet_tags) {
        (Some(id), ..) => Some(FloatingSubnet::Id(id.clone())),
        (None, None, None) => None,
        (None, name, tags) => Some(FloatingSubnet::Matching { name: text(name), tags: text(tags) }),
    };
    Placement {
        floating_network: text(&from.floating_network),
        floating_subnet,
        network: text(&from.network),
        subnet: text(&from.subnet),
        member_subnet: text(&from.member_subnet),
    }
}
