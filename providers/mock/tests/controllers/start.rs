//! A cloud that is down when leadership is won.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use ccm_core::{
    manager::ManagerExit,
    provider::{CloudError, CloudProvider, Instances, ProviderContext},
    runtime::health::CheckKind,
};
use ccm_mock::MockProvider;
use ccm_testkit::apiserver::{Action, Match};
use http::StatusCode;
use tokio::time::Instant;

use crate::cluster::{AGENT, Ccm, TestCluster, is_initialized, secs};

/// A provider that asks its cloud for something when it starts.
struct Asking {
    inner: MockProvider,
    back: Instant,
    attempts: AtomicUsize,
}

#[async_trait]
impl CloudProvider for Asking {
    fn name(&self) -> &'static str {
        "mock"
    }

    async fn start(&self, _: ProviderContext) -> Result<(), CloudError> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        if Instant::now() < self.back {
            return Err(CloudError::transient("ask for the network"));
        }
        Ok(())
    }

    fn instances(&self) -> Option<&dyn Instances> {
        self.inner.instances()
    }
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_is_down_when_leadership_is_won_is_waited_for() {
    let world = TestCluster::provisioned();
    world.join(["n1"]).await;
    let back = Instant::now() + secs(600);
    let provider =
        Arc::new(Asking { inner: world.provider(), back, attempts: AtomicUsize::new(0) });
    let ccm = world.start_with(provider.clone(), &["--leader-elect=true"]);
    tokio::time::sleep(secs(500)).await;
    let failing = |ccm: &Ccm| {
        let failing = ccm
            .health
            .checks()
            .into_iter()
            .filter_map(|check| Some((check.kind(), check.run().err()?)));
        failing.collect::<Vec<_>>()
    };
    assert_eq!(
        failing(&ccm),
        [(CheckKind::Ready, "could not start: ask for the network".to_owned())]
    );
    assert!(world.node_writes().is_empty());
    world
        .until("initialised", secs(140), || is_initialized(&world.node("n1")))
        .await;
    assert_eq!(failing(&ccm), vec![]);
    assert!(provider.attempts.load(Ordering::Relaxed) < 30);
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
}

/// The role lacks one right, as after somebody cut it down: what needs it waits for it, all else
/// works.
#[tokio::test(start_paused = true)]
async fn without_the_right_to_list_services_nodes_are_initialised_and_what_is_missing_is_shown() {
    let world = TestCluster::provisioned();
    let denied = Action::Error { code: StatusCode::FORBIDDEN, retry_after: None };
    let reads = Match::resource("services").user_agent(AGENT);
    let fault = world.server.faults().add(reads, denied);
    let ccm = world.start(&["--controllers=cloud-node,cloud-node-lifecycle,service"]);
    world.join(["n1"]).await;
    world
        .until("initialised", secs(30), || is_initialized(&world.node("n1")))
        .await;
    let missing = |ccm: &Ccm| {
        let failing = ccm
            .health
            .checks()
            .into_iter()
            .filter_map(|check| Some((check.kind(), check.run().err()?)));
        failing.collect::<Vec<_>>()
    };
    let [(CheckKind::Progress, reason)] = &missing(&ccm)[..] else {
        panic!("{:?}", missing(&ccm))
    };
    assert!(reason.contains("permission to list and watch services"), "{reason}");
    assert_eq!(ccm.metric("ccm_degraded", &[("name", "service-cache")]), 1.0);
    tokio::time::sleep(secs(3600)).await;
    assert!(ccm.is_running());

    // Somebody grants it.
    world.serve("web").await;
    world.server.faults().remove(fault);
    world.until_served(&["web"], secs(120)).await;
    assert_eq!(missing(&ccm), []);
    assert_eq!(ccm.stop().await, ManagerExit::Stopped);
}
