//! Plans the changes of a pool, its members and its health monitor.

use std::collections::{BTreeMap, BTreeSet};

use openstack_api::octavia::{
    HealthMonitorCreate, HealthMonitorUpdate, LbAlgorithm, MemberCreate, MemberUpdate, Patch,
    PersistenceType, PoolUpdate, SessionPersistence,
};

use super::{ActionKind, PlanInput, PlannedAction};
use crate::{
    api::octavia::{HealthMonitor, Pool},
    lb::{
        body::{self, MemberRequest},
        desired_members::DesiredMember,
        model::{DesiredListener, DesiredPool},
        names,
        observed::ObservedMember,
        ownership::with_requested_tags,
    },
};

/// Compares a pool with its desired state. Returns the update and the names of the fields that
/// differ, or `None` if nothing differs.
pub(super) fn diff_pool(
    desired: &DesiredPool,
    observed: &Pool,
) -> Option<(PoolUpdate, Vec<&'static str>)> {
    let mut update = PoolUpdate::default();
    let mut fields = Vec::new();
    let method = observed.lb_algorithm.as_ref();
    if method.is_some_and(|method| method.as_str() != &*desired.method) {
        update.lb_algorithm = Patch::Set(LbAlgorithm::from(&*desired.method));
        fields.push("algorithm");
    }
    let is_by_source = observed
        .session_persistence
        .as_ref()
        .is_some_and(|persistence| persistence.kind == PersistenceType::SourceIp);
    if desired.session_persistence && !is_by_source {
        update.session_persistence = Patch::Set(SessionPersistence::SOURCE_IP);
        fields.push("session affinity");
    } else if !desired.session_persistence && observed.session_persistence.is_some() {
        update.session_persistence = Patch::Clear;
        fields.push("session affinity");
    }
    let tags = with_requested_tags(observed.tags.clone(), &desired.tags);
    if tags != observed.tags {
        update.tags = Patch::Set(tags);
        fields.push("tags");
    }
    if fields.is_empty() {
        return None;
    }
    Some((update, fields))
}

/// Plans a listener's pool with members and monitor. `observed` is the existing pool, if there is
/// one.
pub(super) fn plan_pool(
    input: &PlanInput<'_>,
    desired: &DesiredListener,
    members: &[DesiredMember],
    observed: Option<&Pool>,
) -> Vec<PlannedAction> {
    let mut actions = Vec::new();
    let desired_protocol = desired.pool.protocol.as_str();
    let kept = match observed {
        None => {
            actions.push(create_pool(input, desired));
            None
        }
        // The protocol of a pool cannot be changed: a pool with another one is replaced.
        Some(pool) if pool.protocol.as_str() != desired_protocol => {
            let reason = format!("its protocol is {} and not {desired_protocol}", pool.protocol);
            let delete_pool = ActionKind::DeletePool(pool.id.clone());
            actions.push(PlannedAction::new(delete_pool, &*pool.name, reason));
            actions.push(create_pool(input, desired));
            None
        }
        Some(pool) => {
            if let Some((update, fields)) = diff_pool(&desired.pool, pool) {
                actions.push(PlannedAction::new(
                    ActionKind::UpdatePool(pool.id.clone(), Box::new(update)),
                    &*pool.name,
                    format!("differs: {}", fields.join(", ")),
                ));
            }
            Some(pool)
        }
    };
    actions.extend(plan_members(input, desired, members, kept));
    actions.extend(plan_monitor(input, desired, kept));
    actions
}

fn create_pool(input: &PlanInput<'_>, desired: &DesiredListener) -> PlannedAction {
    let listener = input
        .listener_of(desired)
        .map(|listener| listener.id.clone());
    let body = Box::new(body::pool(desired, input.name));
    PlannedAction::new(
        ActionKind::CreatePool(listener, body),
        names::pool(desired.index, input.name),
        "it does not exist",
    )
}

