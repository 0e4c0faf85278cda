use std::time::Duration;

use super::{
    super::{Fault, FaultKind},
    *,
};

const PATH: &str = "/key-manager/v1/containers/x";

#[tokio::test(start_paused = true)]
async fn the_journal_counts_by_route() {
    let cloud = Asked::new(Settings::default());
    let token = cloud.token("demo").await;
    cloud.get("/key-manager/v1/containers/a?x=1", &token).await;
    cloud.get("/key-manager/v1/containers/b/", &token).await;
    cloud.get("/nowhere", "").await;
    let journal = &cloud.local.cloud().journal;
    let counts = journal.counts();
    let expected = [
        ("GET /key-manager/v1/containers/{id}", 2),
        ("GET /nowhere", 1),
        ("POST /identity/v3/auth/tokens", 1),
    ];
    let counts: Vec<(&str, u64)> = counts
        .iter()
        .map(|(route, count)| (&**route, *count))
        .collect();
    assert_eq!(counts, expected);
    let entry = &journal.entries()[1];
    assert_eq!(
        (&*entry.path, &*entry.query, entry.status),
        ("/key-manager/v1/containers/a", "x=1", 404)
    );
    assert_eq!(journal.count("GET", "/key-manager"), 2);
    journal.clear();
    assert!(journal.counts().is_empty() && journal.entries().is_empty());
}

#[tokio::test(start_paused = true)]
async fn faults_hit_what_they_are_for_as_often_as_asked() {
    let cloud = Asked::new(Settings::default());
    let token = cloud.token("demo").await;
    let faults = &cloud.local.cloud().faults;
    let slow_down = FaultKind::Status { code: 429, retry_after: Some(7), message: None };
    faults.add(
        Fault::new("/key-manager", slow_down)
            .method("GET")
            .after(1)
            .times(2),
    );
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(cloud.get(PATH, &token).await.status.as_u16());
    }
    assert_eq!(seen, [404, 429, 429, 404]);
    assert!(faults.pending().is_empty(), "used up");

    faults.add(Fault::new(PATH, FaultKind::status(401)));
    let answer = cloud.get(PATH, &token).await;
    assert_eq!(answer.status, 401);
    assert!(answer.headers.contains_key("www-authenticate"));
    assert_eq!(cloud.get("/key-manager/v1/secrets/x", &token).await.status, 404, "another path");
    assert_eq!(cloud.get(PATH, &token).await.status, 401, "no end");
    faults.clear();
    assert_eq!(cloud.get(PATH, &token).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn refusals_by_faults_have_the_services_shape_and_say_when_to_come_again() {
    let cloud = Asked::new(Settings::default());
    let kind = FaultKind::Status {
        code: 429,
        retry_after: Some(7),
        message: Some("slow down".to_owned()),
    };
    cloud.local.cloud().faults.add(Fault::new("/", kind));
    for (path, body) in [
        (
            "/compute/x",
            json!({"overLimit": {"code": 429, "message": "slow down", "retryAfter": 7}}),
        ),
        (
            "/load-balancer/x",
            json!({"faultcode": "Client", "faultstring": "slow down", "debuginfo": null}),
        ),
    ] {
        let answer = cloud.get(path, "").await;
        assert_eq!((answer.status.as_u16(), &answer.body), (429, &body), "{path}");
        assert_eq!(answer.headers["retry-after"], "7");
    }
}

#[tokio::test(start_paused = true)]
async fn answers_can_be_late_cut_or_no_json() {
    let cloud = Asked::new(Settings::default());
    let faults = &cloud.local.cloud().faults;
    faults.add(Fault::new("/identity", FaultKind::Latency { ms: 1500 }).times(1));
    let start = tokio::time::Instant::now();
    assert_eq!(cloud.get("/identity/v3", "").await.status, 200);
    assert_eq!(start.elapsed(), Duration::from_millis(1500));

    faults.add(Fault::new("/identity", FaultKind::Cut { after: 10 }).times(1));
    let request = Request::get("/identity/v3")
        .body(axum::body::Body::empty())
        .unwrap();
    let answer = cloud.router.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.into_body().collect().await.is_err(), "the body ends early");

    let page = FaultKind::Body { code: 502, text: "<html>".to_owned() };
    faults.add(Fault::new("/identity", page).times(1));
    let request = Request::get("/identity/v3")
        .body(axum::body::Body::empty())
        .unwrap();
    let answer = cloud.router.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "<html>");
}

