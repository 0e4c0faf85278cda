use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ACCEPT_METADATA, ACCEPT_OBJECT, ApiClient, ApiError, ApiRequest, Patch, segment};
use crate::{
    k8s::{NodeFields, NodeView},
    runtime::reflector::{Decoder, Watched},
};

/// Part of an object that a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subresource {
    /// The object itself.
    None,
    /// Its status.
    Status,
}

/// Metadata of an object after a patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patched {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
}

/// Any object, or its PartialObjectMetadata.
#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    uid: String,
    resource_version: String,
    labels: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<String>,
}

/// `meta/v1` DeleteOptions with preconditions.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions<'a> {
    api_version: &'static str,
    kind: &'static str,
    preconditions: Preconditions<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Preconditions<'a> {
    uid: &'a str,
    resource_version: &'a str,
}

impl ApiClient {
    /// Patches a Node or its status. RBAC: `patch` on `nodes` or `nodes/status`.
    ///
    /// Asks for the metadata alone as the answer, because a whole Node costs the server most of such a write.
    ///
    /// # Errors
    /// [`TestFailed`](super::ApiErrorKind::TestFailed) when the Node is not as the JSON Patch expects.
    pub async fn patch_node(&self, name: &str, sub: Subresource, patch: &Patch) -> Result<Patched, ApiError> {
        let suffix = match sub {
            Subresource::None => "",
            Subresource::Status => "/status",
        };
        let request = ApiRequest::patch(format!("{}{suffix}", node_path(name)), patch)?.accept(ACCEPT_METADATA);
        let Object { metadata } = self.send(request).await?.json()?;
        Ok(Patched {
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            labels: metadata.labels.unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
        })
    }

    /// Reads a Node, the most recent state and not a cached one. RBAC: `get` on `nodes`.
    pub async fn get_node(&self, name: &str, fields: &NodeFields) -> Result<NodeView, ApiError> {
        let response = self.send(ApiRequest::get(node_path(name)).accept(ACCEPT_OBJECT)).await?;
        let decoder = Decoder::new(fields.clone());
        decoder.object(response.encoding, &response.body).map_err(|e| response.undecodable(e))
    }

    /// Deletes the Node with this name if it still has this UID and is still in this version. RBAC: `delete` on `nodes`.
    ///
    /// # Errors
    /// [`NotFound`](super::ApiErrorKind::NotFound) when there is no such Node;
    /// [`Conflict`](super::ApiErrorKind::Conflict) when the Node of this name has another
    /// UID, or changed since it was read.
    pub async fn delete_node(&self, name: &str, uid: &str, resource_version: &str) -> Result<(), ApiError> {
        let options = DeleteOptions {
            api_version: "v1",
            kind: "DeleteOptions",
            preconditions: Preconditions { uid, resource_version },
        };
        self.send(ApiRequest::delete(node_path(name)).json(&options)?).await?;
        Ok(())
    }
}

fn node_path(name: &str) -> String {
    format!("{}/{}", NodeView::PATH, segment(name))
}
