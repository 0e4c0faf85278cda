//! Services: ports, cluster IPs, families, traffic policies, load balancer fields.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::causes::Causes;
use super::formats::{
    cidr, dns_label, dns_subdomain, endpoint_ip, ip, port_name, port_number, qualified_name,
};
use super::{integer, is_set, list, meta, text};

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const FAMILY_POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];
const TRAFFIC_POLICIES: [&str; 2] = ["Cluster", "Local"];
const DISTRIBUTIONS: [&str; 3] = ["PreferClose", "PreferSameZone", "PreferSameNode"];
const SOURCE_RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const BALANCER_ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
/// One day.
const AFFINITY_MAX_SECONDS: i64 = 86_400;

fn kind(service: &Value) -> &str {
    text(service, "/spec/type")
}

fn is_headless(service: &Value) -> bool {
    matches!(list(service, "/spec/clusterIPs"), [only] if only == "None")
}

fn has_external_policy(service: &Value) -> bool {
    matches!(kind(service), "NodePort" | "LoadBalancer")
        || (kind(service) == "ClusterIP" && !list(service, "/spec/externalIPs").is_empty())
}

fn needs_health_check(service: &Value) -> bool {
    kind(service) == "LoadBalancer" && text(service, "/spec/externalTrafficPolicy") == "Local"
}

pub(super) fn create(service: &Value, causes: &mut Causes) {
    object(service, None, causes);
}

pub(super) fn update(old: &Value, new: &Value, causes: &mut Causes) {
    if kind(old) != "ExternalName" && kind(new) != "ExternalName" {
        cluster_ips_kept(old, new, causes);
        families_kept(old, new, causes);
    }
    let class = |service: &Value| {
        service
            .pointer("/spec/loadBalancerClass")
            .cloned()
            .unwrap_or_default()
    };
    if kind(old) == "LoadBalancer" && kind(new) == "LoadBalancer" && class(old) != class(new) {
        causes.invalid("spec.loadBalancerClass", class(new), "may not change once set");
    }
    let health_port = |service: &Value| integer(service, "/spec/healthCheckNodePort");
    if needs_health_check(old) && needs_health_check(new) && health_port(old) != health_port(new) {
        causes.forbidden("spec.healthCheckNodePort", "field is immutable");
    }
    object(new, Some(old), causes);
    if old.pointer("/status/loadBalancer") != new.pointer("/status/loadBalancer") {
        balancer_status(new, causes);
    }
}

pub(super) fn before_allocation(
    old: Option<&Value>,
    service: &Value,
    configured: &[&str],
    causes: &mut Causes,
) {
    if kind(service) == "ExternalName" {
        return;
    }
    cluster_ips(service, old, causes);
    let without_selector = service
        .pointer("/spec/selector")
        .and_then(Value::as_object)
        .is_none_or(serde_json::Map::is_empty);
    let headless = text(service, "/spec/clusterIP") == "None";
    if !causes.is_empty() || (headless && without_selector) {
        return;
    }
    if text(service, "/spec/ipFamilyPolicy") == "RequireDualStack" && configured.len() < 2 {
        let detail = "this cluster is not configured for dual-stack services";
        causes.invalid("spec.ipFamilyPolicy", "RequireDualStack", detail);
    }
    for (index, family) in list(service, "/spec/ipFamilies")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        if !configured.contains(&family) {
            causes.invalid(
                &format!("spec.ipFamilies[{index}]"),
                family,
                "not configured on this cluster",
            );
        }
    }
}

fn object(service: &Value, old: Option<&Value>, causes: &mut Causes) {
    shape_by_type(service, causes);
    ports(service, causes);
    meta::labels(service, "/spec/selector", "spec.selector", causes);
    session_affinity(service, causes);
    if kind(service) != "ExternalName" {
        cluster_ips(service, old, causes);
    }
    external_ips(service, old, causes);
    causes.one_of("spec.type", kind(service), &TYPES);
    port_conflicts(service, causes);
    balancer_fields(service, causes);
    traffic_policies(service, causes);
}

