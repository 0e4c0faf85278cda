//! The chart on a real control plane: helm installs it, Kubernetes makes its pods, and the binary
//! runs as their container.

mod leftovers;
mod pod;
mod probes;
mod security;

use std::time::Duration;

use anyhow::Context as _;
use ccm_e2e::ccm::{Ccm, Signal};
use ccm_e2e::image::ContainerMethod;
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::server::ServerKind;
use ccm_testkit::supervised::free_port;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
    ValidationDirective,
};
use kube::discovery::ApiResource;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::case;
use crate::helm::{Helm, RELEASE, chart, objects, root};
use crate::run::{Case, Need};

use leftovers::Leftovers;
use pod::Kubelet;

/// With Deployments that get pods.
const REAL: &[ServerKind] = &[ServerKind::RealWithControllers];
/// Namespace of the release.
const NAMESPACE: &str = "kube-system";
/// A ServiceAccount that is there in every namespace, and stands for Prometheus'.
const READER: &str = "default";
/// Where nobody answers, as at a Service before there is kube-proxy.
const NOBODY_SERVES: &str = "127.0.0.1:1";
/// How long Kubernetes may take to make pods and roles out of a release.
const INSTALLED: Duration = Duration::from_secs(60);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case {
            needs: &[Need::Helm, Need::Containers],
            ..case!("chart", REAL, an_installed_chart_runs_is_updated_and_leaves_nothing_behind)
        },
        case!("chartdry", REAL, the_api_server_accepts_every_object_of_examples_and_guide),
        Case {
            needs: &[Need::Helm],
            ..case!("chartpod", REAL, pods_of_the_chart_are_let_in_by_pod_security)
        },
    ]
}

/// A release in the scenario's cluster.
struct Installation<'a> {
    scenario: &'a Scenario,
    /// By what its pods become processes.
    means: ContainerMethod,
    helm: Helm,
    port: u16,
    /// Host and port of the API server.
    api_server: String,
}

impl<'a> Installation<'a> {
    async fn new(scenario: &'a Scenario, means: ContainerMethod) -> anyhow::Result<Self> {
        let kubeconfig = scenario.directory().join("admin.kubeconfig");
        scenario.server.write_admin_kubeconfig(&kubeconfig).await?;
        let helm = Helm::find()?.with_kubeconfig(kubeconfig);
        let port = free_port()?;
        let api_server = scenario
            .server
            .url()
            .await?
            .trim_start_matches("https://")
            .to_owned();
        Ok(Self { scenario, means, helm, port, api_server })
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
        let notes =
            self.helm("install", &["--values", values.to_str().context("a path that is text")?])?;
        anyhow::ensure!(notes.contains("get lease cloud-controller-manager"), "no notes: {notes}");
        Ok(())
    }

    /// Makes a Secret with a kubeconfig of the release's ServiceAccount.
    async fn keep_kubeconfig(&self, name: &str) -> anyhow::Result<()> {
        let file = self.scenario.directory().join("account.kubeconfig");
        self.scenario
            .server
            .write_account_kubeconfig(&file, NAMESPACE, RELEASE)
            .await?;
        let content = std::fs::read_to_string(&file)?;
        let secret = serde_json::from_value(
            json!({"metadata": {"name": name}, "stringData": {"kubeconfig": content}}),
        )?;
        self.secrets()
            .create(&PostParams::default(), &secret)
            .await?;
        Ok(())
    }

