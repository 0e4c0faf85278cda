use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    provider::rest::{ErrorFormat, Transport},
    write_gate::WriteGate,
};

const FORMAT: ErrorFormat = ErrorFormat {
    code: "/code",
    message: "/message",
    kinds: &[("not_found", ErrorKind::NotFound), ("limit", ErrorKind::QuotaExceeded)],
};

/// A cloud with one operation, which ends at a time.
struct Cloud {
    ends: Instant,
    end: (u16, &'static str),
    polls: Mutex<Vec<Duration>>,
    begin: Instant,
}

#[async_trait]
impl Transport for Cloud {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CloudError> {
        assert_eq!(request.uri().path(), "/v1/operations/7");
        self.polls.lock().push(self.begin.elapsed());
        let (status, body) = if Instant::now() < self.ends {
            (200, r#"{"status": "running"}"#)
        } else {
            self.end
        };
        Ok(Response::builder()
            .status(status)
            .body(Bytes::from_static(body.as_bytes()))
            .unwrap())
    }
}

#[derive(Deserialize)]
struct Operation {
    status: String,
    #[serde(default)]
    code: String,
}

impl Operation {
    fn running() -> Self {
        Self { status: "running".to_owned(), code: String::new() }
    }

    fn status(self) -> OperationStatus {
        match &*self.status {
            "done" => OperationStatus::Done,
            "failed" => OperationStatus::Failed(FORMAT.of_code(&self.code, "too much")),
            _ => OperationStatus::Running { path: "v1/operations/7".to_owned() },
        }
    }
}

fn cloud(ends_after: u64, end: (u16, &'static str)) -> (RestClient, Arc<Cloud>) {
    let begin = Instant::now();
    let cloud = Arc::new(Cloud {
        ends: begin + Duration::from_millis(ends_after),
        end,
        polls: Mutex::default(),
        begin,
    });
    let rest = RestClient::new("https://cloud.example", cloud.clone())
        .unwrap()
        .with_error_format(FORMAT);
    (rest, cloud)
}

fn op() -> Op {
    Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_ends_soon_is_awaited() {
    let (rest, cloud) = cloud(600, (200, r#"{"status": "done"}"#));
    let first = Operation { status: "done".to_owned(), ..Operation::running() };
    let progress = rest.poll(&op(), first, Operation::status).await;
    assert_eq!(progress.unwrap(), Progress::Done);
    assert!(cloud.polls.lock().is_empty(), "the first response was enough");
    let progress = rest
        .poll(&op(), Operation::running(), Operation::status)
        .await;
    assert_eq!(progress.unwrap(), Progress::Done);
    assert_eq!(*cloud.polls.lock(), [250, 750].map(Duration::from_millis));
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_takes_longer_than_a_call_may_sleep_is_pending() {
    let (rest, cloud) = cloud(60_000, (200, r#"{"status": "done"}"#));
    let op = op().with_pending_for(Duration::from_secs(7));
    let progress = rest
        .poll(&op, Operation::running(), Operation::status)
        .await
        .unwrap();
    let reason = "operation v1/operations/7 is still running";
    let after = Duration::from_secs(7);
    assert_eq!(progress, Progress::Pending { after, reason: reason.into() });
    assert_eq!(*cloud.polls.lock(), [250, 750, 1750].map(Duration::from_millis));
    assert_eq!(cloud.begin.elapsed(), Duration::from_millis(1750));

    // Another operation of the same call has only what is left of the two seconds.
    let progress = rest
        .poll(&op, Operation::running(), Operation::status)
        .await;
    assert!(matches!(progress, Ok(Progress::Pending { .. })));
    assert_eq!((cloud.polls.lock().len(), cloud.begin.elapsed().as_millis()), (4, 2000));
}

#[tokio::test(start_paused = true)]
async fn a_failed_or_unknown_operation_is_an_error_and_proves_no_absence() {
    let cases = [
        ((200, r#"{"status": "failed", "code": "limit"}"#), ErrorKind::QuotaExceeded),
        ((200, r#"{"status": "failed", "code": "new"}"#), ErrorKind::Transient),
        ((200, r#"{"status": "failed", "code": "not_found"}"#), ErrorKind::Transient),
        ((404, r#"{"code": "not_found"}"#), ErrorKind::Transient),
        ((403, r#"{"code": "forbidden"}"#), ErrorKind::Denied),
        ((200, "<html>"), ErrorKind::Transient),
    ];
    for (end, kind) in cases {
        let (rest, _) = cloud(0, end);
        let error = rest
            .poll(&op(), Operation::running(), Operation::status)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{end:?}: {error}");
        assert!(error.to_string().contains("v1/operations/7"), "{error}");
    }
    let absent = ErrorResponse { kind: Some(ErrorKind::NotFound), ..ErrorResponse::default() };
    let (rest, _) = cloud(0, (200, ""));
    let failed = |()| OperationStatus::Failed(absent.clone());
    let error = rest.poll(&op(), (), failed).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "whatever the provider says");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_stops_polling() {
    let cancel = CancellationToken::new();
    let op = Op::new("kubernetes", cancel.clone(), WriteGate::always_open());
    let (rest, cloud) = cloud(60_000, (200, ""));
    let stop = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel.cancel();
    };
    let poll = rest.poll(&op, Operation::running(), Operation::status);
    let (progress, ()) = tokio::join!(poll, stop);
    assert_eq!(progress.unwrap_err().kind(), ErrorKind::Canceled);
    assert_eq!(cloud.begin.elapsed(), Duration::from_millis(100));
}

#[test]
fn an_operation_is_done_only_if_the_cloud_says_so() {
    let format = OperationFormat {
        path: "v1/operations",
        id: "/op/id",
        status: "/op/status",
        done: &["success"],
        failed: &["error"],
        error: ErrorFormat { code: "/op/error/code", message: "/op/error/text", ..FORMAT },
    };
    let read = |json: &str| format.read(&serde_json::from_str(json).unwrap());
    let running = || OperationStatus::Running { path: "v1/operations/7".to_owned() };
    assert_eq!(read(r#"{"op": {"id": 7, "status": "success"}}"#), OperationStatus::Done);
    assert_eq!(read(r#"{"op": {"id": "7", "status": "running"}}"#), running());
    assert_eq!(read(r#"{"op": {"id": 7, "status": "unheard of"}}"#), running());
    let failed = |kind, message: &str| {
        OperationStatus::Failed(ErrorResponse {
            kind,
            message: message.to_owned(),
            ..ErrorResponse::default()
        })
    };
    let limit =
        r#"{"op": {"id": 7, "status": "error", "error": {"code": "limit", "text": "full"}}}"#;
    assert_eq!(read(limit), failed(Some(ErrorKind::QuotaExceeded), "full"));
    assert_eq!(read(r#"{"op": {"id": 7, "status": "error", "error": null}}"#), failed(None, ""));
    for missing in ["null", "{}", r#"{"op": {"status": "success"}}"#, r#"{"op": {"id": 7}}"#] {
        assert_eq!(read(missing), failed(None, "the response contains no operation"), "{missing}");
    }
}
