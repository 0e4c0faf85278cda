//! Tests of the plan of routes.

use ccm_core::k8s::NodeAddress;
use proptest::prelude::*;

use super::*;

fn node(name: &str, internal: &[&str]) -> Arc<NodeView> {
    let addresses = internal
        .iter()
        .map(|a| NodeAddress::new(AddressType::InternalIp, *a))
        .collect();
    Arc::new(NodeView { addresses, ..NodeView::named(name) })
}

fn hop(destination: &str, next: &str) -> ExtraRoute {
    ExtraRoute {
        destination: destination.parse().unwrap(),
        next: next.parse().unwrap(),
    }
}

fn route(destination: &str, nexthop: &str) -> neutron::Route {
    neutron::Route {
        destination: destination.to_owned(),
        nexthop: nexthop.to_owned(),
    }
}

// R01, R02
#[test]
fn a_route_leads_to_the_first_internal_address_of_its_family() {
    let first = node("a", &["2001:4800:790e::82a8", "1.2.3.4", "2001:4800:790e::82a9"]);
    assert_eq!(next_hop(&first, IpFamily::V4), Some("1.2.3.4".parse().unwrap()));
    let second = node("b", &["1.2.3.5", "2001:4800:790e::82a8", "1.2.3.4", "2001:4800:790e::82a9"]);
    assert_eq!(next_hop(&second, IpFamily::V6), Some("2001:4800:790e::82a8".parse().unwrap()));
    assert_eq!(next_hop(&node("c", &["1.2.3.4"]), IpFamily::V6), None);
    let external = NodeAddress::new(AddressType::ExternalIp, "1.2.3.4");
    let outside = NodeView { addresses: [external].into(), ..NodeView::named("d") };
    assert_eq!(next_hop(&outside, IpFamily::V4), None);
}

#[test]
fn routes_are_the_clusters_by_their_next_hop() {
    let nodes = [node("a", &["10.0.0.1"]), node("b", &["10.0.0.2"])];
    let routes = [
        route("10.244.0.0/24", "10.0.0.1"),
        route("10.244.1.0/24", "10.0.0.2"),
        route("10.244.2.0/24", "10.0.0.3"),
        route("10.244.3.0/24", "10.0.0.4"),
        route("10.244.4.0/24", "10.0.0.5"),
    ];
    let strays = [("10.0.0.3", UnownedAddress::Leftover), ("10.0.0.4", UnownedAddress::Foreign)];
    let strays = strays
        .into_iter()
        .map(|(ip, stray)| (ip.parse().unwrap(), stray))
        .collect();
    let found: Vec<_> = list_cluster_routes(&routes, &map_owners(&nodes), &strays)
        .into_iter()
        .map(|route| {
            (route.destination.to_string(), route.node.map(|n| n.to_string()), route.blackhole)
        })
        .collect();
    let own =
        |destination: &str, node: &str| (destination.to_owned(), Some(node.to_owned()), false);
    // What nothing is known about (10.0.0.5) is nobody's to delete.
    let left = ("10.244.2.0/24".to_owned(), None, true);
    assert_eq!(found, [own("10.244.0.0/24", "a"), own("10.244.1.0/24", "b"), left]);
}

#[test]
fn an_address_that_two_nodes_claim_makes_no_route_theirs() {
    let nodes = [node("a", &["10.0.0.1"]), node("b", &["10.0.0.1"])];
    let routes = [route("10.244.0.0/24", "10.0.0.1")];
    assert_eq!(list_cluster_routes(&routes, &map_owners(&nodes), &BTreeMap::new()), []);
}

#[test]
fn handles_find_their_route_again() {
    for hop in [hop("10.244.0.0/24", "10.0.0.1"), hop("fd00:1::/64", "2001:db8::1")] {
        assert_eq!(ExtraRoute::parse_handle(&hop.handle()), Some(hop));
    }
    assert_eq!(ExtraRoute::parse_handle("10.244.0.0/24"), None);
}

