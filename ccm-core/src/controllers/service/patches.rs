//! Writes to a Service. All of them are patches of the status subresource, which accepts
//! finalizers, annotations and status in one patch. Upstream's roles allow no other writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Map, Value, json};

use super::plan::same_status;
use crate::{
    k8s::{LbIngress, LbPortStatus, LbStatus, ServiceFields, ServiceView, well_known},
    runtime::api::{ApiClient, ApiError, Patch, PatchOp, escape_pointer},
};

/// The maximum number of attempts to write to a Service that another client keeps changing.
const MAX_ATTEMPTS: usize = 5;
/// The delay between these attempts.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Adds our finalizer and returns the new resource version.
pub(crate) async fn add_finalizer(
    api: &ApiClient,
    service: &ServiceView,
) -> Result<String, ApiError> {
    let patch = finalizer_patch(service);
    Ok(api
        .patch_service_status(&service.namespace, &service.name, &patch)
        .await?
        .resource_version)
}

/// Builds the patch that adds our finalizer.
///
/// A strategic merge patch adds to the list on the server, so no other finalizer is lost. The UID
/// makes the API server reject the patch if another Service has the same name.
pub(crate) fn finalizer_patch(service: &ServiceView) -> Patch {
    Patch::Strategic(
        json!({ "metadata": { "uid": &*service.uid, "finalizers": [well_known::FINALIZER_LOAD_BALANCER] } }),
    )
}

/// Builds the patch that writes the desired status and annotations; `None` if the Service already
/// has them.
pub(crate) fn status_patch(
    service: &ServiceView,
    status: Option<&LbStatus>,
    annotations: &BTreeMap<Box<str>, Option<Box<str>>>,
) -> Option<Patch> {
    let status = status.filter(|status| !same_status(status, &service.status));
    let mut changed_annotations = Map::new();
    for (key, value) in annotations {
        let current = service.annotations.get(&**key).map(|value| &**value);
        if current != value.as_deref() {
            changed_annotations.insert(key.to_string(), json!(value));
        }
    }
    if status.is_none() && changed_annotations.is_empty() {
        return None;
    }
    let mut body = json!({ "metadata": { "uid": &*service.uid } });
    if !changed_annotations.is_empty() {
        body["metadata"]["annotations"] = Value::Object(changed_annotations);
    }
    if let Some(status) = status {
        // A merge patch replaces the whole list, which is what we want.
        let ingress: Vec<Value> = status.ingress.iter().map(ingress_value).collect();
        body["status"] = json!({ "loadBalancer": { "ingress": ingress } });
    }
    Some(Patch::Merge(body))
}

/// Adds an entry of `status.conditions` to a patch that is written anyway, or makes a patch of it
/// alone. A strategic merge patch changes only this entry; in all other respects it has the effect
/// of the merge patch.
pub(crate) fn with_condition(service: &ServiceView, patch: Option<Patch>, entry: Value) -> Patch {
    let mut body = match patch {
        Some(Patch::Merge(body)) => body,
        _ => json!({ "metadata": { "uid": &*service.uid } }),
    };
    body["status"]["conditions"] = Value::Array(vec![entry]);
    Patch::Strategic(body)
}

fn ingress_value(ingress: &LbIngress) -> Value {
    let mut value = Map::new();
    if let Some(ip) = &ingress.ip {
        value.insert("ip".to_owned(), json!(ip));
    }
    if let Some(hostname) = &ingress.hostname {
        value.insert("hostname".to_owned(), json!(hostname));
    }
    if let Some(mode) = &ingress.ip_mode {
        value.insert("ipMode".to_owned(), json!(mode));
    }
    if !ingress.ports.is_empty() {
        let ports = ingress.ports.iter().map(port_value).collect();
        value.insert("ports".to_owned(), ports);
    }
    Value::Object(value)
}

fn port_value(port: &LbPortStatus) -> Value {
    let mut value = json!({ "port": port.port, "protocol": port.protocol.as_str() });
    if let Some(error) = &port.error {
        value["error"] = json!(error);
    }
    value
}

