//! Builders of objects that a cluster needs and does not create: networks, instances, addresses,
//! certificates.

use std::fmt::Display;

use super::{
    ACCOUNT, FakeAws, REGION, attributes,
    state::{
        AccountState, Classic, CreationTime, ElasticIp, Instance, InterfaceOwner, LoadBalancer,
        NetworkInterface, Route, RouteNextHop, SecurityGroup, Subnet, Table, Vpc,
    },
};
use crate::api::{
    AllocationId, EniId, InstanceId, LoadBalancerArn, RouteTableId, SecurityGroupId, SubnetId,
    Tags, TargetGroupArn, VpcId,
    classic::ClassicListener,
    ec2::InstanceState,
    elb::{IpAddressType, LoadBalancerState, Scheme, SubnetMapping},
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Creates tags from pairs.
pub(super) fn tags_of(pairs: &[(&str, &str)]) -> Tags {
    pairs
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect()
}

fn net<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    text.parse().expect("a builder is given a network")
}

fn zone_name(zone: &str) -> Box<str> {
    if zone.len() == 1 {
        format!("{REGION}{zone}").into()
    } else {
        zone.into()
    }
}

impl FakeAws {
    /// Creates a VPC, with a main route table and the security group `default`.
    pub fn vpc(&self, cidr: &str) -> VpcId {
        let mut state = self.state.lock();
        let id = VpcId::from(state.id("vpc"));
        let cidrs = vec![net::<IpNet>(cidr)];
        state
            .vpcs
            .insert(id.clone(), Vpc { cidrs, internet_gateway: None, tags: Tags::new() });
        let main = RouteTableId::from(state.id("rtb"));
        let table = Table { main: true, ..state.empty_table(&id) };
        state.tables.insert(main, table);
        let group = SecurityGroupId::from(state.id("sg"));
        let made = new_group(state.creation_time(), &id, "default", Tags::new());
        state.groups.insert(group, made);
        id
    }

    /// Associates another CIDR with a VPC.
    pub fn add_cidr(&self, vpc: &VpcId, cidr: &str) {
        if let Some(vpc) = self.state.lock().vpcs.get_mut(vpc) {
            vpc.cidrs.push(net(cidr));
        }
    }

    /// Creates a subnet; the zone is a letter (`a`) or a name (`us-west-2-lax-1a`).
    pub fn subnet(&self, vpc: &VpcId, zone: &str, cidr: &str, tags: &[(&str, &str)]) -> SubnetId {
        let mut state = self.state.lock();
        let id = SubnetId::from(state.id("subnet"));
        let subnet = Subnet {
            vpc: vpc.clone(),
            zone: zone_name(zone),
            cidr: Some(net::<Ipv4Net>(cidr)),
            ipv6: Vec::new(),
            free: None,
            tags: tags_of(tags),
        };
        state.subnets.insert(id.clone(), subnet);
        id
    }

    /// Creates a subnet with its own route table, which routes to the VPC's internet gateway.
    /// Creates the gateway if needed.
    pub fn public_subnet(
        &self,
        vpc: &VpcId,
        zone: &str,
        cidr: &str,
        tags: &[(&str, &str)],
    ) -> SubnetId {
        let id = self.subnet(vpc, zone, cidr, tags);
        let gateway = self.internet_gateway(vpc);
        let table = self.route_table(vpc, &[id.clone()], &[]);
        self.gateway_route(&table, "0.0.0.0/0", &gateway);
        id
    }

    /// Attaches an internet gateway to a VPC, unless it has one, and returns its ID.
    pub fn internet_gateway(&self, vpc: &VpcId) -> Box<str> {
        let mut state = self.state.lock();
        let new: Box<str> = state.id("igw").into();
        state
            .vpcs
            .get_mut(vpc)
            .map_or(new.clone(), |vpc| vpc.internet_gateway.get_or_insert(new).clone())
    }

    /// Associates an IPv6 CIDR with a subnet.
    pub fn add_ipv6(&self, subnet: &SubnetId, cidr: &str) {
        if let Some(subnet) = self.state.lock().subnets.get_mut(subnet) {
            subnet.ipv6.push(net::<Ipv6Net>(cidr));
        }
    }

