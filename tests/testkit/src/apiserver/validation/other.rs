//! Events, leases, namespaces, config maps, secrets and endpoints.

use std::net::IpAddr;

use serde_json::Value;

use super::causes::Causes;
use super::formats::{
    config_key, dns_label, dns_subdomain, endpoint_ip, ip, port_number, qualified_name,
};
use super::{entries, integer, is_set, list, meta, text};
use crate::apiserver::resources::ResourceDef;

/// Bytes of data in a config map or secret.
const DATA_MAX: usize = 1024 * 1024;
/// Characters of an event's short fields, and of its message.
const EVENT_FIELD_MAX: usize = 128;
const EVENT_NOTE_MAX: usize = 1024;

/// Rules that hold on creation and on update.
pub(super) fn object(def: &ResourceDef, obj: &Value, causes: &mut Causes) {
    match (def.group, def.kind) {
        ("", "Event") => event(obj, &CORE_EVENT, causes),
        ("events.k8s.io", "Event") => event(obj, &EVENTS_EVENT, causes),
        ("coordination.k8s.io", "Lease") => lease(obj, causes),
        ("", "Namespace") => namespace(obj, causes),
        ("", "ConfigMap") => config_map(obj, causes),
        ("", "Secret") => secret(obj, causes),
        ("", "Endpoints") => endpoints(obj, causes),
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice(obj, causes),
        _ => {}
    }
}

/// Rules about what an update may change.
pub(super) fn update(def: &ResourceDef, old: &Value, new: &Value, causes: &mut Causes) {
    let at = |obj: &Value, field: &str| obj.get(field).cloned().unwrap_or_default();
    match def.kind {
        "Secret" => {
            causes.immutable("type", &at(old, "type"), &at(new, "type"));
            frozen(old, new, &["data"], causes);
        }
        "ConfigMap" => frozen(old, new, &["data", "binaryData"], causes),
        "EndpointSlice" => {
            causes.immutable("addressType", &at(old, "addressType"), &at(new, "addressType"));
        }
        "Namespace" => phase(new, causes),
        _ => {}
    }
}

/// Checks that an object with `immutable: true` does not change.
fn frozen(old: &Value, new: &Value, fields: &[&str], causes: &mut Causes) {
    let is_frozen = |obj: &Value| obj.get("immutable") == Some(&Value::Bool(true));
    if !is_frozen(old) {
        return;
    }
    let detail = "field is immutable when `immutable` is set";
    if !is_frozen(new) {
        causes.forbidden("immutable", detail);
    }
    for field in fields.iter().filter(|f| old.get(**f) != new.get(**f)) {
        causes.forbidden(field, detail);
    }
}

/// Names that one group of the event API gives to the fields that both groups have.
struct EventFields {
    namespace: &'static str,
    controller: &'static str,
    note: &'static str,
    /// The newer group also demands a time, a type and a consistent series.
    strict: bool,
}

const CORE_EVENT: EventFields = EventFields {
    namespace: "/involvedObject/namespace",
    controller: "reportingComponent",
    note: "/message",
    strict: false,
};
const EVENTS_EVENT: EventFields = EventFields {
    namespace: "/regarding/namespace",
    controller: "reportingController",
    note: "/note",
    strict: true,
};

fn event(obj: &Value, fields: &EventFields, causes: &mut Causes) {
    let namespace = text(obj, "/metadata/namespace");
    let about = text(obj, fields.namespace);
    let timed = is_set(obj, "/eventTime");
    let cluster_scoped = |allowed: &[&str]| about.is_empty() && allowed.contains(&namespace);
    let agrees = if timed {
        !about.is_empty() || cluster_scoped(&["default", "kube-system"])
    } else {
        about == namespace || cluster_scoped(&["", "default"])
    };
    if !agrees {
        causes.invalid("involvedObject.namespace", about, "does not match event.namespace");
    }
    if timed {
        timed_event(obj, fields, causes);
    }
    causes.invalid_each("namespace", namespace, dns_subdomain(namespace));
    if fields.strict {
        if !timed {
            causes.required("eventTime", "");
        }
        let kind = text(obj, "/type");
        if !["Normal", "Warning"].contains(&kind) {
            causes.invalid("type", "", &format!("has invalid value: {kind}"));
        }
        if is_set(obj, "/series") {
            if integer(obj, "/series/count") < 2 {
                causes.invalid("series.count", "", "should be at least 2");
            }
            if !is_set(obj, "/series/lastObservedTime") {
                causes.required("series.lastObservedTime", "");
            }
        }
    }
}

