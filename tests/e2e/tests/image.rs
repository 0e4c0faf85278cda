//! What of the images can be proved without a container engine: the binary needs no library that the base image lacks and
//! no file that it lacks, and the parts of the Dockerfile fit together.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ccm_e2e::image::{Container, Means, RUNTIME, shared_libraries};
use serde_json::Value;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_ccm-under-test"))
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// Shared libraries of the base image (packages libc6 and libgcc-s1), by the beginning of their names.
const BASE_HAS: [&str; 5] =
    ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];

#[cfg(target_os = "linux")]
#[test]
fn the_binary_needs_only_libraries_of_the_base_image() {
    let needed: BTreeSet<_> =
        shared_libraries(program()).unwrap().iter().map(|path| path.file_name().unwrap().to_owned()).collect();
    assert!(needed.len() >= 2, "{needed:?}");
    let foreign: Vec<_> = needed.iter().filter(|name| !BASE_HAS.iter().any(|has| name == has)).collect();
    assert!(foreign.is_empty(), "the base image lacks {foreign:?}");
}

/// Runs the binary with nothing but itself and its libraries, as the image's user on a read-only root.
fn run_in_image(means: Means, args: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let container = Container::new(means, directory.path(), program(), "/ccm").unwrap();
    let command: Vec<_> = ["/ccm"].iter().chain(args).map(ToString::to_string).collect();
    Command::new(RUNTIME).args(container.arguments(&command).unwrap()).output().unwrap()
}

#[test]
fn the_binary_runs_on_a_read_only_root_as_an_unprivileged_user() {
    for means in Means::find_or_say_skipped("the binary in an image's root file system").unwrap() {
        let output = run_in_image(means, &["--version"]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(env!("CARGO_PKG_VERSION")), "{means:?}: {output:?}");
        // With everything that a start without a cluster comes across: it ends by what is missing, not by what it cannot
        // write.
        let output = run_in_image(means, &["--cloud-provider=mock", "--secure-port=0"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{means:?}: {said}");
        let last = said.lines().last().unwrap();
        assert!(last.starts_with("error: ") && last.contains("service account cannot be used"), "{means:?}: {said}");
        assert!(!said.contains("Read-only file system") && !said.contains("panicked"), "{means:?}: {said}");
    }
}

/// Values of `ARG name=value` lines.
fn argument(dockerfile: &str, name: &str) -> String {
    let prefix = format!("ARG {name}=");
    dockerfile.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap().to_owned()
}

#[test]
fn the_dockerfile_fits_the_chart_and_the_tool_chain() {
    let dockerfile = read("images/Dockerfile");
    let version = argument(&dockerfile, "RUST_VERSION");
    assert!(read("rust-toolchain.toml").contains(&format!("channel = \"{version}\"")), "{version}");
    // One Debian for both stages: a binary runs with the glibc that it was linked against.
    let codenames = [("12", "bookworm"), ("13", "trixie")];
    let debian = (argument(&dockerfile, "DEBIAN"), argument(&dockerfile, "DEBIAN_NAME"));
    assert!(codenames.contains(&(&*debian.0, &*debian.1)), "{debian:?}");
    assert!(argument(&dockerfile, "BASE").contains("cc-debian${DEBIAN}"), "not the release that it is built on");

    let values: Value = serde_saphyr::from_str(&read("charts/cloud-controller-manager/values.yaml")).unwrap();
    let user = dockerfile.lines().rfind(|line| line.starts_with("USER ")).unwrap();
    let security = &values["podSecurityContext"];
    assert_eq!(user, format!("USER {}:{}", security["runAsUser"], security["runAsGroup"]), "chart and image differ");
    let port = dockerfile.lines().rfind(|line| line.starts_with("EXPOSE ")).unwrap();
    assert_eq!(port, format!("EXPOSE {}", values["serving"]["port"]), "chart and image differ");
    let entrypoint = dockerfile.lines().rfind(|line| line.starts_with("ENTRYPOINT ")).unwrap();
    let path = entrypoint.split('"').nth(1).unwrap();
    assert!(dockerfile.contains(&format!(" /out/cloud-controller-manager {path}\n")), "{path} is not what is copied");
    let demos = "case \"${PROVIDER}\" in mock|openstack) features='--no-default-features' ;; *) features='' ;; esac";
    assert!(dockerfile.contains(demos), "a demo would be in the image, or another provider without its cloud");
    for provider in ["mock", "openstack"] {
        let manifest = read(&format!("providers/{provider}/Cargo.toml"));
        assert!(manifest.contains("\ndefault = [\"demo\"]\n"), "{provider} would lack what is no demo");
    }
}

/// A binary that needs features is built with its crate's default ones.
#[test]
fn features_that_a_binary_needs_are_there_by_default() {
    let manifest = read("providers/aws/Cargo.toml");
    let list = |key: &str| {
        let line = manifest.lines().find_map(|line| line.strip_prefix(&format!("{key} = "))).unwrap();
        line.split('"').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let (needed, default) = (list("required-features"), list("default"));
    assert!(!needed.is_empty() && needed.is_subset(&default), "{needed:?} are not among {default:?}");
}

/// Folders and files that a build does not get must not be needed by it.
#[test]
fn the_build_gets_all_crates() {
    let ignored: Vec<_> = read("images/Dockerfile.dockerignore").lines().map(str::to_owned).collect();
    let manifest = read("Cargo.toml");
    let (_, members) = manifest.split_once("\nmembers = [").unwrap();
    let (members, _) = members.split_once(']').unwrap();
    let members: Vec<_> = members.split('"').skip(1).step_by(2).map(PathBuf::from).collect();
    assert!(members.len() > 4, "{members:?}");
    for member in &members {
        let hit = ignored.iter().find(|pattern| !pattern.starts_with('#') && member.starts_with(pattern));
        assert!(hit.is_none(), "{} is left out by {hit:?}", member.display());
    }
}
