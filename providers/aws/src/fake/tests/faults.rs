use super::*;
use crate::api::{
    AwsErrorCause, Service,
    elb::{DescribeLoadBalancers, DescribeTargetGroups},
};

const LIST: DescribeLoadBalancers =
    DescribeLoadBalancers { names: Vec::new(), arns: Vec::new(), token: None };

fn is_lost(error: &AwsError) -> bool {
    matches!(error.cause, AwsErrorCause::NoResponse(_))
}

#[tokio::test(start_paused = true)]
async fn ordered_codes_come_once_and_in_order_and_nothing_is_done() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    aws.fail_next(Action::CreateLoadBalancer, "InternalError");
    aws.fail_next(Action::CreateLoadBalancer, "OperationNotPermitted");
    let request = balancer(&world, "lb");
    assert_eq!(code(aws, request.clone()).await, "InternalError");
    assert_eq!(code(aws, request.clone()).await, "OperationNotPermitted");
    assert!(aws.load_balancers().is_empty());
    assert_eq!(code(aws, request.clone()).await, "ok");
    assert_eq!((aws.calls(Action::CreateLoadBalancer), aws.writes(), aws.requests()), (3, 3, 3));
    aws.fail_always(Action::DescribeLoadBalancers, "InternalError");
    assert_eq!([code(aws, LIST).await, code(aws, LIST).await], ["InternalError", "InternalError"]);
    aws.clear_faults();
    assert_eq!(code(aws, LIST).await, "ok");
    aws.reset_calls();
    assert_eq!((aws.requests(), aws.writes()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_lost_before_or_after_the_change() {
    for (crash, there) in [(Crash::Before, 1), (Crash::After, 2)] {
        let world = FakeCluster::small(0);
        let aws = &world.aws;
        aws.fail_nth_write(2, crash);
        aws.ask(balancer(&world, "one")).await.unwrap();
        aws.ask(LIST).await.unwrap();
        let error = aws.ask(balancer(&world, "two")).await.unwrap_err();
        assert!(is_lost(&error), "{crash:?}: {error}");
        assert_eq!(aws.load_balancers().len(), there, "{crash:?}");
        assert_eq!(code(aws, balancer(&world, "two")).await, "ok");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_process_neither_reads_nor_writes_until_it_starts_anew() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    aws.crash_at_write(1, Crash::After);
    assert!(is_lost(&aws.ask(balancer(&world, "one")).await.unwrap_err()));
    assert!(aws.is_dead());
    assert!(is_lost(&aws.ask(LIST).await.unwrap_err()));
    assert!(is_lost(&aws.ask(balancer(&world, "two")).await.unwrap_err()));
    assert_eq!((aws.load_balancers().len(), aws.requests()), (1, 1));
    aws.restart_process();
    assert_eq!(aws.ask(LIST).await.unwrap().items.len(), 1);

    aws.crash_after(1);
    assert_eq!(code(aws, balancer(&world, "two")).await, "ok");
    assert!(is_lost(&aws.ask(LIST).await.unwrap_err()));
}

#[tokio::test(start_paused = true)]
async fn throttling_and_denial_are_worded_by_each_service() {
    let aws = FakeAws::new();
    aws.throttle(Action::DescribeInstances, 2);
    aws.throttle(Action::DescribeLoadBalancers, 1);
    for _ in 0..2 {
        assert_eq!(code(&aws, DescribeInstances::default()).await, "RequestLimitExceeded");
    }
    assert_eq!(code(&aws, DescribeInstances::default()).await, "ok");
    assert_eq!(code(&aws, LIST).await, "ThrottlingException");

    aws.deny(Action::DescribeInstances);
    aws.deny(Action::DescribeTargetGroups);
    let error = aws.ask(DescribeInstances::default()).await.unwrap_err();
    let AwsErrorCause::Response { code: answer, message, status, .. } = &error.cause else {
        panic!("{error}")
    };
    assert_eq!((&**answer, *status), ("UnauthorizedOperation", 403));
    assert!(message.contains("ec2:DescribeInstances"), "{message}");
    assert_eq!(code(&aws, DescribeTargetGroups::default()).await, "AccessDenied");
    assert_eq!(Action::DescribeTargetGroups.service(), Service::Elb);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_waited_for_is_carried_out_or_not_by_how_far_it_came() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    aws.configure(|knobs| knobs.latency = Duration::from_millis(100));
    let started = tokio::time::Instant::now();
    aws.ask(LIST).await.unwrap();
    assert_eq!(started.elapsed(), Duration::from_millis(100));
    for (name, wait, there) in [("early", 40, 0), ("late", 60, 1)] {
        let sent = aws.ask(balancer(&world, name));
        assert!(
            tokio::time::timeout(Duration::from_millis(wait), sent)
                .await
                .is_err()
        );
        assert_eq!(aws.load_balancers().len(), there, "{name}");
    }
}
