//! Builds the programs of a real control plane from the modules in `tests/control-plane`, and the programs in Go that
//! tests run beside ours.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::assets::{self, Versions};
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

/// Programs in Go that run beside ours: their names, their modules below `tests`, and their main packages.
const GO_PROGRAMS: [(&str, &str, &str); 4] = [
    (assets::GO_ELECTOR, "control-plane/elector", "."),
    (assets::GO_CCM, "bench/go", "."),
    (assets::AWS_CCM, "control-plane/aws", "k8s.io/cloud-provider-aws/cmd/aws-cloud-controller-manager"),
    (
        assets::OPENSTACK_CCM,
        "control-plane/openstack",
        "k8s.io/cloud-provider-openstack/cmd/openstack-cloud-controller-manager",
    ),
];

/// Cargo's target directory.
pub(crate) fn target() -> anyhow::Result<PathBuf> {
    // Cargo takes a relative directory from where it runs, which is the root.
    Ok(root()?.join(std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)))
}

/// Builds the programs in Go that run beside ours and returns the directory they are in; Go itself finds out whether anything is to be done.
/// Whoever asks has seen that Go is there.
pub(crate) fn build_go_programs() -> anyhow::Result<PathBuf> {
    let directory = target()?.join(assets::GO_PROGRAMS_DIRECTORY);
    let started = Instant::now();
    println!("programs in Go: building what has changed; the first time takes some minutes");
    for (name, module, package) in GO_PROGRAMS {
        let module = root()?.join("tests").join(module);
        go_build(&module, package, &directory.join(name)).with_context(|| format!("build {name}"))?;
    }
    println!("programs in Go: all there in {} after {:.0} s", directory.display(), started.elapsed().as_secs_f64());
    Ok(directory)
}

/// Builds what is missing.
pub(crate) fn build() -> anyhow::Result<()> {
    let directory =
        assets::directory().context("no place for the binaries: set KUBEBUILDER_ASSETS, XDG_CACHE_HOME or HOME")?;
    let missing: Vec<_> = PROGRAMS.into_iter().filter(|(name, ..)| !directory.join(name).is_file()).collect();
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
        let module = if module == KUBERNETES { assets::Release::chosen().module() } else { module };
        println!("control plane: building {name}, this may take some minutes");
        build_one(&directory, name, &root()?.join("tests/control-plane").join(module), package)?;
        println!("control plane: built {name} in {:.0} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Whether every program is there.
pub(crate) fn all_there() -> bool {
    assets::directory().is_some_and(|directory| PROGRAMS.iter().all(|(name, ..)| directory.join(name).is_file()))
}

/// Whether a Go tool chain is there.
pub(crate) fn go_is_there() -> bool {
    let version = Command::new("go").arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Builds everything, the programs that run beside ours too.
pub(crate) fn build_all() -> anyhow::Result<()> {
    build()?;
    if go_is_there() {
        build_go_programs()?;
    } else {
        println!("programs in Go: none without Go; tests beside Go's controllers will be skipped");
    }
    Ok(())
}

/// Builds a package of a Go module the way Kubernetes' programs are built: static, stripped, and telling the pinned
/// version. `output` has to be absolute: Go runs in the module's folder.
pub(crate) fn go_build(module: &Path, package: &str, output: &Path) -> anyhow::Result<()> {
    let versions = Versions::pinned();
    let mut go = Command::new("go");
    go.current_dir(module)
        .env("CGO_ENABLED", "0")
        .args(["build", "-trimpath", "-ldflags"])
        .arg(format!("-s -w -X k8s.io/component-base/version.gitVersion=v{}", versions.kubernetes))
        .arg("-o")
        .arg(output)
        .arg(package);
    process::run(&mut go)
}

fn build_one(directory: &Path, name: &str, module: &Path, package: &str) -> anyhow::Result<()> {
    // A program has its name only when it is whole, and two builds at once do not meet.
    let unfinished = directory.join(format!(".{name}.{}", std::process::id()));
    let built = go_build(module, package, &unfinished).with_context(|| format!("build {name}"));
    if built.is_err() {
        // Nothing to remove when the compiler had written nothing.
        let _ = std::fs::remove_file(&unfinished);
    }
    built?;
    let finished = directory.join(name);
    std::fs::rename(&unfinished, &finished).with_context(|| format!("move {name} to {}", finished.display()))
}
