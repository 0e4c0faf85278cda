//! The HTTPS server for health checks, metrics and configuration.
//!
//! It listens before leader election, on a standby too, and stops last. [`Handlers`] has the
//! endpoints, and [`AuthFilter`] decides who may use them. Certificates are reloaded when their
//! files change.

pub mod auth;
mod auth_filter;
mod certificates;
mod connection;
mod content_type;
mod handlers;
mod listener;
mod self_signed;
#[cfg(test)]
mod tests;
mod tls;

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use rustls::crypto::CryptoProvider;
use tokio::{net::TcpListener, task::JoinSet, time::timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

pub(crate) use self::content_type::wants_text;
pub use self::{
    auth_filter::{AuthFilter, PeerCertificates, RequestAuth},
    certificates::CertificateError,
    handlers::Handlers,
};
use self::{
    certificates::Certificates,
    connection::{ConnectionLimiter, Limits},
};
use crate::{
    config::{ServingConfig, cipher_suites},
    error::chain,
};

/// The interval at which certificate files are checked. The files are small, and renewed
/// certificates overlap with their predecessors by days.
const CERTIFICATE_PERIOD: Duration = Duration::from_secs(10);
/// The delay after a connection could not be accepted, most likely because no file descriptors are
/// left.
const ACCEPT_ERROR_DELAY: Duration = Duration::from_millis(100);

/// All problems with flags and files that prevent the server from starting.
#[derive(Debug)]
pub struct ServingErrors(Vec<ServingError>);

/// A problem that prevents the server from starting.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// A certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The server cannot listen on the address.
    #[error("--secure-port={}, --bind-address={}: listen on {address}", address.port(), address.ip())]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The TLS flags contradict each other.
    #[error("TLS settings")]
    Tls(#[from] rustls::Error),
    /// A name in a flag is unknown.
    #[error("TLS settings: {0}")]
    Name(String),
}

impl fmt::Display for ServingErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors: Vec<_> = self.0.iter().map(|error| chain(error)).collect();
        f.write_str(&errors.join("\n"))
    }
}

impl std::error::Error for ServingErrors {}

/// A server that listens and does not answer requests yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Arc<rustls::ServerConfig>,
    certificates: Arc<Certificates>,
    provider: Arc<CryptoProvider>,
    limits: Limits,
}

impl Server {
    /// Reads the certificates and starts to listen; `None` when `--secure-port` is 0. Must be
    /// called inside a tokio runtime.
    ///
    /// # Errors
    /// All problems found. Nothing is left behind then, except a certificate that was created in
    /// `--cert-dir`.
    pub fn bind(config: &ServingConfig) -> Result<Option<Self>, ServingErrors> {
        match config.port {
            Some(port) => Self::bind_port(config, port.get()).map(Some),
            None => Ok(None),
        }
    }

    fn bind_port(config: &ServingConfig, port: u16) -> Result<Self, ServingErrors> {
        let address = SocketAddr::new(config.bind_address, port);
        let provider =
            cipher_suites::provider(&config.tls_cipher_suites, &config.tls_curve_preferences)
                .map(Arc::new)
                .map_err(|reason| ServingErrors(vec![ServingError::Name(reason)]))?;
        // Errors of the listener and of the certificates are reported together.
        let bound = listener::listen(address, config.permit_port_sharing)
            .and_then(|listener| Ok((listener.local_addr()?, listener)));
        let certificates = Certificates::load(config, &provider);
        let ((local, listener), certificates) = match (bound, certificates) {
            (Ok(bound), Ok(certificates)) => (bound, Arc::new(certificates)),
            (bound, certificates) => {
                let mut errors = Vec::new();
                if let Err(source) = bound {
                    errors.push(ServingError::Listen { address, source });
                }
                if let Err(invalid) = certificates {
                    errors.extend(invalid.into_iter().map(ServingError::Certificate));
                }
                return Err(ServingErrors(errors));
            }
        };
        let tls = tls::server_config(config, &provider, certificates.clone())
            .map_err(|error| ServingErrors(vec![error.into()]))?;
        let mut limits = Limits::default();
        if config.http2_max_streams_per_connection > 0 {
            limits.streams = config.http2_max_streams_per_connection;
        }
        Ok(Self {
            listener,
            address: local,
            tls: Arc::new(tls),
            certificates,
            provider,
            limits,
        })
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves requests until `stop`. Requests in flight then have one second to finish.
    pub async fn run(self, router: Router, stop: CancellationToken) {
        tracing::info!(address = %self.address, "serving");
        let router = router.layer(axum::extract::DefaultBodyLimit::max(self.limits.body));
        let certificates = self.certificates.clone();
        let provider = self.provider.clone();
        let renewals = async {
            loop {
                tokio::time::sleep(CERTIFICATE_PERIOD).await;
                certificates.refresh(&provider);
            }
        };
        tokio::select! {
            () = self.accept(router, &stop) => {}
            () = renewals => {}
        }
    }

    async fn accept(&self, router: Router, stop: &CancellationToken) {
        let limiter = Arc::new(ConnectionLimiter::default());
        let acceptor = TlsAcceptor::from(self.tls.clone());
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a connection's task failed");
                    }
                    continue;
                }
                accepted = self.listener.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_ERROR_DELAY).await;
                    continue;
                }
            };
            let local = stream.local_addr().ok().map(|local| local.ip());
            let Some(permit) = limiter.acquire(address.ip(), local, &self.limits) else {
                tracing::debug!(%address, "too many connections, one more is closed");
                continue;
            };
            let acceptor = acceptor.clone();
            let router = router.clone();
            let stop = stop.clone();
            connections.spawn(connection::serve(
                stream,
                acceptor,
                router,
                self.limits,
                stop,
                permit,
            ));
        }
        let last_connection_ended = async { while connections.join_next().await.is_some() {} };
        if timeout(self.limits.grace, last_connection_ended)
            .await
            .is_err()
        {
            tracing::debug!("connections did not end in time and are closed");
        }
    }
}
