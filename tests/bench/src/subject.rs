//! The managers that are measured.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::ValueEnum;

/// What the tuned managers get beside the flags of all.
const TUNED: [&str; 4] = [
    "--kube-api-qps=1000",
    "--kube-api-burst=2000",
    "--concurrent-node-syncs=32",
    "--concurrent-service-syncs=32",
];

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ManagerKind {
    /// The manager of this repository, with the flags of the tuned Go manager.
    Ours,
    /// The manager of this repository, with its defaults.
    OursDefault,
    /// The Go manager of `tests/control-plane/kubernetes/ccm`, tuned.
    GoTuned,
    /// The same with the defaults of its framework.
    GoDefault,
}

/// Where the cloud of a manager of this repository runs. The Go manager's is always in its own
/// process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CloudLocation {
    /// In the manager's process, so that its processor time and memory count as the manager's.
    Inside,
    /// In a process of its own, asked over HTTP.
    Outside,
}

/// A manager and how it is run.
#[derive(Debug, Clone)]
pub(crate) struct BenchmarkedManager {
    pub(crate) kind: ManagerKind,
    pub(crate) binary: PathBuf,
    /// Start of its `User-Agent`, by which its requests are found in the audit log.
    pub(crate) agent: String,
    /// Flags beside those that all contenders get.
    pub(crate) flags: Vec<String>,
    pub(crate) place: CloudLocation,
    /// Folder for profiles of its processes, if they are to be made.
    pub(crate) profiles: Option<PathBuf>,
}

impl BenchmarkedManager {
    /// The manager of this repository. Further flags come last, and so win.
    pub(crate) fn ours(
        kind: ManagerKind,
        binary: &Path,
        place: CloudLocation,
        more: &[String],
    ) -> Self {
        let mut flags = if kind == ManagerKind::Ours {
            TUNED.map(str::to_owned).to_vec()
        } else {
            Vec::new()
        };
        flags.extend_from_slice(more);
        // Its own product name, however the binary is called.
        Self {
            kind,
            binary: binary.to_owned(),
            agent: "ccm-mock/".to_owned(),
            flags,
            place,
            profiles: None,
        }
    }

    /// The Go manager.
    ///
    /// # Errors
    ///
    /// When the path names no file.
    pub(crate) fn go(kind: ManagerKind, binary: &Path) -> anyhow::Result<Self> {
        let name = binary
            .file_name()
            .with_context(|| format!("{} names no file", binary.display()))?;
        // client-go takes the name of the binary.
        let agent = format!("{}/", name.to_string_lossy());
        let flags = if kind == ManagerKind::GoTuned {
            TUNED.map(str::to_owned).to_vec()
        } else {
            Vec::new()
        };
        Ok(Self {
            kind,
            binary: binary.to_owned(),
            agent,
            flags,
            place: CloudLocation::Inside,
            profiles: None,
        })
    }

    /// What tables call it.
    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            ManagerKind::Ours => "ours",
            ManagerKind::OursDefault => "ours, defaults",
            ManagerKind::GoTuned => "Go tuned",
            ManagerKind::GoDefault => "Go defaults",
        }
    }

    /// Whether it is built on Go's framework.
    pub(crate) fn is_go(&self) -> bool {
        matches!(self.kind, ManagerKind::GoTuned | ManagerKind::GoDefault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuned_managers_get_the_same_flags() {
        let go =
            BenchmarkedManager::go(ManagerKind::GoTuned, Path::new("some/folder/ccm-go-baseline"))
                .unwrap();
        assert_eq!(go.agent, "ccm-go-baseline/");
        let ours = BenchmarkedManager::ours(
            ManagerKind::Ours,
            Path::new("renamed"),
            CloudLocation::Outside,
            &[],
        );
        assert_eq!((&*ours.agent, &ours.flags), ("ccm-mock/", &go.flags));
        assert_eq!(go.flags.len(), 4);
        assert!(
            BenchmarkedManager::go(ManagerKind::GoDefault, Path::new("go"))
                .unwrap()
                .flags
                .is_empty()
        );
        assert!(BenchmarkedManager::go(ManagerKind::GoTuned, Path::new("..")).is_err());
    }

    #[test]
    fn flags_on_the_command_line_win() {
        let more = ["--kube-api-qps=5".to_owned()];
        let ours = BenchmarkedManager::ours(
            ManagerKind::Ours,
            Path::new("m"),
            CloudLocation::Inside,
            &more,
        );
        assert_eq!(ours.flags.last(), more.last());
        assert_eq!(
            BenchmarkedManager::ours(
                ManagerKind::OursDefault,
                Path::new("m"),
                CloudLocation::Inside,
                &more
            )
            .flags,
            more
        );
    }
}
