use super::*;

fn viewer_of_nodes(server: &ApiServer) -> User {
    let role = json!({"rules": [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["*"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["mine"], "verbs": ["update"]},
    ]});
    let user = User::service_account("kube-system", "ccm");
    server
        .users()
        .set_access(&user.name, Access::Rules(Rule::of_role(&role).unwrap()));
    server.users().add("secret-token", user.clone());
    user
}

async fn with_token(server: &ApiServer, token: &str, method: &str, path: &str) -> (u16, Value) {
    send(server, method, path, &[("authorization", &format!("Bearer {token}"))], Value::Null).await
}

#[tokio::test(start_paused = true)]
async fn tokens_and_rules_decide() {
    let server = server();
    let user = viewer_of_nodes(&server);
    let (code, body) = with_token(&server, "unknown", "GET", "/api/v1/nodes").await;
    assert_eq!(code, 401);
    assert_eq!(
        body,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "Unauthorized",
               "reason": "Unauthorized", "code": 401})
    );
    assert_eq!(
        with_token(&server, "secret-token", "GET", "/api/v1/nodes")
            .await
            .0,
        200
    );
    let (code, body) = with_token(&server, "secret-token", "DELETE", "/api/v1/nodes/a").await;
    assert_eq!((code, &body["reason"]), (403, &json!("Forbidden")));
    assert_eq!(
        body["message"],
        "nodes \"a\" is forbidden: User \"system:serviceaccount:kube-system:ccm\" cannot delete resource \"nodes\" in \
         API group \"\" at the cluster scope"
    );
    assert_eq!(body["details"], json!({"name": "a", "kind": "nodes"}));
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/other";
    let (code, body) = with_token(&server, "secret-token", "PUT", path).await;
    assert_eq!(code, 403);
    assert_eq!(
        body["message"],
        "leases.coordination.k8s.io \"other\" is forbidden: User \"system:serviceaccount:kube-system:ccm\" cannot \
         update resource \"leases\" in API group \"coordination.k8s.io\" in the namespace \"kube-system\""
    );
    let (code, _) = with_token(&server, "secret-token", "GET", "/healthz").await;
    assert_eq!(code, 200);
    let (_, body) = with_token(&server, "secret-token", "GET", "/metrics").await;
    assert_eq!(
        body["message"],
        "forbidden: User \"system:serviceaccount:kube-system:ccm\" cannot get path \"/metrics\""
    );

    let nodes: Api<Node> = Api::all(server.client_as(user));
    nodes.list(&ListParams::default()).await.unwrap();
    assert_eq!(refused(nodes.create(&PostParams::default(), &node("a")).await).code, 403);
    server.users().revoke("secret-token");
    assert_eq!(
        with_token(&server, "secret-token", "GET", "/api/v1/nodes")
            .await
            .0,
        401
    );
}

#[tokio::test(start_paused = true)]
async fn reviews_answer_from_the_same_data() {
    let server = server();
    let user = viewer_of_nodes(&server);
    let review = |token: &str| json!({"spec": {"token": token}});
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let (code, known) = send(&server, "POST", path, &[], review("secret-token")).await;
    assert_eq!((code, &known["status"]["authenticated"]), (201, &json!(true)));
    assert_eq!(known["status"]["user"]["username"], user.name);
    let (_, unknown) = send(&server, "POST", path, &[], review("other")).await;
    assert_eq!(unknown["status"].get("authenticated"), None);

    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    for (verb, resource, subresource, allowed) in [
        ("list", "nodes", "", true),
        ("delete", "nodes", "", false),
        ("patch", "nodes", "status", true),
        ("list", "services", "", false),
    ] {
        let attributes = json!({"verb": verb, "resource": resource, "subresource": subresource});
        let body = json!({"spec": {"user": user.name, "resourceAttributes": attributes}});
        let (_, answer) = send(&server, "POST", path, &[], body).await;
        assert_eq!(answer["status"]["allowed"], allowed, "{verb} {resource}/{subresource}");
    }
    let anonymous = json!({"spec": {"user": ANONYMOUS, "nonResourceAttributes": {"path": "/metrics", "verb": "get"}}});
    assert_eq!(send(&server, "POST", path, &[], anonymous).await.1["status"]["allowed"], false);
    assert_eq!(
        send(&server, "POST", path, &[], json!({"spec": {"user": "x"}}))
            .await
            .0,
        422
    );
}

#[tokio::test(start_paused = true)]
async fn a_service_account_token_works_until_it_expires() {
    let server = server();
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "ccm", "namespace": "kube-system"}});
    server.seed(&account).unwrap();
    let path = "/api/v1/namespaces/kube-system/serviceaccounts/ccm/token";
    let (code, body) =
        send(&server, "POST", path, &[], json!({"spec": {"expirationSeconds": 600}})).await;
    assert_eq!(code, 201, "{body}");
    let token = body["status"]["token"].as_str().unwrap();
    assert_eq!(with_token(&server, token, "GET", "/api/v1/nodes").await.0, 200);
    let review = json!({"spec": {"token": token}});
    let (_, known) =
        send(&server, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", &[], review).await;
    assert_eq!(known["status"]["authenticated"], true);
    tokio::time::advance(Duration::from_secs(601)).await;
    assert_eq!(with_token(&server, token, "GET", "/api/v1/nodes").await.0, 401);
    assert_eq!(
        send(&server, "POST", path, &[], json!({"spec": {"expirationSeconds": 5}}))
            .await
            .0,
        422
    );
    let entries = format!("{:?}", server.log().entries());
    assert!(!entries.contains(token), "no token in the log");
}
