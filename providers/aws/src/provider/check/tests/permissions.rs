//! Which changes are asked about, and what an answer means.

use super::{Fixture, OWN_TAG, node, problems};
use crate::{
    api::{Action, Call, ec2::ModifyInstanceAttribute},
    fake::Interface,
};

#[tokio::test(start_paused = true)]
async fn only_changes_that_the_manager_makes_are_asked_about() {
    // The documented policy allows tags of security groups when they are created; upstream's group of
    // the nodes has the cluster's tag with the value shared.
    let fixture = Fixture::new();
    fixture.world.aws.deny_tags_after_creation();
    fixture
        .world
        .aws
        .tag(&fixture.world.node_group, OWN_TAG, "shared");
    let found = fixture.check().await;
    assert!(problems(&found).is_empty(), "{found:#?}");
}

#[tokio::test(start_paused = true)]
async fn without_rules_for_load_balancers_groups_are_not_asked_about() {
    let mut fixture = Fixture::new();
    fixture.config += "\nDefaultLoadBalancerType = nlb\nDisableSecurityGroupIngress = true";
    fixture.world.aws.deny(Action::CreateSecurityGroup);
    fixture
        .world
        .aws
        .deny(Action::AuthorizeSecurityGroupIngress);
    let found = fixture.check().await;
    assert!(problems(&found).is_empty(), "{found:#?}");
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_ignores_dry_run_is_not_asked_about_changes() {
    let fixture = Fixture::new();
    let changes = [
        Action::CreateSecurityGroup,
        Action::AuthorizeSecurityGroupIngress,
        Action::ModifyInstanceAttribute,
    ];
    for action in changes.into_iter().chain([Action::DescribeVpcs]) {
        fixture.world.aws.ignore_dry_run(action);
    }
    let found = fixture.check().await;
    assert!(problems(&found).is_empty(), "{found:#?}");
    assert_eq!(fixture.world.aws.writes(), 0);
    let message = &found.last().unwrap().message;
    assert_eq!(
        message,
        "not known whether these changes are allowed: ec2:CreateSecurityGroup and ec2:CreateTags, ec2:AuthorizeSecurityGroupIngress, ec2:ModifyInstanceAttribute (the endpoint of EC2 ignores DryRun)"
    );

    // One that knows it for reads only makes one change, which is told.
    let fixture = Fixture::new();
    for action in changes {
        fixture.world.aws.ignore_dry_run(action);
    }
    let found = fixture.check().await;
    let [ignored] = problems(&found)[..] else {
        panic!("{found:#?}")
    };
    let name = "ec2:CreateSecurityGroup and ec2:CreateTags";
    assert_eq!((ignored.name, &*ignored.object), ("DryRunIgnored", name));
    assert_eq!(fixture.world.aws.writes(), 1, "nothing else is asked about after that");
    let message = &found.last().unwrap().message;
    let rest = "ec2:AuthorizeSecurityGroupIngress, ec2:ModifyInstanceAttribute";
    assert_eq!(*message, format!("not known whether these changes are allowed: {rest}"));
}

#[tokio::test(start_paused = true)]
async fn an_error_that_says_nothing_of_the_permission_is_told() {
    for code in ["AuthFailure", "OptInRequired", "InternalError"] {
        let fixture = Fixture::new();
        fixture
            .world
            .aws
            .fail_always(Action::CreateSecurityGroup, code);
        let found = fixture.check().await;
        let unknown = "not known whether these changes are allowed: ec2:CreateSecurityGroup";
        let mut messages = found.iter().map(|finding| &finding.message);
        assert!(
            messages.any(|text| text.starts_with(unknown) && text.contains(code)),
            "{code}: {found:#?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_needs_no_change_is_not_asked_about() {
    // The check of source and destination is off.
    let fixture = Fixture::new();
    let transport = fixture.world.aws.transport();
    for id in fixture.world.nodes.clone() {
        let change = ModifyInstanceAttribute { id, source_dest_check: false };
        let sent = transport.send(Call::ModifyInstanceAttribute(change)).await;
        assert!(sent.is_ok(), "{sent:?}");
    }
    fixture.world.aws.deny(Action::ModifyInstanceAttribute);
    let found = fixture.check().await;
    assert!(problems(&found).is_empty(), "{found:#?}");
    // The attribute of one interface of several is changed.
    let mut fixture = Fixture::new();
    fixture.world.aws.deny(Action::ModifyInstanceAttribute);
    let several = fixture
        .world
        .aws
        .instance(&fixture.world.private[0])
        .group(&fixture.world.node_group)
        .interface(Interface::new(&fixture.world.private[0]))
        .tag(OWN_TAG, "owned")
        .launch();
    fixture.nodes = vec![node("n2", "us-west-2a", &several)];
    let found = fixture.check().await;
    assert!(problems(&found).is_empty(), "{found:#?}");
}

#[tokio::test(start_paused = true)]
async fn rules_are_asked_about_in_the_group_of_a_node() {
    let asked = |fixture: &Fixture| {
        let calls = fixture.world.aws.asked().into_iter();
        calls.rev().find_map(|call| match call {
            Call::AuthorizeSecurityGroupIngress(request) => Some(request.id),
            _ => None,
        })
    };
    // Another group of the cluster has its tag, too: that of a load balancer.
    let mut fixture = Fixture::new();
    let vpc = fixture.world.vpc.clone();
    let tags = [(OWN_TAG, "owned")];
    let other = fixture.world.aws.security_group(&vpc, "other", &tags);
    fixture.world.aws.untag(&fixture.world.node_group, OWN_TAG);
    fixture.check().await;
    assert_eq!(asked(&fixture), Some(fixture.world.node_group.clone()));

    // With rules in groups of load balancers only.
    fixture.config += "\nDisableSecurityGroupIngress = true";
    fixture.check().await;
    assert_eq!(asked(&fixture), Some(other));
}
