//! Builders for tests: one line per object.

use std::{collections::BTreeMap, num::NonZeroU16, sync::Arc};

use ccm_core::k8s::{IpFamily, Protocol};

use super::model::{
    DesiredListener, DesiredLoadBalancer, DesiredTargetGroup, NodeRuleSource, SecurityGroupChoice,
    SecurityGroupSpec, ServiceKey, SubnetChoice, UpdateScope,
};
use crate::{
    api::{
        ec2::{AvailabilityZone, Route, RouteTable, Subnet},
        elb::{
            ElbProtocol, HealthCheck, HealthPort, HealthProtocol, IpAddressType, Scheme, TargetType,
        },
    },
    lb::observe::vpc::VpcSnapshot,
};

/// An internet-facing balancer for `default/web` with one TCP listener, open to everybody, without
/// groups.
pub(crate) fn desired() -> DesiredLoadBalancer {
    DesiredLoadBalancer {
        owner: ServiceKey {
            namespace: "default".into(),
            name: "web".into(),
            uid: "uid-1".into(),
        },
        name: "a1".into(),
        scheme: Scheme::InternetFacing,
        ip_address_type: IpAddressType::Ipv4,
        subnets: SubnetChoice::Discover,
        allocations: Vec::new(),
        private_ipv4: Vec::new(),
        ipv6: Vec::new(),
        ipv6_source_nat: None,
        source_nat_prefixes: Vec::new(),
        security: SecurityGroupSpec {
            groups: SecurityGroupChoice::Keep,
            private_link_rules: None,
            prefix_lists: Vec::new(),
            manage_backend_rules: true,
            node_rules: NodeRuleSource::Networks,
        },
        listeners: vec![listener(80, 30080, ElbProtocol::Tcp)],
        attributes: BTreeMap::new(),
        deletion_protection: false,
        capacity_units: None,
        extra_tags: BTreeMap::new(),
        sources: vec!["0.0.0.0/0".parse().unwrap()],
        node_labels: Vec::new(),
        target_type: TargetType::Instance,
        updates: UpdateScope::All,
        creation_errors: Vec::new(),
        adopts: None,
    }
}

/// A listener whose health checks go to the traffic port.
pub(crate) fn listener(port: u16, node_port: u16, protocol: ElbProtocol) -> DesiredListener {
    let port = NonZeroU16::new(port).unwrap();
    let target_group = DesiredTargetGroup {
        name: format!("tg-{port}").into(),
        protocol,
        port: NonZeroU16::new(node_port).unwrap(),
        target_type: TargetType::Instance,
        family: IpFamily::V4,
        health_check: HealthCheck {
            protocol: HealthProtocol::Tcp,
            port: HealthPort::Traffic,
            path: None,
            interval: 30,
            timeout: 10,
            healthy: 3,
            unhealthy: 3,
            matcher: None,
        },
        attributes: BTreeMap::new(),
        preserves_client_ip: true,
        service_port: ("".into(), Protocol::Tcp),
    };
    DesiredListener {
        port,
        protocol,
        tls: None,
        attributes: BTreeMap::new(),
        target_group,
    }
}

/// The same with health checks to a port of their own.
pub(crate) fn checked_at(mut listener: DesiredListener, port: u16) -> DesiredListener {
    listener.target_group.health_check.port = HealthPort::Number(NonZeroU16::new(port).unwrap());
    listener
}

/// A subnet in a zone, with tags, written `key` or `key=value`.
pub(crate) fn subnet(id: &str, zone: &str, tags: &[&str]) -> Subnet {
    let tag = |text: &&str| {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        (key.into(), value.into())
    };
    Subnet {
        id: id.into(),
        vpc: "vpc-1".into(),
        zone: zone.into(),
        cidr: None,
        ipv6_cidrs: Vec::new(),
        free_ips: 251,
        tags: tags.iter().map(tag).collect(),
    }
}

/// The same with an IPv4 network.
pub(crate) fn with_v4(subnet: Subnet, network: &str) -> Subnet {
    Subnet { cidr: Some(network.parse().unwrap()), ..subnet }
}

/// The same with an IPv6 network.
pub(crate) fn with_v6(subnet: Subnet, network: &str) -> Subnet {
    Subnet { ipv6_cidrs: vec![network.parse().unwrap()], ..subnet }
}

/// A route table with associations, which leads to an internet gateway or not.
pub(crate) fn table(subnets: &[&str], main: bool, public: bool) -> RouteTable {
    let gateway = Some(if public { "igw-1" } else { "local" }.into());
    let route = Route {
        destination: None,
        blackhole: false,
        instance: None,
        interface: None,
        gateway,
    };
    RouteTable {
        id: "rtb-1".into(),
        vpc: "vpc-1".into(),
        subnets: subnets.iter().map(|id| (*id).into()).collect(),
        main,
        routes: vec![route],
        tags: BTreeMap::new(),
    }
}

/// A VPC whose zones are ordinary but for `lax` and `wlz`.
pub(crate) fn vpc(subnets: Vec<Subnet>, tables: Vec<RouteTable>) -> VpcSnapshot {
    let kind = |zone: &str| match zone {
        "lax" => "local-zone",
        "wlz" => "wavelength-zone",
        _ => "availability-zone",
    };
    let zone = |subnet: &Subnet| {
        let name = subnet.zone.clone();
        let zone_type = kind(&subnet.zone).into();
        (name.clone(), AvailabilityZone { id: format!("id-{name}").into(), name, zone_type })
    };
    VpcSnapshot {
        zones: Arc::new(subnets.iter().map(zone).collect()),
        subnets,
        tables,
    }
}
