//! What the subcommand `check` finds out about AWS: credentials, region, VPC, tags and permissions.
//! Every request is a read, or asks with `DryRun` whether a change would be allowed.

mod account;
mod balancer_groups;
mod caller;
mod instances;
mod kinds;
mod permissions;
mod start_errors;
mod subnets;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::{
    check::list_names,
    error::chain,
    provider::{Area, CheckedCluster, Finding, Op},
};

pub use self::kinds::AwsFinding;
pub(crate) use self::start_errors::{config_invalid, connection_failed, not_built};
use super::AwsProvider;
use crate::{
    api::{
        Action, AwsError, AwsErrorCause, Filter, SecurityGroupId, Tags,
        ec2::{DescribeSecurityGroups, DescribeSubnets, Instance, SecurityGroup, Subnet},
    },
    client::ErrorClass,
    lb::is_denied_by_policy,
    ownership_tags::{CLUSTER_TAG_PREFIX, OWNED},
    scope::Scope,
};

/// The objects that several checks look at.
#[derive(Debug, Default)]
struct Observed {
    subnets: Vec<Subnet>,
    groups: BTreeMap<SecurityGroupId, SecurityGroup>,
    /// The instances of the Nodes, with the name of the Node.
    instances: Vec<(String, Instance)>,
}

/// The checks, with what they found so far.
pub(super) struct Checks<'a> {
    provider: &'a AwsProvider,
    scope: &'a Scope,
    op: &'a Op,
    cluster: CheckedCluster<'a>,
    findings: Vec<Finding>,
    /// True once AWS rejected the credentials, of which every further request would say the same.
    is_rejected: bool,
}

impl<'a> Checks<'a> {
    pub(super) fn new(provider: &'a AwsProvider, op: &'a Op, cluster: CheckedCluster<'a>) -> Self {
        let scope = &provider.scope;
        Self {
            provider,
            scope,
            op,
            cluster,
            findings: Vec::new(),
            is_rejected: false,
        }
    }

    /// Makes all checks, one after another, because a person waits for them and not a controller.
    pub(super) async fn run(mut self) -> Vec<Finding> {
        self.check_config();
        self.check_region();
        self.check_account().await;
        if self.is_rejected {
            return self.findings;
        }
        let mut observed = Observed {
            instances: self.read_instances().await,
            ..Observed::default()
        };
        self.read_vpc(&mut observed).await;
        self.check_subnets(&observed.subnets);
        self.check_instances(&observed);
        self.check_balancer_groups(&observed);
        self.show_other_clusters(&observed);
        self.check_owners(&observed);
        if self.cluster.creates_routes {
            self.check_route_tables().await;
        }
        self.check_permissions(&observed).await;
        self.findings
    }

    fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    fn ok(&mut self, message: impl Into<String>) {
        self.add(Finding::ok(Area::Cloud, message));
    }

    /// Returns the answer to a read, or reports its error.
    fn answer<T>(&mut self, action: Action, result: Result<T, AwsError>) -> Option<T> {
        let error = match result {
            Ok(answer) => return Some(answer),
            Err(error) => error,
        };
        let name = iam_action(action);
        let message = format!("{name}: {}", chain(&error));
        if is_denied_by_policy(&error) {
            self.add(AwsFinding::ReadDenied.about(name, message));
        } else if are_credentials_invalid(&error) {
            if !self.is_rejected {
                let object = "instance profile, IRSA or environment";
                self.add(AwsFinding::CredentialsInvalid.about(object, message));
            }
            self.is_rejected = true;
        } else {
            self.add(AwsFinding::ReadFailed.about(name, message));
        }
        None
    }

    /// Reads subnets and security groups of the VPC.
    async fn read_vpc(&mut self, observed: &mut Observed) {
        let client = &self.scope.client;
        let filters = vec![Filter::new("vpc-id", [&*self.scope.vpc])];
        let subnets = DescribeSubnets { filters: filters.clone(), ..Default::default() };
        let subnets = client
            .read_all(self.op, subnets, |r, token| r.token = Some(token))
            .await;
        observed.subnets = self
            .answer(Action::DescribeSubnets, subnets)
            .unwrap_or_default();
        let groups = DescribeSecurityGroups { filters, ..Default::default() };
        let groups = client
            .read_all(self.op, groups, |r, token| r.token = Some(token))
            .await;
        let groups = self.answer(Action::DescribeSecurityGroups, groups);
        let by_id = groups
            .into_iter()
            .flatten()
            .map(|group| (group.id.clone(), group));
        observed.groups = by_id.collect();
    }

    /// Lists the other clusters that have or use subnets or security groups of the VPC.
    fn show_other_clusters(&mut self, observed: &Observed) {
        let subnets = observed.subnets.iter().map(|subnet| &subnet.tags);
        let groups = observed.groups.values().map(|group| &group.tags);
        let mut others = BTreeSet::new();
        for tags in subnets.chain(groups) {
            let clusters = tags
                .keys()
                .filter_map(|key| key.strip_prefix(CLUSTER_TAG_PREFIX));
            others.extend(clusters.filter(|id| *id != self.scope.cluster.id()));
        }
        let names: Vec<&str> = others.into_iter().collect();
        if !names.is_empty() {
            self.ok(format!("other clusters in this VPC: {}", list_names(&names)));
        }
    }

    /// Reports objects that two clusters own.
    fn check_owners(&mut self, observed: &Observed) {
        let subnets = observed
            .subnets
            .iter()
            .map(|s| (format!("subnet {}", s.id), &s.tags));
        let groups = observed
            .groups
            .values()
            .map(|g| (format!("security group {}", g.id), &g.tags));
        let instances = observed
            .instances
            .iter()
            .map(|(_, i)| (format!("instance {}", i.id), &i.tags));
        let mut findings = Vec::new();
        for (object, tags) in subnets.chain(groups).chain(instances) {
            let owners = owners(tags);
            if owners.len() > 1 {
                let message = format!("{object} is owned by clusters {}", owners.join(", "));
                findings.push(AwsFinding::OwnedByTwoClusters.about(object, message));
            }
        }
        self.findings.extend(findings);
    }
}

/// Returns the clusters that have the tag `kubernetes.io/cluster/<ID>=owned`.
fn owners(tags: &Tags) -> Vec<&str> {
    let owned = tags.iter().filter(|(_, value)| ***value == *OWNED);
    owned
        .filter_map(|(key, _)| key.strip_prefix(CLUSTER_TAG_PREFIX))
        .collect()
}

/// Returns the name of an action in IAM policies.
fn iam_action(action: Action) -> String {
    format!("{}:{}", action.service().iam_prefix(), action.name())
}

/// Returns true if AWS rejected the credentials and not the request, or if there are none.
fn are_credentials_invalid(error: &AwsError) -> bool {
    match &error.cause {
        AwsErrorCause::Response { code, .. } => {
            ErrorClass::from_code(code) == ErrorClass::Permission
        }
        _ => false,
    }
}
