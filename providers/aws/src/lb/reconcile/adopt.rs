//! Adopts a load balancer that was kept when its Service went, for a Service that names its ARN.
//!
//! First, everything is checked that can be without a change. Then the load balancer, its target groups
//! and its managed security group get the tags of the Service, with the UID as their adopter. From then
//! on they are the Service's own, and an ordinary plan turns them into the desired state. The marks are
//! removed last. Until then, targets of the former Service stay registered, and a deletion of the
//! Service deletes nothing.

use std::collections::BTreeSet;

use ccm_core::provider::{CloudError, Op, PlannedChange, Progress};
use tokio::time::Instant;

use super::{LoadBalancerReconciler, ReconcileInput, resolved_targets::ResolvedTargets};
use crate::{
    api::{
        InstanceId, LoadBalancerArn, Tags, TargetGroupArn,
        elb::{
            AddElbTags, DescribeTargetHealth, LoadBalancer, MAX_TAGGED, RemoveElbTags, TargetGroup,
        },
    },
    lb::{
        model::{DesiredLoadBalancer, SecurityGroupChoice, ServiceKey},
        observe::{
            listing,
            observed::{ObservedLoadBalancer, ObservedState, ObservedTargetGroup, set_tags},
        },
        ownership::{is_adopter, is_being_adopted, may_claim},
        retry_delay::{self, Deferred},
        sync_state::LoadBalancerSyncState,
    },
    ownership_tags::{ADOPTER_TAG, RETAINED_TAG, have_owner},
    scope::Scope,
};

/// What the ARNs of Network Load Balancers contain.
const NETWORK_ARN: &str = ":loadbalancer/net/";
/// The reason of the requests that make something the Service's own.
const REASON: &str = "the Service adopts it";

impl LoadBalancerReconciler {
    /// Makes the load balancer that the Service adopts the Service's own, and continues an earlier call
    /// that was interrupted. Returns the observed state with it, and records it in `state`. The load
    /// balancer that the Service has stays as it is.
    ///
    /// # Errors
    /// The Service cannot adopt it ([`InvalidInput`](ccm_core::provider::ErrorKind::InvalidInput)), before
    /// any change; and errors of AWS.
    pub(super) async fn adopt(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        observed: ObservedState,
        resolved_targets: &ResolvedTargets,
        state: &mut LoadBalancerSyncState,
    ) -> Result<ObservedState, CloudError> {
        let result = self
            .adopt_observed(op, input, observed, resolved_targets, state)
            .await;
        match &result {
            Ok(observed) => state.observed = Some(observed.clone()),
            // It may have been claimed, although there was no answer.
            Err(_) => state.invalidate(),
        }
        result
    }

    async fn adopt_observed(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        mut observed: ObservedState,
        resolved_targets: &ResolvedTargets,
        state: &mut LoadBalancerSyncState,
    ) -> Result<ObservedState, CloudError> {
        let desired = input.desired;
        check_own(desired, &observed)?;
        // Also if the Service has its load balancer back before it had let go of all of it.
        let own_tags = observed
            .load_balancer
            .as_ref()
            .and_then(|own| own.tags.as_ref());
        if own_tags.is_some_and(|tags| tags.contains_key(RETAINED_TAG)) {
            if is_adoption_unfinished(desired, &observed) {
                let adopting = observed.load_balancer.as_ref();
                state.adopting = adopting.map(|load_balancer| load_balancer.resource.clone());
            }
            self.adopt_parts(op, desired, &mut observed).await?;
            return Ok(observed);
        }
        let Some(arn) = to_adopt(desired, &observed)? else {
            return Ok(observed);
        };
        // First, check all that is possible without a change.
        let mut adopted = self.observe_adoptable(op, desired, &arn).await?;
        self.planned_changes(op, desired, &adopted, resolved_targets, true)
            .await?;
        // Next, claim the load balancer. What is read now decides between two Services that adopt it at
        // the same time.
        state.changed_at = Some(Instant::now());
        let adopting = adopted.load_balancer.as_ref();
        state.adopting = adopting.map(|load_balancer| load_balancer.resource.clone());
        let tags = self.adopter_tags(&desired.owner);
        let request = AddElbTags { arns: vec![arn.as_str().into()], tags: tags.clone() };
        self.scope.client.write(op, request, REASON).await?;
        self.let_go.forget(&arn);
        self.check_claim(op, desired, &arn).await?;
        tracing::info!(load_balancer = %arn, service = desired.owner.key(), "load balancer adopted");
        if let Some(load_balancer) = &mut adopted.load_balancer {
            set_tags(&mut load_balancer.tags, &tags, &[]);
        }
        // Then its parts. Target groups that are not claimed yet are found again.
        adopted.target_groups = std::mem::take(&mut observed.target_groups);
        adopted.reserved_group_names = std::mem::take(&mut observed.reserved_group_names);
        self.adopt_parts(op, desired, &mut adopted).await?;
        // Everything may differ from what the former Service asked for, which is no surprise.
        state.activation_announced = true;
        Ok(adopted)
    }

