mod cache;
mod managed_groups;
mod nodes;
mod removal;

use std::sync::Arc;

use ccm_core::{
    provider::{Op, Progress},
    write_gate::WriteGate,
};
use tokio_util::sync::CancellationToken;

use super::{super::test_fixtures, *};
use crate::{
    api::{
        LoadBalancerArn, SubnetId,
        ec2::{
            AuthorizeSecurityGroupIngress, DescribeSecurityGroups, RevokeSecurityGroupIngress,
            RuleSource,
        },
        elb::{CreateLoadBalancer, DeleteLoadBalancer, SubnetMapping},
    },
    config::Settings,
    fake::FakeCluster,
    lb::{
        model::{DesiredListener, NodeRuleSource, SecurityGroupChoice as Choice},
        targets::pods::NO_POD_TARGETS,
    },
    ownership_tags::Cluster,
};

/// A cluster in the in-memory AWS, with the part under test.
pub(super) struct Case {
    pub(super) world: FakeCluster,
    pub(super) part: SecurityGroupManager,
    pub(super) op: Op,
    subnets: Vec<Subnet>,
}

pub(super) fn op() -> Op {
    Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
}

pub(super) fn part(world: &FakeCluster, settings: Settings) -> SecurityGroupManager {
    let scope = Scope {
        client: world.aws.client(),
        cluster: Cluster::new(crate::fake::CLUSTER, false),
        region: "us-west-2".into(),
        vpc: world.vpc.clone(),
        settings: Arc::new(settings),
    };
    let (store, sweeps) =
        (InstanceCache::new(scope.clone()), Arc::new(ListingCache::new(scope.clone())));
    SecurityGroupManager::new(scope, store, sweeps)
}

impl Case {
    pub(super) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(super) fn with(settings: Settings) -> Self {
        let world = FakeCluster::small(3);
        let subnet = |id: &SubnetId, cidr: &str| {
            test_fixtures::with_v4(test_fixtures::subnet(id, "us-west-2a", &[]), cidr)
        };
        let subnets =
            vec![subnet(&world.public[0], "10.0.0.0/20"), subnet(&world.public[1], "10.0.16.0/20")];
        Self { part: part(&world, settings), world, op: op(), subnets }
    }

    /// The same world after a restart.
    pub(super) fn restart(&mut self, settings: Settings) {
        self.part = part(&self.world, settings);
    }

