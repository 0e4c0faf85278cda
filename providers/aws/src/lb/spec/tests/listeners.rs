//! Listeners, TLS, TCP and UDP on one port, address targets.

use ccm_core::k8s::IpFamily;

use super::*;
use crate::api::elb::ElbProtocol::{self, Tcp, TcpUdp, Tls, Udp};

/// Port, protocol, protocol and port of the target group.
fn shape(case: &Case) -> Vec<(u16, ElbProtocol, ElbProtocol, u16)> {
    let one = |listener: DesiredListener| {
        let group = listener.target_group;
        (listener.port.get(), listener.protocol, group.protocol, group.port.get())
    };
    case.listeners().into_iter().map(one).collect()
}

fn tls() -> Case {
    bare().tcp(80).tcp(443).says("ssl-cert", "arn:a")
}

// VA5 LB1
#[test]
fn each_port_has_a_listener() {
    assert_eq!(shape(&nlb()), [(80, Tcp, Tcp, 30080)]);
    assert_eq!(shape(&bare().udp(53)), [(53, Udp, Udp, 30053)]);
    assert_eq!(
        shape(&bare().udp(53).tcp(9).tcp(80)),
        [(9, Tcp, Tcp, 30009), (53, Udp, Udp, 30053), (80, Tcp, Tcp, 30080)]
    );
}

// VA5 LB10
#[test]
fn tcp_and_udp_on_one_port_share_a_listener() {
    let one_port = |first: Case| shape(&first);
    assert_eq!(one_port(bare().tcp(53).udp(53)), [(53, TcpUdp, TcpUdp, 30053)]);
    assert_eq!(one_port(bare().udp(53).tcp(53)), [(53, TcpUdp, TcpUdp, 30053)]);
    assert_eq!(
        shape(&bare().udp(53).tcp(80).tcp(53)),
        [(53, TcpUdp, TcpUdp, 30053), (80, Tcp, Tcp, 30080)]
    );
    let port = bare().udp(53).tcp(53).listener().target_group.service_port;
    assert_eq!(port, (Arc::from("p53"), Protocol::Tcp), "endpoints are looked up by the TCP port");
}

// LB10
#[test]
fn ports_that_cannot_share_are_refused() {
    let port = |case: Case, protocol| case.port("x", protocol, 53, 30053);
    let (t, u) = (Protocol::Tcp, Protocol::Udp);
    assert_eq!(port(port(bare(), t), t).mistakes(), ["protocols can't match for merging: TCP"]);
    assert_eq!(port(port(bare(), u), u).mistakes(), ["protocols can't match for merging: UDP"]);
    let tls = port(port(bare().says("ssl-cert", "arn:a"), t), t);
    assert_eq!(tls.mistakes(), ["protocols can't match for merging: TLS"]);
    let three = port(port(port(bare(), t), u), t);
    assert_eq!(three.mistakes(), ["can only merge two ports, not 3 (53/TCP, 53/UDP, 53/TCP)"]);
    let off = bare()
        .tcp(53)
        .udp(53)
        .says("enable-tcp-udp-listener", "false");
    assert_eq!(
        off.mistakes(),
        ["TCP and UDP on port 53 take one listener for both, which this turns off"]
    );
    assert_eq!(
        shape(&off.spec(|service| service.ports = service.ports[..1].into())),
        [(53, Tcp, Tcp, 30053)]
    );
    let unequal = bare().tcp(53).port("u", u, 53, 31000);
    assert_eq!(
        unequal.mistakes(),
        ["TCP and UDP on port 53 need the same node port, but have 30053 and 31000"]
    );
}

#[test]
fn merged_address_targets_need_one_target_port() {
    let mut case = bare().tcp(53).udp(53).says("nlb-target-type", "ip");
    assert_eq!(shape(&case), [(53, TcpUdp, TcpUdp, 53)]);
    case.service.ports[1].target_port = "dns".into();
    assert_eq!(
        case.mistakes(),
        ["TCP and UDP on port 53 need the same target port, but have 53 and dns"]
    );
    case.service.ports[0].target_port = "dns".into();
    assert_eq!(shape(&case), [(53, TcpUdp, TcpUdp, 1)]);
}

