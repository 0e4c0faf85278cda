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
        let found = target(node, &id, instances.as_ref().map_err(Clone::clone)?)?;
        match self.set_route(op, destination, &found).await {
            Err(error) if error.requires_interface() && found.interface.is_none() => {
                // The instance got another interface since it was cached.
                let fresh = self
                    .instances_by_id(op, std::slice::from_ref(&id), Duration::ZERO)
                    .await?;
                let found = target(node, &id, &fresh)?;
                if found.interface.is_none() {
                    Err(error)
                } else {
                    self.set_route(op, destination, &found).await
                }
            }
            result => result,
        }
    }

    /// Routes a destination to a target, in every table.
    async fn set_route(
        &self,
        op: &Op,
        destination: IpNet,
        target: &NodeTarget,
    ) -> Result<(), RouteError> {
        self.disable_source_dest_check(op, target).await?;
        for (table, occupant) in self
            .tables
            .existing_routes(op, &destination, ago(route_tables::MAX_AGE_FOR_CREATE))
            .await?
        {
            self.set_route_in_table(op, destination, target, &table, occupant)
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
        mut occupant: ExistingRoute,
    ) -> Result<(), RouteError> {
        let mut seen = ago(route_tables::MAX_AGE_FOR_CREATE);
        for _ in 0..MAX_TABLE_READS {
            let enough = ago(route_tables::MAX_AGE_FOR_DELETE);
            match self.plan_creation(op, &occupant, target).await? {
                CreateAction::Done => return Ok(()),
                CreateAction::DestinationInUse(target) => {
                    return Err(RouteError::DestinationInUse {
                        destination,
                        table: table.clone(),
                        target,
                    });
                }
                CreateAction::Replace if seen >= enough => {
                    return self
                        .replace_in_table(op, destination, target, table, &occupant)
                        .await;
                }
                CreateAction::Replace => seen = enough,
                CreateAction::Create => {
                    if self.create_in_table(op, destination, target, table).await? {
                        return Ok(());
                    }
                    seen = Instant::now();
                }
            }
            let tables = self.tables.existing_routes(op, &destination, seen).await?;
            let at_table = tables.into_iter().find(|(id, _)| id == table);
            occupant = at_table.map_or(ExistingRoute::None, |(_, occupant)| occupant);
        }
        Err(RouteError::NotVisible { destination, table: table.clone() })
    }

    async fn plan_creation(
        &self,
        op: &Op,
        occupant: &ExistingRoute,
        target: &NodeTarget,
    ) -> Result<CreateAction, RouteError> {
        let foreign = match occupant {
            ExistingRoute::Hop { hop, blackhole: false } if !target.has_hop(hop) => {
                self.foreign_hops(op, std::slice::from_ref(hop)).await?
            }
            _ => Vec::new(),
        };
        Ok(plan::create(occupant, target, |hop| foreign.contains(hop)))
    }

    /// Creates a route in one table. Returns `false` if EC2 answers that the destination already
    /// has a route.
    async fn create_in_table(
        &self,
        op: &Op,
        destination: IpNet,
        target: &NodeTarget,
        table: &RouteTableId,
    ) -> Result<bool, RouteError> {
        let request = CreateRoute { table: table.clone(), destination, target: target.to_route() };
        match self
            .scope
            .client
            .write(op, request, &format!("no route leads to {target}"))
            .await
        {
            Ok(()) => {}
            Err(error) if error.has_code("RouteAlreadyExists") => return Ok(false),
            Err(source) => return Err(RouteError::Create { destination, source }),
        }
        self.tables
            .record_change(op, table, destination, Some(target))
            .await;
        Ok(true)
    }

    async fn replace_in_table(
        &self,
        op: &Op,
        destination: IpNet,
        target: &NodeTarget,
        table: &RouteTableId,
        occupant: &ExistingRoute,
    ) -> Result<(), RouteError> {
        let why = match occupant {
            ExistingRoute::Hop { hop, blackhole: true } => {
                format!("the route to {hop} leads nowhere, not to {target}")
            }
            ExistingRoute::Hop { hop, .. } => format!("the route leads to {hop}, not to {target}"),
            ExistingRoute::None | ExistingRoute::Foreign(_) => String::new(),
        };
        let request = ReplaceRoute { table: table.clone(), destination, target: target.to_route() };
        let result = self.scope.client.write(op, request, &why).await;
        result.map_err(|source| RouteError::Replace { destination, source })?;
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
        let what = match &target.interface {
            Some(interface) => interface.as_str(),
            None => target.instance.as_str(),
        };
        if !target.source_dest_check
            || self
                .source_dest_check_disabled
                .lock()
                .get(what)
                .is_some_and(|at| at.elapsed() < INSTANCE_AGE)
        {
            return Ok(());
        }
        let why = "packets of pods pass through";
        let result = match &target.interface {
            Some(interface) => {
                let request = ModifyNetworkInterfaceAttribute {
                    id: interface.clone(),
                    source_dest_check: false,
                };
                self.scope.client.write(op, request, why).await
            }
            None => {
                let request = ModifyInstanceAttribute {
                    id: target.instance.clone(),
                    source_dest_check: false,
                };
                self.scope.client.write(op, request, why).await
            }
        };
        let kind = if target.interface.is_some() {
            "interface"
        } else {
            "instance"
        };
        result.map_err(|source| RouteError::SourceDestCheck {
            what: format!("{kind} {what}").into(),
            source,
        })?;
        let mut unchecked = self.source_dest_check_disabled.lock();
        // Cached instances are refreshed by then.
        unchecked.retain(|_, at| at.elapsed() < INSTANCE_AGE);
        unchecked.insert(what.into(), Instant::now());
        Ok(())
    }

    /// Deletes a listed route from the tables that had it, where it still has the same target.
    pub(super) async fn delete(&self, op: &Op, route: &Route) -> Result<(), RouteError> {
        let destination = route.destination;
        let unknown = |()| RouteError::UnknownRoute { destination, name: route.name.clone() };
        let listed: RouteHandle = route.name.parse().map_err(unknown)?;
        for (table, occupant) in self
            .tables
            .existing_routes(op, &destination, ago(route_tables::MAX_AGE_FOR_DELETE))
            .await?
        {
            if !listed.tables.contains(&table) {
                continue;
            }
            match plan::delete(&occupant, &listed.hop, route.blackhole) {
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
        match self
            .scope
            .client
            .write(op, request, &format!("no node wants it to lead to {}", listed.hop))
            .await
        {
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

/// Returns the instance to which routes of a node lead.
fn target_id(node: &NodeView) -> Result<InstanceId, RouteError> {
    let name = || Box::from(&*node.name);
    match ProviderId::of(node) {
        Ok(Some(ProviderId::Instance { id, .. })) => Ok(id),
        Ok(None) => Err(RouteError::NoProviderId { node: name() }),
        Ok(Some(ProviderId::Fargate { .. })) => {
            Err(RouteError::NoInstance { node: name(), why: "it runs on Fargate".into() })
        }
        Err(error) => Err(RouteError::NoInstance { node: name(), why: error.to_string().into() }),
    }
}

fn target(
    node: &NodeView,
    id: &InstanceId,
    known: &InstancesById,
) -> Result<NodeTarget, RouteError> {
    let name = || Box::from(&*node.name);
    let Some(instance) = known.get(id).and_then(Option::as_ref) else {
        return Err(RouteError::InstanceNotFound { node: name(), instance: id.as_str().into() });
    };
    NodeTarget::of(instance).ok_or_else(|| RouteError::NoInstance {
        node: name(),
        why: format!("instance {id} has several network interfaces and none with device index 0")
            .into(),
    })
}
