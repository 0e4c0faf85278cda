//! Deletes everything of a Service: balancer, target groups, rules and security groups, in this order, each whether or not
//! the ones before it are there. What to delete is decided by ownership alone: the Service may be invalid, changed or gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ccm_core::provider::{CloudError, EventKind, Op, Progress};
use tokio::time::Instant;

use super::{
    bring::{Core, unsettled},
    memory::Known,
    model::OwnerName,
    names,
    observe::RECENT,
    ownership::{self, belongs},
    sweep,
};
use crate::{
    api::{
        LoadBalancerArn, SecurityGroupId, Tags, TargetGroupArn,
        elb::{DeleteLoadBalancer, DeleteTargetGroup, LoadBalancer, ModifyLoadBalancerAttributes, TargetGroup},
    },
    client::Meaning,
    clock::ago,
    cluster::Cluster,
};

/// First and longest wait for something that is still in use.
const WAITS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// After this time somebody should look.
pub(super) const TOO_LONG: Duration = Duration::from_secs(1800);

/// What is to be deleted.
pub(super) struct Doomed<'a> {
    pub(super) owner: &'a OwnerName,
    /// Names that its balancer may have.
    pub(super) names: &'a [Box<str>],
    /// Security groups that are not ours.
    pub(super) keep: &'a [SecurityGroupId],
}

impl Core {
    /// Deletes everything of a Service.
    pub(super) async fn delete(&self, op: &Op, doomed: &Doomed<'_>) -> Result<Progress, CloudError> {
        let mut known = self.memory.take(&doomed.owner.uid);
        let before = known.changed;
        let result = self.take_down(op, doomed, &mut known).await;
        // Whoever got no further than to look has changed nothing.
        if known.changed != before {
            known.changed = Some(Instant::now());
        }
        match &result {
            Ok(Progress::Done) => self.memory.forget(&doomed.owner.uid),
            _ => self.memory.put(&doomed.owner.uid, known),
        }
        if let Ok(Progress::Pending { after, why }) = &result {
            tell_if_long(op, *after, why);
        }
        result.map_err(unsettled)
    }

    async fn take_down(&self, op: &Op, doomed: &Doomed<'_>, known: &mut Known) -> Result<Progress, CloudError> {
        let mut waits = Vec::new();
        if !known.deleted {
            let found = known.answers.end(self.find_all(op, doomed, known).await)?;
            known.changed = Some(Instant::now());
            // Once something goes, what was known of it is history. The names of balancers are those in rules.
            known.doubt();
            // Under the name of somebody else's balancer are somebody else's rules.
            known.names.extend(doomed.names.iter().filter(|name| !found.foreign.contains(*name)).cloned());
            known.groups.clone_from(&found.groups);
            known.names.extend(found.balancers.iter().map(|balancer| balancer.name.clone()));
            for balancer in &found.balancers {
                if let Some(wait) = self.delete_balancer(op, balancer).await? {
                    // Its rules and groups serve it as long as it is there.
                    return Ok(wait);
                }
            }
            known.left.balancer = None;
            let wait = self.delete_groups(op, &mut known.groups).await;
            // Also after an error: those that went need no second request.
            known.left.groups.clone_from(&known.groups);
            waits.extend(wait?);
            known.deleted = waits.is_empty();
        }
        for name in &known.names {
            match self.surroundings.security.release(op, doomed.owner, name, doomed.keep).await? {
                Progress::Done => {}
                wait @ Progress::Pending { .. } => waits.push(wait),
            }
        }
        Ok(soonest(waits))
    }

