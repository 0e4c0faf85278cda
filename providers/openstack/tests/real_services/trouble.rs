//! What goes wrong in the cloud: quotas, hypervisors, load balancers, whole services, tokens.

use anyhow::Context as _;
use ccm_testkit::kubelet::Ready;
use http::Method;
use serde_json::{Value, json};

use crate::{
    cloud::{RealCloud, User, id_of},
    fixture::{ClusterFixture, SOON, service, snapshot::Lists},
    services::FLAGS,
};

/// A quota that is used up is told, and the load balancer is made when there is room.
pub(crate) async fn a_quota_that_is_used_up_is_told(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    let cloud = stage.cloud;
    stage.node(|spec| spec).await?;
    let before = stage.world().await?;
    stage.start(&FLAGS).await?;
    // First Octavia's quota, then Neutron's.
    set_quota(cloud, "load-balancer", json!({"load_balancer": 0})).await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    stage
        .event("web", "OpenStackQuotaExceeded", &["Load Balancer"])
        .await?;
    set_quota(cloud, "network", json!({"floatingip": 0})).await?;
    set_quota(cloud, "load-balancer", json!({"load_balancer": -1})).await?;
    stage
        .annotate("web", &[("connection-limit", "5".into())])
        .await?;
    stage
        .event("web", "OpenStackQuotaExceeded", &["floatingip"])
        .await?;
    set_quota(cloud, "network", json!({"floatingip": -1})).await?;
    stage
        .annotate("web", &[("connection-limit", "6".into())])
        .await?;
    stage.served(&["web"]).await?;
    stage.holds(&["default/web:80: at most 6"]).await?;
    stage.gone(&["web"], &before).await?;
    stage.stop().await
}

async fn set_quota(cloud: &RealCloud, service: &str, quota: Value) -> anyhow::Result<()> {
    let path = if service == "network" {
        "/v2.0/quotas"
    } else {
        "/v2/lbaas/quotas"
    };
    let path = format!("{path}/{}", cloud.id("project"));
    cloud
        .must(User::Admin, Method::PUT, service, &path, Some(json!({"quota": quota})))
        .await?;
    Ok(())
}

/// Disables every hypervisor, or enables it again.
async fn hypervisors(cloud: &RealCloud, status: &str) -> anyhow::Result<()> {
    let path = "/os-services?binary=nova-compute";
    for service in cloud.list("compute", path, "services").await? {
        let path = format!("/os-services/{}", id_of(&service));
        let body = json!({"status": status});
        cloud
            .must(User::Admin, Method::PUT, "compute", &path, Some(body))
            .await?;
    }
    Ok(())
}

/// Octavia cannot boot an amphora: the load balancer that fails is told and made anew.
pub(crate) async fn a_load_balancer_that_fails_is_made_anew(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.node(|spec| spec).await?;
    let before = stage.world().await?;
    stage.start(&FLAGS).await?;
    hypervisors(stage.cloud, "disabled").await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    let told = stage
        .event("web", "LoadBalancerCreateFailed", &["could not be created"])
        .await;
    hypervisors(stage.cloud, "enabled").await?;
    told?;
    stage.served(&["web"]).await?;
    stage
        .holds(&["default/web: is ACTIVE", "default/web:80: listens TCP"])
        .await?;
    stage.gone(&["web"], &before).await?;
    stage.stop().await
}

/// The load balancer of a Service.
async fn balancer(cloud: &RealCloud, service: &str) -> anyhow::Result<Value> {
    let lists = Lists::read(cloud).await?;
    let end = format!("_{service}");
    let is = |row: &&Value| {
        row["name"]
            .as_str()
            .is_some_and(|name| name.ends_with(&end))
    };
    lists
        .balancers()
        .iter()
        .find(is)
        .cloned()
        .with_context(|| format!("{service} has none"))
}

async fn set_status(cloud: &RealCloud, id: &str, status: &str) -> anyhow::Result<()> {
    let set = format!("provisioning_status='{status}'");
    cloud
        .sql(&format!("UPDATE octavia.load_balancer SET {set} WHERE id='{id}'"))
        .await
}

/// A load balancer that has served is in ERROR. Octavia does not let the project's owner fail it
/// over, which is told with the command for an administrator. After it, the Service goes on.
pub(crate) async fn a_load_balancer_in_error_is_left_to_the_administrator(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    let cloud = stage.cloud;
    stage.balancer = "failover-on-error = true".into();
    stage.node(|spec| spec).await?;
    let before = stage.world().await?;
    stage.start(&FLAGS).await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    stage.create(&service("other", &[("TCP", 81)], &[])).await?;
    stage.served(&["web", "other"]).await?;
    let (found, shown) = (balancer(cloud, "web").await?, stage.ingress("web").await?);
    let id = id_of(&found);
    set_status(cloud, id, "ERROR").await?;
    stage
        .annotate("web", &[("connection-limit", "5".into())])
        .await?;
    let command = format!("openstack loadbalancer failover {id}");
    stage
        .event("web", "", &["is in error", "does not allow this user", &command])
        .await?;
    // It is neither deleted nor made anew, and the other Service does not wait.
    stage
        .annotate("other", &[("connection-limit", "7".into())])
        .await?;
    stage
        .holds(&["default/other:81: at most 7", "default/web: is ERROR"])
        .await?;
    let path = format!("/v2/lbaas/loadbalancers/{id}/failover");
    cloud
        .must(User::Admin, Method::PUT, "load-balancer", &path, None)
        .await?;
    stage
        .holds(&["default/web: is ACTIVE", "default/web:80: at most 5"])
        .await?;
    anyhow::ensure!(stage.ingress("web").await? == shown, "another address than {shown}");
    anyhow::ensure!(balancer(cloud, "web").await?["id"] == found["id"], "another load balancer");
    // One in ERROR can be deleted.
    set_status(cloud, id, "ERROR").await?;
    stage.gone(&["web", "other"], &before).await?;
    stage.stop().await
}

