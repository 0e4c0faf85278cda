//! Nodes that appear become usable.

use std::collections::BTreeMap;
use std::time::Duration;

use ccm_core::k8s::AddressType;
use ccm_e2e::scenario::{SOON, Scenario, each};
use ccm_e2e::watcher::{addresses, is_tainted, label, provider_id};
use ccm_mock::cloud::{Address, InstanceSpec};
use ccm_testkit::kubelet::{Ready, UNINITIALIZED_TAINT};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

use crate::case;
use crate::run::{Case, EVERYWHERE, settings};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case {
            // Each process hears of each node of its cluster.
            own_server: Some(settings),
            ..case!(
                "many",
                EVERYWHERE,
                three_hundred_nodes_cost_two_writes_each_and_tens_of_cloud_calls
            )
        },
        case!(
            "late",
            EVERYWHERE,
            a_node_without_instance_is_told_and_holds_up_nobody_and_comes_soon_after_it
        ),
        case!(
            "badip",
            EVERYWHERE,
            a_node_ip_that_the_cloud_does_not_know_keeps_the_taint_until_it_does
        ),
        case!("dual", EVERYWHERE, provided_node_ips_decide_which_internal_ips_stay_and_their_order),
        case!("malformed", EVERYWHERE, a_malformed_provider_id_is_told_and_the_node_stays),
        case!("bare", EVERYWHERE, a_node_without_any_label_is_initialised),
        case!("clouds", EVERYWHERE, two_clouds_in_one_cluster_leave_each_others_nodes_alone),
    ]
}

const MANY: usize = 300;

async fn three_hundred_nodes_cost_two_writes_each_and_tens_of_cloud_calls(
    s: &Scenario,
) -> anyhow::Result<()> {
    let names = s.names(MANY);
    s.register(&names).await?;
    // The periodic update is another scenario's subject, and would blur the count of calls.
    let ccm = s
        .start("a", &["--node-status-update-frequency=10m"])
        .await?;
    s.initialized(&names, Duration::from_secs(90)).await?;
    for name in &names {
        let (node, instance) = (
            s.node(name)?,
            s.cloud
                .instance(name)
                .ok_or_else(|| anyhow::anyhow!("no {name}"))?,
        );
        anyhow::ensure!(
            provider_id(&node) == Some(&instance.provider_id),
            "{name}: {:?}",
            provider_id(&node)
        );
        let wanted: Vec<_> = instance
            .addresses
            .iter()
            .map(|a| format!("{}={}", a.kind.0.as_str(), a.address))
            .collect();
        anyhow::ensure!(
            addresses(&node) == wanted,
            "{name}: {:?} instead of {wanted:?}",
            addresses(&node)
        );
        for (key, value) in [
            ("topology.kubernetes.io/zone", &instance.zone),
            ("failure-domain.beta.kubernetes.io/zone", &instance.zone),
            ("topology.kubernetes.io/region", &instance.region),
            ("failure-domain.beta.kubernetes.io/region", &instance.region),
            ("node.kubernetes.io/instance-type", &instance.instance_type),
            ("beta.kubernetes.io/instance-type", &instance.instance_type),
        ] {
            anyhow::ensure!(
                label(&node, key) == Some(value),
                "{name}: {key}={:?}",
                label(&node, key)
            );
        }
    }
    let calls = s.cloud.calls();
    anyhow::ensure!(
        (3..=30).contains(&calls.describe_instances),
        "{} cloud calls",
        calls.describe_instances
    );

    let mut writes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for write in s.node_writes("a").await? {
        writes
            .entry(write.name)
            .or_default()
            .push(format!("{} {} {}", write.verb, write.resource, write.code));
    }
    for name in &names {
        let of_node = writes.get(name).map(Vec::as_slice).unwrap_or_default();
        anyhow::ensure!(
            of_node == ["patch nodes/status 200", "patch nodes 200"],
            "writes to {name}: {of_node:?}"
        );
    }
    at_most_one_event_each(s, &names).await?;
    ccm.terminate().await
}

async fn at_most_one_event_each(s: &Scenario, names: &[String]) -> anyhow::Result<()> {
    let counts = counts_of_events(s).await?;
    let nodes = s.nodes();
    each(&nodes, names, |node| {
        let count = node
            .metadata
            .name
            .as_ref()
            .and_then(|name| counts.get(name))
            .copied()
            .unwrap_or_default();
        if count <= 1 {
            Ok(())
        } else {
            Err(format!("{count} events"))
        }
    })
    .map_err(anyhow::Error::msg)
}

