//! A load balancer that its Service lets go of, and that another one adopts.

use std::{collections::BTreeSet, net::SocketAddr};

use anyhow::{Context as _, ensure};
use ccm_core::k8s::well_known::{ANNOTATION_ADOPT, ANNOTATION_RETAIN};
use ccm_e2e::fixture::orphans;
use kube::ResourceExt as _;
use serde_json::json;

use crate::fixture::{
    ClusterFixture, INTERNAL, full, service,
    web::{CLIENT, get},
};

const FLAGS: [&str; 1] = ["--controllers=service"];

/// Every look of a client is answered, from before the first Service goes until the second one is
/// served.
// length: a move is one story, step by step
pub(crate) async fn a_load_balancer_moves_while_it_serves(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.config.balancer = "manage-security-groups = true\n".into();
    stage.nodes(2).await?;
    stage.serve("TCP", 30080).await?;
    let nothing = stage.world();
    stage.start(&FLAGS).await?;
    let ports = [("TCP", 80)];
    let web = service("web", &ports, &[(INTERNAL, "true"), (ANNOTATION_RETAIN, "true")]);
    stage.create(&web).await?;
    let at = SocketAddr::new(stage.address("web").await?, 80);
    stage
        .until("an answer", async || {
            Ok(get(CLIENT, at, "/")
                .await
                .map(drop)
                .map_err(|error| error.to_string()))
        })
        .await?;
    let served = stage.services().get("web").await?;
    let id = served.annotations()[&full("load-balancer-id")].clone();

    // Its Service goes, and it is nobody's.
    stage.delete("web").await?;
    stage.vanished(&["web"]).await?;
    stage
        .event("web", "RetainedLoadBalancer", &[&id, "1 listeners"])
        .await?;
    get(CLIENT, at, "/").await.context("it is kept")?;
    let (code, report) = stage.orphans(&[]).await?;
    ensure!(code == Some(0) && report["owned"] == json!(0), "{code:?}: {report:#}");

    // Another Service gets it.
    let shop = service("shop", &ports, &[(INTERNAL, "true"), (ANNOTATION_ADOPT, &id)]);
    stage.create(&shop).await?;
    stage
        .until("shop has the address of web", async || {
            get(CLIENT, at, "/").await.context("while it is adopted")?;
            let ingress = stage.ingress("shop").await?;
            let ip = ingress.and_then(|ingress| ingress.ip);
            if ip.as_deref() == Some(&*at.ip().to_string()) {
                return Ok(Ok(()));
            }
            Ok(Err(format!("{ip:?}: {:#?}", stage.events("shop").await?)))
        })
        .await?;
    get(CLIENT, at, "/").await.context("it is adopted")?;
    stage
        .holds(&["default/shop:80: listens TCP", "!default/web:80"])
        .await?;
    // Only the former Service's security group is not needed any more.
    stage
        .until("the former security group is an orphan", async || {
            let (code, report) = stage.orphans(&[]).await?;
            if code != Some(2) {
                return Ok(Err(format!("{code:?}: {report:#}")));
            }
            ensure!(orphans(&report, "web", "left")? == BTreeSet::from(["security group"]));
            Ok(Ok(()))
        })
        .await?;
    let (code, report) = stage
        .orphans(&["--delete", "--confirm=test", "--orphan-minimum-age=0s"])
        .await?;
    ensure!(code == Some(0), "{code:?}: {report:#}");
    get(CLIENT, at, "/")
        .await
        .context("the former group is gone")?;

    // It goes with its new Service.
    stage.delete("shop").await?;
    stage.vanished(&["shop"]).await?;
    stage
        .settles("nothing is left", |world| world.same(&nothing))
        .await?;
    stage.stop().await
}
