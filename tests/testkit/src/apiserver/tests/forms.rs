//! Media types, kinds and the error forms clients match on.

use super::*;

const NODES: &str = "/api/v1/nodes";

#[tokio::test(start_paused = true)]
async fn the_answer_is_json_or_none() {
    let server = server();
    for (accept, code) in [
        ("application/vnd.kubernetes.protobuf,application/json", 200),
        ("application/json", 200),
        ("*/*", 200),
        ("application/vnd.kubernetes.protobuf", 406),
        ("text/html", 406),
    ] {
        assert_eq!(
            send(&server, "GET", NODES, &[("accept", accept)], Value::Null)
                .await
                .0,
            code,
            "{accept}"
        );
    }
    let headers = [("content-type", "application/cbor")];
    let (code, body) = send(&server, "POST", NODES, &headers, json!({})).await;
    assert_eq!((code, &body["reason"]), (415, &json!("UnsupportedMediaType")));
    let headers = [("content-type", "application/vnd.kubernetes.protobuf")];
    let (code, body) = send(&server, "POST", NODES, &headers, json!({})).await;
    assert_eq!((code, &body["reason"]), (400, &json!("BadRequest")), "read, but this is none");
}

#[tokio::test(start_paused = true)]
async fn tables_and_metadata_are_served_where_asked() {
    let server = server();
    nodes(&server)
        .create(&PostParams::default(), &node("a"))
        .await
        .unwrap();
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")];
    let (_, body) = send(&server, "GET", NODES, &table, Value::Null).await;
    assert_eq!((&body["kind"], &body["rows"][0]["cells"][0]), (&json!("Table"), &json!("a")));
    assert!(body["metadata"]["resourceVersion"].is_string());

    let partial =
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json";
    let (_, body) = send(&server, "GET", NODES, &[("accept", partial)], Value::Null).await;
    assert_eq!(
        (&body["kind"], &body["items"][0]["kind"]),
        (&json!("PartialObjectMetadataList"), &json!("PartialObjectMetadata"))
    );
    assert_eq!(body["items"][0].get("spec"), None);

    let partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let headers = [("accept", partial), ("content-type", "application/merge-patch+json")];
    let patch = json!({"metadata": {"labels": {"x": "y"}}});
    let (code, body) = send(&server, "PATCH", "/api/v1/nodes/a", &headers, patch).await;
    assert_eq!(
        (code, &body["kind"], &body["metadata"]["labels"]["x"]),
        (200, &json!("PartialObjectMetadata"), &json!("y"))
    );

    for (accept, kind) in [(table[0].1, "Table"), (partial, "PartialObjectMetadata")] {
        let path = "/api/v1/nodes?watch=1&timeoutSeconds=1";
        let (_, text) = send_text(&server, "GET", path, &[("accept", accept)], Value::Null).await;
        let event: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ADDED"), &json!(kind)));
    }
}

