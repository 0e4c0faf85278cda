//! Parses the name, scheme, subnets and addresses of a load balancer.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{DefaultsSource, SpecReader};
use crate::{
    api::{
        AllocationId,
        elb::{IpAddressType, Scheme, SourceNatPrefix},
    },
    lb::{
        model::{SubnetChoice, SubnetName},
        names,
        spec::annotations as a,
    },
};

/// The name, scheme, subnets and addresses that a Service requests.
pub(in crate::lb) struct Addressing {
    pub(super) custom_name: Option<Box<str>>,
    pub(super) scheme: Scheme,
    pub(in crate::lb) ip_address_type: IpAddressType,
    pub(super) subnets: SubnetChoice,
    pub(super) allocations: Vec<AllocationId>,
    pub(super) private_ipv4: Vec<Ipv4Addr>,
    pub(super) ipv6: Vec<Ipv6Addr>,
    pub(in crate::lb) ipv6_source_nat: Option<bool>,
    pub(super) source_nat_prefixes: Vec<SourceNatPrefix>,
}

impl Addressing {
    /// Returns the name of a new load balancer.
    pub(super) fn name(&self, reader: &SpecReader<'_>) -> Box<str> {
        if let Some(name) = &self.custom_name {
            return name.clone();
        }
        match reader.defaults_source {
            DefaultsSource::CloudProviderAws => names::load_balancer(&reader.owner.uid),
            DefaultsSource::LoadBalancerController => {
                names::lbc_load_balancer(reader.cluster, &reader.owner, self.scheme)
            }
        }
    }
}

pub(super) fn read(reader: &mut SpecReader<'_>) -> Addressing {
    let ip_address_type = reader
        .annotations
        .get(&a::IP_ADDRESS_TYPE)
        .unwrap_or(IpAddressType::Ipv4);
    let scheme = scheme(reader);
    let subnets = subnets(reader);
    let ipv6_source_nat = source_nat(reader, ip_address_type);
    Addressing {
        custom_name: custom_name(reader),
        scheme,
        ip_address_type,
        allocations: allocations(reader, scheme, &subnets),
        private_ipv4: private_ipv4(reader, scheme, &subnets),
        ipv6: ipv6(reader, ip_address_type, &subnets),
        source_nat_prefixes: source_nat_prefixes(
            reader,
            ip_address_type,
            ipv6_source_nat,
            &subnets,
        ),
        ipv6_source_nat,
        subnets,
    }
}

fn custom_name(reader: &mut SpecReader<'_>) -> Option<Box<str>> {
    let name = reader.annotations.get(&a::NAME)?;
    if let Some(error) = names::name_error(&name) {
        reader.annotations.invalid_value(&a::NAME.definition, error);
    }
    Some(name)
}

fn scheme(reader: &mut SpecReader<'_>) -> Scheme {
    let internal = reader
        .annotations
        .get(&a::INTERNAL)
        .unwrap_or(reader.defaults_source == DefaultsSource::LoadBalancerController);
    let fallback = if internal {
        Scheme::Internal
    } else {
        Scheme::InternetFacing
    };
    reader.annotations.get(&a::SCHEME).unwrap_or(fallback)
}

pub(super) fn subnets(reader: &mut SpecReader<'_>) -> SubnetChoice {
    let Some(named) = reader.annotations.get(&a::SUBNETS) else {
        return SubnetChoice::Discover;
    };
    if named.is_empty() {
        reader.invalid_at_creation(&a::SUBNETS.definition, "unable to resolve empty subnet slice");
    }
    SubnetChoice::Named(named.into_iter().map(subnet_name).collect())
}

fn subnet_name(text: Box<str>) -> SubnetName {
    if text.starts_with("subnet-") {
        SubnetName::Id((&*text).into())
    } else {
        SubnetName::Name(text)
    }
}

/// Returns both counts if there are not as many addresses as named subnets. Discovered subnets are
/// counted later.
fn address_count_mismatch<T>(found: &[T], subnets: &SubnetChoice) -> Option<(usize, usize)> {
    match subnets {
        SubnetChoice::Named(named) if !found.is_empty() && found.len() != named.len() => {
            Some((found.len(), named.len()))
        }
        _ => None,
    }
}

