//! Networks and subnets of the VIP, members and the floating IP.

use std::net::IpAddr;

use ccm_core::{k8s::IpFamily, provider::FieldError};

use super::{SpecReader, non_empty};
use crate::lb::{
    annotations as keys,
    model::{CreateSettings, FloatingIpSpec, SecondVip},
    settings::{LoadBalancerSettings, NetworkSettings},
    subnets::{FloatingSubnet, NamePattern},
};

/// Networks, subnets and addresses of a Service's load balancer.
pub(super) struct NetworkSpec {
    pub(super) create_settings: CreateSettings,
    pub(super) floating_ip: FloatingIpSpec,
    pub(super) member_subnet: Option<Box<str>>,
    pub(super) vip_subnet: Option<Box<str>>,
}

/// Reads the networks from the annotations, the class and the configuration.
pub(super) fn read_networks(reader: &mut SpecReader<'_>) -> NetworkSpec {
    let settings = reader.settings;
    let class_name = reader.annotations.text(&keys::CLASS, "");
    let class = match find_class(class_name, settings) {
        Ok(class) => class.cloned().unwrap_or_default(),
        Err(error) => {
            reader.annotations.add_errors([error]);
            NetworkSettings::default()
        }
    };
    // An unknown class was recorded above, and leaves these empty.
    let vip_subnet =
        choose_vip_subnet(reader.annotations.text(&keys::SUBNET, ""), class_name, settings)
            .unwrap_or_default();
    let vip_network =
        choose_vip_network(reader.annotations.text(&keys::NETWORK, ""), class_name, settings)
            .unwrap_or_default();
    let member_subnet = choose_member_subnet(
        reader.annotations.text(&keys::MEMBER_SUBNET, ""),
        class_name,
        settings,
    )
    .unwrap_or_default()
    .or_else(|| non_empty(&settings.networks.subnet));
    let requested = RequestedAddress::read(reader);
    let create_settings = CreateSettings {
        driver: reader.driver.as_str().into(),
        port: non_empty(reader.annotations.text(&keys::PORT, "")),
        subnet: class_unless_internal(reader, &class.subnet, vip_subnet.as_deref()),
        network: class_unless_internal(reader, &class.network, vip_network.as_deref()),
        address: requested.vip,
        flavor: choose_flavor(reader),
        availability_zone: choose_availability_zone(reader),
        second_vip: reader.second_family().map(|family| SecondVip {
            family,
            subnet: non_empty(reader.annotations.text(&keys::ADDITIONAL_SUBNET, "")),
        }),
    };
    let floating_network = reader
        .annotations
        .text(&keys::FLOATING_NETWORK, &settings.networks.floating_network);
    let floating_ip = FloatingIpSpec {
        network: first_non_empty([&*class.floating_network, floating_network]),
        subnet: choose_floating_subnet(reader, &class),
        address: requested.floating_ip,
        keep: reader.annotations.boolean(&keys::KEEP_FLOATING_IP, false),
    };
    NetworkSpec { create_settings, floating_ip, member_subnet, vip_subnet }
}

/// The address that a Service requests: for the VIP if the Service is internal or has IPv6, or else
/// for the floating IP.
struct RequestedAddress {
    vip: Option<IpAddr>,
    floating_ip: Option<IpAddr>,
}

impl RequestedAddress {
    fn read(reader: &mut SpecReader<'_>) -> Self {
        let address = super::read_requested_address(reader);
        if reader.internal || reader.family() == Some(IpFamily::V6) {
            Self { vip: address, floating_ip: None }
        } else {
            Self { vip: None, floating_ip: address }
        }
    }
}

/// Chooses a setting of the VIP. For an external Service the class takes precedence over its
/// annotations.
fn class_unless_internal(
    reader: &SpecReader<'_>,
    class: &str,
    chosen: Option<&str>,
) -> Option<Box<str>> {
    if !reader.internal && !class.is_empty() {
        return Some(class.into());
    }
    chosen.map(Into::into)
}

