//! What a process serves over HTTPS, as somebody with and without the right to see it gets it.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::Instant;

use crate::ccm::Ccm;

/// Pages that every process serves.
const PAGES: [&str; 8] = [
    "/metrics",
    "/metrics/slis",
    "/configz",
    "/statusz",
    "/flagz",
    "/healthz?verbose",
    "/readyz?verbose",
    "/livez?verbose",
];
/// Explanations, which a process has once it leads and knows the object.
const EXPLANATIONS: [&str; 4] =
    ["/explain/", "/explain/routes", "/explain/nodes/any", "/explain/services/any/any"];
/// Pause between two tries.
const POLL: Duration = Duration::from_millis(50);

/// Gets all pages, once the process serves any: for a caller with a token that may see them, and
/// for a stranger, who must not.
///
/// # Errors
/// Nothing is served in time, or with another status than that caller is due.
pub async fn all(
    process: &mut Ccm,
    port: u16,
    caller: &str,
    stranger: &str,
    limit: Duration,
) -> anyhow::Result<String> {
    let mut all = String::new();
    let deadline = Instant::now() + limit;
    while get(port, "/healthz", None).await.is_err() {
        ensure!(
            process.is_running()? && Instant::now() < deadline,
            "nothing is served:\n{}",
            process.log()
        );
        tokio::time::sleep(POLL).await;
    }
    for page in PAGES {
        // Whoever asks is answered, and what depends on how the cloud does.
        let is_health = page.ends_with("?verbose");
        let (status, text) = get(port, page, Some(caller)).await?;
        ensure!(is_health || status == 200, "{page}: {status} {text}");
        all += &text;
        let (status, text) = get(port, page, Some(stranger)).await?;
        ensure!(is_health || status == 401, "{page}: {status} {text}");
        all += &text;
    }
    for page in EXPLANATIONS {
        let (status, text) = get(port, page, Some(caller)).await?;
        ensure!([200, 404, 503].contains(&status), "{page}: {status} {text}");
        all += &text;
        let (status, text) = get(port, page, Some(stranger)).await?;
        ensure!(status == 401, "{page}: {status} {text}");
        all += &text;
    }
    Ok(all)
}

/// Gets one page: its status and its text.
///
/// # Errors
/// There is no answer.
pub async fn get(port: u16, path: &str, token: Option<&str>) -> anyhow::Result<(u16, String)> {
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
    // Its certificate is its own.
    config.accept_invalid_certs = true;
    // Every answer counts, 503 as well.
    config.default_retry = false;
    config.auth_info.token = token.map(|token| token.to_owned().into());
    let request = http::Request::get(path).body(kube::client::Body::empty())?;
    let answer = kube::Client::try_from(config)?.send(request).await?;
    let status = answer.status().as_u16();
    let body = http_body_util::BodyExt::collect(answer.into_body())
        .await?
        .to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}
