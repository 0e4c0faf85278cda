//! The cloud on which both managers play: a project with networks, a router, servers and a balancer
//! of somebody else's.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use openstack_local::api::{
    Secret,
    neutron::{
        FloatingIpCreate, GatewayRequest, InterfaceRequest, NetworkCreate, PortCreate, QuotaUpdate,
        RouterCreate, SubnetCreate,
    },
    nova::{NetworkRequest, Networks, ServerCreate},
    octavia::LoadBalancerCreate,
};
use openstack_local::{
    neutron::{self, Resource},
    nova::{self, Microversion},
    octavia,
    server::{LocalCloud, Settings},
    state::{ApiError, CloudState, RequestContext},
};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::recorder::Recorder;

/// IDs of what is there from the beginning.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids {
    pub(crate) nodes_network: String,
    pub(crate) nodes_subnet: String,
    pub(crate) vip_network: String,
    pub(crate) vip_subnet: String,
    pub(crate) vip_port: String,
    pub(crate) public: String,
    pub(crate) public_subnet: String,
    pub(crate) other_public: String,
    pub(crate) router: String,
    pub(crate) flavor: String,
    pub(crate) certificate: String,
    /// A balancer that an operator made.
    pub(crate) manual: String,
    /// A floating IP that an operator made.
    pub(crate) fixed_address: String,
}

/// A running cloud.
pub(crate) struct TakeoverCloud {
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) ids: Ids,
    pub(crate) address: SocketAddr,
    local: LocalCloud,
    project: Box<str>,
    /// What serves; it ends with this.
    _serving: JoinSet<()>,
}

impl TakeoverCloud {
    /// Makes a cloud with a balancer of this driver; a change of a balancer takes so long.
    pub(crate) async fn new(driver: &str, pending: Duration) -> anyhow::Result<Self> {
        let local = LocalCloud::in_memory(Settings { pending, ..Settings::default() });
        let recorder = Arc::new(Recorder::default());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        let service = recorder.around(local.router());
        serving.spawn(async move {
            // It ends when it is dropped; what fails before is seen by the clients.
            let _ = axum::serve(listener, service).await;
        });
        let carried = local.clone();
        serving.spawn(async move { carried.run_data_plane(CancellationToken::new()).await });
        let project: Option<Box<str>> = local.cloud().store.peek(|state| {
            let mut projects = state.keystone.projects.iter();
            projects
                .find(|project| project.name == "demo")
                .map(|project| project.id.as_str().into())
        });
        let project = project.context("the project demo")?;
        let mut world = Self {
            recorder,
            ids: Ids::default(),
            address,
            local,
            project,
            _serving: serving,
        };
        let driver = driver.to_owned();
        let certificate = world.certificate().await?;
        world.ids = world
            .change(|state, ctx| build(state, ctx, &driver))
            .await?;
        world.ids.certificate = certificate;
        Ok(world)
    }

    /// Changes the cloud as its operator.
    pub(crate) async fn change<T>(
        &self,
        change: impl FnOnce(&mut CloudState, &RequestContext) -> Result<T, ApiError>,
    ) -> anyhow::Result<T> {
        let now = self.local.cloud().clock.now();
        let ctx = RequestContext {
            now,
            project: self.project.clone(),
            user: "operator".into(),
            admin: true,
        };
        Ok(self
            .local
            .cloud()
            .store
            .change(|state| change(state, &ctx))
            .await?)
    }

    pub(crate) fn peek<T>(&self, read: impl FnOnce(&CloudState) -> T) -> T {
        self.local.cloud().store.peek(read)
    }

    /// Password of the user `demo`.
    pub(crate) fn password(&self) -> anyhow::Result<String> {
        Ok(self
            .local
            .credentials()
            .password("demo")
            .context("a password")?
            .expose()
            .to_owned())
    }

    /// Makes a server and returns its ID and address.
    pub(crate) async fn server(&self, name: &str) -> anyhow::Result<(String, std::net::IpAddr)> {
        let network = self.ids.nodes_network.clone();
        self.change(|state, ctx| {
            let on = NetworkRequest { uuid: Some(network), ..NetworkRequest::default() };
            let request = ServerCreate {
                name: name.to_owned(),
                flavor_ref: "2".to_owned(),
                networks: Some(Networks::These(vec![on])),
                metadata: Some([("hostname".to_owned(), format!("{name}.example"))].into()),
                ..ServerCreate::default()
            };
            let id = nova::create::create(state, ctx, Microversion(60), &request)?;
            let ip = neutron::ports::of_device(state, &id)[0].fixed_ips[0].ip_address;
            Ok((id, ip))
        })
        .await
    }