fn choose_flavor(reader: &SpecReader<'_>) -> Option<Box<str>> {
    if !reader.features.flavors {
        return None;
    }
    non_empty(
        reader
            .annotations
            .text(&keys::FLAVOR, &reader.settings.flavor),
    )
}

fn choose_availability_zone(reader: &SpecReader<'_>) -> Option<Box<str>> {
    if !reader.features.availability_zones {
        return None;
    }
    non_empty(
        reader
            .annotations
            .text(&keys::AVAILABILITY_ZONE, &reader.settings.availability_zone),
    )
}

/// Chooses the subnet of the floating network: from the class, or else the annotations, or else the
/// configuration.
fn choose_floating_subnet(reader: &mut SpecReader<'_>, class: &NetworkSettings) -> FloatingSubnet {
    let annotations = &reader.annotations;
    let annotated = FloatingSubnet::from_settings(
        annotations.text(&keys::FLOATING_SUBNET_ID, ""),
        annotations.text(&keys::FLOATING_SUBNET, ""),
        annotations.text(&keys::FLOATING_SUBNET_TAGS, ""),
    );
    let configured = reader.settings.networks.floating_subnet.clone();
    let subnet = class
        .floating_subnet
        .clone()
        .or(annotated)
        .or(configured)
        .unwrap_or_default();
    if let FloatingSubnet::Matching { name, .. } = &subnet
        && let Err(message) = NamePattern::parse(name)
    {
        reader
            .annotations
            .invalid_value(&keys::FLOATING_SUBNET, message);
    }
    subnet
}

fn first_non_empty<'a>(texts: impl IntoIterator<Item = &'a str>) -> Option<Box<str>> {
    texts
        .into_iter()
        .find(|text| !text.is_empty())
        .map(Into::into)
}

/// Finds the class that the Service names, or returns `None` if it names none.
fn find_class<'a>(
    class: &str,
    settings: &'a LoadBalancerSettings,
) -> Result<Option<&'a NetworkSettings>, FieldError> {
    if class.is_empty() {
        return Ok(None);
    }
    match settings.classes.get(class) {
        Some(networks) => Ok(Some(networks)),
        None => {
            let message = format!("invalid loadbalancer class \"{class}\": it is not configured");
            Err(FieldError::new(keys::CLASS.key(), message))
        }
    }
}

/// Chooses the subnet of members: from the annotation, or else the class, or else the
/// configuration.
///
/// # Errors
/// Returns an error if the class is needed and not configured.
pub fn choose_member_subnet(
    annotation: &str,
    class: &str,
    settings: &LoadBalancerSettings,
) -> Result<Option<Box<str>>, FieldError> {
    choose_setting(annotation, class, settings, |networks| &networks.member_subnet)
}

/// Chooses the subnet of the VIP, with the same precedence as [`choose_member_subnet`].
///
/// # Errors
/// Returns an error if the class is needed and not configured.
pub fn choose_vip_subnet(
    annotation: &str,
    class: &str,
    settings: &LoadBalancerSettings,
) -> Result<Option<Box<str>>, FieldError> {
    choose_setting(annotation, class, settings, |networks| &networks.subnet)
}

/// Chooses the network of the VIP, with the same precedence as [`choose_member_subnet`].
///
/// # Errors
/// Returns an error if the class is needed and not configured.
pub fn choose_vip_network(
    annotation: &str,
    class: &str,
    settings: &LoadBalancerSettings,
) -> Result<Option<Box<str>>, FieldError> {
    choose_setting(annotation, class, settings, |networks| &networks.network)
}

fn choose_setting(
    annotation: &str,
    class: &str,
    settings: &LoadBalancerSettings,
    field: fn(&NetworkSettings) -> &str,
) -> Result<Option<Box<str>>, FieldError> {
    if !annotation.is_empty() {
        return Ok(Some(annotation.into()));
    }
    let class_value = find_class(class, settings)?.map_or("", field);
    Ok(first_non_empty([class_value, field(&settings.networks)]))
}
