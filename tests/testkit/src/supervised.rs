//! Child processes that cannot outlive this process, without `unsafe` and on any Unix.
//!
//! Each program runs under a small `sh` whose standard input is a pipe that only this process keeps
//! open. When this process ends for any reason, the kernel closes the pipe, the shell reads its end
//! and kills the program. The shell has its own process group, so a Ctrl-C at the terminal reaches
//! only this process.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// Range in which [`free_port`] searches: below the ports that systems assign to programs that do
/// not choose one.
const PORTS: Range<u16> = 20_000..30_000;

/// Returns a free port of the loopback interface, for a program that cannot choose one itself.
/// Until this process ends, no other test in any process gets it.
///
/// # Errors
/// None is free, or the folder with the locks cannot be made.
pub fn free_port() -> io::Result<u16> {
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    // One for each user, as another's cannot be written to.
    let user = std::fs::metadata("/proc/self")
        .map_or(0, |this| std::os::unix::fs::MetadataExt::uid(&this));
    let folder = std::env::temp_dir().join(format!("ccm-test-ports-{user}"));
    std::fs::create_dir_all(&folder)?;
    // Each process begins elsewhere, so that few meet.
    let count = u32::from(PORTS.end - PORTS.start);
    let first = std::process::id().wrapping_mul(97) % count;
    for port in (0..count).filter_map(|turn| u16::try_from((first + turn) % count).ok()) {
        let port = PORTS.start + port;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(folder.join(port.to_string()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // For either protocol, on the loopback addresses that there are.
        let hosts = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let is_free = |host: &IpAddr| match (
            TcpListener::bind((*host, port)),
            UdpSocket::bind((*host, port)),
        ) {
            (Ok(_), Ok(_)) => true,
            (Err(error), _) | (_, Err(error)) => error.kind() == io::ErrorKind::AddrNotAvailable,
        };
        if hosts.iter().all(is_free) {
            HELD.lock().push(lock);
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, "no port is free"))
}

/// `$1` is the log file, the rest is the program with its arguments. Prints the program's process
/// id. A background command of a shell gets `/dev/null` as its standard input, hence the detour by
/// descriptor 3.
const SUPERVISOR: &str = r#"
exec 3<&0
log=$1
shift
"$@" </dev/null >>"$log" 2>&1 3<&- &
program=$!
echo "$program"
( while read -r _ <&3; do :; done; kill -KILL "$program" ) >/dev/null 2>&1 &
watcher=$!
wait "$program"
status=$?
kill -KILL "$watcher" 2>/dev/null
exit "$status"
"#;

/// Removes the directory `$1` once its standard input ends; tries again while programs that are
/// being killed still write into it.
const JANITOR: &str = r#"
while read -r _; do :; done
n=0
while [ -e "$1" ] && [ "$n" -lt 10 ]; do
  rm -rf "$1" || sleep 1
  n=$((n + 1))
done
"#;

/// A program with its arguments.
#[derive(Debug, Clone)]
pub struct CommandLine {
    /// Short name, for messages.
    pub name: &'static str,
    /// Path of the program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
}

/// A running program under its supervisor. Dropping it kills the program; [`Supervised::stop`] also
/// waits.
#[derive(Debug)]
pub struct Supervised {
    name: &'static str,
    /// Holds the pipe that keeps the program alive.
    shell: Child,
    pid: u32,
    log: PathBuf,
}

impl Supervised {
    /// Starts the program; what it prints goes to the end of `log`.
    ///
    /// # Errors
    /// The shell cannot be started. A program that cannot be started shows as one that ended with
    /// code 126 or 127.
    pub async fn spawn(command: &CommandLine, log: &Path) -> io::Result<Self> {
        let mut shell = shell(SUPERVISOR)
            .arg(log)
            .arg(&command.program)
            .args(&command.args)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = shell.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).await?;
        }
        let pid = line
            .trim()
            .parse()
            .map_err(|_| io::Error::other("the supervisor printed no process id"))?;
        Ok(Self { name: command.name, shell, pid, log: log.to_owned() })
    }

    /// Returns the process id of the program itself. Another process may have it once this one has
    /// [`exited`](Self::exited).
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the short name of the program.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the exit status, if the program has ended. It comes from the shell, so a signal
    /// shows as code 128 plus its number.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        self.shell.try_wait()
    }

    /// Returns the output of the program.
    pub fn log(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Kills the program and waits until it is gone, for at most `deadline`.
    ///
    /// # Errors
    /// It did not end in time.
    pub async fn stop(mut self, deadline: Duration) -> io::Result<()> {
        drop(self.shell.stdin.take());
        match tokio::time::timeout(deadline, self.shell.wait()).await {
            Ok(ended) => ended.map(drop),
            Err(_) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("{} did not end", self.name)))
            }
        }
    }
}

/// Starts a process that removes `directory` after we ended or dropped the handle.
pub(crate) fn spawn_janitor(directory: &Path) -> io::Result<Child> {
    shell(JANITOR).arg(directory).stdout(Stdio::null()).spawn()
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", script, "sh"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(program: &str, args: &[&str]) -> CommandLine {
        CommandLine {
            name: "test",
            program: program.into(),
            args: args.iter().map(OsString::from).collect(),
        }
    }

    #[test]
    fn a_port_is_given_once() {
        let ports: std::collections::BTreeSet<_> = (0..20).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 20);
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, *ports.first().unwrap())).unwrap();
        assert!((0..20).all(|_| free_port().unwrap() != taken.local_addr().unwrap().port()));
    }

    /// Returns true if the process exists, by sending it a signal without effect.
    async fn is_alive(pid: u32) -> bool {
        let kill = Command::new("/bin/sh")
            .args(["-c", &format!("kill -0 {pid} 2>/dev/null")])
            .status()
            .await;
        kill.unwrap().success()
    }

    async fn wait_until(mut holds: impl AsyncFnMut() -> bool) {
        let wait = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .expect("it holds within the deadline");
    }

    #[tokio::test]
    async fn dropping_or_stopping_kills_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let dropped = Supervised::spawn(&command("/bin/sleep", &["1000"]), &log)
            .await
            .unwrap();
        let stopped = Supervised::spawn(&command("/bin/sleep", &["1000"]), &log)
            .await
            .unwrap();
        let pids = [dropped.pid(), stopped.pid()];
        assert!(is_alive(pids[0]).await && is_alive(pids[1]).await);

        stopped.stop(Duration::from_secs(20)).await.unwrap();
        assert!(!is_alive(pids[1]).await, "stopping waits");
        drop(dropped);
        wait_until(async || !is_alive(pids[0]).await).await;
    }

    #[tokio::test]
    async fn an_end_is_seen_and_the_words_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let failing = command("/bin/sh", &["-c", "cat; echo out; echo err >&2; exit 7"]);
        let mut program = Supervised::spawn(&failing, &log).await.unwrap();
        wait_until(async || program.exited().unwrap().is_some()).await;
        assert_eq!(program.exited().unwrap().unwrap().code(), Some(7));
        assert_eq!(program.log(), "out\nerr\n");
    }

    #[tokio::test]
    async fn the_janitor_waits_for_us() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("a/b");
        std::fs::create_dir_all(&inside).unwrap();
        let janitor = spawn_janitor(&directory.path().join("a")).unwrap();
        // A real process that must do nothing can only be given the time to do it.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(inside.exists());
        drop(janitor);
        wait_until(async || !inside.exists()).await;
        assert!(directory.path().exists());
    }
}
