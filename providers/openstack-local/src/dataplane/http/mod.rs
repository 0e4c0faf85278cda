//! HTTP listeners: each request goes to a member of its own, over connections that belong to one
//! client.

mod body;
mod cookies;
mod exchange;
mod headers;
mod stream;

use std::{convert::Infallible, io, sync::Arc};

use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
    upgrade::OnUpgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, split},
    net::TcpStream,
    time::{Instant, timeout},
};

use self::{
    body::{FromClient, ToClient},
    exchange::{ConnectionPool, Exchanged},
    stream::{Side, Timed},
};
use super::{
    config::{MemberId, Persistence},
    frontend::{Endpoints, Frontend, Settings},
    pool::{MemberConnection, Pool},
    relay::{IdleTimeouts, Traffic, relay},
    tcp::SEARCH_FACTOR,
};

/// The session of one client connection.
struct Session {
    front: Arc<Frontend>,
    ends: Endpoints,
    scheme: &'static str,
    /// Idle connections to members, for this client's next request.
    kept: Mutex<ConnectionPool>,
    /// The other protocol that client and member have switched to.
    upgrade: Mutex<Option<Upgrade>>,
}

struct Upgrade {
    client: OnUpgrade,
    member: OnUpgrade,
    used: MemberConnection,
}

/// Why a request is not answered by a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// No member accepts it.
    NoMember,
    /// The member ended the connection or did not answer in HTTP.
    BadAnswer,
    /// The member was idle for too long.
    MemberSilent,
    /// The client was idle for too long.
    ClientSilent,
    /// `CONNECT` is only for proxies.
    Connect,
}

/// Serves a client over HTTP.
pub(super) async fn serve(
    client: TcpStream,
    ends: Endpoints,
    front: Arc<Frontend>,
    settings: Arc<Settings>,
) {
    let limit = settings.config.timeouts.client_data;
    let client = Timed::new(client, limit, Side::Client(front.clone()));
    requests(client, ends, front, &settings, "http").await;
}

/// Serves a client over HTTP in TLS, which is terminated here.
pub(super) async fn serve_tls(
    client: TcpStream,
    ends: Endpoints,
    front: Arc<Frontend>,
    settings: Arc<Settings>,
) {
    let limit = settings.config.timeouts.client_data;
    let Some(tls) = &settings.tls else { return };
    let accepting = tls.accept(Timed::new(client, limit, Side::Client(front.clone())));
    let accepted = if limit.is_zero() {
        accepting.await
    } else {
        timeout(limit, accepting)
            .await
            .unwrap_or_else(|late| Err(late.into()))
    };
    match accepted {
        Ok(client) => requests(client, ends, front, &settings, "https").await,
        Err(error) => {
            tracing::debug!(client = %ends.client, %error, "no TLS from client");
            front.error();
        }
    }
}

async fn requests<S>(
    client: S,
    ends: Endpoints,
    front: Arc<Frontend>,
    settings: &Settings,
    scheme: &'static str,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = settings.config.timeouts;
    let kept = Mutex::default();
    let upgrade = Mutex::default();
    let session = Arc::new(Session { front, ends, scheme, kept, upgrade });
    let service = service_fn(|request| {
        let session = session.clone();
        async move { Ok::<_, Infallible>(session.answer(request).await) }
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout((!limits.client_data.is_zero()).then_some(limits.client_data))
            .preserve_header_case(true)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(client), service)
            .with_upgrades()
    );
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = session.front.stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if result.is_err_and(|error| error.is_parse()) {
        session.front.error();
    }
    let upgrade = session.upgrade.lock().take();
    if let Some(upgrade) = upgrade {
        let silence = IdleTimeouts { client: limits.client_data, member: limits.member_data };
        // How it ends matters only to client and member; nobody here needs the result.
        let _ = upgrade.carry(silence).await;
    }
}

impl Session {
    async fn answer(&self, request: Request<Incoming>) -> Response<ToClient> {
        // The current settings, because a client may stay connected for a long time.
        let settings = self.front.settings();
        self.hand_on(request, &settings)
            .await
            .unwrap_or_else(|failure| {
                self.front.error();
                failure.response()
            })
    }

