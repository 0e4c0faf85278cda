//! Running servers: this process does what a server's metadata says, while the server is `ACTIVE`.
//!
//! - [`WEB`] names ports at which the server answers HTTP, on each of its loopback addresses.
//! - [`NODE`] makes it a node of this cloud's [`Cluster`]: its kubelet reports, and it answers at
//!   the node port of every Service, as kube-proxy with a pod behind it would.
//!
//! A server that is stopped or deleted closes its sockets with all connections, and its kubelet
//! stops reporting. Nothing outlives the process, and what runs after a restart follows from the
//! rows. Metadata can choose only between these two functions: no program is started, and only
//! loopback addresses are listened on.

mod backend;
mod cluster;
#[cfg(feature = "nodes")]
mod kubernetes;
mod plan;
mod proxy;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    task::{Id, JoinSet},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

#[cfg(feature = "nodes")]
pub use self::kubernetes::{KubeconfigError, Kubernetes};
pub(crate) use self::plan::check;
pub use self::{
    cluster::{Cluster, Ports, Transport},
    plan::{NODE, RunningServer, WEB, machines},
};
use crate::server::Cloud;

/// Delay before something that failed is tried again: an address that is in use, a cluster that
/// does not answer.
const RETRY: Duration = Duration::from_secs(2);

/// Runs the servers whose metadata says so until cancelled. Without a cluster no server is a node.
pub async fn run(cloud: &Cloud, cluster: Option<Arc<dyn Cluster>>, cancel: CancellationToken) {
    let around = async {
        match &cluster {
            Some(cluster) => cluster.run(cancel.clone()).await,
            None => cancel.cancelled().await,
        }
    };
    tokio::join!(supervise(cloud, cluster.as_ref(), &cancel), around);
}

/// A server that was started.
struct Running {
    machine: RunningServer,
    /// ID of its task.
    task: Id,
    off: CancellationToken,
}

async fn supervise(cloud: &Cloud, cluster: Option<&Arc<dyn Cluster>>, cancel: &CancellationToken) {
    let mut changes = cloud.store.changes();
    let mut tasks = JoinSet::new();
    let mut running: BTreeMap<String, Running> = BTreeMap::new();
    loop {
        let mut wanted = cloud.store.peek(machines);
        for (server, one) in &running {
            // A server whose configuration has changed is stopped, and started again when it has
            // ended.
            if wanted.remove(server).as_ref() != Some(&one.machine) {
                one.off.cancel();
            }
        }
        for (server, machine) in wanted {
            let off = cancel.child_token();
            let task = live(machine.clone(), cluster.cloned(), off.clone(), cancel.clone());
            let task = tasks.spawn(task).id();
            running.insert(server, Running { machine, task, off });
        }
        tokio::select! {
            () = cancel.cancelled() => break,
            there = changes.next() => if !there { break },
            Some(ended) = tasks.join_next_with_id() => {
                let task = ended.as_ref().map_or_else(tokio::task::JoinError::id, |(task, ())| *task);
                running.retain(|_, one| one.task != task);
                if let Err(error) = ended {
                    tracing::error!(%error, "a server ended that should not have");
                }
            }
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Runs a server while it is switched on. Ends when `off` is cancelled and everything is closed;
/// with `halt` the whole process ends, so that the cluster is not notified.
async fn live(
    machine: RunningServer,
    cluster: Option<Arc<dyn Cluster>>,
    off: CancellationToken,
    halt: CancellationToken,
) {
    let server = &*machine.name;
    tracing::info!(server, addresses = ?machine.addresses, node = machine.node, "server runs");
    if machine.addresses.is_empty() {
        tracing::warn!(
            server,
            "server has no loopback address to answer at: its network has no subnet in 127.0.0.0/8"
        );
    }
    let cluster = cluster.filter(|_| machine.node);
    if machine.node && cluster.is_none() {
        tracing::warn!(server, "server is to be a node, but this cloud has no cluster");
    }
    let ports = cluster.as_ref().map(|cluster| cluster.ports());
    let node = async {
        if let Some(cluster) = cluster {
            be_node(&machine, &*cluster, &off, &halt).await;
        }
    };
    tokio::join!(backend::serve(&machine, ports, &off), node);
    tracing::info!(server, "server is off");
}

/// Keeps the server a node until `off`.
async fn be_node(
    machine: &RunningServer,
    cluster: &dyn Cluster,
    off: &CancellationToken,
    halt: &CancellationToken,
) {
    let join = async {
        let mut last = String::new();
        // An attempt is not aborted when the server is switched off: then it would be unknown
        // whether it has joined.
        while let Err(error) = cluster.join(&machine.name, &machine.server).await {
            if error != last {
                tracing::warn!(server = %machine.name, error, "server cannot join the cluster; trying again");
                last = error;
            }
            if off.run_until_cancelled(sleep(RETRY)).await.is_none() {
                return;
            }
        }
    };
    let _ = halt.run_until_cancelled(join).await;
    off.cancelled().await;
    let _ = halt
        .run_until_cancelled(cluster.leave(&machine.name, &machine.server))
        .await;
}
