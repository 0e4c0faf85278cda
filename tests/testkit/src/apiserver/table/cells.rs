//! The cells of each kind but pods, in the order of its columns.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::age::since;

/// Number of addresses or ports in a list cell before the rest is only counted.
const SHOWN: usize = 3;

/// Returns the text at a JSON pointer, empty if there is none.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(super) fn text_or<'a>(object: &'a Value, pointer: &str, otherwise: &'a str) -> &'a str {
    Some(text(object, pointer))
        .filter(|t| !t.is_empty())
        .unwrap_or(otherwise)
}

pub(super) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

pub(super) fn name(object: &Value) -> Value {
    text(object, "/metadata/name").into()
}

pub(super) fn age(object: &Value, now: Timestamp) -> Value {
    time_since(object, "/metadata/creationTimestamp", now).into()
}

fn time_since(object: &Value, pointer: &str, now: Timestamp) -> String {
    since(object.pointer(pointer).and_then(Value::as_str), now)
}

fn entries(object: &Value, pointer: &str) -> usize {
    object
        .pointer(pointer)
        .and_then(Value::as_object)
        .map_or(0, serde_json::Map::len)
}

pub(super) fn node(object: &Value, now: Timestamp) -> Vec<Value> {
    let info = |field: &str| text(object, &format!("/status/nodeInfo/{field}"));
    let known = |field: &str| {
        Some(info(field))
            .filter(|t| !t.is_empty())
            .unwrap_or("<unknown>")
            .to_owned()
    };
    let mut kernel = known("kernelVersion");
    if !info("architecture").is_empty() {
        kernel = format!("{kernel} ({})", info("architecture"));
    }
    vec![
        name(object),
        node_status(object).into(),
        node_roles(object).into(),
        age(object, now),
        info("kubeletVersion").into(),
        node_address(object, "InternalIP").into(),
        node_address(object, "ExternalIP").into(),
        known("osImage").into(),
        kernel.into(),
        known("containerRuntimeVersion").into(),
    ]
}

fn node_status(object: &Value) -> String {
    let ready = list(object, "/status/conditions")
        .iter()
        .rev()
        .find(|c| text(c, "/type") == "Ready");
    let status = match ready {
        Some(condition) if text(condition, "/status") == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let cordoned = object
        .pointer("/spec/unschedulable")
        .and_then(Value::as_bool)
        .unwrap_or_default();
    format!("{status}{}", if cordoned { ",SchedulingDisabled" } else { "" })
}

/// Returns the sorted roles, from `node-role.kubernetes.io/<role>` and the older
/// `kubernetes.io/role=<role>`.
fn node_roles(object: &Value) -> String {
    let labels = object
        .pointer("/metadata/labels")
        .and_then(Value::as_object);
    let roles: BTreeSet<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    if roles.is_empty() {
        "<none>".to_owned()
    } else {
        Vec::from_iter(roles).join(",")
    }
}

fn node_address<'a>(object: &'a Value, kind: &str) -> &'a str {
    let address = list(object, "/status/addresses")
        .iter()
        .find(|a| text(a, "/type") == kind);
    address.map_or("<none>", |a| text(a, "/address"))
}

pub(super) fn service(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        text(object, "/spec/type").into(),
        text_or(object, "/spec/clusterIPs/0", "<none>").into(),
        service_external(object).into(),
        service_ports(object).into(),
        age(object, now),
        labels(object.pointer("/spec/selector")).into(),
    ]
}

fn service_external(object: &Value) -> String {
    let external: Vec<&str> = list(object, "/spec/externalIPs")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let (assigned, otherwise) = match text(object, "/spec/type") {
        "ClusterIP" | "NodePort" => (BTreeSet::new(), "<none>"),
        "LoadBalancer" => (ingress(object), "<pending>"),
        "ExternalName" => return text(object, "/spec/externalName").to_owned(),
        _ => return "<unknown>".to_owned(),
    };
    let all: Vec<&str> = assigned.into_iter().chain(external).collect();
    if all.is_empty() {
        otherwise.to_owned()
    } else {
        all.join(",")
    }
}

/// Returns the sorted addresses of the load balancer; an entry's IP precedes its host name.
fn ingress(object: &Value) -> BTreeSet<&str> {
    list(object, "/status/loadBalancer/ingress")
        .iter()
        .map(|entry| text_or(entry, "/ip", text(entry, "/hostname")))
        .filter(|address| !address.is_empty())
        .collect()
}

fn service_ports(object: &Value) -> String {
    let ports: Vec<String> = list(object, "/spec/ports")
        .iter()
        .map(|port| {
            let (number, protocol) = (integer(port, "/port"), text(port, "/protocol"));
            match integer(port, "/nodePort") {
                0 => format!("{number}/{protocol}"),
                node_port => format!("{number}:{node_port}/{protocol}"),
            }
        })
        .collect();
    if ports.is_empty() {
        "<none>".to_owned()
    } else {
        ports.join(",")
    }
}

