//! Syntax rules of the Kubernetes API for labels and addresses, as in apimachinery's
//! `util/validation`.

use std::net::IpAddr;

use ccm_core::k8s::{AddressType, NodeAddress};

/// Maximum length of a label value, and of the name part of a label key.
const MAX_LABEL: usize = 63;
/// Maximum length of a DNS subdomain.
const MAX_SUBDOMAIN: usize = 253;

/// Checks a label key (`name` or `prefix/name`).
pub(super) fn check_label_key(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
        return Err(format!("label key {key:?} has a prefix that is not a DNS subdomain"));
    }
    match !name.is_empty() && is_label_text(name) {
        true => Ok(()),
        false => Err(format!("label key {key:?} is not valid")),
    }
}

/// Checks a label value.
pub(super) fn check_label_value(value: &str) -> Result<(), String> {
    match is_label_text(value) {
        true => Ok(()),
        false => Err(format!("label value {value:?} is not valid")),
    }
}

/// Checks that there is at least one address, that each is valid for its type, and that none is
/// listed twice.
pub(super) fn check_addresses(addresses: &[NodeAddress]) -> Result<(), String> {
    if addresses.is_empty() {
        return Err("no address".to_owned());
    }
    for (index, address) in addresses.iter().enumerate() {
        let text = &*address.address;
        let valid = match address.kind {
            AddressType::InternalIp | AddressType::ExternalIp => text.parse::<IpAddr>().is_ok(),
            AddressType::Hostname | AddressType::InternalDns | AddressType::ExternalDns => {
                is_subdomain(&text.to_ascii_lowercase())
            }
        };
        if !valid {
            return Err(format!("{} {text:?} is not valid", address.kind.as_str()));
        }
        if addresses[..index].contains(address) {
            return Err(format!("{} {text} is listed twice", address.kind.as_str()));
        }
    }
    Ok(())
}

fn is_label_text(text: &str) -> bool {
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= MAX_LABEL
        && ends(text.chars().next())
        && ends(text.chars().next_back())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

pub(super) fn is_subdomain(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.iter().all(|c| plain(*c) || *c == b'-')
            && bytes.first().is_some_and(|c| plain(*c))
            && bytes.last().is_some_and(|c| plain(*c))
    };
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_keys_and_values_follow_the_api() {
        let long = "a".repeat(63);
        for key in ["a", "A.b_c-d", "example.com/a", &long, "1/2"] {
            assert_eq!(check_label_key(key), Ok(()), "{key}");
        }
        let too_long = "a".repeat(64);
        for key in ["", "/a", "a/", "a/b/c", "-a", "a-", "A.com/x", "a b", "é", &too_long] {
            assert!(check_label_key(key).is_err(), "{key}");
        }
        for value in ["", "a", "t3.large", "eu-1a", "A_b"] {
            assert_eq!(check_label_value(value), Ok(()), "{value}");
        }
        for value in ["a b", "a/b", ".a", "a_", &too_long] {
            assert!(check_label_value(value).is_err(), "{value}");
        }
    }

    #[test]
    fn addresses_are_checked_by_their_type() {
        let list = |entries: &[(AddressType, &str)]| {
            check_addresses(
                &entries
                    .iter()
                    .map(|(kind, text)| NodeAddress::new(*kind, *text))
                    .collect::<Vec<_>>(),
            )
        };
        use AddressType::{ExternalDns, ExternalIp, Hostname, InternalIp};
        assert_eq!(
            list(&[
                (InternalIp, "10.0.0.1"),
                (InternalIp, "fd00::1"),
                (Hostname, "Node-1"),
                (ExternalDns, "a.b")
            ]),
            Ok(())
        );
        assert_eq!(list(&[(InternalIp, "10.0.0.1"), (ExternalIp, "10.0.0.1")]), Ok(()));
        for bad in [
            &[][..],
            &[(InternalIp, "node")],
            &[(Hostname, "")],
            &[(Hostname, "a"), (Hostname, "a")],
        ] {
            assert!(list(bad).is_err(), "{bad:?}");
        }
    }
}
