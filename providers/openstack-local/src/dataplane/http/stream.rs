//! Sockets that count their bytes and have idle timeouts.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use crate::dataplane::{frontend::Frontend, relay::Traffic as _};

/// A socket whose other side must not be idle for too long while something is expected of it.
pub(super) struct Timed<S> {
    stream: S,
    /// The idle timeout; zero is none.
    limit: Duration,
    side: Side,
    last: Instant,
    /// True while a write is blocked.
    blocked: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Who is at the other end.
pub(super) enum Side {
    /// A client, whose bytes are counted. It may be idle while it waits for an answer, so only
    /// writes have a timeout; requests have timeouts of their own.
    Client(Arc<Frontend>),
    /// A member: both reads and writes have a timeout.
    Member,
}

impl<S> Timed<S> {
    pub(super) fn new(stream: S, limit: Duration, side: Side) -> Self {
        Self {
            stream,
            limit,
            side,
            last: Instant::now(),
            blocked: false,
            timer: None,
        }
    }

    fn moved(&mut self) {
        self.last = Instant::now();
    }

    /// Ready when the other side was idle for too long.
    fn silence(&mut self, ctx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(deadline) = self
            .last
            .checked_add(self.limit)
            .filter(|_| !self.limit.is_zero())
        else {
            return Poll::Pending;
        };
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        while timer.as_mut().poll(ctx).is_ready() {
            if deadline <= Instant::now() {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }

    fn wrote(
        &mut self,
        ctx: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match result {
            Poll::Ready(result) => {
                self.moved();
                self.blocked = false;
                if let (Side::Client(front), Ok(length)) = (&self.side, &result) {
                    front.sent(*length as u64);
                }
                Poll::Ready(result)
            }
            Poll::Pending => {
                if !self.blocked {
                    self.blocked = true;
                    self.moved();
                }
                self.silence(ctx).map(Err)
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(result) = Pin::new(&mut self.stream).poll_read(ctx, buffer) {
            self.moved();
            if let Side::Client(front) = &self.side {
                front.received((buffer.filled().len() - before) as u64);
            }
            return Poll::Ready(result);
        }
        match self.side {
            Side::Client(_) => Poll::Pending,
            Side::Member => self.silence(ctx).map(Err),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(ctx, bytes);
        self.wrote(ctx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        ctx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(ctx, parts);
        self.wrote(ctx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(ctx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(ctx)
    }
}
