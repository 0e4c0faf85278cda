//! From upstream's OpenStack manager to ours and back, with upstream's own manifests and chart as
//! they are, on one cloud.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use ccm_realcluster::archive::{self, Image};
use ccm_realcluster::{Cluster, Programs, wait_for};
use ccm_testkit::control_plane::GoProgram;
use serde_json::Value;

use crate::openstack::{self, VALUES, start_cloud};
use crate::release::{self, NAMESPACE, chart, helm, wait_for_address, wait_for_nodes};

/// Upstream's workload, by the name that it has in manifests and chart alike.
const DAEMON_SET: &str = "daemonset/openstack-cloud-controller-manager";
/// Upstream's container.
const CONTAINER: &str = "openstack-cloud-controller-manager";
/// Repository of upstream's image.
const REPOSITORY: &str = "registry.k8s.io/provider-os/openstack-cloud-controller-manager";
/// Release of upstream's chart.
const RELEASE: &str = "openstack-ccm";
/// A Go manager does not release its Lease; another one waits for that, and then works.
const TAKEN_OVER: Duration = Duration::from_secs(90);

pub(crate) fn from_upstreams_manifests_and_chart_and_back(
    programs: Programs,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let upstream = Programs::upstream_openstack().map_err(anyhow::Error::msg)?;
    let go = GoProgram::OpenstackCcm.find().map_err(anyhow::Error::msg)?;
    let ours = openstack::image(&programs, folder.path())?;
    let theirs =
        (format!("{REPOSITORY}:{}", version(&upstream)?), folder.path().join("upstream.tar"));
    let path = "/bin/openstack-cloud-controller-manager";
    let image = Image {
        user: "0:0",
        path,
        is_entrypoint: false,
        program: &go,
        files: None,
    };
    archive::write(&image, &theirs.1)?;
    let (our_image, their_image) = (ours.0.clone(), theirs.0.clone());
    let cluster = Cluster::start(programs, 2, &[ours, theirs])?;
    crate::on(&cluster, |cluster| {
        start_cloud(cluster)?;
        let migration = Migration { cluster, upstream: &upstream, our_image, their_image };
        migration.by_image()?;
        migration.chart_after_manifests()?;
        migration.chart_after_chart(folder.path())
    })
}

/// Version of upstream's image in its manifests.
fn version(upstream: &Path) -> anyhow::Result<String> {
    let manifest =
        upstream.join("manifests/controller-manager/openstack-cloud-controller-manager-ds.yaml");
    let manifest = std::fs::read_to_string(manifest)?;
    let image = manifest
        .lines()
        .find_map(|line| line.trim().strip_prefix("image: "));
    let version = image.and_then(|image| image.strip_prefix(REPOSITORY)?.strip_prefix(':'));
    Ok(version.context("the manifest names no image")?.to_owned())
}

struct Migration<'a> {
    cluster: &'a Cluster,
    upstream: &'a Path,
    our_image: String,
    their_image: String,
}

