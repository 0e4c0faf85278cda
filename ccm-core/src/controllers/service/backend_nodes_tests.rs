use proptest::prelude::*;

use super::*;
use crate::k8s::{
    AddressType, ConditionStatus, EndpointView, NodeAddress, NodeCondition, Protocol, SlicePort,
    Taint, TaintEffect,
};

fn node(name: &str) -> NodeView {
    let provider_id = Some(Arc::from(format!("fake://{name}")));
    NodeView { uid: name.into(), provider_id, ..NodeView::named(name) }
}

fn labelled(labels: &[(&str, &str)], node: NodeView) -> NodeView {
    NodeView {
        has_labels: true,
        labels: labels.iter().copied().collect(),
        ..node
    }
}

fn excluded(value: &str, node: NodeView) -> NodeView {
    labelled(&[(well_known::LABEL_EXCLUDE_FROM_LOAD_BALANCERS, value)], node)
}

fn tainted(key: &str, node: NodeView) -> NodeView {
    let taint = Taint {
        key: key.into(),
        value: "".into(),
        effect: TaintEffect::NoSchedule,
    };
    NodeView {
        taints: node.taints.iter().cloned().chain([taint]).collect(),
        ..node
    }
}

fn ready(status: Option<ConditionStatus>, node: NodeView) -> NodeView {
    NodeView {
        ready: status.map(|status| NodeCondition { status, reason: Arc::from("") }),
        ..node
    }
}

fn deleting(node: NodeView) -> NodeView {
    NodeView { deleting: true, ..node }
}

fn with_id(id: Option<&str>, node: NodeView) -> NodeView {
    NodeView { provider_id: id.map(Arc::from), ..node }
}

fn leaving(node: NodeView) -> NodeView {
    tainted(well_known::TAINT_TO_BE_DELETED, node)
}

fn news(old: Option<&NodeView>, new: Option<&NodeView>) -> Option<Urgency> {
    urgency(old, new, NodeTarget::Address)
}

fn set(nodes: &[NodeView]) -> BackendNodes {
    BackendNodes::new(
        &nodes.iter().cloned().map(Arc::new).collect::<Vec<_>>(),
        &[],
        NodeTarget::Address,
    )
}

#[test]
fn the_label_excludes_unless_its_value_is_one_of_gos_spellings_of_false() {
    for value in ["", "true", "True", "1", "t", "T", "TRUE", "foo", "no", "fAlse", " false"] {
        assert!(!is_backend(&excluded(value, node("a"))), "{value:?}");
    }
    for value in ["0", "f", "F", "false", "False", "FALSE"] {
        assert!(is_backend(&excluded(value, node("a"))), "{value:?}");
    }
}

#[test]
fn a_node_is_a_backend_unless_it_leaves_or_is_excluded() {
    use ConditionStatus::{False, True, Unknown};
    for (name, node, backend) in [
        ("plain", node("a"), true),
        ("without provider ID", with_id(None, node("a")), true),
        ("Ready", ready(Some(True), node("a")), true),
        ("not Ready", ready(Some(False), node("a")), true),
        ("Ready unknown", ready(Some(Unknown), node("a")), true),
        ("cordoned", NodeView { unschedulable: true, ..node("a") }, true),
        ("uninitialised", tainted(well_known::TAINT_UNINITIALIZED, node("a")), true),
        ("shut down", tainted(well_known::TAINT_SHUTDOWN, node("a")), true),
        ("another taint", tainted("x", node("a")), true),
        ("leaving by the autoscaler", leaving(node("a")), false),
        ("being deleted", deleting(node("a")), false),
        ("excluded", excluded("", node("a")), false),
    ] {
        assert_eq!(is_backend(&node), backend, "{name}");
    }
}

#[test]
fn changes_of_exclusion_and_identity_are_news_whatever_else_the_node_is() {
    use ConditionStatus::False;
    use Urgency::{Now, Soon};
    let off = |node| excluded("true", node);
    let no_id = || with_id(None, node("a"));
    let other_id = |node| with_id(Some("fake://other"), node);
    for (name, old, new, urgency_of_it) in [
        ("exclude label added", node("a"), off(node("a")), Some(Now)),
        ("exclude label removed", off(node("a")), node("a"), Some(Soon)),
        ("provider ID set", no_id(), node("a"), Some(Soon)),
        ("provider ID unset", node("a"), no_id(), Some(Now)),
        ("provider ID changed", node("a"), other_id(node("a")), Some(Now)),
        ("excluded while tainted", leaving(node("a")), off(leaving(node("a"))), Some(Now)),
        ("included while tainted", off(leaving(node("a"))), leaving(node("a")), Some(Soon)),
        ("provider ID while tainted", leaving(no_id()), leaving(node("a")), Some(Soon)),
        (
            "excluded while not Ready",
            ready(Some(False), node("a")),
            off(ready(Some(False), node("a"))),
            Some(Now),
        ),
        (
            "provider ID while not Ready",
            ready(Some(False), no_id()),
            ready(Some(False), node("a")),
            Some(Soon),
        ),
        ("excluded without provider ID", no_id(), off(no_id()), Some(Now)),
        ("included without provider ID", off(no_id()), no_id(), Some(Soon)),
        // What upstream acts upon although it changes no set: nothing is done here.
        ("provider ID while excluded", off(no_id()), off(node("a")), None),
    ] {
        assert_eq!(news(Some(&old), Some(&new)), urgency_of_it, "{name}");
    }
}

