//! Connections: their limits, their timeouts, and how each is served.

use std::{
    collections::HashMap,
    net::IpAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::Router;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tower::{ServiceExt as _, service_fn};

use super::auth_filter::PeerCertificates;

/// Limits of a server. The defaults suit a few probes and scrapers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The maximum number of open connections; further ones are closed immediately.
    pub(super) connections: usize,
    /// The maximum number of open connections from one address.
    pub(super) per_address: usize,
    /// The part of `connections` that is reserved for addresses with few connections, so that
    /// addresses with many cannot lock them out.
    pub(super) for_modest: usize,
    /// An address with fewer open connections than this may use the reserved part.
    pub(super) modest: usize,
    /// Additional connections, beyond `connections`, for this host, from which the kubelet's probes
    /// come.
    pub(super) for_this_host: usize,
    /// The timeout of a TLS handshake.
    pub(super) handshake: Duration,
    /// The timeout for the header of a request.
    pub(super) header: Duration,
    /// The timeout for the answer to a request. It includes the review of a token by the API
    /// server, which may take 10 s.
    pub(super) answer: Duration,
    /// The timeout for a connection without requests. Go's clients expect upstream's 90 s.
    pub(super) idle: Duration,
    /// How long connections may take to end when the server stops.
    pub(super) grace: Duration,
    /// The maximum number of concurrent HTTP/2 streams per connection.
    pub(super) streams: u32,
    /// The maximum size of a request's body in bytes.
    pub(super) body: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 512,
            per_address: 128,
            for_modest: 64,
            modest: 4,
            for_this_host: 16,
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(32),
            answer: Duration::from_secs(30),
            idle: Duration::from_secs(90),
            grace: Duration::from_secs(1),
            streams: 100,
            body: 64 * 1024,
        }
    }
}

/// Counts open connections.
#[derive(Debug, Default)]
pub(super) struct ConnectionLimiter(Mutex<HashMap<IpAddr, usize>>);

/// Counts a connection as open until dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    address: IpAddr,
}

