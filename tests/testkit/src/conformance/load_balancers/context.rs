use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU16,
    sync::Arc,
};

use ccm_core::{
    k8s::{IpFamily, NodeView, Protocol, ServicePort, ServiceView},
    provider::{CloudProvider, LoadBalancers},
};

use super::{
    super::{
        LoadBalancerCloud,
        context::{CLUSTER, RuleContext},
        report::{Problem, Verdict},
    },
    cloud::CloudLoadBalancer,
    service_driver::ServiceDriver,
};

/// Namespace of the Services that rules make.
const NAMESPACE: &str = "conformance";
/// First port and node port; each Service of a rule has its own, which tells the balancers apart.
const FIRST_PORT: u16 = 8000;
const FIRST_NODE_PORT: u16 = 30000;
/// Name of the cluster that must not be disturbed.
pub(super) const OTHER_CLUSTER: &str = "conformance-other";

impl RuleContext<'_, dyn LoadBalancerCloud> {
    /// Makes a provider that remembers nothing and has load balancers.
    pub(super) async fn provider(&self) -> Verdict<Arc<dyn CloudProvider>> {
        let provider = self.make().await?;
        match provider.load_balancers() {
            Some(_) => Ok(provider),
            None => Err(Problem::Unsupported("the provider has no load balancers".to_owned())),
        }
    }

    /// Makes a provider of the other cluster.
    pub(super) async fn other_provider(&self) -> Verdict<Arc<dyn CloudProvider>> {
        match self.cloud.other_cluster().await? {
            Some(provider) => Ok(provider),
            None => self.provider().await,
        }
    }

    /// Returns running nodes, always the same ones.
    pub(super) async fn nodes(&self, count: usize) -> Verdict<Vec<Arc<NodeView>>> {
        let mut pool = self.pool.lock().await;
        while pool.len() < count {
            pool.push(Arc::new(self.cloud.add_node(&self.name()).await?));
        }
        let mut nodes = pool[..count].to_vec();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(nodes)
    }

    /// Makes a Service with a name, a UID, a port and a node port that no other of this rule has.
    pub(super) fn service(&self) -> ServiceView {
        let name = self.name();
        self.service_named(NAMESPACE, &name)
    }

    /// Makes such a Service under a name that others may have too.
    pub(super) fn service_named(&self, namespace: &str, name: &str) -> ServiceView {
        // Rules make a few dozen names at most.
        let offset = u16::try_from(self.number() % 1000).unwrap_or_default();
        let plain = ServiceView {
            uid: uuid::Uuid::new_v4().to_string().into(),
            resource_version: "1".into(),
            ports: Box::new([port(Protocol::Tcp, FIRST_PORT + offset, FIRST_NODE_PORT + offset)]),
            ip_families: Box::new([IpFamily::V4]),
            ip_family_policy: Some("SingleStack".into()),
            ..ServiceView::named(namespace, name)
        };
        self.cloud.service(plain)
    }

    /// Makes a Service of this cluster with a provider of its own.
    pub(super) async fn tenant(&self, nodes: &[Arc<NodeView>]) -> Verdict<ServiceDriver<'_>> {
        Ok(self.tenant_of(CLUSTER, self.provider().await?, self.service(), nodes))
    }

    pub(super) fn tenant_of(
        &self,
        cluster: &'static str,
        provider: Arc<dyn CloudProvider>,
        service: ServiceView,
        nodes: &[Arc<NodeView>],
    ) -> ServiceDriver<'_> {
        let (nodes, told) = (nodes.to_vec(), Arc::default());
        ServiceDriver {
            bench: self,
            provider,
            cluster,
            service,
            nodes,
            mutations: None,
            events: told,
        }
    }

    pub(super) async fn world(&self) -> Verdict<CloudSnapshot> {
        let balancers = self
            .cloud
            .balancers()
            .await?
            .into_iter()
            .map(|b| (b.id.clone(), b))
            .collect();
        Ok(CloudSnapshot { objects: self.cloud.objects().await?, balancers })
    }
}

/// Makes a port.
pub(super) fn port(protocol: Protocol, port: u16, node_port: u16) -> ServicePort {
    ServicePort {
        name: format!("p{port}").into(),
        protocol,
        port: NonZeroU16::new(port).unwrap_or(NonZeroU16::MIN),
        node_port: NonZeroU16::new(node_port),
        target_port: "8080".into(),
        app_protocol: None,
    }
}

/// Returns the capability; the suite checked that it has it.
pub(super) fn balancers(provider: &Arc<dyn CloudProvider>) -> Verdict<&dyn LoadBalancers> {
    provider
        .load_balancers()
        .ok_or_else(|| Problem::Failed("the provider lost its load balancers".to_owned()))
}

/// What the cloud holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CloudSnapshot {
    pub(super) objects: BTreeMap<String, String>,
    pub(super) balancers: BTreeMap<String, CloudLoadBalancer>,
}

impl CloudSnapshot {
    /// Returns the balancers that `before` did not have.
    pub(super) fn new_since<'a>(
        &'a self,
        before: &Self,
    ) -> impl Iterator<Item = &'a CloudLoadBalancer> {
        self.balancers
            .values()
            .filter(|balancer| !before.balancers.contains_key(&balancer.id))
    }

    /// Returns the one balancer that was made since `before`, if it is what the Service asks for.
    pub(super) fn served(
        &self,
        before: &Self,
        tenant: &ServiceDriver<'_>,
    ) -> Result<&CloudLoadBalancer, String> {
        let made: Vec<_> = self.new_since(before).collect();
        let [balancer] = made[..] else {
            let ids: Vec<_> = made.iter().map(|balancer| &*balancer.id).collect();
            return Err(format!("{} load balancers were made: {ids:?}", made.len()));
        };
        let ports = wanted_ports(&tenant.service);
        if balancer.ports != ports {
            return Err(format!(
                "load balancer {} listens on {:?} instead of {ports:?}",
                balancer.id, balancer.ports
            ));
        }
        let nodes = tenant.node_names();
        if balancer.members != nodes {
            return Err(format!(
                "load balancer {} leads to {:?} instead of {nodes:?}",
                balancer.id, balancer.members
            ));
        }
        Ok(balancer)
    }

    /// Names what is different now; empty when nothing is.
    pub(super) fn changes(&self, before: &Self) -> String {
        let mut changes = compare("object", &before.objects, &self.objects);
        let show = |world: &Self| {
            world
                .balancers
                .iter()
                .map(|(id, b)| (id.clone(), format!("{b:?}")))
                .collect()
        };
        changes.extend(compare("load balancer", &show(before), &show(self)));
        changes.join("; ")
    }

    /// Leaves out one balancer's members.
    pub(super) fn without_members(mut self, id: &str) -> Self {
        if let Some(balancer) = self.balancers.get_mut(id) {
            balancer.members.clear();
        }
        self
    }
}

pub(super) fn wanted_ports(service: &ServiceView) -> BTreeSet<(Protocol, u16)> {
    service
        .ports
        .iter()
        .map(|port| (port.protocol, port.port.get()))
        .collect()
}

fn compare(
    what: &str,
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> Vec<String> {
    let gone = before
        .keys()
        .filter(|id| !after.contains_key(*id))
        .map(|id| format!("{what} {id} is gone"));
    let rest = after.iter().filter_map(|(id, now)| match before.get(id) {
        None => Some(format!("{what} {id} is new")),
        Some(then) if then != now => Some(format!("{what} {id} was {then} and became {now}")),
        Some(_) => None,
    });
    gone.chain(rest).collect()
}
