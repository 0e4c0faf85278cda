//! Applies one change in every route table.

use std::time::Duration;

use ccm_core::{
    k8s::NodeView,
    provider::{Op, Route},
};
use ipnet::IpNet;
use tokio::time::Instant;

use super::{
    Ec2Routes, INSTANCE_AGE, InstancesById,
    error::RouteError,
    plan::{self, CreateAction, DeleteAction, ExistingRoute, NodeTarget, RouteHandle},
    route_tables,
};
use crate::{
    api::{
        InstanceId, RouteTableId,
        ec2::{
            CreateRoute, DeleteRoute, ModifyInstanceAttribute, ModifyNetworkInterfaceAttribute,
            ReplaceRoute,
        },
    },
    clock::ago,
    provider_id::ProviderId,
};

/// How often a table is read for one change: from the cache, then from a more recent read, then as
/// it is now.
const MAX_TABLE_READS: usize = 3;

impl Ec2Routes {
    /// Creates a route to a node.
    pub(super) async fn create(
        &self,
        op: &Op,
        node: &NodeView,
        destination: IpNet,
        instances: &Result<InstancesById, RouteError>,
    ) -> Result<(), RouteError> {
        let id = target_id(node)?;
        let cached_instances = instances.as_ref().map_err(Clone::clone)?;
        let target = node_target(node, &id, cached_instances)?;
        let Err(error) = self.set_route(op, destination, &target).await else {
            return Ok(());
        };
        if !error.requires_interface() || target.interface.is_some() {
            return Err(error);
        }
        // The instance got another interface since it was cached.
        let fresh_instances = self
            .instances_by_id(op, std::slice::from_ref(&id), Duration::ZERO)
            .await?;
        let target = node_target(node, &id, &fresh_instances)?;
        if target.interface.is_none() {
            return Err(error);
        }
        self.set_route(op, destination, &target).await
    }

    /// Routes a destination to a target, in every table.
    async fn set_route(
        &self,
        op: &Op,
        destination: IpNet,
        target: &NodeTarget,
    ) -> Result<(), RouteError> {
        self.disable_source_dest_check(op, target).await?;
        let existing_routes = self
            .tables
            .existing_routes(op, &destination, ago(route_tables::MAX_AGE_FOR_CREATE))
            .await?;
        for (table, existing_route) in existing_routes {
            self.set_route_in_table(op, destination, target, &table, existing_route)
                .await?;
        }
        Ok(())
    }

    /// Routes a destination to a target in one table. Reads the table again if its route is not
    /// what the cache showed.
    async fn set_route_in_table(
        &self,
        op: &Op,
        destination: IpNet,
        target: &NodeTarget,
        table: &RouteTableId,
        mut existing_route: ExistingRoute,
    ) -> Result<(), RouteError> {
        let mut read_since = ago(route_tables::MAX_AGE_FOR_CREATE);
        for _ in 0..MAX_TABLE_READS {
            let oldest_read_for_replace = ago(route_tables::MAX_AGE_FOR_DELETE);
            match self.plan_creation(op, &existing_route, target).await? {
                CreateAction::Done => return Ok(()),
                CreateAction::DestinationInUse(target) => {
                    return Err(RouteError::DestinationInUse {
                        destination,
                        table: table.clone(),
                        target,
                    });
                }
                CreateAction::Replace if read_since >= oldest_read_for_replace => {
                    return self
                        .replace_in_table(op, destination, target, table, &existing_route)
                        .await;
                }
                CreateAction::Replace => read_since = oldest_read_for_replace,
                CreateAction::Create => {
                    match self.create_in_table(op, destination, target, table).await? {
                        CreateOutcome::Created => return Ok(()),
                        CreateOutcome::AlreadyExists => read_since = Instant::now(),
                    }
                }
            }
            let existing_routes = self
                .tables
                .existing_routes(op, &destination, read_since)
                .await?;
            existing_route = match existing_routes.into_iter().find(|(id, _)| id == table) {
                Some((_, route)) => route,
                None => ExistingRoute::None,
            };
        }
        Err(RouteError::NotVisible { destination, table: table.clone() })
    }

    async fn plan_creation(
        &self,
        op: &Op,
        existing_route: &ExistingRoute,
        target: &NodeTarget,
    ) -> Result<CreateAction, RouteError> {
        let foreign_hops = match existing_route {
            ExistingRoute::Hop { hop, blackhole: false } if !target.has_hop(hop) => {
                self.foreign_hops(op, std::slice::from_ref(hop)).await?
            }
            _ => Vec::new(),
        };
        Ok(plan::create(existing_route, target, |hop| foreign_hops.contains(hop)))
    }

    /// Creates a route in one table.
    async fn create_in_table(
        &self,
        op: &Op,
        destination: IpNet,
        target: &NodeTarget,
        table: &RouteTableId,
    ) -> Result<CreateOutcome, RouteError> {
        let request = CreateRoute { table: table.clone(), destination, target: target.to_route() };
        let why = format!("no route leads to {target}");
        match self.scope.client.write(op, request, &why).await {
            Ok(()) => {}
            Err(error) if error.has_code("RouteAlreadyExists") => {
                return Ok(CreateOutcome::AlreadyExists);
            }
            Err(source) => return Err(RouteError::Create { destination, source }),
        }
        self.tables
            .record_change(op, table, destination, Some(target))
            .await;
        Ok(CreateOutcome::Created)
    }

