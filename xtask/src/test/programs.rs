//! Builds test programs and finds out where they are.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Context as _;
use serde::Deserialize;

use crate::process;

/// A program of tests: what cargo calls a test target of a package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Program {
    /// Package it tests.
    pub(super) package: String,
    /// `lib`, or the name of the test or binary.
    pub(super) target: String,
    /// Where it is.
    pub(super) executable: PathBuf,
    /// The package's folder, which tests run in.
    pub(super) folder: PathBuf,
}

/// Builds what these arguments of `cargo test` choose, without running it.
pub(super) fn build(arguments: &[&str]) -> anyhow::Result<Vec<Program>> {
    let names = packages()?;
    let mut cargo = process::cargo()?;
    cargo
        .args(["test", "--no-run", "--message-format", "json-render-diagnostics"])
        .args(arguments);
    cargo.stdout(Stdio::piped());
    let messages = process::output(&mut cargo)?;
    let programs = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok());
    let mut programs: Vec<_> = programs
        .filter_map(|message| message.program(&names))
        .collect();
    programs.sort();
    anyhow::ensure!(!programs.is_empty(), "cargo built no test program");
    Ok(programs)
}

/// Names of the workspace's packages by their manifests.
fn packages() -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut cargo = process::cargo()?;
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Metadata =
        serde_json::from_str(&process::output(&mut cargo)?).context("read cargo's metadata")?;
    Ok(metadata
        .packages
        .into_iter()
        .map(|package| (package.manifest_path, package.name))
        .collect())
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
}

/// What cargo says of something that it built; of its other messages these fields are not all
/// there.
#[derive(Deserialize)]
struct Message {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Message {
    fn program(self, packages: &BTreeMap<PathBuf, String>) -> Option<Program> {
        let executable = self.executable.filter(|_| self.profile.test)?;
        let library = self.target.kind.iter().any(|kind| kind == "lib");
        Some(Program {
            package: packages.get(&self.manifest_path)?.clone(),
            target: if library {
                "lib".to_owned()
            } else {
                self.target.name
            },
            executable,
            folder: self.manifest_path.parent()?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_what_cargo_says_that_it_built_for_tests() {
        let names = BTreeMap::from([(PathBuf::from("/r/a/Cargo.toml"), "a".to_owned())]);
        let read = |kind: &str, test: bool, executable: &str| {
            let line = format!(
                "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"/r/a/Cargo.toml\",\"executable\":{executable},\
                 \"target\":{{\"name\":\"x\",\"kind\":[\"{kind}\"]}},\"profile\":{{\"test\":{test}}}}}"
            );
            let message: Message = serde_json::from_str(&line).unwrap();
            message
                .program(&names)
                .map(|program| (program.package, program.target, program.folder))
        };
        let at = |target: &str| Some(("a".to_owned(), target.to_owned(), PathBuf::from("/r/a")));
        assert_eq!(read("lib", true, "\"/t/x-1\""), at("lib"));
        assert_eq!(read("test", true, "\"/t/x-1\""), at("x"));
        assert_eq!(read("bin", false, "\"/t/x\""), None, "the program itself");
        assert_eq!(read("lib", false, "null"), None);
        assert!(
            serde_json::from_str::<Message>("{\"reason\":\"build-finished\",\"success\":true}")
                .is_err()
        );
    }
}
