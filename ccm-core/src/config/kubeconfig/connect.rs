//! Connections to the API server: through a proxy where one is configured, and with fast detection
//! of dead peers.

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::{
        legacy::{
            Client as HttpClient,
            connect::{
                Connection, HttpConnector,
                proxy::{SocksV5, Tunnel},
            },
        },
        proxy::matcher::{Intercept, Matcher},
    },
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ConfigExt};
use rustls::pki_types::ServerName;
use tokio::time::Instant;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, util::BoxCloneService};

use super::files::{ClientConfig, RELOAD_INTERVAL};
use crate::{crypto, error::chain};

/// A connection that is idle for this long is probed with TCP keepalive.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// The interval between keepalive probes, and how many of them may stay unanswered.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
/// How long the answer to a ping on an HTTP/2 connection may take. Pings are sent every
/// [`KEEPALIVE`] while a request is in flight, such as a watch. On a connection without any, the
/// next request starts them.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// How long sent data may stay unacknowledged. Together with the keepalive, a peer that disappeared
/// without closing the connection (a firewall that dropped its state, a machine that lost power) is
/// detected within 25 s, whether the connection is idle or not. A proxy in between can hide that;
/// then only pings detect it.
const USER_TIMEOUT: Duration = Duration::from_secs(25);
/// The timeout of connecting; kube's default.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The HTTP versions that a client offers to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersions {
    /// HTTP/2, and HTTP/1.1 for a server that does not know it. All requests share one connection.
    Any,
    /// HTTP/1.1 alone, for clients whose requests have short timeouts. A request that times out
    /// closes its connection, so the next one does not wait for the same dead peer. A leader's next
    /// renewal, for example, is due before a ping could time out.
    Http1,
}

/// Sends requests with fixed credentials, over separate connections.
type Connections = BoxCloneService<Request<Body>, Response<Incoming>, BoxError>;

/// Creates a client as [`kube::Client::try_from`] does, with proxies, with detection of dead
/// connections, and with credentials that are reloaded from their files.
///
/// After a file has changed, the next request uses new connections with the new contents. Requests
/// in flight on old connections, including watches, are finished there; no other request uses
/// these, and idle ones are closed.
///
/// # Errors
/// Certificates or credentials that cannot be used, or a proxy of another kind.
pub(crate) fn client(config: &ClientConfig, versions: HttpVersions) -> kube::Result<kube::Client> {
    let mut used = config.credentials();
    let mut connections = connect(&config.filled(&used), versions)?;
    let mut next_attempt = Instant::now();
    let namespace = config.kube.default_namespace.clone();
    let config = config.clone();
    let service = tower::service_fn(move |request| {
        let current = config.credentials();
        if !Arc::ptr_eq(&current, &used) && Instant::now() >= next_attempt {
            match connect(&config.filled(&current), versions) {
                Ok(new) => (used, connections) = (current, new),
                // The files themselves were already checked, so the cause is something else: a
                // plug-in, for example.
                Err(error) => {
                    next_attempt = Instant::now() + RELOAD_INTERVAL;
                    let kubeconfig = config.source();
                    let error = chain(&error);
                    tracing::warn!(
                        kubeconfig,
                        error,
                        "no new connections for changed credentials, trying again"
                    );
                }
            }
        }
        connections.clone().oneshot(request)
    });
    Ok(kube::Client::new(service, namespace))
}

/// Prepares connections from a configuration in which all credentials are in-line.
///
/// [`kube::Config::proxy_url`] names the proxy: `http`, `https` or `socks5`, with a user and a
/// password if it needs them.
fn connect(config: &kube::Config, versions: HttpVersions) -> kube::Result<Connections> {
    crypto::install().map_err(|error| kube::Error::Service(Box::new(error)))?;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));

    let Some(url) = &config.proxy_url else {
        return over(tcp, config, versions);
    };
    let unsupported =
        || kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(without_credentials(url)) };
    let proxy = intercept(url, &config.cluster_url).ok_or_else(unsupported)?;
    let address = proxy.uri().clone();
    match address.scheme_str() {
        Some("http") => over(tunnel(tcp, &proxy), config, versions),
        // The proxy's certificate is verified with the same CA bundle as the API server's.
        Some("https") => over(
            tunnel(config.rustls_https_connector_with_connector(tcp)?, &proxy),
            config,
            versions,
        ),
        Some("socks5" | "socks5h") => {
            let socks = SocksV5::new(address, tcp);
            match proxy.raw_auth() {
                Some((user, password)) => {
                    over(socks.with_auth(user.to_owned(), password.to_owned()), config, versions)
                }
                None => over(socks, config, versions),
            }
        }
        _ => Err(unsupported()),
    }
}

