//! How many services may be worked on at once.

use parking_lot::Mutex;

/// Lanes to the cloud, one for each worker: half as many after each time that it asked for a slow-down, one more after each
/// call that went well. A balancer takes several requests; were all workers to begin at once when the cloud takes requests
/// again, each would get its first one through and none its last. A service that waits for a lane waits in the queue, so
/// that it is looked at as it is when its turn comes.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimit {
    current: Mutex<usize>,
    max: usize,
}

impl ConcurrencyLimit {
    /// Makes so many lanes, at least one.
    pub(crate) fn new(most: usize) -> Self {
        let max = most.max(1);
        Self { current: Mutex::new(max), max }
    }

    /// Returns how many are open.
    pub(crate) fn current(&self) -> usize {
        *self.current.lock()
    }

    /// Closes half of the lanes.
    pub(crate) fn decrease(&self) {
        let mut open = self.current.lock();
        *open = (*open / 2).max(1);
    }

    /// Opens one more.
    pub(crate) fn increase(&self) {
        let mut open = self.current.lock();
        *open = (*open + 1).min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_halve_down_to_one_and_come_back_one_by_one() {
        let lanes = ConcurrencyLimit::new(8);
        for expected in [4, 2, 1, 1] {
            lanes.decrease();
            assert_eq!(lanes.current(), expected);
        }
        for expected in [2, 3, 4, 5, 6, 7, 8, 8] {
            lanes.increase();
            assert_eq!(lanes.current(), expected);
        }
    }
}
