//! Classic load balancers, which upstream makes for Services without type annotation.
//!
//! Each sync reads the load balancer, [plans](plan) the differences and applies them. The name is
//! computed from the UID of the Service and never changes, so that an interrupted sync is continued by
//! the next one.

mod apply;
pub mod model;
mod plan;
mod service;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use ccm_core::{
    k8s::{LbIngress, LbStatus},
    provider::{CloudError, Digest, ErrorKind, Op},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::plan::ObservedClassic;
pub(in crate::lb) use self::service::ClassicService;
use crate::{
    api::{
        Action, AwsError, InstanceId, Tags,
        classic::{
            ClassicAttributes, ClassicLoadBalancer, DeleteClassic, DeregisterClassic,
            DescribeClassic, DescribeClassicAttributes, DescribeClassicTags, RegisterClassic,
        },
    },
    lb::{
        model::ServiceKey,
        names,
        observe::access_denied::AccessDeniedCache,
        ownership::{FoundBy, check_owner, check_owner_by_name},
    },
    scope::Scope,
};

/// Maximum number of instances per request.
const MAX_INSTANCES: usize = 200;

/// Time for which a read may not show a change of ours, because AWS is eventually consistent.
const EVENTUAL_CONSISTENCY_WINDOW: Duration = Duration::from_secs(20);

/// Reads and changes the classic load balancers of the cluster.
pub(in crate::lb) struct ClassicLoadBalancers {
    scope: Scope,
    /// What was last applied completely, by the UID of the Service.
    applied: Mutex<HashMap<Box<str>, AppliedClassic>>,
    /// UIDs of Services whose load balancer this process created. AWS may not show it for a while.
    created: Mutex<HashSet<Box<str>>>,
    /// Instances that this process has registered, by the name of the load balancer, with the time.
    /// Reads may not show them for a while.
    registered: Mutex<HashMap<Box<str>, (Instant, BTreeSet<InstanceId>)>>,
}

/// A desired state and the load balancer that it was applied to.
#[derive(Clone, Debug)]
struct AppliedClassic {
    /// Digest of the desired state and the instances.
    digest: Digest,
    status: LbStatus,
}

/// A classic load balancer with the name of a Service's.
enum FoundClassic {
    /// It belongs to the Service. Has no attributes yet.
    Owned(Box<ObservedClassic>),
    /// It does not, for this reason.
    Foreign(String),
}

impl ClassicLoadBalancers {
    pub(in crate::lb) fn new(scope: Scope) -> Self {
        Self {
            scope,
            applied: Mutex::default(),
            created: Mutex::default(),
            registered: Mutex::default(),
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
        let Some(resource) = self.describe(op, &name).await? else {
            return Ok(None);
        };
        let read = self.tags(op, &name);
        let tags = denials
            .read(op, owner, Action::DescribeClassicTags, read)
            .await?;
        let check = match &tags {
            Some(Some(tags)) => {
                check_owner(&self.scope.cluster, owner, tags, FoundBy::GeneratedName)
            }
            // It was deleted between the two requests.
            Some(None) => return Ok(None),
            None => check_owner_by_name(owner, &name),
        };
        let tags = tags.flatten();
        Ok(Some(match check {
            Ok(()) => {
                let observed = ObservedClassic { resource, tags, attributes: None };
                FoundClassic::Owned(Box::new(observed))
            }
            Err(reason) => FoundClassic::Foreign(reason),
        }))
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

    /// Reads the tags of a load balancer; `None` if it does not exist.
    async fn tags(&self, op: &Op, name: &str) -> Result<Option<Tags>, AwsError> {
        let request = DescribeClassicTags { names: vec![name.into()] };
        match self.scope.client.read(op, request).await {
            Ok(all) => Ok(Some(
                all.into_iter()
                    .find(|(tagged, _)| **tagged == *name)
                    .map(|(_, tags)| tags)
                    .unwrap_or_default(),
            )),
            Err(error) if error.has_code("LoadBalancerNotFound") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the attributes of a load balancer; `None` without the permission for that.
    async fn attributes(
        &self,
        op: &Op,
        owner: &ServiceKey,
        denials: &AccessDeniedCache,
    ) -> Result<Option<ClassicAttributes>, CloudError> {
        let name = names::load_balancer(&owner.uid);
        let read = self
            .scope
            .client
            .read(op, DescribeClassicAttributes { name });
        denials
            .read(op, owner, Action::DescribeClassicAttributes, read)
            .await
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

    /// Deletes the load balancer of a Service. Returns false if there is one under its name that
    /// belongs to somebody else. Tags that cannot be read are an error, because a name proves too
    /// little for a deletion.
    async fn delete_load_balancer(&self, op: &Op, owner: &ServiceKey) -> Result<bool, CloudError> {
        let name = names::load_balancer(&owner.uid);
        let is_created_here = self.created.lock().contains(&owner.uid);
        let exists = self.describe(op, &name).await?.is_some() || self.is_listed(op, &name).await?;
        // What this process created may not be visible yet.
        if !is_created_here {
            if !exists {
                return Ok(true);
            }
            let tags = self.tags(op, &name).await?.ok_or_else(|| {
                CloudError::transient(format!("load balancer {name} exists, but not its tags"))
            })?;
            if check_owner(&self.scope.cluster, owner, &tags, FoundBy::GeneratedName).is_err() {
                return Ok(false);
            }
        }
        self.scope
            .client
            .write(op, DeleteClassic { name }, "the Service needs none")
            .await
            .map_err(as_conflict)?;
        Ok(true)
    }

    /// Returns true if the listing of all load balancers shows a name. A second opinion, before a
    /// load balancer is taken for deleted.
    async fn is_listed(&self, op: &Op, name: &str) -> Result<bool, AwsError> {
        let client = &self.scope.client;
        let all: Vec<ClassicLoadBalancer> = client
            .read_all(op, DescribeClassic::default(), |r, token| r.token = Some(token))
            .await?;
        Ok(all.iter().any(|found| *found.name == *name))
    }
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