fn allocations(
    reader: &mut SpecReader<'_>,
    scheme: Scheme,
    subnets: &SubnetChoice,
) -> Vec<AllocationId> {
    let key = &a::ALLOCATIONS;
    let found = reader.annotations.get(&a::ALLOCATIONS).unwrap_or_default();
    if !found.is_empty() && scheme == Scheme::Internal {
        let message = "EIP allocations can only be set for internet facing load balancers";
        reader.invalid_at_creation(&key.definition, message);
    }
    if let Some((n, m)) = address_count_mismatch(&found, subnets) {
        let message = format!("count of EIP allocations ({n}) and subnets ({m}) must match");
        reader.invalid_at_creation(&key.definition, message);
    }
    found
}

fn private_ipv4(
    reader: &mut SpecReader<'_>,
    scheme: Scheme,
    subnets: &SubnetChoice,
) -> Vec<Ipv4Addr> {
    let key = &a::PRIVATE_IPV4;
    let mut found = match reader.annotations.parse(key) {
        Some(Ok(found)) => found,
        Some(Err(message)) => {
            reader.invalid_at_creation(&key.definition, message);
            Vec::new()
        }
        None => Vec::new(),
    };
    if !found.is_empty() && scheme == Scheme::InternetFacing {
        let message = "private IPv4 addresses can only be set for internal load balancers";
        reader.invalid_at_creation(&key.definition, message);
    }
    if let Some((n, m)) = address_count_mismatch(&found, subnets) {
        let message = format!("count of private IPv4 addresses ({n}) and subnets ({m}) must match");
        reader.invalid_at_creation(&key.definition, message);
    }
    found.sort_unstable();
    found
}

fn ipv6(
    reader: &mut SpecReader<'_>,
    ip_address_type: IpAddressType,
    subnets: &SubnetChoice,
) -> Vec<Ipv6Addr> {
    let key = &a::IPV6;
    let mut found = reader.annotations.get(&a::IPV6).unwrap_or_default();
    if !found.is_empty() && ip_address_type != IpAddressType::Dualstack {
        let message = "IPv6 addresses can only be set for dualstack load balancers";
        reader.annotations.invalid_value(&key.definition, message);
    }
    if let Some((n, m)) = address_count_mismatch(&found, subnets) {
        let message = format!("count of IPv6 addresses ({n}) and subnets ({m}) must match");
        reader.annotations.invalid_value(&key.definition, message);
    }
    found.sort_unstable();
    found
}

fn source_nat(reader: &mut SpecReader<'_>, ip_address_type: IpAddressType) -> Option<bool> {
    let found = reader.annotations.get(&a::SOURCE_NAT);
    if found.is_some() && ip_address_type != IpAddressType::Dualstack {
        let message = "enable-prefix-for-ipv6-source-nat annotation is only applicable to Network Load Balancers using \
                       Dualstack IP address type.";
        reader
            .annotations
            .invalid_value(&a::SOURCE_NAT.definition, message);
    }
    found
}

fn source_nat_prefixes(
    reader: &mut SpecReader<'_>,
    ip_address_type: IpAddressType,
    ipv6_source_nat: Option<bool>,
    subnets: &SubnetChoice,
) -> Vec<SourceNatPrefix> {
    let definition = &a::SOURCE_NAT_PREFIXES.definition;
    let found = reader
        .annotations
        .get(&a::SOURCE_NAT_PREFIXES)
        .unwrap_or_default();
    if found.is_empty() {
        return found;
    }
    if ip_address_type != IpAddressType::Dualstack {
        let message = "source-nat-ipv6-prefixes annotation can only be set for Network Load Balancers using Dualstack IP \
                       address type.";
        reader.annotations.invalid_value(definition, message);
    }
    if ipv6_source_nat != Some(true) {
        let message = "source-nat-ipv6-prefixes annotation is only applicable if enable-prefix-for-ipv6-source-nat annotation \
                       is set to on.";
        reader.annotations.invalid_value(definition, message);
    }
    // Discovered subnets have no order that the owner of the Service knows.
    if *subnets == SubnetChoice::Discover {
        let message = "source-nat-ipv6-prefixes annotation needs the subnets annotation, whose order it follows";
        reader.annotations.invalid_value(definition, message);
    }
    if let Some((n, m)) = address_count_mismatch(&found, subnets) {
        let message = format!(
            "Number of values in source-nat-ipv6-prefixes ({n}) must match the number of subnets ({m})."
        );
        reader.annotations.invalid_value(definition, message);
    }
    found
}