#[test]
fn taints_labels_and_conditions_are_no_news() {
    use ConditionStatus::{False, True};
    let off = |node| excluded("true", node);
    let no_id = || with_id(None, node("a"));
    let is = |status, node| ready(Some(status), node);
    for (name, old, new) in [
        ("nothing", node("a"), node("a")),
        ("excluded both", off(node("a")), excluded("1", node("a"))),
        ("other taint", node("a"), tainted("x", node("a"))),
        ("autoscaler's taint while excluded", off(node("a")), off(leaving(node("a")))),
        ("Ready false to unset", is(False, node("a")), node("a")),
        ("Ready false to true", is(False, node("a")), is(True, node("a"))),
        ("readiness while tainted", is(False, leaving(node("a"))), is(True, leaving(node("a")))),
        ("readiness while excluded", is(False, off(node("a"))), is(True, off(node("a")))),
        ("readiness without provider ID", is(False, no_id()), is(True, no_id())),
        ("cordon", node("a"), NodeView { unschedulable: true, ..node("a") }),
    ] {
        assert_eq!(news(Some(&old), Some(&new)), None, "{name}");
        assert_eq!(news(Some(&new), Some(&old)), None, "{name}, back");
    }
}

/// By itself the taint is no reason to act (KEP-3458): connections drain. That it goes is: the node
/// serves again.
#[test]
fn the_autoscalers_taint_is_news_when_it_goes() {
    use ConditionStatus::False;
    let no_id = with_id(None, node("a"));
    for (name, node) in [
        ("plain", node("a")),
        ("not Ready", ready(Some(False), node("a"))),
        ("without ID", no_id),
    ] {
        assert_eq!(news(Some(&node), Some(&leaving(node.clone()))), None, "{name}: added");
        assert_eq!(
            news(Some(&leaving(node.clone())), Some(&node)),
            Some(Urgency::Soon),
            "{name}: removed"
        );
    }
}

#[test]
fn a_change_of_addresses_concerns_only_load_balancers_that_use_them() {
    let address = NodeAddress::new(AddressType::InternalIp, "10.0.0.1");
    let moved = NodeView { addresses: [address].into(), ..node("a") };
    for (target, concerns) in [(NodeTarget::Address, true), (NodeTarget::Instance, false)] {
        let set =
            |node: &NodeView| BackendNodes::new(&[Arc::new(node.clone())], &[], target).fingerprint;
        assert_eq!(
            urgency(Some(&node("a")), Some(&moved), target).is_some(),
            concerns,
            "{target:?}"
        );
        assert_eq!(set(&node("a")) != set(&moved), concerns, "{target:?}");
    }
    let other_id = with_id(Some("fake://other"), node("a"));
    assert_eq!(
        urgency(Some(&node("a")), Some(&other_id), NodeTarget::Instance),
        Some(Urgency::Now)
    );
}

/// W28: upstream compares name, provider ID and exclusion alone.
#[test]
fn addresses_zones_namesakes_and_deletions_are_news_as_well() {
    use Urgency::{Later, Now, Soon};
    let address = NodeAddress::new(AddressType::InternalIp, "10.0.0.1");
    let moved = NodeView { addresses: [address].into(), ..node("a") };
    let namesake = NodeView { uid: "b".into(), ..node("a") };
    let zoned = labelled(&[(well_known::LABEL_ZONE, "z")], node("a"));
    let waiting = tainted(well_known::TAINT_UNINITIALIZED, node("a"));
    for (name, old, new, urgency_of_it) in [
        ("address", Some(node("a")), Some(moved.clone()), Some(Soon)),
        ("zone", Some(node("a")), Some(zoned), Some(Soon)),
        ("namesake", Some(node("a")), Some(namesake), Some(Soon)),
        ("deletion begins", Some(node("a")), Some(deleting(node("a"))), Some(Now)),
        ("gone", Some(node("a")), None, Some(Now)),
        ("gone after its deletion began", Some(deleting(node("a"))), None, None),
        ("excluded and gone", Some(excluded("", node("a"))), None, None),
        ("joined", None, Some(node("a")), Some(Soon)),
        ("joined, to be initialised", None, Some(waiting.clone()), Some(Later)),
        ("initialised", Some(waiting), Some(moved), Some(Soon)),
        ("another cloud's", None, None, None),
    ] {
        assert_eq!(news(old.as_ref(), new.as_ref()), urgency_of_it, "{name}");
    }
}

