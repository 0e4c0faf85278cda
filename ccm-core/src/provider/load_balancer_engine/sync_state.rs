//! What this process remembers of each Service's load balancer between calls.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::LoadBalancerDriver;
use crate::provider::{CloudError, ErrorKind, Progress};

/// How long an interrupted call may be continued from what was observed, without reading everything
/// again.
const RESUME_WINDOW: Duration = Duration::from_secs(600);

/// What was last applied completely.
struct LastApplied<D: LoadBalancerDriver> {
    desired: Arc<D::Desired>,
    members: D::Members,
}

/// Sync state of one Service.
pub(super) struct SyncState<D: LoadBalancerDriver> {
    /// What is known of the Service's objects.
    pub(super) observed: D::Observed,
    /// What cannot be read from the cloud.
    pub(super) memory: D::Memory,
    last_applied: Option<LastApplied<D>>,
    /// When everything in `observed` was last verified; `None` when it has to be.
    verified_at: Option<Instant>,
    /// True when a call has begun to change something and did not reach its goal.
    unfinished: bool,
}

impl<D: LoadBalancerDriver> Default for SyncState<D> {
    fn default() -> Self {
        Self::with_memory(D::Memory::default())
    }
}

impl<D: LoadBalancerDriver> SyncState<D> {
    fn with_memory(memory: D::Memory) -> Self {
        Self {
            observed: D::Observed::default(),
            memory,
            last_applied: None,
            verified_at: None,
            unfinished: false,
        }
    }

    /// Returns whether exactly this was applied completely and nothing was begun since.
    pub(super) fn is_applied(&self, desired: &D::Desired, members: &D::Members) -> bool {
        !self.unfinished
            && self
                .last_applied
                .as_ref()
                .is_some_and(|last| *last.desired == *desired && last.members == *members)
    }

    /// Returns whether what is observed may be used without verifying it, because a call that has
    /// to verify it was interrupted and is continued now.
    pub(super) fn can_resume(&self) -> bool {
        self.unfinished
            && self
                .verified_at
                .is_some_and(|at| at.elapsed() < RESUME_WINDOW)
    }

    /// Returns whether what is observed was verified once and is still right as far as this process
    /// knows.
    pub(super) fn is_verified(&self) -> bool {
        self.verified_at.is_some()
    }

    /// Records that what is observed is verified from now on.
    pub(super) fn begin_verification(&mut self) {
        self.verified_at = Some(Instant::now());
        self.last_applied = None;
    }

    /// Records that a request is about to be sent.
    pub(super) fn begin_change(&mut self) {
        self.unfinished = true;
    }

    /// Records that a call stopped before its goal.
    pub(super) fn record_stop(&mut self, result: &Result<Progress, CloudError>) {
        match result {
            Ok(_) => self.unfinished = true,
            // The request was not sent, so what is observed is still right.
            Err(error) if error.kind() == ErrorKind::NotLeader => self.unfinished = true,
            Err(_) => self.invalidate(),
        }
    }

    /// Forgets what is observed.
    pub(super) fn invalidate(&mut self) {
        self.observed = D::Observed::default();
        self.last_applied = None;
        self.verified_at = None;
        self.unfinished = false;
    }

    /// Records that everything is applied.
    pub(super) fn set_applied(&mut self, desired: Arc<D::Desired>, members: D::Members) {
        self.last_applied = Some(LastApplied { desired, members });
        self.unfinished = false;
    }

    /// Records that the members are applied. Whether the rest is too stays as it was.
    pub(super) fn set_members_applied(&mut self, desired: &D::Desired, members: D::Members) {
        match &mut self.last_applied {
            Some(last) if *last.desired == *desired => last.members = members,
            _ => self.last_applied = None,
        }
        self.unfinished = false;
    }
}

/// Sync states of all Services, by UID. One worker at a time works on a Service.
pub(super) struct SyncStates<D: LoadBalancerDriver>(Mutex<HashMap<Box<str>, SyncState<D>>>);

impl<D: LoadBalancerDriver> Default for SyncStates<D> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<D: LoadBalancerDriver> SyncStates<D> {
    /// Takes the sync state of a Service. Until it is [put back](Self::put) only its memory is
    /// known, because the future that took it may be dropped in the middle of a change.
    pub(super) fn take(&self, uid: &str) -> SyncState<D> {
        let mut states = self.0.lock();
        let state = states.remove(uid).unwrap_or_default();
        states.insert(uid.into(), SyncState::with_memory(state.memory.clone()));
        state
    }

    pub(super) fn put(&self, uid: &str, state: SyncState<D>) {
        self.0.lock().insert(uid.into(), state);
    }

    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}
