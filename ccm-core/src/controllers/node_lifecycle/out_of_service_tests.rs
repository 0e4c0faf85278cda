use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::{
    controllers::node_lifecycle::plan::{ControlResults, DeletionSafety, NotReadyTracker},
    k8s::{ConditionStatus, NodeCondition, Taint, TaintEffect, well_known},
    provider::{InstanceMetadata, InstanceStatus, PowerState, instance_records::InstanceRecord},
};

const PERIOD: Duration = Duration::from_secs(5);
const AFTER: Duration = Duration::from_secs(600);
const SHUT_DOWN: InstanceObservation = InstanceObservation::ShutDown;

/// Nothing speaks against the cloud's answers.
fn good() -> DeletionEvidence {
    DeletionEvidence {
        controls: ControlResults { found: 5, lost: 0, still_lost: 0 },
        cluster: ClusterCount { gone: 0, all: 10 },
        down: ClusterCount { gone: 1, all: 10 },
        stopped_ready_controls: 0,
        stopped_ready_nodes: 0,
        lost_ready_nodes: 0,
        record: Some(proved("machine")),
    }
}

/// The record of an instance that ran while the node was Ready on this machine.
fn proved(machine: &str) -> InstanceRecord {
    InstanceRecord {
        was_found: true,
        proved_machine: MachineId::of(machine),
        ..InstanceRecord::default()
    }
}

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
    let done = run(&mut tracker(), &node, SHUT_DOWN, &good(), 0..1000);
    let first = *marks(&done).first().unwrap();
    assert!((600..=640).contains(&first), "{first}");
    let (_, action) = &done[0];
    let Action::MarkOutOfService { finding, .. } = action else {
        panic!("{action:?}");
    };
    assert!(finding.state == "shut down" && finding.duration >= AFTER, "{finding:?}");
    // Without the flag never.
    let mut off = NotReadyTracker::new(PERIOD, DeletionSafety::Strict);
    assert_eq!(run(&mut off, &node, SHUT_DOWN, &good(), 0..10_000), []);
    // One that has the taint, of whomever, needs none.
    for value in [well_known::OUT_OF_SERVICE_VALUE, "nodeshutdown"] {
        let node = Arc::new(marked(value, stopped()));
        assert_eq!(run(&mut tracker(), &node, SHUT_DOWN, &good(), 0..10_000), [], "{value}");
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
        assert_eq!(marks(&run(&mut tracker, &node, SHUT_DOWN, &good(), 0..300)), [0; 0]);
        let end = 300 + for_long;
        // Nothing is deleted, so that only the answer matters.
        let contradicted = DeletionEvidence { lost_ready_nodes: 1, ..good() };
        let done = run(&mut tracker, &node, between, &contradicted, 300..end);
        assert_eq!(marks(&done), [0; 0], "{between:?}");
        let done = run(&mut tracker, &node, SHUT_DOWN, &good(), end..end + 1000);
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
    // Seldom passes count in full, and quick ones for twelve periods.
    for (period, counted) in [(1, 12), (30, 180)] {
        let mut off = OffState::default();
        off.record(&node, SHUT_DOWN, secs(0), secs(period));
        off.record(&node, SHUT_DOWN, secs(10_000), secs(period));
        assert_eq!(off.duration(), secs(counted));
    }
}

#[test]
fn answers_about_a_name_prove_nothing() {
    let nameless = NodeView { provider_id: None, ..stopped() };
    let uninitialised = NodeView {
        taints: [taint(well_known::TAINT_UNINITIALIZED, "", TaintEffect::NoSchedule)].into(),
        ..nameless.clone()
    };
    for node in [nameless, uninitialised] {
        let done = run(&mut tracker(), &Arc::new(node), SHUT_DOWN, &good(), 0..3000);
        assert_eq!(marks(&done), [0; 0]);
    }
    // Nor do those about another provider ID.
    let mut off = OffState::default();
    off.record(&stopped(), SHUT_DOWN, secs(0), PERIOD);
    off.record(&stopped(), SHUT_DOWN, secs(30), PERIOD);
    assert_eq!(off.duration(), secs(30));
    let other = NodeView { provider_id: Some("fake://other".into()), ..stopped() };
    off.record(&other, SHUT_DOWN, secs(60), PERIOD);
    assert_eq!(off.duration(), Duration::ZERO);
}

