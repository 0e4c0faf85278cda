use super::Scenario;
use crate::ccm::Ccm;

impl Scenario {
    /// Starts a cloud-controller-manager as a service account of kube-system, as its pod runs. Flags given here win over
    /// the scenario's.
    ///
    /// # Errors
    /// There is no such account, or the server is the embedded one.
    pub async fn start_as(&self, account: &str, config: &str, process: &str, flags: &[&str]) -> anyhow::Result<Ccm> {
        let kubeconfig = self.path(process, "kubeconfig");
        self.server.write_account_kubeconfig(&kubeconfig, "kube-system", account).await?;
        self.launch(kubeconfig, config, process, flags).await
    }
}

/// Name of a service account of kube-system as the API server knows it.
pub fn account_user(name: &str) -> String {
    format!("system:serviceaccount:kube-system:{name}")
}
