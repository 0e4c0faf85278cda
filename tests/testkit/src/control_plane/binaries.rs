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
        assert!(
            std::env::var_os("CCM_CONTROL_PLANE").is_none_or(|value| value != "required"),
            "{what} needs the control plane: {missing}"
        );
        // Nothing better can be done when standard error is closed.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {what}: {missing}");
        None
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
