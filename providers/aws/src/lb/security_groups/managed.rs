//! The security groups of load balancers themselves: the managed one, given ones, and the shared
//! one.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind, Op, PlannedChange};

pub(super) use super::identity::find;
use super::{
    SecurityGroupManager,
    cache::GroupsById,
    identity::{MANAGED_DESCRIPTION, find_managed, handed_over},
    node_group_selection::missing_rules,
    plan::{self, FrontendGroups},
};
use crate::{
    api::{
        SecurityGroupId, Tags,
        ec2::{CreateSecurityGroup, Rule, SecurityGroup},
    },
    client::with_message,
    lb::{
        model::{DesiredLoadBalancer, ServiceKey, UpdateScope},
        names,
        ownership::is_let_go,
        security_groups::desired_rules,
    },
    ownership_tags::{Cluster, OTHER_CONTROLLER_TAG, SERVICE_TAG},
};

/// Description of the group that all load balancers share.
pub const SHARED_DESCRIPTION: &str = "[k8s] Shared Backend SecurityGroup for LoadBalancer";

const ANNOTATION: &str = "service.beta.kubernetes.io/aws-load-balancer-security-groups";

/// The result of [`SecurityGroupManager::plan_frontend_groups`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontendPlan {
    /// The existing groups among the desired ones; empty if the load balancer gets none or keeps
    /// the current ones.
    pub groups: Vec<SecurityGroupId>,
    /// True if all desired groups exist. If not, the load balancer's groups would change as well.
    pub is_complete: bool,
    /// Groups that would be created, and tags that would be repaired.
    pub changes: Vec<PlannedChange>,
}

impl FrontendPlan {
    /// Adds the creation of a group.
    fn add_creation(&mut self, name: &str) {
        self.is_complete = false;
        self.changes.push(PlannedChange {
            operation: "CreateSecurityGroup".into(),
            object: name.into(),
            reason: "the load balancer needs it".into(),
        });
    }
}

impl SecurityGroupManager {
    /// Returns the desired groups of the load balancer; empty if it gets none or keeps the current
    /// ones. Finds or creates the managed group and adds missing rules to it.
    ///
    /// `existing` has the current groups of the load balancer, or `None` if it does not exist yet.
    ///
    /// # Errors
    /// A request that cannot be met ([`InvalidInput`](ErrorKind::InvalidInput)), and errors of AWS.
    pub async fn ensure_frontend_groups(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        existing: Option<&[SecurityGroupId]>,
    ) -> Result<Vec<SecurityGroupId>, CloudError> {
        let (mut groups, with_shared) =
            match plan::frontend_groups(desired, existing, &self.scope.settings)? {
                FrontendGroups::None => return Ok(Vec::new()),
                FrontendGroups::Managed { shared } => {
                    (vec![self.ensure_managed_group(op, desired).await?], shared)
                }
                FrontendGroups::Given { names, shared } => {
                    (self.find_given_groups(op, names).await?, shared)
                }
            };
        if with_shared {
            let id = self.ensure_shared_group(op).await?;
            groups.retain(|group| *group != id);
            groups.push(id);
        }
        Ok(groups)
    }

    /// Plans what [`ensure_frontend_groups`](Self::ensure_frontend_groups) would do. For the rules
    /// of an existing group see [`plan_rules`](Self::plan_rules).
    ///
    /// # Errors
    /// As [`ensure_frontend_groups`](Self::ensure_frontend_groups).
    pub async fn plan_frontend_groups(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        existing: Option<&[SecurityGroupId]>,
    ) -> Result<FrontendPlan, CloudError> {
        let mut plan = FrontendPlan { is_complete: true, ..FrontendPlan::default() };
        let with_shared = match plan::frontend_groups(desired, existing, &self.scope.settings)? {
            FrontendGroups::None => return Ok(plan),
            FrontendGroups::Managed { shared } => {
                self.plan_managed(op, desired, existing, &mut plan).await?;
                shared
            }
            FrontendGroups::Given { names, shared } => {
                plan.groups = self.find_given_groups(op, names).await?;
                shared
            }
        };
        if with_shared {
            let groups = self.cache.groups(op, self.max_rule_age()).await?;
            match self.shared_group(op, &groups) {
                Some(id) => plan.groups.push(id),
                None => plan.add_creation(&names::shared_security_group(op.cluster_name())),
            }
        }
        Ok(plan)
    }

