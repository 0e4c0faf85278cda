//! Discovers versions. Nova's microversion determines the fields of servers, and Octavia's version
//! the features that may be used.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use url::Url;

use super::{Session, catalog};
use crate::{
    api::{
        from_json,
        version::{Version, VersionDocument, number},
    },
    client::{Call, ErrorCause, OpenStackError, Service, SessionError, display_url::display_url},
};

/// A microversion of Nova, such as 2.69.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Microversion(pub u16, pub u16);

impl Microversion {
    /// Every Nova supports this one. Servers show only their flavor's ID.
    pub const BASE: Self = Self(2, 1);
    /// Servers show their flavor's name.
    pub const FLAVORS: Self = Self(2, 47);
    /// Lists contain servers in a cell that is down, with status `UNKNOWN`.
    pub const DOWN_CELLS: Self = Self(2, 69);
    /// Servers show their host name to everybody.
    pub const HOST_NAMES: Self = Self(2, 90);
}

impl fmt::Display for Microversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Microversion {
    fn read(text: Option<&str>) -> Option<Self> {
        number(text?).map(|(major, minor)| Self(major, minor))
    }
}

/// A version of Octavia's API, such as 2.27.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OctaviaVersion(pub u16, pub u16);

impl OctaviaVersion {
    /// Every Octavia supports this one. It has no optional features.
    pub const BASE: Self = Self(2, 0);
    /// Load balancers, listeners, pools and members have tags.
    pub const TAGS: Self = Self(2, 5);
}

impl fmt::Display for OctaviaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}", self.0, self.1)
    }
}

/// Discovered versions, each requested once for a URL. Nova's is requested again when Nova rejects it.
#[derive(Default)]
pub(super) struct DiscoveredVersions {
    compute: DiscoverOnce<Compute>,
    /// The newest microversion that Nova has listed in this process's life.
    newest_compute: Mutex<Option<Microversion>>,
    octavia: DiscoverOnce<OctaviaVersion>,
}

/// A value that is requested once, and cached for a URL.
struct DiscoverOnce<T> {
    cached: Mutex<Option<(Url, Arc<T>)>>,
    request_lock: AsyncMutex<()>,
}

impl<T> Default for DiscoverOnce<T> {
    fn default() -> Self {
        Self {
            cached: Mutex::new(None),
            request_lock: AsyncMutex::default(),
        }
    }
}

impl<T> DiscoverOnce<T> {
    fn cached(&self, endpoint: &Url) -> Option<Arc<T>> {
        match &*self.cached.lock() {
            Some((url, value)) if url == endpoint => Some(value.clone()),
            _ => None,
        }
    }

    /// Forgets the value if it `is_outdated`, so that the next caller requests it again.
    fn forget_if(&self, is_outdated: impl FnOnce(&T) -> bool) {
        self.cached.lock().take_if(|(_, value)| is_outdated(value));
    }

    async fn get<F>(
        &self,
        endpoint: &Url,
        request: impl FnOnce() -> F,
    ) -> Result<Arc<T>, OpenStackError>
    where
        F: Future<Output = Result<T, OpenStackError>>,
    {
        if let Some(value) = self.cached(endpoint) {
            return Ok(value);
        }
        let _guard = self.request_lock.lock().await;
        if let Some(value) = self.cached(endpoint) {
            return Ok(value);
        }
        let value = Arc::new(request().await?);
        *self.cached.lock() = Some((endpoint.clone(), value.clone()));
        Ok(value)
    }
}

/// Nova's URL and the microversion to use.
#[derive(Debug)]
pub(super) struct Compute {
    pub base: Url,
    pub version: Microversion,
}

impl Compute {
    /// Returns the old version header and the new one. Every release supports at least one of them.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if self.version > Microversion::BASE {
            let versions = [
                ("openstack-api-version", format!("compute {}", self.version)),
                ("x-openstack-nova-api-version", self.version.to_string()),
            ];
            for (name, value) in versions {
                if let Ok(value) = HeaderValue::from_str(&value) {
                    headers.insert(HeaderName::from_static(name), value);
                }
            }
        }
        headers
    }
}

/// Parses a version document.
fn read_versions(body: &[u8]) -> Result<Vec<Version>, String> {
    let document = serde_json::from_slice(body).and_then(from_json::<VersionDocument>);
    document
        .map(VersionDocument::into_versions)
        .map_err(|error| format!("the answer is no list of versions: {error}"))
}

