use jiff::Timestamp;

use super::*;
use crate::{
    k8s::{AddressType, NodeAddress, Taint, TaintEffect, well_known},
    provider::{CloudError, ErrorKind},
};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn nets(list: &[&str]) -> Vec<IpNet> {
    list.iter().map(|text| net(text)).collect()
}

/// A node with pod networks; the later in the alphabet, the younger.
pub(super) fn node(name: &str, cidrs: &[&str]) -> Arc<NodeView> {
    let mut node = NodeView::named(name);
    node.uid = format!("uid-{name}").into();
    node.created = Timestamp::from_second(i64::from(name.as_bytes()[0])).unwrap();
    node.pod_cidrs = cidrs.iter().map(|cidr| Arc::from(*cidr)).collect();
    Arc::new(node)
}

fn with_addresses(node: &NodeView, addresses: &[&str]) -> Arc<NodeView> {
    let addresses = addresses
        .iter()
        .map(|address| NodeAddress::new(AddressType::InternalIp, *address))
        .collect();
    Arc::new(NodeView { addresses, ..node.clone() })
}

/// `node destination`; `-` for no node, `!` behind it for a black hole.
pub(super) fn route(text: &str) -> Route {
    let mut words = text.split(' ');
    let (node, destination) = (words.next().unwrap(), words.next().unwrap());
    Route {
        name: text.into(),
        node: (node != "-").then(|| Arc::from(node)),
        node_addresses: None,
        destination: net(destination),
        blackhole: words.next() == Some("!"),
    }
}

fn routes(list: &[&str]) -> Vec<Route> {
    list.iter().map(|text| route(text)).collect()
}

#[derive(Default)]
struct Case {
    ours: Vec<Arc<NodeView>>,
    foreign: Vec<Arc<NodeView>>,
    routes: Vec<Route>,
    failures: ChangeBackoff,
}

impl Case {
    fn plan(&self) -> RoutePlan {
        plan(&self.input(&cluster()))
    }

    fn input<'a>(&'a self, cluster: &'a [IpNet]) -> PlanInput<'a> {
        PlanInput {
            ours: &self.ours,
            foreign: &self.foreign,
            routes: &self.routes,
            cluster,
            failures: &self.failures,
            now: Duration::from_secs(100),
        }
    }
}

fn cluster() -> Vec<IpNet> {
    nets(&["10.244.0.0/16", "fd00::/48"])
}

/// Changes of a plan, in words.
fn words(plan: &RoutePlan) -> Vec<String> {
    let step = |step: &RouteStep| {
        let deletes = step
            .delete
            .iter()
            .map(|route| format!("delete {}", route.name));
        let create = step
            .create
            .iter()
            .map(|node| format!("create {} {}", node.name, step.destination));
        deletes.chain(create).collect::<Vec<_>>().join(", then ")
    };
    plan.steps.iter().map(step).collect()
}

/// Conditions if every creation succeeds, in words.
fn conditions(plan: &RoutePlan) -> Vec<String> {
    let word = |node: &NodePlan| {
        format!("{} {:?}", node.node.name, network_status(node, |_| CreateResult::Created).unwrap())
    };
    plan.nodes.iter().map(word).collect()
}

fn complaints(plan: &RoutePlan) -> Vec<String> {
    plan.rejected_cidrs
        .iter()
        .map(|complaint| complaint.note(&nets(&["10.244.0.0/16", "fd00::/48"])))
        .collect()
}

fn case(ours: &[(&str, &[&str])], listed: &[&str]) -> Case {
    let ours = ours.iter().map(|(name, cidrs)| node(name, cidrs)).collect();
    Case { ours, routes: routes(listed), ..Case::default() }
}

