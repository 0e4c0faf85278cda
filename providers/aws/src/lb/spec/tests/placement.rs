//! Name, scheme, subnets, addresses.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::{
    api::elb::{IpAddressType, Scheme},
    lb::model::{SubnetChoice, SubnetName},
};

// LB6
#[test]
fn the_scheme_is_read_as_upstream_reads_it() {
    let (internal, facing) = (Scheme::Internal, Scheme::InternetFacing);
    let cases = [
        (nlb(), facing),
        (nlb().says("internal", ""), facing),
        (nlb().says("internal", "false"), facing),
        (nlb().says("internal", "true"), internal),
        (nlb().says("internal", "0.0.0.0/0"), internal),
        (nlb().says("internal", "False"), internal),
        (nlb().says("scheme", "internal"), internal),
        (
            nlb()
                .says("internal", "true")
                .says("scheme", "internet-facing"),
            facing,
        ),
        (claimed(), internal),
        (claimed().says("internal", "false"), facing),
        (claimed().says("scheme", "internet-facing"), facing),
    ];
    for (case, wanted) in cases {
        assert_eq!(case.wanted().scheme, wanted, "{:?}", case.service.annotations);
    }
    assert_eq!(nlb().says("scheme", "public").mistakes(), ["unknown scheme: public"]);
}

// LB6 NA1
#[test]
fn the_name_is_upstreams_or_chosen() {
    let name = |case: &Case| case.wanted().name.to_string();
    assert_eq!(name(&nlb()), "a0f1e2d3c0000111122223333444455".to_owned() + "5");
    assert_eq!(name(&nlb().says("name", "my-lb")), "my-lb");
    assert!(name(&claimed()).starts_with("k8s-default-web-"));
    assert_eq!(name(&nlb().says("name", &"x".repeat(32))).len(), 32);
    let long = nlb().says("name", &"x".repeat(33));
    assert_eq!(long.mistakes(), ["load balancer name cannot be longer than 32 characters"]);
    for bad in ["-x", "x-", "a_b", "a b", "internal-x"] {
        assert_eq!(nlb().says("name", bad).refused().len(), 1, "{bad}");
    }
}

// LB6
#[test]
fn address_families_are_as_annotated() {
    assert_eq!(nlb().wanted().ip_address_type, IpAddressType::Ipv4);
    assert_eq!(nlb().says("ip-address-type", "ipv4").wanted(), nlb().wanted());
    assert_eq!(
        nlb()
            .says("ip-address-type", "dualstack")
            .wanted()
            .ip_address_type,
        IpAddressType::Dualstack
    );
    for bad in ["ipv6", "dual-stack"] {
        assert_eq!(
            nlb().says("ip-address-type", bad).mistakes(),
            [format!("unknown IPAddressType: {bad}")]
        );
    }
}

// SU4
#[test]
fn subnets_are_ids_or_names_in_order() {
    assert_eq!(nlb().wanted().subnets, SubnetChoice::Discover);
    let named = nlb()
        .says("subnets", "subnet-2, My Subnet ,subnet-1,")
        .wanted()
        .subnets;
    let wanted = [
        SubnetName::Id("subnet-2".into()),
        SubnetName::Name("My Subnet".into()),
        SubnetName::Id("subnet-1".into()),
    ];
    assert_eq!(named, SubnetChoice::Named(wanted.to_vec()));
    for empty in ["\t", " , "] {
        assert_eq!(
            nlb().says("subnets", empty).mistakes(),
            ["unable to resolve empty subnet slice"]
        );
    }
}

