//! Cluster IPs and node ports that services hold.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::status::FieldError;

/// Node ports of the real server's default range.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

/// Cluster IPs and node ports in use. Recomputed from each stored service, so that nothing can
/// leak.
#[derive(Debug)]
pub(crate) struct Allocations {
    ranges: Vec<IpNet>,
    ips: BTreeMap<IpAddr, Owner>,
    ports: BTreeMap<u16, Owner>,
    /// The same by owner, so that a release touches only what is released.
    held: HashMap<Owner, (Vec<IpAddr>, Vec<u16>)>,
}

type Owner = (String, String);

impl Allocations {
    /// Hands out addresses of `ranges`; the first range is the primary family.
    pub(crate) fn new(ranges: Vec<IpNet>) -> Self {
        Self {
            ranges,
            ips: BTreeMap::new(),
            ports: BTreeMap::new(),
            held: HashMap::new(),
        }
    }

    /// Returns the IP family of the primary range, `IPv4` or `IPv6`.
    pub(crate) fn primary_family(&self) -> &'static str {
        if self.ranges.first().is_some_and(|r| r.addr().is_ipv6()) {
            "IPv6"
        } else {
            "IPv4"
        }
    }

    /// Returns true if both families have a range.
    pub(crate) fn is_dual_stack(&self) -> bool {
        self.ranges.iter().any(|r| r.addr().is_ipv4())
            && self.ranges.iter().any(|r| r.addr().is_ipv6())
    }

    /// Replaces what this service holds by what it now says.
    pub(crate) fn claim(&mut self, service: &Value) {
        let owner = owner(service);
        self.release(&owner.0, &owner.1);
        let (ips, ports) = (cluster_ips(service), held_ports(service));
        self.ips.extend(ips.iter().map(|ip| (*ip, owner.clone())));
        self.ports
            .extend(ports.iter().map(|port| (*port, owner.clone())));
        self.held.insert(owner, (ips, ports));
    }

    /// Frees all this service holds.
    pub(crate) fn release(&mut self, namespace: &str, name: &str) {
        let held = self.held.remove(&(namespace.to_owned(), name.to_owned()));
        let (ips, ports) = held.unwrap_or_default();
        for ip in ips {
            self.ips.remove(&ip);
        }
        for port in ports {
            self.ports.remove(&port);
        }
    }

    /// Fills in the addresses and ports `service` should have and does not, and clears those its
    /// type does not take.
    ///
    /// # Errors
    /// One error per address or port that is taken, out of range, or exhausted.
    pub(crate) fn fill(&self, service: &mut Value) -> Result<(), Vec<FieldError>> {
        let mut errors = Vec::new();
        if text(service, "type") != "ExternalName" {
            self.fill_ips(service, &mut errors);
            self.fill_ports(service, &mut errors);
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(errors)
        }
    }

    fn fill_ips(&self, service: &mut Value, errors: &mut Vec<FieldError>) {
        let mine = owner(service);
        if text(service, "clusterIP") == "None" {
            service["spec"]["clusterIPs"] = json!(["None"]);
            return;
        }
        let mut ips: Vec<String> = service["spec"]["clusterIPs"]
            .as_array()
            .map(|a| {
                a.iter()
                    .filter_map(|v| v.as_str().map(str::to_owned))
                    .collect()
            })
            .unwrap_or_default();
        let single = text(service, "clusterIP").to_owned();
        if ips.is_empty() && !single.is_empty() {
            ips.push(single);
        }
        self.check_policy(service, errors);
        let families = self.families(service, &ips);
        for (at, family) in families.iter().enumerate() {
            let field = format!("spec.clusterIPs[{at}]");
            match ips.get(at) {
                Some(ip) => self.check_ip(ip, &field, &mine, errors),
                None => match self.free_ip(family) {
                    Some(ip) => ips.push(ip.to_string()),
                    None => errors.push(FieldError {
                        reason: "InternalError".into(),
                        message: "Internal error: failed to allocate IP: range is full".into(),
                        field,
                    }),
                },
            }
        }
        if let Some(first) = ips.first() {
            service["spec"]["clusterIP"] = json!(first);
            service["spec"]["clusterIPs"] = json!(ips);
            service["spec"]["ipFamilies"] = json!(families);
        }
    }

    fn check_policy(&self, service: &Value, errors: &mut Vec<FieldError>) {
        if text(service, "ipFamilyPolicy") == "RequireDualStack" && !self.is_dual_stack() {
            let message = "this cluster is not configured for dual-stack services";
            errors.push(FieldError::invalid(
                "spec.ipFamilyPolicy",
                "\"RequireDualStack\"",
                message,
            ));
        }
    }

    fn families(&self, service: &mut Value, ips: &[String]) -> Vec<String> {
        let mut families: Vec<String> = service["spec"]["ipFamilies"]
            .as_array()
            .map(|a| {
                a.iter()
                    .filter_map(|v| v.as_str().map(str::to_owned))
                    .collect()
            })
            .unwrap_or_default();
        if families.is_empty() {
            families = ips
                .iter()
                .map(|ip| if ip.contains(':') { "IPv6" } else { "IPv4" }.to_owned())
                .collect();
        }
        if families.is_empty() {
            families.push(self.primary_family().to_owned());
        }
        if text(service, "ipFamilyPolicy").is_empty() {
            service["spec"]["ipFamilyPolicy"] = json!(if families.len() > 1 {
                "RequireDualStack"
            } else {
                "SingleStack"
            });
        }
        let wants_two = text(service, "ipFamilyPolicy") != "SingleStack" && self.is_dual_stack();
        if families.len() == 1 && wants_two {
            families.push(
                if families[0] == "IPv4" {
                    "IPv6"
                } else {
                    "IPv4"
                }
                .to_owned(),
            );
        }
        if text(service, "ipFamilyPolicy") == "SingleStack" {
            families.truncate(1);
        }
        families
    }

    fn check_ip(&self, ip: &str, field: &str, mine: &Owner, errors: &mut Vec<FieldError>) {
        let shown = format!("[\"{ip}\"]");
        let field_list = field.split('[').next().unwrap_or(field);
        let Ok(address) = ip.parse::<IpAddr>() else {
            errors.push(FieldError::invalid(
                field,
                &format!("\"{ip}\""),
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ));
            return;
        };
        if !self.ranges.iter().any(|r| r.contains(&address)) {
            let message = format!(
                "failed to allocate IP {ip}: the provided network does not match the current range"
            );
            errors.push(FieldError::invalid(field_list, &shown, &message));
        } else if self.ips.get(&address).is_some_and(|o| o != mine) {
            let message = format!("failed to allocate IP {ip}: provided IP is already allocated");
            errors.push(FieldError::invalid(field_list, &shown, &message));
        }
    }

    fn free_ip(&self, family: &str) -> Option<IpAddr> {
        let range = self
            .ranges
            .iter()
            .find(|r| r.addr().is_ipv6() == (family == "IPv6"))?;
        // The first address of the range is the real server's own service; a released one is not
        // handed out at once.
        let highest = self.ips.keys().rfind(|ip| range.contains(*ip));
        let fresh = range
            .hosts()
            .skip(1)
            .find(|ip| highest.is_none_or(|h| ip > h));
        fresh.or_else(|| range.hosts().skip(1).find(|ip| !self.ips.contains_key(ip)))
    }

    fn fill_ports(&self, service: &mut Value, errors: &mut Vec<FieldError>) {
        let mine = owner(service);
        let kind = text(service, "type").to_owned();
        let wanted = match kind.as_str() {
            "NodePort" => true,
            "LoadBalancer" => service["spec"]["allocateLoadBalancerNodePorts"]
                .as_bool()
                .unwrap_or(true),
            _ => false,
        };
        let takes_ports = matches!(kind.as_str(), "NodePort" | "LoadBalancer");
        let mut taken: BTreeSet<u16> = self
            .ports
            .iter()
            .filter(|(_, o)| **o != mine)
            .map(|(p, _)| *p)
            .collect();
        let mut used: Vec<(u16, String)> = Vec::new();
        let count = service["spec"]["ports"].as_array().map_or(0, Vec::len);
        for at in 0..count {
            let port = &service["spec"]["ports"][at];
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
            let asked = port["nodePort"]
                .as_u64()
                .and_then(|p| u16::try_from(p).ok())
                .unwrap_or(0);
            let field = format!("spec.ports[{at}].nodePort");
            if asked != 0 {
                if takes_ports {
                    check_port(asked, &field, &taken, errors);
                    used.push((asked, protocol));
                }
            } else if wanted {
                // One number serves TCP and UDP of the same service port, as in the real allocator.
                let number = service["spec"]["ports"][at]["port"].clone();
                let shared = (0..at)
                    .filter(|i| service["spec"]["ports"][*i]["port"] == number)
                    .filter_map(|i| {
                        service["spec"]["ports"][i]["nodePort"]
                            .as_u64()
                            .and_then(|p| u16::try_from(p).ok())
                    })
                    .find(|p| !used.contains(&(*p, protocol.clone())));
                taken.extend(used.iter().map(|(p, _)| *p));
                match shared.or_else(|| free_port(&taken)) {
                    Some(free) => {
                        service["spec"]["ports"][at]["nodePort"] = json!(free);
                        used.push((free, protocol));
                    }
                    None => errors.push(exhausted(&field)),
                }
            }
        }
        taken.extend(used.iter().map(|(p, _)| *p));
        Self::fill_health_port(service, &taken, errors);
    }

    fn fill_health_port(service: &mut Value, taken: &BTreeSet<u16>, errors: &mut Vec<FieldError>) {
        let needed = text(service, "type") == "LoadBalancer"
            && text(service, "externalTrafficPolicy") == "Local";
        if !needed {
            return;
        }
        let field = "spec.healthCheckNodePort";
        match service["spec"]["healthCheckNodePort"]
            .as_u64()
            .and_then(|p| u16::try_from(p).ok())
            .unwrap_or(0)
        {
            0 => match free_port(taken) {
                Some(free) => service["spec"]["healthCheckNodePort"] = json!(free),
                None => errors.push(exhausted(field)),
            },
            asked => check_port(asked, field, taken, errors),
        }
    }
}