    /// Sets the number of free addresses of a subnet.
    pub fn set_free_ips(&self, subnet: &SubnetId, free: u32) {
        if let Some(subnet) = self.state.lock().subnets.get_mut(subnet) {
            subnet.free = Some(free);
        }
    }

    /// Creates a route table that is associated with these subnets.
    pub fn route_table(
        &self,
        vpc: &VpcId,
        subnets: &[SubnetId],
        tags: &[(&str, &str)],
    ) -> RouteTableId {
        let mut state = self.state.lock();
        let id = RouteTableId::from(state.id("rtb"));
        for table in state.tables.values_mut() {
            table.subnets.retain(|subnet| !subnets.contains(subnet));
        }
        let table = Table {
            subnets: subnets.to_vec(),
            tags: tags_of(tags),
            ..state.empty_table(vpc)
        };
        state.tables.insert(id.clone(), table);
        id
    }

    /// Adds a route to a gateway.
    pub fn gateway_route(&self, table: &RouteTableId, destination: &str, gateway: &str) {
        if let Some(table) = self.state.lock().tables.get_mut(table) {
            table.routes.push(Route {
                destination: Some(net(destination)),
                target: RouteNextHop::Gateway(gateway.into()),
            });
        }
    }

    /// Creates a security group.
    pub fn security_group(
        &self,
        vpc: &VpcId,
        name: &str,
        tags: &[(&str, &str)],
    ) -> SecurityGroupId {
        let mut state = self.state.lock();
        let id = SecurityGroupId::from(state.id("sg"));
        let made = new_group(state.creation_time(), vpc, name, tags_of(tags));
        state.groups.insert(id.clone(), made);
        id
    }

    /// Allocates an Elastic IP address.
    pub fn elastic_ip(&self) -> AllocationId {
        let mut state = self.state.lock();
        let id = AllocationId::from(state.id("eipalloc"));
        let ip = format!("203.0.113.{}", state.eips.len() + 1).into();
        state
            .eips
            .insert(id.clone(), ElasticIp { ip, used_by: None });
        id
    }

    /// Issues a certificate and returns its ARN.
    pub fn certificate(&self) -> Box<str> {
        let mut state = self.state.lock();
        let number = state.number("certificate");
        let arn: Box<str> = format!(
            "arn:aws:acm:{REGION}:{ACCOUNT}:certificate/00000000-0000-0000-0000-{number:012}"
        )
        .into();
        state.certificates.push(arn.clone());
        arn
    }

    /// Creates a classic load balancer without subnets, with TCP port 80 on instance port 30080.
    pub fn classic(
        &self,
        name: &str,
        groups: &[SecurityGroupId],
        members: &[InstanceId],
        tags: &[(&str, &str)],
    ) {
        let mut state = self.state.lock();
        let listener = ClassicListener {
            port: 80,
            protocol: "TCP".into(),
            instance_port: 30080,
            instance_protocol: "TCP".into(),
            certificate: None,
        };
        let classic = Classic {
            instances: members.to_vec(),
            groups: groups.to_vec(),
            ..Classic::new(&state, name, &[listener], tags_of(tags))
        };
        state.classics.insert(name.into(), classic);
    }

    /// Creates an unmanaged load balancer of the v2 API, of kind `application`, `gateway` or
    /// `network`.
    pub fn foreign_balancer(
        &self,
        name: &str,
        kind: &str,
        subnets: &[SubnetId],
        tags: &[(&str, &str)],
    ) -> LoadBalancerArn {
        let mut state = self.state.lock();
        let short = if kind == "application" { "app" } else { "net" };
        let arn = LoadBalancerArn::from(state.arn("loadbalancer", &format!("{short}/{name}")));
        let vpc = subnets
            .first()
            .and_then(|id| state.subnets.get(id))
            .map(|subnet| subnet.vpc.clone());
        let mapping = |subnet: &SubnetId| SubnetMapping {
            subnet: subnet.clone(),
            allocation: None,
            private_ipv4: None,
            ipv6: None,
            source_nat_prefix: None,
        };
        let balancer = LoadBalancer {
            name: name.into(),
            kind: kind.into(),
            dns_name: format!("{name}-foreign.elb.{REGION}.amazonaws.com").into(),
            scheme: Scheme::InternetFacing,
            ip_address_type: IpAddressType::Ipv4,
            vpc: vpc.unwrap_or_else(|| VpcId::from("vpc-elsewhere")),
            mappings: subnets.iter().map(mapping).collect(),
            groups: Vec::new(),
            private_link_rules: false,
            ipv6_source_nat: false,
            capacity_units: 0,
            state: None,
            attributes: attributes::of_balancer(),
            tags: tags_of(tags),
            created: state.creation_time(),
        };
        state.balancers.insert(arn.clone(), balancer);
        arn
    }