#[test]
fn responsible_for_what_a_cluster_network_contains() {
    let cases: [(&str, &[&str], &[&str]); 4] = [
        (
            "10.244.0.0/16",
            &["10.244.0.0/24", "10.244.10.0/24", "10.244.255.0/24", "10.244.0.0/16"],
            // The last shares the first address, the one before lies around.
            &["10.224.0.0/24", "10.0.10.0/24", "10.255.255.0/24", "10.0.0.0/8", "10.244.0.0/15"],
        ),
        (
            "10.244.0.0/14",
            &["10.244.0.0/24", "10.247.255.0/24"],
            &["10.248.0.0/24", "10.243.255.0/24", "10.244.0.0/13"],
        ),
        ("a00:100::/10", &["a00:100::/24"], &["b00:100::/24", "a00::/8"]),
        ("10.0.0.0/16", &[], &["::/0", "0.0.0.0/0", "a00::/104"]),
    ];
    for (cluster, yes, no) in cases {
        let cluster = nets(&[cluster]);
        assert!(yes.iter().all(|text| is_within(&cluster, &net(text))), "{cluster:?}");
        assert!(!no.iter().any(|text| is_within(&cluster, &net(text))), "{cluster:?}");
    }
}

#[test]
fn dual_stack_tables_become_as_the_nodes_want_them() {
    let nodes: [(&str, &[&str]); 2] = [
        ("a", &["10.244.0.0/24", "fd00:0:0:1::/64"]),
        ("b", &["10.244.1.0/24", "fd00:0:0:2::/64"]),
    ];
    let all = ["a 10.244.0.0/24", "b 10.244.1.0/24", "a fd00:0:0:1::/64", "b fd00:0:0:2::/64"];
    let cases: [(&str, &[&str], &[&str]); 5] = [
        (
            "no routes",
            &[],
            &[
                "create a 10.244.0.0/24",
                "create b 10.244.1.0/24",
                "create a fd00:0:0:1::/64",
                "create b fd00:0:0:2::/64",
            ],
        ),
        ("all there", &all, &[]),
        (
            "swapped between nodes",
            &["b 10.244.0.0/24", "a 10.244.1.0/24", all[2], all[3]],
            &[
                "delete b 10.244.0.0/24, then create a 10.244.0.0/24",
                "delete a 10.244.1.0/24, then create b 10.244.1.0/24",
            ],
        ),
        ("some there", &all[..3], &["create b fd00:0:0:2::/64"]),
        (
            "too many",
            &[all[0], all[1], all[2], all[3], "c 10.244.2.0/24", "- fd00:0:0:3::/64"],
            &["delete c 10.244.2.0/24", "delete - fd00:0:0:3::/64"],
        ),
    ];
    for (name, listed, wanted) in cases {
        let plan = case(&nodes, listed).plan();
        assert_eq!(words(&plan), wanted, "{name}");
        assert_eq!(conditions(&plan), ["a Ready", "b Ready"], "{name}");
        assert!(plan.rejected_cidrs.is_empty(), "{name}");
    }
}

#[test]
fn single_stack_tables_become_as_the_nodes_want_them() {
    let nodes: [(&str, &[&str]); 2] = [("a", &["10.244.0.0/24"]), ("b", &["10.244.1.0/24"])];
    let (a, b) = ("a 10.244.0.0/24", "b 10.244.1.0/24");
    let cases: [(&str, &[&str], &[&str]); 9] = [
        ("both there", &[a, b], &[]),
        ("one missing", &[a], &["create b 10.244.1.0/24"]),
        ("none", &[], &["create a 10.244.0.0/24", "create b 10.244.1.0/24"]),
        (
            "too many",
            &[a, b, "c 10.244.2.0/24", "c 10.244.3.0/24"],
            &["delete c 10.244.2.0/24", "delete c 10.244.3.0/24"],
        ),
        (
            "one leads to another node",
            &[a, "a 10.244.1.0/24"],
            &["delete a 10.244.1.0/24, then create b 10.244.1.0/24"],
        ),
        ("black hole in range", &[a, b, "- 10.244.9.0/24 !"], &["delete - 10.244.9.0/24 !"]),
        ("black hole out of range", &[a, b, "- 10.1.2.0/24 !"], &[]),
        (
            "black hole where a route should be",
            &["a 10.244.0.0/24 !", b],
            &["delete a 10.244.0.0/24 !, then create a 10.244.0.0/24"],
        ),
        ("black hole beside a route", &[a, "- 10.244.0.0/24 !", b], &["delete - 10.244.0.0/24 !"]),
    ];
    for (name, listed, wanted) in cases {
        let plan = case(&nodes, listed).plan();
        assert_eq!(words(&plan), wanted, "{name}");
        assert_eq!(conditions(&plan), ["a Ready", "b Ready"], "{name}");
    }
}

