//! Services with a classic load balancer: creates, follows, compares and deletes it.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::{
    k8s::{LbStatus, ServiceView},
    provider::{
        Backends, CloudError, Digest, ErrorKind, EventType, LbOutcome, LbSpec, Op, PlannedChange,
        Progress,
    },
};

use super::{
    AppliedClassic, DeletionState, FoundClassic, InstanceChange,
    apply::choose_subnets,
    instance_change,
    model::{ClassicGroups, ClassicReading, DesiredClassic},
    plan::{self, ClassicPlanInput, ObservedClassic},
    status_of,
};
use crate::{
    api::{InstanceId, SecurityGroupId, classic::ClassicLoadBalancer},
    lb::{
        CLASSIC_NOT_RETAINED, NetworkLoadBalancers,
        model::{DesiredLoadBalancer, ServiceKey},
        names,
        reconcile::as_transient,
        retry_delay,
        security_groups::classic::{ClassicRuleRequest, TrimmedRules},
        spec, status,
    },
    scope::Scope,
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
pub(super) struct DesiredInstances {
    pub(super) instances: BTreeSet<InstanceId>,
    /// Pending while stopped instances are left out.
    progress: Progress,
}

impl ClassicService {
    /// Returns the status with its host name; `None` if it does not exist.
    pub(in crate::lb) fn status(&self) -> Option<LbStatus> {
        status_of(&self.existing.as_ref()?.resource)
    }

    /// Returns true if it exists and has this host name.
    pub(in crate::lb) fn has_dns_name(&self, hostname: &str) -> bool {
        let existing = self.existing.as_ref();
        existing.is_some_and(|existing| *existing.resource.dns_name == *hostname)
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
        let owner = ServiceKey::of(service);
        let denials = self.reconciler.observer.denials();
        let existing = match self.classic.find(op, &owner, denials).await? {
            Some(found) => Some(owned(&owner, found)?),
            None => {
                // AWS would accept both under one name.
                let name = names::load_balancer(&owner.uid);
                let network = self.reconciler.observer.get_by_name(op, &name).await;
                let network = network.map_err(CloudError::from);
                self.classic
                    .keep_if_interrupted(&network, &name, None, None);
                if network?.is_some() {
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
        let owner = ServiceKey::of(service);
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

    /// Reads the classic load balancer of a Service that moves, of which only the instances follow the
    /// nodes; `None` if it does not exist, for which the listing is asked, too: it ends the move.
    ///
    /// # Errors
    /// One that is not the Service's ([`InvalidInput`](ErrorKind::InvalidInput)), and errors of AWS.
    pub(in crate::lb) async fn moving_classic(
        &self,
        op: &Op,
        service: &ServiceView,
        reading: ClassicReading,
    ) -> Result<Option<ClassicService>, CloudError> {
        let owner = ServiceKey::of(service);
        let denials = self.reconciler.observer.denials();
        let Some(found) = self.classic.find_listed(op, &owner, denials).await? else {
            return Ok(None);
        };
        Ok(Some(ClassicService {
            existing: Some(owned(&owner, found)?),
            owner,
            reading,
            is_other_type_requested: true,
        }))
    }

    /// Finds the classic load balancer of a Service that names no type and shows no host name, before a
    /// Network Load Balancer is created beside it. Without the permission to read it, there is none.
    ///
    /// # Errors
    /// One that may be the Service's, but whose tags do not say so
    /// ([`InvalidInput`](ErrorKind::InvalidInput)), and errors of AWS.
    pub(in crate::lb) async fn unpublished_classic(
        &self,
        op: &Op,
        service: &ServiceView,
    ) -> Result<Option<ClassicService>, CloudError> {
        if spec::requests_network_load_balancer(service)
            || status::hostname(&service.status).is_some()
            || self.reconciler.sync_states.has_load_balancer(&service.uid)
        {
            return Ok(None);
        }
        let owner = ServiceKey::of(service);
        if !self.classic.is_shown(op, &owner).await? {
            return Ok(None);
        }
        let denials = self.reconciler.observer.denials();
        let existing = match self.classic.find(op, &owner, denials).await? {
            None | Some(FoundClassic::Foreign(_)) => return Ok(None),
            Some(found) => owned(&owner, found)?,
        };
        let Scope { settings, cluster, .. } = &self.reconciler.scope;
        Ok(Some(ClassicService {
            reading: spec::classic_reading(service, settings, cluster),
            existing: Some(existing),
            owner,
            is_other_type_requested: false,
        }))
    }

    /// Returns true if a Service that is deleted has a classic load balancer, or the group of one,
    /// although nothing says so.
    ///
    /// # Errors
    /// Errors of AWS.
    pub(in crate::lb) async fn has_leftover_classic(
        &self,
        op: &Op,
        owner: &ServiceKey,
    ) -> Result<bool, CloudError> {
        let name = names::load_balancer(&owner.uid);
        let manager = &self.reconciler.deps.security_groups;
        Ok(self.classic.is_shown(op, owner).await?
            || manager.owned_classic_group(op, &name).await?.is_some())
    }

    /// Returns the outcome of a sync without any request if the Service was applied like this before.
    pub(in crate::lb) async fn classic_in_sync(
        &self,
        op: &Op,
        lb_spec: &LbSpec,
    ) -> Option<LbOutcome> {
        if spec::requests_network_load_balancer(&lb_spec.service)
            || spec::move_request(&lb_spec.service).is_requested
        {
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
                 effect; {}: nlb moves it to a network load balancer",
                names::load_balancer(&service.owner.uid),
                spec::annotations::MOVE_TO.definition.key()
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
        // Remove what is not needed any more.
        let desired = match &service.reading.desired {
            Ok(desired) if !service.is_other_type_requested => Some(desired),
            _ => None,
        };
        let removed = match desired {
            Some(desired) => {
                let trimmed = match settings {
                    Ok(()) => TrimmedRules::All,
                    Err(_) => TrimmedRules::Sources,
                };
                self.remove_unneeded(op, desired, existing, trimmed).await
            }
            None => Ok(Progress::Done),
        };
        settings?;
        let progress = [followed?, removed?];
        if let Some(desired) = desired {
            self.record_applied(existing, desired, instances.as_ref(), &progress);
        }
        Ok(progress
            .into_iter()
            .find(|progress| *progress != Progress::Done)
            .unwrap_or(Progress::Done))
    }

    /// Revokes rules of the own group, and everything for groups that were detached.
    async fn remove_unneeded(
        &self,
        op: &Op,
        desired: &DesiredClassic,
        existing: &ObservedClassic,
        trimmed: TrimmedRules,
    ) -> Result<Progress, CloudError> {
        let manager = &self.reconciler.deps.security_groups;
        manager.trim_classic_group(op, desired, trimmed).await?;
        // An earlier process may have replaced the own group, and ended before it was deleted.
        let owner = &desired.owner;
        let attached = &existing.resource.security_groups;
        let replaced = manager
            .replaced_classic_group(op, owner, &desired.groups, attached)
            .await?;
        if let Some(group) = replaced {
            let mut detached = self.classic.detached.lock();
            detached.entry(owner.uid.clone()).or_default().insert(group);
        }
        self.remove_detached(op, owner, attached).await
    }

    /// Revokes the rules for groups that this process has detached from a load balancer, and deletes
    /// its own group if that is one of them. Others, as a takeover finds them, may be in use for something
    /// else; they go with the load balancer.
    async fn remove_detached(
        &self,
        op: &Op,
        owner: &ServiceKey,
        attached: &[SecurityGroupId],
    ) -> Result<Progress, CloudError> {
        let name = names::load_balancer(&owner.uid);
        let manager = &self.reconciler.deps.security_groups;
        let detached = self.classic.detached.lock().get(&owner.uid).cloned();
        let mut progress = Progress::Done;
        for group in detached.unwrap_or_default() {
            if attached.contains(&group) {
                continue;
            }
            let removed = manager
                .remove_detached_classic_group(op, &name, &group)
                .await?;
            if removed != Progress::Done {
                progress = removed;
                continue;
            }
            if let Some(left) = self.classic.detached.lock().get_mut(&owner.uid) {
                left.remove(&group);
            }
        }
        Ok(progress)
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
            existing.attributes = self
                .classic
                .attributes(op, &desired.owner, existing, denials)
                .await?;
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

    /// Returns true if the load balancer had an instance when it was read, and still has it.
    pub(in crate::lb) fn has_lasting_instance(&self, service: &ClassicService) -> bool {
        let Some(existing) = &service.existing else {
            return false;
        };
        let registered = self.classic.registered_instances(&existing.resource);
        let observed = &existing.resource.instances;
        observed.iter().any(|id| registered.contains(id))
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
    pub(super) async fn desired_instances(
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
            return match desired {
                Some(desired) => self.plan_new_classic(op, desired, lb_spec).await,
                None => Ok(Vec::new()),
            };
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
        let attributes = self
            .classic
            .attributes(op, &desired.owner, existing, denials)
            .await?;
        let observed = ObservedClassic { attributes, ..existing.clone() };
        let groups = manager.plan_classic_groups(op, desired).await?;
        let mut changes = Vec::new();
        if groups.is_none() {
            let name = crate::lb::security_groups::classic::group_name(&desired.name);
            changes.push(planned("CreateSecurityGroup", &name, "the load balancer needs it"));
        }
        let current = &existing.resource.subnets;
        let (subnets, zones) = choose_subnets(op, &self.reconciler, desired, current).await?;
        let removed_log_settings = self.classic.removed_log_settings(desired);
        let input = ClassicPlanInput { groups, subnets, zones, removed_log_settings };
        let actions = plan::changes(desired, &input, &observed);
        changes.extend(actions.iter().map(|action| action.describe(&desired.name)));
        let attached = &existing.resource.security_groups;
        let replaced = match manager.owned_classic_group(op, &desired.name).await? {
            Some(own) if attached.contains(&own) => {
                Some(own).filter(|own| !input.groups.iter().flatten().any(|kept| kept == own))
            }
            _ => {
                manager
                    .replaced_classic_group(op, &desired.owner, &desired.groups, attached)
                    .await?
            }
        };
        if let Some(group) = replaced {
            let reason = "it is no longer on the load balancer";
            changes.push(planned("DeleteSecurityGroup", &group, reason));
        }
        Ok(changes)
    }

    /// Checks that a Service that asks to keep its load balancer has no classic one. Returns
    /// [`Progress::Pending`] while AWS may not show one yet.
    ///
    /// # Errors
    /// There is one ([`InvalidInput`](ErrorKind::InvalidInput)), it is in doubt whose one of its name is,
    /// and errors of AWS.
    pub(in crate::lb) async fn classic_to_retain(
        &self,
        op: &Op,
        owner: &ServiceKey,
        service: &ServiceView,
    ) -> Result<Progress, CloudError> {
        match self.classic.find_for_deletion(op, owner).await? {
            // The annotation concerns both load balancers.
            DeletionState::Owned(_) if spec::move_request(service).state.is_some() => {
                Err(CloudError::invalid_input(format!(
                    "a classic load balancer cannot be kept when its Service goes, and this one was moving to a network load \
                     balancer: delete classic load balancer {} in AWS to keep only the network load balancer, or remove the \
                     annotation to have both deleted",
                    names::load_balancer(&owner.uid)
                )))
            }
            DeletionState::Owned(_) => Err(CloudError::invalid_input(CLASSIC_NOT_RETAINED)),
            DeletionState::Invisible(progress) => Ok(progress),
            DeletionState::Absent | DeletionState::Foreign => Ok(Progress::Done),
        }
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
        let attached = match self.classic.find_for_deletion(op, owner).await? {
            DeletionState::Owned(attached) => Some(attached),
            DeletionState::Absent => None,
            DeletionState::Foreign => return Ok(Progress::Done),
            DeletionState::Invisible(progress) => return Ok(progress),
        };
        self.forget_classic(op, owner, attached.as_deref(), groups)
            .await
    }

    /// Deletes what belongs to a classic load balancer, and itself if it exists: `attached` has its groups.
    ///
    /// # Errors
    /// As [`delete_classic`](Self::delete_classic).
    pub(in crate::lb) async fn forget_classic(
        &self,
        op: &Op,
        owner: &ServiceKey,
        attached: Option<&[SecurityGroupId]>,
        groups: &ClassicGroups,
    ) -> Result<Progress, CloudError> {
        // Like upstream, revoke the rules first: only the load balancer says which they are.
        let name = names::load_balancer(&owner.uid);
        let manager = &self.reconciler.deps.security_groups;
        manager
            .forget_given_classic_groups(op, &name, attached, groups)
            .await?;
        if attached.is_some() {
            self.classic.delete_load_balancer(op, owner).await?;
        }
        let detached = self.remove_detached(op, owner, &[]).await?;
        if detached != Progress::Done {
            return Ok(detached);
        }
        self.classic.detached.lock().remove(&owner.uid);
        self.classic.requested_logs.lock().remove(&owner.uid);
        self.classic.missing_object.lock().remove(&owner.uid);
        manager.delete_classic_group(op, &name).await
    }
}

/// Returns the load balancer that was found, if it belongs to the Service.
fn owned(owner: &ServiceKey, found: FoundClassic) -> Result<ObservedClassic, CloudError> {
    match found {
        FoundClassic::Owned(observed) => Ok(*observed),
        FoundClassic::Foreign(reason) | FoundClassic::Unclear(reason) => {
            Err(CloudError::invalid_input(format!(
                "classic load balancer {} is not this Service's: {reason}",
                names::load_balancer(&owner.uid)
            )))
        }
    }
}

fn digest(desired: &DesiredClassic, instances: &BTreeSet<InstanceId>) -> Digest {
    Digest::of(&(desired, instances))
}

pub(super) fn planned(operation: &str, object: &str, reason: &str) -> PlannedChange {
    PlannedChange {
        operation: operation.into(),
        object: object.into(),
        reason: reason.into(),
    }
}
