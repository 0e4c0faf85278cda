//! Deletes all objects of a Service, in this order: load balancer, target groups, security group
//! rules, security groups. Each step runs even if the objects of the earlier ones do not exist.
//!
//! Only the ownership tags decide which objects are deleted, because the Service may be invalid,
//! changed or deleted.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use ccm_core::provider::{CloudError, ErrorKind, EventType, Op, Progress};
use tokio::time::Instant;

use crate::{
    api::{
        AwsError, LoadBalancerArn, SecurityGroupId, Tags, TargetGroupArn,
        elb::{
            DeleteLoadBalancer, DeleteTargetGroup, LoadBalancer, ModifyLoadBalancerAttributes,
            TargetGroup,
        },
    },
    client::ErrorClass,
    clock::ago,
    lb::{
        model::ServiceKey,
        names,
        observe::{
            RECENT_LISTING_AGE,
            listing::{self, Listing},
        },
        ownership::{FoundBy, check_owner, is_adopter, is_being_adopted, is_let_go},
        reconcile::{
            LoadBalancerReconciler, as_transient, recent_changes::EVENTUAL_CONSISTENCY_WINDOW,
        },
        retry_delay::{self, Deferred, SLOW_DELETION_THRESHOLD},
        spec::annotations,
        sync_state::LoadBalancerSyncState,
    },
    ownership_tags::{ADOPTER_TAG, Cluster, RETAINED_TAG},
};

/// Identifies the objects to delete.
pub(in crate::lb) struct DeleteInput<'a> {
    pub(in crate::lb) owner: &'a ServiceKey,
    /// Names that the load balancer may have.
    pub(in crate::lb) names: &'a [Box<str>],
    /// The name in the ARN that the Service adopts, unless it is one of the `names`. Its load balancer
    /// is the Service's only if the Service has claimed it.
    pub(in crate::lb) adopted_name: Option<&'a str>,
    /// Security groups that the Service names itself and that must not be deleted.
    pub(in crate::lb) keep_security_groups: &'a [SecurityGroupId],
    /// True if deletion protection is turned off. Otherwise it prevents the deletion.
    pub(in crate::lb) remove_protection: bool,
}

impl DeleteInput<'_> {
    fn all_names(&self) -> impl Iterator<Item = &str> {
        let names = self.names.iter().map(|name| &**name);
        names.chain(self.adopted_name)
    }
}

impl LoadBalancerReconciler {
    /// Deletes all objects of a Service. Continues an earlier deletion that is pending.
    pub(in crate::lb) async fn delete(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
    ) -> Result<Progress, CloudError> {
        let mut state = self.sync_states.take(&input.owner.uid);
        let changed_at = state.changed_at;
        let result = self.delete_all(op, input, &mut state).await;
        // A call that only read must not make listings outdated.
        if state.changed_at != changed_at {
            state.changed_at = Some(Instant::now());
        }
        match &result {
            Ok(Progress::Done) => self.sync_states.forget(&input.owner.uid),
            _ => self.sync_states.put(&input.owner.uid, state),
        }
        if let Ok(Progress::Pending { after, reason }) = &result {
            warn_if_slow(op, *after, reason);
        }
        result.map_err(as_transient)
    }