    pub(super) fn exposure<'a>(
        &'a self,
        wanted: &'a DesiredLoadBalancer,
        lb_groups: &'a [SecurityGroupId],
    ) -> RuleRequest<'a> {
        let instances = &self.world.nodes;
        RuleRequest {
            desired: wanted,
            lb_name: &wanted.name,
            lb_groups,
            subnets: &self.subnets,
            instances,
            pods: &NO_POD_TARGETS,
            is_comparison: false,
        }
    }

    /// Everything that a reconcile does.
    pub(super) async fn ensure(
        &self,
        wanted: &DesiredLoadBalancer,
        existing: Option<&[SecurityGroupId]>,
    ) -> Result<Vec<SecurityGroupId>, CloudError> {
        let groups = self
            .part
            .ensure_frontend_groups(&self.op, wanted, existing)
            .await?;
        let e = self.exposure(wanted, &groups);
        self.part.add_rules(&self.op, &e).await?;
        self.part.remove_rules(&self.op, &e).await?;
        Ok(groups)
    }

    /// What a reconcile does about nodes when the load balancer has these groups.
    pub(super) async fn ensure_by(&self, wanted: &DesiredLoadBalancer, groups: &[SecurityGroupId]) {
        let e = self.exposure(wanted, groups);
        self.part.add_rules(&self.op, &e).await.unwrap();
        self.part.remove_rules(&self.op, &e).await.unwrap();
    }

    pub(super) async fn plan(
        &self,
        wanted: &DesiredLoadBalancer,
        lb_groups: &[SecurityGroupId],
    ) -> Vec<String> {
        let planned = self
            .part
            .plan_rules(&self.op, &self.exposure(wanted, lb_groups))
            .await
            .unwrap();
        planned
            .iter()
            .map(|change| format!("{} {}: {}", change.operation, change.object, change.reason))
            .collect()
    }

    /// Rules of a group as `protocol ports source description`, without the common start of
    /// descriptions.
    pub(super) async fn rules(&self, id: &SecurityGroupId) -> Vec<String> {
        let show = |rule: &Rule| {
            let (from, to) = rule.ports.unwrap_or((-1, -1));
            let source = match &rule.source {
                RuleSource::Cidr(network) => network.to_string(),
                RuleSource::Group(id, _) => id.to_string(),
                RuleSource::PrefixList(id) => id.to_string(),
            };
            let description = rule
                .description
                .trim_start_matches("kubernetes.io/rule/nlb/");
            format!("{} {from}-{to} {source} {description}", rule.protocol)
                .trim_end()
                .to_owned()
        };
        self.group(id)
            .await
            .unwrap()
            .ingress
            .iter()
            .map(show)
            .collect()
    }

    pub(super) async fn group(&self, id: &SecurityGroupId) -> Option<SecurityGroup> {
        let request = DescribeSecurityGroups::default();
        let all = self.world.aws.client().read(&op(), request).await.unwrap();
        all.items.into_iter().find(|group| group.id == *id)
    }

    /// Adds rules as somebody else would.
    pub(super) async fn authorize(&self, id: &SecurityGroupId, rules: &[Rule]) {
        let request = AuthorizeSecurityGroupIngress { id: id.clone(), rules: rules.to_vec() };
        self.world
            .aws
            .client()
            .write(&op(), request, "")
            .await
            .unwrap();
    }

    /// Takes rules away as somebody else would.
    pub(super) async fn revoke(&self, id: &SecurityGroupId, rules: &[Rule]) {
        let request = RevokeSecurityGroupIngress { id: id.clone(), rules: rules.to_vec() };
        self.world
            .aws
            .client()
            .write(&op(), request, "")
            .await
            .unwrap();
    }

    pub(super) async fn create_balancer(
        &self,
        name: &str,
        groups: &[SecurityGroupId],
    ) -> LoadBalancerArn {
        let mapping = SubnetMapping {
            subnet: self.world.public[0].clone(),
            allocation: None,
            private_ipv4: None,
            ipv6: None,
            source_nat_prefix: None,
        };
        let request = CreateLoadBalancer {
            name: name.into(),
            scheme: crate::api::elb::Scheme::InternetFacing,
            ip_address_type: crate::api::elb::IpAddressType::Ipv4,
            subnets: vec![mapping],
            security_groups: groups.to_vec(),
            ipv6_source_nat: None,
            tags: BTreeMap::new(),
        };
        self.world
            .aws
            .client()
            .write(&op(), request, "")
            .await
            .unwrap()
            .arn
    }

    pub(super) async fn delete_balancer(&self, arn: LoadBalancerArn) {
        self.world
            .aws
            .client()
            .write(&op(), DeleteLoadBalancer { arn }, "")
            .await
            .unwrap();
    }

    /// How many requests were sent since the last time this was asked.
    pub(super) fn requests(&self) -> usize {
        let count = self.world.aws.requests();
        self.world.aws.reset_calls();
        count
    }
}

/// What the `n`th Service wants.
pub(super) fn nth(n: u16) -> DesiredLoadBalancer {
    let mut wanted = test_fixtures::desired();
    wanted.owner.name = format!("web-{n}").into();
    wanted.owner.uid = format!("uid-{n}").into();
    wanted.name = format!("a{n}").into();
    wanted.listeners = vec![listener(30000 + n)];
    wanted
}

pub(super) fn listener(node_port: u16) -> DesiredListener {
    test_fixtures::listener(80, node_port, crate::api::elb::ElbProtocol::Tcp)
}

pub(super) fn managed(wanted: DesiredLoadBalancer) -> DesiredLoadBalancer {
    with_groups(wanted, Choice::Managed)
}

/// Nodes admit it by its group.
pub(super) fn by_group(mut wanted: DesiredLoadBalancer) -> DesiredLoadBalancer {
    wanted.security.node_rules = NodeRuleSource::Group;
    wanted
}

pub(super) fn with_groups(mut wanted: DesiredLoadBalancer, groups: Choice) -> DesiredLoadBalancer {
    wanted.security.manage_backend_rules = !matches!(groups, Choice::Given(_));
    wanted.security.groups = groups;
    wanted
}

pub(super) fn from(wanted: DesiredLoadBalancer, networks: &[&str]) -> DesiredLoadBalancer {
    DesiredLoadBalancer {
        sources: networks
            .iter()
            .map(|network| network.parse().unwrap())
            .collect(),
        ..wanted
    }
}

pub(super) fn rule(port: i32, network: &str, description: &str) -> Rule {
    let source = RuleSource::Cidr(network.parse().unwrap());
    Rule {
        protocol: "tcp".into(),
        ports: Some((port, port)),
        source,
        description: description.into(),
    }
}
