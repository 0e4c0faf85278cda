// length: tables of one plan

use proptest::prelude::*;
use tokio::time::Instant;

use super::*;
use crate::k8s::{ConditionStatus, NodeCondition, Taint, TaintEffect, well_known};

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
    NodeView {
        uid: name.into(),
        ready,
        provider_id,
        ..NodeView::named(name)
    }
}

fn dead(name: &str) -> Arc<NodeView> {
    Arc::new(node(name, Some(ConditionStatus::Unknown)))
}

fn with_taint(mut node: NodeView, key: &str) -> Arc<NodeView> {
    node.taints = [Taint {
        key: key.into(),
        value: "".into(),
        effect: TaintEffect::NoSchedule,
    }]
    .into();
    Arc::new(node)
}

/// The cloud finds other nodes.
const GOOD: DeletionEvidence = evidence(ControlResults { found: 5, lost: 0, still_lost: 0 });
/// It does not find one that it found before.
const BAD: DeletionEvidence = evidence(ControlResults { found: 4, lost: 1, still_lost: 0 });
/// There is no other node that it finds.
const NONE: DeletionEvidence = evidence(ControlResults { found: 0, lost: 0, still_lost: 0 });
/// It has found the instance itself before.
const FOUND_BEFORE: DeletionEvidence = DeletionEvidence { record: Some(WAS_FOUND), ..NONE };
const WAS_FOUND: InstanceRecord = InstanceRecord {
    was_found: true,
    machine: None,
    lost_since: None,
    is_stopped: false,
    proved_machine: None,
    stopped_while_ready_since: None,
    was_stopped_while_ready: false,
};

const fn evidence(controls: ControlResults) -> DeletionEvidence {
    DeletionEvidence {
        controls,
        cluster: ClusterCount { gone: 1, all: 10 },
        down: ClusterCount { gone: 1, all: 10 },
        stopped_ready_controls: 0,
        stopped_ready_nodes: 0,
        lost_ready_nodes: 0,
        record: None,
    }
}

fn strict() -> NotReadyTracker {
    NotReadyTracker::new(PERIOD, DeletionSafety::Strict)
}

/// A tracker that has heard once, at second 0, that `node` is absent.
fn suspicious(node: &Arc<NodeView>) -> NotReadyTracker {
    let mut tracker = strict();
    assert_eq!(
        tracker.record_routine(node, InstanceObservation::NotFound, secs(0)),
        None,
        "one answer is no proof"
    );
    tracker
}

#[test]
fn only_nodes_that_are_not_ready_are_asked_about() {
    use ConditionStatus::{False, True, Unknown};
    for (ready, asked) in
        [(Some(True), false), (Some(False), true), (Some(Unknown), true), (None, true)]
    {
        let nodes = [Arc::new(node("n", ready))];
        let (questions, actions) = strict().plan_queries(&nodes, secs(0));
        assert_eq!(questions.routine.len(), usize::from(asked), "{ready:?}");
        assert!(questions.confirmations.is_empty() && actions.is_empty());
    }
}

#[test]
fn a_ready_node_loses_its_shutdown_taint_without_any_question() {
    let node = with_taint(node("n", Some(ConditionStatus::True)), well_known::TAINT_SHUTDOWN);
    let (questions, actions) = strict().plan_queries(&[node.clone()], secs(0));
    assert_eq!((questions, actions), (PlannedQueries::default(), vec![Action::Untaint(node)]));
}

#[test]
fn a_stopped_instance_is_tainted_once() {
    let plain = dead("n");
    assert_eq!(
        strict().record_routine(&plain, InstanceObservation::ShutDown, secs(0)),
        Some(Action::Taint(plain))
    );
    let tainted = with_taint(node("n", None), well_known::TAINT_SHUTDOWN);
    assert_eq!(strict().record_routine(&tainted, InstanceObservation::ShutDown, secs(0)), None);
    assert_eq!(
        strict().record_routine(&tainted, InstanceObservation::Running, secs(0)),
        None,
        "the taint stays until the node is Ready"
    );
}

