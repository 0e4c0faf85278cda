//! How many calls may be in flight at once.

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Lanes to the cloud, one for each call in flight: half as many after each time that it asked for a slow-down, one more
/// after each call that went well. A balancer takes several requests; were all workers to begin at once when the cloud
/// takes requests again, each would get its first one through and none its last.
#[derive(Debug)]
pub(crate) struct Lanes {
    permits: Semaphore,
    count: Mutex<Count>,
    most: usize,
}

#[derive(Debug)]
struct Count {
    /// Those that there should be.
    wanted: usize,
    /// Those that there are. More than wanted as long as they are in use.
    open: usize,
}

/// A lane in use, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    lanes: &'a Lanes,
    permit: Option<SemaphorePermit<'a>>,
}

impl Lanes {
    /// Makes so many lanes, at least one.
    pub(crate) fn new(most: usize) -> Self {
        let most = most.max(1);
        Self { permits: Semaphore::new(most), count: Mutex::new(Count { wanted: most, open: most }), most }
    }

    /// Waits for a lane, in the order of asking.
    pub(crate) async fn enter(&self) -> Lane<'_> {
        // The semaphore is never closed, which is the only reason for it to give none.
        Lane { lanes: self, permit: self.permits.acquire().await.ok() }
    }

    /// Closes half of the lanes, those in use when they become free.
    pub(crate) fn slower(&self) {
        let mut count = self.count.lock();
        count.wanted = (count.wanted / 2).max(1);
        count.open -= self.permits.forget_permits(count.open.saturating_sub(count.wanted));
    }

    /// Opens one more.
    pub(crate) fn faster(&self) {
        let mut count = self.count.lock();
        count.wanted = (count.wanted + 1).min(self.most);
        if count.open < count.wanted {
            count.open += 1;
            self.permits.add_permits(1);
        }
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut count = self.lanes.count.lock();
        if count.open > count.wanted
            && let Some(permit) = self.permit.take()
        {
            count.open -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn free(lanes: &Lanes) -> usize {
        let mut held = Vec::new();
        while let Some(lane) = lanes.enter().now_or_never() {
            held.push(lane);
        }
        held.len()
    }

    #[test]
    fn lanes_halve_down_to_one_and_come_back_one_by_one() {
        let lanes = Lanes::new(8);
        let counts = [8, 4, 2, 1, 1].map(|expected| {
            let count = free(&lanes);
            lanes.slower();
            (count, expected)
        });
        assert!(counts.iter().all(|(count, expected)| count == expected), "{counts:?}");
        for expected in [2, 3, 4, 5, 6, 7, 8, 8] {
            lanes.faster();
            assert_eq!(free(&lanes), expected);
        }
    }

    #[test]
    fn a_lane_in_use_closes_when_it_becomes_free_unless_it_is_wanted_again() {
        let lanes = Lanes::new(4);
        let mut used: Vec<_> = (0..4).filter_map(|_| lanes.enter().now_or_never()).collect();
        lanes.slower();
        assert_eq!(free(&lanes), 0);
        lanes.faster();
        for expected in [0, 1, 2, 3] {
            used.pop();
            assert_eq!(free(&lanes), expected);
        }
    }
}