    async fn forget_kubeconfig(&self, name: &str) -> anyhow::Result<()> {
        self.secrets()
            .delete(name, &DeleteParams::default())
            .await?;
        Ok(())
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.scenario.server.client(), NAMESPACE)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.scenario.server.client(), NAMESPACE)
    }

    /// Waits until the release has so many pods that `fit`.
    async fn pods_that(
        &self,
        count: usize,
        fit: impl Fn(&Pod) -> bool,
    ) -> anyhow::Result<Vec<Pod>> {
        let ours = ListParams::default().labels(&format!("app.kubernetes.io/instance={RELEASE}"));
        let deadline = Instant::now() + INSTALLED;
        loop {
            let pods = self.pods().list(&ours).await?.items;
            if pods.len() == count && pods.iter().all(&fit) {
                return Ok(pods);
            }
            let state = || {
                pods.iter()
                    .map(|pod| pod.metadata.name.clone())
                    .collect::<Vec<_>>()
            };
            anyhow::ensure!(
                Instant::now() < deadline,
                "not {count} fitting pods within {INSTALLED:?}: {:?}",
                state()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until kube-controller-manager has summed up the role.
    async fn rights_are_there(&self) -> anyhow::Result<()> {
        let roles: Api<ClusterRole> = Api::all(self.scenario.server.client());
        let deadline = Instant::now() + INSTALLED;
        while roles
            .get(RELEASE)
            .await?
            .rules
            .is_none_or(|rules| rules.is_empty())
        {
            anyhow::ensure!(
                Instant::now() < deadline,
                "the ClusterRole has no rules within {INSTALLED:?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Starts the container of a pod, to which `service` is the address of the `kubernetes`
    /// Service.
    async fn run(&self, pod: &Pod, service: &str) -> anyhow::Result<Ccm> {
        let mut ccm = Kubelet::start(self.scenario, self.means, pod, service).await?;
        ccm.logged("became leader", SOON).await?;
        is_confined(ccm.pid(), self.means)?;
        probes::succeed(pod).await?;
        Ok(ccm)
    }
}

/// Makes sure that the process runs as the chart says: not as root, without capabilities or a way
/// to get any, on a root file system that it cannot write to.
fn is_confined(pid: u32, means: ContainerMethod) -> anyhow::Result<()> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
    let field = |status: &str, name: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim);
        line.map(str::to_owned)
            .with_context(|| format!("no {name} in a status"))
    };
    let status = read("status")?;
    for (name, value) in
        [("CapEff", "0000000000000000"), ("CapPrm", "0000000000000000"), ("NoNewPrivs", "1")]
    {
        let is = field(&status, name)?;
        anyhow::ensure!(is == value, "{name} is {is:?} and not {value:?}");
    }
    for (name, map) in [("Uid", "uid_map"), ("Gid", "gid_map")] {
        if means == ContainerMethod::Root {
            let ids = field(&status, name)?;
            anyhow::ensure!(ids == "65532\t65532\t65532\t65532", "{name} is {ids:?}");
        } else {
            // Seen from here it is our user. One line: who that is inside, who it is here, and that
            // there is nobody else.
            let ids = read(map)?;
            let ids: Vec<_> = ids.split_whitespace().collect();
            anyhow::ensure!(
                ids.len() == 3 && ids[0] == "65532" && ids[2] == "1",
                "{map} is {ids:?}"
            );
        }
    }
    if means == ContainerMethod::Root {
        let groups = field(&status, "Groups")?;
        anyhow::ensure!(groups == "65532", "the groups are {groups:?}");
    }
    // Root, mount point and options are fields 4 to 6; the last mount at `/` is the one that is
    // seen.
    let mounts = read("mountinfo")?;
    let mut fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let root = fields
        .rfind(|fields| fields.get(4) == Some(&"/"))
        .context("no root file system")?;
    let options = root.get(5).copied().unwrap_or_default();
    anyhow::ensure!(
        options.split(',').any(|option| option == "ro"),
        "the root file system is {options}"
    );
    Ok(())
}

/// Whether the pod's container has this argument.
fn has_argument(pod: &Pod, wanted: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .flat_map(|container| container.args.iter().flatten())
        .any(|argument| argument == wanted)
}

async fn an_installed_chart_runs_is_updated_and_leaves_nothing_behind(
    scenario: &Scenario,
) -> anyhow::Result<()> {
    let means = ContainerMethod::find().map_err(anyhow::Error::msg)?[0];
    let release = Installation::new(scenario, means).await?;
    let done = live_through(scenario, &release).await;
    if done.is_err() {
        // The next case would fail for it, too; what went wrong first is what is told.
        let _ = release.helm("uninstall", &["--wait", "--ignore-not-found"]);
    }
    done
}

/// From the installation to the end of a release.
async fn live_through(scenario: &Scenario, release: &Installation<'_>) -> anyhow::Result<()> {
    let before = Leftovers::find(scenario).await?;
    release.install()?;
    release.pods_that(2, |_| true).await?;
    stands_alone_for_a_while(release).await?;
    let pods = release
        .pods_that(1, |pod| has_argument(pod, "--leader-elect=true"))
        .await?;
    // The role may not be summed up yet: that is waited for by the process, too.
    let ccm = release.run(&pods[0], &release.api_server).await?;
    release.rights_are_there().await?;
    let names = scenario.names(3);
    let services = vec![scenario.name(0), scenario.name(1)];
    serve(scenario, &names, &services).await?;
    probes::metrics_are_for_readers(scenario, &pods[0], NAMESPACE, READER).await?;
    let made = balancers(scenario);

    // A pod for each node, where nothing serves the `kubernetes` Service.
    let (host, port) = release
        .api_server
        .split_once(':')
        .context("an address without port")?;
    let set =
        format!("kind=DaemonSet,logging.verbosity=4,apiServer.host={host},apiServer.port={port}");
    release.helm("upgrade", &["--reuse-values", "--set", &set])?;
    let pods = release
        .pods_that(names.len(), |pod| has_argument(pod, "--v=4"))
        .await?;
    end(ccm).await?;
    let ccm = release.run(&pods[0], NOBODY_SERVES).await?;
    goes_on(scenario, &scenario.name(8), &services).await?;

    // One replica that serves another cluster, which is this one: no token, no rights but the
    // kubeconfig's.
    let secret = "cluster-kubeconfig";
    release.keep_kubeconfig(secret).await?;
    let set = format!(
        "kind=Deployment,replicas=1,apiServer.host=,kubeconfig.existingSecret.name={secret}"
    );
    release.helm("upgrade", &["--reuse-values", "--set", &set])?;
    let kubeconfig = "--kubeconfig=/etc/cloud-controller-manager/kubeconfig/kubeconfig";
    let pods = release
        .pods_that(1, |pod| has_argument(pod, kubeconfig))
        .await?;
    end(ccm).await?;
    let ccm = release.run(&pods[0], NOBODY_SERVES).await?;
    goes_on(scenario, &scenario.name(9), &services).await?;
    anyhow::ensure!(balancers(scenario) == made, "an update must not make balancers anew");

    release.helm("uninstall", &["--wait"])?;
    release.pods_that(0, |_| true).await?;
    end(ccm).await?;
    release.forget_kubeconfig(secret).await?;
    Leftovers::find(scenario).await?.are_those_of(&before)?;
    // What was made in cluster and cloud stays, for the next manager.
    scenario.served(&services, SOON).await?;
    anyhow::ensure!(balancers(scenario) == made, "to uninstall must not touch the cloud");
    Ok(())
}

/// To the release without an election, whose pods never run side by side, and back: the API server
/// takes both updates.
async fn stands_alone_for_a_while(release: &Installation<'_>) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(release.scenario.server.client(), NAMESPACE);
    for (set, wanted) in [
        ("replicas=1,leaderElection.enabled=false", json!({"type": "Recreate"})),
        (
            "leaderElection.enabled=true",
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
        ),
    ] {
        release.helm("upgrade", &["--reuse-values", "--set", set])?;
        let strategy = deployments
            .get(RELEASE)
            .await?
            .spec
            .and_then(|spec| spec.strategy);
        let strategy = serde_json::to_value(strategy)?;
        anyhow::ensure!(strategy == wanted, "{set} makes the strategy {strategy}");
    }
    Ok(())
}

/// Registers nodes with pod networks and creates Services, and waits until they have what they
/// need.
async fn serve(scenario: &Scenario, nodes: &[String], services: &[String]) -> anyhow::Result<()> {
    scenario.register(nodes).await?;
    for (n, name) in nodes.iter().enumerate() {
        scenario
            .add_pod_cidrs(name, &[format!("10.77.{n}.0/24")])
            .await?;
    }
    scenario.initialized(nodes, SOON).await?;
    scenario.routed(&[], SOON).await?;
    scenario.create_all(services).await?;
    scenario.served(services, SOON).await
}

/// A new node is initialised and becomes a backend.
async fn goes_on(scenario: &Scenario, node: &str, services: &[String]) -> anyhow::Result<()> {
    let node = [node.to_owned()];
    scenario.register(&node).await?;
    scenario.initialized(&node, SOON).await?;
    scenario.served(services, SOON).await
}

/// Names of the cloud's load balancers.
fn balancers(scenario: &Scenario) -> Vec<String> {
    scenario
        .cloud
        .load_balancers()
        .into_iter()
        .map(|balancer| balancer.name)
        .collect()
}

/// Ends a process as a kubelet does.
async fn end(mut ccm: Ccm) -> anyhow::Result<()> {
    ccm.signal(Signal::Term).await?;
    let status = ccm.exit(Duration::from_secs(30)).await?;
    anyhow::ensure!(
        status.success(),
        "the process ended with {status} on SIGTERM; its log:\n{}",
        ccm.log()
    );
    Ok(())
}

/// Every object is created with strict validation and without being kept: a misspelt field is an
/// error.
async fn the_api_server_accepts_every_object_of_examples_and_guide(
    scenario: &Scenario,
) -> anyhow::Result<()> {
    let foreign = ["ServiceMonitor", "PrometheusRule"];
    let mut seen = 0;
    for entry in std::fs::read_dir(chart().join("examples/rendered"))? {
        let path = entry?.path();
        for object in objects(&std::fs::read_to_string(&path)?)? {
            if foreign.iter().any(|kind| object["kind"] == *kind) {
                continue;
            }
            seen += 1;
            let what =
                format!("{}: {} {}", path.display(), object["kind"], object["metadata"]["name"]);
            accepted(scenario, object).await.with_context(|| what)?;
        }
    }
    anyhow::ensure!(seen > 40, "only {seen} objects");
    let guide = std::fs::read_to_string(root().join("docs/install.md"))?;
    let blocks: Vec<_> = guide
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    anyhow::ensure!(!blocks.is_empty(), "no manifest in the guide");
    for object in objects(&blocks.join("---\n"))? {
        let what = format!("docs/install.md: {}", object["metadata"]["name"]);
        accepted(scenario, object).await.with_context(|| what)?;
    }
    Ok(())
}

/// Without the node's network, the pods ask for nothing that the strictest level refuses.
async fn pods_of_the_chart_are_let_in_by_pod_security(scenario: &Scenario) -> anyhow::Result<()> {
    security::pods_keep_to_their_level(scenario, &Helm::find()?).await
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
    let name = object
        .metadata
        .name
        .clone()
        .context("an object without name")?;
    let strict = PatchParams {
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::apply("chart")
    };
    api.patch(&name, &strict.dry_run().force(), &Patch::Apply(&object))
        .await?;
    Ok(())
}
