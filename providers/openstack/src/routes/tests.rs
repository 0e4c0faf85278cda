//! Routes on the local cloud, in process and in virtual time.

use ccm_core::provider::ErrorKind;
use openstack_local::api::neutron::{self, Port};
use openstack_local::{
    neutron as local,
    server::{FaultKind, Settings as CloudSettings},
};

use super::*;
use crate::{
    api::from_json,
    test_fixture::{ProjectFixture, Server, odd_variants, op},
};

async fn routes(stage: &ProjectFixture) -> NeutronRoutes {
    let extensions = Extensions::detect(&stage.client, &op())
        .await
        .unwrap()
        .expect("routers have routes");
    NeutronRoutes::new(stage.client.clone(), stage.router.as_str().into(), extensions)
}

async fn stage(hidden: &[&str]) -> ProjectFixture {
    let hidden_extensions = hidden.iter().map(|alias| (*alias).to_owned()).collect();
    ProjectFixture::with(CloudSettings { hidden_extensions, ..CloudSettings::default() }).await
}

fn create(server: &Server, destination: &str) -> RouteChange {
    RouteChange::Create {
        node: server.node(),
        destination: destination.parse().unwrap(),
    }
}

fn on_router(stage: &ProjectFixture) -> Vec<String> {
    stage
        .router()
        .routes
        .iter()
        .map(|route| format!("{} via {}", route.destination, route.nexthop))
        .collect()
}

fn pairs(stage: &ProjectFixture, server: &Server) -> Vec<String> {
    let ports = stage.cloud.cloud().store.peek(|state| {
        local::ports::of_device(state, &server.id)
            .into_iter()
            .cloned()
            .collect::<Vec<Port>>()
    });
    ports
        .iter()
        .flat_map(|port| &port.allowed_address_pairs)
        .map(|pair| pair.ip_address.clone())
        .collect()
}

async fn applied(routes: &NeutronRoutes, changes: &[RouteChange]) {
    for result in routes.apply(&op(), changes).await {
        result.unwrap();
    }
}

