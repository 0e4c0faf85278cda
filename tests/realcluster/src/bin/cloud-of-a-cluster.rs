//! The local cloud for a real cluster: its networks, and a server for each node.
//!
//! Arguments: `--floating-ips` if load balancers have such addresses, then the address to listen on,
//! the file to write the cloud config to, and the nodes, each `NAME=ADDRESS`. Serves until it is
//! killed.
//!
//! With floating IPs, everything in this network namespace and behind it reaches load balancers at
//! addresses of 10.251.0.0/24, which nftables translates, as the router in a real cloud does. The
//! servers that are named in the file `deleted-servers` beside the cloud config are deleted.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use openstack_local::api::neutron::{
    FixedIpRequest, GatewayRequest, InterfaceRequest, NetworkCreate, PortCreate, RouterCreate,
    SubnetCreate,
};
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
/// Network of floating IPs.
const OUTSIDE: &str = "10.251.0.0/24";
/// How often floating IPs and servers to delete are looked for.
const LOOK: Duration = Duration::from_millis(200);

/// Where floating IPs are translated: for nodes and pods, and for programs beside the cloud.
const TRANSLATION: &str = "table ip floating {\n\
     map addresses { type ipv4_addr : ipv4_addr; }\n\
     chain in { type nat hook prerouting priority dstnat; dnat to ip daddr map @addresses; }\n\
     chain out { type nat hook output priority -100; dnat to ip daddr map @addresses; }\n\
     }\n";

/// What the manager has to know of the networks.
struct Layout {
    vips: String,
    nodes: String,
    /// The network of floating IPs. Without them there is no router: with one, upstream's manager
    /// would end, because its manifests name no network of the pods.
    outside: Option<String>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // First, what it is told.
    let mut arguments = std::env::args().skip(1).peekable();
    let has_floating_ips = arguments
        .next_if(|argument| argument == "--floating-ips")
        .is_some();
    let mut next = || arguments.next().context("an argument is missing");
    let (listen, config): (SocketAddr, String) = (next()?.parse()?, next()?);
    let servers = arguments
        .map(|argument| {
            let (name, address) = argument.split_once('=').context("a node is NAME=ADDRESS")?;
            Ok((name.to_owned(), address.parse()?))
        })
        .collect::<anyhow::Result<Vec<(String, IpAddr)>>>()?;

    // Next, the cloud and what the manager is told of it.
    let listener = TcpListener::bind(listen).await.context("listen")?;
    let local = LocalCloud::in_memory(Settings::default());
    let operator = operator(&local)?;
    let layout = lay_out(&local, &operator, &servers, has_floating_ips).await?;
    if layout.outside.is_some() {
        nft(TRANSLATION)?;
    }
    let written = cloud_config(&local, listen, &layout)?;
    std::fs::write(&config, written).with_context(|| format!("write {config}"))?;

    // Last, both serve until the end.
    let deleted_servers = Path::new(&config).with_file_name("deleted-servers");
    let cloud = local.cloud().clone();
    let serve = async {
        let served = local.serve(listener, CancellationToken::new()).await;
        served.context("serve the cloud")
    };
    let operate = async {
        let mut translated = BTreeMap::new();
        loop {
            tokio::time::sleep(LOOK).await;
            let attached = cloud.store.peek(|state| {
                let attached = neutron::floating_ips::of_ports(state).into_iter();
                attached
                    .map(|(_, fixed, floating)| (floating, fixed))
                    .collect()
            });
            if layout.outside.is_some() && attached != translated {
                nft(&translations(&attached))?;
                translated = attached;
            }
            for name in read(&deleted_servers).lines() {
                delete_server(&cloud, &operator, name).await?;
            }
        }
    };
    tokio::select! {
        served = serve => served,
        operated = operate => operated,
    }
}

/// What upstream's manager reads, too.
fn cloud_config(local: &LocalCloud, listen: SocketAddr, layout: &Layout) -> anyhow::Result<String> {
    let password = local
        .credentials()
        .password("demo")
        .context("the user demo")?
        .expose();
    let addresses = match &layout.outside {
        Some(outside) => format!("floating-network-id = {outside}"),
        None => "internal-lb = true".to_owned(),
    };
    Ok(format!(
        "[Global]\nauth-url = http://{listen}/identity/v3\nusername = demo\npassword = \"{password}\"\n\
         user-domain-id = default\ntenant-name = demo\ntenant-domain-id = default\nregion = RegionOne\n\
         [LoadBalancer]\nsubnet-id = {}\nmember-subnet-id = {}\n{addresses}\ncreate-monitor = true\n\
         monitor-delay = 1s\nmonitor-timeout = 1s\nmonitor-max-retries = 1\n",
        layout.vips, layout.nodes
    ))
}

