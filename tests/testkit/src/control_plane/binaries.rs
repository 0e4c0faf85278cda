//! Finds the control plane's binaries, and says loudly when they are not there.

use std::fmt;
use std::io::Write as _;
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
    /// helm; only tests of the chart need it.
    pub helm: Option<PathBuf>,
}

/// The binaries that a control plane cannot do without and that are not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Missing {
    /// Where they were looked for; `None` when no cache directory is known.
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

    /// Whether `CCM_CONTROL_PLANE=required` is set: what a test on the control plane needs must be there.
    #[must_use]
    pub fn are_required() -> bool {
        std::env::var_os("CCM_CONTROL_PLANE").is_some_and(|value| value == "required")
    }

    /// Like [`find`](Self::find), for a test: when they are missing, says on the real standard error (not the one
    /// that the test harness hides from passing tests) that `what` is skipped and why.
    ///
    /// # Panics
    /// When they are missing although `CCM_CONTROL_PLANE=required` is set, as `cargo xtask test` does after building
    /// them: a suite must not pass because a path changed.
    pub fn find_or_say_skipped(what: &str) -> Option<Self> {
        let missing = match Self::find() {
            Ok(binaries) => return Some(binaries),
            Err(missing) => missing,
        };
        assert!(!Self::are_required(), "{what} needs the control plane: {missing}");
        // Nothing better can be done when standard error is closed.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {what}: {missing}");
        None
    }

    /// A cloud-controller-manager on Go's `k8s.io/cloud-provider` with the cloud `mock` in its own memory; see
    /// `tests/bench/go`. Like [`find_or_say_skipped`](Self::find_or_say_skipped) when it is not there: without Go there
    /// is none.
    ///
    /// # Panics
    /// When it is missing although `CCM_GO_PROGRAMS` says where it is, as `cargo xtask test` does after building it.
    pub fn go_ccm(what: &str) -> Option<PathBuf> {
        go_program(assets::GO_CCM, what)
    }

    /// A program that takes part in an election with Go's client, and does nothing else; see
    /// `tests/control-plane/elector`. Like [`go_ccm`](Self::go_ccm) when it is not there.
    ///
    /// # Panics
    /// Like [`go_ccm`](Self::go_ccm).
    pub fn go_elector(what: &str) -> Option<PathBuf> {
        go_program(assets::GO_ELECTOR, what)
    }

    /// Upstream's AWS cloud-controller-manager, of the version that `tests/control-plane/aws` pins. Like
    /// [`go_ccm`](Self::go_ccm) when it is not there.
    ///
    /// # Panics
    /// Like [`go_ccm`](Self::go_ccm).
    pub fn aws_ccm(what: &str) -> Option<PathBuf> {
        go_program(assets::AWS_CCM, what)
    }

    /// Upstream's OpenStack cloud-controller-manager, of the version that `tests/control-plane/openstack` pins. Like
    /// [`go_ccm`](Self::go_ccm) when it is not there.
    ///
    /// # Panics
    /// Like [`go_ccm`](Self::go_ccm).
    pub fn openstack_ccm(what: &str) -> Option<PathBuf> {
        go_program(assets::OPENSTACK_CCM, what)
    }

    fn find_in(directory: Option<&Path>) -> Result<Self, Missing> {
        let look = |name: &str| Some(directory?.join(name)).filter(|path| path.is_file());
        match (look("etcd"), look("kube-apiserver")) {
            (Some(etcd), Some(kube_apiserver)) => Ok(Self {
                etcd,
                kube_apiserver,
                kube_controller_manager: look("kube-controller-manager"),
                helm: look("helm"),
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

fn go_program(name: &str, what: &str) -> Option<PathBuf> {
    let named = std::env::var_os(assets::GO_PROGRAMS_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let running = std::env::current_exe().ok();
    match find_go_program(name, named.as_deref(), running.as_deref()) {
        Ok(program) => Some(program),
        Err(missing) => {
            assert!(named.is_none(), "{what} needs a program of Go: {missing}");
            // Nothing better can be done when standard error is closed.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {what}: {missing}");
            None
        }
    }
}

/// Looks in the directory that is named, else in the target directory that the running test lies in.
fn find_go_program(name: &str, named: Option<&Path>, running: Option<&Path>) -> Result<PathBuf, String> {
    let directories: Vec<PathBuf> = match (named, running) {
        (Some(named), _) => vec![std::path::absolute(named).unwrap_or_else(|_| named.to_owned())],
        (None, Some(running)) => {
            running.ancestors().skip(1).map(|folder| folder.join(assets::GO_PROGRAMS_DIRECTORY)).collect()
        }
        (None, None) => vec![],
    };
    directories.iter().map(|directory| directory.join(name)).find(|program| program.is_file()).ok_or_else(|| {
        let place = named.map(|named| format!(" in {}", named.display())).unwrap_or_default();
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
        let elsewhere = find_go_program("some-program", Some(target.path()), Some(&running)).unwrap_err();
        assert!(elsewhere.contains(&format!("no some-program in {}", target.path().display())), "{elsewhere}");
        assert!(find_go_program("other", None, Some(&running)).unwrap_err().contains("cargo xtask control-plane"));
    }

    #[test]
    fn the_optional_ones_may_be_absent() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["etcd", "kube-apiserver", "helm"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let found = Binaries::find_in(Some(directory.path())).unwrap();
        assert_eq!(found.kube_controller_manager, None);
        assert_eq!(found.helm, Some(directory.path().join("helm")));
    }
}
