// length: two tables
//! The tables of Services.

pub(super) mod classic;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::fixture::ClusterFixture;

/// A parameter of a request: action, name, value.
pub(super) type SentParameter = (&'static str, &'static str, String);

/// A Service, and what there has to be for it.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// What lines of its load balancer begin with: `classic `, or nothing.
    pub(super) kind: &'static str,
    pub(super) ports: Vec<(&'static str, u16)>,
    pub(super) annotations: Vec<(&'static str, String)>,
    /// Further fields of the spec.
    pub(super) spec: Value,
    /// Lines of the world: `{80}` is the node port of port 80, `{name}` the Service.
    pub(super) wanted: Vec<&'static str>,
    /// Requests that were sent.
    pub(super) sent: Vec<SentParameter>,
    /// A merge patch, with annotations by suffix.
    pub(super) change: Value,
    /// Lines after it.
    pub(super) then: Vec<&'static str>,
    /// Requests that were sent after it.
    pub(super) then_sent: Vec<SentParameter>,
}

impl Case {
    fn new(name: &'static str, wanted: &[&'static str]) -> Self {
        Self {
            name,
            kind: "",
            ports: vec![("TCP", 80)],
            annotations: Vec::new(),
            spec: Value::Null,
            wanted: wanted.into(),
            sent: Vec::new(),
            change: Value::Null,
            then: Vec::new(),
            then_sent: Vec::new(),
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

    fn sent(
        mut self,
        action: &'static str,
        parameter: &'static str,
        value: impl Into<String>,
    ) -> Self {
        self.sent.push((action, parameter, value.into()));
        self
    }

    fn then_sent(
        mut self,
        action: &'static str,
        parameter: &'static str,
        value: impl Into<String>,
    ) -> Self {
        self.then_sent.push((action, parameter, value.into()));
        self
    }

    /// Changes annotations.
    fn change(mut self, annotations: Value, then: &[&'static str]) -> Self {
        self.change["metadata"]["annotations"] = annotations;
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
    public_a: String,
    allocations: [String; 2],
    certificates: [String; 2],
    group: String,
    extra_group: String,
}

impl AnnotationValues {
    pub(super) async fn make(stage: &ClusterFixture<'_>) -> anyhow::Result<Self> {
        let fixture = &stage.fixture;
        Ok(Self {
            public_a: stage.network.public[0].id.clone(),
            allocations: [fixture.elastic_ip().await?, fixture.elastic_ip().await?],
            certificates: [
                fixture.certificate("a.test").await?,
                fixture.certificate("b.test").await?,
            ],
            group: fixture
                .security_group(&stage.network.vpc, "mine", &[])
                .await?,
            extra_group: fixture
                .security_group(&stage.network.vpc, "extra", &[])
                .await?,
        })
    }
}

/// The pods behind a Service with addresses as targets.
pub(super) async fn slice(stage: &ClusterFixture<'_>, case: &Case) -> anyhow::Result<()> {
    if !case
        .annotations
        .iter()
        .any(|(key, value)| *key == "nlb-target-type" && value == "ip")
    {
        return Ok(());
    }
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": case.name, "labels": {"kubernetes.io/service-name": case.name}},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["10.0.0.77"], "conditions": {"ready": true}},
            {"addresses": ["10.0.1.78"], "conditions": {"ready": false}},
        ],
        "ports": [{"name": "tcp-80", "port": 8080, "protocol": "TCP"}],
    });
    let api: Api<EndpointSlice> = Api::namespaced(stage.server.client(), "default");
    api.patch(case.name, &PatchParams::apply("e2e").force(), &Patch::Apply(slice))
        .await?;
    Ok(())
}

/// Load balancers without security groups: nodes admit networks.
pub(super) fn plain(places: &AnnotationValues) -> Vec<Case> {
    let mut cases = placement(places);
    cases.extend(listeners(places));
    cases.extend(targets());
    cases.extend(attributes());
    cases
}

// length: one table
fn placement(places: &AnnotationValues) -> Vec<Case> {
    vec![
        Case::new(
            "plain",
            &[
                ": scheme internet-facing ipv4",
                ": subnets public-a public-b",
                ": groups none",
                ": tag kubernetes.io/cluster/test=owned",
                ": tag kubernetes.io/service-name=default/plain",
                ": attribute load_balancing.cross_zone.enabled=false",
                ": attribute access_logs.s3.enabled=false",
                ":80: listens TCP",
                ":80: listener tag kubernetes.io/cluster/test=owned",
                ":80: to TCP {80} instance",
                ":80: tag kubernetes.io/cluster/test=owned",
                ":80: tag kubernetes.io/service-name=default/plain",
                ":80: health TCP traffic-port none",
                ":80: health every 30 within 10",
                ":80: health up 3 down 3",
                ":80: target node-0 {80}",
                ":80: target node-1 {80}",
                "group nodes: tcp {80}-{80} from 0.0.0.0/0 kubernetes.io/rule/nlb/client={owner}",
                "group nodes: icmp 3-4 from 0.0.0.0/0 kubernetes.io/rule/nlb/mtu",
            ],
        )
        .with("type", "nlb")
        .patch(
            json!({"spec": {"ports": [{"name": "tcp-81", "protocol": "TCP", "port": 81, "nodePort": 32081}]}}),
            &[":81: listens TCP", ":81: target node-1 32081", "!:80:"],
        ),
        Case::new("inside", &[": scheme internal ipv4", ": subnets private-a private-b"]).with("internal", "true"),
        Case::new("scheme", &[": scheme internal ipv4"]).with("scheme", "internal").with("internal", "false"),
        Case::new("named-subnets", &[": subnets public-b"])
            .with("subnets", "public-b")
            .change(json!({"subnets": format!("public-b,{}", places.public_a)}), &[": subnets public-a public-b"]),
        Case::new("dual", &[": scheme internet-facing dualstack"])
            .with("ip-address-type", "dualstack")
            .change(json!({"ip-address-type": null}), &[": scheme internet-facing ipv4"]),
        Case::new("elastic", &[": subnets public-a public-b"])
            .with("subnets", "public-a,public-b")
            .with("eip-allocations", places.allocations.join(", "))
            .sent("CreateLoadBalancer", "SubnetMappings.member.1.AllocationId", &places.allocations[0])
            .sent("CreateLoadBalancer", "SubnetMappings.member.2.AllocationId", &places.allocations[1]),
        Case::new("private", &[": scheme internal ipv4"])
            .with("internal", "true")
            .with("subnets", "private-a,private-b")
            .with("private-ipv4-addresses", "10.0.3.9,10.0.2.9")
            .sent("CreateLoadBalancer", "SubnetMappings.member.1.PrivateIPv4Address", "10.0.2.9")
            .sent("CreateLoadBalancer", "SubnetMappings.member.2.PrivateIPv4Address", "10.0.3.9"),
        Case::new("own-name", &[]).with("name", "my-own").sent("CreateLoadBalancer", "Name", "my-own"),
        Case::new("tagged", &[": tag team=a", ": tag empty=", ":80: tag team=a", ":80: listener tag team=a"])
            .with("additional-resource-tags", "team=a,empty=,kubernetes.io/service-name=mine")
            .change(
                json!({"additional-resource-tags": "team=b"}),
                &[
                    ": tag team=b",
                    ":80: tag team=b",
                    ":80: listener tag team=b",
                    ": tag kubernetes.io/service-name={owner}",
                ],
            ),
        Case::new(
            "ranges",
            &[
                "group nodes: tcp {80}-{80} from 10.7.0.0/16 kubernetes.io/rule/nlb/client={owner}",
                "group nodes: tcp {80}-{80} from 10.8.0.0/16 kubernetes.io/rule/nlb/client={owner}",
                "group nodes: icmp 3-4 from 10.7.0.0/16 kubernetes.io/rule/nlb/mtu",
                "group nodes: tcp {80}-{80} from 10.0.0.0/24 kubernetes.io/rule/nlb/health={owner}",
                "group nodes: tcp {80}-{80} from 10.0.1.0/24 kubernetes.io/rule/nlb/health={owner}",
            ],
        )
        .with("service.beta.kubernetes.io/load-balancer-source-ranges", "10.7.0.0/16, 10.8.0.0/16")
        .change(
            json!({"service.beta.kubernetes.io/load-balancer-source-ranges": "10.8.0.0/16"}),
            &[
                "group nodes: tcp {80}-{80} from 10.8.0.0/16 kubernetes.io/rule/nlb/client={owner}",
                "!group nodes: tcp {80}-{80} from 10.7.0.0/16",
                "!group nodes: icmp 3-4 from 10.7.0.0/16",
            ],
        ),
    ]
}

// length: one table
fn listeners(places: &AnnotationValues) -> Vec<Case> {
    let [first, second] = &places.certificates;
    vec![
        Case::new(
            "tls",
            &[
                ":443: listens TLS",
                ":443: policy ELBSecurityPolicy-TLS13-1-2-2021-06",
                ":443: alpn HTTP2Preferred",
                ":443: to TLS {443} instance",
                ":80: listens TCP",
                ":80: to TCP {80} instance",
            ],
        )
        .ports(&[("TCP", 80), ("TCP", 443)])
        .with("ssl-cert", format!("{first}, {second}"))
        .with("ssl-ports", "443, no-such-port")
        .with("ssl-negotiation-policy", "ELBSecurityPolicy-TLS13-1-2-2021-06")
        .with("backend-protocol", "ssl")
        .with("alpn-policy", "HTTP2Preferred")
        .sent("CreateListener", "Certificates.member.1.CertificateArn", first)
        .sent("AddListenerCertificates", "Certificates.member.1.CertificateArn", second)
        .change(
            json!({"ssl-negotiation-policy": "ELBSecurityPolicy-TLS13-1-3-2021-06", "ssl-ports": "tcp-443",
                   "ssl-cert": first, "backend-protocol": null}),
            &[
                ":443: policy ELBSecurityPolicy-TLS13-1-3-2021-06",
                ":443: to TCP {443} instance",
                "!:443: further certificate",
                "!:80: certificate",
            ],
        ),
        Case::new(
            "udp",
            &[
                ":53: listens UDP",
                ":53: to UDP {53} instance",
                "group nodes: udp {53}-{53} from 0.0.0.0/0 kubernetes.io/rule/nlb/client={owner}",
                "group nodes: tcp {53}-{53} from 10.0.0.0/24 kubernetes.io/rule/nlb/health={owner}",
            ],
        )
        .ports(&[("UDP", 53)]),
        Case::new(
            "both",
            &[
                ":53: listens TCP_UDP",
                ":53: to TCP_UDP {53} instance",
                ":80: listens TCP",
                "group nodes: udp {53}-{53} from 0.0.0.0/0 kubernetes.io/rule/nlb/client={owner}",
                "group nodes: tcp {53}-{53} from 0.0.0.0/0 kubernetes.io/rule/nlb/client={owner}",
            ],
        )
        .ports(&[("TCP", 53), ("UDP", 53), ("TCP", 80)]),
        Case::new("idle", &[":80: listener attribute tcp.idle_timeout.seconds=400"])
            .with("listener-attributes.TCP-80", "tcp.idle_timeout.seconds=400")
            .change(
                json!({"listener-attributes.TCP-80": "tcp.idle_timeout.seconds=500"}),
                &[":80: listener attribute tcp.idle_timeout.seconds=500"],
            ),
    ]
}

fn targets() -> Vec<Case> {
    vec![
        Case::new("labels", &[":80: target node-1 {80}", "!:80: target node-0"])
            .with("target-node-labels", "disk=ssd")
            .change(json!({"target-node-labels": null}), &[":80: target node-0 {80}", ":80: target node-1 {80}"]),
        Case::new("unlabelled", &[":80: target node-0 {80}", ":80: target node-1 {80}"])
            .change(json!({"target-node-labels": "disk"}), &[":80: target node-1 {80}", "!:80: target node-0"]),
        Case::new("pods", &[":80: to TCP 8080 ip", ":80: target 10.0.0.77 8080", "!:80: target 10.0.1.78"])
            .with("nlb-target-type", "ip"),
        Case::new(
            "local",
            &[
                ":80: health HTTP 32113 /healthz",
                ":80: health every 10 within 6",
                ":80: health up 2 down 2",
                "group nodes: tcp 32113-32113 from 10.0.1.0/24 kubernetes.io/rule/nlb/health={owner}",
            ],
        )
        .spec(json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32113}))
        .patch(
            json!({"spec": {"externalTrafficPolicy": "Cluster"}}),
            &[":80: health TCP traffic-port none", ":80: health up 3 down 3", "!group nodes: tcp 32113-32113"],
        ),
        Case::new(
            "health",
            &[
                ":80: health HTTP 8081 /ready",
                ":80: health every 20 within 7",
                ":80: health up 4 down 5",
                ":80: health codes 200-204",
                "group nodes: tcp 8081-8081 from 10.0.0.0/24 kubernetes.io/rule/nlb/health={owner}",
            ],
        )
        .with("healthcheck-protocol", "http")
        .with("healthcheck-port", "8081")
        .with("healthcheck-path", "/ready")
        .with("healthcheck-interval", "20")
        .with("healthcheck-timeout", "7")
        .with("healthcheck-healthy-threshold", "4")
        .with("healthcheck-unhealthy-threshold", "5")
        .with("healthcheck-success-codes", "200-204")
        .change(
            json!({"healthcheck-protocol": "HTTPS", "healthcheck-port": "traffic-port", "healthcheck-path": "/",
                   "healthcheck-interval": "15", "healthcheck-timeout": "5", "healthcheck-unhealthy-threshold": "6"}),
            &[
                ":80: health HTTPS traffic-port /",
                ":80: health every 15 within 5",
                ":80: health up 4 down 6",
                "!group nodes: tcp 8081-8081",
            ],
        ),
    ]
}