    /// Finds balancers and target groups of a Service, by what is known, by name, and by tags.
    // length: one question after the other, each by the answers before it
    async fn find_all(&self, op: &Op, doomed: &Doomed<'_>, known: &Known) -> Result<Found, CloudError> {
        let observer = self.observer.recalling(&known.answers);
        let scope = &observer.scope;
        let mut candidates: BTreeMap<LoadBalancerArn, LoadBalancer> = BTreeMap::new();
        for name in doomed.names {
            let named = observer.named(op, name).await?;
            candidates.extend(named.map(|balancer| (balancer.arn.clone(), balancer)));
        }
        let seen = known.observed.iter().filter_map(|observed| observed.balancer.as_ref());
        let seen = seen.map(|seen| &seen.balancer).chain(&known.left.balancer);
        let seen: BTreeMap<_, _> = seen.map(|balancer| (balancer.arn.clone(), balancer.clone())).collect();
        candidates.extend(seen.clone());
        let made = known.observed.iter().flat_map(|observed| &observed.groups).map(|seen| seen.group.arn.clone());
        let made = made.chain(known.groups.iter().chain(&known.left.groups).cloned());
        let made: BTreeSet<TargetGroupArn> = made.collect();
        let listed = sweep::groups(scope, op).await?;
        let groups = groups_of(doomed.owner, &listed, &candidates, None);
        let arns = candidates.keys().map(LoadBalancerArn::as_str).chain(groups.iter().chain(&made).map(|arn| &**arn));
        let arns: BTreeSet<Box<str>> = arns.map(Into::into).collect();
        let mut tags = sweep::tags(scope, op, arns.into_iter().collect()).await?;
        let belongs = |tags: Option<&Tags>, found: ownership::Found| {
            tags.is_some_and(|tags| belongs(&self.scope.cluster, doomed.owner, tags, found).is_ok())
        };
        let by_name = |name: &str| ownership::Found::by_name(&self.scope.cluster, doomed.owner, name);
        // What this process knows as the Service's and what has no tags to read is gone, or does not show yet.
        let (mut balancers, foreign): (BTreeMap<_, _>, BTreeMap<_, _>) =
            candidates.into_iter().partition(|(arn, balancer)| {
                let tags = tags.get(arn.as_str());
                belongs(tags, by_name(&balancer.name)) || (tags.is_none() && seen.contains_key(arn))
            });
        let mut there: Option<BTreeSet<LoadBalancerArn>> = None;
        if balancers.is_empty() {
            let since = known.changed.unwrap_or_else(|| ago(RECENT));
            let sweep = observer.sweeps.since(op, since).await?;
            let ours = |arn: &str| belongs(sweep.tags.get(arn), ownership::Found::Among);
            let found = sweep.balancers.iter().filter(|balancer| ours(&balancer.arn));
            balancers.extend(found.map(|balancer| (balancer.arn.clone(), balancer.clone())));
            there = Some(sweep.balancers.iter().map(|balancer| balancer.arn.clone()).collect());
        }
        let of_these = groups_of(doomed.owner, &listed, &balancers, there.as_ref());
        let unread = of_these.iter().filter(|arn| !tags.contains_key(arn.as_str())).map(|arn| arn.as_str().into());
        tags.extend(sweep::tags(scope, op, unread.collect()).await?);
        let attached = |arn: &TargetGroupArn| {
            let mut users = listed.iter().filter(|group| group.arn == *arn).flat_map(|group| &group.load_balancers);
            users.any(|user| balancers.contains_key(user))
        };
        let ours = |arn: &TargetGroupArn| match () {
            () if of_these.contains(arn) && attached(arn) => ownership::Found::Computed,
            () if made.contains(arn) => ownership::Found::Named,
            () => ownership::Found::Among,
        };
        let young = |arn: &TargetGroupArn| made.contains(arn) && !tags.contains_key(arn.as_str());
        let groups = of_these.iter().chain(&made);
        let groups = groups.filter(|arn| young(arn) || belongs(tags.get(arn.as_str()), ours(arn)));
        let groups = groups.cloned().collect();
        // One that has no tags to read is gone. Under a name that nobody else in the cluster gets are rules of ours, whatever
        // became of the balancer.
        let theirs = |name: &str, tags: &Tags| {
            by_name(name) == ownership::Found::Named || (Cluster::any(tags) && !self.scope.cluster.has(tags))
        };
        let foreign = foreign.into_iter().map(|(arn, balancer)| (balancer.name, tags.get(arn.as_str())));
        let foreign = foreign.filter(|(name, tags)| tags.is_some_and(|tags| theirs(name, tags)));
        let foreign = foreign.map(|(name, _)| name).collect();
        Ok(Found { balancers: balancers.into_values().collect(), groups, foreign })
    }

