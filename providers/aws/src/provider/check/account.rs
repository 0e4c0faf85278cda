//! Cloud config, account, region and VPC.

use std::collections::BTreeSet;

use ccm_core::{check::list_names, provider::Routes};

use super::{AwsFinding, Checks};
use crate::{
    api::{
        Action,
        ec2::{DescribeVpcs, Vpc},
        elb::DescribeLoadBalancers,
    },
    environment::region_of_zone,
    provider_id,
};

/// The error code of a VPC that does not exist in this account and region.
const VPC_NOT_FOUND: &str = "InvalidVpcID.NotFound";

impl Checks<'_> {
    /// Reports keys of the cloud config that have no effect, or another one than they say.
    pub(super) fn check_config(&mut self) {
        let settings = self.scope.settings.clone();
        for warning in &settings.warnings {
            self.add(AwsFinding::ConfigIgnored.about(&*warning.location, warning.to_string()));
        }
    }

    /// Compares the region with the zones in the provider IDs of the Nodes.
    pub(super) fn check_region(&mut self) {
        let region = self.scope.region.clone();
        let elsewhere = |id: &str| {
            let zone = provider_id::zone_of(id).filter(|zone| !zone.is_empty())?;
            region_of_zone(zone)
                .ok()
                .filter(|of_node| **of_node != *region)
        };
        let mut nodes = Vec::new();
        let mut regions = BTreeSet::new();
        for node in self.cluster.nodes {
            if let Some(of_node) = node.provider_id.as_deref().and_then(elsewhere) {
                nodes.push(node.name.to_string());
                regions.insert(of_node);
            }
        }
        if nodes.is_empty() {
            return self.ok(format!("region {region}"));
        }
        let regions: Vec<_> = regions.into_iter().collect();
        let (nodes, regions) = (list_names(&nodes), list_names(&regions));
        let message = format!("the region is {region}, and these nodes are in {regions}: {nodes}");
        self.add(AwsFinding::NodeInOtherRegion.about(nodes, message));
    }

    /// Checks the credentials by the first reads, and shows the account.
    pub(super) async fn check_account(&mut self) {
        let vpc = self.scope.vpc.clone();
        let request = DescribeVpcs { ids: vec![vpc.clone()], token: None };
        let found = self.scope.client.read(self.op, request).await;
        let found = match found {
            Err(error) if error.has_code(VPC_NOT_FOUND) => Some(Vec::new()),
            other => self
                .answer(Action::DescribeVpcs, other)
                .map(|page| page.items),
        };
        match found.as_deref() {
            Some([Vpc { cidrs, .. }, ..]) => {
                let cidrs: Vec<_> = cidrs.iter().map(ToString::to_string).collect();
                self.ok(format!("VPC {vpc} exists, with {}", list_names(&cidrs)));
            }
            Some([]) => {
                let message =
                    format!("VPC {vpc} does not exist in {} of this account", self.scope.region);
                self.add(AwsFinding::VpcUnknown.about(format!("VPC {vpc}"), message));
            }
            None => {}
        }
        if self.is_rejected {
            return;
        }
        let is_known = self.check_caller().await;
        let request = DescribeLoadBalancers::default();
        let page = self.scope.client.read(self.op, request).await;
        let Some(page) = self.answer(Action::DescribeLoadBalancers, page) else {
            return;
        };
        // The ARN of any object names the account, too.
        let account = page
            .items
            .iter()
            .find_map(|lb| lb.arn.split(':').nth(4).map(str::to_owned));
        if let Some(account) = account
            && !is_known
        {
            self.ok(format!("account {account}, as its load balancers show"));
        }
    }

    /// Checks that the route tables are found, as the route controller does.
    pub(super) async fn check_route_tables(&mut self) {
        match self.provider.routes.list(self.op, self.cluster.nodes).await {
            Ok(routes) => self.ok(format!("routes of the cluster: {}", routes.len())),
            Err(error) => {
                let object = format!("VPC {}", self.scope.vpc);
                let message = ccm_core::error::chain(&error);
                self.add(AwsFinding::RouteTablesUnusable.about(object, message));
            }
        }
    }
}
