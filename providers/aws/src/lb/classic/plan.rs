//! Plans the changes of a classic load balancer. Pure.
//!
//! Only differences are sent. What upstream sends at each sync although nothing differs (attributes,
//! policies, tags) is compared instead.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::provider::PlannedChange;

use crate::{
    api::{
        SecurityGroupId, SubnetId, Tags,
        classic::{
            AddClassicTags, AttachClassicSubnets, ClassicAccessLog, ClassicAttributes,
            ClassicDraining, ClassicListener, ClassicLoadBalancer, ConfigureClassicHealthCheck,
            CreateClassic, CreateClassicListeners, CreateClassicPolicy, DeleteClassicListeners,
            DetachClassicSubnets, ModifyClassicAttributes, SetClassicBackendPolicies,
            SetClassicListenerPolicies, SetClassicSecurityGroups,
        },
    },
    lb::classic::model::{DEFAULT_IDLE_TIMEOUT, DesiredClassic},
    ownership_tags::{Cluster, SERVICE_TAG},
};

/// Upstream's name of the policy for proxy protocol.
pub(super) const PROXY_POLICY: &str = "k8s-proxyprotocol-enabled";
/// Upstream's prefix of the names of TLS policies.
const TLS_POLICY_PREFIX: &str = "k8s-SSLNegotiationPolicy-";

/// An existing classic load balancer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ObservedClassic {
    pub(super) resource: ClassicLoadBalancer,
    /// `None` if IAM does not allow to read them. They are not compared then.
    pub(super) tags: Option<Tags>,
    /// `None` if IAM does not allow to read them. They are not compared then.
    pub(super) attributes: Option<ClassicAttributes>,
}

/// Facts from the VPC that a plan needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClassicPlanInput {
    /// The desired security groups; `None` leaves the groups as they are.
    pub(super) groups: Option<Vec<SecurityGroupId>>,
    /// The desired subnets.
    pub(super) subnets: Vec<SubnetId>,
    /// Zones of the desired and of the current subnets.
    pub(super) zones: BTreeMap<SubnetId, Box<str>>,
    /// AWS' defaults for the settings of the access log that the Service does not ask for any more.
    pub(super) removed_log_settings: ClassicAccessLog,
}

/// One request that changes a load balancer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ClassicAction {
    SetSecurityGroups(SetClassicSecurityGroups),
    AttachSubnets(AttachClassicSubnets),
    DetachSubnets(DetachClassicSubnets),
    DeleteListeners(DeleteClassicListeners),
    CreateListeners(CreateClassicListeners),
    CreatePolicy(CreateClassicPolicy),
    SetBackendPolicies(SetClassicBackendPolicies),
    SetListenerPolicies(SetClassicListenerPolicies),
    ConfigureHealthCheck(ConfigureClassicHealthCheck),
    ModifyAttributes(ModifyClassicAttributes),
    AddTags(AddClassicTags),
}

impl ClassicAction {
    /// Returns the reason, for the log of mutations and for shadow mode.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::SetSecurityGroups(_) => "security groups differ",
            Self::AttachSubnets(_) => "subnets are missing",
            Self::DetachSubnets(_) => "subnets are not desired",
            Self::DeleteListeners(_) => "listeners are not desired",
            Self::CreateListeners(_) => "listeners are missing",
            Self::CreatePolicy(_) => "a policy is missing",
            Self::SetBackendPolicies(_) => "proxy protocol differs",
            Self::SetListenerPolicies(_) => "the TLS policy differs",
            Self::ConfigureHealthCheck(_) => "the health check differs",
            Self::ModifyAttributes(_) => "attributes differ",
            Self::AddTags(_) => "tags are missing",
        }
    }

    fn operation(&self) -> &'static str {
        match self {
            Self::SetSecurityGroups(_) => "ApplySecurityGroupsToLoadBalancer",
            Self::AttachSubnets(_) => "AttachLoadBalancerToSubnets",
            Self::DetachSubnets(_) => "DetachLoadBalancerFromSubnets",
            Self::DeleteListeners(_) => "DeleteLoadBalancerListeners",
            Self::CreateListeners(_) => "CreateLoadBalancerListeners",
            Self::CreatePolicy(_) => "CreateLoadBalancerPolicy",
            Self::SetBackendPolicies(_) => "SetLoadBalancerPoliciesForBackendServer",
            Self::SetListenerPolicies(_) => "SetLoadBalancerPoliciesOfListener",
            Self::ConfigureHealthCheck(_) => "ConfigureHealthCheck",
            Self::ModifyAttributes(_) => "ModifyLoadBalancerAttributes",
            Self::AddTags(_) => "AddTags",
        }
    }

    /// Describes the action for shadow mode.
    pub(super) fn describe(&self, name: &str) -> PlannedChange {
        PlannedChange {
            operation: self.operation().into(),
            object: name.into(),
            reason: self.reason().into(),
        }
    }
}

