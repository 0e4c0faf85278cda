//! Injected faults.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::state::ApiError;

/// Kind of a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FaultKind {
    /// Rejected with this status, in the service's format, without being done.
    Status {
        /// The status, such as 429.
        code: u16,
        /// Seconds for `Retry-After`.
        #[serde(default)]
        retry_after: Option<u64>,
        /// The message of the answer.
        #[serde(default)]
        message: Option<String>,
    },
    /// Done after this many milliseconds.
    Latency {
        /// The milliseconds.
        ms: u64,
    },
    /// Done, but the connection is closed after this many bytes of the answer's body.
    Cut {
        /// The bytes.
        after: usize,
    },
    /// Answered with this instead, without being done, as proxies do.
    Body {
        /// The status, such as 200 or 502.
        code: u16,
        /// The body, sent as `text/html`.
        text: String,
    },
    /// Never answered: the connection stays open until the client closes it.
    Stuck {
        /// True when it is done nevertheless.
        done: bool,
    },
}

/// A fault, and the requests that it affects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Method; any when absent.
    #[serde(default)]
    pub method: Option<String>,
    /// Prefix of the path, such as `/network/v2.0/ports`.
    pub path: String,
    /// True when it affects only requests that change something: not `GET` and `HEAD`, and none of
    /// the identity service.
    #[serde(default)]
    pub changes: bool,
    /// Number of matching requests that it skips first.
    #[serde(default)]
    pub skip: u32,
    /// Number of requests that it affects; all when absent.
    #[serde(default)]
    pub count: Option<u32>,
    /// What happens.
    pub kind: FaultKind,
}

impl Fault {
    /// Creates a fault that affects every request whose path has this prefix.
    pub fn new(path: impl Into<String>, kind: FaultKind) -> Self {
        Self {
            method: None,
            path: path.into(),
            changes: false,
            skip: 0,
            count: None,
            kind,
        }
    }

    /// Creates a fault that affects every request to any service that changes something.
    pub fn of_changes(kind: FaultKind) -> Self {
        Self { changes: true, ..Self::new("/", kind) }
    }

    /// Restricts it to this method.
    #[must_use]
    pub fn method(mut self, method: impl Into<String>) -> Self {
        self.method = Some(method.into());
        self
    }

    /// Restricts it to this many requests.
    #[must_use]
    pub fn times(mut self, count: u32) -> Self {
        self.count = Some(count);
        self
    }

    /// Skips this many requests first.
    #[must_use]
    pub fn after(mut self, skip: u32) -> Self {
        self.skip = skip;
        self
    }
}

/// Faults to inject. The first one that matches a request is used.
#[derive(Debug, Default)]
pub struct Faults {
    to_come: Mutex<Vec<Fault>>,
    stuck: Arc<AtomicUsize>,
}

/// A request that is not answered.
#[derive(Debug)]
pub(super) struct HungRequest(Arc<AtomicUsize>);

impl Drop for HungRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn changes_something(method: &str, path: &str) -> bool {
    !matches!(method, "GET" | "HEAD") && !path.starts_with("/identity")
}

impl Faults {
    /// Adds a fault, after the others.
    pub fn add(&self, fault: Fault) {
        self.to_come.lock().push(fault);
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.to_come.lock().clear();
    }

    /// Returns the faults that remain, with their remaining counts.
    pub fn pending(&self) -> Vec<Fault> {
        self.to_come.lock().clone()
    }

    /// Returns how many requests are [stuck](FaultKind::Stuck) now. If they are done at all, they
    /// are done by then.
    pub fn stuck(&self) -> usize {
        self.stuck.load(Ordering::SeqCst)
    }

    /// Counts a request as stuck until the value is dropped.
    pub(super) fn hang(&self) -> HungRequest {
        self.stuck.fetch_add(1, Ordering::SeqCst);
        HungRequest(self.stuck.clone())
    }

    pub(super) fn take(&self, method: &str, path: &str) -> Option<FaultKind> {
        let mut faults = self.to_come.lock();
        let matches = |fault: &&mut Fault| {
            fault
                .method
                .as_deref()
                .is_none_or(|wanted| wanted.eq_ignore_ascii_case(method))
                && path.starts_with(&fault.path)
                && (!fault.changes || changes_something(method, path))
        };
        let mut hit = None;
        for fault in faults.iter_mut().filter(matches) {
            if fault.skip > 0 {
                fault.skip -= 1;
                continue;
            }
            if let Some(count) = &mut fault.count {
                *count = count.saturating_sub(1);
            }
            hit = Some(fault.kind.clone());
            break;
        }
        faults.retain(|fault| fault.count != Some(0));
        hit
    }
}

impl FaultKind {
    /// Creates a fault that rejects with a status.
    pub fn status(code: u16) -> Self {
        Self::Status { code, retry_after: None, message: None }
    }

    /// Returns the answer to a request that is not done at all.
    pub(super) fn instead(&self) -> Option<Response> {
        match self {
            Self::Status { code, retry_after, message } => {
                let message = message.as_deref().unwrap_or("This fault was asked for.");
                let mut error = ApiError::new(status(*code), "", message);
                error.retry_after = retry_after.map(Duration::from_secs);
                Some(error.into_response())
            }
            Self::Body { code, text } => {
                let html = HeaderValue::from_static("text/html; charset=UTF-8");
                Some((status(*code), [(header::CONTENT_TYPE, html)], text.clone()).into_response())
            }
            Self::Latency { .. } | Self::Cut { .. } | Self::Stuck { .. } => None,
        }
    }
}

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Ends a body early, as a broken connection does.
pub(super) fn cut(response: Response, after: usize) -> Response {
    response.map(|inner| Body::new(Cut { inner, left: after }))
}

struct Cut {
    inner: Body,
    left: usize,
}

impl http_body::Body for Cut {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.left > 0 {
            let polled = Pin::new(&mut self.inner).poll_frame(context);
            let Poll::Ready(frame) = polled else {
                return Poll::Pending;
            };
            if let Some(Ok(frame)) = frame
                && let Ok(mut data) = frame.into_data()
            {
                data.truncate(self.left);
                self.left -= data.len();
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            self.left = 0;
        }
        let broken = std::io::Error::new(
            std::io::ErrorKind::ConnectionReset,
            "the answer was cut, as asked",
        );
        Poll::Ready(Some(Err(axum::Error::new(broken))))
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
