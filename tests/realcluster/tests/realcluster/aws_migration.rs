//! From upstream's AWS manager to ours and back, with upstream's own manifests and chart as they
//! are, on moto. The commands are those of docs/migration.md.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use ccm_realcluster::archive::{self, Image};
use ccm_realcluster::{ADDRESS, Cluster, Programs, root, wait_for};
use ccm_testkit::control_plane::GoProgram;
use ccm_testkit::moto;
use serde_json::Value;

use crate::kubelet_commands;
use crate::migration::copy_folder;
use crate::release::{self, NAMESPACE, SOON, helm, wait_for_nodes};

/// Name of upstream's workload, container, chart and release.
const UPSTREAM: &str = "aws-cloud-controller-manager";
/// Where the page has our image.
const REGISTRY: &str = "registry.example.org/infra";
/// A Go manager does not release its Lease; another one waits for that, and then works.
const TAKEN_OVER: Duration = Duration::from_secs(120);
/// Kinds of load balancers: annotations of a Service that gets one, and how its host names end.
const KINDS: [(&str, &str, &str); 2] = [
    ("classic", "", ".elb.amazonaws.com"),
    (
        "network",
        "annotations: {service.beta.kubernetes.io/aws-load-balancer-type: nlb}",
        ".elb.us-west-2.amazonaws.com",
    ),
];

pub(crate) fn from_upstreams_aws_manifests_and_chart_and_back(
    programs: Programs,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    // First, images: upstream's manifests and chart name two versions of one.
    let upstream = Programs::upstream_aws().map_err(anyhow::Error::msg)?;
    let go = GoProgram::AwsCcm.find().map_err(anyhow::Error::msg)?;
    let moto = moto::find().map_err(anyhow::Error::msg)?;
    let program = Programs::release("ccm-aws").map_err(anyhow::Error::msg)?;
    let ours = programs.image("aws", &program, folder.path())?;
    let file = folder.path().join("upstream.tar");
    let path = format!("/bin/{UPSTREAM}");
    let image = Image {
        user: "0:0",
        path: &path,
        is_entrypoint: true,
        program: &go,
        files: None,
    };
    archive::write(&image, &file)?;
    let theirs = images(&upstream)?;
    let mut all = vec![ours.clone()];
    all.extend(theirs.iter().map(|name| (name.clone(), file.clone())));
    let cluster = Cluster::start(programs, 2, &all)?;

    // Next, AWS, and what an operator has in the folder where commands are run.
    crate::on(&cluster, |cluster| {
        start_aws(cluster, &moto)?;
        let migration = Migration {
            cluster,
            page: Page::read()?,
            folder: operators_folder(&upstream, folder.path())?,
            ours: ours.0,
            theirs,
        };
        // Last, each way.
        let kept = migration.by_image()?;
        migration.chart_after_manifests(&kept)?;
        migration.chart_after_chart(&kept)?;
        migration.chart_in_their_release(&kept)
    })
}

/// Names of upstream's image: in its manifests, and in its chart.
fn images(upstream: &Path) -> anyhow::Result<[String; 2]> {
    let manifest =
        upstream.join(format!("examples/existing-cluster/base/{UPSTREAM}-daemonset.yaml"));
    let manifest: Value = serde_saphyr::from_str(&std::fs::read_to_string(manifest)?)?;
    let of_manifest = &manifest["spec"]["template"]["spec"]["containers"][0]["image"];
    let of_manifest = of_manifest
        .as_str()
        .context("the manifest names no image")?;
    let values = upstream.join(format!("charts/{UPSTREAM}/values.yaml"));
    let values: Value = serde_saphyr::from_str(&std::fs::read_to_string(values)?)?;
    let of_chart = |key| {
        values["image"][key]
            .as_str()
            .context("the chart names no image")
    };
    Ok([of_manifest.to_owned(), format!("{}:{}", of_chart("repository")?, of_chart("tag")?)])
}

