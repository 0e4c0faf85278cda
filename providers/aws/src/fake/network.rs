//! EC2: zones, VPCs, subnets, route tables.

use std::fmt::Display;

use ipnet::IpNet;

use super::{
    error::{ApiResult, refuse},
    lists::{Filters, page},
    state::{AccountState, CreationTime, Route, RouteNextHop, Table},
};
use crate::api::{
    EniId, InstanceId, Page, RouteTableId, Tags, VpcId,
    ec2::{self, InstanceState, RouteTarget},
};

const SUBNET_FILTERS: &[&str] =
    &["availability-zone", "cidr-block", "state", "subnet-id", "vpc-id"];
const TABLE_FILTERS: &[&str] = &[
    "association.main",
    "association.subnet-id",
    "route-table-id",
    "route.destination-cidr-block",
    "route.gateway-id",
    "route.instance-id",
    "vpc-id",
];

/// Checks that all IDs exist.
pub(super) fn all_known<'a, T: Display + 'a>(
    ids: impl IntoIterator<Item = &'a T>,
    known: impl Fn(&T) -> bool,
    code: &'static str,
    kind: &str,
) -> ApiResult<()> {
    match ids.into_iter().find(|id| !known(id)) {
        Some(id) => refuse(code, format!("The {kind} ID '{id}' does not exist")),
        None => Ok(()),
    }
}

impl AccountState {
    pub(super) fn describe_vpcs(&self, c: &ec2::DescribeVpcs) -> ApiResult<Page<ec2::Vpc>> {
        all_known(&c.ids, |id| self.vpcs.contains_key(id), "InvalidVpcID.NotFound", "vpc")?;
        let found = self
            .vpcs
            .iter()
            .filter(|(id, _)| c.ids.is_empty() || c.ids.contains(id));
        let show = |(id, vpc): (&VpcId, &super::state::Vpc)| {
            (id.to_string(), ec2::Vpc { id: id.clone(), cidrs: vpc.cidrs.clone() })
        };
        page(
            found.map(show).collect(),
            c.token.as_deref(),
            self.options.page_size,
            "InvalidNextToken",
        )
    }

    pub(super) fn describe_subnets(
        &self,
        c: &ec2::DescribeSubnets,
    ) -> ApiResult<Page<ec2::Subnet>> {
        let filters = Filters::new(&c.filters, SUBNET_FILTERS)?;
        all_known(
            &c.ids,
            |id| self.subnets.contains_key(id),
            "InvalidSubnetID.NotFound",
            "subnet",
        )?;
        let found = self.subnets.iter().filter(|(id, subnet)| {
            (c.ids.is_empty() || c.ids.contains(id))
                && filters.accept(&subnet.tags, |name| match name {
                    "availability-zone" => vec![subnet.zone.to_string()],
                    "cidr-block" => subnet.cidr.iter().map(ToString::to_string).collect(),
                    "state" => vec!["available".to_owned()],
                    "subnet-id" => vec![id.to_string()],
                    _ => vec![subnet.vpc.to_string()],
                })
        });
        let found = found.map(|(id, subnet)| {
            let shown = ec2::Subnet {
                id: id.clone(),
                vpc: subnet.vpc.clone(),
                zone: subnet.zone.clone(),
                cidr: subnet.cidr,
                ipv6_cidrs: subnet.ipv6.clone(),
                free_ips: self.free_ips(id),
                tags: subnet.tags.clone(),
            };
            (id.to_string(), shown)
        });
        page(found.collect(), c.token.as_deref(), self.options.page_size, "InvalidNextToken")
    }

    pub(super) fn describe_route_tables(
        &self,
        c: &ec2::DescribeRouteTables,
    ) -> ApiResult<Page<ec2::RouteTable>> {
        let filters = Filters::new(&c.filters, TABLE_FILTERS)?;
        all_known(
            &c.ids,
            |id| self.tables.contains_key(id),
            "InvalidRouteTableID.NotFound",
            "routeTable",
        )?;
        let found = self.tables.iter().filter(|(id, table)| {
            (c.ids.is_empty() || c.ids.contains(id))
                && filters.accept(&table.tags, |name| table_field(id, table, name))
        });
        let found = found.map(|(id, table)| (id.to_string(), self.show_table(id, table)));
        page(found.collect(), c.token.as_deref(), self.options.page_size, "InvalidNextToken")
    }

