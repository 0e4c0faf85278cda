//! The reference of findings in the documentation, which tests of this crate and of providers
//! generate.

use std::{collections::BTreeSet, fmt::Write as _, path::Path};

use crate::provider::FindingKind;

/// Formats a table of findings as Markdown.
///
/// # Errors
/// Returns the name of a row that occurs twice, or whose text is missing or breaks the form.
pub fn table(kinds: &[FindingKind]) -> Result<String, String> {
    let mut names = BTreeSet::new();
    let mut text =
        "\n| Finding | Area | Severity | What follows | What to do |\n|---|---|---|---|---|\n"
            .to_owned();
    for kind in kinds {
        let FindingKind { name, area, severity, consequence, advice } = kind;
        if !names.insert(*name) {
            return Err(format!("{name} occurs twice"));
        }
        for part in [consequence, advice] {
            if part.is_empty() || part.ends_with('.') || part.contains('|') {
                return Err(format!(
                    "{name}: {part:?} is empty, ends in a full stop, or has a bar"
                ));
            }
        }
        let _ = writeln!(text, "| `{name}` | {area} | {severity} | {consequence} | {advice} |");
    }
    Ok(text + "\n")
}

/// Compares the part of a page between two marks with `expected`, or writes it if `update` is set.
///
/// # Errors
/// Returns the reason if the page cannot be read or written, lacks the marks, or differs.
pub fn compare(
    page: &Path,
    (begin, end): (&str, &str),
    expected: &str,
    update: bool,
) -> Result<(), String> {
    let text = std::fs::read_to_string(page).map_err(|error| error.to_string())?;
    let parts = text.split_once(begin);
    let parts = parts.and_then(|(head, rest)| Some((head, rest.split_once(end)?)));
    let Some((head, (written, tail))) = parts else {
        return Err(format!("{} lacks the marks of the table", page.display()));
    };
    if update {
        let text = format!("{head}{begin}{expected}{end}{tail}");
        return std::fs::write(page, text).map_err(|error| error.to_string());
    }
    if written == expected {
        return Ok(());
    }
    Err(format!("{} is out of date: run the test with CCM_UPDATE_REFERENCE=1", page.display()))
}
