//! The Services of the story, one of each kind that differs in what is made for it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cloud::Ids;

/// How the managers are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// Driver `amphora`, all annotations.
    Plain,
    /// `manage-security-groups`, health monitors and objects made one by one
    /// (`provider-requires-serial-api-calls`).
    Managed,
    /// Driver `ovn`, with managed security groups.
    Ovn,
    /// As `Plain`, with changes that are made at once, so that each is asked after once.
    Counted,
}

impl Round {
    /// How long a change of a balancer takes. Upstream looks at once, and then after a second, so
    /// that what is waited for in one round takes too long where everything is made one by one.
    pub(crate) fn pending(self) -> Duration {
        Duration::from_millis(if self == Self::Plain { 20 } else { 0 })
    }

    /// How many Services are worked on at a time: where they change ports of nodes, upstream loses
    /// changes (it reads a list and writes it back) if there is more than one.
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
pub(crate) struct ServiceKind {
    pub(crate) name: &'static str,
    annotations: Vec<(String, String)>,
    ports: Value,
    more: Value,
}

const INTERNAL: (&str, &str) =
    ("service.beta.kubernetes.io/openstack-internal-load-balancer", "true");
const RANGES: (&str, &str) =
    ("service.beta.kubernetes.io/load-balancer-source-ranges", "10.9.0.0/16,192.0.2.0/24");

impl ServiceKind {
    fn new(name: &'static str, annotations: &[(&str, &str)]) -> Self {
        let prefix = |key: &str| {
            if key.contains('/') {
                key.to_owned()
            } else {
                format!("loadbalancer.openstack.org/{key}")
            }
        };
        let annotations = annotations
            .iter()
            .map(|(key, value)| (prefix(key), (*value).to_owned()))
            .collect();
        Self {
            name,
            annotations,
            ports: json!([port("http", "TCP", 80)]),
            more: json!({}),
        }
    }

    fn ports(self, ports: Value) -> Self {
        Self { ports, ..self }
    }

    fn more(self, more: Value) -> Self {
        Self { more, ..self }
    }

