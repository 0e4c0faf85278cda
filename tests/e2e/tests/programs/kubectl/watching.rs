use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::ChildStdout;

use super::harness::Cluster;
use crate::async_cases;
use crate::plain::Case;

pub(crate) fn cases() -> Vec<Case> {
    async_cases![a_watch_shows_each_change,]
}

/// Reads lines until one holds all of `parts`.
async fn line_with(lines: &mut Lines<BufReader<ChildStdout>>, parts: &[&str]) -> String {
    let found = async {
        let mut seen = Vec::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            if parts.iter().all(|part| line.contains(part)) {
                return line;
            }
            seen.push(line);
        }
        panic!("kubectl ended without a line with {parts:?}, after {seen:#?}");
    };
    tokio::time::timeout(Duration::from_mins(1), found)
        .await
        .unwrap_or_else(|_| panic!("no line with {parts:?}"))
}

async fn a_watch_shows_each_change() {
    let cluster = Cluster::start().await;
    cluster.add_node("n1", "10.0.0.1").await;
    let mut watch = cluster.start_running(&["get", "nodes", "-w"]);
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    line_with(&mut lines, &["NAME", "STATUS"]).await;
    line_with(&mut lines, &["n1", "Ready"]).await;
    cluster.ok(&["cordon", "n1"]).await;
    line_with(&mut lines, &["n1", "Ready,SchedulingDisabled"]).await;
    cluster.add_node("n2", "10.0.0.2").await;
    line_with(&mut lines, &["n2", "Ready", "worker"]).await;
    watch.kill().await.unwrap();

    // With the kind of each change, and whole objects.
    let mut watch = cluster.start_running(&["get", "nodes", "-w", "--output-watch-events"]);
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    line_with(&mut lines, &["EVENT", "NAME"]).await;
    line_with(&mut lines, &["ADDED", "n2"]).await;
    let mut names = cluster.start_running(&["get", "nodes", "-w", "-o", "name"]);
    let mut name_lines = BufReader::new(names.stdout.take().unwrap()).lines();
    line_with(&mut name_lines, &["node/n2"]).await;
    cluster
        .ok(&["label", "node", "n2", "zone=b", "--overwrite"])
        .await;
    line_with(&mut lines, &["MODIFIED", "n2"]).await;
    line_with(&mut name_lines, &["node/n2"]).await;
    cluster.ok(&["delete", "node", "n2"]).await;
    line_with(&mut lines, &["DELETED", "n2"]).await;
    names.kill().await.unwrap();
    watch.kill().await.unwrap();
    cluster.stop().await;
}
