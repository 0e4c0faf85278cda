use ccm_core::provider::ErrorKind;

use super::*;
use crate::lb::test_fixtures::{desired, subnet, table, vpc, with_v4, with_v6};

const OWN: &str = "kubernetes.io/cluster/test=owned";
const OTHER: &str = "kubernetes.io/cluster/other=owned";

fn chosen(view: &VpcSnapshot, wanted: &DesiredLoadBalancer) -> Result<Vec<String>, String> {
    let cluster = Cluster::new("test", false);
    let found =
        choose(view, &cluster, &Settings::default(), wanted).map_err(|error| error.to_string())?;
    Ok(found
        .iter()
        .map(|mapping| mapping.subnet.to_string())
        .collect())
}

fn public(subnets: Vec<Subnet>) -> VpcSnapshot {
    vpc(subnets, vec![table(&[], true, true)])
}

fn internal() -> DesiredLoadBalancer {
    DesiredLoadBalancer { scheme: Scheme::Internal, ..desired() }
}

#[expect(clippy::unnecessary_wraps, reason = "compared with answers")]
fn ids(ids: &[&str]) -> Result<Vec<String>, String> {
    Ok(ids.iter().map(ToString::to_string).collect())
}

fn none() -> Result<Vec<String>, String> {
    Err("could not find any suitable subnets for creating the ELB".to_owned())
}

// SU1
#[test]
fn discovery_takes_public_subnets_by_role_then_cluster_one_per_zone() {
    let a1 = || subnet("a1", "a", &[OWN, ROLE_PUBLIC]);
    let a3 = || subnet("a3", "a", &[OWN, ROLE_INTERNAL]);
    let cases = [
        ("none", vec![], none()),
        ("one with the role", vec![a1()], ids(&["a1"])),
        ("the role beats the cluster's tag", vec![a3(), a1()], ids(&["a1"])),
        (
            "the role alone beats the cluster's tag",
            vec![subnet("a0", "a", &[OWN]), subnet("a9", "a", &[ROLE_PUBLIC])],
            ids(&["a9"]),
        ),
        (
            "the cluster's tag beats none",
            vec![subnet("a0", "a", &[]), subnet("a9", "a", &[OWN])],
            ids(&["a9"]),
        ),
        (
            "an untagged one in another zone",
            vec![a1(), subnet("b1", "b", &[])],
            ids(&["a1", "b1"]),
        ),
    ];
    for (name, subnets, expected) in cases {
        assert_eq!(chosen(&public(subnets), &desired()), expected, "{name}");
    }
    let private = vpc(vec![a1()], vec![table(&[], true, false)]);
    assert_eq!(chosen(&private, &desired()), none(), "a private one");
    let mut outwards = private;
    outwards.tables[0].routes[0].gateway = Some("eigw-1".into());
    assert_eq!(chosen(&outwards, &desired()), none(), "one with a way out for IPv6 alone");
}

// SU2
#[test]
fn discovery_leaves_out_other_clusters_and_special_zones() {
    let both = vec![subnet("a1", "a", &[OWN]), subnet("b1", "b", &[OTHER])];
    assert_eq!(chosen(&public(both), &desired()), ids(&["a1"]));

    let roles =
        vec![subnet("a1", "a", &[OWN, ROLE_PUBLIC]), subnet("a2", "a", &[OWN, ROLE_INTERNAL])];
    let private = vpc(roles, vec![table(&[], true, false)]);
    assert_eq!(chosen(&private, &internal()), ids(&["a2"]));

    let equal = vec![subnet("a2", "a", &[OWN]), subnet("a1", "a", &[OWN])];
    assert_eq!(chosen(&public(equal), &desired()), ids(&["a1"]));

    let seven = vec![
        subnet("c2", "c", &[OWN]),
        subnet("b1", "b", &[OWN, ROLE_PUBLIC]),
        subnet("a1", "a", &[OWN, ROLE_PUBLIC]),
        subnet("a3", "a", &[OWN, ROLE_INTERNAL]),
        subnet("b0", "b", &[OWN]),
        subnet("c1", "c", &[OWN]),
        subnet("c0", "c", &[]),
    ];
    assert_eq!(chosen(&public(seven), &desired()), ids(&["a1", "b1", "c1"]));

    let special =
        vec![subnet("a1", "a", &[OWN]), subnet("l1", "lax", &[OWN]), subnet("w1", "wlz", &[OWN])];
    assert_eq!(chosen(&public(special), &desired()), ids(&["a1"]));
}

