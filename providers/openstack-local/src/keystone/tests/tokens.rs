use std::time::Duration;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_password_makes_a_token_for_each_kind_of_scope() {
    let cloud = cloud();
    let admin = cloud.token("admin").await;
    let project = says(&cloud, &admin).await["project"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    for (scope, key, expected) in [
        (
            json!({"project": {"name": "admin", "domain": {"id": "default"}}}),
            "/project/id",
            json!(project),
        ),
        (
            json!({"project": {"name": "admin", "domain": {"name": "Default"}}}),
            "/project/domain/name",
            json!("Default"),
        ),
        (json!({"project": {"id": project}}), "/project/name", json!("admin")),
        (json!({"domain": {"id": "default"}}), "/domain/name", json!("Default")),
        (json!({"domain": {"name": "Default"}}), "/domain/id", json!("default")),
        (json!({"system": {"all": true}}), "/system/all", json!(true)),
    ] {
        let answer = cloud
            .authenticate(cloud.password("admin"), scope.clone())
            .await;
        assert_eq!(answer.status, 201, "{scope}: {}", answer.body);
        let token = &answer.body["token"];
        assert_eq!(token.pointer(key), Some(&expected), "{scope}: {token}");
        assert!(!token["catalog"].as_array().unwrap().is_empty(), "{scope}");
        assert!(names(&token["roles"]).contains(&"admin"), "{scope}");
        assert_eq!(token.get("is_domain").is_some(), key.starts_with("/project"), "{scope}");
        assert_eq!(says(&cloud, &answer.token()).await, *token, "{scope}");
    }
    for scope in [Value::Null, json!({"unscoped": {}})] {
        let token = cloud
            .authenticate(cloud.password("admin"), scope)
            .await
            .body["token"]
            .clone();
        for key in ["project", "domain", "system", "roles", "catalog"] {
            assert!(token.get(key).is_none(), "{key}");
        }
        assert_eq!(token["user"]["name"], "admin");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_says_what_clients_read() {
    let cloud = cloud();
    let scope = json!({"project": {"name": "demo", "domain": default()}});
    let answer = cloud.authenticate(cloud.password("demo"), scope).await;
    let token = &answer.body["token"];
    assert_eq!(token["methods"], json!(["password"]));
    assert_eq!(token["user"]["domain"], json!({"id": "default", "name": "Default"}));
    assert_eq!(token["user"]["password_expires_at"], Value::Null);
    assert_eq!(names(&token["roles"]).len(), 2);
    let issued: jiff::Timestamp = token["issued_at"].as_str().unwrap().parse().unwrap();
    let ends: jiff::Timestamp = token["expires_at"].as_str().unwrap().parse().unwrap();
    assert_eq!(ends.duration_since(issued), jiff::SignedDuration::from_hours(1));
    assert_eq!(token["expires_at"].as_str().unwrap().len(), "2030-01-01T00:00:00.000000Z".len());
    assert_eq!(answer.headers["vary"], "X-Auth-Token");
}

#[tokio::test(start_paused = true)]
async fn nobody_gets_in_with_what_is_wrong() {
    let cloud = cloud();
    let user = |user: Value| json!({"methods": ["password"], "password": {"user": user}});
    let right = cloud
        .local
        .credentials()
        .password("demo")
        .unwrap()
        .expose()
        .to_owned();
    let project = |name: &str| json!({"project": {"name": name, "domain": default()}});
    let credential = |value: Value| json!({"methods": ["application_credential"], "application_credential": value});
    for (what, identity, scope, status) in [
        (
            "password",
            user(json!({"name": "demo", "domain": default(), "password": "x"})),
            project("demo"),
            401,
        ),
        (
            "user",
            user(json!({"name": "x", "domain": default(), "password": right})),
            project("demo"),
            401,
        ),
        (
            "domain",
            user(json!({"name": "demo", "domain": {"id": "x"}, "password": right})),
            project("demo"),
            401,
        ),
        ("user ID", user(json!({"id": "x", "password": right})), project("demo"), 401),
        ("project", cloud.password("demo"), project("x"), 401),
        ("foreign project", cloud.password("demo"), project("admin"), 401),
        ("foreign domain", cloud.password("demo"), json!({"domain": default()}), 401),
        ("system", cloud.password("demo"), json!({"system": {"all": true}}), 401),
        ("trust", cloud.password("demo"), json!({"OS-TRUST:trust": {"id": "x"}}), 404),
        ("token", json!({"methods": ["token"], "token": {"id": "x"}}), Value::Null, 401),
        ("method", json!({"methods": ["oath"]}), Value::Null, 401),
        ("credential", credential(json!({"id": "x", "secret": "x"})), Value::Null, 401),
        ("no method", json!({"methods": []}), Value::Null, 400),
        ("no part", json!({"methods": ["password"]}), Value::Null, 400),
        ("no user", user(json!({"password": right})), Value::Null, 400),
        (
            "user without domain",
            user(json!({"name": "demo", "password": right})),
            Value::Null,
            400,
        ),
        (
            "project without domain",
            cloud.password("demo"),
            json!({"project": {"name": "demo"}}),
            400,
        ),
        ("half a system", cloud.password("admin"), json!({"system": {"all": false}}), 400),
        (
            "two scopes",
            cloud.password("demo"),
            json!({"project": {"id": "a"}, "domain": {"id": "b"}}),
            400,
        ),
        (
            "credential without user",
            credential(json!({"name": "x", "secret": "x"})),
            Value::Null,
            400,
        ),
    ] {
        let answer = cloud.authenticate(identity, scope).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.body);
        assert_eq!(answer.body["error"]["code"], status, "{what}");
        assert!(!answer.body.to_string().contains(&right), "{what}: the password shows");
        assert!(!answer.headers.contains_key("x-subject-token"), "{what}");
    }
    assert_eq!(
        cloud
            .local
            .cloud()
            .store
            .peek(|state| state.keystone.tokens.len()),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn all_methods_must_prove_the_same_user() {
    let cloud = cloud();
    let admin = cloud.token("admin").await;
    let mut both = cloud.password("demo");
    both["methods"] = json!(["password", "token"]);
    both["token"] = json!({"id": admin});
    assert_eq!(cloud.authenticate(both.clone(), Value::Null).await.status, 401);
    both["token"] = json!({"id": cloud.token("demo").await});
    let answer = cloud.authenticate(both.clone(), Value::Null).await;
    assert_eq!(answer.body["token"]["methods"], json!(["password", "token"]));
    both["password"]["user"]["password"] = json!("x");
    assert_eq!(cloud.authenticate(both, Value::Null).await.status, 401, "the token alone");
}

#[tokio::test(start_paused = true)]
async fn a_token_is_scoped_again_but_lives_no_longer() {
    let cloud = cloud();
    let unscoped = cloud
        .authenticate(cloud.password("demo"), Value::Null)
        .await;
    tokio::time::advance(Duration::from_secs(600)).await;
    let identity = json!({"methods": ["token"], "token": {"id": unscoped.token()}});
    let scope = json!({"project": {"name": "demo", "domain": default()}});
    let scoped = cloud.authenticate(identity, scope).await;
    assert_eq!(scoped.status, 201);
    let (first, second) = (&unscoped.body["token"], &scoped.body["token"]);
    assert_eq!(first["expires_at"], second["expires_at"]);
    assert_ne!(first["issued_at"], second["issued_at"]);
    assert_eq!(second["methods"], json!(["token", "password"]));
    assert_eq!(second["audit_ids"][1], first["audit_ids"][0]);
    assert_eq!(second["project"]["name"], "demo");
    tokio::time::advance(Duration::from_secs(3000)).await;
    assert_eq!(
        cloud
            .get("/identity/v3/auth/projects", &scoped.token())
            .await
            .status,
        401
    );
}

#[tokio::test(start_paused = true)]
async fn tokens_are_looked_at_and_revoked() {
    let cloud = cloud();
    let (admin, demo) = (cloud.token("admin").await, cloud.token("demo").await);
    for (what, token, subject, status) in [
        ("own", &*demo, &*demo, 200),
        ("somebody's, by an administrator", &admin, &demo, 200),
        ("somebody's", &demo, &admin, 403),
        ("unknown", &admin, "x", 404),
        ("by an unknown token", "x", &admin, 401),
    ] {
        assert_eq!(about(&cloud, "GET", token, subject).await.status, status, "{what}");
        let answer = about(&cloud, "HEAD", token, subject).await;
        assert_eq!((answer.status.as_u16(), answer.body), (status, Value::Null), "{what}");
    }
    let answer = about(&cloud, "GET", &admin, &demo).await;
    assert_eq!(answer.token(), demo);
    assert_eq!(about(&cloud, "DELETE", &demo, &admin).await.status, 403);
    assert_eq!(about(&cloud, "DELETE", &admin, &demo).await.status, 204);
    assert_eq!(about(&cloud, "GET", &admin, &demo).await.status, 404);
    assert_eq!(cloud.get("/identity/v3/auth/projects", &demo).await.status, 401);
    let without = cloud.get("/identity/v3/auth/tokens", &admin).await;
    assert_eq!(without.status, 400, "no subject");
}

#[tokio::test(start_paused = true)]
async fn the_catalog_is_left_out_when_nobody_wants_it() {
    let cloud = cloud();
    let scope = json!({"project": {"name": "demo", "domain": default()}});
    let body = json!({"auth": {"identity": cloud.password("demo"), "scope": scope}});
    let answer = cloud
        .post("/identity/v3/auth/tokens?nocatalog", "", body)
        .await;
    assert!(answer.body["token"].get("catalog").is_none());
    assert!(answer.body["token"].get("roles").is_some());
}

#[tokio::test(start_paused = true)]
async fn tokens_that_ended_are_removed_by_and_by() {
    let cloud = cloud();
    for _ in 0..5 {
        cloud.token("demo").await;
    }
    tokio::time::advance(Duration::from_secs(3600)).await;
    cloud.token("demo").await;
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
async fn what_is_kept_of_a_token_opens_nothing() {
    let cloud = cloud();
    let token = cloud.token("demo").await;
    let rows = cloud
        .local
        .cloud()
        .store
        .peek(|state| serde_json::to_string(&**state.keystone.tokens.iter().next().unwrap()));
    let rows = rows.unwrap();
    assert!(!rows.contains(&token));
    let digest = serde_json::from_str::<Value>(&rows).unwrap()["digest"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        cloud
            .get("/identity/v3/auth/projects", &digest)
            .await
            .status,
        401
    );
}

#[tokio::test]
async fn tokens_survive_a_restart_and_still_end() {
    let dir = tempfile::tempdir().unwrap();
    let settings = || Settings { admin_endpoint: true, ..Settings::default() };
    let open = || crate::server::LocalCloud::open(dir.path(), settings()).unwrap();
    let wrap = |local: crate::server::LocalCloud| Asked { router: local.router(), local };
    let cloud = wrap(open());
    let token = cloud.token("demo").await;
    drop(cloud);
    let cloud = wrap(open());
    assert_eq!(says(&cloud, &token).await["user"]["name"], "demo");
    cloud.local.cloud().clock.advance(Duration::from_secs(3601));
    assert_eq!(cloud.get("/identity/v3/auth/projects", &token).await.status, 401);
    // No secret is written down, but for the file with the passwords.
    let state = std::fs::read(dir.path().join("state.redb")).unwrap();
    let password = cloud
        .local
        .credentials()
        .password("demo")
        .unwrap()
        .expose()
        .to_owned();
    for secret in [&token, &password] {
        assert!(
            !state
                .windows(secret.len())
                .any(|window| window == secret.as_bytes())
        );
    }
}

#[tokio::test]
async fn debug_shows_no_secret() {
    let settings = Settings {
        admin_password: Some("s3cret-of-admin".into()),
        member_password: Some("s3cret-of-demo".into()),
        ..Settings::default()
    };
    let mut shown = format!("{settings:?}");
    let cloud = Asked::new(settings);
    let token = cloud.token("demo").await;
    shown += &cloud
        .local
        .cloud()
        .store
        .peek(|state| format!("{:?} {:?}", cloud.local, state));
    // Hashes and digests take their place.
    assert!(shown.contains("Hashed {") && shown.contains("digest: "), "{shown}");
    assert!(!shown.contains("s3cret") && !shown.contains(&token), "{shown}");
}
