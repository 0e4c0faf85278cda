//! What policy does not let us read, so that it is not asked again and again, nor told again and again.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use ccm_core::provider::{CloudError, ErrorKind, EventKind, Op};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::model::OwnerName;
use crate::{
    api::{Action, AwsError},
    client::reason,
};

/// How long AWS' word is believed that policy does not allow a request.
const BELIEVED: Duration = Duration::from_secs(3600);

/// Requests that policy does not allow.
#[derive(Debug, Default)]
pub(super) struct Denials(Mutex<BTreeMap<Action, Denial>>);

#[derive(Debug)]
struct Denial {
    at: Instant,
    note: String,
    /// UIDs of Services whose owners know.
    told: HashSet<Box<str>>,
}

impl Denials {
    /// Reads something that can be done without: `None` where policy does not allow it, which each Service is told once.
    ///
    /// # Errors
    /// Anything else. That there is no such thing is doubt: whoever asks has just seen it listed.
    pub(super) async fn read<T>(
        &self,
        op: &Op,
        owner: &OwnerName,
        action: Action,
        read: impl Future<Output = Result<T, AwsError>>,
    ) -> Result<Option<T>, CloudError> {
        if self.tell(op, owner, action) {
            return Ok(None);
        }
        let error = match read.await {
            Ok(value) => return Ok(Some(value)),
            Err(error) => error,
        };
        // Credentials that do not hold are another matter than what they allow.
        let policy = ["AccessDenied", "AccessDeniedException", "UnauthorizedOperation"].iter().any(|c| error.is(c));
        let error = CloudError::from(error);
        if error.kind() != ErrorKind::Denied {
            return Err(error);
        }
        if policy {
            let denial = Denial { at: Instant::now(), note: error.chain(), told: HashSet::new() };
            self.0.lock().entry(action).or_insert(denial);
            self.tell(op, owner, action);
        } else {
            op.event(EventKind::Warning, reason::PERMISSION, &error.chain());
        }
        Ok(None)
    }

    /// Tells whether a request is known not to be allowed, and the Service's owner if that is news.
    fn tell(&self, op: &Op, owner: &OwnerName, action: Action) -> bool {
        let note = {
            let mut denials = self.0.lock();
            denials.retain(|_, denial| denial.at.elapsed() < BELIEVED);
            let Some(denial) = denials.get_mut(&action) else { return false };
            denial.told.insert(owner.uid.clone()).then(|| denial.note.clone())
        };
        if let Some(note) = note {
            op.event(EventKind::Warning, reason::PERMISSION, &note);
        }
        true
    }
}
