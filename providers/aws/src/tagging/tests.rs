//! The tagging controller on the in-memory AWS and the embedded API server.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroUsize,
};

use ccm_core::write_gate::WriteGate;
use ccm_testkit::apiserver::{ApiServer, Options as ServerOptions};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, PostParams};
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::json;
use tokio::task::JoinHandle;

use super::*;
use crate::{
    api::{Action, Call, InstanceId, Tags},
    client::Client,
    config::{Limits, Rate, Settings},
    fake::FakeCluster,
    ownership_tags::Cluster,
};

/// Of `key1=value1,key2=value2`.
const CHECKSUM: &str = "c812faa65d1d5e5aefa6b069b3da39df";
/// Of `key1=value1`.
const OTHER: &str = "9767c4972ba72e87ab553bad2afde741";
const FARGATE: &str = "aws:///us-west-2a/2ea696a557-9e55466d21eb4f83a99a9aa396bbd134/fargate-ip-10-0-55-27.us-west-2.compute.internal";

/// The nodes that the controller sees: those of the API server as they were last shown.
#[derive(Default)]
struct View(Mutex<HashMap<String, Arc<NodeView>>>);

impl CacheReader<NodeView> for View {
    fn get(&self, key: &str) -> Option<Arc<NodeView>> {
        self.0.lock().get(key).cloned()
    }

    fn list(&self) -> Vec<Arc<NodeView>> {
        self.0.lock().values().cloned().collect()
    }
}

/// A cluster with nodes that are shown to the controller.
pub(crate) struct Fixture {
    world: FakeCluster,
    /// The controller's way to AWS, if it is not the account's own.
    pub(crate) client: Option<Client>,
    server: ApiServer,
    view: Arc<View>,
    created: Timestamp,
    registry: Registry,
    stop: CancellationToken,
    limits: Option<Limits>,
    running: Option<JoinHandle<Result<(), CloudError>>>,
}

pub(crate) fn options(batching: bool) -> Options {
    let tags: Tags = [("key2", "value2"), ("key1", "value1")]
        .map(|(k, v)| (k.into(), v.into()))
        .into();
    Options { tags, rate: None, workers: NonZeroUsize::MIN, batching }
}

impl Fixture {
    fn new(nodes: usize) -> Self {
        Self::of(FakeCluster::small(nodes))
    }

    pub(crate) fn of(world: FakeCluster) -> Self {
        Self {
            world,
            client: None,
            server: ApiServer::new(ServerOptions::default()),
            view: Arc::default(),
            created: Timestamp::UNIX_EPOCH,
            registry: Registry::new(),
            stop: CancellationToken::new(),
            limits: None,
            running: None,
        }
    }

    fn young(nodes: usize) -> Self {
        Self::new(nodes).with_young_nodes()
    }

    pub(crate) fn with_young_nodes(self) -> Self {
        Self { created: Timestamp::now(), ..self }
    }

    fn api(&self) -> Api<Node> {
        Api::all(self.server.client())
    }

