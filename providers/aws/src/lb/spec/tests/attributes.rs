//! Attributes of load balancers and target groups.

use std::time::Duration;

use ccm_core::k8s::SessionAffinity;

use super::*;
use crate::api::elb::ElbProtocol;

const RESET: [(&str, &str); 2] =
    [("access_logs.s3.enabled", "false"), ("load_balancing.cross_zone.enabled", "false")];

fn prefixed(message: &str) -> String {
    format!("error validating target group attributes: {message}")
}

fn targets(text: &str) -> Case {
    nlb().says("target-group-attributes", text)
}

fn of_targets(case: &Case) -> Vec<(String, String)> {
    let found = case.listener().target_group.attributes;
    found
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect()
}

fn owned(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

// LB7
#[test]
fn what_upstream_resets_is_always_there() {
    assert_eq!(pairs(&nlb().wanted().attributes), RESET);
    let on = nlb()
        .says("cross-zone-load-balancing-enabled", "true")
        .says("access-log-enabled", "T")
        .says("access-log-s3-bucket-name", "logs")
        .says("access-log-s3-bucket-prefix", "web");
    let wanted = [
        ("access_logs.s3.bucket", "logs"),
        ("access_logs.s3.enabled", "true"),
        ("access_logs.s3.prefix", "web"),
        ("load_balancing.cross_zone.enabled", "true"),
    ];
    assert_eq!(pairs(&on.wanted().attributes), wanted);
    // The bucket alone means nothing, and an empty one is not sent.
    assert_eq!(
        pairs(
            &nlb()
                .says("access-log-s3-bucket-name", "logs")
                .wanted()
                .attributes
        ),
        RESET
    );
    let no_bucket = nlb().says("access-log-enabled", "1").wanted().attributes;
    let wanted = [
        ("access_logs.s3.enabled", "true"),
        ("access_logs.s3.prefix", ""),
        ("load_balancing.cross_zone.enabled", "false"),
    ];
    assert_eq!(pairs(&no_bucket), wanted);
}

// LB7
#[test]
fn single_annotations_win_over_the_map() {
    let map = nlb().says(
        "attributes",
        "load_balancing.cross_zone.enabled=true, access_logs.s3.enabled=true,access_logs.s3.bucket=b,\
         dns_record.client_routing_policy=availability_zone_affinity,some.other=1",
    );
    let found = map.wanted();
    let wanted = [
        ("access_logs.s3.bucket", "b"),
        ("access_logs.s3.enabled", "true"),
        ("access_logs.s3.prefix", ""),
        ("dns_record.client_routing_policy", "availability_zone_affinity"),
        ("load_balancing.cross_zone.enabled", "true"),
        ("some.other", "1"),
    ];
    assert_eq!(pairs(&found.attributes), wanted);
    let single = map
        .says("cross-zone-load-balancing-enabled", "false")
        .says("access-log-s3-bucket-name", "c");
    let found = single.wanted().attributes;
    assert_eq!(&*found["load_balancing.cross_zone.enabled"], "false");
    assert_eq!(&*found["access_logs.s3.bucket"], "c");
}

// LB2 LB7
#[test]
fn deletion_protection_is_told() {
    for (text, wanted) in [("true", true), ("1", true), ("false", false)] {
        let found = nlb()
            .says("attributes", &format!("deletion_protection.enabled={text}"))
            .wanted();
        assert_eq!(found.deletion_protection, wanted, "{text}");
        assert_eq!(&*found.attributes["deletion_protection.enabled"], wanted.to_string());
    }
    assert!(!nlb().wanted().deletion_protection);
}

// LB2
#[test]
fn deletion_protection_is_known_without_reading_the_rest() {
    let of = |text: &str| {
        let service = bare().says("attributes", text).says("scheme", "x").service;
        DeletionProtection::of(&service.annotations)
    };
    for text in ["deletion_protection.enabled=true", "a=b, deletion_protection.enabled = T"] {
        assert_eq!(of(text), DeletionProtection::Enabled, "{text}");
    }
    for text in ["deletion_protection.enabled=false", "deletion_protection.enabled=0,a=b"] {
        assert_eq!(of(text), DeletionProtection::Disabled, "{text}");
    }
    for text in ["", "a=b", "nonsense"] {
        assert_eq!(of(text), DeletionProtection::Unspecified, "{text}");
    }
    let without = bare().service.annotations;
    assert_eq!(DeletionProtection::of(&without), DeletionProtection::Unspecified);
    for doubtful in [
        "deletion_protection.enabled=yes",
        "deletion_protection.enabled",
        "a,deletion_protection.enabled=true",
        "a,deletion_protection.enabled=false",
    ] {
        assert_eq!(of(doubtful), DeletionProtection::Enabled, "{doubtful}");
    }
}

// LB7
#[test]
fn bad_attributes_are_refused() {
    let key = |name: &str| format!("service.beta.kubernetes.io/aws-load-balancer-{name}");
    let cases = [
        (
            "attributes",
            "x",
            format!("failed to parse stringMap annotation, {}: x", key("attributes")),
        ),
        (
            "attributes",
            "deletion_protection.enabled=yes",
            "failed to parse attribute deletion_protection.enabled=yes".to_owned(),
        ),
        (
            "attributes",
            "dns_record.client_routing_policy=x",
            format!(
                "invalid dns_record.client_routing_policy set in annotation {}: got 'x' expected one of \
                 ['any_availability_zone', 'partial_availability_zone_affinity', 'availability_zone_affinity']",
                key("attributes")
            ),
        ),
        (
            "cross-zone-load-balancing-enabled",
            " FalSe",
            format!(
                "error parsing service annotation: {}= FalSe",
                key("cross-zone-load-balancing-enabled")
            ),
        ),
    ];
    for (name, value, wanted) in cases {
        assert_eq!(nlb().says(name, value).mistakes(), [wanted], "{name} {value}");
    }
}

// VA1
#[test]
fn attributes_of_target_groups_are_named_ones() {
    let cases: [(&str, &[(&str, &str)]); 7] = [
        ("", &[]),
        ("preserve_client_ip.enabled=true", &[("preserve_client_ip.enabled", "true")]),
        ("preserve_client_ip.enabled=false", &[("preserve_client_ip.enabled", "false")]),
        ("proxy_protocol_v2.enabled=false", &[("proxy_protocol_v2.enabled", "false")]),
        (
            "proxy_protocol_v2.enabled=true, preserve_client_ip.enabled=true",
            &[("preserve_client_ip.enabled", "true"), ("proxy_protocol_v2.enabled", "true")],
        ),
        (
            "proxy_protocol_v2.enabled=true,proxy_protocol_v2.enabled=false",
            &[("proxy_protocol_v2.enabled", "false")],
        ),
        (
            "deregistration_delay.timeout_seconds=0,target_group_health.x=off",
            &[("deregistration_delay.timeout_seconds", "0"), ("target_group_health.x", "off")],
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(of_targets(&targets(text)), owned(wanted), "{text}");
    }
    let udp = bare()
        .udp(53)
        .says("target-group-attributes", "preserve_client_ip.enabled=true");
    assert_eq!(of_targets(&udp), owned(&[("preserve_client_ip.enabled", "true")]));
    assert_eq!(of_targets(&nlb()), []);
}

// VA2
#[test]
fn bad_attributes_of_target_groups_are_refused() {
    let invalid =
        |key: &str, value: &str| format!("invalid attribute value for \"{key}\": {value}");
    let cases = [
        ("preserve_client_ip.enabled=", "attribute value is empty for \"preserve_client_ip.enabled\"".to_owned()),
        ("preserve_client_ip.enabled", "attribute value is empty for \"preserve_client_ip.enabled\"".to_owned()),
        ("preserve_client_ip.enabled=invalid", invalid("preserve_client_ip.enabled", "invalid")),
        ("preserve_client_ip.enabled=True", invalid("preserve_client_ip.enabled", "True")),
        ("preserve_client_ip.enabled= true ", invalid("preserve_client_ip.enabled", " true")),
        ("proxy_protocol_v2.enabled=yes", invalid("proxy_protocol_v2.enabled", "yes")),
        ("proxy_protocol_v2.enabled=FALSE", invalid("proxy_protocol_v2.enabled", "FALSE")),
        ("deregistration_delay.timeout_seconds=3601", invalid("deregistration_delay.timeout_seconds", "3601")),
        ("stickiness.type=cookie", invalid("stickiness.type", "cookie")),
        (
            "unsupported_attribute=value",
            "the attribute \"unsupported_attribute\" is not supported by the controller or is invalid".to_owned(),
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(targets(text).mistakes(), [prefixed(&wanted)], "{text}");
    }
}

// VA2
#[test]
fn client_addresses_are_always_preserved_for_udp() {
    let off = "preserve_client_ip.enabled=false";
    let message = prefixed("client IP preservation can't be disabled for UDP ports");
    for case in [bare().udp(53), bare().udp(53).tcp(53), bare().udp(53).tcp(80)] {
        for text in [off, "proxy_protocol_v2.enabled=true,preserve_client_ip.enabled=false"] {
            assert_eq!(
                case.clone()
                    .says("target-group-attributes", text)
                    .mistakes(),
                [message.clone()]
            );
        }
    }
    // For the TCP port alone it can be said.
    let one = bare()
        .udp(53)
        .tcp(80)
        .says("target-group-attributes.80", off)
        .listeners();
    assert_eq!(
        one.iter()
            .map(|l| l.target_group.preserves_client_ip)
            .collect::<Vec<_>>(),
        [true, false]
    );
}

#[test]
fn client_addresses_are_preserved_as_aws_does_by_default() {
    let preserves = |case: Case| case.listener().target_group.preserves_client_ip;
    let ip = |case: Case| case.says("nlb-target-type", "ip");
    assert!(preserves(nlb()));
    assert!(preserves(nlb().says("ssl-cert", "arn:a")));
    assert!(!preserves(ip(nlb())));
    assert!(!preserves(ip(nlb().says("ssl-cert", "arn:a"))));
    assert!(preserves(ip(bare().udp(53))));
    assert!(preserves(ip(bare().udp(53).tcp(53))));
    assert!(preserves(
        ip(nlb()).says("target-group-attributes", "preserve_client_ip.enabled=true")
    ));
    assert!(!preserves(targets("preserve_client_ip.enabled=false")));
}

// LB8
#[test]
fn single_ports_have_attributes_of_their_own() {
    let general = nlb()
        .tcp(443)
        .says("target-group-attributes", "a.x=1,a.y=1");
    let found = |case: &Case| -> Vec<Vec<(String, String)>> {
        let of = |l: &DesiredListener| {
            pairs(&l.target_group.attributes)
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        case.listeners().iter().map(of).collect()
    };
    let own = general
        .clone()
        .says("target-group-attributes.443", "a.y=2,a.x=");
    assert_eq!(
        found(&own),
        [owned(&[("a.x", "1"), ("a.y", "1")]), owned(&[("a.x", "1"), ("a.y", "2")])]
    );
    assert_eq!(found(&general.clone().says("target-group-attributes.443", "")), found(&general));
    let unused = general.clone().says("target-group-attributes.99", "a.y=2");
    assert_eq!(found(&unused), found(&general));
    assert_eq!(unused.remarks().len(), 1);
    let bad = general.says("target-group-attributes.443", "stickiness.enabled=2");
    assert_eq!(
        bad.refused(),
        [FieldError::new(
            "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes.443",
            prefixed("invalid attribute value for \"stickiness.enabled\": 2")
        )]
    );
}

// LB8
#[test]
fn proxy_protocol_is_asked_for_in_three_ways() {
    let proxies = |case: Case| -> Vec<Option<String>> {
        let of = |l: &DesiredListener| {
            l.target_group
                .attributes
                .get("proxy_protocol_v2.enabled")
                .map(ToString::to_string)
        };
        case.listeners().iter().map(of).collect()
    };
    let (on, off) = (Some("true".to_owned()), Some("false".to_owned()));
    let two = nlb().tcp(443);
    assert_eq!(proxies(two.clone()), [None, None]);
    assert_eq!(proxies(two.clone().says("proxy-protocol", "*")), [on.clone(), on.clone()]);
    let list = two
        .clone()
        .says("proxy-protocol-per-target-group", "443, 8443");
    assert_eq!(proxies(list.clone()), [off.clone(), on.clone()]);
    assert_eq!(proxies(list.clone().says("proxy-protocol", "*")), [on.clone(), on.clone()]);
    assert_eq!(
        proxies(list.says("target-group-attributes", "proxy_protocol_v2.enabled=true")),
        [off, on]
    );
    let message = "invalid port number in proxy-protocol-per-target-group: http";
    assert_eq!(
        two.clone()
            .says("proxy-protocol-per-target-group", "http")
            .mistakes(),
        [message]
    );
    let message = "invalid value 80 for Load Balancer proxy protocol v2 annotation, only value currently supported is *";
    assert_eq!(two.says("proxy-protocol", "80").mistakes(), [message]);
}

#[test]
fn session_affinity_makes_target_groups_sticky() {
    let sticky = |case: Case| {
        case.spec(|service| {
            service.session_affinity = SessionAffinity::ClientIp(Duration::from_secs(10800));
        })
    };
    let wanted = owned(&[("stickiness.enabled", "true"), ("stickiness.type", "source_ip")]);
    assert_eq!(of_targets(&sticky(nlb())), wanted);
    assert_eq!(of_targets(&sticky(bare().udp(53))), wanted);
    let tls = sticky(nlb().says("ssl-cert", "arn:a"));
    let message = "unsupported load balancer affinity: ClientIP";
    assert_eq!(tls.refused(), [FieldError::new("spec.sessionAffinity", message)]);
    let contradiction = sticky(targets("stickiness.enabled=false"));
    assert_eq!(
        contradiction.mistakes(),
        [prefixed("stickiness contradicts spec.sessionAffinity: ClientIP")]
    );
    let by_hand = targets("stickiness.enabled=true").says("ssl-cert", "arn:a");
    assert_eq!(by_hand.mistakes(), [prefixed("stickiness is not possible for TLS ports")]);
}

#[test]
fn target_groups_of_several_clusters_are_refused() {
    assert_eq!(nlb().says("multi-cluster-target-group", "false").wanted(), nlb().wanted());
    let message = "target groups of several clusters are not supported";
    assert_eq!(nlb().says("multi-cluster-target-group", "true").mistakes(), [message]);
}

#[test]
fn a_udp_port_is_no_reason_for_tcp_ports() {
    let found = bare().tcp(53).udp(53).listener();
    assert_eq!(
        (found.protocol, found.target_group.protocol),
        (ElbProtocol::TcpUdp, ElbProtocol::TcpUdp)
    );
}

// LB7
#[test]
fn reserved_capacity_is_read_strictly() {
    let read = |value: &str| nlb().says("minimum-load-balancer-capacity", value);
    assert_eq!(nlb().wanted().capacity_units, None);
    for (value, expected) in [
        ("", None),
        ("CapacityUnits=0", Some(0)),
        (" CapacityUnits = 3000 , ", Some(3000)),
        ("CapacityUnits=2147483647", Some(2_147_483_647)),
    ] {
        assert_eq!(read(value).wanted().capacity_units, expected, "{value:?}");
    }
    let key = "service.beta.kubernetes.io/aws-load-balancer-minimum-load-balancer-capacity";
    let no_map = |value: &str| format!("failed to parse stringMap annotation, {key}: {value}");
    let no_units = |value: &str| format!("invalid value to set the capacity: {value}");
    for (value, expected) in [
        ("3000", no_map("3000")),
        (
            "capacityUnits=1",
            "invalid key to set the capacity: capacityUnits, Expected key: CapacityUnits"
                .to_owned(),
        ),
        (
            "CapacityUnits=1,Units=2",
            "invalid key to set the capacity: Units, Expected key: CapacityUnits".to_owned(),
        ),
        (",", no_units("")),
        ("CapacityUnits=", no_units("")),
        ("CapacityUnits=-1", no_units("-1")),
        ("CapacityUnits=1.5", no_units("1.5")),
        ("CapacityUnits=2147483648", no_units("2147483648")),
    ] {
        assert_eq!(read(value).mistakes(), [expected], "{value:?}");
    }
    assert_eq!(
        read("CapacityUnits=3000")
            .upstream()
            .wanted()
            .capacity_units,
        None
    );
}
