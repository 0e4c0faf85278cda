//! Leader migration beside a holder of the migration lock on Go's client.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context as _;
use ccm_e2e::ccm::{Ccm, Signal};
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_e2e::server::ServerKind;
use ccm_testkit::control_plane::GoProgram;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::case;
use crate::run::{Case, Need};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case {
            needs: &[Need::Go(GoProgram::Elector)],
            ..case!("migrate", REAL, what_migrates_waits_for_the_second_lock_and_ends_with_it)
        },
        case!("stay", REAL, what_another_manager_runs_is_left_to_it),
    ]
}

const REAL: &[ServerKind] = &[ServerKind::Real];
const SHORT_LEASE: [&str; 3] = [
    "--leader-elect-lease-duration=5s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
];
/// What does not run in this time is taken not to run.
const A_WHILE: Duration = Duration::from_secs(3);

/// A file that gives the service controller, by its old name, to a component.
struct Migration {
    directory: tempfile::TempDir,
    lease: String,
}

impl Migration {
    fn of_services_to(s: &Scenario, component: &str) -> anyhow::Result<Self> {
        let migration = Self {
            directory: tempfile::tempdir()?,
            lease: format!("{}-migration", s.lease()),
        };
        let text = format!(
            "apiVersion: controllermanager.config.k8s.io/v1\nkind: LeaderMigrationConfiguration\nleaderName: {}\n\
             controllerLeaders:\n  - name: service-controller\n    component: {component}\n",
            migration.lease
        );
        std::fs::write(migration.directory.path().join("migration.yaml"), text)?;
        Ok(migration)
    }

    async fn start(&self, s: &Scenario, process: &str) -> anyhow::Result<Ccm> {
        let file = self.directory.path().join("migration.yaml");
        let file = format!("--leader-migration-config={}", file.display());
        s.start(process, &[&SHORT_LEASE[..], &["--enable-leader-migration", &file]].concat())
            .await
    }
}

async fn lease(s: &Scenario, name: &str) -> anyhow::Result<Option<Lease>> {
    Ok(Api::<Lease>::namespaced(s.server.client(), "kube-system")
        .get_opt(name)
        .await?)
}

async fn holder(s: &Scenario, name: &str) -> anyhow::Result<String> {
    let lease = lease(s, name)
        .await?
        .with_context(|| format!("no lease {name}"))?;
    Ok(lease
        .spec
        .and_then(|spec| spec.holder_identity)
        .unwrap_or_default())
}

async fn what_migrates_waits_for_the_second_lock_and_ends_with_it(
    s: &Scenario,
) -> anyhow::Result<()> {
    let go = GoProgram::Elector.find().map_err(anyhow::Error::msg)?;
    let migration = Migration::of_services_to(s, "cloud-controller-manager")?;
    let (nodes, service) = (s.names(1), vec![s.name(7)]);
    // Another manager still runs what migrates.
    let kubeconfig = migration.directory.path().join("kubeconfig");
    s.server.write_kubeconfig(&kubeconfig, &s.user("b")).await?;
    let mut args: Vec<OsString> = ["--release", "--identity=go", "--kubeconfig"]
        .map(OsString::from)
        .to_vec();
    args.extend([kubeconfig.into(), format!("--name={}", migration.lease).into()]);
    let mut go = Ccm::start(&go, migration.directory.path(), "go", args).await?;
    go.logged(r#""event":"acquired""#, SOON).await?;

    let mut ours = migration.start(s, "a").await?;
    s.register_initialized(&nodes).await?;
    s.create_all(&service).await?;
    ours.logged("controller runs under the migration lock", SOON)
        .await?;
    ours.logged(
        r#"another process leads lease="kube-system/e2e-migrate-migration" holder="go""#,
        SOON,
    )
    .await?;
    s.stays("nothing is done about services", A_WHILE, || match s.cloud.load_balancers().len() {
        0 => Ok(()),
        some => Err(format!("{some} balancers")),
    })
    .await?;
    // It ends, and ours goes on with what it ran.
    go.signal(Signal::Term).await?;
    s.served(&service, SOON).await?;
    let identity = holder(s, &s.lease()).await?;
    anyhow::ensure!(holder(s, &migration.lease).await? == identity, "one identity for both locks");
    let fillings = ours
        .log()
        .matches(r#"cache filled resource="nodes""#)
        .count();
    anyhow::ensure!(fillings == 1, "nodes were listed {fillings} times");

    // It loses the second lock, and with it everything, so that the first is free at once.
    let leases: Api<Lease> = Api::namespaced(s.server.client(), "kube-system");
    let thief = json!({"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 60}});
    leases
        .patch(&migration.lease, &PatchParams::default(), &Patch::Merge(thief))
        .await?;
    let status = ours.exit(SOON).await?;
    anyhow::ensure!(status.code() == Some(1), "ended with {status}");
    anyhow::ensure!(
        ours.log()
            .contains("migration lock: lease was taken by thief"),
        "{}",
        ours.log()
    );
    anyhow::ensure!(holder(s, &s.lease()).await?.is_empty(), "the main lock is still held");
    Ok(())
}

async fn what_another_manager_runs_is_left_to_it(s: &Scenario) -> anyhow::Result<()> {
    let migration = Migration::of_services_to(s, "kube-controller-manager")?;
    let mut ours = migration.start(s, "a").await?;
    ours.logged(
        "controller does not run: leader migration gives it to another controller manager",
        SOON,
    )
    .await?;
    s.register_initialized(&s.names(1)).await?;
    s.create_all(&[s.name(7)]).await?;
    s.stays("nothing is done about services", A_WHILE, || match s.cloud.load_balancers().len() {
        0 => Ok(()),
        some => Err(format!("{some} balancers")),
    })
    .await?;
    anyhow::ensure!(
        lease(s, &migration.lease).await?.is_none(),
        "a lock was taken that nothing here needs"
    );
    ours.terminate().await
}
