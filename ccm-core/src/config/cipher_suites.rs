//! Cipher suites and key-exchange groups, by the names and numbers that flags use: those of Go's
//! `crypto/tls`.
//!
//! A manifest may name suites or groups that Go supports and this program's TLS library does not,
//! because they are weak. That is not an operator error, so they are left out with a warning. An
//! unknown name is an error.
//!
//! In a FIPS build, a suite or group that FIPS 140-3 does not approve is an error, too. Without it
//! the server would not be what the flag says, and whoever runs such a build wants to know.

use rustls::{
    SupportedCipherSuite,
    crypto::{CryptoProvider, SupportedKxGroup},
};

use crate::crypto::{self, FIPS};

/// Suites or groups that a flag selects.
#[derive(Debug)]
pub(crate) struct Selected<T> {
    /// Those that are offered.
    pub(crate) supported: Vec<T>,
    /// Those that Go supports and this program does not.
    pub(crate) unsupported: Vec<String>,
}

/// Suites of Go that are never offered: no forward secrecy, CBC, RC4 or 3DES.
const WEAK: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// The groups of Go that are not implemented here: P-521 and the post-quantum hybrids. A FIPS build
/// has two of these hybrids.
const MISSING_GROUPS: &[i32] = &[25, 4587, 4588, 4589];

/// Older names that Kubernetes still accepts.
const LEGACY: &[(&str, &str)] = &[
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    ),
];

/// Creates the cryptography provider of a server from its flags. Empty lists select the library's
/// defaults.
pub(crate) fn provider(suites: &[String], groups: &[i32]) -> Result<CryptoProvider, String> {
    let mut provider = crypto::provider();
    if !suites.is_empty() {
        provider.cipher_suites = cipher_suites(suites)?.supported;
    }
    if !groups.is_empty() {
        provider.kx_groups = key_exchanges(groups)?.supported;
    }
    Ok(provider)
}

/// Looks up suites by name. As in Go, the list only restricts TLS 1.2: the suites of TLS 1.3 are
/// always enabled.
///
/// # Errors
/// The unknown names, and all known ones. In a FIPS build also the names of suites that are not
/// approved.
pub(crate) fn cipher_suites(names: &[String]) -> Result<Selected<SupportedCipherSuite>, String> {
    let all = crypto::cipher_suites();
    let offered: Vec<_> = all
        .iter()
        .copied()
        .filter(|suite| is_offered(suite.fips()))
        .collect();
    let mut supported: Vec<_> = offered
        .iter()
        .copied()
        .filter(|suite| suite.tls13().is_some())
        .collect();
    let mut unsupported = Vec::new();
    let mut unapproved = Vec::new();
    let mut unknown = Vec::new();
    for name in names {
        let name = name.as_str();
        let current = LEGACY
            .iter()
            .find(|(old, _)| *old == name)
            .map_or(name, |(_, new)| new);
        match all
            .iter()
            .copied()
            .find(|suite| suite_name(*suite) == current)
        {
            Some(suite) if !offered.contains(&suite) => unapproved.push(name),
            Some(suite) if !supported.contains(&suite) => supported.push(suite),
            Some(_) => {}
            None if WEAK.contains(&name) => unsupported.push(name.to_owned()),
            None => unknown.push(name),
        }
    }
    if unknown.is_empty() && unapproved.is_empty() {
        return Ok(Selected { supported, unsupported });
    }
    let mut known_names: Vec<_> = offered.iter().map(|suite| suite_name(*suite)).collect();
    known_names.sort_unstable();
    let problem = if unknown.is_empty() {
        format!("cipher suite {} is not approved by FIPS 140-3", unapproved.join(", "))
    } else {
        format!("cipher suite {} does not exist", unknown.join(", "))
    };
    Err(format!("{problem}; known are {}", known_names.join(", ")))
}

/// Returns true if this build offers a suite or group, which may be approved by FIPS 140-3 or not.
fn is_offered(is_approved: bool) -> bool {
    is_approved || !FIPS
}

/// Looks up groups, in order of preference.
///
/// # Errors
/// A number that is duplicate or unknown, or a list without any supported group. In a FIPS build
/// also a group that is not approved.
pub(crate) fn key_exchanges(
    numbers: &[i32],
) -> Result<Selected<&'static dyn SupportedKxGroup>, String> {
    let mut served = Vec::new();
    let mut left_out = Vec::new();
    for (position, number) in numbers.iter().enumerate() {
        if numbers[..position].contains(number) {
            return Err(format!("duplicate curve preference {number}"));
        }
        match crypto::key_exchanges()
            .iter()
            .find(|group| i32::from(u16::from(group.name())) == *number)
        {
            Some(group) if !is_offered(group.fips()) => {
                return Err(format!(
                    "curve preference {number} is not approved by FIPS 140-3; supported are {}",
                    known_groups()
                ));
            }
            Some(group) => served.push(*group),
            None if MISSING_GROUPS.contains(number) => left_out.push(number.to_string()),
            None => {
                return Err(format!(
                    "curve preference {number} is unknown; known are {}",
                    known_groups()
                ));
            }
        }
    }
    if served.is_empty() && !numbers.is_empty() {
        return Err(format!("none of these curves is supported; supported are {}", known_groups()));
    }
    Ok(Selected { supported: served, unsupported: left_out })
}

