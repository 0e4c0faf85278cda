use std::time::Duration;

use prometheus::Registry;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    config::{Format, LoggingConfig},
    provider::call_metrics::MutationMetrics,
    telemetry::{log_capture::LogCapture, logging},
    write_gate::WriteGate,
};

/// An operation, with everything that it leaves behind.
struct MutationFixture {
    op: Op,
    cancel: CancellationToken,
    registry: Registry,
    log: LogCapture,
    _logging: tracing::dispatcher::DefaultGuard,
}

impl MutationFixture {
    fn new(gate: WriteGate) -> Self {
        let (registry, log, cancel) =
            (Registry::new(), LogCapture::default(), CancellationToken::new());
        let metrics = MutationMetrics::register(&registry, &["create", "delete"]).unwrap();
        let op = Op::new("kubernetes", cancel.clone(), gate)
            .with_mutations(metrics)
            .with_reason("service created");
        let writer = log.clone();
        let config = LoggingConfig { format: Format::Json, ..LoggingConfig::default() };
        let (dispatch, _) = logging::dispatch(&config, move || writer.clone());
        Self {
            op,
            cancel,
            registry,
            log,
            _logging: tracing::dispatcher::set_default(&dispatch),
        }
    }

    fn records(&self) -> Vec<Value> {
        let text = self.log.text();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The series that are not zero: name, labels, value.
    fn counts(&self) -> Vec<(String, Vec<String>, f64)> {
        let mut counts = Vec::new();
        for family in self.registry.gather() {
            for metric in family
                .get_metric()
                .iter()
                .filter(|metric| metric.get_counter().get_value() > 0.0)
            {
                let labels = metric
                    .get_label()
                    .iter()
                    .map(|label| label.value().to_owned())
                    .collect();
                counts.push((family.name().to_owned(), labels, metric.get_counter().get_value()));
            }
        }
        counts
    }
}

fn made(operation: &str, outcome: &str, count: f64) -> (String, Vec<String>, f64) {
    (
        "ccm_cloud_mutations_total".to_owned(),
        vec![operation.to_owned(), outcome.to_owned()],
        count,
    )
}

#[tokio::test(start_paused = true)]
async fn a_mutation_leaves_one_record_and_one_count() {
    let bench = MutationFixture::new(WriteGate::always_open());
    let call = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(MutationResponse::new("lb-1").with_request_id("req-7"))
    };
    let mutation = Mutation::new("create", "default/web").with_detail("no such balancer");
    assert_eq!(bench.op.mutate(mutation, call).await.unwrap(), "lb-1");
    let records = bench.records();
    assert_eq!(records.len(), 1, "{records:?}");
    for (key, value) in [
        ("msg", "cloud mutation"),
        ("operation", "create"),
        ("object", "default/web"),
        ("why", "service created: no such balancer"),
        ("request_id", "req-7"),
        ("duration", "2s"),
        ("outcome", "success"),
    ] {
        assert_eq!(records[0][key], value, "{key}: {records:?}");
    }
    assert_eq!(bench.counts(), [made("create", "success", 1.0)]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_mutation_is_recorded_with_its_kind_and_request() {
    let bench = MutationFixture::new(WriteGate::always_open());
    let error =
        CloudError::new(ErrorKind::QuotaExceeded, "too many balancers").with_request_id("req-8");
    let result: Result<(), _> = bench
        .op
        .mutate(Mutation::new("create", "a"), async { Err(error) })
        .await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::QuotaExceeded);
    let records = bench.records();
    assert_eq!(records.len(), 1);
    assert_eq!(
        (&records[0]["outcome"], &records[0]["request_id"]),
        (&"quota_exceeded".into(), &"req-8".into())
    );
    assert_eq!(records[0]["why"], "service created");
    assert_eq!(bench.counts(), [made("create", "quota_exceeded", 1.0)]);
}

#[tokio::test(start_paused = true)]
async fn a_read_leaves_nothing() {
    let bench = MutationFixture::new(WriteGate::always_open());
    bench.op.run(async { Ok(()) }).await.unwrap();
    assert_eq!((bench.records().len(), bench.counts().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_mutation_that_the_gate_refuses_is_not_sent_and_only_counted() {
    let (gate, _keeper) = WriteGate::closed();
    let bench = MutationFixture::new(gate);
    let never = async { unreachable!("the gate is closed") };
    let result: Result<(), _> = bench.op.mutate(Mutation::new("delete", "a"), never).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::NotLeader);
    let never = async { unreachable!("the gate is closed") };
    let both = vec![Mutation::new("create", "b"), Mutation::new("delete", "c")];
    let results: Vec<Result<(), _>> = bench.op.mutate_batch(both, never).await;
    assert!(results.iter().all(|result| {
        result
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::NotLeader)
    }));
    assert_eq!((results.len(), bench.records().len()), (2, 0));
    let refused = |operation: &str, count| {
        ("ccm_cloud_mutations_refused_total".to_owned(), vec![operation.to_owned()], count)
    };
    assert_eq!(bench.counts(), [refused("create", 1.0), refused("delete", 2.0)]);
}

#[tokio::test(start_paused = true)]
async fn a_mutation_that_is_given_up_is_recorded_once_all_the_same() {
    let bench = MutationFixture::new(WriteGate::always_open());
    let op = bench
        .op
        .clone()
        .with_deadline(Instant::now() + Duration::from_secs(3));
    let result: Result<(), _> = op
        .mutate(Mutation::new("create", "a"), std::future::pending())
        .await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Canceled);
    // As a process that stops drops a task.
    let call = bench.op.run(
        bench
            .op
            .mutate::<()>(Mutation::new("delete", "b"), std::future::pending()),
    );
    assert!(
        tokio::time::timeout(Duration::from_secs(1), call)
            .await
            .is_err()
    );
    let records = bench.records();
    let seen: Vec<_> = records
        .iter()
        .map(|record| (&record["operation"], &record["outcome"]))
        .collect();
    assert_eq!(
        seen,
        [(&"create".into(), &"canceled".into()), (&"delete".into(), &"canceled".into())]
    );
    assert_eq!(bench.counts(), [made("create", "canceled", 1.0), made("delete", "canceled", 1.0)]);
}

/// An operation under a gate that is open, and the gate.
fn leading() -> (MutationFixture, WriteGate, crate::write_gate::WriteGateHandle) {
    let (gate, keeper) = WriteGate::closed();
    keeper.open_until(Instant::now() + Duration::from_secs(3600));
    (MutationFixture::new(gate.clone()), gate, keeper)
}

#[tokio::test(start_paused = true)]
async fn cancellation_lets_a_mutation_end_and_nothing_else() {
    let (bench, gate, _keeper) = leading();
    let limit = Duration::from_secs(15);
    let begin = Instant::now();
    let slow = |op: Op, name: &'static str| async move {
        let call = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(MutationResponse::new(name))
        };
        op.mutate(Mutation::new("create", name), call).await
    };
    // As a controller has a provider called: a change, then another that comes too late, then what
    // only asks.
    let calls = [bench.op.clone(), bench.op.clone().for_call(begin + Duration::from_secs(60))].map(
        |op| async move {
            let call = async {
                let first = slow(op.clone(), "a").await;
                let second = slow(op.clone(), "b").await;
                Ok((first, second, op.run(async { Ok(()) }).await))
            };
            op.run(call).await
        },
    );
    let reading = bench.op.clone().for_call(begin + Duration::from_secs(60));
    let read = async {
        let result: Result<(), _> = reading.run(std::future::pending()).await;
        (result.map_err(|error| error.kind()), begin.elapsed())
    };
    let cancel = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bench.cancel.cancel();
        assert!(gate.has_unanswered_write(limit));
    };
    let (changes, read, ()) = tokio::join!(futures::future::join_all(calls), read, cancel);
    assert_eq!(read, (Err(ErrorKind::Canceled), Duration::from_secs(1)));
    for change in changes {
        let (first, second, read) = change.unwrap();
        let kinds = (second.unwrap_err().kind(), read.unwrap_err().kind());
        assert_eq!((first.unwrap(), kinds), ("a", (ErrorKind::Canceled, ErrorKind::Canceled)));
    }
    assert_eq!(begin.elapsed(), Duration::from_secs(2));
    assert!(!gate.has_unanswered_write(limit));
}

