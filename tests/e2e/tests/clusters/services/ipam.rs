//! Pod CIDRs: each node gets its own, once. The observer sees to that in every scenario.

use std::collections::BTreeSet;

use ccm_e2e::ccm::Signal;
use ccm_e2e::scenario::{SOON, Scenario, each};
use ccm_e2e::watcher::pod_cidrs;

use crate::case;
use crate::run::{Case, EVERYWHERE};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(
        "ipam",
        EVERYWHERE,
        nodes_get_their_pod_networks_once_whatever_happens_to_the_allocator
    )]
}

/// 64 blocks of each family.
const NETWORKS: [&str; 4] = [
    "--allocate-node-cidrs=true",
    "--cluster-cidr=10.64.0.0/18,fd00:64::/58",
    "--configure-cloud-routes=false",
    "--leader-elect=false",
];

/// What the process says when it knows all nodes.
const FILLED: &str = "cache filled resource=\"nodes\"";

async fn nodes_get_their_pod_networks_once_whatever_happens_to_the_allocator(
    s: &Scenario,
) -> anyhow::Result<()> {
    let names = s.names(60);
    // Manifests carry --allocate-node-cidrs for kube-controller-manager: nobody but who names the
    // controller means it.
    let ccm = s.start("a", &NETWORKS).await?;
    s.register_initialized(&names[..2]).await?;
    s.throughout("nobody allocates", 3, |nodes| {
        each(nodes, &names[..2], |node| match pod_cidrs(node) {
            given if given.is_empty() => Ok(()),
            given => Err(format!("was given {given:?}")),
        })
    })
    .await?;
    ccm.terminate().await?;

    let flags = [&["--controllers=*,node-ipam-controller"], &NETWORKS[..]].concat();
    let mut ccm = s.start("a", &flags).await?;
    s.register(&names[2..20]).await?;
    ccm.logged(FILLED, SOON).await?;
    heartbeat(s, &names[..20], "first").await?;
    networked(s, &names[..20]).await?;
    for name in &names[2..20] {
        let writes = s
            .node_writes("a")
            .await?
            .into_iter()
            .filter(|write| write.name == *name);
        let writes: Vec<_> = writes
            .filter(|write| write.resource == "nodes" && write.succeeded())
            .collect();
        anyhow::ensure!(
            writes.len() <= 2,
            "one for the networks, one for the initialisation: {writes:?}"
        );
    }
    // Killed in the midst of its work, and again.
    for batch in [20..35, 35..50] {
        s.register(&names[batch.clone()]).await?;
        let given = || {
            s.nodes()
                .values()
                .filter(|node| !pod_cidrs(node).is_empty())
                .count()
        };
        s.until("one of the new nodes has networks", SOON, || given() > batch.start)
            .await?;
        ccm.signal(Signal::Kill).await?;
        ccm.exit(SOON).await?;
        ccm = s.start("a", &flags).await?;
        ccm.logged(FILLED, SOON).await?;
        // Another value each time: what is there already is no change.
        heartbeat(s, &names[..batch.end], &batch.end.to_string()).await?;
    }
    networked(s, &names[..50]).await?;
    // What is given cannot be changed.
    for given in [vec!["10.64.63.0/24".to_owned(), "fd00:64:0:3f::/64".to_owned()], Vec::new()] {
        match s.give_pod_cidrs(&names[0], &given).await {
            Err(kube::Error::Api(status)) if status.code == 422 => {}
            changed => anyhow::bail!("the networks became {given:?}: {changed:?}"),
        }
    }
    // Those of nodes that go are used again: 54 nodes would fit, 64 have been there.
    for name in &names[..4] {
        s.kubelets.stop_node(name)?;
        s.delete_node(name).await?;
    }
    s.register(&names[50..]).await?;
    networked(s, &names[4..]).await?;
    ccm.terminate().await
}

/// Changes the nodes that lack networks, as their kubelets do all the time. Until it has seen each
/// node change, an allocator fears that a write of its predecessor may still come, and gives
/// nothing away for 35 seconds.
async fn heartbeat(s: &Scenario, names: &[String], turn: &str) -> anyhow::Result<()> {
    let nodes = s.nodes();
    let lacks = |name: &&String| {
        nodes
            .get(*name)
            .is_some_and(|node| pod_cidrs(node).is_empty())
    };
    for name in names.iter().filter(lacks) {
        s.set_labels(name, &[("e2e.example/heartbeat", turn)])
            .await?;
    }
    Ok(())
}

/// Waits until each node has one network of each family, and no two have the same.
async fn networked(s: &Scenario, names: &[String]) -> anyhow::Result<()> {
    s.eventually("networked", SOON, |nodes| {
        each(nodes, names, |node| match pod_cidrs(node).as_slice() {
            [v4, v6]
                if v4.starts_with("10.64.")
                    && v4.ends_with("/24")
                    && v6.starts_with("fd00:64:") =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        })
    })
    .await?;
    let nodes = s.nodes();
    let all: Vec<String> = nodes.values().flat_map(|node| pod_cidrs(node)).collect();
    let distinct: BTreeSet<_> = all.iter().collect();
    anyhow::ensure!(distinct.len() == all.len() && all.len() == 2 * names.len(), "{all:?}");
    for node in nodes.values() {
        let first = node.spec.as_ref().and_then(|spec| spec.pod_cidr.clone());
        anyhow::ensure!(first.as_ref() == pod_cidrs(node).first(), "{first:?}");
    }
    Ok(())
}
