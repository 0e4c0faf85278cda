//! Actions on a load balancer. An action is one request, and applying it leaves nothing to decide.

use ccm_core::provider::PlannedChange;
use openstack_api::octavia::{
    HealthMonitorCreate, HealthMonitorUpdate, ListenerCreate, ListenerUpdate, LoadBalancerUpdate,
    MemberCreate, MemberUpdate, Patch, PoolCreate, PoolUpdate,
};

use crate::client::Call;

/// One request. The parent's ID is `None` if an earlier action of the same plan creates the parent.
/// It is known in the next plan, after that action was applied.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionKind {
    /// Changes the load balancer itself.
    UpdateLoadBalancer(LoadBalancerUpdate),
    /// Creates a listener.
    CreateListener(Box<ListenerCreate>),
    /// Changes a listener.
    UpdateListener(String, Box<ListenerUpdate>),
    /// Deletes a listener, after its pool was deleted.
    DeleteListener(String),
    /// Creates the pool of a listener.
    CreatePool(Option<String>, Box<PoolCreate>),
    /// Changes a pool.
    UpdatePool(String, Box<PoolUpdate>),
    /// Deletes a pool with its members and monitor.
    DeletePool(String),
    /// Replaces the members of a pool by these.
    SetMembers(Option<String>, Vec<MemberCreate>),
    /// Creates a member.
    CreateMember(Option<String>, MemberCreate),
    /// Changes a member of a pool.
    UpdateMember(String, Box<str>, MemberUpdate),
    /// Deletes a member of a pool.
    DeleteMember(String, Box<str>),
    /// Creates the monitor of a pool.
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

/// An action with its object and reason.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedAction {
    /// The request to send.
    pub kind: ActionKind,
    /// Name or ID of the object that is changed.
    pub object: Box<str>,
    /// Reason for the change, for logs and dry runs.
    pub reason: Box<str>,
}

/// A pool and its load-balancing algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolMethod {
    /// ID of the pool.
    pub pool: Box<str>,
    /// Algorithm, in Octavia's spelling.
    pub method: Box<str>,
}

impl PlannedAction {
    pub(super) fn new(
        kind: ActionKind,
        object: impl Into<Box<str>>,
        reason: impl Into<Box<str>>,
    ) -> Self {
        Self { kind, object: object.into(), reason: reason.into() }
    }

    /// Returns the algorithm that the action sets, or `None` if it changes anything else. A cloud
    /// may reject an algorithm that it does not support, and then the pool keeps its own.
    pub fn method_change(&self) -> Option<PoolMethod> {
        let ActionKind::UpdatePool(pool, update) = &self.kind else {
            return None;
        };
        let Patch::Set(method) = &update.lb_algorithm else {
            return None;
        };
        let others_keep =
            update.session_persistence.is_keep() && update.name.is_keep() && update.tags.is_keep();
        if !others_keep {
            return None;
        }
        Some(PoolMethod { pool: pool.as_str().into(), method: method.as_str().into() })
    }

    /// Describes the action as a planned change, for dry runs.
    pub fn describe(&self) -> PlannedChange {
        PlannedChange {
            operation: self.kind.call().name().into(),
            object: self.object.clone(),
            reason: self.reason.clone(),
        }
    }
}
