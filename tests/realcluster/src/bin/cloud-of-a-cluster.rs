//! The local cloud for a real cluster: its networks, and a server for each node.
//!
//! Arguments: the address to listen on, the file to write the cloud config to, and the nodes, each
//! `NAME=ADDRESS`. Serves until it is killed.

use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use openstack_local::api::neutron::{FixedIpRequest, NetworkCreate, PortCreate, SubnetCreate};
use openstack_local::api::nova::{NetworkRequest, Networks, ServerCreate};
use openstack_local::nova::Microversion;
use openstack_local::server::{LocalCloud, Settings};
use openstack_local::state::{ApiError, CloudState, RequestContext};
use openstack_local::{neutron, nova};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Network of the nodes.
const NODES: &str = "10.250.0.0/24";
/// Network of load balancers' addresses: on loopback, where the cloud's proxies can listen.
const VIPS: &str = "127.20.0.0/24";

/// What the manager has to know of the networks. There is no router: with one, upstream's manager
/// would end, because its manifests name no network of the pods.
struct Layout {
    vips: String,
    nodes: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().context("an argument is missing");
    let (listen, config): (SocketAddr, String) = (next()?.parse()?, next()?);
    let servers = arguments
        .map(|argument| {
            let (name, address) = argument.split_once('=').context("a node is NAME=ADDRESS")?;
            Ok((name.to_owned(), address.parse()?))
        })
        .collect::<anyhow::Result<Vec<(String, IpAddr)>>>()?;
    let listener = TcpListener::bind(listen).await.context("listen")?;
    let local = LocalCloud::in_memory(Settings::default());
    let layout = lay_out(&local, &servers).await?;
    let password = local
        .credentials()
        .password("demo")
        .context("the user demo")?
        .expose();
    let written = format!(
        "[Global]\nauth-url = http://{listen}/identity/v3\nusername = demo\npassword = \"{password}\"\n\
         user-domain-id = default\ntenant-name = demo\ntenant-domain-id = default\nregion = RegionOne\n\
         [LoadBalancer]\nsubnet-id = {}\nmember-subnet-id = {}\ninternal-lb = true\ncreate-monitor = true\n\
         monitor-delay = 1s\nmonitor-timeout = 1s\nmonitor-max-retries = 1\n",
        layout.vips, layout.nodes
    );
    std::fs::write(&config, written).with_context(|| format!("write {config}"))?;
    local
        .serve(listener, CancellationToken::new())
        .await
        .context("serve the cloud")
}

/// Makes networks and servers, as an administrator in the project `demo`.
async fn lay_out(local: &LocalCloud, servers: &[(String, IpAddr)]) -> anyhow::Result<Layout> {
    let cloud = local.cloud();
    let project = cloud.store.peek(|state| {
        let mut projects = state.keystone.projects.iter();
        projects
            .find(|project| project.name == "demo")
            .map(|project| project.id.clone())
    });
    let ctx = RequestContext {
        now: cloud.clock.now(),
        project: project.context("the project demo")?.into(),
        user: "operator".into(),
        admin: true,
    };
    let made = cloud.store.change(|state| make(state, &ctx, servers)).await;
    made.map_err(|error| anyhow::anyhow!("{} {}: {}", error.status, error.kind, error.message))
}

fn make(
    state: &mut CloudState,
    ctx: &RequestContext,
    servers: &[(String, IpAddr)],
) -> Result<Layout, ApiError> {
    let mut network = |name: &str, cidr: &str| {
        let request = NetworkCreate { name: Some(name.into()), ..NetworkCreate::default() };
        let network = neutron::networks::create(state, ctx, request)?.id;
        let request = SubnetCreate {
            network_id: network.clone(),
            name: Some(name.into()),
            ip_version: 4,
            cidr: Some(cidr.into()),
            ..SubnetCreate::default()
        };
        Ok((network, neutron::subnets::create(state, ctx, request)?.id))
    };
    let (network_of_nodes, nodes) = network("nodes", NODES)?;
    let (_, vips) = network("vips", VIPS)?;
    for (name, address) in servers {
        let fixed = FixedIpRequest { subnet_id: Some(nodes.clone()), ip_address: Some(*address) };
        let request = PortCreate {
            network_id: network_of_nodes.clone(),
            fixed_ips: Some(vec![fixed]),
            ..PortCreate::default()
        };
        let port = neutron::ports::create(state, ctx, request)?.id;
        let on = NetworkRequest { port: Some(port), ..NetworkRequest::default() };
        let request = ServerCreate {
            name: name.clone(),
            flavor_ref: "2".to_owned(),
            networks: Some(Networks::These(vec![on])),
            ..ServerCreate::default()
        };
        nova::create::create(state, ctx, Microversion(60), &request)?;
    }
    Ok(Layout { vips, nodes })
}
