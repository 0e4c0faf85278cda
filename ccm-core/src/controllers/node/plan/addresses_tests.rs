use AddressType::{ExternalDns, ExternalIp, Hostname, InternalDns, InternalIp};

use super::*;

fn list(entries: &[(AddressType, &str)]) -> Vec<NodeAddress> {
    entries
        .iter()
        .map(|(kind, address)| NodeAddress::new(*kind, *address))
        .collect()
}

const H: (AddressType, &str) = (Hostname, "node.internal");

/// The node-IP filter of the catalogue (section 11.3): name, cloud, annotation, wanted (`None`: an
/// error).
// length: one table, a case to each entry of the catalogue.
#[test]
fn node_ip_filter() {
    type Entries = &'static [(AddressType, &'static str)];
    let cases: &[(&str, Entries, &str, Option<Entries>)] = &[
        (
            "single InternalIP match keeps the list",
            &[(InternalIp, "10.0.0.1"), (ExternalIp, "55.55.55.55"), H],
            "10.0.0.1",
            Some(&[(InternalIp, "10.0.0.1"), (ExternalIp, "55.55.55.55"), H]),
        ),
        (
            "an external node IP comes first",
            &[(InternalIp, "10.0.0.1"), (ExternalIp, "55.55.55.55"), H],
            "55.55.55.55",
            Some(&[(ExternalIp, "55.55.55.55"), (InternalIp, "10.0.0.1"), H]),
        ),
        (
            "one IP as internal and external beside another pair leaves only the two",
            &[
                (InternalIp, "55.55.55.55"),
                (ExternalIp, "55.55.55.55"),
                (InternalIp, "10.0.0.1"),
                (ExternalIp, "99.99.99.99"),
                H,
            ],
            "55.55.55.55",
            Some(&[(InternalIp, "55.55.55.55"), (ExternalIp, "55.55.55.55"), H]),
        ),
        (
            "DNS names keep their order",
            &[
                (InternalIp, "10.0.0.1"),
                (InternalDns, "a.internal"),
                (ExternalIp, "55.55.55.55"),
                (ExternalDns, "a.example"),
                H,
            ],
            "10.0.0.1",
            Some(&[
                (InternalIp, "10.0.0.1"),
                (InternalDns, "a.internal"),
                (ExternalIp, "55.55.55.55"),
                (ExternalDns, "a.example"),
                H,
            ]),
        ),
        (
            "of several InternalIPs only the match stays",
            &[(InternalIp, "192.168.1.1"), (InternalIp, "10.0.0.1"), (InternalIp, "10.1.1.1"), H],
            "10.0.0.1",
            Some(&[(InternalIp, "10.0.0.1"), H]),
        ),
        (
            "an IP that the cloud lacks is an error",
            &[(InternalIp, "10.0.0.1"), H],
            "10.0.0.2",
            None,
        ),
        (
            "IPv6 in another spelling matches and keeps the cloud's",
            &[(InternalIp, "10.0.0.1"), (InternalIp, "2001:db8:0:0::1"), H],
            "2001:0db8::0001",
            Some(&[(InternalIp, "2001:db8:0:0::1"), H]),
        ),
        (
            "a single-stack cloud cannot serve a dual request",
            &[(InternalIp, "10.0.0.1"), H],
            "10.0.0.1,fc01::1",
            None,
        ),
        (
            "dual-stack, IPv4 first, IPv4 primary",
            &[(InternalIp, "10.0.0.1"), (InternalIp, "fc01::1"), H],
            "10.0.0.1,fc01::1",
            Some(&[(InternalIp, "10.0.0.1"), (InternalIp, "fc01::1"), H]),
        ),
        (
            "dual-stack, IPv6 first in the cloud, IPv4 primary",
            &[(InternalIp, "fc01::1"), (InternalIp, "10.0.0.1"), H],
            "10.0.0.1,fc01::1",
            Some(&[(InternalIp, "10.0.0.1"), (InternalIp, "fc01::1"), H]),
        ),
        (
            "dual-stack with several IPs leaves only the two",
            &[
                (InternalIp, "10.0.0.1"),
                (InternalIp, "10.0.0.2"),
                (InternalIp, "fc01::1"),
                (InternalIp, "fc02::1"),
                H,
            ],
            "10.0.0.2,fc02::1",
            Some(&[(InternalIp, "10.0.0.2"), (InternalIp, "fc02::1"), H]),
        ),
        (
            "an extra ExternalIP stays behind",
            &[(InternalIp, "10.0.0.1"), (InternalIp, "fc01::1"), (ExternalIp, "55.55.55.55"), H],
            "10.0.0.1,fc01::1",
            Some(&[
                (InternalIp, "10.0.0.1"),
                (InternalIp, "fc01::1"),
                (ExternalIp, "55.55.55.55"),
                H,
            ]),
        ),
        (
            "several ExternalIPs stay behind an IPv6-primary pair",
            &[
                (InternalIp, "10.0.0.1"),
                (ExternalIp, "55.55.55.55"),
                (InternalIp, "fc01::1"),
                (ExternalIp, "2001:db8::1"),
                H,
            ],
            "fc01::1,10.0.0.1",
            Some(&[
                (InternalIp, "fc01::1"),
                (InternalIp, "10.0.0.1"),
                (ExternalIp, "55.55.55.55"),
                (ExternalIp, "2001:db8::1"),
                H,
            ]),
        ),
        (
            "a mixed match leaves one of each type",
            &[
                (InternalIp, "10.0.0.1"),
                (ExternalIp, "55.55.55.55"),
                (InternalIp, "fc01::1"),
                (ExternalIp, "2001:db8::1"),
                H,
            ],
            "55.55.55.55,fc01::1",
            Some(&[(ExternalIp, "55.55.55.55"), (InternalIp, "fc01::1"), H]),
        ),
    ];
    for (name, cloud, provided, wanted) in cases {
        let got = desired_addresses(&list(cloud), &[], Some(provided));
        match wanted {
            Some(wanted) => assert_eq!(got, Ok(Some(list(wanted))), "{name}"),
            None => assert!(matches!(got, Err(AddressError::NotInCloud(_))), "{name}: {got:?}"),
        }
    }
}

