//! Version documents, which need no token.

use std::sync::Arc;

use crate::api::version::{Link, MediaType, Version, VersionDocument, Versions};
use axum::{Json, extract::State as From};

use super::{Microversion, version::highest};
use crate::server::{Cloud, Origin};

fn current(cloud: &Cloud, origin: &Origin) -> Version {
    Version {
        id: "v2.1".to_owned(),
        status: "CURRENT".to_owned(),
        version: Some(highest(cloud).to_string()),
        min_version: Some(Microversion::MIN.to_string()),
        updated: Some("2013-07-23T11:33:21Z".to_owned()),
        links: vec![Link {
            rel: "self".to_owned(),
            href: format!("{origin}/compute/v2.1/"),
        }],
        media_types: vec![MediaType {
            base: "application/json".to_owned(),
            kind: "application/vnd.openstack.compute+json;version=2.1".to_owned(),
        }],
    }
}

pub(super) async fn one(From(cloud): From<Arc<Cloud>>, origin: Origin) -> Json<VersionDocument> {
    Json(VersionDocument { version: current(&cloud, &origin) })
}

pub(super) async fn all(From(cloud): From<Arc<Cloud>>, origin: Origin) -> Json<Versions> {
    let old = Version {
        id: "v2.0".to_owned(),
        status: "SUPPORTED".to_owned(),
        version: Some(String::new()),
        min_version: Some(String::new()),
        updated: Some("2011-01-21T11:33:21Z".to_owned()),
        links: vec![Link {
            rel: "self".to_owned(),
            href: format!("{origin}/compute/v2/"),
        }],
        media_types: Vec::new(),
    };
    Json(Versions {
        versions: vec![old, Version { media_types: Vec::new(), ..current(&cloud, &origin) }],
    })
}
