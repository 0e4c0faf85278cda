//! Users that a front proxy names in headers.

use std::collections::BTreeMap;

use http::HeaderMap;

use super::UserInfo;

/// The names of the headers in which a front proxy identifies the user. Read only if the proxy's
/// certificate was verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestHeaders {
    /// The first of these headers that is present contains the user name.
    pub(super) names: Vec<String>,
    /// The first of these headers that is present contains the user's ID.
    pub(super) uids: Vec<String>,
    /// All values of all these headers are groups.
    pub(super) groups: Vec<String>,
    /// Prefixes of header names; the rest of the name is the key of an extra value.
    pub(super) extra: Vec<String>,
}

impl RequestHeaders {
    /// Parses the user from the headers; `None` if they contain no user name.
    ///
    /// # Errors
    /// A user name or ID that occurs twice, or a value that is not text. Otherwise, a proxy that
    /// appends its own header to one from the client would vouch for the client's value.
    pub(super) fn user_info(&self, headers: &HeaderMap) -> Result<Option<UserInfo>, &'static str> {
        let Some(name) = first(headers, &self.names)? else {
            return Ok(None);
        };
        let uid = first(headers, &self.uids)?.unwrap_or_default();
        let mut groups = Vec::new();
        for header in &self.groups {
            for value in headers.get_all(header.trim()) {
                let group = text(value)?;
                if !group.is_empty() {
                    groups.push(group);
                }
            }
        }
        Ok(Some(UserInfo { name, uid, groups, extra: self.extra(headers)? }))
    }

    fn extra(&self, headers: &HeaderMap) -> Result<BTreeMap<String, Vec<String>>, &'static str> {
        let mut extra = BTreeMap::<String, Vec<String>>::new();
        for prefix in &self.extra {
            // `HeaderMap` stores header names in lower case.
            let prefix = prefix.trim().to_ascii_lowercase();
            for (header, value) in headers {
                if let Some(key) = header.as_str().strip_prefix(&prefix) {
                    extra.entry(unescaped(key)).or_default().push(text(value)?);
                }
            }
        }
        Ok(extra)
    }
}

/// Returns the first non-empty value of these headers.
fn first(headers: &HeaderMap, names: &[String]) -> Result<Option<String>, &'static str> {
    for name in names {
        let mut values = headers.get_all(name.trim()).iter();
        let Some(value) = values.next() else { continue };
        if values.next().is_some() {
            return Err("a proxy's header names the user twice");
        }
        let value = text(value)?;
        if !value.is_empty() {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn text(value: &http::HeaderValue) -> Result<String, &'static str> {
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| "a proxy's header is no text")?;
    Ok(text.to_owned())
}

/// Decodes `%xx`. A key that cannot be decoded stays unchanged, as upstream.
fn unescaped(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = tail;
            continue;
        }
        let (Some(high), Some(low)) = (hex_digit(tail.first()), hex_digit(tail.get(1))) else {
            return key.to_owned();
        };
        // Two hexadecimal digits are always below 256.
        bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
        rest = &tail[2..];
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

fn hex_digit(byte: Option<&u8>) -> Option<u32> {
    char::from(*byte?).to_digit(16)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn standard() -> RequestHeaders {
        let list = |text: &str| text.split(',').map(str::to_owned).collect();
        RequestHeaders {
            names: list("X-Remote-User"),
            uids: list("X-Remote-Uid"),
            groups: list("X-Remote-Group"),
            extra: list("X-Remote-Extra-"),
        }
    }

    fn headers(pairs: &[(&'static str, &'static [u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn name_groups_and_extra_are_read() {
        let caller = standard().user_info(&headers(&[
            ("x-remote-user", b"jane"),
            ("x-remote-group", b"a"),
            ("x-remote-group", b""),
            ("x-remote-group", b"b"),
            ("x-remote-uid", b"u1"),
            ("x-remote-extra-scopes", b"s1"),
            ("x-remote-extra-scopes", b"s2"),
            ("x-remote-extra-example.com%2fkey", b"v"),
            ("x-remote-extra-bad%zz", b"v"),
            ("x-other", b"v"),
        ]));
        let want = UserInfo {
            name: "jane".into(),
            uid: "u1".into(),
            groups: vec!["a".into(), "b".into()],
            extra: [
                ("scopes", vec!["s1", "s2"]),
                ("example.com/key", vec!["v"]),
                ("bad%zz", vec!["v"]),
            ]
            .map(|(k, v)| (k.to_owned(), v.into_iter().map(str::to_owned).collect()))
            .into(),
        };
        assert_eq!(caller, Ok(Some(want)));
    }

    #[test]
    fn the_first_header_with_a_value_names_the_user() {
        let proxy = RequestHeaders {
            names: vec!["x-first".into(), " X-Second ".into()],
            ..RequestHeaders::default()
        };
        for (pairs, want) in [
            (&[("x-second", &b"b"[..]), ("x-first", b"a")][..], Some("a")),
            (&[("x-second", b"b"), ("x-first", b"")], Some("b")),
            (&[("x-third", b"c")], None),
            (&[], None),
        ] {
            let caller = proxy.user_info(&headers(pairs)).unwrap();
            assert_eq!(caller.map(|c| c.name).as_deref(), want, "{pairs:?}");
        }
    }

    #[test]
    fn doubt_about_the_user_is_an_error() {
        for pairs in [
            &[("x-remote-user", &b"a"[..]), ("x-remote-user", b"b")][..],
            &[("x-remote-user", b"a"), ("x-remote-uid", b"1"), ("x-remote-uid", b"2")],
            &[("x-remote-user", b"\xff")],
            &[("x-remote-user", b"a"), ("x-remote-group", b"\xff")],
            &[("x-remote-user", b"a"), ("x-remote-extra-k", b"\xff")],
        ] {
            assert!(standard().user_info(&headers(pairs)).is_err(), "{pairs:?}");
        }
    }
}
