//! Elastic Load Balancing: classic load balancers.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    REGION,
    classic_checks::{
        check_attributes, check_health_check, check_listener, check_policy, check_policy_kinds,
        is_tls,
    },
    error::{ApiResult, invalid, refuse},
    lists::page,
    state::{AccountState, Classic, ClassicPolicy, InterfaceOwner},
    tags::{MOST_NAMED, check_elb_tags},
};
use crate::api::{
    InstanceId, Page, SecurityGroupId, SubnetId, Tags,
    classic::{self, ClassicAttributes, ClassicHealthCheck, ClassicListener, ClassicLoadBalancer},
    elb::{IpAddressType, Scheme, SubnetMapping},
};

const UNKNOWN: &str = "LoadBalancerNotFound";
const CONFLICT: &str = "InvalidConfigurationRequest";
/// Policy of a new TLS listener.
pub(super) const DEFAULT_TLS_POLICY: &str = "ELBSecurityPolicy-2016-08";

impl Classic {
    /// Makes a load balancer with AWS' defaults for everything that is not given at creation.
    pub(super) fn new(
        account: &AccountState,
        name: &str,
        listeners: &[ClassicListener],
        tags: Tags,
    ) -> Self {
        let first = listeners.first();
        let health_check = ClassicHealthCheck {
            target: format!("TCP:{}", first.map_or(80, |first| first.instance_port)).into(),
            interval: 30,
            timeout: 5,
            healthy: 10,
            unhealthy: 2,
        };
        let attributes = ClassicAttributes {
            access_log: Some(classic::ClassicAccessLog::default()),
            draining: Some(classic::ClassicDraining { enabled: false, timeout: Some(300) }),
            idle_timeout: Some(60),
            cross_zone: Some(false),
        };
        let mut made = Self {
            dns_name: format!("{name}-1234567890.{REGION}.elb.amazonaws.com").into(),
            scheme: Scheme::InternetFacing,
            subnets: Vec::new(),
            instances: Vec::new(),
            groups: Vec::new(),
            listeners: BTreeMap::new(),
            backends: BTreeMap::new(),
            policies: BTreeMap::new(),
            health_check,
            attributes,
            tags,
            created: account.creation_time(),
        };
        for listener in listeners {
            made.add_listener(listener);
        }
        made
    }

    fn add_listener(&mut self, listener: &ClassicListener) {
        let normal = normal(listener);
        let mut policies = Vec::new();
        if is_tls(&normal.protocol) {
            policies.push(DEFAULT_TLS_POLICY.into());
            let made = ClassicPolicy { kind: "SSLNegotiationPolicyType".into() };
            self.policies
                .entry(DEFAULT_TLS_POLICY.into())
                .or_insert(made);
        }
        self.listeners.insert(normal.port, (normal, policies));
    }
}

/// Returns a listener as AWS stores it, with names of protocols in capitals.
fn normal(listener: &ClassicListener) -> ClassicListener {
    ClassicListener {
        protocol: listener.protocol.to_ascii_uppercase().into(),
        instance_protocol: listener.instance_protocol.to_ascii_uppercase().into(),
        ..listener.clone()
    }
}

impl AccountState {
    pub(super) fn describe_classic(
        &self,
        c: &classic::DescribeClassic,
    ) -> ApiResult<Page<ClassicLoadBalancer>> {
        for name in &c.names {
            if !self
                .classics
                .get(name)
                .is_some_and(|classic| classic.created.shown())
            {
                return unknown(name);
            }
        }
        let found = self.classics.iter().filter(|(name, classic)| {
            classic.created.shown() && (c.names.is_empty() || c.names.contains(name))
        });
        let found =
            found.map(|(name, classic)| (name.to_string(), self.show_classic(name, classic)));
        page(
            found.collect(),
            c.token.as_deref(),
            self.options.page_size.min(400),
            "ValidationError",
        )
    }

    pub(super) fn show_classic(&self, name: &str, classic: &Classic) -> ClassicLoadBalancer {
        let listeners = classic.listeners.values();
        let listeners = listeners.map(|(listener, policies)| classic::ObservedClassicListener {
            listener: listener.clone(),
            policies: policies.clone(),
        });
        let backends = classic.backends.iter();
        let backends = backends.map(|(instance_port, policies)| classic::ClassicBackend {
            instance_port: *instance_port,
            policies: policies.clone(),
        });
        ClassicLoadBalancer {
            name: name.into(),
            dns_name: classic.dns_name.clone(),
            scheme: Some(classic.scheme),
            subnets: classic.subnets.clone(),
            security_groups: classic.groups.clone(),
            instances: classic.instances.clone(),
            listeners: listeners.collect(),
            backends: backends.collect(),
            policies: classic.policies.keys().cloned().collect(),
            health_check: Some(classic.health_check.clone()),
            created: Some(self.timestamp(classic.created.at)),
        }
    }

