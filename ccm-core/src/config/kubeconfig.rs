//! Configuration of the API client: `--kubeconfig`, `--master`, or the pod's own ServiceAccount.

pub(crate) mod connect;
mod files;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use http::{HeaderValue, Uri, header};
use ipnet::IpNet;
use kube::config::{
    Cluster, Context, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError,
};
use thiserror::Error;

pub use self::files::ClientConfig;
use self::files::Origin;
pub(crate) use self::files::ServerVerification;
use super::{KubeClientConfig, Product};

/// The error of the configuration of a client. No variant contains a credential.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientConfigError {
    /// The kubeconfig could not be read or parsed.
    #[error("--{flag}={}: {reason}", path.display())]
    Kubeconfig {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason, without any content of the file except names.
        reason: String,
    },
    /// `--master` is not an address.
    #[error("--master={value}: {reason}")]
    Master {
        /// The value of the flag, without credentials.
        value: String,
        /// The problem with it.
        reason: &'static str,
    },
    /// The environment names a proxy that cannot be used.
    #[error("{variable} is not the address of a proxy, such as http://proxy.example.org:3128")]
    Proxy {
        /// The environment variable.
        variable: &'static str,
    },
    /// Neither flag is set, and the process does not run in a pod with a ServiceAccount.
    #[error(
        "neither --kubeconfig nor --master is set, and the pod's service account cannot be used: {reason}"
    )]
    InCluster {
        /// The missing part.
        reason: String,
    },
    /// The user agent contains characters that HTTP does not allow.
    #[error("user agent {value:?} is no HTTP header value")]
    UserAgent {
        /// The user agent.
        value: String,
    },
}

/// Returns the user agent of one client: `<binary>/<version> (<os>/<arch>)
/// kubernetes/<commit>/<client name>`, like client-go's.
pub fn user_agent(product: &Product, client_name: &str) -> String {
    format!(
        "{}/{} ({}) kubernetes/{}/{client_name}",
        product.binary,
        product.version,
        platform(),
        product.commit
    )
}

/// Returns the system and architecture of this build, such as `linux/amd64`. These are Go's names,
/// so that audit logs and flow-control rules that use them still match.
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
/// With a kubeconfig, its current context is used, and `master` overrides the address there. With
/// `master` alone there are no credentials. With neither, the pod's ServiceAccount is used.
///
/// As in client-go, the API server is reached through the kubeconfig's proxy (`proxy-url`), or
/// otherwise through the proxy from the environment (`HTTPS_PROXY`, `NO_PROXY` and so on).
///
/// Files with certificates, keys and tokens are read again while the client is used; the kubeconfig
/// itself is not.
///
/// # Errors
///
/// Names the flag or file and what failed; never a credential.
pub async fn load(
    config: &KubeClientConfig,
    product: &Product,
    client_name: &str,
) -> Result<ClientConfig, ClientConfigError> {
    let master = master_uri(&config.master, "http")?;
    let mut client = if let Some(path) = &config.kubeconfig {
        from_file("kubeconfig", path, &config.master).await?
    } else if let Some(uri) = master {
        ClientConfig::without_files(with_proxy_of_environment(kube::Config::new(uri))?)
    } else {
        let config = kube::Config::incluster()
            .map_err(|error| ClientConfigError::InCluster { reason: error.to_string() })?;
        in_cluster(config)?
    };
    let agent = user_agent(product, client_name);
    let header =
        HeaderValue::from_str(&agent).map_err(|_| ClientConfigError::UserAgent { value: agent })?;
    client.kube.headers.push((header::USER_AGENT, header));
    // Within a cluster's network, compression costs the API server more than it saves.
    client.kube.disable_compression = true;
    Ok(client)
}

/// Loads the configuration of an optional client: the kubeconfig of `flag` if it is set, otherwise
/// the pod's ServiceAccount, otherwise none. Outside a pod nothing is logged; in a pod it is logged
/// why the ServiceAccount cannot be used.
///
/// # Errors
///
/// Names the flag and file and what failed; never a credential.
pub async fn load_optional(
    flag: &'static str,
    path: Option<&Path>,
) -> Result<Option<ClientConfig>, ClientConfigError> {
    let mut client = match path {
        Some(path) => from_file(flag, path, "").await?,
        None => match kube::Config::incluster() {
            Ok(client) => in_cluster(client)?,
            Err(InClusterError::ReadEnvironmentVariable(_)) => return Ok(None),
            Err(error) => {
                tracing::warn!(%error, "--{flag} is not set, and the pod's service account cannot be used");
                return Ok(None);
            }
        },
    };
    client.kube.disable_compression = true;
    Ok(Some(client))
}

fn in_cluster(config: kube::Config) -> Result<ClientConfig, ClientConfigError> {
    let name = "the pod's service account".to_owned();
    let origin = Origin { source: name.clone(), cluster: name.clone(), user: name };
    ClientConfig::new(with_proxy_of_environment(config)?, origin)
        .map_err(|error| ClientConfigError::InCluster { reason: error.to_string() })
}

