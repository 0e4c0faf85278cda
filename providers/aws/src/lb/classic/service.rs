//! Services with a classic load balancer: creates, follows, compares and deletes it.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::{
    k8s::ServiceView,
    provider::{
        Backends, CloudError, Digest, ErrorKind, EventType, LbOutcome, LbSpec, Op, PlannedChange,
        Progress,
    },
};

use super::{
    AppliedClassic, FoundClassic, InstanceChange,
    apply::choose_subnets,
    instance_change,
    model::{ClassicGroups, ClassicReading, DesiredClassic},
    plan::{self, ClassicPlanInput, ObservedClassic},
    status_of,
};
use crate::{
    api::{InstanceId, classic::ClassicLoadBalancer},
    lb::{
        NetworkLoadBalancers,
        model::{DesiredLoadBalancer, ServiceKey},
        names,
        reconcile::as_transient,
        retry_delay,
        security_groups::classic::ClassicRuleRequest,
        spec, status,
    },
};

/// A Service with a classic load balancer, or that requests one.
pub(in crate::lb) struct ClassicService {
    owner: ServiceKey,
    /// The load balancer; `None` if it does not exist.
    existing: Option<ObservedClassic>,
    reading: ClassicReading,
    /// True if the Service requests another type now. Then only its instances follow the nodes.
    is_other_type_requested: bool,
}

/// The desired instances of a classic load balancer.
struct DesiredInstances {
    instances: BTreeSet<InstanceId>,
    /// Pending while stopped instances are left out.
    progress: Progress,
}

fn key_of(service: &ServiceView) -> ServiceKey {
    ServiceKey {
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        uid: service.uid.clone(),
    }
}

impl NetworkLoadBalancers {
    /// Reads the classic load balancer of a Service that requests one.
    ///
    /// # Errors
    /// A load balancer of that name that is somebody else's, a Network Load Balancer of the Service
    /// ([`InvalidInput`](ErrorKind::InvalidInput)), and errors of AWS.
    pub(in crate::lb) async fn requested_classic(
        &self,
        op: &Op,
        service: &ServiceView,
        reading: ClassicReading,
    ) -> Result<ClassicService, CloudError> {
        let owner = key_of(service);
        let denials = self.reconciler.observer.denials();
        let existing = match self.classic.find(op, &owner, denials).await? {
            Some(found) => Some(owned(&owner, found)?),
            None => {
                // AWS would accept both under one name.
                let name = names::load_balancer(&owner.uid);
                if self
                    .reconciler
                    .observer
                    .get_by_name(op, &name)
                    .await?
                    .is_some()
                {
                    return Err(spec::network_to_classic_error());
                }
                None
            }
        };
        Ok(ClassicService { owner, existing, reading, is_other_type_requested: false })
    }

    /// Finds the classic load balancer whose host name the status of a Service seems to show, although
    /// the Service requests a Network Load Balancer. Such a one may have such a host name too, so those
    /// of the Service are checked first.
    pub(in crate::lb) async fn remaining_classic(
        &self,
        op: &Op,
        service: &ServiceView,
        desired: Option<&DesiredLoadBalancer>,
        reading: ClassicReading,
    ) -> Result<Option<ClassicService>, CloudError> {
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
        let owner = key_of(service);
        for name in self.names(&owner, desired, service) {
            let found = self.reconciler.observer.get_by_name(op, &name).await?;
            if found.is_some_and(|load_balancer| *load_balancer.dns_name == *hostname) {
                return Ok(None);
            }
        }
        let denials = self.reconciler.observer.denials();
        let Some(found) = self.classic.find(op, &owner, denials).await? else {
            return Ok(None);
        };
        Ok(Some(ClassicService {
            existing: Some(owned(&owner, found)?),
            owner,
            reading,
            is_other_type_requested: spec::requests_network_load_balancer(service),
        }))
    }

