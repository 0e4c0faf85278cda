//! What of an image can be proved without a container engine: its program needs no library that the
//! base image lacks, and no file.
//!
//! The last tier looks at the program that an image gets, as `images/Dockerfile` builds it: a
//! release without default features. The first tier runs the program under test in a container,
//! which says nothing about images: it has more in it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ccm_e2e::image::{Container, ContainerMethod, RUNTIME, shared_libraries};
use ccm_testkit::suite::Tier;

use crate::cases;
use crate::plain::{Case, needing};

/// Names the program of an image of the mock provider.
const PROGRAM_VARIABLE: &str = "CCM_IMAGE_PROGRAM";

pub(crate) fn cases() -> Vec<Case> {
    let means = ContainerMethod::find().err();
    let program = image_program().err();
    let mut cases = needing(means, cases![the_program_under_test_runs_in_a_container]);
    let shipped = needing(
        program.clone(),
        cases![
            the_program_of_the_image_needs_only_libraries_of_the_base_image,
            the_program_of_the_image_has_no_demo,
        ],
    );
    let run = cases![the_program_of_the_image_runs_on_a_read_only_root_as_an_unprivileged_user];
    let run = needing(program.or(means.map(str::to_owned)), run);
    cases.extend(
        shipped
            .into_iter()
            .chain(run)
            .map(|case| Case { tier: Tier::Nightly, ..case }),
    );
    cases
}

fn image_program() -> Result<PathBuf, String> {
    let named = std::env::var_os(PROGRAM_VARIABLE)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from);
    named.ok_or_else(|| {
        format!(
            "{PROGRAM_VARIABLE} names no program; \
             `cargo build --release --locked --package ccm-mock --no-default-features` makes one"
        )
    })
}

/// Shared libraries of the base image (packages libc6 and libgcc-s1), by the beginning of their
/// names.
const BASE_HAS: [&str; 5] = [
    "libc.so.6",
    "libm.so.6",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];

fn the_program_of_the_image_needs_only_libraries_of_the_base_image() {
    let libraries = shared_libraries(&image_program().unwrap()).unwrap();
    let needed: BTreeSet<_> = libraries
        .iter()
        .map(|path| path.file_name().unwrap().to_owned())
        .collect();
    assert!(needed.len() >= 2, "{needed:?}");
    let foreign: Vec<_> = needed
        .iter()
        .filter(|name| !BASE_HAS.iter().any(|has| name == has))
        .collect();
    assert!(foreign.is_empty(), "the base image lacks {foreign:?}");
}

fn the_program_of_the_image_has_no_demo() {
    let output = Command::new(image_program().unwrap())
        .args(["demo", "--once"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("unrecognized subcommand 'demo'"),
        "{output:?}"
    );
}

fn the_program_of_the_image_runs_on_a_read_only_root_as_an_unprivileged_user() {
    runs_in_a_container(&image_program().unwrap());
}

fn the_program_under_test_runs_in_a_container() {
    runs_in_a_container(Path::new(env!("CARGO_BIN_EXE_ccm-under-test")));
}

/// Runs a program with nothing but itself and its libraries, as the image's user on a read-only
/// root.
fn runs_in_a_container(program: &Path) {
    for means in ContainerMethod::find().unwrap() {
        let output = run(means, program, &["--version"]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains(env!("CARGO_PKG_VERSION")),
            "{means:?}: {output:?}"
        );
        // With everything that a start without a cluster comes across: it ends by what is missing,
        // not by what it cannot write.
        let output = run(means, program, &["--cloud-provider=mock", "--secure-port=0"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{means:?}: {said}");
        let last = said.lines().last().unwrap();
        assert!(
            last.starts_with("error: ") && last.contains("service account cannot be used"),
            "{means:?}: {said}"
        );
        assert!(
            !said.contains("Read-only file system") && !said.contains("panicked"),
            "{means:?}: {said}"
        );
    }
}

fn run(means: ContainerMethod, program: &Path, args: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let container = Container::new(means, directory.path(), program, "/ccm").unwrap();
    let command: Vec<_> = ["/ccm"]
        .iter()
        .chain(args)
        .map(ToString::to_string)
        .collect();
    Command::new(RUNTIME)
        .args(container.arguments(&command).unwrap())
        .output()
        .unwrap()
}
