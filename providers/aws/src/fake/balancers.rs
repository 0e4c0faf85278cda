//! Elastic Load Balancing: network load balancers.

use std::collections::BTreeSet;

use ipnet::Ipv6Net;
use tokio::time::Instant;

use super::{
    REGION, attributes,
    error::{ApiResult, invalid, refuse},
    lists::page,
    state::{AccountState, InterfaceOwner, LoadBalancer},
    tags::{MOST_NAMED, check_elb_tags},
};
use crate::api::{
    LoadBalancerArn, Page, SubnetId, VpcId,
    elb::{
        self, IpAddressType, LoadBalancerState, LoadBalancerZone, Scheme, SourceNatPrefix,
        SubnetMapping,
    },
};

/// Free IP addresses that each subnet needs.
const FREE_IPS: u32 = 8;
const UNKNOWN: &str = "LoadBalancerNotFound";
const CONFLICT: &str = "InvalidConfigurationRequest";

impl AccountState {
    pub(super) fn describe_balancers(
        &self,
        c: &elb::DescribeLoadBalancers,
    ) -> ApiResult<Page<elb::LoadBalancer>> {
        if !c.names.is_empty() && !c.arns.is_empty() {
            return invalid("Load balancer names and ARNs cannot be given together");
        }
        if c.names.len().max(c.arns.len()) > MOST_NAMED {
            return invalid(format!(
                "At most {MOST_NAMED} load balancers can be described by name or ARN"
            ));
        }
        c.names
            .iter()
            .try_for_each(|name| check_name("load balancer", name))?;
        let shown = || {
            self.balancers
                .iter()
                .filter(|(_, balancer)| balancer.created.shown())
        };
        let no_name = c
            .names
            .iter()
            .any(|name| !shown().any(|(_, balancer)| balancer.name == *name));
        if no_name
            || c.arns
                .iter()
                .any(|wanted| !shown().any(|(arn, _)| arn == wanted))
        {
            return refuse(UNKNOWN, "One or more load balancers not found");
        }
        let asked = |arn: &LoadBalancerArn, balancer: &LoadBalancer| {
            (c.names.is_empty() && c.arns.is_empty())
                || c.arns.contains(arn)
                || c.names.contains(&balancer.name)
        };
        let found = shown().filter(|(arn, balancer)| asked(arn, balancer));
        let found =
            found.map(|(arn, balancer)| (arn.to_string(), self.show_balancer(arn, balancer)));
        page(
            found.collect(),
            c.token.as_deref(),
            self.options.page_size.min(400),
            "ValidationError",
        )
    }

    pub(super) fn show_balancer(
        &self,
        arn: &LoadBalancerArn,
        balancer: &LoadBalancer,
    ) -> elb::LoadBalancer {
        let (state, reason) = match &balancer.state {
            Some((state, reason)) => (*state, reason.clone()),
            None if balancer.created.at + self.options.provisioning > Instant::now() => {
                (LoadBalancerState::Provisioning, Box::default())
            }
            None => (LoadBalancerState::Active, Box::default()),
        };
        let zones = balancer.mappings.iter().map(|mapping| LoadBalancerZone {
            zone: self
                .subnets
                .get(&mapping.subnet)
                .map(|subnet| subnet.zone.clone())
                .unwrap_or_default(),
            subnet: Some(mapping.subnet.clone()),
            allocations: mapping.allocation.iter().cloned().collect(),
            private_ipv4: mapping
                .private_ipv4
                .iter()
                .map(|ip| ip.to_string().into())
                .collect(),
            ipv6: mapping
                .ipv6
                .iter()
                .map(|ip| ip.to_string().into())
                .collect(),
            source_nat_prefixes: match self.source_nat_prefix(mapping) {
                Some(network) if balancer.ipv6_source_nat => vec![network.to_string().into()],
                _ => Vec::new(),
            },
        });
        elb::LoadBalancer {
            arn: arn.clone(),
            name: balancer.name.clone(),
            dns_name: balancer.dns_name.clone(),
            kind: balancer.kind.clone(),
            scheme: Some(balancer.scheme),
            state: Some(state),
            state_reason: reason,
            vpc: Some(balancer.vpc.clone()),
            ip_address_type: Some(balancer.ip_address_type),
            zones: zones.collect(),
            security_groups: balancer.groups.clone(),
            private_link_rules: (!balancer.groups.is_empty())
                .then_some(balancer.private_link_rules),
            ipv6_source_nat: Some(balancer.ipv6_source_nat),
            created: Some(self.timestamp(balancer.created.at)),
        }
    }

