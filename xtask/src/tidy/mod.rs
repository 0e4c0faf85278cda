//! Checks that neither the compiler nor clippy makes. Offline.

mod cryptography;
mod dependencies;
mod features;
mod layering;
mod length;
mod lexer;
mod modules;
mod names;
mod paths;
mod text;
mod workflows;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::{process, root};

/// Something to be mended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    path: PathBuf,
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &Path, line: usize, message: String) -> Self {
        Self { path: path.to_owned(), line, message }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.message)
    }
}

/// Checks every file that git tracks or would track.
pub(crate) fn run() -> anyhow::Result<()> {
    let root = root()?;
    let mut git = Command::new("git");
    git.current_dir(&root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let list = process::output(&mut git)?;
    let paths: Vec<&Path> = list.split_terminator('\0').map(Path::new).collect();
    let (files, mut findings) = check_tree(&root, paths.iter().copied())?;
    findings.extend(dependencies::check(&root, &paths)?);
    findings.extend(modules::check(&root, &paths)?);
    let mut findings: Vec<_> = findings.iter().map(ToString::to_string).collect();
    findings.extend(features::check()?);
    for finding in &findings {
        eprintln!("{finding}");
    }
    anyhow::ensure!(findings.is_empty(), "{} things to mend", findings.len());
    println!("tidy: {files} files are fine");
    Ok(())
}

/// Checks the files; also returns how many there were.
fn check_tree<'a>(
    root: &Path,
    paths: impl IntoIterator<Item = &'a Path>,
) -> anyhow::Result<(usize, Vec<Finding>)> {
    let mut files = 0;
    let mut findings = Vec::new();
    for path in paths {
        let full = root.join(path);
        // A deleted file is listed until the deletion is committed; a symbolic link is checked
        // where it leads.
        if !full
            .symlink_metadata()
            .is_ok_and(|metadata| metadata.is_file())
        {
            continue;
        }
        files += 1;
        let bytes = std::fs::read(&full).with_context(|| format!("read {}", path.display()))?;
        // Not text: nothing of this applies.
        if let Ok(text) = String::from_utf8(bytes) {
            findings.extend(check_file(root, path, &text));
        }
    }
    anyhow::ensure!(files > 0, "no files found to check");
    Ok((files, findings))
}

fn check_file(root: &Path, path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = text::machine_paths(path, text);
    let extension = path.extension().and_then(|extension| extension.to_str());
    if extension == Some("rs") {
        findings.extend(length::check(path, text));
        findings.extend(names::check(path, text));
    }
    if layering::is_plan(path) {
        findings.extend(layering::check(path, text));
    }
    if workflows::is_workflow(path) {
        findings.extend(workflows::check(path, text));
    }
    if extension == Some("md") {
        findings.extend(text::broken_links(path, text, |target| root.join(target).exists()));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_reaches_the_files_it_is_for() {
        let directory = tempfile::tempdir().unwrap();
        let long = format!("fn f() {{\n{}}}\n", "    g();\n".repeat(70));
        let files = [
            ("ok.rs", "fn f() {}\n".to_owned()),
            ("long.rs", long),
            ("plan.rs", "use tokio::sync;\n".to_owned()),
            ("README.md", "[x](nowhere.md) [y](ok.rs)\n".to_owned()),
            (".github/workflows/a.yml", "name: a\n".to_owned()),
            ("script", concat!("cd /", "root/x\n").to_owned()),
        ];
        std::fs::create_dir_all(directory.path().join(".github/workflows")).unwrap();
        for (name, text) in &files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        std::fs::write(directory.path().join("binary"), [0xff, 0xfe, 0x00]).unwrap();
        let names = files.iter().map(|(name, _)| Path::new(*name));
        let names = names.chain([Path::new("binary"), Path::new("deleted")]);
        let (count, findings) = check_tree(directory.path(), names).unwrap();
        let found: Vec<_> = findings
            .iter()
            .map(|finding| finding.path.to_str().unwrap())
            .collect();
        assert_eq!(found, ["long.rs", "plan.rs", "README.md", ".github/workflows/a.yml", "script"]);
        assert_eq!(count, 7);
        assert_eq!(
            findings[1].to_string(),
            "plan.rs:1: a plan is pure and may not use `tokio::sync`, the runtime"
        );
    }

    #[test]
    fn an_empty_list_is_a_mistake() {
        assert!(check_tree(Path::new("."), []).is_err());
    }
}
