//! Requests for one Lease. Each has a timeout, and each answer is kept as the object to write next.

use std::{pin::Pin, time::Duration};

use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
};
use tokio::time::{Instant, timeout_at};

use super::lease::{LeaseRecord, api_resource};

/// Error of a request for the Lease.
#[derive(Debug, thiserror::Error)]
pub(super) enum LeaseError {
    /// The Lease changed, was deleted or was created since it was last observed.
    #[error("the lease changed meanwhile")]
    Conflict,
    /// Access denied: the permission for this verb is missing.
    #[error("no right to {verb} leases.coordination.k8s.io: {message}")]
    Forbidden { verb: &'static str, message: String },
    /// No answer before the timeout. The request may have taken effect.
    #[error("no answer to {verb} in time")]
    Timeout { verb: &'static str },
    /// Anything else, such as an unreachable or overloaded API server.
    #[error("cannot {verb} the lease")]
    Other { verb: &'static str, source: kube::Error },
}

/// One Lease on the API server, as last observed.
#[derive(Debug)]
pub(super) struct LeaseLock {
    api: Api<DynamicObject>,
    name: String,
    request_timeout: Duration,
    last_observed: Option<DynamicObject>,
    deadline: Option<Instant>,
}

impl LeaseLock {
    pub(super) fn new(
        client: Client,
        namespace: &str,
        name: &str,
        request_timeout: Duration,
    ) -> Self {
        let api = Api::namespaced_with(client, namespace, &api_resource());
        Self {
            api,
            name: name.to_owned(),
            request_timeout,
            last_observed: None,
            deadline: None,
        }
    }

    /// Limits all later requests to this deadline, even if their own timeout ends after it.
    pub(super) fn set_deadline(&mut self, limit: Option<Instant>) {
        self.deadline = limit;
    }

    /// Returns the UID of the last observed Lease. Empty before the first observation.
    pub(super) fn uid(&self) -> &str {
        self.last_observed
            .as_ref()
            .and_then(|l| l.metadata.uid.as_deref())
            .unwrap_or_default()
    }

    /// Reads the Lease. Returns `None` if it does not exist.
    pub(super) async fn get(&mut self) -> Result<Option<LeaseRecord>, LeaseError> {
        self.last_observed = self
            .with_timeout("get", Box::pin(self.api.get_opt(&self.name)))
            .await?;
        Ok(self.last_observed.as_ref().map(LeaseRecord::read))
    }

    /// Creates the Lease. Fails with [`LeaseError::Conflict`] if it exists already.
    pub(super) async fn create(&mut self, record: &LeaseRecord) -> Result<(), LeaseError> {
        let mut lease = DynamicObject::new(&self.name, &api_resource());
        record.write(&mut lease);
        let params = PostParams::default();
        self.last_observed = Some(
            self.with_timeout("create", Box::pin(self.api.create(&params, &lease)))
                .await?,
        );
        Ok(())
    }

    /// Replaces the record of the last observed Lease. Fails with [`LeaseError::Conflict`] if the
    /// Lease has changed. The metadata is sent back unchanged, with the resource version that makes
    /// the write conditional.
    pub(super) async fn update(&mut self, record: &LeaseRecord) -> Result<(), LeaseError> {
        let mut lease = self.last_observed.clone().ok_or(LeaseError::Conflict)?;
        if lease.metadata.resource_version.is_none() {
            // Without a resource version the write would be unconditional.
            return Err(LeaseError::Conflict);
        }
        record.write(&mut lease);
        let params = PostParams::default();
        self.last_observed = Some(
            self.with_timeout("update", Box::pin(self.api.replace(&self.name, &params, &lease)))
                .await?,
        );
        Ok(())
    }

    /// Runs a call with the request timeout and the deadline. Calls are boxed, since kube's futures
    /// take kilobytes each.
    async fn with_timeout<T>(
        &self,
        verb: &'static str,
        call: Pin<Box<impl Future<Output = kube::Result<T>>>>,
    ) -> Result<T, LeaseError> {
        let own = Instant::now() + self.request_timeout;
        let deadline = self.deadline.map_or(own, |limit| limit.min(own));
        match timeout_at(deadline, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_not_found() => {
                Err(LeaseError::Conflict)
            }
            Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => {
                Err(LeaseError::Forbidden { verb, message: status.message.clone() })
            }
            Ok(Err(source)) => Err(LeaseError::Other { verb, source }),
            Err(_) => Err(LeaseError::Timeout { verb }),
        }
    }
}
