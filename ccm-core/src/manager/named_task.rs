//! Named tasks of the manager.

use futures::{FutureExt, future::BoxFuture};

/// A named task that is not running yet.
pub(super) struct NamedTask {
    pub(super) name: &'static str,
    pub(super) run: BoxFuture<'static, anyhow::Result<()>>,
}

/// Converts a future that cannot fail into a task.
pub(super) fn infallible(
    task: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, anyhow::Result<()>> {
    task.map(Ok).boxed()
}