    /// The Service.
    pub(crate) fn manifest(&self) -> Value {
        let annotations: serde_json::Map<String, Value> = self
            .annotations
            .iter()
            .map(|(key, value)| (key.clone(), value.as_str().into()))
            .collect();
        let mut spec =
            json!({"type": "LoadBalancer", "selector": {"app": self.name}, "ports": self.ports});
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
pub(crate) fn later() -> ServiceKind {
    ServiceKind::new("later", &[])
}

/// Services with nothing special, for counting.
fn many() -> Vec<ServiceKind> {
    const NAMES: [&str; 20] = [
        "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "b0", "b1", "b2", "b3", "b4",
        "b5", "b6", "b7", "b8", "b9",
    ];
    NAMES
        .iter()
        .map(|name| ServiceKind::new(name, &[]))
        .collect()
}

/// All kinds of a round.
pub(crate) fn kinds(round: Round, ids: &Ids) -> Vec<ServiceKind> {
    match round {
        Round::Plain => [forms(), settings(ids), placement(ids)].concat(),
        Round::Counted => many(),
        Round::Managed => managed(ids),
        Round::Ovn => ovn(),
    }
}

/// What a Service itself says.
fn forms() -> Vec<ServiceKind> {
    vec![
        ServiceKind::new("one", &[]),
        ServiceKind::new("two", &[])
            .ports(json!([port("http", "TCP", 80), port("alt", "TCP", 8080)])),
        ServiceKind::new("udp", &[]).ports(json!([port("dns", "UDP", 53)])),
        ServiceKind::new("mixed", &[])
            .ports(json!([port("dns", "UDP", 53), port("dns-tcp", "TCP", 53)])),
        ServiceKind::new("sctp", &[]).ports(json!([port("sig", "SCTP", 2905)])),
        ServiceKind::new("affinity", &[]).more(json!({"sessionAffinity": "ClientIP"})),
        ServiceKind::new("local", &[("enable-health-monitor", "true")])
            .more(json!({"externalTrafficPolicy": "Local"})),
        ServiceKind::new("locally", &[]).more(json!({"externalTrafficPolicy": "Local"})),
        ServiceKind::new("ranges", &[])
            .more(json!({"loadBalancerSourceRanges": ["10.9.0.0/16", "192.0.2.0/24"]})),
        ServiceKind::new("noted", &[RANGES]),
    ]
}

/// What annotations say about listeners, pools and monitors.
fn settings(ids: &Ids) -> Vec<ServiceKind> {
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
        ServiceKind::new("monitor", &monitor)
            .ports(json!([port("dns", "UDP", 53), port("dns-tcp", "TCP", 53)])),
        ServiceKind::new("timeouts", &timeouts),
        ServiceKind::new("limit", &[("connection-limit", "100")]),
        ServiceKind::new("method", &[("lb-method", "LEAST_CONNECTIONS")]),
        ServiceKind::new("proxy", &[("proxy-protocol", "true")]),
        ServiceKind::new("proxy2", &[("proxy-protocol", "v2")]),
        ServiceKind::new("forward", &[("x-forwarded-for", "true")]),
        ServiceKind::new("tls", &[("default-tls-container-ref", &ids.certificate)])
            .ports(json!([port("https", "TCP", 443)])),
        ServiceKind::new("select", &[("node-selector", "pool=blue")]),
    ]
}

/// What says where a balancer and its addresses are.
fn placement(ids: &Ids) -> Vec<ServiceKind> {
    vec![
        ServiceKind::new("internal", &[INTERNAL]),
        ServiceKind::new("address", &[INTERNAL]).more(json!({"loadBalancerIP": "10.0.200.7"})),
        ServiceKind::new(
            "subnet",
            &[("subnet-id", &ids.vip_subnet), ("member-subnet-id", &ids.nodes_subnet)],
        ),
        ServiceKind::new(
            "network",
            &[("network-id", &ids.vip_network), ("subnet-id", &ids.vip_subnet)],
        ),
        ServiceKind::new("port", &[("port-id", &ids.vip_port)]),
        ServiceKind::new("class", &[("class", "spare")]),
        ServiceKind::new("flavor", &[("flavor-id", &ids.flavor)]),
        ServiceKind::new("zone", &[("availability-zone", "zone-1")]),
        ServiceKind::new("keep", &[("keep-floatingip", "true")]),
        ServiceKind::new(
            "fsubnet",
            &[("floating-network-id", &ids.public), ("floating-subnet-id", &ids.public_subnet)],
        ),
        ServiceKind::new("pattern", &[("floating-subnet", "public-b*")]),
        ServiceKind::new("tags", &[("floating-subnet-tags", "spare")]),
        ServiceKind::new("fixed", &[]).more(json!({"loadBalancerIP": ids.fixed_address})),
        ServiceKind::new("hostname", &[("hostname", "shop.example")]),
        ServiceKind::new("shared", &[("load-balancer-id", &ids.manual)])
            .ports(json!([port("alt", "TCP", 8081)])),
    ]
}

fn managed(ids: &Ids) -> Vec<ServiceKind> {
    vec![
        ServiceKind::new("one", &[]),
        ServiceKind::new("mixed", &[])
            .ports(json!([port("dns", "UDP", 53), port("dns-tcp", "TCP", 53)])),
        ServiceKind::new("local", &[]).more(json!({"externalTrafficPolicy": "Local"})),
        ServiceKind::new("ranges", &[RANGES]),
        ServiceKind::new("shared", &[("load-balancer-id", &ids.manual)])
            .ports(json!([port("alt", "TCP", 8081)])),
    ]
}

fn ovn() -> Vec<ServiceKind> {
    vec![
        ServiceKind::new("one", &[]),
        ServiceKind::new("mixed", &[("enable-health-monitor", "true")])
            .ports(json!([port("dns", "UDP", 53), port("dns-tcp", "TCP", 53)])),
        ServiceKind::new("local", &[("enable-health-monitor", "true")])
            .more(json!({"externalTrafficPolicy": "Local"})),
        ServiceKind::new("ranges", &[RANGES]),
        ServiceKind::new("internal", &[INTERNAL]),
    ]
}
