//! Load balancers: Octavia.
//!
//! A Service is [read](interpret), what there is of it is looked at, a [plan] says what differs, and its steps are carried out
//! one by one: Octavia takes one change of a balancer at a time. Nothing is needed to take up what was broken off anywhere
//! but names that do not change and tags that are there from the start.

pub mod annotations;
mod api;
mod apply;
mod body;
mod bring;
mod compare;
mod delete;
pub mod features;
mod floating;
pub mod interpret;
mod inventory;
mod memory;
mod mend;
pub mod model;
pub mod names;
pub mod nodes;
mod observe;
pub mod ownership;
pub mod plan;
mod polls;
pub mod security;
pub mod seen;
pub mod settings;
mod status;
pub mod subnets;
mod sweep;
mod way;

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{
    k8s::ServiceView,
    provider::{
        Backends, Claim, CloudError, Depth, Digest, LbOutcome, LbRef, LbSpec, LbSupport, Op, PlannedChange, Progress,
        Remark,
    },
};

use self::{
    annotations::Reader,
    bring::{Core, Order},
    delete::Doomed,
    features::Features,
    floating::Networks,
    interpret::Reading,
    memory::Memory,
    model::{OwnerName, Wanted},
    polls::Polls,
    security::Groups,
    settings::Settings,
    sweep::Sweeps,
};
use crate::client::{Call, Client};

/// Kinds of requests by which load balancers are changed.
pub const MUTATIONS: &[Call] = &[
    Call::LoadBalancerCreate,
    Call::LoadBalancerUpdate,
    Call::LoadBalancerDelete,
    Call::LoadBalancerFailover,
    Call::ListenerCreate,
    Call::ListenerUpdate,
    Call::ListenerDelete,
    Call::PoolCreate,
    Call::PoolUpdate,
    Call::PoolDelete,
    Call::MemberCreate,
    Call::MemberUpdate,
    Call::MemberDelete,
    Call::MembersUpdate,
    Call::MonitorCreate,
    Call::MonitorUpdate,
    Call::MonitorDelete,
    Call::FloatingIpCreate,
    Call::FloatingIpUpdate,
    Call::FloatingIpDelete,
    Call::PortUpdate,
    Call::PortTagDelete,
    Call::SecurityGroupCreate,
    Call::SecurityGroupDelete,
    Call::SecurityGroupRulesCreate,
    Call::SecurityGroupRuleDelete,
];

/// Load balancers of Octavia.
pub struct LoadBalancers {
    core: Core,
}

impl LoadBalancers {
    /// Makes the part, which knows nothing yet.
    ///
    /// # Errors
    /// Octavia does not say which versions it has.
    pub async fn new(client: Client, settings: Settings, cluster: Arc<str>) -> Result<Self, CloudError> {
        let version = client.session().octavia().await?;
        let features = Features::of((version.0, version.1), &settings.driver);
        let (memory, networks, groups) = (Memory::default(), Networks::default(), Groups::default());
        let (sweeps, polls) = (Sweeps::new(settings.manage_security_groups), Polls::default());
        Ok(Self { core: Core { client, settings, features, cluster, memory, networks, groups, sweeps, polls } })
    }

    fn read(&self, service: &ServiceView) -> Reading {
        interpret::read(service, &self.core.settings, self.core.features, &self.core.cluster)
    }

    fn wanted(&self, want: &LbSpec) -> Result<Box<Wanted>, CloudError> {
        self.read(&want.service).wanted.map_err(CloudError::from)
    }
}

#[async_trait]
impl ccm_core::provider::LoadBalancers for LoadBalancers {
    /// Everything, but source ranges only where something enforces them: the cloud's listeners, or security groups of nodes
    /// that see clients' addresses. Of two address families the first is served, with a remark. Members are reached by node
    /// ports alone.
    fn supports(&self) -> LbSupport {
        let by_groups = self.core.settings.driver.is_ovn() && self.core.settings.manage_security_groups;
        LbSupport {
            source_ranges: self.core.features.allowed_cidrs || by_groups,
            udp: true,
            sctp: true,
            mixed_protocols: true,
            dual_stack: true,
            no_node_ports: false,
            load_balancer_ip: true,
            client_ip_affinity: true,
        }
    }

    fn interpret(&self, service: &ServiceView) -> Claim {
        match self.read(service).wanted {
            Ok(wanted) => {
                let backends = Backends::Nodes(wanted.node_labels.clone());
                Claim::Ours { backends, digest: Digest::of(&wanted) }
            }
            Err(mistakes) => Claim::Refused(mistakes),
        }
    }

    fn backends_of_invalid(&self, service: &ServiceView) -> Option<Backends> {
        self.read(service).tolerant.map(|wanted| Backends::Nodes(wanted.node_labels))
    }

    fn remarks(&self, service: &ServiceView) -> Vec<Remark> {
        self.read(service).remarks
    }

    /// Nothing is asked and nothing changed for what is known to be in line. What is broken off anywhere is taken up by the
    /// next call. While Octavia is busy with a change the answer is to wait.
    async fn ensure(&self, op: &Op, want: &LbSpec, depth: Depth) -> LbOutcome {
        match self.wanted(want) {
            Ok(wanted) => self.core.ensure(op, &Order::new(&wanted, &want.service, &want.backends), depth).await,
            Err(error) => error.into(),
        }
    }

    /// One request for each pool, whose members are remembered.
    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        let Reading { wanted, tolerant, .. } = self.read(&want.service);
        let invalid = wanted.is_err();
        match wanted.or_else(|mistakes| tolerant.ok_or(mistakes)) {
            Ok(wanted) => {
                let order = Order { invalid, ..Order::new(&wanted, &want.service, &want.backends) };
                self.core.update_backends(op, &order).await
            }
            Err(mistakes) => CloudError::from(mistakes).into(),
        }
    }

    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let owner = OwnerName { namespace: lb.namespace.clone(), name: lb.name.clone(), uid: lb.uid.clone() };
        let service = last_seen(lb);
        let keep = Reader::new(&service).boolean(&annotations::KEEP_FLOATING_IP, false);
        self.core.delete(op, &Doomed { owner: &owner, service: &service, keep }).await
    }

    fn stale_annotations(&self, _: &LbRef) -> Vec<Box<str>> {
        vec![annotations::LOAD_BALANCER_ID.key(), annotations::LOAD_BALANCER_ADDRESS.key()]
    }

    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        let wanted = self.wanted(want)?;
        self.core.plan(op, &Order::new(&wanted, &want.service, &want.backends)).await
    }
}

/// Returns the Service as it was last seen; what is left of it, if it was not seen.
fn last_seen(lb: &LbRef) -> ServiceView {
    let service = lb.last_seen.as_deref().cloned();
    let service = service.unwrap_or_else(|| ServiceView::named(&lb.namespace, &lb.name));
    ServiceView {
        uid: lb.uid.clone(),
        class: lb.class.clone(),
        annotations: lb.annotations.clone(),
        status: lb.status.clone(),
        ..service
    }
}

#[cfg(test)]
mod tests;
