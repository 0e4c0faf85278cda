//! Rules for targets of type `ip`: on the security groups of the interfaces that pods have.

use std::time::Duration;

use ccm_core::{
    k8s::ServiceView,
    provider::{LbOutcome, Progress, ReadMode},
};

use super::fixture::{Fixture, POD, published, service, slice, slice_at, with};
use crate::{
    api::{
        Action, SecurityGroupId,
        ec2::{DescribeSecurityGroups, Rule, RuleSource},
    },
    config::Settings,
    fake::{FakeAws, Interface},
};

const LEFT_ALONE: &str = "PodSecurityGroupsLeftAlone";

fn pods(service: ServiceView) -> ServiceView {
    with(service, "nlb-target-type", "ip")
}

fn managed() -> Settings {
    Settings { managed_security_groups: true, ..Settings::default() }
}

/// Makes the one port of a Service lead to a named port of pods.
fn named(mut service: ServiceView) -> ServiceView {
    service.ports[0].target_port = "http".into();
    service
}

/// Rules of a group as `protocol port source`, with the kind of load balancer rule they are.
async fn rules(aws: &FakeAws, id: &SecurityGroupId) -> Vec<String> {
    let show = |rule: &Rule| {
        let (from, _) = rule.ports.unwrap_or((-1, -1));
        let source = match &rule.source {
            RuleSource::Cidr(network) => network.to_string(),
            RuleSource::Group(..) => "group".to_owned(),
            RuleSource::PrefixList(id) => id.to_string(),
        };
        let kind = rule
            .description
            .trim_start_matches("kubernetes.io/rule/nlb/");
        format!("{} {from} {source} {}", rule.protocol, kind.split('=').next().unwrap_or_default())
    };
    let op = Fixture::new(0).op();
    let all = aws
        .client()
        .read(&op, DescribeSecurityGroups::default())
        .await
        .unwrap()
        .items;
    all.iter()
        .find(|group| group.id == *id)
        .unwrap()
        .ingress
        .iter()
        .map(show)
        .collect()
}

async fn ensure(rig: &Fixture, service: &ServiceView) -> LbOutcome {
    rig.ensure(service, ReadMode::Cached).await
}

fn is_done(outcome: &LbOutcome) -> bool {
    matches!(outcome.result, Ok(Progress::Done))
}

/// Of the subnets that the load balancer is in: clients' addresses do not reach pods.
const FROM_SUBNETS: [&str; 6] = [
    "icmp 3 10.0.0.0/20 mtu",
    "icmp 3 10.0.16.0/20 mtu",
    "icmp 3 10.0.32.0/20 mtu",
    "tcp 8080 10.0.0.0/20 client",
    "tcp 8080 10.0.16.0/20 client",
    "tcp 8080 10.0.32.0/20 client",
];

