//! Syntax of names and labels.

/// The maximum length of the name part of a label key and of a label value (`metav1` validation).
const MAX_NAME: usize = 63;
/// The maximum length of a DNS subdomain (RFC 1123).
const MAX_SUBDOMAIN: usize = 253;

/// Returns true if the API server accepts this as the name of an object or the prefix of a label
/// key: a DNS subdomain (RFC 1123).
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_dns_label)
}

fn is_dns_label(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Returns true if the API server accepts this as the name part of a label key: 1 to 63 letters,
/// digits, `-`, `_` and `.`, with a letter or digit at each end.
pub(crate) fn is_label_name(text: &str) -> bool {
    let (Some(first), Some(last)) = (text.bytes().next(), text.bytes().last()) else {
        return false;
    };
    text.len() <= MAX_NAME
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && first.is_ascii_alphanumeric()
        && last.is_ascii_alphanumeric()
}

/// Returns true if the API server accepts this label value: empty, or 1 to 63 letters, digits, `-`,
/// `_` and `.`, with a letter or digit at each end.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_label_name(text)
}
