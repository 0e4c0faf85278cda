//! Operating statuses: what the sockets report, and what follows for the resources above.

use std::collections::BTreeMap;

use crate::api::octavia::{
    ListenerStatus, LoadBalancerStatus, MemberStatus, MonitorStatus, OperatingStatus, PoolStatus,
    ProvisioningStatus, Stats, StatusTree, Statuses,
};

use super::{
    dataplane_config,
    pools::listeners_of,
    rows::{CountersRow, ListenerRow, LoadBalancerRow, MemberRow, PoolRow},
    settings::Settings,
};
use crate::state::CloudState;

/// A report of the sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By listener.
    pub listeners: BTreeMap<String, ListenerReport>,
    /// By member.
    pub members: BTreeMap<String, MemberReport>,
}

/// State of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerReport {
    /// True when it accepts connections; false when its port could not be opened.
    pub open: bool,
    /// True when the connection limit is reached.
    pub full: bool,
    /// Counters since the process started.
    pub stats: Stats,
}

/// Health of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberReport {
    /// Passes its checks.
    Up,
    /// Fails them.
    Down,
    /// Was not checked yet, or is not checked at all.
    Unknown,
}

impl MemberReport {
    fn up(self) -> Option<bool> {
        match self {
            Self::Up => Some(true),
            Self::Down => Some(false),
            Self::Unknown => None,
        }
    }
}

impl Report {
    /// Returns whether the rows have all of this already.
    pub(super) fn is_known(&self, state: &CloudState) -> bool {
        let rows = &state.octavia;
        let listeners = self.listeners.iter().all(|(id, said)| {
            rows.listeners
                .get(id)
                .is_none_or(|row| (row.open, row.full) == (Some(said.open), said.full))
                && rows
                    .counters
                    .get(id)
                    .map_or(Stats::default(), |row| row.since)
                    == said.stats
        });
        listeners
            && self
                .members
                .iter()
                .all(|(id, said)| rows.members.get(id).is_none_or(|row| row.up == said.up()))
    }
}

/// Stores what the sockets report. Only rows that changed are written; what is not mentioned stays
/// as it was.
pub fn report(state: &mut CloudState, report: &Report) {
    let mut changed = std::collections::BTreeSet::new();
    for (id, said) in &report.listeners {
        let Some(row) = state.octavia.listeners.get(id) else {
            continue;
        };
        if (row.open, row.full) != (Some(said.open), said.full) {
            changed.insert(row.load_balancer().to_owned());
            state
                .octavia
                .listeners
                .update(id, |row| (row.open, row.full) = (Some(said.open), said.full));
        }
        count(state, id, said.stats);
    }
    for (id, said) in &report.members {
        let Some(row) = state.octavia.members.get(id) else {
            continue;
        };
        let up = said.up();
        if row.up != up {
            if let Some(pool) = state.octavia.pools.get(&row.pool) {
                changed.insert(pool.load_balancer().to_owned());
            }
            state.octavia.members.update(id, |row| row.up = up);
        }
    }
    for id in changed {
        refresh(state, &id);
    }
}

/// Stores counters. The process counts from zero, so a smaller number means a new process.
fn count(state: &mut CloudState, listener: &str, stats: Stats) {
    let old = state.octavia.counters.get(listener);
    if old.map_or(Stats::default(), |row| row.since) == stats {
        return;
    }
    let before = match old {
        None => Stats::default(),
        Some(row)
            if stats.total_connections < row.since.total_connections
                || stats.bytes_in < row.since.bytes_in =>
        {
            Stats { active_connections: 0, ..row.total() }
        }
        Some(row) => row.before,
    };
    state
        .octavia
        .counters
        .put(CountersRow { listener: listener.to_owned(), before, since: stats });
}

