//! A load balancer that upstream made changes only when the Service or the configuration asks for more
//! than upstream's reading of the annotations.

use std::collections::BTreeSet;

use ccm_core::{
    k8s::ServiceView,
    provider::{LoadBalancers, PlannedChange, ReadMode},
};

use super::fixture::{Fixture, published, service, with};
use crate::{
    api::{
        Action, RequestClass,
        elb::{
            AddListenerCertificates, IpAddressType, ModifyLoadBalancerAttributes,
            ModifyTargetGroup, SetIpAddressType,
        },
    },
    config::{AnnotationDialect, Settings},
};

const DIALECT: &str = "annotation-dialect";

/// What upstream ignores, with values that have an effect in the other dialect or are rejected there.
const DORMANT: [(&str, &str); 23] = [
    ("nlb-target-type", "ip"),
    ("name", "a-name-with-more-than-32-characters"),
    ("scheme", "internal"),
    ("ip-address-type", "dualstack"),
    ("ipv6-addresses", "2001:db8::1"),
    ("enable-prefix-for-ipv6-source-nat", "on"),
    ("source-nat-ipv6-prefixes", "auto_assigned"),
    ("minimum-load-balancer-capacity", "CapacityUnits=3000"),
    ("disable-nlb-sg", "true"),
    ("manage-backend-security-group-rules", "false"),
    ("inbound-sg-rules-on-private-link-traffic", "off"),
    ("security-group-prefix-lists", "pl-1"),
    ("alpn-policy", "HTTP2Only"),
    ("listener-attributes.TCP-80", "tcp.idle_timeout.seconds=400"),
    ("enable-tcp-udp-listener", "false"),
    ("proxy-protocol", "true"),
    ("proxy-protocol-per-target-group", "80"),
    ("target-group-attributes.80", "preserve_client_ip.enabled=false"),
    ("multi-cluster-target-group", "true"),
    ("healthcheck-timeout", "60"),
    ("healthcheck-success-codes", "204"),
    ("attributes", "deletion_protection.enabled=true"),
    ("ssl-ports", "443, 80"),
];

/// Those of them that would change nothing on this Service: it has no UDP and no HTTP check, and `TCP-80`
/// would be `TLS-80`. The ports of `ssl-ports` are read in both dialects.
const HARMLESS: [&str; 4] = [
    "enable-tcp-udp-listener",
    "healthcheck-success-codes",
    "listener-attributes.TCP-80",
    "ssl-ports",
];

/// What upstream reads only when it makes a load balancer, changed since.
const CHANGED_LATER: [(&str, &str); 4] = [
    ("subnets", "no-such-subnet"),
    ("internal", "true"),
    ("eip-allocations", "eipalloc-1"),
    ("additional-resource-tags", "team=green,cost=low"),
];

/// A cluster with a load balancer for a TLS and a TCP port, as upstream makes it, and changes by hand
/// that upstream does not undo.
async fn made_by_upstream() -> (Fixture, ServiceView) {
    let rig = Fixture::configured(2, Settings::default());
    let certificate = rig.aws.certificate();
    let other = rig.aws.certificate();
    let web = with(service("web", &[80, 443]), "type", "nlb");
    let web = with(with(web, "ssl-cert", &certificate), "ssl-ports", "443");
    let web = with(web, "additional-resource-tags", "team=blue");
    let web = published(&web, &rig.settle(&web).await);
    let load_balancer = rig.aws.load_balancers()[0].arn.clone();
    let listeners = rig.aws.listeners(&load_balancer);
    let tls = listeners.iter().find(|listener| listener.port == 443);
    let request =
        AddListenerCertificates { arn: tls.unwrap().arn.clone(), certificates: vec![other] };
    rig.aws.ask(request).await.unwrap();
    for (n, subnet) in rig.world.public.iter().enumerate() {
        rig.aws.add_ipv6(subnet, &format!("2001:db8:0:{n}::/64"));
    }
    let request = SetIpAddressType {
        arn: load_balancer,
        ip_address_type: IpAddressType::Dualstack,
    };
    rig.aws.ask(request).await.unwrap();
    let group = rig.aws.target_groups().remove(0);
    let mut health_check = group.health_check.unwrap();
    (health_check.timeout, health_check.unhealthy) = (25, 4);
    rig.aws
        .ask(ModifyTargetGroup { arn: group.arn, health_check })
        .await
        .unwrap();
    let rig = rig.restart();
    rig.aws.reset_calls();
    (rig, web)
}

fn annotated(service: ServiceView, annotations: &[(&str, &str)]) -> ServiceView {
    annotations
        .iter()
        .fold(service, |service, (name, value)| with(service, name, value))
}

/// The actions that changed something, in order.
fn changes(rig: &Fixture) -> Vec<Action> {
    let mut actions = rig.aws.actions();
    actions.retain(|action| action.class() != RequestClass::Read);
    actions
}

