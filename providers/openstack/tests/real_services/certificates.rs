//! Certificates in Barbican.

use http::Method;
use serde_json::{Value, json};

use crate::cloud::{RealCloud, User};

impl RealCloud {
    /// Stores a new certificate with its key in a container, and returns the container's reference.
    pub(crate) async fn certificate(&self, name: &str) -> anyhow::Result<String> {
        let certified = rcgen::generate_simple_self_signed([format!("{name}.example.org")])?;
        let mut parts = Vec::new();
        for (part, text) in [
            ("certificate", certified.cert.pem()),
            ("private_key", certified.signing_key.serialize_pem()),
        ] {
            let secret = json!({"name": format!("{name} {part}"), "payload": text,
                "payload_content_type": "text/plain"});
            let made =
                self.must(User::Owner, Method::POST, "key-manager", "/v1/secrets", Some(secret));
            parts.push(json!({"name": part, "secret_ref": made.await?["secret_ref"]}));
        }
        let container = json!({"name": name, "type": "certificate", "secret_refs": parts});
        let path = "/v1/containers";
        let made = self
            .must(User::Owner, Method::POST, "key-manager", path, Some(container))
            .await?;
        Ok(made["container_ref"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    }

    /// Containers of the project.
    pub(crate) async fn containers(&self) -> anyhow::Result<Vec<Value>> {
        match self
            .get(User::Owner, "key-manager", "/v1/containers?limit=100")
            .await?["containers"]
            .take()
        {
            Value::Array(list) => Ok(list),
            other => anyhow::bail!("no containers: {other}"),
        }
    }
}