    /// Begins an instance in a subnet; [`launch`](InstanceBuilder::launch) creates it.
    pub fn instance(&self, subnet: &SubnetId) -> InstanceBuilder {
        InstanceBuilder {
            aws: self.clone(),
            instance_type: "m6g.large".into(),
            state: InstanceState::Running,
            private_dns_name: None,
            resource_name: false,
            public: None,
            network_nodes: Vec::new(),
            tags: Tags::new(),
            interfaces: vec![Interface::new(subnet)],
        }
    }

    /// Creates a network interface without an instance, such as one of a pod.
    pub fn pod_interface(&self, interface: Interface) -> EniId {
        self.state
            .lock()
            .create_interface(interface, InterfaceOwner::Service)
    }

    /// Adds a private address to the primary interface of an instance.
    pub fn assign_ip(&self, id: &InstanceId, ip: &str) {
        self.change_primary(id, |eni| eni.private_ips.push(ip.into()));
    }

    /// Adds a prefix to the primary interface of an instance.
    pub fn assign_prefix(&self, id: &InstanceId, prefix: IpNet) {
        self.change_primary(id, |eni| eni.prefixes.push(prefix));
    }

    fn change_primary(&self, id: &InstanceId, change: impl FnOnce(&mut NetworkInterface)) {
        let mut state = self.state.lock();
        let primary = state
            .instances
            .get(id)
            .and_then(|instance| instance.enis.first().cloned());
        if let Some(eni) = primary.and_then(|id| state.enis.get_mut(&id)) {
            change(eni);
        }
    }

    /// Creates the network interface of a Fargate pod.
    pub fn fargate(&self, subnet: &SubnetId, ip: &str, dns_name: &str) -> EniId {
        let interface = Interface { private_ips: vec![ip.into()], ..Interface::new(subnet) };
        let mut state = self.state.lock();
        let id = state.create_interface(interface, InterfaceOwner::Service);
        if let Some(eni) = state.enis.get_mut(&id) {
            eni.private_dns_name = dns_name.into();
        }
        id
    }

    /// Sets the state of an instance.
    pub fn set_state(&self, id: &InstanceId, to: InstanceState) {
        let mut state = self.state.lock();
        match to {
            InstanceState::Terminated => state.terminate(id),
            to => {
                if let Some(instance) = state.instances.get_mut(id) {
                    instance.state = to;
                }
            }
        }
    }

    /// Terminates an instance. It can be described for another hour.
    pub fn terminate(&self, id: &InstanceId) {
        self.state.lock().terminate(id);
    }

    /// Terminates an instance as if an hour ago, so that it cannot be described any more.
    pub fn forget_instance(&self, id: &InstanceId) {
        let mut state = self.state.lock();
        state.terminate(id);
        state.instances.remove(id);
    }

    /// Adds a tag to an object, by ID or ARN, as another client would.
    pub fn tag(&self, object: &str, key: &str, value: &str) {
        self.edit_tags(object, |tags| {
            tags.insert(key.into(), value.into());
        });
    }

    /// Removes a tag from an object, by ID, ARN or name, as another client would.
    pub fn untag(&self, object: &str, key: &str) {
        self.edit_tags(object, |tags| {
            tags.remove(key);
        });
    }

    fn edit_tags(&self, object: &str, change: impl FnMut(&mut Tags)) {
        let mut change = change;
        let mut state = self.state.lock();
        if let Some(classic) = state.classics.get_mut(object) {
            change(&mut classic.tags);
            return;
        }
        match state.ec2_tags(object) {
            Some(tags) => change(tags),
            None => state.each_elb_tags(&[object.into()], change),
        }
    }