    /// Deletes a balancer. Protection that the Service does not ask for is taken off.
    async fn delete_balancer(&self, op: &Op, balancer: &LoadBalancer) -> Result<Option<Progress>, CloudError> {
        let delete = DeleteLoadBalancer { arn: balancer.arn.clone() };
        let client = &self.scope.client;
        let mut deleted = client.write(op, delete.clone(), "").await;
        if deleted.as_ref().is_err_and(|error| error.is("OperationNotPermitted")) {
            let attributes = [("deletion_protection.enabled".into(), "false".into())].into();
            let request = ModifyLoadBalancerAttributes { arn: balancer.arn.clone(), attributes };
            client.write(op, request, "the Service does not ask for protection").await?;
            deleted = client.write(op, delete, "").await;
        }
        match deleted {
            Ok(()) => Ok(None),
            Err(error) if error.is("LoadBalancerNotFound") => Ok(None),
            Err(error) if error.is("ResourceInUse") => {
                let why = format!("load balancer {} is in use: {error}", balancer.name);
                op.event(EventKind::Warning, "LoadBalancerInUse", &why);
                Ok(Some(Progress::Pending { after: wait(op), why: why.into() }))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes target groups; one that cannot go does not keep the others. Those that are left stay in the set.
    async fn delete_groups(
        &self,
        op: &Op,
        groups: &mut BTreeSet<TargetGroupArn>,
    ) -> Result<Option<Progress>, CloudError> {
        let (mut in_use, mut failed) = (Vec::new(), None);
        for arn in groups.clone() {
            match self.scope.client.write(op, DeleteTargetGroup { arn: arn.clone() }, "").await {
                Ok(()) => drop(groups.remove(&arn)),
                Err(error) if error.is("TargetGroupNotFound") => drop(groups.remove(&arn)),
                Err(error) if error.is("ResourceInUse") => in_use.push(arn.to_string()),
                // The others would wait and fail alike.
                Err(error) if Meaning::of(error.code()) == Meaning::Throttled => return Err(error.into()),
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

/// What there is of a Service.
struct Found {
    balancers: Vec<LoadBalancer>,
    groups: BTreeSet<TargetGroupArn>,
    /// Names among those of the Service under which there are somebody else's balancers.
    foreign: BTreeSet<Box<str>>,
}

/// Returns the target groups that may be a Service's: those that only its balancers use, and those that nothing uses and
/// that are called as its are. `there`: all balancers, where that is known.
fn groups_of(
    owner: &OwnerName,
    listed: &[TargetGroup],
    balancers: &BTreeMap<LoadBalancerArn, LoadBalancer>,
    there: Option<&BTreeSet<LoadBalancerArn>>,
) -> BTreeSet<TargetGroupArn> {
    let prefix = names::prefix(owner);
    // A group may be told to serve a balancer that was just deleted, by a process that died of it for instance.
    let gone = |arn: &LoadBalancerArn| there.is_some_and(|there| !there.contains(arn));
    let may_be = |group: &&TargetGroup| {
        let users: Vec<_> = group.load_balancers.iter().filter(|arn| !gone(arn)).collect();
        match &*users {
            [] => group.name.starts_with(&prefix),
            // One that somebody else's balancer uses as well is in use.
            users => users.iter().all(|arn| balancers.contains_key(*arn)),
        }
    };
    listed.iter().filter(may_be).map(|group| group.arn.clone()).collect()
}

/// Waits as long as it was waited so far, which doubles the time between tries, within bounds.
pub(super) fn wait(op: &Op) -> Duration {
    op.pending_for().clamp(WAITS.0, WAITS.1)
}

/// Waits for all of them, and looks again when the first one may be over.
fn soonest(waits: Vec<Progress>) -> Progress {
    waits.into_iter().fold(Progress::Done, |all, one| match (all, one) {
        (Progress::Pending { after, why }, Progress::Pending { after: other, why: also }) => {
            Progress::Pending { after: after.min(other), why: format!("{why}; {also}").into() }
        }
        (Progress::Done, one) => one,
        (all, Progress::Done) => all,
    })
}

/// Tells whether a wait has become too long: once, since the next try comes after `next`.
pub(super) fn became_long(op: &Op, next: Duration) -> bool {
    (TOO_LONG..TOO_LONG + next).contains(&op.pending_for())
}

/// Tells once that a wait has become long.
fn tell_if_long(op: &Op, next: Duration, what: &str) {
    if became_long(op, next) {
        let note = format!("deletion is not finished after {} minutes: {what}", TOO_LONG.as_secs() / 60);
        op.event(EventKind::Warning, "LoadBalancerDeletionSlow", &note);
    }
}

#[cfg(test)]
#[path = "delete_tests.rs"]
mod tests;
