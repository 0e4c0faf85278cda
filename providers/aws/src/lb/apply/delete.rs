//! Deletes all objects of a Service: load balancer, target groups, security group rules and groups,
//! in this order, each whether or not the ones before it exist. Ownership alone decides what is
//! deleted: the Service may be invalid, changed or deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ccm_core::provider::{CloudError, EventType, Op, Progress};
use tokio::time::Instant;

use crate::{
    api::{
        LoadBalancerArn, SecurityGroupId, Tags, TargetGroupArn,
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
        observe::{RECENT_LISTING_AGE, listing},
        ownership::{self, check_owner},
        reconcile::{LoadBalancerReconciler, as_transient},
        sync_state::LoadBalancerSyncState,
    },
    ownership_tags::Cluster,
};

/// Minimum and maximum delay before the next try if something is still in use.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// After this time a Warning event is emitted.
pub(in crate::lb) const WARNING_THRESHOLD: Duration = Duration::from_secs(1800);

/// What to delete.
pub(in crate::lb) struct DeleteInput<'a> {
    pub(in crate::lb) owner: &'a ServiceKey,
    /// Names that its load balancer may have.
    pub(in crate::lb) names: &'a [Box<str>],
    /// Security groups that must not be deleted, because they are not ours.
    pub(in crate::lb) keep_security_groups: &'a [SecurityGroupId],
}

impl LoadBalancerReconciler {
    /// Deletes all objects of a Service.
    pub(in crate::lb) async fn delete(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
    ) -> Result<Progress, CloudError> {
        let mut state = self.sync_states.take(&input.owner.uid);
        let before = state.changed_at;
        let result = self.delete_all(op, input, &mut state).await;
        // A call that only read has changed nothing.
        if state.changed_at != before {
            state.changed_at = Some(Instant::now());
        }
        match &result {
            Ok(Progress::Done) => self.sync_states.forget(&input.owner.uid),
            _ => self.sync_states.put(&input.owner.uid, state),
        }
        if let Ok(Progress::Pending { after, why }) = &result {
            warn_if_slow(op, *after, why);
        }
        result.map_err(as_transient)
    }