/// Plans the creation of a load balancer. What AWS sets only afterwards is planned by [`changes`].
pub(super) fn creation(
    desired: &DesiredClassic,
    cluster: &Cluster,
    groups: &[SecurityGroupId],
    subnets: &[SubnetId],
) -> CreateClassic {
    let mut tags = desired.extra_tags.clone();
    tags.insert(SERVICE_TAG.into(), desired.owner.key().into());
    tags.extend(cluster.tags());
    CreateClassic {
        name: desired.name.clone(),
        scheme: desired.scheme,
        subnets: subnets.to_vec(),
        security_groups: groups.to_vec(),
        listeners: desired.listeners.clone(),
        tags,
    }
}

/// Returns a load balancer as it is after its creation: with AWS' defaults for everything else.
pub(super) fn created(request: &CreateClassic, dns_name: Box<str>) -> ObservedClassic {
    let listener = |listener: &ClassicListener| crate::api::classic::ObservedClassicListener {
        listener: listener.clone(),
        policies: Vec::new(),
    };
    ObservedClassic {
        resource: ClassicLoadBalancer {
            name: request.name.clone(),
            dns_name,
            scheme: Some(request.scheme),
            subnets: request.subnets.clone(),
            security_groups: request.security_groups.clone(),
            listeners: request.listeners.iter().map(listener).collect(),
            ..ClassicLoadBalancer::default()
        },
        tags: Some(request.tags.clone()),
        attributes: Some(ClassicAttributes::default()),
    }
}

/// Plans all changes of an existing load balancer, in the order in which they are made.
pub(super) fn changes(
    desired: &DesiredClassic,
    input: &ClassicPlanInput,
    observed: &ObservedClassic,
) -> Vec<ClassicAction> {
    let mut actions = Vec::new();
    actions.extend(security_groups(desired, input, observed));
    subnets(desired, input, observed, &mut actions);
    listeners(desired, observed, &mut actions);
    proxy_protocol(desired, observed, &mut actions);
    tls_policies(desired, observed, &mut actions);
    if observed
        .resource
        .health_check
        .as_ref()
        .is_none_or(|check| !is_same_check(check, &desired.health_check))
    {
        actions.push(ClassicAction::ConfigureHealthCheck(ConfigureClassicHealthCheck {
            name: desired.name.clone(),
            check: desired.health_check.clone(),
        }));
    }
    let attributes = observed.attributes.as_ref();
    let desired_attributes = with_removed_log_settings(desired, &input.removed_log_settings);
    let attributes = attributes.map(|observed| different_attributes(&desired_attributes, observed));
    if let Some(attributes) = attributes.filter(|it| *it != ClassicAttributes::default()) {
        let name = desired.name.clone();
        actions.push(ClassicAction::ModifyAttributes(ModifyClassicAttributes { name, attributes }));
    }
    if let Some(observed) = &observed.tags {
        let mut tags = desired.extra_tags.clone();
        tags.retain(|key, value| observed.get(key) != Some(value));
        if !tags.is_empty() {
            let name = desired.name.clone();
            actions.push(ClassicAction::AddTags(AddClassicTags { name, tags }));
        }
    }
    actions
}

fn security_groups(
    desired: &DesiredClassic,
    input: &ClassicPlanInput,
    observed: &ObservedClassic,
) -> Option<ClassicAction> {
    let groups = input.groups.as_ref()?;
    let wanted: BTreeSet<_> = groups.iter().collect();
    let current: BTreeSet<_> = observed.resource.security_groups.iter().collect();
    (wanted != current).then(|| {
        ClassicAction::SetSecurityGroups(SetClassicSecurityGroups {
            name: desired.name.clone(),
            groups: groups.clone(),
        })
    })
}

