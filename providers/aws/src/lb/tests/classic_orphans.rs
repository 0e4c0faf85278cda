//! Classic load balancers whose Service is gone: found by their tags, deleted with what belongs to them.

use std::time::Duration;

use ccm_core::provider::{ErrorKind, Inventory as _, OwnedObject, Owner, Progress};

use super::{
    classic_upstream::{made_by_upstream, own_group_by_upstream},
    fixture::{Fixture, published, service, with},
};
use crate::{
    api::{
        Action, SecurityGroupId,
        ec2::{AuthorizeSecurityGroupIngress, Rule, RuleSource},
    },
    config::Settings,
    fake::AccountSnapshot,
};

const SERVICE_TAG: &str = "kubernetes.io/service-name";

fn upstreams(nodes: usize) -> Fixture {
    Fixture::configured(nodes, Settings::default())
}

fn same(rig: &Fixture, expected: &AccountSnapshot, what: &str) {
    let found = rig.aws.snapshot();
    assert_eq!(found, *expected, "{what}:\n{}", expected.diff(&found));
}

fn admitted(rig: &Fixture, group: &SecurityGroupId) -> bool {
    let rules = rig.aws.rules(&rig.world.node_group);
    rules
        .iter()
        .any(|rule| matches!(&rule.source, RuleSource::Group(id, _) if id == group))
}

async fn listed(rig: &Fixture) -> Vec<OwnedObject> {
    rig.balancers.list_owned(&rig.op()).await.unwrap()
}

fn kinds(listed: &[OwnedObject]) -> Vec<&str> {
    let mut kinds: Vec<_> = listed.iter().map(|object| &*object.kind).collect();
    kinds.sort_unstable();
    kinds
}

