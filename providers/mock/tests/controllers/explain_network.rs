//! Why a node has no pod CIDR or no route: explanation and event name the cause and the next step.

use std::sync::Arc;

use ccm_core::{
    explain::Cause,
    provider::{Progress, Route, RouteChange},
};
use ccm_mock::cloud::{FaultError, Operation};
use parking_lot::Mutex;

use crate::{
    cluster::{TestCluster, initialized, secs},
    explain::{assert_node, causes},
    routes::{MINUTE, READY, fault, give, join, network, put_route, start, until_ready},
    routes_provider::{Applied, Listed, Scripted},
};

const IPAM: [&str; 4] = [
    "--controllers=nodeipam",
    "--allocate-node-cidrs=true",
    "--cluster-cidr=10.0.0.0/23",
    "--node-cidr-mask-size=24",
];

#[tokio::test(start_paused = true)]
async fn a_node_for_which_there_is_no_block_says_so() {
    let world = TestCluster::provisioned();
    let ccm = world.start(&IPAM);
    for name in ["a", "b", "c"] {
        world.kubelets.register(initialized(name)).await.unwrap();
        tokio::time::sleep(secs(60)).await;
    }
    let event = Some("CIDRNotAvailable");
    let explanation = assert_node(&world, &ccm, "c", Cause::PodCidrPoolFull, event);
    assert_eq!(explanation.attempts[0].controller, "node-ipam-controller");
    assert_eq!(causes(&ccm.explanations.node("a").unwrap().causes), []);
}

#[tokio::test(start_paused = true)]
async fn a_pod_cidr_that_another_node_has_is_invalid() {
    let world = TestCluster::provisioned();
    let ccm = world.start(&IPAM);
    for name in ["a", "b"] {
        world.kubelets.register(initialized(name)).await.unwrap();
        give(&world, name, &["10.0.1.0/24"]);
    }
    tokio::time::sleep(secs(60)).await;
    let event = Some("InvalidPodCIDR");
    assert_node(&world, &ccm, "b", Cause::PodCidrInvalid, event);
}

#[tokio::test(start_paused = true)]
async fn a_node_with_a_route_has_no_cause_and_one_without_pod_cidr_says_so() {
    let world = TestCluster::provisioned();
    let ccm = start(&world, &[]);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    world.kubelets.register(initialized("b")).await.unwrap();
    until_ready(&world, &["a"], MINUTE).await;
    let explanation = ccm.explanations.node("a").unwrap();
    assert_eq!(causes(&explanation.causes), []);
    assert_eq!(explanation.pod_cidrs[0].route.as_deref(), Some("exists"));
    assert_eq!(explanation.network_unavailable.as_deref(), Some("False (RouteCreated)"));
    assert_node(&world, &ccm, "b", Cause::NoPodCidr, None);
    let routes = ccm.explanations.routes().unwrap();
    assert_eq!((routes.causes, routes.nodes_without_pod_cidr), (vec![], vec!["b".to_owned()]));
    assert_eq!(routes.last_pass.unwrap().error, None);
}