/// Updates the operating status of a load balancer and its children, unless a change is in
/// progress or has failed: then it works, or does not, as before.
pub(super) fn refresh(state: &mut CloudState, id: &str) {
    let Some(lb) = state.octavia.load_balancers.get(id).cloned() else {
        return;
    };
    let status = &lb.body.provisioning_status;
    if status.is_pending() || *status == ProvisioningStatus::Error {
        return;
    }
    let assumed = !Settings::of(state).reported || dataplane_config::carried(&lb.body).is_none();
    let mut pools = BTreeMap::new();
    for pool in &lb.body.pools {
        if let Some(status) = refresh_pool(state, &pool.id, assumed) {
            pools.insert(pool.id.clone(), status);
        }
    }
    let mut worst = OperatingStatus::Online;
    let mut awaited = false;
    for listener in &lb.body.listeners {
        let Some(row) = state.octavia.listeners.get(&listener.id).cloned() else {
            continue;
        };
        awaited |= row.body.admin_state_up && row.open.is_none() && !assumed;
        let pool = row
            .body
            .default_pool_id
            .as_ref()
            .and_then(|pool| pools.get(pool));
        let status = listener_status(&row, pool, assumed);
        worst = worse(worst, &status);
        if row.body.operating_status != status {
            state
                .octavia
                .listeners
                .update(&listener.id, |row| row.body.operating_status = status);
        }
    }
    // Until all sockets have reported, the address is not usable.
    let status = if lb.body.admin_state_up && !awaited {
        worst
    } else {
        OperatingStatus::Offline
    };
    if lb.body.operating_status != status {
        state
            .octavia
            .load_balancers
            .update(id, |row| row.body.operating_status = status);
    }
}

fn refresh_pool(state: &mut CloudState, id: &str, assumed: bool) -> Option<OperatingStatus> {
    let pool = state.octavia.pools.get(id)?.clone();
    let watched = refresh_monitor(state, &pool);
    let mut members = Vec::new();
    for member in &pool.body.members {
        let Some(row) = state.octavia.members.get(&member.id) else {
            continue;
        };
        let status = member_status(row, watched, assumed);
        if row.body.operating_status != status {
            state
                .octavia
                .members
                .update(&member.id, |row| row.body.operating_status = status.clone());
        }
        members.push(status);
    }
    let used = !listeners_of(state, id).is_empty();
    let status = if pool.body.admin_state_up && used {
        pool_status(&members)
    } else {
        OperatingStatus::Offline
    };
    if pool.body.operating_status != status {
        state
            .octavia
            .pools
            .update(id, |row| row.body.operating_status = status.clone());
    }
    Some(status)
}

/// Updates the status of a pool's monitor, and returns whether the pool's members are checked.
fn refresh_monitor(state: &mut CloudState, pool: &PoolRow) -> bool {
    let Some(id) = &pool.body.monitor.healthmonitor_id else {
        return false;
    };
    let Some(row) = state.octavia.monitors.get(id) else {
        return false;
    };
    let on = row.body.admin_state_up;
    let status = if on {
        OperatingStatus::Online
    } else {
        OperatingStatus::Offline
    };
    if row.body.operating_status != status {
        state
            .octavia
            .monitors
            .update(id, |row| row.body.operating_status = status);
    }
    on
}

fn member_status(row: &MemberRow, watched: bool, assumed: bool) -> OperatingStatus {
    match (row.body.admin_state_up, row.body.weight, watched, row.up) {
        (true, 0, ..) => OperatingStatus::Draining,
        (true, _, false, _) => OperatingStatus::NoMonitor,
        (true, _, true, Some(true)) => OperatingStatus::Online,
        (true, _, true, Some(false)) => OperatingStatus::Error,
        (true, _, true, None) if assumed => OperatingStatus::Online,
        (false, ..) | (true, _, true, None) => OperatingStatus::Offline,
    }
}

/// Returns ERROR when all members that could take traffic are down, and DEGRADED when some are.
fn pool_status(members: &[OperatingStatus]) -> OperatingStatus {
    let down = members
        .iter()
        .filter(|status| **status == OperatingStatus::Error)
        .count();
    let works = |status: &&OperatingStatus| {
        matches!(status, OperatingStatus::Online | OperatingStatus::NoMonitor)
    };
    match (down, members.iter().filter(works).count()) {
        (0, _) => OperatingStatus::Online,
        (_, 0) => OperatingStatus::Error,
        _ => OperatingStatus::Degraded,
    }
}

