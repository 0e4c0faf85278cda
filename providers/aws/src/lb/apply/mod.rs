//! Applies a plan. Each action is one request, whose response updates the working state.

mod capacity;
pub(in crate::lb) mod register;
pub(super) mod working_state;

use std::time::Duration;

use ccm_core::provider::{CloudError, ErrorKind, EventType, Op, Progress};

use crate::{
    api::{
        AwsError, InstanceId, LoadBalancerArn, SecurityGroupId, TargetGroupArn,
        elb::{
            AddElbTags, AddListenerCertificates, CreateListener, CreateTargetGroup, DeleteListener,
            DeleteTargetGroup, DeregisterTargets, ListenerSpec, ModifyListener,
            ModifyListenerAttributes, ModifyLoadBalancerAttributes, ModifyTargetGroup,
            ModifyTargetGroupAttributes, RemoveElbTags, RemoveListenerCertificates,
            SetIpAddressType, SetSecurityGroups, Target,
        },
    },
    client,
    lb::{
        apply::{register::register, working_state::WorkingState},
        deps::LoadBalancerDeps,
        model::{DesiredLoadBalancer, ListenerKey},
        observe::{NamedTargetGroup, Observer, name_taken},
        plan::{ActionKind, ListenerSettings, PlannedAction, TargetGroupRef},
        retry_delay::{self, Deferred},
        security_groups::RuleRequest,
        sync_state::RejectedCapacity,
        targets::pods::PodTargets,
    },
    scope::Scope,
};

/// Delay before the next try if AWS does not find an object that existed a moment ago. New objects
/// become visible within seconds.
const EVENTUAL_CONSISTENCY_DELAY: Duration = Duration::from_secs(2);
/// Time after which a created object is visible in every response of AWS.
const EVENTUAL_CONSISTENCY_WINDOW: Duration = Duration::from_secs(20);

/// Maximum number of rejected targets that an event lists.
const MAX_TARGETS_IN_NOTE: usize = 10;

/// The reason for which a plan was not applied completely.
#[derive(Debug)]
pub(in crate::lb) enum ApplyStop {
    /// An action found an object that the working state did not show. The working state has been
    /// updated, and the caller must plan again.
    Replan,
    /// The remaining actions must wait. The working state is valid.
    RetryLater(Deferred),
    /// An action failed. The working state may be invalid.
    Failed(CloudError),
    /// An action failed because AWS does not find an object that it names. The working state may be
    /// invalid.
    ObjectMissing(CloudError),
}

impl From<CloudError> for ApplyStop {
    fn from(error: CloudError) -> Self {
        // Our own rate limit: the request was not sent.
        if let Some(after) = client::rate_limit_delay(&error) {
            return Self::RetryLater(Deferred { after, reason: error.to_string().into() });
        }
        // AWS does not find an object that existed a moment ago. The next sync reads the state.
        match error.kind() {
            ErrorKind::NotFound => Self::Failed(as_transient(error)),
            _ => Self::Failed(error),
        }
    }
}

impl From<AwsError> for ApplyStop {
    fn from(error: AwsError) -> Self {
        if client::is_object_missing(error.code()) {
            Self::ObjectMissing(error.into())
        } else {
            CloudError::from(error).into()
        }
    }
}

fn as_transient(error: CloudError) -> CloudError {
    CloudError::transient(error.to_string())
        .with_retry_after(EVENTUAL_CONSISTENCY_DELAY)
        .with_source(error)
}

/// Applies the plan of one Service.
pub(in crate::lb) struct Applier<'a> {
    pub(in crate::lb) scope: &'a Scope,
    pub(in crate::lb) observer: &'a Observer,
    pub(in crate::lb) deps: &'a LoadBalancerDeps,
    pub(in crate::lb) op: &'a Op,
    pub(in crate::lb) desired: &'a DesiredLoadBalancer,
    pub(in crate::lb) instances: &'a [InstanceId],
    pub(in crate::lb) pods: &'a PodTargets,
    pub(in crate::lb) working_state: &'a mut WorkingState,
    /// Work that was deferred while the other actions were applied.
    pub(in crate::lb) deferred: Vec<Deferred>,
    /// The quota error if some targets did not fit into a target group.
    pub(in crate::lb) target_group_full: Option<CloudError>,
    /// The reservation of capacity, if AWS rejected it. An event has reported it.
    pub(in crate::lb) rejected_capacity: Option<RejectedCapacity>,
}

