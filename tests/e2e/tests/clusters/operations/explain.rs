//! The subcommand `explain` and the page, with a leader and a standby: who is asked, who may ask, and
//! what is explained without a leader.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use ccm_e2e::ccm::Ccm;
use ccm_e2e::https_endpoints::get;
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::server::ServerKind;
use ccm_testkit::apiserver::{Access, Rule};
use ccm_testkit::supervised::free_port;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::run::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![crate::case!(
        "expl",
        &[ServerKind::Embedded],
        the_leader_explains_to_those_who_may_ask_and_without_one_it_is_found_out_alone
    )]
}

/// Reads what a manager reads, and may ask for explanations.
const OPERATOR: &str = "operator";
/// Reads what a manager reads.
const STRANGER: &str = "stranger";

async fn the_leader_explains_to_those_who_may_ask_and_without_one_it_is_found_out_alone(
    s: &Scenario,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let read = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]});
    let ask = json!({"nonResourceURLs": ["/explain/*"], "verbs": ["get"]});
    let operator = user(s, folder.path(), OPERATOR, &json!({"rules": [read, ask]})).await?;
    let stranger = user(s, folder.path(), STRANGER, &json!({"rules": [read]})).await?;
    let (mut leader, leader_port) = start(s, folder.path(), "a").await?;
    leader.logged("became leader", SOON).await?;
    let (mut standby, standby_port) = start(s, folder.path(), "b").await?;
    standby.logged("another process leads", SOON).await?;
    let node = s.name(0);
    s.register_one(s.spec(&node)).await?;

    // The leader knows the failed attempts.
    let words = ["explain", "node", &*node];
    let explained = until_attempted(s, &words, &operator, leader_port).await?;
    ensure!(explained["causes"][0]["cause"] == "InstanceNotFound", "{explained:#}");
    // Its page has the same, for the same users.
    let token = |name: &str| format!("token-of-{}", s.user(name));
    let (status, page) = get(leader_port, "/explain/", Some(&token(OPERATOR))).await?;
    ensure!(status == 200 && page.contains("InstanceNotFound") && page.contains(&node), "{page}");
    let (status, page) = get(leader_port, "/explain/", Some(&token(STRANGER))).await?;
    ensure!(status == 403 && !page.contains(&node), "{status}: {page}");
    let (code, error) = ask_at(s, &words, &stranger, leader_port).await?;
    let error = error.as_str().context("an error")?;
    ensure!(code == Some(1) && error.contains("403 Forbidden"), "{code:?}: {error}");
    ensure!(error.contains("nonResourceURLs [\"/explain/*\"]"), "{error}");
    let nobody = ["explain", "node", "nobody"];
    let (code, error) = ask_at(s, &nobody, &operator, leader_port).await?;
    let error = error.as_str().context("an error")?;
    ensure!(code == Some(1) && error.contains("404 Not Found: there is no such"), "{error}");

    // A standby says who leads, and then the subcommand compares by itself.
    let (status, page) = get(standby_port, "/explain/", Some(&token(OPERATOR))).await?;
    ensure!(status == 503 && page.contains(&format!("kube-system/{}", s.lease())), "{page}");
    let (code, alone) = ask_at(s, &words, &operator, standby_port).await?;
    ensure!(code == Some(0), "{code:?}: {alone:#}");
    ensure!(alone["explanation"]["node"] == *node, "{alone:#}");
    ensure!(alone["explanation"]["attempts"] == json!([]), "it has none: {alone:#}");
    let writes = s.server.writes(&s.user(OPERATOR)).await?;
    ensure!(writes.is_empty(), "it wrote: {writes:?}");
    leader.terminate().await?;
    standby.terminate().await
}

/// Writes the kubeconfig of a user with these rules.
async fn user(s: &Scenario, folder: &Path, name: &str, role: &Value) -> anyhow::Result<PathBuf> {
    let kubeconfig = folder.join(format!("{name}.kubeconfig"));
    s.server
        .write_kubeconfig(&kubeconfig, &s.user(name))
        .await?;
    let users = s.server.as_embedded()?.users().clone();
    users.set_access(&s.user(name), Access::Rules(Rule::of_role(role)?));
    Ok(kubeconfig)
}

/// Starts a process that serves, and asks the API server about its users as somebody who may.
async fn start(s: &Scenario, folder: &Path, process: &str) -> anyhow::Result<(Ccm, u16)> {
    let name = format!("auth-of-{process}");
    let kubeconfig = user(s, folder, &name, &json!({"rules": []})).await?;
    let users = s.server.as_embedded()?.users().clone();
    users.set_access(&s.user(&name), Access::All);
    let port = free_port()?;
    let flags = [
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--authentication-kubeconfig={}", kubeconfig.display()),
        format!("--authorization-kubeconfig={}", kubeconfig.display()),
        "--authentication-tolerate-lookup-failure".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Ok((s.start(process, &flags).await?, port))
}

/// Runs the subcommand once.
async fn ask_at(
    s: &Scenario,
    words: &[&str],
    kubeconfig: &Path,
    port: u16,
) -> anyhow::Result<(Option<i32>, Value)> {
    let flags = [
        "--output=json",
        "--insecure-skip-server-verification",
        &format!("--address=https://127.0.0.1:{port}"),
    ];
    s.subcommand(words, kubeconfig.to_owned(), "asks", &flags)
        .await
}

/// Runs the subcommand until the leader has attempted something, and returns what it explained.
async fn until_attempted(
    s: &Scenario,
    words: &[&str],
    kubeconfig: &Path,
    port: u16,
) -> anyhow::Result<Value> {
    let deadline = Instant::now() + SOON;
    loop {
        let (code, explained) = ask_at(s, words, kubeconfig, port).await?;
        let attempts = explained["attempts"].as_array();
        if code == Some(0) && attempts.is_some_and(|attempts| !attempts.is_empty()) {
            return Ok(explained);
        }
        ensure!(Instant::now() < deadline, "no attempt: {code:?}: {explained:#}");
    }
}
