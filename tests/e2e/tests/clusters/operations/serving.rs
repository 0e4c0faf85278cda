//! The HTTPS server of a process: on a standby, with a port or a certificate that cannot be used,
//! with a renewed one.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use ccm_e2e::ccm::{Ccm, Signal};
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::server::ServerKind;
use ccm_mock::{HostPort, bind_admin, serve_admin};
use ccm_testkit::supervised::free_port;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use kube::client::Body;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::run::Case;

/// Pages for everybody, so that nobody has to be asked.
const OPEN: &str = "--authorization-always-allow-paths=/*";

pub(crate) fn cases() -> Vec<Case> {
    vec![
        crate::case!("srva", &[ServerKind::Embedded], a_standby_answers_and_takes_over),
        crate::case!("srvb", &[ServerKind::Embedded], what_cannot_be_served_ends_the_start),
        crate::case!("srvc", &[ServerKind::Embedded], a_renewed_certificate_is_served),
        crate::case!(
            "srvd",
            &[ServerKind::Embedded],
            a_cloud_that_is_down_at_the_start_is_waited_for
        ),
    ]
}

async fn a_standby_answers_and_takes_over(s: &Scenario) -> anyhow::Result<()> {
    s.register(&s.names(1)).await?;
    let (mut leader, first) = start(s, "a", &[OPEN, "--leader-elect-retry-period=500ms"]).await?;
    leader.logged("became leader", SOON).await?;
    let (mut standby, second) = start(s, "b", &[OPEN, "--leader-elect-retry-period=500ms"]).await?;
    standby.logged("another process leads", SOON).await?;
    s.initialized(&s.names(1), SOON).await?;
    for port in [first, second] {
        for path in ["/healthz", "/livez", "/readyz"] {
            ensure!(get(port, path).await? == (200, "ok".to_owned()), "{path} of {port}");
        }
        let (_, configz) = get(port, "/configz").await?;
        let configz: Value = serde_json::from_str(&configz)?;
        let part = &configz["cloudcontrollermanager.config.k8s.io"];
        ensure!(
            part["Generic"]["LeaderElection"]["resourceName"] == s.lease().as_str(),
            "{configz}"
        );
        let (status, flagz) = get(port, "/flagz").await?;
        ensure!(status == 200 && flagz.contains("\nnode-monitor-period=300ms\n"), "{flagz}");
        ensure!(get(port, "/statusz").await?.1.contains("Binary version: v"), "no version");
    }
    let controllers = "[+]cloud-node-controller ok\n";
    ensure!(
        get(first, "/readyz?verbose").await?.1.contains(controllers),
        "the leader shows its controllers"
    );
    let (_, verbose) = get(second, "/healthz?verbose").await?;
    ensure!(verbose == "[+]leaderElection ok\nhealthz check passed\n", "{verbose}");
    let leads = format!("leader_election_master_status{{name=\"{}\"}} ", s.lease());
    ensure!(
        get(first, "/metrics")
            .await?
            .1
            .contains(&format!("{leads}1\n")),
        "the leader says so"
    );
    ensure!(
        get(second, "/metrics")
            .await?
            .1
            .contains(&format!("{leads}0\n")),
        "the standby says so"
    );

    let (status, said) = send(second, http::Method::PUT, "/debug/flags/v", "6").await?;
    ensure!(status == 200, "{said}");
    leader.signal(Signal::Term).await?;
    ensure!(leader.exit(SOON).await?.success(), "{}", leader.log());
    ensure!(get(first, "/livez").await.is_err(), "nobody answers for a process that has ended");
    standby.logged("became leader", SOON).await?;
    let deadline = Instant::now() + SOON;
    while !get(second, "/readyz?verbose")
        .await?
        .1
        .contains(controllers)
    {
        ensure!(Instant::now() < deadline, "the new leader does not show its controllers");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ensure!(standby.log().contains("DEBUG"), "the verbosity was changed while it ran");
    standby.terminate().await
}

async fn what_cannot_be_served_ends_the_start(s: &Scenario) -> anyhow::Result<()> {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = format!("--secure-port={}", taken.local_addr()?.port());
    let text = refused(s, &["--bind-address=127.0.0.1", &port]).await?;
    let wanted =
        format!("error: {port}, --bind-address=127.0.0.1: listen on {}: ", taken.local_addr()?);
    ensure!(text.contains(&wanted) && text.contains("Address already in use"), "{text}");

    let directory = tempfile::tempdir()?;
    let file = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(file("tls.crt"), "rubbish")?;
    let certificate = format!("--tls-cert-file={}", file("tls.crt"));
    let missing = format!("--tls-private-key-file={}", file("tls.key"));
    // Both mistakes at once.
    let text = refused(s, &["--bind-address=127.0.0.1", &port, &certificate, &missing]).await?;
    for part in
        [&wanted[..], &format!("--tls-cert-file: read the key {}: No such file", file("tls.key"))]
    {
        ensure!(text.contains(part), "{part} is not in {text}");
    }
    std::fs::write(file("tls.key"), "rubbish")?;
    let text = refused(s, &["--secure-port=1", &certificate, &missing]).await?;
    ensure!(text.contains("--tls-cert-file: use the certificate"), "{text}");
    ensure!(!text.contains("rubbish"), "what is in a key file is nobody's business: {text}");
    let text = refused(s, &["--tls-cipher-suites=TLS_NONE", "--webhooks=x"]).await?;
    for part in [
        "cipher suite TLS_NONE does not exist; known are",
        "admission webhooks are not supported",
    ] {
        ensure!(text.contains(part), "{part} is not in {text}");
    }
    // Nothing was begun: nobody has even looked at the lease.
    let leases: Api<Lease> = Api::namespaced(s.server.client(), "kube-system");
    ensure!(
        leases.get_opt(&s.lease()).await?.is_none(),
        "a process that cannot serve took the lease"
    );
    ensure!(s.node_writes("a").await?.is_empty(), "a process that cannot serve wrote");
    Ok(())
}

async fn a_renewed_certificate_is_served(s: &Scenario) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let pair = |name: &str| directory.path().join(name);
    let flag = |name: &str| format!("--cert-dir={}", pair(name).display());
    let (first, port) = start(s, "a", &[OPEN, "--leader-elect=false", &flag("first")]).await?;
    let (second, other) = start(s, "b", &[OPEN, &flag("second")]).await?;
    let (old, new) = (certificate(&pair("first"))?, certificate(&pair("second"))?);
    for (port, right, wrong) in [(port, &old, &new), (other, &new, &old)] {
        ensure!(
            trusting(port, right).await.is_ok(),
            "the certificate in the directory is the one that is served"
        );
        ensure!(trusting(port, wrong).await.is_err(), "and no other");
    }
    second.terminate().await?;
    std::fs::write(pair("first").join("cloud-controller-manager.crt"), "half")?;
    for name in ["cloud-controller-manager.key", "cloud-controller-manager.crt"] {
        std::fs::copy(pair("second").join(name), pair("first").join(name))?;
    }
    let deadline = Instant::now() + SOON;
    while trusting(port, &new).await.is_err() {
        ensure!(Instant::now() < deadline, "the new certificate is not served:\n{}", first.log());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    first.terminate().await
}

async fn a_cloud_that_is_down_at_the_start_is_waited_for(s: &Scenario) -> anyhow::Result<()> {
    s.register(&s.names(1)).await?;
    // Nobody answers there.
    let (port, cloud) = (free_port()?, SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)));
    let secure_port = format!("--secure-port={port}");
    let flags = [&*secure_port, "--bind-address=127.0.0.1", OPEN];
    let mut ccm = s.start_for(cloud, "a", &flags).await?;
    answers(&mut ccm, port).await?;
    ccm.logged("mock cloud does not answer yet", SOON).await?;
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        ensure!(get(port, "/livez").await? == (200, "ok".to_owned()), "it is alive");
        ensure!(get(port, "/readyz").await?.0 == 500, "it is not ready");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (_, reason) = get(port, "/readyz/cloud-provider").await?;
    ensure!(reason.contains("has not started yet"), "{reason}");

    // It can be stopped as ever.
    ccm.signal(Signal::Term).await?;
    let stopping = Instant::now();
    ensure!(ccm.exit(SOON).await?.success(), "{}", ccm.log());
    ensure!(
        stopping.elapsed() < Duration::from_secs(5),
        "it stopped after {:?}",
        stopping.elapsed()
    );

    let mut ccm = s.start_for(cloud, "b", &flags).await?;
    answers(&mut ccm, port).await?;
    ccm.logged("mock cloud does not answer yet", SOON).await?;
    let listener =
        bind_admin(&HostPort { host: cloud.ip().to_string(), port: cloud.port() }).await?;
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let work = async {
        s.initialized(&s.names(1), SOON).await?;
        ensure!(get(port, "/readyz").await?.0 == 200, "it is ready");
        ccm.terminate().await
    };
    tokio::select! {
        ended = serve_admin(s.cloud.clone(), listener, stop) => anyhow::bail!("the cloud ended: {ended:?}"),
        done = work => done,
    }
}

