use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use super::{CloudError, Op, Progress};

/// Lists what this cluster owns in the cloud, so that nothing that a crash left behind is lost.
///
/// What is listed is compared with the Services and Nodes that exist; the rest is reported, and deleted only where the
/// operator asked for that. The mark must be put on an object by the same request that creates it.
#[async_trait]
pub trait Inventory: Send + Sync {
    /// Names the cluster whose objects are listed, as the ownership mark has it. Whoever has orphans deleted by the
    /// subcommand `orphans` confirms this name, so it has to be what tells this cluster's objects from another's in the
    /// cloud. The default is `--cluster_id-name`.
    ///
    /// Constant once [`CloudProvider::start`](super::CloudProvider::start) returned; no cloud call.
    fn cluster_id(&self, op: &Op) -> Box<str> {
        op.cluster_name().into()
    }

    /// Lists every object that carries this cluster's ownership mark, complete or an error: also those that no Service or
    /// Node stands behind any more. Read-only.
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError>;

    /// Deletes one owned object after checking its ownership mark again. Succeeds when it is gone.
    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError>;
}

/// A cloud object that this cluster owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedObject {
    /// Kind, in the cloud's own word ("load balancer", "security group").
    pub kind: Arc<str>,
    /// Identifier in the cloud.
    pub id: Box<str>,
    /// Whose it is.
    pub owner: Owner,
    /// When it was created, if the cloud says so.
    pub created: Option<Timestamp>,
}

/// Kubernetes object that a cloud object was made for.
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
        /// UID, if the mark holds it.
        uid: Option<Box<str>>,
    },
    /// A Node.
    Node {
        /// Name.
        name: Box<str>,
    },
}
