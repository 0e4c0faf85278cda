use std::{collections::VecDeque, time::Duration};

use async_trait::async_trait;
use ccm_core::{provider::ErrorKind, write_gate::WriteGate};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    api::{
        Action, Call, Reply as Answer,
        ec2::{DeleteTags, DescribeVpcs, Vpc},
    },
    config::Rate,
};

/// Answers with these errors first and with success afterwards.
struct Flaky {
    errors: Mutex<VecDeque<AwsError>>,
    calls: Mutex<usize>,
}

impl Flaky {
    fn new(errors: impl IntoIterator<Item = AwsError>) -> Arc<Self> {
        Arc::new(Self {
            errors: Mutex::new(errors.into_iter().collect()),
            calls: Mutex::new(0),
        })
    }

    fn calls(&self) -> usize {
        *self.calls.lock()
    }
}

#[async_trait]
impl Transport for Flaky {
    async fn send(&self, call: Call) -> Result<Answer, AwsError> {
        *self.calls.lock() += 1;
        match self.errors.lock().pop_front() {
            Some(error) => Err(error),
            None => Ok(match call {
                Call::DeleteTags(_) => Answer::DeleteTags(()),
                _ => {
                    let vpc = Vpc { id: "vpc-1".into(), cidrs: Vec::new() };
                    Answer::DescribeVpcs(Page { items: vec![vpc], next: Some("more".to_owned()) })
                }
            }),
        }
    }
}

fn op() -> Op {
    Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
}

fn throttle() -> AwsError {
    AwsError::response(Action::DeleteTags, 503, "RequestLimitExceeded", "too fast")
}

fn write() -> DeleteTags {
    DeleteTags { resources: vec!["i-1".into()], tags: api::Tags::new() }
}

#[tokio::test(start_paused = true)]
async fn what_is_throttled_is_sent_again_and_slows_its_kind_down() {
    let server = Flaky::new([throttle(), throttle()]);
    let limits = Limits {
        ec2_write: Rate { per_second: 4.0, burst: 50 },
        ..Limits::default()
    };
    let client = Client::new(server.clone()).with_limits(&limits);
    let before = Instant::now();
    client
        .write(&op(), write(), "test")
        .await
        .expect("the third attempt succeeds");
    assert_eq!(server.calls(), 3);
    // Two turns of half a second each, since the budget is halved, and the burst is gone.
    assert!(before.elapsed() >= Duration::from_secs(1), "{:?}", before.elapsed());
}

// RE1, RE4
#[tokio::test(start_paused = true)]
async fn throttling_without_end_is_an_error_after_five_attempts() {
    let server = Flaky::new(std::iter::repeat_n(throttle(), 9));
    let error = Client::new(server.clone())
        .write(&op(), write(), "test")
        .await
        .unwrap_err();
    assert_eq!((server.calls(), error.code()), (5, "RequestLimitExceeded"));
    assert_eq!(CloudError::from(error).kind(), ErrorKind::Throttled);
}

/// Never answers within the time of a request.
struct Hanging(Mutex<usize>);