    async fn certificate(&self) -> anyhow::Result<String> {
        let put = |kind: &'static str| {
            self.local
                .put_secret(&self.project, kind, kind, Secret::from("none"))
        };
        let (certificate, key) = (put("certificate").await?, put("private").await?);
        let parts = [("certificate", &*certificate), ("private_key", &*key)];
        let id = self
            .local
            .put_container(&self.project, "shop", &parts)
            .await?;
        Ok(format!("http://{}/key-manager/v1/containers/{id}", self.address))
    }
}

fn network(name: &str, external: bool) -> NetworkCreate {
    NetworkCreate {
        name: Some(name.into()),
        external: external.then_some(true),
        ..NetworkCreate::default()
    }
}

fn subnet(network: &str, name: &str, cidr: &str) -> SubnetCreate {
    SubnetCreate {
        network_id: network.into(),
        name: Some(name.into()),
        ip_version: 4,
        cidr: Some(cidr.into()),
        ..SubnetCreate::default()
    }
}

// length: a list of objects, one made after the other; in parts it would be no clearer
fn build(state: &mut CloudState, ctx: &RequestContext, driver: &str) -> Result<Ids, ApiError> {
    let more = QuotaUpdate {
        port: Some(-1),
        floatingip: Some(-1),
        security_group: Some(-1),
        security_group_rule: Some(-1),
        ..QuotaUpdate::default()
    };
    neutron::quotas::update(state, ctx, &ctx.project, &more)?;
    let nodes = neutron::networks::create(state, ctx, network("nodes", false))?.id;
    let vips = neutron::networks::create(state, ctx, network("vips", false))?.id;
    // Names are looked through in the order of the list; the first external network is the one that
    // is found.
    let public = neutron::networks::create(state, ctx, network("public", true))?.id;
    let mut ids = Ids {
        nodes_subnet: neutron::subnets::create(state, ctx, subnet(&nodes, "nodes", "10.0.0.0/16"))?
            .id,
        vip_subnet: neutron::subnets::create(state, ctx, subnet(&vips, "vips", "10.1.0.0/24"))?.id,
        public_subnet: neutron::subnets::create(
            state,
            ctx,
            subnet(&public, "public-a", "203.0.113.0/24"),
        )?
        .id,
        other_public: neutron::subnets::create(
            state,
            ctx,
            subnet(&public, "public-b", "198.51.100.0/24"),
        )?
        .id,
        flavor: octavia::put_flavor(state, "small", driver, true),
        nodes_network: nodes,
        vip_network: vips,
        public,
        ..Ids::default()
    };
    octavia::put_availability_zone(state, "zone-1", true);
    Resource::Subnet
        .change_tags(state, ctx, &ids.other_public, |tags| tags.push("spare".to_owned()))?;
    let gateway = GatewayRequest {
        network_id: Some(ids.public.clone()),
        ..GatewayRequest::default()
    };
    let router = RouterCreate {
        external_gateway_info: Some(gateway),
        ..RouterCreate::default()
    };
    ids.router = neutron::routers::create(state, ctx, router)?.id;
    for subnet in [&ids.nodes_subnet, &ids.vip_subnet] {
        let on = InterfaceRequest { subnet_id: Some(subnet.clone()), port_id: None };
        neutron::router_interfaces::add(state, ctx, &ids.router, &on)?;
    }
    let port = PortCreate {
        network_id: ids.vip_network.clone(),
        name: Some("chosen".into()),
        ..PortCreate::default()
    };
    ids.vip_port = neutron::ports::create(state, ctx, port)?.id;
    let floating = FloatingIpCreate {
        floating_network_id: ids.public.clone(),
        floating_ip_address: "203.0.113.200".parse().ok(),
        description: Some("to be asked for".into()),
        ..FloatingIpCreate::default()
    };
    let floating = neutron::floating_ips::create(state, ctx, floating)?;
    ids.fixed_address = floating
        .floating_ip_address
        .map(|address| address.to_string())
        .unwrap_or_default();
    let manual = LoadBalancerCreate {
        name: Some("manual".into()),
        vip_subnet_id: Some(ids.nodes_subnet.clone()),
        provider: Some(driver.into()),
        ..LoadBalancerCreate::default()
    };
    let manual = octavia::load_balancers::create(state, ctx, manual)?;
    let of_manual = FloatingIpCreate {
        floating_network_id: ids.public.clone(),
        port_id: manual.vip_port_id,
        floating_ip_address: "203.0.113.201".parse().ok(),
        description: Some("of the balancer manual".into()),
        ..FloatingIpCreate::default()
    };
    neutron::floating_ips::create(state, ctx, of_manual)?;
    ids.manual = manual.id;
    Ok(ids)
}
