//! Users, tokens and kubeconfigs.

use std::fmt;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use serde_json::json;

/// A bearer token. Its value is never shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Returns a new token that nobody can guess.
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().simple().to_string())
    }

    /// Wraps a token that came from elsewhere, for instance a service account's.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the token itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A user that the API server knows by a static bearer token.
#[derive(Debug, Clone)]
pub struct User {
    /// User name as RBAC sees it.
    pub name: String,
    /// Groups, for instance `system:masters`.
    pub groups: Vec<String>,
    /// The token.
    pub token: Token,
}

impl User {
    /// Returns a user without groups and with a random token.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            groups: Vec::new(),
            token: Token::random(),
        }
    }

    /// Adds a group.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.groups.push(group.into());
        self
    }

    /// Returns the user's line of the API server's token file.
    pub(super) fn token_line(&self) -> String {
        // Four comma-separated columns: token, name, uid, and the groups as one quoted column.
        format!(
            "{},\"{}\",\"{}\",\"{}\"\n",
            self.token.reveal(),
            self.name,
            self.name,
            self.groups.join(",")
        )
    }
}

/// Address of an API server, and the CA of its certificate.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    /// `https://` address.
    pub(super) url: String,
    /// CA as PEM.
    pub(super) ca_pem: String,
}

impl Endpoint {
    /// Returns a kubeconfig as JSON, which is also YAML; the CA and the token are inside.
    pub(super) fn kubeconfig(&self, user: &str, token: &Token) -> serde_json::Value {
        use base64::Engine as _;
        let ca = base64::engine::general_purpose::STANDARD.encode(&self.ca_pem);
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority-data": ca}}],
            "users": [{"name": user, "user": {"token": token.reveal()}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        })
    }

    /// Returns the same as kube's client configuration.
    pub(super) async fn config(&self, token: &Token) -> Result<kube::Config, KubeconfigError> {
        let mut kubeconfig = Kubeconfig::default();
        let value = self.kubeconfig("user", token);
        // Field by field, since kube's error for a whole kubeconfig is tied to its own YAML reader.
        kubeconfig.clusters = list(&value["clusters"]);
        kubeconfig.auth_infos = list(&value["users"]);
        kubeconfig.contexts = list(&value["contexts"]);
        kubeconfig.current_context = Some("test".to_owned());
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await
    }
}

/// Reads a list that this module wrote itself.
fn list<T: serde::de::DeserializeOwned>(value: &serde_json::Value) -> Vec<T> {
    serde_json::from_value(value.clone()).expect("a kubeconfig made here has the shape kube reads")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_never_shown() {
        let user = User::new("someone").group("a").group("b");
        let shown = format!("{user:?}");
        assert!(!shown.contains(user.token.reveal()), "{shown}");
        assert!(shown.contains("someone"));
        assert_ne!(Token::random(), Token::random());
    }

    #[test]
    fn the_token_file_has_one_quoted_column_of_groups() {
        let mut user = User::new("someone").group("a").group("b");
        user.token = Token::new("t");
        assert_eq!(user.token_line(), "t,\"someone\",\"someone\",\"a,b\"\n");
    }

    #[tokio::test]
    async fn the_client_configuration_carries_address_and_ca() {
        let ca_pem = rcgen::generate_simple_self_signed(vec!["ca".to_owned()])
            .unwrap()
            .cert
            .pem();
        let endpoint = Endpoint { url: "https://127.0.0.1:6443".to_owned(), ca_pem };
        let config = endpoint.config(&Token::new("t")).await.unwrap();
        assert_eq!(config.cluster_url.to_string(), "https://127.0.0.1:6443/");
        assert_eq!(config.root_cert.map(|certificates| certificates.len()), Some(1));
        assert!(config.auth_info.token.is_some());
    }
}
