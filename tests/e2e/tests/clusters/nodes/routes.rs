//! Routes to the nodes' pod networks, and the condition that rides with the addresses.

use std::time::Duration;

use ccm_core::k8s::AddressType;
use ccm_e2e::ccm::Ccm;
use ccm_e2e::scenario::{SOON, Scenario, each};
use ccm_e2e::watcher::addresses;
use ccm_mock::cloud::{Address, FaultError, FaultSpec, InstanceSpec, Operation, RouteBody};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::case;
use crate::run::{Case, EVERYWHERE};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!("route", EVERYWHERE, dual_stack_routes_follow_nodes_that_come_and_go),
        case!(
            "ride",
            EVERYWHERE,
            a_condition_rides_with_the_addresses_and_leaves_other_conditions_alone
        ),
        case!("silent", EVERYWHERE, a_comparison_that_changes_nothing_is_silent),
        case!(
            "replace",
            EVERYWHERE,
            a_list_that_says_so_is_replaced_while_another_beside_it_is_merged
        ),
    ]
}

const FLAGS: [&str; 2] = [
    "--controllers=cloud-node,cloud-node-lifecycle,node-route-controller",
    "--cluster-cidr=10.244.0.0/16,fd00:10::/48",
];

/// Gives a node its pod networks, as kube-controller-manager does.
async fn give(s: &Scenario, name: &str, i: usize) -> anyhow::Result<()> {
    let cidrs = [format!("10.244.{i}.0/24"), format!("fd00:10:0:{i}::/64")];
    let patch = json!({"spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}});
    s.nodes_api()
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == kind)
}

fn is_network_ready(node: &Node) -> Result<(), String> {
    match condition(node, "NetworkUnavailable") {
        Some(found)
            if found.status == "False" && found.reason.as_deref() == Some("RouteCreated") =>
        {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    }
}

async fn network_ready(s: &Scenario, names: &[String]) -> anyhow::Result<()> {
    s.eventually("routes are there", Duration::from_secs(60), |nodes| {
        each(nodes, names, is_network_ready)
    })
    .await
}

fn targets(s: &Scenario) -> Vec<String> {
    let mut targets: Vec<_> = s
        .cloud
        .routes()
        .into_iter()
        .map(|route| route.node)
        .collect();
    targets.sort();
    targets
}

async fn dual_stack_routes_follow_nodes_that_come_and_go(s: &Scenario) -> anyhow::Result<()> {
    let body = |node: &str, destination: &str| -> anyhow::Result<RouteBody> {
        let destination = Some(destination.parse()?);
        Ok(RouteBody {
            node: Some(node.to_owned()),
            destination,
            ..RouteBody::default()
        })
    };
    s.cloud
        .put_route("obsolete", body("nobody", "10.244.200.0/24")?)?;
    s.cloud.put_route("wide", body("router", "10.0.0.0/8")?)?;
    let names = s.names(20);
    let ccm = s.start("a", &FLAGS).await?;
    s.register(&names).await?;
    for (i, name) in names.iter().enumerate() {
        give(s, name, i).await?;
    }
    network_ready(s, &names).await?;
    s.initialized(&names, SOON).await?;
    let mut wanted: Vec<String> = names
        .iter()
        .flat_map(|name| [name.clone(), name.clone()])
        .collect();
    wanted.push("router".to_owned());
    wanted.sort();
    s.until("the obsolete route is gone", SOON, || targets(s) == wanted)
        .await?;
    s.may_go([&names[0]]);
    s.delete_node(&names[0]).await?;
    wanted.retain(|target| *target != names[0]);
    s.until("its routes are gone", SOON, || targets(s) == wanted)
        .await?;
    let writes = s.node_writes("a").await?;
    let of_status = writes
        .iter()
        .filter(|write| write.resource == "nodes/status")
        .count();
    anyhow::ensure!(
        of_status <= 2 * names.len(),
        "{of_status} writes of status for {} nodes",
        names.len()
    );
    anyhow::ensure!(writes.iter().all(|write| write.code == 200), "{writes:?}");
    ccm.terminate().await
}

async fn a_condition_rides_with_the_addresses_and_leaves_other_conditions_alone(
    s: &Scenario,
) -> anyhow::Result<()> {
    let name = s.name(0);
    let address = |ip: &str| Address::new(AddressType::InternalIp, ip);
    let spec = InstanceSpec {
        addresses: Some(vec![address("10.20.0.1"), address("fd00::1")]),
        ..InstanceSpec::default()
    };
    s.cloud.put_instance(&name, spec)?;
    // Time for the routes to be there first.
    let (operation, error) = (Some(Operation::DescribeInstances), Some(FaultError::Transient));
    s.set_faults([FaultSpec { operation, error, times: Some(1), ..FaultSpec::default() }])?;
    s.register_one(s.spec(&name)).await?;
    // A network that no other scenario has: one of another cloud's nodes gets no route.
    give(s, &name, 250).await?;
    let before = s
        .nodes_api()
        .get(&name)
        .await?
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    anyhow::ensure!(!before.is_empty(), "the kubelet wrote no conditions");
    let ccm = s.start("a", &FLAGS).await?;
    s.initialized(std::slice::from_ref(&name), SOON).await?;
    let node = s.nodes_api().get(&name).await?;
    is_network_ready(&node).map_err(anyhow::Error::msg)?;
    anyhow::ensure!(
        addresses(&node) == ["InternalIP=10.20.0.1", "InternalIP=fd00::1"],
        "{:?}",
        addresses(&node)
    );
    for earlier in &before {
        let now = condition(&node, &earlier.type_);
        anyhow::ensure!(
            now.is_some_and(|now| now.status == earlier.status),
            "{}: {now:?}",
            earlier.type_
        );
    }
    // Whatever is under way is in the log then.
    ccm.terminate().await?;
    let writes = s.node_writes("a").await?;
    let writes: Vec<_> = writes
        .iter()
        .map(|w| format!("{} {} {}", w.verb, w.resource, w.code))
        .collect();
    anyhow::ensure!(writes == ["patch nodes/status 200", "patch nodes 200"], "{writes:?}");
    Ok(())
}

/// Upstream writes a line per node and pod CIDR each time (W17d).
async fn a_comparison_that_changes_nothing_is_silent(s: &Scenario) -> anyhow::Result<()> {
    let name = s.name(0);
    s.register(std::slice::from_ref(&name)).await?;
    give(s, &name, 251).await?;
    let ccm = s
        .start("a", &[FLAGS[0], FLAGS[1], "--route-reconciliation-period=200ms"])
        .await?;
    s.initialized(std::slice::from_ref(&name), SOON).await?;
    network_ready(s, std::slice::from_ref(&name)).await?;
    let lines = |ccm: &Ccm| {
        ccm.log()
            .lines()
            .filter(|line| line.contains("controllers::route"))
            .count()
    };
    let (said, asked) = (lines(&ccm), s.cloud.calls().list_routes);
    anyhow::ensure!(said > 0, "it said nothing of the routes it made");
    s.until("it compared again and again", SOON, || s.cloud.calls().list_routes >= asked + 10)
        .await?;
    anyhow::ensure!(lines(&ccm) == said, "{}", ccm.log());
    ccm.terminate().await
}

/// What the patch relies on that such a condition rides in.
async fn a_list_that_says_so_is_replaced_while_another_beside_it_is_merged(
    s: &Scenario,
) -> anyhow::Result<()> {
    let name = s.name(0);
    s.register_one(s.spec(&name)).await?;
    let nodes = s.nodes_api();
    let params = PatchParams::default();
    let ip = |address: &str| json!({"type": "InternalIP", "address": address});
    let old = json!([ip("10.20.0.9"), ip("fd00::9"), {"type": "InternalDNS", "address": "old"}]);
    nodes
        .patch_status(&name, &params, &Patch::Merge(json!({"status": {"addresses": old}})))
        .await?;
    let mut node = nodes.get(&name).await?;
    let (count, uid) = (
        node.status
            .take()
            .and_then(|status| status.conditions)
            .map_or(0, |list| list.len()),
        node.metadata.uid,
    );
    let patch = |uid: &Option<String>| {
        json!({"metadata": {"uid": uid}, "status": {
            "addresses": [{"$patch": "replace"}, ip("10.20.0.1"), ip("fd00::1")],
            "conditions": [{"type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated"}],
        }})
    };
    nodes
        .patch_status(&name, &params, &Patch::Strategic(patch(&uid)))
        .await?;
    let node = nodes.get(&name).await?;
    anyhow::ensure!(
        addresses(&node) == ["InternalIP=10.20.0.1", "InternalIP=fd00::1"],
        "{:?}",
        addresses(&node)
    );
    let conditions = node
        .status
        .and_then(|status| status.conditions)
        .unwrap_or_default();
    anyhow::ensure!(conditions.len() == count + 1, "{conditions:?}");
    let namesake = nodes
        .patch_status(&name, &params, &Patch::Strategic(patch(&Some("other".to_owned()))))
        .await;
    match namesake {
        Err(kube::Error::Api(status)) if status.code == 422 => Ok(()),
        other => anyhow::bail!("a namesake's patch: {other:?}"),
    }
}
