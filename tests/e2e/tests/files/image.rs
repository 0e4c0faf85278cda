//! The parts of the images' Dockerfile fit together, and fit the chart and the tool chain.

use std::path::PathBuf;

use serde_json::Value;

use crate::cases;
use crate::helm::root;
use crate::plain::Case;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        the_dockerfile_fits_the_chart_and_the_tool_chain,
        the_nightly_run_is_where_images_can_be_built,
        the_build_gets_all_crates,
    ]
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// Values of `ARG name=value` lines.
fn argument(dockerfile: &str, name: &str) -> String {
    let prefix = format!("ARG {name}=");
    dockerfile
        .lines()
        .find_map(|line| line.strip_prefix(&prefix))
        .unwrap()
        .to_owned()
}

fn the_dockerfile_fits_the_chart_and_the_tool_chain() {
    let dockerfile = read("images/Dockerfile");
    let version = argument(&dockerfile, "RUST_VERSION");
    assert!(read("rust-toolchain.toml").contains(&format!("channel = \"{version}\"")), "{version}");
    // A binary runs with the glibc that it was linked against or a newer one.
    let codenames = [("12", "bookworm"), ("13", "trixie")];
    let debian = (argument(&dockerfile, "DEBIAN"), argument(&dockerfile, "DEBIAN_NAME"));
    let at = |name: &str| codenames.iter().position(|(_, codename)| *codename == name);
    assert!(codenames.contains(&(&*debian.0, &*debian.1)), "{debian:?}");
    let built_on = at(&argument(&dockerfile, "BUILD_DEBIAN_NAME")).unwrap();
    assert!(built_on <= at(&debian.1).unwrap(), "it is built on a newer release than it runs on");
    assert!(argument(&dockerfile, "BASE").contains("cc-debian${DEBIAN}"), "another release");

    let values: Value =
        serde_saphyr::from_str(&read("charts/cloud-controller-manager/values.yaml")).unwrap();
    let user = dockerfile
        .lines()
        .rfind(|line| line.starts_with("USER "))
        .unwrap();
    let security = &values["podSecurityContext"];
    assert_eq!(
        user,
        format!("USER {}:{}", security["runAsUser"], security["runAsGroup"]),
        "chart and image differ"
    );
    let port = dockerfile
        .lines()
        .rfind(|line| line.starts_with("EXPOSE "))
        .unwrap();
    assert_eq!(port, format!("EXPOSE {}", values["serving"]["port"]), "chart and image differ");
    let entrypoint = dockerfile
        .lines()
        .rfind(|line| line.starts_with("ENTRYPOINT "))
        .unwrap();
    let path = entrypoint.split('"').nth(1).unwrap();
    assert!(
        dockerfile.contains(&format!(" /out/cloud-controller-manager {path}\n")),
        "{path} is not what is copied"
    );
    assert!(
        dockerfile.contains(" --no-default-features ${features} "),
        "a demo would be in the image"
    );
    let sdk = "case \"${PROVIDER}\" in aws) features='--features sdk' ;; *) features='' ;; esac";
    assert!(dockerfile.contains(sdk), "a provider would lack its cloud");
    let manifest = read("providers/aws/Cargo.toml");
    assert!(
        manifest.contains("\nrequired-features = [\"sdk\"]\n"),
        "the binary is built without the SDK"
    );
}

/// It builds the programs of images as the Dockerfile does, and runs them on packages of the images'
/// release of Debian.
fn the_nightly_run_is_where_images_can_be_built() {
    let dockerfile = read("images/Dockerfile");
    let line = dockerfile
        .lines()
        .find(|line| line.ends_with(" AS build"))
        .unwrap();
    let image = line
        .split(' ')
        .nth(2)
        .unwrap()
        .replace("${RUST_VERSION}", &argument(&dockerfile, "RUST_VERSION"))
        .replace("${BUILD_DEBIAN_NAME}", &argument(&dockerfile, "BUILD_DEBIAN_NAME"));
    let workflow: Value = serde_saphyr::from_str(&read(".github/workflows/nightly.yml")).unwrap();
    assert_eq!(workflow["jobs"]["nightly"]["container"]["image"], *image);
}

/// Folders and files that a build does not get must not be needed by it.
fn the_build_gets_all_crates() {
    let ignored: Vec<_> = read("images/Dockerfile.dockerignore")
        .lines()
        .map(str::to_owned)
        .collect();
    let manifest = read("Cargo.toml");
    let (_, members) = manifest.split_once("\nmembers = [").unwrap();
    let (members, _) = members.split_once(']').unwrap();
    let members: Vec<_> = members
        .split('"')
        .skip(1)
        .step_by(2)
        .map(PathBuf::from)
        .collect();
    assert!(members.len() > 4, "{members:?}");
    for member in &members {
        let hit = ignored
            .iter()
            .find(|pattern| !pattern.starts_with('#') && member.starts_with(pattern));
        assert!(hit.is_none(), "{} is left out by {hit:?}", member.display());
    }
}
