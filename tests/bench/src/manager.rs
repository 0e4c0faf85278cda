//! A running manager.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, anyhow, ensure};
use ccm_testkit::{
    control_plane::{Usage, usage},
    supervised::{CommandLine, Supervised, free_port},
};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use crate::{cloud::Cloud, scenario::Scenario, subject::BenchmarkedManager};

/// Pause between two looks at a process.
const POLL: Duration = Duration::from_millis(20);
/// How long a manager may take to end.
const END: Duration = Duration::from_secs(60);

/// Whether a manager waits to be elected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Election {
    /// It alone runs, and writes no Lease.
    Off,
    /// It writes a Lease and waits for it.
    On,
}

/// A process of a manager. It dies with this value and with the benchmark.
pub(crate) struct Manager {
    process: Supervised,
    name: &'static str,
    started: Instant,
    /// Takes its profile; ends by itself when the manager does.
    profiler: Option<Child>,
}

impl Manager {
    /// Starts one. `log` is where its output goes.
    pub(crate) async fn start(
        contender: &BenchmarkedManager,
        scenario: &Scenario,
        cloud: &Cloud,
        kubeconfig: &Path,
        election: Election,
        log: PathBuf,
    ) -> anyhow::Result<Self> {
        let mut args = scenario.flags();
        args.extend([
            format!("--cloud-config={}", cloud.config().display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--leader-elect={}", election == Election::On),
            // All serve, as they would in a cluster, but where nothing else on the machine does.
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", free_port()?),
        ]);
        args.extend_from_slice(&contender.flags);
        let args = args.into_iter().map(Into::into).collect();
        let command = CommandLine { name: "manager", program: contender.binary.clone(), args };
        let started = Instant::now();
        let process = Supervised::spawn(&command, &log)
            .await
            .context("start the manager")?;
        let profiler = contender
            .profiles
            .as_deref()
            .map(|folder| profile(folder, process.pid()))
            .transpose()?;
        Ok(Self { process, name: contender.name(), started, profiler })
    }

    /// When it was started.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// What it used so far.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        usage(self.process.pid()).context("no usage of the manager")
    }

    /// Does something for which the manager must not end.
    pub(crate) async fn during<T>(
        &mut self,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        tokio::select! {
            done = work => done,
            error = self.ended() => Err(error),
        }
    }

    /// Lets time pass, in which the manager must not end.
    pub(crate) async fn stays(&mut self, time: Duration) -> anyhow::Result<()> {
        tokio::select! {
            () = sleep(time) => Ok(()),
            error = self.ended() => Err(error),
        }
    }

    async fn ended(&mut self) -> anyhow::Error {
        loop {
            match self.process.exited() {
                Ok(None) => sleep(POLL).await,
                Ok(Some(status)) => {
                    return anyhow!("{} ended: {status}: {}", self.name, self.last_line());
                }
                Err(error) => return error.into(),
            }
        }
    }

    /// What the manager said last, which is why it ended.
    fn last_line(&self) -> String {
        let log = self.process.log();
        log.lines()
            .rfind(|line| !line.trim().is_empty())
            .unwrap_or("it said nothing")
            .to_owned()
    }

    /// Sends SIGTERM and does not wait.
    pub(crate) async fn terminate(&mut self) -> anyhow::Result<()> {
        ensure!(self.process.exited()?.is_none(), "{} has ended: {}", self.name, self.last_line());
        let pid = self.process.pid().to_string();
        let sent = Command::new("/bin/sh")
            .args(["-c", "kill -s TERM \"$1\"", "sh", &pid])
            .status()
            .await?;
        ensure!(sent.success(), "SIGTERM could not be sent to {}", self.name);
        Ok(())
    }

    /// Waits until it has ended.
    pub(crate) async fn wait(mut self) -> anyhow::Result<()> {
        let ended = tokio::time::timeout(END, self.ended()).await;
        ended
            .map(drop)
            .with_context(|| format!("{} does not end", self.name))?;
        finish(self.profiler).await
    }

    /// Kills it and waits.
    pub(crate) async fn kill(self) -> anyhow::Result<()> {
        self.process.stop(END).await?;
        finish(self.profiler).await
    }
}

/// Samples the stacks of a process until it ends, into a file named after it.
fn profile(folder: &Path, pid: u32) -> anyhow::Result<Child> {
    std::fs::create_dir_all(folder)?;
    Command::new("perf")
        // An odd rate, in step with nothing. The binary has no frame pointers.
        .args([
            "record",
            "--quiet",
            "--freq=199",
            "--call-graph=dwarf",
            "--pid",
            &pid.to_string(),
            "--output",
        ])
        .arg(folder.join(format!("{pid}.perf")))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("start perf")
}

/// Waits until a profile is written.
async fn finish(profiler: Option<Child>) -> anyhow::Result<()> {
    if let Some(mut profiler) = profiler {
        let status = profiler.wait().await?;
        ensure!(status.success(), "perf ended: {status}");
    }
    Ok(())
}
