//! Classic load balancers, which upstream makes for Services without type annotation.
//!
//! Each sync reads the load balancer, plans the differences and applies them. The name is
//! computed from the UID of the Service and never changes, so that an interrupted sync is continued by
//! the next one.

mod access_log;
mod apply;
pub(in crate::lb) mod inventory;
pub mod model;
mod plan;
mod plan_creation;
mod service;

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use ccm_core::{
    k8s::{LbIngress, LbStatus},
    provider::{CloudError, Digest, ErrorKind, Op, Progress},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::plan::ObservedClassic;
pub(in crate::lb) use self::service::ClassicService;
use crate::{
    api::{
        Action, AwsError, InstanceId, SecurityGroupId, Tags,
        classic::{
            ClassicAccessLog, ClassicAttributes, ClassicLoadBalancer, DeleteClassic,
            DeregisterClassic, DescribeClassic, DescribeClassicAttributes, DescribeClassicTags,
            RegisterClassic,
        },
    },
    client::rate_limit_delay,
    lb::{
        is_denied_by_policy,
        model::ServiceKey,
        names,
        observe::access_denied::AccessDeniedCache,
        ownership::{FoundBy, check_owner, check_owner_by_name, names_another_owner},
        retry_delay::MissingObjectRetries,
    },
    scope::Scope,
};

/// Maximum number of instances per request.
const MAX_INSTANCES: usize = 200;

/// Time for which a read may not show a change of ours, because AWS is eventually consistent.
const EVENTUAL_CONSISTENCY_WINDOW: Duration = Duration::from_secs(20);

/// Delay before the next try if a load balancer may exist that AWS does not show yet.
const INVISIBLE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Longest time for which the reads of an interrupted sync count.
const INTERRUPTED_READ_MAX_AGE: Duration = Duration::from_mins(5);

/// Reads and changes the classic load balancers of the cluster.
pub(in crate::lb) struct ClassicLoadBalancers {
    scope: Scope,
    /// What was last applied completely, by the UID of the Service.
    applied: Mutex<HashMap<Box<str>, AppliedClassic>>,
    /// When this process last asked for the load balancer of a Service to be created, by UID. AWS may
    /// not show it for a while, even if the answer was lost. This proves nothing about whose it is.
    created: Mutex<HashMap<Box<str>, Instant>>,
    /// Groups that this process has detached from a load balancer, or tried to, by the UID of the
    /// Service: rules for them may be left.
    detached: Mutex<HashMap<Box<str>, BTreeSet<SecurityGroupId>>>,
    /// The settings of the access log that Services have asked for since this process began, by UID.
    requested_logs: Mutex<HashMap<Box<str>, ClassicAccessLog>>,
    /// Instances that this process has registered, by the name of the load balancer, with the time.
    /// Reads may not show them for a while.
    registered: Mutex<HashMap<Box<str>, RegisteredInstances>>,
    /// The retries for an object that AWS does not find, by the UID of the Service.
    missing_object: Mutex<HashMap<Box<str>, MissingObjectRetries>>,
    /// What a sync had read when our own rate limit ended it, by the name of the load balancer. The next
    /// one goes on from there. If each began anew, many at once would use up all tokens for first reads.
    interrupted: Mutex<HashMap<Box<str>, InterruptedRead>>,
}

/// The first reads of a sync.
#[derive(Clone)]
struct InterruptedRead {
    at: Instant,
    /// `None` if there is none of the name.
    found: Option<ClassicLoadBalancer>,
    /// `None` if they were not read.
    tags: Option<Tags>,
}

/// Instances, and when they were registered.
type RegisteredInstances = (Instant, BTreeSet<InstanceId>);

/// A desired state and the load balancer that it was applied to.
#[derive(Clone, Debug)]
struct AppliedClassic {
    /// Digest of the desired state and the instances.
    digest: Digest,
    status: LbStatus,
}

/// What is known of a classic load balancer that is to be deleted.
enum DeletionState {
    /// It belongs to the Service, and has these security groups.
    Owned(Vec<SecurityGroupId>),
    /// There is one under its name that belongs to somebody else.
    Foreign,
    /// It may exist, but AWS does not show it yet.
    Invisible(Progress),
    /// It does not exist.
    Absent,
}

/// A classic load balancer with the name of a Service's.
enum FoundClassic {
    /// It belongs to the Service. Has no attributes yet.
    Owned(Box<ObservedClassic>),
    /// Its tags name somebody else, for this reason.
    Foreign(String),
    /// Its tags do not say whose it is, for this reason.
    Unclear(String),
}

impl ClassicLoadBalancers {
    pub(in crate::lb) fn new(scope: Scope) -> Self {
        Self {
            scope,
            applied: Mutex::default(),
            created: Mutex::default(),
            detached: Mutex::default(),
            requested_logs: Mutex::default(),
            registered: Mutex::default(),
            interrupted: Mutex::default(),
            missing_object: Mutex::default(),
        }
    }

    /// Returns what an interrupted sync has read.
    fn resume(&self, name: &str) -> Option<InterruptedRead> {
        let mut interrupted = self.interrupted.lock();
        interrupted.retain(|_, read| read.at.elapsed() < INTERRUPTED_READ_MAX_AGE);
        interrupted.get(name).cloned()
    }

    /// Keeps what a sync has read if our own rate limit ends it with this answer. Otherwise the sync goes
    /// on, and may change it: forgets it.
    fn keep_if_interrupted<T>(
        &self,
        answer: &Result<T, CloudError>,
        name: &str,
        found: Option<&ClassicLoadBalancer>,
        tags: Option<&Tags>,
    ) {
        let mut interrupted = self.interrupted.lock();
        let earlier = interrupted.remove(name);
        if answer.as_ref().err().and_then(rate_limit_delay).is_some() {
            let at = earlier.map_or_else(Instant::now, |read| read.at);
            let (found, tags) = (found.cloned(), tags.cloned());
            interrupted.insert(name.into(), InterruptedRead { at, found, tags });
        }
    }

    /// Finds the classic load balancer of a Service by the name that upstream gives it. Without the
    /// permission to read its tags, the name alone says whose it is, as for upstream.
    async fn find(
        &self,
        op: &Op,
        owner: &ServiceKey,
        denials: &AccessDeniedCache,
    ) -> Result<Option<FoundClassic>, CloudError> {
        let name = names::load_balancer(&owner.uid);
        let (found, tags) = match self.resume(&name) {
            Some(InterruptedRead { found, tags, .. }) => (found, tags),
            None => (self.describe(op, &name).await?, None),
        };
        match found {
            Some(found) => self.check(op, owner, found, tags, denials).await.map(Some),
            None => Ok(None),
        }
    }

    /// The same, with the listing as a second opinion before it is taken for deleted.
    async fn find_listed(
        &self,
        op: &Op,
        owner: &ServiceKey,
        denials: &AccessDeniedCache,
    ) -> Result<Option<FoundClassic>, CloudError> {
        let name = names::load_balancer(&owner.uid);
        self.interrupted.lock().remove(&name);
        let found = match self.describe(op, &name).await? {
            Some(found) => Some(found),
            None => self.listed(op, &name).await?,
        };
        match found {
            Some(found) => self.check(op, owner, found, None, denials).await.map(Some),
            None => Ok(None),
        }
    }

    /// Checks whose a load balancer with the name of a Service's is, by its tags, which are read unless
    /// they are known.
    async fn check(
        &self,
        op: &Op,
        owner: &ServiceKey,
        resource: ClassicLoadBalancer,
        known_tags: Option<Tags>,
        denials: &AccessDeniedCache,
    ) -> Result<FoundClassic, CloudError> {
        let name = &resource.name;
        let tags = match known_tags {
            Some(tags) => Some(Some(tags)),
            None => {
                let read = self.tags(op, name);
                let answer = denials
                    .read(op, owner, Action::DescribeClassicTags, read)
                    .await;
                if answer.is_err() {
                    self.keep_if_interrupted(&answer, name, Some(&resource), None);
                }
                answer?
            }
        };
        let check = match &tags {
            Some(Some(tags)) => {
                check_owner(&self.scope.cluster, owner, tags, FoundBy::GeneratedName)
            }
            Some(None) => return Err(tags_not_shown(name)),
            None => check_owner_by_name(owner, name),
        };
        let tags = tags.flatten();
        Ok(match check {
            Ok(()) => {
                let observed = ObservedClassic { resource, tags, attributes: None };
                FoundClassic::Owned(Box::new(observed))
            }
            Err(reason) => match &tags {
                Some(tags) if !names_another_owner(&self.scope.cluster, owner, tags) => {
                    FoundClassic::Unclear(reason)
                }
                _ => FoundClassic::Foreign(reason),
            },
        })
    }

    /// Returns true if AWS shows a classic load balancer with the name of a Service's; false if this
    /// may not be asked, or if the API does not have classic load balancers.
    async fn is_shown(&self, op: &Op, owner: &ServiceKey) -> Result<bool, CloudError> {
        let name = names::load_balancer(&owner.uid);
        match self.describe(op, &name).await {
            Ok(found) => Ok(found.is_some()),
            Err(error) if is_denied_by_policy(&error) || error.has_code("InvalidAction") => {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a load balancer by name; `None` if it does not exist.
    async fn describe(&self, op: &Op, name: &str) -> Result<Option<ClassicLoadBalancer>, AwsError> {
        let request = DescribeClassic { names: vec![name.into()], token: None };
        match self.scope.client.read(op, request).await {
            Ok(page) => Ok(page.items.into_iter().find(|found| *found.name == *name)),
            Err(error) if error.has_code("LoadBalancerNotFound") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the tags of a load balancer; `None` if AWS does not show them, because it was deleted or is
    /// new.
    async fn tags(&self, op: &Op, name: &str) -> Result<Option<Tags>, AwsError> {
        let request = DescribeClassicTags { names: vec![name.into()] };
        match self.scope.client.read(op, request).await {
            Ok(all) => Ok(tags_of(all, name)),
            Err(error) if error.has_code("LoadBalancerNotFound") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the attributes of a load balancer; `None` without the permission for that.
    async fn attributes(
        &self,
        op: &Op,
        owner: &ServiceKey,
        existing: &ObservedClassic,
        denials: &AccessDeniedCache,
    ) -> Result<Option<ClassicAttributes>, CloudError> {
        let ObservedClassic { resource, tags, .. } = existing;
        let request = DescribeClassicAttributes { name: resource.name.clone() };
        let read = self.scope.client.read(op, request);
        let answer = denials
            .read(op, owner, Action::DescribeClassicAttributes, read)
            .await;
        self.keep_if_interrupted(&answer, &resource.name, Some(resource), tags.as_ref());
        answer
    }

    /// Registers and deregisters instances. Registers first, so that the load balancer is never left
    /// with fewer instances than before or after.
    async fn sync_instances(
        &self,
        op: &Op,
        load_balancer: &ClassicLoadBalancer,
        desired: &BTreeSet<InstanceId>,
    ) -> Result<(), CloudError> {
        let name = &load_balancer.name;
        let observed = self.registered_instances(load_balancer);
        let InstanceChange { missing, surplus } = instance_change(&observed, desired);
        if missing.is_empty() && surplus.is_empty() {
            return Ok(());
        }
        // If a request fails, nobody knows what is registered until the next read.
        self.registered.lock().remove(name);
        self.interrupted.lock().remove(name);
        let client = &self.scope.client;
        for instances in missing.chunks(MAX_INSTANCES) {
            let request = RegisterClassic {
                name: load_balancer.name.clone(),
                instances: instances.to_vec(),
            };
            client.write(op, request, "nodes joined").await?;
        }
        for instances in surplus.chunks(MAX_INSTANCES) {
            let request = DeregisterClassic {
                name: load_balancer.name.clone(),
                instances: instances.to_vec(),
            };
            client.write(op, request, "nodes left").await?;
        }
        let mut registered = self.registered.lock();
        registered.retain(|_, (at, _)| at.elapsed() < EVENTUAL_CONSISTENCY_WINDOW);
        registered.insert(name.clone(), (Instant::now(), desired.clone()));
        Ok(())
    }

    /// Returns the registered instances: those that this process has just registered, or else those
    /// that AWS shows.
    fn registered_instances(&self, load_balancer: &ClassicLoadBalancer) -> BTreeSet<InstanceId> {
        match self.registered.lock().get(&load_balancer.name) {
            Some((at, instances)) if at.elapsed() < EVENTUAL_CONSISTENCY_WINDOW => {
                instances.clone()
            }
            _ => load_balancer.instances.iter().cloned().collect(),
        }
    }

    /// Reads the load balancer of a Service that is to be deleted.
    ///
    /// # Errors
    /// Tags that cannot be read, because a name proves too little for a deletion; tags that name
    /// nobody; and errors of AWS.
    async fn find_for_deletion(
        &self,
        op: &Op,
        owner: &ServiceKey,
    ) -> Result<DeletionState, CloudError> {
        let name = names::load_balancer(&owner.uid);
        self.interrupted.lock().remove(&name);
        let found = match self.describe(op, &name).await? {
            Some(found) => Some(found),
            None => self.listed(op, &name).await?,
        };
        let Some(found) = found else {
            return Ok(self.absent(&owner.uid, &name));
        };
        // Check whose it is.
        let tags = self.tags(op, &name).await?;
        let tags = tags.ok_or_else(|| tags_not_shown(&name))?;
        let cluster = &self.scope.cluster;
        if let Err(reason) = check_owner(cluster, owner, &tags, FoundBy::GeneratedName) {
            if names_another_owner(cluster, owner, &tags) {
                return Ok(DeletionState::Foreign);
            }
            let message = format!(
                "classic load balancer {name} has the name of the Service's, but {reason}: tag it \
                 kubernetes.io/service-name={} and kubernetes.io/cluster/{}=owned to have it deleted, \
                 or delete it",
                owner.key(),
                cluster.id()
            );
            return Err(CloudError::invalid_input(message).with_reason("LoadBalancerOwnerUnknown"));
        }
        Ok(DeletionState::Owned(found.security_groups))
    }

    /// Deletes the load balancer of a Service that was [found](Self::find_for_deletion) to be its own.
    async fn delete_load_balancer(&self, op: &Op, owner: &ServiceKey) -> Result<(), CloudError> {
        let name = names::load_balancer(&owner.uid);
        self.scope
            .client
            .write(op, DeleteClassic { name }, "the Service needs none")
            .await
            .map_err(as_conflict)?;
        self.created.lock().remove(&owner.uid);
        Ok(())
    }

    /// Returns the state of a load balancer that AWS does not show.
    fn absent(&self, uid: &str, name: &str) -> DeletionState {
        let mut created = self.created.lock();
        created.retain(|_, at| at.elapsed() < EVENTUAL_CONSISTENCY_WINDOW);
        if created.contains_key(uid) {
            let reason = format!("load balancer {name} may exist but is not visible yet");
            let after = INVISIBLE_RETRY_DELAY;
            return DeletionState::Invisible(Progress::Pending { after, reason: reason.into() });
        }
        DeletionState::Absent
    }

    /// Finds a load balancer in the listing of all. A second opinion, before a load balancer is taken
    /// for deleted.
    async fn listed(&self, op: &Op, name: &str) -> Result<Option<ClassicLoadBalancer>, AwsError> {
        let client = &self.scope.client;
        let all: Vec<ClassicLoadBalancer> = client
            .read_all(op, DescribeClassic::default(), |r, token| r.token = Some(token))
            .await?;
        Ok(all.into_iter().find(|found| *found.name == *name))
    }
}

/// Returns the tags of a load balancer in an answer; `None` if it is not in there, which says nothing
/// about its tags.
fn tags_of(answer: Vec<(Box<str>, Tags)>, name: &str) -> Option<Tags> {
    let mut answer = answer.into_iter();
    let (_, tags) = answer.find(|(tagged, _)| **tagged == *name)?;
    Some(tags)
}

fn tags_not_shown(name: &str) -> CloudError {
    CloudError::transient(format!("load balancer {name} exists, but AWS does not show its tags"))
        .with_retry_after(INVISIBLE_RETRY_DELAY)
}

/// The difference between the registered and the desired instances.
#[derive(Debug, Default, PartialEq, Eq)]
struct InstanceChange {
    missing: Vec<InstanceId>,
    surplus: Vec<InstanceId>,
}

fn instance_change(
    observed: &BTreeSet<InstanceId>,
    desired: &BTreeSet<InstanceId>,
) -> InstanceChange {
    InstanceChange {
        missing: desired.difference(observed).cloned().collect(),
        surplus: observed.difference(desired).cloned().collect(),
    }
}

/// Returns the status of a Service with a classic load balancer; `None` keeps the current one.
fn status_of(load_balancer: &ClassicLoadBalancer) -> Option<LbStatus> {
    if load_balancer.dns_name.is_empty() {
        return None;
    }
    let hostname = Some(load_balancer.dns_name.clone());
    Some(LbStatus {
        ingress: vec![LbIngress { hostname, ..LbIngress::default() }],
    })
}

/// Turns NotFound into a conflict, because a missing part does not prove that everything is
/// deleted.
fn as_conflict(error: AwsError) -> CloudError {
    let error = CloudError::from(error);
    match error.kind() {
        ErrorKind::NotFound => CloudError::new(ErrorKind::Conflict, error.to_string()),
        _ => error,
    }
}

#[cfg(test)]
mod tests;