    pub(super) fn create_balancer(
        &mut self,
        c: &elb::CreateLoadBalancer,
    ) -> ApiResult<elb::LoadBalancer> {
        // First, check the name; the same name with the same settings returns the existing load
        // balancer.
        check_name("load balancer", &c.name)?;
        if c.name.starts_with("internal-") {
            return invalid(format!(
                "The load balancer name '{}' cannot begin with 'internal-'",
                c.name
            ));
        }
        if let Some((arn, existing)) = self
            .balancers
            .iter()
            .find(|(_, balancer)| balancer.name == c.name)
        {
            return if same(existing, c) && self.same_tags(&existing.tags, &c.tags) {
                Ok(self.show_balancer(arn, existing))
            } else {
                let message = format!(
                    "A load balancer with the same name '{}' exists, but with different settings",
                    c.name
                );
                refuse("DuplicateLoadBalancerName", message)
            };
        }
        // Then check the settings and the quota.
        check_elb_tags(&c.tags, c.tags.len(), self.options.quotas.tags)?;
        let vpc = self.check_mappings(&c.subnets, c.scheme, c.ip_address_type, &[])?;
        self.check_groups(&c.security_groups, &vpc)?;
        check_source_nat(c.ipv6_source_nat, c.ip_address_type)?;
        self.check_prefixes(&c.subnets, c.ipv6_source_nat.unwrap_or_default())?;
        if self.balancers.len() >= self.options.quotas.load_balancers {
            return refuse("TooManyLoadBalancers", "You have reached the limit of load balancers");
        }
        // Finally, create the load balancer and its network interfaces.
        let arn = LoadBalancerArn::from(self.arn("loadbalancer", &format!("net/{}", c.name)));
        let id = arn.rsplit('/').next().unwrap_or_default();
        let domain = if self.options.classic_host_names {
            format!("{REGION}.elb")
        } else {
            format!("elb.{REGION}")
        };
        let balancer = LoadBalancer {
            name: c.name.clone(),
            kind: "network".into(),
            dns_name: format!("{}-{id}.{domain}.amazonaws.com", c.name).into(),
            scheme: c.scheme,
            ip_address_type: c.ip_address_type,
            vpc,
            mappings: c.subnets.clone(),
            groups: c.security_groups.clone(),
            private_link_rules: true,
            ipv6_source_nat: c.ipv6_source_nat.unwrap_or_default(),
            capacity_units: 0,
            state: None,
            attributes: attributes::of_balancer(),
            tags: c.tags.clone(),
            created: self.creation_time(),
        };
        let shown = self.show_balancer(&arn, &balancer);
        self.balancers.insert(arn.clone(), balancer);
        self.place_interfaces(&arn);
        Ok(shown)
    }

    pub(super) fn delete_balancer(&mut self, c: &elb::DeleteLoadBalancer) -> ApiResult<()> {
        let Some(balancer) = self.balancers.get(&c.arn) else {
            return Ok(());
        };
        if balancer
            .attributes
            .get("deletion_protection.enabled")
            .is_some_and(|value| **value == *"true")
        {
            let message = format!(
                "Load balancer '{}' cannot be deleted because deletion protection is enabled",
                c.arn
            );
            return refuse("OperationNotPermitted", message);
        }
        self.balancers.remove(&c.arn);
        self.listeners
            .retain(|_, listener| listener.load_balancer != c.arn);
        self.release_interfaces(&InterfaceOwner::Balancer(c.arn.clone()));
        Ok(())
    }

