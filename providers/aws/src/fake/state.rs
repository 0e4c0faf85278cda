//! State of the in-memory AWS.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::{ACCOUNT, faults::Faults, options::FakeOptions};
use crate::api::{
    AllocationId, EniId, InstanceId, ListenerArn, LoadBalancerArn, RouteTableId, SecurityGroupId,
    SubnetId, Tags, TargetGroupArn, VpcId,
    classic::{ClassicAttributes, ClassicHealthCheck, ClassicListener},
    ec2::{AvailabilityZone, InstanceState, RouteTarget, Rule},
    elb::{
        Attributes, ElbProtocol, HealthCheck, IpAddressType, LoadBalancerState, Scheme,
        SubnetMapping, TargetType,
    },
    sts::CallerIdentity,
};

/// Name of the region.
pub const REGION: &str = "us-west-2";

/// Time for which a terminated instance can still be described.
const TERMINATED_FOR: Duration = Duration::from_secs(3600);

/// Time of an object's creation, and times from which on it is visible.
#[derive(Clone, Copy)]
pub(super) struct CreationTime {
    pub(super) at: Instant,
    shown: Instant,
    found: Instant,
}

impl CreationTime {
    /// Returns true if describes show the object.
    pub(super) fn shown(self) -> bool {
        self.shown <= Instant::now()
    }

    /// Returns true if changes find the object.
    pub(super) fn found(self) -> bool {
        self.found <= Instant::now()
    }
}

/// All objects of the account, its options, and injected faults.
#[derive(Clone)]
pub(super) struct AccountState {
    pub(super) started: Instant,
    counters: BTreeMap<&'static str, u64>,
    pub(super) options: FakeOptions,
    pub(super) faults: Faults,
    pub(super) zones: Vec<AvailabilityZone>,
    pub(super) vpcs: BTreeMap<VpcId, Vpc>,
    pub(super) subnets: BTreeMap<SubnetId, Subnet>,
    pub(super) tables: BTreeMap<RouteTableId, Table>,
    pub(super) instances: BTreeMap<InstanceId, Instance>,
    pub(super) enis: BTreeMap<EniId, NetworkInterface>,
    pub(super) groups: BTreeMap<SecurityGroupId, SecurityGroup>,
    pub(super) eips: BTreeMap<AllocationId, ElasticIp>,
    pub(super) certificates: Vec<Box<str>>,
    pub(super) balancers: BTreeMap<LoadBalancerArn, LoadBalancer>,
    pub(super) target_groups: BTreeMap<TargetGroupArn, TargetGroup>,
    pub(super) listeners: BTreeMap<ListenerArn, Listener>,
    pub(super) classics: BTreeMap<Box<str>, Classic>,
}

#[derive(Clone)]
pub(super) struct Vpc {
    pub(super) cidrs: Vec<IpNet>,
    pub(super) internet_gateway: Option<Box<str>>,
    pub(super) tags: Tags,
}

#[derive(Clone)]
pub(super) struct Subnet {
    pub(super) vpc: VpcId,
    pub(super) zone: Box<str>,
    pub(super) cidr: Option<Ipv4Net>,
    pub(super) ipv6: Vec<Ipv6Net>,
    /// Number of free addresses if a test set it; otherwise they are counted.
    pub(super) free: Option<u32>,
    pub(super) tags: Tags,
}

#[derive(Clone)]
pub(super) struct Table {
    pub(super) vpc: VpcId,
    pub(super) subnets: Vec<SubnetId>,
    pub(super) main: bool,
    pub(super) routes: Vec<Route>,
    pub(super) tags: Tags,
}

#[derive(Clone)]
pub(super) struct Route {
    pub(super) destination: Option<IpNet>,
    pub(super) target: RouteNextHop,
}

/// Target of a route.
#[derive(Clone)]
pub(super) enum RouteNextHop {
    Gateway(Box<str>),
    Target(RouteTarget),
}