    pub(super) fn describe_classic_tags(
        &self,
        c: &classic::DescribeClassicTags,
    ) -> ApiResult<Vec<(Box<str>, Tags)>> {
        if !(1..=MOST_NAMED).contains(&c.names.len()) {
            return invalid(format!("From 1 to {MOST_NAMED} load balancers can be given"));
        }
        c.names
            .iter()
            .map(|name| Ok((name.clone(), self.classic(name)?.tags.clone())))
            .collect()
    }

    pub(super) fn classic_attributes(
        &self,
        c: &classic::DescribeClassicAttributes,
    ) -> ApiResult<ClassicAttributes> {
        Ok(self.classic(&c.name)?.attributes.clone())
    }

    pub(super) fn create_classic(&mut self, c: &classic::CreateClassic) -> ApiResult<Box<str>> {
        // First, check the name.
        super::balancers::check_name("load balancer", &c.name)?;
        if self.classics.contains_key(&c.name) {
            let message = format!("Load Balancer named {} already exists", c.name);
            return refuse("DuplicateLoadBalancerName", message);
        }
        // Then the settings and the quota.
        if c.listeners.is_empty() {
            return invalid("Listeners cannot be empty");
        }
        let ports: BTreeSet<u16> = c.listeners.iter().map(|listener| listener.port).collect();
        if ports.len() != c.listeners.len() {
            return invalid("Two listeners have the same port");
        }
        for listener in &c.listeners {
            check_listener(listener, &self.certificates)?;
        }
        check_elb_tags(&c.tags, c.tags.len(), self.options.quotas.tags)?;
        let vpc = self.check_classic_subnets(&c.subnets, &[], c.scheme)?;
        self.check_groups(&c.security_groups, &vpc)?;
        if c.security_groups.is_empty() {
            return refuse("InvalidSecurityGroup", "The provider never relies on the default one");
        }
        if self.classics.len() >= self.options.quotas.classic_load_balancers {
            return refuse("TooManyLoadBalancers", "The quota of load balancers is reached");
        }
        // Finally, create it and its network interfaces.
        let classic = Classic {
            scheme: c.scheme,
            subnets: c.subnets.clone(),
            groups: c.security_groups.clone(),
            ..Classic::new(self, &c.name, &c.listeners, c.tags.clone())
        };
        let dns_name = classic.dns_name.clone();
        self.classics.insert(c.name.clone(), classic);
        self.place_classic_interfaces(&c.name);
        Ok(dns_name)
    }

    /// Checks subnets that a load balancer is to have besides others.
    fn check_classic_subnets(
        &self,
        new: &[SubnetId],
        old: &[SubnetId],
        scheme: Scheme,
    ) -> ApiResult<crate::api::VpcId> {
        let old: Vec<_> = old.iter().map(mapping).collect();
        let mut all = old.clone();
        all.extend(new.iter().map(mapping));
        self.check_mappings(&all, scheme, IpAddressType::Ipv4, &old)
    }

    pub(super) fn create_classic_listeners(
        &mut self,
        c: &classic::CreateClassicListeners,
    ) -> ApiResult<()> {
        let certificates = self.certificates.clone();
        let most = self.options.quotas.classic_listeners;
        let classic = self.classic_mut(&c.name)?;
        if c.listeners.is_empty() {
            return invalid("Listeners cannot be empty");
        }
        for listener in &c.listeners {
            check_listener(listener, &certificates)?;
            let existing = classic.listeners.get(&listener.port);
            if existing.is_some_and(|(existing, _)| *existing != normal(listener)) {
                let message = format!(
                    "A listener already exists for {} with LoadBalancerPort {}, but with a \
                     different configuration",
                    c.name, listener.port
                );
                return refuse("DuplicateListener", message);
            }
        }
        if classic.listeners.len() + c.listeners.len() > most {
            return refuse("TooManyListeners", "The quota of listeners is reached");
        }
        for listener in &c.listeners {
            if !classic.listeners.contains_key(&listener.port) {
                classic.add_listener(listener);
            }
        }
        Ok(())
    }

    /// Deletes listeners. The policies of their instance ports stay, as in AWS.
    pub(super) fn delete_classic_listeners(
        &mut self,
        c: &classic::DeleteClassicListeners,
    ) -> ApiResult<()> {
        let classic = self.classic_mut(&c.name)?;
        if c.ports.is_empty() {
            return invalid("LoadBalancerPorts cannot be empty");
        }
        classic.listeners.retain(|port, _| !c.ports.contains(port));
        Ok(())
    }