#[test]
fn sets_are_equal_when_balancers_would_see_the_same() {
    let print = |nodes: &[NodeView]| set(nodes).fingerprint;
    let both = print(&[node("a"), node("b")]);
    assert_eq!(both, print(&[node("b"), node("a")]), "order");
    assert_eq!(
        both,
        print(&[ready(Some(ConditionStatus::False), node("a")), tainted("x", node("b"))])
    );
    assert_eq!(both, print(&[node("a"), node("b"), excluded("", node("c"))]));
    for (name, nodes) in [
        ("provider IDs appear", vec![node("a"), with_id(None, node("b"))]),
        ("one is replaced", vec![node("a"), NodeView { uid: "c".into(), ..node("b") }]),
        ("another name", vec![node("a"), node("c")]),
        ("one less", vec![node("a")]),
        ("excluded", vec![node("a"), excluded("", node("b"))]),
        ("leaving", vec![node("a"), leaving(node("b"))]),
    ] {
        assert_ne!(print(&nodes), both, "{name}");
    }
}

#[test]
fn labels_choose_the_nodes_of_a_balancer() {
    let zone =
        |zone: &str, name: &str| Arc::new(labelled(&[(well_known::LABEL_ZONE, zone)], node(name)));
    let all = [zone("z1", "a"), zone("z2", "b"), Arc::new(node("c"))];
    let names = |requirements: &[LabelRequirement]| -> Vec<String> {
        BackendNodes::new(&all, requirements, NodeTarget::Address)
            .nodes
            .iter()
            .map(|node| node.name.to_string())
            .collect()
    };
    assert_eq!(names(&[]), ["a", "b", "c"]);
    assert_eq!(names(&[LabelRequirement::Exists(well_known::LABEL_ZONE.into())]), ["a", "b"]);
    let z2 = LabelRequirement::Equals(well_known::LABEL_ZONE.into(), "z2".into());
    assert_eq!(names(&[z2.clone()]), ["b"]);
    assert_eq!(names(&[z2, LabelRequirement::Exists("x".into())]), [""; 0]);
}

#[test]
fn more_than_half_of_several_nodes_is_most_of_them() {
    let names = |names: &[&str]| set(&names.iter().map(|name| node(name)).collect::<Vec<_>>());
    for (before, after, most) in [
        (&["a", "b", "c", "d"][..], &["a"][..], true),
        (&["a", "b", "c", "d"], &["a", "b"], false),
        (&["a", "b"], &["a"], false),
        (&["a", "b"], &[], true),
        (&["a"], &[], false),
        (&[], &["a"], false),
        (&["a", "b", "c"], &["x", "y", "z", "c"], true),
        (&["a", "b", "c"], &["a", "b", "c", "d"], false),
    ] {
        assert_eq!(names(after).lacks_most_of(&names(before)), most, "{before:?} {after:?}");
    }
    let (before, after) = (names(&["a", "b", "c"]), names(&["a"]));
    assert!(
        after.lacks_existing_node_of(&before, &names(&["a", "c"])),
        "the API server still has c"
    );
    assert!(!after.lacks_existing_node_of(&before, &names(&["a", "x"])));
}

fn slice(endpoints: &[(&str, bool)]) -> EndpointSliceView {
    let endpoint = |(address, serving): &(&str, bool)| EndpointView {
        addresses: [address.parse().unwrap()].into(),
        node: None,
        zone: None,
        ready: *serving,
        serving: *serving,
        terminating: false,
    };
    let port = SlicePort { name: "".into(), protocol: Protocol::Tcp, port: None };
    let endpoints = endpoints.iter().map(endpoint).collect();
    EndpointSliceView {
        ports: [port].into(),
        endpoints,
        ..EndpointSliceView::named("ns", "web-1", "web")
    }
}

