//! Carries out a plan: each step is one request, and the picture of what there is follows each answer.

use std::time::Duration;

use ccm_core::provider::{CloudError, ErrorKind, EventKind, Op, Progress};

use super::{
    delete::wait,
    effect::Picture,
    model::{ListenerKey, Wanted},
    observe::Observer,
    plan::{Action, GroupRef, ListenerSettings, Step, SubnetChange},
    pods::Pods,
    register::{Registered, register},
    security::Exposure,
    surroundings::Surroundings,
};
use crate::{
    api::{
        AwsError, InstanceId, LoadBalancerArn, SecurityGroupId, TargetGroupArn,
        elb::{
            AddElbTags, AddListenerCertificates, CreateListener, CreateTargetGroup, DeleteListener, DeleteTargetGroup,
            DeregisterTargets, ListenerSpec, ModifyListener, ModifyListenerAttributes, ModifyLoadBalancerAttributes,
            ModifyTargetGroup, ModifyTargetGroupAttributes, RemoveElbTags, RemoveListenerCertificates,
            SetIpAddressType, SetSecurityGroups, SetSubnets, Target,
        },
    },
    client,
    scope::Scope,
};

/// When to go on after AWS did not know a thing that was there a moment ago: what was just made shows after seconds.
const SETTLES: Duration = Duration::from_secs(2);
/// After this time what was made is there for everybody.
const SHOWS: Duration = Duration::from_secs(20);

/// How far a plan was carried out.
#[derive(Debug)]
pub(super) enum Halt {
    /// The picture was not complete: it is better now, and has to be planned again.
    Replan,
    /// Not now; the picture holds. The rest may be done then.
    Later(Duration, Box<str>),
    /// It failed. The picture may not hold any more.
    Failed(CloudError),
}

impl From<CloudError> for Halt {
    fn from(error: CloudError) -> Self {
        // Nothing was sent.
        if let Some(after) = client::turn_after(&error) {
            return Self::Later(after, error.to_string().into());
        }
        // AWS does not know what was there a moment ago. It is not known what there is; the next look tells.
        match error.kind() {
            ErrorKind::NotFound => Self::Failed(transient(error)),
            _ => Self::Failed(error),
        }
    }
}

impl From<AwsError> for Halt {
    fn from(error: AwsError) -> Self {
        CloudError::from(error).into()
    }
}

fn transient(error: CloudError) -> CloudError {
    CloudError::transient(error.to_string()).with_retry_after(SETTLES).with_source(error)
}

/// Carries out a plan for one Service.
pub(super) struct Applier<'a> {
    pub(super) scope: &'a Scope,
    pub(super) observer: &'a Observer,
    pub(super) surroundings: &'a Surroundings,
    pub(super) op: &'a Op,
    pub(super) wanted: &'a Wanted,
    pub(super) instances: &'a [InstanceId],
    pub(super) pods: &'a Pods,
    pub(super) picture: &'a mut Picture,
    /// What could not be done and does not keep the rest from being done: when to try again, and what is waited for.
    pub(super) left: Vec<(Duration, Box<str>)>,
    /// Targets for which there is no room.
    pub(super) no_room: Option<CloudError>,
}

