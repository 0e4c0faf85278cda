// length: the table
//! The tables of Services. The suite on OpenStack's own services has the same.

use serde_json::{Value, json};

use crate::fixture::{INTERNAL, full};

/// A Service, and what there has to be for it.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) ports: Vec<(&'static str, u16)>,
    pub(super) annotations: Vec<(&'static str, String)>,
    /// Further fields of the spec.
    pub(super) spec: Value,
    /// Lines of the world: `{80}` is the node port of port 80, `{owner}` the Service. One that
    /// begins with `:` is about the Service.
    pub(super) wanted: Vec<&'static str>,
    /// What the status publishes, if that matters.
    pub(super) ingress: Value,
    /// A merge patch, with annotations by suffix.
    pub(super) change: Value,
    /// Lines after it.
    pub(super) then: Vec<&'static str>,
    /// Lines that stay when the Service is gone.
    pub(super) left: Vec<&'static str>,
}

impl Case {
    fn new(name: &'static str, wanted: &[&'static str]) -> Self {
        Self {
            name,
            ports: vec![("TCP", 80)],
            annotations: Vec::new(),
            spec: Value::Null,
            wanted: wanted.into(),
            ingress: Value::Null,
            change: Value::Null,
            then: Vec::new(),
            left: Vec::new(),
        }
    }

    fn ports(mut self, ports: &[(&'static str, u16)]) -> Self {
        self.ports = ports.into();
        self
    }

    fn with(mut self, annotation: &'static str, value: impl Into<String>) -> Self {
        self.annotations.push((annotation, value.into()));
        self
    }

    fn spec(mut self, spec: Value) -> Self {
        self.spec = spec;
        self
    }

    fn shows(mut self, ingress: Value) -> Self {
        self.ingress = ingress;
        self
    }

    fn leaves(mut self, lines: &[&'static str]) -> Self {
        self.left = lines.into();
        self
    }

    /// Changes annotations.
    fn change(mut self, annotations: &Value, then: &[&'static str]) -> Self {
        let map = annotations.as_object().into_iter().flatten();
        let map: serde_json::Map<_, _> =
            map.map(|(key, value)| (full(key), value.clone())).collect();
        self.change["metadata"]["annotations"] = map.into();
        self.then = then.into();
        self
    }

    /// Changes anything.
    fn patch(mut self, patch: Value, then: &[&'static str]) -> Self {
        self.change = patch;
        self.then = then.into();
        self
    }
}

/// What annotations name.
pub(super) struct AnnotationValues {
    pub(super) vips: String,
    pub(super) nodes: String,
    pub(super) other: String,
    pub(super) public_b: String,
    pub(super) flavor: String,
    pub(super) certificates: [String; 2],
    /// A floating IP that somebody made.
    pub(super) floating: String,
}

/// Load balancers of the usual driver.
pub(super) fn plain(places: &AnnotationValues) -> Vec<Case> {
    let mut cases = addresses(places);
    cases.extend(listeners(places));
    cases.extend(pools(places));
    cases.extend(monitors());
    cases
}

// length: one table
fn addresses(places: &AnnotationValues) -> Vec<Case> {
    vec![
        Case::new(
            "usual",
            &[
                ": driver amphora",
                ": is ACTIVE",
                ": says Kubernetes external service default/usual from cluster test",
                ": address in vips",
                ": tag default/usual",
                ": floating ip from public",
                ": floating ip in public-a",
                ": floating ip says Floating IP for Kubernetes external service default/usual from cluster test",
                ":80: listens TCP",
                ":80: named listener_0_default/usual",
                ":80: tag default/usual",
                ":80: at most -1",
                ":80: admits 0.0.0.0/0",
                ":80: timeout client-data 50000",
                ":80: timeout member-connect 5000",
                ":80: timeout member-data 50000",
                ":80: timeout tcp-inspect 0",
                ":80: pool TCP ROUND_ROBIN",
                ":80: pool named pool_0_default/usual",
                ":80: member node-0 {80} in nodes",
                ":80: member node-1 {80} in nodes",
                "!:80: keeps",
                "!:80: check",
            ],
        )
        .shows(json!({"ipMode": "VIP"}))
        .patch(
            json!({"spec": {"ports": [{"name": "tcp-81", "protocol": "TCP", "port": 81, "nodePort": 32081}]}}),
            &[":81: listens TCP", ":81: member node-1 32081 in nodes", "!:80:"],
        ),
        Case::new("inside", &["!: floating ip"])
            .with(INTERNAL, "true")
            .change(&json!({INTERNAL: "false"}), &[": floating ip in public-a"]),
        Case::new("outside", &[": floating ip in public-a"]).change(&json!({INTERNAL: "true"}), &["!: floating ip"]),
        Case::new("floating-network", &[": floating ip from other"])
            .with("floating-network-id", &places.other)
            .with("floating-subnet", "*"),
        Case::new("floating-subnet-id", &[": floating ip in public-b"]).with("floating-subnet-id", &places.public_b),
        Case::new("floating-subnet", &[": floating ip in public-b"]).with("floating-subnet", "~.*-b"),
        Case::new("floating-subnet-not", &[": floating ip in public-b"]).with("floating-subnet", "!*-a"),
        Case::new("floating-subnet-tags", &[": floating ip in public-b"]).with("floating-subnet-tags", "b,c"),
        Case::new("class", &[": address in nodes", ": floating ip in public-b", ":80: member node-0 {80} in vips"])
            .with("class", "gold"),
        Case::new("subnet", &[": address in nodes"]).with("subnet-id", &places.nodes),
        Case::new("member-subnet", &[":80: member node-0 {80} in vips", ":80: member node-1 {80} in vips"])
            .with("member-subnet-id", &places.vips)
            .change(
                &json!({"member-subnet-id": null}),
                &[":80: member node-0 {80} in nodes", "!:80: member node-0 {80} in v"],
            ),
        Case::new("keep-floatingip", &[": floating ip in public-a"]).with("keep-floatingip", "true").leaves(&[
            "floating ip of nobody: public-a Floating IP for Kubernetes external service {owner} from cluster test",
        ]),
        Case::new("asks-for-address", &[": floating ip in public-b", ": floating ip says mine"])
            .spec(json!({"loadBalancerIP": places.floating}))
            .shows(json!({"ip": places.floating})),
        Case::new("placed", &[": flavor big", ": zone zone-1"])
            .with("flavor-id", &places.flavor)
            .with("availability-zone", "zone-1"),
        Case::new("hostname", &[": is ACTIVE"])
            .with("hostname", "web.example.org")
            .shows(json!({"hostname": "web.example.org", "ip": null})),
        Case::new("selector", &[":80: member node-1 {80} in nodes", "!:80: member node-0"])
            .with("node-selector", "disk=ssd")
            .change(&json!({"node-selector": "disk=hdd, kubernetes.io/hostname"}), &["!:80: member"]),
        Case::new("unselected", &[":80: member node-0 {80} in nodes", ":80: member node-1 {80} in nodes"])
            .change(&json!({"node-selector": "disk"}), &[":80: member node-1 {80} in nodes", "!:80: member node-0"]),
    ]
}

// length: one table
fn listeners(places: &AnnotationValues) -> Vec<Case> {
    let [first, second] = &places.certificates;
    vec![
        Case::new("connection-limit", &[":80: at most 7"])
            .with("connection-limit", "7")
            .change(&json!({"connection-limit": "9"}), &[":80: at most 9"]),
        Case::new(
            "timeouts",
            &[
                ":80: timeout client-data 1001",
                ":80: timeout member-connect 1002",
                ":80: timeout member-data 1003",
                ":80: timeout tcp-inspect 1004",
            ],
        )
        .with("timeout-client-data", "1001")
        .with("timeout-member-connect", "1002")
        .with("timeout-member-data", "1003")
        .with("timeout-tcp-inspect", "1004")
        .change(
            &json!({"timeout-client-data": "2001", "timeout-member-connect": "2002", "timeout-member-data": "2003",
                   "timeout-tcp-inspect": null}),
            &[
                ":80: timeout client-data 2001",
                ":80: timeout member-connect 2002",
                ":80: timeout member-data 2003",
                ":80: timeout tcp-inspect 0",
            ],
        ),
        Case::new(
            "forwarded",
            &[":80: listens HTTP", ":80: header X-Forwarded-For=true", ":80: pool HTTP ROUND_ROBIN"],
        )
        .with("x-forwarded-for", "true")
        .change(
            &json!({"x-forwarded-for": "false"}),
            &[":80: listens TCP", "!:80: header", ":80: pool TCP ROUND_ROBIN"],
        ),
        Case::new("not-forwarded", &[":80: listens TCP"])
            .change(&json!({"x-forwarded-for": "true"}), &[":80: listens HTTP", ":80: member node-0 {80} in nodes"]),
        Case::new(
            "certificate",
            &[":443: listens TERMINATED_HTTPS", ":443: certificate first", ":443: pool HTTP ROUND_ROBIN"],
        )
        .ports(&[("TCP", 443)])
        .with("default-tls-container-ref", first)
        .change(
            &json!({"default-tls-container-ref": second}),
            &[":443: certificate second", "!:443: certificate first"],
        ),
        Case::new("ranges", &[":80: admits 10.7.0.0/16", ":80: admits 10.8.0.0/16", "!:80: admits 0.0.0.0/0"])
            .with("service.beta.kubernetes.io/load-balancer-source-ranges", "10.7.0.0/16, 10.8.0.0/16")
            .patch(
                json!({"spec": {"loadBalancerSourceRanges": ["10.9.1.0/24"]}}),
                &[":80: admits 10.9.1.0/24", "!:80: admits 10.7.0.0/16", "!:80: admits 10.8.0.0/16"],
            ),
        Case::new(
            "both",
            &[
                ":53: listens TCP",
                ":53/udp: listens UDP",
                ":53/udp: pool UDP ROUND_ROBIN",
                ":53/udp: member node-0 {53} in nodes",
                ":53/udp: named listener_1_default/both",
            ],
        )
        .ports(&[("TCP", 53), ("UDP", 53)]),
    ]
}

fn pools(places: &AnnotationValues) -> Vec<Case> {
    vec![
        Case::new("method", &[":80: pool TCP LEAST_CONNECTIONS"])
            .with("lb-method", "LEAST_CONNECTIONS")
            .change(&json!({"lb-method": "SOURCE_IP"}), &[":80: pool TCP SOURCE_IP"]),
        Case::new("proxy", &[":80: listens TCP", ":80: pool PROXY ROUND_ROBIN"])
            .with("proxy-protocol", "true")
            .shows(json!({"ipMode": "Proxy"}))
            .change(
                &json!({"proxy-protocol": "v2"}),
                &[":80: pool PROXYV2 ROUND_ROBIN", ":80: member node-0 {80} in nodes"],
            ),
        Case::new("proxy-v2", &[":80: pool PROXYV2 ROUND_ROBIN"])
            .with("proxy-protocol", "v2")
            .change(
                &json!({"proxy-protocol": null}),
                &[":80: pool TCP ROUND_ROBIN", ":80: member node-1 {80} in nodes"],
            ),
        Case::new("sticky", &[":80: keeps clients by SOURCE_IP"])
            .spec(json!({"sessionAffinity": "ClientIP"}))
            .patch(
                json!({"spec": {"sessionAffinity": "None", "sessionAffinityConfig": null}}),
                &["!:80: keeps"],
            ),
        Case::new("internal-address", &[": address in vips", "!: floating ip"])
            .with(INTERNAL, "true")
            .with("subnet-id", &places.vips),
    ]
}

fn monitors() -> Vec<Case> {
    vec![
        Case::new(
            "monitor",
            &[
                ":80: check TCP",
                ":80: check named monitor_0_default/monitor",
                ":80: check every 5 within 3 up 1 down 3",
                ":53/udp: check UDP-CONNECT",
            ],
        )
        .ports(&[("TCP", 80), ("UDP", 53)])
        .with("enable-health-monitor", "true")
        .change(&json!({"enable-health-monitor": "false"}), &["!:80: check", "!:53/udp: check"]),
        Case::new("monitor-times", &[":80: check every 20 within 7 up 4 down 5"])
            .with("enable-health-monitor", "true")
            .with("health-monitor-delay", "20")
            .with("health-monitor-timeout", "7")
            .with("health-monitor-max-retries", "4")
            .with("health-monitor-max-retries-down", "5")
            .change(
                &json!({"health-monitor-delay": "10", "health-monitor-timeout": "4", "health-monitor-max-retries": "2",
                       "health-monitor-max-retries-down": null}),
                &[":80: check every 10 within 4 up 2 down 3"],
            ),
        Case::new("monitor-later", &["!:80: check"])
            .change(&json!({"enable-health-monitor": "true"}), &[":80: check TCP"]),
        Case::new("local", &[":80: check HTTP GET /healthz 200", ":80: member node-0 {80} in nodes checked at 32113"])
            .with("enable-health-monitor", "true")
            .spec(json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32113}))
            .patch(
                json!({"spec": {"externalTrafficPolicy": "Cluster"}}),
                &[":80: check TCP", ":80: member node-0 {80} in nodes", "!:80: check HTTP"],
            ),
    ]
}

/// Load balancers whose Services have security groups.
pub(super) fn managed(_: &AnnotationValues) -> Vec<Case> {
    vec![
        Case::new(
            "web",
            &[
                "group lb-sg-default-web: says Security Group for default/web Service LoadBalancer in cluster test",
                "group lb-sg-default-web: in tcp {80} from nodes",
                "group lb-sg-default-web: in udp {53} from nodes",
                "!group lb-sg-default-web: out",
                "node-0: is in lb-sg-default-web",
                "node-1: is in lb-sg-default-web",
            ],
        )
        .ports(&[("TCP", 80), ("UDP", 53)])
        .patch(
            json!({"metadata": {"annotations": {full("node-selector"): "disk=ssd"}},
                   "spec": {"ports": [{"name": "tcp-81", "protocol": "TCP", "port": 81, "nodePort": 32081}]}}),
            &[
                "group lb-sg-default-web: in tcp 32081 from nodes",
                "!group lb-sg-default-web: in tcp {80}",
                "!group lb-sg-default-web: in udp",
                "node-1: is in lb-sg-default-web",
                "!node-0: is in lb-sg-default-web",
            ],
        ),
        Case::new(
            "local",
            &[
                "group lb-sg-default-local: in tcp {80} from nodes",
                "group lb-sg-default-local: in tcp 32114 from nodes",
            ],
        )
        .spec(json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32114}))
        .patch(
            json!({"spec": {"externalTrafficPolicy": "Cluster"}}),
            &["group lb-sg-default-local: in tcp {80} from nodes", "!group lb-sg-default-local: in tcp 32114"],
        ),
    ]
}

