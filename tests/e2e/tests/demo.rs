//! The demo, as somebody sees it who runs the README's first command.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests too")]

use std::{
    ffi::OsString,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use ccm_e2e::ccm::Ccm;
use tokio::process::Command;

const LIMIT: Duration = Duration::from_secs(60);

async fn demo(folder: &Path, args: &[&str]) -> Ccm {
    let program = Path::new(env!("CARGO_BIN_EXE_ccm-under-test"));
    let args = ["demo"].iter().chain(args).map(OsString::from).collect();
    Ccm::start(program, folder, "demo", args).await.unwrap()
}

/// What the demo printed behind a word at the start of a line.
fn said(demo: &Ccm, word: &str) -> PathBuf {
    let log = demo.log();
    let line = log.lines().find_map(|line| line.strip_prefix(word));
    PathBuf::from(line.unwrap_or_else(|| panic!("no {word:?} in {log}")).trim())
}

#[tokio::test]
async fn once_shows_everything_and_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = demo(folder.path(), &["--once", "--nodes", "12"]).await;
    let status = demo.exit(LIMIT).await.unwrap();
    let log = demo.log();
    assert!(status.success(), "{status}: {log}");
    assert!(log.contains("all 12 nodes initialised"), "{log}");
    assert_eq!(log.matches("  initialised  zone=demo-1").count(), 10, "the first ten are shown one by one: {log}");
    assert!(log.contains("Node node-11 deleted"), "{log}");
    assert!(!said(&demo, "kubeconfig").exists(), "the kubeconfig goes away with the demo");
}

#[tokio::test]
async fn it_stays_for_kubectl_until_it_is_told_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = demo(folder.path(), &["--nodes", "3"]).await;
    demo.logged("The controllers go on until Ctrl-C", LIMIT).await.unwrap();
    let kubeconfig = said(&demo, "kubeconfig");
    assert!(kubeconfig.exists());
    match kubectl(&kubeconfig, folder.path(), &["get", "nodes", "-o", "wide", "--show-labels"]).await {
        Some(nodes) => {
            assert!(nodes.contains("node-0") && nodes.contains("node-1") && !nodes.contains("node-2 "), "{nodes}");
            assert_eq!(nodes.matches("topology.kubernetes.io/zone=demo-1").count(), 2, "{nodes}");
            let events = kubectl(&kubeconfig, folder.path(), &["describe", "node", "node-0"]).await.unwrap();
            assert!(events.contains("Node synced successfully"), "{events}");
        }
        // Not by a macro, whose output of a passing test nobody would see.
        None => writeln!(std::io::stderr(), "SKIPPED: kubectl is not on PATH; the demo was not asked by it").unwrap(),
    }
    demo.terminate().await.unwrap();
    assert!(!kubeconfig.exists());
}

#[tokio::test]
async fn bad_arguments_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = demo(folder.path(), &["--nodes", "0"]).await;
    assert!(!demo.exit(LIMIT).await.unwrap().success());
    assert!(demo.log().contains("--nodes"), "{}", demo.log());
}

/// What kubectl prints, or `None` when there is no kubectl.
async fn kubectl(kubeconfig: &Path, home: &Path, args: &[&str]) -> Option<String> {
    let command = Command::new("kubectl").arg("--kubeconfig").arg(kubeconfig).args(args).env("HOME", home).output();
    let output = match tokio::time::timeout(LIMIT, command).await.unwrap() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => panic!("kubectl: {error}"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}
