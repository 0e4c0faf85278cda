//! Chooses the subnets of a load balancer, and its address in each. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    net::{Ipv4Addr, Ipv6Addr},
};

use ccm_core::provider::{CloudError, FieldError};

use crate::{
    api::{
        SubnetId,
        ec2::{RouteTable, Subnet},
        elb::{IpAddressType, Scheme, SubnetMapping},
    },
    config::Settings,
    instances::zones,
    lb::model::{DesiredLoadBalancer, SubnetChoice, SubnetName},
    ownership_tags::Cluster,
};

/// Subnets, route tables and zones at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VpcSnapshot {
    /// Subnets of the VPC.
    pub subnets: Vec<Subnet>,
    /// Route tables of the VPC.
    pub tables: Vec<RouteTable>,
    /// Zones of the region, by name.
    pub zones: zones::ByName,
}

impl VpcSnapshot {
    /// Returns the subnet with an ID.
    pub fn subnet(&self, id: &SubnetId) -> Option<&Subnet> {
        self.subnets.iter().find(|subnet| subnet.id == *id)
    }
}

/// Key of the tag of subnets for internet-facing load balancers.
pub const ROLE_PUBLIC: &str = "kubernetes.io/role/elb";
/// Key of the tag of subnets for internal load balancers.
pub const ROLE_INTERNAL: &str = "kubernetes.io/role/internal-elb";

const ANNOTATION: &str = "service.beta.kubernetes.io/aws-load-balancer-subnets";
const ANNOTATION_EIP: &str = "service.beta.kubernetes.io/aws-load-balancer-eip-allocations";
const ANNOTATION_IPV4: &str = "service.beta.kubernetes.io/aws-load-balancer-private-ipv4-addresses";
const ANNOTATION_IPV6: &str = "service.beta.kubernetes.io/aws-load-balancer-ipv6-addresses";
const ANNOTATION_NAT: &str =
    "service.beta.kubernetes.io/aws-load-balancer-enable-prefix-for-ipv6-source-nat";

/// Minimum number of free addresses that AWS requires in a subnet of a load balancer.
const FREE_ADDRESSES: u32 = 8;

/// Chooses the subnets of a new load balancer, or the named ones, with the desired addresses in
/// each.
///
/// Named subnets keep the order of the annotation, discovered ones are sorted by zone: Elastic IP
/// addresses are paired with them by position.
///
/// # Errors
/// [`InvalidInput`](ccm_core::provider::ErrorKind::InvalidInput) with every validation error. It
/// may be due to an outdated cache: `VpcCache::choose` tries again with a newly read VPC.
pub fn choose(
    view: &VpcSnapshot,
    cluster: &Cluster,
    settings: &Settings,
    desired: &DesiredLoadBalancer,
) -> Result<Vec<SubnetMapping>, CloudError> {
    let subnets = match &desired.subnets {
        SubnetChoice::Discover => discover(view, cluster, settings, desired)?,
        SubnetChoice::Named(names) => named(view, names)?,
    };
    mappings(&subnets, desired).map_err(|mistakes| CloudError::invalid_input(joined(&mistakes)))
}

