//! Discovers versions. Nova's microversion determines the fields of servers, and Octavia's version
//! the features that may be used.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
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

impl fmt::Display for OctaviaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}", self.0, self.1)
    }
}

/// Discovered versions, each requested once for a URL.
#[derive(Default)]
pub(super) struct DiscoveredVersions {
    compute: DiscoverOnce<Compute>,
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
    version: Microversion,
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

    async fn discover_octavia(&self, endpoint: &Url) -> Result<OctaviaVersion, OpenStackError> {
        let url = with_slash(&catalog::split(endpoint).0);
        let versions = self.document(Call::VersionList, &url).await?;
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

    async fn discover_compute(&self, endpoint: &Url) -> Result<Compute, OpenStackError> {
        let (root, version) = catalog::split(endpoint);
        let base = catalog::with_version(Service::Compute, endpoint);
        let mut url = with_slash(&root);
        if let Some(segment) = version.as_ref().and_then(|segments| segments.first())
            && let Ok(mut segments) = url.path_segments_mut()
        {
            segments.pop_if_empty().push(segment).push("");
        }
        let versions = self.document(Call::ComputeVersionGet, &url).await?;
        let configured = base
            .path_segments()
            .and_then(|mut segments| segments.find(|segment| segment.starts_with('v')))
            .unwrap_or_default();
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
        Ok(Compute { base, version })
    }

    async fn document(&self, call: Call, url: &Url) -> Result<Vec<Version>, OpenStackError> {
        let response = self
            .send_unauthenticated(call, Method::GET, url, Bytes::new(), &[])
            .await?;
        let target: Arc<str> = format!("GET {}", display_url(url)).into();
        read_versions(response.body()).map_err(|message| {
            OpenStackError::unreliable(call, &target, response.status(), message)
        })
    }
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
    [Microversion::DOWN_CELLS, Microversion::FLAVORS, Microversion::BASE]
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
