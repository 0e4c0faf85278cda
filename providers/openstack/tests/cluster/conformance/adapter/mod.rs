//! OpenStack as the kit's suites drive it. Everything but the way there is the same in process and
//! over sockets: what the cloud holds is read past the provider, in the local cloud's own state.

pub(crate) mod balancers;
pub(crate) mod cloud;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use ccm_core::{k8s::NodeView, provider::CloudProvider};
use ccm_openstack::{client::Client, config::Settings, provider::OpenStackProvider};
use ccm_testkit::conformance::{
    CallCount, CloudRoute, FaultyCloud, InjectedCallFault, InjectedFault, InstanceCloud, RouteCloud,
};
use ipnet::IpNet;
use openstack_local::api::neutron::Route;
use openstack_local::{neutron, nova};
use parking_lot::Mutex;

use self::cloud::{CloudBackend, FaultyTransport, SharedNetwork, Site};

/// Names of this cluster and of another one beside it: parts of every name that the provider gives.
pub(crate) const OURS: &str = "ours";
pub(crate) const THEIRS: &str = "theirs";

/// A project in a cloud that is made anew at each reset; clones share it.
#[derive(Clone)]
pub(crate) struct OpenStackAdapter {
    ground: Arc<dyn CloudBackend>,
    pub(crate) road: Arc<FaultyTransport>,
    set: Arc<Mutex<ProjectResources>>,
    /// What is configured beside what every run has.
    config: fn(&mut Settings),
    /// Whether anything was made since the last reset.
    used: Arc<AtomicBool>,
}

/// What stands in the project.
struct ProjectResources {
    place: SharedNetwork,
    /// Servers by the names of their nodes.
    servers: BTreeMap<String, Server>,
}

#[derive(Clone)]
struct Server {
    id: String,
    ip: IpAddr,
}

impl OpenStackAdapter {
    pub(crate) async fn new(
        ground: Arc<dyn CloudBackend>,
        config: fn(&mut Settings),
    ) -> anyhow::Result<Self> {
        let site = ground.start().await?;
        let set = ProjectResources { place: site.furnish().await?, servers: BTreeMap::new() };
        let (road, set) = (Arc::new(FaultyTransport::new(site)), Arc::new(Mutex::new(set)));
        Ok(Self { ground, road, set, config, used: Arc::default() })
    }

    /// Makes a provider as the manager does, for a cluster.
    pub(crate) async fn provider(&self, cluster: &str) -> anyhow::Result<Arc<dyn CloudProvider>> {
        self.used.store(true, Ordering::Relaxed);
        let mut settings = self.site().settings()?;
        self.place().configure(&mut settings, cluster == OURS);
        (self.config)(&mut settings);
        let client = Client::connect(&settings, self.road.clone()).await?;
        // What the kit counts is calls, not how many of them a second has.
        let client = client.with_limits(None);
        Ok(Arc::new(OpenStackProvider::connect(settings, client, cluster.into()).await?))
    }

    fn place(&self) -> SharedNetwork {
        self.set.lock().place.clone()
    }

    fn site(&self) -> Site {
        self.road.site()
    }

    fn server(&self, node: &str) -> anyhow::Result<Server> {
        let server = self.set.lock().servers.get(node).cloned();
        server.ok_or_else(|| anyhow::anyhow!("there is no server {node}"))
    }

    async fn launch(&self, node: &str) -> anyhow::Result<Server> {
        self.used.store(true, Ordering::Relaxed);
        let (id, ip) = self.site().launch(&self.place(), node).await?;
        let server = Server { id, ip };
        self.set
            .lock()
            .servers
            .insert(node.to_owned(), server.clone());
        Ok(server)
    }

    async fn set_status(&self, node: &str, status: &str) -> anyhow::Result<()> {
        let id = self.server(node)?.id;
        self.site()
            .change(|state, _| nova::servers::set_status(state, &id, status, None))
            .await
    }

    /// Removes a server; succeeds on nothing.
    async fn remove(&self, node: &str) -> anyhow::Result<()> {
        let server = self.set.lock().servers.remove(node);
        match server {
            Some(server) => {
                self.site()
                    .change(|state, ctx| nova::servers::delete(state, ctx, &server.id))
                    .await
            }
            None => Ok(()),
        }
    }

    /// Returns the names of nodes whose servers exist, by address.
    fn names(&self) -> BTreeMap<String, String> {
        self.set
            .lock()
            .servers
            .iter()
            .map(|(name, server)| (server.ip.to_string(), name.clone()))
            .collect()
    }
}

#[async_trait]
impl InstanceCloud for OpenStackAdapter {
    async fn create(&self, node: &str) -> anyhow::Result<()> {
        self.launch(node).await.map(drop)
    }

    async fn stop(&self, node: &str) -> anyhow::Result<()> {
        self.set_status(node, "SHUTOFF").await
    }

    async fn start(&self, node: &str) -> anyhow::Result<()> {
        self.set_status(node, "ACTIVE").await
    }

    /// Nova lists a server that was deleted for good no more.
    async fn terminate(&self, node: &str) -> anyhow::Result<()> {
        self.remove(node).await
    }

