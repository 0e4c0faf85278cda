//! What there is in the cloud, as lines of text that a test can write down: IDs are replaced by what they stand for.

use std::collections::BTreeSet;

use openstack_api::octavia::{Listener, LoadBalancer, Pool};
use openstack_local::state::State;

use super::{CLUSTER, cloud::Instance};

/// Everything of load balancers, floating IPs, security groups and routes, one fact a line:
///
/// ```text
/// default/web: driver amphora
/// default/web: tag default/web
/// default/web: floating ip in public-a
/// default/web:80: listens TCP
/// default/web:80: pool TCP ROUND_ROBIN
/// default/web:80: member node-0 30080 in vips
/// group lb-sg-default-web: tcp 30080 from vips
/// node-0: pairs 10.244.0.0/24
/// router: 10.244.0.0/24 via node-0
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct World {
    lines: BTreeSet<String>,
}

impl World {
    /// Fails unless each of these lines is there; one that begins with `!` must have no line that begins so.
    pub(crate) fn has<L: AsRef<str>>(&self, lines: &[L]) -> Result<(), String> {
        let holds = |line: &&str| match line.strip_prefix('!') {
            Some(start) => !self.lines.iter().any(|there| there.starts_with(start)),
            None => self.lines.contains(*line),
        };
        let wrong: Vec<_> = lines.iter().map(AsRef::as_ref).filter(|line| !holds(line)).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let owners: BTreeSet<_> = wrong.iter().map(|line| owner(line.trim_start_matches('!'))).collect();
        let near: Vec<_> = self.lines.iter().filter(|line| owners.contains(owner(line))).collect();
        Err(format!("{wrong:#?} do not hold of {near:#?}"))
    }

    /// Says what two differ in.
    pub(crate) fn same(&self, as_of: &Self) -> Result<(), String> {
        let less: Vec<_> = as_of.lines.difference(&self.lines).collect();
        let more: Vec<_> = self.lines.difference(&as_of.lines).collect();
        if less.is_empty() && more.is_empty() {
            Ok(())
        } else {
            Err(format!("missing: {less:#?}\ntoo much: {more:#?}"))
        }
    }

    /// The same with further lines.
    pub(crate) fn with(&self, lines: &[String]) -> Self {
        Self { lines: self.lines.iter().chain(lines).cloned().collect() }
    }

    pub(super) fn read(state: &State, servers: &[Instance]) -> Self {
        let mut reader = Reader { state, servers, lines: Vec::new() };
        for row in state.octavia.load_balancers.iter() {
            reader.balancer(&row.body);
        }
        reader.orphans();
        reader.floating_ips();
        reader.groups();
        reader.ports();
        for router in state.neutron.routers.iter() {
            for route in &router.routes {
                let via = reader.node(&route.nexthop);
                reader.line("router", format!("{} via {via}", route.destination));
            }
        }
        let twins = doubled(&reader.lines);
        Self { lines: reader.lines.into_iter().chain(twins).collect() }
    }
}

/// Lines that are there more than once: a set would hide them.
fn doubled(lines: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let again = lines.iter().filter(|line| !seen.insert(line.as_str()));
    again.map(|line| format!("{line} (again)")).collect()
}

/// Service, group or node that a line is about.
fn owner(line: &str) -> &str {
    let end = if line.starts_with("group ") { line.find(": ") } else { line.find(':') };
    end.map_or(line, |end| &line[..end])
}

/// Replaces the name that a balancer of a Service has by the Service's.
fn plain(text: &str) -> String {
    let prefix = format!("kube_service_{CLUSTER}_default_");
    text.replace(&prefix, "default/")
}

struct Reader<'a> {
    state: &'a State,
    servers: &'a [Instance],
    lines: Vec<String>,
}