// SU3
#[test]
fn a_route_table_counts_by_association_or_as_the_main_one() {
    let three = || {
        ["a", "b", "c"]
            .map(|zone| subnet(&format!("{zone}1"), zone, &[OWN]))
            .to_vec()
    };
    let explicit =
        vpc(three(), vec![table(&[], true, false), table(&["a1", "b1", "c1"], false, true)]);
    assert_eq!(chosen(&explicit, &desired()), ids(&["a1", "b1", "c1"]));
    let main = vpc(three(), vec![table(&["other"], false, false), table(&[], true, true)]);
    assert_eq!(chosen(&main, &desired()), ids(&["a1", "b1", "c1"]));

    let five = ["c0000001", "c0000000", "c0000002"].map(|id| subnet(id, "c", &[OWN]));
    let five = [subnet("a1", "a", &[OWN]), subnet("b1", "b", &[OWN])]
        .into_iter()
        .chain(five)
        .collect();
    assert_eq!(chosen(&public(five), &desired()), ids(&["a1", "b1", "c0000000"]));

    let six = ["a", "b", "c"].map(|zone| subnet(&format!("{zone}0"), zone, &[OWN]));
    let six = six.into_iter().chain(three()).collect();
    let mixed = vpc(six, vec![table(&["a0", "b0", "c0"], false, false), table(&[], true, true)]);
    assert_eq!(chosen(&mixed, &desired()), ids(&["a1", "b1", "c1"]));

    let lost = vpc(three(), vec![table(&["b1"], false, true)]);
    for wanted in [desired(), internal()] {
        assert_eq!(
            chosen(&lost, &wanted),
            Err("could not locate routing table for subnet a1".to_owned())
        );
    }
}

// SU4
#[test]
fn named_subnets_are_taken_as_named_and_in_that_order() {
    let view = public(vec![
        subnet("subnet-1", "a", &["Name=My Subnet 1"]),
        subnet("subnet-2", "b", &["Name=My Subnet 2"]),
        subnet("subnet-3", "b", &["Name=Twin"]),
        subnet("subnet-4", "c", &["Name=Twin"]),
        subnet("subnet-5", "c", &["name=Lower"]),
    ]);
    let named = |names: &[&str]| {
        let name = |text: &&str| match text.strip_prefix("subnet-") {
            Some(_) => SubnetName::Id((*text).into()),
            None => SubnetName::Name((*text).into()),
        };
        chosen(
            &view,
            &DesiredLoadBalancer {
                subnets: SubnetChoice::Named(names.iter().map(name).collect()),
                ..desired()
            },
        )
    };
    let failed = |message: &str| Err(format!("{ANNOTATION}: {message}"));
    assert_eq!(named(&["subnet-2", "subnet-1"]), ids(&["subnet-2", "subnet-1"]));
    assert_eq!(named(&["My Subnet 2", "My Subnet 1"]), ids(&["subnet-2", "subnet-1"]));
    assert_eq!(named(&["My Subnet 1", "subnet-2"]), ids(&["subnet-1", "subnet-2"]));
    assert_eq!(named(&[]), failed("unable to resolve empty subnet slice"));
    let cases: [(&[&str], &str); 4] = [
        (&["Lower"], "expected to find 1, but found 0 subnets"),
        (&["My Subnet 1", "x", "y"], "expected to find 3, but found 1 subnets"),
        (&["Twin"], "expected to find 1, but found 2 subnets"),
        (&["subnet-1", "My Subnet 1"], "expected to find 2, but found 1 subnets"),
    ];
    for (names, message) in cases {
        assert_eq!(named(names), failed(message));
    }
    assert_eq!(
        named(&["subnet-2", "subnet-3"]),
        failed("multiple subnets in same Availability Zone b: [subnet-2, subnet-3]")
    );
}

#[test]
fn a_named_subnet_may_be_private_and_in_any_zone() {
    let view = vpc(vec![subnet("subnet-1", "lax", &[OTHER])], vec![]);
    let wanted = DesiredLoadBalancer {
        subnets: SubnetChoice::Named(vec![SubnetName::Id("subnet-1".into())]),
        ..desired()
    };
    assert_eq!(chosen(&view, &wanted), ids(&["subnet-1"]));
}

#[test]
fn the_configured_subnet_is_the_last_resort() {
    let view = public(vec![subnet("subnet-1", "a", &[OTHER])]);
    let settings = Settings { subnet: Some("subnet-1".into()), ..Settings::default() };
    let found = choose(&view, &Cluster::new("test", false), &settings, &desired()).unwrap();
    assert_eq!(found[0].subnet, "subnet-1".into());
    assert_eq!(chosen(&view, &desired()), none());
    let both = public(vec![subnet("subnet-1", "a", &[OTHER]), subnet("subnet-2", "b", &[OWN])]);
    let found = choose(&both, &Cluster::new("test", false), &settings, &desired()).unwrap();
    assert_eq!(
        found
            .iter()
            .map(|mapping| &*mapping.subnet)
            .collect::<Vec<_>>(),
        ["subnet-2"]
    );
}

