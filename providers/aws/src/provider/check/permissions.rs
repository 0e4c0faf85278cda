//! Permissions of changes, as far as EC2 says with `DryRun` whether it would allow a request. Elastic
//! Load Balancing has no such parameter.
//!
//! An endpoint that does not know the parameter would make the change. Therefore a read is sent first,
//! and changes are only asked about if the endpoint did not carry it out. Emulators know the parameter
//! for some requests only: moto creates a route despite it. Therefore routes are not asked about, and
//! nothing else after the first change that was carried out.
//!
//! The policies may have conditions on tags, so each request is one that the manager would send, about
//! an object that it would send it for. Tags of security groups are asked about with the creation
//! of a group, for which EC2 wants `ec2:CreateTags`, too: policies often allow tags only there.

use ccm_core::error::chain;

use super::{AwsFinding, Checks, Observed, are_credentials_invalid, iam_action};
use crate::{
    api::{
        Action, Call, DryRunAnswer, RequestClass, SecurityGroupId,
        ec2::{
            AuthorizeSecurityGroupIngress, CreateSecurityGroup, CreateTags, DescribeVpcs,
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
        let changes = self.changes(observed);
        if changes.is_empty() {
            return;
        }
        // First, whether the endpoint knows the parameter.
        if let Err(reason) = self.check_dry_run().await {
            let names: Vec<_> = changes.iter().map(permissions_of).collect();
            let names = names.join(", ");
            return self
                .ok(format!("not known whether these changes are allowed: {names} ({reason})"));
        }

        // Next, each change.
        let mut allowed = Vec::new();
        let mut unknown = Vec::new();
        let mut changes = changes.into_iter();
        while let Some(call) = changes.next() {
            debug_assert_eq!(call.action().class(), RequestClass::Write);
            let name = permissions_of(&call);
            match self.scope.client.would_allow(self.op, call).await {
                Ok(DryRunAnswer::Allowed) => allowed.push(name),
                Ok(DryRunAnswer::Denied(error)) => {
                    let message = format!("{name} is not allowed: {error}");
                    self.add(AwsFinding::ChangeDenied.about(name, message));
                }
                Ok(DryRunAnswer::Unknown) => unknown.push(name),
                Ok(DryRunAnswer::CarriedOut) => {
                    let message = format!("the endpoint of EC2 ignored DryRun of {name}");
                    self.add(AwsFinding::DryRunIgnored.about(name, message));
                    unknown.extend(changes.by_ref().map(|call| permissions_of(&call)));
                }
                // A read has said so.
                Err(error) if self.is_rejected && are_credentials_invalid(&error) => {}
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

    /// Asks with a read, which does no harm, whether the endpoint knows `DryRun`.
    ///
    /// # Errors
    /// Returns the reason why no change may be asked about.
    async fn check_dry_run(&self) -> Result<(), String> {
        let read = Call::DescribeVpcs(DescribeVpcs::default());
        match self.scope.client.would_allow(self.op, read).await {
            Ok(DryRunAnswer::Allowed) => Ok(()),
            // An endpoint may check permissions and ignore DryRun.
            Ok(DryRunAnswer::Denied(_)) => Err("ec2:DescribeVpcs with DryRun is denied".into()),
            Ok(DryRunAnswer::CarriedOut) => Err("the endpoint of EC2 ignores DryRun".into()),
            Ok(DryRunAnswer::Unknown) => Err("DryRun is not available".into()),
            Err(error) => Err(chain(&error)),
        }
    }

    /// Returns requests like those of the manager, without deletions.
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
        changes.extend(self.ruled_group(observed).and_then(authorize));
        // Next, instances. One without the cluster's tag is a finding of its own.
        let instances = observed.instances.iter().map(|(_, instance)| instance);
        let mut instances = instances.filter(|instance| cluster.has(&instance.tags));
        let tagged = instances.clone().next();
        // Of an instance with several interfaces, the attribute of an interface is changed instead.
        let checked = instances.find(|instance| {
            instance.source_dest_check == Some(true) && instance.interfaces.len() == 1
        });
        if let Some(instance) = checked
            && self.cluster.creates_routes
        {
            let id = instance.id.clone();
            let change = ModifyInstanceAttribute { id, source_dest_check: false };
            changes.push(Call::ModifyInstanceAttribute(change));
        }
        if let Some(instance) = tagged
            && let Some(options) = &self.provider.tagging
        {
            let resources = vec![instance.id.to_string().into()];
            let tags = options.tags().clone();
            changes.push(Call::CreateTags(CreateTags { resources, tags }));
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

    /// Returns a security group whose rules the manager changes: that of a node, or, if those are left
    /// alone, one that the cluster owns for its load balancers.
    fn ruled_group<'o>(&self, observed: &'o Observed) -> Option<&'o SecurityGroupId> {
        self.cluster.services?;
        if !self.scope.settings.disable_security_group_ingress {
            return observed.instances.iter().find_map(|(_, instance)| {
                match self.rule_groups(observed, instance)[..] {
                    [group] => Some(&group.id),
                    _ => None,
                }
            });
        }
        let of_nodes = |id: &SecurityGroupId| {
            let mut instances = observed.instances.iter();
            instances.any(|(_, node)| node.security_groups.iter().any(|(group, _)| group == id))
        };
        let mut groups = observed.groups.values();
        let owned =
            groups.find(|group| self.scope.cluster.owns(&group.tags) && !of_nodes(&group.id))?;
        self.creates_groups().then_some(&owned.id)
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
