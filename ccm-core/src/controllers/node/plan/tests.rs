use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::k8s::{AddressType, LabelMap, Taint, TaintEffect};

fn taint(key: &str) -> Taint {
    Taint {
        key: Arc::from(key),
        value: Arc::from("true"),
        effect: TaintEffect::NoSchedule,
    }
}

fn tainted(taints: &[&str]) -> NodeView {
    NodeView {
        taints: taints.iter().map(|t| taint(t)).collect(),
        has_labels: true,
        ..NodeView::named("n")
    }
}

fn internal(address: &str) -> NodeAddress {
    NodeAddress::new(AddressType::InternalIp, address)
}

fn meta() -> InstanceMetadata {
    InstanceMetadata {
        provider_id: Some("fake://12345".into()),
        addresses: vec![internal("10.0.0.1")],
        ..InstanceMetadata::default()
    }
}

/// What the node looks like after the plan was applied.
fn apply(node: &NodeView, plan: &InitializationPlan) -> NodeView {
    let mut after = node.clone();
    if let Some(addresses) = &plan.addresses {
        after.addresses = addresses.clone().into();
    }
    if let Some(id) = &plan.change.provider_id {
        after.provider_id = Some(Arc::from(&**id));
    }
    let labels: Vec<_> = node
        .labels
        .iter()
        .chain(plan.change.labels.iter().map(|(k, v)| (&**k, &**v)))
        .map(|(k, v)| (Arc::from(k), Arc::from(v)))
        .collect();
    after.labels = labels.into_iter().collect();
    let mut taints = node.taints.to_vec();
    for (position, key) in plan.change.remove_taints.iter().rev() {
        assert_eq!(&*taints[*position].key, key);
        taints.remove(*position);
    }
    after.taints = taints.into();
    after
}

#[test]
fn every_uninitialized_taint_goes_and_others_stay() {
    let plan = plan_initialization(
        &tainted(&[well_known::TAINT_UNINITIALIZED, "x", well_known::TAINT_UNINITIALIZED]),
        &meta(),
    )
    .unwrap();
    let key = well_known::TAINT_UNINITIALIZED.to_owned();
    assert_eq!(plan.change.remove_taints, [(0, key.clone()), (2, key)]);
    assert_eq!(plan.change.provider_id.as_deref(), Some("fake://12345"));
    assert_eq!(plan.addresses, Some(vec![internal("10.0.0.1")]));
    assert!(!plan.change.requires_unchanged_node);
}

#[test]
fn a_provider_id_that_is_set_stays() {
    let node = NodeView {
        provider_id: Some(Arc::from("test-provider-id")),
        ..tainted(&[well_known::TAINT_UNINITIALIZED])
    };
    assert_eq!(
        plan_initialization(&node, &meta())
            .unwrap()
            .change
            .provider_id,
        None
    );
    let silent = InstanceMetadata { provider_id: None, ..meta() };
    assert!(plan_initialization(&node, &silent).is_ok());
}

#[test]
fn without_any_provider_id_nothing_is_planned() {
    for provider_id in [None, Some("".into())] {
        let silent = InstanceMetadata { provider_id, ..meta() };
        let error =
            plan_initialization(&tainted(&[well_known::TAINT_UNINITIALIZED]), &silent).unwrap_err();
        assert_eq!(error.to_string(), "cloud provider does not set node provider ID for node n");
    }
}

#[test]
fn a_provided_ip_that_is_bad_or_unknown_blocks_the_initialisation() {
    for ip in ["invalid-ip", "10.0.0.2"] {
        let annotations: LabelMap = [(well_known::ANNOTATION_PROVIDED_NODE_IP, ip)]
            .into_iter()
            .collect();
        let node = NodeView { annotations, ..tainted(&[well_known::TAINT_UNINITIALIZED]) };
        let error = plan_initialization(&node, &meta()).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("provided node ip for node \"n\" is not valid"),
            "{error}"
        );
    }
}

#[test]
fn labels_that_may_not_overwrite_need_the_node_as_it_was_read() {
    let with = |additional: bool| InstanceMetadata {
        zone: Some("z".into()),
        additional_labels: additional
            .then(|| ("a".into(), "b".into()))
            .into_iter()
            .collect(),
        ..meta()
    };
    let node = tainted(&[well_known::TAINT_UNINITIALIZED]);
    assert!(
        !plan_initialization(&node, &with(false))
            .unwrap()
            .change
            .requires_unchanged_node
    );
    assert!(
        plan_initialization(&node, &with(true))
            .unwrap()
            .change
            .requires_unchanged_node
    );
    let bare = NodeView { has_labels: false, ..node };
    assert!(
        plan_initialization(&bare, &with(false))
            .unwrap()
            .change
            .requires_unchanged_node,
        "there is no label map to add to"
    );
}

