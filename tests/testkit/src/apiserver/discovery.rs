//! The paths by which clients find out what the server serves: `/api`, `/apis`, `/version`, health
//! and `OpenAPI`.

use http::StatusCode;
use serde_json::{Value, json};

use super::openapi;
use super::resources::{ResourceDef, SubresourceDef, group_version};

/// Version this server presents; its behaviour is checked against that release.
pub const KUBERNETES_VERSION: &str = "v1.36.3";

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const AGGREGATED_V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const AGGREGATED_V2_BETA1: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// Response formats that a client can accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Aggregated { version: &'static str, content_type: &'static str },
}

/// Answers a discovery path with status, content type and body; none if the path is not one of
/// discovery's, or names a group or version that is not served.
///
/// `path` is the path alone, without query. `accept` is the request's header. `/api` and `/apis`
/// come in the aggregated form where the client asks for it. A client that takes no JSON gets 406.
pub fn respond(
    path: &str,
    accept: Option<&str>,
    resources: &[ResourceDef],
) -> Option<(StatusCode, &'static str, Vec<u8>)> {
    let path = path.trim_end_matches('/');
    if matches!(path, "/healthz" | "/livez" | "/readyz") {
        return Some((StatusCode::OK, TEXT, b"ok".to_vec()));
    }
    let form = negotiate(accept);
    let aggregated = matches!(path, "/api" | "/apis").then_some(form).flatten();
    if let Some(Form::Aggregated { version, content_type }) = aggregated {
        let body = aggregated_groups(path == "/api", version, resources);
        return Some((StatusCode::OK, content_type, body.to_string().into_bytes()));
    }
    let body = document(path, resources)?;
    if form.is_none() {
        return Some((StatusCode::NOT_ACCEPTABLE, JSON, not_acceptable().to_string().into_bytes()));
    }
    Some((StatusCode::OK, JSON, body.to_string().into_bytes()))
}

fn document(path: &str, resources: &[ResourceDef]) -> Option<Value> {
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    match segments.as_slice() {
        ["version"] => Some(version()),
        ["api"] => Some(core_versions()),
        ["api", version] => resource_list("", version, resources),
        ["apis"] => Some(group_list(resources)),
        ["apis", group] => group_document(group, resources),
        ["apis", group, version] => resource_list(group, version, resources),
        ["openapi", "v2"] => Some(openapi::v2(resources)),
        ["openapi", "v3"] => Some(openapi::v3_index(resources)),
        ["openapi", "v3", "api", version] => openapi::v3("", version, resources),
        ["openapi", "v3", "apis", group, version] => openapi::v3(group, version, resources),
        _ => None,
    }
}

/// Returns the first thing in the header that can be sent; preferences by `q` are not used by any
/// known client.
fn negotiate(accept: Option<&str>) -> Option<Form> {
    let Some(accept) = accept.map(str::trim).filter(|a| !a.is_empty()) else {
        return Some(Form::Json);
    };
    accept.split(',').find_map(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        if !matches!(media_type, "application/json" | "application/*" | "*/*") {
            return None;
        }
        let parameters: Vec<(&str, &str)> = parts.filter_map(|p| p.split_once('=')).collect();
        let value = |name: &str| {
            parameters
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| *value)
        };
        match (value("as"), value("g"), value("v")) {
            (None, ..) => Some(Form::Json),
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => {
                Some(Form::Aggregated { version: "v2", content_type: AGGREGATED_V2 })
            }
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2beta1")) => {
                Some(Form::Aggregated { version: "v2beta1", content_type: AGGREGATED_V2_BETA1 })
            }
            _ => None,
        }
    })
}

fn not_acceptable() -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "only the following media types are accepted: application/json",
        "reason": "NotAcceptable",
        "code": 406,
    })
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        // Build metadata does not count in comparisons, and tells a person what this is.
        "gitVersion": format!("{KUBERNETES_VERSION}+ccm-testkit"),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// Returns the named groups with their versions, in the order of the resource table.
fn groups(resources: &[ResourceDef]) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut groups: Vec<(&'static str, Vec<&'static str>)> = Vec::new();
    for def in resources.iter().filter(|d| !d.group.is_empty()) {
        match groups.iter_mut().find(|(group, _)| *group == def.group) {
            Some((_, versions)) if versions.contains(&def.version) => {}
            Some((_, versions)) => versions.push(def.version),
            None => groups.push((def.group, vec![def.version])),
        }
    }
    groups
}

fn group_json(group: &str, versions: &[&str]) -> Value {
    let entry =
        |version: &&str| json!({"groupVersion": group_version(group, version), "version": version});
    let entries: Vec<Value> = versions.iter().map(entry).collect();
    json!({"name": group, "versions": entries, "preferredVersion": entries.first()})
}

