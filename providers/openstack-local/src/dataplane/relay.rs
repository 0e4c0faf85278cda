//! Relays bytes between two sockets in both directions.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, sleep_until},
};

use super::scratch;

/// How long each side may be idle: nothing read from it and nothing written to it. Zero is no
/// limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleTimeouts {
    /// The client's side.
    pub(super) client: Duration,
    /// The member's side.
    pub(super) member: Duration,
}

/// Counts bytes as they are relayed.
pub(super) trait Traffic {
    /// Bytes that came from the client.
    fn received(&self, bytes: u64);
    /// Bytes that went to the client.
    fn sent(&self, bytes: u64);
}

/// Relays bytes in both directions until both sides have ended, one has failed, or one has been
/// idle for too long.
///
/// The end of one side is passed on, and the other direction stays open. Each argument is a reading
/// and a writing half.
///
/// # Errors
/// Those of the sockets; `TimedOut` when a side was idle for too long.
pub(super) async fn relay<CR, CW, MR, MW>(
    client: (CR, CW),
    member: (MR, MW),
    silence: IdleTimeouts,
    traffic: &impl Traffic,
) -> io::Result<()>
where
    CR: AsyncRead + Unpin,
    CW: AsyncWrite + Unpin,
    MR: AsyncRead + Unpin,
    MW: AsyncWrite + Unpin,
{
    let mut inward = Direction {
        from: client.0,
        to: member.1,
        state: RelayState::Reading { flush: false },
    };
    let mut outward = Direction {
        from: member.0,
        to: client.1,
        state: RelayState::Reading { flush: false },
    };
    let now = Instant::now();
    let mut watch = Watch { silence, client: now, member: now };
    let Some(first) = watch.deadline() else {
        return poll_fn(|ctx| both(ctx, &mut inward, &mut outward, None, traffic)).await;
    };
    let mut timer = pin!(sleep_until(first));
    poll_fn(|ctx| {
        if let Poll::Ready(result) = both(ctx, &mut inward, &mut outward, Some(&mut watch), traffic)
        {
            return Poll::Ready(result);
        }
        // The timer is not reset for each chunk; when it fires, the last activity is checked.
        while timer.as_mut().poll(ctx).is_ready() {
            match watch.deadline() {
                Some(deadline) if deadline > Instant::now() => timer.as_mut().reset(deadline),
                _ => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            }
        }
        Poll::Pending
    })
    .await
}

/// When each side was last active.
struct Watch {
    silence: IdleTimeouts,
    client: Instant,
    member: Instant,
}

impl Watch {
    fn deadline(&self) -> Option<Instant> {
        let until = |last: Instant, limit: Duration| {
            (!limit.is_zero())
                .then(|| last.checked_add(limit))
                .flatten()
        };
        let client = until(self.client, self.silence.client);
        let member = until(self.member, self.silence.member);
        client.into_iter().chain(member).min()
    }

    fn note(&mut self, inward: Moved, outward: Moved) {
        if inward.read + inward.written + outward.read + outward.written == 0 {
            return;
        }
        let now = Instant::now();
        if inward.read + outward.written > 0 {
            self.client = now;
        }
        if inward.written + outward.read > 0 {
            self.member = now;
        }
    }
}

fn both<CR, CW, MR, MW>(
    ctx: &mut Context<'_>,
    inward: &mut Direction<CR, MW>,
    outward: &mut Direction<MR, CW>,
    watch: Option<&mut Watch>,
    traffic: &impl Traffic,
) -> Poll<io::Result<()>>
where
    CR: AsyncRead + Unpin,
    CW: AsyncWrite + Unpin,
    MR: AsyncRead + Unpin,
    MW: AsyncWrite + Unpin,
{
    let mut moved_in = Moved::default();
    let mut moved_out = Moved::default();
    let (result_in, result_out) = scratch::with(|buffer| {
        (inward.poll(ctx, buffer, &mut moved_in), outward.poll(ctx, buffer, &mut moved_out))
    });
    if moved_in.read > 0 {
        traffic.received(moved_in.read);
    }
    if moved_out.written > 0 {
        traffic.sent(moved_out.written);
    }
    if let Some(watch) = watch {
        watch.note(moved_in, moved_out);
    }
    match (result_in, result_out) {
        (Poll::Ready(Err(error)), _) | (_, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
        (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ok(())),
        _ => Poll::Pending,
    }
}

/// Bytes moved while polling once.
#[derive(Debug, Default, Clone, Copy)]
struct Moved {
    read: u64,
    written: u64,
}

/// One of the two directions.
struct Direction<R, W> {
    from: R,
    to: W,
    state: RelayState,
}

enum RelayState {
    /// Nothing is buffered. `flush`: what was written may not have been flushed.
    Reading {
        flush: bool,
    },
    /// The writer did not accept everything: `rest` is what was left, and its first `at` bytes are
    /// written.
    Holding {
        rest: Box<[u8]>,
        at: usize,
    },
    /// The reader has ended; the writer has to be shut down.
    Ending,
    Done,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Direction<R, W> {
    fn poll(
        &mut self,
        ctx: &mut Context<'_>,
        scratch: &mut [u8],
        moved: &mut Moved,
    ) -> Poll<io::Result<()>> {
        loop {
            match &mut self.state {
                RelayState::Reading { flush } => {
                    let mut buffer = ReadBuf::new(scratch);
                    match Pin::new(&mut self.from).poll_read(ctx, &mut buffer)? {
                        Poll::Ready(()) => {}
                        Poll::Pending => {
                            if *flush {
                                ready!(Pin::new(&mut self.to).poll_flush(ctx))?;
                                *flush = false;
                            }
                            return Poll::Pending;
                        }
                    }
                    let length = buffer.filled().len();
                    moved.read += length as u64;
                    self.state = match length {
                        0 => RelayState::Ending,
                        _ => Self::write(&mut self.to, ctx, &scratch[..length], moved)?,
                    };
                }
                RelayState::Holding { rest, at } => {
                    let written = ready!(Pin::new(&mut self.to).poll_write(ctx, &rest[*at..]))?;
                    *at += accepted(written)?;
                    moved.written += written as u64;
                    if *at == rest.len() {
                        self.state = RelayState::Reading { flush: true };
                    }
                }
                RelayState::Ending => {
                    match ready!(Pin::new(&mut self.to).poll_shutdown(ctx)) {
                        // The other side is closed already; its own direction reports that if it
                        // matters.
                        Err(error) if error.kind() != io::ErrorKind::NotConnected => {
                            return Poll::Ready(Err(error));
                        }
                        _ => self.state = RelayState::Done,
                    }
                }
                RelayState::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Writes as much as is accepted now, and keeps the rest.
    fn write(
        to: &mut W,
        ctx: &mut Context<'_>,
        mut bytes: &[u8],
        moved: &mut Moved,
    ) -> io::Result<RelayState> {
        while !bytes.is_empty() {
            match Pin::new(&mut *to).poll_write(ctx, bytes)? {
                Poll::Ready(written) => {
                    bytes = &bytes[accepted(written)?..];
                    moved.written += written as u64;
                }
                Poll::Pending => return Ok(RelayState::Holding { rest: bytes.into(), at: 0 }),
            }
        }
        Ok(RelayState::Reading { flush: true })
    }
}

fn accepted(written: usize) -> io::Result<usize> {
    if written == 0 {
        Err(io::ErrorKind::WriteZero.into())
    } else {
        Ok(written)
    }
}
