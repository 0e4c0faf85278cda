//! The HTTPS server of a manager that runs, from outside.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_testkit::supervised::free_port;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use kube::client::Body;
use tokio::time::Instant;

/// Where a process is told to serve.
pub(crate) struct HttpsServer {
    port: u16,
}

impl HttpsServer {
    /// A port that nobody else gets.
    pub(crate) fn free() -> anyhow::Result<Self> {
        Ok(Self { port: free_port()? })
    }

    /// Flags of a process that serves there and asks the cluster of this kubeconfig who calls.
    pub(crate) fn flags(&self, kubeconfig: &Path) -> Vec<String> {
        let kubeconfig = kubeconfig.display();
        vec![
            format!("--secure-port={}", self.port),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
        ]
    }

    /// Waits until the process answers this way to whoever shows this token, or none.
    pub(crate) async fn answers(
        &self,
        path: &str,
        token: Option<&str>,
        status: u16,
    ) -> anyhow::Result<()> {
        let limit = Instant::now() + SOON;
        loop {
            let answer = self.ask(path, token).await;
            if answer.as_ref().is_ok_and(|answer| *answer == status) {
                return Ok(());
            }
            anyhow::ensure!(
                Instant::now() < limit,
                "{path} is answered by {answer:?}, not {status}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn ask(&self, path: &str, token: Option<&str>) -> anyhow::Result<u16> {
        let mut config = kube::Config::new(format!("https://127.0.0.1:{}", self.port).parse()?);
        // Its certificate is its own.
        config.accept_invalid_certs = true;
        config.auth_info.token = token.map(|token| token.to_owned().into());
        let request = http::Request::get(path).body(Body::empty())?;
        Ok(kube::Client::try_from(config)?
            .send(request)
            .await?
            .status()
            .as_u16())
    }
}

/// A token of a service account of kube-system.
pub(crate) async fn token(s: &Scenario, account: &str) -> anyhow::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(s.server.client(), "kube-system");
    let answer = accounts
        .create_token_request(account, &PostParams::default(), &TokenRequest::default())
        .await?;
    answer
        .status
        .and_then(|status| status.token)
        .context("no token")
}