/// Plans the changes of subnets. AWS takes one subnet per zone and never none at all, so that subnets
/// in new zones are attached first, and those that take another's place last.
fn subnets(
    desired: &DesiredClassic,
    input: &ClassicPlanInput,
    observed: &ObservedClassic,
    actions: &mut Vec<ClassicAction>,
) {
    let current = &observed.resource.subnets;
    let zone = |id: &SubnetId| input.zones.get(id);
    let missing = input.subnets.iter().filter(|id| !current.contains(id));
    let (replacing, new): (Vec<_>, Vec<_>) = missing
        .cloned()
        .partition(|id| zone(id).is_some() && current.iter().any(|other| zone(other) == zone(id)));
    let mut surplus = current.clone();
    surplus.retain(|id| !input.subnets.contains(id));
    let name = || desired.name.clone();
    let attach =
        |subnets| ClassicAction::AttachSubnets(AttachClassicSubnets { name: name(), subnets });
    if !new.is_empty() {
        actions.push(attach(new));
    }
    if !surplus.is_empty() {
        let detach = DetachClassicSubnets { name: name(), subnets: surplus };
        actions.push(ClassicAction::DetachSubnets(detach));
    }
    if !replacing.is_empty() {
        actions.push(attach(replacing));
    }
}

/// Plans the changes of listeners. AWS cannot change one, so that it is replaced. A surplus listener
/// on a port that is not needed goes last.
fn listeners(
    desired: &DesiredClassic,
    observed: &ObservedClassic,
    actions: &mut Vec<ClassicAction>,
) {
    let current = &observed.resource.listeners;
    let exists = |wanted: &ClassicListener| {
        current
            .iter()
            .any(|it| is_same_listener(&it.listener, wanted))
    };
    let missing: Vec<_> = desired
        .listeners
        .iter()
        .filter(|wanted| !exists(wanted))
        .cloned()
        .collect();
    let surplus = current.iter().map(|it| &it.listener).filter(|listener| {
        let mut wanted = desired.listeners.iter();
        !wanted.any(|wanted| is_same_listener(listener, wanted))
    });
    let (conflicting, other): (Vec<u16>, Vec<u16>) = surplus
        .map(|listener| listener.port)
        .partition(|port| missing.iter().any(|wanted| wanted.port == *port));
    let name = || desired.name.clone();
    let delete =
        |ports| ClassicAction::DeleteListeners(DeleteClassicListeners { name: name(), ports });
    if !conflicting.is_empty() {
        actions.push(delete(conflicting));
    }
    if !missing.is_empty() {
        let create = CreateClassicListeners { name: name(), listeners: missing };
        actions.push(ClassicAction::CreateListeners(create));
    }
    if !other.is_empty() {
        actions.push(delete(other));
    }
}

/// Returns true if AWS would not distinguish two listeners.
fn is_same_listener(a: &ClassicListener, b: &ClassicListener) -> bool {
    let is_same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
    let certificate = |listener: &ClassicListener| listener.certificate.clone().unwrap_or_default();
    a.port == b.port
        && a.instance_port == b.instance_port
        && is_same(&a.protocol, &b.protocol)
        && is_same(&a.instance_protocol, &b.instance_protocol)
        && is_same(&certificate(a), &certificate(b))
}

/// Plans proxy protocol: each instance port of a listener has the policy or not. Other policies of
/// the port stay. A port without listener loses its policies, which would come back with the port.
fn proxy_protocol(
    desired: &DesiredClassic,
    observed: &ObservedClassic,
    actions: &mut Vec<ClassicAction>,
) {
    let used: BTreeSet<u16> = desired
        .listeners
        .iter()
        .map(|listener| listener.instance_port)
        .collect();
    let backends = &observed.resource.backends;
    let all: BTreeSet<u16> = backends
        .iter()
        .map(|backend| backend.instance_port)
        .collect();
    let mut changes = Vec::new();
    for port in used.union(&all) {
        let backend = backends
            .iter()
            .find(|backend| backend.instance_port == *port);
        let current = backend.map_or(&[][..], |backend| &backend.policies);
        let is_enabled = current.iter().any(|policy| &**policy == PROXY_POLICY);
        let policies = if !used.contains(port) {
            Vec::new()
        } else if is_enabled == desired.proxy_protocol {
            continue;
        } else {
            let others = current.iter().filter(|policy| &***policy != PROXY_POLICY);
            let own = desired.proxy_protocol.then(|| PROXY_POLICY.into());
            others.cloned().chain(own).collect()
        };
        if current != policies {
            changes.push(ClassicAction::SetBackendPolicies(SetClassicBackendPolicies {
                name: desired.name.clone(),
                instance_port: *port,
                policies,
            }));
        }
    }
    let needs_policy = desired.proxy_protocol && !changes.is_empty();
    if needs_policy && !has_policy(observed, PROXY_POLICY) {
        actions.push(ClassicAction::CreatePolicy(CreateClassicPolicy {
            name: desired.name.clone(),
            policy: PROXY_POLICY.into(),
            kind: "ProxyProtocolPolicyType".into(),
            attribute: ("ProxyProtocol".into(), "true".into()),
        }));
    }
    actions.extend(changes);
}

