//! The Services of the story, one of each kind that differs in what is made for it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::world::Ids;

/// How the managers are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// Driver `amphora`, all annotations.
    Plain,
    /// `manage-security-groups`, health monitors and objects made one by one (`provider-requires-serial-api-calls`).
    Managed,
    /// Driver `ovn`, with managed security groups.
    Ovn,
    /// As `Plain`, with changes that are made at once, so that each is asked after once.
    Counted,
}

impl Round {
    /// How long a change of a balancer takes. Upstream looks at once, and then after a second, so that what is waited for
    /// in one round takes too long where everything is made one by one.
    pub(crate) fn pending(self) -> Duration {
        Duration::from_millis(if self == Self::Plain { 20 } else { 0 })
    }

    /// How many Services are worked on at a time: where they change ports of nodes, upstream loses changes (it reads a list
    /// and writes it back) if there is more than one.
    pub(crate) fn workers(self) -> usize {
        match self {
            Self::Plain | Self::Counted => 10,
            Self::Managed | Self::Ovn => 1,
        }
    }

    /// Octavia's driver.
    pub(crate) fn driver(self) -> &'static str {
        if self == Self::Ovn { "ovn" } else { "amphora" }
    }
}

/// A kind of Service.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    annotations: Vec<(String, String)>,
    ports: Value,
    more: Value,
}

const INTERNAL: (&str, &str) = ("service.beta.kubernetes.io/openstack-internal-load-balancer", "true");
const RANGES: (&str, &str) = ("service.beta.kubernetes.io/load-balancer-source-ranges", "10.9.0.0/16,192.0.2.0/24");

impl Kind {
    fn new(name: &'static str, annotations: &[(&str, &str)]) -> Self {
        let prefix = |key: &str| {
            if key.contains('/') { key.to_owned() } else { format!("loadbalancer.openstack.org/{key}") }
        };
        let annotations = annotations.iter().map(|(key, value)| (prefix(key), (*value).to_owned())).collect();
        Self { name, annotations, ports: json!([port("http", "TCP", 80)]), more: json!({}) }
    }

    fn ports(self, ports: Value) -> Self {
        Self { ports, ..self }
    }

    fn more(self, more: Value) -> Self {
        Self { more, ..self }
    }

    /// The Service.
    pub(crate) fn manifest(&self) -> Value {
        let annotations: serde_json::Map<String, Value> =
            self.annotations.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
        let mut spec = json!({"type": "LoadBalancer", "selector": {"app": self.name}, "ports": self.ports});
        if let (Some(spec), Some(more)) = (spec.as_object_mut(), self.more.as_object()) {
            spec.extend(more.clone());
        }
        json!({"metadata": {"name": self.name, "annotations": annotations}, "spec": spec})
    }
}

fn port(name: &str, protocol: &str, number: u16) -> Value {
    json!({"name": name, "port": number, "protocol": protocol})
}

/// A Service that comes later.
pub(crate) fn later() -> Kind {
    Kind::new("later", &[])
}

/// Services with nothing special, for counting.
fn many() -> Vec<Kind> {
    const NAMES: [&str; 20] = [
        "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7",
        "b8", "b9",
    ];
    NAMES.iter().map(|name| Kind::new(name, &[])).collect()
}

/// All kinds of a round.
pub(crate) fn kinds(round: Round, ids: &Ids) -> Vec<Kind> {
    match round {
        Round::Plain => [forms(), settings(ids), placement(ids)].concat(),
        Round::Counted => many(),
        Round::Managed => managed(ids),
        Round::Ovn => ovn(),
    }
}

/// What a Service itself says.
fn forms() -> Vec<Kind> {
    vec![
        Kind::new("one", &[]),
        Kind::new("two", &[]).ports(json!([port("http", "TCP", 80), port("alt", "TCP", 8080)])),
        Kind::new("udp", &[]).ports(json!([port("dns", "UDP", 53)])),
        Kind::new("mixed", &[]).ports(json!([port("dns", "UDP", 53), port("dns-tcp", "TCP", 53)])),
        Kind::new("sctp", &[]).ports(json!([port("sig", "SCTP", 2905)])),
        Kind::new("affinity", &[]).more(json!({"sessionAffinity": "ClientIP"})),
        Kind::new("local", &[("enable-health-monitor", "true")]).more(json!({"externalTrafficPolicy": "Local"})),
        Kind::new("locally", &[]).more(json!({"externalTrafficPolicy": "Local"})),
        Kind::new("ranges", &[]).more(json!({"loadBalancerSourceRanges": ["10.9.0.0/16", "192.0.2.0/24"]})),
        Kind::new("noted", &[RANGES]),
    ]
}

