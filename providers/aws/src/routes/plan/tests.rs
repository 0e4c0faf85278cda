use ccm_core::k8s::Interner;

use super::*;
use crate::{
    api::{
        Tags,
        ec2::{self, InstanceInterface},
    },
    ownership_tags::Cluster,
};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn node(name: &str, cidrs: &[&str]) -> Arc<NodeView> {
    let pod_cidrs = cidrs.iter().map(|cidr| Arc::from(*cidr)).collect();
    Arc::new(NodeView { pod_cidrs, ..NodeView::named(name) })
}

/// A route to `i-…`, to `eni-…`, to `i-…/eni-…` as AWS shows an attached interface, or to a
/// gateway; `!` in front: it leads nowhere.
fn route(destination: &str, to: &str) -> Route {
    let (blackhole, to) = to.strip_prefix('!').map_or((false, to), |to| (true, to));
    let mut route = Route {
        destination: Some(net(destination)),
        blackhole,
        instance: None,
        interface: None,
        gateway: None,
    };
    for to in to.split('/').filter(|to| !to.is_empty()) {
        match to {
            to if to.starts_with("i-") => route.instance = Some(to.into()),
            to if to.starts_with("eni-") => route.interface = Some(to.into()),
            to => route.gateway = Some(to.into()),
        }
    }
    route
}

fn table(id: &str, routes: &[(&str, &str)]) -> RouteTable {
    RouteTable {
        id: id.into(),
        vpc: "vpc-1".into(),
        subnets: Vec::new(),
        main: false,
        routes: routes
            .iter()
            .map(|(destination, to)| route(destination, to))
            .collect(),
        tags: Tags::new(),
    }
}

fn interface(id: &str, index: Option<i32>, check: Option<bool>) -> InstanceInterface {
    InstanceInterface {
        id: id.into(),
        device_index: index,
        in_use: true,
        private_ips: Vec::new(),
        ipv6_addresses: Vec::new(),
        prefixes: Vec::new(),
        source_dest_check: check,
        security_groups: Vec::new(),
    }
}

fn instance(id: &str, check: Option<bool>, interfaces: Vec<InstanceInterface>) -> Instance {
    let instance = ec2::Instance {
        id: id.into(),
        state: None,
        instance_type: "".into(),
        zone: "".into(),
        vpc: None,
        subnet: None,
        private_dns_name: "".into(),
        public_dns_name: "".into(),
        private_ip: "".into(),
        public_ip: "".into(),
        interfaces,
        security_groups: Vec::new(),
        source_dest_check: check,
        tags: Tags::new(),
    };
    Instance::new(instance, &Cluster::new("", false), &Interner::default())
}

fn nodes() -> NodesByHop {
    let mut nodes = NodesByHop::default();
    nodes.add("i-1".into(), &node("n1", &["10.0.1.0/24", "fd00:0:0:1::/64"]));
    nodes.add("i-2".into(), &node("n2", &["10.0.2.0/24"]));
    nodes.add_interfaces(&instance("i-2", None, vec![interface("eni-2", Some(0), None)]));
    nodes
}

/// Lists as `destination node name`.
fn listed(tables: &[RouteTable]) -> Vec<String> {
    let line = |route: provider::Route| {
        let node = if route.blackhole {
            "blackhole"
        } else {
            route.node.as_deref().unwrap_or("?")
        };
        format!("{} {node} {}", route.destination, route.name)
    };
    list_routes(tables, &nodes(), |hop| {
        *hop == RouteHop::Instance("i-nat".into()) || matches!(hop, RouteHop::Interface(_))
    })
    .into_iter()
    .map(line)
    .collect()
}

#[test]
fn routes_to_instances_are_listed_with_their_nodes_and_foreign_ones_are_not() {
    let cases: [(&str, &str, Option<&str>); 14] = [
        ("10.0.1.0/24", "i-1", Some("10.0.1.0/24 n1 i-1 in rtb-1")),
        ("10.0.1.0/24", "i-1/eni-1", Some("10.0.1.0/24 n1 i-1 in rtb-1")),
        ("fd00:0:0:1::/64", "i-1", Some("fd00:0:0:1::/64 n1 i-1 in rtb-1")),
        ("10.0.2.0/24", "eni-2", Some("10.0.2.0/24 n2 eni-2 in rtb-1")),
        ("10.0.3.0/24", "i-3", Some("10.0.3.0/24 ? i-3 in rtb-1")),
        ("10.0.1.0/24", "!i-1", Some("10.0.1.0/24 n1 i-1 in rtb-1")),
        ("10.0.3.0/24", "!i-1", Some("10.0.3.0/24 blackhole i-1 in rtb-1")),
        ("10.0.3.0/24", "!eni-9", Some("10.0.3.0/24 blackhole eni-9 in rtb-1")),
        ("10.0.3.0/24", "i-nat", None),
        ("10.0.3.0/24", "eni-9", None),
        ("0.0.0.0/0", "igw-1", None),
        ("0.0.0.0/0", "!nat-1", None),
        ("10.0.1.0/24", "igw-1/i-1/eni-1", None),
        ("10.0.3.0/24", "", None),
    ];
    for (destination, to, expected) in cases {
        let tables = [table("rtb-1", &[(destination, to)])];
        assert_eq!(listed(&tables), Vec::from_iter(expected), "{destination} to {to}");
    }
}

