//! The cloud that the kit is run on, and the way to it on which calls go wrong.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use ccm_core::k8s::{AddressType, NodeAddress, NodeView};
use ccm_openstack::{
    client::{Transport, TransportError},
    config::{Auth, Cloud, Domain, Identity, Scope, Settings, User},
};
use ccm_testkit::conformance::{CallCount, CallFaultKind, InjectedCallFault, InjectedFault};
use http::{Method, Request, Response};
use openstack_local::api::{
    neutron::{
        FixedIpRequest, FloatingIpCreate, GatewayRequest, InterfaceRequest, NetworkCreate,
        PortCreate, QuotaUpdate, RouterCreate, SubnetCreate,
    },
    nova::{NetworkRequest, Networks, QuotaSetUpdate as ComputeQuota, ServerCreate},
};
use openstack_local::{
    neutron,
    nova::{self, Microversion},
    server::{Fault, FaultKind, LocalCloud},
    state::{ApiError, CloudState, RequestContext},
};
use parking_lot::Mutex;

/// User and project.
const PROJECT: &str = "demo";

/// Where clouds come from.
#[async_trait]
pub(crate) trait CloudBackend: Send + Sync + 'static {
    /// Starts an empty cloud in place of the last one.
    async fn start(&self) -> anyhow::Result<Site>;

    /// Tells at how many calls troubles are tried: each, or fewer where that takes too long.
    fn stride(&self) -> usize {
        1
    }

    /// Returns how many routes a large cluster has.
    fn many(&self) -> usize {
        200
    }
}

/// A local cloud, and how it is reached.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) local: LocalCloud,
    pub(crate) transport: Arc<dyn Transport>,
    /// Its address, such as `http://127.0.0.1:5000`.
    pub(crate) url: String,
}

impl Site {
    /// Makes settings with every default.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        let password = self
            .local
            .credentials()
            .password(PROJECT)
            .context("the user is there")?
            .expose()
            .into();
        let domain = Domain::Id("default".into());
        let auth = Auth {
            url: format!("{}/identity/v3", self.url).parse()?,
            identity: Identity::Password {
                user: User::Name { name: PROJECT.into(), domain: domain.clone() },
                password,
            },
            scope: Scope::ProjectName { name: PROJECT.into(), domain },
        };
        Ok(Settings::new(Cloud { region: "RegionOne".into(), ..Cloud::new(auth) }))
    }

    /// Returns what nobody may read.
    pub(crate) fn secrets(&self) -> Vec<String> {
        self.local
            .credentials()
            .password(PROJECT)
            .map(|password| password.expose().to_owned())
            .into_iter()
            .collect()
    }

    fn ctx(&self) -> RequestContext {
        let project = self.local.cloud().store.peek(|state| {
            let mut projects = state.keystone.projects.iter();
            projects
                .find(|project| project.name == PROJECT)
                .map(|project| project.id.as_str().into())
        });
        let now = self.local.cloud().clock.now();
        RequestContext {
            now,
            project: project.unwrap_or_default(),
            user: "operator".into(),
            admin: true,
        }
    }

    /// Changes the cloud behind the provider's back, as an administrator in the project.
    pub(crate) async fn change<T>(
        &self,
        change: impl FnOnce(&mut CloudState, &RequestContext) -> Result<T, ApiError>,
    ) -> anyhow::Result<T> {
        let ctx = self.ctx();
        let changed = self
            .local
            .cloud()
            .store
            .change(|state| change(state, &ctx))
            .await;
        changed.map_err(|error| anyhow::anyhow!("{}: {}", error.status, error.message))
    }

    /// Reads the cloud as it is once every change that is due has ended.
    pub(crate) async fn read_state<T>(
        &self,
        read: impl FnOnce(&CloudState) -> T,
    ) -> anyhow::Result<T> {
        self.change(|state, ctx| {
            openstack_local::octavia::finish_due(state, ctx.now);
            Ok(read(state))
        })
        .await
    }

    /// Makes a place for two clusters.
    pub(crate) async fn furnish(&self) -> anyhow::Result<SharedNetwork> {
        self.change(build).await
    }

    /// Returns the node of a server as the framework initialises it.
    pub(crate) async fn node(&self, name: &str, server: &str) -> anyhow::Result<NodeView> {
        let ips = self.read_state(|state| {
            let ports = neutron::ports::of_device(state, server);
            ports
                .iter()
                .flat_map(|port| &port.fixed_ips)
                .map(|ip| ip.ip_address)
                .collect::<BTreeSet<_>>()
        });
        let addresses = ips
            .await?
            .into_iter()
            .map(|ip| NodeAddress::new(AddressType::InternalIp, ip.to_string()));
        let provider_id = Some(format!("openstack:///{server}").into());
        Ok(NodeView {
            provider_id,
            addresses: addresses.collect(),
            ..NodeView::named(name)
        })
    }

    /// Makes a server on the place's network.
    pub(crate) async fn launch(
        &self,
        place: &SharedNetwork,
        name: &str,
    ) -> anyhow::Result<(String, IpAddr)> {
        self.change(|state, ctx| {
            let on = NetworkRequest {
                uuid: Some(place.network.clone()),
                ..NetworkRequest::default()
            };
            let request = ServerCreate {
                name: name.to_owned(),
                flavor_ref: "2".to_owned(),
                networks: Some(Networks::These(vec![on])),
                ..ServerCreate::default()
            };
            let id = nova::create::create(state, ctx, Microversion(60), &request)?;
            let ports = neutron::ports::of_device(state, &id);
            let ip = ports
                .first()
                .and_then(|port| Some(port.fixed_ips.first()?.ip_address));
            let ip = ip.ok_or_else(|| ApiError::bad_request("", "the server has no address"))?;
            Ok((id, ip))
        })
        .await
    }
}