/// Plans the members of a pool.
pub(super) fn plan_members(
    input: &PlanInput<'_>,
    desired: &DesiredListener,
    members: &[DesiredMember],
    pool: Option<&Pool>,
) -> Vec<PlannedAction> {
    let mut object = names::pool(desired.index, input.name);
    let mut observed: &[ObservedMember] = &[];
    if let Some(pool) = pool {
        object = pool.name.as_str().into();
        observed = input.observed.members_of(pool);
    }
    let diff = MemberDiff::new(input, members, observed);
    let Some(reason) = diff.describe() else {
        return Vec::new();
    };
    let pool_id = pool.map(|pool| pool.id.clone());
    if !input.serial_api_calls {
        let set_members = ActionKind::SetMembers(pool_id, diff.batch_members(input));
        return vec![PlannedAction::new(set_members, object, reason)];
    }
    diff.single_member_actions(input, pool_id.as_deref())
        .into_iter()
        .map(|change| PlannedAction::new(change, object.clone(), &*reason))
        .collect()
}

/// The address and port of a member, which are unique in a pool.
type MemberKey<'a> = (&'a str, u16);

/// Differences between the desired and observed members of a pool.
struct MemberDiff<'a> {
    desired: &'a [DesiredMember],
    observed: BTreeMap<MemberKey<'a>, &'a ObservedMember>,
    /// Addresses of the desired members as text.
    addresses: Vec<Box<str>>,
    missing: usize,
    surplus: usize,
    changed: usize,
    /// Members in another subnet than desired. They have to be created again, because the subnet of
    /// a member cannot be changed.
    in_wrong_subnet: BTreeSet<MemberKey<'a>>,
}

impl<'a> MemberDiff<'a> {
    fn new(
        input: &PlanInput<'_>,
        desired: &'a [DesiredMember],
        observed: &'a [ObservedMember],
    ) -> Self {
        let mut diff = Self {
            desired,
            observed: observed
                .iter()
                .map(|member| (member.key(), member))
                .collect(),
            addresses: desired
                .iter()
                .map(|member| member.address.to_string().into())
                .collect(),
            missing: 0,
            surplus: 0,
            changed: 0,
            in_wrong_subnet: BTreeSet::new(),
        };
        let desired_keys = diff.desired_keys();
        diff.surplus = diff
            .observed
            .keys()
            .filter(|key| !desired_keys.contains(*key))
            .count();
        for (address, member) in diff.addresses.iter().zip(desired) {
            let Some(found) = diff.observed.get(&(&**address, member.port)) else {
                diff.missing += 1;
                continue;
            };
            if is_in_wrong_subnet(input, found) {
                diff.in_wrong_subnet.insert(found.key());
            }
            if is_changed(member, found) {
                diff.changed += 1;
            }
        }
        diff
    }