#[test]
fn an_instance_that_exists_or_is_in_doubt_leads_to_nothing() {
    for seen in [
        InstanceObservation::Running,
        InstanceObservation::OtherState,
        InstanceObservation::Error,
    ] {
        let mut tracker = strict();
        for second in (0..1000).step_by(5) {
            assert_eq!(tracker.record_routine(&dead("n"), seen, secs(second)), None, "{seen:?}");
            assert_eq!(
                tracker.record_confirmation(&dead("n"), seen, &GOOD, secs(second), wall()),
                None,
                "{seen:?}"
            );
        }
    }
}

#[test]
fn absence_confirmed_a_period_later_with_good_controls_deletes() {
    let node = dead("n");
    let mut tracker = suspicious(&node);
    assert_eq!(
        tracker.plan_queries(&[node.clone()], secs(4)).0,
        PlannedQueries::default(),
        "not before a period is over"
    );
    assert_eq!(
        tracker
            .plan_queries(&[node.clone()], secs(5))
            .0
            .confirmations,
        [node.clone()]
    );
    assert_eq!(
        tracker.record_confirmation(&node, InstanceObservation::NotFound, &GOOD, secs(5), wall()),
        Some(Action::Delete(node))
    );
}

#[test]
fn two_answers_closer_than_a_period_are_no_proof() {
    let node = dead("n");
    assert_eq!(
        suspicious(&node).record_confirmation(
            &node,
            InstanceObservation::NotFound,
            &GOOD,
            secs(4),
            wall()
        ),
        None
    );
}

fn refused(node: &Arc<NodeView>, reason: DeletionRefusal, is_first: bool) -> Action {
    Action::RefuseDeletion { node: node.clone(), reason, is_first }
}

#[test]
fn lost_controls_delete_nothing_ever_and_are_reported_once() {
    let node = dead("n");
    let mut tracker = suspicious(&node);
    let contradicted = |first| Some(refused(&node, DeletionRefusal::Contradicted, first));
    assert_eq!(
        tracker.record_confirmation(&node, InstanceObservation::NotFound, &BAD, secs(5), wall()),
        contradicted(true)
    );
    for second in (10..10_000).step_by(5) {
        assert_eq!(
            tracker.record_confirmation(
                &node,
                InstanceObservation::NotFound,
                &BAD,
                secs(second),
                wall()
            ),
            contradicted(false)
        );
    }
    assert_eq!(
        tracker.record_confirmation(
            &node,
            InstanceObservation::NotFound,
            &GOOD,
            secs(9_999),
            wall()
        ),
        None,
        "the proof starts over"
    );
    assert_eq!(
        tracker.record_confirmation(
            &node,
            InstanceObservation::NotFound,
            &GOOD,
            secs(10_000),
            wall()
        ),
        Some(Action::Delete(node))
    );
}

#[test]
fn one_control_that_was_found_before_and_is_not_now_is_enough_to_distrust_the_answers() {
    let verdict = |found, lost, still_lost| {
        let node = dead("n");
        let controls = DeletionEvidence {
            controls: ControlResults { found, lost, still_lost },
            ..FOUND_BEFORE
        };
        suspicious(&node).record_confirmation(
            &node,
            InstanceObservation::NotFound,
            &controls,
            secs(5),
            wall(),
        )
    };
    let deleted = Some(Action::Delete(dead("n")));
    let contradicted = Some(refused(&dead("n"), DeletionRefusal::Contradicted, true));
    assert_eq!(verdict(1, 0, 0), deleted);
    assert_eq!(verdict(4, 1, 0), contradicted);
    assert_eq!(verdict(0, 1, 0), contradicted);
    // A machine whose kubelet runs on although its instance is gone must not keep all others for
    // ever, ...
    assert_eq!(verdict(1, 0, 4), deleted);
    // ... but it is all that there is to ask about.
    assert_eq!(verdict(0, 0, 1), contradicted);
}