#[test]
fn a_node_without_pod_networks_has_no_condition_unless_a_route_is_left() {
    let plan = case(&[("a", &["10.244.0.0/24"]), ("b", &[])], &["a 10.244.0.0/24"]).plan();
    assert_eq!((words(&plan), conditions(&plan)), (vec![], vec!["a Ready".to_owned()]));
    let plan = case(&[("b", &[])], &["b 10.244.1.0/24"]).plan();
    assert_eq!(words(&plan), ["delete b 10.244.1.0/24"]);
    assert_eq!(conditions(&plan), ["b NotReady"]);
}

#[test]
fn a_wider_route_that_shares_the_base_address_is_left_alone() {
    let plan = case(&[], &["- 10.244.0.0/15", "x 10.0.0.0/8", "x 10.244.0.0/16"]).plan();
    assert_eq!(words(&plan), ["delete x 10.244.0.0/16"]);
}

#[test]
fn networks_are_compared_and_not_their_texts() {
    let mut case = case(
        &[("a", &["10.244.0.1/24", "FD00:0:0:1:0::/64"])],
        &["a 10.244.0.0/24", "a fd00:0:0:1::/64"],
    );
    let plan = case.plan();
    assert_eq!((words(&plan), conditions(&plan)), (vec![], vec!["a Ready".to_owned()]));
    case.routes.clear();
    assert_eq!(words(&case.plan()), ["create a 10.244.0.0/24", "create a fd00:0:0:1::/64"]);
    case.ours = vec![node("a", &["10.244.0.0/24", "10.244.0.7/24"])];
    let plan = case.plan();
    assert_eq!(
        (words(&plan), complaints(&plan)),
        (vec!["create a 10.244.0.0/24".to_owned()], vec![]),
        "given twice"
    );
}

#[test]
fn routes_are_replaced_where_the_provider_compares_addresses_and_they_differ() {
    let case = |have: &[&str], listed: Option<&[&str]>| {
        let mut route = route("a 10.244.0.0/24");
        route.node_addresses = listed.map(|list| {
            list.iter()
                .map(|address| NodeAddress::new(AddressType::InternalIp, *address))
                .collect()
        });
        Case {
            ours: vec![with_addresses(&node("a", &["10.244.0.0/24"]), have)],
            routes: vec![route],
            ..Case::default()
        }
    };
    let replaced = ["delete a 10.244.0.0/24, then create a 10.244.0.0/24"];
    assert_eq!(words(&case(&["1", "2"], Some(&[])).plan()), replaced, "none listed");
    assert_eq!(words(&case(&["1", "2"], Some(&["1", "3"])).plan()), replaced, "one differs");
    assert_eq!(words(&case(&["1", "2"], Some(&["1", "2", "3"])).plan()), replaced, "one too many");
    assert_eq!(
        words(&case(&["1", "2"], Some(&["2", "1"])).plan()),
        [""; 0],
        "the order does not matter"
    );
    assert_eq!(words(&case(&["1"], None).plan()), [""; 0], "not compared");
}

#[test]
fn a_working_route_is_not_taken_away_while_its_replacement_has_to_wait() {
    let mut listed = route("a 10.244.0.0/24");
    listed.node_addresses = Some(Vec::new());
    let mut case = Case {
        ours: vec![with_addresses(&node("a", &["10.244.0.0/24"]), &["1"])],
        routes: vec![listed],
        ..Case::default()
    };
    let key = ChangeKey::create(&case.ours[0], net("10.244.0.0/24"));
    let error = CloudError::new(ErrorKind::InvalidInput, "no");
    case.failures
        .record_failure(key.clone(), &error, Duration::from_secs(99));
    let plan = case.plan();
    assert_eq!((words(&plan), &plan.backed_off), (vec![], &vec![key]));
}

