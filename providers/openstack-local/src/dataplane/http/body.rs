//! Bodies of requests and answers.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};

use crate::dataplane::pool::MemberConnection;

/// Errors of a body.
pub(super) type Error = Box<dyn std::error::Error + Send + Sync>;

/// A request's body. Its client must not stop sending for too long.
pub(super) struct FromClient {
    body: Option<Incoming>,
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl FromClient {
    /// Creates it. `limit`: time between two parts; zero is no limit.
    pub(super) fn new(body: Incoming, limit: Duration) -> Self {
        Self {
            body: Some(body).filter(|body| !body.is_end_stream()),
            limit,
            timer: None,
        }
    }

    /// Creates an empty body.
    pub(super) fn empty() -> Self {
        Self { body: None, limit: Duration::ZERO, timer: None }
    }
}

impl Body for FromClient {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(ctx) {
            self.timer = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if self.limit.is_zero() {
            return Poll::Pending;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        timer
            .as_mut()
            .poll(ctx)
            .map(|()| Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

/// An answer's body.
pub(super) enum ToClient {
    /// A member's; the member counts as in use until all of it is sent.
    Member {
        /// The rest of it.
        body: Incoming,
        /// Dropped together with it.
        _used: MemberConnection,
    },
    /// Our own.
    Text(Full<Bytes>),
}

impl ToClient {
    pub(super) fn text(text: &'static str) -> Self {
        Self::Text(Full::from(text))
    }
}

impl Body for ToClient {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match self.get_mut() {
            Self::Member { body, .. } => Pin::new(body).poll_frame(ctx).map_err(Into::into),
            Self::Text(text) => Pin::new(text).poll_frame(ctx).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Member { body, .. } => body.is_end_stream(),
            Self::Text(text) => text.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Member { body, .. } => body.size_hint(),
            Self::Text(text) => text.size_hint(),
        }
    }
}