fn attributes() -> Vec<Case> {
    vec![
        Case::new(
            "target-attributes",
            &[
                ":80: attribute preserve_client_ip.enabled=false",
                ":80: attribute deregistration_delay.timeout_seconds=30",
                "!:443: attribute preserve_client_ip.enabled=false",
                ":443: attribute deregistration_delay.timeout_seconds=40",
            ],
        )
        .ports(&[("TCP", 80), ("TCP", 443)])
        .with(
            "target-group-attributes",
            "preserve_client_ip.enabled=false,deregistration_delay.timeout_seconds=30",
        )
        .with(
            "target-group-attributes.443",
            "preserve_client_ip.enabled=true,deregistration_delay.timeout_seconds=40",
        )
        .change(
            json!({"target-group-attributes": "proxy_protocol_v2.enabled=true"}),
            &[
                ":80: attribute proxy_protocol_v2.enabled=true",
                ":443: attribute proxy_protocol_v2.enabled=true",
            ],
        ),
        Case::new("proxy", &[":80: attribute proxy_protocol_v2.enabled=true"])
            .with("proxy-protocol", "*"),
        Case::new(
            "proxy-ports",
            &[
                ":80: attribute proxy_protocol_v2.enabled=true",
                "!:443: attribute proxy_protocol_v2.enabled=true",
            ],
        )
        .ports(&[("TCP", 80), ("TCP", 443)])
        .with("proxy-protocol-per-target-group", "80"),
        Case::new(
            "sticky",
            &[":80: attribute stickiness.enabled=true", ":80: attribute stickiness.type=source_ip"],
        )
        .spec(json!({"sessionAffinity": "ClientIP"})),
        Case::new(
            "logs",
            &[
                ": attribute load_balancing.cross_zone.enabled=true",
                ": attribute access_logs.s3.enabled=true",
                ": attribute access_logs.s3.bucket=logs",
                ": attribute access_logs.s3.prefix=web",
            ],
        )
        .with("cross-zone-load-balancing-enabled", "true")
        .with("access-log-enabled", "true")
        .with("access-log-s3-bucket-name", "logs")
        .with("access-log-s3-bucket-prefix", "web")
        .change(
            json!({"cross-zone-load-balancing-enabled": null, "access-log-enabled": "false"}),
            &[
                ": attribute load_balancing.cross_zone.enabled=false",
                ": attribute access_logs.s3.enabled=false",
            ],
        ),
        Case::new(
            "attributes",
            &[
                ": attribute load_balancing.cross_zone.enabled=true",
                ": attribute deletion_protection.enabled=true",
            ],
        )
        .with(
            "attributes",
            "load_balancing.cross_zone.enabled=true,deletion_protection.enabled=true",
        )
        .change(
            json!({"attributes": "deletion_protection.enabled=false"}),
            &[
                ": attribute load_balancing.cross_zone.enabled=false",
                ": attribute deletion_protection.enabled=false",
            ],
        ),
    ]
}

