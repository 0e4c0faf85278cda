//! Chooses the subnets of a load balancer, and its address in each.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, Ipv6Addr},
};

use ccm_core::provider::{CloudError, FieldError};
use ipnet::Ipv6Net;

use crate::{
    api::{
        AllocationId, SubnetId,
        ec2::Subnet,
        elb::{
            IpAddressType, LoadBalancer, LoadBalancerZone, Scheme, SourceNatPrefix, SubnetMapping,
        },
    },
    config::Settings,
    lb::{
        model::{DesiredLoadBalancer, SubnetChoice, SubnetName},
        observe::vpc::VpcSnapshot,
    },
    ownership_tags::Cluster,
};

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
const ANNOTATION_PREFIXES: &str =
    "service.beta.kubernetes.io/aws-load-balancer-source-nat-ipv6-prefixes";

/// Minimum number of free addresses that AWS requires in a subnet of a load balancer.
pub const FREE_ADDRESSES: u32 = 8;

/// Chooses the subnets of a new load balancer, or the named ones, with the desired addresses in
/// each.
///
/// Named subnets keep the order of the annotation, and discovered ones are sorted by zone. Elastic
/// IP addresses are assigned to them by position.
///
/// # Errors
/// [`InvalidInput`](ccm_core::provider::ErrorKind::InvalidInput) with every validation error. It
/// may be due to an outdated cache, so that `VpcCache::choose` tries again with a newly read VPC.
pub fn choose(
    vpc: &VpcSnapshot,
    cluster: &Cluster,
    settings: &Settings,
    desired: &DesiredLoadBalancer,
) -> Result<Vec<SubnetMapping>, CloudError> {
    let subnets = match &desired.subnets {
        SubnetChoice::Discover => {
            let needs = SubnetNeeds {
                is_internal: desired.scheme == Scheme::Internal,
                is_dualstack: desired.ip_address_type == IpAddressType::Dualstack,
                free_addresses: FREE_ADDRESSES,
            };
            discover_subnets(vpc, cluster, settings, needs)?
        }
        SubnetChoice::Named(names) => find_named_subnets(vpc, names)?,
    };
    mappings(&subnets, desired).map_err(CloudError::from)
}

/// Chooses the subnets of a classic load balancer, as upstream does at each sync. Free addresses do not
/// count, because an existing load balancer would otherwise lose a subnet in which it works.
///
/// # Errors
/// As [`choose`].
pub(in crate::lb) fn choose_for_classic(
    vpc: &VpcSnapshot,
    cluster: &Cluster,
    settings: &Settings,
    scheme: Scheme,
    choice: &SubnetChoice,
) -> Result<Vec<SubnetId>, CloudError> {
    let subnets = match choice {
        SubnetChoice::Discover => {
            let is_internal = scheme == Scheme::Internal;
            let needs = SubnetNeeds { is_internal, is_dualstack: false, free_addresses: 0 };
            discover_subnets(vpc, cluster, settings, needs)?
        }
        SubnetChoice::Named(names) => find_named_subnets(vpc, names)?,
    };
    Ok(subnets.iter().map(|subnet| subnet.id.clone()).collect())
}

/// What discovered subnets must have.
#[derive(Clone, Copy)]
struct SubnetNeeds {
    /// True for an internal load balancer, which does not need a route to the internet.
    is_internal: bool,
    /// True if an IPv6 network is needed.
    is_dualstack: bool,
    /// Minimum number of free addresses.
    free_addresses: u32,
}

/// Assigns the desired addresses to subnets. Parsing has already checked that the load balancer may
/// have such addresses.
///
/// # Errors
/// Every validation error.
pub fn mappings(
    subnets: &[&Subnet],
    desired: &DesiredLoadBalancer,
) -> Result<Vec<SubnetMapping>, Vec<FieldError>> {
    let mut errors = missing_ipv6_errors(subnets, desired);
    let allocation_count = desired.allocations.len();
    let subnet_count = subnets.len();
    if allocation_count > 0 && allocation_count != subnet_count {
        // Upstream's wording, as for private addresses.
        let message = format!(
            "Must have same number of EIP AllocationIDs ({allocation_count}) and SubnetIDs ({subnet_count})"
        );
        errors.push(FieldError::new(ANNOTATION_EIP, message));
    }
    let private_ipv4 = private_ipv4_addresses(subnets, desired, &mut errors);
    let ipv6 = ipv6_addresses(subnets, desired, &mut errors);
    errors.extend(source_nat_prefix_errors(subnets, desired));
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut mappings = Vec::new();
    for (index, subnet) in subnets.iter().enumerate() {
        mappings.push(SubnetMapping {
            subnet: subnet.id.clone(),
            allocation: desired.allocations.get(index).cloned(),
            private_ipv4: private_ipv4.get(index).copied(),
            ipv6: ipv6.get(index).copied(),
            source_nat_prefix: desired.source_nat_prefixes.get(index).copied(),
        });
    }
    Ok(mappings)
}