impl Applier<'_> {
    /// Carries out a plan.
    ///
    /// # Errors
    /// Where it was broken off; what was done before is done.
    pub(super) async fn apply(&mut self, steps: &[Step]) -> Result<(), Halt> {
        for step in steps {
            self.step(step).await?;
        }
        Ok(())
    }

    /// Carries out a plan for members: out, then rules if they are to be opened, then in. Returns why there can be no rules
    /// for some nodes, which keep no others out.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub(super) async fn members(&mut self, steps: &[Step], opens: bool) -> Result<Option<CloudError>, Halt> {
        let (into, out): (Vec<_>, Vec<_>) =
            steps.iter().partition(|step| matches!(step.action, Action::RegisterTargets(..)));
        for step in out {
            self.step(step).await?;
        }
        let refused = match if opens { self.rules(true).await } else { Ok(()) } {
            Ok(()) => None,
            Err(error) if error.kind().is_refusal() => Some(error),
            Err(error) => return Err(error.into()),
        };
        for step in into {
            self.step(step).await?;
        }
        Ok(refused)
    }

    async fn step(&mut self, step: &Step) -> Result<(), Halt> {
        let why = &*step.why;
        // Whatever becomes of the request: what it sets is ours to take off again.
        let tags = step.action.tags().into_iter().flat_map(|tags| tags.keys().cloned());
        self.picture.observed.recorded_tags.extend(tags);
        match &step.action {
            Action::CreateLoadBalancer(create) => {
                let made = self.scope.client.write(self.op, (**create).clone(), why).await;
                let made = made.inspect_err(|error| self.note_failure(error));
                self.picture.made_balancer(made?, &create.tags);
            }
            Action::CreateTargetGroup(key, create) => return self.create_group(*key, create, why).await,
            Action::CreateListener(settings) => return self.create_listener(settings, why).await,
            Action::RegisterTargets(group, targets) => return self.register(group, targets, why).await,
            Action::DeregisterTargets(arn, targets) => {
                let request = DeregisterTargets { arn: arn.clone(), targets: targets.clone() };
                self.scope.client.write(self.op, request, why).await?;
                self.picture.note_targets(arn, &[], targets);
            }
            Action::DeleteTargetGroup(arn) => return self.delete_group(arn, &step.action, why).await,
            Action::OpenSecurityGroups => self.rules(true).await?,
            Action::CloseSecurityGroups => self.rules(false).await?,
            Action::ReleaseSecurityGroups(groups) => {
                let progress = self.surroundings.security.detached(self.op, &self.wanted.owner, groups).await?;
                match progress {
                    Progress::Pending { after, why } => self.left.push((after, why)),
                    Progress::Done => self.picture.note(&step.action),
                }
            }
            action => {
                self.change(action, why).await?;
                self.picture.note(action);
            }
        }
        Ok(())
    }

    fn note_failure(&self, error: &AwsError) {
        if ["SubnetNotFound", "InvalidSubnet", "InvalidSubnetID.NotFound"].iter().any(|code| error.is(code)) {
            self.surroundings.vpc.forget();
        }
    }

    /// Changes that answer nothing.
    // length: one table of requests
    async fn change(&mut self, action: &Action, why: &str) -> Result<(), Halt> {
        let (client, op) = (&self.scope.client, self.op);
        match action {
            Action::SetIpAddressType(ip_address_type) => {
                let request = SetIpAddressType { arn: self.balancer()?, ip_address_type: *ip_address_type };
                client.write(op, request, why).await?;
            }
            Action::SetSubnets(change) => {
                let SubnetChange { subnets, ipv6_source_nat, ip_address_type, removes } = change.clone();
                let request = SetSubnets { arn: self.balancer()?, subnets, ipv6_source_nat, ip_address_type };
                let set = client.write(op, request, why).await;
                set.inspect_err(|error| self.note_failure(error))?;
                if removes {
                    op.event(EventKind::Warning, "LoadBalancerSubnetsRemoved", why);
                }
            }
            Action::SetSecurityGroups(groups, rules) => {
                let (arn, groups) = (self.balancer()?, groups.clone());
                client.write(op, SetSecurityGroups { arn, groups, private_link_rules: *rules }, why).await?;
            }
            Action::ModifyLoadBalancerAttributes(attributes) => {
                let request = ModifyLoadBalancerAttributes { arn: self.balancer()?, attributes: attributes.clone() };
                client.write(op, request, why).await?;
            }
            Action::AddTags(arns, tags) => {
                client.write(op, AddElbTags { arns: arns.clone(), tags: tags.clone() }, why).await?;
            }
            Action::RemoveTags(arns, keys) => {
                client.write(op, RemoveElbTags { arns: arns.clone(), keys: keys.clone() }, why).await?;
            }
            Action::ModifyTargetGroup(arn, check) => {
                let request = ModifyTargetGroup { arn: arn.clone(), health_check: check.clone() };
                let modified = client.write(op, request, why).await;
                if modified.as_ref().is_err_and(|error| error.is("InvalidConfigurationRequest")) {
                    self.picture.observed.frozen.insert(arn.clone());
                    return Err(Halt::Replan);
                }
                modified?;
            }
            Action::ModifyTargetGroupAttributes(group, attributes) => {
                let request = ModifyTargetGroupAttributes { arn: self.group(group)?, attributes: attributes.clone() };
                client.write(op, request, why).await?;
            }
            Action::ModifyListener(arn, settings) => {
                let request = ModifyListener { arn: arn.clone(), spec: self.listener_spec(settings)? };
                client.write(op, request, why).await?;
            }
            Action::ModifyListenerAttributes(listener, attributes) => {
                let arn = self.picture.listener(listener).ok_or_else(missing)?;
                let request = ModifyListenerAttributes { arn, attributes: attributes.clone() };
                self.settled(client.write(op, request, why).await)?;
            }
            Action::AddListenerCertificate(listener, certificate) => {
                let arn = self.picture.listener(listener).ok_or_else(missing)?;
                let request = AddListenerCertificates { arn, certificates: vec![certificate.clone()] };
                self.settled(client.write(op, request, why).await)?;
            }
            Action::RemoveListenerCertificate(arn, certificate) => {
                let certificates = vec![certificate.clone()];
                let request = RemoveListenerCertificates { arn: arn.clone(), certificates };
                client.write(op, request, why).await?;
            }
            Action::DeleteListener(arn) => {
                let deleted = client.write(op, DeleteListener { arn: arn.clone() }, why).await;
                if !deleted.as_ref().is_err_and(|error| error.is("ListenerNotFound")) {
                    deleted?;
                }
            }
            // Those that answer something, or are not requests of ours.
            _ => {}
        }
        Ok(())
    }

    /// A listener that was just made may not be found for a while. One that is not found for longer is gone.
    fn settled(&self, result: Result<(), AwsError>) -> Result<(), Halt> {
        let soon = self.op.pending_for() <= SHOWS;
        match result {
            Err(error) if error.is("ListenerNotFound") && soon => Err(Halt::Later(SETTLES, error.to_string().into())),
            result => Ok(result?),
        }
    }

    /// Makes a group. One that has its name already, from a run that broke off or had other settings, is taken over if it
    /// is the Service's.
    async fn create_group(&mut self, key: ListenerKey, create: &CreateTargetGroup, why: &str) -> Result<(), Halt> {
        let made = self.scope.client.write(self.op, create.clone(), why).await;
        if made.as_ref().is_err_and(|error| error.is("DuplicateTargetGroupName")) {
            return self.take_group(key, &create.name).await;
        }
        let group = made?;
        if !group.load_balancers.is_empty() {
            // AWS answered one that was there, with the same settings: what else it has is not known.
            return self.take_group(key, &create.name).await;
        }
        self.picture.made_group(key, group, &create.tags);
        Ok(())
    }

    /// Takes over a group that has the name of a new one. One that serves somebody else's balancer is in use.
    async fn take_group(&mut self, key: ListenerKey, name: &str) -> Result<(), Halt> {
        let found = self.observer.group_named(self.op, &self.wanted.owner, name).await?;
        // Its name is taken and it does not show yet, or not any more.
        let Some(seen) = found else {
            return Err(Halt::Later(SETTLES, format!("target group {name} does not show").into()));
        };
        if seen.group.load_balancers.iter().any(|arn| Some(arn) != self.picture.balancer()) {
            let text = format!("target group {name} serves another load balancer");
            return Err(CloudError::new(ErrorKind::Conflict, text).into());
        }
        self.picture.found_group(key, seen);
        Err(Halt::Replan)
    }

    async fn create_listener(&mut self, settings: &ListenerSettings, why: &str) -> Result<(), Halt> {
        let balancer = self.balancer()?;
        let spec = self.listener_spec(settings)?;
        let request = CreateListener { load_balancer: balancer.clone(), spec, tags: settings.tags.clone() };
        let made = self.scope.client.write(self.op, request, why).await;
        if made.as_ref().is_err_and(|error| error.is("DuplicateListener")) {
            let listeners = self.observer.listeners(self.op, &balancer).await?;
            let port = settings.key.0.get();
            if !listeners.iter().any(|seen| seen.listener.port == port) {
                return Err(Halt::Later(SETTLES, format!("listener {} does not show", settings.key.0).into()));
            }
            if let Some(seen) = &mut self.picture.observed.balancer {
                seen.listeners = listeners;
            }
            self.observer.complete(self.op, &self.wanted.owner, &mut self.picture.observed).await?;
            return Err(Halt::Replan);
        }
        self.picture.made_listener(made?, &settings.tags);
        Ok(())
    }

    async fn register(&mut self, group: &GroupRef, targets: &[Target], why: &str) -> Result<(), Halt> {
        let arn = self.group(group)?;
        let registered = register(self.scope, self.op, &arn, targets, why).await;
        let Registered { done, refused, no_room } = registered.inspect_err(|_| {
            // It is not known which of them are registered now.
            if let Some(seen) = self.picture.observed.group_mut(&arn) {
                seen.targets = None;
            }
        })?;
        self.picture.note_targets(&arn, &done, &[]);
        if let Some((_, error)) = refused.first() {
            let names: Vec<_> = refused.iter().take(10).map(|(target, _)| &*target.id).collect();
            let more = refused.len().saturating_sub(names.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let note = format!("{}{more} cannot be registered with {arn}: {error}", names.join(", "));
            self.op.event(EventKind::Warning, "TargetsRefused", &note);
            let why = format!("{} targets are refused", refused.len());
            self.left.push((self.op.pending_for().clamp(REFUSED.0, REFUSED.1), why.into()));
        }
        if let Some((left_out, error)) = no_room {
            let note = format!("{} targets do not fit into {arn}, {} do", left_out.len(), done.len());
            let quota = CloudError::from(error);
            self.no_room = Some(
                CloudError::new(ErrorKind::QuotaExceeded, note)
                    .with_reason(quota.reason().unwrap_or("AWSQuotaExceeded"))
                    .with_source(quota),
            );
        }
        Ok(())
    }

    /// A group that a listener left a moment ago may count as in use for a while; one that somebody else uses, for ever.
    async fn delete_group(&mut self, arn: &TargetGroupArn, action: &Action, why: &str) -> Result<(), Halt> {
        let deleted = self.scope.client.write(self.op, DeleteTargetGroup { arn: arn.clone() }, why).await;
        if deleted.as_ref().is_err_and(|error| error.is("ResourceInUse")) {
            self.left.push((wait(self.op), format!("target group {arn} is still in use").into()));
            return Ok(());
        }
        if !deleted.as_ref().is_err_and(|error| error.is("TargetGroupNotFound")) {
            deleted?;
        }
        self.picture.note(action);
        Ok(())
    }

    async fn rules(&mut self, open: bool) -> Result<(), CloudError> {
        let Some(seen) = &self.picture.observed.balancer else { return Ok(()) };
        let (name, groups): (&str, &[SecurityGroupId]) = (&seen.balancer.name, &seen.balancer.security_groups);
        let ids: Vec<_> = seen.balancer.zones.iter().filter_map(|zone| zone.subnet.clone()).collect();
        let subnets = self.surroundings.subnets(self.op, &ids).await?;
        let exposure = Exposure {
            wanted: self.wanted,
            lb_name: name,
            lb_groups: groups,
            subnets: &subnets,
            instances: self.instances,
            pods: self.pods,
        };
        if open {
            self.surroundings.security.open(self.op, &exposure).await
        } else {
            self.surroundings.security.close(self.op, &exposure).await
        }
    }

    fn balancer(&self) -> Result<LoadBalancerArn, Halt> {
        self.picture.balancer().cloned().ok_or_else(missing)
    }

    fn group(&self, group: &GroupRef) -> Result<TargetGroupArn, Halt> {
        self.picture.group(group).ok_or_else(missing)
    }

    fn listener_spec(&self, settings: &ListenerSettings) -> Result<ListenerSpec, Halt> {
        Ok(ListenerSpec {
            port: settings.key.0,
            protocol: settings.key.1,
            target_group: self.group(&settings.group)?,
            certificate: settings.certificate.clone(),
            ssl_policy: settings.ssl_policy.clone(),
            alpn_policy: settings.alpn_policy.clone(),
        })
    }
}

/// When to try refused targets again: an instance that is starting is refused until it runs.
pub(super) const REFUSED: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(300));

/// A plan makes what its later steps need.
fn missing() -> Halt {
    Halt::Failed(CloudError::transient("a step of the plan needs what an earlier one should have made"))
}
