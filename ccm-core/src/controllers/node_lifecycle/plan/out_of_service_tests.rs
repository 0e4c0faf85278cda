use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::{
    controllers::node_lifecycle::plan::{ControlResults, DeletionSafety, NotReadyTracker},
    k8s::{ConditionStatus, NodeCondition, Taint, TaintEffect, well_known},
    provider::instance_records::InstanceRecord,
};

const PERIOD: Duration = Duration::from_secs(5);
const AFTER: Duration = Duration::from_secs(600);
const SHUT_DOWN: InstanceObservation = InstanceObservation::ShutDown;

/// Nothing speaks against the cloud's answers.
const GOOD: DeletionEvidence = DeletionEvidence {
    controls: ControlResults { found: 5, lost: 0, still_lost: 0 },
    cluster: ClusterCount { gone: 0, all: 10 },
    down: ClusterCount { gone: 1, all: 10 },
    stopped_ready_controls: 0,
    lost_ready_nodes: 0,
    record: None,
};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn taint(key: &str, value: &str, effect: TaintEffect) -> Taint {
    Taint { key: key.into(), value: value.into(), effect }
}

/// A node whose kubelet is silent, with the shutdown taint.
fn stopped() -> NodeView {
    let ready = NodeCondition { status: ConditionStatus::Unknown, reason: "".into() };
    NodeView {
        uid: "u".into(),
        ready: Some(ready),
        provider_id: Some("fake://n".into()),
        machine: MachineId::of("machine"),
        taints: [taint(well_known::TAINT_SHUTDOWN, "", TaintEffect::NoSchedule)].into(),
        ..NodeView::named("n")
    }
}

fn with_ready(status: ConditionStatus, node: NodeView) -> NodeView {
    let ready = NodeCondition { status, reason: "".into() };
    NodeView { ready: Some(ready), ..node }
}

fn marked(value: &str, node: NodeView) -> NodeView {
    let mark = taint(well_known::TAINT_OUT_OF_SERVICE, value, TaintEffect::NoExecute);
    NodeView {
        taints: node.taints.iter().cloned().chain([mark]).collect(),
        ..node
    }
}

fn tracker() -> NotReadyTracker {
    NotReadyTracker::new(PERIOD, DeletionSafety::Strict).with_out_of_service_after(AFTER)
}

/// What the tracker asks about and does from one second to another, while the cloud says this.
fn run(
    tracker: &mut NotReadyTracker,
    node: &Arc<NodeView>,
    observation: InstanceObservation,
    evidence: &DeletionEvidence,
    seconds: std::ops::Range<u64>,
) -> Vec<(u64, Action)> {
    let mut done = Vec::new();
    for second in seconds.step_by(5) {
        let now = secs(second);
        let (queries, actions) = tracker.plan_queries(std::slice::from_ref(node), now);
        done.extend(actions.into_iter().map(|action| (second, action)));
        for node in &queries.routine {
            let action = tracker.record_routine(node, observation, now);
            done.extend(action.map(|action| (second, action)));
        }
        for node in &queries.confirmations {
            let wall = Timestamp::UNIX_EPOCH;
            let action = tracker.record_confirmation(node, observation, evidence, now, wall);
            done.extend(action.map(|action| (second, action)));
        }
    }
    done
}

fn marks(done: &[(u64, Action)]) -> Vec<u64> {
    done.iter()
        .filter(|(_, action)| matches!(action, Action::MarkOutOfService { .. }))
        .map(|(second, _)| *second)
        .collect()
}

#[test]
fn a_node_is_marked_when_its_instance_has_been_shut_down_for_long_enough() {
    let node = Arc::new(stopped());
    let done = run(&mut tracker(), &node, SHUT_DOWN, &GOOD, 0..1000);
    let first = *marks(&done).first().unwrap();
    assert!((600..=640).contains(&first), "{first}");
    let (_, action) = &done[0];
    let Action::MarkOutOfService { finding, .. } = action else {
        panic!("{action:?}");
    };
    assert!(finding.state == "shut down" && finding.duration >= AFTER, "{finding:?}");
    // Without the flag never.
    let mut off = NotReadyTracker::new(PERIOD, DeletionSafety::Strict);
    assert_eq!(run(&mut off, &node, SHUT_DOWN, &GOOD, 0..10_000), []);
    // One that has the taint, of whomever, needs none.
    for value in [well_known::OUT_OF_SERVICE_VALUE, "nodeshutdown"] {
        let node = Arc::new(marked(value, stopped()));
        assert_eq!(run(&mut tracker(), &node, SHUT_DOWN, &GOOD, 0..10_000), [], "{value}");
    }
}

