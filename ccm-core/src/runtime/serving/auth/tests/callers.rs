//! Tokens, paths, groups, and the answers of a refusal.

use http::Method;

use super::{
    super::{AuthClients, UserInfo},
    api_server::{Checked, FakeApiServer, get},
};

#[tokio::test(start_paused = true)]
async fn a_token_is_let_in_where_its_user_may() {
    let world = FakeApiServer::new();
    world.token("t1", "jane", &["devs"]);
    world.allow("jane", "/metrics");
    let checked = Checked::new(&world).await;
    let caller = checked
        .call(&get("/metrics?x=1").token("t1"))
        .await
        .unwrap();
    assert_eq!((caller.name.as_str(), caller.uid.as_str()), ("jane", "u1"));
    assert_eq!(caller.groups, ["devs", "system:authenticated"]);
    assert_eq!(world.last()["extra"]["k"][0], "v");
    assert_eq!(world.last()["groups"], serde_json::json!(["devs", "system:authenticated"]));
    assert_eq!(checked.status(&get("/configz").token("t1")).await, 403);
    assert_eq!(checked.status(&get("/metrics").token("t2")).await, 401);
    assert_eq!(checked.status(&get("/metrics").token("t1 t2")).await, 401, "two tokens");
    assert_eq!(
        checked
            .status(&get("/metrics").token("t1").token("t1"))
            .await,
        401,
        "two headers"
    );
    let mut put = get("/metrics").token("t1").parts();
    put.method = Method::PUT;
    assert_eq!(
        checked
            .auth
            .authenticate_and_authorize(&[], &put)
            .await
            .unwrap_err()
            .status,
        403,
        "the right is for get"
    );
    assert_eq!(world.last()["nonResourceAttributes"]["verb"], "put");
}

#[tokio::test(start_paused = true)]
async fn without_credentials_only_allowed_paths_are_served() {
    let world = FakeApiServer::new();
    let checked = Checked::new(&world).await;
    for path in ["/healthz", "/readyz", "/livez", "/healthz?verbose"] {
        assert_eq!(checked.call(&get(path)).await, Ok(UserInfo::anonymous()), "{path}");
    }
    assert_eq!(world.count("reviews"), 0, "nothing needs to be asked for them");
    for path in [
        "/metrics",
        "/healthz/",
        "/healthz/../metrics",
        "/%68ealthz",
        "//healthz",
        "/",
        "/configz",
    ] {
        assert_eq!(checked.status(&get(path)).await, 403, "{path}");
    }
    assert_eq!(
        checked.status(&get("/healthz").token("unknown")).await,
        401,
        "a bad token is not nobody"
    );
    assert_eq!(
        checked
            .status(&get("/healthz").header("authorization", "Basic x"))
            .await,
        200
    );
    assert_eq!(checked.status(&get("*")).await, 400);
    world.allow("system:anonymous", "/version");
    assert_eq!(checked.status(&get("/version")).await, 200, "the cluster may allow more");
    assert_eq!(world.last()["groups"], serde_json::json!(["system:unauthenticated"]));
}

#[tokio::test(start_paused = true)]
async fn masters_need_no_review() {
    let world = FakeApiServer::new();
    world.token("t1", "root", &["system:masters"]);
    let checked = Checked::new(&world).await;
    assert_eq!(checked.status(&get("/configz").token("t1")).await, 200);
    assert_eq!(world.count("subjectaccessreviews"), 0);
}

#[tokio::test(start_paused = true)]
async fn without_clients_tokens_are_nobodys_and_nothing_is_allowed() {
    let world = FakeApiServer::new();
    let checked = Checked::connect(AuthClients::default(), |_, _| ())
        .await
        .unwrap();
    assert_eq!(checked.call(&get("/healthz").token("t1")).await, Ok(UserInfo::anonymous()));
    assert_eq!(checked.status(&get("/metrics").token("t1")).await, 403);
    assert_eq!(world.count(""), 0);
}

#[tokio::test(start_paused = true)]
async fn the_review_decides_and_denial_wins() {
    let world = FakeApiServer::new();
    let checked = Checked::new(&world).await;
    for (status, want) in [
        (r#"{"allowed": true}"#, 200),
        (r#"{"allowed": true, "denied": true}"#, 403),
        (r#"{"denied": true}"#, 403),
        (r#"{"allowed": false}"#, 403),
        (r"{}", 403),
        (r"null", 500),
        (r#"{"allowed": "true"}"#, 500),
        (r#"{"allowed": 1}"#, 500),
    ] {
        world.answer_with(&format!(r#"{{"status": {status}}}"#));
        assert_eq!(checked.status(&get(&format!("/x/{}", status.len()))).await, want, "{status}");
    }
    for garbage in ["", "html", "1"] {
        world.answer_with(garbage);
        assert_eq!(checked.status(&get(&format!("/y/{garbage}"))).await, 500, "{garbage}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_whose_user_has_no_name_is_refused() {
    let world = FakeApiServer::new();
    let checked = Checked::new(&world).await;
    for (status, want) in [
        (r#"{"authenticated": true, "user": {"username": ""}}"#, 401),
        (r#"{"authenticated": true}"#, 401),
        (r#"{"authenticated": false, "user": {"username": "jane"}}"#, 401),
        (r#"{"user": {"username": "jane"}}"#, 401),
        (r#"{"authenticated": "true", "user": {"username": "jane"}}"#, 401),
        (r#"{"authenticated": true, "user": {"username": "jane"}}"#, 200),
    ] {
        world.answer_with(&format!(r#"{{"status": {status}}}"#));
        assert_eq!(
            checked
                .status(&get("/healthz").token(&format!("t{}", status.len())))
                .await,
            want,
            "{status}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_read_as_a_kube_apiservers() {
    let world = FakeApiServer::new();
    world.token("t1", "<jane>", &[]);
    let checked = Checked::new(&world).await;
    let body = |refusal: &super::super::AuthRefusal| {
        let response = refusal.response();
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
        assert_eq!(response.headers()["cache-control"], "no-cache, private");
        String::from_utf8(response.into_body().to_vec()).unwrap()
    };
    let refusal = checked
        .call(&get("/metrics").token("bad"))
        .await
        .unwrap_err();
    let want = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
    assert_eq!(body(&refusal).parse::<serde_json::Value>().unwrap(), want);

    let refusal = checked
        .call(&get("/metrics").token("t1"))
        .await
        .unwrap_err();
    let want = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "forbidden: User \"&lt;jane&gt;\" cannot get path \"/metrics\": no role", "reason": "Forbidden",
        "details": {}, "code": 403});
    assert_eq!(body(&refusal).parse::<serde_json::Value>().unwrap(), want);

    world.fail(&[403]);
    let refusal = checked
        .call(&get("/configz").token("t1"))
        .await
        .unwrap_err();
    assert_eq!(refusal.status, 500);
    let text = "Internal Server Error: \"/configz\": the SubjectAccessReview failed\n";
    assert_eq!(body(&refusal), text);
}
