//! The cloud of a test: its networks on this machine's loopback, and what happens to its servers.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

use anyhow::Context as _;
use axum::{
    body::Body,
    http::{HeaderValue, Request},
};
use openstack_api::{
    Secret,
    neutron::{
        FixedIpRequest, GatewayRequest, InterfaceRequest, NetworkCreate, PortCreate, QuotaUpdate, RouterCreate,
        SubnetCreate,
    },
    nova::{NetworkRequest, Networks, ServerCreate},
    octavia::Quota,
};
use openstack_local::{
    neutron::{self, Resource},
    nova::{self, Microversion},
    octavia,
    server::{LocalCloud, Settings},
    state::{ApiError, Cx, State},
};
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// Networks of a project.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    /// Network of the nodes and of load balancers.
    pub(crate) network: String,
    /// Subnet of the nodes, on loopback.
    pub(crate) nodes: String,
    /// Subnet of addresses of load balancers, on loopback.
    pub(crate) vips: String,
    /// The same for IPv6, of addresses that nobody listens on.
    pub(crate) vips6: String,
    /// External networks.
    pub(crate) external: [String; 2],
    /// Subnets of the first external network: `public-a` with the tag `a`, `public-b` with the tag `b`.
    pub(crate) public: [String; 2],
    /// Router with a gateway to both subnets of the network.
    pub(crate) router: String,
    /// Project.
    pub(crate) project: Box<str>,
}

/// A server as it was made.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) ip: IpAddr,
}

impl Instance {
    pub(crate) fn provider_id(&self) -> String {
        format!("openstack:///{}", self.id)
    }
}

/// Two networks of 128 addresses that no other test process on this machine uses.
pub(crate) fn ranges() -> [String; 2] {
    let id = std::process::id();
    let (second, third) = (64 + (id >> 8) % 64, id % 256);
    [format!("127.{second}.{third}.0/25"), format!("127.{second}.{third}.128/25")]
}

/// A local cloud that serves.
pub(crate) struct Cloud {
    pub(crate) local: LocalCloud,
    pub(crate) address: SocketAddr,
    pub(crate) net: Net,
    serving: Option<(CancellationToken, JoinHandle<std::io::Result<()>>)>,
}

impl Cloud {
    /// Makes a new cloud in memory.
    pub(crate) async fn new(settings: Settings) -> anyhow::Result<Self> {
        let local = LocalCloud::in_memory(settings);
        let net = build(&local).await?;
        Self::serve(local, net, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Opens the cloud in a directory, at an address; with the networks that were made, unless it is new.
    pub(crate) async fn open(
        dir: &Path,
        settings: Settings,
        known: Option<Net>,
        address: SocketAddr,
    ) -> anyhow::Result<Self> {
        let local = LocalCloud::open(dir, settings)?;
        let net = match known {
            Some(net) => net,
            None => build(&local).await?,
        };
        Self::serve(local, net, address).await
    }

    async fn serve(local: LocalCloud, net: Net, address: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await.context("listen for the cloud")?;
        let address = listener.local_addr()?;
        let cancel = CancellationToken::new();
        let serve = local.clone();
        let until = cancel.clone();
        let task = tokio::spawn(async move { serve.serve(listener, until).await });
        Ok(Self { local, address, net, serving: Some((cancel, task)) })
    }

    /// Ends it, with all sockets of load balancers.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        if let Some((cancel, task)) = self.serving.take() {
            cancel.cancel();
            task.await??;
        }
        Ok(())
    }

    /// Password of the user `demo`.
    pub(crate) fn password(&self) -> &Secret {
        self.local.credentials().password("demo").expect("the user is there")
    }

    /// Gives the user `demo` another password, as an administrator does: tokens that the old one gave end.
    pub(crate) async fn change_password(&self, to: &str) -> anyhow::Result<()> {
        let admin = self.local.credentials().password("admin").context("the user admin")?.expose();
        let domain = json!({"id": "default"});
        let login = json!({"auth": {
            "identity": {"methods": ["password"], "password": {
                "user": {"name": "admin", "domain": domain, "password": admin},
            }},
            "scope": {"project": {"name": "admin", "domain": domain}},
        }});
        let given = self.ask("POST", "/identity/v3/auth/tokens", None, &login).await?;
        let token = given.headers().get("x-subject-token").context("a token")?;
        let demo = self.peek(|state| {
            let mut users = state.keystone.users.iter();
            users.find(|user| user.name == "demo").map(|user| user.id.clone())
        });
        let path = format!("/identity/v3/users/{}", demo.context("the user demo")?);
        self.ask("PATCH", &path, Some(token), &json!({"user": {"password": to}})).await.map(drop)
    }

