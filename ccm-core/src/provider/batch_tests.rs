use std::num::NonZeroUsize;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    k8s::NodeView,
    provider::{InstanceMetadata, Instances, MetadataScope, PowerState},
    write_gate::WriteGate,
};

/// A cloud that knows every node whose name does not start with "gone", and takes 100 ms per call.
#[derive(Default)]
struct Cloud {
    batches: Mutex<Vec<Vec<String>>>,
    in_flight: Mutex<(usize, usize)>,
    fail_next: Mutex<Vec<CloudError>>,
    short: bool,
    hangs: bool,
}

#[async_trait]
impl Instances for Arc<Cloud> {
    fn limits(&self) -> BatchLimits {
        BatchLimits {
            max_batch: NonZeroUsize::new(10).unwrap(),
            max_in_flight: NonZeroUsize::new(2).unwrap(),
            batch_window: Duration::from_millis(10),
        }
    }

    async fn describe(
        &self,
        _: &Op,
        queries: &[InstanceQuery],
    ) -> Result<Vec<DescribeResult>, CloudError> {
        self.batches
            .lock()
            .push(queries.iter().map(|q| q.node.name.to_string()).collect());
        {
            let mut flying = self.in_flight.lock();
            flying.0 += 1;
            flying.1 = flying.1.max(flying.0);
        }
        tokio::time::sleep(if self.hangs {
            Duration::from_secs(3600)
        } else {
            Duration::from_millis(100)
        })
        .await;
        self.in_flight.lock().0 -= 1;
        assert!(
            !queries.iter().any(|query| &*query.node.name == "poison"),
            "a node that the code cannot take"
        );
        if let Some(error) = self.fail_next.lock().pop() {
            return Err(error);
        }
        let answer = |q: &InstanceQuery| match q.node.name.starts_with("gone") {
            true => Ok(InstanceStatus::NotFound),
            false => {
                let meta = InstanceMetadata {
                    provider_id: Some(q.node.name[..].into()),
                    ..Default::default()
                };
                Ok(InstanceStatus::Found { power_state: PowerState::Running, meta })
            }
        };
        Ok(queries
            .iter()
            .skip(usize::from(self.short))
            .map(answer)
            .collect())
    }
}

struct Provider(Arc<Cloud>);

#[async_trait]
impl CloudProvider for Provider {
    fn name(&self) -> &'static str {
        "test"
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(&self.0)
    }
}

fn start(cloud: &Arc<Cloud>) -> (InstanceBatcher, tokio::task::JoinHandle<()>) {
    let op = Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open());
    let metrics = CloudMetrics::register(&prometheus::Registry::new()).unwrap();
    let (coalescer, driver) =
        InstanceBatcher::new(Arc::new(Provider(cloud.clone())), op, metrics).unwrap();
    (coalescer, tokio::spawn(driver.run()))
}

