//! How to reach the API server: `--kubeconfig`, `--master`, or the pod's own service account.

use std::path::PathBuf;

use http::{HeaderValue, Uri, header};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use thiserror::Error;

use super::{KubeClientConfig, Product};

/// Why no client configuration could be made. No variant holds a credential.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientConfigError {
    /// The kubeconfig could not be read or understood.
    #[error("--kubeconfig={}: {reason}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What failed, without anything of the file's content but names.
        reason: String,
    },
    /// `--master` is no address.
    #[error("--master={value}: {reason}")]
    Master {
        /// As typed.
        value: String,
        /// What is wrong with it.
        reason: String,
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
    // Go's names, so that audit logs and flow-control rules that know them still match.
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!(
        "{}/{} ({}/{architecture}) kubernetes/{}/{client_name}",
        product.binary,
        product.version,
        std::env::consts::OS,
        product.commit
    )
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
    let mut client = match &config.kubeconfig {
        Some(path) => from_file(path.clone(), &config.master).await?,
        None if !config.master.is_empty() => kube::Config::new(master_uri(&config.master, "http")?),
        None => {
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

async fn from_file(path: PathBuf, master: &str) -> Result<kube::Config, ClientConfigError> {
    let failed =
        |error: &KubeconfigError| ClientConfigError::Kubeconfig { path: path.clone(), reason: describe(error) };
    let mut kubeconfig = Kubeconfig::read_from(&path).map_err(|error| failed(&error))?;
    if !master.is_empty() {
        let uri = master_uri(master, "https")?;
        for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
            cluster.server = Some(uri.to_string());
        }
    }
    kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|error| failed(&error))
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

/// The address of `--master`. Without a scheme it gets `scheme`, as client-go does it.
fn master_uri(value: &str, scheme: &str) -> Result<Uri, ClientConfigError> {
    let wrong =
        |reason: &str| ClientConfigError::Master { value: without_credentials(value), reason: reason.to_owned() };
    let full = if value.contains("://") { value.to_owned() } else { format!("{scheme}://{value}") };
    let uri: Uri = full.parse().map_err(|_| wrong("must be an address such as https://host:6443"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(wrong("must be an http or https address"));
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(wrong("must not contain credentials"));
    }
    Ok(uri)
}

/// The text up to a user and password in it, if there are any.
fn without_credentials(value: &str) -> String {
    match value.rsplit_once('@') {
        Some((_, host)) => format!("<redacted>@{host}"),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests;
