//! Builds the manager as for an image, and measures it.

use clap::Args;

use crate::{control_plane, process};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Arguments of the benchmark: `--nodes`, `--runs`, `--latency-ms`, and flags of the manager after `--`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    control_plane::build()?;
    // Without the demo, as in an image.
    let mut manager = process::cargo()?;
    process::run(manager.args(["build", "--release", "--package", "ccm-mock", "--no-default-features"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| crate::root().map(|r| r.join("target")), |t| Ok(t.into()))?;
    // Building the benchmark builds ccm-mock's library with other features, never the binary again.
    let mut bench = process::cargo()?;
    bench.args(["run", "--release", "--package", "ccm-bench", "--", "--manager"]);
    process::run(bench.arg(target.join("release/ccm-mock")).args(&arguments.rest))
}
