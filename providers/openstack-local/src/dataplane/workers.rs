//! The threads that carry connections.
//!
//! Each has a runtime of its own, and everything for one connection happens on one thread, so that
//! no thread is woken for work that another one then does. On a work-stealing runtime a short
//! connection costs almost twice as much.

use std::{
    io, mem,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::{Builder, Handle},
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::plan;

/// Each thread wakes this often without work: a runtime that already has a timer this near is not
/// woken by a new timer that is farther away, as those of connections are. Without it every
/// connection's first timer costs a system call.
const BEAT: Duration = Duration::from_secs(1);

/// The threads, which start when they are first needed.
#[derive(Debug)]
pub(super) struct Workers {
    count: NonZeroUsize,
    /// Ends them.
    stop: CancellationToken,
    running: Mutex<Vec<Thread>>,
    turn: AtomicUsize,
}

#[derive(Debug)]
struct Thread {
    worker: Worker,
    handle: thread::JoinHandle<()>,
}

/// A thread, as needed to give it work.
#[derive(Debug, Clone)]
pub(super) struct Worker {
    pub(super) runtime: Handle,
    /// Number of connections of all listeners that it carries.
    busy: Arc<AtomicUsize>,
}

/// A connection that a thread carries, counted until dropped.
#[derive(Debug)]
pub(super) struct ConnectionCount(Arc<AtomicUsize>);

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Worker {
    /// Counts a connection that this thread is to carry.
    pub(super) fn count_connection(&self) -> ConnectionCount {
        self.busy.fetch_add(1, Relaxed);
        ConnectionCount(self.busy.clone())
    }

    /// Returns which thread carries a connection that the one at `index` has accepted. Moving it
    /// costs a few system calls, so that is done only when one thread would have many more: a
    /// thread that is woken first accepts everything that has arrived.
    pub(super) fn choose(index: usize, workers: &[Self]) -> usize {
        let busy = |index: usize| workers[index].busy.load(Relaxed);
        let least = (0..workers.len())
            .min_by_key(|index| busy(*index))
            .unwrap_or(index);
        plan::choose_worker(index, busy(index), least, busy(least))
    }
}

impl Workers {
    /// Creates up to `count` threads; none while nothing listens.
    pub(super) fn new(count: NonZeroUsize, stop: CancellationToken) -> Self {
        Self {
            count,
            stop,
            running: Mutex::default(),
            turn: AtomicUsize::new(0),
        }
    }

    /// Returns all threads.
    ///
    /// # Errors
    /// The system creates no further thread.
    pub(super) fn all(&self) -> io::Result<Arc<[Worker]>> {
        let mut running = self.running.lock();
        while running.len() < self.count.get() {
            let number = running.len();
            running.push(Thread::start(number, &self.stop)?);
        }
        Ok(running.iter().map(|thread| thread.worker.clone()).collect())
    }

    /// Returns the runtime of one thread, of the next one at each call.
    ///
    /// # Errors
    /// The system creates no further thread.
    pub(super) fn next(&self) -> io::Result<Handle> {
        let all = self.all()?;
        let turn = self.turn.fetch_add(1, Relaxed) % all.len();
        Ok(all[turn].runtime.clone())
    }

    /// Waits until the threads have ended, after they were stopped.
    pub(super) async fn ended(&self) {
        let running = mem::take(&mut *self.running.lock());
        // It fails only when this runtime ends, and then nobody waits.
        let _ = spawn_blocking(move || join(running)).await;
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.cancel();
        // What a thread does between two waits is short.
        join(mem::take(self.running.get_mut()));
    }
}

fn join(threads: Vec<Thread>) {
    for thread in threads {
        if thread.handle.join().is_err() {
            tracing::error!("a thread of the data plane has panicked");
        }
    }
}

impl Thread {
    fn start(number: usize, stop: &CancellationToken) -> io::Result<Self> {
        let (tell, told) = mpsc::sync_channel(1);
        let stop = stop.clone();
        let run = move || match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                let _ = tell.send(Ok(runtime.handle().clone()));
                runtime.block_on(beat(&stop));
            }
            Err(error) => {
                let _ = tell.send(Err(error));
            }
        };
        let handle = thread::Builder::new()
            .name(format!("data-plane-{number}"))
            .spawn(run)?;
        let runtime = told.recv().map_err(io::Error::other)??;
        Ok(Self { worker: Worker { runtime, busy: Arc::default() }, handle })
    }
}

/// Runs until stopped.
async fn beat(stop: &CancellationToken) {
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let beating = async {
        loop {
            beats.tick().await;
        }
    };
    stop.run_until_cancelled(beating).await;
}
