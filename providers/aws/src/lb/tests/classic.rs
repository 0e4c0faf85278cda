//! Services with a classic load balancer from before.

use ccm_core::{
    k8s::ServiceView,
    provider::{
        BackendKind, LabelRequirement, LoadBalancers, Progress, ReadMode, ServiceInterpretation,
    },
};

use super::fixture::{Fixture, published, service, showing, with};
use crate::{
    api::{Action, ec2::InstanceState},
    config::{DefaultType, Settings},
    lb::names,
};

const HOST: &str = "aweb-123456.us-west-2.elb.amazonaws.com";

#[tokio::test(start_paused = true)]
async fn a_classic_balancer_keeps_its_nodes_and_gets_no_network_balancer_beside_it() {
    let rig = Fixture::new(3);
    let web = showing(&service("web", &[80]), HOST);
    let name = names::load_balancer(&web.uid);
    let members = [rig.world.nodes[0].clone()];
    rig.aws.classic(
        &name,
        &[rig.world.node_group.clone()],
        &members,
        &[("kubernetes.io/cluster/test", "owned")],
    );
    let outcome = rig.ensure(&web, ReadMode::Fresh).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    assert_eq!(outcome.status, None, "its status stays");
    assert_eq!(rig.aws.classics()[0].instances.len(), 3);
    assert_eq!(rig.aws.load_balancers(), []);
    assert_eq!(rig.reasons(), ["ClassicLoadBalancer"]);
    assert_eq!(rig.plan(&web).await.unwrap(), []);
    rig.remove(&web).await;
    assert_eq!(rig.aws.classics(), []);
}

// What upstream served says nothing of a type, or one that is not made here. Nothing is configured
// as in upstream's file.
#[tokio::test(start_paused = true)]
async fn a_classic_balancer_is_looked_after_although_no_type_is_configured() {
    for web in [service("web", &[80]), with(service("web", &[80]), "type", "clb")] {
        let mut rig = Fixture::configured(
            3,
            Settings { default_type: DefaultType::Unset, ..Settings::default() },
        );
        let says = format!("{:?}", web.annotations);
        assert!(
            matches!(rig.balancers.interpret(&web), ServiceInterpretation::Invalid(_)),
            "{says}: a new one is not made"
        );
        let web = showing(&web, HOST);
        assert!(
            matches!(rig.balancers.interpret(&web), ServiceInterpretation::Valid { .. }),
            "{says}"
        );
        let (name, nodes) = (names::load_balancer(&web.uid), rig.world.nodes.clone());
        let tags = [("kubernetes.io/cluster/test", "owned")];
        rig.aws
            .classic(&name, &[rig.world.node_group.clone()], &nodes[..1], &tags);

        let outcome = rig.ensure(&web, ReadMode::Fresh).await;
        assert!(matches!(outcome.result, Ok(Progress::Done)), "{says}: {outcome:?}");
        assert_eq!(rig.aws.classics()[0].instances, nodes, "{says}: nodes joined");
        assert_eq!(rig.reasons(), ["ClassicLoadBalancer"], "{says}");
        rig.nodes.pop();
        let outcome = rig.update(&web).await;
        assert!(matches!(outcome.result, Ok(Progress::Done)), "{says}: {outcome:?}");
        assert_eq!(rig.aws.classics()[0].instances, nodes[..2], "{says}: a node left");
        assert_eq!(rig.plan(&web).await.unwrap(), [], "{says}");
        assert_eq!(rig.aws.load_balancers(), [], "{says}: no network load balancer beside it");
        rig.remove(&web).await;
        assert_eq!(rig.aws.classics(), [], "{says}: it goes with its Service");
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreign_classic_balancer_is_left_alone() {
    let rig = Fixture::new(1);
    let web = showing(&service("web", &[80]), HOST);
    rig.aws
        .classic(&names::load_balancer(&web.uid), &[rig.world.node_group.clone()], &[], &[]);
    assert!(rig.ensure(&web, ReadMode::Fresh).await.result.is_err());
    rig.remove(&web).await;
    assert_eq!(rig.aws.classics().len(), 1);
    assert_eq!(rig.aws.load_balancers(), []);
}

#[tokio::test(start_paused = true)]
async fn a_network_balancer_with_a_classic_name_is_what_it_is() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let status = rig.settle(&web).await;
    let rig = rig.restart();
    rig.aws.reset_calls();
    let web = published(&web, &status);
    assert!(matches!(rig.ensure(&web, ReadMode::Fresh).await.result, Ok(Progress::Done)));
    assert_eq!(rig.aws.writes(), 0);
    assert_eq!(rig.aws.calls(Action::DescribeClassic), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_member_of_a_classic_balancer_stays_and_another_one_waits() {
    let rig = Fixture::new(3);
    let web = showing(&service("web", &[80]), HOST);
    let name = names::load_balancer(&web.uid);
    let members = [rig.world.nodes[0].clone()];
    rig.aws.classic(
        &name,
        &[rig.world.node_group.clone()],
        &members,
        &[("kubernetes.io/cluster/test", "owned")],
    );
    rig.aws
        .set_state(&rig.world.nodes[0], InstanceState::Stopped);
    rig.aws
        .set_state(&rig.world.nodes[1], InstanceState::Stopped);
    rig.warm().await;
    assert!(matches!(rig.update(&web).await.result, Ok(Progress::Pending { .. })));
    let has = rig.aws.classics()[0].instances.clone();
    assert_eq!(has, [rig.world.nodes[0].clone(), rig.world.nodes[2].clone()]);
}

// A Service of upstream's has no type annotation and says all the same which nodes are members.
#[test]
fn a_service_that_is_refused_chooses_the_members_of_its_classic_balancer() {
    let rig = Fixture::new(1);
    let web = showing(&with(service("web", &[80]), "type", "clb"), HOST);
    let claim = |service: &ServiceView| match rig.balancers.interpret(service) {
        ServiceInterpretation::Valid { backends, digest } => (backends, digest),
        other => panic!("{other:?}"),
    };
    let (all, before) = claim(&web);
    assert_eq!(all, BackendKind::Nodes(Vec::new()));
    let (chosen, after) = claim(&with(web, "target-node-labels", "role=web,edge="));
    let wanted = [
        LabelRequirement::Equals("role".into(), "web".into()),
        LabelRequirement::Exists("edge".into()),
    ];
    let BackendKind::Nodes(mut chosen) = chosen else {
        panic!("{chosen:?}")
    };
    chosen.sort_by_key(|requirement| matches!(requirement, LabelRequirement::Exists(_)));
    assert_eq!(chosen, wanted);
    assert_ne!(before, after);
}