/// A node that nobody has claimed, such as one of bare metal, has the name of a server that is shut
/// down and then deleted.
#[test]
fn a_node_that_nobody_claimed_is_not_deleted_after_its_namesake_was_shut_down() {
    let node = NodeView { provider_id: None, taints: Box::default(), ..stopped() };
    let node = Arc::new(node);
    let mut tracker = tracker();
    run(&mut tracker, &node, SHUT_DOWN, &good(), 0..1000);
    let done = run(&mut tracker, &node, InstanceObservation::NotFound, &good(), 1000..3000);
    assert_eq!(done, []);
    // Not even if it comes to a confirmation.
    for second in [3000, 3010, 4000] {
        let gone = InstanceObservation::NotFound;
        let wall = Timestamp::MAX;
        let action = tracker.record_confirmation(&node, gone, &good(), secs(second), wall);
        assert_eq!(action, None);
    }
}

#[test]
fn a_contradiction_starts_the_time_anew() {
    let ready = DeletionEvidence { stopped_ready_nodes: 1, ..good() };
    let as_control = DeletionEvidence { stopped_ready_controls: 1, ..ready };
    let (down, all) = (6, 10);
    let most_down = DeletionEvidence { down: ClusterCount { gone: down, all }, ..ready };
    for (evidence, reason) in [
        (ready, OutOfServiceRefusal::Contradicted),
        (as_control, OutOfServiceRefusal::Contradicted),
        (most_down, OutOfServiceRefusal::MostDown { down, all }),
    ] {
        let node = Arc::new(stopped());
        let mut tracker = tracker();
        let done = run(&mut tracker, &node, SHUT_DOWN, &evidence, 0..640);
        let [(contradicted_at, refused)] = &done[..] else {
            panic!("{done:?}");
        };
        let refusal = Action::RefuseOutOfService { node: node.clone(), reason, is_first: true };
        assert_eq!(*refused, refusal);
        let done = run(&mut tracker, &node, SHUT_DOWN, &good(), 640..1400);
        assert!(marks(&done)[0] >= contradicted_at + 600, "{done:?}");
    }
}

#[test]
fn a_node_that_is_not_marked_is_deleted_as_upstream_does_where_that_is_wanted() {
    let node = Arc::new(stopped());
    let tracker = NotReadyTracker::new(PERIOD, DeletionSafety::Upstream);
    let mut tracker = tracker.with_out_of_service_after(AFTER);
    let bad = DeletionEvidence { record: None, controls: ControlResults::default(), ..good() };
    let done = run(&mut tracker, &node, SHUT_DOWN, &bad, 0..700);
    assert!(matches!(done[..], [(_, Action::RefuseOutOfService { .. }), ..]), "{done:?}");
    let now = secs(700);
    let action = tracker.record_confirmation(
        &node,
        InstanceObservation::NotFound,
        &bad,
        now,
        Timestamp::UNIX_EPOCH,
    );
    assert_eq!(action, Some(Action::Delete(node)));
}

#[test]
fn a_node_waits_while_a_ready_one_is_called_shut_down() {
    let node = Arc::new(stopped());
    let mut tracker = tracker();
    let control = DeletionEvidence { stopped_ready_controls: 1, ..good() };
    assert_eq!(run(&mut tracker, &node, SHUT_DOWN, &control, 0..700), []);
    let done = run(&mut tracker, &node, SHUT_DOWN, &good(), 700..710);
    assert_eq!(marks(&done)[0], 700);
}

