use super::*;

const PROJECTS: &str = "/identity/v3/projects";
const USERS: &str = "/identity/v3/users";

async fn user_id(cloud: &Asked, token: &str) -> String {
    says(cloud, token).await["user"]["id"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test(start_paused = true)]
async fn projects_are_made_found_changed_and_deleted() {
    let cloud = cloud();
    let admin = cloud.token("admin").await;
    let answer = cloud
        .post(PROJECTS, &admin, json!({"project": {"name": "new", "description": "d"}}))
        .await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let id = answer.body["project"]["id"].as_str().unwrap().to_owned();
    let path = format!("{PROJECTS}/{id}");
    assert_eq!(answer.body["project"]["links"]["self"], format!("http://cloud.test:5000{path}"));
    assert_eq!(cloud.get(&path, &admin).await.body, answer.body);
    assert_eq!(
        names(&cloud.get(PROJECTS, &admin).await.body["projects"]),
        ["admin", "demo", "new"]
    );
    for (query, expected) in [
        ("name=new", vec!["new"]),
        ("name=x", vec![]),
        ("domain_id=default&name=demo", vec!["demo"]),
        ("domain_id=x", vec![]),
        ("enabled=true&name=new", vec!["new"]),
    ] {
        let answer = cloud.get(&format!("{PROJECTS}?{query}"), &admin).await;
        assert_eq!(names(&answer.body["projects"]), expected, "{query}");
    }
    let changed = cloud
        .ask("PATCH", &path, &admin, Some(json!({"project": {"name": "old", "enabled": false}})))
        .await;
    assert_eq!(
        (&changed.body["project"]["name"], &changed.body["project"]["description"]),
        (&json!("old"), &json!("d"))
    );
    for (what, method, path, body, status) in [
        ("name taken", "POST", PROJECTS, json!({"project": {"name": "demo"}}), 409),
        ("no name", "POST", PROJECTS, json!({"project": {}}), 400),
        ("long name", "POST", PROJECTS, json!({"project": {"name": "x".repeat(256)}}), 400),
        ("no domain", "POST", PROJECTS, json!({"project": {"name": "y", "domain_id": "x"}}), 404),
        ("no body", "POST", PROJECTS, json!({}), 400),
        ("changed name taken", "PATCH", &path, json!({"project": {"name": "demo"}}), 409),
        ("own name", "PATCH", &path, json!({"project": {"name": "old"}}), 200),
    ] {
        assert_eq!(cloud.ask(method, path, &admin, Some(body)).await.status, status, "{what}");
    }
    assert_eq!(cloud.ask("DELETE", &path, &admin, None).await.status, 204);
    for method in ["GET", "DELETE"] {
        let answer = cloud.ask(method, &path, &admin, None).await;
        assert_eq!(answer.status, 404);
        assert_eq!(answer.body["error"]["message"], format!("Could not find project: {id}."));
    }
}

#[tokio::test(start_paused = true)]
async fn users_without_rights_see_their_own_only() {
    let cloud = cloud();
    let (admin, demo) = (cloud.token("admin").await, cloud.token("demo").await);
    let project = says(&cloud, &demo).await["project"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let foreign = says(&cloud, &admin).await["project"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let (own, other) = (user_id(&cloud, &demo).await, user_id(&cloud, &admin).await);
    for (path, status) in [
        (PROJECTS.to_owned(), 403),
        (format!("{PROJECTS}/{project}"), 200),
        (format!("{PROJECTS}/{foreign}"), 403),
        (USERS.to_owned(), 403),
        (format!("{USERS}/{own}"), 200),
        (format!("{USERS}/{other}"), 403),
        (format!("{USERS}/{own}/projects"), 200),
        (format!("{USERS}/{other}/projects"), 403),
        ("/identity/v3/domains".to_owned(), 403),
        ("/identity/v3/domains/default".to_owned(), 200),
        ("/identity/v3/roles".to_owned(), 403),
        ("/identity/v3/role_assignments".to_owned(), 403),
    ] {
        assert_eq!(cloud.get(&path, &demo).await.status, status, "{path}");
        assert_eq!(cloud.get(&path, &admin).await.status, 200, "{path} for an administrator");
    }
    assert_eq!(
        cloud
            .post(PROJECTS, &demo, json!({"project": {"name": "x"}}))
            .await
            .status,
        403
    );
    assert_eq!(
        cloud
            .post(USERS, &demo, json!({"user": {"name": "x"}}))
            .await
            .status,
        403
    );
    let own = cloud.get("/identity/v3/auth/projects", &demo).await.body;
    assert_eq!(names(&own["projects"]), ["demo"]);
    assert_eq!(
        own["links"],
        json!({"next": null, "previous": null, "self": "http://cloud.test:5000/identity/v3/auth/projects"})
    );
    assert_eq!(
        ids(&cloud.get("/identity/v3/auth/domains", &admin).await.body["domains"]),
        ["default"]
    );
    assert!(ids(&cloud.get("/identity/v3/auth/domains", &demo).await.body["domains"]).is_empty());
}

/// Makes a user, and returns the ID and the proof.
async fn new_user(cloud: &Asked, admin: &str, name: &str) -> (String, Value) {
    let answer = cloud
        .post(USERS, admin, json!({"user": {"name": name, "password": "first"}}))
        .await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    assert!(!answer.body.to_string().contains("first"));
    let id = answer.body["user"]["id"].as_str().unwrap().to_owned();
    let proof =
        json!({"methods": ["password"], "password": {"user": {"id": id, "password": "first"}}});
    (id, proof)
}

// length: one story, told in order
#[tokio::test(start_paused = true)]
async fn a_new_user_gets_in_with_a_role() {
    let cloud = cloud();
    let admin = cloud.token("admin").await;
    let (user, proof) = new_user(&cloud, &admin, "new").await;
    let project = cloud
        .get(&format!("{PROJECTS}?name=demo"), &admin)
        .await
        .body["projects"][0]["id"]
        .clone();
    let project = project.as_str().unwrap();
    let role = cloud
        .get("/identity/v3/roles?name=member", &admin)
        .await
        .body["roles"][0]["id"]
        .clone();
    let role = role.as_str().unwrap();
    let scope = json!({"project": {"id": project}});
    let path = format!("{PROJECTS}/{project}/users/{user}/roles/{role}");

    assert_eq!(
        cloud
            .authenticate(proof.clone(), scope.clone())
            .await
            .status,
        401,
        "no role"
    );
    assert_eq!(cloud.ask("HEAD", &path, &admin, None).await.status, 404);
    assert_eq!(cloud.ask("PUT", &path, &admin, None).await.status, 204);
    assert_eq!(cloud.ask("HEAD", &path, &admin, None).await.status, 204);
    let token = cloud
        .authenticate(proof.clone(), scope.clone())
        .await
        .token();
    let listed = cloud
        .get(&format!("{PROJECTS}/{project}/users/{user}/roles"), &admin)
        .await;
    assert_eq!(names(&listed.body["roles"]), ["member"]);
    let assignments = cloud
        .get(&format!("/identity/v3/role_assignments?user.id={user}"), &admin)
        .await;
    assert_eq!(
        assignments.body["role_assignments"][0]["scope"],
        json!({"project": {"id": project}})
    );
    let named = format!(
        "/identity/v3/role_assignments?include_names=True&scope.project.id={project}&user.id={user}"
    );
    let named = cloud.get(&named, &admin).await.body["role_assignments"].clone();
    let domain = json!({"id": "default", "name": "Default"});
    let expected = json!([{"scope": {"project": {"id": project, "name": "demo", "domain": domain}},
        "user": {"id": user, "name": "new", "domain": domain}, "role": {"id": role, "name": "member"}, "links": {}}]);
    assert_eq!(named, expected);

    let default = json!({"user": {"default_project_id": project}});
    assert_eq!(
        cloud
            .ask("PATCH", &format!("{USERS}/{user}"), &admin, Some(default))
            .await
            .status,
        200
    );
    let unasked = cloud.authenticate(proof.clone(), Value::Null).await;
    assert_eq!(unasked.body["token"]["project"]["id"], project, "the default project");

    assert_eq!(cloud.ask("DELETE", &path, &admin, None).await.status, 204);
    assert_eq!(cloud.ask("DELETE", &path, &admin, None).await.status, 404);
    assert_eq!(
        cloud.get("/identity/v3/auth/projects", &token).await.status,
        401,
        "the role was all it had"
    );
    let unasked = cloud.authenticate(proof, Value::Null).await;
    assert!(unasked.body["token"].get("project").is_none(), "a default project of no use");
    let unknown = format!("{PROJECTS}/{project}/users/{user}/roles/x");
    assert_eq!(cloud.ask("PUT", &unknown, &admin, None).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn tokens_end_with_what_they_stand_on() {
    let cloud = cloud();
    let admin = cloud.token("admin").await;
    let disabled = |kind: &str| json!({kind: {"enabled": false}});
    let path = "/identity/v3/auth/projects";

    let demo = cloud.token("demo").await;
    let id = user_id(&cloud, &demo).await;
    assert_eq!(
        cloud
            .ask("PATCH", &format!("{USERS}/{id}"), &admin, Some(disabled("user")))
            .await
            .status,
        200
    );
    assert_eq!(cloud.get(path, &demo).await.status, 401, "the user is disabled");
    assert_eq!(
        cloud
            .authenticate(cloud.password("demo"), Value::Null)
            .await
            .status,
        401
    );
    let enabled = json!({"user": {"enabled": true}});
    cloud
        .ask("PATCH", &format!("{USERS}/{id}"), &admin, Some(enabled))
        .await;
    assert_eq!(cloud.get(path, &demo).await.status, 200);

    let project = says(&cloud, &demo).await["project"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    cloud
        .ask("PATCH", &format!("{PROJECTS}/{project}"), &admin, Some(disabled("project")))
        .await;
    assert_eq!(cloud.get(path, &demo).await.status, 401, "the project is disabled");
    cloud
        .ask("DELETE", &format!("{PROJECTS}/{project}"), &admin, None)
        .await;
    assert_eq!(cloud.get(path, &demo).await.status, 401, "the project is gone");

    let unscoped = cloud
        .authenticate(cloud.password("demo"), Value::Null)
        .await
        .token();
    assert_eq!(
        cloud
            .ask("DELETE", &format!("{USERS}/{id}"), &admin, None)
            .await
            .status,
        204
    );
    assert_eq!(cloud.get(path, &unscoped).await.status, 401, "the user is gone");
    let left = cloud.local.cloud().store.peek(|state| {
        (
            state.keystone.tokens.len(),
            state
                .keystone
                .assignments
                .iter()
                .filter(|row| row.user_id == id)
                .count(),
        )
    });
    assert_eq!(left, (1, 0), "only the administrator's token is left");
}

#[tokio::test(start_paused = true)]
async fn another_password_ends_what_the_old_one_made() {
    let cloud = cloud();
    let admin = cloud.token("admin").await;
    let (user, proof) = new_user(&cloud, &admin, "new").await;
    let token = cloud.authenticate(proof.clone(), Value::Null).await.token();
    let path = format!("{USERS}/{user}/password");
    let body = |old: &str, new: &str| json!({"user": {"original_password": old, "password": new}});
    assert_eq!(
        cloud
            .post(&path, &token, body("wrong", "second"))
            .await
            .status,
        401
    );
    assert_eq!(
        cloud
            .post(&path, &token, body("first", "second"))
            .await
            .status,
        204
    );
    assert_eq!(cloud.authenticate(proof.clone(), Value::Null).await.status, 401);
    assert_eq!(cloud.get("/identity/v3/auth/projects", &token).await.status, 401);
    let mut second = proof;
    second["password"]["user"]["password"] = json!("second");
    let token = cloud.authenticate(second, Value::Null).await.token();
    let reset = json!({"user": {"password": "third"}});
    assert_eq!(
        cloud
            .ask("PATCH", &format!("{USERS}/{user}"), &admin, Some(reset))
            .await
            .status,
        200
    );
    assert_eq!(cloud.get("/identity/v3/auth/projects", &token).await.status, 401);
}

#[tokio::test(start_paused = true)]
async fn users_are_found_changed_and_refused() {
    let cloud = cloud();
    let admin = cloud.token("admin").await;
    let (user, _) = new_user(&cloud, &admin, "new").await;
    assert_eq!(names(&cloud.get(USERS, &admin).await.body["users"]), ["admin", "demo", "new"]);
    assert_eq!(ids(&cloud.get(&format!("{USERS}?name=new"), &admin).await.body["users"]), [&*user]);
    let path = format!("{USERS}/{user}");
    for (what, method, path, body, status) in [
        ("name taken", "POST", USERS, json!({"user": {"name": "new"}}), 409),
        ("no name", "POST", USERS, json!({"user": {"name": ""}}), 400),
        (
            "no project",
            "POST",
            USERS,
            json!({"user": {"name": "y", "default_project_id": "x"}}),
            404,
        ),
        ("changed name taken", "PATCH", &path, json!({"user": {"name": "demo"}}), 409),
        ("changed", "PATCH", &path, json!({"user": {"name": "newer", "description": "d"}}), 200),
        ("unknown", "PATCH", "/identity/v3/users/x", json!({"user": {}}), 404),
    ] {
        assert_eq!(cloud.ask(method, path, &admin, Some(body)).await.status, status, "{what}");
    }
    let shown = cloud.get(&path, &admin).await.body;
    assert_eq!(
        (&shown["user"]["name"], &shown["user"]["description"]),
        (&json!("newer"), &json!("d"))
    );
    assert!(shown["user"].get("password").is_none());
    assert_eq!(
        cloud
            .ask("DELETE", "/identity/v3/users/x", &admin, None)
            .await
            .status,
        404
    );
}
