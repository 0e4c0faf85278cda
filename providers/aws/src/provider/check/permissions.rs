//! Permissions of changes, as far as EC2 says with `DryRun` whether it would allow a request. Elastic
//! Load Balancing has no such parameter.
//!
//! The policies may have conditions on tags, so each request is one that the manager would send, about
//! an object that it would send it for. Tags of security groups are asked about with the creation
//! of a group, for which EC2 wants `ec2:CreateTags`, too: policies often allow tags only there.

use super::{AwsFinding, Checks, Observed, are_credentials_invalid, iam_action};
use crate::{
    api::{
        Action, Call, DryRunAnswer, RequestClass, SecurityGroupId,
        ec2::{
            AuthorizeSecurityGroupIngress, CreateSecurityGroup, CreateTags,
            ModifyInstanceAttribute, Rule, RuleSource,
        },
    },
    config::DefaultType,
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
            let name = permissions_of(&call);
            match self.scope.client.would_allow(self.op, call).await {
                Ok(DryRunAnswer::Allowed) => allowed.push(name),
                Ok(DryRunAnswer::Denied(error)) => {
                    let message = format!("{name} is not allowed: {error}");
                    self.add(AwsFinding::ChangeDenied.about(name, message));
                }
                Ok(DryRunAnswer::Unknown) => unknown.push(name),
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

    /// Returns requests like those of the manager. Deletions are not among them, and attributes have
    /// the values that they have already.
    fn changes(&self, observed: &Observed) -> Vec<Call> {
        let cluster = &self.scope.cluster;
        let mut changes = Vec::new();
        // First, security groups: those of load balancers, and rules in those of nodes.
        if self.creates_groups() {
            changes.push(Call::CreateSecurityGroup(CreateSecurityGroup {
                name: GROUP_NAME.into(),
                description: GROUP_NAME.into(),
                vpc: self.scope.vpc.clone(),
                tags: cluster.tags(),
            }));
        }
        let mut groups = observed.groups.values();
        if self.changes_rules()
            && let Some(group) = groups.find(|group| cluster.has(&group.tags))
        {
            changes.extend(authorize(&group.id));
        }
        // Next, instances. One without the cluster's tag is a finding of its own.
        let mut instances = observed.instances.iter().map(|(_, instance)| instance);
        if let Some(instance) = instances.find(|instance| cluster.has(&instance.tags)) {
            if let Some(source_dest_check) = instance.source_dest_check
                && self.cluster.creates_routes
            {
                let id = instance.id.clone();
                let change = ModifyInstanceAttribute { id, source_dest_check };
                changes.push(Call::ModifyInstanceAttribute(change));
            }
            if let Some(options) = &self.provider.tagging {
                let resources = vec![instance.id.to_string().into()];
                let tags = options.tags().clone();
                changes.push(Call::CreateTags(CreateTags { resources, tags }));
            }
        }
        changes
    }

    /// Returns true if load balancers get security groups of their own: classic ones, and network
    /// load balancers if the cloud config says so.
    fn creates_groups(&self) -> bool {
        let settings = &self.scope.settings;
        self.cluster.services.is_some()
            && (settings.managed_security_groups
                || settings.shared_backend_security_group
                || settings.default_type == DefaultType::Unset)
    }

    /// Returns true if rules of security groups are changed: those of nodes, or of load balancers.
    fn changes_rules(&self) -> bool {
        let keeps_nodes = self.scope.settings.disable_security_group_ingress;
        self.cluster.services.is_some() && (!keeps_nodes || self.creates_groups())
    }
}

/// Returns the permissions that a change needs, as a policy names them.
fn permissions_of(call: &Call) -> String {
    let name = iam_action(call.action());
    match call {
        Call::CreateSecurityGroup(request) if !request.tags.is_empty() => {
            format!("{name} and {}", iam_action(Action::CreateTags))
        }
        _ => name,
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