/// Loads the configuration from the kubeconfig that `flag` names.
async fn from_file(
    flag: &'static str,
    path: &Path,
    master: &str,
) -> Result<ClientConfig, ClientConfigError> {
    let error =
        |reason: String| ClientConfigError::Kubeconfig { flag, path: path.to_owned(), reason };
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(|cause| error(describe(&cause)))?;
    if let Some(uri) = master_uri(master, "https")? {
        for cluster in clusters_mut(&mut kubeconfig) {
            cluster.server = Some(uri.to_string());
        }
    }
    // kube drops these values of the kubeconfig, or handles them differently.
    let current = current_context(&kubeconfig);
    let proxy_url = current.proxy_url().map(str::to_owned);
    let ca_bundle = current.ca_bundle();
    let origin = current.origin(format!("--{flag}={}", path.display()));
    // kube also reads the environment's proxy variables, but by other rules.
    for cluster in clusters_mut(&mut kubeconfig) {
        cluster.proxy_url = None;
    }
    let mut client =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(|cause| error(describe(&cause)))?;
    client.root_cert_file = ca_bundle;
    match proxy_url {
        None => client = with_proxy_of_environment(client)?,
        Some(url) => {
            let proxy = url.parse().ok().filter(connect::is_proxy);
            client.proxy_url = Some(proxy.ok_or_else(|| error(INVALID_PROXY_URL.to_owned()))?);
        }
    }
    check_values(&client).map_err(|reason| error(reason.to_owned()))?;
    ClientConfig::new(client, origin).map_err(|unusable| error(unusable.to_string()))
}

const INVALID_PROXY_URL: &str =
    "has a proxy-url that is no address of a proxy, such as http://proxy.example.org:3128";

/// Checks the values of a kubeconfig that kube accepts but that cannot be used. Addresses are
/// logged, and one of them is a label of metrics.
fn check_values(client: &kube::Config) -> Result<(), &'static str> {
    let authority = client.cluster_url.authority();
    if authority.is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("must not have credentials in the address of its server");
    }
    if !is_header(&client.auth_info) {
        return Err(
            "has a token that cannot be sent: it has a line break or another character that HTTP does not allow",
        );
    }
    Ok(())
}

fn clusters_mut(kubeconfig: &mut Kubeconfig) -> impl Iterator<Item = &mut Cluster> {
    kubeconfig
        .clusters
        .iter_mut()
        .filter_map(|named| named.cluster.as_mut())
}

/// The current context of a kubeconfig and its cluster, as far as they exist.
struct CurrentContext<'a> {
    context: Option<&'a Context>,
    cluster: Option<&'a Cluster>,
}

fn current_context(kubeconfig: &Kubeconfig) -> CurrentContext<'_> {
    let name = kubeconfig.current_context.as_deref();
    let context = kubeconfig
        .contexts
        .iter()
        .find(|context| Some(context.name.as_str()) == name)
        .and_then(|named| named.context.as_ref());
    let cluster_name = context.map(|context| context.cluster.as_str());
    let cluster = kubeconfig
        .clusters
        .iter()
        .find(|cluster| Some(cluster.name.as_str()) == cluster_name)
        .and_then(|named| named.cluster.as_ref());
    CurrentContext { context, cluster }
}

impl<'a> CurrentContext<'a> {
    fn proxy_url(&self) -> Option<&'a str> {
        let proxy_url = self.cluster?.proxy_url.as_deref()?;
        Some(proxy_url).filter(|url| !url.is_empty())
    }

    /// Returns the path of the CA bundle, unless the bundle is in-line.
    fn ca_bundle(&self) -> Option<PathBuf> {
        let cluster = self.cluster?;
        if cluster.certificate_authority_data.is_some() {
            return None;
        }
        cluster.certificate_authority.as_ref().map(PathBuf::from)
    }

    /// Returns the names for log messages about files of this context.
    fn origin(&self, source: String) -> Origin {
        let cluster = self.context.map_or("", |context| context.cluster.as_str());
        let user = self
            .context
            .and_then(|context| context.user.as_deref())
            .unwrap_or_default();
        Origin {
            source,
            cluster: format!("cluster {cluster:?}"),
            user: format!("user {user:?}"),
        }
    }
}

fn with_proxy_of_environment(mut client: kube::Config) -> Result<kube::Config, ClientConfigError> {
    client.proxy_url = proxy_for(&client.cluster_url, |name| std::env::var(name).ok())?;
    Ok(client)
}

