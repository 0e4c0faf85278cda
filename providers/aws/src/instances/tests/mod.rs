//! Instances of the in-memory AWS.

mod describe;
mod labels;
mod many;
mod store;
mod turns;

use std::{collections::HashMap, sync::Arc, time::Duration};

use ccm_core::{
    k8s::{LabelMap, NodeAddress, NodeView},
    provider::{
        CloudError, ErrorKind, InstanceMetadata, InstanceQuery, InstanceStatus, Instances,
        MetadataScope, Op, PowerState,
    },
    write_gate::WriteGate,
};

use super::{Ec2Instances, InstanceCache};
use crate::{
    api::{Action, InstanceId, ec2::DescribeInstances},
    config::{Limits, Settings},
    fake::{CLUSTER, FakeCluster, InstanceBuilder, REGION},
    ownership_tags::Cluster,
    scope::Scope,
};

const CLUSTER_TAG: &str = "kubernetes.io/cluster/test";

/// A cluster and what asks about it.
struct Fixture {
    world: FakeCluster,
    scope: Scope,
    store: Arc<InstanceCache>,
    instances: Ec2Instances,
    op: Op,
}

impl Fixture {
    fn new(nodes: usize) -> Self {
        Self::with(nodes, Settings::default())
    }

    fn with(nodes: usize, settings: Settings) -> Self {
        let mut world = FakeCluster::small(0);
        for n in 0..nodes {
            // Addresses are given: picking a free one takes long in a large network.
            let (zone, n) = (n % 3, n / 3);
            let ip = format!("10.0.{}.{}", 128 + 16 * zone + n / 200, 10 + n % 200);
            let instance = world
                .aws
                .instance(&world.private[zone])
                .private_ip(ip)
                .group(&world.node_group);
            world
                .nodes
                .push(instance.tag(CLUSTER_TAG, "owned").launch());
        }
        let scope = Scope {
            client: world.aws.client(),
            cluster: Cluster::new(CLUSTER, false),
            region: REGION.into(),
            vpc: world.vpc.clone(),
            settings: Arc::new(settings),
        };
        let store = InstanceCache::new(scope.clone());
        let instances = Ec2Instances::new(scope.clone(), store.clone());
        let op = Op::new(
            "kubernetes",
            tokio_util::sync::CancellationToken::new(),
            WriteGate::always_open(),
        );
        Self { world, scope, store, instances, op }
    }

    /// The same with budgets for its requests.
    fn limited(nodes: usize, limits: &Limits) -> Self {
        let rig = Self::new(nodes);
        let scope = Scope {
            client: rig.world.aws.client().with_limits(limits),
            ..rig.scope
        };
        let store = InstanceCache::new(scope.clone());
        Self {
            instances: Ec2Instances::new(scope.clone(), store.clone()),
            store,
            scope,
            ..rig
        }
    }

    /// Begins an instance of the cluster in zone a.
    fn instance(&self) -> InstanceBuilder {
        self.world
            .aws
            .instance(&self.world.private[0])
            .tag(CLUSTER_TAG, "owned")
    }

    fn calls(&self, action: Action) -> usize {
        self.world.aws.calls(action)
    }

    /// Returns the private DNS names of the nodes' instances. Asking for them counts for nothing.
    async fn names(&self) -> Vec<String> {
        let client = self.world.aws.client();
        let all = client
            .read_all(&self.op, DescribeInstances::default(), |all, token| all.token = Some(token));
        let rows = all.await.unwrap();
        self.world.aws.reset_calls();
        let names: HashMap<_, _> = rows
            .into_iter()
            .map(|row| (row.id, row.private_dns_name.to_string()))
            .collect();
        self.world
            .nodes
            .iter()
            .map(|id| names[id].clone())
            .collect()
    }

    async fn ask(&self, queries: &[InstanceQuery]) -> Vec<Result<InstanceStatus, CloudError>> {
        self.instances.describe(&self.op, queries).await.unwrap()
    }

    async fn ask_one(&self, query: InstanceQuery) -> Result<InstanceStatus, CloudError> {
        self.ask(&[query]).await.remove(0)
    }

    async fn meta(&self, query: InstanceQuery) -> InstanceMetadata {
        match self.ask_one(query).await {
            Ok(InstanceStatus::Found { meta, .. }) => meta,
            other => panic!("{other:?}"),
        }
    }

    async fn error(&self, query: InstanceQuery) -> CloudError {
        self.ask_one(query).await.expect_err("an answer in doubt")
    }
}

fn named(name: &str) -> NodeView {
    NodeView::named(name)
}

fn node(provider_id: impl AsRef<str>) -> NodeView {
    NodeView {
        provider_id: Some(provider_id.as_ref().into()),
        ..named("node")
    }
}

fn node_of(id: &InstanceId) -> NodeView {
    NodeView {
        provider_id: Some(format!("aws:///us-west-2a/{id}").into()),
        ..named(id)
    }
}

fn labelled(mut node: NodeView, labels: &[(&str, &str)]) -> NodeView {
    node.labels = labels.iter().copied().collect::<LabelMap>();
    node
}

fn query(node: NodeView, need: MetadataScope) -> InstanceQuery {
    InstanceQuery { node: Arc::new(node), scope: need, max_age: Duration::ZERO }
}

fn aged(node: NodeView, need: MetadataScope, seconds: u64) -> InstanceQuery {
    InstanceQuery { max_age: Duration::from_secs(seconds), ..query(node, need) }
}

fn power(answer: &Result<InstanceStatus, CloudError>) -> Option<PowerState> {
    match answer.as_ref().expect("an answer") {
        InstanceStatus::Found { power_state: power, .. } => Some(*power),
        InstanceStatus::NotFound => None,
    }
}

fn kinds(addresses: &[NodeAddress]) -> Vec<&'static str> {
    addresses
        .iter()
        .map(|address| address.kind.as_str())
        .collect()
}

fn kind(answer: &Result<InstanceStatus, CloudError>) -> Option<ErrorKind> {
    answer.as_ref().err().map(CloudError::kind)
}