#[derive(Clone)]
pub(super) struct Instance {
    pub(super) state: InstanceState,
    pub(super) kind: Box<str>,
    pub(super) zone: Box<str>,
    pub(super) vpc: VpcId,
    pub(super) subnet: SubnetId,
    pub(super) private_dns_name: Box<str>,
    pub(super) public_dns_name: Box<str>,
    pub(super) public_ip: Box<str>,
    /// In order of their device indexes.
    pub(super) enis: Vec<EniId>,
    pub(super) network_nodes: Vec<Box<str>>,
    pub(super) tags: Tags,
    pub(super) terminated: Option<Instant>,
    pub(super) created: CreationTime,
}

#[derive(Clone)]
pub(super) struct NetworkInterface {
    pub(super) vpc: VpcId,
    pub(super) subnet: SubnetId,
    pub(super) zone: Box<str>,
    pub(super) private_dns_name: Box<str>,
    pub(super) private_ips: Vec<Box<str>>,
    pub(super) ipv6: Vec<Box<str>>,
    pub(super) prefixes: Vec<IpNet>,
    pub(super) groups: Vec<SecurityGroupId>,
    pub(super) source_dest_check: bool,
    pub(super) in_use: bool,
    pub(super) holder: InterfaceOwner,
}

/// Owner of a network interface.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum InterfaceOwner {
    /// An instance, with the device index.
    Instance(InstanceId, Option<i32>),
    /// A load balancer.
    Balancer(LoadBalancerArn),
    /// A classic load balancer.
    Classic(Box<str>),
    /// A deleted load balancer; the interface disappears at this time.
    Leaving(Instant),
    /// Another AWS service, such as Fargate.
    Service,
}

#[derive(Clone)]
pub(super) struct SecurityGroup {
    pub(super) name: Box<str>,
    pub(super) description: Box<str>,
    pub(super) vpc: VpcId,
    pub(super) ingress: Vec<Rule>,
    pub(super) tags: Tags,
    pub(super) created: CreationTime,
}

#[derive(Clone)]
pub(super) struct ElasticIp {
    pub(super) ip: Box<str>,
    pub(super) used_by: Option<EniId>,
}

#[derive(Clone)]
pub(super) struct LoadBalancer {
    pub(super) name: Box<str>,
    pub(super) kind: Box<str>,
    pub(super) dns_name: Box<str>,
    pub(super) scheme: Scheme,
    pub(super) ip_address_type: IpAddressType,
    pub(super) vpc: VpcId,
    pub(super) mappings: Vec<SubnetMapping>,
    pub(super) groups: Vec<SecurityGroupId>,
    pub(super) private_link_rules: bool,
    pub(super) ipv6_source_nat: bool,
    /// Reserved capacity units; 0 for none.
    pub(super) capacity_units: u32,
    /// State and reason if a test set them; otherwise they depend on the time.
    pub(super) state: Option<(LoadBalancerState, Box<str>)>,
    pub(super) attributes: Attributes,
    pub(super) tags: Tags,
    pub(super) created: CreationTime,
}

#[derive(Clone)]
pub(super) struct TargetGroup {
    pub(super) name: Box<str>,
    pub(super) protocol: ElbProtocol,
    pub(super) port: u16,
    pub(super) vpc: VpcId,
    pub(super) target_type: TargetType,
    pub(super) ip_address_type: IpAddressType,
    pub(super) health_check: HealthCheck,
    pub(super) attributes: Attributes,
    pub(super) tags: Tags,
    pub(super) targets: BTreeMap<(Box<str>, u16), Target>,
    pub(super) created: CreationTime,
}

/// A target; its ID and port are the key.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) zone: Option<Box<str>>,
    pub(super) since: Instant,
    /// Until when the target drains; `None` if it is not being deregistered.
    pub(super) draining: Option<Instant>,
    /// Health and reason if a test set them; otherwise they depend on the time.
    pub(super) health: Option<(Box<str>, Box<str>)>,
}

