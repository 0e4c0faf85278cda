//! Parses annotation values in the same way as upstream.

use std::collections::BTreeMap;

/// Parses a bool in the spellings of Go's `strconv.ParseBool`.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a comma-separated list; spaces around entries and empty entries are ignored.
pub(crate) fn list(text: &str) -> Vec<Box<str>> {
    text.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(Into::into)
        .collect()
}

/// Parses upstream's loose key-value list: `K=V`, `K=` and `K` are valid, text after a second `=`
/// and entries without a key are dropped, and the last of several equal keys is used.
pub(crate) fn key_values(text: &str) -> BTreeMap<Box<str>, Box<str>> {
    let mut found = BTreeMap::new();
    for item in text.split(',').map(str::trim) {
        let mut parts = item.split('=');
        let key = parts.next().unwrap_or_default();
        if !key.is_empty() {
            found.insert(key.into(), parts.next().unwrap_or_default().into());
        }
    }
    found
}

/// Parses the strict map of the AWS load balancer controller: every entry needs `=`, and `\,` is a
/// comma in a value.
pub(crate) fn map(text: &str) -> Option<BTreeMap<Box<str>, Box<str>>> {
    let mut items = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let escaped = c == '\\' && rest.next_if_eq(&',').is_some();
        match (c, items.last_mut()) {
            (',', _) => items.push(String::new()),
            (_, Some(item)) => item.push(if escaped { ',' } else { c }),
            (_, None) => {}
        }
    }
    let mut found = BTreeMap::new();
    for item in items
        .iter()
        .map(|item| item.trim())
        .filter(|item| !item.is_empty())
    {
        let (key, value) = item.split_once('=')?;
        let key = key.trim();
        if key.is_empty() {
            return None;
        }
        found.insert(key.into(), value.trim().into());
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(found: &BTreeMap<Box<str>, Box<str>>) -> Vec<(&str, &str)> {
        found
            .iter()
            .map(|(key, value)| (&**key, &**value))
            .collect()
    }

    // VA7
    #[test]
    fn key_values_are_read_loosely() {
        let cases: [(&str, &[(&str, &str)]); 6] = [
            ("Key=Val", &[("Key", "Val")]),
            ("Key1=Val1, Key2=Val2", &[("Key1", "Val1"), ("Key2", "Val2")]),
            ("Key1=, Key2=Val2", &[("Key1", ""), ("Key2", "Val2")]),
            ("", &[]),
            (
                "K=V K1=V2,Key1========, =====, ======Val, =Val, , 234,",
                &[("234", ""), ("K", "V K1"), ("Key1", "")],
            ),
            ("k=1,k=2", &[("k", "2")]),
        ];
        for (text, wanted) in cases {
            assert_eq!(pairs(&key_values(text)), wanted, "{text:?}");
        }
    }

    // VA8
    #[test]
    fn lists_lose_spaces_and_empty_entries() {
        let read = |text| {
            list(text)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(read("\t, ,,"), [""; 0]);
        assert_eq!(read("   value 1 "), ["value 1"]);
        assert_eq!(read("subnet-1, subnet-2, My Subnet "), ["subnet-1", "subnet-2", "My Subnet"]);
    }

    #[test]
    fn a_map_needs_every_equals_sign_and_unescapes_commas() {
        let cases: [(&str, &[(&str, &str)]); 5] = [
            ("a=1,b=2", &[("a", "1"), ("b", "2")]),
            (" a = 1 , ", &[("a", "1")]),
            (r"a=1\,2,b=", &[("a", "1,2"), ("b", "")]),
            (r"a=\x", &[("a", r"\x")]),
            ("a=b=c", &[("a", "b=c")]),
        ];
        for (text, wanted) in cases {
            assert_eq!(pairs(&map(text).unwrap()), wanted, "{text:?}");
        }
        for text in ["a", "=a", "a=1,b"] {
            assert_eq!(map(text), None, "{text:?}");
        }
    }

    #[test]
    fn bools_are_spelt_as_in_go() {
        for text in ["1", "t", "T", "TRUE", "true", "True"] {
            assert_eq!(boolean(text), Some(true), "{text}");
        }
        for text in ["0", "f", "F", "FALSE", "false", "False"] {
            assert_eq!(boolean(text), Some(false), "{text}");
        }
        for text in ["", "yes", "on", " true", "tRUE", "2"] {
            assert_eq!(boolean(text), None, "{text:?}");
        }
    }
}