impl Session {
    /// Returns the microversion of requests to Nova.
    ///
    /// # Errors
    /// Returns an error if Nova does not list its versions.
    pub async fn microversion(&self) -> Result<Microversion, OpenStackError> {
        let endpoint = self.endpoint(Service::Compute).await?;
        Ok(self.compute(&endpoint).await?.version)
    }

    /// Returns the newest version of Octavia's API.
    ///
    /// # Errors
    /// Returns an error if Octavia does not list its versions.
    pub async fn octavia(&self) -> Result<OctaviaVersion, OpenStackError> {
        let endpoint = self.endpoint(Service::LoadBalancer).await?;
        let version = self
            .versions
            .octavia
            .get(&endpoint, || self.discover_octavia(&endpoint))
            .await?;
        Ok(*version)
    }

    /// Returns true if the newest version of Octavia's API, as far as it was discovered, has tags.
    pub(in crate::client) fn has_octavia_tags(&self) -> bool {
        let cached = self.versions.octavia.cached.lock();
        cached
            .as_ref()
            .is_some_and(|(_, version)| **version >= OctaviaVersion::TAGS)
    }

    async fn discover_octavia(&self, endpoint: &Url) -> Result<OctaviaVersion, OpenStackError> {
        let url = with_slash(&catalog::split(endpoint).0);
        let Some(versions) = self.document(Call::VersionList, &url).await? else {
            let url = display_url(&url);
            tracing::warn!(
                url,
                "Octavia does not allow its versions to be listed, using no optional features: \
                 no tags, timeouts, flavors and availability zones"
            );
            return Ok(OctaviaVersion::BASE);
        };
        match versions.iter().filter_map(Version::number).max() {
            Some((major, minor)) => Ok(OctaviaVersion(major, minor)),
            None => Err(version_error(
                Call::VersionList,
                format!("{} lists no version", display_url(&url)),
            )),
        }
    }

    pub(super) async fn compute(&self, endpoint: &Url) -> Result<Arc<Compute>, OpenStackError> {
        self.versions
            .compute
            .get(endpoint, || self.discover_compute(endpoint))
            .await
    }

    /// Forgets the microversion of requests to Nova that was rejected, so that the next request
    /// discovers it again. One that was discovered since stays.
    pub(in crate::client) fn forget_microversion(&self, rejected: Microversion) {
        self.versions
            .compute
            .forget_if(|compute| compute.version == rejected);
    }

    /// Returns true if lists of servers lack those of cells that are down, and had them earlier in
    /// this process's life. Then a server that is not listed may exist. A Nova that was always too old
    /// to list them is not meant: nothing else would ever be known of it.
    ///
    /// # Errors
    /// Returns an error if Nova does not list its versions.
    pub async fn has_lost_down_cells(&self) -> Result<bool, OpenStackError> {
        let current = self.microversion().await?;
        let newest = *self.versions.newest_compute.lock();
        let had_them = newest.is_some_and(|newest| newest >= Microversion::DOWN_CELLS);
        Ok(had_them && current < Microversion::DOWN_CELLS)
    }

    async fn discover_compute(&self, endpoint: &Url) -> Result<Compute, OpenStackError> {
        let (root, version) = catalog::split(endpoint);
        let base = catalog::with_version(Service::Compute, endpoint);
        let mut url = with_slash(&root);
        if let Some(segment) = version.as_ref().and_then(|segments| segments.first())
            && let Ok(mut segments) = url.path_segments_mut()
        {
            segments.pop_if_empty().push(segment).push("");
        }
        let Some(versions) = self.document(Call::ComputeVersionGet, &url).await? else {
            let url = display_url(&url);
            // The oldest version is assumed at the start only. Later it would show less of servers
            // than was known of them.
            if let Some(before) = *self.versions.newest_compute.lock() {
                let message = format!(
                    "{before} was used and may not be supported any more, and {url} may not be read"
                );
                return Err(version_error(Call::ComputeVersionGet, message));
            }
            let version = Microversion::BASE;
            tracing::warn!(url, "Nova does not allow its versions to be listed, using {version}");
            return Ok(Compute { base, version });
        };
        // Nova calls the version of its legacy URL `/v2` v2.0. It has no microversions.
        let configured = match version.as_ref().and_then(|segments| segments.first()) {
            Some(segment) if segment == "v2" => "v2.0",
            Some(segment) => segment,
            None => "v2.1",
        };
        let found = versions
            .iter()
            .find(|version| version.id == configured)
            .or_else(|| versions.iter().find(|version| version.id == "v2.1"));
        let Some(found) = found else {
            let ids: Vec<&str> = versions.iter().map(|version| version.id.as_str()).collect();
            return Err(version_error(
                Call::ComputeVersionGet,
                format!("{} has no v2.1, only {}", display_url(&url), ids.join(", ")),
            ));
        };
        let version = choose_microversion(found);
        let mut newest = self.versions.newest_compute.lock();
        *newest = (*newest).max(Some(version));
        Ok(Compute { base, version })
    }

