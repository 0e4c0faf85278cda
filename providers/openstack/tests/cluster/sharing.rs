//! Load balancers of several Services, of users, and of upstream's manager.

use std::net::SocketAddr;

use anyhow::Context as _;
use kube::api::{Patch, PatchParams};
use openstack_local::api::octavia::LoadBalancerCreate;
use openstack_local::octavia;
use serde_json::{Value, json};

use crate::fixture::{
    CLUSTER, ClusterFixture, INTERNAL, full, service,
    web::{CLIENT, get},
};

const FLAGS: [&str; 1] = ["--controllers=service"];

/// ID of the load balancer that a Service has.
async fn id_of(stage: &ClusterFixture, name: &str) -> anyhow::Result<String> {
    let service = stage.services().get(name).await?;
    let annotations = service.metadata.annotations.unwrap_or_default();
    annotations
        .get(&full("load-balancer-id"))
        .cloned()
        .with_context(|| format!("{name} names no balancer"))
}

/// Makes a load balancer as somebody else would.
async fn make(stage: &ClusterFixture, body: Value) -> anyhow::Result<String> {
    let create: LoadBalancerCreate = serde_json::from_value(body)?;
    Ok(stage
        .cloud
        .change(|state, ctx| octavia::load_balancers::create(state, ctx, create))
        .await?
        .id)
}

// Q04 Q05 Q06 Q07 Q08 Q09
/// Services share a load balancer up to a limit, each with its own ports, until the last one is
/// gone.
// length: one story, told in order
pub(crate) async fn services_share_a_load_balancer(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.nodes(1).await?;
    stage.serve("TCP", 30080).await?;
    stage.serve("TCP", 30081).await?;
    let before = stage.world();
    stage.start(&FLAGS).await?;
    stage.create(&service("one", &[("TCP", 80)], &[])).await?;
    let address = stage.address("one").await?;
    let id = id_of(stage, "one").await?;
    stage
        .create(&service("two", &[("TCP", 81)], &[("load-balancer-id", &id)]))
        .await?;
    anyhow::ensure!(stage.address("two").await? == address, "another address");
    stage
        .holds(&[
            "default/one: tag default/one",
            "default/one: tag default/two",
            "default/one:80: tag default/one",
            "default/one:81: tag default/two",
            "default/one:81: member node-0 30081 in nodes",
        ])
        .await?;
    let vip = stage.vip("one")?;
    for port in [80, 81] {
        stage
            .until("both ports are open", async || {
                let answer = get(CLIENT, SocketAddr::new(vip, port), "/").await;
                Ok(answer.map(drop).map_err(|error| error.to_string()))
            })
            .await?;
    }
    let shared = stage.world();
    // Too many, a port that is taken, and one that must not share.
    let mut collides = service("collides", &[("TCP", 80)], &[("load-balancer-id", &id)]);
    collides["spec"]["ports"][0]["nodePort"] = json!(30180);
    stage.create(&collides).await?;
    stage
        .create(&service(
            "inside",
            &[("TCP", 83)],
            &[("load-balancer-id", &id), (INTERNAL, "true")],
        ))
        .await?;
    stage.event("collides", "", &["max-shared-lb is 2"]).await?;
    stage
        .event("inside", "", &["internal Service cannot share"])
        .await?;
    stage.delete("collides").await?;
    stage.delete("inside").await?;
    stage.vanished(&["collides", "inside"]).await?;
    stage.world().same(&shared).map_err(anyhow::Error::msg)?;
    // The second changes, and the first goes.
    stage
        .change(
            "two",
            json!({"spec": {"ports": [{"name": "tcp-82", "port": 82, "nodePort": 30081}]}}),
        )
        .await?;
    stage
        .holds(&[
            "!default/one:81:",
            "default/one:82: tag default/two",
            "default/one:80: tag default/one",
        ])
        .await?;
    stage.delete("one").await?;
    stage.vanished(&["one"]).await?;
    stage
        .holds(&[
            "!default/one:80:",
            "!default/one: tag default/one",
            "default/one:82: listens TCP",
        ])
        .await?;
    get(CLIENT, SocketAddr::new(vip, 82), "/")
        .await
        .context("the second Service goes on")?;
    stage.delete("two").await?;
    stage.vanished(&["two"]).await?;
    stage
        .settles("nothing is left", |world| world.same(&before))
        .await?;
    stage.stop().await
}

