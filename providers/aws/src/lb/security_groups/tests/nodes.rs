//! Rules on the groups of nodes.

use ccm_core::provider::ErrorKind;

use super::*;
use crate::{
    api::{Action, ec2::RuleSource},
    client::reason,
    lb::test_fixtures::checked_at,
};

const CLIENT: &str = "tcp 30001-30001 0.0.0.0/0 client=a1";
const MTU: &str = "icmp 3-4 0.0.0.0/0 mtu";

#[tokio::test(start_paused = true)]
async fn a_new_service_costs_one_grant_and_an_unchanged_one_nothing() {
    let case = Case::new();
    case.ensure(&nth(1), None).await.unwrap();
    assert_eq!(case.rules(&case.world.node_group).await, [MTU, CLIENT]);
    assert_eq!(case.world.aws.calls(Action::AuthorizeSecurityGroupIngress), 1);
    case.requests();

    case.ensure(&nth(1), None).await.unwrap();
    assert_eq!(case.requests(), 0);
    let local = DesiredLoadBalancer {
        listeners: vec![checked_at(listener(30002), 32000)],
        ..from(nth(2), &["10.9.0.0/16"])
    };
    case.ensure(&local, None).await.unwrap();
    assert_eq!(case.requests(), 1);
    assert_eq!(case.world.aws.writes(), 0, "the counter was reset");
    assert_eq!(
        case.rules(&case.world.node_group).await,
        [
            MTU,
            "icmp 3-4 10.9.0.0/16 mtu",
            CLIENT,
            "tcp 30002-30002 10.9.0.0/16 client=a2",
            "tcp 32000-32000 10.0.0.0/20 health=a2",
            "tcp 32000-32000 10.0.16.0/20 health=a2",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_changed_service_grants_before_it_revokes() {
    let case = Case::new();
    case.ensure(&nth(1), None).await.unwrap();
    let moved = DesiredLoadBalancer {
        listeners: vec![listener(30005)],
        ..from(nth(1), &["10.9.0.0/16"])
    };
    let e = case.exposure(&moved, &[]);
    case.part.add_rules(&case.op, &e).await.unwrap();
    let between = case.rules(&case.world.node_group).await;
    assert!(between.contains(&CLIENT.to_owned()), "{between:?}");
    case.part.remove_rules(&case.op, &e).await.unwrap();
    let after = case.rules(&case.world.node_group).await;
    assert!(after.iter().all(|rule| !rule.contains("0.0.0.0/0")), "{after:?}");
    assert!(after.contains(&"tcp 30005-30005 10.9.0.0/16 client=a1".to_owned()), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn the_mtu_rule_stays_until_the_last_balancer_of_its_network_goes() {
    let case = Case::new();
    for n in [1, 2] {
        case.ensure(&nth(n), None).await.unwrap();
    }
    let release = |n: u16| {
        let (case, wanted) = (&case, nth(n));
        async move {
            case.part
                .clean_up(&case.op, &wanted.owner, &wanted.name, &[])
                .await
                .unwrap()
        }
    };
    release(1).await;
    assert_eq!(
        case.rules(&case.world.node_group).await,
        [MTU, "tcp 30002-30002 0.0.0.0/0 client=a2"]
    );
    release(2).await;
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());
    assert_eq!(case.world.aws.calls(Action::RevokeSecurityGroupIngress), 2);
}

#[tokio::test(start_paused = true)]
async fn many_services_at_once_cost_two_grants() {
    let case = Case::new();
    case.world
        .aws
        .configure(|knobs| knobs.latency = Duration::from_millis(100));
    let wanted: Vec<_> = (1..=25).map(nth).collect();
    let all =
        futures::future::join_all(wanted.iter().map(|wanted| case.ensure(wanted, None))).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    // The first one's alone, and those of all who waited meanwhile.
    assert_eq!(case.world.aws.calls(Action::AuthorizeSecurityGroupIngress), 2);
    assert_eq!(case.world.aws.calls(Action::DescribeSecurityGroups), 1);
    assert_eq!(case.rules(&case.world.node_group).await.len(), 26);

    // Whoever waits for longer than two seconds would come back.
    case.world
        .aws
        .configure(|knobs| knobs.latency = Duration::from_millis(20));
    let all = futures::future::join_all(wanted.iter().map(|wanted| {
        case.part
            .clean_up(&case.op, &wanted.owner, &wanted.name, &[])
    }));
    assert!(
        all.await
            .iter()
            .all(|progress| *progress.as_ref().unwrap() == Progress::Done)
    );
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_others_at_a_group_comes_back_after_two_seconds() {
    let case = Case::new();
    let wanted: Vec<_> = (1..=12).map(nth).collect();
    for wanted in &wanted {
        case.ensure(wanted, None).await.unwrap();
    }
    case.world
        .aws
        .configure(|knobs| knobs.latency = Duration::from_millis(300));
    let release = |wanted: &DesiredLoadBalancer| {
        let (case, op, wanted) = (&case, op(), wanted.clone());
        async move {
            let begin = Instant::now();
            let result = case
                .part
                .clean_up(&op, &wanted.owner, &wanted.name, &[])
                .await;
            (result, begin.elapsed())
        }
    };
    let mut rounds = 0;
    loop {
        rounds += 1;
        let all = futures::future::join_all(wanted.iter().map(release)).await;
        // Two seconds of waiting, and the requests that it makes itself.
        assert!(
            all.iter()
                .all(|(_, took)| *took <= Duration::from_millis(3000)),
            "{all:?}"
        );
        if all.iter().all(|(result, _)| result.is_ok()) {
            break;
        }
        let waits = |error: &CloudError| crate::client::rate_limit_delay(error).is_some();
        assert!(
            all.iter()
                .all(|(result, _)| result.as_ref().err().is_none_or(waits)),
            "{all:?}"
        );
        assert!(rounds < 5, "{all:?}");
    }
    assert!(rounds > 1, "nobody had to come back");
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn of_many_services_at_once_each_has_its_own_result() {
    let case = Case::new();
    case.world
        .aws
        .configure(|knobs| knobs.latency = Duration::from_millis(10));
    case.world
        .aws
        .quotas(|quotas| quotas.rules_per_security_group = 11);
    let wanted: Vec<_> = (1..=25).map(nth).collect();
    let all =
        futures::future::join_all(wanted.iter().map(|wanted| case.ensure(wanted, None))).await;
    assert_eq!(case.rules(&case.world.node_group).await.len(), 11);
    for (wanted, result) in wanted.iter().zip(&all) {
        let e = case.exposure(wanted, &[]);
        let rules = case.rules(&case.world.node_group).await;
        let is_there = rules
            .iter()
            .any(|rule| rule.ends_with(&format!("client={}", e.lb_name)));
        assert_eq!(result.is_ok(), is_there, "{}", e.lb_name);
        assert!(
            result
                .as_ref()
                .err()
                .is_none_or(|error| error.kind() == ErrorKind::QuotaExceeded
                    && error
                        .to_string()
                        .contains("EnableSharedBackendSecurityGroup")),
            "{result:?}"
        );
    }

    // One who does not wait any more gets nothing, and the others theirs.
    case.world
        .aws
        .quotas(|quotas| quotas.rules_per_security_group = 60);
    case.world
        .aws
        .configure(|knobs| knobs.latency = Duration::from_millis(100));
    let impatient = tokio::time::timeout(Duration::from_millis(50), case.ensure(&wanted[24], None));
    let one = case.ensure(&wanted[23], None);
    let (one, impatient) = tokio::join!(one, impatient);
    assert!(one.is_ok() && impatient.is_err(), "{one:?} {impatient:?}");
    let rules = case.rules(&case.world.node_group).await;
    assert!(rules.iter().any(|rule| rule.ends_with("client=a24")), "{rules:?}");
    assert!(!rules.iter().any(|rule| rule.ends_with("client=a25")), "{rules:?}");
}

#[tokio::test(start_paused = true)]
async fn the_mtu_rule_stays_when_somebody_else_came_since_the_rules_were_read() {
    let case = Case::new();
    case.ensure(&nth(1), None).await.unwrap();
    // Another cluster's manager, on the same group.
    case.authorize(
        &case.world.node_group,
        &[rule(30900, "0.0.0.0/0", "kubernetes.io/rule/nlb/client=other")],
    )
    .await;
    case.part
        .clean_up(&case.op, &nth(1).owner, "a1", &[])
        .await
        .unwrap();
    let rules = case.rules(&case.world.node_group).await;
    assert_eq!(rules, [MTU, "tcp 30900-30900 0.0.0.0/0 client=other"]);
}

#[tokio::test(start_paused = true)]
async fn a_health_rule_stays_after_a_restart_while_another_balancer_may_need_it() {
    let mut case = Case::new();
    let shared = |n: u16| DesiredLoadBalancer {
        listeners: vec![checked_at(listener(30000 + n), 10256)],
        ..nth(n)
    };
    for n in [1, 2] {
        case.ensure(&shared(n), None).await.unwrap();
    }
    case.restart(Settings::default());
    // Nothing is known of the other one but its clients' rule.
    case.part
        .clean_up(&case.op, &shared(1).owner, "a1", &[])
        .await
        .unwrap();
    let rules = case.rules(&case.world.node_group).await;
    let health =
        ["10.0.0.0/20", "10.0.16.0/20"].map(|net| format!("tcp 10256-10256 {net} health=a1"));
    assert!(health.iter().all(|rule| rules.contains(rule)), "{rules:?}");
    assert!(!rules.contains(&CLIENT.to_owned()), "{rules:?}");
    // It is needed: known by now, and therefore kept.
    case.ensure(&shared(2), None).await.unwrap();
    assert_eq!(case.rules(&case.world.node_group).await, rules);
    // Nobody is left under whose name it would go.
    case.part
        .clean_up(&case.op, &shared(2).owner, "a2", &[])
        .await
        .unwrap();
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_somebody_granted_meanwhile_is_left_out() {
    let case = Case::new();
    // The list is read, and then somebody else opens one of the ports.
    case.ensure(&nth(1), None).await.unwrap();
    case.authorize(&case.world.node_group, &[rule(30002, "0.0.0.0/0", "by hand")])
        .await;
    let two = DesiredLoadBalancer { listeners: vec![listener(30002), listener(30003)], ..nth(2) };
    case.requests();
    case.ensure(&two, None).await.unwrap();
    assert_eq!(case.world.aws.calls(Action::DescribeSecurityGroups), 1);
    let rules = case.rules(&case.world.node_group).await;
    assert!(rules.contains(&"tcp 30002-30002 0.0.0.0/0 by hand".to_owned()), "{rules:?}");
    assert!(rules.contains(&"tcp 30003-30003 0.0.0.0/0 client=a2".to_owned()), "{rules:?}");
    // What is not ours stays.
    case.part
        .clean_up(&case.op, &two.owner, &two.name, &[])
        .await
        .unwrap();
    let rules = case.rules(&case.world.node_group).await;
    assert_eq!(rules, [MTU, CLIENT, "tcp 30002-30002 0.0.0.0/0 by hand"]);
}

#[tokio::test(start_paused = true)]
async fn a_group_without_room_is_a_quota_that_names_it() {
    let case = Case::new();
    case.world
        .aws
        .quotas(|quotas| quotas.rules_per_security_group = 2);
    case.ensure(&nth(1), None).await.unwrap();
    let error = case
        .ensure(&from(nth(2), &["10.0.0.0/8"]), None)
        .await
        .unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::QuotaExceeded, Some(reason::QUOTA)));
    let group = &case.world.node_group;
    assert!(
        error
            .to_string()
            .starts_with(&format!("security group {group} (nodes) has 2 ingress rules")),
        "{error}"
    );
    // Room that is made is used.
    case.part
        .clean_up(&case.op, &nth(1).owner, "a1", &[])
        .await
        .unwrap();
    case.ensure(&nth(2), None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_change_has_the_group_read_again() {
    let case = Case::new();
    case.ensure(&nth(1), None).await.unwrap();
    case.world
        .aws
        .fail_next(Action::AuthorizeSecurityGroupIngress, "InternalError");
    // Whatever the client repeats by itself, the rules end up there once.
    while case.ensure(&nth(2), None).await.is_err() {}
    assert_eq!(case.rules(&case.world.node_group).await.len(), 3);
}

// SG7
#[tokio::test(start_paused = true)]
async fn each_instance_has_one_group_to_open() {
    let mut case = Case::new();
    let tagged = ("kubernetes.io/cluster/test", "shared");
    let aws = case.world.aws.clone();
    let launch = |groups: &[&SecurityGroupId]| {
        let subnet = &case.world.private[0];
        groups
            .iter()
            .fold(aws.instance(subnet), |instance, group| instance.group(group))
            .launch()
    };
    let (second, plain) =
        (aws.security_group(&case.world.vpc, "second", &[tagged]), ["one", "two"]);
    let [one, two] = plain.map(|name| aws.security_group(&case.world.vpc, name, &[]));
    let nodes = case.world.node_group.clone();
    let (both, untagged) = (launch(&[&nodes, &second]), launch(&[&one, &two]));
    let (tagged_and_plain, alone) = (launch(&[&one, &second]), launch(&[&two]));

    case.world.nodes = vec![both.clone()];
    let error = case.ensure(&nth(1), None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        error.to_string(),
        format!(
            "Multiple tagged security groups found for instance {both}; ensure only the k8s security group is tagged; the \
             tagged groups were {nodes}(nodes) {second}(second)"
        )
    );
    case.world.nodes = vec![untagged.clone()];
    let error = case.ensure(&nth(1), None).await.unwrap_err().to_string();
    let expected = "ensure the k8s security group is tagged";
    assert_eq!(
        error,
        format!("Multiple untagged security groups found for instance {untagged}; {expected}")
    );

    case.world.nodes = vec![tagged_and_plain, alone];
    case.ensure(&nth(1), None).await.unwrap();
    assert_eq!(case.rules(&second).await, [MTU, CLIENT]);
    assert_eq!(case.rules(&two).await, [MTU, CLIENT]);
    assert_eq!(case.rules(&one).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn groups_that_nodes_left_lose_the_rules_and_foreign_ones_nothing() {
    let mut case = Case::new();
    let aws = case.world.aws.clone();
    case.ensure(&nth(1), None).await.unwrap();
    let other =
        aws.security_group(&case.world.vpc, "other", &[("kubernetes.io/cluster/other", "owned")]);
    let same = rule(30001, "0.0.0.0/0", "kubernetes.io/rule/nlb/client=a1");
    case.authorize(&other, &[same]).await;
    let by_hand = rule(22, "10.0.0.0/8", "");
    case.authorize(&case.world.node_group, &[by_hand]).await;

    let new =
        aws.security_group(&case.world.vpc, "new", &[("kubernetes.io/cluster/test", "owned")]);
    case.world.nodes = vec![aws.instance(&case.world.private[0]).group(&new).launch()];
    case.ensure(&nth(1), None).await.unwrap();
    assert_eq!(case.rules(&new).await, [MTU, CLIENT]);
    assert_eq!(case.rules(&case.world.node_group).await, ["tcp 22-22 10.0.0.0/8"]);
    assert_eq!(case.rules(&other).await, [CLIENT]);
}

#[tokio::test(start_paused = true)]
async fn what_two_balancers_need_alike_outlives_either() {
    let case = Case::new();
    // Both have their health checked by kube-proxy on one port.
    let shared = |n: u16| DesiredLoadBalancer {
        listeners: vec![checked_at(listener(30000 + n), 10256)],
        ..nth(n)
    };
    for n in [1, 2] {
        case.ensure(&shared(n), None).await.unwrap();
    }
    let health = |n: u16| {
        ["10.0.0.0/20", "10.0.16.0/20"].map(|net| format!("tcp 10256-10256 {net} health=a{n}"))
    };
    let rules = case.rules(&case.world.node_group).await;
    assert!(health(1).iter().all(|rule| rules.contains(rule)), "{rules:?}");
    case.part
        .clean_up(&case.op, &shared(1).owner, "a1", &[])
        .await
        .unwrap();
    let rules = case.rules(&case.world.node_group).await;
    assert!(health(2).iter().all(|rule| rules.contains(rule)), "{rules:?}");
    assert!(rules.iter().all(|rule| !rule.contains("=a1")), "{rules:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_owed_to_a_balancer_that_goes_as_well_is_not_granted_again() {
    let case = Case::new();
    let shared = |n: u16| DesiredLoadBalancer {
        listeners: vec![checked_at(listener(30000 + n), 10256)],
        ..nth(n)
    };
    for n in [1, 2] {
        case.ensure(&shared(n), None).await.unwrap();
    }
    case.world
        .aws
        .fail_next(Action::AuthorizeSecurityGroupIngress, "InternalError");
    case.part
        .clean_up(&case.op, &shared(1).owner, "a1", &[])
        .await
        .unwrap_err();
    case.requests();
    for n in [2, 1] {
        let gone = case
            .part
            .clean_up(&case.op, &shared(n).owner, &format!("a{n}"), &[])
            .await
            .unwrap();
        assert_eq!(gone, Progress::Done);
    }
    assert_eq!(case.world.aws.calls(Action::AuthorizeSecurityGroupIngress), 0);
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_balancer_whose_rules_nobody_looks_after_keeps_no_others_health_rules() {
    let case = Case::new();
    let given = with_groups(nth(2), Choice::Given(vec!["sg-1".into()]));
    case.authorize(
        &case.world.node_group,
        &[rule(30002, "0.0.0.0/0", "kubernetes.io/rule/nlb/client=a2")],
    )
    .await;
    case.ensure_by(&given, &["sg-1".into()]).await;
    let local = DesiredLoadBalancer {
        listeners: vec![checked_at(listener(30001), 32000)],
        ..nth(1)
    };
    case.ensure(&local, None).await.unwrap();
    case.part
        .clean_up(&case.op, &local.owner, "a1", &[])
        .await
        .unwrap();
    let upstreams = ["tcp 30002-30002 0.0.0.0/0 client=a2"];
    assert_eq!(
        case.rules(&case.world.node_group).await[1..],
        upstreams,
        "and the rule for path MTU"
    );
}

#[tokio::test(start_paused = true)]
async fn a_balancer_whose_rules_nobody_looks_after_keeps_the_health_rules_that_it_lives_by() {
    let case = Case::new();
    // kube-proxy answers for both; the rule has the name of the first.
    let shared = |n: u16| DesiredLoadBalancer {
        listeners: vec![checked_at(listener(30000 + n), 10256)],
        ..nth(n)
    };
    let given = with_groups(shared(2), Choice::Given(vec!["sg-1".into()]));
    case.ensure_by(&given, &["sg-1".into()]).await;
    case.ensure(&shared(1), None).await.unwrap();
    case.part
        .clean_up(&case.op, &shared(1).owner, "a1", &[])
        .await
        .unwrap();
    let health =
        ["10.0.0.0/20", "10.0.16.0/20"].map(|net| format!("tcp 10256-10256 {net} health=a2"));
    assert_eq!(case.rules(&case.world.node_group).await, health);
    case.part
        .clean_up(&case.op, &given.owner, "a2", &[])
        .await
        .unwrap();
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn groups_that_are_not_to_be_touched_are_not() {
    let settings = || Settings { disable_security_group_ingress: true, ..Settings::default() };
    let mut case = Case::with(settings());
    case.ensure(&nth(1), None).await.unwrap();
    case.part
        .clean_up(&case.op, &nth(1).owner, "a1", &[])
        .await
        .unwrap();
    assert_eq!(case.world.aws.writes(), 0);

    let protected = Some(case.world.node_group.clone());
    case.restart(Settings { protected_security_group: protected, ..Settings::default() });
    case.authorize(
        &case.world.node_group,
        &[rule(30001, "0.0.0.0/0", "kubernetes.io/rule/nlb/client=a1")],
    )
    .await;
    case.requests();
    case.ensure(&DesiredLoadBalancer { listeners: vec![listener(30009)], ..nth(1) }, None)
        .await
        .unwrap();
    case.part
        .clean_up(&case.op, &nth(1).owner, "a1", &[])
        .await
        .unwrap();
    assert_eq!(case.world.aws.writes(), 0);
    assert_eq!(case.rules(&case.world.node_group).await, [CLIENT]);

    // Somebody else looks after rules: neither granted nor revoked, but taken away with the
    // balancer.
    case.restart(Settings::default());
    let mut unmanaged = DesiredLoadBalancer { listeners: vec![listener(30009)], ..nth(1) };
    unmanaged.security.manage_backend_rules = false;
    case.ensure(&unmanaged, None).await.unwrap();
    assert_eq!(case.world.aws.writes(), 0);
    case.part
        .clean_up(&case.op, &nth(1).owner, "a1", &[])
        .await
        .unwrap();
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_preview_names_every_change_and_makes_none() {
    let case = Case::new();
    let group = case.world.node_group.clone();
    let (old, new) = (
        nth(1),
        DesiredLoadBalancer {
            listeners: vec![listener(30005)],
            ..from(nth(1), &["10.9.0.0/16"])
        },
    );
    assert_eq!(
        case.plan(&old, &[]).await,
        [format!(
            "AuthorizeSecurityGroupIngress {group}: rules are missing: icmp 3-4 from 0.0.0.0/0, tcp 30001 from 0.0.0.0/0"
        )]
    );
    assert_eq!(case.world.aws.writes(), 0);
    case.ensure(&old, None).await.unwrap();
    assert_eq!(case.plan(&old, &[]).await, Vec::<String>::new());
    let planned = case.plan(&new, &[]).await;
    assert_eq!(planned.len(), 2, "{planned:?}");
    let revoke = "rules are not desired: tcp 30001 from 0.0.0.0/0, icmp 3-4 from 0.0.0.0/0";
    assert_eq!(planned[1], format!("RevokeSecurityGroupIngress {group}: {revoke}"));
    case.ensure(&new, None).await.unwrap();
    assert_eq!(case.plan(&new, &[]).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn drift_is_seen_when_the_reading_is_old_and_then_repaired() {
    let case = Case::new();
    case.ensure(&nth(1), None).await.unwrap();
    case.revoke(&case.world.node_group, &[rule(30001, "0.0.0.0/0", "")])
        .await;
    assert_eq!(case.plan(&nth(1), &[]).await, Vec::<String>::new());
    tokio::time::advance(SHARED_READ_AGE).await;
    assert_eq!(case.plan(&nth(1), &[]).await.len(), 1);
    case.ensure(&nth(1), None).await.unwrap();
    assert_eq!(case.rules(&case.world.node_group).await, [MTU, CLIENT]);
}

#[tokio::test(start_paused = true)]
async fn a_revocation_of_which_a_part_is_gone_takes_the_rest() {
    for default_vpc in [false, true] {
        let case = Case::new();
        case.world
            .aws
            .configure(|knobs| knobs.default_vpc = default_vpc);
        let two =
            DesiredLoadBalancer { listeners: vec![listener(30001), listener(30002)], ..nth(1) };
        case.ensure(&two, None).await.unwrap();
        case.revoke(&case.world.node_group, &[rule(30001, "0.0.0.0/0", "")])
            .await;
        case.part
            .clean_up(&case.op, &two.owner, "a1", &[])
            .await
            .unwrap();
        assert_eq!(
            case.rules(&case.world.node_group).await,
            Vec::<String>::new(),
            "default VPC: {default_vpc}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn rules_by_network_stay_as_upstream_made_them_for_a_balancer_with_a_group() {
    let mut case = Case::new();
    let ranges = |n| managed(from(nth(n), &["10.9.0.0/16", "192.0.2.0/24"]));
    let local = |n| {
        managed(DesiredLoadBalancer {
            listeners: vec![checked_at(listener(30000 + n), 32000)],
            ..nth(n)
        })
    };
    for wanted in [managed(nth(1)), ranges(2), local(3)] {
        let groups = case.ensure(&wanted, None).await.unwrap();
        let upstreams = case.rules(&case.world.node_group).await;
        assert!(upstreams.iter().all(|rule| !rule.contains("sg=")), "{upstreams:?}");
        case.restart(Settings::default());
        case.world.aws.reset_calls();
        case.ensure(&wanted, Some(&groups)).await.unwrap();
        assert_eq!(case.world.aws.writes(), 0, "{}", wanted.name);
        assert_eq!(case.rules(&case.world.node_group).await, upstreams);
    }
    for wanted in [managed(nth(1)), ranges(2), local(3)] {
        let gone = case
            .part
            .clean_up(&case.op, &wanted.owner, &wanted.name, &[])
            .await
            .unwrap();
        assert_eq!(gone, Progress::Done);
    }
    assert_eq!(case.rules(&case.world.node_group).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn networks_come_before_a_group_goes_by_which_nodes_admitted() {
    let case = Case::new();
    let groups = case.ensure(&by_group(managed(nth(1))), None).await.unwrap();
    let by_group = format!("tcp 30001-30001 {} sg=a1", groups[0]);
    assert_eq!(case.rules(&case.world.node_group).await, [by_group.clone()]);
    let wanted = managed(nth(1));
    let e = case.exposure(&wanted, &groups);
    case.part.add_rules(&case.op, &e).await.unwrap();
    assert_eq!(case.rules(&case.world.node_group).await, [MTU, CLIENT, &by_group]);
    case.part.remove_rules(&case.op, &e).await.unwrap();
    assert_eq!(case.rules(&case.world.node_group).await, [MTU, CLIENT]);
}

#[tokio::test(start_paused = true)]
async fn nodes_admit_a_managed_group_in_place_of_networks() {
    let case = Case::new();
    case.ensure(&nth(1), None).await.unwrap();
    // The balancer has a group, and nodes still admit networks.
    let wanted = by_group(managed(nth(1)));
    let groups = case
        .part
        .ensure_frontend_groups(&case.op, &wanted, None)
        .await
        .unwrap();
    let e = case.exposure(&wanted, &groups);
    case.part.add_rules(&case.op, &e).await.unwrap();
    let id = &groups[0];
    assert_eq!(
        case.rules(&case.world.node_group).await,
        [MTU.to_owned(), CLIENT.to_owned(), format!("tcp 30001-30001 {id} sg=a1")]
    );
    case.part.remove_rules(&case.op, &e).await.unwrap();
    assert_eq!(case.rules(&case.world.node_group).await, [format!("tcp 30001-30001 {id} sg=a1")]);
    case.requests();
    case.ensure(&wanted, Some(&groups)).await.unwrap();
    assert_eq!(case.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_everything_is_known_from_one_reading() {
    let mut case = Case::new();
    for n in 1..=5 {
        case.ensure(&by_group(managed(nth(n))), None).await.unwrap();
    }
    case.restart(Settings::default());
    case.world.aws.reset_calls();
    for n in 1..=5 {
        case.ensure(&by_group(managed(nth(n))), None).await.unwrap();
    }
    // Groups once, instances once; the answer names the owner of a source group, our wish does not.
    assert_eq!(case.requests(), 2);
    let rules = case.group(&case.world.node_group).await.unwrap().ingress;
    assert!(
        rules
            .iter()
            .all(|rule| matches!(&rule.source, RuleSource::Group(_, Some(_))))
    );
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_is_named_as_a_policy_spells_it() {
    let case = Case::new();
    case.world
        .aws
        .fail_always(Action::AuthorizeSecurityGroupIngress, "UnauthorizedOperation");
    let error = case.ensure(&nth(1), None).await.unwrap_err().to_string();
    assert!(error.contains("the credentials need ec2:AuthorizeSecurityGroupIngress"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_comparison_does_not_change_which_rules_are_needed() {
    let case = Case::new();
    let wanted = nth(1);
    case.ensure(&wanted, None).await.unwrap();
    let needed = case.part.needed_rules.lock().clone();
    let mut other = nth(1);
    other.listeners = vec![checked_at(listener(30009), 32000)];
    let mut unmanaged = other.clone();
    unmanaged.security.manage_backend_rules = false;
    for compared in [other, unmanaged] {
        let request = RuleRequest { is_comparison: true, ..case.exposure(&compared, &[]) };
        case.part.plan_rules(&case.op, &request).await.unwrap();
        assert!(*case.part.needed_rules.lock() == needed);
        let request = RuleRequest { is_comparison: false, ..request };
        case.part.plan_rules(&case.op, &request).await.unwrap();
        assert!(*case.part.needed_rules.lock() != needed, "a dry run is about what is desired");
        let request = case.exposure(&wanted, &[]);
        case.part.plan_rules(&case.op, &request).await.unwrap();
    }
}
