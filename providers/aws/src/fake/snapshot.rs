//! The account as text, without what depends on the order of events.

use std::{collections::BTreeMap, fmt};

use super::{
    FakeAws,
    groups::group_of,
    instances::state_name,
    state::{AccountState, RouteNextHop},
};
use crate::api::{
    SecurityGroupId, Tags, TargetGroupArn,
    ec2::{RouteTarget, Rule},
};

/// The account in comparable form: IDs and ARNs of objects that the provider creates are replaced
/// by names; times, and what only time changes (health, draining targets, lingering interfaces),
/// are left out. Two runs with the same outcome have equal snapshots.
#[derive(Clone, PartialEq, Eq)]
pub struct AccountSnapshot(BTreeMap<String, BTreeMap<String, String>>);

impl AccountSnapshot {
    /// Returns the differences: one line per field, `-` for this snapshot and `+` for the other.
    pub fn diff(&self, other: &Self) -> String {
        let lines = |of: &Self| -> Vec<String> {
            let fields =
                of.0.iter()
                    .flat_map(|(object, fields)| fields.iter().map(move |field| (object, field)));
            fields
                .map(|(object, (field, value))| format!("{object}: {field}: {value}"))
                .collect()
        };
        let here = lines(self);
        let there = lines(other);
        let gone = here
            .iter()
            .filter(|line| !there.contains(line))
            .map(|line| format!("- {line}\n"));
        let new = there
            .iter()
            .filter(|line| !here.contains(line))
            .map(|line| format!("+ {line}\n"));
        gone.chain(new).collect()
    }

    /// Returns the objects whose names `keep` accepts.
    #[must_use]
    pub fn only(&self, keep: impl Fn(&str) -> bool) -> Self {
        Self(
            self.0
                .iter()
                .filter(|(name, _)| keep(name))
                .map(|(name, of)| (name.clone(), of.clone()))
                .collect(),
        )
    }

    /// Returns the names of all objects, such as `load balancer a123`.
    pub fn objects(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

impl fmt::Display for AccountSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (object, fields) in &self.0 {
            writeln!(f, "{object}")?;
            for (field, value) in fields {
                writeln!(f, "  {field}: {value}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for AccountSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{self}")
    }
}

impl FakeAws {
    /// Returns a snapshot of the account.
    pub fn snapshot(&self) -> AccountSnapshot {
        let mut state = self.state.lock();
        state.advance();
        let mut all = BTreeMap::new();
        let mut add = |object: String, fields: Vec<(&str, String)>| {
            let fields = fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value));
            all.insert(object, fields.collect::<BTreeMap<_, _>>());
        };
        state.add_network(&mut add);
        state.add_groups(&mut add);
        state.add_balancers(&mut add);
        state.add_classics(&mut add);
        state.add_target_groups(&mut add);
        AccountSnapshot(all)
    }
}

type Fields<'a> = Vec<(&'a str, String)>;

fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let mut items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    items.sort();
    items.join(", ")
}

fn pairs(tags: &Tags) -> String {
    list(tags.iter().map(|(key, value)| format!("{key}={value}")))
}

