//! The list of things one can do in this repository: `cargo xtask --help`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people at a terminal"
)]

#[path = "../../tests/testkit/src/control_plane/assets.rs"]
mod assets;
mod bench;
mod browser;
mod chart;
mod control_plane;
mod dockerfile;
mod explore;
mod fips;
mod image;
mod kubernetes_tests;
mod licenses;
mod lint;
mod linter;
#[path = "../../tests/realcluster/src/machine.rs"]
mod machine;
mod markdown;
mod nodes;
mod notices;
mod openstack_real;
mod process;
mod program;
mod python;
mod release;
mod sbom;
mod scripts;
mod site;
mod test;
mod tidy;
#[allow(
    unreachable_pub,
    reason = "the testkit, which this file is of, shows it to its users"
)]
#[path = "../../tests/testkit/src/tier.rs"]
mod tier;
mod workflows;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask",
    about = "The list of things one can do in this repository"
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Builds etcd, kube-apiserver, kube-controller-manager and helm for tests, where they are not
    /// there yet, our programs in Go that tests run beside ours, what nodes of a real cluster run,
    /// and Kubernetes' own tests; needs Go
    ControlPlane,
    /// Runs the tests that need Rust alone; more with `--full` (Go, Python) and `--nightly`;
    /// further arguments go to `cargo test`
    Test(test::Arguments),
    /// Runs clippy, `go vet`, actionlint, hadolint and shellcheck, builds the documentation site, and
    /// checks what images hold and what no test builds
    Lint(lint::Arguments),
    /// Checks layering, lengths, machine paths and links; offline
    Tidy,
    /// Checks the licences, sources and bans of `deny.toml` on what this machine would build, and
    /// that the notices of all programs can be made; offline
    Licenses,
    /// Prints a bill of materials of one program (CycloneDX, JSON) from the lock file; offline
    Sbom(sbom::Arguments),
    /// Prints the licences and notices of the packages that are linked into one program; offline
    Notices(notices::Arguments),
    /// Makes an image of one provider (OCI, in a tar archive) without a container engine; needs
    /// apt and dpkg, and a network unless `--debs` has all packages
    Image(image::Arguments),
    /// Checks that a version can be tagged: manifests, chart, documents and changelog agree, and
    /// nothing is uncommitted; changes nothing
    Release(release::Arguments),
    /// Compares the public API of the crates that can be published with the last release; does
    /// nothing before the first. Needs cargo-semver-checks
    Api,
    /// Builds the documentation site with mdBook in `target/site/book`, and checks its links; the
    /// first time it downloads and builds mdBook
    Site,
    /// Formats the code, or with `--check` fails when it is not formatted
    Fmt {
        /// Changes nothing
        #[arg(long)]
        check: bool,
    },
    /// Makes the chart's rules from `rbac/`, and the table in its README from `values.yaml`
    Chart(chart::Arguments),
    /// Measures the controllers on a real control plane and prints tables; needs Go
    Bench(bench::Arguments),
    /// Explores faults in full, about twenty minutes of one processor beside the builds: the
    /// framework's and the providers'; further arguments go to the test programs
    Explore(explore::Arguments),
    /// Builds and tests managers for FIPS 140-3, and checks that they have no other cryptography; needs
    /// cmake, make, Perl, Go, and compilers of C and C++
    Fips,
    /// Runs what continuous integration runs: formatting, tidy, licences, lints and tests
    Ci,
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::ControlPlane => {
            control_plane::build_all()?;
            if control_plane::go_is_there()
                && machine::unfit().is_none()
                && image::missing()?.is_none()
            {
                nodes::prepare()?;
                kubernetes_tests::prepare()?;
            }
            Ok(())
        }
        Task::Test(arguments) => test::run(&arguments),
        Task::Lint(arguments) => lint::run(&arguments),
        Task::Tidy => tidy::run(),
        Task::Licenses => {
            licenses::run()?;
            image::check_notices()
        }
        Task::Sbom(arguments) => sbom::run(&arguments),
        Task::Notices(arguments) => notices::run(&arguments),
        Task::Image(arguments) => image::run(&arguments),
        Task::Release(arguments) => release::run(&arguments),
        Task::Api => release::crates::compare_api(),
        Task::Site => site::run(),
        Task::Fmt { check } => {
            let mut fmt = process::cargo()?;
            fmt.args(["fmt", "--all"]);
            if check {
                fmt.arg("--check");
            }
            process::run(&mut fmt)
        }
        Task::Chart(arguments) => chart::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Fips => fips::run(),
        Task::Explore(arguments) => explore::run(&arguments),
        Task::Ci => process::run(&mut Command::new(root()?.join(".ci/run"))),
    }
}

/// The repository's root.
fn root() -> anyhow::Result<PathBuf> {
    // Cargo sets the variable when it runs us; the compiled-in value serves a binary started by
    // hand.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or(PathBuf::from(env!("CARGO_MANIFEST_DIR")), Into::into);
    manifest
        .parent()
        .map(PathBuf::from)
        .context("xtask lies in the repository's root")
}