/// Returns the name of a suite as IANA and Go spell it.
fn suite_name(suite: SupportedCipherSuite) -> String {
    let name = suite.suite().as_str().unwrap_or_default();
    name.strip_prefix("TLS13_")
        .map_or_else(|| name.to_owned(), |rest| format!("TLS_{rest}"))
}

fn known_groups() -> String {
    let mut names = Vec::new();
    let groups = crypto::key_exchanges().iter();
    for group in groups.filter(|group| is_offered(group.fips())) {
        let name = group.name().as_str().unwrap_or_default();
        names.push(format!("{} ({name})", u16::from(group.name())));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suites(names: &str) -> Result<(Vec<String>, Vec<String>), String> {
        let names: Vec<_> = names.split(',').map(str::to_owned).collect();
        cipher_suites(&names).map(|chosen| {
            (chosen.supported.into_iter().map(suite_name).collect(), chosen.unsupported)
        })
    }

    #[cfg(not(feature = "fips"))]
    const TLS13: [&str; 3] =
        ["TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"];
    #[cfg(feature = "fips")]
    const TLS13: [&str; 2] = ["TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"];

    #[test]
    fn suites_have_go_s_names_and_those_of_tls_13_are_always_there() {
        let (served, left_out) =
            suites("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_128_CBC_SHA").unwrap();
        assert_eq!(served, [&TLS13[..], &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]].concat());
        assert_eq!(left_out, ["TLS_RSA_WITH_AES_128_CBC_SHA"]);
    }

    #[test]
    #[cfg(not(feature = "fips"))]
    fn older_names_stand_for_their_suites() {
        let (served, _) =
            suites("TLS_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305").unwrap();
        assert_eq!(
            served,
            [&TLS13[..], &["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"]].concat()
        );
    }

    #[test]
    #[cfg(feature = "fips")]
    fn a_fips_build_refuses_what_is_not_approved() {
        for name in [
            "TLS_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        ] {
            let error = suites(name).unwrap_err();
            let expected =
                format!("cipher suite {name} is not approved by FIPS 140-3; known are TLS_AES");
            assert!(error.starts_with(&expected), "{error}");
            assert!(!error["cipher suite ".len() + name.len()..].contains("CHACHA20"), "{error}");
        }
        // X25519
        let error = key_exchanges(&[23, 29]).unwrap_err();
        assert!(error.starts_with("curve preference 29 is not approved by FIPS 140-3"), "{error}");
        assert!(!error.contains("(X25519)"), "{error}");
        let groups: Vec<_> = key_exchanges(&[4588, 24]).unwrap().supported;
        let numbers: Vec<_> = groups.iter().map(|group| u16::from(group.name())).collect();
        assert_eq!(numbers, [4588, 24]);
        // A server with any flags is in FIPS mode.
        let provider = provider(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned()], &[24]);
        assert!(provider.unwrap().fips());
    }

    #[test]
    fn unknown_suites_are_named_beside_the_known() {
        let error = suites("TLS_FOO,TLS_AES_128_GCM_SHA256,TLS13_AES_128_GCM_SHA256").unwrap_err();
        assert!(
            error.starts_with(
                "cipher suite TLS_FOO, TLS13_AES_128_GCM_SHA256 does not exist; known"
            ),
            "{error}"
        );
        assert!(error.contains("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"), "{error}");
    }

    #[test]
    #[cfg(not(feature = "fips"))]
    fn groups_have_iana_s_numbers() {
        let groups = |numbers: &[i32]| {
            let chosen = key_exchanges(numbers)?;
            let served = chosen
                .supported
                .iter()
                .map(|group| u16::from(group.name()))
                .collect::<Vec<_>>();
            Ok::<_, String>((served, chosen.unsupported))
        };
        assert_eq!(groups(&[]), Ok((vec![], vec![])));
        assert_eq!(groups(&[23, 29]), Ok((vec![23, 29], vec![])));
        assert_eq!(groups(&[4588, 24]), Ok((vec![24], vec!["4588".to_owned()])));
        for (numbers, error) in [
            (&[29, 23, 29][..], "duplicate curve preference 29"),
            (&[1], "curve preference 1 is unknown"),
            (&[-1], "curve preference -1 is unknown"),
            (&[25], "none of these curves is supported; supported are 29 (X25519)"),
        ] {
            let found = groups(numbers).unwrap_err();
            assert!(found.starts_with(error), "{found}");
        }
    }
}
