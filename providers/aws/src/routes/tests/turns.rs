//! Calls with used-up budgets.

use ccm_core::write_gate::WriteGate;
use tokio::time::Instant;

use super::*;
use crate::config::{Limits, Rate};

#[tokio::test(start_paused = true)]
async fn a_pass_with_used_up_budgets_is_brief_and_the_next_ones_do_the_rest() {
    let (world, slow) = (FakeCluster::small(12), Rate { per_second: 2.0, burst: 1 });
    let client = world.aws.client().with_limits(&Limits {
        ec2_read: slow,
        ec2_write: slow,
        ..Limits::default()
    });
    let rig = Fixture::through(client, world, Settings::default(), Cluster::new("test", false));
    let most = Duration::from_millis(2001);
    let mut open: Vec<_> = (0..12)
        .map(|i| RouteChange::Create { node: rig.nodes[i].clone(), destination: pod_cidr(i) })
        .collect();
    for passes in 1.. {
        let op = Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open());
        let begin = Instant::now();
        let answers = rig.routes.apply(&op, &open).await;
        assert!(begin.elapsed() <= most, "{:?}", begin.elapsed());
        let left = open
            .into_iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.is_err());
        open = left.map(|(change, _)| change).collect();
        for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert_eq!(error.kind(), ErrorKind::Throttled, "{error:?}");
            assert!(error.retry_after().is_some(), "{error:?}");
        }
        if open.is_empty() {
            assert!(passes > 2, "{passes}");
            break;
        }
        assert!(passes < 20, "{open:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(rig.world.aws.calls(Action::CreateRoute), 12);
    for _ in 0..10 {
        let op = Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open());
        let begin = Instant::now();
        match rig.routes.list(&op, &rig.nodes).await {
            Ok(routes) => assert_eq!(routes.len(), 12),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Throttled, "{error:?}"),
        }
        assert!(begin.elapsed() <= most, "{:?}", begin.elapsed());
    }
}
