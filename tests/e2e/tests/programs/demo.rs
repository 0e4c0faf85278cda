//! The demo, as somebody sees it who runs the README's first command.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use ccm_e2e::{
    ccm::{Ccm, Signal},
    secrets::Secrets,
};
use serde_json::Value;
use tokio::process::Command;

use crate::async_cases;
use crate::kubectl;
use crate::plain::{Case, needing};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = async_cases![
        once_shows_everything_and_ends_well,
        it_stays_until_it_is_told_to_end_and_does_not_show_its_token,
        bad_arguments_are_explained,
        the_recording_and_the_quick_start_show_what_it_prints,
    ];
    cases.extend(needing(kubectl::find().err(), async_cases![kubectl_shows_what_it_made]));
    cases
}

pub(crate) const LIMIT: Duration = Duration::from_secs(180);
/// What the demo says when it has shown everything.
pub(crate) const STAYS: &str = "The controllers run until Ctrl-C";

/// Starts the demo.
pub(crate) async fn demo(folder: &Path, args: &[&str]) -> Ccm {
    let program = Path::new(env!("CARGO_BIN_EXE_ccm-under-test"));
    let args = ["demo"].iter().chain(args).map(OsString::from).collect();
    Ccm::start(program, folder, "demo", args).await.unwrap()
}

/// What the demo printed behind a word at the start of a line.
pub(crate) fn said(demo: &Ccm, word: &str) -> PathBuf {
    let log = demo.log();
    let line = log.lines().find_map(|line| line.strip_prefix(word));
    PathBuf::from(
        line.unwrap_or_else(|| panic!("no {word:?} in {log}"))
            .trim(),
    )
}

async fn once_shows_everything_and_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = demo(folder.path(), &["--once", "--nodes", "12"]).await;
    let status = demo.exit(LIMIT).await.unwrap();
    let log = demo.log();
    assert!(status.success(), "{status}: {log}");
    assert!(log.contains("all 12 nodes initialised"), "{log}");
    assert_eq!(
        log.matches("  initialised  zone=demo-1").count(),
        10,
        "the first ten are shown one by one: {log}"
    );
    assert_eq!(log.matches("  route 100.64.").count(), 10, "so are routes: {log}");
    said_with_calls(&log, "all 12 nodes have a pod CIDR and a route", &["12 create_route"]);
    assert_eq!(log.matches("<pending>").count(), 3, "{log}");
    said_with_calls(&log, "all 3 have an address", &["3 create_load_balancer"]);
    assert_eq!(log.matches("LoadBalancer  198.18.0.").count(), 3, "{log}");
    // Two balancers had the node, the third has the nodes of another zone.
    assert_eq!(log.matches("12 nodes -> 11 nodes, 1 change(s)").count(), 2, "{log}");
    assert!(log.contains("zonal  unchanged"), "{log}");
    said_with_calls(&log, "no load balancer leads to node-", &["2 update_load_balancer"]);
    assert!(log.contains("Node node-11 deleted"), "{log}");
    said_with_calls(
        &log,
        "no load balancer and no route leads to node-11",
        &["1 delete_route", "update_load_balancer"],
    );
    assert!(!said(&demo, "kubeconfig").exists(), "the kubeconfig goes away with the demo");
}

/// Checks that the first line of cloud calls after a text names these.
fn said_with_calls(log: &str, text: &str, calls: &[&str]) {
    let after = log
        .split_once(text)
        .unwrap_or_else(|| panic!("no {text:?} in {log}"))
        .1;
    let (_, line) = after
        .split_once("cloud calls: ")
        .unwrap_or_else(|| panic!("no calls after {text:?} in {log}"));
    let line = line.lines().next().unwrap_or_default();
    assert!(calls.iter().all(|call| line.contains(call)), "{calls:?} are not all in {line:?}");
}