#[test]
fn controls_count_by_what_the_cloud_says_of_them_now_and_said_before() {
    let record = |was_found: bool, is_found: bool| {
        let lost_since = (was_found && !is_found).then(Instant::now);
        Some(InstanceRecord { was_found, lost_since, ..WAS_FOUND })
    };
    let answers = [
        (InstanceObservation::Running, record(true, true)),
        (InstanceObservation::ShutDown, record(true, false)),
        (InstanceObservation::OtherState, None),
        (InstanceObservation::Terminated, record(true, true)),
        (InstanceObservation::NotFound, record(true, true)),
        (InstanceObservation::NotFound, record(true, false)),
        // Never found: they may be none of this cloud's, as a virtual kubelet.
        (InstanceObservation::NotFound, record(false, false)),
        (InstanceObservation::NotFound, None),
        (InstanceObservation::Error, record(true, true)),
    ];
    assert_eq!(
        ControlResults::from_answers(answers),
        ControlResults { found: 4, lost: 1, still_lost: 1 }
    );
}

#[test]
fn without_any_evidence_nothing_is_deleted_however_long_the_cloud_answers_so() {
    let node = dead("n");
    let mut tracker = suspicious(&node);
    assert_eq!(
        tracker.record_confirmation(&node, InstanceObservation::NotFound, &NONE, secs(5), wall()),
        Some(refused(&node, DeletionRefusal::NoEvidence, true))
    );
    for second in (10..100_000).step_by(5) {
        let action = tracker.record_confirmation(
            &node,
            InstanceObservation::NotFound,
            &NONE,
            secs(second),
            wall(),
        );
        assert_eq!(action, Some(refused(&node, DeletionRefusal::NoEvidence, false)), "{second}");
    }
    let action = tracker.record_confirmation(
        &node,
        InstanceObservation::NotFound,
        &GOOD,
        secs(100_000),
        wall(),
    );
    assert_eq!(
        action,
        Some(Action::Delete(node)),
        "the proof has lasted, only the evidence was missing"
    );
}

#[test]
fn an_instance_that_this_process_saw_needs_no_other_node() {
    let node = dead("n");
    let mut tracker = suspicious(&node);
    assert_eq!(
        tracker.record_confirmation(
            &node,
            InstanceObservation::NotFound,
            &FOUND_BEFORE,
            secs(4),
            wall()
        ),
        None,
        "a period apart"
    );
    assert_eq!(
        tracker.record_confirmation(
            &node,
            InstanceObservation::NotFound,
            &FOUND_BEFORE,
            secs(5),
            wall()
        ),
        Some(Action::Delete(node))
    );
}

/// Two kubelets fall silent, and somebody changes the credentials.
#[test]
fn in_a_cluster_too_small_for_most_of_it_a_sighting_alone_takes_five_minutes() {
    let node = dead("n");
    let alone = DeletionEvidence { cluster: ClusterCount { gone: 2, all: 2 }, ..FOUND_BEFORE };
    let mut tracker = suspicious(&node);
    let refused_first = Some(refused(&node, DeletionRefusal::NoEvidence, true));
    assert_eq!(
        tracker.record_confirmation(&node, InstanceObservation::NotFound, &alone, secs(5), wall()),
        refused_first
    );
    assert_eq!(
        tracker.record_confirmation(
            &node,
            InstanceObservation::NotFound,
            &alone,
            secs(300),
            wall()
        ),
        Some(Action::Delete(node.clone()))
    );
    let with_another = DeletionEvidence { controls: GOOD.controls, ..alone };
    let action = suspicious(&node).record_confirmation(
        &node,
        InstanceObservation::NotFound,
        &with_another,
        secs(5),
        wall(),
    );
    assert_eq!(action, Some(Action::Delete(node)));
}

#[test]
fn an_instance_that_has_ended_and_is_still_listed_is_evidence_enough() {
    let node = dead("n");
    let worst = DeletionEvidence {
        cluster: ClusterCount { gone: 9, all: 10 },
        lost_ready_nodes: 3,
        ..BAD
    };
    let mut tracker = strict();
    assert_eq!(tracker.record_routine(&node, InstanceObservation::Terminated, secs(0)), None);
    assert_eq!(
        tracker.record_confirmation(
            &node,
            InstanceObservation::Terminated,
            &worst,
            secs(4),
            wall()
        ),
        None,
        "a period"
    );
    assert_eq!(
        tracker.record_confirmation(
            &node,
            InstanceObservation::Terminated,
            &worst,
            secs(5),
            wall()
        ),
        Some(Action::Delete(node))
    );
}