#[test]
fn what_has_no_listener_is_refused() {
    assert_eq!(bare().mistakes(), ["requested load balancer with no ports"]);
    let sctp = nlb().port("s", Protocol::Sctp, 90, 30090);
    assert_eq!(sctp.mistakes(), ["Protocol SCTP not supported by LoadBalancer"]);
    let no_node_port = bare().port("http", Protocol::Tcp, 80, 0);
    let message = "unable to support instance target type with an unallocated NodePort";
    assert_eq!(no_node_port.mistakes(), [message]);
    assert_eq!(shape(&no_node_port.says("nlb-target-type", "ip")), [(80, Tcp, Tcp, 80)]);
    let many = (1..=51).fold(bare(), Case::tcp);
    assert_eq!(many.mistakes(), ["51 listeners are requested, AWS allows 50 per load balancer"]);
}

// LB1
#[test]
fn certificates_make_tls_listeners() {
    assert_eq!(shape(&tls()), [(80, Tls, Tcp, 30080), (443, Tls, Tcp, 30443)]);
    let cases = [
        ("", 2),
        ("*", 2),
        ("443, *", 2),
        ("443", 1),
        ("443, 80", 2),
        ("p443", 1),
        (" p443 ,80", 2),
        ("9", 0),
    ];
    for (ports, count) in cases {
        let found = tls().says("ssl-ports", ports).listeners();
        assert_eq!(
            found
                .iter()
                .filter(|listener| listener.protocol == Tls)
                .count(),
            count,
            "{ports:?}"
        );
        assert!(
            found
                .iter()
                .all(|listener| listener.tls.is_some() == (listener.protocol == Tls)),
            "{ports:?}"
        );
    }
    assert_eq!(
        shape(&nlb().says("ssl-ports", "80")),
        [(80, Tcp, Tcp, 30080)],
        "without certificate"
    );
}

#[test]
fn tls_and_udp_do_not_share_a_port() {
    let both = bare().tcp(443).udp(443).says("ssl-cert", "arn:a");
    let message = "ports \"u443\" (UDP) and \"p443\" (TLS) need one listener each on port 443, where AWS allows one";
    assert_eq!(both.mistakes(), [message]);
    let apart = both.says("ssl-ports", "80");
    assert_eq!(shape(&apart), [(443, TcpUdp, TcpUdp, 30443)], "without TLS they are one listener");
}

#[test]
fn targets_of_tls_listeners_may_speak_tls() {
    let ports = tls().udp(53).says("ssl-ports", "443");
    let wanted = [(53, Udp, Udp, 30053), (80, Tcp, Tcp, 30080), (443, Tls, Tls, 30443)];
    assert_eq!(shape(&ports.clone().says("backend-protocol", "ssl")), wanted);
    for other in ["tcp", "SSL", "https", ""] {
        assert_eq!(
            shape(&ports.clone().says("backend-protocol", other))[2],
            (443, Tls, Tcp, 30443),
            "{other}"
        );
    }
}

// LB10
#[test]
fn certificates_policy_and_alpn_are_read() {
    let case = bare()
        .tcp(443)
        .says("ssl-cert", "arn:b, arn:d,arn:c ,arn:b")
        .says("ssl-negotiation-policy", "P");
    let found = case
        .clone()
        .says("alpn-policy", "HTTP2Preferred")
        .listener()
        .tls
        .unwrap();
    let wanted = Tls {
        certificates: vec!["arn:b".into(), "arn:c".into(), "arn:d".into()],
        policy: Some("P".into()),
        alpn: Some("HTTP2Preferred".into()),
    };
    assert_eq!(found, wanted);
    use crate::lb::model::Tls;
    assert_eq!(
        bare()
            .tcp(443)
            .says("ssl-cert", "arn:b")
            .listener()
            .tls
            .unwrap()
            .policy,
        None
    );
    let message = "invalid ALPN policy http2, policy must be one of [None, HTTP1Only, HTTP2Only, HTTP2Optional, HTTP2Preferred]";
    assert_eq!(case.says("alpn-policy", "http2").mistakes(), [message]);
    assert_eq!(nlb().says("alpn-policy", "None").listener().tls, None, "not for TCP");
}