#[test]
fn pod_networks_that_get_no_route_are_named_with_their_node() {
    let plan = case(
        &[("a", &["10.1.0.0/24", "10.244.1.0/24"]), ("b", &["10.244.0.0", "10.240.0.0/12"])],
        &[],
    )
    .plan();
    assert_eq!(words(&plan), ["create a 10.244.1.0/24"]);
    assert_eq!(conditions(&plan), ["a NotReady", "b NotReady"]);
    assert_eq!(
        complaints(&plan),
        [
            "No route for node a: its pod CIDR 10.1.0.0/24 is outside the cluster CIDR 10.244.0.0/16,fd00::/48",
            "No route for node b: its pod CIDR 10.240.0.0/12 is outside the cluster CIDR 10.244.0.0/16,fd00::/48",
            "No route for node b: its pod CIDR \"10.244.0.0\" is not a network",
        ]
    );
    let reasons: Vec<_> = plan
        .rejected_cidrs
        .iter()
        .map(RejectedPodCidr::event_reason)
        .collect();
    assert_eq!(reasons, ["PodCIDROutOfRange", "PodCIDROutOfRange", "InvalidPodCIDR"]);
}

#[test]
fn of_two_nodes_with_one_pod_network_the_one_with_the_route_keeps_it() {
    let nodes: [(&str, &[&str]); 2] = [("a", &["10.244.0.0/24"]), ("b", &["10.244.0.9/24"])];
    let told = |loser: &str, cidr: &str, owner: &str| {
        [format!(
            "No route for node {loser}: its pod CIDR {cidr} is also that of node {owner}, which has the route"
        )]
    };
    let plan = case(&nodes, &["b 10.244.0.0/24"]).plan();
    assert_eq!(words(&plan), [""; 0]);
    assert_eq!(conditions(&plan), ["a NotReady", "b Ready"]);
    assert_eq!(complaints(&plan), told("a", "10.244.0.0/24", "b"));
    let plan = case(&nodes, &[]).plan();
    assert_eq!(words(&plan), ["create a 10.244.0.0/24"], "otherwise the older one");
    assert_eq!(conditions(&plan), ["a Ready", "b NotReady"]);
    assert_eq!(complaints(&plan), told("b", "10.244.0.9/24", "a"));
    let plan = case(&nodes, &["b 10.244.0.0/24 !"]).plan();
    assert_eq!(
        words(&plan),
        ["delete b 10.244.0.0/24 !, then create a 10.244.0.0/24"],
        "a black hole is no route"
    );
    let plan = case(&nodes, &["b 10.244.0.0/24", "a 10.244.0.0/24"]).plan();
    assert_eq!(words(&plan), ["delete b 10.244.0.0/24"], "both have one");
}

#[test]
fn nodes_of_another_cloud_their_routes_and_their_networks_are_left_alone() {
    let foreign = vec![node("f", &["10.244.8.0/24"]), node("g", &["fd00:0:0:8::/64"])];
    let listed = routes(&[
        "f 10.244.8.0/24",
        "f 10.244.9.0/24",
        "- 10.244.8.0/24",
        "- 10.244.8.128/25 !",
        "x 10.244.8.0/23",
        "x 10.244.9.0/24",
        "x fd00:0:0:8:1::/80",
    ]);
    let ours = vec![
        node("a", &["10.244.8.0/24", "10.244.8.64/26", "10.244.7.0/24"]),
        node("b", &["10.244.9.0/24"]),
    ];
    let plan = Case { ours, foreign, routes: listed, ..Case::default() }.plan();
    assert_eq!(words(&plan), ["create a 10.244.7.0/24", "delete x 10.244.9.0/24"]);
    assert_eq!(conditions(&plan), ["a NotReady", "b NotReady"]);
    assert_eq!(plan.managed_routes, 1);
    let reasons: Vec<_> = plan
        .rejected_cidrs
        .iter()
        .map(|c| (&*c.cidr, c.event_reason()))
        .collect();
    let conflict = "PodCIDRConflict";
    assert_eq!(
        reasons,
        [("10.244.8.0/24", conflict), ("10.244.8.64/26", conflict), ("10.244.9.0/24", conflict)]
    );
}

