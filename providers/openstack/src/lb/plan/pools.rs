//! Plans the changes of a pool, its members and its health monitor.

use std::collections::{BTreeMap, BTreeSet};

use openstack_api::octavia::{
    HealthMonitor, HealthMonitorUpdate, LbAlgorithm, MemberCreate, MemberUpdate, Patch,
    PersistenceType, Pool, PoolUpdate, SessionPersistence,
};

use super::{ActionKind, PlanInput, PlannedAction};
use crate::lb::{
    body,
    desired_members::DesiredMember,
    model::{DesiredListener, DesiredPool},
    names,
    observed::ObservedMember,
};

/// Returns the update of a pool and which fields differ.
pub(super) fn differences(
    desired: &DesiredPool,
    observed: &Pool,
) -> Option<(PoolUpdate, Vec<&'static str>)> {
    let mut update = PoolUpdate::default();
    let mut why = Vec::new();
    if *desired.method != *observed.lb_algorithm.as_str() {
        update.lb_algorithm = Patch::Set(LbAlgorithm::from(&*desired.method));
        why.push("algorithm");
    }
    let by_source = observed
        .session_persistence
        .as_ref()
        .map(|found| found.kind == PersistenceType::SourceIp);
    match (desired.session_persistence, by_source) {
        (true, Some(true)) | (false, None) => {}
        (true, _) => {
            update.session_persistence = Patch::Set(SessionPersistence::SOURCE_IP);
            why.push("session affinity");
        }
        (false, Some(_)) => {
            update.session_persistence = Patch::Clear;
            why.push("session affinity");
        }
    }
    (!why.is_empty()).then_some((update, why))
}

/// Plans a listener's pool with members and monitor. `observed`: the existing pool, if there is
/// one.
pub(super) fn plan(
    input: &PlanInput<'_>,
    desired: &DesiredListener,
    members: &[DesiredMember],
    observed: Option<&Pool>,
) -> Vec<PlannedAction> {
    let mut steps = Vec::new();
    let fits = |pool: &&Pool| pool.protocol.as_str() == desired.pool.protocol.as_str();
    let kept = observed.filter(fits);
    let name = names::pool(desired.index, input.name);
    if let (Some(pool), None) = (observed, kept) {
        let why =
            format!("its protocol is {} and not {}", pool.protocol, desired.pool.protocol.as_str());
        steps.push(PlannedAction::new(ActionKind::DeletePool(pool.id.clone()), &*pool.name, why));
    }
    match kept {
        None => {
            let listener = input
                .listener_of(desired)
                .map(|listener| listener.id.clone());
            let body = Box::new(body::pool(desired, input.name));
            steps.push(PlannedAction::new(
                ActionKind::CreatePool(listener, body),
                name,
                "it is not there",
            ));
        }
        Some(pool) => {
            if let Some((update, why)) = differences(&desired.pool, pool) {
                let why = format!("differs: {}", why.join(", "));
                steps.push(PlannedAction::new(
                    ActionKind::UpdatePool(pool.id.clone(), Box::new(update)),
                    &*pool.name,
                    why,
                ));
            }
        }
    }
    steps.extend(plan_members(input, desired, members, kept));
    steps.extend(plan_monitor(input, desired, kept));
    steps
}

/// Plans the members of a pool.
pub(super) fn plan_members(
    input: &PlanInput<'_>,
    desired: &DesiredListener,
    members: &[DesiredMember],
    pool: Option<&Pool>,
) -> Vec<PlannedAction> {
    let observed: &[ObservedMember] = pool
        .and_then(|pool| input.observed.members.get(&pool.id))
        .map_or(&[], |members| members);
    let view = MemberDiff::new(input, members, observed);
    let object =
        pool.map_or_else(|| names::pool(desired.index, input.name), |pool| (&*pool.name).into());
    let Some(why) = view.reason() else {
        return Vec::new();
    };
    let id = pool.map(|pool| pool.id.clone());
    if input.serial_api_calls {
        return view
            .single_changes(input, id.as_deref())
            .into_iter()
            .map(|c| PlannedAction::new(c, object.clone(), &*why))
            .collect();
    }
    vec![PlannedAction::new(ActionKind::SetMembers(id, view.list(input)), object, why)]
}