#[tokio::test(start_paused = true)]
async fn a_gate_knows_of_mutations_that_were_given_up() {
    let limit = Duration::from_secs(15);
    for batch in [false, true] {
        let (bench, gate, _keeper) = leading();
        let refused: Result<(), _> = bench
            .op
            .mutate(Mutation::new("create", "a"), async {
                Err(CloudError::new(ErrorKind::QuotaExceeded, "no"))
            })
            .await;
        assert!(refused.is_err() && !gate.has_unanswered_write(limit), "an error is an answer");
        let op = bench
            .op
            .clone()
            .with_deadline(Instant::now() + Duration::from_secs(1));
        if batch {
            drop(
                op.mutate_batch::<()>(vec![Mutation::new("create", "a")], std::future::pending())
                    .await,
            );
        } else {
            drop(
                op.mutate::<()>(Mutation::new("create", "a"), std::future::pending())
                    .await,
            );
        }
        assert!(gate.has_unanswered_write(limit), "its deadline is none");
        tokio::time::advance(limit).await;
        assert!(!gate.has_unanswered_write(limit));
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_leaves_a_record_for_each_change() {
    let bench = MutationFixture::new(WriteGate::always_open());
    let changes = || vec![Mutation::new("create", "a"), Mutation::new("delete", "b")];
    let answers = vec![Ok(1), Err(CloudError::new(ErrorKind::NotFound, "no such route"))];
    let call = async { Ok(MutationResponse::new(answers).with_request_id("req-9")) };
    let results = bench.op.mutate_batch(changes(), call).await;
    assert!(matches!(&results[..], [Ok(1), Err(error)] if error.kind() == ErrorKind::NotFound));
    let records = bench.records();
    let seen: Vec<_> = records
        .iter()
        .map(|record| (&record["object"], &record["outcome"]))
        .collect();
    assert_eq!(seen, [(&"a".into(), &"success".into()), (&"b".into(), &"not_found".into())]);
    assert!(records.iter().all(|record| record["request_id"] == "req-9"));
    // An answer too few.
    let results = bench
        .op
        .mutate_batch(changes(), async { Ok(MutationResponse::new(vec![Ok(1)])) })
        .await;
    assert!(results.iter().all(|result| {
        result
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Transient)
    }));
    assert_eq!((results.len(), bench.records().len()), (2, 4));
    let counts = [
        made("create", "success", 1.0),
        made("create", "transient", 1.0),
        made("delete", "not_found", 1.0),
        made("delete", "transient", 1.0),
    ];
    assert_eq!(bench.counts(), counts);
}