/// Returns the lowest free port above the highest held one, so that a released port is not handed
/// out at once.
fn free_port(taken: &BTreeSet<u16>) -> Option<u16> {
    let highest = taken.last().copied().unwrap_or(NODE_PORTS.start() - 1);
    let after = (highest.max(NODE_PORTS.start() - 1) + 1..=*NODE_PORTS.end()).next();
    after.or_else(|| NODE_PORTS.clone().find(|p| !taken.contains(p)))
}

/// Copies fields that a client may omit in an update from `before`: addresses, node ports by port
/// name, and the health check port. A changed `clusterIP` changes the list.
pub(crate) fn carry(before: &Value, service: &mut Value) {
    let has_ip = |v: &Value| text(v, "type") != "ExternalName";
    if has_ip(before) && has_ip(service) {
        carry_ips(before, service);
    }
    let takes_ports = |v: &Value| matches!(text(v, "type"), "NodePort" | "LoadBalancer");
    if takes_ports(before) && takes_ports(service) {
        carry_ports(before, service);
    }
    let checks = |v: &Value| {
        text(v, "type") == "LoadBalancer" && text(v, "externalTrafficPolicy") == "Local"
    };
    let unset = |v: &Value| v["spec"]["healthCheckNodePort"].as_u64().unwrap_or(0) == 0;
    if checks(before) && checks(service) && unset(service) && !unset(before) {
        service["spec"]["healthCheckNodePort"] = before["spec"]["healthCheckNodePort"].clone();
    }
}

