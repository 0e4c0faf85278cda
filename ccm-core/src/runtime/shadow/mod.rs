//! Shadow mode: reports what the controllers would change while another cloud-controller-manager
//! leads.
//!
//! The controllers observe and plan as usual but apply nothing: each offers a [`DryRun`] instead of
//! its loop. Their findings go to a [`ShadowReport`], which shows a difference once it has
//! persisted for a while and removes it when it is resolved. Nothing can be written: the write gate
//! is closed, every connection to the API server is [read only](crate::manager::read_only()), and
//! no call that changes the cloud is made. `docs/decisions/0009-shadow-mode.md` explains the
//! design.

mod compare_schedule;
mod difference;
mod report;
mod report_endpoint;

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
    difference::{Difference, ManagerDefect, NotCompared, Notice, ObjectKind, PossibleDefect},
    report::{ShadowReport, Summary},
    report_endpoint::routes,
};

/// The interval between two comparisons of the caches. Comparisons that need requests have a
/// separate schedule.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The differences that one controller found, and the objects that it could not compare.
#[derive(Clone, Debug, Default)]
pub struct DryRunFindings {
    /// The compared objects: their kind in the plural, and their number.
    pub compared: Vec<(&'static str, usize)>,
    /// The differences, each with the time at which it was last observed.
    pub differences: Vec<(Difference, Instant)>,
    /// The objects that could not be compared, each with the time of the last attempt.
    pub uncompared: Vec<(NotCompared, Instant)>,
    /// The objects that must be compared again before anything can be reported about them.
    pub unsettled: Vec<(ObjectKind, String)>,
    /// What the controller would warn the owners of objects about. These are no differences.
    pub notices: Vec<Notice>,
}

/// A controller that reports what it would do.
#[async_trait]
pub trait DryRun: Send {
    /// Compares everything that is due, and returns all current findings. Changes nothing.
    async fn compare(&mut self, now: Instant) -> DryRunFindings;
}

/// The result of a single comparison of everything (`once`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing differs.
    Same,
    /// At least one difference was found.
    Different,
    /// No difference was found, but something could not be compared.
    Incomplete,
}

/// Function that writes a line of output.
pub type Output = Arc<dyn Fn(&str) -> io::Result<()> + Send + Sync>;

/// Writes lines to standard output.
pub fn stdout() -> Output {
    Arc::new(|line| {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    })
}

/// Runs the dry runs and reports their findings, until it is stopped or once.
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
    /// Creates it from the dry runs of the controllers. With `once` it ends when everything was
    /// compared.
    pub fn new(
        dry_runs: Vec<Box<dyn DryRun>>,
        report: Arc<Mutex<ShadowReport>>,
        output: Output,
        once: bool,
    ) -> Self {
        Self { dry_runs, report, output, once }
    }

    /// Compares and prints until `stop`, and then returns `None`. With `once` it returns the
    /// verdict as soon as there is one.
    ///
    /// # Errors
    /// A line could not be written.
    pub async fn run(&mut self, stop: CancellationToken) -> io::Result<Option<Verdict>> {
        let Self { dry_runs, report, output, once } = self;
        let latest: Vec<Mutex<Option<DryRunFindings>>> =
            dry_runs.iter().map(|_| Mutex::default()).collect();
        // Each dry run has its own loop: if the cloud throttles one of them, the others are not
        // delayed.
        let compare = join_all(dry_runs.iter_mut().zip(&latest).map(
            |(dry_run, latest)| async move {
                loop {
                    let findings = dry_run.compare(Instant::now()).await;
                    *latest.lock() = Some(findings);
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            },
        ));
        let report = async {
            loop {
                // Nothing is reported before every dry run has findings.
                let findings: Option<Vec<DryRunFindings>> =
                    latest.iter().map(|latest| latest.lock().clone()).collect();
                if let Some(findings) = findings {
                    // Written without the lock, so that a slow reader of the output does not block
                    // the HTTP handler.
                    let (lines, verdict) = update_report(&mut report.lock(), findings, *once);
                    for line in &lines {
                        output(line)?;
                    }
                    if verdict.is_some() {
                        return Ok(verdict);
                    }
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => Ok(None),
            _ = compare => Ok(None),
            verdict = report => verdict,
        }
    }
}

/// Updates the report. Returns the lines to print: what is new, or, with `once`, everything at the
/// end.
fn update_report(
    report: &mut ShadowReport,
    findings: Vec<DryRunFindings>,
    once: bool,
) -> (Vec<String>, Option<Verdict>) {
    let new_lines = report.update(findings);
    if !once {
        return (new_lines, None);
    }
    let verdict = report.verdict();
    let lines = if verdict.is_some() {
        report.lines()
    } else {
        Vec::new()
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
                assert!(
                    board.try_lock().is_some(),
                    "a page would wait for whoever reads the lines"
                );
                lines.lock().push(line.to_owned());
                Ok(())
            })
        };
        let mut shadow = Shadow::new(vec![Box::new(Nothing)], board, output, true);
        assert_eq!(shadow.run(CancellationToken::new()).await.unwrap(), Some(Verdict::Same));
        assert_eq!(*lines.lock(), ["no differences: 1 node compared"]);
    }
}
