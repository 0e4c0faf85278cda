//! What a cluster is to servers.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What a port is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// HTTP over TCP.
    Tcp,
    /// Datagrams.
    Udp,
}

/// Ports at which every node answers, and for what.
pub type Ports = BTreeMap<(Transport, u16), String>;

/// A cluster that servers can be nodes of.
pub trait Cluster: Debug + Send + Sync {
    /// Returns the ports, and tells when they change. Empty until [`run`](Self::run) knows better.
    fn ports(&self) -> watch::Receiver<Arc<Ports>>;

    /// Makes a server a node with this name, or goes on with the node that it was. Safe to call again.
    ///
    /// # Errors
    /// The cluster does not answer or refuses, or the name is another node's. What a person must know.
    fn join<'a>(&'a self, name: &'a str, server: &'a str) -> BoxFuture<'a, Result<(), String>>;

    /// Says that a server which may have joined is off. The node stays, since to delete it is somebody else's business.
    fn leave<'a>(&'a self, name: &'a str, server: &'a str) -> BoxFuture<'a, ()>;

    /// Keeps the ports as the cluster has them until cancelled.
    fn run(&self, cancel: CancellationToken) -> BoxFuture<'_, ()>;
}
