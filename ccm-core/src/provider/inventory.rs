//! The inventory: listing and deletion of the cloud objects that a cluster owns.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use super::{CloudError, Op, Progress};

/// Lists and deletes the objects that this cluster owns in the cloud.
///
/// The framework compares the listed objects with the existing Services and Nodes. It reports
/// orphans, such as objects left behind by a crash, and deletes them only on the operator's
/// request. A provider must set the ownership tags of an object in the same request that creates
/// it.
#[async_trait]
pub trait Inventory: Send + Sync {
    /// Returns the cluster ID, which is the cluster's name in the ownership tags. The default is
    /// the value of `--cluster-name`.
    ///
    /// An operator who deletes orphans with the subcommand `orphans` confirms this ID, so it must
    /// distinguish this cluster's objects from those of other clusters in the same cloud. It must
    /// not change once [`CloudProvider::start`](super::CloudProvider::start) has returned, and must
    /// not need a cloud call.
    fn cluster_id(&self, op: &Op) -> Box<str> {
        op.cluster_name().into()
    }

    /// Lists all objects that have this cluster's ownership tags, including those whose Service or
    /// Node no longer exists. Must not change anything.
    ///
    /// # Errors
    /// Must return an error if the list would be incomplete.
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError>;

    /// Finds out for the subcommand `check` whether the list can be read. Must not change anything.
    ///
    /// The default reads the whole list. A provider whose cloud lists in pages should read one page of
    /// each kind of object, which shows the permission, too.
    ///
    /// # Errors
    /// Must return an error if [`list_owned`](Self::list_owned) would fail because of a missing
    /// permission or a service that does not answer.
    async fn check_readable(&self, op: &Op) -> Result<(), CloudError> {
        self.list_owned(op).await.map(drop)
    }

    /// Checks the ownership tags of an object again and deletes it. Returns [`Progress::Done`] once
    /// it no longer exists.
    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError>;
}

/// A cloud object that this cluster owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedObject {
    /// The kind of the object in the cloud's own terms, such as `load balancer` or `security
    /// group`.
    pub kind: Arc<str>,
    /// The object's identifier in the cloud.
    pub id: Box<str>,
    /// The Kubernetes object for which it was created.
    pub owner: Owner,
    /// The time of its creation, if the cloud reports it.
    pub created: Option<Timestamp>,
}

/// The Kubernetes object for which a cloud object was created.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The cluster as a whole.
    Cluster,
    /// A Service.
    Service {
        /// The namespace of the Service.
        namespace: Box<str>,
        /// The name of the Service.
        name: Box<str>,
        /// The UID of the Service, if the ownership tags contain it.
        uid: Option<Box<str>>,
    },
    /// A Node.
    Node {
        /// The name of the Node.
        name: Box<str>,
    },
}
