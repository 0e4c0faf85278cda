//! Images (Glance), as far as they are needed to create servers with the command line: one image
//! that always exists.

use std::sync::Arc;

use crate::api::version::{Link, Version, Versions};
use axum::{Json, Router, extract::Path, routing};
use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    server::{Auth, Cloud, Origin, list::Query},
    state::ApiError,
};

/// ID of the image.
pub const IMAGE: &str = "5f1c2a5e-5d0b-4c2f-9d3a-000000000001";
/// Its name.
pub const NAME: &str = "cirros";

/// Returns the routes of this service.
pub fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/", routing::get(versions))
        .route("/v2/images", routing::get(list))
        .route("/v2/images/{id}", routing::get(show))
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

fn image() -> Value {
    json!({
        "id": IMAGE, "name": NAME, "status": "active", "visibility": "public", "protected": false, "owner": null,
        "container_format": "bare", "disk_format": "raw", "min_disk": 0, "min_ram": 0, "size": 0, "virtual_size": null,
        "checksum": null, "os_hash_algo": null, "os_hash_value": null, "os_hidden": false, "tags": [],
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
        "self": format!("/v2/images/{IMAGE}"), "file": format!("/v2/images/{IMAGE}/file"),
        "schema": "/v2/schemas/image",
    })
}

async fn list(Auth(_): Auth, query: Query) -> Json<Value> {
    let is = |name: &str, value: &str| {
        // Several alternatives are written as `in:a,b`.
        query
            .get(name)
            .is_none_or(|asked| match asked.strip_prefix("in:") {
                Some(several) => several.split(',').any(|one| one.trim_matches('"') == value),
                None => asked == value,
            })
    };
    let shown = is("id", IMAGE)
        && is("name", NAME)
        && is("status", "active")
        && query.get("marker").is_none();
    let images = if shown { vec![image()] } else { Vec::new() };
    Json(json!({"images": images, "first": "/v2/images", "schema": "/v2/schemas/images"}))
}

async fn show(Auth(_): Auth, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    if id == IMAGE {
        Ok(Json(image()))
    } else {
        Err(ApiError::not_found("", format!("No image found with ID {id}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Settings, tests::Asked};

    #[tokio::test(start_paused = true)]
    async fn the_image_is_found_by_name_and_by_id() {
        let cloud = Asked::new(Settings::default());
        let token = cloud.token("demo").await;
        let count = async |query: &str| {
            let body = cloud
                .get(&format!("/image/v2/images?{query}"), &token)
                .await
                .body;
            body["images"].as_array().unwrap().len()
        };
        let with_id = format!("id=in:x,{IMAGE}");
        for (query, found) in
            [("", 1), ("name=cirros", 1), ("name=other", 0), (&*with_id, 1), ("id=in:x", 0)]
        {
            assert_eq!(count(query).await, found, "{query}");
        }
        assert_eq!(
            cloud
                .get(&format!("/image/v2/images/{IMAGE}"), &token)
                .await
                .body["name"],
            NAME
        );
        assert_eq!(cloud.get("/image/v2/images/cirros", &token).await.status, 404);
        assert_eq!(cloud.get("/image/", "").await.status, 300);
    }
}
