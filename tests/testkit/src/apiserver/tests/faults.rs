use super::*;
use crate::hooks::{Hooks, Point};

fn label(value: &str) -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"labels": {"x": value}}}))
}

#[tokio::test(start_paused = true)]
async fn faults_meet_what_they_match_as_often_as_asked() {
    let server = server();
    let nodes = nodes(&server);
    let busy = Action::Error {
        code: http::StatusCode::SERVICE_UNAVAILABLE,
        retry_after: Some(7),
    };
    let fault = server
        .faults()
        .add_times(Match::resource("nodes").verb("create"), busy, 2);
    nodes.list(&ListParams::default()).await.unwrap();
    for _ in 0..2 {
        let refusal = refused(nodes.create(&PostParams::default(), &node("a")).await);
        assert_eq!((refusal.code, refusal.details.unwrap().retry_after_seconds), (503, 7));
    }
    nodes
        .create(&PostParams::default(), &node("a"))
        .await
        .unwrap();
    assert_eq!(server.faults().met(fault), 2);

    server
        .faults()
        .add(Match::any().name("a").verb("get"), Action::TooManyRequests { retry_after: 3 });
    let (code, text) = send_text(&server, "GET", "/api/v1/nodes/a", &[], Value::Null).await;
    assert_eq!((code, text.as_str()), (429, "Too many requests, please try again later.\n"));
    server.faults().clear();

    server
        .faults()
        .add_times(Match::any(), Action::Delay(Duration::from_secs(20)), 1);
    let started = tokio::time::Instant::now();
    nodes.get("a").await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_has_no_effect_and_a_dropped_reply_has() {
    let server = server();
    let nodes = nodes(&server);
    server
        .faults()
        .add_times(Match::any().writes(), Action::Drop, 1);
    assert!(
        nodes
            .create(&PostParams::default(), &node("a"))
            .await
            .is_err()
    );
    assert_eq!(refused(nodes.get("a").await).code, 404);
    server
        .faults()
        .add_times(Match::any().writes(), Action::DropReply, 1);
    assert!(
        nodes
            .create(&PostParams::default(), &node("a"))
            .await
            .is_err()
    );
    nodes.get("a").await.unwrap();
    let broken = server
        .log()
        .entries()
        .iter()
        .filter(|e| e.status.is_none())
        .count();
    assert_eq!(broken, 2);
}

#[tokio::test(start_paused = true)]
async fn a_lagging_server_lists_the_past() {
    let server = server();
    let nodes = nodes(&server);
    let before = server.store().version();
    nodes
        .create(&PostParams::default(), &node("a"))
        .await
        .unwrap();
    server
        .faults()
        .add_times(Match::resource("nodes").verb("list"), Action::StaleRead(before), 1);
    assert_eq!(
        nodes
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        0
    );
    assert_eq!(
        nodes
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_late_deletion_is_held_by_no_finalizer_that_came_after_it() {
    let finalizer = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/held"]}}));
    for held in [false, true] {
        let server = server();
        let nodes = nodes(&server);
        nodes
            .create(&PostParams::default(), &node("a"))
            .await
            .unwrap();
        if held {
            nodes
                .patch("a", &PatchParams::default(), &finalizer)
                .await
                .unwrap();
        }
        let deletions = Match::resource("nodes").verb("delete");
        server
            .faults()
            .add_times(deletions, Action::LateDelete(Duration::from_secs(2)), 1);
        let params = DeleteParams::default();
        let late = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            nodes.patch("a", &PatchParams::default(), &finalizer).await
        };
        let (deleted, patched) = tokio::join!(nodes.delete("a", &params), late);
        assert_eq!(patched.unwrap().metadata.finalizers.unwrap(), ["example.com/held"]);
        deleted.unwrap();
        let left = nodes
            .get_opt("a")
            .await
            .unwrap()
            .map(|node| node.metadata.deletion_timestamp.is_some());
        assert_eq!(left, held.then_some(true));
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_can_be_stopped_at_every_write() {
    for (number, point, survives) in [
        (1, Point::Before, None),
        (1, Point::After, Some(None)),
        (2, Point::Before, Some(None)),
        (2, Point::After, Some(Some("1"))),
    ] {
        let server = server();
        let hooks = Hooks::new();
        hooks.crash_at(number, point);
        let theirs: Api<Node> = Api::all(
            server
                .client_builder()
                .hooks(&hooks)
                .user_agent("ccm/1")
                .build(),
        );
        let run = async {
            theirs.create(&PostParams::default(), &node("a")).await?;
            theirs
                .patch("a", &PatchParams::default(), &label("1"))
                .await?;
            Ok::<(), kube::Error>(())
        };
        assert!(run.await.is_err());
        assert!(hooks.has_crashed());
        assert!(theirs.get("a").await.is_err(), "a crashed process reads nothing either");
        let ours = nodes(&server);
        let found = ours.get_opt("a").await.unwrap();
        let label = found.map(|n| n.metadata.labels.and_then(|l| l.get("x").cloned()));
        assert_eq!(label, survives.map(|l| l.map(str::to_owned)), "{number} {point:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_counts_exactly() {
    let server = server();
    let theirs: Api<Node> = Api::all(server.client_builder().user_agent("ccm/1").build());
    theirs
        .create(&PostParams::default(), &node("a"))
        .await
        .unwrap();
    theirs
        .patch("a", &PatchParams::default(), &label("1"))
        .await
        .unwrap();
    theirs
        .patch_status("a", &PatchParams::default(), &label("2"))
        .await
        .unwrap();
    refused(
        theirs
            .patch("b", &PatchParams::default(), &label("1"))
            .await,
    );
    theirs.get("a").await.unwrap();
    nodes(&server)
        .patch("a", &PatchParams::default(), &label("3"))
        .await
        .unwrap();
    let writes = server
        .log()
        .writes(&Match::resource("nodes").user_agent("ccm/"));
    let seen: Vec<String> = writes
        .iter()
        .map(|w| format!("{} {} {}", w.request.verb, w.request.target(), w.request.name))
        .collect();
    assert_eq!(seen, ["create nodes ", "patch nodes a", "patch nodes/status a"]);
    assert_eq!(writes[1].body["metadata"]["labels"]["x"], "1");
    assert_eq!(server.log().counts()[&("patch".into(), "nodes".into(), 404)], 1);
    server.log().clear();
    assert!(server.log().entries().is_empty());
}