#[test]
fn ready_nodes_nearby_that_are_denied_contradict_whatever_is_found_elsewhere() {
    let node = dead("n");
    let evidence =
        DeletionEvidence { lost_ready_nodes: 1, controls: GOOD.controls, ..FOUND_BEFORE };
    let action = suspicious(&node).record_confirmation(
        &node,
        InstanceObservation::NotFound,
        &evidence,
        secs(5),
        wall(),
    );
    assert_eq!(action, Some(refused(&node, DeletionRefusal::Contradicted, true)));
}

/// A zone, cell or page of the cloud that is missing from its answers.
#[tokio::test(start_paused = true)]
async fn a_zone_that_the_cloud_hides_is_denied_for_an_hour() {
    let in_zone = |name: &str, zone: &str, ready| {
        let labels = [(well_known::LABEL_ZONE, zone)].into_iter().collect();
        Arc::new(NodeView { labels, ..node(name, Some(ready)) })
    };
    let (up, down) = (ConditionStatus::True, ConditionStatus::Unknown);
    let ours = [
        in_zone("a1", "a", up),
        in_zone("a2", "a", up),
        in_zone("a3", "a", down),
        in_zone("b1", "b", up),
    ];
    let records = recorded(&ours.each_ref(), &found());
    let near = |node: &Arc<NodeView>| LostReadyNodes::new(&ours, &records).count_near(node);
    assert_eq!(near(&ours[2]), 0);
    for node in &ours[..3] {
        records.record(node, &Ok(InstanceStatus::NotFound));
    }
    let without_zone = dead("x");
    assert_eq!(
        [near(&ours[2]), near(&ours[3]), near(&without_zone)],
        [2, 0, 2],
        "of the Ready ones"
    );
    records.record(&ours[0], &Ok(found()));
    assert_eq!(near(&ours[2]), 1, "it is asked about again");
    tokio::time::advance(secs(3600)).await;
    assert_eq!(near(&ours[2]), 0, "its kubelet may outlive its instance");
}

#[test]
fn a_record_of_absence_alone_is_no_evidence() {
    let node = dead("n");
    let never_found = DeletionEvidence {
        record: Some(InstanceRecord { was_found: false, ..WAS_FOUND }),
        ..NONE
    };
    let action = suspicious(&node).record_confirmation(
        &node,
        InstanceObservation::NotFound,
        &never_found,
        secs(5),
        wall(),
    );
    assert_eq!(action, Some(refused(&node, DeletionRefusal::NoEvidence, true)));
}

#[test]
fn when_most_of_a_cluster_looks_gone_nothing_is_deleted() {
    for (gone, all, stays) in
        [(1, 1, false), (2, 2, false), (1, 3, false), (2, 3, true), (5, 10, false), (6, 10, true)]
    {
        let node = dead("n");
        let cluster = ClusterCount { gone, all };
        let evidence = DeletionEvidence { cluster, controls: GOOD.controls, ..FOUND_BEFORE };
        let action = suspicious(&node).record_confirmation(
            &node,
            InstanceObservation::NotFound,
            &evidence,
            secs(5),
            wall(),
        );
        let most_gone = Some(refused(&node, DeletionRefusal::MostGone { gone, all }, true));
        assert_eq!(
            action,
            if stays {
                most_gone
            } else {
                Some(Action::Delete(node))
            },
            "{gone} of {all}"
        );
    }
}

#[test]
fn a_refusal_is_reported_again_for_another_reason_and_not_for_other_numbers() {
    let node = dead("n");
    let mut tracker = suspicious(&node);
    let mut is_first = |evidence: &DeletionEvidence, second| {
        let action = tracker.record_confirmation(
            &node,
            InstanceObservation::NotFound,
            evidence,
            secs(second),
            wall(),
        );
        let Some(Action::RefuseDeletion { is_first: first, .. }) = action else {
            panic!("{action:?}")
        };
        first
    };
    let gone = |gone| DeletionEvidence { cluster: ClusterCount { gone, all: 10 }, ..NONE };
    assert!(is_first(&gone(6), 5));
    assert!(!is_first(&gone(7), 10));
    assert!(is_first(&NONE, 15));
    assert!(is_first(&gone(7), 20));
}