    /// Returns the outcome of a sync without any request if the Service was applied like this before.
    pub(in crate::lb) async fn classic_in_sync(
        &self,
        op: &Op,
        lb_spec: &LbSpec,
    ) -> Option<LbOutcome> {
        if spec::requests_network_load_balancer(&lb_spec.service) {
            return None;
        }
        let applied = self
            .classic
            .applied
            .lock()
            .get(&lb_spec.service.uid)
            .cloned()?;
        let desired = self.parse(&lb_spec.service).classic?.desired.ok()?;
        let Backends::Nodes(nodes) = &lb_spec.backends else {
            return None;
        };
        let found = self.reconciler.resolve_nodes(op, nodes).await;
        let is_same = applied.digest == digest(&desired, &found.instances);
        is_same.then(|| LbOutcome {
            status: Some(applied.status),
            annotations: BTreeMap::new(),
            result: Ok(Progress::Done),
        })
    }

    /// Creates or updates the load balancer. Instances and the rules of their groups follow the nodes
    /// even if anything else is invalid or fails.
    pub(in crate::lb) async fn ensure_classic(
        &self,
        op: &Op,
        mut service: ClassicService,
        lb_spec: &LbSpec,
    ) -> LbOutcome {
        self.classic.applied.lock().remove(&service.owner.uid);
        let result = self.sync_classic(op, &mut service, lb_spec).await;
        let load_balancer = service.existing.as_ref().map(|existing| &existing.resource);
        let status = load_balancer.and_then(status_of);
        if service.is_other_type_requested {
            let note = format!(
                "service has a classic load balancer, {}: its instances follow the nodes, other changes of the Service have no \
                 effect; delete and recreate the Service for a network load balancer",
                names::load_balancer(&service.owner.uid)
            );
            op.event(EventType::Warning, "ClassicLoadBalancer", &note);
        }
        LbOutcome {
            status,
            annotations: BTreeMap::new(),
            result: result.map_err(as_transient),
        }
    }

    async fn sync_classic(
        &self,
        op: &Op,
        service: &mut ClassicService,
        lb_spec: &LbSpec,
    ) -> Result<Progress, CloudError> {
        let instances = self
            .desired_instances(op, service.existing.as_ref(), lb_spec)
            .await;
        let ids: Vec<InstanceId> = instances
            .iter()
            .flat_map(|desired| desired.instances.iter().cloned())
            .collect();
        let replaced = service
            .existing
            .as_ref()
            .map_or_else(Vec::new, |existing| existing.resource.security_groups.clone());
        // Apply the settings.
        let settings = match &service.reading.desired {
            _ if service.is_other_type_requested => Ok(()),
            Err(errors) => Err(CloudError::from(errors.clone())),
            Ok(desired) => {
                self.apply_settings(op, desired, &mut service.existing, &ids)
                    .await
            }
        };
        let Some(existing) = &service.existing else {
            return settings.map(|()| Progress::Done);
        };
        if let Err(error) = &settings
            && matches!(error.kind(), ErrorKind::NotLeader | ErrorKind::Throttled)
        {
            return settings.map(|()| Progress::Done);
        }
        // Follow the nodes.
        let groups = &service.reading.groups;
        let followed = match &instances {
            Some(desired) => {
                self.follow_nodes(op, &existing.resource, groups, desired)
                    .await
            }
            None => Ok(Progress::Done),
        };
        settings?;
        let mut progress = vec![followed?];
        // Remove what is not needed any more.
        if let Ok(desired) = &service.reading.desired
            && !service.is_other_type_requested
        {
            let manager = &self.reconciler.deps.security_groups;
            manager.trim_classic_group(op, desired).await?;
            for group in &replaced {
                if !existing.resource.security_groups.contains(group) {
                    manager
                        .forget_classic_source(op, &desired.name, group)
                        .await?;
                }
            }
            progress.push(manager.delete_replaced_classic_group(op, desired).await?);
            self.record_applied(existing, desired, instances.as_ref(), &progress);
        }
        Ok(progress
            .into_iter()
            .find(|progress| *progress != Progress::Done)
            .unwrap_or(Progress::Done))
    }

    async fn apply_settings(
        &self,
        op: &Op,
        desired: &DesiredClassic,
        existing: &mut Option<ObservedClassic>,
        instances: &[InstanceId],
    ) -> Result<(), CloudError> {
        if let Some(existing) = existing {
            let denials = self.reconciler.observer.denials();
            existing.attributes = self.classic.attributes(op, &desired.owner, denials).await?;
        }
        self.classic
            .apply(op, &self.reconciler, desired, existing, instances)
            .await
    }