    /// Plans the creation of the managed group, or the repair of its tags.
    async fn plan_managed(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        existing: Option<&[SecurityGroupId]>,
        plan: &mut FrontendPlan,
    ) -> Result<(), CloudError> {
        let name = names::security_group(op.cluster_name(), &desired.owner);
        let max_age = super::SHARED_READ_AGE.min(self.max_rule_age());
        let groups = self.cache.groups(op, max_age).await?;
        let Some(group) = find_managed(&groups, &desired.owner, &name) else {
            plan.add_creation(&name);
            return Ok(());
        };
        // What is on its load balancer is adopted before the plan is carried out.
        let is_attached = existing.is_some_and(|groups| groups.contains(&group.id));
        if !is_attached || !is_let_go(&desired.owner, &group.tags) {
            check_adoptable(&self.scope.cluster, &group, &desired.owner, MANAGED_DESCRIPTION)?;
        }
        if !self.missing_tags(&group, desired).is_empty() {
            plan.changes.push(PlannedChange {
                operation: "CreateTags".into(),
                object: (&*group.id).into(),
                reason: "tags are missing".into(),
            });
        }
        plan.groups.push(group.id.clone());
        Ok(())
    }

    /// Finds or creates the managed group, and adds missing tags and rules.
    async fn ensure_managed_group(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
    ) -> Result<SecurityGroupId, CloudError> {
        let name = names::security_group(op.cluster_name(), &desired.owner);
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        let group = match find_managed(&groups, &desired.owner, &name) {
            Some(group) => group,
            None => {
                self.create_group(op, &name, MANAGED_DESCRIPTION, self.tags(desired))
                    .await?
            }
        };
        check_adoptable(&self.scope.cluster, &group, &desired.owner, MANAGED_DESCRIPTION)?;
        let missing_tags = self.missing_tags(&group, desired);
        if !missing_tags.is_empty() {
            self.cache
                .tag(op, &group, missing_tags, "tags are missing")
                .await?;
        }
        let rules = desired_rules::managed_group_rules(desired);
        if !plan::missing(&group.ingress, &rules).is_empty() && !self.is_protected(&group.id) {
            let reason = "the Service opens it";
            self.cache
                .update_rules(op, &group.id, reason, |group| missing_rules(group, &rules))
                .await?;
        }
        Ok(group.id.clone())
    }

    /// Finds given groups, in their order. If one is unknown, reads the groups again, because it
    /// may be new.
    async fn find_given_groups(
        &self,
        op: &Op,
        names: &[Box<str>],
    ) -> Result<Vec<SecurityGroupId>, CloudError> {
        let cached = self.cache.groups(op, self.max_rule_age()).await?;
        if let Ok(ids) = match_given_groups(&cached, names) {
            return Ok(ids);
        }
        let current = self.cache.groups(op, Duration::ZERO).await?;
        match_given_groups(&current, names).map_err(|errors| {
            let errors = errors.join("; ");
            CloudError::invalid_input(format!("{ANNOTATION}: {errors} in {}", self.scope.vpc))
        })
    }

    /// Finds or creates the shared group.
    async fn ensure_shared_group(&self, op: &Op) -> Result<SecurityGroupId, CloudError> {
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        if let Some(id) = self.shared_group(op, &groups) {
            return Ok(id);
        }
        let name = names::shared_security_group(op.cluster_name());
        let tags = self.scope.cluster.tags();
        let group = self
            .create_group(op, &name, SHARED_DESCRIPTION, tags)
            .await?;
        if self.scope.cluster.has(&group.tags) {
            return Ok(group.id.clone());
        }
        Err(CloudError::invalid_input(format!(
            "security group {name} ({}) is not of this cluster; choose another as the shared one with BackendSecurityGroup",
            group.id
        )))
    }

    /// Returns the ID of the shared group; `None` if none is configured or it does not exist yet.
    pub(super) fn shared_group(&self, op: &Op, groups: &GroupsById) -> Option<SecurityGroupId> {
        let settings = &self.scope.settings;
        if !settings.shared_backend_security_group {
            return None;
        }
        if let Some(id) = &settings.backend_security_group {
            return Some(id.clone());
        }
        let group = find(groups, &names::shared_security_group(op.cluster_name()))?;
        if self.scope.cluster.has(&group.tags) {
            Some(group.id.clone())
        } else {
            None
        }
    }

    /// Creates a group, or returns the existing one with that name.
    async fn create_group(
        &self,
        op: &Op,
        name: &str,
        description: &str,
        tags: Tags,
    ) -> Result<Arc<SecurityGroup>, CloudError> {
        let vpc = self.scope.vpc.clone();
        let request = CreateSecurityGroup {
            name: name.into(),
            description: description.into(),
            vpc,
            tags,
        };
        match self
            .cache
            .create(op, request, "the load balancer needs it")
            .await
        {
            Ok(Some(group)) => Ok(Arc::new(group)),
            Ok(None) => self.cache.read_by_name(op, name).await?.ok_or_else(|| {
                CloudError::new(
                    ErrorKind::Conflict,
                    format!("security group {name} exists but is not visible yet"),
                )
            }),
            Err(error) => {
                let error = CloudError::from(error);
                let text = format!("unable to create security group for NLB: {name}: {error}");
                Err(with_message(&error, text))
            }
        }
    }