fn group_list(resources: &[ResourceDef]) -> Value {
    let groups: Vec<Value> = groups(resources)
        .iter()
        .map(|(group, versions)| group_json(group, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn group_document(group: &str, resources: &[ResourceDef]) -> Option<Value> {
    let (_, versions) = groups(resources)
        .into_iter()
        .find(|(name, _)| *name == group)?;
    let mut document = group_json(group, &versions);
    document["kind"] = "APIGroup".into();
    document["apiVersion"] = "v1".into();
    Some(document)
}

fn resource_list(group: &str, version: &str, resources: &[ResourceDef]) -> Option<Value> {
    let served: Vec<&ResourceDef> = resources
        .iter()
        .filter(|d| d.group == group && d.version == version)
        .collect();
    if served.is_empty() {
        return None;
    }
    let entries: Vec<Value> = served
        .into_iter()
        .flat_map(|def| {
            std::iter::once(resource_json(def)).chain(
                def.subresources
                    .iter()
                    .map(|sub| subresource_json(def, sub)),
            )
        })
        .collect();
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group, version),
        "resources": entries,
    }))
}

fn resource_json(def: &ResourceDef) -> Value {
    let mut entry = json!({
        "name": def.plural,
        "singularName": def.singular,
        "namespaced": def.namespaced,
        "kind": def.kind,
        "verbs": def.verbs,
    });
    if !def.short_names.is_empty() {
        entry["shortNames"] = def.short_names.into();
    }
    if !def.categories.is_empty() {
        entry["categories"] = def.categories.into();
    }
    entry
}

fn subresource_json(def: &ResourceDef, sub: &SubresourceDef) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", def.plural, sub.name),
        "singularName": "",
        "namespaced": def.namespaced,
        "kind": sub.body.map_or(def.kind, |(_, _, kind)| kind),
        "verbs": sub.verbs,
    });
    if let Some((group, version, _)) = sub.body {
        entry["group"] = group.into();
        entry["version"] = version.into();
    }
    entry
}

/// Returns everything of `/api` or `/apis` in one document.
fn aggregated_groups(core: bool, discovery_version: &str, resources: &[ResourceDef]) -> Value {
    let groups = if core {
        vec![("", vec!["v1"])]
    } else {
        groups(resources)
    };
    let items: Vec<Value> = groups
        .into_iter()
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|v| aggregated_version(group, v, resources))
                .collect();
            let metadata = if group.is_empty() {
                json!({})
            } else {
                json!({"name": group})
            };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{discovery_version}"),
        "metadata": {},
        "items": items,
    })
}

fn aggregated_version(group: &str, version: &str, resources: &[ResourceDef]) -> Value {
    let served = resources
        .iter()
        .filter(|d| d.group == group && d.version == version);
    let entries: Vec<Value> = served.map(aggregated_resource).collect();
    json!({"version": version, "freshness": "Current", "resources": entries})
}