impl Reader<'_> {
    fn line(&mut self, at: &str, fact: impl AsRef<str>) {
        self.lines.push(format!("{at}: {}", fact.as_ref()));
    }

    fn node(&self, address: &str) -> String {
        let server = self.servers.iter().find(|server| server.ip.to_string() == address);
        server.map_or_else(|| address.to_owned(), |server| server.name.clone())
    }

    fn subnet(&self, id: &str) -> String {
        self.state.neutron.subnets.get(id).map_or_else(|| id.to_owned(), |subnet| subnet.name.clone())
    }

    fn balancer(&mut self, balancer: &LoadBalancer) {
        let at = plain(&balancer.name);
        self.line(&at, format!("driver {}", balancer.provider));
        self.line(&at, format!("is {}", balancer.provisioning_status));
        self.line(&at, format!("says {}", balancer.description));
        let subnet = balancer.vip_subnet_id.as_deref().map(|id| self.subnet(id)).unwrap_or_default();
        self.line(&at, format!("address in {subnet}"));
        let port = balancer.vip_port_id.as_ref().and_then(|id| self.state.neutron.ports.get(id));
        if let Some(port) =
            port.filter(|port| !port.name.starts_with("octavia-lb-") && !port.name.starts_with("ovn-lb"))
        {
            self.line(&at, format!("holds port {}", port.name));
        }
        for tag in &balancer.tags {
            self.line(&at, format!("tag {}", plain(tag)));
        }
        for (what, value) in [("flavor", &balancer.flavor_id), ("zone", &balancer.availability_zone)] {
            if let Some(value) = value {
                let name = self.state.octavia.flavors.get(value).map(|row| row.0.name.clone());
                self.line(&at, format!("{what} {}", name.unwrap_or_else(|| value.clone())));
            }
        }
        for id in &balancer.listeners {
            if let Some(row) = self.state.octavia.listeners.get(&id.id) {
                self.listener(&at, &row.body);
            }
        }
    }

    fn listener(&mut self, balancer: &str, listener: &Listener) {
        let suffix = if listener.protocol.as_str() == "UDP" { "/udp" } else { "" };
        let at = format!("{balancer}:{}{suffix}", listener.protocol_port);
        self.line(&at, format!("listens {}", listener.protocol));
        self.line(&at, format!("named {}", plain(&listener.name)));
        self.line(&at, format!("at most {}", listener.connection_limit));
        for tag in &listener.tags {
            self.line(&at, format!("tag {}", plain(tag)));
        }
        for cidr in listener.allowed_cidrs.iter().flatten() {
            self.line(&at, format!("admits {cidr}"));
        }
        for (header, value) in &listener.insert_headers {
            self.line(&at, format!("header {header}={value}"));
        }
        for (what, value) in [
            ("client-data", listener.timeout_client_data),
            ("member-connect", listener.timeout_member_connect),
            ("member-data", listener.timeout_member_data),
            ("tcp-inspect", listener.timeout_tcp_inspect),
        ] {
            self.line(&at, format!("timeout {what} {}", value.unwrap_or_default()));
        }
        if let Some(reference) = &listener.default_tls_container_ref {
            let id = reference.rsplit('/').next().unwrap_or_default();
            let name = self.state.keystone.key_containers.get(id).map(|row| row.name.clone());
            self.line(&at, format!("certificate {}", name.as_deref().unwrap_or(reference)));
        }
        let pool = listener.default_pool_id.as_ref().and_then(|id| self.state.octavia.pools.get(id));
        match pool {
            Some(row) => self.pool(&at, &row.body),
            None => self.line(&at, "no pool"),
        }
    }

    fn pool(&mut self, at: &str, pool: &Pool) {
        self.line(at, format!("pool {} {}", pool.protocol, pool.lb_algorithm));
        self.line(at, format!("pool named {}", plain(&pool.name)));
        if let Some(persistence) = &pool.session_persistence {
            self.line(at, format!("keeps clients by {}", persistence.kind));
        }
        for row in self.state.octavia.members.iter().filter(|row| row.pool == pool.id) {
            let member = &row.body;
            let subnet = member.subnet_id.as_ref().map(|id| format!(" in {}", self.subnet(id))).unwrap_or_default();
            let checked = member.monitor_port.map(|port| format!(" checked at {port}")).unwrap_or_default();
            self.line(at, format!("member {} {}{subnet}{checked}", self.node(&member.address), member.protocol_port));
        }
        let monitor = pool.monitor.healthmonitor_id.as_ref().and_then(|id| self.state.octavia.monitors.get(id));
        if let Some(row) = monitor {
            let check = &row.body;
            let asks = match (&check.http_method, &check.url_path, &check.expected_codes) {
                (Some(method), Some(path), Some(codes)) if check.kind.as_str() == "HTTP" => {
                    format!(" {method} {path} {codes}")
                }
                _ => String::new(),
            };
            self.line(at, format!("check {}{asks}", check.kind));
            self.line(at, format!("check named {}", plain(&check.name)));
            let (up, down) = (check.max_retries, check.max_retries_down);
            self.line(at, format!("check every {} within {} up {up} down {down}", check.delay, check.timeout));
        }
    }

    /// What belongs to nothing.
    fn orphans(&mut self) {
        let state = self.state;
        let led_to: BTreeSet<_> =
            state.octavia.listeners.iter().filter_map(|row| row.body.default_pool_id.clone()).collect();
        for row in state.octavia.pools.iter().filter(|row| !led_to.contains(&row.body.id)) {
            self.line("pool of nobody", plain(&row.body.name));
        }
        let known: BTreeSet<_> =
            state.octavia.load_balancers.iter().filter_map(|row| row.body.vip_port_id.clone()).collect();
        let octavia = |owner: &str| owner == "Octavia" || owner == "ovn-lb-vip";
        for port in state.neutron.ports.iter().filter(|port| octavia(&port.device_owner) && !known.contains(&port.id)) {
            self.line("port of nobody", &port.name);
        }
    }

    fn floating_ips(&mut self) {
        for floating in self.state.neutron.floating_ips.iter() {
            let held = |port: &&std::sync::Arc<openstack_api::neutron::Port>| port.device_id == floating.id;
            let subnet =
                self.state.neutron.ports.iter().find(held).map(|port| self.subnet(&port.fixed_ips[0].subnet_id));
            let mut balancers = self.state.octavia.load_balancers.iter();
            let owner = floating.port_id.as_ref().and_then(|port| {
                balancers.find(|row| row.body.vip_port_id.as_ref() == Some(port)).map(|row| plain(&row.body.name))
            });
            let subnet = subnet.unwrap_or_default();
            let text = &floating.standard.description;
            match owner {
                Some(owner) => {
                    let network = self.state.neutron.networks.get(&floating.floating_network_id);
                    let network = network.map(|network| network.name.clone()).unwrap_or_default();
                    self.line(&owner, format!("floating ip from {network}"));
                    self.line(&owner, format!("floating ip in {subnet}"));
                    self.line(&owner, format!("floating ip says {text}"));
                }
                None => self.line("floating ip of nobody", format!("{subnet} {text}")),
            }
        }
    }

    fn groups(&mut self) {
        for group in self.state.neutron.security_groups.iter().filter(|group| group.name != "default") {
            let at = format!("group {}", without_uid(&group.name));
            self.line(&at, format!("says {}", group.standard.description));
            let rules = self.state.neutron.security_group_rules.iter();
            for rule in rules.filter(|rule| rule.security_group_id == group.id) {
                let protocol = rule.protocol.as_deref().unwrap_or("all");
                let ports = rule.port_range_min.map_or_else(|| "all".to_owned(), |port| port.to_string());
                let from = rule.remote_ip_prefix.as_deref().unwrap_or("anywhere");
                let mut subnets = self.state.neutron.subnets.iter();
                let from = subnets.find(|subnet| subnet.cidr == from).map_or(from, |subnet| &subnet.name);
                self.line(&at, format!("{} {protocol} {ports} from {from}", direction(rule)));
            }
        }
    }

    fn ports(&mut self) {
        for port in self.state.neutron.ports.iter().filter(|port| port.device_owner.starts_with("compute")) {
            let at = port.fixed_ips.first().map(|fixed| self.node(&fixed.ip_address.to_string())).unwrap_or_default();
            for pair in &port.allowed_address_pairs {
                self.line(&at, format!("pairs {}", pair.ip_address));
            }
            for id in &port.security_groups {
                let group = self.state.neutron.security_groups.get(id);
                let name = group.map_or_else(|| id.clone(), |group| group.name.clone());
                if name != "default" {
                    self.line(&at, format!("is in {}", without_uid(&name)));
                }
            }
        }
    }
}

fn direction(rule: &openstack_api::neutron::SecurityGroupRule) -> &'static str {
    match rule.direction {
        openstack_api::neutron::Direction::Ingress => "in",
        openstack_api::neutron::Direction::Egress => "out",
    }
}

/// Takes the Service's UID out of the name of its group.
fn without_uid(name: &str) -> String {
    let rest = name.strip_prefix("lb-sg-").and_then(|rest| rest.get(36..));
    rest.map_or_else(|| name.to_owned(), |rest| format!("lb-sg{rest}"))
}
