//! Finds the control plane's binaries, with a clear error if they are missing.

use std::fmt;
use std::path::{Path, PathBuf};

use super::assets;

/// Paths of the control plane's binaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// etcd.
    pub etcd: PathBuf,
    /// kube-apiserver.
    pub kube_apiserver: PathBuf,
    /// kube-controller-manager; few tests need it.
    pub kube_controller_manager: Option<PathBuf>,
}

/// The binaries that a control plane cannot do without and that are not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Missing {
    /// Directory that was searched; `None` if no cache directory is known.
    pub directory: Option<PathBuf>,
    /// Their names.
    pub names: Vec<&'static str>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {}", self.names.join(" and no "))?;
        match &self.directory {
            Some(directory) => write!(f, " in {}", directory.display())?,
            None => f.write_str(" (none of KUBEBUILDER_ASSETS, XDG_CACHE_HOME and HOME is set)")?,
        }
        f.write_str("; `cargo xtask control-plane` builds them, it needs Go")
    }
}

impl Binaries {
    /// Finds the binaries in the directory that `cargo xtask control-plane` fills.
    ///
    /// # Errors
    /// [`Missing`] when etcd or kube-apiserver is not there.
    pub fn find() -> Result<Self, Missing> {
        Self::find_in(assets::directory().as_deref())
    }

    fn find_in(directory: Option<&Path>) -> Result<Self, Missing> {
        let look = |name: &str| Some(directory?.join(name)).filter(|path| path.is_file());
        match (look("etcd"), look("kube-apiserver")) {
            (Some(etcd), Some(kube_apiserver)) => Ok(Self {
                etcd,
                kube_apiserver,
                kube_controller_manager: look("kube-controller-manager"),
            }),
            (etcd, kube_apiserver) => Err(Missing {
                directory: directory.map(Path::to_owned),
                names: [("etcd", etcd), ("kube-apiserver", kube_apiserver)]
                    .into_iter()
                    .filter_map(|(name, path)| path.is_none().then_some(name))
                    .collect(),
            }),
        }
    }
}

/// Finds helm, of the version that `tests/control-plane/helm` pins: what it renders is compared
/// with what is checked in.
///
/// # Errors
/// It is not there: what was looked for and how to get it.
pub fn helm() -> Result<PathBuf, String> {
    let directory = assets::directory();
    let found = directory
        .as_ref()
        .map(|directory| directory.join("helm"))
        .filter(|path| path.is_file());
    found.ok_or_else(|| Missing { directory, names: vec!["helm"] }.to_string())
}

/// Returns version of Kubernetes that suites run on, `v1.2.3`: the one that `tests/control-plane`
/// pins for the release that the environment chooses.
pub fn kubernetes_version() -> String {
    format!("v{}", assets::Versions::pinned().kubernetes)
}

/// A program in Go that tests run beside ours; `cargo xtask test --full` and `--nightly` build
/// those they need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoProgram {
    /// A cloud-controller-manager on Go's `k8s.io/cloud-provider` with the cloud `mock` in its own
    /// memory; see `tests/control-plane/kubernetes/ccm`.
    Ccm,
    /// Takes part in an election with Go's client, and does nothing else; see
    /// `tests/control-plane/kubernetes/elector`.
    Elector,
    /// Upstream's AWS cloud-controller-manager, of the version that `tests/control-plane/aws` pins.
    AwsCcm,
    /// Upstream's OpenStack cloud-controller-manager, of the version that
    /// `tests/control-plane/openstack` pins.
    OpenstackCcm,
    /// Applies a Terraform-like sequence with gophercloud, and destroys what it made; see
    /// `tests/openstack-clients/gophercloud`.
    Gophercloud,
    /// Holds a pod's namespaces; see `tests/control-plane/kubernetes/pause`.
    Pause,
    /// A web server for pods; see `tests/control-plane/kubernetes/web`.
    Web,
    /// The name service of a real cluster; see `tests/control-plane/coredns`.
    Coredns,
    /// Kubernetes' own tests of a cloud's nodes, with a cloud that deletes machines; see
    /// `tests/control-plane/kubernetes-e2e/nodes`.
    NodeTests,
    /// Prometheus' tool that judges alerts, of the version that `tests/control-plane/promtool`
    /// pins; see [`promtool`](crate::promtool).
    Promtool,
}