    /// Lets the groups of nodes admit the load balancer, registers and deregisters instances, and
    /// revokes rules that none of them needs. A failure of one does not prevent the next.
    async fn follow_nodes(
        &self,
        op: &Op,
        load_balancer: &ClassicLoadBalancer,
        requested: &ClassicGroups,
        desired: &DesiredInstances,
    ) -> Result<Progress, CloudError> {
        let manager = &self.reconciler.deps.security_groups;
        let ids: Vec<InstanceId> = desired.instances.iter().cloned().collect();
        let request = ClassicRuleRequest {
            name: &load_balancer.name,
            groups: &load_balancer.security_groups,
            requested,
            instances: &ids,
        };
        let admitted = manager.admit_classic(op, &request).await;
        self.classic
            .sync_instances(op, load_balancer, &desired.instances)
            .await?;
        admitted?;
        manager.expel_classic(op, &request).await?;
        Ok(desired.progress.clone())
    }

    fn record_applied(
        &self,
        existing: &ObservedClassic,
        desired: &DesiredClassic,
        instances: Option<&DesiredInstances>,
        progress: &[Progress],
    ) {
        let is_done = progress.iter().all(|progress| *progress == Progress::Done);
        if let (true, Some(instances), Some(status)) =
            (is_done, instances, status_of(&existing.resource))
        {
            let digest = digest(desired, &instances.instances);
            self.classic
                .applied
                .lock()
                .insert(desired.owner.uid.clone(), AppliedClassic { digest, status });
        }
    }

    /// Lets instances and the rules of their groups follow the nodes.
    pub(in crate::lb) async fn update_classic(
        &self,
        op: &Op,
        service: &ClassicService,
        lb_spec: &LbSpec,
    ) -> LbOutcome {
        self.classic.applied.lock().remove(&service.owner.uid);
        let result = match &service.existing {
            None => {
                let name = names::load_balancer(&service.owner.uid);
                let message = format!("load balancer {name} does not exist");
                Err(CloudError::new(ErrorKind::NotFound, message))
            }
            Some(existing) => {
                let groups = &service.reading.groups;
                match self.desired_instances(op, Some(existing), lb_spec).await {
                    Some(desired) => self
                        .follow_nodes(op, &existing.resource, groups, &desired)
                        .await
                        .map_err(as_transient),
                    None => Ok(Progress::Done),
                }
            }
        };
        LbOutcome { status: None, annotations: BTreeMap::new(), result }
    }

    /// Returns the desired instances. A stopped instance stays registered, but is not newly
    /// registered. For endpoints, which a classic load balancer cannot have, returns `None`: the
    /// current instances stay.
    async fn desired_instances(
        &self,
        op: &Op,
        existing: Option<&ObservedClassic>,
        lb_spec: &LbSpec,
    ) -> Option<DesiredInstances> {
        let Backends::Nodes(nodes) = &lb_spec.backends else {
            return None;
        };
        let found = self.reconciler.resolve_nodes(op, nodes).await;
        let registered = existing.map_or(&[][..], |existing| &existing.resource.instances);
        let (instances, not_running): (BTreeSet<_>, BTreeSet<_>) = found
            .instances
            .into_iter()
            .partition(|id| !found.stopped.contains(id) || registered.contains(id));
        let progress = if not_running.is_empty() {
            Progress::Done
        } else {
            let reason = format!("{} stopped instances are not registered yet", not_running.len());
            Progress::Pending {
                after: retry_delay::rejected_targets(op),
                reason: reason.into(),
            }
        };
        Some(DesiredInstances { instances, progress })
    }

