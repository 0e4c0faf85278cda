//! `OpenAPI` documents, generated from the type table: what `kubectl explain`, `apply` and field
//! validation read.

use serde_json::{Map, Value, json};

use super::discovery::KUBERNETES_VERSION;
use super::resources::{ResourceDef, group_version};
use super::schema::{Field, Merge, Ty, Type, type_of, types::TYPES};

/// Syntax of references to schemas.
#[derive(Clone, Copy)]
enum Dialect {
    V2,
    V3,
}

impl Dialect {
    fn reference(self, name: &str) -> Value {
        match self {
            Self::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Self::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }
}

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

const PATCH_TYPES: [&str; 3] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// Returns the index at `/openapi/v3`: where each group version's document is.
pub(super) fn v3_index(resources: &[ResourceDef]) -> Value {
    let paths: Map<String, Value> = resources
        .iter()
        .map(|def| root(def.group, def.version))
        .map(|root| (root.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{root}")})))
        .collect();
    json!({"paths": paths})
}

/// Returns the document of one group version; none if it is not served.
pub(super) fn v3(group: &str, version: &str, resources: &[ResourceDef]) -> Option<Value> {
    let served: Vec<&ResourceDef> = resources
        .iter()
        .filter(|d| d.group == group && d.version == version)
        .collect();
    if served.is_empty() {
        return None;
    }
    let paths: Map<String, Value> = served.iter().flat_map(|def| paths(def)).collect();
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES_VERSION},
        "paths": paths,
        "components": {"schemas": schemas(Dialect::V3, &served)},
    }))
}

/// Returns the older single document: definitions only, for clients that read types from it.
pub(super) fn v2(resources: &[ResourceDef]) -> Value {
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES_VERSION},
        "paths": {},
        "definitions": schemas(Dialect::V2, &resources.iter().collect::<Vec<_>>()),
    })
}

