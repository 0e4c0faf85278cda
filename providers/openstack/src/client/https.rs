//! HTTP transport over sockets.

use std::{
    net::IpAddr,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Transport, TransportError,
    tls::{self, TlsError},
};
use crate::config::{Cloud, Tls, stamp};

/// Interval at which the TLS files are checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum length of an answer: a thousand servers take a few megabytes.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// Maximum time to connect, as part of the request's timeout.
const CONNECT: Duration = Duration::from_secs(10);

/// An error that prevents the transport from being created.
#[derive(Debug, thiserror::Error)]
pub enum HttpsError {
    /// CA bundle or client certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A `--user-agent` that cannot be sent.
    #[error("--user-agent {0:?} cannot be sent in a header")]
    Agent(String),
    /// The HTTP client rejects the settings.
    #[error("the HTTP client cannot be created")]
    Client(#[source] reqwest::Error),
}

/// HTTP and HTTPS over sockets. Redirections are not followed.
///
/// Proxies come from the usual variables, read when the process starts: `HTTPS_PROXY` and
/// `HTTP_PROXY` by the scheme of the request, `ALL_PROXY` for either, `NO_PROXY` with hosts,
/// domains, addresses and networks; each also in lower case. As upstream does, requests to the
/// loopback interface never use a proxy.
#[derive(Debug)]
pub struct Https {
    tls: Tls,
    timeout: Duration,
    agent: String,
    check_interval: Duration,
    /// Maximum length of an answer in bytes.
    max_response_bytes: usize,
    state: Mutex<LoadedClients>,
}

type FileVersions = Vec<Option<(SystemTime, u64, PathBuf)>>;

#[derive(Debug)]
struct LoadedClients {
    file_versions: FileVersions,
    clients: Clients,
    checked_at: Instant,
}

/// One client with the proxies of the environment, and one without.
#[derive(Clone, Debug)]
struct Clients {
    proxied: reqwest::Client,
    direct: reqwest::Client,
}

impl Clients {
    fn new(tls: &Tls, agent: &str, timeout: Duration) -> Result<Self, HttpsError> {
        let proxied = builder(tls, agent, timeout)?
            .build()
            .map_err(HttpsError::Client)?;
        let direct = builder(tls, agent, timeout)?
            .no_proxy()
            .build()
            .map_err(HttpsError::Client)?;
        Ok(Self { proxied, direct })
    }

    fn of(&self, uri: &http::Uri) -> &reqwest::Client {
        let host = uri
            .host()
            .unwrap_or_default()
            .trim_start_matches('[')
            .trim_end_matches(']');
        let is_loopback =
            host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        if is_loopback {
            &self.direct
        } else {
            &self.proxied
        }
    }
}

impl Https {
    /// Creates a transport. Each of `agents` precedes the program's own name in `User-Agent`, the
    /// last one first.
    ///
    /// # Errors
    /// TLS files that cannot be used, or agents that cannot be sent.
    pub fn new(cloud: &Cloud, agents: &[String]) -> Result<Self, HttpsError> {
        let own = concat!("ccm-openstack/v", env!("CARGO_PKG_VERSION"));
        if let Some(bad) = agents
            .iter()
            .find(|agent| http::HeaderValue::from_str(agent).is_err())
        {
            return Err(HttpsError::Agent(bad.clone()));
        }
        let parts: Vec<&str> = agents
            .iter()
            .rev()
            .map(String::as_str)
            .chain([own])
            .collect();
        let agent = parts.join(" ");
        let timeout = cloud.request_timeout;
        let stamps = stamps(&cloud.tls);
        let clients = Clients::new(&cloud.tls, &agent, timeout)?;
        let state = Mutex::new(LoadedClients {
            file_versions: stamps,
            clients,
            checked_at: Instant::now(),
        });
        Ok(Self {
            tls: cloud.tls.clone(),
            timeout,
            agent,
            check_interval: CHECK_INTERVAL,
            max_response_bytes: MAX_RESPONSE_BYTES,
            state,
        })
    }

    #[cfg(test)]
    pub(super) fn with_max_response_bytes(mut self, longest: usize) -> Self {
        self.max_response_bytes = longest;
        self
    }

    #[cfg(test)]
    pub(super) fn with_constant_checks(mut self) -> Self {
        self.check_interval = Duration::ZERO;
        self
    }

    /// Returns clients with the current content of the files. If they cannot be used, for example
    /// because they are half-written, the last clients stay in use.
    fn current(&self) -> Clients {
        let mut state = self.state.lock();
        if state.checked_at.elapsed() >= self.check_interval {
            state.checked_at = Instant::now();
            let current = stamps(&self.tls);
            if current != state.file_versions {
                state.file_versions = current;
                match Clients::new(&self.tls, &self.agent, self.timeout) {
                    Ok(clients) => {
                        tracing::info!("files of TLS changed: new connections use them");
                        state.clients = clients;
                    }
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(
                            error,
                            "files of TLS changed and cannot be used; what was read last stays"
                        );
                    }
                }
            }
        }
        state.clients.clone()
    }
}

fn stamps(tls: &Tls) -> FileVersions {
    tls::files(tls).into_iter().map(stamp).collect()
}

fn builder(
    tls: &Tls,
    agent: &str,
    timeout: Duration,
) -> Result<reqwest::ClientBuilder, HttpsError> {
    Ok(reqwest::Client::builder()
        .tls_backend_preconfigured(tls::config(tls)?)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .timeout(timeout)
        .connect_timeout(timeout.min(CONNECT))
        .user_agent(agent))
}

#[async_trait]
impl Transport for Https {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let origin = origin(request.uri());
        let lost = |error: reqwest::Error| transport_error(&origin, self.timeout, error);
        let clients = self.current();
        let client = clients.of(request.uri());
        let request = reqwest::Request::try_from(request).map_err(lost)?;
        let mut response = client.execute(request).await.map_err(lost)?;
        let mut head = Response::new(());
        *head.status_mut() = response.status();
        *head.headers_mut() = response.headers().clone();
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(lost)? {
            if body.len() + chunk.len() > self.max_response_bytes {
                let message = format!(
                    "the answer of {origin} is longer than {} bytes",
                    self.max_response_bytes
                );
                return Err(TransportError { message, maybe_sent: true, source: None });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(head.map(|()| body.freeze()))
    }
}

/// Returns scheme, host and port: nothing secret.
fn origin(uri: &http::Uri) -> String {
    let port = uri
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    format!("{}://{}{port}", uri.scheme_str().unwrap_or_default(), uri.host().unwrap_or_default())
}

fn transport_error(origin: &str, timeout: Duration, error: reqwest::Error) -> TransportError {
    let connected = !error.is_connect() && !error.is_builder();
    let message = if !connected {
        format!("no connection to {origin}")
    } else if error.is_timeout() {
        format!("{origin} did not answer within {timeout:?}")
    } else if error.is_body() || error.is_decode() {
        format!("the answer of {origin} was cut short")
    } else {
        format!("{origin} broke the connection off")
    };
    TransportError {
        message,
        maybe_sent: connected,
        source: Some(Box::new(error.without_url())),
    }
}