#[test]
fn provided_node_ip_annotation_is_parsed_strictly() {
    for (value, wanted) in [
        ("10.0.0.1", vec!["10.0.0.1"]),
        ("fd01::1", vec!["fd01::1"]),
        ("010.000.000.001", vec!["10.0.0.1"]),
        ("fd01:0000::0001", vec!["fd01::1"]),
        ("10.0.0.1,fd01::1", vec!["10.0.0.1", "fd01::1"]),
        ("fd01::1,10.0.0.1", vec!["fd01::1", "10.0.0.1"]),
        ("0.0.0.0", vec!["0.0.0.0"]),
    ] {
        let wanted: Vec<IpAddr> = wanted.into_iter().map(|ip| ip.parse().unwrap()).collect();
        assert_eq!(parse_provided(value), Ok(wanted), "{value}");
    }
    for value in [
        "10.0.0.1,10.0.0.2",
        "fd01::1,fd01::2",
        "10.0.0.1,fd01::1,10.0.0.2",
        "10.0.0.1,::",
        "0.0.0.0,fd01::1",
        "",
        " ",
        "10.0.0.1, fd01::1",
        "invalid-ip",
        "10.0.0",
        "10.0.0.256",
        "10.0.0.1,",
        "+1.2.3.4",
    ] {
        assert!(
            matches!(parse_provided(value), Err(AddressError::BadAnnotation { .. })),
            "{value:?}"
        );
    }
}

#[test]
fn the_hostname_of_the_node_is_kept_when_the_cloud_gives_none() {
    let current = list(&[(Hostname, "nodeoverriden"), (InternalIp, "10.9.9.9")]);
    let cloud = list(&[(InternalIp, "10.0.0.1"), (ExternalIp, "132.143.154.163")]);
    let wanted = list(&[
        (InternalIp, "10.0.0.1"),
        (ExternalIp, "132.143.154.163"),
        (Hostname, "nodeoverriden"),
    ]);
    assert_eq!(desired_addresses(&cloud, &current, None), Ok(Some(wanted.clone())));
    assert_eq!(desired_addresses(&cloud, &current, Some("10.0.0.1")), Ok(Some(wanted)));
}

#[test]
fn the_hostname_of_the_cloud_wins() {
    let current = list(&[(Hostname, "nodeoverriden")]);
    let cloud = list(&[(Hostname, "node0.cloud.internal"), (InternalIp, "10.0.0.1")]);
    assert_eq!(desired_addresses(&cloud, &current, None), Ok(Some(cloud.clone())));
}

#[test]
fn a_cloud_without_addresses_changes_nothing_unless_one_was_promised() {
    let current = list(&[H]);
    assert_eq!(desired_addresses(&[], &current, None), Ok(None));
    assert!(desired_addresses(&[], &current, Some("10.0.0.1")).is_err());
    assert!(desired_addresses(&[], &current, Some("nonsense")).is_err());
}

#[test]
fn duplicates_of_the_cloud_collapse() {
    let cloud =
        list(&[(InternalIp, "10.0.0.1"), (InternalIp, "10.0.0.1"), (ExternalIp, "10.0.0.1")]);
    let wanted = list(&[(InternalIp, "10.0.0.1"), (ExternalIp, "10.0.0.1")]);
    assert_eq!(desired_addresses(&cloud, &[], None), Ok(Some(wanted)));
}
