//! Load balancers of the cloud as the kit sees them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use ccm_aws::{
    api::{
        LoadBalancerArn, Tags,
        ec2::{DescribeSecurityGroups, Rule, RuleSource, SecurityGroup},
        elb::{
            CreateLoadBalancer, DeleteListener, DeregisterTargets, DescribeLoadBalancers,
            ElbProtocol, IpAddressType, Listener, LoadBalancer, Scheme, SubnetMapping, TargetGroup,
            TargetType,
        },
    },
    lb::{names, spec::annotations::PREFIX},
};
use ccm_core::{
    k8s::{IpFamily, Protocol, ServiceView},
    provider::CloudProvider,
};
use ccm_testkit::conformance::{AllowedSources, CloudLoadBalancer, LoadBalancerCloud};

use super::{AwsAdapter, account::THEIRS, inspect::AccountInspector};

/// Beginning of the descriptions of rules that let health checks in, which come from the load
/// balancer itself.
const HEALTH: &str = "kubernetes.io/rule/nlb/health=";

fn annotated(mut service: ServiceView, suffix: &str, value: &str) -> ServiceView {
    service
        .annotations
        .insert(format!("{PREFIX}{suffix}").into(), value.into());
    service
}

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter()
        .map(|(suffix, value)| (format!("{PREFIX}{suffix}"), (*value).to_owned()))
        .collect()
}

#[async_trait]
impl LoadBalancerCloud for AwsAdapter {
    async fn load_balancers(&self) -> anyhow::Result<Vec<CloudLoadBalancer>> {
        let look = self.inspect();
        let found = look.balancers().await?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let groups = look.groups().await?;
        let firewalls = look.ask(DescribeSecurityGroups::default()).await?.items;
        let mut shown = Vec::new();
        for balancer in found {
            let listeners = look.listeners(&balancer).await?;
            let view = View { balancer: &balancer, listeners: &listeners, groups: &groups };
            shown.push(CloudLoadBalancer {
                id: balancer.arn.to_string(),
                ports: listeners.iter().flat_map(ports).collect(),
                members: self.members(&look, &view).await?,
                clients: view.clients(&firewalls, &self.place().group),
                addresses: [balancer.dns_name.to_string()].into(),
            });
        }
        Ok(shown)
    }

    async fn objects(&self) -> anyhow::Result<BTreeMap<String, String>> {
        self.inspect().objects().await
    }

    /// Each takes several of the 60 rules that a group of nodes may have. In memory there may be
    /// more, and more balancers than a request for tags can name.
    fn many(&self) -> usize {
        if self.ground.stride() == 1 { 24 } else { 12 }
    }

    fn wish(&self, mut service: ServiceView) -> ServiceView {
        if service.ip_families.contains(&IpFamily::V6) {
            service = annotated(service, "ip-address-type", "dualstack");
        }
        if !service.allocate_node_ports {
            service = annotated(service, "nlb-target-type", "ip");
        }
        service
    }

    /// One name leads to addresses of both families.
    async fn serves_both_families(&self, balancer: &CloudLoadBalancer) -> anyhow::Result<bool> {
        let arns = vec![LoadBalancerArn::from(balancer.id.as_str())];
        let found = self
            .inspect()
            .ask(DescribeLoadBalancers { arns, ..Default::default() })
            .await?
            .items;
        Ok(found
            .iter()
            .any(|balancer| balancer.ip_address_type == Some(IpAddressType::Dualstack)))
    }

    fn settings(&self) -> Vec<(String, String)> {
        pairs(&[
            ("cross-zone-load-balancing-enabled", "true"),
            ("healthcheck-interval", "15"),
            ("healthcheck-path", "/ready"),
            ("target-group-attributes", "deregistration_delay.timeout_seconds=20"),
            ("additional-resource-tags", "team=conformance"),
            ("proxy-protocol", "*"),
            ("ip-address-type", "dualstack"),
        ])
    }

    fn endpoint_service(&self, plain: ServiceView) -> Option<ServiceView> {
        Some(annotated(plain, "nlb-target-type", "ip"))
    }

    fn bad_annotations(&self) -> Vec<(String, String)> {
        pairs(&[
            ("type", "nlb2"),
            ("scheme", "secret"),
            ("nlb-target-type", "pod"),
            ("cross-zone-load-balancing-enabled", "perhaps"),
            ("healthcheck-interval", "soon"),
            ("ip-address-type", "ipv5"),
        ])
    }

    async fn other_cluster(&self) -> anyhow::Result<Option<Arc<dyn CloudProvider>>> {
        self.provider(THEIRS).await.map(Some)
    }

    async fn add_foreign(&self, service: &ServiceView) -> anyhow::Result<bool> {
        let subnet = self.place().public[0].clone();
        let made = CreateLoadBalancer {
            name: names::load_balancer(&service.uid),
            scheme: Scheme::InternetFacing,
            ip_address_type: IpAddressType::Ipv4,
            subnets: vec![SubnetMapping {
                subnet,
                allocation: None,
                private_ipv4: None,
                ipv6: None,
                source_nat_prefix: None,
            }],
            security_groups: Vec::new(),
            ipv6_source_nat: None,
            tags: Tags::from([("made-by".into(), "hand".into())]),
        };
        self.inspect().ask(made).await?;
        Ok(true)
    }