fn root(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

/// Returns all types: the few that one group does not use cost less than finding out which.
fn schemas(dialect: Dialect, served: &[&ResourceDef]) -> Map<String, Value> {
    let mut schemas: Map<String, Value> = TYPES
        .iter()
        .map(|ty| (ty.name.to_owned(), type_schema(dialect, ty)))
        .collect();
    for def in served {
        let Some(ty) = type_of(def) else { continue };
        if let Some(Value::Object(schema)) = schemas.get_mut(ty.name) {
            schema.insert(
                "x-kubernetes-group-version-kind".to_owned(),
                json!([group_version_kind(def)]),
            );
        }
        if def.supports("list") {
            let list = json!({
                "type": "object",
                "description": format!("A list of {}.", def.plural),
                "required": ["items"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": dialect.reference(LIST_META),
                    "items": {"type": "array", "items": dialect.reference(ty.name)},
                },
                "x-kubernetes-group-version-kind":
                    [{"group": def.group, "version": def.version, "kind": def.list_kind()}],
            });
            schemas.insert(format!("{}List", ty.name), list);
        }
    }
    let one_of = |types: [&str; 2]| json!({"oneOf": types.map(|t| json!({"type": t}))});
    let (quantity, int_or_string) = match dialect {
        // The older language has no alternatives; a string stands for both there.
        Dialect::V2 => {
            (json!({"type": "string"}), json!({"type": "string", "format": "int-or-string"}))
        }
        Dialect::V3 => (one_of(["string", "number"]), one_of(["integer", "string"])),
    };
    schemas.insert(QUANTITY.to_owned(), quantity);
    schemas.insert(INT_OR_STRING.to_owned(), int_or_string);
    for name in [TIME, MICRO_TIME] {
        schemas.insert(name.to_owned(), json!({"type": "string", "format": "date-time"}));
    }
    schemas.insert(PATCH.to_owned(), json!({"type": "object"}));
    schemas.insert(LIST_META.to_owned(), list_meta());
    schemas
}

fn list_meta() -> Value {
    json!({
        "type": "object",
        "properties": {
            "continue": {"type": "string"},
            "remainingItemCount": {"type": "integer", "format": "int64"},
            "resourceVersion": {"type": "string"},
            "selfLink": {"type": "string"},
        },
    })
}

fn group_version_kind(def: &ResourceDef) -> Value {
    json!({"group": def.group, "version": def.version, "kind": def.kind})
}

fn type_schema(dialect: Dialect, ty: &Type) -> Value {
    let properties: Map<String, Value> = ty
        .fields
        .iter()
        .map(|field| (field.name.to_owned(), field_schema(dialect, field)))
        .collect();
    let required: Vec<&str> = ty
        .fields
        .iter()
        .filter(|f| f.required)
        .map(|f| f.name)
        .collect();
    let mut schema = json!({
        "type": "object",
        "description": format!("{} as Kubernetes {KUBERNETES_VERSION} defines it.", ty.short_name()),
        "properties": properties,
    });
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

fn field_schema(dialect: Dialect, field: &Field) -> Value {
    let mut schema = value_schema(dialect, &field.ty);
    if let (Ty::List(_, merge), Value::Object(schema)) = (&field.ty, &mut schema) {
        let list_type = match merge {
            Merge::Atomic => "atomic",
            Merge::Set => "set",
            Merge::Key(..) => "map",
        };
        schema.insert("x-kubernetes-list-type".to_owned(), list_type.into());
        if *merge != Merge::Atomic {
            schema.insert("x-kubernetes-patch-strategy".to_owned(), "merge".into());
        }
        if let Merge::Key(key, keys) = merge {
            schema.insert("x-kubernetes-patch-merge-key".to_owned(), (*key).into());
            schema.insert("x-kubernetes-list-map-keys".to_owned(), (*keys).into());
        }
    }
    schema
}

fn value_schema(dialect: Dialect, ty: &Ty) -> Value {
    match ty {
        Ty::Text => json!({"type": "string"}),
        Ty::Bytes => json!({"type": "string", "format": "byte"}),
        Ty::Int32 => json!({"type": "integer", "format": "int32"}),
        Ty::Int64 => json!({"type": "integer", "format": "int64"}),
        Ty::Bool => json!({"type": "boolean"}),
        Ty::Time => dialect.reference(TIME),
        Ty::MicroTime => dialect.reference(MICRO_TIME),
        Ty::Quantity => dialect.reference(QUANTITY),
        Ty::IntOrString => dialect.reference(INT_OR_STRING),
        Ty::Any => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        Ty::Map(of) => json!({"type": "object", "additionalProperties": value_schema(dialect, of)}),
        Ty::List(of, _) => json!({"type": "array", "items": value_schema(dialect, of)}),
        Ty::Object(ty) => dialect.reference(ty.name),
    }
}

/// Returns the paths of a resource. kubectl needs to see which kinds accept which patch types, and
/// that writes accept `fieldValidation`, so that it leaves checking fields to the server.
fn paths(def: &ResourceDef) -> Vec<(String, Value)> {
    let root = root(def.group, def.version);
    let scope = if def.namespaced {
        "/namespaces/{namespace}"
    } else {
        ""
    };
    let collection = format!("/{root}{scope}/{}", def.plural);
    let mut on_collection = Map::new();
    let mut on_object = Map::new();
    for verb in def.verbs {
        match *verb {
            "create" => drop(on_collection.insert("post".to_owned(), operation(def, "post"))),
            "list" => drop(on_collection.insert("get".to_owned(), operation(def, "list"))),
            "get" => drop(on_object.insert("get".to_owned(), operation(def, "get"))),
            "update" => drop(on_object.insert("put".to_owned(), operation(def, "put"))),
            "patch" => drop(on_object.insert("patch".to_owned(), operation(def, "patch"))),
            "delete" => drop(on_object.insert("delete".to_owned(), operation(def, "delete"))),
            _ => {}
        }
    }
    let mut paths = Vec::new();
    if !on_object.is_empty() {
        paths.push((format!("{collection}/{{name}}"), Value::Object(on_object)));
    }
    paths.push((collection, Value::Object(on_collection)));
    paths
}

fn operation(def: &ResourceDef, action: &str) -> Value {
    let object =
        type_of(def).map_or_else(|| json!({"type": "object"}), |ty| Dialect::V3.reference(ty.name));
    let mut operation = json!({
        "description": format!("{action} {}", def.plural),
        "operationId": format!("{action}{}{}", group_version(def.group, def.version).replace(['.', '/'], "_"), def.kind),
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": group_version_kind(def),
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": object}}}},
    });
    if matches!(action, "post" | "put" | "patch") {
        let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
        operation["parameters"] = ["dryRun", "fieldManager", "fieldValidation"]
            .map(parameter)
            .to_vec()
            .into();
        let bodies: Map<String, Value> = if action == "patch" {
            PATCH_TYPES
                .iter()
                .map(|t| ((*t).to_owned(), json!({"schema": Dialect::V3.reference(PATCH)})))
                .collect()
        } else {
            Map::from_iter([("application/json".to_owned(), json!({"schema": object}))])
        };
        operation["requestBody"] = json!({"required": true, "content": bodies});
    }
    operation
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::resources::all;

    /// Collects every `$ref` in a document.
    fn references(value: &Value, out: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                out.extend(
                    fields
                        .get("$ref")
                        .and_then(Value::as_str)
                        .map(str::to_owned),
                );
                fields.values().for_each(|v| references(v, out));
            }
            Value::Array(items) => items.iter().for_each(|v| references(v, out)),
            _ => {}
        }
    }

    fn assert_closed(document: &Value, prefix: &str, schemas: &Value) {
        let mut found = Vec::new();
        references(document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            let name = reference
                .strip_prefix(prefix)
                .unwrap_or_else(|| panic!("{reference}"));
            assert!(schemas.get(name).is_some(), "{reference} leads nowhere");
        }
    }

    #[test]
    fn the_index_leads_to_every_document_and_no_reference_dangles() {
        let index = v3_index(all());
        let paths = index["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 6);
        for def in all() {
            assert!(paths.contains_key(&root(def.group, def.version)));
            let document = v3(def.group, def.version, all()).unwrap();
            assert_closed(&document, "#/components/schemas/", &document["components"]["schemas"]);
        }
        assert_eq!(v3("apps", "v1", all()), None);
        let old = v2(all());
        assert_closed(&old, "#/definitions/", &old["definitions"]);
    }

    #[test]
    fn kubectl_finds_what_it_looks_for() {
        let document = v3("", "v1", all()).unwrap();
        let patch = &document["paths"]["/api/v1/namespaces/{namespace}/services/{name}"]["patch"];
        assert_eq!(
            patch["x-kubernetes-group-version-kind"],
            json!({"group": "", "version": "v1", "kind": "Service"})
        );
        assert!(
            patch["requestBody"]["content"]
                .get("application/strategic-merge-patch+json")
                .is_some()
        );
        assert!(
            patch["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .any(|p| p["name"] == "fieldValidation")
        );
        let schemas = &document["components"]["schemas"];
        let ports = &schemas["io.k8s.api.core.v1.ServiceSpec"]["properties"]["ports"];
        assert_eq!(
            (&ports["x-kubernetes-patch-merge-key"], &ports["x-kubernetes-patch-strategy"]),
            (&json!("port"), &json!("merge"))
        );
        assert_eq!(ports["x-kubernetes-list-map-keys"], json!(["port", "protocol"]));
        let node = &schemas["io.k8s.api.core.v1.Node"]["x-kubernetes-group-version-kind"];
        assert_eq!(*node, json!([{"group": "", "version": "v1", "kind": "Node"}]));
        assert!(document["paths"].get("/api/v1/nodes").is_some());
        assert!(
            document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]
                .get("patch")
                .is_none()
        );
    }
}
