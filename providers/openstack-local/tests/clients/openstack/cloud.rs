//! The binary on a directory of its own, and the commands that are run against it.

use std::{
    io::{BufRead as _, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use parking_lot::Mutex;
use serde_json::Value;

use super::driver::{Driver, Ended};

const BINARY: &str = env!("CARGO_BIN_EXE_openstack-local");
/// Longest time of one command.
const LONGEST: Duration = Duration::from_secs(120);

/// A cloud that ends with this.
pub(crate) struct Cloud {
    serving: Child,
    _state: tempfile::TempDir,
    client: PathBuf,
    environment: Vec<(String, String)>,
    /// Those that have nothing to do.
    drivers: Mutex<Vec<Driver>>,
}

impl Cloud {
    /// Starts it on a free port.
    pub(crate) fn start(client: PathBuf) -> anyhow::Result<Self> {
        let state = tempfile::tempdir()?;
        let mut serve = Command::new(BINARY);
        serve
            .args(["serve", "--listen", "127.0.0.1:0", "--pending-ms", "200", "--state"])
            .arg(state.path());
        let mut serving = serve
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context(BINARY)?;
        let mut line = String::new();
        BufReader::new(serving.stdout.take().context("its output")?).read_line(&mut line)?;
        let address = line
            .trim()
            .rsplit("//")
            .next()
            .unwrap_or_default()
            .to_owned();
        let mut credentials = Command::new(BINARY);
        credentials
            .arg("credentials")
            .arg("--state")
            .arg(state.path())
            .args(["--listen", &address]);
        let said = credentials.output()?;
        let said = String::from_utf8(said.stdout)?;
        let export = |line: &str| {
            let (name, value) = line.strip_prefix("export ")?.split_once('=')?;
            Some((name.to_owned(), value.trim_matches('\'').to_owned()))
        };
        let environment: Vec<_> = said.lines().filter_map(export).collect();
        let cloud = Self {
            serving,
            _state: state,
            client,
            environment,
            drivers: Mutex::default(),
        };
        ensure!(
            !cloud.environment.is_empty(),
            "no credentials for the cloud that said {line:?}: {said}"
        );
        Ok(cloud)
    }

    /// Runs a command to its good end and returns what it says.
    pub(crate) fn run(&self, command: &str) -> anyhow::Result<String> {
        let (good, said, complaint) = self.openstack(command)?;
        ensure!(good, "openstack {command}: {complaint}");
        Ok(said)
    }

    /// Runs a command that has to be refused, and returns the complaint.
    pub(crate) fn fails(&self, command: &str) -> anyhow::Result<String> {
        let (good, said, complaint) = self.openstack(command)?;
        ensure!(!good, "openstack {command} should have been refused: {said}");
        ensure!(!complaint.contains("Traceback"), "openstack {command}: {complaint}");
        Ok(complaint)
    }

    /// Returns one field of what a command shows.
    pub(crate) fn value(&self, command: &str, field: &str) -> anyhow::Result<String> {
        Ok(self
            .run(&format!("{command} -f value -c {field}"))?
            .trim()
            .to_owned())
    }

    /// Returns the rows that a command lists.
    pub(crate) fn list(&self, command: &str) -> anyhow::Result<Vec<Value>> {
        let said = self.run(&format!("{command} -f json"))?;
        serde_json::from_str(&said).with_context(|| format!("openstack {command}: {said}"))
    }

    /// Returns the column `Name` of what a command lists.
    pub(crate) fn names(&self, command: &str) -> anyhow::Result<Vec<String>> {
        let name = |row: Value| {
            row["Name"]
                .as_str()
                .or(row["name"].as_str())
                .map(str::to_owned)
        };
        Ok(self.list(command)?.into_iter().filter_map(name).collect())
    }

    /// Runs a script with the interpreter beside the command.
    pub(crate) fn python(&self, script: &str) -> anyhow::Result<String> {
        let interpreter = self.client.with_file_name("python3");
        let (good, said, complaint) =
            self.bounded(Command::new(interpreter).args(["-c", script]))?;
        ensure!(good, "{complaint}");
        Ok(said)
    }

    /// Runs a program with the credentials to its good end, and returns what it prints.
    pub(crate) fn program(&self, program: &Path) -> anyhow::Result<String> {
        let (good, said, complaint) = self.bounded(&mut Command::new(program))?;
        ensure!(good, "{}: {complaint}", program.display());
        Ok(said)
    }

    /// Runs a command by the installed script itself.
    pub(crate) fn script(&self, command: &str) -> anyhow::Result<String> {
        let (good, said, complaint) =
            self.bounded(Command::new(&self.client).args(command.split_whitespace()))?;
        ensure!(good, "openstack {command}: {complaint}");
        Ok(said)
    }

    fn openstack(&self, command: &str) -> anyhow::Result<(bool, String, String)> {
        let idle = self.drivers.lock().pop();
        let mut driver = match idle {
            Some(driver) => driver,
            None => Driver::start(&self.client.with_file_name("python3"), &self.environment)?,
        };
        let Ended { good, said, complaint } = driver.run(command, LONGEST)?;
        self.drivers.lock().push(driver);
        Ok((good, said, complaint))
    }

    /// Runs a program with the credentials and no others: whether it ended well, its output and its
    /// complaints.
    fn bounded(&self, program: &mut Command) -> anyhow::Result<(bool, String, String)> {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OS_") {
                program.env_remove(name);
            }
        }
        program.envs(self.environment.iter().map(|(name, value)| (name, value)));
        program
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let name = PathBuf::from(program.get_program());
        let mut child = program
            .spawn()
            .with_context(|| format!("start {}", name.display()))?;
        let (out, err) =
            (child.stdout.take().context("output")?, child.stderr.take().context("complaints")?);
        let reader = |mut from: Box<dyn Read + Send>| {
            thread::spawn(move || {
                let mut text = String::new();
                from.read_to_string(&mut text).map(|_| text)
            })
        };
        let (out, err) = (reader(Box::new(out)), reader(Box::new(err)));
        let deadline = Instant::now() + LONGEST;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                bail!("did not end within {LONGEST:?}");
            }
            thread::sleep(Duration::from_millis(20));
        };
        let text = |thread: thread::JoinHandle<std::io::Result<String>>| {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("the reader of its output failed"))?
                .map_err(anyhow::Error::from)
        };
        Ok((status.success(), text(out)?, text(err)?))
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        // It is of no use any more, whatever the system says.
        let _ = self.serving.kill();
        let _ = self.serving.wait();
    }
}
