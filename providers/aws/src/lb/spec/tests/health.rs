//! Health checks.

use super::*;
use crate::{
    api::elb::{HealthCheck, HealthPort, HealthProtocol},
    config::SharedProbe,
};

impl Case {
    fn check(&self) -> HealthCheck {
        self.listener().target_group.health_check
    }

    fn shared(self, port: u16, path: &str) -> Self {
        let probe = SharedProbe { port: NonZeroU16::new(port).unwrap(), path: path.into() };
        self.set(|settings| settings.shared_health_probe = Some(probe))
    }
}

/// Protocol, port (0: the traffic's), path, interval, timeout, healthy, unhealthy.
type Row<'a> = (HealthProtocol, u16, Option<&'a str>, u32, u32, u32, u32);

fn check((protocol, port, path, interval, timeout, healthy, unhealthy): Row<'_>) -> HealthCheck {
    let port = NonZeroU16::new(port).map_or(HealthPort::Traffic, HealthPort::Number);
    HealthCheck {
        protocol,
        port,
        path: path.map(Into::into),
        interval,
        timeout,
        healthy,
        unhealthy,
        matcher: None,
    }
}

use HealthProtocol::{Http, Https, Tcp};

// HC1: upstream does not send the timeout, which AWS then sets to 6 seconds for HTTP; so is ours.
#[test]
fn defaults_follow_policy_and_configuration() {
    let cases = [
        (nlb(), (Tcp, 0, None, 30, 10, 3, 3)),
        (nlb().shared(10256, "/healthz"), (Http, 10256, Some("/healthz"), 30, 6, 3, 3)),
        (nlb().shared(8080, "/healthz"), (Http, 8080, Some("/healthz"), 30, 6, 3, 3)),
        (
            nlb().shared(10256, "/custom-healthz"),
            (Http, 10256, Some("/custom-healthz"), 30, 6, 3, 3),
        ),
        (nlb().local(32213), (Http, 32213, Some("/healthz"), 10, 6, 2, 2)),
        (nlb().local(32213).shared(10256, "/"), (Http, 32213, Some("/healthz"), 10, 6, 2, 2)),
        (nlb().local(0), (Tcp, 0, None, 10, 10, 2, 2)),
    ];
    for (case, wanted) in cases {
        assert_eq!(case.check(), check(wanted), "{:?}", case.settings.shared_health_probe);
    }
}

// HC2
#[test]
fn annotations_win_over_the_policy() {
    let local = nlb()
        .local(32213)
        .says("healthcheck-protocol", "TCP")
        .says("healthcheck-port", "8001")
        .says("healthcheck-path", "/x")
        .says("healthcheck-healthy-threshold", "4")
        .says("healthcheck-unhealthy-threshold", "4")
        .says("healthcheck-interval", "10")
        .says("healthcheck-timeout", "5");
    let http = nlb()
        .says("healthcheck-protocol", "HTTP")
        .says("healthcheck-port", "41233")
        .says("healthcheck-path", "/healthz")
        .says("healthcheck-interval", "30")
        .says("healthcheck-timeout", "6")
        .says("healthcheck-healthy-threshold", "5")
        .says("healthcheck-unhealthy-threshold", "5");
    let thresholds = nlb()
        .says("healthcheck-healthy-threshold", "7")
        .says("healthcheck-unhealthy-threshold", "5");
    let cases = [
        (local, (Tcp, 8001, None, 10, 5, 4, 4)),
        (http.clone(), (Http, 41233, Some("/healthz"), 30, 6, 5, 5)),
        // What the configuration shares it fixes, but for times and thresholds.
        (http.shared(10256, "/p"), (Http, 10256, Some("/p"), 30, 6, 5, 5)),
        (nlb().says("healthcheck-protocol", "Http"), (Http, 0, Some("/"), 30, 6, 3, 3)),
        (nlb().says("healthcheck-protocol", "hTTPs"), (Https, 0, Some("/"), 30, 10, 3, 3)),
        (nlb().says("healthcheck-interval", "23"), (Tcp, 0, None, 23, 10, 3, 3)),
        (nlb().says("healthcheck-interval", "5"), (Tcp, 0, None, 5, 5, 3, 3)),
        (thresholds, (Tcp, 0, None, 30, 10, 7, 5)),
    ];
    for (case, wanted) in cases {
        assert_eq!(case.check(), check(wanted), "{:?}", case.service.annotations);
    }
}

