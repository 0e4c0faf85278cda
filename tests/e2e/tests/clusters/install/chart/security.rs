//! What Pod Security says about the chart's pods.

use anyhow::Context as _;
use ccm_e2e::scenario::{SOON, Scenario};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::helm::{Helm, only};

/// Namespaces that let only pods of a level in: those that keep to it are accepted, and the node's
/// network is not.
pub(super) async fn pods_keep_to_their_level(
    scenario: &Scenario,
    helm: &Helm,
) -> anyhow::Result<()> {
    let name = format!("{}restricted", scenario.prefix());
    let namespaces: Api<Namespace> = Api::all(scenario.server.client());
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    let namespace = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))?;
    namespaces
        .create(&PostParams::default(), &namespace)
        .await?;
    account_is_there(scenario, &name).await?;
    let create = async |host_network: bool| {
        let set = format!("provider=mock,hostNetwork={host_network},cloudConfig.values.region=r");
        let objects = helm.objects(&["--set", &set])?;
        let pods: Api<Pod> = Api::namespaced(scenario.server.client(), &name);
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        anyhow::Ok(
            pods.create(&dry, &pod(&only(&objects, "Deployment")?["spec"]["template"])?)
                .await,
        )
    };
    create(false)
        .await?
        .context("the level restricted refuses the pod")?;
    match create(true).await? {
        Err(kube::Error::Api(status))
            if status.code == 403 && status.message.contains("hostNetwork") => {}
        other => anyhow::bail!("a pod in the node's network: {other:?}"),
    }
    namespaces.delete(&name, &DeleteParams::default()).await?;
    Ok(())
}

/// A pod of this template, with an account that is there.
fn pod(template: &Value) -> anyhow::Result<Pod> {
    let mut pod = template.clone();
    pod["metadata"]["name"] = "x".into();
    pod["spec"]["serviceAccountName"] = "default".into();
    // Its place is another namespace.
    pod["spec"]["priorityClassName"] = Value::Null;
    Ok(serde_json::from_value(pod)?)
}

async fn account_is_there(scenario: &Scenario, namespace: &str) -> anyhow::Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(scenario.server.client(), namespace);
    let deadline = Instant::now() + SOON;
    while accounts.get_opt("default").await?.is_none() {
        anyhow::ensure!(
            Instant::now() < deadline,
            "no ServiceAccount in {namespace} within {SOON:?}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    Ok(())
}