    async fn delete_all(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Progress, CloudError> {
        let mut waits = Vec::new();
        if !state.load_balancer_deleted {
            let found = state
                .responses
                .finish(self.find_all(op, input, state).await)?;
            state.changed_at = Some(Instant::now());
            // A deletion invalidates the observed state. The names are kept, because they are in
            // the descriptions of rules.
            state.invalidate();
            // Rules under the name of somebody else's load balancer are somebody else's.
            state.deleted_names.extend(
                input
                    .names
                    .iter()
                    .filter(|name| !found.names_taken.contains(*name))
                    .cloned(),
            );
            state.deleting_target_groups.clone_from(&found.groups);
            state.deleted_names.extend(
                found
                    .load_balancers
                    .iter()
                    .map(|load_balancer| load_balancer.name.clone()),
            );
            for balancer in &found.load_balancers {
                if let Some(wait) = self.delete_load_balancer(op, balancer).await? {
                    // As long as it exists it needs its rules and groups.
                    return Ok(wait);
                }
            }
            state.to_clean_up.balancer = None;
            let wait = self
                .delete_target_groups(op, &mut state.deleting_target_groups)
                .await;
            // Also after an error: deleted groups need no second request.
            state
                .to_clean_up
                .groups
                .clone_from(&state.deleting_target_groups);
            waits.extend(wait?);
            state.load_balancer_deleted = waits.is_empty();
        }
        for name in &state.deleted_names {
            match self
                .deps
                .security_groups
                .clean_up(op, input.owner, name, input.keep_security_groups)
                .await?
            {
                Progress::Done => {}
                wait @ Progress::Pending { .. } => waits.push(wait),
            }
        }
        Ok(earliest(waits))
    }

    /// Finds the load balancers and target groups of a Service: in the sync state, by name, and by
    /// tags.
    // length: each read depends on the results of those before it
    async fn find_all(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &LoadBalancerSyncState,
    ) -> Result<FoundObjects, CloudError> {
        let observer = self.observer.with_response_cache(&state.responses);
        let scope = &observer.scope;
        // First, collect candidates by name and from the sync state.
        let mut candidates: BTreeMap<LoadBalancerArn, LoadBalancer> = BTreeMap::new();
        for name in input.names {
            let named = observer.get_by_name(op, name).await?;
            candidates
                .extend(named.map(|load_balancer| (load_balancer.arn.clone(), load_balancer)));
        }
        let seen = state
            .observed
            .iter()
            .filter_map(|observed| observed.load_balancer.as_ref());
        let seen = seen
            .map(|seen| &seen.load_balancer)
            .chain(&state.to_clean_up.balancer);
        let seen: BTreeMap<_, _> = seen
            .map(|balancer| (balancer.arn.clone(), balancer.clone()))
            .collect();
        candidates.extend(seen.clone());
        let known_target_groups = state
            .observed
            .iter()
            .flat_map(|observed| &observed.target_groups)
            .map(|seen| seen.group.arn.clone());
        let made = known_target_groups.chain(
            state
                .deleting_target_groups
                .iter()
                .chain(&state.to_clean_up.groups)
                .cloned(),
        );
        let made: BTreeSet<TargetGroupArn> = made.collect();
        // Then read the tags of all candidates.
        let listed = listing::list_target_groups(scope, op).await?;
        let groups = target_groups_of(input.owner, &listed, &candidates, None);
        let arns = candidates
            .keys()
            .map(LoadBalancerArn::as_str)
            .chain(groups.iter().chain(&made).map(|arn| &**arn));
        let arns: BTreeSet<Box<str>> = arns.map(Into::into).collect();
        let mut tags = listing::list_tags(scope, op, arns.into_iter().collect()).await?;
        let belongs = |tags: Option<&Tags>, found: ownership::FoundBy| {
            tags.is_some_and(|tags| {
                check_owner(&self.scope.cluster, input.owner, tags, found).is_ok()
            })
        };
        let by_name =
            |name: &str| ownership::FoundBy::by_name(&self.scope.cluster, input.owner, name);
        // A load balancer from the sync state whose tags cannot be read is deleted, or not visible
        // yet: it counts as ours.
        let (mut load_balancers, foreign): (BTreeMap<_, _>, BTreeMap<_, _>) =
            candidates.into_iter().partition(|(arn, balancer)| {
                let tags = tags.get(arn.as_str());
                belongs(tags, by_name(&balancer.name)) || (tags.is_none() && seen.contains_key(arn))
            });
        // If there is none of ours, look for one in the listing.
        let mut there: Option<BTreeSet<LoadBalancerArn>> = None;
        if load_balancers.is_empty() {
            let since = state.changed_at.unwrap_or_else(|| ago(RECENT_LISTING_AGE));
            let listing = observer.listings.newer_than(op, since).await?;
            let ours = |arn: &str| belongs(listing.tags.get(arn), ownership::FoundBy::Listing);
            let found = listing
                .balancers
                .iter()
                .filter(|balancer| ours(&balancer.arn));
            load_balancers.extend(found.map(|balancer| (balancer.arn.clone(), balancer.clone())));
            there = Some(
                listing
                    .balancers
                    .iter()
                    .map(|balancer| balancer.arn.clone())
                    .collect(),
            );
        }
        // Then choose the target groups that belong to the Service.
        let of_these = target_groups_of(input.owner, &listed, &load_balancers, there.as_ref());
        let unread = of_these
            .iter()
            .filter(|arn| !tags.contains_key(arn.as_str()))
            .map(|arn| arn.as_str().into());
        tags.extend(listing::list_tags(scope, op, unread.collect()).await?);
        let attached = |arn: &TargetGroupArn| {
            let mut users = listed
                .iter()
                .filter(|group| group.arn == *arn)
                .flat_map(|group| &group.load_balancers);
            users.any(|user| load_balancers.contains_key(user))
        };
        let ours = |arn: &TargetGroupArn| match () {
            () if of_these.contains(arn) && attached(arn) => ownership::FoundBy::GeneratedName,
            () if made.contains(arn) => ownership::FoundBy::RequestedName,
            () => ownership::FoundBy::Listing,
        };
        let recent = |arn: &TargetGroupArn| made.contains(arn) && !tags.contains_key(arn.as_str());
        let groups = of_these.iter().chain(&made);
        let groups = groups.filter(|arn| recent(arn) || belongs(tags.get(arn.as_str()), ours(arn)));
        let groups = groups.cloned().collect();
        // Finally, collect the names that somebody else's load balancers have. One without readable
        // tags does not exist. Under a generated name the rules are ours, unless the load balancer
        // belongs to another cluster.
        let theirs = |name: &str, tags: &Tags| {
            by_name(name) == ownership::FoundBy::RequestedName
                || (Cluster::any(tags) && !self.scope.cluster.has(tags))
        };
        let foreign = foreign
            .into_iter()
            .map(|(arn, balancer)| (balancer.name, tags.get(arn.as_str())));
        let foreign = foreign.filter(|(name, tags)| tags.is_some_and(|tags| theirs(name, tags)));
        let foreign = foreign.map(|(name, _)| name).collect();
        Ok(FoundObjects {
            load_balancers: load_balancers.into_values().collect(),
            groups,
            names_taken: foreign,
        })
    }

    /// Deletes a load balancer. Deletion protection is switched off first, if the Service does not
    /// request it.
    async fn delete_load_balancer(
        &self,
        op: &Op,
        load_balancer: &LoadBalancer,
    ) -> Result<Option<Progress>, CloudError> {
        let delete = DeleteLoadBalancer { arn: load_balancer.arn.clone() };
        let client = &self.scope.client;
        let mut deleted = client.write(op, delete.clone(), "").await;
        if deleted
            .as_ref()
            .is_err_and(|error| error.has_code("OperationNotPermitted"))
        {
            let attributes = [("deletion_protection.enabled".into(), "false".into())].into();
            let request =
                ModifyLoadBalancerAttributes { arn: load_balancer.arn.clone(), attributes };
            client
                .write(op, request, "the Service does not ask for protection")
                .await?;
            deleted = client.write(op, delete, "").await;
        }
        match deleted {
            Ok(()) => Ok(None),
            Err(error) if error.has_code("LoadBalancerNotFound") => Ok(None),
            Err(error) if error.has_code("ResourceInUse") => {
                let why = format!("load balancer {} is in use: {error}", load_balancer.name);
                op.event(EventType::Warning, "LoadBalancerInUse", &why);
                Ok(Some(Progress::Pending { after: wait(op), why: why.into() }))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes target groups; if one cannot be deleted, the others are. Those that are left stay in
    /// the set.
    async fn delete_target_groups(
        &self,
        op: &Op,
        groups: &mut BTreeSet<TargetGroupArn>,
    ) -> Result<Option<Progress>, CloudError> {
        let mut in_use = Vec::new();
        let mut failed = None;
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
                // The others would wait and fail in the same way.
                Err(error) if ErrorClass::of(error.code()) == ErrorClass::Throttled => {
                    return Err(error.into());
                }
                Err(error) => failed = Some(failed.unwrap_or(error)),
            }
        }
        match failed {
            Some(error) => Err(error.into()),
            None if in_use.is_empty() => Ok(None),
            None => {
                let why = format!("still in use: {}", in_use.join(", ")).into();
                Ok(Some(Progress::Pending { after: wait(op), why }))
            }
        }
    }
}

/// The objects of a Service that exist.
struct FoundObjects {
    load_balancers: Vec<LoadBalancer>,
    groups: BTreeSet<TargetGroupArn>,
    /// Those of the Service's names under which somebody else's load balancers exist.
    names_taken: BTreeSet<Box<str>>,
}

/// Returns the target groups that may belong to a Service: those that only its load balancers use,
/// and unused ones with the Service's name prefix. `there`: all existing load balancers, if known.
fn target_groups_of(
    owner: &ServiceKey,
    listed: &[TargetGroup],
    load_balancers: &BTreeMap<LoadBalancerArn, LoadBalancer>,
    there: Option<&BTreeSet<LoadBalancerArn>>,
) -> BTreeSet<TargetGroupArn> {
    let prefix = names::prefix(owner);
    // A group may refer to a load balancer that was just deleted, for instance if the process
    // crashed after that.
    let gone = |arn: &LoadBalancerArn| there.is_some_and(|there| !there.contains(arn));
    let may_be = |group: &&TargetGroup| {
        let users: Vec<_> = group
            .load_balancers
            .iter()
            .filter(|arn| !gone(arn))
            .collect();
        match &*users {
            [] => group.name.starts_with(&prefix),
            // A group that somebody else's load balancer uses as well is in use.
            users => users.iter().all(|arn| load_balancers.contains_key(*arn)),
        }
    };
    listed
        .iter()
        .filter(may_be)
        .map(|group| group.arn.clone())
        .collect()
}

/// Returns the time waited so far, within bounds, as the next delay: this doubles the delays.
pub(in crate::lb) fn wait(op: &Op) -> Duration {
    op.pending_for().clamp(RETRY_DELAY.0, RETRY_DELAY.1)
}

/// Combines pending deletions; the shortest delay counts.
fn earliest(waits: Vec<Progress>) -> Progress {
    waits
        .into_iter()
        .fold(Progress::Done, |all, one| match (all, one) {
            (Progress::Pending { after, why }, Progress::Pending { after: other, why: also }) => {
                Progress::Pending {
                    after: after.min(other),
                    why: format!("{why}; {also}").into(),
                }
            }
            (Progress::Done, one) => one,
            (all, Progress::Done) => all,
        })
}

/// Tells whether a wait has become too long. True only once, because the next try comes after
/// `next`.
pub(in crate::lb) fn crossed_warning_threshold(op: &Op, next: Duration) -> bool {
    (WARNING_THRESHOLD..WARNING_THRESHOLD + next).contains(&op.pending_for())
}

/// Emits an event, once, when a deletion has become slow.
fn warn_if_slow(op: &Op, next: Duration, what: &str) {
    if crossed_warning_threshold(op, next) {
        let note = format!(
            "deletion is not finished after {} minutes: {what}",
            WARNING_THRESHOLD.as_secs() / 60
        );
        op.event(EventType::Warning, "LoadBalancerDeletionSlow", &note);
    }
}

#[cfg(test)]
#[path = "delete_tests.rs"]
mod tests;
