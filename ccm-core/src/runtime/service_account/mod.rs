//! One ServiceAccount for each controller (`--use-service-account-credentials`), named like its
//! client, in `kube-system`.
//!
//! The requests of a controller use a token of its ServiceAccount, which the process requests with
//! its own credentials. A missing ServiceAccount is created. Tokens are kept only in memory and
//! never logged.
//!
//! RBAC of the process in `kube-system`: `create` on `serviceaccounts/token`, and `create` on
//! `serviceaccounts` if they do not exist. Upstream also reads the ServiceAccount first.

#[cfg(test)]
mod tests;
mod token;

use std::{collections::BTreeMap, sync::Arc};

use futures::future::join_all;
use http::{Method, Request, StatusCode, header};
use kube::client::Body;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use self::token::TokenSource;
use crate::write_gate::WriteGate;

/// Namespace of the ServiceAccounts.
const NAMESPACE: &str = "kube-system";

/// The ServiceAccounts of a process and their connections, before there is a write gate for
/// requesting tokens.
#[derive(Clone)]
pub struct ServiceAccounts {
    root: kube::Client,
    /// Clients without credentials, by name.
    anonymous: BTreeMap<&'static str, kube::Client>,
}

impl std::fmt::Debug for ServiceAccounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.anonymous.keys()).finish()
    }
}

impl ServiceAccounts {
    /// Makes ServiceAccounts from clients without credentials, by account; `root` requests the
    /// tokens.
    pub fn new(
        root: kube::Client,
        anonymous: impl IntoIterator<Item = (&'static str, kube::Client)>,
    ) -> Self {
        Self { root, anonymous: anonymous.into_iter().collect() }
    }

    /// Makes the token sources of the clients. New tokens are requested only while `gate` is open,
    /// because a request creates a token.
    pub(crate) fn credentials(&self, gate: &WriteGate) -> ServiceAccountTokens {
        let mut accounts = BTreeMap::new();
        for (name, anonymous) in &self.anonymous {
            let source = TokenSource::new(self.root.clone(), name, gate.clone());
            accounts.insert(*name, (anonymous.clone(), Arc::new(source)));
        }
        ServiceAccountTokens(accounts)
    }
}

/// The ServiceAccounts of a process, able to request tokens. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct ServiceAccountTokens(BTreeMap<&'static str, (kube::Client, Arc<TokenSource>)>);

impl ServiceAccountTokens {
    /// Returns whether there is a ServiceAccount of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns a client that adds a token of the ServiceAccount to each request; `gate` is the
    /// write gate of these requests.
    pub(crate) fn client(&self, name: &str, gate: &WriteGate) -> Option<kube::Client> {
        let (anonymous, source) = self.0.get(name)?;
        Some(with_tokens(anonymous.clone(), source.clone(), gate.clone()))
    }

    /// Requests tokens whenever they are needed, until `stop`. This runs outside of the requests
    /// that need a token: waiting for a token must take no longer than such a request may, and
    /// dropping a request must not abort the token request.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let sources: Vec<_> = self.0.into_values().map(|(_, source)| source).collect();
        join_all(sources.iter().map(|source| source.run(&stop))).await;
    }
}

/// Returns the user name of a ServiceAccount, which is also the end of its user agent.
pub fn user(account: &str) -> String {
    format!("system:serviceaccount:{NAMESPACE}:{account}")
}

/// Makes a client that adds a token to each request.
fn with_tokens(anonymous: kube::Client, source: Arc<TokenSource>, gate: WriteGate) -> kube::Client {
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let anonymous = anonymous.clone();
        let source = source.clone();
        let gate = gate.clone();
        async move {
            let token = source.token().await?;
            // Checked again: the caller checked before the wait for a token, during which the Lease
            // may have expired.
            if !matches!(*request.method(), Method::GET | Method::HEAD) {
                gate.may_write()?;
            }
            request
                .headers_mut()
                .insert(header::AUTHORIZATION, token.clone());
            let response = anonymous.send(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                // The ServiceAccount or the server's signing keys were replaced: the next request
                // gets another token.
                source.invalidate(&token);
            }
            Ok::<_, BoxError>(response)
        }
    });
    kube::Client::new(service, "default")
}