#[test]
fn one_pass_marks_a_limited_number_of_nodes() {
    let node = Arc::new(stopped());
    let finding = OffFinding { state: "shut down", duration: AFTER, answered_at: AFTER };
    let mark = Action::MarkOutOfService { node: node.clone(), finding };
    let taint = Action::Taint(node);
    let mut actions = vec![mark.clone(), taint.clone(), mark.clone(), mark.clone(), taint.clone()];
    let mut left = 2;
    limit_marks(&mut actions, &mut left);
    assert_eq!((actions, left), (vec![mark.clone(), taint.clone(), mark, taint], 0));
}

#[tokio::test(start_paused = true)]
async fn ready_nodes_are_queried_and_counted_if_contradicted() {
    let up = Arc::new(with_ready(ConditionStatus::True, stopped()));
    let records = InstanceRecords::default();
    let found =
        |power_state| Ok(InstanceStatus::Found { power_state, meta: InstanceMetadata::default() });
    let ours = [up.clone()];
    assert_eq!(nodes_to_prove(&ours), ours);
    records.record(&up, &found(PowerState::Running));
    // Those that prove nothing are not queried.
    for other in [
        stopped(),
        NodeView { deleting: true, ..(*up).clone() },
        NodeView { provider_id: None, ..(*up).clone() },
        NodeView {
            provider_id: Some("fake://m".into()),
            machine: None,
            ..(*up).clone()
        },
    ] {
        assert_eq!(nodes_to_prove(&[Arc::new(other)]), []);
    }
    records.record(&up, &found(PowerState::Stopped));
    assert_eq!(count_stopped_ready(&ours, &records), 0, "not yet");
    tokio::time::advance(secs(120)).await;
    assert_eq!(count_stopped_ready(&ours, &records), 1);
    assert_eq!(count_stopped_ready(&[Arc::new(stopped())], &records), 0, "not Ready");
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
    let was_ready = Some(InstanceRecord { was_stopped_while_ready: true, ..proved("machine") });
    let unknown = NodeView { machine: None, ..stopped() };
    let lost = ControlResults { lost: 1, ..good().controls };
    let (up, down) = (ConditionStatus::True, ConditionStatus::False);
    let never = NodeView { ready: None, ..stopped() };
    let reports = Some(OutOfServiceRefusal::KubeletReports);
    let contradicted = Some(OutOfServiceRefusal::Contradicted);
    let most = ClusterCount { gone: 6, all: 10 };
    let alone = ClusterCount { gone: 2, all: 2 };
    for (name, node, evidence, expected) in [
        ("nothing", stopped(), good(), None),
        ("kubelet reports a problem", with_ready(down, stopped()), good(), reports),
        ("kubelet is well", with_ready(up, stopped()), good(), reports),
        ("kubelet never reported", never, good(), reports),
        (
            "most are down",
            stopped(),
            DeletionEvidence { down: most, ..good() },
            Some(OutOfServiceRefusal::MostDown { down: 6, all: 10 }),
        ),
        ("a small cluster", stopped(), DeletionEvidence { down: alone, ..good() }, None),
        ("a lost control", stopped(), DeletionEvidence { controls: lost, ..good() }, contradicted),
        (
            "a lost Ready node",
            stopped(),
            DeletionEvidence { lost_ready_nodes: 1, ..good() },
            contradicted,
        ),
        (
            "a Ready node that is shut down",
            stopped(),
            DeletionEvidence { stopped_ready_nodes: 1, ..good() },
            contradicted,
        ),
        (
            "another machine",
            stopped(),
            DeletionEvidence { record: Some(proved("old")), ..good() },
            Some(OutOfServiceRefusal::OtherMachine),
        ),
        ("a machine without ID", unknown, good(), Some(OutOfServiceRefusal::OtherMachine)),
        (
            "a new process",
            stopped(),
            DeletionEvidence { record: None, ..good() },
            Some(OutOfServiceRefusal::NeverSeenRunning),
        ),
        (
            "a node that was Ready",
            stopped(),
            DeletionEvidence { record: was_ready, ..good() },
            Some(OutOfServiceRefusal::WasReady),
        ),
    ] {
        assert_eq!(refusal(&node, &evidence), expected, "{name}");
    }
}