fn shape_by_type(service: &Value, causes: &mut Causes) {
    let kind = kind(service);
    if list(service, "/spec/ports").is_empty() && !is_headless(service) && kind != "ExternalName" {
        causes.required("spec.ports", "");
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(service) => {
            causes.invalid(
                "spec.clusterIPs[0]",
                "None",
                &format!("may not be set to 'None' for {kind} services"),
            );
        }
        "ExternalName" => {
            let forbidden = "may not be set for ExternalName services";
            for field in ["clusterIPs", "ipFamilies"] {
                if !list(service, &format!("/spec/{field}")).is_empty() {
                    causes.forbidden(&format!("spec.{field}"), forbidden);
                }
            }
            if is_set(service, "/spec/ipFamilyPolicy") {
                causes.forbidden("spec.ipFamilyPolicy", forbidden);
            }
            match text(service, "/spec/externalName") {
                "" | "." => causes.required("spec.externalName", ""),
                name => {
                    let name = name.strip_suffix('.').unwrap_or(name);
                    causes.invalid_each("spec.externalName", name, dns_subdomain(name));
                }
            }
        }
        _ => {}
    }
}

fn ports(service: &Value, causes: &mut Causes) {
    let ports = list(service, "/spec/ports");
    let mut names = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{index}]");
        match text(port, "/name") {
            "" if ports.len() > 1 => causes.required(&format!("{field}.name"), ""),
            "" => {}
            name => {
                causes.invalid_each(&format!("{field}.name"), name, dns_label(name));
                if !names.insert(name) {
                    causes.duplicate(&format!("{field}.name"), name);
                }
            }
        }
        if let Some(wrong) = port_number(integer(port, "/port")) {
            causes.invalid(&format!("{field}.port"), integer(port, "/port"), wrong);
        }
        causes.one_of(&format!("{field}.protocol"), text(port, "/protocol"), &PROTOCOLS);
        let target = format!("{field}.targetPort");
        match port.get("targetPort").and_then(Value::as_str) {
            Some(name) => causes.invalid_each(&target, name, port_name(name)),
            None => {
                if let Some(wrong) = port_number(integer(port, "/targetPort")) {
                    causes.invalid(&target, integer(port, "/targetPort"), wrong);
                }
            }
        }
        if let Some(protocol) = port.get("appProtocol").and_then(Value::as_str) {
            causes.invalid_each(
                &format!("{field}.appProtocol"),
                protocol,
                qualified_name(protocol),
            );
        }
    }
}

fn session_affinity(service: &Value, causes: &mut Causes) {
    let affinity = text(service, "/spec/sessionAffinity");
    causes.one_of("spec.sessionAffinity", affinity, &["ClientIP", "None"]);
    let config = "spec.sessionAffinityConfig";
    match affinity {
        "ClientIP" => {
            let needed = "when session affinity type is ClientIP";
            if !is_set(service, "/spec/sessionAffinityConfig") {
                causes.required(config, needed);
            } else if !is_set(service, "/spec/sessionAffinityConfig/clientIP") {
                causes.required(&format!("{config}.clientIP"), needed);
            } else if !is_set(service, "/spec/sessionAffinityConfig/clientIP/timeoutSeconds") {
                causes.required(&format!("{config}.clientIP.timeoutSeconds"), needed);
            } else {
                let seconds =
                    integer(service, "/spec/sessionAffinityConfig/clientIP/timeoutSeconds");
                if !(1..=AFFINITY_MAX_SECONDS).contains(&seconds) {
                    let detail =
                        format!("must be greater than 0 and less than {AFFINITY_MAX_SECONDS}");
                    causes.invalid(&format!("{config}.clientIP.timeoutSeconds"), seconds, &detail);
                }
            }
        }
        "None" if is_set(service, "/spec/sessionAffinityConfig") => {
            causes.forbidden(config, "must not be set when session affinity is None");
        }
        _ => {}
    }
}

/// Returns the cluster IPs as the real server prints them.
fn ips(service: &Value) -> Value {
    service
        .pointer("/spec/clusterIPs")
        .cloned()
        .unwrap_or_default()
}

