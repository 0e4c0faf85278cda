//! The HTTP client and its trusted CA certificates.
//!
//! The SDK reads the system's CA certificates once per process and does not support a CA bundle of
//! its own. Here the bundle that `AWS_CA_BUNDLE` or `SSL_CERT_FILE` names is read again when it
//! changes. The next request then uses a new client with new connections.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use aws_smithy_http_client::{
    Builder, Connector,
    proxy::ProxyConfig,
    tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode},
};
use aws_smithy_runtime_api::client::{
    http::{HttpClient, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector},
    runtime_components::RuntimeComponents,
};
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::time::Instant;

/// The cryptography of [`ccm_core::crypto`], by the name that the SDK has for it. The SDK takes no
/// other library's provider.
const CRYPTOGRAPHY: CryptoMode = {
    #[cfg(feature = "fips")]
    let mode = CryptoMode::AwsLcFips;
    #[cfg(not(feature = "fips"))]
    let mode = CryptoMode::Ring;
    mode
};
/// Interval at which the bundle is checked for changes.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Error of using a CA bundle.
#[derive(Debug, thiserror::Error)]
pub enum CaBundleError {
    /// The file cannot be read.
    #[error("read the CA bundle {path}")]
    Read {
        /// Path of the bundle.
        path: Box<str>,
        /// Error of the read.
        source: std::io::Error,
    },
    /// The file is not a usable CA bundle.
    #[error("the CA bundle {path} {reason}")]
    Content {
        /// Path of the bundle.
        path: Box<str>,
        /// Reason why the content is not usable.
        reason: Box<str>,
    },
}

/// Returns the bundle that the environment names.
pub(super) fn bundle() -> Option<PathBuf> {
    let named = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    named("AWS_CA_BUNDLE").or_else(|| named("SSL_CERT_FILE"))
}

/// Creates the client, which trusts a bundle's certificates and checks the bundle for changes at
/// most once per `look`. Without a bundle, the client trusts the system's certificates.
///
/// # Errors
/// Returns an error if the bundle cannot be used.
pub(super) fn client(
    bundle: Option<PathBuf>,
    look: Duration,
) -> Result<SharedHttpClient, CaBundleError> {
    let Some(path) = bundle else {
        return Ok(with_trust(&TrustStore::default()));
    };
    let state = LoadedBundle {
        stamp: file_version(&path),
        client: with_trust(&read(&path)?),
        checked_at: Instant::now(),
    };
    Ok(SharedHttpClient::new(ReloadingHttpClient {
        path,
        check_interval: look,
        state: Arc::new(Mutex::new(state)),
    }))
}

/// Creates a client for plain HTTP without a proxy, for link-local services.
pub(super) fn plain() -> SharedHttpClient {
    Builder::new().build_http()
}

fn with_trust(trust: &TrustStore) -> SharedHttpClient {
    let trust = trust.clone();
    Builder::new().build_with_connector_fn(move |settings, components| {
        let context = TlsContext::builder()
            .with_trust_store(trust.clone())
            .build();
        let mut connector = Connector::builder()
            // As Go programs do.
            .proxy_config(ProxyConfig::from_env())
            .tls_provider(Provider::Rustls(CRYPTOGRAPHY))
            .tls_context(context.expect("building a context only moves its parts"));
        connector.set_connector_settings(settings.cloned());
        connector.set_sleep_impl(components.and_then(RuntimeComponents::sleep_impl));
        connector.build()
    })
}

/// Reads a bundle and validates all of it, because the SDK panics on a certificate that it cannot
/// use.
fn read(path: &Path) -> Result<TrustStore, CaBundleError> {
    let name = || path.display().to_string().into();
    let content = |reason: String| CaBundleError::Content { path: name(), reason: reason.into() };
    let pem = fs::read(path).map_err(|source| CaBundleError::Read { path: name(), source })?;
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| content(format!("is not PEM: {error}")))?;
    if certificates.is_empty() {
        return Err(content("holds no certificate".to_owned()));
    }
    let mut roots = rustls::RootCertStore::empty();
    for (index, certificate) in certificates.into_iter().enumerate() {
        let added = roots.add(certificate);
        added.map_err(|error| {
            content(format!("has a certificate, number {}, that is none: {error}", index + 1))
        })?;
    }
    Ok(TrustStore::empty().with_pem_certificate(pem))
}

/// Returns data that changes with the content of a file: time, length, and the target of a link.
fn file_version(path: &Path) -> Option<(SystemTime, u64, PathBuf)> {
    let about = fs::metadata(path).ok()?;
    Some((about.modified().ok()?, about.len(), fs::canonicalize(path).ok()?))
}

/// A client that reloads its CA bundle.
#[derive(Debug)]
struct ReloadingHttpClient {
    path: PathBuf,
    check_interval: Duration,
    state: Arc<Mutex<LoadedBundle>>,
}

#[derive(Debug)]
struct LoadedBundle {
    stamp: Option<(SystemTime, u64, PathBuf)>,
    client: SharedHttpClient,
    checked_at: Instant,
}

impl ReloadingHttpClient {
    /// Returns a client for the bundle's current content. If the content cannot be used, for
    /// example because it is only partly written, returns the last client.
    fn current(&self) -> SharedHttpClient {
        let mut state = self.state.lock();
        if state.checked_at.elapsed() >= self.check_interval {
            state.checked_at = Instant::now();
            let now = file_version(&self.path);
            if now != state.stamp {
                match read(&self.path) {
                    Ok(trust) => {
                        tracing::info!(path = %self.path.display(), "the CA bundle changed");
                        state.client = with_trust(&trust);
                        state.stamp = now;
                    }
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(
                            error,
                            "the CA bundle changed and cannot be used; the last one stays"
                        );
                        state.stamp = now;
                    }
                }
            }
        }
        state.client.clone()
    }
}

impl HttpClient for ReloadingHttpClient {
    // Called for each request.
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        self.current().http_connector(settings, components)
    }
}
