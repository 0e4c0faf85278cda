use std::path::Path;

use super::AuthError;
use crate::config::{AuthenticationConfig, AuthorizationConfig, Product, client};

/// Clients of the API servers that are asked about callers.
#[derive(Clone, Default)]
pub struct AuthClients {
    /// Whom tokens stand for, and which CAs there are. Without it tokens count as anonymous, and no CA is looked up.
    pub authentication: Option<kube::Client>,
    /// What callers may do. Without it everything is forbidden that is not always allowed.
    pub authorization: Option<kube::Client>,
    /// User agent of both.
    pub user_agent: String,
}

impl AuthClients {
    /// Makes the clients of `--authentication-kubeconfig` and `--authorization-kubeconfig`; a flag that is not set stands for
    /// the pod's own service account, or for no client if this is no pod. As upstream, `--kubeconfig` is not used for either:
    /// whoever may manage nodes need not be one who may review tokens.
    ///
    /// # Errors
    /// A kubeconfig that cannot be used.
    pub async fn from_flags(
        authentication: &AuthenticationConfig,
        authorization: &AuthorizationConfig,
        product: &Product,
    ) -> Result<Self, AuthError> {
        let who = build("authentication-kubeconfig", authentication.kubeconfig.as_deref()).await?;
        let what = build("authorization-kubeconfig", authorization.kubeconfig.as_deref()).await?;
        let user_agent = client::user_agent(product, "delegated-auth");
        Ok(Self { authentication: who, authorization: what, user_agent })
    }
}

async fn build(flag: &'static str, path: Option<&Path>) -> Result<Option<kube::Client>, AuthError> {
    let Some(config) = client::load_optional(flag, path).await? else { return Ok(None) };
    // Nothing is tried again here: attempts are counted by whoever asks.
    client::connect::client(&config).map(Some).map_err(|error| AuthError::Connect(flag, Box::new(error)))
}

impl std::fmt::Debug for AuthClients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthClients")
            .field("authentication", &self.authentication.is_some())
            .field("authorization", &self.authorization.is_some())
            .field("user_agent", &self.user_agent)
            .finish()
    }
}
