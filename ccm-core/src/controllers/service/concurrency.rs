//! The limit of concurrent syncs, which adapts to throttling.

use parking_lot::Mutex;

/// The limit of concurrent syncs: halved each time that the cloud throttles, raised by one after
/// each successful call (AIMD).
///
/// Ensuring a load balancer takes several requests. If all workers started as soon as the cloud
/// accepts requests again, each would succeed with its first request and none with its last. A
/// Service above the limit waits in the queue, so its sync starts with the latest state.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimit {
    current: Mutex<usize>,
    max: usize,
}

impl ConcurrencyLimit {
    /// Creates a limit that starts at its maximum, which is at least one.
    pub(crate) fn new(max: usize) -> Self {
        let max = max.max(1);
        Self { current: Mutex::new(max), max }
    }

    /// Returns the current limit.
    pub(crate) fn current(&self) -> usize {
        *self.current.lock()
    }

    /// Halves the limit, down to one.
    pub(crate) fn decrease(&self) {
        let mut current = self.current.lock();
        *current = (*current / 2).max(1);
    }

    /// Raises the limit by one, up to its maximum.
    pub(crate) fn increase(&self) {
        let mut current = self.current.lock();
        *current = (*current + 1).min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_halved_down_to_one_and_raised_one_by_one() {
        let limit = ConcurrencyLimit::new(8);
        for expected in [4, 2, 1, 1] {
            limit.decrease();
            assert_eq!(limit.current(), expected);
        }
        for expected in [2, 3, 4, 5, 6, 7, 8, 8] {
            limit.increase();
            assert_eq!(limit.current(), expected);
        }
    }
}
