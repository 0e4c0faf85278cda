//! Runs all tests.

use std::path::PathBuf;
use std::time::Instant;

use crate::{assets, control_plane, process, python};

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Does not build the control plane; suites that need it say that they are skipped when it is not there
    #[arg(long)]
    no_control_plane: bool,
    /// Does not install moto, the stand-in for AWS; suites that need it say that they are skipped
    #[arg(long)]
    no_moto: bool,
    /// Does not install OpenStack's command line; suites that need it say that they are skipped
    #[arg(long)]
    no_openstack_clients: bool,
    /// Further arguments for `cargo test`, for instance `-p ccm-core some_test`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    cargo: Vec<String>,
}

/// Runs all tests, then those in documentation.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let started = Instant::now();
    let with_control_plane = !arguments.no_control_plane && prepare_control_plane()?;
    let go_programs = if with_control_plane { prepare_go_programs()? } else { None };
    let mut tools = Vec::new();
    for (tool, left_out) in [(python::MOTO, arguments.no_moto), (python::OPENSTACK, arguments.no_openstack_clients)] {
        if !left_out && let Some(program) = tool.prepare()? {
            tools.push((tool.variable, program));
        }
    }
    let plan = Plan::new(&arguments.cargo);
    for run in [plan.tests, plan.doc_tests].into_iter().flatten() {
        println!("=== cargo {} (after {:.0} s)", run.join(" "), started.elapsed().as_secs_f64());
        let mut cargo = process::cargo()?;
        cargo.args(run);
        if with_control_plane {
            // Suites that do not find what was just built fail, instead of being skipped.
            cargo.env("CCM_CONTROL_PLANE", "required");
        }
        if let Some(directory) = &go_programs {
            cargo.env(assets::GO_PROGRAMS_VARIABLE, directory);
        }
        cargo.envs(tools.iter().map(|(variable, program)| (variable, program)));
        process::run(&mut cargo)?;
    }
    Ok(())
}

/// Builds the control plane, or says what it means that it cannot be built.
fn prepare_control_plane() -> anyhow::Result<bool> {
    if !control_plane::all_there() && !control_plane::go_is_there() {
        let place = assets::directory().map(|path| format!(" in {}", path.display())).unwrap_or_default();
        eprintln!(
            "warning: NO REAL CONTROL PLANE: there is no Go to build it with, and it is not{place}.\n\
             warning: SKIPPED are all suites on a real etcd and kube-apiserver; each says so when it is its turn."
        );
        return Ok(false);
    }
    control_plane::build()?;
    Ok(true)
}

/// Builds what tests run beside ours, or says what it means that there is no Go.
fn prepare_go_programs() -> anyhow::Result<Option<PathBuf>> {
    if control_plane::go_is_there() {
        return control_plane::build_go_programs().map(Some);
    }
    eprintln!(
        "warning: NO PROGRAMS IN GO: there is no Go to build them with.\n\
         warning: SKIPPED are all tests beside Go's controllers; each says so when it is its turn."
    );
    Ok(None)
}

/// The two runs of cargo.
#[derive(Debug, PartialEq)]
struct Plan {
    tests: Option<Vec<String>>,
    doc_tests: Option<Vec<String>>,
}

/// Options that choose packages, or say themselves that it is the whole workspace.
const PACKAGES: [&str; 4] = ["-p", "--package", "--workspace", "--exclude"];
/// Options that choose what of a package is tested.
const TARGETS: [&str; 10] = [
    "--lib",
    "--bins",
    "--bin",
    "--tests",
    "--test",
    "--examples",
    "--example",
    "--benches",
    "--bench",
    "--all-targets",
];

impl Plan {
    fn new(arguments: &[String]) -> Self {
        // What follows `--` is for the test programs.
        let for_cargo = arguments.split(|argument| argument == "--").next().unwrap_or_default();
        let chooses = |options: &[&str]| {
            for_cargo.iter().any(|argument| {
                let name = argument.split('=').next().unwrap_or_default();
                options.contains(&name) || (argument.starts_with("-p") && options.contains(&"-p"))
            })
        };
        let targets = chooses(&TARGETS);
        let doc_only = chooses(&["--doc"]);
        let run = |target: Option<&str>| {
            let mut run = vec!["test".to_owned()];
            if !chooses(&PACKAGES) {
                run.push("--workspace".to_owned());
            }
            run.extend(target.map(str::to_owned));
            run.extend(arguments.iter().filter(|argument| *argument != "--doc").cloned());
            run
        };
        Self {
            tests: (!doc_only).then(|| run((!targets).then_some("--all-targets"))),
            doc_tests: (doc_only || !targets).then(|| run(Some("--doc"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(arguments: &[&str]) -> (Option<String>, Option<String>) {
        let plan = Plan::new(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>());
        (plan.tests.map(|run| run.join(" ")), plan.doc_tests.map(|run| run.join(" ")))
    }

    #[test]
    fn arguments_narrow_what_runs() {
        let both = |tests: &str, docs: &str| (Some(tests.to_owned()), Some(docs.to_owned()));
        assert_eq!(lines(&[]), both("test --workspace --all-targets", "test --workspace --doc"));
        assert_eq!(
            lines(&["-p", "ccm-core", "name", "--", "--nocapture"]),
            both("test --all-targets -p ccm-core name -- --nocapture", "test --doc -p ccm-core name -- --nocapture")
        );
        assert_eq!(lines(&["-pxtask", "--lib"]), (Some("test -pxtask --lib".to_owned()), None));
        assert_eq!(lines(&["--doc"]), (None, Some("test --workspace --doc".to_owned())));
        assert_eq!(
            lines(&["--", "--test"]),
            both("test --workspace --all-targets -- --test", "test --workspace --doc -- --test")
        );
    }
}
