//! Permissions of changes, as far as EC2 says with `DryRun` whether it would allow a request. Elastic
//! Load Balancing has no such parameter.

use super::{AwsFinding, Checks, Observed, are_credentials_invalid, iam_action};
use crate::{
    api::{
        Call, RequestClass, SecurityGroupId, Tags,
        ec2::{
            AuthorizeSecurityGroupIngress, CreateSecurityGroup, CreateTags,
            ModifyInstanceAttribute, Rule, RuleSource,
        },
    },
    ownership_tags::CLUSTER_TAG_PREFIX,
};

/// A network for documentation, from which no traffic comes.
const DOCUMENTATION_NETWORK: &str = "192.0.2.0/32";
/// Name of the security group in the request that is only asked about.
const GROUP_NAME: &str = "ccm-check";

impl Checks<'_> {
    /// Asks AWS whether it would allow the changes that controllers make.
    pub(super) async fn check_permissions(&mut self, observed: &Observed) {
        let mut allowed = Vec::new();
        let mut unknown = Vec::new();
        for call in self.changes(observed) {
            debug_assert_eq!(call.action().class(), RequestClass::Write);
            let name = iam_action(call.action());
            match self.scope.client.would_allow(self.op, call).await {
                Ok(Some(true)) => allowed.push(name),
                Ok(Some(false)) => {
                    let message = format!("{name} is not allowed");
                    self.add(AwsFinding::ChangeDenied.about(name, message));
                }
                Ok(None) => unknown.push(name),
                // The reads before have said so.
                Err(error) if are_credentials_invalid(&error) => {}
                Err(error) => unknown.push(format!("{name} ({error})")),
            }
        }
        if !allowed.is_empty() {
            self.ok(format!("allowed changes, by DryRun: {}", allowed.join(", ")));
        }
        if !unknown.is_empty() {
            self.ok(format!("not known whether these changes are allowed: {}", unknown.join(", ")));
        }
    }

    /// Returns requests that change nothing even if they were carried out, as far as possible: tags
    /// and attributes have the values that they have already. Deletions are not among them.
    fn changes(&self, observed: &Observed) -> Vec<Call> {
        let mut changes = Vec::new();
        if self.cluster.services.is_some() {
            changes.push(Call::CreateSecurityGroup(CreateSecurityGroup {
                name: GROUP_NAME.into(),
                description: GROUP_NAME.into(),
                vpc: self.scope.vpc.clone(),
                tags: self.scope.cluster.tags(),
            }));
        }
        if self.cluster.services.is_some() {
            let cluster = &self.scope.cluster;
            let mut groups = observed.groups.values();
            let tagged = groups.clone().find(|group| cluster.has(&group.tags));
            changes.extend(tagged.and_then(|group| authorize(&group.id)));
            // Groups of others that the cluster may use are not tagged.
            let owned = groups.find(|group| cluster.owns(&group.tags));
            changes.extend(owned.and_then(|group| tag_again(&group.id, &group.tags)));
        }
        let with_check = observed
            .instances
            .iter()
            .find_map(|(_, instance)| Some((instance, instance.source_dest_check?)));
        if let Some((instance, source_dest_check)) = with_check
            && self.cluster.creates_routes
        {
            let id = instance.id.clone();
            let change = ModifyInstanceAttribute { id, source_dest_check };
            changes.push(Call::ModifyInstanceAttribute(change));
        }
        changes
    }
}

fn authorize(group: &SecurityGroupId) -> Option<Call> {
    let source = RuleSource::Cidr(DOCUMENTATION_NETWORK.parse().ok()?);
    let rule = Rule {
        protocol: "tcp".into(),
        ports: Some((1, 1)),
        source,
        description: GROUP_NAME.into(),
    };
    let id = group.clone();
    Some(Call::AuthorizeSecurityGroupIngress(AuthorizeSecurityGroupIngress {
        id,
        rules: vec![rule],
    }))
}

/// Writes the cluster tag of a group with the value that it has.
fn tag_again(group: &SecurityGroupId, tags: &Tags) -> Option<Call> {
    let cluster_tag = tags
        .iter()
        .find(|(key, _)| key.starts_with(CLUSTER_TAG_PREFIX))?;
    let tags = [(cluster_tag.0.clone(), cluster_tag.1.clone())].into();
    let resources = vec![group.to_string().into()];
    Some(Call::CreateTags(CreateTags { resources, tags }))
}
