use std::sync::Arc;

use ccm_core::write_gate::WriteGate;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    api::{
        Action, Call,
        ec2::{AuthorizeSecurityGroupIngress, Rule, RuleSource},
    },
    config::Settings,
    fake::FakeCluster,
    ownership_tags::Cluster,
};

const UID: &str = "12345678-1234-1234-1234-123456789abc";
const OWNED: (&str, &str) = ("kubernetes.io/cluster/test", "owned");

struct Case {
    world: FakeCluster,
    classic: ClassicLoadBalancers,
    op: Op,
}

impl Case {
    fn new() -> Self {
        Self::of(3)
    }

    fn of(nodes: usize) -> Self {
        let world = FakeCluster::small(nodes);
        let classic = ClassicLoadBalancers::new(Scope {
            client: world.aws.client(),
            cluster: Cluster::new("test", false),
            region: "us-west-2".into(),
            vpc: world.vpc.clone(),
            settings: Arc::new(Settings::default()),
        });
        Self {
            world,
            classic,
            op: Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open()),
        }
    }

    /// The same with other settings.
    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::default();
        change(&mut settings);
        Self {
            classic: ClassicLoadBalancers::new(self.world.scope(settings)),
            ..self
        }
    }

    fn make(&self, tag: (&str, &str), members: &[InstanceId]) -> SecurityGroupId {
        let name = names::load_balancer(UID);
        let group =
            self.world
                .aws
                .security_group(&self.world.vpc, &format!("k8s-elb-{name}"), &[tag]);
        self.world
            .aws
            .classic(&name, &[group.clone()], members, &[tag]);
        self.world.aws.reset_calls();
        group
    }

    async fn admit(&self, into: &SecurityGroupId, group: &SecurityGroupId) {
        let source = RuleSource::Group(group.clone(), None);
        let rule = Rule {
            protocol: "-1".into(),
            ports: None,
            source,
            description: "".into(),
        };
        let request = AuthorizeSecurityGroupIngress { id: into.clone(), rules: vec![rule] };
        self.world
            .aws
            .client()
            .write(&self.op, request, "")
            .await
            .unwrap();
    }

    async fn group(&self, id: &SecurityGroupId) -> Option<SecurityGroup> {
        let found = self
            .world
            .aws
            .client()
            .read(&self.op, DescribeSecurityGroups::default())
            .await
            .unwrap();
        found.items.into_iter().find(|group| group.id == *id)
    }
}