fn aggregated_resource(def: &ResourceDef) -> Value {
    let mut entry = json!({
        "resource": def.plural,
        // The group and version are those of the surrounding entry unless they are given.
        "responseKind": {"group": "", "version": "", "kind": def.kind},
        "scope": if def.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": def.singular,
        "verbs": def.verbs,
    });
    if !def.short_names.is_empty() {
        entry["shortNames"] = def.short_names.into();
    }
    if !def.categories.is_empty() {
        entry["categories"] = def.categories.into();
    }
    let subresources: Vec<Value> = def
        .subresources
        .iter()
        .map(|sub| {
            let (group, version, kind) = sub.body.unwrap_or(("", "", def.kind));
            json!({
                "subresource": sub.name,
                "responseKind": {"group": group, "version": version, "kind": kind},
                "verbs": sub.verbs,
            })
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::resources::all;

    fn get(path: &str, accept: Option<&str>) -> (StatusCode, &'static str, Value) {
        let (status, content_type, body) =
            respond(path, accept, all()).unwrap_or_else(|| panic!("{path}"));
        (status, content_type, serde_json::from_slice(&body).unwrap())
    }

    fn json_of(path: &str) -> Value {
        let (status, content_type, body) = get(path, None);
        assert_eq!((status, content_type), (StatusCode::OK, JSON), "{path}");
        body
    }

    #[test]
    fn paths_that_are_not_discovery_are_left_to_others() {
        for path in [
            "/",
            "/api/v2",
            "/apis/apps",
            "/apis/apps/v1",
            "/api/v1/nodes",
            "/openapi",
            "/openapi/v3/api/v2",
            "/x",
        ] {
            assert_eq!(respond(path, None, all()), None, "{path}");
        }
    }

    #[test]
    fn health_is_plain_text_whatever_the_client_accepts() {
        for path in ["/healthz", "/livez", "/readyz", "/readyz/"] {
            let want = (StatusCode::OK, TEXT, b"ok".to_vec());
            assert_eq!(
                respond(path, Some("application/vnd.kubernetes.protobuf"), all()),
                Some(want),
                "{path}"
            );
        }
    }

    #[test]
    fn classic_discovery_lists_groups_versions_and_resources() {
        assert_eq!(json_of("/api")["versions"], json!(["v1"]));
        let groups = json_of("/apis");
        let names: Vec<&str> = groups["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(|g| g["name"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "events.k8s.io",
                "authentication.k8s.io",
                "authorization.k8s.io",
                "coordination.k8s.io",
                "discovery.k8s.io"
            ]
        );
        let group = json_of("/apis/coordination.k8s.io");
        assert_eq!(
            (&group["kind"], &group["preferredVersion"]["groupVersion"]),
            (&json!("APIGroup"), &json!("coordination.k8s.io/v1"))
        );
        let core = json_of("/api/v1");
        let entry = |name: &str| {
            core["resources"]
                .as_array()
                .unwrap()
                .iter()
                .find(|r| r["name"] == name)
                .unwrap()
                .clone()
        };
        let nodes = json!({"name": "nodes", "singularName": "node", "namespaced": false, "kind": "Node", "shortNames": ["no"],
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]});
        assert_eq!(entry("nodes"), nodes);
        assert_eq!(entry("services")["categories"], json!(["all"]));
        let status = json!({"name": "nodes/status", "singularName": "", "namespaced": false, "kind": "Node", "verbs": ["get", "patch", "update"]});
        assert_eq!(entry("nodes/status"), status);
        let token = entry("serviceaccounts/token");
        assert_eq!(
            (&token["group"], &token["kind"]),
            (&json!("authentication.k8s.io"), &json!("TokenRequest"))
        );
    }

    #[test]
    fn aggregated_discovery_is_sent_to_those_who_ask() {
        let accept = format!("{AGGREGATED_V2},{AGGREGATED_V2_BETA1},application/json");
        let (status, content_type, body) = get("/apis", Some(&accept));
        assert_eq!((status, content_type), (StatusCode::OK, AGGREGATED_V2));
        assert_eq!(body["apiVersion"], "apidiscovery.k8s.io/v2");
        let leases = body["items"]
            .as_array()
            .unwrap()
            .iter()
            .find(|g| g["metadata"]["name"] == "coordination.k8s.io")
            .unwrap();
        assert_eq!(leases["versions"][0]["resources"][0]["responseKind"]["kind"], "Lease");
        let (_, content_type, core) = get("/api", Some(AGGREGATED_V2_BETA1));
        assert_eq!(content_type, AGGREGATED_V2_BETA1);
        let resources = core["items"][0]["versions"][0]["resources"]
            .as_array()
            .unwrap();
        let nodes = resources.iter().find(|r| r["resource"] == "nodes").unwrap();
        assert_eq!(
            (&nodes["scope"], &nodes["subresources"][0]["subresource"]),
            (&json!("Cluster"), &json!("status"))
        );
        // Only the two roots have that form.
        assert_eq!(get("/api/v1", Some(&accept)).1, JSON);
        assert_eq!(get("/apis", Some("application/json")).2["kind"], "APIGroupList");
    }

    #[test]
    fn a_client_that_takes_no_json_is_told_so() {
        let (status, content_type, body) =
            get("/openapi/v2", Some("application/com.github.proto-openapi.spec.v2@v1.0+protobuf"));
        assert_eq!((status, content_type), (StatusCode::NOT_ACCEPTABLE, JSON));
        assert_eq!((&body["reason"], &body["code"]), (&json!("NotAcceptable"), &json!(406)));
        for accept in [
            "*/*",
            "application/vnd.kubernetes.protobuf, */*",
            "application/vnd.kubernetes.protobuf,application/json",
            "",
        ] {
            assert_eq!(get("/version", Some(accept)).0, StatusCode::OK, "{accept}");
        }
    }

    #[test]
    fn the_version_is_one_that_clients_can_compare() {
        let version = json_of("/version");
        assert_eq!((&version["major"], &version["minor"]), (&json!("1"), &json!("36")));
        assert!(
            version["gitVersion"]
                .as_str()
                .unwrap()
                .starts_with("v1.36.")
        );
    }
}