/// A load balancer that stays in PENDING_UPDATE blocks its Service, and no other. Once it is ready,
/// its Service gets what it asked for.
pub(crate) async fn a_load_balancer_that_is_stuck_blocks_no_other(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    let cloud = stage.cloud;
    stage.node(|spec| spec).await?;
    let before = stage.world().await?;
    stage.start(&FLAGS).await?;
    stage.create(&service("stuck", &[("TCP", 80)], &[])).await?;
    stage.create(&service("other", &[("TCP", 81)], &[])).await?;
    stage.served(&["stuck", "other"]).await?;
    let found = balancer(cloud, "stuck").await?;
    set_status(cloud, id_of(&found), "PENDING_UPDATE").await?;
    stage
        .annotate("stuck", &[("connection-limit", "5".into())])
        .await?;
    stage
        .annotate("other", &[("connection-limit", "7".into())])
        .await?;
    stage.node(|spec| spec).await?;
    stage
        .holds(&[
            "default/other:81: at most 7",
            "default/other:81: member node-1 30081 in nodes",
            "default/stuck: is PENDING_UPDATE",
            "default/stuck:80: at most -1",
        ])
        .await?;
    stage.delete("other").await?;
    stage.vanished(&["other"]).await?;
    set_status(cloud, id_of(&found), "ACTIVE").await?;
    stage
        .holds(&[
            "default/stuck:80: at most 5",
            "default/stuck:80: member node-1 30080 in nodes",
            // Octavia's worker has finished, and does not set it once more.
            "default/stuck: is ACTIVE",
        ])
        .await?;
    set_status(cloud, id_of(&found), "PENDING_UPDATE").await?;
    stage.delete("stuck").await?;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    stage.holds(&["default/stuck: is PENDING_UPDATE"]).await?;
    set_status(cloud, id_of(&found), "ACTIVE").await?;
    stage.vanished(&["stuck"]).await?;
    stage
        .settles("nothing is left", SOON, |world| world.same(&before))
        .await?;
    stage.stop().await
}

/// Each service stops and starts. What is asked for meanwhile comes afterwards; nothing is deleted,
/// also no Node whose kubelet is silent.
pub(crate) async fn services_that_stop_and_start_lose_nothing(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    let cloud = stage.cloud;
    for _ in 0..2 {
        stage.node(|spec| spec).await?;
    }
    let before = stage.world().await?;
    stage
        .start(&["--controllers=cloud-node,cloud-node-lifecycle,service"])
        .await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    stage.served(&["web"]).await?;
    let shown = stage.ingress("web").await?;
    let limit =
        |at: usize| (format!("{}", 10 + at), format!("default/web:80: at most {}", 10 + at));
    for (at, name) in ["octavia", "octavia-worker", "neutron", "keystone", "nova"]
        .iter()
        .enumerate()
    {
        cloud.service("stop", name).await?;
        stage.kubelets.set_ready("node-1", Ready::Unknown).await?;
        let (asked, line) = limit(at);
        stage
            .annotate("web", &[("connection-limit", asked.into())])
            .await?;
        // Enough for some attempts, and several looks at the silent node.
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        let there = stage.node_api().get_opt("node-1").await?.is_some();
        let kept = stage.ingress("web").await? == shown;
        cloud.service("start", name).await?;
        anyhow::ensure!(there, "the node was deleted while {name} was stopped");
        anyhow::ensure!(kept, "the address went while {name} was stopped");
        stage
            .holds(&[&*line, "default/web: is ACTIVE"])
            .await
            .context(*name)?;
        stage.kubelets.set_ready("node-1", Ready::True).await?;
    }
    // Afterwards everything works as before.
    stage.node(|spec| spec).await?;
    stage
        .holds(&["default/web:80: member node-2 30080 in nodes"])
        .await?;
    stage.gone(&["web"], &before).await?;
    stage.stop().await
}

/// Tokens are revoked while the process runs: it gets others, and no request is lost.
pub(crate) async fn revoked_tokens_are_renewed(
    stage: &mut ClusterFixture<'_>,
) -> anyhow::Result<()> {
    stage.node(|spec| spec).await?;
    let before = stage.world().await?;
    stage.start(&FLAGS).await?;
    stage.create(&service("web", &[("TCP", 80)], &[])).await?;
    stage.served(&["web"]).await?;
    for limit in ["5", "6"] {
        stage.cloud.revoke_tokens().await?;
        stage
            .annotate("web", &[("connection-limit", limit.into())])
            .await?;
        stage
            .holds(&[format!("default/web:80: at most {limit}")])
            .await?;
    }
    stage.gone(&["web"], &before).await?;
    stage.stop().await
}