    /// Reads a version document, without a token if possible. Returns `None` if the service does not
    /// allow it even with a new token.
    async fn document(
        &self,
        call: Call,
        url: &Url,
    ) -> Result<Option<Vec<Version>>, OpenStackError> {
        let mut result = self
            .send_unauthenticated(call, Method::GET, url, Bytes::new(), &[])
            .await;
        if result.as_ref().is_err_and(is_refused) {
            let token = self.current().await?;
            result = self.read_with_token(call, url, &token).await;
            // The token may have been revoked, so the answer counts only for a new one.
            if result.as_ref().is_err_and(is_refused) {
                let token = self.renew_rejected(&token, call.service()).await?;
                result = self.read_with_token(call, url, &token).await;
            }
        }
        let response = match result {
            Ok(response) => response,
            Err(error) if is_refused(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let target: Arc<str> = format!("GET {}", display_url(url)).into();
        let versions = read_versions(response.body()).map_err(|message| {
            OpenStackError::unreliable(call, &target, response.status(), message)
        })?;
        Ok(Some(versions))
    }
}

/// Returns true if a service does not allow a request. The status alone counts, because what refuses
/// it is often a proxy in front of the service.
fn is_refused(error: &OpenStackError) -> bool {
    let status = match &error.cause {
        ErrorCause::Response(answer) => answer.status,
        ErrorCause::UnreliableResponse(answer) => answer.status,
        _ => return false,
    };
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

fn version_error(call: Call, message: String) -> OpenStackError {
    let error = SessionError::Version(message.into());
    OpenStackError::new(call, ErrorCause::Session(Arc::new(error)))
}

/// Chooses the lowest microversion with the needed fields, so that newer releases of Nova behave the
/// same.
fn choose_microversion(version: &Version) -> Microversion {
    let newest = Microversion::read(version.version.as_deref()).unwrap_or(Microversion::BASE);
    let oldest = Microversion::read(version.min_version.as_deref()).unwrap_or(Microversion::BASE);
    let candidates = [
        Microversion::HOST_NAMES,
        Microversion::DOWN_CELLS,
        Microversion::FLAVORS,
        Microversion::BASE,
    ];
    candidates
        .into_iter()
        .find(|candidate| (oldest..=newest).contains(candidate))
        .unwrap_or(oldest)
}

/// Finds Keystone v3 in its list of versions. Keeps the configured host, so that secrets are sent to
/// no other.
pub(super) fn identity(root: &Url, body: &[u8]) -> Result<Url, String> {
    let versions = read_versions(body)?;
    let Some(version) = versions.iter().find(|version| is_usable_identity(version)) else {
        let ids: Vec<String> = versions
            .iter()
            .map(|version| format!("{} ({})", version.id, version.status))
            .collect();
        return Err(format!(
            "no version 3 of the identity service is there, only: {}",
            ids.join(", ")
        ));
    };
    let link = version.self_link().and_then(|link| root.join(link).ok());
    let mut found = root.clone();
    match link.filter(|link| link.host_str() == root.host_str() && catalog::split(link).1.is_some())
    {
        Some(link) => found.set_path(link.path()),
        None => found = catalog::with_version(Service::Identity, root),
    }
    Ok(found)
}

fn is_usable_identity(version: &Version) -> bool {
    version.id.contains("v3")
        && ["current", "supported", "stable"]
            .iter()
            .any(|status| version.status.eq_ignore_ascii_case(status))
}

/// Returns the URL with a slash at the end, which version documents need.
pub(super) fn with_slash(url: &Url) -> Url {
    let mut url = url.clone();
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    url
}