/// Deletes objects as the subcommand does: again, while AWS is still at it.
async fn delete_all(rig: &Fixture, listed: &[OwnedObject]) {
    for _ in 0..3 {
        for object in listed {
            rig.balancers
                .delete_owned(&rig.op(), object)
                .await
                .unwrap_or_else(|error| panic!("{object:?}: {error}"));
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_upstream_or_ours_is_listed_and_goes_with_its_group_and_rules() {
    for is_upstreams in [true, false] {
        let rig = upstreams(2);
        let before = rig.aws.snapshot();
        let web = service("web", &[80]);
        if is_upstreams {
            made_by_upstream(&rig, &web, &[0, 1]).await;
        } else {
            rig.settle(&web).await;
        }
        let rig = rig.restart();
        let listed = listed(&rig).await;
        assert_eq!(kinds(&listed), ["classic load balancer", "security group"]);
        let owner = Owner::Service { namespace: "default".into(), name: "web".into(), uid: None };
        assert!(listed.iter().all(|object| object.owner == owner), "{listed:?}");
        let balancer = listed
            .iter()
            .find(|object| &*object.kind != "security group");
        assert!(balancer.unwrap().created.is_some());
        delete_all(&rig, &listed).await;
        same(&rig, &before, "deletion");
    }
}

// The rule for a group that the Service named goes, and the group stays.
#[tokio::test(start_paused = true)]
async fn the_rule_for_a_given_group_goes_unless_another_load_balancer_needs_it() {
    for is_shared in [false, true] {
        let rig = upstreams(1);
        let given = rig.aws.security_group(&rig.world.vpc, "given", &[]);
        let before = rig.aws.snapshot();
        if is_shared {
            rig.settle(&with(service("api1", &[80]), "security-groups", &given))
                .await;
        }
        let needed = rig.aws.snapshot();
        rig.settle(&with(service("web", &[80]), "security-groups", &given))
            .await;
        assert!(admitted(&rig, &given));
        let rig = rig.restart();
        let mut listed = listed(&rig).await;
        listed.retain(
            |object| matches!(&object.owner, Owner::Service { name, .. } if &**name == "web"),
        );
        assert_eq!(kinds(&listed), ["classic load balancer"]);
        delete_all(&rig, &listed).await;
        same(&rig, if is_shared { &needed } else { &before }, "deletion");
    }
}

// Only the Service could say which of several groups the nodes admit: an owner may have opened the
// nodes to another one.
#[tokio::test(start_paused = true)]
async fn rules_for_several_given_groups_stay() {
    let rig = upstreams(1);
    let [one, two] = ["one", "two"].map(|name| rig.aws.security_group(&rig.world.vpc, name, &[]));
    let web = with(service("web", &[80]), "security-groups", &format!("{one},{two}"));
    rig.settle(&web).await;
    let rig = rig.restart();
    let rules = rig.aws.rules(&rig.world.node_group);
    let listed = listed(&rig).await;
    delete_all(&rig, &listed).await;
    assert_eq!(rig.aws.classics(), []);
    assert_eq!(rig.aws.rules(&rig.world.node_group), rules);
}

#[tokio::test(start_paused = true)]
async fn tags_decide_whose_one_is_and_never_its_name_alone() {
    type Case = (&'static [(&'static str, &'static str)], &'static str, usize);
    const OWN: (&str, &str) = ("kubernetes.io/cluster/test", "owned");
    const SERVICE: (&str, &str) = (SERVICE_TAG, "default/web");
    let cases: [Case; 8] = [
        (&[OWN, SERVICE], "a0123456789abcdef0123456789abcde", 1),
        (&[], "a0123456789abcdef0123456789abcde", 0),
        (&[OWN], "a0123456789abcdef0123456789abcde", 0),
        (&[SERVICE], "a0123456789abcdef0123456789abcde", 0),
        (
            &[("kubernetes.io/cluster/test", "shared"), SERVICE],
            "a0123456789abcdef0123456789abcde",
            0,
        ),
        (
            &[("kubernetes.io/cluster/other", "owned"), SERVICE],
            "a0123456789abcdef0123456789abcde",
            0,
        ),
        (
            &[OWN, SERVICE, ("elbv2.k8s.aws/cluster", "test")],
            "a0123456789abcdef0123456789abcde",
            0,
        ),
        (&[OWN, SERVICE], "by-hand", 0),
    ];
    for (tags, name, found) in cases {
        let rig = upstreams(1);
        rig.aws
            .classic(name, &[rig.world.node_group.clone()], &[], tags);
        in_vpc(&rig, name).await;
        assert_eq!(listed(&rig).await.len(), found, "{tags:?} {name}");
    }
}

/// Puts a load balancer into the cluster's VPC.
async fn in_vpc(rig: &Fixture, name: &str) {
    let request = crate::api::classic::AttachClassicSubnets {
        name: name.into(),
        subnets: vec![rig.world.public[0].clone()],
    };
    rig.aws.ask(request).await.unwrap();
}

// Another VPC may have a cluster with the same ID.
#[tokio::test(start_paused = true)]
async fn one_of_another_vpc_is_not_listed() {
    let rig = upstreams(1);
    let vpc = rig.aws.vpc("10.99.0.0/16");
    let subnet = rig.aws.public_subnet(&vpc, "a", "10.99.0.0/20", &[]);
    let tags = [("kubernetes.io/cluster/test", "owned"), (SERVICE_TAG, "default/web")];
    let name = "a0123456789abcdef0123456789abcde";
    let group = rig.aws.security_group(&vpc, "there", &[]);
    rig.aws.classic(name, &[group], &[], &tags);
    let request =
        crate::api::classic::AttachClassicSubnets { name: name.into(), subnets: vec![subnet] };
    rig.aws.ask(request).await.unwrap();
    assert_eq!(listed(&rig).await, []);
}

#[tokio::test(start_paused = true)]
async fn doubt_about_the_owner_is_an_error_and_changes_nothing() {
    let rig = upstreams(1);
    rig.settle(&service("web", &[80])).await;
    let rig = rig.restart();
    let listed = listed(&rig).await;
    for object in &listed {
        rig.aws.tag(&object.id, SERVICE_TAG, "default/other");
    }
    let before = rig.aws.snapshot();
    for object in &listed {
        let error = rig
            .balancers
            .delete_owned(&rig.op(), object)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{object:?}");
    }
    same(&rig, &before, "of another Service");
    for object in &listed {
        rig.aws.tag(&object.id, SERVICE_TAG, "default/web");
    }
    let before = rig.aws.snapshot();
    let [balancer] = &listed
        .iter()
        .filter(|object| &*object.kind != "security group")
        .collect::<Vec<_>>()[..]
    else {
        panic!("{listed:?}");
    };
    for action in [Action::DescribeClassic, Action::DescribeClassicTags] {
        for code in ["AccessDenied", "InternalError"] {
            rig.aws.fail_always(action, code);
            let deleted = rig.balancers.delete_owned(&rig.op(), balancer).await;
            assert!(deleted.is_err(), "{action:?} {code}: {deleted:?}");
            rig.aws.clear_faults();
        }
    }
    same(&rig, &before, "tags that cannot be read");
}

#[tokio::test(start_paused = true)]
async fn a_list_without_tags_or_permission_is_an_error() {
    let rig = upstreams(1);
    rig.settle(&service("web", &[80])).await;
    let rig = rig.restart();
    for (action, code) in [
        (Action::DescribeClassic, "AccessDenied"),
        (Action::DescribeClassic, "InternalError"),
        (Action::DescribeClassicTags, "InternalError"),
        (Action::DescribeClassicTags, "AccessDenied"),
    ] {
        rig.aws.fail_always(action, code);
        let found = rig.balancers.list_owned(&rig.op()).await;
        assert!(found.is_err(), "{action:?} {code}: {found:?}");
        rig.aws.clear_faults();
    }
    // One is deleted while the tags of all are read.
    rig.aws
        .fail_next(Action::DescribeClassicTags, "LoadBalancerNotFound");
    assert_eq!(listed(&rig).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_group_stays_with_its_rules_while_anything_has_it() {
    let rig = upstreams(1);
    rig.aws
        .configure(|options| options.interfaces_linger = Duration::from_secs(180));
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let own = rig.aws.classics()[0].security_groups[0].clone();
    let api = with(service("api1", &[80]), "security-groups", &own);
    let api = published(&api, &rig.settle(&api).await);
    let mut listed = listed(&rig).await;
    listed.retain(|object| &*object.kind == "security group");
    let [group] = &listed[..] else {
        panic!("{listed:?}");
    };
    let deleted = || async { rig.balancers.delete_owned(&rig.op(), group).await.unwrap() };
    // Both load balancers have it, then one, then the interfaces that they left.
    for gone in [None, Some(&web), Some(&api)] {
        if let Some(gone) = gone {
            let name = crate::lb::names::load_balancer(&gone.uid);
            rig.aws
                .ask(crate::api::classic::DeleteClassic { name })
                .await
                .unwrap();
        }
        let there = rig.aws.snapshot();
        let progress = deleted().await;
        assert!(matches!(progress, Progress::Pending { .. }), "{progress:?}");
        same(&rig, &there, "in use");
        assert!(admitted(&rig, &own));
    }
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(deleted().await, Progress::Done);
    assert!(!rig.aws.exists(&own) && !admitted(&rig, &own));
}

// The interfaces of a new load balancer may not show yet.
#[tokio::test(start_paused = true)]
async fn a_group_of_a_load_balancer_without_interfaces_stays() {
    let rig = upstreams(1);
    let own = own_group_by_upstream(&rig, &service("web", &[80])).await;
    let rule = Rule {
        protocol: "-1".into(),
        ports: None,
        source: RuleSource::Group(own.clone(), None),
        description: Box::default(),
    };
    let admit =
        AuthorizeSecurityGroupIngress { id: rig.world.node_group.clone(), rules: vec![rule] };
    rig.aws.ask(admit).await.unwrap();
    rig.aws.classic("by-hand", &[own], &[], &[]);
    let there = rig.aws.snapshot();
    rig.aws.reset_calls();
    let listed = listed(&rig).await;
    assert_eq!(kinds(&listed), ["security group"]);
    let deleted = rig.balancers.delete_owned(&rig.op(), &listed[0]).await;
    assert!(matches!(deleted, Ok(Progress::Pending { .. })), "{deleted:?}");
    assert_eq!(rig.aws.writes(), 0, "nothing is tried");
    same(&rig, &there, "in use");
}

// As after a deletion that was interrupted between the load balancer and its group.
#[tokio::test(start_paused = true)]
async fn a_group_that_is_left_alone_is_listed_by_its_description() {
    let rig = upstreams(1);
    let before = rig.aws.snapshot();
    let own = own_group_by_upstream(&rig, &service("web", &[80])).await;
    let all = listed(&rig).await;
    assert_eq!(kinds(&all), ["security group"]);
    assert_eq!(&*all[0].id, &*own);
    // A tag that contradicts the description is doubt.
    rig.aws.tag(&own, SERVICE_TAG, "default/other");
    assert_eq!(listed(&rig).await, []);
    rig.aws.tag(&own, SERVICE_TAG, "default/web");
    delete_all(&rig, &all).await;
    same(&rig, &before, "deletion");
}
