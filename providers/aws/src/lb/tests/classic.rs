//! Services with a classic load balancer: as upstream makes, changes and deletes it.

use ccm_core::{
    k8s::{ServiceView, TrafficPolicy},
    provider::{BackendKind, ErrorKind, LabelRequirement, LoadBalancers, Progress, ReadMode},
};

use super::{
    classic_upstream::made_by_upstream,
    fixture::{Fixture, node, published, service, showing, with},
};
use crate::{
    api::{
        Action,
        classic::{AddClassicTags, ClassicLoadBalancer},
        ec2::InstanceState,
        elb::Scheme,
    },
    config::{AnnotationDialect, DefaultType, Settings},
    fake::Crash,
    lb::names,
};

/// A process with upstream's configuration, in which nothing says which load balancers are made.
fn upstreams(nodes: usize) -> Fixture {
    Fixture::configured(nodes, Settings::default())
}

fn the_only(rig: &Fixture) -> ClassicLoadBalancer {
    let mut all = rig.aws.classics();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Creates the load balancer of a Service, and returns the Service as it is then.
async fn made(rig: &Fixture, web: &ServiceView) -> ServiceView {
    let status = rig.settle(web).await;
    published(web, &status)
}

fn same(rig: &Fixture, expected: &crate::fake::AccountSnapshot, what: &str) {
    let found = rig.aws.snapshot();
    assert_eq!(found, *expected, "{what}:\n{}", expected.diff(&found));
}

#[tokio::test(start_paused = true)]
async fn a_service_without_type_gets_what_upstream_makes() {
    let (ours, theirs) = (upstreams(3), upstreams(3));
    let web = service("web", &[80, 443]);
    let status = ours.settle(&web).await;
    made_by_upstream(&theirs, &web, &[0, 1, 2]).await;
    same(&ours, &theirs.aws.snapshot(), "ours and upstream's");
    let shown = status.ingress[0].hostname.clone().unwrap();
    assert_eq!(shown, the_only(&ours).dns_name);
    assert_eq!(ours.aws.load_balancers(), []);
}

#[tokio::test(start_paused = true)]
async fn taking_over_changes_nothing_and_members_follow_the_nodes() {
    for default_type in [DefaultType::Unset, DefaultType::Nlb] {
        let settings = Settings { default_type, ..Settings::default() };
        let mut rig = Fixture::configured(3, settings);
        let web = service("web", &[80, 443]);
        let host = made_by_upstream(&rig, &web, &[0, 1, 2]).await;
        let web = showing(&web, &host);
        let before = rig.aws.snapshot();
        rig.aws.reset_calls();
        assert_eq!(rig.plan_in_shadow(&web).await, [], "{default_type:?}");
        let outcome = rig.ensure(&web, ReadMode::Fresh).await;
        assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
        assert_eq!(outcome.status, Some(web.status.clone()), "its status stays");
        assert_eq!(rig.aws.writes(), 0, "{default_type:?}");
        same(&rig, &before, "takeover");
        assert_eq!(rig.reasons(), [""; 0]);
        // A new node group with a security group of its own takes the place of the old one.
        let group = rig.aws.security_group(
            &rig.world.vpc,
            "new-nodes",
            &[("kubernetes.io/cluster/test", "owned")],
        );
        let id = rig
            .aws
            .instance(&rig.world.private[0])
            .group(&group)
            .launch();
        rig.nodes.push(node(&id));
        let outcome = rig.update(&web).await;
        assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
        assert_eq!(the_only(&rig).instances.len(), 4);
        let own = the_only(&rig).security_groups;
        let admits = |group| {
            let rules = rig.aws.rules(group);
            rules
                .iter()
                .any(|rule| format!("{:?}", rule.source).contains(&*own[0]))
        };
        assert!(admits(&group) && admits(&rig.world.node_group));
        rig.nodes.drain(..3);
        let outcome = rig.update(&web).await;
        assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
        let own = the_only(&rig).security_groups;
        assert_eq!(the_only(&rig).instances, [id]);
        let text = format!("{:?}", rig.aws.rules(&rig.world.node_group));
        assert!(!text.contains(&*own[0]), "no node of the old group is left: {text}");
        assert_eq!(rig.plan(&web).await.unwrap(), []);
    }
}

/// Services that differ in everything that a classic load balancer has.
fn variants(rig: &Fixture) -> Vec<(&'static str, ServiceView)> {
    let certificate = rig.aws.certificate();
    let other = rig.aws.certificate();
    let one = rig.aws.security_group(&rig.world.vpc, "one", &[]);
    let two = rig.aws.security_group(&rig.world.vpc, "two", &[]);
    let web = || service("web", &[80, 443]);
    let tls = || with(with(web(), "ssl-cert", &certificate), "ssl-ports", "443");
    let mut local = web();
    local.external_traffic_policy = TrafficPolicy::Local;
    local.health_check_node_port = 32000.try_into().ok();
    let mut limited = web();
    limited.source_ranges = Box::from(["198.51.100.0/24".into(), "203.0.113.0/24".into()]);
    let log = with(with(web(), "access-log-enabled", "true"), "access-log-s3-bucket-name", "logs");
    let subnets = rig.world.public[..2]
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    vec![
        ("plain", web()),
        ("ports", service("web", &[443, 8443])),
        ("http", with(web(), "backend-protocol", "http")),
        ("tls", tls()),
        ("other certificate", with(tls(), "ssl-cert", &other)),
        ("https", with(tls(), "backend-protocol", "https")),
        ("policy", with(tls(), "ssl-negotiation-policy", "ELBSecurityPolicy-TLS-1-2-2017-01")),
        ("proxy protocol", with(web(), "proxy-protocol", "*")),
        ("local", local),
        ("check", with(with(web(), "healthcheck-protocol", "http"), "healthcheck-path", "/up")),
        ("sources", limited),
        ("given groups", with(web(), "security-groups", &one)),
        ("extra groups", with(web(), "extra-security-groups", &format!("{one},{two}"))),
        ("both", with(with(web(), "security-groups", &two), "extra-security-groups", &one)),
        ("draining", with(web(), "connection-draining-enabled", "true")),
        ("idle timeout", with(web(), "connection-idle-timeout", "120")),
        ("cross-zone", with(web(), "cross-zone-load-balancing-enabled", "true")),
        ("log", log),
        ("subnets", with(web(), "subnets", &subnets.join(","))),
        ("internal", with(web(), "internal", "true")),
    ]
}

/// The account with one variant as a new load balancer.
async fn fresh(number: usize) -> Fixture {
    let rig = upstreams(2);
    let (name, web) = variants(&rig).swap_remove(number);
    let web = made(&rig, &web).await;
    assert_eq!(rig.plan(&web).await.unwrap(), [], "{name}: nothing is left to do");
    rig.aws.reset_calls();
    let outcome = rig.ensure(&web, ReadMode::Fresh).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{name}: {outcome:?}");
    assert_eq!(rig.aws.writes(), 0, "{name}");
    rig
}

#[tokio::test(start_paused = true)]
async fn each_change_ends_where_a_new_load_balancer_would_and_goes_back() {
    let plain = fresh(0).await.aws.snapshot();
    // The scheme of an existing load balancer cannot change.
    let count = variants(&upstreams(2)).len() - 1;
    for number in 1..count {
        let rig = upstreams(2);
        let empty = {
            let rig = upstreams(2);
            variants(&rig);
            rig.aws.snapshot()
        };
        let all = variants(&rig);
        let (name, web) = &all[number];
        let shown = made(&rig, &all[0].1).await;
        let web = published(web, &shown.status);
        let planned = rig.plan(&web).await.unwrap();
        assert!(!planned.is_empty(), "{name}: shadow mode tells");
        rig.settle(&web).await;
        same(&rig, &fresh(number).await.aws.snapshot(), name);
        assert_eq!(rig.plan(&web).await.unwrap(), [], "{name}");
        rig.settle(&shown).await;
        let there = rig.aws.snapshot();
        // AWS keeps the timeout of draining and the bucket of a disabled log.
        if !["draining", "log"].contains(name) {
            assert_eq!(there, plain, "{name} and back:\n{}", plain.diff(&there));
        }
        rig.remove(&shown).await;
        same(&rig, &empty, name);
    }
}

#[tokio::test(start_paused = true)]
async fn new_ones_have_everything_and_deletion_leaves_nothing() {
    for number in 0..variants(&upstreams(2)).len() {
        let rig = fresh(number).await;
        let mut classic = the_only(&rig);
        classic.instances.sort();
        assert_eq!(classic.instances, rig.world.nodes);
        let web = {
            let (name, web) = variants(&upstreams(2)).swap_remove(number);
            let is_internal = name.starts_with("internal");
            assert_eq!(classic.scheme == Some(Scheme::Internal), is_internal, "{name}");
            showing(&web, &classic.dns_name)
        };
        let empty = {
            let rig = upstreams(2);
            variants(&rig);
            rig.aws.snapshot()
        };
        let rig = rig.restart();
        rig.remove(&web).await;
        same(&rig, &empty, "deletion");
    }
}

/// What shadow mode says, and what is then done, in the words of AWS.
async fn planned_and_sent(rig: &Fixture, web: &ServiceView) -> [Vec<String>; 2] {
    let planned = rig.plan_in_shadow(web).await;
    let planned = planned.iter().map(|change| change.operation.to_string());
    let mut planned: Vec<_> = planned.filter(|it| it != "publish_status").collect();
    rig.aws.reset_calls();
    rig.settle(web).await;
    let calls = rig.aws.log();
    let writes = calls
        .iter()
        .map(crate::api::Call::action)
        .filter(|action| action.class() == crate::api::RequestClass::Write);
    let mut sent: Vec<_> = writes.map(|action| action.name().to_owned()).collect();
    planned.sort_unstable();
    sent.sort_unstable();
    [planned, sent]
}

#[tokio::test(start_paused = true)]
async fn shadow_mode_lists_every_request_of_a_new_one() {
    for number in 0..variants(&upstreams(2)).len() {
        let rig = upstreams(2);
        let (name, web) = variants(&rig).swap_remove(number);
        let [planned, sent] = planned_and_sent(&rig, &web).await;
        assert!(planned.len() >= 4, "{name}: {planned:?}");
        assert_eq!(planned, sent, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn shadow_mode_lists_the_status_of_a_new_one_and_no_rules_that_are_not_managed() {
    let settings = Settings { disable_security_group_ingress: true, ..Settings::default() };
    let rig = Fixture::configured(1, settings);
    let web = service("web", &[80]);
    let planned = rig.plan_in_shadow(&web).await;
    assert_eq!(&*planned.last().unwrap().operation, "publish_status");
    let [planned, sent] = planned_and_sent(&rig, &web).await;
    assert_eq!(planned, sent);
}

// Nobody but the process knows what the Service had asked for. What it never asked for stays: somebody
// may have set it by hand.
#[tokio::test(start_paused = true)]
async fn a_removed_setting_of_the_access_log_goes_back_to_the_default() {
    for (key, value) in [("access-log-s3-bucket-prefix", "a"), ("access-log-emit-interval", "5")] {
        let rig = upstreams(1);
        let log = with(service("web", &[80]), "access-log-enabled", "true");
        let log = with(log, "access-log-s3-bucket-name", "logs");
        let web = made(&rig, &with(log.clone(), key, value)).await;
        let log = published(&log, &web.status);
        let name = the_only(&rig).name;
        let set = rig.aws.classic_settings(&name).0.access_log.unwrap();
        // A process that finds the load balancer like this leaves it alone.
        let rig = rig.restart();
        assert_eq!(rig.plan_in_shadow(&log).await, [], "{key}");
        rig.settle(&log).await;
        assert_eq!(rig.aws.classic_settings(&name).0.access_log.as_ref(), Some(&set), "{key}");
        // One that knows what the Service asked for does not.
        assert_eq!(rig.plan_in_shadow(&web).await, [], "{key}");
        assert_eq!(rig.plan_in_shadow(&log).await.len(), 1, "{key}");
        rig.aws
            .fail_next(Action::ModifyClassicAttributes, "InternalError");
        rig.settle(&log).await;
        let now = rig.aws.classic_settings(&name).0.access_log.unwrap();
        assert_eq!((now.prefix, now.interval, now.enabled), (None, Some(60), true), "{key}");
        assert_eq!(now.bucket, set.bucket, "{key}");
        assert_eq!(rig.plan_in_shadow(&log).await, [], "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_group_is_deleted_once_nothing_uses_it() {
    let rig = upstreams(1);
    let empty = rig.aws.snapshot();
    rig.aws
        .configure(|options| options.interfaces_linger = std::time::Duration::from_secs(60));
    let web = made(&rig, &service("web", &[80])).await;
    let first = rig.delete(&web).await.unwrap();
    assert!(matches!(first, Progress::Pending { .. }), "{first:?}");
    assert_eq!(rig.aws.classics(), []);
    rig.remove(&web).await;
    same(&rig, &empty, "in the end");
}

// Upstream revokes the rule of a group that two Services share when one of them goes.
#[tokio::test(start_paused = true)]
async fn a_rule_that_another_load_balancer_needs_stays() {
    let rig = upstreams(1);
    let shared = rig.aws.security_group(&rig.world.vpc, "shared", &[]);
    let web = made(&rig, &with(service("web", &[80]), "security-groups", &shared)).await;
    let api = made(&rig, &with(service("api1", &[80]), "security-groups", &shared)).await;
    assert_eq!(rig.aws.rules(&rig.world.node_group).len(), 1);
    rig.remove(&web).await;
    assert_eq!(rig.aws.rules(&rig.world.node_group).len(), 1);
    rig.remove(&api).await;
    assert_eq!(rig.aws.rules(&rig.world.node_group), []);
}

#[tokio::test(start_paused = true)]
async fn somebody_elses_is_never_changed_nor_deleted() {
    // Tags that name nobody say nothing: somebody may have removed those of the Service's own one.
    let cases: [(&[(&str, &str)], bool); 6] = [
        (&[], true),
        (&[("team", "a")], true),
        (&[("kubernetes.io/cluster/test", "shared")], true),
        (&[("kubernetes.io/cluster/other", "owned")], false),
        (
            &[
                ("kubernetes.io/cluster/test", "owned"),
                ("kubernetes.io/service-name", "default/api"),
            ],
            false,
        ),
        (&[("kubernetes.io/cluster/test", "owned"), ("elbv2.k8s.aws/cluster", "test")], false),
    ];
    for (tags, is_in_doubt) in cases {
        let rig = upstreams(1);
        let web = service("web", &[80]);
        let name = names::load_balancer(&web.uid);
        rig.aws
            .classic(&name, &[rig.world.node_group.clone()], &[], tags);
        let before = rig.aws.snapshot();
        let web = showing(&web, &the_only(&rig).dns_name);
        let outcome = rig.ensure(&web, ReadMode::Fresh).await;
        assert_eq!(outcome.result.unwrap_err().kind(), ErrorKind::InvalidInput, "{tags:?}");
        assert!(rig.update(&web).await.result.is_err(), "{tags:?}");
        match rig.delete(&web).await {
            Err(error) if is_in_doubt => {
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{tags:?}");
            }
            other => assert_eq!((other.unwrap(), is_in_doubt), (Progress::Done, false), "{tags:?}"),
        }
        same(&rig, &before, "somebody else's");
        assert_eq!(rig.aws.writes(), 0, "{tags:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_permission_to_read_tags_the_name_is_enough_to_serve_but_not_to_delete() {
    let mut rig = upstreams(2);
    let web = made(&rig, &service("web", &[80])).await;
    let mut rig2 = {
        rig.nodes.pop();
        rig.restart()
    };
    rig2.aws.deny(Action::DescribeClassicTags);
    rig2.aws.reset_calls();
    let changed = with(web.clone(), "connection-idle-timeout", "90");
    let changed = with(changed, "additional-resource-tags", "team=a");
    let outcome = rig2.ensure(&changed, ReadMode::Fresh).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    assert_eq!(the_only(&rig2).instances.len(), 1);
    let (attributes, tags) = rig2.aws.classic_settings(&the_only(&rig2).name);
    assert_eq!(attributes.idle_timeout, Some(90));
    assert!(!tags.contains_key("team"), "tags that cannot be read are not compared");
    assert_eq!(rig2.reasons(), ["AWSPermissionDenied"]);
    let error = rig2.delete(&changed).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(rig2.aws.classics().len(), 1);
    rig2.aws.clear_faults();
    rig2 = rig2.restart();
    rig2.remove(&changed).await;
    assert_eq!(rig2.aws.classics(), []);
}

#[tokio::test(start_paused = true)]
async fn attributes_that_cannot_be_read_stay() {
    let rig = upstreams(1);
    let web = made(&rig, &service("web", &[80])).await;
    let rig = rig.restart();
    rig.aws.deny(Action::DescribeClassicAttributes);
    let web = with(web, "connection-idle-timeout", "90");
    let outcome = rig.ensure(&web, ReadMode::Fresh).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    assert_eq!(rig.aws.calls(Action::ModifyClassicAttributes), 0);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_service_keeps_its_load_balancer_and_members_follow() {
    let mut rig = upstreams(3);
    let web = made(&rig, &service("web", &[80])).await;
    let before = the_only(&rig);
    rig.nodes.pop();
    let web = with(with(web, "proxy-protocol", "80"), "connection-idle-timeout", "90");
    let outcome = rig.ensure(&web, ReadMode::Fresh).await;
    let error = outcome.result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(the_only(&rig).instances.len(), 2);
    rig.nodes.pop();
    assert!(matches!(rig.update(&web).await.result, Ok(Progress::Done)));
    let expected = ClassicLoadBalancer { instances: rig.world.nodes[..1].to_vec(), ..before };
    assert_eq!(the_only(&rig), expected, "nothing else changes");
}

// AWS rejects a change: the rest of the load balancer must not go out of date with it.
#[tokio::test(start_paused = true)]
async fn members_follow_even_if_a_change_is_rejected() {
    let mut rig = upstreams(3);
    let web = made(&rig, &service("web", &[80])).await;
    rig.nodes.pop();
    let web = with(web, "ssl-cert", "arn:aws:acm:us-west-2:123456789012:certificate/none");
    let outcome = rig.ensure(&web, ReadMode::Fresh).await;
    assert!(outcome.result.is_err(), "{outcome:?}");
    assert_eq!(the_only(&rig).instances.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_asks_for_another_type_keeps_its_members_and_is_told() {
    let mut rig = upstreams(2);
    let web = made(&rig, &service("web", &[80])).await;
    rig.nodes.pop();
    let web = with(with(web, "type", "nlb"), "cross-zone-load-balancing-enabled", "true");
    rig.aws.reset_calls();
    let outcome = rig.ensure(&web, ReadMode::Fresh).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    assert_eq!(rig.reasons(), ["ClassicLoadBalancer"]);
    assert_eq!(the_only(&rig).instances.len(), 1);
    assert_eq!(rig.aws.writes(), 1);
    assert_eq!(rig.aws.load_balancers(), [], "no network load balancer beside it");
    assert_eq!(rig.plan(&web).await.unwrap(), []);
    rig.remove(&web).await;
    assert_eq!(rig.aws.classics(), []);
}

#[tokio::test(start_paused = true)]
async fn a_network_load_balancer_is_never_joined_by_a_classic_one() {
    let rig = upstreams(1);
    let nlb = with(service("web", &[80]), "type", "nlb");
    let status = rig.settle(&nlb).await;
    let untyped = service("web", &[80]);
    for web in [published(&untyped, &status), untyped] {
        let outcome = rig.ensure(&web, ReadMode::Fresh).await;
        let error = outcome.result.unwrap_err();
        assert!(
            error
                .to_string()
                .contains("cannot update Load Balancer Type"),
            "{error}"
        );
        assert_eq!(rig.aws.classics(), []);
        assert_eq!(rig.aws.load_balancers().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_network_balancer_with_a_classic_name_is_what_it_is() {
    let rig = Fixture::new(1);
    rig.aws
        .configure(|options| options.classic_host_names = true);
    let web = service("web", &[80]);
    let status = rig.settle(&web).await;
    let shown = status.ingress[0].hostname.clone().unwrap();
    assert!(shown.ends_with(".elb.amazonaws.com"), "{shown}");
    let rig = rig.restart();
    rig.aws.reset_calls();
    let web = published(&web, &status);
    assert!(matches!(rig.ensure(&web, ReadMode::Fresh).await.result, Ok(Progress::Done)));
    assert_eq!(rig.aws.writes(), 0);
    assert_eq!(rig.aws.calls(Action::DescribeClassic), 0);
}

// What upstream takes is taken, whatever it is called.
#[tokio::test(start_paused = true)]
async fn other_types_are_classic_in_upstreams_dialect_only() {
    let rig = upstreams(1);
    for kind in ["clb", "classic", "NLB"] {
        let web = with(service("web", &[80]), "type", kind);
        let shown = made(&rig, &web).await;
        assert_eq!(rig.aws.classics().len(), 1, "{kind}");
        rig.remove(&shown).await;
    }
    let extended = Fixture::configured(
        1,
        Settings {
            annotation_dialect: AnnotationDialect::Extended,
            ..Settings::default()
        },
    );
    let web = with(service("web", &[80]), "type", "clb");
    assert!(extended.ensure(&web, ReadMode::Fresh).await.result.is_err());
    assert_eq!(extended.aws.classics(), []);
}

#[tokio::test(start_paused = true)]
async fn a_service_in_sync_takes_no_request_until_it_changes() {
    let mut rig = upstreams(2);
    let web = made(&rig, &service("web", &[80])).await;
    rig.aws.reset_calls();
    let outcome = rig.ensure(&web, ReadMode::Cached).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    assert_eq!(outcome.status, Some(web.status.clone()));
    assert_eq!(rig.aws.requests(), 0);
    // The drift check of one Service.
    rig.ensure(&web, ReadMode::Fresh).await.result.unwrap();
    assert_eq!(
        rig.aws.actions(),
        [Action::DescribeClassic, Action::DescribeClassicTags, Action::DescribeClassicAttributes]
    );
    let changed = with(web.clone(), "connection-idle-timeout", "90");
    rig.ensure(&changed, ReadMode::Cached).await.result.unwrap();
    assert_eq!(rig.aws.calls(Action::ModifyClassicAttributes), 1);
    rig.nodes.pop();
    rig.ensure(&changed, ReadMode::Cached).await.result.unwrap();
    assert_eq!(the_only(&rig).instances.len(), 1);
}

// Of a Service with the chart's configuration, only the reading as a classic one changes.
#[tokio::test(start_paused = true)]
async fn a_change_that_only_classic_load_balancers_know_is_seen() {
    let settings = Settings { default_type: DefaultType::Nlb, ..Settings::default() };
    let rig = Fixture::configured(1, settings);
    let web = service("web", &[80]);
    let host = made_by_upstream(&rig, &web, &[0]).await;
    let web = showing(&web, &host);
    let changed = with(web.clone(), "connection-idle-timeout", "90");
    let digest = |service: &ServiceView| match rig.balancers.interpret(service) {
        ccm_core::provider::ServiceInterpretation::Valid { digest, .. } => digest,
        other => panic!("{other:?}"),
    };
    assert_ne!(digest(&web), digest(&changed));
    rig.ensure(&changed, ReadMode::Fresh).await.result.unwrap();
    let (attributes, _) = rig.aws.classic_settings(&the_only(&rig).name);
    assert_eq!(attributes.idle_timeout, Some(90));
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_the_creation_makes_no_second_one_and_leaves_nothing() {
    for crash in [Crash::Before, Crash::After] {
        for write in 1..=5 {
            let rig = upstreams(1);
            let empty = rig.aws.snapshot();
            let web = service("web", &[80]);
            rig.aws.fail_nth_write(write, crash);
            rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
            rig.aws.clear_faults();
            let shown = made(&rig, &web).await;
            the_only(&rig);
            assert_eq!(rig.plan(&shown).await.unwrap(), [], "{crash:?} {write}");
            rig.remove(&shown).await;
            same(&rig, &empty, "deletion");
            // Nothing is published when the Service goes.
            rig.aws.fail_nth_write(write, crash);
            rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
            let rig = rig.restart();
            rig.remove(&web).await;
            same(&rig, &empty, "deletion before publication");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_member_stays_and_another_one_waits() {
    let rig = upstreams(3);
    let web = service("web", &[80]);
    let host = made_by_upstream(&rig, &web, &[0]).await;
    let web = showing(&web, &host);
    for id in &rig.world.nodes[..2] {
        rig.aws.set_state(id, InstanceState::Stopped);
    }
    rig.warm().await;
    assert!(matches!(rig.update(&web).await.result, Ok(Progress::Pending { .. })));
    let expected = [rig.world.nodes[0].clone(), rig.world.nodes[2].clone()];
    assert_eq!(the_only(&rig).instances, expected);
}

#[test]
fn labels_choose_the_members() {
    let rig = upstreams(1);
    let web = with(service("web", &[80]), "target-node-labels", "role=web,edge=");
    let interpretation = rig.balancers.interpret(&web);
    let ccm_core::provider::ServiceInterpretation::Valid { backends, .. } = interpretation else {
        panic!("{interpretation:?}")
    };
    let BackendKind::Nodes(mut chosen) = backends else {
        panic!("{backends:?}")
    };
    chosen.sort_by_key(|requirement| matches!(requirement, LabelRequirement::Exists(_)));
    let expected = [
        LabelRequirement::Equals("role".into(), "web".into()),
        LabelRequirement::Exists("edge".into()),
    ];
    assert_eq!(chosen, expected);
}

// Tags that are not in the annotation are somebody else's, also those that were in it before.
#[tokio::test(start_paused = true)]
async fn tags_are_added_and_never_removed() {
    let rig = upstreams(1);
    let web = with(service("web", &[80]), "additional-resource-tags", "team=a,cost=1");
    let web = made(&rig, &web).await;
    let name = the_only(&rig).name;
    let by_hand = AddClassicTags { name, tags: [("mine".into(), "1".into())].into() };
    rig.aws.ask(by_hand).await.unwrap();
    rig.aws.reset_calls();
    let web = with(web, "additional-resource-tags", "team=b");
    rig.ensure(&web, ReadMode::Fresh).await.result.unwrap();
    assert_eq!(rig.aws.writes(), 1);
    let (_, tags) = rig.aws.classic_settings(&the_only(&rig).name);
    let of = |key: &str| tags.get(key).map(|value| &**value);
    assert_eq!((of("team"), of("cost"), of("mine")), (Some("b"), Some("1"), Some("1")));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_taken_and_not_shown_yet_is_tried_again() {
    let rig = upstreams(1);
    let web = service("web", &[80]);
    rig.aws
        .fail_next(Action::CreateClassic, "DuplicateLoadBalancerName");
    let error = rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert_eq!(error.retry_after(), Some(std::time::Duration::from_secs(5)));
}

// length: one table and its three steps
#[tokio::test(start_paused = true)]
async fn what_a_classic_load_balancer_names_and_aws_does_not_find_is_soon_looked_for_again() {
    let soon = [5, 15, 60, 600, 600];
    for (action, code, delays) in [
        (Action::CreateClassic, "CertificateNotFound", soon),
        (Action::CreateClassicListeners, "CertificateNotFound", soon),
        (Action::SetClassicSecurityGroups, "InvalidSecurityGroup", soon),
        (Action::AttachClassicSubnets, "SubnetNotFound", soon),
        (Action::CreateClassic, "UnsupportedProtocol", [600; 5]),
        (Action::CreateClassicListeners, "UnsupportedProtocol", [600; 5]),
    ] {
        let rig = upstreams(1);
        let group = rig.aws.security_group(&rig.world.vpc, "extra", &[]);
        let [one, two] = [0, 1].map(|at| rig.world.public[at].to_string());
        let small = with(service("web", &[80]), "subnets", &one);
        let large = with(service("web", &[80, 443]), "subnets", &format!("{one},{two}"));
        let large = with(large, "extra-security-groups", &group);
        let is_new = action == Action::CreateClassic;
        let shown = if is_new {
            small.status.clone()
        } else {
            made(&rig, &small).await.status
        };
        let large = published(&large, &shown);
        let changed = with(large.clone(), "healthcheck-interval", "20");
        rig.aws.fail_always(action, code);
        for service in [&large, &changed] {
            assert_eq!(rig.delays_of_refusals(service).await, delays, "{action:?}: {code}");
        }
        // What was applied once counts anew: somebody may delete and create the object again.
        rig.aws.clear_faults();
        let done = made(&rig, &changed).await;
        if is_new {
            rig.remove(&done).await;
        } else {
            rig.settle(&published(&small, &done.status)).await;
        }
        rig.aws.fail_always(action, code);
        assert_eq!(rig.delays_of_refusals(&changed).await, [delays[0]], "{action:?}: {code}");
    }
}
