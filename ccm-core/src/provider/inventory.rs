//! Listing and deletion of the cloud objects that a cluster owns.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use super::{CloudError, Op, Progress};

/// Lists the objects that this cluster owns in the cloud, so that objects left behind by a crash
/// are found.
///
/// The listed objects are compared with the existing Services and Nodes. Orphans are reported, and
/// deleted only if the operator requested that. The ownership tags must be set on an object by the
/// same request that creates it.
#[async_trait]
pub trait Inventory: Send + Sync {
    /// Returns the cluster ID: the cluster's name in the ownership tags of the listed objects. An
    /// operator who deletes orphans with the subcommand `orphans` confirms this name, so it must
    /// distinguish this cluster's objects from another cluster's in the same cloud. The default is
    /// the value of `--cluster-name`.
    ///
    /// Constant once [`CloudProvider::start`](super::CloudProvider::start) returned; no cloud call.
    fn cluster_id(&self, op: &Op) -> Box<str> {
        op.cluster_name().into()
    }

    /// Lists every object that has this cluster's ownership tags, including those whose Service or
    /// Node no longer exists. Must be complete, or an error. Read-only.
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError>;

    /// Deletes one owned object after checking its ownership tags again. Returns [`Progress::Done`]
    /// once it no longer exists.
    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError>;
}

/// A cloud object that this cluster owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedObject {
    /// Kind, in the cloud's own terms ("load balancer", "security group").
    pub kind: Arc<str>,
    /// Identifier in the cloud.
    pub id: Box<str>,
    /// The Kubernetes object that it belongs to.
    pub owner: Owner,
    /// When it was created, if the cloud reports it.
    pub created: Option<Timestamp>,
}

/// Kubernetes object for which a cloud object was created.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The cluster as a whole.
    Cluster,
    /// A Service.
    Service {
        /// Namespace.
        namespace: Box<str>,
        /// Name.
        name: Box<str>,
        /// UID, if the tags contain it.
        uid: Option<Box<str>>,
    },
    /// A Node.
    Node {
        /// Name.
        name: Box<str>,
    },
}