    pub(super) fn configure_classic_health_check(
        &mut self,
        c: &classic::ConfigureClassicHealthCheck,
    ) -> ApiResult<()> {
        let classic = self.classic_mut(&c.name)?;
        check_health_check(&c.check)?;
        classic.health_check = c.check.clone();
        Ok(())
    }

    /// Changes attributes. Each that is given replaces the old one.
    pub(super) fn modify_classic_attributes(
        &mut self,
        c: &classic::ModifyClassicAttributes,
    ) -> ApiResult<()> {
        let classic = self.classic_mut(&c.name)?;
        check_attributes(&c.attributes)?;
        let attributes = &mut classic.attributes;
        if let Some(log) = &c.attributes.access_log {
            let mut log = log.clone();
            if log.enabled {
                log.interval.get_or_insert(60);
            }
            log.prefix = log.prefix.filter(|prefix| !prefix.is_empty());
            attributes.access_log = Some(log);
        }
        if let Some(draining) = &c.attributes.draining {
            let old = attributes.draining.as_ref().and_then(|old| old.timeout);
            let timeout = draining.timeout.or(old);
            attributes.draining = Some(classic::ClassicDraining { timeout, ..draining.clone() });
        }
        attributes.idle_timeout = c.attributes.idle_timeout.or(attributes.idle_timeout);
        attributes.cross_zone = c.attributes.cross_zone.or(attributes.cross_zone);
        Ok(())
    }

    pub(super) fn set_classic_security_groups(
        &mut self,
        c: &classic::SetClassicSecurityGroups,
    ) -> ApiResult<()> {
        self.classic(&c.name)?;
        if c.groups.is_empty() {
            return refuse(CONFLICT, "At least one security group must be specified");
        }
        let vpc = self.classic_vpc(&c.name);
        self.check_groups(&c.groups, &vpc)?;
        self.classic_mut(&c.name)?.groups.clone_from(&c.groups);
        self.place_classic_interfaces(&c.name);
        Ok(())
    }

    /// Returns the VPC of a load balancer: that of its subnets, or of its groups.
    fn classic_vpc(&self, name: &str) -> Box<str> {
        let Some(classic) = self.classics.get(name) else {
            return Box::default();
        };
        let of_subnet = classic
            .subnets
            .iter()
            .find_map(|id| self.subnets.get(id))
            .map(|subnet| &subnet.vpc);
        let of_group = || {
            let group = classic.groups.iter().find_map(|id| self.groups.get(id));
            group.map(|group| &group.vpc)
        };
        of_subnet
            .or_else(of_group)
            .map_or_else(Box::default, |vpc| (&**vpc).into())
    }

    pub(super) fn attach_classic_subnets(
        &mut self,
        c: &classic::AttachClassicSubnets,
    ) -> ApiResult<()> {
        let classic = self.classic(&c.name)?;
        let (old, scheme) = (classic.subnets.clone(), classic.scheme);
        let mut new = c.subnets.clone();
        new.retain(|subnet| !old.contains(subnet));
        self.check_classic_subnets(&new, &old, scheme)?;
        self.classic_mut(&c.name)?.subnets.extend(new);
        self.place_classic_interfaces(&c.name);
        Ok(())
    }

    pub(super) fn detach_classic_subnets(
        &mut self,
        c: &classic::DetachClassicSubnets,
    ) -> ApiResult<()> {
        let classic = self.classic_mut(&c.name)?;
        let mut rest = classic.subnets.clone();
        rest.retain(|subnet| !c.subnets.contains(subnet));
        if rest.is_empty() {
            return refuse(CONFLICT, "At least one subnet must stay attached");
        }
        classic.subnets = rest;
        self.place_classic_interfaces(&c.name);
        Ok(())
    }

    pub(super) fn create_classic_policy(
        &mut self,
        c: &classic::CreateClassicPolicy,
    ) -> ApiResult<()> {
        let most = self.options.quotas.classic_policies;
        let classic = self.classic_mut(&c.name)?;
        check_policy(c)?;
        if classic.policies.contains_key(&c.policy) {
            let message = format!("Policy name {} already exists", c.policy);
            return refuse("DuplicatePolicyName", message);
        }
        if classic.policies.len() >= most {
            return refuse("TooManyPolicies", "The quota of policies is reached");
        }
        let made = ClassicPolicy { kind: c.kind.clone() };
        classic.policies.insert(c.policy.clone(), made);
        Ok(())
    }

