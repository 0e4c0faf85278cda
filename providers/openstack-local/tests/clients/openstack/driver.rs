//! A process that runs commands of the client one after the other, so that each need not import
//! half a second of Python.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde::Deserialize;

/// How a command ended.
#[derive(Debug, Deserialize)]
pub(crate) struct Ended {
    pub(crate) good: bool,
    pub(crate) said: String,
    pub(crate) complaint: String,
}

/// The process, which ends with this.
pub(crate) struct Driver {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<std::io::Result<String>>,
}

impl Driver {
    /// Starts it with the interpreter of the client's installation and nothing of this process's
    /// credentials.
    pub(crate) fn start(
        interpreter: &Path,
        environment: &[(String, String)],
    ) -> anyhow::Result<Self> {
        let mut program = Command::new(interpreter);
        program.args(["-c", include_str!("driver.py")]);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("OS_"))
        {
            program.env_remove(name);
        }
        program.envs(environment.iter().map(|(name, value)| (name, value)));
        let mut child = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", interpreter.display()))?;
        let (commands, said) =
            (child.stdin.take().context("input")?, child.stdout.take().context("output")?);
        let (sender, answers) = channel();
        // Ends with the process, and waits for nobody but it.
        thread::spawn(move || {
            BufReader::new(said)
                .lines()
                .try_for_each(|line| sender.send(line))
        });
        Ok(Self { child, commands, answers })
    }

    /// Runs one command.
    pub(crate) fn run(&mut self, command: &str, longest: Duration) -> anyhow::Result<Ended> {
        let arguments: Vec<_> = command.split_whitespace().collect();
        writeln!(self.commands, "{}", serde_json::to_string(&arguments)?)?;
        match self.answers.recv_timeout(longest) {
            Ok(line) => Ok(serde_json::from_str(&line?)?),
            Err(error) => bail!("openstack {command}: {error}"),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It is of no use any more, whatever the system says.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
