//! Defaults of services, and the fields that a change of type clears.

use serde_json::{Value, json};

use super::{Fields, is_unset, items, object, set_if_unset};

/// Default timeout of `ClientIP` affinity.
const AFFINITY_SECONDS: i64 = 10_800;

pub(super) fn default(fields: &mut Fields) {
    if let Some(spec) = object(fields, "spec") {
        set_if_unset(spec, "type", "ClusterIP");
        session_affinity(spec);
        ports(spec);
        traffic_policies(spec);
        cluster_ips(spec);
        families(spec);
    }
    let is_load_balancer = fields
        .get("spec")
        .is_some_and(|spec| text(spec, "type") == "LoadBalancer");
    let Some(status) = object(fields, "status") else {
        return;
    };
    let Some(load_balancer) = object(status, "loadBalancer") else {
        return;
    };
    if is_load_balancer {
        for ingress in items(load_balancer, "ingress") {
            if !is_unset(ingress, "ip") {
                set_if_unset(ingress, "ipMode", "VIP");
            }
        }
    }
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object
        .get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn own_text<'a>(fields: &'a Fields, field: &str) -> &'a str {
    fields
        .get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn session_affinity(spec: &mut Fields) {
    set_if_unset(spec, "sessionAffinity", "None");
    match own_text(spec, "sessionAffinity") {
        "None" => drop(spec.remove("sessionAffinityConfig")),
        "ClientIP" => {
            if let Some(config) = object(spec, "sessionAffinityConfig")
                && let Some(client_ip) = object(config, "clientIP")
            {
                set_if_unset(client_ip, "timeoutSeconds", AFFINITY_SECONDS);
            }
        }
        _ => {}
    }
}

fn ports(spec: &mut Fields) {
    for port in items(spec, "ports") {
        set_if_unset(port, "protocol", "TCP");
        let no_target = is_unset(port, "targetPort")
            || port.get("targetPort").and_then(Value::as_i64) == Some(0);
        if no_target && let Some(number) = port.get("port").and_then(Value::as_i64) {
            port.insert("targetPort".to_owned(), number.into());
        }
    }
}

fn traffic_policies(spec: &mut Fields) {
    let kind = own_text(spec, "type").to_owned();
    let has_external_ips = spec
        .get("externalIPs")
        .and_then(Value::as_array)
        .is_some_and(|ips| !ips.is_empty());
    let external = match kind.as_str() {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => has_external_ips,
        _ => false,
    };
    if external {
        set_if_unset(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer") {
        set_if_unset(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        set_if_unset(spec, "allocateLoadBalancerNodePorts", true);
    }
}

/// Copies the singular field of older clients to the plural one.
fn cluster_ips(spec: &mut Fields) {
    let none_listed = match spec.get("clusterIPs") {
        None | Some(Value::Null) => true,
        Some(list) => list.as_array().is_some_and(Vec::is_empty),
    };
    if none_listed
        && let Some(ip) = spec
            .get("clusterIP")
            .filter(|ip| ip.as_str().is_some_and(|t| !t.is_empty()))
            .cloned()
    {
        spec.insert("clusterIPs".to_owned(), json!([ip]));
    }
}

/// Families follow the addresses when those are allocated; a headless service has none. Without a
/// selector it asks for both families, because nobody knows what endpoints it will be given.
fn families(spec: &mut Fields) {
    if own_text(spec, "type") == "ExternalName" {
        return;
    }
    let cluster_ip = own_text(spec, "clusterIP");
    let selectorless = spec
        .get("selector")
        .and_then(Value::as_object)
        .is_none_or(serde_json::Map::is_empty);
    let headless = cluster_ip == "None";
    let policy = if headless && selectorless {
        "RequireDualStack"
    } else {
        "SingleStack"
    };
    set_if_unset(spec, "ipFamilyPolicy", policy);
    if headless {
        let families = if selectorless {
            json!(["IPv4", "IPv6"])
        } else {
            json!(["IPv4"])
        };
        set_if_unset(spec, "ipFamilies", families);
    }
}

/// Clears what no longer applies when an update changes a service's type, unless the update changes
/// that field too (validation then names it). Call it after defaulting and before validation, as
/// the real server's strategy does; allocated values that go are the caller's to release.
pub fn drop_type_dependent_fields(old: &Value, new: &mut Value) {
    let (Some(old_spec), Some(new_spec)) =
        (old.get("spec"), new.get_mut("spec").and_then(Value::as_object_mut))
    else {
        return;
    };
    let (was, is) = (text(old_spec, "type").to_owned(), own_text(new_spec, "type").to_owned());
    let external = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    if was != "ExternalName" && is == "ExternalName" {
        let same_ips = ["clusterIP", "clusterIPs"]
            .iter()
            .all(|f| old_spec.get(*f) == new_spec.get(*f));
        if same_ips {
            new_spec.remove("clusterIP");
            new_spec.remove("clusterIPs");
        }
        remove_if_same(old_spec, new_spec, "ipFamilies");
        remove_if_same(old_spec, new_spec, "ipFamilyPolicy");
        // Never applied to this type; the real server drops it when reading.
        remove_if_same(old_spec, new_spec, "internalTrafficPolicy");
    }
    if external(&was) && !external(&is) {
        let node_ports = |ports: Option<&Value>| -> Vec<i64> {
            let ports = ports
                .and_then(Value::as_array)
                .map_or(&[][..], Vec::as_slice);
            ports
                .iter()
                .map(|p| {
                    p.get("nodePort")
                        .and_then(Value::as_i64)
                        .unwrap_or_default()
                })
                .collect()
        };
        let kept: Vec<i64> = node_ports(new_spec.get("ports"))
            .into_iter()
            .filter(|p| *p != 0)
            .collect();
        let before = node_ports(old_spec.get("ports"));
        if kept.iter().all(|port| before.contains(port)) {
            items(new_spec, "ports").for_each(|port| drop(port.remove("nodePort")));
        }
        let no_external_ips = new_spec
            .get("externalIPs")
            .and_then(Value::as_array)
            .is_none_or(Vec::is_empty);
        if no_external_ips || is != "ClusterIP" {
            remove_if_same(old_spec, new_spec, "externalTrafficPolicy");
        }
    }
    let checks_health = |kind: &str, policy: &str| kind == "LoadBalancer" && policy == "Local";
    if checks_health(&was, text(old_spec, "externalTrafficPolicy"))
        && !checks_health(&is, own_text(new_spec, "externalTrafficPolicy"))
    {
        remove_if_same(old_spec, new_spec, "healthCheckNodePort");
    }
    if was == "LoadBalancer" && is != "LoadBalancer" {
        remove_if_same(old_spec, new_spec, "allocateLoadBalancerNodePorts");
        remove_if_same(old_spec, new_spec, "loadBalancerClass");
    }
    if is != "LoadBalancer"
        && let Some(status) = new.get_mut("status").and_then(Value::as_object_mut)
    {
        status.insert("loadBalancer".to_owned(), json!({}));
    }
}

fn remove_if_same(old: &Value, new: &mut Fields, field: &str) {
    if old.get(field) == new.get(field) {
        new.remove(field);
    }
}
