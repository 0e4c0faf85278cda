//! Checks of any text: paths of somebody's machine, and links that lead nowhere.

use std::path::Path;

use super::Finding;
use crate::markdown;

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
    let leads_nowhere = |link: &markdown::Link| {
        markdown::is_local(&link.target)
            && !link.target.starts_with('#')
            && !markdown::resolve(path, &link.target).is_some_and(|target| exists(&target))
    };
    markdown::links(text)
        .into_iter()
        .filter(leads_nowhere)
        .map(|link| {
            Finding::new(path, link.line, format!("the link to `{}` leads nowhere", link.target))
        })
        .collect()
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
                "[x](a.md) [y](../README.md#part) [z](#here) [w](https://example.com/q) [v](./a.md 'title') `[u](c.md)`"
            ),
            []
        );
        assert_eq!(found("\n[x](a.md) and [y](c.md#part)"), [(2, "c.md#part".to_owned())]);
        assert_eq!(found("[x]: c.md"), [(1, "c.md".to_owned())]);
        assert_eq!(found("[x](/README.md)"), [(1, "/README.md".to_owned())]);
        assert_eq!(found("[x](../../README.md)").len(), 1, "outside of the repository");
        assert_eq!(found("```\n[x](c.md)\n```\n[x](c.md)"), [(4, "c.md".to_owned())]);
    }
}