/// Load balancers with security groups: nodes admit these.
// length: one table
pub(super) fn managed(places: &AnnotationValues) -> Vec<Case> {
    let certificate = &places.certificates[0];
    vec![
        Case::new(
            "managed",
            &[
                ": groups managed-default-managed",
                "group managed-default-managed: is [k8s] Managed SecurityGroup for LoadBalancer",
                "group managed-default-managed: tag kubernetes.io/cluster/test=owned",
                "group managed-default-managed: tcp 80-80 from 10.7.0.0/16",
                "group managed-default-managed: icmp 3-4 from 10.7.0.0/16",
                "group nodes: tcp {80}-{80} from 10.7.0.0/16 kubernetes.io/rule/nlb/client={owner}",
                "!group nodes: tcp {80}-{80} from 0.0.0.0/0",
                "!group nodes: tcp {80}-{80} from managed-default-managed",
            ],
        )
        .spec(json!({"loadBalancerSourceRanges": ["10.7.0.0/16"]}))
        .patch(
            json!({"spec": {"loadBalancerSourceRanges": ["10.9.0.0/16"]}}),
            &[
                "group managed-default-managed: tcp 80-80 from 10.9.0.0/16",
                "group managed-default-managed: icmp 3-4 from 10.9.0.0/16",
                "!group managed-default-managed: tcp 80-80 from 10.7.0.0/16",
                "!group managed-default-managed: icmp 3-4 from 10.7.0.0/16",
                "group nodes: tcp {80}-{80} from 10.9.0.0/16 kubernetes.io/rule/nlb/client={owner}",
                "!group nodes: tcp {80}-{80} from 10.7.0.0/16",
            ],
        ),
        Case::new(
            "mtls",
            &[
                "group managed-default-mtls: tcp 443-443 from 0.0.0.0/0",
                "group managed-default-mtls: udp 53-53 from 0.0.0.0/0",
                "group nodes: udp {53}-{53} from 0.0.0.0/0 kubernetes.io/rule/nlb/client={owner}",
            ],
        )
        .ports(&[("TCP", 443), ("UDP", 53)])
        .with("ssl-cert", certificate),
        // The group that was there before is nobody's here: it stays as it is.
        Case::new(
            "mine",
            &[
                ": groups mine",
                "group nodes: tcp {80}-{80} from 0.0.0.0/0 kubernetes.io/rule/nlb/client={owner}",
                "!group mine: tcp",
            ],
        )
        .with("security-groups", &places.group)
        .with("inbound-sg-rules-on-private-link-traffic", "off")
        .change(
            json!({"security-groups": null}),
            &[
                ": groups managed-default-mine",
                "group mine: is mine",
                "group nodes: tcp {80}-{80} from 0.0.0.0/0 kubernetes.io/rule/nlb/client={owner}",
            ],
        ),
        Case::new("swap", &[": groups managed-default-swap"]).change(
            json!({"security-groups": places.group}),
            &[
                ": groups mine",
                "!group managed-default-swap",
                // Rules by network are the same for given groups, as with upstream.
                "group nodes: tcp {80}-{80} from 0.0.0.0/0 kubernetes.io/rule/nlb/client={owner}",
            ],
        ),
        Case::new("nolb", &[": groups none"]).with("disable-nlb-sg", "true"),
        Case::new(
            "lists",
            &[
                "group managed-default-lists: tcp 80-80 from pl-123",
                "!group managed-default-lists: tcp 80-80 from 0.0.0.0/0",
                "group nodes: tcp {80}-{80} from managed-default-lists kubernetes.io/rule/nlb/sg={owner}",
                "!group nodes: tcp {80}-{80} from 0.0.0.0/0",
            ],
        )
        .with("security-group-prefix-lists", "pl-123"),
        Case::new("unruled", &[": groups managed-default-unruled", "!group nodes: tcp {80}-{80}"])
            .with("manage-backend-security-group-rules", "false"),
        Case::new(
            "mdual",
            &[
                ": scheme internet-facing dualstack",
                "group managed-default-mdual: tcp 80-80 from ::/0",
                "group managed-default-mdual: icmpv6 2-0 from ::/0",
                "group managed-default-mdual: icmp 3-4 from 0.0.0.0/0",
            ],
        )
        .with("ip-address-type", "dualstack"),
    ]
}
