//! The managers that are measured.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// What the baseline gets beside the flags of both: its default of one node at a time (`k8s.io/cloud-provider` 0.36,
/// `controllers/node/config/v1alpha1/defaults.go`) would make the comparison too easy.
const BASELINE_FLAGS: [&str; 1] = ["--concurrent-node-syncs=64"];

/// A manager and how it is run.
#[derive(Debug, Clone)]
pub(crate) struct Contender {
    pub(crate) binary: PathBuf,
    /// Name of the binary, without its folder.
    pub(crate) name: String,
    /// Start of its `User-Agent`, by which its requests are found in the audit log.
    pub(crate) agent: String,
    /// Flags beside those that all contenders get.
    pub(crate) flags: Vec<String>,
    pub(crate) cloud: Cloud,
}

/// Which cloud a manager asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cloud {
    /// The mock cloud that the benchmark serves.
    Served,
    /// One that the manager makes up itself, told the latency by its environment: see `tests/bench/go`.
    Own,
}

impl Contender {
    /// A manager of this repository, with the flags that are to be tried.
    ///
    /// # Errors
    ///
    /// When the path names no file.
    pub(crate) fn manager(binary: &Path, flags: Vec<String>) -> anyhow::Result<Self> {
        Self::new(binary, flags, Cloud::Served)
    }

    /// The Go manager of `tests/bench/go`, tuned.
    ///
    /// # Errors
    ///
    /// When the path names no file.
    pub(crate) fn baseline(binary: &Path) -> anyhow::Result<Self> {
        Self::new(binary, BASELINE_FLAGS.map(str::to_owned).to_vec(), Cloud::Own)
    }

    fn new(binary: &Path, flags: Vec<String>, cloud: Cloud) -> anyhow::Result<Self> {
        let name = binary.file_name().with_context(|| format!("{} names no file", binary.display()))?;
        let name = name.to_string_lossy().into_owned();
        let agent = match cloud {
            // Its own product name, however the binary is called.
            Cloud::Served => "ccm-mock/".to_owned(),
            // client-go takes the name of the binary.
            Cloud::Own => format!("{name}/"),
        };
        Ok(Self { binary: binary.to_owned(), name, agent, flags, cloud })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_is_found_by_the_name_of_its_binary_and_is_tuned() {
        let baseline = Contender::baseline(Path::new("some/folder/ccm-go-baseline")).unwrap();
        assert_eq!((&*baseline.name, &*baseline.agent), ("ccm-go-baseline", "ccm-go-baseline/"));
        assert_eq!(baseline.flags, ["--concurrent-node-syncs=64"]);
        assert!(Contender::baseline(Path::new("..")).is_err());
    }
}
