//! The state behind a lock, and its copy on disk.
//!
//! A change runs in memory. The rows that it touched are written to disk in one transaction, and
//! only then does the change return. One thread writes: changes that wait meanwhile share the next
//! transaction, so that many at once cost one flush. Other changes may use data that is not on disk
//! yet, but no result is returned before everything that it depends on is on disk.

mod disk;
mod error;
#[cfg(test)]
mod tests;
mod writer;

use std::{path::Path, thread};

use parking_lot::RwLock;
use tokio::sync::{oneshot, watch};

pub use self::error::StoreError;
use self::{
    disk::{Disk, Files, Write},
    writer::{Job, Writer},
};
use crate::state::{ApiError, CloudState, Tables};

/// The state, with its copy on disk if it has one.
#[derive(Debug)]
pub struct Store {
    shared: std::sync::Arc<SharedStore>,
    /// Ends when the sender in `shared` is dropped.
    writer: Option<thread::JoinHandle<()>>,
}

/// What requests and the writing thread share.
#[derive(Debug)]
struct SharedStore {
    inner: RwLock<StoreInner>,
    progress: watch::Sender<Progress>,
}

#[derive(Debug)]
struct StoreInner {
    state: CloudState,
    /// Number of the last change.
    sequence: u64,
    /// How often the state was reset to what is on disk.
    generation: u64,
    /// Why nothing can be read or changed at the moment.
    broken: Option<String>,
    /// Queue of the writing thread; `None` without a disk, or when the store is closing.
    jobs: Option<std::sync::mpsc::Sender<Job>>,
}

/// Progress of writing to disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    /// Changes up to this one are on disk, or were rejected.
    settled: u64,
    /// As in [`StoreInner`].
    generation: u64,
}

/// Notifies of changes.
#[derive(Clone, Debug)]
pub struct Changes(watch::Receiver<Progress>);

impl Changes {
    /// Waits until something has changed since the last call. Returns `false` when the store is
    /// closed.
    ///
    /// # Cancellation
    /// A change is not missed when the call is dropped.
    pub async fn next(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

impl Store {
    /// Creates a store without a disk. It never waits, so it works under paused time.
    pub fn in_memory() -> Self {
        Self::in_memory_with(|_| ())
    }

    /// Like [`in_memory`](Self::in_memory), after `prepare` has changed the empty state.
    pub fn in_memory_with(prepare: impl FnOnce(&mut CloudState)) -> Self {
        let mut state = CloudState::default();
        prepare(&mut state);
        state.parts_mut().into_iter().for_each(Tables::commit);
        Self {
            shared: std::sync::Arc::new(SharedStore::new(state, None)),
            writer: None,
        }
    }

    /// Opens the store in a directory, which is created if it does not exist, and reads everything.
    ///
    /// # Errors
    /// Another process has it open; it is corrupt; a newer version wrote it; the system denies
    /// access.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(dir, |_| ())
    }

    /// Like [`open`](Self::open), after `prepare` has changed the state. Its changes are on disk,
    /// too, when the store is returned.
    pub fn open_with(
        dir: &Path,
        prepare: impl FnOnce(&mut CloudState),
    ) -> Result<Self, StoreError> {
        Self::on(Box::new(Files::new(dir)?), prepare)
    }

    fn on(
        files: Box<dyn disk::Open>,
        prepare: impl FnOnce(&mut CloudState),
    ) -> Result<Self, StoreError> {
        let disk = Disk::open(&*files)?;
        let mut state = disk.load()?;
        prepare(&mut state);
        disk.write(vec![touched(&state)])?;
        state.parts_mut().into_iter().for_each(Tables::commit);
        let (jobs, queue) = std::sync::mpsc::channel();
        let shared = std::sync::Arc::new(SharedStore::new(state, Some(jobs)));
        let writer = Writer::new(files, disk, shared.clone(), queue);
        let thread = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run());
        Ok(Self { shared, writer: Some(thread.map_err(StoreError::Thread)?) })
    }

    /// Reads the state. Returns when everything that was read is on disk.
    ///
    /// # Errors
    /// Those of `read`; 503 when the disk fails.
    pub async fn read<T>(
        &self,
        read: impl FnOnce(&CloudState) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let (result, seen) = {
            let inner = self.shared.inner.read();
            inner.check()?;
            (read(&inner.state), inner.current_progress())
        };
        self.wait_until_written(seen).await?;
        result
    }

