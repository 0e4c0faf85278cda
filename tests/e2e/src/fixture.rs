//! What the stages of providers' end-to-end suites do alike, whatever the cloud.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::{
    core::v1::{Event, Node, Service},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Client, ResourceExt as _,
    api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};

/// Lets a user do what these rules say.
pub async fn grant(client: &Client, user: &str, rules: &[Value]) -> anyhow::Result<()> {
    let role = json!({"metadata": {"name": user}, "rules": rules});
    let binding = json!({
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    let params = PostParams::default();
    Api::<ClusterRole>::all(client.clone())
        .create(&params, &serde_json::from_value(role)?)
        .await?;
    Api::<ClusterRoleBinding>::all(client.clone())
        .create(&params, &serde_json::from_value(binding)?)
        .await?;
    Ok(())
}

/// Takes everything away that another test left.
pub async fn clear(client: &Client) -> anyhow::Result<()> {
    let (all, params) = (ListParams::default(), DeleteParams::default());
    Api::<Node>::all(client.clone())
        .delete_collection(&params, &all)
        .await?;
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    for service in services.list(&all).await?.items {
        let name = service.name_any();
        if name == "kubernetes" {
            continue;
        }
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        services
            .patch(&name, &PatchParams::default(), &free)
            .await?;
        match services.delete(&name, &params).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            deleted => deleted.map(drop)?,
        }
    }
    Api::<Event>::namespaced(client.clone(), "default")
        .delete_collection(&params, &all)
        .await?;
    Ok(())
}

/// Events about an object: reason and message, in the order of their first time.
pub async fn events(client: &Client, name: &str) -> anyhow::Result<Vec<(String, String)>> {
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let selector = format!("involvedObject.name={name}");
    let list = events
        .list(&ListParams::default().fields(&selector))
        .await?
        .items;
    Ok(list
        .into_iter()
        .map(|e| (e.reason.unwrap_or_default(), e.message.unwrap_or_default()))
        .collect())
}

/// A Service of type LoadBalancer with these annotations. Ports (protocol, number) have a node port
/// 30000 more.
pub fn balanced(name: &str, ports: &[(&str, u16)], annotations: &Map<String, Value>) -> Value {
    let ports: Vec<_> = ports
        .iter()
        .map(|(protocol, port)| {
            let name = format!("{}-{port}", protocol.to_lowercase());
            json!({"name": name, "protocol": protocol, "port": port, "nodePort": 30000 + port, "targetPort": 8080})
        })
        .collect();
    json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"type": "LoadBalancer", "selector": {"app": name}, "ports": ports},
    })
}

/// The orphans in a report of the subcommand `orphans`. Where it made none, the error is what it
/// said instead.
pub fn reported(report: &Value) -> anyhow::Result<&[Value]> {
    let orphans = report["orphans"]
        .as_array()
        .with_context(|| format!("no report on orphans: {report}"))?;
    Ok(orphans)
}

/// Kinds of the orphans in a report of the subcommand `orphans`, all of which must have been made
/// for this Service and be in this state.
pub fn orphans<'a>(
    report: &'a Value,
    made_for: &str,
    state: &str,
) -> anyhow::Result<BTreeSet<&'a str>> {
    let orphans = reported(report)?;
    let fits = |orphan: &Value| orphan["madeFor"]["name"] == made_for && orphan["state"] == state;
    ensure!(orphans.iter().all(fits), "{report:#}");
    Ok(orphans
        .iter()
        .filter_map(|orphan| orphan["kind"].as_str())
        .collect())
}