// LB10: a warning here, since upstream takes it.
#[test]
fn tls_ports_that_are_none_are_warned_of() {
    for (ports, unused) in [("85", "85"), ("90, 443", "90"), ("nope", "nope"), ("443,b,a", "a b")] {
        let wanted =
            ("UnusedAnnotation", format!("Unused port in ssl-ports annotation [{unused}]"));
        assert_eq!(tls().says("ssl-ports", ports).remarks(), [wanted]);
    }
    assert_eq!(tls().says("ssl-ports", "443, p80").remarks(), []);
    assert_eq!(nlb().says("ssl-ports", "85").remarks(), [], "without certificate nobody asks");
}

// LB7
#[test]
fn listeners_have_attributes() {
    let case = nlb()
        .tcp(443)
        .says("listener-attributes.TCP-80", "tcp.idle_timeout.seconds=400");
    let found = case.listeners();
    assert_eq!(pairs(&found[0].attributes), [("tcp.idle_timeout.seconds", "400")]);
    assert_eq!(pairs(&found[1].attributes), []);
    assert_eq!(case.remarks(), []);
    let key = "service.beta.kubernetes.io/aws-load-balancer-listener-attributes.TCP-80";
    let cases = [
        ("nonsense", format!("failed to parse stringMap annotation, {key}: nonsense")),
        (
            "tcp.idle_timeout.seconds=59",
            "tcp.idle_timeout.seconds must be a number from 60 to 6000, not 59".to_owned(),
        ),
    ];
    for (text, message) in cases {
        assert_eq!(
            nlb().says("listener-attributes.TCP-80", text).refused(),
            [FieldError::new(key, message)]
        );
    }
    let unused = nlb().says("listener-attributes.UDP-80", "a.b=c");
    assert_eq!(unused.remarks().len(), 1);
    assert_eq!(unused.wanted(), nlb().wanted());
}

// LB1 LB3
#[test]
fn address_targets_have_target_ports() {
    let ip = nlb().says("nlb-target-type", "ip");
    assert_eq!(shape(&ip.clone().target_port("8080")), [(80, Tcp, Tcp, 8080)]);
    assert_eq!(shape(&ip.clone().target_port("web")), [(80, Tcp, Tcp, 1)]);
    assert_eq!(ip.wanted().backends(), ccm_core::provider::BackendKind::Endpoints);
    assert_eq!(
        nlb()
            .set(|settings| settings.default_target_type = TargetType::Ip)
            .wanted(),
        ip.wanted()
    );
    assert_eq!(nlb().says("nlb-target-type", "pod").mistakes(), ["unknown target type: pod"]);
    let nlb_ip = nlb()
        .says("type", "nlb-ip")
        .says("nlb-target-type", "instance");
    assert_eq!(
        nlb_ip
            .set(|settings| settings.claim_external = true)
            .wanted()
            .target_type,
        TargetType::Ip
    );
}

// LB3
#[test]
fn targets_are_of_the_first_family() {
    let v6 = nlb().spec(|service| service.ip_families = Box::from([IpFamily::V6, IpFamily::V4]));
    assert_eq!(v6.mistakes(), ["unsupported IPv6 configuration, lb not dual-stack"]);
    for scheme in ["internal", "internet-facing"] {
        let dual = v6
            .clone()
            .says("ip-address-type", "dualstack")
            .says("scheme", scheme);
        assert_eq!(dual.listener().target_group.family, IpFamily::V6);
    }
    let v4 = nlb().spec(|service| service.ip_families = Box::from([IpFamily::V4, IpFamily::V6]));
    assert_eq!(v4.listener().target_group.family, IpFamily::V4);
}

// NA2
#[test]
fn target_groups_have_names_of_their_own() {
    let health = |case: &Case| case.listener().target_group.name;
    assert_ne!(health(&nlb()), health(&nlb().says("healthcheck-interval", "10")));
    // Ports 8 and 84 with target ports 443 and 43 look alike when joined.
    let mut case = bare().tcp(8).tcp(84).says("nlb-target-type", "ip");
    case.service.ports[0].target_port = "443".into();
    case.service.ports[1].target_port = "43".into();
    let found = case.listeners();
    assert_ne!(found[0].target_group.name, found[1].target_group.name);
}
