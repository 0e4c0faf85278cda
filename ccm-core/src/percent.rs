//! Percent-encoding (RFC 3986) of what stands in a URL.

use std::fmt::Write as _;

/// Escapes all but the unreserved characters, so that no name can change which resource is meant. A
/// segment of dots alone would be taken for a step up, or resolved away by an intermediary.
pub(crate) fn encode(text: &str) -> String {
    let dots = matches!(text, "." | "..");
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'-' | b'_' | b'~' => out.push(char::from(byte)),
            b'.' if !dots => out.push('.'),
            _ if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            _ => {
                // Writing to a String does not fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_segment() {
        assert_eq!(encode("node-1.example"), "node-1.example");
        assert_eq!(encode("../x?y#z"), "..%2Fx%3Fy%23z");
        assert_eq!(encode(".."), "%2E%2E");
    }
}
