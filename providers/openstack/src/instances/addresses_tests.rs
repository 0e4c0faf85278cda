//! Tests of the addresses of Nodes.

use super::*;

const V6_ACCESS: &str = "2001:4800:780e:510:be76:4eff:fe04:82a8";
const V6_PUBLIC: &str = "2001:4800:790e:510:be76:4eff:fe04:82a8";

fn on(network: &str, address: &str) -> NetworkAddress {
    NetworkAddress {
        network: network.into(),
        address: address.into(),
        floating: false,
    }
}

/// The server of the catalogue: access addresses, and `networks` beside `private`.
fn server(networks: &[NetworkAddress]) -> NovaServer {
    let floating = NetworkAddress { floating: true, ..on("private", "50.56.176.36") };
    let private = [on("private", "10.0.0.32"), floating, on("private", "10.0.0.31")];
    NovaServer {
        access_v4: Some("50.56.176.99".into()),
        access_v6: Some(V6_PUBLIC.into()),
        networks: private.iter().chain(networks).cloned().collect(),
        ..NovaServer::default()
    }
}

fn server_port(addresses: &[&str]) -> ServerPort {
    ServerPort {
        active: true,
        fixed: addresses.iter().map(|a| (*a).into()).collect(),
        ..ServerPort::default()
    }
}

fn rules(public: &[&str], internal: &[&str]) -> AddressRules {
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    AddressRules {
        public: list(public),
        internal: list(internal),
        ..AddressRules::default()
    }
}

fn shown(addresses: &[NodeAddress]) -> Vec<String> {
    addresses
        .iter()
        .map(|a| format!("{} {}", a.kind.as_str(), a.address))
        .collect()
}

fn public(network: &str) -> [NetworkAddress; 2] {
    [on(network, "50.56.176.35"), on(network, V6_ACCESS)]
}

// N01
#[test]
fn ports_then_access_then_host_name_then_networks() {
    let instance = NovaServer {
        hostname: Some("a1-yinvcez57-0".into()),
        ..server(&public("public"))
    };
    let found = collect_addresses(
        &instance,
        &[server_port(&["10.0.0.32", "10.0.0.31"])],
        &[],
        &rules(&["public"], &[]),
    );
    assert_eq!(
        shown(&found),
        [
            "InternalIP 10.0.0.32",
            "InternalIP 10.0.0.31",
            "ExternalIP 50.56.176.99",
            &format!("ExternalIP {V6_PUBLIC}"),
            "Hostname a1-yinvcez57-0",
            "ExternalIP 50.56.176.36",
            "ExternalIP 50.56.176.35",
            &format!("ExternalIP {V6_ACCESS}"),
        ]
    );
}

// N02: networks by name, whatever `public-network-name` says.
#[test]
fn another_name_of_the_public_network_counts_alike() {
    let instance = server(&public("pub-net"));
    let found = collect_addresses(
        &instance,
        &[server_port(&["10.0.0.32", "10.0.0.31"])],
        &[],
        &rules(&["pub-net"], &[]),
    );
    assert_eq!(
        shown(&found),
        [
            "InternalIP 10.0.0.32",
            "InternalIP 10.0.0.31",
            "ExternalIP 50.56.176.99",
            &format!("ExternalIP {V6_PUBLIC}"),
            "ExternalIP 50.56.176.36",
            "ExternalIP 50.56.176.35",
            &format!("ExternalIP {V6_ACCESS}"),
        ]
    );
}

// N03
#[test]
fn an_address_of_a_port_on_a_public_network_is_external_only() {
    let instance = NovaServer {
        networks: [
            on("private", "10.0.0.32"),
            on("private", "10.0.0.31"),
            on("pub-net", "50.56.176.35"),
            on("pub-net", "50.56.176.36"),
            on("pub-net", V6_ACCESS),
        ]
        .into(),
        ..server(&[])
    };
    let ports = [server_port(&["10.0.0.32", "10.0.0.31", "50.56.176.36"])];
    let found = collect_addresses(&instance, &ports, &[], &rules(&["pub-net"], &[]));
    let of_it: Vec<_> = shown(&found)
        .into_iter()
        .filter(|text| text.ends_with("50.56.176.36"))
        .collect();
    assert_eq!(of_it, ["ExternalIP 50.56.176.36"]);
}

