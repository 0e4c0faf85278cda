//! Checks names in the TLS flags of the HTTPS server.

use super::rejected;
use crate::config::{Config, ConfigError, cipher_suites};

pub(super) fn check(config: &Config, errors: &mut Vec<ConfigError>) {
    let serving = &config.serving;
    if let Err(reason) = cipher_suites::cipher_suites(&serving.tls_cipher_suites) {
        errors.push(rejected("tls-cipher-suites", &serving.tls_cipher_suites.join(","), reason));
    }
    if let Err(reason) = cipher_suites::key_exchanges(&serving.tls_curve_preferences) {
        let numbers: Vec<_> = serving
            .tls_curve_preferences
            .iter()
            .map(ToString::to_string)
            .collect();
        errors.push(rejected("tls-curve-preferences", &numbers.join(","), reason));
    }
}

/// Returns warnings about suites and groups that Go would offer and this program does not.
pub(in crate::config) fn warnings(config: &Config) -> Vec<String> {
    let serving = &config.serving;
    let mut warnings = Vec::new();
    if let Ok(suites) = cipher_suites::cipher_suites(&serving.tls_cipher_suites)
        && !suites.unsupported.is_empty()
    {
        warnings.push(format!(
            "--tls-cipher-suites: {} left out: weak, and not served by this program",
            suites.unsupported.join(",")
        ));
    }
    if let Ok(groups) = cipher_suites::key_exchanges(&serving.tls_curve_preferences)
        && !groups.unsupported.is_empty()
    {
        warnings.push(format!(
            "--tls-curve-preferences: {} left out: not supported by this program",
            groups.unsupported.join(",")
        ));
    }
    warnings
}