/// Returns true if a proxy can be used. Its address may contain credentials.
pub(crate) fn is_proxy(url: &Uri) -> bool {
    let any = Uri::from_static("https://kubernetes.default.svc");
    let schemes = ["http", "https", "socks5", "socks5h"];
    intercept(url, &any).is_some_and(|proxy| {
        proxy
            .uri()
            .scheme_str()
            .is_some_and(|scheme| schemes.contains(&scheme))
    })
}

fn intercept(proxy: &Uri, destination: &Uri) -> Option<Intercept> {
    Matcher::builder()
        .all(proxy.to_string())
        .build()
        .intercept(destination)
}

fn without_credentials(url: &Uri) -> Uri {
    let host = url.host().map(|host| {
        Uri::builder()
            .scheme(url.scheme_str().unwrap_or("http"))
            .authority(host)
    });
    host.and_then(|host| host.path_and_query("/").build().ok())
        .unwrap_or_default()
}

fn tunnel<C>(inner: C, proxy: &Intercept) -> Tunnel<C> {
    let tunnel = Tunnel::new(proxy.uri().clone(), inner);
    match proxy.basic_auth() {
        Some(credentials) => tunnel.with_auth(HeaderValue::clone(credentials)),
        None => tunnel,
    }
}

/// Builds the service with TLS, base address, credentials and headers of a configuration over a
/// connector.
fn over<C>(connector: C, config: &kube::Config, versions: HttpVersions) -> kube::Result<Connections>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(KEEPALIVE)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .build(tls(connector, config, versions)?);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_request(|request: Request<Body>| {
            tracing::trace!(method = %request.method(), url = %request.uri(), "requesting");
            request
        })
        .map_response(|response: Response<Incoming>| {
            tracing::trace!(status = response.status().as_u16(), "answered");
            response
        })
        .map_err(BoxError::from)
        .service(http);
    Ok(BoxCloneService::new(service))
}