// HC2 LB9
#[test]
fn bad_values_are_refused() {
    let key = |name: &str| format!("service.beta.kubernetes.io/aws-load-balancer-{name}");
    let parse =
        |name: &str, value: &str| format!("failed to parse annotation {}={value}", key(name));
    let cases = [
        ("healthcheck-timeout", "non-numeric", parse("healthcheck-timeout", "non-numeric")),
        ("healthcheck-interval", "-1", parse("healthcheck-interval", "-1")),
        ("healthcheck-interval", " 10", parse("healthcheck-interval", " 10")),
        (
            "healthcheck-healthy-threshold",
            "4294967296",
            parse("healthcheck-healthy-threshold", "4294967296"),
        ),
        ("healthcheck-interval", "4", "4 is not between 5 and 300".to_owned()),
        ("healthcheck-timeout", "121", "121 is not between 2 and 120".to_owned()),
        ("healthcheck-unhealthy-threshold", "11", "11 is not between 2 and 10".to_owned()),
        (
            "healthcheck-timeout",
            "31",
            "health check timeout (31) must not exceed the interval (30)".to_owned(),
        ),
        ("healthcheck-protocol", "udp", "Unsupported health check protocol UDP".to_owned()),
        ("healthcheck-port", "0", "Invalid health check port '0'".to_owned()),
        ("healthcheck-port", "65536", "Invalid health check port '65536'".to_owned()),
        ("healthcheck-port", "-1", "Invalid health check port '-1'".to_owned()),
        (
            "healthcheck-port",
            "admin",
            "failed to resolve healthCheckPort: unable to find port admin on service default/web"
                .to_owned(),
        ),
    ];
    for (name, value, wanted) in cases {
        assert_eq!(nlb().says(name, value).mistakes(), [wanted], "{name} {value:?}");
    }
}

// LB9
#[test]
fn what_is_claimed_has_the_other_controllers_defaults() {
    let with =
        |row, matcher: Option<&str>| HealthCheck { matcher: matcher.map(Into::into), ..check(row) };
    let local_ip = claimed().local(32213).says("nlb-target-type", "ip");
    let cases = [
        (claimed(), with((Tcp, 0, None, 10, 10, 3, 3), None)),
        (
            claimed().says("healthcheck-protocol", "http"),
            with((Http, 0, Some("/"), 10, 10, 3, 3), Some("200-399")),
        ),
        (local_ip, with((Tcp, 0, None, 10, 10, 3, 3), None)),
        (
            claimed().local(32213),
            with((Http, 32213, Some("/healthz"), 10, 6, 2, 2), Some("200-399")),
        ),
    ];
    for (case, wanted) in cases {
        assert_eq!(case.check(), wanted, "{:?}", case.service.annotations);
    }
    let codes = nlb()
        .says("healthcheck-protocol", "https")
        .says("healthcheck-success-codes", "204");
    assert_eq!(codes.check().matcher.as_deref(), Some("204"));
    assert_eq!(
        nlb()
            .says("healthcheck-success-codes", "204")
            .check()
            .matcher,
        None,
        "TCP has no status codes"
    );
}

// LB9
#[test]
fn a_port_name_leads_to_where_its_targets_answer() {
    let named = bare()
        .port("http", Protocol::Tcp, 80, 30080)
        .says("healthcheck-port", "http");
    let number = |port| HealthPort::Number(NonZeroU16::new(port).unwrap());
    assert_eq!(named.check().port, number(30080));
    let ip = named.says("nlb-target-type", "ip").target_port("8080");
    assert_eq!(ip.check().port, number(8080));
    let message = "cannot use named healthCheckPort for IP TargetType when service's targetPort is a named port";
    assert_eq!(ip.target_port("web").mistakes(), [message]);
}

#[test]
fn pods_answer_for_themselves() {
    let ip = nlb().says("nlb-target-type", "ip");
    let wanted = check((Tcp, 0, None, 30, 10, 3, 3));
    assert_eq!(ip.check(), wanted);
    assert_eq!(ip.clone().local(32213).check(), wanted);
    assert_eq!(ip.shared(10256, "/healthz").check(), wanted);
}

#[test]
fn health_checks_of_kube_proxy_that_proxy_protocol_wraps_are_warned_of() {
    let reasons = |case: &Case| {
        case.remarks()
            .iter()
            .map(|(reason, _)| *reason)
            .collect::<Vec<_>>()
    };
    let proxied = nlb().says("proxy-protocol", "*");
    assert_eq!(reasons(&proxied), [""; 0]);
    assert_eq!(reasons(&proxied.clone().local(32213)), ["ProxyProtocolHealthCheck"]);
    assert_eq!(reasons(&proxied.clone().shared(10256, "/healthz")), ["ProxyProtocolHealthCheck"]);
    assert_eq!(
        reasons(
            &proxied
                .clone()
                .local(32213)
                .says("healthcheck-protocol", "tcp")
        ),
        [""; 0]
    );
    assert_eq!(
        reasons(&proxied.says("healthcheck-protocol", "http")),
        [""; 0],
        "the pods may well expect it"
    );
    assert_eq!(reasons(&nlb().local(32213)), [""; 0]);
}
