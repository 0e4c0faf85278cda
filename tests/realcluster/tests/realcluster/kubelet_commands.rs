//! The commands of the guides that need a kubelet, as their pages have them.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use ccm_realcluster::{Cluster, root};

use crate::guides::{self, Command, Trial};
use crate::release::{self, NAME, NAMESPACE};

/// Longest time of a script, on a machine that is busy with other suites.
const LIMIT: Duration = Duration::from_secs(240);

/// What part of a command tells which it is, and what it shows. A command without a row fails.
const SHOWN: [(&str, &str); 14] = [
    (" logs --selector ", "[pod/cloud-controller-manager-"),
    (" logs POD", "became leader"),
    ("helm install shadow ", "STATUS: deployed"),
    (" logs --follow job/shadow-", "no differences: 2 nodes, 2 routes, 2 services compared"),
    (" exec deployment/", "errors: 0"),
    (" wait service/web ", "service/web condition met"),
    (" describe service ", "EnsuredLoadBalancer"),
    // What they find, the next commands show.
    ("leader=", ""),
    ("pod=", ""),
    (" port-forward ", ""),
    ("/explain/services/", "service: shop/web"),
    ("/explain/nodes/", "node: node-1"),
    ("/explain/routes", "managedRoutes: 2"),
    (" explain service ", "service: shop/web"),
];

/// Installs the chart as docs/install.md does, with these arguments behind: the last value of a name counts.
pub(crate) fn install(cluster: &Cluster, more: &str) -> anyhow::Result<()> {
    let page = "docs/install.md";
    let command = only(page, "helm install ")?;
    run(cluster, &root(), &format!("{command} --wait --timeout 120s {more}"))
        .with_context(|| format!("what {page} installs"))
        .map(drop)
}

/// The only command of a page that begins like this.
pub(crate) fn only(page: &str, beginning: &str) -> anyhow::Result<String> {
    let mut commands = guides::all(&root())?;
    let place = format!("{page}:");
    commands
        .retain(|command| command.place.starts_with(&place) && command.text.starts_with(beginning));
    anyhow::ensure!(commands.len() == 1, "{page} has not one {beginning:?}: {commands:?}");
    Ok(commands.remove(0).text)
}

/// Runs all that need a kubelet in the order of their pages, on an installed release with the mock,
/// routes, and `--service-conditions`.
pub(crate) fn work(cluster: &Cluster) -> anyhow::Result<()> {
    let commands = guides::tried(&root(), Trial::Kubelet)?;
    let folder = operators_folder(cluster)?;
    // First, what the pages are about.
    cluster.kubectl(&["create", "namespace", "shop"])?;
    let service =
        ["create", "service", "loadbalancer", "web", "--tcp=80:8080", "--namespace", "shop"];
    cluster.kubectl(&service)?;

    // Next, one shell, since a command uses what an earlier one has found.
    let pod = leaders_pod(cluster)?;
    let mut script = vec!["exec 2>&1".to_owned(), "trap 'jobs -p | xargs -r kill' EXIT".to_owned()];
    for command in &commands {
        script.push(format!("printf '\\n+++ {}\\n'", command.place));
        script.extend(steps(command, &pod));
    }
    let printed = run(cluster, &folder, &script.join("\n"))?;

    // Last, what each has shown.
    let parts: Vec<_> = printed.split("\n+++ ").skip(1).collect();
    anyhow::ensure!(parts.len() == commands.len(), "not all have run: {printed}");
    for (command, part) in commands.iter().zip(parts) {
        let (_, shown) = SHOWN
            .into_iter()
            .find(|(of, _)| command.text.contains(of))
            .with_context(|| format!("nothing says what this shows: {command:?}"))?;
        anyhow::ensure!(part.contains(shown), "{command:?} does not show {shown:?}: {part}");
        anyhow::ensure!(!part.contains("explaining alone"), "no leader answered: {part}");
    }
    Ok(())
}

/// A folder with what a reader has: the chart and its values, a kubeconfig, and the program.
fn operators_folder(cluster: &Cluster) -> anyhow::Result<PathBuf> {
    let folder = cluster.folder().join("operator");
    std::fs::create_dir_all(folder.join("bin"))?;
    std::fs::create_dir_all(cluster.folder().join(".kube"))?;
    guides::prepare_folder(&root(), &folder)?;
    // Shadow mode wants the values of the active manager.
    let values = ["get", "values", NAME, "--namespace", NAMESPACE, "--output", "yaml"];
    std::fs::write(folder.join("values.yaml"), cluster.helm(&values)?)?;
    symlink(release::mock(), folder.join("bin/ccm-openstack"))?;
    symlink(cluster.folder().join("pki/admin.conf"), cluster.folder().join(".kube/config"))?;
    Ok(folder)
}

/// Name of the pod that leads.
fn leaders_pod(cluster: &Cluster) -> anyhow::Result<String> {
    let node = release::leader(cluster)?.context("nobody leads")?;
    let pods = release::pods(cluster)?;
    let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == *node);
    let pod = pod.with_context(|| format!("no pod on {node}"))?;
    Ok(pod["metadata"]["name"]
        .as_str()
        .context("no name")?
        .to_owned())
}

/// A command as it runs here, and what a reader waits for behind it.
fn steps(command: &Command, pod: &str) -> Vec<String> {
    let text = command
        .text
        .replace("worker7", "node-1")
        .replace("logs POD", &format!("logs {pod}"))
        .replace("--cloud-provider=openstack", "--cloud-provider=mock");
    let waits = if text.starts_with("helm install shadow") {
        "kubectl -n kube-system wait --for=condition=Complete --timeout=90s job --all"
    } else if text.contains(" port-forward ") {
        "curl -ks -o answer --retry 30 --retry-delay 1 --retry-connrefused https://127.0.0.1:10258/livez"
    } else {
        ":"
    };
    vec![text, waits.to_owned()]
}

/// Runs a script beside the control plane, and returns what it printed.
fn run(cluster: &Cluster, folder: &Path, script: &str) -> anyhow::Result<String> {
    let script = format!("cd {0}\nPATH={0}/bin:$PATH\n{script}", folder.display());
    let mut bash = cluster.hub_within(LIMIT, "bash");
    let output = bash.args(["-euo", "pipefail", "-c", &script]).output()?;
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    anyhow::ensure!(output.status.success(), "{script}\n{printed}");
    Ok(printed)
}