    fn desired_keys(&self) -> BTreeSet<MemberKey<'_>> {
        self.addresses
            .iter()
            .zip(self.desired)
            .map(|(address, member)| (&**address, member.port))
            .collect()
    }

    /// Describes the differences, or returns `None` if there are none.
    fn describe(&self) -> Option<String> {
        let counts = [
            (self.missing, "missing"),
            (self.surplus, "surplus"),
            (self.changed, "changed"),
            (self.in_wrong_subnet.len(), "in another subnet"),
        ];
        let parts: Vec<_> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, difference)| format!("{count} {difference}"))
            .collect();
        if parts.is_empty() {
            return None;
        }
        Some(format!("members: {}", parts.join(", ")))
    }

    /// Chooses the members to delete, so that the next plan creates them again in their subnet.
    /// These are at most half of the members, and none while others are missing, so that enough
    /// members serve.
    fn members_to_recreate(&self) -> BTreeSet<MemberKey<'a>> {
        let max_recreated = if self.missing > 0 {
            0
        } else {
            self.desired.len().div_ceil(2)
        };
        self.in_wrong_subnet
            .iter()
            .take(max_recreated)
            .copied()
            .collect()
    }

    /// Builds the complete list of members for a batch update.
    fn batch_members(&self, input: &PlanInput<'_>) -> Vec<MemberCreate> {
        let to_recreate = self.members_to_recreate();
        let mut bodies = Vec::new();
        for (address, member) in self.addresses.iter().zip(self.desired) {
            let key = (&**address, member.port);
            if to_recreate.contains(&key) {
                continue;
            }
            let body = match self.observed.get(&key) {
                None => body::member(member, input.subnet, MemberRequest::Batch),
                Some(found) => MemberCreate {
                    // A weight that somebody changed is set back explicitly, whatever Octavia does
                    // with a field that is left out. Without a change, the default of 1 is enough.
                    weight: (found.weight != 1).then_some(1),
                    ..body::member(member, found.subnet.as_deref(), MemberRequest::Batch)
                },
            };
            bodies.push(body);
        }
        bodies
    }

    /// Plans one action for each member that differs. Missing members are created first, so that
    /// there is always a member that serves.
    fn single_member_actions(&self, input: &PlanInput<'_>, pool: Option<&str>) -> Vec<ActionKind> {
        let mut creations = Vec::new();
        let mut updates = Vec::new();
        for (address, member) in self.addresses.iter().zip(self.desired) {
            let Some(found) = self.observed.get(&(&**address, member.port)) else {
                let body = body::member(member, input.subnet, MemberRequest::Single);
                creations.push(ActionKind::CreateMember(pool.map(Into::into), body));
                continue;
            };
            // After a batch update, the IDs of the members are not known. A member is then updated
            // once it has been read again.
            if is_changed(member, found)
                && let Some(id) = &found.id
            {
                let update = MemberUpdate {
                    weight: Patch::Set(1),
                    monitor_port: member.monitor_port.map_or(Patch::Clear, Patch::Set),
                    ..MemberUpdate::default()
                };
                updates.push((id.clone(), update));
            }
        }
        let mut changes = creations;
        let Some(pool) = pool else { return changes };
        for (id, update) in updates {
            changes.push(ActionKind::UpdateMember(pool.into(), id, update));
        }
        for id in self.ids_to_delete() {
            changes.push(ActionKind::DeleteMember(pool.into(), id));
        }
        changes
    }

    /// Returns the IDs of members that are surplus or have to be created again.
    fn ids_to_delete(&self) -> Vec<Box<str>> {
        let desired_keys = self.desired_keys();
        let to_recreate = self.members_to_recreate();
        let mut ids = Vec::new();
        for (key, found) in &self.observed {
            if !desired_keys.contains(key) || to_recreate.contains(key) {
                ids.extend(found.id.clone());
            }
        }
        ids
    }
}

/// Returns true if members may have to be deleted because they are in another subnet than the one that
/// is set.
pub(in crate::lb) fn has_members_in_wrong_subnet(input: &PlanInput<'_>) -> bool {
    let mut members = input.observed.members.values().flatten();
    members.any(|member| is_in_wrong_subnet(input, member))
}

/// Returns true if a member is in another subnet than the one that is set. Members that
/// cloud-provider-openstack created one by one have no subnet. They serve, so they stay.
fn is_in_wrong_subnet(input: &PlanInput<'_>, observed: &ObservedMember) -> bool {
    if input.exact_subnet.is_none() || (input.serial_api_calls && observed.subnet.is_none()) {
        return false;
    }
    observed.subnet.as_deref() != input.exact_subnet
}

/// Returns true if a member differs in a field that can be updated.
fn is_changed(desired: &DesiredMember, observed: &ObservedMember) -> bool {
    observed.weight != 1 || observed.monitor_port != desired.monitor_port
}