    /// Returns the changes of an adoption that has not begun, without making them; `None` if there is
    /// nothing to adopt.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt).
    pub(super) async fn plan_adoption(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        observed: &ObservedState,
        resolved_targets: &ResolvedTargets,
    ) -> Result<Option<(Vec<PlannedChange>, ObservedState)>, CloudError> {
        check_own(desired, observed)?;
        let Some(arn) = to_adopt(desired, observed)? else {
            return Ok(None);
        };
        let adopted = self.observe_adoptable(op, desired, &arn).await?;
        let mut changes = vec![PlannedChange {
            operation: "AddTags".into(),
            object: arn.as_str().into(),
            reason: REASON.into(),
        }];
        changes.extend(
            self.planned_changes(op, desired, &adopted, resolved_targets, true)
                .await?,
        );
        Ok(Some((changes, adopted)))
    }

    /// Returns [`Progress::Done`] if the adoption can be finished. Targets of the former Service stay
    /// until targets of this one are healthy. Then deletes the target groups that were replaced, because
    /// nobody would find them once the mark is gone.
    ///
    /// # Errors
    /// Another Service adopts the load balancer, too; and errors of AWS.
    pub(super) async fn adoption_progress(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        observed: &mut ObservedState,
        resolved_targets: &ResolvedTargets,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Progress, CloudError> {
        state.observed = Some(observed.clone());
        let unfinished = self.unfinished_part(op, desired, observed, resolved_targets);
        if let Some(deferred) = unfinished.await.inspect_err(|_| state.invalidate())? {
            return Ok(deferred.into());
        }
        let mut replaced = replaced_groups(observed);
        let all = replaced.clone();
        let deleted = self.delete_target_groups(op, &mut replaced).await;
        observed.target_groups.retain(|group| {
            !all.contains(&group.resource.arn) || replaced.contains(&group.resource.arn)
        });
        state.observed = Some(observed.clone());
        match deleted.inspect_err(|_| state.invalidate())? {
            Some(deferred) => Ok(deferred.into()),
            None => Ok(Progress::Done),
        }
    }

    /// Returns the part of which the adoption has to wait; `None` if there is none.
    async fn unfinished_part(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        observed: &ObservedState,
        resolved_targets: &ResolvedTargets,
    ) -> Result<Option<Deferred>, CloudError> {
        let Some(load_balancer) = &observed.load_balancer else {
            return Ok(None);
        };
        self.check_claim(op, desired, &load_balancer.resource.arn)
            .await?;
        let mut wanted: BTreeSet<(&str, u16)> = BTreeSet::new();
        for target in resolved_targets.targets.values().flatten() {
            wanted.insert((&*target.id, target.port));
        }
        for group in &observed.target_groups {
            let name = &group.resource.name;
            if !has_mark(group) {
                continue;
            }
            if !is_used(load_balancer, group) {
                continue;
            }
            let mut targets = group.targets.iter().flatten();
            let has_former = targets.any(|((id, port), _)| !wanted.contains(&(&**id, *port)));
            if has_former && !self.has_healthy(op, &group.resource.arn, &wanted).await? {
                return Ok(Some(Deferred {
                    after: retry_delay::object_in_use(op),
                    reason: format!(
                        "no target of the Service is healthy in {name} yet, so that those of its former Service stay"
                    )
                    .into(),
                }));
            }
        }
        Ok(None)
    }

    async fn has_healthy(
        &self,
        op: &Op,
        arn: &TargetGroupArn,
        wanted: &BTreeSet<(&str, u16)>,
    ) -> Result<bool, CloudError> {
        let request = DescribeTargetHealth { arn: arn.clone() };
        let health = self.scope.client.read(op, request).await?;
        Ok(health.iter().any(|found| {
            *found.state == *"healthy" && wanted.contains(&(&*found.target.id, found.target.port))
        }))
    }

    /// Reads a load balancer that the Service may adopt, with everything that a plan needs.
    async fn observe_adoptable(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        arn: &LoadBalancerArn,
    ) -> Result<ObservedState, CloudError> {
        let found = self.observer.observe_kept(op, arn).await?;
        let mut adopted = found.ok_or_else(|| rejected(arn, "it does not exist"))?;
        check_adoptable(&self.scope, desired, &adopted).map_err(|reason| rejected(arn, &reason))?;
        // Without one of its own, the Service would leave the kept group as it is, with rules for the
        // ports and clients of the former Service.
        if desired.security.groups == SecurityGroupChoice::Keep
            && let Some(ObservedLoadBalancer { resource, .. }) = &adopted.load_balancer
            && self
                .deps
                .security_groups
                .has_kept_group(op, &resource.security_groups)
                .await?
        {
            let reason = "it has a managed security group, which this cluster would not manage: set \
                          NLBSecurityGroupMode=Managed";
            return Err(rejected(arn, reason));
        }
        self.observer
            .read_details(op, desired, &mut adopted)
            .await?;
        Ok(adopted)
    }

    /// Claims the marked parts of the Service's load balancer, and adds the target groups among them to
    /// the observed state.
    async fn adopt_parts(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        observed: &mut ObservedState,
    ) -> Result<(), CloudError> {
        let Some(ObservedLoadBalancer { resource, .. }) = &observed.load_balancer else {
            return Ok(());
        };
        let resource = resource.clone();
        for (group, tags) in self.claim_parts(op, &desired.owner, &resource).await? {
            if observed.group(&group.arn).is_none() {
                let group = self.observer.read_group(op, group, Some(tags)).await?;
                observed.target_groups.push(group);
            }
        }
        self.observer.read_details(op, desired, observed).await
    }

    /// Claims the target groups and the managed security group that were let go of and are on a load
    /// balancer of the Service. If the Service has claimed the load balancer, it also takes what another
    /// one claimed that adopted it at the same time. Returns these target groups, and those that the Service adopted and that
    /// no listener uses any more.
    pub(super) async fn claim_parts(
        &self,
        op: &Op,
        owner: &ServiceKey,
        load_balancer: &LoadBalancer,
    ) -> Result<Vec<(TargetGroup, Tags)>, CloudError> {
        let mut groups = listing::list_target_groups(&self.scope, op).await?;
        groups.retain(|group| {
            group.load_balancers.is_empty() || *group.load_balancers == [load_balancer.arn.clone()]
        });
        let mut arns: Vec<Box<str>> = vec![load_balancer.arn.as_str().into()];
        arns.extend(groups.iter().map(|group| group.arn.as_str().into()));
        let mut all_tags = listing::list_tags(&self.scope, op, arns).await?;
        let lb_tags = all_tags.get(load_balancer.arn.as_str());
        let is_adopting = lb_tags.is_some_and(|tags| is_being_adopted(owner, tags));
        let mut foreign_keys: BTreeSet<Box<str>> = BTreeSet::new();
        let mut unclaimed: Vec<Box<str>> = Vec::new();
        let mut parts = Vec::new();
        let adopter_tags = self.adopter_tags(owner);
        for group in groups {
            let is_attached = !group.load_balancers.is_empty();
            let mut tags = match all_tags.remove(group.arn.as_str()) {
                Some(tags) => tags,
                None if is_attached => {
                    let message =
                        format!("AWS does not show the tags of target group {}", group.name);
                    return Err(CloudError::transient(message));
                }
                None => continue,
            };
            if is_attached && may_claim(owner, &tags, is_adopting) {
                unclaimed.push(group.arn.as_str().into());
                foreign_keys.extend(self.scope.cluster.foreign_tags(&tags).into_keys());
                tags.extend(adopter_tags.clone());
            }
            if is_adopter(owner, &tags) {
                parts.push((group, tags));
            }
        }
        for arns in unclaimed.chunks(MAX_TAGGED) {
            let request = AddElbTags { arns: arns.to_vec(), tags: adopter_tags.clone() };
            self.scope.client.write(op, request, REASON).await?;
            if !foreign_keys.is_empty() {
                let keys = foreign_keys.iter().cloned().collect();
                let request = RemoveElbTags { arns: arns.to_vec(), keys };
                self.scope.client.write(op, request, REASON).await?;
            }
        }
        self.deps
            .security_groups
            .adopt_groups(op, owner, &load_balancer.security_groups, is_adopting)
            .await?;
        Ok(parts)
    }

    /// Checks that the Service is still the one that adopts a load balancer.
    async fn check_claim(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        arn: &LoadBalancerArn,
    ) -> Result<(), CloudError> {
        let tags = listing::list_tags(&self.scope, op, vec![arn.as_str().into()]).await?;
        let tags = tags.get(arn.as_str());
        match tags.and_then(|tags| tags.get(ADOPTER_TAG)) {
            Some(adopter) if *adopter == desired.owner.uid => Ok(()),
            Some(adopter) => Err(rejected(
                arn,
                &format!("the Service with UID {adopter} adopts it at the same time"),
            )),
            None => Err(CloudError::transient(format!(
                "AWS does not show the tags of load balancer {arn} yet"
            ))),
        }
    }

    /// Returns the tags that make an object the Service's.
    fn adopter_tags(&self, owner: &ServiceKey) -> Tags {
        let mut tags = self.ownership_tags(owner);
        tags.insert(ADOPTER_TAG.into(), owner.uid.clone());
        tags
    }
}

/// Returns true if the Service adopts the observed load balancer and has not finished.
pub(super) fn is_adoption_unfinished(
    desired: &DesiredLoadBalancer,
    observed: &ObservedState,
) -> bool {
    let load_balancer = observed.load_balancer.as_ref();
    let tags = load_balancer.and_then(|load_balancer| load_balancer.tags.as_ref());
    tags.is_some_and(|tags| is_being_adopted(&desired.owner, tags))
}

/// Returns when to try again if an adoption waits for backends: without any, the load balancer would
/// serve nothing.
pub(super) fn waits_for_backends(
    op: &Op,
    desired: &DesiredLoadBalancer,
    observed: &ObservedState,
    resolved_targets: &ResolvedTargets,
) -> Option<Deferred> {
    let mut targets = resolved_targets.targets.values().flatten();
    let has_targets = targets.any(|target| {
        !resolved_targets
            .stopped
            .contains(&InstanceId::from(&*target.id))
    });
    if has_targets || !is_adoption_unfinished(desired, observed) {
        return None;
    }
    let reason =
        "the Service has no running backends yet, so that the adopted load balancer stays as it is";
    Some(Deferred {
        after: retry_delay::rejected_targets(op),
        reason: reason.into(),
    })
}

/// Returns the ARN of the load balancer to adopt; `None` if there is none, or if the Service has it.
fn to_adopt(
    desired: &DesiredLoadBalancer,
    observed: &ObservedState,
) -> Result<Option<LoadBalancerArn>, CloudError> {
    match &desired.adopts {
        Some(id) if observed.load_balancer.is_none() => {
            let arn = LoadBalancerArn::from(&**id);
            if !id.starts_with("arn:") || !id.contains(NETWORK_ARN) {
                let reason =
                    "this is not the ARN of a network load balancer, and no other can be adopted";
                return Err(rejected(&arn, reason));
            }
            Ok(Some(arn))
        }
        _ => Ok(None),
    }
}

/// Checks that the Service has no other load balancer than the one that it adopts: nobody would need
/// its own any more.
fn check_own(desired: &DesiredLoadBalancer, observed: &ObservedState) -> Result<(), CloudError> {
    if let (Some(id), Some(own)) = (&desired.adopts, &observed.load_balancer)
        && *own.resource.arn != **id
    {
        return Err(CloudError::invalid_input(format!(
            "the service cannot adopt load balancer {id}, because it has load balancer {}",
            own.resource.arn
        )));
    }
    Ok(())
}

/// Returns why a load balancer cannot be adopted, according to what was read of it.
fn check_adoptable(
    scope: &Scope,
    desired: &DesiredLoadBalancer,
    adopted: &ObservedState,
) -> Result<(), String> {
    let Some(ObservedLoadBalancer { resource, tags: Some(tags), listeners, .. }) =
        &adopted.load_balancer
    else {
        return Err("its tags are not known".to_owned());
    };
    // The mark decides, and who has claimed it.
    check_tags(desired, tags)?;
    if *resource.kind != *"network" {
        return Err(format!("it is of type {}", resource.kind));
    }
    if resource.vpc.as_ref() != Some(&scope.vpc) {
        return Err(format!("it is not in the VPC of the cluster, {}", scope.vpc));
    }
    // These settings would need a new load balancer, or change its addresses.
    if resource.scheme != Some(desired.scheme) {
        let scheme = resource.scheme.map_or("unknown", |scheme| scheme.as_str());
        return Err(format!("its scheme is {scheme}, and the Service asks for {}", desired.scheme));
    }
    if resource.ip_address_type != Some(desired.ip_address_type) {
        return Err(format!(
            "its IP address type is not {}, which the Service asks for",
            desired.ip_address_type
        ));
    }
    // Everything on it must come from its former Service, because all else would be deleted.
    for listener in listeners {
        let group = listener.resource.target_group.as_ref();
        if group.is_none_or(|arn| adopted.group(arn).is_none()) {
            return Err(format!(
                "its former Service did not have the listener on port {}: delete that listener, or have the load balancer \
                 without a Service",
                listener.resource.port
            ));
        }
    }
    for group in &adopted.target_groups {
        check_tags(desired, group.tags.as_ref().unwrap_or(&Tags::new()))
            .map_err(|reason| format!("of its target group {}: {reason}", group.resource.name))?;
        if group.resource.load_balancers.len() > 1 {
            return Err(format!("others use its target group {}", group.resource.name));
        }
    }
    Ok(())
}

/// Returns why an object cannot be adopted, according to its tags.
fn check_tags(desired: &DesiredLoadBalancer, tags: &Tags) -> Result<(), String> {
    match tags.get(ADOPTER_TAG) {
        Some(adopter) if *adopter == desired.owner.uid => return Ok(()),
        Some(adopter) => {
            return Err(format!(
                "the Service with UID {adopter} adopts it; if that Service is gone, remove the tag {ADOPTER_TAG}"
            ));
        }
        None => {}
    }
    if tags.contains_key(RETAINED_TAG) && !have_owner(tags) {
        return Ok(());
    }
    Err("its Service has not let go of it".to_owned())
}

fn has_mark(group: &ObservedTargetGroup) -> bool {
    let tags = group.tags.as_ref();
    tags.is_some_and(|tags| tags.contains_key(RETAINED_TAG))
}

fn is_used(load_balancer: &ObservedLoadBalancer, group: &ObservedTargetGroup) -> bool {
    let mut listeners = load_balancer.listeners.iter();
    listeners.any(|listener| listener.resource.target_group.as_ref() == Some(&group.resource.arn))
}

/// Returns the adopted target groups that no listener uses any more.
fn replaced_groups(observed: &ObservedState) -> BTreeSet<TargetGroupArn> {
    let Some(load_balancer) = &observed.load_balancer else {
        return BTreeSet::new();
    };
    let groups = observed.target_groups.iter();
    groups
        .filter(|group| has_mark(group) && !is_used(load_balancer, group))
        .map(|group| group.resource.arn.clone())
        .collect()
}

/// Returns the error for a load balancer that the Service cannot adopt. Only a person can resolve it.
fn rejected(arn: &LoadBalancerArn, reason: &str) -> CloudError {
    CloudError::invalid_input(format!("adopt load balancer {arn}: {reason}"))
}
