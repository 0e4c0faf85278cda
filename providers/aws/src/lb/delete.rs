//! Deletes everything of a Service: balancer, target groups, rules and security groups, in this order, each whether or not
//! the ones before it are there. What to delete is decided by ownership alone: the Service may be invalid, changed or gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ccm_core::provider::{CloudError, ErrorKind, EventKind, Op, Progress};
use tokio::time::Instant;

use super::{
    bring::Core,
    memory::Known,
    model::OwnerName,
    observe::ago,
    ownership::{belongs, group_prefix},
    sweep,
};
use crate::{
    api::{
        LoadBalancerArn, SecurityGroupId, Tags, TargetGroupArn,
        elb::{DeleteLoadBalancer, DeleteTargetGroup, LoadBalancer, ModifyLoadBalancerAttributes},
    },
    client::Meaning,
    cluster::{Cluster, SERVICE_TAG},
};

/// First and longest wait for something that is still in use.
const WAITS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// After this time somebody should look.
const TOO_LONG: Duration = Duration::from_secs(1800);
/// How old a shared look may be that tells of balancers under unexpected names.
const RECENT: Duration = Duration::from_secs(30);

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
        let result = self.take_down(op, doomed, &mut known).await;
        match &result {
            Ok(Progress::Done) => self.memory.forget(&doomed.owner.uid),
            _ => self.memory.put(&doomed.owner.uid, Known { changed: Some(Instant::now()), ..known }),
        }
        if let Ok(Progress::Pending { after, why }) = &result {
            tell_if_long(op, *after, why);
        }
        result.map_err(doubtful)
    }

    async fn take_down(&self, op: &Op, doomed: &Doomed<'_>, known: &mut Known) -> Result<Progress, CloudError> {
        let mut waits = Vec::new();
        if !known.deleted {
            let found = self.find_all(op, doomed, known).await?;
            // Once something goes, what was known of it is history. The names of balancers are those in rules.
            known.doubt();
            let names = doomed.names.iter().filter(|name| !found.taken.contains(name));
            known.names.extend(names.cloned());
            known.names.extend(found.balancers.iter().map(|balancer| balancer.name.clone()));
            for balancer in &found.balancers {
                if let Some(wait) = self.delete_balancer(op, balancer).await? {
                    // Its rules and groups serve it as long as it is there.
                    return Ok(wait);
                }
            }
            waits.extend(self.delete_groups(op, &found.groups).await?);
            known.deleted = waits.is_empty();
        }
        for name in &known.names {
            match self.surroundings.security.release(op, doomed.owner, name, doomed.keep).await? {
                Progress::Done => {}
                wait @ Progress::Pending { .. } => waits.push(wait),
            }
        }
        Ok(longest(waits))
    }

    /// Finds balancers and target groups of a Service, by what is known, by name, and by tags.
    async fn find_all(&self, op: &Op, doomed: &Doomed<'_>, known: &Known) -> Result<Found, CloudError> {
        let mut balancers: BTreeMap<LoadBalancerArn, LoadBalancer> = BTreeMap::new();
        for name in doomed.names {
            let named = self.observer.named(op, name).await?;
            balancers.extend(named.map(|balancer| (balancer.arn.clone(), balancer)));
        }
        let seen = known.observed.iter().filter_map(|observed| observed.balancer.as_ref());
        let seen = seen.map(|seen| (seen.balancer.arn.clone(), seen.balancer.clone()));
        balancers.extend(seen);
        let mut tags: BTreeMap<Box<str>, Tags> = BTreeMap::new();
        let mut there: Option<BTreeSet<LoadBalancerArn>> = None;
        if balancers.is_empty() {
            let since = known.changed.unwrap_or_else(|| ago(RECENT));
            let sweep = self.observer.sweeps.since(op, since).await?;
            let ours = |balancer: &&LoadBalancer| {
                sweep.tags.get(balancer.arn.as_str()).is_some_and(|tags| self.is_named(doomed.owner, tags))
            };
            let found = sweep.balancers.iter().filter(ours);
            balancers.extend(found.map(|balancer| (balancer.arn.clone(), balancer.clone())));
            there = Some(sweep.balancers.iter().map(|balancer| balancer.arn.clone()).collect());
        }
        // A group may be told to serve a balancer that was just deleted, by a process that died of it for instance.
        let others = |arn: &LoadBalancerArn| {
            !balancers.contains_key(arn) && there.as_ref().is_none_or(|there| there.contains(arn))
        };
        let prefix = group_prefix(doomed.owner);
        let listed = sweep::groups(&self.scope, op).await?;
        let attached = |arns: &[LoadBalancerArn]| arns.iter().any(|arn| balancers.contains_key(arn));
        let listed = listed
            .into_iter()
            .filter(|group| attached(&group.load_balancers) || group.name.starts_with(&prefix))
            // One that somebody else's balancer uses as well is in use.
            .filter(|group| !group.load_balancers.iter().any(others))
            .map(|group| group.arn);
        let made = known.observed.iter().flat_map(|observed| &observed.groups).map(|seen| seen.group.arn.clone());
        let groups: BTreeSet<TargetGroupArn> = listed.chain(made).collect();
        let arns = balancers.keys().map(LoadBalancerArn::as_str).chain(groups.iter().map(TargetGroupArn::as_str));
        tags.extend(sweep::tags(&self.scope, op, arns.map(Into::into).collect()).await?);
        let ours =
            |arn: &str| tags.get(arn).is_some_and(|tags| belongs(&self.scope.cluster, doomed.owner, tags).is_ok());
        let (balancers, others): (Vec<_>, Vec<_>) = balancers.into_values().partition(|balancer| ours(&balancer.arn));
        let named = |arn: &str| tags.get(arn).is_some_and(|tags| self.is_named(doomed.owner, tags));
        let groups = groups.into_iter().filter(|arn| named(arn)).collect();
        let elsewhere = |tags: &Tags| Cluster::any(tags) && !self.scope.cluster.has(tags);
        let others = others.into_iter().filter(|balancer| tags.get(balancer.arn.as_str()).is_some_and(elsewhere));
        let taken = others.map(|balancer| balancer.name).collect();
        Ok(Found { balancers, groups, taken })
    }

    /// Tells whether tags name this Service of this cluster.
    fn is_named(&self, owner: &OwnerName, tags: &Tags) -> bool {
        tags.get(SERVICE_TAG).is_some_and(|value| **value == *owner.key())
            && belongs(&self.scope.cluster, owner, tags).is_ok()
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

    /// Deletes target groups; one that cannot go does not keep the others.
    async fn delete_groups(&self, op: &Op, groups: &[TargetGroupArn]) -> Result<Option<Progress>, CloudError> {
        let (mut in_use, mut failed) = (Vec::new(), None);
        for arn in groups {
            match self.scope.client.write(op, DeleteTargetGroup { arn: arn.clone() }, "").await {
                Ok(()) => {}
                Err(error) if error.is("TargetGroupNotFound") => {}
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
    groups: Vec<TargetGroupArn>,
    /// Names that another cluster's balancers have, and with them the rules of these names.
    taken: Vec<Box<str>>,
}

/// Waits as long as it was waited so far, which doubles the time between tries, within bounds.
pub(super) fn wait(op: &Op) -> Duration {
    op.pending_for().clamp(WAITS.0, WAITS.1)
}

fn longest(waits: Vec<Progress>) -> Progress {
    waits.into_iter().fold(Progress::Done, |all, one| match (all, one) {
        (Progress::Pending { after, why }, Progress::Pending { after: other, why: also }) => {
            Progress::Pending { after: after.min(other), why: format!("{why}; {also}").into() }
        }
        (Progress::Done, one) => one,
        (all, Progress::Done) => all,
    })
}

/// Tells once that a wait has become long.
fn tell_if_long(op: &Op, next: Duration, what: &str) {
    if op.pending_for() >= TOO_LONG && op.pending_for() < TOO_LONG + next {
        let note = format!("deletion is not finished after {} minutes: {what}", TOO_LONG.as_secs() / 60);
        op.event(EventKind::Warning, "LoadBalancerDeletionSlow", &note);
    }
}

/// An answer that something is not there ends nothing: the framework would take it for the end of everything.
fn doubtful(error: CloudError) -> CloudError {
    match error.kind() {
        ErrorKind::NotFound => CloudError::transient(error.to_string()).with_source(error),
        _ => error,
    }
}