impl ConnectionLimiter {
    /// Returns a permit if the limits allow another connection from `peer`. `local` is the address
    /// that it connected to.
    pub(super) fn acquire(
        self: &Arc<Self>,
        peer: IpAddr,
        local: Option<IpAddr>,
        limits: &Limits,
    ) -> Option<ConnectionPermit> {
        // Clients connect to a dual-stack socket with IPv4-mapped IPv6 addresses.
        let address = peer.to_canonical();
        let local = local.map(|local| local.to_canonical());
        let mut open = self.0.lock();
        let total: usize = open.values().sum();
        let of_peer = open.get(&address).copied().unwrap_or_default();
        let max_total = if address.is_loopback() || Some(address) == local {
            limits.connections + limits.for_this_host
        } else if of_peer < limits.modest {
            limits.connections
        } else {
            limits.connections.saturating_sub(limits.for_modest)
        };
        if total >= max_total || of_peer >= limits.per_address {
            return None;
        }
        open.insert(address, of_peer + 1);
        Some(ConnectionPermit { limiter: self.clone(), address })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.limiter.0.lock();
        if let Some(of_peer) = open.get_mut(&self.address) {
            *of_peer -= 1;
            if *of_peer == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// Serves one connection until it ends.
pub(super) async fn serve(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
    _permit: ConnectionPermit,
) {
    // Small responses must not wait for a TCP acknowledgement.
    let _ = stream.set_nodelay(true);
    let handshake = timeout(limits.handshake, acceptor.accept(stream));
    match stop.run_until_cancelled(handshake).await {
        Some(Ok(Ok(stream))) => serve_http(stream, router, limits, stop).await,
        Some(Ok(Err(error))) => tracing::debug!(%error, "TLS handshake failed"),
        Some(Err(_)) => tracing::debug!("TLS handshake took too long"),
        None => {}
    }
}

async fn serve_http(
    stream: TlsStream<TcpStream>,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let tls = stream.get_ref().1;
    let h2 = tls.alpn_protocol() == Some(b"h2");
    let certificates = tls.peer_certificates().unwrap_or_default();
    let peer = PeerCertificates(
        certificates
            .iter()
            .map(|certificate| certificate.clone().into_owned())
            .collect(),
    );
    // Each request gets the client's certificates, and a limit of the time for its answer.
    let requests = Requests::default();
    let service = service_fn({
        let requests = requests.clone();
        move |request: Request<Incoming>| {
            let router = router.clone();
            let peer = peer.clone();
            let request_in_hand = requests.begin();
            async move {
                let _until_answered = request_in_hand;
                let mut request = request.map(axum::body::Body::new);
                request.extensions_mut().insert(peer);
                match timeout(limits.answer, router.oneshot(request)).await {
                    Ok(answered) => answered,
                    Err(_) => Ok(too_slow()),
                }
            }
        }
    });
    let streams = Streams::default();
    let _streams_end_with_the_connection = streams.0.clone().drop_guard();
    let builder = Builder::new(streams);
    // Use the protocol negotiated by ALPN. Detecting it from the first bytes would wait for them
    // without a timeout.
    let mut builder = if h2 {
        builder.http2_only()
    } else {
        builder.http1_only()
    };
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams);
    // Serve until the connection ends, is idle for too long or the server stops.
    let connection =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = requests.idle_for(limits.idle) => None,
        () = stop.cancelled() => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            // Without this timeout, a client that does not read its response would hold its permit
            // indefinitely.
            timeout(limits.answer, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Runs the tasks that hyper spawns for HTTP/2 streams until the token is cancelled.
#[derive(Clone, Default)]
struct Streams(CancellationToken);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let end = self.0.clone();
        tokio::spawn(async move { end.run_until_cancelled(stream).await.map(drop) });
    }
}

fn too_slow() -> Response<axum::body::Body> {
    let mut response = Response::new("the answer took too long\n".into());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

/// The number of requests in flight on a connection, and when the last one was answered.
#[derive(Clone)]
struct Requests(Arc<(AtomicUsize, Mutex<Instant>)>);

struct InFlightRequest(Requests);

impl Default for Requests {
    fn default() -> Self {
        Self(Arc::new((AtomicUsize::new(0), Mutex::new(Instant::now()))))
    }
}

impl Requests {
    fn begin(&self) -> InFlightRequest {
        self.0.0.fetch_add(1, Ordering::Relaxed);
        InFlightRequest(self.clone())
    }

    /// Waits until no request was in flight for `time`.
    async fn idle_for(&self, time: Duration) {
        loop {
            let quiet = if self.0.0.load(Ordering::Relaxed) == 0 {
                self.0.1.lock().elapsed()
            } else {
                Duration::ZERO
            };
            if quiet >= time {
                return;
            }
            sleep(time.saturating_sub(quiet)).await;
        }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        *self.0.0.1.lock() = Instant::now();
        self.0.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_takes_every_place() {
        let places = Arc::new(ConnectionLimiter::default());
        let limits = Limits {
            connections: 3,
            per_address: 2,
            for_modest: 0,
            for_this_host: 0,
            ..Limits::default()
        };
        let take = |text: &str| places.acquire(text.parse().unwrap(), None, &limits);
        let first = take("10.0.0.1").unwrap();
        let _second = take("::ffff:10.0.0.1").unwrap();
        assert!(take("10.0.0.1").is_none(), "both families are one address");
        let third = take("10.0.0.2").unwrap();
        assert!(take("10.0.0.3").is_none(), "all places are taken");
        drop((first, third));
        assert!(take("10.0.0.1").is_some());
        assert_eq!(places.0.lock().len(), 1, "nothing is kept about who has left");
    }

    #[test]
    fn a_few_addresses_with_many_connections_keep_nobody_out_and_nobody_keeps_the_probes_out() {
        let places = Arc::new(ConnectionLimiter::default());
        let limits = Limits::default();
        let take = |peer: &str| {
            places.acquire(peer.parse().unwrap(), Some("10.0.0.9".parse().unwrap()), &limits)
        };
        let mut held = Vec::new();
        for greedy in 1..=8 {
            let peer = format!("192.0.2.{greedy}");
            held.extend(std::iter::from_fn(|| take(&peer)));
        }
        assert!(held.len() < limits.connections, "{}", held.len());
        assert!(take("192.0.2.1").is_none());
        held.push(take("198.51.100.1").expect("somebody else has a place"));
        // Very many addresses, each with little.
        for number in 0..=255 {
            held.extend(take(&format!("203.0.113.{number}")));
        }
        assert_eq!(held.len(), limits.connections);
        assert!(take("198.51.100.2").is_none());
        for this_host in ["127.0.0.1", "::1", "10.0.0.9", "::ffff:10.0.0.9"] {
            held.push(take(this_host).expect("the kubelet of this host has a place"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_only_without_requests() {
        let requests = Requests::default();
        let begin = Instant::now();
        let in_hand = requests.begin();
        let idle = requests.idle_for(Duration::from_secs(90));
        let finish = async {
            sleep(Duration::from_secs(200)).await;
            drop(in_hand);
        };
        tokio::join!(idle, finish);
        assert_eq!(begin.elapsed(), Duration::from_secs(290));
    }
}