/// Maps subnets to the desired address in each. Whether the addresses fit the kind of load balancer
/// is checked when they are parsed.
///
/// # Errors
/// Every validation error.
pub fn mappings(
    subnets: &[&Subnet],
    desired: &DesiredLoadBalancer,
) -> Result<Vec<SubnetMapping>, Vec<FieldError>> {
    // First, check the subnets, and pair them with each kind of address.
    let mut mistakes = families(subnets, desired);
    let eips = desired.allocations.len();
    let count = subnets.len();
    if eips > 0 && eips != count {
        // Upstream's wording, as for private addresses.
        let message =
            format!("Must have same number of EIP AllocationIDs ({eips}) and SubnetIDs ({count})");
        mistakes.push(FieldError::new(ANNOTATION_EIP, message));
    }
    let private = desired.private_ipv4.len();
    let ipv4 = if private > 0 && private != count {
        let message = format!(
            "Must have same number of Private IPv4Addresses ({private}) and SubnetIDs ({count})"
        );
        Err(vec![FieldError::new(ANNOTATION_IPV4, message)])
    } else {
        assign_addresses(
            ANNOTATION_IPV4,
            "private IPv4",
            &desired.private_ipv4,
            subnets,
            |subnet, ip: &Ipv4Addr| subnet.cidr.is_some_and(|network| network.contains(ip)),
        )
    };
    let ipv6s = desired.ipv6.len();
    let ipv6 = if ipv6s > 0 && ipv6s != count {
        let message = format!("count of IPv6 addresses ({ipv6s}) and subnets ({count}) must match");
        Err(vec![FieldError::new(ANNOTATION_IPV6, message)])
    } else {
        assign_addresses(
            ANNOTATION_IPV6,
            "IPv6",
            &desired.ipv6,
            subnets,
            |subnet, ip: &Ipv6Addr| subnet.ipv6_cidrs.iter().any(|network| network.contains(ip)),
        )
    };
    // Then collect all errors, or return the mappings.
    let mut checked = |errors: Vec<FieldError>| mistakes.extend(errors);
    let ipv4 = ipv4.map_err(&mut checked);
    let ipv6 = ipv6.map_err(&mut checked);
    let (Ok(ipv4), Ok(ipv6), true) = (ipv4, ipv6, mistakes.is_empty()) else {
        return Err(mistakes);
    };
    let mapping = |(index, subnet): (usize, &&Subnet)| SubnetMapping {
        subnet: subnet.id.clone(),
        allocation: desired.allocations.get(index).cloned(),
        private_ipv4: ipv4.get(index).copied(),
        ipv6: ipv6.get(index).copied(),
    };
    Ok(subnets.iter().enumerate().map(mapping).collect())
}

/// Returns errors for subnets that lack the IPv6 network which the load balancer needs.
fn families(subnets: &[&Subnet], desired: &DesiredLoadBalancer) -> Vec<FieldError> {
    let lacking: Vec<_> = subnets
        .iter()
        .filter(|subnet| subnet.ipv6_cidrs.is_empty())
        .map(|s| &*s.id)
        .collect();
    if lacking.is_empty() || desired.ip_address_type != IpAddressType::Dualstack {
        return Vec::new();
    }
    let lacking = lacking.join(", ");
    vec![if desired.ipv6_source_nat == Some(true) {
        let message = format!(
            "To enable prefix for source NAT, all associated subnets must have an IPv6 CIDR. Subnets without IPv6 \
             CIDR: [{lacking}]."
        );
        FieldError::new(ANNOTATION_NAT, message)
    } else {
        let message =
            format!("subnets without IPv6 CIDR cannot have a dualstack load balancer: [{lacking}]");
        FieldError::new(ANNOTATION, message)
    }]
}

/// Assigns to each subnet the one address inside it; an empty list if there are no addresses.
fn assign_addresses<A: Copy + Display>(
    annotation: &str,
    what: &str,
    addresses: &[A],
    subnets: &[&Subnet],
    inside: impl Fn(&Subnet, &A) -> bool,
) -> Result<Vec<A>, Vec<FieldError>> {
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    let mut mistakes = Vec::new();
    for subnet in subnets {
        let mut of = addresses.iter().filter(|address| inside(subnet, address));
        match (of.next(), of.next()) {
            (Some(address), None) => found.push(*address),
            _ => {
                let message =
                    format!("expect one {what} address configured for subnet: {}", subnet.id);
                mistakes.push(FieldError::new(annotation, message));
            }
        }
    }
    if mistakes.is_empty() {
        Ok(found)
    } else {
        Err(mistakes)
    }
}

/// Finds the subnets that an annotation names, in its order.
fn named<'a>(view: &'a VpcSnapshot, names: &[SubnetName]) -> Result<Vec<&'a Subnet>, CloudError> {
    let mistake = |message: String| CloudError::invalid_input(format!("{ANNOTATION}: {message}"));
    if names.is_empty() {
        return Err(mistake("unable to resolve empty subnet slice".to_owned()));
    }
    let is = |subnet: &Subnet, name: &SubnetName| match name {
        SubnetName::Id(id) => subnet.id == *id,
        SubnetName::Name(name) => subnet.tags.get("Name") == Some(name),
    };
    let mut found: Vec<&Subnet> = Vec::new();
    for name in names {
        let matching: Vec<_> = view
            .subnets
            .iter()
            .filter(|subnet| is(subnet, name))
            .collect();
        found.extend(
            matching
                .into_iter()
                .filter(|new| !found.iter().any(|subnet| subnet.id == new.id))
                .collect::<Vec<_>>(),
        );
    }
    if found.len() != names.len() {
        return Err(mistake(format!(
            "expected to find {}, but found {} subnets",
            names.len(),
            found.len()
        )));
    }
    let mut zones: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for subnet in &found {
        zones.entry(&subnet.zone).or_default().push(&subnet.id);
    }
    let crowded = zones.into_iter().filter(|(_, ids)| ids.len() > 1);
    let crowded: Vec<_> = crowded
        .map(|(zone, ids)| {
            format!("multiple subnets in same Availability Zone {zone}: [{}]", ids.join(", "))
        })
        .collect();
    if crowded.is_empty() {
        Ok(found)
    } else {
        Err(mistake(crowded.join("; ")))
    }
}

