//! Builds the programs of a real control plane from the modules in `tests/control-plane`, and the
//! programs in Go that tests run beside ours.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Context as _;

use crate::assets::{self, Release, Versions};
use crate::{process, root};

/// Stands for the module of the chosen release.
const KUBERNETES: &str = "kubernetes";

/// A program: its name, the module that pins it, and its main package.
const PROGRAMS: [(&str, &str, &str); 4] = [
    // In the order in which the most tests can go on.
    ("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    ("kube-apiserver", KUBERNETES, "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kube-controller-manager", KUBERNETES, "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("helm", "helm", "helm.sh/helm/v4/cmd/helm"),
];

/// Programs in Go that run beside ours in Rust: their names, their modules below `tests`, and their
/// main packages. Those of our own are in the module of Kubernetes, so that Go compiles what they
/// share with its programs once.
const GO_PROGRAMS: [(&str, &str, &str); 6] = [
    (assets::GO_ELECTOR, "control-plane/kubernetes", "./elector"),
    (assets::GO_CCM, "control-plane/kubernetes", "./ccm"),
    (assets::PAUSE, "control-plane/kubernetes", "./pause"),
    (assets::WEB, "control-plane/kubernetes", "./web"),
    (assets::GOPHERCLOUD, "openstack-clients/gophercloud", "."),
    (
        assets::PROMTOOL,
        "control-plane/promtool",
        "github.com/prometheus/prometheus/cmd/promtool",
    ),
];

/// What only the long run needs: upstream's managers of real clouds, each on another version of
/// Kubernetes' modules, and the name service beside Kubernetes' own tests.
const OF_THE_LONG_RUN: [(&str, &str, &str); 3] = [
    (assets::COREDNS, "control-plane/coredns", "."),
    (
        assets::AWS_CCM,
        "control-plane/aws",
        "k8s.io/cloud-provider-aws/cmd/aws-cloud-controller-manager",
    ),
    (
        assets::OPENSTACK_CCM,
        "control-plane/openstack",
        "k8s.io/cloud-provider-openstack/cmd/openstack-cloud-controller-manager",
    ),
];

/// Upstream's managers: the variable that names a manager's sources, the folder of the module that
/// pins it, and its module.
const UPSTREAM: [(&str, &str, &str); 2] = [
    ("CCM_AWS_UPSTREAM", "aws", "k8s.io/cloud-provider-aws"),
    ("CCM_OPENSTACK_UPSTREAM", "openstack", "k8s.io/cloud-provider-openstack"),
];

/// Kubernetes' own tests of a cloud's nodes, with a cloud of ours that deletes machines.
const TESTS_OF_NODES: (&str, &str, &str) =
    (assets::NODE_TESTS, "control-plane/kubernetes-e2e", "./nodes");

/// Leaves the SDKs of all clouds out of promtool; no other program knows this tag.
const TAGS: &str = "remove_all_sd";

/// Cargo's target directory.
pub(crate) fn target() -> anyhow::Result<PathBuf> {
    // Cargo takes a relative directory from where it runs, which is the root.
    Ok(root()?
        .join(std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)))
}

/// Builds the programs in Go that run beside ours and returns the directory they are in; Go itself
/// finds out whether anything is to be done. Whoever asks has seen that Go is there. Those of the
/// long run are built when asked for.
pub(crate) fn build_go_programs(long_run: bool) -> anyhow::Result<PathBuf> {
    let directory = target()?.join(assets::GO_PROGRAMS_DIRECTORY);
    let started = Instant::now();
    println!("programs in Go: building what has changed; the first time takes some minutes");
    let more = OF_THE_LONG_RUN.into_iter().filter(|_| long_run);
    for (name, module, package) in GO_PROGRAMS.into_iter().chain(more) {
        let module = root()?.join("tests").join(module);
        go_build(Release::chosen(), &module, package, &directory.join(name))
            .with_context(|| format!("build {name}"))?;
    }
    if long_run {
        let (name, module, package) = TESTS_OF_NODES;
        let module = root()?.join("tests").join(module);
        go_build_test(Release::Current, &module, package, &directory.join(name))
            .with_context(|| format!("build {name}"))?;
    }
    println!(
        "programs in Go: all there in {} after {:.0} s",
        directory.display(),
        started.elapsed().as_secs_f64()
    );
    Ok(directory)
}

