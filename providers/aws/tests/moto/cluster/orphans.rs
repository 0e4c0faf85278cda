//! What is left in AWS when a Service goes without its balancer, and the subcommand that finds and
//! deletes it.

use std::collections::BTreeSet;

use anyhow::ensure;
use ccm_e2e::fixture::orphans;
use serde_json::json;

use super::fixture::{ClusterFixture, service};

const FLAGS: [&str; 1] = ["--controllers=service"];

pub(crate) async fn what_was_leaked_is_found_and_deleted(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.config = "DefaultLoadBalancerType = nlb\nAnnotationDialect = extended\nNLBSecurityGroupMode = Managed\n".into();
    stage.nodes(1).await?;
    let nothing = stage.world().await?;
    stage.start(&FLAGS).await?;
    for (name, port) in [("web", 80), ("old", 81)] {
        stage.create(&service(name, &[("TCP", port)], &[])).await?;
    }
    stage.served(&["web", "old"]).await?;
    stage.stop().await?;
    // Somebody takes the finalizer off while nobody watches.
    stage
        .change("old", json!({"metadata": {"finalizers": null}}))
        .await?;
    stage.delete("old").await?;
    stage.vanished(&["old"]).await?;
    stage.take_requests();

    let (code, report) = stage.orphans(&[]).await?;
    let everything = BTreeSet::from(["load balancer", "security group", "target group"]);
    ensure!(
        code == Some(2) && orphans(&report, "old", "left")? == everything,
        "{code:?}: {report:#}"
    );
    // The tags have the cluster's ID, not the name by flag.
    let (code, _) = stage.orphans(&["--delete", "--confirm=kubernetes"]).await?;
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

    // What the other Service has was left alone, so that nothing is to be made again; and it is all
    // that there is.
    stage.take_requests();
    stage.start(&FLAGS).await?;
    stage.delete("web").await?;
    stage.vanished(&["web"]).await?;
    let writes = stage.take_writes();
    ensure!(writes.iter().all(|write| !write.starts_with("Create")), "{writes:?}");
    stage
        .settles("nothing is left", |world| world.same(&nothing))
        .await
        .map(drop)
}