    async fn register(&self, name: &str, provider_id: &str, label: &str) {
        let labels = if label.is_empty() {
            json!({})
        } else {
            json!({LABEL: label})
        };
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels}, "spec": {"providerID": provider_id},
        });
        self.api()
            .create(&PostParams::default(), &serde_json::from_value(node).unwrap())
            .await
            .unwrap();
        self.show().await;
    }

    pub(crate) async fn register_all(&self) {
        for (i, id) in self.world.nodes.iter().enumerate() {
            self.register(&format!("n{i}"), id, "").await;
        }
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.api()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
        self.show().await;
    }

    /// Shows the controller the nodes as they are.
    async fn show(&self) {
        let view = |node: Node| {
            let (name, meta) = (node.metadata.name.clone().unwrap(), &node.metadata);
            let labels: BTreeMap<_, _> = meta.labels.clone().unwrap_or_default();
            let view = NodeView {
                uid: meta.uid.clone().unwrap().into(),
                resource_version: meta.resource_version.clone().unwrap().into(),
                created: self.created,
                labels: labels
                    .iter()
                    .map(|(key, value)| (&**key, &**value))
                    .collect(),
                provider_id: node.spec.and_then(|spec| spec.provider_id).map(Into::into),
                ..NodeView::named(&name)
            };
            (name, Arc::new(view))
        };
        let nodes = self
            .api()
            .list(&kube::api::ListParams::default())
            .await
            .unwrap();
        *self.view.0.lock() = nodes.items.into_iter().map(view).collect();
    }

    pub(crate) fn start(&mut self, options: Options) {
        self.start_under(options, WriteGate::always_open());
    }

    fn start_under(&mut self, options: Options, gate: WriteGate) {
        let client = self
            .client
            .clone()
            .unwrap_or_else(|| self.world.aws.client());
        let scope = Scope {
            client: self.limits.iter().fold(client, Client::with_limits),
            cluster: Cluster::new("test", false),
            region: "us-west-2".into(),
            vpc: self.world.vpc.clone(),
            settings: Arc::new(Settings::default()),
        };
        let ctx = ProviderContext {
            cluster_name: "kubernetes".into(),
            cancel: self.stop.clone(),
            metrics: self.registry.clone(),
            write_gate: gate,
            nodes: self.view.clone(),
            services: None,
            endpoint_slices: None,
            client: self.server.client(),
        };
        let controller = controller(options, scope);
        assert_eq!(controller.name, NAME);
        self.running = Some(tokio::spawn((controller.run)(ctx)));
    }

    /// Lets some time pass, with the nodes shown as they are.
    pub(crate) async fn wait(&self, seconds: u64) {
        for _ in 0..seconds {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.show().await;
        }
    }

    /// Has the process die amid whatever it does; the next one knows nothing.
    pub(crate) async fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.abort();
            drop(running.await);
        }
        self.registry = Registry::new();
    }

    async fn stop(&mut self) {
        self.stop.cancel();
        self.running.take().unwrap().await.unwrap().unwrap();
    }

    pub(crate) fn is_tagged(&self, id: &InstanceId) -> bool {
        let tags = self.world.aws.tags(id);
        assert!(tags.contains_key("kubernetes.io/cluster/test"), "somebody else's tag is gone");
        tags.contains_key("key1") && tags.contains_key("key2")
    }

    pub(crate) async fn label(&self, name: &str) -> Option<String> {
        self.api()
            .get(name)
            .await
            .unwrap()
            .metadata
            .labels?
            .get(LABEL)
            .cloned()
    }

    fn calls(&self) -> (usize, usize) {
        (self.world.aws.calls(Action::CreateTags), self.world.aws.calls(Action::DeleteTags))
    }

    /// Reads a series: counters by their error type, the count of the histogram.
    fn metric(&self, name: &str, error_type: &str) -> u64 {
        let family = self
            .registry
            .gather()
            .into_iter()
            .find(|family| family.name() == name);
        let metrics = family
            .iter()
            .flat_map(prometheus::proto::MetricFamily::get_metric);
        let fits = |metric: &&prometheus::proto::Metric| {
            metric
                .get_label()
                .iter()
                .all(|label| label.name() != "error_type" || label.value() == error_type)
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "counters are small whole numbers"
        )]
        metrics
            .filter(fits)
            .map(|metric| {
                metric.get_counter().get_value() as u64 + metric.get_histogram().get_sample_count()
            })
            .sum()
    }

    fn errors(&self, error_type: &str) -> u64 {
        self.metric("cloudprovider_aws_tagging_controller_work_item_errors_total", error_type)
    }
}

// TC1, TA4
#[tokio::test(start_paused = true)]
async fn new_nodes_are_tagged_and_labelled_and_untagged_when_they_are_gone() {
    for batching in [true, false] {
        let mut rig = Fixture::young(3);
        rig.register_all().await;
        rig.start(options(batching));
        rig.wait(5).await;
        for (i, id) in rig.world.nodes.iter().enumerate() {
            assert!(rig.is_tagged(id));
            assert_eq!(rig.label(&format!("n{i}")).await.as_deref(), Some(CHECKSUM));
        }
        assert_eq!(rig.calls(), (if batching { 1 } else { 3 }, 0));
        assert_eq!(rig.metric("tagging_controller_inital_node_tagging_delay_seconds", ""), 3);
        rig.delete("n1").await;
        rig.wait(5).await;
        let tagged: Vec<_> = rig.world.nodes.iter().map(|id| rig.is_tagged(id)).collect();
        assert_eq!(tagged, [true, false, true]);
        assert_eq!(rig.calls().1, 1);
        assert_eq!(rig.errors("total_errors"), 0);
        rig.stop().await;
    }
}

// TC1
#[tokio::test(start_paused = true)]
async fn other_tags_lead_to_a_new_round_and_the_same_ones_to_none() {
    for batching in [true, false] {
        let mut rig = Fixture::new(2);
        rig.register("other", &rig.world.nodes[0], OTHER).await;
        rig.register("same", &rig.world.nodes[1], CHECKSUM).await;
        rig.start(options(batching));
        rig.wait(5).await;
        assert_eq!(
            (rig.is_tagged(&rig.world.nodes[0]), rig.is_tagged(&rig.world.nodes[1])),
            (true, false)
        );
        assert_eq!(rig.label("other").await.as_deref(), Some(CHECKSUM));
        assert_eq!(rig.calls(), (1, 0));
        assert_eq!(rig.metric("tagging_controller_inital_node_tagging_delay_seconds", ""), 0);
        rig.stop().await;
    }
}