    pub(super) fn set_subnets(&mut self, c: &elb::SetSubnets) -> ApiResult<()> {
        let balancer = self.balancer(&c.arn)?;
        let scheme = balancer.scheme;
        let family = c.ip_address_type.unwrap_or(balancer.ip_address_type);
        check_source_nat(c.ipv6_source_nat, family)?;
        // As documented: off, unless the request says otherwise.
        let source_nat = c.ipv6_source_nat.unwrap_or_default();
        let has_udp = self.has_udp_listener(&c.arn);
        if has_udp && family == IpAddressType::Dualstack && !source_nat {
            return refuse(CONFLICT, "UDP listeners of a dualstack load balancer need source NAT");
        }
        let mut mappings = c.subnets.clone();
        for new in &mut mappings {
            let Some(old) = balancer
                .mappings
                .iter()
                .find(|old| old.subnet == new.subnet)
            else {
                continue;
            };
            let swapped = new.allocation.is_some() && new.allocation != old.allocation
                || new.private_ipv4.is_some() && new.private_ipv4 != old.private_ipv4;
            if swapped {
                let message = format!(
                    "The addresses in subnet '{}' of a load balancer cannot be changed",
                    new.subnet
                );
                return refuse(CONFLICT, message);
            }
            new.allocation = old.allocation.clone();
            new.private_ipv4 = old.private_ipv4;
            new.ipv6 = new.ipv6.or(old.ipv6);
            new.source_nat_prefix = new.source_nat_prefix.or(old.source_nat_prefix);
            let moves = self.source_nat_prefix(new) != self.source_nat_prefix(old);
            if has_udp && balancer.ipv6_source_nat && moves {
                let message = format!(
                    "The source NAT prefix in subnet '{}' cannot be changed with UDP listeners",
                    new.subnet
                );
                return refuse(CONFLICT, message);
            }
            if !source_nat {
                new.source_nat_prefix = None;
            }
        }
        self.check_prefixes(&mappings, source_nat)?;
        self.check_mappings(&mappings, scheme, family, &balancer.mappings)?;
        if c.ip_address_type.is_some() {
            self.check_listeners(&c.arn, &mappings, family)?;
        }
        let balancer = self.balancer_mut(&c.arn)?;
        balancer.ip_address_type = family;
        balancer.mappings = mappings;
        balancer.ipv6_source_nat = source_nat;
        self.place_interfaces(&c.arn);
        Ok(())
    }

    pub(super) fn set_ip_address_type(&mut self, c: &elb::SetIpAddressType) -> ApiResult<()> {
        let mappings = self.balancer(&c.arn)?.mappings.clone();
        self.check_listeners(&c.arn, &mappings, c.ip_address_type)?;
        self.balancer_mut(&c.arn)?.ip_address_type = c.ip_address_type;
        Ok(())
    }

    /// Checks that subnets and listeners fit the address families.
    fn check_listeners(
        &self,
        arn: &LoadBalancerArn,
        mappings: &[SubnetMapping],
        family: IpAddressType,
    ) -> ApiResult<()> {
        self.check_families(mappings, family)?;
        let udp = |protocol| matches!(protocol, elb::ElbProtocol::Udp | elb::ElbProtocol::TcpUdp);
        let listeners = || {
            self.listeners
                .values()
                .filter(|listener| listener.load_balancer == *arn)
        };
        let v6 = |arn| {
            self.target_groups
                .get(arn)
                .is_some_and(|group| group.ip_address_type == IpAddressType::Ipv6)
        };
        let bad = match family {
            IpAddressType::Dualstack => {
                listeners().any(|it| udp(it.protocol) && !v6(&it.target_group))
            }
            _ => listeners().any(|it| v6(&it.target_group)),
        };
        if bad {
            return refuse(
                CONFLICT,
                "A listener has a target group that this IP address type does not support",
            );
        }
        Ok(())
    }

    pub(super) fn set_security_groups(&mut self, c: &elb::SetSecurityGroups) -> ApiResult<()> {
        let balancer = self.balancer(&c.arn)?;
        match (balancer.groups.is_empty(), c.groups.is_empty()) {
            (true, false) => {
                let message = "You cannot set security groups on a load balancer that was created without any";
                return refuse(CONFLICT, message);
            }
            (_, true) => {
                return refuse(
                    CONFLICT,
                    "You cannot remove all security groups from a load balancer",
                );
            }
            (false, false) => {}
        }
        let vpc = balancer.vpc.clone();
        self.check_groups(&c.groups, &vpc)?;
        let balancer = self.balancer_mut(&c.arn)?;
        balancer.groups.clone_from(&c.groups);
        balancer.private_link_rules = c.private_link_rules.unwrap_or(balancer.private_link_rules);
        self.place_interfaces(&c.arn);
        Ok(())
    }

