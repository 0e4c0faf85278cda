//! Security groups.

use crate::api::neutron::{
    Direction, EtherType, SecurityGroup, SecurityGroupCreate, SecurityGroupRule,
    SecurityGroupUpdate,
};

use super::{
    Resource,
    common::{owner, standard, touch},
    quotas::{self, Quotable},
};
use crate::state::{ApiError, CloudState, RequestContext, new_id};

/// Name of the default group of each project.
const DEFAULT: &str = "default";

/// Returns the groups that the user may see, with their rules.
pub fn list(state: &CloudState, ctx: &RequestContext) -> Vec<SecurityGroup> {
    let mut rules = std::collections::BTreeMap::<&str, Vec<SecurityGroupRule>>::new();
    for rule in state.neutron.security_group_rules.iter() {
        rules
            .entry(&rule.security_group_id)
            .or_default()
            .push(SecurityGroupRule::clone(rule));
    }
    let rows = state
        .neutron
        .security_groups
        .iter()
        .filter(|group| ctx.sees(&group.standard.project_id));
    rows.map(|row| SecurityGroup {
        security_group_rules: rules.remove(&*row.id).unwrap_or_default(),
        ..SecurityGroup::clone(row)
    })
    .collect()
}

/// Returns one with its rules.
///
/// # Errors
/// It does not exist, or the user may not see it.
pub fn show(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<SecurityGroup, ApiError> {
    let row = get(state, ctx, id)?;
    let rules = state
        .neutron
        .security_group_rules
        .iter()
        .filter(|rule| rule.security_group_id == id);
    Ok(SecurityGroup {
        security_group_rules: rules.map(|rule| SecurityGroupRule::clone(rule)).collect(),
        ..row.clone()
    })
}

pub(super) fn get<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'s SecurityGroup, ApiError> {
    let row = state
        .neutron
        .security_groups
        .get(id)
        .filter(|group| ctx.sees(&group.standard.project_id));
    row.map(|row| &**row)
        .ok_or_else(|| Resource::SecurityGroup.not_found(id))
}

/// Returns the ID of the default group of a project, if the project was used before.
pub fn default_of(state: &CloudState, project: &str) -> Option<String> {
    let mut groups = state.neutron.security_groups.iter();
    groups
        .find(|group| group.standard.project_id == project && group.name == DEFAULT)
        .map(|group| group.id.clone())
}

/// Returns the ID of the default group of a project; creates the group if it does not exist.
pub fn ensure_default(state: &mut CloudState, ctx: &RequestContext, project: &str) -> String {
    if let Some(id) = default_of(state, project) {
        return id;
    }
    let id =
        put(state, ctx, project, DEFAULT.into(), Some("Default security group".into()), None, true);
    for ethertype in [EtherType::Ipv4, EtherType::Ipv6] {
        let rule = SecurityGroupRule {
            direction: Direction::Ingress,
            ethertype,
            remote_group_id: Some(id.clone()),
            ..new_rule(ctx, project, &id, true)
        };
        state.neutron.security_group_rules.put(rule);
    }
    id
}

/// Creates one that admits all outgoing traffic.
///
/// # Errors
/// The name is `default`; the quota is used up.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    request: SecurityGroupCreate,
) -> Result<SecurityGroup, ApiError> {
    let project = owner(ctx, request.project_id)?;
    ensure_default(state, ctx, &project);
    let name = request.name.unwrap_or_default();
    if name == DEFAULT {
        return Err(ApiError::conflict(
            "SecurityGroupDefaultAlreadyExists",
            "Default security group already exists.",
        ));
    }
    quotas::check(state, &project, Quotable::SecurityGroup, 1)?;
    quotas::check(state, &project, Quotable::SecurityGroupRule, 2)?;
    let stateful = request.stateful.unwrap_or(true);
    let id = put(state, ctx, &project, name, request.description, request.tags, stateful);
    show(state, ctx, &id)
}

fn put(
    state: &mut CloudState,
    ctx: &RequestContext,
    project: &str,
    name: String,
    description: Option<String>,
    tags: Option<Vec<String>>,
    stateful: bool,
) -> String {
    let id = new_id();
    let is_default = name == DEFAULT;
    state.neutron.security_groups.put(SecurityGroup {
        id: id.clone(),
        name,
        stateful: Some(stateful),
        shared: Some(false),
        security_group_rules: Vec::new(),
        standard: standard(ctx, project.to_owned(), description, tags),
    });
    for ethertype in [EtherType::Ipv4, EtherType::Ipv6] {
        let rule = SecurityGroupRule { ethertype, ..new_rule(ctx, project, &id, is_default) };
        state.neutron.security_group_rules.put(rule);
    }
    id
}

/// Returns a new rule that admits all outgoing traffic.
pub(super) fn new_rule(
    ctx: &RequestContext,
    project: &str,
    group: &str,
    is_default: bool,
) -> SecurityGroupRule {
    SecurityGroupRule {
        id: new_id(),
        security_group_id: group.to_owned(),
        direction: Direction::Egress,
        belongs_to_default_sg: Some(is_default),
        standard: standard(ctx, project.to_owned(), None, None),
        ..SecurityGroupRule::default()
    }
}

/// Changes one.
///
/// # Errors
/// It does not exist; the default group would be renamed, or another group would get its name.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    request: SecurityGroupUpdate,
) -> Result<SecurityGroup, ApiError> {
    let row = get(state, ctx, id)?;
    if let Some(name) = request.name.as_ref().filter(|name| **name != row.name) {
        if row.name == DEFAULT {
            return Err(ApiError::conflict(
                "SecurityGroupCannotUpdateDefault",
                "Updating default security group not allowed.",
            ));
        }
        if name == DEFAULT {
            return Err(ApiError::conflict(
                "SecurityGroupDefaultAlreadyExists",
                "Default security group already exists.",
            ));
        }
    }
    if request
        .stateful
        .is_some_and(|stateful| Some(stateful) != row.stateful)
    {
        check_unused(state, id)?;
    }
    state.neutron.security_groups.update(id, |row| {
        let before = row.clone();
        row.name = request.name.unwrap_or_else(|| row.name.clone());
        row.stateful = request.stateful.or(row.stateful);
        if let Some(description) = request.description {
            row.standard.description = description;
        }
        if *row != before {
            touch(ctx, &mut row.standard);
        }
    });
    show(state, ctx, id)
}

/// Deletes one with its rules, and the rules of other groups that refer to it.
///
/// # Errors
/// It does not exist, a port uses it, or it is a default group and the user is not an
/// administrator.
pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    let row = get(state, ctx, id)?;
    if row.name == DEFAULT && !ctx.admin {
        return Err(ApiError::conflict(
            "SecurityGroupCannotRemoveDefault",
            "Insufficient rights for removing default security group.",
        ));
    }
    check_unused(state, id)?;
    let rules = state.neutron.security_group_rules.iter();
    let rules = rules
        .filter(|rule| rule.security_group_id == id || rule.remote_group_id.as_deref() == Some(id));
    for rule in rules.map(|rule| rule.id.clone()).collect::<Vec<_>>() {
        state.neutron.security_group_rules.remove(&rule);
    }
    state.neutron.security_groups.remove(id);
    Ok(())
}

fn check_unused(state: &CloudState, id: &str) -> Result<(), ApiError> {
    if state
        .neutron
        .ports
        .iter()
        .any(|port| port.security_groups.iter().any(|group| group == id))
    {
        return Err(ApiError::conflict(
            "SecurityGroupInUse",
            format!("Security Group {id} in use."),
        ));
    }
    Ok(())
}
