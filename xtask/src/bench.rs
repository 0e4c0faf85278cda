//! Builds the manager as for an image, and measures it, alone or beside one on Go's framework.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::{control_plane, process, root};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Measures the Go manager of `tests/bench/go` too, in turns, and prints ratios; comes before the other arguments
    #[arg(long)]
    compare: bool,
    /// Takes profiles of our manager with `perf` and says where they are; comes before the other arguments
    #[arg(long)]
    profile: bool,
    /// What is measured (`converge`, `restart`, …), arguments of the benchmark, and flags of the manager after `--`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    control_plane::build()?;
    // Cargo takes a relative directory from where it runs, which is the root.
    let target = root()?.join(std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from));
    let baseline = if arguments.compare { Some(build_baseline(&target)?) } else { None };
    // Without the demo, as in an image.
    let mut manager = process::cargo()?;
    // Both have a folder of their own in the target directory.
    let profile = if arguments.profile { "profiling" } else { "release" };
    process::run(manager.args(["build", "--profile", profile, "--package", "ccm-mock", "--no-default-features"]))?;
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
    println!("profiles: perf report --no-inline --no-children --input {}/<process>.perf", profiles.display());
    Ok(())
}

/// Builds the Go manager. Go itself finds out whether anything is to be done.
fn build_baseline(target: &Path) -> anyhow::Result<PathBuf> {
    anyhow::ensure!(
        control_plane::go_is_there(),
        "Go is needed to build what `--compare` compares with, and `go version` does not run"
    );
    println!("benchmark: building the Go baseline, this may take some minutes");
    let output = target.join("bench/ccm-go-baseline");
    control_plane::go_build(&root()?.join("tests/bench/go"), ".", &output)?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use crate::assets::Versions;

    #[test]
    fn the_baseline_is_of_the_control_planes_version() {
        let kubernetes = Versions::pinned().kubernetes;
        let wanted = kubernetes.strip_prefix("1.").map(|rest| format!("k8s.io/cloud-provider v0.{rest}"));
        let go_mod = include_str!("../../tests/bench/go/go.mod");
        assert!(go_mod.lines().any(|line| Some(line.trim()) == wanted.as_deref()), "no line {wanted:?}");
    }
}
