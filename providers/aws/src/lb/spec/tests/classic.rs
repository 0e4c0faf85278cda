//! Services with a classic load balancer, as cloud-provider-aws v1.37 reads them.

use super::*;
use crate::{
    api::{
        SecurityGroupId,
        classic::{ClassicAccessLog, ClassicDraining, ClassicListener},
        elb::Scheme,
    },
    config::SharedProbe,
    lb::{classic::model::DesiredClassic, model::SubnetChoice},
};

/// A Service without type annotation, under a configuration that names no type.
fn classic() -> Case {
    nlb()
        .without("type")
        .set(|settings| *settings = Settings::default())
}

impl Case {
    fn classic(&self) -> DesiredClassic {
        match self.read().spec {
            ServiceSpec::Classic(desired) => *desired,
            other => panic!("{other:?}"),
        }
    }
}

fn listener(
    port: u16,
    protocol: &str,
    backend: &str,
    certificate: Option<&str>,
) -> ClassicListener {
    ClassicListener {
        port,
        protocol: protocol.into(),
        instance_port: 30000 + port,
        instance_protocol: backend.into(),
        certificate: certificate.map(Into::into),
    }
}

#[test]
fn a_plain_service_gets_upstreams_defaults() {
    let desired = classic().classic();
    assert_eq!(&*desired.name, "a0f1e2d3c00001111222233334444555");
    assert_eq!(desired.scheme, Scheme::InternetFacing);
    assert_eq!(desired.subnets, SubnetChoice::Discover);
    assert_eq!(desired.listeners, [listener(80, "TCP", "TCP", None)]);
    assert_eq!(desired.ports, [80]);
    assert_eq!(desired.sources, ["0.0.0.0/0".parse().unwrap()]);
    assert!(!desired.proxy_protocol && desired.tls_policy.is_none());
    let check = &desired.health_check;
    assert_eq!(&*check.target, "TCP:30080");
    assert_eq!((check.interval, check.timeout, check.healthy, check.unhealthy), (10, 5, 2, 6));
    let attributes = &desired.attributes;
    assert_eq!(attributes.access_log, Some(ClassicAccessLog::default()));
    assert_eq!(attributes.draining, Some(ClassicDraining::default()));
    assert_eq!((attributes.idle_timeout, attributes.cross_zone), (Some(60), Some(false)));
}

#[test]
fn certificate_ports_and_backend_protocol_make_the_protocols() {
    let tls = |case: Case| case.says("ssl-cert", "arn:c");
    let cases = [
        (classic().says("backend-protocol", "http"), "HTTP", "HTTP", false),
        (classic().says("backend-protocol", "https"), "TCP", "TCP", false),
        (tls(classic()), "SSL", "TCP", true),
        (tls(classic()).says("backend-protocol", "http"), "HTTPS", "HTTP", true),
        (tls(classic()).says("backend-protocol", "https"), "HTTPS", "HTTPS", true),
        (tls(classic()).says("backend-protocol", "ssl"), "SSL", "SSL", true),
        (tls(classic()).says("backend-protocol", "tcp"), "SSL", "TCP", true),
        (tls(classic()).says("ssl-ports", "80"), "SSL", "TCP", true),
        (tls(classic()).says("ssl-ports", "p80"), "SSL", "TCP", true),
        (tls(classic()).says("ssl-ports", "*"), "SSL", "TCP", true),
        (tls(classic()).says("ssl-ports", "443"), "TCP", "TCP", false),
        // Upstream does not trim the entries.
        (tls(classic()).says("ssl-ports", "443, 80"), "TCP", "TCP", false),
        (
            tls(classic())
                .says("ssl-ports", "443")
                .says("backend-protocol", "http"),
            "HTTP",
            "HTTP",
            false,
        ),
    ];
    for (case, front, back, has_certificate) in cases {
        let certificate = has_certificate.then_some("arn:c");
        let expected = [listener(80, front, back, certificate)];
        assert_eq!(case.classic().listeners, expected, "{:?}", case.service.annotations);
    }
    let wrong = tls(classic()).says("backend-protocol", "HTTP").mistakes();
    assert!(wrong[0].contains("Invalid backend protocol HTTP"), "{wrong:?}");
}

#[test]
fn the_health_check_is_that_of_the_first_port_or_of_kube_proxy() {
    let shared = |case: Case| {
        case.set(|settings| {
            let port = 10256.try_into().unwrap();
            settings.shared_health_probe = Some(SharedProbe { port, path: "/alive".into() });
        })
    };
    let cases = [
        (classic().tcp(443), "TCP:30080"),
        (classic().says("backend-protocol", "SSL"), "SSL:30080"),
        (classic().local(32000), "HTTP:32000/healthz"),
        (
            classic()
                .local(32000)
                .says("healthcheck-port", "traffic-port"),
            "HTTP:30080/healthz",
        ),
        (classic().local(32000).says("healthcheck-protocol", "tcp"), "TCP:32000"),
        (shared(classic()), "HTTP:10256/alive"),
        (shared(classic()).local(32000), "HTTP:32000/healthz"),
        (classic().says("healthcheck-protocol", "http"), "HTTP:30080/"),
        (
            classic()
                .says("healthcheck-protocol", "HTTPS")
                .says("healthcheck-path", "/up")
                .says("healthcheck-port", "8080"),
            "HTTPS:8080/up",
        ),
        (classic().says("healthcheck-path", "/up"), "TCP:30080"),
        (classic().says("healthcheck-port", "traffic-port"), "TCP:30080"),
    ];
    for (case, target) in cases {
        let found = case.classic().health_check.target;
        assert_eq!(&*found, target, "{:?}", case.service.annotations);
    }
    let all = classic()
        .says("healthcheck-interval", "20")
        .says("healthcheck-timeout", "7")
        .says("healthcheck-healthy-threshold", "4")
        .says("healthcheck-unhealthy-threshold", "5")
        .classic()
        .health_check;
    assert_eq!((all.interval, all.timeout, all.healthy, all.unhealthy), (20, 7, 4, 5));
}

