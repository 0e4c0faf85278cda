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

const LIMIT: Duration = Duration::from_secs(180);

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
    assert_eq!(log.matches("  route 100.64.").count(), 10, "so are routes: {log}");
    said_with_calls(&log, "all 12 nodes have a pod CIDR and a route", &["12 create_route"]);
    assert_eq!(log.matches("<pending>").count(), 3, "{log}");
    said_with_calls(&log, "all 3 have an address", &["3 create_load_balancer"]);
    assert_eq!(log.matches("LoadBalancer  198.18.0.").count(), 3, "{log}");
    // Two balancers had the node, the third has the nodes of another zone.
    assert_eq!(log.matches("12 nodes -> 11 nodes, 1 change(s)").count(), 2, "{log}");
    assert!(log.contains("zonal  untouched"), "{log}");
    said_with_calls(&log, "no balancer leads to node-", &["2 update_load_balancer"]);
    assert!(log.contains("Node node-11 deleted"), "{log}");
    said_with_calls(&log, "no balancer and no route leads to node-11", &["1 delete_route", "update_load_balancer"]);
    assert!(!said(&demo, "kubeconfig").exists(), "the kubeconfig goes away with the demo");
}

/// Checks that the first line of cloud calls after a text names these.
fn said_with_calls(log: &str, text: &str, calls: &[&str]) {
    let after = log.split_once(text).unwrap_or_else(|| panic!("no {text:?} in {log}")).1;
    let (_, line) = after.split_once("cloud calls: ").unwrap_or_else(|| panic!("no calls after {text:?} in {log}"));
    let line = line.lines().next().unwrap_or_default();
    assert!(calls.iter().all(|call| line.contains(call)), "{calls:?} are not all in {line:?}");
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
            let services = kubectl(&kubeconfig, folder.path(), &["get", "services"]).await.unwrap();
            assert_eq!(services.matches("198.18.0.").count(), 3, "{services}");
            let web = kubectl(&kubeconfig, folder.path(), &["describe", "service", "web"]).await.unwrap();
            assert!(web.contains("Ensured load balancer"), "{web}");
            assert!(web.contains("load-balancer-id"), "{web}");
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