#[test]
fn a_node_that_another_machine_took_over_is_not_deleted() {
    let on = |uuid| Arc::new(NodeView { machine: MachineId::of(uuid), ..(*dead("n")).clone() });
    let record = Some(InstanceRecord { machine: MachineId::of("old"), ..WAS_FOUND });
    let seen_on_old = DeletionEvidence { record, ..GOOD };
    let act = |node: &Arc<NodeView>, evidence: &DeletionEvidence| {
        suspicious(node).record_confirmation(
            node,
            InstanceObservation::NotFound,
            evidence,
            secs(5),
            wall(),
        )
    };
    assert_eq!(
        act(&on("new"), &seen_on_old),
        Some(refused(&on("new"), DeletionRefusal::OtherMachine, true))
    );
    assert_eq!(act(&on("old"), &seen_on_old), Some(Action::Delete(on("old"))));
    assert_eq!(act(&on(""), &seen_on_old), Some(Action::Delete(on(""))), "it does not say");

    // The same without a record, when it happens during the proof.
    let mut tracker = suspicious(&on("old"));
    let action = tracker.record_confirmation(
        &on("new"),
        InstanceObservation::NotFound,
        &GOOD,
        secs(5),
        wall(),
    );
    assert_eq!(action, Some(refused(&on("new"), DeletionRefusal::OtherMachine, true)));
    // The cloud finds the instance, whichever machine it is: from now on it is this one.
    assert_eq!(
        tracker.record_confirmation(
            &on("new"),
            InstanceObservation::Running,
            &GOOD,
            secs(10),
            wall()
        ),
        None
    );
    assert_eq!(tracker.record_routine(&on("new"), InstanceObservation::NotFound, secs(15)), None);
    assert_eq!(
        tracker.record_confirmation(
            &on("new"),
            InstanceObservation::NotFound,
            &GOOD,
            secs(20),
            wall()
        ),
        Some(Action::Delete(on("new")))
    );
}

#[test]
fn an_instance_that_shows_up_again_restarts_the_proof() {
    let node = dead("n");
    let mut tracker = suspicious(&node);
    assert_eq!(
        tracker.record_confirmation(&node, InstanceObservation::Running, &GOOD, secs(5), wall()),
        None
    );
    assert_eq!(tracker.plan_queries(&[node.clone()], secs(10)).0.routine, [node.clone()]);
    assert_eq!(tracker.record_routine(&node, InstanceObservation::NotFound, secs(10)), None);
    assert_eq!(
        tracker.record_confirmation(&node, InstanceObservation::NotFound, &GOOD, secs(12), wall()),
        None
    );
    assert_eq!(
        tracker.record_confirmation(&node, InstanceObservation::NotFound, &GOOD, secs(15), wall()),
        Some(Action::Delete(node))
    );
}

#[test]
fn a_namesake_inherits_nothing() {
    let mut tracker = suspicious(&dead("n"));
    let namesake = Arc::new(NodeView { uid: "other".into(), ..(*dead("n")).clone() });
    let (questions, _) = tracker.plan_queries(&[namesake.clone()], secs(5));
    assert_eq!(questions, PlannedQueries { routine: vec![namesake], confirmations: vec![] });
}

#[test]
fn becoming_ready_forgets_the_suspicion() {
    let node_dead = dead("n");
    let mut tracker = suspicious(&node_dead);
    tracker.plan_queries(&[Arc::new(node("n", Some(ConditionStatus::True)))], secs(5));
    assert_eq!(
        tracker
            .plan_queries(&[node_dead.clone()], secs(10))
            .0
            .routine,
        [node_dead]
    );
}

