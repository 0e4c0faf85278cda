//! Load balancers: Network Load Balancers for Services.
//!
//! A Service is [read](interpret), what there is of it is looked at, a [plan] says what differs, and its steps are
//! carried out one by one. Nothing is needed to take up what was broken off anywhere but names that do not change and tags
//! that are there from the start.

pub mod annotations;
mod apply;
mod backing;
mod bring;
mod cached;
pub mod classic;
mod delete;
mod denials;
pub mod effect;
#[cfg(test)]
mod fixtures;
mod health;
mod interfaces;
pub mod interpret;
mod inventory;
mod listeners;
mod members;
mod memory;
pub mod model;
pub mod names;
mod observe;
mod old;
mod ownership;
pub mod plan;
pub mod pods;
mod register;
pub mod security;
pub mod seen;
mod status;
pub mod subnets;
mod surroundings;
mod sweep;
mod targets;
pub mod vpc;

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{
    k8s::ServiceView,
    provider::{
        BackendSet, Backends, Claim, CloudError, Depth, Digest, ErrorKind, LbOutcome, LbRef, LbSpec, LbSupport,
        LoadBalancers, NodeTarget, Op, PlannedChange, Progress, Remark,
    },
};

use self::{
    bring::{Core, Order},
    classic::Classic,
    delete::Doomed,
    interpret::{Reading, Verdict},
    model::{Groups, OwnerName, Wanted},
    old::Old,
};
use crate::{
    api::{SecurityGroupId, elb::TargetType},
    client,
    instances::InstanceStore,
    scope::Scope,
};

/// Network Load Balancers; and classic ones that upstream made, as far as members and deletion go.
pub struct NetworkLoadBalancers {
    core: Core,
    classic: Classic,
}

impl NetworkLoadBalancers {
    /// Makes the part, which knows nothing yet.
    pub fn new(scope: Scope, store: Arc<InstanceStore>) -> Self {
        Self { classic: Classic::new(scope.clone()), core: Core::new(scope, store) }
    }

    fn read(&self, service: &ServiceView) -> Reading {
        interpret::read(service, &self.core.scope.settings, &self.core.scope.cluster)
    }

    /// Tells what a call is about.
    async fn subject(&self, op: &Op, want: &LbSpec) -> Result<Subject, CloudError> {
        let Reading { verdict, looks_classic, tolerant, .. } = self.read(&want.service);
        let wanted = match verdict {
            Verdict::Elsewhere => {
                let message = format!("service {} is another controller's", want.service.key());
                return Err(CloudError::new(ErrorKind::ImplementedElsewhere, message));
            }
            Verdict::Nlb(wanted) => Ok(wanted),
            Verdict::Refused(mistakes) => Err(CloudError::from(mistakes)),
        };
        if looks_classic && let Some(old) = self.old(op, &want.service, wanted.as_deref().ok()).await? {
            return Ok(Subject::Old(old));
        }
        match (wanted, tolerant) {
            (Ok(wanted), _) => Ok(Subject::Network(wanted)),
            (Err(mistakes), Some(wanted)) if takes(&wanted, &want.backends) => Ok(Subject::Invalid(wanted, mistakes)),
            (Err(mistakes), _) => Err(mistakes),
        }
    }
}

/// What a call is about.
enum Subject {
    /// A network load balancer.
    Network(Box<Wanted>),
    /// A classic one that is there from before.
    Old(Old),
    /// A network load balancer from before, whose Service is invalid now: what it wants as far as its targets go, and what is
    /// wrong.
    Invalid(Box<Wanted>, CloudError),
}

#[async_trait]
impl LoadBalancers for NetworkLoadBalancers {
    /// Everything but SCTP. What of it one Service cannot have together with something else says
    /// [`interpret`](Self::interpret).
    fn supports(&self) -> LbSupport {
        LbSupport {
            source_ranges: true,
            udp: true,
            sctp: false,
            mixed_protocols: true,
            dual_stack: true,
            no_node_ports: true,
            load_balancer_ip: true,
            client_ip_affinity: true,
        }
    }

    fn classes(&self) -> Vec<Box<str>> {
        self.core.scope.settings.classes.clone()
    }

    fn takes_endpoints(&self) -> bool {
        true
    }

    fn node_target(&self) -> NodeTarget {
        NodeTarget::Instance
    }

    /// The digest is that of everything that is wanted. A Service that shows a classic balancer is served as far as that
    /// goes, whatever else it says.
    fn interpret(&self, service: &ServiceView) -> Claim {
        let reading = self.read(service);
        match reading.verdict {
            Verdict::Nlb(wanted) => Claim::Ours { backends: wanted.backends(), digest: Digest::of(&wanted) },
            Verdict::Elsewhere => Claim::Elsewhere,
            Verdict::Refused(mistakes) if reading.looks_classic => {
                let mistakes: Vec<_> = mistakes.iter().map(|m| (m.field.clone(), m.message.clone())).collect();
                let nodes = interpret::nodes_of(service);
                let digest = Digest::of(&(mistakes, &nodes));
                Claim::Ours { backends: Backends::Nodes(nodes), digest }
            }
            Verdict::Refused(mistakes) => Claim::Refused(mistakes),
        }
    }

    fn backends_of_invalid(&self, service: &ServiceView) -> Option<Backends> {
        self.read(service).tolerant.map(|wanted| wanted.backends())
    }

    fn remarks(&self, service: &ServiceView) -> Vec<Remark> {
        self.read(service).remarks
    }

