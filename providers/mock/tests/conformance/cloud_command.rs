//! `ccm-mock cloud` as a process: says where it listens, serves, ends on SIGTERM, and explains a
//! bad config.

use std::{process::Stdio, time::Duration};

use ccm_core::{
    k8s::NodeView,
    provider::{CloudProvider, ErrorKind, InstanceQuery, InstanceStatus, MetadataScope, Op},
    write_gate::WriteGate,
};
use ccm_mock::{AdminClient, CloudConfig, MockProvider};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// Longest wait for a process to do anything.
const DEADLINE: Duration = Duration::from_secs(20);

/// Starts the cloud and returns where it says that it listens.
async fn start(config: &std::path::Path) -> (Child, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ccm-mock"))
        .args(["cloud", "--cloud-config"])
        .arg(config)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(DEADLINE, lines.next_line())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let address = line
        .strip_prefix("admin ")
        .expect("the line begins with `admin `")
        .to_owned();
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
    (child, address)
}

#[tokio::test]
async fn the_cloud_serves_other_processes_until_it_is_told_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("cloud.yaml");
    std::fs::write(&config, "region: eu\nautoProvision: true\nadminAddress: :0\n").unwrap();
    let (mut child, address) = start(&config).await;
    let admin = AdminClient::new(address.parse().unwrap());
    assert!(admin.delete_instance("gone").await.unwrap());

    let provider = CloudConfig {
        endpoint: Some(address.parse().unwrap()),
        ..CloudConfig::default()
    };
    let provider = MockProvider::new(&provider).await.unwrap();
    assert_eq!(provider.region(), "eu");
    let op = Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open());
    let query = |name: &str| InstanceQuery {
        node: std::sync::Arc::new(NodeView::named(name)),
        scope: MetadataScope::All,
        max_age: Duration::ZERO,
    };
    let queries = [query("gone"), query("n1")];
    let answers = provider
        .instances()
        .unwrap()
        .describe(&op, &queries)
        .await
        .unwrap();
    assert_eq!(answers[0].as_ref().unwrap(), &InstanceStatus::NotFound);
    assert!(matches!(answers[1], Ok(InstanceStatus::Found { .. })), "{:?}", answers[1]);
    assert_eq!(admin.calls().await.unwrap().describe_instances_nodes, 2);

    let pid = child.id().unwrap().to_string();
    let killed = Command::new("kill")
        .args(["-TERM", &pid])
        .status()
        .await
        .unwrap();
    assert!(killed.success());
    let status = timeout(DEADLINE, child.wait()).await.unwrap().unwrap();
    assert!(status.success(), "{status}");
    let error = provider
        .instances()
        .unwrap()
        .describe(&op, &queries)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "a cloud that is gone proves nothing");
}

#[tokio::test]
async fn a_bad_config_ends_the_process_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    for (text, want) in [
        (Some("region: eu\nautoProvison: true\n"), "bad.yaml, line 2, key autoProvison: "),
        (Some("endpoint: localhost:1\n"), "endpoint names a cloud elsewhere"),
        (None, "cannot read cloud config"),
    ] {
        let config = dir.path().join("bad.yaml");
        match text {
            Some(text) => std::fs::write(&config, text).unwrap(),
            None => std::fs::remove_file(&config).unwrap(),
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_ccm-mock"));
        command
            .args(["cloud", "--cloud-config"])
            .arg(&config)
            .kill_on_drop(true);
        let output = timeout(DEADLINE, command.output()).await.unwrap().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains(want) && stderr.contains("bad.yaml")
                || text == Some("endpoint: localhost:1\n"),
            "{stderr}"
        );
        assert!(output.stdout.is_empty());
    }
}
