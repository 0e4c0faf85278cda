//! What a kubelet and Prometheus ask the process for.

use std::time::Duration;

use anyhow::Context as _;
use ccm_e2e::scenario::{SOON, Scenario};
use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::time::Instant;

/// Waits until both probes of the pod's container are answered as a kubelet wants it.
pub(super) async fn succeed(pod: &Pod) -> anyhow::Result<()> {
    let container = container(pod)?;
    for probe in [&container.liveness_probe, &container.readiness_probe] {
        let probe = probe.as_ref().context("a probe is missing")?;
        let (port, path) = target(container, probe)?;
        let deadline = Instant::now() + SOON;
        while let Err(error) = get(port, &path, None).await {
            anyhow::ensure!(
                Instant::now() < deadline,
                "{path} does not succeed within {SOON:?}: {error}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

/// Metrics are shown to whom the chart lets read them, and to nobody else.
pub(super) async fn metrics_are_for_readers(
    scenario: &Scenario,
    pod: &Pod,
    namespace: &str,
    account: &str,
) -> anyhow::Result<()> {
    let container = container(pod)?;
    let (port, _) = target(container, container.liveness_probe.as_ref().context("no probe")?)?;
    let token = scenario.server.account_token(namespace, account).await?;
    let metrics = get(port, "/metrics", Some(&token)).await?;
    let leads = "leader_election_master_status{name=\"cloud-controller-manager\"} 1";
    anyhow::ensure!(metrics.contains(leads), "the metrics do not say who leads:\n{metrics}");
    match get(port, "/metrics", None).await {
        Err(kube::Error::Api(status)) if [401, 403].contains(&status.code) => Ok(()),
        other => anyhow::bail!("metrics without a token: {other:?}"),
    }
}

fn container(pod: &Pod) -> anyhow::Result<&Container> {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.containers.first())
        .context("a pod without container")
}

/// Port and path that a probe asks.
fn target(container: &Container, probe: &Probe) -> anyhow::Result<(u16, String)> {
    let http = probe.http_get.as_ref().context("a probe of another kind")?;
    anyhow::ensure!(http.scheme.as_deref() == Some("HTTPS"), "{http:?}");
    let named = |name: &str| {
        let ports = container.ports.iter().flatten();
        ports
            .filter(|port| port.name.as_deref() == Some(name))
            .map(|port| port.container_port)
            .next()
    };
    let port = match &http.port {
        IntOrString::Int(port) => *port,
        IntOrString::String(name) => named(name).with_context(|| format!("no port {name}"))?,
    };
    Ok((u16::try_from(port)?, http.path.clone().unwrap_or_default()))
}

/// Asks as a kubelet does: whatever the certificate says.
async fn get(port: u16, path: &str, token: Option<&str>) -> kube::Result<String> {
    let address = format!("https://127.0.0.1:{port}").parse::<http::Uri>();
    let mut config =
        kube::Config::new(address.map_err(|error| kube::Error::HttpError(error.into()))?);
    config.accept_invalid_certs = true;
    config.auth_info.token = token.map(|token| token.to_owned().into());
    let request = http::Request::get(path)
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    kube::Client::try_from(config)?.request_text(request).await
}