    /// Sends a request that no journal of the manager's requests should miss: it is the administrator's.
    async fn ask(
        &self,
        method: &str,
        path: &str,
        token: Option<&HeaderValue>,
        body: &Value,
    ) -> anyhow::Result<axum::response::Response> {
        let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("x-auth-token", token);
        }
        let answer = self.local.router().oneshot(request.body(Body::from(body.to_string()))?).await?;
        anyhow::ensure!(answer.status().is_success(), "{method} {path}: {}", answer.status());
        Ok(answer)
    }

    /// Changes the cloud behind the manager's back, as an administrator in the project.
    pub(crate) async fn change<T>(
        &self,
        change: impl FnOnce(&mut State, &Cx) -> Result<T, ApiError>,
    ) -> anyhow::Result<T> {
        change_as_admin(&self.local, &self.net.project, change).await
    }

    /// Reads the cloud without any request.
    pub(crate) fn peek<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        self.local.cloud().store.peek(read)
    }

    /// Changes how Octavia behaves.
    pub(crate) async fn octavia(&self, change: impl FnOnce(&mut octavia::settings::Settings)) -> anyhow::Result<()> {
        self.change(|state, _| {
            octavia::settings::Settings::change(state, change);
            Ok(())
        })
        .await
    }

    /// Limits how many load balancers a project has.
    pub(crate) async fn limit_balancers(&self, most: i64) -> anyhow::Result<()> {
        self.octavia(|settings| settings.default_quota = Quota { loadbalancer: Some(most), ..Quota::default() }).await
    }

    /// Makes another network, on loopback too, with the subnet `beside`, and returns its ID.
    pub(crate) async fn beside(&self) -> anyhow::Result<String> {
        self.change(|state, cx| {
            let network = NetworkCreate { name: Some("beside".into()), ..NetworkCreate::default() };
            let network = neutron::networks::create(state, cx, network)?.id;
            let subnet = SubnetCreate {
                network_id: network.clone(),
                name: Some("beside".into()),
                ip_version: 4,
                cidr: Some("10.99.0.0/24".into()),
                ..SubnetCreate::default()
            };
            neutron::subnets::create(state, cx, subnet)?;
            Ok(network)
        })
        .await
    }

    /// Makes a server on the network of nodes; its address is in the range of nodes.
    pub(crate) async fn server(&self, request: ServerCreate) -> anyhow::Result<Instance> {
        let (network, nodes) = (self.net.network.clone(), self.net.nodes.clone());
        self.change(move |state, cx| {
            let port = neutron::ports::create(state, cx, port_in(&network, &nodes))?;
            let on = NetworkRequest { port: Some(port.id.clone()), ..NetworkRequest::default() };
            let request = ServerCreate { networks: Some(Networks::These(vec![on])), ..request };
            let id = nova::create::create(state, cx, Microversion(60), &request)?;
            Ok(Instance { id, name: request.name, ip: port.fixed_ips[0].ip_address })
        })
        .await
    }

    /// Makes a server with an address on the subnet of nodes and an IPv6 address, and returns it with each.
    pub(crate) async fn server_of_both_families(&self, name: &str) -> anyhow::Result<[Instance; 2]> {
        let (net, request) = (self.net.clone(), small(name));
        self.change(move |state, cx| {
            let mut both = port_in(&net.network, &net.nodes);
            let six = FixedIpRequest { subnet_id: Some(net.vips6.clone()), ip_address: None };
            both.fixed_ips.get_or_insert_default().push(six);
            let port = neutron::ports::create(state, cx, both)?;
            let on = NetworkRequest { port: Some(port.id.clone()), ..NetworkRequest::default() };
            let request = ServerCreate { networks: Some(Networks::These(vec![on])), ..request };
            let id = nova::create::create(state, cx, Microversion(60), &request)?;
            let with = |ip: usize| port.fixed_ips[ip].ip_address;
            Ok([0, 1].map(|at| Instance { id: id.clone(), name: request.name.clone(), ip: with(at) }))
        })
        .await
    }

    /// Sets a server's status.
    pub(crate) async fn set_status(&self, server: &Instance, status: &str) -> anyhow::Result<()> {
        self.change(|state, _| nova::servers::set_status(state, &server.id, status, None)).await
    }

    /// Makes the cell of a server not answer, or answer again.
    pub(crate) async fn set_cell_down(&self, server: &Instance, down: bool) -> anyhow::Result<()> {
        self.change(|state, _| nova::servers::set_cell_down(state, &server.id, down)).await
    }

    /// Deletes a server.
    pub(crate) async fn delete(&self, server: &Instance) -> anyhow::Result<()> {
        self.change(|state, cx| nova::servers::delete(state, cx, &server.id)).await
    }
}

/// A request for a small server.
pub(crate) fn small(name: impl Into<String>) -> ServerCreate {
    ServerCreate { name: name.into(), flavor_ref: "2".to_owned(), ..ServerCreate::default() }
}

/// A certificate of the key manager.
pub(crate) struct Certificate {
    /// What annotations name.
    pub(crate) reference: String,
    /// Itself, for `web.test`.
    pub(crate) certificate: CertificateDer<'static>,
}