/// A network with what two clusters share on it.
#[derive(Clone, Debug)]
pub(crate) struct SharedNetwork {
    pub(crate) network: String,
    pub(crate) subnet: String,
    pub(crate) ipv6_subnet: String,
    pub(crate) external: String,
    /// Routers of this cluster, of the other one, and of none, all on the network.
    pub(crate) routers: [String; 3],
    /// A floating IP that nobody uses.
    pub(crate) free: String,
}

impl SharedNetwork {
    /// Configures a provider for this cluster, or for the other one.
    pub(crate) fn configure(&self, settings: &mut Settings, ours: bool) {
        settings.router = Some(self.routers[usize::from(!ours)].as_str().into());
        if let Some(balancers) = &mut settings.load_balancer {
            balancers.network.subnet = Some(self.subnet.as_str().into());
            balancers.network.floating_network = Some(self.external.as_str().into());
        }
    }
}

fn build(state: &mut CloudState, ctx: &RequestContext) -> Result<SharedNetwork, ApiError> {
    unlimited(state, ctx)?;
    let network = |name: &str, external: bool| NetworkCreate {
        name: Some(name.into()),
        external: external.then_some(true),
        ..NetworkCreate::default()
    };
    let subnet = |network: &str, cidr: &str, version: u8| SubnetCreate {
        network_id: network.into(),
        ip_version: version,
        cidr: Some(cidr.into()),
        ..SubnetCreate::default()
    };
    let inner = neutron::networks::create(state, ctx, network("nodes", false))?.id;
    let nodes = neutron::subnets::create(state, ctx, subnet(&inner, "10.0.0.0/16", 4))?.id;
    let six = neutron::subnets::create(state, ctx, subnet(&inner, "2001:db8::/64", 6))?.id;
    let external = neutron::networks::create(state, ctx, network("public", true))?.id;
    neutron::subnets::create(state, ctx, subnet(&external, "203.0.113.0/24", 4))?;
    let mut routers = [String::new(), String::new(), String::new()];
    for (n, router) in routers.iter_mut().enumerate() {
        let gateway = GatewayRequest {
            network_id: Some(external.clone()),
            ..GatewayRequest::default()
        };
        // Those of others have no way outside, so that there is one way for each floating IP.
        let gateway = (n == 0).then_some(gateway);
        let request = RouterCreate { external_gateway_info: gateway, ..RouterCreate::default() };
        *router = neutron::routers::create(state, ctx, request)?.id;
        for subnet in [&nodes, &six] {
            let interface = match n {
                0 => InterfaceRequest { subnet_id: Some(subnet.clone()), port_id: None },
                _ => {
                    let fixed =
                        FixedIpRequest { subnet_id: Some(subnet.clone()), ip_address: None };
                    let request = PortCreate {
                        network_id: inner.clone(),
                        fixed_ips: Some(vec![fixed]),
                        ..PortCreate::default()
                    };
                    let port = neutron::ports::create(state, ctx, request)?;
                    InterfaceRequest { subnet_id: None, port_id: Some(port.id) }
                }
            };
            neutron::router_interfaces::add(state, ctx, router, &interface)?;
        }
    }
    let request = FloatingIpCreate {
        floating_network_id: external.clone(),
        ..FloatingIpCreate::default()
    };
    let free = neutron::floating_ips::create(state, ctx, request)?.floating_ip_address;
    let free = free.map(|address| address.to_string()).unwrap_or_default();
    Ok(SharedNetwork {
        network: inner,
        subnet: nodes,
        ipv6_subnet: six,
        external,
        routers,
        free,
    })
}