#[test]
fn discovery_passes_over_what_has_no_room() {
    let full = |id, zone| Subnet { free_ips: 7, ..subnet(id, zone, &[OWN, ROLE_PUBLIC]) };
    let view = public(vec![
        full("a1", "a"),
        Subnet { free_ips: 8, ..subnet("a2", "a", &[OWN]) },
        full("b1", "b"),
    ]);
    assert_eq!(chosen(&view, &desired()), ids(&["a2"]));
    let message = "could not find any suitable subnets for creating the ELB: 8 free addresses are needed, which these \
                   lack: [a1, b1]";
    assert_eq!(
        chosen(&public(vec![full("b1", "b"), full("a1", "a")]), &desired()),
        Err(message.to_owned())
    );
}

#[test]
fn a_zone_that_nobody_knows_is_an_error_and_no_exclusion() {
    let view = VpcSnapshot {
        zones: BTreeMap::new().into(),
        ..public(vec![subnet("a1", "a", &[OWN])])
    };
    let error =
        choose(&view, &Cluster::new("test", false), &Settings::default(), &desired()).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (ErrorKind::Transient, "zone a of subnet a1 is unknown".to_owned())
    );
}

fn two() -> [Subnet; 2] {
    let a = with_v6(with_v4(subnet("subnet-a", "a", &[OWN]), "10.0.0.0/24"), "2001:db8:0:a::/64");
    let b = with_v6(with_v4(subnet("subnet-b", "b", &[OWN]), "10.0.1.0/24"), "2001:db8:0:b::/64");
    [a, b]
}

fn mapped(wanted: &DesiredLoadBalancer) -> Result<Vec<SubnetMapping>, Vec<String>> {
    let [a, b] = two();
    mappings(&[&a, &b], wanted)
        .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
}

fn dual() -> DesiredLoadBalancer {
    DesiredLoadBalancer { ip_address_type: IpAddressType::Dualstack, ..desired() }
}

fn with_ipv4(wanted: DesiredLoadBalancer, addresses: &[&str]) -> DesiredLoadBalancer {
    DesiredLoadBalancer {
        private_ipv4: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        ..wanted
    }
}

fn with_ipv6(wanted: DesiredLoadBalancer, addresses: &[&str]) -> DesiredLoadBalancer {
    DesiredLoadBalancer {
        ipv6: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        ..wanted
    }
}

fn with_eips(wanted: DesiredLoadBalancer, ids: &[&str]) -> DesiredLoadBalancer {
    DesiredLoadBalancer {
        allocations: ids.iter().map(|id| (*id).into()).collect(),
        ..wanted
    }
}

// SU5, LB5
#[test]
fn addresses_go_to_their_subnets() {
    let plain = |id: &str| SubnetMapping {
        subnet: id.into(),
        allocation: None,
        private_ipv4: None,
        ipv6: None,
        source_nat_prefix: None,
    };
    let (a, b) = (plain("subnet-a"), plain("subnet-b"));
    assert_eq!(mapped(&desired()), Ok(vec![a.clone(), b.clone()]));

    let eip =
        |of: &SubnetMapping, id: &str| SubnetMapping { allocation: Some(id.into()), ..of.clone() };
    let both = with_eips(desired(), &["eipalloc-1", "eipalloc-2"]);
    assert_eq!(mapped(&both), Ok(vec![eip(&a, "eipalloc-1"), eip(&b, "eipalloc-2")]));

    let private = |of: &SubnetMapping, ip: &str| SubnetMapping {
        private_ipv4: Some(ip.parse().unwrap()),
        ..of.clone()
    };
    let any_order = with_ipv4(internal(), &["10.0.1.9", "10.0.0.8"]);
    assert_eq!(mapped(&any_order), Ok(vec![private(&a, "10.0.0.8"), private(&b, "10.0.1.9")]));

    let v6 = |of: SubnetMapping, ip: &str| SubnetMapping { ipv6: Some(ip.parse().unwrap()), ..of };
    let eip_and_v6 = with_eips(
        with_ipv6(dual(), &["2001:db8:0:b::1", "2001:db8:0:a::1"]),
        &["eipalloc-1", "eipalloc-2"],
    );
    let expected = vec![
        v6(eip(&a, "eipalloc-1"), "2001:db8:0:a::1"),
        v6(eip(&b, "eipalloc-2"), "2001:db8:0:b::1"),
    ];
    assert_eq!(mapped(&eip_and_v6), Ok(expected));
}

