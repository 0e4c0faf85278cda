//! Lints, and builds that no test needs: what images hold, the framework alone, other machines.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::{control_plane, dockerfile, licenses, process, python, root, site, workflows};

/// Runs of cargo: what each is for, and its arguments.
const RUNS: [(&str, &[&str]); 6] = [
    ("lints", &["clippy", "--workspace", "--all-targets", "--", "-Dwarnings"]),
    (
        "lints of what needs AWS' SDK",
        &[
            "clippy",
            "--package",
            "ccm-aws",
            "--features",
            "sdk",
            "--all-targets",
            "--",
            "-Dwarnings",
        ],
    ),
    (
        "the framework alone",
        &["clippy", "--package", "ccm-core", "--no-default-features", "--", "-Dwarnings"],
    ),
    (
        "what the image of mock holds",
        &["clippy", "--package", "ccm-mock", "--no-default-features", "--", "-Dwarnings"],
    ),
    (
        "what the image of openstack holds",
        &["clippy", "--package", "ccm-openstack", "--no-default-features", "--", "-Dwarnings"],
    ),
    (
        "what the image of aws holds",
        &["check", "--package", "ccm-aws", "--no-default-features", "--features", "sdk", "--bins"],
    ),
];

/// Another machine that images are for.
const OTHER: (&str, &str) = ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu-gcc");

/// Arguments of `cargo xtask lint`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leaves out what takes minutes the first time: AWS' SDK, `go vet` and the documentation site
    #[arg(long)]
    no_sdk: bool,
}

/// Runs all of them, and says what could not be run here.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    for (what, command) in RUNS {
        if arguments.no_sdk && command.contains(&"sdk") {
            println!("left out: {what}");
            continue;
        }
        step(what, || {
            let mut cargo = process::cargo()?;
            cargo.args(command);
            process::run(&mut cargo)
        })?;
    }
    documentation()?;
    lint_other_architecture()?;
    if arguments.no_sdk {
        println!("left out: go vet, the documentation site");
    } else {
        go()?;
        step("the documentation site", site::run)?;
    }
    workflows()?;
    dockerfile()?;
    shell()
}

fn step(what: &str, run: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let started = Instant::now();
    run().with_context(|| what.to_owned())?;
    println!("{what}: fine after {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// Whether a program is on the path, whatever it says of this argument.
fn is_there(program: &str, argument: &str) -> bool {
    Command::new(program)
        .arg(argument)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// Builds the documentation, whose links must lead somewhere.
fn documentation() -> anyhow::Result<()> {
    step("documentation", || {
        let mut cargo = process::cargo()?;
        cargo
            .args(["doc", "--workspace", "--no-deps", "--quiet"])
            .env("RUSTDOCFLAGS", "-Dwarnings");
        process::run(&mut cargo)
    })
}

fn lint_other_architecture() -> anyhow::Result<()> {
    let (target, compiler) = OTHER;
    let mut rustc = Command::new("rustc");
    let libraries = process::output(rustc.args(["--print", "target-libdir", "--target", target]))?;
    if licenses::host()? == target
        || !Path::new(libraries.trim()).is_dir()
        || !is_there(compiler, "--version")
    {
        println!(
            "left out: check for {target}, which needs `rustup target add {target}` and {compiler}"
        );
        return Ok(());
    }
    step(target, || {
        let mut cargo = process::cargo()?;
        cargo.args([
            "check",
            "--target",
            target,
            "--package",
            "ccm-mock",
            "--package",
            "ccm-openstack",
        ]);
        process::run(cargo.arg("--no-default-features"))
    })
}

/// Vets our programs in Go.
fn go() -> anyhow::Result<()> {
    if !control_plane::go_is_there() {
        println!("left out: go vet, which needs Go");
        return Ok(());
    }
    for module in control_plane::own_modules()? {
        let name =
            format!("go vet in {}", module.strip_prefix(root()?).unwrap_or(&module).display());
        step(&name, || process::run(control_plane::go(&module, "vet").arg("./...")))?;
    }
    Ok(())
}

/// Checks what GitHub runs.
fn workflows() -> anyhow::Result<()> {
    if !control_plane::go_is_there() {
        println!("left out: actionlint, which needs Go");
        return Ok(());
    }
    step("actionlint", workflows::lint)
}

/// Checks what a container engine builds.
fn dockerfile() -> anyhow::Result<()> {
    if !python::HADOLINT.can_be_prepared() {
        println!("left out: hadolint, which needs Python with venv");
        return Ok(());
    }
    step("hadolint", dockerfile::lint)
}

/// Checks the scripts.
fn shell() -> anyhow::Result<()> {
    if !is_there("shellcheck", "--version") {
        println!("left out: shellcheck, which is not there");
        return Ok(());
    }
    let mut git = Command::new("git");
    git.current_dir(root()?)
        .args(["grep", "-lI", "-e", "^#!.*\\(ba\\)\\?sh$"]);
    let scripts = process::output(&mut git)?;
    step("shellcheck", || {
        process::run(
            Command::new("shellcheck")
                .current_dir(root()?)
                .args(scripts.lines()),
        )
    })
}
