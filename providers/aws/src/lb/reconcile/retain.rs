//! Lets go of the load balancer of a Service, which is kept when the Service goes.
//!
//! First, load balancer, target groups and managed security group get a mark. Then the tags that name
//! their owner are removed, those of the load balancer last. This last request lets go of it: before, an
//! interrupted call leaves a load balancer that is still the Service's, and after, it is nobody's.

use std::{collections::BTreeSet, time::Duration};

use ccm_core::{
    k8s::well_known,
    provider::{CloudError, ErrorKind, EventType, Op, Progress, RetainOutcome},
};
use tokio::time::Instant;

use super::{
    LoadBalancerReconciler, as_transient,
    delete::{DeleteInput, FoundObjects, attached_target_groups, record_deletion},
    recent_changes::EVENTUAL_CONSISTENCY_WINDOW,
};
use crate::{
    api::{
        LoadBalancerArn, Tags, TargetGroupArn,
        elb::{AddElbTags, LoadBalancer, MAX_TAGGED, RemoveElbTags},
    },
    lb::{
        model::ServiceKey,
        observe::RECENT_LISTING_AGE,
        ownership::{FoundBy, check_owner, is_let_go, names_another_owner},
        retry_delay::Deferred,
        sync_state::LoadBalancerSyncState,
    },
    ownership_tags::{RETAINED_TAG, SERVICE_TAG},
};

/// Maximum number of target groups that a note names.
const MAX_GROUPS_IN_NOTE: usize = 10;

