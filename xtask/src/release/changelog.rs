//! The sections of the changelog, in the form of Keep a Changelog: `## [1.2.3] - 2026-01-31`.

use crate::markdown::{self, NewLink};

/// Where changes are listed until they are released.
const UNRELEASED: &str = "Unreleased";

/// A section: everything below its heading.
struct Section<'a> {
    /// What stands in brackets.
    name: &'a str,
    /// What follows the brackets, with the dash.
    rest: &'a str,
    lines: Vec<&'a str>,
}

impl Section<'_> {
    fn has_entries(&self) -> bool {
        self.lines.iter().any(|line| line.starts_with("- "))
    }

    fn date(&self) -> Option<&str> {
        self.rest.strip_prefix(" - ").filter(|date| is_date(date))
    }
}

fn sections(text: &str) -> Vec<Section<'_>> {
    let mut sections = Vec::<Section<'_>>::new();
    for line in text.lines() {
        let heading = line
            .strip_prefix("## [")
            .and_then(|heading| heading.split_once(']'));
        if let Some((name, rest)) = heading {
            sections.push(Section { name, rest, lines: Vec::new() });
        } else if let Some(last) = sections.last_mut() {
            last.lines.push(line);
        }
    }
    sections
}

/// Says what is wrong with the changelog for a release of this version.
pub(super) fn findings(text: &str, version: &str) -> Vec<String> {
    let sections = sections(text);
    let mut findings = Vec::new();
    match sections.first() {
        Some(first) if first.name == UNRELEASED => {
            if first.has_entries() {
                findings.push(format!(
                    "[{UNRELEASED}] still has entries, which the notes of {version} would lack"
                ));
            }
        }
        _ => findings.push(format!("the first section is not [{UNRELEASED}]")),
    }
    let Some(at) = sections.iter().position(|section| section.name == version) else {
        findings.push(format!("there is no section [{version}]"));
        return prefixed(findings);
    };
    if let Some(newer) = sections[..at]
        .iter()
        .find(|section| section.name != UNRELEASED)
    {
        findings.push(format!("[{}] stands above [{version}]", newer.name));
    }
    let section = &sections[at];
    if !section.has_entries() {
        findings.push(format!("[{version}] has no entries"));
    }
    match section.date() {
        None => {
            findings.push(format!("[{version}] has no date, as in `## [{version}] - 2026-01-31`"));
        }
        // ISO dates are ordered as text.
        Some(date) => findings.extend(
            sections[at + 1..]
                .iter()
                .filter(|older| older.date().is_some_and(|older| older > date))
                .map(|older| format!("[{version}] is dated before [{}]", older.name)),
        ),
    }
    prefixed(findings)
}

/// Says if the version's section has a date before that of the last commit: it was cut, and then the
/// release was put off.
pub(super) fn older_than(text: &str, version: &str, last_commit: &str) -> Option<String> {
    let sections = sections(text);
    let section = sections.iter().find(|section| section.name == version)?;
    let date = section.date()?;
    // ISO dates are ordered as text.
    (date < last_commit).then(|| {
        format!(
            "{}: [{version}] is dated {date}, and the last commit is of {last_commit}",
            super::CHANGELOG
        )
    })
}

fn prefixed(findings: Vec<String>) -> Vec<String> {
    let prefix = |finding| format!("{}: {finding}", super::CHANGELOG);
    findings.into_iter().map(prefix).collect()
}

/// The text of a version's section, without its heading, for a page of its own: links lead below
/// `base`, and an entry is one line, since such pages show every line break.
pub(super) fn notes(text: &str, version: &str, base: &str) -> Option<String> {
    let sections = sections(text);
    let section = sections.iter().find(|section| section.name == version)?;
    let mut lines = Vec::<String>::new();
    for line in &section.lines {
        match (line.strip_prefix("  "), lines.last_mut()) {
            (Some(more), Some(last)) if !last.is_empty() && !more.starts_with(['-', ' ']) => {
                last.push(' ');
                last.push_str(more);
            }
            _ => lines.push((*line).to_owned()),
        }
    }
    let body = lines.join("\n");
    let body = body.trim();
    (!body.is_empty()).then(|| format!("{}\n", with_base(body, base)))
}

/// Makes links to files of the repository lead below `base`.
fn with_base(text: &str, base: &str) -> String {
    let base = base.trim_end_matches('/');
    markdown::rewrite(text, |target| {
        let is_file = markdown::is_local(target) && !target.starts_with('#');
        is_file.then(|| NewLink::To(format!("{base}/{target}")))
    })
}