/// Checks an event of the newer form, in either group.
fn timed_event(obj: &Value, fields: &EventFields, causes: &mut Causes) {
    let controller = text(obj, &format!("/{}", fields.controller));
    if controller.is_empty() {
        causes.required(fields.controller, "");
    }
    causes.invalid_each(fields.controller, controller, qualified_name(controller));
    for field in ["reportingInstance", "action", "reason"] {
        let value = text(obj, &format!("/{field}"));
        if value.is_empty() {
            causes.required(field, "");
        }
        if value.len() > EVENT_FIELD_MAX {
            causes.invalid(field, "", &format!("can have at most {EVENT_FIELD_MAX} characters"));
        }
    }
    if text(obj, fields.note).len() > EVENT_NOTE_MAX {
        causes.invalid("message", "", &format!("can have at most {EVENT_NOTE_MAX} characters"));
    }
}

fn lease(obj: &Value, causes: &mut Causes) {
    let number = |field: &str| {
        obj.pointer(&format!("/spec/{field}"))
            .and_then(Value::as_i64)
    };
    if let Some(seconds) = number("leaseDurationSeconds").filter(|s| *s <= 0) {
        causes.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0");
    }
    if let Some(count) = number("leaseTransitions").filter(|c| *c < 0) {
        causes.invalid("spec.leaseTransitions", count, "must be greater than or equal to 0");
    }
}

fn namespace(obj: &Value, causes: &mut Causes) {
    for finalizer in list(obj, "/spec/finalizers")
        .iter()
        .filter_map(Value::as_str)
    {
        causes.invalid_each("spec.finalizers", finalizer, qualified_name(finalizer));
        meta::kube_finalizer("spec.finalizers", finalizer, causes);
    }
}

fn phase(new: &Value, causes: &mut Causes) {
    let phase = text(new, "/status/phase");
    if is_set(new, "/metadata/deletionTimestamp") {
        if phase != "Terminating" {
            let detail = "may only be 'Terminating' if `deletionTimestamp` is not empty";
            causes.invalid("status.Phase", phase, detail);
        }
    } else if phase != "Active" {
        causes.invalid(
            "status.Phase",
            phase,
            "may only be 'Active' if `deletionTimestamp` is empty",
        );
    }
}

fn config_map(obj: &Value, causes: &mut Causes) {
    let mut size = 0;
    for (key, value) in entries(obj, "/data") {
        causes.invalid_each(&format!("data[{key}]"), key, config_key(key));
        if obj.get("binaryData").is_some_and(|b| b.get(key).is_some()) {
            causes.invalid(&format!("data[{key}]"), key, "duplicate of key present in binaryData");
        }
        size += value.len();
    }
    for (key, value) in entries(obj, "/binaryData") {
        causes.invalid_each(&format!("binaryData[{key}]"), key, config_key(key));
        size += decoded_length(value);
    }
    if size > DATA_MAX {
        causes.too_long("", DATA_MAX);
    }
}

/// Bytes behind a base64 text.
fn decoded_length(encoded: &str) -> usize {
    encoded.trim_end_matches('=').len() * 3 / 4
}

fn secret(obj: &Value, causes: &mut Causes) {
    let mut size = 0;
    for (key, value) in entries(obj, "/data") {
        causes.invalid_each(&format!("data[{key}]"), key, config_key(key));
        size += decoded_length(value);
    }
    if size > DATA_MAX {
        causes.too_long("data", DATA_MAX);
    }
    let has = |key: &str| obj.get("data").is_some_and(|data| data.get(key).is_some());
    let require = |keys: &[&str], causes: &mut Causes| {
        for key in keys.iter().filter(|key| !has(key)) {
            causes.required(&format!("data[{key}]"), "");
        }
    };
    match text(obj, "/type") {
        "kubernetes.io/service-account-token" => {
            let name = "kubernetes.io/service-account.name";
            let annotations = obj.pointer("/metadata/annotations");
            if annotations
                .and_then(|a| a.get(name))
                .and_then(Value::as_str)
                .is_none_or(str::is_empty)
            {
                causes.required(&format!("metadata.annotations[{name}]"), "");
            }
        }
        "kubernetes.io/dockercfg" => require(&[".dockercfg"], causes),
        "kubernetes.io/dockerconfigjson" => require(&[".dockerconfigjson"], causes),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            require(&["username", "password"], causes);
        }
        "kubernetes.io/ssh-auth" => require(&["ssh-privatekey"], causes),
        "kubernetes.io/tls" => require(&["tls.crt", "tls.key"], causes),
        _ => {}
    }
}

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