/// The load balancer of a Service that asks to keep it.
enum RetainCase<'a> {
    /// The Service's own.
    Own(&'a LoadBalancer),
    /// One that the Service has let go of before.
    LetGo(&'a LoadBalancer),
    /// There is none, for this reason.
    None(String),
    /// AWS may not show it yet.
    Invisible(Duration),
}

impl LoadBalancerReconciler {
    /// Lets go of the load balancer of a Service. Continues an earlier call that was interrupted.
    ///
    /// # Errors
    /// Doubt about whose a load balancer is, before anything is changed; and errors of AWS.
    pub(in crate::lb) async fn retain(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
    ) -> Result<RetainOutcome, CloudError> {
        let mut state = self.sync_states.take(&input.owner.uid);
        let changed_at = state.changed_at;
        let result = self.retain_any(op, input, &mut state).await;
        // A call that only read must not make listings outdated.
        if state.changed_at != changed_at {
            state.changed_at = Some(Instant::now());
        }
        match &result {
            Ok(RetainOutcome::Retained { .. } | RetainOutcome::NothingToRetain { .. }) => {
                self.sync_states.forget(&input.owner.uid);
            }
            _ => self.sync_states.put(&input.owner.uid, state),
        }
        result.map_err(as_transient)
    }

    async fn retain_any(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<RetainOutcome, CloudError> {
        let result = self.find_all(op, input, state).await;
        let mut found = state.responses.finish(result)?;
        let case = self.retain_case(op, input.owner, &found, state).await?;
        match case {
            RetainCase::LetGo(load_balancer) => Ok(retained(load_balancer, &found)),
            RetainCase::Invisible(after) => Ok(RetainOutcome::Pending {
                after,
                reason: "the Service was changed a moment ago, and AWS may not show everything yet"
                    .into(),
            }),
            RetainCase::Own(load_balancer) => {
                state.changed_at = Some(Instant::now());
                state.invalidate();
                match self.let_go(op, input.owner, load_balancer, &found).await? {
                    Some(Deferred { after, reason }) => {
                        Ok(RetainOutcome::Pending { after, reason })
                    }
                    None => Ok(retained(load_balancer, &found)),
                }
            }
            // Without a load balancer, its parts are of no use, and nothing would delete them later.
            RetainCase::None(reason) => {
                state.changed_at = Some(Instant::now());
                state.invalidate();
                found.load_balancers.clear();
                record_deletion(state, input, &found);
                // Whoever has a load balancer with such a name needs its rules.
                for other in &found.others {
                    state.deleted_names.remove(&other.name);
                }
                match self.delete_parts(op, input, state).await? {
                    Progress::Pending { after, reason } => {
                        Ok(RetainOutcome::Pending { after, reason })
                    }
                    Progress::Done => Ok(RetainOutcome::NothingToRetain { reason: reason.into() }),
                }
            }
        }
    }

    /// Finds out which load balancer is to be kept, with the same proof that a deletion needs.
    async fn retain_case<'a>(
        &self,
        op: &Op,
        owner: &ServiceKey,
        found: &'a FoundObjects,
        state: &LoadBalancerSyncState,
    ) -> Result<RetainCase<'a>, CloudError> {
        let mut own = Vec::new();
        for load_balancer in &found.load_balancers {
            if found.tags.contains_key(load_balancer.arn.as_str()) {
                own.push(load_balancer);
            }
        }
        // The Service may have another one, with a name that it does not ask for now.
        let oldest = state
            .changed_at
            .unwrap_or_else(|| crate::clock::ago(RECENT_LISTING_AGE));
        let listing = self.observer.listings.newer_than(op, oldest).await?;
        let mut arns: BTreeSet<&LoadBalancerArn> = own.iter().map(|own| &own.arn).collect();
        for load_balancer in &listing.load_balancers {
            let tags = listing.tags.get(load_balancer.arn.as_str());
            let is_owned = tags.is_some_and(|tags| {
                check_owner(&self.scope.cluster, owner, tags, FoundBy::Listing).is_ok()
            });
            if is_owned {
                arns.insert(&load_balancer.arn);
            }
        }
        if arns.len() > 1 {
            let arns: Vec<_> = arns.iter().map(|arn| arn.as_str()).collect();
            return Err(CloudError::invalid_input(format!(
                "the Service has several load balancers, of which only one can be kept: delete the others: {}",
                arns.join(", ")
            )));
        }
        if let [own] = &*own {
            return Ok(RetainCase::Own(own));
        }
        // None is the Service's now.
        let mut reasons = Vec::new();
        for other in &found.others {
            let name = &other.name;
            let Some(tags) = found.tags.get(other.arn.as_str()) else {
                return Err(CloudError::transient(format!(
                    "load balancer {name} exists, but AWS does not show its tags"
                )));
            };
            if is_let_go(owner, tags) {
                return Ok(RetainCase::LetGo(other));
            }
            let check = check_owner(&self.scope.cluster, owner, tags, FoundBy::GeneratedName);
            let reason = check.err().unwrap_or_default();
            if !names_another_owner(&self.scope.cluster, owner, tags) {
                return Err(owner_unknown(owner, self.scope.cluster.id(), name, &reason));
            }
            reasons.push(format!("load balancer {name} is not the Service's: {reason}"));
        }
        let since_change = state.changed_at.map(|at| at.elapsed());
        if !arns.is_empty() || since_change.is_some_and(|age| age < EVENTUAL_CONSISTENCY_WINDOW) {
            let age = since_change.unwrap_or_default();
            let after = EVENTUAL_CONSISTENCY_WINDOW.saturating_sub(age);
            return Ok(RetainCase::Invisible(after.max(Duration::from_secs(2))));
        }
        if reasons.is_empty() {
            reasons.push("AWS shows none with its name or its tags".to_owned());
        }
        Ok(RetainCase::None(reasons.join("; ")))
    }

    /// Lets go of a load balancer. Returns when to try again while a part that it does not need is
    /// still in use.
    async fn let_go(
        &self,
        op: &Op,
        owner: &ServiceKey,
        load_balancer: &LoadBalancer,
        found: &FoundObjects,
    ) -> Result<Option<Deferred>, CloudError> {
        let parts = self.parts_to_keep(load_balancer, found)?;
        let security_groups = &self.deps.security_groups;
        let attached_groups = &load_balancer.security_groups;
        let own_groups = security_groups
            .own_groups(op, owner, attached_groups)
            .await?;
        // First, mark everything.
        let reason = "it is kept when its Service goes";
        let mark: Tags = [(RETAINED_TAG.into(), owner.uid.clone())].into();
        let mut unmarked: Vec<Box<str>> = Vec::new();
        for (arn, tags) in &parts {
            if tags.get(RETAINED_TAG) != Some(&owner.uid) {
                unmarked.push((*arn).into());
            }
        }
        for arns in unmarked.chunks(MAX_TAGGED) {
            let request = AddElbTags { arns: arns.to_vec(), tags: mark.clone() };
            self.scope.client.write(op, request, reason).await?;
        }
        // Next, delete what it does not use: nobody would find that later.
        let mut unused = found.target_groups.clone();
        unused.retain(|arn| !parts.iter().any(|(part, _)| *part == arn.as_str()));
        if let Some(deferred) = self.delete_target_groups(op, &mut unused).await? {
            return Ok(Some(deferred));
        }
        let leftover = security_groups
            .find_leftover_group(op, owner, attached_groups)
            .await?;
        let leftover: Vec<_> = leftover.into_iter().collect();
        let cleaned_up = security_groups.clean_up_detached(op, owner, &leftover);
        if let Progress::Pending { after, reason } = cleaned_up.await? {
            return Ok(Some(Deferred { after, reason }));
        }
        // Last, remove the tags of the owner, and those of the load balancer at the very end.
        for group in &own_groups {
            security_groups.let_go(op, owner, group).await?;
        }
        let (lb_part, group_parts) = parts.split_at(1);
        for parts in group_parts.chunks(MAX_TAGGED) {
            self.remove_owner_tags(op, parts, reason).await?;
        }
        self.let_go.add(&load_balancer.arn);
        self.remove_owner_tags(op, lb_part, reason).await?;
        self.let_go.add(&load_balancer.arn);
        Ok(None)
    }

    /// Returns the ARNs and tags of what is kept: first the load balancer, then the Service's target
    /// groups on it.
    ///
    /// # Errors
    /// Others use a part, too, or its tags are not known.
    fn parts_to_keep<'a>(
        &self,
        load_balancer: &'a LoadBalancer,
        found: &'a FoundObjects,
    ) -> Result<Vec<(&'a str, &'a Tags)>, CloudError> {
        let arn = load_balancer.arn.as_str();
        let tags_of = |arn: &'a str| {
            let tags = found.tags.get(arn).map(|tags| (arn, tags));
            tags.ok_or_else(|| {
                CloudError::transient(format!("AWS does not show the tags of {arn}"))
            })
        };
        let mut parts = vec![tags_of(arn)?];
        let this = [(load_balancer.arn.clone(), load_balancer.clone())].into();
        let attached = attached_target_groups(&found.listed, &this);
        for group in &found.listed {
            let is_own = found.target_groups.contains(&group.arn);
            if !is_own || !attached.contains(&group.arn) {
                continue;
            }
            if group.load_balancers.len() > 1 {
                return Err(CloudError::invalid_input(format!(
                    "load balancer {} cannot be kept, because others use its target group {}",
                    load_balancer.name, group.name
                )));
            }
            parts.push(tags_of(group.arn.as_str())?);
        }
        for (arn, tags) in &parts {
            if self.scope.cluster.names_another(tags) {
                return Err(CloudError::invalid_input(format!(
                    "load balancer {} cannot be kept, because {arn} has the tag of another cluster",
                    load_balancer.name
                )));
            }
        }
        Ok(parts)
    }

    /// Removes the tags that name the owner of load balancers or target groups.
    async fn remove_owner_tags(
        &self,
        op: &Op,
        parts: &[(&str, &Tags)],
        reason: &str,
    ) -> Result<(), CloudError> {
        let mut arns: Vec<Box<str>> = Vec::new();
        let mut keys: BTreeSet<Box<str>> = BTreeSet::new();
        for (arn, tags) in parts {
            arns.push((*arn).into());
            keys.extend(self.scope.cluster.owner_tags(tags).into_keys());
        }
        let request = RemoveElbTags { arns, keys: keys.into_iter().collect() };
        self.scope.client.write(op, request, reason).await?;
        Ok(())
    }

    /// Lets go of a load balancer whose adoption is not finished, because the Service that adopts it is
    /// deleted.
    pub(super) async fn give_back(
        &self,
        op: &Op,
        owner: &ServiceKey,
        load_balancer: &LoadBalancer,
        found: &FoundObjects,
    ) -> Result<Progress, CloudError> {
        if let Some(deferred) = self.let_go(op, owner, load_balancer, found).await? {
            return Ok(deferred.into());
        }
        let note = format!(
            "load balancer {} was not adopted completely: it is not deleted, and belongs to no Service again",
            load_balancer.arn
        );
        op.event(EventType::Normal, "RetainedLoadBalancer", &note);
        Ok(Progress::Done)
    }
}