#[test]
fn only_time_between_two_answers_counts_and_any_other_answer_ends_it() {
    let node = Arc::new(stopped());
    for (between, for_long, extra) in [
        // The outage itself does not count; what was before does.
        (InstanceObservation::Error, 3000, 300..=360),
        (InstanceObservation::Running, 30, 600..=660),
        (InstanceObservation::OtherState, 30, 600..=660),
        (InstanceObservation::NotFound, 30, 600..=660),
    ] {
        let mut tracker = tracker();
        assert_eq!(marks(&run(&mut tracker, &node, SHUT_DOWN, &GOOD, 0..300)), [0; 0]);
        let end = 300 + for_long;
        // Nothing is deleted, so that only the answer matters.
        let contradicted = DeletionEvidence { lost_ready_nodes: 1, ..GOOD };
        let done = run(&mut tracker, &node, between, &contradicted, 300..end);
        assert_eq!(marks(&done), [0; 0], "{between:?}");
        let done = run(&mut tracker, &node, SHUT_DOWN, &GOOD, end..end + 1000);
        let first = marks(&done).first().unwrap() - end;
        assert!(extra.contains(&first), "{between:?}: {first}");
    }
}

#[test]
fn a_pass_that_took_too_long_counts_for_a_minute_at_most() {
    let node = stopped();
    let mut off = OffState::default();
    off.record(&node, SHUT_DOWN, secs(0), PERIOD);
    off.record(&node, SHUT_DOWN, secs(10_000), PERIOD);
    assert_eq!(off.duration(), secs(60));
}

#[test]
fn another_machine_starts_the_time_anew() {
    let mut off = OffState::default();
    for second in (0..300).step_by(5) {
        off.record(&stopped(), SHUT_DOWN, secs(second), PERIOD);
    }
    let other = NodeView { machine: MachineId::of("other"), ..stopped() };
    off.record(&other, SHUT_DOWN, secs(300), PERIOD);
    assert_eq!(off.duration(), Duration::ZERO);
}

#[test]
fn what_contradicts_the_cloud_forbids_the_taint() {
    let record = |running: &str| {
        Some(InstanceRecord {
            running_machine: MachineId::of(running),
            ..InstanceRecord::default()
        })
    };
    let lost = ControlResults { lost: 1, ..GOOD.controls };
    let (up, down) = (ConditionStatus::True, ConditionStatus::False);
    let never = NodeView { ready: None, ..stopped() };
    let reports = Some(OutOfServiceRefusal::KubeletReports);
    let contradicted = Some(OutOfServiceRefusal::Contradicted);
    let most = ClusterCount { gone: 6, all: 10 };
    let alone = ClusterCount { gone: 2, all: 2 };
    for (name, node, evidence, expected) in [
        ("nothing", stopped(), GOOD, None),
        ("kubelet reports a problem", with_ready(down, stopped()), GOOD, reports),
        ("kubelet is well", with_ready(up, stopped()), GOOD, reports),
        ("kubelet never reported", never, GOOD, reports),
        (
            "most are down",
            stopped(),
            DeletionEvidence { down: most, ..GOOD },
            Some(OutOfServiceRefusal::MostDown { down: 6, all: 10 }),
        ),
        ("a small cluster", stopped(), DeletionEvidence { down: alone, ..GOOD }, None),
        ("a lost control", stopped(), DeletionEvidence { controls: lost, ..GOOD }, contradicted),
        (
            "a lost Ready node",
            stopped(),
            DeletionEvidence { lost_ready_nodes: 1, ..GOOD },
            contradicted,
        ),
        (
            "a Ready node that is shut down",
            stopped(),
            DeletionEvidence { stopped_ready_controls: 1, ..GOOD },
            contradicted,
        ),
        (
            "another machine",
            stopped(),
            DeletionEvidence { record: record("old"), ..GOOD },
            Some(OutOfServiceRefusal::OtherMachine),
        ),
        (
            "the same machine",
            stopped(),
            DeletionEvidence { record: record("machine"), ..GOOD },
            None,
        ),
    ] {
        assert_eq!(refusal(&node, &evidence), expected, "{name}");
    }
}

