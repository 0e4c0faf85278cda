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
    instances::InstanceCache,
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
    store: Arc<InstanceCache>,
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
    /// Tells whether the instance is stopped and may run again.
    pub(super) fn stopped(&self) -> bool {
        self.fitness == InstanceFitness::Stopped
    }
}

impl LoadBalancerDeps {
    pub(super) fn new(scope: &Scope, store: Arc<InstanceCache>, sweeps: Arc<ListingCache>) -> Self {
        let vpc = VpcCache::new(scope.clone(), store.zones().clone());
        let security_groups = SecurityGroupManager::new(scope.clone(), store.clone(), sweeps);
        Self {
            vpc,
            security_groups,
            interfaces: InterfaceCache::new(scope.clone(), store.clone()),
            store,
        }
    }

    /// Returns subnets from the cache; if one is missing there, the VPC is read again.
    pub(super) async fn subnets(
        &self,
        op: &Op,
        ids: &[SubnetId],
    ) -> Result<Vec<Subnet>, CloudError> {
        let view = self.vpc.view(op, false).await?;
        let view = if ids.iter().all(|id| view.subnet(id).is_some()) {
            view
        } else {
            self.vpc.view(op, true).await?
        };
        Ok(ids
            .iter()
            .filter_map(|id| view.subnet(id))
            .cloned()
            .collect())
    }

    /// Returns what is known about instances: `None` proves that an instance does not exist.
    /// Instances whose state cannot be read are left out.
    pub(super) async fn instance_facts(
        &self,
        op: &Op,
        ids: &[InstanceId],
        max_age: Duration,
    ) -> HashMap<InstanceId, Option<InstanceFacts>> {
        let answers = self
            .store
            .get_each(op, ids.iter().map(|id| (id.clone(), max_age)))
            .await;
        let state = answers.into_iter().filter_map(|(id, answer)| {
            let facts = answer.ok()?.map(|instance| InstanceFacts {
                fitness: match instance.state {
                    Some(InstanceState::ShuttingDown | InstanceState::Terminated) => {
                        InstanceFitness::Terminated
                    }
                    Some(InstanceState::Stopping | InstanceState::Stopped) => {
                        InstanceFitness::Stopped
                    }
                    _ => InstanceFitness::Running,
                },
                groups: instance.security_groups.iter().cloned().collect(),
            });
            Some((id, facts))
        });
        state.collect()
    }
}