fn cluster_ips(service: &Value, old: Option<&Value>, causes: &mut Causes) {
    let addresses = list(service, "/spec/clusterIPs");
    let single = text(service, "/spec/clusterIP");
    match addresses.first() {
        None if !single.is_empty() => causes.required("spec.clusterIPs", ""),
        Some(_) if single.is_empty() => {
            causes.invalid(
                "spec.clusterIPs",
                ips(service),
                "must be empty when `clusterIP` is not specified",
            );
        }
        Some(first) if first != single => {
            causes.invalid("spec.clusterIPs", ips(service), "first value must match `clusterIP`");
        }
        _ => {}
    }
    families(service, causes);
    let known = old.map_or(&[][..], |old| list(old, "/spec/clusterIPs"));
    let mut wrong_addresses = false;
    for (index, address) in addresses.iter().enumerate() {
        let text = address.as_str().unwrap_or_default();
        if index == 0 && text == "None" {
            if addresses.len() > 1 {
                wrong_addresses = true;
                causes.invalid(
                    "spec.clusterIPs",
                    ips(service),
                    "'None' must be the first and only value",
                );
            }
        } else if let Some(wrong) = ip(text).filter(|_| !known.contains(address)) {
            wrong_addresses = true;
            causes.invalid(&format!("spec.clusterIPs[{index}]"), text, wrong);
        }
    }
    if addresses.len() > 2 {
        causes.invalid("spec.clusterIPs", ips(service), "may only hold up to 2 values");
    }
    if !wrong_addresses {
        cluster_ip_families(service, causes);
    }
}

fn families(service: &Value, causes: &mut Causes) {
    let families = list(service, "/spec/ipFamilies");
    for (index, family) in families.iter().enumerate() {
        let (field, name) =
            (format!("spec.ipFamilies[{index}]"), family.as_str().unwrap_or_default());
        if !FAMILIES.contains(&name) {
            causes.not_supported(&field, name, &FAMILIES);
        }
        if families[..index].contains(family) {
            causes.duplicate(&field, name);
        }
    }
    if is_set(service, "/spec/ipFamilyPolicy") {
        let policy = text(service, "/spec/ipFamilyPolicy");
        if !FAMILY_POLICIES.contains(&policy) {
            causes.not_supported("spec.ipFamilyPolicy", policy, &FAMILY_POLICIES);
        }
    }
}

fn cluster_ip_families(service: &Value, causes: &mut Causes) {
    let addresses = list(service, "/spec/clusterIPs");
    let is_six = |a: &Value| {
        a.as_str()
            .and_then(|t| t.parse().ok())
            .is_some_and(|a: IpAddr| a.is_ipv6())
    };
    if addresses.len() > 1
        && addresses.iter().map(is_six).collect::<BTreeSet<_>>().len() != addresses.len()
    {
        let detail = "may specify no more than one IP for each IP family";
        causes.invalid("spec.clusterIPs", ips(service), detail);
    }
    if is_headless(service) {
        return;
    }
    for (index, (address, family)) in addresses
        .iter()
        .zip(list(service, "/spec/ipFamilies"))
        .enumerate()
    {
        let wanted = if is_six(address) { "IPv6" } else { "IPv4" };
        if family
            .as_str()
            .is_some_and(|f| FAMILIES.contains(&f) && f != wanted)
        {
            let family = family.as_str().unwrap_or_default();
            let detail =
                format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
            causes.invalid(&format!("spec.clusterIPs[{index}]"), address.clone(), &detail);
        }
    }
}

fn cluster_ips_kept(old: &Value, new: &Value, causes: &mut Causes) {
    if is_headless(old) && is_headless(new) {
        return;
    }
    let (before, after) = (list(old, "/spec/clusterIPs"), list(new, "/spec/clusterIPs"));
    let changed = "may not change once set";
    if before.len() == after.len() {
        for index in (0..before.len()).filter(|i| before[*i] != after[*i]) {
            causes.invalid(&format!("spec.clusterIPs[{index}]"), ips(new), changed);
        }
        return;
    }
    if after.is_empty() {
        causes.invalid("spec.clusterIPs[0]", ips(new), "primary clusterIP can not be unset");
    }
    if before.iter().zip(after).next().is_some_and(|(a, b)| a != b) {
        causes.invalid("spec.clusterIPs[0]", ips(new), changed);
    }
    if before.len() > after.len()
        && after.len() == 1
        && text(new, "/spec/ipFamilyPolicy") != "SingleStack"
    {
        let policy = new
            .pointer("/spec/ipFamilyPolicy")
            .cloned()
            .unwrap_or_default();
        let detail = "must be set to 'SingleStack' when releasing the secondary clusterIP";
        causes.invalid("spec.ipFamilyPolicy", policy, detail);
    }
}