#[test]
fn only_other_ways_to_a_wanted_destination_are_displaced() {
    let now = [
        route("10.244.0.0/24", "10.0.0.9"),
        route("10.244.1.0/24", "10.0.0.9"),
        route("10.244.0.0/24", "10.0.0.1"),
    ];
    let change = RouteUpdate {
        add: [hop("10.244.0.0/24", "10.0.0.1")].into(),
        ..RouteUpdate::default()
    };
    assert_eq!(
        change.with_conflicts_removed(&now).remove,
        [hop("10.244.0.0/24", "10.0.0.9")].into()
    );
}

#[test]
fn a_route_is_taken_out_as_it_is_written() {
    let now = [route("10.244.0.7/24", "10.0.0.1"), route("nonsense", "x")];
    let change = RouteUpdate {
        remove: [hop("10.244.0.0/24", "10.0.0.1")].into(),
        ..RouteUpdate::default()
    };
    assert_eq!(change.to_remove(&now), [route("10.244.0.7/24", "10.0.0.1")]);
    // What cannot be read stays.
    assert_eq!(change.full_list(&now), Some(vec![route("nonsense", "x")]));
    let change = RouteUpdate {
        add: [hop("10.244.0.0/24", "10.0.0.1")].into(),
        ..RouteUpdate::default()
    };
    assert_eq!(change.full_list(&now), None);
}

#[test]
fn pairs_are_added_and_taken_out_once_and_in_place() {
    let pair = |text: &str| neutron::AddressPair {
        ip_address: text.to_owned(),
        mac_address: Some("fa:16:3e:0:0:1".into()),
    };
    let pairs = [pair("10.9.0.0/24"), pair("10.244.0.0/24"), pair("192.0.2.1")];
    let network = "10.244.0.0/24".parse().unwrap();
    assert_eq!(with_pair(&pairs, network), None);
    assert_eq!(without_pair(&pairs, network), Some(vec![pairs[0].clone(), pairs[2].clone()]));
    let other = "10.244.1.0/24".parse().unwrap();
    assert_eq!(without_pair(&pairs, other), None);
    let added = with_pair(&pairs, other).unwrap();
    assert_eq!((&added[..3], added[3].ip_address.as_str()), (&pairs[..], "10.244.1.0/24"));
}

fn any_hop() -> impl Strategy<Value = ExtraRoute> {
    (0_u8..6, 1_u8..4)
        .prop_map(|(net, next)| hop(&format!("10.244.{net}.0/24"), &format!("10.0.0.{next}")))
}

proptest! {
    #[test]
    fn a_replaced_list_holds_what_is_wanted_and_leaves_the_rest_in_place(
        now in proptest::collection::btree_set(any_hop(), 0..8),
        add in proptest::collection::btree_set(any_hop(), 0..4),
        remove in proptest::collection::btree_set(any_hop(), 0..4),
    ) {
        let before: Vec<neutron::Route> = now.iter().map(ExtraRoute::to_neutron).collect();
        let change = RouteUpdate { add, remove };
        let after = change.full_list(&before).unwrap_or_else(|| before.clone());
        let hops: Vec<ExtraRoute> = after.iter().filter_map(ExtraRoute::from_neutron).collect();
        prop_assert!(change.add.iter().all(|hop| hops.contains(hop)));
        prop_assert!(change.remove.iter().all(|hop| change.add.contains(hop) || !hops.contains(hop)));
        let untouched = |hop: &&ExtraRoute| !change.add.contains(hop) && !change.remove.contains(hop);
        let (left, kept): (Vec<_>, Vec<_>) = (now.iter().filter(untouched).collect(), hops.iter().filter(untouched).collect());
        prop_assert_eq!(left, kept);
        // Doing it again changes nothing.
        prop_assert_eq!(change.full_list(&after), None);
    }
}