    async fn delete(&self, node: &str) -> anyhow::Result<()> {
        self.remove(node).await
    }

    async fn inject(&self, fault: InjectedFault) -> anyhow::Result<bool> {
        self.road
            .script(Some(InjectedCallFault::fail(1, fault).lasting()));
        Ok(true)
    }

    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool> {
        self.road.slow_down(latency);
        Ok(true)
    }

    async fn restore(&self) -> anyhow::Result<()> {
        self.road.clear();
        Ok(())
    }

    async fn calls(&self) -> anyhow::Result<u64> {
        Ok(self.road.total())
    }

    async fn fingerprint(&self) -> anyhow::Result<String> {
        self.site()
            .read_state(|state| format!("{:?} {:?} {:?}", state.nova, state.neutron, state.octavia))
            .await
    }

    fn secrets(&self) -> Vec<String> {
        self.site().secrets()
    }

    fn malformed_provider_ids(&self) -> Vec<String> {
        [
            "openstack://",
            "openstack:///",
            "openstack://server",
            "openstack:///a/b",
            "openstack://RegionOne/",
            "server",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn foreign_provider_ids(&self) -> Vec<String> {
        [
            "aws:///eu-1a/i-0123456789abcdef0",
            "gce://project/zone/name",
            "kind://a/b/c",
            "openstackx:///8f9e5b3a",
        ]
        .map(str::to_owned)
        .to_vec()
    }
}

#[async_trait]
impl FaultyCloud for OpenStackAdapter {
    async fn add_node(&self, name: &str) -> anyhow::Result<NodeView> {
        let server = self.launch(name).await?;
        self.site().node(name, &server.id).await
    }

    async fn remove_node(&self, name: &str) -> anyhow::Result<()> {
        self.remove(name).await
    }

    async fn script(&self, trouble: Option<InjectedCallFault>) -> anyhow::Result<()> {
        self.road.script(trouble);
        Ok(())
    }

    async fn call_count(&self) -> anyhow::Result<CallCount> {
        Ok(self.road.tally())
    }

    async fn slow_down(&self, latency: Duration) -> anyhow::Result<bool> {
        self.road.slow_down(latency);
        Ok(true)
    }

    fn stride(&self) -> usize {
        self.ground.stride()
    }

    fn secrets(&self) -> Vec<String> {
        self.site().secrets()
    }

    async fn reset(&self) -> anyhow::Result<()> {
        self.road.clear();
        if self.used.swap(false, Ordering::Relaxed) {
            let site = self.ground.start().await?;
            let place = site.furnish().await?;
            self.road.lead_to(site);
            *self.set.lock() = ProjectResources { place, servers: BTreeMap::new() };
        }
        Ok(())
    }
}

#[async_trait]
impl RouteCloud for OpenStackAdapter {
    async fn routes(&self) -> anyhow::Result<Vec<CloudRoute>> {
        let (names, place) = (self.names(), self.place());
        let six = self.six().await?;
        let site = self.site();
        let listed = site.read_state(|state| {
            let routers = place
                .routers
                .iter()
                .filter_map(|id| state.neutron.routers.get(id));
            let routes = routers.flat_map(|router| {
                router
                    .routes
                    .iter()
                    .map(|route| (router.id.clone(), route.clone()))
            });
            routes.collect::<Vec<_>>()
        });
        let route = |(router, Route { destination, nexthop }): (String, Route)| {
            let node = names.get(&nexthop).or_else(|| six.get(&nexthop)).cloned();
            let id = format!("{router} {destination} {nexthop}");
            Ok(CloudRoute { id, destination: destination.parse()?, node })
        };
        listed.await?.into_iter().map(route).collect()
    }

    fn many(&self) -> usize {
        self.ground.many()
    }

    /// On a router that no cluster here is configured for.
    async fn add_foreign(&self, node: &NodeView, destination: IpNet) -> anyhow::Result<bool> {
        let [_, _, router] = self.place().routers;
        let nexthop = self.server(&node.name)?.ip.to_string();
        let route = Route { destination: destination.to_string(), nexthop };
        self.site()
            .change(|state, ctx| neutron::extra_routes::add(state, ctx, &router, vec![route]))
            .await?;
        Ok(true)
    }

    /// Routes carry no owner: clusters have routers of their own.
    async fn other_cluster(&self) -> anyhow::Result<Option<Arc<dyn CloudProvider>>> {
        self.provider(THEIRS).await.map(Some)
    }
}

impl OpenStackAdapter {
    /// Returns the names of nodes whose servers exist, by their IPv6 addresses.
    async fn six(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let servers = self.set.lock().servers.clone();
        let site = self.site();
        let all = site.read_state(|state| {
            let of = |(name, server): (String, Server)| {
                let ports = neutron::ports::of_device(state, &server.id).into_iter();
                let ips: Vec<_> = ports
                    .flat_map(|port| &port.fixed_ips)
                    .map(|ip| ip.ip_address)
                    .collect();
                ips.into_iter()
                    .filter(IpAddr::is_ipv6)
                    .map(move |ip| (ip.to_string(), name.clone()))
            };
            servers.into_iter().flat_map(of).collect()
        });
        all.await
    }
}