// TC1
#[tokio::test(start_paused = true)]
async fn up_to_fifty_instances_are_tagged_with_one_request() {
    let mut rig = Fixture::new(120);
    rig.register_all().await;
    rig.start(options(true));
    rig.wait(10).await;
    let sizes: Vec<_> = rig
        .world
        .aws
        .log()
        .iter()
        .filter_map(|call| match call {
            Call::CreateTags(call) => Some(call.resources.len()),
            _ => None,
        })
        .collect();
    assert_eq!(sizes, [50, 50, 20]);
    rig.stop().await;
}

// TC1
#[tokio::test(start_paused = true)]
async fn nodes_without_instances_of_ec2_are_left_alone() {
    for batching in [true, false] {
        let mut rig = Fixture::new(0);
        for (name, id) in
            [("fargate", FARGATE), ("gce", "gce://p/z/n"), ("kwok", "i-kwok"), ("none", "")]
        {
            rig.register(name, id, "").await;
        }
        rig.world.aws.fail_always(Action::CreateTags, "InvalidID");
        rig.world.aws.fail_always(Action::DeleteTags, "InvalidID");
        rig.start(options(batching));
        rig.wait(30).await;
        for name in ["fargate", "gce", "kwok", "none"] {
            assert_eq!(rig.label(name).await, None);
            rig.delete(name).await;
        }
        rig.wait(30).await;
        assert_eq!(rig.calls(), (1, 1));
        assert_eq!(
            (rig.errors("total_errors"), rig.errors("errors_after_retries_exhausted")),
            (0, 0)
        );
        rig.stop().await;
    }
}

// TC1, TA4
#[tokio::test(start_paused = true)]
async fn a_young_node_whose_instance_is_not_known_yet_is_tagged_later_and_an_old_one_is_skipped() {
    for batching in [true, false] {
        let mut rig = Fixture::young(1);
        rig.register_all().await;
        for _ in 0..3 {
            rig.world
                .aws
                .fail_next(Action::CreateTags, "InvalidInstanceID.NotFound");
        }
        rig.start(options(batching));
        rig.wait(20).await;
        assert!(rig.is_tagged(&rig.world.nodes[0]));
        assert_eq!((rig.calls().0, rig.errors("total_errors")), (4, 3));
        rig.delete("n0").await;
        rig.wait(5).await;
        assert_eq!(
            (rig.calls().1, rig.errors("total_errors")),
            (1, 0),
            "series of instances that are gone add up"
        );
        rig.stop().await;

        let mut rig = Fixture::new(0);
        rig.register("old", "i-0123456789abcdef0", "").await;
        rig.start(options(batching));
        rig.wait(20).await;
        assert_eq!((rig.calls(), rig.label("old").await), ((1, 0), None));
        rig.delete("old").await;
        rig.wait(20).await;
        assert_eq!((rig.calls(), rig.errors("total_errors")), ((1, 1), 0));
        rig.stop().await;
    }
}