#[derive(Clone)]
pub(super) struct Listener {
    pub(super) load_balancer: LoadBalancerArn,
    pub(super) port: u16,
    pub(super) protocol: ElbProtocol,
    pub(super) target_group: TargetGroupArn,
    pub(super) certificate: Option<Box<str>>,
    pub(super) more_certificates: Vec<Box<str>>,
    pub(super) ssl_policy: Option<Box<str>>,
    pub(super) alpn_policy: Option<Box<str>>,
    pub(super) attributes: Attributes,
    pub(super) tags: Tags,
    pub(super) created: CreationTime,
}

#[derive(Clone)]
pub(super) struct Classic {
    pub(super) dns_name: Box<str>,
    pub(super) scheme: Scheme,
    pub(super) subnets: Vec<SubnetId>,
    pub(super) instances: Vec<InstanceId>,
    pub(super) groups: Vec<SecurityGroupId>,
    /// Listeners and the names of their policies, by port.
    pub(super) listeners: BTreeMap<u16, (ClassicListener, Vec<Box<str>>)>,
    /// Names of policies, by instance port.
    pub(super) backends: BTreeMap<u16, Vec<Box<str>>>,
    pub(super) policies: BTreeMap<Box<str>, ClassicPolicy>,
    pub(super) health_check: ClassicHealthCheck,
    pub(super) attributes: ClassicAttributes,
    pub(super) tags: Tags,
    pub(super) created: CreationTime,
}

/// A policy of a classic load balancer; its name is the key.
#[derive(Clone)]
pub(super) struct ClassicPolicy {
    pub(super) kind: Box<str>,
}

impl AccountState {
    pub(super) fn new() -> Self {
        let zone = |name: &str, id: &str, kind: &str| AvailabilityZone {
            name: name.into(),
            id: id.into(),
            zone_type: kind.into(),
        };
        Self {
            started: Instant::now(),
            counters: BTreeMap::new(),
            options: FakeOptions::default(),
            faults: Faults::default(),
            // The IDs of zones a, b, c differ from account to account, so they are not in order
            // here either.
            zones: vec![
                zone("us-west-2a", "usw2-az2", "availability-zone"),
                zone("us-west-2b", "usw2-az1", "availability-zone"),
                zone("us-west-2c", "usw2-az3", "availability-zone"),
                zone("us-west-2-lax-1a", "usw2-lax1-az1", "local-zone"),
            ],
            vpcs: BTreeMap::new(),
            subnets: BTreeMap::new(),
            tables: BTreeMap::new(),
            instances: BTreeMap::new(),
            enis: BTreeMap::new(),
            groups: BTreeMap::new(),
            eips: BTreeMap::new(),
            certificates: Vec::new(),
            balancers: BTreeMap::new(),
            target_groups: BTreeMap::new(),
            listeners: BTreeMap::new(),
            classics: BTreeMap::new(),
        }
    }

    /// Returns the next number for objects of a kind, so that the same sequence of requests gives
    /// the same IDs.
    pub(super) fn number(&mut self, kind: &'static str) -> u64 {
        let counter = self.counters.entry(kind).or_default();
        *counter += 1;
        *counter
    }

    /// Creates an EC2 ID.
    pub(super) fn id(&mut self, kind: &'static str) -> String {
        format!("{kind}-{:017x}", self.number(kind))
    }

    /// Creates an ARN of Elastic Load Balancing.
    pub(super) fn arn(&mut self, kind: &'static str, path: &str) -> String {
        format!(
            "arn:aws:elasticloadbalancing:{REGION}:{ACCOUNT}:{kind}/{path}/{:016x}",
            self.number(kind)
        )
    }

