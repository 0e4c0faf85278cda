//! Services with a classic load balancer from before.

use ccm_core::provider::{Claim, Depth, LoadBalancers, Progress};

use super::rig::{Rig, published, service, showing, with};
use crate::{
    api::Action,
    config::{DefaultType, Settings},
    lb::names,
};

const HOST: &str = "aweb-123456.us-west-2.elb.amazonaws.com";

#[tokio::test(start_paused = true)]
async fn a_classic_balancer_keeps_its_nodes_and_gets_no_network_balancer_beside_it() {
    let rig = Rig::new(3);
    let web = showing(&service("web", &[80]), HOST);
    let name = names::load_balancer(&web.uid);
    let members = [rig.world.nodes[0].clone()];
    rig.aws.classic(&name, &[rig.world.node_group.clone()], &members, &[("kubernetes.io/cluster/test", "owned")]);
    let outcome = rig.ensure(&web, Depth::Verify).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    assert_eq!(outcome.status, None, "its status stays");
    assert_eq!(rig.aws.classics()[0].instances.len(), 3);
    assert_eq!(rig.aws.load_balancers(), []);
    assert_eq!(rig.reasons(), ["ClassicLoadBalancer"]);
    assert_eq!(rig.plan(&web).await.unwrap(), []);
    rig.remove(&web).await;
    assert_eq!(rig.aws.classics(), []);
}

#[tokio::test(start_paused = true)]
async fn a_classic_balancer_is_looked_after_although_no_type_is_configured() {
    let mut rig = Rig::new(2);
    let web = showing(&with(service("web", &[80]), "type", "clb"), HOST);
    assert!(matches!(rig.balancers.interpret(&web), Claim::Ours { .. }));
    rig.nodes.pop();
    let name = names::load_balancer(&web.uid);
    let tags = [("kubernetes.io/cluster/test", "owned")];
    rig.aws.classic(&name, &[rig.world.node_group.clone()], &rig.world.nodes.clone(), &tags);
    assert!(matches!(rig.update(&web).await.result, Ok(Progress::Done)));
    assert_eq!(rig.aws.classics()[0].instances.len(), 1);
    let _ = (Settings::default(), DefaultType::Unset);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_classic_balancer_is_left_alone() {
    let rig = Rig::new(1);
    let web = showing(&service("web", &[80]), HOST);
    rig.aws.classic(&names::load_balancer(&web.uid), &[rig.world.node_group.clone()], &[], &[]);
    assert!(rig.ensure(&web, Depth::Verify).await.result.is_err());
    rig.remove(&web).await;
    assert_eq!(rig.aws.classics().len(), 1);
    assert_eq!(rig.aws.load_balancers(), []);
}

#[tokio::test(start_paused = true)]
async fn a_network_balancer_with_a_classic_name_is_what_it_is() {
    let rig = Rig::new(1);
    let web = service("web", &[80]);
    let status = rig.settle(&web).await;
    let rig = rig.restart();
    rig.aws.reset_calls();
    let web = published(&web, &status);
    assert!(matches!(rig.ensure(&web, Depth::Verify).await.result, Ok(Progress::Done)));
    assert_eq!(rig.aws.writes(), 0);
    assert_eq!(rig.aws.calls(Action::DescribeClassic), 0);
}
