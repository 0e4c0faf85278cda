//! The table of Services with a classic load balancer.
//!
//! Each case replaces one listener at most: moto keeps all of them if it is asked to delete several at
//! once. Proxy protocol is set on listeners that were there from the start: moto ignores it on others.

use serde_json::json;

use super::{AnnotationValues, Case};

impl Case {
    fn classic(name: &'static str, wanted: &[&'static str]) -> Self {
        Self { kind: "classic ", ..Self::new(name, wanted) }
    }
}

pub(in crate::cluster::services) fn cases(places: &AnnotationValues) -> Vec<Case> {
    let mut cases = listeners(places);
    cases.extend(attributes());
    cases.extend(security_groups(places));
    cases.extend(placement());
    cases.extend(instances());
    cases
}

// length: one table
fn listeners(places: &AnnotationValues) -> Vec<Case> {
    let [first, second] = &places.certificates;
    vec![
        Case::classic(
            "plain",
            &[
                ": scheme internet-facing",
                ": subnets public-a public-b",
                ": groups k8s-elb-{owner}",
                ": tag kubernetes.io/cluster/test=owned",
                ": tag kubernetes.io/service-name={owner}",
                ": access log none",
                ": draining none",
                ": idle timeout 60",
                ": cross-zone false",
                ": health TCP:{80} every 10 within 5 up 2 down 6",
                ": instance node-0",
                ": instance node-1",
                ":80: listens TCP to TCP {80}",
                "!:80: policy",
                "!: backend",
                "group k8s-elb-{owner}: tcp 80-80 from 0.0.0.0/0",
                "group k8s-elb-{owner}: icmp 3-4 from 0.0.0.0/0",
                "group nodes: -1 all from k8s-elb-{owner}",
            ],
        ),
        Case::classic("web", &[":80: listens HTTP to HTTP {80}"])
            .with("backend-protocol", "http")
            .change(json!({"backend-protocol": null}), &[":80: listens TCP to TCP {80}"]),
        Case::classic("web-later", &[":80: listens TCP to TCP {80}"])
            .change(json!({"backend-protocol": "http"}), &[":80: listens HTTP to HTTP {80}"]),
        Case::classic(
            "secure",
            &[
                ":80: listens TCP to TCP {80}",
                ":443: listens SSL to TCP {443}",
                ":443: policy k8s-SSLNegotiationPolicy-ELBSecurityPolicy-TLS-1-2-2017-01",
            ],
        )
        .ports(&[("TCP", 80), ("TCP", 443)])
        .with("ssl-cert", first)
        .with("ssl-ports", "443")
        .with("ssl-negotiation-policy", "ELBSecurityPolicy-TLS-1-2-2017-01")
        .sent("CreateLoadBalancer", "Listeners.member.2.SSLCertificateId", first)
        .sent("CreateLoadBalancerPolicy", "PolicyTypeName", "SSLNegotiationPolicyType")
        .change(
            json!({"ssl-negotiation-policy": "ELBSecurityPolicy-2016-08"}),
            &[
                ":443: listens SSL to TCP {443}",
                ":443: policy k8s-SSLNegotiationPolicy-ELBSecurityPolicy-2016-08",
                "!:443: policy k8s-SSLNegotiationPolicy-ELBSecurityPolicy-TLS-1-2-2017-01",
            ],
        ),
        // A new listener gets the policy again.
        Case::classic(
            "encrypted",
            &[
                ":443: listens HTTPS to HTTP {443}",
                ":443: policy k8s-SSLNegotiationPolicy-ELBSecurityPolicy-2016-08",
                ": health TCP:{443} every 10 within 5 up 2 down 6",
            ],
        )
        .ports(&[("TCP", 443)])
        .with("ssl-cert", second)
        .with("backend-protocol", "http")
        .with("ssl-negotiation-policy", "ELBSecurityPolicy-2016-08")
        .change(
            json!({"backend-protocol": "https", "ssl-cert": first}),
            &[
                ":443: listens HTTPS to HTTPS {443}",
                ":443: policy k8s-SSLNegotiationPolicy-ELBSecurityPolicy-2016-08",
                ": health SSL:{443} every 10 within 5 up 2 down 6",
            ],
        )
        .then_sent(
            "CreateLoadBalancerListeners",
            "Listeners.member.1.SSLCertificateId",
            first,
        ),
        Case::classic("proxy", &[": backend {80} policy k8s-proxyprotocol-enabled"])
            .with("proxy-protocol", "*")
            .sent("CreateLoadBalancerPolicy", "PolicyTypeName", "ProxyProtocolPolicyType")
            .change(json!({"proxy-protocol": null}), &["!: backend"]),
        Case::classic("proxy-later", &["!: backend"]).change(
            json!({"proxy-protocol": "*"}),
            &[": backend {80} policy k8s-proxyprotocol-enabled"],
        ),
    ]
}

