//! The commands of the pages for people who start, and of those about how something is done: what each is tried with.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A command as a page shows it, with its continued lines.
#[derive(Debug)]
pub(crate) struct Command {
    /// Page and line of its block.
    pub(crate) place: String,
    /// Without a comment behind it.
    pub(crate) text: String,
}

/// How a command is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trial {
    /// helm renders what it would install.
    Helm,
    /// A shell runs it on the server of the mock's demo.
    Demo,
    /// A shell runs it on a real API server, beside the manager.
    Cluster,
    /// A shell runs it on a real cluster, where kubelets run the installed chart.
    Kubelet,
    /// The test of this name does the same.
    Test(&'static str),
    /// Nothing runs it, for this reason.
    Nobody(&'static str),
}

use Trial::{Cluster, Demo, Helm, Kubelet, Nobody, Test};

const AWS: &str = "it needs an AWS account";
const FIPS: &str = "`cargo xtask fips` compiles the same features, in debug builds";
const LOCAL_CLOUD: Trial = Test("the_cloud_serves_until_it_is_told_to_end");
const MIGRATION: Trial = Test("from_upstreams_manifests_and_chart_and_back");
const AWS_MIGRATION: Trial = Test("from_upstreams_aws_manifests_and_chart_and_back");
const AUTHORS: Trial = Test("a_new_author_gets_from_the_template_to_the_passing_kit");

/// How a command begins, and how it is tried. The first that fits decides.
pub(crate) const TRIALS: [(&str, Trial); 76] = [
    ("cargo run -p ccm-mock -- demo", Test("once_shows_everything_and_ends_well")),
    (
        "cargo run -p ccm-openstack -- demo",
        Test("it_stays_for_curl_and_the_openstack_client_until_it_is_told_to_end"),
    ),
    ("cargo xtask test", Nobody("it runs this test")),
    ("cargo build --locked --release --no-default-features --features fips", Nobody(FIPS)),
    ("cargo build --locked --release --no-default-features --features sdk,fips", Nobody(FIPS)),
    (
        "cargo build --locked --release",
        Nobody("the nightly run builds these programs before its tests"),
    ),
    ("cargo xtask image", Test("the_same_parts_give_the_same_bytes")),
    ("docker buildx build", Nobody("it needs a container engine")),
    ("skopeo copy", Nobody("it needs a registry")),
    ("ctr --namespace k8s.io image import", Test("an_installed_chart_serves_a_cluster")),
    ("helm install shadow", Kubelet),
    ("helm install", Helm),
    ("helm test", Test("an_installed_chart_serves_a_cluster")),
    // Reading, and what the demo has, too.
    ("kubectl --kubeconfig /tmp/ccm-mock-demo-XXXXXX/kubeconfig get", Demo),
    ("kubectl get", Demo),
    ("kubectl --namespace kube-system create secret generic cloud-config", Demo),
    ("kubectl wait service/web --for=jsonpath='{.status.loadBalancer.ingress[0].ip}'", Demo),
    (
        "kubectl wait service/web --for=jsonpath='{.status.loadBalancer.ingress[0].hostname}'",
        AWS_MIGRATION,
    ),
    ("sed 's/CLUSTER_ID/example/g' providers/aws/docs/iam/all.json", Demo),
    // Kinds that the embedded server does not have, accounts, and an election.
    ("kubectl create deployment", Cluster),
    ("kubectl expose deployment", Cluster),
    ("kubectl apply -f rbac/", Cluster),
    ("kubectl -n kube-system get lease", Cluster),
    ("as=--as=system:serviceaccount:kube-system:cloud-controller-manager", Cluster),
    ("for verb in ", Cluster),
    ("kubectl auth can-i", Cluster),
    ("kubectl delete node", Cluster),
    (
        "curl http://$(kubectl get service web -o jsonpath='{.status.loadBalancer.ingress[0].ip}')",
        Test("it_stays_for_curl_and_the_openstack_client_until_it_is_told_to_end"),
    ),
    ("curl http://$(kubectl get service web", Nobody(AWS)),
    ("aws iam put-role-policy", Nobody(AWS)),
    ("ccm-aws orphans", Test("what_was_leaked_is_found_and_deleted")),
    // A container's log, a process in it, its port, and what a leader says.
    ("kubectl -n kube-system logs", Kubelet),
    ("kubectl --namespace kube-system logs", Kubelet),
    ("kubectl --namespace kube-system exec", Kubelet),
    ("kubectl -n shop wait service/web", Kubelet),
    ("leader=$(kubectl -n kube-system get lease", Kubelet),
    ("pod=$(kubectl -n kube-system get pods", Kubelet),
    ("kubectl -n kube-system port-forward", Kubelet),
    ("kubectl -n shop describe service", Kubelet),
    ("kubectl --server=https://127.0.0.1:10258", Kubelet),
    ("ccm-openstack explain", Kubelet),
    (
        "ccm-mock --shadow-once",
        Test("a_shadow_beside_a_go_manager_shows_what_differs_and_writes_nothing"),
    ),
    ("ccm-openstack --cloud-provider=openstack", Nobody("its last word stands for more")),
    ("cargo run -p openstack-local -- serve", LOCAL_CLOUD),
    ("openstack-local serve", LOCAL_CLOUD),
    (
        "eval \"$(cargo run -p openstack-local -- credentials",
        Test("credentials_are_for_the_owner_only"),
    ),
    (
        "openstack server create --flavor m1.small --image cirros --network nodes --property openstack-local:node=true",
        Test("a_server_is_a_node_for_as_long_as_it_is_on"),
    ),
    ("openstack network create nodes", Test("networks_and_routers")),
    ("openstack subnet create --network nodes", Test("networks_and_routers")),
    ("openstack server create --image cirros", Test("servers")),
    ("openstack loadbalancer create", Test("load_balancers")),
    ("openstack loadbalancer listener create", Test("load_balancers")),
    (
        "openstack secret",
        Nobody("the plug-in is not installed; gophercloud stores a certificate in a test"),
    ),
    ("export FRAMEWORK=", AUTHORS),
    ("cp ", AUTHORS),
    ("sed -i.bak", AUTHORS),
    ("find . -name '*.bak' -delete", AUTHORS),
    ("cargo test", AUTHORS),
    ("ccm-meadow --cloud-provider=meadow", Nobody("Meadow is fictional")),
    ("self.api.mutate_and_poll(", Nobody("it is Rust")),
    // On real kubelets.
    ("kubectl -n kube-system set image daemonset/aws-", AWS_MIGRATION),
    ("kubectl -n kube-system rollout", AWS_MIGRATION),
    ("kubectl apply -k examples/existing-cluster", AWS_MIGRATION),
    ("kubectl -n kube-system delete daemonset aws-", AWS_MIGRATION),
    ("helm upgrade aws-", AWS_MIGRATION),
    ("helm uninstall aws-", AWS_MIGRATION),
    ("helm rollback aws-", AWS_MIGRATION),
    ("kubectl -n kube-system delete daemonset", MIGRATION),
    ("kubectl delete clusterrole", MIGRATION),
    ("kubectl apply -f cloud-controller-manager-roles.yaml", MIGRATION),
    ("helm uninstall", MIGRATION),
    ("helm upgrade", MIGRATION),
    ("helm history", MIGRATION),
    ("helm rollback", MIGRATION),
    ("kubectl -n kube-system get secret cloud-config", MIGRATION),
    ("kubectl -n kube-system create secret generic openstack-cloud-config", MIGRATION),
];

impl Command {
    /// How it is tried.
    pub(crate) fn trial(&self) -> anyhow::Result<Trial> {
        TRIALS
            .into_iter()
            .find(|(beginning, _)| self.text.starts_with(beginning))
            .map(|(_, trial)| trial)
            .with_context(|| {
                format!(
                    "{}: tests/e2e/tests/support/commands.rs does not say how this is tried: {}",
                    self.place, self.text
                )
            })
    }
}

/// The commands of all these pages, in their order.
pub(crate) fn all(root: &Path) -> anyhow::Result<Vec<Command>> {
    let mut commands = Vec::new();
    for page in pages(root)? {
        let text = fs::read_to_string(root.join(&page))
            .with_context(|| format!("read {}", page.display()))?;
        commands.extend(of_page(&page.display().to_string(), &text)?);
    }
    Ok(commands)
}

/// The commands that are tried like this, each once.
pub(crate) fn tried(root: &Path, how: Trial) -> anyhow::Result<Vec<Command>> {
    let mut commands: Vec<Command> = Vec::new();
    for command in all(root)? {
        let is_new = commands.iter().all(|other| other.text != command.text);
        if is_new && command.trial()? == how {
            commands.push(command);
        }
    }
    Ok(commands)
}

/// The README, the chart's, and the pages in the first two parts of the site.
fn pages(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let summary = fs::read_to_string(root.join("site/SUMMARY.md"))?;
    let (_, parts) = summary.split_once("\n# Start\n").context("no part Start")?;
    let (parts, _) = parts
        .split_once("\n# Reference\n")
        .context("no part Reference after it")?;
    let links = parts.split("](../").skip(1);
    let pages = links.filter_map(|rest| rest.split(')').next());
    Ok(["README.md", "charts/cloud-controller-manager/README.md"]
        .into_iter()
        .chain(pages)
        .map(PathBuf::from)
        .collect())
}

/// Commands are in indented blocks, and in those that are called `sh`.
///
/// # Errors
/// A block does not say what it is, or is called `text` and has a command.
pub(crate) fn of_page(page: &str, text: &str) -> anyhow::Result<Vec<Command>> {
    let mut commands = Vec::new();
    let mut block: Option<(String, String)> = None;
    let mut code = String::new();
    for (event, at) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let place = format!("{page}:{}", text[..at.start].matches('\n').count() + 1);
                let label = match kind {
                    CodeBlockKind::Indented => "sh".to_owned(),
                    CodeBlockKind::Fenced(label) => label.into_string(),
                };
                anyhow::ensure!(
                    !["", "bash", "console", "shell"].contains(&&*label),
                    "{place}: say what this block is: sh, text …"
                );
                block = Some((place, label));
                code.clear();
            }
            Event::Text(more) if block.is_some() => code.push_str(&more),
            Event::End(TagEnd::CodeBlock) => match block.take() {
                Some((place, label)) if label == "sh" => commands.extend(of_block(&place, &code)),
                Some((place, label)) if label == "text" => has_no_command(&place, &code)?,
                _ => {}
            },
            _ => {}
        }
    }
    Ok(commands)
}

