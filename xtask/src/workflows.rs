//! Has actionlint check GitHub's workflows, which nothing here can run. It is built from the module
//! in `tests/actionlint`; where shellcheck is installed, it reads the scripts with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::assets::{self, Release};
use crate::{control_plane, root};

const PROGRAM: &str = "actionlint";
const MODULE: &str = "tests/actionlint";
const PACKAGE: &str = "github.com/rhysd/actionlint/cmd/actionlint";

/// A workflow with a mistake in an expression and one in a key: whoever finds none reads nothing.
const BROKEN: &str = "on: push\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    timeout-minute: 5\n    steps:\n      - run: echo ${{ github.reff }}\n";
/// What is said of each of them.
const BROKEN_FINDINGS: [&str; 2] = ["\"timeout-minute\"", "\"reff\""];

/// Builds actionlint if it has changed, sees it reject a broken workflow, and has it check ours.
pub(crate) fn lint() -> anyhow::Result<()> {
    let program = build()?;
    ensure_rejected(&run(&program, &root()?, Some(BROKEN))?)?;
    let (accepted, text) = run(&program, &root()?, None)?;
    anyhow::ensure!(accepted, "actionlint finds mistakes:\n{text}");
    Ok(())
}

fn build() -> anyhow::Result<PathBuf> {
    let program = control_plane::target()?
        .join(assets::GO_PROGRAMS_DIRECTORY)
        .join(PROGRAM);
    control_plane::go_build(Release::Current, &root()?.join(MODULE), PACKAGE, &program)
        .context("build actionlint")?;
    Ok(program)
}

/// Says whether a run on [`BROKEN`] found everything.
fn ensure_rejected((accepted, text): &(bool, String)) -> anyhow::Result<()> {
    let overlooked = BROKEN_FINDINGS
        .into_iter()
        .find(|finding| !text.contains(finding));
    anyhow::ensure!(
        !accepted && overlooked.is_none(),
        "actionlint overlooks mistakes in a broken workflow ({}):\n{text}",
        overlooked.unwrap_or("its exit code is 0")
    );
    Ok(())
}

/// Runs it on the workflows of a folder, or on one given as text. Returns whether it accepts them,
/// and what it says.
fn run(program: &Path, folder: &Path, workflow: Option<&str>) -> anyhow::Result<(bool, String)> {
    let mut actionlint = Command::new(program);
    actionlint
        .current_dir(folder)
        .arg("-no-color")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if workflow.is_some() {
        actionlint.arg("-");
    }
    let mut child = actionlint.spawn().context("run actionlint")?;
    if let (Some(mut stdin), Some(text)) = (child.stdin.take(), workflow) {
        std::io::Write::write_all(&mut stdin, text.as_bytes()).context("write to actionlint")?;
    }
    let output = child.wait_with_output().context("wait for actionlint")?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linter_that_overlooks_mistakes_is_not_believed() {
        let judge = |text: &str, accepted| {
            ensure_rejected(&(accepted, text.to_owned())).map_err(|error| error.to_string())
        };
        judge("\"timeout-minute\" and \"reff\"", false).unwrap();
        let accepted = judge("\"timeout-minute\" and \"reff\"", true).unwrap_err();
        assert!(accepted.contains("its exit code is 0"), "{accepted}");
        let overlooked = judge("\"timeout-minute\" alone", false).unwrap_err();
        assert!(overlooked.contains("(\"reff\")"), "{overlooked}");
    }
}
