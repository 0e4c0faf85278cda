//! No call sleeps more than two seconds, whatever it waits for, and what is broken off ends all the
//! same.

use std::{sync::Arc, time::Duration};

use ccm_core::provider::{
    CloudError, ErrorKind, Inventory, LbOutcome, LbSpec, LoadBalancers, Op, Progress, ReadMode,
};
use futures::future::join_all;
use tokio::time::Instant;

use super::fixture::{Fixture, fresh, published, reference, service};
use crate::{
    api::Action,
    config::{Limits, Rate, Settings},
};

/// With what a clock of milliseconds rounds up.
const MOST: Duration = Duration::from_millis(2001);

fn rate(per_second: f64, burst: u32) -> Rate {
    Rate { per_second, burst }
}

/// Every kind of request as slowly as this.
fn all(rate: Rate) -> Limits {
    Limits {
        ec2_read: rate,
        ec2_write: rate,
        topology: rate,
        elb_read: rate,
        elb_register: rate,
        elb_write: rate,
    }
}

/// Runs a call, which must not sleep longer than is allowed.
async fn brief<T>(what: &str, call: impl Future<Output = T>) -> T {
    within(MOST, what, call).await
}

async fn within<T>(most: Duration, what: &str, call: impl Future<Output = T>) -> T {
    let begin = Instant::now();
    let answer = call.await;
    assert!(begin.elapsed() <= most, "{what} took {:?}", begin.elapsed());
    answer
}

/// Asks until there is an answer.
async fn answered<T, F: Future<Output = Result<T, CloudError>>>(
    what: &str,
    call: impl Fn() -> F,
) -> T {
    for _ in 0..100 {
        match brief(what, call()).await {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::Throttled | ErrorKind::Transient),
                    "{error:?}"
                );
                tokio::time::sleep(error.retry_after().expect("when it is our turn")).await;
            }
        }
    }
    panic!("no answer to {what}");
}

/// Ensures until it is done; returns how many calls it took.
async fn ensure(rig: &Fixture, want: &LbSpec) -> (LbOutcome, usize) {
    ensure_within(MOST, rig, want).await
}

async fn ensure_within(most: Duration, rig: &Fixture, want: &LbSpec) -> (LbOutcome, usize) {
    let mut waited = Duration::ZERO;
    for calls in 1..500 {
        let op = rig.op().with_pending_for(waited);
        let outcome =
            within(most, "ensure", rig.balancers.ensure(&op, want, ReadMode::Fresh)).await;
        let after = match &outcome.result {
            Ok(Progress::Done) => return (outcome, calls),
            Ok(Progress::Pending { after, .. }) => *after,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Throttled, "{error:?}");
                waited = Duration::ZERO;
                Duration::from_secs(1)
            }
        };
        tokio::time::sleep(after).await;
        waited += after;
    }
    panic!("{} does not end", want.service.key());
}

async fn delete(rig: &Fixture, want: &LbSpec) -> usize {
    delete_within(MOST, rig, want).await
}

async fn delete_within(most: Duration, rig: &Fixture, want: &LbSpec) -> usize {
    for calls in 1..500 {
        let after = match within(
            most,
            "delete",
            rig.balancers.delete(&rig.op(), &reference(&want.service)),
        )
        .await
        {
            Ok(Progress::Done) => return calls,
            Ok(Progress::Pending { after, .. }) => after,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Throttled, "{error:?}");
                Duration::from_secs(1)
            }
        };
        tokio::time::sleep(after).await;
    }
    panic!("{} is not deleted", want.service.key());
}

