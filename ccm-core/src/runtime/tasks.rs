//! Starting, naming, watching and ending the tasks of a process.
//!
//! Nothing here exits the process or hears its signals: whoever stops the tasks cancels their token.

use std::{collections::HashMap, time::Duration};

use tokio::{
    task::{Id, JoinError, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::error::{chain, redacted_panic};

/// Why the tasks ended other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// A task that should run as long as the process returned.
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
        /// What it returned.
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
    /// Tasks did not end in time and were dropped.
    #[error("tasks did not end within {limit:?}: {}", tasks.join(", "))]
    ShutdownTimeout {
        /// Their names, sorted.
        tasks: Vec<&'static str>,
        /// How long they were given.
        limit: Duration,
    },
}

/// How the life of the process ended.
#[derive(Debug)]
pub enum TasksExit {
    /// As asked: every task ended in time.
    Stopped,
    /// A task ended, failed or panicked, which stopped the others, or some did not end in time.
    Failed(TaskError),
}

/// The named tasks of a process. Dropping it aborts them.
#[derive(Debug)]
pub struct Tasks {
    set: JoinSet<anyhow::Result<()>>,
    names: HashMap<Id, &'static str>,
    stop: CancellationToken,
}

impl Tasks {
    /// Makes an empty set that ends when `stop` is cancelled, and that cancels it when a task ends before.
    pub fn new(stop: CancellationToken) -> Self {
        Self { set: JoinSet::new(), names: HashMap::new(), stop }
    }

    /// Returns the token that asks every task to end.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Starts a task that runs until the stop token is cancelled. To end before is an error of the whole process.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        let id = self.set.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Runs until every task has ended: asked by the stop token, or because a task ended. After that the others have
    /// `limit` to end.
    ///
    /// # Errors
    /// None: every way to end is an [`Exit`]. With several failures it is the first, since the others follow from it;
    /// all are logged.
    ///
    /// # Cancellation
    /// Dropping the future aborts every task.
    pub async fn run(mut self, limit: Duration) -> TasksExit {
        let stop = self.stop.clone();
        let mut failure = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            error = self.first_exit() => Some(error),
        };
        stop.cancel();
        self.end(&mut failure, limit).await;
        failure.map_or(TasksExit::Stopped, TasksExit::Failed)
    }

    /// Waits for the first task that ends. Never returns while there is none.
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

    /// Waits for all tasks, then drops those that are left.
    async fn end(&mut self, failure: &mut Option<TaskError>, limit: Duration) {
        let all = async {
            while let Some(result) = self.set.join_next_with_id().await {
                if let (_, Some(error)) = self.classify_exit(result) {
                    log(&error);
                    failure.get_or_insert(error);
                }
            }
        };
        if timeout(limit, all).await.is_err() {
            let error = TaskError::ShutdownTimeout { tasks: self.running(), limit };
            log(&error);
            failure.get_or_insert(error);
            self.set.shutdown().await;
        }
    }

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
                Ok(payload) => Some(TaskError::Panicked { task, message: redacted_panic(&*payload).into_owned() }),
                // Nobody else can abort them.
                Err(_) => Some(TaskError::Ended { task }),
            },
        };
        (task, error)
    }

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
