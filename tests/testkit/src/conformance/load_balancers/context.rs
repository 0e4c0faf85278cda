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

/// Namespace of the Services that rules create.
const NAMESPACE: &str = "conformance";
/// First port and node port. Each Service of a rule has its own, which identify its load balancer.
const FIRST_PORT: u16 = 8000;
const FIRST_NODE_PORT: u16 = 30000;
/// Name of a second cluster that must not be affected.
pub(super) const OTHER_CLUSTER: &str = "conformance-other";

impl RuleContext<'_, dyn LoadBalancerCloud> {
    /// Returns a new provider with empty caches, after checking that it has load balancers.
    pub(super) async fn provider(&self) -> Verdict<Arc<dyn CloudProvider>> {
        let provider = self.make().await?;
        match provider.load_balancers() {
            Some(_) => Ok(provider),
            None => Err(Problem::Unsupported("the provider has no load balancers".to_owned())),
        }
    }

    /// Returns a new provider of the second cluster.
    pub(super) async fn other_provider(&self) -> Verdict<Arc<dyn CloudProvider>> {
        match self.cloud.other_cluster().await? {
            Some(provider) => Ok(provider),
            None => self.provider().await,
        }
    }

    /// Returns `count` running nodes, the same ones in each call.
    pub(super) async fn nodes(&self, count: usize) -> Verdict<Vec<Arc<NodeView>>> {
        let mut pool = self.pool.lock().await;
        while pool.len() < count {
            pool.push(Arc::new(self.cloud.add_node(&self.name()).await?));
        }
        let mut nodes = pool[..count].to_vec();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(nodes)
    }

    /// Returns a Service with a name, UID, port and node port that are unique in this rule.
    pub(super) fn service(&self) -> ServiceView {
        let name = self.name();
        self.service_named(NAMESPACE, &name)
    }

    /// Returns such a Service with the given name, which need not be unique.
    pub(super) fn service_named(&self, namespace: &str, name: &str) -> ServiceView {
        // Rules create a few dozen names at most.
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

    /// Returns a driver for a new Service of this cluster, with a new provider.
    pub(super) async fn driver(&self, nodes: &[Arc<NodeView>]) -> Verdict<ServiceDriver<'_>> {
        Ok(self.driver_for(CLUSTER, self.provider().await?, self.service(), nodes))
    }

    pub(super) fn driver_for(
        &self,
        cluster: &'static str,
        provider: Arc<dyn CloudProvider>,
        service: ServiceView,
        nodes: &[Arc<NodeView>],
    ) -> ServiceDriver<'_> {
        ServiceDriver {
            ctx: self,
            provider,
            cluster,
            service,
            nodes: nodes.to_vec(),
            mutations: None,
            events: Arc::default(),
        }
    }

    pub(super) async fn snapshot(&self) -> Verdict<CloudSnapshot> {
        let load_balancers = self
            .cloud
            .load_balancers()
            .await?
            .into_iter()
            .map(|b| (b.id.clone(), b))
            .collect();
        Ok(CloudSnapshot { objects: self.cloud.objects().await?, load_balancers })
    }
}

/// Returns a Service port.
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

/// Returns the load balancer capability, whose presence was checked when the provider was created.
pub(super) fn load_balancers(provider: &Arc<dyn CloudProvider>) -> Verdict<&dyn LoadBalancers> {
    provider.load_balancers().ok_or_else(|| {
        Problem::Failed(
            "load_balancers() returned None, but returned a capability before".to_owned(),
        )
    })
}

/// Load balancers and other objects in the cloud at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CloudSnapshot {
    pub(super) objects: BTreeMap<String, String>,
    pub(super) load_balancers: BTreeMap<String, CloudLoadBalancer>,
}

impl CloudSnapshot {
    /// Returns the load balancers that are not in `before`.
    pub(super) fn new_since<'a>(
        &'a self,
        before: &Self,
    ) -> impl Iterator<Item = &'a CloudLoadBalancer> {
        self.load_balancers
            .values()
            .filter(|load_balancer| !before.load_balancers.contains_key(&load_balancer.id))
    }

    /// Returns the only load balancer created since `before`, after checking that it has the desired
    /// ports and members.
    pub(super) fn served_since(
        &self,
        before: &Self,
        driver: &ServiceDriver<'_>,
    ) -> Result<&CloudLoadBalancer, String> {
        let made: Vec<_> = self.new_since(before).collect();
        let [load_balancer] = made[..] else {
            let ids: Vec<_> = made
                .iter()
                .map(|load_balancer| &*load_balancer.id)
                .collect();
            return Err(format!("{} load balancers were created: {ids:?}", made.len()));
        };
        let ports = desired_ports(&driver.service);
        if load_balancer.ports != ports {
            return Err(format!(
                "load balancer {} listens on {:?} instead of {ports:?}",
                load_balancer.id, load_balancer.ports
            ));
        }
        let nodes = driver.node_names();
        if load_balancer.members != nodes {
            return Err(format!(
                "load balancer {} has members {:?} instead of {nodes:?}",
                load_balancer.id, load_balancer.members
            ));
        }
        Ok(load_balancer)
    }

    /// Describes the changes since `before`. Empty if nothing changed.
    pub(super) fn changes_since(&self, before: &Self) -> String {
        let mut changes = compare("object", &before.objects, &self.objects);
        let show = |snapshot: &Self| {
            snapshot
                .load_balancers
                .iter()
                .map(|(id, b)| (id.clone(), format!("{b:?}")))
                .collect()
        };
        changes.extend(compare("load balancer", &show(before), &show(self)));
        changes.join("; ")
    }

    /// Clears the members of one load balancer.
    pub(super) fn without_members(mut self, id: &str) -> Self {
        if let Some(load_balancer) = self.load_balancers.get_mut(id) {
            load_balancer.members.clear();
        }
        self
    }
}

pub(super) fn desired_ports(service: &ServiceView) -> BTreeSet<(Protocol, u16)> {
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
    let deleted = before
        .keys()
        .filter(|id| !after.contains_key(*id))
        .map(|id| format!("{what} {id} was deleted"));
    let created_or_changed = after.iter().filter_map(|(id, now)| match before.get(id) {
        None => Some(format!("{what} {id} was created")),
        Some(then) if then != now => Some(format!("{what} {id} changed from {then} to {now}")),
        Some(_) => None,
    });
    deleted.chain(created_or_changed).collect()
}
