use super::*;
use crate::k8s::{AddressType, ConditionStatus, NodeAddress, Taint, TaintEffect};

fn ready(rides: bool) -> NetworkReady {
    NetworkReady::new(WallClock::new(|| "2026-01-02T03:04:05.6Z".parse().unwrap()), rides)
}

fn node() -> NodeView {
    NodeView { uid: "u".into(), ..NodeView::named("a") }
}

fn new_node() -> NodeView {
    let key = wk::TAINT_UNINITIALIZED.into();
    let taint = Taint { key, value: "true".into(), effect: TaintEffect::NoSchedule };
    NodeView { taints: [taint].into(), ..node() }
}

fn showing(node: &NodeView, status: ConditionStatus, reason: &str) -> NodeView {
    let condition = NodeCondition { status, reason: reason.into() };
    NodeView { network_unavailable: Some(condition), ..node.clone() }
}

fn write(look: Look) -> Writing {
    match look {
        Look::Write(writing) => writing,
        other => panic!("expected a write, got {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_transition_time_is_written_only_with_another_status() {
    let network = ready(false);
    let condition = |node: &NodeView| write(network.look(node)).condition();
    network.decide(&node(), Network::Ready);
    let now = "2026-01-02T03:04:06Z";
    let whole = json!({
        "type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated",
        "message": "RouteController created a route", "lastHeartbeatTime": now, "lastTransitionTime": now,
    });
    assert_eq!(condition(&node()), whole);
    assert_eq!(condition(&showing(&node(), ConditionStatus::True, "NoRouteCreated")), whole);
    let mut same_status = whole;
    same_status.as_object_mut().unwrap().remove("lastTransitionTime");
    assert_eq!(condition(&showing(&node(), ConditionStatus::False, "CalicoIsUp")), same_status);
}

#[tokio::test(start_paused = true)]
async fn what_is_shown_or_on_its_way_is_not_written_again() {
    let network = ready(false);
    assert!(matches!(network.look(&node()), Look::Nothing), "nothing decided");
    assert!(network.decide(&node(), Network::Ready));
    write(network.look(&node())).done();
    // Not now, but again later: somebody may put back what was there before.
    assert!(matches!(network.look(&node()), Look::Later(wait) if wait == ECHO_PATIENCE), "its echo is on its way");
    let shown = showing(&node(), ConditionStatus::False, "RouteCreated");
    assert!(!network.decide(&shown, Network::Ready));
    assert!(matches!(network.look(&shown), Look::Nothing) && network.is_settled(&shown));
    let foreign = showing(&node(), ConditionStatus::True, "Other");
    assert!(!network.is_settled(&foreign));
    write(network.look(&foreign));
    tokio::time::sleep(ECHO_PATIENCE).await;
    write(network.look(&node()));
}

#[tokio::test(start_paused = true)]
async fn one_writes_at_a_time_and_a_write_that_fails_is_none() {
    let network = ready(false);
    network.decide(&node(), Network::Ready);
    let first = write(network.look(&node()));
    assert!(matches!(network.look(&node()), Look::Later(_)));
    assert!(network.ride(&node()).is_none());
    drop(first);
    let second = network.ride(&node()).unwrap();
    assert!(matches!(network.look(&node()), Look::Later(_)));
    second.done();
    assert!(matches!(network.look(&node()), Look::Later(wait) if wait == ECHO_PATIENCE));
    assert!(network.ride(&node()).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_changes_during_a_write_is_written_after_it() {
    let network = ready(false);
    network.decide(&node(), Network::Ready);
    let outdated = write(network.look(&node()));
    network.decide(&node(), Network::NotReady);
    outdated.done();
    assert_eq!(write(network.look(&node())).condition()["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn only_good_news_of_this_very_node_rides() {
    let network = ready(true);
    network.decide(&node(), Network::NotReady);
    assert!(network.ride(&node()).is_none());
    network.decide(&node(), Network::Ready);
    let namesake = NodeView { uid: "other".into(), ..node() };
    assert!(network.ride(&namesake).is_none() && matches!(network.look(&namesake), Look::Nothing));
    assert!(network.ride(&node()).is_some());
    network.retain(|_| false);
    assert!(network.ride(&node()).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_new_node_is_given_seconds_to_have_its_condition_ride() {
    let network = ready(true);
    network.decide(&new_node(), Network::Ready);
    assert!(matches!(network.look(&new_node()), Look::Later(delay) if delay == RIDE_PATIENCE));
    tokio::time::sleep(RIDE_PATIENCE / 3).await;
    network.decide(&new_node(), Network::Ready);
    assert!(matches!(network.look(&new_node()), Look::Later(delay) if delay == RIDE_PATIENCE / 3 * 2));
    // Nothing to wait for: bad news, addresses that are there, a node that is initialised.
    let addresses = [NodeAddress::new(AddressType::InternalIp, "10.0.0.1")].into();
    write(network.look(&NodeView { addresses, ..new_node() }));
    write(network.look(&node()));
    network.decide(&new_node(), Network::NotReady);
    write(network.look(&new_node()));
    network.decide(&new_node(), Network::Ready);
    tokio::time::sleep(RIDE_PATIENCE).await;
    write(network.look(&new_node()));
    let alone = ready(false);
    alone.decide(&new_node(), Network::Ready);
    write(alone.look(&new_node()));
}