fn listener_status(
    row: &ListenerRow,
    pool: Option<&OperatingStatus>,
    assumed: bool,
) -> OperatingStatus {
    let own = match (row.body.admin_state_up, row.open) {
        (true, Some(false)) => OperatingStatus::Error,
        (true, Some(true)) if row.full => OperatingStatus::Degraded,
        (true, Some(true)) => OperatingStatus::Online,
        (true, None) if assumed => OperatingStatus::Online,
        (false, _) | (true, None) => return OperatingStatus::Offline,
    };
    pool.map_or(own.clone(), |pool| worse(own, pool))
}

/// Returns the worse of two. A disabled child does not make its parent worse.
fn worse(one: OperatingStatus, other: &OperatingStatus) -> OperatingStatus {
    let rank = |status: &OperatingStatus| match status {
        OperatingStatus::Error => 2,
        OperatingStatus::Degraded => 1,
        _ => 0,
    };
    if rank(other) > rank(&one) {
        other.clone()
    } else {
        one
    }
}

/// Returns the states of a load balancer and everything below it.
pub(super) fn status_tree(state: &CloudState, row: &LoadBalancerRow) -> StatusTree {
    let body = &row.body;
    let listeners = body
        .listeners
        .iter()
        .filter_map(|one| state.octavia.listeners.get(&one.id));
    StatusTree {
        statuses: Statuses {
            loadbalancer: LoadBalancerStatus {
                id: body.id.clone(),
                name: body.name.clone(),
                operating_status: body.operating_status.clone(),
                provisioning_status: body.provisioning_status.clone(),
                listeners: listeners.map(|row| listener_tree(state, row)).collect(),
            },
        },
    }
}

fn listener_tree(state: &CloudState, row: &ListenerRow) -> ListenerStatus {
    let body = &row.body;
    let pool = body
        .default_pool_id
        .as_ref()
        .and_then(|id| state.octavia.pools.get(id));
    ListenerStatus {
        id: body.id.clone(),
        name: body.name.clone(),
        operating_status: body.operating_status.clone(),
        provisioning_status: body.provisioning_status.clone(),
        pools: pool.map(|row| pool_tree(state, row)).into_iter().collect(),
    }
}

fn pool_tree(state: &CloudState, row: &PoolRow) -> PoolStatus {
    let body = &row.body;
    let monitor = body
        .monitor
        .healthmonitor_id
        .as_ref()
        .and_then(|id| state.octavia.monitors.get(id));
    let members = body
        .members
        .iter()
        .filter_map(|one| state.octavia.members.get(&one.id));
    PoolStatus {
        id: body.id.clone(),
        name: body.name.clone(),
        provisioning_status: body.provisioning_status.clone(),
        operating_status: body.operating_status.clone(),
        health_monitor: monitor.map(|row| MonitorStatus {
            id: row.body.id.clone(),
            name: row.body.name.clone(),
            kind: row.body.kind.clone(),
            provisioning_status: row.body.provisioning_status.clone(),
            operating_status: row.body.operating_status.clone(),
        }),
        members: members.map(|row| member_tree(row)).collect(),
    }
}

fn member_tree(row: &MemberRow) -> MemberStatus {
    let body = &row.body;
    MemberStatus {
        id: body.id.clone(),
        name: body.name.clone(),
        operating_status: body.operating_status.clone(),
        provisioning_status: body.provisioning_status.clone(),
        address: body.address.clone(),
        protocol_port: body.protocol_port,
    }
}

/// Forgets what an earlier process reported, which does not apply to the sockets of this one.
pub fn forget_reports(state: &mut CloudState) {
    let listeners: Vec<String> = state
        .octavia
        .listeners
        .iter()
        .filter(|row| row.open.is_some())
        .map(|row| row.body.id.clone())
        .collect();
    for id in &listeners {
        state
            .octavia
            .listeners
            .update(id, |row| (row.open, row.full) = (None, false));
    }
    let all: Vec<String> = state
        .octavia
        .load_balancers
        .iter()
        .filter(|row| row.body.provisioning_status == ProvisioningStatus::Active)
        .map(|row| row.body.id.clone())
        .collect();
    for id in all {
        refresh(state, &id);
    }
}