// LB5 SU5
#[test]
fn fixed_addresses_are_read() {
    let two = nlb().says("subnets", "subnet-1,subnet-2");
    let eips = two
        .clone()
        .says("eip-allocations", "eipalloc-2, eipalloc-1")
        .wanted()
        .allocations;
    assert_eq!(
        eips,
        ["eipalloc-2".into(), "eipalloc-1".into()],
        "the order pairs them with subnets"
    );
    let internal = two.says("internal", "true");
    let private = internal
        .clone()
        .says("private-ipv4-addresses", "10.0.1.9, 10.0.0.9")
        .wanted()
        .private_ipv4;
    assert_eq!(private, [Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 1, 9)]);
    let dual = internal
        .says("ip-address-type", "dualstack")
        .says("ipv6-addresses", "2001:db8::2, 2001:db8::1");
    let wanted: Vec<Ipv6Addr> =
        vec!["2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()];
    assert_eq!(dual.wanted().ipv6, wanted);
    // An Elastic IP address and an IPv6 one.
    let both = nlb()
        .says("subnets", "subnet-1")
        .says("ip-address-type", "dualstack")
        .says("eip-allocations", "eipalloc-1")
        .says("ipv6-addresses", "2001:db8::1");
    assert_eq!((both.wanted().allocations.len(), both.wanted().ipv6.len()), (1, 1));
    // How many subnets are found is not known yet.
    assert_eq!(
        nlb()
            .says("eip-allocations", "eipalloc-1")
            .wanted()
            .allocations
            .len(),
        1
    );
}

// LB5
#[test]
fn fixed_addresses_must_fit() {
    let two = nlb().says("subnets", "subnet-1,subnet-2");
    let internal = two.clone().says("internal", "true");
    let dual = two.clone().says("ip-address-type", "dualstack");
    let cases = [
        (
            internal.clone().says("eip-allocations", "a,b"),
            "EIP allocations can only be set for internet facing load balancers",
        ),
        (
            two.clone().says("eip-allocations", "a"),
            "count of EIP allocations (1) and subnets (2) must match",
        ),
        (
            two.clone()
                .says("private-ipv4-addresses", "10.0.0.1,10.0.1.1"),
            "private IPv4 addresses can only be set for internal load balancers",
        ),
        (
            internal.clone().says("private-ipv4-addresses", "10.0.0.1"),
            "count of private IPv4 addresses (1) and subnets (2) must match",
        ),
        (
            internal
                .clone()
                .says("private-ipv4-addresses", "10.0.0.1,x"),
            "private IPv4 addresses must be valid IP address: x",
        ),
        (
            internal.says("private-ipv4-addresses", "10.0.0.1,2001:db8::1"),
            "private IPv4 addresses must be valid IPv4 address: 2001:db8::1",
        ),
        (
            two.says("ipv6-addresses", "2001:db8::1,2001:db8::2"),
            "IPv6 addresses can only be set for dualstack load balancers",
        ),
        (
            dual.clone().says("ipv6-addresses", "2001:db8::1"),
            "count of IPv6 addresses (1) and subnets (2) must match",
        ),
        (
            dual.clone().says("ipv6-addresses", "x,2001:db8::1"),
            "IPv6 addresses must be valid IP address: x",
        ),
        (
            dual.says("ipv6-addresses", "10.0.0.1,2001:db8::1"),
            "IPv6 addresses must be valid IPv6 address: 10.0.0.1",
        ),
    ];
    for (case, wanted) in cases {
        assert_eq!(case.mistakes(), [wanted]);
    }
}

// LB5
#[test]
fn source_nat_with_ipv6_is_for_dual_stack_and_needed_for_udp() {
    let nat = |case: Case, value: &str| case.says("enable-prefix-for-ipv6-source-nat", value);
    let dual = |case: Case| case.says("ip-address-type", "dualstack");
    assert_eq!(nlb().wanted().ipv6_source_nat, None);
    assert_eq!(nat(dual(nlb()), "on").wanted().ipv6_source_nat, Some(true));
    assert_eq!(nat(dual(nlb()), "off").wanted().ipv6_source_nat, Some(false));
    let message =
        "Invalid enable-prefix-for-ipv6-source-nat value: yes. Valid values are ['on', 'off'].";
    assert_eq!(nat(dual(nlb()), "yes").mistakes(), [message]);
    let message = "enable-prefix-for-ipv6-source-nat annotation is only applicable to Network Load Balancers using \
                   Dualstack IP address type.";
    assert_eq!(nat(nlb(), "on").mistakes(), [message]);
    let message = "UDP on a dualstack load balancer takes enable-prefix-for-ipv6-source-nat: on";
    let udp = dual(bare().udp(53));
    assert_eq!(udp.mistakes(), [message]);
    assert_eq!(nat(udp.clone(), "off").mistakes(), [message]);
    assert_eq!(nat(udp, "on").listeners().len(), 1);
}

