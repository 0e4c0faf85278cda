//! The count of the writes that wait for the rate limit or are in flight.

use std::sync::Arc;

use tokio::sync::watch;

/// The count of the writes that wait for the rate limit or are in flight. Clones share the count.
///
/// Events wait until it is zero, but at most five seconds. They are not counted themselves.
#[derive(Clone, Debug, Default)]
pub struct WritesInFlight(Arc<watch::Sender<usize>>);

/// A counted write. Dropping it decrements the count.
#[derive(Debug)]
#[must_use = "the write is counted until this is dropped"]
pub(crate) struct WriteInFlight(WritesInFlight);

impl WritesInFlight {
    /// Counts a write that is about to be sent.
    pub(crate) fn begin(&self) -> WriteInFlight {
        self.0.send_modify(|count| *count += 1);
        WriteInFlight(self.clone())
    }

    /// Returns true if the count is zero.
    pub(crate) fn is_empty(&self) -> bool {
        *self.0.borrow() == 0
    }

    /// Waits until the count is zero.
    pub(crate) async fn wait_until_empty(&self) {
        let mut count = self.0.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

impl Drop for WriteInFlight {
    fn drop(&mut self) {
        let WritesInFlight(count) = &self.0;
        // Waiters only wait for zero, so other values need no wake-up.
        count.send_if_modified(|count| {
            *count -= 1;
            *count == 0
        });
    }
}