/// Load balancers of OVN.
pub(super) fn of_ovn(_: &AnnotationValues) -> Vec<Case> {
    vec![
        Case::new(
            "web",
            &[
                ": driver ovn",
                ":80: pool TCP SOURCE_IP_PORT",
                ":80: check TCP",
                "group lb-sg-default-web: in tcp {80} from 10.7.0.0/16",
                "node-0: is in lb-sg-default-web",
            ],
        )
        .with("enable-health-monitor", "true")
        .spec(json!({"loadBalancerSourceRanges": ["10.7.0.0/16"]}))
        .patch(
            json!({"spec": {"loadBalancerSourceRanges": ["10.8.0.0/16"]}}),
            &[
                "group lb-sg-default-web: in tcp {80} from 10.8.0.0/16",
                "!group lb-sg-default-web: in tcp {80} from 10.7.0.0/16",
            ],
        ),
    ]
}

/// Makes a Service with a name, named ports and annotations.
pub(super) type MakeService = fn(&str, &[(&str, u16)], &[(&str, &str)]) -> Value;

/// A Service of the table; its ports have node ports of their own.
pub(super) fn manifest(at: usize, case: &Case, service: MakeService) -> Value {
    let annotations: Vec<_> = case
        .annotations
        .iter()
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    let mut manifest = service(case.name, &case.ports, &annotations);
    for (port, (_, number)) in case.ports.iter().enumerate() {
        manifest["spec"]["ports"][port]["nodePort"] = json!(node_port(at, *number));
    }
    for (field, value) in case.spec.as_object().into_iter().flatten() {
        manifest["spec"][field] = value.clone();
    }
    manifest
}

/// One port has one node port, whatever the protocol.
fn node_port(at: usize, port: u16) -> usize {
    30000 + 20 * at + usize::from(port % 20)
}

/// Lines of a case as the world has them.
pub(super) fn whole(at: usize, case: &Case, lines: &[&str]) -> Vec<String> {
    let owner = format!("default/{}", case.name);
    let line = |line: &&str| {
        let (not, line) = line
            .strip_prefix('!')
            .map_or(("", *line), |line| ("!", line));
        let about = if line.starts_with(':') { &owner } else { "" };
        let line = format!("{not}{about}{}", line.replace("{owner}", &owner));
        let filled = |line: String, (_, port): &(&str, u16)| {
            line.replace(&format!("{{{port}}}"), &node_port(at, *port).to_string())
        };
        case.ports.iter().fold(line, filled)
    };
    lines.iter().map(line).collect()
}