// R03, with and without what a network service may lack.
#[tokio::test(start_paused = true)]
async fn routes_are_created_listed_and_deleted() {
    for hidden in [
        &[][..],
        &["extraroute-atomic"],
        &["extraroute-atomic", "revision-if-match"],
        &["allowed-address-pairs"],
    ] {
        let stage = stage(hidden).await;
        let server = stage.server("a").await;
        let routes = routes(&stage).await;
        applied(&routes, &[create(&server, "10.164.2.0/24")]).await;
        let listed = routes.list(&op(), &[server.node()]).await.unwrap();
        assert_eq!(listed.len(), 1, "{hidden:?}");
        assert_eq!(
            (listed[0].node.as_deref(), listed[0].blackhole),
            (Some("a"), false),
            "{hidden:?}"
        );
        let paired = if hidden.contains(&"allowed-address-pairs") {
            vec![]
        } else {
            vec!["10.164.2.0/24".to_owned()]
        };
        assert_eq!(pairs(&stage, &server), paired, "{hidden:?}");
        // Again is nothing, and neither is deleting twice.
        applied(&routes, &[create(&server, "10.164.2.0/24")]).await;
        let delete = [RouteChange::Delete(listed[0].clone())];
        applied(&routes, &delete).await;
        applied(&routes, &delete).await;
        assert_eq!((on_router(&stage), pairs(&stage, &server)), (vec![], vec![]), "{hidden:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn many_routes_take_one_request_on_the_router_and_one_for_each_port() {
    let stage = stage(&[]).await;
    let mut changes = Vec::new();
    for n in 0..20 {
        changes.push(create(&stage.server(&format!("n{n}")).await, &format!("10.164.{n}.0/24")));
    }
    let routes = routes(&stage).await;
    stage.reset_requests();
    applied(&routes, &changes).await;
    let requests = stage.requests();
    let count = |method: &str| {
        requests
            .iter()
            .filter(|request| request.starts_with(method))
            .count()
    };
    // The router's own ports and the nodes' ports, the router; 20 ports and the router.
    assert_eq!((count("GET"), count("PUT")), (3, 21), "{requests:?}");
    stage.reset_requests();
    let nodes: Vec<_> = changes
        .iter()
        .filter_map(|change| match change {
            RouteChange::Create { node, .. } => Some(node.clone()),
            RouteChange::Delete(_) => None,
        })
        .collect();
    assert_eq!(routes.list(&op(), &nodes).await.unwrap().len(), 20);
    assert_eq!(stage.requests().len(), 1, "{:?}", stage.requests());
}

// W-02
#[tokio::test(start_paused = true)]
async fn other_peoples_routes_are_neither_listed_nor_touched() {
    for hidden in [&[][..], &["extraroute-atomic"]] {
        let stage = stage(hidden).await;
        let (node, other) = (stage.server("a").await, stage.server("appliance").await);
        let router = stage.router.clone();
        let foreign = neutron::Route {
            destination: "10.164.9.0/24".into(),
            nexthop: other.ip.to_string(),
        };
        stage
            .change_as_admin(move |state, ctx| {
                local::extra_routes::add(state, ctx, &router, vec![foreign])
            })
            .await;
        let routes = routes(&stage).await;
        applied(&routes, &[create(&node, "10.164.2.0/24")]).await;
        let listed = routes.list(&op(), &[node.node()]).await.unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
        applied(&routes, &[RouteChange::Delete(listed[0].clone())]).await;
        assert_eq!(on_router(&stage), [format!("10.164.9.0/24 via {}", other.ip)], "{hidden:?}");
        assert_eq!(pairs(&stage, &other), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_node_left_behind_is_listed_without_a_node() {
    let stage = stage(&[]).await;
    let (node, gone) = (stage.server("a").await, stage.server("b").await);
    applied(
        &routes(&stage).await,
        &[create(&node, "10.164.1.0/24"), create(&gone, "10.164.2.0/24")],
    )
    .await;
    // Its server is there, but the Node was known in this process.
    let knowing = routes(&stage).await;
    knowing
        .list(&op(), &[node.node(), gone.node()])
        .await
        .unwrap();
    let left = |listed: &[Route]| {
        listed
            .iter()
            .filter(|route| route.blackhole && route.node.is_none())
            .count()
    };
    assert_eq!(left(&knowing.list(&op(), &[node.node()]).await.unwrap()), 1);
    // To a new process it may be anybody's, until its port is gone.
    let fresh = routes(&stage).await;
    assert_eq!(left(&fresh.list(&op(), &[node.node()]).await.unwrap()), 0);
    stage.delete(&gone).await;
    tokio::time::advance(FOREIGN_TTL).await;
    let listed = fresh.list(&op(), &[node.node()]).await.unwrap();
    assert_eq!(left(&listed), 1, "{listed:?}");
    let blackhole = listed.into_iter().find(|route| route.blackhole).unwrap();
    applied(&fresh, &[RouteChange::Delete(blackhole)]).await;
    assert_eq!(on_router(&stage), [format!("10.164.1.0/24 via {}", node.ip)]);
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_node_is_gone_sends_no_packets_of_pods_any_more() {
    let stage = stage(&[]).await;
    let (node, gone) = (stage.server("a").await, stage.server("b").await);
    let routes = routes(&stage).await;
    routes
        .list(&op(), &[node.node(), gone.node()])
        .await
        .unwrap();
    applied(&routes, &[create(&node, "10.164.1.0/24"), create(&gone, "10.164.2.0/24")]).await;
    let listed = routes.list(&op(), &[node.node()]).await.unwrap();
    let left = listed.into_iter().find(|route| route.blackhole).unwrap();
    applied(&routes, &[RouteChange::Delete(left)]).await;
    assert_eq!(pairs(&stage, &gone), Vec::<String>::new());
    assert_eq!(pairs(&stage, &node), ["10.164.1.0/24"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_network_that_moved_leads_to_its_new_node_alone() {
    for hidden in [&[][..], &["extraroute-atomic"]] {
        let stage = stage(hidden).await;
        let (old, new) = (stage.server("a").await, stage.server("b").await);
        let routes = routes(&stage).await;
        applied(&routes, &[create(&old, "10.164.1.0/24")]).await;
        applied(&routes, &[create(&new, "10.164.1.0/24")]).await;
        assert_eq!(on_router(&stage), [format!("10.164.1.0/24 via {}", new.ip)], "{hidden:?}");
        let paired = (pairs(&stage, &old), pairs(&stage, &new));
        assert_eq!(paired, (vec![], vec!["10.164.1.0/24".to_owned()]), "{hidden:?}");
    }
}

// 8.13: the limits of 30 routes and 10 pairs are said of the node they hit.
#[tokio::test(start_paused = true)]
async fn a_limit_hits_only_what_is_beyond_it() {
    let stage = stage(&[]).await;
    let server = stage.server("a").await;
    let (routes, mut changes) = (routes(&stage).await, Vec::new());
    for n in 0..12 {
        changes.push(create(&server, &format!("10.164.{n}.0/24")));
    }
    // Ten pairs fit on a port, and all twelve are one change of it.
    let results = routes.apply(&op(), &changes).await;
    assert!(
        results.iter().all(|result| result
            .as_ref()
            .is_err_and(|e| e.kind() == ErrorKind::QuotaExceeded)),
        "{results:?}"
    );
    let mut changes = Vec::new();
    for n in 0..32 {
        changes.push(create(&stage.server(&format!("n{n}")).await, &format!("10.165.{n}.0/24")));
    }
    let results = routes.apply(&op(), &changes).await;
    let (good, bad): (Vec<_>, Vec<_>) = results.iter().partition(|result| result.is_ok());
    assert_eq!((good.len(), bad.len()), (30, 2), "{bad:?}");
    assert!(
        bad.iter().all(|result| result
            .as_ref()
            .is_err_and(|e| e.kind() == ErrorKind::QuotaExceeded)),
        "{bad:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_router_changed_by_others_meanwhile_loses_nothing() {
    let stage = stage(&["extraroute-atomic", "allowed-address-pairs"]).await;
    let server = stage.server("a").await;
    let routes = routes(&stage).await;
    let slow = FaultKind::Latency { ms: 100 };
    stage.fail(&format!("/network/v2.0/routers/{}", stage.router), slow);
    let changes = [create(&server, "10.164.1.0/24")];
    let operation = op();
    let ours = routes.apply(&operation, &changes);
    let theirs = async {
        // Between reading and writing.
        tokio::time::sleep(Duration::from_millis(150)).await;
        let (router, ip) = (stage.router.clone(), server.ip.to_string());
        let route = neutron::Route { destination: "192.0.2.0/24".into(), nexthop: ip };
        stage
            .change_as_admin(move |state, ctx| {
                local::extra_routes::add(state, ctx, &router, vec![route])
            })
            .await;
    };
    let (results, ()) = tokio::join!(ours, theirs);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let mut there = on_router(&stage);
    there.sort();
    assert_eq!(
        there,
        [format!("10.164.1.0/24 via {}", server.ip), format!("192.0.2.0/24 via {}", server.ip)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_router_that_is_not_there_is_told_by_its_key() {
    let stage = stage(&[]).await;
    let extensions = Extensions::detect(&stage.client, &op())
        .await
        .unwrap()
        .unwrap();
    let routes = NeutronRoutes::new(stage.client.clone(), "no-such-router".into(), extensions);
    let error = routes.list(&op(), &[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(
        error.to_string().contains("router-id") && error.to_string().contains("no-such-router"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn doubt_is_an_error_and_no_empty_list() {
    let stage = stage(&[]).await;
    let node = stage.server("a").await;
    let routes = routes(&stage).await;
    applied(&routes, &[create(&node, "10.164.1.0/24")]).await;
    let page = FaultKind::Body { code: 404, text: "<html>no such thing</html>".to_owned() };
    for fault in [page, FaultKind::Status { code: 500, retry_after: None, message: None }] {
        stage.fail("/network/v2.0/routers", fault);
        assert_eq!(
            routes.list(&op(), &[node.node()]).await.unwrap_err().kind(),
            ErrorKind::Transient
        );
        stage.clear_faults();
    }
    // Nor does a list of ports that fails make a foreign route ours.
    let stray = stage.server("b").await;
    let (router, nexthop) = (stage.router.clone(), stray.ip.to_string());
    let route = neutron::Route { destination: "10.164.9.0/24".into(), nexthop };
    stage
        .change_as_admin(move |state, ctx| {
            local::extra_routes::add(state, ctx, &router, vec![route])
        })
        .await;
    stage.fail(
        "/network/v2.0/ports",
        FaultKind::Status { code: 500, retry_after: None, message: None },
    );
    assert!(routes.list(&op(), &[node.node()]).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn routers_without_routes_offer_none() {
    let stage = stage(&["extraroute", "extraroute-atomic"]).await;
    assert_eq!(Extensions::detect(&stage.client, &op()).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_may_be_in_an_unreadable_row_is_not_missing() {
    let stage = stage(&[]).await;
    let all = ["extraroute", "extraroute-atomic", "allowed-address-pairs", "revision-if-match"];
    let row = |alias: &&str| serde_json::json!({ "alias": alias });
    let answers = (0..=all.len()).map(|without| {
        let mut rows: Vec<_> = all.iter().map(row).collect();
        match rows.get_mut(without) {
            Some(lost) => *lost = serde_json::Value::Null,
            // Nothing is missing.
            None => rows.push(serde_json::Value::Null),
        }
        (without, serde_json::json!({ "extensions": rows }).to_string())
    });
    for (without, text) in answers {
        stage.fail("/network/v2.0/extensions", FaultKind::Body { code: 200, text });
        let detected = Extensions::detect(&stage.client, &op()).await;
        assert_eq!(detected.is_ok(), without == all.len(), "{without}: {detected:?}");
        stage.clear_faults();
    }
}

#[tokio::test(start_paused = true)]
async fn a_port_that_cannot_be_changed_keeps_its_route_as_it_is() {
    let stage = stage(&[]).await;
    let (node, other) = (stage.server("a").await, stage.server("b").await);
    let routes = routes(&stage).await;
    applied(&routes, &[create(&node, "10.164.1.0/24")]).await;
    let listed = routes.list(&op(), &[node.node()]).await.unwrap();
    let refused = FaultKind::Status { code: 403, retry_after: None, message: None };
    stage
        .cloud
        .cloud()
        .faults
        .add(openstack_local::server::Fault::new("/network/v2.0/ports/", refused).method("PUT"));
    let changes = [RouteChange::Delete(listed[0].clone()), create(&other, "10.164.2.0/24")];
    let results = routes.apply(&op(), &changes).await;
    assert!(results.iter().all(Result::is_err), "{results:?}");
    assert_eq!(on_router(&stage), [format!("10.164.1.0/24 via {}", node.ip)]);
    stage.clear_faults();
    applied(&routes, &changes).await;
    assert_eq!(on_router(&stage), [format!("10.164.2.0/24 via {}", other.ip)]);
}

/// Addresses are asked for in parts, and those of a node of two families may be in different ones.
#[tokio::test(start_paused = true)]
async fn a_port_whose_addresses_are_asked_for_in_parts_is_one_port() {
    let stage = stage(&[]).await;
    let server = stage.server("a").await;
    let also: IpAddr = "10.0.200.1".parse().unwrap();
    let id = server.id.clone();
    stage
        .change_as_admin(move |state, _| {
            let port = local::ports::of_device(state, &id)[0].id.clone();
            state.neutron.ports.update(&port, |port| {
                let first = port.fixed_ips[0].clone();
                port.fixed_ips
                    .push(neutron::FixedIp { ip_address: also, ..first });
            });
            Ok(())
        })
        .await;
    let mut changes = vec![create(&server, "10.164.1.0/24")];
    for n in 1..=60 {
        let ip = IpAddr::from([10, 0, 100, n]);
        let gone = Server { id: format!("gone-{n}"), name: format!("gone-{n}"), ip };
        changes.push(create(&gone, &format!("10.165.{n}.0/24")));
    }
    changes.push(create(&Server { ip: also, ..server.clone() }, "10.164.2.0/24"));
    let results = routes(&stage).await.apply(&op(), &changes).await;
    let good: Vec<usize> = results
        .iter()
        .enumerate()
        .filter(|(_, result)| result.is_ok())
        .map(|(at, _)| at)
        .collect();
    assert_eq!(good, [0, 61], "{results:?}");
    assert_eq!(pairs(&stage, &server), ["10.164.1.0/24", "10.164.2.0/24"]);
}

#[tokio::test(start_paused = true)]
async fn a_route_to_an_address_that_several_ports_have_is_somebody_elses() {
    let stage = stage(&[]).await;
    let (node, one, two) =
        (stage.server("a").await, stage.server("b").await, stage.server("c").await);
    let (router, ip) = (stage.router.clone(), one.ip);
    stage
        .change_as_admin(move |state, ctx| {
            let port = local::ports::of_device(state, &two.id)[0].id.clone();
            state
                .neutron
                .ports
                .update(&port, |port| port.fixed_ips[0].ip_address = ip);
            let foreign =
                neutron::Route { destination: "10.164.9.0/24".into(), nexthop: ip.to_string() };
            local::extra_routes::add(state, ctx, &router, vec![foreign])
        })
        .await;
    let listed = routes(&stage)
        .await
        .list(&op(), &[node.node()])
        .await
        .unwrap();
    assert!(listed.is_empty(), "{listed:?}");
}

#[test]
fn a_router_without_its_routes_is_an_error_and_not_one_without_routes() {
    let read = |body: &str| from_json::<Router>(serde_json::from_str(body).unwrap());
    assert_eq!(read(r#"{"routes": []}"#).unwrap().revision_number, 0);
    assert!(read(r#"{"id": "1", "revision_number": 2}"#).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_router_of_which_anything_is_odd_has_its_routes_or_is_an_error() {
    let stage = stage(&[]).await;
    let server = stage.server("node-0").await;
    let text = include_str!("../../tests/fixtures/openstack-2026.1/neutron.json");
    let recorded: serde_json::Value = serde_json::from_str(text).unwrap();
    let mut router = recorded["GET /v2.0/routers"]["routers"][0].clone();
    router["routes"] =
        serde_json::json!([{"destination": "10.244.1.0/24", "nexthop": server.ip.to_string()}]);
    let path = format!("/network/v2.0/routers/{}", stage.router);
    let mut doubts = Vec::new();
    for (what, odd) in odd_variants(&router) {
        let text = serde_json::json!({ "router": odd }).to_string();
        let routes = routes(&stage).await;
        stage.fail(&path, FaultKind::Body { code: 200, text });
        match routes.list(&op(), &[server.node()]).await {
            Ok(found) => assert_eq!(found.len(), 1, "{what}: {found:?}"),
            Err(_) => doubts.push(what),
        }
        stage.clear_faults();
    }
    let expected = [
        "revision_number \"SOMETHING_NEW\"",
        "revision_number [7]",
        "routes absent",
        "routes null",
        "routes \"SOMETHING_NEW\"",
        "routes [7]",
    ];
    assert_eq!(doubts, expected);
}

/// As where a policy hides them.
#[tokio::test(start_paused = true)]
async fn address_pairs_that_a_port_does_not_show_are_not_replaced() {
    let stage = stage(&[]).await;
    let server = stage.server("a").await;
    let routes = routes(&stage).await;
    applied(&routes, &[create(&server, "10.164.1.0/24")]).await;
    let port = stage
        .cloud
        .cloud()
        .store
        .peek(|state| local::ports::of_device(state, &server.id)[0].clone());
    let mut port = serde_json::to_value(port).unwrap();
    let shown = port
        .as_object_mut()
        .unwrap()
        .remove("allowed_address_pairs");
    assert_eq!(shown.unwrap()[0]["ip_address"], "10.164.1.0/24");
    let text = serde_json::json!({ "ports": [port] }).to_string();
    stage.fail("/network/v2.0/ports", FaultKind::Body { code: 200, text });
    let results = routes
        .apply(&op(), &[create(&server, "10.164.2.0/24")])
        .await;
    let error = results[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("does not show the allowed address pairs"), "{error}");
    // A route can be deleted, because nothing has to be added.
    let listed = routes.list(&op(), &[server.node()]).await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    applied(&routes, &[RouteChange::Delete(listed[0].clone())]).await;
    stage.clear_faults();
    assert_eq!((on_router(&stage), pairs(&stage, &server)), (vec![], vec!["10.164.1.0/24".into()]));
}
