//! What cannot be had keeps nobody from looking after what can, and what was asked for before is
//! taken back.

use std::time::Duration;

use ccm_core::{
    k8s::{ServiceView, SessionAffinity},
    provider::{
        BackendKind, CloudError, ErrorKind, LbOutcome, LoadBalancers, Progress, ReadMode,
        ServiceInterpretation,
    },
};

use super::fixture::{Fixture, node, published, service, with};
use crate::api::{Action, RequestClass, elb::ModifyTargetGroupAttributes};

/// Members of the one target group, without their ports.
fn members(rig: &Fixture) -> Vec<String> {
    let found = rig.aws.targets(&rig.aws.target_groups()[0].arn);
    found
        .iter()
        .map(|target| target.split(':').next().unwrap().to_owned())
        .collect()
}

fn kind(outcome: &LbOutcome) -> Option<ErrorKind> {
    outcome.result.as_ref().err().map(CloudError::kind)
}

#[tokio::test(start_paused = true)]
async fn nodes_are_followed_under_a_scheme_that_cannot_change() {
    for restarts in [false, true] {
        let mut rig = Fixture::new(2);
        let web = service("web", &[80]);
        let web = published(&web, &rig.settle(&web).await);
        let web = with(web, "scheme", "internal");
        if restarts {
            rig = rig.restart();
            assert_eq!(rig.plan(&web).await.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(kind(&rig.ensure(&web, ReadMode::Fresh).await), Some(ErrorKind::InvalidInput));
        rig.nodes.remove(0);
        let new = rig.add_node();
        let outcome = rig.update(&web).await;
        assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
        let found = members(&rig);
        assert!(found.len() == 2 && found.contains(&new.to_string()), "{restarts}: {found:?}");
    }
}

/// After a restart, with nothing known but that the Service shows a load balancer: its targets
/// follow, and nothing else changes.
#[tokio::test(start_paused = true)]
async fn nodes_of_an_invalid_service_are_followed_and_nothing_is_opened() {
    let valid = service("web", &[80]);
    let refused_ranges = ServiceView {
        source_ranges: ["10.0.0.0/33".into()].into(),
        ..valid.clone()
    };
    let address = ServiceView { load_balancer_ip: Some("10.0.0.1".into()), ..valid.clone() };
    for (wrong, invalid) in [
        ("a type that nobody knows", with(valid.clone(), "type", "nonsense")),
        (
            "a setting that a network load balancer lacks",
            with(valid.clone(), "extra-security-groups", "sg-1"),
        ),
        ("a network that is none", refused_ranges),
        ("an address", address),
        ("a health check", with(valid.clone(), "healthcheck-protocol", "gopher")),
    ] {
        let mut rig = Fixture::new(2);
        let status = rig.settle(&valid).await;
        rig = rig.restart();
        let web = published(&invalid, &status);
        assert!(
            matches!(rig.balancers.interpret(&web), ServiceInterpretation::Invalid(_)),
            "{wrong}"
        );
        let nodes = Some(BackendKind::Nodes(Vec::new()));
        assert_eq!(rig.balancers.backends_of_invalid(&web), nodes, "{wrong}");
        rig.nodes.remove(0);
        // In a security group without any rule for the load balancer.
        let group = rig.aws.security_group(&rig.world.vpc, "new", &[]);
        let new = rig
            .aws
            .instance(&rig.world.private[0])
            .group(&group)
            .launch();
        rig.nodes.push(node(&new));
        rig.aws.reset_calls();
        let outcome = rig.update(&web).await;
        assert!(matches!(outcome.result, Ok(Progress::Done)), "{wrong}: {outcome:?}");
        let found = members(&rig);
        assert!(found.len() == 2 && found.contains(&new.to_string()), "{wrong}: {found:?}");
        let changes: Vec<_> = Action::ALL
            .iter()
            .filter(|a| a.class() == RequestClass::Write && rig.aws.calls(**a) > 0)
            .collect();
        assert_eq!(changes, [&Action::RegisterTargets, &Action::DeregisterTargets], "{wrong}");
        // Nothing else of it is done.
        assert_eq!(
            kind(&rig.ensure(&web, ReadMode::Fresh).await),
            Some(ErrorKind::InvalidInput),
            "{wrong}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_group_cannot_be_told_keeps_no_other_out_and_none_in() {
    let mut rig = Fixture::new(2);
    let web = service("web", &[80]);
    rig.settle(&web).await;
    rig.nodes.remove(0);
    let groups = ["one", "two"].map(|name| rig.aws.security_group(&rig.world.vpc, name, &[]));
    let odd = rig
        .aws
        .instance(&rig.world.private[0])
        .group(&groups[0])
        .group(&groups[1])
        .launch();
    rig.nodes.push(node(&odd));
    let wanted = [rig.world.nodes[1].to_string(), odd.to_string()];
    for _ in 0..2 {
        let outcome = rig.update(&web).await;
        assert_eq!(kind(&outcome), Some(ErrorKind::InvalidInput), "{outcome:?}");
        let found = members(&rig);
        assert!(found.len() == 2 && wanted.iter().all(|id| found.contains(id)), "{found:?}");
    }
    // One of them is the cluster's now.
    rig.aws
        .tag(&groups[0], "kubernetes.io/cluster/test", "owned");
    tokio::time::sleep(Duration::from_hours(2)).await;
    assert!(matches!(rig.update(&web).await.result, Ok(Progress::Done)));
    assert!(!rig.aws.rules(&groups[0]).is_empty());
}

fn sticky(service: &ServiceView) -> ServiceView {
    let affinity = SessionAffinity::ClientIp(Duration::from_secs(10_800));
    ServiceView { session_affinity: affinity, ..service.clone() }
}

#[tokio::test(start_paused = true)]
async fn affinity_that_is_taken_back_ends_and_what_somebody_else_set_stays() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let is_sticky = |rig: &Fixture| {
        let attributes = rig.aws.attributes(&rig.aws.target_groups()[0].arn);
        attributes
            .get("stickiness.enabled")
            .is_some_and(|value| &**value == "true")
    };
    rig.settle(&sticky(&web)).await;
    assert!(is_sticky(&rig));
    // An attempt that fails does not make it forgotten.
    rig.aws
        .fail_next(Action::ModifyTargetGroupAttributes, "InternalFailure");
    rig.ensure(&web, ReadMode::Cached).await.result.unwrap_err();
    rig.settle(&web).await;
    assert!(!is_sticky(&rig));
    let arn = rig.aws.target_groups()[0].arn.clone();
    let attributes = [("stickiness.enabled".into(), "true".into())].into();
    let by_hand = ModifyTargetGroupAttributes { arn, attributes };
    rig.aws
        .client()
        .write(&rig.op(), by_hand, "by hand")
        .await
        .unwrap();
    rig.settle(&web).await;
    assert!(is_sticky(&rig), "no Service asked for it");
}

#[tokio::test(start_paused = true)]
async fn tags_of_an_attempt_that_failed_go_with_their_annotation() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    rig.settle(&web).await;
    let has = |rig: &Fixture| {
        rig.aws
            .tags(&rig.aws.load_balancers()[0].arn)
            .contains_key("team")
    };
    let tagged =
        with(with(web.clone(), "additional-resource-tags", "team=a"), "healthcheck-port", "9000");
    rig.aws
        .fail_always(Action::ModifyTargetGroup, "AccessDenied");
    rig.ensure(&tagged, ReadMode::Cached)
        .await
        .result
        .unwrap_err();
    assert!(has(&rig));
    rig.aws.clear_faults();
    rig.settle(&web).await;
    assert!(!has(&rig));
}

#[tokio::test(start_paused = true)]
async fn addresses_in_discovered_subnets_cannot_change_and_it_is_told() {
    let rig = Fixture::new(1);
    let addresses = || {
        (0..3)
            .map(|_| rig.aws.elastic_ip().to_string())
            .collect::<Vec<_>>()
    };
    let (first, other) = (addresses(), addresses());
    let web = with(service("web", &[80]), "eip-allocations", &first.join(","));
    rig.settle(&web).await;
    let there = rig.aws.snapshot();
    let outcome = rig
        .ensure(&with(web.clone(), "eip-allocations", &other.join(",")), ReadMode::Cached)
        .await;
    let error = outcome.result.unwrap_err();
    assert!(
        error.kind() == ErrorKind::InvalidInput && error.to_string().contains(&first[0]),
        "{error}"
    );
    assert!(rig.aws.snapshot() == there);
    rig.settle(&web).await;
}

// LB6
#[tokio::test(start_paused = true)]
async fn elastic_ips_of_named_subnets_are_compared_as_a_set() {
    let rig = Fixture::new(1);
    let ids: Vec<_> = (0..3).map(|_| rig.aws.elastic_ip().to_string()).collect();
    let subnets: Vec<_> = rig.world.public.iter().map(ToString::to_string).collect();
    let placed = |subnets: &[&str], ids: &[&str]| {
        let web = with(service("web", &[80]), "subnets", &subnets.join(","));
        with(web, "eip-allocations", &ids.join(","))
    };
    let (a, b, c) = (&*subnets[0], &*subnets[1], &*subnets[2]);
    let (first, second, third) = (&*ids[0], &*ids[1], &*ids[2]);
    // As upstream may have made it: in the order in which EC2 lists the subnets.
    let there = rig.settle(&placed(&[a, b], &[first, second])).await;
    for changed in [placed(&[a, b], &[second, first]), placed(&[b, a], &[first, second])] {
        let changed = published(&changed, &there);
        rig.aws.reset_calls();
        assert_eq!(rig.plan(&changed).await.unwrap(), []);
        rig.settle(&changed).await;
        assert_eq!(rig.aws.writes(), 0);
    }
    // A new subnet gets the address that no other has, and no address moves.
    rig.settle(&placed(&[c, b, a], &[first, second, third]))
        .await;
    let zones = rig.aws.load_balancers().remove(0).zones;
    for (subnet, id) in [(a, first), (b, second), (c, third)] {
        let zone = zones
            .iter()
            .find(|zone| zone.subnet.as_deref() == Some(subnet))
            .unwrap();
        assert_eq!(zone.allocations, [id.into()], "{subnet}");
    }
    // An address that the load balancer does not have is still an error.
    let other = rig.aws.elastic_ip().to_string();
    let outcome = rig
        .ensure(&placed(&[a, b, c], &[first, second, &other]), ReadMode::Cached)
        .await;
    let error = outcome.result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}
