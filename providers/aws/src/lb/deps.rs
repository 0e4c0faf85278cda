//! What load balancers depend on: the VPC, instances and security groups.

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
        observe::{listing::ListingCache, vpc::VpcCache},
        targets::interfaces::InterfaceCache,
    },
    scope::Scope,
};

/// Caches and managers that load balancers depend on.
pub(super) struct LoadBalancerDeps {
    pub(super) vpc: VpcCache,
    pub(super) security_groups: SecurityGroupManager,
    pub(super) interfaces: InterfaceCache,
    instances: Arc<InstanceCache>,
}

/// Whether an instance can be a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstanceFitness {
    /// AWS accepts it as a target.
    Running,
    /// It may run again: AWS keeps it where it is a target already, and rejects new registrations
    /// until it runs.
    Stopped,
    /// It never runs again.
    Terminated,
}

/// Cached facts about an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InstanceFacts {
    /// Whether it can be a target.
    pub(super) fitness: InstanceFitness,
    /// Its security groups.
    pub(super) groups: BTreeSet<SecurityGroupId>,
}

impl InstanceFacts {
    fn of(instance: &Instance) -> Self {
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

    /// Tells whether the instance is stopped and may run again.
    pub(super) fn stopped(&self) -> bool {
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

    /// Returns subnets from the cache; if one is missing there, the VPC is read again.
    pub(super) async fn subnets(
        &self,
        op: &Op,
        ids: &[SubnetId],
    ) -> Result<Vec<Subnet>, CloudError> {
        let mut vpc = self.vpc.view(op, false).await?;
        if ids.iter().any(|id| vpc.subnet(id).is_none()) {
            vpc = self.vpc.view(op, true).await?;
        }
        let found = ids.iter().filter_map(|id| vpc.subnet(id));
        Ok(found.cloned().collect())
    }

    /// Returns what is known about instances: `None` proves that an instance does not exist.
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
                facts.insert(id, instance.map(|instance| InstanceFacts::of(&instance)));
            }
        }
        facts
    }
}
