//! The chart on a real control plane: helm installs it, Kubernetes makes its pods, and the binary runs as their container.

#[path = "chart/leftovers.rs"]
mod leftovers;
#[path = "chart/pod.rs"]
mod pod;
#[path = "chart/probes.rs"]
mod probes;

use std::time::Duration;

use anyhow::Context as _;
use ccm_e2e::ccm::{Ccm, Signal};
use ccm_e2e::image::can_mount_or_say_skipped;
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::server::Kind;
use ccm_testkit::control_plane::Binaries;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, ValidationDirective};
use kube::discovery::ApiResource;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::case;
use crate::helm::{Helm, RELEASE, chart, objects, root};
use crate::run::Case;

use leftovers::Leftovers;
use pod::Kubelet;

/// With Deployments that get pods.
const REAL: &[Kind] = &[Kind::RealWithControllers];
/// Namespace of the release.
const NAMESPACE: &str = "kube-system";
/// A ServiceAccount that is there in every namespace, and stands for Prometheus'.
const READER: &str = "default";
/// How long Kubernetes may take to make pods and roles out of a release.
const INSTALLED: Duration = Duration::from_secs(60);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!("chart", REAL, an_installed_chart_runs_is_updated_and_leaves_nothing_behind),
        case!("chartdry", REAL, the_api_server_accepts_every_object_of_examples_and_guide),
    ]
}

/// A release in the scenario's cluster.
struct Installation<'a> {
    scenario: &'a Scenario,
    helm: Helm,
    port: u16,
}

impl<'a> Installation<'a> {
    async fn new(scenario: &'a Scenario) -> anyhow::Result<Self> {
        let kubeconfig = scenario.directory().join("admin.kubeconfig");
        scenario.server.write_admin_kubeconfig(&kubeconfig).await?;
        let helm = Helm::new(&Binaries::find()?)?.with_kubeconfig(kubeconfig);
        // Free now, and in the range of nobody's fixed ports.
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        Ok(Self { scenario, helm, port })
    }

    /// What a user writes, with short periods and without a limit that the test would wait for.
    fn values(&self) -> Value {
        json!({
            "provider": "mock",
            "cluster": {"name": self.scenario.region(), "cidr": "10.77.0.0/16"},
            "routes": {"enabled": true},
            "serving": {"port": self.port},
            "cloudConfig": {"values": {"region": self.scenario.region(), "endpoint": self.scenario.endpoint()}},
            "metrics": {"reader": {"create": true, "subjects": [
                {"kind": "ServiceAccount", "name": READER, "namespace": NAMESPACE},
            ]}},
            "extraArgs": {"node-monitor-period": "1s", "kube-api-qps": 1000, "kube-api-burst": 2000},
            "extraEnv": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        })
    }

    /// Runs `helm <verb> <release> <chart>`.
    fn helm(&self, verb: &str, more: &[&str]) -> anyhow::Result<String> {
        let chart = chart().display().to_string();
        let mut args = vec![verb, RELEASE, "--namespace", NAMESPACE];
        if verb != "uninstall" {
            args.push(&chart);
        }
        args.extend(more);
        // Short, and this case alone waits for it.
        tokio::task::block_in_place(|| self.helm.run(args)).with_context(|| format!("helm {verb}"))
    }