/// Starts a process that serves on a port of its own, and waits until it answers.
async fn start(s: &Scenario, process: &str, more: &[&str]) -> anyhow::Result<(Ccm, u16)> {
    let port = free_port()?;
    let secure_port = format!("--secure-port={port}");
    let flags: Vec<&str> = [&*secure_port, "--bind-address=127.0.0.1"]
        .iter()
        .chain(more)
        .copied()
        .collect();
    let mut ccm = s.start(process, &flags).await?;
    answers(&mut ccm, port).await?;
    Ok((ccm, port))
}

/// Waits until a process answers.
async fn answers(ccm: &mut Ccm, port: u16) -> anyhow::Result<()> {
    let deadline = Instant::now() + SOON;
    while get(port, "/livez").await.is_err() {
        ensure!(ccm.is_running()?, "the process ended:\n{}", ccm.log());
        ensure!(Instant::now() < deadline, "no answer:\n{}", ccm.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Starts a process that must not start, and returns what it says.
async fn refused(s: &Scenario, flags: &[&str]) -> anyhow::Result<String> {
    let mut ccm = s.start("a", flags).await?;
    let status = ccm.exit(SOON).await?;
    ensure!(status.code() == Some(1), "{status}: {}", ccm.log());
    Ok(ccm.log())
}

async fn get(port: u16, path: &str) -> anyhow::Result<(u16, String)> {
    send(port, http::Method::GET, path, "").await
}

async fn send(
    port: u16,
    method: http::Method,
    path: &str,
    body: &str,
) -> anyhow::Result<(u16, String)> {
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
    // Its certificate is its own.
    config.accept_invalid_certs = true;
    request(config, method, path, body).await
}

/// Asks a server that must have this very certificate.
async fn trusting(port: u16, certificate: &[u8]) -> anyhow::Result<(u16, String)> {
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
    config.root_cert = Some(vec![certificate.to_vec()]);
    config.tls_server_name = Some("localhost".to_owned());
    request(config, http::Method::GET, "/livez", "").await
}

async fn request(
    config: kube::Config,
    method: http::Method,
    path: &str,
    body: &str,
) -> anyhow::Result<(u16, String)> {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .body(Body::from(body.as_bytes().to_vec()))?;
    let response = kube::Client::try_from(config)?.send(request).await?;
    let status = response.status().as_u16();
    let body = http_body_util::BodyExt::collect(response.into_body())
        .await?
        .to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// The certificate in a directory that a process keeps it in.
fn certificate(directory: &Path) -> anyhow::Result<Vec<u8>> {
    let pem = std::fs::read(directory.join("cloud-controller-manager.crt"))?;
    let der = rustls::pki_types::CertificateDer::from_pem_slice(&pem)
        .ok()
        .context("no certificate in the file")?;
    Ok(der.to_vec())
}
