use std::time::Duration;

use super::*;

struct Fixture {
    cloud: Asked,
    admin: String,
    demo: String,
    user: String,
    admin_user: String,
    project: String,
}

impl Fixture {
    async fn new() -> Self {
        let cloud = cloud();
        let (admin, demo) = (cloud.token("admin").await, cloud.token("demo").await);
        let token = says(&cloud, &demo).await;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let admin_user = text(&says(&cloud, &admin).await["user"]["id"]);
        Self {
            user: text(&token["user"]["id"]),
            project: text(&token["project"]["id"]),
            cloud,
            admin,
            demo,
            admin_user,
        }
    }

    fn path(&self) -> String {
        format!("/identity/v3/users/{}/application_credentials", self.user)
    }

    async fn credential(&self, body: Value) -> Answer {
        self.cloud
            .post(&self.path(), &self.demo, json!({"application_credential": body}))
            .await
    }

    async fn with(&self, credential: Value) -> Answer {
        let identity =
            json!({"methods": ["application_credential"], "application_credential": credential});
        self.cloud.authenticate(identity, Value::Null).await
    }

    async fn trust(&self, more: Value) -> Answer {
        let mut body = json!({"trustor_user_id": self.user, "trustee_user_id": self.admin_user,
            "project_id": self.project, "impersonation": true, "roles": [{"name": "member"}]});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.cloud
            .post("/identity/v3/OS-TRUST/trusts", &self.demo, json!({"trust": body}))
            .await
    }

    async fn with_trust(&self, user: &str, id: &str) -> Answer {
        self.cloud
            .authenticate(self.cloud.password(user), json!({"OS-TRUST:trust": {"id": id}}))
            .await
    }
}

#[tokio::test(start_paused = true)]
async fn an_application_credential_makes_tokens_by_id_and_by_name() {
    let world = Fixture::new().await;
    let answer = world
        .credential(json!({"name": "ccm", "description": "d"}))
        .await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let made = &answer.body["application_credential"];
    let (id, secret) = (&made["id"], &made["secret"]);
    assert_eq!(made["project_id"], world.project.as_str());
    assert_eq!(made["roles"].as_array().unwrap().len(), 2);
    let user = json!({"name": "demo", "domain": default()});
    for proof in [
        json!({"id": id, "secret": secret}),
        json!({"name": "ccm", "user": {"id": world.user}, "secret": secret}),
        json!({"name": "ccm", "user": user, "secret": secret}),
    ] {
        let answer = world.with(proof.clone()).await;
        assert_eq!(answer.status, 201, "{proof}: {}", answer.body);
        let token = &answer.body["token"];
        assert_eq!(token["project"]["id"], world.project.as_str());
        assert_eq!(
            token["application_credential"],
            json!({"id": id, "name": "ccm", "restricted": true})
        );
        assert_eq!(token["methods"], json!(["application_credential"]));
        assert!(!token["catalog"].as_array().unwrap().is_empty());
    }
    for proof in
        [json!({"id": id, "secret": "x"}), json!({"name": "x", "user": user, "secret": secret})]
    {
        assert_eq!(world.with(proof.clone()).await.status, 401, "{proof}");
    }
    let identity = json!({"methods": ["application_credential"],
        "application_credential": {"id": id, "secret": secret}});
    let scope = json!({"project": {"id": world.project}});
    assert_eq!(world.cloud.authenticate(identity, scope).await.status, 401, "its scope is fixed");
}

#[tokio::test(start_paused = true)]
async fn the_secret_is_told_once_and_never_kept() {
    let world = Fixture::new().await;
    let answer = world
        .credential(json!({"name": "ccm", "secret": "swordfish"}))
        .await;
    let made = &answer.body["application_credential"];
    assert_eq!(made["secret"], "swordfish");
    let id = made["id"].as_str().unwrap();
    let shown = world
        .cloud
        .get(&format!("{}/{id}", world.path()), &world.demo)
        .await;
    assert_eq!(shown.body["application_credential"]["name"], "ccm");
    let listed = world
        .cloud
        .get(&format!("{}?name=ccm", world.path()), &world.demo)
        .await;
    assert_eq!(ids(&listed.body["application_credentials"]), [id]);
    let store = &world.cloud.local.cloud().store;
    let row = store.peek(|state| {
        serde_json::to_string(&**state.keystone.application_credentials.get(id).unwrap())
    });
    for text in [
        shown.body.to_string(),
        listed.body.to_string(),
        row.unwrap(),
        format!("{:?}", world.cloud.local),
    ] {
        assert!(!text.contains("swordfish"), "{text}");
    }
    assert_eq!(
        world
            .with(json!({"id": id, "secret": "swordfish"}))
            .await
            .status,
        201
    );
}

