//! What policy does not let us read, so that it is not asked again and again, nor told again and again.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use ccm_core::provider::{CloudError, ErrorKind, EventType, Op};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::model::ServiceKey;
use crate::{
    api::{Action, AwsError},
    client::reason,
};

/// How long AWS' word is believed that policy does not allow a request.
const CACHE_TTL: Duration = Duration::from_secs(3600);

/// Requests that policy does not allow.
#[derive(Debug, Default)]
pub(super) struct AccessDeniedCache(Mutex<BTreeMap<Action, DeniedAction>>);

#[derive(Debug)]
struct DeniedAction {
    at: Instant,
    note: String,
    /// UIDs of Services whose owners know.
    reported_to: HashSet<Box<str>>,
}

impl AccessDeniedCache {
    /// Reads something that can be done without: `None` where policy does not allow it, which each Service is told once.
    ///
    /// # Errors
    /// Anything else. That there is no such thing is doubt: whoever asks has just seen it listed.
    pub(super) async fn read<T>(
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
        // Credentials that do not hold are another matter than what they allow.
        let policy =
            ["AccessDenied", "AccessDeniedException", "UnauthorizedOperation"].iter().any(|c| error.has_code(c));
        let error = CloudError::from(error);
        if error.kind() != ErrorKind::Denied {
            return Err(error);
        }
        if policy {
            let denial = DeniedAction { at: Instant::now(), note: error.chain(), reported_to: HashSet::new() };
            self.0.lock().entry(action).or_insert(denial);
            self.is_denied(op, owner, action);
        } else {
            op.event(EventType::Warning, reason::PERMISSION, &error.chain());
        }
        Ok(None)
    }

    /// Tells whether a request is known not to be allowed, and the Service's owner if that is news.
    fn is_denied(&self, op: &Op, owner: &ServiceKey, action: Action) -> bool {
        let note = {
            let mut denials = self.0.lock();
            denials.retain(|_, denial| denial.at.elapsed() < CACHE_TTL);
            let Some(denial) = denials.get_mut(&action) else { return false };
            denial.reported_to.insert(owner.uid.clone()).then(|| denial.note.clone())
        };
        if let Some(note) = note {
            op.event(EventType::Warning, reason::PERMISSION, &note);
        }
        true
    }
}
