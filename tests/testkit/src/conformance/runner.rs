//! Builds a test program from suites. It prints the reports, writes JUnit XML and returns an exit
//! code.

use std::{
    ffi::OsString,
    fs,
    future::Future,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, LazyLock, mpsc},
    thread,
    time::Duration,
};

use ccm_core::error::panic_text;
use futures::{FutureExt, future::LocalBoxFuture};
use libtest_mimic::{Arguments, Failed, Trial};
use parking_lot::Mutex;
use tokio::runtime::Runtime;

use super::{Report, SuiteProgress, report::junit};

/// Argument that names the file for JUnit XML.
const JUNIT: &str = "--junit";
/// Variable that names the directory for JUnit XML.
const JUNIT_DIR: &str = "CCM_CONFORMANCE_JUNIT";
/// Interval of the checks for a blocked suite.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

type Start =
    Box<dyn FnOnce(SuiteProgress) -> LocalBoxFuture<'static, anyhow::Result<Report>> + Send>;

/// A suite to run.
pub struct Suite {
    name: &'static str,
    runtime: fn() -> io::Result<Runtime>,
    start: Start,
    excuses: Option<&'static [(&'static str, &'static str)]>,
}

impl Suite {
    /// Creates a suite that runs on its own thread, in the runtime that `runtime` builds. Pause its
    /// time if the cloud is in the same process, or if another runtime sends the requests (see the
    /// guide). `start` creates the adapter and passes it to a method of the [`SuiteProgress`]; an
    /// error is a failure of the suite.
    pub fn new<F, Fut>(name: &'static str, runtime: fn() -> io::Result<Runtime>, start: F) -> Self
    where
        F: FnOnce(SuiteProgress) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<Report>> + 'static,
    {
        Self {
            name,
            runtime,
            start: Box::new(move |progress| start(progress).boxed_local()),
            excuses: None,
        }
    }

    /// Excuses rules that cannot be kept or checked, each with a reason, and requires that all
    /// others are checked and kept. Without this call, a rule that cannot be checked is no failure.
    /// A rule that is excused but kept is a failure.
    #[must_use]
    pub fn excused(self, excuses: &'static [(&'static str, &'static str)]) -> Self {
        Self { excuses: Some(excuses), ..self }
    }

    /// Runs the suite as one case of a test program, and prints the report. No other case may run
    /// at the same time, because the suite counts every panic as its own.
    ///
    /// # Errors
    /// Returns the report if a rule is broken or nothing was checked.
    pub fn check(self) -> Result<(), Failed> {
        static RUNNING: LazyLock<Arc<Mutex<SuiteProgress>>> = LazyLock::new(|| {
            let running: Arc<Mutex<SuiteProgress>> = Arc::default();
            install_panic_hook(running.clone());
            running
        });
        let progress = SuiteProgress::default();
        *RUNNING.lock() = progress.clone();
        report_result(&self.run(&progress))
    }

    /// Runs the suite until it ends or blocks its thread. A blocked thread stays until the process
    /// ends.
    fn run(self, progress: &SuiteProgress) -> Report {
        let (done, ended) = mpsc::channel();
        let (task_progress, runtime, start) = (progress.clone(), self.runtime, self.start);
        let work = move || {
            let report = runtime()
                .map_err(Into::into)
                .and_then(|runtime| runtime.block_on(start(task_progress)));
            // Nobody receives the report if the suite was given up.
            let _ = done.send(report);
        };
        let thread = match thread::Builder::new()
            .name(self.name.to_owned())
            .spawn(work)
        {
            Ok(thread) => thread,
            Err(error) => {
                return progress
                    .abort_suite(self.name, &format!("failed to spawn a thread: {error}"));
            }
        };
        let report = loop {
            match ended.recv_timeout(POLL_INTERVAL) {
                Ok(Ok(report)) => break report,
                Ok(Err(error)) => {
                    break progress.abort_suite(self.name, &format!("the suite failed: {error:#}"));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if let Some(idle) = progress.blocked_for() {
                        break progress.abort_suite(
                            self.name,
                            &format!("blocks its thread: no progress for {idle:.1?}"),
                        );
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let text = thread
                        .join()
                        .err()
                        .map(|panic| panic_text(&*panic).to_owned());
                    break progress.abort_suite(
                        self.name,
                        &format!("the suite panicked: {}", text.unwrap_or_default()),
                    );
                }
            }
        };
        match self.excuses {
            Some(excuses) => report.excuse(excuses),
            None => report,
        }
    }
}

/// Runs suites one after the other, as the `main` of a test without harness (`harness = false`).
///
/// The process takes the arguments of any Rust test: a name selects the suites whose names contain
/// it. `--junit FILE` also writes the reports as JUnit XML. If `CCM_CONFORMANCE_JUNIT=DIR` is set,
/// they are written to `DIR/<name>.xml`.
///
/// The reports are printed. The exit code is 0 if every suite that ran checked at least one rule
/// and broke none. A provider that hangs, panics (also in a task that it spawned) or blocks its
/// thread breaks the current rule.
pub fn run(name: &str, suites: impl IntoIterator<Item = Suite>) -> ExitCode {
    let mut files: Vec<PathBuf> = std::env::var_os(JUNIT_DIR)
        .filter(|dir| !dir.is_empty())
        .map(|dir| Path::new(&dir).join(format!("{name}.xml")))
        .into_iter()
        .collect();
    match extract_junit_file(std::env::args_os()) {
        Ok((arguments, file)) => {
            files.extend(file);
            run_with(Arguments::from_iter(arguments), suites, &files)
        }
        Err(error) => {
            print_line(&mut io::stderr(), &format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Separates `--junit FILE` from the arguments of the test harness.
fn extract_junit_file(
    args: impl IntoIterator<Item = OsString>,
) -> Result<(Vec<OsString>, Option<PathBuf>), String> {
    let (mut harness_args, mut file) = (Vec::new(), None);
    let mut args = args.into_iter();
    let missing = || format!("{JUNIT} needs a file name");
    while let Some(arg) = args.next() {
        let value = match arg.to_str() {
            Some(JUNIT) => args.next().ok_or_else(missing)?,
            Some(text) if text.starts_with("--junit=") => text["--junit=".len()..].into(),
            _ => {
                harness_args.push(arg);
                continue;
            }
        };
        if value.is_empty() {
            return Err(missing());
        }
        file = Some(value.into());
    }
    Ok((harness_args, file))
}

/// Runs suites with the given arguments and writes the reports as JUnit XML to `files`.
pub fn run_with(
    mut arguments: Arguments,
    suites: impl IntoIterator<Item = Suite>,
    files: &[PathBuf],
) -> ExitCode {
    // One at a time: each uses the whole machine, and a panic must belong to the running suite.
    arguments.test_threads = Some(1);
    let current: Arc<Mutex<SuiteProgress>> = Arc::default();
    install_panic_hook(current.clone());
    let reports: Arc<Mutex<Vec<Report>>> = Arc::default();
    let trials: Vec<_> = suites
        .into_iter()
        .map(|suite| {
            let (reports, current) = (reports.clone(), current.clone());
            Trial::test(suite.name, move || {
                let progress = SuiteProgress::default();
                *current.lock() = progress.clone();
                let report = suite.run(&progress);
                let result = report_result(&report);
                reports.lock().push(report);
                result
            })
        })
        .collect();
    if trials.is_empty() {
        print_line(&mut io::stderr(), "error: there is no suite to check");
        return ExitCode::FAILURE;
    }
    let listed = arguments.list;
    let conclusion = libtest_mimic::run(&arguments, trials);
    let mut code = conclusion.exit_code();
    for file in files.iter().filter(|_| !listed) {
        if let Err(error) = write(file, &junit(&reports.lock())) {
            print_line(&mut io::stderr(), &format!("error: {}: {error}", file.display()));
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// Prints a report that passed, and returns one that did not as the error.
fn report_result(report: &Report) -> Result<(), Failed> {
    if report.passed() {
        print_line(&mut io::stdout(), &format!("\n{report}"));
        return Ok(());
    }
    let nothing = if report.failures().next().is_none() {
        "nothing was checked\n"
    } else {
        ""
    };
    Err(format!("{nothing}{report}").into())
}

/// Installs a panic hook that records every panic of the process in the running suite, even if it
/// is caught.
fn install_panic_hook(current: Arc<Mutex<SuiteProgress>>) {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let place = info
            .location()
            .map(|place| format!(" at {place}"))
            .unwrap_or_default();
        current
            .lock()
            .record_panic(format!("{}{place}", info.payload_as_str().unwrap_or("no message")));
        previous(info);
    }));
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(file, text)
}

/// Writes a line. Ignores errors, because a closed pipe must not fail the run.
fn print_line(to: &mut impl Write, text: &str) {
    let _ = writeln!(to, "{}", text.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extract(args: &[&str]) -> Result<(Vec<OsString>, Option<PathBuf>), String> {
        extract_junit_file(["program"].iter().chain(args).map(OsString::from))
    }

    #[test]
    fn the_junit_file_is_extracted_and_other_arguments_are_passed_on() {
        let rest = |args: &[&str]| {
            ["program"]
                .iter()
                .chain(args)
                .map(OsString::from)
                .collect::<Vec<_>>()
        };
        assert_eq!(extract(&["routes", "--exact"]), Ok((rest(&["routes", "--exact"]), None)));
        for args in [&["--junit", "a.xml", "routes"][..], &["routes", "--junit=a.xml"]] {
            assert_eq!(extract(args), Ok((rest(&["routes"]), Some("a.xml".into()))), "{args:?}");
        }
        for args in [&["--junit"][..], &["--junit="], &["--junit", ""]] {
            assert_eq!(extract(args), Err("--junit needs a file name".to_owned()), "{args:?}");
        }
    }
}