/// Returns the integer at a JSON pointer, zero if there is none.
pub(super) fn integer(object: &Value, pointer: &str) -> i64 {
    object
        .pointer(pointer)
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

/// Formats labels as `a=b,c=d`, sorted by key, or `<none>`.
fn labels(selector: Option<&Value>) -> String {
    let pairs: BTreeSet<String> = selector
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    if pairs.is_empty() {
        "<none>".to_owned()
    } else {
        Vec::from_iter(pairs).join(",")
    }
}

/// Events of both groups: the newer one names the same fields differently.
pub(super) fn event(object: &Value, now: Timestamp) -> Vec<Value> {
    let either = |new: &str, old: &str| text_or(object, new, text(object, old)).to_owned();
    let about = if object.get("regarding").is_some() {
        "/regarding"
    } else {
        "/involvedObject"
    };
    let first_time = either("/deprecatedFirstTimestamp", "/firstTimestamp");
    let last_time = either("/deprecatedLastTimestamp", "/lastTimestamp");
    let ago = |time: &str| since(Some(time), now);
    let first = if first_time.is_empty() {
        time_since(object, "/eventTime", now)
    } else {
        ago(&first_time)
    };
    let mut last = if last_time.is_empty() {
        first.clone()
    } else {
        ago(&last_time)
    };
    let mut count = integer(object, "/deprecatedCount").max(integer(object, "/count"));
    if let Some(series) = object.get("series").filter(|s| s.is_object()) {
        last = time_since(series, "/lastObservedTime", now);
        count = integer(series, "/count");
    } else if count == 0 {
        // An event of the newer form that happened once carries no count.
        count = 1;
    }
    vec![
        last.into(),
        text(object, "/type").into(),
        text(object, "/reason").into(),
        event_target(object, about).into(),
        text(object, &format!("{about}/fieldPath")).into(),
        event_source(object).into(),
        either("/note", "/message").trim().into(),
        first.into(),
        count.into(),
        name(object),
    ]
}

fn event_target(object: &Value, about: &str) -> String {
    let kind = text(object, &format!("{about}/kind")).to_lowercase();
    match text(object, &format!("{about}/name")) {
        "" => kind,
        name => format!("{kind}/{name}"),
    }
}

fn event_source(object: &Value) -> String {
    let first = |pointers: [&str; 3]| {
        pointers
            .map(|p| text(object, p))
            .into_iter()
            .find(|t| !t.is_empty())
    };
    let component =
        first(["/source/component", "/deprecatedSource/component", "/reportingController"]);
    let component = component.unwrap_or_else(|| text(object, "/reportingComponent"));
    match first(["/source/host", "/deprecatedSource/host", "/reportingInstance"]) {
        Some(instance) => format!("{component}, {instance}"),
        None => component.to_owned(),
    }
}

pub(super) fn namespace(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), text(object, "/status/phase").into(), age(object, now)]
}

pub(super) fn secret(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        text(object, "/type").into(),
        entries(object, "/data").into(),
        age(object, now),
    ]
}

pub(super) fn config_map(object: &Value, now: Timestamp) -> Vec<Value> {
    let data = entries(object, "/data") + entries(object, "/binaryData");
    vec![name(object), data.into(), age(object, now)]
}

pub(super) fn service_account(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), age(object, now)]
}

pub(super) fn lease(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), text(object, "/spec/holderIdentity").into(), age(object, now)]
}

pub(super) fn endpoints(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in list(object, "/subsets") {
        let addresses = list(subset, "/addresses").iter().map(|a| text(a, "/ip"));
        // A headless service may have no ports.
        if list(subset, "/ports").is_empty() {
            all.extend(addresses.map(str::to_owned));
            continue;
        }
        for port in list(subset, "/ports") {
            all.extend(
                addresses
                    .clone()
                    .map(|ip| host_port(ip, integer(port, "/port"))),
            );
        }
    }
    let shown = if list(object, "/subsets").is_empty() {
        "<none>".to_owned()
    } else {
        abridged(&all)
    };
    vec![name(object), shown.into(), age(object, now)]
}

fn host_port(ip: &str, port: i64) -> String {
    if ip.contains(':') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    }
}

pub(super) fn endpoint_slice(object: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = list(object, "/ports")
        .iter()
        .map(|port| match port.get("port").and_then(Value::as_i64) {
            Some(number) => number.to_string(),
            None => port
                .get("name")
                .and_then(Value::as_str)
                .unwrap_or("*")
                .to_owned(),
        })
        .collect();
    let addresses: Vec<String> = list(object, "/endpoints")
        .iter()
        .flat_map(|endpoint| list(endpoint, "/addresses"))
        .map(|address| address.as_str().unwrap_or_default().to_owned())
        .collect();
    let shown = |all: &[String]| {
        Some(abridged(all))
            .filter(|t| !t.is_empty())
            .unwrap_or_else(|| "<unset>".to_owned())
    };
    vec![
        name(object),
        text(object, "/addressType").into(),
        shown(&ports).into(),
        shown(&addresses).into(),
        age(object, now),
    ]
}

/// Returns the first few, and how many are left.
fn abridged(all: &[String]) -> String {
    let shown = all[..all.len().min(SHOWN)].join(",");
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} + {more} more..."),
    }
}

/// Returns the cells of a kind without printer columns of its own.
pub(super) fn other(object: &Value) -> Vec<Value> {
    vec![name(object), text(object, "/metadata/creationTimestamp").into()]
}