    /// Forwards the request to a member, or else to the next.
    async fn hand_on(
        &self,
        mut request: Request<Incoming>,
        settings: &Settings,
    ) -> Result<Response<ToClient>, Failure> {
        if request.method() == Method::CONNECT {
            return Err(Failure::Connect);
        }
        let limits = settings.config.timeouts;
        let client = headers::upgrade(request.headers()).map(|_| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        headers::forward(&mut parts, settings.config.insert_headers, self.ends, self.scheme);
        let pool = settings.pool.as_ref().ok_or(Failure::NoMember)?;
        let known = known(pool, &mut parts.headers);
        let mut request = Request::from_parts(parts, FromClient::new(body, limits.client_data));
        let mut tried = Vec::new();
        let begin = Instant::now();
        let limit = limits.member_connect * SEARCH_FACTOR;
        while limit.is_zero() || begin.elapsed() < limit {
            let again = known
                .as_deref()
                .and_then(|known| pool.choose_by_name(known, &mut tried));
            let used = again
                .or_else(|| pool.choose(self.ends.client, &mut tried))
                .ok_or(Failure::NoMember)?;
            match self
                .exchange(&used.member, request, pool.config.protocol, limits)
                .await
            {
                Exchanged::Answered(mut answer) => {
                    remember(pool, &used.member.id, known.as_deref(), answer.headers_mut());
                    return Ok(self.answered(answer, used, client));
                }
                Exchanged::Failed(failure) => return Err(failure),
                Exchanged::Unsent(back) => request = back,
            }
        }
        Err(Failure::NoMember)
    }

    fn answered(
        &self,
        mut answer: Response<Incoming>,
        used: MemberConnection,
        client: Option<OnUpgrade>,
    ) -> Response<ToClient> {
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(client) = client
        {
            let member = hyper::upgrade::on(&mut answer);
            *self.upgrade.lock() = Some(Upgrade { client, member, used });
            return answer.map(|_| ToClient::text(""));
        }
        headers::strip(answer.headers_mut());
        *answer.version_mut() = hyper::Version::HTTP_11;
        answer.map(|body| ToClient::Member { body, _used: used })
    }
}

/// Returns the member that a client had before, according to its cookie.
fn known(pool: &Pool, headers: &mut HeaderMap) -> Option<String> {
    match pool.config.persistence.as_ref()? {
        Persistence::SourceIp => None,
        Persistence::HttpCookie => cookies::take_ours(headers),
        Persistence::AppCookie(name) => {
            let mut asked = cookies::asked(headers, name.as_bytes());
            asked
                .find_map(|value| pool.cookies.find(value))
                .map(|member| member.as_str().to_owned())
        }
    }
}

/// Records the member for the client's next request, or sets the cookie that does.
fn remember(pool: &Pool, member: &MemberId, known: Option<&str>, answer: &mut HeaderMap) {
    match &pool.config.persistence {
        Some(Persistence::HttpCookie) if known != Some(member.as_str()) => {
            cookies::set_ours(answer, member.as_str());
        }
        Some(Persistence::AppCookie(name)) => {
            if let Some(value) = cookies::given(answer, name.as_bytes()) {
                pool.cookies.put(value, member.clone());
            }
        }
        Some(Persistence::SourceIp | Persistence::HttpCookie) | None => {}
    }
}

impl Upgrade {
    /// Relays the other protocol.
    async fn carry(self, silence: IdleTimeouts) -> io::Result<()> {
        let both = async { tokio::try_join!(self.client, self.member) };
        let (client, member) = both.await.map_err(io::Error::other)?;
        let client = split(TokioIo::new(client));
        let member = split(TokioIo::new(member));
        let relaying = relay(client, member, silence, &Counted);
        self.used
            .member
            .gone
            .run_until_cancelled(relaying)
            .await
            .unwrap_or(Ok(()))
    }
}

/// Bytes that the socket counts itself.
struct Counted;

impl Traffic for Counted {
    fn received(&self, _bytes: u64) {}
    fn sent(&self, _bytes: u64) {}
}

impl Failure {
    fn response(self) -> Response<ToClient> {
        let (status, text) = match self {
            Self::NoMember => {
                (StatusCode::SERVICE_UNAVAILABLE, "no server is available to handle this request\n")
            }
            Self::BadAnswer => {
                (StatusCode::BAD_GATEWAY, "the server returned an invalid or incomplete response\n")
            }
            Self::MemberSilent => {
                (StatusCode::GATEWAY_TIMEOUT, "the server did not respond in time\n")
            }
            Self::ClientSilent => {
                (StatusCode::REQUEST_TIMEOUT, "the request was not sent in time\n")
            }
            Self::Connect => (StatusCode::NOT_IMPLEMENTED, "this is not a proxy\n"),
        };
        let mut response = Response::new(ToClient::text(text));
        *response.status_mut() = status;
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        response
            .headers_mut()
            .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }
}