    /// Sets the state of a load balancer, and its reason.
    pub fn set_balancer_state(&self, arn: &LoadBalancerArn, to: LoadBalancerState, reason: &str) {
        if let Some(balancer) = self.state.lock().balancers.get_mut(arn) {
            balancer.state = Some((to, reason.into()));
        }
    }

    /// Sets the health of a target by its ID, on all its ports, for example `unhealthy` with
    /// `Target.FailedHealthChecks`.
    pub fn set_health(&self, group: &TargetGroupArn, id: &str, to: &str, reason: &str) {
        if let Some(group) = self.state.lock().target_groups.get_mut(group) {
            for (_, target) in group
                .targets
                .iter_mut()
                .filter(|((have, _), _)| **have == *id)
            {
                target.health = Some((to.into(), reason.into()));
            }
        }
    }
}

/// Settings of a network interface to create.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Subnet.
    pub subnet: SubnetId,
    /// Device index; `None` for one without attachment.
    pub device_index: Option<i32>,
    /// Whether its status is `in-use`.
    pub in_use: bool,
    /// Private IPv4 addresses; if empty, one is picked.
    pub private_ips: Vec<Box<str>>,
    /// IPv6 addresses.
    pub ipv6: Vec<Box<str>>,
    /// Delegated prefixes.
    pub prefixes: Vec<IpNet>,
    /// Security groups.
    pub groups: Vec<SecurityGroupId>,
}

impl Interface {
    /// Begins an interface in a subnet.
    pub fn new(subnet: &SubnetId) -> Self {
        Self {
            subnet: subnet.clone(),
            device_index: Some(0),
            in_use: true,
            private_ips: Vec::new(),
            ipv6: Vec::new(),
            prefixes: Vec::new(),
            groups: Vec::new(),
        }
    }
}

/// Settings of an instance to create.
#[must_use]
pub struct InstanceBuilder {
    aws: FakeAws,
    instance_type: Box<str>,
    state: InstanceState,
    private_dns_name: Option<Box<str>>,
    resource_name: bool,
    public: Option<(Box<str>, Box<str>)>,
    network_nodes: Vec<Box<str>>,
    tags: Tags,
    interfaces: Vec<Interface>,
}

impl InstanceBuilder {
    /// Sets the type. Default `m6g.large`.
    pub fn instance_type(mut self, instance_type: &str) -> Self {
        self.instance_type = instance_type.into();
        self
    }

    /// Sets the state. Default `running`.
    pub fn state(mut self, state: InstanceState) -> Self {
        self.state = state;
        self
    }

    /// Sets the private DNS name. By default it is derived from the address.
    pub fn private_dns_name(mut self, name: &str) -> Self {
        self.private_dns_name = Some(name.into());
        self
    }

    /// Derives the private DNS name from the ID.
    pub fn resource_name(mut self) -> Self {
        self.resource_name = true;
        self
    }

    /// Sets a public address and a public DNS name, which may be empty.
    pub fn public(mut self, ip: &str, dns_name: &str) -> Self {
        self.public = Some((ip.into(), dns_name.into()));
        self
    }

    /// Adds a private address to the primary interface.
    pub fn private_ip(mut self, ip: impl Display) -> Self {
        self.interfaces[0].private_ips.push(ip.to_string().into());
        self
    }

    /// Adds an IPv6 address to the primary interface.
    pub fn ipv6(mut self, ip: impl Display) -> Self {
        self.interfaces[0].ipv6.push(ip.to_string().into());
        self
    }

    /// Adds a security group to the primary interface.
    pub fn group(mut self, group: &SecurityGroupId) -> Self {
        self.interfaces[0].groups.push(group.clone());
        self
    }

    /// Adds another interface.
    pub fn interface(mut self, interface: Interface) -> Self {
        self.interfaces.push(interface);
        self
    }

    /// Sets all interfaces, in the order in which they are described.
    pub fn interfaces(mut self, interfaces: Vec<Interface>) -> Self {
        self.interfaces = interfaces;
        self
    }

    /// Sets the network nodes above it, outermost first.
    pub fn network_nodes(mut self, nodes: &[&str]) -> Self {
        self.network_nodes = nodes.iter().map(|node| (*node).into()).collect();
        self
    }