/// Describes what stays.
fn retained(load_balancer: &LoadBalancer, found: &FoundObjects) -> RetainOutcome {
    let this = [(load_balancer.arn.clone(), load_balancer.clone())].into();
    let attached: BTreeSet<TargetGroupArn> = attached_target_groups(&found.listed, &this);
    let groups: Vec<&str> = found
        .listed
        .iter()
        .filter(|group| attached.contains(&group.arn))
        .map(|group| &*group.name)
        .take(MAX_GROUPS_IN_NOTE)
        .collect();
    let mut kept = vec![format!(
        "network load balancer {} with host name {} and its listeners",
        load_balancer.name, load_balancer.dns_name
    )];
    if !groups.is_empty() {
        let names = groups.join(", ");
        kept.push(format!("{} target groups ({names}) with their targets", attached.len()));
    }
    if !load_balancer.security_groups.is_empty() {
        let ids: Vec<&str> = load_balancer
            .security_groups
            .iter()
            .map(|id| &**id)
            .collect();
        kept.push(format!("its security groups ({})", ids.join(", ")));
    }
    kept.push("and the rules for it in the security groups of nodes".to_owned());
    RetainOutcome::Retained {
        id: load_balancer.arn.as_str().into(),
        kept: kept.join(", ").into(),
    }
}

/// Returns the error for a load balancer that may be the Service's, although its tags do not say so.
fn owner_unknown(owner: &ServiceKey, cluster: &str, name: &str, reason: &str) -> CloudError {
    let message = format!(
        "load balancer {name} has the name of the Service's, but {reason}: tag it {SERVICE_TAG}={} and \
         kubernetes.io/cluster/{cluster}=owned to have it kept, or set the annotation {} to false to leave it alone",
        owner.key(),
        well_known::ANNOTATION_RETAIN
    );
    CloudError::new(ErrorKind::InvalidInput, message).with_reason("LoadBalancerOwnerUnknown")
}
