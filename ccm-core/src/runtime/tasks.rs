//! Starts, names, supervises and stops the tasks of a process.
//!
//! This module neither exits the process nor handles signals. The caller cancels a token to stop
//! the tasks.

use std::{collections::HashMap, time::Duration};

use tokio::{
    task::{Id, JoinError, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::error::{chain, redacted_panic};

/// The error that ended the tasks of a process.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A task ended although it should run as long as the process.
    #[error("task {task} ended early")]
    Ended {
        /// Its name.
        task: &'static str,
    },
    /// A task failed.
    #[error("task {task} failed")]
    Failed {
        /// Its name.
        task: &'static str,
        /// The error that the task returned.
        source: anyhow::Error,
    },
    /// A task panicked.
    #[error("task {task} panicked: {message}")]
    Panicked {
        /// Its name.
        task: &'static str,
        /// The message of the panic.
        message: String,
    },
    /// Some tasks did not end in time and were aborted.
    #[error("tasks did not end within {limit:?}: {}", tasks.join(", "))]
    ShutdownTimeout {
        /// The names of these tasks, sorted.
        tasks: Vec<&'static str>,
        /// The time in which they had to end.
        limit: Duration,
    },
}

/// The end of the tasks of a process.
#[derive(Debug)]
pub enum TasksExit {
    /// The tasks were stopped, and every task ended in time.
    Stopped,
    /// A task ended early, failed or panicked, and the others were stopped. Or some tasks did not
    /// end in time.
    Failed(TaskError),
}

/// The named tasks of a process. Dropping this value aborts them.
#[derive(Debug)]
pub struct Tasks {
    set: JoinSet<anyhow::Result<()>>,
    names: HashMap<Id, &'static str>,
    stop: CancellationToken,
}

impl Tasks {
    /// Creates an empty set of tasks that ends when `stop` is cancelled. If a task ends before, the
    /// set itself cancels `stop`.
    pub fn new(stop: CancellationToken) -> Self {
        Self { set: JoinSet::new(), names: HashMap::new(), stop }
    }

    /// Returns the token that stops every task.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Starts a task that runs until the stop token is cancelled. If it ends before, the whole
    /// process has failed.
    pub fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let id = self.set.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Runs until the stop token is cancelled or a task ends. Then cancels the token and gives the
    /// other tasks `limit` to end.
    ///
    /// # Errors
    /// None: a failure is a [`TasksExit`]. If several tasks fail, it contains the first failure,
    /// which usually causes the others. All failures are logged.
    ///
    /// # Cancellation
    /// Dropping the future aborts every task.
    pub async fn run(mut self, limit: Duration) -> TasksExit {
        let stop = self.stop.clone();
        let early_exit = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            error = self.first_exit() => Some(error),
        };
        stop.cancel();
        let shutdown_error = self.wait_or_abort(limit).await;
        match early_exit.or(shutdown_error) {
            None => TasksExit::Stopped,
            Some(error) => TasksExit::Failed(error),
        }
    }

    /// Waits for the first task that ends, and returns its error. Never returns if there are no
    /// tasks.
    async fn first_exit(&mut self) -> TaskError {
        match self.set.join_next_with_id().await {
            None => std::future::pending().await,
            Some(result) => {
                let (task, error) = self.classify_exit(result);
                let error = error.unwrap_or(TaskError::Ended { task });
                log(&error);
                error
            }
        }
    }

    /// Waits up to `limit` for all tasks, then aborts those that still run. Returns the first
    /// error.
    async fn wait_or_abort(&mut self, limit: Duration) -> Option<TaskError> {
        let mut first_error = None;
        let all_ended = async {
            while let Some(result) = self.set.join_next_with_id().await {
                if let (_, Some(error)) = self.classify_exit(result) {
                    log(&error);
                    first_error.get_or_insert(error);
                }
            }
        };
        if timeout(limit, all_ended).await.is_err() {
            let error = TaskError::ShutdownTimeout { tasks: self.running(), limit };
            log(&error);
            first_error.get_or_insert(error);
            self.set.shutdown().await;
        }
        first_error
    }

    /// Returns the name of a task that ended, and its error if it failed, panicked or was aborted.
    fn classify_exit(
        &mut self,
        result: Result<(Id, anyhow::Result<()>), JoinError>,
    ) -> (&'static str, Option<TaskError>) {
        let id = match &result {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let task = self.names.remove(&id).unwrap_or("unnamed");
        let error = match result {
            Ok((_, Ok(()))) => None,
            Ok((_, Err(source))) => Some(TaskError::Failed { task, source }),
            Err(error) => match error.try_into_panic() {
                Ok(payload) => Some(TaskError::Panicked {
                    task,
                    message: redacted_panic(&*payload).into_owned(),
                }),
                // The task was aborted. Only this module could have done that, and it does so only
                // at the very end.
                Err(_) => Some(TaskError::Ended { task }),
            },
        };
        (task, error)
    }

    /// Returns the sorted names of the tasks that have not ended.
    fn running(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.names.values().copied().collect();
        names.sort_unstable();
        names
    }
}

fn log(error: &TaskError) {
    let cause = match error {
        TaskError::Failed { source, .. } => Some(chain(source.as_ref())),
        _ => None,
    };
    tracing::error!(%error, cause, "stopping because of a task");
}

#[cfg(test)]
#[path = "tasks_tests.rs"]
mod tests;