// TC1, TA4
#[tokio::test(start_paused = true)]
async fn failures_are_retried_nine_times_and_then_counted_as_exhausted() {
    for batching in [true, false] {
        let mut rig = Fixture::new(1);
        rig.register_all().await;
        rig.world
            .aws
            .fail_always(Action::CreateTags, "SomethingNew");
        rig.world
            .aws
            .fail_always(Action::DeleteTags, "SomethingNew");
        rig.start(options(batching));
        rig.wait(600).await;
        assert_eq!(rig.calls(), (10, 0));
        assert_eq!(
            (rig.errors("total_errors"), rig.errors("errors_after_retries_exhausted")),
            (9, 1)
        );
        rig.delete("n0").await;
        rig.wait(600).await;
        assert_eq!(rig.calls(), (10, 10));
        assert_eq!(
            (rig.errors("total_errors"), rig.errors("errors_after_retries_exhausted")),
            (18, 2)
        );
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_instance_that_aws_refuses_does_not_hold_up_the_others_of_its_batch() {
    let mut rig = Fixture::new(2);
    rig.register_all().await;
    rig.register("gone", "i-0123456789abcdef0", "").await;
    rig.start(options(true));
    rig.wait(20).await;
    assert!(rig.world.nodes.iter().all(|id| rig.is_tagged(id)));
    assert_eq!(rig.calls(), (4, 0));
    rig.stop().await;
}

// TC2
#[tokio::test(start_paused = true)]
async fn equal_items_are_in_line_once() {
    let rig = Fixture::new(0);
    let scope = Scope {
        client: rig.world.aws.client(),
        cluster: Cluster::new("test", false),
        region: "us-west-2".into(),
        vpc: rig.world.vpc.clone(),
        settings: Arc::new(Settings::default()),
    };
    let ctx = ProviderContext {
        cluster_name: "kubernetes".into(),
        cancel: rig.stop.clone(),
        metrics: rig.registry.clone(),
        write_gate: WriteGate::always_open(),
        nodes: rig.view.clone(),
        services: None,
        endpoint_slices: None,
        client: rig.server.client(),
    };
    let metrics = Metrics::register(&rig.registry).unwrap();
    let tagging = TaggingController::new(options(true), scope, ctx, metrics);
    let item =
        |operation, node: &str, id: &str| Item::new(operation, &node.into(), Some(&id.into()));
    let mut lengths = Vec::new();
    for next in [
        item(TagOperation::Tag, "node0", "i-1"),
        item(TagOperation::Tag, "node0", "i-1"),
        item(TagOperation::Untag, "node0", "i-1"),
        item(TagOperation::Tag, "node1", "i-2"),
    ] {
        tagging.enqueue(next);
        lengths.push(tagging.tag_queue.queue.len() + tagging.untag_queue.queue.len());
    }
    assert_eq!(lengths, [1, 1, 2, 3]);
}

// TC1
#[tokio::test(start_paused = true)]
async fn a_limit_spreads_the_nodes_over_time() {
    let mut rig = Fixture::new(6);
    rig.register_all().await;
    rig.start(Options {
        rate: Some(Rate { per_second: 0.5, burst: 2 }),
        ..options(false)
    });
    rig.wait(1).await;
    assert_eq!(rig.calls().0, 2);
    rig.wait(4).await;
    assert_eq!(rig.calls().0, 4);
    rig.wait(10).await;
    assert_eq!(rig.calls().0, 6);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_node_came_back_keeps_its_tags() {
    let mut rig = Fixture::new(1);
    rig.register_all().await;
    rig.start(options(true));
    rig.wait(5).await;
    rig.world
        .aws
        .fail_always(Action::DeleteTags, "SomethingNew");
    rig.delete("n0").await;
    rig.wait(3).await;
    rig.register("again", &rig.world.nodes[0], "").await;
    rig.world.aws.clear_faults();
    rig.wait(30).await;
    assert!(rig.is_tagged(&rig.world.nodes[0]));
    assert_eq!(rig.label("again").await.as_deref(), Some(CHECKSUM));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_leadership_nothing_is_tagged() {
    let mut rig = Fixture::new(1);
    rig.register_all().await;
    rig.start_under(options(true), WriteGate::always_closed());
    rig.wait(30).await;
    assert_eq!(rig.calls(), (0, 0));
    assert_eq!(rig.label("n0").await, None);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_permission_is_waited_for_as_long_as_that_takes() {
    let mut rig = Fixture::new(1);
    rig.register_all().await;
    rig.world
        .aws
        .fail_next(Action::CreateTags, "UnauthorizedOperation");
    rig.start(options(true));
    rig.wait(50).await;
    assert_eq!(rig.calls(), (1, 0));
    rig.wait(20).await;
    assert_eq!(rig.calls(), (2, 0));
    assert!(rig.is_tagged(&rig.world.nodes[0]));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_two_nodes_is_named_once() {
    let mut rig = Fixture::new(1);
    for name in ["a", "b"] {
        rig.register(name, &rig.world.nodes[0], "").await;
    }
    rig.start(options(true));
    rig.wait(5).await;
    let Some(Call::CreateTags(request)) = rig.world.aws.log().pop() else {
        panic!("{:?}", rig.world.aws.log())
    };
    assert_eq!(request.resources, [Box::from(rig.world.nodes[0].as_str())]);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_or_another_one_by_now_is_not_labelled() {
    let mut rig = Fixture::new(2);
    rig.register_all().await;
    let seen = std::mem::take(&mut *rig.view.0.lock());
    rig.delete("n0").await;
    rig.register("n0", "i-0123456789abcdef0", "").await;
    rig.delete("n1").await;
    *rig.view.0.lock() = seen;
    rig.start(options(false));
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!((rig.calls(), rig.label("n0").await), ((2, 0), None));
    assert_eq!(rig.errors("total_errors"), 1, "the one that is gone is no failure");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn each_request_may_wait_for_its_turn() {
    let mut rig = Fixture::new(8);
    rig.limits = Some(Limits {
        ec2_write: Rate { per_second: 1.0, burst: 1 },
        ..Limits::default()
    });
    rig.register_all().await;
    rig.start(options(false));
    rig.wait(20).await;
    assert!(rig.world.nodes.iter().all(|id| rig.is_tagged(id)));
    assert_eq!(rig.errors("total_errors"), 0);
    rig.stop().await;
}