#[test]
fn annotations_set_all_attributes() {
    let desired = classic()
        .says("access-log-enabled", "true")
        .says("access-log-emit-interval", "5")
        .says("access-log-s3-bucket-name", "logs")
        .says("access-log-s3-bucket-prefix", "web")
        .says("connection-draining-enabled", "true")
        .says("connection-draining-timeout", "120")
        .says("connection-idle-timeout", "3600")
        .says("cross-zone-load-balancing-enabled", "true")
        .says("proxy-protocol", "*")
        .says("ssl-negotiation-policy", "ELBSecurityPolicy-TLS-1-2-2017-01")
        .says("internal", "0.0.0.0/0")
        .says("subnets", "subnet-1, private")
        .says("security-groups", "sg-1, sg-2,sg-1")
        .says("extra-security-groups", "sg-3")
        .says("additional-resource-tags", "team=a")
        .classic();
    let log = ClassicAccessLog {
        enabled: true,
        interval: Some(5),
        bucket: Some("logs".into()),
        prefix: Some("web".into()),
    };
    assert_eq!(desired.attributes.access_log, Some(log));
    let draining = ClassicDraining { enabled: true, timeout: Some(120) };
    assert_eq!(desired.attributes.draining, Some(draining));
    assert_eq!(desired.attributes.idle_timeout, Some(3600));
    assert_eq!(desired.attributes.cross_zone, Some(true));
    assert!(desired.proxy_protocol);
    assert_eq!(desired.tls_policy.as_deref(), Some("ELBSecurityPolicy-TLS-1-2-2017-01"));
    assert_eq!(desired.scheme, Scheme::Internal);
    assert!(matches!(&desired.subnets, SubnetChoice::Named(names) if names.len() == 2));
    assert_eq!(desired.groups.given, ["sg-1", "sg-2"].map(SecurityGroupId::from));
    assert_eq!(desired.groups.extra, ["sg-3"].map(SecurityGroupId::from));
    assert_eq!(&*desired.extra_tags["team"], "a");
}

#[test]
fn what_upstream_rejects_is_rejected_with_every_mistake() {
    let cases: [(Case, &str); 14] = [
        (bare().without("type").set(|it| *it = Settings::default()), "no ports"),
        (classic().udp(53), "Protocol UDP not supported"),
        (
            classic()
                .port("x", Protocol::Tcp, 81, 0)
                .spec(|it| it.ports = it.ports[1..].into()),
            "NodePort",
        ),
        (classic().spec(|it| it.load_balancer_ip = Some("192.0.2.1".into())), "LoadBalancerIP"),
        (
            classic().spec(|it| {
                it.session_affinity =
                    ccm_core::k8s::SessionAffinity::ClientIp(std::time::Duration::MAX);
            }),
            "affinity: ClientIP",
        ),
        (classic().says("target-group-attributes", ""), "only supported for NLB"),
        (classic().says("proxy-protocol", "80"), "the only value supported currently is '*'"),
        (classic().says("connection-idle-timeout", "1m"), "error parsing service annotation"),
        (classic().says("connection-idle-timeout", "4001"), "4001 is not between 1 and 4000"),
        (classic().says("access-log-enabled", "yes"), "error parsing service annotation"),
        (classic().says("access-log-emit-interval", "10"), "neither 5 nor 60"),
        (classic().says("healthcheck-interval", "5"), "must be less than the interval"),
        (classic().says("healthcheck-protocol", "grpc"), "Unsupported health check protocol GRPC"),
        (
            classic().spec(|it| it.source_ranges = Box::from(["2001:db8::/32".into()])),
            "no IPv6 clients",
        ),
    ];
    for (case, expected) in cases {
        let found = case.mistakes();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(expected), "{found:?} does not say {expected:?}");
    }
    let two = classic().says("proxy-protocol", "80").udp(53).mistakes();
    assert_eq!(two.len(), 2, "{two:?}");
}

#[test]
fn source_ranges_count_only_for_the_own_group() {
    let limited = |case: Case| {
        case.spec(|service| {
            service.source_ranges = Box::from(["198.51.100.0/24".into(), "2001:db8::/32".into()]);
        })
    };
    assert_eq!(limited(classic()).mistakes().len(), 1);
    let given = limited(classic()).says("security-groups", "sg-1").classic();
    assert_eq!(given.sources, ["0.0.0.0/0".parse().unwrap()]);
    let configured = limited(classic())
        .set(|settings| settings.protected_security_group = Some("sg-9".into()))
        .classic();
    assert_eq!(configured.sources, ["0.0.0.0/0".parse().unwrap()]);
}

// What only the AWS load balancer controller knows has no effect on a classic load balancer in either
// dialect.
#[test]
fn annotations_of_other_controllers_have_no_effect() {
    let plain = classic().classic();
    for (name, value) in [
        ("scheme", "internal"),
        ("name", "api"),
        ("nlb-target-type", "ip"),
        ("attributes", "load_balancing.cross_zone.enabled=true"),
        ("ip-address-type", "dualstack"),
    ] {
        for dialect in [AnnotationDialect::Upstream, AnnotationDialect::Extended] {
            let case = classic()
                .says(name, value)
                .set(|settings| settings.annotation_dialect = dialect);
            assert_eq!(case.classic(), plain, "{name} {dialect:?}");
        }
    }
}
