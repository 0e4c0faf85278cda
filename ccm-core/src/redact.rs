//! Redaction of credentials in text from other programs. Servers repeat requests in their error
//! messages, with all headers.

use std::borrow::Cow;

use crate::percent::encode;

/// The text that replaces a secret.
pub const REDACTED: &str = "…";

/// The minimum length of a secret that is redacted, in bytes.
const MIN_SECRET_LENGTH: usize = 4;
/// The minimum length of a token after `Bearer` or `Basic`, which are also ordinary words.
const MIN_TOKEN_LENGTH: usize = 12;
/// The start of a JSON Web Token: `{"` in base64.
const JWT_PREFIX: &str = "eyJ";
/// The authentication schemes that are followed by a space and a token.
const SCHEMES: [&str; 2] = ["bearer", "basic"];
/// The names of headers, parameters and fields whose value is a credential.
const CREDENTIAL_NAMES: [&str; 7] = [
    "x-auth-token",
    "x-subject-token",
    "x-service-token",
    "x-amz-security-token",
    "x-aws-ec2-metadata-token",
    "secretaccesskey",
    "sessiontoken",
];

/// Replaces these secrets in a text, in plain form and as they appear in a URL or in JSON.
///
/// Secrets of less than four bytes are not replaced, because they are part of many words.
pub fn redact<'a>(text: &'a str, secrets: &[&str]) -> Cow<'a, str> {
    let mut text = Cow::Borrowed(text);
    for secret in secrets
        .iter()
        .filter(|secret| secret.len() >= MIN_SECRET_LENGTH)
    {
        for form in [Cow::Borrowed(*secret), encode(secret).into(), in_json(secret)] {
            if text.contains(&*form) {
                text = Cow::Owned(text.replace(&*form, REDACTED));
            }
        }
    }
    text
}

/// Replaces text that looks like a credential: bearer tokens, JSON Web Tokens, and the values of
/// headers that contain credentials, as in the canonical requests that AWS repeats.
pub fn redact_credentials(text: &str) -> Cow<'_, str> {
    let lower = text.to_ascii_lowercase();
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for scheme in SCHEMES {
        for (at, word) in lower.match_indices(scheme) {
            let start = at + word.len();
            let value = lower[start..].trim_start_matches([' ', '\t']);
            let begin = lower.len() - value.len();
            let length = token_length(value);
            // Ordinary words have no digits.
            let is_word = !value[..length].contains(|c: char| c.is_ascii_digit() || c == '=');
            if begin > start && length >= MIN_TOKEN_LENGTH && !is_word {
                spans.push((begin, begin + length));
            }
        }
    }
    for name in CREDENTIAL_NAMES {
        for (at, word) in lower.match_indices(name) {
            let start = at + word.len();
            // Between the name and its value may be `:`, `=`, quotes and brackets.
            let value =
                lower[start..].trim_start_matches(['"', '\'', '\\', ' ', '[', '(', '>', ':', '=']);
            let begin = lower.len() - value.len();
            let length = token_length(value);
            if lower[start..begin].contains([':', '=', '>']) && length > 0 {
                spans.push((begin, begin + length));
            }
        }
    }
    for (at, _) in text.match_indices(JWT_PREFIX) {
        let length = token_length(&text[at..]);
        if text[at..at + length].matches('.').count() >= 2 {
            spans.push((at, at + length));
        }
    }
    replace_spans(text, spans)
}

/// Returns the length of the longest prefix of the text that can be a token.
fn token_length(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && !"-._~+/=%".contains(c))
        .unwrap_or(text.len())
}

/// Replaces the parts of the text between these pairs of offsets, which may overlap.
fn replace_spans(text: &str, mut spans: Vec<(usize, usize)>) -> Cow<'_, str> {
    if spans.is_empty() {
        return Cow::Borrowed(text);
    }
    spans.sort_unstable();
    let mut out = String::with_capacity(text.len());
    let mut kept = 0;
    for (start, end) in spans {
        if start >= kept {
            out.push_str(&text[kept..start]);
            out.push_str(REDACTED);
        }
        kept = kept.max(end);
    }
    out.push_str(&text[kept..]);
    Cow::Owned(out)
}

/// Returns a secret as it appears in a JSON string.
fn in_json(secret: &str) -> Cow<'_, str> {
    if secret.contains(['"', '\\']) || secret.contains(char::is_control) {
        let text = serde_json::Value::from(secret).to_string();
        return Cow::Owned(text.trim_matches('"').to_owned());
    }
    Cow::Borrowed(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_secret_is_hidden_in_each_form() {
        let secret = "p/w \"x";
        for text in ["p/w \"x", "p%2Fw%20%22x", "{\"password\":\"p/w \\\"x\"}"] {
            let hidden = redact(text, &[secret, ""]);
            assert!(
                hidden.contains(REDACTED) && !hidden.contains("p/w") && !hidden.contains("p%2Fw"),
                "{hidden}"
            );
        }
        assert!(matches!(redact("nothing of it", &[secret]), Cow::Borrowed("nothing of it")));
    }

    #[test]
    fn what_looks_like_credentials_is_hidden() {
        let cases = [
            (
                "Authorization: Bearer abcDEF0123456789.x, and more",
                "Authorization: Bearer …, and more",
            ),
            (
                "{\"authorization\":\"bearer  abcDEF0123456789\"}",
                "{\"authorization\":\"bearer  …\"}",
            ),
            ("Basic dXNlcjpwYXNzd29yZA==", "Basic …"),
            ("X-Auth-Token: gAAAAABk x", "X-Auth-Token: … x"),
            ("{\"x-auth-token\": \"gAAAAABk\"}", "{\"x-auth-token\": \"…\"}"),
            (
                "should have been 'POST\nhost:ec2\nx-amz-date:1\nx-amz-security-token:IQoJb3Jp/+Z=\n\nhost'",
                "should have been 'POST\nhost:ec2\nx-amz-date:1\nx-amz-security-token:…\n\nhost'",
            ),
            ("<SessionToken>IQoJ</SessionToken>", "<SessionToken>…</SessionToken>"),
            (r#"b"{\"SecretAccessKey\" : \"a/b+c\"}""#, r#"b"{\"SecretAccessKey\" : \"…\"}""#),
            ("x-aws-ec2-metadata-token: AQAEAL==\n", "x-aws-ec2-metadata-token: …\n"),
            ("token eyJhbGciOi.eyJzdWIi.c2ln is expired", "token … is expired"),
            ("two: Bearer aaaaaaaaaaa1 Bearer bbbbbbbbbbb2", "two: Bearer … Bearer …"),
        ];
        for (text, hidden) in cases {
            assert_eq!(redact_credentials(text), hidden);
        }
    }

    #[test]
    fn ordinary_words_stay() {
        for text in [
            "the bearer token is not known",
            "basic authentication is off",
            "header X-Auth-Token is missing",
            "x-aws-ec2-metadata-token-ttl-seconds: 21600",
            "Bearer",
            "eyJust a word.",
            "ünïcode Bearer é",
            "",
        ] {
            assert!(
                matches!(redact_credentials(text), Cow::Borrowed(same) if same == text),
                "{text}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_can_be_read(text in "(Bearer |x-auth-token: |eyJ|[a-z.é:=]{1,13}|\\PC){0,8}") {
            let once = redact_credentials(&text).into_owned();
            proptest::prop_assert_eq!(redact_credentials(&once), &*once);
        }
    }
}