/// Returns the mappings of an existing load balancer, in which each subnet keeps its Elastic IP
/// address if that is any of the desired ones. The other addresses stay in their positions as far
/// as possible.
///
/// Upstream assigns addresses in the order in which EC2 lists the named subnets, and AWS cannot
/// exchange them. The desired addresses are therefore a set once the load balancer exists.
pub(super) fn keep_allocations(
    load_balancer: &LoadBalancer,
    mappings: &[SubnetMapping],
) -> Vec<SubnetMapping> {
    let mut unassigned: Vec<AllocationId> = mappings
        .iter()
        .filter_map(|mapping| mapping.allocation.clone())
        .collect();
    let mut take = |wanted: &[AllocationId]| {
        let position = unassigned.iter().position(|id| wanted.contains(id))?;
        Some(unassigned.remove(position))
    };
    let mut kept: Vec<Option<AllocationId>> = Vec::new();
    for mapping in mappings {
        let zone = LoadBalancerZone::find(&load_balancer.zones, &mapping.subnet);
        kept.push(zone.and_then(|zone| take(&zone.allocations)));
    }
    for (kept, mapping) in kept.iter_mut().zip(mappings) {
        if kept.is_none() {
            *kept = take(mapping.allocation.as_slice());
        }
    }
    let mut rest = unassigned.into_iter();
    kept.into_iter()
        .zip(mappings)
        .map(|(kept, mapping)| SubnetMapping {
            allocation: kept.or_else(|| rest.next()),
            ..mapping.clone()
        })
        .collect()
}

/// Returns the mappings of an existing load balancer, in which each subnet keeps its prefix for source
/// NAT unless the Service requests a certain one.
pub(super) fn keep_source_nat_prefixes(
    load_balancer: &LoadBalancer,
    mut mappings: Vec<SubnetMapping>,
) -> Vec<SubnetMapping> {
    for mapping in &mut mappings {
        if matches!(mapping.source_nat_prefix, Some(SourceNatPrefix::Network(_))) {
            continue;
        }
        let zone = LoadBalancerZone::find(&load_balancer.zones, &mapping.subnet);
        if let Some(network) = zone.and_then(source_nat_network) {
            mapping.source_nat_prefix = Some(SourceNatPrefix::Network(network));
        }
    }
    mappings
}

/// Returns the subnets in which a load balancer has another prefix for source NAT than the desired one, or
/// none. What AWS chose is as good as any other.
pub(super) fn differing_prefixes<'a>(
    load_balancer: &'a LoadBalancer,
    mappings: &'a [SubnetMapping],
) -> impl Iterator<Item = &'a LoadBalancerZone> {
    load_balancer.zones.iter().filter(|zone| {
        let mut mappings = mappings.iter();
        let mapping = mappings.find(|mapping| zone.subnet.as_ref() == Some(&mapping.subnet));
        match mapping.and_then(|mapping| mapping.source_nat_prefix) {
            Some(SourceNatPrefix::Network(network)) => source_nat_network(zone) != Some(network),
            Some(SourceNatPrefix::AutoAssigned) | None => false,
        }
    })
}

/// Returns the prefix for source NAT that a load balancer has in a subnet.
pub(super) fn source_nat_network(zone: &LoadBalancerZone) -> Option<Ipv6Net> {
    zone.source_nat_prefixes.first()?.parse().ok()
}

/// Returns the private IPv4 address of each subnet; an empty list if none is requested, or together
/// with an error.
fn private_ipv4_addresses(
    subnets: &[&Subnet],
    desired: &DesiredLoadBalancer,
    errors: &mut Vec<FieldError>,
) -> Vec<Ipv4Addr> {
    let (address_count, subnet_count) = (desired.private_ipv4.len(), subnets.len());
    if address_count > 0 && address_count != subnet_count {
        let message = format!(
            "Must have same number of Private IPv4Addresses ({address_count}) and SubnetIDs ({subnet_count})"
        );
        errors.push(FieldError::new(ANNOTATION_IPV4, message));
        return Vec::new();
    }
    let assigned =
        assign_addresses("private IPv4", &desired.private_ipv4, subnets, |subnet, ip| {
            subnet.cidr.is_some_and(|network| network.contains(ip))
        });
    assigned.unwrap_or_else(|messages| {
        errors.extend(field_errors(ANNOTATION_IPV4, messages));
        Vec::new()
    })
}