/// What annotations say about listeners, pools and monitors.
fn settings(ids: &Ids) -> Vec<Kind> {
    let monitor = [
        ("enable-health-monitor", "true"),
        ("health-monitor-delay", "9"),
        ("health-monitor-timeout", "7"),
        ("health-monitor-max-retries", "4"),
        ("health-monitor-max-retries-down", "5"),
    ];
    let timeouts = [
        ("timeout-client-data", "60000"),
        ("timeout-member-connect", "6000"),
        ("timeout-member-data", "70000"),
        ("timeout-tcp-inspect", "10"),
    ];
    vec![
        Kind::new("monitor", &monitor).ports(json!([port("dns", "UDP", 53), port("dns-tcp", "TCP", 53)])),
        Kind::new("timeouts", &timeouts),
        Kind::new("limit", &[("connection-limit", "100")]),
        Kind::new("method", &[("lb-method", "LEAST_CONNECTIONS")]),
        Kind::new("proxy", &[("proxy-protocol", "true")]),
        Kind::new("proxy2", &[("proxy-protocol", "v2")]),
        Kind::new("forward", &[("x-forwarded-for", "true")]),
        Kind::new("tls", &[("default-tls-container-ref", &ids.certificate)]).ports(json!([port("https", "TCP", 443)])),
        Kind::new("select", &[("node-selector", "pool=blue")]),
    ]
}

/// What says where a balancer and its addresses are.
fn placement(ids: &Ids) -> Vec<Kind> {
    vec![
        Kind::new("internal", &[INTERNAL]),
        Kind::new("address", &[INTERNAL]).more(json!({"loadBalancerIP": "10.0.200.7"})),
        Kind::new("subnet", &[("subnet-id", &ids.vip_subnet), ("member-subnet-id", &ids.nodes_subnet)]),
        Kind::new("network", &[("network-id", &ids.vip_network), ("subnet-id", &ids.vip_subnet)]),
        Kind::new("port", &[("port-id", &ids.vip_port)]),
        Kind::new("class", &[("class", "spare")]),
        Kind::new("flavor", &[("flavor-id", &ids.flavor)]),
        Kind::new("zone", &[("availability-zone", "zone-1")]),
        Kind::new("keep", &[("keep-floatingip", "true")]),
        Kind::new("fsubnet", &[("floating-network-id", &ids.public), ("floating-subnet-id", &ids.public_subnet)]),
        Kind::new("pattern", &[("floating-subnet", "public-b*")]),
        Kind::new("tags", &[("floating-subnet-tags", "spare")]),
        Kind::new("fixed", &[]).more(json!({"loadBalancerIP": ids.fixed_address})),
        Kind::new("hostname", &[("hostname", "shop.example")]),
        Kind::new("shared", &[("load-balancer-id", &ids.manual)]).ports(json!([port("alt", "TCP", 8081)])),
    ]
}

fn managed(ids: &Ids) -> Vec<Kind> {
    vec![
        Kind::new("one", &[]),
        Kind::new("mixed", &[]).ports(json!([port("dns", "UDP", 53), port("dns-tcp", "TCP", 53)])),
        Kind::new("local", &[]).more(json!({"externalTrafficPolicy": "Local"})),
        Kind::new("ranges", &[RANGES]),
        Kind::new("shared", &[("load-balancer-id", &ids.manual)]).ports(json!([port("alt", "TCP", 8081)])),
    ]
}

fn ovn() -> Vec<Kind> {
    vec![
        Kind::new("one", &[]),
        Kind::new("mixed", &[("enable-health-monitor", "true")])
            .ports(json!([port("dns", "UDP", 53), port("dns-tcp", "TCP", 53)])),
        Kind::new("local", &[("enable-health-monitor", "true")]).more(json!({"externalTrafficPolicy": "Local"})),
        Kind::new("ranges", &[RANGES]),
        Kind::new("internal", &[INTERNAL]),
    ]
}