    /// Checks the subnets of a load balancer and returns their VPC. The load balancer `has` some
    /// already, if it exists.
    pub(super) fn check_mappings(
        &self,
        mappings: &[SubnetMapping],
        scheme: Scheme,
        family: IpAddressType,
        has: &[SubnetMapping],
    ) -> ApiResult<VpcId> {
        let mut zones = BTreeSet::new();
        let mut vpc = None;
        let mut local = None;
        for mapping in mappings {
            let id = &mapping.subnet;
            let Some(subnet) = self.subnets.get(id) else {
                return refuse("SubnetNotFound", format!("The subnet ID '{id}' is not valid"));
            };
            if vpc.get_or_insert(&subnet.vpc) != &&subnet.vpc {
                return refuse(CONFLICT, "All subnets of a load balancer must be in one VPC");
            }
            if !zones.insert(&subnet.zone) {
                let message = "A load balancer cannot be attached to multiple subnets in the same Availability Zone";
                return refuse(CONFLICT, message);
            }
            let in_zone = self
                .zones
                .iter()
                .any(|it| it.name == subnet.zone && *it.zone_type == *"availability-zone");
            if *local.get_or_insert(in_zone) != in_zone {
                return refuse(
                    "InvalidSubnet",
                    "Subnets of Availability Zones and of local zones cannot be mixed",
                );
            }
            let kept = has.iter().any(|old| old.subnet == *id);
            if !kept && self.free_ips(id) < FREE_IPS {
                let message = format!(
                    "Not enough IP space available in {id}. ELB requires at least {FREE_IPS} free IP addresses in each \
                     subnet."
                );
                return refuse("InvalidSubnet", message);
            }
            self.check_addresses(mapping, scheme, family, kept)?;
        }
        let Some(vpc) = vpc.cloned() else {
            return invalid("At least one subnet must be specified");
        };
        if scheme == Scheme::InternetFacing
            && self
                .vpcs
                .get(&vpc)
                .is_none_or(|vpc| vpc.internet_gateway.is_none())
        {
            return refuse("InvalidSubnet", format!("VPC {vpc} has no internet gateway"));
        }
        self.check_families(mappings, family)?;
        Ok(vpc)
    }

    fn check_addresses(
        &self,
        m: &SubnetMapping,
        scheme: Scheme,
        family: IpAddressType,
        kept: bool,
    ) -> ApiResult<()> {
        // Elastic IP address.
        if let Some(allocation) = &m.allocation {
            if scheme == Scheme::Internal {
                return refuse(
                    CONFLICT,
                    "Elastic IP addresses are for internet-facing load balancers",
                );
            }
            match self.eips.get(allocation) {
                None => {
                    return refuse(
                        "AllocationIdNotFound",
                        format!("The allocation ID '{allocation}' does not exist"),
                    );
                }
                Some(eip) if eip.used_by.is_some() && !kept => {
                    return refuse(
                        "ResourceInUse",
                        format!("The allocation '{allocation}' is already associated"),
                    );
                }
                Some(_) => {}
            }
        }
        // Private IPv4 address.
        let subnet = self.subnets.get(&m.subnet);
        if let Some(ip) = m.private_ipv4 {
            if scheme == Scheme::InternetFacing {
                return refuse(CONFLICT, "Private IPv4 addresses are for internal load balancers");
            }
            if !subnet
                .and_then(|subnet| subnet.cidr)
                .is_some_and(|cidr| cidr.contains(&ip))
            {
                return refuse(
                    CONFLICT,
                    format!("The address {ip} is not in subnet '{}'", m.subnet),
                );
            }
            let text = ip.to_string();
            let taken = self.enis.values().any(|eni| {
                eni.subnet == m.subnet && eni.private_ips.iter().any(|have| **have == *text)
            });
            if taken && !kept {
                return refuse("ResourceInUse", format!("The address {ip} is in use"));
            }
        }
        // IPv6 address.
        if let Some(ip) = m.ipv6 {
            if family != IpAddressType::Dualstack {
                return refuse(CONFLICT, "IPv6 addresses are for dualstack load balancers");
            }
            if !subnet.is_some_and(|subnet| subnet.ipv6.iter().any(|cidr| cidr.contains(&ip))) {
                return refuse(
                    CONFLICT,
                    format!("The address {ip} is not in subnet '{}'", m.subnet),
                );
            }
        }
        Ok(())
    }

    fn check_families(&self, mappings: &[SubnetMapping], family: IpAddressType) -> ApiResult<()> {
        let lacks = |id: &&SubnetId| {
            self.subnets
                .get(*id)
                .is_none_or(|subnet| subnet.ipv6.is_empty())
        };
        match family {
            IpAddressType::Ipv6 => {
                invalid("The IP address type 'ipv6' is not one of load balancers")
            }
            IpAddressType::Dualstack => {
                match mappings.iter().map(|mapping| &mapping.subnet).find(lacks) {
                    Some(id) => refuse(
                        "InvalidSubnet",
                        format!("The subnet '{id}' has no associated IPv6 CIDR block"),
                    ),
                    None => Ok(()),
                }
            }
            IpAddressType::Ipv4 => Ok(()),
        }
    }

