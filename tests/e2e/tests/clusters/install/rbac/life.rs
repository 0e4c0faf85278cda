//! What happens in a cluster, controller by controller, so that each asks for everything that it
//! ever asks for.

use std::time::Duration;

use anyhow::Context as _;
use ccm_core::k8s::AddressType;
use ccm_e2e::scenario::{SOON, Scenario, each};
use ccm_e2e::watcher::{addresses, is_tainted, label, pod_cidrs};
use ccm_mock::cloud::{Address, FaultError, FaultSpec, InstanceSpec, Operation, PowerState};
use ccm_testkit::kubelet::Ready;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;

use crate::call_breakpoint::{At, CallBreakpoint};

const SHUTDOWN_TAINT: &str = "node.cloudprovider.kubernetes.io/shutdown";
const ZONE: &str = "topology.kubernetes.io/zone";

/// How often a write is made to come too late before it is given up.
const ROUNDS: usize = 10;

/// Nodes join, get their labels and addresses, and keep them right.
pub(crate) async fn join(s: &Scenario, names: &[String]) -> anyhow::Result<()> {
    s.register_initialized(names).await?;
    for name in names {
        s.event(name, "Synced", SOON).await?;
    }
    // A label that somebody changed.
    let zone = s
        .cloud
        .instance(&names[0])
        .map(|instance| instance.zone)
        .unwrap_or_default();
    s.set_labels(&names[0], &[(ZONE, "elsewhere")]).await?;
    s.eventually("the zone is right again", SOON, |nodes| {
        each(nodes, &names[..1], |node| match label(node, ZONE) == Some(&*zone) {
            true => Ok(()),
            false => Err(format!("{:?}", label(node, ZONE))),
        })
    })
    .await?;
    // An address that changed in the cloud.
    let moved = Address::new(AddressType::InternalIp, "10.30.0.7");
    s.cloud.put_instance(
        &names[1],
        InstanceSpec { addresses: Some(vec![moved]), ..InstanceSpec::default() },
    )?;
    s.eventually("the new address", SOON, |nodes| {
        each(nodes, &names[1..2], |node| {
            match addresses(node).contains(&"InternalIP=10.30.0.7".to_owned()) {
                true => Ok(()),
                false => Err(format!("{:?}", addresses(node))),
            }
        })
    })
    .await
}

/// Somebody writes to a node that is about to be initialised, so that the write comes too late and
/// the node is read afresh. Tried with one node after another until `is_read` agrees.
pub(crate) async fn collide(
    s: &Scenario,
    prefix: &str,
    is_read: impl AsyncFn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    for round in 0..ROUNDS {
        let name = format!("{prefix}-{round}");
        let gate = CallBreakpoint::shut(s, Operation::DescribeInstances, At::Answer);
        s.register(std::slice::from_ref(&name)).await?;
        gate.holds().await?;
        taint_in_front(s, &name).await?;
        gate.open();
        s.initialized(&[name], SOON).await?;
        if is_read().await? {
            return Ok(());
        }
    }
    anyhow::bail!("no node was read afresh in {ROUNDS} rounds")
}

/// Adds a taint before the others, which are then not where they were.
async fn taint_in_front(s: &Scenario, name: &str) -> anyhow::Result<()> {
    let node = s.nodes_api().get(name).await?;
    let mut taints =
        serde_json::to_value(node.spec.and_then(|spec| spec.taints).unwrap_or_default())?;
    taints
        .as_array_mut()
        .context("a list")?
        .insert(0, json!({"key": "e2e/first", "effect": "NoSchedule"}));
    let patch = json!({"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": taints}});
    s.nodes_api()
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// A node without an instance is told of, and initialised when it has one.
pub(crate) async fn wait_for_instance(s: &Scenario, name: &str) -> anyhow::Result<()> {
    s.register_one(s.spec(name)).await?;
    s.event(name, "InstanceNotFound", SOON).await?;
    s.cloud.put_instance(name, InstanceSpec::default())?;
    s.initialized(&[name.to_owned()], SOON).await
}

/// Registers nodes and does what another's cloud-node-controller would do.
pub(crate) async fn initialize_by_hand(s: &Scenario, names: &[String]) -> anyhow::Result<()> {
    s.register(names).await?;
    for (n, name) in names.iter().enumerate() {
        let id = format!("mock://{}/{name}", s.region());
        let spec = Patch::Merge(json!({"spec": {"providerID": id, "taints": null}}));
        let status = Patch::Merge(
            json!({"status": {"addresses": [{"type": "InternalIP", "address": format!("10.40.0.{}", n + 1)}]}}),
        );
        // Addresses first, as it ought to be.
        s.nodes_api()
            .patch_status(name, &PatchParams::default(), &status)
            .await?;
        s.nodes_api()
            .patch(name, &PatchParams::default(), &spec)
            .await?;
    }
    s.initialized(names, SOON).await
}

