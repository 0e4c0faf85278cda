//! Routes of a provider that answers as a test wants.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::{
    k8s::{AddressType, NodeAddress, NodeView},
    provider::{
        CloudError, CloudProvider, ErrorKind, NodeOwnership, Op, Progress, Route, RouteChange,
        Routes,
    },
};
use ccm_mock::{MockCloud, MockProvider};
use parking_lot::Mutex;
use serde_json::json;

use crate::{
    cluster::{Ccm, TestCluster, initialized, secs},
    routes::{CLUSTER, MINUTE, NOT_READY, join, network, routes, until_ready},
};

pub(crate) type Listed = Result<Vec<Route>, CloudError>;
pub(crate) type Applied = Vec<Result<Progress, CloudError>>;
type Retouch = Box<dyn Fn(&[RouteChange], Applied) -> Applied + Send + Sync>;

/// The mock's routes; what it lists and what it answers goes through a test's hands.
pub(crate) struct Scripted {
    pub(crate) inner: MockProvider,
    pub(crate) list: Box<dyn Fn(Listed) -> Listed + Send + Sync>,
    pub(crate) apply: Retouch,
    pub(crate) hangs: Mutex<bool>,
}

impl Scripted {
    pub(crate) fn over(cloud: &MockCloud) -> Self {
        let inner = MockProvider::new_in_process(cloud.clone());
        Self {
            inner,
            list: Box::new(|listed| listed),
            apply: Box::new(|_, applied| applied),
            hangs: Mutex::new(false),
        }
    }

    pub(crate) fn start(self, world: &TestCluster) -> Ccm {
        let flags = ["--controllers=node-route-controller", CLUSTER];
        world.start_with(Arc::new(self), &flags)
    }
}

#[async_trait]
impl CloudProvider for Scripted {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        self.inner.node_ownership(node)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self)
    }
}

