use super::*;
use crate::k8s::{AddressType, ConditionStatus, NodeAddress, Taint, TaintEffect};

fn ready(rides: bool) -> NetworkConditions {
    NetworkConditions::new(WallClock::new(|| "2026-01-02T03:04:05.6Z".parse().unwrap()), rides)
}

fn node() -> NodeView {
    NodeView { uid: "u".into(), ..NodeView::named("a") }
}

fn new_node() -> NodeView {
    let key = well_known::TAINT_UNINITIALIZED.into();
    let taint = Taint { key, value: "true".into(), effect: TaintEffect::NoSchedule };
    NodeView { taints: [taint].into(), ..node() }
}

fn showing(node: &NodeView, status: ConditionStatus, reason: &str) -> NodeView {
    let condition = NodeCondition { status, reason: reason.into() };
    NodeView { network_unavailable: Some(condition), ..node.clone() }
}

fn write(look: ConditionAction) -> ConditionWritePermit {
    match look {
        ConditionAction::Write(writing) => writing,
        other => panic!("expected a write, got {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_transition_time_is_written_only_with_another_status() {
    let network = ready(false);
    let condition = |node: &NodeView| write(network.next_action(node)).condition();
    network.record_desired(&node(), NetworkStatus::Ready);
    let now = "2026-01-02T03:04:06Z";
    let whole = json!({
        "type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated",
        "message": "RouteController created a route", "lastHeartbeatTime": now, "lastTransitionTime": now,
    });
    assert_eq!(condition(&node()), whole);
    assert_eq!(condition(&showing(&node(), ConditionStatus::True, "NoRouteCreated")), whole);
    let mut same_status = whole;
    same_status
        .as_object_mut()
        .unwrap()
        .remove("lastTransitionTime");
    assert_eq!(condition(&showing(&node(), ConditionStatus::False, "CalicoIsUp")), same_status);
}

#[tokio::test(start_paused = true)]
async fn what_is_shown_or_on_its_way_is_not_written_again() {
    let network = ready(false);
    assert!(matches!(network.next_action(&node()), ConditionAction::UpToDate), "nothing decided");
    assert!(network.record_desired(&node(), NetworkStatus::Ready));
    write(network.next_action(&node())).mark_written();
    // Not now, but again later: somebody may put back what was there before.
    assert!(
        matches!(network.next_action(&node()), ConditionAction::RetryAfter(wait) if wait == WATCH_CONFIRM_TIMEOUT),
        "its echo is on its way"
    );
    let shown = showing(&node(), ConditionStatus::False, "RouteCreated");
    assert!(!network.record_desired(&shown, NetworkStatus::Ready));
    assert!(
        matches!(network.next_action(&shown), ConditionAction::UpToDate)
            && network.is_up_to_date(&shown)
    );
    let foreign = showing(&node(), ConditionStatus::True, "Other");
    assert!(!network.is_up_to_date(&foreign));
    write(network.next_action(&foreign));
    tokio::time::sleep(WATCH_CONFIRM_TIMEOUT).await;
    write(network.next_action(&node()));
}

#[tokio::test(start_paused = true)]
async fn one_writes_at_a_time_and_a_write_that_fails_is_none() {
    let network = ready(false);
    network.record_desired(&node(), NetworkStatus::Ready);
    let first = write(network.next_action(&node()));
    assert!(matches!(network.next_action(&node()), ConditionAction::RetryAfter(_)));
    assert!(network.combine_with_address_patch(&node()).is_none());
    drop(first);
    let second = network.combine_with_address_patch(&node()).unwrap();
    assert!(matches!(network.next_action(&node()), ConditionAction::RetryAfter(_)));
    second.mark_written();
    assert!(
        matches!(network.next_action(&node()), ConditionAction::RetryAfter(wait) if wait == WATCH_CONFIRM_TIMEOUT)
    );
    assert!(network.combine_with_address_patch(&node()).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_changes_during_a_write_is_written_after_it() {
    let network = ready(false);
    network.record_desired(&node(), NetworkStatus::Ready);
    let outdated = write(network.next_action(&node()));
    network.record_desired(&node(), NetworkStatus::NotReady);
    outdated.mark_written();
    assert_eq!(write(network.next_action(&node())).condition()["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn only_good_news_of_this_very_node_rides() {
    let network = ready(true);
    network.record_desired(&node(), NetworkStatus::NotReady);
    assert!(network.combine_with_address_patch(&node()).is_none());
    network.record_desired(&node(), NetworkStatus::Ready);
    let namesake = NodeView { uid: "other".into(), ..node() };
    assert!(
        network.combine_with_address_patch(&namesake).is_none()
            && matches!(network.next_action(&namesake), ConditionAction::UpToDate)
    );
    assert!(network.combine_with_address_patch(&node()).is_some());
    network.retain(|_| false);
    assert!(network.combine_with_address_patch(&node()).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_new_node_is_given_seconds_to_have_its_condition_ride() {
    let network = ready(true);
    network.record_desired(&new_node(), NetworkStatus::Ready);
    assert!(
        matches!(network.next_action(&new_node()), ConditionAction::RetryAfter(delay) if delay == ADDRESS_PATCH_WAIT)
    );
    tokio::time::sleep(ADDRESS_PATCH_WAIT / 3).await;
    network.record_desired(&new_node(), NetworkStatus::Ready);
    assert!(
        matches!(network.next_action(&new_node()), ConditionAction::RetryAfter(delay) if delay == ADDRESS_PATCH_WAIT / 3 * 2)
    );
    // Nothing to wait for: bad news, addresses that are there, a node that is initialised.
    let addresses = [NodeAddress::new(AddressType::InternalIp, "10.0.0.1")].into();
    write(network.next_action(&NodeView { addresses, ..new_node() }));
    write(network.next_action(&node()));
    network.record_desired(&new_node(), NetworkStatus::NotReady);
    write(network.next_action(&new_node()));
    network.record_desired(&new_node(), NetworkStatus::Ready);
    tokio::time::sleep(ADDRESS_PATCH_WAIT).await;
    write(network.next_action(&new_node()));
    let alone = ready(false);
    alone.record_desired(&new_node(), NetworkStatus::Ready);
    write(alone.next_action(&new_node()));
}
