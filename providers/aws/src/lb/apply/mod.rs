//! Applies a plan: each action is one request, and the working state is updated after each
//! response.

pub(in crate::lb) mod delete;
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
            SetIpAddressType, SetSecurityGroups, SetSubnets, Target,
        },
    },
    client,
    lb::{
        apply::{
            delete::wait,
            register::{RegisterOutcome, register},
            working_state::WorkingState,
        },
        deps::LoadBalancerDeps,
        model::{DesiredLoadBalancer, ListenerKey},
        observe::Observer,
        plan::{ActionKind, ListenerSettings, PlannedAction, SubnetChange, TargetGroupRef},
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

/// Why a plan was not applied to its end.
#[derive(Debug)]
pub(in crate::lb) enum ApplyStop {
    /// The working state was incomplete. It has been updated, and the plan must be made again.
    Replan,
    /// The rest must wait for this long; the working state is valid.
    RetryAfter(Duration, Box<str>),
    /// It failed. The working state may be invalid.
    Failed(CloudError),
}

impl From<CloudError> for ApplyStop {
    fn from(error: CloudError) -> Self {
        // Nothing was sent.
        if let Some(after) = client::rate_limit_delay(&error) {
            return Self::RetryAfter(after, error.to_string().into());
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
    /// Deferred actions that do not hold up the others: the delay before the next try, and the
    /// reason.
    pub(in crate::lb) deferred: Vec<(Duration, Box<str>)>,
    /// The error for targets that do not fit into a full target group.
    pub(in crate::lb) target_group_full: Option<CloudError>,
}

impl Applier<'_> {
    /// Applies a plan.
    ///
    /// # Errors
    /// Why it stopped. The actions before that are applied.
    pub(in crate::lb) async fn apply(&mut self, steps: &[PlannedAction]) -> Result<(), ApplyStop> {
        for step in steps {
            self.apply_action(step).await?;
        }
        Ok(())
    }

    /// Applies a plan for targets: deregistrations first, then missing security group rules if
    /// `opens`, and registrations last. If some rules are rejected, all targets are registered
    /// nevertheless, and the rejection is returned.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub(in crate::lb) async fn apply_targets(
        &mut self,
        steps: &[PlannedAction],
        opens: bool,
    ) -> Result<Option<CloudError>, ApplyStop> {
        let (into, out): (Vec<_>, Vec<_>) = steps
            .iter()
            .partition(|step| matches!(step.action, ActionKind::RegisterTargets(..)));
        for step in out {
            self.apply_action(step).await?;
        }
        let refused = match if opens {
            self.sync_security_groups(true).await
        } else {
            Ok(())
        } {
            Ok(()) => None,
            Err(error) if error.kind().is_rejection() => Some(error),
            Err(error) => return Err(error.into()),
        };
        for step in into {
            self.apply_action(step).await?;
        }
        Ok(refused)
    }

    async fn apply_action(&mut self, step: &PlannedAction) -> Result<(), ApplyStop> {
        let why = &*step.reason;
        // Whatever the outcome of the request: the tags that it sets are ours to remove later.
        let tags = step
            .action
            .tags()
            .into_iter()
            .flat_map(|tags| tags.keys().cloned());
        self.working.observed.removable_tag_keys.extend(tags);
        // Then send the request, and update the working state from the response.
        match &step.action {
            ActionKind::CreateLoadBalancer(create) => {
                let response = self
                    .scope
                    .client
                    .write(self.op, (**create).clone(), why)
                    .await;
                let made = response.inspect_err(|error| self.record_failure(error));
                self.working.load_balancer_created(made?, &create.tags);
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
                return self.delete_group(arn, &step.action, why).await;
            }
            ActionKind::AddSecurityGroupRules => self.sync_security_groups(true).await?,
            ActionKind::RemoveSecurityGroupRules => self.sync_security_groups(false).await?,
            ActionKind::CleanUpSecurityGroups(groups) => {
                let progress = self
                    .deps
                    .security_groups
                    .clean_up_detached(self.op, &self.desired.owner, groups)
                    .await?;
                match progress {
                    Progress::Pending { after, why } => self.deferred.push((after, why)),
                    Progress::Done => self.working.action_applied(&step.action),
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
        let soon = self.op.pending_for() <= EVENTUAL_CONSISTENCY_WINDOW;
        match result {
            Err(error) if error.has_code("ListenerNotFound") && soon => {
                Err(ApplyStop::RetryAfter(EVENTUAL_CONSISTENCY_DELAY, error.to_string().into()))
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
        let Some(seen) = found else {
            return Err(ApplyStop::RetryAfter(
                EVENTUAL_CONSISTENCY_DELAY,
                format!("target group {name} does not show").into(),
            ));
        };
        if seen
            .group
            .load_balancers
            .iter()
            .any(|arn| Some(arn) != self.working.load_balancer_arn())
        {
            let text = format!("target group {name} serves another load balancer");
            return Err(CloudError::new(ErrorKind::Conflict, text).into());
        }
        self.working.target_group_adopted(key, seen);
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
                return Err(ApplyStop::RetryAfter(
                    EVENTUAL_CONSISTENCY_DELAY,
                    format!("listener {} does not show", settings.key.0).into(),
                ));
            }
            if let Some(seen) = &mut self.working.observed.load_balancer {
                seen.listeners = listeners;
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
        let registered = register(self.scope, self.op, &arn, targets, why).await;
        let RegisterOutcome { done, rejected: refused, target_group_full: no_room } = registered
            .inspect_err(|_| {
                // It is unknown which of them are registered now.
                if let Some(observed) = self.working.observed.group_mut(&arn) {
                    observed.targets = None;
                }
            })?;
        self.working.targets_changed(&arn, &done, &[]);
        if let Some((_, error)) = refused.first() {
            let names: Vec<_> = refused
                .iter()
                .take(10)
                .map(|(target, _)| &*target.id)
                .collect();
            let more = refused.len().saturating_sub(names.len());
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            let note =
                format!("{}{more} cannot be registered with {arn}: {error}", names.join(", "));
            self.op.event(EventType::Warning, "TargetsRefused", &note);
            let why = format!("{} targets are refused", refused.len());
            self.deferred.push((
                self.op
                    .pending_for()
                    .clamp(REJECTED_TARGET_RETRY.0, REJECTED_TARGET_RETRY.1),
                why.into(),
            ));
        }
        if let Some((left_out, error)) = no_room {
            let note =
                format!("{} targets do not fit into {arn}, {} do", left_out.len(), done.len());
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
            self.deferred
                .push((wait(self.op), format!("target group {arn} is still in use").into()));
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

    async fn sync_security_groups(&mut self, open: bool) -> Result<(), CloudError> {
        let Some(seen) = &self.working.observed.load_balancer else {
            return Ok(());
        };
        let (name, groups): (&str, &[SecurityGroupId]) =
            (&seen.load_balancer.name, &seen.load_balancer.security_groups);
        let ids: Vec<_> = seen
            .load_balancer
            .zones
            .iter()
            .filter_map(|zone| zone.subnet.clone())
            .collect();
        let subnets = self.deps.subnets(self.op, &ids).await?;
        let rule_request = RuleRequest {
            desired: self.desired,
            lb_name: name,
            lb_groups: groups,
            subnets: &subnets,
            instances: self.instances,
            pods: self.pods,
        };
        if open {
            self.deps
                .security_groups
                .add_rules(self.op, &rule_request)
                .await
        } else {
            self.deps
                .security_groups
                .remove_rules(self.op, &rule_request)
                .await
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

/// Minimum and maximum delay before rejected targets are tried again: an instance that is starting
/// is rejected until it runs.
pub(in crate::lb) const REJECTED_TARGET_RETRY: (Duration, Duration) =
    (Duration::from_secs(15), Duration::from_secs(300));

/// The error for an object that an earlier action of the plan should have created.
fn missing_object() -> ApplyStop {
    ApplyStop::Failed(CloudError::transient(
        "a step of the plan needs what an earlier one should have made",
    ))
}
