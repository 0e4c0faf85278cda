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
