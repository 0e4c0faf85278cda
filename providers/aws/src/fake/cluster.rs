//! A predefined cluster.

use std::sync::Arc;

use ccm_core::{provider::Op, write_gate::WriteGate};
use tokio_util::sync::CancellationToken;

use super::{FakeAws, REGION};
use crate::{
    api::{InstanceId, RouteTableId, SecurityGroupId, SubnetId, VpcId},
    config::Settings,
    ownership_tags::Cluster,
    scope::Scope,
};

/// ID of the predefined cluster.
pub const CLUSTER: &str = "test";
const CLUSTER_TAG: (&str, &str) = ("kubernetes.io/cluster/test", "owned");

/// A VPC with a cluster: three public and three private subnets, tagged for load balancers and for
/// the cluster, a tagged security group of the nodes, a tagged route table of the private subnets,
/// and nodes spread over the private subnets.
#[derive(Clone)]
pub struct FakeCluster {
    /// The account.
    pub aws: FakeAws,
    /// The VPC, `10.0.0.0/16`.
    pub vpc: VpcId,
    /// Public subnets in zones a, b, c: `10.0.0.0/20`, `10.0.16.0/20`, `10.0.32.0/20`.
    pub public: Vec<SubnetId>,
    /// Private subnets in zones a, b, c: `10.0.128.0/20`, `10.0.144.0/20`, `10.0.160.0/20`.
    pub private: Vec<SubnetId>,
    /// Security group of the nodes.
    pub node_group: SecurityGroupId,
    /// Route table of the cluster.
    pub table: RouteTableId,
    /// Instances of the nodes.
    pub nodes: Vec<InstanceId>,
}

impl FakeCluster {
    /// Creates a cluster with `nodes` nodes.
    pub fn small(nodes: usize) -> Self {
        let aws = FakeAws::new();
        let vpc = aws.vpc("10.0.0.0/16");
        let zones = [("a", 0), ("b", 16), ("c", 32)];
        let subnet = |zone: &str, third: u8, role: &str, public: bool| {
            let cidr = format!("10.0.{third}.0/20");
            let tags = [(role, "1"), CLUSTER_TAG];
            if public {
                aws.public_subnet(&vpc, zone, &cidr, &tags)
            } else {
                aws.subnet(&vpc, zone, &cidr, &tags)
            }
        };
        let public = zones.map(|(zone, third)| subnet(zone, third, "kubernetes.io/role/elb", true));
        let private = zones.map(|(zone, third)| {
            subnet(zone, third + 128, "kubernetes.io/role/internal-elb", false)
        });
        let node_group = aws.security_group(&vpc, "nodes", &[CLUSTER_TAG]);
        let table = aws.route_table(&vpc, &private, &[CLUSTER_TAG]);
        let public = public.to_vec();
        let private = private.to_vec();
        let mut world = Self {
            aws,
            vpc,
            public,
            private,
            node_group,
            table,
            nodes: Vec::new(),
        };
        for _ in 0..nodes {
            world.add_node();
        }
        world.aws.reset_calls();
        world
    }

    /// Returns the provider's scope, with these settings.
    pub fn scope(&self, settings: Settings) -> Scope {
        Scope {
            client: self.aws.client(),
            cluster: Cluster::new(CLUSTER, false),
            region: REGION.into(),
            vpc: self.vpc.clone(),
            settings: Arc::new(settings),
        }
    }

    /// Returns an operation with an open write gate.
    pub fn op(&self) -> Op {
        Op::new(CLUSTER, CancellationToken::new(), WriteGate::always_open())
    }

    /// Adds a node.
    pub fn add_node(&mut self) -> InstanceId {
        let subnet = &self.private[self.nodes.len() % self.private.len()];
        let (key, value) = CLUSTER_TAG;
        let id = self
            .aws
            .instance(subnet)
            .group(&self.node_group)
            .tag(key, value)
            .launch();
        self.nodes.push(id.clone());
        id
    }
}
