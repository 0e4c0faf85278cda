//! The subcommand `check`: finds out whether a manager could work, and changes nothing.
//!
//! Each misconfiguration must have exactly one line in the report, which says what to do about it.

mod outages;
pub(crate) mod rows;

use std::{collections::BTreeSet, sync::Arc};

use ccm_core::{
    check::{CheckReport, Finding, Severity},
    manager::Manager,
};
use ccm_testkit::apiserver::{Access, Match, Rule, User};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::rows::{put_lease, put_pod};
use crate::{
    cluster::{AGENT, TestCluster, secs},
    service_world::SERVICE,
};

const CONTROLLERS: &str = "--controllers=cloud-node,cloud-node-lifecycle,service,route";
const CIDR: &str = "--cluster-cidr=10.0.0.0/8";
const FLAGS: [&str; 3] = [CONTROLLERS, CIDR, "--secure-port=0"];
const ELECTED: [&str; 4] = [CONTROLLERS, CIDR, "--secure-port=0", "--leader-elect=true"];
const LEASE: &str = "cloud-controller-manager";

/// What one row expects: the name of the finding, how bad it is, its object, and words of the
/// advice.
#[derive(Clone, Copy, Debug)]
struct Expected<'a>(&'a str, Severity, &'a str, &'a str);

async fn check_as(world: &TestCluster, user: User, flags: &[&str]) -> CheckReport {
    let manager = world.manager_as(user, Arc::new(world.provider()), flags);
    run(manager).await
}

async fn run(manager: Manager) -> CheckReport {
    run_within(manager, 100).await
}

async fn run_within(manager: Manager, seconds: u64) -> CheckReport {
    manager
        .check(Instant::now() + secs(seconds), CancellationToken::new())
        .await
        .unwrap()
}

/// Everything that is not well.
fn problems(report: &CheckReport) -> Vec<&Finding> {
    let findings = report.findings.iter();
    findings
        .filter(|finding| finding.severity > Severity::Ok)
        .collect()
}

/// Asserts that the report has exactly these problems, each once and with its advice.
fn assert_problems(title: &str, report: &CheckReport, expected: &[Expected<'_>]) {
    let wrong = compare(title, report, expected);
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), report.table());
}

