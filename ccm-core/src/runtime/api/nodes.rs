//! Reads and writes of Nodes.

use serde::Serialize;

use super::{
    ACCEPT_OBJECT, ApiClient, ApiError, ApiErrorKind, ApiRequest, Patch, Patched, RequestInfo,
};
use crate::{
    k8s::{NodeFields, NodeView},
    percent::encode,
    runtime::encoding::{CachedObject, Decoder, Page},
};

/// The number of Nodes in one page of a list, as in client-go.
const PAGE_SIZE: usize = 500;

/// The part of an object that a request changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subresource {
    /// The object itself.
    None,
    /// Its status.
    Status,
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
    /// The response contains only the metadata, because returning the whole Node is most of the
    /// cost of such a write for the server.
    ///
    /// # Errors
    /// Returns [`TestFailed`](super::ApiErrorKind::TestFailed) if the Node is not in the state that
    /// the JSON Patch expects.
    pub async fn patch_node(
        &self,
        name: &str,
        sub: Subresource,
        patch: &Patch,
    ) -> Result<Patched, ApiError> {
        let suffix = match sub {
            Subresource::None => "",
            Subresource::Status => "/status",
        };
        self.patch(format!("{}{suffix}", node_path(name)), patch)
            .await
    }

    /// Reads the most recent state of a Node, not a cached one. RBAC: `get` on `nodes`.
    pub async fn get_node(&self, name: &str, fields: &NodeFields) -> Result<NodeView, ApiError> {
        let response = self
            .send(ApiRequest::get(node_path(name)).accept(ACCEPT_OBJECT))
            .await?;
        let decoder = Decoder::new(fields.clone());
        decoder
            .object(response.encoding, &response.body)
            .map_err(|e| response.decode_error(e))
    }

    /// Reads the most recent state of a Node, not a cached one. RBAC: `list` on `nodes`.
    ///
    /// Use it instead of [`get_node`](Self::get_node) for roles that grant `list` but not `get`,
    /// such as the role of upstream's service controller.
    ///
    /// # Errors
    /// Returns [`NotFound`](super::ApiErrorKind::NotFound) if there is no such Node.
    pub async fn get_node_by_list(
        &self,
        name: &str,
        fields: &NodeFields,
    ) -> Result<NodeView, ApiError> {
        let decoder = Decoder::new(fields.clone());
        self.get_by_list(NodeView::PATH.to_owned(), name, &decoder, |found: &NodeView| {
            *found.name == *name
        })
        .await
    }

    /// Reads one object with a list request for its name, which costs the server no more than
    /// reading one object. Returns the listed object for which `is_match` returns true.
    pub(super) async fn get_by_list<T: CachedObject>(
        &self,
        collection: String,
        name: &str,
        decoder: &Decoder<T>,
        is_match: impl Fn(&T) -> bool,
    ) -> Result<T, ApiError> {
        let path = format!("{collection}?fieldSelector=metadata.name%3D{}", encode(name));
        let (page, request) = self.read_page(path, decoder).await?;
        page.items.into_iter().find(is_match).ok_or_else(|| {
            let request = RequestInfo { name: Some(name.into()), ..request };
            ApiError::local(ApiErrorKind::NotFound, request, "there is no such object")
        })
    }

    /// Reads all Nodes, page by page and not from a cache. All pages show the state of the server
    /// at the first request. RBAC: `list` on `nodes`.
    ///
    /// # Errors
    /// Returns an error if any page or any Node cannot be read, because an incomplete list must not
    /// be used as a complete one. Returns [`Gone`](super::ApiErrorKind::Gone) if the state expired
    /// between two pages. The caller should then list again.
    pub async fn list_nodes(&self, fields: &NodeFields) -> Result<Vec<NodeView>, ApiError> {
        let decoder = Decoder::<NodeView>::new(fields.clone());
        let mut nodes = Vec::new();
        let mut path = format!("{}?limit={PAGE_SIZE}", NodeView::PATH);
        loop {
            let (page, _) = self.read_page(path, &decoder).await?;
            nodes.extend(page.items);
            if page.r#continue.is_empty() {
                return Ok(nodes);
            }
            path = format!(
                "{}?limit={PAGE_SIZE}&continue={}",
                NodeView::PATH,
                encode(&page.r#continue)
            );
        }
    }

    /// Reads one page of a list, all of whose objects must be readable. Also returns the request.
    async fn read_page<T: CachedObject>(
        &self,
        path: String,
        decoder: &Decoder<T>,
    ) -> Result<(Page<T>, RequestInfo), ApiError> {
        let response = self
            .send(ApiRequest::get(path).accept(ACCEPT_OBJECT))
            .await?;
        let mut page = decoder
            .page(response.encoding, &response.body)
            .map_err(|e| response.decode_error(e))?;
        match page.malformed.pop() {
            Some(malformed) => Err(response.decode_error(malformed.error)),
            None => Ok((page, response.request)),
        }
    }

    /// Deletes the Node with this name if it still has this UID and this resource version. RBAC:
    /// `delete` on `nodes`.
    ///
    /// # Errors
    /// Returns [`NotFound`](super::ApiErrorKind::NotFound) if there is no such Node, and
    /// [`Conflict`](super::ApiErrorKind::Conflict) if the Node of this name has another UID or has
    /// changed since it was read.
    pub async fn delete_node(
        &self,
        name: &str,
        uid: &str,
        resource_version: &str,
    ) -> Result<(), ApiError> {
        let options = DeleteOptions {
            api_version: "v1",
            kind: "DeleteOptions",
            preconditions: Preconditions { uid, resource_version },
        };
        self.send(ApiRequest::delete(node_path(name)).json(&options)?)
            .await?;
        Ok(())
    }
}

fn node_path(name: &str) -> String {
    format!("{}/{}", NodeView::PATH, encode(name))
}