/// Adds TLS to a connector. kube's own connector offers HTTP/1.1 only; this one can offer HTTP/2
/// before it, as client-go does.
fn tls<C>(
    connector: C,
    config: &kube::Config,
    versions: HttpVersions,
) -> kube::Result<HttpsConnector<C>> {
    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = ServerName::try_from(name.clone())
            .map_err(|error| kube::Error::Service(Box::new(error)))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(match versions {
        HttpVersions::Any => builder.enable_all_versions().wrap_connector(connector),
        HttpVersions::Http1 => builder.enable_http1().wrap_connector(connector),
    })
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, net::SocketAddr};

    use bytes::Bytes;
    use http::Version;
    use http_body_util::Full;
    use hyper::service::service_fn;
    use hyper_util::{rt::TokioIo, server::conn::auto};
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::{ServerConfig, pki_types::PrivateKeyDer};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
        net::{TcpListener, TcpStream},
        sync::{Notify, mpsc},
        task::{JoinHandle, JoinSet},
        time::{pause, timeout},
    };
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// Reads the head of a request.
    async fn head(stream: &mut TcpStream) -> String {
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            text.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(text).unwrap()
    }

    /// An API server that answers one request.
    async fn api_server() -> (SocketAddr, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let head = head(&mut stream).await;
            let answer =
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 32\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream
                .write_all(br#"{"major":"1","minor":"36","a":1}"#)
                .await
                .unwrap();
            head
        });
        (address, served)
    }

    #[tokio::test]
    async fn requests_go_through_the_proxy_that_is_named() {
        let (api, served) = api_server().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = listener.local_addr().unwrap();
        let tunnelled = tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let head = head(&mut client).await;
            let mut server = TcpStream::connect(api).await.unwrap();
            client
                .write_all(b"HTTP/1.1 200 Connected\r\n\r\n")
                .await
                .unwrap();
            // Until either side is done.
            let _ = copy_bidirectional(&mut client, &mut server).await;
            head
        });
        let mut config = kube::Config::new(format!("http://{api}").parse().unwrap());
        config.proxy_url = Some(
            format!("http://some%40body:pass%3Aword@{proxy}")
                .parse()
                .unwrap(),
        );
        let client = client(&ClientConfig::without_files(config), HttpVersions::Any).unwrap();
        let text = client
            .request_text(Request::get("/version").body(Vec::new()).unwrap())
            .await
            .unwrap();
        assert!(text.contains("\"minor\":\"36\""), "{text}");
        drop(client);
        assert!(served.await.unwrap().starts_with("GET /version"));
        let connect = tunnelled.await.unwrap();
        assert!(connect.starts_with(&format!("CONNECT {api} ")), "{connect}");
        // some@body:pass:word
        assert!(
            connect
                .to_lowercase()
                .contains("proxy-authorization: basic c29tzubib2r5onbhc3m6d29yza=="),
            "{connect}"
        );
    }

    #[tokio::test]
    async fn without_a_proxy_requests_go_straight_there() {
        let (api, served) = api_server().await;
        let config = kube::Config::new(format!("http://{api}").parse().unwrap());
        let client = client(&ClientConfig::without_files(config), HttpVersions::Any).unwrap();
        client
            .request_text(Request::get("/version").body(Vec::new()).unwrap())
            .await
            .unwrap();
        assert!(served.await.unwrap().starts_with("GET /version"));
    }

    /// An API server with TLS. One of its connections can fall silent, like a peer whose machine
    /// lost power: it reads nothing more, and the connection stays open.
    struct TlsServer {
        address: SocketAddr,
        certificate: Vec<u8>,
        /// The HTTP version of each request.
        versions: mpsc::UnboundedReceiver<Version>,
        /// Makes a connection fall silent.
        silent: Arc<Notify>,
        task: JoinHandle<()>,
    }

    async fn tls_server(protocols: &[&[u8]]) -> TlsServer {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let mut tls = ServerConfig::builder_with_provider(crypto::provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, versions) = mpsc::unbounded_channel();
        let silent = Arc::new(Notify::new());
        let fell_silent = silent.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let stream = acceptor.accept(stream).await.unwrap();
                let seen = seen.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    seen.send(request.version()).unwrap();
                    async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("{}")))) }
                });
                let fell_silent = fell_silent.clone();
                connections.spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    let connection = server.serve_connection(TokioIo::new(stream), service);
                    tokio::pin!(connection);
                    tokio::select! {
                        _ = &mut connection => {}
                        () = fell_silent.notified() => std::future::pending().await,
                    }
                });
            }
        });
        TlsServer {
            address,
            certificate: cert.der().to_vec(),
            versions,
            silent,
            task,
        }
    }

    fn tls_client(server: &TlsServer, versions: HttpVersions) -> kube::Client {
        let url = format!("https://{}", server.address).parse().unwrap();
        let mut config = kube::Config::new(url);
        config.root_cert = Some(vec![server.certificate.clone()]);
        config.tls_server_name = Some("localhost".to_owned());
        client(&ClientConfig::without_files(config), versions).unwrap()
    }

    async fn get_version(client: &kube::Client) -> kube::Result<String> {
        let request = Request::get("/version").body(Vec::new()).unwrap();
        client.request_text(request).await
    }

    #[tokio::test]
    async fn http2_is_used_where_the_server_offers_it() {
        let both = [b"h2".as_slice(), b"http/1.1"];
        for (protocols, versions, version) in [
            (&both[..], HttpVersions::Any, Version::HTTP_2),
            (&both[1..], HttpVersions::Any, Version::HTTP_11),
            (&[], HttpVersions::Any, Version::HTTP_11),
            (&both, HttpVersions::Http1, Version::HTTP_11),
        ] {
            let mut server = tls_server(protocols).await;
            get_version(&tls_client(&server, versions)).await.unwrap();
            assert_eq!(server.versions.recv().await, Some(version), "{protocols:?}");
            server.task.abort();
        }
    }

    #[tokio::test]
    async fn a_silent_http2_server_is_detected_within_25_seconds() {
        let server = tls_server(&[b"h2"]).await;
        let client = tls_client(&server, HttpVersions::Any);
        get_version(&client).await.unwrap();
        server.silent.notify_one();

        pause();
        let start = Instant::now();
        let limit = KEEPALIVE + PING_TIMEOUT + Duration::from_secs(1);
        let answer = timeout(limit, get_version(&client)).await;
        assert!(answer.expect("the request still waits").is_err());
        assert!(start.elapsed() >= PING_TIMEOUT, "after {:?}", start.elapsed());
        server.task.abort();
    }

    /// With the defaults a renewal has five seconds, and the leader gives up five seconds later.
    #[tokio::test]
    async fn after_a_timeout_a_client_of_http1_does_not_wait_for_the_silent_peer_again() {
        let server = tls_server(&[b"h2", b"http/1.1"]).await;
        let client = tls_client(&server, HttpVersions::Http1);
        get_version(&client).await.unwrap();
        server.silent.notify_one();
        let renewal = timeout(Duration::from_millis(200), get_version(&client)).await;
        assert!(renewal.is_err(), "the silent peer answers");
        let again = timeout(Duration::from_secs(5), get_version(&client)).await;
        again.expect("it waits on the silent connection").unwrap();
        server.task.abort();
    }

    #[test]
    fn an_error_about_a_proxy_shows_no_password() {
        let url = "ftp://somebody:s3cr3t@proxy:21/".parse().unwrap();
        assert_eq!(without_credentials(&url).to_string(), "ftp://proxy/");
        assert!(!is_proxy(&url));
    }
}
