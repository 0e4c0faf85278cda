//! Networks and subnets of the VIP, members and the floating IP.

use ccm_core::{k8s::IpFamily, provider::FieldError};

use super::{SpecReader, some};
use crate::lb::{
    annotations as keys,
    model::{CreateSettings, FloatingIpSpec},
    settings::{LoadBalancerSettings, NetworkSettings},
    subnets::{FloatingSubnet, NamePattern},
};

/// What was read from a Service.
pub(super) struct NetworkSpec {
    pub(super) front: CreateSettings,
    pub(super) floating: FloatingIpSpec,
    pub(super) member_subnet: Option<Box<str>>,
    pub(super) vip_subnet: Option<Box<str>>,
}

/// Reads all of it from the annotations, the class and the configuration.
pub(super) fn read(reader: &mut SpecReader<'_>) -> NetworkSpec {
    let settings = reader.settings;
    // First, find the class that the Service names.
    let named = reader.annotations.text(&keys::CLASS, "");
    let class = match find(named, settings) {
        Ok(class) => class.cloned().unwrap_or_default(),
        Err(mistake) => {
            reader.annotations.add_errors([mistake]);
            NetworkSettings::default()
        }
    };
    let config = &settings.networks;
    // Then read the subnets and networks. An unknown class was recorded above, and leaves them
    // empty.
    let subnet =
        vip_subnet(reader.annotations.text(&keys::SUBNET, ""), named, settings).unwrap_or_default();
    let network = vip_network(reader.annotations.text(&keys::NETWORK, ""), named, settings)
        .unwrap_or_default();
    let member = member_subnet(reader.annotations.text(&keys::MEMBER_SUBNET, ""), named, settings);
    let member_subnet = member.unwrap_or_default().or_else(|| some(&config.subnet));
    let asked = super::requested_address(reader);
    let of_vip = reader.internal || reader.family() == Some(IpFamily::V6);
    // For an external Service the class takes precedence over its annotations.
    let over = |own: &str, given: &Option<Box<str>>| match reader.internal {
        false if !own.is_empty() => some(own),
        _ => given.clone(),
    };
    let create_settings = CreateSettings {
        driver: settings.driver.as_str().into(),
        port: some(reader.annotations.text(&keys::PORT, "")),
        subnet: over(&class.subnet, &subnet),
        network: over(&class.network, &network),
        address: asked.filter(|_| of_vip),
        flavor: some(reader.annotations.text(&keys::FLAVOR, &settings.flavor))
            .filter(|_| reader.features.flavors),
        availability_zone: some(
            reader
                .annotations
                .text(&keys::AVAILABILITY_ZONE, &settings.availability_zone),
        )
        .filter(|_| reader.features.availability_zones),
    };
    // Finally, read the floating IP.
    let given_network = reader
        .annotations
        .text(&keys::FLOATING_NETWORK, &config.floating_network);
    let keep = reader.annotations.boolean(&keys::KEEP_FLOATING_IP, false);
    let floating = FloatingIpSpec {
        network: first([&*class.floating_network, given_network]),
        subnet: floating_subnet(reader, &class),
        address: asked.filter(|_| !of_vip),
        keep,
    };
    NetworkSpec {
        front: create_settings,
        floating,
        member_subnet,
        vip_subnet: subnet,
    }
}

/// Reads the subnet of the floating network: from the class, else the annotations, else the
/// configuration.
fn floating_subnet(reader: &mut SpecReader<'_>, class: &NetworkSettings) -> FloatingSubnet {
    let text = |row| reader.annotations.text(row, "");
    let annotated = FloatingSubnet::of(
        text(&keys::FLOATING_SUBNET_ID),
        text(&keys::FLOATING_SUBNET),
        text(&keys::FLOATING_SUBNET_TAGS),
    );
    let configured = || reader.settings.networks.floating_subnet.clone();
    let found = class
        .floating_subnet
        .clone()
        .or_else(|| annotated.clone())
        .or_else(configured)
        .unwrap_or_default();
    if let FloatingSubnet::Matching { name, .. } = &found
        && let Err(message) = NamePattern::parse(name)
    {
        reader
            .annotations
            .invalid_value(&keys::FLOATING_SUBNET, message);
    }
    found
}

fn first<'a>(texts: impl IntoIterator<Item = &'a str>) -> Option<Box<str>> {
    texts
        .into_iter()
        .find(|text| !text.is_empty())
        .map(Into::into)
}

/// Finds a class; `None` when the Service names none.
fn find<'a>(
    class: &str,
    settings: &'a LoadBalancerSettings,
) -> Result<Option<&'a NetworkSettings>, FieldError> {
    match settings.classes.get(class) {
        _ if class.is_empty() => Ok(None),
        Some(placement) => Ok(Some(placement)),
        None => {
            let message = format!("invalid loadbalancer class \"{class}\": it is not configured");
            Err(FieldError::new(keys::CLASS.key(), message))
        }
    }
}

/// Chooses the subnet of members: annotation, else class, else configuration.
///
/// # Errors
/// The class is needed and not configured.
pub fn member_subnet(
    annotation: &str,
    class: &str,
    settings: &LoadBalancerSettings,
) -> Result<Option<Box<str>>, FieldError> {
    choose(annotation, class, settings, |placement| &placement.member_subnet)
}

/// Chooses the subnet of the VIP in the same way.
///
/// # Errors
/// The class is needed and not configured.
pub fn vip_subnet(
    annotation: &str,
    class: &str,
    settings: &LoadBalancerSettings,
) -> Result<Option<Box<str>>, FieldError> {
    choose(annotation, class, settings, |placement| &placement.subnet)
}

/// Chooses the network of the VIP in the same way.
///
/// # Errors
/// The class is needed and not configured.
pub fn vip_network(
    annotation: &str,
    class: &str,
    settings: &LoadBalancerSettings,
) -> Result<Option<Box<str>>, FieldError> {
    choose(annotation, class, settings, |placement| &placement.network)
}

fn choose(
    annotation: &str,
    class: &str,
    settings: &LoadBalancerSettings,
    of: fn(&NetworkSettings) -> &str,
) -> Result<Option<Box<str>>, FieldError> {
    if !annotation.is_empty() {
        return Ok(some(annotation));
    }
    let class = find(class, settings)?.map_or("", of);
    Ok(first([class, of(&settings.networks)]))
}
