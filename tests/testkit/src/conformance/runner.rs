//! A program that checks suites: prints, writes JUnit XML, and tells by its exit code.

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
/// How often it is looked whether a suite is stuck.
const GLANCE: Duration = Duration::from_millis(100);

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
    /// Makes a suite that runs on a thread of its own, in a runtime that `runtime` builds: paused
    /// where the cloud is in the same process, or where its requests are made elsewhere (see the
    /// guide), otherwise in real time. `start` makes the adapter and hands it to the
    /// [`SuiteProgress`]; an error is a failure of the suite.
    pub fn new<F, Fut>(name: &'static str, runtime: fn() -> io::Result<Runtime>, start: F) -> Self
    where
        F: FnOnce(SuiteProgress) -> Fut + Send + 'static,
        Fut: Future<Output = anyhow::Result<Report>> + 'static,
    {
        Self {
            name,
            runtime,
            start: Box::new(move |watch| start(watch).boxed_local()),
            excuses: None,
        }
    }

    /// Says which rules cannot be kept, or not be checked, and why, and that all others are kept:
    /// without this, a rule that cannot be checked is none to fail for. An excuse for a rule that
    /// is kept after all is a failure.
    #[must_use]
    pub fn excused(self, excuses: &'static [(&'static str, &'static str)]) -> Self {
        Self { excuses: Some(excuses), ..self }
    }

    /// Runs it as a case of a program that has others, which must not run meanwhile: panics are
    /// taken for this one's. The report is printed.
    ///
    /// # Errors
    /// The report, when a rule is broken or nothing was checked.
    pub fn check(self) -> Result<(), Failed> {
        static RUNNING: LazyLock<Arc<Mutex<SuiteProgress>>> = LazyLock::new(|| {
            let running: Arc<Mutex<SuiteProgress>> = Arc::default();
            hear_panics(running.clone());
            running
        });
        let watch = SuiteProgress::default();
        *RUNNING.lock() = watch.clone();
        judge(&self.run(&watch))
    }

    /// Runs it to its end, or until it is seen that it has none; then its thread goes on until the
    /// process ends.
    fn run(self, watch: &SuiteProgress) -> Report {
        let (done, ended) = mpsc::channel();
        let (own, runtime, start) = (watch.clone(), self.runtime, self.start);
        let work = move || {
            let report = runtime()
                .map_err(Into::into)
                .and_then(|runtime| runtime.block_on(start(own)));
            // Nobody waits any more for one that took too long.
            let _ = done.send(report);
        };
        let thread = match thread::Builder::new()
            .name(self.name.to_owned())
            .spawn(work)
        {
            Ok(thread) => thread,
            Err(error) => {
                return watch
                    .broken_off(self.name, &format!("no thread could be started: {error}"));
            }
        };
        let report = loop {
            match ended.recv_timeout(GLANCE) {
                Ok(Ok(report)) => break report,
                Ok(Err(error)) => {
                    break watch.broken_off(self.name, &format!("the suite failed: {error:#}"));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if let Some(quiet) = watch.stuck() {
                        break watch.broken_off(
                            self.name,
                            &format!("keeps its thread: nothing has happened for {quiet:.1?}"),
                        );
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let text = thread
                        .join()
                        .err()
                        .map(|panic| panic_text(&*panic).to_owned());
                    break watch.broken_off(
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

/// Runs suites, one after the other, as the `main` of a test without harness (`harness = false`),
/// with the arguments of the process: those of any Rust test, of which a name runs the suites that
/// contain it, and `--junit FILE` for a report as JUnit XML. With `CCM_CONFORMANCE_JUNIT=DIR` the
/// report goes to `DIR/<name>.xml` as well.
///
/// The report is printed. The exit code is 0 when in every suite that ran some rule was checked and
/// none is broken. A provider that hangs or panics, also in a task that it spawned or by keeping
/// its thread, breaks the rule at hand.
pub fn run(name: &str, suites: impl IntoIterator<Item = Suite>) -> ExitCode {
    let mut files: Vec<PathBuf> = std::env::var_os(JUNIT_DIR)
        .filter(|dir| !dir.is_empty())
        .map(|dir| Path::new(&dir).join(format!("{name}.xml")))
        .into_iter()
        .collect();
    match split(std::env::args_os()) {
        Ok((arguments, file)) => {
            files.extend(file);
            run_with(Arguments::from_iter(arguments), suites, &files)
        }
        Err(mistake) => {
            say(&mut io::stderr(), &format!("error: {mistake}"));
            ExitCode::FAILURE
        }
    }
}

/// Takes the argument that is ours.
fn split(
    args: impl IntoIterator<Item = OsString>,
) -> Result<(Vec<OsString>, Option<PathBuf>), String> {
    let (mut rest, mut file) = (Vec::new(), None);
    let mut args = args.into_iter();
    let missing = || format!("{JUNIT} needs the name of a file");
    while let Some(arg) = args.next() {
        let given = match arg.to_str() {
            Some(JUNIT) => args.next().ok_or_else(missing)?,
            Some(text) if text.starts_with("--junit=") => text["--junit=".len()..].into(),
            _ => {
                rest.push(arg);
                continue;
            }
        };
        if given.is_empty() {
            return Err(missing());
        }
        file = Some(given.into());
    }
    Ok((rest, file))
}

/// Runs suites with given arguments, and writes the report to these files.
pub fn run_with(
    mut arguments: Arguments,
    suites: impl IntoIterator<Item = Suite>,
    files: &[PathBuf],
) -> ExitCode {
    // Each takes what the machine has, and panics must be the running suite's.
    arguments.test_threads = Some(1);
    let current: Arc<Mutex<SuiteProgress>> = Arc::default();
    hear_panics(current.clone());
    let reports: Arc<Mutex<Vec<Report>>> = Arc::default();
    let trials: Vec<_> = suites
        .into_iter()
        .map(|suite| {
            let (reports, current) = (reports.clone(), current.clone());
            Trial::test(suite.name, move || {
                let watch = SuiteProgress::default();
                *current.lock() = watch.clone();
                let report = suite.run(&watch);
                let verdict = judge(&report);
                reports.lock().push(report);
                verdict
            })
        })
        .collect();
    if trials.is_empty() {
        say(&mut io::stderr(), "error: there is no suite, so that nothing was checked");
        return ExitCode::FAILURE;
    }
    let listed = arguments.list;
    let conclusion = libtest_mimic::run(&arguments, trials);
    let mut code = conclusion.exit_code();
    for file in files.iter().filter(|_| !listed) {
        if let Err(error) = write(file, &junit(&reports.lock())) {
            say(&mut io::stderr(), &format!("error: {}: {error}", file.display()));
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn judge(report: &Report) -> Result<(), Failed> {
    if report.passed() {
        say(&mut io::stdout(), &format!("\n{report}"));
        return Ok(());
    }
    let nothing = if report.failures().next().is_none() {
        "nothing was checked\n"
    } else {
        ""
    };
    Err(format!("{nothing}{report}").into())
}

/// Tells the running suite of every panic, wherever it is caught. Holds for the rest of the
/// process.
fn hear_panics(current: Arc<Mutex<SuiteProgress>>) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let place = info
            .location()
            .map(|place| format!(" at {place}"))
            .unwrap_or_default();
        current
            .lock()
            .panicked(format!("{}{place}", info.payload_as_str().unwrap_or("no message")));
        before(info);
    }));
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(file, text)
}

/// Writes a line; a closed pipe is no reason to fail.
fn say(to: &mut impl Write, text: &str) {
    let _ = writeln!(to, "{}", text.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(args: &[&str]) -> Result<(Vec<OsString>, Option<PathBuf>), String> {
        split(["program"].iter().chain(args).map(OsString::from))
    }

    #[test]
    fn the_file_of_the_report_is_taken_and_all_else_is_handed_on() {
        let rest = |args: &[&str]| {
            ["program"]
                .iter()
                .chain(args)
                .map(OsString::from)
                .collect::<Vec<_>>()
        };
        assert_eq!(taken(&["routes", "--exact"]), Ok((rest(&["routes", "--exact"]), None)));
        for args in [&["--junit", "a.xml", "routes"][..], &["routes", "--junit=a.xml"]] {
            assert_eq!(taken(args), Ok((rest(&["routes"]), Some("a.xml".into()))), "{args:?}");
        }
        for args in [&["--junit"][..], &["--junit="], &["--junit", ""]] {
            assert_eq!(taken(args), Err("--junit needs the name of a file".to_owned()), "{args:?}");
        }
    }
}