/// Differences between the desired and observed members of a pool.
struct MemberDiff<'a> {
    desired: &'a [DesiredMember],
    observed: BTreeMap<(&'a str, u16), &'a ObservedMember>,
    keys: Vec<Box<str>>,
    missing: usize,
    surplus: usize,
    changed: usize,
    /// Members in another subnet than desired; the subnet of a member cannot be changed.
    in_wrong_subnet: BTreeSet<(Box<str>, u16)>,
}

impl<'a> MemberDiff<'a> {
    fn new(
        input: &PlanInput<'_>,
        desired: &'a [DesiredMember],
        seen: &'a [ObservedMember],
    ) -> Self {
        let observed: BTreeMap<_, _> = seen.iter().map(|member| (member.key(), member)).collect();
        let keys: Vec<Box<str>> = desired
            .iter()
            .map(|member| member.address.to_string().into())
            .collect();
        let there: BTreeSet<(&str, u16)> = keys
            .iter()
            .zip(desired)
            .map(|(key, member)| (&**key, member.port))
            .collect();
        let surplus = observed.keys().filter(|key| !there.contains(*key)).count();
        let mut missing = 0;
        let mut changed = 0;
        let mut in_wrong_subnet = BTreeSet::new();
        for (key, member) in keys.iter().zip(desired) {
            match observed.get(&(&**key, member.port)) {
                None => missing += 1,
                Some(found) => {
                    let elsewhere = input.exact_subnet.is_some()
                        && found.subnet.as_deref() != input.exact_subnet;
                    // Upstream sets no subnet for members that it creates one by one, and they
                    // serve.
                    let wrong_subnet =
                        elsewhere && !(input.serial_api_calls && found.subnet.is_none());
                    if wrong_subnet {
                        in_wrong_subnet.insert((key.clone(), member.port));
                    }
                    changed +=
                        usize::from(found.weight != 1 || found.monitor_port != member.monitor_port);
                }
            }
        }
        Self {
            desired,
            observed,
            keys,
            missing,
            surplus,
            changed,
            in_wrong_subnet,
        }
    }

    fn reason(&self) -> Option<String> {
        let counts = [
            (self.missing, "missing"),
            (self.surplus, "surplus"),
            (self.changed, "changed"),
            (self.in_wrong_subnet.len(), "in another subnet"),
        ];
        let parts: Vec<_> = counts
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| format!("{n} {what}"))
            .collect();
        (!parts.is_empty()).then(|| format!("members: {}", parts.join(", ")))
    }

    /// Returns the members that are deleted so that they can be created again in their subnet: half
    /// of the desired members at most, and none while others are missing, so that the rest can
    /// serve.
    fn members_to_recreate(&self) -> BTreeSet<&(Box<str>, u16)> {
        let most = if self.missing > 0 {
            0
        } else {
            self.in_wrong_subnet
                .len()
                .min(self.desired.len().div_ceil(2))
        };
        self.in_wrong_subnet.iter().take(most).collect()
    }

    /// Returns the complete list for a batch update.
    fn list(&self, input: &PlanInput<'_>) -> Vec<MemberCreate> {
        let to_recreate = self.members_to_recreate();
        let stays =
            |at: &usize| !to_recreate.contains(&(self.keys[*at].clone(), self.desired[*at].port));
        let body = |at: usize| {
            let member = &self.desired[at];
            let found = self.observed.get(&(&*self.keys[at], member.port));
            let subnet = found.map_or(input.subnet, |found| found.subnet.as_deref());
            MemberCreate {
                weight: found.filter(|found| found.weight != 1).map(|_| 1),
                ..body::member(member, subnet, false)
            }
        };
        (0..self.desired.len()).filter(stays).map(body).collect()
    }

    /// Returns the changes of single members. Missing ones are created first, so that there is
    /// always a member that serves.
    fn single_changes(&self, input: &PlanInput<'_>, pool: Option<&str>) -> Vec<ActionKind> {
        let mut changes = Vec::new();
        let mut updates = Vec::new();
        let mut there = BTreeSet::new();
        for (key, member) in self.keys.iter().zip(self.desired) {
            there.insert((&**key, member.port));
            match self.observed.get(&(&**key, member.port)) {
                None => {
                    let body = body::member(member, input.subnet, true);
                    changes.push(ActionKind::CreateMember(pool.map(Into::into), body));
                }
                Some(found) if found.weight != 1 || found.monitor_port != member.monitor_port => {
                    let update = MemberUpdate {
                        weight: Patch::Set(1),
                        monitor_port: member.monitor_port.map_or(Patch::Clear, Patch::Set),
                        ..MemberUpdate::default()
                    };
                    updates.extend(found.id.clone().map(|id| (id, update)));
                }
                Some(_) => {}
            }
        }
        let Some(pool) = pool else { return changes };
        changes.extend(
            updates
                .into_iter()
                .map(|(id, update)| ActionKind::UpdateMember(pool.into(), id, update)),
        );
        let to_recreate = self.members_to_recreate();
        let goes = |key: &(&str, u16)| {
            !there.contains(key) || to_recreate.contains(&(key.0.into(), key.1))
        };
        let gone = self
            .observed
            .iter()
            .filter(|(key, _)| goes(key))
            .filter_map(|(_, found)| found.id.clone());
        changes.extend(gone.map(|id| ActionKind::DeleteMember(pool.into(), id)));
        changes
    }
}

