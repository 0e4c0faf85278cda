//! The threads that carry connections.
//!
//! Each has a runtime of its own, and whatever a connection needs happens on one thread: nobody is woken for work that
//! somebody else then does. On a runtime whose threads take tasks from each other a short connection costs almost twice as
//! much.

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

/// Each thread wakes this often for nothing: a runtime that has a timer as near as this is not woken by a new one that is
/// farther away, as those of connections are. Without it every connection's first timer costs a system call.
const BEAT: Duration = Duration::from_secs(1);

/// Threads, which start when they are first needed.
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

/// What is to be known of a thread to give it work.
#[derive(Debug, Clone)]
pub(super) struct Worker {
    pub(super) runtime: Handle,
    /// Connections of all listeners that it carries.
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
    /// Counts a connection that it is to carry.
    pub(super) fn count_connection(&self) -> ConnectionCount {
        self.busy.fetch_add(1, Relaxed);
        ConnectionCount(self.busy.clone())
    }

    /// Who is to carry a connection that the one at `index` has accepted. Handing it over costs a few system calls, so that
    /// is done only where many would be with one: a thread that was woken first takes all that have come.
    pub(super) fn choose(index: usize, workers: &[Self]) -> usize {
        let busy = |index: usize| workers[index].busy.load(Relaxed);
        let least = (0..workers.len()).min_by_key(|index| busy(*index)).unwrap_or(index);
        plan::choose_worker(index, busy(index), least, busy(least))
    }
}

impl Workers {
    /// As many as `count`; none while nothing listens.
    pub(super) fn new(count: NonZeroUsize, stop: CancellationToken) -> Self {
        Self { count, stop, running: Mutex::default(), turn: AtomicUsize::new(0) }
    }

    /// All threads.
    ///
    /// # Errors
    /// The system gives no further thread.
    pub(super) fn all(&self) -> io::Result<Arc<[Worker]>> {
        let mut running = self.running.lock();
        while running.len() < self.count.get() {
            let number = running.len();
            running.push(Thread::start(number, &self.stop)?);
        }
        Ok(running.iter().map(|thread| thread.worker.clone()).collect())
    }

    /// The runtime of one thread, each time the next one's.
    ///
    /// # Errors
    /// The system gives no further thread.
    pub(super) fn next(&self) -> io::Result<Handle> {
        let all = self.all()?;
        let turn = self.turn.fetch_add(1, Relaxed) % all.len();
        Ok(all[turn].runtime.clone())
    }

    /// Waits until the threads have ended, which they do when told to stop.
    pub(super) async fn ended(&self) {
        let running = mem::take(&mut *self.running.lock());
        // It fails only when this runtime ends, and then nobody waits.
        let _ = spawn_blocking(move || join(running)).await;
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.cancel();
        // What they do between two waits is short.
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
        let handle = thread::Builder::new().name(format!("data-plane-{number}")).spawn(run)?;
        let runtime = told.recv().map_err(io::Error::other)??;
        Ok(Self { worker: Worker { runtime, busy: Arc::default() }, handle })
    }
}

/// Lasts until told to stop.
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