/// Returns what is missing in the report, wrong, or too much.
fn compare(title: &str, report: &CheckReport, expected: &[Expected<'_>]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut found = problems(report);
    for Expected(name, severity, object, advice) in expected {
        let position = found
            .iter()
            .position(|finding| finding.name == *name && finding.object == *object);
        let Some(position) = position else {
            wrong.push(format!("{title}: no {name} of {object}"));
            continue;
        };
        let line = found.remove(position);
        let is_expected = line.severity == *severity
            && line.advice.contains(advice)
            && !line.consequence.is_empty();
        if !is_expected {
            wrong.push(format!("{title}: expected {severity}, {advice:?}: {line:?}"));
        }
    }
    for line in found {
        wrong.push(format!("{title}: too much: {line:?}"));
    }
    wrong
}

/// A cluster that a manager has finished, with one Service.
async fn healthy() -> TestCluster {
    let world = TestCluster::with("");
    let ccm = world.start(&SERVICE);
    world.have_nodes(["n1", "n2"]).await;
    world.serve("web").await;
    world.until_served(&["web"], secs(60)).await;
    ccm.stop().await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_healthy_cluster_is_green_and_nothing_is_changed() {
    let world = healthy().await;
    put_lease(&world, LEASE, "ccm-0_6f2a");
    put_pod(&world, "ccm-0", "registry.example.org/ccm-mock");
    let (calls, objects) = (world.cloud.calls(), world.server.store().version());
    world.server.log().clear();

    let own_accounts = [&ELECTED[..], &["--use-service-account-credentials"]].concat();
    for flags in [&ELECTED[..], &own_accounts] {
        let report = check_as(&world, User::admin(), flags).await;
        assert_problems("healthy", &report, &[]);
        let table = report.table();
        for line in [
            "Kubernetes v1.",
            "permissions that the enabled controllers need",
            "ccm-0_6f2a leads, by Lease kube-system/cloud-controller-manager",
            "2 nodes, 2 of them found in the cloud",
            "Services of type LoadBalancer: 1 for this provider",
            "what this cluster owns in the cloud can be listed",
            "errors: 0, warnings: 0",
        ] {
            assert!(table.contains(line), "{line}: {table}");
        }
    }

    // Only reads were sent, and reviews, which change nothing.
    assert_eq!(world.cloud.calls().since(&calls).writes(), 0);
    assert_eq!(world.server.store().version(), objects);
    let entries = world.server.log().matching(&Match::any().user_agent(AGENT));
    assert!(entries.len() > 20, "{}", entries.len());
    let sent: BTreeSet<String> = entries
        .iter()
        .filter(|entry| !matches!(&*entry.request.verb, "get" | "list" | "watch"))
        .map(|entry| format!("{} {}", entry.request.verb, entry.request.resource))
        .collect();
    let reviews = ["create selfsubjectaccessreviews", "create subjectaccessreviews"];
    assert_eq!(sent, BTreeSet::from(reviews.map(str::to_owned)));
}

/// What may not be looked for is said without the words of an error: nothing has to be mended.
fn assert_other_managers_were_not_looked_for(report: &CheckReport) {
    for what in ["Leases", "pods"] {
        let line = format!(
            "{what} of other managers were not looked for: this user may not list them in namespace \
             kube-system; `check` with an administrator's kubeconfig looks for them"
        );
        assert!(
            report
                .findings
                .iter()
                .any(|finding| finding.message == line),
            "{report:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn missing_permissions_are_named() {
    let world = TestCluster::with("");
    world.have_nodes(["n1"]).await;
    let user = User::new("ccm", &["system:authenticated"]);
    let role = |resources: &[&str]| {
        let rules = json!({"rules": [
            {"apiGroups": ["*"], "resources": resources, "verbs": ["*"]},
            {"nonResourceURLs": ["*"], "verbs": ["get"]},
        ]});
        Access::Rules(Rule::of_role(&rules).unwrap())
    };
    let missing =
        |part| Expected("PermissionMissing", Severity::Error, part, "apply the files of rbac/");
    let all = ["nodes", "services", "services/status", "events", "selfsubjectaccessreviews"];
    world.server.users().set_access("ccm", role(&all));
    let report = check_as(&world, user.clone(), &FLAGS).await;
    let expected = [missing("cloud-node-controller"), missing("node-route-controller")];
    assert_problems("nodes/status", &report, &expected);
    let message = &problems(&report)[0].message;
    assert_eq!(message, "cloud-node-controller may not: patch nodes/status");

    // The Lease, which this user may not even read.
    let all = [&all[..], &["nodes/status"]].concat();
    world.server.users().set_access("ccm", role(&all));
    let report = check_as(&world, user.clone(), &ELECTED).await;
    let unreadable = Expected(
        "LeaseUnreadable",
        Severity::Warning,
        "kube-system/cloud-controller-manager",
        "rbac/40-leader-election.yaml",
    );
    assert_problems("leases", &report, &[missing("leader election"), unreadable]);
    assert_other_managers_were_not_looked_for(&report);

    // The accounts of the controllers, which have no permissions here.
    let all =
        [&all[..], &["subjectaccessreviews", "serviceaccounts", "serviceaccounts/token"]].concat();
    world.server.users().set_access("ccm", role(&all));
    for account in ["node-controller", "service-controller", "route-controller"] {
        let name = format!("system:serviceaccount:kube-system:{account}");
        world
            .server
            .users()
            .set_access(&name, role(&["nodes", "nodes/status", "events"]));
    }
    let own_accounts = [&FLAGS[..], &["--use-service-account-credentials"]].concat();
    let report = check_as(&world, user.clone(), &own_accounts).await;
    let account = Expected(
        "AccountPermissionMissing",
        Severity::Error,
        "service-controller",
        "ClusterRoleBinding of service-controller",
    );
    assert_problems("accounts", &report, &[account]);
    let all: Vec<_> = all
        .into_iter()
        .filter(|resource| *resource != "subjectaccessreviews")
        .collect();
    world.server.users().set_access("ccm", role(&all));
    let report = check_as(&world, user.clone(), &own_accounts).await;
    let unknown = Expected(
        "AccountPermissionsUnknown",
        Severity::Warning,
        "ServiceAccounts",
        "create subjectaccessreviews",
    );
    assert_problems("reviews of others", &report, &[unknown]);

    // Without the permission for the caches there is nothing to check, and nothing is waited for.
    world
        .server
        .users()
        .set_access("ccm", role(&["selfsubjectaccessreviews"]));
    let report = check_as(&world, user, &FLAGS).await;
    let not_checked = problems(&report)
        .iter()
        .any(|finding| finding.name == "ClusterNotChecked");
    assert!(not_checked, "{}", report.table());
}
