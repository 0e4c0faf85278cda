//! Shadow mode: what the controllers would change, while another cloud-controller-manager leads.
//!
//! The controllers observe and plan as ever and apply nothing: each offers a [`DryRun`] instead of its loop. What they
//! find goes to a [`ShadowReport`], which shows a difference once it has stood for a while, and forgets it when it is gone.
//! Nothing can be written: the gate is shut, every connection to the API server is [read only](crate::manager::read_only), and no call
//! that changes the cloud is made. `docs/decisions/0009-shadow-mode.md` says why it is made like this.

mod compare_schedule;
mod difference;
mod http;
mod report;

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::{compare_schedule::CompareSchedule, difference::NONE};
pub use self::{
    difference::{Difference, NotCompared, ObjectKind},
    http::routes,
    report::{ShadowReport, Summary},
};

/// Pause between two looks at the caches. What costs requests has a pace of its own.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What one controller would change.
#[derive(Clone, Debug, Default)]
pub struct DryRunFindings {
    /// What was compared: how many of it, and its name in the plural.
    pub compared: Vec<(&'static str, usize)>,
    /// What differs, and when it last was seen to.
    pub differences: Vec<(Difference, Instant)>,
    /// What could not be compared.
    pub uncompared: Vec<(NotCompared, Instant)>,
    /// Objects that have to be looked at again before anything can be said about them.
    pub unsettled: Vec<(ObjectKind, String)>,
}

/// A controller that says what it would do.
#[async_trait]
pub trait DryRun: Send {
    /// Compares what is due, and returns everything that is known by now. Changes nothing.
    async fn compare(&mut self, now: Instant) -> DryRunFindings;
}

/// How a comparison ended that was made once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing differs.
    Same,
    /// Something does.
    Different,
    /// Nothing that could be compared differs, but some of it could not be.
    Incomplete,
}

/// Where lines go.
pub type Output = Arc<dyn Fn(&str) -> io::Result<()> + Send + Sync>;

/// Writes lines to standard output.
pub fn stdout() -> Output {
    Arc::new(|line| {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    })
}

/// Compares until it is stopped, or once.
pub struct Shadow {
    dry_runs: Vec<Box<dyn DryRun>>,
    report: Arc<Mutex<ShadowReport>>,
    output: Output,
    once: bool,
}

impl std::fmt::Debug for Shadow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shadow")
            .field("previews", &self.dry_runs.len())
            .field("once", &self.once)
            .finish_non_exhaustive()
    }
}

impl Shadow {
    /// Makes it from controllers. `once`: end when everything was compared.
    pub fn new(dry_runs: Vec<Box<dyn DryRun>>, report: Arc<Mutex<ShadowReport>>, output: Output, once: bool) -> Self {
        Self { dry_runs, report, output, once }
    }

    /// Compares and prints, until `stop`; then returns `None`. Asked to compare once it returns what came of it.
    ///
    /// # Errors
    /// A line could not be written.
    pub async fn run(&mut self, stop: CancellationToken) -> io::Result<Option<Verdict>> {
        let Self { dry_runs: previews, report: board, output, once } = self;
        let slots: Vec<Mutex<Option<DryRunFindings>>> = previews.iter().map(|_| Mutex::default()).collect();
        // Each by itself: a cloud that wants to be left alone about one thing does not hold up the others.
        let look = join_all(previews.iter_mut().zip(&slots).map(|(preview, slot)| async move {
            loop {
                let findings = preview.compare(Instant::now()).await;
                *slot.lock() = Some(findings);
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }));
        let tell = async {
            loop {
                // Nothing is said before everything was looked at.
                let found: Option<Vec<DryRunFindings>> = slots.iter().map(|slot| slot.lock().clone()).collect();
                if let Some(found) = found {
                    // Written without the lock: who reads slowly holds up no page.
                    let (lines, verdict) = update_report(&mut board.lock(), found, *once);
                    lines.iter().try_for_each(|line| output(line))?;
                    if verdict.is_some() {
                        return Ok(verdict);
                    }
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => Ok(None),
            _ = look => Ok(None),
            told = tell => told,
        }
    }
}

/// Brings what was found to the board. Returns what is to be printed: what is new, or, when asked to compare once, all of it
/// at the end.
fn update_report(board: &mut ShadowReport, found: Vec<DryRunFindings>, once: bool) -> (Vec<String>, Option<Verdict>) {
    let news = board.update(found);
    let verdict = board.verdict().filter(|_| once);
    let lines = match (once, verdict) {
        (false, _) => news,
        (true, None) => Vec::new(),
        (true, Some(_)) => board.lines(),
    };
    (lines, verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    #[async_trait]
    impl DryRun for Nothing {
        async fn compare(&mut self, _: Instant) -> DryRunFindings {
            DryRunFindings { compared: vec![("nodes", 1)], ..DryRunFindings::default() }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lines_are_written_without_the_lock() {
        let board = Arc::new(Mutex::new(ShadowReport::new(Duration::ZERO)));
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let output: Output = {
            let (board, lines) = (board.clone(), lines.clone());
            Arc::new(move |line| {
                assert!(board.try_lock().is_some(), "a page would wait for whoever reads the lines");
                lines.lock().push(line.to_owned());
                Ok(())
            })
        };
        let mut shadow = Shadow::new(vec![Box::new(Nothing)], board, output, true);
        assert_eq!(shadow.run(CancellationToken::new()).await.unwrap(), Some(Verdict::Same));
        assert_eq!(*lines.lock(), ["no differences: 1 node compared"]);
    }
}
