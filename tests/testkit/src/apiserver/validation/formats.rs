//! Formats of names, keys, values and addresses. Each check returns what is wrong, in the real
//! server's words.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

const DNS_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS_SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// Characters of a label: 63, as in DNS.
const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;

fn by_pattern(rule: &str, pattern: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    // Upstream joins with two spaces.
    format!("{rule} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or "))
}

fn too_long(max: usize, unit: &str) -> String {
    format!("must be no more than {max} {unit}")
}

fn is_lower_alphanumeric(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn matches_dns_label(value: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(is_lower_alphanumeric);
    ends(value.chars().next())
        && ends(value.chars().last())
        && value.chars().all(|c| is_lower_alphanumeric(c) || c == '-')
}

fn matches_label_key(value: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    ends(value.chars().next())
        && ends(value.chars().last())
        && value
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// Checks a name of one DNS label.
pub(super) fn dns_label(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > LABEL_MAX {
        wrong.push(too_long(LABEL_MAX, "characters"));
    }
    if !matches_dns_label(value) {
        if value.split('.').all(matches_dns_label) {
            wrong.push("must not contain dots".to_owned());
        } else {
            let rule = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
                        and must start and end with an alphanumeric character";
            wrong.push(by_pattern(rule, DNS_LABEL, &["my-name", "123-abc"]));
        }
    }
    wrong
}

/// Checks a name of DNS labels with dots between them.
pub(super) fn dns_subdomain(value: &str) -> Vec<String> {
    subdomain(value, "characters")
}

fn subdomain(value: &str, unit: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        wrong.push(too_long(SUBDOMAIN_MAX, unit));
    }
    if !value.split('.').all(matches_dns_label) {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                    and must start and end with an alphanumeric character";
        wrong.push(by_pattern(rule, DNS_SUBDOMAIN, &["example.com"]));
    }
    wrong
}

/// Checks a label key, taint key or finalizer: a name, perhaps after a DNS prefix and a slash.
pub(super) fn qualified_name(value: &str) -> Vec<String> {
    let rule = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
                character";
    let examples = ["MyName", "my.name", "123-abc"];
    let mut wrong = Vec::new();
    let name = match value.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                wrong.extend(
                    subdomain(prefix, "bytes")
                        .into_iter()
                        .map(|w| format!("prefix part {w}")),
                );
            }
            name
        }
        _ => {
            let rule = by_pattern(rule, LABEL_KEY, &examples);
            let shape = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {rule} {shape}")];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        wrong.push(format!("name part {}", too_long(LABEL_MAX, "bytes")));
    }
    if !matches_label_key(name) {
        wrong.push(format!("name part {}", by_pattern(rule, LABEL_KEY, &examples)));
    }
    wrong
}

/// Checks a label or taint value; may be empty.
pub(super) fn label_value(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > LABEL_MAX {
        wrong.push(too_long(LABEL_MAX, "bytes"));
    }
    if !value.is_empty() && !matches_label_key(value) {
        let rule = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
                    and must start and end with an alphanumeric character";
        wrong.push(by_pattern(rule, &format!("({LABEL_KEY})?"), &["MyValue", "my_value", "12345"]));
    }
    wrong
}

/// Checks a key of a config map or secret.
pub(super) fn config_key(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        wrong.push(too_long(SUBDOMAIN_MAX, "characters"));
    }
    if value.is_empty()
        || !value
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    {
        let rule = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        wrong.push(by_pattern(rule, "[-._a-zA-Z0-9]+", &["key.name", "KEY_NAME", "key-name"]));
    }
    match value {
        "." => wrong.push("must not be '.'".to_owned()),
        ".." => wrong.push("must not be '..'".to_owned()),
        _ if value.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}

/// Checks a name that can be part of a path: all that the oldest kinds ask for.
pub(super) fn path_segment(value: &str) -> Vec<String> {
    if matches!(value, "." | "..") {
        return vec![format!("may not be '{value}'")];
    }
    let illegal = ["/", "%"].into_iter().filter(|c| value.contains(c));
    illegal.map(|c| format!("may not contain '{c}'")).collect()
}

/// Checks a port number.
pub(super) fn port_number(value: i64) -> Option<&'static str> {
    (!(1..=65_535).contains(&value)).then_some("must be between 1 and 65535, inclusive")
}

/// Checks the name of a port of a pod.
pub(super) fn port_name(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 15 {
        wrong.push(too_long(15, "characters"));
    }
    if value.is_empty() || !value.chars().all(|c| is_lower_alphanumeric(c) || c == '-') {
        wrong.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !value.chars().any(|c| c.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

/// Checks an IP address.
pub(super) fn ip(value: &str) -> Option<&'static str> {
    match value.parse::<IpAddr>() {
        Ok(IpAddr::V6(six)) if six.to_ipv4_mapped().is_some() => {
            Some("must not be an IPv4-mapped IPv6 address")
        }
        Ok(_) => None,
        Err(_) if without_leading_zeros(value).is_some() => Some("must not have leading 0s"),
        Err(_) => Some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
    }
}

/// Parses dotted quads with leading zeros, which older versions accepted.
fn without_leading_zeros(value: &str) -> Option<Ipv4Addr> {
    let octets: Vec<u8> = value
        .split('.')
        .map(|part| decimal(part)?.try_into().ok())
        .collect::<Option<_>>()?;
    Some(Ipv4Addr::from(<[u8; 4]>::try_from(octets).ok()?))
}

fn decimal(digits: &str) -> Option<u32> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        None
    } else {
        digits.parse().ok()
    }
}

