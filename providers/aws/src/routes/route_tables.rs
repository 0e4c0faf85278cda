//! The cluster's route tables, read once for all changes of a pass of the route controller.

use std::time::Duration;

use ccm_core::provider::Op;
use ipnet::IpNet;
use tokio::{sync::Mutex, time::Instant};

use super::{
    error::RouteError,
    plan::{self, ExistingRoute, NodeTarget},
};
use crate::{
    api::{
        Filter, RouteTableId,
        ec2::{DescribeRouteTables, RouteTable},
    },
    scope::Scope,
};

/// Greatest age of the tables when a route is created: as long as a pass can take. EC2 rejects a
/// route that already exists, so an old table does no harm.
pub(super) const MAX_AGE_FOR_CREATE: Duration = Duration::from_secs(120);
/// Greatest age of the tables when a route is deleted or replaced: EC2 does that whatever the route
/// is.
pub(super) const MAX_AGE_FOR_DELETE: Duration = Duration::from_secs(5);

/// Cache of the route tables: the last read, plus our own changes since.
pub(super) struct RouteTableCache {
    scope: Scope,
    last: Mutex<Option<TablesSnapshot>>,
}

struct TablesSnapshot {
    tables: Vec<RouteTable>,
    /// When the read began.
    since: Instant,
}

impl RouteTableCache {
    pub(super) fn new(scope: Scope) -> Self {
        Self { scope, last: Mutex::new(None) }
    }

    /// Reads the tables.
    pub(super) async fn read(&self, op: &Op) -> Result<Vec<RouteTable>, RouteError> {
        let mut last = op.wait_shared(self.last.lock()).await;
        self.refresh(op, &mut last).await?;
        Ok(last
            .as_ref()
            .map(|snapshot| snapshot.tables.clone())
            .unwrap_or_default())
    }

    /// Returns what each table has for a destination, from a read that began at `since` or later.
    /// Concurrent callers share one read.
    pub(super) async fn existing_routes(
        &self,
        op: &Op,
        destination: &IpNet,
        since: Instant,
    ) -> Result<Vec<(RouteTableId, ExistingRoute)>, RouteError> {
        let mut last = op.wait_shared(self.last.lock()).await;
        if last.as_ref().is_none_or(|snapshot| snapshot.since < since) {
            self.refresh(op, &mut last).await?;
        }
        let tables = last.iter().flat_map(|snapshot| &snapshot.tables);
        Ok(tables
            .map(|table| (table.id.clone(), plan::existing_route(table, destination)))
            .collect())
    }

    /// Records a change that was made.
    pub(super) async fn record_change(
        &self,
        op: &Op,
        table: &RouteTableId,
        destination: IpNet,
        target: Option<&NodeTarget>,
    ) {
        let mut last = op.wait_shared(self.last.lock()).await;
        let tables = last.iter_mut().flat_map(|snapshot| &mut snapshot.tables);
        for table in tables.filter(|known| known.id == *table) {
            plan::apply_change(table, destination, target);
        }
    }

    async fn refresh(&self, op: &Op, last: &mut Option<TablesSnapshot>) -> Result<(), RouteError> {
        let since = Instant::now();
        // The cached tables are dropped even if the read fails.
        *last = None;
        let tables = self.discover(op).await?;
        *last = Some(TablesSnapshot { tables, since });
        Ok(())
    }

    async fn discover(&self, op: &Op) -> Result<Vec<RouteTable>, RouteError> {
        let cluster = || Box::from(op.cluster_name());
        let named = &self.scope.settings.route_tables;
        let filters = if named.is_empty() {
            self.filters()
        } else {
            vec![Filter::new("route-table-id", named.iter().map(RouteTableId::as_str))]
        };
        let request = DescribeRouteTables { filters, ..DescribeRouteTables::default() };
        let turn = |request: &mut DescribeRouteTables, token| request.token = Some(token);
        let mut tables = self
            .scope
            .client
            .read_all(op, request, turn)
            .await
            .map_err(RouteError::Tables)?;
        tables.sort_by(|a, b| a.id.cmp(&b.id));
        tables.dedup_by(|a, b| a.id == b.id);
        if named.is_empty() {
            tables
                .retain(|table| table.vpc == self.scope.vpc && self.scope.cluster.has(&table.tags));
        } else {
            tables.retain(|table| named.contains(&table.id));
        }
        let is_there = |id: &RouteTableId| tables.iter().any(|table| table.id == *id);
        let missing: Vec<_> = named
            .iter()
            .filter(|id| !is_there(id))
            .map(|id| Box::from(id.as_str()))
            .collect();
        match (tables.len(), named.len()) {
            (0, _) => Err(RouteError::NoTable { cluster: cluster() }),
            (2.., 0) => Err(RouteError::SeveralTables { cluster: cluster() }),
            _ if !missing.is_empty() => {
                Err(RouteError::MissingTables { cluster: cluster(), missing })
            }
            _ => Ok(tables),
        }
    }

    /// Returns filters for the tables of the VPC that have the cluster's tag. A table of a cluster
    /// with the legacy tag may have either tag, which no filter can express; then only the VPC is
    /// filtered.
    fn filters(&self) -> Vec<Filter> {
        let vpc = Filter::new("vpc-id", [self.scope.vpc.as_str()]);
        let tag = self
            .scope
            .cluster
            .filter()
            .filter(|filter| &*filter.name == "tag-key");
        std::iter::once(vpc).chain(tag).collect()
    }
}
