//! Reads the lists of `deny.toml` that are checked here. Not a TOML reader: it knows the form in
//! which that file is written, and fails on a list that it does not find.

use anyhow::Context as _;

/// What `deny.toml` allows and denies.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Deny {
    /// `[licenses] allow`.
    pub(super) licenses: Vec<String>,
    /// Crates of `[bans] deny`, without versions.
    pub(super) banned: Vec<String>,
    /// `[sources] allow-registry`.
    pub(super) registries: Vec<String>,
}

impl Deny {
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(Self {
            licenses: strings(array(text, "licenses", "allow")?),
            banned: array(text, "bans", "deny")?
                .split('{')
                .filter_map(|entry| entry.split_once("crate = \"")?.1.split('"').next())
                .map(str::to_owned)
                .collect(),
            registries: strings(array(text, "sources", "allow-registry")?),
        })
    }
}

/// The text between the brackets of `key = [ … ]` in `[section]`, without comments.
fn array(text: &str, section: &str, key: &str) -> anyhow::Result<String> {
    let missing = || format!("deny.toml has no list `{key}` in section `{section}`");
    let uncommented: String = text
        .lines()
        .map(|line| without_comment(line).to_owned() + "\n")
        .collect();
    let (_, body) = uncommented
        .split_once(&format!("[{section}]\n"))
        .with_context(missing)?;
    // The section ends where a line starts the next one.
    let body = body.split("\n[").next().unwrap_or_default();
    let start = format!("{key} = [");
    let value = body
        .lines()
        .position(|line| line.starts_with(&start))
        .with_context(missing)?;
    let rest: String = body
        .lines()
        .skip(value)
        .map(|line| line.to_owned() + "\n")
        .collect();
    let value = rest[start.len()..].split(']').next().unwrap_or_default();
    Ok(value.to_owned())
}

/// The line without its comment; a `#` in a string is none.
fn without_comment(line: &str) -> &str {
    let mut in_string = false;
    let end = line.char_indices().find(|(_, c)| {
        in_string ^= *c == '"';
        *c == '#' && !in_string
    });
    line[..end.map_or(line.len(), |(at, _)| at)].trim_end()
}

/// The quoted strings.
fn strings(list: impl AsRef<str>) -> Vec<String> {
    list.as_ref()
        .split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_read_from_their_sections() {
        let text = r#"
[licenses]
confidence-threshold = 0.9
allow = [
  "MIT", # "not this"
  # "nor this",
  "Zlib",
]

[licenses.private]
allow = ["wrong"]

[bans]
allow = ["wrong"]
deny = [
  { crate = "a", reason = "b # c" },
  { crate = "d" },
]

[sources]
allow-registry = ["https://example.com/index"]
"#;
        let expected = Deny {
            licenses: vec!["MIT".to_owned(), "Zlib".to_owned()],
            banned: vec!["a".to_owned(), "d".to_owned()],
            registries: vec!["https://example.com/index".to_owned()],
        };
        assert_eq!(Deny::parse(text).unwrap(), expected);
        let error = Deny::parse(&text.replace("deny = [", "denied = [")).unwrap_err();
        assert_eq!(error.to_string(), "deny.toml has no list `deny` in section `bans`");
    }

    #[test]
    fn the_repositorys_own_file_has_all_lists() {
        let deny = Deny::parse(include_str!("../../../deny.toml")).unwrap();
        assert!(deny.licenses.contains(&"Apache-2.0".to_owned()), "{deny:?}");
        assert!(deny.banned.contains(&"openssl".to_owned()), "{deny:?}");
        assert_eq!(deny.registries.len(), 1);
    }
}
