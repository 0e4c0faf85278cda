//! The interface of a cluster for servers.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Transport of a port.
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
    /// Returns the ports and their changes. Empty until [`run`](Self::run) has read them.
    fn ports(&self) -> watch::Receiver<Arc<Ports>>;

    /// Makes a server a node with this name, or continues with the node that it was. Safe to call
    /// again.
    ///
    /// # Errors
    /// The cluster does not answer or rejects the request, or the name is another node's. The text
    /// explains it to the user.
    fn join<'a>(&'a self, name: &'a str, server: &'a str) -> BoxFuture<'a, Result<(), String>>;

    /// Reports that a server which may have joined is off. The Node stays: deleting it is the task
    /// of others.
    fn leave<'a>(&'a self, name: &'a str, server: &'a str) -> BoxFuture<'a, ()>;

    /// Keeps the ports up to date until cancelled.
    fn run(&self, cancel: CancellationToken) -> BoxFuture<'_, ()>;
}