#[tokio::test(start_paused = true)]
async fn only_one_that_the_cluster_owns_is_found() {
    let case = Case::new();
    assert_eq!(case.classic.find(&case.op, UID).await.unwrap(), None);
    case.make(("kubernetes.io/cluster/other", "owned"), &[]);
    assert_eq!(case.classic.find(&case.op, UID).await.unwrap(), None);
    let case = Case::new();
    case.make(OWNED, &[]);
    assert_eq!(
        case.classic
            .find(&case.op, UID)
            .await
            .unwrap()
            .unwrap()
            .name,
        names::load_balancer(UID)
    );
    case.world.aws.deny(Action::DescribeClassicTags);
    case.classic.find(&case.op, UID).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn members_follow_the_nodes() {
    let case = Case::new();
    let nodes = case.world.nodes.clone();
    case.make(OWNED, &nodes[..2]);
    let found = case.classic.find(&case.op, UID).await.unwrap().unwrap();
    assert!(ClassicLoadBalancers::instances_differ(&found, &nodes[1..]));
    case.classic
        .sync_instances(&case.op, &found, &nodes[1..])
        .await
        .unwrap();
    let found = case.classic.find(&case.op, UID).await.unwrap().unwrap();
    assert!(!ClassicLoadBalancers::instances_differ(&found, &nodes[1..]), "{found:?}");
    assert_eq!(case.world.aws.writes(), 2);
    case.classic
        .sync_instances(&case.op, &found, &nodes[1..])
        .await
        .unwrap();
    assert_eq!(case.world.aws.writes(), 2);
}

#[tokio::test(start_paused = true)]
async fn deletion_takes_its_group_and_the_rules_of_the_clusters_groups_along() {
    let case = Case::new();
    let before = case.world.aws.snapshot();
    let group = case.make(OWNED, &case.world.nodes);
    case.admit(&case.world.node_group, &group).await;
    assert_eq!(case.classic.delete(&case.op, UID).await.unwrap(), Progress::Done);
    let after = case.world.aws.snapshot();
    assert_eq!(after, before, "{}", before.diff(&after));
    assert_eq!(case.classic.delete(&case.op, UID).await.unwrap(), Progress::Done, "again");
}

#[tokio::test(start_paused = true)]
async fn deletion_goes_on_when_only_the_group_is_left() {
    let case = Case::new();
    let group = case.make(OWNED, &[]);
    let plain = case.world.aws.security_group(&case.world.vpc, "plain", &[]);
    case.admit(&plain, &group).await;
    let first = case.classic.delete(&case.op, UID).await.unwrap();
    assert!(matches!(first, Progress::Pending { .. }), "{first:?}");
    assert_eq!(case.classic.find(&case.op, UID).await.unwrap(), None);
    // The rule of a group that is not the cluster's is somebody else's to take away.
    let rules = case.group(&plain).await.unwrap().ingress;
    let request = RevokeSecurityGroupIngress { id: plain, rules };
    case.world
        .aws
        .client()
        .write(&case.op, request, "")
        .await
        .unwrap();
    assert_eq!(case.classic.delete(&case.op, UID).await.unwrap(), Progress::Done);
    assert_eq!(case.group(&group).await, None);
}

#[tokio::test(start_paused = true)]
async fn what_the_cluster_does_not_own_stays() {
    let case = Case::new();
    let group = case.make(("kubernetes.io/cluster/test", "shared"), &[]);
    assert_eq!(case.classic.delete(&case.op, UID).await.unwrap(), Progress::Done);
    assert_eq!(case.world.aws.writes(), 0);
    assert!(case.group(&group).await.is_some());

    let case = Case::new();
    let group = case.make(OWNED, &[]);
    case.world
        .aws
        .tag(&group, "kubernetes.io/cluster/test", "shared");
    assert_eq!(case.classic.delete(&case.op, UID).await.unwrap(), Progress::Done);
    assert!(case.group(&group).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn members_come_and_go_in_requests_of_200() {
    let case = Case::of(201);
    case.make(OWNED, &[]);
    for wanted in [&*case.world.nodes, &[]] {
        let found = case.classic.find(&case.op, UID).await.unwrap().unwrap();
        case.world.aws.reset_calls();
        case.classic
            .sync_instances(&case.op, &found, wanted)
            .await
            .unwrap();
        let sizes = case.world.aws.log().into_iter().map(|call| match call {
            Call::RegisterClassic(c) => c.instances.len(),
            Call::DeregisterClassic(c) => c.instances.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(sizes.collect::<Vec<_>>(), [200, 1], "{}", wanted.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_of_the_cluster_stays_beside_a_balancer_that_is_not_its_own() {
    let case = Case::new();
    let name = names::load_balancer(UID);
    let group =
        case.world
            .aws
            .security_group(&case.world.vpc, &format!("k8s-elb-{name}"), &[OWNED]);
    case.world
        .aws
        .classic(&name, &[], &[], &[("kubernetes.io/cluster/other", "owned")]);
    assert_eq!(case.classic.delete(&case.op, UID).await.unwrap(), Progress::Done);
    assert!(case.group(&group).await.is_some());
    assert_eq!(case.world.aws.classics().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_protected_or_in_another_vpc_stays() {
    let case = Case::new();
    let group = case.make(OWNED, &[]);
    let case = case.with(|settings| settings.protected_security_group = Some(group.clone()));
    assert_eq!(case.classic.delete(&case.op, UID).await.unwrap(), Progress::Done);
    assert_eq!(case.world.aws.classics(), []);
    assert!(case.group(&group).await.is_some());

    let case = Case::new();
    let other = case.world.aws.vpc("10.9.0.0/16");
    let name = format!("k8s-elb-{}", names::load_balancer(UID));
    let group = case.world.aws.security_group(&other, &name, &[OWNED]);
    assert_eq!(case.classic.delete(&case.op, UID).await.unwrap(), Progress::Done);
    assert!(case.group(&group).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn rules_stay_where_the_configuration_says_that_others_look_after_them() {
    let case = Case::new().with(|settings| settings.disable_security_group_ingress = true);
    let group = case.make(OWNED, &[]);
    case.admit(&case.world.node_group, &group).await;
    let waits = case.classic.delete(&case.op, UID).await.unwrap();
    assert!(matches!(waits, Progress::Pending { .. }), "{waits:?}");
    assert_eq!(
        case.group(&case.world.node_group)
            .await
            .unwrap()
            .ingress
            .len(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn rules_by_which_a_group_admits_itself_go_with_it() {
    let case = Case::new();
    let group = case.make(OWNED, &[]);
    case.admit(&group, &group).await;
    case.world.aws.reset_calls();
    assert_eq!(case.classic.delete(&case.op, UID).await.unwrap(), Progress::Done);
    assert_eq!(case.group(&group).await, None);
    assert_eq!(case.world.aws.calls(Action::RevokeSecurityGroupIngress), 0);
}

#[tokio::test(start_paused = true)]
async fn what_goes_meanwhile_is_gone_and_proves_nothing_about_the_rest() {
    let case = Case::new();
    let group = case.make(OWNED, &[]);
    case.admit(&case.world.node_group, &group).await;
    let aws = &case.world.aws;
    aws.fail_next(Action::DescribeClassicTags, "LoadBalancerNotFound");
    assert_eq!(case.classic.find(&case.op, UID).await.unwrap(), None);
    for (action, code) in [
        (Action::DeleteClassic, "LoadBalancerNotFound"),
        (Action::RevokeSecurityGroupIngress, "InvalidGroup.NotFound"),
    ] {
        aws.fail_next(action, code);
        let error = case.classic.delete(&case.op, UID).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{action:?}: {error}");
        assert!(case.group(&group).await.is_some(), "{action:?}");
    }

    let case = Case::new();
    let group = case.make(OWNED, &[]);
    case.admit(&case.world.node_group, &group).await;
    case.world
        .aws
        .fail_next(Action::RevokeSecurityGroupIngress, "InvalidPermission.NotFound");
    let waits = case.classic.delete(&case.op, UID).await.unwrap();
    assert!(matches!(waits, Progress::Pending { .. }), "the rule is there all the same: {waits:?}");
    case.world
        .aws
        .fail_next(Action::DeleteSecurityGroup, "InvalidGroup.NotFound");
    assert_eq!(case.classic.delete(&case.op, UID).await.unwrap(), Progress::Done);
}
