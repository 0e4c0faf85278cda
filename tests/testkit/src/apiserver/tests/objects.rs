use super::*;

#[tokio::test(start_paused = true)]
async fn an_object_lives_from_creation_to_deletion() {
    let server = server();
    let nodes = nodes(&server);
    let made = nodes
        .create(&PostParams::default(), &node("a"))
        .await
        .unwrap();
    assert!(made.metadata.uid.as_ref().is_some_and(|u| u.len() == 36));
    assert!(made.metadata.creation_timestamp.is_some());
    assert_eq!(made.metadata.generation, None, "nodes have no generation");

    let mut changed = made.clone();
    changed.metadata.labels = Some([("k".to_owned(), "v".to_owned())].into());
    let changed = nodes
        .replace("a", &PostParams::default(), &changed)
        .await
        .unwrap();
    assert_ne!(changed.metadata.resource_version, made.metadata.resource_version);
    let same = nodes
        .replace("a", &PostParams::default(), &changed)
        .await
        .unwrap();
    assert_eq!(
        same.metadata.resource_version, changed.metadata.resource_version,
        "no change, no version"
    );

    let conflict = refused(nodes.replace("a", &PostParams::default(), &made).await);
    assert_eq!((conflict.code, conflict.reason.as_str()), (409, "Conflict"));
    assert_eq!(
        conflict.message,
        "Operation cannot be fulfilled on nodes \"a\": the object has been modified; please apply your changes to the \
         latest version and try again"
    );
    let details = conflict.details.unwrap();
    assert_eq!((details.kind.as_str(), details.name.as_str()), ("nodes", "a"));

    let gone = nodes.delete("a", &DeleteParams::default()).await.unwrap();
    let status = gone.right().expect("nodes answer a delete with a Status");
    assert_eq!(status.details.unwrap().uid, made.metadata.uid.unwrap());
    let missing = refused(nodes.get("a").await);
    assert_eq!((missing.code, missing.message.as_str()), (404, "nodes \"a\" not found"));
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_a_deleted_object() {
    let server = server();
    let nodes = nodes(&server);
    let mut held = node("a");
    held.metadata.finalizers = Some(vec!["test/held".into()]);
    nodes.create(&PostParams::default(), &held).await.unwrap();
    let marked = nodes
        .delete("a", &DeleteParams::default())
        .await
        .unwrap()
        .left()
        .unwrap();
    assert!(marked.metadata.deletion_timestamp.is_some());

    let more = json!({"metadata": {"finalizers": ["test/held", "test/late"]}});
    let refusal = refused(
        nodes
            .patch("a", &PatchParams::default(), &Patch::Merge(more))
            .await,
    );
    assert_eq!(refusal.code, 422);
    assert!(refusal.message.contains("no new finalizers can be added"), "{}", refusal.message);

    let none = json!({"metadata": {"finalizers": null}});
    nodes
        .patch("a", &PatchParams::default(), &Patch::Merge(none))
        .await
        .unwrap();
    assert_eq!(refused(nodes.get("a").await).code, 404);
}

#[tokio::test(start_paused = true)]
async fn the_status_path_changes_status_and_metadata_only() {
    let server = server();
    let nodes = nodes(&server);
    nodes
        .create(&PostParams::default(), &node("a"))
        .await
        .unwrap();
    let patch = json!({
        "metadata": {"labels": {"through": "status"}, "finalizers": ["test/f"]},
        "spec": {"providerID": "x://1"},
        "status": {"addresses": [{"type": "Hostname", "address": "h"}]},
    });
    let after = nodes
        .patch_status("a", &PatchParams::default(), &Patch::Strategic(&patch))
        .await
        .unwrap();
    assert_eq!(after.metadata.labels.unwrap()["through"], "status");
    assert_eq!(after.metadata.finalizers.unwrap(), ["test/f"]);
    assert_eq!(after.spec.and_then(|s| s.provider_id), None);
    assert_eq!(after.status.unwrap().addresses.unwrap().len(), 1);

    let patch = json!({"spec": {"providerID": "x://1"}, "status": {"addresses": null}});
    let after = nodes
        .patch("a", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    assert_eq!(after.spec.unwrap().provider_id.unwrap(), "x://1");
    assert_eq!(after.status.unwrap().addresses.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_json_patch_test_is_an_empty_422() {
    let server = server();
    let nodes = nodes(&server);
    nodes
        .create(&PostParams::default(), &node("a"))
        .await
        .unwrap();
    let path = "/api/v1/nodes/a";
    for operation in [
        json!({"op": "test", "path": "/metadata/name", "value": "b"}),
        json!({"op": "remove", "path": "/spec/none"}),
        json!({"op": "replace", "path": "/none/none", "value": 1}),
    ] {
        let (code, body) = json_patch(&server, path, json!([operation])).await;
        assert_eq!((code, &body["reason"], &body["details"]), (422, &json!("Invalid"), &json!({})));
        assert_eq!(
            body["message"],
            "the server rejected our request due to an error in our request"
        );
    }
    let absent = json!([
        {"op": "test", "path": "/metadata/labels", "value": null},
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
    ]);
    let (code, body) = json_patch(&server, path, absent.clone()).await;
    assert_eq!((code, &body["metadata"]["labels"]["a"]), (200, &json!("b")));
    assert_eq!(json_patch(&server, path, absent).await.0, 422);
}

#[tokio::test(start_paused = true)]
async fn server_side_apply_is_refused_clearly() {
    let server = server();
    let refusal = refused(
        nodes(&server)
            .patch("a", &PatchParams::apply("m"), &Patch::Apply(json!({})))
            .await,
    );
    assert_eq!((refusal.code, refusal.reason.as_str()), (415, "UnsupportedMediaType"));
    assert!(
        refusal
            .message
            .contains("application/strategic-merge-patch+json")
    );
}

#[tokio::test(start_paused = true)]
async fn lists_come_in_consistent_pages() {
    let server = server();
    let nodes = nodes(&server);
    for name in ["a", "b", "c", "d", "e"] {
        nodes
            .create(&PostParams::default(), &node(name))
            .await
            .unwrap();
    }
    let names = |l: &kube::core::ObjectList<Node>| -> Vec<String> {
        l.iter().map(|n| n.metadata.name.clone().unwrap()).collect()
    };
    let first = nodes.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    let token = first.metadata.continue_.unwrap();
    nodes.delete("c", &DeleteParams::default()).await.unwrap();
    nodes
        .create(&PostParams::default(), &node("bb"))
        .await
        .unwrap();
    let rest = nodes
        .list(&ListParams::default().limit(5).continue_token(&token))
        .await
        .unwrap();
    assert_eq!(names(&rest), ["c", "d", "e"], "as it was when the list began");
    assert_eq!(rest.metadata.resource_version, first.metadata.resource_version);

    server.store().compact();
    let refusal = refused(
        nodes
            .list(&ListParams::default().continue_token(&token))
            .await,
    );
    assert_eq!((refusal.code, refusal.reason.as_str()), (410, "Expired"));
    let (_, body) =
        send(&server, "GET", &format!("/api/v1/nodes?continue={token}"), &[], Value::Null).await;
    let token = body["metadata"]["continue"].as_str().unwrap();
    let rest = nodes
        .list(&ListParams::default().continue_token(token))
        .await
        .unwrap();
    assert_eq!(names(&rest), ["bb", "d", "e"], "from there on, as it is now");
}

#[tokio::test(start_paused = true)]
async fn selectors_choose() {
    let server = server();
    let nodes = nodes(&server);
    for (name, zone) in [("a", "1"), ("b", "2"), ("c", "3")] {
        let mut made = node(name);
        made.metadata.labels = Some([("zone".to_owned(), zone.to_owned())].into());
        nodes.create(&PostParams::default(), &made).await.unwrap();
    }
    nodes
        .create(&PostParams::default(), &node("bare"))
        .await
        .unwrap();
    let cases = [
        ("zone=1", "", vec!["a"]),
        ("zone!=1", "", vec!["b", "bare", "c"]),
        ("zone in (1, 2)", "", vec!["a", "b"]),
        ("zone notin (1,2),zone", "", vec!["c"]),
        ("!zone", "", vec!["bare"]),
        ("", "metadata.name=b", vec!["b"]),
        ("zone", "metadata.name!=b", vec!["a", "c"]),
        ("", "spec.unschedulable=false", vec!["a", "b", "bare", "c"]),
    ];
    for (labels, fields, expected) in cases {
        let list = nodes
            .list(&ListParams::default().labels(labels).fields(fields))
            .await
            .unwrap();
        let names: Vec<String> = list.into_iter().map(|n| n.metadata.name.unwrap()).collect();
        assert_eq!(names, expected, "{labels} {fields}");
    }
    let refusal = refused(
        nodes
            .list(&ListParams::default().fields("spec.color=red"))
            .await,
    );
    assert_eq!(
        (refusal.code, refusal.message.as_str()),
        (400, "field label not supported: spec.color")
    );
}