fn notes(rig: &Fixture, wanted: &str) -> Vec<String> {
    let events = rig.events.0.lock();
    events
        .iter()
        .filter(|(_, reason, _)| *reason == wanted)
        .map(|(_, _, note)| note.clone())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_takeover_changes_nothing_and_targets_follow_the_nodes() {
    let (mut rig, web) = made_by_upstream().await;
    let dormant = annotated(web, &DORMANT);
    let web = annotated(dormant.clone(), &CHANGED_LATER);
    let before = rig.aws.snapshot();
    assert_eq!(rig.plan_in_shadow(&web).await, []);
    assert_eq!(rig.plan(&web).await.unwrap(), []);
    for mode in [ReadMode::Cached, ReadMode::Fresh, ReadMode::Fresh] {
        rig.ensure(&web, mode).await.result.unwrap();
    }
    assert_eq!(changes(&rig), []);
    let there = rig.aws.snapshot();
    assert!(there == before, "{}", before.diff(&there));
    // Members follow, both by the update alone and in a full sync.
    rig.add_node();
    rig.update(&web).await.result.unwrap();
    assert_eq!(changes(&rig), [Action::RegisterTargets; 2]);
    rig.aws.reset_calls();
    rig.nodes.pop();
    rig.ensure(&web, ReadMode::Cached).await.result.unwrap();
    assert_eq!(changes(&rig), [Action::DeregisterTargets; 2]);
    // The owner knows.
    let notices = rig.balancers.notices(&dormant);
    let notes: Vec<&str> = notices
        .iter()
        .filter(|notice| notice.reason == "DormantAnnotations")
        .map(|notice| &*notice.note)
        .collect();
    assert!(notes.len() > 1 && notes.iter().all(|note| note.len() < 1024), "{notes:?}");
    for (name, value) in DORMANT {
        let entry = format!("{name}={value:?}");
        let is_named = notes.iter().any(|note| note.contains(&entry));
        assert_eq!(is_named, !HARMLESS.contains(&name), "{name}: {notes:?}");
    }
    // Deletion needs no consent of an annotation that upstream does not know.
    rig.remove(&web).await;
    assert_eq!(rig.aws.load_balancers(), []);
}

/// Annotations whose effects AWS can all apply to the existing load balancer, with the requests.
const ACTIVATED: [(&str, &str, Action); 5] = [
    ("attributes", "zonal_shift.config.enabled=true", Action::ModifyLoadBalancerAttributes),
    ("additional-resource-tags", "team=green", Action::AddElbTags),
    ("proxy-protocol-per-target-group", "80", Action::ModifyTargetGroupAttributes),
    ("alpn-policy", "HTTP2Only", Action::ModifyListener),
    (
        "listener-attributes.TCP-80",
        "tcp.idle_timeout.seconds=400",
        Action::ModifyListenerAttributes,
    ),
];

/// The operations of an event.
fn announced(note: &str) -> BTreeSet<&str> {
    let (_, list) = note.split_once("take effect: ").unwrap();
    list.split("; ")
        .map(|entry| entry.split(' ').next().unwrap())
        .collect()
}

/// Returns what an opt-in may change: everything that was announced, and no more.
async fn check_opt_in(rig: &Fixture, web: &ServiceView) {
    rig.aws.reset_calls();
    rig.settle(web).await;
    let made: BTreeSet<_> = changes(rig).iter().map(|action| action.name()).collect();
    let notes = notes(rig, "AnnotationsActivated");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].len() < 1024, "{}", notes[0]);
    assert_eq!(announced(&notes[0]), made, "{}", notes[0]);
    for (name, _, action) in ACTIVATED {
        assert!(made.contains(action.name()), "{name}: {made:?}");
    }
    // Afterwards nothing is left to do, and nothing is announced again.
    rig.aws.reset_calls();
    rig.ensure(web, ReadMode::Fresh).await.result.unwrap();
    assert_eq!((changes(rig), self::notes(rig, "AnnotationsActivated").len()), (vec![], 1));
}

fn activated(web: ServiceView) -> ServiceView {
    ACTIVATED
        .iter()
        .fold(web, |web, (name, value, _)| with(web, name, value))
}

#[tokio::test(start_paused = true)]
async fn after_the_annotation_exactly_the_announced_changes_are_made() {
    let (rig, web) = made_by_upstream().await;
    let web = activated(web);
    rig.settle(&web).await;
    assert_eq!((changes(&rig), rig.reasons()), (vec![], vec![]));
    let web = with(web, "ip-address-type", "dualstack");
    check_opt_in(&rig, &with(web, DIALECT, "extended")).await;
}

#[tokio::test(start_paused = true)]
async fn after_the_configuration_exactly_the_announced_changes_are_made() {
    let (rig, web) = made_by_upstream().await;
    let web = with(activated(web), "ip-address-type", "dualstack");
    rig.settle(&web).await;
    assert_eq!(changes(&rig), []);
    let rig =
        rig.restart_with(|settings| settings.annotation_dialect = AnnotationDialect::Extended);
    check_opt_in(&rig, &web).await;
}