#[async_trait]
impl Routes for Scripted {
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Listed {
        (self.list)(self.inner.list(op, nodes).await)
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Applied {
        if std::mem::take(&mut *self.hangs.lock()) {
            std::future::pending::<()>().await;
        }
        (self.apply)(changes, self.inner.apply(op, changes).await)
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_without_routes_after_all_is_asked_once() {
    let world = TestCluster::provisioned();
    let list = |_| Err(CloudError::new(ErrorKind::NotImplemented, "no route table"));
    let ccm = Scripted { list: Box::new(list), ..Scripted::over(&world.cloud) }.start(&world);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    tokio::time::sleep(60 * MINUTE).await;
    assert!(ccm.is_running());
    assert_eq!(ccm.metric("ccm_cloud_calls_total", &[("operation", "list_routes")]), 1.0);
    assert_eq!((network(&world, "a"), world.writes()), (String::new(), vec![]));
}

#[tokio::test(start_paused = true)]
async fn too_few_answers_are_no_answers() {
    let world = TestCluster::provisioned();
    let apply = |_: &[RouteChange], mut applied: Applied| {
        applied.pop();
        applied
    };
    let ccm = Scripted { apply: Box::new(apply), ..Scripted::over(&world.cloud) }.start(&world);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    world
        .until("it is not believed", secs(5), || network(&world, "a") == NOT_READY)
        .await;
    // The routes were made all the same, and the next list shows them.
    until_ready(&world, &["a"], secs(20)).await;
    assert_eq!(ccm.metric("ccm_route_changes_total", &[("outcome", "transient")]), 1.0);
    assert_eq!(ccm.metric("ccm_route_changes_total", &[]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_after_two_minutes_and_is_repeated() {
    let world = TestCluster::provisioned();
    let scripted = Scripted { hangs: Mutex::new(true), ..Scripted::over(&world.cloud) };
    let _ccm = scripted.start(&world);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    let took = until_ready(&world, &["a"], secs(200)).await;
    assert!((secs(120)..secs(125)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_full_table_is_told_and_room_that_a_deletion_makes_is_used_at_once() {
    let world = TestCluster::provisioned();
    let cloud = world.cloud.clone();
    // Room for two routes.
    let apply = move |changes: &[RouteChange], applied: Applied| {
        let mut answers = applied;
        for (change, answer) in changes.iter().zip(&mut answers) {
            if let RouteChange::Create { node, .. } = change
                && cloud.routes().len() > 2
            {
                let route = cloud
                    .routes()
                    .into_iter()
                    .find(|route| route.node == *node.name)
                    .unwrap();
                cloud.delete_route(&route.name);
                *answer = Err(CloudError::new(ErrorKind::QuotaExceeded, "the route table is full"));
            }
        }
        answers
    };
    let _ccm = Scripted { apply: Box::new(apply), ..Scripted::over(&world.cloud) }.start(&world);
    for (i, name) in ["a", "b", "c"].iter().enumerate() {
        join(&world, initialized(name), &[&format!("10.244.{i}.0/24")]).await;
        tokio::time::sleep(secs(2)).await;
    }
    assert_eq!(network(&world, "c"), NOT_READY);
    tokio::time::sleep(MINUTE).await;
    assert_eq!(world.events(), [("FailedToCreateRoute".to_owned(), 1)]);
    crate::routes::remove(&world, "a");
    until_ready(&world, &["c"], secs(5)).await;
    assert_eq!(routes(&world), ["b 10.244.1.0/24", "c 10.244.2.0/24"]);
}

/// A provider that lists the addresses that a route was made for has it replaced when they change.
#[tokio::test(start_paused = true)]
async fn routes_follow_the_addresses_of_their_node_where_the_provider_compares_them() {
    let world = TestCluster::provisioned();
    let made_for: Arc<Mutex<Vec<NodeAddress>>> = Arc::default();
    let (listed, applied) = (made_for.clone(), made_for.clone());
    let list = move |routes: Listed| {
        let addresses = listed.lock().clone();
        routes.map(|routes| {
            routes
                .into_iter()
                .map(|r| Route { node_addresses: Some(addresses.clone()), ..r })
                .collect()
        })
    };
    let apply = move |changes: &[RouteChange], answers: Applied| {
        for change in changes {
            if let RouteChange::Create { node, .. } = change {
                *applied.lock() = node.addresses.to_vec();
            }
        }
        answers
    };
    let scripted = Scripted {
        list: Box::new(list),
        apply: Box::new(apply),
        ..Scripted::over(&world.cloud)
    };
    let ccm = scripted.start(&world);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    until_ready(&world, &["a"], secs(5)).await;
    world.edit("a", |node| {
        node["status"]["addresses"] = json!([{"type": "InternalIP", "address": "10.9.9.9"}]);
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(*made_for.lock(), [NodeAddress::new(AddressType::InternalIp, "10.9.9.9")]);
    tokio::time::sleep(MINUTE).await;
    assert_eq!(ccm.metric("ccm_route_changes_total", &[("change", "create")]), 2.0);
    assert_eq!(ccm.metric("ccm_route_changes_total", &[("change", "delete")]), 1.0);
    assert_eq!(
        world.node_writes().len(),
        1,
        "the network was never lost for longer than the replacement took"
    );
}

/// The cloud accepts a change and completes it later.
#[tokio::test(start_paused = true)]
async fn a_route_that_the_cloud_works_on_is_told_only_after_ten_minutes() {
    for (works, told) in [(secs(30), 0_u8), (11 * MINUTE, 1)] {
        let world = TestCluster::provisioned();
        let begun = tokio::time::Instant::now();
        // The mock has the route at once, but shows it when it is completed.
        let list = move |routes: Listed| match begun.elapsed() < works {
            true => Ok(Vec::new()),
            false => routes,
        };
        let apply = |changes: &[RouteChange], _: Applied| {
            let pending = Progress::Pending { after: secs(5), reason: "action 7 runs".into() };
            vec![Ok(pending); changes.len()]
        };
        let scripted = Scripted {
            list: Box::new(list),
            apply: Box::new(apply),
            ..Scripted::over(&world.cloud)
        };
        let ccm = scripted.start(&world);
        join(&world, initialized("a"), &["10.244.1.0/24"]).await;
        tokio::time::sleep(works.saturating_sub(secs(1))).await;
        assert_eq!(network(&world, "a"), NOT_READY, "{works:?}");
        assert_eq!(ccm.metric("ccm_route_changes_failing", &[]), f64::from(told));
        until_ready(&world, &["a"], secs(20)).await;
        assert_eq!(world.event_count("FailedToCreateRoute"), u64::from(told), "{works:?}");
        assert_eq!(ccm.metric("ccm_route_changes_total", &[]), 0.0);
    }
}
