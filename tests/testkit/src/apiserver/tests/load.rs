//! Many objects: the history stays bounded, and a watch that falls behind gets an error.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_behind_the_history_is_told_so() {
    let server = ApiServer::new(Options { history_limit: 50, ..Options::default() });
    let nodes = nodes(&server);
    let version = server.store().version().to_string();
    let mut stream = nodes
        .watch(&WatchParams::default(), &version)
        .await
        .unwrap()
        .boxed();
    for at in 0..100 {
        nodes
            .create(&PostParams::default(), &node(&format!("n{at}")))
            .await
            .unwrap();
    }
    assert!(
        next_event(&mut stream)
            .await
            .starts_with("error 410 Expired too old resource version")
    );
    assert_eq!(next_event(&mut stream).await, "end");
}

#[tokio::test(start_paused = true)]
async fn many_watches_see_every_write_in_order() {
    let server = server();
    let nodes = nodes(&server);
    let version = server.store().version().to_string();
    let writer = async {
        for at in 0..300 {
            nodes
                .create(&PostParams::default(), &node(&format!("n{at:03}")))
                .await
                .unwrap();
        }
    };
    let reader = |_| async {
        let mut stream = nodes
            .watch(&WatchParams::default(), &version)
            .await
            .unwrap()
            .boxed();
        for at in 0..300 {
            assert_eq!(next_event(&mut stream).await, format!("added n{at:03}"));
        }
    };
    let readers = futures::future::join_all((0..5).map(reader));
    futures::join!(writer, readers);
}
