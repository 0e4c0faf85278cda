//! Selects the subnets of the floating network that an address may come from, by a pattern for
//! names and a list of tags.

use std::collections::BTreeSet;

use regex::Regex;

/// Subnets that a floating IP may come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum FloatingSubnet {
    /// Any subnet of the network, as Neutron chooses.
    #[default]
    Any,
    /// The subnet with this ID.
    Id(Box<str>),
    /// The matching subnets, which are tried one after another until one has an address.
    Matching {
        /// Pattern for names. An empty pattern matches all.
        name: Box<str>,
        /// Comma-separated tags. An empty list matches all.
        tags: Box<str>,
    },
}

impl FloatingSubnet {
    /// Combines the three settings of one level (class, annotations or configuration). The ID takes
    /// precedence. Returns `None` if all are empty.
    pub fn from_settings(id: &str, name: &str, tags: &str) -> Option<Self> {
        if !id.is_empty() {
            return Some(Self::Id(id.into()));
        }
        if name.is_empty() && tags.is_empty() {
            return None;
        }
        Some(Self::Matching { name: name.into(), tags: tags.into() })
    }
}

/// A pattern for subnet names. It is a glob with `*` and `?` as in a shell, or `~` and a regular
/// expression for the whole name. A leading `!` negates it.
#[derive(Clone, Debug)]
pub struct NamePattern {
    negated: bool,
    matcher: Option<Regex>,
}

impl NamePattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// Returns a message if the text is not a valid regular expression or glob.
    pub fn parse(text: &str) -> Result<Self, String> {
        let negated = text.starts_with('!');
        let pattern = text.strip_prefix('!').unwrap_or(text);
        if pattern.is_empty() {
            return Ok(Self { negated, matcher: None });
        }
        let source = match pattern.strip_prefix('~') {
            Some(expression) => format!("^(?:{expression})$"),
            None => glob(pattern)?,
        };
        let matcher = Regex::new(&source)
            .map_err(|error| format!("{text:?} is not a valid pattern: {error}"))?;
        Ok(Self { negated, matcher: Some(matcher) })
    }

    /// Returns true if a name matches.
    pub fn matches(&self, name: &str) -> bool {
        self.matcher
            .as_ref()
            .is_none_or(|matcher| matcher.is_match(name))
            != self.negated
    }
}

/// Converts a glob to a regular expression for the whole text.
fn glob(text: &str) -> Result<String, String> {
    let mut source = String::from("(?s)^");
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '*' => source.push_str(".*"),
            '?' => source.push('.'),
            '\\' => match chars.next() {
                Some(escaped) => source.push_str(&regex::escape(&escaped.to_string())),
                None => {
                    return Err(format!("{text:?} is not a valid pattern: it ends in a backslash"));
                }
            },
            '[' => {
                let class: String = chars.by_ref().take_while(|c| *c != ']').collect();
                let class = class.replace('\\', "\\\\").replace('[', "\\[");
                let (not, class) = class
                    .strip_prefix('!')
                    .map_or(("", &*class), |rest| ("^", rest));
                source.extend(["[", not, class, "]"]);
            }
            other => source.push_str(&regex::escape(&other.to_string())),
        }
    }
    source.push('$');
    Ok(source)
}

/// Tags that a subnet must have: at least one of them, or all if the list starts with `&`. A leading
/// `!` negates the condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagPattern<'a> {
    negated: bool,
    all: bool,
    tags: BTreeSet<&'a str>,
}

impl<'a> TagPattern<'a> {
    /// Parses a list of tags.
    pub fn parse(text: &'a str) -> Self {
        let negated = text.starts_with('!');
        let list = text.strip_prefix('!').unwrap_or(text);
        let all = list.starts_with('&');
        let list = list.strip_prefix('&').unwrap_or(list);
        let tags = list
            .split(',')
            .map(str::trim)
            .filter(|tag| !tag.is_empty())
            .collect();
        Self { negated, all, tags }
    }

    /// Returns the query parameter that lets Neutron filter, with its value. Returns `None` if every
    /// subnet matches.
    pub fn query(&self) -> Option<(&'static str, String)> {
        if self.tags.is_empty() {
            return None;
        }
        let key = match (self.negated, self.all) {
            (false, false) => "tags-any",
            (false, true) => "tags",
            (true, false) => "not-tags-any",
            (true, true) => "not-tags",
        };
        let tags: Vec<&str> = self.tags.iter().copied().collect();
        Some((key, tags.join(",")))
    }

    /// Returns true if an object with these tags matches.
    pub fn matches<T: AsRef<str>>(&self, tags: &[T]) -> bool {
        if self.tags.is_empty() {
            return true;
        }
        let tags: BTreeSet<&str> = tags.iter().map(AsRef::as_ref).collect();
        let is_match = if self.all {
            self.tags.is_subset(&tags)
        } else {
            !self.tags.is_disjoint(&tags)
        };
        is_match != self.negated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAGS: [&str; 2] = ["alice", "bob"];

    fn name_matches(pattern: &str) -> bool {
        NamePattern::parse(pattern).unwrap().matches("test-123")
    }

    // V01 V02
    #[test]
    fn names_match_globs_and_expressions_and_their_negation() {
        for pattern in ["test-*", "~test-.*", "*", "~.*", "test-12?", "[st]est-*", "test-123", ""] {
            assert!(name_matches(pattern), "{pattern}");
            assert!(!name_matches(&format!("!{pattern}")), "!{pattern}");
        }
        for pattern in ["other*", "~other.*", "~test", "test", "~est-.*", "test.123", "[x]est-*"] {
            assert!(!name_matches(pattern), "{pattern}");
            assert!(name_matches(&format!("!{pattern}")), "!{pattern}");
        }
        assert!(NamePattern::parse("~(").unwrap_err().contains("~("));
        assert!(NamePattern::parse("a\\").is_err());
    }

    // V03 V04
    #[test]
    fn tags_match_any_or_all_and_their_negation() {
        for tags in ["alice", "alice,bob", "alice,peter", "&alice,bob", " alice , peter"] {
            assert!(TagPattern::parse(tags).matches(&TAGS), "{tags}");
            assert!(!TagPattern::parse(&format!("!{tags}")).matches(&TAGS), "!{tags}");
        }
        for tags in ["peter", "&alice,peter"] {
            assert!(!TagPattern::parse(tags).matches(&TAGS), "{tags}");
            assert!(TagPattern::parse(&format!("!{tags}")).matches(&TAGS), "!{tags}");
        }
        assert!(TagPattern::parse("").matches(&TAGS));
    }

    // V05
    #[test]
    fn name_and_tags_must_both_match() {
        let both =
            |name: &str, tags: &str| name_matches(name) && TagPattern::parse(tags).matches(&TAGS);
        assert!(both("test-*", "alice"));
        assert!(!both("test-*", "other"));
        assert!(both("test-*", "!other"));
        assert!(!both("other*", "alice"));
    }

    #[test]
    fn neutron_filters_the_tags() {
        let cases = [
            ("a,b", Some(("tags-any", "a,b"))),
            ("&a,b", Some(("tags", "a,b"))),
            ("!a", Some(("not-tags-any", "a"))),
            ("!&a,b", Some(("not-tags", "a,b"))),
            ("", None),
        ];
        for (text, wanted) in cases {
            let wanted = wanted.map(|(key, tags): (_, &str)| (key, tags.to_owned()));
            assert_eq!(TagPattern::parse(text).query(), wanted, "{text}");
        }
    }
}
