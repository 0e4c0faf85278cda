//! The VPC of the load balancers: subnets, route tables and zones, cached for all Services.

use std::{sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind, Op};
use ipnet::IpNet;

use crate::{
    api::{
        AwsError, Filter,
        ec2::{DescribeRouteTables, DescribeSubnets, DescribeVpcs},
        elb::SubnetMapping,
    },
    instances::zones::Zones,
    lb::{
        model::DesiredLoadBalancer,
        observe::cached::SharedRead,
        plan::subnets::{self, VpcSnapshot},
    },
    scope::Scope,
};

/// How long subnets and route tables are cached: they are changed by hand, and a rejection by AWS
/// makes them read again.
const MAX_AGE: Duration = Duration::from_secs(300);

/// Reads the VPC once for all Services, and caches it for five minutes.
pub(crate) struct VpcCache {
    scope: Scope,
    view: SharedRead<VpcSnapshot>,
    networks: SharedRead<Vec<IpNet>>,
    zones: Arc<Zones>,
}

impl VpcCache {
    /// Makes an empty cache.
    pub(crate) fn new(scope: Scope, zones: Arc<Zones>) -> Self {
        let view = SharedRead::new(MAX_AGE);
        let networks = SharedRead::new(MAX_AGE);
        Self { scope, view, networks, zones }
    }

    /// Returns the VPC; with `fresh`, as it is now.
    ///
    /// Two requests; three if a subnet is in an unknown zone.
    pub(crate) async fn view(&self, op: &Op, fresh: bool) -> Result<Arc<VpcSnapshot>, AwsError> {
        self.view.get(op, fresh, self.read(op)).await
    }

    /// Returns the networks of the VPC, of both families. Only needed for address targets.
    pub(crate) async fn networks(&self, op: &Op, fresh: bool) -> Result<Arc<Vec<IpNet>>, AwsError> {
        let read = async {
            let request = DescribeVpcs { ids: vec![self.scope.vpc.clone()], token: None };
            let vpcs = self
                .scope
                .client
                .read_all(op, request, |r, token| r.token = Some(token))
                .await?;
            Ok(vpcs
                .into_iter()
                .filter(|vpc| vpc.id == self.scope.vpc)
                .flat_map(|vpc| vpc.cidrs)
                .collect())
        };
        self.networks.get(op, fresh, read).await
    }

    /// Chooses subnets as [`subnets::choose`] does. If that fails with the cached VPC, the VPC is
    /// read again, so that a new or newly tagged subnet is found.
    pub(crate) async fn choose(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
    ) -> Result<Vec<SubnetMapping>, CloudError> {
        let Scope { cluster, settings, .. } = &self.scope;
        let state = self.view(op, false).await?;
        match subnets::choose(&state, cluster, settings, desired) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {}
            answer => return answer,
        }
        let now = self.view(op, true).await?;
        subnets::choose(&now, cluster, settings, desired)
    }

    /// Drops the cached values, because AWS said that a subnet does not exist, or leadership
    /// changed.
    pub(crate) fn forget(&self) {
        self.view.invalidate();
        self.networks.invalidate();
    }

    async fn read(&self, op: &Op) -> Result<VpcSnapshot, AwsError> {
        let client = &self.scope.client;
        let filters = vec![Filter::new("vpc-id", [&*self.scope.vpc])];
        let subnets = DescribeSubnets { filters: filters.clone(), ..Default::default() };
        let tables = DescribeRouteTables { filters, ..Default::default() };
        let (subnets, tables) = tokio::try_join!(
            client.read_all(op, subnets, |r, token| r.token = Some(token)),
            client.read_all(op, tables, |r, token| r.token = Some(token)),
        )?;
        let named = subnets
            .iter()
            .map(|subnet| Arc::from(&*subnet.zone))
            .collect();
        let zones = self.zones.with(op, client, &named).await?;
        Ok(VpcSnapshot { subnets, tables, zones })
    }
}

#[cfg(test)]
#[path = "vpc_tests.rs"]
mod tests;
