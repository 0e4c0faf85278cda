use std::sync::Arc;

use ccm_core::runtime::gate::WriteGate;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    api::{
        Action,
        ec2::{AuthorizeSecurityGroupIngress, Rule, RuleSource},
    },
    cluster::Cluster,
    config::Settings,
    fake::World,
};

const UID: &str = "12345678-1234-1234-1234-123456789abc";
const OWNED: (&str, &str) = ("kubernetes.io/cluster/test", "owned");

struct Case {
    world: World,
    classic: Classic,
    op: Op,
}

impl Case {
    fn new() -> Self {
        let world = World::small(3);
        let classic = Classic::new(Scope {
            client: world.aws.client(),
            cluster: Cluster::new("test", false),
            region: "us-west-2".into(),
            vpc: world.vpc.clone(),
            settings: Arc::new(Settings::default()),
        });
        Self { world, classic, op: Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open()) }
    }

    fn make(&self, tag: (&str, &str), members: &[InstanceId]) -> SecurityGroupId {
        let name = names::load_balancer(UID);
        let group = self.world.aws.security_group(&self.world.vpc, &format!("k8s-elb-{name}"), &[tag]);
        self.world.aws.classic(&name, &[group.clone()], members, &[tag]);
        self.world.aws.reset_calls();
        group
    }

    async fn admit(&self, into: &SecurityGroupId, group: &SecurityGroupId) {
        let source = RuleSource::Group(group.clone(), None);
        let rule = Rule { protocol: "-1".into(), ports: None, source, description: "".into() };
        let request = AuthorizeSecurityGroupIngress { id: into.clone(), rules: vec![rule] };
        self.world.aws.client().write(&self.op, request, "").await.unwrap();
    }

    async fn group(&self, id: &SecurityGroupId) -> Option<SecurityGroup> {
        let found = self.world.aws.client().read(&self.op, DescribeSecurityGroups::default()).await.unwrap();
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
    assert_eq!(case.classic.find(&case.op, UID).await.unwrap().unwrap().name, names::load_balancer(UID));
    case.world.aws.deny(Action::DescribeClassicTags);
    case.classic.find(&case.op, UID).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn members_follow_the_nodes() {
    let case = Case::new();
    let nodes = case.world.nodes.clone();
    case.make(OWNED, &nodes[..2]);
    let found = case.classic.find(&case.op, UID).await.unwrap().unwrap();
    assert!(Classic::differs(&found, &nodes[1..]));
    case.classic.members(&case.op, &found, &nodes[1..]).await.unwrap();
    let found = case.classic.find(&case.op, UID).await.unwrap().unwrap();
    assert!(!Classic::differs(&found, &nodes[1..]), "{found:?}");
    assert_eq!(case.world.aws.writes(), 2);
    case.classic.members(&case.op, &found, &nodes[1..]).await.unwrap();
    assert_eq!(case.world.aws.writes(), 2);
}

#[tokio::test(start_paused = true)]
async fn deletion_takes_its_group_and_the_rules_of_the_clusters_groups_along() {
    let case = Case::new();
    let before = case.world.aws.everything();
    let group = case.make(OWNED, &case.world.nodes);
    case.admit(&case.world.node_group, &group).await;
    assert_eq!(case.classic.delete(&case.op, UID).await.unwrap(), Progress::Done);
    let after = case.world.aws.everything();
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
    case.world.aws.client().write(&case.op, request, "").await.unwrap();
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
    case.world.aws.tag(&group, "kubernetes.io/cluster/test", "shared");
    assert_eq!(case.classic.delete(&case.op, UID).await.unwrap(), Progress::Done);
    assert!(case.group(&group).await.is_some());
}
