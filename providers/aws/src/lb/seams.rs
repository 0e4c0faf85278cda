//! What this part needs of others: the VPC, instances, and rules of security groups.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use async_trait::async_trait;
use ccm_core::provider::{CloudError, Op, PlannedChange, Progress};
use ipnet::IpNet;

use super::model::{OwnerName, Wanted};
use crate::api::{InstanceId, SecurityGroupId, SubnetId, ec2::Subnet, elb::SubnetMapping};

/// Who has to be let in where.
pub struct Exposure<'a> {
    /// What is wanted.
    pub wanted: &'a Wanted,
    /// Name of the load balancer.
    pub lb_name: &'a str,
    /// Its security groups.
    pub lb_groups: &'a [SecurityGroupId],
    /// Its subnets.
    pub subnets: &'a [Subnet],
    /// Instances that are its targets.
    pub instances: &'a [InstanceId],
}

/// What is known of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceFacts {
    /// Whether it may be a target: pending or running.
    pub runs: bool,
    /// Its security groups.
    pub groups: BTreeSet<SecurityGroupId>,
}

/// The surroundings of load balancers.
#[async_trait]
pub trait Surroundings: Send + Sync {
    /// Chooses subnets.
    async fn choose(&self, op: &Op, wanted: &Wanted) -> Result<Vec<SubnetMapping>, CloudError>;
    /// Returns subnets of the VPC.
    async fn subnets(&self, op: &Op, ids: &[SubnetId]) -> Result<Vec<Subnet>, CloudError>;
    /// Returns the networks of the VPC.
    async fn networks(&self, op: &Op) -> Result<Vec<IpNet>, CloudError>;
    /// Drops what is known of the VPC.
    fn forget(&self);
    /// Returns what is known of instances; those that are proved absent are `None`, those in doubt are left out.
    async fn instances(
        &self,
        op: &Op,
        ids: &[InstanceId],
        max_age: Duration,
    ) -> HashMap<InstanceId, Option<InstanceFacts>>;
    /// Returns the security groups that the balancer shall have; empty leaves them alone.
    async fn front(
        &self,
        op: &Op,
        wanted: &Wanted,
        existing: Option<&[SecurityGroupId]>,
    ) -> Result<Vec<SecurityGroupId>, CloudError>;
    /// Grants what is missing.
    async fn open(&self, op: &Op, e: &Exposure<'_>) -> Result<(), CloudError>;
    /// Revokes what is not wanted any more.
    async fn close(&self, op: &Op, e: &Exposure<'_>) -> Result<(), CloudError>;
    /// Says what would change.
    async fn plan(&self, op: &Op, e: &Exposure<'_>) -> Result<Vec<PlannedChange>, CloudError>;
    /// Revokes all rules of a balancer and deletes the groups owned for it.
    async fn release(
        &self,
        op: &Op,
        owner: &OwnerName,
        lb_name: &str,
        keep: &[SecurityGroupId],
    ) -> Result<Progress, CloudError>;
    /// Gives up groups that were taken off a living balancer.
    async fn detached(&self, op: &Op, owner: &OwnerName, groups: &[SecurityGroupId]) -> Result<Progress, CloudError>;
}