#[tokio::test(start_paused = true)]
async fn an_announcement_does_not_change_which_rules_are_needed() {
    let (rig, web) = made_by_upstream().await;
    let web = with(activated(web), DIALECT, "extended");
    // The first change fails, so that there are no others.
    rig.aws
        .fail_always(Action::ModifyLoadBalancerAttributes, "InternalFailure");
    rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
    assert_eq!(notes(&rig, "AnnotationsActivated").len(), 1);
    let name = rig.aws.load_balancers().remove(0).name;
    let security_groups = &rig.balancers.reconciler.deps.security_groups;
    assert!(!security_groups.knows_needs_of(&name));
    rig.aws.clear_faults();
    rig.settle(&web).await;
    assert!(security_groups.knows_needs_of(&name));
}

#[tokio::test(start_paused = true)]
async fn an_outage_during_the_comparison_delays_the_changes_with_their_announcement() {
    let (rig, web) = made_by_upstream().await;
    let web = with(activated(web), "ip-address-type", "dualstack");
    let web = with(web, DIALECT, "extended");
    // Only the rules of the comparison read subnets before anything is changed.
    rig.aws
        .fail_always(Action::DescribeSubnets, "InternalFailure");
    rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
    assert_eq!((changes(&rig), notes(&rig, "AnnotationsActivated").len()), (vec![], 0));
    rig.aws.clear_faults();
    check_opt_in(&rig, &web).await;
}

#[tokio::test(start_paused = true)]
async fn the_configuration_removes_no_protection_that_an_ignored_annotation_asks_for() {
    let settings = Settings { remove_deletion_protection: true, ..Settings::default() };
    let rig = Fixture::configured(1, settings);
    let web = with(service("web", &[80]), "type", "nlb");
    let web = published(&web, &rig.settle(&web).await);
    let arn = rig.aws.load_balancers()[0].arn.clone();
    let attributes = [("deletion_protection.enabled".into(), "true".into())].into();
    rig.aws
        .ask(ModifyLoadBalancerAttributes { arn, attributes })
        .await
        .unwrap();
    let protected = with(web.clone(), "attributes", "deletion_protection.enabled=true");
    for _ in 0..2 {
        let error = rig.delete(&protected).await.unwrap_err();
        assert_eq!(error.reason(), Some("DeletionProtected"), "{error}");
        assert_eq!(rig.aws.load_balancers().len(), 1);
    }
    rig.remove(&web).await;
    assert_eq!(rig.aws.load_balancers(), []);
}

#[tokio::test(start_paused = true)]
async fn a_managed_group_keeps_its_tags() {
    let settings = Settings { managed_security_groups: true, ..Settings::default() };
    let rig = Fixture::configured(1, settings);
    let web = with(service("web", &[80]), "type", "nlb");
    let web = published(&web, &rig.settle(&web).await);
    let rig = rig.restart();
    rig.aws.reset_calls();
    let before = rig.aws.snapshot();
    // AWS would refuse the second one.
    let web = with(web, "additional-resource-tags", "team=green,aws:x=y");
    assert_eq!(rig.plan(&web).await.unwrap(), []);
    rig.ensure(&web, ReadMode::Fresh).await.result.unwrap();
    let there = rig.aws.snapshot();
    assert!(there == before, "{}", before.diff(&there));
    // The other dialect adds them.
    let web = with(web, "additional-resource-tags", "team=green");
    rig.settle(&with(web, DIALECT, "extended")).await;
    assert!(changes(&rig).contains(&Action::CreateTags));
}

#[tokio::test(start_paused = true)]
async fn what_is_made_with_all_annotations_is_not_announced() {
    let rig = Fixture::new(1);
    let web = with(service("web", &[80]), "proxy-protocol", "*");
    let web = published(&web, &rig.settle(&web).await);
    rig.settle(&with(web, "attributes", "zonal_shift.config.enabled=true"))
        .await;
    assert_eq!(notes(&rig, "AnnotationsActivated"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_upstream_reads_at_creation_must_be_right_for_a_new_load_balancer() {
    let rig = Fixture::configured(1, Settings::default());
    let web = with(service("web", &[80]), "type", "nlb");
    let web = with(with(web, "internal", "true"), "private-ipv4-addresses", "10.0.0.x");
    let outcome = rig.ensure(&web, ReadMode::Fresh).await;
    let error = outcome.result.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("must be valid IP address: 10.0.0.x"),
        "{error}"
    );
    assert_eq!((rig.aws.load_balancers(), changes(&rig)), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn shadow_mode_compares_attributes_at_once() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let rig = rig.restart();
    let web = with(web, "proxy-protocol", "*");
    // An active process leaves them to the drift check.
    assert_eq!(rig.plan(&web).await.unwrap(), []);
    let rig = rig.restart();
    let planned = rig.plan_in_shadow(&web).await;
    assert_eq!(operations(&planned), ["ModifyTargetGroupAttributes"]);
    assert_eq!(rig.plan_in_shadow(&web).await, planned, "again");
}

fn operations(planned: &[PlannedChange]) -> Vec<&str> {
    planned.iter().map(|change| &*change.operation).collect()
}
