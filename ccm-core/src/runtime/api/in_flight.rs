//! Counts the writes that wait for the rate limit or are in flight.

use std::sync::Arc;

use tokio::sync::watch;

/// Counts writes of state that wait for the rate limit or are in flight, so that events can wait
/// for them. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct WritesInFlight(Arc<watch::Sender<usize>>);

/// One counted write, until it is dropped.
#[derive(Debug)]
#[must_use = "a write counts as long as this lives"]
pub(crate) struct WriteInFlight(WritesInFlight);

impl WritesInFlight {
    /// Counts a write that is about to be made.
    pub(crate) fn begin(&self) -> WriteInFlight {
        self.0.send_modify(|count| *count += 1);
        WriteInFlight(self.clone())
    }

    /// Returns true if the count is zero.
    pub(crate) fn is_none(&self) -> bool {
        *self.0.borrow() == 0
    }

    /// Waits until the count is zero.
    pub(crate) async fn none(&self) {
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