/// Returns the proxy from the environment for a destination, by the rules of Go's
/// `http.ProxyFromEnvironment`: chosen by the destination's scheme, except for this host and for
/// the entries of `NO_PROXY`.
fn proxy_for(
    destination: &Uri,
    variable: impl Fn(&'static str) -> Option<String>,
) -> Result<Option<Uri>, ClientConfigError> {
    let is_https = destination.scheme_str() == Some("https");
    let (names, default_port) = if is_https {
        (["HTTPS_PROXY", "https_proxy"], 443)
    } else {
        (["HTTP_PROXY", "http_proxy"], 80)
    };
    let Some((proxy_variable, proxy)) = first_set(&variable, names) else {
        return Ok(None);
    };
    let host = destination
        .host()
        .unwrap_or_default()
        .trim_matches(['[', ']']);
    let port = destination.port_u16().unwrap_or(default_port);
    if is_this_host(host) {
        return Ok(None);
    }
    if let Some((_, entries)) = first_set(&variable, ["NO_PROXY", "no_proxy"])
        && entries
            .split(',')
            .any(|entry| excludes(entry.trim(), host, port))
    {
        return Ok(None);
    }
    let url = if proxy.contains("://") {
        proxy
    } else {
        format!("http://{proxy}")
    };
    match url.parse().ok().filter(connect::is_proxy) {
        Some(proxy) => Ok(Some(proxy)),
        None => Err(ClientConfigError::Proxy { variable: proxy_variable }),
    }
}

/// Returns the first of the environment variables that is set and not empty, with its value.
fn first_set(
    variable: impl Fn(&'static str) -> Option<String>,
    names: [&'static str; 2],
) -> Option<(&'static str, String)> {
    for name in names {
        if let Some(value) = variable(name).filter(|value| !value.is_empty()) {
            return Some((name, value));
        }
    }
    None
}

fn is_this_host(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Returns true if an entry of `NO_PROXY` excludes a host. An entry is `*`, a network, an address,
/// or a domain with its subdomains (only the subdomains if it begins with a dot). Addresses and
/// domains may have a port.
fn excludes(entry: &str, host: &str, port: u16) -> bool {
    if entry.is_empty() || entry == "*" {
        return entry == "*";
    }
    let address = host.parse::<IpAddr>().ok();
    if let Ok(network) = entry.parse::<IpNet>() {
        return address.is_some_and(|address| network.contains(&address));
    }
    // An IPv6 address contains colons itself, and needs brackets before a port.
    let (name, entry_port) = match entry.rsplit_once(':') {
        Some((name, entry_port)) if !name.contains(':') || name.ends_with(']') => {
            (name, Some(entry_port))
        }
        _ => (entry, None),
    };
    if entry_port.is_some_and(|entry_port| entry_port.parse() != Ok(port)) {
        return false;
    }
    let name = name.trim_matches(['[', ']']).to_ascii_lowercase();
    let name = name
        .strip_prefix('*')
        .filter(|rest| rest.starts_with('.'))
        .unwrap_or(&name);
    if let Ok(excluded) = name.parse::<IpAddr>() {
        return address == Some(excluded);
    }
    let host = host.to_ascii_lowercase();
    match name.strip_prefix('.') {
        Some(_) => host.ends_with(name),
        None => host
            .strip_suffix(name)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
    }
}

/// Returns true if the token, if there is one, can be sent in a header. The client panics on a
/// token that cannot.
fn is_header(user: &kube::config::AuthInfo) -> bool {
    // kube exposes the token only through serialization.
    let user = serde_json::to_value(user).unwrap_or_default();
    user["token"]
        .as_str()
        .is_none_or(|token| HeaderValue::from_str(token).is_ok())
}

/// Returns what failed. A parser's own message may quote the file, including a token, so only the
/// position is reported.
fn describe(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(cause, _) => format!("cannot be read: {cause}"),
        KubeconfigError::Parse(cause) => match cause.location() {
            Some(position) => {
                format!("is no kubeconfig: line {}, column {}", position.line(), position.column())
            }
            None => "is no kubeconfig".to_owned(),
        },
        KubeconfigError::LoadClusterOfContext(name) => {
            format!("has no cluster {name:?}, which the context names")
        }
        KubeconfigError::LoadContext(name) => format!("has no context {name:?}"),
        KubeconfigError::CurrentContextNotSet => "sets no current-context".to_owned(),
        KubeconfigError::LoadCertificateAuthority(cause) => {
            format!("certificate authority: {cause}")
        }
        KubeconfigError::LoadClientCertificate(cause) => format!("client certificate: {cause}"),
        KubeconfigError::LoadClientKey(cause) => format!("client key: {cause}"),
        other => other.to_string(),
    }
}

/// The problem with the value of `--master`, without a password that it may contain.
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

/// Returns the address of `--master`, if it is set. An address without scheme gets `scheme`, as in
/// client-go.
pub(super) fn master_uri(value: &str, scheme: &str) -> Result<Option<Uri>, MasterError> {
    if value.is_empty() {
        return Ok(None);
    }
    if let Some((_, host)) = value.rsplit_once('@') {
        return Err(MasterError {
            shown: format!("<redacted>@{host}"),
            reason: "must not contain credentials",
        });
    }
    let url = if value.contains("://") {
        value.to_owned()
    } else {
        format!("{scheme}://{value}")
    };
    let uri: Uri = url.parse().map_err(|_| MasterError {
        shown: value.to_owned(),
        reason: "must be an address such as https://host:6443",
    })?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(MasterError {
            shown: value.to_owned(),
            reason: "must be an http or https address",
        });
    }
    Ok(Some(uri))
}

#[cfg(test)]
mod tests;