#[test]
fn a_node_that_was_never_initialised_must_be_five_minutes_old() {
    let young = |age| {
        Arc::new(NodeView {
            created: wall() - SignedDuration::from_secs(age),
            ..(*with_taint(node("n", None), well_known::TAINT_UNINITIALIZED)).clone()
        })
    };
    let node = young(299);
    assert_eq!(
        suspicious(&node).record_confirmation(
            &node,
            InstanceObservation::NotFound,
            &GOOD,
            secs(300),
            wall()
        ),
        None,
        "by its time stamp"
    );
    let node = young(300);
    assert_eq!(
        suspicious(&node).record_confirmation(
            &node,
            InstanceObservation::NotFound,
            &GOOD,
            secs(299),
            wall()
        ),
        None,
        "by what was watched"
    );
    assert_eq!(
        suspicious(&node).record_confirmation(
            &node,
            InstanceObservation::NotFound,
            &GOOD,
            secs(300),
            wall()
        ),
        Some(Action::Delete(node))
    );
}

#[test]
fn a_node_that_was_never_initialised_needs_a_long_proof_and_another_node_that_is_found() {
    let taint = well_known::TAINT_UNINITIALIZED;
    let node = Arc::new(NodeView {
        provider_id: None,
        ..(*with_taint(node("n", None), taint)).clone()
    });
    let mut tracker = suspicious(&node);
    for second in (5..300).step_by(5) {
        assert_eq!(
            tracker.record_confirmation(
                &node,
                InstanceObservation::NotFound,
                &GOOD,
                secs(second),
                wall()
            ),
            None,
            "{second}"
        );
    }
    assert_eq!(
        tracker.record_confirmation(&node, InstanceObservation::NotFound, &NONE, secs(300), wall()),
        Some(refused(&node, DeletionRefusal::NoEvidence, true))
    );
    assert_eq!(
        tracker.record_confirmation(&node, InstanceObservation::NotFound, &GOOD, secs(305), wall()),
        Some(Action::Delete(node))
    );
}

#[test]
fn a_node_that_no_manager_ever_claimed_is_never_deleted() {
    let node = Arc::new(NodeView { provider_id: None, ..(*dead("n")).clone() });
    let mut tracker = strict();
    for second in (0..10_000).step_by(5) {
        let (questions, _) = tracker.plan_queries(&[node.clone()], secs(second));
        assert!(questions.confirmations.is_empty());
        for node in questions.routine {
            assert_eq!(
                tracker.record_routine(&node, InstanceObservation::NotFound, secs(second)),
                None
            );
        }
    }
    assert_eq!(
        tracker.record_routine(&node, InstanceObservation::ShutDown, secs(10_000)),
        Some(Action::Taint(node)),
        "its taint is ours"
    );
}

#[test]
fn an_error_pauses_the_proof() {
    let node = dead("n");
    let mut tracker = suspicious(&node);
    let mut at =
        |seen, second| tracker.record_confirmation(&node, seen, &GOOD, secs(second), wall());
    assert_eq!(at(InstanceObservation::NotFound, 3), None);
    assert_eq!(at(InstanceObservation::Error, 8), None);
    assert_eq!(
        at(InstanceObservation::NotFound, 13),
        None,
        "the ten seconds of errors do not count"
    );
    assert_eq!(at(InstanceObservation::NotFound, 14), None, "four seconds so far");
    assert_eq!(
        at(InstanceObservation::NotFound, 15),
        Some(Action::Delete(node.clone())),
        "the three from before do count"
    );
}

#[test]
fn upstream_safety_deletes_on_one_answer_but_never_on_an_error() {
    let node = dead("n");
    let mut tracker = NotReadyTracker::new(PERIOD, DeletionSafety::Upstream);
    assert_eq!(tracker.record_routine(&node, InstanceObservation::Error, secs(0)), None);
    assert_eq!(
        tracker.record_routine(&node, InstanceObservation::NotFound, secs(5)),
        Some(Action::Delete(node))
    );
}

#[test]
fn an_unchanged_node_is_asked_about_less_and_less_often() {
    let nodes = [dead("n")];
    let mut tracker = strict();
    let mut asked = Vec::new();
    for second in (0..=120).step_by(5) {
        for node in tracker.plan_queries(&nodes, secs(second)).0.routine {
            asked.push(second);
            tracker.record_routine(&node, InstanceObservation::Running, secs(second));
        }
    }
    assert_eq!(asked, [0, 10, 30, 60, 90, 120]);
}

