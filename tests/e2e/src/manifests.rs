//! Manifests as `kubectl apply` takes them.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::permissions::{Grant, grants};

/// The folder `rbac` of this repository.
pub fn rbac() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rbac")
}

/// Reads a file, or the files of a folder in the order of their names, those in folders inside left
/// out.
///
/// # Errors
/// Names the file that cannot be read.
pub fn read(path: &Path) -> anyhow::Result<Vec<Value>> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries: Result<Vec<_>, _> = path
            .read_dir()?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect();
        files = entries?;
        files.retain(|file| {
            file.extension()
                .is_some_and(|extension| extension == "yaml")
        });
        files.sort();
    }
    let mut manifests = Vec::new();
    for file in files {
        let shown = file.display();
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {shown}"))?;
        manifests.extend(
            serde_saphyr::from_multiple::<Value>(&text)
                .with_context(|| format!("understand {shown}"))?,
        );
    }
    Ok(manifests)
}

/// All that the roles among these grant.
///
/// # Errors
/// The rules of one cannot be read.
pub fn all_grants(manifests: &[Value]) -> anyhow::Result<Vec<Grant>> {
    Ok(manifests
        .iter()
        .map(grants)
        .collect::<Result<Vec<_>, _>>()?
        .concat())
}

/// Applies manifests one after the other, and fills aggregated roles in, as kube-controller-manager
/// does it.
///
/// # Errors
/// The server refuses one.
pub async fn apply(client: &kube::Client, manifests: &[Value]) -> anyhow::Result<()> {
    let params = PatchParams::apply("e2e").force();
    for manifest in manifests {
        let (api, name) = api(client, manifest)?;
        api.patch(&name, &params, &Patch::Apply(manifest))
            .await
            .with_context(|| format!("apply {name}"))?;
    }
    for role in manifests
        .iter()
        .filter(|manifest| !manifest["aggregationRule"].is_null())
    {
        aggregate(client, role).await?;
    }
    Ok(())
}

async fn aggregate(client: &kube::Client, role: &Value) -> anyhow::Result<()> {
    let (api, name) = api(client, role)?;
    let mut rules = Vec::new();
    for selector in role["aggregationRule"]["clusterRoleSelectors"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let labels = selector["matchLabels"]
            .as_object()
            .context("an aggregation selects by matchLabels")?;
        let labels: Vec<_> = labels
            .iter()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
            .collect();
        for member in api
            .list(&ListParams::default().labels(&labels.join(",")))
            .await?
            .items
        {
            rules.extend(member.data["rules"].as_array().cloned().unwrap_or_default());
        }
    }
    anyhow::ensure!(!rules.is_empty(), "nothing is aggregated into {name}");
    api.patch(&name, &PatchParams::default(), &Patch::Merge(json!({"rules": rules})))
        .await?;
    Ok(())
}

/// Deletes what manifests made, the last first; what is not there is no mistake.
///
/// # Errors
/// The server refuses.
pub async fn withdraw(client: &kube::Client, manifests: &[Value]) -> anyhow::Result<()> {
    for manifest in manifests.iter().rev() {
        let (api, name) = api(client, manifest)?;
        match api.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            deleted => deleted
                .map(drop)
                .with_context(|| format!("delete {name}"))?,
        }
    }
    Ok(())
}

/// Where an object of this kind lives, and its name.
fn api(client: &kube::Client, manifest: &Value) -> anyhow::Result<(Api<DynamicObject>, String)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (version, kind) = (text(&manifest["apiVersion"]), text(&manifest["kind"]));
    let name = text(&manifest["metadata"]["name"]).context("a manifest has a name")?;
    let (version, kind) = version
        .zip(kind)
        .with_context(|| format!("{name} has an apiVersion and a kind"))?;
    let (group, version) = version.split_once('/').unwrap_or(("", &version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let api = match manifest["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    Ok((api, name))
}

/// A service account of kube-system that has a ClusterRole everywhere.
pub fn bound(account: &str, role: &str) -> [Value; 2] {
    let group = "rbac.authorization.k8s.io";
    [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": "kube-system"}}),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": account},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}],
        }),
    ]
}

/// A service account of kube-system with a role of its own that grants this, and no more.
pub fn granted(account: &str, grants: &[Grant]) -> Vec<Value> {
    let rules: Vec<_> = grants.iter().map(Grant::rule).collect();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": account}, "rules": rules,
    });
    std::iter::once(role)
        .chain(bound(account, account))
        .collect()
}
