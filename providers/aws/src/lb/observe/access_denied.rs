//! Caches reads that IAM denies, so that they are neither repeated nor reported in every sync.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use ccm_core::provider::{CloudError, EventType, Op};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::lb::model::ServiceKey;
use crate::{
    api::{Action, AwsError},
    client::reason,
};

/// Period in which a denied request is not tried again.
const CACHE_TTL: Duration = Duration::from_secs(3600);

/// Denied requests.
#[derive(Debug, Default)]
pub(in crate::lb) struct AccessDeniedCache(Mutex<BTreeMap<Action, DeniedAction>>);

#[derive(Debug)]
struct DeniedAction {
    at: Instant,
    note: String,
    /// UIDs of Services to whose owners it was reported.
    reported_to: HashSet<Box<str>>,
}

impl AccessDeniedCache {
    /// Runs an optional read. Returns `None` if access is denied or the cloud does not have the
    /// request, and reports that to each Service at most once per hour.
    ///
    /// # Errors
    /// Any other error of the read, also that the credentials are invalid. NotFound is returned
    /// unchanged, although the caller has just seen the object in a listing.
    pub(in crate::lb) async fn read<T>(
        &self,
        op: &Op,
        owner: &ServiceKey,
        action: Action,
        read: impl Future<Output = Result<T, AwsError>>,
    ) -> Result<Option<T>, CloudError> {
        if self.is_denied(op, owner, action) {
            return Ok(None);
        }
        let error = match read.await {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error,
        };
        if !is_denied_by_policy(&error) && !is_unknown_capacity_request(action, &error) {
            return Err(error.into());
        }
        let denial = DeniedAction {
            at: Instant::now(),
            note: CloudError::from(error).chain(),
            reported_to: HashSet::new(),
        };
        self.0.lock().entry(action).or_insert(denial);
        self.is_denied(op, owner, action);
        Ok(None)
    }

    /// Returns true if a request is known to be denied, and reports that to the Service's owner if
    /// it was not reported before.
    pub(super) fn is_denied(&self, op: &Op, owner: &ServiceKey, action: Action) -> bool {
        let note = {
            let mut denials = self.0.lock();
            denials.retain(|_, denial| denial.at.elapsed() < CACHE_TTL);
            let Some(denial) = denials.get_mut(&action) else {
                return false;
            };
            denial
                .reported_to
                .insert(owner.uid.clone())
                .then(|| denial.note.clone())
        };
        if let Some(note) = note {
            op.event(EventType::Warning, reason::PERMISSION, &note);
        }
        true
    }
}

/// Returns true if the cloud does not have requests for reserved capacity, as in some regions and
/// in most emulators. Without that read, nothing is reserved.
fn is_unknown_capacity_request(action: Action, error: &AwsError) -> bool {
    action == Action::DescribeCapacityReservation && error.has_code("InvalidAction")
}

/// Returns true if a policy denies the request. Invalid credentials say nothing about permissions.
pub(crate) fn is_denied_by_policy(error: &AwsError) -> bool {
    ["AccessDenied", "AccessDeniedException", "UnauthorizedOperation"]
        .iter()
        .any(|code| error.has_code(code))
}