#[test]
fn a_refusal_is_reported_once_and_ends_when_nothing_contradicts() {
    let node = Arc::new(stopped());
    let mut tracker = tracker();
    let most = DeletionEvidence { down: ClusterCount { gone: 6, all: 10 }, ..good() };
    let done = run(&mut tracker, &node, SHUT_DOWN, &most, 0..1000);
    let first: Vec<bool> = done
        .iter()
        .map(|(_, action)| match action {
            Action::RefuseOutOfService { is_first, .. } => *is_first,
            other => panic!("{other:?}"),
        })
        .collect();
    // A refused node is queried less often.
    assert!((3..20).contains(&first.len()) && first[0] && !first[1..].contains(&true), "{first:?}");
    let done = run(&mut tracker, &node, SHUT_DOWN, &good(), 1000..1040);
    assert!(marks(&done)[0] <= 1030, "the time has counted on: {done:?}");
}

#[test]
fn our_taint_goes_when_the_instance_runs_or_the_node_is_ready() {
    let ours = Arc::new(marked(well_known::OUT_OF_SERVICE_VALUE, stopped()));
    let running = InstanceObservation::Running;
    let done = run(&mut tracker(), &ours, running, &good(), 0..5);
    assert_eq!(done, [(0, Action::UnmarkOutOfService(ours.clone()))]);
    for doubt in [InstanceObservation::Error, InstanceObservation::OtherState, SHUT_DOWN] {
        assert_eq!(run(&mut tracker(), &ours, doubt, &good(), 0..600), [], "{doubt:?}");
    }
    let ready = NodeView { taints: ours.taints[1..].into(), ..(*ours).clone() };
    let ready = Arc::new(with_ready(ConditionStatus::True, ready));
    let done = run(&mut tracker(), &ready, running, &good(), 0..5);
    assert_eq!(done, [(0, Action::Untaint(ready))]);
    // Those of administrators stay, with the flag or without it.
    let plain = NodeView { taints: Box::default(), ..stopped() };
    let theirs = Arc::new(marked("nodeshutdown", plain));
    assert_eq!(run(&mut tracker(), &theirs, running, &good(), 0..600), []);
    let ready = Arc::new(with_ready(ConditionStatus::True, (*theirs).clone()));
    assert_eq!(run(&mut tracker(), &ready, running, &good(), 0..600), []);
}

#[test]
fn a_deletion_that_keeps_failing_is_preceded_by_the_taint() {
    let node = Arc::new(stopped());
    let mut tracker = tracker();
    let gone = InstanceObservation::NotFound;
    let done = run(&mut tracker, &node, gone, &good(), 0..300);
    assert!(
        done.iter()
            .all(|(_, action)| matches!(action, Action::Delete(_))),
        "{done:?}"
    );
    assert_eq!(tracker.plan_before_deletion(&node, &good()), None, "not yet");
    run(&mut tracker, &node, gone, &good(), 300..700);
    let Some(Action::MarkOutOfService { finding, .. }) =
        tracker.plan_before_deletion(&node, &good())
    else {
        panic!("it is due");
    };
    assert!(finding.state == "not found" && finding.duration >= AFTER);
    let unproved = DeletionEvidence { record: None, ..good() };
    assert_eq!(tracker.plan_before_deletion(&node, &unproved), None, "another machine's ID");
    let reporting = Arc::new(with_ready(ConditionStatus::False, stopped()));
    assert_eq!(tracker.plan_before_deletion(&reporting, &good()), None);
    let nameless = Arc::new(NodeView { provider_id: None, ..stopped() });
    assert_eq!(tracker.plan_before_deletion(&nameless, &good()), None);
    let marked = Arc::new(marked("nodeshutdown", stopped()));
    assert_eq!(tracker.plan_before_deletion(&marked, &good()), None);
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
            let done = run(&mut tracker, &node, observation, &good(), second..end);
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
