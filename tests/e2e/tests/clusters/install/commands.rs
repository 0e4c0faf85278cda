//! The commands of the guides that need a real API server: its kinds, its authorization, and an election.

use std::time::Duration;

use anyhow::Context as _;
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::server::ServerKind;
use tokio::process::Command;
use tokio::time::Instant;

use crate::case;
use crate::guides::{self, Trial};
use crate::helm::root;
use crate::run::{Case, Need};

/// With kube-controller-manager, which sums up the ClusterRole.
const REAL: &[ServerKind] = &[ServerKind::RealWithControllers];
/// The Lease that the guides ask for.
const FLAGS: [&str; 2] = [
    "--leader-elect-resource-name=cloud-controller-manager",
    "--node-status-update-frequency=10m",
];
/// Takes away what the manager has to take part in.
const CLEAN_UP: &str = "kubectl delete --ignore-not-found service/web deployment/web";
/// Takes away the rest.
const CLEAN_UP_LATER: &str =
    "kubectl -n kube-system delete --ignore-not-found lease cloud-controller-manager
    kubectl delete --ignore-not-found -f rbac/ -f rbac/service-account-credentials/";

pub(crate) fn cases() -> Vec<Case> {
    vec![Case {
        needs: &[Need::Kubectl],
        ..case!("guides", REAL, commands_of_the_guides_work_on_a_cluster)
    }]
}

async fn commands_of_the_guides_work_on_a_cluster(scenario: &Scenario) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    guides::prepare_folder(&root(), folder.path())?;
    let kubeconfig = folder.path().join("kubeconfig");
    scenario.server.write_admin_kubeconfig(&kubeconfig).await?;
    let shell = async |script: &str| {
        let output = Command::new("sh")
            .args(["-ec", script])
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .env("KUBECONFIG", &kubeconfig)
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(SOON * 3, output)
            .await
            .context("it hangs")??;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        anyhow::ensure!(output.status.success(), "{script}\n{said}");
        Ok(said)
    };
    let names = scenario.names(2);
    let ccm = scenario.start("a", &FLAGS).await?;
    scenario.register(&names).await?;
    scenario.initialized(&names, SOON).await?;
    scenario.may_go([&names[1]]);
    let done = type_them(&shell, &names[1]).await;
    // Whatever became of it, the next case has the server as it was.
    let cleaned = shell(CLEAN_UP).await;
    ccm.terminate().await?;
    let cleaned_later = shell(CLEAN_UP_LATER).await;
    done?;
    cleaned.and(cleaned_later).map(drop)
}

/// Runs them in the order of the pages. The node is one that may be deleted.
async fn type_them(
    shell: &impl AsyncFn(&str) -> anyhow::Result<String>,
    node: &str,
) -> anyhow::Result<()> {
    let commands = guides::tried(&root(), Trial::Cluster)?;
    anyhow::ensure!(commands.len() >= 10, "{commands:?}");
    // First, all that make something; then the questions, once the role is summed up and bound.
    let (questions, others): (Vec<_>, Vec<_>) = commands.iter().partition(|command| {
        ["as=", "for verb", "kubectl auth"]
            .iter()
            .any(|start| command.text.starts_with(start))
    });
    for command in others {
        shell(&command.text.replace("NAME…", node))
            .await
            .with_context(|| command.place.clone())?;
    }
    shell("kubectl wait service/web --for=jsonpath='{.status.loadBalancer.ingress[0].ip}' --timeout=60s").await?;
    shell("kubectl wait clusterrole/cloud-controller-manager --for=jsonpath='{.rules[0].verbs[0]}' --timeout=60s").await?;
    // The first of them names the user for the others.
    let script: Vec<_> = questions
        .iter()
        .map(|command| command.text.as_str())
        .collect();
    // The API server learns of bindings a moment after it has stored them.
    let deadline = Instant::now() + SOON;
    let answers = loop {
        match shell(&script.join("\n")).await {
            Ok(answers) => break answers,
            Err(error) if Instant::now() > deadline => {
                return Err(error.context("the role is not enough"));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    };
    let allowed = answers.matches("yes").count();
    anyhow::ensure!(allowed >= 15, "only {allowed} of the questions were answered: {answers}");
    Ok(())
}
