//! Applies a plan: each action is one request, and the working state is updated after each
//! response.

pub(in crate::lb) mod register;
pub(super) mod working_state;
use std::time::Duration;

use ccm_core::provider::{CloudError, ErrorKind, EventType, Op, Progress};

use crate::{
    api::{
        AwsError, InstanceId, LoadBalancerArn, TargetGroupArn,
        elb::{
            AddElbTags, AddListenerCertificates, CreateListener, CreateTargetGroup, DeleteListener,
            DeleteTargetGroup, DeregisterTargets, ListenerSpec, ModifyListener,
            ModifyListenerAttributes, ModifyLoadBalancerAttributes, ModifyTargetGroup,
            ModifyTargetGroupAttributes, RemoveElbTags, RemoveListenerCertificates,
            SetIpAddressType, SetSecurityGroups, SetSubnets, Target,
        },
    },
    client,
    lb::{
        apply::{register::register, working_state::WorkingState},
        deps::LoadBalancerDeps,
        model::{DesiredLoadBalancer, ListenerKey},
        observe::Observer,
        plan::{ActionKind, ListenerSettings, PlannedAction, SubnetChange, TargetGroupRef},
        retry_delay::{self, Deferred},
        security_groups::RuleRequest,
        targets::pods::PodTargets,
    },
    scope::Scope,
};

/// Delay before the next try if AWS does not find an object that existed a moment ago: new objects
/// become visible within seconds.
const EVENTUAL_CONSISTENCY_DELAY: Duration = Duration::from_secs(2);
/// After this time a created object is visible everywhere.
const EVENTUAL_CONSISTENCY_WINDOW: Duration = Duration::from_secs(20);

/// How many rejected targets an event lists.
const MAX_TARGETS_IN_NOTE: usize = 10;

/// Why a plan was not applied to its end.
#[derive(Debug)]
pub(in crate::lb) enum ApplyStop {
    /// The working state was incomplete. It has been updated, and the plan must be made again.
    Replan,
    /// The rest must wait; the working state is valid.
    RetryLater(Deferred),
    /// It failed. The working state may be invalid.
    Failed(CloudError),
}

impl From<CloudError> for ApplyStop {
    fn from(error: CloudError) -> Self {
        // Nothing was sent.
        if let Some(after) = client::rate_limit_delay(&error) {
            return Self::RetryLater(Deferred { after, why: error.to_string().into() });
        }
        // AWS does not find an object that existed a moment ago. The observed state is unknown, and
        // the next sync reads it.
        match error.kind() {
            ErrorKind::NotFound => Self::Failed(transient(error)),
            _ => Self::Failed(error),
        }
    }
}

impl From<AwsError> for ApplyStop {
    fn from(error: AwsError) -> Self {
        CloudError::from(error).into()
    }
}

fn transient(error: CloudError) -> CloudError {
    CloudError::transient(error.to_string())
        .with_retry_after(EVENTUAL_CONSISTENCY_DELAY)
        .with_source(error)
}

/// Applies a plan for one Service.
pub(in crate::lb) struct Applier<'a> {
    pub(in crate::lb) scope: &'a Scope,
    pub(in crate::lb) observer: &'a Observer,
    pub(in crate::lb) deps: &'a LoadBalancerDeps,
    pub(in crate::lb) op: &'a Op,
    pub(in crate::lb) desired: &'a DesiredLoadBalancer,
    pub(in crate::lb) instances: &'a [InstanceId],
    pub(in crate::lb) pods: &'a PodTargets,
    pub(in crate::lb) working: &'a mut WorkingState,
    /// Deferred actions that do not hold up the others.
    pub(in crate::lb) deferred: Vec<Deferred>,
    /// The error for targets that do not fit into a full target group.
    pub(in crate::lb) target_group_full: Option<CloudError>,
}

