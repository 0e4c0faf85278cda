//! The Services of the story, one of each kind that differs in what is made for it.

use serde_json::{Value, json};

use crate::table::Round;

/// A kind of Service: a word that its name begins with, of at most eight letters since names of
/// target groups keep no more, and its manifest.
pub(crate) struct ServiceKind {
    pub(crate) name: &'static str,
    annotations: Vec<(&'static str, String)>,
    ports: Value,
    more: Value,
}

/// What Services name.
pub(crate) struct Named<'a> {
    pub(crate) certificate: &'a str,
    pub(crate) group: &'a str,
    /// Subnets with commas, in another order than EC2's.
    pub(crate) subnets: &'a str,
    /// As many Elastic IP addresses.
    pub(crate) addresses: &'a str,
}

impl ServiceKind {
    fn new(name: &'static str, annotations: &[(&'static str, &str)]) -> Self {
        let annotations = annotations
            .iter()
            .map(|(key, value)| (*key, (*value).to_owned()))
            .collect();
        let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
        Self { name, annotations, ports, more: json!({}) }
    }

    fn ports(self, ports: Value) -> Self {
        Self { ports, ..self }
    }

    fn more(self, more: Value) -> Self {
        Self { more, ..self }
    }

    /// Whether it has a classic load balancer.
    pub(crate) fn is_classic(&self) -> bool {
        !self.annotations.iter().any(|(key, _)| *key == "type")
    }

    /// The Service.
    pub(crate) fn manifest(&self) -> Value {
        let prefix = |key: &str| match key {
            "source-ranges" => "service.beta.kubernetes.io/load-balancer-source-ranges".to_owned(),
            key => format!("service.beta.kubernetes.io/aws-load-balancer-{key}"),
        };
        let annotations: serde_json::Map<String, Value> = self
            .annotations
            .iter()
            .map(|(key, value)| (prefix(key), value.as_str().into()))
            .collect();
        let mut spec =
            json!({"type": "LoadBalancer", "selector": {"app": self.name}, "ports": self.ports});
        if let (Some(spec), Some(more)) = (spec.as_object_mut(), self.more.as_object()) {
            spec.extend(more.clone());
        }
        json!({"metadata": {"name": self.name, "annotations": annotations}, "spec": spec})
    }
}

const NLB: (&str, &str) = ("type", "nlb");

/// Annotations that upstream ignores, with values that have an effect in the dialect `extended`.
const DORMANT: [(&str, &str); 16] = [
    NLB,
    ("nlb-target-type", "ip"),
    ("name", "shop-dormant"),
    ("scheme", "internal"),
    ("ip-address-type", "dualstack"),
    ("enable-prefix-for-ipv6-source-nat", "on"),
    ("listener-attributes.TCP-80", "tcp.idle_timeout.seconds=400"),
    ("proxy-protocol-per-target-group", "80"),
    ("target-group-attributes.80", "deregistration_delay.timeout_seconds=30"),
    ("healthcheck-timeout", "7"),
    ("healthcheck-success-codes", "204"),
    ("enable-tcp-udp-listener", "false"),
    ("attributes", "deletion_protection.enabled=true"),
    ("source-nat-ipv6-prefixes", "auto_assigned, auto_assigned"),
    ("ipv6-addresses", "2001:db8::1, 2001:db8::2"),
    ("minimum-load-balancer-capacity", "CapacityUnits=2750"),
];

/// The same about security groups.
const DORMANT_WITH_GROUPS: [(&str, &str); 5] = [
    NLB,
    ("disable-nlb-sg", "true"),
    ("manage-backend-security-group-rules", "false"),
    ("inbound-sg-rules-on-private-link-traffic", "off"),
    ("security-group-prefix-lists", "pl-0123456789abcdef0"),
];

/// Annotations that upstream ignores, with values that the dialect `extended` rejects.
const REJECTED_ELSEWHERE: [(&str, &str); 7] = [
    NLB,
    ("proxy-protocol", "true"),
    ("name", "a-name-that-is-longer-than-32-characters"),
    ("ip-address-type", "dualstack"),
    ("healthcheck-timeout", "60"),
    ("multi-cluster-target-group", "true"),
    ("security-group-prefix-lists", "pl-0123456789abcdef0"),
];

/// Services that come later, and get their load balancers from ours.
pub(crate) fn later(round: Round) -> Vec<ServiceKind> {
    let mut kinds = vec![ServiceKind::new("later", &[NLB])];
    if round == Round::Classic {
        let http = [("healthcheck-protocol", "HTTP"), ("healthcheck-path", "/ready")];
        kinds.push(ServiceKind::new("ours", &http));
        kinds.push(ServiceKind::new("oursprox", &[("proxy-protocol", "*")]));
    }
    kinds
}

/// All kinds of a round.
pub(crate) fn kinds(round: Round, named: &Named<'_>) -> Vec<ServiceKind> {
    match round {
        Round::Plain => plain(named),
        Round::Managed => managed(named),
        Round::Classic => classic(named),
    }
}