    async fn replace_in_table(
        &self,
        op: &Op,
        destination: IpNet,
        target: &NodeTarget,
        table: &RouteTableId,
        existing_route: &ExistingRoute,
    ) -> Result<(), RouteError> {
        let why = match existing_route {
            ExistingRoute::Hop { hop, blackhole: true } => {
                format!("the route to {hop} leads nowhere, not to {target}")
            }
            ExistingRoute::Hop { hop, .. } => format!("the route leads to {hop}, not to {target}"),
            ExistingRoute::None | ExistingRoute::Foreign(_) => String::new(),
        };
        let request = ReplaceRoute { table: table.clone(), destination, target: target.to_route() };
        self.scope
            .client
            .write(op, request, &why)
            .await
            .map_err(|source| RouteError::Replace { destination, source })?;
        self.tables
            .record_change(op, table, destination, Some(target))
            .await;
        Ok(())
    }

    /// Disables the source/destination check of a target if it is on, and remembers that for
    /// [`INSTANCE_AGE`].
    async fn disable_source_dest_check(
        &self,
        op: &Op,
        target: &NodeTarget,
    ) -> Result<(), RouteError> {
        let id = match &target.interface {
            Some(interface) => interface.as_str(),
            None => target.instance.as_str(),
        };
        if !target.source_dest_check || self.recently_disabled_source_dest_check(id) {
            return Ok(());
        }
        let why = "it forwards packets of pods";
        let (kind, result) = match &target.interface {
            Some(interface) => {
                let request = ModifyNetworkInterfaceAttribute {
                    id: interface.clone(),
                    source_dest_check: false,
                };
                ("interface", self.scope.client.write(op, request, why).await)
            }
            None => {
                let request = ModifyInstanceAttribute {
                    id: target.instance.clone(),
                    source_dest_check: false,
                };
                ("instance", self.scope.client.write(op, request, why).await)
            }
        };
        result.map_err(|source| RouteError::SourceDestCheck {
            what: format!("{kind} {id}").into(),
            source,
        })?;
        let mut disabled = self.source_dest_check_disabled.lock();
        // Cached instances are refreshed by then.
        disabled.retain(|_, at| at.elapsed() < INSTANCE_AGE);
        disabled.insert(id.into(), Instant::now());
        Ok(())
    }

    fn recently_disabled_source_dest_check(&self, id: &str) -> bool {
        let disabled = self.source_dest_check_disabled.lock();
        disabled
            .get(id)
            .is_some_and(|at| at.elapsed() < INSTANCE_AGE)
    }

    /// Deletes a listed route from the tables that had it, where it still has the same target.
    pub(super) async fn delete(&self, op: &Op, route: &Route) -> Result<(), RouteError> {
        let destination = route.destination;
        let Ok(listed) = route.name.parse::<RouteHandle>() else {
            return Err(RouteError::UnknownRoute { destination, name: route.name.clone() });
        };
        let existing_routes = self
            .tables
            .existing_routes(op, &destination, ago(route_tables::MAX_AGE_FOR_DELETE))
            .await?;
        for (table, existing_route) in existing_routes {
            if !listed.tables.contains(&table) {
                continue;
            }
            match plan::delete(&existing_route, &listed.hop, route.blackhole) {
                DeleteAction::Done => {}
                DeleteAction::RouteInUse => {
                    return Err(RouteError::RouteInUse {
                        destination,
                        target: listed.hop.to_string().into(),
                    });
                }
                DeleteAction::Delete => {
                    self.delete_in_table(op, destination, &table, &listed)
                        .await?;
                }
            }
        }
        Ok(())
    }

    async fn delete_in_table(
        &self,
        op: &Op,
        destination: IpNet,
        table: &RouteTableId,
        listed: &RouteHandle,
    ) -> Result<(), RouteError> {
        let request = DeleteRoute { table: table.clone(), destination };
        let why = format!("no node needs this route to {}", listed.hop);
        match self.scope.client.write(op, request, &why).await {
            Ok(()) => {}
            Err(error) if error.has_code("InvalidRoute.NotFound") => {}
            Err(source) => return Err(RouteError::Delete { destination, source }),
        }
        self.tables
            .record_change(op, table, destination, None)
            .await;
        Ok(())
    }
}

/// Result of a request to create a route.
enum CreateOutcome {
    Created,
    /// EC2 answers that the destination already has a route.
    AlreadyExists,
}

/// Returns the instance to which routes of a node lead.
fn target_id(node: &NodeView) -> Result<InstanceId, RouteError> {
    let why = match ProviderId::of(node) {
        Ok(Some(ProviderId::Instance { id, .. })) => return Ok(id),
        Ok(Some(ProviderId::Fargate { .. })) => "it runs on Fargate".into(),
        Ok(None) => return Err(RouteError::NoProviderId { node: (&*node.name).into() }),
        Err(error) => error.to_string().into(),
    };
    Err(RouteError::NoInstance { node: (&*node.name).into(), why })
}

fn node_target(
    node: &NodeView,
    id: &InstanceId,
    instances: &InstancesById,
) -> Result<NodeTarget, RouteError> {
    let Some(Some(instance)) = instances.get(id) else {
        return Err(RouteError::InstanceNotFound {
            node: (&*node.name).into(),
            instance: id.as_str().into(),
        });
    };
    NodeTarget::of(instance).ok_or_else(|| RouteError::NoInstance {
        node: (&*node.name).into(),
        why: format!("instance {id} has several network interfaces and none with device index 0")
            .into(),
    })
}