/// Starts AWS beside the control plane, and gives nodes the IDs that their kubelets would have been
/// started with.
fn start_aws(cluster: &Cluster, moto: &Path) -> anyhow::Result<()> {
    cluster.bash("ip addr add 169.254.169.254/32 dev lan")?;
    let program = Path::new(env!("CARGO_BIN_EXE_aws-of-a-cluster"));
    let file = cluster.folder().join("instances");
    let (moto, told) = (moto.display().to_string(), file.display().to_string());
    let listen = format!("{ADDRESS}:5000");
    let nodes = ["node-1=10.250.0.11", "node-2=10.250.0.12"];
    cluster.spawn("aws", program, &[&moto, &listen, &told, nodes[0], nodes[1]])?;
    wait_for(SOON, "AWS", || Ok(file.exists().then_some(())))?;
    for line in std::fs::read_to_string(&file)?.lines() {
        let (node, id) = line.split_once(' ').context("no provider ID")?;
        let patch = format!(r#"{{"spec":{{"providerID":"{id}"}}}}"#);
        cluster.kubectl(&["patch", "node", node, "--patch", &patch])?;
    }
    Ok(())
}

/// A folder with what the commands of the page read: our chart and its values, upstream's manifests
/// with an overlay, and upstream's chart. The only thing added is where AWS is.
fn operators_folder(upstream: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let folder = folder.join("operator");
    copy_folder(&upstream.join("charts").join(UPSTREAM), &folder.join(UPSTREAM))?;
    let examples = folder.join("examples/existing-cluster");
    copy_folder(&upstream.join("examples/existing-cluster"), &examples)?;
    let site = examples.join("overlays/site");
    std::fs::create_dir_all(&site)?;
    let environment = format!("[{{name: AWS_ENDPOINT_URL, value: \"http://{ADDRESS}:5000\"}}]");
    let patch = format!(
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: {UPSTREAM}, namespace: {NAMESPACE}}}\n\
         spec: {{template: {{spec: {{containers: [{{name: {UPSTREAM}, env: {environment}}}]}}}}}}\n"
    );
    std::fs::write(site.join("endpoint.yaml"), patch)?;
    let overlay = "resources: [../../base]\npatches: [{path: endpoint.yaml}]\n";
    std::fs::write(site.join("kustomization.yaml"), overlay)?;
    // As in the manifests. By the chart's default the pods are in their own network, where the
    // metadata service does not know who asks, and want routes, and end without a cluster CIDR.
    let arguments = "[--v=2, --cloud-provider=aws, --configure-cloud-routes=false]";
    let values = format!("env: {environment}\nhostNetworking: true\nargs: {arguments}\n");
    std::fs::write(folder.join("upstream.yaml"), values)?;
    let values = Page::read()?.values()?;
    std::fs::write(folder.join("values.yaml"), format!("{values}extraEnv: {environment}\n"))?;
    std::os::unix::fs::symlink(root().join("charts"), folder.join("charts"))?;
    Ok(folder)
}

/// The section of the page.
struct Page(String);

impl Page {
    fn read() -> anyhow::Result<Self> {
        let page = std::fs::read_to_string(root().join("docs/migration.md"))?;
        let (_, section) = page.split_once("\n#### On AWS\n").context("no section")?;
        let (section, _) = section.split_once("\n### ").context("no end")?;
        Ok(Self(section.to_owned()))
    }

    /// The commands below a paragraph that begins like this: the blocks until the next paragraph.
    fn commands(&self, paragraph: &str) -> anyhow::Result<Vec<String>> {
        let (_, below) = self
            .0
            .split_once(&format!("\n{paragraph}"))
            .with_context(|| format!("no paragraph {paragraph:?}"))?;
        let blocks = below.split("\n\n").skip(1);
        let blocks = blocks.take_while(|block| block.starts_with("    "));
        let here = |block: &str| {
            let chart = format!("{UPSTREAM}/{UPSTREAM} ");
            block
                .replace(REGISTRY, "localhost/ccm")
                .replace(&chart, &format!("./{UPSTREAM} "))
        };
        let blocks: Vec<_> = blocks.map(here).collect();
        anyhow::ensure!(!blocks.is_empty(), "no commands below {paragraph:?}");
        Ok(blocks)
    }

    /// The values of the page.
    fn values(&self) -> anyhow::Result<String> {
        let block = self.0.split("```yaml\n").nth(1);
        let block = block.and_then(|rest| rest.split("```").next());
        Ok(block
            .context("no values")?
            .replace(REGISTRY, "localhost/ccm"))
    }
}

/// Host names of the Services that are there from the beginning to the end.
type Kept = [(String, String)];

struct Migration<'a> {
    cluster: &'a Cluster,
    page: Page,
    folder: PathBuf,
    ours: String,
    /// In manifests, and in the chart.
    theirs: [String; 2],
}