/// Services without type annotation.
fn classic(named: &Named<'_>) -> Vec<ServiceKind> {
    let two = json!([
        {"name": "http", "port": 80, "protocol": "TCP"},
        {"name": "https", "port": 443, "protocol": "TCP"}
    ]);
    let tls = [("ssl-cert", named.certificate), ("ssl-ports", "443")];
    let and = |more: (&'static str, &'static str)| [tls[0], tls[1], more];
    let local = json!({"externalTrafficPolicy": "Local"});
    vec![
        ServiceKind::new("one", &[]),
        ServiceKind::new("two", &[]).ports(two.clone()),
        ServiceKind::new("tls", &tls).ports(two.clone()),
        ServiceKind::new("http", &and(("backend-protocol", "http"))).ports(two.clone()),
        ServiceKind::new(
            "policy",
            &and(("ssl-negotiation-policy", "ELBSecurityPolicy-TLS-1-2-2017-01")),
        )
        .ports(two),
        ServiceKind::new("proxy", &[("proxy-protocol", "*")]),
        ServiceKind::new("local", &[]).more(local),
        ServiceKind::new(
            "health",
            &[
                ("healthcheck-protocol", "HTTP"),
                ("healthcheck-path", "/ready"),
                ("healthcheck-interval", "20"),
                ("healthcheck-timeout", "7"),
                ("healthcheck-unhealthy-threshold", "5"),
            ],
        ),
        ServiceKind::new("internal", &[("internal", "true")]),
        ServiceKind::new(
            "settings",
            &[
                ("connection-draining-enabled", "true"),
                ("connection-draining-timeout", "120"),
                ("connection-idle-timeout", "90"),
                ("cross-zone-load-balancing-enabled", "true"),
            ],
        ),
        ServiceKind::new(
            "logs",
            &[
                ("access-log-enabled", "true"),
                ("access-log-emit-interval", "5"),
                ("access-log-s3-bucket-name", "logs"),
                ("access-log-s3-bucket-prefix", "here"),
            ],
        ),
        ServiceKind::new("ranges", &[("source-ranges", "10.1.0.0/16,192.0.2.0/24")]),
        ServiceKind::new("given", &[("security-groups", named.group)]),
        ServiceKind::new("extra", &[("extra-security-groups", named.group)]),
        ServiceKind::new("tagged", &[("additional-resource-tags", "team=blue,cost=low")]),
    ]
}

fn plain(named: &Named<'_>) -> Vec<ServiceKind> {
    let two = json!([{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "alt", "port": 8080, "protocol": "TCP"}]);
    let udp = json!([{"name": "dns", "port": 53, "protocol": "UDP"}]);
    let tls = json!([{"name": "https", "port": 443, "protocol": "TCP"}]);
    let local = json!({"externalTrafficPolicy": "Local"});
    vec![
        ServiceKind::new("one", &[NLB]),
        ServiceKind::new("two", &[NLB]).ports(two),
        ServiceKind::new("tls", &[NLB, ("ssl-cert", named.certificate), ("ssl-ports", "443")])
            .ports(tls.clone()),
        ServiceKind::new(
            "policy",
            &[
                NLB,
                ("ssl-cert", named.certificate),
                ("ssl-ports", "https"),
                ("ssl-negotiation-policy", "ELBSecurityPolicy-TLS13-1-2-2021-06"),
                ("backend-protocol", "ssl"),
            ],
        )
        .ports(tls),
        ServiceKind::new("local", &[NLB]).more(local),
        ServiceKind::new(
            "health",
            &[
                NLB,
                ("healthcheck-protocol", "HTTP"),
                ("healthcheck-path", "/ready"),
                ("healthcheck-interval", "20"),
                ("healthcheck-timeout", "7"),
                ("healthcheck-unhealthy-threshold", "5"),
            ],
        ),
        ServiceKind::new("internal", &[NLB, ("internal", "true")]),
        ServiceKind::new(
            "logs",
            &[
                NLB,
                ("cross-zone-load-balancing-enabled", "true"),
                ("access-log-enabled", "true"),
                ("access-log-s3-bucket-name", "logs"),
                ("access-log-s3-bucket-prefix", "here"),
            ],
        ),
        ServiceKind::new(
            "groups",
            &[
                NLB,
                (
                    "target-group-attributes",
                    "preserve_client_ip.enabled=false,proxy_protocol_v2.enabled=true",
                ),
            ],
        ),
        ServiceKind::new("ranges", &[NLB, ("source-ranges", "10.1.0.0/16,192.0.2.0/24")]),
        ServiceKind::new("udp", &[NLB]).ports(udp),
        ServiceKind::new("tagged", &[NLB, ("additional-resource-tags", "team=blue,cost=low")]),
        ServiceKind::new("proxy", &[NLB, ("proxy-protocol", "*")]),
        ServiceKind::new(
            "elastic",
            &[NLB, ("subnets", named.subnets), ("eip-allocations", named.addresses)],
        ),
        ServiceKind::new("dormant", &DORMANT),
        ServiceKind::new("mistake", &REJECTED_ELSEWHERE).ports(json!([
            {"name": "dns", "port": 53, "protocol": "UDP"}
        ])),
        ServiceKind::new(
            "spaces",
            &[
                NLB,
                ("ssl-cert", named.certificate),
                ("ssl-ports", "443, 8443"),
                ("ssl-negotiation-policy", "ELBSecurityPolicy-TLS13-1-2-2021-06"),
                ("alpn-policy", "HTTP2Only"),
            ],
        )
        .ports(json!([
            {"name": "https", "port": 443, "protocol": "TCP"},
            {"name": "alt", "port": 8443, "protocol": "TCP"}
        ])),
        ServiceKind::new("classic", &[]),
    ]
}

fn managed(named: &Named<'_>) -> Vec<ServiceKind> {
    vec![
        ServiceKind::new("one", &[NLB]),
        ServiceKind::new("ranges", &[NLB, ("source-ranges", "10.1.0.0/16,192.0.2.0/24")]),
        ServiceKind::new("given", &[NLB, ("security-groups", named.group)]),
        ServiceKind::new("local", &[NLB]).more(json!({"externalTrafficPolicy": "Local"})),
        ServiceKind::new("dormant", &DORMANT_WITH_GROUPS),
    ]
}
