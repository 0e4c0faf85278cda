//! AWS as the kit's suites drive it. Everything but the account itself is the same for the
//! in-memory AWS and for moto: what the cloud holds is read past the provider, by requests of its
//! own.

pub(crate) mod account;
mod balancers;
mod inspect;

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_aws::{
    api::{
        InstanceId,
        ec2::{CreateRoute, DescribeInstances, DescribeRouteTables, Route, RouteTarget},
    },
    config,
    provider::AwsProvider,
};
use ccm_core::{
    k8s::{AddressType, NodeAddress, NodeView},
    provider::CloudProvider,
};
use ccm_testkit::conformance::{
    CallCount, CloudRoute, FaultyCloud, InjectedCallFault, InjectedFault, InstanceCloud, RouteCloud,
};
use ipnet::IpNet;
use parking_lot::Mutex;

use self::{
    account::{AccountBackend, FaultyTransport, InstanceChange, NoMetadata, SharedVpc, THEIRS},
    inspect::AccountInspector,
};

/// Budgets that the kit does not use up: what it counts is calls, not how many of them a second
/// has.
const BUDGETS: [&str; 6] =
    ["EC2Read", "EC2Write", "EC2Topology", "ELBRead", "ELBRegister", "ELBWrite"];
/// A class that the provider serves.
const CLASS: &str = "service.k8s.aws/nlb";

/// An account that is made anew at each reset; clones share it.
#[derive(Clone)]
pub(crate) struct AwsAdapter {
    ground: Arc<dyn AccountBackend>,
    road: Arc<FaultyTransport>,
    set: Arc<Mutex<Set>>,
    /// Lines of cloud.conf beside those that every run has.
    config: &'static str,
}

/// What stands in the account.
struct Set {
    place: SharedVpc,
    /// Addresses of nodes, by the names that the kit knows them by.
    ips: BTreeMap<String, Ipv4Addr>,
    instances: BTreeMap<String, InstanceId>,
    /// How many addresses were given.
    number: u16,
}

impl Set {
    fn ip(&mut self, node: &str) -> Ipv4Addr {
        if let Some(ip) = self.ips.get(node) {
            return *ip;
        }
        self.number += 1;
        let [high, low] = self.number.to_be_bytes();
        // Within 10.0.128.0/17, and past the five addresses of a subnet that AWS keeps.
        let ip = Ipv4Addr::new(10, 0, 129 + high, low);
        self.ips.insert(node.to_owned(), ip);
        ip
    }
}

impl AwsAdapter {
    pub(crate) async fn new(
        ground: Arc<dyn AccountBackend>,
        config: &'static str,
    ) -> anyhow::Result<Self> {
        let place = ground.clear().await?;
        let set = Set {
            place,
            ips: BTreeMap::new(),
            instances: BTreeMap::new(),
            number: 0,
        };
        let road = Arc::new(FaultyTransport::new(Arc::clone(&ground)));
        Ok(Self { ground, road, set: Arc::new(Mutex::new(set)), config })
    }

    /// Makes a provider as the manager does, for a cluster.
    pub(crate) async fn provider(&self, cluster: &str) -> anyhow::Result<Arc<dyn CloudProvider>> {
        let budgets = BUDGETS
            .map(|kind| format!("{kind}QPS = 1000\n{kind}Burst = 10000"))
            .join("\n");
        let text = format!(
            "[Global]\nRegion = us-west-2\nVPC = {}\nKubernetesClusterID = {cluster}\nDefaultLoadBalancerType = nlb\nAnnotationDialect = extended\n\
             LoadBalancerClass = {CLASS}\n{budgets}\n{}",
            self.place().vpc,
            self.config
        );
        let provider =
            AwsProvider::connect(config::parse(&text)?, self.road.clone(), Arc::new(NoMetadata))
                .await?;
        Ok(Arc::new(provider))
    }

    fn place(&self) -> SharedVpc {
        self.set.lock().place.clone()
    }

    fn inspect(&self) -> AccountInspector {
        AccountInspector(self.ground.transport())
    }

    async fn launch(&self, node: &str) -> anyhow::Result<(InstanceId, Ipv4Addr)> {
        let (place, ip) = {
            let mut set = self.set.lock();
            (set.place.clone(), set.ip(node))
        };
        let id = self.ground.launch(&place, ip).await?;
        self.set
            .lock()
            .instances
            .insert(node.to_owned(), id.clone());
        Ok((id, ip))
    }

    async fn turn(&self, node: &str, turn: InstanceChange) -> anyhow::Result<()> {
        let id = self.set.lock().instances.get(node).cloned();
        self.ground
            .turn(&id.ok_or_else(|| anyhow::anyhow!("there is no instance {node}"))?, turn)
            .await
    }

    /// Removes an instance; succeeds on nothing.
    async fn vanish(&self, node: &str) -> anyhow::Result<()> {
        let id = self.set.lock().instances.remove(node);
        match id {
            Some(id) => self.ground.turn(&id, InstanceChange::Vanish).await,
            None => Ok(()),
        }
    }

    /// Returns the names of nodes whose instances exist, by ID and by address.
    fn names(&self) -> BTreeMap<String, String> {
        let set = self.set.lock();
        let each = set.instances.iter().flat_map(|(name, id)| {
            let ip = set.ips.get(name).map(ToString::to_string);
            [Some(id.to_string()), ip]
                .into_iter()
                .flatten()
                .map(|key| (key, name.clone()))
        });
        each.collect()
    }
}

