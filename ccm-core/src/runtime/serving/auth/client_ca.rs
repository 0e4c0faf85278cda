//! Keeps the CAs that verify client certificates and front proxies up to date.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::HeaderMap;
use parking_lot::RwLock;
use rustls::pki_types::{CertificateDer, UnixTime};
use serde::Deserialize;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    AuthError, UserInfo, request_header::RequestHeaders, reviews::ReviewClient, x509::CaBundle,
};
use crate::{
    config::AuthenticationConfig,
    error::chain,
    runtime::api::{ApiErrorKind, ApiRequest},
};

/// The ConfigMap in which a kube-apiserver publishes its client CAs and its front proxies.
pub(super) const CONFIG_MAP: &str = "kube-system/extension-apiserver-authentication";
const CONFIG_MAP_PATH: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
/// The interval between two refreshes. k8s.io/apiserver polls at the same interval, in addition to
/// its watch.
const REFRESH_PERIOD: Duration = Duration::from_secs(60);
/// The minimum interval between two refreshes. It stops a client with a rejected certificate from
/// causing constant requests.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(10);

/// The CAs of clients and front proxies, which are refreshed at runtime.
#[derive(Debug)]
pub(super) struct DynamicClientCa {
    clients: CaSource,
    proxies: CaSource,
    flags: ProxyFlags,
    cluster: Option<ReviewClient>,
    bundle: RwLock<Arc<ClientCaBundle>>,
    refresh_requested: Notify,
}

/// Where a CA bundle comes from.
#[derive(Debug, PartialEq, Eq)]
enum CaSource {
    /// No CA is configured, and there is no cluster to ask.
    Unset,
    /// The file that this flag names.
    File { flag: &'static str, path: PathBuf },
    /// The ConfigMap of the cluster.
    ConfigMap,
}

impl CaSource {
    fn new(flag: &'static str, file: Option<&PathBuf>, reads_config_map: bool) -> Self {
        match file {
            Some(path) => Self::File { flag, path: path.clone() },
            None if reads_config_map => Self::ConfigMap,
            None => Self::Unset,
        }
    }
}

/// The values of the `--requestheader-*` flags. They apply to a proxy CA from a file. If the proxy
/// CA comes from the ConfigMap, these settings come from there too.
#[derive(Debug)]
struct ProxyFlags {
    allowed_names: Vec<String>,
    headers: RequestHeaders,
}

/// The currently trusted CAs.
#[derive(Debug, Default)]
pub(super) struct ClientCaBundle {
    /// The CAs of client certificates, or `None` if client certificates are not accepted.
    pub(super) clients: Option<Arc<CaBundle>>,
    /// The trusted front proxies, or `None` if there are none.
    pub(super) proxies: Option<Arc<FrontProxies>>,
}

/// The proxies that are trusted to name the user in request headers.
#[derive(Debug)]
pub(super) struct FrontProxies {
    ca: Arc<CaBundle>,
    allowed_names: Vec<String>,
    headers: RequestHeaders,
}

impl FrontProxies {
    /// Verifies that the peer is a trusted proxy, and returns the user that its headers name. Returns
    /// `None` if they name no user.
    ///
    /// # Errors
    /// Explains why the peer is not trusted, or why its headers are invalid.
    pub(super) fn user_info(
        &self,
        peer: &[CertificateDer<'static>],
        headers: &HeaderMap,
        now: UnixTime,
    ) -> Result<Option<UserInfo>, String> {
        let subject = self.ca.verify(peer, now)?;
        let name = &subject.common_name;
        // An empty entry must not match a certificate without a common name.
        let allowed = self.allowed_names.is_empty()
            || (!name.is_empty() && self.allowed_names.contains(name));
        if !allowed {
            return Err(format!("common name {name:?} is not allowed for a proxy"));
        }
        self.headers.user_info(headers).map_err(str::to_owned)
    }
}

impl DynamicClientCa {
    pub(super) fn new(config: &AuthenticationConfig, cluster: Option<ReviewClient>) -> Self {
        let reads_config_map = !config.skip_lookup && cluster.is_some();
        let clients_file = config.client_ca_file.as_ref();
        let proxies_file = config.requestheader_client_ca_file.as_ref();
        Self {
            clients: CaSource::new("client-ca-file", clients_file, reads_config_map),
            proxies: CaSource::new("requestheader-client-ca-file", proxies_file, reads_config_map),
            flags: ProxyFlags {
                allowed_names: config.requestheader_allowed_names.clone(),
                headers: RequestHeaders {
                    names: config.requestheader_username_headers.clone(),
                    uids: config.requestheader_uid_headers.clone(),
                    groups: config.requestheader_group_headers.clone(),
                    extra: config.requestheader_extra_headers_prefix.clone(),
                },
            },
            cluster,
            bundle: RwLock::default(),
            refresh_requested: Notify::new(),
        }
    }

