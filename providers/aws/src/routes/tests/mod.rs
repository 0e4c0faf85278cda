//! Routes on the in-memory AWS.

mod changes;
mod discovery;
mod properties;
mod turns;

use std::{sync::Arc, time::Duration};

use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, ErrorKind, Op, Progress, Route, RouteChange, Routes},
    write_gate::WriteGate,
};
use ipnet::IpNet;
use tokio_util::sync::CancellationToken;

use super::Ec2Routes;
use crate::{
    api::{
        Action, InstanceId, RouteTableId,
        ec2::{self, RouteTarget},
    },
    client::Client,
    config::Settings,
    fake::{FakeCluster, Interface},
    instances::InstanceCache,
    ownership_tags::Cluster,
    scope::Scope,
};

/// A cluster whose routes are looked after, as the route controller does.
struct Fixture {
    world: FakeCluster,
    routes: Ec2Routes,
    op: Op,
    nodes: Vec<Arc<NodeView>>,
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn pod_cidr(i: usize) -> IpNet {
    net(&format!("100.64.{i}.0/24"))
}

fn node(name: &str, id: &InstanceId, cidrs: &[IpNet]) -> Arc<NodeView> {
    Arc::new(NodeView {
        provider_id: Some(format!("aws:///us-west-2a/{id}").into()),
        pod_cidrs: cidrs.iter().map(|cidr| cidr.to_string().into()).collect(),
        ..NodeView::named(name)
    })
}

impl Fixture {
    fn new(nodes: usize) -> Self {
        Self::with(FakeCluster::small(nodes), Settings::default())
    }

    fn with(world: FakeCluster, settings: Settings) -> Self {
        Self::of(world, settings, Cluster::new("test", false))
    }

    fn of(world: FakeCluster, settings: Settings, cluster: Cluster) -> Self {
        let client = world.aws.client();
        Self::through(client, world, settings, cluster)
    }

    fn through(client: Client, world: FakeCluster, settings: Settings, cluster: Cluster) -> Self {
        let scope = Scope {
            client,
            cluster,
            region: "us-west-2".into(),
            vpc: world.vpc.clone(),
            settings: Arc::new(settings),
        };
        let routes = Ec2Routes::new(scope.clone(), InstanceCache::new(scope));
        let op = Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open());
        let mut rig = Self { world, routes, op, nodes: Vec::new() };
        rig.nodes = (0..rig.world.nodes.len()).map(|i| rig.node(i)).collect();
        rig
    }

    fn node(&self, i: usize) -> Arc<NodeView> {
        node(&format!("n{i}"), &self.world.nodes[i], &[pod_cidr(i)])
    }

    async fn list(&self) -> Result<Vec<Route>, CloudError> {
        self.routes.list(&self.op, &self.nodes).await
    }

    /// Applies changes. One that is pending is a transient error.
    async fn apply(&self, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        let answers = self.routes.apply(&self.op, changes).await;
        let done = |progress| match progress {
            Progress::Done => Ok(()),
            Progress::Pending { reason, .. } => Err(CloudError::transient(reason)),
        };
        answers
            .into_iter()
            .map(|answer| answer.and_then(done))
            .collect()
    }

    /// Creates the route of a node.
    async fn create(&self, i: usize) -> Result<(), CloudError> {
        let node = self.nodes[i].clone();
        self.apply(&[RouteChange::Create { node, destination: pod_cidr(i) }])
            .await
            .remove(0)
    }

    async fn delete(&self, route: &Route) -> Result<(), CloudError> {
        self.apply(&[RouteChange::Delete(route.clone())])
            .await
            .remove(0)
    }

    /// One pass: what no node wants goes, what is missing is created. Returns how many changes
    /// there were.
    async fn pass(&self) -> Result<usize, CloudError> {
        let cluster = [net("100.64.0.0/10"), net("fd00::/48")];
        let listed = self.list().await?;
        let wanted = |route: &Route| {
            self.nodes.iter().find(|node| {
                node.pod_cidrs
                    .iter()
                    .any(|cidr| net(cidr) == route.destination)
            })
        };
        let is_good = |route: &&Route| {
            !route.blackhole
                && wanted(route).is_some_and(|node| route.node.as_ref() == Some(&node.name))
        };
        let ours = |route: &&Route| {
            cluster
                .iter()
                .any(|network| network.contains(&route.destination))
        };
        let deletes = listed
            .iter()
            .filter(ours)
            .filter(|route| !is_good(route))
            .cloned()
            .map(RouteChange::Delete);
        let mut creates = Vec::new();
        for node in &self.nodes {
            for cidr in &node.pod_cidrs {
                if !listed
                    .iter()
                    .filter(is_good)
                    .any(|route| route.destination == net(cidr))
                {
                    creates
                        .push(RouteChange::Create { node: node.clone(), destination: net(cidr) });
                }
            }
        }
        let (deletes, creates) = (deletes.collect::<Vec<_>>(), creates);
        for changes in [&deletes, &creates] {
            self.apply(changes)
                .await
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?;
        }
        Ok(deletes.len() + creates.len())
    }