/// Returns true if an address may be an endpoint: one that other machines can reach.
pub(super) fn endpoint_ip(value: &str) -> Vec<String> {
    let Ok(address) = value.parse::<IpAddr>() else {
        return vec!["must be a valid IP address".to_owned()];
    };
    let (link_local, link_local_multicast) = match address {
        IpAddr::V4(four) => (four.is_link_local(), four.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(six) => (six.is_unicast_link_local(), six.segments()[0] & 0xff0f == 0xff02),
    };
    let mut wrong = Vec::new();
    if address.is_unspecified() {
        wrong.push(format!("may not be unspecified ({value})"));
    }
    if address.is_loopback() {
        wrong.push("may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned());
    }
    if link_local {
        wrong.push("may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned());
    }
    if link_local_multicast {
        wrong.push(
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned(),
        );
    }
    wrong
}

/// Checks a network in CIDR form. The network crate's own parser takes leading zeros.
pub(super) fn cidr(value: &str) -> Vec<String> {
    let wrong = match parse_cidr(value) {
        None => "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        Some((_, true)) => "must not have leading 0s in IP or prefix length",
        Some((IpNet::V6(six), _)) if six.addr().to_ipv4_mapped().is_some() => {
            "must not have an IPv4-mapped IPv6 address"
        }
        Some((net, _)) if net.addr() != net.network() => {
            "must not have bits set beyond the prefix length"
        }
        Some(_) => return Vec::new(),
    };
    vec![wrong.to_owned()]
}

/// Parses a network, and returns whether it is written with leading zeros.
fn parse_cidr(value: &str) -> Option<(IpNet, bool)> {
    let (address, prefix) = value.split_once('/')?;
    let strict = address.parse::<IpAddr>().ok();
    let bits = u8::try_from(decimal(prefix)?).ok()?;
    let net = IpNet::new(strict.or_else(|| without_leading_zeros(address).map(IpAddr::V4))?, bits)
        .ok()?;
    Some((net, strict.is_none() || (prefix.len() > 1 && prefix.starts_with('0'))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_or_refused() {
        for good in ["a", "0", "a-b", "a1", &"a".repeat(63)] {
            assert_eq!(dns_label(good), Vec::<String>::new(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "é", &"a".repeat(64)] {
            assert_eq!(dns_label(bad).len(), 1, "{bad}");
        }
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert_eq!(
            dns_label("A"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
              end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
              '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        for good in ["a", "a.b", "10.0.0.1", "a-b.c"] {
            assert_eq!(dns_subdomain(good), Vec::<String>::new(), "{good}");
        }
        for bad in ["", ".", "a..b", "a.-b", "A.b", "a.", &"a".repeat(254)] {
            assert_eq!(dns_subdomain(bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn keys_and_values_are_taken_or_refused() {
        for good in ["a", "A.b_c-d", "example.com/a", "node.kubernetes.io/x"] {
            assert_eq!(qualified_name(good), Vec::<String>::new(), "{good}");
        }
        for (bad, complaints) in
            [("", 2), ("/a", 1), ("a/", 2), ("a/b/c", 1), ("A.com/x", 1), ("-a", 1), ("a b", 1)]
        {
            assert_eq!(qualified_name(bad).len(), complaints, "{bad}");
        }
        assert_eq!(qualified_name("/a"), ["prefix part must be non-empty"]);
        let long = "a".repeat(64);
        assert_eq!(qualified_name(&long), ["name part must be no more than 63 bytes"]);
        assert_eq!(label_value(&long), ["must be no more than 63 bytes"]);
        assert!(
            label_value("").is_empty()
                && label_value("a_b.C").is_empty()
                && label_value("a/b").len() == 1
        );
        assert!(config_key("ca.crt").is_empty());
        for (bad, complaints) in [("", 1), (".", 1), ("..", 1), ("..a", 1), ("a/b", 1)] {
            assert_eq!(config_key(bad).len(), complaints, "{bad}");
        }
        assert!(port_name("http").is_empty() && port_name("a-1").is_empty());
        for (bad, complaints) in
            [("", 2), ("80", 1), ("Http", 1), ("a--b", 1), ("-a", 1), ("abcdefghijklmnop", 1)]
        {
            assert_eq!(port_name(bad).len(), complaints, "{bad}");
        }
        assert_eq!((port_number(1), port_number(65_535)), (None, None));
        assert!(port_number(0).is_some() && port_number(65_536).is_some());
    }

    #[test]
    fn addresses_are_taken_or_refused() {
        assert_eq!((ip("10.0.0.1"), ip("fd00::1")), (None, None));
        assert_eq!(ip("010.0.0.1"), Some("must not have leading 0s"));
        assert_eq!(ip("::ffff:10.0.0.1"), Some("must not be an IPv4-mapped IPv6 address"));
        assert_eq!(
            ip("10.0.0"),
            Some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
        );
        assert!(cidr("10.0.0.0/24").is_empty() && cidr("fd00::/64").is_empty());
        assert_eq!(cidr("10.0.0.1/24"), ["must not have bits set beyond the prefix length"]);
        assert_eq!(cidr("010.0.0.0/24"), ["must not have leading 0s in IP or prefix length"]);
        assert_eq!(
            cidr("10.0.0.0"),
            ["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"]
        );
        assert_eq!(
            cidr("10.0.0.0/40"),
            ["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"]
        );
        assert!(endpoint_ip("10.0.0.1").is_empty() && endpoint_ip("fd00::1").is_empty());
        for bad in
            ["0.0.0.0", "127.0.0.1", "169.254.0.1", "224.0.0.1", "::1", "fe80::1", "ff02::1", "x"]
        {
            assert_eq!(endpoint_ip(bad).len(), 1, "{bad}");
        }
    }
}
