//! Images (Glance), as far as they are needed to create servers. One image always exists. The
//! content of others is counted and hashed, but not kept, because servers are not machines.

mod images;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use axum::{Json, Router, routing};
use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    api::version::{Link, Version, Versions},
    server::{Cloud, Origin},
    state::{Row, tables},
};

/// ID of the image that always exists.
pub const IMAGE: &str = "5f1c2a5e-5d0b-4c2f-9d3a-000000000001";
/// Its name.
pub const NAME: &str = "cirros";

tables! {
    /// Rows of the image service.
    Tables {
        /// Images besides the one that always exists.
        images: ImageRow,
    }
}

/// An image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRow {
    /// ID, a UUID.
    pub id: String,
    /// Name; not unique.
    pub name: Option<String>,
    /// Project.
    pub project: String,
    /// `private`, `shared`, `community` or `public`.
    pub visibility: String,
    /// True if it must not be deleted.
    pub protected: bool,
    /// Such as `bare`.
    pub container_format: Option<String>,
    /// Such as `qcow2`.
    pub disk_format: Option<String>,
    /// Minimum disk of a server in GiB.
    pub min_disk: u64,
    /// Minimum memory of a server in MiB.
    pub min_ram: u64,
    /// Tags.
    pub tags: Vec<String>,
    /// What else users set.
    pub properties: BTreeMap<String, String>,
    /// What was uploaded; none while it is `queued`.
    pub content: Option<ImageContent>,
    /// When it was created.
    pub created: Timestamp,
    /// When it was last changed.
    pub updated: Timestamp,
}

impl Row for ImageRow {
    const TABLE: &'static str = "glance_images";

    fn key(&self) -> &str {
        &self.id
    }
}

/// What is known of the content of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageContent {
    /// Bytes.
    pub size: u64,
    /// MD5 in hexadecimal.
    pub checksum: String,
    /// SHA-512 in hexadecimal.
    pub hash: String,
}

/// Returns the routes of this service.
pub fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/", routing::get(versions))
        .merge(images::routes())
}

async fn versions(origin: Origin) -> (StatusCode, Json<Versions>) {
    let version = Version {
        id: "v2.15".to_owned(),
        status: "CURRENT".to_owned(),
        links: vec![Link { rel: "self".to_owned(), href: format!("{origin}/image/v2/") }],
        ..Version::default()
    };
    (StatusCode::MULTIPLE_CHOICES, Json(Versions { versions: vec![version] }))
}
