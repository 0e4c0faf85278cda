//! Changes that the cloud accepts first and completes later.

use std::time::Duration;

use http::Method;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{ErrorFormat, ErrorResponse, RestClient, path};
use crate::provider::{CloudError, ErrorKind, Mutation, Op, Progress};

/// The delay before the first poll of an operation. It doubles with each poll.
const FIRST_POLL: Duration = Duration::from_millis(250);

/// The status of a long-running operation of the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationStatus {
    /// It is still running.
    Running {
        /// The path at which its status can be read; see [`path`](super::path).
        path: String,
    },
    /// It succeeded.
    Done,
    /// It failed. [`ErrorFormat::of_code`](super::ErrorFormat::of_code) creates the error from an
    /// error code. Without a kind it is [`ErrorKind::Transient`].
    Failed(ErrorResponse),
}

/// The format of a cloud's long-running operations.
///
/// ```
/// # use ccm_core::provider::rest::{ErrorFormat, OperationFormat};
/// /// `{"action": {"id": 7, "status": "error", "error": {"code": "...", "message": "..."}}}`
/// const ACTIONS: OperationFormat = OperationFormat {
///     path: "v1/actions",
///     id: "/action/id",
///     status: "/action/status",
///     done: &["success"],
///     failed: &["error"],
///     error: ErrorFormat { code: "/action/error/code", message: "/action/error/message", kinds: &[] },
/// };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationFormat {
    /// The path at which the status of an operation can be read, without its ID.
    pub path: &'static str,
    /// The JSON pointer (RFC 6901) to the ID, which is a string or an integer.
    pub id: &'static str,
    /// The JSON pointer to the status.
    pub status: &'static str,
    /// The statuses of an operation that succeeded.
    pub done: &'static [&'static str],
    /// The statuses of an operation that failed. With any other status it is still running.
    pub failed: &'static [&'static str],
    /// Where the error of a failed operation is, with the kinds of its error codes.
    pub error: ErrorFormat,
}

impl OperationFormat {
    /// Reads the status of an operation from a response. One that contains no operation is a
    /// failure, because nothing proves that the change succeeds.
    fn read(&self, response: &Value) -> OperationStatus {
        let text = |pointer| match response.pointer(pointer) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        let (Some(id), Some(status)) = (text(self.id), text(self.status)) else {
            let message = "the response contains no operation".to_owned();
            return OperationStatus::Failed(ErrorResponse { message, ..ErrorResponse::default() });
        };
        if self.done.contains(&&*status) {
            OperationStatus::Done
        } else if self.failed.contains(&&*status) {
            let code = text(self.error.code).unwrap_or_default();
            let message = text(self.error.message).unwrap_or_default();
            OperationStatus::Failed(self.error.of_code(&code, &message))
        } else {
            OperationStatus::Running { path: path(self.path, &[&id], &[]) }
        }
    }
}

impl RestClient {
    /// Sends a request that changes the cloud ([`mutate`](Self::mutate)), whose response is a
    /// long-running operation, and [polls](Self::poll) the operation.
    ///
    /// # Errors
    /// The same as those of [`mutate`](Self::mutate) and [`poll`](Self::poll).
    ///
    /// # Cancellation
    /// The operation runs on in the cloud.
    pub async fn mutate_and_poll(
        &self,
        op: &Op,
        mutation: Mutation,
        method: Method,
        path: &str,
        body: &(impl Serialize + Sync),
        format: &OperationFormat,
    ) -> Result<Progress, CloudError> {
        let response: Value = self.mutate(op, mutation, method, path, body).await?;
        self.poll(op, response, |response| format.read(&response))
            .await
    }