#[test]
fn a_failed_change_waits_alone_and_what_depends_on_it_waits_with_it() {
    let mut case = case(
        &[("a", &["10.244.0.0/24"]), ("b", &["10.244.1.0/24"]), ("c", &["10.244.2.0/24"])],
        &["x 10.244.1.0/24", "x 10.244.3.0/24"],
    );
    let error = CloudError::new(ErrorKind::InvalidInput, "no");
    let create = ChangeKey::create(&case.ours[0], net("10.244.0.0/24"));
    let deletes = case
        .routes
        .iter()
        .map(ChangeKey::delete)
        .collect::<Vec<_>>();
    for key in deletes.iter().chain([&create]) {
        case.failures
            .record_failure(key.clone(), &error, Duration::from_secs(99));
    }
    let plan = case.plan();
    assert_eq!(words(&plan), ["create c 10.244.2.0/24"]);
    assert_eq!(conditions(&plan), ["a NotReady", "b NotReady", "c Ready"]);
    let waiting = ChangeKey::create(&case.ours[1], net("10.244.1.0/24"));
    let held: HashSet<_> = plan.backed_off.iter().cloned().collect();
    assert_eq!(held, HashSet::from([create, deletes[0].clone(), deletes[1].clone(), waiting]));
    assert_eq!(plan.required_changes().len(), 5);
}

#[test]
fn more_than_half_of_several_routes_is_drastic() {
    let nodes: [(&str, &[&str]); 1] = [("a", &["10.244.0.0/24"])];
    let cases: [(&[&str], bool); 5] = [
        (&["a 10.244.0.0/24", "b 10.244.1.0/24"], false),
        (&["a 10.244.0.0/24", "b 10.244.1.0/24", "c 10.244.2.0/24"], true),
        // One route is not several; what moves to another node is not lost; what is out of range
        // does not count.
        (&["b 10.244.1.0/24"], false),
        (&["b 10.244.0.0/24", "x 10.244.1.0/24"], false),
        (&["a 10.244.0.0/24", "b 10.0.1.0/24", "c 10.0.2.0/24"], false),
    ];
    for (listed, drastic) in cases {
        let mut plan = case(&nodes, listed).plan();
        assert_eq!(plan.deletes_most_routes(), drastic, "{listed:?}");
        plan.keep_unclaimed();
        assert!(
            !plan.deletes_most_routes() && plan.steps.iter().all(|step| step.create.is_some()),
            "{listed:?}"
        );
    }
}

#[test]
fn what_is_pending_waits_without_a_verdict() {
    let mut waiting = case(
        &[("a", &["10.244.0.0/24"]), ("b", &["10.244.1.0/24"])],
        &["c 10.244.1.0/24", "d 10.244.2.0/24"],
    );
    let now = Duration::from_secs(100);
    let create = ChangeKey::create(&waiting.ours[0], net("10.244.0.0/24"));
    let delete = ChangeKey::delete(&waiting.routes[0]);
    for change in [&create, &delete] {
        waiting
            .failures
            .record_pending(change.clone(), Duration::from_secs(5), "runs", now);
    }
    // The creation for `b` follows the deletion of the other route.
    let planned = waiting.plan();
    assert_eq!(words(&planned), ["delete d 10.244.2.0/24"]);
    assert_eq!(planned.backed_off[..2], [create.clone(), delete.clone()]);
    for node in &planned.nodes {
        assert_eq!(node.cidrs, [PodCidrState::Pending], "{}", node.node.name);
    }
    // A deletion that failed is a verdict.
    let failed = CloudError::transient("no");
    waiting.failures.record_failure(delete, &failed, now);
    assert_eq!(waiting.plan().nodes[1].cidrs, [PodCidrState::BackedOff]);
    // What has taken too long is one, too.
    waiting
        .failures
        .record_pending(create, Duration::from_secs(1000), "runs", Duration::ZERO);
    let late = plan(&PlanInput { now: Duration::from_secs(701), ..waiting.input(&cluster()) });
    assert_eq!(late.nodes[0].cidrs, [PodCidrState::BackedOff]);
}