    /// Checks the prefixes for source NAT.
    fn check_prefixes(&self, mappings: &[SubnetMapping], source_nat: bool) -> ApiResult<()> {
        for mapping in mappings {
            let Some(prefix) = mapping.source_nat_prefix else {
                continue;
            };
            if !source_nat {
                return refuse(CONFLICT, "A source NAT prefix needs EnablePrefixForIpv6SourceNat");
            }
            let SourceNatPrefix::Network(network) = prefix else {
                continue;
            };
            let subnet = self.subnets.get(&mapping.subnet);
            let is_inside = subnet.is_some_and(|it| it.ipv6.iter().any(|it| it.contains(&network)));
            if network.prefix_len() != 80 || network.trunc() != network || !is_inside {
                let message =
                    format!("The source NAT prefix {network} is not one of '{}'", mapping.subnet);
                return refuse(CONFLICT, message);
            }
        }
        Ok(())
    }

    /// Returns the prefix for source NAT of a load balancer in a subnet: AWS chooses the first one.
    fn source_nat_prefix(&self, mapping: &SubnetMapping) -> Option<Ipv6Net> {
        if let Some(SourceNatPrefix::Network(network)) = mapping.source_nat_prefix {
            return Some(network);
        }
        let first = self.subnets.get(&mapping.subnet)?.ipv6.first()?;
        Ipv6Net::new(first.network(), 80).ok()
    }

    fn has_udp_listener(&self, arn: &LoadBalancerArn) -> bool {
        let mut listeners = self
            .listeners
            .values()
            .filter(|it| it.load_balancer == *arn);
        listeners.any(|it| matches!(it.protocol, elb::ElbProtocol::Udp | elb::ElbProtocol::TcpUdp))
    }

    /// Updates the network interfaces of a load balancer after a change of its subnets or security
    /// groups.
    fn place_interfaces(&mut self, arn: &LoadBalancerArn) {
        let Some(balancer) = self.balancers.get(arn) else {
            return;
        };
        let vpc = balancer.vpc.clone();
        let mappings = balancer.mappings.clone();
        let groups = balancer.groups.clone();
        let holder = InterfaceOwner::Balancer(arn.clone());
        self.place_interfaces_of(&holder, &vpc, &mappings, &groups);
    }

    pub(super) fn balancer(&self, arn: &LoadBalancerArn) -> ApiResult<&LoadBalancer> {
        match self
            .balancers
            .get(arn)
            .filter(|balancer| balancer.created.found())
        {
            Some(balancer) => Ok(balancer),
            None => refuse(UNKNOWN, format!("Load balancer '{arn}' not found")),
        }
    }

    pub(super) fn balancer_mut(&mut self, arn: &LoadBalancerArn) -> ApiResult<&mut LoadBalancer> {
        self.balancer(arn)?;
        self.balancers
            .get_mut(arn)
            .ok_or_else(|| super::error::ApiRejection::new(UNKNOWN, "Load balancer not found"))
    }

    pub(super) fn shown_balancer(&self, arn: &LoadBalancerArn) -> ApiResult<&LoadBalancer> {
        match self
            .balancers
            .get(arn)
            .filter(|balancer| balancer.created.shown())
        {
            Some(balancer) => Ok(balancer),
            None => refuse(UNKNOWN, format!("Load balancer '{arn}' not found")),
        }
    }
}

fn check_source_nat(wanted: Option<bool>, family: IpAddressType) -> ApiResult<()> {
    if wanted == Some(true) && family != IpAddressType::Dualstack {
        return refuse(CONFLICT, "EnablePrefixForIpv6SourceNat needs a dualstack load balancer");
    }
    Ok(())
}

/// Returns true if a load balancer has exactly the requested settings.
fn same(have: &LoadBalancer, c: &elb::CreateLoadBalancer) -> bool {
    let subnets = |mappings: &[SubnetMapping]| -> BTreeSet<String> {
        mappings.iter().map(|it| format!("{it:?}")).collect()
    };
    let groups = |groups: &[crate::api::SecurityGroupId]| -> BTreeSet<String> {
        groups.iter().map(ToString::to_string).collect()
    };
    have.scheme == c.scheme
        && have.ip_address_type == c.ip_address_type
        && subnets(&have.mappings) == subnets(&c.subnets)
        && groups(&have.groups) == groups(&c.security_groups)
        && have.ipv6_source_nat == c.ipv6_source_nat.unwrap_or_default()
}

/// Checks the name of a load balancer or target group.
pub(super) fn check_name(kind: &str, name: &str) -> ApiResult<()> {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if name.is_empty() || name.len() > 32 {
        return invalid(format!("The {kind} name '{name}' must have 1 to 32 characters"));
    }
    if !plain || name.starts_with('-') || name.ends_with('-') {
        let message = format!(
            "The {kind} name '{name}' may have letters, digits and hyphens only, and no hyphen at its begin or end"
        );
        return invalid(message);
    }
    Ok(())
}
