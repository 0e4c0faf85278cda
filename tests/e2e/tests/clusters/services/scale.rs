//! Many services on many nodes: every number of calls and writes is a promise.

use std::collections::BTreeMap;
use std::time::Duration;

use ccm_core::k8s::well_known::LABEL_EXCLUDE_FROM_LOAD_BALANCERS;
use ccm_e2e::ccm::Ccm;
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_mock::cloud::{Calls, InstanceSpec};
use ccm_testkit::kubelet::Ready;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;

use super::FLAGS;
use crate::case;
use crate::run::{Case, EVERYWHERE};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(
            "crowd",
            EVERYWHERE,
            two_hundred_services_on_three_hundred_nodes_cost_two_writes_and_two_events_each
        ),
        case!("storm", EVERYWHERE, a_storm_of_flapping_nodes_costs_a_bounded_number_of_calls),
    ]
}

/// Time for 200 services or 300 nodes on a busy machine.
const LONG: Duration = Duration::from_secs(90);
const NODES: usize = 300;
const SERVICES: usize = 200;

async fn two_hundred_services_on_three_hundred_nodes_cost_two_writes_and_two_events_each(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (nodes, names) = (s.names(NODES), s.names(SERVICES));
    s.register(&nodes).await?;
    let ccm = s.start("a", &FLAGS).await?;
    s.initialized(&nodes, LONG).await?;
    // The first one shows that the process has heard of all nodes.
    s.create_all(&names[..1]).await?;
    s.served(&names[..1], SOON).await?;
    let before = s.cloud.calls();
    s.create_all(&names[1..]).await?;
    s.served(&names, LONG).await?;
    let calls = s.cloud.calls().since(&before);
    expect(
        &calls,
        &Calls {
            create_load_balancer: 199,
            get_load_balancer: 199,
            ..Calls::default()
        },
    )?;
    let mut writes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for write in s.service_writes("a").await? {
        writes
            .entry(write.name)
            .or_default()
            .push(format!("{} {} {}", write.verb, write.resource, write.code));
    }
    for name in &names {
        let of_service = writes.get(name).map(Vec::as_slice).unwrap_or_default();
        let wanted = ["patch services/status 200", "patch services/status 200"];
        anyhow::ensure!(of_service == wanted, "writes to {name}: {of_service:?}");
    }
    at_most_two_events_each(s).await?;
    an_excluded_node_leaves_every_balancer_with_one_call_each(s, &names).await?;
    after_a_restart_nothing_is_written(s, ccm).await
}

/// Compares the calls about load balancers.
fn expect(have: &Calls, want: &Calls) -> anyhow::Result<()> {
    let counts = |calls: &Calls| {
        [
            calls.create_load_balancer,
            calls.modify_load_balancer,
            calls.update_load_balancer,
            calls.delete_load_balancer,
            calls.get_load_balancer,
        ]
    };
    anyhow::ensure!(counts(have) == counts(want), "{have} instead of {want}");
    Ok(())
}

async fn at_most_two_events_each(s: &Scenario) -> anyhow::Result<()> {
    // One of them is in time, however few the event budget lets through.
    let mut told: BTreeMap<String, Vec<(Option<String>, i32)>> = BTreeMap::new();
    for event in s.service_events().await? {
        let name = event.involved_object.name.unwrap_or_default();
        told.entry(name)
            .or_default()
            .push((event.reason, event.count.unwrap_or(1)));
    }
    anyhow::ensure!(!told.is_empty(), "no event at all");
    let many = told
        .iter()
        .find(|(_, events)| events.iter().map(|(_, count)| count).sum::<i32>() > 2);
    anyhow::ensure!(many.is_none(), "events: {many:?}");
    Ok(())
}

async fn an_excluded_node_leaves_every_balancer_with_one_call_each(
    s: &Scenario,
    names: &[String],
) -> anyhow::Result<()> {
    let before = s.cloud.calls();
    s.set_labels(&s.name(0), &[(LABEL_EXCLUDE_FROM_LOAD_BALANCERS, "")])
        .await?;
    s.served(names, SOON).await?;
    let left = s
        .cloud
        .load_balancers()
        .iter()
        .filter(|balancer| balancer.nodes.len() == NODES - 1)
        .count();
    anyhow::ensure!(left == SERVICES, "{left} balancers have {} nodes", NODES - 1);
    expect(
        &s.cloud.calls().since(&before),
        &Calls { update_load_balancer: 200, ..Calls::default() },
    )
}

