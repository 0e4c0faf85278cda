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

/// ConfigMap in which a kube-apiserver publishes how it authenticates clients.
pub(super) const CONFIG_MAP: &str = "kube-system/extension-apiserver-authentication";
const CONFIG_MAP_PATH: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
/// How often CAs are read again. Upstream polls them as often, in addition to its watch.
const PERIOD: Duration = Duration::from_secs(60);
/// Minimum interval between refreshes that rejected certificates cause, so that no client can cause
/// constant requests.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(10);

/// CAs of clients and front proxies, which are refreshed at runtime.
#[derive(Debug)]
pub(super) struct DynamicClientCa {
    clients: CaSource,
    proxies: CaSource,
    flags: ProxyFlags,
    cluster: Option<ReviewClient>,
    bundle: RwLock<Arc<ClientCaBundle>>,
    refresh_requested: Notify,
}

/// Source of a CA bundle.
#[derive(Debug, PartialEq, Eq)]
enum CaSource {
    Unset,
    File { flag: &'static str, path: PathBuf },
    Cluster,
}

/// Settings of the proxy flags. For a proxy CA from the cluster, the ConfigMap has these settings
/// instead.
#[derive(Debug)]
struct ProxyFlags {
    allowed_names: Vec<String>,
    headers: RequestHeaders,
}

/// The currently trusted CAs.
#[derive(Debug, Default)]
pub(super) struct ClientCaBundle {
    /// CAs of client certificates.
    pub(super) clients: Option<Arc<CaBundle>>,
    /// Front proxies.
    pub(super) proxies: Option<Arc<FrontProxies>>,
}

/// Proxies that may name the user in headers.
#[derive(Debug)]
pub(super) struct FrontProxies {
    anchors: Arc<CaBundle>,
    allowed_names: Vec<String>,
    headers: RequestHeaders,
}

impl FrontProxies {
    /// Parses the user from the headers if the peer is such a proxy; `None` if they name no user.
    pub(super) fn user_info(
        &self,
        peer: &[CertificateDer<'static>],
        headers: &HeaderMap,
        now: UnixTime,
    ) -> Result<Option<UserInfo>, String> {
        let subject = self.anchors.verify(peer, now)?;
        let name = &subject.common_name;
        // An empty entry must not match a certificate without a common name.
        let allowed = self.allowed_names.is_empty()
            || (!name.is_empty() && self.allowed_names.contains(name));
        if !allowed {
            return Err(format!("common name {name:?} is none of a proxy"));
        }
        self.headers.user_info(headers).map_err(str::to_owned)
    }
}

impl DynamicClientCa {
    pub(super) fn new(config: &AuthenticationConfig, cluster: Option<ReviewClient>) -> Self {
        let source = |flag, file: &Option<PathBuf>| match file {
            Some(path) => CaSource::File { flag, path: path.clone() },
            None if !config.skip_lookup && cluster.is_some() => CaSource::Cluster,
            None => CaSource::Unset,
        };
        Self {
            clients: source("client-ca-file", &config.client_ca_file),
            proxies: source("requestheader-client-ca-file", &config.requestheader_client_ca_file),
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

    /// Requests a refresh soon, because a certificate was not accepted: its CA may be new.
    pub(super) fn request_refresh(&self) {
        self.refresh_requested.notify_one();
    }

    /// Reads files and ConfigMap. If something cannot be read or parsed, its previous value stays,
    /// as upstream; if it was removed, it is no longer trusted.
    pub(super) async fn refresh(&self) -> Vec<AuthError> {
        let old = self.current();
        let mut problems = Vec::new();
        let cluster = self.read_config_map().await;
        // First, the CAs of client certificates.
        let clients = match &self.clients {
            CaSource::Unset => Ok(None),
            CaSource::File { flag, path } => file(flag, path, old.clients.as_ref()).await.map(Some),
            CaSource::Cluster => cluster.as_ref().map_or_else(
                || Ok(old.clients.clone()),
                |data| match data {
                    Ok(data) => anchors(data, "client-ca-file", old.clients.as_ref()),
                    Err(_) => Ok(old.clients.clone()),
                },
            ),
        };
        // Then the front proxies.
        let old_proxies = old.proxies.as_ref().map(|proxies| &proxies.anchors);
        let proxies = match &self.proxies {
            CaSource::Unset => Ok(None),
            CaSource::File { flag, path } => file(flag, path, old_proxies).await.map(|anchors| {
                let ProxyFlags { allowed_names, headers } = &self.flags;
                let allowed_names = allowed_names.clone();
                let headers = headers.clone();
                Some(Arc::new(FrontProxies { anchors, allowed_names, headers }))
            }),
            CaSource::Cluster => match &cluster {
                Some(Ok(data)) => cluster_proxies(data, old_proxies),
                _ => Ok(old.proxies.clone()),
            },
        };
        // Finally, collect the errors and replace the bundle.
        if let Some(Err(error)) = cluster {
            problems.push(error);
        }
        let mut keep = |error| problems.push(error);
        let new = ClientCaBundle {
            clients: clients
                .map_err(&mut keep)
                .unwrap_or_else(|()| old.clients.clone()),
            proxies: proxies
                .map_err(&mut keep)
                .unwrap_or_else(|()| old.proxies.clone()),
        };
        *self.bundle.write() = Arc::new(new);
        problems
    }

    /// Keeps the CAs up to date until `stop`.
    pub(super) async fn run(&self, stop: &CancellationToken) {
        let mut last = Instant::now();
        let due = |last: Instant| async move {
            tokio::select! {
                () = tokio::time::sleep_until(last + PERIOD) => (),
                () = self.refresh_requested.notified() => tokio::time::sleep_until(last + MIN_REFRESH_INTERVAL).await,
            }
        };
        while stop.run_until_cancelled(due(last)).await.is_some() {
            last = Instant::now();
            let Some(problems) = stop.run_until_cancelled(self.refresh()).await else {
                return;
            };
            for problem in problems {
                tracing::warn!(error = %chain(&problem), "CAs of clients cannot be read again; the last ones stay");
            }
        }
    }

    /// Returns the data of the cluster's ConfigMap, empty if it does not exist; `None` if it is not
    /// needed.
    async fn read_config_map(&self) -> Option<Result<BTreeMap<String, String>, AuthError>> {
        if self.clients != CaSource::Cluster && self.proxies != CaSource::Cluster {
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

async fn file(
    flag: &'static str,
    path: &Path,
    old: Option<&Arc<CaBundle>>,
) -> Result<Arc<CaBundle>, AuthError> {
    let wrong =
        |reason: String| AuthError::Flag { flag, value: path.display().to_string(), reason };
    let pem = tokio::fs::read(path)
        .await
        .map_err(|error| wrong(error.to_string()))?;
    reuse(&pem, old).map_err(wrong)
}

fn reuse(pem: &[u8], old: Option<&Arc<CaBundle>>) -> Result<Arc<CaBundle>, String> {
    match old {
        Some(old) if old.is_of(pem) => Ok(Arc::clone(old)),
        _ => CaBundle::parse(pem).map(Arc::new),
    }
}

fn anchors(
    data: &BTreeMap<String, String>,
    key: &'static str,
    old: Option<&Arc<CaBundle>>,
) -> Result<Option<Arc<CaBundle>>, AuthError> {
    match data.get(key) {
        None => Ok(None),
        Some(pem) if pem.is_empty() => Ok(None),
        Some(pem) => reuse(pem.as_bytes(), old)
            .map(Some)
            .map_err(|reason| AuthError::ConfigMap { key, reason }),
    }
}

/// Front proxies as the cluster's ConfigMap configures them: their CA, header names and allowed
/// names.
fn cluster_proxies(
    data: &BTreeMap<String, String>,
    old: Option<&Arc<CaBundle>>,
) -> Result<Option<Arc<FrontProxies>>, AuthError> {
    let Some(anchors) = anchors(data, "requestheader-client-ca-file", old)? else {
        return Ok(None);
    };
    let list = |key: &'static str| match data.get(key).map(String::as_str) {
        None | Some("") => Ok(Vec::new()),
        Some(text) => serde_json::from_str::<Vec<String>>(text).map_err(|error| {
            AuthError::ConfigMap { key, reason: format!("is no list of texts: {error}") }
        }),
    };
    let headers = RequestHeaders {
        names: list("requestheader-username-headers")?,
        uids: list("requestheader-uid-headers")?,
        groups: list("requestheader-group-headers")?,
        extra: list("requestheader-extra-headers-prefix")?,
    };
    let allowed_names = list("requestheader-allowed-names")?;
    Ok(Some(Arc::new(FrontProxies { anchors, allowed_names, headers })))
}
