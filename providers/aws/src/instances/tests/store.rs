//! The snapshot: who is answered from it, and what AWS is asked.

use std::collections::BTreeSet;

use super::*;
use crate::{
    api::{Call, ec2::InstanceState},
    instances::Instance,
};

const FRESH: Duration = Duration::ZERO;
const TEN_MINUTES: Duration = Duration::from_secs(600);

impl Fixture {
    async fn look_up(
        &self,
        ids: &[InstanceId],
        age: Duration,
    ) -> HashMap<InstanceId, Option<Arc<Instance>>> {
        self.store.get_many(&self.op, ids, age).await.unwrap()
    }

    fn asked(&self) -> Vec<DescribeInstances> {
        let log = self.world.aws.log().into_iter();
        log.filter_map(|call| {
            if let Call::DescribeInstances(call) = call {
                Some(call)
            } else {
                None
            }
        })
        .collect()
    }
}

fn unknown(n: u32) -> InstanceId {
    format!("i-0bad{n:013x}").into()
}

// IN17
#[tokio::test(start_paused = true)]
async fn three_concurrent_questions_are_one_call_and_each_gets_its_own() {
    let rig = Fixture::new(3);
    let ids: Vec<[InstanceId; 1]> = rig.world.nodes.iter().map(|id| [id.clone()]).collect();
    let (a, b, c) = tokio::join!(
        rig.look_up(&ids[0], FRESH),
        rig.look_up(&ids[1], FRESH),
        rig.look_up(&ids[2], FRESH)
    );
    assert_eq!(rig.calls(Action::DescribeInstances), 1);
    for (answers, id) in [a, b, c].iter().zip(&rig.world.nodes) {
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[id].as_ref().unwrap().id, *id);
    }
}

// IN17
#[tokio::test(start_paused = true)]
async fn a_question_for_three_is_one_call_with_three_answers() {
    let rig = Fixture::new(3);
    let answers = rig.look_up(&rig.world.nodes, FRESH).await;
    assert_eq!((answers.len(), rig.calls(Action::DescribeInstances)), (3, 1));
    assert!(answers.values().all(Option::is_some));
}

// IN17
#[tokio::test(start_paused = true)]
async fn an_unknown_id_is_absent_and_does_not_fail_the_others() {
    let rig = Fixture::new(2);
    let ids = [rig.world.nodes[0].clone(), unknown(1), rig.world.nodes[1].clone()];
    let answers = rig.look_up(&ids, FRESH).await;
    assert_eq!(answers[&ids[1]], None);
    assert!(answers[&ids[0]].is_some() && answers[&ids[2]].is_some());
    // All; without the one; the one alone.
    assert_eq!(rig.calls(Action::DescribeInstances), 3);
    assert!(
        rig.asked().iter().any(|call| call.ids == [unknown(1)]),
        "proof is a question for it alone"
    );
}

