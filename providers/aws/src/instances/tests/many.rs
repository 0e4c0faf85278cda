//! Large clusters, and questions in any order.

use ccm_core::provider::BatchLimits;
use proptest::prelude::*;

use super::*;

impl Fixture {
    /// Asks about many nodes as the framework does: as many at once as the provider takes.
    async fn ask_all(&self, queries: &[InstanceQuery]) -> Vec<Result<InstanceStatus, CloudError>> {
        let BatchLimits { max_batch, .. } = self.instances.limits();
        let mut answers = Vec::new();
        for batch in queries.chunks(max_batch.get()) {
            answers.extend(self.ask(batch).await);
        }
        answers
    }
}

fn all_initialised(answers: &[Result<InstanceStatus, CloudError>]) {
    for answer in answers {
        let Ok(InstanceStatus::Found { meta, .. }) = answer else {
            panic!("{answer:?}")
        };
        assert!(
            !meta.addresses.is_empty()
                && meta.provider_id.is_some()
                && !meta.additional_labels.is_empty()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_nodes_with_provider_id_are_initialised_in_three_calls() {
    let rig = Fixture::new(1000);
    let queries: Vec<_> = rig
        .world
        .nodes
        .iter()
        .map(|id| query(node_of(id), MetadataScope::All))
        .collect();
    all_initialised(&rig.ask_all(&queries).await);
    assert_eq!(rig.world.aws.requests(), 3, "{:?}", rig.world.aws.actions());
}

#[tokio::test(start_paused = true)]
async fn a_thousand_nodes_without_provider_id_are_initialised_in_three_calls() {
    let rig = Fixture::new(1000);
    let queries: Vec<_> = rig
        .names()
        .await
        .iter()
        .map(|name| query(named(name), MetadataScope::All))
        .collect();
    all_initialised(&rig.ask_all(&queries).await);
    assert_eq!(rig.world.aws.requests(), 3, "{:?}", rig.world.aws.actions());
}

#[tokio::test(start_paused = true)]
async fn a_thousand_nodes_with_topology_are_initialised_in_twenty_calls() {
    let mut rig = Fixture::new(0);
    for n in 0..1000 {
        let instance =
            rig.instance()
                .private_ip(format!("10.0.{}.{}", 128 + n / 200, 10 + n % 200));
        let id = instance
            .instance_type("p5en.48xlarge")
            .network_nodes(&["nn-1", "nn-2", "nn-3"])
            .launch();
        rig.world.nodes.push(id);
    }
    let mut open: Vec<_> = rig
        .world
        .nodes
        .iter()
        .map(|id| query(node_of(id), MetadataScope::All))
        .collect();
    for _ in 0..4 {
        let answers = rig.ask_all(&open).await;
        let failed = |answer: &&Result<InstanceStatus, CloudError>| answer.is_err();
        assert!(
            answers
                .iter()
                .filter(failed)
                .all(|answer| kind(answer) == Some(ErrorKind::Throttled))
        );
        open = open
            .into_iter()
            .zip(answers)
            .filter(|(_, answer)| answer.is_err())
            .map(|(query, _)| query)
            .collect();
    }
    assert!(open.is_empty());
    assert!(rig.world.aws.requests() <= 20, "{:?}", rig.world.aws.actions());
    assert_eq!(rig.calls(Action::DescribeInstanceTopology), 10);
}

#[tokio::test(start_paused = true)]
async fn polling_a_thousand_nodes_is_one_call() {
    let rig = Fixture::new(1000);
    let queries: Vec<_> = rig
        .world
        .nodes
        .iter()
        .map(|id| aged(node_of(id), MetadataScope::PowerState, 5))
        .collect();
    rig.ask_all(&queries).await;
    assert_eq!(rig.world.aws.requests(), 1);
    rig.ask_all(&queries).await;
    assert_eq!(rig.world.aws.requests(), 1);
    let update: Vec<_> = rig
        .world
        .nodes
        .iter()
        .map(|id| aged(node_of(id), MetadataScope::Addresses, 30))
        .collect();
    rig.ask_all(&update).await;
    assert_eq!(rig.world.aws.requests(), 1, "one snapshot serves every consumer");
}

// IN8
#[tokio::test(start_paused = true)]
async fn names_of_a_part_of_a_large_cluster_are_two_filtered_calls() {
    let rig = Fixture::new(1100);
    rig.world.aws.configure(|knobs| knobs.page_size = 500);
    rig.store.list_all(&rig.op).await.unwrap();
    rig.world.aws.reset_calls();
    let queries: Vec<_> = rig.names().await[..200]
        .iter()
        .map(|name| query(named(name), MetadataScope::PowerState))
        .collect();
    let answers = rig.ask_all(&queries).await;
    assert!(
        answers
            .iter()
            .all(|answer| power(answer) == Some(PowerState::Running))
    );
    assert_eq!(rig.calls(Action::DescribeInstances), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn each_query_has_its_own_answer_in_any_order_and_however_often(picks in prop::collection::vec(0_usize..9, 0..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let rig = Fixture::new(3);
            rig.world.aws.fargate(&rig.world.private[0], "10.0.128.88", "");
            let name = rig.names().await.remove(1);
            rig.world.aws.forget_instance(&rig.world.nodes[2]);
            let cases: [(NodeView, Option<&str>); 9] = [
                (node_of(&rig.world.nodes[0]), Some("here")),
                (node_of(&rig.world.nodes[1]), Some("here")),
                (node_of(&rig.world.nodes[2]), Some("gone")),
                (named(&name), Some("here")),
                (named("ip-10-0-99-99.us-west-2.compute.internal"), Some("gone")),
                (named("worker"), None),
                (node("aws:///a/i-odd"), None),
                (node("aws:///a/vol-1"), None),
                (node("aws:///a/b/fargate-10.0.128.88"), Some("here")),
            ];
            let queries: Vec<_> = picks.iter().map(|pick| query(cases[*pick].0.clone(), MetadataScope::PowerState)).collect();
            let answers = rig.ask(&queries).await;
            let seen = answers.iter().map(|answer| match answer {
                Ok(InstanceStatus::Found { .. }) => Some("here"),
                Ok(InstanceStatus::NotFound) => Some("gone"),
                Err(_) => None,
            });
            prop_assert!(seen.eq(picks.iter().map(|pick| cases[*pick].1)), "{:?} {:?}", picks, answers);
            Ok(())
        })?;
    }
}