#[test]
fn endpoints_that_go_or_stop_serving_are_lost() {
    let two = || slice(&[("10.0.0.1", true), ("10.0.0.2", true)]);
    for (name, old, new, lost) in [
        ("same", two(), two(), false),
        ("another order", two(), slice(&[("10.0.0.2", true), ("10.0.0.1", true)]), false),
        ("one more", slice(&[("10.0.0.1", true)]), two(), false),
        ("one less", two(), slice(&[("10.0.0.1", true)]), true),
        (
            "one does not serve any more",
            two(),
            slice(&[("10.0.0.1", true), ("10.0.0.2", false)]),
            true,
        ),
        (
            "one that did not serve is gone",
            slice(&[("10.0.0.1", true), ("10.0.0.2", false)]),
            two(),
            false,
        ),
    ] {
        assert_eq!(removes_endpoints(&old, &new), lost, "{name}");
    }
}

#[test]
fn endpoints_are_the_same_only_if_everything_that_balancers_read_is() {
    let print = |slice: EndpointSliceView| endpoints_fingerprint(&[Arc::new(slice)]);
    let one = || slice(&[("10.0.0.1", true)]);
    let change = |change: fn(&mut EndpointView)| {
        let mut changed = one();
        change(&mut changed.endpoints[0]);
        changed
    };
    assert_eq!(print(EndpointSliceView { resource_version: "2".into(), ..one() }), print(one()));
    for (name, other) in [
        ("address", slice(&[("10.0.0.2", true)])),
        ("readiness", change(|e| e.ready = false)),
        ("serving", change(|e| e.serving = false)),
        ("termination", change(|e| e.terminating = true)),
        ("node", change(|e| e.node = Some("a".into()))),
        ("zone", change(|e| e.zone = Some("z".into()))),
        ("none", slice(&[])),
        ("ports", EndpointSliceView { ports: Box::default(), ..one() }),
    ] {
        assert_ne!(print(other), print(one()), "{name}");
    }
    assert_ne!(endpoints_fingerprint(&[]), print(one()));
}

prop_compose! {
    fn any_node()(
        uid in prop_oneof![9 => Just("a"), 1 => Just("b")],
        id in prop::option::of(prop_oneof![Just("fake://a"), Just("fake://b")]),
        exclude in prop::option::of(prop_oneof![Just(""), Just("false"), Just("true")]),
        zone in prop::option::of(prop_oneof![Just("z1"), Just("z2")]),
        is_deleting in prop::bool::weighted(0.1),
        taints in prop::collection::vec(prop_oneof![
            Just("x"), Just(well_known::TAINT_TO_BE_DELETED), Just(well_known::TAINT_UNINITIALIZED)], 0..3),
        address in prop::option::of(Just("10.0.0.1")),
        is_ready in any::<bool>(),
    ) -> NodeView {
        let mut labels = Vec::new();
        labels.extend(exclude.map(|value| (well_known::LABEL_EXCLUDE_FROM_LOAD_BALANCERS, value)));
        labels.extend(zone.map(|value| (well_known::LABEL_ZONE, value)));
        let addresses = address.into_iter().map(|a| NodeAddress::new(AddressType::InternalIp, a)).collect();
        let status = if is_ready { ConditionStatus::True } else { ConditionStatus::False };
        let node = NodeView { uid: uid.into(), deleting: is_deleting, addresses, ..with_id(id, node("a")) };
        taints.into_iter().fold(ready(Some(status), labelled(&labels, node)), |node, key| tainted(key, node))
    }
}

proptest! {
    /// Else a balancer would keep backends that it should not have until its next comparison.
    #[test]
    fn whatever_changes_a_set_is_news_unless_it_is_that_the_autoscalers_taint_comes(
        old in prop::option::of(any_node()), new in prop::option::of(any_node()),
    ) {
        let print = |node: &Option<NodeView>| set(&node.iter().cloned().collect::<Vec<_>>()).fingerprint;
        let untainted = |node: &Option<NodeView>| node.clone().map(|node| NodeView { taints: Box::default(), ..node });
        let by_taint_alone = print(&untainted(&old)) == print(&untainted(&new));
        let joins = new.as_ref().is_some_and(is_backend);
        if print(&old) != print(&new) && (joins || !by_taint_alone) {
            prop_assert!(news(old.as_ref(), new.as_ref()).is_some());
        }
    }

    #[test]
    fn a_node_that_leaves_a_set_leaves_it_at_once(old in any_node(), new in prop::option::of(any_node())) {
        let leaves = is_backend_ignoring_autoscaler(&old) && !new.as_ref().is_some_and(is_backend_ignoring_autoscaler);
        let may_leave = is_backend_ignoring_autoscaler(&old) && new.as_ref().is_some_and(|new| is_backend_ignoring_autoscaler(new) && may_stop_being_backend(&old, new));
        prop_assert_eq!(news(Some(&old), new.as_ref()) == Some(Urgency::Now), leaves || may_leave);
    }
}