/// Programs whose commands belong into blocks that are called `sh`; those of ours begin with `ccm-`.
const PROGRAMS: [&str; 8] = [
    "aws",
    "cargo",
    "cloud-controller-manager",
    "ctr",
    "curl",
    "helm",
    "kubectl",
    "openstack",
];

/// # Errors
/// A line of a block that nothing reads is a command, which nothing would try.
fn has_no_command(place: &str, code: &str) -> anyhow::Result<()> {
    for line in code.lines() {
        let command = line.trim_start().trim_start_matches("$ ");
        let program = command.split_whitespace().next().unwrap_or_default();
        anyhow::ensure!(
            !PROGRAMS.contains(&program) && !program.starts_with("ccm-"),
            "{place}: a command is in a block of text, call it sh: {line}"
        );
    }
    Ok(())
}

fn of_block(place: &str, code: &str) -> Vec<Command> {
    let joined = code.replace("\\\n", " ");
    let lines = joined.lines().map(|line| {
        let line = line.split_once(" #").map_or(line, |(command, _)| command);
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    });
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|text| Command { place: place.to_owned(), text })
        .collect()
}

/// A folder in which commands find what a reader has: the repository's folders, and files that the page tells to write.
pub(crate) fn prepare_folder(root: &Path, folder: &Path) -> anyhow::Result<()> {
    for name in ["charts", "providers", "rbac"] {
        std::os::unix::fs::symlink(root.join(name), folder.join(name))?;
    }
    fs::write(folder.join("cloud.conf"), "[Global]\n")?;
    fs::write(folder.join("values.yaml"), "provider: mock\n")?;
    Ok(())
}
