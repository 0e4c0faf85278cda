//! A ServiceAccount for each controller (`--use-service-account-credentials`). It is in
//! `kube-system` and has the name of the controller's client.
//!
//! The requests of a controller use a token of its ServiceAccount. The process requests these
//! tokens with its own credentials, and creates missing ServiceAccounts. Tokens are kept only in
//! memory and are never logged.
//!
//! RBAC of the process in `kube-system`: `create` on `serviceaccounts/token`, and `create` on
//! `serviceaccounts` if they do not exist. Upstream also needs `get`, because it reads the
//! ServiceAccount first.

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

/// The namespace of the ServiceAccounts.
const NAMESPACE: &str = "kube-system";

/// The ServiceAccounts of a process and their connections. Tokens can be requested once there is a
/// write gate.
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
    /// Creates ServiceAccounts from a client without credentials for each. `root` requests the
    /// tokens.
    pub fn new(
        root: kube::Client,
        anonymous: impl IntoIterator<Item = (&'static str, kube::Client)>,
    ) -> Self {
        Self { root, anonymous: anonymous.into_iter().collect() }
    }

    /// Creates the token sources of the clients. They request tokens only while `gate` is open,
    /// because such a request is a write.
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
    /// Returns true if there is a ServiceAccount of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns a client that adds a token of the ServiceAccount to each request, or `None` if there
    /// is no such ServiceAccount. `gate` is the write gate of these requests.
    pub(crate) fn client(&self, name: &str, gate: &WriteGate) -> Option<kube::Client> {
        let (anonymous, source) = self.0.get(name)?;
        Some(with_tokens(anonymous.clone(), source.clone(), gate.clone()))
    }

    /// Requests tokens when they are needed, until `stop` is cancelled.
    ///
    /// This is a separate task because a request may be dropped while it waits for a token, which
    /// must not abort the token request.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let sources: Vec<_> = self.0.into_values().map(|(_, source)| source).collect();
        join_all(sources.iter().map(|source| source.run(&stop))).await;
    }
}

/// The groups that the API server gives to these ServiceAccounts.
pub(crate) const GROUPS: [&str; 3] =
    ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];

/// Returns the user name of a ServiceAccount. The user agent of its requests ends with it.
pub fn user(account: &str) -> String {
    format!("system:serviceaccount:{NAMESPACE}:{account}")
}

/// Wraps a client without credentials so that it adds a token to each request.
fn with_tokens(anonymous: kube::Client, source: Arc<TokenSource>, gate: WriteGate) -> kube::Client {
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let anonymous = anonymous.clone();
        let source = source.clone();
        let gate = gate.clone();
        async move {
            let token = source.token().await?;
            // The caller has checked the gate before, but the Lease may have expired during the
            // wait for a token.
            if !matches!(*request.method(), Method::GET | Method::HEAD) {
                gate.may_write()?;
            }
            request
                .headers_mut()
                .insert(header::AUTHORIZATION, token.clone());
            let response = anonymous.send(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                // The ServiceAccount or the server's signing keys were replaced, so the next
                // request needs another token.
                source.invalidate(&token);
            }
            Ok::<_, BoxError>(response)
        }
    });
    kube::Client::new(service, "default")
}
