//! Why a Service is to be tried again, when, and what its owner is told.

use std::{sync::Arc, time::Duration};

use super::{UNCONFIRMED_RETRY, backend_node_cache::StaleCacheError};
use crate::{
    error::chain,
    k8s::NodeView,
    provider::{CloudError, ErrorKind},
    runtime::{
        api::{ApiError, ApiErrorKind},
        work_queue::Backoff,
    },
};

/// Upstream's back-off of a service.
pub(crate) const BACKOFF: Backoff = Backoff { first: Duration::from_secs(5), cap: Duration::from_secs(300) };
/// Pause before a Service that changed under our hands is looked at again; the watch brings the change.
const CONFLICT_DELAY: Duration = Duration::from_millis(500);
/// Names of hosts in an event; upstream's number.
const MAX_HOSTS_IN_EVENT: usize = 20;

/// What failed.
#[derive(Clone, Debug)]
pub(crate) enum ServiceOperation {
    AddFinalizer,
    Ensure,
    /// With these hosts, or with so many endpoints.
    Update {
        hosts: Vec<Arc<str>>,
    },
    Compare,
    Delete {
        service_deleted: bool,
    },
    RemoveFinalizer,
    Publish,
}

/// Why a Service was not brought to an end.
#[derive(Debug)]
pub(crate) enum ServiceSyncError {
    /// Nobody's business: the process is stopping, or does not lead any more.
    Stopping,
    /// The cloud wants to be left alone; nothing was asked.
    Throttled(Duration),
    /// Nodes are in doubt; nothing was asked.
    StaleCache(StaleCacheError),
    /// The work panicked, in the provider's code or ours; what it said.
    Panicked(String),
    Cloud {
        doing: ServiceOperation,
        error: CloudError,
    },
    Api {
        doing: ServiceOperation,
        error: ApiError,
    },
}

impl ServiceSyncError {
    /// Makes the trouble of a failed call.
    pub(crate) fn cloud(doing: ServiceOperation, error: CloudError) -> Self {
        match error.kind() {
            ErrorKind::Canceled | ErrorKind::NotLeader => Self::Stopping,
            _ => Self::Cloud { doing, error },
        }
    }

    /// Makes the trouble of a failed write.
    pub(crate) fn api(doing: ServiceOperation, error: ApiError) -> Self {
        match error.kind() {
            ApiErrorKind::Canceled | ApiErrorKind::NotLeader => Self::Stopping,
            _ => Self::Api { doing, error },
        }
    }

    /// Returns how long to wait after so many failures in a row.
    pub(crate) fn delay(&self, failures: u32) -> Duration {
        match self {
            Self::Throttled(pause) => *pause,
            // A person has to look at it.
            Self::StaleCache(StaleCacheError::MostServicesGone { .. }) => BACKOFF.cap,
            Self::StaleCache(_) => UNCONFIRMED_RETRY,
            Self::Stopping => BACKOFF.delay(1),
            Self::Panicked(_) => BACKOFF.delay(failures),
            Self::Cloud { error, .. } => error.retry_after().unwrap_or_else(|| match error.kind() {
                // A change of the Service is looked at at once all the same.
                _ if self.needs_user_action() => BACKOFF.cap,
                _ => BACKOFF.delay(failures),
            }),
            Self::Api { error, .. } if error.is_conflict() => CONFLICT_DELAY,
            Self::Api { error, .. } => error.retry_after().unwrap_or_else(|| BACKOFF.delay(failures)),
        }
    }

    /// Tells whether only a person can mend it, or something other being asked for.
    pub(crate) fn needs_user_action(&self) -> bool {
        let kind = if let Self::Cloud { error, .. } = self { error.kind() } else { return false };
        matches!(kind, ErrorKind::InvalidInput | ErrorKind::QuotaExceeded)
    }

    /// Tells whether it counts as a failed attempt.
    pub(crate) fn is_failure(&self) -> bool {
        match self {
            Self::Stopping | Self::Throttled(_) => false,
            Self::Api { error, .. } => !error.is_conflict(),
            Self::StaleCache(_) | Self::Panicked(_) | Self::Cloud { .. } => true,
        }
    }

    /// Returns what an operator should read, if anything.
    pub(crate) fn log(&self) -> Option<String> {
        match self {
            Self::StaleCache(doubt) => Some(chain(doubt)),
            _ => self.event().map(|(_, _, note)| note),
        }
    }

    /// Returns event reason, kind (a change of it is told anew) and note; `None` for what the owner cannot use.
    pub(crate) fn event(&self) -> Option<(&'static str, &'static str, String)> {
        match self {
            // Nodes in doubt concern every balancer at once, and the operator, not the owners.
            Self::Stopping | Self::Throttled(_) | Self::StaleCache(_) => None,
            Self::Panicked(panic) => {
                let note = format!("Error syncing load balancer: the work panicked: {panic}");
                Some(("SyncLoadBalancerFailed", "panic", note))
            }
            Self::Api { error, .. } if error.is_conflict() => None,
            Self::Api { doing, error } => Some((doing.reason(), "api", doing.note(&chain(error)))),
            Self::Cloud { doing, error } => {
                let reason = error.reason().unwrap_or(doing.reason());
                Some((reason, error.kind().as_str(), doing.note(&error.chain())))
            }
        }
    }
}

impl ServiceOperation {
    fn reason(&self) -> &'static str {
        match self {
            Self::Update { .. } => "UpdateLoadBalancerFailed",
            Self::Delete { service_deleted: true } => "DeleteLoadBalancerFailed",
            _ => "SyncLoadBalancerFailed",
        }
    }

    fn note(&self, error: &str) -> String {
        let prefix = match self {
            Self::Update { hosts } => {
                return format!(
                    "Error updating load balancer with new hosts {} [node names limited, total number of nodes: {}], error: {error}",
                    format_host_names(hosts),
                    hosts.len()
                );
            }
            Self::Delete { service_deleted: true } => return format!("Error deleting load balancer: {error}"),
            Self::AddFinalizer => "failed to add load balancer cleanup finalizer",
            Self::Ensure => "failed to ensure load balancer",
            Self::Compare => "failed to compare load balancer",
            Self::Delete { service_deleted: false } => "failed to delete load balancer",
            Self::RemoveFinalizer => "failed to remove load balancer cleanup finalizer",
            Self::Publish => "failed to update load balancer status",
        };
        format!("Error syncing load balancer: {prefix}: {error}")
    }
}

/// Writes names as upstream does: at most twenty, sorted, in brackets.
fn format_host_names(hosts: &[Arc<str>]) -> String {
    let mut names: Vec<&str> = hosts.iter().map(|name| &**name).collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(MAX_HOSTS_IN_EVENT);
    names.truncate(MAX_HOSTS_IN_EVENT);
    let list = names.join(" ");
    if more == 0 { format!("[{list}]") } else { format!("[{list} <{more} more>]") }
}

/// Returns the names of hosts.
pub(crate) fn host_names(nodes: &[Arc<NodeView>]) -> Vec<Arc<str>> {
    nodes.iter().map(|node| node.name.clone()).collect()
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