/// Copies the IP families that a client omitted in an update, before defaulting would choose new
/// ones.
pub(crate) fn carry_families(before: &Value, service: &mut Value) {
    if text(before, "type") == "ExternalName" || text(service, "type") == "ExternalName" {
        return;
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) else {
            return;
        };
        if !spec.contains_key(field) && !before["spec"][field].is_null() {
            spec.insert(field.into(), before["spec"][field].clone());
        }
    }
}

fn carry_ips(before: &Value, service: &mut Value) {
    if text(service, "clusterIP").is_empty() {
        service["spec"]["clusterIP"] = before["spec"]["clusterIP"].clone();
    }
    let list_kept = service["spec"]["clusterIPs"] == before["spec"]["clusterIPs"];
    let none = service["spec"]["clusterIPs"]
        .as_array()
        .is_none_or(Vec::is_empty);
    let same = service["spec"]["clusterIP"] == before["spec"]["clusterIP"];
    if none && same {
        service["spec"]["clusterIPs"] = before["spec"]["clusterIPs"].clone();
    } else if list_kept && !same {
        let changed = service["spec"]["clusterIP"].clone();
        let list = service
            .pointer_mut("/spec/clusterIPs")
            .and_then(Value::as_array_mut);
        if let Some(first) = list.and_then(|l| l.first_mut()) {
            *first = changed;
        }
    }
}