#[tokio::test(start_paused = true)]
async fn a_credential_ends_with_its_time_its_deletion_and_its_user() {
    let world = Fixture::new().await;
    let end = world.cloud.local.cloud().clock.now() + jiff::SignedDuration::from_mins(10);
    let end = end.strftime("%Y-%m-%dT%H:%M:%S.000000").to_string();
    let answer = world
        .credential(json!({"name": "short", "expires_at": end}))
        .await;
    assert_eq!(answer.body["application_credential"]["expires_at"], end);
    let proof = |answer: &Answer| {
        let made = &answer.body["application_credential"];
        json!({"id": made["id"], "secret": made["secret"]})
    };
    let token = world.with(proof(&answer)).await;
    assert!(
        token.body["token"]["expires_at"]
            .as_str()
            .unwrap()
            .starts_with(&end),
        "the token lives no longer"
    );
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(world.with(proof(&answer)).await.status, 401);

    let answer = world.credential(json!({"name": "long"})).await;
    let token = world.with(proof(&answer)).await.token();
    let path = format!(
        "{}/{}",
        world.path(),
        answer.body["application_credential"]["id"]
            .as_str()
            .unwrap()
    );
    assert_eq!(
        world
            .cloud
            .ask("DELETE", &path, &world.demo, None)
            .await
            .status,
        204
    );
    assert_eq!(
        world
            .cloud
            .get("/identity/v3/auth/projects", &token)
            .await
            .status,
        401
    );
    assert_eq!(world.with(proof(&answer)).await.status, 401);
    assert_eq!(world.cloud.get(&path, &world.demo).await.status, 404);

    let answer = world.credential(json!({"name": "last"})).await;
    let path = format!("/identity/v3/users/{}", world.user);
    assert_eq!(
        world
            .cloud
            .ask("DELETE", &path, &world.admin, None)
            .await
            .status,
        204
    );
    assert_eq!(world.with(proof(&answer)).await.status, 401);
}

