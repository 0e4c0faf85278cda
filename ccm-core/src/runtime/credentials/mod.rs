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

use http::{Request, StatusCode, header};
use kube::client::Body;
use tower::BoxError;

use self::token::Source;
use super::gate::WriteGate;

/// Namespace of the accounts.
const NAMESPACE: &str = "kube-system";

/// The accounts of a process and their connections, before there is a right to ask for tokens.
#[derive(Clone)]
pub struct Accounts {
    root: kube::Client,
    /// By name of the client; without credentials.
    anonymous: BTreeMap<&'static str, kube::Client>,
}

impl std::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.anonymous.keys()).finish()
    }
}

impl Accounts {
    /// Makes accounts of connections without credentials, by account; `root` asks for tokens.
    pub fn new(root: kube::Client, anonymous: impl IntoIterator<Item = (&'static str, kube::Client)>) -> Self {
        Self { root, anonymous: anonymous.into_iter().collect() }
    }

    /// Makes the clients. New tokens are asked for while `gate` is open, since to ask creates one.
    pub(super) fn clients(&self, gate: &WriteGate) -> BTreeMap<&'static str, kube::Client> {
        let client = |(name, anonymous): (&&'static str, &kube::Client)| {
            let source = Arc::new(Source::new(self.root.clone(), name, gate.clone()));
            (*name, with_tokens(anonymous.clone(), source))
        };
        self.anonymous.iter().map(client).collect()
    }
}

/// Returns the user that an account is, which is also the end of its user agent.
pub fn user(account: &str) -> String {
    format!("system:serviceaccount:{NAMESPACE}:{account}")
}

/// Makes a client that adds a token to each request.
fn with_tokens(anonymous: kube::Client, source: Arc<Source>) -> kube::Client {
    let send = move |mut request: Request<Body>| {
        let (anonymous, source) = (anonymous.clone(), source.clone());
        async move {
            let token = source.token().await?;
            request.headers_mut().insert(header::AUTHORIZATION, token.clone());
            let response = anonymous.send(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                // Its account was made anew, or the server's keys were: the next request gets another.
                source.refused(&token).await;
            }
            Ok::<_, BoxError>(response)
        }
    };
    kube::Client::new(tower::service_fn(send), "default")
}
