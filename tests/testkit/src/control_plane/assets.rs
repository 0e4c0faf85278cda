//! Versions of the control plane's binaries, and the directory that caches them. `xtask`, which
//! builds them, includes this file by path, so it may use only std.

use std::ffi::OsString;
use std::path::PathBuf;

// Links into `tests/control-plane`, so that a package of the testkit has the files, too.
const ETCD_MODULE: &str = include_str!("../../pinned/etcd.mod");
const KUBERNETES_MODULE: &str = include_str!("../../pinned/kubernetes.mod");
const OLDER_KUBERNETES_MODULE: &str = include_str!("../../pinned/kubernetes-older.mod");
const HELM_MODULE: &str = include_str!("../../pinned/helm.mod");

/// Chooses another release of Kubernetes than the one that every run uses: `older`, the minor
/// version before.
const RELEASE_VARIABLE: &str = "CCM_KUBERNETES";

/// A release of Kubernetes that suites run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// That of every run.
    Current,
    /// The minor version before, for the long run.
    Older,
}

impl Release {
    /// Returns the release that the environment selects.
    pub(crate) fn chosen() -> Self {
        Self::of(std::env::var(RELEASE_VARIABLE).ok().as_deref())
    }

    fn of(choice: Option<&str>) -> Self {
        if choice == Some("older") {
            Self::Older
        } else {
            Self::Current
        }
    }

    /// Folder of its module below `tests/control-plane`.
    #[allow(
        dead_code,
        reason = "xtask builds from it; the testkit, which shares this file, does not"
    )]
    pub(crate) fn module(self) -> &'static str {
        match self {
            Self::Current => "kubernetes",
            Self::Older => "kubernetes-older",
        }
    }

    fn go_mod(self) -> &'static str {
        match self {
            Self::Current => KUBERNETES_MODULE,
            Self::Older => OLDER_KUBERNETES_MODULE,
        }
    }
}

/// Versions of the control plane's parts, without the leading `v`. Written once, in the `go.mod`
/// files of `tests/control-plane`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Versions {
    /// Version of etcd.
    pub(crate) etcd: String,
    /// Version of kube-apiserver and kube-controller-manager.
    pub(crate) kubernetes: String,
    /// Version of helm.
    pub(crate) helm: String,
}

impl Versions {
    /// The versions pinned in this checkout, of the release of Kubernetes that the environment
    /// chooses.
    #[allow(
        dead_code,
        reason = "the testkit uses it; xtask, which shares this file, asks for a release"
    )]
    pub(crate) fn pinned() -> Self {
        Self::of(Release::chosen())
    }

    /// Returns the versions pinned for a release.
    pub(crate) fn of(release: Release) -> Self {
        Self {
            etcd: required_version(ETCD_MODULE, "go.etcd.io/etcd/server/v3"),
            kubernetes: required_version(release.go_mod(), "k8s.io/kubernetes"),
            helm: required_version(HELM_MODULE, "helm.sh/helm/v4"),
        }
    }

    /// Returns the name of the directory for exactly these versions, so that a new version is built
    /// beside the old one.
    pub(crate) fn key(&self) -> String {
        format!("etcd-{}-kubernetes-{}-helm-{}", self.etcd, self.kubernetes, self.helm)
    }
}

/// The directory with the binaries: `KUBEBUILDER_ASSETS`, else one below the user's cache directory
/// (`XDG_CACHE_HOME`, else `~/.cache`). `None` when none of the three variables is set.
#[allow(
    dead_code,
    reason = "the testkit uses it; xtask, which shares this file, asks for a release"
)]
pub(crate) fn directory() -> Option<PathBuf> {
    directory_of(Release::chosen())
}

/// Returns the [`directory`] of a release.
pub(crate) fn directory_of(release: Release) -> Option<PathBuf> {
    directory_from(release, |name| std::env::var_os(name))
}