/// Whether it is a day of some year: `2026-01-31`.
fn is_date(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').collect();
    let [year, month, day] = parts[..] else {
        return false;
    };
    let number = |part: &str, digits: usize| {
        (part.len() == digits && part.bytes().all(|b| b.is_ascii_digit()))
            .then(|| part.parse::<u32>().ok())
            .flatten()
    };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2))
    else {
        return false;
    };
    let is_leap_year = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + u32::from(is_leap_year),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-02-28\n\n### Added\n\n- A flag.\n  Its use.\n\n\
                        ## [0.1.0] - 2026-01-31\n\n- All of it.\n";

    fn of(text: &str) -> Vec<String> {
        findings(text, "0.2.0")
            .iter()
            .map(|finding| finding.strip_prefix("CHANGELOG.md: ").unwrap().to_owned())
            .collect()
    }

    #[test]
    fn a_changelog_that_was_cut_is_fine() {
        assert_eq!(of(GOOD), Vec::<String>::new());
    }

    #[test]
    fn each_fault_of_a_changelog_is_found_alone() {
        let cases = [
            ("## [Unreleased]\n", "", "the first section is not [Unreleased]"),
            (
                "## [Unreleased]\n",
                "## [Unreleased]\n\n- Late.\n",
                "[Unreleased] still has entries, which the notes of 0.2.0 would lack",
            ),
            ("## [0.2.0] -", "## [0.3.0] -", "there is no section [0.2.0]"),
            (
                "## [0.2.0] - ",
                "## [0.3.0] - 2026-03-01\n\n- New.\n\n## [0.2.0] - ",
                "[0.3.0] stands above [0.2.0]",
            ),
            ("- A flag.", "A flag.", "[0.2.0] has no entries"),
            (
                " - 2026-02-28",
                " - 2026-02-29",
                "[0.2.0] has no date, as in `## [0.2.0] - 2026-01-31`",
            ),
            (" - 2026-02-28", "", "[0.2.0] has no date, as in `## [0.2.0] - 2026-01-31`"),
            (" - 2026-02-28", " - 2025-12-31", "[0.2.0] is dated before [0.1.0]"),
        ];
        for (from, to, finding) in cases {
            assert!(GOOD.contains(from), "{from}");
            assert_eq!(of(&GOOD.replacen(from, to, 1)), [finding]);
        }
    }

    #[test]
    fn a_section_is_not_older_than_what_is_released() {
        let of = |version, last_commit| older_than(GOOD, version, last_commit);
        assert_eq!(of("0.2.0", "2026-02-28"), None);
        assert_eq!(of("0.2.0", "2026-02-01"), None);
        assert_eq!(
            of("0.2.0", "2026-03-01").unwrap(),
            "CHANGELOG.md: [0.2.0] is dated 2026-02-28, and the last commit is of 2026-03-01"
        );
        assert_eq!(of("0.3.0", "2026-03-01"), None, "that there is none is another finding");
    }

    #[test]
    fn notes_are_the_section_alone_with_an_entry_in_a_line() {
        let of = |version| notes(GOOD, version, "https://example.org/tree/v1/");
        assert_eq!(of("0.2.0").unwrap(), "### Added\n\n- A flag. Its use.\n");
        assert_eq!(of("0.1.0").unwrap(), "- All of it.\n");
        assert_eq!(of("0.3.0"), None);
        assert_eq!(of("Unreleased"), None, "it has no text");
    }

    #[test]
    fn nested_entries_stay_lines() {
        let text = "## [1.0.0] - 2026-01-31\n\n- A\n  b\n  - C\n    d\n\n  E\n";
        assert_eq!(notes(text, "1.0.0", "x").unwrap(), "- A b\n  - C\n    d\n\n  E\n");
    }

    #[test]
    fn links_of_notes_lead_to_the_repository() {
        let text = "[a](docs/a.md#b), [c](https://example.com/c)\n[d](#d) [e](README.md)";
        assert_eq!(
            with_base(text, "https://example.org/tree/v1/"),
            "[a](https://example.org/tree/v1/docs/a.md#b), [c](https://example.com/c)\n[d](#d) \
             [e](https://example.org/tree/v1/README.md)"
        );
    }

    #[test]
    fn dates_are_days_of_the_calendar() {
        for good in ["2026-01-31", "2028-02-29", "2000-02-29", "2026-12-01"] {
            assert!(is_date(good), "{good}");
        }
        for bad in [
            "2026-1-31",
            "2026-02-29",
            "2100-02-29",
            "2026-13-01",
            "2026-00-10",
            "2026-04-31",
            "2026-04-00",
            "26-04-01",
            "2026-04-01 ",
        ] {
            assert!(!is_date(bad), "{bad}");
        }
    }
}