/// Plans the health monitor of a pool.
pub(super) fn plan_monitor(
    input: &PlanInput<'_>,
    desired: &DesiredListener,
    pool: Option<&Pool>,
) -> Vec<PlannedAction> {
    let observed = pool.and_then(|pool| input.observed.monitor_of(pool));
    let mut actions = Vec::new();
    let Some(desired_monitor) = &desired.pool.monitor else {
        if let Some(monitor) = observed {
            let reason = "health checks are disabled";
            let delete_monitor = ActionKind::DeleteMonitor(monitor.id.clone());
            actions.push(PlannedAction::new(delete_monitor, &*monitor.name, reason));
        }
        return actions;
    };
    let desired_kind = desired_monitor.kind.as_str();
    let body = body::monitor(desired_monitor, desired.index, input.name);
    match observed {
        None => actions.push(create_monitor(input, desired, pool, body)),
        // The type of a monitor cannot be changed: a monitor of another type is replaced.
        Some(monitor) if monitor.kind.as_str() != desired_kind => {
            let reason = format!("its type is {} and not {desired_kind}", monitor.kind);
            let delete_monitor = ActionKind::DeleteMonitor(monitor.id.clone());
            actions.push(PlannedAction::new(delete_monitor, &*monitor.name, reason));
            actions.push(create_monitor(input, desired, pool, body));
        }
        Some(monitor) => {
            if let Some(update) = diff_monitor(&body, monitor) {
                actions.push(PlannedAction::new(
                    ActionKind::UpdateMonitor(monitor.id.clone(), Box::new(update)),
                    &*monitor.name,
                    "it differs",
                ));
            }
        }
    }
    actions
}

fn create_monitor(
    input: &PlanInput<'_>,
    desired: &DesiredListener,
    pool: Option<&Pool>,
    body: HealthMonitorCreate,
) -> PlannedAction {
    let pool_id = pool.map(|pool| pool.id.clone());
    PlannedAction::new(
        ActionKind::CreateMonitor(pool_id, Box::new(body)),
        names::monitor(desired.index, input.name),
        "it does not exist",
    )
}

/// Compares a monitor with its desired state. Returns the update, or `None` if nothing differs. The
/// update contains all numbers, but texts only if they differ.
fn diff_monitor(
    desired: &HealthMonitorCreate,
    observed: &HealthMonitor,
) -> Option<HealthMonitorUpdate> {
    let max_retries_down = desired.max_retries_down.or(observed.max_retries_down);
    let url_path = diff_text(desired.url_path.as_ref(), observed.url_path.as_ref());
    let http_method = diff_text(desired.http_method.as_ref(), observed.http_method.as_ref());
    let expected_codes =
        diff_text(desired.expected_codes.as_ref(), observed.expected_codes.as_ref());
    if is_same(desired.delay, observed.delay)
        && is_same(desired.timeout, observed.timeout)
        && is_same(desired.max_retries, observed.max_retries)
        && (max_retries_down == observed.max_retries_down || observed.max_retries_down.is_none())
        && url_path.is_keep()
        && http_method.is_keep()
        && expected_codes.is_keep()
    {
        return None;
    }
    Some(HealthMonitorUpdate {
        delay: Patch::Set(desired.delay),
        timeout: Patch::Set(desired.timeout),
        max_retries: Patch::Set(desired.max_retries),
        max_retries_down: max_retries_down.map_or(Patch::Keep, Patch::Set),
        url_path,
        http_method,
        expected_codes,
        ..HealthMonitorUpdate::default()
    })
}

/// Compares a number. One that Octavia does not show counts as the desired one, because an update
/// would not change what is seen.
fn is_same<T: Copy + PartialEq>(desired: T, observed: Option<T>) -> bool {
    observed.is_none_or(|observed| observed == desired)
}

/// Compares a text field. It stays as it is if no text is desired.
fn diff_text(desired: Option<&String>, observed: Option<&String>) -> Patch<String> {
    match desired {
        Some(text) if desired != observed => Patch::Set(text.clone()),
        _ => Patch::Keep,
    }
}
