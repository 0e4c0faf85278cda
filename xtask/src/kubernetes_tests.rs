//! Builds Kubernetes' own end-to-end tests, and what the image of their pods holds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Context as _;

use crate::assets::{self, Release};
use crate::{control_plane, image, process, root};

/// Names the folder with what is made here.
pub(crate) const VARIABLE: &str = "CCM_KUBERNETES_TESTS";

/// Module that pins them.
const MODULE: &str = "tests/control-plane/kubernetes-e2e";
/// Their program.
const TESTS: (&str, &str) = ("e2e.test", "k8s.io/kubernetes/test/e2e");
/// Program of the image.
const AGNHOST: (&str, &str) = ("agnhost", "k8s.io/kubernetes/test/images/agnhost");

/// Packages of Debian with the other programs that tests run in that image. `nc` is OpenBSD's, which
/// knows `-v`, and the shell is dash: busybox' own would prefer busybox' programs. The links of
/// `/bin` and `/lib` are in base-files.
///
/// They are of the release that all images have, and so is their glibc: what an image holds does not
/// depend on the machine. agnhost itself needs no library.
const PACKAGES: [&str; 6] =
    ["base-files", "busybox-static", "curl", "dash", "netcat-openbsd", "wget"];
/// Programs that are busybox.
const BUSYBOX: [&str; 6] = ["cat", "hostname", "ls", "nslookup", "seq", "sleep"];

/// Builds and downloads what is missing, and returns the folder: `e2e.test`, `agnhost`, and in
/// `image` the files of Debian for an image of agnhost.
pub(crate) fn prepare() -> anyhow::Result<PathBuf> {
    let control_plane = assets::directory_of(Release::Current)
        .context("no place for the binaries: set KUBEBUILDER_ASSETS, XDG_CACHE_HOME or HOME")?;
    let debian = image::release_of_images()?.number;
    let folder = control_plane.join(format!("end-to-end-tests-debian-{debian}"));
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let started = Instant::now();
    let module = root()?.join(MODULE);
    for (name, package) in [TESTS, AGNHOST] {
        if folder.join(name).is_file() {
            continue;
        }
        println!("Kubernetes' tests: building {name}, this may take some minutes");
        control_plane::whole(&folder.join(name), |output| {
            let build = if package == TESTS.1 {
                control_plane::go_build_test
            } else {
                control_plane::go_build
            };
            build(Release::Current, &module, package, output)
                .with_context(|| format!("build {name}"))
        })?;
    }
    if !folder.join("image").is_dir() {
        control_plane::whole(&folder.join("image"), files)?;
    }
    println!(
        "Kubernetes' tests: all there in {} after {:.0} s",
        folder.display(),
        started.elapsed().as_secs_f64()
    );
    Ok(folder)
}

/// Unpacks Debian's packages, and gives their programs the names that tests use; dash has its own.
fn files(folder: &Path) -> anyhow::Result<()> {
    let debs = tempfile::tempdir().context("make a temporary folder")?;
    image::download_with_dependencies(debs.path(), &PACKAGES)?;
    for file in std::fs::read_dir(debs.path())? {
        let mut dpkg = Command::new("dpkg-deb");
        process::run(dpkg.arg("--extract").arg(file?.path()).arg(folder))?;
    }
    // Nobody reads it in a pod.
    std::fs::remove_dir_all(folder.join("usr/share")).context("remove documentation")?;
    // A test that expects no answer waits for one try.
    let wgetrc = folder.join("etc/wgetrc");
    std::fs::write(&wgetrc, "tries = 1\n")
        .with_context(|| format!("write {}", wgetrc.display()))?;
    let mut links = vec![("nc", "nc.openbsd")];
    links.extend(BUSYBOX.map(|name| (name, "busybox")));
    for (name, program) in links {
        let link = folder.join("bin").join(name);
        std::os::unix::fs::symlink(program, &link)
            .with_context(|| format!("make {}", link.display()))?;
    }
    Ok(())
}