impl AccountState {
    fn add_network(&self, add: &mut impl FnMut(String, Fields<'_>)) {
        for (id, subnet) in &self.subnets {
            add(format!("subnet {id}"), vec![("tags", pairs(&subnet.tags))]);
        }
        for (id, table) in &self.tables {
            let routes = table.routes.iter().map(|route| {
                let hop = match &route.target {
                    RouteNextHop::Gateway(gateway) => gateway.to_string(),
                    RouteNextHop::Target(RouteTarget::Instance(id)) => id.to_string(),
                    RouteNextHop::Target(RouteTarget::Interface(id)) => id.to_string(),
                };
                format!(
                    "{} to {hop}",
                    route
                        .destination
                        .map(|it| it.to_string())
                        .unwrap_or_default()
                )
            });
            add(
                format!("route table {id}"),
                vec![("routes", list(routes)), ("tags", pairs(&table.tags))],
            );
        }
        for (id, instance) in &self.instances {
            let enis = || instance.enis.iter().filter_map(|id| self.enis.get(id));
            let checked = enis()
                .map(|eni| eni.source_dest_check.to_string())
                .collect::<Vec<_>>()
                .join(", ");
            let groups = enis()
                .flat_map(|eni| &eni.groups)
                .map(|id| self.group_name(id));
            let fields = vec![
                ("state", state_name(instance.state).to_owned()),
                ("source/destination check", checked),
                ("security groups", list(groups)),
                ("tags", pairs(&instance.tags)),
            ];
            add(format!("instance {id}"), fields);
        }
        for (id, eip) in &self.eips {
            add(format!("address {id}"), vec![("in use", eip.used_by.is_some().to_string())]);
        }
    }

    fn add_classics(&self, add: &mut impl FnMut(String, Fields<'_>)) {
        for (name, classic) in &self.classics {
            let listeners = classic.listeners.values().map(|(listener, policies)| {
                format!(
                    "{}:{} to {}:{} {} {}",
                    listener.protocol,
                    listener.port,
                    listener.instance_protocol,
                    listener.instance_port,
                    listener
                        .certificate
                        .as_deref()
                        .unwrap_or("without certificate"),
                    list(policies),
                )
            });
            let backends = classic.backends.iter();
            let backends = backends.map(|(port, policies)| format!("{port}: {}", list(policies)));
            let fields = vec![
                ("scheme", classic.scheme.to_string()),
                ("subnets", list(&classic.subnets)),
                ("security groups", list(classic.groups.iter().map(|id| self.group_name(id)))),
                ("listeners", list(listeners)),
                ("backend policies", list(backends)),
                ("health check", format!("{:?}", classic.health_check)),
                ("attributes", format!("{:?}", classic.attributes)),
                ("instances", list(&classic.instances)),
                ("tags", pairs(&classic.tags)),
            ];
            add(format!("classic load balancer {name}"), fields);
        }
    }

    fn add_groups(&self, add: &mut impl FnMut(String, Fields<'_>)) {
        for (id, group) in &self.groups {
            let rules = list(group.ingress.iter().map(|rule| self.rule_text(rule)));
            let fields = vec![
                ("description", group.description.to_string()),
                ("ingress", rules),
                ("tags", pairs(&group.tags)),
            ];
            add(format!("security group {}", self.group_name(id)), fields);
        }
    }

    fn add_balancers(&self, add: &mut impl FnMut(String, Fields<'_>)) {
        for balancer in self.balancers.values() {
            let mappings = balancer.mappings.iter().map(|mapping| {
                let allocation = mapping.allocation.iter().map(|it| format!(" {it}"));
                let v4 = mapping.private_ipv4.iter().map(|it| format!(" {it}"));
                let v6 = mapping.ipv6.iter().map(|it| format!(" {it}"));
                let prefix = mapping.source_nat_prefix.iter().map(|it| format!(" {it}"));
                let addresses: String = allocation.chain(v4).chain(v6).chain(prefix).collect();
                format!("{}{addresses}", mapping.subnet)
            });
            let fields = vec![
                ("kind", balancer.kind.to_string()),
                ("scheme", balancer.scheme.to_string()),
                ("address type", balancer.ip_address_type.to_string()),
                ("subnets", list(mappings)),
                ("security groups", list(balancer.groups.iter().map(|id| self.group_name(id)))),
                ("private link rules", balancer.private_link_rules.to_string()),
                ("IPv6 source NAT", balancer.ipv6_source_nat.to_string()),
                ("capacity units", balancer.capacity_units.to_string()),
                ("attributes", pairs(&balancer.attributes)),
                ("tags", pairs(&balancer.tags)),
            ];
            add(format!("load balancer {}", balancer.name), fields);
        }
        for listener in self.listeners.values() {
            let name = self
                .balancers
                .get(&listener.load_balancer)
                .map_or("?", |balancer| &balancer.name);
            let text = |text: &Option<Box<str>>| text.as_deref().unwrap_or("none").to_owned();
            let fields = vec![
                ("target group", self.target_group_name(&listener.target_group)),
                ("certificate", text(&listener.certificate)),
                ("more certificates", list(&listener.more_certificates)),
                ("policy", text(&listener.ssl_policy)),
                ("ALPN policy", text(&listener.alpn_policy)),
                ("attributes", pairs(&listener.attributes)),
                ("tags", pairs(&listener.tags)),
            ];
            add(format!("listener {name} {}/{}", listener.protocol, listener.port), fields);
        }
    }

    fn add_target_groups(&self, add: &mut impl FnMut(String, Fields<'_>)) {
        for group in self.target_groups.values() {
            let targets = group
                .targets
                .iter()
                .filter(|(_, target)| target.draining.is_none());
            let targets = targets.map(|((id, port), target)| {
                format!("{id}:{port} {}", target.zone.as_deref().unwrap_or_default())
                    .trim_end()
                    .to_owned()
            });
            let fields = vec![
                ("protocol", format!("{}/{}", group.protocol, group.port)),
                ("targets are", format!("{} {}", group.target_type, group.ip_address_type)),
                ("health check", format!("{:?}", group.health_check)),
                ("targets", list(targets)),
                ("attributes", pairs(&group.attributes)),
                ("tags", pairs(&group.tags)),
            ];
            add(format!("target group {}", group.name), fields);
        }
    }

    /// Returns a name for a security group that is unique in the account.
    fn group_name(&self, id: &SecurityGroupId) -> String {
        self.groups
            .get(id)
            .map_or_else(|| "gone".to_owned(), |group| format!("{} ({})", group.name, group.vpc))
    }

    fn target_group_name(&self, arn: &TargetGroupArn) -> String {
        self.target_groups
            .get(arn)
            .map_or_else(|| "gone".to_owned(), |group| group.name.to_string())
    }

    fn rule_text(&self, rule: &Rule) -> String {
        let source = match group_of(rule) {
            Some(id) => format!("group {}", self.group_name(id)),
            None => format!("{:?}", rule.source),
        };
        let ports = rule
            .ports
            .map(|(from, to)| format!(" {from}-{to}"))
            .unwrap_or_default();
        format!("{}{ports} from {source} {:?}", rule.protocol, rule.description)
    }
}
