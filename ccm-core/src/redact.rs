//! Keeping credentials out of what others say: servers repeat requests in their error messages,
//! headers and all.

use std::borrow::Cow;

use crate::percent::encode;

/// What stands in place of a secret.
pub const REDACTED: &str = "…";

/// Shortest secret that is looked for.
const MIN_SECRET_LENGTH: usize = 4;
/// Shortest text that counts as a token behind `Bearer` or `Basic`, which are words as well.
const MIN_TOKEN_LENGTH: usize = 12;
/// What a JSON Web Token begins with: `{"` in base64.
const JWT: &str = "eyJ";
/// Words behind which a token follows after a space.
const SCHEMES: [&str; 2] = ["bearer", "basic"];
/// Names of headers, parameters and fields whose value is a credential.
const NAMES: [&str; 7] = [
    "x-auth-token",
    "x-subject-token",
    "x-service-token",
    "x-amz-security-token",
    "x-aws-ec2-metadata-token",
    "secretaccesskey",
    "sessiontoken",
];

/// Returns the text without these secrets, as they are and as they stand in a URL or in JSON. One
/// of less than four bytes stays: it hides nothing, and is part of many words.
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

/// Returns the text without what looks like credentials that are not known here: bearer tokens,
/// JSON Web Tokens, and values of headers that are credentials, as in the canonical requests that
/// AWS repeats.
pub fn redact_credentials(text: &str) -> Cow<'_, str> {
    let lower = text.to_ascii_lowercase();
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for scheme in SCHEMES {
        for (at, word) in lower.match_indices(scheme) {
            let start = at + word.len();
            let rest = lower[start..].trim_start_matches([' ', '\t']);
            let begin = lower.len() - rest.len();
            let length = token(rest);
            // Words have no digits.
            let is_word = !rest[..length].contains(|c: char| c.is_ascii_digit() || c == '=');
            if begin > start && length >= MIN_TOKEN_LENGTH && !is_word {
                spans.push((begin, begin + length));
            }
        }
    }
    for name in NAMES {
        for (at, word) in lower.match_indices(name) {
            let start = at + word.len();
            // A name and a value: `:`, `=`, quotes and brackets around them.
            let rest =
                lower[start..].trim_start_matches(['"', '\'', '\\', ' ', '[', '(', '>', ':', '=']);
            let begin = lower.len() - rest.len();
            let length = token(rest);
            if lower[start..begin].contains([':', '=', '>']) && length > 0 {
                spans.push((begin, begin + length));
            }
        }
    }
    for (at, _) in text.match_indices(JWT) {
        let length = token(&text[at..]);
        if text[at..at + length].matches('.').count() >= 2 {
            spans.push((at, at + length));
        }
    }
    remove_spans(text, spans)
}

/// Returns the length of what can be a token at the beginning of the text.
fn token(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && !"-._~+/=%".contains(c))
        .unwrap_or(text.len())
}

fn remove_spans(text: &str, mut spans: Vec<(usize, usize)>) -> Cow<'_, str> {
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