/// Puts a certificate into the key manager.
pub(crate) async fn certificate(cloud: &Cloud, name: &str) -> anyhow::Result<Certificate> {
    let made = rcgen::generate_simple_self_signed(["web.test".to_owned()])?;
    let (local, project) = (&cloud.local, &cloud.net.project);
    let failed = |error: ApiError| anyhow::anyhow!("{}", error.message);
    let chain = local.put_secret(project, name, "certificate", made.cert.pem().into()).await.map_err(failed)?;
    let key = local.put_secret(project, name, "private", made.signing_key.serialize_pem().into());
    let key = key.await.map_err(failed)?;
    let parts = [("certificate", &*chain), ("private_key", &*key)];
    let id = local.put_container(project, name, &parts).await.map_err(failed)?;
    let reference = format!("http://{}/key-manager/v1/containers/{id}", cloud.address);
    Ok(Certificate { reference, certificate: made.cert.der().clone() })
}

/// A request for a port with an address of a subnet.
pub(crate) fn port_in(network: &str, subnet: &str) -> PortCreate {
    let address = FixedIpRequest { subnet_id: Some(subnet.into()), ip_address: None };
    PortCreate { network_id: network.into(), fixed_ips: Some(vec![address]), ..PortCreate::default() }
}

async fn change_as_admin<T>(
    local: &LocalCloud,
    project: &str,
    change: impl FnOnce(&mut State, &Cx) -> Result<T, ApiError>,
) -> anyhow::Result<T> {
    let cloud = local.cloud();
    let cx = Cx { now: cloud.clock.now(), project: project.into(), user: "operator".into(), admin: true };
    let changed = cloud.store.change(|state| change(state, &cx)).await;
    changed.map_err(|error| anyhow::anyhow!("{} {}: {}", error.status, error.kind, error.message))
}

/// Makes the networks.
async fn build(local: &LocalCloud) -> anyhow::Result<Net> {
    let project = local.cloud().store.peek(|state| {
        let mut projects = state.keystone.projects.iter();
        projects.find(|project| project.name == "demo").map(|project| project.id.clone())
    });
    let project = project.context("the user's project")?;
    change_as_admin(local, &project, make_networks).await.context("make the networks")
}

fn make_networks(state: &mut State, cx: &Cx) -> Result<Net, ApiError> {
    let network = |name: &str, external: bool| NetworkCreate {
        name: Some(name.into()),
        external: external.then_some(true),
        ..NetworkCreate::default()
    };
    let subnet = |network: &str, name: &str, cidr: &str| SubnetCreate {
        network_id: network.into(),
        name: Some(name.into()),
        ip_version: if cidr.contains(':') { 6 } else { 4 },
        cidr: Some(cidr.into()),
        ..SubnetCreate::default()
    };
    let none = QuotaUpdate { port: Some(-1), security_group: Some(-1), floatingip: Some(-1), ..QuotaUpdate::default() };
    neutron::quotas::update(state, cx, &cx.project, &none)?;
    let inner = neutron::networks::create(state, cx, network("cluster", false))?.id;
    let [nodes, vips] = ranges();
    let nodes = neutron::subnets::create(state, cx, subnet(&inner, "nodes", &nodes))?.id;
    let vips = neutron::subnets::create(state, cx, subnet(&inner, "vips", &vips))?.id;
    let vips6 = neutron::subnets::create(state, cx, subnet(&inner, "vips6", "fd00:77::/64"))?.id;
    let first = neutron::networks::create(state, cx, network("public", true))?.id;
    let a = neutron::subnets::create(state, cx, subnet(&first, "public-a", "203.0.113.0/25"))?.id;
    let b = neutron::subnets::create(state, cx, subnet(&first, "public-b", "203.0.113.128/25"))?.id;
    for (id, tag) in [(&a, "a"), (&b, "b")] {
        let tag = tag.to_owned();
        Resource::Subnet.change_tags(state, cx, id, |tags| tags.push(tag))?;
    }
    let second = neutron::networks::create(state, cx, network("other", true))?.id;
    neutron::subnets::create(state, cx, subnet(&second, "other-a", "198.51.100.0/24"))?;
    let gateway = GatewayRequest { network_id: Some(first.clone()), ..GatewayRequest::default() };
    let router = RouterCreate { external_gateway_info: Some(gateway), ..RouterCreate::default() };
    let router = neutron::routers::create(state, cx, router)?.id;
    for subnet in [&nodes, &vips] {
        let interface = InterfaceRequest { subnet_id: Some(subnet.clone()), port_id: None };
        neutron::router_interfaces::add(state, cx, &router, &interface)?;
    }
    // Another router leads to the other external network.
    let port = neutron::ports::create(state, cx, port_in(&inner, &vips))?.id;
    let gateway = GatewayRequest { network_id: Some(second.clone()), ..GatewayRequest::default() };
    let beside = RouterCreate { external_gateway_info: Some(gateway), ..RouterCreate::default() };
    let beside = neutron::routers::create(state, cx, beside)?.id;
    let interface = InterfaceRequest { subnet_id: None, port_id: Some(port) };
    neutron::router_interfaces::add(state, cx, &beside, &interface)?;
    octavia::put_availability_zone(state, "zone-1", true);
    let external = [first, second];
    Ok(Net { network: inner, nodes, vips, vips6, external, public: [a, b], router, project: cx.project.clone() })
}