/// Discovers subnets by tags and route tables, one per zone, sorted by zone.
fn discover<'a>(
    view: &'a VpcSnapshot,
    cluster: &Cluster,
    settings: &Settings,
    desired: &DesiredLoadBalancer,
) -> Result<Vec<&'a Subnet>, CloudError> {
    // First, collect the subnets of the cluster, and those of no cluster.
    let internal = desired.scheme == Scheme::Internal;
    let dual = desired.ip_address_type == IpAddressType::Dualstack;
    let mut candidates: Vec<&Subnet> = view
        .subnets
        .iter()
        .filter(|subnet| cluster.has(&subnet.tags) || !Cluster::any(&subnet.tags))
        .collect();
    if candidates.is_empty() {
        candidates.extend(settings.subnet.as_ref().and_then(|id| view.subnet(id)));
    }
    // Then choose the best suitable subnet of each zone.
    let role = if internal { ROLE_INTERNAL } else { ROLE_PUBLIC };
    let mut zones: BTreeMap<&str, &Subnet> = BTreeMap::new();
    let mut full = BTreeSet::new();
    for subnet in candidates {
        // Also checked for internal load balancers, as upstream does: without a route table,
        // discovery fails instead of guessing.
        let public = is_public(view, &subnet.id)?;
        if !(internal || public) || !is_ordinary_zone(view, subnet)? {
            continue;
        }
        if subnet.free_ips < FREE_ADDRESSES || (dual && subnet.ipv6_cidrs.is_empty()) {
            full.insert(&*subnet.id);
            continue;
        }
        let rank = |subnet: &'a Subnet| {
            (!subnet.tags.contains_key(role), !cluster.has(&subnet.tags), &subnet.id)
        };
        let best = zones.entry(&subnet.zone).or_insert(subnet);
        if rank(subnet) < rank(best) {
            *best = subnet;
        }
    }
    if !zones.is_empty() {
        return Ok(zones.into_values().collect());
    }
    // Finally, say why none is suitable.
    let mut message = "could not find any suitable subnets for creating the ELB".to_owned();
    if !full.is_empty() {
        let ids = full.into_iter().collect::<Vec<_>>().join(", ");
        let ipv6 = if dual { " and an IPv6 CIDR" } else { "" };
        message = format!(
            "{message}: {FREE_ADDRESSES} free addresses{ipv6} are needed, which these lack: [{ids}]"
        );
    }
    Err(CloudError::invalid_input(message))
}

/// Tells whether a subnet's route table has a route to an internet gateway.
fn is_public(view: &VpcSnapshot, subnet: &SubnetId) -> Result<bool, CloudError> {
    let explicit = view
        .tables
        .iter()
        .find(|table| table.subnets.contains(subnet));
    let main = || view.tables.iter().find(|table| table.main);
    let table: &RouteTable = explicit.or_else(main).ok_or_else(|| {
        CloudError::invalid_input(format!("could not locate routing table for subnet {subnet}"))
    })?;
    Ok(table.routes.iter().any(|route| {
        route
            .gateway
            .as_ref()
            .is_some_and(|gateway| gateway.starts_with("igw"))
    }))
}

/// Tells whether a subnet is in an availability zone, not in a local or Wavelength zone.
fn is_ordinary_zone(view: &VpcSnapshot, subnet: &Subnet) -> Result<bool, CloudError> {
    match view.zones.get(&subnet.zone) {
        Some(zone) => Ok(&*zone.zone_type == "availability-zone"),
        None => Err(CloudError::transient(format!(
            "zone {} of subnet {} is unknown",
            subnet.zone, subnet.id
        ))),
    }
}

fn joined(mistakes: &[FieldError]) -> String {
    mistakes
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
#[path = "subnets_tests.rs"]
mod tests;