    fn show_table(&self, id: &RouteTableId, table: &Table) -> ec2::RouteTable {
        ec2::RouteTable {
            id: id.clone(),
            vpc: table.vpc.clone(),
            subnets: table.subnets.clone(),
            main: table.main,
            routes: table
                .routes
                .iter()
                .map(|route| self.show_route(route))
                .collect(),
            tags: table.tags.clone(),
        }
    }

    /// Returns a route as AWS shows it: with the instance and its interface, whichever of the two
    /// it was created with.
    pub(super) fn show_route(&self, route: &Route) -> ec2::Route {
        let shown = ec2::Route {
            destination: route.destination,
            blackhole: false,
            instance: None,
            interface: None,
            gateway: None,
        };
        let eni = match &route.target {
            RouteNextHop::Gateway(gateway) => {
                return ec2::Route { gateway: Some(gateway.clone()), ..shown };
            }
            RouteNextHop::Target(RouteTarget::Interface(eni)) => Some(eni.clone()),
            RouteNextHop::Target(RouteTarget::Instance(id)) => self
                .instances
                .get(id)
                .and_then(|instance| instance.enis.first().cloned()),
        };
        let holder = eni
            .as_ref()
            .and_then(|eni| self.enis.get(eni))
            .map(|eni| &eni.holder);
        let instance = match (holder, &route.target) {
            (Some(super::state::InterfaceOwner::Instance(id, _)), _)
            | (None, RouteNextHop::Target(RouteTarget::Instance(id))) => Some(id.clone()),
            _ => None,
        };
        ec2::Route {
            blackhole: holder.is_none(),
            instance,
            interface: eni,
            ..shown
        }
    }

    pub(super) fn create_route(&mut self, c: &ec2::CreateRoute) -> ApiResult<()> {
        let destination = c.destination.trunc();
        self.check_route(&c.table, &c.target)?;
        let most = self.options.quotas.routes_per_table;
        let table = self.table(&c.table)?;
        if table
            .routes
            .iter()
            .any(|route| route.destination == Some(destination))
        {
            return refuse(
                "RouteAlreadyExists",
                format!("The route identified by {destination} already exists."),
            );
        }
        // Each address family has its own quota; local routes do not count.
        let counted = |route: &&Route| {
            let family = route
                .destination
                .is_some_and(|it| it.addr().is_ipv4() == destination.addr().is_ipv4());
            family
                && !matches!(&route.target, RouteNextHop::Gateway(gateway) if **gateway == *"local")
        };
        if table.routes.iter().filter(counted).count() >= most {
            return refuse(
                "RouteLimitExceeded",
                format!("The maximum number of routes, {most}, has been reached"),
            );
        }
        table.routes.push(Route {
            destination: Some(destination),
            target: RouteNextHop::Target(c.target.clone()),
        });
        Ok(())
    }

    pub(super) fn replace_route(&mut self, c: &ec2::ReplaceRoute) -> ApiResult<()> {
        let destination = c.destination.trunc();
        self.check_route(&c.table, &c.target)?;
        let table = self.table(&c.table)?;
        match table
            .routes
            .iter_mut()
            .find(|route| route.destination == Some(destination))
        {
            Some(route) => {
                route.target = RouteNextHop::Target(c.target.clone());
                Ok(())
            }
            None => {
                let message =
                    format!("There is no route defined for '{destination}' in the route table.");
                refuse("InvalidParameterValue", message)
            }
        }
    }

    pub(super) fn delete_route(&mut self, c: &ec2::DeleteRoute) -> ApiResult<()> {
        let destination = c.destination.trunc();
        let id = c.table.clone();
        let table = self.table(&c.table)?;
        let found = table
            .routes
            .iter()
            .position(|route| route.destination == Some(destination));
        match found.map(|at| (at, &table.routes[at].target)) {
            Some((_, RouteNextHop::Gateway(gateway))) if **gateway == *"local" => refuse(
                "InvalidParameterValue",
                format!("cannot remove local route {destination} in route table {id}"),
            ),
            Some((at, _)) => {
                table.routes.remove(at);
                Ok(())
            }
            None => {
                let message = format!(
                    "no route with destination-cidr-block {destination} in route table {id}"
                );
                refuse("InvalidRoute.NotFound", message)
            }
        }
    }

