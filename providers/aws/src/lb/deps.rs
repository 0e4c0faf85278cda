//! What load balancers stand in, as this part asks for it: the VPC, instances, and security groups.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::{CloudError, Op};

use super::{interfaces::InterfaceCache, security_groups::SecurityGroupManager, sweep::ListingCache, vpc::VpcCache};
use crate::{
    api::{
        InstanceId, SecurityGroupId, SubnetId,
        ec2::{InstanceState, Subnet},
    },
    instances::InstanceCache,
    scope::Scope,
};

/// The surroundings of load balancers.
pub(super) struct LoadBalancerDeps {
    pub(super) vpc: VpcCache,
    pub(super) security_groups: SecurityGroupManager,
    pub(super) interfaces: InterfaceCache,
    store: Arc<InstanceCache>,
}

/// What an instance is good for as a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstanceFitness {
    /// AWS takes it as a target.
    Running,
    /// It may run again: AWS keeps it as a target where it is one, and takes it nowhere else until then.
    Stopped,
    /// It never runs again.
    Terminated,
}

/// What is known of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InstanceFacts {
    /// What it is good for.
    pub(super) fitness: InstanceFitness,
    /// Its security groups.
    pub(super) groups: BTreeSet<SecurityGroupId>,
}

impl InstanceFacts {
    /// Tells whether the instance does not run now and may later.
    pub(super) fn stopped(&self) -> bool {
        self.fitness == InstanceFitness::Stopped
    }
}

impl LoadBalancerDeps {
    pub(super) fn new(scope: &Scope, store: Arc<InstanceCache>, sweeps: Arc<ListingCache>) -> Self {
        let vpc = VpcCache::new(scope.clone(), store.zones().clone());
        let security_groups = SecurityGroupManager::new(scope.clone(), store.clone(), sweeps);
        Self { vpc, security_groups, interfaces: InterfaceCache::new(scope.clone(), store.clone()), store }
    }

    /// Returns what is known of subnets; one that is not known of a moment ago is asked for.
    pub(super) async fn subnets(&self, op: &Op, ids: &[SubnetId]) -> Result<Vec<Subnet>, CloudError> {
        let view = self.vpc.view(op, false).await?;
        let view = match ids.iter().all(|id| view.subnet(id).is_some()) {
            true => view,
            false => self.vpc.view(op, true).await?,
        };
        Ok(ids.iter().filter_map(|id| view.subnet(id)).cloned().collect())
    }

    /// Returns what is known of instances: `None` is proof that there is none. Those of which AWS tells nothing are left
    /// out.
    pub(super) async fn instance_facts(
        &self,
        op: &Op,
        ids: &[InstanceId],
        max_age: Duration,
    ) -> HashMap<InstanceId, Option<InstanceFacts>> {
        let answers = self.store.get_each(op, ids.iter().map(|id| (id.clone(), max_age))).await;
        let known = answers.into_iter().filter_map(|(id, answer)| {
            let facts = answer.ok()?.map(|instance| InstanceFacts {
                fitness: match instance.state {
                    Some(InstanceState::ShuttingDown | InstanceState::Terminated) => InstanceFitness::Terminated,
                    Some(InstanceState::Stopping | InstanceState::Stopped) => InstanceFitness::Stopped,
                    _ => InstanceFitness::Running,
                },
                groups: instance.security_groups.iter().cloned().collect(),
            });
            Some((id, facts))
        });
        known.collect()
    }
}
