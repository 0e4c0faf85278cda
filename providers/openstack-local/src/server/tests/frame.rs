use std::time::Duration;

use super::*;

#[tokio::test(start_paused = true)]
async fn slashes_at_the_end_and_tokens_make_no_difference_to_discovery() {
    let cloud = Asked::new(Settings::default());
    let token = cloud.token("demo").await;
    for (path, status) in [
        ("/identity", 300),
        ("/identity/v3", 200),
        ("/key-manager", 200),
        ("/key-manager/v1", 200),
    ] {
        let plain = cloud.get(path, "").await;
        assert_eq!(plain.status, status, "{path}");
        assert!(
            plain.headers["content-type"]
                .to_str()
                .unwrap()
                .starts_with("application/json")
        );
        for (target, token) in
            [(format!("{path}/"), ""), (path.to_owned(), "none"), (format!("{path}/"), &*token)]
        {
            let answer = cloud.get(&target, token).await;
            assert_eq!((answer.status, &answer.body), (plain.status, &plain.body), "{target}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn addresses_are_those_by_which_the_client_came() {
    let cloud = Asked::new(Settings::default());
    let answer = cloud.get("/identity/v3", "").await;
    assert_eq!(answer.body["version"]["links"][0]["href"], "http://cloud.test:5000/identity/v3/");
    let request = Request::get("http://other:7/identity/v3")
        .body(axum::body::Body::empty())
        .unwrap();
    let answer = cloud.send(request).await;
    assert_eq!(answer.body["version"]["links"][0]["href"], "http://other:7/identity/v3/");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_refused_in_the_services_shape() {
    let cloud = Asked::new(Settings::default());
    for (path, key) in [
        ("/identity/v3/nothing", "error"),
        ("/compute/nothing", "itemNotFound"),
        ("/network/nothing", "NeutronError"),
        ("/load-balancer/nothing", "faultcode"),
    ] {
        let answer = cloud.get(path, "").await;
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.body.get(key).is_some(), "{path}: {}", answer.body);
    }
    let answer = cloud
        .ask("PATCH", "/identity/v3/auth/tokens", "", None)
        .await;
    assert_eq!((answer.status.as_u16(), &answer.body["error"]["code"]), (405, &json!(405)));
}

#[tokio::test(start_paused = true)]
async fn bodies_that_cannot_be_read_are_refused_with_the_reason() {
    let cloud = Asked::new(Settings::default());
    for (body, reason) in [("{", "EOF"), ("{\"auth\": {}}", "identity"), ("", "EOF")] {
        let request = Request::post("/identity/v3/auth/tokens")
            .body(body.into())
            .unwrap();
        let answer = cloud.send(request).await;
        assert_eq!(answer.status, 400, "{body}");
        let message = answer.body["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(reason), "{body}: {message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_the_cloud_lacks_is_nowhere() {
    let cloud = Asked::new(Settings {
        without: ["key-manager".to_owned()].into(),
        ..Settings::default()
    });
    assert_eq!(cloud.get("/key-manager", "").await.status, 404);
    let token = cloud.token("demo").await;
    let subject = Request::get("/identity/v3/auth/tokens")
        .header("x-auth-token", &token)
        .header("x-subject-token", &token)
        .body(axum::body::Body::empty());
    let body = cloud.send(subject.unwrap()).await.body;
    let kinds: Vec<&str> = body["token"]["catalog"]
        .as_array()
        .unwrap()
        .iter()
        .map(|service| service["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["compute", "identity", "image", "load-balancer", "network"]);
    // It may come back while the cloud runs.
    cloud.local.cloud().set(|settings| settings.without.clear());
    assert_eq!(cloud.get("/key-manager", "").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_asked_for_and_ends() {
    let cloud = Asked::new(Settings::default());
    let path = "/key-manager/v1/containers/x";
    let token = cloud.token("demo").await;
    for (what, token) in [("none", ""), ("unknown", "AAAA")] {
        let answer = cloud.get(path, token).await;
        assert_eq!(answer.status, 401, "{what}");
        assert_eq!(
            answer.headers["www-authenticate"], "Keystone uri=\"http://cloud.test:5000/identity\"",
            "{what}"
        );
        assert_eq!(answer.body["error"]["title"], "Unauthorized", "{what}");
    }
    assert_eq!(cloud.get(path, &token).await.status, 404);
    tokio::time::advance(Duration::from_secs(3599)).await;
    assert_eq!(cloud.get(path, &token).await.status, 404);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(cloud.get(path, &token).await.status, 401);
}

#[tokio::test(start_paused = true)]
async fn a_token_without_scope_is_good_for_identity_only() {
    let cloud = Asked::new(Settings::default());
    let token = cloud
        .authenticate(cloud.password("demo"), Value::Null)
        .await
        .token();
    assert_eq!(
        cloud
            .get("/key-manager/v1/containers/x", &token)
            .await
            .status,
        403
    );
}
