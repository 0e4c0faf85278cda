//! Clients for reviews.

use std::path::Path;

use super::AuthError;
use crate::config::{
    AuthenticationConfig, AuthorizationConfig, Product,
    kubeconfig::{self, connect::HttpVersions},
};

/// Clients of the API servers that review credentials and requests.
#[derive(Clone, Default)]
pub struct AuthClients {
    /// For TokenReviews and the lookup of CAs. Without it tokens count as anonymous, and no CA is
    /// looked up.
    pub authentication: Option<kube::Client>,
    /// For SubjectAccessReviews. Without it every path that is not always allowed is forbidden.
    pub authorization: Option<kube::Client>,
    /// User agent of both.
    pub user_agent: String,
}

impl AuthClients {
    /// Creates the clients for `--authentication-kubeconfig` and `--authorization-kubeconfig`.
    /// Without the flag a client uses the pod's own ServiceAccount; outside a pod there is no
    /// client. As upstream, `--kubeconfig` is not used for either: the user that manages nodes need
    /// not be allowed to review tokens.
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
        let user_agent = kubeconfig::user_agent(product, "delegated-auth");
        Ok(Self { authentication: who, authorization: what, user_agent })
    }
}

async fn build(flag: &'static str, path: Option<&Path>) -> Result<Option<kube::Client>, AuthError> {
    let Some(config) = kubeconfig::load_optional(flag, path).await? else {
        return Ok(None);
    };
    // No retries in this client: `ReviewClient` retries and counts its attempts.
    kubeconfig::connect::client(&config, HttpVersions::Http1)
        .map(Some)
        .map_err(|error| AuthError::Connect(flag, Box::new(error)))
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
