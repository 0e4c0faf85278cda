//! The life of a release, from the installation to the end.

use std::time::Duration;

use anyhow::Context as _;
use ccm_realcluster::{Cluster, Programs, wait_for};
use serde_json::Value;

use crate::release::{
    self, MOCK, NAME, NAMESPACE, SOON, curl, helm, holder, is_ready, leader, wait_for_address,
    wait_for_deployment, wait_for_nodes,
};

pub(crate) fn a_release_lives_through_updates_crashes_and_restarts(
    programs: Programs,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let program = Programs::release("ccm-mock").map_err(anyhow::Error::msg)?;
    let image = programs.image("mock", &program, folder.path())?;
    let cluster = Cluster::start(programs, 2, &[image])?;
    crate::on(&cluster, |cluster| {
        release::start_mock_cloud(cluster)?;
        is_installed(cluster).context("after the installation")?;
        answers_those_who_may_ask(cluster).context("logs and metrics")?;
        is_updated(cluster).context("an update")?;
        survives_a_kill(cluster).context("kill -9")?;
        survives_a_restart_of_its_node(cluster).context("a restart of the leader's node")?;
        is_uninstalled(cluster).context("the end of the release")
    })
}

fn is_installed(cluster: &Cluster) -> anyhow::Result<()> {
    let values = "metrics.reader.create=true,metrics.reader.subjects[0].kind=ServiceAccount,\
         metrics.reader.subjects[0].name=default,metrics.reader.subjects[0].namespace=kube-system";
    helm(cluster, "install", &["--set", MOCK, "--set", values])?;
    wait_for(SOON, "leader", || leader(cluster))?;
    wait_for_nodes(cluster)?;
    cluster.apply(&release::web("web", 2, "Cluster"))?;
    wait_for_deployment(cluster, "web")?;
    let address = wait_for_address(cluster, "web")?;
    curl(cluster, 1, &address)?;
    helm(cluster, "test", &[])?;
    // The list that an operator looks at has nothing of ours: no probe failed.
    let warnings = warnings(cluster)?;
    anyhow::ensure!(warnings.is_empty(), "warnings: {warnings:#?}");
    Ok(())
}

/// Reasons and messages of warnings about the release's pods.
fn warnings(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let events =
        cluster.get(&["events", "--namespace", NAMESPACE, "--field-selector", "type=Warning"])?;
    let events = events["items"].as_array().context("no list")?;
    let ours = events.iter().filter(|event| {
        event["involvedObject"]["name"]
            .as_str()
            .is_some_and(|name| name.starts_with(NAME))
    });
    Ok(ours
        .map(|event| format!("{} {}", event["reason"], event["message"]))
        .collect())
}

fn answers_those_who_may_ask(cluster: &Cluster) -> anyhow::Result<()> {
    // First, what the kubelet shows of the process.
    let log = log_of_all(cluster)?;
    anyhow::ensure!(log.contains("became leader"), "not in the logs: {log}");

    // Next, metrics: only with a token.
    let token = cluster.kubectl(&["create", "token", "default", "--namespace", NAMESPACE])?;
    let ask = |header: &str| -> anyhow::Result<String> {
        let mut curl = cluster.hub("curl");
        curl.args(["--silent", "--insecure", "--max-time", "5", "--header", header]);
        curl.args(["--write-out", "%{http_code}", "https://10.250.0.11:10258/metrics"]);
        Ok(String::from_utf8(curl.output()?.stdout)?)
    };
    let metrics = ask(&format!("Authorization: Bearer {}", token.trim()))?;
    anyhow::ensure!(metrics.ends_with("200"), "the answer to a reader: {metrics}");
    anyhow::ensure!(metrics.contains("leader_election_master_status"), "no metrics: {metrics}");
    let refused = ask("X-Nobody: yes")?;
    anyhow::ensure!(["401", "403"].iter().any(|code| refused.ends_with(code)), "{refused}");
    Ok(())
}

fn log_of_all(cluster: &Cluster) -> anyhow::Result<String> {
    let deployment = format!("deployment/{NAME}");
    cluster.kubectl(&["logs", &deployment, "--namespace", NAMESPACE, "--all-pods", "--tail", "-1"])
}

/// New pods replace the old ones, one after the other, and one of them leads.
fn is_updated(cluster: &Cluster) -> anyhow::Result<()> {
    let before = names(&release::pods(cluster)?);
    let address = wait_for_address(cluster, "web")?;
    helm(cluster, "upgrade", &["--reuse-values", "--set", "logging.verbosity=4"])?;
    let pods = wait_for(SOON, "two new pods", || {
        let pods = release::pods(cluster)?;
        let is_new = pods.len() == 2 && pods.iter().all(is_ready);
        Ok(is_new.then_some(pods))
    })?;
    let after = names(&pods);
    anyhow::ensure!(!after.iter().any(|name| before.contains(name)), "{before:?}, then {after:?}");
    works(cluster, "updated")?;
    anyhow::ensure!(
        wait_for_address(cluster, "web")? == address,
        "an update must not change the address of a Service"
    );
    Ok(())
}