    /// Returns the currently trusted CAs.
    pub(super) fn current(&self) -> Arc<ClientCaBundle> {
        Arc::clone(&self.bundle.read())
    }

    /// Requests an early refresh. Called after a certificate was rejected, since its CA may be new.
    pub(super) fn request_refresh(&self) {
        self.refresh_requested.notify_one();
    }

    /// Reads the files and the ConfigMap, and returns the errors. A CA that cannot be read or parsed
    /// keeps its previous value, as in k8s.io/apiserver. A CA that was removed is no longer trusted.
    pub(super) async fn refresh(&self) -> Vec<AuthError> {
        let old = self.current();
        let mut errors = Vec::new();
        let config_map = match self.read_config_map().await {
            Some(Ok(config_map)) => Some(config_map),
            Some(Err(error)) => {
                errors.push(error);
                None
            }
            None => None,
        };
        let clients = match self.read_clients(config_map.as_ref(), &old).await {
            Ok(clients) => clients,
            Err(error) => {
                errors.push(error);
                old.clients.clone()
            }
        };
        let proxies = match self.read_proxies(config_map.as_ref(), &old).await {
            Ok(proxies) => proxies,
            Err(error) => {
                errors.push(error);
                old.proxies.clone()
            }
        };
        *self.bundle.write() = Arc::new(ClientCaBundle { clients, proxies });
        errors
    }

    /// Reads the CAs of client certificates.
    async fn read_clients(
        &self,
        config_map: Option<&BTreeMap<String, String>>,
        old: &ClientCaBundle,
    ) -> Result<Option<Arc<CaBundle>>, AuthError> {
        let old_ca = old.clients.as_ref();
        match &self.clients {
            CaSource::Unset => Ok(None),
            CaSource::File { flag, path } => read_file(flag, path, old_ca).await.map(Some),
            CaSource::ConfigMap => match config_map {
                Some(config_map) => config_map_ca(config_map, "client-ca-file", old_ca),
                None => Ok(old.clients.clone()),
            },
        }
    }

    /// Reads the CAs of front proxies.
    async fn read_proxies(
        &self,
        config_map: Option<&BTreeMap<String, String>>,
        old: &ClientCaBundle,
    ) -> Result<Option<Arc<FrontProxies>>, AuthError> {
        let old_ca = old.proxies.as_ref().map(|proxies| &proxies.ca);
        match &self.proxies {
            CaSource::Unset => Ok(None),
            CaSource::File { flag, path } => Ok(Some(Arc::new(FrontProxies {
                ca: read_file(flag, path, old_ca).await?,
                allowed_names: self.flags.allowed_names.clone(),
                headers: self.flags.headers.clone(),
            }))),
            CaSource::ConfigMap => match config_map {
                Some(config_map) => config_map_proxies(config_map, old_ca),
                None => Ok(old.proxies.clone()),
            },
        }
    }

    /// Keeps the CAs up to date until `stop`.
    pub(super) async fn run(&self, stop: &CancellationToken) {
        let mut last_refresh = Instant::now();
        while stop
            .run_until_cancelled(self.refresh_due(last_refresh))
            .await
            .is_some()
        {
            last_refresh = Instant::now();
            let Some(errors) = stop.run_until_cancelled(self.refresh()).await else {
                return;
            };
            for error in errors {
                tracing::warn!(error = %chain(&error), "failed to refresh the client CAs; the previous ones stay in use");
            }
        }
    }

