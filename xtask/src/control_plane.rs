//! Builds the programs of a real control plane from the modules in `tests/control-plane`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use crate::assets::{self, Versions};
use crate::{process, root};

/// A program: its name, the module that pins it, and its main package.
const PROGRAMS: [(&str, &str, &str); 4] = [
    // In the order in which the most tests can go on.
    ("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    ("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    ("kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("helm", "helm", "helm.sh/helm/v4/cmd/helm"),
];

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