impl GoProgram {
    /// Finds it in the directory that `CCM_GO_PROGRAMS` names, else in the target directory that
    /// the running test lies in.
    ///
    /// # Errors
    /// It is not there: what was looked for and how to get it.
    pub fn find(self) -> Result<PathBuf, String> {
        let named = std::env::var_os(assets::GO_PROGRAMS_VARIABLE)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from);
        find_go_program(self.name(), named.as_deref(), std::env::current_exe().ok().as_deref())
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ccm => assets::GO_CCM,
            Self::Elector => assets::GO_ELECTOR,
            Self::AwsCcm => assets::AWS_CCM,
            Self::OpenstackCcm => assets::OPENSTACK_CCM,
            Self::Gophercloud => assets::GOPHERCLOUD,
            Self::Pause => assets::PAUSE,
            Self::Web => assets::WEB,
            Self::Coredns => assets::COREDNS,
            Self::NodeTests => assets::NODE_TESTS,
            Self::Promtool => assets::PROMTOOL,
        }
    }
}

/// Searches the configured directory, otherwise the target directory of the running test.
fn find_go_program(
    name: &str,
    named: Option<&Path>,
    running: Option<&Path>,
) -> Result<PathBuf, String> {
    let directories: Vec<PathBuf> = match (named, running) {
        (Some(named), _) => vec![std::path::absolute(named).unwrap_or_else(|_| named.to_owned())],
        (None, Some(running)) => running
            .ancestors()
            .skip(1)
            .map(|folder| folder.join(assets::GO_PROGRAMS_DIRECTORY))
            .collect(),
        (None, None) => vec![],
    };
    directories
        .iter()
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
        .ok_or_else(|| {
            let place = named
                .map(|named| format!(" in {}", named.display()))
                .unwrap_or_default();
            format!("no {name}{place}; `cargo xtask control-plane` builds it, it needs Go")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_names_what_is_missing_and_how_to_get_it() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("etcd"), "").unwrap();
        let missing = Binaries::find_in(Some(directory.path())).unwrap_err();
        assert_eq!(missing.names, ["kube-apiserver"]);
        assert!(missing.to_string().contains("no kube-apiserver in "), "{missing}");
        assert!(missing.to_string().contains("cargo xtask control-plane"), "{missing}");
        assert_eq!(Binaries::find_in(None).unwrap_err().names, ["etcd", "kube-apiserver"]);
    }

    #[test]
    fn programs_of_go_are_where_they_are_named_or_beside_the_build() {
        let target = tempfile::tempdir().unwrap();
        let directory = target.path().join("go-programs");
        std::fs::create_dir(&directory).unwrap();
        let program = directory.join("some-program");
        std::fs::write(&program, "").unwrap();
        let running = target.path().join("debug/deps/suite-0123");
        assert_eq!(find_go_program("some-program", None, Some(&running)), Ok(program.clone()));
        assert_eq!(find_go_program("some-program", Some(&directory), None), Ok(program));
        let elsewhere =
            find_go_program("some-program", Some(target.path()), Some(&running)).unwrap_err();
        assert!(
            elsewhere.contains(&format!("no some-program in {}", target.path().display())),
            "{elsewhere}"
        );
        assert!(
            find_go_program("other", None, Some(&running))
                .unwrap_err()
                .contains("cargo xtask control-plane")
        );
    }

    #[test]
    fn the_optional_ones_may_be_absent() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["etcd", "kube-apiserver"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let found = Binaries::find_in(Some(directory.path())).unwrap();
        assert_eq!(found.kube_controller_manager, None);
    }
}
