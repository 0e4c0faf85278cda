//! Caches the cluster's route tables, so that they are read once for all changes of a pass of the
//! route controller.

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

/// Maximum age of the tables when a route is created. It is as long as a pass can take. An outdated
/// table does no harm, because EC2 rejects a route that already exists.
pub(super) const MAX_AGE_FOR_CREATE: Duration = Duration::from_secs(120);
/// Maximum age of the tables when a route is deleted or replaced. It is short, because EC2 deletes
/// and replaces a route even if somebody else changed its target meanwhile.
pub(super) const MAX_AGE_FOR_DELETE: Duration = Duration::from_secs(5);

/// Cache of the route tables, as last read and with the changes made since then.
pub(super) struct RouteTableCache {
    scope: Scope,
    snapshot: Mutex<Option<TablesSnapshot>>,
}

struct TablesSnapshot {
    tables: Vec<RouteTable>,
    /// Time at which the read began.
    read_at: Instant,
}

impl RouteTableCache {
    pub(super) fn new(scope: Scope) -> Self {
        Self { scope, snapshot: Mutex::new(None) }
    }

    /// Reads the tables from AWS.
    pub(super) async fn read(&self, op: &Op) -> Result<Vec<RouteTable>, RouteError> {
        let mut cached = op.wait_shared(self.snapshot.lock()).await;
        let snapshot = self.refresh(op, &mut cached).await?;
        Ok(snapshot.tables.clone())
    }

    /// Returns the route to a destination in each table, from a read that began at `since` or
    /// later. Concurrent callers share one read.
    pub(super) async fn existing_routes(
        &self,
        op: &Op,
        destination: &IpNet,
        since: Instant,
    ) -> Result<Vec<(RouteTableId, ExistingRoute)>, RouteError> {
        let mut cached = op.wait_shared(self.snapshot.lock()).await;
        if cached
            .as_ref()
            .is_none_or(|snapshot| snapshot.read_at < since)
        {
            self.refresh(op, &mut cached).await?;
        }
        let tables = cached.iter().flat_map(|snapshot| &snapshot.tables);
        Ok(tables
            .map(|table| (table.id.clone(), plan::existing_route(table, destination)))
            .collect())
    }

    /// Records a route that was created or replaced, or, without a target, deleted.
    pub(super) async fn record_change(
        &self,
        op: &Op,
        table: &RouteTableId,
        destination: IpNet,
        target: Option<&NodeTarget>,
    ) {
        let mut cached = op.wait_shared(self.snapshot.lock()).await;
        let tables = cached.iter_mut().flat_map(|snapshot| &mut snapshot.tables);
        for cached_table in tables.filter(|cached_table| cached_table.id == *table) {
            plan::record_change(cached_table, destination, target);
        }
    }

    /// Reads the tables again. The cached tables are dropped even if the read fails.
    async fn refresh<'a>(
        &self,
        op: &Op,
        cached: &'a mut Option<TablesSnapshot>,
    ) -> Result<&'a TablesSnapshot, RouteError> {
        let read_at = Instant::now();
        *cached = None;
        let tables = self.discover(op).await?;
        Ok(cached.insert(TablesSnapshot { tables, read_at }))
    }

    /// Returns the configured tables, or else the one table in the VPC that has the cluster's tag.
    async fn discover(&self, op: &Op) -> Result<Vec<RouteTable>, RouteError> {
        let configured_ids = &self.scope.settings.route_tables;
        if configured_ids.is_empty() {
            self.discover_by_tag(op).await
        } else {
            self.discover_by_id(op, configured_ids).await
        }
    }

    async fn discover_by_tag(&self, op: &Op) -> Result<Vec<RouteTable>, RouteError> {
        let mut tables = self.describe(op, self.tag_filters()).await?;
        tables.retain(|table| table.vpc == self.scope.vpc && self.scope.cluster.has(&table.tags));
        match tables.len() {
            0 => Err(RouteError::NoTable { cluster: op.cluster_name().into() }),
            1 => Ok(tables),
            _ => Err(RouteError::SeveralTables { cluster: op.cluster_name().into() }),
        }
    }

    async fn discover_by_id(
        &self,
        op: &Op,
        ids: &[RouteTableId],
    ) -> Result<Vec<RouteTable>, RouteError> {
        let filter = Filter::new("route-table-id", ids.iter().map(RouteTableId::as_str));
        let mut tables = self.describe(op, vec![filter]).await?;
        tables.retain(|table| ids.contains(&table.id));
        if tables.is_empty() {
            return Err(RouteError::NoTable { cluster: op.cluster_name().into() });
        }
        let mut missing: Vec<Box<str>> = Vec::new();
        for id in ids {
            if !tables.iter().any(|table| table.id == *id) {
                missing.push(id.as_str().into());
            }
        }
        if missing.is_empty() {
            Ok(tables)
        } else {
            Err(RouteError::MissingTables { cluster: op.cluster_name().into(), missing })
        }
    }

    /// Reads the tables that match all filters. Returns each once, in the order of their IDs.
    async fn describe(&self, op: &Op, filters: Vec<Filter>) -> Result<Vec<RouteTable>, RouteError> {
        let request = DescribeRouteTables { filters, ..DescribeRouteTables::default() };
        let mut tables = self
            .scope
            .client
            .read_all(op, request, |request, token| request.token = Some(token))
            .await
            .map_err(RouteError::DescribeTables)?;
        tables.sort_by(|a, b| a.id.cmp(&b.id));
        tables.dedup_by(|a, b| a.id == b.id);
        Ok(tables)
    }

    /// Returns filters for the tables of the VPC that have the cluster's tag. With a legacy tag, a
    /// table may have either tag, which no filter can express. Then only the VPC is filtered.
    fn tag_filters(&self) -> Vec<Filter> {
        let mut filters = vec![Filter::new("vpc-id", [self.scope.vpc.as_str()])];
        if let Some(tag) = self.scope.cluster.filter()
            && &*tag.name == "tag-key"
        {
            filters.push(tag);
        }
        filters
    }
}
