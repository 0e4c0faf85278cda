use super::*;

#[tokio::test(start_paused = true)]
async fn a_watch_is_held_and_told_what_happens() {
    let server = server();
    let nodes = nodes(&server);
    let version = nodes
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let params = WatchParams::default().timeout(60).disable_bookmarks();
    let mut stream = nodes.watch(&params, &version).await.unwrap().boxed();
    let started = tokio::time::Instant::now();
    let writer = async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        nodes
            .create(&PostParams::default(), &node("a"))
            .await
            .unwrap();
        let patch = json!({"metadata": {"labels": {"x": "y"}}});
        nodes
            .patch("a", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
        nodes.delete("a", &DeleteParams::default()).await.unwrap();
    };
    let reader = async {
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(next_event(&mut stream).await);
        }
        assert_eq!(started.elapsed().as_secs(), 30);
        assert_eq!(seen, ["added a", "modified a", "deleted a"]);
        assert_eq!(next_event(&mut stream).await, "end");
        assert_eq!(started.elapsed().as_secs(), 60);
    };
    tokio::join!(writer, reader);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute() {
    let server = server();
    let nodes = nodes(&server);
    let mut stream = nodes
        .watch(&WatchParams::default(), &server.store().version().to_string())
        .await
        .unwrap()
        .boxed();
    let started = tokio::time::Instant::now();
    for minute in 1..=3 {
        assert_eq!(next_event(&mut stream).await, "bookmark {}");
        assert_eq!(started.elapsed(), Duration::from_mins(minute));
    }
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_ends_with_its_bookmark() {
    let server = server();
    let nodes = nodes(&server);
    nodes
        .create(&PostParams::default(), &node("a"))
        .await
        .unwrap();
    let params = WatchParams::default().initial_events();
    let mut stream = nodes.watch(&params, "").await.unwrap().boxed();
    assert_eq!(next_event(&mut stream).await, "added a");
    assert_eq!(next_event(&mut stream).await, r#"bookmark {"k8s.io/initial-events-end": "true"}"#);
    nodes
        .create(&PostParams::default(), &node("b"))
        .await
        .unwrap();
    assert_eq!(next_event(&mut stream).await, "added b");
}

#[tokio::test(start_paused = true)]
async fn a_server_may_refuse_streaming_lists() {
    let server = ApiServer::new(Options { streaming_lists: false, ..Options::default() });
    let result = nodes(&server)
        .watch(&WatchParams::default().initial_events(), "")
        .await;
    let refusal = refused(result.map(|_| ()));
    assert_eq!((refusal.code, refusal.reason.as_str()), (422, "Invalid"));
    assert_eq!(
        refusal.message,
        "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch \
         unless the WatchList feature gate is enabled"
    );
}

#[tokio::test(start_paused = true)]
async fn a_position_before_the_compaction_is_gone() {
    let server = server();
    let nodes = nodes(&server);
    let before = server.store().version().to_string();
    nodes
        .create(&PostParams::default(), &node("a"))
        .await
        .unwrap();
    server.store().compact();
    let mut stream = nodes
        .watch(&WatchParams::default(), &before)
        .await
        .unwrap()
        .boxed();
    let after = server.store().version();
    let expected = format!("error 410 Expired too old resource version: {before} ({after})");
    assert_eq!(next_event(&mut stream).await, expected);
    assert_eq!(next_event(&mut stream).await, "end");

    let (code, body) =
        send(&server, "GET", "/api/v1/nodes?resourceVersion=99999", &[], Value::Null).await;
    assert_eq!(
        (code, &body["details"]["causes"][0]["reason"]),
        (504, &json!("ResourceVersionTooLarge"))
    );
}

#[tokio::test(start_paused = true)]
async fn objects_enter_and_leave_a_selection() {
    let server = server();
    let nodes = nodes(&server);
    let version = server.store().version().to_string();
    let mut stream = nodes
        .watch(&WatchParams::default().labels("in=yes"), &version)
        .await
        .unwrap()
        .boxed();
    nodes
        .create(&PostParams::default(), &node("a"))
        .await
        .unwrap();
    for value in ["yes", "no", "yes"] {
        let patch = json!({"metadata": {"labels": {"in": value}}});
        nodes
            .patch("a", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }
    for expected in ["added a", "deleted a", "added a"] {
        assert_eq!(next_event(&mut stream).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn watches_can_be_cut_frozen_and_rewound() {
    let server = server();
    let nodes = nodes(&server);
    let start = server.store().version();
    let watch = || async {
        nodes
            .watch(&WatchParams::default(), &start.to_string())
            .await
            .unwrap()
            .boxed()
    };
    let mut stream = watch().await;
    nodes
        .create(&PostParams::default(), &node("a"))
        .await
        .unwrap();
    assert_eq!(next_event(&mut stream).await, "added a");

    let freeze = server.faults().freeze_watches(Match::resource("nodes"));
    nodes
        .create(&PostParams::default(), &node("b"))
        .await
        .unwrap();
    let held = tokio::time::timeout(Duration::from_mins(4), next_event(&mut stream)).await;
    assert!(held.is_err(), "a frozen watch delivers nothing: {held:?}");
    server.faults().thaw(freeze);
    assert_eq!(next_event(&mut stream).await, "added b");

    assert_eq!(server.faults().retold(), 0);
    assert_eq!(server.faults().rewind_watches(&Match::any(), start), 1);
    assert_eq!(next_event(&mut stream).await, "added a");
    assert_eq!(server.faults().retold(), 2, "a and b");

    assert_eq!(server.faults().close_watches(&Match::resource("services")), 0);
    assert_eq!(server.faults().close_watches(&Match::resource("nodes")), 1);
    assert_eq!(next_event(&mut stream).await, "end");

    let mut stream = watch().await;
    assert_eq!(next_event(&mut stream).await, "added a");
    server.faults().cut_watches(&Match::any());
    assert!(stream.try_next().await.is_err(), "a cut watch fails");
}