impl Applier<'_> {
    /// Applies a plan.
    ///
    /// # Errors
    /// Why it stopped. The actions before that are applied.
    pub(in crate::lb) async fn apply(
        &mut self,
        actions: &[PlannedAction],
    ) -> Result<(), ApplyStop> {
        for planned in actions {
            self.apply_action(planned).await?;
        }
        Ok(())
    }

    /// Applies a plan for targets: deregistrations first, then missing security group rules if
    /// `needs_rules`, and registrations last. If some rules are rejected, all targets are registered
    /// nevertheless, and the rejection is returned.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub(in crate::lb) async fn apply_targets(
        &mut self,
        actions: &[PlannedAction],
        needs_rules: bool,
    ) -> Result<Option<CloudError>, ApplyStop> {
        let (registrations, deregistrations): (Vec<_>, Vec<_>) = actions
            .iter()
            .partition(|planned| matches!(planned.action, ActionKind::RegisterTargets(..)));
        for planned in deregistrations {
            self.apply_action(planned).await?;
        }
        let mut rejection = None;
        if needs_rules && let Err(error) = self.sync_security_group_rules(RuleSync::Add).await {
            if !error.kind().is_rejection() {
                return Err(error.into());
            }
            rejection = Some(error);
        }
        for planned in registrations {
            self.apply_action(planned).await?;
        }
        Ok(rejection)
    }

    async fn apply_action(&mut self, planned: &PlannedAction) -> Result<(), ApplyStop> {
        let why = &*planned.reason;
        // Whatever the outcome of the request: the tags that it sets are ours to remove later.
        if let Some(tags) = planned.action.tags() {
            let keys = tags.keys().cloned();
            self.working.observed.removable_tag_keys.extend(keys);
        }
        // Then send the request, and update the working state from the response.
        match &planned.action {
            ActionKind::CreateLoadBalancer(create) => {
                let response = self
                    .scope
                    .client
                    .write(self.op, (**create).clone(), why)
                    .await;
                let created = response.inspect_err(|error| self.record_failure(error))?;
                self.working.load_balancer_created(created, &create.tags);
            }
            ActionKind::CreateTargetGroup(key, create) => {
                return self.create_group(*key, create, why).await;
            }
            ActionKind::CreateListener(settings) => {
                return self.create_listener(settings, why).await;
            }
            ActionKind::RegisterTargets(group, targets) => {
                return self.register(group, targets, why).await;
            }
            ActionKind::DeregisterTargets(arn, targets) => {
                let request = DeregisterTargets { arn: arn.clone(), targets: targets.clone() };
                self.scope.client.write(self.op, request, why).await?;
                self.working.targets_changed(arn, &[], targets);
            }
            ActionKind::DeleteTargetGroup(arn) => {
                return self.delete_group(arn, &planned.action, why).await;
            }
            ActionKind::AddSecurityGroupRules => {
                self.sync_security_group_rules(RuleSync::Add).await?;
            }
            ActionKind::RemoveSecurityGroupRules => {
                self.sync_security_group_rules(RuleSync::Remove).await?;
            }
            ActionKind::CleanUpSecurityGroups(groups) => {
                let progress = self
                    .deps
                    .security_groups
                    .clean_up_detached(self.op, &self.desired.owner, groups)
                    .await?;
                match progress {
                    Progress::Pending { after, why } => {
                        self.deferred.push(Deferred { after, why });
                    }
                    Progress::Done => self.working.action_applied(&planned.action),
                }
            }
            action => {
                self.change(action, why).await?;
                self.working.action_applied(action);
            }
        }
        Ok(())
    }

    fn record_failure(&self, error: &AwsError) {
        if ["SubnetNotFound", "InvalidSubnet", "InvalidSubnetID.NotFound"]
            .iter()
            .any(|code| error.has_code(code))
        {
            self.deps.vpc.forget();
        }
    }

    /// Applies actions whose response has no content.
    // length: one table of requests
    async fn change(&mut self, action: &ActionKind, why: &str) -> Result<(), ApplyStop> {
        let client = &self.scope.client;
        let op = self.op;
        match action {
            // Settings of the load balancer.
            ActionKind::SetIpAddressType(ip_address_type) => {
                let request = SetIpAddressType {
                    arn: self.load_balancer_arn()?,
                    ip_address_type: *ip_address_type,
                };
                client.write(op, request, why).await?;
            }
            ActionKind::SetSubnets(change) => {
                let SubnetChange { subnets, ipv6_source_nat, ip_address_type, removes } =
                    change.clone();
                let request = SetSubnets {
                    arn: self.load_balancer_arn()?,
                    subnets,
                    ipv6_source_nat,
                    ip_address_type,
                };
                let set = client.write(op, request, why).await;
                set.inspect_err(|error| self.record_failure(error))?;
                if removes {
                    op.event(EventType::Warning, "LoadBalancerSubnetsRemoved", why);
                }
            }
            ActionKind::SetSecurityGroups(groups, rules) => {
                let arn = self.load_balancer_arn()?;
                let groups = groups.clone();
                client
                    .write(op, SetSecurityGroups { arn, groups, private_link_rules: *rules }, why)
                    .await?;
            }
            ActionKind::ModifyLoadBalancerAttributes(attributes) => {
                let request = ModifyLoadBalancerAttributes {
                    arn: self.load_balancer_arn()?,
                    attributes: attributes.clone(),
                };
                client.write(op, request, why).await?;
            }
            // Tags.
            ActionKind::AddTags(arns, tags) => {
                client
                    .write(op, AddElbTags { arns: arns.clone(), tags: tags.clone() }, why)
                    .await?;
            }
            ActionKind::RemoveTags(arns, keys) => {
                client
                    .write(op, RemoveElbTags { arns: arns.clone(), keys: keys.clone() }, why)
                    .await?;
            }
            // Target groups.
            ActionKind::ModifyTargetGroup(arn, check) => {
                let request = ModifyTargetGroup { arn: arn.clone(), health_check: check.clone() };
                let modified = client.write(op, request, why).await;
                if modified
                    .as_ref()
                    .is_err_and(|error| error.has_code("InvalidConfigurationRequest"))
                {
                    self.working
                        .observed
                        .unmodifiable_groups
                        .insert(arn.clone());
                    return Err(ApplyStop::Replan);
                }
                modified?;
            }
            ActionKind::ModifyTargetGroupAttributes(group, attributes) => {
                let request = ModifyTargetGroupAttributes {
                    arn: self.target_group_arn(group)?,
                    attributes: attributes.clone(),
                };
                client.write(op, request, why).await?;
            }
            // Listeners.
            ActionKind::ModifyListener(arn, settings) => {
                let request =
                    ModifyListener { arn: arn.clone(), spec: self.listener_spec(settings)? };
                client.write(op, request, why).await?;
            }
            ActionKind::ModifyListenerAttributes(listener, attributes) => {
                let arn = self.working.listener(listener).ok_or_else(missing_object)?;
                let request = ModifyListenerAttributes { arn, attributes: attributes.clone() };
                self.retry_if_not_found(client.write(op, request, why).await)?;
            }
            ActionKind::AddListenerCertificate(listener, certificate) => {
                let arn = self.working.listener(listener).ok_or_else(missing_object)?;
                let request =
                    AddListenerCertificates { arn, certificates: vec![certificate.clone()] };
                self.retry_if_not_found(client.write(op, request, why).await)?;
            }
            ActionKind::RemoveListenerCertificate(arn, certificate) => {
                let certificates = vec![certificate.clone()];
                let request = RemoveListenerCertificates { arn: arn.clone(), certificates };
                client.write(op, request, why).await?;
            }
            ActionKind::DeleteListener(arn) => {
                let deleted = client
                    .write(op, DeleteListener { arn: arn.clone() }, why)
                    .await;
                if !deleted
                    .as_ref()
                    .is_err_and(|error| error.has_code("ListenerNotFound"))
                {
                    deleted?;
                }
            }
            // Actions whose response has content, or that are no ELB requests.
            _ => {}
        }
        Ok(())
    }

    /// A new listener may not be found for a while. One that is not found for longer was deleted.
    fn retry_if_not_found(&self, result: Result<(), AwsError>) -> Result<(), ApplyStop> {
        let may_be_new = self.op.pending_for() <= EVENTUAL_CONSISTENCY_WINDOW;
        match result {
            Err(error) if error.has_code("ListenerNotFound") && may_be_new => {
                Err(not_visible_yet(error.to_string()))
            }
            result => Ok(result?),
        }
    }

    /// Creates a target group. If its name exists already, from an interrupted sync or with other
    /// settings, that group is adopted if it belongs to the Service.
    async fn create_group(
        &mut self,
        key: ListenerKey,
        create: &CreateTargetGroup,
        why: &str,
    ) -> Result<(), ApplyStop> {
        let response = self.scope.client.write(self.op, create.clone(), why).await;
        if response
            .as_ref()
            .is_err_and(|error| error.has_code("DuplicateTargetGroupName"))
        {
            return self.adopt_target_group(key, &create.name).await;
        }
        let group = response?;
        if !group.load_balancers.is_empty() {
            // AWS returned an existing group with the same settings: the rest of it is unknown.
            return self.adopt_target_group(key, &create.name).await;
        }
        self.working.target_group_created(key, group, &create.tags);
        Ok(())
    }

    /// Adopts an existing group with the name of a new one. A group that serves another load
    /// balancer is in use.
    async fn adopt_target_group(&mut self, key: ListenerKey, name: &str) -> Result<(), ApplyStop> {
        let found = self
            .observer
            .target_group_by_name(self.op, &self.desired.owner, name)
            .await?;
        // The name is taken, but the group is not visible yet, or no longer.
        let Some(observed) = found else {
            return Err(not_visible_yet(format!("target group {name} does not show")));
        };
        if observed
            .group
            .load_balancers
            .iter()
            .any(|arn| Some(arn) != self.working.load_balancer_arn())
        {
            let text = format!("target group {name} serves another load balancer");
            return Err(CloudError::new(ErrorKind::Conflict, text).into());
        }
        self.working.target_group_adopted(key, observed);
        Err(ApplyStop::Replan)
    }

    async fn create_listener(
        &mut self,
        settings: &ListenerSettings,
        why: &str,
    ) -> Result<(), ApplyStop> {
        let load_balancer = self.load_balancer_arn()?;
        let spec = self.listener_spec(settings)?;
        let request = CreateListener {
            load_balancer: load_balancer.clone(),
            spec,
            tags: settings.tags.clone(),
        };
        let response = self.scope.client.write(self.op, request, why).await;
        if response
            .as_ref()
            .is_err_and(|error| error.has_code("DuplicateListener"))
        {
            let listeners = self.observer.listeners(self.op, &load_balancer).await?;
            let port = settings.key.0.get();
            if !listeners
                .iter()
                .any(|observed| observed.listener.port == port)
            {
                return Err(not_visible_yet(format!("listener {port} does not show")));
            }
            if let Some(observed) = &mut self.working.observed.load_balancer {
                observed.listeners = listeners;
            }
            self.observer
                .read_missing(self.op, &self.desired.owner, &mut self.working.observed)
                .await?;
            return Err(ApplyStop::Replan);
        }
        self.working.listener_created(response?, &settings.tags);
        Ok(())
    }

    async fn register(
        &mut self,
        group: &TargetGroupRef,
        targets: &[Target],
        why: &str,
    ) -> Result<(), ApplyStop> {
        let arn = self.target_group_arn(group)?;
        let result = register(self.scope, self.op, &arn, targets, why).await;
        // After an error it is unknown which of them are registered.
        if result.is_err()
            && let Some(group) = self.working.observed.group_mut(&arn)
        {
            group.targets = None;
        }
        let outcome = result?;
        self.working.targets_changed(&arn, &outcome.done, &[]);
        if let Some((_, error)) = outcome.rejected.first() {
            let ids = first_target_ids(&outcome.rejected);
            let note = format!("{ids} cannot be registered with {arn}: {error}");
            self.op.event(EventType::Warning, "TargetsRefused", &note);
            let why = format!("{} targets are refused", outcome.rejected.len());
            self.deferred.push(Deferred {
                after: retry_delay::rejected_targets(self.op),
                why: why.into(),
            });
        }
        if let Some((left_out, error)) = outcome.target_group_full {
            let note = format!(
                "{} targets do not fit into {arn}, {} do",
                left_out.len(),
                outcome.done.len()
            );
            let quota = CloudError::from(error);
            self.target_group_full = Some(
                CloudError::new(ErrorKind::QuotaExceeded, note)
                    .with_reason(quota.reason().unwrap_or("AWSQuotaExceeded"))
                    .with_source(quota),
            );
        }
        Ok(())
    }

    /// Deletes a target group. After its listener was changed AWS may report it as in use for a
    /// while; if somebody else uses it, indefinitely.
    async fn delete_group(
        &mut self,
        arn: &TargetGroupArn,
        action: &ActionKind,
        why: &str,
    ) -> Result<(), ApplyStop> {
        let deleted = self
            .scope
            .client
            .write(self.op, DeleteTargetGroup { arn: arn.clone() }, why)
            .await;
        if deleted
            .as_ref()
            .is_err_and(|error| error.has_code("ResourceInUse"))
        {
            self.deferred.push(Deferred {
                after: retry_delay::object_in_use(self.op),
                why: format!("target group {arn} is still in use").into(),
            });
            return Ok(());
        }
        if !deleted
            .as_ref()
            .is_err_and(|error| error.has_code("TargetGroupNotFound"))
        {
            deleted?;
        }
        self.working.action_applied(action);
        Ok(())
    }

    /// Adds missing security group rules, or removes those that are no longer desired.
    async fn sync_security_group_rules(&mut self, sync: RuleSync) -> Result<(), CloudError> {
        let Some(observed) = &self.working.observed.load_balancer else {
            return Ok(());
        };
        let load_balancer = &observed.load_balancer;
        let subnet_ids: Vec<_> = load_balancer
            .zones
            .iter()
            .filter_map(|zone| zone.subnet.clone())
            .collect();
        let subnets = self.deps.subnets(self.op, &subnet_ids).await?;
        let rule_request = RuleRequest {
            desired: self.desired,
            lb_name: &load_balancer.name,
            lb_groups: &load_balancer.security_groups,
            subnets: &subnets,
            instances: self.instances,
            pods: self.pods,
        };
        let security_groups = &self.deps.security_groups;
        match sync {
            RuleSync::Add => security_groups.add_rules(self.op, &rule_request).await,
            RuleSync::Remove => security_groups.remove_rules(self.op, &rule_request).await,
        }
    }

    fn load_balancer_arn(&self) -> Result<LoadBalancerArn, ApplyStop> {
        self.working
            .load_balancer_arn()
            .cloned()
            .ok_or_else(missing_object)
    }

    fn target_group_arn(&self, group: &TargetGroupRef) -> Result<TargetGroupArn, ApplyStop> {
        self.working
            .target_group_arn(group)
            .ok_or_else(missing_object)
    }

    fn listener_spec(&self, settings: &ListenerSettings) -> Result<ListenerSpec, ApplyStop> {
        Ok(ListenerSpec {
            port: settings.key.0,
            protocol: settings.key.1,
            target_group: self.target_group_arn(&settings.group)?,
            certificate: settings.certificate.clone(),
            ssl_policy: settings.ssl_policy.clone(),
            alpn_policy: settings.alpn_policy.clone(),
        })
    }
}

/// Which security group rules are changed.
#[derive(Clone, Copy)]
enum RuleSync {
    /// Missing ones are added.
    Add,
    /// Those that are no longer desired are removed.
    Remove,
}

/// Stops a plan because an object that must exist is not visible yet.
fn not_visible_yet(why: String) -> ApplyStop {
    ApplyStop::RetryLater(Deferred { after: EVENTUAL_CONSISTENCY_DELAY, why: why.into() })
}

/// Lists the IDs of the first few targets.
fn first_target_ids(rejected: &[(Target, AwsError)]) -> String {
    let ids: Vec<_> = rejected
        .iter()
        .take(MAX_TARGETS_IN_NOTE)
        .map(|(target, _)| &*target.id)
        .collect();
    let others = rejected.len() - ids.len();
    let list = ids.join(", ");
    if others > 0 {
        format!("{list} and {others} more")
    } else {
        list
    }
}

/// The error for an object that an earlier action of the plan should have created.
fn missing_object() -> ApplyStop {
    ApplyStop::Failed(CloudError::transient(
        "a step of the plan needs what an earlier one should have made",
    ))
}
