//! A running cloud-controller-manager: started, signalled, waited for, and killed whatever happens.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use ccm_testkit::supervised::{CommandLine, Supervised};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::Instant;

/// How long a process may take to stop after it was told to.
const STANDSTILL: Duration = Duration::from_secs(10);
/// Pause between two looks at a process.
const POLL: Duration = Duration::from_millis(25);

/// What a process is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// End in order.
    Term,
    /// End at once.
    Kill,
    /// Stand still.
    Stop,
    /// Go on.
    Continue,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Term => "TERM",
            Self::Kill => "KILL",
            Self::Stop => "STOP",
            Self::Continue => "CONT",
        }
    }
}

/// A process of the binary under test. It dies with this value and with the test process.
#[derive(Debug)]
pub struct Ccm {
    name: String,
    process: Supervised,
}

impl Ccm {
    /// Starts `program` with these arguments; what it prints goes to `<directory>/<name>.log`.
    pub async fn start(
        program: &Path,
        directory: &Path,
        name: &str,
        args: Vec<OsString>,
    ) -> anyhow::Result<Self> {
        let command = CommandLine { name: "ccm-under-test", program: program.to_owned(), args };
        let process = Supervised::spawn(&command, &log_file(directory, name))
            .await
            .context("start the CCM")?;
        Ok(Self { name: name.to_owned(), process })
    }

    /// Name given at the start.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id; another process may have it once this one has ended.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Sends a signal. Fails when the process has ended.
    pub async fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        if let Some(status) = self.process.exited()? {
            bail!("{} has ended ({status}), it cannot get SIG{}", self.name, signal.name());
        }
        let pid = self.process.pid().to_string();
        let script = "kill -s \"$1\" \"$2\"";
        let sent = Command::new("/bin/sh")
            .args(["-c", script, "sh", signal.name(), &pid])
            .status()
            .await?;
        anyhow::ensure!(sent.success(), "SIG{} could not be sent to {}", signal.name(), self.name);
        if signal == Signal::Stop {
            self.stands_still().await
        } else {
            Ok(())
        }
    }

    /// Waits until every thread has stopped: on a busy machine some still run for a moment after
    /// the signal was sent.
    async fn stands_still(&self) -> anyhow::Result<()> {
        let tasks = format!("/proc/{}/task", self.process.pid());
        let deadline = Instant::now() + STANDSTILL;
        loop {
            let mut still = true;
            for task in std::fs::read_dir(&tasks)? {
                // A thread that has ended meanwhile runs no more.
                let stat = std::fs::read_to_string(task?.path().join("stat")).unwrap_or_default();
                // The state comes after the name, which is in parentheses and may hold any of them.
                let state = stat
                    .rsplit_once(')')
                    .and_then(|(_, rest)| rest.trim_start().chars().next());
                still &= state.is_none_or(|state| state == 'T');
            }
            if still {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "{} does not stand still", self.name);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> anyhow::Result<bool> {
        Ok(self.process.exited()?.is_none())
    }

    /// Waits until it has ended by itself.
    pub async fn exit(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.process.exited()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("{} still runs after {limit:?}", self.name);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until its log has a line with this text.
    pub async fn logged(&mut self, text: &str, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        while !self.log().contains(text) {
            if let Some(status) = self.process.exited()?
                && !self.log().contains(text)
            {
                bail!(
                    "{} ended ({status}) without saying {text:?}; its log:\n{}",
                    self.name,
                    self.log()
                );
            }
            if Instant::now() >= deadline {
                bail!(
                    "{} has not said {text:?} within {limit:?}; its log:\n{}",
                    self.name,
                    self.log()
                );
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Waits, while it runs, until something holds.
    ///
    /// # Errors
    /// It has ended, or the time is over: what was waited for, and the end of the log.
    pub async fn until(
        &mut self,
        what: &str,
        limit: Duration,
        mut holds: impl FnMut(&Self) -> bool,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        while !holds(self) {
            if !self.is_running()? || Instant::now() >= deadline {
                let log = self.log();
                bail!("{what}:\n{}", log.get(log.len().saturating_sub(4000)..).unwrap_or(&log));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Sends SIGTERM and waits for the end, which must be an orderly one.
    pub async fn terminate(mut self) -> anyhow::Result<()> {
        self.signal(Signal::Term).await?;
        let status = self.exit(Duration::from_secs(15)).await?;
        anyhow::ensure!(status.success(), "{} ended with {status} on SIGTERM", self.name);
        Ok(())
    }
}

/// Runs a program to its end, which must come in time: its exit code, and what it printed where
/// that is JSON, otherwise what it said of its errors.
pub async fn report(
    program: &Path,
    args: &[OsString],
    limit: Duration,
) -> anyhow::Result<(Option<i32>, Value)> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(limit, command.output()).await;
    let output =
        output.with_context(|| format!("{} still runs after {limit:?}", program.display()))??;
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|_| String::from_utf8_lossy(&output.stderr).into());
    Ok((output.status.code(), report))
}

/// File that a process of this name logs to.
pub fn log_file(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.log"))
}
