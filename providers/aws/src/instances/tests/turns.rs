//! Questions with used-up budgets.

use tokio::time::Instant;

use super::*;
use crate::config::Rate;

#[tokio::test(start_paused = true)]
async fn a_question_with_used_up_budgets_is_brief_and_is_never_answered_with_absence() {
    let slow = Rate { per_second: 0.9, burst: 1 };
    let limits = Limits { ec2_read: slow, topology: slow, ..Limits::default() };
    let rig = Fixture::limited(20, &limits);
    let (world, ids) = (&rig.world, &rig.world.nodes);
    let mut queries: Vec<InstanceQuery> = ids
        .iter()
        .map(|id| aged(node_of(id), MetadataScope::All, 600))
        .collect();
    for i in 0..20 {
        let node = named(&format!(
            "ip-10-0-{}-{}.us-west-2.compute.internal",
            128 + 16 * (i % 3),
            10 + i / 3
        ));
        queries.push(aged(node, MetadataScope::All, 600));
    }
    for calls in 1.. {
        let op = rig.op.clone().with_fresh_sleep_budget();
        let begin = Instant::now();
        let answers = rig.instances.describe(&op, &queries).await.unwrap();
        assert!(begin.elapsed() <= Duration::from_millis(2001), "{:?}", begin.elapsed());
        let failed: Vec<_> = answers
            .iter()
            .filter_map(|answer| answer.as_ref().err())
            .collect();
        for error in &failed {
            assert_eq!(error.kind(), ErrorKind::Throttled, "{error:?}");
            assert!(error.retry_after().is_some(), "{error:?}");
        }
        assert!(
            answers
                .iter()
                .flatten()
                .all(|presence| *presence != InstanceStatus::NotFound)
        );
        if failed.is_empty() {
            assert!(calls > 1 && world.aws.requests() < 15, "{calls} {:?}", world.aws.actions());
            break;
        }
        assert!(calls < 20, "{failed:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