/// While a route is pending, only a node that has no condition gets one: pods would be scheduled to
/// it. One that is not initialised has a taint.
#[test]
fn a_pending_route_leaves_the_condition_as_it_is() {
    let states = [PodCidrState::Pending, PodCidrState::Create(net("10.244.1.0/24"))];
    let status = |node: &NodeView, state: PodCidrState| {
        let plan = NodePlan { node: Arc::new(node.clone()), cidrs: vec![state] };
        network_status(&plan, |_| CreateResult::Pending)
    };
    let bare = node("a", &[]);
    let with_condition = NodeView {
        network_unavailable: Some(NodeCondition {
            status: ConditionStatus::False,
            reason: "RouteCreated".into(),
        }),
        ..(*bare).clone()
    };
    let taint = Taint {
        key: well_known::TAINT_UNINITIALIZED.into(),
        value: "true".into(),
        effect: TaintEffect::NoSchedule,
    };
    let uninitialized = NodeView { taints: [taint].into(), ..(*bare).clone() };
    for state in states {
        assert_eq!(status(&bare, state), Some(NetworkStatus::NotReady));
        assert_eq!(status(&with_condition, state), None);
        assert_eq!(status(&uninitialized, state), None);
    }
}

#[test]
fn conditions_follow_the_routes() {
    use CreateResult::{Created, Failed, Unknown};
    let (first, second) = (net("10.244.0.0/24"), net("fd00::/64"));
    let cases: [(&[PodCidrState], [CreateResult; 2], Option<NetworkStatus>); 11] = [
        (&[], [Created, Created], Some(NetworkStatus::NotReady)),
        (&[PodCidrState::Routed], [Failed, Failed], Some(NetworkStatus::Ready)),
        (
            &[PodCidrState::Routed, PodCidrState::Create(second)],
            [Failed, Created],
            Some(NetworkStatus::Ready),
        ),
        (
            &[PodCidrState::Routed, PodCidrState::Create(second)],
            [Created, Failed],
            Some(NetworkStatus::NotReady),
        ),
        (
            &[PodCidrState::Create(first), PodCidrState::Create(second)],
            [Created, Created],
            Some(NetworkStatus::Ready),
        ),
        (
            &[PodCidrState::Create(first), PodCidrState::Create(second)],
            [Failed, Created],
            Some(NetworkStatus::NotReady),
        ),
        (&[PodCidrState::Create(first), PodCidrState::Create(second)], [Failed, Unknown], None),
        // The node has no condition yet.
        (
            &[PodCidrState::Routed, PodCidrState::Pending],
            [Created, Created],
            Some(NetworkStatus::NotReady),
        ),
        (
            &[PodCidrState::Routed, PodCidrState::BackedOff],
            [Created, Created],
            Some(NetworkStatus::NotReady),
        ),
        (
            &[PodCidrState::Rejected, PodCidrState::Routed],
            [Created, Created],
            Some(NetworkStatus::NotReady),
        ),
        (
            &[PodCidrState::Rejected, PodCidrState::Create(second)],
            [Created, Created],
            Some(NetworkStatus::NotReady),
        ),
    ];
    for (wants, created, expected) in cases {
        let plan = NodePlan { node: node("a", &[]), cidrs: wants.to_vec() };
        let created = |destination| {
            if destination == first {
                created[0]
            } else {
                created[1]
            }
        };
        assert_eq!(network_status(&plan, created), expected, "{wants:?}");
    }
}

#[test]
fn a_condition_is_written_when_status_or_reason_differ() {
    let have = |status, reason: &str| Some(NodeCondition { status, reason: reason.into() });
    let (no, yes, unknown) =
        (ConditionStatus::False, ConditionStatus::True, ConditionStatus::Unknown);
    let cases = [
        (None, NetworkStatus::Ready, true),
        (None, NetworkStatus::NotReady, true),
        (have(no, "RouteCreated"), NetworkStatus::Ready, false),
        (have(yes, "NoRouteCreated"), NetworkStatus::NotReady, false),
        (have(no, "CalicoIsUp"), NetworkStatus::Ready, true),
        (have(no, "ExternalCNI"), NetworkStatus::Ready, true),
        (have(yes, "CalicoIsDown"), NetworkStatus::NotReady, true),
        (have(no, "RouteCreated"), NetworkStatus::NotReady, true),
        (have(unknown, "RouteCreated"), NetworkStatus::Ready, true),
    ];
    for (have, network, written) in cases {
        assert_eq!(!network.matches_condition(have.as_ref()), written, "{have:?} {network:?}");
    }
}