#[test]
fn a_route_that_is_missing_in_some_tables_is_created_there_and_an_unwanted_one_goes_from_the_others()
 {
    let both =
        [table("rtb-1", &[("10.0.1.0/24", "i-1")]), table("rtb-2", &[("10.0.1.0/24", "i-1")])];
    assert_eq!(listed(&both), ["10.0.1.0/24 n1 i-1 in rtb-1,rtb-2"]);
    let wanted = [table("rtb-1", &[("10.0.1.0/24", "i-1")]), table("rtb-2", &[])];
    assert_eq!(listed(&wanted), [""; 0]);
    let unwanted = [table("rtb-1", &[("10.0.9.0/24", "i-1")]), table("rtb-2", &[])];
    assert_eq!(listed(&unwanted), ["10.0.9.0/24 n1 i-1 in rtb-1"]);
    let different =
        [table("rtb-1", &[("10.0.1.0/24", "i-1")]), table("rtb-2", &[("10.0.1.0/24", "i-2")])];
    assert_eq!(listed(&different), ["10.0.1.0/24 n2 i-2 in rtb-2"]);
}

// IN6
#[test]
fn of_several_nodes_of_one_instance_the_one_that_wants_the_network_has_the_route() {
    let mut nodes = NodesByHop::default();
    nodes.add("i-1".into(), &node("a", &["10.0.8.0/24"]));
    nodes.add("i-1".into(), &node("b", &["10.0.1.0/24"]));
    let tables = [table("rtb-1", &[("10.0.1.0/24", "i-1"), ("10.0.7.0/24", "i-1")])];
    let routes = list_routes(&tables, &nodes, |_| true);
    let names: Vec<_> = routes
        .iter()
        .map(|route| route.node.as_deref().unwrap_or("?"))
        .collect();
    assert_eq!(names, ["b", "a"]);
}

#[test]
fn names_of_routes_can_be_read_again() {
    for text in ["i-1 in rtb-1", "eni-1 in rtb-1,rtb-2"] {
        assert_eq!(text.parse::<RouteHandle>().unwrap().to_string(), text);
    }
    for text in ["", "i-1", "i-1 in ", "igw-1 in rtb-1", "kubernetes-10.0.0.0/24"] {
        assert_eq!(text.parse::<RouteHandle>(), Err(()), "{text:?}");
    }
}

#[test]
fn the_target_is_the_instance_or_the_primary_one_of_several_interfaces() {
    let primary = |check| interface("eni-0", Some(0), check);
    let second = || interface("eni-1", Some(1), Some(true));
    let cases = [
        (instance("i-1", Some(true), vec![]), Some((None, true))),
        (instance("i-1", None, vec![]), Some((None, true))),
        (instance("i-1", Some(false), vec![primary(Some(false))]), Some((None, false))),
        (instance("i-1", None, vec![primary(Some(false))]), Some((None, false))),
        (
            instance("i-1", Some(true), vec![second(), primary(Some(false))]),
            Some((Some("eni-0"), false)),
        ),
        (instance("i-1", None, vec![primary(Some(true)), second()]), Some((Some("eni-0"), true))),
        (
            instance("i-1", None, vec![primary(None), interface("eni-9", None, None)]),
            Some((None, true)),
        ),
        (instance("i-1", None, vec![second(), interface("eni-2", Some(2), None)]), None),
    ];
    for (instance, expected) in cases {
        let target = NodeTarget::for_instance(&instance)
            .map(|target| (target.interface, target.source_dest_check));
        let expected = expected.map(|(eni, checked)| (eni.map(EniId::from), checked));
        assert_eq!(target, expected, "{:?}", instance.interfaces);
    }
}

