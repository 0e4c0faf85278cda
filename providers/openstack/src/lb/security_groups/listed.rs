//! Compares a security group and server ports from a shared listing with the desired state. Pure.
//!
//! A listing can only prove that nothing has to change. If something is missing or differs, the
//! group is read for the Service alone.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    SecurityGroupTask,
    plan::{Rule, RuleDiff, diff_rules, is_of_server, ports_to_add, ports_to_remove},
};
use crate::api::neutron::{Port, SecurityGroup};

/// Ports of servers.
#[derive(Debug, Default)]
pub struct ServerPorts {
    by_server: HashMap<Box<str>, Vec<Port>>,
    /// Servers that have a port with a group, by group.
    by_group: HashMap<Box<str>, BTreeSet<Box<str>>>,
}

impl ServerPorts {
    /// Adds a port. Skips ports that do not belong to servers.
    pub fn add(&mut self, port: Port) {
        if !is_of_server(&port) {
            return;
        }
        let server: Box<str> = port.device_id.as_str().into();
        for group in port.security_groups.iter().flatten() {
            self.by_group
                .entry(group.as_str().into())
                .or_default()
                .insert(server.clone());
        }
        self.by_server.entry(server).or_default().push(port);
    }

    fn with_group(&self, group: &str) -> impl Iterator<Item = &Port> {
        self.by_group
            .get(group)
            .into_iter()
            .flatten()
            .filter_map(|server| self.by_server.get(server))
            .flatten()
            .filter(move |port| port.has_security_group(group))
    }
}

/// The groups with the name of a Service's group, and the ports of all servers.
#[derive(Clone, Debug)]
pub struct ListedSecurityGroup {
    /// Time when the listing began.
    pub started: Instant,
    /// Groups with the name; there should be one.
    pub groups: Vec<SecurityGroup>,
    /// Ports of all servers.
    pub ports: Arc<ServerPorts>,
}

impl ListedSecurityGroup {
    /// Returns true if the group has exactly these rules, the ports of the backends have it, and no
    /// port of another server does.
    pub(super) fn is_in_sync(&self, task: SecurityGroupTask<'_>, rules: &BTreeSet<Rule>) -> bool {
        let [group] = &self.groups[..] else {
            return false;
        };
        if diff_rules(rules, &group.security_group_rules) != RuleDiff::default() {
            return false;
        }
        let mut backend_ports = Vec::new();
        for backend in task.backends {
            let Some(server) = backend.server.as_deref() else {
                continue;
            };
            // The server is newer than the listing, so its port has to be read.
            let Some(ports) = self.ports.by_server.get(server) else {
                return false;
            };
            backend_ports.extend(ports);
        }
        ports_to_add(&group.id, task.subnet, task.backends, backend_ports).is_empty()
            && ports_to_remove(task.backends, self.ports.with_group(&group.id)).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use crate::api::neutron::{FixedIp, SecurityGroupRule};

    use super::*;
    use crate::lb::{desired_members::NodeBackend, model::SecurityGroupSpec};

    fn port(server: &str, address: &str, groups: &[&str]) -> Port {
        Port {
            id: format!("port-{server}"),
            device_id: server.into(),
            device_owner: "compute:nova".into(),
            fixed_ips: vec![FixedIp {
                subnet_id: "s".into(),
                ip_address: address.parse().unwrap(),
            }],
            security_groups: Some(groups.iter().map(|id| (*id).to_owned()).collect()),
            ..Port::default()
        }
    }

    fn backend(server: &str, address: &str) -> NodeBackend {
        NodeBackend {
            node: server.into(),
            address: address.parse().unwrap(),
            server: Some(server.into()),
        }
    }

    fn group(id: &str) -> SecurityGroup {
        let rule = Rule::ingress("tcp", 30080, &"10.0.0.0/16".parse().unwrap());
        let body = rule.body(id);
        let seen = SecurityGroupRule {
            id: "rule".into(),
            direction: body.direction,
            ethertype: rule.ethertype,
            protocol: body.protocol,
            port_range_min: body.port_range_min,
            port_range_max: body.port_range_max,
            remote_ip_prefix: body.remote_ip_prefix,
            ..SecurityGroupRule::default()
        };
        SecurityGroup {
            id: id.into(),
            security_group_rules: vec![seen],
            ..SecurityGroup::default()
        }
    }

    #[test]
    fn only_what_is_wholly_there_and_as_wanted_needs_no_look() {
        let wanted = SecurityGroupSpec {
            name: "lb-sg".into(),
            description: "".into(),
            ports: vec![("tcp", 30080)],
            health_port: None,
            clients: None,
        };
        let backends = [backend("a", "10.0.0.1"), backend("b", "10.0.0.2")];
        let task = SecurityGroupTask {
            group: &wanted,
            owner_uid: "u",
            subnet: "s",
            backends: &backends,
        };
        let rules = super::super::plan::desired_rules(&wanted, &"10.0.0.0/16".parse().unwrap());
        let (a, b) = (port("a", "10.0.0.1", &["g", "other"]), port("b", "10.0.0.2", &["g"]));
        let shows = |groups: &[SecurityGroup], rows: &[&Port]| {
            let mut ports = ServerPorts::default();
            for port in rows {
                ports.add((*port).clone());
            }
            let listed = ListedSecurityGroup {
                started: Instant::now(),
                groups: groups.to_vec(),
                ports: Arc::new(ports),
            };
            listed.is_in_sync(task, &rules)
        };
        let right = group("g");
        assert!(shows(std::slice::from_ref(&right), &[&a, &b]));
        let elsewhere = Port {
            device_owner: "network:dhcp".into(),
            ..port("c", "10.0.0.3", &["g"])
        };
        assert!(
            shows(std::slice::from_ref(&right), &[&a, &b, &elsewhere]),
            "what is no server's is left alone"
        );

        assert!(!shows(&[], &[&a, &b]), "no group");
        assert!(!shows(&[right.clone(), group("h")], &[&a, &b]), "two groups of the name");
        let bare = SecurityGroup { security_group_rules: Vec::new(), ..right.clone() };
        assert!(!shows(&[bare], &[&a, &b]), "a rule is missing");
        let mut more = right.clone();
        more.security_group_rules
            .push(SecurityGroupRule { id: "more".into(), ..SecurityGroupRule::default() });
        assert!(!shows(&[more], &[&a, &b]), "a rule too many");
        let right = std::slice::from_ref(&right);
        assert!(!shows(right, &[&a]), "a server that is not listed");
        assert!(
            !shows(right, &[&a, &port("b", "10.0.0.2", &["other"])]),
            "a port without the group"
        );
        assert!(!shows(right, &[&a, &b, &port("c", "10.0.0.3", &["g"])]), "a node that has left");
    }
}