fn recorded(nodes: &[&Arc<NodeView>], answer: &InstanceStatus) -> InstanceRecords {
    let records = InstanceRecords::default();
    for node in nodes {
        records.record(node, &Ok(answer.clone()));
    }
    records
}

fn found() -> InstanceStatus {
    InstanceStatus::Found {
        power_state: PowerState::Running,
        meta: crate::provider::InstanceMetadata::default(),
    }
}

#[test]
fn controls_are_initialised_and_from_the_suspects_zone_first() {
    let ready = |name: &str, zone: &str| {
        let labels = [(well_known::LABEL_ZONE, zone)].into_iter().collect();
        Arc::new(NodeView { labels, ..node(name, Some(ConditionStatus::True)) })
    };
    let suspect = Arc::new(NodeView {
        labels: [(well_known::LABEL_ZONE, "b")].into_iter().collect(),
        ..(*dead("s")).clone()
    });
    let mut ours: Vec<_> = (0..8).map(|i| ready(&format!("a{i}"), "a")).collect();
    ours.extend([ready("b0", "b"), suspect.clone(), dead("d")]);
    ours.push(with_taint(node("u", Some(ConditionStatus::True)), well_known::TAINT_UNINITIALIZED));
    let records = InstanceRecords::default();
    for turn in 0..10 {
        let controls = choose_controls(&ours, &[suspect.clone()], &records, turn);
        assert_eq!(controls.len(), MAX_CONTROLS);
        assert_eq!(&*controls[0].name, "b0");
        assert!(
            controls
                .iter()
                .all(|n| n.is_ready() && !n.is_uninitialized())
        );
    }
    assert!(choose_controls(&[suspect.clone()], &[suspect], &records, 0).is_empty());
}

#[test]
fn controls_are_what_the_cloud_can_know() {
    let ready = |name: &str| Arc::new(node(name, Some(ConditionStatus::True)));
    let without_id = Arc::new(NodeView { provider_id: None, ..(*ready("virtual")).clone() });
    let chosen = |ours: &[Arc<NodeView>], records: &InstanceRecords| -> Vec<String> {
        choose_controls(ours, &[dead("s")], records, 0)
            .iter()
            .map(|node| node.name.to_string())
            .collect()
    };
    let none = InstanceRecords::default();
    assert_eq!(
        chosen(&[without_id, ready("r"), dead("d")], &none),
        ["r"],
        "with an ID, and Ready while nothing is known"
    );
    // Not Ready, but the cloud has it: enough to know that it is asked rightly.
    assert_eq!(chosen(&[ready("r"), dead("d")], &recorded(&[&dead("d")], &found())), ["r", "d"]);
    assert_eq!(
        chosen(&[dead("s")], &recorded(&[&dead("s")], &found())),
        [""; 0],
        "the suspect itself"
    );
    let five = ["a", "b", "c", "d", "e"].map(ready);
    let ours = [&five[..], &[ready("aa")]].concat();
    let lost = recorded(&[&ready("aa")], &InstanceStatus::NotFound);
    assert_eq!(
        chosen(&ours, &lost),
        ["aa", "a", "b", "c", "d"],
        "one that was not found is asked about again"
    );
    let three = recorded(&[&five[0], &five[1], &five[2]], &InstanceStatus::NotFound);
    assert_eq!(
        chosen(&five, &three),
        ["a", "b", "d", "e", "c"],
        "two of those, if there are others"
    );
    let most_lost = recorded(&[&five[1], &five[2], &five[3], &five[4]], &found());
    for node in &five[1..] {
        most_lost.record(node, &Ok(InstanceStatus::NotFound));
    }
    assert_eq!(
        chosen(&ours, &most_lost),
        ["b", "c", "d", "e", "a"],
        "only they can show that they are not gone"
    );
}