/// Lifts what would be in the way of the kit, as an operator of a large cloud does.
fn unlimited(state: &mut CloudState, ctx: &RequestContext) -> Result<(), ApiError> {
    let more = QuotaUpdate {
        port: Some(-1),
        floatingip: Some(-1),
        security_group: Some(-1),
        security_group_rule: Some(-1),
        ..QuotaUpdate::default()
    };
    neutron::quotas::update(state, ctx, &ctx.project, &more)?;
    neutron::Limits { routes: 2000, address_pairs: 2000 }.set(state);
    let servers = ComputeQuota { instances: Some(-1), cores: Some(-1), ram: Some(-1) };
    nova::quotas::update(state, ctx, &ctx.project, &servers).map(drop)
}

/// The provider's way to the cloud: counts calls, slows them down and spoils them.
pub(crate) struct FaultyTransport {
    page: Mutex<FaultScript>,
}

/// Where it leads, what is ordered, and what happened since.
struct FaultScript {
    site: Site,
    trouble: Option<InjectedCallFault>,
    tally: CallCount,
    latency: Duration,
    /// Calls ever.
    total: u64,
}

impl FaultyTransport {
    pub(crate) fn new(site: Site) -> Self {
        let (tally, latency) = (CallCount::default(), Duration::ZERO);
        Self {
            page: Mutex::new(FaultScript { site, trouble: None, tally, latency, total: 0 }),
        }
    }

    /// Leads to another cloud from now on.
    pub(crate) fn lead_to(&self, site: Site) {
        self.page.lock().site = site;
    }

    pub(crate) fn site(&self) -> Site {
        self.page.lock().site.clone()
    }

    pub(crate) fn script(&self, trouble: Option<InjectedCallFault>) {
        let mut page = self.page.lock();
        (page.trouble, page.tally) = (trouble, CallCount::default());
    }

    pub(crate) fn slow_down(&self, latency: Duration) {
        self.page.lock().latency = latency;
    }

    pub(crate) fn tally(&self) -> CallCount {
        self.page.lock().tally
    }

    pub(crate) fn total(&self) -> u64 {
        self.page.lock().total
    }

    pub(crate) fn clear(&self) {
        let mut page = self.page.lock();
        (page.trouble, page.tally, page.latency) = (None, CallCount::default(), Duration::ZERO);
    }

    /// Notes that a call begins; returns what happens to it, and how slow it is.
    fn begin(&self, request: &Request<Bytes>) -> (Option<CallFaultKind>, Duration, Site) {
        let mut page = self.page.lock();
        match is_write(request) {
            false => page.tally.reads += 1,
            true => page.tally.writes += 1,
        }
        page.total += 1;
        let call = page.tally.calls();
        let hit = |trouble: &InjectedCallFault| {
            trouble.call == call || trouble.lasts && trouble.call < call
        };
        (page.trouble.filter(hit).map(|trouble| trouble.kind), page.latency, page.site.clone())
    }
}

/// Tells whether a request changes anything. A token is no change.
pub(crate) fn is_write(request: &Request<Bytes>) -> bool {
    request.method() != Method::GET && !request.uri().path().ends_with("/auth/tokens")
}

#[async_trait]
impl Transport for FaultyTransport {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError> {
        let (trouble, latency, site) = self.begin(&request);
        pause(latency).await;
        let answer = match trouble {
            Some(CallFaultKind::Fails(fault)) => {
                let path = request.uri().path().trim_end_matches('/').to_owned();
                let fault = Fault::new(path, refusal(fault))
                    .method(request.method().as_str())
                    .times(1);
                site.local.cloud().faults.add(fault);
                site.transport.send(request).await
            }
            Some(CallFaultKind::AnswerLost) => {
                site.transport.send(request).await?;
                let message = "the connection broke (ordered by the test)".to_owned();
                Err(TransportError { message, maybe_sent: true, source: None })
            }
            None => site.transport.send(request).await,
        };
        pause(latency).await;
        answer
    }
}

/// Returns how the cloud answers when this goes wrong.
fn refusal(fault: InjectedFault) -> FaultKind {
    match fault {
        InjectedFault::Denied => FaultKind::status(403),
        InjectedFault::Throttled(pause) => {
            FaultKind::Status { code: 429, retry_after: Some(pause.as_secs()), message: None }
        }
        InjectedFault::Invalid => FaultKind::status(400),
        InjectedFault::Transient => FaultKind::status(503),
    }
}

/// A sleep of no time would be an await point all the same.
async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}
