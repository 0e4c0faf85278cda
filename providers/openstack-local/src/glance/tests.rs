use super::{IMAGE, NAME};
use crate::server::{Settings, tests::Asked};
use serde_json::{Value, json};

async fn names(cloud: &Asked, query: &str, token: &str) -> Vec<Value> {
    let body = cloud
        .get(&format!("/image/v2/images?{query}"), token)
        .await
        .body;
    let images = body["images"].as_array().unwrap();
    images.iter().map(|image| image["name"].clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_image_that_always_exists_is_found_by_name_and_by_id() {
    let cloud = Asked::new(Settings::default());
    let token = cloud.token("demo").await;
    let with_id = format!("id=in:x,{IMAGE}");
    for (query, found) in
        [("", 1), ("name=cirros", 1), ("name=other", 0), (&*with_id, 1), ("id=in:x", 0)]
    {
        assert_eq!(names(&cloud, query, &token).await.len(), found, "{query}");
    }
    let path = format!("/image/v2/images/{IMAGE}");
    assert_eq!(cloud.get(&path, &token).await.body["name"], NAME);
    assert_eq!(cloud.ask("DELETE", &path, &token, None).await.status, 403);
    assert_eq!(cloud.get("/image/v2/images/cirros", &token).await.status, 404);
    assert_eq!(cloud.get("/image/", "").await.status, 300);
}

#[tokio::test(start_paused = true)]
async fn an_image_is_created_uploaded_changed_and_deleted() {
    let cloud = Asked::new(Settings::default());
    let (admin, demo) = (cloud.token("admin").await, cloud.token("demo").await);
    let body = json!({"name": "node", "disk_format": "qcow2", "container_format": "bare",
        "visibility": "private", "tags": ["a"], "hw_disk_bus": "virtio"});
    let made = cloud.post("/image/v2/images", &demo, body).await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(
        (&made.body["status"], &made.body["hw_disk_bus"]),
        (&json!("queued"), &json!("virtio"))
    );
    let id = made.body["id"].as_str().unwrap().to_owned();
    let path = format!("/image/v2/images/{id}");
    let upload = async || {
        let request = http::Request::put(format!("{path}/file"))
            .header("x-auth-token", &demo)
            .header("content-type", "application/octet-stream");
        cloud
            .send(request.body("content".into()).unwrap())
            .await
            .status
    };
    assert_eq!(upload().await, 204);
    assert_eq!(upload().await, 409, "it has its content");
    let shown = cloud.get(&path, &demo).await.body;
    assert_eq!(
        (&shown["status"], &shown["size"], &shown["checksum"]),
        (&json!("active"), &json!(7), &json!("9a0364b9e99bb480dd25e1f0284c8555"))
    );
    // Another project sees it only when it is public, which only an administrator may make it.
    let body = json!([{"op": "replace", "path": "/visibility", "value": "public"},
        {"op": "replace", "path": "/name", "value": "node-2"}, {"op": "remove", "path": "/hw_disk_bus"}]);
    let patch = async |token: &str| cloud.ask("PATCH", &path, token, Some(body.clone())).await;
    assert_eq!(patch(&demo).await.status, 403);
    assert_eq!(cloud.get(&path, &demo).await.body["name"], "node", "all or nothing");
    let changed = patch(&admin).await;
    assert_eq!((changed.status.as_u16(), &changed.body["name"]), (200, &json!("node-2")));
    assert!(changed.body.get("hw_disk_bus").is_none());
    assert_eq!(names(&cloud, "visibility=public", &demo).await, ["cirros", "node-2"]);
    assert_eq!(names(&cloud, "limit=1", &demo).await, ["cirros"]);
    assert_eq!(names(&cloud, &format!("limit=1&marker={IMAGE}"), &demo).await, ["node-2"]);
    // A protected one stays.
    let protect = |on: bool| json!([{"op": "replace", "path": "/protected", "value": on}]);
    cloud.ask("PATCH", &path, &demo, Some(protect(true))).await;
    assert_eq!(cloud.ask("DELETE", &path, &demo, None).await.status, 403);
    cloud.ask("PATCH", &path, &demo, Some(protect(false))).await;
    assert_eq!(cloud.ask("DELETE", &path, &demo, None).await.status, 204);
    assert_eq!(cloud.get(&path, &demo).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn images_of_other_projects_are_not_seen() {
    let cloud = Asked::new(Settings::default());
    let (admin, demo) = (cloud.token("admin").await, cloud.token("demo").await);
    let made = cloud
        .post("/image/v2/images", &admin, json!({"name": "hidden"}))
        .await;
    let path = format!("/image/v2/images/{}", made.body["id"].as_str().unwrap());
    assert_eq!(cloud.get(&path, &demo).await.status, 404);
    assert_eq!(cloud.ask("DELETE", &path, &demo, None).await.status, 404);
    assert_eq!(names(&cloud, "", &demo).await, ["cirros"]);
    for (status, body) in [
        (400, json!({"name": 1})),
        (400, json!({"visibility": "odd"})),
        (403, json!({"visibility": "public"})),
        (403, json!({"status": "active"})),
        (400, json!({"id": "no-uuid"})),
        (409, json!({"id": IMAGE})),
    ] {
        let refused = cloud.post("/image/v2/images", &demo, body.clone()).await;
        assert_eq!(refused.status, status, "{body}");
    }
}