/// Builds what is missing of a release.
pub(crate) fn build(release: Release) -> anyhow::Result<()> {
    let directory = assets::directory_of(release)
        .context("no place for the binaries: set KUBEBUILDER_ASSETS, XDG_CACHE_HOME or HOME")?;
    let missing: Vec<_> = PROGRAMS
        .into_iter()
        .filter(|(name, ..)| !directory.join(name).is_file())
        .collect();
    if missing.is_empty() {
        println!("control plane: all there in {}", directory.display());
        return Ok(());
    }
    anyhow::ensure!(
        go_is_there(),
        "Go is needed to build the control plane and `go version` does not run: install Go, or put etcd, \
         kube-apiserver, kube-controller-manager and helm into {}",
        directory.display()
    );
    std::fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
    for (name, module, package) in missing {
        let started = Instant::now();
        let module = if module == KUBERNETES {
            release.module()
        } else {
            module
        };
        println!("control plane: building {name}, this may take some minutes");
        build_one(
            release,
            &directory,
            name,
            &root()?.join("tests/control-plane").join(module),
            package,
        )?;
        println!("control plane: built {name} in {:.0} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Returns the folders with the sources of upstream's managers, once these are built, by the
/// variables that name them for tests. Their manifests and charts are in them.
pub(crate) fn sources_of_upstream() -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    UPSTREAM
        .into_iter()
        .map(|(variable, folder, module)| {
            let mut go = Command::new("go");
            go.current_dir(root()?.join("tests/control-plane").join(folder));
            go.args(["list", "-m", "-f", "{{.Dir}}", module]);
            Ok((variable, process::output(&mut go)?.trim().into()))
        })
        .collect()
}

/// Folders of the modules that have code of ours.
pub(crate) fn own_modules() -> anyhow::Result<Vec<PathBuf>> {
    let own = GO_PROGRAMS
        .iter()
        .chain(&OF_THE_LONG_RUN)
        .filter(|(_, _, package)| package.starts_with('.'));
    let mut folders: Vec<_> = own
        .map(|(_, module, _)| Ok(root()?.join("tests").join(module)))
        .collect::<anyhow::Result<_>>()?;
    folders.dedup();
    Ok(folders)
}

/// Whether every program of a release is there.
pub(crate) fn all_there(release: Release) -> bool {
    assets::directory_of(release).is_some_and(|directory| {
        PROGRAMS
            .iter()
            .all(|(name, ..)| directory.join(name).is_file())
    })
}

/// Whether a Go tool chain is there.
pub(crate) fn go_is_there() -> bool {
    process::runs("go", &["version"])
}

/// Builds everything, the programs that run beside ours too.
pub(crate) fn build_all() -> anyhow::Result<()> {
    build(Release::chosen())?;
    if go_is_there() {
        build_go_programs(true)?;
    } else {
        println!("programs in Go: none without Go; tests beside Go's controllers will be ignored");
    }
    Ok(())
}

/// Builds a package of a Go module the way Kubernetes' programs are built: static, stripped, and
/// telling the pinned version. `output` has to be absolute: Go runs in the module's folder.
pub(crate) fn go_build(
    release: Release,
    module: &Path,
    package: &str,
    output: &Path,
) -> anyhow::Result<()> {
    link(go(module, "build"), release, package, output)
}

/// Builds the tests of a package in the same way.
pub(crate) fn go_build_test(
    release: Release,
    module: &Path,
    package: &str,
    output: &Path,
) -> anyhow::Result<()> {
    let mut go = go(module, "test");
    go.args(["-c", "-vet=off"]);
    link(go, release, package, output)
}

fn link(mut go: Command, release: Release, package: &str, output: &Path) -> anyhow::Result<()> {
    let versions = Versions::of(release);
    go.arg("-ldflags")
        .arg(format!("-s -w -X k8s.io/component-base/version.gitVersion=v{}", versions.kubernetes))
        .arg("-o")
        .arg(output)
        .arg(package);
    process::run(&mut go)
}

/// Go in a module, with what decides whether packages are compiled again: the same for every
/// command.
pub(crate) fn go(module: &Path, command: &str) -> Command {
    let mut go = Command::new("go");
    go.current_dir(module)
        .env("CGO_ENABLED", "0")
        .args([command, "-trimpath", "-tags", TAGS]);
    go
}

fn build_one(
    release: Release,
    directory: &Path,
    name: &str,
    module: &Path,
    package: &str,
) -> anyhow::Result<()> {
    whole(&directory.join(name), |unfinished| {
        go_build(release, module, package, unfinished).with_context(|| format!("build {name}"))
    })
}

/// Makes a file or folder that has its name only when it is whole; two who make it at once do not
/// meet.
pub(crate) fn whole(
    finished: &Path,
    make: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let name = finished.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = finished.with_file_name(format!(".{name}.{}", std::process::id()));
    let made = make(&unfinished);
    if made.is_err() {
        // Nothing to remove when nothing had been written.
        let _ = std::fs::remove_file(&unfinished);
        let _ = std::fs::remove_dir_all(&unfinished);
    }
    made?;
    std::fs::rename(&unfinished, finished)
        .with_context(|| format!("move {name} to {}", finished.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_our_own_are_of_the_control_planes_version() {
        let kubernetes = Versions::of(Release::Current).kubernetes;
        let version = kubernetes.strip_prefix("1.").unwrap();
        let go_mod = include_str!("../../tests/control-plane/kubernetes/go.mod");
        let of_tests = include_str!("../../tests/control-plane/kubernetes-e2e/go.mod");
        assert_eq!(assets::required_version(of_tests, "k8s.io/kubernetes"), kubernetes);
        for library in ["api", "apimachinery", "client-go", "cloud-provider", "component-base"] {
            let required = format!("k8s.io/{library} v0.{version}");
            assert!(go_mod.lines().any(|line| line.trim() == required), "no line {required:?}");
        }
    }
}
