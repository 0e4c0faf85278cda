//! Services with a classic load balancer that upstream created. Its instances follow the nodes. All
//! else stays unchanged until the Service is deleted.

use std::collections::BTreeMap;

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

/// An existing classic load balancer.
pub(in crate::lb) struct ExistingClassic {
    /// `None` if the load balancer belongs to another cluster.
    load_balancer: Option<ClassicLoadBalancer>,
    name: Box<str>,
}

/// The desired instances of a classic load balancer.
struct DesiredInstances {
    instances: Vec<InstanceId>,
    /// Pending while stopped instances are left out.
    progress: Progress,
}

impl NetworkLoadBalancers {
    /// Finds the classic load balancer whose host name the status seems to show. A Network Load
    /// Balancer may have such a host name too, so those of the Service are checked first.
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
            Ok(page) if page.items.iter().any(|found| found.name == name) => {}
            Ok(_) => return Ok(None),
            Err(error) if error.has_code("LoadBalancerNotFound") => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        Ok(Some(ExistingClassic {
            load_balancer: self.classic.find(op, &service.uid).await?,
            name,
        }))
    }

    /// Updates the instances, and warns that other changes of the Service have no effect.
    pub(in crate::lb) async fn ensure_classic(
        &self,
        op: &Op,
        classic: &ExistingClassic,
        lb_spec: &LbSpec,
    ) -> LbOutcome {
        let outcome = self.update_classic(op, classic, lb_spec).await;
        let note = format!(
            "service has a classic load balancer, {}: its instances follow the nodes, other changes of the Service have no effect; \
             delete and recreate the Service for a network load balancer",
            classic.name
        );
        op.event(EventType::Warning, "ClassicLoadBalancer", &note);
        outcome
    }

    pub(in crate::lb) async fn update_classic(
        &self,
        op: &Op,
        classic: &ExistingClassic,
        lb_spec: &LbSpec,
    ) -> LbOutcome {
        let result = match &classic.load_balancer {
            Some(load_balancer) => self.sync_classic(op, load_balancer, lb_spec).await,
            None => Err(CloudError::invalid_input(format!(
                "service has a classic load balancer, {}, that is not this cluster's; delete and recreate the Service",
                classic.name
            ))),
        };
        LbOutcome { status: None, annotations: BTreeMap::new(), result }
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
            .sync_instances(op, load_balancer, &desired.instances)
            .await?;
        Ok(desired.progress)
    }

    pub(in crate::lb) async fn plan_classic(
        &self,
        op: &Op,
        classic: &ExistingClassic,
        lb_spec: &LbSpec,
    ) -> Vec<PlannedChange> {
        let Some(load_balancer) = &classic.load_balancer else {
            return Vec::new();
        };
        let Some(desired) = self.desired_instances(op, load_balancer, lb_spec).await else {
            return Vec::new();
        };
        if desired.progress == Progress::Done
            && !ClassicLoadBalancers::instances_differ(load_balancer, &desired.instances)
        {
            return Vec::new();
        }
        vec![PlannedChange {
            operation: "RegisterInstancesWithLoadBalancer".into(),
            object: load_balancer.name.clone(),
            reason: "instances differ".into(),
        }]
    }

    /// Returns the desired instances. A stopped instance stays registered, but is not newly
    /// registered. For endpoints, which a classic load balancer cannot have, returns `None`: the
    /// current instances stay.
    async fn desired_instances(
        &self,
        op: &Op,
        load_balancer: &ClassicLoadBalancer,
        lb_spec: &LbSpec,
    ) -> Option<DesiredInstances> {
        let Backends::Nodes(nodes) = &lb_spec.backends else {
            return None;
        };
        let found = self.reconciler.resolve_nodes(op, nodes).await;
        let (instances, not_running): (Vec<_>, Vec<_>) = found
            .instances
            .into_iter()
            .partition(|id| !found.stopped.contains(id) || load_balancer.instances.contains(id));
        let progress = if not_running.is_empty() {
            Progress::Done
        } else {
            Progress::Pending {
                after: retry_delay::rejected_targets(op),
                reason: format!("{} stopped instances are not registered yet", not_running.len())
                    .into(),
            }
        };
        Some(DesiredInstances { instances, progress })
    }
}
