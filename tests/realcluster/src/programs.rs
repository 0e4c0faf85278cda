//! Programs that a real cluster needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use ccm_testkit::control_plane::{Binaries, GoProgram, helm};

use crate::archive::{self, Image};
use crate::machine;

/// Names the folder with what nodes run.
const NODES_VARIABLE: &str = "CCM_NODE_PROGRAMS";
/// Names the program of `cargo xtask`, which makes images.
const XTASK_VARIABLE: &str = "CCM_XTASK";
/// Names the folder with the release builds that images hold.
const RELEASES_VARIABLE: &str = "CCM_RELEASE_PROGRAMS";
/// Names a folder of archives `ccm-<provider>.tar` that are used as they are.
const IMAGES_VARIABLE: &str = "CCM_IMAGES";
/// Names the folder with Kubernetes' own tests.
const TESTS_VARIABLE: &str = "CCM_KUBERNETES_TESTS";
/// Names the folder of the sources of upstream's OpenStack manager.
const OPENSTACK_VARIABLE: &str = "CCM_OPENSTACK_UPSTREAM";
/// Names the folder of the sources of upstream's AWS manager.
const AWS_VARIABLE: &str = "CCM_AWS_UPSTREAM";
/// The same in every image of a manager.
const MANAGER_USER: &str = "65532:65532";

/// Where these programs are.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Folder with kubelet, containerd and what they start.
    nodes: PathBuf,
    /// Folder with etcd and kube-apiserver.
    control_plane: PathBuf,
    /// Helm.
    pub helm: PathBuf,
    /// Of `cargo xtask`.
    xtask: PathBuf,
    pause: PathBuf,
    web: PathBuf,
}

impl Programs {
    /// Finds them.
    ///
    /// # Errors
    /// What is missing, or what the machine lacks.
    pub fn find() -> Result<Self, String> {
        if let Some(reason) = machine::unfit() {
            return Err(reason.to_owned());
        }
        if std::env::var_os(NODES_VARIABLE).is_some_and(|folder| folder.is_empty()) {
            return Err(machine::OTHER_SYSTEM.to_owned());
        }
        let named = |variable: &str| {
            std::env::var_os(variable)
                .map(PathBuf::from)
                .filter(|path| path.exists())
                .ok_or_else(|| format!("no {variable}; `cargo xtask test --full` sets it"))
        };
        let nodes = named(NODES_VARIABLE)?;
        let binaries = Binaries::find().map_err(|missing| missing.to_string())?;
        let folder = binaries.etcd.parent().unwrap_or(Path::new("/"));
        Ok(Self {
            nodes,
            control_plane: folder.to_owned(),
            helm: helm()?,
            xtask: named(XTASK_VARIABLE)?,
            pause: GoProgram::Pause.find()?,
            web: GoProgram::Web.find()?,
        })
    }

    /// Folders of programs, as `PATH` has them.
    pub(crate) fn path(&self) -> String {
        format!("{}:{}", self.nodes.join("bin").display(), self.control_plane.display())
    }

    /// Folder of network plug-ins.
    pub(crate) fn cni(&self) -> PathBuf {
        self.nodes.join("debian/usr/lib/cni")
    }

    /// Writes the images that every cluster has, and returns their names.
    pub(crate) fn small_images(&self, folder: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
        let mut images = Vec::new();
        for (name, program, user) in
            [("pause", &self.pause, "65535:65535"), ("web", &self.web, MANAGER_USER)]
        {
            let file = folder.join(format!("{name}.tar"));
            let path = format!("/{name}");
            let image = Image { user, path: &path, is_entrypoint: true, program, files: None };
            archive::write(&image, &file)?;
            images.push((format!("localhost/{name}:1"), file));
        }
        Ok(images)
    }

    /// Makes the image of a manager, as it is shipped, unless `CCM_IMAGES` has one, and
    /// returns its name and archive.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn image(
        &self,
        provider: &str,
        program: &Path,
        folder: &Path,
    ) -> anyhow::Result<(String, PathBuf)> {
        let name = format!("localhost/ccm/ccm-{provider}:{}", env!("CARGO_PKG_VERSION"));
        let made = std::env::var_os(IMAGES_VARIABLE)
            .map(|folder| Path::new(&folder).join(format!("ccm-{provider}.tar")));
        if let Some(file) = made.filter(|file| file.is_file()) {
            return Ok((name, file));
        }
        let file = folder.join(format!("ccm-{provider}.tar"));
        let mut xtask = Command::new(&self.xtask);
        xtask
            .env("CARGO_MANIFEST_DIR", root().join("xtask"))
            .args(["image", "--provider", provider, "--binary"])
            .arg(program)
            .arg("--debs")
            .arg(self.nodes.join("debs"))
            .arg("--output")
            .arg(&file);
        let output = xtask.output().context("run cargo xtask image")?;
        anyhow::ensure!(
            output.status.success(),
            "cargo xtask image: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok((name, file))
    }

    /// Finds the sources of upstream's OpenStack manager, of the version that is built: its
    /// manifests and chart are in them.
    ///
    /// # Errors
    /// They are not there.
    pub fn upstream_openstack() -> Result<PathBuf, String> {
        sources(OPENSTACK_VARIABLE, "manifests/controller-manager")
    }

    /// The same of upstream's AWS manager.
    ///
    /// # Errors
    /// They are not there.
    pub fn upstream_aws() -> Result<PathBuf, String> {
        sources(AWS_VARIABLE, "examples/existing-cluster")
    }

    /// Finds the folder with Kubernetes' own tests, `e2e.test`, and what the image of their pods
    /// holds: `agnhost` and, in `image`, other files.
    ///
    /// # Errors
    /// It is not there.
    pub fn kubernetes_tests() -> Result<PathBuf, String> {
        let folder = std::env::var_os(TESTS_VARIABLE).map(PathBuf::from);
        folder
            .filter(|folder| folder.join("e2e.test").is_file())
            .ok_or_else(|| format!("no {TESTS_VARIABLE}; `cargo xtask test --nightly` sets it"))
    }

    /// Finds the release build of a manager.
    ///
    /// # Errors
    /// There is none.
    pub fn release(name: &str) -> Result<PathBuf, String> {
        let folder = std::env::var_os(RELEASES_VARIABLE).unwrap_or_default();
        let program = Path::new(&folder).join(name);
        if program.is_file() {
            Ok(program)
        } else {
            Err(format!(
                "no release build of {name} in {RELEASES_VARIABLE}; `cargo xtask test --nightly` makes it"
            ))
        }
    }
}

/// The folder of sources that a variable names, which has manifests in this folder.
fn sources(variable: &str, manifests: &str) -> Result<PathBuf, String> {
    let folder = std::env::var_os(variable).map(PathBuf::from);
    folder
        .filter(|folder| folder.join(manifests).is_dir())
        .ok_or_else(|| {
            format!("no sources of upstream in {variable}; `cargo xtask test --nightly` has them")
        })
}

/// The repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    here.canonicalize().unwrap_or(here)
}
