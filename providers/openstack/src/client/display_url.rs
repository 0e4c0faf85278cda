//! How URLs are shown in logs and errors.

use url::Url;

/// Returns a URL without user, password and query.
pub(super) fn display_url(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    format!("{}://{host}{port}{}", url.scheme(), url.path())
}
