//! Rules of ours for GitHub's workflows, beside those of actionlint.
//!
//! An action is named by commit, since whoever owns it can move a tag. A job has the permissions
//! that it names, and a workflow gives none to jobs that name none. Scripts take what comes from
//! outside through variables: pasted in, it would be read as a script.

use std::path::Path;

use super::Finding;

/// Length of a commit's name.
const COMMIT: usize = 40;

/// Whether a file is a workflow.
pub(super) fn is_workflow(path: &Path) -> bool {
    path.starts_with(".github/workflows")
        && path
            .extension()
            .is_some_and(|extension| extension == "yml" || extension == "yaml")
}

/// Checks a workflow, by its lines: all of them are written in one form.
pub(super) fn check(path: &Path, text: &str) -> Vec<Finding> {
    let lines: Vec<_> = text.lines().enumerate().collect();
    let at = |line: usize, message: String| Finding::new(path, line + 1, message);
    let mut findings = Vec::new();
    if !text.lines().any(|line| line == "permissions: {}") {
        let message = "a workflow gives no permissions to all its jobs: `permissions: {}`";
        findings.push(at(0, message.to_owned()));
    }
    for (line, job) in jobs(&lines) {
        if !block(&lines, line, 2).any(|(_, text)| text.starts_with("    permissions:")) {
            findings.push(at(line, format!("job {job} does not name its permissions")));
        }
    }
    for (line, text) in &lines {
        let key = text.trim_start().trim_start_matches("- ");
        if let Some(action) = key.strip_prefix("uses: ")
            && !is_pinned(action)
        {
            let message = format!("`{action}` is not pinned: `…@<commit> # v1.2.3`");
            findings.push(at(*line, message));
        }
        if let Some(script) = key.strip_prefix("run:") {
            // A block is deeper than its key, which may stand behind a dash.
            let indentation = text.len() - key.len();
            let script = std::iter::once((*line, script)).chain(block(&lines, *line, indentation));
            let pasted = script.filter(|(_, text)| text.contains("${{"));
            let message = "a script takes values from `env`, not from `${{ }}`";
            findings.extend(pasted.map(|(line, _)| at(line, message.to_owned())));
        }
    }
    findings
}

/// Names of the jobs, and where they begin.
fn jobs<'a>(lines: &[(usize, &'a str)]) -> Vec<(usize, &'a str)> {
    let Some((start, _)) = lines.iter().find(|(_, text)| *text == "jobs:") else {
        return Vec::new();
    };
    block(lines, *start, 0)
        .filter_map(|(line, text)| {
            let name = text.strip_prefix("  ")?.strip_suffix(':')?;
            (!name.starts_with([' ', '#'])).then_some((line, name))
        })
        .collect()
}

/// The lines below a key that are deeper than it.
fn block<'a>(
    lines: &[(usize, &'a str)],
    start: usize,
    indentation: usize,
) -> impl Iterator<Item = (usize, &'a str)> {
    let is_deeper = move |text: &str| {
        text.trim().is_empty() || text.len() - text.trim_start().len() > indentation
    };
    lines[start + 1..]
        .iter()
        .copied()
        .take_while(move |(_, text)| is_deeper(text))
}

/// Whether an action is of this repository, or named by commit with its version beside it.
fn is_pinned(action: &str) -> bool {
    if action.starts_with("./") {
        return true;
    }
    let Some((_, version)) = action.split_once('@') else {
        return false;
    };
    let (commit, comment) = version.split_once(" # v").unwrap_or((version, ""));
    commit.len() == COMMIT
        && commit.bytes().all(|b| b.is_ascii_hexdigit())
        && comment.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name: x\non: push\npermissions: {}\n\njobs:\n  # One.\n  a:\n    permissions:\n      contents: read\n    steps:\n      \
                        - uses: o/r@0123456789012345678901234567890123456789 # v1.2.3\n      - name: s\n        \
                        env:\n          X: ${{ github.ref }}\n        run: |\n          echo \"$X\"\n\n          true\n      - run: true\n      \
                        - if: ${{ always() }}\n        run: false\n\n  b:\n    permissions: {}\n    uses: ./.github/workflows/ci.yml\n";

    fn of(text: &str) -> Vec<String> {
        check(Path::new("w.yml"), text)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_careful_workflow_is_fine() {
        assert_eq!(of(GOOD), Vec::<String>::new());
    }

    #[test]
    fn each_careless_line_is_found() {
        let pinned = "@0123456789012345678901234567890123456789 # v1.2.3";
        let unpinned =
            |at: &str| format!("w.yml:11: `o/r{at}` is not pinned: `…@<commit> # v1.2.3`");
        let pasted = |line: u32| {
            format!("w.yml:{line}: a script takes values from `env`, not from `${{{{ }}}}`")
        };
        let cases = [
            (pinned, "@v1", unpinned("@v1")),
            (pinned, "", unpinned("")),
            (pinned, "@01234567 # v1.2.3", unpinned("@01234567 # v1.2.3")),
            (" # v1.2.3", "", unpinned("@0123456789012345678901234567890123456789")),
            (
                "\npermissions: {}\n",
                "\npermissions: read-all\n",
                "w.yml:1: a workflow gives no permissions to all its jobs: `permissions: {}`"
                    .to_owned(),
            ),
            (
                "    permissions: {}\n",
                "    if: true\n",
                "w.yml:23: job b does not name its permissions".to_owned(),
            ),
            (
                "    permissions:\n      contents: read\n",
                "    if: true\n    env: {}\n",
                "w.yml:7: job a does not name its permissions".to_owned(),
            ),
            ("\"$X\"", "${{ github.head_ref }}", pasted(16)),
            ("\n          true", "\n          ${{ x }}", pasted(18)),
            ("- run: true", "- run: ${{ x }}", pasted(19)),
            ("run: false", "run: ${{ x }}", pasted(21)),
        ];
        for (from, to, finding) in cases {
            assert!(GOOD.contains(from), "{from}");
            assert_eq!(of(&GOOD.replacen(from, to, 1)), [finding]);
        }
    }

    #[test]
    fn workflows_are_where_github_looks_for_them() {
        assert!(is_workflow(Path::new(".github/workflows/a.yml")));
        assert!(!is_workflow(Path::new(".github/ISSUE_TEMPLATE/a.yml")));
        assert!(!is_workflow(Path::new(".github/workflows/README.md")));
    }
}
