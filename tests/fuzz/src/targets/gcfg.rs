//! The dialect of `cloud.conf`.

use std::fmt::Write as _;

use ccm_core::config::gcfg::{self, ConfigIssue, Document};

/// What was written is read again as the same; and mistakes are in order, of lines that there are.
pub(super) fn check(text: &str) {
    let document = gcfg::parse(text);
    in_order(&document.issues, text);
    let again = gcfg::parse(&written(&document));
    assert_eq!(again.issues, [], "of what was written");
    assert_eq!(facts(&again), facts(&document));
}

/// Mistakes are in order and of lines that there are.
pub(super) fn in_order(mistakes: &[ConfigIssue], text: &str) {
    let lines = text.matches('\n').count() + 1;
    assert!(mistakes.is_sorted_by_key(|mistake| mistake.line), "{mistakes:?}");
    for mistake in mistakes {
        assert!(mistake.line <= lines, "{mistake:?}");
        assert!(!mistake.message.is_empty() && !mistake.to_string().contains('\n'), "{mistake:?}");
    }
}

type Facts<'a> = Vec<(&'a str, Option<&'a str>, Vec<(&'a str, Option<&'a str>)>)>;

/// Everything but the lines.
fn facts(document: &Document) -> Facts<'_> {
    let sections = document.sections.iter();
    sections
        .map(|section| {
            let entries = section
                .entries
                .iter()
                .map(|entry| (&*entry.key, entry.value.as_deref()))
                .collect();
            (&*section.name, section.sub.as_deref(), entries)
        })
        .collect()
}

/// Writes a document, every value in quotes.
fn written(document: &Document) -> String {
    let mut text = String::new();
    for section in &document.sections {
        let _ = match &section.sub {
            None => writeln!(text, "[{}]", section.name),
            Some(sub) => writeln!(text, "[{} \"{}\"]", section.name, escaped(sub)),
        };
        for entry in &section.entries {
            let _ = match &entry.value {
                None => writeln!(text, "{}", entry.key),
                Some(value) => {
                    let value = escaped(value).replace('\n', "\\n").replace('\t', "\\t");
                    writeln!(text, "{} = \"{value}\"", entry.key)
                }
            };
        }
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