    /// Reads the state at once, including what is not on disk yet and, if the disk fails, never
    /// will be. Only for results that do not leave the process.
    pub fn peek<T>(&self, read: impl FnOnce(&CloudState) -> T) -> T {
        read(&self.shared.inner.read().state)
    }

    /// Changes the state: completely or, after an error, not at all. Returns when the change is on
    /// disk.
    ///
    /// # Errors
    /// Those of `change`; 503 when the disk fails, and then nothing has changed.
    ///
    /// # Cancellation
    /// The change is made even when the call is dropped while it waits for the disk.
    pub async fn change<T>(
        &self,
        change: impl FnOnce(&mut CloudState) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let (result, seen, done) = self.run(change)?;
        match done {
            Some(done) => match done.await {
                Ok(written) => written.map_err(|reason| unavailable(&reason))?,
                Err(_) => return Err(unavailable("the store is closing")),
            },
            // An error, or an answer without a change, depends on the state, too.
            None => self.wait_until_written(seen).await?,
        }
        result
    }

    /// Returns a receiver of changes.
    pub fn changes(&self) -> Changes {
        Changes(self.shared.progress.subscribe())
    }

    #[expect(
        clippy::type_complexity,
        reason = "the three things a change leaves behind, used once"
    )]
    fn run<T>(
        &self,
        change: impl FnOnce(&mut CloudState) -> Result<T, ApiError>,
    ) -> Result<
        (Result<T, ApiError>, Progress, Option<oneshot::Receiver<Result<(), String>>>),
        ApiError,
    > {
        let mut inner = self.shared.inner.write();
        inner.check()?;
        let inner = &mut *inner;
        let mut guard = Undo { state: &mut inner.state, armed: true };
        let result = change(guard.state);
        if result.is_err() {
            drop(guard);
            return Ok((result, inner.current_progress(), None));
        }
        guard.armed = false;
        drop(guard);
        let writes = touched(&inner.state);
        inner.state.parts_mut().into_iter().for_each(Tables::commit);
        if writes.is_empty() {
            return Ok((result, inner.current_progress(), None));
        }
        inner.sequence += 1;
        let Some(jobs) = &inner.jobs else {
            self.shared
                .progress
                .send_modify(|progress| progress.settled = inner.sequence);
            return Ok((result, inner.current_progress(), None));
        };
        let (tell, done) = oneshot::channel();
        // The writer lives as long as the sender, unless it panicked; then `tell` is dropped, and
        // the change fails.
        drop(jobs.send(Job { sequence: inner.sequence, writes, tell }));
        Ok((result, inner.current_progress(), Some(done)))
    }

    /// Waits until what was read is on disk.
    async fn wait_until_written(&self, seen: Progress) -> Result<(), ApiError> {
        let mut progress = self.shared.progress.subscribe();
        let now = progress
            .wait_for(|now| now.settled >= seen.settled || now.generation != seen.generation)
            .await;
        match now {
            Ok(now) if now.generation == seen.generation => Ok(()),
            _ => Err(unavailable("the disk failed, and what was seen was put back")),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.inner.write().jobs = None;
        if let Some(writer) = self.writer.take() {
            // It writes what is queued, and ends. A panic in it has been reported by the panic
            // hook.
            drop(writer.join());
        }
    }
}

impl SharedStore {
    fn new(state: CloudState, jobs: Option<std::sync::mpsc::Sender<Job>>) -> Self {
        let inner = StoreInner { state, sequence: 0, generation: 0, broken: None, jobs };
        Self {
            inner: RwLock::new(inner),
            progress: watch::Sender::new(Progress::default()),
        }
    }
}

impl StoreInner {
    fn current_progress(&self) -> Progress {
        Progress { settled: self.sequence, generation: self.generation }
    }

    fn check(&self) -> Result<(), ApiError> {
        self.broken
            .as_ref()
            .map_or(Ok(()), |reason| Err(unavailable(reason)))
    }
}

/// Undoes a change after an error or a panic, unless disarmed.
struct Undo<'a> {
    state: &'a mut CloudState,
    armed: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.state.parts_mut().into_iter().for_each(Tables::undo);
        }
    }
}

fn touched(state: &CloudState) -> Vec<Write> {
    let mut writes = Vec::new();
    for part in state.parts() {
        part.each_touched(&mut |table, key, bytes| {
            writes.push(Write { table, key: key.to_owned(), bytes });
        });
    }
    writes
}

fn unavailable(reason: &str) -> ApiError {
    ApiError::new(
        http::StatusCode::SERVICE_UNAVAILABLE,
        "ServiceUnavailable",
        format!("the state cannot be kept: {reason}"),
    )
}
