//! `clouds.yaml`, and `secure.yaml` behind it.

use ccm_core::error::chain;
use ccm_openstack::config::{Environment, parse};
use serde_json::Value;

use super::secrets;
use crate::input::text_of;

/// Words of the files.
pub const WORDS: &[&str] = &[
    "clouds:\n",
    "  one:\n",
    "    auth:\n",
    "      auth_url: https://keystone.example/v3\n",
    "      username: u\n",
    "      password: kR7pQ2vX9s\n",
    "      project_name: p\n",
    "      user_domain_name: Default\n",
    "      application_credential_id: a\n",
    "      application_credential_secret: hT5yC3jF6g\n",
    "      token: vN9eD2uK7x\n",
    "      trust_id: t\n",
    "    region_name: R\n",
    "    interface: public\n",
    "    verify: false\n",
    "    profile: base\n",
    "    cacert: ca.pem\n",
    SECURE,
    "&a ",
    "*a",
    "!!binary ",
    "- ",
    "{",
    "}",
    "\t",
    "null",
    "~",
    "|\n",
];

/// Stands between the two files.
const SECURE: &str = "\n%%% secure.yaml\n";
/// Names of what nobody may see.
const SECRET: [&str; 3] = ["password", "application_credential_secret", "token"];

/// Reads the bytes as the files.
pub fn run(data: &[u8]) {
    let text = text_of(data);
    let (clouds, secure) = text.split_once(SECURE).unwrap_or((&text, ""));
    let folder = tempfile::tempdir().expect("there is room for two files");
    let file = folder.path().join("clouds.yaml");
    std::fs::write(&file, clouds).expect("there is room");
    if !secure.is_empty() {
        std::fs::write(folder.path().join("secure.yaml"), secure).expect("there is room");
    }
    let conf =
        format!("[Global]\nuse-clouds = true\nclouds-file = \"{}\"\ncloud = one\n", file.display());
    let shown = match parse(&conf, &Environment::default()) {
        Ok(settings) => {
            assert!(settings.sources.contains(&file), "{:?}", settings.sources);
            assert!(!settings.cloud.auth.url.cannot_be_a_base());
            vec![format!("{settings:?}"), format!("{:?}", settings.effective())]
        }
        Err(error) => {
            assert!(!error.issues().is_empty());
            vec![chain(&error), format!("{error:?}")]
        }
    };
    let mut found = Vec::new();
    for part in [clouds, secure] {
        if let Ok(document) = serde_saphyr::from_str::<Value>(part) {
            gather(&document, &mut found);
        }
    }
    let telling = found
        .iter()
        .map(String::as_str)
        .filter(|secret| secrets::is_telling(secret, &text));
    secrets::are_hidden(telling, &shown);
}

/// Gathers the secrets of a document.
fn gather(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(text) if SECRET.contains(&key.as_str()) => {
                        found.push(text.clone());
                    }
                    other => gather(other, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| gather(item, found)),
        _ => {}
    }
}