// LB5
#[test]
fn source_nat_prefixes_go_to_their_subnets_by_position() {
    let prefix = |text: &str| match text {
        "auto_assigned" => SourceNatPrefix::AutoAssigned,
        text => SourceNatPrefix::Network(text.parse().unwrap()),
    };
    let with = |texts: &[&str]| DesiredLoadBalancer {
        source_nat_prefixes: texts.iter().map(|text| prefix(text)).collect(),
        ..dual()
    };
    let (in_a, in_b) = ("2001:db8:0:a:1::/80", "2001:db8:0:b:1::/80");
    for texts in [[in_a, in_b], [in_a, "auto_assigned"], ["auto_assigned", in_b]] {
        let mapped = mapped(&with(&texts)).unwrap();
        let found: Vec<_> = mapped
            .iter()
            .map(|mapping| mapping.source_nat_prefix.unwrap())
            .collect();
        assert_eq!(found, texts.map(prefix), "{texts:?}");
    }
    let outside = |text: &str, network: &str| {
        format!(
            "{ANNOTATION_PREFIXES}: Invalid value in source-nat-ipv6-prefixes: {text}. Value must be within subnet CIDR range: \
             [{network}]."
        )
    };
    assert_eq!(
        mapped(&with(&[in_b, in_a])),
        Err(vec![outside(in_b, "2001:db8:0:a::/64"), outside(in_a, "2001:db8:0:b::/64")])
    );
}

// LB5
#[test]
fn addresses_that_cannot_be_had_are_all_named() {
    let cases: [(DesiredLoadBalancer, &[(&str, &str)]); 8] = [
        (
            with_eips(desired(), &["eipalloc-1", "eipalloc-2", "eipalloc-3"]),
            &[(ANNOTATION_EIP, "Must have same number of EIP AllocationIDs (3) and SubnetIDs (2)")],
        ),
        (
            with_ipv4(internal(), &["10.0.0.8", "10.0.1.8", "10.0.2.8"]),
            &[(
                ANNOTATION_IPV4,
                "Must have same number of Private IPv4Addresses (3) and SubnetIDs (2)",
            )],
        ),
        (
            with_eips(desired(), &["eipalloc-1"]),
            &[(ANNOTATION_EIP, "Must have same number of EIP AllocationIDs (1) and SubnetIDs (2)")],
        ),
        (
            with_ipv4(internal(), &["10.0.0.8"]),
            &[(
                ANNOTATION_IPV4,
                "Must have same number of Private IPv4Addresses (1) and SubnetIDs (2)",
            )],
        ),
        (
            with_ipv4(internal(), &["10.0.0.8", "10.0.0.9"]),
            &[
                (
                    ANNOTATION_IPV4,
                    "expect one private IPv4 address configured for subnet: subnet-a",
                ),
                (
                    ANNOTATION_IPV4,
                    "expect one private IPv4 address configured for subnet: subnet-b",
                ),
            ],
        ),
        (
            with_ipv6(dual(), &["2001:db8:0:a::1"]),
            &[(ANNOTATION_IPV6, "count of IPv6 addresses (1) and subnets (2) must match")],
        ),
        (
            with_ipv6(dual(), &["2001:db8:0:a::1", "2001:db8:0:c::1"]),
            &[(ANNOTATION_IPV6, "expect one IPv6 address configured for subnet: subnet-b")],
        ),
        (
            with_eips(with_ipv6(dual(), &["2001:db8:0:a::1"]), &["eipalloc-1"]),
            &[
                (
                    ANNOTATION_EIP,
                    "Must have same number of EIP AllocationIDs (1) and SubnetIDs (2)",
                ),
                (ANNOTATION_IPV6, "count of IPv6 addresses (1) and subnets (2) must match"),
            ],
        ),
    ];
    for (wanted, expected) in cases {
        let expected: Vec<_> = expected
            .iter()
            .map(|(field, message)| format!("{field}: {message}"))
            .collect();
        assert_eq!(mapped(&wanted), Err(expected));
    }
}

// LB5
#[test]
fn a_dual_stack_balancer_needs_ipv6_in_each_subnet() {
    let [a, _] = two();
    let b = with_v4(subnet("subnet-b", "b", &[OWN]), "10.0.1.0/24");
    let discovered = public(vec![a.clone(), b.clone()]);
    assert_eq!(chosen(&discovered, &dual()), ids(&["subnet-a"]));
    let names = ["subnet-a", "subnet-b"]
        .map(|id| SubnetName::Id(id.into()))
        .to_vec();
    let named = DesiredLoadBalancer { subnets: SubnetChoice::Named(names), ..dual() };
    assert_eq!(
        chosen(&discovered, &named),
        Err(format!(
            "{ANNOTATION}: subnets without IPv6 CIDR cannot have a dualstack load balancer: [subnet-b]"
        ))
    );
    let nat = DesiredLoadBalancer { ipv6_source_nat: Some(true), ..named };
    let message = "To enable prefix for source NAT, all associated subnets must have an IPv6 CIDR. Subnets without IPv6 \
                   CIDR: [subnet-b].";
    assert_eq!(chosen(&discovered, &nat), Err(format!("{ANNOTATION_NAT}: {message}")));
}
