//! The caches and managers that load balancers depend on: VPC, instances, security groups.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::{CloudError, Op};

use super::security_groups::SecurityGroupManager;
use crate::{
    api::{
        InstanceId, SecurityGroupId, SubnetId,
        ec2::{InstanceState, Subnet},
    },
    instances::{Instance, InstanceCache},
    lb::{
        observe::{
            listing::ListingCache,
            vpc::{self, VpcCache},
        },
        targets::interfaces::InterfaceCache,
    },
    scope::Scope,
};

/// Caches and managers shared by all load balancers.
pub(super) struct LoadBalancerDeps {
    pub(super) vpc: VpcCache,
    pub(super) security_groups: SecurityGroupManager,
    pub(super) interfaces: InterfaceCache,
    instances: Arc<InstanceCache>,
}

/// The ability of an instance to be a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstanceFitness {
    /// AWS accepts the instance as a target.
    Running,
    /// The instance may run again. AWS keeps existing registrations, and rejects new ones until it
    /// runs.
    Stopped,
    /// The instance never runs again.
    Terminated,
}

/// Cached facts about an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InstanceFacts {
    pub(super) fitness: InstanceFitness,
    /// Its security groups.
    pub(super) groups: BTreeSet<SecurityGroupId>,
}

impl InstanceFacts {
    fn new(instance: &Instance) -> Self {
        let fitness = match instance.state {
            Some(InstanceState::ShuttingDown | InstanceState::Terminated) => {
                InstanceFitness::Terminated
            }
            Some(InstanceState::Stopping | InstanceState::Stopped) => InstanceFitness::Stopped,
            _ => InstanceFitness::Running,
        };
        let groups = instance.security_groups.iter().cloned().collect();
        Self { fitness, groups }
    }

    /// Returns true if the instance is stopped and may run again.
    pub(super) fn is_stopped(&self) -> bool {
        self.fitness == InstanceFitness::Stopped
    }
}

impl LoadBalancerDeps {
    pub(super) fn new(
        scope: &Scope,
        instances: Arc<InstanceCache>,
        listings: Arc<ListingCache>,
    ) -> Self {
        let vpc = VpcCache::new(scope.clone(), instances.zones().clone());
        let security_groups = SecurityGroupManager::new(scope.clone(), instances.clone(), listings);
        Self {
            vpc,
            security_groups,
            interfaces: InterfaceCache::new(scope.clone(), instances.clone()),
            instances,
        }
    }

    /// Returns subnets from the cache. If any is missing there, reads the VPC again.
    pub(super) async fn subnets(
        &self,
        op: &Op,
        ids: &[SubnetId],
    ) -> Result<Vec<Subnet>, CloudError> {
        let mut vpc = self.vpc.view(op, vpc::MAX_AGE).await?;
        if ids.iter().any(|id| vpc.subnet(id).is_none()) {
            vpc = self.vpc.view(op, Duration::ZERO).await?;
        }
        let found = ids.iter().filter_map(|id| vpc.subnet(id));
        Ok(found.cloned().collect())
    }

    /// Returns the facts about instances. The value is `None` if an instance is known not to exist.
    /// Instances whose state cannot be read are left out.
    pub(super) async fn instance_facts(
        &self,
        op: &Op,
        ids: &[InstanceId],
        max_age: Duration,
    ) -> HashMap<InstanceId, Option<InstanceFacts>> {
        let instances = self
            .instances
            .get_each(op, ids.iter().map(|id| (id.clone(), max_age)))
            .await;
        let mut facts = HashMap::new();
        for (id, instance) in instances {
            if let Ok(instance) = instance {
                facts.insert(id, instance.map(|instance| InstanceFacts::new(&instance)));
            }
        }
        facts
    }
}
