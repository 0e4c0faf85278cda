//! Classic load balancers in doubt: whose they are, what else uses their groups, and what is left of
//! an interrupted change.

use std::time::Duration;

use ccm_core::{
    k8s::{ServiceView, TrafficPolicy},
    provider::{LoadBalancers as _, Progress, ReadMode, ServiceInterpretation},
};

use super::{
    classic_upstream::{made_by_upstream, own_group_by_upstream},
    fixture::{Fixture, published, service, showing, with},
};
use crate::{
    api::{
        Action, SecurityGroupId,
        classic::DeleteClassic,
        ec2::{AuthorizeSecurityGroupIngress, Rule, RuleSource},
    },
    config::{DefaultType, Settings},
    fake::{AccountSnapshot, Crash},
    lb::names,
};

fn upstreams(nodes: usize) -> Fixture {
    Fixture::configured(nodes, Settings::default())
}

fn of_type(nodes: usize, default_type: DefaultType) -> Fixture {
    Fixture::configured(nodes, Settings { default_type, ..Settings::default() })
}

async fn made(rig: &Fixture, web: &ServiceView) -> ServiceView {
    let status = rig.settle(web).await;
    published(web, &status)
}

fn same(rig: &Fixture, expected: &AccountSnapshot, what: &str) {
    let found = rig.aws.snapshot();
    assert_eq!(found, *expected, "{what}:\n{}", expected.diff(&found));
}

fn new_group(rig: &Fixture, name: &str) -> SecurityGroupId {
    rig.aws.security_group(&rig.world.vpc, name, &[])
}

fn own_group(rig: &Fixture) -> SecurityGroupId {
    rig.aws.classics()[0].security_groups[0].clone()
}

/// Whether the nodes admit a group.
fn admitted(rig: &Fixture, group: &SecurityGroupId) -> bool {
    let rules = rig.aws.rules(&rig.world.node_group);
    rules
        .iter()
        .any(|rule| matches!(&rule.source, RuleSource::Group(id, _) if id == group))
}