// length: one table of requests and what the real server was seen to answer
#[tokio::test(start_paused = true)]
async fn refusals_have_the_real_form() {
    let server = server();
    nodes(&server)
        .create(&PostParams::default(), &node("a"))
        .await
        .unwrap();
    let uid = "00000000-0000-0000-0000-000000000000";
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    send(&server, "POST", lease, &[], json!({"metadata": {"name": "l"}})).await;
    let cases = [
        (
            "POST",
            NODES,
            json!({"metadata": {"name": "a"}}),
            409,
            "AlreadyExists",
            "nodes \"a\" already exists",
        ),
        (
            "POST",
            NODES,
            json!({}),
            422,
            "Invalid",
            "Node \"\" is invalid: metadata.name: Required value: name or generateName is required",
        ),
        (
            "POST",
            NODES,
            json!({"metadata": {"name": "b", "resourceVersion": "7"}}),
            500,
            "",
            "resourceVersion should not be set on objects to be created",
        ),
        (
            "PUT",
            "/api/v1/nodes/a",
            json!({"metadata": {"name": "b"}}),
            400,
            "BadRequest",
            "the name of the object (b) does not match the name on the URL (a)",
        ),
        (
            "PUT",
            "/api/v1/nodes/none",
            json!({"metadata": {"name": "none"}}),
            404,
            "NotFound",
            "nodes \"none\" not found",
        ),
        (
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/default/leases/l",
            json!({"metadata": {"name": "l"}}),
            422,
            "Invalid",
            "leases.coordination.k8s.io \"l\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update",
        ),
        (
            "POST",
            "/api/v1/namespaces/none/configmaps",
            json!({"metadata": {"name": "c"}}),
            404,
            "NotFound",
            "namespaces \"none\" not found",
        ),
        (
            "POST",
            "/api/v1/namespaces/default/configmaps",
            json!({"metadata": {"name": "c", "namespace": "other"}}),
            400,
            "BadRequest",
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            "POST",
            "/api/v1/nodes/a",
            json!({}),
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
        (
            "PATCH",
            "/api/v1/nodes/a/nothing",
            json!({}),
            404,
            "NotFound",
            "the server could not find the requested resource",
        ),
        (
            "GET",
            "/api/v1/nodes?resourceVersionMatch=Exact",
            Value::Null,
            422,
            "Invalid",
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        ),
    ];
    for (method, path, body, code, reason, message) in cases {
        let answer = send(&server, method, path, &[], body).await;
        assert_eq!(
            (answer.0, answer.1["message"].as_str().unwrap()),
            (code, message),
            "{method} {path}"
        );
        assert_eq!(answer.1["reason"].as_str().unwrap_or_default(), reason, "{method} {path}");
    }
    let (code, body) =
        send(&server, "DELETE", "/api/v1/nodes/a", &[], json!({"preconditions": {"uid": uid}}))
            .await;
    assert_eq!((code, &body["reason"]), (409, &json!("Conflict")));
    let message = body["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("Operation cannot be fulfilled on Node \"a\": the UID in the precondition ({uid}) does not match the UID in record (")), "{message}");
    let (code, _) = send(
        &server,
        "DELETE",
        "/api/v1/nodes/a",
        &[],
        json!({"preconditions": {"resourceVersion": "1"}}),
    )
    .await;
    assert_eq!(code, 409);
    assert_eq!(
        send(&server, "GET", "/api/v1/replicationcontrollers", &[], Value::Null)
            .await
            .0,
        404
    );
}