    pub(super) fn set_classic_listener_policies(
        &mut self,
        c: &classic::SetClassicListenerPolicies,
    ) -> ApiResult<()> {
        let classic = self.classic_mut(&c.name)?;
        check_policy_kinds(classic, &c.policies, &["SSLNegotiationPolicyType"])?;
        let Some((listener, policies)) = classic.listeners.get_mut(&c.port) else {
            let message = format!("There is no listener on port {}", c.port);
            return refuse("ListenerNotFound", message);
        };
        if !c.policies.is_empty() && !is_tls(&listener.protocol) {
            return refuse(CONFLICT, "The listener does not use TLS");
        }
        policies.clone_from(&c.policies);
        Ok(())
    }

    pub(super) fn set_classic_backend_policies(
        &mut self,
        c: &classic::SetClassicBackendPolicies,
    ) -> ApiResult<()> {
        let classic = self.classic_mut(&c.name)?;
        let kinds = ["ProxyProtocolPolicyType", "BackendServerAuthenticationPolicyType"];
        check_policy_kinds(classic, &c.policies, &kinds)?;
        let is_used = classic
            .listeners
            .values()
            .any(|(listener, _)| listener.instance_port == c.instance_port);
        if !is_used && !classic.backends.contains_key(&c.instance_port) {
            let message = format!("No listener uses the instance port {}", c.instance_port);
            return refuse(CONFLICT, message);
        }
        if c.policies.is_empty() {
            classic.backends.remove(&c.instance_port);
        } else {
            classic.backends.insert(c.instance_port, c.policies.clone());
        }
        Ok(())
    }

    pub(super) fn add_classic_tags(&mut self, c: &classic::AddClassicTags) -> ApiResult<()> {
        let most = self.options.quotas.tags;
        let classic = self.classic_mut(&c.name)?;
        let mut all = classic.tags.clone();
        all.extend(c.tags.clone());
        check_elb_tags(&c.tags, all.len(), most)?;
        classic.tags = all;
        Ok(())
    }

    pub(super) fn register_classic(&mut self, c: &classic::RegisterClassic) -> ApiResult<()> {
        self.classic(&c.name)?;
        let unknown = |id: &&InstanceId| {
            self.instances
                .get(*id)
                .is_none_or(|instance| instance.terminated.is_some())
        };
        if let Some(id) = c.instances.iter().find(unknown) {
            return refuse("InvalidInstance", format!("Could not find EC2 instance {id}"));
        }
        let classic = self.classic_mut(&c.name)?;
        classic.instances.extend(c.instances.iter().cloned());
        classic.instances.sort();
        classic.instances.dedup();
        Ok(())
    }

    pub(super) fn deregister_classic(&mut self, c: &classic::DeregisterClassic) -> ApiResult<()> {
        self.classic_mut(&c.name)?
            .instances
            .retain(|id| !c.instances.contains(id));
        Ok(())
    }

    pub(super) fn delete_classic(&mut self, c: &classic::DeleteClassic) {
        if self.classics.remove(&c.name).is_some() {
            self.release_interfaces(&InterfaceOwner::Classic(c.name.clone()));
        }
    }

    /// Updates the network interfaces of a load balancer after a change of its subnets or groups.
    pub(super) fn place_classic_interfaces(&mut self, name: &str) {
        let Some(classic) = self.classics.get(name) else {
            return;
        };
        let mappings: Vec<_> = classic.subnets.iter().map(mapping).collect();
        let groups: Vec<SecurityGroupId> = classic.groups.clone();
        let vpc = self.classic_vpc(name);
        let holder = InterfaceOwner::Classic(name.into());
        self.place_interfaces_of(&holder, &(&*vpc).into(), &mappings, &groups);
    }

    fn classic(&self, name: &str) -> ApiResult<&Classic> {
        match self
            .classics
            .get(name)
            .filter(|classic| classic.created.found())
        {
            Some(classic) => Ok(classic),
            None => unknown(name),
        }
    }

    fn classic_mut(&mut self, name: &str) -> ApiResult<&mut Classic> {
        self.classic(name)?;
        match self.classics.get_mut(name) {
            Some(classic) => Ok(classic),
            None => unknown(name),
        }
    }
}

/// Returns a subnet without requested addresses.
pub(super) fn mapping(subnet: &SubnetId) -> SubnetMapping {
    SubnetMapping {
        subnet: subnet.clone(),
        allocation: None,
        private_ipv4: None,
        ipv6: None,
        source_nat_prefix: None,
    }
}

fn unknown<T>(name: &str) -> ApiResult<T> {
    refuse(UNKNOWN, format!("There is no ACTIVE Load Balancer named '{name}'"))
}