    fn install(&self) -> anyhow::Result<()> {
        let values = self.scenario.directory().join("values.json");
        std::fs::write(&values, self.values().to_string())?;
        let notes = self.helm("install", &["--values", values.to_str().context("a path that is text")?])?;
        anyhow::ensure!(notes.contains("get lease cloud-controller-manager"), "no notes: {notes}");
        Ok(())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.scenario.server.client(), NAMESPACE)
    }

    /// Waits until the release has so many pods that `fit`.
    async fn pods_that(&self, count: usize, fit: impl Fn(&Pod) -> bool) -> anyhow::Result<Vec<Pod>> {
        let ours = ListParams::default().labels(&format!("app.kubernetes.io/instance={RELEASE}"));
        let deadline = Instant::now() + INSTALLED;
        loop {
            let pods = self.pods().list(&ours).await?.items;
            if pods.len() == count && pods.iter().all(&fit) {
                return Ok(pods);
            }
            let state = || pods.iter().map(|pod| pod.metadata.name.clone()).collect::<Vec<_>>();
            anyhow::ensure!(Instant::now() < deadline, "not {count} fitting pods within {INSTALLED:?}: {:?}", state());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until kube-controller-manager has summed up the role.
    async fn rights_are_there(&self) -> anyhow::Result<()> {
        let roles: Api<ClusterRole> = Api::all(self.scenario.server.client());
        let deadline = Instant::now() + INSTALLED;
        while roles.get(RELEASE).await?.rules.is_none_or(|rules| rules.is_empty()) {
            anyhow::ensure!(Instant::now() < deadline, "the ClusterRole has no rules within {INSTALLED:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Starts the container of a pod.
    async fn run(&self, pod: &Pod) -> anyhow::Result<Ccm> {
        let mut ccm = Kubelet::start(self.scenario, pod).await?;
        ccm.logged("became leader", SOON).await?;
        is_confined(ccm.pid())?;
        probes::succeed(pod).await?;
        Ok(ccm)
    }
}

/// Makes sure that the process runs as the chart says: not as root, without capabilities or a way to get any, on a root
/// file system that it cannot write to.
fn is_confined(pid: u32) -> anyhow::Result<()> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
    let status = read("status")?;
    let ids = "65532\t65532\t65532\t65532";
    let none = "0000000000000000";
    let wanted =
        [("Uid", ids), ("Gid", ids), ("Groups", "65532"), ("CapEff", none), ("CapPrm", none), ("NoNewPrivs", "1")];
    for (name, value) in wanted {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        anyhow::ensure!(line == Some(value), "{name} is {line:?} and not {value:?}");
    }
    // Root, mount point and options are fields 4 to 6; the last mount at `/` is the one that is seen.
    let mounts = read("mountinfo")?;
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let root = fields.rfind(|fields| fields.get(4) == Some(&"/")).context("no root file system")?;
    let options = root.get(5).copied().unwrap_or_default();
    anyhow::ensure!(options.split(',').any(|option| option == "ro"), "the root file system is {options}");
    Ok(())
}

/// Whether the pod's container has this argument.
fn has_argument(pod: &Pod, wanted: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.flat_map(|container| container.args.iter().flatten()).any(|argument| argument == wanted)
}

async fn an_installed_chart_runs_is_updated_and_leaves_nothing_behind(scenario: &Scenario) -> anyhow::Result<()> {
    if !can_mount_or_say_skipped("the chart's process on a real control plane") {
        return Ok(());
    }
    let before = Leftovers::find(scenario).await?;
    let release = Installation::new(scenario).await?;
    release.install()?;
    let pods = release.pods_that(2, |_| true).await?;
    release.rights_are_there().await?;
    let mut ccm = release.run(&pods[0]).await?;

    // Nodes, routes and Services, as their owner wants them.
    let names = scenario.names(3);
    scenario.register(&names).await?;
    for (n, name) in names.iter().enumerate() {
        scenario.add_pod_cidrs(name, &[format!("10.77.{n}.0/24")]).await?;
    }
    scenario.initialized(&names, SOON).await?;
    scenario.routed(&[], SOON).await?;
    let services = vec![scenario.name(0), scenario.name(1)];
    scenario.create_all(&services).await?;
    scenario.served(&services, SOON).await?;
    probes::metrics_are_for_readers(scenario, &pods[0], NAMESPACE, READER).await?;
    let balancers = |scenario: &Scenario| {
        let all = scenario.cloud.load_balancers();
        all.into_iter().map(|balancer| balancer.name).collect::<Vec<_>>()
    };
    let made = balancers(scenario);

    // Other values: other pods, of another kind. A kubelet ends the old process before there is the new one.
    release.helm("upgrade", &["--reuse-values", "--set", "kind=DaemonSet,logging.verbosity=4"])?;
    let pods = release.pods_that(names.len(), |pod| has_argument(pod, "--v=4")).await?;
    end(ccm).await?;
    ccm = release.run(&pods[0]).await?;
    let late = vec![scenario.name(9)];
    scenario.register(&late).await?;
    scenario.initialized(&late, SOON).await?;
    scenario.served(&services, SOON).await?;
    anyhow::ensure!(balancers(scenario) == made, "an update must not make balancers anew");

    release.helm("uninstall", &["--wait"])?;
    release.pods_that(0, |_| true).await?;
    end(ccm).await?;
    Leftovers::find(scenario).await?.are_those_of(&before)?;
    // What was made in cluster and cloud stays, for the next manager.
    scenario.served(&services, SOON).await?;
    anyhow::ensure!(balancers(scenario) == made, "to uninstall must not touch the cloud");
    Ok(())
}

/// Ends a process as a kubelet does.
async fn end(mut ccm: Ccm) -> anyhow::Result<()> {
    ccm.signal(Signal::Term).await?;
    let status = ccm.exit(Duration::from_secs(30)).await?;
    anyhow::ensure!(status.success(), "the process ended with {status} on SIGTERM; its log:\n{}", ccm.log());
    Ok(())
}

/// Every object is created with strict validation and without being kept: a misspelt field is an error.
async fn the_api_server_accepts_every_object_of_examples_and_guide(scenario: &Scenario) -> anyhow::Result<()> {
    let foreign = ["ServiceMonitor", "PrometheusRule"];
    let mut seen = 0;
    for entry in std::fs::read_dir(chart().join("examples/rendered"))? {
        let path = entry?.path();
        for object in objects(&std::fs::read_to_string(&path)?)? {
            if foreign.iter().any(|kind| object["kind"] == *kind) {
                continue;
            }
            seen += 1;
            let what = format!("{}: {} {}", path.display(), object["kind"], object["metadata"]["name"]);
            accepted(scenario, object).await.with_context(|| what)?;
        }
    }
    anyhow::ensure!(seen > 40, "only {seen} objects");
    let guide = std::fs::read_to_string(root().join("docs/install.md"))?;
    let blocks: Vec<_> = guide.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    anyhow::ensure!(!blocks.is_empty(), "no manifest in the guide");
    for object in objects(&blocks.join("---\n"))? {
        let what = format!("docs/install.md: {}", object["metadata"]["name"]);
        accepted(scenario, object).await.with_context(|| what)?;
    }
    Ok(())
}

async fn accepted(scenario: &Scenario, object: Value) -> anyhow::Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.clone().context("an object without kind")?;
    let resource = ApiResource::from_gvk(&kube::core::GroupVersionKind::try_from(&types)?);
    let client = scenario.server.client();
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    let name = object.metadata.name.clone().context("an object without name")?;
    let strict = PatchParams { field_validation: Some(ValidationDirective::Strict), ..PatchParams::apply("chart") };
    api.patch(&name, &strict.dry_run().force(), &Patch::Apply(&object)).await?;
    Ok(())
}