impl Migration<'_> {
    /// Runs commands where an operator would.
    fn run(&self, commands: &str) -> anyhow::Result<()> {
        let script = format!("cd {}\n{commands}", self.folder.display());
        self.cluster
            .bash(&script)
            .with_context(|| format!("run {commands}"))
    }

    /// Runs the only commands below a paragraph of the page.
    fn follow(&self, paragraph: &str) -> anyhow::Result<()> {
        let blocks = self.page.commands(paragraph)?;
        let [block] = &*blocks else {
            anyhow::bail!("{} blocks below {paragraph:?}", blocks.len());
        };
        self.run(block)
    }

    /// Upstream's manifests; then the image is ours, and theirs again.
    fn by_image(&self) -> anyhow::Result<Vec<(String, String)>> {
        self.run("kubectl apply -k examples/existing-cluster/overlays/site")?;
        wait_for_nodes(self.cluster).context("with upstream's manifests")?;
        let kept = KINDS.map(|(kind, annotations, ending)| {
            Ok((kind.to_owned(), self.create(kind, annotations, ending)?))
        });
        let kept = kept.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let blocks = self
            .page
            .commands("The image alone, on top of the manifests")?;
        let [to_ours, back] = &*blocks else {
            anyhow::bail!("{} blocks", blocks.len());
        };
        self.run(to_ours)?;
        self.serves("image", &self.ours, &kept)?;
        self.run(back)?;
        self.serves("undone", &self.theirs[0], &kept)?;
        Ok(kept)
    }

    /// The chart's ServiceAccount and RoleBinding have the names of upstream's, which helm takes over
    /// if told so.
    fn chart_after_manifests(&self, kept: &Kept) -> anyhow::Result<()> {
        let values = self.folder.join("values.yaml").display().to_string();
        let refused = helm(self.cluster, "install", &["--values", &values]);
        let refused = format!("{:#}", refused.err().context("helm takes what is not its own")?);
        let account = "ServiceAccount \"cloud-controller-manager\"";
        anyhow::ensure!(refused.contains(account), "helm says something else: {refused}");
        self.follow("From the manifests to our chart")?;
        self.serves("adopted", &self.ours, kept)?;
        self.follow("And back to them")?;
        self.serves("manifests", &self.theirs[0], kept)?;
        self.run("kubectl delete --wait -k examples/existing-cluster/overlays/site")
    }

    /// Upstream's chart as its README installs it; then the image is ours in it, and then the chart.
    fn chart_after_chart(&self, kept: &Kept) -> anyhow::Result<()> {
        self.run(&format!(
            "helm upgrade --install {UPSTREAM} ./{UPSTREAM} --values upstream.yaml"
        ))?;
        self.serves("chart", &self.theirs[1], kept)?;
        self.follow("The image alone, in upstream's chart")?;
        self.serves("set", &self.ours, kept)?;
        self.follow("From upstream's chart to ours")?;
        self.serves("after", &self.ours, kept)?;
        helm(self.cluster, "uninstall", &["--wait"]).map(drop)
    }

    /// Our chart in upstream's release, and back.
    fn chart_in_their_release(&self, kept: &Kept) -> anyhow::Result<()> {
        self.run(&format!(
            "helm install {UPSTREAM} ./{UPSTREAM} --values upstream.yaml --namespace {NAMESPACE}"
        ))?;
        self.serves("again", &self.theirs[1], kept)?;
        self.follow("In the same release")?;
        self.serves("same", &self.ours, kept)?;
        self.follow("And back, to the last revision")?;
        self.serves("back", &self.theirs[1], kept)
    }

    /// Creates a Service, and returns the host name of its load balancer, which is of the right kind.
    fn create(&self, service: &str, annotations: &str, ending: &str) -> anyhow::Result<String> {
        let manifest = release::service(service, "web", "Cluster");
        let metadata = format!("metadata: {{name: {service}");
        anyhow::ensure!(manifest.contains(&metadata), "no {metadata} in {manifest}");
        let with_type = format!("{metadata}, {annotations}");
        self.cluster
            .apply(&manifest.replace(&metadata, &with_type))?;
        let name = self.wait_for_name(service)?;
        anyhow::ensure!(name.ends_with(ending), "{service} is at {name}, another kind");
        Ok(name)
    }

    /// Waits for the host name of a Service's load balancer, as its page does.
    fn wait_for_name(&self, service: &str) -> anyhow::Result<String> {
        let wait = kubelet_commands::only("docs/start/aws.md", "kubectl wait ")?;
        self.run(&wait.replace("service/web", &format!("service/{service}")))?;
        let service = self.cluster.get(&["service", service])?;
        let name = &service["status"]["loadBalancer"]["ingress"][0]["hostname"];
        Ok(name.as_str().context("no host name")?.to_owned())
    }

    /// All pods run this image, and whoever manages now serves new Services, deletes them again, and
    /// leaves the old ones as they are.
    fn serves(&self, step: &str, image: &str, kept: &Kept) -> anyhow::Result<()> {
        self.serve(step, image, kept)
            .with_context(|| format!("at the step {step:?}, with {image}"))
    }

    fn serve(&self, step: &str, image: &str, kept: &Kept) -> anyhow::Result<()> {
        let only = BTreeSet::from([image.to_owned()]);
        wait_for(TAKEN_OVER, &format!("pods of {image} alone"), || {
            let running = self.images_of_pods()?;
            anyhow::ensure!(running == only, "pods run {running:?}");
            Ok(Some(()))
        })?;
        for (kind, annotations, ending) in KINDS {
            let service = format!("{step}-{kind}");
            self.create(&service, annotations, ending)?;
            self.cluster
                .kubectl(&["delete", "service", &service, "--timeout", "60s"])?;
        }
        for (service, name) in kept {
            let now = self.wait_for_name(service)?;
            anyhow::ensure!(now == *name, "{service} was at {name} and is at {now}");
        }
        Ok(())
    }

    /// Images of the managers' pods.
    fn images_of_pods(&self) -> anyhow::Result<BTreeSet<String>> {
        let pods = self.cluster.get(&["pods", "--namespace", NAMESPACE])?;
        let pods = pods["items"].as_array().context("no list")?;
        let images = pods.iter().map(|pod| {
            let image = pod["spec"]["containers"][0]["image"].as_str();
            image.unwrap_or_default().to_owned()
        });
        Ok(images.collect())
    }
}