    /// Adds a tag.
    pub fn tag(mut self, key: &str, value: &str) -> Self {
        self.tags.insert(key.into(), value.into());
        self
    }

    /// Creates the instance.
    pub fn launch(self) -> InstanceId {
        let mut state = self.aws.state.lock();
        // First, create the interfaces.
        let id = InstanceId::from(state.id("i"));
        let Some(subnet) = self
            .interfaces
            .first()
            .map(|interface| interface.subnet.clone())
        else {
            return id;
        };
        let holder =
            |interface: &Interface| InterfaceOwner::Instance(id.clone(), interface.device_index);
        let enis: Vec<_> = self
            .interfaces
            .into_iter()
            .map(|it| (holder(&it), it))
            .collect();
        let enis: Vec<_> = enis
            .into_iter()
            .map(|(holder, it)| state.create_interface(it, holder))
            .collect();
        // Then choose the private DNS name.
        let ip = enis
            .first()
            .and_then(|eni| state.enis.get(eni))
            .and_then(|eni| eni.private_ips.first().cloned());
        let made = match (self.resource_name, ip) {
            (true, _) => format!("{id}.{REGION}.compute.internal").into(),
            (false, Some(ip)) => {
                format!("ip-{}.{REGION}.compute.internal", ip.replace('.', "-")).into()
            }
            (false, None) => Box::default(),
        };
        let private_dns_name = self.private_dns_name.unwrap_or(made);
        for eni in enis.iter().take(1) {
            if let Some(eni) = state.enis.get_mut(eni) {
                eni.private_dns_name = private_dns_name.clone();
            }
        }
        // Finally, create the instance.
        let (public_ip, public_dns_name) = self.public.unwrap_or_default();
        let (vpc, zone) = state.subnet_location(&subnet);
        let instance = Instance {
            state: self.state,
            kind: self.instance_type,
            zone,
            vpc,
            subnet,
            private_dns_name,
            public_dns_name,
            public_ip,
            enis,
            network_nodes: self.network_nodes,
            tags: self.tags,
            terminated: None,
            created: state.creation_time(),
        };
        state.instances.insert(id.clone(), instance);
        if self.state == InstanceState::Terminated {
            state.terminate(&id);
        }
        id
    }
}

fn new_group(created: CreationTime, vpc: &VpcId, name: &str, tags: Tags) -> SecurityGroup {
    let description = format!("{name} group").into();
    SecurityGroup {
        name: name.into(),
        description,
        vpc: vpc.clone(),
        ingress: Vec::new(),
        tags,
        created,
    }
}

impl AccountState {
    /// Returns a table with the local routes of a VPC.
    fn empty_table(&self, vpc: &VpcId) -> Table {
        let local = |cidr: &IpNet| Route {
            destination: Some(*cidr),
            target: RouteNextHop::Gateway("local".into()),
        };
        let routes = self
            .vpcs
            .get(vpc)
            .map(|vpc| vpc.cidrs.iter().map(local).collect())
            .unwrap_or_default();
        Table {
            vpc: vpc.clone(),
            subnets: Vec::new(),
            main: false,
            routes,
            tags: Tags::new(),
        }
    }

    fn subnet_location(&self, subnet: &SubnetId) -> (VpcId, Box<str>) {
        let known = self
            .subnets
            .get(subnet)
            .map(|subnet| (subnet.vpc.clone(), subnet.zone.clone()));
        known.unwrap_or_else(|| (VpcId::from("vpc-elsewhere"), zone_name("a")))
    }

    fn create_interface(&mut self, interface: Interface, holder: InterfaceOwner) -> EniId {
        let id = EniId::from(self.id("eni"));
        let (vpc, zone) = self.subnet_location(&interface.subnet);
        let mut private_ips = interface.private_ips;
        if private_ips.is_empty() {
            private_ips.extend(self.pick_ip(&interface.subnet));
        }
        let eni = NetworkInterface {
            vpc,
            zone,
            private_dns_name: Box::default(),
            private_ips,
            ipv6: interface.ipv6,
            prefixes: interface.prefixes,
            groups: interface.groups,
            source_dest_check: true,
            in_use: interface.in_use,
            holder,
            subnet: interface.subnet,
        };
        self.enis.insert(id.clone(), eni);
        id
    }
}