    /// Deletes what still exists, and records in `state` how far the deletion is.
    async fn delete_all(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Progress, CloudError> {
        if !state.load_balancer_deleted {
            let result = self.find_all(op, input, state).await;
            let found = state.responses.finish(result)?;
            check_unfinished(input.owner, state, &found)?;
            state.changed_at = Some(Instant::now());
            // A deletion makes the observed state outdated.
            state.invalidate();
            // One whose adoption is not finished is plainly kept again.
            if let Some(load_balancer) = found.being_adopted(input.owner) {
                return self.give_back(op, input.owner, load_balancer, &found).await;
            }
            record_deletion(state, input, &found);
            // Parts that the Service has let go of already, before it was to be deleted after all.
            for load_balancer in &found.load_balancers {
                if found.has_mark(load_balancer) {
                    let parts = self.claim_parts(op, input.owner, load_balancer).await?;
                    let groups = parts.into_iter().map(|(group, _)| group.arn);
                    state.deleting_target_groups.extend(groups);
                }
            }
            for load_balancer in &found.load_balancers {
                if let Some(deferred) = self.delete_load_balancer(op, input, load_balancer).await? {
                    // As long as the load balancer exists, it needs its rules and groups.
                    return Ok(deferred.into());
                }
            }
            state.to_clean_up.load_balancer = None;
        }
        self.delete_parts(op, input, state).await
    }

    /// Deletes what is left of a Service without a load balancer.
    pub(super) async fn delete_parts(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Progress, CloudError> {
        let mut deferred = Vec::new();
        if !state.load_balancer_deleted {
            let result = self
                .delete_target_groups(op, &mut state.deleting_target_groups)
                .await;
            // Also after an error: groups that are deleted need no second request.
            state
                .to_clean_up
                .target_groups
                .clone_from(&state.deleting_target_groups);
            deferred.extend(result?);
            state.load_balancer_deleted = deferred.is_empty();
        }
        for name in &state.deleted_names {
            let progress = self
                .deps
                .security_groups
                .clean_up(op, input.owner, name, input.keep_security_groups)
                .await?;
            if let Progress::Pending { after, reason } = progress {
                deferred.push(Deferred { after, reason });
            }
        }
        Ok(retry_delay::earliest(deferred))
    }

    /// Finds the existing load balancers and target groups of a Service. They are searched in the
    /// sync state, by name and by tags.
    // length: each read depends on the results of those before it
    pub(super) async fn find_all(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &LoadBalancerSyncState,
    ) -> Result<FoundObjects, CloudError> {
        let observer = self.observer.with_response_cache(&state.responses);
        let scope = &observer.scope;
        let ownership = OwnershipCheck { cluster: &self.scope.cluster, owner: input.owner };
        // Load balancers with a name of the Service, and those in the sync state, are candidates.
        let mut candidates: BTreeMap<LoadBalancerArn, LoadBalancer> = BTreeMap::new();
        for name in input.all_names() {
            if let Some(load_balancer) = observer.get_by_name(op, name).await? {
                candidates.insert(load_balancer.arn.clone(), load_balancer);
            }
        }
        let remembered = remembered_load_balancers(state);
        candidates.extend(remembered.clone());
        candidates.extend(
            state
                .adopting
                .iter()
                .map(|adopting| (adopting.arn.clone(), adopting.clone())),
        );
        let remembered_groups = remembered_target_groups(state);
        // Read the tags of all candidates together, with those of possible target groups.
        let listed = listing::list_target_groups(scope, op).await?;
        let possible_groups = find_possible_groups(input.owner, &listed, &candidates, None);
        let mut arns: BTreeSet<Box<str>> = BTreeSet::new();
        arns.extend(candidates.keys().map(|arn| arn.as_str().into()));
        arns.extend(
            possible_groups
                .iter()
                .chain(&remembered_groups)
                .map(|arn| arn.as_str().into()),
        );
        let mut tags = listing::list_tags(scope, op, arns.into_iter().collect()).await?;
        let exists = match &state.adopting {
            Some(adopting) => observer.get_by_name(op, &adopting.name).await?.is_some(),
            None => false,
        };
        check_adopting(input.owner, state, &tags, exists)?;
        // The tags show which candidates are the Service's and which are somebody else's.
        let mut load_balancers = BTreeMap::new();
        let mut foreign_names = BTreeSet::new();
        let mut others = Vec::new();
        for (arn, load_balancer) in candidates {
            let name = &load_balancer.name;
            let is_only_named =
                input.adopted_name == Some(&**name) && !remembered.contains_key(&arn);
            let is_owned = match tags.get(arn.as_str()) {
                Some(tags) if is_only_named && !ownership.is_adopter(tags) => false,
                Some(tags) => ownership.is_owned(tags, ownership.found_by_name(name)),
                // A load balancer without readable tags is deleted, or not visible yet. If it is in
                // the sync state, it counts as the Service's.
                None => remembered.contains_key(&arn) && !state.is_adopting(&arn),
            };
            if is_owned {
                load_balancers.insert(arn, load_balancer);
                continue;
            }
            // A load balancer without readable tags does not exist.
            let tags = tags.get(arn.as_str());
            let is_foreign = tags.is_some_and(|tags| ownership.has_foreign_rules(name, tags));
            if is_foreign || is_only_named {
                foreign_names.insert(load_balancer.name.clone());
            }
            // The annotation alone says nothing about whose a load balancer is.
            if !is_only_named || tags.is_none_or(|tags| is_let_go(input.owner, tags)) {
                others.push(load_balancer);
            }
        }
        // Only the listing shows a load balancer with an unexpected name.
        let mut existing: Option<BTreeSet<LoadBalancerArn>> = None;
        let mut adopted_groups: BTreeSet<TargetGroupArn> = BTreeSet::new();
        if load_balancers.is_empty() {
            let oldest = state.changed_at.unwrap_or_else(|| ago(RECENT_LISTING_AGE));
            let listing = observer.listings.newer_than(op, oldest).await?;
            let mut existing_arns = BTreeSet::new();
            for load_balancer in &listing.load_balancers {
                let arn = &load_balancer.arn;
                existing_arns.insert(arn.clone());
                let Some(found_tags) = listing.tags.get(arn.as_str()) else {
                    continue;
                };
                if ownership.is_owned(found_tags, FoundBy::Listing) {
                    load_balancers.insert(arn.clone(), load_balancer.clone());
                    tags.insert(arn.as_str().into(), found_tags.clone());
                } else if is_let_go(input.owner, found_tags) {
                    others.push(load_balancer.clone());
                    tags.insert(arn.as_str().into(), found_tags.clone());
                }
            }
            existing = Some(existing_arns);
            adopted_groups = unused_adopted_groups(input.owner, &listing);
        }
        for arn in load_balancers.keys() {
            self.let_go.check(arn)?;
        }
        // Now that the load balancers are known, more target groups may be the Service's.
        let mut possible_groups =
            find_possible_groups(input.owner, &listed, &load_balancers, existing.as_ref());
        possible_groups.extend(adopted_groups);
        let unread = possible_groups
            .iter()
            .filter(|arn| !tags.contains_key(arn.as_str()))
            .map(|arn| arn.as_str().into());
        tags.extend(listing::list_tags(scope, op, unread.collect()).await?);
        let attached = attached_target_groups(&listed, &load_balancers);
        let mut target_groups = BTreeSet::new();
        for arn in possible_groups.iter().chain(&remembered_groups) {
            let is_remembered = remembered_groups.contains(arn);
            let found_by = if possible_groups.contains(arn) && attached.contains(arn) {
                FoundBy::GeneratedName
            } else if is_remembered {
                FoundBy::RequestedName
            } else {
                FoundBy::Listing
            };
            let is_owned = match tags.get(arn.as_str()) {
                Some(tags) => ownership.is_owned(tags, found_by),
                // A new group may not be visible yet.
                None => is_remembered,
            };
            if is_owned {
                target_groups.insert(arn.clone());
            }
        }
        Ok(FoundObjects {
            load_balancers: load_balancers.into_values().collect(),
            target_groups,
            foreign_names,
            others,
            listed,
            tags,
        })
    }

    /// Deletes a load balancer. If deletion protection prevents that, turns the protection off and
    /// tries again, but only if the Service or the configuration asks for that.
    async fn delete_load_balancer(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        load_balancer: &LoadBalancer,
    ) -> Result<Option<Deferred>, CloudError> {
        let delete = DeleteLoadBalancer { arn: load_balancer.arn.clone() };
        let client = &self.scope.client;
        let mut deleted = client.write(op, delete.clone(), "").await;
        if let Err(error) = &deleted
            && error.has_code("OperationNotPermitted")
        {
            if !input.remove_protection {
                return Err(protected(load_balancer, error));
            }
            let attributes = [("deletion_protection.enabled".into(), "false".into())].into();
            let request =
                ModifyLoadBalancerAttributes { arn: load_balancer.arn.clone(), attributes };
            client
                .write(op, request, "deletion protection is to be removed")
                .await?;
            deleted = client.write(op, delete, "").await;
        }
        match deleted {
            Ok(()) => Ok(None),
            Err(error) if error.has_code("LoadBalancerNotFound") => Ok(None),
            Err(error) if error.has_code("ResourceInUse") => {
                let reason = format!("load balancer {} is in use: {error}", load_balancer.name);
                op.event(EventType::Warning, "LoadBalancerInUse", &reason);
                let after = retry_delay::object_in_use(op);
                Ok(Some(Deferred { after, reason: reason.into() }))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes target groups and removes them from `groups`. If one cannot be deleted, continues
    /// with the others.
    pub(super) async fn delete_target_groups(
        &self,
        op: &Op,
        groups: &mut BTreeSet<TargetGroupArn>,
    ) -> Result<Option<Deferred>, CloudError> {
        let mut in_use = Vec::new();
        let mut first_error = None;
        for arn in groups.clone() {
            match self
                .scope
                .client
                .write(op, DeleteTargetGroup { arn: arn.clone() }, "")
                .await
            {
                Ok(()) => drop(groups.remove(&arn)),
                Err(error) if error.has_code("TargetGroupNotFound") => drop(groups.remove(&arn)),
                Err(error) if error.has_code("ResourceInUse") => in_use.push(arn.to_string()),
                // The other requests would be throttled in the same way.
                Err(error) if ErrorClass::from_code(error.code()) == ErrorClass::Throttled => {
                    return Err(error.into());
                }
                Err(error) => _ = first_error.get_or_insert(error),
            }
        }
        if let Some(error) = first_error {
            return Err(error.into());
        }
        if in_use.is_empty() {
            return Ok(None);
        }
        let reason = format!("still in use: {}", in_use.join(", ")).into();
        Ok(Some(Deferred { after: retry_delay::object_in_use(op), reason }))
    }
}

/// The existing objects of a Service.
pub(super) struct FoundObjects {
    pub(super) load_balancers: Vec<LoadBalancer>,
    pub(super) target_groups: BTreeSet<TargetGroupArn>,
    /// Names of the Service that somebody else's load balancers have.
    foreign_names: BTreeSet<Box<str>>,
    /// Load balancers with a name of the Service that are not the Service's, and those that the Service
    /// let go of.
    pub(super) others: Vec<LoadBalancer>,
    /// All target groups.
    pub(super) listed: Vec<TargetGroup>,
    /// The tags that were read, by ARN.
    pub(super) tags: HashMap<Box<str>, Tags>,
}

impl FoundObjects {
    fn has_mark(&self, load_balancer: &LoadBalancer) -> bool {
        let tags = self.tags.get(load_balancer.arn.as_str());
        tags.is_some_and(|tags| tags.contains_key(RETAINED_TAG))
    }

    /// Returns the load balancer whose adoption by the Service is not finished.
    fn being_adopted(&self, owner: &ServiceKey) -> Option<&LoadBalancer> {
        self.load_balancers.iter().find(|load_balancer| {
            let tags = self.tags.get(load_balancer.arn.as_str());
            tags.is_some_and(|tags| is_being_adopted(owner, tags))
        })
    }
}

/// Decides by tags which objects belong to the Service that is deleted.
struct OwnershipCheck<'a> {
    cluster: &'a Cluster,
    owner: &'a ServiceKey,
}

impl OwnershipCheck<'_> {
    /// Returns how much a load balancer's name proves about its owner.
    fn found_by_name(&self, name: &str) -> FoundBy {
        FoundBy::by_name(self.cluster, self.owner, name)
    }

    fn is_adopter(&self, tags: &Tags) -> bool {
        is_adopter(self.owner, tags)
    }

    fn is_owned(&self, tags: &Tags, found_by: FoundBy) -> bool {
        check_owner(self.cluster, self.owner, tags, found_by).is_ok()
    }

    /// Returns true if the rules with the name of somebody else's load balancer are not the
    /// Service's. Under a generated name they are, unless the load balancer belongs to another
    /// cluster, or was let go of or adopted: then it needs its rules.
    fn has_foreign_rules(&self, name: &str, tags: &Tags) -> bool {
        self.found_by_name(name) == FoundBy::RequestedName
            || tags.contains_key(RETAINED_TAG)
            || tags.contains_key(ADOPTER_TAG)
            || (Cluster::any(tags) && !self.cluster.has(tags))
    }
}

/// Records the objects that are about to be deleted. The names are kept until the end, because the
/// descriptions of security group rules contain them.
pub(super) fn record_deletion(
    state: &mut LoadBalancerSyncState,
    input: &DeleteInput<'_>,
    found: &FoundObjects,
) {
    // Rules under the name of somebody else's load balancer are somebody else's.
    for name in input.all_names() {
        if !found.foreign_names.contains(name) {
            state.deleted_names.insert(name.into());
        }
    }
    for load_balancer in &found.load_balancers {
        state.deleted_names.insert(load_balancer.name.clone());
    }
    state
        .deleting_target_groups
        .clone_from(&found.target_groups);
}

/// Returns the load balancers that this process has observed or created.
fn remembered_load_balancers(
    state: &LoadBalancerSyncState,
) -> BTreeMap<LoadBalancerArn, LoadBalancer> {
    state
        .load_balancer()
        .into_iter()
        .chain(&state.to_clean_up.load_balancer)
        .map(|load_balancer| (load_balancer.arn.clone(), load_balancer.clone()))
        .collect()
}

/// Returns the target groups that this process has observed or created.
fn remembered_target_groups(state: &LoadBalancerSyncState) -> BTreeSet<TargetGroupArn> {
    let mut groups = state.deleting_target_groups.clone();
    groups.extend(state.to_clean_up.target_groups.iter().cloned());
    if let Some(observed) = &state.observed {
        groups.extend(
            observed
                .target_groups
                .iter()
                .map(|group| group.resource.arn.clone()),
        );
    }
    groups
}

/// Returns the listed target groups that any of these load balancers uses.
pub(super) fn attached_target_groups(
    listed: &[TargetGroup],
    load_balancers: &BTreeMap<LoadBalancerArn, LoadBalancer>,
) -> BTreeSet<TargetGroupArn> {
    listed
        .iter()
        .filter(|group| {
            let mut users = group.load_balancers.iter();
            users.any(|user| load_balancers.contains_key(user))
        })
        .map(|group| group.arn.clone())
        .collect()
}

/// Checks that the tags of a load balancer that the Service adopts are certain: they decide whether it
/// is deleted, given back, or somebody else's.
fn check_adopting(
    owner: &ServiceKey,
    state: &LoadBalancerSyncState,
    tags: &HashMap<Box<str>, Tags>,
    exists: bool,
) -> Result<(), CloudError> {
    let Some(adopting) = state.adopting.as_ref().filter(|_| exists) else {
        return Ok(());
    };
    let shown = tags.get(adopting.arn.as_str());
    let is_claimed = shown.is_some_and(|tags| is_adopter(owner, tags));
    let was_claimed_recently = state
        .changed_at
        .is_some_and(|at| at.elapsed() < EVENTUAL_CONSISTENCY_WINDOW);
    if shown.is_none() || (!is_claimed && was_claimed_recently) {
        let message = format!(
            "AWS may not show yet that service {} has claimed load balancer {}",
            owner.key(),
            adopting.name
        );
        return Err(CloudError::transient(message).with_retry_after(EVENTUAL_CONSISTENCY_WINDOW));
    }
    Ok(())
}

/// Checks that an adoption that looks unfinished is: this process may have finished it a moment ago.
fn check_unfinished(
    owner: &ServiceKey,
    state: &LoadBalancerSyncState,
    found: &FoundObjects,
) -> Result<(), CloudError> {
    let age = state.changed_at.map(|at| at.elapsed());
    let left = age.and_then(|age| EVENTUAL_CONSISTENCY_WINDOW.checked_sub(age));
    match (found.being_adopted(owner), left) {
        (Some(load_balancer), Some(left)) if state.adopting.is_none() => {
            let message = format!(
                "AWS may not show yet that load balancer {} is adopted completely",
                load_balancer.name
            );
            Err(CloudError::transient(message).with_retry_after(left))
        }
        _ => Ok(()),
    }
}

/// Returns the listed target groups that the Service adopted with a load balancer and that none uses
/// now. Their names have the prefix of another Service.
fn unused_adopted_groups(owner: &ServiceKey, listing: &Listing) -> BTreeSet<TargetGroupArn> {
    let mut found = BTreeSet::new();
    for group in &listing.target_groups {
        let tags = listing.tags.get(group.arn.as_str());
        let is_adopted = tags.is_some_and(|tags| is_adopter(owner, tags));
        if is_adopted && group.load_balancers.is_empty() {
            found.insert(group.arn.clone());
        }
    }
    found
}

/// Returns the target groups that may belong to a Service: groups that only its load balancers use,
/// and unused groups with the Service's name prefix. `existing` has all existing load balancers, if
/// they are known.
fn find_possible_groups(
    owner: &ServiceKey,
    listed: &[TargetGroup],
    load_balancers: &BTreeMap<LoadBalancerArn, LoadBalancer>,
    existing: Option<&BTreeSet<LoadBalancerArn>>,
) -> BTreeSet<TargetGroupArn> {
    let prefix = names::prefix(owner);
    let mut found = BTreeSet::new();
    for group in listed {
        // A group may still refer to a load balancer that was just deleted, for instance if the
        // process crashed after that.
        let users: Vec<_> = group
            .load_balancers
            .iter()
            .filter(|arn| existing.is_none_or(|existing| existing.contains(arn)))
            .collect();
        let may_belong = if users.is_empty() {
            group.name.starts_with(&prefix)
        } else {
            // A group that somebody else's load balancer uses too must stay.
            users.iter().all(|arn| load_balancers.contains_key(*arn))
        };
        if may_belong {
            found.insert(group.arn.clone());
        }
    }
    found
}

/// Returns the error for a load balancer with deletion protection that no annotation mentions. The
/// framework reports it in an event and retries with back-off, as upstream does.
fn protected(load_balancer: &LoadBalancer, error: &AwsError) -> CloudError {
    let message = format!(
        "load balancer {} has deletion protection that no annotation of the Service requests: \
         disable it in AWS, or set RemoveDeletionProtection=true in cloud.conf (without effect \
         while an annotation says deletion_protection.enabled=true); if the Service's \
         type and class are still the same, deletion_protection.enabled=false in the annotation \
         {} suffices",
        load_balancer.name,
        annotations::ATTRIBUTES.definition.key()
    );
    CloudError::new(ErrorKind::Conflict, message)
        .with_reason("DeletionProtected")
        .with_source(error.clone())
}

/// Emits a Warning event once a deletion has become slow.
fn warn_if_slow(op: &Op, next_delay: Duration, pending: &str) {
    if retry_delay::has_become_slow(op, next_delay) {
        let note = format!(
            "deletion is not finished after {} minutes: {pending}",
            SLOW_DELETION_THRESHOLD.as_secs() / 60
        );
        op.event(EventType::Warning, "LoadBalancerDeletionSlow", &note);
    }
}

#[cfg(test)]
#[path = "delete_tests.rs"]
mod tests;
