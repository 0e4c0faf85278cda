//! How many requests are made: the numbers are a promise.

use ccm_core::provider::{Progress, ReadMode};

use super::fixture::{Fixture, fresh, published, service};
use crate::{api::Action, config::Settings};
use ccm_testkit::suite::sized;

fn done(outcome: &ccm_core::provider::LbOutcome) {
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_balancer_with_one_port_takes_at_most_seven_requests() {
    let rig = Fixture::new(3);
    rig.warm().await;
    // Rules of security groups are known from other Services.
    done(
        &rig.ensure(&fresh(&service("other", &[81])), ReadMode::Fresh)
            .await,
    );
    rig.aws.reset_calls();
    let outcome = rig
        .ensure(&fresh(&service("web", &[80])), ReadMode::Fresh)
        .await;
    done(&outcome);
    assert!(rig.aws.requests() <= 7, "{:?}", rig.aws.actions());
    assert!(outcome.status.unwrap().ingress[0].hostname.is_some());
}

// OU1
#[tokio::test(start_paused = true)]
async fn what_is_in_line_takes_no_request() {
    let rig = Fixture::new(3);
    let web = service("web", &[80, 443]);
    let status = rig.settle(&web).await;
    rig.aws.reset_calls();
    let web = published(&web, &status);
    done(&rig.ensure(&web, ReadMode::Cached).await);
    done(&rig.update(&web).await);
    assert_eq!(rig.aws.actions(), []);
    assert_eq!(rig.plan(&web).await.unwrap(), [], "nor does a comparison find anything");
    assert_eq!(rig.aws.writes(), 0);
}

// OU2
#[tokio::test(start_paused = true)]
async fn a_node_more_takes_one_registration_for_each_target_group() {
    let mut rig = Fixture::new(3);
    let services = ["a", "b", "c"].map(|name| service(name, &[80, 443]));
    for service in &services {
        rig.settle(service).await;
    }
    rig.add_node();
    rig.warm().await;
    rig.aws.reset_calls();
    for service in &services {
        done(&rig.update(service).await);
    }
    assert_eq!(rig.aws.actions(), [Action::RegisterTargets; 6]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_costs_two_requests_for_each_service_and_a_few_shared_ones() {
    let rig = Fixture::new(3);
    rig.aws.quotas(|quotas| quotas.load_balancers = 1000);
    rig.aws
        .quotas(|quotas| quotas.rules_per_security_group = 10_000);
    let (mut services, count) = (Vec::new(), sized(60, 300).unwrap());
    for n in 0..count {
        let web = service(&format!("web{n}"), &[80]);
        let made = rig.ensure(&fresh(&web), ReadMode::Fresh).await;
        services.push(published(&web, &made.status.unwrap()));
    }
    let mut rig = rig.restart();
    rig.aws.reset_calls();
    for service in &services {
        assert_eq!(rig.plan(service).await.unwrap(), []);
    }
    let calls = rig.aws.requests();
    assert!(calls <= count * 2 + count / 10 + 20, "{calls}");
    assert_eq!(
        (rig.aws.calls(Action::DescribeListeners), rig.aws.calls(Action::DescribeTargetHealth)),
        (count, count)
    );
    assert_eq!(rig.aws.writes(), 0);

    // And then nothing but registrations for a node more.
    rig.add_node();
    rig.warm().await;
    rig.aws.reset_calls();
    for service in &services {
        done(&rig.update(service).await);
    }
    assert_eq!(rig.aws.actions(), vec![Action::RegisterTargets; count]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_leaves_is_deregistered_and_nothing_else_happens() {
    let mut rig = Fixture::new(3);
    let web = service("web", &[80]);
    rig.settle(&web).await;
    rig.nodes.pop();
    rig.aws.reset_calls();
    done(&rig.update(&web).await);
    assert_eq!(rig.aws.actions(), [Action::DeregisterTargets]);
    let arn = rig.aws.target_groups()[0].arn.clone();
    assert_eq!(rig.aws.targets(&arn).len(), 2);
}

/// The numbers for classic load balancers, which `docs/benchmarks.md` repeats.
#[tokio::test(start_paused = true)]
async fn a_classic_load_balancer_follows_a_node_with_two_reads_and_one_change() {
    use Action as A;

    let mut rig = Fixture::configured(3, Settings::default());
    rig.settle(&service("other", &[80])).await;
    // Created, with caches warm.
    rig.aws.reset_calls();
    let web = service("web", &[80]);
    let status = rig.settle(&web).await;
    let (group, rules) = (A::CreateSecurityGroup, A::AuthorizeSecurityGroupIngress);
    let created = [
        [A::DescribeClassic, A::DescribeLoadBalancers, group, rules],
        [A::CreateClassic, A::ConfigureClassicHealthCheck, rules, A::RegisterClassic],
    ];
    assert_eq!(rig.aws.actions(), created.concat());
    // Nothing has changed.
    let web = published(&web, &status);
    rig.aws.reset_calls();
    done(&rig.ensure(&web, ReadMode::Cached).await);
    assert_eq!(rig.aws.actions(), []);
    // A node more, and a node less.
    rig.add_node();
    rig.warm().await;
    rig.aws.reset_calls();
    done(&rig.update(&web).await);
    let reads = [A::DescribeClassic, A::DescribeClassicTags];
    assert_eq!(rig.aws.actions(), [&reads[..], &[A::RegisterClassic]].concat());
    rig.nodes.pop();
    rig.aws.reset_calls();
    done(&rig.update(&web).await);
    assert_eq!(rig.aws.actions(), [&reads[..], &[A::DeregisterClassic]].concat());
    // A restart, and a comparison with AWS.
    let rig = rig.restart();
    rig.warm().await;
    rig.aws.reset_calls();
    assert_eq!(rig.plan(&web).await.unwrap(), []);
    let compared = [&reads[..], &[A::DescribeClassicAttributes]].concat();
    assert_eq!(rig.aws.actions(), [&compared[..], &[A::DescribeSecurityGroups]].concat());
    rig.aws.reset_calls();
    done(&rig.ensure(&web, ReadMode::Fresh).await);
    assert_eq!(rig.aws.actions(), compared);
    // The end.
    rig.aws.reset_calls();
    rig.remove(&web).await;
    assert_eq!(rig.aws.requests(), 12, "{:?}", rig.aws.actions());
}
