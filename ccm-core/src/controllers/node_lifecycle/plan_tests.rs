use proptest::prelude::*;

use super::*;
use crate::k8s::{ConditionStatus, NodeCondition, Taint, TaintEffect, well_known as wk};

const PERIOD: Duration = Duration::from_secs(5);
const OLD: Timestamp = Timestamp::UNIX_EPOCH;

fn wall() -> Timestamp {
    OLD + SignedDuration::from_hours(1)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn node(name: &str, ready: Option<ConditionStatus>) -> NodeView {
    let provider_id = Some(Arc::from(format!("fake://{name}")));
    let ready = ready.map(|status| NodeCondition { status, reason: Arc::from("") });
    NodeView { uid: name.into(), ready, provider_id, ..NodeView::named(name) }
}

fn dead(name: &str) -> Arc<NodeView> {
    Arc::new(node(name, Some(ConditionStatus::Unknown)))
}

fn with_taint(mut node: NodeView, key: &str) -> Arc<NodeView> {
    node.taints = [Taint { key: key.into(), value: "".into(), effect: TaintEffect::NoSchedule }].into();
    Arc::new(node)
}

const GOOD: Controls = Controls { asked: 5, found: 5 };
const BAD: Controls = Controls { asked: 5, found: 2 };
const NONE: Controls = Controls { asked: 0, found: 0 };

fn strict() -> Tracker {
    Tracker::new(PERIOD, Safety::Strict)
}

/// A tracker that has heard once, at second 0, that `node` is absent.
fn suspicious(node: &Arc<NodeView>) -> Tracker {
    let mut tracker = strict();
    assert_eq!(tracker.ordinary(node, Seen::Absent, secs(0)), None, "one answer is no proof");
    tracker
}

#[test]
fn only_nodes_that_are_not_ready_are_asked_about() {
    use ConditionStatus::{False, True, Unknown};
    for (ready, asked) in [(Some(True), false), (Some(False), true), (Some(Unknown), true), (None, true)] {
        let nodes = [Arc::new(node("n", ready))];
        let (questions, actions) = strict().questions(&nodes, secs(0));
        assert_eq!(questions.ordinary.len(), usize::from(asked), "{ready:?}");
        assert!(questions.confirm.is_empty() && actions.is_empty());
    }
}

#[test]
fn a_ready_node_loses_its_shutdown_taint_without_any_question() {
    let node = with_taint(node("n", Some(ConditionStatus::True)), wk::TAINT_SHUTDOWN);
    let (questions, actions) = strict().questions(&[node.clone()], secs(0));
    assert_eq!((questions, actions), (Questions::default(), vec![Action::Untaint(node)]));
}

#[test]
fn a_stopped_instance_is_tainted_once() {
    let plain = dead("n");
    assert_eq!(strict().ordinary(&plain, Seen::Stopped, secs(0)), Some(Action::Taint(plain)));
    let tainted = with_taint(node("n", None), wk::TAINT_SHUTDOWN);
    assert_eq!(strict().ordinary(&tainted, Seen::Stopped, secs(0)), None);
    assert_eq!(strict().ordinary(&tainted, Seen::Running, secs(0)), None, "the taint stays until the node is Ready");
}

#[test]
fn an_instance_that_exists_or_is_in_doubt_leads_to_nothing() {
    for seen in [Seen::Running, Seen::Present, Seen::Doubt] {
        let mut tracker = strict();
        for second in (0..1000).step_by(5) {
            assert_eq!(tracker.ordinary(&dead("n"), seen, secs(second)), None, "{seen:?}");
            assert_eq!(tracker.confirm(&dead("n"), seen, &GOOD, secs(second), wall()), None, "{seen:?}");
        }
    }
}

#[test]
fn absence_confirmed_a_period_later_with_good_controls_deletes() {
    let node = dead("n");
    let mut tracker = suspicious(&node);
    assert_eq!(tracker.questions(&[node.clone()], secs(4)).0, Questions::default(), "not before a period is over");
    assert_eq!(tracker.questions(&[node.clone()], secs(5)).0.confirm, [node.clone()]);
    assert_eq!(tracker.confirm(&node, Seen::Absent, &GOOD, secs(5), wall()), Some(Action::Delete(node)));
}

#[test]
fn two_answers_closer_than_a_period_are_no_proof() {
    let node = dead("n");
    assert_eq!(suspicious(&node).confirm(&node, Seen::Absent, &GOOD, secs(4), wall()), None);
}

#[test]
fn bad_controls_delete_nothing_ever_and_are_reported_once() {
    let node = dead("n");
    let mut tracker = suspicious(&node);
    let refusal = |first| Some(Action::Refuse { node: node.clone(), first });
    assert_eq!(tracker.confirm(&node, Seen::Absent, &BAD, secs(5), wall()), refusal(true));
    for second in (10..10_000).step_by(5) {
        assert_eq!(tracker.confirm(&node, Seen::Absent, &BAD, secs(second), wall()), refusal(false));
    }
    assert_eq!(tracker.confirm(&node, Seen::Absent, &GOOD, secs(9_999), wall()), None, "the proof starts over");
    assert_eq!(tracker.confirm(&node, Seen::Absent, &GOOD, secs(10_000), wall()), Some(Action::Delete(node)));
}

#[test]
fn half_of_the_controls_found_is_enough() {
    for (asked, found, deletes) in
        [(1, 1, true), (1, 0, false), (2, 1, true), (4, 2, true), (5, 2, false), (5, 3, true)]
    {
        let node = dead("n");
        let action = suspicious(&node).confirm(&node, Seen::Absent, &Controls { asked, found }, secs(5), wall());
        assert_eq!(action == Some(Action::Delete(node)), deletes, "{found} of {asked}");
    }
}

#[test]
fn without_controls_the_proof_must_last_five_minutes() {
    let node = dead("n");
    let mut tracker = suspicious(&node);
    for second in (5..300).step_by(5) {
        assert_eq!(tracker.confirm(&node, Seen::Absent, &NONE, secs(second), wall()), None, "{second}");
    }
    assert_eq!(tracker.confirm(&node, Seen::Absent, &NONE, secs(300), wall()), Some(Action::Delete(node)));
}

#[test]
fn an_instance_that_shows_up_again_restarts_the_proof() {
    let node = dead("n");
    let mut tracker = suspicious(&node);
    assert_eq!(tracker.confirm(&node, Seen::Running, &GOOD, secs(5), wall()), None);
    assert_eq!(tracker.questions(&[node.clone()], secs(10)).0.ordinary, [node.clone()]);
    assert_eq!(tracker.ordinary(&node, Seen::Absent, secs(10)), None);
    assert_eq!(tracker.confirm(&node, Seen::Absent, &GOOD, secs(12), wall()), None);
    assert_eq!(tracker.confirm(&node, Seen::Absent, &GOOD, secs(15), wall()), Some(Action::Delete(node)));
}

#[test]
fn a_namesake_inherits_nothing() {
    let mut tracker = suspicious(&dead("n"));
    let namesake = Arc::new(NodeView { uid: "other".into(), ..(*dead("n")).clone() });
    let (questions, _) = tracker.questions(&[namesake.clone()], secs(5));
    assert_eq!(questions, Questions { ordinary: vec![namesake], confirm: vec![] });
}

#[test]
fn becoming_ready_forgets_the_suspicion() {
    let node_dead = dead("n");
    let mut tracker = suspicious(&node_dead);
    tracker.questions(&[Arc::new(node("n", Some(ConditionStatus::True)))], secs(5));
    assert_eq!(tracker.questions(&[node_dead.clone()], secs(10)).0.ordinary, [node_dead]);
}

#[test]
fn a_node_that_was_never_initialised_must_be_five_minutes_old() {
    let young = |age| {
        Arc::new(NodeView {
            created: wall() - SignedDuration::from_secs(age),
            ..(*with_taint(node("n", None), wk::TAINT_UNINITIALIZED)).clone()
        })
    };
    let node = young(299);
    assert_eq!(suspicious(&node).confirm(&node, Seen::Absent, &GOOD, secs(300), wall()), None, "by its time stamp");
    let node = young(300);
    assert_eq!(suspicious(&node).confirm(&node, Seen::Absent, &GOOD, secs(299), wall()), None, "by what was watched");
    assert_eq!(suspicious(&node).confirm(&node, Seen::Absent, &GOOD, secs(300), wall()), Some(Action::Delete(node)));
}

#[test]
fn a_node_without_provider_id_needs_the_long_proof_because_controls_cannot_vouch_for_its_name() {
    let node = Arc::new(NodeView { provider_id: None, ..(*dead("n")).clone() });
    let mut tracker = suspicious(&node);
    for second in (5..300).step_by(5) {
        assert_eq!(tracker.confirm(&node, Seen::Absent, &GOOD, secs(second), wall()), None, "{second}");
    }
    assert_eq!(tracker.confirm(&node, Seen::Absent, &GOOD, secs(300), wall()), Some(Action::Delete(node)));
}

#[test]
fn doubt_in_between_restarts_the_proof() {
    let node = dead("n");
    let mut tracker = suspicious(&node);
    assert_eq!(tracker.confirm(&node, Seen::Doubt, &GOOD, secs(5), wall()), None);
    let (questions, _) = tracker.questions(&[node.clone()], secs(10));
    assert_eq!(questions, Questions { ordinary: vec![node.clone()], confirm: vec![] });
    assert_eq!(tracker.ordinary(&node, Seen::Absent, secs(10)), None);
    assert_eq!(tracker.confirm(&node, Seen::Absent, &NONE, secs(300), wall()), None, "the long proof began at 10");
    assert_eq!(tracker.confirm(&node, Seen::Absent, &NONE, secs(310), wall()), Some(Action::Delete(node)));
}

#[test]
fn upstream_safety_deletes_on_one_answer_but_never_on_an_error() {
    let node = dead("n");
    let mut tracker = Tracker::new(PERIOD, Safety::Upstream);
    assert_eq!(tracker.ordinary(&node, Seen::Doubt, secs(0)), None);
    assert_eq!(tracker.ordinary(&node, Seen::Absent, secs(5)), Some(Action::Delete(node)));
}

#[test]
fn an_unchanged_node_is_asked_about_less_and_less_often() {
    let nodes = [dead("n")];
    let mut tracker = strict();
    let mut asked = Vec::new();
    for second in (0..=120).step_by(5) {
        for node in tracker.questions(&nodes, secs(second)).0.ordinary {
            asked.push(second);
            tracker.ordinary(&node, Seen::Running, secs(second));
        }
    }
    assert_eq!(asked, [0, 10, 30, 60, 90, 120]);
}

#[test]
fn controls_are_ready_initialised_and_from_the_suspects_zone_first() {
    let ready = |name: &str, zone: &str| {
        let labels = [(wk::LABEL_ZONE, zone)].into_iter().collect();
        Arc::new(NodeView { labels, ..node(name, Some(ConditionStatus::True)) })
    };
    let suspect = Arc::new(NodeView { labels: [(wk::LABEL_ZONE, "b")].into_iter().collect(), ..(*dead("s")).clone() });
    let mut ours: Vec<_> = (0..8).map(|i| ready(&format!("a{i}"), "a")).collect();
    ours.extend([ready("b0", "b"), suspect.clone(), dead("d")]);
    ours.push(with_taint(node("u", Some(ConditionStatus::True)), wk::TAINT_UNINITIALIZED));
    for turn in 0..10 {
        let controls = choose_controls(&ours, &[suspect.clone()], turn);
        assert_eq!(controls.len(), MAX_CONTROLS);
        assert_eq!(&*controls[0].name, "b0");
        assert!(controls.iter().all(|n| n.is_ready() && !n.is_uninitialized()));
    }
    assert!(choose_controls(&[suspect.clone()], &[suspect], 0).is_empty());
}

fn any_seen() -> impl Strategy<Value = Seen> {
    prop_oneof![
        4 => Just(Seen::Absent),
        1 => Just(Seen::Stopped),
        1 => Just(Seen::Running),
        1 => Just(Seen::Present),
        1 => Just(Seen::Doubt),
    ]
}

proptest! {
    /// The invariant itself: whatever the cloud answers and however long, a deletion follows only two absences at
    /// least a period apart with no sighting between, the last of them with trustworthy controls.
    #[test]
    fn no_deletion_without_proof(
        steps in prop::collection::vec((any_seen(), 0..=5_usize, 0..=5_usize, 1..20_u64), 1..60),
    ) {
        let node = dead("n");
        let mut tracker = strict();
        let mut now = secs(0);
        let mut absent_since: Option<Duration> = None;
        for (seen, asked, found, pause) in steps {
            let controls = Controls { asked, found: found.min(asked) };
            let (questions, _) = tracker.questions(&[node.clone()], now);
            let action = if questions.confirm.is_empty() {
                if questions.ordinary.is_empty() { now += secs(pause); continue }
                tracker.ordinary(&node, seen, now)
            } else {
                tracker.confirm(&node, seen, &controls, now, wall())
            };
            match seen {
                Seen::Absent => { absent_since.get_or_insert(now); }
                _ => absent_since = None,
            }
            if matches!(action, Some(Action::Delete(_))) {
                prop_assert_eq!(seen, Seen::Absent);
                let proved = now.saturating_sub(absent_since.unwrap());
                prop_assert!(proved >= PERIOD);
                prop_assert!(controls.found * 2 >= controls.asked);
                prop_assert!(controls.asked > 0 || proved >= LONG_PROOF);
            }
            now += secs(pause);
        }
    }

    /// A pass whose taints were written finds none to write, whatever the order of the nodes.
    #[test]
    fn planning_on_its_own_result_changes_nothing_in_whatever_order(
        nodes in prop::collection::vec((any::<Option<bool>>(), 0..3_u8, any::<bool>(), any_seen()), 0..8),
        by in 0..8_usize,
    ) {
        let nodes: Vec<(Arc<NodeView>, Seen)> = nodes
            .into_iter()
            .enumerate()
            .map(|(at, (ready, taint, deleting, seen))| {
                let ready = ready.map(|ready| if ready { ConditionStatus::True } else { ConditionStatus::Unknown });
                let plain = NodeView { deleting, ..node(&format!("n{at}"), ready) };
                let node = match taint {
                    0 => Arc::new(plain),
                    1 => with_taint(plain, wk::TAINT_SHUTDOWN),
                    _ => with_taint(plain, "somebody.else/taint"),
                };
                (node, seen)
            })
            .collect();
        let actions = pass(&nodes);
        let mut turned = nodes.clone();
        turned.rotate_left(by.min(nodes.len()));
        prop_assert_eq!(pass(&turned), actions.clone());
        let written = nodes.iter().map(|(node, seen)| {
            let has = |wanted: &Action| actions.contains(wanted);
            let mut after = (**node).clone();
            if has(&Action::Taint(node.clone())) {
                let taint = Taint { key: wk::TAINT_SHUTDOWN.into(), value: "".into(), effect: TaintEffect::NoSchedule };
                after.taints = after.taints.iter().cloned().chain([taint]).collect();
            }
            if has(&Action::Untaint(node.clone())) {
                after.taints = after.taints.iter().filter(|taint| !taint.is_shutdown()).cloned().collect();
            }
            (Arc::new(after), *seen)
        });
        prop_assert_eq!(pass(&written.collect::<Vec<_>>()), []);
        for action in &actions {
            let (Action::Taint(node) | Action::Untaint(node)) = action else {
                return Err(TestCaseError::fail(format!("{action:?} in the first pass")));
            };
            prop_assert!(!node.deleting || node.is_ready(), "{:?}", action);
        }
    }
}

/// The first pass of a process over nodes, each with its answer; actions by the names of their nodes.
fn pass(nodes: &[(Arc<NodeView>, Seen)]) -> Vec<Action> {
    let mut tracker = strict();
    let all: Vec<_> = nodes.iter().map(|(node, _)| node.clone()).collect();
    let (questions, mut actions) = tracker.questions(&all, secs(0));
    for node in questions.ordinary {
        let seen = nodes.iter().find(|(known, _)| known.name == node.name).map_or(Seen::Doubt, |(_, seen)| *seen);
        actions.extend(tracker.ordinary(&node, seen, secs(0)));
    }
    actions.sort_by_key(|action| format!("{action:?}"));
    actions
}