/// Returns the IPv6 address of each subnet; an empty list if none is requested, or together with an
/// error.
fn ipv6_addresses(
    subnets: &[&Subnet],
    desired: &DesiredLoadBalancer,
    errors: &mut Vec<FieldError>,
) -> Vec<Ipv6Addr> {
    let (address_count, subnet_count) = (desired.ipv6.len(), subnets.len());
    if address_count > 0 && address_count != subnet_count {
        let message = format!(
            "count of IPv6 addresses ({address_count}) and subnets ({subnet_count}) must match"
        );
        errors.push(FieldError::new(ANNOTATION_IPV6, message));
        return Vec::new();
    }
    let assigned = assign_addresses("IPv6", &desired.ipv6, subnets, |subnet, ip| {
        subnet.ipv6_cidrs.iter().any(|network| network.contains(ip))
    });
    assigned.unwrap_or_else(|messages| {
        errors.extend(field_errors(ANNOTATION_IPV6, messages));
        Vec::new()
    })
}

/// Returns errors for prefixes for source NAT that are outside of their subnets.
fn source_nat_prefix_errors(subnets: &[&Subnet], desired: &DesiredLoadBalancer) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (subnet, prefix) in subnets.iter().zip(&desired.source_nat_prefixes) {
        let SourceNatPrefix::Network(network) = prefix else {
            continue;
        };
        let networks = &subnet.ipv6_cidrs;
        if !networks.iter().any(|outer| outer.contains(network)) {
            let networks: Vec<_> = networks.iter().map(Ipv6Net::to_string).collect();
            let message = format!(
                "Invalid value in source-nat-ipv6-prefixes: {network}. Value must be within subnet CIDR range: [{}].",
                networks.join(", ")
            );
            errors.push(FieldError::new(ANNOTATION_PREFIXES, message));
        }
    }
    errors
}

fn field_errors(annotation: &str, messages: Vec<String>) -> impl Iterator<Item = FieldError> {
    messages
        .into_iter()
        .map(move |message| FieldError::new(annotation, message))
}

/// Returns errors for subnets that lack the IPv6 network which the load balancer needs.
fn missing_ipv6_errors(subnets: &[&Subnet], desired: &DesiredLoadBalancer) -> Vec<FieldError> {
    let without_ipv6: Vec<_> = subnets
        .iter()
        .filter(|subnet| subnet.ipv6_cidrs.is_empty())
        .map(|subnet| &*subnet.id)
        .collect();
    if without_ipv6.is_empty() || desired.ip_address_type != IpAddressType::Dualstack {
        return Vec::new();
    }
    let without_ipv6 = without_ipv6.join(", ");
    let error = if desired.ipv6_source_nat == Some(true) {
        let message = format!(
            "To enable prefix for source NAT, all associated subnets must have an IPv6 CIDR. Subnets without IPv6 \
             CIDR: [{without_ipv6}]."
        );
        FieldError::new(ANNOTATION_NAT, message)
    } else {
        let message = format!(
            "subnets without IPv6 CIDR cannot have a dualstack load balancer: [{without_ipv6}]"
        );
        FieldError::new(ANNOTATION, message)
    };
    vec![error]
}

/// Returns the address inside each subnet; an empty list if there are no addresses.
fn assign_addresses<A: Copy>(
    kind: &str,
    addresses: &[A],
    subnets: &[&Subnet],
    is_inside: impl Fn(&Subnet, &A) -> bool,
) -> Result<Vec<A>, Vec<String>> {
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let mut assigned = Vec::new();
    let mut errors = Vec::new();
    for subnet in subnets {
        let inside: Vec<_> = addresses
            .iter()
            .filter(|address| is_inside(subnet, address))
            .collect();
        if let [address] = *inside {
            assigned.push(*address);
        } else {
            errors.push(format!("expect one {kind} address configured for subnet: {}", subnet.id));
        }
    }
    if errors.is_empty() {
        Ok(assigned)
    } else {
        Err(errors)
    }
}

/// Finds the subnets that an annotation names, in its order.
fn find_named_subnets<'a>(
    vpc: &'a VpcSnapshot,
    names: &[SubnetName],
) -> Result<Vec<&'a Subnet>, CloudError> {
    if names.is_empty() {
        return Err(annotation_error("unable to resolve empty subnet slice"));
    }
    let mut found: Vec<&Subnet> = Vec::new();
    for name in names {
        for subnet in &vpc.subnets {
            if has_name(subnet, name) && !found.iter().any(|other| other.id == subnet.id) {
                found.push(subnet);
            }
        }
    }
    if found.len() != names.len() {
        return Err(annotation_error(&format!(
            "expected to find {}, but found {} subnets",
            names.len(),
            found.len()
        )));
    }
    let mut ids_by_zone: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for subnet in &found {
        ids_by_zone
            .entry(&subnet.zone)
            .or_default()
            .push(&subnet.id);
    }
    let mut errors = Vec::new();
    for (zone, ids) in ids_by_zone {
        if ids.len() > 1 {
            errors.push(format!(
                "multiple subnets in same Availability Zone {zone}: [{}]",
                ids.join(", ")
            ));
        }
    }
    if errors.is_empty() {
        Ok(found)
    } else {
        Err(annotation_error(&errors.join("; ")))
    }
}