#[tokio::test(start_paused = true)]
async fn every_operation_ends_in_brief_calls_with_all_budgets_used_up() {
    let mut rig = Fixture::limited(3, &all(rate(1.5, 1)));
    let web = service("web", &[80, 443, 8080, 8443]);
    let (outcome, calls) = ensure(&rig, &rig.spec(&fresh(&web))).await;
    assert!(calls >= 5, "{calls}");
    let web = published(&web, &outcome.status.unwrap());
    assert_eq!(rig.aws.calls(Action::CreateLoadBalancer), 1);
    assert_eq!(rig.aws.calls(Action::CreateTargetGroup), 4);
    assert_eq!(rig.aws.calls(Action::CreateListener), 4);
    rig.add_node();
    for calls in 1.. {
        match brief("update", rig.update(&web)).await.result {
            Ok(Progress::Done) => break,
            Ok(Progress::Pending { after, .. }) => tokio::time::sleep(after).await,
            Err(error) => panic!("{error:?}"),
        }
        assert!(calls < 50);
    }
    assert_eq!(rig.aws.calls(Action::RegisterTargets), 8);
    assert_eq!(answered("plan", || rig.plan(&web)).await, []);
    let owned = answered("list", || async { rig.balancers.list_owned(&rig.op()).await }).await;
    assert_eq!(owned.len(), 5);
    delete(&rig, &rig.spec(&web)).await;
    assert!(rig.aws.load_balancers().is_empty() && rig.aws.target_groups().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_look_that_is_broken_off_goes_on_where_it_ended() {
    let rig = Fixture::new(2);
    let ports: Vec<u16> = (0..30).map(|i| 8000 + i).collect();
    let web = published(&service("web", &ports), &rig.settle(&service("web", &ports)).await);
    let rig = rig.restart_limited(&Limits { elb_read: rate(2.0, 1), ..Limits::default() });
    rig.aws.reset_calls();
    ensure(&rig, &rig.spec(&web)).await;
    let reads = rig.aws.requests() - rig.aws.writes();
    // The balancer, its groups and listeners, tags in twenties, attributes and targets of each; the
    // VPC and its groups.
    assert_eq!((reads, rig.aws.writes()), (4 + 4 + 30 + 2 * 30 + 5, 0));
}

#[tokio::test(start_paused = true)]
async fn many_services_that_share_a_small_budget_all_end() {
    // Each may also wait for another that sleeps with what both need.
    let rig = Fixture::new(2);
    let mut services = Vec::new();
    for i in 0..12 {
        let one = service(&format!("web{i}"), &[80, 81, 82]);
        services.push(published(&one, &rig.settle(&one).await));
    }
    let rig = rig.restart_limited(&Limits {
        elb_read: rate(4.0, 4),
        elb_write: rate(3.0, 3),
        ..Limits::default()
    });
    let specs: Vec<LbSpec> = services.iter().map(|service| rig.spec(service)).collect();
    join_all(specs.iter().map(|spec| ensure_within(2 * MOST, &rig, spec))).await;
    assert_eq!(rig.aws.load_balancers().len(), 12);
    join_all(specs.iter().map(|spec| delete_within(2 * MOST, &rig, spec))).await;
    assert!(rig.aws.load_balancers().is_empty() && rig.aws.target_groups().is_empty());
}

#[tokio::test(start_paused = true)]
async fn throttling_answers_leave_every_call_brief_and_what_is_known_known() {
    let rig = Fixture::limited(2, &Limits::default());
    let (web, spec) = (service("web", &[80, 443]), Arc::new(rig.spec(&service("web", &[80, 443]))));
    for action in Action::ALL {
        rig.aws.throttle(*action, 7);
    }
    let (outcome, _) = ensure(&rig, &spec).await;
    rig.aws.clear_faults();
    assert_eq!(rig.aws.load_balancers().len(), 1);
    let web = published(&web, &outcome.status.unwrap());
    assert_eq!(rig.plan(&web).await.unwrap(), []);
    for action in Action::ALL {
        rig.aws.throttle(*action, 7);
    }
    delete(&rig, &rig.spec(&web)).await;
    assert!(rig.aws.load_balancers().is_empty() && rig.aws.target_groups().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_throttled_change_is_taken_up_without_reading_anything_again() {
    let rig = Fixture::new(2);
    let web = service("web", &[80, 443]);
    rig.aws.throttle(Action::CreateTargetGroup, 5);
    let error = rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Throttled);
    rig.aws.reset_calls();
    let op: Op = rig.op().with_pending_for(Duration::from_secs(1));
    let outcome = rig
        .balancers
        .ensure(&op, &rig.spec(&web), ReadMode::Fresh)
        .await;
    assert_eq!(outcome.result.unwrap(), Progress::Done);
    assert_eq!(rig.aws.calls(Action::CreateLoadBalancer), 0);
    assert_eq!(rig.aws.calls(Action::DescribeLoadBalancers), 0);
}

/// Each of them needs several reads, and all share one rate.
#[tokio::test(start_paused = true)]
async fn many_classic_load_balancers_at_once_go_on_where_they_had_to_wait() {
    let count = 40;
    let rig = Fixture::configured(3, Settings::default()).restart_limited(&Limits::default());
    rig.aws.quotas(|quotas| {
        quotas.classic_load_balancers = count;
        quotas.rules_per_security_group = 1000;
    });
    let names: Vec<_> = (0..count).map(|n| format!("web{n}")).collect();
    let services = names.iter().map(|name| service(name, &[80]));
    let first = &rig;
    let made = services.map(|web| async move {
        let (outcome, _) = ensure(first, &first.spec(&web)).await;
        published(&web, &outcome.status.unwrap())
    });
    let made = join_all(made.collect::<Vec<_>>()).await;
    assert_eq!(rig.aws.classics().len(), count);
    // Compared by the next process.
    let rig = rig.restart_limited(&Limits::default());
    rig.aws.reset_calls();
    let compared = made
        .iter()
        .map(|web| answered("a comparison", || rig.plan(web)));
    assert_eq!(join_all(compared).await.concat(), []);
    for read in
        [Action::DescribeClassic, Action::DescribeClassicTags, Action::DescribeClassicAttributes]
    {
        assert_eq!(rig.aws.calls(read), count, "{read:?}");
    }
}