#[test]
fn the_cluster_is_counted_by_what_the_cloud_last_answered() {
    let without_id = Arc::new(NodeView { provider_id: None, ..(*dead("x")).clone() });
    let ready = |name: &str| Arc::new(node(name, Some(ConditionStatus::True)));
    let ours = [dead("a"), dead("b"), dead("c"), without_id, ready("virtual"), ready("denied")];
    let records = recorded(&[&ours[0], &ours[1], &ours[4]], &InstanceStatus::NotFound);
    records.record(&ours[1], &Ok(found()));
    records.record(&ours[5], &Ok(found()));
    records.record(&ours[5], &Ok(InstanceStatus::NotFound));
    assert_eq!(ClusterCount::new(&ours, &records), ClusterCount { gone: 2, all: 4 });
}

fn any_seen() -> impl Strategy<Value = InstanceObservation> {
    prop_oneof![
        4 => Just(InstanceObservation::NotFound),
        1 => Just(InstanceObservation::ShutDown),
        1 => Just(InstanceObservation::Running),
        1 => Just(InstanceObservation::OtherState),
        1 => Just(InstanceObservation::Error),
        1 => Just(InstanceObservation::Terminated),
    ]
}

proptest! {
    /// The invariant itself: whatever the cloud answers and however long, a deletion follows only
    /// answers of absence for a period with no sighting in between, and evidence that the question
    /// is right.
    #[test]
    fn no_deletion_without_proof(
        steps in prop::collection::vec(
            (any_seen(), 0..=5_usize, (0..=1_usize, 0..=1_usize, 0..=1_usize), any::<bool>(), 0..=3_usize, 1..20_u64),
            1..60,
        ),
    ) {
        let node = dead("n");
        let mut tracker = strict();
        let mut now = secs(0);
        let mut absent_since: Option<Duration> = None;
        for (seen, found, (lost, still_lost, denied), was_found, gone, pause) in steps {
            let controls = ControlResults { found, lost, still_lost };
            let record = was_found.then_some(WAS_FOUND);
            let evidence = DeletionEvidence { controls, record, lost_ready_nodes: denied, cluster: ClusterCount { gone, all: 3 }, ..GOOD };
            let (questions, _) = tracker.plan_queries(&[node.clone()], now);
            let action = if questions.confirmations.is_empty() {
                if questions.routine.is_empty() { now += secs(pause); continue }
                tracker.record_routine(&node, seen, now)
            } else {
                tracker.record_confirmation(&node, seen, &evidence, now, wall())
            };
            match seen {
                InstanceObservation::NotFound | InstanceObservation::Terminated => { absent_since.get_or_insert(now); }
                InstanceObservation::Error => {}
                _ => absent_since = None,
            }
            if matches!(action, Some(Action::Delete(_))) {
                let proved = now.saturating_sub(absent_since.unwrap());
                prop_assert!(proved >= PERIOD);
                let sure = found > 0 || (was_found && still_lost == 0);
                prop_assert!(seen == InstanceObservation::Terminated || (lost == 0 && denied == 0 && gone < 2 && sure));
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
        let nodes: Vec<(Arc<NodeView>, InstanceObservation)> = nodes
            .into_iter()
            .enumerate()
            .map(|(at, (ready, taint, deleting, seen))| {
                let ready = ready.map(|ready| if ready { ConditionStatus::True } else { ConditionStatus::Unknown });
                let plain = NodeView { deleting, ..node(&format!("n{at}"), ready) };
                let node = match taint {
                    0 => Arc::new(plain),
                    1 => with_taint(plain, well_known::TAINT_SHUTDOWN),
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
                let taint = Taint { key: well_known::TAINT_SHUTDOWN.into(), value: "".into(), effect: TaintEffect::NoSchedule };
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

/// The first pass of a process over nodes, each with its answer; actions by the names of their
/// nodes.
fn pass(nodes: &[(Arc<NodeView>, InstanceObservation)]) -> Vec<Action> {
    let mut tracker = strict();
    let all: Vec<_> = nodes.iter().map(|(node, _)| node.clone()).collect();
    let (questions, mut actions) = tracker.plan_queries(&all, secs(0));
    for node in questions.routine {
        let seen = nodes
            .iter()
            .find(|(known, _)| known.name == node.name)
            .map_or(InstanceObservation::Error, |(_, seen)| *seen);
        actions.extend(tracker.record_routine(&node, seen, secs(0)));
    }
    actions.sort_by_key(|action| format!("{action:?}"));
    actions
}
