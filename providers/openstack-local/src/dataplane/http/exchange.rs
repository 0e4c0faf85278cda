//! One request and its answer, over a connection to one member.

use std::{collections::VecDeque, error::Error as _, io, sync::Arc, time::Duration};

use hyper::{Method, Request, Response, body::Body as _, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::{Failure, FromClient, Session, Side, Timed};
use crate::dataplane::{
    config::{PoolProtocol, Timeouts},
    pool::Member,
    tcp,
};

/// Maximum number of idle connections to members per client.
const KEPT: usize = 8;

/// How long an idle connection may take to finish the previous answer; one that takes longer is not
/// used.
const READY: Duration = Duration::from_millis(100);

type Sender = http1::SendRequest<FromClient>;

/// Idle connections to members, at most one per member, the latest last.
#[derive(Default)]
pub(super) struct ConnectionPool(VecDeque<(Arc<Member>, Sender)>);

impl ConnectionPool {
    fn take(&mut self, member: &Arc<Member>) -> Option<Sender> {
        let index = self
            .0
            .iter()
            .position(|(kept, _)| Arc::ptr_eq(kept, member))?;
        self.0.remove(index).map(|(_, sender)| sender)
    }

    fn put(&mut self, member: Arc<Member>, sender: Sender) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back((member, sender));
    }
}

/// Result of sending a request.
pub(super) enum Exchanged {
    /// It was answered.
    Answered(Response<Incoming>),
    /// The member has received nothing of it: another may get it.
    Unsent(Request<FromClient>),
    /// It cannot be sent again.
    Failed(Failure),
}

impl Session {
    /// Sends the request to this member, over an idle connection if there is one.
    pub(super) async fn exchange(
        &self,
        member: &Arc<Member>,
        mut request: Request<FromClient>,
        protocol: PoolProtocol,
        limits: Timeouts,
    ) -> Exchanged {
        let kept = self.kept.lock().take(member);
        if let Some(mut sender) = kept
            && timeout(READY, sender.ready())
                .await
                .is_ok_and(|ready| ready.is_ok())
        {
            let copy = repeatable(&request);
            match self.send(member, sender, request).await {
                Exchanged::Unsent(back) => request = back,
                // The connection was closed while the request was sent, which only shows that it
                // was idle for too long.
                Exchanged::Failed(Failure::BadAnswer) => match copy {
                    Some(copy) => request = copy,
                    None => return Exchanged::Failed(Failure::BadAnswer),
                },
                result => return result,
            }
        }
        match self.open(member, protocol, limits).await {
            Ok(sender) => self.send(member, sender, request).await,
            Err(error) => {
                tracing::debug!(member = %member.id, %error, "cannot connect to member");
                Exchanged::Unsent(request)
            }
        }
    }

    async fn open(
        &self,
        member: &Arc<Member>,
        protocol: PoolProtocol,
        limits: Timeouts,
    ) -> io::Result<Sender> {
        let stream = tcp::open(member.socket, protocol, self.ends, limits.member_connect).await?;
        let stream = Timed::new(stream, limits.member_data, Side::Member);
        let mut builder = http1::Builder::new();
        let handshake = builder
            .preserve_header_case(true)
            .handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(io::Error::other)?;
        let gone = member.gone.clone();
        let front = self.front.clone();
        // It ends with its sender, so with the session at the latest. Errors are returned to the
        // sender.
        self.front.tasks.spawn(async move {
            let carrying = gone.run_until_cancelled(connection.with_upgrades());
            front.guard("speak with a member", carrying).await;
        });
        Ok(sender)
    }

    async fn send(
        &self,
        member: &Arc<Member>,
        mut sender: Sender,
        request: Request<FromClient>,
    ) -> Exchanged {
        match sender.try_send_request(request).await {
            Ok(answer) => {
                self.kept.lock().put(member.clone(), sender);
                Exchanged::Answered(answer)
            }
            Err(mut error) => match error.take_message() {
                Some(request) => Exchanged::Unsent(request),
                None => Exchanged::Failed(failure(error.error())),
            },
        }
    }
}

/// Returns a copy of the request, if sending it twice has no side effects.
fn repeatable(request: &Request<FromClient>) -> Option<Request<FromClient>> {
    let harmless = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if !harmless || !request.body().is_end_stream() {
        return None;
    }
    let mut copy = Request::new(FromClient::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

fn failure(error: &hyper::Error) -> Failure {
    let mut source = error.source();
    while let Some(cause) = source {
        if cause
            .downcast_ref::<io::Error>()
            .is_some_and(|cause| cause.kind() == io::ErrorKind::TimedOut)
        {
            return if error.is_user() {
                Failure::ClientSilent
            } else {
                Failure::MemberSilent
            };
        }
        source = cause.source();
    }
    Failure::BadAnswer
}