    /// Returns the tags of a managed group.
    fn tags(&self, desired: &DesiredLoadBalancer) -> Tags {
        let mut tags = desired.extra_tags.clone();
        tags.insert(SERVICE_TAG.into(), desired.owner.key().into());
        tags.extend(self.scope.cluster.tags());
        tags
    }

    /// Returns the tags that a managed group lacks. The Service's own is not required if the group
    /// has the cluster's tag, because upstream creates groups without it. Upstream repairs only
    /// the cluster's tags of a group that exists.
    fn missing_tags(&self, group: &SecurityGroup, desired: &DesiredLoadBalancer) -> Tags {
        let mut tags = match desired.updates {
            UpdateScope::All => desired.extra_tags.clone(),
            UpdateScope::AsCloudProviderAws => Tags::new(),
        };
        tags.remove(SERVICE_TAG);
        if !self.scope.cluster.has(&group.tags) {
            tags.insert(SERVICE_TAG.into(), desired.owner.key().into());
            tags.extend(self.scope.cluster.tags());
        }
        let has_cluster_tag = self.scope.cluster.has(&group.tags);
        let cluster_tags = self.scope.cluster.tags();
        tags.retain(|key, value| {
            let is_cluster_tag = has_cluster_tag && cluster_tags.contains_key(key);
            let keeps_value =
                desired.updates == UpdateScope::AsCloudProviderAws && group.tags.contains_key(key);
            !is_cluster_tag && !keeps_value && group.tags.get(key) != Some(value)
        });
        tags
    }
}

/// Returns the rules of the managed group that are not desired. The whole group is ours, so that is
/// all other rules.
pub(super) fn surplus_rules(group: &SecurityGroup, desired: &BTreeSet<Rule>) -> Vec<Rule> {
    plan::surplus(&group.ingress, desired, |_| true)
}

/// Checks that a group with the name of a managed one is ours: it has the cluster's tag, or no
/// cluster's tag and either this Service's tag or, as left by an upstream that could not tag it,
/// the expected description. A group that was let go of is nobody's, whatever it looks like.
pub(super) fn check_adoptable(
    cluster: &Cluster,
    group: &SecurityGroup,
    owner: &ServiceKey,
    description: &str,
) -> Result<(), CloudError> {
    let service = group.tags.get(SERVICE_TAG);
    let has_no_owner = !Cluster::any(&group.tags) && !group.tags.contains_key(OTHER_CONTROLLER_TAG);
    let is_of_service = match service {
        Some(service) => **service == *owner.key(),
        None => *group.description == *description,
    };
    let let_go = is_let_go(owner, &group.tags).then(|| {
        "it was kept with the Service's former load balancer: adopt that one, or delete both"
            .to_owned()
    });
    if let Some(reason) = handed_over(group, owner).or(let_go) {
        return Err(CloudError::invalid_input(format!(
            "security group {} ({}) has the name of the one for {}, but {reason}",
            group.name,
            group.id,
            owner.key()
        )));
    }
    if cluster.has(&group.tags) || (has_no_owner && is_of_service) {
        return Ok(());
    }
    Err(CloudError::invalid_input(format!(
        "security group {} ({}) has the name of the one for {} but is not of this cluster",
        group.name,
        group.id,
        owner.key()
    )))
}

/// Finds given groups: by ID, or by tag `Name`.
fn match_given_groups(
    groups: &GroupsById,
    names: &[Box<str>],
) -> Result<Vec<SecurityGroupId>, Vec<String>> {
    let mut found = Vec::new();
    let mut errors = Vec::new();
    for name in names {
        match &*matching_groups(groups, name) {
            [id] if found.contains(id) => {}
            [id] => found.push(id.clone()),
            [] => errors.push(format!("security group {name:?} was not found")),
            several => {
                errors.push(format!("{} security groups are named {name:?}", several.len()));
            }
        }
    }
    if errors.is_empty() {
        Ok(found)
    } else {
        Err(errors)
    }
}

fn matching_groups(groups: &GroupsById, name: &str) -> Vec<SecurityGroupId> {
    let id = SecurityGroupId::from(name);
    if groups.contains_key(&id) {
        return vec![id];
    }
    if name.starts_with("sg-") {
        return Vec::new();
    }
    groups
        .values()
        .filter(|group| group.tags.get("Name").is_some_and(|tag| **tag == *name))
        .map(|group| group.id.clone())
        .collect()
}