#[tokio::test(start_paused = true)]
async fn a_restricted_credential_makes_no_more_of_its_kind() {
    let world = Fixture::new().await;
    for (unrestricted, status) in [(false, 403), (true, 201)] {
        let name = format!("unrestricted {unrestricted}");
        let answer = world
            .credential(json!({"name": name, "unrestricted": unrestricted}))
            .await;
        let made = &answer.body["application_credential"];
        let token = world
            .with(json!({"id": made["id"], "secret": made["secret"]}))
            .await
            .token();
        let body = json!({"application_credential": {"name": format!("by {name}")}});
        assert_eq!(world.cloud.post(&world.path(), &token, body).await.status, status, "{name}");
        let path = format!("{}/{}", world.path(), made["id"].as_str().unwrap());
        let identity = json!({"methods": ["token"], "token": {"id": token}});
        let scope = json!({"project": {"id": world.project}});
        assert_eq!(
            world.cloud.authenticate(identity, scope).await.status,
            403,
            "{name}: scoped again"
        );
        let expected = if unrestricted { 204 } else { 403 };
        assert_eq!(world.cloud.ask("DELETE", &path, &token, None).await.status, expected, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn credentials_that_cannot_be_are_refused() {
    let world = Fixture::new().await;
    assert_eq!(world.credential(json!({"name": "taken"})).await.status, 201);
    for (what, body, status) in [
        ("name taken", json!({"name": "taken"}), 409),
        ("no name", json!({"name": ""}), 400),
        ("role of others", json!({"name": "a", "roles": [{"name": "admin"}]}), 400),
        ("past", json!({"name": "a", "expires_at": "2001-01-01T00:00:00"}), 400),
        ("no time", json!({"name": "a", "expires_at": "soon"}), 400),
        ("own role", json!({"name": "a", "roles": [{"name": "reader"}]}), 201),
    ] {
        let answer = world.credential(body).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.body);
    }
    let body = json!({"application_credential": {"name": "b"}});
    assert_eq!(
        world
            .cloud
            .post(&world.path(), &world.admin, body.clone())
            .await
            .status,
        403,
        "for somebody else"
    );
    let unscoped = world
        .cloud
        .authenticate(world.cloud.password("demo"), Value::Null)
        .await
        .token();
    assert_eq!(
        world
            .cloud
            .post(&world.path(), &unscoped, body)
            .await
            .status,
        403,
        "for no project"
    );
    let other = format!("/identity/v3/users/{}/application_credentials", world.admin_user);
    assert_eq!(world.cloud.get(&other, &world.demo).await.status, 403);
}

#[tokio::test(start_paused = true)]
async fn a_trust_makes_tokens_for_the_trustee() {
    let world = Fixture::new().await;
    for impersonation in [true, false] {
        let answer = world.trust(json!({"impersonation": impersonation})).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        let id = answer.body["trust"]["id"].as_str().unwrap();
        let answer = world.with_trust("admin", id).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        let token = &answer.body["token"];
        assert_eq!(token["user"]["name"], if impersonation { "demo" } else { "admin" });
        assert_eq!(names(&token["roles"]), ["member"], "only what was passed on");
        assert_eq!(token["project"]["id"], world.project.as_str());
        let expected = json!({"id": id, "impersonation": impersonation,
            "trustor_user": {"id": world.user}, "trustee_user": {"id": world.admin_user}});
        assert_eq!(token["OS-TRUST:trust"], expected);
        let text = answer.token();
        let scope = json!({"project": {"id": world.project}});
        let identity = json!({"methods": ["token"], "token": {"id": text}});
        assert_eq!(world.cloud.authenticate(identity, scope).await.status, 403, "scoped again");
        let body = json!({"application_credential": {"name": "x"}});
        assert_eq!(world.cloud.post(&world.path(), &text, body).await.status, 403);
        assert_eq!(world.with_trust("demo", id).await.status, 403, "not the trustee");

        let path = format!("/identity/v3/OS-TRUST/trusts/{id}");
        assert_eq!(world.cloud.get(&path, &world.admin).await.body["trust"]["id"], id);
        assert_eq!(
            names(
                &world
                    .cloud
                    .get(&format!("{path}/roles"), &world.demo)
                    .await
                    .body["roles"]
            ),
            ["member"]
        );
        assert_eq!(
            world
                .cloud
                .ask("DELETE", &path, &world.demo, None)
                .await
                .status,
            204
        );
        assert_eq!(
            world
                .cloud
                .get("/identity/v3/auth/projects", &text)
                .await
                .status,
            401
        );
        assert_eq!(world.with_trust("admin", id).await.status, 404);
    }
}

#[tokio::test(start_paused = true)]
async fn a_trust_ends_when_used_up_or_out_of_time() {
    let world = Fixture::new().await;
    let id = |answer: Answer| answer.body["trust"]["id"].as_str().unwrap().to_owned();
    let used = id(world.trust(json!({"remaining_uses": 2})).await);
    for status in [201, 201, 404] {
        assert_eq!(world.with_trust("admin", &used).await.status, status);
    }
    let end =
        (world.cloud.local.cloud().clock.now() + jiff::SignedDuration::from_mins(10)).to_string();
    let short = id(world.trust(json!({"expires_at": end})).await);
    assert_eq!(world.with_trust("admin", &short).await.status, 201);
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(world.with_trust("admin", &short).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn trusts_that_cannot_be_are_refused() {
    let world = Fixture::new().await;
    for (what, more, status) in [
        ("role of others", json!({"roles": [{"name": "admin"}]}), 400),
        ("no role", json!({"roles": []}), 403),
        ("for somebody else", json!({"trustor_user_id": world.admin_user}), 403),
        ("another project", json!({"project_id": "x"}), 403),
        ("nobody", json!({"trustee_user_id": "x"}), 404),
        ("never", json!({"remaining_uses": 0}), 400),
    ] {
        let answer = world.trust(more).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.body);
    }
    let trusts = world
        .cloud
        .get("/identity/v3/OS-TRUST/trusts", &world.demo)
        .await;
    assert_eq!(trusts.body["trusts"], json!([]));
}
