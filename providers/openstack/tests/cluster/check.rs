//! The subcommand `check`, with the permissions of `rbac/` alone.

use anyhow::ensure;
use serde_json::Value;

use crate::fixture::{ClusterFixture, INTERNAL, service};

/// Without it, routes would need `--cluster-cidr`.
const FLAGS: [&str; 1] = ["--configure-cloud-routes=false"];

/// The messages of this severity in a report.
fn messages(report: &Value, severity: &str) -> String {
    let findings = report["findings"].as_array().into_iter().flatten();
    findings
        .filter(|finding| finding["severity"] == severity)
        .map(|finding| format!("{}: {}", finding["area"], finding["message"]))
        .collect::<Vec<_>>()
        .join("\n")
}

pub(crate) async fn what_a_start_would_meet_is_known_before(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.nodes(2).await?;
    stage
        .create(&service("web", &[("TCP", 80)], &[(INTERNAL, "true")]))
        .await?;
    stage.take_requests();
    let (code, report) = stage.report("check", &FLAGS).await?;
    ensure!(code == Some(0), "{code:?}: {report:#}");
    let fine = messages(&report, "ok");
    ensure!(
        fine.contains("2 of them found in the cloud") && fine.contains("Kubernetes v"),
        "{report:#}"
    );
    let writes = stage.take_writes();
    ensure!(writes.is_empty(), "{writes:?}");

    stage.config.password = Some("wrong".to_owned());
    let (code, report) = stage.report("check", &FLAGS).await?;
    let errors = messages(&report, "error");
    ensure!(code == Some(1) && errors.contains("\"cloud\": "), "{code:?}: {report:#}");
    let finding = &report["findings"][0];
    ensure!(finding["finding"] == "PasswordRejected", "{report:#}");
    ensure!(
        finding["advice"]
            .as_str()
            .is_some_and(|advice| advice.contains("username")),
        "{report:#}"
    );
    stage.config.password = None;
    Ok(())
}