fn names(pods: &[Value]) -> Vec<String> {
    let names = pods.iter().map(|pod| {
        pod["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    });
    names.collect()
}

/// A new Service gets an address from whoever leads.
fn works(cluster: &Cluster, service: &str) -> anyhow::Result<()> {
    cluster.apply(&release::service(service, "web", "Cluster"))?;
    wait_for_address(cluster, service).map(drop)
}

/// The kubelet starts the container again, and somebody leads meanwhile.
fn survives_a_kill(cluster: &Cluster) -> anyhow::Result<()> {
    let node = wait_for(SOON, "leader", || leader(cluster))?;
    let pods = release::pods(cluster)?;
    let pod = pods
        .iter()
        .find(|pod| pod["spec"]["nodeName"] == node.as_str());
    let pod = pod.with_context(|| format!("no pod on {node}"))?;
    let status = &pod["status"]["containerStatuses"][0];
    let container = status["containerID"].as_str().context("no container")?;
    let container = container.trim_start_matches("containerd://");
    let killed = cluster
        .on(number(&node)?, "ctr")?
        .args(["--namespace", "k8s.io", "task", "kill", "--signal", "SIGKILL", container])
        .output()?;
    anyhow::ensure!(killed.status.success(), "ctr: {}", String::from_utf8_lossy(&killed.stderr));
    works(cluster, "killed")?;
    let name = pod["metadata"]["name"].as_str().context("no name")?;
    wait_for(SOON, "container that was started again", || {
        let pod = cluster.get(&["pod", name, "--namespace", NAMESPACE])?;
        let was_restarted = pod["status"]["containerStatuses"][0]["restartCount"] == 1;
        Ok((was_restarted && is_ready(&pod)).then_some(()))
    })
}

fn number(node: &str) -> anyhow::Result<usize> {
    let number = node
        .strip_prefix("node-")
        .and_then(|number| number.parse().ok());
    number.with_context(|| format!("{node} is no node"))
}

/// While the leader's node is off, the other replica serves. The Node stays, since the cloud still
/// has the instance, and comes back without a taint.
fn survives_a_restart_of_its_node(cluster: &Cluster) -> anyhow::Result<()> {
    let node = wait_for(SOON, "leader", || leader(cluster))?;
    let uid = cluster.get(&["node", &node])?["metadata"]["uid"].clone();
    cluster.switch_off(number(&node)?)?;
    works(cluster, "outage")?;
    let other =
        wait_for(SOON, "other leader", || Ok(leader(cluster)?.filter(|leader| *leader != node)))?;
    wait_for(Duration::from_secs(90), "node that is not ready", || {
        let node = cluster.get(&["node", &node])?;
        Ok((!is_ready(&node)).then_some(()))
    })?;
    cluster.switch_on(number(&node)?)?;
    wait_for(Duration::from_secs(90), "node that is back", || {
        let found = cluster.get(&["node", &node])?;
        let is_same = found["metadata"]["uid"] == uid && !release::is_uninitialized(&found);
        anyhow::ensure!(is_same, "another Node: {found:#}");
        Ok(is_ready(&found).then_some(()))
    })?;
    wait_for(Duration::from_secs(90), "ready pods on both nodes", || {
        let pods = release::pods(cluster)?;
        Ok((pods.len() == 2 && pods.iter().all(is_ready)).then_some(()))
    })?;
    anyhow::ensure!(
        leader(cluster)?.as_ref() == Some(&other),
        "a return must not change the leader"
    );
    Ok(())
}

/// What docs/install.md says: the Lease stays, released if the pods ended first, and so do the pod
/// of the last test and Services with their finalizer.
fn is_uninstalled(cluster: &Cluster) -> anyhow::Result<()> {
    let deployment = format!("deployment/{NAME}");
    let scale = ["scale", &deployment, "--namespace", NAMESPACE, "--replicas", "0"];
    cluster.kubectl(&scale)?;
    wait_for(SOON, "end of all pods", || {
        let selector = format!("app.kubernetes.io/instance={NAME},app.kubernetes.io/name={NAME}");
        let pods = cluster.get(&["pods", "--namespace", NAMESPACE, "--selector", &selector])?;
        Ok(pods["items"]
            .as_array()
            .is_some_and(Vec::is_empty)
            .then_some(()))
    })?;
    let lease = cluster.get(&["lease", NAME, "--namespace", NAMESPACE])?;
    anyhow::ensure!(holder(&lease).is_none(), "the Lease was not released: {lease:#}");
    helm(cluster, "uninstall", &["--wait"])?;
    cluster
        .get(&["lease", NAME, "--namespace", NAMESPACE])
        .context("the Lease belongs to no release")?;
    let check = format!("pod/{NAME}-check");
    let found = left(cluster)?;
    anyhow::ensure!(found.trim() == check, "left behind beside the test's pod: {found}");
    cluster.kubectl(&["delete", &check, "--namespace", NAMESPACE])?;

    // A Service that is deleted without a manager waits for one.
    cluster.kubectl(&["delete", "service", "killed", "--wait=false"])?;
    let service = cluster.get(&["service", "killed"])?;
    anyhow::ensure!(!service["metadata"]["deletionTimestamp"].is_null(), "{service:#}");
    helm(cluster, "install", &["--set", MOCK])?;
    wait_for(SOON, "end of a deleted Service", || {
        Ok(cluster.get(&["service", "killed"]).is_err().then_some(()))
    })
}

/// Names of objects of the release.
fn left(cluster: &Cluster) -> anyhow::Result<String> {
    let kinds = "deployments,daemonsets,pods,services,serviceaccounts,secrets,configmaps,roles,rolebindings,\
         clusterroles,clusterrolebindings,poddisruptionbudgets,networkpolicies";
    let selector = format!("app.kubernetes.io/instance={NAME}");
    cluster.kubectl(&[
        "get",
        kinds,
        "--all-namespaces",
        "--selector",
        &selector,
        "--output",
        "name",
    ])
}