// N04
#[test]
fn networks_that_are_neither_internal_nor_public_are_left_out() {
    let [v4, v6] = public("pub-net");
    let instance = server(&[on("also-private", "10.0.0.64"), v4, v6]);
    let found = collect_addresses(
        &instance,
        &[server_port(&["10.0.0.32", "10.0.0.31"])],
        &[],
        &rules(&[], &["private", "also-private"]),
    );
    assert_eq!(
        shown(&found),
        [
            "InternalIP 10.0.0.32",
            "InternalIP 10.0.0.31",
            "ExternalIP 50.56.176.99",
            &format!("ExternalIP {V6_PUBLIC}"),
            "InternalIP 10.0.0.64",
            "ExternalIP 50.56.176.36",
        ]
    );
}

// N05
#[test]
fn addresses_of_ports_on_other_than_the_internal_networks_are_taken_out() {
    let [v4, v6] = public("pub-net");
    let instance = server(&[on("also-private", "10.0.0.64"), v4, v6]);
    let found = collect_addresses(
        &instance,
        &[server_port(&["10.0.0.32", "10.0.0.31"])],
        &[],
        &rules(&[], &["also-private"]),
    );
    assert_eq!(
        shown(&found),
        [
            "ExternalIP 50.56.176.99",
            &format!("ExternalIP {V6_PUBLIC}"),
            "InternalIP 10.0.0.64",
            "ExternalIP 50.56.176.36",
        ]
    );
}

// N06
#[test]
fn without_ipv6_only_ipv4_is_shown() {
    let instance = server(&public("public"));
    let rules = AddressRules { no_ipv6: true, ..rules(&["public"], &[]) };
    let found = collect_addresses(
        &instance,
        &[server_port(&["10.0.0.32", "10.0.0.31", V6_ACCESS])],
        &[],
        &rules,
    );
    assert_eq!(
        shown(&found),
        [
            "InternalIP 10.0.0.32",
            "InternalIP 10.0.0.31",
            "ExternalIP 50.56.176.99",
            "ExternalIP 50.56.176.36",
            "ExternalIP 50.56.176.35",
        ]
    );
}

// N07
#[test]
fn the_wanted_order_comes_last_of_all() {
    let instance = NovaServer { hostname: Some("a1".into()), ..server(&public("public")) };
    let (order, wrong) = parse_order("10.0.0.0/8, 50.56.176.0/24, 2001:4800::/32");
    assert!(wrong.is_empty());
    let rules = AddressRules { sort_order: order, ..rules(&["public"], &[]) };
    let found =
        collect_addresses(&instance, &[server_port(&["10.0.0.32", "10.0.0.31"])], &[], &rules);
    assert_eq!(
        shown(&found),
        [
            "InternalIP 10.0.0.31",
            "InternalIP 10.0.0.32",
            "ExternalIP 50.56.176.35",
            "ExternalIP 50.56.176.36",
            "ExternalIP 50.56.176.99",
            &format!("ExternalIP {V6_ACCESS}"),
            &format!("ExternalIP {V6_PUBLIC}"),
            "Hostname a1",
        ]
    );
}

#[test]
fn ports_that_are_not_active_count_by_what_nova_shows() {
    let idle = ServerPort { active: false, ..server_port(&["10.0.0.9"]) };
    assert!(
        collect_addresses(&NovaServer::default(), &[idle], &[], &AddressRules::default())
            .is_empty()
    );
}