/// How many events there are about each node of this scenario, once there are any: the event budget
/// lets only some through.
async fn counts_of_events(s: &Scenario) -> anyhow::Result<BTreeMap<String, i32>> {
    let events: Api<Event> = Api::namespaced(s.server.client(), "default");
    let deadline = Instant::now() + SOON;
    loop {
        let mut counts: BTreeMap<String, i32> = BTreeMap::new();
        for event in events.list(&ListParams::default()).await?.items {
            if let Some(name) = event
                .involved_object
                .name
                .filter(|name| name.starts_with(&s.prefix()))
            {
                *counts.entry(name).or_default() += event.count.unwrap_or(1);
            }
        }
        if !counts.is_empty() {
            return Ok(counts);
        }
        anyhow::ensure!(Instant::now() < deadline, "no event at all");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn a_node_without_instance_is_told_and_holds_up_nobody_and_comes_soon_after_it(
    s: &Scenario,
) -> anyhow::Result<()> {
    let (late, others) = (s.name(0), s.names(4)[1..].to_vec());
    let ccm = s
        .start("a", &["--node-status-update-frequency=10m"])
        .await?;
    s.register_one(s.spec(&late)).await?;
    s.event(&late, "InstanceNotFound", SOON).await?;
    s.register_initialized(&others).await?;
    // It is asked about again and again, and told only once.
    let asked = s.cloud.calls().describe_instances_nodes;
    s.until("asked again", SOON, || s.cloud.calls().describe_instances_nodes >= asked + 2)
        .await?;
    let told = s.events(&late).await?;
    anyhow::ensure!(
        told.iter().all(|event| event.count.unwrap_or(1) == 1),
        "told more than once: {told:?}"
    );
    s.cloud.put_instance(&late, InstanceSpec::default())?;
    // The longest back-off is 30 s.
    s.initialized(&[late], Duration::from_secs(31)).await?;
    ccm.terminate().await
}

async fn a_node_ip_that_the_cloud_does_not_know_keeps_the_taint_until_it_does(
    s: &Scenario,
) -> anyhow::Result<()> {
    let name = s.name(0);
    let ccm = s.start("a", &[]).await?;
    s.cloud
        .put_instance(&name, with_addresses(&["10.20.0.1"]))?;
    s.register_one(s.spec(&name).provided_ip("10.20.0.9".parse()?))
        .await?;
    let event = s.event(&name, "InvalidNodeIP", SOON).await?;
    anyhow::ensure!(
        event
            .message
            .as_deref()
            .is_some_and(|text| text.contains("10.20.0.9")),
        "{event:?}"
    );
    s.throughout("the taint stays", 3, |nodes| {
        each(nodes, std::slice::from_ref(&name), |node| {
            match is_tainted(node, UNINITIALIZED_TAINT) {
                true => Ok(()),
                false => Err("it lost its taint".to_owned()),
            }
        })
    })
    .await?;
    s.cloud
        .put_instance(&name, with_addresses(&["10.20.0.1", "10.20.0.9"]))?;
    s.initialized(std::slice::from_ref(&name), Duration::from_secs(31))
        .await?;
    let internal = internal_ips(&*s.node(&name)?);
    anyhow::ensure!(internal == ["10.20.0.9"], "{internal:?}");
    ccm.terminate().await
}

/// The integration case of the upstream test suite: five internal IPs of both families.
async fn provided_node_ips_decide_which_internal_ips_stay_and_their_order(
    s: &Scenario,
) -> anyhow::Result<()> {
    let cloud = ["10.21.0.1", "2001:db8::1", "10.21.0.2", "2001:db8::2", "10.21.0.3"];
    let (v4, v6) = ("10.21.0.2", "2001:db8::2");
    let wanted = [vec![v4], vec![v6], vec![v6, v4], vec![v4, v6]];
    let names = s.names(wanted.len());
    let ccm = s.start("a", &[]).await?;
    for (name, provided) in names.iter().zip(&wanted) {
        s.cloud.put_instance(name, with_addresses(&cloud))?;
        let mut spec = s.spec(name);
        for ip in provided {
            spec = spec.provided_ip(ip.parse()?);
        }
        s.register_one(spec).await?;
    }
    s.initialized(&names, SOON).await?;
    for (name, provided) in names.iter().zip(&wanted) {
        let internal = internal_ips(&*s.node(name)?);
        anyhow::ensure!(internal == *provided, "{name}: {internal:?} instead of {provided:?}");
    }
    ccm.terminate().await
}

async fn a_malformed_provider_id_is_told_and_the_node_stays(s: &Scenario) -> anyhow::Result<()> {
    let (broken, others) = (s.name(0), s.names(3)[1..].to_vec());
    let ccm = s.start("a", &[]).await?;
    s.register_initialized(&others).await?;
    s.register_one(s.spec(&broken).provider_id("mock:///broken"))
        .await?;
    let event = s.event(&broken, "InvalidInstanceReference", SOON).await?;
    anyhow::ensure!(
        event
            .message
            .as_deref()
            .is_some_and(|text| text.contains("mock:///broken")),
        "{event:?}"
    );
    // Another is asked about in the same passes.
    s.kubelets.set_ready(&broken, Ready::Unknown).await?;
    s.kubelets.set_ready(&others[0], Ready::Unknown).await?;
    s.none_deleted(&s.names(3), 5).await?;
    ccm.terminate().await
}

async fn a_node_without_any_label_is_initialised(s: &Scenario) -> anyhow::Result<()> {
    let name = s.name(0);
    let ccm = s.start("a", &[]).await?;
    let instance = s.cloud.put_instance(&name, InstanceSpec::default())?;
    // Without labels only the provider ID says whose it is.
    let node = json!({
        "metadata": {"name": name},
        "spec": {
            "providerID": instance.provider_id,
            "taints": [{"key": UNINITIALIZED_TAINT, "value": "true", "effect": "NoSchedule"}],
        },
    });
    let created = s
        .nodes_api()
        .create(&PostParams::default(), &serde_json::from_value(node)?)
        .await?;
    anyhow::ensure!(
        created
            .metadata
            .labels
            .is_none_or(|labels| labels.is_empty()),
        "the server added labels"
    );
    s.initialized(std::slice::from_ref(&name), SOON).await?;
    let node = s.node(&name)?;
    let zone = label(&node, "topology.kubernetes.io/zone");
    anyhow::ensure!(zone == Some(instance.zone.as_str()), "zone {zone:?}");
    ccm.terminate().await
}

async fn two_clouds_in_one_cluster_leave_each_others_nodes_alone(
    s: &Scenario,
) -> anyhow::Result<()> {
    let other = s.neighbour().await?;
    let (ours, theirs) = (s.names(4), other.names(4));
    // Even of a name that is known in both clouds, only one is the right one.
    for (corner, foreign) in [(s, &theirs), (&other, &ours)] {
        corner
            .cloud
            .put_instance(&foreign[1], InstanceSpec::default())?;
    }
    let ccms = [s.start("a", &[]).await?, other.start("a", &[]).await?];
    tokio::try_join!(s.register(&ours), other.register(&theirs))?;
    tokio::try_join!(s.initialized(&ours, SOON), other.initialized(&theirs, SOON))?;
    // What is not Ready is asked about: by its own cloud's controller alone.
    tokio::try_join!(
        s.kubelets.set_ready(&ours[0], Ready::Unknown),
        other.kubelets.set_ready(&theirs[0], Ready::Unknown)
    )?;
    tokio::try_join!(s.none_deleted(&ours, 5), other.none_deleted(&theirs, 5))?;
    for (corner, neighbour) in [(s, &other), (&other, s)] {
        let user = corner.user("a");
        let mut writes = s.server.writes(&user).await?;
        writes.retain(|write| {
            write.resource.starts_with("nodes") && write.name.starts_with(&neighbour.prefix())
        });
        anyhow::ensure!(writes.is_empty(), "{user} wrote to a neighbour's nodes: {writes:?}");
        for (name, node) in corner.nodes() {
            let id = format!("mock://{}/{name}", corner.region());
            anyhow::ensure!(provider_id(&node) == Some(&id), "{name}: {:?}", provider_id(&node));
            let mut events = s.events(&name).await?;
            events.retain(|event| event.reason.as_deref() != Some("Synced"));
            anyhow::ensure!(events.is_empty(), "somebody complained about {name}: {events:?}");
        }
    }
    other.verdict()?;
    let [a, b] = ccms;
    a.terminate().await?;
    b.terminate().await
}

/// An instance with these internal IPs.
fn with_addresses(ips: &[&str]) -> InstanceSpec {
    let list = ips
        .iter()
        .map(|ip| Address::new(AddressType::InternalIp, *ip))
        .collect();
    InstanceSpec { addresses: Some(list), ..InstanceSpec::default() }
}

/// The node's internal IPs in order.
fn internal_ips(node: &Node) -> Vec<String> {
    addresses(node)
        .iter()
        .filter_map(|address| address.strip_prefix("InternalIP="))
        .map(str::to_owned)
        .collect()
}