// Q10
/// A load balancer of a user takes a Service, keeps what it has, and stays.
pub(crate) async fn a_users_load_balancer_stays(stage: &mut ClusterFixture) -> anyhow::Result<()> {
    stage.nodes(1).await?;
    let vips = stage.cloud.net.vips.clone();
    let own = json!({"protocol": "TCP", "protocol_port": 8080, "name": "mine"});
    let id =
        make(stage, json!({"name": "mine", "vip_subnet_id": vips, "listeners": [own]})).await?;
    let (external, of) = (stage.cloud.net.external[0].clone(), id.clone());
    let attach = |state: &mut openstack_local::state::CloudState,
                  ctx: &openstack_local::state::RequestContext| {
        let port = state
            .octavia
            .load_balancers
            .get(&of)
            .and_then(|row| row.body.vip_port_id.clone());
        let request = openstack_local::api::neutron::FloatingIpCreate {
            floating_network_id: external,
            port_id: port,
            description: Some("mine".into()),
            ..Default::default()
        };
        openstack_local::neutron::floating_ips::create(state, ctx, request)
    };
    stage.cloud.change(attach).await?;
    stage
        .settles("it is made", |world| {
            world.has(&["mine: is ACTIVE", "mine: floating ip says mine"])
        })
        .await?;
    let before = stage.world();
    stage.start(&FLAGS).await?;
    stage
        .create(&service("web", &[("TCP", 80)], &[("load-balancer-id", &id)]))
        .await?;
    stage.served(&["web"]).await?;
    stage
        .holds(&["mine: tag default/web", "mine:80: tag default/web", "mine:8080: listens TCP"])
        .await?;
    let mut taken = service("taken", &[("TCP", 8080)], &[("load-balancer-id", &id)]);
    taken["spec"]["ports"][0]["nodePort"] = json!(30099);
    stage.create(&taken).await?;
    stage
        .event("taken", "", &["the listener port TCP 8080 already exists"])
        .await?;
    stage.delete("taken").await?;
    stage.delete("web").await?;
    stage.vanished(&["web", "taken"]).await?;
    stage
        .settles("it is as it was", |world| world.same(&before))
        .await?;
    stage.stop().await
}

/// Has a Service show the address of a balancer, as it was left by who served it before.
async fn was_served(stage: &ClusterFixture, name: &str, balancer: &str) -> anyhow::Result<()> {
    let vip = stage.cloud.peek(|state| {
        let mut balancers = state.octavia.load_balancers.iter();
        balancers
            .find(|row| row.body.name == balancer)
            .and_then(|row| row.body.vip_address.clone())
    });
    let status = Patch::Merge(
        json!({"status": {"loadBalancer": {"ingress": [{"ip": vip, "ipMode": "VIP"}]}}}),
    );
    stage
        .services()
        .patch_status(name, &PatchParams::default(), &status)
        .await?;
    Ok(())
}

/// A load balancer that upstream's manager made is taken over as it is: by its name, or by the name
/// of old times.
// length: one story, told in order
pub(crate) async fn what_upstream_made_is_taken_over(
    stage: &mut ClusterFixture,
) -> anyhow::Result<()> {
    stage.nodes(2).await?;
    let mut made = Vec::new();
    for (name, port) in [("web", 80), ("old", 81)] {
        let created = stage
            .create(&service(name, &[("TCP", port)], &[(INTERNAL, "true")]))
            .await?;
        let uid = created.metadata.uid.context("a UID")?.replace('-', "");
        let tag = format!("kube_service_{CLUSTER}_default_{name}");
        let balancer = if name == "old" {
            format!("a{uid}").chars().take(32).collect()
        } else {
            tag.clone()
        };
        let tags = if name == "old" {
            json!([])
        } else {
            json!([tag])
        };
        let members = stage.servers.iter().map(|server| {
            json!({"name": server.name, "address": server.ip, "protocol_port": 30000 + port, "subnet_id": stage.cloud.net.nodes})
        });
        let pool = json!({"name": format!("pool_0_{balancer}"), "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN",
                          "members": members.collect::<Vec<_>>()});
        let listener = json!({"name": format!("listener_0_{balancer}"), "protocol": "TCP", "protocol_port": port,
                              "connection_limit": -1, "allowed_cidrs": ["0.0.0.0/0"], "tags": tags,
                              "default_pool": pool});
        let body = json!({
            "name": balancer,
            "description": format!("Kubernetes external service default/{name} from cluster {CLUSTER}"),
            "provider": "amphora",
            "tags": tags,
            "vip_subnet_id": stage.cloud.net.vips,
            "listeners": [listener],
        });
        made.push((name, make(stage, body).await?));
        was_served(stage, name, &balancer).await?;
    }
    let objects = |stage: &ClusterFixture| {
        stage.cloud.peek(|state| {
            let listeners: Vec<_> = state
                .octavia
                .listeners
                .iter()
                .map(|row| row.body.id.clone())
                .collect();
            let pools: Vec<_> = state
                .octavia
                .pools
                .iter()
                .map(|row| row.body.id.clone())
                .collect();
            let members: Vec<_> = state
                .octavia
                .members
                .iter()
                .map(|row| row.body.id.clone())
                .collect();
            (listeners, pools, members)
        })
    };
    let before = objects(stage);
    stage.start(&FLAGS).await?;
    for (name, id) in &made {
        let is = async || {
            let named = id_of(stage, name).await;
            Ok(named
                .map_err(|error| error.to_string())
                .and_then(|named| if named == *id { Ok(()) } else { Err(named) }))
        };
        stage.until(&format!("{name} has its balancer"), is).await?;
    }
    anyhow::ensure!(objects(stage) == before, "what was there was made anew");
    let writes = stage.take_writes();
    anyhow::ensure!(writes.iter().all(|write| write.starts_with("PUT ")), "{writes:?}");
    stage.delete("web").await?;
    stage.delete("old").await?;
    stage.vanished(&["web", "old"]).await?;
    let left = stage
        .cloud
        .peek(|state| state.octavia.load_balancers.len() + state.octavia.members.len());
    anyhow::ensure!(left == 0, "{left} objects are left");
    stage.stop().await
}
