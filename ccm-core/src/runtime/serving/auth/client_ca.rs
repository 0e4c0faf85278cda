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

use super::{AuthError, UserInfo, request_header::RequestHeaders, reviews::ReviewClient, x509::CaBundle};
use crate::{
    config::AuthenticationConfig,
    error::chain,
    runtime::api::{ApiErrorKind, ApiRequest},
};

/// Where a kube-apiserver tells how it recognises clients.
pub(super) const CONFIG_MAP: &str = "kube-system/extension-apiserver-authentication";
const CONFIG_MAP_PATH: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
/// How often CAs are read again; upstream looks at them as often, besides its watch.
const PERIOD: Duration = Duration::from_secs(60);
/// How soon a certificate that was not accepted may have them read again, so that no caller can have us ask all the time.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(10);

/// Whose certificates are believed, and kept fresh.
#[derive(Debug)]
pub(super) struct DynamicClientCa {
    clients: CaSource,
    proxies: CaSource,
    flags: ProxyFlags,
    cluster: Option<ReviewClient>,
    bundle: RwLock<Arc<ClientCaBundle>>,
    refresh_requested: Notify,
}

/// Where a bundle of CAs comes from.
#[derive(Debug, PartialEq, Eq)]
enum CaSource {
    Unset,
    File { flag: &'static str, path: PathBuf },
    Cluster,
}

/// What the flags say about proxies; for a CA out of the cluster, the cluster says it.
#[derive(Debug)]
struct ProxyFlags {
    allowed_names: Vec<String>,
    headers: RequestHeaders,
}

/// Whose certificates are believed at the moment.
#[derive(Debug, Default)]
pub(super) struct ClientCaBundle {
    /// CAs of clients.
    pub(super) clients: Option<Arc<CaBundle>>,
    /// Proxies.
    pub(super) proxies: Option<Arc<FrontProxies>>,
}

/// Proxies that may tell the user in headers.
#[derive(Debug)]
pub(super) struct FrontProxies {
    anchors: Arc<CaBundle>,
    allowed_names: Vec<String>,
    headers: RequestHeaders,
}

impl FrontProxies {
    /// Reads the user off the headers if the peer is such a proxy; `None` if they name nobody.
    pub(super) fn user_info(
        &self,
        peer: &[CertificateDer<'static>],
        headers: &HeaderMap,
        now: UnixTime,
    ) -> Result<Option<UserInfo>, String> {
        let subject = self.anchors.verify(peer, now)?;
        let name = &subject.common_name;
        // An empty entry must not let in whoever has no name.
        let allowed = self.allowed_names.is_empty() || (!name.is_empty() && self.allowed_names.contains(name));
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

    /// Whose certificates are believed at the moment.
    pub(super) fn current(&self) -> Arc<ClientCaBundle> {
        Arc::clone(&self.bundle.read())
    }

    /// Has the CAs read again soon, because a certificate was not accepted: its CA may be new.
    pub(super) fn request_refresh(&self) {
        self.refresh_requested.notify_one();
    }

    /// Reads files and ConfigMap. What cannot be read or understood stays as it was, as upstream; what is there no more is
    /// believed no more.
    pub(super) async fn refresh(&self) -> Vec<AuthError> {
        let (old, mut problems) = (self.current(), Vec::new());
        let cluster = self.read_config_map().await;
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
        let old_proxies = old.proxies.as_ref().map(|proxies| &proxies.anchors);
        let proxies = match &self.proxies {
            CaSource::Unset => Ok(None),
            CaSource::File { flag, path } => file(flag, path, old_proxies).await.map(|anchors| {
                let ProxyFlags { allowed_names, headers } = &self.flags;
                let (allowed_names, headers) = (allowed_names.clone(), headers.clone());
                Some(Arc::new(FrontProxies { anchors, allowed_names, headers }))
            }),
            CaSource::Cluster => match &cluster {
                Some(Ok(data)) => cluster_proxies(data, old_proxies),
                _ => Ok(old.proxies.clone()),
            },
        };
        if let Some(Err(error)) = cluster {
            problems.push(error);
        }
        let mut keep = |error| problems.push(error);
        let new = ClientCaBundle {
            clients: clients.map_err(&mut keep).unwrap_or_else(|()| old.clients.clone()),
            proxies: proxies.map_err(&mut keep).unwrap_or_else(|()| old.proxies.clone()),
        };
        *self.bundle.write() = Arc::new(new);
        problems
    }

    /// Keeps the CAs fresh until `stop`.
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
            let Some(problems) = stop.run_until_cancelled(self.refresh()).await else { return };
            for problem in problems {
                tracing::warn!(error = %chain(&problem), "CAs of clients cannot be read again; the last ones stay");
            }
        }
    }

    /// The data of the cluster's ConfigMap, empty if there is none; `None` if nobody needs it.
    async fn read_config_map(&self) -> Option<Result<BTreeMap<String, String>, AuthError>> {
        if self.clients != CaSource::Cluster && self.proxies != CaSource::Cluster {
            return None;
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct ConfigMap {
            data: BTreeMap<String, String>,
        }
        let read = self.cluster.as_ref()?.send_with_retries(&ApiRequest::get(CONFIG_MAP_PATH), None).await;
        Some(match read.and_then(|answer| answer.json::<ConfigMap>()) {
            Ok(map) => Ok(map.data),
            Err(error) if *error.kind() == ApiErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(AuthError::Lookup(error)),
        })
    }
}

async fn file(flag: &'static str, path: &Path, old: Option<&Arc<CaBundle>>) -> Result<Arc<CaBundle>, AuthError> {
    let wrong = |reason: String| AuthError::Flag { flag, value: path.display().to_string(), reason };
    let pem = tokio::fs::read(path).await.map_err(|error| wrong(error.to_string()))?;
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
        Some(pem) => reuse(pem.as_bytes(), old).map(Some).map_err(|reason| AuthError::ConfigMap { key, reason }),
    }
}

/// Proxies as the cluster has them: its CA, its header names, the names it allows.
fn cluster_proxies(
    data: &BTreeMap<String, String>,
    old: Option<&Arc<CaBundle>>,
) -> Result<Option<Arc<FrontProxies>>, AuthError> {
    let Some(anchors) = anchors(data, "requestheader-client-ca-file", old)? else { return Ok(None) };
    let list = |key: &'static str| match data.get(key).map(String::as_str) {
        None | Some("") => Ok(Vec::new()),
        Some(text) => serde_json::from_str::<Vec<String>>(text)
            .map_err(|error| AuthError::ConfigMap { key, reason: format!("is no list of texts: {error}") }),
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
