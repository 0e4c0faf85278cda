//! How many requests things cost.

use ccm_core::provider::{Progress, ReadMode};

use super::fixture::{Fixture, service};

/// Looks at the state of one balancer while it is busy.
fn is_poll(request: &str) -> bool {
    request.starts_with("GET /load-balancer/v2.0/lbaas/loadbalancers/")
}

fn but_polls(rig: &Fixture) -> Vec<String> {
    rig.requests()
        .into_iter()
        .filter(|request| !is_poll(request))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_new_service_costs_six_requests_and_looks() {
    let rig = Fixture::new(3).await;
    rig.settle(&service("web", &[80, 443])).await;
    let requests = but_polls(&rig);
    assert!(requests.len() <= 6, "{requests:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_in_line_costs_nothing_and_its_comparison_two() {
    let rig = Fixture::new(3).await;
    let web = rig.settle(&service("web", &[80, 443])).await;
    rig.requests();
    assert!(matches!(rig.ensure(&web, ReadMode::Cached).await.result, Ok(Progress::Done)));
    assert_eq!(rig.requests(), [""; 0]);
    assert!(matches!(rig.ensure(&web, ReadMode::Fresh).await.result, Ok(Progress::Done)));
    let requests = rig.requests();
    assert!(requests.len() <= 2, "{requests:#?}");
    assert_eq!(rig.plan(&web).await.unwrap(), []);
    let requests = rig.requests();
    assert!(requests.len() <= 2, "{requests:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_costs_one_batch_for_each_pool() {
    let mut rig = Fixture::new(3).await;
    let web = rig.settle(&service("web", &[80, 443])).await;
    rig.requests();
    rig.add_node().await;
    rig.update(&web).await.unwrap();
    let requests = but_polls(&rig);
    assert_eq!(requests.len(), 2, "{requests:#?}");
    assert!(
        requests
            .iter()
            .all(|request| request.starts_with("PUT") && request.ends_with("/members"))
    );
    assert_eq!((rig.members(80).len(), rig.members(443).len()), (4, 4));
    rig.requests();
    rig.update(&web).await.unwrap();
    assert_eq!(rig.requests(), [""; 0]);
    assert!(matches!(rig.ensure(&web, ReadMode::Cached).await.result, Ok(Progress::Done)));
    assert_eq!(rig.requests(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_costs_five_requests_and_looks() {
    let rig = Fixture::new(3).await;
    let web = rig.settle(&service("web", &[80, 443])).await;
    rig.requests();
    rig.remove(&web).await;
    let requests = but_polls(&rig);
    assert!(requests.len() <= 5, "{requests:#?}");
}
