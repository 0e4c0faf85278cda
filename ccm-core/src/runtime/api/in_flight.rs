use std::sync::Arc;

use tokio::sync::watch;

/// Writes of state that wait for the rate limit or are in flight, so that events can wait for them. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct WritesInFlight(Arc<watch::Sender<usize>>);

/// One of them, until it is dropped.
#[derive(Debug)]
#[must_use = "a write counts as long as this lives"]
pub(crate) struct WriteInFlight(WritesInFlight);

impl WritesInFlight {
    /// Counts a write that is about to be made.
    pub(crate) fn begin(&self) -> WriteInFlight {
        self.0.send_modify(|count| *count += 1);
        WriteInFlight(self.clone())
    }

    /// Tells whether there is none.
    pub(crate) fn is_none(&self) -> bool {
        *self.0.borrow() == 0
    }

    /// Waits until there is none.
    pub(crate) async fn none(&self) {
        let mut count = self.0.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

impl Drop for WriteInFlight {
    fn drop(&mut self) {
        let WritesInFlight(count) = &self.0;
        // Nobody waits for anything but none.
        count.send_if_modified(|count| {
            *count -= 1;
            *count == 0
        });
    }
}