    /// Waits until the next refresh is due: after the period, or earlier if one was requested.
    async fn refresh_due(&self, last_refresh: Instant) {
        tokio::select! {
            () = tokio::time::sleep_until(last_refresh + REFRESH_PERIOD) => {}
            () = self.refresh_requested.notified() => {
                tokio::time::sleep_until(last_refresh + MIN_REFRESH_INTERVAL).await;
            }
        }
    }

    /// Reads the data of the cluster's ConfigMap, which is empty if there is no ConfigMap. Returns
    /// `None` if no CA comes from the ConfigMap.
    async fn read_config_map(&self) -> Option<Result<BTreeMap<String, String>, AuthError>> {
        if self.clients != CaSource::ConfigMap && self.proxies != CaSource::ConfigMap {
            return None;
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct ConfigMap {
            data: BTreeMap<String, String>,
        }
        let read = self
            .cluster
            .as_ref()?
            .send_with_retries(&ApiRequest::get(CONFIG_MAP_PATH), None)
            .await;
        Some(match read.and_then(|answer| answer.json::<ConfigMap>()) {
            Ok(map) => Ok(map.data),
            Err(error) if *error.kind() == ApiErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(AuthError::Lookup(error)),
        })
    }
}

async fn read_file(
    flag: &'static str,
    path: &Path,
    old: Option<&Arc<CaBundle>>,
) -> Result<Arc<CaBundle>, AuthError> {
    let ca = match tokio::fs::read(path).await {
        Ok(pem) => parse_or_reuse(&pem, old),
        Err(error) => Err(error.to_string()),
    };
    ca.map_err(|reason| AuthError::Flag { flag, value: path.display().to_string(), reason })
}

/// Parses a bundle. Returns the old one if the text is the same.
fn parse_or_reuse(pem: &[u8], old: Option<&Arc<CaBundle>>) -> Result<Arc<CaBundle>, String> {
    match old {
        Some(old) if old.is_of(pem) => Ok(Arc::clone(old)),
        _ => CaBundle::parse(pem).map(Arc::new),
    }
}

/// Parses the CA bundle under a key of the ConfigMap. Returns `None` if the key is missing or empty.
fn config_map_ca(
    data: &BTreeMap<String, String>,
    key: &'static str,
    old: Option<&Arc<CaBundle>>,
) -> Result<Option<Arc<CaBundle>>, AuthError> {
    match data.get(key) {
        None => Ok(None),
        Some(pem) if pem.is_empty() => Ok(None),
        Some(pem) => parse_or_reuse(pem.as_bytes(), old)
            .map(Some)
            .map_err(|reason| AuthError::ConfigMap { key, reason }),
    }
}

/// Parses the front proxies in the ConfigMap. Returns `None` if it has no proxy CA.
fn config_map_proxies(
    data: &BTreeMap<String, String>,
    old: Option<&Arc<CaBundle>>,
) -> Result<Option<Arc<FrontProxies>>, AuthError> {
    let Some(ca) = config_map_ca(data, "requestheader-client-ca-file", old)? else {
        return Ok(None);
    };
    let headers = RequestHeaders {
        names: config_map_list(data, "requestheader-username-headers")?,
        uids: config_map_list(data, "requestheader-uid-headers")?,
        groups: config_map_list(data, "requestheader-group-headers")?,
        extra: config_map_list(data, "requestheader-extra-headers-prefix")?,
    };
    let allowed_names = config_map_list(data, "requestheader-allowed-names")?;
    Ok(Some(Arc::new(FrontProxies { ca, allowed_names, headers })))
}

/// Parses the JSON list under a key of the ConfigMap. Returns an empty list if the key is missing or
/// empty.
fn config_map_list(
    data: &BTreeMap<String, String>,
    key: &'static str,
) -> Result<Vec<String>, AuthError> {
    match data.get(key).map(String::as_str) {
        None | Some("") => Ok(Vec::new()),
        Some(text) => serde_json::from_str(text).map_err(|error| AuthError::ConfigMap {
            key,
            reason: format!("is not a JSON list of strings: {error}"),
        }),
    }
}
