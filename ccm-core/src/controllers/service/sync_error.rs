//! The errors of a sync, when each is retried, and the events that report them to the owner of the
//! Service.

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

/// The back-off of a failed sync, with upstream's values.
pub(crate) const BACKOFF: Backoff =
    Backoff { first: Duration::from_secs(5), cap: Duration::from_secs(300) };
/// The delay after a write conflict, within which the watch should deliver the new version of the
/// Service.
const CONFLICT_DELAY: Duration = Duration::from_millis(500);
/// The error while the EndpointSlices that a Service uses as backends are not cached.
const NO_ENDPOINTS: &str = "EndpointSlices are not listed yet, which needs permission to list and \
                            watch endpointslices.discovery.k8s.io";
/// The maximum number of host names in an event, as upstream.
const MAX_HOSTS_IN_EVENT: usize = 20;

/// An operation of a sync, as events name it.
#[derive(Clone, Debug)]
pub(crate) enum ServiceOperation {
    AddFinalizer,
    Ensure,
    Update {
        /// The names of the nodes or EndpointSlices.
        hosts: Vec<Arc<str>>,
    },
    Compare,
    Delete {
        service_deleted: bool,
    },
    Retain,
    RemoveFinalizer,
    Publish,
}

/// An error that ended a sync.
#[derive(Debug)]
pub(crate) enum ServiceSyncError {
    /// The process is stopping or no longer the leader. This is not reported.
    Stopping,
    /// The cloud was not called, because it will be throttling for this long.
    Throttled(Duration),
    /// The cloud was not called, because the API server did not confirm what the cache shows.
    StaleCache(StaleCacheError),
    /// The cloud was not called, because the EndpointSlices that are the backends are not cached.
    EndpointSlicesNotListed,
    /// The sync panicked, in the provider's code or ours, with this message.
    Panicked(String),
    Cloud {
        operation: ServiceOperation,
        error: CloudError,
    },
    Api {
        operation: ServiceOperation,
        error: ApiError,
    },
}

/// The event that reports a failed sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailureEvent {
    pub(crate) reason: &'static str,
    /// The kind of the error. If it changes, the failure is reported again.
    pub(crate) error_kind: &'static str,
    pub(crate) note: String,
}

impl ServiceSyncError {
    /// Creates the error of a failed provider call.
    pub(crate) fn cloud(operation: ServiceOperation, error: CloudError) -> Self {
        match error.kind() {
            ErrorKind::Canceled | ErrorKind::NotLeader => Self::Stopping,
            _ => Self::Cloud { operation, error },
        }
    }

    /// Creates the error of a failed request to the API server.
    pub(crate) fn api(operation: ServiceOperation, error: ApiError) -> Self {
        match error.kind() {
            ApiErrorKind::Canceled | ApiErrorKind::NotLeader => Self::Stopping,
            _ => Self::Api { operation, error },
        }
    }

    /// Returns the delay before a retry after this many consecutive failures.
    pub(crate) fn delay(&self, failures: u32) -> Duration {
        match self {
            Self::Throttled(duration) => *duration,
            // Only a person can resolve this.
            Self::StaleCache(StaleCacheError::MostServicesGone { .. }) => BACKOFF.cap,
            Self::StaleCache(_) => UNCONFIRMED_RETRY,
            Self::Stopping => BACKOFF.delay(1),
            Self::EndpointSlicesNotListed | Self::Panicked(_) => BACKOFF.delay(failures),
            Self::Cloud { error, .. } => {
                if let Some(retry_after) = error.retry_after() {
                    retry_after
                } else if self.needs_user_action() {
                    // A change of the Service does not wait for this.
                    BACKOFF.cap
                } else {
                    BACKOFF.delay(failures)
                }
            }
            Self::Api { error, .. } if error.is_conflict() => CONFLICT_DELAY,
            Self::Api { error, .. } => error
                .retry_after()
                .unwrap_or_else(|| BACKOFF.delay(failures)),
        }
    }

