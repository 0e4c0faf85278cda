use std::path::{Path, PathBuf};
use std::time::Duration;

use ccm_testkit::control_plane::AuditEvent;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{SOON, Scenario};
use crate::ccm::Ccm;
use crate::manifests::{self, all_grants};

/// Pause between two looks at what the API server grants.
const LOOK: Duration = Duration::from_millis(20);

impl Scenario {
    /// Starts a cloud-controller-manager as a service account of kube-system, as its pod runs.
    /// Flags given here win over the scenario's.
    ///
    /// # Errors
    /// There is no such account, or the server is the embedded one.
    pub async fn start_as(
        &self,
        account: &str,
        config: &str,
        process: &str,
        flags: &[&str],
    ) -> anyhow::Result<Ccm> {
        let kubeconfig = self.kubeconfig(process);
        self.server
            .write_account_kubeconfig(&kubeconfig, "kube-system", account)
            .await?;
        self.launch(kubeconfig, config, process, flags).await
    }

    /// The same for another program, which knows this scenario's cloud by region and endpoint and
    /// reads JSON.
    ///
    /// # Errors
    /// As [`start_as`](Self::start_as).
    pub async fn start_other_as(
        &self,
        program: &Path,
        account: &str,
        process: &str,
        flags: &[&str],
    ) -> anyhow::Result<Ccm> {
        let kubeconfig = self.kubeconfig(process);
        self.server
            .write_account_kubeconfig(&kubeconfig, "kube-system", account)
            .await?;
        let config = json!({"region": self.region(), "endpoint": self.endpoint}).to_string();
        self.launch_program(program, kubeconfig, &config, process, flags)
            .await
    }

    /// Where the kubeconfig of a process is, once it was started.
    pub fn kubeconfig(&self, process: &str) -> PathBuf {
        self.path(process, "kubeconfig")
    }

    /// Applies manifests, waits until what they grant to a service account of kube-system is in
    /// force, and takes them away again whatever becomes of the work.
    ///
    /// # Errors
    /// The server refuses a manifest or does not grant a right, or the work failed.
    pub async fn with_manifests<T>(
        &self,
        account: &str,
        applied: &[Value],
        work: impl AsyncFnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let client = self.server.client();
        let done = async {
            manifests::apply(&client, applied).await?;
            self.in_force(account, applied).await?;
            work().await
        };
        let done = done.await;
        manifests::withdraw(&client, applied).await?;
        done
    }

    /// Waits until the authorizer knows every right of these roles, which are bound to the account.
    async fn in_force(&self, account: &str, applied: &[Value]) -> anyhow::Result<()> {
        let reviews: Api<SubjectAccessReview> = Api::all(self.server.client());
        let limit = Instant::now() + SOON;
        for grant in all_grants(applied)? {
            let (resource, subresource) = grant
                .resource
                .split_once('/')
                .unwrap_or((&grant.resource, ""));
            let asked = json!({"spec": {
                "user": account_user(account),
                "resourceAttributes": {
                    "group": grant.group, "resource": resource, "subresource": subresource, "verb": grant.verb,
                    "name": grant.name, "namespace": grant.namespace,
                },
            }});
            let review: SubjectAccessReview = serde_json::from_value(asked)?;
            while !reviews
                .create(&PostParams::default(), &review)
                .await?
                .status
                .is_some_and(|status| status.allowed)
            {
                anyhow::ensure!(Instant::now() < limit, "the API server does not grant {grant}");
                tokio::time::sleep(LOOK).await;
            }
        }
        Ok(())
    }

    /// What a service account of kube-system asked for so far.
    ///
    /// # Errors
    /// The server is the embedded one.
    pub async fn requests(&self, account: &str) -> anyhow::Result<Vec<AuditEvent>> {
        let user = account_user(account);
        Ok(self
            .server
            .audit_log()
            .await?
            .filter(|event| event.user == user)
            .events)
    }
}

/// Name of a service account of kube-system as the API server knows it.
pub fn account_user(name: &str) -> String {
    format!("system:serviceaccount:kube-system:{name}")
}