// IN20
#[tokio::test(start_paused = true)]
async fn one_unknown_of_three_leaves_two() {
    let rig = Fixture::new(2);
    let mut ids = rig.world.nodes.clone();
    ids.push(unknown(1));
    assert_eq!(
        rig.look_up(&ids, TEN_MINUTES)
            .await
            .values()
            .flatten()
            .count(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn a_hundred_gone_instances_cost_a_handful_of_calls() {
    let rig = Fixture::new(200);
    let mut ids = rig.world.nodes.clone();
    ids.extend((0..100).map(unknown));
    // Smaller than what a listing is worth, so that IDs are asked for.
    let mut answers = HashMap::new();
    for ids in ids.chunks(150) {
        answers.extend(rig.look_up(ids, FRESH).await);
    }
    assert_eq!(answers.values().flatten().count(), 200);
    assert_eq!(answers.len(), 300);
    assert!(rig.calls(Action::DescribeInstances) <= 5, "{}", rig.calls(Action::DescribeInstances));
}

#[tokio::test(start_paused = true)]
async fn a_malformed_id_is_no_proof_and_asked_for_once_a_day() {
    let rig = Fixture::new(2);
    let odd: InstanceId = "i-simulated".into();
    let mut ids = rig.world.nodes.clone();
    ids.push(odd.clone());
    for _ in 0..3 {
        let answers = rig.look_up(&ids, FRESH).await;
        assert_eq!(answers.values().flatten().count(), 2);
        assert!(!answers.contains_key(&odd));
    }
    let about_odd = rig
        .asked()
        .iter()
        .filter(|call| call.ids.contains(&odd))
        .count();
    assert_eq!((about_odd, rig.calls(Action::DescribeInstances)), (1, 4));
    let each = rig.store.get_each(&rig.op, [(odd.clone(), FRESH)]).await;
    assert!(
        each[&odd]
            .as_ref()
            .unwrap_err()
            .has_code("InvalidInstanceID.Malformed")
    );
}

#[tokio::test(start_paused = true)]
async fn malformed_ids_in_numbers_do_not_use_up_the_budget() {
    let rig = Fixture::new(1);
    let mut ids: Vec<InstanceId> = (0..500)
        .map(|n| format!("i-simulated-{n}").into())
        .collect();
    ids.push(rig.world.nodes[0].clone());
    let answers = rig
        .store
        .get_each(&rig.op, ids.iter().map(|id| (id.clone(), FRESH)))
        .await;
    assert_eq!(answers.len(), 501);
    assert_eq!(answers.values().filter(|answer| answer.is_ok()).count(), 1);
    assert!(rig.calls(Action::DescribeInstances) <= 45, "{}", rig.calls(Action::DescribeInstances));
}

// IN19, IN21
#[tokio::test(start_paused = true)]
async fn what_is_fresh_enough_is_not_asked_for_and_what_is_missing_alone() {
    let mut rig = Fixture::new(2);
    rig.look_up(&rig.world.nodes, TEN_MINUTES).await;
    assert_eq!(rig.calls(Action::DescribeInstances), 1);
    rig.look_up(&rig.world.nodes[..1], TEN_MINUTES).await;
    rig.look_up(&[], FRESH).await;
    assert_eq!(rig.calls(Action::DescribeInstances), 1, "all present: no call");
    let new = rig.world.add_node();
    let answers = rig.look_up(&rig.world.nodes, TEN_MINUTES).await;
    assert_eq!(answers.values().flatten().count(), 3);
    assert_eq!(rig.asked().last().unwrap().ids, [new], "one missing: it alone");
    tokio::time::advance(Duration::from_secs(599)).await;
    rig.look_up(&rig.world.nodes[..1], TEN_MINUTES).await;
    assert_eq!(rig.calls(Action::DescribeInstances), 2);
    tokio::time::advance(Duration::from_secs(2)).await;
    rig.look_up(&rig.world.nodes[..1], TEN_MINUTES).await;
    assert_eq!(rig.calls(Action::DescribeInstances), 3, "too old");
}

#[tokio::test(start_paused = true)]
async fn zero_age_asks_even_at_the_same_instant() {
    let rig = Fixture::new(1);
    rig.look_up(&rig.world.nodes, FRESH).await;
    rig.world.aws.terminate(&rig.world.nodes[0]);
    let answers = rig.look_up(&rig.world.nodes, FRESH).await;
    assert!(
        answers[&rig.world.nodes[0]]
            .as_ref()
            .unwrap()
            .is_terminated()
    );
}

#[tokio::test(start_paused = true)]
async fn an_absence_is_believed_for_ten_seconds_at_most() {
    let rig = Fixture::new(0);
    rig.world
        .aws
        .configure(|knobs| knobs.describe_lag = Duration::from_secs(5));
    let id = rig.instance().launch();
    assert_eq!(rig.look_up(&[id.clone()], TEN_MINUTES).await[&id], None);
    let calls = rig.calls(Action::DescribeInstances);
    rig.look_up(&[id.clone()], TEN_MINUTES).await;
    assert_eq!(rig.calls(Action::DescribeInstances), calls);
    tokio::time::advance(Duration::from_secs(11)).await;
    assert!(rig.look_up(&[id.clone()], TEN_MINUTES).await[&id].is_some());
}

// IN18
#[tokio::test(start_paused = true)]
async fn a_listing_is_filtered_paged_and_shared() {
    let rig = Fixture::new(25);
    rig.world
        .aws
        .configure(|knobs| (knobs.page_size, knobs.latency) = (10, Duration::from_millis(100)));
    let foreign = rig
        .world
        .aws
        .instance(&rig.world.private[0])
        .tag("kubernetes.io/cluster/other", "owned")
        .launch();
    let (a, b) = tokio::join!(rig.store.list_all(&rig.op), rig.store.list_all(&rig.op));
    a.and(b).unwrap();
    let pages = rig.asked();
    assert_eq!(pages.len(), 3);
    for page in &pages {
        assert_eq!((page.ids.len(), page.max_results), (0, Some(1000)));
        assert!(page.filters.iter().any(|filter| *filter.name == *"tag-key"), "{:?}", page.filters);
    }
    rig.look_up(&rig.world.nodes, TEN_MINUTES).await;
    assert_eq!(rig.calls(Action::DescribeInstances), 3, "the listing answers");
    assert!(
        rig.look_up(&[foreign.clone()], TEN_MINUTES).await[&foreign].is_some(),
        "by ID, whatever its tags"
    );
    assert_eq!(rig.asked()[3].max_results, None, "not together with IDs");
    rig.store.list_all(&rig.op).await.unwrap();
    assert_eq!(rig.calls(Action::DescribeInstances), 7, "a later one asks again");
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_a_request_shares_its_failure_and_nobody_else() {
    let rig = Fixture::new(2);
    rig.world
        .aws
        .fail_next(Action::DescribeInstances, "UnauthorizedOperation");
    let ids = rig.world.nodes.clone();
    let (a, b) = tokio::join!(
        rig.store.get_many(&rig.op, &ids[..1], FRESH),
        rig.store.get_many(&rig.op, &ids[1..], FRESH)
    );
    assert!(
        a.unwrap_err().has_code("UnauthorizedOperation")
            && b.unwrap_err().has_code("UnauthorizedOperation")
    );
    assert_eq!(rig.calls(Action::DescribeInstances), 1);
    assert_eq!(rig.look_up(&ids, FRESH).await.values().flatten().count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failure_does_not_forget_what_is_known() {
    let rig = Fixture::new(1);
    rig.look_up(&rig.world.nodes, FRESH).await;
    rig.world
        .aws
        .fail_always(Action::DescribeInstances, "UnauthorizedOperation");
    assert!(
        rig.store
            .get_many(&rig.op, &rig.world.nodes, FRESH)
            .await
            .is_err()
    );
    assert!(rig.look_up(&rig.world.nodes, TEN_MINUTES).await[&rig.world.nodes[0]].is_some());
}

#[tokio::test(start_paused = true)]
async fn whoever_is_dropped_half_way_holds_up_nobody() {
    let rig = Fixture::new(2);
    rig.world
        .aws
        .configure(|knobs| knobs.latency = Duration::from_secs(5));
    let first = rig.store.get_many(&rig.op, &rig.world.nodes[..1], FRESH);
    let second = rig.store.get_many(&rig.op, &rig.world.nodes[1..], FRESH);
    let dropped = async {
        tokio::time::timeout(Duration::from_secs(1), first)
            .await
            .is_err()
    };
    let (dropped, answers) = tokio::join!(dropped, second);
    assert!(dropped);
    assert_eq!(answers.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_operation_fails_alone() {
    let rig = Fixture::new(2);
    rig.world
        .aws
        .configure(|knobs| knobs.latency = Duration::from_secs(5));
    let cancel = tokio_util::sync::CancellationToken::new();
    let op = Op::new("kubernetes", cancel.clone(), WriteGate::always_open());
    let first = rig.store.get_many(&op, &rig.world.nodes[..1], FRESH);
    let second = rig.store.get_many(&rig.op, &rig.world.nodes[1..], FRESH);
    let cancelling = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cancel.cancel();
    };
    let (first, second, ()) = tokio::join!(first, second, cancelling);
    assert_eq!(CloudError::from(first.unwrap_err()).kind(), ErrorKind::Canceled);
    assert_eq!(second.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_asks_about_is_forgotten_after_an_hour() {
    let rig = Fixture::new(3);
    rig.look_up(&rig.world.nodes, FRESH).await;
    for _ in 0..7 {
        tokio::time::advance(Duration::from_secs(600)).await;
        rig.look_up(&rig.world.nodes[..1], FRESH).await;
    }
    assert_eq!(rig.store.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn equal_texts_are_kept_once() {
    let rig = Fixture::new(2);
    let answers = rig.look_up(&rig.world.nodes, FRESH).await;
    let types: BTreeSet<_> = answers
        .values()
        .flatten()
        .map(|one| one.instance_type.as_ptr())
        .collect();
    let groups: BTreeSet<_> = answers
        .values()
        .flatten()
        .map(|one| one.security_groups[0].as_ptr())
        .collect();
    assert_eq!((types.len(), groups.len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_does_not_take_the_place_of_a_newer_one() {
    let rig = Fixture::new(0);
    let id = rig.instance().private_ip("10.0.128.100").launch();
    rig.world
        .aws
        .configure(|knobs| knobs.latency = Duration::from_secs(2));
    let slow = rig.ask_one(query(
        named("ip-10-0-128-100.us-west-2.compute.internal"),
        MetadataScope::Addresses,
    ));
    let newer = async {
        // AWS has looked at the name by now, and its answer is on its way.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        rig.world
            .aws
            .configure(|knobs| knobs.latency = Duration::ZERO);
        rig.world.aws.set_state(&id, InstanceState::Stopped);
        rig.look_up(std::slice::from_ref(&id), FRESH).await;
    };
    let (found, ()) = tokio::join!(slow, newer);
    found.unwrap();
    let known = rig.look_up(std::slice::from_ref(&id), TEN_MINUTES).await;
    assert_eq!(known[&id].as_ref().unwrap().state, Some(InstanceState::Stopped));
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_one_request_is_not_tried_with_the_next() {
    let rig = Fixture::new(1);
    rig.world
        .aws
        .fail_always(Action::DescribeInstances, "UnauthorizedOperation");
    let ids = [rig.world.nodes[0].clone(), "i-simulated".into()];
    let answers = rig
        .store
        .get_each(&rig.op, ids.iter().map(|id| (id.clone(), FRESH)))
        .await;
    assert!(answers.len() == 2 && answers.values().all(Result::is_err));
    assert_eq!(rig.calls(Action::DescribeInstances), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_listing_leaves_out_is_asked_for_by_id() {
    let mut rig = Fixture::new(250);
    let untagged = rig.world.aws.instance(&rig.world.private[0]).launch();
    rig.world.nodes.push(untagged.clone());
    let answers = rig.look_up(&rig.world.nodes, FRESH).await;
    assert!(answers[&untagged].is_some());
    assert_eq!(rig.calls(Action::DescribeInstances), 2, "the listing, and the one");
}