    /// Returns true if the error persists until a person acts or the desired state changes.
    pub(crate) fn needs_user_action(&self) -> bool {
        let Self::Cloud { error, .. } = self else {
            return false;
        };
        matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::QuotaExceeded)
    }

    /// Returns true if a load balancer could not be kept as its Service asks.
    pub(crate) fn is_about_retention(&self) -> bool {
        matches!(self, Self::Cloud { operation: ServiceOperation::Retain, .. })
    }

    /// Returns true if the error counts as a failed attempt for the back-off and the metrics.
    pub(crate) fn is_failure(&self) -> bool {
        match self {
            Self::Stopping | Self::Throttled(_) => false,
            Self::Api { error, .. } => !error.is_conflict(),
            Self::StaleCache(_)
            | Self::EndpointSlicesNotListed
            | Self::Panicked(_)
            | Self::Cloud { .. } => true,
        }
    }

    /// Returns the message for the log; `None` for an error that is not logged.
    pub(crate) fn log_message(&self) -> Option<String> {
        match self {
            Self::StaleCache(error) => Some(chain(error)),
            _ => self.event().map(|event| event.note),
        }
    }

    /// Returns the event for the owner of the Service; `None` if the owner cannot act on it.
    pub(crate) fn event(&self) -> Option<FailureEvent> {
        match self {
            // A stale cache affects all load balancers at once, and only the operator can act on
            // it.
            Self::Stopping | Self::Throttled(_) | Self::StaleCache(_) => None,
            Self::EndpointSlicesNotListed => Some(FailureEvent {
                reason: ServiceOperation::Ensure.reason(),
                error_kind: "api",
                note: ServiceOperation::Ensure.note(NO_ENDPOINTS),
            }),
            Self::Panicked(panic) => {
                let note = format!("Error syncing load balancer: the sync panicked: {panic}");
                Some(FailureEvent { reason: "SyncLoadBalancerFailed", error_kind: "panic", note })
            }
            Self::Api { error, .. } if error.is_conflict() => None,
            Self::Api { operation, error } => Some(FailureEvent {
                reason: operation.reason(),
                error_kind: "api",
                note: operation.note(&chain(error)),
            }),
            Self::Cloud { operation, error } => Some(FailureEvent {
                reason: error.reason().unwrap_or(operation.reason()),
                error_kind: error.kind().as_str(),
                note: operation.note(&error.chain()),
            }),
        }
    }
}

impl ServiceOperation {
    fn reason(&self) -> &'static str {
        match self {
            Self::Update { .. } => "UpdateLoadBalancerFailed",
            Self::Delete { service_deleted: true } => "DeleteLoadBalancerFailed",
            Self::Retain => "RetainLoadBalancerFailed",
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
            Self::Delete { service_deleted: true } => {
                return format!("Error deleting load balancer: {error}");
            }
            Self::AddFinalizer => "failed to add load balancer cleanup finalizer",
            Self::Ensure => "failed to ensure load balancer",
            Self::Compare => "failed to compare load balancer",
            Self::Delete { service_deleted: false } => "failed to delete load balancer",
            Self::Retain => "failed to keep load balancer",
            Self::RemoveFinalizer => "failed to remove load balancer cleanup finalizer",
            Self::Publish => "failed to update load balancer status",
        };
        format!("Error syncing load balancer: {prefix}: {error}")
    }
}

/// Formats at most twenty of the names, sorted and in brackets, as upstream does.
fn format_host_names(hosts: &[Arc<str>]) -> String {
    let mut names: Vec<&str> = hosts.iter().map(|name| &**name).collect();
    names.sort_unstable();
    let omitted = names.len().saturating_sub(MAX_HOSTS_IN_EVENT);
    names.truncate(MAX_HOSTS_IN_EVENT);
    let list = names.join(" ");
    if omitted == 0 {
        format!("[{list}]")
    } else {
        format!("[{list} <{omitted} more>]")
    }
}

/// Returns the names of the nodes.
pub(crate) fn host_names(nodes: &[Arc<NodeView>]) -> Vec<Arc<str>> {
    nodes.iter().map(|node| node.name.clone()).collect()
}

#[cfg(test)]
#[path = "sync_error_tests.rs"]
mod tests;
