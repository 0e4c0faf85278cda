//! What is to be done with a balancer: one request each, so specific that carrying it out needs no choice.

use ccm_core::provider::PlannedChange;
use openstack_api::octavia::{
    HealthMonitorCreate, HealthMonitorUpdate, ListenerCreate, ListenerUpdate, LoadBalancerUpdate, MemberCreate,
    MemberUpdate, PoolCreate, PoolUpdate,
};

use crate::client::Call;

/// One request. Children of what is not there yet have no parent: they come after the step that makes it, and the plan is
/// made anew then.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionKind {
    /// Changes the balancer itself.
    UpdateLoadBalancer(LoadBalancerUpdate),
    /// Makes a listener.
    CreateListener(Box<ListenerCreate>),
    /// Changes a listener.
    UpdateListener(String, Box<ListenerUpdate>),
    /// Deletes a listener; its pool is gone by then.
    DeleteListener(String),
    /// Makes the pool of a listener.
    CreatePool(Option<String>, Box<PoolCreate>),
    /// Changes a pool.
    UpdatePool(String, Box<PoolUpdate>),
    /// Deletes a pool with its members and monitor.
    DeletePool(String),
    /// Puts exactly these members in a pool.
    SetMembers(Option<String>, Vec<MemberCreate>),
    /// Makes a member.
    CreateMember(Option<String>, MemberCreate),
    /// Changes a member of a pool.
    UpdateMember(String, Box<str>, MemberUpdate),
    /// Deletes a member of a pool.
    DeleteMember(String, Box<str>),
    /// Makes the monitor of a pool.
    CreateMonitor(Option<String>, Box<HealthMonitorCreate>),
    /// Changes a monitor.
    UpdateMonitor(String, Box<HealthMonitorUpdate>),
    /// Deletes a monitor.
    DeleteMonitor(String),
}

impl ActionKind {
    /// Returns the kind of request.
    pub fn call(&self) -> Call {
        match self {
            Self::UpdateLoadBalancer(_) => Call::LoadBalancerUpdate,
            Self::CreateListener(_) => Call::ListenerCreate,
            Self::UpdateListener(..) => Call::ListenerUpdate,
            Self::DeleteListener(_) => Call::ListenerDelete,
            Self::CreatePool(..) => Call::PoolCreate,
            Self::UpdatePool(..) => Call::PoolUpdate,
            Self::DeletePool(_) => Call::PoolDelete,
            Self::SetMembers(..) => Call::MembersUpdate,
            Self::CreateMember(..) => Call::MemberCreate,
            Self::UpdateMember(..) => Call::MemberUpdate,
            Self::DeleteMember(..) => Call::MemberDelete,
            Self::CreateMonitor(..) => Call::MonitorCreate,
            Self::UpdateMonitor(..) => Call::MonitorUpdate,
            Self::DeleteMonitor(_) => Call::MonitorDelete,
        }
    }
}

/// A change with its object and reason.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedAction {
    /// What to do.
    pub kind: ActionKind,
    /// To what: a name or an ID.
    pub object: Box<str>,
    /// Why.
    pub reason: Box<str>,
}

impl PlannedAction {
    pub(super) fn new(kind: ActionKind, object: impl Into<Box<str>>, why: impl Into<Box<str>>) -> Self {
        Self { kind, object: object.into(), reason: why.into() }
    }

    /// Describes it.
    pub fn describe(&self) -> PlannedChange {
        PlannedChange {
            operation: self.kind.call().name().into(),
            object: self.object.clone(),
            reason: self.reason.clone(),
        }
    }
}