    /// Applies the changes that are due by now.
    pub(super) fn advance(&mut self) {
        let now = Instant::now();
        self.enis
            .retain(|_, eni| !matches!(eni.holder, InterfaceOwner::Leaving(until) if until <= now));
        let enis = &self.enis;
        for eip in self.eips.values_mut() {
            if eip
                .used_by
                .as_ref()
                .is_some_and(|eni| !enis.contains_key(eni))
            {
                eip.used_by = None;
            }
        }
        self.instances.retain(|_, instance| {
            instance
                .terminated
                .is_none_or(|at| at + TERMINATED_FOR > now)
        });
        for group in self.target_groups.values_mut() {
            group
                .targets
                .retain(|_, target| target.draining.is_none_or(|until| until > now));
        }
    }

    /// Returns the role with which all requests are sent.
    pub(super) fn caller(&self) -> CallerIdentity {
        CallerIdentity {
            account: ACCOUNT.into(),
            arn: format!("arn:aws:sts::{ACCOUNT}:assumed-role/ccm/i-0").into(),
            lifetime: self.options.credentials,
        }
    }

    /// Returns the creation time of an object that is created now.
    pub(super) fn creation_time(&self) -> CreationTime {
        let at = Instant::now();
        CreationTime {
            at,
            shown: at + self.options.describe_lag,
            found: at + self.options.change_lag,
        }
    }

    /// Shortens the remaining delays of existing objects to the current options.
    pub(super) fn apply_visibility(&mut self) {
        let describe = self.options.describe_lag;
        let change = self.options.change_lag;
        let of_ec2 = self.groups.values_mut().map(|it| &mut it.created);
        let of_ec2 = of_ec2.chain(self.instances.values_mut().map(|it| &mut it.created));
        let of_elb = self.balancers.values_mut().map(|it| &mut it.created);
        let of_elb = of_elb.chain(self.target_groups.values_mut().map(|it| &mut it.created));
        let of_classic = self.classics.values_mut().map(|it| &mut it.created);
        for born in of_ec2
            .chain(of_elb)
            .chain(of_classic)
            .chain(self.listeners.values_mut().map(|it| &mut it.created))
        {
            born.shown = born.shown.min(born.at + describe);
            born.found = born.found.min(born.at + change);
        }
    }

    /// Returns the timestamp that AWS shows for an instant.
    pub(super) fn timestamp(&self, at: Instant) -> Timestamp {
        const START: i64 = 1_767_225_600; // 2026-01-01T00:00:00Z
        let since = SignedDuration::try_from(at.saturating_duration_since(self.started))
            .unwrap_or_default();
        Timestamp::from_second(START)
            .unwrap_or_default()
            .saturating_add(since)
            .unwrap_or_default()
    }

    /// Returns the number of free IPv4 addresses of a subnet: AWS reserves five.
    pub(super) fn free_ips(&self, id: &SubnetId) -> u32 {
        let Some(subnet) = self.subnets.get(id) else {
            return 0;
        };
        if let Some(free) = subnet.free {
            return free;
        }
        let used: usize = self
            .enis
            .values()
            .filter(|eni| eni.subnet == *id)
            .map(|eni| eni.private_ips.len())
            .sum();
        let size = subnet
            .cidr
            .map_or(0, |cidr| 1_u64 << (32 - u32::from(cidr.prefix_len())));
        let free = size.saturating_sub(5).saturating_sub(used as u64);
        u32::try_from(free).unwrap_or(u32::MAX)
    }

    /// Returns a free IPv4 address of a subnet.
    pub(super) fn pick_ip(&self, id: &SubnetId) -> Option<Box<str>> {
        let cidr = self.subnets.get(id)?.cidr?;
        let neighbours = self.enis.values().filter(|eni| eni.subnet == *id);
        let taken: BTreeSet<&str> = neighbours
            .flat_map(|eni| eni.private_ips.iter().map(|ip| &**ip))
            .collect();
        cidr.hosts()
            .skip(3)
            .map(|ip| ip.to_string())
            .find(|ip| !taken.contains(&**ip))
            .map(Into::into)
    }
}