async fn admit(rig: &Fixture, source: &SecurityGroupId) {
    let rule = Rule {
        protocol: "-1".into(),
        ports: None,
        source: RuleSource::Group(source.clone(), None),
        description: Box::default(),
    };
    let id = rig.world.node_group.clone();
    let request = AuthorizeSecurityGroupIngress { id, rules: vec![rule] };
    rig.aws.ask(request).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_owner_of_one_that_this_process_made_is_checked_too() {
    let rig = upstreams(1);
    let web = made(&rig, &service("web", &[80])).await;
    let name = names::load_balancer(&web.uid);
    rig.aws
        .ask(DeleteClassic { name: name.clone() })
        .await
        .unwrap();
    let other = ("kubernetes.io/cluster/other", "owned");
    rig.aws
        .classic(&name, &[rig.world.node_group.clone()], &[], &[other]);
    assert_eq!(rig.delete(&web).await.unwrap(), Progress::Done);
    assert_eq!(rig.aws.classics().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_whose_creation_was_not_answered_is_deleted_once_it_shows() {
    let rig = upstreams(1);
    let given = new_group(&rig, "given");
    let empty = rig.aws.snapshot();
    rig.aws
        .configure(|options| options.describe_lag = Duration::from_secs(10));
    let web = with(service("web", &[80]), "security-groups", &given);
    rig.aws.fail_nth_write(1, Crash::After);
    rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
    let first = rig.delete(&web).await.unwrap();
    assert!(matches!(first, Progress::Pending { .. }), "{first:?}");
    rig.remove(&web).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    same(&rig, &empty, "deletion");
}

// A cluster that lets another controller make the load balancers of untyped Services still has old
// ones.
#[tokio::test(start_paused = true)]
async fn an_old_one_is_kept_where_the_configuration_makes_none() {
    let mut rig = of_type(2, DefaultType::None);
    let given = new_group(&rig, "given");
    let empty = rig.aws.snapshot();
    let web = with(service("web", &[80]), "security-groups", &given);
    let interpretation = rig.balancers.interpret(&web);
    assert_eq!(interpretation, ServiceInterpretation::ImplementedElsewhere);
    let host = made_by_upstream(&rig, &web, &[0, 1]).await;
    let web = showing(&web, &host);
    assert_eq!(rig.plan_in_shadow(&web).await, []);
    let nodes = rig.nodes.clone();
    rig.nodes.pop();
    let outcome = rig.ensure(&web, ReadMode::Fresh).await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    assert_eq!(rig.aws.classics()[0].instances.len(), 1);
    rig.nodes = nodes;
    assert!(matches!(rig.update(&web).await.result, Ok(Progress::Done)));
    assert_eq!(rig.aws.classics()[0].instances.len(), 2);
    // At its deletion, the groups count whatever the Service says now.
    let rig = rig.restart();
    rig.remove(&with(web, "type", "external")).await;
    same(&rig, &empty, "deletion");
}

// Each kind of Service as upstream leaves it, with the own group that it leaves when a Service names
// others, as long as upstream lasts.
#[tokio::test(start_paused = true)]
async fn a_takeover_changes_nothing_whatever_the_service_asks_for() {
    for (number, has_leftover) in (0..7).flat_map(|number| [(number, false), (number, true)]) {
        let rig = upstreams(2);
        let (one, two) = (new_group(&rig, "one"), new_group(&rig, "two"));
        let web = || service("web", &[80, 443]);
        let tls = with(with(web(), "ssl-cert", &rig.aws.certificate()), "ssl-ports", "443");
        let mut local = web();
        local.external_traffic_policy = TrafficPolicy::Local;
        local.health_check_node_port = 32000.try_into().ok();
        let all = [
            with(web(), "security-groups", &format!("{two},{one}")),
            with(with(web(), "security-groups", &two), "extra-security-groups", &one),
            with(web(), "extra-security-groups", &format!("{one},{two}")),
            tls.clone(),
            with(tls, "ssl-negotiation-policy", "ELBSecurityPolicy-TLS-1-2-2017-01"),
            with(web(), "proxy-protocol", "*"),
            local,
        ];
        let web = &all[number];
        let is_named = web
            .annotations
            .keys()
            .any(|key| key.ends_with("-load-balancer-security-groups"));
        if has_leftover {
            if !is_named {
                continue;
            }
            let leftover = own_group_by_upstream(&rig, web).await;
            admit(&rig, &leftover).await;
        }
        let host = made_by_upstream(&rig, web, &[0, 1]).await;
        let web = showing(web, &host);
        let before = rig.aws.snapshot();
        rig.aws.reset_calls();
        assert_eq!(rig.plan_in_shadow(&web).await, [], "{number} {has_leftover}");
        let outcome = rig.ensure(&web, ReadMode::Fresh).await;
        assert!(matches!(outcome.result, Ok(Progress::Done)), "{number}: {outcome:?}");
        assert_eq!(rig.aws.writes(), 0, "{number} {has_leftover}");
        same(&rig, &before, "takeover");
    }
}

#[tokio::test(start_paused = true)]
async fn an_own_group_that_something_else_has_keeps_its_rules() {
    for by_service in [true, false] {
        let rig = upstreams(1);
        let given = new_group(&rig, "given");
        let web = made(&rig, &service("web", &[80])).await;
        let own = own_group(&rig);
        if by_service {
            made(&rig, &with(service("api1", &[80]), "security-groups", &own)).await;
        } else {
            rig.aws.instance(&rig.world.private[0]).group(&own).launch();
        }
        // It is replaced.
        let other = with(web.clone(), "security-groups", &given);
        let outcome = rig.ensure(&other, ReadMode::Fresh).await;
        assert!(matches!(outcome.result, Ok(Progress::Pending { .. })), "{outcome:?}");
        assert!(admitted(&rig, &own), "{by_service}");
        // Its load balancer is deleted.
        let progress = rig.delete(&other).await.unwrap();
        assert!(matches!(progress, Progress::Pending { .. }), "{progress:?}");
        assert!(admitted(&rig, &own), "{by_service}");
        assert_eq!(rig.aws.classics().len(), usize::from(by_service));
    }
}

// The node of one Service goes, the other Service still needs the rule.
#[tokio::test(start_paused = true)]
async fn rules_for_an_own_group_that_another_service_names_stay() {
    let mut rig = upstreams(1);
    let web = made(&rig, &service("web", &[80])).await;
    let own = own_group(&rig);
    made(&rig, &with(service("api1", &[80]), "security-groups", &own)).await;
    rig.nodes.clear();
    rig.update(&web).await.result.unwrap();
    assert!(admitted(&rig, &own));
}

// A network that lost access must not keep it because something else fails.
#[tokio::test(start_paused = true)]
async fn networks_lose_access_whatever_else_fails() {
    let rejected = ("ssl-cert", "arn:aws:acm:us-west-2:123456789012:certificate/none");
    let nothing = ("connection-idle-timeout", "60");
    let failing = [Action::DescribeClassicAttributes, Action::RegisterClassic];
    for ((key, value), failing) in
        [(rejected, None), (nothing, Some(failing[0])), (nothing, Some(failing[1]))]
    {
        let mut rig = upstreams(1);
        let web = made(&rig, &service("web", &[80])).await;
        let own = own_group(&rig);
        rig.add_node();
        if let Some(action) = failing {
            rig.aws.fail_always(action, "InternalError");
        }
        let mut web = with(web, key, value);
        web.source_ranges = Box::from(["198.51.100.0/24".into()]);
        rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
        let rules = rig.aws.rules(&own);
        let everywhere = RuleSource::Cidr("0.0.0.0/0".parse().unwrap());
        let is_open = rules.iter().any(|rule| rule.source == everywhere);
        assert!(!is_open, "{key} {failing:?}: {rules:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_rule_for_a_replaced_group_goes_even_if_a_later_change_failed() {
    let rig = upstreams(1);
    let (one, two) = (new_group(&rig, "one"), new_group(&rig, "two"));
    let web = made(&rig, &with(service("web", &[80]), "security-groups", &one)).await;
    assert!(admitted(&rig, &one));
    rig.aws
        .fail_always(Action::ConfigureClassicHealthCheck, "InternalError");
    let web = with(with(web, "security-groups", &two), "healthcheck-interval", "20");
    rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
    rig.aws.clear_faults();
    rig.settle(&web).await;
    assert!(admitted(&rig, &two) && !admitted(&rig, &one));
}

// A process that ends between two requests does not know afterwards which groups it has replaced.
#[tokio::test(start_paused = true)]
async fn a_replaced_group_goes_wherever_the_process_that_replaced_it_ends() {
    let by_upstream = [false, true];
    for (is_upstreams, crash) in by_upstream
        .into_iter()
        .flat_map(|it| [(it, Crash::Before), (it, Crash::After)])
    {
        for number in 1.. {
            let rig = upstreams(2);
            let given = new_group(&rig, "given");
            let plain = service("web", &[80]);
            let web = if is_upstreams {
                let host = made_by_upstream(&rig, &plain, &[0, 1]).await;
                showing(&plain, &host)
            } else {
                made(&rig, &plain).await
            };
            let own = own_group(&rig);
            let web = with(web, "security-groups", &given);
            rig.aws.reset_calls();
            rig.aws.crash_at_write(number, crash);
            let first = rig.ensure(&web, ReadMode::Fresh).await;
            let rig = rig.restart();
            if first.result.is_ok() {
                assert!(number > 5, "the last of {} writes", number - 1);
                break;
            }
            rig.aws.clear_faults();
            let there = format!("{is_upstreams} {number} {crash:?}");
            rig.settle(&web).await;
            assert_eq!(own_group(&rig), given, "{there}");
            assert!(!rig.aws.exists(&own), "{there}: its own group is left");
            assert!(admitted(&rig, &given) && !admitted(&rig, &own), "{there}");
            assert_eq!(rig.plan(&web).await.unwrap(), [], "{there}");
        }
    }
}

// The mark is not worth a replacement that fails.
#[tokio::test(start_paused = true)]
async fn without_permission_to_tag_groups_one_is_replaced_all_the_same() {
    let rig = upstreams(1);
    let given = new_group(&rig, "given");
    let web = made(&rig, &service("web", &[80])).await;
    let own = own_group(&rig);
    rig.aws.deny(Action::CreateTags);
    rig.settle(&with(web, "security-groups", &given)).await;
    assert_eq!(own_group(&rig), given);
    assert!(!rig.aws.exists(&own));
}

// One that the Service wants back is not taken for a replaced one, not even while a change fails.
#[tokio::test(start_paused = true)]
async fn a_replaced_group_that_is_requested_again_stays() {
    let rig = upstreams(1);
    let given = new_group(&rig, "given");
    let plain = made(&rig, &service("web", &[80])).await;
    let own = own_group(&rig);
    let other = with(plain.clone(), "security-groups", &given);
    rig.aws
        .fail_always(Action::RevokeSecurityGroupIngress, "InternalError");
    rig.ensure(&other, ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert_eq!(own_group(&rig), given);
    let rig = rig.restart();
    rig.aws.clear_faults();
    rig.aws
        .fail_always(Action::SetClassicSecurityGroups, "InternalError");
    for web in [&plain, &with(plain.clone(), "security-groups", &own)] {
        rig.ensure(web, ReadMode::Fresh).await.result.unwrap_err();
        assert!(rig.aws.exists(&own));
    }
}

// The annotation was removed just before the Service.
#[tokio::test(start_paused = true)]
async fn a_deletion_revokes_the_rule_for_the_group_that_was_attached() {
    let rig = upstreams(1);
    let given = new_group(&rig, "given");
    let empty = rig.aws.snapshot();
    let named = made(&rig, &with(service("web", &[80]), "security-groups", &given)).await;
    let web = published(&service("web", &[80]), &named.status);
    rig.remove(&web).await;
    same(&rig, &empty, "deletion");
}

#[tokio::test(start_paused = true)]
async fn a_new_default_type_finds_one_that_no_status_shows() {
    for host in [None, Some("web.lb.example.org")] {
        let rig = of_type(1, DefaultType::Nlb);
        let empty = rig.aws.snapshot();
        let plain = service("web", &[80]);
        let made = made_by_upstream(&rig, &plain, &[0]).await;
        let before = rig.aws.snapshot();
        let web = match host {
            Some(host) => showing(&plain, host),
            None => plain,
        };
        let outcome = rig.ensure(&web, ReadMode::Fresh).await;
        assert!(matches!(outcome.result, Ok(Progress::Done)), "{host:?}: {outcome:?}");
        assert_eq!(outcome.status, Some(showing(&web, &made).status), "{host:?}");
        same(&rig, &before, "it is kept");
        let rig = rig.restart();
        rig.remove(&web).await;
        same(&rig, &empty, "deletion");
    }
}

// An NLB cluster pays one request when a load balancer is made and one when it goes.
#[tokio::test(start_paused = true)]
async fn network_load_balancers_do_not_need_the_classic_api() {
    for is_denied in [false, true] {
        let rig = of_type(1, DefaultType::Nlb);
        let empty = rig.aws.snapshot();
        if is_denied {
            rig.aws.deny(Action::DescribeClassic);
            rig.aws.deny(Action::DescribeClassicTags);
        }
        let web = made(&rig, &service("web", &[80])).await;
        assert_eq!(rig.aws.calls(Action::DescribeClassic), 1);
        rig.ensure(&web, ReadMode::Fresh).await.result.unwrap();
        assert_eq!(rig.aws.calls(Action::DescribeClassic), 1);
        rig.remove(&web).await;
        assert_eq!(rig.aws.calls(Action::DescribeClassic), 2);
        same(&rig, &empty, "deletion");
        assert_eq!(rig.reasons(), [""; 0]);
    }
}
