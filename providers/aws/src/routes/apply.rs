//! Applies one change of a route in every route table.

use std::time::Duration;

use ccm_core::{
    k8s::NodeView,
    provider::{Op, Route},
};
use ipnet::IpNet;
use tokio::time::Instant;

use super::{
    Ec2Routes, InstancesById, MAX_INSTANCE_AGE,
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

/// Maximum number of times that a table's route is looked up for one change: in the cache, then in
/// a more recent read, then in a new read.
const MAX_TABLE_READS: usize = 3;

impl Ec2Routes {
    /// Creates a route to a node in every table.
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
        // The instance got another interface after it was cached. Look it up again, and use its
        // primary interface as the target.
        let fresh_instances = self
            .instances_by_id(op, std::slice::from_ref(&id), Duration::ZERO)
            .await?;
        let target = node_target(node, &id, &fresh_instances)?;
        if target.interface.is_none() {
            return Err(error);
        }
        self.set_route(op, destination, &target).await
    }

    /// Creates or replaces the route to a destination in every table, so that it leads to `target`.
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

    /// Creates or replaces the route to a destination in one table. `existing_route` may come from
    /// an old read. Reads the table again before a route is replaced, and if EC2 reports a route
    /// that the cache does not contain.
    async fn set_route_in_table(
        &self,
        op: &Op,
        destination: IpNet,
        target: &NodeTarget,
        table: &RouteTableId,
        mut existing_route: ExistingRoute,
    ) -> Result<(), RouteError> {
        // `existing_route` is from a read that began at this time or later.
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
            // The route was read too early for the planned action. Look it up again.
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

    /// Determines how to create the route in one table. Looks up the instance of an existing route
    /// with another target, because a foreign route is not replaced.
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
        Ok(plan::plan_creation(existing_route, target, |hop| foreign_hops.contains(hop)))
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
        let reason = format!("there is no route to {target}");
        match self.scope.client.write(op, request, &reason).await {
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

    /// Replaces the target of an existing route in one table.
    async fn replace_in_table(
        &self,
        op: &Op,
        destination: IpNet,
        target: &NodeTarget,
        table: &RouteTableId,
        existing_route: &ExistingRoute,
    ) -> Result<(), RouteError> {
        let reason = match existing_route {
            ExistingRoute::Hop { hop, blackhole: true } => {
                format!("the route to {hop} is a black hole, and should lead to {target}")
            }
            ExistingRoute::Hop { hop, .. } => {
                format!("the route leads to {hop}, and should lead to {target}")
            }
            ExistingRoute::None | ExistingRoute::Foreign(_) => String::new(),
        };
        let request = ReplaceRoute { table: table.clone(), destination, target: target.to_route() };
        self.scope
            .client
            .write(op, request, &reason)
            .await
            .map_err(|source| RouteError::Replace { destination, source })?;
        self.tables
            .record_change(op, table, destination, Some(target))
            .await;
        Ok(())
    }

    /// Disables the source/destination check of a target if it is on. Records the change for
    /// [`MAX_INSTANCE_AGE`], because the cached instance shows the check as enabled until then.
    async fn disable_source_dest_check(
        &self,
        op: &Op,
        target: &NodeTarget,
    ) -> Result<(), RouteError> {
        let id = match &target.interface {
            Some(interface) => interface.as_str(),
            None => target.instance.as_str(),
        };
        if !target.source_dest_check || self.has_disabled_source_dest_check(id) {
            return Ok(());
        }
        let reason = "the instance forwards packets of pods";
        let (kind, result) = match &target.interface {
            Some(interface) => {
                let request = ModifyNetworkInterfaceAttribute {
                    id: interface.clone(),
                    source_dest_check: false,
                };
                ("interface", self.scope.client.write(op, request, reason).await)
            }
            None => {
                let request = ModifyInstanceAttribute {
                    id: target.instance.clone(),
                    source_dest_check: false,
                };
                ("instance", self.scope.client.write(op, request, reason).await)
            }
        };
        result.map_err(|source| RouteError::SourceDestCheck {
            object: format!("{kind} {id}").into(),
            source,
        })?;
        let mut disabled_at = self.source_dest_check_disabled_at.lock();
        disabled_at.retain(|_, at| at.elapsed() < MAX_INSTANCE_AGE);
        disabled_at.insert(id.into(), Instant::now());
        Ok(())
    }

    fn has_disabled_source_dest_check(&self, id: &str) -> bool {
        let disabled_at = self.source_dest_check_disabled_at.lock();
        disabled_at
            .get(id)
            .is_some_and(|at| at.elapsed() < MAX_INSTANCE_AGE)
    }

    /// Deletes a listed route from those of its tables in which it still has the same target.
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
            match plan::plan_deletion(&existing_route, &listed.hop, route.blackhole) {
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

    /// Deletes a route from one table. A route that does not exist counts as deleted.
    async fn delete_in_table(
        &self,
        op: &Op,
        destination: IpNet,
        table: &RouteTableId,
        listed: &RouteHandle,
    ) -> Result<(), RouteError> {
        let request = DeleteRoute { table: table.clone(), destination };
        let reason = format!("no node needs this route to {}", listed.hop);
        match self.scope.client.write(op, request, &reason).await {
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
    /// EC2 answered that the table already has a route to the destination.
    AlreadyExists,
}

/// Returns the ID of the instance that is the target of a node's routes.
fn target_id(node: &NodeView) -> Result<InstanceId, RouteError> {
    let reason = match ProviderId::of_node(node) {
        Ok(Some(ProviderId::Instance { id, .. })) => return Ok(id),
        Ok(Some(ProviderId::Fargate { .. })) => "it runs on Fargate".into(),
        Ok(None) => return Err(RouteError::NoProviderId { node: (&*node.name).into() }),
        Err(error) => error.to_string().into(),
    };
    Err(RouteError::NoInstance { node: (&*node.name).into(), reason })
}

/// Returns the target of a node's routes from its cached instance.
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
    NodeTarget::for_instance(instance).ok_or_else(|| RouteError::NoInstance {
        node: (&*node.name).into(),
        reason: format!(
            "instance {id} has several network interfaces and none with device index 0"
        )
        .into(),
    })
}