impl Migration<'_> {
    fn manifest(&self, name: &str) -> String {
        self.upstream
            .join("manifests/controller-manager")
            .join(name)
            .display()
            .to_string()
    }

    /// Applies or deletes upstream's manifests.
    fn with_manifests(&self, verb: &str) -> anyhow::Result<()> {
        let files = [
            "cloud-controller-manager-roles.yaml",
            "cloud-controller-manager-role-bindings.yaml",
            "openstack-cloud-controller-manager-ds.yaml",
        ]
        .map(|name| self.manifest(name));
        let [roles, bindings, workload] = &files;
        self.cluster
            .kubectl(&[verb, "--filename", roles, "--filename", bindings, "--filename", workload])
            .map(drop)
    }

    /// Upstream's manifests; then the image is ours, and theirs again.
    fn by_image(&self) -> anyhow::Result<()> {
        self.with_manifests("apply")?;
        wait_for_nodes(self.cluster).context("with upstream's manifests")?;
        self.cluster.apply(&release::web("web", 2, "Cluster"))?;
        let address = wait_for_address(self.cluster, "web")?;

        for (step, image) in [("ours", &self.our_image), ("theirs", &self.their_image)] {
            let set = format!("{CONTAINER}={image}");
            self.cluster
                .kubectl(&["set", "image", DAEMON_SET, &set, "--namespace", NAMESPACE])?;
            self.rolled_out(DAEMON_SET)?;
            self.serves(step, &address)
                .with_context(|| format!("after the image is {step}"))?;
        }
        Ok(())
    }

    fn rolled_out(&self, workload: &str) -> anyhow::Result<()> {
        let status = ["rollout", "status", workload, "--namespace", NAMESPACE, "--timeout", "120s"];
        self.cluster.kubectl(&status).map(drop)
    }

    /// Whoever manages now serves a new Service, deletes it again, and leaves the old one as it is.
    fn serves(&self, service: &str, address: &str) -> anyhow::Result<()> {
        self.cluster
            .apply(&release::service(service, "web", "Cluster"))?;
        wait_for(TAKEN_OVER, &format!("address of {service}"), || {
            let service = self.cluster.get(&["service", service])?;
            let found = &service["status"]["loadBalancer"]["ingress"][0]["ip"];
            Ok(found.as_str().map(drop))
        })?;
        self.cluster
            .kubectl(&["delete", "service", service, "--timeout", "60s"])?;
        let now = wait_for_address(self.cluster, "web")?;
        anyhow::ensure!(now == address, "the address was {address} and is {now}");
        Ok(())
    }

    fn exists(&self, arguments: &[&str]) -> anyhow::Result<bool> {
        let mut all = arguments.to_vec();
        all.push("--ignore-not-found");
        let found = self
            .cluster
            .kubectl(&[&["get"][..], &all, &["--output", "name"]].concat())?;
        Ok(!found.trim().is_empty())
    }

    /// The chart's ServiceAccount has the name of upstream's, which helm takes over if told so.
    fn chart_after_manifests(&self) -> anyhow::Result<()> {
        let address = wait_for_address(self.cluster, "web")?;
        self.cluster
            .kubectl(&["delete", DAEMON_SET, "--namespace", NAMESPACE])?;
        let refused = helm(self.cluster, "install", &["--set", VALUES]);
        let refused = refused
            .err()
            .context("helm takes what is not its own")?
            .to_string();
        anyhow::ensure!(
            refused.contains("ServiceAccount \"cloud-controller-manager\""),
            "helm says something else: {refused}"
        );
        helm(self.cluster, "install", &["--set", VALUES, "--take-ownership"])?;
        self.serves("adopted", &address)
            .context("with our chart beside upstream's roles")?;
        for kind in ["clusterrolebinding", "clusterrole"] {
            let names = ["system:cloud-controller-manager", "system:cloud-node-controller"];
            self.cluster
                .kubectl(&["delete", kind, names[0], names[1]])?;
        }
        self.serves("alone", &address)
            .context("with our chart alone")?;
        helm(self.cluster, "uninstall", &["--wait"])?;
        // Last, back to the manifests, which then make room for the chart.
        self.with_manifests("apply")?;
        self.rolled_out(DAEMON_SET)?;
        self.serves("manifests", &address)
            .context("with upstream's manifests again")?;
        self.with_manifests("delete")
    }

    /// Upstream's chart; then ours instead, ours in the same release, and back.
    fn chart_after_chart(&self, folder: &Path) -> anyhow::Result<()> {
        let address = wait_for_address(self.cluster, "web")?;
        let theirs = self.their_chart(folder)?;
        let install = |verb: &str, chart: &str, values: &str| {
            let more = ["--namespace", NAMESPACE, "--wait", "--timeout", "120s", "--set", values];
            self.cluster
                .helm(&[&[verb, RELEASE, chart][..], &more].concat())
        };
        let their_values = "secret.create=false";
        install("install", &theirs, their_values)?;
        self.serves("chart", &address)
            .context("with upstream's chart")?;

        // First, one release after the other.
        self.cluster
            .helm(&["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait"])?;
        anyhow::ensure!(
            self.exists(&["secret", "cloud-config", "--namespace", NAMESPACE])?,
            "a Secret that is not the release's is gone"
        );
        self.copy_secret()?;
        let with_copy = VALUES.replace("=cloud-config", "=openstack-cloud-config");
        helm(self.cluster, "install", &["--set", &with_copy])?;
        self.serves("after", &address)
            .context("with our chart after upstream's")?;
        helm(self.cluster, "uninstall", &["--wait"])?;

        // Next, in the same release.
        install("install", &theirs, their_values)?;
        self.serves("again", &address)
            .context("with upstream's chart again")?;
        let values = format!("{VALUES},fullnameOverride=cloud-controller-manager");
        let more = [
            "--namespace",
            NAMESPACE,
            "--reset-values",
            "--wait",
            "--timeout",
            "120s",
            "--set",
            &values,
        ];
        self.cluster
            .helm(&[&["upgrade", RELEASE, &chart()][..], &more].concat())?;
        anyhow::ensure!(
            !self.exists(&[DAEMON_SET, "--namespace", NAMESPACE])?,
            "upstream's pods are still there"
        );
        self.serves("same", &address)
            .context("with our chart in upstream's release")?;

        // Last, back.
        let revision = self.their_revision()?;
        self.cluster.helm(&[
            "rollback",
            RELEASE,
            &revision,
            "--namespace",
            NAMESPACE,
            "--wait",
            "--timeout",
            "120s",
        ])?;
        self.rolled_out(DAEMON_SET)?;
        self.serves("back", &address).context("after the rollback")
    }

    /// Copies the cloud config to a Secret of another name, as is necessary if upstream's release
    /// owns the Secret.
    fn copy_secret(&self) -> anyhow::Result<()> {
        self.cluster.bash(
            r#"cd "$(mktemp -d)"
            kubectl -n kube-system get secret cloud-config -o jsonpath='{.data.cloud\.conf}' | base64 -d > cloud.conf
            kubectl -n kube-system create secret generic openstack-cloud-config --from-file=cloud.conf && rm cloud.conf"#,
        )
    }

    /// The last revision of the release that is upstream's chart.
    fn their_revision(&self) -> anyhow::Result<String> {
        let history = ["history", RELEASE, "--namespace", NAMESPACE, "--output", "json"];
        let history: Value = serde_json::from_str(&self.cluster.helm(&history)?)?;
        let revisions = history.as_array().context("no history")?.iter().rev();
        let theirs = revisions
            .filter(|revision| {
                revision["chart"]
                    .as_str()
                    .is_some_and(|chart| chart.starts_with(CONTAINER))
            })
            .find_map(|revision| revision["revision"].as_u64());
        Ok(theirs
            .with_context(|| format!("no revision of upstream's chart: {history}"))?
            .to_string())
    }

    /// Upstream's chart as it is. The chart that it depends on, which no Go module has, gives its
    /// objects labels.
    fn their_chart(&self, folder: &Path) -> anyhow::Result<String> {
        let source = self.upstream.join("charts").join(CONTAINER);
        let copy = folder.join(CONTAINER);
        copy_folder(&source, &copy)?;
        let common = copy.join("charts/common");
        std::fs::create_dir_all(common.join("templates"))?;
        let metadata = std::fs::read_to_string(copy.join("Chart.yaml"))?;
        let metadata: Value = serde_saphyr::from_str(&metadata)?;
        let version = metadata["dependencies"][0]["version"]
            .as_str()
            .context("no dependency")?;
        std::fs::write(
            common.join("Chart.yaml"),
            format!("apiVersion: v2\nname: common\nversion: {version}\ntype: library\n"),
        )?;
        let labels = "{{- define \"common.labels.standard\" -}}\napp.kubernetes.io/instance: {{ .Release.Name }}\n\
             app.kubernetes.io/managed-by: {{ .Release.Service }}\n{{- end -}}\n";
        std::fs::write(common.join("templates/_labels.tpl"), labels)?;
        Ok(copy.display().to_string())
    }
}

/// Copies a folder of Go's cache, of which nothing may be changed.
pub(crate) fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            // Its own mode is that of Go's cache, which nobody may write to.
            std::fs::write(&target, std::fs::read(entry.path())?)?;
        }
    }
    Ok(())
}
