//! Carries out one change in every table.

use std::time::Duration;

use ccm_core::{
    k8s::NodeView,
    provider::{Op, Route},
};
use ipnet::IpNet;
use tokio::time::Instant;

use super::{
    Ec2Routes, INSTANCE_AGE, Known,
    error::RouteError,
    plan::{self, Creation, Deletion, Handle, Occupant, Target},
    tables,
};
use crate::{
    api::{
        InstanceId, RouteTableId,
        ec2::{CreateRoute, DeleteRoute, ModifyInstanceAttribute, ModifyNetworkInterfaceAttribute, ReplaceRoute},
    },
    clock::ago,
    provider_id::ProviderId,
};

/// How often a table is looked at for one change: as known, then as it was shortly before, then as it is.
const LOOKS: usize = 3;

impl Ec2Routes {
    /// Creates a route to a node.
    pub(super) async fn create(
        &self,
        op: &Op,
        node: &NodeView,
        destination: IpNet,
        instances: &Result<Known, RouteError>,
    ) -> Result<(), RouteError> {
        let id = target_id(node)?;
        let found = target(node, &id, instances.as_ref().map_err(Clone::clone)?)?;
        match self.lead(op, destination, &found).await {
            Err(error) if error.wants_interface() && found.interface.is_none() => {
                // It got another interface since it was looked at.
                let fresh = self.look_up(op, std::slice::from_ref(&id), Duration::ZERO).await?;
                let found = target(node, &id, &fresh)?;
                if found.interface.is_none() { Err(error) } else { self.lead(op, destination, &found).await }
            }
            result => result,
        }
    }

    /// Leads a destination to a target, in every table.
    async fn lead(&self, op: &Op, destination: IpNet, target: &Target) -> Result<(), RouteError> {
        self.switch_check_off(op, target).await?;
        for (table, occupant) in self.tables.at(op, &destination, ago(tables::FOR_NEW)).await? {
            self.lead_in(op, destination, target, &table, occupant).await?;
        }
        Ok(())
    }

    /// Leads a destination to a target in one table, which is looked at again where its route is not what it seemed.
    async fn lead_in(
        &self,
        op: &Op,
        destination: IpNet,
        target: &Target,
        table: &RouteTableId,
        mut occupant: Occupant,
    ) -> Result<(), RouteError> {
        let mut seen = ago(tables::FOR_NEW);
        for _ in 0..LOOKS {
            let enough = ago(tables::FOR_OLD);
            match self.plan_creation(op, &occupant, target).await? {
                Creation::Done => return Ok(()),
                Creation::Taken(target) => {
                    return Err(RouteError::Taken { destination, table: table.clone(), target });
                }
                Creation::Replace if seen >= enough => {
                    return self.replace_in(op, destination, target, table, &occupant).await;
                }
                Creation::Replace => seen = enough,
                Creation::Create => {
                    if self.create_in(op, destination, target, table).await? {
                        return Ok(());
                    }
                    seen = Instant::now();
                }
            }
            let tables = self.tables.at(op, &destination, seen).await?;
            let at_table = tables.into_iter().find(|(id, _)| id == table);
            occupant = at_table.map_or(Occupant::Nobody, |(_, occupant)| occupant);
        }
        Err(RouteError::Unseen { destination, table: table.clone() })
    }

    async fn plan_creation(&self, op: &Op, occupant: &Occupant, target: &Target) -> Result<Creation, RouteError> {
        let foreign = match occupant {
            Occupant::Hop { hop, blackhole: false } if !target.is_behind(hop) => {
                self.foreign(op, std::slice::from_ref(hop)).await?
            }
            _ => Vec::new(),
        };
        Ok(plan::create(occupant, target, |hop| foreign.contains(hop)))
    }

    /// Creates a route in one table. Returns `false` when EC2 says that there is one.
    async fn create_in(
        &self,
        op: &Op,
        destination: IpNet,
        target: &Target,
        table: &RouteTableId,
    ) -> Result<bool, RouteError> {
        let request = CreateRoute { table: table.clone(), destination, target: target.to_route() };
        match self.scope.client.write(op, request, &format!("no route leads to {target}")).await {
            Ok(()) => {}
            Err(error) if error.is("RouteAlreadyExists") => return Ok(false),
            Err(source) => return Err(RouteError::Create { destination, source }),
        }
        self.tables.note(op, table, destination, Some(target)).await;
        Ok(true)
    }

