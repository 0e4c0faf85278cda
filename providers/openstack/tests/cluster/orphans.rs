//! What is left in the cloud when a Service goes without its balancer, and the subcommand that
//! finds and deletes it.

use std::collections::BTreeSet;

use anyhow::ensure;
use ccm_e2e::fixture::orphans;
use serde_json::json;

use crate::fixture::{ClusterFixture, INTERNAL, service};

const FLAGS: [&str; 1] = ["--controllers=service"];

pub(crate) async fn what_was_leaked_is_found_and_deleted(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.config.balancer = "manage-security-groups = true\n".into();
    stage.nodes(1).await?;
    let nothing = stage.world();
    stage.start(&FLAGS).await?;
    stage
        .create(&service("web", &[("TCP", 80)], &[(INTERNAL, "true")]))
        .await?;
    stage.served(&["web"]).await?;
    stage
        .create(&service("old", &[("TCP", 81)], &[(INTERNAL, "true")]))
        .await?;
    stage.served(&["old"]).await?;
    stage.stop().await?;
    // Somebody takes the finalizer off while nobody watches.
    stage
        .change("old", json!({"metadata": {"finalizers": null}}))
        .await?;
    stage.delete("old").await?;
    stage.vanished(&["old"]).await?;
    stage.take_requests();

    let (code, report) = stage.orphans(&[]).await?;
    let everything = BTreeSet::from(["load balancer", "security group"]);
    ensure!(
        code == Some(2) && orphans(&report, "old", "left")? == everything,
        "{code:?}: {report:#}"
    );
    let (code, _) = stage.orphans(&["--delete", "--confirm=another"]).await?;
    ensure!(code == Some(1), "{code:?}");
    let (code, report) = stage.orphans(&["--delete", "--confirm=test"]).await?;
    ensure!(
        code == Some(2) && orphans(&report, "old", "too-young")? == everything,
        "{code:?}: {report:#}"
    );
    let writes = stage.take_writes();
    ensure!(writes.is_empty(), "{writes:?}");

    let (code, report) = stage
        .orphans(&["--delete", "--confirm=test", "--orphan-minimum-age=0s"])
        .await?;
    ensure!(
        code == Some(0) && orphans(&report, "old", "deleted")? == everything,
        "{code:?}: {report:#}"
    );
    let (code, report) = stage.orphans(&[]).await?;
    ensure!(
        code == Some(0) && report["orphans"] == json!([]) && report["owned"] != 0,
        "{code:?}: {report:#}"
    );

    // What the other Service has was left alone, and it is all that there is.
    stage
        .holds(&["default/web:80: listens TCP", "!default/old"])
        .await?;
    stage.start(&FLAGS).await?;
    stage.delete("web").await?;
    stage.vanished(&["web"]).await?;
    stage
        .settles("nothing is left", |world| world.same(&nothing))
        .await?;
    stage.stop().await
}
