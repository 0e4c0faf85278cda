//! What is somebody else's stays theirs, whatever a Service is called and asks for; and what is
//! ours is found.

use ccm_core::{k8s::ServiceView, provider::ReadMode};

use super::{
    behaviour::foreign,
    fixture::{Fixture, published, service, with},
};
use crate::{
    api::elb::{CreateTargetGroup, ElbProtocol, TargetType},
    lb::{NetworkLoadBalancers, names},
    ownership_tags::{Cluster, SERVICE_TAG},
    scope::Scope,
};

const OWNED: (&str, &str) = ("kubernetes.io/cluster/test", "owned");

/// The same without an ID of the cluster (`--allow-untagged-cloud`).
fn untagged(mut rig: Fixture) -> Fixture {
    let scope = Scope {
        cluster: Cluster::new("", false),
        ..rig.balancers.reconciler.scope.clone()
    };
    rig.balancers = NetworkLoadBalancers::new(scope, rig.store.clone());
    rig
}

fn same(rig: &Fixture, before: &crate::fake::AccountSnapshot, what: &str) {
    let there = rig.aws.snapshot();
    assert!(there == *before, "{what}: {}", before.diff(&there));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_asked_for_takes_no_balancer_over_that_the_cluster_has_otherwise() {
    // As installers tag the one of the API server.
    for tags in [&[OWNED][..], &[OWNED, ("Name", "api")]] {
        let rig = Fixture::new(1);
        foreign(&rig, "api", tags).await;
        let before = rig.aws.snapshot();
        let web = with(service("web", &[80]), "name", "api");
        let error = rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
        assert_eq!(error.reason(), Some("LoadBalancerNotOwned"), "{error}");
        same(&rig, &before, "ensure");
        rig.remove(&web).await;
        same(&rig, &before, "delete");
        let rig = rig.restart();
        rig.remove(&web).await;
        same(&rig, &before, "delete after a restart");
    }
}

#[tokio::test(start_paused = true)]
async fn a_balancer_under_the_name_that_only_this_service_gets_needs_no_tag_of_the_service() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    foreign(&rig, &names::load_balancer(&web.uid), &[OWNED]).await;
    rig.settle(&web).await;
    assert_eq!(rig.aws.load_balancers().len(), 1);
    let arn = rig.aws.load_balancers()[0].arn.clone();
    assert_eq!(
        rig.aws.tags(&arn).get(SERVICE_TAG).map(|of| &**of),
        Some("default/web"),
        "it has one now"
    );
    rig.aws.untag(&arn, SERVICE_TAG);
    let rig = rig.restart();
    rig.remove(&web).await;
    assert_eq!(rig.aws.load_balancers(), []);
}

#[tokio::test(start_paused = true)]
async fn clusters_without_id_do_not_share_balancers_of_services_of_one_name() {
    let rig = untagged(Fixture::new(1));
    let one = service("web", &[80]);
    let one = published(&one, &rig.settle(&one).await);
    let first = rig.aws.snapshot();
    let mut two = ServiceView {
        uid: "other-0000-0000-0000-000000000000".into(),
        ..service("web", &[80])
    };
    two.ports[0].node_port = 31111.try_into().ok();
    let rig = untagged(rig.restart());
    let status = rig.settle(&two).await;
    assert_ne!(status, one.status);
    assert_eq!(rig.aws.load_balancers().len(), 2);
    assert_eq!(rig.aws.target_groups().len(), 2);
    let two = published(&two, &status);
    assert_eq!(rig.plan(&two).await.unwrap(), []);
    let rig = untagged(rig.restart());
    rig.remove(&two).await;
    same(&rig, &first, "delete");
}

#[tokio::test(start_paused = true)]
async fn a_service_of_a_cluster_without_id_is_deleted_whole() {
    for restart in [false, true] {
        let mut rig = untagged(Fixture::new(2));
        let before = rig.aws.snapshot();
        let web = service("web", &[80, 443]);
        let web = published(&web, &rig.settle(&web).await);
        if restart {
            rig = untagged(rig.restart());
            rig.aws.reset_calls();
            assert_eq!(rig.plan(&web).await.unwrap(), []);
        }
        rig.aws
            .fail_next(crate::api::Action::DeleteTargetGroup, "ResourceInUse");
        rig.remove(&web).await;
        same(&rig, &before, "delete");
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreign_balancer_under_a_name_of_today_hides_none_of_ours_nor_loses_its_rules() {
    let rig = Fixture::new(1);
    let other = with(service("other2", &[81]), "name", "api");
    rig.settle(&other).await;
    let before = rig.aws.snapshot();
    let web = with(service("web", &[80]), "name", "first");
    let web = published(&web, &rig.settle(&web).await);
    let rig = rig.restart();
    let web = with(web, "name", "api");
    rig.remove(&web).await;
    assert_eq!(rig.aws.load_balancers().len(), 1);
    let groups = rig.aws.target_groups();
    assert_eq!(groups.len(), 1, "{groups:?}");
    let there = rig.aws.snapshot();
    let lost: Vec<_> = before
        .objects()
        .into_iter()
        .filter(|object| !there.objects().contains(object))
        .collect();
    assert_eq!(lost, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_service_whose_name_for_a_balancer_is_none_can_be_deleted() {
    for name in ["no such name", "under_score", "-a", "a-", "ä", " "] {
        let rig = Fixture::new(1);
        let before = rig.aws.snapshot();
        let web = service("web", &[80]);
        let web = published(&web, &rig.settle(&web).await);
        let rig = rig.restart();
        rig.remove(&with(web, "name", name)).await;
        same(&rig, &before, name);
    }
}

// A target group of ours may have lost the Service's tag.
#[tokio::test(start_paused = true)]
async fn a_target_group_that_only_our_balancer_uses_is_ours_by_the_tag_of_the_cluster() {
    let rig = Fixture::new(1);
    let before = rig.aws.snapshot();
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let end = rig.aws.snapshot();
    let arn = rig.aws.target_groups()[0].arn.clone();
    rig.aws.untag(&arn, SERVICE_TAG);
    let rig = rig.restart();
    assert_eq!(rig.plan(&web).await.unwrap().len(), 1, "the tag");
    rig.settle(&web).await;
    same(&rig, &end, "mended");
    rig.aws.untag(&arn, SERVICE_TAG);
    let rig = rig.restart();
    rig.remove(&web).await;
    same(&rig, &before, "deleted");
}

/// A target group that somebody creates.
pub(super) fn target_group(rig: &Fixture, name: &str) -> CreateTargetGroup {
    CreateTargetGroup {
        name: name.into(),
        protocol: ElbProtocol::Tcp,
        port: 80.try_into().unwrap(),
        vpc: rig.world.vpc.clone(),
        target_type: TargetType::Instance,
        ip_address_type: None,
        health_check: crate::api::elb::HealthCheck {
            protocol: crate::api::elb::HealthProtocol::Tcp,
            port: crate::api::elb::HealthPort::Traffic,
            path: None,
            interval: 30,
            timeout: 10,
            healthy: 3,
            unhealthy: 3,
            matcher: None,
        },
        tags: [(OWNED.0.into(), OWNED.1.into())].into(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_group_that_is_nobodys_stays_although_it_is_called_like_ours() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let create = target_group(&rig, "k8s-default-web-0123456789");
    rig.aws.ask(create).await.unwrap();
    let before = rig.aws.snapshot();
    rig.settle(&web).await;
    rig.remove(&web).await;
    same(&rig, &before, "deleted");
}