fn query(name: &str) -> InstanceQuery {
    InstanceQuery {
        node: Arc::new(NodeView::named(name)),
        scope: MetadataScope::PowerState,
        max_age: Duration::ZERO,
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_questions_share_full_batches_and_each_gets_its_own_answer() {
    let cloud = Arc::new(Cloud::default());
    let (coalescer, driver) = start(&cloud);
    let names: Vec<_> = (0..25)
        .map(|i| format!("{}-{i}", if i % 3 == 0 { "gone" } else { "node" }))
        .collect();
    let answers = coalescer
        .describe_many(names.iter().map(|n| query(n)).collect())
        .await;
    for (name, answer) in names.iter().zip(answers) {
        match answer.unwrap() {
            InstanceStatus::NotFound => assert!(name.starts_with("gone")),
            InstanceStatus::Found { meta, .. } => {
                assert_eq!(meta.provider_id.as_deref(), Some(&name[..]));
            }
        }
    }
    assert_eq!(
        cloud
            .batches
            .lock()
            .iter()
            .map(Vec::len)
            .collect::<Vec<_>>(),
        [10, 10, 5]
    );
    assert_eq!(cloud.in_flight.lock().1, 2, "never more in flight than the provider allows");
    drop(coalescer);
    driver.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_node_asked_about_twice_is_described_once() {
    let cloud = Arc::new(Cloud::default());
    let (coalescer, _driver) = start(&cloud);
    let answers = coalescer
        .describe_many(vec![query("a"), query("a"), query("b")])
        .await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(*cloud.batches.lock(), [["a", "b"]]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_the_providers_code_panics_about_spoils_no_other() {
    let cloud = Arc::new(Cloud::default());
    let (coalescer, driver) = start(&cloud);
    let answers = coalescer
        .describe_many(vec![query("a"), query("poison"), query("gone")])
        .await;
    assert!(matches!(answers[0], Ok(InstanceStatus::Found { .. })));
    assert_eq!(answers[1].as_ref().unwrap_err().kind(), ErrorKind::Transient);
    assert!(
        answers[1]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("panicked")
    );
    assert_eq!(answers[2].as_ref().unwrap(), &InstanceStatus::NotFound);
    let alone = coalescer.describe(query("poison")).await;
    assert!(alone.is_err(), "and it goes on");
    drop(coalescer);
    driver.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_batch_fails_every_question_and_is_never_an_absence() {
    let cloud = Arc::new(Cloud::default());
    cloud
        .fail_next
        .lock()
        .push(CloudError::new(ErrorKind::Denied, "no"));
    let (coalescer, _driver) = start(&cloud);
    for answer in coalescer
        .describe_many(vec![query("gone-1"), query("a")])
        .await
    {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Denied);
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_answers_too_few_is_not_believed() {
    let cloud = Arc::new(Cloud { short: true, ..Cloud::default() });
    let (coalescer, _driver) = start(&cloud);
    for answer in coalescer
        .describe_many(vec![query("a"), query("gone-1")])
        .await
    {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Transient);
    }
}

#[tokio::test(start_paused = true)]
async fn a_throttled_answer_pauses_the_capability_for_the_time_it_names() {
    let cloud = Arc::new(Cloud::default());
    let error =
        CloudError::new(ErrorKind::Throttled, "slow down").with_retry_after(Duration::from_secs(7));
    cloud.fail_next.lock().push(error);
    let (coalescer, _driver) = start(&cloud);
    let begin = Instant::now();
    assert!(coalescer.describe(query("a")).await.is_err());
    assert!(coalescer.describe(query("b")).await.is_ok());
    assert!(begin.elapsed() >= Duration::from_secs(7), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_during_a_pause_goes_in_full_batches_after_it() {
    let cloud = Arc::new(Cloud::default());
    cloud
        .fail_next
        .lock()
        .push(CloudError::new(ErrorKind::Throttled, "slow down"));
    let (coalescer, _driver) = start(&cloud);
    assert!(coalescer.describe(query("a")).await.is_err());
    let one_by_one = (0..20).map(|i| {
        let coalescer = coalescer.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(40) * i).await;
            coalescer.describe(query(&format!("n{i}"))).await
        }
    });
    assert!(
        futures::future::join_all(one_by_one)
            .await
            .iter()
            .all(Result::is_ok)
    );
    assert_eq!(
        cloud
            .batches
            .lock()
            .iter()
            .map(Vec::len)
            .collect::<Vec<_>>(),
        [1, 10, 10]
    );
}

#[tokio::test(start_paused = true)]
async fn questions_asked_together_stay_together_and_alone() {
    let cloud = Arc::new(Cloud::default());
    let (coalescer, _driver) = start(&cloud);
    let group = vec![query("a"), query("gone-1"), query("b")];
    let (single, together) =
        tokio::join!(coalescer.describe(query("c")), coalescer.describe_exclusive(group));
    assert!(single.is_ok());
    let absent: Vec<_> = together
        .into_iter()
        .map(|a| a.unwrap() == InstanceStatus::NotFound)
        .collect();
    assert_eq!(absent, [false, true, false]);
    let mut batches = cloud.batches.lock().clone();
    batches.sort();
    assert_eq!(batches, [vec!["a", "gone-1", "b"], vec!["c"]]);
}

#[tokio::test(start_paused = true)]
async fn a_group_larger_than_a_batch_is_cut_and_still_answered_in_order() {
    let cloud = Arc::new(Cloud::default());
    let (coalescer, _driver) = start(&cloud);
    let names: Vec<_> = (0..25).map(|i| format!("n{i}")).collect();
    let answers = coalescer
        .describe_exclusive(names.iter().map(|n| query(n)).collect())
        .await;
    for (name, answer) in names.iter().zip(answers) {
        let InstanceStatus::Found { meta, .. } = answer.unwrap() else {
            panic!("{name} is there")
        };
        assert_eq!(meta.provider_id.as_deref(), Some(&name[..]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_as_a_failure_worth_a_retry() {
    let cloud = Arc::new(Cloud { hangs: true, ..Cloud::default() });
    let (coalescer, _driver) = start(&cloud);
    let begin = Instant::now();
    assert_eq!(coalescer.describe(query("a")).await.unwrap_err().kind(), ErrorKind::Transient);
    assert!(begin.elapsed() < CALL_TIMEOUT * 2);
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_questions_fills_batches() {
    let cloud = Arc::new(Cloud::default());
    let (coalescer, _driver) = start(&cloud);
    let ask = |i: u64| {
        let coalescer = coalescer.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(5 * i)).await;
            coalescer.describe(query(&format!("n{i}"))).await
        }
    };
    let answers = futures::future::join_all((0..30).map(ask)).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(
        cloud
            .batches
            .lock()
            .iter()
            .map(Vec::len)
            .collect::<Vec<_>>(),
        [10, 10, 10]
    );
}

#[tokio::test(start_paused = true)]
async fn no_question_waits_longer_than_ten_windows() {
    let cloud = Arc::new(Cloud::default());
    let (coalescer, _driver) = start(&cloud);
    let begin = Instant::now();
    let slow_stream = futures::future::join_all((0..40).map(|i| {
        let coalescer = coalescer.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(9) * i).await;
            coalescer.describe(query("same")).await
        }
    }));
    let (first, _) = tokio::join!(
        async {
            coalescer
                .describe(query("first"))
                .await
                .map(|_| begin.elapsed())
        },
        slow_stream
    );
    assert!(first.unwrap() <= Duration::from_millis(100 + 100 + 10));
}