fn has_name(subnet: &Subnet, name: &SubnetName) -> bool {
    match name {
        SubnetName::Id(id) => subnet.id == *id,
        SubnetName::Name(name) => subnet.tags.get("Name") == Some(name),
    }
}

fn annotation_error(message: &str) -> CloudError {
    CloudError::invalid_input(format!("{ANNOTATION}: {message}"))
}

/// Discovers subnets by tags and route tables, one per zone, sorted by zone.
fn discover_subnets<'a>(
    vpc: &'a VpcSnapshot,
    cluster: &Cluster,
    settings: &Settings,
    needs: SubnetNeeds,
) -> Result<Vec<&'a Subnet>, CloudError> {
    // Collect the subnets of the cluster, and those of no cluster.
    let SubnetNeeds { is_internal, is_dualstack, free_addresses } = needs;
    let mut candidates: Vec<&Subnet> = vpc
        .subnets
        .iter()
        .filter(|subnet| cluster.has(&subnet.tags) || !Cluster::any(&subnet.tags))
        .collect();
    if candidates.is_empty() {
        candidates.extend(settings.subnet.as_ref().and_then(|id| vpc.subnet(id)));
    }
    // Choose the best suitable subnet of each zone.
    let role = if is_internal {
        ROLE_INTERNAL
    } else {
        ROLE_PUBLIC
    };
    let mut best_by_zone: BTreeMap<&str, &Subnet> = BTreeMap::new();
    let mut unsuitable = BTreeSet::new();
    for subnet in candidates {
        // Like upstream, check the route table for internal load balancers too. Without a route
        // table, discovery fails.
        let is_public = is_public(vpc, &subnet.id)?;
        if !(is_internal || is_public) || !is_ordinary_zone(vpc, subnet)? {
            continue;
        }
        if subnet.free_ips < free_addresses || (is_dualstack && subnet.ipv6_cidrs.is_empty()) {
            unsuitable.insert(&*subnet.id);
            continue;
        }
        let best = best_by_zone.entry(&subnet.zone).or_insert(subnet);
        if preference(subnet, role, cluster) < preference(best, role, cluster) {
            *best = subnet;
        }
    }
    if !best_by_zone.is_empty() {
        return Ok(best_by_zone.into_values().collect());
    }
    // Explain why no subnet is suitable.
    let mut message = "could not find any suitable subnets for creating the ELB".to_owned();
    if !unsuitable.is_empty() {
        let ids = unsuitable.into_iter().collect::<Vec<_>>().join(", ");
        let ipv6 = if is_dualstack {
            " and an IPv6 CIDR"
        } else {
            ""
        };
        message = format!(
            "{message}: {FREE_ADDRESSES} free addresses{ipv6} are needed, which these lack: [{ids}]"
        );
    }
    Err(CloudError::invalid_input(message))
}

/// Returns the sort key of a zone's subnets, the best subnet first. Prefers the role's tag, then
/// the cluster's tag, then the smallest ID.
fn preference<'a>(subnet: &'a Subnet, role: &str, cluster: &Cluster) -> (bool, bool, &'a SubnetId) {
    (!subnet.tags.contains_key(role), !cluster.has(&subnet.tags), &subnet.id)
}

/// Returns true if a subnet's route table has a route to an internet gateway.
fn is_public(vpc: &VpcSnapshot, subnet: &SubnetId) -> Result<bool, CloudError> {
    let associated = vpc
        .tables
        .iter()
        .find(|table| table.subnets.contains(subnet));
    let Some(table) = associated.or_else(|| vpc.tables.iter().find(|table| table.main)) else {
        return Err(CloudError::invalid_input(format!(
            "could not locate routing table for subnet {subnet}"
        )));
    };
    let mut gateways = table
        .routes
        .iter()
        .filter_map(|route| route.gateway.as_ref());
    Ok(gateways.any(|gateway| gateway.starts_with("igw")))
}

/// Returns true if a subnet is in an availability zone, not in a local or Wavelength zone.
fn is_ordinary_zone(vpc: &VpcSnapshot, subnet: &Subnet) -> Result<bool, CloudError> {
    match vpc.zones.get(&subnet.zone) {
        Some(zone) => Ok(&*zone.zone_type == "availability-zone"),
        None => Err(CloudError::transient(format!(
            "zone {} of subnet {} is unknown",
            subnet.zone, subnet.id
        ))),
    }
}

#[cfg(test)]
#[path = "subnets_tests.rs"]
mod tests;
