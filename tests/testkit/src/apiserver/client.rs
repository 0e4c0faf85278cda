//! Clients in this process.

use http::{HeaderValue, Request, header};
use tower::ServiceExt as _;

use super::ApiServer;
use super::auth::User;
use crate::hooks::Hooks;

/// Sender of a request, set by the code that passes it to the service. Without it the sender is in
/// this process and trusted.
#[derive(Debug, Clone)]
pub(crate) enum ClientIdentity {
    /// Over the network: known by token alone.
    Network,
    /// In this process.
    Local { user: User, hooks: Option<Hooks> },
}

/// Makes a client in this process, as one process under test would have it.
#[derive(Debug)]
#[must_use]
pub struct ClientBuilder {
    server: ApiServer,
    user: User,
    user_agent: Option<String>,
    hooks: Option<Hooks>,
}

impl ClientBuilder {
    pub(crate) fn new(server: ApiServer) -> Self {
        Self { server, user: User::admin(), user_agent: None, hooks: None }
    }

    /// Acts as this user. Default: an administrator.
    pub fn user(mut self, user: User) -> Self {
        self.user = user;
        self
    }

    /// Sends this `User-Agent`, which faults and the log can tell clients apart by. Default: none.
    pub fn user_agent(mut self, user_agent: &str) -> Self {
        self.user_agent = Some(user_agent.into());
        self
    }

    /// Calls these hooks around every write, and fails everything once they have crashed the
    /// process.
    pub fn hooks(mut self, hooks: &Hooks) -> Self {
        self.hooks = Some(hooks.clone());
        self
    }

    /// Returns the client. Must be called inside a tokio runtime.
    pub fn build(self) -> kube::Client {
        let Self { server, user, user_agent, hooks } = self;
        let user_agent = user_agent.and_then(|v| HeaderValue::from_str(&v).ok());
        let service = server.map_request(move |mut request: Request<kube::client::Body>| {
            request
                .extensions_mut()
                .insert(ClientIdentity::Local { user: user.clone(), hooks: hooks.clone() });
            if let Some(value) = &user_agent {
                request
                    .headers_mut()
                    .entry(header::USER_AGENT)
                    .or_insert_with(|| value.clone());
            }
            request
        });
        kube::Client::new(service, "default")
    }
}