#[tokio::test(start_paused = true)]
async fn a_cut_answer_was_done() {
    let cloud = Asked::new(Settings::default());
    cloud
        .local
        .cloud()
        .faults
        .add(Fault::new("/identity", FaultKind::Cut { after: 0 }).times(1));
    let request = Request::post("/identity/v3/auth/tokens");
    let body = json!({"auth": {"identity": cloud.password("demo")}}).to_string();
    let answer = cloud
        .router
        .clone()
        .oneshot(request.body(axum::body::Body::from(body)).unwrap())
        .await
        .unwrap();
    assert!(answer.into_body().collect().await.is_err());
    assert_eq!(
        cloud
            .local
            .cloud()
            .store
            .peek(|state| state.keystone.tokens.len()),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn hooks_are_served_over_http_only_when_asked_for() {
    let cloud = Asked::new(Settings::default());
    assert_eq!(cloud.get("/admin/journal", "").await.status, 404);
    let cloud = Asked::new(Settings { admin_endpoint: true, ..Settings::default() });
    let token = cloud.token("demo").await;
    let fault = json!({"path": "/key-manager", "count": 1, "kind": {"status": {"code": 500}}});
    assert_eq!(cloud.post("/admin/faults", "", fault).await.status, 204);
    assert_eq!(cloud.get("/admin/faults", "").await.body[0]["count"], 1);
    assert_eq!(cloud.get(PATH, &token).await.status, 500);
    let misspelt = json!({"path": "/", "kinds": {"status": {"code": 500}}});
    assert_eq!(cloud.post("/admin/faults", "", misspelt).await.status, 400);
    assert_eq!(
        cloud.get("/admin/journal", "").await.body["counts"]["GET /key-manager/v1/containers/{id}"],
        1
    );
    assert_eq!(
        cloud
            .post("/admin/clock", "", json!({"seconds": 3600}))
            .await
            .status,
        200
    );
    assert_eq!(cloud.get(PATH, &token).await.status, 401, "the token has ended");
}

#[tokio::test(start_paused = true)]
async fn stuck_requests_are_never_answered_whether_they_are_done_or_not() {
    let cloud = Asked::new(Settings::default());
    let token = cloud.token("demo").await;
    let faults = &cloud.local.cloud().faults;
    let networks = async || {
        cloud.get("/network/v2.0/networks", &token).await.body["networks"]
            .as_array()
            .unwrap()
            .len()
    };
    for (done, there) in [(false, 1), (true, 2)] {
        faults.add(Fault::of_changes(FaultKind::Stuck { done }).after(1));
        let make = async || {
            cloud
                .post("/network/v2.0/networks", &token, json!({"network": {}}))
                .await
        };
        if !done {
            assert_eq!(make().await.status, 201, "the first is let through");
        }
        // A look and a token are no changes.
        cloud.token("demo").await;
        networks().await;
        if done {
            let first = cloud.post("/network/v2.0/nothing", &token, json!({})).await;
            assert_eq!(first.status, 404);
        }
        {
            let stuck = make();
            tokio::pin!(stuck);
            let waited = tokio::time::timeout(Duration::from_secs(60), &mut stuck).await;
            assert!(waited.is_err(), "{waited:?}");
            assert_eq!(faults.stuck(), 1);
        }
        // The client has closed the connection.
        assert_eq!(faults.stuck(), 0);
        faults.clear();
        assert_eq!(networks().await, there, "done: {done}");
    }
}