#[tokio::test(start_paused = true)]
async fn each_pod_cidr_that_gets_no_route_has_its_cause() {
    let world = TestCluster::provisioned();
    let ccm = start(&world, &[]);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    until_ready(&world, &["a"], MINUTE).await;
    join(&world, initialized("twice"), &["10.244.1.0/24"]).await;
    join(&world, initialized("outside"), &["192.168.1.0/24"]).await;
    join(&world, initialized("malformed"), &["10.244.3.0/99"]).await;
    join(&world, initialized("b").provider_id("other://1"), &["10.244.4.0/24"]).await;
    join(&world, initialized("shared"), &["10.244.4.0/24"]).await;
    tokio::time::sleep(secs(60)).await;
    for (node, cause, event) in [
        ("outside", Cause::PodCidrOutOfRange, "PodCIDROutOfRange"),
        ("twice", Cause::PodCidrOfAnotherNode, "PodCIDRConflict"),
        ("shared", Cause::PodCidrOfAnotherCloud, "PodCIDRConflict"),
        ("malformed", Cause::PodCidrInvalid, "InvalidPodCIDR"),
    ] {
        let explanation = assert_node(&world, &ccm, node, cause, None);
        assert_eq!(explanation.pod_cidrs[0].route.as_deref(), Some("will not be created"));
        let notes = world.notes(event);
        let names_both = |note: &String| {
            note.contains(&format!("node {node}:")) && note.ends_with(cause.next_step())
        };
        assert!(notes.iter().any(names_both), "{event}: {notes:?}");
    }
    let routes = ccm.explanations.routes().unwrap();
    assert_eq!(routes.causes.len(), 4, "{routes:#?}");
    assert_eq!(routes.last_pass.unwrap().managed_routes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_route_that_the_cloud_does_not_create_names_the_error() {
    for (error, cause) in [
        (FaultError::QuotaExceeded, Cause::QuotaExceeded),
        (FaultError::Invalid, Cause::CloudRejectedInput),
        (FaultError::Transient, Cause::CloudUnavailable),
    ] {
        let world = TestCluster::provisioned();
        world
            .cloud
            .set_faults(vec![fault(Operation::CreateRoute, error, Some("a"), None)]);
        let ccm = start(&world, &[]);
        let spec = initialized("a").provided_ip([10, 0, 0, 1].into());
        join(&world, spec, &["10.244.1.0/24"]).await;
        tokio::time::sleep(secs(60)).await;
        let event = Some("FailedToCreateRoute");
        let explanation = assert_node(&world, &ccm, "a", cause, event);
        let attempt = &explanation.attempts[0];
        assert_eq!(attempt.operation, "create route", "{error:?}");
        assert!(attempt.retry_at > Some(attempt.at), "{attempt:?}");
        let routes = ccm.explanations.routes().unwrap();
        assert_eq!(routes.causes[0].cause, cause, "{routes:#?}");
        let failed = &routes.failed[0];
        assert_eq!((failed.operation, failed.node.as_deref()), ("create", Some("a")));
        assert_eq!(failed.destination, "10.244.1.0/24");
    }
}

#[tokio::test(start_paused = true)]
async fn routes_that_cannot_be_listed_are_a_cause_of_nodes_without_route_alone() {
    let world = TestCluster::provisioned();
    let ccm = start(&world, &[]);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    until_ready(&world, &["a"], MINUTE).await;
    tokio::time::sleep(secs(30)).await;
    let denied = FaultError::PermissionDenied;
    world
        .cloud
        .set_faults(vec![fault(Operation::ListRoutes, denied, None, None)]);
    join(&world, initialized("b"), &["10.244.2.0/24"]).await;
    tokio::time::sleep(secs(30)).await;
    assert_node(&world, &ccm, "b", Cause::CloudAccessDenied, Some("FailedToCreateRoute"));
    assert_eq!(causes(&ccm.explanations.node("a").unwrap().causes), []);
    let routes = ccm.explanations.routes().unwrap();
    assert_eq!(routes.causes[0].cause, Cause::CloudAccessDenied);
    let pass = routes.last_pass.unwrap();
    assert!(pass.error.is_some() && pass.retry_at.is_some(), "{pass:?}");
    assert_eq!(pass.managed_routes, 1, "of the last listing that succeeded");
}

#[tokio::test(start_paused = true)]
async fn a_route_of_a_node_without_addresses_waits_for_them() {
    let world = TestCluster::provisioned();
    world.cloud.set_faults(vec![fault(
        Operation::CreateRoute,
        FaultError::Invalid,
        Some("a"),
        None,
    )]);
    let ccm = start(&world, &[]);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    tokio::time::sleep(secs(60)).await;
    let event = Some("FailedToCreateRoute");
    assert_node(&world, &ccm, "a", Cause::RouteWaitsForAddresses, event);
    // The page of all routes names the same cause.
    let routes = ccm.explanations.routes().unwrap();
    assert_eq!(causes(&routes.causes), [Cause::RouteWaitsForAddresses]);
}

#[tokio::test(start_paused = true)]
async fn a_route_that_waits_for_a_deletion_names_why_that_failed() {
    let world = TestCluster::provisioned();
    put_route(&world, "old-route", "gone", "10.244.1.0/24", false);
    let denied = FaultError::PermissionDenied;
    world
        .cloud
        .set_faults(vec![fault(Operation::DeleteRoute, denied, None, None)]);
    let ccm = start(&world, &[]);
    join(&world, initialized("a"), &["10.244.1.0/24"]).await;
    tokio::time::sleep(secs(60)).await;
    let event = Some("FailedToCreateRoute");
    let explanation = assert_node(&world, &ccm, "a", Cause::CloudAccessDenied, event);
    let message = &explanation.causes[0].message;
    assert!(message.contains("the other route old-route must be deleted first"), "{message}");
    let attempt = &explanation.attempts[0];
    assert_eq!((attempt.operation, explanation.attempts.len()), ("delete route", 1));
    let route = explanation.pod_cidrs[0].route.as_deref();
    assert_eq!(route, Some("could not be created or replaced"));
    let routes = ccm.explanations.routes().unwrap();
    assert_eq!((routes.failed[0].operation, &routes.failed[0].node), ("delete", &None));
    // Once the other route is gone, nothing is left of it.
    world.cloud.set_faults(Vec::new());
    until_ready(&world, &["a"], secs(90)).await;
    tokio::time::sleep(secs(30)).await;
    let explanation = ccm.explanations.node("a").unwrap();
    assert_eq!(causes(&explanation.causes), []);
    assert_eq!(explanation.pod_cidrs[0].route.as_deref(), Some("exists"));
}

/// The condition stays as long as the old route exists, so it cannot say that the route is replaced.
#[tokio::test(start_paused = true)]
async fn a_route_that_is_being_replaced_is_not_shown_as_if_it_were_done() {
    let world = TestCluster::provisioned();
    let outdated = Arc::new(Mutex::new(false));
    let is_outdated = outdated.clone();
    let last = Mutex::new(Vec::new());
    let list = move |listed: Listed| {
        let mut last = last.lock();
        if *is_outdated.lock() {
            // The route stays as it was, with other addresses.
            for route in last.iter_mut() {
                let route: &mut Route = route;
                route.node_addresses = Some(Vec::new());
            }
        } else {
            *last = listed?;
        }
        Ok(last.clone())
    };
    let is_outdated = outdated.clone();
    let apply = move |changes: &[RouteChange], applied: Applied| {
        let pending = Progress::Pending { after: secs(5), reason: "action 7 runs".into() };
        if *is_outdated.lock() {
            vec![Ok(pending); changes.len()]
        } else {
            applied
        }
    };
    let scripted = Scripted {
        list: Box::new(list),
        apply: Box::new(apply),
        ..Scripted::over(&world.cloud)
    };
    let ccm = scripted.start(&world);
    let spec = initialized("a").provided_ip([10, 0, 0, 1].into());
    join(&world, spec, &["10.244.1.0/24"]).await;
    until_ready(&world, &["a"], MINUTE).await;
    *outdated.lock() = true;
    tokio::time::sleep(secs(30)).await;
    assert_eq!(network(&world, "a"), READY);
    let explanation = assert_node(&world, &ccm, "a", Cause::RoutePending, None);
    let route = explanation.pod_cidrs[0].route.as_deref();
    assert_eq!(route, Some("is being created or replaced"));
    let message = &explanation.causes[0].message;
    assert!(message.contains("action 7 runs"), "{message}");
}