fn carry_ports(before: &Value, service: &mut Value) {
    let ports = |v: &Value| -> Vec<(String, u64)> {
        let list = v["spec"]["ports"].as_array().into_iter().flatten();
        let name = |p: &Value| p["name"].as_str().unwrap_or_default().to_owned();
        list.map(|p| (name(p), p["nodePort"].as_u64().unwrap_or(0)))
            .collect()
    };
    let old = ports(before);
    let mut used: BTreeSet<u64> = ports(service).into_iter().map(|(_, p)| p).collect();
    let list = service
        .pointer_mut("/spec/ports")
        .and_then(Value::as_array_mut);
    for port in list.into_iter().flatten() {
        let name = port["name"].as_str().unwrap_or_default().to_owned();
        let held = old.iter().find(|(n, _)| *n == name).map_or(0, |(_, p)| *p);
        if port["nodePort"].as_u64().unwrap_or(0) == 0 && held != 0 && used.insert(held) {
            port["nodePort"] = json!(held);
        }
    }
}

fn check_port(port: u16, field: &str, taken: &BTreeSet<u16>, errors: &mut Vec<FieldError>) {
    if !NODE_PORTS.contains(&port) {
        let message = format!(
            "provided port is not in the valid range. The range of valid ports is {}-{}",
            NODE_PORTS.start(),
            NODE_PORTS.end()
        );
        errors.push(FieldError::invalid(field, &port.to_string(), &message));
    } else if taken.contains(&port) {
        errors.push(FieldError::invalid(
            field,
            &port.to_string(),
            "provided port is already allocated",
        ));
    }
}

fn exhausted(field: &str) -> FieldError {
    FieldError {
        reason: "InternalError".into(),
        message: "Internal error: failed to allocate a nodePort: range is full".into(),
        field: field.into(),
    }
}

fn text<'a>(service: &'a Value, field: &str) -> &'a str {
    service["spec"][field].as_str().unwrap_or_default()
}

fn owner(service: &Value) -> Owner {
    let part = |key: &str| {
        service["metadata"][key]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (part("namespace"), part("name"))
}

fn cluster_ips(service: &Value) -> Vec<IpAddr> {
    let listed = service["spec"]["clusterIPs"]
        .as_array()
        .into_iter()
        .flatten();
    listed
        .chain([&service["spec"]["clusterIP"]])
        .filter_map(|v| v.as_str()?.parse().ok())
        .collect()
}

fn held_ports(service: &Value) -> Vec<u16> {
    let ports = service["spec"]["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|p| &p["nodePort"]);
    ports
        .chain([&service["spec"]["healthCheckNodePort"]])
        .filter_map(|v| u16::try_from(v.as_u64()?).ok())
        .filter(|p| *p != 0)
        .collect()
}
