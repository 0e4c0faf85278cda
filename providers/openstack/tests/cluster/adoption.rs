//! The adoption report: nothing would change on a cluster that a manager has finished.

use anyhow::ensure;
use ccm_testkit::kubelet::NodeSpec;
use serde_json::json;

use crate::{
    fixture::{ClusterFixture, INTERNAL, service},
    nodes::initialized,
};

const FLAGS: [&str; 2] = ["--configure-cloud-routes=true", "--cluster-cidr=10.244.0.0/16"];
const NODES: [&str; 2] = ["node-0", "node-1"];

pub(crate) async fn a_healthy_cluster_needs_no_change_and_has_no_defects(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    // First, a manager that has finished.
    for name in NODES {
        stage.make(name).await?;
    }
    stage.start(&FLAGS).await?;
    let spec = |(at, name)| NodeSpec::new(name).pod_cidr(format!("10.244.{at}.0/24"));
    stage
        .kubelets
        .register_all(NODES.into_iter().enumerate().map(spec))
        .await?;
    initialized(stage, &NODES).await?;
    stage
        .create(&service("web", &[("TCP", 80)], &[(INTERNAL, "true")]))
        .await?;
    stage.served(&["web"]).await?;
    let routes = ["router: 10.244.0.0/24 via node-0", "router: 10.244.1.0/24 via node-1"];
    stage.holds(&routes).await?;
    let address = stage.address("web").await?;
    stage.stop().await?;
    stage.take_requests();

    // Next, the comparison, which changes nothing and would change nothing.
    let (code, report) = stage.adoption_report(&FLAGS).await?;
    let writes = stage.take_writes();
    ensure!(writes.is_empty(), "{writes:?}");
    ensure!(code == Some(0) && report["verdict"] == "same", "{code:?}: {report:#}");
    for part in ["changes", "notCompared", "defects"] {
        ensure!(report[part] == json!([]), "{part}: {report:#}");
    }
    ensure!(report["cloud"] == json!({"findings": [], "notExamined": null}), "{report:#}");

    // Last, what is served.
    let served = &report["served"];
    let web = json!({
        "name": "default/web", "addresses": [address], "ports": ["80/TCP"], "changes": 0,
    });
    ensure!(served["services"] == json!([web]), "{report:#}");
    let nodes = served["nodes"].as_array().into_iter().flatten();
    let names: Vec<_> = nodes
        .filter(|node| node["changes"] == 0 && node["initialized"] == true)
        .filter_map(|node| node["name"].as_str())
        .collect();
    ensure!(names == NODES, "{report:#}");
    ensure!(served["routes"] == 2, "{report:#}");
    ensure!(report["manager"]["provider"] == "openstack", "{report:#}");

    // A change behind the manager's back is a difference, so that the above says something.
    stage
        .change(
            "web",
            json!({"spec": {"ports": [{"name": "tcp-81", "port": 81, "nodePort": 30081}]}}),
        )
        .await?;
    let (code, report) = stage.adoption_report(&FLAGS).await?;
    ensure!(code == Some(2) && report["verdict"] == "different", "{code:?}: {report:#}");
    ensure!(report["served"]["services"][0]["changes"] != 0, "{report:#}");
    Ok(())
}
