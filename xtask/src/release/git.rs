//! What git says of the tree that would be tagged.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use crate::process;

/// Says what is not committed, and whether the tag is taken. The tag may be there on this very
/// commit: then the release is under way.
pub(super) fn findings(root: &Path, version: &str) -> anyhow::Result<Vec<String>> {
    let status = process::output(git(root).args(["status", "--porcelain"]))?;
    let mut findings: Vec<_> = status
        .lines()
        .map(|line| format!("not committed: {}", line.get(3..).unwrap_or(line)))
        .collect();
    let head = commit(root, "HEAD")?.context("there is no commit")?;
    let tag = commit(root, &format!("refs/tags/v{version}"))?;
    if tag.is_some_and(|tag| tag != head) {
        findings.push(format!("the tag v{version} is there already, on another commit"));
    }
    Ok(findings)
}

/// The day of the last commit, as in 2026-01-31.
pub(super) fn last_date(root: &Path) -> anyhow::Result<String> {
    // Everywhere the same day.
    let mut git = git(root);
    git.env("TZ", "UTC")
        .args(["log", "-1", "--date=format-local:%Y-%m-%d", "--format=%cd"]);
    Ok(process::output(&mut git)?.trim().to_owned())
}

/// The commit that a name leads to, also through an annotated tag.
fn commit(root: &Path, name: &str) -> anyhow::Result<Option<String>> {
    let output = git(root)
        .args(["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")])
        .output()
        .context("run git")?;
    let commit = String::from_utf8_lossy(&output.stdout);
    Ok(output.status.success().then(|| commit.trim().to_owned()))
}

/// Git in this folder, also when a hook of another repository runs us.
pub(crate) fn git(root: &Path) -> Command {
    let mut git = Command::new("git");
    git.current_dir(root);
    for variable in ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"] {
        git.env_remove(variable);
    }
    git
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(root: &Path, arguments: &[&str]) {
        let identity = [
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@example.org",
            "-c",
            "commit.gpgsign=false",
            "-c",
            "tag.gpgsign=false",
        ];
        let arguments = identity.iter().chain(arguments);
        process::output(git(root).args(arguments)).unwrap();
    }

    #[test]
    fn the_day_of_a_commit_is_that_of_utc() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        run(root, &["init", "--quiet"]);
        let mut commit = git(root);
        commit
            .args([
                "-c",
                "user.name=a",
                "-c",
                "user.email=a@example.org",
                "-c",
                "commit.gpgsign=false",
            ])
            .args(["commit", "--quiet", "--allow-empty", "--message", "one"])
            .env("GIT_COMMITTER_DATE", "2026-02-28T23:30:00-0100");
        process::output(&mut commit).unwrap();
        assert_eq!(last_date(root).unwrap(), "2026-03-01");
    }

    #[test]
    fn what_is_not_committed_and_a_tag_elsewhere_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        run(root, &["init", "--quiet"]);
        run(root, &["commit", "--quiet", "--allow-empty", "--message", "one"]);
        let none = Vec::<String>::new();
        assert_eq!(findings(root, "0.1.0").unwrap(), none);

        std::fs::write(root.join("new"), "").unwrap();
        assert_eq!(findings(root, "0.1.0").unwrap(), ["not committed: new"]);
        run(root, &["add", "new"]);
        assert_eq!(findings(root, "0.1.0").unwrap(), ["not committed: new"]);
        run(root, &["tag", "--annotate", "--message", "r", "v0.1.0"]);
        run(root, &["commit", "--quiet", "--message", "two"]);

        let taken = ["the tag v0.1.0 is there already, on another commit"];
        assert_eq!(findings(root, "0.1.0").unwrap(), taken);
        assert_eq!(findings(root, "0.1.1").unwrap(), none);
        run(root, &["tag", "--annotate", "--message", "r", "v0.1.1"]);
        assert_eq!(findings(root, "0.1.1").unwrap(), none, "it is on this commit");
    }
}