    fn table(&mut self, id: &RouteTableId) -> ApiResult<&mut Table> {
        match self.tables.get_mut(id) {
            Some(table) => Ok(table),
            None => refuse(
                "InvalidRouteTableID.NotFound",
                format!("The routeTable ID '{id}' does not exist"),
            ),
        }
    }

    /// Checks that a route may have this target.
    fn check_route(&self, table: &RouteTableId, target: &RouteTarget) -> ApiResult<()> {
        let vpc = match self.tables.get(table) {
            Some(table) => table.vpc.clone(),
            None => {
                return refuse(
                    "InvalidRouteTableID.NotFound",
                    format!("The routeTable ID '{table}' does not exist"),
                );
            }
        };
        let eni = match target {
            RouteTarget::Instance(id) => self.only_interface(id)?,
            RouteTarget::Interface(eni) => eni.clone(),
        };
        match self.enis.get(&eni) {
            Some(found) if found.vpc == vpc => Ok(()),
            Some(_) => {
                let message =
                    format!("route table {table} and interface {eni} belong to different networks");
                refuse("InvalidParameterValue", message)
            }
            None => {
                let message = format!("The networkInterface ID '{eni}' does not exist");
                refuse("InvalidNetworkInterfaceID.NotFound", message)
            }
        }
    }

    fn only_interface(&self, id: &InstanceId) -> ApiResult<EniId> {
        self.known_instances(std::slice::from_ref(id), CreationTime::found)?;
        match self
            .instances
            .get(id)
            .map(|instance| (instance.state, instance.enis.as_slice()))
        {
            Some((InstanceState::Terminated, _) | (_, [])) | None => refuse(
                "IncorrectInstanceState",
                format!("The instance '{id}' is not in a state that has a route"),
            ),
            Some((_, [one])) => Ok(one.clone()),
            Some(_) => {
                let message = format!(
                    "There are multiple interfaces attached to instance '{id}'. Please specify an interface ID for the \
                     operation instead."
                );
                refuse("InvalidInstanceID", message)
            }
        }
    }
}

fn table_field(id: &RouteTableId, table: &Table, name: &str) -> Vec<String> {
    let destinations = || table.routes.iter().filter_map(|route| route.destination);
    match name {
        "association.main" => vec![table.main.to_string()],
        "association.subnet-id" => table.subnets.iter().map(ToString::to_string).collect(),
        "route-table-id" => vec![id.to_string()],
        "route.destination-cidr-block" => destinations()
            .filter(|it| matches!(it, IpNet::V4(_)))
            .map(|it| it.to_string())
            .collect(),
        "route.gateway-id" => {
            let gateways = table.routes.iter().filter_map(|route| match &route.target {
                RouteNextHop::Gateway(gateway) => Some(gateway.to_string()),
                RouteNextHop::Target(_) => None,
            });
            gateways.collect()
        }
        "route.instance-id" => {
            let instances = table.routes.iter().filter_map(|route| match &route.target {
                RouteNextHop::Target(RouteTarget::Instance(id)) => Some(id.to_string()),
                _ => None,
            });
            instances.collect()
        }
        _ => vec![table.vpc.to_string()],
    }
}

/// Checks the tags that a request adds to an EC2 object.
pub(super) fn check_ec2_tags(new: &Tags, total: usize, most: usize) -> ApiResult<()> {
    for (key, value) in new {
        if key.is_empty() || key.chars().count() > 127 || value.chars().count() > 255 {
            return refuse(
                "InvalidParameterValue",
                format!("Tag key or value exceeds the maximum length: {key}"),
            );
        }
        if key.to_ascii_lowercase().starts_with("aws:") {
            return refuse(
                "InvalidParameterValue",
                format!(
                    "Value ( {key} ) for parameter key is invalid. Tag keys starting with 'aws:' are reserved for internal use"
                ),
            );
        }
    }
    if total > most {
        return refuse("TagLimitExceeded", format!("The maximum number of tags is {most}"));
    }
    Ok(())
}
