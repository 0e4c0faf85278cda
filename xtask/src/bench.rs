//! Builds the manager as for an image, and measures it, alone or beside one on Go's framework.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use crate::{assets, control_plane, process, python};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Measures the Go manager of `tests/control-plane/kubernetes/ccm` too, in turns, and prints
    /// ratios; comes before the other arguments
    #[arg(long)]
    compare: bool,
    /// Takes profiles of our manager with `perf` and says where they are; comes before the other
    /// arguments
    #[arg(long)]
    profile: bool,
    /// Counts the requests of the AWS manager to moto, a stand-in for AWS; the other arguments are
    /// then `--nodes`, `--services`, `--runs` and, to count upstream's too, `--upstream <program>`
    #[arg(long, conflicts_with_all = ["compare", "profile"])]
    aws: bool,
    /// What is measured (`converge`, `restart`, …), arguments of the benchmark, and flags of the
    /// manager after `--`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    control_plane::build(assets::Release::chosen())?;
    if arguments.aws {
        return count_aws_calls(&arguments.rest);
    }
    let target = control_plane::target()?;
    let baseline = if arguments.compare {
        Some(build_baseline()?)
    } else {
        None
    };
    // Without the demo, as in an image.
    let mut manager = process::cargo()?;
    // Both have a folder of their own in the target directory.
    let profile = if arguments.profile {
        "profiling"
    } else {
        "release"
    };
    process::run(manager.args([
        "build",
        "--profile",
        profile,
        "--package",
        "ccm-mock",
        "--no-default-features",
    ]))?;
    // Building the benchmark never builds the binary again.
    let mut bench = process::cargo()?;
    bench.args(["run", "--release", "--package", "ccm-bench", "--", "--manager"]);
    bench.arg(target.join(profile).join("ccm-mock"));
    if let Some(baseline) = baseline {
        bench.arg("--baseline").arg(baseline);
    }
    if !arguments.profile {
        return process::run(bench.args(&arguments.rest));
    }
    let profiles = target.join("bench/profiles");
    process::run(bench.arg("--profiles").arg(&profiles).args(&arguments.rest))?;
    println!(
        "profiles: perf report --no-inline --no-children --input {}/<process>.perf",
        profiles.display()
    );
    Ok(())
}

/// A debug build does: only requests are counted.
fn count_aws_calls(rest: &[String]) -> anyhow::Result<()> {
    let moto = python::MOTO
        .prepare()?
        .context("moto is needed, which stands in for AWS")?;
    let mut cargo = process::cargo()?;
    let bench = [
        "bench",
        "--package",
        "ccm-aws",
        "--features",
        "sdk",
        "--bench",
        "calls",
        "--profile",
        "dev",
        "--",
    ];
    cargo.args(bench).args(rest);
    process::run(cargo.env(python::MOTO.variable, moto))
}

fn build_baseline() -> anyhow::Result<PathBuf> {
    anyhow::ensure!(
        control_plane::go_is_there(),
        "Go is needed to build what `--compare` compares with, and `go version` does not run"
    );
    Ok(control_plane::build_go_programs(false)?.join(assets::GO_CCM))
}
