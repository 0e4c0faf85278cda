//! What holds whatever a Service says.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::lb::spec::annotations::ALL;

/// Texts that are close to what annotations hold.
fn value() -> impl Strategy<Value = String> {
    let words = [
        "true",
        "false",
        "*",
        "on",
        "nlb",
        "external",
        "80",
        "443",
        "traffic-port",
        "internal",
        "dualstack",
        "ip",
        "subnet-1,subnet-2",
        "10.0.0.0/8",
        "::/0",
        "a=b",
        "a=b,c",
        r"a=\,",
        "=",
        ",,",
        "\t",
        "HTTP",
        "stickiness.enabled=true",
        "preserve_client_ip.enabled=false",
        "p80",
        "0",
        "-1",
        "é=ü",
    ];
    let word = select(words.to_vec()).prop_map(str::to_owned);
    let list = vec(select(words.to_vec()), 0..4).prop_map(|words| words.join(","));
    prop_oneof![3 => word, 1 => "\\PC{0,20}", 1 => list]
}

/// Keys of the table, some with the end that they need, and strange ones.
fn key() -> impl Strategy<Value = String> {
    let of_row = (0..ALL.len(), select(vec!["80", "TCP-80", "", "x"])).prop_map(|(row, end)| {
        if ALL[row].name.ends_with('.') {
            format!("{}{end}", ALL[row].key())
        } else {
            ALL[row].key().into()
        }
    });
    prop_oneof![9 => of_row, 1 => "\\PC{0,10}".prop_map(|end| format!("{PREFIX}{end}"))]
}

fn port() -> impl Strategy<Value = ServicePort> {
    let protocol = select(vec![Protocol::Tcp, Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    let target = select(vec!["8080", "web", "", "99999"]);
    (protocol, select(vec![53u16, 80, 443]), 0u16..3, target).prop_map(
        |(protocol, port, node, target)| ServicePort {
            name: format!("p{port}").into(),
            protocol,
            port: NonZeroU16::new(port).unwrap(),
            node_port: NonZeroU16::new(node * 30000),
            target_port: target.into(),
            app_protocol: None,
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    let flags = vec(any::<bool>(), 7);
    (vec((key(), value()), 0..8), vec(port(), 0..5), flags).prop_map(
        |(annotations, ports, flags)| {
            let mut case = bare().spec(|service| service.ports = ports.into());
            for (key, value) in annotations {
                case.service.annotations.insert(key.into(), value.into());
            }
            if flags[0] {
                case.service
                    .annotations
                    .insert(format!("{PREFIX}type").into(), "nlb".into());
            }
            if flags[1] {
                case = case.local(31999);
            }
            case.set(|settings| {
                settings.claim_external = flags[2];
                settings.managed_security_groups = flags[3];
                settings.shared_backend_security_group = flags[4];
                if flags[6] {
                    settings.annotation_dialect = AnnotationDialect::Upstream;
                }
                settings.default_type = if flags[5] {
                    DefaultType::Nlb
                } else {
                    DefaultType::None
                };
            })
        },
    )
}

proptest! {
    #[test]
    fn reading_never_fails_and_says_something(case in case()) {
        let reading = case.read();
        prop_assert_eq!(&reading, &case.read());
        match reading.spec {
            ServiceSpec::Invalid(mistakes) => prop_assert!(!mistakes.is_empty()),
            ServiceSpec::Nlb(wanted) => check(&case, &wanted)?,
            ServiceSpec::Classic(wanted) => prop_assert!(!wanted.listeners.is_empty()),
            ServiceSpec::ImplementedElsewhere => {}
        }
        for remark in reading.notices {
            prop_assert!(remark.note.len() < 2000);
        }
    }

    #[test]
    fn the_order_of_ports_does_not_matter(mut case in case(), seed in any::<u64>()) {
        // The API server takes no name twice: a port that is meant by its name would be the first
        // one.
        let mut names = std::collections::BTreeSet::new();
        case.service.ports = case.service.ports.iter().filter(|port| names.insert(port.name.clone())).cloned().collect();
        let mut other = case.clone();
        let len = other.service.ports.len().max(1);
        other.service.ports.rotate_left(usize::try_from(seed % 7).unwrap() % len);
        if seed.is_multiple_of(2) {
            other.service.ports.reverse();
        }
        match (case.read().spec, other.read().spec) {
            (ServiceSpec::Nlb(one), ServiceSpec::Nlb(two)) => prop_assert_eq!(one, two),
            (ServiceSpec::Invalid(one), ServiceSpec::Invalid(two)) => prop_assert_eq!(one.len(), two.len()),
            // The only health check is that of the first port.
            (ServiceSpec::Classic(one), ServiceSpec::Classic(two)) => {
                prop_assert_eq!(one.listeners.len(), two.listeners.len());
            }
            (one, two) => prop_assert_eq!(one, two),
        }
    }

    #[test]
    fn what_the_cloud_does_not_see_changes_nothing(case in case(), version in "[0-9]{1,5}") {
        let other = case.clone().spec(|service| {
            service.resource_version = version.into();
            service.labels.insert("l".into(), "v".into());
            service.annotations.insert("somebody.else/x".into(), "y".into());
            service.status.ingress.clear();
        });
        prop_assert_eq!(case.read().spec, other.read().spec);
    }
}

/// Checks what every wanted load balancer keeps.
fn check(case: &Case, wanted: &DesiredLoadBalancer) -> Result<(), TestCaseError> {
    prop_assert!(!wanted.listeners.is_empty());
    prop_assert!(!wanted.sources.is_empty() || !wanted.security.prefix_lists.is_empty());
    let keys: Vec<_> = wanted
        .listeners
        .iter()
        .map(|listener| (listener.port, listener.protocol))
        .collect();
    prop_assert!(keys.is_sorted() && keys.windows(2).all(|pair| pair[0] != pair[1]), "{keys:?}");
    let names: std::collections::BTreeSet<_> = wanted
        .listeners
        .iter()
        .map(|l| &l.target_group.name)
        .collect();
    prop_assert_eq!(names.len(), wanted.listeners.len());
    for listener in &wanted.listeners {
        let group = &listener.target_group;
        prop_assert_eq!(
            listener.tls.is_some(),
            listener.protocol == crate::api::elb::ElbProtocol::Tls
        );
        prop_assert!(group.name.len() <= 32 && group.target_type == wanted.target_type);
        prop_assert!(group.health_check.timeout <= group.health_check.interval);
        prop_assert_eq!(
            group.health_check.path.is_none(),
            group.health_check.protocol == crate::api::elb::HealthProtocol::Tcp
        );
    }
    let covered: usize = wanted
        .listeners
        .iter()
        .map(|l| {
            if l.protocol == crate::api::elb::ElbProtocol::TcpUdp {
                2
            } else {
                1
            }
        })
        .sum();
    // Upstream leaves out ports without node port.
    let ports = case.service.ports.iter();
    let served = ports.filter(|port| {
        port.node_port.is_some() || wanted.updates != UpdateScope::AsCloudProviderAws
    });
    prop_assert_eq!(covered, served.count());
    Ok(())
}