/// Returns the [`directory`] for the given environment.
fn directory_from(
    release: Release,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<PathBuf> {
    let set = |name: &str| {
        variable(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(assets) = set("KUBEBUILDER_ASSETS") {
        return Some(std::path::absolute(&assets).unwrap_or(assets));
    }
    // The XDG specification says that a relative XDG_CACHE_HOME is to be ignored.
    let cache = set("XDG_CACHE_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(
        cache
            .join("ccm-control-plane")
            .join(Versions::of(release).key()),
    )
}

/// Names the directory with the Go programs of this repository.
pub(crate) const GO_PROGRAMS_VARIABLE: &str = "CCM_GO_PROGRAMS";
/// That directory by default, in cargo's target directory: the programs are of this checkout.
pub(crate) const GO_PROGRAMS_DIRECTORY: &str = "go-programs";
/// A cloud-controller-manager on Go's framework, from `tests/control-plane/kubernetes/ccm`.
pub(crate) const GO_CCM: &str = "ccm-go-baseline";
/// An elector on Go's client, from `tests/control-plane/kubernetes/elector`.
pub(crate) const GO_ELECTOR: &str = "ccm-go-elector";
/// Upstream's AWS cloud-controller-manager, from `tests/control-plane/aws`.
pub(crate) const AWS_CCM: &str = "aws-cloud-controller-manager";
/// Upstream's OpenStack cloud-controller-manager, from `tests/control-plane/openstack`.
pub(crate) const OPENSTACK_CCM: &str = "openstack-cloud-controller-manager";
/// A Terraform-like sequence on gophercloud, from `tests/openstack-clients/gophercloud`.
pub(crate) const GOPHERCLOUD: &str = "ccm-gophercloud-sequence";
/// What holds a pod's namespaces, from `tests/control-plane/kubernetes/pause`.
pub(crate) const PAUSE: &str = "pause";
/// A small web server for pods, from `tests/control-plane/kubernetes/web`.
pub(crate) const WEB: &str = "web";
/// The name service of a real cluster, from `tests/control-plane/coredns`.
pub(crate) const COREDNS: &str = "coredns";
/// Kubernetes' own tests of a cloud's nodes, from `tests/control-plane/kubernetes-e2e/nodes`.
pub(crate) const NODE_TESTS: &str = "kubernetes-node-tests";
/// Prometheus' tool that judges alerts, from `tests/control-plane/promtool`.
pub(crate) const PROMTOOL: &str = "promtool";

/// Returns the version of `module` in the requirements of a `go.mod` file, without its leading `v`;
/// empty when it is not there, which the test below excludes for the files that are compiled in.
pub(crate) fn required_version(go_mod: &str, module: &str) -> String {
    go_mod
        .lines()
        .map(|line| line.trim().trim_start_matches("require").trim_start())
        .filter_map(|line| line.strip_prefix(module)?.strip_prefix(" v"))
        .find_map(|version| version.split_whitespace().next())
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pinned_version_is_found() {
        for release in [Release::Current, Release::Older] {
            let versions = Versions::of(release);
            for version in [&versions.etcd, &versions.kubernetes, &versions.helm] {
                assert_eq!(version.split('.').count(), 3, "{versions:?}");
            }
            assert_eq!(versions.key().matches('.').count(), 6);
        }
    }

    #[test]
    fn the_older_release_is_the_minor_version_before() {
        let minor = |choice| {
            Versions::of(Release::of(choice))
                .kubernetes
                .split('.')
                .nth(1)
                .unwrap()
                .parse::<u32>()
                .unwrap()
        };
        assert_eq!(minor(Some("older")) + 1, minor(None));
        assert_eq!(minor(Some("1.35")), minor(None), "a word that chooses nothing");
    }

    #[test]
    fn the_version_is_that_of_the_requirement() {
        let go_mod = "module m\n\nrequire (\n\ta.b/c v1.2.3\n\ta.b/c/d v2.0.0 // indirect\n)\n\nreplace a.b/d => a.b/d v9.9.9\n";
        assert_eq!(required_version(go_mod, "a.b/c"), "1.2.3");
        assert_eq!(required_version(go_mod, "a.b/c/d"), "2.0.0");
        assert_eq!(required_version(go_mod, "a.b/d"), "");
        assert_eq!(required_version("require a.b/c v1.2.3", "a.b/c"), "1.2.3");
    }

    #[test]
    fn assets_come_first_then_the_cache_directory() {
        let lookup = |pairs: &'static [(&str, &str)]| {
            directory_from(Release::chosen(), move |name| {
                pairs
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| value.into())
            })
        };
        let versioned = |cache: &str| {
            Some(
                PathBuf::from(cache)
                    .join("ccm-control-plane")
                    .join(Versions::pinned().key()),
            )
        };
        assert_eq!(
            lookup(&[("KUBEBUILDER_ASSETS", "/assets"), ("XDG_CACHE_HOME", "/cache")]),
            Some(PathBuf::from("/assets"))
        );
        assert_eq!(lookup(&[("XDG_CACHE_HOME", "/cache"), ("HOME", "/me")]), versioned("/cache"));
        assert_eq!(
            lookup(&[("KUBEBUILDER_ASSETS", ""), ("XDG_CACHE_HOME", "relative"), ("HOME", "/me")]),
            versioned("/me/.cache")
        );
        assert_eq!(lookup(&[]), None);
    }
}