    async fn replace_in(
        &self,
        op: &Op,
        destination: IpNet,
        target: &Target,
        table: &RouteTableId,
        occupant: &Occupant,
    ) -> Result<(), RouteError> {
        let why = match occupant {
            Occupant::Hop { hop, blackhole: true } => format!("the route to {hop} leads nowhere, not to {target}"),
            Occupant::Hop { hop, .. } => format!("the route leads to {hop}, not to {target}"),
            Occupant::Nobody | Occupant::Foreign(_) => String::new(),
        };
        let request = ReplaceRoute { table: table.clone(), destination, target: target.to_route() };
        let result = self.scope.client.write(op, request, &why).await;
        result.map_err(|source| RouteError::Replace { destination, source })?;
        self.tables.note(op, table, destination, Some(target)).await;
        Ok(())
    }

    /// Switches the source/destination check of a target off, once, and only where it is on.
    async fn switch_check_off(&self, op: &Op, target: &Target) -> Result<(), RouteError> {
        let what = match &target.interface {
            Some(interface) => interface.as_str(),
            None => target.instance.as_str(),
        };
        if !target.checked || self.unchecked.lock().get(what).is_some_and(|at| at.elapsed() < INSTANCE_AGE) {
            return Ok(());
        }
        let why = "packets of pods pass through";
        let result = match &target.interface {
            Some(interface) => {
                let request = ModifyNetworkInterfaceAttribute { id: interface.clone(), source_dest_check: false };
                self.scope.client.write(op, request, why).await
            }
            None => {
                let request = ModifyInstanceAttribute { id: target.instance.clone(), source_dest_check: false };
                self.scope.client.write(op, request, why).await
            }
        };
        let kind = if target.interface.is_some() { "interface" } else { "instance" };
        result.map_err(|source| RouteError::SourceDestCheck { what: format!("{kind} {what}").into(), source })?;
        let mut unchecked = self.unchecked.lock();
        // Whatever is known by now is younger than these.
        unchecked.retain(|_, at| at.elapsed() < INSTANCE_AGE);
        unchecked.insert(what.into(), Instant::now());
        Ok(())
    }

    /// Deletes a listed route from the tables that had it, where it is still the same.
    pub(super) async fn delete(&self, op: &Op, route: &Route) -> Result<(), RouteError> {
        let destination = route.destination;
        let unknown = |()| RouteError::UnknownRoute { destination, name: route.name.clone() };
        let listed: Handle = route.name.parse().map_err(unknown)?;
        for (table, occupant) in self.tables.at(op, &destination, ago(tables::FOR_OLD)).await? {
            if !listed.tables.contains(&table) {
                continue;
            }
            match plan::delete(&occupant, &listed.hop, route.blackhole) {
                Deletion::Done => {}
                Deletion::Revived => {
                    return Err(RouteError::Revived { destination, target: listed.hop.to_string().into() });
                }
                Deletion::Delete => self.delete_in(op, destination, &table, &listed).await?,
            }
        }
        Ok(())
    }

    async fn delete_in(
        &self,
        op: &Op,
        destination: IpNet,
        table: &RouteTableId,
        listed: &Handle,
    ) -> Result<(), RouteError> {
        let request = DeleteRoute { table: table.clone(), destination };
        match self.scope.client.write(op, request, &format!("no node wants it to lead to {}", listed.hop)).await {
            Ok(()) => {}
            Err(error) if error.is("InvalidRoute.NotFound") => {}
            Err(source) => return Err(RouteError::Delete { destination, source }),
        }
        self.tables.note(op, table, destination, None).await;
        Ok(())
    }
}

/// Returns the instance that routes to a node lead to.
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

fn target(node: &NodeView, id: &InstanceId, known: &Known) -> Result<Target, RouteError> {
    let name = || Box::from(&*node.name);
    let Some(instance) = known.get(id).and_then(Option::as_ref) else {
        return Err(RouteError::Gone { node: name(), instance: id.as_str().into() });
    };
    Target::of(instance).ok_or_else(|| RouteError::NoInstance {
        node: name(),
        why: format!("instance {id} has several network interfaces and none with device index 0").into(),
    })
}
