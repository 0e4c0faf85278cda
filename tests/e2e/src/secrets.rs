//! Looks for secrets where they must not be: logs, events, metrics, error texts, pages.

use std::fmt::Write as _;

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Secrets with their names, and what was found of them.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    forms: Vec<(String, String)>,
}

impl Secrets {
    /// Adds a secret, in each form in which it may be shown: as it is, escaped for JSON and for
    /// URLs, in hexadecimal, and in base64 wherever it stands in what is encoded.
    ///
    /// # Panics
    /// It is too short to be recognised.
    pub fn add(&mut self, name: &str, secret: &str) {
        assert!(secret.len() >= 10, "{name} is too short to be recognised");
        let json = serde_json::Value::from(secret).to_string();
        let url = |upper: bool| {
            secret.bytes().fold(String::new(), |mut out, byte| {
                let _ = match byte {
                    b if b.is_ascii_alphanumeric() || b"-._~".contains(&b) => {
                        write!(out, "{}", char::from(b))
                    }
                    b if upper => write!(out, "%{b:02X}"),
                    b => write!(out, "%{b:02x}"),
                };
                out
            })
        };
        let hex = secret
            .bytes()
            .fold(String::new(), |out, byte| out + &format!("{byte:02x}"));
        let mut forms =
            vec![secret.to_owned(), json.trim_matches('"').to_owned(), url(true), url(false), hex];
        for before in 0..3 {
            let standard = base64_inside(secret.as_bytes(), before);
            forms.push(standard.replace('+', "-").replace('/', "_"));
            forms.push(standard);
        }
        forms.sort();
        forms.dedup();
        self.forms
            .extend(forms.into_iter().map(|form| (name.to_owned(), form)));
    }

    /// Returns where in the text a secret is shown: its name and the line, cut short.
    pub fn find(&self, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        for line in text.lines() {
            for (name, form) in &self.forms {
                if let Some(at) = line.find(form.as_str()) {
                    let begin = line
                        .char_indices()
                        .map(|(at, _)| at)
                        .rfind(|start| *start <= at.saturating_sub(160));
                    let begin = begin.unwrap_or_default();
                    found.push(format!("{name} as {form:?} in: {}", &line[begin..at + form.len()]));
                }
            }
        }
        found
    }

    /// Checks a text.
    ///
    /// # Errors
    /// A secret is shown in it: which, and where.
    pub fn check(&self, what: &str, text: &str) -> anyhow::Result<()> {
        let found = self.find(text);
        anyhow::ensure!(
            found.is_empty(),
            "{what} shows secrets, {} times:\n{}",
            found.len(),
            found[..found.len().min(5)].join("\n")
        );
        Ok(())
    }
}

/// What of the base64 of a text is the same whatever stands around `inner`, when so many bytes
/// (modulo 3) stand before it.
fn base64_inside(inner: &[u8], before: usize) -> String {
    let padded = [&vec![0; before][..], inner].concat();
    let whole = padded.len() / 3;
    // The first group may hold bytes that stand before.
    let groups = padded.chunks(3).take(whole).skip(usize::from(before > 0));
    let digits = groups.flat_map(|group| {
        let bits = group
            .iter()
            .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        [18, 12, 6, 0].map(|shift| char::from(BASE64[(bits >> shift & 63) as usize]))
    });
    digits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets() -> Secrets {
        let mut secrets = Secrets::default();
        secrets.add("password", "s3cr3t/+\"w0rd==");
        secrets
    }

    // The encoded forms are those of coreutils' base64 and of Python's urllib.
    #[test]
    fn every_form_is_found_and_named() {
        let texts = [
            "level=debug password=s3cr3t/+\"w0rd==",
            r#"{"msg":"s3cr3t/+\"w0rd=="}"#,
            "GET /?p=s3cr3t%2F%2B%22w0rd%3D%3D",
            "GET /?p=s3cr3t%2f%2b%22w0rd%3d%3d",
            "7333637233742f2b22773072643d3d",
            // Of `user:s3cr3t/+"w0rd==`, of `x` and of `xy` before it.
            "Authorization: Basic dXNlcjpzM2NyM3QvKyJ3MHJkPT0=",
            "eHMzY3IzdC8rIncwcmQ9PQ==",
            "eHlzM2NyM3QvKyJ3MHJkPT0=",
        ];
        for text in texts {
            let found = secrets().find(&format!("a line\n{text}\n"));
            assert!(!found.is_empty() && found[0].starts_with("password as "), "{text}: {found:?}");
            assert!(secrets().check("the log", text).is_err());
        }
    }

    #[test]
    fn what_is_none_is_not_found() {
        for text in ["", "s3cr3t", "a password", "dXNlcjpzM2NyM3"] {
            assert_eq!(secrets().find(text), Vec::<String>::new());
        }
    }
}