/// Commands that make nftables translate these floating IPs and no others.
fn translations(addresses: &BTreeMap<IpAddr, IpAddr>) -> String {
    let elements = addresses.iter().map(|(floating, fixed)| {
        format!("add element ip floating addresses {{ {floating} : {fixed} }}\n")
    });
    let mut commands = "flush map ip floating addresses\n".to_owned();
    commands.extend(elements);
    commands
}

fn nft(commands: &str) -> anyhow::Result<()> {
    let mut nft = Command::new("nft");
    let mut child = nft
        .args(["--file", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .context("run nft")?;
    let mut input = child.stdin.take().context("nft has no input")?;
    input.write_all(commands.as_bytes())?;
    drop(input);
    anyhow::ensure!(child.wait()?.success(), "nft refused {commands}");
    Ok(())
}

/// The text of a file; nothing while there is none.
fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

/// Deletes a server, unless that is done.
async fn delete_server(
    cloud: &openstack_local::server::Cloud,
    operator: &RequestContext,
    name: &str,
) -> anyhow::Result<()> {
    let deleted = cloud
        .store
        .change(|state| {
            let found = state
                .nova
                .servers
                .iter()
                .find(|server| server.name == name)
                .map(|server| server.id.clone());
            match found {
                Some(id) => nova::servers::delete(state, operator, &id),
                None => Ok(()),
            }
        })
        .await;
    deleted.map_err(|error| explain(&error))
}

fn explain(error: &ApiError) -> anyhow::Error {
    anyhow::anyhow!("{} {}: {}", error.status, error.kind, error.message)
}

/// An administrator in the project `demo`.
fn operator(local: &LocalCloud) -> anyhow::Result<RequestContext> {
    let cloud = local.cloud();
    let project = cloud.store.peek(|state| {
        let mut projects = state.keystone.projects.iter();
        projects
            .find(|project| project.name == "demo")
            .map(|project| project.id.clone())
    });
    Ok(RequestContext {
        now: cloud.clock.now(),
        project: project.context("the project demo")?.into(),
        user: "operator".into(),
        admin: true,
    })
}

/// Makes networks and servers.
async fn lay_out(
    local: &LocalCloud,
    operator: &RequestContext,
    servers: &[(String, IpAddr)],
    has_floating_ips: bool,
) -> anyhow::Result<Layout> {
    let store = &local.cloud().store;
    let made = store.change(|state| {
        let mut layout = make(state, operator, servers)?;
        if has_floating_ips {
            layout.outside = Some(make_outside(state, operator, &layout.vips)?);
        }
        Ok(layout)
    });
    made.await.map_err(|error| explain(&error))
}

/// Makes an external network, with a router from it to the addresses of load balancers.
fn make_outside(
    state: &mut CloudState,
    operator: &RequestContext,
    vips: &str,
) -> Result<String, ApiError> {
    let request = NetworkCreate {
        name: Some("outside".into()),
        external: Some(true),
        ..NetworkCreate::default()
    };
    let network = neutron::networks::create(state, operator, request)?.id;
    let request = SubnetCreate {
        network_id: network.clone(),
        ip_version: 4,
        cidr: Some(OUTSIDE.into()),
        enable_dhcp: Some(false),
        ..SubnetCreate::default()
    };
    neutron::subnets::create(state, operator, request)?;
    let gateway = GatewayRequest {
        network_id: Some(network.clone()),
        ..GatewayRequest::default()
    };
    let request = RouterCreate {
        external_gateway_info: Some(gateway),
        ..RouterCreate::default()
    };
    let router = neutron::routers::create(state, operator, request)?.id;
    let interface = InterfaceRequest { subnet_id: Some(vips.to_owned()), port_id: None };
    neutron::router_interfaces::add(state, operator, &router, &interface)?;
    Ok(network)
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
    Ok(Layout { vips, nodes, outside: None })
}
