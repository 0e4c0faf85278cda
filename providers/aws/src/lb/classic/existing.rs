//! Services with a classic load balancer that upstream created: its instances follow the nodes, and
//! the rest stays until the Service is deleted.

use ccm_core::{
    k8s::ServiceView,
    provider::{Backends, CloudError, EventType, LbOutcome, LbSpec, Op, PlannedChange, Progress},
};

use crate::api::{
    InstanceId,
    elb::{ClassicLoadBalancer, DescribeClassic},
};
use crate::lb::{
    NetworkLoadBalancers,
    classic::ClassicLoadBalancers,
    model::{DesiredLoadBalancer, ServiceKey},
    names, retry_delay, status,
};

/// An existing classic load balancer; `None` if it is not this cluster's.
pub(in crate::lb) struct ExistingClassic {
    load_balancer: Option<ClassicLoadBalancer>,
    name: Box<str>,
}

/// The desired instances of a classic load balancer.
struct DesiredInstances {
    registered: Vec<InstanceId>,
    /// Pending while stopped instances are left out.
    progress: Progress,
}

impl NetworkLoadBalancers {
    /// Finds the classic load balancer for a host name in the status that looks like one. A Network
    /// Load Balancer may have such a name too, so the Service's own are checked first.
    pub(in crate::lb) async fn find_classic(
        &self,
        op: &Op,
        service: &ServiceView,
        desired: Option<&DesiredLoadBalancer>,
    ) -> Result<Option<ExistingClassic>, CloudError> {
        let Some(hostname) = status::hostname(&service.status) else {
            return Ok(None);
        };
        if self
            .reconciler
            .sync_states
            .has_dns_name(&service.uid, hostname)
        {
            return Ok(None);
        }
        let owner = ServiceKey {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            uid: service.uid.clone(),
        };
        for name in self.names(&owner, desired, service) {
            let found = self.reconciler.observer.get_by_name(op, &name).await?;
            if found.is_some_and(|load_balancer| *load_balancer.dns_name == *hostname) {
                return Ok(None);
            }
        }
        let name = names::load_balancer(&service.uid);
        let request = DescribeClassic { names: vec![name.clone()], ..DescribeClassic::default() };
        match self.reconciler.scope.client.read(op, request).await {
            Ok(page) if page.items.iter().any(|balancer| balancer.name == name) => {}
            Ok(_) => return Ok(None),
            Err(error) if error.has_code("LoadBalancerNotFound") => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        Ok(Some(ExistingClassic {
            load_balancer: self.classic.find(op, &service.uid).await?,
            name,
        }))
    }

    /// Synchronizes the instances; any other change of the Service has no effect.
    pub(in crate::lb) async fn ensure_classic(
        &self,
        op: &Op,
        old: &ExistingClassic,
        lb_spec: &LbSpec,
    ) -> LbOutcome {
        let outcome = self.update_classic(op, old, lb_spec).await;
        let note = format!(
            "service has a classic load balancer, {}: its nodes are looked after, changes of the Service have no effect; \
             delete and recreate the Service for a network load balancer",
            old.name
        );
        op.event(EventType::Warning, "ClassicLoadBalancer", &note);
        outcome
    }

    pub(in crate::lb) async fn update_classic(
        &self,
        op: &Op,
        old: &ExistingClassic,
        lb_spec: &LbSpec,
    ) -> LbOutcome {
        let result = match &old.load_balancer {
            Some(load_balancer) => self.sync_classic(op, load_balancer, lb_spec).await,
            None => Err(CloudError::invalid_input(format!(
                "service has a classic load balancer, {}, that is not this cluster's; delete and recreate the Service",
                old.name
            ))),
        };
        LbOutcome {
            status: None,
            annotations: std::collections::BTreeMap::new(),
            result,
        }
    }

    async fn sync_classic(
        &self,
        op: &Op,
        load_balancer: &ClassicLoadBalancer,
        lb_spec: &LbSpec,
    ) -> Result<Progress, CloudError> {
        let Some(desired) = self.desired_instances(op, load_balancer, lb_spec).await else {
            return Ok(Progress::Done);
        };
        self.classic
            .sync_instances(op, load_balancer, &desired.registered)
            .await?;
        Ok(desired.progress)
    }

    pub(in crate::lb) async fn plan_classic(
        &self,
        op: &Op,
        old: &ExistingClassic,
        lb_spec: &LbSpec,
    ) -> Vec<PlannedChange> {
        let Some(load_balancer) = &old.load_balancer else {
            return Vec::new();
        };
        let Some(desired) = self.desired_instances(op, load_balancer, lb_spec).await else {
            return Vec::new();
        };
        if desired.progress == Progress::Done
            && !ClassicLoadBalancers::instances_differ(load_balancer, &desired.registered)
        {
            return Vec::new();
        }
        vec![PlannedChange {
            operation: "RegisterInstancesWithLoadBalancer".into(),
            object: load_balancer.name.clone(),
            reason: "members differ".into(),
        }]
    }

    /// Returns the desired instances: a stopped instance stays registered but is not newly
    /// registered. `None` keeps the current ones, because a classic load balancer
    /// cannot have endpoints.
    async fn desired_instances(
        &self,
        op: &Op,
        load_balancer: &ClassicLoadBalancer,
        lb_spec: &LbSpec,
    ) -> Option<DesiredInstances> {
        let Backends::Nodes(nodes) = &lb_spec.backends else {
            return None;
        };
        let found = self.reconciler.node_instances(op, nodes).await;
        let (registered, stopped): (Vec<_>, Vec<_>) = found
            .instances
            .into_iter()
            .partition(|id| !found.stopped.contains(id) || load_balancer.instances.contains(id));
        let progress = if stopped.is_empty() {
            Progress::Done
        } else {
            Progress::Pending {
                after: retry_delay::rejected_targets(op),
                why: format!("{} instances are stopped and no members yet", stopped.len()).into(),
            }
        };
        Some(DesiredInstances { registered, progress })
    }
}