    /// Plans what [`ensure_classic`](Self::ensure_classic) would do.
    pub(in crate::lb) async fn plan_classic(
        &self,
        op: &Op,
        service: &ClassicService,
        lb_spec: &LbSpec,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let desired = match &service.reading.desired {
            _ if service.is_other_type_requested => None,
            Ok(desired) => Some(&**desired),
            Err(errors) => return Err(errors.clone().into()),
        };
        let Some(existing) = &service.existing else {
            let name = names::load_balancer(&service.owner.uid);
            let create = planned("CreateLoadBalancer", &name, "the Service needs it");
            return Ok(vec![create]);
        };
        let mut changes = Vec::new();
        if let Some(desired) = desired {
            changes.extend(self.plan_settings(op, desired, existing).await?);
        }
        let name = &existing.resource.name;
        if let Some(instances) = self.desired_instances(op, Some(existing), lb_spec).await {
            let ids: Vec<InstanceId> = instances.instances.iter().cloned().collect();
            let request = ClassicRuleRequest {
                name,
                groups: &existing.resource.security_groups,
                requested: &service.reading.groups,
                instances: &ids,
            };
            let manager = &self.reconciler.deps.security_groups;
            changes.extend(manager.plan_classic_rules(op, desired, &request).await?);
            let registered = self.classic.registered_instances(&existing.resource);
            let InstanceChange { missing, surplus } =
                instance_change(&registered, &instances.instances);
            if !missing.is_empty() || instances.progress != Progress::Done {
                let operation = "RegisterInstancesWithLoadBalancer";
                changes.push(planned(operation, name, "instances are missing"));
            }
            if !surplus.is_empty() {
                let operation = "DeregisterInstancesFromLoadBalancer";
                changes.push(planned(operation, name, "instances are not desired"));
            }
        }
        if status::hostname(&lb_spec.service.status) != Some(&existing.resource.dns_name) {
            changes.push(planned("publish_status", name, "the status does not show it"));
        }
        Ok(changes)
    }

    async fn plan_settings(
        &self,
        op: &Op,
        desired: &DesiredClassic,
        existing: &ObservedClassic,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let manager = &self.reconciler.deps.security_groups;
        let denials = self.reconciler.observer.denials();
        let attributes = self.classic.attributes(op, &desired.owner, denials).await?;
        let observed = ObservedClassic { attributes, ..existing.clone() };
        let groups = manager.plan_classic_groups(op, desired).await?;
        let mut changes = Vec::new();
        if groups.is_none() {
            let name = crate::lb::security_groups::classic::group_name(&desired.name);
            changes.push(planned("CreateSecurityGroup", &name, "the load balancer needs it"));
        }
        let current = &existing.resource.subnets;
        let (subnets, zones) = choose_subnets(op, &self.reconciler, desired, current).await?;
        let input = ClassicPlanInput { groups, subnets, zones };
        let actions = plan::changes(desired, &input, &observed);
        changes.extend(actions.iter().map(|action| action.describe(&desired.name)));
        if let Some(group) = manager.replaced_classic_group(op, desired).await? {
            let reason = "it is no longer on the load balancer";
            changes.push(planned("DeleteSecurityGroup", &group, reason));
        }
        Ok(changes)
    }

    /// Deletes the classic load balancer of a Service, its own security group, and the rules in the
    /// cluster's groups that refer to it, as far as the cluster owns them. Succeeds if nothing exists,
    /// and continues an interrupted deletion. Returns [`Progress::Pending`] while the group is in use.
    ///
    /// # Errors
    /// Errors of AWS, but never [`NotFound`](ErrorKind::NotFound).
    pub(in crate::lb) async fn delete_classic(
        &self,
        op: &Op,
        owner: &ServiceKey,
        groups: &ClassicGroups,
    ) -> Result<Progress, CloudError> {
        self.classic.applied.lock().remove(&owner.uid);
        if !self.classic.delete_load_balancer(op, owner).await? {
            return Ok(Progress::Done);
        }
        let name = names::load_balancer(&owner.uid);
        let manager = &self.reconciler.deps.security_groups;
        manager
            .forget_given_classic_groups(op, &name, groups)
            .await?;
        let progress = manager.delete_classic_group(op, &name).await?;
        if progress == Progress::Done {
            self.classic.created.lock().remove(&owner.uid);
        }
        Ok(progress)
    }
}

/// Returns the load balancer that was found, if it belongs to the Service.
fn owned(owner: &ServiceKey, found: FoundClassic) -> Result<ObservedClassic, CloudError> {
    match found {
        FoundClassic::Owned(observed) => Ok(*observed),
        FoundClassic::Foreign(reason) => Err(CloudError::invalid_input(format!(
            "classic load balancer {} is not this Service's: {reason}",
            names::load_balancer(&owner.uid)
        ))),
    }
}

fn digest(desired: &DesiredClassic, instances: &BTreeSet<InstanceId>) -> Digest {
    Digest::of(&(desired, instances))
}

fn planned(operation: &str, object: &str, reason: &str) -> PlannedChange {
    PlannedChange {
        operation: operation.into(),
        object: object.into(),
        reason: reason.into(),
    }
}
