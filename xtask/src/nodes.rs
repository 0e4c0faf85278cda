//! Prepares what the nodes of a real cluster run: Kubernetes' programs and containerd from Go's
//! modules, and what containers are made with from Debian.
//!
//! Nothing is installed: programs of Debian lie beside the others, with the libraries they need.
//! They run on this machine, so they are of its release of Debian, not of the images'.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Context as _;

use crate::assets::{self, Release};
use crate::{control_plane, image, process, root};

/// Names the folder with the programs for tests.
pub(crate) const VARIABLE: &str = "CCM_NODE_PROGRAMS";
/// Names this program, which makes images for tests.
pub(crate) const XTASK_VARIABLE: &str = "CCM_XTASK";

/// Programs, their modules in `tests/control-plane`, and their main packages.
const PROGRAMS: [(&str, &str, &str); 7] = [
    ("kubelet", "kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
    ("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    ("kube-proxy", "kubernetes", "k8s.io/kubernetes/cmd/kube-proxy"),
    ("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    ("containerd", "containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
    (
        "containerd-shim-runc-v2",
        "containerd",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    ),
    ("ctr", "containerd", "github.com/containerd/containerd/v2/cmd/ctr"),
];

/// Packages of Debian, by names that 12 and 13 have: network plug-ins, and two programs with the
/// libraries that a small system may lack.
const PACKAGES: [&str; 14] = [
    "containernetworking-plugins",
    "runc",
    "libseccomp2",
    "nftables",
    "libbsd0",
    "libedit2",
    "libgmp10",
    "libjansson4",
    "libmd0",
    "libmnl0",
    "libnftables1",
    "libnftnl11",
    "libtinfo6",
    "libxtables12",
];

/// Programs in these packages that run with their libraries.
const WITH_LIBRARIES: [(&str, &str); 2] = [("runc", "usr/sbin/runc"), ("nft", "usr/sbin/nft")];

/// Builds and downloads what is missing, and returns the folder: programs in `bin`, network
/// plug-ins in `debian/usr/lib/cni`, the packages of images in `debs`.
pub(crate) fn prepare() -> anyhow::Result<PathBuf> {
    let folder = folder()?;
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).with_context(|| format!("make {}", bin.display()))?;
    let started = Instant::now();
    for (name, module, package) in PROGRAMS {
        if bin.join(name).is_file() {
            continue;
        }
        println!("nodes: building {name}, this may take some minutes");
        let module = root()?.join("tests/control-plane").join(module);
        let built = |output: &Path| {
            control_plane::go_build(Release::Current, &module, package, output)
                .with_context(|| format!("build {name}"))
        };
        control_plane::whole(&bin.join(name), built)?;
    }
    debian(&folder, &bin)?;
    let debs = folder.join("debs");
    image::download_base(&debs).context("download what images hold of Debian")?;
    println!(
        "nodes: all there in {} after {:.0} s",
        folder.display(),
        started.elapsed().as_secs_f64()
    );
    Ok(folder)
}

/// A folder for exactly these versions and releases of Debian, beside the control plane's.
fn folder() -> anyhow::Result<PathBuf> {
    let control_plane = assets::directory_of(Release::Current)
        .context("no place for the binaries: set KUBEBUILDER_ASSETS, XDG_CACHE_HOME or HOME")?;
    let module = root()?.join("tests/control-plane/containerd/go.mod");
    let module =
        std::fs::read_to_string(&module).with_context(|| format!("read {}", module.display()))?;
    let version = assets::required_version(&module, "github.com/containerd/containerd/v2");
    let machine = image::release_of_machine()?.number;
    let images = image::release_of_images()?.number;
    let name = format!("nodes-containerd-{version}-debian-{machine}-images-{images}");
    Ok(control_plane.join(name))
}

/// Downloads and unpacks Debian's packages.
fn debian(folder: &Path, bin: &Path) -> anyhow::Result<()> {
    let unpacked = folder.join("debian");
    if !unpacked.is_dir() {
        let debs = tempfile::tempdir().context("make a temporary folder")?;
        image::download_for_machine(debs.path(), &PACKAGES)?;
        let made = |output: &Path| {
            for file in std::fs::read_dir(debs.path())? {
                let mut dpkg = Command::new("dpkg-deb");
                process::run(dpkg.arg("--extract").arg(file?.path()).arg(output))?;
            }
            Ok(())
        };
        control_plane::whole(&unpacked, made)?;
    }
    let library = unpacked.join("usr/lib").join(image::library_folder()?);
    for (name, program) in WITH_LIBRARIES {
        let program = unpacked.join(program);
        let script = format!(
            "#!/bin/sh\nLD_LIBRARY_PATH='{}' exec '{}' \"$@\"\n",
            library.display(),
            program.display()
        );
        let path = bin.join(name);
        if std::fs::read_to_string(&path).is_ok_and(|written| written == script) {
            continue;
        }
        control_plane::whole(&path, |output| {
            std::fs::write(output, &script)?;
            process::run(Command::new("chmod").arg("0755").arg(output))
        })?;
    }
    Ok(())
}
