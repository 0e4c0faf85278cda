//! Has hadolint check the images' Dockerfile, which needs a container engine to be built.

use anyhow::Context as _;

use crate::linter::Linter;
use crate::{python, root};

/// A Dockerfile whose base image has no version, and with an instruction that is out of use.
const BROKEN: &str = "FROM debian\nMAINTAINER nobody\n";

/// Installs hadolint if it is not there, and has it check the Dockerfile.
pub(crate) fn lint() -> anyhow::Result<()> {
    let hadolint = Linter {
        name: "hadolint",
        program: python::HADOLINT
            .prepare()?
            .context("it needs Python with venv")?,
        options: &["--no-color"],
        broken: BROKEN,
        // Its numbers for the two.
        broken_findings: &["DL3006", "DL4000"],
    };
    hadolint.check(&root()?, &["images/Dockerfile"])
}
