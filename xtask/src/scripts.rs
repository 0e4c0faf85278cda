//! Has shellcheck check the shell scripts of the repository.

use anyhow::Context as _;

use crate::linter::Linter;
use crate::release::git;
use crate::{process, python, root};

/// A script that goes on where it should not, and one of whose words may become several.
const BROKEN: &str = "#!/bin/sh\ncd \"$1\"\necho $2\n";

/// Installs shellcheck if it is not there, and has it check what git lists as scripts, with the
/// files that they read.
pub(crate) fn lint() -> anyhow::Result<()> {
    let root = root()?;
    let mut list = git(&root);
    list.args(["grep", "-lI", "-e", "^#!.*\\(ba\\)\\?sh$"]);
    let scripts = process::output(&mut list).context("list the scripts")?;
    let shellcheck = Linter {
        name: "shellcheck",
        program: python::SHELLCHECK
            .prepare()?
            .context("it needs Python with venv")?,
        options: ["--color=never", "--external-sources", "--source-path=SCRIPTDIR"]
            .map(str::to_owned)
            .into(),
        broken: BROKEN,
        // Its numbers for the two.
        broken_findings: &["SC2164", "SC2086"],
    };
    shellcheck.check(&root, &scripts.lines().collect::<Vec<_>>())
}
