//! Members and deletion, without the Service around them.

use std::sync::Arc;

use ccm_core::{provider::Progress, write_gate::WriteGate};
use tokio_util::sync::CancellationToken;

use super::{model::ClassicGroups, *};
use crate::{
    api::{
        Action, Call, SecurityGroupId,
        ec2::{
            AuthorizeSecurityGroupIngress, DescribeSecurityGroups, RevokeSecurityGroupIngress,
            Rule, RuleSource, SecurityGroup,
        },
    },
    config::Settings,
    fake::FakeCluster,
    instances::InstanceCache,
    lb::NetworkLoadBalancers,
};

const UID: &str = "12345678-1234-1234-1234-123456789abc";
const OWNED: (&str, &str) = ("kubernetes.io/cluster/test", "owned");

fn owner() -> ServiceKey {
    ServiceKey {
        namespace: "default".into(),
        name: "web".into(),
        uid: UID.into(),
    }
}

struct Case {
    world: FakeCluster,
    balancers: NetworkLoadBalancers,
    op: Op,
}

impl Case {
    fn new() -> Self {
        Self::of(3)
    }

    fn of(nodes: usize) -> Self {
        let world = FakeCluster::small(nodes);
        let scope = world.scope(Settings::default());
        let balancers = NetworkLoadBalancers::new(scope.clone(), InstanceCache::new(scope));
        Self {
            world,
            balancers,
            op: Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open()),
        }
    }

    /// The same with other settings.
    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::default();
        change(&mut settings);
        let scope = self.world.scope(settings);
        let instances: Arc<InstanceCache> = InstanceCache::new(scope.clone());
        Self {
            balancers: NetworkLoadBalancers::new(scope, instances),
            ..self
        }
    }

    async fn delete(&self) -> Result<Progress, CloudError> {
        let groups = ClassicGroups::default();
        self.balancers
            .delete_classic(&self.op, &owner(), &groups)
            .await
    }

    async fn found(&self) -> Option<ClassicLoadBalancer> {
        let name = names::load_balancer(UID);
        self.balancers
            .classic
            .describe(&self.op, &name)
            .await
            .unwrap()
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
async fn deletion_takes_its_group_and_the_rules_of_the_clusters_groups_along() {
    let case = Case::new();
    let before = case.world.aws.snapshot();
    let group = case.make(OWNED, &case.world.nodes);
    case.admit(&case.world.node_group, &group).await;
    assert_eq!(case.delete().await.unwrap(), Progress::Done);
    let after = case.world.aws.snapshot();
    assert_eq!(after, before, "{}", before.diff(&after));
    assert_eq!(case.delete().await.unwrap(), Progress::Done, "again");
}

#[tokio::test(start_paused = true)]
async fn deletion_goes_on_when_only_the_group_is_left() {
    let case = Case::new();
    let group = case.make(OWNED, &[]);
    let plain = case.world.aws.security_group(&case.world.vpc, "plain", &[]);
    case.admit(&plain, &group).await;
    let first = case.delete().await.unwrap();
    assert!(matches!(first, Progress::Pending { .. }), "{first:?}");
    assert_eq!(case.found().await, None);
    // The rule of a group that is not the cluster's is somebody else's to take away.
    let rules = case.group(&plain).await.unwrap().ingress;
    let request = RevokeSecurityGroupIngress { id: plain, rules };
    case.world
        .aws
        .client()
        .write(&case.op, request, "")
        .await
        .unwrap();
    assert_eq!(case.delete().await.unwrap(), Progress::Done);
    assert_eq!(case.group(&group).await, None);
}

#[tokio::test(start_paused = true)]
async fn what_the_cluster_does_not_own_stays() {
    let case = Case::new();
    let group = case.make(("kubernetes.io/cluster/test", "shared"), &[]);
    let error = case.delete().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(case.world.aws.writes(), 0);
    assert!(case.group(&group).await.is_some());

    let case = Case::new();
    let group = case.make(OWNED, &[]);
    case.world
        .aws
        .tag(&group, "kubernetes.io/cluster/test", "shared");
    assert_eq!(case.delete().await.unwrap(), Progress::Done);
    assert!(case.group(&group).await.is_some());
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
    assert_eq!(case.delete().await.unwrap(), Progress::Done);
    assert!(case.group(&group).await.is_some());
    assert_eq!(case.world.aws.classics().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_protected_or_in_another_vpc_stays() {
    let case = Case::new();
    let group = case.make(OWNED, &[]);
    let case = case.with(|settings| settings.protected_security_group = Some(group.clone()));
    assert_eq!(case.delete().await.unwrap(), Progress::Done);
    assert_eq!(case.world.aws.classics(), []);
    assert!(case.group(&group).await.is_some());

    let case = Case::new();
    let other = case.world.aws.vpc("10.9.0.0/16");
    let name = format!("k8s-elb-{}", names::load_balancer(UID));
    let group = case.world.aws.security_group(&other, &name, &[OWNED]);
    assert_eq!(case.delete().await.unwrap(), Progress::Done);
    assert!(case.group(&group).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn rules_stay_where_the_configuration_says_that_others_look_after_them() {
    let case = Case::new().with(|settings| settings.disable_security_group_ingress = true);
    let group = case.make(OWNED, &[]);
    case.admit(&case.world.node_group, &group).await;
    let waits = case.delete().await.unwrap();
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
    assert_eq!(case.delete().await.unwrap(), Progress::Done);
    assert_eq!(case.group(&group).await, None);
    assert_eq!(case.world.aws.calls(Action::RevokeSecurityGroupIngress), 0);
}

#[tokio::test(start_paused = true)]
async fn members_come_and_go_in_requests_of_200() {
    let case = Case::of(201);
    case.make(OWNED, &[]);
    for wanted in [&*case.world.nodes, &[]] {
        let found = case.found().await.unwrap();
        case.world.aws.reset_calls();
        let wanted = wanted.iter().cloned().collect();
        case.balancers
            .classic
            .sync_instances(&case.op, &found, &wanted)
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
async fn what_goes_meanwhile_proves_nothing_about_the_rest() {
    let case = Case::new();
    let group = case.make(OWNED, &[]);
    case.admit(&case.world.node_group, &group).await;
    let aws = &case.world.aws;
    for (action, code) in [
        (Action::DescribeClassicTags, "LoadBalancerNotFound"),
        (Action::DeleteClassic, "LoadBalancerNotFound"),
        (Action::RevokeSecurityGroupIngress, "InvalidGroup.NotFound"),
    ] {
        aws.fail_next(action, code);
        let error = case.delete().await.unwrap_err();
        assert_ne!(error.kind(), ErrorKind::NotFound, "{action:?}: {error}");
        assert!(case.group(&group).await.is_some(), "{action:?}");
    }
}

#[test]
fn an_answer_without_the_load_balancer_says_nothing_about_its_tags() {
    let answer = || vec![("a".into(), Tags::new())];
    assert_eq!(tags_of(answer(), "a"), Some(Tags::new()));
    assert_eq!(tags_of(answer(), "b"), None);
    assert_eq!(tags_of(Vec::new(), "a"), None);
}

// One answer that nothing is there may come too early.
#[tokio::test(start_paused = true)]
async fn absence_is_believed_only_if_the_listing_says_so_too() {
    let case = Case::new();
    case.make(OWNED, &[]);
    case.world
        .aws
        .fail_next(Action::DescribeClassic, "LoadBalancerNotFound");
    assert_eq!(case.delete().await.unwrap(), Progress::Done);
    assert_eq!(case.world.aws.classics(), []);
}
