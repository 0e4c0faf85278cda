//! Requests for one Lease. Each has a timeout, and the object of each answer is kept, because the
//! next write is based on it.

use std::{pin::Pin, time::Duration};

use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
};
use tokio::time::{Instant, timeout_at};

use super::lease::{LeaseRecord, api_resource};

/// The error of a request for the Lease.
#[derive(Debug, thiserror::Error)]
pub(super) enum LeaseError {
    /// The Lease changed, was deleted or was created since it was last observed.
    #[error("the lease was changed concurrently")]
    Conflict,
    /// The permission for this verb is missing.
    #[error("missing permission to {verb} leases.coordination.k8s.io: {message}")]
    Forbidden { verb: &'static str, message: String },
    /// No answer arrived before the timeout. The request may have taken effect.
    #[error("no answer to {verb} in time")]
    Timeout { verb: &'static str },
    /// Any other error, for example because the API server is unreachable or overloaded.
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

    /// Sets a deadline that all later requests must meet in addition to their own timeout.
    pub(super) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Returns the UID of the last observed Lease, which is empty before the first observation.
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

    /// Creates the Lease.
    ///
    /// # Errors
    /// Returns [`LeaseError::Conflict`] if the Lease already exists.
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

    /// Replaces the record of the last observed Lease. Sends its metadata back unchanged, with the
    /// resource version that makes the write conditional.
    ///
    /// # Errors
    /// Returns [`LeaseError::Conflict`] if the Lease has changed since.
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

    /// Runs `call` until the request timeout or the deadline, whichever comes first. Calls are
    /// boxed, because each of kube's futures takes kilobytes.
    async fn with_timeout<T>(
        &self,
        verb: &'static str,
        call: Pin<Box<impl Future<Output = kube::Result<T>>>>,
    ) -> Result<T, LeaseError> {
        let request_deadline = Instant::now() + self.request_timeout;
        let deadline = self
            .deadline
            .map_or(request_deadline, |deadline| deadline.min(request_deadline));
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
