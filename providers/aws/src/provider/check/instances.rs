//! The instances of the Nodes: their cluster tags and their security groups.

use ccm_core::check::list_names;

use super::{AwsFinding, Checks, Observed};
use crate::{
    api::{
        Action, Filter,
        ec2::{DescribeInstances, Instance, SecurityGroup},
    },
    ownership_tags::Cluster,
    provider_id,
};

/// Maximum number of values of a filter.
const MAX_VALUES: usize = 200;

impl Checks<'_> {
    /// Reads the instances of the Nodes that have a provider ID. A filter, unlike a list of IDs,
    /// does not fail for an instance that does not exist.
    pub(super) async fn read_instances(&mut self) -> Vec<(String, Instance)> {
        let mut nodes = Vec::new();
        for node in self.cluster.nodes {
            if let Some(id) = provider_id::instance_of(node) {
                nodes.push((id, node.name.to_string()));
            }
        }
        let mut found = Vec::new();
        for chunk in nodes.chunks(MAX_VALUES) {
            let ids = chunk.iter().map(|(id, _)| &**id);
            let request = DescribeInstances {
                filters: vec![Filter::new("instance-id", ids)],
                ..DescribeInstances::default()
            };
            let client = &self.scope.client;
            let instances = client
                .read_all(self.op, request, |r, token| r.token = Some(token))
                .await;
            let Some(instances) = self.answer(Action::DescribeInstances, instances) else {
                // The error is the same for every chunk.
                break;
            };
            for instance in instances {
                if let Some((_, name)) = chunk.iter().find(|(id, _)| *id == instance.id) {
                    found.push((name.clone(), instance));
                }
            }
        }
        found
    }

    /// Checks tags and security groups of the instances.
    pub(super) fn check_instances(&mut self, observed: &Observed) {
        let cluster = &self.scope.cluster;
        let mut untagged = Vec::new();
        let mut foreign = Vec::new();
        for (_, instance) in &observed.instances {
            if cluster.has(&instance.tags) {
                continue;
            }
            let name = instance.id.to_string();
            if Cluster::any(&instance.tags) {
                foreign.push(name);
            } else {
                untagged.push(name);
            }
        }
        let id = cluster.id().to_owned();
        if !foreign.is_empty() {
            let names = list_names(&foreign);
            let message = format!("instances with the tag of another cluster than {id}: {names}");
            self.add(AwsFinding::InstanceOfOtherCluster.about(names, message));
        }
        if !untagged.is_empty() {
            let names = list_names(&untagged);
            let message = format!("instances without the tag of cluster {id}: {names}");
            self.add(AwsFinding::InstanceUntagged.about(names, message));
        }
        if !self.scope.settings.disable_security_group_ingress && self.cluster.services.is_some() {
            self.check_node_groups(observed);
        }
    }

    /// Returns the security groups of an instance that may get the rules of load balancers: those
    /// with the cluster's tag, or all if none has it. The manager needs exactly one.
    pub(super) fn rule_groups<'o>(
        &self,
        observed: &'o Observed,
        instance: &Instance,
    ) -> Vec<&'o SecurityGroup> {
        let groups = instance.security_groups.iter();
        let known: Vec<_> = groups
            .filter_map(|(id, _)| observed.groups.get(id))
            .collect();
        let mut tagged = known.clone();
        tagged.retain(|group| self.scope.cluster.has(&group.tags));
        if tagged.is_empty() { known } else { tagged }
    }

    /// Checks that each instance has exactly one security group for the rules of load balancers.
    fn check_node_groups(&mut self, observed: &Observed) {
        let mut untagged = Vec::new();
        let mut ambiguous = Vec::new();
        for (_, instance) in &observed.instances {
            match self.rule_groups(observed, instance)[..] {
                [] | [_] => {}
                [first, ..] if self.scope.cluster.has(&first.tags) => {
                    ambiguous.push(instance.id.to_string());
                }
                _ => untagged.push(instance.id.to_string()),
            }
        }
        if !untagged.is_empty() {
            let names = list_names(&untagged);
            let message =
                format!("instances with several security groups, none of which is tagged: {names}");
            self.add(AwsFinding::NodeGroupsUntagged.about(names, message));
        }
        if !ambiguous.is_empty() {
            let names = list_names(&ambiguous);
            let message = format!("instances with several tagged security groups: {names}");
            self.add(AwsFinding::NodeGroupsAmbiguous.about(names, message));
        }
    }
}