/// Plans the TLS policy of each TLS listener, if the Service names one.
fn tls_policies(
    desired: &DesiredClassic,
    observed: &ObservedClassic,
    actions: &mut Vec<ClassicAction>,
) {
    let Some(reference) = &desired.tls_policy else {
        return;
    };
    let policy: Box<str> = format!("{TLS_POLICY_PREFIX}{reference}").into();
    let mut changes = Vec::new();
    for wanted in &desired.listeners {
        let current = observed
            .resource
            .listeners
            .iter()
            .find(|it| is_same_listener(&it.listener, wanted));
        let has_it = current.is_some_and(|it| *it.policies == [policy.clone()]);
        if wanted.certificate.is_some() && !has_it {
            changes.push(ClassicAction::SetListenerPolicies(SetClassicListenerPolicies {
                name: desired.name.clone(),
                port: wanted.port,
                policies: vec![policy.clone()],
            }));
        }
    }
    if !changes.is_empty() && !has_policy(observed, &policy) {
        actions.push(ClassicAction::CreatePolicy(CreateClassicPolicy {
            name: desired.name.clone(),
            policy,
            kind: "SSLNegotiationPolicyType".into(),
            attribute: ("Reference-Security-Policy".into(), reference.clone()),
        }));
    }
    actions.extend(changes);
}

fn has_policy(observed: &ObservedClassic, name: &str) -> bool {
    let mut policies = observed.resource.policies.iter();
    policies.any(|policy| **policy == *name)
}

/// Returns true if two health checks are the same. AWS may show the protocol in another case.
fn is_same_check(
    a: &crate::api::classic::ClassicHealthCheck,
    b: &crate::api::classic::ClassicHealthCheck,
) -> bool {
    let split = |target: &str| {
        let (protocol, rest) = target.split_once(':').unwrap_or(("", target));
        (protocol.to_ascii_uppercase(), rest.to_owned())
    };
    split(&a.target) == split(&b.target)
        && (a.interval, a.timeout, a.healthy, a.unhealthy)
            == (b.interval, b.timeout, b.healthy, b.unhealthy)
}

/// Returns the desired attributes, with defaults for the settings of an access log that the Service asked
/// for before.
fn with_removed_log_settings(
    desired: &DesiredClassic,
    removed: &ClassicAccessLog,
) -> ClassicAttributes {
    let mut attributes = desired.attributes.clone();
    if let Some(log) = &mut attributes.access_log {
        log.prefix = log.prefix.take().or_else(|| removed.prefix.clone());
        log.interval = log.interval.or(removed.interval);
    }
    attributes
}

/// Returns the desired attributes that differ. A part that the Service does not name is not compared:
/// upstream leaves it out, too.
fn different_attributes(
    desired: &ClassicAttributes,
    observed: &ClassicAttributes,
) -> ClassicAttributes {
    let mut log = observed.access_log.clone().unwrap_or_default();
    // No prefix and an empty one are the same.
    log.prefix.get_or_insert_default();
    let draining = observed.draining.clone().unwrap_or_default();
    let is_log_different = |desired: &ClassicAccessLog| {
        let settings = differs(desired.interval.as_ref(), log.interval.as_ref())
            || differs(desired.bucket.as_ref(), log.bucket.as_ref())
            || differs(desired.prefix.as_ref(), log.prefix.as_ref());
        desired.enabled != log.enabled || (desired.enabled && settings)
    };
    let is_draining_different = |desired: &ClassicDraining| {
        desired.enabled != draining.enabled
            || (desired.enabled && differs(desired.timeout.as_ref(), draining.timeout.as_ref()))
    };
    let idle_timeout = observed.idle_timeout.unwrap_or(DEFAULT_IDLE_TIMEOUT);
    let cross_zone = observed.cross_zone.unwrap_or_default();
    ClassicAttributes {
        access_log: desired.access_log.clone().filter(is_log_different),
        draining: desired.draining.clone().filter(is_draining_different),
        idle_timeout: desired.idle_timeout.filter(|it| *it != idle_timeout),
        cross_zone: desired.cross_zone.filter(|it| *it != cross_zone),
    }
}

fn differs<T: PartialEq>(desired: Option<&T>, observed: Option<&T>) -> bool {
    desired.is_some() && desired != observed
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