    /// Nothing is asked and nothing changed for what is known to be in line. What is broken off anywhere is taken up by the
    /// next call. The host name is published while the balancer is being provisioned.
    async fn ensure(&self, op: &Op, want: &LbSpec, depth: Depth) -> LbOutcome {
        match self.subject(op, want).await {
            Ok(Subject::Network(wanted)) => in_turn(Box::pin(self.core.ensure(op, &order(&wanted, want), depth)).await),
            Ok(Subject::Old(old)) => in_turn(self.ensure_old(op, &old, want).await),
            Ok(Subject::Invalid(_, mistakes)) => mistakes.into(),
            Err(error) => in_turn(error.into()),
        }
    }

    /// One registration for each target group, and one deregistration: what is registered is remembered. Of an invalid Service
    /// no rule is changed, because its clients may be read wrongly.
    async fn update_backends(&self, op: &Op, want: &LbSpec) -> LbOutcome {
        match self.subject(op, want).await {
            Ok(Subject::Network(wanted)) => in_turn(self.core.update_backends(op, &order(&wanted, want)).await),
            Ok(Subject::Old(old)) => in_turn(self.update_old(op, &old, want).await),
            Ok(Subject::Invalid(wanted, _)) => {
                let order = Order { targets_only: true, ..order(&wanted, want) };
                in_turn(self.core.update_backends(op, &order).await)
            }
            Err(error) => in_turn(error.into()),
        }
    }

    /// Refuses while the Service asks for deletion protection.
    async fn delete(&self, op: &Op, lb: &LbRef) -> Result<Progress, CloudError> {
        let service = last_seen(lb);
        let reading = self.read(&service);
        let wanted = match &reading.verdict {
            Verdict::Nlb(wanted) => Some(&**wanted),
            _ => None,
        };
        let protected = interpret::asks_for_protection(&service.annotations);
        if protected || wanted.is_some_and(|wanted| wanted.deletion_protection) {
            return Err(CloudError::invalid_input(format!(
                "deletion_protection is enabled, cannot delete the service: {}",
                service.key()
            ))
            .with_reason("DeletionProtected"));
        }
        let owner = OwnerName { namespace: lb.namespace.clone(), name: lb.name.clone(), uid: lb.uid.clone() };
        let names = self.names(&owner, wanted, &service);
        let keep = given_groups(wanted);
        let progress = wait(self.core.delete(op, &Doomed { owner: &owner, names: &names, keep: &keep }).await)?;
        if progress == Progress::Done && reading.looks_classic {
            return wait(self.classic.delete(op, &lb.uid).await);
        }
        Ok(progress)
    }

    async fn plan(&self, op: &Op, want: &LbSpec) -> Result<Vec<PlannedChange>, CloudError> {
        match self.subject(op, want).await.map_err(later)? {
            Subject::Network(wanted) => self.core.plan(op, &order(&wanted, want)).await.map_err(later),
            Subject::Old(old) => Ok(self.plan_old(op, &old, want).await),
            Subject::Invalid(_, mistakes) => Err(mistakes),
        }
    }
}

impl NetworkLoadBalancers {
    /// Returns the names that the balancer of a Service may have. AWS refuses to look for what is none.
    fn names(&self, owner: &OwnerName, wanted: Option<&Wanted>, service: &ServiceView) -> Vec<Box<str>> {
        let mut found = vec![names::load_balancer(&owner.uid)];
        let chosen = format!("{}name", annotations::PREFIX);
        let chosen =
            service.annotations.get(&*chosen).map(|name| name.trim()).filter(|name| names::mistake(name).is_none());
        let claimed = service.class.is_some() || self.core.scope.settings.claim_external;
        let cluster = &self.core.scope.cluster;
        let by_scheme = crate::api::elb::Scheme::ALL.iter().filter(|_| claimed);
        let by_scheme = by_scheme.map(|scheme| names::claimed_load_balancer(cluster, owner, *scheme));
        let all = wanted.map(|wanted| wanted.name.clone()).into_iter().chain(chosen.map(Into::into)).chain(by_scheme);
        for name in all {
            if !found.contains(&name) {
                found.push(name);
            }
        }
        found
    }
}

/// Waits for our own budget: that it is used up is nothing that AWS said, and no other Service's concern.
fn wait(result: Result<Progress, CloudError>) -> Result<Progress, CloudError> {
    result.or_else(|error| match client::turn_after(&error) {
        Some(after) => Ok(Progress::Pending { after, why: error.to_string().into() }),
        None => Err(error),
    })
}

/// As [`wait`], where there is no waiting.
fn later(error: CloudError) -> CloudError {
    match client::turn_after(&error) {
        Some(after) => CloudError::transient(error.to_string()).with_retry_after(after).with_source(error),
        None => error,
    }
}

fn in_turn(outcome: LbOutcome) -> LbOutcome {
    LbOutcome { result: wait(outcome.result), ..outcome }
}

fn order<'a>(wanted: &'a Wanted, want: &'a LbSpec) -> Order<'a> {
    Order { wanted, service: &want.service, backends: &want.backends, targets_only: false }
}

/// Tells whether backends are of the kind that is wanted: instances in a target group of addresses would push out all others.
fn takes(wanted: &Wanted, backends: &BackendSet) -> bool {
    matches!(
        (wanted.target_type, backends),
        (TargetType::Instance, BackendSet::Nodes(_)) | (TargetType::Ip, BackendSet::Endpoints(_))
    )
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

/// Returns the security groups that a Service names by ID.
fn given_groups(wanted: Option<&Wanted>) -> Vec<SecurityGroupId> {
    match wanted.map(|wanted| &wanted.security.groups) {
        Some(Groups::Given(names)) => {
            names.iter().filter(|name| name.starts_with("sg-")).map(|id| SecurityGroupId::from(&**id)).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
