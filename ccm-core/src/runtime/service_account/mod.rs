//! A ServiceAccount for each controller (`--use-service-account-credentials`), named as its client, in `kube-system`.
//!
//! Requests of a controller go out with a token of its account, which the process asks for with its own credentials. A
//! ServiceAccount that is not there is made. Tokens are kept in memory alone and never logged.
//!
//! RBAC of the process: `create` on `serviceaccounts/token`, and on `serviceaccounts` where they are not there, in
//! `kube-system`. Upstream also reads the account first.

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

/// Namespace of the accounts.
const NAMESPACE: &str = "kube-system";

/// The accounts of a process and their connections, before there is a right to ask for tokens.
#[derive(Clone)]
pub struct ServiceAccounts {
    root: kube::Client,
    /// By name of the client; without credentials.
    anonymous: BTreeMap<&'static str, kube::Client>,
}

impl std::fmt::Debug for ServiceAccounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.anonymous.keys()).finish()
    }
}

impl ServiceAccounts {
    /// Makes accounts of connections without credentials, by account; `root` asks for tokens.
    pub fn new(root: kube::Client, anonymous: impl IntoIterator<Item = (&'static str, kube::Client)>) -> Self {
        Self { root, anonymous: anonymous.into_iter().collect() }
    }

    /// Makes what the clients get their tokens from. New ones are asked for while `gate` is open, since to ask creates one.
    pub(crate) fn credentials(&self, gate: &WriteGate) -> ServiceAccountTokens {
        let account = |(name, anonymous): (&&'static str, &kube::Client)| {
            (*name, (anonymous.clone(), Arc::new(TokenSource::new(self.root.clone(), name, gate.clone()))))
        };
        ServiceAccountTokens(self.anonymous.iter().map(account).collect())
    }
}

/// The accounts of a process that may ask for tokens. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct ServiceAccountTokens(BTreeMap<&'static str, (kube::Client, Arc<TokenSource>)>);

impl ServiceAccountTokens {
    /// Tells whether there is an account of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns a client that adds a token of the account to each request; `gate` is its right to change anything.
    pub(crate) fn client(&self, name: &str, gate: &WriteGate) -> Option<kube::Client> {
        let (anonymous, source) = self.0.get(name)?;
        Some(with_tokens(anonymous.clone(), source.clone(), gate.clone()))
    }

    /// Asks for tokens whenever a request wants one, until `stop`. Not within the request: to wait for a token must take
    /// no longer than the request may, and a request that is given up must not take the question with it.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let sources: Vec<_> = self.0.into_values().map(|(_, source)| source).collect();
        join_all(sources.iter().map(|source| source.run(&stop))).await;
    }
}

/// Returns the user that an account is, which is also the end of its user agent.
pub fn user(account: &str) -> String {
    format!("system:serviceaccount:{NAMESPACE}:{account}")
}

/// Makes a client that adds a token to each request.
fn with_tokens(anonymous: kube::Client, source: Arc<TokenSource>, gate: WriteGate) -> kube::Client {
    let send = move |mut request: Request<Body>| {
        let (anonymous, source, gate) = (anonymous.clone(), source.clone(), gate.clone());
        async move {
            let token = source.token().await?;
            // Again: the caller asked before the wait for a token, in which the lease may have run out.
            if !matches!(*request.method(), Method::GET | Method::HEAD) {
                gate.may_write()?;
            }
            request.headers_mut().insert(header::AUTHORIZATION, token.clone());
            let response = anonymous.send(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                // Its account was made anew, or the server's keys were: the next request gets another.
                source.invalidate(&token);
            }
            Ok::<_, BoxError>(response)
        }
    };
    kube::Client::new(tower::service_fn(send), "default")
}
