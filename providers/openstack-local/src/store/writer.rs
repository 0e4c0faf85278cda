//! The thread that writes to disk.

use std::{
    panic,
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    SharedStore,
    disk::{Disk, Open, Write},
};

/// Maximum number of changes in one transaction: the first of them waits for the last.
const GROUP: usize = 256;

/// Delay before a disk that failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// A change to write.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) sequence: u64,
    pub(super) writes: Vec<Write>,
    pub(super) tell: oneshot::Sender<Result<(), String>>,
}

#[derive(Debug)]
pub(super) struct Writer {
    files: Box<dyn Open>,
    /// `None` while the disk fails.
    disk: Option<Disk>,
    shared: Arc<SharedStore>,
    queue: mpsc::Receiver<Job>,
}

impl Writer {
    pub(super) fn new(
        files: Box<dyn Open>,
        disk: Disk,
        shared: Arc<SharedStore>,
        queue: mpsc::Receiver<Job>,
    ) -> Self {
        Self { files, disk: Some(disk), shared, queue }
    }

    /// Writes until the store is closed.
    pub(super) fn run(mut self) {
        loop {
            let first = match &self.disk {
                Some(_) => self
                    .queue
                    .recv()
                    .map_err(|_| mpsc::RecvTimeoutError::Disconnected),
                None => self.queue.recv_timeout(AGAIN),
            };
            match first {
                Ok(first) => self.write(first),
                Err(mpsc::RecvTimeoutError::Timeout) => self.recover(Vec::new()),
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn write(&mut self, first: Job) {
        let mut jobs = vec![first];
        jobs.extend(self.queue.try_iter().take(GROUP - 1));
        let Some(disk) = &self.disk else {
            return self.recover(jobs);
        };
        let writes = jobs
            .iter_mut()
            .map(|job| std::mem::take(&mut job.writes))
            .collect();
        // A debug build of redb panics where a release build returns an error; this thread must
        // survive that.
        let written = panic::catch_unwind(panic::AssertUnwindSafe(|| disk.write(writes)));
        if !matches!(written, Ok(Ok(()))) {
            let error = written
                .ok()
                .and_then(Result::err)
                .map(tracing::field::display);
            tracing::error!(error, "the state cannot be written");
            self.disk = None;
            return self.recover(jobs);
        }
        let last = jobs.last().map_or(0, |job| job.sequence);
        self.shared
            .progress
            .send_modify(|progress| progress.settled = last);
        for job in jobs {
            // The receiver may be dropped.
            drop(job.tell.send(Ok(())));
        }
    }

    /// Resets the state to what is on disk, and rejects the changes that are not there.
    fn recover(&mut self, mut jobs: Vec<Job>) {
        let mut inner = self.shared.inner.write();
        // Nothing can be added while the lock is held.
        jobs.extend(self.queue.try_iter());
        let opened =
            Disk::open(&*self.files).and_then(|disk| disk.load().map(|state| (disk, state)));
        match opened {
            Ok((disk, state)) => {
                inner.state = state;
                inner.broken = None;
                self.disk = Some(disk);
                tracing::warn!("the state was read from disk again");
            }
            Err(error) => inner.broken = Some(error.to_string()),
        }
        inner.generation += 1;
        let settled = inner.sequence;
        let generation = inner.generation;
        self.shared.progress.send_modify(|progress| {
            progress.settled = settled;
            progress.generation = generation;
        });
        for job in jobs {
            drop(job.tell.send(Err("the disk failed".to_owned())));
        }
    }
}
