//! The table of annotations against what is read: none is forgotten.

use std::collections::BTreeMap;

use ccm_core::provider::Digest;

use super::*;
use crate::lb::spec::annotations::{ALL, Annotation};

/// Rows that change nothing that is wanted, whatever they say: whose the Service is, how it moves, and
/// what is refused.
const SILENT: [&str; 8] = [
    "type",
    "move-to",
    "move-drain-seconds",
    "move-state",
    "annotation-dialect",
    "extra-security-groups",
    "multi-cluster-target-group",
    "service.beta.kubernetes.io/actions.",
];

/// A Service on which every annotation can have an effect, and the value that has.
pub(super) fn telling() -> BTreeMap<&'static str, (Case, &'static str)> {
    let managed = || nlb().set(|settings| settings.managed_security_groups = true);
    let dual = || nlb().says("ip-address-type", "dualstack");
    let tls = || nlb().says("ssl-cert", "arn:a");
    let http = || nlb().says("healthcheck-protocol", "http");
    let logs = || nlb().says("access-log-enabled", "true");
    vec![
        ("nlb-target-type", (nlb(), "ip")),
        ("name", (nlb(), "other")),
        ("additional-resource-tags", (nlb(), "a=b")),
        ("target-node-labels", (nlb(), "a=b")),
        ("internal", (nlb(), "true")),
        ("scheme", (nlb(), "internal")),
        ("ip-address-type", (nlb(), "dualstack")),
        ("subnets", (nlb(), "subnet-1")),
        ("eip-allocations", (nlb(), "eipalloc-1")),
        ("private-ipv4-addresses", (nlb().says("internal", "true"), "10.0.0.1")),
        ("ipv6-addresses", (dual(), "2001:db8::1")),
        ("enable-prefix-for-ipv6-source-nat", (dual(), "on")),
        (
            "source-nat-ipv6-prefixes",
            (
                dual()
                    .says("enable-prefix-for-ipv6-source-nat", "on")
                    .says("subnets", "subnet-1"),
                "auto_assigned",
            ),
        ),
        ("service.beta.kubernetes.io/load-balancer-source-ranges", (nlb(), "10.0.0.0/8")),
        ("security-groups", (managed(), "sg-1")),
        ("disable-nlb-sg", (nlb(), "true")),
        ("manage-backend-security-group-rules", (nlb(), "false")),
        ("inbound-sg-rules-on-private-link-traffic", (nlb(), "on")),
        ("security-group-prefix-lists", (managed(), "pl-1")),
        ("ssl-cert", (nlb(), "arn:a")),
        ("ssl-ports", (tls(), "443")),
        ("ssl-negotiation-policy", (tls(), "P")),
        ("backend-protocol", (tls(), "ssl")),
        ("alpn-policy", (tls(), "None")),
        ("listener-attributes.", (nlb(), "tcp.idle_timeout.seconds=60")),
        ("proxy-protocol", (nlb(), "*")),
        ("proxy-protocol-per-target-group", (nlb(), "80")),
        ("target-group-attributes", (nlb(), "preserve_client_ip.enabled=false")),
        ("target-group-attributes.", (nlb(), "preserve_client_ip.enabled=false")),
        ("healthcheck-protocol", (nlb(), "http")),
        ("healthcheck-port", (nlb(), "8080")),
        ("healthcheck-path", (http(), "/p")),
        ("healthcheck-interval", (nlb(), "10")),
        ("healthcheck-timeout", (nlb(), "5")),
        ("healthcheck-healthy-threshold", (nlb(), "5")),
        ("healthcheck-unhealthy-threshold", (nlb(), "5")),
        ("healthcheck-success-codes", (http(), "204")),
        ("cross-zone-load-balancing-enabled", (nlb(), "true")),
        ("access-log-enabled", (nlb(), "true")),
        ("access-log-s3-bucket-name", (logs(), "b")),
        ("access-log-s3-bucket-prefix", (logs(), "p")),
        ("attributes", (nlb(), "deletion_protection.enabled=true")),
        ("minimum-load-balancer-capacity", (nlb(), "CapacityUnits=3000")),
    ]
    .into_iter()
    .collect()
}

/// Completes the name of a row that ends in a port.
pub(super) fn named(row: &Annotation) -> String {
    match row.name {
        "listener-attributes." => "listener-attributes.TCP-80".to_owned(),
        "target-group-attributes." => "target-group-attributes.80".to_owned(),
        name => name.to_owned(),
    }
}

#[test]
fn every_annotation_changes_what_is_wanted() {
    let telling = telling();
    for row in ALL.iter().filter(|row| !SILENT.contains(&row.name)) {
        let name = named(row);
        let Some((case, value)) = telling.get(row.name) else {
            // What has no effect is told so, and has none.
            if row.name != "enable-tcp-udp-listener" {
                assert_eq!(nlb().says(&name, "1").wanted(), nlb().wanted(), "{name}");
                assert_eq!(nlb().says(&name, "1").remarks().len(), 1, "{name}");
            }
            continue;
        };
        let (before, after) = (case.wanted(), case.clone().says(&name, value).wanted());
        assert_ne!(before, after, "{name}");
        assert_ne!(Digest::of(&before), Digest::of(&after), "{name}");
        assert_eq!(case.clone().says(&name, "").wanted(), before, "{name}: nothing is written");
        assert_eq!(Digest::of(&before), Digest::of(&case.wanted()));
    }
}

#[test]
fn every_mistake_is_in_the_table() {
    let odd = [
        "x", "-1", "a=b=c,d", "0", "65536", " true", "aws:x=1", "1000", "é", "ip", "10.0.0.1",
        "::1", "a.b=", "yes=no",
    ];
    for row in ALL.iter().filter(|row| row.name != "type") {
        for value in odd {
            let ServiceSpec::Invalid(mistakes) = nlb().says(&named(row), value).read().spec else {
                continue;
            };
            for mistake in mistakes {
                let known = row
                    .error_texts()
                    .iter()
                    .any(|text| alike(text, &mistake.message));
                assert!(known, "{} {value:?}: {mistake}", row.name);
            }
        }
    }
}

/// Returns true if a message is one of the table's texts: all words of these are in it, but for
/// single letters, which stand for what varies.
fn alike(text: &str, message: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_alphanumeric())
            .filter(|word| word.len() > 1)
            .map(str::to_owned)
            .collect()
    };
    let found = words(message);
    words(text).iter().all(|word| found.contains(word))
}
