//! Upstream's published policy has no `elasticloadbalancing:DescribeTags`. Without it, the name that is
//! computed from the Service's UID says whose a load balancer is: enough to change it, never to delete
//! it.

use std::time::Duration;

use ccm_core::{
    k8s::ServiceView,
    provider::{ErrorKind, ReadMode},
};

use super::{
    fixture::{Fixture, fresh, published, service, with},
    takeover::target_group,
};
use crate::api::{
    Action,
    elb::{CreateTargetGroup, ElbProtocol, ListenerSpec, ModifyListener},
};

/// A load balancer of an earlier process, and a new one whose role may not read tags.
async fn without_permission(ports: &[u16]) -> (Fixture, ServiceView) {
    let rig = Fixture::new(2);
    let web = service("web", ports);
    let web = published(&web, &rig.settle(&web).await);
    let rig = rig.restart();
    rig.aws.reset_calls();
    rig.aws.deny(Action::DescribeElbTags);
    (rig, web)
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_is_kept_up_to_date() {
    let (mut rig, web) = without_permission(&[80]).await;
    assert_eq!(rig.plan(&web).await.unwrap(), []);
    rig.ensure(&web, ReadMode::Fresh).await.result.unwrap();
    assert_eq!(rig.aws.writes(), 0);
    assert_eq!(rig.reasons(), ["AWSPermissionDenied"]);
    // Nodes.
    let group = rig.aws.target_groups()[0].arn.clone();
    rig.add_node();
    rig.update(&web).await.result.unwrap();
    assert_eq!(rig.aws.targets(&group).len(), 3);
    rig.nodes.pop();
    rig.nodes.pop();
    rig.ensure(&web, ReadMode::Fresh).await.result.unwrap();
    assert_eq!(rig.aws.targets(&group).len(), 1);
    // Ports and settings.
    let more = published(&service("web", &[80, 443]), &web.status);
    rig.settle(&with(more, "healthcheck-interval", "10")).await;
    let load_balancer = rig.aws.load_balancers()[0].arn.clone();
    assert_eq!(rig.aws.listeners(&load_balancer).len(), 2);
    let checks: Vec<_> = rig
        .aws
        .target_groups()
        .iter()
        .map(|group| group.health_check.clone().unwrap().interval)
        .collect();
    assert_eq!(checks, [10, 10]);
    assert_eq!(rig.reasons(), ["AWSPermissionDenied"], "once");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_without_the_tags_that_prove_it() {
    let (rig, web) = without_permission(&[80, 443]).await;
    // A port less: the listener is part of the load balancer, the target group is not.
    let less = published(&service("web", &[80]), &web.status);
    rig.settle(&less).await;
    let load_balancer = rig.aws.load_balancers()[0].arn.clone();
    assert_eq!(rig.aws.listeners(&load_balancer).len(), 1);
    assert_eq!(rig.aws.calls(Action::DeleteTargetGroup), 0);
    assert_eq!(rig.aws.target_groups().len(), 2);
    let error = rig.delete(&less).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("DescribeTags"), "{error}");
    assert_eq!(rig.aws.calls(Action::DeleteLoadBalancer), 0);
    // With the permission, everything goes.
    rig.aws.clear_faults();
    rig.remove(&less).await;
    assert_eq!((rig.aws.load_balancers(), rig.aws.target_groups()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn what_was_left_behind_goes_once_tags_can_be_read() {
    let (rig, web) = without_permission(&[80, 443]).await;
    let less = published(&service("web", &[80]), &web.status);
    rig.settle(&less).await;
    rig.aws.clear_faults();
    // What is denied is asked for again after an hour.
    tokio::time::sleep(Duration::from_secs(3601)).await;
    rig.settle(&less).await;
    assert_eq!(rig.aws.target_groups().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_new_load_balancer_is_made_and_found_again() {
    let rig = Fixture::new(1);
    rig.aws.deny(Action::DescribeElbTags);
    let web = service("web", &[80]);
    rig.ensure(&fresh(&web), ReadMode::Fresh)
        .await
        .result
        .unwrap();
    let web = published(&web, &rig.settle(&web).await);
    let rig = rig.restart();
    rig.aws.reset_calls();
    rig.settle(&web).await;
    assert_eq!((rig.aws.load_balancers().len(), rig.aws.writes()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_others_may_have_proves_nothing() {
    // A load balancer with a name of the Service's choice, and one that is not found by any name.
    for renamed in [false, true] {
        let rig = Fixture::new(1);
        let web = with(service("web", &[80]), "name", "first");
        let web = published(&web, &rig.settle(&web).await);
        let rig = rig.restart();
        rig.aws.reset_calls();
        rig.aws.deny(Action::DescribeElbTags);
        let web = if renamed {
            published(&service("web", &[80]), &web.status)
        } else {
            web
        };
        // Also while it is only remembered that the role may not.
        for _ in 0..2 {
            let error = rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{renamed}: {error}");
            assert!(error.to_string().contains("DescribeTags"), "{renamed}: {error}");
        }
        rig.update(&web).await.result.unwrap_err();
        assert_eq!((rig.aws.load_balancers().len(), rig.aws.writes()), (1, 0), "{renamed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreign_target_group_on_our_load_balancer_is_not_taken_over() {
    let (rig, web) = without_permission(&[80]).await;
    let own = rig.aws.target_groups()[0].arn.clone();
    // With the settings of the one that the listener should have.
    let create = CreateTargetGroup {
        port: 30080.try_into().unwrap(),
        ..target_group(&rig, "somebodys")
    };
    let foreign = rig.aws.ask(create).await.unwrap().arn;
    let load_balancer = rig.aws.load_balancers()[0].arn.clone();
    let listener = rig.aws.listeners(&load_balancer).remove(0);
    let spec = ListenerSpec {
        port: 80.try_into().unwrap(),
        protocol: ElbProtocol::Tcp,
        target_group: foreign.clone(),
        certificate: None,
        ssl_policy: None,
        alpn_policy: None,
    };
    let modify = ModifyListener { arn: listener.arn, spec };
    rig.aws.ask(modify).await.unwrap();
    rig.settle(&web).await;
    assert_eq!(rig.aws.targets(&foreign), [""; 0]);
    let listener = rig.aws.listeners(&load_balancer).remove(0);
    assert_eq!(listener.target_group, Some(own));
}

#[tokio::test(start_paused = true)]
async fn an_unused_target_group_of_ours_is_used_again_without_its_old_targets() {
    let (mut rig, web) = without_permission(&[80, 443]).await;
    let less = published(&service("web", &[80]), &web.status);
    rig.settle(&less).await;
    rig.nodes.pop();
    rig.settle(&less).await;
    rig.settle(&web).await;
    let groups = rig.aws.target_groups();
    assert_eq!(groups.len(), 2);
    for group in groups {
        assert_eq!(rig.aws.targets(&group.arn).len(), 1, "{}", group.name);
    }
}