/// Change detection (catalogue 11.2): current, cloud, whether a write is wanted.
#[test]
fn address_changes_are_seen_in_order_and_only_when_there_are_any() {
    let external = |a: &str| NodeAddress::new(AddressType::ExternalIp, a);
    let cases = [
        (
            "equal",
            vec![internal("10.0.0.1"), external("1.1.1.1")],
            vec![internal("10.0.0.1"), external("1.1.1.1")],
            false,
        ),
        (
            "one differs",
            vec![internal("10.0.0.1"), external("1.1.1.1")],
            vec![internal("10.0.0.2"), external("1.1.1.1")],
            true,
        ),
        (
            "one removed",
            vec![internal("10.0.0.1"), external("1.1.1.1")],
            vec![internal("10.0.0.1")],
            true,
        ),
        (
            "one added",
            vec![internal("10.0.0.1")],
            vec![internal("10.0.0.1"), external("1.1.1.1")],
            true,
        ),
        (
            "swapped types",
            vec![internal("10.0.0.1"), external("1.1.1.1")],
            vec![internal("1.1.1.1"), external("10.0.0.1")],
            true,
        ),
        (
            "dual-stack equal (W1)",
            vec![internal("10.0.0.1"), internal("fd00::1")],
            vec![internal("10.0.0.1"), internal("fd00::1")],
            false,
        ),
        (
            "primary reordered",
            vec![internal("10.0.0.1"), internal("fd00::1")],
            vec![internal("fd00::1"), internal("10.0.0.1")],
            true,
        ),
        ("none from the cloud", vec![internal("10.0.0.1")], vec![], false),
    ];
    for (name, current, cloud, changed) in cases {
        let node = NodeView { addresses: current.into(), ..NodeView::named("n") };
        let plan = plan_addresses(&node, &cloud).unwrap();
        assert_eq!(plan, changed.then_some(cloud), "{name}");
    }
}

fn any_key() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{1,3}", Just("k8s.io/x".to_owned()), Just(well_known::LABEL_ZONE.to_owned())]
}

fn any_addresses() -> impl Strategy<Value = Vec<NodeAddress>> {
    let kind = prop_oneof![
        Just(AddressType::Hostname),
        Just(AddressType::InternalIp),
        Just(AddressType::ExternalIp),
        Just(AddressType::InternalDns)
    ];
    let address = prop_oneof!["10\\.0\\.0\\.[1-4]", "fd00::[1-4]", "[a-z]{1,4}"];
    prop::collection::vec((kind, address).prop_map(|(k, a)| NodeAddress::new(k, a)), 0..6)
}

prop_compose! {
    fn any_case()(
        taints in prop::collection::vec(prop_oneof![Just(well_known::TAINT_UNINITIALIZED.to_owned()), "[a-z]{1,3}"], 0..4),
        labels in prop::collection::btree_map(any_key(), "[a-z]{0,3}", 0..4),
        current in any_addresses(),
        cloud in any_addresses(),
        additional in prop::collection::btree_map(any_key(), "[a-zA-Z -]{0,3}", 0..4),
        zone in prop::option::of("[a-z ]{0,3}"),
        id in prop::option::of("[a-z]{1,3}"),
    ) -> (NodeView, InstanceMetadata) {
        let node = NodeView {
            taints: taints.iter().map(|t| taint(t)).collect(),
            has_labels: !labels.is_empty(),
            labels: labels.iter().map(|(k, v)| (&**k, &**v)).collect(),
            addresses: current.into(),
            provider_id: id.map(Arc::from),
            ..NodeView::named("n")
        };
        let meta = InstanceMetadata {
            provider_id: Some("fake://1".into()),
            addresses: cloud,
            zone: zone.map(Into::into),
            additional_labels: additional.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
            ..InstanceMetadata::default()
        };
        (node, meta)
    }
}

proptest! {
    #[test]
    fn planning_on_its_own_result_yields_nothing((node, meta) in any_case()) {
        let after = apply(&node, &plan_initialization(&node, &meta).unwrap());
        prop_assert!(!after.is_uninitialized());
        let again = plan_initialization(&after, &meta).unwrap();
        prop_assert_eq!(again.addresses, None);
        prop_assert!(again.change.is_empty(), "{:?}", again.change);
    }

    #[test]
    fn a_crash_between_the_two_writes_still_converges((node, meta) in any_case()) {
        let whole = apply(&node, &plan_initialization(&node, &meta).unwrap());
        let mut half = node.clone();
        if let Some(addresses) = plan_initialization(&node, &meta).unwrap().addresses {
            half.addresses = addresses.into();
        }
        prop_assert_eq!(apply(&half, &plan_initialization(&half, &meta).unwrap()), whole);
    }

    #[test]
    fn foreign_taints_and_labels_are_never_touched((node, meta) in any_case()) {
        let after = apply(&node, &plan_initialization(&node, &meta).unwrap());
        let foreign = |n: &NodeView| n.taints.iter().filter(|t| &*t.key != well_known::TAINT_UNINITIALIZED).cloned().collect::<Vec<_>>();
        prop_assert_eq!(foreign(&node), foreign(&after));
        for (key, value) in node.labels.iter().filter(|(key, _)| *key != well_known::LABEL_ZONE) {
            prop_assert_eq!(after.labels.get(key), Some(value));
        }
    }
}
