//! Nodes: what upstream's manager would write, from the same instances.

use ccm_testkit::kubelet::NodeSpec;

use crate::stage::Stage;

pub(crate) async fn nodes_get_what_their_instances_are(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    stage.launch(2, "m5.large").await?;
    stage.start(&["--controllers=cloud-node"]).await?;
    let names: Vec<_> = stage.instances.iter().map(|instance| instance.private_dns_name.clone()).collect();
    stage.kubelets.register_all(names.iter().map(NodeSpec::new)).await?;
    stage
        .until("initialised", async || {
            let node = stage.node_api().get(&names[0]).await?;
            Ok(if node.spec.is_some_and(|spec| spec.provider_id.is_some()) { Ok(()) } else { Err("no ID".into()) })
        })
        .await?;
    stage.stop().await
}