fn endpoints(obj: &Value, causes: &mut Causes) {
    for (index, subset) in list(obj, "/subsets").iter().enumerate() {
        let field = format!("subsets[{index}]");
        if list(subset, "/addresses").is_empty() && list(subset, "/notReadyAddresses").is_empty() {
            causes.required(&field, "must specify `addresses` or `notReadyAddresses`");
        }
        for kind in ["addresses", "notReadyAddresses"] {
            for (index, address) in list(subset, &format!("/{kind}")).iter().enumerate() {
                endpoint_address(&format!("{field}.{kind}[{index}]"), address, causes);
            }
        }
        let ports = list(subset, "/ports");
        for (index, port) in ports.iter().enumerate() {
            let field = format!("{field}.ports[{index}]");
            match text(port, "/name") {
                "" if ports.len() > 1 => causes.required(&format!("{field}.name"), ""),
                "" => {}
                name => causes.invalid_each(&format!("{field}.name"), name, dns_label(name)),
            }
            if let Some(wrong) = port_number(integer(port, "/port")) {
                causes.invalid(&format!("{field}.port"), integer(port, "/port"), wrong);
            }
            causes.one_of(&format!("{field}.protocol"), text(port, "/protocol"), &PROTOCOLS);
        }
    }
}

fn endpoint_address(field: &str, address: &Value, causes: &mut Causes) {
    let at = text(address, "/ip");
    let field_ip = format!("{field}.ip");
    if let Some(wrong) = ip(at) {
        causes.invalid(&field_ip, at, wrong);
    }
    let host = text(address, "/hostname");
    if !host.is_empty() {
        causes.invalid_each(&format!("{field}.hostname"), host, dns_label(host));
    }
    if let Some(node) = address.get("nodeName").and_then(Value::as_str) {
        causes.invalid_each(&format!("{field}.nodeName"), node, dns_subdomain(node));
    }
    causes.invalid_each(&field_ip, at, endpoint_ip(at));
}

fn endpoint_slice(obj: &Value, causes: &mut Causes) {
    let kind = text(obj, "/addressType");
    causes.one_of("addressType", kind, &["FQDN", "IPv4", "IPv6"]);
    let ports = list(obj, "/ports");
    for (index, port) in ports.iter().enumerate() {
        let (field, name) = (format!("ports[{index}]"), text(port, "/name"));
        if !name.is_empty() {
            causes.invalid_each(&format!("{field}.name"), name, dns_label(name));
        }
        if ports[..index]
            .iter()
            .any(|other| text(other, "/name") == name)
        {
            causes.duplicate(&format!("{field}.name"), name);
        }
        causes.one_of(&format!("{field}.protocol"), text(port, "/protocol"), &PROTOCOLS);
    }
    for (index, endpoint) in list(obj, "/endpoints").iter().enumerate() {
        let field = format!("endpoints[{index}].addresses");
        let addresses = list(endpoint, "/addresses");
        if addresses.is_empty() {
            causes.required(&field, "must contain at least 1 address");
        }
        for (index, address) in addresses.iter().enumerate().filter(|_| kind != "FQDN") {
            slice_address(kind, &field, index, address.as_str().unwrap_or_default(), causes);
        }
    }
}

fn slice_address(kind: &str, field: &str, index: usize, address: &str, causes: &mut Causes) {
    let item = format!("{field}[{index}]");
    if let Some(wrong) = ip(address) {
        causes.invalid(&item, address, wrong);
        return;
    }
    let is_six = address.parse::<IpAddr>().is_ok_and(|a| a.is_ipv6());
    if (kind == "IPv6") != is_six {
        causes.invalid(field, address, &format!("must be an {kind} address"));
    }
    causes.invalid_each(&item, address, endpoint_ip(address));
}
