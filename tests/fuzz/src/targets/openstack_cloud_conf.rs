//! `cloud.conf` of OpenStack, without the other files.

use ccm_core::config::gcfg as reader;
use ccm_openstack::config::{ConfigErrors, Environment, parse};

use super::{gcfg, secrets};
use crate::input::text_of;

/// Words of the file.
pub const WORDS: &[&str] = &[
    "auth-url = https://keystone.example/v3\n",
    "username = u\n",
    "user-id = u1\n",
    "password = kR7pQ2vX9s\n",
    "domain-name = Default\n",
    "tenant-name = t\n",
    "trust-id = t1\n",
    "trustee-password = mW4zB8nL1d\n",
    "application-credential-id = a1\n",
    "application-credential-secret = hT5yC3jF6g\n",
    "token = vN9eD2uK7x\n",
    "region = R\n",
    "[Networking]\n",
    "address-sort-order = 10.0.0.0/8\n",
    "[Route]\nrouter-id = r\n",
    "[Metadata]\nrequest-timeout = 5s\n",
    "[LoadBalancer]\n",
    "lb-provider = ovn\n",
    "monitor-delay = 5s\n",
    "node-selector = a=b\n",
    "[LoadBalancerClass \"c\"]\n",
    "floating-network-id = f\n",
    "[Requests]\n",
    "read-qps = 1\n",
    "https://u:p4Sw0rD7xq@host/",
    "[Global]\n",
    "\"",
    "\\",
    "\n",
];

/// Keys of what nobody may see.
const SECRET: [&str; 4] =
    ["password", "trustee-password", "application-credential-secret", "token"];

/// Reads the bytes as the file.
pub fn run(data: &[u8]) {
    let text = text_of(data);
    gcfg::check(&text);
    // The files that this would read have a target of their own.
    if text.to_ascii_lowercase().contains("use-clouds") {
        return;
    }
    let environment = Environment::default();
    let mut shown = Vec::new();
    match parse(&text, &environment) {
        Ok(settings) => {
            gcfg::in_order(&settings.warnings, &text);
            shown.extend([format!("{settings:?}"), format!("{:?}", settings.effective())]);
            assert_eq!(settings.sources, Vec::<std::path::PathBuf>::new());
            let again = parse(&format!("{text}\n; a comment\n"), &environment);
            assert_eq!(again.ok(), Some(settings), "a comment counts");
        }
        Err(error) => {
            gcfg::in_order(error.issues(), &text);
            assert!(
                matches!(&error, ConfigErrors::Invalid { issues, .. } if !issues.is_empty()),
                "{error:?}"
            );
            shown.extend([error.to_string(), format!("{error:?}")]);
        }
    }
    let document = reader::parse(&text);
    let entries = document
        .sections
        .iter()
        .flat_map(|section| &section.entries);
    let hidden = entries.filter(|entry| {
        SECRET
            .iter()
            .any(|key| key.eq_ignore_ascii_case(&entry.key))
    });
    let hidden = hidden
        .filter_map(|entry| entry.value.as_deref())
        .filter(|value| secrets::is_telling(value, &text));
    secrets::are_hidden(hidden, &shown);
}