async fn after_a_restart_nothing_is_written(s: &Scenario, ccm: Ccm) -> anyhow::Result<()> {
    ccm.terminate().await?;
    let told = count_events(s).await?;
    let (before, writes) = (s.cloud.calls(), s.server.writes(&s.user("a")).await?.len());
    let ccm = s.start("a", &FLAGS).await?;
    let compared = || s.cloud.calls().since(&before).get_load_balancer == 200;
    s.until("every balancer is compared", SOON, compared)
        .await?;
    s.stays("all are served", Duration::from_secs(3), || s.in_line())
        .await?;
    let since = s.cloud.calls().since(&before);
    anyhow::ensure!((since.writes(), since.get_load_balancer) == (0, 200), "{since}");
    let mut written = s.server.writes(&s.user("a")).await?.split_off(writes);
    // Events are counted apart: that of the election, about the Lease, may be there.
    written.retain(|write| write.resource != "leases" && write.resource != "events");
    anyhow::ensure!(written.is_empty(), "written after the restart: {written:?}");
    let told_since = count_events(s).await? - told;
    anyhow::ensure!(told_since == 0, "{told_since} events after the restart");
    ccm.terminate().await
}

/// How often something was told about the Services.
async fn count_events(s: &Scenario) -> anyhow::Result<i32> {
    Ok(s.service_events()
        .await?
        .iter()
        .map(|event| event.count.unwrap_or(1))
        .sum())
}

/// Services in the storm, and nodes that stay out of it.
const STORMY: usize = 20;
const CALM: usize = 10;

async fn a_storm_of_flapping_nodes_costs_a_bounded_number_of_calls(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (nodes, names) = (s.names(CALM + 30), s.names(STORMY));
    let (calm, others) = nodes.split_at(CALM);
    let ccm = s.start("a", &FLAGS).await?;
    s.register_initialized(calm).await?;
    s.create_all(&names).await?;
    s.served(&names, SOON).await?;
    let services = names.len() as u64;

    // Followers of the last change are brought together after two seconds of quiet.
    s.stays("nothing more comes", Duration::from_secs(3), || s.in_line())
        .await?;
    nothing_that_matters_not_costs_a_call(s, &calm[..3]).await?;

    // Nodes come one by one, each with its initialisation.
    let begin = (s.cloud.calls(), Instant::now());
    for name in others {
        s.cloud.put_instance(name, InstanceSpec::default())?;
        s.register_one(s.spec(name)).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    s.initialized(&nodes, SOON).await?;
    s.served(&names, SOON).await?;
    // The first at once and the others together, or with a pause of two seconds between them on a
    // slow machine.
    let passes = 2 + begin.1.elapsed().as_secs() / 2;
    at_most(s, &begin.0, services * passes, "nodes that came")?;

    // A node is excluded and included again and again: the first exclusion and the last inclusion
    // count.
    let before = s.cloud.calls();
    for turn in 0..20 {
        let value = if turn % 2 == 0 { "true" } else { "false" };
        s.set_labels(&calm[0], &[(LABEL_EXCLUDE_FROM_LOAD_BALANCERS, value)])
            .await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    s.served(&names, SOON).await?;
    at_most(s, &before, services * 4, "a node that flapped")?;

    // Nodes go, some come back under their names, and one after the other is excluded meanwhile.
    let before = s.cloud.calls();
    let gone = &others[..10];
    for (turn, name) in gone.iter().enumerate() {
        s.delete_node(name).await?;
        s.set_labels(&others[10 + turn], &[(LABEL_EXCLUDE_FROM_LOAD_BALANCERS, "true")])
            .await?;
    }
    for name in &gone[..5] {
        s.kubelets.restart(name).await?;
    }
    s.seen(&gone[..5]).await?;
    s.initialized(&gone[..5], SOON).await?;
    s.served(&names, SOON).await?;
    // Each removal waits for nothing; those that came back come together.
    at_most(s, &before, services * (20 + 3), "nodes that went")?;
    ccm.terminate().await
}

/// Readiness, cordons, taints and labels of others are no reason for a call (KEP-3458).
async fn nothing_that_matters_not_costs_a_call(
    s: &Scenario,
    nodes: &[String],
) -> anyhow::Result<()> {
    let before = s.cloud.calls();
    for turn in 0..10 {
        for name in nodes {
            s.kubelets
                .set_ready(
                    name,
                    if turn % 2 == 0 {
                        Ready::False
                    } else {
                        Ready::True
                    },
                )
                .await?;
            let taints = match turn % 2 {
                // Not the autoscaler's: that it goes is a reason to act.
                0 => json!([{"key": "e2e/other", "effect": "NoSchedule"}]),
                _ => json!([]),
            };
            let patch =
                Patch::Merge(json!({"spec": {"unschedulable": turn % 2 == 0, "taints": taints}}));
            s.nodes_api()
                .patch(name, &PatchParams::default(), &patch)
                .await?;
            s.set_labels(name, &[("e2e.example/turn", &turn.to_string())])
                .await?;
        }
    }
    // Longer than changes of nodes are gathered.
    s.stays("nobody is called", Duration::from_secs(3), || {
        at_most(s, &before, 0, "changes that do not matter").map_err(|calls| calls.to_string())
    })
    .await
}

/// Bounds the calls about load balancers since then.
fn at_most(s: &Scenario, before: &Calls, most: u64, what: &str) -> anyhow::Result<()> {
    let since = s.cloud.calls().since(before);
    let calls = since.writes() + since.get_load_balancer;
    anyhow::ensure!(calls <= most, "{what}: {calls} calls instead of {most} ({since})");
    Ok(())
}