async fn it_stays_until_it_is_told_to_end_and_does_not_show_its_token() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = demo(folder.path(), &["--nodes", "3"]).await;
    demo.logged(STAYS, LIMIT).await.unwrap();
    let file = said(&demo, "kubeconfig");
    let kubeconfig: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let mut secrets = Secrets::default();
    secrets.add(
        "the administrator's token",
        kubeconfig["users"][0]["user"]["token"].as_str().unwrap(),
    );
    demo.signal(Signal::Term).await.unwrap();
    let status = demo.exit(LIMIT).await.unwrap();
    assert!(status.success(), "{status}: {}", demo.log());
    assert!(!file.exists(), "the kubeconfig goes away with the demo");
    secrets.check("the demo", &demo.log()).unwrap();
}

/// Numbers differ from run to run, and the order of nodes and Services.
async fn the_recording_and_the_quick_start_show_what_it_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut demo = demo(folder.path(), &["--once"]).await;
    assert!(demo.exit(LIMIT).await.unwrap().success(), "{}", demo.log());
    let log = demo.log();
    let printed: BTreeSet<_> = log.lines().map(without_numbers).collect();

    let recorded = without_numbers(&text_of(&read("docs/demo.svg")));
    // Headings, behind the lines about files and addresses.
    let headings = log
        .lines()
        .skip(5)
        .filter(|line| !line.starts_with(' ') && !line.is_empty());
    for heading in headings {
        assert!(
            recorded.contains(&without_numbers(heading)),
            "not in docs/demo.svg, which CONTRIBUTING.md says how to make: {heading}\n{recorded}"
        );
    }

    let guide = read("docs/start/laptop.md");
    let shown = guide
        .split("```text\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    for line in shown.lines().filter(|line| line.trim() != "...") {
        assert!(
            printed.contains(&without_numbers(line)),
            "docs/start/laptop.md shows what is not printed: {line}\n{printed:#?}"
        );
    }
}

/// The text of XML elements, a space for each tag.
fn text_of(xml: &str) -> String {
    let parts = xml
        .split('<')
        .map(|part| part.split_once('>').map_or("", |(_, text)| text));
    let text = parts.collect::<Vec<_>>().join(" ");
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&")
}

/// A line with `#` for each number, and one space between words.
fn without_numbers(line: &str) -> String {
    let mut out = String::new();
    for word in line.split_whitespace() {
        let mut digits = false;
        out.push(' ');
        for c in word.chars() {
            if !(c.is_ascii_digit() && digits) {
                out.push(if c.is_ascii_digit() { '#' } else { c });
            }
            digits = c.is_ascii_digit();
        }
    }
    out.trim_start().to_owned()
}

async fn kubectl_shows_what_it_made() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = demo(folder.path(), &["--nodes", "3"]).await;
    demo.logged(STAYS, LIMIT).await.unwrap();
    let kubeconfig = said(&demo, "kubeconfig");
    let kubectl = async |args: &[&str]| ask_kubectl(&kubeconfig, folder.path(), args).await;
    let nodes = kubectl(&["get", "nodes", "-o", "wide", "--show-labels"]).await;
    assert!(
        nodes.contains("node-0") && nodes.contains("node-1") && !nodes.contains("node-2 "),
        "{nodes}"
    );
    assert_eq!(nodes.matches("topology.kubernetes.io/zone=demo-1").count(), 2, "{nodes}");
    let events = kubectl(&["describe", "node", "node-0"]).await;
    assert!(events.contains("Node synced successfully"), "{events}");
    let services = kubectl(&["get", "services"]).await;
    assert_eq!(services.matches("198.18.0.").count(), 3, "{services}");
    let web = kubectl(&["describe", "service", "web"]).await;
    assert!(web.contains("Ensured load balancer"), "{web}");
    assert!(web.contains("load-balancer-id"), "{web}");
    demo.terminate().await.unwrap();
}

async fn bad_arguments_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = demo(folder.path(), &["--nodes", "0"]).await;
    assert!(!demo.exit(LIMIT).await.unwrap().success());
    assert!(demo.log().contains("--nodes"), "{}", demo.log());
}

/// What kubectl prints.
async fn ask_kubectl(kubeconfig: &Path, home: &Path, args: &[&str]) -> String {
    let mut command = Command::new(kubectl::find().unwrap());
    let output = command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(args)
        .env("HOME", home)
        .output();
    let output = tokio::time::timeout(LIMIT, output).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