fn families_kept(old: &Value, new: &Value, causes: &mut Causes) {
    if is_headless(old) || is_headless(new) {
        return;
    }
    let (before, after) = (list(old, "/spec/ipFamilies"), list(new, "/spec/ipFamilies"));
    let shown = || new.pointer("/spec/ipFamilies").cloned().unwrap_or_default();
    let changed = "may not change once set";
    if before.len() == after.len() {
        // Upstream names the first index whichever differs.
        for _ in before.iter().zip(after).filter(|(a, b)| a != b) {
            causes.invalid("spec.ipFamilies[0]", shown(), changed);
        }
        return;
    }
    if before.len() > after.len() && list(new, "/spec/clusterIPs").is_empty() {
        causes.invalid("spec.ipFamilies[0]", shown(), "primary ipFamily can not be unset");
    }
    if before.iter().zip(after).next().is_some_and(|(a, b)| a != b) {
        causes.invalid("spec.ipFamilies[0]", ips(new), changed);
    }
    if before.len() > after.len()
        && after.len() == 1
        && text(new, "/spec/ipFamilyPolicy") != "SingleStack"
    {
        let policy = new
            .pointer("/spec/ipFamilyPolicy")
            .cloned()
            .unwrap_or_default();
        let detail = "must be set to 'SingleStack' when releasing the secondary ipFamily";
        causes.invalid("spec.ipFamilyPolicy", policy, detail);
    }
}

fn external_ips(service: &Value, old: Option<&Value>, causes: &mut Causes) {
    let known = old.map_or(&[][..], |old| list(old, "/spec/externalIPs"));
    for (index, address) in list(service, "/spec/externalIPs").iter().enumerate() {
        let (field, text) =
            (format!("spec.externalIPs[{index}]"), address.as_str().unwrap_or_default());
        match ip(text).filter(|_| !known.contains(address)) {
            Some(wrong) => causes.invalid(&field, text, wrong),
            None => causes.invalid_each(&field, text, endpoint_ip(text)),
        }
    }
}

fn port_conflicts(service: &Value, causes: &mut Causes) {
    let ports = list(service, "/spec/ports");
    let (mut node_ports, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (index, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{index}].nodePort");
        let node_port = integer(port, "/nodePort");
        if node_port == 0 {
            continue;
        }
        if kind(service) == "ClusterIP" {
            causes.forbidden(&field, "may not be used when `type` is 'ClusterIP'");
        }
        if !node_ports.insert((text(port, "/protocol"), node_port)) {
            causes.duplicate(&field, node_port);
        }
    }
    for (index, port) in ports.iter().enumerate() {
        let (protocol, number) = (text(port, "/protocol"), integer(port, "/port"));
        if !numbers.insert((protocol, number)) {
            let shown = format!(
                r#"{{"Name":"","Protocol":{},"AppProtocol":null,"Port":{number},"TargetPort":0,"NodePort":0}}"#,
                json!(protocol)
            );
            causes.duplicate_struct(&format!("spec.ports[{index}]"), &shown, "");
        }
    }
}

