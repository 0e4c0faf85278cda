//! Has actionlint check GitHub's workflows, which nothing here can run. It is built from the module
//! in `tests/actionlint`; where shellcheck is installed, it reads the scripts with it.

use anyhow::Context as _;

use crate::assets::{self, Release};
use crate::linter::Linter;
use crate::{control_plane, root};

const PROGRAM: &str = "actionlint";
const MODULE: &str = "tests/actionlint";
const PACKAGE: &str = "github.com/rhysd/actionlint/cmd/actionlint";

/// A workflow with a mistake in an expression and one in a key.
const BROKEN: &str = "on: push\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    timeout-minute: 5\n    steps:\n      - run: echo ${{ github.reff }}\n";

/// Builds actionlint if it has changed, and has it check our workflows.
pub(crate) fn lint() -> anyhow::Result<()> {
    let root = root()?;
    let program = control_plane::target()?
        .join(assets::GO_PROGRAMS_DIRECTORY)
        .join(PROGRAM);
    control_plane::go_build(Release::Current, &root.join(MODULE), PACKAGE, &program)
        .context("build actionlint")?;
    let actionlint = Linter {
        name: PROGRAM,
        program,
        options: &["-no-color"],
        broken: BROKEN,
        broken_findings: &["\"timeout-minute\"", "\"reff\""],
    };
    // Without names it finds the workflows itself.
    actionlint.check(&root, &[])
}
