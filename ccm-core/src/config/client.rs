//! How to reach the API server: `--kubeconfig`, `--master`, or the pod's own service account.

use std::path::{Path, PathBuf};

use http::{HeaderValue, Uri, header};
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use thiserror::Error;

use super::{KubeClientConfig, Product};

/// Why no client configuration could be made. No variant holds a credential.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientConfigError {
    /// The kubeconfig could not be read or understood.
    #[error("--{flag}={}: {reason}", path.display())]
    Kubeconfig {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What failed, without anything of the file's content but names.
        reason: String,
    },
    /// `--master` is no address.
    #[error("--master={value}: {reason}")]
    Master {
        /// As typed, without credentials.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Neither flag was set, and this is no pod with a service account.
    #[error("neither --kubeconfig nor --master is set, and the pod's service account cannot be used: {reason}")]
    InCluster {
        /// What is missing.
        reason: String,
    },
    /// The user agent has characters that HTTP does not allow.
    #[error("user agent {value:?} is no HTTP header value")]
    UserAgent {
        /// The user agent.
        value: String,
    },
}

/// The user agent of one client: `<binary>/<version> (<os>/<arch>) kubernetes/<commit>/<client name>`, as client-go's.
pub fn user_agent(product: &Product, client_name: &str) -> String {
    format!("{}/{} ({}) kubernetes/{}/{client_name}", product.binary, product.version, platform(), product.commit)
}

/// Returns the system and architecture that this was built for, such as `linux/amd64`: Go's names, so that audit logs and
/// flow-control rules that know them still match.
pub fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{}/{architecture}", std::env::consts::OS)
}

/// Loads the configuration of a client. Reads files, connects to nothing.
///
/// With a kubeconfig, its current context is used, and `master` wins over the address there. With `master` alone there
/// are no credentials. With neither, the pod's service account is used.
///
/// # Errors
///
/// Names the flag or file and what failed; never a credential.
pub async fn load(
    config: &KubeClientConfig,
    product: &Product,
    client_name: &str,
) -> Result<kube::Config, ClientConfigError> {
    let mut client = match (&config.kubeconfig, master_uri(&config.master, "http")?) {
        (Some(path), _) => from_file("kubeconfig", path, &config.master).await?,
        (None, Some(uri)) => kube::Config::new(uri),
        (None, None) => {
            kube::Config::incluster().map_err(|error| ClientConfigError::InCluster { reason: error.to_string() })?
        }
    };
    let agent = user_agent(product, client_name);
    let value = HeaderValue::from_str(&agent).map_err(|_| ClientConfigError::UserAgent { value: agent })?;
    client.headers.push((header::USER_AGENT, value));
    // Compressing costs the API server more than the network saves, on a cluster's own network.
    client.disable_compression = true;
    Ok(client)
}

/// Loads the configuration of a client that need not be: the kubeconfig of `flag` if there is one, else the pod's service
/// account, else none. Outside a pod that is silent; in one, what keeps the service account from being used is logged.
///
/// # Errors
///
/// Names the flag and file and what failed; never a credential.
pub async fn load_optional(flag: &'static str, path: Option<&Path>) -> Result<Option<kube::Config>, ClientConfigError> {
    let mut client = match path {
        Some(path) => from_file(flag, path, "").await?,
        None => match kube::Config::incluster() {
            Ok(client) => client,
            Err(InClusterError::ReadEnvironmentVariable(_)) => return Ok(None),
            Err(error) => {
                tracing::warn!(%error, "--{flag} is not set, and the pod's service account cannot be used");
                return Ok(None);
            }
        },
    };
    client.disable_compression = true;
    Ok(Some(client))
}

async fn from_file(flag: &'static str, path: &Path, master: &str) -> Result<kube::Config, ClientConfigError> {
    let failed = |error: &KubeconfigError| ClientConfigError::Kubeconfig {
        flag,
        path: path.to_owned(),
        reason: describe(error),
    };
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(|error| failed(&error))?;
    if let Some(uri) = master_uri(master, "https")? {
        for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
            cluster.server = Some(uri.to_string());
        }
    }
    let client = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|error| failed(&error))?;
    // Addresses are logged, and one of them is a label of metrics.
    let wrong = if client.proxy_url.is_some() {
        "sets proxy-url, which is not supported"
    } else if client.cluster_url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        "must not have credentials in the address of its server"
    } else if !is_header(&client.auth_info) {
        "has a token that cannot be sent: it has a line break or another character that HTTP does not allow"
    } else {
        return Ok(client);
    };
    Err(ClientConfigError::Kubeconfig { flag, path: path.to_owned(), reason: wrong.to_owned() })
}

/// Whether the token, if there is one, can be sent. The client panics on one that cannot.
fn is_header(user: &kube::config::AuthInfo) -> bool {
    // Only as JSON do they give it away.
    let user = serde_json::to_value(user).unwrap_or_default();
    user["token"].as_str().is_none_or(|token| HeaderValue::from_str(token).is_ok())
}

/// What failed. A parser's own message may quote the file, and with it a token, so only the place is told.
fn describe(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(cause, _) => format!("cannot be read: {cause}"),
        KubeconfigError::Parse(cause) => match cause.location() {
            Some(place) => format!("is no kubeconfig: line {}, column {}", place.line(), place.column()),
            None => "is no kubeconfig".to_owned(),
        },
        KubeconfigError::LoadClusterOfContext(name) => format!("has no cluster {name:?}, which the context names"),
        KubeconfigError::LoadContext(name) => format!("has no context {name:?}"),
        KubeconfigError::CurrentContextNotSet => "sets no current-context".to_owned(),
        KubeconfigError::LoadCertificateAuthority(cause) => format!("certificate authority: {cause}"),
        KubeconfigError::LoadClientCertificate(cause) => format!("client certificate: {cause}"),
        KubeconfigError::LoadClientKey(cause) => format!("client key: {cause}"),
        other => other.to_string(),
    }
}

/// What is wrong with the value of `--master`, without a password that may be in it.
#[derive(Debug)]
pub(super) struct MasterError {
    pub(super) shown: String,
    pub(super) reason: &'static str,
}

impl From<MasterError> for ClientConfigError {
    fn from(MasterError { shown, reason }: MasterError) -> Self {
        Self::Master { value: shown, reason }
    }
}

/// The address of `--master`, if it is set. Without a scheme it gets `scheme`, as client-go does it.
pub(super) fn master_uri(value: &str, scheme: &str) -> Result<Option<Uri>, MasterError> {
    if value.is_empty() {
        return Ok(None);
    }
    let shown = value.rsplit_once('@').map_or_else(|| value.to_owned(), |(_, host)| format!("<redacted>@{host}"));
    let wrong = |reason| MasterError { shown: shown.clone(), reason };
    if value.contains('@') {
        return Err(wrong("must not contain credentials"));
    }
    let full = if value.contains("://") { value.to_owned() } else { format!("{scheme}://{value}") };
    let uri: Uri = full.parse().map_err(|_| wrong("must be an address such as https://host:6443"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(wrong("must be an http or https address"));
    }
    Ok(Some(uri))
}

#[cfg(test)]
mod tests;