#[test]
fn a_refusal_is_reported_once_and_ends_when_nothing_contradicts() {
    let node = Arc::new(stopped());
    let mut tracker = tracker();
    let most = DeletionEvidence { down: ClusterCount { gone: 6, all: 10 }, ..GOOD };
    let done = run(&mut tracker, &node, SHUT_DOWN, &most, 0..1000);
    let first: Vec<bool> = done
        .iter()
        .map(|(_, action)| match action {
            Action::RefuseOutOfService { is_first, .. } => *is_first,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(first.len() > 2 && first[0] && !first[1..].contains(&true), "{first:?}");
    let done = run(&mut tracker, &node, SHUT_DOWN, &GOOD, 1000..1010);
    assert_eq!(marks(&done), [1000], "the time has counted on");
}

#[test]
fn our_taint_goes_when_the_instance_runs_or_the_node_is_ready() {
    let ours = Arc::new(marked(well_known::OUT_OF_SERVICE_VALUE, stopped()));
    let running = InstanceObservation::Running;
    let done = run(&mut tracker(), &ours, running, &GOOD, 0..5);
    assert_eq!(done, [(0, Action::UnmarkOutOfService(ours.clone()))]);
    for doubt in [InstanceObservation::Error, InstanceObservation::OtherState, SHUT_DOWN] {
        assert_eq!(run(&mut tracker(), &ours, doubt, &GOOD, 0..600), [], "{doubt:?}");
    }
    let ready = NodeView { taints: ours.taints[1..].into(), ..(*ours).clone() };
    let ready = Arc::new(with_ready(ConditionStatus::True, ready));
    let done = run(&mut tracker(), &ready, running, &GOOD, 0..5);
    assert_eq!(done, [(0, Action::Untaint(ready))]);
    // Those of administrators stay, with the flag or without it.
    let plain = NodeView { taints: Box::default(), ..stopped() };
    let theirs = Arc::new(marked("nodeshutdown", plain));
    assert_eq!(run(&mut tracker(), &theirs, running, &GOOD, 0..600), []);
    let ready = Arc::new(with_ready(ConditionStatus::True, (*theirs).clone()));
    assert_eq!(run(&mut tracker(), &ready, running, &GOOD, 0..600), []);
}

#[test]
fn a_deletion_that_keeps_failing_is_preceded_by_the_taint() {
    let node = Arc::new(stopped());
    let mut tracker = tracker();
    let gone = InstanceObservation::NotFound;
    let done = run(&mut tracker, &node, gone, &GOOD, 0..300);
    assert!(
        done.iter()
            .all(|(_, action)| matches!(action, Action::Delete(_))),
        "{done:?}"
    );
    assert_eq!(tracker.plan_before_deletion(&node), None, "not yet");
    run(&mut tracker, &node, gone, &GOOD, 300..700);
    let Some(Action::MarkOutOfService { finding, .. }) = tracker.plan_before_deletion(&node) else {
        panic!("it is due");
    };
    assert!(finding.state == "not found" && finding.duration >= AFTER);
    let reporting = Arc::new(with_ready(ConditionStatus::False, stopped()));
    assert_eq!(tracker.plan_before_deletion(&reporting), None);
    let marked = Arc::new(marked("nodeshutdown", stopped()));
    assert_eq!(tracker.plan_before_deletion(&marked), None);
}

proptest! {
    /// Whatever the cloud answers, a node is only marked right after an answer that says so, and
    /// after as much time with such answers alone or with errors.
    #[test]
    fn no_sequence_of_answers_marks_a_node_too_early(
        answers in prop::collection::vec((0..6_u8, 1..30_u64), 1..60),
    ) {
        let node = Arc::new(stopped());
        let after = secs(20);
        let mut tracker = NotReadyTracker::new(PERIOD, DeletionSafety::Strict)
            .with_out_of_service_after(after);
        let (mut second, mut off_since) = (0, None);
        for (answer, steps) in answers {
            let observation = match answer {
                0..=2 => SHUT_DOWN,
                3 => InstanceObservation::Error,
                4 => InstanceObservation::Running,
                _ => InstanceObservation::OtherState,
            };
            let end = second + 5 * steps;
            let done = run(&mut tracker, &node, observation, &GOOD, second..end);
            match observation {
                SHUT_DOWN => {
                    let since = *off_since.get_or_insert(second);
                    for mark in marks(&done) {
                        prop_assert!(mark - since >= after.as_secs());
                    }
                }
                InstanceObservation::Error => prop_assert_eq!(marks(&done), [0; 0]),
                _ => {
                    prop_assert_eq!(marks(&done), [0; 0]);
                    // An answer in between may not have been asked for.
                    if 5 * steps > 30 {
                        off_since = None;
                    }
                }
            }
            second = end;
        }
    }
}
