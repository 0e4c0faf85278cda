//! The real helm, kept away from the settings and caches of whoever runs the tests.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::Context as _;
use ccm_testkit::control_plane;
use serde_json::Value;

/// Helm with a home of its own.
pub(crate) struct Helm {
    program: PathBuf,
    home: tempfile::TempDir,
    /// Whose cluster it talks to, if any.
    kubeconfig: Option<PathBuf>,
}

impl Helm {
    /// Finds helm.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let program = control_plane::helm().map_err(anyhow::Error::msg)?;
        let home = tempfile::Builder::new().prefix("ccm-helm-").tempdir()?;
        Ok(Self { program, home, kubeconfig: None })
    }

    /// Lets it talk to a cluster.
    pub(crate) fn with_kubeconfig(self, kubeconfig: PathBuf) -> Self {
        Self { kubeconfig: Some(kubeconfig), ..self }
    }

    /// Runs helm in its own environment and returns what it printed, whether it succeeded or not.
    pub(crate) fn output<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> anyhow::Result<Output> {
        let mut command = Command::new(&self.program);
        command.env_clear().args(args).current_dir(self.home.path());
        for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "HOME"] {
            command.env(name, self.home.path());
        }
        // Without a kubeconfig of ours it must not find somebody's.
        let none = self.home.path().join("no-kubeconfig");
        command.env("KUBECONFIG", self.kubeconfig.as_ref().unwrap_or(&none));
        command.output().context("run helm")
    }

    /// Runs helm, which must succeed, and returns its standard output.
    pub(crate) fn run<A: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> anyhow::Result<String> {
        let output = self.output(args)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        anyhow::ensure!(
            output.status.success(),
            "helm: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        Ok(text(&output.stdout))
    }

    /// Renders the chart as the release `name` in kube-system, without what `helm test` runs.
    pub(crate) fn template(&self, name: &str, args: &[&str]) -> anyhow::Result<String> {
        let chart = chart();
        let fixed: [&OsStr; 6] = [
            "template".as_ref(),
            "--skip-tests".as_ref(),
            name.as_ref(),
            chart.as_os_str(),
            "--namespace".as_ref(),
            "kube-system".as_ref(),
        ];
        self.run(fixed.into_iter().chain(args.iter().map(OsStr::new)))
    }

    /// The objects of [`template`](Self::template).
    pub(crate) fn objects(&self, args: &[&str]) -> anyhow::Result<Vec<Value>> {
        objects(&self.template(RELEASE, args)?)
    }
}

/// The release whose objects are named as the manifests of `rbac/` name theirs.
pub(crate) const RELEASE: &str = "cloud-controller-manager";

/// Folder of the chart.
pub(crate) fn chart() -> PathBuf {
    root().join("charts/cloud-controller-manager")
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    here.canonicalize().unwrap_or(here)
}

/// The objects of a file of manifests.
pub(crate) fn objects(text: &str) -> anyhow::Result<Vec<Value>> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(text).context("read manifests")?;
    Ok(objects
        .into_iter()
        .filter(|object| !object.is_null())
        .collect())
}

/// The only object of a kind.
pub(crate) fn only<'a>(objects: &'a [Value], kind: &str) -> anyhow::Result<&'a Value> {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (one, _) => {
            anyhow::bail!("{} objects of kind {kind}", if one.is_none() { "no" } else { "several" })
        }
    }
}

/// The only container of a Deployment or DaemonSet.
pub(crate) fn container(workload: &Value) -> &Value {
    &workload["spec"]["template"]["spec"]["containers"][0]
}

/// Strings of a list.
pub(crate) fn strings(list: &Value) -> Vec<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}