#[tokio::test(start_paused = true)]
async fn pods_on_nodes_admit_the_balancer_by_the_nodes_group_without_a_question_about_interfaces() {
    let rig = Fixture::new(2);
    rig.warm().await;
    rig.aws.reset_calls();
    let web = pods(service("web", &[80]));
    assert!(is_done(&ensure(&rig, &web).await));
    assert_eq!(rules(&rig.aws, &rig.world.node_group).await, FROM_SUBNETS);
    assert_eq!(rig.aws.calls(Action::DescribeNetworkInterfaces), 0);
    assert_eq!(rig.aws.calls(Action::AuthorizeSecurityGroupIngress), 1);
    assert_eq!(rig.reasons(), [""; 0]);

    rig.aws.reset_calls();
    assert!(is_done(&ensure(&rig, &web).await));
    assert_eq!(rig.aws.actions(), [], "nothing is to be done");
    rig.remove(&web).await;
    assert_eq!(rules(&rig.aws, &rig.world.node_group).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_endpoints_on_known_interfaces_costs_registrations_and_nothing_else() {
    let mut rig = Fixture::new(2);
    rig.aws.assign_ip(&rig.world.nodes[1], "10.0.144.77");
    rig.warm().await;
    for web in [pods(service("web", &[80])), named(pods(service("named", &[80])))] {
        rig.pods = vec![slice(&[(POD, true, false)])];
        assert!(is_done(&ensure(&rig, &web).await));
        for moved in [
            &[("10.0.144.77", true, false)][..],
            &[(POD, true, false), ("10.0.144.77", true, false)],
        ] {
            rig.pods = vec![slice(moved)];
            rig.aws.reset_calls();
            assert!(is_done(&rig.update(&web).await));
            let actions = rig.aws.actions();
            let members = [Action::RegisterTargets, Action::DeregisterTargets];
            assert!(
                !actions.is_empty() && actions.iter().all(|action| members.contains(action)),
                "{actions:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_clients_addresses_reach_pods_their_networks_are_admitted_and_health_checks_too() {
    let rig = Fixture::new(1);
    let web = with(
        pods(service("web", &[80])),
        "target-group-attributes",
        "preserve_client_ip.enabled=true",
    );
    let web = ServiceView { source_ranges: ["10.9.0.0/16".into()].into(), ..web };
    rig.settle(&web).await;
    let found = rules(&rig.aws, &rig.world.node_group).await;
    let wanted =
        ["icmp 3 10.9.0.0/16 mtu", "tcp 8080 10.9.0.0/16 client", "tcp 8080 10.0.0.0/20 health"];
    for rule in wanted {
        assert!(found.contains(&rule.to_owned()), "{found:?}");
    }
    assert_eq!(found.len(), 5, "{found:?}");
    let open = with(
        pods(service("open", &[80])),
        "target-group-attributes",
        "preserve_client_ip.enabled=true",
    );
    rig.remove(&web).await;
    rig.settle(&open).await;
    let found = rules(&rig.aws, &rig.world.node_group).await;
    assert_eq!(
        found,
        ["icmp 3 0.0.0.0/0 mtu", "tcp 8080 0.0.0.0/0 client"],
        "these hold health checks as well"
    );
}

#[tokio::test(start_paused = true)]
async fn a_balancer_of_the_other_controllers_class_is_admitted_by_its_group() {
    let settings = Settings { claim_external: true, ..managed() };
    let rig = Fixture::with(1, settings);
    let web = with(pods(service("web", &[80])), "type", "external");
    rig.settle(&web).await;
    assert_eq!(rules(&rig.aws, &rig.world.node_group).await, ["tcp 8080 group sg"]);
    rig.remove(&web).await;
    assert_eq!(rules(&rig.aws, &rig.world.node_group).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn ports_behind_a_name_are_those_of_all_endpoints_ready_or_not() {
    let mut rig = Fixture::new(1);
    let web = named(pods(service("web", &[80])));
    rig.pods = vec![
        slice_at(8080, &[(POD, true, false)]),
        slice_at(8081, &[("10.0.128.201", false, false)]),
    ];
    rig.settle(&web).await;
    let ports = |found: Vec<String>| {
        let of = found
            .iter()
            .filter(|rule| rule.starts_with("tcp"))
            .map(|rule| rule.split(' ').nth(1).unwrap().to_owned());
        of.collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    };
    assert_eq!(ports(rules(&rig.aws, &rig.world.node_group).await), ["8080", "8081"]);
    // Another port is opened before its pods get traffic, and one that is gone is closed by the
    // next comparison.
    rig.pods = vec![slice_at(8082, &[(POD, true, false)])];
    assert!(is_done(&rig.update(&web).await));
    assert_eq!(ports(rules(&rig.aws, &rig.world.node_group).await), ["8080", "8081", "8082"]);
    let order: Vec<_> = rig.aws.actions();
    let at = |action| order.iter().rposition(|other| *other == action).unwrap();
    assert!(at(Action::AuthorizeSecurityGroupIngress) < at(Action::RegisterTargets), "{order:?}");
    rig.settle(&web).await;
    assert_eq!(ports(rules(&rig.aws, &rig.world.node_group).await), ["8082"]);
}

/// An interface of its own for a pod, with a group.
fn branch(rig: &Fixture, ip: &str, group: &SecurityGroupId) {
    let interface = Interface::new(&rig.world.private[0]);
    rig.aws.pod_interface(Interface {
        private_ips: vec![ip.into()],
        groups: vec![group.clone()],
        ..interface
    });
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_an_interface_of_its_own_is_asked_for_once_and_opened_where_its_group_is_the_clusters()
 {
    let mut rig = Fixture::new(1);
    rig.warm().await;
    let group =
        rig.aws
            .security_group(&rig.world.vpc, "pods", &[("kubernetes.io/cluster/test", "shared")]);
    branch(&rig, "10.0.128.90", &group);
    rig.pods = vec![slice(&[("10.0.128.90", true, false)])];
    rig.aws.reset_calls();
    let web = pods(service("web", &[80]));
    assert!(is_done(&ensure(&rig, &web).await));
    assert_eq!(rig.aws.calls(Action::DescribeNetworkInterfaces), 1);
    assert_eq!(rules(&rig.aws, &group).await, FROM_SUBNETS);
    assert_eq!(rules(&rig.aws, &rig.world.node_group).await, [""; 0], "no pod is there");
    assert_eq!(rig.reasons(), [""; 0]);
    rig.aws.reset_calls();
    // Long after, but before everything is compared.
    tokio::time::advance(Duration::from_secs(1200)).await;
    assert!(is_done(&rig.update(&web).await));
    assert_eq!(rig.aws.calls(Action::DescribeNetworkInterfaces) + rig.aws.writes(), 0);

    // It moves to a node: both groups are open until everything is compared.
    rig.pods = vec![slice(&[(POD, true, false)])];
    assert!(is_done(&rig.update(&web).await));
    assert_eq!(rules(&rig.aws, &rig.world.node_group).await, FROM_SUBNETS);
    assert_eq!(rules(&rig.aws, &group).await, FROM_SUBNETS);
    assert!(is_done(&rig.ensure(&web, ReadMode::Fresh).await));
    assert_eq!(rules(&rig.aws, &group).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_not_the_clusters_is_never_changed_and_told_once() {
    let mut rig = Fixture::new(1);
    rig.warm().await;
    let vpc = rig.world.vpc.clone();
    let untagged = rig.aws.security_group(&vpc, "database", &[]);
    let other =
        rig.aws
            .security_group(&vpc, "other", &[("kubernetes.io/cluster/elsewhere", "owned")]);
    branch(&rig, "10.0.128.90", &untagged);
    // Instances: one that is not the cluster's, one whose only group is another cluster's, one with
    // a group that is not known.
    let instance = |ip: &str, groups: &[&SecurityGroupId]| {
        let begun = rig.aws.instance(&rig.world.private[0]).private_ip(ip);
        groups
            .iter()
            .fold(begun, |instance, group| instance.group(group))
    };
    let tagged = ("kubernetes.io/cluster/test", "owned");
    let strange = SecurityGroupId::from("sg-0123456789abcdef0");
    let launched = [
        instance("10.0.128.91", &[&untagged]).launch(),
        instance("10.0.128.92", &[&other])
            .tag(tagged.0, tagged.1)
            .launch(),
        instance("10.0.128.93", &[&untagged, &strange])
            .tag(tagged.0, tagged.1)
            .launch(),
    ];
    rig.store
        .get_many(&rig.op(), &launched, Duration::MAX)
        .await
        .unwrap();
    let web = pods(service("web", &[80]));
    let inside = ["10.0.128.90", "10.0.128.91", "10.0.128.92", "10.0.128.93", "10.0.128.99"];
    rig.pods =
        vec![slice(&inside.map(|ip| (ip, true, false))), slice(&[("192.168.7.7", true, false)])];
    assert!(is_done(&ensure(&rig, &web).await));
    for group in [&untagged, &other, &rig.world.node_group] {
        assert_eq!(rules(&rig.aws, group).await, [""; 0]);
    }
    assert_eq!(
        rig.aws.targets(&rig.aws.target_groups()[0].arn).len(),
        6,
        "they are targets all the same"
    );
    let events = rig.events.0.lock().clone();
    let [(_, reason, note)] = &*events else {
        panic!("{events:?}")
    };
    assert_eq!(*reason, LEFT_ALONE);
    for part in ["(database)", "(other)", "10.0.128.99", "192.168.7.7", "tcp 8080 from 10.0.0.0/20"]
    {
        assert!(note.contains(part), "{part}: {note}");
    }
    assert!(!note.contains("10.0.128.90") && note.len() < 1000, "{note}");

    for _ in 0..2 {
        assert!(is_done(&rig.ensure(&web, ReadMode::Fresh).await));
        assert!(is_done(&rig.update(&web).await));
    }
    assert_eq!(rig.reasons(), [LEFT_ALONE], "it is told once");
    rig.aws.reset_calls();
    assert!(is_done(&ensure(&rig, &web).await));
    assert_eq!(rig.aws.actions(), []);
    rig.pods = vec![slice(&[("10.0.128.98", true, false)])];
    assert!(is_done(&rig.update(&web).await));
    assert_eq!(rig.reasons(), [LEFT_ALONE; 2], "another one is news");
}

#[tokio::test(start_paused = true)]
async fn the_only_group_of_a_nodes_interface_counts_without_a_tag_as_it_does_for_nodes() {
    let mut rig = Fixture::new(1);
    let group = rig.aws.security_group(&rig.world.vpc, "plain", &[]);
    let node = rig
        .aws
        .instance(&rig.world.private[0])
        .private_ip("10.0.128.91")
        .group(&group);
    let node = node.tag("kubernetes.io/cluster/test", "owned").launch();
    rig.store
        .get_many(&rig.op(), &[node], Duration::MAX)
        .await
        .unwrap();
    rig.pods = vec![slice(&[("10.0.128.91", true, false)])];
    rig.settle(&pods(service("web", &[80]))).await;
    assert_eq!(rules(&rig.aws, &group).await, FROM_SUBNETS);
    rig.remove(&pods(service("web", &[80]))).await;
    assert_eq!(rules(&rig.aws, &group).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_address_in_a_network_that_a_node_just_got_is_found_by_one_listing() {
    let mut rig = Fixture::new(2);
    rig.aws
        .assign_prefix(&rig.world.nodes[0], "10.0.129.0/28".parse().unwrap());
    rig.warm().await;
    rig.aws
        .assign_prefix(&rig.world.nodes[1], "10.0.130.0/28".parse().unwrap());
    let web = pods(service("web", &[80]));
    for (ip, listings) in [("10.0.129.5", 0), ("10.0.130.9", 1)] {
        rig.pods = vec![slice(&[(ip, true, false)])];
        rig.aws.reset_calls();
        assert!(is_done(&ensure(&rig, &web).await));
        assert_eq!(rig.aws.calls(Action::DescribeInstances), listings, "{ip}");
        assert_eq!(rules(&rig.aws, &rig.world.node_group).await, FROM_SUBNETS);
    }
    assert_eq!(rig.reasons(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_asked_keeps_no_target_out() {
    let mut rig = Fixture::new(1);
    rig.pods = vec![slice(&[("10.0.128.90", true, false)])];
    branch(&rig, "10.0.128.90", &rig.world.node_group.clone());
    let web = pods(service("web", &[80]));
    rig.aws
        .fail_always(Action::DescribeNetworkInterfaces, "InternalError");
    let outcome = ensure(&rig, &web).await;
    assert!(matches!(outcome.result, Ok(Progress::Pending { .. })), "{outcome:?}");
    assert_eq!(rig.aws.targets(&rig.aws.target_groups()[0].arn).len(), 1);
    rig.aws.clear_faults();
    assert!(is_done(&ensure(&rig, &web).await));
    assert_eq!(rules(&rig.aws, &rig.world.node_group).await, FROM_SUBNETS);
    assert_eq!(rig.reasons(), [""; 0]);

    // Without the right to ask it is told, and the rest goes on.
    let rig = rig.restart();
    rig.aws.deny(Action::DescribeNetworkInterfaces);
    assert!(is_done(&ensure(&rig, &web).await));
    assert_eq!(rig.reasons(), ["AWSPermissionDenied", LEFT_ALONE]);
}

#[tokio::test(start_paused = true)]
async fn rules_go_when_the_service_turns_to_nodes_or_does_not_want_them() {
    for settings in [Settings::default(), managed()] {
        let rig = Fixture::with(1, settings.clone());
        let web = service("web", &[80]);
        rig.settle(&pods(web.clone())).await;
        rig.settle(&web).await;
        let found = rules(&rig.aws, &rig.world.node_group).await;
        assert!(found.iter().all(|rule| !rule.contains("8080")) && found.len() == 2, "{found:?}");
        rig.settle(&pods(web.clone())).await;
        assert_eq!(rules(&rig.aws, &rig.world.node_group).await, FROM_SUBNETS);
        let off = with(pods(web.clone()), "manage-backend-security-group-rules", "false");
        rig.settle(&off).await;
        assert_eq!(rules(&rig.aws, &rig.world.node_group).await, [""; 0]);
        assert_eq!(rig.reasons(), [""; 0]);
        let rig = rig.restart();
        rig.settle(&off).await;
        let settings = Settings { disable_security_group_ingress: true, ..settings };
        let quiet = Fixture::with(1, settings);
        quiet.settle(&pods(web)).await;
        assert_eq!(rules(&quiet.aws, &quiet.world.node_group).await, [""; 0]);
        assert_eq!(quiet.aws.calls(Action::DescribeNetworkInterfaces), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_two_services_need_alike_stays_when_one_goes() {
    let rig = Fixture::new(1);
    let (one, two) = (pods(service("web", &[80])), pods(service("api", &[80])));
    rig.settle(&one).await;
    rig.settle(&two).await;
    assert_eq!(rules(&rig.aws, &rig.world.node_group).await, FROM_SUBNETS);
    // What is granted again has another description, and that fails at first.
    rig.aws
        .fail_always(Action::AuthorizeSecurityGroupIngress, "InternalError");
    assert!(rig.delete(&one).await.is_err());
    rig.aws.clear_faults();
    rig.remove(&one).await;
    assert_eq!(rules(&rig.aws, &rig.world.node_group).await, FROM_SUBNETS);
    rig.remove(&two).await;
    assert_eq!(rules(&rig.aws, &rig.world.node_group).await, [""; 0]);
}

/// What one gives up while the other sees that it is there, and takes it for its own.
#[tokio::test(start_paused = true)]
async fn a_need_that_comes_up_while_the_rule_is_taken_off_is_met() {
    for wait in 0..60 {
        let rig = Fixture::new(1);
        let (one, two) = (pods(service("web", &[80])), pods(service("api", &[80])));
        rig.settle(&one).await;
        rig.aws
            .configure(|knobs| knobs.latency = Duration::from_millis(100));
        let goes = async {
            tokio::time::sleep(Duration::from_millis(wait * 40)).await;
            rig.remove(&one).await;
        };
        tokio::join!(goes, async { drop(rig.settle(&two).await) });
        assert_eq!(rules(&rig.aws, &rig.world.node_group).await, FROM_SUBNETS, "{wait}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_service_may_need_stays_until_that_one_was_looked_at() {
    for is_looked_at in [true, false] {
        let rig = Fixture::new(1);
        let (one, two) = (pods(service("web", &[80])), pods(service("api", &[80])));
        let one = published(&one, &rig.settle(&one).await);
        let two = published(&two, &rig.settle(&two).await);
        let rig = rig.restart();
        for _ in 0..3 {
            let error = rig.delete(&one).await.unwrap_err();
            assert!(error.to_string().contains("has not been reconciled yet"), "{error}");
            assert_eq!(rules(&rig.aws, &rig.world.node_group).await, FROM_SUBNETS);
        }
        if is_looked_at {
            assert_eq!(rig.plan(&two).await.unwrap(), []);
            rig.remove(&one).await;
        } else {
            // One that cannot be served never is.
            tokio::time::sleep(Duration::from_mins(11)).await;
            rig.remove(&one).await;
            rig.settle(&two).await;
        }
        assert_eq!(rules(&rig.aws, &rig.world.node_group).await, FROM_SUBNETS);
        rig.remove(&two).await;
        assert_eq!(rules(&rig.aws, &rig.world.node_group).await, [""; 0]);
    }
}

/// Its clients come in by the other's rule, so that none bears its name.
#[tokio::test(start_paused = true)]
async fn a_health_rule_stays_after_a_restart_as_long_as_its_balancer_is_there() {
    let rig = Fixture::new(1);
    let (one, two) = (
        pods(service("web", &[80])),
        with(pods(service("api", &[80])), "healthcheck-port", "9000"),
    );
    let one = published(&one, &rig.settle(&one).await);
    let two = published(&two, &rig.settle(&two).await);
    let before = rules(&rig.aws, &rig.world.node_group).await;
    let rig = rig.restart();
    assert_eq!(rig.plan(&one).await.unwrap(), []);
    rig.settle(&one).await;
    assert_eq!(rules(&rig.aws, &rig.world.node_group).await, before);
    rig.settle(&two).await;
    rig.remove(&two).await;
    assert_eq!(rules(&rig.aws, &rig.world.node_group).await, FROM_SUBNETS);
    rig.remove(&one).await;
    assert_eq!(rules(&rig.aws, &rig.world.node_group).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_preview_says_which_rules_pods_need_and_tells_nobody() {
    let rig = Fixture::new(1);
    let web = pods(service("web", &[80]));
    rig.settle(&web).await;
    let rig = rig.restart();
    assert_eq!(
        rig.plan(&web)
            .await
            .unwrap()
            .iter()
            .filter(|c| *c.operation != *"publish_status")
            .count(),
        0
    );
    let other = ServiceView {
        source_ranges: Box::default(),
        ..with(web, "healthcheck-port", "9000")
    };
    let changes = rig.plan(&other).await.unwrap();
    assert!(
        changes
            .iter()
            .any(|change| *change.operation == *"AuthorizeSecurityGroupIngress"),
        "{changes:?}"
    );
    assert_eq!(rig.reasons(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_protected_group_is_not_opened_for_pods_and_told() {
    // Groups are numbered alike in each world.
    let group = Fixture::new(1).world.node_group;
    let rig = Fixture::with(
        1,
        Settings {
            protected_security_group: Some(group.clone()),
            ..Settings::default()
        },
    );
    rig.settle(&pods(service("web", &[80]))).await;
    assert_eq!(rig.world.node_group, group);
    assert_eq!(rules(&rig.aws, &group).await, [""; 0]);
    assert_eq!(rig.reasons(), [LEFT_ALONE]);
}
