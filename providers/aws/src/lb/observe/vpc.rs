//! The VPC of the load balancers: subnets, route tables and zones, cached for all Services.

use std::{sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind, Op, SharedRead};
use ipnet::IpNet;

use crate::{
    api::{
        AwsError, Filter, SubnetId,
        ec2::{DescribeRouteTables, DescribeSubnets, DescribeVpcs, RouteTable, Subnet},
    },
    instances::zones::{Zones, ZonesByName},
    scope::Scope,
};

/// Maximum age of cached subnets and route tables. They are changed by hand, and read again when
/// AWS rejects one.
pub(in crate::lb) const MAX_AGE: Duration = Duration::from_secs(300);

/// The subnets, route tables and zones of the VPC at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VpcSnapshot {
    /// Subnets of the VPC.
    pub subnets: Vec<Subnet>,
    /// Route tables of the VPC.
    pub tables: Vec<RouteTable>,
    /// Zones of the region, by name.
    pub zones: Arc<ZonesByName>,
}

impl VpcSnapshot {
    /// Returns the subnet with the given ID.
    pub fn subnet(&self, id: &SubnetId) -> Option<&Subnet> {
        self.subnets.iter().find(|subnet| subnet.id == *id)
    }
}

/// Reads the VPC once for all Services, and caches it for five minutes.
pub(crate) struct VpcCache {
    scope: Scope,
    view: SharedRead<VpcSnapshot>,
    networks: SharedRead<Vec<IpNet>>,
    zones: Arc<Zones>,
}

impl VpcCache {
    /// Creates an empty cache.
    pub(crate) fn new(scope: Scope, zones: Arc<Zones>) -> Self {
        Self {
            scope,
            view: SharedRead::default(),
            networks: SharedRead::default(),
            zones,
        }
    }

    /// Returns the VPC, from a read that began less than `max_age` ago or begins now. A read takes
    /// two requests, or three if a subnet is in an unknown zone.
    pub(crate) async fn view(
        &self,
        op: &Op,
        max_age: Duration,
    ) -> Result<Arc<VpcSnapshot>, AwsError> {
        self.view.get(op, max_age, self.read(op)).await
    }

    /// Returns the networks of the VPC, of both families. Only needed for address targets.
    pub(crate) async fn networks(&self, op: &Op) -> Result<Arc<Vec<IpNet>>, AwsError> {
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
        self.networks.get(op, MAX_AGE, read).await
    }

    /// Calls `choose` with the cached VPC. If that fails with `InvalidInput`, reads the VPC again
    /// and calls `choose` once more, to find a subnet that is new or was tagged since.
    pub(crate) async fn choose<T>(
        &self,
        op: &Op,
        choose: impl Fn(&VpcSnapshot) -> Result<T, CloudError>,
    ) -> Result<T, CloudError> {
        let cached = self.view(op, MAX_AGE).await?;
        match choose(&cached) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {}
            result => return result,
        }
        let current = self.view(op, Duration::ZERO).await?;
        choose(&current)
    }

    /// Drops the cached values, because AWS does not know a subnet, or because leadership changed.
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
        let zone_names = subnets
            .iter()
            .map(|subnet| Arc::from(&*subnet.zone))
            .collect();
        let zones = self.zones.get_covering(op, client, &zone_names).await?;
        Ok(VpcSnapshot { subnets, tables, zones })
    }
}

#[cfg(test)]
#[path = "vpc_tests.rs"]
mod tests;
