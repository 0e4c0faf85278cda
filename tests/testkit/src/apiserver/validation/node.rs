//! Nodes: taints, pod networks, and the fields that are written once.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::causes::Causes;
use super::formats::{cidr, label_value, qualified_name};
use super::{entries, list, text};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn create(node: &Value, causes: &mut Causes) {
    taints(node, causes);
    resources(node, causes);
    pod_cidrs(node, causes);
}

pub(super) fn update(old: &Value, new: &Value, causes: &mut Causes) {
    resources(new, causes);
    addresses(new, causes);
    let before = list(old, "/spec/podCIDRs");
    let after = list(new, "/spec/podCIDRs");
    let detail = "node updates may not change podCIDR except from \"\" to valid";
    if !before.is_empty() && before.len() != after.len() {
        causes.forbidden("spec.podCIDRs", detail);
    } else {
        // One for each that differs, as upstream.
        for _ in before.iter().zip(after).filter(|(a, b)| a != b) {
            causes.forbidden("spec.podCIDRs", detail);
        }
    }
    let provider_id = text(old, "/spec/providerID");
    if !provider_id.is_empty() && provider_id != text(new, "/spec/providerID") {
        causes.forbidden(
            "spec.providerID",
            "node updates may not change providerID except from \"\" to valid",
        );
    }
    taints(new, causes);
    if text(old, "/spec/externalID") != text(new, "/spec/externalID") {
        causes.forbidden("spec.externalID", "may not be updated");
    }
}

/// Checks the taints. Upstream reports their errors under `metadata`, too.
fn taints(node: &Value, causes: &mut Causes) {
    let taints = list(node, "/spec/taints");
    for (index, taint) in taints.iter().enumerate() {
        let field = format!("metadata.taints[{index}]");
        let (key, value, effect) =
            (text(taint, "/key"), text(taint, "/value"), text(taint, "/effect"));
        causes.invalid_each(&format!("{field}.key"), key, qualified_name(key));
        let wrong = label_value(value);
        if !wrong.is_empty() {
            causes.invalid(&format!("{field}.value"), value, &wrong.join(";"));
        }
        causes.one_of(&format!("{field}.effect"), effect, &EFFECTS);
        let same = |other: &Value| (text(other, "/key"), text(other, "/effect")) == (key, effect);
        if taints[..index].iter().any(same) {
            let time = taint.get("timeAdded").cloned().unwrap_or_default();
            let shown = format!(
                r#"{{"Key":{},"Value":{},"Effect":{},"TimeAdded":{time}}}"#,
                json!(key),
                json!(value),
                json!(effect)
            );
            causes.duplicate_struct(&field, &shown, "taints must be unique by key and effect pair");
        }
    }
}

fn resources(node: &Value, causes: &mut Causes) {
    for field in ["capacity", "allocatable"] {
        for (name, amount) in entries(node, &format!("/status/{field}")) {
            if amount.starts_with('-') {
                causes.invalid(
                    &format!("status.{field}.{name}"),
                    amount,
                    "must be greater than or equal to 0",
                );
            }
        }
    }
}

fn pod_cidrs(node: &Value, causes: &mut Causes) {
    let cidrs = list(node, "/spec/podCIDRs");
    for (index, value) in cidrs.iter().filter_map(Value::as_str).enumerate() {
        causes.invalid_each(&format!("spec.podCIDRs[{index}]"), value, cidr(value));
    }
    if cidrs.len() > 1 {
        let families: Vec<bool> = cidrs
            .iter()
            .filter_map(|c| c.as_str()?.parse::<IpNet>().ok())
            .map(|net| matches!(net.addr(), IpAddr::V4(_)))
            .collect();
        if !(families.contains(&true) && families.contains(&false)) || cidrs.len() > 2 {
            let detail = "may specify no more than one CIDR for each IP family";
            causes.invalid("spec.podCIDRs", json!(cidrs), detail);
        }
    }
}

fn addresses(node: &Value, causes: &mut Causes) {
    let addresses = list(node, "/status/addresses");
    for (index, address) in addresses.iter().enumerate() {
        let parts = |a: &Value| (text(a, "/type").to_owned(), text(a, "/address").to_owned());
        if addresses[..index]
            .iter()
            .any(|other| parts(other) == parts(address))
        {
            let (kind, address) = parts(address);
            let shown = format!(r#"{{"Type":{},"Address":{}}}"#, json!(kind), json!(address));
            causes.duplicate_struct(&format!("status.addresses[{index}]"), &shown, "");
        }
    }
}
