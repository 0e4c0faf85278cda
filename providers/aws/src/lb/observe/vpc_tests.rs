use std::sync::Arc;

use ccm_core::write_gate::WriteGate;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    api::{Action, elb::SubnetMapping},
    config::Settings,
    fake::FakeCluster,
    lb::{
        model::{DesiredLoadBalancer, SubnetChoice, SubnetName},
        plan::subnets,
        test_fixtures::desired,
    },
    ownership_tags::Cluster,
};

fn op() -> Op {
    Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
}

fn cache(world: &FakeCluster) -> VpcCache {
    let scope = Scope {
        client: world.aws.client(),
        cluster: Cluster::new("test", false),
        region: "us-west-2".into(),
        vpc: world.vpc.clone(),
        settings: Arc::new(Settings::default()),
    };
    VpcCache::new(scope, Arc::default())
}

async fn choose(
    vpc: &VpcCache,
    op: &Op,
    desired: &DesiredLoadBalancer,
) -> Result<Vec<SubnetMapping>, CloudError> {
    let Scope { cluster, settings, .. } = &vpc.scope;
    vpc.choose(op, |snapshot| subnets::choose(snapshot, cluster, settings, desired))
        .await
}

#[tokio::test(start_paused = true)]
async fn everybody_shares_one_reading_for_five_minutes() {
    let (world, op) = (FakeCluster::small(0), op());
    let vpc = cache(&world);
    let all = futures::future::join_all((0..10).map(|_| vpc.view(&op, MAX_AGE))).await;
    assert_eq!(all[9].as_ref().unwrap().subnets.len(), 6);
    assert_eq!(world.aws.requests(), 3);
    tokio::time::advance(MAX_AGE).await;
    vpc.view(&op, MAX_AGE).await.unwrap();
    // Zones are known.
    assert_eq!(world.aws.requests(), 5);
    vpc.forget();
    vpc.view(&op, MAX_AGE).await.unwrap();
    assert_eq!(world.aws.requests(), 7);
    vpc.view(&op, Duration::ZERO).await.unwrap();
    assert_eq!(world.aws.requests(), 9);
    assert_eq!(world.aws.calls(Action::DescribeAvailabilityZones), 1);
    assert_eq!(world.aws.calls(Action::DescribeVpcs), 0);
}

#[tokio::test(start_paused = true)]
async fn networks_are_those_of_the_vpc() {
    let (world, op) = (FakeCluster::small(0), op());
    world.aws.add_cidr(&world.vpc, "100.64.0.0/16");
    let vpc = cache(&world);
    let expected: Vec<IpNet> = ["10.0.0.0/16", "100.64.0.0/16"]
        .map(|network| network.parse().unwrap())
        .to_vec();
    assert_eq!(*vpc.networks(&op).await.unwrap(), expected);
    vpc.networks(&op).await.unwrap();
    assert_eq!(world.aws.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_subnet_that_was_just_made_is_found() {
    let (world, op) = (FakeCluster::small(0), op());
    let vpc = cache(&world);
    let found = choose(&vpc, &op, &desired()).await.unwrap();
    assert_eq!(
        found
            .iter()
            .map(|mapping| mapping.subnet.clone())
            .collect::<Vec<_>>(),
        world.public
    );
    world
        .aws
        .subnet(&world.vpc, "a", "10.0.200.0/24", &[("Name", "new")]);
    let named = DesiredLoadBalancer {
        subnets: SubnetChoice::Named(vec![SubnetName::Name("new".into())]),
        ..desired()
    };
    assert_eq!(choose(&vpc, &op, &named).await.unwrap().len(), 1);
    world.aws.reset_calls();
    choose(&vpc, &op, &named).await.unwrap();
    assert_eq!(world.aws.requests(), 0);
    let unknown = DesiredLoadBalancer {
        subnets: SubnetChoice::Named(vec![SubnetName::Name("none".into())]),
        ..desired()
    };
    choose(&vpc, &op, &unknown).await.unwrap_err();
    assert_eq!(world.aws.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_error_is_no_empty_vpc() {
    let (world, op) = (FakeCluster::small(0), op());
    let vpc = cache(&world);
    world.aws.deny(Action::DescribeRouteTables);
    assert_eq!(choose(&vpc, &op, &desired()).await.unwrap_err().kind(), ErrorKind::Denied);
    world.aws.clear_faults();
    choose(&vpc, &op, &desired()).await.unwrap();
}