#[test]
fn creation_replaces_only_what_is_ours_or_leads_nowhere() {
    let target =
        NodeTarget::for_instance(&instance("i-1", None, vec![interface("eni-1", Some(0), None)]))
            .unwrap();
    let cases = [
        (None, CreateAction::Create),
        (Some("i-1"), CreateAction::Done),
        (Some("i-1/eni-1"), CreateAction::Done),
        (Some("eni-1"), CreateAction::Done),
        (Some("!i-1"), CreateAction::Done),
        (Some("!i-2"), CreateAction::Replace),
        (Some("!eni-2"), CreateAction::Replace),
        (Some("i-2"), CreateAction::Replace),
        (Some("i-nat"), CreateAction::DestinationInUse("i-nat".into())),
        (Some("igw-1"), CreateAction::DestinationInUse("igw-1".into())),
        (Some("igw-1/i-1"), CreateAction::DestinationInUse("igw-1".into())),
        (Some("!nat-1"), CreateAction::DestinationInUse("nat-1".into())),
        (Some(""), CreateAction::DestinationInUse("something that is not an instance".into())),
    ];
    for (there, expected) in cases {
        let routes: Vec<_> = there.iter().map(|to| ("10.0.1.0/24", *to)).collect();
        let existing = existing_route(&table("rtb-1", &routes), &net("10.0.1.0/24"));
        let decision =
            plan_creation(&existing, &target, |hop| *hop == RouteHop::Instance("i-nat".into()));
        assert_eq!(decision, expected, "{there:?}");
    }
}

#[test]
fn deletion_takes_nothing_but_the_route_that_was_listed() {
    let cases = [
        (None, "i-1", false, DeleteAction::Done),
        (Some("i-1"), "i-1", false, DeleteAction::Delete),
        (Some("i-1/eni-1"), "i-1", false, DeleteAction::Delete),
        (Some("!i-1"), "i-1", false, DeleteAction::Delete),
        (Some("!i-1"), "i-1", true, DeleteAction::Delete),
        (Some("i-1"), "i-1", true, DeleteAction::RouteInUse),
        (Some("i-2"), "i-1", false, DeleteAction::Done),
        (Some("!i-2"), "i-1", true, DeleteAction::Done),
        (Some("eni-1"), "i-1", false, DeleteAction::Done),
        (Some("igw-1"), "i-1", false, DeleteAction::Done),
        (Some("!nat-1"), "i-1", true, DeleteAction::Done),
    ];
    for (there, listed, was_blackhole, expected) in cases {
        let routes: Vec<_> = there.iter().map(|to| ("10.0.1.0/24", *to)).collect();
        let existing = existing_route(&table("rtb-1", &routes), &net("10.0.1.0/24"));
        assert_eq!(
            plan_deletion(&existing, &listed.parse().unwrap(), was_blackhole),
            expected,
            "{there:?} {listed}"
        );
    }
}

#[test]
fn changes_show_in_the_tables_that_were_read_before() {
    let mut table = table("rtb-1", &[("10.0.1.0/24", "i-1"), ("0.0.0.0/0", "igw-1")]);
    let target = NodeTarget::for_instance(&instance("i-2", None, vec![])).unwrap();
    let at = |table: &RouteTable| existing_route(table, &net("10.0.1.0/24"));
    record_change(&mut table, net("10.0.1.0/24"), Some(&target));
    assert_eq!(
        at(&table),
        ExistingRoute::Hop { hop: RouteHop::Instance("i-2".into()), blackhole: false }
    );
    record_change(&mut table, net("10.0.1.0/24"), None);
    assert_eq!(at(&table), ExistingRoute::None);
    assert_eq!(table.routes.len(), 1);
}

#[test]
fn bits_behind_the_prefix_do_not_count() {
    let mut nodes = NodesByHop::default();
    nodes.add("i-1".into(), &node("b", &["10.0.1.7/24"]));
    nodes.add("i-1".into(), &node("a", &["10.0.2.0/24"]));
    let tables = [table("rtb-1", &[("10.0.1.0/24", "i-1")])];
    assert_eq!(list_routes(&tables, &nodes, |_| true)[0].node.as_deref(), Some("b"));
    let there = ExistingRoute::Hop { hop: RouteHop::Instance("i-1".into()), blackhole: false };
    assert_eq!(existing_route(&tables[0], &net("10.0.1.7/24")), there);
}

#[test]
fn hops_that_no_node_accounts_for_are_asked_about_once_unless_they_lead_nowhere() {
    let one = table(
        "rtb-1",
        &[
            ("10.0.1.0/24", "i-1"),
            ("10.0.5.0/24", "i-5"),
            ("10.0.6.0/24", "!i-6"),
            ("0.0.0.0/0", "igw-1"),
        ],
    );
    let other = table(
        "rtb-2",
        &[("10.0.5.0/24", "i-5"), ("10.0.2.0/24", "eni-2"), ("10.0.4.0/24", "eni-4")],
    );
    let expected = [RouteHop::Instance("i-5".into()), RouteHop::Interface("eni-4".into())];
    assert_eq!(unmatched_hops(&[one, other], &nodes()), expected);
}
