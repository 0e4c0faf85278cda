use std::collections::BTreeMap;

use ccm_core::provider::{InstanceQuery, InstanceStatus, MetadataScope};

use super::*;
use crate::{
    api::{AwsError, AwsErrorCause},
    fake::{CLUSTER, FakeCluster},
};

/// Nothing answers, as outside EC2.
struct NoMetadata;

#[async_trait]
impl Metadata for NoMetadata {
    async fn get(&self, _: &str) -> Result<Option<String>, AwsError> {
        Err(AwsError {
            action: None,
            cause: AwsErrorCause::NoResponse(Arc::from(Box::from("no route"))),
        })
    }
}

fn op() -> Op {
    Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
}

async fn provider(world: &FakeCluster) -> AwsProvider {
    let text = format!(
        "[Global]\nRegion = us-west-2\nVPC = {}\nKubernetesClusterID = {CLUSTER}",
        world.vpc
    );
    let settings = crate::config::parse(&text).unwrap();
    AwsProvider::connect(settings, world.aws.transport(), Arc::new(NoMetadata))
        .await
        .unwrap()
}

#[tokio::test]
async fn configured_provider_asks_nothing_and_has_every_capability() {
    let world = FakeCluster::small(1);
    let provider = provider(&world).await;
    assert_eq!(world.aws.requests(), 0);
    assert_eq!((provider.name(), provider.has_cluster_id()), ("aws", true));
    assert!(provider.instances().is_some() && provider.routes().is_some());
    assert!(provider.controllers().is_empty());
    assert!(provider.node_fields().all_labels, "annotations name labels of target nodes");
}

#[tokio::test]
async fn nodes_of_other_clouds_are_foreign() {
    let world = FakeCluster::small(0);
    let provider = provider(&world).await;
    let cases = [
        (None, NodeOwnership::Ours),
        (Some("aws:///us-west-2a/i-1"), NodeOwnership::Ours),
        (
            Some("aws:///us-west-2a/x/fargate-ip-10-0-0-1.us-west-2.compute.internal"),
            NodeOwnership::Ours,
        ),
        (Some("i-1"), NodeOwnership::Ours),
        (Some("aws:///nonsense"), NodeOwnership::Ours),
        (Some("openstack:///x"), NodeOwnership::Foreign),
        (Some("awsx:///us-west-2a/i-1"), NodeOwnership::Foreign),
        (Some("AWS:///us-west-2a/i-1"), NodeOwnership::Foreign),
    ];
    for (id, claim) in cases {
        let node = NodeView { provider_id: id.map(Into::into), ..NodeView::named("n") };
        assert_eq!(provider.node_ownership(&node), claim, "{id:?}");
    }
}

#[tokio::test]
async fn every_change_has_its_counter_from_the_start() {
    let provider = provider(&FakeCluster::small(0)).await;
    let operations: BTreeSet<_> = provider.mutation_operations().iter().copied().collect();
    assert_eq!(operations.len(), provider.mutation_operations().len(), "each once");
    for action in Action::ALL {
        assert_eq!(
            operations.contains(action.operation()),
            action.class() == RequestClass::Write,
            "{action:?}"
        );
    }
}

#[tokio::test]
async fn metrics_are_offered_once_however_often_it_starts() {
    let provider = provider(&FakeCluster::small(0)).await;
    let registry = Registry::new();
    for _ in 0..2 {
        provider.register_metrics(&registry).unwrap();
    }
    provider.prime_instance_cache(&op()).await;
    assert!(
        registry
            .gather()
            .iter()
            .any(|family| family.name() == "cloudprovider_aws_api_request_duration_seconds")
    );
    let (other, taken) = (provider_of_nothing().await, registry);
    assert!(
        other.register_metrics(&taken).is_err(),
        "a second provider has no place beside the first"
    );
}

async fn provider_of_nothing() -> AwsProvider {
    provider(&FakeCluster::small(0)).await
}

#[tokio::test(start_paused = true)]
async fn after_a_warm_start_nodes_cost_no_request_of_their_own() {
    let world = FakeCluster::small(3);
    let provider = provider(&world).await;
    provider.prime_instance_cache(&op()).await;
    assert_eq!(world.aws.actions(), [Action::DescribeInstances]);
    let query = |id: &crate::api::InstanceId| {
        let node = NodeView {
            provider_id: Some(format!("aws:///us-west-2a/{id}").into()),
            ..NodeView::named(id)
        };
        InstanceQuery {
            node: Arc::new(node),
            scope: MetadataScope::Addresses,
            max_age: Duration::from_secs(60),
        }
    };
    let queries: Vec<_> = world.nodes.iter().map(query).collect();
    let answers = provider
        .instances()
        .unwrap()
        .describe(&op(), &queries)
        .await
        .unwrap();
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Ok(InstanceStatus::Found { .. }))),
        "{answers:?}"
    );
    assert_eq!(world.aws.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cold_start_is_no_failure() {
    let world = FakeCluster::small(1);
    world.aws.deny(Action::DescribeInstances);
    let provider = provider(&world).await;
    provider.prime_instance_cache(&op()).await;
    assert!(provider.instances().is_some());
}

#[tokio::test]
async fn tagging_controller_is_there_when_asked_for() {
    let texts = BTreeMap::from([("tags", "a=b".to_owned()), ("resources", "instance".to_owned())]);
    let provider = provider(&FakeCluster::small(0))
        .await
        .with_tagging(tagging::Options::parse(&texts).ok());
    let names: Vec<_> = provider
        .controllers()
        .iter()
        .map(|controller| controller.name)
        .collect();
    assert_eq!(names, [tagging::NAME]);
}