    async fn damage(&self, id: &str) -> anyhow::Result<bool> {
        let look = self.inspect();
        let arn = LoadBalancerArn::from(id);
        for group in look
            .groups()
            .await?
            .into_iter()
            .filter(|group| group.load_balancers.contains(&arn))
        {
            let targets = look
                .targets(&group)
                .await?
                .into_iter()
                .map(|health| health.target)
                .collect();
            look.ask(DeregisterTargets { arn: group.arn, targets })
                .await?;
        }
        let damaged = look
            .balancers()
            .await?
            .into_iter()
            .find(|balancer| balancer.arn == arn);
        let damaged = damaged.ok_or_else(|| anyhow::anyhow!("there is no load balancer {id}"))?;
        for listener in look.listeners(&damaged).await? {
            look.ask(DeleteListener { arn: listener.arn }).await?;
        }
        Ok(true)
    }

    async fn activate_after(&self, time: Duration) -> anyhow::Result<bool> {
        Ok(self.ground.activate_after(time).await)
    }
}

impl AwsAdapter {
    /// Returns the nodes that get traffic. One that does not get that of every port is not shown as
    /// one that does.
    async fn members(
        &self,
        look: &AccountInspector,
        view: &View<'_>,
    ) -> anyhow::Result<BTreeSet<String>> {
        let names = self.names();
        let mut ports: BTreeMap<String, BTreeSet<u16>> = BTreeMap::new();
        for listener in view.listeners {
            let Some(group) = view.group(listener) else {
                continue;
            };
            for health in look.targets(group).await? {
                let node = names
                    .get(&*health.target.id)
                    .cloned()
                    .unwrap_or_else(|| health.target.id.to_string());
                ports.entry(node).or_default().insert(listener.port);
            }
        }
        let all = view
            .listeners
            .iter()
            .map(|listener| listener.port)
            .collect::<BTreeSet<_>>();
        let shown = |(node, at): (String, BTreeSet<u16>)| {
            if at == all {
                node
            } else {
                format!("{node} at {at:?}")
            }
        };
        Ok(ports.into_iter().map(shown).collect())
    }
}

/// A load balancer with what belongs to it.
struct View<'a> {
    balancer: &'a LoadBalancer,
    listeners: &'a [Listener],
    groups: &'a [TargetGroup],
}

impl View<'_> {
    fn group(&self, listener: &Listener) -> Option<&TargetGroup> {
        self.groups
            .iter()
            .find(|group| Some(&group.arn) == listener.target_group.as_ref())
    }

    /// Tells who may connect: by its own groups if it has some, by those of the nodes otherwise.
    fn clients(&self, firewalls: &[SecurityGroup], nodes: &str) -> AllowedSources {
        let own = &self.balancer.security_groups;
        let guard = |group: &&SecurityGroup| {
            if own.is_empty() {
                *group.id == *nodes
            } else {
                own.contains(&group.id)
            }
        };
        let rules = firewalls
            .iter()
            .filter(guard)
            .flat_map(|group| &group.ingress);
        let doors = self.doors();
        let open = rules.filter(|rule| {
            !rule.description.starts_with(HEALTH) && doors.iter().any(|door| opens(rule, *door))
        });
        let networks = open.filter_map(|rule| match &rule.source {
            RuleSource::Cidr(network) => Some(*network),
            RuleSource::Group(..) | RuleSource::PrefixList(_) => None,
        });
        AllowedSources::Only(networks.collect())
    }

    /// Returns the ports that are guarded: those that it listens on, or those of its targets.
    fn doors(&self) -> BTreeSet<(Protocol, u16)> {
        if !self.balancer.security_groups.is_empty() {
            return self.listeners.iter().flat_map(ports).collect();
        }
        let targets = self
            .listeners
            .iter()
            .filter_map(|listener| Some((listener, self.group(listener)?)));
        let of_nodes = targets.filter(|(_, group)| group.target_type == Some(TargetType::Instance));
        of_nodes
            .flat_map(|(listener, group)| {
                ports(listener).map(|(protocol, _)| (protocol, group.port))
            })
            .collect()
    }
}

fn ports(listener: &Listener) -> impl Iterator<Item = (Protocol, u16)> {
    let protocols: &[Protocol] = match listener.protocol {
        Some(ElbProtocol::Udp) => &[Protocol::Udp],
        Some(ElbProtocol::TcpUdp) => &[Protocol::Tcp, Protocol::Udp],
        Some(ElbProtocol::Tcp | ElbProtocol::Tls) | None => &[Protocol::Tcp],
    };
    let port = listener.port;
    protocols.iter().map(move |protocol| (*protocol, port))
}

fn opens(rule: &Rule, (protocol, port): (Protocol, u16)) -> bool {
    let name = match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => return false,
    };
    let in_range = rule
        .ports
        .is_none_or(|(from, to)| (from..=to).contains(&i32::from(port)));
    (&*rule.protocol == "-1" || &*rule.protocol == name) && in_range
}