/// The result of releasing a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    /// Everything of ours was removed by the write with this resource version.
    Written(String),
    /// The Service had nothing of ours, or no longer exists.
    NothingToRemove,
    /// The Service needs a load balancer again, so nothing was removed.
    LoadBalancerNeeded,
}

/// Removes our finalizer, the status, our condition and the annotations `stale` from a Service whose
/// load balancer is deleted.
pub(crate) async fn release(
    api: &ApiClient,
    fields: &ServiceFields,
    service: &ServiceView,
    stale: &[Box<str>],
) -> Result<ReleaseOutcome, ApiError> {
    let mut fresh = service.clone();
    for attempt in 1.. {
        let operations = release_operations(&fresh, stale);
        if operations.is_empty() {
            return Ok(ReleaseOutcome::NothingToRemove);
        }
        match api
            .patch_service_status(&fresh.namespace, &fresh.name, &Patch::Json(operations))
            .await
        {
            Ok(patched) => return Ok(ReleaseOutcome::Written(patched.resource_version)),
            Err(error) if error.is_not_found() => return Ok(ReleaseOutcome::NothingToRemove),
            Err(error) if error.is_conflict() && attempt < MAX_ATTEMPTS => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(RETRY_DELAY).await;
        fresh = match api
            .get_service(&service.namespace, &service.name, fields)
            .await
        {
            // The Service was deleted, and another one has its name.
            Ok(fresh) if fresh.uid != service.uid => return Ok(ReleaseOutcome::NothingToRemove),
            Ok(fresh) if fields.is_managed(&fresh) => {
                return Ok(ReleaseOutcome::LoadBalancerNeeded);
            }
            Ok(fresh) => fresh,
            Err(error) if error.is_not_found() => return Ok(ReleaseOutcome::NothingToRemove),
            Err(error) => return Err(error),
        };
    }
    Ok(ReleaseOutcome::NothingToRemove)
}

/// Builds the JSON Patch operations that remove what is ours from a Service.
///
/// They only apply to the Service as it was read, because a request that arrives late must not
/// remove the finalizer of a Service that has a load balancer again. In addition, each removal
/// tests the value to remove. Upstream replaces the whole list of finalizers, and so removes one
/// that another client has just added.
pub(crate) fn release_operations(service: &ServiceView, stale: &[Box<str>]) -> Vec<PatchOp> {
    let mut operations = Vec::new();
    if let Some(index) = service
        .finalizers
        .iter()
        .position(|finalizer| &**finalizer == well_known::FINALIZER_LOAD_BALANCER)
    {
        let path = format!("/metadata/finalizers/{index}");
        operations.extend([
            PatchOp::test(&*path, well_known::FINALIZER_LOAD_BALANCER),
            PatchOp::Remove { path },
        ]);
    }
    // A Service that is being deleted disappears with its finalizer, so the rest can stay.
    if !service.deleting {
        // An annotation can only be removed once, even if `stale` lists it twice.
        for key in stale.iter().collect::<BTreeSet<_>>() {
            if let Some(value) = service.annotations.get(&**key) {
                let path = format!("/metadata/annotations/{}", escape_pointer(key));
                operations.extend([PatchOp::test(&*path, value), PatchOp::Remove { path }]);
            }
        }
        if !service.status.ingress.is_empty() {
            operations
                .push(PatchOp::Add { path: "/status/loadBalancer".to_owned(), value: json!({}) });
        }
        if let Some(condition) = &service.own_condition {
            let path = format!("/status/conditions/{}", condition.index);
            let kind = well_known::CONDITION_LOAD_BALANCER_READY;
            operations
                .extend([PatchOp::test(format!("{path}/type"), kind), PatchOp::Remove { path }]);
        }
    }
    if !operations.is_empty() {
        let tests = [
            PatchOp::test("/metadata/uid", &service.uid),
            PatchOp::test("/metadata/resourceVersion", &service.resource_version),
        ];
        operations.splice(..0, tests);
    }
    operations
}

#[cfg(test)]
#[path = "patches_tests.rs"]
mod tests;
