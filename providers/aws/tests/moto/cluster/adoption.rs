//! The adoption report: nothing would change on a cluster that a manager has finished.

use anyhow::{Context as _, ensure};
use ccm_testkit::kubelet::NodeSpec;
use serde_json::{Value, json};

use super::{
    fixture::{ClusterFixture, service},
    nodes::initialized,
};

const FLAGS: [&str; 1] = ["--cluster-cidr=10.244.0.0/16"];

pub(crate) async fn a_healthy_cluster_needs_no_change_and_has_no_defects(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.config = "DefaultLoadBalancerType = nlb\nNLBSecurityGroupMode = Managed\n".into();
    stage.without_session_token();
    stage.launch(2, "m5.large").await?;
    stage.start(&FLAGS).await?;
    let names = stage.instances.iter().map(|made| &made.private_dns_name);
    let names: Vec<String> = names.cloned().collect();
    let specs = names.iter().map(NodeSpec::new);
    stage.kubelets.register_all(specs).await?;
    initialized(stage, &names).await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    stage.served(&["web"]).await?;
    let host = stage.host_name("web").await?.context("a host name")?;
    stage.stop().await?;
    stage.take_requests();

    // It changes nothing, and would change nothing.
    let (code, report) = stage.adoption_report(&FLAGS).await?;
    for request in stage.take_requests() {
        ensure!(request.is_read_or_dry_run(), "{request:?}");
    }
    ensure!(code == Some(0) && report["verdict"] == "same", "{code:?}: {report:#}");
    for part in ["changes", "notCompared", "defects"] {
        ensure!(report[part] == json!([]), "{part}: {report:#}");
    }
    ensure!(report["cloud"] == json!({"findings": [], "notExamined": null}), "{report:#}");

    // What is served is there.
    let served = &report["served"];
    let expected = json!({
        "name": "default/web", "addresses": [host], "ports": ["80/TCP"], "changes": 0,
    });
    ensure!(served["services"] == json!([expected]), "{report:#}");
    ensure!(served["nodes"].as_array().map(Vec::len) == Some(2), "{report:#}");
    let changed = |node: &&Value| node["changes"] != 0;
    let nodes = served["nodes"].as_array().into_iter().flatten();
    ensure!(nodes.filter(changed).count() == 0, "{report:#}");
    ensure!(report["manager"]["provider"] == "aws", "{report:#}");
    Ok(())
}