fn balancer_fields(service: &Value, causes: &mut Causes) {
    let is_balancer = kind(service) == "LoadBalancer";
    let ranges = list(service, "/spec/loadBalancerSourceRanges");
    let annotation = service
        .pointer("/metadata/annotations")
        .and_then(|a| a.get(SOURCE_RANGES_ANNOTATION));
    if !ranges.is_empty() {
        // Upstream spells this field with a capital in its messages.
        let field = "spec.LoadBalancerSourceRanges";
        if !is_balancer {
            causes.forbidden(field, BALANCER_ONLY);
        }
        for (index, range) in ranges
            .iter()
            .filter_map(Value::as_str)
            .map(str::trim)
            .enumerate()
        {
            causes.invalid_each(&format!("{field}[{index}]"), range, cidr(range));
        }
    } else if let Some(ranges) = annotation.and_then(Value::as_str) {
        let field = format!("metadata.annotations[{SOURCE_RANGES_ANNOTATION}]");
        if !is_balancer {
            causes.forbidden(&field, BALANCER_ONLY);
        }
        for range in ranges
            .split(',')
            .map(str::trim)
            .filter(|_| !ranges.trim().is_empty())
        {
            causes.invalid_each(&field, range, cidr(range));
        }
    }
    match (is_balancer, is_set(service, "/spec/allocateLoadBalancerNodePorts")) {
        (false, true) => causes.forbidden("spec.allocateLoadBalancerNodePorts", BALANCER_ONLY),
        (true, false) => causes.required("allocateLoadBalancerNodePorts", ""),
        _ => {}
    }
    if let Some(class) = service
        .pointer("/spec/loadBalancerClass")
        .and_then(Value::as_str)
    {
        if is_balancer {
            causes.invalid_each("spec.loadBalancerClass", class, qualified_name(class));
        } else {
            causes.forbidden("spec.loadBalancerClass", BALANCER_ONLY);
        }
    }
}

fn traffic_policies(service: &Value, causes: &mut Causes) {
    let external = text(service, "/spec/externalTrafficPolicy");
    if has_external_policy(service) {
        causes.one_of("spec.externalTrafficPolicy", external, &TRAFFIC_POLICIES);
    } else if !external.is_empty() {
        let detail = "may only be set for externally-accessible services";
        causes.invalid("spec.externalTrafficPolicy", external, detail);
    }
    let health_port = integer(service, "/spec/healthCheckNodePort");
    if needs_health_check(service) {
        if health_port == 0 {
            causes.required("spec.healthCheckNodePort", "");
        } else if let Some(wrong) = port_number(health_port) {
            causes.invalid("spec.healthCheckNodePort", health_port, wrong);
        }
    } else if health_port != 0 {
        let detail =
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        causes.invalid("spec.healthCheckNodePort", health_port, detail);
    }
    let internal = text(service, "/spec/internalTrafficPolicy");
    let in_cluster = matches!(kind(service), "ClusterIP" | "NodePort" | "LoadBalancer");
    if in_cluster || is_set(service, "/spec/internalTrafficPolicy") {
        causes.one_of("spec.internalTrafficPolicy", internal, &TRAFFIC_POLICIES);
    }
    if let Some(distribution) = service
        .pointer("/spec/trafficDistribution")
        .and_then(Value::as_str)
        && !DISTRIBUTIONS.contains(&distribution)
    {
        causes.not_supported("spec.trafficDistribution", distribution, &DISTRIBUTIONS);
    }
}

fn balancer_status(service: &Value, causes: &mut Causes) {
    let ingress = list(service, "/status/loadBalancer/ingress");
    let field = "status.loadBalancer.ingress";
    if kind(service) != "LoadBalancer" && !ingress.is_empty() {
        causes.forbidden(field, "may only be used when `spec.type` is 'LoadBalancer'");
        return;
    }
    for (index, entry) in ingress.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let (address, host, mode) =
            (text(entry, "/ip"), text(entry, "/hostname"), text(entry, "/ipMode"));
        if let Some(wrong) = ip(address).filter(|_| !address.is_empty()) {
            causes.invalid(&format!("{field}.ip"), address, wrong);
        }
        match (is_set(entry, "/ipMode"), address.is_empty()) {
            (false, false) => {
                causes.required(&format!("{field}.ipMode"), "must be specified when `ip` is set");
            }
            (true, true) => causes
                .forbidden(&format!("{field}.ipMode"), "may not be specified when `ip` is not set"),
            (true, false) if !["Proxy", "VIP"].contains(&mode) => {
                causes.not_supported(&format!("{field}.ipMode"), mode, &["Proxy", "VIP"]);
            }
            _ => {}
        }
        if !host.is_empty() {
            causes.invalid_each(&format!("{field}.hostname"), host, dns_subdomain(host));
            if host.parse::<IpAddr>().is_ok() {
                causes.invalid(
                    &format!("{field}.hostname"),
                    host,
                    "must be a DNS name, not an IP address",
                );
            }
        }
    }
}