/// Plans the health monitor of a pool.
pub(super) fn plan_monitor(
    input: &PlanInput<'_>,
    desired: &DesiredListener,
    pool: Option<&Pool>,
) -> Vec<PlannedAction> {
    let observed = pool.and_then(|pool| input.observed.monitor_of(pool));
    // First, delete a monitor that is not desired.
    let Some(monitor) = &desired.pool.monitor else {
        let gone = |seen: &HealthMonitor| {
            PlannedAction::new(
                ActionKind::DeleteMonitor(seen.id.clone()),
                &*seen.name,
                "members are not to be checked",
            )
        };
        return observed.map(gone).into_iter().collect();
    };
    let mut steps = Vec::new();
    let name = names::monitor(desired.index, input.name);
    // Then replace one of another type, because the type cannot be changed.
    let kept = observed.filter(|seen| seen.kind.as_str() == monitor.kind.as_str());
    if let (Some(seen), None) = (observed, kept) {
        let why = format!("its type is {} and not {}", seen.kind, monitor.kind.as_str());
        steps.push(PlannedAction::new(
            ActionKind::DeleteMonitor(seen.id.clone()),
            &*seen.name,
            why,
        ));
    }
    // Finally, create the monitor, or update the fields that differ.
    let body = body::monitor(monitor, desired.index, input.name);
    match kept {
        None => {
            let change =
                ActionKind::CreateMonitor(pool.map(|pool| pool.id.clone()), Box::new(body));
            steps.push(PlannedAction::new(change, name, "it is not there"));
        }
        Some(seen) => {
            let differs =
                |wanted: &Option<String>, seen: &Option<String>| wanted.is_some() && wanted != seen;
            let text = |wanted: &Option<String>, seen: &Option<String>| match wanted {
                Some(wanted) if Some(wanted) != seen.as_ref() => Patch::Set(wanted.clone()),
                _ => Patch::Keep,
            };
            let down = body.max_retries_down.unwrap_or(seen.max_retries_down);
            let numbers = (body.delay, body.timeout, body.max_retries, down);
            let same = numbers
                == (seen.delay, seen.timeout, seen.max_retries, seen.max_retries_down)
                && !differs(&body.url_path, &seen.url_path)
                && !differs(&body.http_method, &seen.http_method)
                && !differs(&body.expected_codes, &seen.expected_codes);
            if !same {
                let update = HealthMonitorUpdate {
                    delay: Patch::Set(body.delay),
                    timeout: Patch::Set(body.timeout),
                    max_retries: Patch::Set(body.max_retries),
                    max_retries_down: Patch::Set(down),
                    url_path: text(&body.url_path, &seen.url_path),
                    http_method: text(&body.http_method, &seen.http_method),
                    expected_codes: text(&body.expected_codes, &seen.expected_codes),
                    ..HealthMonitorUpdate::default()
                };
                let change = ActionKind::UpdateMonitor(seen.id.clone(), Box::new(update));
                steps.push(PlannedAction::new(change, &*seen.name, "it differs"));
            }
        }
    }
    steps
}