    /// Shows the routes of the cluster's table, as `destination target`, without those to gateways.
    fn shown(&self) -> Vec<String> {
        self.shown_in(&self.world.table)
    }

    fn shown_in(&self, table: &RouteTableId) -> Vec<String> {
        let routes = self
            .world
            .aws
            .routes(table)
            .into_iter()
            .filter(|route| route.gateway.is_none());
        let mut shown: Vec<_> = routes
            .map(|route| {
                let mark = if route.blackhole { "!" } else { "" };
                let to = route.instance.map_or("?".to_owned(), |id| id.to_string());
                format!("{} {mark}{to}", route.destination.unwrap())
            })
            .collect();
        shown.sort();
        shown
    }

    fn calls(&self, actions: &[Action]) -> Vec<usize> {
        actions
            .iter()
            .map(|action| self.world.aws.calls(*action))
            .collect()
    }
}

/// A route that somebody else makes.
async fn foreign_route(rig: &Fixture, destination: IpNet, to: &InstanceId) {
    let target = RouteTarget::Instance(to.clone());
    let request = ec2::CreateRoute { table: rig.world.table.clone(), destination, target };
    rig.world.aws.ask(request).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pass_reads_the_tables_once_and_the_next_one_changes_nothing() {
    let rig = Fixture::new(5);
    assert_eq!(rig.pass().await.unwrap(), 5);
    let actions = [
        Action::DescribeRouteTables,
        Action::DescribeInstances,
        Action::ModifyInstanceAttribute,
        Action::CreateRoute,
        Action::ReplaceRoute,
    ];
    assert_eq!(rig.calls(&actions), [1, 1, 5, 5, 0]);
    assert_eq!(rig.shown().len(), 5);
    for id in &rig.world.nodes {
        assert_eq!(rig.world.aws.source_dest_check(id), Some(false));
    }
    rig.world.aws.reset_calls();
    assert_eq!(rig.pass().await.unwrap(), 0);
    assert_eq!(rig.world.aws.actions(), [Action::DescribeRouteTables]);
}

#[tokio::test(start_paused = true)]
async fn routes_of_nodes_that_are_gone_go_and_their_networks_can_be_used_again() {
    let mut rig = Fixture::new(3);
    rig.pass().await.unwrap();
    rig.world.aws.forget_instance(&rig.world.nodes[0]);
    rig.world.aws.terminate(&rig.world.nodes[1]);
    rig.nodes.drain(..2);
    let id = rig.world.add_node();
    rig.nodes.push(node("new", &id, &[pod_cidr(1)]));
    assert_eq!(rig.pass().await.unwrap(), 3);
    let expected = [format!("100.64.1.0/24 {id}"), format!("100.64.2.0/24 {}", rig.world.nodes[2])];
    assert_eq!(rig.shown(), expected);
    assert_eq!(rig.pass().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn ipv6_networks_have_routes_too() {
    let mut rig = Fixture::new(1);
    rig.nodes[0] = node("n0", &rig.world.nodes[0], &[pod_cidr(0), net("fd00:0:0:1::/64")]);
    assert_eq!(rig.pass().await.unwrap(), 2);
    assert_eq!(rig.shown().len(), 2);
    assert_eq!(rig.calls(&[Action::ModifyInstanceAttribute]), [1]);
    assert_eq!(rig.pass().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_missing_node_object_does_not_fail_the_list() {
    let mut rig = Fixture::new(2);
    rig.pass().await.unwrap();
    rig.nodes.pop();
    let listed = rig.list().await.unwrap();
    let nodes: Vec<_> = listed.iter().map(|route| route.node.as_deref()).collect();
    assert_eq!(nodes, [Some("n0"), None]);
}
