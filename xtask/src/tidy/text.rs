//! Checks of any text: paths of somebody's machine, and links that lead nowhere.

use std::path::{Path, PathBuf};

use super::Finding;

/// Where people and machines keep their own files. Written in pieces, or this file would be found.
const MACHINE_PATHS: [&str; 3] =
    [concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];

/// Paths that exist on somebody's machine only.
pub(super) fn machine_paths(path: &Path, text: &str) -> Vec<Finding> {
    let starts_path = |line: &str, at: usize| {
        !line[..at]
            .ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | ')'))
    };
    let finding = |(number, line): (usize, &str)| {
        let found = MACHINE_PATHS.into_iter().find(|needle| {
            line.match_indices(needle)
                .any(|(at, _)| starts_path(line, at))
        })?;
        Some(Finding::new(path, number + 1, format!("`{found}` is a path of somebody's machine")))
    };
    text.lines().enumerate().filter_map(finding).collect()
}

/// Relative links of a Markdown file that lead to nothing.
pub(super) fn broken_links(
    path: &Path,
    text: &str,
    exists: impl Fn(&Path) -> bool,
) -> Vec<Finding> {
    let mut in_code = false;
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            let broken = targets(line).filter(|target| !resolves(path, target, &exists));
            findings.extend(broken.map(|target| {
                Finding::new(path, number + 1, format!("the link to `{target}` leads nowhere"))
            }));
        }
    }
    findings
}

/// Targets of `[text](target)`, `[text](target "title")` and `[label]: target`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let reference = line
        .trim_start()
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]:"))
        .map(|(_, target)| target);
    let inline = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    inline
        .chain(reference)
        .filter_map(|target| target.split_whitespace().next())
        .map(|target| target.trim_start_matches('<').trim_end_matches('>'))
}

fn resolves(from: &Path, target: &str, exists: impl Fn(&Path) -> bool) -> bool {
    let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
    let file = target.split(['#', '?']).next().unwrap_or_default();
    if is_elsewhere || file.is_empty() {
        return true;
    }
    // A link from the root of the site is not relative and means nothing in a repository.
    !file.starts_with('/') && exists(&normal(&from.parent().unwrap_or(Path::new("")).join(file)))
}

/// The path without `.` and `..`, which a folder that does not exist would spoil.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                out.pop();
            }
            std::path::Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_paths_are_found_and_others_pass() {
        for needle in MACHINE_PATHS {
            let text = format!("ok\nsee {needle}x\n\"{needle}\"\n");
            let lines: Vec<_> = machine_paths(Path::new("a"), &text)
                .into_iter()
                .map(|finding| finding.line)
                .collect();
            assert_eq!(lines, [2, 3]);
            assert!(
                machine_paths(Path::new("a"), &format!("https://example.com{needle}x")).is_empty()
            );
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let exists = |path: &Path| [Path::new("docs/a.md"), Path::new("README.md")].contains(&path);
        let found = |text: &str| -> Vec<_> {
            broken_links(Path::new("docs/b.md"), text, exists)
                .into_iter()
                .map(|finding| {
                    (
                        finding.line,
                        finding
                            .message
                            .split('`')
                            .nth(1)
                            .unwrap_or_default()
                            .to_owned(),
                    )
                })
                .collect()
        };
        assert_eq!(
            found(
                "[x](a.md) [y](../README.md#part) [z](#here) [w](https://example.com/q) [v](./a.md 'title')"
            ),
            []
        );
        assert_eq!(found("\n[x](a.md) and [y](c.md#part)"), [(2, "c.md#part".to_owned())]);
        assert_eq!(found("[x]: c.md"), [(1, "c.md".to_owned())]);
        assert_eq!(found("[x](/README.md)"), [(1, "/README.md".to_owned())]);
        assert_eq!(found("[x](../../README.md)").len(), 0, "the root has no parent");
        assert_eq!(found("```\n[x](c.md)\n```\n[x](c.md)"), [(4, "c.md".to_owned())]);
    }
}