#[test]
fn addresses_of_sub_ports_are_internal_on_their_network() {
    let subs = [on("zoo", "10.9.0.1"), on("private", "10.0.0.77"), on("public", "10.8.0.1")];
    let found = collect_addresses(&server(&[]), &[], &subs, &rules(&["public"], &[]));
    assert_eq!(
        shown(&found)[2..],
        [
            "InternalIP 10.0.0.32",
            "ExternalIP 50.56.176.36",
            "InternalIP 10.0.0.31",
            "InternalIP 10.0.0.77",
            "ExternalIP 10.8.0.1",
            "InternalIP 10.9.0.1",
        ]
    );
}

// S01, S02, S03
#[test]
fn the_order_is_read_and_what_is_no_network_is_told() {
    assert_eq!(parse_order(""), (vec![], vec![]));
    let (order, wrong) = parse_order("InvalidOption, AnotherInvalidOption");
    assert_eq!(
        (order.len(), &*wrong),
        (0, &["InvalidOption", "AnotherInvalidOption"].map(Into::into)[..])
    );
    let (order, wrong) = parse_order("192.168.0.0/16, 10.0.0.0/244,bad 2001:4800:790e::/64");
    assert_eq!(order, ["192.168.0.0/16".parse().unwrap(), "2001:4800:790e::/64".parse().unwrap()]);
    assert_eq!(wrong, ["10.0.0.0/244", "bad"]);
}

// S05, S06, S07, S08, S09
#[test]
fn an_address_is_wanted_by_its_first_network() {
    let (order, _) = parse_order("192.168.100.0/24, 2001:4800:790e::/64");
    let rows = [
        ("2001:4800:790e::82a8", 1),
        ("2001:cafe:babe::82a8", 0),
        ("192.168.100.200", 2),
        ("192.168.101.123", 0),
    ];
    for (address, wanted) in rows {
        assert_eq!(priority(address.parse().unwrap(), &order), wanted, "{address}");
    }
}

const MIXED: [&str; 14] = [
    "fd08:1374:fcee:916b:be76:4eff:fe04:82a8",
    "192.168.0.1",
    "fd08:1374:fcee:916b:be76:4eff:fe04:84a8",
    "50.56.176.37",
    "host.example",
    "10.0.0.32",
    "2001:4800:780e:510:be76:4eff:fe04:82a8",
    "10.0.0.31",
    "50.56.176.35",
    "50.56.176.36",
    "192.168.0.10",
    "2001:cafe::1",
    "192.168.0.2",
    "other.example",
];

fn sorted(order: &str) -> Vec<String> {
    let mut addresses: Vec<_> = MIXED
        .iter()
        .map(|a| NodeAddress::new(AddressType::InternalIp, *a))
        .collect();
    sort(&mut addresses, &parse_order(order).0);
    addresses.into_iter().map(|a| a.address.into()).collect()
}

fn first_then_rest(first: &[&str]) -> Vec<String> {
    let rest = MIXED.iter().filter(|a| !first.contains(a));
    first.iter().chain(rest).map(|a| (*a).to_owned()).collect()
}

// S10
#[test]
fn an_order_without_a_network_changes_nothing() {
    assert_eq!(sorted("10.0.0.0/244"), MIXED);
}

// S11, S12
#[test]
fn one_network_comes_first_and_the_rest_stays() {
    assert_eq!(sorted("10.0.0.0/8"), first_then_rest(&["10.0.0.31", "10.0.0.32"]));
    assert_eq!(sorted("fd08:1374:fcee:916b::/64"), first_then_rest(&[MIXED[0], MIXED[2]]));
}

// S04, S13: what is no address has no priority at all, and stays behind.
#[test]
fn many_networks_come_in_their_order_and_sorted_inside() {
    let order = "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 50.56.176.0/24, fd08:1374:fcee:916b::/64, 2001:4800::/32";
    assert_eq!(
        sorted(order),
        first_then_rest(&[
            "10.0.0.31",
            "10.0.0.32",
            "192.168.0.1",
            "192.168.0.2",
            "192.168.0.10",
            "50.56.176.35",
            "50.56.176.36",
            "50.56.176.37",
            MIXED[0],
            MIXED[2],
            MIXED[6],
        ])
    );
}