impl Applier<'_> {
    /// Applies all actions of a plan, in order.
    ///
    /// # Errors
    /// Stops at the first action that cannot be applied now. The actions before it are applied.
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
    /// `needs_rules` is set, and registrations last. If AWS rejects some of the rules, all targets
    /// are registered nevertheless, and the rejection is returned.
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
        if needs_rules && let Err(error) = self.sync_security_group_rules(RuleSync::Add, None).await
        {
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
        let reason = &*planned.reason;
        // The tags must be removed later even if the request fails, because it may have been
        // carried out.
        if let Some(tags) = planned.action.tags() {
            let keys = tags.keys().cloned();
            self.working_state.observed.removable_tag_keys.extend(keys);
        }
        match &planned.action {
            ActionKind::CreateLoadBalancer(create) => {
                let response = self
                    .scope
                    .client
                    .write(self.op, (**create).clone(), reason)
                    .await;
                let created = response.inspect_err(|error| self.forget_unknown_subnets(error))?;
                self.working_state
                    .load_balancer_created(created, &create.tags);
            }
            ActionKind::CreateTargetGroup(key, create) => {
                return self.create_group(*key, create, reason).await;
            }
            ActionKind::CreateListener(settings) => {
                return self.create_listener(settings, reason).await;
            }
            ActionKind::RegisterTargets(group, targets) => {
                return self.register(group, targets, reason).await;
            }
            ActionKind::DeregisterTargets(arn, targets) => {
                let request = DeregisterTargets { arn: arn.clone(), targets: targets.clone() };
                self.scope.client.write(self.op, request, reason).await?;
                self.working_state.targets_changed(arn, &[], targets);
            }
            ActionKind::DeleteTargetGroup(arn) => {
                return self.delete_group(arn, &planned.action, reason).await;
            }
            ActionKind::SetSubnets(change) => {
                return self.set_subnets(change, &planned.action, reason).await;
            }
            ActionKind::ReserveCapacity(units) => {
                return self.reserve_capacity(*units, &planned.action, reason).await;
            }
            ActionKind::AddSecurityGroupRules => {
                self.sync_security_group_rules(RuleSync::Add, None).await?;
            }
            ActionKind::RemoveSecurityGroupRules => {
                self.sync_security_group_rules(RuleSync::Remove, None)
                    .await?;
            }
            ActionKind::RemoveSecurityGroupMarks => {
                if let Some(observed) = &self.working_state.observed.load_balancer {
                    let groups = &observed.resource.security_groups;
                    self.deps
                        .security_groups
                        .remove_marks(self.op, &self.desired.owner, groups)
                        .await?;
                }
            }
            ActionKind::CleanUpSecurityGroups(groups) => {
                let progress = self
                    .deps
                    .security_groups
                    .clean_up_detached(self.op, &self.desired.owner, groups)
                    .await?;
                match progress {
                    Progress::Pending { after, reason } => {
                        self.deferred.push(Deferred { after, reason });
                    }
                    Progress::Done => self.working_state.action_applied(&planned.action),
                }
            }
            action => {
                self.send(action, reason).await?;
                self.working_state.action_applied(action);
            }
        }
        Ok(())
    }

    /// Drops the cached subnets if AWS rejected a request because one of them does not exist.
    fn forget_unknown_subnets(&self, error: &AwsError) {
        let is_subnet_unknown = ["SubnetNotFound", "InvalidSubnet", "InvalidSubnetID.NotFound"]
            .iter()
            .any(|code| error.has_code(code));
        if is_subnet_unknown {
            self.deps.vpc.forget();
        }
    }

    /// Sends the request of an action whose response has no content.
    // length: one table of requests
    async fn send(&mut self, action: &ActionKind, reason: &str) -> Result<(), ApplyStop> {
        let client = &self.scope.client;
        let op = self.op;
        match action {
            // Settings of the load balancer.
            ActionKind::SetIpAddressType(ip_address_type) => {
                let request = SetIpAddressType {
                    arn: self.load_balancer_arn()?,
                    ip_address_type: *ip_address_type,
                };
                client.write(op, request, reason).await?;
            }
            ActionKind::SetSecurityGroups(groups, rules) => {
                let arn = self.load_balancer_arn()?;
                // The nodes admit the groups that stay, before others go.
                self.admit_before_removal(groups).await?;
                let groups = groups.clone();
                let request = SetSecurityGroups { arn, groups, private_link_rules: *rules };
                client.write(op, request, reason).await?;
            }
            ActionKind::ModifyLoadBalancerAttributes(attributes) => {
                let request = ModifyLoadBalancerAttributes {
                    arn: self.load_balancer_arn()?,
                    attributes: attributes.clone(),
                };
                client.write(op, request, reason).await?;
            }
            // Tags.
            ActionKind::AddTags(arns, tags) => {
                client
                    .write(op, AddElbTags { arns: arns.clone(), tags: tags.clone() }, reason)
                    .await?;
            }
            ActionKind::RemoveTags(arns, keys) => {
                client
                    .write(op, RemoveElbTags { arns: arns.clone(), keys: keys.clone() }, reason)
                    .await?;
            }
            // Target groups.
            ActionKind::ModifyTargetGroup(arn, check) => {
                let request = ModifyTargetGroup { arn: arn.clone(), health_check: check.clone() };
                match client.write(op, request, reason).await {
                    Err(error) if error.has_code("InvalidConfigurationRequest") => {
                        let observed = &mut self.working_state.observed;
                        observed.unmodifiable_groups.insert(arn.clone());
                        return Err(ApplyStop::Replan);
                    }
                    result => result?,
                }
            }
            ActionKind::ModifyTargetGroupAttributes(group, attributes) => {
                let request = ModifyTargetGroupAttributes {
                    arn: self.target_group_arn(group)?,
                    attributes: attributes.clone(),
                };
                client.write(op, request, reason).await?;
            }
            // Listeners.
            ActionKind::ModifyListener(arn, settings) => {
                let request =
                    ModifyListener { arn: arn.clone(), spec: self.listener_spec(settings)? };
                client.write(op, request, reason).await?;
            }
            ActionKind::ModifyListenerAttributes(listener, attributes) => {
                let arn = self
                    .working_state
                    .listener_arn(listener)
                    .ok_or_else(missing_object)?;
                let request = ModifyListenerAttributes { arn, attributes: attributes.clone() };
                self.retry_if_not_found(client.write(op, request, reason).await)?;
            }
            ActionKind::AddListenerCertificate(listener, certificate) => {
                let arn = self
                    .working_state
                    .listener_arn(listener)
                    .ok_or_else(missing_object)?;
                let request =
                    AddListenerCertificates { arn, certificates: vec![certificate.clone()] };
                self.retry_if_not_found(client.write(op, request, reason).await)?;
            }
            ActionKind::RemoveListenerCertificate(arn, certificate) => {
                let certificates = vec![certificate.clone()];
                let request = RemoveListenerCertificates { arn: arn.clone(), certificates };
                client.write(op, request, reason).await?;
            }
            ActionKind::DeleteListener(arn) => {
                match client
                    .write(op, DeleteListener { arn: arn.clone() }, reason)
                    .await
                {
                    Err(error) if error.has_code("ListenerNotFound") => {}
                    result => result?,
                }
            }
            // Actions whose response has content, or that are no ELB requests.
            _ => {}
        }
        Ok(())
    }

    /// Turns "not found" into a retry while a new listener may not be visible yet. A listener that
    /// is not found for longer was deleted.
    fn retry_if_not_found(&self, result: Result<(), AwsError>) -> Result<(), ApplyStop> {
        let may_be_new = self.op.pending_for() <= EVENTUAL_CONSISTENCY_WINDOW;
        match result {
            Err(error) if error.has_code("ListenerNotFound") && may_be_new => {
                Err(not_visible_yet(error.to_string()))
            }
            result => Ok(result?),
        }
    }

    /// Creates a target group. If a group of that name exists already, from an interrupted sync or
    /// with other settings, adopts it if it belongs to the Service.
    async fn create_group(
        &mut self,
        key: ListenerKey,
        create: &CreateTargetGroup,
        reason: &str,
    ) -> Result<(), ApplyStop> {
        let group = match self
            .scope
            .client
            .write(self.op, create.clone(), reason)
            .await
        {
            Err(error) if error.has_code("DuplicateTargetGroupName") => {
                return self.adopt_target_group(key, &create.name).await;
            }
            response => response?,
        };
        // AWS returns an existing group with the same settings. Its tags and targets are unknown.
        if !group.load_balancers.is_empty() {
            return self.adopt_target_group(key, &create.name).await;
        }
        if self.adopt_unobserved_group(key, &create.name).await? {
            return Ok(());
        }
        self.working_state
            .target_group_created(key, group, &create.tags);
        Ok(())
    }

    /// Adds what AWS just returned for a new group to the working state as it is, if tags cannot be
    /// read: it may be an unused group of an earlier sync, which was not observed without them.
    /// Asks for a new plan if it has targets.
    async fn adopt_unobserved_group(
        &mut self,
        key: ListenerKey,
        name: &str,
    ) -> Result<bool, ApplyStop> {
        let owner = &self.desired.owner;
        if !self.observer.are_tags_unreadable(self.op, owner) {
            return Ok(false);
        }
        let found = self
            .observer
            .target_group_by_name(self.op, owner, name)
            .await?;
        let NamedTargetGroup::Owned(observed) = found else {
            return Ok(false);
        };
        let has_targets = observed
            .targets
            .as_ref()
            .is_some_and(|targets| !targets.is_empty());
        self.working_state.target_group_adopted(key, *observed);
        if has_targets {
            return Err(ApplyStop::Replan);
        }
        Ok(true)
    }

    /// Adds the existing group with this name to the working state, and asks for a new plan. A
    /// group that serves another load balancer cannot be adopted. The name of one that was handed
    /// over with its load balancer is reserved, so that the new plan chooses another.
    async fn adopt_target_group(&mut self, key: ListenerKey, name: &str) -> Result<(), ApplyStop> {
        let found = self
            .observer
            .target_group_by_name(self.op, &self.desired.owner, name)
            .await?;
        let observed = match found {
            NamedTargetGroup::Owned(observed) => *observed,
            NamedTargetGroup::HandedOver(reason) => {
                let reserved = &mut self.working_state.observed.reserved_group_names;
                return Err(match reserved.insert(name.into()) {
                    true => ApplyStop::Replan,
                    false => name_taken("target group", name, &reason).into(),
                });
            }
            // The name is taken by a group that is not visible yet, or that was just deleted.
            NamedTargetGroup::Absent => {
                return Err(not_visible_yet(format!("target group {name} is not visible yet")));
            }
        };
        let own_load_balancer = self.working_state.load_balancer_arn();
        let is_used_elsewhere = observed
            .resource
            .load_balancers
            .iter()
            .any(|arn| Some(arn) != own_load_balancer);
        if is_used_elsewhere {
            let text = format!("target group {name} serves another load balancer");
            return Err(CloudError::new(ErrorKind::Conflict, text).into());
        }
        self.working_state.target_group_adopted(key, observed);
        Err(ApplyStop::Replan)
    }

    /// Creates a listener. If a listener exists on its port already, reads all listeners and asks
    /// for a new plan.
    async fn create_listener(
        &mut self,
        settings: &ListenerSettings,
        reason: &str,
    ) -> Result<(), ApplyStop> {
        let load_balancer = self.load_balancer_arn()?;
        let spec = self.listener_spec(settings)?;
        let request = CreateListener {
            load_balancer: load_balancer.clone(),
            spec,
            tags: settings.tags.clone(),
        };
        match self.scope.client.write(self.op, request, reason).await {
            Err(error) if error.has_code("DuplicateListener") => {
                let port = settings.key.0.get();
                self.read_listeners(&load_balancer, port).await?;
                Err(ApplyStop::Replan)
            }
            response => {
                let listener = response?;
                self.working_state
                    .listener_created(listener, &settings.tags);
                Ok(())
            }
        }
    }

    /// Reads the listeners into the working state. One on `port` must be among them.
    async fn read_listeners(
        &mut self,
        load_balancer: &LoadBalancerArn,
        port: u16,
    ) -> Result<(), ApplyStop> {
        let listeners = self.observer.read_listeners(self.op, load_balancer).await?;
        let has_port = listeners
            .iter()
            .any(|listener| listener.resource.port == port);
        if !has_port {
            return Err(not_visible_yet(format!("listener {port} is not visible yet")));
        }
        if let Some(observed) = &mut self.working_state.observed.load_balancer {
            observed.listeners = listeners;
        }
        self.observer
            .read_missing(self.op, &self.desired.owner, &mut self.working_state.observed)
            .await?;
        Ok(())
    }

    /// Registers targets. Targets that AWS rejects are reported in an event and tried again later.
    async fn register(
        &mut self,
        group: &TargetGroupRef,
        targets: &[Target],
        reason: &str,
    ) -> Result<(), ApplyStop> {
        let arn = self.target_group_arn(group)?;
        let result = register(self.scope, self.op, &arn, targets, reason).await;
        // After an error it is unknown which targets are registered.
        if result.is_err()
            && let Some(group) = self.working_state.observed.group_mut(&arn)
        {
            group.targets = None;
        }
        let outcome = result?;
        self.working_state
            .targets_changed(&arn, &outcome.registered, &[]);
        if let Some((_, error)) = outcome.rejected.first() {
            let ids = first_target_ids(&outcome.rejected);
            let note = format!("{ids} cannot be registered with {arn}: {error}");
            self.op.event(EventType::Warning, "TargetsRefused", &note);
            let reason = format!("{} targets were rejected", outcome.rejected.len());
            self.deferred.push(Deferred {
                after: retry_delay::rejected_targets(self.op),
                reason: reason.into(),
            });
        }
        if let Some((left_out, error)) = outcome.target_group_full {
            let note = format!(
                "{} targets do not fit into {arn}, {} were registered",
                left_out.len(),
                outcome.registered.len()
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

    /// Deletes a target group. AWS may report it as in use for a while after its listener was
    /// changed, and indefinitely if somebody else uses it; the deletion is then deferred.
    async fn delete_group(
        &mut self,
        arn: &TargetGroupArn,
        action: &ActionKind,
        reason: &str,
    ) -> Result<(), ApplyStop> {
        match self
            .scope
            .client
            .write(self.op, DeleteTargetGroup { arn: arn.clone() }, reason)
            .await
        {
            Err(error) if error.has_code("ResourceInUse") => {
                self.deferred.push(Deferred {
                    after: retry_delay::object_in_use(self.op),
                    reason: format!("target group {arn} is still in use").into(),
                });
                return Ok(());
            }
            Err(error) if error.has_code("TargetGroupNotFound") => {}
            result => result?,
        }
        self.working_state.action_applied(action);
        Ok(())
    }

    /// Adds the security group rules that a load balancer with only these groups needs, if rules admit
    /// it by one of the groups that it is about to lose. Rules with networks admit it in any case.
    async fn admit_before_removal(&mut self, groups: &[SecurityGroupId]) -> Result<(), CloudError> {
        let Some(observed) = &self.working_state.observed.load_balancer else {
            return Ok(());
        };
        let current = &observed.resource.security_groups;
        let lost = current.iter().filter(|group| !groups.contains(group));
        let lost: Vec<SecurityGroupId> = lost.cloned().collect();
        if self
            .deps
            .security_groups
            .are_sources_of_rules(self.op, &lost)
            .await?
        {
            self.sync_security_group_rules(RuleSync::Add, Some(groups))
                .await?;
        }
        Ok(())
    }

    /// Adds missing security group rules, or removes those that are no longer desired. The load
    /// balancer's groups are taken to be `groups`, or those that it has.
    async fn sync_security_group_rules(
        &mut self,
        sync: RuleSync,
        groups: Option<&[SecurityGroupId]>,
    ) -> Result<(), CloudError> {
        let Some(observed) = &self.working_state.observed.load_balancer else {
            return Ok(());
        };
        let load_balancer = &observed.resource;
        let subnet_ids: Vec<_> = load_balancer
            .zones
            .iter()
            .filter_map(|zone| zone.subnet.clone())
            .collect();
        let subnets = self.deps.subnets(self.op, &subnet_ids).await?;
        let rule_request = RuleRequest {
            desired: self.desired,
            lb_name: &load_balancer.name,
            lb_groups: groups.unwrap_or(&load_balancer.security_groups),
            subnets: &subnets,
            instances: self.instances,
            pods: self.pods,
            is_comparison: false,
        };
        let security_groups = &self.deps.security_groups;
        match sync {
            RuleSync::Add => security_groups.add_rules(self.op, &rule_request).await,
            RuleSync::Remove => security_groups.remove_rules(self.op, &rule_request).await,
        }
    }

    fn load_balancer_arn(&self) -> Result<LoadBalancerArn, ApplyStop> {
        self.working_state
            .load_balancer_arn()
            .cloned()
            .ok_or_else(missing_object)
    }

    fn target_group_arn(&self, group: &TargetGroupRef) -> Result<TargetGroupArn, ApplyStop> {
        self.working_state
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

/// The direction in which security group rules are synchronized.
#[derive(Clone, Copy)]
enum RuleSync {
    /// Adds missing rules.
    Add,
    /// Removes rules that are no longer desired.
    Remove,
}

/// Returns a retry for an object that must exist and is not visible yet.
fn not_visible_yet(reason: String) -> ApplyStop {
    ApplyStop::RetryLater(Deferred { after: EVENTUAL_CONSISTENCY_DELAY, reason: reason.into() })
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

/// Returns the error for an object that an earlier action of the plan should have created.
fn missing_object() -> ApplyStop {
    ApplyStop::Failed(CloudError::transient(
        "an action of the plan refers to an object that no earlier action created",
    ))
}