/// The name that EC2 gives.
fn dns_name(ip: Ipv4Addr) -> String {
    format!("ip-{}.us-west-2.compute.internal", ip.to_string().replace('.', "-"))
}

#[async_trait]
impl InstanceCloud for AwsAdapter {
    async fn create(&self, node: &str) -> anyhow::Result<()> {
        self.launch(node).await.map(drop)
    }

    async fn stop(&self, node: &str) -> anyhow::Result<()> {
        self.turn(node, InstanceChange::Stop).await
    }

    async fn start(&self, node: &str) -> anyhow::Result<()> {
        self.turn(node, InstanceChange::Start).await
    }

    async fn terminate(&self, node: &str) -> anyhow::Result<()> {
        self.turn(node, InstanceChange::Terminate).await
    }

    async fn delete(&self, node: &str) -> anyhow::Result<()> {
        self.vanish(node).await
    }

    /// A node is named by its address, as EC2 does.
    fn node(&self, name: &str) -> NodeView {
        NodeView::named(&dns_name(self.set.lock().ip(name)))
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

    fn reports_retry_after(&self) -> bool {
        false
    }

    async fn restore(&self) -> anyhow::Result<()> {
        self.road.clear();
        Ok(())
    }

    async fn calls(&self) -> anyhow::Result<u64> {
        Ok(self.road.total())
    }

    async fn fingerprint(&self) -> anyhow::Result<String> {
        let look = self.inspect();
        let instances = look.ask(DescribeInstances::default()).await?;
        let tables = look.ask(DescribeRouteTables::default()).await?;
        Ok(format!("{instances:?} {tables:?} {:?}", look.objects().await?))
    }

    fn malformed_provider_ids(&self) -> Vec<String> {
        [
            "aws://",
            "aws:///us-west-2a",
            "aws:///us-west-2a/vol-1",
            "aws:///us-west-2a/i-1/x/y",
            "aws:///a/b/c/i-1",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn foreign_provider_ids(&self) -> Vec<String> {
        [
            "gce://project/zone/name",
            "openstack:///8f9e5b3a",
            "kind://a/b/c",
            "awsx:///us-west-2a/i-0123456789abcdef0",
        ]
        .map(str::to_owned)
        .to_vec()
    }
}

#[async_trait]
impl FaultyCloud for AwsAdapter {
    async fn add_node(&self, name: &str) -> anyhow::Result<NodeView> {
        let (id, ip) = self.launch(name).await?;
        Ok(NodeView {
            provider_id: Some(format!("aws:///us-west-2a/{id}").into()),
            addresses: [
                NodeAddress::new(AddressType::InternalIp, ip.to_string()),
                NodeAddress::new(AddressType::Hostname, dns_name(ip)),
            ]
            .into(),
            ..NodeView::named(name)
        })
    }

    async fn remove_node(&self, name: &str) -> anyhow::Result<()> {
        self.vanish(name).await
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

    async fn are_optional_since(&self, first: u64) -> anyhow::Result<bool> {
        Ok(self.road.are_optional_since(first))
    }

    fn reports_retry_after(&self) -> bool {
        false
    }

    fn stride(&self) -> usize {
        self.ground.stride()
    }

    async fn reset(&self) -> anyhow::Result<()> {
        self.road.clear();
        let place = self.ground.clear().await?;
        *self.set.lock() = Set {
            place,
            ips: BTreeMap::new(),
            instances: BTreeMap::new(),
            number: 0,
        };
        Ok(())
    }
}

#[async_trait]
impl RouteCloud for AwsAdapter {
    async fn routes(&self) -> anyhow::Result<Vec<CloudRoute>> {
        let look = self.inspect();
        let alive = look.interfaces().await?;
        let names = self.names();
        let mut routes = Vec::new();
        for table in look.ask(DescribeRouteTables::default()).await?.items {
            // Those to gateways are the place's own.
            let made = table
                .routes
                .into_iter()
                .filter(|route| route.gateway.is_none());
            routes.extend(made.filter_map(|route| {
                let destination = route.destination?;
                let node = owner(&route, &alive).and_then(|id| names.get(&*id).cloned());
                Some(CloudRoute { id: format!("{} {destination}", table.id), destination, node })
            }));
        }
        Ok(routes)
    }

    fn many(&self) -> usize {
        self.ground.many()
    }

    async fn add_foreign(&self, node: &NodeView, destination: IpNet) -> anyhow::Result<bool> {
        let [_, _, table] = self.place().tables;
        let id = self.set.lock().instances.get(&*node.name).cloned();
        let id = id.ok_or_else(|| anyhow::anyhow!("there is no instance {}", node.name))?;
        let target = RouteTarget::Instance(id);
        self.inspect()
            .ask(CreateRoute { table, destination, target })
            .await?;
        Ok(true)
    }

    async fn other_cluster(&self) -> anyhow::Result<Option<Arc<dyn CloudProvider>>> {
        self.provider(THEIRS).await.map(Some)
    }
}

/// Returns the instance that a route leads to, if that is there.
fn owner(route: &Route, interfaces: &BTreeMap<String, InstanceId>) -> Option<InstanceId> {
    let by_instance = route
        .instance
        .clone()
        .filter(|id| interfaces.values().any(|alive| alive == id));
    by_instance.or_else(|| interfaces.get(&**route.interface.as_ref()?).cloned())
}