#[async_trait]
impl Transport for Hanging {
    async fn send(&self, _: Call) -> Result<Answer, AwsError> {
        *self.0.lock() += 1;
        tokio::time::sleep(Duration::from_secs(30)).await;
        Err(AwsError::no_response(Action::DescribeVpcs, "timed out"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_keeps_a_reader_for_one_attempt() {
    let server = Arc::new(Hanging(Mutex::new(0)));
    let before = Instant::now();
    let error = Client::new(server.clone())
        .read(&op(), DescribeVpcs::default())
        .await
        .unwrap_err();
    assert!(matches!(error.cause, AwsErrorCause::NoResponse(_)), "{error}");
    assert_eq!((before.elapsed(), *server.0.lock()), (Duration::from_secs(30), 1));
}

#[tokio::test(start_paused = true)]
async fn a_change_without_an_answer_is_not_repeated() {
    let server = Flaky::new([AwsError::no_response(Action::DeleteTags, "reset")]);
    let error = Client::new(server.clone())
        .write(&op(), write(), "test")
        .await
        .unwrap_err();
    assert!(matches!(error.cause, AwsErrorCause::NoResponse(_)), "{error}");
    assert_eq!(server.calls(), 1);
}

// RE2
#[tokio::test(start_paused = true)]
async fn a_cancelled_operation_sends_nothing_and_repeats_nothing() {
    let cancel = CancellationToken::new();
    let op = Op::new("kubernetes", cancel.clone(), WriteGate::always_open());
    cancel.cancel();
    let server = Flaky::new([]);
    let client = Client::new(server.clone());
    let error = client.write(&op, write(), "test").await.unwrap_err();
    assert_eq!(CloudError::from(error).kind(), ErrorKind::Canceled);
    let error = client.read(&op, DescribeVpcs::default()).await.unwrap_err();
    assert_eq!(CloudError::from(error).kind(), ErrorKind::Canceled);
    assert_eq!(server.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_write_nothing_is_sent() {
    let (gate, _keeper) = WriteGate::closed();
    let op = Op::new("kubernetes", CancellationToken::new(), gate);
    let server = Flaky::new([]);
    let error = Client::new(server.clone())
        .write(&op, write(), "test")
        .await
        .unwrap_err();
    assert_eq!((CloudError::from(error).kind(), server.calls()), (ErrorKind::NotLeader, 0));
}

#[tokio::test(start_paused = true)]
async fn pages_that_never_end_are_an_error() {
    let server = Flaky::new([]);
    let client = Client::new(server.clone());
    let error = client
        .read_all(&op(), DescribeVpcs::default(), |r, token| r.token = Some(token))
        .await
        .unwrap_err();
    assert!(format!("{:?}", error.cause).contains("1000 pages"), "{error:?}");
    assert_eq!(server.calls(), 1000);
}

// ME1
#[tokio::test(start_paused = true)]
async fn metrics_have_upstream_names_and_count_every_attempt() {
    let answer = |status, code: &str| AwsError::response(Action::DescribeVpcs, status, code, "");
    let server = Flaky::new([
        answer(500, "InternalError"),
        answer(400, "Throttling"),
        AwsError::no_response(Action::DescribeVpcs, "reset"),
    ]);
    let (client, registry) = (Client::new(server), Registry::new());
    client.register(&registry).expect("registers");
    client
        .read(&op(), DescribeVpcs::default())
        .await
        .expect("the fourth attempt succeeds");
    client
        .write(&op(), write(), "test")
        .await
        .expect("succeeds");
    let text = prometheus::TextEncoder::new()
        .encode_to_string(&registry.gather())
        .expect("encodes");
    for line in [
        r#"cloudprovider_aws_api_request_duration_seconds_count{request="describe_vpcs"} 1"#,
        r#"cloudprovider_aws_api_request_duration_seconds_count{request="delete_tags"} 1"#,
        r#"cloudprovider_aws_api_request_errors{request="describe_vpcs"} 3"#,
        r#"cloudprovider_aws_api_throttled_requests_total{operation_name="DescribeVpcs"} 1"#,
        r#"cloudprovider_aws_api_response_status_total{operation="DescribeVpcs",service="EC2",status_code="500"} 1"#,
        r#"cloudprovider_aws_api_response_status_total{operation="DescribeVpcs",service="EC2",status_code="400"} 1"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn turns_and_pauses_of_one_call_are_two_seconds_at_most_and_throttling_stays_what_it_is() {
    let server = Flaky::new(std::iter::repeat_n(throttle(), 100));
    let limits = Limits {
        ec2_write: Rate { per_second: 3.0, burst: 1 },
        ..Limits::default()
    };
    let client = Client::new(server.clone()).with_limits(&limits);
    let (op, before) = (op(), Instant::now());
    for _ in 0..5 {
        let error = client.write(&op, write(), "test").await.unwrap_err();
        assert_eq!(CloudError::from(error).kind(), ErrorKind::Throttled);
    }
    let slept = before.elapsed();
    assert!(slept > Duration::from_secs(1) && slept <= Duration::from_millis(2001), "{slept:?}");
    let first = client
        .write(&op.with_fresh_sleep_budget(), write(), "test")
        .await
        .unwrap_err();
    assert_eq!(first.code(), "RequestLimitExceeded", "it was sent, and AWS said so: {first}");
}

#[tokio::test(start_paused = true)]
async fn what_was_answered_is_not_asked_again_and_what_failed_is() {
    let missing = || AwsError::response(Action::DescribeVpcs, 400, "LoadBalancerNotFound", "none");
    let server =
        Flaky::new([missing(), AwsError::response(Action::DescribeVpcs, 400, "Nonsense", "no")]);
    let answers = ResponseCache::default();
    let client = Client::new(server.clone()).with_response_cache(&answers);
    let op = op();
    let ask = |id: &str| client.read(&op, DescribeVpcs { ids: vec![id.into()], token: None });
    let (first, second) = (ask("vpc-a").await.unwrap_err(), ask("vpc-b").await.unwrap_err());
    assert_eq!((first.code(), second.code()), ("LoadBalancerNotFound", "Nonsense"));
    for _ in 0..3 {
        assert_eq!(ask("vpc-a").await.unwrap_err().code(), "LoadBalancerNotFound");
        assert_eq!(ask("vpc-b").await.unwrap().items.len(), 1);
    }
    assert_eq!(server.calls(), 3);
    for _ in 0..2 {
        client
            .write(&op, write(), "test")
            .await
            .expect("a change is made again");
    }
    assert_eq!(server.calls(), 5);
    answers.clear();
    assert_eq!(ask("vpc-a").await.unwrap().items.len(), 1);
}
