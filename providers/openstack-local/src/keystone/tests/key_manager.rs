use super::*;

#[tokio::test(start_paused = true)]
async fn containers_lead_to_secrets_that_their_project_sees() {
    let cloud = cloud();
    let (admin, demo) = (cloud.token("admin").await, cloud.token("demo").await);
    let project = says(&cloud, &demo).await["project"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let local = &cloud.local;
    let certificate = local
        .put_secret(&project, "cert", "certificate", "PEM".into())
        .await
        .unwrap();
    let key = local
        .put_secret(&project, "key", "private", "KEY".into())
        .await
        .unwrap();
    let parts = [("certificate", &*certificate), ("private_key", &*key)];
    let id = local.put_container(&project, "site", &parts).await.unwrap();
    let path = format!("/key-manager/v1/containers/{id}");
    let container = cloud.get(&path, &demo).await;
    assert_eq!(container.body["container_ref"], format!("http://cloud.test:5000{path}"));
    let refs = container.body["secret_refs"].as_array().unwrap();
    assert_eq!(refs.len(), 2);
    let secret = refs[0]["secret_ref"].as_str().unwrap();
    assert_eq!(refs[0]["name"], "certificate");
    let shown = cloud.get(secret, &demo).await;
    assert_eq!(
        (&shown.body["secret_ref"], &shown.body["secret_type"]),
        (&json!(secret), &json!("certificate"))
    );
    assert!(!shown.body.to_string().contains("PEM"));

    let foreign = local
        .put_secret("elsewhere", "x", "opaque", "X".into())
        .await
        .unwrap();
    let foreign = format!("/key-manager/v1/secrets/{foreign}");
    assert_eq!(cloud.get(&foreign, &demo).await.status, 404);
    assert_eq!(cloud.get(&foreign, &admin).await.status, 200);
    for path in [
        "/key-manager/v1/containers/x",
        "/key-manager/v1/secrets/x",
        "/key-manager/v1/secrets/x/payload",
    ] {
        assert_eq!(cloud.get(path, &demo).await.status, 404, "{path}");
        assert_eq!(cloud.get(path, "").await.status, 401, "{path}");
    }
    let request = http::Request::get(format!("{secret}/payload")).header("x-auth-token", &demo);
    let answer = tower::ServiceExt::oneshot(
        cloud.router.clone(),
        request.body(axum::body::Body::empty()).unwrap(),
    );
    let body = http_body_util::BodyExt::collect(answer.await.unwrap().into_body())
        .await
        .unwrap()
        .to_bytes();
    assert_eq!(body, "PEM");
    let missing = local
        .put_container(&project, "site", &[("certificate", "x")])
        .await;
    assert_eq!(missing.unwrap_err().status, 404);
}

#[tokio::test(start_paused = true)]
async fn secrets_are_stored_in_one_request_or_in_two() {
    let cloud = cloud();
    let (admin, demo) = (cloud.token("admin").await, cloud.token("demo").await);
    let secrets = "/key-manager/v1/secrets";
    // In one request.
    let body = json!({"name": "cert", "secret_type": "certificate", "payload": "PEM",
        "payload_content_type": "text/plain"});
    let made = cloud.post(secrets, &demo, body).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let certificate = made.body["secret_ref"].as_str().unwrap().to_owned();
    assert!(certificate.starts_with("http://cloud.test:5000/key-manager/v1/secrets/"));
    let shown = cloud.get(&certificate, &demo).await.body;
    assert_eq!(
        (&shown["secret_type"], &shown["content_types"]),
        (&json!("certificate"), &json!({"default": "text/plain"}))
    );
    assert_eq!(content(&cloud, &certificate, &demo, "text/plain").await, (200, b"PEM".to_vec()));
    assert_eq!(
        content(&cloud, &certificate, &demo, "application/json")
            .await
            .0,
        406
    );
    // In two, and bytes that are no text.
    let made = cloud.post(secrets, &demo, json!({"name": "key"})).await;
    let key = made.body["secret_ref"].as_str().unwrap().to_owned();
    assert!(
        cloud
            .get(&key, &demo)
            .await
            .body
            .get("content_types")
            .is_none()
    );
    assert_eq!(content(&cloud, &key, &demo, "*/*").await.0, 404);
    let put = async |encoding: Option<&str>, content: &'static [u8]| {
        let request = http::Request::put(&key)
            .header("x-auth-token", &demo)
            .header("content-type", "application/octet-stream");
        let request = match encoding {
            Some(encoding) => request.header("content-encoding", encoding),
            None => request,
        };
        cloud
            .send(request.body(content.into()).unwrap())
            .await
            .status
    };
    assert_eq!(put(Some("gzip"), b"x").await, 400);
    assert_eq!(put(None, b"").await, 400);
    assert_eq!(put(Some("base64"), b"/wA=").await, 204);
    assert_eq!(put(None, b"other").await, 409);
    assert_eq!(content(&cloud, &key, &demo, "*/*").await, (200, vec![0xff, 0]));
    // Other projects do not see them, and the list has the own ones.
    assert_eq!(cloud.get(&format!("{secrets}?limit=1"), &demo).await.body["total"], 2);
    assert_eq!(cloud.get(secrets, &admin).await.body["secrets"], json!([]));
    assert_eq!(cloud.ask("DELETE", &key, &demo, None).await.status, 204);
    assert_eq!(cloud.get(&key, &demo).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn secrets_that_are_wrong_are_refused() {
    let cloud = cloud();
    let demo = cloud.token("demo").await;
    let secrets = "/key-manager/v1/secrets";
    for wrong in [
        json!({"payload": "x"}),
        json!({"payload": "", "payload_content_type": "text/plain"}),
        json!({"payload": "x", "payload_content_type": "image/png"}),
        json!({"payload": "eA==", "payload_content_type": "application/octet-stream"}),
        json!({"secret_type": "odd"}),
    ] {
        let refused = cloud.post(secrets, &demo, wrong.clone()).await;
        assert_eq!(
            (refused.status.as_u16(), &refused.body["title"]),
            (400, &json!("Bad Request")),
            "{wrong}"
        );
    }
    let long = json!({"payload": "x".repeat(20_001), "payload_content_type": "text/plain"});
    assert_eq!(cloud.post(secrets, &demo, long).await.status, 413);
}

#[tokio::test(start_paused = true)]
async fn containers_are_made_of_secrets_that_exist() {
    let cloud = cloud();
    let demo = cloud.token("demo").await;
    let secret = async |name: &str| {
        let body = json!({"name": name, "payload": name, "payload_content_type": "text/plain"});
        let made = cloud.post("/key-manager/v1/secrets", &demo, body).await;
        made.body["secret_ref"].clone()
    };
    let (certificate, key) = (secret("cert").await, secret("key").await);
    let container = |kind: &str, name: &str, secret: &Value| {
        json!({"type": kind, "name": "site", "secret_refs": [
            {"name": "certificate", "secret_ref": certificate}, {"name": name, "secret_ref": secret}]})
    };
    let containers = "/key-manager/v1/containers";
    let wrong = [
        (400, container("odd", "private_key", &key)),
        (400, container("certificate", "other", &key)),
        (400, container("certificate", "certificate", &key)),
        (
            400,
            json!({"type": "certificate", "secret_refs": [{"name": "private_key", "secret_ref": key}]}),
        ),
        (404, container("certificate", "private_key", &json!("http://c/v1/secrets/none"))),
    ];
    for (status, wrong) in wrong {
        assert_eq!(cloud.post(containers, &demo, wrong.clone()).await.status, status, "{wrong}");
    }
    let made = cloud
        .post(containers, &demo, container("certificate", "private_key", &key))
        .await;
    assert_eq!(made.status, 201, "{}", made.body);
    let reference = made.body["container_ref"].as_str().unwrap();
    let shown = cloud.get(reference, &demo).await.body;
    assert_eq!((&shown["name"], &shown["type"]), (&json!("site"), &json!("certificate")));
    // A secret that is deleted leaves its containers.
    cloud
        .ask("DELETE", key.as_str().unwrap(), &demo, None)
        .await;
    let left = cloud.get(reference, &demo).await.body["secret_refs"].clone();
    assert_eq!(left, json!([{"name": "certificate", "secret_ref": certificate}]));
    assert_eq!(cloud.get(containers, &demo).await.body["total"], 1);
    assert_eq!(cloud.ask("DELETE", reference, &demo, None).await.status, 204);
    assert_eq!(cloud.get(reference, &demo).await.status, 404);
}

/// The status and body of a request for the content of a secret.
async fn content(cloud: &Asked, secret: &str, token: &str, accept: &str) -> (u16, Vec<u8>) {
    let request = http::Request::get(format!("{secret}/payload"))
        .header("x-auth-token", token)
        .header("accept", accept);
    let request = request.body(axum::body::Body::empty()).unwrap();
    let answer = tower::ServiceExt::oneshot(cloud.router.clone(), request)
        .await
        .unwrap();
    let status = answer.status().as_u16();
    let body = http_body_util::BodyExt::collect(answer.into_body())
        .await
        .unwrap();
    (status, body.to_bytes().to_vec())
}