// LB5
#[test]
fn source_nat_prefixes_are_read_in_the_order_of_named_subnets() {
    let dual = || nlb().says("ip-address-type", "dualstack");
    let named = |case: Case| case.says("subnets", "subnet-1,subnet-2");
    let nat = |case: Case| case.says("enable-prefix-for-ipv6-source-nat", "on");
    let with = |case: Case, value: &str| case.says("source-nat-ipv6-prefixes", value);
    let texts = |case: Case| -> Vec<String> {
        let prefixes = case.wanted().source_nat_prefixes;
        prefixes.iter().map(ToString::to_string).collect()
    };
    let right = || nat(named(dual()));
    assert_eq!(texts(right()), [""; 0]);
    assert_eq!(texts(with(right(), " , ")), [""; 0]);
    assert_eq!(
        texts(with(right(), "2001:DB8:0:0:1:0:0:9/80, auto_assigned")),
        ["2001:db8:0:0:1::/80", "auto_assigned"]
    );
    let value = |text: &str, what: &str| {
        format!("Invalid value in source-nat-ipv6-prefixes: {text}. {what}")
    };
    let cidr = "Value must be a valid IPv6 CIDR.";
    let both = "auto_assigned,auto_assigned";
    let cases = [
        (
            nat(named(nlb())).without("enable-prefix-for-ipv6-source-nat"),
            both,
            vec![
                "source-nat-ipv6-prefixes annotation can only be set for Network Load Balancers using Dualstack IP address \
                 type."
                    .to_owned(),
                "source-nat-ipv6-prefixes annotation is only applicable if enable-prefix-for-ipv6-source-nat annotation is \
                 set to on."
                    .to_owned(),
            ],
        ),
        (
            named(dual()).says("enable-prefix-for-ipv6-source-nat", "off"),
            both,
            vec![
                "source-nat-ipv6-prefixes annotation is only applicable if enable-prefix-for-ipv6-source-nat annotation is \
                 set to on."
                    .to_owned(),
            ],
        ),
        (
            nat(dual()),
            both,
            vec![
                "source-nat-ipv6-prefixes annotation needs the subnets annotation, whose order it follows"
                    .to_owned(),
            ],
        ),
        (
            right(),
            "auto_assigned",
            vec![
                "Number of values in source-nat-ipv6-prefixes (1) must match the number of subnets (2)."
                    .to_owned(),
            ],
        ),
        (right(), "auto_assigned,auto", vec![value("auto", cidr)]),
        (right(), "2001:db8::,auto_assigned", vec![value("2001:db8::", cidr)]),
        (right(), "10.0.0.0/80,auto_assigned", vec![value("10.0.0.0/80", cidr)]),
        (right(), "10.0.0.0/8,auto_assigned", vec![value("10.0.0.0/8", cidr)]),
        (
            right(),
            "2001:db8::/64,auto_assigned",
            vec![value("2001:db8::/64", "Prefix length must be 80, but 64 is specified.")],
        ),
    ];
    for (case, prefixes, expected) in cases {
        assert_eq!(with(case, prefixes).mistakes(), expected, "{prefixes}");
    }
    assert_eq!(with(right(), "x").upstream().wanted().source_nat_prefixes, []);
}
