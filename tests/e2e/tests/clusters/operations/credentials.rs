//! `--use-service-account-credentials`: each controller with an account of its own, and what is
//! said when a right lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ccm_e2e::scenario::{SOON, Scenario, account_user};
use ccm_e2e::server::ServerKind;
use ccm_testkit::control_plane::AuditEvent;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::case;
use crate::run::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![case!("accounts", &[ServerKind::Real], each_controller_has_an_account_of_its_own)]
}

const MANAGER: &str = "e2e-manager";
/// The controllers' accounts.
const ACCOUNTS: [&str; 3] = ["node-controller", "service-controller", "route-controller"];

async fn each_controller_has_an_account_of_its_own(s: &Scenario) -> anyhow::Result<()> {
    let begin = s.server.audit_log().await?.events.len();
    allow_the_manager(s).await?;
    let (nodes, service) = (s.names(2), vec![s.name(7)]);
    let mut ccm = s
        .start_as(MANAGER, "", "a", &["--use-service-account-credentials"])
        .await?;
    s.register(&nodes).await?;
    s.create_all(&service).await?;
    // It may not ask for tokens yet: it says what it needs, and waits for it.
    ccm.logged("became leader", SOON).await?;
    let deadline = Instant::now() + SOON;
    let words = [
        "ERROR",
        "kube-system/node-controller",
        "missing permission to create serviceaccounts",
        "namespace kube-system",
    ];
    while !ccm
        .log()
        .lines()
        .any(|line| words.iter().all(|word| line.contains(word)))
    {
        anyhow::ensure!(Instant::now() < deadline, "no line with all of {words:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    anyhow::ensure!(ccm.is_running()?, "it ended");
    allow_tokens(s).await?;
    s.initialized(&nodes, Duration::from_secs(60)).await?;
    s.served(&service, Duration::from_secs(60)).await?;

    let [node, of_services, _] = ACCOUNTS.map(account_user);
    let wanted = BTreeSet::from([
        (
            account_user(MANAGER),
            BTreeSet::from(["events", "leases", "serviceaccounts", "serviceaccounts/token"]),
        ),
        (node, BTreeSet::from(["events", "nodes", "nodes/status"])),
        (of_services, BTreeSet::from(["events", "services/status"])),
    ]);
    // Events come a little later.
    let deadline = Instant::now() + SOON;
    let log = loop {
        let log = s.server.audit_log().await?.events.split_off(begin);
        let written = written(&log);
        if written == wanted {
            break log;
        }
        anyhow::ensure!(Instant::now() < deadline, "written: {written:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let manager = account_user(MANAGER);
    for event in log
        .iter()
        .filter(|event| event.user.starts_with("system:serviceaccount:") && event.user != manager)
    {
        let agent = event.user_agent.rsplit('/').next().unwrap_or_default();
        anyhow::ensure!(
            agent == event.user,
            "{} is the user agent of {}",
            event.user_agent,
            event.user
        );
    }
    let tokens = log
        .iter()
        .filter(|event| event.resource == "serviceaccounts/token" && event.user == manager);
    let tokens = tokens.filter(|event| event.code < 300);
    let tokens: Vec<_> = tokens.map(|event| event.name.as_str()).collect();
    anyhow::ensure!(tokens.len() == 2, "one token for each account serves: {tokens:?}");
    // Every token of the cluster begins so.
    anyhow::ensure!(!ccm.log().contains("eyJ"), "a token was logged");
    ccm.terminate().await
}

/// What each service account wrote.
fn written(log: &[AuditEvent]) -> BTreeSet<(String, BTreeSet<&str>)> {
    let mut written: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for event in log
        .iter()
        .filter(|event| event.user.starts_with("system:serviceaccount:") && event.code < 300)
    {
        if !matches!(event.verb.as_str(), "get" | "list" | "watch") {
            written
                .entry(event.user.clone())
                .or_default()
                .insert(&event.resource);
        }
    }
    written.into_iter().collect()
}

/// Makes the manager's account, with rights for the election and its caches alone.
async fn allow_the_manager(s: &Scenario) -> anyhow::Result<()> {
    let client = s.server.client();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "kube-system");
    accounts
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": MANAGER}}))?,
        )
        .await?;
    let (roles, bindings): (Api<ClusterRole>, Api<ClusterRoleBinding>) =
        (Api::all(client.clone()), Api::all(client));
    let rules = json!([
        {"apiGroups": [""], "resources": ["nodes", "services"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
    ]);
    let role = json!({"metadata": {"name": MANAGER}, "rules": rules});
    roles
        .create(&PostParams::default(), &serde_json::from_value(role)?)
        .await?;
    bindings
        .create(&PostParams::default(), &serde_json::from_value(binding("ClusterRole"))?)
        .await?;
    Ok(())
}

/// Lets it ask for tokens of the accounts, and make these.
async fn allow_tokens(s: &Scenario) -> anyhow::Result<()> {
    let client = s.server.client();
    let roles: Api<Role> = Api::namespaced(client.clone(), "kube-system");
    let bindings: Api<RoleBinding> = Api::namespaced(client, "kube-system");
    let rules = json!([
        {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": ACCOUNTS, "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["create"]},
    ]);
    let role = json!({"metadata": {"name": MANAGER}, "rules": rules});
    roles
        .create(&PostParams::default(), &serde_json::from_value(role)?)
        .await?;
    bindings
        .create(&PostParams::default(), &serde_json::from_value(binding("Role"))?)
        .await?;
    Ok(())
}

fn binding(kind: &str) -> Value {
    json!({
        "metadata": {"name": MANAGER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": MANAGER},
        "subjects": [{"kind": "ServiceAccount", "name": MANAGER, "namespace": "kube-system"}],
    })
}