/// One node's instance is switched off and on again, the other's goes for good.
pub(crate) async fn leave(s: &Scenario, stopped: &str, gone: &str) -> anyhow::Result<()> {
    let tainted = async |wanted: bool| {
        s.eventually("the shutdown taint", SOON, |nodes| {
            each(nodes, &[stopped.to_owned()], |node| {
                match is_tainted(node, SHUTDOWN_TAINT) == wanted {
                    true => Ok(()),
                    false => Err(format!("shutdown taint is not {wanted}")),
                }
            })
        })
        .await
    };
    s.set_power(stopped, PowerState::Stopped)?;
    s.kubelets.set_ready(stopped, Ready::Unknown).await?;
    tainted(true).await?;
    s.set_power(stopped, PowerState::Running)?;
    s.kubelets.set_ready(stopped, Ready::True).await?;
    tainted(false).await?;

    s.may_go([&gone.to_owned()]);
    s.cloud.delete_instance(gone);
    s.kubelets.set_ready(gone, Ready::Unknown).await?;
    s.eventually("the node is gone", SOON, |nodes| match nodes.contains_key(gone) {
        true => Err("it is there".to_owned()),
        false => Ok(()),
    })
    .await?;
    s.event(gone, "DeletingNode", SOON).await.map(drop)
}

/// Nodes get their pod networks, from whomever.
pub(crate) async fn networked(s: &Scenario, names: &[String]) -> anyhow::Result<()> {
    s.eventually("pod networks", SOON, |nodes| {
        each(nodes, names, |node| match pod_cidrs(node).is_empty() {
            true => Err("none".to_owned()),
            false => Ok(()),
        })
    })
    .await
}

/// Nodes get their pod networks while others write to them, until one was read afresh; and when
/// none is left that is told.
pub(crate) async fn crowd(
    s: &Scenario,
    prefix: &str,
    blocks: usize,
    is_read: impl AsyncFn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let names: Vec<_> = (0..=blocks).map(|n| format!("{prefix}-{n}")).collect();
    let (last, names) = names.split_last().context("one too many")?;
    for name in names {
        s.register(std::slice::from_ref(name)).await?;
        for turn in 0..5 {
            let label = Patch::Merge(
                json!({"metadata": {"labels": {"e2e.example/turn": turn.to_string()}}}),
            );
            s.nodes_api()
                .patch(name, &PatchParams::default(), &label)
                .await?;
        }
    }
    networked(s, names).await?;
    anyhow::ensure!(
        is_read().await?,
        "of {blocks} nodes none changed just before it got its networks"
    );
    s.register(std::slice::from_ref(last)).await?;
    s.event(last, "CIDRNotAvailable", SOON).await.map(drop)
}

/// A route is made, after it could not be made at first.
pub(crate) async fn route(s: &Scenario, name: &str) -> anyhow::Result<()> {
    s.set_faults([FaultSpec {
        operation: Some(Operation::CreateRoute),
        error: Some(FaultError::Transient),
        ..FaultSpec::default()
    }])?;
    s.add_pod_cidrs(name, &["10.244.200.0/24".to_owned()])
        .await?;
    s.event(name, "FailedToCreateRoute", SOON).await?;
    s.set_faults([])?;
    s.routed(&[], SOON).await
}

/// Services come, change, and go in both ways.
pub(crate) async fn serve(s: &Scenario, names: &[String]) -> anyhow::Result<()> {
    let [first, second, third] = names else {
        anyhow::bail!("three services, not {names:?}")
    };
    s.create_all(names).await?;
    s.served(names, SOON).await?;
    s.change(first, json!({"spec": {"ports": [{"name": "http", "port": 81, "nodePort": null}]}}))
        .await?;
    s.served(names, SOON).await?;
    told_again(s, first).await?;
    s.delete_service(second).await?;
    s.vanished(second).await?;
    // Without its finalizer: whether it is gone indeed is asked before its balancer goes.
    s.delete_by_force(third).await?;
    s.served(&names[..1], SOON).await
}

/// Waits until an event about a Service was counted a second time.
async fn told_again(s: &Scenario, name: &str) -> anyhow::Result<()> {
    let limit = Instant::now() + SOON;
    loop {
        let mut events = s.service_events().await?;
        events.retain(|event| event.involved_object.name.as_deref() == Some(name));
        if events
            .iter()
            .any(|event| event.count.is_some_and(|count| count > 1))
        {
            return Ok(());
        }
        let seen: Vec<_> = events
            .iter()
            .map(|event| (event.reason.as_deref(), event.count))
            .collect();
        anyhow::ensure!(Instant::now() < limit, "no event about {name} came again, only {seen:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