fn attributes() -> Vec<Case> {
    vec![
        Case::classic("attributes", &[": draining 120", ": idle timeout 90", ": cross-zone true"])
            .with("connection-draining-enabled", "true")
            .with("connection-draining-timeout", "120")
            .with("connection-idle-timeout", "90")
            .with("cross-zone-load-balancing-enabled", "true")
            .change(
                json!({"connection-draining-enabled": "false", "connection-idle-timeout": "100",
                       "cross-zone-load-balancing-enabled": null}),
                &[": draining none", ": idle timeout 100", ": cross-zone false"],
            ),
        Case::classic("logs", &[": access log to logs/web every 5"])
            .with("access-log-enabled", "true")
            .with("access-log-emit-interval", "5")
            .with("access-log-s3-bucket-name", "logs")
            .with("access-log-s3-bucket-prefix", "web")
            .change(
                json!({"access-log-emit-interval": "60", "access-log-s3-bucket-prefix": "other"}),
                &[": access log to logs/other every 60"],
            ),
        Case::classic("no-logs", &[": access log to logs/ every 60"])
            .with("access-log-enabled", "true")
            .with("access-log-emit-interval", "60")
            .with("access-log-s3-bucket-name", "logs")
            .change(json!({"access-log-enabled": "false"}), &[": access log none"]),
        Case::classic("tagged", &[": tag team=a"])
            .with("additional-resource-tags", "team=a")
            .change(
                json!({"additional-resource-tags": "team=b,cost=1"}),
                &[": tag team=b", ": tag cost=1", ": tag kubernetes.io/service-name={owner}"],
            ),
        Case::classic("health", &[": health HTTP:8081/up every 20 within 7 up 4 down 5"])
            .with("healthcheck-protocol", "http")
            .with("healthcheck-port", "8081")
            .with("healthcheck-path", "/up")
            .with("healthcheck-interval", "20")
            .with("healthcheck-timeout", "7")
            .with("healthcheck-healthy-threshold", "4")
            .with("healthcheck-unhealthy-threshold", "5")
            .change(
                json!({"healthcheck-protocol": "tcp", "healthcheck-port": null, "healthcheck-interval": "15"}),
                &[": health TCP:{80} every 15 within 7 up 4 down 5"],
            ),
        Case::classic("local", &[": health HTTP:32114/healthz every 10 within 5 up 2 down 6"])
            .spec(json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32114}))
            .patch(
                json!({"spec": {"externalTrafficPolicy": "Cluster"}}),
                &[": health TCP:{80} every 10 within 5 up 2 down 6"],
            ),
    ]
}

// length: one table
fn security_groups(places: &AnnotationValues) -> Vec<Case> {
    vec![
        Case::classic(
            "ranges",
            &[
                "group k8s-elb-{owner}: tcp 80-80 from 10.7.0.0/16",
                "group k8s-elb-{owner}: icmp 3-4 from 10.7.0.0/16",
                "!group k8s-elb-{owner}: tcp 80-80 from 0.0.0.0/0",
            ],
        )
        .spec(json!({"loadBalancerSourceRanges": ["10.7.0.0/16"]}))
        .patch(
            json!({"spec": {"loadBalancerSourceRanges": ["10.9.0.0/16"]}}),
            &[
                "group k8s-elb-{owner}: tcp 80-80 from 10.9.0.0/16",
                "group k8s-elb-{owner}: icmp 3-4 from 10.9.0.0/16",
                "!group k8s-elb-{owner}: tcp 80-80 from 10.7.0.0/16",
                "!group k8s-elb-{owner}: icmp 3-4 from 10.7.0.0/16",
            ],
        ),
        // The group that was there before is nobody's here: it stays as it is.
        Case::classic(
            "given",
            &[
                ": groups mine",
                "group nodes: -1 all from mine",
                "!group mine: tcp",
                "!group k8s-elb-{owner}",
            ],
        )
        .with("security-groups", &places.group)
        .change(
            json!({"security-groups": null}),
            &[
                ": groups k8s-elb-{owner}",
                "group mine: is mine",
                "group nodes: -1 all from k8s-elb-{owner}",
                "!group nodes: -1 all from mine",
            ],
        ),
        Case::classic("extra", &[": groups k8s-elb-{owner}"]).change(
            json!({"extra-security-groups": places.extra_group}),
            &[
                ": groups extra k8s-elb-{owner}",
                "group nodes: -1 all from k8s-elb-{owner}",
                "!group nodes: -1 all from extra",
                "!group extra: tcp",
            ],
        ),
    ]
}

fn placement() -> Vec<Case> {
    vec![
        Case::classic("placed", &[": subnets public-a"])
            .with("subnets", "public-a")
            .change(json!({"subnets": "public-b"}), &[": subnets public-b"]),
        Case::classic("internal", &[": scheme internal", ": subnets private-a private-b"])
            .with("internal", "true")
            .change(json!({"subnets": "private-a"}), &[": subnets private-a"]),
    ]
}

fn instances() -> Vec<Case> {
    vec![
        Case::classic("labels", &[": instance node-1", "!: instance node-0"])
            .with("target-node-labels", "disk=ssd")
            .change(
                json!({"target-node-labels": null}),
                &[": instance node-0", ": instance node-1"],
            ),
        Case::classic("unlabelled", &[": instance node-0", ": instance node-1"]).change(
            json!({"target-node-labels": "disk"}),
            &[": instance node-1", "!: instance node-0"],
        ),
    ]
}
