//! Settings of the access log that a Service no longer asks for.
//!
//! A part of the access log without annotation is not compared, so that a takeover changes nothing.
//! That a Service had the annotation before is known to this process alone.

use super::{ClassicLoadBalancers, model::DesiredClassic};
use crate::api::classic::ClassicAccessLog;

/// Minutes between two files, unless the Service says otherwise.
const DEFAULT_INTERVAL: u32 = 60;

impl ClassicLoadBalancers {
    /// Returns AWS' defaults for the parts of the access log that the Service asked for earlier in this
    /// process and does not ask for any more. Other parts are `None`. Remembers what it asks for now.
    pub(super) fn removed_log_settings(&self, desired: &DesiredClassic) -> ClassicAccessLog {
        let Some(log) = &desired.attributes.access_log else {
            return ClassicAccessLog::default();
        };
        let mut requested_logs = self.requested_logs.lock();
        let requested = requested_logs.entry(desired.owner.uid.clone()).or_default();
        let is_prefix_removed = log.prefix.is_none() && requested.prefix.is_some();
        let is_interval_removed = log.interval.is_none() && requested.interval.is_some();
        // Until the Service is deleted, a setting that it asked for once is its own.
        if log.prefix.is_some() {
            requested.prefix.clone_from(&log.prefix);
        }
        if log.interval.is_some() {
            requested.interval = log.interval;
        }
        ClassicAccessLog {
            prefix: is_prefix_removed.then(Box::default),
            interval: is_interval_removed.then_some(DEFAULT_INTERVAL),
            ..ClassicAccessLog::default()
        }
    }
}