#[tokio::test(start_paused = true)]
async fn names_are_generated() {
    let server = server();
    let body = json!({"metadata": {"generateName": "made-"}});
    let (_, first) = send(&server, "POST", NODES, &[], body.clone()).await;
    let (_, second) = send(&server, "POST", NODES, &[], body).await;
    let name = first["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("made-") && name.len() == 10, "{name}");
    assert_ne!(first["metadata"]["name"], second["metadata"]["name"]);
}

#[tokio::test(start_paused = true)]
async fn dry_runs_change_nothing() {
    let server = server();
    let before = server.store().version();
    let (code, _) =
        send(&server, "POST", "/api/v1/nodes?dryRun=All", &[], json!({"metadata": {"name": "a"}}))
            .await;
    assert_eq!((code, server.store().version()), (201, before));
}

#[tokio::test(start_paused = true)]
async fn events_are_one_in_two_groups() {
    let server = server();
    let core = "/api/v1/namespaces/default/events";
    let event = json!({
        "metadata": {"name": "e"}, "reason": "Synced", "message": "done", "type": "Normal", "count": 1,
        "involvedObject": {"kind": "Service", "namespace": "default", "name": "s"}, "source": {"component": "c"},
    });
    let (code, made) = send(&server, "POST", core, &[], event).await;
    assert_eq!(code, 201, "{made}");
    let other = "/apis/events.k8s.io/v1/namespaces/default/events/e";
    let (_, shown) = send(&server, "GET", other, &[], Value::Null).await;
    assert_eq!((&shown["note"], &shown["regarding"]["name"]), (&json!("done"), &json!("s")));
    let headers = [("content-type", "application/merge-patch+json")];
    let (code, _) = send(&server, "PATCH", other, &headers, json!({"note": "again"})).await;
    assert_eq!(code, 200);
    let (_, list) = send(
        &server,
        "GET",
        &format!("{core}?fieldSelector=involvedObject.name=s"),
        &[],
        Value::Null,
    )
    .await;
    assert_eq!(list["items"][0]["message"], "again");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_with_what_it_holds() {
    let server = server();
    let path = "/api/v1/namespaces/team";
    send(&server, "POST", "/api/v1/namespaces", &[], json!({"metadata": {"name": "team"}})).await;
    for (name, finalizers) in [("free", json!([])), ("held", json!(["test/f"]))] {
        let map = json!({"metadata": {"name": name, "finalizers": finalizers}});
        assert_eq!(
            send(&server, "POST", &format!("{path}/configmaps"), &[], map)
                .await
                .0,
            201
        );
    }
    assert_eq!(
        send(&server, "DELETE", path, &[], Value::Null).await.1["status"]["phase"],
        "Terminating"
    );
    assert_eq!(
        send(&server, "GET", &format!("{path}/configmaps/free"), &[], Value::Null)
            .await
            .0,
        404
    );
    let (code, body) = send(
        &server,
        "POST",
        &format!("{path}/configmaps"),
        &[],
        json!({"metadata": {"name": "late"}}),
    )
    .await;
    assert_eq!(
        (code, &body["details"]["causes"][0]["reason"]),
        (403, &json!("NamespaceTerminating"))
    );
    let headers = [("content-type", "application/merge-patch+json")];
    let none = json!({"metadata": {"finalizers": null}});
    assert_eq!(
        send(&server, "PATCH", &format!("{path}/configmaps/held"), &headers, none)
            .await
            .0,
        200
    );
    assert_eq!(send(&server, "GET", path, &[], Value::Null).await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn collections_are_deleted_by_selector() {
    let server = server();
    for (name, keep) in [("a", "no"), ("b", "yes")] {
        let body = json!({"metadata": {"name": name, "labels": {"keep": keep}}});
        send(&server, "POST", NODES, &[], body).await;
    }
    assert_eq!(
        send(&server, "DELETE", "/api/v1/nodes?labelSelector=keep%3Dno", &[], Value::Null)
            .await
            .0,
        200
    );
    let (_, list) = send(&server, "GET", NODES, &[], Value::Null).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn put_creates_a_lease_and_type_errors_are_refused() {
    let server = server();
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l";
    assert_eq!(
        send(&server, "PUT", path, &[], json!({"metadata": {"name": "l"}}))
            .await
            .0,
        201
    );
    let headers = [("content-type", "application/merge-patch+json")];
    let (code, body) =
        send(&server, "PATCH", path, &headers, json!({"spec": {"leaseTransitions": "many"}})).await;
    assert_eq!((code, &body["reason"]), (422, &json!("Invalid")), "{body}");
    let (code, _) = send(
        &server,
        "POST",
        NODES,
        &[],
        json!({"metadata": {"name": "x"}, "spec": {"taints": "no"}}),
    )
    .await;
    assert_eq!(code, 400);
    let strict = "/api/v1/nodes?fieldValidation=Strict";
    let (code, body) =
        send(&server, "POST", strict, &[], json!({"metadata": {"name": "x"}, "sepc": {}})).await;
    assert_eq!(
        (code, &body["message"]),
        (
            400,
            &json!(
                "Node in version \"v1\" cannot be handled as a Node: strict decoding error: unknown field \"sepc\""
            )
        )
    );
}