    /// Polls a long-running operation until it ends, but not for longer than the call may
    /// [sleep](Op::sleep).
    ///
    /// Many clouds answer a change with an operation, which runs on. `response` is that answer, and
    /// `status` reads the status of the operation from it and from the later ones. If the operation
    /// is still running when the call may not sleep any more, returns [`Progress::Pending`].
    /// If an [`OperationFormat`] can describe the operations, use
    /// [`mutate_and_poll`](Self::mutate_and_poll).
    ///
    /// The operation is not remembered. The next call reads the cloud again, so it must find there
    /// what the operation has done, and be prepared for an operation that still runs.
    ///
    /// ```
    /// # use ccm_core::provider::{CloudError, ErrorKind, Mutation, Op};
    /// # use ccm_core::provider::rest::{ErrorFormat, OperationStatus, RestClient, path};
    /// # use http::Method; use serde::{Deserialize, Serialize};
    /// # const ERRORS: ErrorFormat = ErrorFormat { code: "", message: "", kinds: &[] };
    /// # #[derive(Serialize)] struct NewRoute;
    /// #[derive(Deserialize)]
    /// struct Action { id: u64, status: String, error: Option<ActionError> }
    /// #[derive(Default, Deserialize)]
    /// struct ActionError { code: String, message: String }
    ///
    /// impl Action {
    ///     fn status(self) -> OperationStatus {
    ///         match (&*self.status, self.error) {
    ///             ("success", _) => OperationStatus::Done,
    ///             ("error", error) => {
    ///                 let error = error.unwrap_or_default();
    ///                 OperationStatus::Failed(ERRORS.of_code(&error.code, &error.message))
    ///             }
    ///             _ => OperationStatus::Running { path: path("v1/actions", &[&self.id.to_string()], &[]) },
    ///         }
    ///     }
    /// }
    ///
    /// # use ccm_core::provider::Progress;
    /// # async fn example(cloud: &RestClient, op: &Op, new: &NewRoute) -> Result<Progress, CloudError> {
    /// let create = Mutation::new("create_route", "10.0.1.0/24");
    /// let action = cloud.mutate(op, create, Method::POST, "v1/routes", new).await?;
    /// cloud.poll(op, action, Action::status).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the error of a failed operation, and the errors of [`get`](Self::get). Neither is
    /// ever [`ErrorKind::NotFound`], because a missing operation, or one that missed something, does
    /// not prove that the changed object is absent: the kind is [`ErrorKind::Transient`] then.
    ///
    /// # Cancellation
    /// The operation runs on in the cloud.
    pub async fn poll<T: DeserializeOwned>(
        &self,
        op: &Op,
        response: T,
        status: impl Fn(T) -> OperationStatus,
    ) -> Result<Progress, CloudError> {
        let mut current = status(response);
        // The operation that failed, for the message: its first response has no path.
        let mut what = "the operation".to_owned();
        let mut delay = FIRST_POLL;
        loop {
            let path = match current {
                OperationStatus::Running { path } => path,
                OperationStatus::Done => return Ok(Progress::Done),
                OperationStatus::Failed(error) => return Err(failure(&what, &error)),
            };
            what = format!("operation {path}");
            // `run` ends the sleep when the operation is cancelled or its deadline passes.
            if !op.run(async { Ok(op.sleep(delay).await) }).await? {
                return Ok(Progress::pending(op, format!("{what} is still running")));
            }
            delay *= 2;
            current = match self.get(op, &path).await {
                Ok(response) => status(response),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let message = format!("{what} has an unknown result");
                    return Err(CloudError::transient(message).with_source(error));
                }
                Err(error) => return Err(error),
            };
        }
    }
}

/// Creates the error of an operation that failed.
fn failure(what: &str, error: &ErrorResponse) -> CloudError {
    let kind = match error.kind {
        None | Some(ErrorKind::NotFound) => ErrorKind::Transient,
        Some(kind) => kind,
    };
    let failed = CloudError::new(kind, format!("{what} failed: {}", error.message));
    match error.retry_after {
        Some(after) => failed.with_retry_after(after),
        None => failed,
    }
}

#[cfg(test)]
#[path = "long_running_tests.rs"]
mod tests;
